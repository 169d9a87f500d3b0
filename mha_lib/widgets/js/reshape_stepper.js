// Split and merge, one call after the other: which number goes where, on the right way and on the wrong ones.

import { element, mark, mount } from "./frame.js";
import { facts, segments, slider, stepper } from "./parts.js";

const RESHAPE_SETTINGS = ["split", "merge", "length", "num_heads", "step", "prediction"];
const RESHAPE_COUNT = 12;
const RESHAPE_LENGTHS = [2, 3, 4, 6];
// No colour of a head; white is readable on each.
const TOKEN_COLORS = ["#332288", "#117733", "#aa4499", "#7a5c00", "#00686e", "#882255"];

const RESHAPE_NAMES = {
  input: "one row a token",
  cut: "cut the last axis",
  heads: "one table a head",
  swapped: "swap back",
  merged: "heads side by side",
};

/**
 * Numbers as torch keeps them: a row of memory, a shape, and for each axis how far apart its entries lie.
 * @typedef {{memory: number[], shape: number[], strides: number[]}} Strided
 */

/**
 * @typedef {object} ReshapeStep
 * @property {keyof typeof RESHAPE_NAMES} kind
 * @property {string} code the call that leads here
 * @property {boolean} isCopy memory was written anew
 * @property {Strided} tensor
 */

/**
 * @param {number[]} shape
 * @returns {number[]} the strides of numbers that lie in reading order
 */
function contiguousStrides(shape) {
  return shape.map((_, axis) => shape.slice(axis + 1).reduce((product, size) => product * size, 1));
}

/**
 * @param {Strided} tensor
 * @param {number[]} place
 */
function memoryOffset({ strides }, place) {
  return place.reduce((sum, index, axis) => sum + index * strides[axis], 0);
}

/**
 * The place of the number that is read as number `index`, the last axis first.
 * @param {number[]} shape
 * @param {number} index
 */
function placeInShape(shape, index) {
  return contiguousStrides(shape).map((stride, axis) => Math.floor(index / stride) % shape[axis]);
}

/**
 * @param {Strided} tensor
 * @returns {number[]} its numbers in reading order
 */
function readStrided(tensor) {
  return tensor.memory.map((_, index) => tensor.memory[memoryOffset(tensor, placeInShape(tensor.shape, index))]);
}

/** @param {Strided} tensor @returns {Strided} the first two axes swapped: other strides over the same memory */
function swapFirstAxes({ memory, shape, strides }) {
  const swap = (/** @type {number[]} */ [first, second, ...rest]) => [second, first, ...rest];
  return { memory, shape: swap(shape), strides: swap(strides) };
}

/**
 * Strides that read the same memory in another shape, or null where none do: torch's own rule.
 * @param {Strided} tensor
 * @param {number[]} shape
 */
function stridesOfView({ shape: from, strides }, shape) {
  const found = shape.map(() => 0);
  let axis = shape.length - 1;
  let base = strides[strides.length - 1];
  let [size, filled] = [1, 1];
  for (let old = from.length - 1; old >= 0; old -= 1) {
    size *= from[old];
    // Axes that follow on each other in memory are one run; the new axes must fill each run exactly.
    const runGoesOn = old > 0 && (from[old - 1] === 1 || strides[old - 1] === size * base);
    if (runGoesOn) continue;
    for (; axis >= 0 && (filled < size || shape[axis] === 1); axis -= 1) {
      found[axis] = filled * base;
      filled *= shape[axis];
    }
    if (filled !== size) return null;
    if (old > 0) [base, size, filled] = [strides[old - 1], 1, 1];
  }
  return axis === -1 ? found : null;
}

/** @param {Strided} tensor @param {number[]} shape @returns {Strided} the same reading order in another shape */
function reshapeStrided(tensor, shape) {
  const strides = stridesOfView(tensor, shape);
  return strides ? { memory: tensor.memory, shape, strides } : { memory: readStrided(tensor), shape, strides: contiguousStrides(shape) };
}

