// Split and merge, one call after another: where each number goes, with the correct calls and with wrong ones.

import { headColor } from "../shared/colors.js";
import { element, focusedNear, isShortcut, mark, widget } from "../shared/frame.js";
import { facts, segments, slider, stepper } from "../shared/parts.js";
import {
  answerChoices,
  askedPlace,
  computeReshape,
  COUNT,
  countMisplaced,
  memoryOffset,
  nestNumbers,
  outcomeOf,
  ownedBy,
  ownerOf,
  placeInShape,
  readStrided,
  reshapeKinds,
} from "./reshape_math.js";

/** @typedef {import("../shared/frame.js").Frame} Frame */
/** @typedef {import("./reshape_math.js").ReshapeStep} ReshapeStep */
/** @typedef {import("./reshape_math.js").ReshapeKind} ReshapeKind */

// No head has one of these colours, and white text is readable on each.
const TOKEN_COLORS = ["#332288", "#117733", "#aa4499", "#7a5c00", "#00686e", "#882255"];

const RESHAPE_NAMES = {
  input: "one row for each token",
  cut: "cut the last axis",
  heads: "one table for each head",
  swapped: "swap back",
  merged: "heads side by side",
};

/** @param {Frame} frame */
function readReshape(frame) {
  const { length, numHeads, split, merge, step, prediction } = frame.read();
  const embedDim = COUNT / length;
  const last = reshapeKinds(split, merge).length - 1;
  frame.insist(step <= last, "step", `lie in 0..${last}`);
  return { length, embedDim, numHeads, headDim: embedDim / numHeads, split, merge, step, last, prediction };
}

/** @typedef {ReturnType<typeof readReshape>} State */

/** @param {ReshapeKind} kind @param {number[]} place */
function nameOfPlace(kind, [first, second, third]) {
  if (kind === "input" || kind === "merged") return `[token ${first}, ${second}]`;
  return kind === "heads" ? `[head ${first}, token ${second}, ${third}]` : `[token ${first}, head ${second}, ${third}]`;
}

/**
 * Lets a reader point at the cells of the tables and walk through them.
 * @param {Frame} frame @param {HTMLElement} node @param {any[]} cells
 * @param {() => number} columnsOf the number of columns of the tables
 * @param {(index: number | null) => void} onPoint
 */
function walkCells(frame, node, cells, columnsOf, onPoint) {
  let current = 0;
  const indexOf = (/** @type {any} */ target) => cells.indexOf(target.closest?.(".mha-cell"));
  frame.listen(node, "pointerover", (event) => onPoint(indexOf(event.target) < 0 ? null : indexOf(event.target)));
  frame.listen(node, "pointerleave", () => onPoint(null));
  frame.listen(node, "focusin", (event) => {
    cells[current].tabIndex = -1;
    current = indexOf(event.target);
    cells[current].tabIndex = 0;
    onPoint(current);
  });
  frame.listen(node, "focusout", () => onPoint(null));
  frame.listen(node, "keydown", (event) => {
    if (isShortcut(event)) return;
    /** @type {Object<string, number>} */
    const targets = {
      ArrowLeft: current - 1,
      ArrowRight: current + 1,
      ArrowUp: current - columnsOf(),
      ArrowDown: current + columnsOf(),
      Home: 0,
      End: COUNT - 1,
    };
    if (!(event.key in targets)) return;
    event.preventDefault();
    cells[targets[event.key]]?.focus();
  });
}

/**
 * The tables of a step: a single one, or one per head or token.
 * @param {ReshapeKind} kind @param {number[]} shape @param {HTMLElement[]} cells
 */
function layOutTables(kind, shape, cells) {
  const isFlat = shape.length === 2;
  const [blocks, rows] = isFlat ? [1, shape[0]] : shape;
  const columns = shape[shape.length - 1];
  const [outer, inner] = kind === "heads" ? ["head", "token"] : ["token", "head"];
  return Array.from({ length: blocks }, (_, block) => {
    const title = isFlat ? (kind === "input" ? "x" : "merged") : `${outer} ${block}`;
    const lines = Array.from({ length: rows }, (_, row) => {
      const first = (block * rows + row) * columns;
      const header = element("span", { role: "rowheader", text: `${isFlat ? "token" : inner} ${row}` });
      return element("div", { role: "row" }, header, ...cells.slice(first, first + columns));
    });
    const grid = element("div", { role: "grid", "aria-label": title }, ...lines);
    grid.style.setProperty("--columns", String(columns));
    return element("div", { class: "mha-table" }, element("p", { class: "mha-title", text: title }), grid);
  });
}

/**
 * The tables of all steps, built from the same twelve cells.
 * @param {Frame} frame @param {(index: number | null) => void} onPoint
 */
