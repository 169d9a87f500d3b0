// Kernel regression as attention: the reader moves query, keys and values and sees the effect.

import { formatNumber } from "../shared/format.js";
import { element, mark, widget } from "../shared/frame.js";
import { facts, menu, slider } from "../shared/parts.js";
import { plane } from "../shared/plane.js";
import { bandwidthStops, computePooling, GRID, kernelWindow, movedSettings } from "./pooling_math.js";
import { roundStep, within } from "../shared/tick_math.js";

const POOLING_DATA = ["key_range", "value_range", "truth"];
const CLICK_REACH = 22; // pixels from a dot

const POOLING_HINT =
  "Drag the query (blue), or the key (orange) or the value (green) of the chosen pair; the arrow keys move them too. Click a dot to choose its pair.";

/** @typedef {import("../shared/frame.js").Frame} Frame */
/** @typedef {import("./pooling_math.js").PoolingState} PoolingState */
/** @typedef {ReturnType<typeof computePooling>} PoolingNumbers */
/** @typedef {{state: PoolingState, numbers: PoolingNumbers}} PoolingMoment */

/** Throws a RangeError unless the data that only Python sets are valid. @param {Frame} frame */
function checkPooling(frame) {
  for (const name of ["key_range", "value_range"]) {
    const range = frame.get(name);
    const isRange = Array.isArray(range) && range.length === 2 && range[0] < range[1];
    frame.insist(isRange, name, "begin below its end");
  }
  const truth = frame.get("truth");
  frame.insist(Array.isArray(truth), "truth", "hold numbers");
  if (truth.length > 0 && truth.length !== GRID) {
    throw new RangeError(`truth must hold ${GRID} numbers or none, got ${truth.length}`);
  }
}

/** @param {Frame} frame @returns {PoolingState} */
function readPooling(frame) {
  const { key, value, ...settings } = frame.read();
  const [keyRange, valueRange, truth] = ["key_range", "value_range", "truth"].map((name) => frame.get(name));
  return { ...settings, keyRange, valueRange, truth, keys: key, values: value };
}

/** Describes a pair in words. @param {PoolingMoment} moment @param {number} index */
function describePair({ state: { keys, values }, numbers: { weights } }, index) {
  const [key, value] = [keys[index], values[index]].map((number) => formatNumber(number, 2));
  return `pair ${index}: key ${key}, value ${value}, weight ${formatNumber(weights[index], 3)}`;
}

/**
 * Describes in words how a move changed the setting, the weights and the output.
 * @param {string} name of the setting
 * @param {PoolingMoment} from where the move began
 * @param {PoolingMoment} to
 */
function tellMove(name, from, to) {
  const [a, b] = [from.numbers, to.numbers];
  const arrow = (/** @type {number} */ before, /** @type {number} */ after, digits = 3) =>
    `${formatNumber(before, digits)} → ${formatNumber(after, digits)}`;
  /** @type {(texts: {many: (count: number) => string, one: (pair: number, move: string) => string}, before: number[], after: number[]) => {what: string, pair: number | null}} */
  const ofPairs = ({ many, one }, before, after) => {
    const indices = after.flatMap((number, index) => (number === before[index] ? [] : [index]));
    const pair = indices.length > 0 ? indices[0] : to.state.pair;
    if (indices.length > 1) return { what: many(indices.length), pair: null };
    return { what: one(pair, arrow(before[pair], after[pair], 2)), pair };
  };
  /** @type {Object<string, () => {what: string, pair: number | null}>} */
  const moves = {
    kernel: () => ({ what: `kernel: ${from.state.kernel} → ${to.state.kernel}`, pair: null }),
    bandwidth: () => ({ what: `bandwidth: ${from.state.bandwidth} → ${to.state.bandwidth}`, pair: null }),
    query: () => ({ what: `query: ${arrow(from.state.query, to.state.query, 2)}`, pair: null }),
    keys: () => ofPairs({ many: (count) => `${count} keys`, one: (pair, move) => `key of pair ${pair}: ${move}` }, from.state.keys, to.state.keys),
    values: () => ofPairs({ many: (count) => `${count} values`, one: (pair, move) => `value of pair ${pair}: ${move}` }, from.state.values, to.state.values),
  };
  const { what, pair } = moves[name]();
  const changes = b.weights.map((weight, index) => Math.abs(weight - a.weights[index]));
  const largest = changes.indexOf(Math.max(...changes));
  const others = (/** @type {Float64Array} */ weights) =>
    weights.reduce((sum, weight, index) => (index === pair ? sum : sum + weight), 0);
  const how =
    pair === null
      ? `most of all pair ${largest}, ${arrow(a.weights[largest], b.weights[largest])}`
      : `pair ${pair} ${arrow(a.weights[pair], b.weights[pair])}, ` +
        `sum of the others ${arrow(others(a.weights), others(b.weights))}`;
  const weightsChanged = changes[largest] > 0;
  const outputChanged = a.output !== b.output;
  return {
    what: what[0].toUpperCase() + what.slice(1),
    weightsChanged,
    weights: weightsChanged ? `changed: ${how}` : "unchanged for all pairs",
    outputChanged,
    output: outputChanged ? `changed: ${arrow(a.output, b.output)}` : `unchanged`,
  };
}

