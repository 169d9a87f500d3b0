// The output of one query as the sum of the heads' contributions, and the answers that follow from it, in float64.
// Pure functions, no DOM.

import {
  attentionPooling,
  matrixFromFloat32,
  scaledDotProductScore,
  splitHeads,
  weightedSum,
  zeroMatrix,
} from "../shared/attention_math.js";

/** @typedef {import("../shared/attention_math.js").Matrix} Matrix */

/**
 * @typedef {object} MeetStored a model as the page stores it
 * @property {number} num_heads
 * @property {number} embed_dim
 * @property {number} max_len number of words in the longest sentence
 * @property {string[]} words by token; "" for a token that is not offered
 * @property {string[]} tasks
 * @property {string | null} blank the word at which the model was trained to answer
 * @property {boolean} residual
 * @property {[string, string, number] | null} stored experiment, arm and seed with the same weights
 * @property {Object<string, string>} weights by parameter name, float32 in base64
 */

/** @typedef {{name: string, head: number, numbers: Float64Array}} MeetTerm a summand; `head` is −1 for a fixed one */

/** @param {Matrix} matrix */
function meetTransposed(matrix) {
  return Array.from(matrix[0], (_, column) => Float64Array.from(matrix, (row) => row[column]));
}

/**
 * x · weightᵀ + bias, as in nn.Linear.
 * @param {Matrix} x @param {Matrix} weight transposed: (in, out)
 * @param {Float64Array} [bias]
 */
function meetLinear(x, weight, bias) {
  const result = weightedSum(x, weight);
  if (bias) for (const row of result) for (let i = 0; i < row.length; i += 1) row[i] += bias[i];
  return result;
}

/**
 * The weights of a stored model as matrices, so that nothing is decoded when the reader changes a setting.
 * @param {MeetStored} stored @throws {RangeError} numbers are missing or damaged
 */
export function meetModel({ num_heads: numHeads, embed_dim: embedDim, max_len: maxLen, words, tasks, residual, weights }) {
  const read = (/** @type {string} */ name, /** @type {number} */ rows, /** @type {number} */ columns) =>
    matrixFromFloat32(weights[name], columns, name, rows);
  const linear = (/** @type {string} */ name, outputs = embedDim) => ({
    weight: meetTransposed(read(`${name}.weight`, outputs, embedDim)),
    bias: weights[`${name}.bias`] === undefined ? undefined : read(`${name}.bias`, 1, outputs)[0],
  });
  const out = linear("out_proj");
  const headDim = embedDim / numHeads;
  return {
    numHeads,
    numTasks: tasks.length,
    hasResidual: residual,
    embedding: read("embedding", words.length, embedDim),
    positions: read("positions", maxLen, embedDim),
    query: linear("q_proj"),
    key: linear("k_proj"),
    value: linear("v_proj"),
    // Row i of the transposed matrix belongs to entry i of the merged heads.
    slices: Array.from({ length: numHeads }, (_, head) => out.weight.slice(head * headDim, (head + 1) * headDim)),
    outBias: out.bias,
    readOut: linear("read_out", tasks.length * words.length),
  };
}

/** @typedef {ReturnType<typeof meetModel>} MeetModel */

/**
 * The results of all heads for one query, whichever of them are on.
 * @param {MeetModel} model @param {number[]} tokens @param {number} query
 */
export function meetParts(model, tokens, query) {
  const x = tokens.map((token, place) => {
    const row = model.embedding[token].slice();
    for (let i = 0; i < row.length; i += 1) row[i] += model.positions[place][i];
    return row;
  });
  const project = (/** @type {Matrix} */ rows, /** @type {{weight: Matrix, bias?: Float64Array}} */ { weight, bias }) =>
    splitHeads(meetLinear(rows, weight, bias), model.numHeads);
  const queries = project([x[query]], model.query);
  const [keys, values] = [project(x, model.key), project(x, model.value)];
  const pooled = queries.map((q, head) => attentionPooling(scaledDotProductScore(q, keys[head]), values[head]));
  const heads = pooled.map(({ output }) => output[0]);
  return {
    weights: pooled.map(({ weights }) => weights[0]),
    heads,
    contributions: heads.map((head, index) => weightedSum([head], model.slices[index])[0]),
    residual: model.hasResidual ? x[query] : undefined,
  };
}

