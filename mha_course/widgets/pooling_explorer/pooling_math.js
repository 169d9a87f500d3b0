// Kernel regression as attention, in float64: a kernel K gives the scores log K, and K = 0 hides the key.

import { attentionPooling } from "../shared/attention_math.js";

/** @typedef {import("../shared/attention_math.js").Matrix} Matrix */

/**
 * @typedef {object} PoolingState
 * @property {[number, number]} keyRange
 * @property {[number, number]} valueRange
 * @property {number[]} truth the true curve at the points of the grid, or empty
 * @property {number[]} keys
 * @property {number[]} values
 * @property {string} kernel
 * @property {number} bandwidth
 * @property {number} query
 * @property {number} pair
 */

export const GRID = 101; // the number of points at which the fit is computed

// Rounding must not decide whether a key that is exactly one bandwidth away counts. In float64, (2 - 1.7) / 0.3
// is above 1, and (2 - 2.3) / 0.3 is above -1, although both keys are 0.3 away.
const EDGE_ROUNDING = 1e-9;

/** @type {Object<string, (u: number) => number>} log K(u), where u is (query - key) / bandwidth */
const LOG_KERNELS = {
  // This is the exponent itself, because exp() would be rounded to 0 for a distant key, which would be lost.
  Gaussian: (u) => (-u * u) / 2,
  boxcar: (u) => (Math.abs(u) <= 1 ? 0 : -Infinity),
  triangular: (u) => Math.log(Math.max(1 - Math.abs(u), 0)),
  Epanechnikov: (u) => Math.log(Math.max(1 - u * u, 0)),
};

/**
 * The signed distance from key to query in bandwidths; rounding errors next to 1 and −1 are removed.
 * @param {number} query @param {number} key @param {number} bandwidth
 */
export function distanceInBandwidths(query, key, bandwidth) {
  const u = (query - key) / bandwidth;
  return Math.abs(Math.abs(u) - 1) < EDGE_ROUNDING ? Math.sign(u) : u;
}

/**
 * @param {string} kernel a key of LOG_KERNELS
 * @param {number} u (query - key) / bandwidth
 * @returns {number} K(u), at most 1
 */
export function kernelHeight(kernel, u) {
  return Math.exp(LOG_KERNELS[kernel](u));
}

/**
 * @param {string} kernel a key of LOG_KERNELS
 * @param {ArrayLike<number>} query @param {ArrayLike<number>} key @param {number} bandwidth
 * @returns {Matrix} (q_len, k_len): log K, -Infinity where the kernel does not reach
 */
export function kernelScore(kernel, query, key, bandwidth) {
  const logKernel = LOG_KERNELS[kernel];
  return Array.from(query, (q) => Float64Array.from(key, (k) => logKernel(distanceInBandwidths(q, k, bandwidth))));
}

/**
 * Every query sees all keys except the one with its own index.
 * @param {number} length @returns {import("../shared/attention_math.js").Mask}
 */
export function othersMask(length) {
  return Array.from({ length }, (_, query) => Array.from({ length }, (_, key) => key !== query));
}

/** @param {ArrayLike<number>} estimate @param {ArrayLike<number>} target */
export function meanSquaredError(estimate, target) {
  return Array.from(estimate, (number, index) => (number - target[index]) ** 2).reduce((a, b) => a + b, 0) / target.length;
}

/** All numbers that the widget shows. @param {PoolingState} state */
export function computePooling({ keyRange: [low, high], truth, keys, values, kernel, bandwidth, query }) {
  const value = values.map((number) => Float64Array.of(number));
  /** @type {(queries: ArrayLike<number>, mask?: import("../shared/attention_math.js").Mask) => {output: number[], weights: Float64Array[]}} */
  const pool = (queries, mask) => {
    const { output, weights } = attentionPooling(kernelScore(kernel, queries, keys, bandwidth), value, mask);
    return { output: output.map((row) => row[0]), weights };
  };
  const isAnswered = (/** @type {Float64Array} */ row) => row.some((weight) => weight > 0);
  const grid = Float64Array.from({ length: GRID }, (_, i) => low + ((high - low) * i) / (GRID - 1));
  const asked = pool([query]);
  const fit = pool(grid);
  const byAll = pool(keys);
  const byOthers = pool(keys, othersMask(keys.length));
  const fitIsAnswered = fit.weights.map(isAnswered);
  return {
    grid,
    output: asked.output[0],
    weights: asked.weights[0],
    fit: fit.output,
    fitIsAnswered,
    silent: fitIsAnswered.filter((answered) => !answered).length, // the number of grid points that see no keys
    lonelyPoints: byOthers.weights.filter((row) => !isAnswered(row)).length,
    isAnswered: isAnswered(asked.weights[0]),
    trainingError: meanSquaredError(byAll.output, values),
    leaveOneOutError: meanSquaredError(byOthers.output, values),
    testError: truth.length ? meanSquaredError(fit.output, truth) : null,
  };
}

/**
 * The kernel around the query, scaled to touch the tops of the stems or, if it reaches no key, to the height
 * of the plane.
 * @param {PoolingState} state @param {ReturnType<typeof computePooling>} numbers @param {number} ceiling
 */
export function kernelWindow({ kernel, bandwidth, query, keys }, { weights, isAnswered }, ceiling) {
  const best = weights.indexOf(Math.max(...weights));
  const atBest = kernelHeight(kernel, distanceInBandwidths(query, keys[best], bandwidth));
  const scale = isAnswered && atBest > 0 ? weights[best] / atBest : ceiling;
  const reach = kernel === "Gaussian" ? 4 : 1;
  const us = Array.from({ length: 81 }, (_, i) => (reach * (i - 40)) / 40);
  const heights = us.map((u) => scale * kernelHeight(kernel, u));
  return { xs: [us[0], ...us, us[80]].map((u) => query + u * bandwidth), ys: [0, ...heights, 0] };
}

/**
 * The bandwidths at which a slider stops: evenly spaced on a logarithmic scale from 1/100 to 6/10 of the
 * range of the keys.
 * @param {[number, number]} keyRange @param {(bandwidth: number) => number} limit
 */
export function bandwidthStops([low, high], limit) {
  const steps = 50;
  const stops = Array.from({ length: steps + 1 }, (_, step) =>
    limit(Number((((high - low) / 100) * 60 ** (step / steps)).toPrecision(2))),
  );
  return [...new Set(stops)];
}

/** The settings that differ between two states. @param {PoolingState} from @param {PoolingState} to */
export function movedSettings(from, to) {
  const names = /** @type {const} */ (["kernel", "bandwidth", "query", "keys", "values", "pair"]);
  return names.filter((name) => String(from[name]) !== String(to[name]));
}
