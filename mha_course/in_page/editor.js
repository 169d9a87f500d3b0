// An editor in place of a stub or a cell, with Python behind it. The build bundles this file with CodeMirror; it is
// loaded when a reader presses "Write it here" or "Try it" (see button.js), and Python after it.

import { closeBrackets, closeBracketsKeymap } from "@codemirror/autocomplete";
import { defaultKeymap, history, historyKeymap, indentWithTab } from "@codemirror/commands";
import { python } from "@codemirror/lang-python";
import { bracketMatching, HighlightStyle, indentOnInput, indentUnit, syntaxHighlighting } from "@codemirror/language";
import { Annotation, EditorState } from "@codemirror/state";
import { EditorView, highlightSpecialChars, keymap, lineNumbers } from "@codemirror/view";
import { tags } from "@lezer/highlight";
import { download } from "../widgets/shared/download.js";
import { DRAFTS, withOthers } from "../widgets/shared/drafts.js";
import { countOf } from "../widgets/shared/format.js";
import { element, inlineText } from "../widgets/shared/frame.js";
import { everything, recall, remember } from "../widgets/shared/store.js";
import { createPython, PythonError } from "./python.js";
import { openTraining } from "./train.js";

/**
 * The build's data about a stub, or about a "Try it" cell, which has no name and no check.
 * @typedef {object} Stub
 * @property {string} name of the function or class that the reader writes
 * @property {string} stub the text to begin with
 * @property {number} above how many statements of the page stand above it
 * @property {any[]} statements these
 * @property {string} [check] the text of the cell that checks it
 * @property {string} [checker] the name of the checker there
 * @property {string} [exercise] its data as JSON, only for Python
 * @property {boolean} [piece] whether later pages use what the reader has written
 */

const FOLDER = new URL(".", /** @type {HTMLScriptElement} */ (document.currentScript).src).href;
const HELP = "Escape, then Tab leaves the editor. Shift and Enter runs your code";
const NO_STORAGE = "This browser keeps no drafts: copy your code before you leave the page.";
const USED = "From now on the course uses your code.";
const USED_HERE = "The course uses your code on this page. This browser keeps nothing: copy your code before you leave.";
const FOLLOWED = "You have changed this text in another tab, and that text is shown here. Undo brings back the one from here.";
const ANOTHER_TAB = "another tab";

/** What was accepted on this page, for a browser that keeps nothing. @type {Object<string, string>} */
const acceptedHere = {};

// The contents of the files that the build has written, by name; each file adds its own.
const page = /** @type {any} */ (window);
/** @type {Object<string, any>} */
const parts = page.mhaInPage;

/** @param {string} name @returns {Promise<any>} */
const load = async (name) => {
  if (!(name in parts)) {
    const script = element("script", { src: `${FOLDER}${name}.js` });
    await new Promise((resolve, reject) => {
      script.onload = resolve;
      script.onerror = () => reject(new PythonError("A part of this page could not be loaded. Is there a network?"));
      document.head.append(script);
    });
  }
  return parts[name];
};

const interpreter = createPython(async () => ({ ...(await load("python")), sources: parts.sources }));

// The names are those of Pygments, so the code has the colours of the page.
const COLOURS = HighlightStyle.define([
  { tag: [tags.keyword, tags.controlKeyword, tags.definitionKeyword, tags.moduleKeyword, tags.operatorKeyword], class: "k" },
  { tag: [tags.bool, tags.null, tags.self], class: "kc" },
  { tag: tags.string, class: "s1" },
  { tag: tags.comment, class: "c1" },
  { tag: tags.number, class: "mi" },
  { tag: [tags.arithmeticOperator, tags.compareOperator, tags.bitwiseOperator, tags.definitionOperator], class: "o" },
  { tag: tags.function(tags.definition(tags.variableName)), class: "nf" },
  { tag: tags.definition(tags.className), class: "nc" },
  { tag: tags.meta, class: "nd" },
]);

/** Marks a change that shows what the storage holds. */
const FROM_STORE = /** @type {import("@codemirror/state").AnnotationType<boolean>} */ (Annotation.define());

/** A text whose parts between backticks are code. @param {string} text */
const inCode = (text) => text.split("`").map((part, i) => (i % 2 ? element("code", { text: part }) : part));