/** @typedef {ReturnType<typeof meetParts>} MeetParts */

/**
 * The summands of the output in the order in which they are drawn: the heads, the residual, the bias.
 * @param {MeetModel} model @param {MeetParts} parts @returns {MeetTerm[]}
 */
export function meetTerms({ outBias }, { contributions, residual }) {
  const terms = contributions.map((numbers, head) => ({ name: `head ${head}`, head, numbers }));
  if (residual) terms.push({ name: "residual", head: -1, numbers: residual });
  if (outBias) terms.push({ name: "bias", head: -1, numbers: outBias });
  return terms;
}

/**
 * The output with some heads switched off, its logits, and the word with the highest logit for each task.
 * @param {MeetModel} model @param {MeetTerm[]} terms @param {readonly number[]} gates
 */
export function meetAnswer({ readOut, numTasks }, terms, gates) {
  const output = new Float64Array(terms[0].numbers.length);
  for (const { head, numbers } of terms) {
    const gate = head < 0 ? 1 : gates[head];
    for (let i = 0; i < output.length; i += 1) output[i] += gate * numbers[i];
  }
  const all = meetLinear([output], readOut.weight, readOut.bias)[0];
  const size = all.length / numTasks;
  const logits = Array.from({ length: numTasks }, (_, task) => all.slice(task * size, (task + 1) * size));
  return { output, logits, answers: logits.map((row) => row.indexOf(Math.max(...row))) };
}

/**
 * Stacks the summands of each number: positive ones upwards from zero, negative ones downwards.
 * @param {readonly Float64Array[]} rows
 * @returns {{from: Float64Array, to: Float64Array}[]} both ends of each piece
 */
export function meetStack(rows) {
  const width = rows[0]?.length ?? 0;
  const [high, low] = zeroMatrix(2, width);
  return rows.map((row) => {
    const [from, to] = [new Float64Array(width), new Float64Array(width)];
    for (let i = 0; i < width; i += 1) {
      const top = row[i] < 0 ? low : high;
      from[i] = top[i];
      to[i] = top[i] += row[i];
    }
    return { from, to };
  });
}

/**
 * The lowest and the highest end of some pieces, with zero between them.
 * @param {{from: Float64Array, to: Float64Array}[]} pieces @returns {[number, number]}
 */
export function meetReach(pieces) {
  let [low, high] = [0, 0];
  for (const { to } of pieces) {
    for (let i = 0; i < to.length; i += 1) {
      if (to[i] < low) low = to[i];
      else if (to[i] > high) high = to[i];
    }
  }
  return [low, high];
}

/**
 * A box for each number, side by side, each one unit wide including the gap; y grows downwards in a picture.
 * @param {ArrayLike<number>} from @param {ArrayLike<number>} to @param {number} [gap]
 * @returns {string} the path
 */
export function meetBoxes(from, to, gap = 0.16) {
  let path = "";
  for (let i = 0; i < to.length; i += 1) {
    path += `M${(i + gap / 2).toFixed(2)} ${(-from[i]).toFixed(4)}V${(-to[i]).toFixed(4)}h${(1 - gap).toFixed(2)}V${(-from[i]).toFixed(4)}z`;
  }
  return path;
}

/**
 * The number of pixels for one unit if pictures of the given reaches share a height and a scale.
 * @param {[number, number][]} reaches @param {number} height of all pictures together
 */
export function meetScale(reaches, height) {
  const all = reaches.reduce((sum, [low, high]) => sum + high - low, 0);
  return all > 0 ? height / all : 1;
}
