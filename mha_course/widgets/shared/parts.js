// The controls and read-outs that widgets share. Each is built once and listens until the view is removed;
// the widget places its `node`. A control that is given the name of a setting reads and writes this setting, in
// the range of its trait; one that is given a function calls it, and the widget calls its `draw` to show a state.

import { formatNumber } from "./format.js";
import { element, mark, setAttribute, setText } from "./frame.js";

/** @typedef {import("./frame.js").Frame} Frame */

/**
 * @param {number} stop @param {number} index of the stop
 * @param {readonly number[]} all stops
 */
function tickOf(stop, index, all) {
  const tick = element("span", { text: stop });
  tick.style.setProperty("--place", String(all.length === 1 ? 0.5 : index / (all.length - 1)));
  return tick;
}

/**
 * Binds a control to a setting, unless the widget gave a function.
 * @param {Frame} frame @param {string | ((value: any) => void)} bound
 * @param {(value: any, setting: string) => void} draw @returns {(value: any) => void} called with a new value
 */
function bindTo(frame, bound, draw) {
  if (typeof bound === "function") return bound;
  frame.bind(() => draw(frame.get(bound), bound));
  return (value) => frame.set({ [bound]: typeof frame.get(bound) === "number" ? Number(value) : value });
}

/**
 * @typedef {{low?: number, high?: number, step?: number, stops?: readonly number[], text?: string,
 *   said?: string, isTicked?: boolean}} SliderShow `text` is shown beside the slider; a screen reader reads `said`
 *   instead, if it is given; `isTicked` is false for many stops
 */

/**
 * A slider over a range or over given stops, each with a tick.
 * @param {Frame} frame @param {string} name
 * @param {string | ((value: number) => void)} [bound] default: the setting with this name
 * @param {(value: number) => SliderShow} [show] how a value of the setting is shown
 */
export function slider(frame, name, bound = name, show = () => ({})) {
  const input = element("input", { type: "range" });
  const ticks = element("span", { class: "mha-ticks", "aria-hidden": "true" });
  const shown = element("span", { class: "mha-value", "aria-hidden": "true" });
  const node = element(
    "label",
    { class: "mha-row" },
    element("span", { class: "mha-name", text: name }),
    element("span", { class: "mha-slider" }, input, ticks),
    shown,
  );
  /** @type {readonly number[] | null} */
  let stops = null;
  let ticked = "";
  const onInput = bindTo(frame, bound, (value, setting) => draw(value, { ...frame.limits(setting), ...show(value) }));
  frame.listen(input, "input", () => onInput(stops ? stops[Number(input.value)] : Number(input.value)));

  /** @param {number} value @param {SliderShow} how */
  function draw(value, { low = 0, high = 1, step = 1, stops: places, text = String(value), said = text, isTicked = true }) {
    stops = places ?? null;
    setAttribute(input, "min", places ? 0 : low);
    setAttribute(input, "max", places ? places.length - 1 : high);
    setAttribute(input, "step", places ? 1 : step);
    input.value = places ? places.indexOf(value) : value;
    input.disabled = input.min === input.max;
    setAttribute(input, "aria-valuetext", said);
    setText(shown, text);
    const all = (isTicked && places) || [];
    ticks.hidden = all.length === 0;
    if (ticked !== String(all)) ticks.replaceChildren(...all.map(tickOf));
    ticked = String(all);
    all.forEach((stop, index) => ticks.children[index].classList.toggle("mha-now", stop === value));
  }
  return { node, input, draw };
}

/**
 * The stops of a slider together with the current value, as Python may have set a value that is not a stop.
 * @param {readonly number[]} stops @param {number} value @returns {readonly number[]}
 */
export function stopsWith(stops, value) {
  return stops.includes(value) ? stops : [...stops, value].sort((a, b) => a - b);
}

/**
 * A drop-down menu.
 * @param {Frame} frame @param {string} name @param {string | ((index: number) => void)} bound
 * @param {readonly string[]} [texts] of the options of the setting
 */