/** The accepted texts of all pieces but one, in the order of the chapters. @param {string} except */
function acceptedPieces(except) {
  const kept = everything();
  const accepted = parts.pieces.map((/** @type {string} */ name) => [name, kept[DRAFTS + name]?.accepted ?? acceptedHere[name]]);
  return Object.fromEntries(accepted.filter((/** @type {string[]} */ [name, text]) => typeof text === "string" && name !== except));
}

/** A phrase for what the reader edits. @param {Stub} stub */
const titleOf = ({ name }) => (name ? `Your ${name}` : "Your copy of these lines");

/**
 * The draft of a stub in the storage, which other tabs may change at any time.
 * @param {Stub} stub @param {string} key @param {() => void} onChange of the texts that are kept beside the draft
 */
function createStore(stub, key, onChange) {
  /** @returns {import("../widgets/shared/drafts.js").Draft} */
  const read = () => recall(key) ?? {};
  /** What the editor shows; if the storage has something else, that comes from another tab. */
  let seen = read().draft ?? stub.stub;
  const write = (/** @type {import("../widgets/shared/drafts.js").Draft} */ entry) => {
    const { draft, accepted, others = [] } = entry;
    const isNew = draft === stub.stub && !accepted && others.length === 0;
    seen = draft ?? stub.stub;
    return remember(key, isNew ? null : entry);
  };
  return {
    read,
    /** @param {string} draft @param {string} [accepted] @returns {boolean} whether it is stored */
    keep(draft, accepted) {
      const before = read();
      const entry = { ...before, draft, accepted: accepted ?? before.accepted };
      const isForeign = before.draft !== undefined && before.draft !== seen && before.draft !== draft;
      const isStored = write(isForeign ? withOthers(entry, [{ text: String(before.draft), from: ANOTHER_TAB }]) : entry);
      if (isForeign) onChange();
      return isStored;
    },
    /** @returns {string | undefined} a draft that another tab has stored since */
    news() {
      const { draft } = read();
      if (draft === undefined || draft === seen) return;
      return (seen = draft);
    },
    /** Exchanges the draft for a text that is kept beside it. @param {number} index */
    swap(index) {
      const { others = [], ...entry } = read();
      const [{ text }] = others.splice(index, 1);
      const mine = { text: String(entry.draft ?? stub.stub), from: "this editor" };
      write(withOthers({ ...entry, draft: text, others }, mine.text === stub.stub ? [] : [mine]));
      return text;
    },
    /** @param {number} index */
    drop(index) {
      const entry = read();
      write({ ...entry, others: entry.others?.filter((_, i) => i !== index) });
    },
    /** Back to the page's text; what is kept beside the draft stays. */
    reset: () => write({ draft: stub.stub, others: read().others }),
  };
}

/** The texts that are kept beside a draft. @param {ReturnType<typeof createStore>} store @param {(text: string) => void} show */
function createOthers(store, show) {
  const node = element("div", { class: "write-here-others" });
  const draw = () => {
    const lines = (store.read().others ?? []).map(({ text, from }, i) => {
      const take = element("button", { type: "button", text: "Show it instead" });
      const drop = element("button", { type: "button", text: "Remove it" });
      take.addEventListener("click", () => (show(store.swap(i)), draw()));
      drop.addEventListener("click", () => (store.drop(i), draw()));
      const length = countOf(text.split("\n").length, "1 line", "# lines");
      const told = `Another text is kept, from ${from}, ${length}: `;
      const preview = element("pre", { text });
      const seen = element("details", {}, element("summary", { text: "See it" }), preview);
      return element("div", {}, element("p", { text: told }), element("div", { class: "write-here-bar" }, take, drop), seen);
    });
    node.replaceChildren(...lines);
  };
  draw();
  return { node, draw };
}

/**
 * @param {Stub} stub @param {string} draft @param {(draft: string) => void} keep @param {() => void} run @param {() => void} check
 */
