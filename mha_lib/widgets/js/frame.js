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
 * @property {(name: string) => any} get reads a trait as it is
 * @property {(name: string, low: number, high: number) => number} whole reads a whole number, or throws
 * @property {(name: string, low: number, high: number) => number} real reads a finite number, or throws
 * @property {(name: string) => boolean} flag reads true or false, or throws
 * @property {(name: string, options: readonly string[]) => string} choice reads one of some texts, or throws
 * @property {(name: string, low: number, high: number, length?: number) => number[]} reals reads a list, or throws
 * @property {(changes: Object<string, any>) => void} set writes traits and tells the kernel, if there is one
 * @property {(numbers: () => Object<string, any>) => void} report lets Python compare what was computed with torch's
 * @property {(target: EventTarget, type: string, listener: (event: any) => void) => void} listen until the view goes
 * @property {(text: string) => void} say tells a screen reader what changed; of many changes in a row the last
 */

const PAUSE = 200; // milliseconds: nobody hears or compares more often what a slider does

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
 * Keeps a number that a node shows at full precision, for tests and for whoever reads the page by program.
 * @param {any} node
 * @param {string} name one for all numbers of a table, which stand in reading order
 * @param {number | ArrayLike<number>} value one number, or those of a curve
 */
export function mark(node, name, value) {
  node.dataset.number = name;
  node.dataset.value = typeof value === "number" ? String(value) : Array.from(value).join(" ");
}

/**
 * Typed arrays as plain ones, which a kernel understands; −∞, which JSON has not, as null.
 * @param {any} value
 * @returns {any}
 */
function plain(value) {
  if (value === -Infinity) return null;
  return typeof value === "object" && value !== null ? Array.from(value, plain) : value;
}

/**
 * The lower edge of a widget: start again, or take the settings along.
 * @param {Frame} frame
 * @param {{settings: string[], python?: (frame: Frame) => string}} options
 */
function buildFooter(frame, { settings, python }) {
  const initial = Object.fromEntries(settings.map((name) => [name, structuredClone(frame.get(name))]));
  const reset = element("button", { type: "button", class: "mha-reset", text: "Reset" });
  frame.listen(reset, "click", () => {
    frame.set(structuredClone(initial));
    // After the widget has drawn itself and said what that changed: the last word counts.
    queueMicrotask(() => frame.say("All settings are as at the start."));
  });
  const node = element("div", { class: "mha-footer" }, reset);
  if (!python) return { node, draw() {} };

  const code = element("code");
  // Focusable, so that long lines can be scrolled by keyboard.
  const scroller = { class: "mha-code", tabindex: 0, role: "group", "aria-label": "Python code" };
  const text = element("div", scroller, element("pre", {}, code));
  const copy = element("button", { type: "button", text: "Copy" });
  const details = element(
    "details",
    { class: "mha-python" },
    element("summary", { text: "These settings as Python" }),
    text,
    copy,
  );
  node.append(details);
  const draw = () => {
    if (!details.open) return;
    code.textContent = python(frame);
    copy.textContent = "Copy";
  };
  frame.listen(details, "toggle", draw);
  frame.listen(copy, "click", async () => {
    try {
      await navigator.clipboard.writeText(code.textContent);
      frame.say("Copied.");
      copy.textContent = "Copied";
    } catch {
      // A page may be denied the clipboard: then the text is selected, one key away from it.
      getSelection()?.selectAllChildren(code);
      frame.say("The code is selected: copy it with your keyboard.");
    }
  });
  return { node, draw };
}

/**
 * Builds one view and keeps it up to date with the model.
 *
 * All is inside one form, so that radio buttons of two views never form one group and Enter submits nothing.
 * @param {{model: Model, el: HTMLElement}} view
 * @param {{name: string, label: string, settings: string[], data?: string[], python?: (frame: Frame) => string}} options
 *   `name` makes the CSS class, `label` is read out, `settings` are the traits that the reader changes, `data` those
 *   that only Python does: a change of any draws the widget again. `python` writes the settings as a program.
 * @param {(frame: Frame) => () => void} build makes the elements once and returns the function that draws the state;
 *   drawing throws a RangeError where the state makes no sense
 * @returns {() => void} clean-up: removes all elements and listeners
 */
export function mount({ model, el }, { name, label, settings, data = [], python }, build) {
  const traits = [...settings, ...data];
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

  let reportTimer = 0;
  let sayTimer = 0;
  let nextToSay = /** @type {string | null} */ (null);
  const insist = (/** @type {boolean} */ holds, /** @type {string} */ trait, /** @type {string} */ rule) => {
    if (!holds) throw new RangeError(`${trait} must ${rule}, got ${JSON.stringify(model.get(trait)) ?? "nothing"}`);
    return model.get(trait);
  };
  const isReal = (/** @type {any} */ value, /** @type {number} */ low, /** @type {number} */ high) =>
    typeof value === "number" && value >= low && value <= high;

  /** @type {Frame} */
  const frame = {
    body,
    get: (trait) => model.get(trait),
    whole(trait, low, high) {
      const value = model.get(trait);
      return insist(Number.isInteger(value) && value >= low && value <= high, trait, `lie in ${low}..${high}`);
    },
    real(trait, low, high) {
      return insist(isReal(model.get(trait), low, high), trait, `be a number from ${low} to ${high}`);
    },
    flag: (trait) => insist(typeof model.get(trait) === "boolean", trait, "be true or false"),
    choice(trait, options) {
      return insist(options.includes(model.get(trait)), trait, `be one of ${options.join(", ")}`);
    },
    reals(trait, low, high, length) {
      const value = model.get(trait);
      const fits = Array.isArray(value) && (length === undefined || value.length === length);
      const count = length === undefined ? "numbers" : `${length} numbers`;
      return insist(fits && value.every((v) => isReal(v, low, high)), trait, `hold ${count} from ${low} to ${high}`);
    },
    set(changes) {
      for (const [trait, value] of Object.entries(changes)) model.set(trait, value);
      model.save_changes();
    },
    report(numbers) {
      clearTimeout(reportTimer);
      reportTimer = setTimeout(() => {
        const used = Object.fromEntries(settings.map((trait) => [trait, model.get(trait)]));
        const computed = Object.entries(numbers()).map(([key, value]) => [key, plain(value)]);
        frame.set({ browser_report: { settings: used, numbers: Object.fromEntries(computed) } });
      }, PAUSE);
    },
    listen: (target, type, listener) => target.addEventListener(type, listener, { signal: listeners.signal }),
    say(text) {
      nextToSay = text;
      if (sayTimer || listeners.signal.aborted) return;
      // The first of a row of changes is told at once, then only the latest.
      const tell = () => {
        sayTimer = nextToSay === null ? 0 : setTimeout(tell, PAUSE);
        if (nextToSay !== null) status.textContent = nextToSay;
        nextToSay = null;
      };
      tell();
    },
  };
  frame.listen(form, "submit", (event) => event.preventDefault());
  frame.listen(root, "keydown", (event) => {
    if (!event.ctrlKey && !event.metaKey && !event.altKey) event.stopPropagation();
  });

  const draw = build(frame);
  const footer = buildFooter(frame, { settings, python });
  if (settings.length > 0) form.insertBefore(footer.node, status);
  const redraw = () => {
    let message = "";
    try {
      draw();
      footer.draw();
    } catch (error) {
      message = `This widget cannot show its state: ${/** @type {Error} */ (error).message}.`;
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
    clearTimeout(reportTimer);
    clearTimeout(sayTimer);
    for (const trait of traits) model.off(`change:${trait}`, schedule);
    root.remove();
  };
}
