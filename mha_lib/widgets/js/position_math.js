// The mathematics of positions, in float64: the same rules as mha_lib.positional.

/** @typedef {import("./attention_math.js").Matrix} Matrix */

/**
 * Slope of each head's penalty on distance: for a power of two 2^(-8/h), 2^(-16/h), …; for other numbers those of the
 * power below, then every other slope of the power above.
 * @param {number} numHeads
 * @returns {number[]}
 */
export function alibiSlopes(numHeads) {
  const power = 2 ** Math.floor(Math.log2(numHeads));
  return Array.from({ length: numHeads }, (_, head) =>
    head < power ? 2 ** ((-8 * (head + 1)) / power) : 2 ** ((-8 * (2 * (head - power) + 1)) / (2 * power)),
  );
}

/**
 * What is added to the scores of one head: -slope · distance.
 * @param {number} slope
 * @param {number} length of queries and keys
 * @returns {Matrix}
 */
export function alibiBias(slope, length) {
  return Array.from({ length }, (_, query) => Float64Array.from({ length }, (_, key) => -slope * Math.abs(query - key)));
}

/**
 * Radians by which each pair of columns turns from one position to the next: base^(-2i / dim), for an odd width too.
 * @param {number} dim
 * @param {number} base
 * @returns {Float64Array} ceil(dim / 2) of them
 */
export function pairFrequencies(dim, base) {
  return Float64Array.from({ length: Math.ceil(dim / 2) }, (_, pair) => base ** ((-2 * pair) / dim));
}

/**
 * The table of sines and cosines: column 2i is sin(position · w_i), column 2i + 1 its cosine. Where the width is odd the
 * last pair has its sine only.
 * @param {number} numPositions
 * @param {number} embedDim
 * @param {number} base
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
 * Angles by which rotary encoding turns the pairs of a token. Like the library's they are rounded to float32.
 * @param {number} position
 * @param {number} headDim even
 * @param {number} base
 * @returns {Float64Array} (head_dim / 2)
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

/**
 * @param {Float64Array} a
 * @param {Float64Array} b
 * @returns {number}
 */
export function dotProduct(a, b) {
  let sum = 0;
  for (let i = 0; i < a.length; i += 1) sum += a[i] * b[i];
  return sum;
}
