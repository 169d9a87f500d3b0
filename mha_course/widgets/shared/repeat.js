// When a question comes back. For each question that was answered, the store keeps the day of the last answer that
// counts and its row in DAYS, under "repeat/" and the key of the question's widget.

import { recall, remember } from "./store.js";

/** Days until a question comes back: after a wrong answer, and after each correct one in a row. The last is repeated. */
export const DAYS = [1, 3, 7, 21, 60];

export const REPEAT = "repeat/";

/** What a question shows in place of the hidden answer. */
export const AGAIN = "You have answered this before. Answer again.";

/** The reader's date, 2026-05-31 for example. */
function today() {
  const now = new Date();
  return new Date(now.getTime() - 60_000 * now.getTimezoneOffset()).toISOString().slice(0, 10);
}

/**
 * @param {string} key @param {string} text the question
 * @returns {{step: number, day: string} | undefined} nothing before the first answer
 */
export const turnOf = (key, text) => recall(REPEAT + key)?.[text] ?? undefined;

/** Whether a question is due today. @param {string} key @param {string} text */
export function isDue(key, text) {
  const turn = turnOf(key, text);
  const age = (Date.parse(today()) - Date.parse(turn?.day ?? "")) / 86_400_000;
  // A traveller's date may be a day behind. If it is further behind, the clock was wrong, and the question is due; so
  // it is if the stored entry is damaged.
  return turn !== undefined && !(age >= -1 && age < DAYS[turn.step]);
}

/**
 * Counts an answer: a first one, or one that was due. Any other was given with the feedback visible.
 * @param {string} key @param {string} text @param {boolean} isRight
 */
export function countAnswer(key, text, isRight) {
  const step = turnOf(key, text)?.step ?? 0;
  if (turnOf(key, text) && !isDue(key, text)) return;
  const next = isRight ? Math.min((DAYS[step] ? step : 0) + 1, DAYS.length - 1) : 0;
  remember(REPEAT + key, { ...recall(REPEAT + key), [text]: { step: next, day: today() } });
}

/** Lets links lead to a widget by its name. @param {import("./frame.js").Frame} frame */
export function takeLinks({ body, get }) {
  if (get("name")) body.id = get("name");
  // The browser followed the link before the widget was there, so it follows it again.
  if (body.id && location.hash === `#${body.id}`) location.replace(location.hash);
}
