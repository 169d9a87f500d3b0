// The mathematics of attention, in float64. Pure functions, no DOM, no state. They follow the same rules as
// mha_lib.masking and mha_lib.attention, so that a test can compare the two.

/** @typedef {Float64Array[]} Matrix rows of equal length */
/** @typedef {boolean[][]} Mask [query][key], true = may attend */

/**
 * The bytes that a page stores as text.
 * @param {string} base64 @param {string} name of the bytes
 * @param {number} [count] of bytes
 * @throws {RangeError} they are missing or damaged
 */
export function bytesFromBase64(base64, name, count) {
  let text = "";
  try {
    text = atob(base64);
  } catch {
    // A missing or damaged text is not valid base64.
  }
  if (text.length === 0 || (count !== undefined && text.length !== count)) {
    throw new RangeError(`${name} must hold ${count ?? "some"} bytes, got ${text.length}: what the page stores is damaged`);
  }
  const bytes = new Uint8Array(text.length);
  for (let i = 0; i < text.length; i++) bytes[i] = text.charCodeAt(i); // many times faster than Uint8Array.from
  return bytes;
}

/**
 * Float32 numbers as torch stored them: little-endian bytes in base64. Further arithmetic is float64.
 * @param {string} base64 @param {string} name of the numbers
 * @param {number} [count] of numbers
 * @throws {RangeError} they are missing or damaged
 */
export function numbersFromFloat32(base64, name, count) {
  const bytes = bytesFromBase64(base64, name, count && 4 * count);
  const numbers = Float64Array.from(bytes.length % 4 === 0 ? new Float32Array(bytes.buffer) : [NaN]);
  if (!numbers.every(Number.isFinite)) throw new RangeError(`${name} must hold finite numbers: what the page stores is damaged`);
  return numbers;
}

/**
 * The same as a matrix.
 * @param {string} base64 @param {number} columns @param {string} name of the matrix
 * @param {number} [rows] @returns {Matrix} @throws {RangeError} the numbers are missing or damaged
 */
export function matrixFromFloat32(base64, columns, name, rows) {
  const numbers = numbersFromFloat32(base64, name, rows && rows * columns);
  if (numbers.length % columns !== 0) {
    throw new RangeError(`${name} must hold rows of ${columns} numbers, got ${numbers.length}: what the page stores is damaged`);
  }
  return Array.from({ length: numbers.length / columns }, (_, row) =>
    numbers.slice(row * columns, (row + 1) * columns),
  );
}

/**
 * A matrix of zeros. Its rows are adjacent in memory, which keeps long loops fast.
 * @param {number} rows @param {number} columns @returns {Matrix}
 */
export function zeroMatrix(rows, columns) {
  const numbers = new Float64Array(rows * columns);
  if (rows === 1) return [numbers]; // a model that writes makes thousands of these
  return Array.from({ length: rows }, (_, row) => numbers.subarray(row * columns, (row + 1) * columns));
}

/**
 * (len, embed_dim) -> num_heads matrices (len, head_dim): head i owns head_dim columns from i * head_dim on. The matrices
 * share the numbers of `x`, because copies would take most of the time of a model that writes.
 * @param {Matrix} x @param {number} numHeads @returns {Matrix[]}
 */
export function splitHeads(x, numHeads) {
  const embedDim = x[0].length;
  if (!Number.isInteger(numHeads) || numHeads < 1 || embedDim % numHeads !== 0) {
    throw new RangeError(`num_heads must divide embed_dim=${embedDim}, got ${numHeads}`);
  }
  const headDim = embedDim / numHeads;
  return Array.from({ length: numHeads }, (_, head) =>
    x.map((row) => row.subarray(head * headDim, (head + 1) * headDim)),
  );
}

/** Undoes `splitHeads` by putting the heads side by side. @param {Matrix[]} heads @returns {Matrix} */
export function mergeHeads(heads) {
  const headDim = heads[0][0].length;
  const merged = zeroMatrix(heads[0].length, heads.length * headDim);
  heads.forEach((head, index) => head.forEach((row, y) => merged[y].set(row, index * headDim)));
  return merged;
}

/** (q_len, d), (k_len, d) -> (q_len, k_len) @param {Matrix} query @param {Matrix} key @returns {Matrix} */
export function dotProductScore(query, key) {
  const scores = zeroMatrix(query.length, key.length);
  if (query.length === 1) {
    // A model that writes has one query; for it alone, turning the keys around would take longer than the scores.
    const [row] = query;
    for (let k = 0; k < key.length; k++) for (let i = 0; i < row.length; i++) scores[0][k] += row[i] * key[k][i];
    return scores;
  }
  // The inner loop runs over the keys, of which there are many, and handles four coordinates at a time.
  const coordinates = zeroMatrix(key[0]?.length ?? 0, key.length);
  for (let k = 0; k < key.length; k++) for (let i = 0; i < coordinates.length; i++) coordinates[i][k] = key[k][i];
  for (let q = 0; q < scores.length; q++) {
    const [row, numbers] = [scores[q], query[q]];
    let i = 0;
    for (; i + 3 < coordinates.length; i += 4) {
      const [a, b, c, d] = [numbers[i], numbers[i + 1], numbers[i + 2], numbers[i + 3]];
      const [as, bs, cs, ds] = [coordinates[i], coordinates[i + 1], coordinates[i + 2], coordinates[i + 3]];
      for (let k = 0; k < row.length; k++) row[k] += a * as[k] + b * bs[k] + c * cs[k] + d * ds[k];
    }
    for (; i < coordinates.length; i++) {
      const [number, column] = [numbers[i], coordinates[i]];
      for (let k = 0; k < row.length; k++) row[k] += number * column[k];
    }
  }
  return scores;
}

