// The parts of a pre-norm Transformer, as the page computes them: linear layers, norms, feed-forward layers, and attention
// with gated heads and a cache of keys and values. Pure functions, no DOM. Weights are float32 numbers that were rounded to
// 8 bits, and sums are float64, as in the model that Python compares with.

import {
  attentionPooling,
  bytesFromBase64,
  mergeHeads,
  numbersFromFloat32,
  scaledDotProductScore,
  splitHeads,
  zeroMatrix,
} from "./attention_math.js";

/** @typedef {import("./attention_math.js").Matrix} Matrix */

const NORM_EPSILON = 1e-5; // of torch's layer norms

/**
 * @typedef {object} StoredModel
 * @property {number} num_heads
 * @property {number} num_layers
 * @property {(string | number)[][]} shapes name and sizes of each parameter
 * @property {string} int8 the matrices, a signed byte for each number, in base64
 * @property {string} float32 in base64: for each matrix the scales of its rows, for each vector its numbers
 * @property {number} error of rounding the weights: root mean square, relative to that of the weights
 */

/** @typedef {{data: Float64Array, rows: number, columns: number}} Weight */
/** @typedef {{weight: Weight, bias?: Float64Array}} Linear */
/** @typedef {{weight: Float64Array, bias?: Float64Array}} Norm */
/** @typedef {{query: Linear, key: Linear, value: Linear, out: Linear, norm: Norm}} AttentionPart */
/** @typedef {{self: AttentionPart, cross?: AttentionPart, up: Linear, down: Linear, norm: Norm}} Block */
/** @typedef {{blocks: Block[], norm: Norm}} Stack */
/** @typedef {{keys: Matrix[], values: Matrix[]}} Remembered by head */

/**
 * The parameters of a stored model, converted from 8 bits to float32 exactly as in Python.
 * @param {StoredModel} stored
 */
function unpackParameters({ shapes, int8, float32 }) {
  const sizes = /** @type {[string, number, number?][]} */ (shapes);
  if (!Array.isArray(sizes)) throw new RangeError("shapes must hold the sizes of the parameters: what the page stores is damaged");
  const entries = sizes.reduce((sum, [, rows, columns]) => sum + (columns === undefined ? 0 : rows * columns), 0);
  const bytes = new Int8Array(bytesFromBase64(int8, "int8", entries).buffer);
  const floats = numbersFromFloat32(float32, "float32", sizes.reduce((sum, [, rows]) => sum + rows, 0));
  /** @type {Object<string, Weight>} */
  const parameters = {};
  let [byte, float] = [0, 0];
  for (const [name, rows, columns] of sizes) {
    const own = floats.subarray(float, (float += rows));
    const data = new Float64Array(rows * (columns ?? 1));
    if (columns === undefined) data.set(own);
    // A product of 8 and 24 bits is exact in float64; torch rounds it to float32.
    else for (let i = 0; i < data.length; i++) data[i] = Math.fround(bytes[byte++] * own[Math.floor(i / columns)]);
    parameters[name] = { data, rows, columns: columns ?? 1 };
  }
  return parameters;
}

/**
 * Functions that build the parts of a stored model.
 * @param {StoredModel} stored
 */
export function unpackParts(stored) {
  const parameters = unpackParameters(stored);
  const linear = (/** @type {string} */ name) => ({
    weight: parameters[`${name}.weight`],
    bias: parameters[`${name}.bias`]?.data,
  });
  const norm = (/** @type {string} */ name) => ({
    weight: parameters[`${name}.weight`].data,
    bias: parameters[`${name}.bias`]?.data,
  });
  const attention = (/** @type {string} */ name) => ({
    query: linear(`${name}.q_proj`),
    key: linear(`${name}.k_proj`),
    value: linear(`${name}.v_proj`),
    out: linear(`${name}.out_proj`),
    norm: norm(`${name}_norm`),
  });
  /** @type {(name: string, hasMemory?: boolean) => Stack} */
  const stack = (name, hasMemory = false) => ({
    blocks: Array.from({ length: stored.num_layers }, (_, layer) => {
      const block = `${name}.blocks.${layer}`;
      return {
        self: attention(`${block}.self_attention`),
        cross: hasMemory ? attention(`${block}.cross_attention`) : undefined,
        up: linear(`${block}.feed_forward.up_proj`),
        down: linear(`${block}.feed_forward.down_proj`),
        norm: norm(`${block}.feed_forward_norm`),
      };
    }),
    norm: norm(`${name}.norm`),
  });
  return { parameters, linear, stack };
}

