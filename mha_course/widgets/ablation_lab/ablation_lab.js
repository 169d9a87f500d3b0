// The reader switches off heads of a trained model and sees which answers it still gets right. The browser
// computes everything from the stored weights.

import {
  ablationSubsets,
  ALL_SUBSETS,
  gatedAccuracy,
  gatedAnswers,
  gatesWithout,
  headsOff,
  prepareModel,
} from "./ablation_math.js";
import { headColor } from "../shared/colors.js";
import { formatNumber } from "../shared/format.js";
import { element, focusedNear, isShortcut, mark, widget } from "../shared/frame.js";
import { colorBar, numberMap, placeByKey } from "../shared/number_map.js";
import { bars, slider } from "../shared/parts.js";
import { pixelCanvas } from "../shared/pixel_canvas.js";

/** @typedef {import("../shared/frame.js").Frame} Frame */
/** @typedef {import("./ablation_math.js").StoredModel} StoredModel */
/** @typedef {import("./ablation_math.js").StoredBatch} StoredBatch */
/** @typedef {import("./ablation_math.js").LabModel} LabModel */

const SHARES = { low: 0, high: 1 };
const CHALLENGE_OFF = 2; // at least this many heads must be off

/** Throws a RangeError if no model has this many heads, which is also the number of gates. @param {Frame} frame */
function checkLab(frame) {
  const counts = frame.get("models").map((/** @type {StoredModel} */ model) => model.num_heads);
  frame.insist(counts.includes(frame.get("num_heads")), "num_heads", `be one of ${counts.join(", ")}`);
}

/** @param {Frame} frame */
function readLab(frame) {
  /** @type {StoredModel[]} */
  const models = frame.get("models");
  /** @type {StoredBatch} */
  const batch = frame.get("batch");
  const counts = models.map((model) => model.num_heads);
  /** @type {{numHeads: number, gates: number[], sample: number, keep: number}} */
  const settings = frame.read();
  const stored = models[counts.indexOf(settings.numHeads)];
  return { stored, batch, counts, ...settings };
}

/** @typedef {ReturnType<typeof readLab>} LabState */

/**
 * The weights of one head as a picture with one pixel per weight. The reader points at it or walks through it
 * with the arrow keys; only the cell under the cursor exists.
 * @param {Frame} frame
 */
function headMap(frame) {
  const canvas = pixelCanvas();
  const cursor = element("span", { role: "gridcell", class: "mha-cursor", tabindex: 0 });
  const area = element("div", { class: "mha-pixels", role: "grid" }, canvas.node, element("div", { role: "row" }, cursor));
  const readout = element("p", { class: "mha-readout" });
  let [weights, tokens] = [/** @type {import("../shared/attention_math.js").Matrix} */ ([]), /** @type {string[]} */ ([])];
  let place = [0, 0];

  const describe = () => `query ${place[0]} → key ${place[1]}: ${formatNumber(weights[place[0]][place[1]])}`;
  /** @param {number[]} target a row and a column, perhaps outside the map */
  function moveTo(target) {
    place = target.map((index) => Math.min(Math.max(index, 0), weights.length - 1));
    const share = 100 / weights.length;
    Object.assign(cursor.style, { top: `${place[0] * share}%`, left: `${place[1] * share}%`, width: `${share}%`, height: `${share}%` });
    cursor.setAttribute("aria-label", `${describe()}, from token ${tokens[place[0]]} to token ${tokens[place[1]]}`);
  }
  const show = (/** @type {boolean} */ isRead) => (readout.textContent = isRead ? describe() : "");
  const isFocused = () => area.contains(focusedNear(area));
  for (const type of ["pointermove", "pointerdown"]) {
    frame.listen(area, type, (event) => {
      const box = area.getBoundingClientRect();
      const shares = [(event.clientY - box.top) / box.height, (event.clientX - box.left) / box.width];
      moveTo(shares.map((share) => Math.floor(share * weights.length)));
      show(true);
    });
  }
  frame.listen(area, "pointerleave", () => show(isFocused()));
  frame.listen(area, "focusin", () => show(true));
  frame.listen(area, "focusout", () => show(false));
  frame.listen(area, "keydown", (event) => {
    const target = placeByKey(event.key, place, weights.length);
    if (!target || isShortcut(event)) return;
    event.preventDefault();
    moveTo(target);
    show(true);
    frame.say(describe());
  });

  /**
   * @param {string} label @param {string[]} sequence the tokens
   * @param {import("../shared/attention_math.js").Matrix} numbers (len, len)
   */
  function draw(label, sequence, numbers) {
    [weights, tokens] = [numbers, sequence];
    area.setAttribute("aria-label", label);
    area.setAttribute("aria-rowcount", String(numbers.length));
    area.setAttribute("aria-colcount", String(numbers.length));
    canvas.draw(numbers, SHARES);
    moveTo(place);
    show(isFocused());
  }
  return { nodes: [area, readout], draw };
}

