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
} from "../shared/attention_math.js";
import { addAttention, addInPlace, applyLinear, applyNorm, partsOf, remember, scaleColumns, unpackParameters, unpackParts } from "../shared/transformer_math.js";

/** @typedef {import("../shared/attention_math.js").Matrix} Matrix */
/** @typedef {import("../shared/transformer_math.js").Weight} Weight */
/** @typedef {ReturnType<typeof unpackBert>} BertModel */
/**
 * A model as a page loads it. All texts but the shapes are bytes; `kept` are the numbers of the pieces whose vectors are here.
 * @typedef {{shapes: (string | number)[][], num_heads: number, num_layers: number, sizes: Object<string, number>, int8: string,
 *   few: string, float32: string, kept: string, pieces: string}} PackedBert
 */
/** @typedef {{packed?: PackedBert, number: number, tokens: number[]}} BertRequest */
/** @typedef {{number: number, block?: number, maps?: Matrix[], problem?: string}} BertAnswer */
/** @typedef {{numbers: Map<string, number>, rows: Map<string, number>}} Vocabulary */

const LONGEST_WORD = 100; // longer words are unknown to the tokenizer
const MARKS = /(\[(?:PAD|UNK|CLS|SEP|MASK)\])/;

/**
 * The bytes of a text in which each character carries two, the higher one last. No character begins with a byte that has no
 * place in a text: a character that begins with E0 announces it, and the next one has the other byte. In the file, these
 * bytes have changed places with numbers that are rare in a model.
 * @param {string} text @param {number} count of bytes @throws {RangeError} the text is missing or damaged
 */
export function bytesFromUnits(text, count) {
  const reserved = [0x00, 0xd8, 0xd9, 0xda, 0xdb, 0xdc, 0xdd, 0xde, 0xdf, 0xe0];
  const rare = [0x80, 0x7a, 0x7b, 0x7c, 0x7d, 0x7e, 0x82, 0x83, 0x84, 0x85];
  const swapped = Uint8Array.from({ length: 256 }, (_, byte) => byte);
  reserved.forEach((byte, index) => ([swapped[byte], swapped[rare[index]]] = [rare[index], byte]));
  const isReserved = Uint8Array.from({ length: 256 }, (_, byte) => Number(reserved.includes(byte)));
  const bytes = new Uint8Array(count + (count % 2));
  let at = 0;
  let isWhole = typeof text === "string";
  for (let i = 0; isWhole && i < text.length; at += 2) {
    const unit = text.charCodeAt(i++);
    let high = unit >> 8;
    let low = unit & 255;
    if (high === 0xe0) {
      high = reserved[low];
      low = text.charCodeAt(i++) & 255;
      isWhole = i <= text.length && high !== undefined;
    } else isWhole = !isReserved[high];
    isWhole &&= at < count;
    bytes[at] = low;
    bytes[at + 1] = swapped[high];
  }
  if (!isWhole || at !== bytes.length) throw new RangeError(`the model must hold ${count} bytes: what was loaded is damaged`);
  return bytes.subarray(0, count);
}

