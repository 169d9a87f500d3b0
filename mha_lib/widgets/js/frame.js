// What every widget needs round its contents: building elements, following the model, saying what changed, showing
// an error, cleaning up. A widget calls `mount` and hands over what it draws.

/**
 * The part of anywidget's model that the widgets use.
 * @typedef {object} Model
 * @property {(name: string) => any} get
 * @property {(name: string, value: any) => void} set
 * @property {(event: string, callback: () => void) => void} on
 * @property {(event: string, callback: () => void) => void} off
 * @property {() => void} save_changes
 */

/**
 * @typedef {object} Frame
 * @property {HTMLElement} body where the widget puts its elements
 * @property {(name: string) => any} get reads a trait
 * @property {(changes: Object<string, any>) => void} set writes traits and tells the kernel, if there is one
 * @property {(target: EventTarget, type: string, listener: (event: any) => void) => void} listen until the view goes
 * @property {(text: string) => void} say tells a screen reader what changed
 */

/**
 * An element with its attributes, properties and children in one call.
 * @param {string} tag
 * @param {Object<string, any>} [attributes] `text` sets the text; true and false make a bare attribute or none
 * @param {...(Node|string|null)} children
 * @returns {any}
 */
export function element(tag, attributes = {}, ...children) {
  const node = document.createElement(tag);
  for (const [name, value] of Object.entries(attributes)) {
    if (name === "text") node.textContent = value;
    else if (value === true) node.setAttribute(name, "");
    else if (value !== false && value != null) node.setAttribute(name, String(value));
  }
  node.append(...children.filter((child) => child !== null));
  return node;
}

/**
 * Text with the two kinds of mark-up that widgets allow: `code` and *emphasis*.
 * @param {string} text
 * @returns {Node[]}
 */
export function inlineText(text) {
  return text.split(/(`[^`]+`|\*[^*\s](?:[^*]*[^*\s])?\*)/).map((part, index) => {
    if (index % 2 === 0) return document.createTextNode(part);
    return element(part[0] === "`" ? "code" : "em", { text: part.slice(1, -1) });
  });
}

/**
 * @param {number} number
 * @param {number} [digits]
 * @returns {string} with a true minus sign, and no minus before zero
 */
export function formatNumber(number, digits = 4) {
  if (number === -Infinity) return "−∞";
  const text = number.toFixed(digits);
  return Number(text) === 0 ? text.replace("-", "") : text.replace("-", "−");
}

/**
 * A choice between a few options: native radio buttons in a fieldset, drawn as one row of buttons.
 * @param {string} name shared by the radio buttons; unique within the widget
 * @param {string} legend
 * @param {[string, string][]} options pairs of value and text
 * @returns {{node: HTMLElement, inputs: HTMLInputElement[]}}
 */
export function segmentedControl(name, legend, options) {
  const inputs = options.map(([value]) => element("input", { type: "radio", name, value }));
  const labels = options.map(([, text], index) => element("label", {}, inputs[index], element("span", { text })));
  const node = element(
    "fieldset",
    { class: "mha-segments" },
    element("legend", { text: legend }),
    element("div", {}, ...labels),
  );
  return { node, inputs };
}

/**
 * Builds one view and keeps it up to date with the model.
 *
 * All is inside one form, so that radio buttons of two views never form one group and Enter submits nothing.
 * @param {{model: Model, el: HTMLElement}} view
 * @param {{name: string, label: string, traits: string[]}} options `name` makes the CSS class, `label` is read out,
 *   a change of one of `traits` draws the widget again
 * @param {(frame: Frame) => () => void} build makes the elements once and returns the function that draws the state;
 *   drawing throws a RangeError where the state makes no sense
 * @returns {() => void} clean-up: removes all elements and listeners
 */
export function mount({ model, el }, { name, label, traits }, build) {
  const listeners = new AbortController();
  const body = element("div", { class: "mha-body" });
  const problem = element("p", { class: "mha-problem", role: "alert", hidden: true });
  const status = element("p", { class: "mha-unseen", role: "status" });
  const form = element("form", {}, body, problem, status);
  const root = element("div", { class: `mha-widget mha-${name}`, role: "group", "aria-label": label }, form);
  // JupyterLab would take plain keys, the arrows too, as commands to its cells: this keeps them to the widget,
  // whether it listens on the way down or on the way up.
  root.dataset.lmSuppressShortcuts = "true";
  el.append(root);

  /** @type {Frame} */
  const frame = {
    body,
    get: (trait) => model.get(trait),
    set(changes) {
      for (const [trait, value] of Object.entries(changes)) model.set(trait, value);
      model.save_changes();
    },
    listen: (target, type, listener) => target.addEventListener(type, listener, { signal: listeners.signal }),
    say(text) {
      status.textContent = text;
    },
  };
  frame.listen(form, "submit", (event) => event.preventDefault());
  frame.listen(root, "keydown", (event) => {
    if (!event.ctrlKey && !event.metaKey && !event.altKey) event.stopPropagation();
  });

  const draw = build(frame);
  const redraw = () => {
    let message = "";
    try {
      draw();
    } catch (error) {
      message = `This widget cannot show its state: ${error.message}.`;
      if (!(error instanceof RangeError)) console.error(error);
    }
    body.hidden = message !== "";
    problem.hidden = message === "";
    problem.textContent = message;
  };
  // One sweep may change several traits, each with its own event: wait until all are there.
  let waiting = false;
  const schedule = () => {
    if (waiting) return;
    waiting = true;
    queueMicrotask(() => {
      waiting = false;
      if (!listeners.signal.aborted) redraw();
    });
  };
  for (const trait of traits) model.on(`change:${trait}`, schedule);
  redraw();

  return () => {
    listeners.abort();
    for (const trait of traits) model.off(`change:${trait}`, schedule);
    root.remove();
  };
}