/**
 * One switch and one weight map per head. Cards are never removed; a model with fewer heads hides some.
 * @param {Frame} frame
 */
function headCards(frame) {
  const cards = element("div", { class: "mha-heads" });
  /** @type {{node: HTMLElement, input: HTMLInputElement, state: HTMLElement, map: ReturnType<typeof headMap>}[]} */
  const made = [];
  frame.listen(cards, "change", (event) => {
    const head = made.findIndex(({ input }) => input === event.target);
    const gates = [...frame.get("gates")];
    gates[head] = event.target.checked ? 1 : 0;
    frame.set({ gates });
  });

  /** @param {number} count */
  function makeCards(count) {
    while (made.length < count) {
      const head = made.length;
      const input = element("input", { type: "checkbox" });
      const state = element("span", { class: "mha-hint", "aria-hidden": "true" });
      const map = headMap(frame);
      const label = element("label", { class: "mha-switch" }, input, element("span", { text: `head ${head}` }), state);
      const node = element("div", { class: "mha-head" }, label, ...map.nodes);
      node.style.setProperty("--head", headColor(head));
      made.push({ node, input, state, map });
      cards.append(node);
    }
    made.forEach(({ node }, head) => (node.hidden = head >= count));
  }

  let drawn = /** @type {import("../shared/attention_math.js").Matrix[] | null} */ (null);
  /**
   * @param {readonly number[]} gates @param {string[]} sequence the tokens
   * @param {import("../shared/attention_math.js").Matrix[]} weights one matrix per head; the same object is not drawn
   *   twice in a row
   */
  function draw(gates, sequence, weights) {
    makeCards(gates.length);
    made.slice(0, gates.length).forEach(({ node, input, state, map }, head) => {
      input.checked = gates[head] === 1;
      node.classList.toggle("mha-off", gates[head] === 0);
      state.textContent = gates[head] === 0 ? "off" : "on";
      if (weights !== drawn) map.draw(`Weights of head ${head}: queries in rows, keys in columns`, sequence, weights[head]);
    });
    drawn = weights;
  }
  const legend = element("legend", { text: "Heads: switching one off sets its output to 0" });
  const hint = element("p", {
    class: "mha-hint",
    text: "In each map, rows are queries and columns are keys. Point at a map, or walk through it with the arrow keys, to read a weight.",
  });
  return { node: element("fieldset", {}, legend, cards, hint), draw };
}

/** The reader's task, and whether switching off these heads solves it. */
function challenge() {
  const task = element("p", { class: "mha-title" });
  const verdict = element("p", { class: "mha-verdict" });
  const node = element("div", { class: "mha-challenge" }, task, verdict);

  /**
   * @param {{numHeads: number, numTasks: number, off: number[], whole: number, kept: number, keep: number}} state
   *   `whole` is the share of positions where all answers are right with all heads on, `kept` with some off
   * @returns {string} the verdict
   */
  function draw({ numHeads, numTasks, off, whole, kept, keep }) {
    const [answers, are] = [
      ["the answer", "the answer is right"],
      ["both answers", "both answers are right"],
      ["all answers", "all answers are right"],
    ][Math.min(numTasks, 3) - 1];
    const isPossible = numHeads > CHALLENGE_OFF && whole >= keep;
    const [wanted, share] = [formatNumber(100 * keep, 0), `${formatNumber(100 * kept, 1)}%`];
    const isMet = isPossible && off.length >= CHALLENGE_OFF && kept >= keep;
    const heads = isPossible ? `two of the ${numHeads} heads` : "two heads";
    task.textContent = `Challenge: switch off ${heads} and keep ${answers} right in at least ${wanted}% of the positions.`;
    if (!isPossible && whole < keep) {
      verdict.textContent = `Not with this model: even with every head on, ${are} in only ${formatNumber(100 * whole, 1)}% of the positions.`;
    } else if (!isPossible) {
      verdict.textContent = "Not with this model: it has no head to spare. Choose one with more heads.";
    } else if (off.length === 0) {
      verdict.textContent = "All heads are on. Which two would you miss least? Look at the maps, then try.";
    } else {
      const listed = off.join(", ").replace(/, (\d+)$/, " and $1");
      const which = off.length > 1 ? `heads ${listed}` : `head ${listed}`;
      const without = `Without ${which}, ${are} in ${share} of the positions`;
      const unmet = off.length < CHALLENGE_OFF ? `${without}; switch off one more.` : `${without}, which is too few.`;
      const met = numHeads > ALL_SUBSETS ? `✓ Met! ${without}. How many more can go?` : `✓ Met! ${without}.`;
      verdict.textContent = isMet ? met : unmet;
    }
    node.classList.toggle("mha-met", isMet);
    return verdict.textContent ?? "";
  }
  return { node, draw };
}

