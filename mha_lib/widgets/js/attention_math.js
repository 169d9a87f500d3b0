// The mathematics of attention, in float64. Pure functions, no DOM, no state: the same rules as mha_lib.masking and
// mha_lib.attention, so that a test can hold one against the other.

/** @typedef {Float64Array[]} Matrix rows of equal length */
/** @typedef {boolean[][]} Mask [query][key], true = may attend */

/**
 * Rows from float32 numbers as torch stored them: little-endian bytes in base64. All further arithmetic is float64.
 * @param {string} base64
 * @param {number} columns
 * @returns {Matrix}
 */
export function matrixFromFloat32(base64, columns) {
  const bytes = Uint8Array.from(atob(base64), (character) => character.charCodeAt(0));
  const numbers = Float64Array.from(new Float32Array(bytes.buffer));
  return Array.from({ length: numbers.length / columns }, (_, row) =>
    numbers.slice(row * columns, (row + 1) * columns),
  );
}

/**
 * (len, embed_dim) -> num_heads times (len, head_dim): head i owns the columns from i * head_dim on.
 * @param {Matrix} x
 * @param {number} numHeads
 * @returns {Matrix[]}
 */
export function splitHeads(x, numHeads) {
  const embedDim = x[0].length;
  if (!Number.isInteger(numHeads) || numHeads < 1 || embedDim % numHeads !== 0) {
    throw new RangeError(`num_heads must divide embed_dim=${embedDim}, got ${numHeads}`);
  }
  const headDim = embedDim / numHeads;
  return Array.from({ length: numHeads }, (_, head) =>
    x.map((row) => row.slice(head * headDim, (head + 1) * headDim)),
  );
}

/**
 * Undoes `splitHeads`: the heads side by side again.
 * @param {Matrix[]} heads
 * @returns {Matrix}
 */
export function mergeHeads(heads) {
  return heads[0].map((_, row) => Float64Array.from(heads.flatMap((head) => Array.from(head[row]))));
}

/**
 * (q_len, d), (k_len, d) -> (q_len, k_len)
 * @param {Matrix} query
 * @param {Matrix} key
 * @returns {Matrix}
 */
export function dotProductScore(query, key) {
  return query.map((q) => Float64Array.from(key, (k) => q.reduce((sum, number, i) => sum + number * k[i], 0)));
}

/**
 * The dot product over the square root of the width of one query, which is head_dim, not embed_dim.
 * @param {Matrix} query
 * @param {Matrix} key
 * @returns {Matrix}
 */
export function scaledDotProductScore(query, key) {
  const scale = Math.sqrt(query[0].length);
  return dotProductScore(query, key).map((row) => row.map((score) => score / scale));
}

/**
 * Each query sees the first `validLen` keys.
 * @param {number} validLen
 * @param {number} qLen
 * @param {number} kLen
 * @returns {Mask}
 */
export function validLenMask(validLen, qLen, kLen) {
  if (!Number.isInteger(validLen) || validLen < 0 || validLen > kLen) {
    throw new RangeError(`valid_len must lie in 0..k_len=${kLen}, got ${validLen}`);
  }
  return Array.from({ length: qLen }, () => Array.from({ length: kLen }, (_, key) => key < validLen));
}

/**
 * Each query sees the keys up to its own position; the last query sees every key (bottom-right alignment).
 * @param {number} qLen
 * @param {number} [kLen]
 * @returns {Mask}
 */
export function causalMask(qLen, kLen = qLen) {
  return Array.from({ length: qLen }, (_, query) =>
    Array.from({ length: kLen }, (_, key) => key - (kLen - qLen) <= query),
  );
}

/**
 * The AND of masks of one shape.
 * @param {Mask[]} masks at least one
 * @returns {Mask}
 */
export function combineMasks(masks) {
  return masks[0].map((row, query) => row.map((_, key) => masks.every((mask) => mask[query][key])));
}

/**
 * Hidden scores become -Infinity: what the softmax is told.
 * @param {Matrix} scores
 * @param {Mask} mask
 * @returns {Matrix}
 */
export function maskScores(scores, mask) {
  return scores.map((row, query) => row.map((score, key) => (mask[query][key] ? score : -Infinity)));
}

/**
 * Softmax of each row over its visible keys. A row without any is exactly zero.
 * @param {Matrix} scores
 * @param {Mask} [mask]
 * @returns {Matrix}
 */
export function maskedSoftmax(scores, mask) {
  const masked = mask ? maskScores(scores, mask) : scores;
  return masked.map((row) => {
    const highest = Math.max(...row);
    if (highest === -Infinity) return new Float64Array(row.length);
    // Subtracting the highest score changes no weight and keeps exp() from overflowing.
    const exponentials = row.map((score) => Math.exp(score - highest));
    const total = exponentials.reduce((sum, number) => sum + number, 0);
    return exponentials.map((number) => number / total);
  });
}

/**
 * The mean of the values, weighted by the softmax of the scores.
 * @param {Matrix} scores (q_len, k_len)
 * @param {Matrix} value (k_len, value_dim)
 * @param {Mask} [mask]
 * @returns {{output: Matrix, weights: Matrix}}
 */
export function attentionPooling(scores, value, mask) {
  const weights = maskedSoftmax(scores, mask);
  const output = weights.map((row) =>
    Float64Array.from(value[0], (_, column) => row.reduce((sum, weight, key) => sum + weight * value[key][column], 0)),
  );
  return { output, weights };
}

/**
 * Every step of multi-head attention, up to the point where the heads are merged.
 * @param {{query: Matrix, key: Matrix, value: Matrix}} projected each (len, embed_dim)
 * @param {number} numHeads
 * @param {Mask} mask
 * @returns {{scores: Matrix[], masked: Matrix[], weights: Matrix[], output: Matrix[]}} one matrix a head
 */
export function multiHeadSteps({ query, key, value }, numHeads, mask) {
  const keys = splitHeads(key, numHeads);
  const values = splitHeads(value, numHeads);
  const scores = splitHeads(query, numHeads).map((q, head) => scaledDotProductScore(q, keys[head]));
  const pooled = scores.map((score, head) => attentionPooling(score, values[head], mask));
  return {
    scores,
    masked: scores.map((score) => maskScores(score, mask)),
    weights: pooled.map(({ weights }) => weights),
    output: pooled.map(({ output }) => output),
  };
}
