// The maps of a chat model, as a page stores them, and what the widget shows of one head. Pure functions, no DOM.

import { bytesFromBase64, zeroMatrix } from "../shared/attention_math.js";

/** @typedef {import("../shared/attention_math.js").Matrix} Matrix */

/**
 * `scores` and `rises` have a number for each kind or text, and for each head, layer by layer.
 * @typedef {{layers: number, heads: number, scores: number[], rises: number[], texts: Object<string, {bytes: string}>}} StoredMaps
 */

const MARKED = 0.4; // a head that has less than this of its weight at a place has no kind

/**
 * The maps of one text, head by head.
 * @param {StoredMaps} stored @param {string} name of the text @param {number} length
 * @returns {Matrix[]} @throws {RangeError} the bytes are damaged
 */
export function unpackText({ layers, heads, texts }, name, length) {
  const bytes = bytesFromBase64(texts[name].bytes, "bytes", (layers * heads * length * (length + 1)) / 2);
  let place = 0;
  return Array.from({ length: layers * heads }, () => {
    const map = zeroMatrix(length, length);
    for (let query = 0; query < length; query++) {
      for (let key = 0; key <= query; key++) map[query][key] = bytes[place++] / 255;
    }
    return map;
  });
}

/** The numbers of one head. @param {readonly number[]} numbers of all @param {number} count of heads @param {number} index */
export function ofHead(numbers, count, index) {
  return Array.from({ length: numbers.length / count }, (_, row) => numbers[row * count + index]);
}

/** The rank of each number, 1 for the largest. @param {readonly number[]} numbers */
export function ranksOf(numbers) {
  const ranks = new Array(numbers.length);
  largest(numbers, numbers.length).forEach(({ index }, rank) => (ranks[index] = rank + 1));
  return ranks;
}

/** The kind of a head, or -1. @param {readonly number[]} scores */
export function kindOf(scores) {
  const most = Math.max(...scores);
  return most >= MARKED ? scores.indexOf(most) : -1;
}

/**
 * The largest numbers and their places, the largest first.
 * @param {ArrayLike<number>} numbers @param {number} count
 */
export function largest(numbers, count) {
  return Array.from(numbers, (number, index) => ({ number, index }))
    .sort((a, b) => b.number - a.number)
    .slice(0, count);
}

/** The share of a head's attention that each token gets. @param {Matrix} map */
export function receivedOf(map) {
  return Array.from(map, (_, key) => map.reduce((sum, row) => sum + row[key], 0) / map.length);
}
