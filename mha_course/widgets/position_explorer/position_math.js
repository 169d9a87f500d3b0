// The mathematics of positions, in float64, by the same rules as mha_lib.positional.

/** @typedef {import("../shared/attention_math.js").Matrix} Matrix */

/**
 * The angle in radians by which each pair of columns turns from one position to the next: base^(-2i / dim),
 * even if the width is odd.
 * @param {number} dim @param {number} base @returns {Float64Array} ceil(dim / 2) of them
 */
export function pairFrequencies(dim, base) {
  return Float64Array.from({ length: Math.ceil(dim / 2) }, (_, pair) => base ** ((-2 * pair) / dim));
}

/**
 * The table of sines and cosines: column 2i is sin(position · w_i), column 2i + 1 is the cosine of the same
 * angle. If the width is odd, the last pair has only a sine.
 * @param {number} numPositions @param {number} embedDim @param {number} base
 * @returns {Matrix} (num_positions, embed_dim)
 */
export function sinusoidalEncoding(numPositions, embedDim, base) {
  const frequencies = pairFrequencies(embedDim, base);
  return Array.from({ length: numPositions }, (_, position) =>
    Float64Array.from({ length: embedDim }, (_, column) => {
      const angle = position * frequencies[column >> 1];
      return column % 2 === 0 ? Math.sin(angle) : Math.cos(angle);
    }),
  );
}

/**
 * The angles by which a rotary encoding turns the pairs of a token, rounded to float32 as in the library.
 * @param {number} position @param {number} headDim even
 * @param {number} base @returns {Float64Array} (head_dim / 2)
 */
export function rotaryAngles(position, headDim, base) {
  return pairFrequencies(headDim, base).map((frequency) => Math.fround(position * frequency));
}

/**
 * One query or key with each pair of columns, 2i and 2i + 1, turned by its angle.
 * @param {Float64Array} vector (head_dim)
 * @param {Float64Array} angles (head_dim / 2)
 * @returns {Float64Array}
 */
export function applyRotary(vector, angles) {
  const turned = new Float64Array(vector.length);
  angles.forEach((angle, pair) => {
    const [first, second] = [vector[2 * pair], vector[2 * pair + 1]];
    turned[2 * pair] = first * Math.cos(angle) - second * Math.sin(angle);
    turned[2 * pair + 1] = first * Math.sin(angle) + second * Math.cos(angle);
  });
  return turned;
}

/** @param {Float64Array} a @param {Float64Array} b @returns {number} */
export function dotProduct(a, b) {
  let sum = 0;
  for (let i = 0; i < a.length; i += 1) sum += a[i] * b[i];
  return sum;
}

/**
 * The table, and the lowest and highest dot products of two of its rows, which do not depend on the marked cell.
 * @param {{numPositions: number, embedDim: number, base: number}} sizes
 */
export function computeTable({ numPositions, embedDim, base }) {
  const table = sinusoidalEncoding(numPositions, embedDim, base);
  let [lowest, highest] = [0, 0];
  for (let a = 0; a < numPositions; a += 1) {
    for (let b = a; b < numPositions; b += 1) {
      const product = dotProduct(table[a], table[b]);
      lowest = Math.min(lowest, product);
      highest = Math.max(highest, product);
    }
  }
  return { table, frequencies: pairFrequencies(embedDim, base), lowest, highest };
}

/**
 * @param {{embedDim: number, position: number, column: number}} state
 * @param {ReturnType<typeof computeTable>} computed
 */
export function computePosition({ embedDim, position, column }, { table, frequencies }) {
  const pair = column >> 1;
  const hasCosine = 2 * pair + 1 < embedDim;
  return {
    table,
    frequency: frequencies[pair],
    wavelength: (2 * Math.PI) / frequencies[pair],
    encoding: table[position][column],
    sine: Float64Array.from(table, (row) => row[2 * pair]),
    cosine: hasCosine ? Float64Array.from(table, (row) => row[2 * pair + 1]) : new Float64Array(0),
    similarity: Float64Array.from(table, (row) => dotProduct(row, table[position])),
  };
}
