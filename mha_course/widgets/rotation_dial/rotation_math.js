// A query and a key at every position, turned (rotary) or with a sinusoid added. Pure functions, no DOM.

import { applyRotary, dotProduct, pairFrequencies, rotaryAngles, sinusoidalEncoding } from "../position_explorer/position_math.js";

/** @typedef {[number, number]} DialPoint */

/**
 * @typedef {object} DialState
 * @property {number} queryPosition
 * @property {number} keyPosition
 * @property {number} pair
 * @property {number} headDim
 * @property {number} base
 * @property {number} queryAngle in degrees
 * @property {number} keyAngle in degrees
 * @property {string} shown
 */

const DIAL_POSITIONS = 33;

/** The same arrow of length 1 in every pair of columns. @param {number} degrees @param {number} headDim */
function dialVector(degrees, headDim) {
  const angle = (degrees * Math.PI) / 180;
  return Float64Array.from({ length: headDim }, (_, column) => (column % 2 === 0 ? Math.cos(angle) : Math.sin(angle)));
}

/** @param {Float64Array} a @param {Float64Array} b */
const dialSum = (a, b) => a.map((number, column) => number + b[column]);

/**
 * Query and key at every position with both encodings, and the range of the scores: everything that does not
 * depend on the two chosen positions.
 * @param {DialState} state
 */
export function encodeDial({ pair, headDim, base, queryAngle, keyAngle, shown }) {
  const [query, key] = [queryAngle, keyAngle].map((angle) => dialVector(angle, headDim));
  const table = sinusoidalEncoding(DIAL_POSITIONS, headDim, base);
  const turns = table.map((_, position) => rotaryAngles(position, headDim, base));
  const ofPair = (/** @type {Float64Array} */ x) => x.subarray(2 * pair, 2 * pair + 2);
  const encodings = [
    { name: "rotary", queries: turns.map((angles) => applyRotary(query, angles)), keys: turns.map((angles) => applyRotary(key, angles)) },
    { name: "added", queries: table.map((row) => dialSum(query, row)), keys: table.map((row) => dialSum(key, row)) },
  ];
  let [lowest, highest] = [0, 0];
  for (const { queries, keys } of encodings) {
    for (const q of queries) {
      for (const k of keys) {
        const score = shown === "pair" ? dotProduct(ofPair(q), ofPair(k)) : dotProduct(q, k);
        lowest = Math.min(lowest, score);
        highest = Math.max(highest, score);
      }
    }
  }
  const margin = 0.05 * (highest - lowest);
  return {
    encodings,
    ofPair,
    query: ofPair(query),
    key: ofPair(key),
    frequency: pairFrequencies(headDim, base)[pair],
    range: /** @type {DialPoint} */ ([lowest - margin, highest + margin]),
  };
}

/** @param {DialState} state @param {ReturnType<typeof encodeDial>} encoded */
export function computeDial({ queryPosition, keyPosition, shown }, { encodings, ofPair }) {
  /** @type {Object<string, any>} */
  const numbers = {};
  for (const { name, queries, keys } of encodings) {
    const query = queries[queryPosition];
    const all = Float64Array.from(keys, (k) => dotProduct(query, k));
    const one = Float64Array.from(keys, (k) => dotProduct(ofPair(query), ofPair(k)));
    numbers[`${name}_query`] = ofPair(query);
    numbers[`${name}_key`] = ofPair(keys[keyPosition]);
    numbers[`${name}_pair_score`] = one[keyPosition];
    numbers[`${name}_score`] = all[keyPosition];
    numbers[`${name}_by_offset`] = shown === "pair" ? one : all;
  }
  return numbers;
}

/** @param {number} degrees @returns {number} the same direction in -180..180 */
export const wrapDegrees = (degrees) => (Math.abs(degrees) <= 180 ? degrees : degrees - 360 * Math.round(degrees / 360));

/**
 * The path of an arrow; the head is never longer than the whole arrow.
 * @param {ArrayLike<number>} from @param {ArrayLike<number>} to
 * @param {number} size of the arrowhead; 0 for none
 */
export function arrowPath(from, to, size) {
  const [dx, dy] = [to[0] - from[0], to[1] - from[1]];
  const length = Math.hypot(dx, dy);
  if (length <= 1e-6) return "";
  const head = Math.min(size, length);
  const [ux, uy] = [dx / length, dy / length];
  const [nx, ny] = [to[0] - head * ux, to[1] - head * uy];
  const wide = 0.45 * head;
  const points = [from, to, [nx - wide * uy, ny + wide * ux], [nx + wide * uy, ny - wide * ux]];
  const [a, b, left, right] = points.map((point) => `${point[0].toFixed(4)} ${(-point[1]).toFixed(4)}`);
  return `M${a}L${b}${head > 0 ? `M${left}L${b}L${right}` : ""}`;
}

/**
 * The path of an arc that starts in the direction of `from` and spans `angle` without its whole turns.
 * @param {ArrayLike<number>} from @param {number} angle @param {number} radius
 */
export function arcPath(from, angle, radius) {
  const rest = angle % (2 * Math.PI);
  const start = Math.atan2(from[1], from[0]);
  const [a, b] = [start, start + rest].map((way) => `${(radius * Math.cos(way)).toFixed(4)} ${(-radius * Math.sin(way)).toFixed(4)}`);
  return rest > 1e-6 ? `M${a}A${radius} ${radius} 0 ${rest > Math.PI ? 1 : 0} 0 ${b}` : "";
}
