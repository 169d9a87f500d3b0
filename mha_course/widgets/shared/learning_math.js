// The parts for training in the page: layers with backward passes, attention, loss, optimiser, and a run of steps.
//
// The text of these functions is also the program of a web worker, which is given them one by one. They therefore use
// only each other and their arguments, and no constant of this file.

/** @typedef {Object<string, Float64Array>} Parameters by the names that PyTorch gives them, row by row */

/** @typedef {{tokens: Int32Array, targets: Int32Array}} Batch the targets of a position are next to each other */

/** @typedef {{length: number, embedDim: number, numHeads: number, isCausal?: boolean}} Sizes of attention */

/**
 * The steps of a run and its largest learning rate; `warmUp` is the share of the steps in which the rate rises, `decay`
 * pulls weights to 0, `clip` is the length to which a longer gradient is shortened.
 * @typedef {{steps: number, lr: number, warmUp?: number, decay?: number, clip?: number}} Schedule
 */

/** @typedef {{y: Float64Array, back: (gradY: Float64Array) => Float64Array}} Layer its output, and the gradient of its input */

/** @typedef {(name: string, x: Float64Array, inputs: number) => Layer} Linear applies the layer of this name, which stores its gradients */

/**
 * A model's answers to a batch; `back` returns the gradient of all parameters.
 * @typedef {{logits: Float64Array, back: (gradLogits: Float64Array) => Parameters}} Pass
 */

/** @typedef {{name: string, shape: number[], size: number, draw?: "normal" | "uniform"}} Drawn see `drawParameters` */

/**
 * The initial parameters. If they are normal, `size` is their standard deviation; if uniform, their bound;
 * without `draw`, their value.
 * @param {Drawn[]} list @param {ReturnType<typeof import("./random_math.js").randomNumbers>} random @returns {Parameters}
 */
export function drawParameters(list, random) {
  return Object.fromEntries(
    list.map(({ name, shape, size, draw }) => {
      const next = draw === "normal" ? random.normal : draw ? () => 2 * random.uniform() - 1 : () => 1;
      return [name, Float64Array.from({ length: shape.reduce((a, b) => a * b) }, () => size * next())];
    }),
  );
}

/**
 * The product of two matrices, row by row. Four terms are added at a time, so that a sum is read and written less often.
 * @param {Float64Array} a (rows, inner) or, if it is transposed, (inner, rows)
 * @param {Float64Array} b (inner, columns)
 * @param {number} rows @param {number} inner @param {boolean} [isTransposed]
 */
function product(a, b, rows, inner, isTransposed = false) {
  const columns = b.length / inner;
  const [down, across] = isTransposed ? [1, rows] : [inner, 1];
  const result = new Float64Array(rows * columns);
  for (let row = 0, start = 0; row < rows; row++, start += columns) {
    const factor = (/** @type {number} */ k) => a[row * down + k * across];
    let k = 0;
    for (; k + 3 < inner; k += 4) {
      const [u, v, w, z] = [factor(k), factor(k + 1), factor(k + 2), factor(k + 3)];
      const first = k * columns;
      const [second, third, fourth] = [first + columns, first + 2 * columns, first + 3 * columns];
      for (let i = 0; i < columns; i++) {
        result[start + i] += u * b[first + i] + v * b[second + i] + w * b[third + i] + z * b[fourth + i];
      }
    }
    for (; k < inner; k++) for (let i = 0; i < columns; i++) result[start + i] += factor(k) * b[k * columns + i];
  }
  return result;
}

/**
 * Linear layers by name, x @ weight.T + bias, whose backward passes leave their gradients in `gradient`.
 * @param {Parameters} parameters @param {Parameters} gradient @returns {Linear}
 */
export function linearLayers(parameters, gradient) {
  return (name, x, inputs) => {
    const [weight, bias] = [parameters[`${name}.weight`], parameters[`${name}.bias`]];
    const [rows, outputs] = [x.length / inputs, weight.length / inputs];
    const transposed = weight.map((_, i) => weight[(i % outputs) * inputs + Math.floor(i / outputs)]);
    const y = product(x, transposed, rows, inputs);
    if (bias) for (let i = 0; i < y.length; i++) y[i] += bias[i % outputs];
    /** @param {Float64Array} gradY */
    function back(gradY) {
      gradient[`${name}.weight`] = product(gradY, x, outputs, rows, true);
      if (bias) gradient[`${name}.bias`] = product(new Float64Array(rows).fill(1), gradY, 1, rows);
      return product(gradY, weight, rows, outputs);
    }
    return { y, back };
  };
}

/**
 * The vector of each token: the row of the token in one table plus the row of its position in another.
 * @param {Parameters} parameters @param {Parameters} gradient receives those of both tables
 * @param {string[]} names of the tables @param {Int32Array} tokens @param {{length: number, embedDim: number}} sizes
 */
