// Kernel regression as attention: a query, keys and values that can be moved, and what follows them.

import { attentionPooling } from "./attention_math.js";
import { element, formatNumber, mark, mount } from "./frame.js";
import { facts, menu, slider } from "./parts.js";
import { plane, roundTicks } from "./plane.js";
import { kernelHeight, kernelScore, meanSquaredError, othersMask, POOLING_KERNELS } from "./pooling_math.js";

const POOLING_SETTINGS = ["kernel", "bandwidth", "query", "key", "value", "pair"];
const POOLING_DATA = ["key_range", "value_range", "truth", "truth_is_curve"];
const POOLING_GRID = 101;
const BANDWIDTH_STEPS = 50; // of the slider, from 1/100 of the range of the keys to 6/10
const BANDWIDTHS = /** @type {[number, number]} */ ([0.01, 100]);
const CLICK_REACH = 22; // pixels from a dot

const POOLING_HINT =
  "Drag the query (blue), or the key (orange) or the value (green) of the chosen pair; the arrow keys move them too. Click a dot to choose its pair.";

/** @typedef {ReturnType<typeof readPooling>} PoolingState */
/** @typedef {ReturnType<typeof computePooling>} PoolingNumbers */
/** @typedef {{state: PoolingState, numbers: PoolingNumbers}} PoolingMoment */

/** @param {import("./frame.js").Frame} frame */
function readPooling(frame) {
  /** @type {(name: string, bound: number) => [number, number]} */
  const range = (name, bound) => {
    const [low, high] = frame.reals(name, -bound, bound, 2);
    if (low >= high) throw new RangeError(`${name} must begin below its end, got ${low}..${high}`);
    return [low, high];
  };
  const keyRange = range("key_range", 100);
  const valueRange = range("value_range", 1000);
  const truth = frame.reals("truth", -1000, 1000);
  if (truth.length > 0 && truth.length !== POOLING_GRID) {
    throw new RangeError(`truth must hold ${POOLING_GRID} numbers or none, got ${truth.length}`);
  }
  const keys = frame.reals("key", ...keyRange);
  if (keys.length < 1 || keys.length > 64) throw new RangeError(`key must hold 1 to 64 numbers, got ${keys.length}`);
  return {
    keyRange,
    valueRange,
    truth,
    keys,
    values: frame.reals("value", ...valueRange, keys.length),
    kernel: frame.choice("kernel", POOLING_KERNELS),
    bandwidth: frame.real("bandwidth", ...BANDWIDTHS),
    query: frame.real("query", ...keyRange),
    pair: frame.whole("pair", 0, keys.length - 1),
  };
}

/** @param {PoolingState} state */
function computePooling({ keyRange: [low, high], truth, keys, values, kernel, bandwidth, query }) {
  const value = values.map((number) => Float64Array.of(number));
  /** @type {(queries: ArrayLike<number>, mask?: import("./attention_math.js").Mask) => {output: number[], weights: Float64Array[]}} */
  const pool = (queries, mask) => {
    const { output, weights } = attentionPooling(kernelScore(kernel, queries, keys, bandwidth), value, mask);
    return { output: output.map((row) => row[0]), weights };
  };
  const isAnswered = (/** @type {Float64Array} */ row) => row.some((weight) => weight > 0);
  const grid = Float64Array.from({ length: POOLING_GRID }, (_, i) => low + ((high - low) * i) / (POOLING_GRID - 1));
  const asked = pool([query]);
  const fit = pool(grid);
  const byAll = pool(keys);
  const byOthers = pool(keys, othersMask(keys.length));
  return {
    grid,
    output: asked.output[0],
    weights: asked.weights[0],
    fit: fit.output,
    fitIsAnswered: fit.weights.map(isAnswered),
    lonelyPoints: byOthers.weights.filter((row) => !isAnswered(row)).length,
    isAnswered: isAnswered(asked.weights[0]),
    trainingError: meanSquaredError(byAll.output, values),
    leaveOneOutError: meanSquaredError(byOthers.output, values),
    testError: truth.length ? meanSquaredError(fit.output, truth) : null,
  };
}