function reshapeTables(frame, onPoint) {
  const cells = Array.from({ length: COUNT }, (_, index) =>
    element("span", { role: "gridcell", class: "mha-cell", "data-number": "table", tabindex: index === 0 ? 0 : -1 }),
  );
  const node = element("div", { class: "mha-tables" });
  let columns = 1;
  walkCells(frame, node, cells, () => columns, onPoint);

  let built = "";
  /**
   * @param {State} state @param {ReshapeStep} step
   * @param {number[] | null} asked the position that the reader was asked about
   */
  function draw(state, { kind, tensor }, asked) {
    const shape = tensor.shape;
    columns = shape[shape.length - 1];
    const key = `${kind} ${shape}`;
    if (key !== built) {
      node.replaceChildren(...layOutTables(kind, shape, cells));
      // Every step has room for the tallest tables of all steps, so that nothing below them moves.
      node.style.setProperty("--rows", String(Math.max(state.length, state.numHeads)));
    }
    built = key;
    readStrided(tensor).forEach((number, index) => {
      const place = placeInShape(shape, index);
      const right = ownedBy(state, kind, place);
      const { token, head, inner } = ownerOf(state, number);
      const cell = cells[index];
      paintNumber(cell, "table", number, token, head);
      cell.classList.toggle("mha-misplaced", number !== right);
      cell.classList.toggle("mha-asked", asked !== null && String(asked) === String(place));
      const whose = `number ${number}, entry ${inner} of head ${head} of token ${token}`;
      const fault = number === right ? "" : `; wrong: ${right} belongs here`;
      cell.setAttribute("aria-label", `${nameOfPlace(kind, place)}: ${whose}${fault}`);
    });
  }
  return { node, cells, draw };
}

/**
 * Paints a cell in two colours: the fill shows the token, the bar shows the head.
 * @param {any} cell @param {string} name @param {number} number @param {number} token @param {number} head
 */
function paintNumber(cell, name, number, token, head) {
  mark(cell, name, number);
  cell.textContent = String(number);
  cell.style.setProperty("--token", TOKEN_COLORS[token]);
  cell.style.setProperty("--head", headColor(head));
}

/** @param {Frame} frame */
function reshapeControls(frame) {
  // After a change of split or merge, go to the same kind of table or, if there is none, to the heads.
  const setWay = (/** @type {{split?: string, merge?: string}} */ change) => {
    const { split, merge, step } = readReshape(frame);
    const kind = reshapeKinds(split, merge)[step];
    const kinds = reshapeKinds(change.split ?? split, change.merge ?? merge);
    const same = kinds.indexOf(kind);
    frame.set({ ...change, step: same < 0 ? kinds.indexOf("heads") : same, prediction: -1 });
  };
  const length = slider(frame, "length", (value) => frame.set({ length: value, prediction: -1 }));
  const heads = slider(frame, "num_heads", (value) => frame.set({ num_heads: value, prediction: -1 }));
  const split = segments(frame, "Split", [["transpose", "view, transpose"], ["view", "view only"]], (value) =>
    setWay({ split: value }),
  );
  const merge = segments(frame, "Merge", [["transpose", "transpose, reshape"], ["reshape", "reshape only"]], (value) =>
    setWay({ merge: value }),
  );
  const choices = element("div", { class: "mha-choices" }, split.node, merge.node);
  const node = element("div", { class: "mha-controls" }, length.node, heads.node, choices);

  /** @param {State} state */
  function draw(state) {
    const { embedDim, numHeads } = state;
    length.draw(state.length, {
      stops: frame.limits("length").options,
      text: `${state.length} × ${embedDim}`,
      said: `${state.length} tokens of width ${embedDim}`,
    });
    const stops = [1, 2, 3, 4, 6].filter((n) => embedDim % n === 0);
    heads.draw(numHeads, { stops, said: `${numHeads} heads of width ${state.headDim}` });
    split.draw(state.split);
    merge.draw(state.merge);
  }
  return { node, draw };
}

/**
 * The calls so far and those to come. Each combination of split and merge has its own stepper, because the
 * steps differ; only the stepper of the chosen combination is shown.
 * @param {Frame} frame
 */
