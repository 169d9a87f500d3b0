// The maps of a sentence model as Python sends them, and where a head looks. Pure functions, no DOM.

/** @typedef {import("../shared/attention_math.js").Matrix} Matrix */

/** The maps of one text, head by head. @param {Uint8Array} bytes of float32 numbers @param {number} length @returns {Matrix[]} */
export function mapsFromBytes(bytes, length) {
  const numbers = Float64Array.from(new Float32Array(bytes.slice().buffer));
  return Array.from({ length: numbers.length / length ** 2 }, (_, head) =>
    Array.from({ length }, (_, query) => numbers.subarray((head * length + query) * length, (head * length + query + 1) * length)),
  );
}

/**
 * How much of its attention a head gives, over all tokens, to the one before, to the token itself, to the one after, and to
 * the first and the last.
 * @param {Matrix} map
 */
export function looksOf(map) {
  const mean = (/** @type {(row: ArrayLike<number>, query: number) => number} */ part) =>
    map.reduce((sum, row, query) => sum + part(row, query), 0) / map.length;
  const steps = [-1, 0, 1].map((step) => mean((row, query) => row[query + step] ?? 0));
  return [...steps, mean((row) => row[0] + row[row.length - 1])];
}
