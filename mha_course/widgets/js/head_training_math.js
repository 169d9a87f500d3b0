// A layer of attention that learns to name two tokens at each place, the previous one and the mirrored one:
// the model, its gradient, the optimiser and the random numbers, written out.
//
// The text of the functions in `LEARNER` is also the program of a web worker. They therefore use only each
// other and their arguments, and no constant of this file.

/**
 * The sizes of the task and of the model. `heldOut` sequences, drawn with `heldOutSeed`, measure a model.
 * @typedef {{vocabSize: number, length: number, embedDim: number, hiddenDim: number, batchSize: number,
 *   steps: number, heldOut: number, heldOutSeed: number}} Sizes
 */

/** @typedef {Sizes & {numHeads: number, readOut: string, lr: number, seed: number}} Plan */

/** @typedef {Object<string, Float64Array>} Parameters by the names that PyTorch gives them, row by row */

/** @typedef {{tokens: Int32Array, targets: Int32Array}} Batch the targets of a place are beside each other */

/**
 * A model after some steps. `loss` is that of the batch of the last step, before its update; NaN at step 0.
 * `roles` are, for each head, its mean weights on the previous and on the mirrored place, where these differ.
 * @typedef {{step: number, loss: number, bothRight: number, roles: Float64Array, maps: Float64Array}} TrainingRecord
 */

/**
 * The generator mulberry32, by Tommy Ettinger: a counter, whose bits are mixed.
 * @param {number} seed
 * @param {number} stream 0 draws the start of a model, 1 its batches, 2 the held-out sequences
 */
function randomNumbers(seed, stream) {
  let counter = (Math.imul(seed, 0x9e3779b1) + Math.imul(stream, 0x85ebca6b)) | 0;
  const uniform = () => {
    counter = (counter + 0x6d2b79f5) | 0;
    let bits = Math.imul(counter ^ (counter >>> 15), counter | 1);
    bits ^= bits + Math.imul(bits ^ (bits >>> 7), bits | 61);
    return ((bits ^ (bits >>> 14)) >>> 0) / 2 ** 32;
  };
  return {
    /** @type {() => number} from 0 to 1, without 1 */
    uniform,
    // By the method of Box and Muller; of its two numbers, one is used.
    normal: () => Math.sqrt(-2 * Math.log(1 - uniform())) * Math.cos(2 * Math.PI * uniform()),
    /** @type {(count: number) => number} a whole number below `count` */
    below: (count) => Math.floor(count * uniform()),
  };
}

/**
 * The shape of each parameter, and how it is drawn at first: as in PyTorch and in `mha_lib`.
 * @param {Plan} plan
 * @returns {{name: string, shape: number[], draw: "normal" | "uniform", size: number}[]} `size` is the
 *   standard deviation of normal numbers and the bound of uniform ones
 */
function parameterList({ vocabSize, length, embedDim, hiddenDim, readOut }) {
  const answers = 2 * vocabSize;
  const layers = readOut === "MLP" ? [[hiddenDim, embedDim], [answers, hiddenDim]] : [[answers, embedDim]];
  return [
    { name: "embedding.weight", shape: [vocabSize, embedDim], draw: "normal", size: 1 },
    { name: "positions.encoding", shape: [length, embedDim], draw: "normal", size: 0.02 },
    ...["q", "k", "v", "out"].map((kind) => ({
      name: `attention.${kind}_proj.weight`,
      shape: [embedDim, embedDim],
      draw: /** @type {const} */ ("uniform"),
      size: Math.sqrt(3 / embedDim), // Xavier: the root of 6 / (inputs + outputs)
    })),
    ...layers.flatMap(([outputs, inputs], index) => {
      const prefix = layers.length === 1 ? "read_out" : `read_out.${2 * index}`;
      const drawn = { draw: /** @type {const} */ ("uniform"), size: 1 / Math.sqrt(inputs) };
      return [
        { name: `${prefix}.weight`, shape: [outputs, inputs], ...drawn },
        { name: `${prefix}.bias`, shape: [outputs], ...drawn },
      ];
    }),
  ];
}

