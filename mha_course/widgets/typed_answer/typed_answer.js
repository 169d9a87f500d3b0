// A question whose answer the reader types. If the answer cannot be read, the page asks again; if it is wrong, the page
// says why. Hints open one at a time, and the solution opens after one attempt or after the last hint.

import { countOf } from "../shared/format.js";
import { element, inlineText, mark, widget } from "../shared/frame.js";
import { AGAIN, countAnswer, isDue, takeLinks } from "../shared/repeat.js";
import { recall, remember } from "../shared/store.js";
import { EXPECTED, judge, readAnswer } from "./typed_math.js";

/** @typedef {import("../shared/frame.js").Frame} Frame */
/** @typedef {import("./typed_math.js").Question} Question */
/** @typedef {import("./typed_math.js").Value} Value */

/** @typedef {{attempts: Value[], typed: string, opened: number, solution_shown: boolean}} State */

/** @type {State} */
const UNTOUCHED = { attempts: [], typed: "", opened: 0, solution_shown: false };

/**
 * Throws a RangeError unless the state fits the question; the state may come from Python or from the storage.
 * @param {Question} question @param {any} state @returns {State}
 */
function checkState(question, { attempts, typed, opened, solution_shown }) {
  const insist = (/** @type {boolean} */ holds, /** @type {string} */ rule, /** @type {any} */ value) => {
    if (!holds) throw new RangeError(`${rule}, got ${JSON.stringify(value) ?? "nothing"}`);
  };
  const isSizes = (/** @type {any} */ value) =>
    Array.isArray(value) && value.every((size) => Number.isInteger(size) && size >= 0);
  const fits = question.is_shape ? isSizes : Number.isFinite;
  const entries = question.is_shape ? "a list of sizes for each shape" : "finite numbers";
  insist(Array.isArray(attempts) && attempts.every(fits), `attempts must hold ${entries}`, attempts);
  insist(typeof typed === "string", "typed must be a text", typed);
  const count = question.hints.length;
  insist(Number.isInteger(opened) && opened >= 0 && opened <= count, `opened must lie in 0..${count}`, opened);
  insist(typeof solution_shown === "boolean", "solution_shown must be true or false", solution_shown);
  return { attempts, typed, opened, solution_shown };
}

/**
 * Puts the state that the browser has stored into an untouched widget, unless the question is due, and returns a
 * function that stores a state. If the author has rewritten the question since, the state is discarded.
 * @param {Frame} frame @param {Question} question
 */
function buildMemory(frame, question) {
  const name = frame.get("name");
  const key = `typed-answer/${name}`;
  const untouched = JSON.stringify(UNTOUCHED);
  const present = Object.fromEntries(Object.keys(UNTOUCHED).map((trait) => [trait, frame.get(trait)]));
  let kept = untouched;
  let counted = 0;
  if (name && JSON.stringify(present) === untouched) {
    const stored = recall(key);
    try {
      if (stored?.question === question.text && !isDue(key, question.text)) frame.set(checkState(question, stored));
    } catch {
      // The stored state is damaged, so the reader starts again.
    }
  }

  return (/** @type {State} */ state) => {
    const text = JSON.stringify(state);
    if (!name || text === kept) return;
    kept = text;
    const { attempts, solution_shown } = state;
    const isRight = () => !solution_shown && judge(question, attempts[attempts.length - 1]).isRight;
    if (attempts.length > counted) countAnswer(key, question.text, isRight());
    counted = attempts.length;
    remember(key, text === untouched ? null : { question: question.text, ...state });
  };
}

/** The input field, with a unit and the button that checks the answer. @param {Question} question */
function buildInput(question) {
  const expected = question.is_shape ? EXPECTED.shape : EXPECTED.number;
  const near = question.tolerance >= 1e-6 ? ` Up to ${+(100 * question.tolerance).toPrecision(3)} % off counts as right.` : "";
  const hint = `Type ${expected}.${near}`;
  const input = element("input", {
    type: "text",
    autocomplete: "off",
    autocapitalize: "none",
    spellcheck: "false",
    "aria-description": hint,
  });
  const check = element("button", { type: "button", text: "Check" });
  const label = element("label", {}, element("span", { class: "mha-title" }, ...inlineText(question.text)), input);
  const unit = element("span", { class: "mha-unit", text: question.unit });
  const row = element("div", { class: "mha-typing" }, label, question.unit ? unit : null, check);
  const node = element("div", {}, row, element("p", { class: "mha-hint", text: hint }));
  return { node, input, check };
}

/**
 * The hints, and the buttons that open a hint or the solution, or start again.
 * @param {Frame} frame @param {Question} question
 * @param {{refuse: (text: string) => void, restart: () => void}} actions
 */
