// Round numbers on axes and sliders. Pure functions.

/** @typedef {[number, number]} Range lowest and highest */

/**
 * Round numbers inside a range, about `count` of them.
 * @param {Range} range @param {number} count @returns {{values: number[], digits: number}}
 */
export function roundTicks([low, high], count) {
  const rough = (high - low) / count;
  const power = 10 ** Math.floor(Math.log10(rough));
  const sizes = [1, 2, 5, 10].map((factor) => factor * power);
  const endsWith = (/** @type {number} */ size) => [Math.ceil(low / size - 1e-9), Math.floor(high / size + 1e-9)];
  const fitting = sizes.findIndex((size) => size >= rough * 0.999);
  let step = sizes[fitting] ?? rough;
  let [first, last] = endsWith(step);
  // A single number would not give an axis a scale; the next smaller step gives more numbers.
  if (first >= last && fitting > 0) {
    step = sizes[fitting - 1];
    [first, last] = endsWith(step);
  }
  const values = Array.from({ length: last - first + 1 }, (_, index) => (first + index) * step);
  return { values, digits: Math.max(0, -Math.floor(Math.log10(step) + 1e-9)) };
}

/** A step of about a hundredth of a range: 1, 2 or 5 times a power of ten. @param {Range} range */
export function roundStep(range) {
  const { values } = roundTicks(range, 100);
  return Number((values[1] - values[0]).toPrecision(1));
}

/** @param {number} value @param {Range} range @returns {number} the value, or the nearer end of the range */
export function within(value, [low, high]) {
  return Math.min(Math.max(value, low), high);
}