/** The names of kernels that are no names of people. @type {Object<string, string>} */
const KERNEL_NAMES = { boxcar: `boxcar`, triangular: `triangular` };

/** @param {Frame} frame */
function poolingControls(frame) {
  const { low, high } = frame.limits("bandwidth");
  const stops = () => bandwidthStops(frame.get("key_range"), (width) => within(width, [low, high]));
  const names = (frame.limits("kernel").options ?? []).map((name) => KERNEL_NAMES[String(name)] ?? String(name));
  const kernels = menu(frame, "kernel", "kernel", names);
  const bandwidth = slider(frame, "bandwidth", (step) => frame.set({ bandwidth: stops()[step] }));
  const pair = slider(frame, "pair", (index) => frame.set({ pair: index }));
  const pairText = element("p", { class: "mha-pair" });
  const node = element("div", { class: "mha-controls" }, kernels.node, bandwidth.node, pair.node, pairText);

  /** @param {PoolingMoment} moment */
  function draw(moment) {
    const { state } = moment;
    // Python may set a bandwidth between two stops of the slider.
    const gaps = stops().map((stop) => Math.abs(Math.log(stop / state.bandwidth)));
    const place = gaps.indexOf(Math.min(...gaps));
    bandwidth.draw(place, { high: gaps.length - 1, text: String(Number(state.bandwidth.toPrecision(3))) });
    pair.draw(state.pair, { high: state.keys.length - 1, said: describePair(moment, state.pair) });
  }
  return { node, pairText, draw };
}

/** The output and the errors of the fit. */
function poolingResults() {
  const results = facts(
    ["output", "test_error", "training_error", "leave_one_out_error"],
    ["output", "test error", "training error", "leave-one-out error"],
  );
  /** @param {PoolingMoment} moment */
  function draw({ state, numbers }) {
    const { output, isAnswered, silent, testError, trainingError, leaveOneOutError, lonelyPoints } = numbers;
    results.draw([
      { text: formatNumber(output, 3), hint: isAnswered ? "sum of weight · value" : "no key within reach", number: output },
      testError === null
        ? { text: "–", hint: "no true curve given" }
        : {
            text: formatNumber(testError, 3),
            hint: silent ? `${silent} of ${GRID} points see no key` : "against the true curve",
            number: testError,
          },
      { text: formatNumber(trainingError, 3), hint: "each point sees itself", number: trainingError },
      {
        text: formatNumber(leaveOneOutError, 3),
        hint: lonelyPoints
          ? `${lonelyPoints} of ${state.keys.length} see no other key`
          : "each predicted from the others",
        number: leaveOneOutError,
      },
    ]);
  }
  return { node: results.node, draw };
}

