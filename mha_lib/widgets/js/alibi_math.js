// ALiBi, in float64: the same rules as mha_lib.positional.

import { causalMask, maskedSoftmax } from "./attention_math.js";

/** @typedef {import("./attention_math.js").Matrix} Matrix */

/**
 * The slope of each head's penalty on distance. If the number of heads h is a power of two, the slopes are
 * 2^(-8/h), 2^(-16/h), …. Otherwise the first slopes are those of the next lower power of two, and the
 * remaining ones are every other slope of the next higher power.
 * @param {number} numHeads
 * @returns {number[]}
 */
export function alibiSlopes(numHeads) {
  const power = 2 ** Math.floor(Math.log2(numHeads));
  return Array.from({ length: numHeads }, (_, head) =>
    head < power ? 2 ** ((-8 * (head + 1)) / power) : 2 ** ((-8 * (2 * (head - power) + 1)) / (2 * power)),
  );
}

/**
 * The bias that is added to the scores of one head: -slope · distance.
 * @param {number} slope
 * @param {number} length number of queries and of keys
 * @returns {Matrix}
 */
export function alibiBias(slope, length) {
  return Array.from({ length }, (_, query) => Float64Array.from({ length }, (_, key) => -slope * Math.abs(query - key)));
}

/**
 * @param {{numHeads: number, length: number, isCausal: boolean, shown: string}} state
 */
export function computeAlibi({ numHeads, length, isCausal, shown }) {
  const slopes = alibiSlopes(numHeads);
  const mask = isCausal ? causalMask(length) : undefined;
  // The softmax of the bias alone gives the weights for scores that are all equal.
  const tables = slopes.map((slope) => {
    const bias = alibiBias(slope, length);
    return shown === "bias" ? bias : maskedSoftmax(bias, mask);
  });
  return {
    slopes,
    mask,
    // torch keeps the slopes in float32.
    half_distances: slopes.map((slope) => Math.LN2 / Math.fround(slope)),
    tables,
    // The last query sees every key with or without the mask, so its row is the curve over distance.
    by_distance: tables.map((table) => Float64Array.from(table[length - 1]).reverse()),
  };
}
