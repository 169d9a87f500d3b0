// The cost of a layer, and the path of a signal from one token to another, in self-attention, convolution and
// recurrence. Pure functions, no DOM; tests compare them with torch's counts.

/** @typedef {{n: number, d: number, k: number, withProjections: boolean}} LayerSizes */
/** @typedef {LayerSizes & {source: number, target: number}} PathState */
/** @typedef {"attention" | "convolution" | "dilated" | "recurrence"} PathKind */

export const PATH_KINDS = /** @type {PathKind[]} */ (["attention", "convolution", "dilated", "recurrence"]);
// The lengths at which the curves are computed.
export const PATH_LENGTHS = Array.from({ length: 11 }, (_, index) => 2 ** (index + 1));

/**
 * The number of multiplications in a layer that maps n tokens of width d to n tokens of width d.
 * @param {LayerSizes} sizes
 * @returns {{attention: number, convolution: number, recurrence: number}} a dilated convolution costs as much
 *   as a plain one
 */
export function layerMultiplications({ n, d, k, withProjections }) {
  return {
    attention: 2 * n ** 2 * d + (withProjections ? 4 * n * d ** 2 : 0),
    convolution: k * n * d ** 2,
    recurrence: (n - 1) * d ** 2,
  };
}

/**
 * The reach of the kernel of each layer in a stack: up to `most` taps to a side, `spacing` positions apart.
 *
 * A centred kernel of odd width k has (k - 1) / 2 taps on each side. In layer l of a dilated stack, they are
 * ((k + 1) / 2)^l positions apart, which for k = 3 is 1, 2, 4, 8, …. With any wider spacing, steps in only one
 * direction would miss some positions.
 * @param {number} k @param {boolean} isDilated @returns {(layer: number) => {spacing: number, most: number}}
 */
export function kernelSteps(k, isDilated) {
  const most = (k - 1) / 2;
  return (layer) => ({ spacing: isDilated ? (most + 1) ** layer : 1, most });
}

/**
 * The number of convolutions in a stack in which a token depends on the token `distance` positions away.
 * @param {number} distance @param {number} k @param {boolean} isDilated @returns {number}
 */
export function convolutionDepth(distance, k, isDilated) {
  const stepOf = kernelSteps(k, isDilated);
  let [depth, reach] = [0, 0];
  do {
    const { spacing, most } = stepOf(depth);
    reach += spacing * most;
    depth += 1;
  } while (reach < distance);
  return depth;
}

/**
 * A shortest path through a stack of convolutions: the position of the signal below each layer and above the
 * last one.
 * @param {number} source @param {number} target not before the source
 * @param {number} k @param {boolean} isDilated @returns {number[]}
 */
export function convolutionPath(source, target, k, isDilated) {
  const stepOf = kernelSteps(k, isDilated);
  const depth = convolutionDepth(target - source, k, isDilated);
  let rest = target - source;
  const moves = new Array(depth).fill(0);
  // The widest steps come first, so that the rest always fits into the layers below.
  for (let layer = depth - 1; layer >= 0; layer -= 1) {
    const { spacing, most } = stepOf(layer);
    moves[layer] = spacing * Math.min(most, Math.floor(rest / spacing));
    rest -= moves[layer];
  }
  const places = [source];
  for (const move of moves) places.push(places[places.length - 1] + move);
  return places;
}

/**
 * The number of steps that a signal takes from `source` to `target` in each kind of layer.
 * @param {number} source @param {number} target not before the source
 * @param {number} k
 */
export function pathLengths(source, target, k) {
  return {
    attention: 1,
    convolution: convolutionDepth(target - source, k, false),
    dilated: convolutionDepth(target - source, k, true),
    // The signal enters the state of the source, then passes from state to state.
    recurrence: 1 + target - source,
  };
}

/**
 * For each other kind of layer, the greatest length at which attention multiplies at most as often, or 0.
 * @param {{d: number, k: number, withProjections: boolean}} sizes
 * @returns {{recurrence: number, convolution: number}}
 */
