// The frame around the contents of every widget. This module builds elements, follows the model, announces
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
 * The values that a setting may take, as its trait in Python defines them. In Python, a limit may be a text that
 * says how it follows from other traits, "num_heads - 1"; a frame's `limits` are the resulting numbers.
 * @typedef {object} Limits
 * @property {string} kind
 * @property {number} low
 * @property {number} high
 * @property {number} [step]
 * @property {any[]} [options]
 * @property {number} [length] of a list
 * @property {boolean} [ends] whether each number of a list must be `low` or `high`
 * @property {number} [divides] the number that it must divide
 */

/**
 * @typedef {object} Frame
 * @property {HTMLElement} body where the widget puts its elements
 * @property {(name: string) => any} get reads a trait without checking it
 * @property {(name: string) => Limits} limits of a setting in the present state
 * @property {() => any} read the settings by their names in JavaScript, `numHeads` for `num_heads`; throws a
 *   RangeError if one has a value that is not allowed
 * @property {(holds: boolean, trait: string, rule: string) => void} insist throws the same error for other rules
 * @property {(draw: () => void) => void} bind lets a control draw its setting whenever the widget is drawn
 * @property {(changes: Object<string, any>) => void} set writes traits and tells the kernel, if there is one;
 *   settings whose ranges depend on these follow
 * @property {(numbers: () => Object<string, any>) => void} report lets Python compare the numbers with
 *   torch's
 * @property {(work: () => void) => void} later draws what may follow the hand: the first time at once, then when the rest
 *   of the change is painted; if more is asked for meanwhile, only the latest work is done
 * @property {(target: EventTarget, type: string, listener: (event: any) => void) => void} listen until the
 *   view is removed
 * @property {AbortSignal} signal is aborted when the view is removed
 * @property {(text: string) => void} say tells a screen reader what changed; in a quick series of
 *   changes, the first and then only the latest after each pause
 * @property {(text: string) => void} tell describes the state, unless it is the first or the text is unchanged
 */

/**
 * `name` becomes the CSS class, and screen readers read out `label`. The widget is drawn again when a setting or a
 * trait named in `data` changes. `values` are the values that the program under "These settings as Python" uses
 * besides traits.
 * @typedef {{name: string, label: string, data?: string[], values?: (frame: Frame) => Object<string, any>,
 *   check?: (frame: Frame) => void}} MountOptions `check` throws a RangeError if the data, on which the rules of settings
 *   may depend, are not what Python sends
 */

// In milliseconds. Nobody can follow more frequent announcements, and Python need not compare more often.
const PAUSE = 200;

// The greatest length of a line in a program, without its indentation.
const MAX_COLUMNS = 88;

const SVG = "http://www.w3.org/2000/svg";

/**
 * Makes an element with its attributes and children.
 * @param {string} tag
 * @param {Object<string, any>} [attributes] `text` sets the text; true makes a bare attribute, false none
 * @param {...(Node|string|null)} children @returns {any}
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

/** Makes an SVG element. @param {string} tag @param {Object<string, any>} attributes @returns {any} */
export function svgElement(tag, attributes) {
  const node = document.createElementNS(SVG, tag);
  for (const [name, value] of Object.entries(attributes)) node.setAttribute(name, String(value));
  return node;
}

/** Text with the mark-up that widgets support: `code` and *emphasis*. @param {string} text @returns {Node[]} */
export function inlineText(text) {
  return text.split(/(`[^`]+`|\*[^*\s](?:[^*]*[^*\s])?\*)/).map((part, index) => {
    if (index % 2 === 0) return document.createTextNode(part);
    return element(part[0] === "`" ? "code" : "em", { text: part.slice(1, -1) });
  });
}

/**
 * Sets the text of an element. An unchanged text costs nothing; a changed one keeps its text node, so that
 * the browser lays out only this element.
 * @param {any} node that contains only text
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
 * @param {Element} node @param {string} name @param {string | number} value
 */
export function setAttribute(node, name, value) {
  if (node.getAttribute(name) !== String(value)) node.setAttribute(name, String(value));
}

/**
 * Stores in a node, at full precision, the number that it shows, for tests and other programs.
 * @param {any} node @param {string} name shared by all numbers of a table, whose nodes are in reading order
 * @param {number | ArrayLike<number>} value one number, or the numbers of a curve
 */
export function mark(node, name, value) {
  node.dataset.number = name;
  node.dataset.value = typeof value === "number" ? String(value) : Array.from(value).join(" ");
}