/** Says what the lines and dots of the upper plane mean. */
function poolingLegend() {
  const node = element(
    "p",
    { class: "mha-hint mha-legend" },
    ...[
      ["key", "pairs: a larger dot has more weight"],
      ["truth", "true curve"],
      ["query", `fit`],
      ["nothing", "no key within reach: output 0"],
    ].map(([kind, text]) => element("span", { class: `mha-is-${kind}` }, element("i"), text)),
  );
  /** @param {PoolingNumbers} numbers */
  const draw = ({ silent }) => (node.lastElementChild.style.visibility = silent ? "visible" : "hidden");
  return { node, draw };
}

/**
 * The functions through which handles and clicks move the query, the key and the value, and their steps.
 * @param {Frame} frame
 */
function poolingMoves(frame) {
  const move = (/** @type {"key" | "value"} */ name) => (/** @type {number} */ to) => {
    const numbers = [...frame.get(name)];
    numbers[frame.get("pair")] = within(to, frame.get(`${name}_range`));
    frame.set({ [name]: numbers });
  };
  // The handles are created before the state is checked, so an invalid range is accepted here and reported
  // later.
  const stepOf = (/** @type {string} */ name) => {
    const limits = frame.get(name);
    return roundStep(Array.isArray(limits) && limits[0] < limits[1] ? [limits[0], limits[1]] : [0, 1]);
  };
  return {
    steps: { x: stepOf("key_range"), y: stepOf("value_range") },
    key: move("key"),
    value: move("value"),
    query: (/** @type {number} */ to) => frame.set({ query: within(to, frame.get("key_range")) }),
  };
}

/**
 * The upper plane: pairs, true curve and fit, with handles for query and value.
 * @param {Frame} frame @param {ReturnType<typeof poolingMoves>} moves
 */
function fitPlane(frame, moves) {
  const top = plane(frame, { label: "Pairs, true curve and fit", xName: "", yName: `value`, ratio: 2 });
  top.node.classList.add("mha-fit");
  const truth = top.curve("truth");
  const queryLine = top.curve("query mha-guide");
  const keyLine = top.curve("key mha-guide");
  const nothing = top.curve("query mha-nothing");
  const fit = top.curve("query");
  const points = top.dots("key");
  const answer = top.dots("query");
  const { x, y } = moves.steps;
  const query = top.handle({ label: "query", role: "query", axis: "x", step: x, onMove: (to) => moves.query(to) });
  const value = top.handle({ label: "value", role: "value", axis: "y", step: y, onMove: (_, to) => moves.value(to) });

  /** @param {PoolingMoment} moment */
  function draw({ state, numbers }) {
    const { grid, weights, output, isAnswered, fitIsAnswered } = numbers;
    const { keys, values, keyRange, valueRange, pair } = state;
    const fitWhere = (/** @type {boolean} */ is) => numbers.fit.map((number, i) => (fitIsAnswered[i] === is ? number : NaN));
    top.draw(keyRange, valueRange);
    truth.draw(state.truth.length ? grid : [], state.truth);
    queryLine.draw([state.query, state.query], valueRange);
    keyLine.draw([keys[pair], keys[pair]], [valueRange[0], values[pair]]);
    fit.draw(grid, fitWhere(true));
    nothing.draw(grid, fitWhere(false));
    mark(fit.node, "fit", numbers.fit);
    points.draw(keys, values, (i) => ({ size: 6 + 16 * Math.sqrt(weights[i]), opacity: weights[i] > 0 ? 0.85 : 0.4 }));
    answer.draw(isAnswered ? [state.query] : [], [output], () => ({ size: 11 }));
    query.draw(state.query, valueRange[0]);
    value.draw(keys[pair], values[pair]);
    value.node.setAttribute("aria-label", `value of pair ${pair}`);
    const answered = isAnswered ? `the output ${formatNumber(output, 3)}` : "no answer";
    top.describe(`The query ${formatNumber(state.query, 2)} gets ${answered}.`);
  }
  return { node: top.node, area: top.area, points: points.node, draw };
}

/**
 * The lower plane: the weight of each key as a stem, and the kernel around the query; a handle moves the key.
 * @param {Frame} frame @param {ReturnType<typeof poolingMoves>} moves
 */