export function attentionCrossover({ d, k, withProjections }) {
  const linear = withProjections ? 4 * d : 0;
  const isCheaper = (/** @type {number} */ n, /** @type {"recurrence" | "convolution"} */ than) => {
    const costs = layerMultiplications({ n, d, k, withProjections });
    return n >= 1 && costs.attention <= costs[than];
  };
  // Recurrence: 2 n² d + linear n d <= (n - 1) d², which is quadratic in n. Convolution: 2 n + linear <= k d.
  const middle = d - linear;
  const root = middle ** 2 - 8 * d;
  const guess = root < 0 || middle < 0 ? 0 : Math.floor((middle + Math.sqrt(root)) / 4);
  // The root is rounded, so its neighbours are tried too.
  const recurrence = [guess + 1, guess, guess - 1].find((n) => isCheaper(n, "recurrence")) ?? 0;
  return { recurrence, convolution: Math.max(0, Math.floor((k * d - linear) / 2)) };
}

/** All numbers that the widget shows, in the order of PATH_KINDS. @param {PathState} state */
export function computePath({ n, d, k, source, target, withProjections }) {
  const one = layerMultiplications({ n, d, k, withProjections });
  const multiplications = [one.attention, one.convolution, one.convolution, one.recurrence];
  const ofKinds = (/** @type {Record<PathKind, number>} */ lengths) => PATH_KINDS.map((kind) => lengths[kind]);
  const longest = ofKinds(pathLengths(0, n - 1, k));
  const curves = PATH_LENGTHS.map((length) => layerMultiplications({ n: length, d, k, withProjections }));
  const crossover = attentionCrossover({ d, k, withProjections });
  return {
    multiplications,
    steps: [1, 1, 1, n],
    longest,
    // Convolutions are stacked until they span all tokens; for the other kinds, one layer is enough.
    total: multiplications.map((number, kind) => number * (kind === 1 || kind === 2 ? longest[kind] : 1)),
    path: ofKinds(pathLengths(source, target, k)),
    attention: curves.map((costs) => costs.attention),
    convolution: curves.map((costs) => costs.convolution),
    recurrence: curves.map((costs) => costs.recurrence),
    crossover: [crossover.recurrence, crossover.convolution],
  };
}

/**
 * The first and the last token that a signal has reached, below the first layer and above each layer.
 * @param {PathKind} kind @param {PathState} state @param {number} layers @returns {number[][]}
 */
export function reachOfSignal(kind, { n, k, source }, layers) {
  const stepOf = kernelSteps(k, kind === "dilated");
  const bounds = [[source, source]];
  for (let layer = 0; layer < layers; layer += 1) {
    const [low, high] = bounds[layer];
    const { spacing, most } = stepOf(layer);
    if (kind === "attention") bounds.push([0, n - 1]);
    else if (kind === "recurrence") bounds.push([source, n - 1]);
    else bounds.push([Math.max(0, low - spacing * most), Math.min(n - 1, high + spacing * most)]);
  }
  return bounds;
}

/**
 * All connections between tokens: to the next layer and, in a recurrence, within the same layer.
 * @param {PathKind} kind @param {PathState} state @param {number} layers
 * @returns {number[][]} token and layer where each connection begins and ends
 */
export function connections(kind, { n, k }, layers) {
  const stepOf = kernelSteps(k, kind === "dilated");
  const tokens = Array.from({ length: n }, (_, token) => token);
  if (kind === "attention") return tokens.flatMap((to) => tokens.map((from) => [from, 0, to, 1]));
  if (kind === "recurrence") {
    return tokens.flatMap((to) => [[to, 0, to, 1], ...(to > 0 ? [[to - 1, 1, to, 1]] : [])]);
  }
  return Array.from({ length: layers }, (_, layer) => {
    const { spacing, most } = stepOf(layer);
    const steps = Array.from({ length: 2 * most + 1 }, (_, index) => (index - most) * spacing);
    return tokens.flatMap((to) =>
      steps.filter((step) => to + step >= 0 && to + step < n).map((step) => [to + step, layer, to, layer + 1]),
    );
  }).flat();
}

/**
 * The points of a shortest path, each as token and layer.
 * @param {PathKind} kind @param {PathState} state @returns {number[][]}
 */
export function routeOfSignal(kind, { k, source, target }) {
  if (kind === "recurrence") return [[source, 0], [source, 1], [target, 1]];
  if (kind === "attention") return [[source, 0], [target, 1]];
  return convolutionPath(source, target, k, kind === "dilated").map((token, layer) => [token, layer]);
}