/** @param {Plan} plan @returns {Parameters} */
function startParameters(plan) {
  const random = randomNumbers(plan.seed, 0);
  /** @type {Parameters} */
  const parameters = {};
  for (const { name, shape, draw, size } of parameterList(plan)) {
    parameters[name] = Float64Array.from({ length: shape.reduce((a, b) => a * b) }, () =>
      draw === "normal" ? size * random.normal() : size * (2 * random.uniform() - 1),
    );
  }
  return parameters;
}

/**
 * Random tokens, and for each place the token at the previous place and the one at the mirrored place.
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
 * x @ weight.T + bias, row by row.
 * @param {Float64Array} x @param {Float64Array} weight (outputs, inputs)
 * @param {number} inputs @param {Float64Array} [bias]
 */
function linear(x, weight, inputs, bias) {
  const [rows, outputs] = [x.length / inputs, weight.length / inputs];
  const y = new Float64Array(rows * outputs);
  for (let row = 0; row < rows; row++) {
    for (let output = 0; output < outputs; output++) {
      let sum = bias ? bias[output] : 0;
      for (let i = 0; i < inputs; i++) sum += x[row * inputs + i] * weight[output * inputs + i];
      y[row * outputs + output] = sum;
    }
  }
  return y;
}

/**
 * The backward pass of `linear`: the gradients of x, weight and bias, from that of y.
 * @param {Float64Array} gradY @param {Float64Array} x @param {Float64Array} weight @param {number} inputs
 */
function linearBackward(gradY, x, weight, inputs) {
  const [rows, outputs] = [x.length / inputs, weight.length / inputs];
  const gradX = new Float64Array(x.length);
  const gradWeight = new Float64Array(weight.length);
  const gradBias = new Float64Array(outputs);
  for (let row = 0; row < rows; row++) {
    for (let output = 0; output < outputs; output++) {
      const grad = gradY[row * outputs + output];
      gradBias[output] += grad;
      for (let i = 0; i < inputs; i++) {
        gradX[row * inputs + i] += grad * weight[output * inputs + i];
        gradWeight[output * inputs + i] += grad * x[row * inputs + i];
      }
    }
  }
  return { gradX, gradWeight, gradBias };
}

/**
 * The input of the layer: a vector for each token at each place, at row place * vocabSize + token. There are
 * only length * vocabSize of them, however many sequences there are, so each is projected once.
 * @param {Parameters} parameters @param {Plan} plan
 */
function inputTable(parameters, { vocabSize, length, embedDim }) {
  const table = new Float64Array(length * vocabSize * embedDim);
  for (let i = 0; i < table.length; i++) {
    const [row, column] = [Math.floor(i / embedDim), i % embedDim];
    const [place, token] = [Math.floor(row / vocabSize), row % vocabSize];
    table[i] =
      parameters["embedding.weight"][token * embedDim + column] +
      parameters["positions.encoding"][place * embedDim + column];
  }
  return table;
}

/**
 * The scaled dot product of each query with each key, softmax, and the mean of the values, head by head.
 * @param {Float64Array[]} projected queries, keys and values of the table
 * @param {Int32Array} rows of the table, for each place of each sequence
 * @param {Plan} plan
 * @returns {{weights: Float64Array, output: Float64Array}} (sequences, numHeads, length, length) and
 *   (sequences * length, embedDim)
 */
function attend([queries, keys, values], rows, { length, embedDim, numHeads }) {
  const headDim = embedDim / numHeads;
  const scale = 1 / Math.sqrt(headDim);
  const weights = new Float64Array(rows.length * numHeads * length);
  const output = new Float64Array(rows.length * embedDim);
  for (let first = 0, w = 0; first < rows.length; first += length) {
    for (let start = 0; start < embedDim; start += headDim) {
      for (let query = first; query < first + length; query++, w += length) {
        const q = rows[query] * embedDim + start;
        let highest = -Infinity;
        for (let key = 0; key < length; key++) {
          const k = rows[first + key] * embedDim + start;
          let score = 0;
          for (let i = 0; i < headDim; i++) score += queries[q + i] * keys[k + i];
          weights[w + key] = score * scale;
          highest = Math.max(highest, weights[w + key]);
        }
        let sum = 0;
        for (let key = 0; key < length; key++) sum += weights[w + key] = Math.exp(weights[w + key] - highest);
        for (let key = 0; key < length; key++) {
          weights[w + key] /= sum;
          const v = rows[first + key] * embedDim + start;
          for (let i = 0; i < headDim; i++) output[query * embedDim + start + i] += weights[w + key] * values[v + i];
        }
      }
    }
  }
  return { weights, output };
}