/**
 * A step of about a hundredth of a range: 1, 2 or 5 times a power of ten.
 * @param {[number, number]} range
 */
function stepOf(range) {
  const { values } = roundTicks(range, 100);
  return Number((values[1] - values[0]).toPrecision(1));
}

/**
 * What moved between two states.
 * @param {PoolingState} from
 * @param {PoolingState} to
 * @returns {string[]} names of settings
 */
function movedSettings(from, to) {
  /** @type {(a: number[], b: number[]) => boolean} */
  const differ = (a, b) => a.length !== b.length || a.some((number, index) => number !== b[index]);
  return [
    ...(from.kernel === to.kernel ? [] : ["kernel"]),
    ...(from.bandwidth === to.bandwidth ? [] : ["bandwidth"]),
    ...(from.query === to.query ? [] : ["query"]),
    ...(differ(from.keys, to.keys) ? ["key"] : []),
    ...(differ(from.values, to.values) ? ["value"] : []),
    ...(from.pair === to.pair ? [] : ["pair"]),
  ];
}

/**
 * What a move did, in words: to the setting, to the weights, to the output.
 * @param {string} name of the setting
 * @param {PoolingMoment} from where the move began
 * @param {PoolingMoment} to
 */
function tellMove(name, from, to) {
  const [a, b] = [from.numbers, to.numbers];
  const arrow = (/** @type {number} */ before, /** @type {number} */ after, digits = 3) =>
    `${formatNumber(before, digits)} → ${formatNumber(after, digits)}`;
  /** @type {(noun: string, before: number[], after: number[]) => {what: string, pair: number | null}} */
  const ofPairs = (noun, before, after) => {
    const indices = after.flatMap((number, index) => (number === before[index] ? [] : [index]));
    const pair = indices.length > 0 ? indices[0] : to.state.pair;
    if (indices.length > 1) return { what: `${indices.length} ${noun}s`, pair: null };
    return { what: `${noun} of pair ${pair}: ${arrow(before[pair], after[pair], 2)}`, pair };
  };
  /** @type {Object<string, () => {what: string, pair: number | null}>} */
  const moves = {
    kernel: () => ({ what: `kernel: ${from.state.kernel} → ${to.state.kernel}`, pair: null }),
    bandwidth: () => ({ what: `bandwidth: ${from.state.bandwidth} → ${to.state.bandwidth}`, pair: null }),
    query: () => ({ what: `query: ${arrow(from.state.query, to.state.query, 2)}`, pair: null }),
    key: () => ofPairs("key", from.state.keys, to.state.keys),
    value: () => ofPairs("value", from.state.values, to.state.values),
  };
  const { what, pair } = moves[name]();
  const changes = b.weights.map((weight, index) => Math.abs(weight - a.weights[index]));
  const largest = changes.indexOf(Math.max(...changes));
  const others = (/** @type {Float64Array} */ weights) =>
    weights.reduce((sum, weight, index) => (index === pair ? sum : sum + weight), 0);
  const how =
    pair === null
      ? `most that of pair ${largest}, ${arrow(a.weights[largest], b.weights[largest])}`
      : `that of pair ${pair} ${arrow(a.weights[pair], b.weights[pair])}, the sum of the others ${arrow(others(a.weights), others(b.weights))}`;
  const weightsChanged = changes[largest] > 0;
  const outputChanged = a.output !== b.output;
  return {
    what: what[0].toUpperCase() + what.slice(1),
    weightsChanged,
    weights: weightsChanged ? `changed: ${how}` : "unchanged, every one",
    outputChanged,
    output: outputChanged ? `changed: ${arrow(a.output, b.output)}` : "unchanged",
  };
}