function reshapeSteps(frame) {
  const [splits, merges] = ["split", "merge"].map((name) => frame.limits(name).options ?? []);
  const steppers = splits.flatMap((split) =>
    merges.map((merge) => {
      const names = reshapeKinds(split, merge).map((kind) => RESHAPE_NAMES[kind]);
      return { way: `${split} ${merge}`, ...stepper(frame, names, (step) => frame.set({ step, prediction: -1 })) };
    }),
  );
  const chain = element("p", { class: "mha-chain" });

  /** @param {State} state @param {ReshapeStep[]} steps */
  function draw(state, steps) {
    for (const { way, node, draw: drawStepper } of steppers) {
      node.hidden = way !== `${state.split} ${state.merge}`;
      if (!node.hidden) drawStepper(state.step);
    }
    while (chain.children.length > steps.length) chain.lastElementChild.remove();
    while (chain.children.length < steps.length) chain.append(element("code"));
    steps.forEach(({ code }, index) => {
      const part = chain.children[index];
      part.textContent = code;
      part.classList.toggle("mha-now", index === state.step);
      part.classList.toggle("mha-later", index > state.step);
    });
  }
  const focus = () => {
    for (const { node } of steppers) if (!node.hidden) node.querySelector("[aria-current]")?.focus();
  };
  return { nodes: [...steppers.map(({ node }) => node), chain], draw, focus };
}

/**
 * The question before each step, the verdict on the answer and, after the last step, what the result shows.
 * @param {Frame} frame @param {() => void} focusSteps moves the focus to the steps
 */
function reshapeQuiz(frame, focusSteps) {
  const question = element("p", {});
  const answers = Array.from({ length: 4 }, () => element("button", { type: "button" }));
  const choices = element("div", { class: "mha-answers" }, ...answers);
  const verdict = element("p", { class: "mha-verdict" });
  const ending = element("p", {});
  const node = element("div", { class: "mha-predict" }, verdict, question, choices, ending);
  answers.forEach((button) =>
    frame.listen(button, "click", (event) => {
      // Otherwise, the second click of a double click would answer the next question.
      if (event.detail > 1) return;
      frame.set({ step: frame.get("step") + 1, prediction: Number(button.textContent) });
    }),
  );

  /** @param {State} state @param {ReshapeStep} next */
  function drawQuestion(state, next) {
    const place = askedPlace(state, next.kind);
    question.replaceChildren(
      `Predict: which number will be at ${nameOfPlace(next.kind, place)} after `,
      element("code", { text: next.code }),
      "?",
    );
    answerChoices(state, next, place).forEach((number, index) => (answers[index].textContent = String(number)));
  }

  /** @param {State} state @param {ReshapeStep[]} steps @returns {string} the verdict and the ending */
  function draw(state, steps) {
    const { step, last, prediction } = state;
    const isLast = step === last;
    if (!isLast) drawQuestion(state, steps[step + 1]);
    const hadFocus = answers.includes(/** @type {any} */ (focusedNear(choices)));
    question.hidden = choices.hidden = isLast;
    // After the last answer, the buttons are hidden; the focus must stay in the widget.
    if (isLast && hadFocus) focusSteps();
    const judged = prediction >= 0 && step > 0 ? judgePrediction(state, steps[step]) : { text: "", isRight: true };
    verdict.textContent = judged.text;
    verdict.classList.toggle("mha-missed", !judged.isRight);
    ending.textContent = isLast ? describeEnd(state, steps) : "";
    ending.hidden = !isLast;
    return `${judged.text} ${ending.textContent}`;
  }
  return { node, draw };
}

/** @param {State} state @param {ReshapeStep} step */
function judgePrediction(state, step) {
  const { prediction } = state;
  const { place, offset, number } = outcomeOf(state, step);
  const sum = place.map((index, axis) => `${index}·${step.tensor.strides[axis]}`).join(" + ");
  const reason = step.isCopy
    ? `Reshape copied the previous table row by row; this is number ${offset} of the copy, counted from 0.`
    : `Its offset is ${sum} = ${offset}.`;
  const isRight = number === prediction;
  const opening = isRight ? "✓ Right:" : `✗ Not ${prediction}:`;
  return { isRight, text: `${opening} ${number} is at ${nameOfPlace(step.kind, place)}. ${reason}` };
}

/** The numbers in memory, from offset 0 on. */
function memoryStrip() {
  const cells = Array.from({ length: COUNT }, () => element("span", { class: "mha-cell" }));
  const node = element("div", { class: "mha-memory", role: "img" }, ...cells);
  /** @param {State} state @param {number[]} memory */
  function draw(state, memory) {
    memory.forEach((number, offset) => {
      const { token, head } = ownerOf(state, number);
      paintNumber(cells[offset], "memory", number, token, head);
    });
    node.setAttribute("aria-label", `In memory, from offset 0: ${memory.join(", ")}`);
  }
  const point = (/** @type {number} */ offset) =>
    cells.forEach((cell, index) => cell.classList.toggle("mha-now", index === offset));
  return { node, draw, point };
}

