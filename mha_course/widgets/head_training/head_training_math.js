// A layer of attention that learns to name two tokens at each position, the previous one and the mirrored one.
//
// The functions in `POINTERS` run in a web worker too, and use no constant of this file: see `learning_math.js`.

import {
  attend, attendBackward, drawnLinear, drawParameters, embedded, LEARNING, learningRun, linearLayers, twoLayers,
} from "../shared/learning_math.js";
import { randomNumbers } from "../shared/random_math.js";

/**
 * The sizes of the task and of the model. `heldOut` sequences, drawn with `heldOutSeed`, measure a model.
 * @typedef {{vocabSize: number, length: number, embedDim: number, hiddenDim: number, batchSize: number,
 *   steps: number, heldOut: number, heldOutSeed: number}} Sizes
 */

/** @typedef {Sizes & {numHeads: number, readOut: string, lr: number, seed: number}} Plan */

/** @typedef {import("../shared/learning_math.js").Parameters} Parameters */

/** @typedef {import("../shared/learning_math.js").Batch} Batch */

/**
 * A model after some steps. `loss` is that of the batch of the last step, before its update; NaN at step 0.
 * `roles` are, for each head, its mean weights on the previous and on the mirrored place, where these differ.
 * @typedef {{step: number, loss: number, bothRight: number, roles: Float64Array, maps: Float64Array}} TrainingRecord
 */

/**
 * The shape of each parameter, and how it is drawn at first: as in PyTorch and in `mha_lib`.
 * @param {Plan} plan
 * @returns {import("../shared/learning_math.js").Drawn[]}
 */
function parameterList({ vocabSize, length, embedDim, hiddenDim, readOut }) {
  const answers = 2 * vocabSize;
  const mlp = [["read_out.0", hiddenDim, embedDim], ["read_out.2", answers, hiddenDim]];
  const layers = /** @type {[string, number, number][]} */ (readOut === "MLP" ? mlp : [["read_out", answers, embedDim]]);
  return [
    { name: "embedding.weight", shape: [vocabSize, embedDim], draw: "normal", size: 1 },
    { name: "positions.encoding", shape: [length, embedDim], draw: "normal", size: 0.02 },
    ...["q", "k", "v", "out"].map((kind) => ({
      name: `attention.${kind}_proj.weight`,
      shape: [embedDim, embedDim],
      draw: /** @type {const} */ ("uniform"),
      size: Math.sqrt(3 / embedDim), // Xavier: the root of 6 / (inputs + outputs)
    })),
    ...layers.flatMap((layer) => drawnLinear(...layer)),
  ];
}

/**
 * Random tokens, and for each position the tokens at the previous and at the mirrored position.
 * @param {{below: (count: number) => number}} random @param {number} count of sequences
 * @param {{vocabSize: number, length: number}} sizes @returns {Batch}
 */
function pointerBatch(random, count, { vocabSize, length }) {
  const tokens = Int32Array.from({ length: count * length }, () => random.below(vocabSize));
  const targets = new Int32Array(2 * tokens.length);
  for (let row = 0; row < tokens.length; row++) {
    const place = row % length;
    const start = row - place;
    targets[2 * row] = tokens[start + ((place + length - 1) % length)];
    targets[2 * row + 1] = tokens[start + length - 1 - place];
  }
  return { tokens, targets };
}

/**
 * The whole model, with its attention weights. There are only vocabSize * length different sums of a token and a
 * position, however many sequences there are, so each is projected once: row token * length + position of a table.
 * @param {Parameters} parameters @param {Int32Array} tokens @param {Plan} plan
 */