/**
 * The backward pass of `attend`: the gradients of the projected queries, keys and values of the table.
 * @param {Float64Array} gradOutput @param {Float64Array} weights @param {Float64Array[]} projected
 * @param {Int32Array} rows @param {Plan} plan
 */
function attendBackward(gradOutput, weights, [queries, keys, values], rows, { length, embedDim, numHeads }) {
  const headDim = embedDim / numHeads;
  const scale = 1 / Math.sqrt(headDim);
  const [gradQueries, gradKeys, gradValues] = [queries, keys, values].map((x) => new Float64Array(x.length));
  const gradWeights = new Float64Array(length);
  for (let first = 0, w = 0; first < rows.length; first += length) {
    for (let start = 0; start < embedDim; start += headDim) {
      for (let query = first; query < first + length; query++, w += length) {
        const [q, o] = [rows[query] * embedDim + start, query * embedDim + start];
        let mean = 0;
        for (let key = 0; key < length; key++) {
          const v = rows[first + key] * embedDim + start;
          let sum = 0;
          for (let i = 0; i < headDim; i++) {
            sum += gradOutput[o + i] * values[v + i];
            gradValues[v + i] += weights[w + key] * gradOutput[o + i];
          }
          gradWeights[key] = sum;
          mean += weights[w + key] * sum;
        }
        for (let key = 0; key < length; key++) {
          const gradScore = weights[w + key] * (gradWeights[key] - mean) * scale;
          const k = rows[first + key] * embedDim + start;
          for (let i = 0; i < headDim; i++) {
            gradQueries[q + i] += gradScore * keys[k + i];
            gradKeys[k + i] += gradScore * queries[q + i];
          }
        }
      }
    }
  }
  return [gradQueries, gradKeys, gradValues];
}

/**
 * The whole model, with what the backward pass needs.
 * @param {Parameters} parameters @param {Int32Array} tokens @param {Plan} plan
 */
function forwardPass(parameters, tokens, plan) {
  const { vocabSize, length, embedDim, hiddenDim, readOut } = plan;
  const table = inputTable(parameters, plan);
  const rows = tokens.map((token, row) => (row % length) * vocabSize + token);
  const projected = ["q", "k", "v"].map((kind) => linear(table, parameters[`attention.${kind}_proj.weight`], embedDim));
  const { weights, output } = attend(projected, rows, plan);
  const merged = linear(output, parameters["attention.out_proj.weight"], embedDim);
  if (readOut !== "MLP") {
    const logits = linear(merged, parameters["read_out.weight"], embedDim, parameters["read_out.bias"]);
    return { table, rows, projected, weights, output, merged, hidden: null, logits };
  }
  const before = linear(merged, parameters["read_out.0.weight"], embedDim, parameters["read_out.0.bias"]);
  const hidden = before.map((number) => Math.max(number, 0));
  const logits = linear(hidden, parameters["read_out.2.weight"], hiddenDim, parameters["read_out.2.bias"]);
  return { table, rows, projected, weights, output, merged, hidden, logits };
}

/**
 * The mean cross-entropy of the answers, in nats, and its gradient with respect to the logits.
 * @param {Float64Array} logits @param {Int32Array} targets @param {number} classes
 */