/** @param {KeyboardEvent} event @returns {boolean} whether it is a shortcut of browser or page */
export function isShortcut(event) {
  return event.ctrlKey || event.metaKey || event.altKey;
}

/** The focused element in the tree of a node, which may be a shadow tree. @param {Node} node */
export function focusedNear(node) {
  return /** @type {Document} */ (node.getRootNode()).activeElement;
}

/**
 * Turns typed arrays into plain ones, which a kernel can read, and −∞, which JSON lacks, into null.
 * @param {any} value @returns {any}
 */
function plain(value) {
  if (value === -Infinity) return null;
  return typeof value === "object" && value !== null ? Array.from(value, plain) : value;
}

/** @type {Object<string, (a: number, b: number) => number>} */
const RULE_OPERATIONS = {
  "+": (a, b) => a + b,
  "-": (a, b) => a - b,
  "*": (a, b) => a * b,
  "//": (a, b) => Math.floor(a / b),
};

/** The present number of a limit, "length - 1" for example. @param {Model} model @param {any} rule */
function resolve(model, rule) {
  if (typeof rule !== "string") return rule;
  const operand = (/** @type {string} */ text) => {
    const [name, ...keys] = text.split(".");
    return /^\d/.test(text) ? Number(text) : keys.reduce((whole, key) => whole[key], model.get(name));
  };
  const [first, ...terms] = rule.split(" ");
  let value = operand(first);
  for (let i = 0; i < terms.length; i += 2) value = RULE_OPERATIONS[terms[i]](value, operand(terms[i + 1]));
  return value;
}

/** @type {Object<string, (value: any, limits: Limits) => string>} what a value must be, if it is not */
const SETTING_RULES = {
  flag: (value) => (typeof value === "boolean" ? "" : "be true or false"),
  text: (value) => (typeof value === "string" ? "" : "be a text"),
  choice: (value, { options = [] }) => (options.includes(value) ? "" : `be one of ${options.join(", ")}`),
  whole(value, { low, high, options, step = 1, divides }) {
    if (!Number.isInteger(value) || !isWithin(value, low, high)) return `lie in ${low}..${high ?? "∞"}`;
    if (options && !options.includes(value)) return `be one of ${options.join(", ")}`;
    if ((value - low) % step !== 0) return `be ${low % 2 ? "odd" : "even"}`;
    return divides === undefined || divides % value === 0 ? "" : "divide";
  },
  real: (value, { low, high }) => (isWithin(value, low, high) ? "" : `be a number from ${low} to ${high}`),
  reals(value, { low, high, length, ends }) {
    const fits = Array.isArray(value) && (length === undefined || value.length === length);
    const count = length === undefined ? "numbers" : `${length} numbers`;
    if (!fits || !value.every((number) => isWithin(number, low, high))) return `hold ${count} from ${low} to ${high}`;
    const isAtEnd = (/** @type {number} */ number) => number === low || number === high;
    return ends && !value.every(isAtEnd) ? `hold ${count}, each ${low} or ${high}` : "";
  },
};

/** @param {any} value @param {number} low @param {number} [high] */
function isWithin(value, low, high = Infinity) {
  return typeof value === "number" && value >= low && value <= high;
}

/**
 * The largest value that a setting's limits allow and that is not larger than the present one; for a list of the
 * wrong length, the highest numbers.
 * @param {any} value @param {Limits} limits
 */
function fitted(value, { high, divides, length }) {
  if (Array.isArray(value)) return value.length === (length ?? value.length) ? value : new Array(length).fill(high);
  let found = Math.min(value, divides ?? high);
  while (divides && divides % found !== 0) found -= 1;
  return found;
}

/**
 * The functions that read and write the settings.
 * @param {Model} model @param {Object<string, any>} ranges
 * @returns {Pick<Frame, "get" | "limits" | "read" | "insist" | "set">}
 */
