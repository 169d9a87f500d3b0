// How all widgets write numbers: each format is defined here once.

const PREFIXES = ["", "k", "M", "G", "T", "P", "E"];

/**
 * @param {number} number @param {number} [digits] after the decimal point
 * @returns {string} with a true minus sign, and without a sign before zero
 */
export function formatNumber(number, digits = 4) {
  if (number === -Infinity) return "−∞";
  const text = number.toFixed(digits);
  return Number(text) === 0 ? text.replace("-", "") : text.replace("-", "−");
}

/** @param {number} number @param {number} [digits] after the decimal point, for numbers that are not whole */
export function formatEntry(number, digits = 4) {
  return formatNumber(number, Number.isInteger(number) ? 0 : digits);
}

/** @param {ArrayLike<number>} numbers @param {number} [digits] */
export function formatTuple(numbers, digits) {
  return `(${Array.from(numbers, (number) => formatEntry(number, digits)).join(", ")})`;
}

/**
 * @param {number} number an integer
 * @returns {string} all digits, in groups of three: 12,288
 */
export function groupDigits(number) {
  return String(number).replace(/\B(?=(\d{3})+$)/g, ","); // toLocaleString would take milliseconds
}

/**
 * @param {number} number
 * @returns {{scale: number, prefix: string}} the largest power of a thousand that the number reaches, at
 *   least 1, and its prefix
 */
export function powerOfThousand(number) {
  const power = number < 1000 ? 0 : Math.min(Math.floor(Math.log10(number) / 3), PREFIXES.length - 1);
  return { scale: 1000 ** power, prefix: PREFIXES[power] };
}

/**
 * Writes a number up to 9,999 with all its digits, and a larger one with three digits and a prefix: 1.57 M.
 * The space is a no-break space, so that an amount and its unit stay on the same line.
 * @param {number} number an integer
 * @param {string} [unit]
 */
export function shortAmount(number, unit = "") {
  const rounded = Number(number.toPrecision(3));
  if (number < 10_000) return unit ? `${groupDigits(number)}\u00a0${unit}` : groupDigits(number);
  const { scale, prefix } = powerOfThousand(rounded);
  return `${Number((rounded / scale).toPrecision(3))}\u00a0${prefix}${unit}`;
}

/** A ratio in words: "0.08 times", "2.50 times" or, from 10 on, "12 times". @param {number} ratio */
export function formatRatio(ratio) {
  return `${ratio.toFixed(ratio < 10 ? 2 : 0)} times`;
}

/**
 * @param {number} number between 0 and 1
 * @returns {string} 1/n, where n is shown with two digits if it is not whole: 1/256, 1/22.63
 */
export function unitFraction(number) {
  const inverse = 1 / number;
  return `1/${formatNumber(inverse, Math.abs(inverse - Math.round(inverse)) < 1e-9 ? 0 : 2)}`;
}

/**
 * A text about one thing or about several, each written whole, because languages differ in more than an "s".
 * @param {number} count @param {string} one "1 layer" @param {string} many "# layers", where # stands for the count
 */
export function countOf(count, one, many) {
  return count === 1 ? one : many.replace("#", groupDigits(count));
}