function crossEntropy(logits, targets, classes) {
  const gradLogits = new Float64Array(logits.length);
  let loss = 0;
  for (let answer = 0; answer < targets.length; answer++) {
    const start = answer * classes;
    let highest = -Infinity;
    for (let i = start; i < start + classes; i++) highest = Math.max(highest, logits[i]);
    let sum = 0;
    for (let i = start; i < start + classes; i++) sum += gradLogits[i] = Math.exp(logits[i] - highest);
    for (let i = start; i < start + classes; i++) gradLogits[i] /= sum * targets.length;
    gradLogits[start + targets[answer]] -= 1 / targets.length;
    loss += highest + Math.log(sum) - logits[start + targets[answer]];
  }
  return { loss: loss / targets.length, gradLogits };
}

/**
 * @param {Parameters} parameters @param {Batch} batch @param {Plan} plan
 * @returns {{loss: number, gradient: Parameters}}
 */
function lossAndGradient(parameters, { tokens, targets }, plan) {
  const { vocabSize, embedDim, hiddenDim } = plan;
  const { table, rows, projected, weights, output, merged, hidden, logits } = forwardPass(parameters, tokens, plan);
  const { loss, gradLogits } = crossEntropy(logits, targets, vocabSize);
  /** @type {Parameters} */
  const gradient = {};
  const back = (/** @type {Float64Array} */ gradY, /** @type {Float64Array} */ x, /** @type {string} */ name, /** @type {number} */ inputs) => {
    const { gradX, gradWeight, gradBias } = linearBackward(gradY, x, parameters[`${name}.weight`], inputs);
    gradient[`${name}.weight`] = gradWeight;
    if (`${name}.bias` in parameters) gradient[`${name}.bias`] = gradBias;
    return gradX;
  };

  let gradMerged;
  if (hidden) {
    const gradHidden = back(gradLogits, hidden, "read_out.2", hiddenDim);
    // The ReLU passes the gradient on where its output is positive.
    gradMerged = back(gradHidden.map((grad, i) => (hidden[i] > 0 ? grad : 0)), merged, "read_out.0", embedDim);
  } else gradMerged = back(gradLogits, merged, "read_out", embedDim);
  const gradOutput = back(gradMerged, output, "attention.out_proj", embedDim);
  const gradProjected = attendBackward(gradOutput, weights, projected, rows, plan);
  const gradTables = ["q", "k", "v"].map((kind, i) => back(gradProjected[i], table, `attention.${kind}_proj`, embedDim));

  // Each row of the table is the sum of an embedding and a position.
  const gradEmbedding = new Float64Array(parameters["embedding.weight"].length);
  const gradPositions = new Float64Array(parameters["positions.encoding"].length);
  for (let i = 0; i < table.length; i++) {
    const [row, column] = [Math.floor(i / embedDim), i % embedDim];
    const grad = gradTables[0][i] + gradTables[1][i] + gradTables[2][i];
    gradEmbedding[(row % vocabSize) * embedDim + column] += grad;
    gradPositions[Math.floor(row / vocabSize) * embedDim + column] += grad;
  }
  gradient["embedding.weight"] = gradEmbedding;
  gradient["positions.encoding"] = gradPositions;
  return { loss, gradient };
}

/**
 * The one-cycle schedule (Smith & Topin, 2019) as PyTorch's OneCycleLR has it: in the first tenth of the steps
 * the learning rate rises from lr / 25 to lr, then it falls to nearly 0; Adam's β₁ does the opposite.
 * @param {number} step counted from 0
 * @param {number} steps @param {number} lr
 */
function oneCycle(step, steps, lr) {
  const top = 0.1 * steps - 1;
  const bend = (/** @type {number} */ from, /** @type {number} */ to, /** @type {number} */ share) =>
    to + ((from - to) / 2) * (1 + Math.cos(Math.PI * share));
  if (step <= top) return { rate: bend(lr / 25, lr, step / top), beta1: bend(0.95, 0.85, step / top) };
  const share = (step - top) / (steps - 1 - top);
  return { rate: bend(lr, lr / 25e4, share), beta1: bend(0.85, 0.95, share) };
}

