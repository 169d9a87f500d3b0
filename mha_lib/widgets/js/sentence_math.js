// Words, the vectors made from their characters, and the six steps of self-attention over them. Pure
// functions, no DOM.

import { attentionPooling, causalMask, dotProductScore, scaledDotProductScore } from "./attention_math.js";

/** @typedef {import("./attention_math.js").Matrix} Matrix */
/** @typedef {{words: number, characters: number}} SentenceLimits how many of each fit into a sentence */

// The spaces are written out because Python and JavaScript disagree about which characters are spaces.
const SIX_SEPARATORS = /[\t-\r \u0085\u00a0\u1680\u2000-\u200b\u2028\u2029\u202f\u205f\u3000\ufeff]+/u;
// Control characters, including those that set the direction of the text, and lone halves of surrogate pairs.
const SIX_REFUSED = /[\x00-\x08\x0e-\x1f\x7f-\x84\x86-\x9f\u202a-\u202e\u2060-\u206f\ud800-\udfff]/u;
// Characters that only shape their neighbours: a word of these alone would be invisible.
const SIX_UNSEEN = /^[\u00ad\u034f\u061c\u180b-\u180f\u200c-\u200f\ufe00-\ufe0f]+$/u;

/**
 * @param {string} sentence
 * @returns {string[]}
 */
export function sixWords(sentence) {
  return sentence.normalize("NFC").split(SIX_SEPARATORS).filter((word) => word !== "");
}

/**
 * @param {string} sentence
 * @param {SentenceLimits} limits
 * @returns {string} what is wrong with the sentence, for the reader who types it; empty if nothing is wrong
 */
export function sixProblem(sentence, { words: mostWords, characters }) {
  const { length } = [...sentence];
  if (length > characters) return `${length} characters are too many: up to ${characters} fit here.`;
  if (SIX_REFUSED.test(sentence)) return "There is a control character in the sentence: please leave it out.";
  const words = sixWords(sentence);
  if (words.length === 0) return "Type at least one word.";
  if (words.length > mostWords) return `${words.length} words are too many: up to ${mostWords} fit here.`;
  if (words.some((word) => SIX_UNSEEN.test(word))) return "One of the words cannot be seen: please leave it out.";
  return "";
}

/**
 * The vector that is made from the characters of a word, and the intermediate numbers.
 * @param {string} word
 */
export function sixCode(word) {
  const points = Array.from(word, (character) => /** @type {number} */ (character.codePointAt(0)));
  const total = points.reduce((sum, point, index) => sum + (index + 1) * point, 0);
  const code = 1 + (total % 80);
  const digits = [Math.floor(code / 27), Math.floor(code / 9) % 3, Math.floor(code / 3) % 3, code % 3];
  return { points, total, code, digits };
}

/**
 * @param {Matrix} x
 * @param {Matrix} matrix
 * @returns {Matrix} x @ matrix
 */
function sixProduct(x, matrix) {
  return dotProductScore(
    x,
    Array.from(matrix[0], (_, column) => Float64Array.from(matrix, (row) => row[column])),
  );
}

/**
 * The numbers of all steps.
 * @param {{words: string[], x: Matrix, projections: Record<"query" | "key" | "value", Matrix>, chosen: number,
 *   isCausal: boolean}} state
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