/** @param {import("./frame.js").Frame} frame */
function readReshape(frame) {
  const length = frame.whole("length", 2, 6);
  if (!RESHAPE_LENGTHS.includes(length)) throw new RangeError(`length must be one of 2, 3, 4, 6, got ${length}`);
  const embedDim = RESHAPE_COUNT / length;
  const numHeads = frame.whole("num_heads", 1, 6);
  if (embedDim % numHeads !== 0) throw new RangeError(`num_heads must divide embed_dim=${embedDim}, got ${numHeads}`);
  const split = frame.choice("split", ["transpose", "view"]);
  const merge = frame.choice("merge", ["transpose", "reshape"]);
  const last = reshapeKinds(split, merge).length - 1;
  const step = frame.whole("step", 0, last);
  const prediction = frame.whole("prediction", -1, RESHAPE_COUNT - 1);
  return { length, embedDim, numHeads, headDim: embedDim / numHeads, split, merge, step, last, prediction };
}

/**
 * @param {string} split
 * @param {string} merge
 * @returns {(keyof typeof RESHAPE_NAMES)[]} what is there before the first call and after each
 */
function reshapeKinds(split, merge) {
  return [
    "input",
    ...(split === "transpose" ? /** @type {const} */ (["cut"]) : []),
    "heads",
    ...(merge === "transpose" ? /** @type {const} */ (["swapped"]) : []),
    "merged",
  ];
}

/**
 * @param {ReturnType<typeof readReshape>} state
 * @returns {ReshapeStep[]}
 */
function computeReshape({ length, embedDim, numHeads, headDim, split, merge }) {
  const memory = Array.from({ length: RESHAPE_COUNT }, (_, index) => index);
  let tensor = { memory, shape: [length, embedDim], strides: [embedDim, 1] };
  return reshapeKinds(split, merge).map((kind) => {
    const before = tensor;
    let code = "x";
    if (kind === "cut" || (kind === "heads" && split === "view")) {
      const shape = kind === "cut" ? [length, numHeads, headDim] : [numHeads, length, headDim];
      tensor = reshapeStrided(tensor, shape);
      code = `.view(${shape.join(", ")})`;
    } else if (kind === "heads" || kind === "swapped") {
      tensor = swapFirstAxes(tensor);
      code = ".transpose(0, 1)";
    } else if (kind === "merged") {
      tensor = reshapeStrided(tensor, [length, embedDim]);
      code = `.reshape(${length}, ${embedDim})`;
    }
    return { kind, code, tensor, isCopy: tensor.memory.some((number, offset) => number !== before.memory[offset]) };
  });
}

/**
 * Where a number belongs: its token, its head, its place in the head.
 * @param {ReturnType<typeof readReshape>} state
 * @param {number} number
 */
function ownerOf({ embedDim, headDim }, number) {
  const column = number % embedDim;
  return { token: Math.floor(number / embedDim), head: Math.floor(column / headDim), inner: column % headDim };
}

/**
 * The number that belongs to a place of a table.
 * @param {ReturnType<typeof readReshape>} state
 * @param {ReshapeStep["kind"]} kind
 * @param {number[]} place
 */
function ownedBy({ embedDim, headDim }, kind, place) {
  if (place.length === 2) return place[0] * embedDim + place[1];
  const [token, head] = kind === "heads" ? [place[1], place[0]] : place;
  return token * embedDim + head * headDim + place[2];
}

/**
 * The place that the reader is asked about before a step: one where the ways differ.
 * @param {ReturnType<typeof readReshape>} state
 * @param {ReshapeStep["kind"]} kind of what comes
 */
function askedPlace({ numHeads, headDim }, kind) {
  if (kind === "heads") return [0, 1, 0];
  if (kind === "merged") return numHeads > 1 ? [0, headDim] : [1, 0];
  return [1, 0, 0];
}

/**
 * Four numbers to choose from: the right one, what other ways would give, and neighbours.
 * @param {ReturnType<typeof readReshape>} state
 * @param {ReshapeStep} step
 * @param {number[]} place
 */