function buildReaders(model, ranges) {
  const limits = (/** @type {string} */ trait) =>
    /** @type {Limits} */ (
      Object.fromEntries(Object.entries(ranges[trait]).map(([key, rule]) => [key, key === "kind" ? rule : resolve(model, rule)]))
    );
  const insist = (/** @type {boolean} */ holds, /** @type {string} */ trait, /** @type {string} */ rule) => {
    if (!holds) throw new RangeError(`${trait} must ${rule}, got ${JSON.stringify(model.get(trait)) ?? "nothing"}`);
  };
  const dependent = Object.keys(ranges).filter((trait) => {
    const { kind, high, divides, length } = ranges[trait];
    return kind !== "real" && [high, divides, length].some((rule) => typeof rule === "string");
  });
  // A setting is checked after those that its rules name, so that it is not blamed for their values.
  /** @type {(trait: string) => number} */
  const depth = (trait) => {
    const rules = Object.entries(ranges[trait]).filter(([key, rule]) => key !== "kind" && typeof rule === "string");
    const named = rules.flatMap(([, rule]) => rule.split(" ").map((/** @type {string} */ text) => text.split(".")[0]));
    return Math.max(0, ...named.filter((name) => name in ranges).map((name) => 1 + depth(name)));
  };
  const ordered = Object.keys(ranges).sort((a, b) => depth(a) - depth(b));
  return {
    get: (trait) => model.get(trait),
    limits,
    insist,
    read() {
      const values = ordered.map((trait) => {
        const value = model.get(trait);
        const range = limits(trait);
        const rule = SETTING_RULES[range.kind]?.(value, range) ?? "";
        insist(rule === "", trait, rule === "divide" ? `divide ${ranges[trait].divides}=${range.divides}` : rule);
        return [trait.replace(/_(\w)/g, (_, letter) => letter.toUpperCase()), value];
      });
      return Object.fromEntries(values);
    },
    set(changes) {
      for (const [trait, value] of Object.entries(changes)) model.set(trait, value);
      for (const trait of dependent) {
        const [value, fits] = [model.get(trait), fitted(model.get(trait), limits(trait))];
        if (!(trait in changes) && fits !== value) model.set(trait, fits);
      }
      model.save_changes();
    },
  };
}

/** A value in Python's notation. @param {any} value @returns {string} */
function asPython(value) {
  if (value === null || value === undefined) return "None";
  if (typeof value === "boolean") return value ? "True" : "False";
  if (Array.isArray(value)) return `[${value.map(asPython).join(", ")}]`;
  if (typeof value !== "object") return JSON.stringify(value);
  return `{${Object.entries(value).map(([key, entry]) => `${JSON.stringify(key)}: ${asPython(entry)}`).join(", ")}}`;
}

/**
 * A Python list or dict, on several lines if one line would be too long to read. Quoted texts are not broken.
 * @param {string} text
 */
function wrapped(text) {
  if (text.length <= MAX_COLUMNS || !/^[[{]/.test(text)) return text;
  const parts = text.slice(1, -1).match(/(?:\[[^[\]]{0,60}\]|"(?:[^"\\]|\\.)*"|[^",]|,(?! ))+(?:, |$)/g) ?? [];
  const lines = [""];
  for (const part of parts) {
    if (lines[lines.length - 1] && (lines[lines.length - 1] + part).length > MAX_COLUMNS) lines.push("");
    lines[lines.length - 1] += part;
  }
  return [text[0], ...lines.map((line) => `    ${line.trimEnd()}`), text.slice(-1)].join("\n");
}

/**
 * Returns a function that announces texts to screen readers. Of a quick series of texts it announces the
 * first at once and then, after each pause, only the latest.
 * @param {HTMLElement} status @param {AbortSignal} signal stops it
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
 * Returns a function that sends Python, after a pause, the settings and the numbers computed from them.
 * @param {Model} model @param {string[]} settings @param {AbortSignal} signal stops it
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
 * Returns a function that does some work after the next frame. A slow device shows at once what a control has changed
 * beside it, and draws large maps when that is painted. A hand that never rests does not put the work off: it replaces
 * the work, and the time for which it is planned stays.
 * @param {AbortSignal} signal stops it
 */
function buildLater(signal) {
  let isFirst = true;
  /** @type {(() => void) | null} */
  let latest = null;
  let [frame, timer] = [0, 0];
  const doLatest = () => {
    const work = latest;
    latest = null;
    work?.();
  };
  signal.addEventListener("abort", () => {
    cancelAnimationFrame(frame);
    clearTimeout(timer);
  });
  return (/** @type {() => void} */ work) => {
    if (isFirst) work();
    else {
      if (!latest) frame = requestAnimationFrame(() => (timer = setTimeout(doLatest)));
      latest = work;
    }
    isFirst = false;
  };
}

/**
 * While a slider is dragged, a widget may grow, but not shrink. Otherwise all that is below would move up and down, which
 * costs a slow device more than the step itself.
 * @param {Frame} frame @param {HTMLElement} node
 */
function keepHeight(frame, node) {
  frame.listen(node, "input", ({ target }) => {
    if (target.type === "range") node.style.minHeight = `${node.offsetHeight}px`;
  });
  // A slider that ends where it began does not change.
  for (const type of ["change", "pointerup", "pointercancel"]) frame.listen(node, type, () => (node.style.minHeight = ""));
}