/** @param {Frame} frame */
function build(frame) {
  const controls = reshapeControls(frame);
  const walk = reshapeSteps(frame);
  const quiz = reshapeQuiz(frame, walk.focus);
  const tables = reshapeTables(frame, (index) => showPlace(index));
  const keys = element("div", { class: "mha-keys" });
  const readout = element("p", { class: "mha-readout" });
  const memory = memoryStrip();
  const sizes = facts(["shape", "strides", "misplaced"]);
  frame.body.append(
    controls.node,
    ...walk.nodes,
    element("div", { class: "mha-sight" }, quiz.node, element("div", {}, tables.node, keys)),
    readout,
    element("p", { class: "mha-title", text: "The same numbers in memory" }),
    memory.node,
    sizes.node,
  );
  let drawn = /** @type {ReshapeStep | null} */ (null);

  /** @param {number | null} index of the cell that is pointed at or has the focus */
  function showPlace(index) {
    if (!drawn) return;
    const offset = index === null ? -1 : memoryOffset(drawn.tensor, placeInShape(drawn.tensor.shape, index));
    memory.point(offset);
    readout.classList.toggle("mha-hint", index === null);
    readout.textContent =
      index === null
        ? "Point at a number, or walk through the tables with the arrow keys, " +
          "to read which token and head it belongs to and where it lies in memory."
        : `${tables.cells[index].getAttribute("aria-label")}; at offset ${offset} in memory`;
  }

  return () => {
    const state = readReshape(frame);
    const steps = computeReshape(state);
    const step = steps[state.step];
    const { shape, strides, memory: numbers } = step.tensor;
    drawn = step;
    controls.draw(state);
    walk.draw(state, steps);
    const verdict = quiz.draw(state, steps);
    const wasAnswered = state.prediction >= 0 && state.step > 0;
    tables.draw(state, step, wasAnswered ? askedPlace(state, step.kind) : null);
    drawKeys(keys, state);
    memory.draw(state, numbers);
    const misplaced = countMisplaced(state, step);
    const change = step.isCopy ? "a copy, written to new memory" : "memory unchanged";
    const where = misplaced ? "dashed: from another token or head" : "all are where they belong";
    sizes.draw([
      { text: `(${shape.join(", ")})`, hint: axesOf(step.kind) },
      { text: `(${strides.join(", ")})`, hint: change, number: strides },
      { text: `${misplaced} of ${COUNT}`, hint: where, number: misplaced },
    ]);
    showPlace(null);

    const extent = shape.join(" by ");
    const place = `Step ${state.step + 1} of ${steps.length}: ${RESHAPE_NAMES[step.kind]}, shape ${extent}.`;
    const told = `${place} ${misplaced} of ${COUNT} numbers are misplaced. ${verdict}`.trim();
    frame.tell(told);
    frame.report(() => ({ table: nestNumbers(readStrided(step.tensor), shape), memory: numbers, strides, misplaced }));
  };
}

/** @param {ReshapeKind} kind */
function axesOf(kind) {
  if (kind === "heads") return "num_heads, len, head_dim";
  return kind === "cut" || kind === "swapped" ? "len, num_heads, head_dim" : "len, embed_dim";
}

/** @param {State} state @param {ReshapeStep[]} steps */
function describeEnd(state, steps) {
  const isBack = steps[state.last].tensor.memory.every((number, offset) => number === offset);
  const heads = steps.find(({ kind }) => kind === "heads");
  const sawRight = heads !== undefined && countMisplaced(state, heads) === 0;
  if (isBack && sawRight) return "Each number is back in its place; each head saw its slice of each token.";
  if (isBack) {
    return (
      "Each number is back in its place, so a round trip finds no fault. " +
      "Yet the heads saw the wrong numbers: step back to see them."
    );
  }
  return "The shape is right and nothing raised an error, yet the tokens are mixed.";
}

/** The meaning of the two colours of a cell. @param {HTMLElement} node @param {State} state */
function drawKeys(node, { length, numHeads }) {
  if (node.dataset.sizes === `${length} ${numHeads}`) return;
  node.dataset.sizes = `${length} ${numHeads}`;
  const key = (/** @type {string} */ text, /** @type {string} */ color, /** @type {string} */ kind) => {
    const patch = element("i", { class: kind });
    patch.style.background = color;
    return element("span", {}, patch, text);
  };
  node.replaceChildren(
    ...Array.from({ length }, (_, token) => key(`token ${token}`, TOKEN_COLORS[token], "mha-fill")),
    ...Array.from({ length: numHeads }, (_, head) => key(`head ${head}`, headColor(head), "mha-stripe")),
  );
}

export default widget({ name: "reshape-stepper", label: "Reshape stepper" }, build);