export function menu(frame, name, bound, texts) {
  const select = element("select");
  const node = element("label", { class: "mha-row" }, element("span", { class: "mha-name", text: name }), select);
  const optionsOf = (/** @type {string} */ setting) => frame.limits(setting).options ?? [];
  const onChange = bindTo(frame, bound, (value, setting) => draw(texts ?? optionsOf(setting), optionsOf(setting).indexOf(value)));
  frame.listen(select, "change", () => {
    onChange(typeof bound === "string" ? optionsOf(bound)[select.selectedIndex] : select.selectedIndex);
  });

  /** @param {readonly string[]} shown @param {number} index */
  function draw(shown, index) {
    if (shown.join("\n") !== Array.from(select.options, (option) => option.text).join("\n")) {
      select.replaceChildren(...shown.map((text) => element("option", { text })));
    }
    select.selectedIndex = index;
  }
  return { node, draw };
}

/** @param {Frame} frame @param {string} name @param {string | ((checked: boolean) => void)} bound */
export function checkbox(frame, name, bound) {
  const input = element("input", { type: "checkbox" });
  const node = element("label", { class: "mha-check" }, input, element("span", { text: name }));
  const draw = (/** @type {boolean} */ checked) => (input.checked = checked);
  const onChange = bindTo(frame, bound, draw);
  frame.listen(input, "change", () => onChange(input.checked));
  return { node, input, draw };
}

/**
 * A choice between a few options: native radio buttons in a fieldset, drawn as one row of buttons.
 * @param {Frame} frame @param {string} name
 * @param {readonly (readonly [string | number, string])[]} options pairs of value and text
 * @param {string | ((value: string) => void)} bound
 */
export function segments(frame, name, options, bound) {
  const inputs = options.map(([value]) => element("input", { type: "radio", name, value }));
  const labels = options.map(([, text], index) => element("label", {}, inputs[index], element("span", { text })));
  const node = element(
    "fieldset",
    { class: "mha-segments" },
    element("legend", { text: name }),
    element("div", {}, ...labels),
  );
  const draw = (/** @type {string | number} */ value) => inputs.forEach((input) => (input.checked = input.value === String(value)));
  const onChange = bindTo(frame, bound, draw);
  frame.listen(node, "change", (event) => onChange(event.target.value));
  return { node, inputs, draw };
}

/**
 * Buttons with which the reader goes one step forward or back, or jumps to any step.
 * @param {Frame} frame @param {string[]} names one for each step
 * @param {(step: number) => void} onStep
 */
export function stepper(frame, names, onStep) {
  const back = element("button", { type: "button", text: "← Back" });
  const next = element("button", { type: "button", text: "Next →" });
  const places = names.map((name, index) =>
    element("button", { type: "button", class: "mha-step", "aria-label": `Step ${index + 1}: ${name}`, text: index + 1 }),
  );
  const title = element("p", { class: "mha-title" });
  const node = element("div", { class: "mha-stepper" }, back, element("div", {}, ...places), next, title);
  let current = 0;
  const go = (/** @type {number} */ step) => step >= 0 && step < names.length && onStep(step);
  frame.listen(back, "click", () => go(current - 1));
  frame.listen(next, "click", () => go(current + 1));
  places.forEach((place, index) => frame.listen(place, "click", () => go(index)));

  /** @param {number} step */
  function draw(step) {
    current = step;
    // `disabled` would take the focus from the button that the reader has just pressed.
    back.setAttribute("aria-disabled", String(step === 0));
    next.setAttribute("aria-disabled", String(step === names.length - 1));
    places.forEach((place, index) => {
      if (index === step) place.setAttribute("aria-current", "step");
      else place.removeAttribute("aria-current");
    });
    title.textContent = `${step + 1} of ${names.length}: ${names[step]}`;
  }
  return { node, draw };
}

/** @typedef {{text: string, low: number, high: number, now: number}} SliderState */

/**
 * Sets what an element with the role of a slider tells a screen reader.
 * @param {HTMLElement} node @param {SliderState} state `text` is read out instead of the number
 */
export function tellSlider(node, { text, low, high, now }) {
  node.setAttribute("aria-valuemin", String(low));
  node.setAttribute("aria-valuemax", String(high));
  node.setAttribute("aria-valuenow", String(now));
  node.setAttribute("aria-valuetext", text);
}

/**
 * Turns a handle that moves in two directions into a pair of sliders, because a slider has only one direction. Both
 * are on the handle and are a single stop for the Tab key; the slider that the last arrow key moved has the focus.
 * @param {Frame} frame @param {HTMLElement} knob the handle that the reader sees and drags
 * @param {[string, string]} names of the horizontal and the vertical slider
 */
