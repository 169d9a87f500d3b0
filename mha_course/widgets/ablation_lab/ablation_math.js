// Computes the answers of a trained model with one layer of attention from its weights, in float64, with some
// heads switched off. Pure functions, no DOM.

import {
  attentionPooling,
  bytesFromBase64,
  matrixFromFloat32,
  multiHeadSteps,
  numbersFromFloat32,
  scaledDotProductScore,
  splitHeads,
  validLenMask,
  zeroMatrix,
} from "../shared/attention_math.js";

export const ALL_SUBSETS = 4; // with up to this many heads, the table lists every subset

/** @typedef {import("../shared/attention_math.js").Matrix} Matrix */

/**
 * @typedef {object} StoredModel
 * @property {number} num_heads
 * @property {number} embed_dim
 * @property {Object<string, string>} weights by parameter name, float32 in base64
 */

/**
 * @typedef {object} StoredBatch
 * @property {number} samples
 * @property {number} length
 * @property {string[]} tasks
 * @property {string} tokens bytes in base64, (samples, length)
 * @property {string} targets bytes in base64, (samples, length, tasks)
 */

/**
 * x · weightᵀ + bias, as in nn.Linear.
 * @param {Matrix} x @param {Matrix} weight (out, in)
 * @param {Float64Array} [bias] @returns {Matrix}
 */
function linearRows(x, weight, bias) {
  const result = zeroMatrix(x.length, weight.length);
  for (let y = 0; y < x.length; y += 1) {
    const [row, own] = [x[y], result[y]];
    for (let out = 0; out < own.length; out += 1) {
      const column = weight[out];
      let sum = bias ? bias[out] : 0;
      for (let i = 0; i < row.length; i += 1) sum += row[i] * column[i];
      own[out] = sum;
    }
  }
  return result;
}

/** @param {Float64Array} a @param {Float64Array} b */
function addRows(a, b) {
  const sum = a.slice();
  for (let i = 0; i < sum.length; i += 1) sum[i] += b[i];
  return sum;
}

/**
 * Readers for the weights of a stored model: a matrix by name, and the bias of a projection if it has one.
 * @param {StoredModel} stored
 */
function storedWeights({ embed_dim: embedDim, weights }) {
  return {
    matrix: (/** @type {string} */ name, /** @type {number | undefined} */ rows = undefined) =>
      matrixFromFloat32(weights[name], embedDim, name, rows),
    bias(/** @type {string} */ name, /** @type {number} */ outputs) {
      const stored = weights[`${name}.bias`];
      return stored === undefined ? undefined : numbersFromFloat32(stored, `${name}.bias`, outputs);
    },
  };
}

/**
 * The matrices that turn the heads' outputs into logits. `ofHead` contains the columns of read_out · out_proj
 * that belong to each head, (logits, head_dim). `base` is the part of the logits from the biases, whichever
 * heads are on.
 * @param {ReturnType<typeof storedWeights>} weights @param {number} numHeads
 */
function readOutOfHeads({ matrix, bias }, numHeads) {
  const readOut = matrix("read_out.weight");
  const outProj = matrix("out_proj.weight", readOut[0].length);
  const transposed = Array.from(outProj[0], (_, column) => Float64Array.from(outProj, (row) => row[column]));
  const joined = linearRows(readOut, transposed);
  const headDim = transposed.length / numHeads;
  const ofHead = Array.from({ length: numHeads }, (_, head) =>
    joined.map((row) => row.slice(head * headDim, (head + 1) * headDim)),
  );
  const [outBias, readBias] = [bias("out_proj", outProj.length), bias("read_out", readOut.length) ?? new Float64Array(readOut.length)];
  return { ofHead, base: outBias ? addRows(linearRows([outBias], readOut)[0], readBias) : readBias };
}

/**
 * Computes everything that does not depend on the gates, above all the part of each logit from each head. Because
 * the layer's output is a sum over heads, the logits for any gates are sums of these parts.
 * @param {StoredModel} stored @param {StoredBatch} batch
 */
