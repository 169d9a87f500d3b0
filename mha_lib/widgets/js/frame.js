// What every widget needs around its contents. This module builds elements, follows the model, announces
// changes, shows errors and cleans up. A widget calls `mount` and passes the function that builds its
// contents.

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
 * The values that a setting may take, as its trait in Python defines them.
 * @typedef {object} Limits
 * @property {number} low
 * @property {number} high
 * @property {number} [step]
 * @property {any[]} [options]
 * @property {number} [length] of a list
 */

/**
 * The readers (`whole`, `real`, …) check a trait and throw a RangeError if its value is not allowed. The
 * limits from Python always apply; `narrower` replaces those that other settings make narrower.
 * @typedef {object} Frame
 * @property {HTMLElement} body where the widget puts its elements
 * @property {(name: string) => any} get reads a trait without checking it
 * @property {(name: string) => Limits} limits of a setting; other traits have none
 * @property {(name: string, narrower?: Partial<Limits>) => number} whole reads a whole number
 * @property {(name: string, narrower?: Partial<Limits>) => number} real reads a finite number
 * @property {(name: string) => boolean} flag reads true or false
 * @property {(name: string) => string} choice reads one of the options
 * @property {(name: string, narrower?: Partial<Limits>) => number[]} reals reads a list of finite numbers
 * @property {(changes: Object<string, any>) => void} set writes traits and tells the kernel, if there is one
 * @property {(numbers: () => Object<string, any>) => void} report lets Python compare the numbers with
 *   torch's
 * @property {(target: EventTarget, type: string, listener: (event: any) => void) => void} listen until the
 *   view is removed
 * @property {(text: string) => void} say tells a screen reader what changed; in a quick series of
 *   changes, the first and then only the latest after each pause
 */

/**
 * `name` makes the CSS class; screen readers read out `label`. The widget is drawn again when a setting
 * changes, or a trait that `data` names. `python` writes the settings as a Python program.
 * @typedef {{name: string, label: string, data?: string[], python?: (frame: Frame) => string}} MountOptions
 */

// Milliseconds. Nobody can follow more frequent announcements, and Python need not compare more often.
const PAUSE = 200;

const SVG = "http://www.w3.org/2000/svg";

/**
 * Makes an element with its attributes and children.
 * @param {string} tag
 * @param {Object<string, any>} [attributes] `text` sets the text; true makes a bare attribute, false none
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
 * Makes an SVG element with its attributes.
 * @param {string} tag
 * @param {Object<string, any>} attributes
 * @returns {any}
 */
