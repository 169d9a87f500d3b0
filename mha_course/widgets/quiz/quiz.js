// Single-choice questions: the reader checks an answer, reads why it is right or wrong, and may try again.

import { element, inlineText, widget } from "../shared/frame.js";
import { AGAIN, countAnswer, isDue, takeLinks } from "../shared/repeat.js";
import { recall, remember } from "../shared/store.js";

/** @typedef {{text: string, choices: string[], answer: number, feedback: string[]}} Question */

/**
 * Puts the answers that the browser has stored into a quiz without answers, except to questions that are due,
 * and returns these and a function that stores answers. They are stored as texts, by the text of their question. If the
 * author has rewritten a question, its answer is discarded.
 * @param {import("../shared/frame.js").Frame} frame
 */
function buildMemory(frame) {
  const name = frame.get("name");
  const key = `quiz/${name}`;
  let kept = "{}";
  /** @type {Map<string, string>} */
  const hidden = new Map();
  const restore = () => {
    const answers = recall(key)?.answers ?? {};
    const chosen = frame.get("questions").map((/** @type {Question} */ { text, choices, answer }) => {
      const choice = choices.indexOf(answers[text]);
      if (choice >= 0 && isDue(key, text)) hidden.set(text, answers[text]);
      if (choice < 0 || hidden.has(text)) return null;
      countAnswer(key, text, choice === answer);
      return choice;
    });
    if (chosen.some((/** @type {number | null} */ choice) => choice !== null)) frame.set({ chosen });
  };
  const isEmpty = (/** @type {any} */ chosen) => Array.isArray(chosen) && chosen.every((choice) => choice === null);
  if (name && Array.isArray(frame.get("questions")) && isEmpty(frame.get("chosen"))) restore();

  /** @param {Question[]} questions @param {(number | null)[]} chosen */
  const keep = (questions, chosen) => {
    const pairs = questions.map(({ text, choices }, i) => [text, choices[chosen[i] ?? -1] ?? hidden.get(text)]);
    const answers = Object.fromEntries(pairs.filter(([, choice]) => choice !== undefined));
    if (!name || JSON.stringify(answers) === kept) return;
    kept = JSON.stringify(answers);
    remember(key, kept === "{}" ? null : { answers });
  };
  return { hidden, keep };
}

/** @param {import("../shared/frame.js").Frame} frame */
function build(frame) {
  const list = element("ol", { class: "mha-questions" });
  const score = element("p", { class: "mha-score" });
  frame.body.append(list, score);
  const { hidden, keep } = buildMemory(frame);
  takeLinks(frame);

  /** @type {{node: HTMLElement, draw: (chosen: number | null) => void}[]} */
  let items = [];
  /** @type {Question[] | null} */
  let drawn = null;

  return () => {
    /** @type {Question[]} */
    const questions = frame.get("questions");
    /** @type {(number | null)[]} */
    const chosen = frame.get("chosen");
    if (!Array.isArray(questions) || questions.length === 0) throw new RangeError("questions must not be empty");
    const isChoice = (/** @type {any} */ choice, /** @type {number} */ i) =>
      choice === null || (Number.isInteger(choice) && choice >= 0 && choice < questions[i].choices.length);
    if (!Array.isArray(chosen) || chosen.length !== questions.length || !chosen.every(isChoice)) {
      throw new RangeError(`chosen must hold one choice or null for each question, got ${JSON.stringify(chosen)}`);
    }
    if (questions !== drawn) {
      drawn = questions;
      items = questions.map((question, index) => buildQuestion(frame, question, index, hidden.has(question.text)));
      list.replaceChildren(...items.map(({ node }) => node));
    }
    items.forEach((item, index) => item.draw(chosen[index]));
    const right = questions.filter((question, index) => question.answer === chosen[index]).length;
    score.textContent = `${right} of ${questions.length} correct`;
    keep(questions, chosen);
  };
}

/**
 * @param {import("../shared/frame.js").Frame} frame @param {Question} question @param {number} index
 * @param {boolean} isAgain whether the question hides an answer
 */
function buildQuestion(frame, question, index, isAgain) {
  const inputs = question.choices.map((_, choice) =>
    element("input", { type: "radio", name: `question-${index}`, value: choice }),
  );
  const labels = question.choices.map((text, choice) =>
    element("label", {}, inputs[choice], element("span", {}, ...inlineText(text))),
  );
  const check = element("button", { type: "button", text: "Check", "aria-label": `Check question ${index + 1}` });
  const feedback = element("p", { class: "mha-feedback" });
  const node = element(
    "li",
    {},
    element("fieldset", {}, element("legend", {}, ...inlineText(question.text)), ...labels),
    element("div", { class: "mha-answer" }, check, feedback),
  );
  const picked = () => inputs.findIndex((input) => input.checked);

  frame.listen(check, "click", () => {
    const choice = picked();
    if (choice < 0) {
      show("Choose an answer first.", "");
      frame.say(feedback.textContent ?? "");
      return;
    }
    /** @type {(number | null)[]} */
    const chosen = frame.get("chosen");
    frame.set({ chosen: chosen.map((old, i) => (i === index ? choice : old)) });
    judge(choice);
    if (frame.get("name")) countAnswer(`quiz/${frame.get("name")}`, question.text, choice === question.answer);
    frame.say(`Question ${index + 1}: ${feedback.textContent}`);
  });
  frame.listen(node, "change", () => {
    // The feedback belongs to the answer that was checked, so it disappears when the reader picks a different one.
    if (picked() !== frame.get("chosen")[index]) show("", "");
    else judge(picked());
  });

  /** @param {string} text @param {string} verdict */
  function show(text, verdict) {
    const mark = { right: "Correct. ", wrong: "Not quite. " }[verdict] ?? "";
    feedback.replaceChildren(element("strong", { text: mark }), ...inlineText(text));
    node.dataset.verdict = verdict;
  }

  /** @type {number | null} */
  let drawn = null;
  // If the checked choice is unchanged, a choice that is picked but not yet checked stays picked.
  /** @param {number | null} choice the checked choice */
  function draw(choice) {
    if (choice === drawn) return;
    drawn = choice;
    if (choice !== null) return judge(choice);
    inputs.forEach((input) => (input.checked = false));
    show("", "");
  }

  /** @param {number} choice */
  function judge(choice) {
    inputs[choice].checked = true;
    show(question.feedback[choice], choice === question.answer ? "right" : "wrong");
  }
  if (isAgain) show(AGAIN, "");
  return { node, draw };
}

export default widget({ name: "quiz", label: "Quiz", data: ["questions", "chosen"] }, build);