function weightPlane(frame, moves) {
  const label = "Weight of each key";
  const below = plane(frame, { label, xName: "query and keys", yName: `weight`, ratio: 6, ticks: [6, 2] });
  below.node.classList.add("mha-stems");
  const window = below.curve("query mha-window");
  const line = below.curve("query mha-guide");
  const stems = below.curve("key");
  const heads = below.dots("key");
  const key = below.handle({ label: "key", role: "key", axis: "x", step: moves.steps.x, onMove: (x) => moves.key(x) });

  /** @param {PoolingMoment} moment */
  function draw({ state, numbers }) {
    const { keys, keyRange, query, pair } = state;
    const { weights, isAnswered } = numbers;
    const highest = Math.max(...weights);
    const ceiling = [0.1, 0.2, 0.5].find((height) => highest <= height) ?? 1;
    below.draw(keyRange, [0, ceiling]);
    line.draw([query, query], [0, ceiling]);
    stems.draw(
      keys.flatMap((at) => [at, at, at]),
      Array.from(weights).flatMap((weight) => [0, weight, NaN]),
    );
    mark(stems.node, "weights", weights);
    heads.draw(keys, weights, () => ({ size: 6 }));
    key.draw(keys[pair], 0);
    key.node.setAttribute("aria-label", `key of pair ${pair}`);
    const { xs, ys } = kernelWindow(state, numbers, ceiling);
    window.draw(xs, ys);
    const byWeight = Array.from(weights.keys()).sort((a, b) => weights[b] - weights[a]);
    const largest = byWeight.slice(0, 3).map((index) => `pair ${index} ${formatNumber(weights[index], 3)}`);
    below.describe(isAnswered ? `The largest: ${largest.join(", ")}.` : "All are zero.");
  }
  return { node: below.node, area: below.area, draw };
}

/**
 * A click on a plane chooses the pair near it or, if there is none, moves the query there. Pointing shows the
 * pair near the pointer.
 * @param {Frame} frame @param {HTMLElement} area
 * @param {boolean} hasStems whether a click or the pointer may hit a pair anywhere along its stem, not only
 *   at its dot
 * @param {ReturnType<typeof poolingMoves>} moves @param {(pair: number | null) => void} onPoint
 */
function choosePairs(frame, area, hasStems, moves, onPoint) {
  /** @type {(event: PointerEvent, state: PoolingState) => [number, number, DOMRect]} x in units of the keys */
  const placeIn = (event, { keyRange: [low, high] }) => {
    const box = area.getBoundingClientRect();
    const x = low + ((event.clientX - box.left) / box.width) * (high - low);
    return [x, (box.bottom - event.clientY) / box.height, box];
  };
  /** @type {(event: PointerEvent, state: PoolingState) => number | null} the nearest pair, if it is near */
  const nearest = (event, state) => {
    const { keys, values, keyRange, valueRange } = state;
    const [x, up, box] = placeIn(event, state);
    const distances = keys.map((key, index) => {
      const across = ((key - x) / (keyRange[1] - keyRange[0])) * box.width;
      if (hasStems) return Math.abs(across);
      return Math.hypot(across, ((values[index] - valueRange[0]) / (valueRange[1] - valueRange[0]) - up) * box.height);
    });
    const best = distances.indexOf(Math.min(...distances));
    return distances[best] <= (hasStems ? CLICK_REACH / 2 : CLICK_REACH) ? best : null;
  };
  frame.listen(area, "click", (event) => {
    if (event.target.closest(".mha-handle")) return;
    const state = readPooling(frame);
    const near = nearest(event, state);
    if (near !== null) frame.set({ pair: near });
    else {
      const step = moves.steps.x;
      moves.query(Number((Math.round(placeIn(event, state)[0] / step) * step).toFixed(10)));
    }
  });
  frame.listen(area, "pointermove", (event) => {
    onPoint(event.target.closest(".mha-handle") ? null : nearest(event, readPooling(frame)));
  });
  frame.listen(area, "pointerleave", () => onPoint(null));
}