/**
 * The dot product divided by the square root of the query's width. After the split it is head_dim, not
 * embed_dim.
 * @param {Matrix} query @param {Matrix} key @returns {Matrix}
 */
export function scaledDotProductScore(query, key) {
  const scale = Math.sqrt(query[0].length);
  const scaled = zeroMatrix(query.length, query[0].length);
  for (let q = 0; q < query.length; q++) {
    const [row, own] = [query[q], scaled[q]];
    for (let i = 0; i < row.length; i++) own[i] = row[i] / scale;
  }
  return dotProductScore(scaled, key);
}

/**
 * Each query sees only the first `validLen` keys.
 * @param {number} validLen @param {number} qLen @param {number} kLen @returns {Mask}
 */
export function validLenMask(validLen, qLen, kLen) {
  if (!Number.isInteger(validLen) || validLen < 0 || validLen > kLen) {
    throw new RangeError(`valid_len must lie in 0..k_len=${kLen}, got ${validLen}`);
  }
  const row = Array.from({ length: kLen }, (_, key) => key < validLen);
  return Array.from({ length: qLen }, () => row.slice());
}

/**
 * Each query sees the keys up to its own position; the last query sees every key (bottom-right alignment).
 * @param {number} qLen @param {number} [kLen] @returns {Mask}
 */
export function causalMask(qLen, kLen = qLen) {
  return Array.from({ length: qLen }, (_, query) =>
    Array.from({ length: kLen }, (_, key) => key - (kLen - qLen) <= query),
  );
}

/**
 * The AND of masks of the same shape.
 * @param {Mask[]} masks at least one
 * @returns {Mask}
 */
export function combineMasks(masks) {
  const combined = masks[0].map((row) => row.slice());
  for (const mask of masks.slice(1)) {
    for (let q = 0; q < mask.length; q++) {
      const [row, own] = [combined[q], mask[q]];
      for (let k = 0; k < row.length; k++) row[k] &&= own[k];
    }
  }
  return combined;
}

/**
 * Replaces each hidden score with -Infinity, for display; `maskedSoftmax` takes the mask itself.
 * @param {Matrix} scores @param {Mask} mask @returns {Matrix}
 */
export function maskScores(scores, mask) {
  const masked = zeroMatrix(scores.length, scores[0]?.length ?? 0);
  for (let q = 0; q < scores.length; q++) {
    const [row, own, visible] = [scores[q], masked[q], mask[q]];
    for (let k = 0; k < row.length; k++) own[k] = visible[k] ? row[k] : -Infinity;
  }
  return masked;
}

/**
 * Softmax of each row over its visible keys. A row without visible keys is exactly zero.
 * @param {Matrix} scores @param {Mask} [mask] @returns {Matrix}
 */
export function maskedSoftmax(scores, mask) {
  const weights = zeroMatrix(scores.length, scores[0]?.length ?? 0);
  for (let q = 0; q < scores.length; q++) {
    const [row, own, visible] = [scores[q], weights[q], mask?.[q]];
    let highest = -Infinity;
    for (let k = 0; k < row.length; k++) {
      if ((!visible || visible[k]) && row[k] > highest) highest = row[k];
    }
    if (highest === -Infinity) continue;
    // Subtracting the highest score does not change the weights and keeps exp() from overflowing.
    let total = 0;
    for (let k = 0; k < row.length; k++) {
      if (!visible || visible[k]) total += own[k] = Math.exp(row[k] - highest);
    }
    for (let k = 0; k < row.length; k++) own[k] /= total;
  }
  return weights;
}

/**
 * For each query, the sum of the values, weighted by the query's row of weights.
 * @param {Matrix} weights (q_len, k_len)
 * @param {Matrix} value (k_len, value_dim)
 * @returns {Matrix} (q_len, value_dim)
 */
export function weightedSum(weights, value) {
  const output = zeroMatrix(weights.length, value[0].length);
  for (let q = 0; q < weights.length; q++) {
    const [row, own] = [weights[q], output[q]];
    for (let k = 0; k < row.length; k++) {
      const [weight, numbers] = [row[k], value[k]];
      for (let i = 0; i < own.length; i++) own[i] += weight * numbers[i];
    }
  }
  return output;
}

/**
 * The mean of the values, weighted by the softmax of the scores.
 * @param {Matrix} scores (q_len, k_len)
 * @param {Matrix} value (k_len, value_dim)
 * @param {Mask} [mask] @returns {{output: Matrix, weights: Matrix}}
 */
export function attentionPooling(scores, value, mask) {
  const weights = maskedSoftmax(scores, mask);
  return { output: weightedSum(weights, value), weights };
}

/**
 * Every step of multi-head attention, up to the merge of the heads.
 * @param {{query: Matrix, key: Matrix, value: Matrix}} projected each (len, embed_dim)
 * @param {number} numHeads @param {Mask} mask
 * @returns {{scores: Matrix[], masked: Matrix[], weights: Matrix[], output: Matrix[]}} one matrix per head
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