function answerChoices(state, { kind, tensor }, place) {
  const right = tensor.memory[memoryOffset(tensor, place)];
  const inReadingOrder = place.reduce((sum, index, axis) => sum + index * contiguousStrides(tensor.shape)[axis], 0);
  const candidates = [right, inReadingOrder, ownedBy(state, kind, place), state.headDim, state.embedDim, 1, 2, 3, 4];
  return [...new Set(candidates)].slice(0, 4).sort((a, b) => a - b);
}

/**
 * @param {ReshapeStep["kind"]} kind
 * @param {number[]} place
 */
function nameOfPlace(kind, [first, second, third]) {
  if (kind === "input" || kind === "merged") return `[token ${first}, ${second}]`;
  return kind === "heads" ? `[head ${first}, token ${second}, ${third}]` : `[token ${first}, head ${second}, ${third}]`;
}

/**
 * The tables of a step, made of the same twelve cells for all steps.
 * @param {import("./frame.js").Frame} frame
 * @param {(index: number | null) => void} onPoint
 */
function reshapeTables(frame, onPoint) {
  const cells = Array.from({ length: RESHAPE_COUNT }, (_, index) =>
    element("span", { role: "gridcell", class: "mha-cell", "data-number": "table", tabindex: index === 0 ? 0 : -1 }),
  );
  const node = element("div", { class: "mha-tables" });
  let current = 0;
  let columns = 1;
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
    if (event.ctrlKey || event.metaKey || event.altKey) return;
    /** @type {Object<string, number>} */
    const targets = {
      ArrowLeft: current - 1,
      ArrowRight: current + 1,
      ArrowUp: current - columns,
      ArrowDown: current + columns,
      Home: 0,
      End: RESHAPE_COUNT - 1,
    };
    if (!(event.key in targets)) return;
    event.preventDefault();
    cells[targets[event.key]]?.focus();
  });

  let built = "";
  /**
   * @param {ReturnType<typeof readReshape>} state
   * @param {ReshapeStep} step
   * @param {number[] | null} asked the place that the reader was asked about
   */
  function draw(state, { kind, tensor }, asked) {
    const shape = tensor.shape;
    const isFlat = shape.length === 2;
    const [blocks, rows] = isFlat ? [1, shape[0]] : shape;
    columns = shape[shape.length - 1];
    const key = `${kind} ${shape}`;
    if (key !== built) {
      const [outer, inner] = kind === "heads" ? ["head", "token"] : ["token", "head"];
      const rowName = isFlat ? "token" : inner;
      node.replaceChildren(
        ...Array.from({ length: blocks }, (_, block) => {
          const title = isFlat ? (kind === "input" ? "x" : "merged") : `${outer} ${block}`;
          const grid = element(
            "div",
            { role: "grid", "aria-label": title },
            ...Array.from({ length: rows }, (_, row) => {
              const first = (block * rows + row) * columns;
              const header = element("span", { role: "rowheader", text: `${rowName} ${row}` });
              return element("div", { role: "row" }, header, ...cells.slice(first, first + columns));
            }),
          );
          grid.style.setProperty("--columns", String(columns));
          return element("div", { class: "mha-table" }, element("p", { class: "mha-title", text: title }), grid);
        }),
      );
      // The tables of all steps get the room of the highest, so that nothing below them moves.
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
      const whose = `number ${number}, ${inner} of head ${head} of token ${token}`;
      const fault = number === right ? "" : `; wrong: ${right} belongs here`;
      cell.setAttribute("aria-label", `${nameOfPlace(kind, place)}: ${whose}${fault}`);
    });
  }
  return { node, cells, draw };
}

/**
 * A cell in two colours: the fill is that of the token, the bar that of the head.
 * @param {any} cell
 * @param {string} name
 * @param {number} number
 * @param {number} token
 * @param {number} head
 */
function paintNumber(cell, name, number, token, head) {
  mark(cell, name, number);
  cell.textContent = String(number);
  cell.style.setProperty("--token", TOKEN_COLORS[token]);
  cell.style.setProperty("--head", `var(--mha-head-${head})`);
}

