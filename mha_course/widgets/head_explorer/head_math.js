// The numbers of the head explorer: every stage of attention for all heads, and how much two heads differ.

import {
  causalMask,
  combineMasks,
  maskScores,
  maskedSoftmax,
  matrixFromFloat32,
  mergeHeads,
  numbersFromFloat32,
  scaledDotProductScore,
  splitHeads,
  validLenMask,
  weightedSum,
  zeroMatrix,
} from "../shared/attention_math.js";
import { extentOf } from "../shared/colors.js";

/** @typedef {import("../shared/attention_math.js").Matrix} Matrix */
/** @typedef {import("../shared/attention_math.js").Mask} Mask */
/** @typedef {"scores" | "masked" | "weights" | "output"} Stage */

/**
 * The projections of a layer, float32 in base64, and the numbers of heads into which they may be divided. For
 * each number of heads, `orders` lists the heads, the sharpest first. A stored model has a name, (experiment,
 * arm, seed). If it answers questions, it also has the share of right answers on new data and the map from its
 * heads to the logits.
 * @typedef {{num_heads: number[], orders: number[][], parameters: number, query: string, key: string,
 *   value: string, model?: [string, string, number], share?: number, read_out?: string,
 *   read_out_bias?: string}} Projections
 */

/**
 * The tasks of stored models: the names of their answers at a position, the texts of all tokens, and the right
 * answers, [task][position], -1 if there is no question.
 * @typedef {{names: string[], words: string[], targets: number[][], measure: string}} Task
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
 * @property {number[]} [ids] of the tokens, and whether their positions were added, if the model is stored
 * @property {boolean} [positions]
 * @property {Task} [task]
 */

/**
 * @typedef {{example: Example, version: Projections, numHeads: number, validLen: number, isCausal: boolean,
 *   stage: Stage, head: number, other: number}} HeadInputs
 */

/** @param {Example} example */
export function headCounts(example) {
  return example.versions.flatMap((version) => version.num_heads).sort((a, b) => a - b);
}

/** @param {Example} example @param {number} numHeads @returns {number[]} the heads, the sharpest first */
export function headOrder(example, numHeads) {
  const version = example.versions.find((candidate) => candidate.num_heads.includes(numHeads));
  return version?.orders[version.num_heads.indexOf(numHeads)] ?? [];
}

/**
 * The settings after a change of the number of heads: the two sharpest heads are shown. The old heads cannot be
 * kept, because heads of two layers have nothing in common but their index.
 * @param {Example} example @param {number} numHeads
 */
export function fitHeads(example, numHeads) {
  const [head, other = head] = headOrder(example, numHeads);
  return { num_heads: numHeads, head, other };
}

/** @param {Task} task */
export function askedPlaces({ targets }) {
  return targets[0].map((_, place) => place).filter((place) => targets.some((row) => row[place] >= 0));
}

/**
 * The answers of the model at the positions where it is asked, from the outputs of its heads.
 * @param {Projections} version @param {Task} task @param {Matrix[]} outputs of the heads
 * @returns {number[][]} the tokens, [task][asked position]
 */
function answersOf(version, task, outputs) {
  const merged = mergeHeads(outputs);
  const logits = task.names.length * task.words.length;
  const readOut = matrixFromFloat32(version.read_out ?? "", merged[0].length, "read_out", logits);
  const bias = numbersFromFloat32(version.read_out_bias ?? "", "read_out_bias", logits);
  return task.names.map((_, index) =>
    askedPlaces(task).map((place) => {
      let [best, answer] = [-Infinity, 0];
      for (let word = 0; word < task.words.length; word++) {
        const row = index * task.words.length + word;
        const logit = readOut[row].reduce((sum, weight, i) => sum + weight * merged[place][i], bias[row]);
        if (logit > best) [best, answer] = [logit, word];
      }
      return answer;
    }),
  );
}

/**
 * Returns `compute` with a cache of its last result, so that a change of one setting recomputes only the stages
 * that depend on it.
 * @template {any[]} Inputs
 * @template Result
 * @param {(...inputs: Inputs) => Result} compute @returns {(...inputs: Inputs) => Result}
 */
function remember(compute) {
  /** @type {{inputs: Inputs, result: Result} | null} */
  let last = null;
  return (...inputs) => {
    if (!last || inputs.some((input, index) => input !== last?.inputs[index])) last = { inputs, result: compute(...inputs) };
    return last.result;
  };
}

/** Returns a function that computes one stage of the layer for all heads and reuses unchanged results. */
export function headComputer() {
  const project = remember((/** @type {Projections} */ { query, key, value }, /** @type {Example} */ example) =>
    Object.entries({ query, key, value }).map(([name, stored]) =>
      matrixFromFloat32(stored, example.embed_dim, name, example.tokens.length),
    ),
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
  const answer = remember(answersOf);
  const measure = remember((/** @type {Matrix[]} */ maps, /** @type {boolean} */ fromZero) => extentOf(maps, fromZero));
  const subtract = remember(differenceOf);

  /** @param {HeadInputs} state */
  return ({ example, version, numHeads, validLen, isCausal, stage, head, other }) => {
    const heads = split(project(version, example), numHeads);
    const scores = score(heads);
    const mask = buildMask(example.tokens.length, validLen, isCausal);
    const weights = () => soften(scores, mask);
    const stages = { scores: () => scores, masked: () => hide(scores, mask), weights, output: () => pool(weights(), heads[2]) };
    const maps = stages[stage]();
    const difference = () => subtract(maps[head], maps[other]);
    const answers = example.task ? answer(version, example.task, pool(weights(), heads[2])) : null;
    return { maps, mask, extent: measure(maps, stage === "weights"), difference, answers };
  };
}

/**
 * @param {Matrix} a @param {Matrix} b of the same shape, with -Infinity at the same places
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
