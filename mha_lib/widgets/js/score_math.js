// The mathematics of scores, in float64: the same rules as mha_lib.scores.

import { dotProductScore } from "./attention_math.js";

/** @typedef {import("./attention_math.js").Matrix} Matrix */

/**
 * A row times a matrix that is stored as torch's nn.Linear does, one row for each number that comes out.
 * @param {Matrix} weight (out, in)
 * @param {Matrix} x (len, in)
 * @returns {Matrix} (len, out)
 */
function projectRows(weight, x) {
  return x.map((row) => {
    const result = new Float64Array(weight.length);
    for (let out = 0; out < weight.length; out += 1) {
      let sum = 0;
      for (let i = 0; i < row.length; i += 1) sum += weight[out][i] * row[i];
      result[out] = sum;
    }
    return result;
  });
}

/**
 * Rows of length 1; a row of zeros stays one.
 * @param {Matrix} x
 * @returns {Matrix}
 */
function unitRows(x) {
  return x.map((row) => {
    const length = Math.max(Math.sqrt(row.reduce((sum, number) => sum + number * number, 0)), 1e-12);
    return row.map((number) => number / length);
  });
}

/**
 * Cosine of the angle between query and key; a zero vector scores 0.
 * @param {Matrix} query (q_len, d)
 * @param {Matrix} key (k_len, d)
 * @returns {Matrix} (q_len, k_len)
 */
export function cosineScore(query, key) {
  return dotProductScore(unitRows(query), unitRows(key));
}

/**
 * Logarithm of the Gaussian kernel, -|q - k|² / (2 bandwidth²).
 * @param {Matrix} query (q_len, d)
 * @param {Matrix} key (k_len, d)
 * @param {number} bandwidth
 * @returns {Matrix} (q_len, k_len)
 */
export function gaussianScore(query, key, bandwidth) {
  return query.map((q) =>
    Float64Array.from(key, (k) => {
      let square = 0;
      for (let i = 0; i < q.length; i += 1) square += (q[i] - k[i]) ** 2;
      return -square / (2 * bandwidth ** 2);
    }),
  );
}

/**
 * q·W k, where W is the weight of a BilinearScore.
 * @param {Matrix} query (q_len, query_dim)
 * @param {Matrix} key (k_len, key_dim)
 * @param {Matrix} weight (query_dim, key_dim)
 * @returns {Matrix} (q_len, k_len)
 */
export function bilinearScore(query, key, weight) {
  return dotProductScore(query, projectRows(weight, key));
}

/**
 * w·tanh(W_q q + W_k k), with the weights of an AdditiveScore.
 * @param {Matrix} query (q_len, query_dim)
 * @param {Matrix} key (k_len, key_dim)
 * @param {{query: Matrix, key: Matrix, score: ArrayLike<number>}} weights (hidden_dim, query_dim),
 *   (hidden_dim, key_dim) and (hidden_dim,)
 * @returns {Matrix} (q_len, k_len)
 */
export function additiveScore(query, key, weights) {
  const keys = projectRows(weights.key, key);
  return projectRows(weights.query, query).map((q) =>
    Float64Array.from(keys, (k) => q.reduce((sum, number, i) => sum + weights.score[i] * Math.tanh(number + k[i]), 0)),
  );
}

/**
 * -Σ p ln p, in nats; a weight of 0 adds nothing.
 * @param {Float64Array} weights that sum to 1
 * @returns {number}
 */
export function entropyOf(weights) {
  return weights.reduce((sum, p) => (p > 0 ? sum - p * Math.log(p) : sum), 0);
}

/**
 * Softmax by its formula, with no eye on what is hidden: a row of -Infinity comes out as NaN.
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
 * Hidden scores become `fill`.
 * @param {Matrix} scores
 * @param {import("./attention_math.js").Mask} mask
 * @param {number} fill
 * @returns {Matrix}
 */
export function fillScores(scores, mask, fill) {
  return scores.map((row, query) => row.map((score, key) => (mask[query][key] ? score : fill)));
}