/** @param {import("./frame.js").Frame} frame */
function build(frame) {
  // The step that means the same on the other way, or the nearest before it.
  const setWay = (/** @type {{split?: string, merge?: string}} */ change) => {
    const { split, merge, step } = readReshape(frame);
    const kind = reshapeKinds(split, merge)[step];
    const kinds = reshapeKinds(change.split ?? split, change.merge ?? merge);
    const same = kinds.indexOf(kind);
    frame.set({ ...change, step: same < 0 ? kinds.indexOf("heads") : same, prediction: -1 });
  };
  const length = slider(frame, "length", (value) => {
    const width = RESHAPE_COUNT / value;
    const fits = [6, 4, 3, 2, 1].find((n) => n <= frame.get("num_heads") && width % n === 0);
    frame.set({ length: value, num_heads: fits, prediction: -1 });
  });
  const heads = slider(frame, "num_heads", (value) => frame.set({ num_heads: value, prediction: -1 }));
  const split = segments(frame, "Split", [["transpose", "view, transpose"], ["view", "view only"]], (value) =>
    setWay({ split: value }),
  );
  const merge = segments(frame, "Merge", [["transpose", "transpose, reshape"], ["reshape", "reshape only"]], (value) =>
    setWay({ merge: value }),
  );
  // One stepper a way, as the ways have different steps; one of them is shown.
  const steppers = ["transpose", "view"].flatMap((s) =>
    ["transpose", "reshape"].map((m) => ({
      way: `${s} ${m}`,
      ...stepper(
        frame,
        reshapeKinds(s, m).map((kind) => RESHAPE_NAMES[kind]),
        (step) => frame.set({ step, prediction: -1 }),
      ),
    })),
  );
  const chain = element("p", { class: "mha-chain" });
  const question = element("p", {});
  const answers = Array.from({ length: 4 }, () => element("button", { type: "button" }));
  const choices = element("div", { class: "mha-answers" }, ...answers);
  const verdict = element("p", { class: "mha-verdict" });
  const ending = element("p", {});
  answers.forEach((button) =>
    frame.listen(button, "click", (event) => {
      // The second click of a double one would answer the next question.
      if (event.detail > 1) return;
      frame.set({ step: frame.get("step") + 1, prediction: Number(button.textContent) });
    }),
  );

  const memory = Array.from({ length: RESHAPE_COUNT }, () => element("span", { class: "mha-cell" }));
  const strip = element("div", { class: "mha-memory", role: "img" }, ...memory);
  const readout = element("p", { class: "mha-readout" });
  const tables = reshapeTables(frame, (index) => showPlace(index));
  const sizes = facts(["shape", "strides", "misplaced"]);
  const keys = element("div", { class: "mha-keys" });
  frame.body.append(
    element(
      "div",
      { class: "mha-controls" },
      length.node,
      heads.node,
      element("div", { class: "mha-choices" }, split.node, merge.node),
    ),
    ...steppers.map(({ node }) => node),
    chain,
    element(
      "div",
      { class: "mha-sight" },
      element("div", { class: "mha-predict" }, verdict, question, choices, ending),
      element("div", {}, tables.node, keys),
    ),
    readout,
    element("p", { class: "mha-title", text: "The same numbers in memory" }),
    strip,
    sizes.node,
  );

  let drawn = /** @type {{state: ReturnType<typeof readReshape>, step: ReshapeStep} | null} */ (null);
  let news = "";

  /** @param {number | null} index of the cell that is pointed at or has the focus */
  function showPlace(index) {
    if (!drawn) return;
    const { tensor } = drawn.step;
    const offset = index === null ? -1 : memoryOffset(tensor, placeInShape(tensor.shape, index));
    memory.forEach((cell, at) => cell.classList.toggle("mha-now", at === offset));
    readout.classList.toggle("mha-hint", index === null);
    readout.textContent =
      index === null
        ? "Point at a number, or walk through the tables with the arrow keys: whose it is, and where it lies in memory."
        : `${tables.cells[index].getAttribute("aria-label")}; at offset ${offset} in memory`;
  }

  /**
   * @param {ReturnType<typeof readReshape>} state
   * @param {ReshapeStep[]} steps
   */
  function drawQuestion(state, steps) {
    const { step, last, prediction } = state;
    const isLast = step === last;
    if (!isLast) {
      const next = steps[step + 1];
      const place = askedPlace(state, next.kind);
      question.replaceChildren(
        `Predict: which number will stand at ${nameOfPlace(next.kind, place)} after `,
        element("code", { text: next.code }),
        "?",
      );
      answerChoices(state, next, place).forEach((number, index) => (answers[index].textContent = String(number)));
    }
    const focused = /** @type {Document} */ (choices.getRootNode()).activeElement;
    question.hidden = choices.hidden = isLast;
    // The focus must not fall out of the widget with the last answer.
    if (isLast && answers.includes(focused)) {
      for (const { node } of steppers) if (!node.hidden) node.querySelector("[aria-current]")?.focus();
    }

    let text = "";
    let isRight = true;
    if (prediction >= 0 && step > 0) {
      const { kind, tensor, isCopy } = steps[step];
      const place = askedPlace(state, kind);
      const offset = memoryOffset(tensor, place);
      const number = tensor.memory[offset];
      isRight = number === prediction;
      const sum = place.map((index, axis) => `${index}·${tensor.strides[axis]}`).join(" + ");
      const reason = isCopy
        ? `Reshape read the table before row by row and wrote a copy: this is its number ${offset}, counted from 0.`
        : `Its offset is ${sum} = ${offset}.`;
      text = `${isRight ? "✓ Right:" : `✗ Not ${prediction}:`} ${number} stands at ${nameOfPlace(kind, place)}. ${reason}`;
    }
    verdict.textContent = text;
    ending.textContent = isLast ? describeEnd(state, steps) : "";
    ending.hidden = !isLast;
    verdict.classList.toggle("mha-missed", !isRight);
  }

  return () => {
    const state = readReshape(frame);
    const steps = computeReshape(state);
    const step = steps[state.step];
    drawn = { state, step };
    length.draw(state.length, { stops: RESHAPE_LENGTHS, text: `${state.length} × ${state.embedDim}`, said: `${state.length} tokens of width ${state.embedDim}` });
    const stops = [1, 2, 3, 4, 6].filter((n) => state.embedDim % n === 0);
    heads.draw(state.numHeads, { stops, said: `${state.numHeads} heads of width ${state.headDim}` });
    split.draw(state.split);
    merge.draw(state.merge);
    for (const { way, node, draw } of steppers) {
      node.hidden = way !== `${state.split} ${state.merge}`;
      if (!node.hidden) draw(state.step);
    }
    while (chain.children.length > steps.length) chain.lastElementChild.remove();
    while (chain.children.length < steps.length) chain.append(element("code"));
    steps.forEach(({ code }, index) => {
      const part = chain.children[index];
      part.textContent = code;
      part.classList.toggle("mha-now", index === state.step);
      part.classList.toggle("mha-later", index > state.step);
    });
    drawQuestion(state, steps);
    const wasAnswered = state.prediction >= 0 && state.step > 0;
    tables.draw(state, step, wasAnswered ? askedPlace(state, step.kind) : null);
    drawKeys(keys, state);

    step.tensor.memory.forEach((number, offset) => {
      const { token, head } = ownerOf(state, number);
      paintNumber(memory[offset], "memory", number, token, head);
    });
    strip.setAttribute("aria-label", `In memory, from offset 0: ${step.tensor.memory.join(", ")}`);
    const table = readStrided(step.tensor);
    const misplaced = table.filter(
      (number, index) => number !== ownedBy(state, step.kind, placeInShape(step.tensor.shape, index)),
    ).length;
    const change = step.isCopy ? "a copy: memory was written anew" : "memory as at the start";
    sizes.draw([
      { text: `(${step.tensor.shape.join(", ")})`, hint: axesOf(step.kind) },
      { text: `(${step.tensor.strides.join(", ")})`, hint: change, number: step.tensor.strides },
      { text: `${misplaced} of ${RESHAPE_COUNT}`, hint: misplaced ? "dashed: of another token or head" : "all where they belong", number: misplaced },
    ]);
    showPlace(null);

    const told = `Step ${state.step + 1} of ${steps.length}: ${RESHAPE_NAMES[step.kind]}, shape ${step.tensor.shape.join(" by ")}. ${misplaced} of 12 numbers are misplaced. ${verdict.textContent} ${ending.textContent}`.trim();
    if (news && news !== told) frame.say(told);
    news = told;
    frame.report(() => ({ table: nestNumbers(table, step.tensor.shape), memory: step.tensor.memory, strides: step.tensor.strides, misplaced }));
  };
}