function forwardPass(parameters, tokens, plan) {
  const { vocabSize, length, embedDim, hiddenDim, readOut } = plan;
  /** @type {Parameters} */
  const gradient = {};
  const layer = linearLayers(parameters, gradient);
  const known = Int32Array.from({ length: vocabSize * length }, (_, row) => Math.floor(row / length));
  const table = embedded(parameters, gradient, ["embedding.weight", "positions.encoding"], known, plan);
  const rows = tokens.map((token, row) => token * length + (row % length));
  const projected = ["q", "k", "v"].map((kind) => layer(`attention.${kind}_proj`, table.y, embedDim));
  const vectors = projected.map(({ y }) => y);
  const { weights, output } = attend(vectors, rows, plan);
  const merged = layer("attention.out_proj", output, embedDim);
  const names = ["read_out.0", "read_out.2"];
  const last = readOut === "MLP" ? twoLayers(layer, names, merged.y, embedDim, hiddenDim) : layer("read_out", merged.y, embedDim);
  const back = (/** @type {Float64Array} */ gradLogits) => {
    const gradOutput = merged.back(last.back(gradLogits));
    const gradProjected = attendBackward(gradOutput, weights, vectors, rows, plan);
    const [first, ...others] = gradProjected.map((grad, i) => projected[i].back(grad));
    table.back(first.map((grad, i) => grad + others[0][i] + others[1][i]));
    return gradient;
  };
  return { logits: last.y, weights, back };
}

/**
 * @param {Parameters} parameters @param {Batch} batch @param {Plan} plan
 * @returns {{bothRight: number, roles: Float64Array, maps: Float64Array}} the share of positions with both
 *   answers right, (numHeads, 2) and (numHeads, length, length)
 */
function measureModel(parameters, { tokens, targets }, plan) {
  const { vocabSize, length, numHeads } = plan;
  const { logits, weights } = forwardPass(parameters, tokens, plan);
  const named = (/** @type {number} */ answer) => {
    let best = answer * vocabSize;
    for (let i = best; i < (answer + 1) * vocabSize; i++) if (logits[i] > logits[best]) best = i;
    return best - answer * vocabSize;
  };
  let right = 0;
  for (let row = 0; row < tokens.length; row++) {
    if ([2 * row, 2 * row + 1].every((answer) => named(answer) === targets[answer])) right++;
  }
  const maps = new Float64Array(numHeads * length * length);
  const sequences = tokens.length / length;
  for (let i = 0; i < weights.length; i++) maps[i % maps.length] += weights[i] / sequences;
  const roles = new Float64Array(2 * numHeads);
  const places = Array.from({ length }, (_, place) => place);
  const apart = places.filter((place) => (place + length - 1) % length !== length - 1 - place);
  for (let head = 0; head < numHeads; head++) {
    for (const place of apart) {
      const row = (head * length + place) * length;
      roles[2 * head] += maps[row + ((place + length - 1) % length)] / apart.length;
      roles[2 * head + 1] += maps[row + length - 1 - place] / apart.length;
    }
  }
  return { bothRight: right / tokens.length, roles, maps };
}

/**
 * A new model, which learns step by step.
 * @param {Plan} plan
 * @param {Parameters} [parameters] at the start, instead of those of the seed; they are changed in place
 * @param {() => Batch} [nextBatch] instead of the batches of the seed
 */
function trainingRun(plan, parameters, nextBatch) {
  const own = parameters ?? drawParameters(parameterList(plan), randomNumbers(plan.seed, 0));
  const heldOut = pointerBatch(randomNumbers(plan.heldOutSeed, 2), plan.heldOut, plan);
  const random = randomNumbers(plan.seed, 1);
  return learningRun(
    own,
    plan,
    nextBatch ?? (() => pointerBatch(random, plan.batchSize, plan)),
    (tokens) => forwardPass(own, tokens, plan),
    () => measureModel(own, heldOut, plan),
  );
}

/** A run, and the functions that a worker needs for it. */
const POINTERS = {
  atOnce: 2,
  startRun: trainingRun,
  parts: [...LEARNING, randomNumbers, parameterList, pointerBatch, forwardPass, measureModel, trainingRun],
};

export { pointerBatch, POINTERS, trainingRun };
