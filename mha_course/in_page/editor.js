// An editor in place of a stub or a cell, with Python behind it. The build bundles this file with CodeMirror; it is
// loaded when a reader presses "Write it here" or "Try it" (see button.js), and Python after it.

import { closeBrackets, closeBracketsKeymap } from "@codemirror/autocomplete";
import { defaultKeymap, history, historyKeymap, indentWithTab } from "@codemirror/commands";
import { python } from "@codemirror/lang-python";
import { bracketMatching, HighlightStyle, indentOnInput, indentUnit, syntaxHighlighting } from "@codemirror/language";
import { EditorState } from "@codemirror/state";
import { EditorView, highlightSpecialChars, keymap, lineNumbers } from "@codemirror/view";
import { tags } from "@lezer/highlight";
import { element } from "../widgets/js/frame.js";
import { everything, recall, remember } from "../widgets/js/store.js";
import { createPython, PythonError } from "./python.js";
import { openTraining } from "./train.js";

/**
 * The build's data about a stub, or about a "Try it" cell, which has no name and no check.
 * @typedef {object} Stub
 * @property {string} name of the function or class that the reader writes
 * @property {string} stub the text to begin with
 * @property {string} above what it needs from the cells above it
 * @property {string} [check] the text of the cell that checks it
 * @property {string} [checker] the name of the checker there
 * @property {string} [exercise] its data as JSON, only for Python
 * @property {boolean} [piece] whether later pages use what the reader has written
 */

const FOLDER = new URL(".", /** @type {HTMLScriptElement} */ (document.currentScript).src).href;
const KEPT = "write-here/"; // in the storage
const HELP = "Escape, then Tab leaves the editor. Shift and Enter runs your code";
const NO_STORAGE = "This browser keeps no drafts: copy your code before you leave the page.";

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

/** A text whose parts between backticks are code. @param {string} text */
const inCode = (text) => text.split("`").map((part, i) => (i % 2 ? element("code", { text: part }) : part));

/** The accepted texts of all pieces but one, in the order of the chapters. @param {string} except */
function acceptedPieces(except) {
  const kept = everything();
  const accepted = parts.pieces.map((/** @type {string} */ name) => [name, kept[KEPT + name]?.accepted]);
  return Object.fromEntries(accepted.filter((/** @type {string[]} */ [name, text]) => typeof text === "string" && name !== except));
}

/** A phrase for what the reader edits. @param {Stub} stub */
const titleOf = ({ name }) => (name ? `Your ${name}` : "Your copy of these lines");

/**
 * @param {Stub} stub @param {string} key @param {() => void} run @param {() => void} check
 */
function createView(stub, key, run, check) {
  const help = `${titleOf(stub)}. ${HELP}${stub.check ? ", Ctrl and Enter checks it" : ""}.`;
  const keep = (/** @type {string} */ draft) => {
    const { accepted } = recall(key) ?? {};
    remember(key, draft === stub.stub && !accepted ? null : { draft, accepted });
  };
  const own = [
    { key: "Shift-Enter", run: () => (run(), true) },
    { key: "Mod-Enter", run: () => (check(), true) },
  ];
  return new EditorView({
    doc: String(recall(key)?.draft ?? stub.stub),
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
      EditorView.updateListener.of((update) => update.docChanged && keep(update.state.doc.toString())),
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

/** @param {HTMLElement} cell that shows the stub @param {Stub} stub @param {string} key */
function open(cell, stub, key) {
  const status = element("span", { role: "status" });
  const printed = stub.check ? [] : [...cell.querySelectorAll(":scope > .cell_output > *")];
  const results = element("div", { class: "write-here-results", role: "log", "aria-label": "What Python says", tabindex: -1 });

  const ask = async (/** @type {boolean} */ isCheck) => {
    const text = view.state.doc.toString();
    const { name, above, checker, check, exercise } = stub;
    const judged = { check: isCheck ? check : "", exercise: isCheck ? exercise : "", checker };
    status.textContent = isCheck ? "Checking …" : "Running …";
    try {
      const said = await interpreter.request({ name, text, above, pieces: acceptedPieces(name), ...judged });
      results.replaceChildren(...shown(said));
      if (said.right) remember(key, { draft: text, accepted: text });
      status.textContent = said.right && stub.piece ? "From now on the course uses your code." : "";
    } catch (error) {
      if (!(error instanceof PythonError)) throw error;
      results.replaceChildren(element("p", { class: "write-here-error", text: error.message }));
      status.textContent = "";
    }
  };
  const run = () => void ask(false);
  const check = () => void ask(Boolean(stub.check));
  const view = createView(stub, key, run, check);
  const reset = () => {
    view.dispatch({ changes: { from: 0, to: view.state.doc.length, insert: stub.stub } });
    remember(key, null);
    results.replaceChildren(...printed);
    view.focus();
  };
  const buttons = [element("button", { type: "button", text: "Run" })];
  if (stub.check) buttons.push(element("button", { type: "button", text: "Check", class: "write-here-main" }));
  [run, check].forEach((act, i) => buttons[i]?.addEventListener("click", act));
  const bar = element("div", { class: "write-here-bar" }, ...buttons, ...createReset(reset), status);
  const editor = element("div", { class: "highlight" }, view.dom);
  const box = element("div", { class: "write-here", role: "group", "aria-label": titleOf(stub) }, editor, bar, results);
  // The editor replaces the cell, and its button replaces the cell that checks a stub. The output of a cell
  // stays until the reader's copy runs.
  const replaced = [...cell.children, ...(stub.check ? [cell.nextElementSibling] : [])];
  for (const old of replaced) if (old instanceof HTMLElement) old.hidden = true;
  results.append(...printed);
  cell.append(box);
  view.focus();
  if (!remember(`${KEPT}probe`, 0) || !remember(`${KEPT}probe`, null)) results.append(element("p", { text: NO_STORAGE }));
  status.textContent = "Python comes once, 6 MB; you can begin to write.";
  interpreter.start().then(
    () => (status.textContent = status.textContent.startsWith("Python") ? "Python is ready." : status.textContent),
    (error) => (status.textContent = error.message),
  );
}

page.mhaWriteHere = async (/** @type {HTMLButtonElement} "Write it here" */ button) => {
  const [chapter, id] = (button.dataset.stub ?? "").split("/");
  button.disabled = true;
  if ("train" in button.dataset) {
    const cell = /** @type {HTMLElement} */ (button.closest(".cell"));
    return openTraining(cell, interpreter, () => acceptedPieces(""));
  }
  try {
    /** @type {Stub} */
    const stub = (await load(chapter))[id];
    open(/** @type {HTMLElement} */ (button.closest(".cell")), stub, KEPT + (stub.piece ? stub.name : `${chapter}.${id}`));
  } catch (error) {
    button.disabled = false;
    button.after(element("p", { role: "alert", text: /** @type {Error} */ (error).message }));
  }
};

document.head.append(element("style", { text: parts.style }));
for (const button of document.querySelectorAll("[data-asked]")) page.mhaWriteHere(button);
