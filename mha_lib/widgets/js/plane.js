// A plane with axes: curves in an SVG that stretches, points and handles as elements of the page, so that text keeps
// its size on a phone and each handle can have the focus.

import { element, formatNumber, mark } from "./frame.js";

/** @typedef {import("./frame.js").Frame} Frame */
/** @typedef {[number, number]} Range lowest and highest */

const SVG = "http://www.w3.org/2000/svg";

/**
 * Round numbers inside a range, about `count` of them.
 * @param {Range} range
 * @param {number} count
 * @returns {{values: number[], digits: number}}
 */
export function roundTicks([low, high], count) {
  const rough = (high - low) / count;
  const power = 10 ** Math.floor(Math.log10(rough));
  const step = [1, 2, 5, 10].map((factor) => factor * power).find((size) => size >= rough * 0.999) ?? rough;
  const first = Math.ceil(low / step - 1e-9);
  const last = Math.floor(high / step + 1e-9);
  const values = Array.from({ length: last - first + 1 }, (_, index) => (first + index) * step);
  return { values, digits: Math.max(0, -Math.floor(Math.log10(step) + 1e-9)) };
}

/**
 * @param {Frame} frame
 * @param {{label: string, xName: string, yName: string, ratio?: number, ticks?: [number, number],
 *   texts?: ((value: number, digits: number) => string)[]}} options `label` says to a screen reader what is drawn, `ratio`
 *   is width / height, `texts` write the ticks of x and of y, as a logarithmic axis needs
 */