export function sliderPair(frame, knob, names) {
  const sliders = names.map((name, axis) =>
    element("span", {
      class: "mha-axis-slider",
      role: "slider",
      tabindex: axis === 0 ? 0 : -1,
      "aria-label": name,
      "aria-orientation": axis === 0 ? "horizontal" : "vertical",
    }),
  );
  knob.append(...sliders);
  frame.listen(knob, "focusin", (event) => {
    for (const slider of sliders) slider.tabIndex = slider === event.target ? 0 : -1;
  });
  return {
    /** @returns {0 | 1} the slider that Tab leads to */
    axis: () => (sliders[1].tabIndex === 0 ? 1 : 0),
    /** @param {0 | 1} [axis] */
    focus(axis) {
      const slider = axis === undefined ? sliders.find(({ tabIndex }) => tabIndex === 0) : sliders[axis];
      slider?.focus({ preventScroll: true });
    },
    /** @param {SliderState[]} states horizontal, vertical */
    draw: (states) => sliders.forEach((slider, axis) => tellSlider(slider, states[axis])),
  };
}

/**
 * Lets the reader drag a knob over an area.
 * @param {Frame} frame @param {HTMLElement} knob @param {HTMLElement} area
 * @param {(right: number, up: number, box: DOMRect) => void} onMove receives the pointer's position as shares of the
 *   area's width and height, from its lower left corner, and the area's box
 * @param {() => void} [focus] what is focused when the drag begins
 */
export function draggedOver(frame, knob, area, onMove, focus = () => knob.focus()) {
  frame.listen(knob, "pointerdown", (event) => {
    knob.setPointerCapture(event.pointerId);
    focus();
    event.preventDefault();
  });
  frame.listen(knob, "pointermove", (event) => {
    if (!knob.hasPointerCapture(event.pointerId)) return;
    const box = area.getBoundingClientRect();
    onMove((event.clientX - box.left) / box.width, (box.bottom - event.clientY) / box.height, box);
  });
}

/**
 * Sizes and results in large type, each with a name, a value and a remark.
 * @param {string[]} names under which the page stores the numbers
 * @param {string[]} [labels] that the reader sees instead of the names
 */
export function facts(names, labels = names) {
  const entries = labels.map((name) => {
    const value = element("strong", { class: "mha-fact" });
    const hint = element("span", { class: "mha-hint" });
    return { node: element("p", {}, element("span", { class: "mha-name", text: name }), value, hint), value, hint };
  });
  const node = element("div", { class: "mha-facts" }, ...entries.map((entry) => entry.node));

  /**
   * @param {{text: string, hint?: string, number?: number | ArrayLike<number>}[]} values the page stores
   *   `number` at full precision
   */
  function draw(values) {
    values.forEach(({ text, hint = "", number }, index) => {
      setText(entries[index].value, text);
      setText(entries[index].hint, hint);
      if (number !== undefined) mark(entries[index].value, names[index], number);
    });
  }
  return { node, draw };
}

/**
 * A bar for each number, with its label and the number itself.
 * @param {string} name of the numbers, for screen readers and in the page
 * @param {"query" | "key" | "value" | "muted"} role gives the colour; "muted" is for numbers without a role
 *   in attention
 */
export function bars(name, role) {
  const node = element("ul", { class: "mha-bars", "aria-label": name });
  node.style.setProperty("--role", `var(--mha-${role})`);

  /**
   * @param {readonly string[]} labels @param {ArrayLike<number>} numbers not below zero
   * @param {{high?: number, digits?: number, format?: (number: number) => string, now?: number}} [how] `high`
   *   is the number that fills the whole width, `now` the index of a highlighted bar
   */
  function draw(labels, numbers, { high = 1, digits = 3, format, now } = {}) {
    const write = format ?? ((number) => formatNumber(number, digits));
    while (node.children.length > labels.length) node.lastElementChild?.remove();
    while (node.children.length < labels.length) {
      node.append(element("li", {}, element("span"), element("span", { class: "mha-bar-track" }, element("i")), element("b")));
    }
    labels.forEach((label, index) => {
      const [text, track, shown] = /** @type {any} */ (node.children[index]).children;
      setText(text, label);
      track.firstChild.style.width = `${100 * Math.min(numbers[index] / high, 1)}%`;
      setText(shown, write(numbers[index]));
      mark(shown, name, numbers[index]);
      node.children[index].classList.toggle("mha-now", index === now);
    });
  }
  return { node, draw };
}
