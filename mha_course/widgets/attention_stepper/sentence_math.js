// The words of a sentence, their hand-made or trained vectors, and the six steps of self-attention over them.
// Pure functions, no DOM.

import { attentionPooling, causalMask, dotProductScore, matrixFromFloat32, scaledDotProductScore } from "../shared/attention_math.js";

/** @typedef {import("../shared/attention_math.js").Matrix} Matrix */
/** @typedef {{words: number, characters: number}} SentenceLimits the greatest number of each in a sentence */
/** @typedef {Record<"query" | "key" | "value", Matrix>} Projections each (width of x, width of the result) */

/**
 * @typedef {object} StoredSentenceModel
 * @property {string[]} words
 * @property {number} num_heads
 * @property {number} embed_dim
 * @property {[string, string, number]} stored name of the experiment, arm and seed
 * @property {Object<string, string>} weights by name, float32 in base64
 */

// The spaces are written out because Python and JavaScript disagree about which characters are spaces.
const SIX_SEPARATORS = /[\t-\r \u0085\u00a0\u1680\u2000-\u200b\u2028\u2029\u202f\u205f\u3000\ufeff]+/u;

/** @param {string} sentence @returns {string[]} */
export function sixWords(sentence) {
  return sentence.split(SIX_SEPARATORS).filter((word) => word !== "");
}

/**
 * @param {string} sentence @param {readonly string[]} known the words that have vectors
 * @param {SentenceLimits} limits
 * @returns {string} what is wrong with the sentence, for the reader who types it; empty if nothing is wrong
 */
export function sixProblem(sentence, known, { words: mostWords, characters }) {
  const { length } = [...sentence];
  if (length > characters) return `${length} characters are too many: up to ${characters} fit here.`;
  const words = sixWords(sentence);
  if (words.length === 0) return "Type at least one word.";
  if (words.length > mostWords) return `${words.length} words are too many: up to ${mostWords} fit here.`;
  const unknown = words.find((word) => !known.includes(word));
  return unknown === undefined ? "" : `“${unknown}” has no vector.`;
}

/** @param {Matrix} x @param {Matrix} matrix @returns {Matrix} x @ matrix */
function sixProduct(x, matrix) {
  return dotProductScore(
    x,
    Array.from(matrix[0], (_, column) => Float64Array.from(matrix, (row) => row[column])),
  );
}

/**
 * Reads the stored model: `vectors` returns the vectors of words at their positions, `projections` the matrices
 * for the queries, keys and values of a head.
 * @param {StoredSentenceModel} stored @param {number} maxWords of a sentence
 */
export function prepareSentenceModel({ words: known, num_heads: numHeads, embed_dim: embedDim, weights }, maxWords) {
  const read = (/** @type {string} */ name, /** @type {number | undefined} */ rows = undefined) =>
    matrixFromFloat32(weights[name], embedDim, name, rows);
  const [embedding, positions] = [read("embedding", known.length), read("positions", maxWords)];
  const [query, key, value] = ["query", "key", "value"].map((name) => read(name, embedDim));
  const headDim = embedDim / numHeads;
  const ofHead = (/** @type {Matrix} */ weight, /** @type {number} */ head) => {
    const rows = weight.slice(headDim * head, headDim * (head + 1));
    return Array.from({ length: embedDim }, (_, column) => Float64Array.from(rows, (row) => row[column]));
  };
  return {
    vectors: (/** @type {string[]} */ words) =>
      words.map((word, place) => embedding[known.indexOf(word)].map((number, i) => number + positions[place][i])),
    projections: (/** @type {number} */ head) => ({
      query: ofHead(query, head),
      key: ofHead(key, head),
      value: ofHead(value, head),
    }),
  };
}

/**
 * The products of a dot product, sorted by absolute value, and the sum of all except the `count` largest.
 * @param {ArrayLike<number>} left @param {ArrayLike<number>} right @param {number} count
 */
export function largestProducts(left, right, count) {
  const products = Array.from(left, (number, index) => number * right[index]);
  const sorted = products.slice().sort((a, b) => Math.abs(b) - Math.abs(a));
  return { products, largest: sorted.slice(0, count), rest: sorted.slice(count).reduce((sum, number) => sum + number, 0) };
}

/**
 * The numbers of all steps.
 * @param {{words: string[], x: Matrix, projections: Projections, chosen: number, isCausal: boolean}} state
 */
export function computeSix({ words, x, projections, chosen, isCausal }) {
  const query = sixProduct(x, projections.query);
  const key = sixProduct(x, projections.key);
  const value = sixProduct(x, projections.value);
  const scaled = scaledDotProductScore(query, key);
  const mask = isCausal ? causalMask(words.length) : undefined;
  const { output, weights } = attentionPooling(scaled, value, mask);
  const weighted = value.map((row, index) => row.map((number) => weights[chosen][index] * number));
  return { x, query, key, value, scores: dotProductScore(query, key), scaled, weights, weighted, output, mask };
}
