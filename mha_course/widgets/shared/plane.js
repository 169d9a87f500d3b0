// A plane with axes. Curves are in an SVG that stretches; dots and handles are HTML elements, so that their
// text keeps its size on a phone and each handle can have the focus.

import { formatNumber } from "./format.js";
import { element, isShortcut, mark, svgElement } from "./frame.js";
import { draggedOver, sliderPair, tellSlider } from "./parts.js";
import { roundTicks, within } from "./tick_math.js";

/** @typedef {import("./frame.js").Frame} Frame */
/** @typedef {import("./tick_math.js").Range} Range */

/**
 * `label` tells a screen reader what is drawn, `ratio` is width / height, and the two functions in `texts`
 * write the ticks of x and y, for example on a logarithmic axis.
 * @typedef {{label: string, xName: string, yName: string, ratio?: number, ticks?: [number, number],
 *   texts?: ((value: number, digits: number) => string)[]}} PlaneOptions
 */

/**
 * `role` is the class that sets the colour: query, key, value, position or offset. To a screen reader, a
 * handle that moves along one axis is a slider, and one that moves along both is a pair of sliders.
 * @typedef {{label: string, role: string, axis: "x" | "y" | "both", step: number,
 *   onMove: (x: number, y: number) => void}} HandleOptions
 */

/** The ranges that a plane shows, and the place of a number in them, in percent. */
function buildScale() {
  const scale = {
    x: /** @type {Range} */ ([0, 1]),
    y: /** @type {Range} */ ([0, 1]),
    across: (/** @type {number} */ x) => (100 * (x - scale.x[0])) / (scale.x[1] - scale.x[0]),
    up: (/** @type {number} */ y) => (100 * (y - scale.y[0])) / (scale.y[1] - scale.y[0]),
    /** @type {(item: any, x: number, y: number) => void} */
    place(item, x, y) {
      item.style.left = `${scale.across(x)}%`;
      item.style.bottom = `${scale.up(y)}%`;
    },
  };
  return scale;
}

/** @typedef {ReturnType<typeof buildScale>} Scale */

/**
 * @param {HTMLElement} row @param {Range} range @param {number} count @param {"left" | "bottom"} side
 * @param {(value: number, digits: number) => string} write
 */
function drawPlaneTicks(row, range, count, side, write) {
  const { values, digits } = roundTicks(range, count);
  row.replaceChildren(
    ...values.map((value) => {
      const tick = element("span", { text: write(value, digits) });
      tick.style[side] = `${(100 * (value - range[0])) / (range[1] - range[0])}%`;
      return tick;
    }),
  );
}

/** @param {SVGElement} svg @param {Scale} scale @param {string} kind @param {string} [name] */
function buildCurve(svg, scale, kind, name) {
  const path = svgElement("path", { class: `mha-curve mha-${kind}` });
  svg.append(path);
  /** @param {ArrayLike<number>} xs @param {ArrayLike<number>} ys a number that is not finite leaves a gap */
  function draw(xs, ys) {
    let pen = "M";
    let d = "";
    for (let i = 0; i < xs.length; i += 1) {
      if (!Number.isFinite(ys[i])) pen = "M";
      else {
        d += `${pen}${scale.across(xs[i]).toFixed(2)} ${(100 - scale.up(ys[i])).toFixed(2)}`;
        pen = "L";
      }
    }
    path.setAttribute("d", d);
    if (name) mark(path, name, ys);
  }
  return { node: path, draw };
}

/** @param {HTMLElement} area @param {Scale} scale @param {string} kind */
function buildDots(area, scale, kind) {
  const node = element("div", { class: `mha-dots mha-${kind}`, "aria-hidden": "true" });
  area.append(node);
  /**
   * @param {ArrayLike<number>} xs @param {ArrayLike<number>} ys
   * @param {(index: number) => {size?: number, opacity?: number}} [style] size in pixels
   */
  function draw(xs, ys, style = () => ({})) {
    while (node.children.length > xs.length) node.lastElementChild?.remove();
    while (node.children.length < xs.length) node.append(element("span"));
    Array.from(node.children).forEach((dot, index) => {
      const { size = 7, opacity = 1 } = style(index);
      scale.place(dot, xs[index], ys[index]);
      Object.assign(dot.style, { width: `${size}px`, height: `${size}px`, opacity });
    });
  }
  return { node, draw };
}

/**
 * The point to which a key moves a handle that can move along `axis`.
 * @param {string} key @param {number[]} from x and y
 * @param {number} size of a step
 * @param {"x" | "y" | "both"} axis @param {Range} range where Home and End lead
 * @param {0 | 1} focused the axis of Home and End
 * @returns {number[] | undefined}
 */
function handleTarget(key, [x, y], size, axis, [low, high], focused) {
  const [isX, isY] = [axis === "x", axis === "y"];
  /** @type {Object<string, number[]>} */
  const targets = {
    ArrowLeft: isY ? [x, y - size] : [x - size, y],
    ArrowRight: isY ? [x, y + size] : [x + size, y],
    ArrowUp: isX ? [x + size, y] : [x, y + size],
    ArrowDown: isX ? [x - size, y] : [x, y - size],
    Home: focused === 0 ? [low, y] : [x, low],
    End: focused === 0 ? [high, y] : [x, high],
  };
  return targets[key];
}

/** @type {(value: number, step: number) => number} the nearest whole multiple of the step */
const toStep = (value, step) => Number((Math.round(value / step) * step).toFixed(10));