function buildHelp(frame, question, { refuse, restart }) {
  const list = element("ol", { class: "mha-hints" });
  const solution = element("p", { class: "mha-solution" });
  const hint = element("button", { type: "button" });
  const solve = element("button", { type: "button", text: "Show the solution" });
  const again = element("button", { type: "button", class: "mha-reset", text: "Start again" });
  const buttons = element("div", { class: "mha-choices" }, question.hints.length > 0 ? hint : null, solve, again);
  const isOff = (/** @type {HTMLElement} */ button) => button.getAttribute("aria-disabled") === "true";
  const total = question.hints.length;

  frame.listen(hint, "click", () => {
    if (isOff(hint)) return;
    const opened = frame.get("opened");
    frame.set({ opened: opened + 1 });
    frame.say(`Hint ${opened + 1} of ${total}: ${question.hints[opened]}`);
  });
  frame.listen(solve, "click", () => {
    if (frame.get("solution_shown")) return;
    if (isOff(solve)) return refuse(total > 0 ? "First try once, or open all hints." : "First try once.");
    frame.set({ solution_shown: true });
    frame.say(`The answer is ${question.shown}. ${question.solution}`);
  });
  frame.listen(again, "click", restart);

  /** @param {State} state @param {boolean} isSolved */
  function draw({ attempts, opened, solution_shown }, isSolved) {
    list.replaceChildren(...question.hints.slice(0, opened).map((text) => element("li", {}, ...inlineText(text))));
    list.hidden = opened === 0;
    mark(list, "hints", opened);
    hint.textContent = opened < total ? `Hint ${opened + 1} of ${total}` : "No more hints";
    hint.setAttribute("aria-disabled", String(opened === total));
    const mayOpen = attempts.length > 0 || (total > 0 && opened === total);
    const isOpen = solution_shown || isSolved;
    solve.setAttribute("aria-disabled", String(isOpen || !mayOpen));
    solve.hidden = isSolved;
    again.hidden = attempts.length === 0 && opened === 0 && !solution_shown;
    solution.hidden = !isOpen;
    const answer = element("strong", { text: `The answer is ${question.shown}. ` });
    solution.replaceChildren(answer, ...inlineText(question.solution));
  }
  return { nodes: [list, solution, buttons], draw };
}

/** @param {Frame} frame */
function build(frame) {
  /** @type {Question} */
  const question = frame.get("question");
  const { node: asked, input, check } = buildInput(question);
  const feedback = element("p", { class: "mha-feedback" });
  const count = element("p", { class: "mha-score" });
  const help = buildHelp(frame, question, {
    refuse: (text) => {
      show("", text);
      frame.say(text);
    },
    restart() {
      frame.set(structuredClone(UNTOUCHED));
      input.value = "";
      input.focus();
      queueMicrotask(() => frame.say("The question is as it was at first."));
    },
  });
  const node = element("div", { class: "mha-question" }, asked, feedback, ...help.nodes, count);
  frame.body.append(node);
  const again = isDue(`typed-answer/${frame.get("name")}`, question.text) ? AGAIN : "";
  const keep = buildMemory(frame, question);
  takeLinks(frame);

  /** @param {"right" | "wrong" | ""} verdict @param {string} text */
  function show(verdict, text) {
    const word = { right: "Correct. ", wrong: "Not quite. ", "": "" }[verdict];
    feedback.replaceChildren(element("strong", { text: word }), ...inlineText(text));
    node.dataset.verdict = verdict;
    input.setAttribute("aria-invalid", String(verdict === "wrong"));
  }

  /** @param {Value[]} attempts */
  function showVerdict(attempts) {
    const { isRight, why } = judge(question, attempts[attempts.length - 1]);
    show(isRight ? "right" : "wrong", why);
  }

  const answer = () => {
    const reading = readAnswer(question, input.value);
    if ("problem" in reading) {
      show("", reading.problem);
      frame.say(reading.problem);
      return;
    }
    const before = frame.get("attempts");
    // Checking the same answer twice counts as one attempt.
    const isNew = JSON.stringify(before.at(-1)) !== JSON.stringify(reading.value);
    const attempts = isNew ? [...before, reading.value] : before;
    frame.set({ attempts, typed: input.value.trim() });
    showVerdict(attempts);
    frame.say(feedback.textContent ?? "");
  };
  frame.listen(check, "click", answer);
  frame.listen(input, "keydown", (event) => {
    if (event.key === "Enter" && !event.isComposing) answer();
  });
  // The feedback belongs to the answer that was checked, so it disappears while the reader types a different one.
  frame.listen(input, "input", () => show("", ""));

  /** @type {string | null} */
  let drawn = null;
  return () => {
    const state = checkState(question, Object.fromEntries(Object.keys(UNTOUCHED).map((trait) => [trait, frame.get(trait)])));
    const { attempts, typed } = state;
    if (typed !== drawn) input.value = typed;
    drawn = typed;
    const isSolved = attempts.length > 0 && judge(question, attempts[attempts.length - 1]).isRight;
    if (attempts.length > 0 && input.value.trim() === typed) showVerdict(attempts);
    else if (attempts.length === 0) show("", again);
    help.draw(state, isSolved);
    count.hidden = attempts.length === 0;
    count.textContent = countOf(attempts.length, "1 attempt", "# attempts");
    mark(count, "attempts", attempts.length);
    keep(state);
  };
}

export default widget({ name: "typed-answer", label: "Question", data: [...Object.keys(UNTOUCHED)] }, build);
