// A BERT in the page: texts as pieces of words, and the maps of all heads on a text. Pure functions, no DOM. All that a worker
// needs are functions without further names, because its program is made from their texts.

import {
  attentionPooling,
  dotProductScore,
  maskedSoftmax,
  mergeHeads,
  scaledDotProductScore,
  splitHeads,
  weightedSum,
  zeroMatrix,
} from "./attention_math.js";
import { addAttention, addInPlace, applyLinear, applyNorm, remember, scaleColumns, unpackParameters, unpackParts } from "./transformer_math.js";

/** @typedef {import("./attention_math.js").Matrix} Matrix */
/** @typedef {import("./transformer_math.js").StoredModel} StoredModel */
/** @typedef {import("./transformer_math.js").Weight} Weight */
/** @typedef {ReturnType<typeof unpackBert>} BertModel */
/** @typedef {{tokens: number[], pieces: string[], missing: string[]}} BertText `missing` are pieces whose vectors are not here */

const FIRST_UNIT = 0x3000; // from here on, 2 ** 15 code units are valid characters
const LONGEST_WORD = 100; // longer words are unknown to the tokenizer
const MARKS = /(\[(?:PAD|UNK|CLS|SEP|MASK)\])/;

/**
 * The bytes of a text in which each character carries 15 bits, the highest first. As UTF-16, such a text is 7% larger than its
 * bytes, where base64 would be 33% larger.
 * @param {string} text @param {number} count of bytes @throws {RangeError} the text is missing or damaged
 */
export function bytesFromUnits(text, count) {
  const damaged = () => new RangeError(`the model must hold ${count} bytes: what was loaded is damaged`);
  if (typeof text !== "string" || text.length !== Math.ceil((8 * count) / 15)) throw damaged();
  const bytes = new Uint8Array(count);
  let [held, bits, at] = [0, 0, 0];
  for (let i = 0; i < text.length; i++) {
    const unit = text.charCodeAt(i) - FIRST_UNIT;
    if (unit < 0 || unit >= 2 ** 15) throw damaged();
    held = (held << 15) | unit;
    bits += 15;
    for (; bits >= 8 && at < count; bits -= 8) bytes[at++] = held >> (bits - 8);
    held &= (1 << bits) - 1;
  }
  return bytes;
}

// Texts

/** The words and the punctuation of a text, in lower case and without accents. @param {string} text */
function basicTokens(text) {
  // Control characters disappear, among them those that only format; every space is equal.
  const clean = text.replace(/[\t\n\r]/gu, " ").replace(/[\0\uFFFD]|\p{C}/gu, "").replace(/\p{White_Space}/gu, " ");
  // Chinese characters are words of their own.
  const apart = clean.replace(/[\u4E00-\u9FFF\u3400-\u4DBF\u{20000}-\u{2A6DF}\u{2A700}-\u{2B73F}\u{2B740}-\u{2B81F}\u{2B820}-\u{2CEAF}\uF900-\uFAFF\u{2F800}-\u{2FA1F}]/gu, " $& ");
  const plain = Array.from(apart.normalize("NFD").replace(/\p{Mn}/gu, ""), (letter) => letter.toLowerCase()).join("");
  return plain.replace(/[!-/:-@[-`{-~]|\p{P}/gu, " $& ").split(" ").filter((word) => word !== "");
}

/** The longest pieces of a word that the vocabulary has, from its start on. @param {string} word @param {Map<string, number>} numbers */
function wordPieces(word, numbers) {
  const letters = [...word];
  if (letters.length > LONGEST_WORD) return ["[UNK]"];
  const pieces = [];
  for (let start = 0, end = 0; start < letters.length; start = end) {
    let piece = "";
    for (end = letters.length; end > start; end--) {
      piece = (start > 0 ? "##" : "") + letters.slice(start, end).join("");
      if (numbers.has(piece)) break;
    }
    if (end === start) return ["[UNK]"];
    pieces.push(piece);
  }
  return pieces;
}

/**
 * The pieces of a text, between a mark at its start and one at its end: WordPiece, as in BERT's own tokenizer.
 * @param {string} text @param {Map<string, number>} numbers of all pieces of the vocabulary
 */
export function textPieces(text, numbers) {
  const parts = text.split(MARKS); // every second part is a mark
  const pieces = parts.flatMap((part, index) =>
    index % 2 ? [part] : basicTokens(part).flatMap((word) => wordPieces(word, numbers)),
  );
  return ["[CLS]", ...pieces, "[SEP]"];
}

// The model

/** @param {StoredModel} stored a post-norm stack, with its embeddings */
export function unpackBert(stored) {
  const { parameters, norm, stack } = unpackParts(stored, true);
  return {
    numHeads: stored.num_heads,
    table: parameters["embedding.weight"],
    positions: parameters["position_embedding.weight"],
    segments: parameters["segment_embedding.weight"],
    norm: norm("embedding_norm"),
    encoder: stack("encoder"),
  };
}

/** x Φ(x), with the error function to 1.5e-7 (Abramowitz and Stegun, 1964, 7.1.26). @param {number} x */
function gelu(x) {
  const t = 1 / (1 + (0.3275911 * Math.abs(x)) / Math.SQRT2);
  const sum = t * (0.254829592 + t * (-0.284496736 + t * (1.421413741 + t * (-1.453152027 + t * 1.061405429))));
  const half = 0.5 * sum * Math.exp((-x * x) / 2); // Φ(-|x|)
  return x * (x < 0 ? half : 1 - half);
}

/** A row of a matrix in bytes, added to numbers. @param {Float64Array} numbers @param {Weight} weight @param {number} row */
function addRow(numbers, { data, columns, scales }, row) {
  const scale = scales ? scales[row] : 1;
  for (let i = 0; i < columns; i++) numbers[i] += data[row * columns + i] * scale;
}

/**
 * The final tokens, and the weights of all heads, layer by layer.
 * @param {BertModel} model @param {readonly number[]} tokens rows of the table
 * @returns {{final: Matrix, maps: Matrix[][]}}
 */
export function readWithBert({ numHeads, table, positions, segments, norm, encoder }, tokens) {
  const epsilon = 1e-12; // BERT's
  const gates = new Array(numHeads).fill(1);
  let x = zeroMatrix(tokens.length, table.columns);
  tokens.forEach((token, place) => {
    addRow(x[place], table, token);
    addRow(x[place], positions, place);
    addRow(x[place], segments, 0);
  });
  x = applyNorm(x, norm, epsilon);
  const maps = encoder.blocks.map((block) => {
    const weights = addAttention(x, block.self, applyLinear(x, block.self.query), remember(block.self, x, numHeads), gates);
    x = applyNorm(x, block.self.norm, epsilon);
    const hidden = applyLinear(x, block.up);
    for (const row of hidden) for (let i = 0; i < row.length; i++) row[i] = gelu(row[i]);
    addInPlace(x, applyLinear(hidden, block.down));
    x = applyNorm(x, block.norm, epsilon);
    return weights;
  });
  return { final: x, maps };
}

/** All functions that a worker needs for `unpackBert` and `readWithBert`. */
export const BERT = [
  zeroMatrix, splitHeads, mergeHeads, dotProductScore, scaledDotProductScore, maskedSoftmax, weightedSum, attentionPooling,
  unpackParameters, unpackParts, applyLinear, scaleColumns, applyNorm, addInPlace, addAttention, remember, gelu, addRow,
  unpackBert, readWithBert,
];
