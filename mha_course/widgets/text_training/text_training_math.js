// A small GPT that learns a text, character by character: the model of chapter 7 with its backward pass, and what it writes.
//
// The functions in `TEXTS` run in a web worker too, and use no constant of this file: see `learning_math.js`.

import {
  attentionPooling, causalMask, dotProductScore, maskedSoftmax, mergeHeads, scaledDotProductScore, splitHeads, weightedSum,
  zeroMatrix,
} from "../shared/attention_math.js";
import {
  attend, attendBackward, drawnLinear, drawParameters, embedded, LEARNING, learningRun, linearLayers, twoLayers,
} from "../shared/learning_math.js";
import { randomNumbers } from "../shared/random_math.js";
import {
  addAttention, addFeedForward, addInPlace, applyLinear, applyNorm, partsOf, remember, scaleColumns,
} from "../shared/transformer_math.js";
import {
  drawToken, forget, nextChances, numberAt, readOn, readText, startReading, writerFrom,
} from "../writer/writer_math.js";

/** @typedef {import("../shared/learning_math.js").Parameters} Parameters */

/**
 * The text and how it is learned; every `every` steps, the model writes `written` characters.
 * @typedef {import("../shared/learning_math.js").Sizes & import("../shared/learning_math.js").Schedule & {text: string, seed: number,
 *   numLayers: number, batchSize: number, every: number, written: number, temperature: number}} TextPlan
 */

/** @typedef {{step: number, loss: number, sample?: number[]}} TextRecord */

/**
 * The different characters of a text, sorted by code point, which gives their tokens; and the text as tokens.
 * @param {string} text
 */
export function charactersOf(text) {
  const all = [...text];
  const alphabet = [...new Set(all)].sort((a, b) => Number(a.codePointAt(0)) - Number(b.codePointAt(0)));
  const ids = new Map(alphabet.map((character, id) => [character, id]));
  return { alphabet, tokens: Int32Array.from(all, (character) => Number(ids.get(character))) };
}

/**
 * The parameters of `MyGPT`, drawn as PyTorch draws them.
 * @param {TextPlan} plan @param {number} vocabSize @returns {import("../shared/learning_math.js").Drawn[]}
 */
function gptParameters({ length, embedDim, numLayers }, vocabSize) {
  const norm = (/** @type {string} */ name) =>
    ["weight", "bias"].map((kind, index) => ({ name: `${name}.${kind}`, shape: [embedDim], size: 1 - index }));
  const blocks = Array.from({ length: numLayers }, (_, index) => `blocks.${index}`);
  return [
    { name: "embedding.weight", shape: [vocabSize, embedDim], draw: "normal", size: 1 },
    { name: "position_embedding.weight", shape: [length, embedDim], draw: "normal", size: 1 },
    ...blocks.flatMap((block) => [
      ...["q", "k", "v", "out"].flatMap((kind) => drawnLinear(`${block}.self_attention.${kind}_proj`, embedDim, embedDim)),
      ...norm(`${block}.self_attention_norm`),
      ...drawnLinear(`${block}.feed_forward.up_proj`, 4 * embedDim, embedDim),
      ...drawnLinear(`${block}.feed_forward.down_proj`, embedDim, 4 * embedDim),
      ...norm(`${block}.feed_forward_norm`),
    ]),
    ...norm("norm"),
    drawnLinear("output", vocabSize, embedDim)[0],
  ];
}

/**
 * Each row minus its mean, over its standard deviation, times the weight, plus the bias.
 * @param {Parameters} parameters @param {Parameters} gradient receives the gradients of weight and bias @param {string} name
 * @param {Float64Array} x @returns {import("../shared/learning_math.js").Layer}
 */
function layerNorm(parameters, gradient, name, x) {
  const [weight, bias] = [parameters[`${name}.weight`], parameters[`${name}.bias`]];
  const width = weight.length;
  const [y, normed] = [new Float64Array(x.length), new Float64Array(x.length)];
  const scales = new Float64Array(x.length / width);
  for (let row = 0, start = 0; start < x.length; row++, start += width) {
    let [mean, variance] = [0, 0];
    for (let i = 0; i < width; i++) mean += x[start + i] / width;
    for (let i = 0; i < width; i++) variance += (x[start + i] - mean) ** 2 / width;
    scales[row] = 1 / Math.sqrt(variance + 1e-5);
    for (let i = 0; i < width; i++) {
      normed[start + i] = (x[start + i] - mean) * scales[row];
      y[start + i] = normed[start + i] * weight[i] + bias[i];
    }
  }
  /** @param {Float64Array} gradY */
  function back(gradY) {
    const [gradX, gradWeight, gradBias] = [x, weight, bias].map((like) => new Float64Array(like.length));
    for (let row = 0, start = 0; start < x.length; row++, start += width) {
      let [mean, slope] = [0, 0];
      for (let i = 0; i < width; i++) {
        const [grad, number] = [gradY[start + i], normed[start + i]];
        gradBias[i] += grad;
        gradWeight[i] += grad * number;
        mean += (grad * weight[i]) / width;
        slope += (grad * weight[i] * number) / width;
      }
      // A shift or a scaling of the row does not change the output.
      for (let i = 0; i < width; i++) {
        gradX[start + i] = scales[row] * (gradY[start + i] * weight[i] - mean - slope * normed[start + i]);
      }
    }
    Object.assign(gradient, { [`${name}.weight`]: gradWeight, [`${name}.bias`]: gradBias });
    return gradX;
  }
  return { y, back };
}