export function prepareModel(stored, batch) {
  const { samples, length, tasks } = batch;
  const numHeads = stored.num_heads;
  const weights = storedWeights(stored);
  const tokens = bytesFromBase64(batch.tokens, "tokens", samples * length);
  const targets = bytesFromBase64(batch.targets, "targets", samples * length * tasks.length);
  const { embed_dim: embedDim } = stored;
  const [embedding, positions] = [weights.matrix("embedding"), weights.matrix("positions", length)];
  if (tokens.some((token) => token >= embedding.length)) {
    throw new RangeError(`embedding must hold a row for each token, got ${embedding.length}: what the page stores is damaged`);
  }
  // The projection of token + position is the sum of the two projections.
  const tables = ["q_proj", "k_proj", "v_proj"].map((name) => {
    const weight = weights.matrix(`${name}.weight`, embedDim);
    return { ofToken: linearRows(embedding, weight), ofPlace: linearRows(positions, weight, weights.bias(name, embedDim)) };
  });
  const mask = validLenMask(length, length, length);
  const steps = (/** @type {number} */ sample) => {
    const [query, key, value] = tables.map(({ ofToken, ofPlace }) =>
      ofPlace.map((row, place) => addRows(row, ofToken[tokens[sample * length + place]])),
    );
    return multiHeadSteps({ query, key, value }, numHeads, mask);
  };
  const { ofHead, base } = readOutOfHeads(weights, numHeads);
  const logitCount = base.length;
  // There are few distinct inputs, one for each token at each position. Two quantities are therefore computed
  // once for the whole batch: the score of every pair of inputs, and the contribution of each input to the
  // logits if a head attends only to it.
  const [queries, keys, values] = tables.map(({ ofToken, ofPlace }) =>
    splitHeads(ofToken.flatMap((tokenRow) => ofPlace.map((placeRow) => addRows(placeRow, tokenRow))), numHeads),
  );
  const scores = queries.map((query, head) => scaledDotProductScore(query, keys[head]));
  const parts = values.map((value, head) => linearRows(value, ofHead[head]));
  const added = ofHead.map(() => new Float64Array(samples * length * logitCount));
  const seen = zeroMatrix(length, length);
  for (let sample = 0; sample < samples; sample += 1) {
    const inputs = Array.from({ length }, (_, place) => tokens[sample * length + place] * length + place);
    added.forEach((all, head) => {
      for (let q = 0; q < length; q += 1) {
        const row = scores[head][inputs[q]];
        for (let k = 0; k < length; k += 1) seen[q][k] = row[inputs[k]];
      }
      const { output } = attentionPooling(seen, inputs.map((input) => parts[head][input]));
      output.forEach((row, place) => all.set(row, (sample * length + place) * logitCount));
    });
  }
  return { numHeads, samples, length, tasks, tokens, targets, steps, base, added, classes: logitCount / tasks.length };
}

/** @typedef {ReturnType<typeof prepareModel>} LabModel */

/**
 * The answers with the heads gated, for `count` positions of the batch: at each one, an answer per task.
 * @param {LabModel} model @param {readonly number[]} gates @param {number} [first] @param {number} [count]
 */
export function gatedAnswers({ base, added, classes, tasks, samples, length }, gates, first = 0, count = samples * length) {
  const width = base.length;
  const answers = new Uint8Array(count * tasks.length);
  const logits = new Float64Array(width);
  for (let place = 0; place < count; place += 1) {
    logits.set(base);
    for (let head = 0; head < gates.length; head += 1) {
      if (gates[head] === 0) continue;
      const offset = (first + place) * width;
      for (let i = 0; i < width; i += 1) logits[i] += gates[head] * added[head][offset + i];
    }
    for (let task = 0; task < tasks.length; task += 1) {
      let best = task * classes;
      for (let i = best + 1; i < (task + 1) * classes; i += 1) if (logits[i] > logits[best]) best = i;
      answers[place * tasks.length + task] = best - task * classes;
    }
  }
  return answers;
}

/**
 * The accuracy on each task, then the share of positions where the answers to all tasks are right.
 * @param {LabModel} model @param {readonly number[]} gates
 */
export function gatedAccuracy(model, gates) {
  const { targets, tasks, samples, length } = model;
  const answers = gatedAnswers(model, gates);
  const right = new Array(tasks.length + 1).fill(0);
  for (let place = 0; place < samples * length; place += 1) {
    let all = 1;
    for (let task = 0; task < tasks.length; task += 1) {
      const isRight = answers[place * tasks.length + task] === targets[place * tasks.length + task] ? 1 : 0;
      right[task] += isRight;
      all *= isRight;
    }
    right[tasks.length] += all;
  }
  return Float64Array.from(right, (count) => count / (samples * length));
}

/**
 * The rows of the table: with few heads, every subset, smallest first; with many heads, the empty set and
 * each single head.
 * @param {number} numHeads @returns {number[][]} for each row, the heads that are off
 */
export function ablationSubsets(numHeads) {
  const most = numHeads <= ALL_SUBSETS ? numHeads : 1;
  /** @type {number[][]} */
  let latest = [[]];
  const all = [...latest];
  for (let size = 1; size <= most; size += 1) {
    latest = latest.flatMap((off) =>
      Array.from({ length: numHeads }, (_, head) => head)
        .filter((head) => off.length === 0 || head > off[off.length - 1])
        .map((head) => [...off, head]),
    );
    all.push(...latest);
  }
  return all;
}

/**
 * @param {number} numHeads @param {readonly number[]} off
 * @returns {number[]} one gate per head: 0 if the head is off, otherwise 1
 */
export function gatesWithout(numHeads, off) {
  return Array.from({ length: numHeads }, (_, head) => (off.includes(head) ? 0 : 1));
}

/** @param {readonly number[]} gates @returns {number[]} the heads that are off */
export function headsOff(gates) {
  return gates.flatMap((gate, head) => (gate === 0 ? [head] : []));
}