/** @param {ReshapeStep["kind"]} kind */
function axesOf(kind) {
  if (kind === "heads") return "num_heads, len, head_dim";
  return kind === "cut" || kind === "swapped" ? "len, num_heads, head_dim" : "len, embed_dim";
}

/**
 * @param {ReturnType<typeof readReshape>} state
 * @param {ReshapeStep[]} steps
 */
function describeEnd(state, steps) {
  const end = steps[state.last].tensor;
  const isBack = end.memory.every((number, offset) => number === offset);
  const heads = steps.find(({ kind }) => kind === "heads");
  const sawRight =
    heads !== undefined &&
    readStrided(heads.tensor).every(
      (number, index) => number === ownedBy(state, "heads", placeInShape(heads.tensor.shape, index)),
    );
  if (isBack && sawRight) return "Each number is back at its place, and each head saw its slice of every token.";
  if (isBack) return "Each number is back: a round trip finds nothing. Yet the heads saw the wrong numbers; step back to them.";
  return "The shape is right, no error was raised, and tokens are mixed.";
}

/**
 * What the two colours of a cell mean.
 * @param {HTMLElement} node
 * @param {ReturnType<typeof readReshape>} state
 */
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
    ...Array.from({ length: numHeads }, (_, head) => key(`head ${head}`, `var(--mha-head-${head})`, "mha-stripe")),
  );
}