/**
 * The element of a handle: a slider or, if it moves along both axes, a pair of sliders with a text on them.
 * @param {Frame} frame @param {HandleOptions} options @param {[string, string]} names of the axes
 */
function buildKnob(frame, { label, role, axis, step }, names) {
  const kind = { class: `mha-handle mha-${role}` };
  // The handle moves from one stop to the next, and the ends of an axis need not be stops.
  const stateOf = (/** @type {number} */ now, /** @type {Range} */ [low, high]) => {
    const ends = { low: Math.min(toStep(low, step), now), high: Math.max(toStep(high, step), now) };
    return { ...ends, now, text: formatNumber(now, 2) };
  };
  /** @type {(place: number[], scale: Scale) => import("./parts.js").SliderState[]} */
  const states = ([x, y], scale) => [stateOf(x, scale.x), stateOf(y, scale.y)];
  if (axis !== "both") {
    const orientation = axis === "x" ? "horizontal" : "vertical";
    const node = element("div", { ...kind, role: "slider", tabindex: 0, "aria-label": label, "aria-orientation": orientation });
    const own = axis === "x" ? 0 : 1;
    /** @type {(place: number[], scale: Scale, text: string) => void} */
    const draw = (place, scale, text) => {
      node.textContent = text;
      tellSlider(node, states(place, scale)[own]);
    };
    return { node, draw, focus: () => node.focus(), axis: () => /** @type {0 | 1} */ (own) };
  }
  const shown = element("span", { "aria-hidden": "true" });
  const node = element("div", kind, shown);
  const pair = sliderPair(frame, node, [`${label}, ${names[0]}`, `${label}, ${names[1]}`]);
  /** @type {(place: number[], scale: Scale, text: string) => void} */
  const draw = (place, scale, text) => {
    shown.textContent = text;
    pair.draw(states(place, scale));
  };
  return { node, draw, focus: pair.focus, axis: pair.axis };
}

/**
 * @param {Frame} frame @param {HTMLElement} area @param {Scale} scale @param {HandleOptions} options
 * @param {[string, string]} names of the axes
 */
function buildHandle(frame, area, scale, options, names) {
  const { axis, step, onMove } = options;
  const knob = buildKnob(frame, options, names);
  const { node } = knob;
  area.append(node);
  let [x, y] = [0, 0];
  const move = (/** @type {number} */ toX, /** @type {number} */ toY) => {
    const round = (/** @type {number} */ value, /** @type {Range} */ range) => toStep(within(value, range), step);
    onMove(axis === "y" ? x : round(toX, scale.x), axis === "x" ? y : round(toY, scale.y));
  };
  const dragTo = (/** @type {number} */ right, /** @type {number} */ up) =>
    move(scale.x[0] + right * (scale.x[1] - scale.x[0]), scale.y[0] + up * (scale.y[1] - scale.y[0]));
  draggedOver(frame, node, area, dragTo, () => knob.focus());
  frame.listen(node, "keydown", (event) => {
    const size = step * (event.shiftKey ? 10 : 1);
    const focused = knob.axis();
    const target = handleTarget(event.key, [x, y], size, axis, focused === 0 ? scale.x : scale.y, focused);
    if (!target || isShortcut(event)) return;
    event.preventDefault();
    if (axis === "both" && target[0] !== x) knob.focus(0);
    if (axis === "both" && target[1] !== y) knob.focus(1);
    move(target[0], target[1]);
  });

  /** @param {number} toX @param {number} toY @param {string} [text] on the handle */
  function draw(toX, toY, text = "") {
    [x, y] = [toX, toY];
    scale.place(node, x, y);
    knob.draw([x, y], scale, text);
  }
  return { node, draw };
}

/** @param {Frame} frame @param {PlaneOptions} options */
export function plane(frame, { label, xName, yName, ratio = 2, ticks = [6, 4], texts = [formatNumber, formatNumber] }) {
  const svg = svgElement("svg", {
    viewBox: "0 0 100 100",
    preserveAspectRatio: "none",
    role: "img",
    "aria-label": label,
  });
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
  const scale = buildScale();

  /**
   * Sets the ranges of both axes; curves, dots and handles must be drawn afterwards.
   * @param {Range} x @param {Range} y
   */
  function draw(x, y) {
    if (String([x, y]) === String([scale.x, scale.y]) && xTicks.firstChild) return;
    Object.assign(scale, { x, y });
    drawPlaneTicks(xTicks, x, ticks[0], "left", texts[0]);
    drawPlaneTicks(yTicks, y, ticks[1], "bottom", texts[1]);
  }
  return {
    node,
    area,
    draw,
    /**
     * A line through points.
     * @param {string} kind a class that sets the style, such as query, truth or faint
     * @param {string} [name] under which the page stores the y of its points at full precision
     */
    curve: (kind, name) => buildCurve(svg, scale, kind, name),
    /** Dots that the reader cannot move. @param {string} kind */
    dots: (kind) => buildDots(area, scale, kind),
    /**
     * A point that the reader drags or moves with the arrow keys (ten steps at once with Shift).
     * @param {HandleOptions} options
     */
    handle: (options) => buildHandle(frame, area, scale, options, [xName, yName]),
    /** @param {string} text what the curves now show */
    describe: (text) => svg.setAttribute("aria-label", `${label}. ${text}`),
  };
}
