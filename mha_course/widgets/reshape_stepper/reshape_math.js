// How torch reshapes numbers into heads and back, in memory and in tables. Pure functions, no DOM.

/** @typedef {"input" | "cut" | "heads" | "swapped" | "merged"} ReshapeKind the kind of a table */

/**
 * @typedef {{length: number, embedDim: number, numHeads: number, headDim: number, split: string, merge: string}}
 *   ReshapeState
 */

export const COUNT = 12; // the number of entries, whatever the shape

/**
 * A tensor as torch stores it: a row of memory, a shape, and for each axis the distance between its entries.
 * @typedef {{memory: number[], shape: number[], strides: number[]}} Strided
 */

/**
 * @typedef {object} ReshapeStep
 * @property {ReshapeKind} kind
 * @property {string} code the call that makes this table
 * @property {boolean} isCopy whether the call wrote a copy to new memory
 * @property {Strided} tensor
 */

/** @param {number[]} shape @returns {number[]} the strides of numbers that are in memory in reading order */
function contiguousStrides(shape) {
  return shape.map((_, axis) => shape.slice(axis + 1).reduce((product, size) => product * size, 1));
}

/** @param {Strided} tensor @param {number[]} place */
export function memoryOffset({ strides }, place) {
  return place.reduce((sum, index, axis) => sum + index * strides[axis], 0);
}

/**
 * The position of number `index` in reading order, in which the last axis changes fastest.
 * @param {number[]} shape @param {number} index
 */
export function placeInShape(shape, index) {
  return contiguousStrides(shape).map((stride, axis) => Math.floor(index / stride) % shape[axis]);
}

/** @param {Strided} tensor @returns {number[]} its numbers in reading order */
export function readStrided(tensor) {
  return tensor.memory.map((_, index) => tensor.memory[memoryOffset(tensor, placeInShape(tensor.shape, index))]);
}

/** @param {Strided} tensor @returns {Strided} its first two axes swapped: new strides, the same memory */
function swapFirstAxes({ memory, shape, strides }) {
  const swap = (/** @type {number[]} */ [first, second, ...rest]) => [second, first, ...rest];
  return { memory, shape: swap(shape), strides: swap(strides) };
}

/**
 * The strides that read the same memory in a new shape, or null if there are none, by torch's rule.
 * @param {Strided} tensor @param {number[]} shape
 */
function stridesOfView({ shape: from, strides }, shape) {
  const found = shape.map(() => 0);
  let axis = shape.length - 1;
  let base = strides[strides.length - 1];
  let [size, filled] = [1, 1];
  for (let old = from.length - 1; old >= 0; old -= 1) {
    size *= from[old];
    // Axes that follow one another in memory form a run; the new axes must fill each run exactly.
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

/**
 * @param {Strided} tensor @param {number[]} shape
 * @returns {Strided} the same numbers in the same reading order in the new shape, copied if no strides fit
 */
function reshapeStrided(tensor, shape) {
  const strides = stridesOfView(tensor, shape);
  if (strides) return { memory: tensor.memory, shape, strides };
  return { memory: readStrided(tensor), shape, strides: contiguousStrides(shape) };
}

/**
 * @param {string} split @param {string} merge
 * @returns {(ReshapeKind)[]} the tables before the first call and after each call
 */
export function reshapeKinds(split, merge) {
  return [
    "input",
    ...(split === "transpose" ? /** @type {const} */ (["cut"]) : []),
    "heads",
    ...(merge === "transpose" ? /** @type {const} */ (["swapped"]) : []),
    "merged",
  ];
}

/** @param {ReshapeState} state @returns {ReshapeStep[]} the tables of all steps */
export function computeReshape({ length, embedDim, numHeads, headDim, split, merge }) {
  const memory = Array.from({ length: COUNT }, (_, index) => index);
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
 * Where a number belongs: its token, its head and its index in the head.
 * @param {ReshapeState} state @param {number} number
 */
export function ownerOf({ embedDim, headDim }, number) {
  const column = number % embedDim;
  return { token: Math.floor(number / embedDim), head: Math.floor(column / headDim), inner: column % headDim };
}

/**
 * The number that belongs at a position of a table.
 * @param {ReshapeState} state @param {ReshapeKind} kind @param {number[]} place
 */
export function ownedBy({ embedDim, headDim }, kind, place) {
  if (place.length === 2) return place[0] * embedDim + place[1];
  const [token, head] = kind === "heads" ? [place[1], place[0]] : place;
  return token * embedDim + head * headDim + place[2];
}

/**
 * The position that the reader is asked about before a step. Correct and wrong calls differ there, and with the
 * default sizes each question has a different answer, so repeating the last number does not help.
 * @param {ReshapeState} state @param {ReshapeKind} kind of the table that the step makes
 */
export function askedPlace({ length, numHeads, headDim }, kind) {
  if (kind === "cut") return numHeads > 1 ? [0, 1, 0] : [0, 0, 1];
  if (kind === "heads") return [0, 1, 0];
  return kind === "swapped" ? [1, numHeads - 1, headDim - 1] : [length - 1, 0];
}

/**
 * Four numbers to choose from: the correct one, those that other calls would give, and small numbers.
 * @param {ReshapeState} state @param {ReshapeStep} step @param {number[]} place
 */
export function answerChoices(state, { kind, tensor }, place) {
  const right = tensor.memory[memoryOffset(tensor, place)];
  const inReadingOrder = place.reduce((sum, index, axis) => sum + index * contiguousStrides(tensor.shape)[axis], 0);
  const candidates = [right, inReadingOrder, ownedBy(state, kind, place), state.headDim, state.embedDim, 1, 2, 3, 4];
  return [...new Set(candidates)].slice(0, 4).sort((a, b) => a - b);
}

/**
 * @param {number[]} numbers in reading order
 * @param {number[]} shape @returns {any}
 */
export function nestNumbers(numbers, [size, ...rest]) {
  const each = numbers.length / size;
  if (rest.length === 0) return numbers;
  return Array.from({ length: size }, (_, index) => nestNumbers(numbers.slice(index * each, (index + 1) * each), rest));
}

/** The number of misplaced numbers. @param {ReshapeState} state @param {ReshapeStep} step */
export function countMisplaced(state, { kind, tensor }) {
  const isWrong = (/** @type {number} */ number, /** @type {number} */ index) =>
    number !== ownedBy(state, kind, placeInShape(tensor.shape, index));
  return readStrided(tensor).filter(isWrong).length;
}

/**
 * The correct answers to a question: the number at the position in question, and its offset in memory.
 * @param {ReshapeState} state @param {ReshapeStep} step
 */
export function outcomeOf(state, { kind, tensor }) {
  const place = askedPlace(state, kind);
  const offset = memoryOffset(tensor, place);
  return { place, offset, number: tensor.memory[offset] };
}
