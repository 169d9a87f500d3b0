// The benefit of heads: the share of right answers for each number of heads, and the answers for the shown example.

import { formatNumber } from "../shared/format.js";
import { element, setText } from "../shared/frame.js";
import { askedPlaces } from "./head_math.js";
import { bars } from "../shared/parts.js";

/** @typedef {import("./head_math.js").Example} Example */

/** @param {number} count */
export function countHeads(count) {
  return count === 1 ? "1 head" : `${count} heads`;
}

/**
 * @param {Example} example @param {number[][]} answers
 * @returns {{right: number, asked: number}} the number of positions where all answers are right, and of all
 */
export function countRight({ task }, answers) {
  const places = task ? askedPlaces(task) : [];
  const isRight = (/** @type {number} */ place, /** @type {number} */ column) =>
    answers.every((row, index) => !task || task.targets[index][place] < 0 || row[column] === task.targets[index][place]);
  return { right: places.filter(isRight).length, asked: places.length };
}

/** A table of the answers, with a row for each question and a column for each position where it is asked. */
function answerTable() {
  const caption = element("caption", {});
  const head = element("tr");
  const body = element("tbody");
  const table = element("table", { class: "mha-answers" }, caption, element("thead", {}, head), body);
  /** @type {any[][]} */
  let cells = [];

  /** @param {Example} example */
  function rebuild({ task, tokens }) {
    if (!task) return;
    const places = askedPlaces(task);
    head.replaceChildren(
      element("td"),
      ...places.map((place) => element("th", { scope: "col", text: tokens[place] })),
    );
    cells = task.names.map(() =>
      places.map(() => element("td", { "data-number": "answers" }, element("span"), element("span"))),
    );
    body.replaceChildren(
      ...cells.map((row, index) => element("tr", {}, element("th", { scope: "row", text: task.names[index] }), ...row)),
    );
  }

  /**
   * @param {Example} example @param {number[][]} answers
   * @param {boolean} isNew whether a different example, or none, was shown before
   */
  function draw(example, answers, isNew) {
    const { task } = example;
    if (!task) return;
    if (isNew) rebuild(example);
    const places = askedPlaces(task);
    const { right, asked } = countRight(example, answers);
    const all = task.names.length === 2 ? "both answers" : `all ${task.names.length} answers`;
    setText(caption, asked === 1 ? "The answers here" : `The answers here: ${all} right at ${right} of ${asked} positions`);
    cells.forEach((row, index) =>
      row.forEach((cell, column) => {
        const [answer, wanted] = [answers[index][column], task.targets[index][places[column]]];
        const isRight = answer === wanted;
        cell.dataset.value = String(answer);
        const [text, sign] = cell.children;
        setText(text, task.words[answer]);
        setText(sign, wanted < 0 ? "" : isRight ? "✓" : "✗");
        cell.classList.toggle("mha-not-right", wanted >= 0 && !isRight);
        cell.title = wanted < 0 || isRight ? "" : `wanted: ${task.words[wanted]}`;
      }),
    );
  }
  return { node: table, draw };
}

/** The shares of right answers and the table; nothing is shown for layers without answers. */
export function headAnswers() {
  const title = element("p", { class: "mha-name" });
  const shares = bars("shares", "query");
  const table = answerTable();
  const node = element("div", { class: "mha-results" }, element("div", {}, title, shares.node), table.node);
  /** @type {Example | null} */
  let built = null;
  // The numbers of heads that were chosen: the shares of the others stay open, for the reader to predict.
  const seen = new Set();

  /** @param {{example: Example, numHeads: number}} state @param {number[][] | null} answers */
  function draw({ example, numHeads }, answers) {
    node.hidden = !example.task || !answers;
    if (!example.task || !answers) {
      if (built) node.querySelectorAll("[data-number]").forEach((/** @type {any} */ part) => delete part.dataset.number);
      built = null;
      return;
    }
    const versions = [...example.versions].sort((a, b) => a.num_heads[0] - b.num_heads[0]);
    const isNew = built !== example;
    built = example;
    if (isNew) {
      seen.clear();
      // The shares do not depend on the settings, so the bars are drawn once.
      const { length } = example.task.names;
      setText(title, length === 2 ? "Share of positions with both answers right, on new data" : `Share of positions with all ${length} answers right, on new data`);
      shares.draw(
        versions.map((version) => countHeads(version.num_heads[0])),
        versions.map((version) => version.share ?? 0),
        { format: (share) => formatNumber(share, 2) },
      );
    }
    seen.add(numHeads);
    versions.forEach((version, index) => {
      const { classList } = shares.node.children[index];
      classList.toggle("mha-now", version.num_heads[0] === numHeads);
      classList.toggle("mha-open", !seen.has(version.num_heads[0]));
    });
    table.draw(example, answers, isNew);
  }
  return { node, draw };
}
