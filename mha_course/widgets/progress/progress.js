// The reader's answers in this browser: how many there are, the questions that come back today, the answers as a file
// that another browser can import, what was written as a notebook that can be handed in, the questions as a deck of
// cards, and a way to remove all.

import { DRAFTS, joinDrafts } from "../shared/drafts.js";
import { download } from "../shared/download.js";
import { countOf } from "../shared/format.js";
import { element, inlineText, widget } from "../shared/frame.js";
import { DAYS, isDue, REPEAT, turnOf } from "../shared/repeat.js";
import { ANSWERS_CHANGED, everything, forget, isObject, join, recall, remember } from "../shared/store.js";

/** @typedef {{key: string, file: string, page: string, text: string, offered: string, answer: string}} Card */

const FILE_NAME = "multi-head-attention-answers.json";
const BOOK_NAME = "multi-head-attention-answers.ipynb";
// What a text that was written in a page finds there; `mha_course.grade` has the same line.
const IN_PAGE = "import torch\nfrom torch import nn\n\nfrom mha_course.built import *";
const DECK_NAME = "multi-head-attention-deck.txt";
// The number of questions listed at a time.
const MOST = 10;
const RULE =
  "A question comes back the day after a wrong answer. " +
  `After correct ones it comes back in ${DAYS[1]}, ${DAYS[2]} and ${DAYS[3]} days, and then every ${DAYS[4]} days.`;
const NO_STORAGE =
  "This browser keeps no answers: its storage is blocked, full or missing. " +
  "Every exercise still works, but your answers are gone when you leave its page.";

/** @returns {boolean} whether something can be stored */
function isWritable() {
  const probe = "progress/probe";
  return remember(probe, true) && remember(probe, null);
}

/**
 * Counts answers. A quiz is stored as one entry with an answer for each question; any other entry is one answer. The
 * days on which questions were answered do not count.
 * @param {Object<string, any>} entries
 */
function countAnswers(entries) {
  const kept = Object.entries(entries).filter(([key]) => !key.startsWith(REPEAT));
  const sizes = kept.map(([, { answers }]) => (answers ? Object.keys(answers).length : 1));
  return sizes.reduce((sum, size) => sum + size, 0);
}

/** @param {Object<string, any>} entries */
const asText = (entries) => `${JSON.stringify(entries, null, 2)}\n`;

/** Adds the answers of an exported file to those that are here, and says what has happened. @param {string} text */
function importAnswers(text) {
  const given = /** @type {[string, any][]} */ (Object.entries(JSON.parse(text)));
  if (!given.length || !given.every(([key, value]) => /^[a-z-]+\/./.test(key) && isObject(value))) throw new TypeError(text);
  const joined = given.map(([key, value]) => [key, (key.startsWith(DRAFTS) ? joinDrafts : join)(recall(key), value)]);
  const differ = joined.filter(([key, value]) => key.startsWith(DRAFTS) && (value.others?.length ?? 0) > (recall(key)?.others?.length ?? 0));
  const stored = joined.map(([key, value]) => remember(key, value));
  const answers = countOf(countAnswers(Object.fromEntries(given)), "1 answer", "# answers");
  const imported = stored.includes(false) ? `Imported as far as this browser has room: ${answers}.` : `Imported: ${answers}.`;
  const names = differ.map(([key]) => key.slice(DRAFTS.length)).join(", ");
  const both = names && ` Your own text stays, and the file's is kept beside it, where they differ: ${names}. The editor there offers both.`;
  return `${imported}${both} A page that is open shows what was imported when you load it again.`;
}

/**
 * What was written in the pages as a notebook: each text in a cell, with its check below.
 * @param {Object<string, any>} entries
 */
function asNotebook(entries) {
  const sources = [IN_PAGE];
  for (const [key, { accepted, draft }] of Object.entries(entries).filter(isDraft)) {
    const text = accepted ?? draft ?? "";
    const check = /^from mha_course\.exercises import .*?\b(check_\w+)/m.exec(text);
    sources.push(text, ...(check ? [`${check[1]}(${key.slice(DRAFTS.length)})`] : []));
  }
  const cell = { cell_type: "code", metadata: {}, outputs: [], execution_count: null };
  const cells = sources.map((source, number) => ({ ...cell, id: `cell-${number}`, source }));
  const kernelspec = { display_name: "Python 3", language: "python", name: "python3" };
  return asText({ cells, metadata: { kernelspec, language_info: { name: "python" } }, nbformat: 4, nbformat_minor: 5 });
}

/** @param {[string, any]} entry */
const isDraft = ([key]) => key.startsWith(DRAFTS);

/** Cards as a text that Anki imports without further questions. @param {Card[]} cards */
function asDeck(cards) {
  const rows = cards.map(({ file, page, text, offered, answer }) => {
    const fields = [[text, offered, `(${page})`].filter(Boolean).join("\n\n"), answer, file];
    return fields.map((field) => `"${field.replaceAll('"', '""')}"`).join("\t");
  });
  return ["#separator:tab", "#html:false", "#deck:Multi-head attention", "#tags column:3", ...rows, ""].join("\n");
}

/**
 * A due question, with a link to it in the book. In JupyterLab there are no pages to lead to.
 * @param {import("../shared/frame.js").Frame} frame @param {Card} card
 */
function buildDue(frame, { key, file, page, text }) {
  const [name, folder] = [key.slice(key.indexOf("/") + 1), frame.get("_static")];
  const href = folder && new URL(`../${file === "index" ? "" : "chapters/"}${file}.html#${name}`, folder).href;
  const when = turnOf(key, text)?.step === 0 ? `${page}, wrong last time` : page;
  const question = element(folder ? "a" : "span", { href }, ...inlineText(text));
  return element("li", {}, question, element("p", { class: "mha-hint", text: when }));
}

