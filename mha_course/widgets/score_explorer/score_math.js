// The mathematics of scores, in float64, by the same rules as mha_lib.scores.

import { dotProductScore, maskedSoftmax, scaledDotProductScore } from "../shared/attention_math.js";

/** @typedef {import("../shared/attention_math.js").Matrix} Matrix */
/** @typedef {{query: number[], keys: number[][], score: string, d: number, isScaled: boolean}} ScoreState */

export const SCORE_EDGE = 4; // the plane extends from -4 to 4 in both directions
export const SCORE_SIDE = 33; // rows and columns of the map
export const SCORE_BILINEAR = [[0.5, -1], [1, 0.5]];
export const SCORE_ADDITIVE = {
  query: [[1, 0], [0, 1], [1, 1], [1, -1]],
  key: [[1, -0.5], [0.5, 1], [-1, 0.5], [-0.5, -1]],
  score: [2, 1, -1.5, 1],
};

/**
 * Rows times a matrix that is stored as in torch's nn.Linear, with one row per output.
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

/** Scales each row to length 1; a row of zeros stays zero. @param {Matrix} x @returns {Matrix} */
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
 * @param {number} bandwidth @returns {Matrix} (q_len, k_len)
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

/** @param {number[][]} rows */
const scoreRows = (rows) => rows.map((row) => Float64Array.from(row));

/** The points of the map, row by row, with the row of the lowest y first. */
export function scorePlaces() {
  const at = (/** @type {number} */ index) => SCORE_EDGE * ((2 * index) / (SCORE_SIDE - 1) - 1);
  return Array.from({ length: SCORE_SIDE ** 2 }, (_, index) =>
    Float64Array.of(at(index % SCORE_SIDE), at(Math.floor(index / SCORE_SIDE))),
  );
}

/** The weights of the learned rules for one width. @param {number} d */
export function scoreWeights(d) {
  const row = (/** @type {number[]} */ start, /** @type {(i: number) => number} */ beyond) =>
    Float64Array.from({ length: d }, (_, i) => (i < 2 ? start[i] : beyond(i)));
  const bilinear = Array.from({ length: d }, (_, out) => row(SCORE_BILINEAR[out] ?? [0, 0], (i) => (i === out ? 1 : 0)));
  // Each coordinate beyond the plane feeds one hidden unit, in turn.
  const units = SCORE_ADDITIVE.score.length;
  const enter = (/** @type {number[][]} */ weight) =>
    weight.map((start, unit) => row(start, (i) => ((i - 2) % units === unit ? 1 / Math.sqrt(d) : 0)));
  const additive = { query: enter(SCORE_ADDITIVE.query), key: enter(SCORE_ADDITIVE.key), score: SCORE_ADDITIVE.score };
  return { d, bilinear, additive };
}

/**
 * @param {ScoreState} state @param {ReturnType<typeof scoreWeights>} learned
 * @param {Matrix} extra coordinates beyond the plane, of the query, then of each key
 */
export function computeScore({ query, keys, score, d, isScaled }, learned, extra) {
  const row = (/** @type {number[]} */ start, /** @type {number} */ index) =>
    Float64Array.from({ length: d }, (_, i) => (i < 2 ? start[i] : extra[index][i - 2]));
  const q = [row(query, 0)];
  const k = keys.map((key, index) => row(key, index + 1));
  const factor = isScaled ? 1 / Math.sqrt(d) : 1;
  /** @type {Object<string, () => Matrix>} */
  const rules = {
    dot: () => (isScaled ? scaledDotProductScore : dotProductScore)(q, k),
    cosine: () => cosineScore(q, k),
    gaussian: () => gaussianScore(q, k, isScaled ? d ** 0.25 : 1),
    bilinear: () => bilinearScore(q, k, learned.bilinear).map((scores) => scores.map((number) => number * factor)),
    additive: () => additiveScore(q, k, learned.additive),
  };
  const scores = rules[score]();
  const weights = maskedSoftmax(scores);
  const entropy = entropyOf(weights[0]);
  const mean = scores[0].reduce((sum, number) => sum + number, 0) / keys.length;
  const variance = scores[0].reduce((sum, number) => sum + (number - mean) ** 2, 0) / keys.length;
  return { q, scores, weights, entropy, effectiveKeys: Math.exp(entropy), spread: Math.sqrt(variance) };
}

/**
 * The score of a key at each point of the plane. The key's coordinates beyond the plane are 0, so its first two
 * are enough; the query's other coordinates only add a constant or change a length.
 * @param {ScoreState} state @param {ReturnType<typeof scoreWeights>} learned
 * @param {Matrix} q the whole query, (1, d)
 * @param {Matrix} places @returns {Matrix} [row][column], the row of the lowest y first
 */
export function scoreLandscape({ query, score, d, isScaled }, learned, q, places) {
  const inPlane = [Float64Array.from(query)];
  const [inside, whole] = [inPlane[0], q[0]].map((row) => row.reduce((sum, number) => sum + number * number, 0));
  const factor = isScaled ? 1 / Math.sqrt(d) : 1;
  const toLength = Math.sqrt(inside) / Math.max(Math.sqrt(whole), 1e-12);
  /** @type {Object<string, () => Float64Array>} */
  const rules = {
    dot: () => dotProductScore(inPlane, places)[0].map((number) => number * factor),
    cosine: () => cosineScore(inPlane, places)[0].map((number) => number * toLength),
    gaussian: () =>
      gaussianScore(inPlane, places, isScaled ? d ** 0.25 : 1)[0].map((number) => number - ((whole - inside) * factor) / 2),
    bilinear: () => bilinearScore(inPlane, places, scoreRows(SCORE_BILINEAR))[0].map((number) => number * factor),
    additive: () => additiveScore(q, places, { ...learned.additive, key: scoreRows(SCORE_ADDITIVE.key) })[0],
  };
  const flat = rules[score]();
  return Array.from({ length: SCORE_SIDE }, (_, y) => flat.slice(y * SCORE_SIDE, (y + 1) * SCORE_SIDE));
}
