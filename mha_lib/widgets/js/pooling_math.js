// Kernel regression as attention, in float64: a kernel K makes the scores log K, and a key where K is 0 is not seen.

/** @typedef {import("./attention_math.js").Matrix} Matrix */

/** @type {Object<string, (u: number) => number>} log K of the distance between query and key over the bandwidth */
const LOG_KERNELS = {
  // The exponent itself: exp() would round it to 0 far away, and the key would be lost.
  Gaussian: (u) => (-u * u) / 2,
  boxcar: (u) => (Math.abs(u) <= 1 ? 0 : -Infinity),
  triangular: (u) => Math.log(Math.max(1 - Math.abs(u), 0)),
  Epanechnikov: (u) => Math.log(Math.max(1 - u * u, 0)),
};

export const POOLING_KERNELS = Object.keys(LOG_KERNELS);

/**
 * @param {string} kernel one of POOLING_KERNELS
 * @param {number} u distance between query and key over the bandwidth
 * @returns {number} K(u), at most 1
 */
export function kernelHeight(kernel, u) {
  return Math.exp(LOG_KERNELS[kernel](u));
}

/**
 * @param {string} kernel one of POOLING_KERNELS
 * @param {ArrayLike<number>} query
 * @param {ArrayLike<number>} key
 * @param {number} bandwidth
 * @returns {Matrix} (q_len, k_len): log K, -Infinity where the kernel does not reach
 */
export function kernelScore(kernel, query, key, bandwidth) {
  const logKernel = LOG_KERNELS[kernel];
  return Array.from(query, (q) => Float64Array.from(key, (k) => logKernel((q - k) / bandwidth)));
}

/**
 * Every query sees all keys but the one of its own index.
 * @param {number} length
 * @returns {import("./attention_math.js").Mask}
 */
export function othersMask(length) {
  return Array.from({ length }, (_, query) => Array.from({ length }, (_, key) => key !== query));
}

/**
 * @param {ArrayLike<number>} estimate
 * @param {ArrayLike<number>} target
 */
export function meanSquaredError(estimate, target) {
  return Array.from(estimate, (number, index) => (number - target[index]) ** 2).reduce((a, b) => a + b, 0) / target.length;
}
