// What a layer costs, and how a signal travels from one token to another: self-attention beside convolution and
// recurrence. Pure functions, no DOM; a test holds them against torch, which counts.

/** @typedef {{n: number, d: number, k: number, withProjections: boolean}} LayerSizes */

/**
 * Multiplications in one layer that maps n tokens of width d to n tokens of width d.
 * @param {LayerSizes} sizes
 * @returns {{attention: number, convolution: number, recurrence: number}} a dilated convolution costs what a plain
 *   one does
 */
export function layerMultiplications({ n, d, k, withProjections }) {
  return {
    attention: 2 * n ** 2 * d + (withProjections ? 4 * n * d ** 2 : 0),
    convolution: k * n * d ** 2,
    recurrence: (n - 1) * d ** 2,
  };
}

/**
 * How far the layers of a stack see beyond the layers before them: the places that each kernel can step over.
 *
 * A centred kernel of odd width k steps at most (k - 1) / 2 places to a side. Dilated, layer l steps over multiples of
 * ((k + 1) / 2)^l, for k = 3 of 1, 2, 4, 8: the widest spacing that still leaves no place out.
 * @param {number} k
 * @param {boolean} isDilated
 * @returns {(layer: number) => {spacing: number, most: number}}
 */
export function kernelSteps(k, isDilated) {
  const most = (k - 1) / 2;
  return (layer) => ({ spacing: isDilated ? (most + 1) ** layer : 1, most });
}

/**
 * Convolutions to stack until a token depends on the one that is `distance` places away; at least one.
 * @param {number} distance
 * @param {number} k
 * @param {boolean} isDilated
 * @returns {number}
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
 * A shortest way through a stack of convolutions: the place of the signal below each layer and above the last.
 * @param {number} source
 * @param {number} target not before the source
 * @param {number} k
 * @param {boolean} isDilated
 * @returns {number[]}
 */
export function convolutionPath(source, target, k, isDilated) {
  const stepOf = kernelSteps(k, isDilated);
  const depth = convolutionDepth(target - source, k, isDilated);
  let rest = target - source;
  const moves = new Array(depth).fill(0);
  // The widest steps first, so that what is left always fits into the layers below.
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
 * Steps of a signal from `source` to `target` in each kind of layer.
 * @param {number} source
 * @param {number} target not before the source
 * @param {number} k
 */
export function pathLengths(source, target, k) {
  return {
    attention: 1,
    convolution: convolutionDepth(target - source, k, false),
    dilated: convolutionDepth(target - source, k, true),
    // Into the state of the source, then from state to state.
    recurrence: 1 + target - source,
  };
}

/**
 * The greatest length at which a layer of attention does not multiply more than one of the others; 0 where none is.
 * @param {{d: number, k: number, withProjections: boolean}} sizes
 * @returns {{recurrence: number, convolution: number}}
 */
export function attentionCrossover({ d, k, withProjections }) {
  const [linear, isCheaper] = [withProjections ? 4 * d : 0, (/** @type {number} */ n, /** @type {"recurrence" | "convolution"} */ than) => {
    const costs = layerMultiplications({ n, d, k, withProjections });
    return n >= 1 && costs.attention <= costs[than];
  }];
  // 2 n² d + linear n d <= (n - 1) d², a parabola in n; and 2 n + linear <= k d.
  const middle = d - linear;
  const root = middle ** 2 - 8 * d;
  const guess = root < 0 || middle < 0 ? 0 : Math.floor((middle + Math.sqrt(root)) / 4);
  // The root is rounded: one up or down decides.
  const recurrence = [guess + 1, guess, guess - 1].find((n) => isCheaper(n, "recurrence")) ?? 0;
  return { recurrence, convolution: Math.max(0, Math.floor((k * d - linear) / 2)) };
}
