// The number of the reader's answers in this browser, a file with them, and a way to remove them.

import { countOf } from "./format.js";
import { element, widget } from "./frame.js";
import { ANSWERS_CHANGED, everything, forget, remember } from "./store.js";

const FILE_NAME = "multi-head-attention-answers.json";
const NO_STORAGE =
  "This browser keeps no answers: its storage is blocked, full or missing. " +
  "Every exercise still works, but your answers are gone when you leave its page.";

/** @returns {boolean} whether something can be stored */
function isWritable() {
  const probe = "progress/probe";
  return remember(probe, true) && remember(probe, null);
}

/**
 * Counts answers. A quiz is stored as one entry with an answer for each question; any other entry is one answer.
 * @param {Object<string, any>} entries
 */
function countAnswers(entries) {
  const sizes = Object.values(entries).map(({ answers }) => (answers ? Object.keys(answers).length : 1));
  return sizes.reduce((sum, size) => sum + size, 0);
}

/** @param {Object<string, any>} entries */
const asText = (entries) => `${JSON.stringify(entries, null, 2)}\n`;

/** Offers the answers as a download, which the browser creates itself. */
function download() {
  const url = URL.createObjectURL(new Blob([asText(everything())], { type: "application/json" }));
  element("a", { href: url, download: FILE_NAME }).click();
  URL.revokeObjectURL(url);
}

/**
 * A button that asks in the page before it removes the answers.
 * @param {import("./frame.js").Frame} frame @param {() => void} onCleared
 */
function buildClearing(frame, onCleared) {
  const clear = element("button", { type: "button", text: "Clear …" });
  const question = element("p");
  const yes = element("button", { type: "button", class: "mha-danger", text: "Remove them" });
  const no = element("button", { type: "button", text: "Keep them" });
  const buttons = element("div", { class: "mha-choices" }, yes, no);
  const dialog = element("div", { class: "mha-confirm", role: "group", "aria-label": "Remove all answers?" }, question, buttons);
  dialog.hidden = true;
  const ask = (/** @type {boolean} */ isAsking) => {
    dialog.hidden = !isAsking;
    clear.hidden = isAsking;
    // "Keep them" has the focus, so that pressing Enter twice removes nothing.
    (isAsking ? no : clear).focus();
  };
  frame.listen(clear, "click", () => {
    question.textContent = `Remove ${countOf(countAnswers(everything()), "answer")} from this browser? You cannot undo this.`;
    ask(true);
    frame.say(question.textContent);
  });
  frame.listen(no, "click", () => ask(false));
  frame.listen(dialog, "keydown", (event) => {
    if (event.key === "Escape") ask(false);
  });
  frame.listen(yes, "click", () => {
    forget();
    ask(false);
    onCleared();
  });
  return { clear, dialog };
}

/** @param {import("./frame.js").Frame} frame */
function build(frame) {
  const writable = isWritable();
  const count = element("p", { class: "mha-title", tabindex: -1 });
  const hint = element("p", {
    class: "mha-hint",
    text: "They stay in this browser on this machine. Nothing is sent to anybody, and no other browser has them.",
  });
  const save = element("button", { type: "button", text: "Export as a file" });
  const { clear, dialog } = buildClearing(frame, () => {
    wasCleared = true;
    draw();
    // The buttons are gone, so the focus has to move.
    count.focus();
    frame.say(count.textContent ?? "");
  });
  const text = element("pre");
  const scroller = element("div", { class: "mha-code", tabindex: 0, role: "group", "aria-label": "The answers as JSON" }, text);
  const listing = element("details", {}, element("summary", { text: "Show what is kept" }), scroller);
  const actions = element("div", {}, element("div", { class: "mha-choices" }, save, clear), dialog, listing);
  frame.body.append(count, hint, actions);
  frame.listen(save, "click", () => {
    download();
    frame.say(`The file ${FILE_NAME} holds your answers.`);
  });

  let wasCleared = false;
  const draw = () => {
    const entries = everything();
    const answers = countAnswers(entries);
    const isUseless = !writable && answers === 0;
    hint.hidden = isUseless;
    actions.hidden = answers === 0;
    count.textContent = `${answers === 0 ? "No answer is" : `${countOf(answers, "answer")} ${answers === 1 ? "is" : "are"}`} kept in this browser.`;
    if (isUseless) count.textContent = NO_STORAGE;
    text.textContent = asText(entries);
    if (wasCleared && answers === 0) count.textContent += " A page that is open shows its answers until you load it again.";
  };
  // The first event comes from this page, the second from other open pages.
  frame.listen(window, ANSWERS_CHANGED, draw);
  frame.listen(window, "storage", draw);
  return draw;
}

export default widget({ name: "progress", label: "Your answers" }, build);