/**
 * @param {number[]} numbers in reading order
 * @param {number[]} shape
 * @returns {any}
 */
function nestNumbers(numbers, [size, ...rest]) {
  const each = numbers.length / size;
  if (rest.length === 0) return numbers;
  return Array.from({ length: size }, (_, index) => nestNumbers(numbers.slice(index * each, (index + 1) * each), rest));
}

/** @param {import("./frame.js").Frame} frame */
function reshapePython(frame) {
  const state = readReshape(frame);
  const { length, embedDim, numHeads, step, split, merge } = state;
  const steps = computeReshape(state).slice(0, step + 1);
  const lines = steps.slice(1).map(({ code }) => `table = table${code}\n`);
  const isHeads = steps[step].kind === "heads";
  return `import torch

from mha_lib import MultiHeadAttention

x = torch.arange(12).view(${length}, ${embedDim})  # one row a token
# Split: ${split === "transpose" ? "cut the last axis, then swap" : "view only"}. Merge: ${merge === "transpose" ? "swap back, then join" : "reshape only"}.
table = x
${lines.join("")}
memory = table.as_strided((12,), (1,))  # as it lies in memory
strides = torch.tensor(table.stride())

# The library's own split says which number belongs where.
heads = MultiHeadAttention(${embedDim}, ${numHeads}).split_heads(x.unsqueeze(0))[0]
belongs = ${isHeads ? "heads" : "heads.transpose(0, 1)"}.reshape(table.shape)
misplaced = (table != belongs).sum()
print(table, memory, strides, misplaced, sep="\\n")
`;
}

export default {
  /** @param {{model: import("./frame.js").Model, el: HTMLElement}} view */
  render: (view) =>
    mount(
      view,
      { name: "reshape-stepper", label: "Reshape stepper", settings: RESHAPE_SETTINGS, python: reshapePython },
      build,
    ),
};