function createView(stub, draft, keep, run, check) {
  const help = stub.check ? `${titleOf(stub)}. ${HELP}, Ctrl and Enter checks it.` : `${titleOf(stub)}. ${HELP}.`;
  // The cursor begins at what is to be filled in.
  const dots = draft === stub.stub && stub.check ? /^ *(\.\.\.)(?= *(#|$))/m.exec(draft) : null;
  const start = dots ? dots.index + dots[0].length - 3 : 0;
  const own = [
    { key: "Shift-Enter", run: () => (run(), true) },
    { key: "Mod-Enter", run: () => (check(), true) },
  ];
  return new EditorView({
    doc: draft,
    selection: { anchor: start, head: dots ? start + 3 : 0 },
    extensions: [
      lineNumbers(),
      highlightSpecialChars(),
      history(),
      indentUnit.of("    "),
      EditorState.tabSize.of(4),
      indentOnInput(),
      bracketMatching(),
      closeBrackets(),
      python(),
      syntaxHighlighting(COLOURS),
      EditorView.lineWrapping,
      EditorView.contentAttributes.of({ "aria-label": help, autocapitalize: "off", autocorrect: "off", spellcheck: "false" }),
      EditorView.updateListener.of((update) => update.docChanged && !update.transactions.some((one) => one.annotation(FROM_STORE)) && keep(update.state.doc.toString())),
      keymap.of([...own, ...closeBracketsKeymap, ...defaultKeymap, ...historyKeymap, indentWithTab]),
    ],
  });
}

/** A button that asks before it does something. @param {() => void} reset */
function createReset(reset) {
  const ask = element("button", { type: "button", text: "Reset …" });
  const yes = element("button", { type: "button", text: "Reset" });
  const no = element("button", { type: "button", text: "Keep it" });
  const question = element("span", { role: "group", "aria-label": "Reset?" }, "Go back to the page's text? ", yes, " ", no);
  const show = (/** @type {boolean} */ isAsking) => {
    question.hidden = !isAsking;
    ask.hidden = isAsking;
    (isAsking ? no : ask).focus();
  };
  question.hidden = true;
  ask.addEventListener("click", () => show(true));
  no.addEventListener("click", () => show(false));
  yes.addEventListener("click", () => {
    show(false);
    reset();
  });
  question.addEventListener("keydown", (/** @type {KeyboardEvent} */ event) => event.key === "Escape" && show(false));
  return [ask, question];
}

/** @param {any} said Python's answer @returns {Node[]} */
function shown({ output, error, verdict, right, used }) {
  const found = [];
  if (output) found.push(element("pre", { text: output }));
  if (error) found.push(element("pre", { class: "write-here-error", text: error }));
  if (verdict) found.push(element("p", { class: right ? "write-here-right" : "write-here-wrong" }, ...inCode(verdict)));
  if (found.length === 0) found.push(element("p", { text: "It ran, and printed nothing." }));
  if (used) found.push(element("p", { class: "write-here-used" }, ...inCode(used)));
  return found;
}

/** How to run without the mouse. @param {Stub} stub */
function keysOf({ check }) {
  const key = (/** @type {string} */ text) => element("kbd", { text });
  const checks = [", ", key(/Mac|iP/.test(navigator.platform) ? "⌘" : "Ctrl"), "+", key("Enter"), " checks"];
  return element("span", { class: "write-here-keys" }, key("Shift"), "+", key("Enter"), " runs", ...(check ? checks : []));
}

/** @param {HTMLElement} cell that shows the stub @param {Stub} stub @param {string} key */
function open(cell, stub, key) {
  const status = element("span", { role: "status" });
  const printed = stub.check ? [] : [...cell.querySelectorAll(":scope > .cell_output > *")];
  const results = element("div", { class: "write-here-results", role: "log", "aria-label": "What Python says", tabindex: -1 });
  const store = createStore(stub, key, () => others.draw());
  const show = (/** @type {string} */ text) =>
    view.dispatch({ changes: { from: 0, to: view.state.doc.length, insert: text }, annotations: FROM_STORE.of(true) });
  const others = createOthers(store, (text) => (show(text), view.focus()));
  const warning = element("p", { text: NO_STORAGE, hidden: true });
  const keep = (/** @type {string} */ draft) => {
    warning.hidden = store.keep(draft);
  };

  const stop = element("button", { type: "button", text: "Stop", hidden: true });
  let running = 0; // the requests that are not answered yet
  const ask = async (/** @type {boolean} */ isCheck) => {
    const text = view.state.doc.toString();
    const { name, statements, checker, check, exercise } = stub;
    const judged = { check: isCheck ? check : "", exercise: isCheck ? exercise : "", checker };
    status.textContent = isCheck ? "Checking …" : "Running …";
    results.replaceChildren();
    running += 1;
    stop.hidden = false;
    try {
      const said = await interpreter.request({ name, text, statements, pieces: acceptedPieces(name), ...judged });
      results.replaceChildren(...shown(said));
      status.textContent = "";
      if (said.right) {
        if (stub.piece) acceptedHere[name] = text;
        // Meanwhile the reader may have gone on writing.
        const isKept = store.keep(view.state.doc.toString(), text);
        warning.hidden = isKept;
        if (stub.piece) status.textContent = isKept ? USED : USED_HERE;
        page.mhaShowDone?.();
      }
    } catch (error) {
      if (!(error instanceof PythonError)) throw error;
      results.replaceChildren(element("p", { class: "write-here-error", text: error.message }));
      status.textContent = "";
    } finally {
      running -= 1;
      stop.hidden = running === 0;
    }
  };
  const run = () => void ask(false);
  const check = () => void ask(Boolean(stub.check));
  const view = createView(stub, String(store.read().draft ?? stub.stub), keep, run, check);
  const reset = () => {
    store.reset();
    show(stub.stub);
    delete acceptedHere[stub.name];
    results.replaceChildren(...printed);
    page.mhaShowDone?.();
    view.focus();
  };
  /** Shows what another tab has written, so that the last key does not win there and here. */
  const follow = () => {
    const text = store.news();
    if (text !== undefined && text !== view.state.doc.toString()) {
      show(text);
      status.textContent = FOLLOWED;
    }
    others.draw();
  };
  addEventListener("storage", follow);
  addEventListener("focus", follow);
  stop.addEventListener("click", () => {
    interpreter.stop();
    view.focus();
  });
  const buttons = [element("button", { type: "button", text: "Run" })];
  if (stub.check) buttons.push(element("button", { type: "button", text: "Check", class: "write-here-main" }));
  [run, check].forEach((act, i) => buttons[i]?.addEventListener("click", act));
  const bar = element("div", { class: "write-here-bar" }, ...buttons, stop, ...createReset(reset), keysOf(stub), status);
  const editor = element("div", { class: "highlight" }, view.dom);
  const box = element("div", { class: "write-here", role: "group", "aria-label": titleOf(stub) }, editor, bar, warning, others.node, results);
  // The editor replaces the cell, and its button replaces the cell that checks a stub. The output of a cell
  // stays until the reader's copy runs.
  const replaced = [...cell.children, ...(stub.check ? [cell.nextElementSibling] : [])];
  for (const old of replaced) if (old instanceof HTMLElement) old.hidden = true;
  results.append(...printed);
  cell.append(box);
  view.focus();
  warning.hidden = remember(`${DRAFTS}probe`, 0) && remember(`${DRAFTS}probe`, null);
  status.textContent = "Python comes once, 6 MB; you can begin to write.";
  interpreter.start().then(
    () => (status.textContent = status.textContent.startsWith("Python") ? "Python is ready." : status.textContent),
    (error) => (status.textContent = error.message),
  );
}

/** Offers `my_gpt.py` made of the reader's accepted pieces, and says whose each piece is. @param {HTMLAnchorElement} link */
async function takeHome(link) {
  delete link.dataset.asked;
  const below = link.closest("p") ?? link;
  const status = below.parentElement?.querySelector(".take-home") ?? element("p", { class: "take-home", role: "status" });
  below.after(status);
  status.replaceChildren("Python is starting …");
  try {
    const { text, told } = await interpreter.request({ home: acceptedPieces("") });
    download("my_gpt.py", text);
    status.replaceChildren(...inlineText(told));
  } catch (error) {
    status.replaceChildren(/** @type {Error} */ (error).message);
  }
}

page.mhaWriteHere = async (/** @type {HTMLButtonElement | HTMLAnchorElement} "Write it here" */ button) => {
  if (button instanceof HTMLAnchorElement) return takeHome(button);
  const [chapter, id] = (button.dataset.stub ?? "").split("/");
  button.disabled = true;
  if ("train" in button.dataset) {
    const cell = /** @type {HTMLElement} */ (button.closest(".cell"));
    return openTraining(cell, String(button.dataset.train), button.textContent, interpreter, () => acceptedPieces(""), { load, chapterLoss: parts.chapterLoss });
  }
  try {
    const data = await load(chapter);
    /** @type {Stub} */
    const stub = { ...data[id], statements: data.statements.slice(0, data[id].above) };
    open(/** @type {HTMLElement} */ (button.closest(".cell")), stub, DRAFTS + (stub.piece ? stub.name : `${chapter}.${id}`));
  } catch (error) {
    button.disabled = false;
    button.after(element("p", { role: "alert", text: /** @type {Error} */ (error).message }));
  }
};

document.head.append(element("style", { text: parts.style }));
for (const button of document.querySelectorAll("[data-asked]")) page.mhaWriteHere(button);