export function svgElement(tag, attributes) {
  const node = document.createElementNS(SVG, tag);
  for (const [name, value] of Object.entries(attributes)) node.setAttribute(name, String(value));
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
 * Sets the text of an element. An unchanged text costs nothing; a changed one keeps its text node, so that
 * the browser lays out only this element.
 * @param {any} node with nothing but text in it
 * @param {string} text
 */
export function setText(node, text) {
  const { firstChild } = node;
  if (!firstChild) {
    if (text) node.textContent = text;
  } else if (firstChild.data !== text) firstChild.data = text;
}

/**
 * Sets an attribute. An unchanged one costs nothing.
 * @param {Element} node
 * @param {string} name
 * @param {string | number} value
 */
export function setAttribute(node, name, value) {
  if (node.getAttribute(name) !== String(value)) node.setAttribute(name, String(value));
}

/**
 * Stores in a node, at full precision, the number that it shows, for tests and other programs.
 * @param {any} node
 * @param {string} name shared by all numbers of a table, whose nodes are in reading order
 * @param {number | ArrayLike<number>} value one number, or the numbers of a curve
 */
export function mark(node, name, value) {
  node.dataset.number = name;
  node.dataset.value = typeof value === "number" ? String(value) : Array.from(value).join(" ");
}

/**
 * @param {KeyboardEvent} event
 * @returns {boolean} whether the key belongs to a shortcut of the browser or of the page
 */
export function isShortcut(event) {
  return event.ctrlKey || event.metaKey || event.altKey;
}

/**
 * The element that has the focus in the tree of a node, which may be a shadow tree.
 * @param {Node} node
 */
export function focusedNear(node) {
  return /** @type {Document} */ (node.getRootNode()).activeElement;
}

/**
 * Turns typed arrays into plain ones, which a kernel understands, and −∞, which JSON lacks, into null.
 * @param {any} value
 * @returns {any}
 */
function plain(value) {
  if (value === -Infinity) return null;
  return typeof value === "object" && value !== null ? Array.from(value, plain) : value;
}

/**
 * The readers of a frame.
 * @param {Model} model
 * @param {Object<string, Limits>} ranges
 * @returns {Pick<Frame, "get" | "limits" | "whole" | "real" | "flag" | "choice" | "reals">}
 */
function buildReaders(model, ranges) {
  const insist = (/** @type {boolean} */ holds, /** @type {string} */ trait, /** @type {string} */ rule) => {
    if (!holds) throw new RangeError(`${trait} must ${rule}, got ${JSON.stringify(model.get(trait)) ?? "nothing"}`);
    return model.get(trait);
  };
  const isReal = (/** @type {any} */ value, /** @type {Partial<Limits>} */ { low = -Infinity, high = Infinity }) =>
    typeof value === "number" && value >= low && value <= high;
  const limits = (/** @type {string} */ trait, /** @type {Partial<Limits>} */ narrower = {}) => ({
    ...ranges[trait],
    ...narrower,
  });
  return {
    get: (trait) => model.get(trait),
    limits,
    whole(trait, narrower) {
      const { low, high, options, step = 1 } = limits(trait, narrower);
      const value = model.get(trait);
      insist(Number.isInteger(value) && isReal(value, { low, high }), trait, `lie in ${low}..${high}`);
      if (options) insist(options.includes(value), trait, `be one of ${options.join(", ")}`);
      return insist((value - low) % step === 0, trait, `be ${low % 2 ? "odd" : "even"}`);
    },
    real(trait, narrower) {
      const range = limits(trait, narrower);
      return insist(isReal(model.get(trait), range), trait, `be a number from ${range.low} to ${range.high}`);
    },
    flag: (trait) => insist(typeof model.get(trait) === "boolean", trait, "be true or false"),
    choice(trait) {
      const options = limits(trait).options ?? [];
      return insist(options.includes(model.get(trait)), trait, `be one of ${options.join(", ")}`);
    },
    reals(trait, narrower) {
      const range = limits(trait, narrower);
      const { low, high, length } = range;
      const value = model.get(trait);
      const fits = Array.isArray(value) && (length === undefined || value.length === length);
      const count = length === undefined ? "numbers" : `${length} numbers`;
      return insist(fits && value.every((v) => isReal(v, range)), trait, `hold ${count} from ${low} to ${high}`);
    },
  };
}

/**
 * Returns a function that announces texts to screen readers. Of a quick series of texts it announces the
 * first at once and then, after each pause, only the latest.
 * @param {HTMLElement} status
 * @param {AbortSignal} signal stops it
 */
function buildSpeaker(status, signal) {
  let timer = 0;
  let next = /** @type {string | null} */ (null);
  const tell = () => {
    timer = next === null ? 0 : setTimeout(tell, PAUSE);
    if (next !== null) status.textContent = next;
    next = null;
  };
  signal.addEventListener("abort", () => clearTimeout(timer));
  return (/** @type {string} */ text) => {
    next = text;
    if (!timer && !signal.aborted) tell();
  };
}

/**
 * Returns a function that tells Python, after a pause, the settings and the numbers computed from them.
 * @param {Model} model
 * @param {string[]} settings
 * @param {AbortSignal} signal stops it
 */
function buildReporter(model, settings, signal) {
  let timer = 0;
  signal.addEventListener("abort", () => clearTimeout(timer));
  return (/** @type {() => Object<string, any>} */ numbers) => {
    clearTimeout(timer);
    timer = setTimeout(() => {
      const used = Object.fromEntries(settings.map((trait) => [trait, model.get(trait)]));
      const computed = Object.entries(numbers()).map(([key, value]) => [key, plain(value)]);
      model.set("browser_report", { settings: used, numbers: Object.fromEntries(computed) });
      model.save_changes();
    }, PAUSE);
  };
}

/**
 * The settings written as a program, folded away, and a button that copies it.
 * @param {Frame} frame
 * @param {(frame: Frame) => string} python
 */
function buildProgram(frame, python) {
  const code = element("code");
  // The scrolling element can take the focus, so that long lines can be read with the keyboard.
  const scroller = { class: "mha-code", tabindex: 0, role: "group", "aria-label": "Python code" };
  const text = element("div", scroller, element("pre", {}, code));
  const copy = element("button", { type: "button", text: "Copy" });
  const summary = element("summary", { text: "These settings as Python" });
  const node = element("details", { class: "mha-python" }, summary, text, copy);
  const draw = () => {
    if (!node.open) return;
    code.textContent = python(frame);
    copy.textContent = "Copy";
  };
  frame.listen(node, "toggle", draw);
  frame.listen(copy, "click", async () => {
    try {
      await navigator.clipboard.writeText(code.textContent);
      frame.say("Copied.");
      copy.textContent = "Copied";
    } catch {
      // The browser may refuse access to the clipboard. The selected code can still be copied.
      getSelection()?.selectAllChildren(code);
      frame.say("The code is selected: copy it with your keyboard.");
    }
  });
  return { node, draw };
}

/**
 * The footer of a widget: a button that resets the settings, and the settings written as a program.
 * @param {Frame} frame
 * @param {string[]} settings
 * @param {MountOptions["python"]} python
 */
function buildFooter(frame, settings, python) {
  const initial = Object.fromEntries(settings.map((name) => [name, structuredClone(frame.get(name))]));
  const reset = element("button", { type: "button", class: "mha-reset", text: "Reset" });
  frame.listen(reset, "click", () => {
    frame.set(structuredClone(initial));
    // The redraw announces its own change first. This text comes after it and replaces it.
    queueMicrotask(() => frame.say("All settings are back at their initial values."));
  });
  const node = element("div", { class: "mha-footer" }, reset);
  if (!python) return { node, draw() {} };
  const program = buildProgram(frame, python);
  node.append(program.node);
  return { node, draw: program.draw };
}

/**
 * Returns a function that calls `draw` or, if the state is invalid, shows the error in place of the widget.
 * @param {HTMLElement} body
 * @param {HTMLElement} problem
 * @param {() => void} draw
 */
function buildRedraw(body, problem, draw) {
  return () => {
    let message = "";
    try {
      draw();
    } catch (error) {
      message = `This widget cannot show its state: ${/** @type {Error} */ (error).message}.`;
      if (!(error instanceof RangeError)) console.error(error);
    }
    body.hidden = message !== "";
    problem.hidden = message === "";
    problem.textContent = message;
  };
}

/**
 * Builds one view and keeps it up to date with the model.
 *
 * All elements are inside one form, so that radio buttons of two views never form one group and Enter submits
 * nothing.
 * @param {{model: Model, el: HTMLElement}} view
 * @param {MountOptions} options
 * @param {(frame: Frame) => () => void} build makes the elements once and returns the function that draws the
 *   state; this function throws a RangeError if the state is invalid
 * @returns {() => void} clean-up: removes all elements and listeners
 */
export function mount({ model, el }, { name, label, data = [], python }, build) {
  const ranges = model.get("_ranges") ?? {};
  const settings = Object.keys(ranges);
  const traits = [...settings, ...data];
  const listeners = new AbortController();
  const { signal } = listeners;
  const body = element("div", { class: "mha-body" });
  const problem = element("p", { class: "mha-problem", role: "alert", hidden: true });
  const status = element("p", { class: "mha-unseen", role: "status" });
  const form = element("form", {}, body, problem, status);
  const root = element("div", { class: `mha-widget mha-${name}`, role: "group", "aria-label": label }, form);
  // JupyterLab would treat plain keys, even arrows, as commands for its cells. This attribute and the keydown
  // listener below keep them in the widget, whether JupyterLab listens in the capture phase or in the
  // bubbling phase.
  root.dataset.lmSuppressShortcuts = "true";
  el.append(root);

  /** @type {Frame} */
  const frame = {
    body,
    ...buildReaders(model, ranges),
    set(changes) {
      for (const [trait, value] of Object.entries(changes)) model.set(trait, value);
      model.save_changes();
    },
    report: buildReporter(model, settings, signal),
    listen: (target, type, listener) => target.addEventListener(type, listener, { signal }),
    say: buildSpeaker(status, signal),
  };
  frame.listen(form, "submit", (event) => event.preventDefault());
  frame.listen(root, "keydown", (event) => {
    if (!isShortcut(event)) event.stopPropagation();
  });

  const draw = build(frame);
  const footer = buildFooter(frame, settings, python);
  if (settings.length > 0) form.insertBefore(footer.node, status);
  const redraw = buildRedraw(body, problem, () => {
    draw();
    footer.draw();
  });
  // One action may change several traits, and each change fires its own event. The view waits for all.
  let waiting = false;
  const schedule = () => {
    if (waiting) return;
    waiting = true;
    queueMicrotask(() => {
      waiting = false;
      if (!signal.aborted) redraw();
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