/** Numbers of 6 bits, four of them in three bytes, the first one highest. @param {Uint8Array} bytes @param {number} count */
export function fewBitNumbers(bytes, count) {
  const numbers = new Int8Array(count);
  for (let i = 0; i < count; i++) {
    const byte = Math.floor((6 * i) / 8);
    const pair = (bytes[byte] << 8) | (bytes[byte + 1] ?? 0);
    numbers[i] = ((pair >> (10 - ((6 * i) % 8))) & 63) - 32;
  }
  return numbers;
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

/** The names of all pieces, and the rows of those whose vectors are here. @param {PackedBert} packed @returns {Vocabulary} */
export function unpackVocabulary({ pieces, kept, sizes }) {
  const names = new TextDecoder().decode(bytesFromUnits(pieces, sizes.pieces)).split("\n");
  const numbers = new Uint16Array(bytesFromUnits(kept, sizes.kept).slice().buffer);
  return {
    numbers: new Map(names.map((name, number) => [name, number])),
    rows: new Map(Array.from(numbers, (number, row) => [names[number], row])),
  };
}

/**
 * The pieces of a text, their rows, and the pieces that have none: they are read as [UNK].
 * @param {string} text @param {Vocabulary} vocabulary
 */
export function readPieces(text, { numbers, rows }) {
  const pieces = textPieces(text, numbers);
  const unknown = /** @type {number} */ (rows.get("[UNK]"));
  const missing = [...new Set(pieces.filter((piece) => !rows.has(piece)))];
  return { pieces, missing, tokens: pieces.map((piece) => rows.get(piece) ?? unknown) };
}

// The model

/**
 * A post-norm stack with its embeddings.
 * @param {PackedBert} packed @throws {RangeError} a part is damaged
 */
export function unpackBert(packed) {
  const { sizes, shapes, num_heads, num_layers } = packed;
  const bytes = (/** @type {"int8" | "few" | "float32"} */ name) => bytesFromUnits(packed[name], sizes[name]);
  const matrices = bytes("int8");
  const counts = shapes.filter(([, , columns]) => columns).map(([name, rows, columns]) => ({ name, count: Number(rows) * Number(columns) }));
  const int8 = new Int8Array(counts.reduce((sum, { count }) => sum + count, 0));
  let [from, at] = [0, 0];
  for (const { name, count } of counts) {
    if (name === "embedding.weight") int8.set(fewBitNumbers(bytes("few"), count), at);
    else int8.set(matrices.subarray(from, (from += count)), at);
    at += count;
  }
  const float32 = Float64Array.from(new Float32Array(bytes("float32").slice().buffer));
  const { parameters, norm, stack } = unpackParts({ shapes, num_heads, num_layers, int8, float32, error: 0 }, true);
  return {
    numHeads: num_heads,
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
 * The weights of all heads, block by block, and the tokens after each block.
 * @param {BertModel} model @param {readonly number[]} tokens rows of the table
 * @returns {Generator<{weights: Matrix[], x: Matrix}>}
 */
export function* bertBlocks({ numHeads, table, positions, segments, norm, encoder }, tokens) {
  const epsilon = 1e-12; // BERT's
  const gates = new Array(numHeads).fill(1);
  let x = zeroMatrix(tokens.length, table.columns);
  tokens.forEach((token, place) => {
    addRow(x[place], table, token);
    addRow(x[place], positions, place);
    addRow(x[place], segments, 0);
  });
  x = applyNorm(x, norm, epsilon);
  for (const block of encoder.blocks) {
    const weights = addAttention(x, block.self, applyLinear(x, block.self.query), remember(block.self, x, numHeads), gates);
    x = applyNorm(x, block.self.norm, epsilon);
    const hidden = applyLinear(x, block.up);
    for (const row of hidden) for (let i = 0; i < row.length; i++) row[i] = gelu(row[i]);
    addInPlace(x, applyLinear(hidden, block.down));
    x = applyNorm(x, block.norm, epsilon);
    yield { weights, x };
  }
}

/**
 * Answers requests for the maps of a text, in a worker or in the page. Between two blocks it lets others work, and a new request
 * stops the one before it. An answer has the maps, head by head, or says what is damaged; before it, each block is reported.
 * @param {(answer: BertAnswer) => void} send
 */
export function bertReader(send) {
  /** @type {BertModel} */
  let model;
  let latest = 0;
  return async (/** @type {BertRequest} */ { packed, number, tokens }) => {
    latest = number;
    try {
      if (packed) model = unpackBert(packed);
      /** @type {Matrix[]} */
      const maps = [];
      let block = 0;
      for (const { weights } of bertBlocks(model, tokens)) {
        maps.push(...weights);
        send({ number, block: ++block });
        await new Promise((resolve) => setTimeout(resolve));
        if (latest !== number) return;
      }
      send({ number, maps });
    } catch (error) {
      send({ number, problem: /** @type {Error} */ (error).message });
    }
  };
}

/** All functions that a worker needs for `bertReader`. */
export const BERT = [
  zeroMatrix, splitHeads, mergeHeads, dotProductScore, scaledDotProductScore, maskedSoftmax, weightedSum, attentionPooling,
  unpackParameters, partsOf, unpackParts, applyLinear, scaleColumns, applyNorm, addInPlace, addAttention, remember, gelu, addRow,
  bytesFromUnits, fewBitNumbers, unpackBert, bertBlocks, bertReader,
];