export function embedded(parameters, gradient, names, tokens, { length, embedDim }) {
  const [table, places] = names.map((name) => parameters[name]);
  const y = new Float64Array(tokens.length * embedDim);
  const each = (/** @type {(i: number, own: number, place: number) => void} */ visit) => {
    for (let row = 0, i = 0; row < tokens.length; row++) {
      for (let column = 0; column < embedDim; column++, i++) {
        visit(i, tokens[row] * embedDim + column, (row % length) * embedDim + column);
      }
    }
  };
  each((i, own, place) => (y[i] = table[own] + places[place]));
  /** @param {Float64Array} gradY */
  function back(gradY) {
    const [gradTable, gradPlaces] = names.map((name) => (gradient[name] = new Float64Array(parameters[name].length)));
    each((i, own, place) => {
      gradTable[own] += gradY[i];
      gradPlaces[place] += gradY[i];
    });
  }
  return { y, back };
}

/**
 * Weight and bias of a linear layer, as PyTorch draws them.
 * @param {string} name @param {number} outputs @param {number} inputs @returns {Drawn[]}
 */
export function drawnLinear(name, outputs, inputs) {
  const drawn = { draw: /** @type {const} */ ("uniform"), size: 1 / Math.sqrt(inputs) };
  return [
    { name: `${name}.weight`, shape: [outputs, inputs], ...drawn },
    { name: `${name}.bias`, shape: [outputs], ...drawn },
  ];
}

/**
 * Two linear layers with a ReLU between them.
 * @param {Linear} layer @param {string[]} names @param {Float64Array} x @param {number} inputs @param {number} hiddenDim
 * @returns {Layer}
 */
export function twoLayers(layer, [first, second], x, inputs, hiddenDim) {
  const up = layer(first, x, inputs);
  const hidden = up.y.map((number) => Math.max(number, 0));
  const down = layer(second, hidden, hiddenDim);
  // The ReLU passes the gradient on where its output is positive.
  return { y: down.y, back: (gradY) => up.back(down.back(gradY).map((grad, i) => (hidden[i] > 0 ? grad : 0))) };
}

/**
 * The scaled dot product of each query with each key, softmax, and the mean of the values, for each head.
 * @param {Float64Array[]} projected queries, keys and values of the table
 * @param {Int32Array} rows of the table, for each position of each sequence
 * @param {Sizes} sizes
 * @returns {{weights: Float64Array, output: Float64Array}} (sequences, numHeads, length, length) and
 *   (sequences * length, embedDim)
 */