/**
 * The questions due today: first those that were wrong, then those answered longest ago.
 * @param {import("../shared/frame.js").Frame} frame
 */
function buildRepetition(frame) {
  const count = element("strong");
  const list = element("ol");
  const more = element("p", { class: "mha-hint" });
  const node = element("div", {}, element("p", {}, count), element("p", { class: "mha-hint", text: RULE }), list, more);
  /** @returns {Card[]} all that were answered */
  const cards = () => frame.get("_cards").filter((/** @type {Card} */ { key, text }) => turnOf(key, text));
  const order = (/** @type {Card} */ { key, text }) => `${Math.min(turnOf(key, text)?.step ?? 0, 1)} ${turnOf(key, text)?.day}`;
  let drawn = "";
  const draw = () => {
    const answered = cards();
    const due = answered.filter(({ key, text }) => isDue(key, text)).sort((a, b) => order(a).localeCompare(order(b)));
    node.hidden = answered.length === 0;
    count.textContent = `Questions to repeat today: ${due.length}`;
    // A link that has the focus keeps it if nothing changes.
    if (drawn !== JSON.stringify(due)) list.replaceChildren(...due.slice(0, MOST).map((card) => buildDue(frame, card)));
    drawn = JSON.stringify(due);
    const waiting = countOf(due.length - MOST, "1 more question will take their places.", "# more questions will take their places.");
    more.textContent = due.length > MOST ? waiting : "";
  };
  return { node, cards, draw };
}

/**
 * A button that asks in the page before it removes the answers.
 * @param {import("../shared/frame.js").Frame} frame @param {() => void} onCleared
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
    const many = "Remove # answers from this browser? You cannot undo this.";
    question.textContent = countOf(countAnswers(everything()), "Remove 1 answer from this browser? You cannot undo this.", many);
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

/** @param {import("../shared/frame.js").Frame} frame */
function build(frame) {
  const writable = isWritable();
  const count = element("p", { class: "mha-title", tabindex: -1 });
  const hint = element("p", {
    class: "mha-hint",
    text: "They stay in this browser on this machine, and nothing is sent to anybody. To have them in another browser, export them here and import the file there.",
  });
  const repetition = buildRepetition(frame);
  const save = element("button", { type: "button", text: "Export as a file" });
  const book = element("button", { type: "button", text: "Export as a notebook" });
  const deck = element("button", { type: "button", text: "Export as a deck" });
  const { clear, dialog } = buildClearing(frame, () => {
    wasCleared = true;
    draw();
    // The buttons are gone, so the focus has to move.
    count.focus();
    frame.say(count.textContent ?? "");
  });
  const load = element("button", { type: "button", text: "Import a file" });
  const file = element("input", { type: "file", accept: ".json", hidden: true });
  const outcome = element("p", { class: "mha-hint" });
  const text = element("pre");
  const scroller = element("div", { class: "mha-code", tabindex: 0, role: "group", "aria-label": "The answers as JSON" }, text);
  const listing = element("details", {}, element("summary", { text: "Show what is kept" }), scroller);
  const choices = element("div", { class: "mha-choices" }, save, book, load, deck, clear);
  const actions = element("div", {}, choices, file, dialog, listing);
  frame.body.append(count, hint, repetition.node, actions);
  frame.listen(load, "click", () => file.click());
  frame.listen(file, "change", async () => {
    const otherwise = () => "This file has no answers to this course. Choose one that was exported here.";
    outcome.textContent = await file.files[0].text().then(importAnswers).catch(otherwise);
    choices.after(outcome);
    file.value = ""; // so that the same file can be chosen again
    frame.say(outcome.textContent ?? "");
  });
  const give = (/** @type {string} */ name, /** @type {string} */ text, /** @type {string} */ what) => {
    download(name, text);
    frame.say(`The file ${name} holds ${what}.`);
  };
  frame.listen(save, "click", () => give(FILE_NAME, asText(everything()), "your answers"));
  frame.listen(book, "click", () => give(BOOK_NAME, asNotebook(everything()), "what you wrote, as a notebook to hand in"));
  frame.listen(deck, "click", () => {
    const cards = repetition.cards();
    give(DECK_NAME, asDeck(cards), countOf(cards.length, "1 card that Anki imports", "# cards that Anki imports"));
  });

  let wasCleared = false;
  const draw = () => {
    const entries = everything();
    const answers = countAnswers(entries);
    const isUseless = !writable && answers === 0;
    hint.hidden = isUseless;
    const isEmpty = Object.keys(entries).length === 0;
    save.hidden = listing.hidden = isEmpty;
    book.hidden = !Object.entries(entries).some(isDraft);
    [clear.hidden, load.hidden] = [isEmpty || !dialog.hidden, !writable];
    repetition.draw();
    deck.hidden = repetition.node.hidden;
    const some = countOf(answers, "1 answer is kept in this browser.", "# answers are kept in this browser.");
    count.textContent = answers === 0 ? "No answer is kept in this browser." : some;
    if (isUseless) count.textContent = NO_STORAGE;
    text.textContent = asText(entries);
    if (wasCleared && answers === 0) count.textContent += " A page that is open shows its answers until you load it again.";
  };
  // The first event comes from this page, the second from other open pages.
  frame.listen(window, ANSWERS_CHANGED, draw);
  frame.listen(window, "storage", draw);
  // A new day may have begun.
  frame.listen(document, "visibilitychange", draw);
  return draw;
}

export default widget({ name: "progress", label: "Your answers" }, build);