/** @param {import("./frame.js").Frame} frame */
function build(frame) {
  let now = /** @type {PoolingMoment | null} */ (null);
  // Where the present move began: a drag is one move, whatever the number of its steps.
  let start = /** @type {PoolingMoment | null} */ (null);
  let moving = "";
  let pointed = /** @type {number | null} */ (null);

  const stopsOf = (/** @type {[number, number]} */ [low, high]) => {
    const stops = Array.from({ length: BANDWIDTH_STEPS + 1 }, (_, step) =>
      within(Number((((high - low) / 100) * 60 ** (step / BANDWIDTH_STEPS)).toPrecision(2)), BANDWIDTHS),
    );
    return [...new Set(stops)];
  };
  const within = (/** @type {number} */ value, /** @type {[number, number]} */ [low, high]) =>
    Math.min(Math.max(value, low), high);
  const replaced = (/** @type {number[]} */ numbers, /** @type {number} */ index, /** @type {number} */ number) =>
    numbers.map((old, i) => (i === index ? number : old));

  const kernels = menu(frame, "kernel", (index) => frame.set({ kernel: POOLING_KERNELS[index] }));
  const bandwidth = slider(frame, "bandwidth", (step) => now && frame.set({ bandwidth: stopsOf(now.state.keyRange)[step] }));
  const pair = slider(frame, "pair", (index) => frame.set({ pair: index }));
  const results = facts(
    ["output", "test_error", "training_error", "leave_one_out_error"],
    ["output", "test error", "training error", "leave-one-out error"],
  );

  const top = plane(frame, { label: "Pairs, true curve and fit", xName: "", yName: "value", ratio: 2 });
  top.node.classList.add("mha-fit");
  const truth = top.curve("truth");
  const queryLine = top.curve("query mha-guide");
  const keyLine = top.curve("key mha-guide");
  const nothing = top.curve("query mha-nothing");
  const fit = top.curve("query");
  const points = top.dots("key");
  const answer = top.dots("query");
  const below = plane(frame, { label: "Weight of each key", xName: "query and keys", yName: "weight", ratio: 6, ticks: [6, 2] });
  below.node.classList.add("mha-stems");
  const window = below.curve("query mha-window");
  const lineBelow = below.curve("query mha-guide");
  const stems = below.curve("key");
  const heads = below.dots("key");

  // The handles come in the order of their names: query, key, value.
  const moveKey = (/** @type {number} */ to) =>
    now && frame.set({ key: replaced(now.state.keys, now.state.pair, within(to, now.state.keyRange)) });
  const moveValue = (/** @type {number} */ to) =>
    now && frame.set({ value: replaced(now.state.values, now.state.pair, within(to, now.state.valueRange)) });
  const moveQuery = (/** @type {number} */ to) => now && frame.set({ query: within(to, now.state.keyRange) });
  const steps = { x: stepOf(readRange("key_range")), y: stepOf(readRange("value_range")) };
  function readRange(/** @type {string} */ name) {
    const limits = frame.get(name);
    // What is no range is told when it is drawn.
    return /** @type {[number, number]} */ (Array.isArray(limits) && limits[0] < limits[1] ? limits : [0, 1]);
  }
  const queryHandle = top.handle({ label: "query", role: "query", axis: "x", step: steps.x, onMove: (x) => moveQuery(x) });
  const valueHandle = top.handle({ label: "value", role: "value", axis: "y", step: steps.y, onMove: (_, y) => moveValue(y) });
  const keyHandle = below.handle({ label: "key", role: "key", axis: "x", step: steps.x, onMove: (x) => moveKey(x) });

  const pairText = element("p", { class: "mha-pair" });
  const moveHint = element("span", { class: "mha-hint", text: POOLING_HINT });
  const [what, weightsVerdict, outputVerdict, lonely] = [0, 1, 2, 3].map(() => element("span"));
  const moveText = element("p", { class: "mha-move" }, moveHint, what, weightsVerdict, outputVerdict, lonely);
  const legend = element(
    "p",
    { class: "mha-hint mha-legend" },
    ...[
      ["key", "pairs, larger with more weight"],
      ["truth", "true curve"],
      ["query", "fit"],
      ["nothing", "no key within reach: output 0"],
    ].map(([kind, text]) => element("span", { class: `mha-is-${kind}` }, element("i"), text)),
  );
  const legendOfNothing = /** @type {HTMLElement} */ (legend.lastElementChild);
  frame.body.append(
    element("div", { class: "mha-controls" }, kernels.node, bandwidth.node, pair.node, pairText),
    results.node,
    legend,
    top.node,
    below.node,
    moveText,
  );
  for (const area of [top.area, below.area]) {
    frame.listen(area, "click", (event) => {
      if (event.target.closest(".mha-handle") || !now) return;
      const near = nearest(area, event);
      if (near !== null) frame.set({ pair: near });
      else moveQuery(Number((Math.round(placeIn(area, event)[0] / steps.x) * steps.x).toFixed(10)));
    });
    frame.listen(area, "pointermove", (event) => point(event.target.closest(".mha-handle") ? null : nearest(area, event)));
    frame.listen(area, "pointerleave", () => point(null));
  }

  /** @type {(area: HTMLElement, event: PointerEvent) => [number, number, DOMRect]} place of a pointer, x in units of the keys */
  function placeIn(area, event) {
    const box = area.getBoundingClientRect();
    const [low, high] = now ? now.state.keyRange : [0, 1];
    const x = low + ((event.clientX - box.left) / box.width) * (high - low);
    return [x, (box.bottom - event.clientY) / box.height, box];
  }

  /** @type {(area: HTMLElement, event: PointerEvent) => number | null} the pair next to a pointer, if it is near */
  function nearest(area, event) {
    if (!now) return null;
    const { keys, values, keyRange, valueRange } = now.state;
    const [x, up, box] = placeIn(area, event);
    const distances = keys.map((key, index) => {
      const across = ((key - x) / (keyRange[1] - keyRange[0])) * box.width;
      // Below, a key is its whole stem.
      if (area === below.area) return Math.abs(across);
      return Math.hypot(across, ((values[index] - valueRange[0]) / (valueRange[1] - valueRange[0]) - up) * box.height);
    });
    const best = distances.indexOf(Math.min(...distances));
    return distances[best] <= (area === below.area ? CLICK_REACH / 2 : CLICK_REACH) ? best : null;
  }

  function point(/** @type {number | null} */ index) {
    if (index === pointed) return;
    pointed = index;
    showPair();
  }

  function showPair() {
    if (!now) return;
    const index = pointed !== null && pointed < now.state.keys.length ? pointed : now.state.pair;
    pairText.textContent = `${describePair(index)}, adds ${formatNumber(now.numbers.weights[index] * now.state.values[index], 3)} to the output`;
    Array.from(points.node.children).forEach((dot, i) => dot.classList.toggle("mha-now", i === pointed));
  }

  function describePair(/** @type {number} */ index) {
    if (!now) return "";
    const { keys, values } = now.state;
    return `pair ${index}: key ${formatNumber(keys[index], 2)}, value ${formatNumber(values[index], 2)}, weight ${formatNumber(now.numbers.weights[index], 3)}`;
  }

  return () => {
    const state = readPooling(frame);
    const numbers = computePooling(state);
    const before = now;
    now = { state, numbers };
    const { keys, values, keyRange, valueRange, query } = state;
    const { grid, weights, output, isAnswered } = numbers;

    kernels.draw(POOLING_KERNELS, POOLING_KERNELS.indexOf(state.kernel));
    const stops = stopsOf(keyRange);
    // From Python the bandwidth may lie between two stops of the slider.
    const gaps = stops.map((stop) => Math.abs(Math.log(stop / state.bandwidth)));
    const place = gaps.indexOf(Math.min(...gaps));
    bandwidth.draw(place, { low: 0, high: stops.length - 1, text: String(Number(state.bandwidth.toPrecision(3))) });
    pair.draw(state.pair, { low: 0, high: keys.length - 1, said: describePair(state.pair) });

    const silent = numbers.fitIsAnswered.filter((answered) => !answered).length;
    results.draw([
      { text: formatNumber(output, 3), hint: isAnswered ? "sum of weight · value" : "no key within reach", number: output },
      numbers.testError === null
        ? { text: "–", hint: "no true curve given" }
        : {
            text: formatNumber(numbers.testError, 3),
            hint: silent ? `${silent} of ${POOLING_GRID} see no key` : "to the true curve",
            number: numbers.testError,
          },
      { text: formatNumber(numbers.trainingError, 3), hint: "itself among its keys", number: numbers.trainingError },
      {
        text: formatNumber(numbers.leaveOneOutError, 3),
        hint: numbers.lonelyPoints ? `${numbers.lonelyPoints} of ${keys.length} see no other` : "each from all others",
        number: numbers.leaveOneOutError,
      },
    ]);

    top.draw(keyRange, valueRange);
    truth.draw(state.truth.length ? grid : [], state.truth);
    queryLine.draw([query, query], valueRange);
    keyLine.draw([keys[state.pair], keys[state.pair]], [valueRange[0], values[state.pair]]);
    fit.draw(grid, numbers.fit.map((number, i) => (numbers.fitIsAnswered[i] ? number : NaN)));
    nothing.draw(grid, numbers.fit.map((number, i) => (numbers.fitIsAnswered[i] ? NaN : number)));
    legendOfNothing.style.visibility = silent ? "visible" : "hidden";
    mark(fit.node, "fit", numbers.fit);
    points.draw(keys, values, (index) => ({ size: 6 + 16 * Math.sqrt(weights[index]), opacity: weights[index] > 0 ? 0.85 : 0.4 }));
    answer.draw(isAnswered ? [query] : [], [output], () => ({ size: 11 }));
    queryHandle.draw(query, valueRange[0]);
    valueHandle.draw(keys[state.pair], values[state.pair]);
    valueHandle.node.setAttribute("aria-label", `value of pair ${state.pair}`);
    keyHandle.node.setAttribute("aria-label", `key of pair ${state.pair}`);

    const highest = Math.max(...weights);
    const ceiling = [0.1, 0.2, 0.5].find((height) => highest <= height) ?? 1;
    below.draw(keyRange, [0, ceiling]);
    lineBelow.draw([query, query], [0, ceiling]);
    stems.draw(
      keys.flatMap((key) => [key, key, key]),
      Array.from(weights).flatMap((weight) => [0, weight, NaN]),
    );
    mark(stems.node, "weights", weights);
    heads.draw(keys, weights, () => ({ size: 6 }));
    keyHandle.draw(keys[state.pair], 0);
    drawWindow(state, numbers, ceiling);

    const byWeight = Array.from(weights.keys()).sort((a, b) => weights[b] - weights[a]);
    top.describe(`The query ${formatNumber(query, 2)} gets ${isAnswered ? `the output ${formatNumber(output, 3)}` : "no answer"}.`);
    below.describe(
      isAnswered
        ? `The largest: ${byWeight.slice(0, 3).map((index) => `pair ${index} ${formatNumber(weights[index], 3)}`).join(", ")}.`
        : "All are zero.",
    );
    showPair();
    showMove(before);
    frame.report(() => ({
      output,
      weights,
      fit: numbers.fit,
      training_error: numbers.trainingError,
      leave_one_out_error: numbers.leaveOneOutError,
      ...(numbers.testError !== null && { test_error: numbers.testError }),
    }));
  };

  /**
   * The kernel round the query, at the height at which its stems end; where it holds no key, as high as the plane.
   * @param {PoolingState} state
   * @param {PoolingNumbers} numbers
   * @param {number} ceiling
   */
  function drawWindow({ kernel, bandwidth: width, query, keys }, { weights, isAnswered }, ceiling) {
    const best = weights.indexOf(Math.max(...weights));
    const atBest = kernelHeight(kernel, (query - keys[best]) / width);
    const scale = isAnswered && atBest > 0 ? weights[best] / atBest : ceiling;
    const reach = kernel === "Gaussian" ? 4 : 1;
    const us = Array.from({ length: 81 }, (_, i) => (reach * (i - 40)) / 40);
    const heights = us.map((u) => scale * kernelHeight(kernel, u));
    window.draw([us[0], ...us, us[80]].map((u) => query + u * width), [0, ...heights, 0]);
  }

  /** @param {PoolingMoment | null} before */
  function showMove(before) {
    if (!now) return;
    const moved = before ? movedSettings(before.state, now.state) : [];
    if (moved.length === 1 && (moved[0] !== moving || !start)) [start, moving] = [before, moved[0]];
    if (moved.length > 1) [start, moving] = [null, ""];
    const isTold = start !== null && moving !== "pair";
    moveHint.hidden = isTold;
    for (const part of [what, weightsVerdict, outputVerdict, lonely]) part.hidden = !isTold;
    if (moved.length > 0 && moving === "pair") frame.say(`${describePair(now.state.pair)}.`);
    if (!start || !isTold) return;
    const told = tellMove(moving, start, now);
    what.textContent = `${told.what}.`;
    weightsVerdict.textContent = `Weights ${told.weights}.`;
    outputVerdict.textContent = `Output ${told.output}.`;
    weightsVerdict.classList.toggle("mha-changed", told.weightsChanged);
    outputVerdict.classList.toggle("mha-changed", told.outputChanged);
    lonely.textContent = now.numbers.isAnswered ? "" : "No key is within reach of the query: all weights are 0, and the output 0 is no estimate.";
    const changed = (/** @type {boolean} */ is) => (is ? "changed" : "unchanged");
    if (moved.length > 0) {
      frame.say(
        `${told.what}. Weights ${changed(told.weightsChanged)}, output ${changed(told.outputChanged)}: ` +
          `${formatNumber(now.numbers.output, 3)}. ${lonely.textContent}`,
      );
    }
  }
}