export function attend([queries, keys, values], rows, { length, embedDim, numHeads, isCausal }) {
  const headDim = embedDim / numHeads;
  const scale = 1 / Math.sqrt(headDim);
  const weights = new Float64Array(rows.length * numHeads * length);
  const output = new Float64Array(rows.length * embedDim);
  for (let first = 0, w = 0; first < rows.length; first += length) {
    for (let start = 0; start < embedDim; start += headDim) {
      for (let query = first; query < first + length; query++, w += length) {
        const q = rows[query] * embedDim + start;
        const seen = isCausal ? query - first + 1 : length;
        let highest = -Infinity;
        for (let key = 0; key < seen; key++) {
          const k = rows[first + key] * embedDim + start;
          let score = 0;
          for (let i = 0; i < headDim; i++) score += queries[q + i] * keys[k + i];
          weights[w + key] = score * scale;
          highest = Math.max(highest, weights[w + key]);
        }
        let sum = 0;
        for (let key = 0; key < seen; key++) sum += weights[w + key] = Math.exp(weights[w + key] - highest);
        for (let key = 0; key < seen; key++) {
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
 * @param {Int32Array} rows @param {Sizes} sizes
 */
export function attendBackward(gradOutput, weights, [queries, keys, values], rows, { length, embedDim, numHeads, isCausal }) {
  const headDim = embedDim / numHeads;
  const scale = 1 / Math.sqrt(headDim);
  const [gradQueries, gradKeys, gradValues] = [queries, keys, values].map((x) => new Float64Array(x.length));
  const gradWeights = new Float64Array(length);
  for (let first = 0, w = 0; first < rows.length; first += length) {
    for (let start = 0; start < embedDim; start += headDim) {
      for (let query = first; query < first + length; query++, w += length) {
        const [q, o] = [rows[query] * embedDim + start, query * embedDim + start];
        const seen = isCausal ? query - first + 1 : length;
        let mean = 0;
        for (let key = 0; key < seen; key++) {
          const v = rows[first + key] * embedDim + start;
          let sum = 0;
          for (let i = 0; i < headDim; i++) {
            sum += gradOutput[o + i] * values[v + i];
            gradValues[v + i] += weights[w + key] * gradOutput[o + i];
          }
          gradWeights[key] = sum;
          mean += weights[w + key] * sum;
        }
        for (let key = 0; key < seen; key++) {
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
 * The one-cycle schedule (Smith & Topin, 2019) as PyTorch's OneCycleLR has it: in the first part of the steps, the
 * warm-up, the learning rate rises from lr / 25 to lr, then it falls to nearly 0; Adam's β₁ does the opposite.
 * @param {number} step counted from 0
 * @param {number} steps @param {number} lr @param {number} warmUp
 */
function oneCycle(step, steps, lr, warmUp) {
  const top = warmUp * steps - 1;
  const bend = (/** @type {number} */ from, /** @type {number} */ to, /** @type {number} */ share) =>
    to + ((from - to) / 2) * (1 + Math.cos(Math.PI * share));
  if (step <= top) return { rate: bend(lr / 25, lr, step / top), beta1: bend(0.95, 0.85, step / top) };
  const share = (step - top) / (steps - 1 - top);
  return { rate: bend(lr, lr / 25e4, share), beta1: bend(0.85, 0.95, share) };
}

/**
 * Adam (Kingma & Ba, 2015) with the one-cycle schedule, or AdamW (Loshchilov & Hutter, 2019) if weights decay. Returns
 * a function that takes the next step, in place.
 * @param {Parameters} parameters @param {Schedule} schedule @returns {(gradient: Parameters) => void}
 */
function optimizer(parameters, { steps, lr, warmUp = 0.1, decay = 0, clip = Infinity }) {
  const beta2 = 0.999;
  const zeros = () => Object.fromEntries(Object.entries(parameters).map(([k, x]) => [k, new Float64Array(x.length)]));
  const [means, squares] = [zeros(), zeros()];
  let step = 0;
  return (gradient) => {
    const { rate, beta1 } = oneCycle(step++, steps, lr, warmUp);
    const [correction1, correction2] = [1 - beta1 ** step, Math.sqrt(1 - beta2 ** step)];
    const sum = Object.values(gradient).reduce((all, grad) => grad.reduce((own, x) => own + x * x, all), 0);
    const share = Math.min(1, clip / (Math.sqrt(sum) + 1e-6));
    for (const [name, parameter] of Object.entries(parameters)) {
      const [grads, mean, square] = [gradient[name], means[name], squares[name]];
      for (let i = 0; i < parameter.length; i++) {
        const grad = share * grads[i];
        mean[i] += (1 - beta1) * (grad - mean[i]);
        square[i] = beta2 * square[i] + (1 - beta2) * grad * grad;
        parameter[i] *= 1 - rate * decay;
        parameter[i] -= ((rate / correction1) * mean[i]) / (Math.sqrt(square[i]) / correction2 + 1e-8);
      }
    }
  };
}

/**
 * A new model, which learns step by step.
 * @template {object} Measured
 * @param {Parameters} parameters which are changed in place
 * @param {Schedule & {vocabSize: number}} plan
 * @param {() => Batch} nextBatch
 * @param {(tokens: Int32Array) => Pass} forward
 * @param {(step: number) => Measured} measure what a record holds besides step and loss
 */
export function learningRun(parameters, plan, nextBatch, forward, measure) {
  const update = optimizer(parameters, plan);
  let [step, last] = [0, NaN];
  /** The loss of the next batch, which is then used up, and a function that returns its gradient. */
  const look = () => {
    const { tokens, targets } = nextBatch();
    const { logits, back } = forward(tokens);
    const { loss, gradLogits } = crossEntropy(logits, targets, plan.vocabSize);
    return { loss, gradient: () => back(gradLogits) };
  };
  return {
    parameters,
    look,
    /** One update; returns the loss of its batch. */
    advance() {
      const { loss, gradient } = look();
      update(gradient());
      step++;
      return (last = loss);
    },
    /** `loss` is that of the batch of the last step, before its update; NaN at step 0. */
    record: () => ({ step, loss: last, ...measure(step) }),
  };
}

/**
 * Returns a function that answers a request with the records of the next steps of a run. A request for step 1
 * restarts the run.
 * @template Plan, Record
 * @param {(plan: Plan) => {advance: () => number, record: () => Record}} startRun
 * @returns {(request: {plan: Plan, from: number, to: number}) => Record[]}
 */
export function learner(startRun) {
  /** @type {ReturnType<typeof startRun> | null} */
  let run = null;
  return ({ plan, from, to }) => {
    if (from === 1 || !run) run = startRun(plan);
    const records = [];
    for (let step = from; step <= to; step++) {
      run.advance();
      records.push(run.record());
    }
    return records;
  };
}

/** The functions that a worker needs for training, in addition to a model. */
export const LEARNING = [
  drawParameters, drawnLinear, product, linearLayers, embedded, twoLayers, attend, attendBackward, crossEntropy, oneCycle,
  optimizer, learningRun, learner,
];