export function plane(frame, { label, xName, yName, ratio = 2, ticks = [6, 4], texts = [formatNumber, formatNumber] }) {
  const svg = document.createElementNS(SVG, "svg");
  svg.setAttribute("viewBox", "0 0 100 100");
  svg.setAttribute("preserveAspectRatio", "none");
  svg.setAttribute("role", "img");
  svg.setAttribute("aria-label", label);
  const area = element("div", { class: "mha-area" }, svg);
  area.style.aspectRatio = String(ratio);
  const [xTicks, yTicks] = ["x", "y"].map((axis) => element("div", { class: `mha-${axis}-ticks`, "aria-hidden": "true" }));
  const node = element(
    "div",
    { class: "mha-plane" },
    element("span", { class: "mha-y-name", "aria-hidden": "true", text: yName }),
    yTicks,
    area,
    xTicks,
    element("span", { class: "mha-x-name", "aria-hidden": "true", text: xName }),
  );
  /** @type {Range} */
  let xRange = [0, 1];
  /** @type {Range} */
  let yRange = [0, 1];
  const across = (/** @type {number} */ x) => (100 * (x - xRange[0])) / (xRange[1] - xRange[0]);
  const up = (/** @type {number} */ y) => (100 * (y - yRange[0])) / (yRange[1] - yRange[0]);
  const place = (/** @type {any} */ item, /** @type {number} */ x, /** @type {number} */ y) => {
    item.style.left = `${across(x)}%`;
    item.style.bottom = `${up(y)}%`;
  };
  const clamp = (/** @type {number} */ value, /** @type {Range} */ [low, high]) => Math.min(Math.max(value, low), high);

  /**
   * Sets what the plane shows; curves, points and handles are drawn after it.
   * @param {Range} x
   * @param {Range} y
   */
  function draw(x, y) {
    if (String([x, y]) === String([xRange, yRange]) && xTicks.firstChild) return;
    [xRange, yRange] = [x, y];
    for (const [row, range, count, style, write] of [
      [xTicks, x, ticks[0], "left", texts[0]],
      [yTicks, y, ticks[1], "bottom", texts[1]],
    ]) {
      const { values, digits } = roundTicks(range, count);
      row.replaceChildren(
        ...values.map((/** @type {number} */ value) => {
          const tick = element("span", { text: write(value, digits) });
          tick.style[style] = `${(100 * (value - range[0])) / (range[1] - range[0])}%`;
          return tick;
        }),
      );
    }
  }

  /**
   * A line through points; `kind` is a class of its own style: query, key, value, truth, faint.
   * @param {string} kind
   * @param {string} [name] under which the y of its points are kept at full precision
   */
  function curve(kind, name) {
    const path = document.createElementNS(SVG, "path");
    path.setAttribute("class", `mha-curve mha-${kind}`);
    svg.append(path);
    /**
     * @param {ArrayLike<number>} xs
     * @param {ArrayLike<number>} ys a number that is not finite leaves a gap
     */
    function drawCurve(xs, ys) {
      let pen = "M";
      let d = "";
      for (let i = 0; i < xs.length; i += 1) {
        if (!Number.isFinite(ys[i])) pen = "M";
        else {
          d += `${pen}${across(xs[i]).toFixed(2)} ${(100 - up(ys[i])).toFixed(2)}`;
          pen = "L";
        }
      }
      path.setAttribute("d", d);
      if (name) mark(path, name, ys);
    }
    return { node: path, draw: drawCurve };
  }

  /**
   * Dots that are only looked at.
   * @param {string} kind
   */
  function dots(kind) {
    const group = element("div", { class: `mha-dots mha-${kind}`, "aria-hidden": "true" });
    area.append(group);
    /**
     * @param {ArrayLike<number>} xs
     * @param {ArrayLike<number>} ys
     * @param {(index: number) => {size?: number, opacity?: number, text?: string}} [style] size in pixels
     */
    function drawDots(xs, ys, style = () => ({})) {
      while (group.children.length > xs.length) group.lastElementChild?.remove();
      while (group.children.length < xs.length) group.append(element("span"));
      Array.from(group.children).forEach((dot, index) => {
        const { size = 7, opacity = 1, text = "" } = style(index);
        place(dot, xs[index], ys[index]);
        Object.assign(/** @type {any} */ (dot).style, { width: `${size}px`, height: `${size}px`, opacity });
        dot.textContent = text;
      });
    }
    return { node: group, draw: drawDots };
  }

  /**
   * A point that can be dragged, and moved with the arrow keys (with Shift ten steps at once).
   * @param {{label: string, role: string, axis: "x" | "y" | "both", step: number, onMove: (x: number, y: number) => void}}
   *   options `role` is query, key or value; along one axis it is a slider to a screen reader
   */
  function handle({ label: name, role, axis, step, onMove }) {
    const isSlider = axis !== "both";
    const knob = element(isSlider ? "div" : "button", {
      class: `mha-handle mha-${role}`,
      type: isSlider ? null : "button",
      role: isSlider ? "slider" : null,
      tabindex: 0,
      "aria-label": name,
      "aria-orientation": isSlider ? (axis === "x" ? "horizontal" : "vertical") : null,
    });
    area.append(knob);
    let [x, y] = [0, 0];
    const move = (/** @type {number} */ toX, /** @type {number} */ toY) => {
      const round = (/** @type {number} */ value) => Number((Math.round(value / step) * step).toFixed(10));
      onMove(axis === "y" ? x : round(clamp(toX, xRange)), axis === "x" ? y : round(clamp(toY, yRange)));
    };
    frame.listen(knob, "pointerdown", (event) => {
      knob.setPointerCapture(event.pointerId);
      knob.focus();
      event.preventDefault();
    });
    frame.listen(knob, "pointermove", (event) => {
      if (!knob.hasPointerCapture(event.pointerId)) return;
      const box = area.getBoundingClientRect();
      const [right, top] = [(event.clientX - box.left) / box.width, (box.bottom - event.clientY) / box.height];
      move(xRange[0] + right * (xRange[1] - xRange[0]), yRange[0] + top * (yRange[1] - yRange[0]));
    });
    frame.listen(knob, "keydown", (event) => {
      const size = step * (event.shiftKey ? 10 : 1);
      const [low, high] = axis === "y" ? yRange : xRange;
      /** @type {Object<string, [number, number]>} */
      const targets = {
        ArrowLeft: axis === "y" ? [x, y - size] : [x - size, y],
        ArrowRight: axis === "y" ? [x, y + size] : [x + size, y],
        ArrowUp: axis === "x" ? [x + size, y] : [x, y + size],
        ArrowDown: axis === "x" ? [x - size, y] : [x, y - size],
        ...(isSlider && { Home: [low, low], End: [high, high] }),
      };
      const target = targets[event.key];
      if (!target || event.ctrlKey || event.metaKey || event.altKey) return;
      event.preventDefault();
      move(...target);
    });

    /**
     * @param {number} toX
     * @param {number} toY
     * @param {string} [text] on the handle
     */
    function drawHandle(toX, toY, text = "") {
      [x, y] = [toX, toY];
      place(knob, x, y);
      knob.textContent = text;
      const [xText, yText] = [formatNumber(x, 2), formatNumber(y, 2)];
      if (!isSlider) knob.setAttribute("aria-label", `${name} at ${xText}, ${yText}; the arrow keys move it`);
      else {
        const [value, [low, high]] = axis === "x" ? [x, xRange] : [y, yRange];
        knob.setAttribute("aria-valuemin", String(low));
        knob.setAttribute("aria-valuemax", String(high));
        knob.setAttribute("aria-valuenow", String(value));
        knob.setAttribute("aria-valuetext", axis === "x" ? xText : yText);
      }
    }
    return { node: knob, draw: drawHandle };
  }

  /** @param {string} text what the curves now show */
  const describe = (text) => svg.setAttribute("aria-label", `${label}. ${text}`);
  return { node, area, draw, curve, dots, handle, describe };
}
