// A mask, and three policies for a query that sees no key. Pure functions, no DOM.

import { causalMask, combineMasks, maskedSoftmax, validLenMask, weightedSum } from "./attention_math.js";

/** @typedef {import("./attention_math.js").Matrix} Matrix */

/**
 * The softmax formula without a guard: a row of -Infinity becomes NaN.
 * @param {Matrix} scores
 * @returns {Matrix}
 */
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
 * @param {Matrix} scores
 * @param {import("./attention_math.js").Mask} mask
 * @param {number} fill
 * @returns {Matrix}
 */
export function fillScores(scores, mask, fill) {
  return scores.map((row, query) => row.map((score, key) => (mask[query][key] ? score : fill)));
}

/**
 * @param {{scores: Matrix, value: Matrix, qLen: number, kLen: number, painted: boolean[][], validLen: number,
 *   isCausal: boolean}} state
 */
export function computeMask({ scores, value, qLen, kLen, painted, validLen, isCausal }) {
  const padding = validLenMask(validLen, qLen, kLen);
  // Without the causal mask, the padding mask stands in for it and hides nothing more.
  const causal = isCausal ? causalMask(qLen, kLen) : padding;
  const mask = combineMasks([painted, padding, causal]);
  /** @type {Object<string, Matrix>} */
  const weights = {
    zeros: maskedSoftmax(scores, mask),
    nan: plainSoftmax(fillScores(scores, mask, -Infinity)),
    uniform: plainSoftmax(fillScores(scores, mask, -Number.MAX_VALUE)),
  };
  /** @type {Object<string, Matrix>} */
  const output = Object.fromEntries(Object.keys(weights).map((name) => [name, weightedSum(weights[name], value)]));
  const nanRows = output.nan.map((row) => Number(row.some(Number.isNaN)));
  const bits = mask.map((row) => Float64Array.from(row, Number));
  const empty = Array.from(mask.keys()).filter((query) => !mask[query].includes(true));
  return { padding, causal, mask, bits, weights, output, nanRows, empty };
}
