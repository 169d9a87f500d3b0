// Predict, then compare: a grid of cells in two states that the reader fills in before seeing the correct map.

import { element, inlineText, mark, widget } from "../shared/frame.js";
import { gridCursor } from "../shared/number_map.js";
import { AGAIN, countAnswer, isDue, takeLinks } from "../shared/repeat.js";
import { recall, remember } from "../shared/store.js";

/** @typedef {import("../shared/frame.js").Frame} Frame */

/**
 * @typedef {object} Task
 * @property {string} text
 * @property {string[]} rows
 * @property {string[]} columns
 * @property {string} truth one group of digits for each row, 1 = the second state
 * @property {[string, string]} states the names of 0 and 1
 * @property {Object<string, string>} feedback by the label of a row
 */

const MARKS = ["○", "●"];
const [RIGHT, WRONG] = ["✓", "✗"];

/**
 * @param {Task} task @param {any} text
 * @returns {boolean[][]} throws a RangeError if the text does not fit the task
 */
function readMarks({ rows, columns }, text) {
  const row = `[01]{${columns.length}}`;
  if (typeof text !== "string" || !new RegExp(`^${row}( ${row}){${rows.length - 1}}$`).test(text)) {
    const rule = `marked must be ${rows.length} groups of ${columns.length} digits 0 or 1`;
    throw new RangeError(`${rule}, got ${JSON.stringify(text) ?? "nothing"}`);
  }
  return text.split(" ").map((digits) => Array.from(digits, (digit) => digit === "1"));
}

/** @param {boolean[][]} marks */
const writeMarks = (marks) => marks.map((row) => row.map(Number).join("")).join(" ");

/** @param {Task} task */
const nothingMarked = ({ truth }) => truth.replaceAll("1", "0");

/**
 * Puts the prediction that the browser has stored into an empty grid, unless the question is due, and returns a
 * function that stores one. If the author has changed the question or the labels since, the prediction is discarded.
 * @param {Frame} frame @param {Task} task
 */
function buildMemory(frame, task) {
  const name = frame.get("name");
  const key = `map-prediction/${name}`;
  const { text, rows, columns } = task;
  const nothing = nothingMarked(task);
  let kept = `${nothing} false`;
  if (name && frame.get("marked") === nothing && frame.get("seen") === false) {
    const stored = recall(key);
    const isSame = JSON.stringify([stored?.question, stored?.rows, stored?.columns]) === JSON.stringify([text, rows, columns]);
    try {
      if (isSame && !isDue(key, text)) frame.set({ marked: writeMarks(readMarks(task, stored.marked)), seen: stored.seen === true });
    } catch {
      // The stored prediction is damaged, so the reader starts again.
    }
  }
  return (/** @type {string} */ marked, /** @type {boolean} */ seen) => {
    const now = `${marked} ${seen}`;
    if (!name || now === kept) return;
    kept = now;
    if (seen) countAnswer(key, text, marked === task.truth);
    remember(key, marked === nothing && !seen ? null : { question: text, rows, columns, marked, seen });
  };
}

/**
 * The cells with their labels. Tab moves the focus to one of the cells, and the arrow keys lead to the others.
 * @param {Frame} frame @param {Task} task
 * @param {(row: number, column: number, isFirst: boolean) => void} onPick called for each cell of a stroke
 */
