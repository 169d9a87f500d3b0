// What the head explorer shows: every stage of attention for all heads, and how much two heads differ.

import {
  causalMask,
  combineMasks,
  maskScores,
  maskedSoftmax,
  matrixFromFloat32,
  scaledDotProductScore,
  splitHeads,
  validLenMask,
  weightedSum,
  zeroMatrix,
} from "./attention_math.js";
import { extentOf } from "./colors.js";

/** @typedef {import("./attention_math.js").Matrix} Matrix */
/** @typedef {import("./attention_math.js").Mask} Mask */
/** @typedef {"scores" | "masked" | "weights" | "output"} Stage */

/**
 * The projections of a layer, float32 in base64, and the numbers of heads into which they may be divided.
 * @typedef {{num_heads: number[], parameters: number, query: string, key: string, value: string}} Projections
 */

/**
 * One example, as torch stored it. `versions` has a single entry if one layer serves every number of heads,
 * or one entry per number of heads if a layer was trained for each.
 * @typedef {object} Example
 * @property {string} label
 * @property {string} note
 * @property {string[]} tokens
 * @property {number} embed_dim
 * @property {Projections[]} versions
 */

/**
 * @typedef {{example: Example, version: Projections, numHeads: number, validLen: number, isCausal: boolean,
 *   stage: Stage, head: number, other: number}} HeadInputs
 */

/** @param {Example} example */
export function headCounts(example) {
  return example.versions.flatMap((version) => version.num_heads).sort((a, b) => a - b);
}

/**
 * The two heads that are chosen when there are `numHeads`: the same or the nearest ones, and if possible not
 * one head twice.
 * @param {number} numHeads
 * @param {number} head
 * @param {number} other
 */
export function fitHeads(numHeads, head, other) {
  const first = Math.min(head, numHeads - 1);
  const second = Math.min(other, numHeads - 1);
  return { num_heads: numHeads, head: first, other: second === first && numHeads > 1 ? Number(first === 0) : second };
}

/**
 * Returns `compute` with a memory of its last call, so that a change of one setting recomputes only the
 * stages that depend on it.
 * @template {any[]} Inputs
 * @template Result
 * @param {(...inputs: Inputs) => Result} compute
 * @returns {(...inputs: Inputs) => Result}
 */
function remember(compute) {
  /** @type {{inputs: Inputs, result: Result} | null} */
  let last = null;
  return (...inputs) => {
    if (!last || inputs.some((input, index) => input !== last?.inputs[index])) last = { inputs, result: compute(...inputs) };
    return last.result;
  };
}

/** Returns a function that computes one stage of the layer for all heads and reuses what has not changed. */
export function headComputer() {
  const project = remember((/** @type {Projections} */ { query, key, value }, /** @type {number} */ embedDim) =>
    [query, key, value].map((stored) => matrixFromFloat32(stored, embedDim)),
  );
  const split = remember((/** @type {Matrix[]} */ projected, /** @type {number} */ numHeads) =>
    projected.map((matrix) => splitHeads(matrix, numHeads)),
  );
  const score = remember((/** @type {Matrix[][]} */ [queries, keys]) =>
    queries.map((query, head) => scaledDotProductScore(query, keys[head])),
  );
  const buildCausalMask = remember((/** @type {number} */ length) => causalMask(length));
  const buildMask = remember((/** @type {number} */ length, /** @type {number} */ validLen, /** @type {boolean} */ isCausal) => {
    const visible = validLenMask(validLen, length, length);
    return isCausal ? combineMasks([visible, buildCausalMask(length)]) : visible;
  });
  const hide = remember((/** @type {Matrix[]} */ scores, /** @type {Mask} */ mask) =>
    scores.map((matrix) => maskScores(matrix, mask)),
  );
  const soften = remember((/** @type {Matrix[]} */ scores, /** @type {Mask} */ mask) =>
    scores.map((matrix) => maskedSoftmax(matrix, mask)),
  );
  const pool = remember((/** @type {Matrix[]} */ weights, /** @type {Matrix[]} */ values) =>
    weights.map((matrix, head) => weightedSum(matrix, values[head])),
  );
  const measure = remember((/** @type {Matrix[]} */ maps, /** @type {boolean} */ fromZero) => extentOf(maps, fromZero));
  const subtract = remember(differenceOf);

  /** @param {HeadInputs} state */
  return ({ example, version, numHeads, validLen, isCausal, stage, head, other }) => {
    const heads = split(project(version, example.embed_dim), numHeads);
    const scores = score(heads);
    const mask = buildMask(example.tokens.length, validLen, isCausal);
    const weights = () => soften(scores, mask);
    const stages = { scores: () => scores, masked: () => hide(scores, mask), weights, output: () => pool(weights(), heads[2]) };
    const maps = stages[stage]();
    const difference = () => subtract(maps[head], maps[other]);
    return { maps, mask, extent: measure(maps, stage === "weights"), difference };
  };
}

/**
 * @param {Matrix} a
 * @param {Matrix} b of the same shape, with -Infinity at the same places
 * @returns {{table: Matrix, largest: number, mean: number}} |a − b|, and the largest and the mean of its
 *   finite entries
 */
function differenceOf(a, b) {
  const table = zeroMatrix(a.length, a[0].length);
  let [largest, sum, count] = [0, 0, 0];
  a.forEach((row, y) => {
    for (let x = 0; x < row.length; x++) {
      const apart = row[x] === -Infinity ? -Infinity : Math.abs(row[x] - b[y][x]);
      table[y][x] = apart;
      if (apart === -Infinity) continue;
      largest = Math.max(largest, apart);
      sum += apart;
      count += 1;
    }
  });
  return { table, largest, mean: count ? sum / count : 0 };
}