/**
 * The whole model, for one or more windows of a text.
 * @param {Parameters} parameters @param {Int32Array} tokens @param {import("../shared/learning_math.js").Sizes & {numLayers: number}} sizes
 * @returns {import("../shared/learning_math.js").Pass}
 */
function gptPass(parameters, tokens, sizes) {
  const { embedDim, numLayers } = sizes;
  const rows = tokens.map((_, row) => row);
  const add = (/** @type {Float64Array} */ x, /** @type {Float64Array} */ y) => x.map((number, i) => number + y[i]);
  /** @type {Parameters} */
  const gradient = {};
  const layer = linearLayers(parameters, gradient);
  const norm = (/** @type {string} */ name, /** @type {Float64Array} */ input) => layerNorm(parameters, gradient, name, input);
  const vectors = embedded(parameters, gradient, ["embedding.weight", "position_embedding.weight"], tokens, sizes);
  let x = vectors.y;
  /** @type {((grad: Float64Array) => Float64Array)[]} the backward pass through each block, the last one first */
  const backs = [];
  for (let index = 0; index < numLayers; index++) {
    const block = `blocks.${index}`;
    const read = norm(`${block}.self_attention_norm`, x);
    const projected = ["q", "k", "v"].map((kind) => layer(`${block}.self_attention.${kind}_proj`, read.y, embedDim));
    const heads = projected.map(({ y }) => y);
    const { weights, output } = attend(heads, rows, sizes);
    const out = layer(`${block}.self_attention.out_proj`, output, embedDim);
    x = add(x, out.y);
    const second = norm(`${block}.feed_forward_norm`, x);
    const names = ["up", "down"].map((kind) => `${block}.feed_forward.${kind}_proj`);
    const fed = twoLayers(layer, names, second.y, embedDim, 4 * embedDim);
    x = add(x, fed.y);
    backs.unshift((grad) => {
      const between = add(grad, second.back(fed.back(grad)));
      const gradHeads = attendBackward(out.back(between), weights, heads, rows, sizes);
      return add(between, read.back(gradHeads.map((own, i) => projected[i].back(own)).reduce(add)));
    });
  }
  const last = norm("norm", x);
  const output = layer("output", last.y, embedDim);
  const back = (/** @type {Float64Array} */ gradLogits) => {
    vectors.back(backs.reduce((grad, pass) => pass(grad), last.back(output.back(gradLogits))));
    return gradient;
  };
  return { logits: output.y, back };
}

/**
 * The model as the widget `Writer` has it, which remembers keys and values and needs no backward pass.
 * @param {Parameters} parameters @param {number} vocabSize @param {TextPlan} plan
 */
function asWriter(parameters, vocabSize, plan) {
  const named = gptParameters(plan, vocabSize).map(({ name, shape: [rows, columns = 1] }) => {
    const inWriter = name.replace(/^(?=blocks|norm)/, "encoder.");
    return [inWriter, { data: parameters[name], rows, columns }];
  });
  return writerFrom(partsOf(Object.fromEntries(named), plan.numLayers), plan.numHeads, plan.numLayers);
}

/**
 * The tokens that the model writes: first that of the text, then tokens drawn as in the widget `Writer`.
 * @param {Parameters} parameters @param {number} vocabSize @param {number} first @param {number} count @param {TextPlan} plan
 */
function writeText(parameters, vocabSize, first, count, plan) {
  const model = asWriter(parameters, vocabSize, plan);
  const gates = model.encoder.blocks.map(() => new Array(plan.numHeads).fill(1));
  /** @type {ReturnType<typeof readText> | null} */
  let reading = null;
  const tokens = [first];
  while (tokens.length < count) {
    reading = readText(model, gates, tokens, reading);
    const chances = nextChances(reading.logits[reading.logits.length - 1], plan.temperature, vocabSize);
    tokens.push(drawToken(chances, numberAt(plan.seed, tokens.length)));
  }
  return tokens;
}

/**
 * A new model, which learns windows of the text step by step. Before training, it writes at most one window.
 * @param {TextPlan} plan
 */
function textRun(plan) {
  const { tokens, alphabet } = charactersOf(plan.text);
  const { length, batchSize, seed, steps } = plan;
  const parameters = drawParameters(gptParameters(plan, alphabet.length), randomNumbers(seed, 0));
  const random = randomNumbers(seed, 1);
  const nextBatch = () => {
    const starts = Array.from({ length: batchSize }, () => random.below(tokens.length - length));
    const windows = (/** @type {number} */ shift) =>
      Int32Array.from({ length: batchSize * length }, (_, i) => tokens[starts[Math.floor(i / length)] + (i % length) + shift]);
    return { tokens: windows(0), targets: windows(1) };
  };
  const measure = (/** @type {number} */ step) => {
    if (step % plan.every !== 0 && step !== steps) return {};
    return { sample: writeText(parameters, alphabet.length, tokens[0], step === 0 ? length : plan.written, plan) };
  };
  return learningRun(parameters, { ...plan, vocabSize: alphabet.length }, nextBatch, (seen) => gptPass(parameters, seen, plan), measure);
}

/** A run, and the functions that a worker needs for it. */
export const TEXTS = {
  atOnce: 5,
  startRun: textRun,
  parts: [
    ...LEARNING, zeroMatrix, splitHeads, mergeHeads, dotProductScore, scaledDotProductScore, causalMask, maskedSoftmax,
    weightedSum, attentionPooling, partsOf, scaleColumns, applyLinear, applyNorm, addInPlace, addAttention, addFeedForward,
    remember, writerFrom, startReading, forget, readOn, readText, randomNumbers, numberAt, nextChances, drawToken, charactersOf,
    gptParameters, layerNorm, gptPass, asWriter, writeText, textRun,
  ],
};