function buildCells(frame, { text, rows, columns }, onPick) {
  const readout = element("p", { class: "mha-readout mha-hint" });
  const columnLabels = columns.map((label) => element("span", { role: "columnheader", title: label }, ...inlineText(label)));
  const rowLabels = rows.map((label) => element("span", { role: "rowheader", title: label }, ...inlineText(label)));
  /** @type {any[][]} */
  const cells = rows.map((_, row) =>
    columns.map((_, column) => {
      const parts = [element("span", { class: "mha-mark" }), element("span", { class: "mha-judged" })];
      return element("span", { role: "gridcell", tabindex: -1, "data-row": row, "data-column": column }, ...parts);
    }),
  );
  const corner = element("span", { role: "columnheader", class: "mha-corner" }, element("span", { class: "mha-unseen", text: "rows" }));
  const grid = element(
    "div",
    { class: "mha-predicted", role: "grid", "aria-label": text.replace(/[`*]/g, "") },
    element("div", { role: "row" }, corner, ...columnLabels),
    ...cells.map((row, index) => element("div", { role: "row" }, rowLabels[index], ...row)),
  );
  grid.style.setProperty("--columns", String(columns.length));
  grid.classList.toggle("mha-upright", columns.some((label) => label.length > 3));
  cells[0][0].tabIndex = 0;

  const point = () => {
    const place = cursor.place();
    rowLabels.forEach((label, row) => label.classList.toggle("mha-now", place?.[0] === row));
    columnLabels.forEach((label, column) => label.classList.toggle("mha-now", place?.[1] === column));
    readout.textContent = place ? cells[place[0]][place[1]].getAttribute("aria-label") : grid.dataset.hint;
  };
  const cursor = gridCursor(frame, { node: grid, cells }, onPick, point);
  // A screen reader clicks without a pointer.
  frame.listen(grid, "click", (event) => {
    const place = event.detail === 0 ? cursor.placeOf(event.target) : null;
    if (place) onPick(place[0], place[1], true);
  });
  return { nodes: [element("div", { class: "mha-scroller" }, grid), readout], grid, cells, point };
}

/** The symbols and what they mean. */
function buildLegend() {
  const node = element("p", { class: "mha-legend mha-hint" });
  /** @param {Task} task @param {boolean} seen @param {boolean} showsTruth */
  function draw({ states }, seen, showsTruth) {
    const judged = showsTruth ? [[WRONG, "you predicted the other state"]] : [[RIGHT, "as predicted"], [WRONG, "not as predicted"]];
    const entries = [...states.map((name, state) => [MARKS[state], name]), ...(seen ? judged : [])];
    node.replaceChildren(...entries.map(([symbol, name]) => element("span", {}, element("b", { text: symbol }), ` ${name}`)));
  }
  return { node, draw };
}

/** The number of correct cells, and the author's sentence on each row with a mistake. @param {Task} task */
function buildOutcome({ rows, feedback }) {
  const count = element("p", { class: "mha-title", tabindex: -1 });
  const reasons = element("ul", { class: "mha-reasons" });
  const node = element("div", { class: "mha-outcome" }, count, reasons);
  /** @param {boolean[][]} marks @param {boolean[][]} truth */
  function draw(marks, truth) {
    const misses = marks.map((row, y) => row.filter((state, x) => state !== truth[y][x]).length);
    const total = marks.length * marks[0].length;
    const right = total - misses.reduce((sum, missed) => sum + missed, 0);
    count.textContent = right === total ? `All ${total} as predicted.` : `${right} of ${total} as predicted.`;
    mark(count, "right", right);
    const told = rows.filter((label, row) => misses[row] > 0 && Object.hasOwn(feedback, label));
    reasons.hidden = told.length === 0;
    reasons.replaceChildren(
      ...told.map((label) => element("li", {}, element("strong", {}, ...inlineText(label), ": "), ...inlineText(feedback[label]))),
    );
  }
  return { node, count, draw };
}

/** @param {Frame} frame @param {{see: () => void, toggle: () => void, restart: () => void}} actions */
function buildButtons(frame, { see, toggle, restart }) {
  const show = element("button", { type: "button", class: "mha-see", text: "See" });
  const truth = element("button", { type: "button", text: "Show the truth" });
  const again = element("button", { type: "button", class: "mha-reset", text: "Start again" });
  frame.listen(show, "click", see);
  frame.listen(truth, "click", toggle);
  frame.listen(again, "click", restart);
  const node = element("div", { class: "mha-choices" }, show, truth, again);
  const draw = (/** @type {boolean} */ seen, /** @type {boolean} */ showsTruth, /** @type {boolean} */ isEmpty) => {
    show.hidden = seen;
    truth.hidden = !seen;
    truth.setAttribute("aria-pressed", String(showsTruth));
    again.hidden = isEmpty && !seen;
  };
  return { node, draw };
}

/** @param {Frame} frame */
function build(frame) {
  /** @type {Task} */
  const task = frame.get("task");
  const truth = readMarks(task, task.truth);
  let showsTruth = false;
  let brush = false;
  const { nodes, grid, cells, point } = buildCells(frame, task, (row, column, isFirst) => {
    if (frame.get("seen")) return;
    const marks = readMarks(task, frame.get("marked"));
    // The first cell of a stroke decides which state the stroke paints.
    if (isFirst) brush = !marks[row][column];
    if (marks[row][column] === brush) return;
    marks[row][column] = brush;
    frame.set({ marked: writeMarks(marks) });
    frame.say(describe(row, column, marks));
  });
  const outcome = buildOutcome(task);
  const legend = buildLegend();
  const buttons = buildButtons(frame, {
    see() {
      frame.set({ seen: true });
      // The button is gone, so the focus moves to the count as soon as it exists.
      queueMicrotask(() => {
        outcome.count.focus();
        frame.say(outcome.node.textContent ?? "");
      });
    },
    toggle() {
      showsTruth = !showsTruth;
      draw();
      frame.say(showsTruth ? "The grid shows the truth." : "The grid shows your prediction.");
    },
    restart() {
      frame.set({ marked: nothingMarked(task), seen: false });
      cells[0][0].focus();
      queueMicrotask(() => frame.say(`All cells are ${task.states[0]} again.`));
    },
  });
  const question = element("p", { class: "mha-title" }, ...inlineText(task.text));
  frame.body.append(question, nodes[0], legend.node, nodes[1], buttons.node, outcome.node);
  const again = isDue(`map-prediction/${frame.get("name")}`, task.text) ? `${AGAIN} ` : "";
  const keep = buildMemory(frame, task);
  takeLinks(frame);

  /** @param {number} row @param {number} column @param {boolean[][]} marks */
  function describe(row, column, marks) {
    const [mine, real] = [marks[row][column], truth[row][column]];
    const where = `${task.rows[row]}, ${task.columns[column]}: `.replace(/[`*]/g, "");
    const [said, is] = [task.states[Number(mine)], task.states[Number(real)]];
    if (!frame.get("seen")) return `${where}${said}`;
    return mine === real ? `${where}${is}, as predicted` : `${where}${is}, you predicted ${said}`;
  }

  function draw() {
    const marks = readMarks(task, frame.get("marked"));
    const seen = frame.get("seen");
    if (typeof seen !== "boolean") throw new RangeError(`seen must be true or false, got ${JSON.stringify(seen) ?? "nothing"}`);
    showsTruth &&= seen;
    const shown = showsTruth ? truth : marks;
    cells.forEach((line, row) =>
      line.forEach((cell, column) => {
        const isRight = marks[row][column] === truth[row][column];
        const verdict = !seen || (showsTruth && isRight) ? "" : isRight ? "right" : "wrong";
        const [symbol, judged] = cell.children;
        cell.className = `mha-is-${Number(shown[row][column])} ${verdict && `mha-${showsTruth ? "missed" : verdict}`}`;
        symbol.textContent = MARKS[Number(shown[row][column])];
        judged.textContent = { right: RIGHT, wrong: WRONG, "": "" }[verdict];
        cell.setAttribute("aria-label", describe(row, column, marks));
        mark(cell, "shown", Number(shown[row][column]));
      }),
    );
    const isEmpty = frame.get("marked") === nothingMarked(task);
    grid.classList.toggle("mha-open", !seen);
    grid.dataset.hint = seen
      ? "Point at a cell, or walk through the grid with the arrow keys, to read it."
      : `${isEmpty ? again : ""}Click, drag, or press Space on a cell to make it ${task.states[1]} or ${task.states[0]}. Then ask to see.`;
    point();
    legend.draw(task, seen, showsTruth);
    outcome.node.hidden = !seen;
    if (seen) outcome.draw(marks, truth);
    buttons.draw(seen, showsTruth, isEmpty);
    keep(frame.get("marked"), seen);
  }
  return draw;
}

export default widget({ name: "map-prediction", label: "Prediction", data: ["marked", "seen"] }, build);
