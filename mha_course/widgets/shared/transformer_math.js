// The parts of a Transformer, as the page computes them: linear layers, norms, feed-forward layers, and attention with gated
// heads and a cache of keys and values. Pure functions, no DOM. Weights are float32 numbers that were rounded to 8 bits, and
// sums are float64, as in the model that Python compares with.

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

/**
 * @typedef {object} StoredModel
 * @property {number} num_heads
 * @property {number} num_layers
 * @property {(string | number)[][]} shapes name and sizes of each parameter
 * @property {string | Int8Array} int8 the matrices, a signed byte for each number, in base64 or unpacked
 * @property {string | Float64Array} float32 for each matrix the scales of its rows, for each vector its numbers; the same
 * @property {number} error of rounding the weights: root mean square, relative to that of the weights
 */

/**
 * A matrix. In a large model, the numbers stay bytes, and each row has a scale that multiplies them.
 * @typedef {{data: Float64Array | Int8Array, rows: number, columns: number, scales?: Float64Array}} Weight
 */
/** @typedef {{weight: Weight, bias?: Float64Array}} Linear */
/** @typedef {{weight: Float64Array, bias?: Float64Array}} Norm */
/** @typedef {{query: Linear, key: Linear, value: Linear, out: Linear, norm: Norm}} AttentionPart */
/** @typedef {{self: AttentionPart, cross?: AttentionPart, up: Linear, down: Linear, norm: Norm}} Block */
/** @typedef {{blocks: Block[], norm: Norm}} Stack */
/** @typedef {{keys: Matrix[], values: Matrix[]}} Remembered by head */

/**
 * The parameters of a stored model, converted from 8 bits to float32 exactly as in Python; or, if `keepsBytes`, as bytes with
 * a scale for each row, which take an eighth of the memory.
 * @param {StoredModel} stored @param {boolean} keepsBytes
 */
export function unpackParameters({ shapes, int8, float32 }, keepsBytes) {
  const sizes = /** @type {[string, number, number?][]} */ (shapes);
  if (!Array.isArray(sizes)) throw new RangeError("shapes must hold the sizes of the parameters: what the page stores is damaged");
  const entries = sizes.reduce((sum, [, rows, columns]) => sum + (columns === undefined ? 0 : rows * columns), 0);
  const bytes = int8 instanceof Int8Array ? int8 : new Int8Array(bytesFromBase64(int8, "int8", entries).buffer);
  const count = sizes.reduce((sum, [, rows]) => sum + rows, 0);
  const floats = float32 instanceof Float64Array ? float32 : numbersFromFloat32(float32, "float32", count);
  /** @type {Object<string, Weight>} */
  const parameters = {};
  let [byte, float] = [0, 0];
  for (const [name, rows, columns] of sizes) {
    const own = floats.subarray(float, (float += rows));
    if (keepsBytes && columns !== undefined) {
      parameters[name] = { data: bytes.subarray(byte, (byte += rows * columns)), rows, columns, scales: own };
      continue;
    }
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
 * @param {StoredModel} stored @param {boolean} [keepsBytes]
 */
export function unpackParts(stored, keepsBytes = false) {
  return partsOf(unpackParameters(stored, keepsBytes), stored.num_layers);
}

/**
 * Functions that build the parts of a model from its parameters.
 * @param {Object<string, Weight>} parameters @param {number} numLayers
 */
export function partsOf(parameters, numLayers) {
  const vector = (/** @type {string} */ name) => /** @type {Float64Array | undefined} */ (parameters[name]?.data);
  const linear = (/** @type {string} */ name) => ({
    weight: parameters[`${name}.weight`],
    bias: vector(`${name}.bias`),
  });
  const norm = (/** @type {string} */ name) => ({
    weight: /** @type {Float64Array} */ (vector(`${name}.weight`)),
    bias: vector(`${name}.bias`),
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
    blocks: Array.from({ length: numLayers }, (_, layer) => {
      const block = `${name}.blocks.${layer}`;
      return {
        self: attention(`${block}.self_attention`),
        cross: hasMemory ? attention(`${block}.cross_attention`) : undefined,
        up: linear(`${block}.feed_forward.up_proj`),
        down: linear(`${block}.feed_forward.down_proj`),
        norm: norm(`${block}.feed_forward_norm`),
      };
    }),
    norm: norm(`${name}.norm`), // without a weight, if each block ends with a norm
  });
  return { parameters, linear, norm, stack };
}

/** x · weightᵀ + bias @param {Matrix} x @param {Linear} linear @returns {Matrix} */
export function applyLinear(x, { weight: { data, rows, columns, scales }, bias }) {
  if (scales) return scaleColumns(applyLinear(x, { weight: { data, rows, columns } }), scales, bias);
  const result = zeroMatrix(x.length, rows);
  for (let y = 0; y < x.length; y++) {
    const [row, own] = [x[y], result[y]];
    let out = 0;
    // With four outputs at a time, each row is read only once, and the sums do not wait for each other.
    for (; out + 3 < rows; out += 4) {
      let a = bias ? bias[out] : 0;
      let b = bias ? bias[out + 1] : 0;
      let c = bias ? bias[out + 2] : 0;
      let d = bias ? bias[out + 3] : 0;
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

/** Each column times its scale, plus the bias; in place. @param {Matrix} x @param {Float64Array} scales @param {Float64Array} [bias] */
export function scaleColumns(x, scales, bias) {
  for (const row of x) for (let i = 0; i < row.length; i++) row[i] = row[i] * scales[i] + (bias ? bias[i] : 0);
  return x;
}

/**
 * Each row minus its mean, over its standard deviation, times the weight, plus the bias.
 * @param {Matrix} x @param {Norm} norm @param {number} [epsilon] added to the variance; torch's, if none is given
 * @returns {Matrix}
 */
export function applyNorm(x, { weight, bias }, epsilon = 1e-5) {
  const result = zeroMatrix(x.length, weight.length);
  for (let y = 0; y < x.length; y++) {
    const [row, own] = [x[y], result[y]];
    let [mean, variance] = [0, 0];
    for (let i = 0; i < row.length; i++) mean += row[i] / row.length;
    for (let i = 0; i < row.length; i++) variance += (row[i] - mean) ** 2 / row.length;
    const scale = 1 / Math.sqrt(variance + epsilon);
    for (let i = 0; i < row.length; i++) own[i] = (row[i] - mean) * scale * weight[i] + (bias ? bias[i] : 0);
  }
  return result;
}

/** Adds to `x` in place: the residual connection. @param {Matrix} x @param {Matrix} added */
export function addInPlace(x, added) {
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
