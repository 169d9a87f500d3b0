// A mask, three policies for a query that sees no keys, and their effect on a training step. Pure functions, no
// DOM.

import { causalMask, combineMasks, maskScores, maskedSoftmax, validLenMask, weightedSum } from "../shared/attention_math.js";

/** @typedef {import("../shared/attention_math.js").Matrix} Matrix */

const MASK_LEARNING_RATE = 0.1;

/** Softmax without a guard: a row of -Infinity becomes NaN. @param {Matrix} scores @returns {Matrix} */
export function plainSoftmax(scores) {
  return scores.map((row) => {
    const highest = Math.max(...row);
    const exponentials = row.map((score) => Math.exp(score - highest));
    const total = exponentials.reduce((sum, number) => sum + number, 0);
    return exponentials.map((number) => number / total);
  });
}

/**
 * Replaces hidden scores with `fill`.
 * @param {Matrix} scores @param {import("../shared/attention_math.js").Mask} mask @param {number} fill
 * @returns {Matrix}
 */
export function fillScores(scores, mask, fill) {
  return scores.map((row, query) => row.map((score, key) => (mask[query][key] ? score : fill)));
}

/**
 * The change in the value matrix W in one step of gradient descent, if W is the identity and the loss is
 * the sum of the squared outputs. With the outputs as rows of a matrix B, the gradient is 2 Bᵀ B.
 * @param {Matrix} outputs of the queries that take part, before the step
 * @param {number} valueDim @returns {Matrix} (value_dim, value_dim)
 */
export function trainingStep(outputs, valueDim) {
  return Array.from({ length: valueDim }, (_, i) =>
    Float64Array.from({ length: valueDim }, (_, j) =>
      outputs.reduce((sum, row) => sum - 2 * MASK_LEARNING_RATE * row[i] * row[j], 0),
    ),
  );
}

/**
 * The training step under one policy, in two parts, because the loss is a sum over queries and so is its gradient.
 * @param {Matrix} outputs of all queries, before the step
 * @param {number[]} empty the queries that see no keys
 */
function stepParts(outputs, empty) {
  const valueDim = outputs[0].length;
  const isEmpty = (/** @type {number} */ query) => empty.includes(query);
  const seeing = trainingStep(outputs.filter((_, query) => !isEmpty(query)), valueDim);
  const ofEmpty = trainingStep(outputs.filter((_, query) => isEmpty(query)), valueDim);
  const after = seeing.map((row, i) => row.map((number, j) => number + ofEmpty[i][j] + Number(i === j)));
  return { seeing, ofEmpty, after };
}

/**
 * @param {{scores: Matrix, value: Matrix, qLen: number, kLen: number, painted: boolean[][], validLen: number,
 *   isCausal: boolean, isTrained: boolean, policy: string}} state
 */
export function computeMask({ scores, value, qLen, kLen, painted, validLen, isCausal, isTrained, policy }) {
  const padding = validLenMask(validLen, qLen, kLen);
  // Without a causal mask, the padding mask takes its place and hides nothing more.
  const causal = isCausal ? causalMask(qLen, kLen) : padding;
  const mask = combineMasks([painted, padding, causal]);
  const weights =
    policy === "zeros"
      ? maskedSoftmax(scores, mask)
      : plainSoftmax(fillScores(scores, mask, policy === "nan" ? -Infinity : -Number.MAX_VALUE));
  const empty = Array.from(mask.keys()).filter((query) => !mask[query].includes(true));
  const untrained = weightedSum(weights, value);
  const step = stepParts(untrained, empty);
  const identity = step.after.map((row, i) => row.map((_, j) => Number(i === j)));
  const projection = isTrained ? step.after : identity;
  return {
    padding,
    causal,
    mask,
    empty,
    scores: maskScores(scores, mask),
    weights,
    identity,
    step,
    projection,
    output: weightedSum(untrained, projection),
  };
}