/**
 * A line that says what the last move changed. Successive changes of one setting, such as a drag, are one
 * move.
 * @param {Frame} frame
 */
function moveReport(frame) {
  const hint = element("span", { class: "mha-hint", text: POOLING_HINT });
  const [what, weights, output, lonely] = [0, 1, 2, 3].map(() => element("span"));
  const node = element("p", { class: "mha-move" }, hint, what, weights, output, lonely);
  let start = /** @type {PoolingMoment | null} */ (null); // where the current move began
  let moving = "";

  /** @param {PoolingMoment | null} before @param {PoolingMoment} now */
  function draw(before, now) {
    const moved = before ? movedSettings(before.state, now.state) : [];
    if (moved.length === 1 && (moved[0] !== moving || !start)) [start, moving] = [before, moved[0]];
    if (moved.length > 1) [start, moving] = [null, ""];
    const isTold = start !== null && moving !== "pair";
    hint.hidden = isTold;
    for (const part of [what, weights, output, lonely]) part.hidden = !isTold;
    if (moved.length > 0 && moving === "pair") frame.say(`${describePair(now, now.state.pair)}.`);
    if (!start || !isTold) return;
    const told = tellMove(moving, start, now);
    what.textContent = `${told.what}.`;
    weights.textContent = `Weights ${told.weights}.`;
    output.textContent = `Output ${told.output}.`;
    weights.classList.toggle("mha-changed", told.weightsChanged);
    output.classList.toggle("mha-changed", told.outputChanged);
    lonely.textContent = now.numbers.isAnswered
      ? ""
      : "No key is within reach of the query: all weights are 0, and the output 0 is not an estimate.";
    if (moved.length === 0) return;
    const changed = (/** @type {boolean} */ is) => (is ? `changed` : `unchanged`);
    frame.say(
      `${told.what}. Weights ${changed(told.weightsChanged)}, output ${changed(told.outputChanged)}: ` +
        `${formatNumber(now.numbers.output, 3)}. ${lonely.textContent}`,
    );
  }
  return { node, draw };
}

/** @param {Frame} frame */
function build(frame) {
  let now = /** @type {PoolingMoment | null} */ (null);
  let pointed = /** @type {number | null} */ (null);
  const controls = poolingControls(frame);
  const results = poolingResults();
  const legend = poolingLegend();
  const moves = poolingMoves(frame);
  const top = fitPlane(frame, moves);
  const below = weightPlane(frame, moves);
  const report = moveReport(frame);
  frame.body.append(controls.node, results.node, legend.node, top.node, below.node, report.node);
  const point = (/** @type {number | null} */ index) => {
    if (index === pointed) return;
    pointed = index;
    showPair();
  };
  choosePairs(frame, top.area, false, moves, point);
  choosePairs(frame, below.area, true, moves, point);

  function showPair() {
    if (!now) return;
    const { state, numbers } = now;
    const index = pointed !== null && pointed < state.keys.length ? pointed : state.pair;
    const added = formatNumber(numbers.weights[index] * state.values[index], 3);
    controls.pairText.textContent = `${describePair(now, index)}, adds ${added} to the output`;
    Array.from(top.points.children).forEach((dot, i) => dot.classList.toggle("mha-now", i === pointed));
  }

  return () => {
    const state = readPooling(frame);
    const numbers = computePooling(state);
    const before = now;
    now = { state, numbers };
    for (const part of [controls, results, top, below]) part.draw(now);
    legend.draw(numbers);
    showPair();
    report.draw(before, now);
    frame.report(() => ({
      output: numbers.output,
      weights: numbers.weights,
      fit: numbers.fit,
      training_error: numbers.trainingError,
      leave_one_out_error: numbers.leaveOneOutError,
      ...(numbers.testError !== null && { test_error: numbers.testError }),
    }));
  };
}

export default widget({
  name: "pooling-explorer",
  label: "Pooling explorer",
  data: POOLING_DATA,
  check: checkPooling,
}, build);