/**
 * One update by Adam (Kingma & Ba, 2015), in place.
 * @param {Parameters} parameters @param {Parameters} gradient
 * @param {{means: Parameters, squares: Parameters}} moments running means of the gradient and of its square
 * @param {number} step counted from 1
 * @param {{rate: number, beta1: number}} schedule
 */
function adamStep(parameters, gradient, { means, squares }, step, { rate, beta1 }) {
  const beta2 = 0.999;
  const [correction1, correction2] = [1 - beta1 ** step, Math.sqrt(1 - beta2 ** step)];
  for (const [name, parameter] of Object.entries(parameters)) {
    const [grad, mean, square] = [gradient[name], means[name], squares[name]];
    for (let i = 0; i < parameter.length; i++) {
      mean[i] += (1 - beta1) * (grad[i] - mean[i]);
      square[i] = beta2 * square[i] + (1 - beta2) * grad[i] * grad[i];
      parameter[i] -= ((rate / correction1) * mean[i]) / (Math.sqrt(square[i]) / correction2 + 1e-8);
    }
  }
}

/**
 * @param {Parameters} parameters @param {Batch} batch @param {Plan} plan
 * @returns {{bothRight: number, roles: Float64Array, maps: Float64Array}} the share of places with both
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
 * A model at its start, which learns step by step.
 * @param {Plan} plan
 * @param {Parameters} [parameters] at the start, instead of those of the seed; they are changed in place
 * @param {() => Batch} [nextBatch] instead of the batches of the seed
 */
function trainingRun(plan, parameters = startParameters(plan), nextBatch) {
  const random = randomNumbers(plan.seed, 1);
  const draw = nextBatch ?? (() => pointerBatch(random, plan.batchSize, plan));
  const heldOut = pointerBatch(randomNumbers(plan.heldOutSeed, 2), plan.heldOut, plan);
  const zeros = () => Object.fromEntries(Object.entries(parameters).map(([k, x]) => [k, new Float64Array(x.length)]));
  const moments = { means: zeros(), squares: zeros() };
  let step = 0;
  let last = NaN;
  return {
    /** One update; returns the loss of its batch. */
    advance() {
      const { loss, gradient } = lossAndGradient(parameters, draw(), plan);
      adamStep(parameters, gradient, moments, step + 1, oneCycle(step, plan.steps, plan.lr));
      step++;
      last = loss;
      return loss;
    },
    /** The loss of the next batch, without the update and its gradient; the batch is used up. */
    nextLoss() {
      const { tokens, targets } = draw();
      return crossEntropy(forwardPass(parameters, tokens, plan).logits, targets, plan.vocabSize).loss;
    },
    /** @returns {TrainingRecord} */
    record: () => ({ step, loss: last, ...measureModel(parameters, heldOut, plan) }),
  };
}

/**
 * Returns a function that answers a request with the records of the next steps of a run. A request for step 1
 * starts the run anew.
 * @returns {(request: {plan: Plan, from: number, to: number}) => TrainingRecord[]}
 */
function learner() {
  /** @type {ReturnType<typeof trainingRun> | null} */
  let run = null;
  return ({ plan, from, to }) => {
    if (from === 1 || !run) run = trainingRun(plan);
    const records = [];
    for (let step = from; step <= to; step++) {
      run.advance();
      records.push(run.record());
    }
    return records;
  };
}

/** What a worker needs in order to train, the functions that it calls included. */
const LEARNER = [
  randomNumbers, parameterList, startParameters, pointerBatch, linear, linearBackward, inputTable, attend,
  attendBackward, forwardPass, crossEntropy, lossAndGradient, oneCycle, adamStep, measureModel, trainingRun, learner,
];

/** The program of the worker: it answers each request, whose number it returns with the records. */
export function workerProgram() {
  return `"use strict";
${LEARNER.map(String).join("\n")}
const answer = learner();
onmessage = ({ data }) => postMessage({ number: data.number, records: answer(data) });
`;
}

export {
  adamStep, learner, lossAndGradient, measureModel, oneCycle, parameterList, pointerBatch, randomNumbers,
  startParameters, trainingRun,
};