/** x · weightᵀ + bias @param {Matrix} x @param {Linear} linear @returns {Matrix} */
export function applyLinear(x, { weight: { data, rows, columns }, bias }) {
  const result = zeroMatrix(x.length, rows);
  for (let y = 0; y < x.length; y++) {
    const [row, own] = [x[y], result[y]];
    let out = 0;
    // With four outputs at a time, each row is read only once, and the sums do not wait for each other.
    for (; out + 3 < rows; out += 4) {
      let [a, b, c, d] = bias ? [bias[out], bias[out + 1], bias[out + 2], bias[out + 3]] : [0, 0, 0, 0];
      const first = out * columns;
      const [second, third, fourth] = [first + columns, first + 2 * columns, first + 3 * columns];
      for (let i = 0; i < columns; i++) {
        const number = row[i];
        a += number * data[first + i];
        b += number * data[second + i];
        c += number * data[third + i];
        d += number * data[fourth + i];
      }
      own[out] = a;
      own[out + 1] = b;
      own[out + 2] = c;
      own[out + 3] = d;
    }
    for (; out < rows; out++) {
      let sum = bias ? bias[out] : 0;
      for (let i = 0; i < columns; i++) sum += row[i] * data[out * columns + i];
      own[out] = sum;
    }
  }
  return result;
}

/**
 * Each row minus its mean, over its standard deviation, times the weight, plus the bias.
 * @param {Matrix} x @param {Norm} norm @returns {Matrix}
 */
export function applyNorm(x, { weight, bias }) {
  const result = zeroMatrix(x.length, weight.length);
  for (let y = 0; y < x.length; y++) {
    const [row, own] = [x[y], result[y]];
    let [mean, variance] = [0, 0];
    for (let i = 0; i < row.length; i++) mean += row[i] / row.length;
    for (let i = 0; i < row.length; i++) variance += (row[i] - mean) ** 2 / row.length;
    const scale = 1 / Math.sqrt(variance + NORM_EPSILON);
    for (let i = 0; i < row.length; i++) own[i] = (row[i] - mean) * scale * weight[i] + (bias ? bias[i] : 0);
  }
  return result;
}

/** Adds to `x` in place: the residual connection. @param {Matrix} x @param {Matrix} added */
function addInPlace(x, added) {
  for (let y = 0; y < x.length; y++) for (let i = 0; i < x[y].length; i++) x[y][i] += added[y][i];
}

/**
 * Attention with the heads gated, added to `x`.
 * @param {Matrix} x @param {AttentionPart} part @param {Matrix} queries @param {Remembered} remembered
 * @param {readonly number[]} gates @param {import("./attention_math.js").Mask} [mask]
 * @returns {Matrix[]} the weights of each head
 */
export function addAttention(x, part, queries, { keys, values }, gates, mask) {
  const pooled = splitHeads(queries, gates.length).map((query, head) =>
    attentionPooling(scaledDotProductScore(query, keys[head]), values[head], mask),
  );
  const outputs = pooled.map(({ output }, head) =>
    gates[head] === 1 ? output : output.map((row) => row.map((number) => number * gates[head])),
  );
  addInPlace(x, applyLinear(mergeHeads(outputs), part.out));
  return pooled.map(({ weights }) => weights);
}

/** The feed-forward layer of a block, added to `x`. @param {Matrix} x @param {Block} block */
export function addFeedForward(x, { norm, up, down }) {
  const hidden = applyLinear(applyNorm(x, norm), up);
  for (const row of hidden) for (let i = 0; i < row.length; i++) if (row[i] < 0) row[i] = 0;
  addInPlace(x, applyLinear(hidden, down));
}

/** @param {AttentionPart} part @param {Matrix} x @param {number} numHeads @returns {Remembered} */
export function remember({ key, value }, x, numHeads) {
  return { keys: splitHeads(applyLinear(x, key), numHeads), values: splitHeads(applyLinear(x, value), numHeads) };
}