/**
 * The accuracy for every subset of heads or, if there are many heads, without each single head. A click on a
 * row switches off exactly the heads that the row names.
 * @param {Frame} frame
 */
function subsetTable(frame) {
  const summary = element("summary");
  const map = numberMap(frame, {
    name: "subsets",
    rows: "heads off",
    columns: `accuracy`,
    hint: "Click a row, or press Space on it, to switch off exactly the heads that it names.",
    onPick: (row) => {
      const { numHeads } = readLab(frame);
      frame.set({ gates: gatesWithout(numHeads, ablationSubsets(numHeads)[row]) });
    },
  });
  map.node.classList.add("mha-subsets");

  /**
   * @param {LabState} state @param {string[]} names of the tasks
   * @param {Float64Array[]} table
   */
  function draw({ numHeads, gates }, names, table) {
    const rows = ablationSubsets(numHeads);
    const texts = rows.map((row) => row.join(", ") || `none`);
    summary.textContent =
      numHeads <= ALL_SUBSETS ? `The accuracy without each of the ${rows.length} subsets of heads` : "The accuracy with one head off";
    map.draw({
      label: "Accuracy: switched-off heads in rows, tasks in columns",
      rowLabels: texts,
      columnLabels: names,
      numbers: table,
      extent: SHARES,
      digits: 2,
      areNumbers: true,
      describe: (row, column, number) => `heads off: ${texts[row]}; ${names[column]}: accuracy ${number}`,
    });
    const off = String(headsOff(gates));
    const headers = /** @type {NodeListOf<HTMLElement>} */ (map.node.querySelectorAll("[role=rowheader]"));
    headers.forEach((header, row) => header.classList.toggle("mha-current", String(rows[row]) === off));
  }
  return { node: element("details", {}, summary, map.node), draw };
}

/** @typedef {{batch: StoredBatch, model: LabModel, table: Float64Array[],
 *   weights: Map<number, import("../shared/attention_math.js").Matrix[]>, shares: Map<string, Float64Array>}} Computed */

/**
 * Returns a function that computes the model, its accuracies and the weights of one sequence. It computes each
 * stored model, the weights of each sequence and the accuracy of each subset of heads only once, because a reader
 * goes back and forth between them.
 */
function labComputer() {
  /** @type {Map<StoredModel, Computed>} */
  const kept = new Map();
  return (/** @type {LabState} */ { stored, batch, numHeads, sample, gates }) => {
    let found = kept.get(stored);
    if (found?.batch !== batch) {
      const model = prepareModel(stored, batch);
      const table = ablationSubsets(numHeads).map((off) => gatedAccuracy(model, gatesWithout(numHeads, off)));
      found = { batch, model, table, weights: new Map(), shares: new Map() };
      kept.set(stored, found);
    }
    const { model, table } = found;
    const weights = found.weights.get(sample) ?? model.steps(sample).weights;
    found.weights.set(sample, weights);
    const accuracy = found.shares.get(String(gates)) ?? gatedAccuracy(model, gates);
    found.shares.set(String(gates), accuracy);
    return { model, table, weights, accuracy };
  };
}