/** @param {import("./frame.js").Frame} frame */
function poolingPython(frame) {
  const { kernel, bandwidth, query, keys, values, truth, keyRange } = readPooling(frame);
  const [low, high] = keyRange;
  /** @type {Object<string, string>} */
  const closeness = {
    boxcar: "(u.abs() <= 1).double()",
    triangular: "(1 - u.abs()).clamp_min(0)",
    Epanechnikov: "(1 - u**2).clamp_min(0)",
  };
  const isGaussian = kernel === "Gaussian";
  const pool = isGaussian
    ? `def pool(queries, mask=None):
    """Nadaraya-Watson regression as attention: output and weights."""
    return attention_pooling(gaussian_score(queries, key, ${bandwidth}), value, mask)`
    : `def pool(queries, mask=True):
    """Nadaraya-Watson regression as attention: the score is log K, a key where K is 0 is not seen."""
    u = (queries - key.T) / ${bandwidth}
    closeness = ${closeness[kernel]}
    return attention_pooling(closeness.log(), value, (closeness > 0) & mask)`;
  const isCurve = frame.flag("truth_is_curve");
  const target = isCurve ? "curve(grid)[:, 0]" : `torch.tensor([${truth.join(", ")}], dtype=torch.float64)`;
  return `import torch

from mha_lib import attention_pooling${isGaussian ? ", gaussian_score" : ""}
${isCurve ? "from mha_lib.data import curve\n" : ""}
key = torch.tensor([${keys.join(", ")}], dtype=torch.float64).unsqueeze(-1)
value = torch.tensor([${values.join(", ")}], dtype=torch.float64).unsqueeze(-1)
query = torch.tensor([[${query}]], dtype=torch.float64)


${pool}


output, weights = (rows[0] for rows in pool(query))
output = output[0]
print(f"output {output:.4f}, largest weight {weights.max():.4f}")

grid = ${low} + (${high} - ${low < 0 ? `(${low})` : low}) * torch.arange(${POOLING_GRID}, dtype=torch.float64).unsqueeze(-1) / ${POOLING_GRID - 1}
fit = pool(grid)[0][:, 0]
${truth.length ? `test_error = (fit - ${target}).square().mean()\n` : ""}training_error = (pool(key)[0] - value).square().mean()
others = ~torch.eye(${keys.length}, dtype=torch.bool)
leave_one_out_error = (pool(key, others)[0] - value).square().mean()
print(f"errors: training {training_error:.4f}, leave-one-out {leave_one_out_error:.4f}${truth.length ? ", true curve {test_error:.4f}" : ""}")
`;
}

export default {
  /** @param {{model: import("./frame.js").Model, el: HTMLElement}} view */
  render: (view) =>
    mount(
      view,
      { name: "pooling-explorer", label: "Pooling explorer", settings: POOLING_SETTINGS, data: POOLING_DATA, python: poolingPython },
      build,
    ),
};