/** A button that copies a text, and says so. @param {Frame} frame @param {HTMLElement} code */
export function copyButton(frame, code) {
  const copy = element("button", { type: "button", text: "Copy" });
  frame.listen(copy, "click", async () => {
    try {
      await navigator.clipboard.writeText(code.textContent ?? "");
      frame.say("Copied.");
      copy.textContent = "Copied";
    } catch {
      // The browser may refuse access to the clipboard. The selected code can still be copied.
      getSelection()?.selectAllChildren(code);
      frame.say("The code is selected: copy it with your keyboard.");
    }
  });
  return copy;
}

/**
 * The settings written as a program, folded away, and a button that copies it.
 * @param {Frame} frame @param {NonNullable<MountOptions["values"]>} values
 */
function buildProgram(frame, values) {
  const code = element("code");
  // The scrolling element can take the focus, so that long lines can be read with the keyboard.
  const scroller = { class: "mha-code", tabindex: 0, role: "group", "aria-label": "Python code" };
  const text = element("div", scroller, element("pre", {}, code));
  const copy = copyButton(frame, code);
  const summary = element("summary", { text: "These settings as Python" });
  const node = element("details", { class: "mha-python" }, summary, text, copy);
  const draw = () => {
    if (!node.open) return;
    const given = values(frame);
    const write = (/** @type {string} */ _, /** @type {string} */ name) =>
      wrapped(asPython(given[name] ?? frame.get(name)));
    code.textContent = frame.get("_program").replace(/⟨(\w+)⟩/g, write);
    copy.textContent = "Copy";
  };
  frame.listen(node, "toggle", draw);
  return { node, draw };
}

/**
 * The footer of a widget: a button that resets the settings, and the settings written as a program.
 * @param {Frame} frame @param {string[]} settings @param {NonNullable<MountOptions["values"]>} values
 */
function buildFooter(frame, settings, values) {
  const initial = Object.fromEntries(settings.map((name) => [name, structuredClone(frame.get(name))]));
  const reset = element("button", { type: "button", class: "mha-reset", text: "Reset" });
  frame.listen(reset, "click", () => {
    frame.set(structuredClone(initial));
    // The redraw announces its own change first. This text comes after it and replaces it.
    queueMicrotask(() => frame.say("All settings are back at their initial values."));
  });
  const node = element("div", { class: "mha-footer" }, reset);
  const program = buildProgram(frame, values);
  node.append(program.node);
  return { node, draw: program.draw };
}

/**
 * Returns a function that calls `draw` or, if the state is invalid, shows the error in place of the widget.
 * @param {HTMLElement} body @param {HTMLElement} problem @param {() => void} draw
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
 * A widget in the form that its hosts expect.
 * @param {MountOptions} options
 * @param {(frame: Frame) => () => void} build makes the elements once and returns the function that draws the
 *   state; this function throws a RangeError if the state is invalid
 */
export function widget(options, build) {
  return { render: (/** @type {{model: Model, el: HTMLElement}} */ view) => mount(view, options, build) };
}

/**
 * Builds one view and keeps it up to date with the model.
 *
 * All elements are inside one form, so that radio buttons of two views never form one group and Enter submits
 * nothing.
 * @param {{model: Model, el: HTMLElement}} view @param {MountOptions} options
 * @param {(frame: Frame) => () => void} build
 * @returns {() => void} clean-up: removes all elements and listeners
 */
function mount({ model, el }, { name, label, data = [], values = () => ({}), check = () => {} }, build) {
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

  /** @type {(() => void)[]} */
  const bound = [];
  const say = buildSpeaker(status, signal);
  let told = "";
  /** @type {Frame} */
  const frame = {
    body,
    ...buildReaders(model, ranges),
    bind: (show) => bound.push(show),
    report: buildReporter(model, settings, signal),
    later: buildLater(signal),
    listen: (target, type, listener) => target.addEventListener(type, listener, { signal }),
    signal,
    say,
    tell(text) {
      if (told && told !== text) say(text);
      told = text;
    },
  };
  frame.listen(form, "submit", (event) => event.preventDefault());
  frame.listen(root, "keydown", (event) => {
    if (!isShortcut(event)) event.stopPropagation();
  });

  keepHeight(frame, root);
  const draw = build(frame);
  const footer = settings.length > 0 ? buildFooter(frame, settings, values) : null;
  if (footer) form.insertBefore(footer.node, status);
  const redraw = buildRedraw(body, problem, () => {
    check(frame);
    if (footer) frame.read();
    for (const show of bound) show();
    draw();
    footer?.draw();
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