/** @param {Frame} frame */
function build(frame) {
  const heads = slider(frame, "num_heads", (value) => frame.set({ num_heads: value, gates: gatesWithout(value, []) }));
  const sample = slider(frame, "sample", "sample", (value) => ({
    said: `sequence ${value} of 0 to ${frame.limits("sample").high}`,
  }));
  const allOn = element("button", { type: "button", text: "All heads on" });
  frame.listen(allOn, "click", () => frame.set({ gates: gatesWithout(frame.get("num_heads"), []) }));
  const task = challenge();
  const cards = headCards(frame);
  const scale = colorBar();
  const shares = bars("accuracy", "muted");
  const guessing = element("p", { class: "mha-hint" });
  const answers = element("div", { class: "mha-answers", role: "table", "aria-label": "Answers for this sequence" });
  const subsets = subsetTable(frame);
  const title = (/** @type {string} */ text) => element("p", { class: "mha-title", text });
  const results = [
    title("Accuracy on the test batch"),
    shares.node,
    guessing,
    title("Answers for this sequence"),
    answers,
  ];
  frame.body.append(
    task.node,
    element("div", { class: "mha-controls" }, heads.node, sample.node),
    cards.node,
    element("div", { class: "mha-below" }, allOn, scale.node),
    element("div", {}, ...results, subsets.node),
  );
  const compute = labComputer();

  return () => {
    const state = readLab(frame);
    const { batch, numHeads, gates, counts } = state;
    const { model, table, weights, accuracy } = compute(state);
    const { length, tasks } = batch;
    const first = state.sample * length;
    const sequence = Array.from(model.tokens.subarray(first, first + length), String);
    heads.draw(numHeads, { stops: counts });
    heads.node.hidden = counts.length === 1;
    cards.draw(gates, sequence, weights);
    scale.draw(SHARES, `weight`);

    const names = [...tasks, "all at once"];
    shares.draw(names, accuracy, { digits: 3 });
    const guessed = formatNumber(1 / model.classes, 3);
    guessing.textContent = `Guessing one of ${model.classes} answers gives accuracy ${guessed} on each task.`;
    const answered = gatedAnswers(model, gates, first, length);
    drawAnswers(answers, model, sequence, answered, first);
    subsets.draw(state, names, table);

    const off = headsOff(gates);
    const told = names.map((name, index) => `${name} ${formatNumber(accuracy[index], 2)}`).join(", ");
    const [numTasks, { keep }] = [tasks.length, state];
    const verdict = task.draw({ numHeads, numTasks, off, whole: table[0][numTasks], kept: accuracy[numTasks], keep });
    const switches = off.length ? `Heads off: ${off.join(", ")}.` : "All heads on.";
    const now = `${switches} Accuracy: ${told}. ${verdict}`;
    frame.tell(now);
    frame.report(() => ({
      accuracy,
      subsets: table,
      answers: tasks.map((_, task) => Array.from({ length }, (_, place) => answered[place * tasks.length + task])),
      maps: weights,
    }));
  };
}

/**
 * One row per task: the model's answer at each position, and the right answer wherever the model is wrong.
 * @param {HTMLElement} node @param {LabModel} model @param {string[]} sequence @param {Uint8Array} answered
 * @param {number} first index of the sequence's first position in the batch
 */
function drawAnswers(node, { tasks, length, targets }, sequence, answered, first) {
  if (node.children.length === 0) {
    const row = (/** @type {string} */ name) =>
      element(
        "div",
        { role: "row" },
        element("span", { role: "rowheader", text: name }),
        ...Array.from({ length }, () => element("span", { role: "cell" })),
      );
    node.style.setProperty("--columns", String(length));
    node.append(row("token"), ...tasks.map(row));
  }
  const cellsOf = (/** @type {number} */ row) => /** @type {any[]} */ (Array.from(node.children[row].children)).slice(1);
  cellsOf(0).forEach((cell, place) => (cell.textContent = sequence[place]));
  tasks.forEach((task, index) =>
    cellsOf(index + 1).forEach((cell, place) => {
      const answer = answered[place * tasks.length + index];
      const target = targets[(first + place) * tasks.length + index];
      mark(cell, "answers", answer);
      cell.replaceChildren(String(answer), ...(answer === target ? [] : [element("small", { text: `✗ ${target}` })]));
      cell.classList.toggle("mha-missed", answer !== target);
      cell.title = answer === target ? `${task}: right` : `${task}: wrong, the right answer is ${target}`;
    }),
  );
}

/** @param {Frame} frame */
function labValues(frame) {
  const { stored: model, batch } = readLab(frame);
  return { model, tokens: batch.tokens, targets: batch.targets };
}

export default widget({
  name: "ablation-lab",
  label: "Ablation lab",
  data: ["models", "batch"],
  values: labValues,
  check: checkLab,
}, build);
