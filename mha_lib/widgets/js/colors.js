// The colours of numbers and of heads.

/** @typedef {{low: number, high: number}} Extent the numbers at both ends of a colour scale */

const HEAD_COLORS = 8; // the style sheet defines this many

/**
 * Viridis, the colour map of all heatmaps: evenly spaced stops of the original map. Colours between two stops
 * are interpolated linearly.
 * @type {number[][]} red, green, blue in 0..255
 */
const VIRIDIS = [
  [68, 1, 84], [72, 26, 108], [71, 47, 125], [65, 68, 135],
  [57, 86, 140], [49, 104, 142], [42, 120, 142], [35, 136, 142],
  [31, 152, 139], [34, 168, 132], [53, 183, 121], [84, 197, 104],
  [122, 209, 81], [165, 219, 54], [210, 226, 27], [253, 231, 37],
];

/**
 * @param {number} fraction 0 = lowest, 1 = highest; a fraction outside 0..1 is moved to the nearer end
 * @returns {[number, number, number]} red, green, blue in 0..255
 */
export function viridis(fraction) {
  const place = Math.min(Math.max(fraction, 0), 1) * (VIRIDIS.length - 1);
  const stop = Math.min(Math.floor(place), VIRIDIS.length - 2);
  const [low, high] = [VIRIDIS[stop], VIRIDIS[stop + 1]];
  return /** @type {[number, number, number]} */ (low.map((c, i) => Math.round(c + (place - stop) * (high[i] - c))));
}

/**
 * @param {number[]} color red, green, blue in 0..255
 * @returns {string} black or white, whichever has more contrast with the colour: by the WCAG 2 formula at
 *   least 4.58
 */
export function inkOn(color) {
  const [red, green, blue] = color.map((c) => (c <= 10 ? c / 3294.6 : ((c / 255 + 0.055) / 1.055) ** 2.4));
  return 0.2126 * red + 0.7152 * green + 0.0722 * blue > 0.179 ? "#000" : "#fff";
}

/** @returns {string} a CSS gradient, lowest value on the left */
export function viridisGradient() {
  return `linear-gradient(to right, ${VIRIDIS.map((stop) => `rgb(${stop.join(" ")})`).join(", ")})`;
}

/**
 * The range of numbers that a colour scale for some tables must cover.
 * @param {import("./attention_math.js").Matrix[]} tables
 * @param {boolean} fromZero whether the scale starts at 0, as it does for weights
 * @returns {Extent}
 */
export function extentOf(tables, fromZero) {
  let [low, high] = fromZero ? [0, -Infinity] : [Infinity, -Infinity];
  for (const table of tables) {
    for (const row of table) {
      for (let column = 0; column < row.length; column++) {
        const number = row[column];
        if (!Number.isFinite(number)) continue;
        if (number < low) low = number;
        if (number > high) high = number;
      }
    }
  }
  if (high === -Infinity) return { low: 0, high: 1 };
  return { low, high: high > low ? high : low + 1 };
}

/**
 * @param {number} head
 * @returns {string} the colour of a head; with many heads the colours repeat
 */
export function headColor(head) {
  return `var(--mha-head-${head % HEAD_COLORS})`;
}
