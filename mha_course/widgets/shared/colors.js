// The colours of numbers and of heads.

/**
 * The numbers at both ends of a colour scale. For signed numbers, it runs from −m to m; for weights, it starts at
 * 0. The sign of `low` therefore tells which of the two colour maps a scale uses.
 * @typedef {{low: number, high: number}} Extent
 */

const HEAD_COLORS = 8; // the style sheet defines this many

/**
 * Viridis, the colour map of weights and of everything else that starts at 0, as evenly spaced stops of the
 * original map. Colours between two stops are interpolated linearly.
 * @type {number[][]} red, green, blue in 0..255
 */
const VIRIDIS = [
  [68, 1, 84], [72, 26, 108], [71, 47, 125], [65, 68, 135],
  [57, 86, 140], [49, 104, 142], [42, 120, 142], [35, 136, 142],
  [31, 152, 139], [34, 168, 132], [53, 183, 121], [84, 197, 104],
  [122, 209, 81], [165, 219, 54], [210, 226, 27], [253, 231, 37],
];

/**
 * The diverging map of signed numbers, matplotlib's RdBu_r: blue is negative, white is zero, red is positive.
 * @type {number[][]}
 */
const DIVERGING = [
  [5, 48, 97], [33, 102, 172], [67, 147, 195], [146, 197, 222], [209, 229, 240], [247, 247, 247],
  [253, 219, 199], [244, 165, 130], [214, 96, 77], [178, 24, 43], [103, 0, 31],
];

/** The stops of the map that a scale uses, from its lowest number to its highest. @param {Extent} extent */
const stopsOf = ({ low }) => (low < 0 ? DIVERGING : VIRIDIS);

/**
 * @param {number} number if outside the scale, it gets the colour of the nearer end
 * @param {Extent} extent @returns {[number, number, number]} red, green, blue in 0..255
 */
export function colorOf(number, extent) {
  const stops = stopsOf(extent);
  const fraction = (number - extent.low) / (extent.high - extent.low);
  const place = Math.min(Math.max(fraction, 0), 1) * (stops.length - 1);
  const stop = Math.min(Math.floor(place), stops.length - 2);
  const [low, high] = [stops[stop], stops[stop + 1]];
  return /** @type {[number, number, number]} */ (low.map((c, i) => Math.round(c + (place - stop) * (high[i] - c))));
}

/**
 * @param {number} fraction 0 = lowest, 1 = highest; a fraction outside 0..1 is moved to the nearer end
 * @returns {[number, number, number]} red, green, blue in 0..255
 */
export function viridis(fraction) {
  return colorOf(fraction, { low: 0, high: 1 });
}

/**
 * @param {number[]} color red, green, blue in 0..255
 * @returns {string} black or white, whichever has more contrast with the colour, which is at least 4.58 by the
 *   WCAG 2 formula
 */
export function inkOn(color) {
  const [red, green, blue] = color.map((c) => (c <= 10 ? c / 3294.6 : ((c / 255 + 0.055) / 1.055) ** 2.4));
  return 0.2126 * red + 0.7152 * green + 0.0722 * blue > 0.179 ? "#000" : "#fff";
}

/** @param {Extent} extent @returns {string} a CSS gradient, lowest value on the left */
export function scaleGradient(extent) {
  return `linear-gradient(to right, ${stopsOf(extent).map((stop) => `rgb(${stop.join(" ")})`).join(", ")})`;
}

/**
 * The colour scale of some tables. It does not depend on whether signed numbers happen to be negative, so the
 * same quantity keeps its map from one setting to the next.
 * @param {import("./attention_math.js").Matrix[]} tables numbers that are not finite are ignored
 * @param {boolean} fromZero whether the numbers are never negative, like weights; all others are signed
 * @returns {Extent} from 0 to the largest number, or from −m to m, where m is the largest absolute value
 */
export function extentOf(tables, fromZero) {
  let most = 0;
  for (const row of tables.flat()) {
    for (let column = 0; column < row.length; column++) {
      const size = Math.abs(row[column]);
      if (size > most && size < Infinity) most = size;
    }
  }
  most ||= 1;
  return { low: fromZero ? 0 : -most, high: most };
}

/** @param {number} head @returns {string} the colour of a head; with many heads, the colours repeat */
export function headColor(head) {
  return `var(--mha-head-${head % HEAD_COLORS})`;
}
