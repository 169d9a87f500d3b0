// A small GPT in the page: it reads a text character by character, remembers keys and values, and gives the probabilities
// of the next one. Pure functions, no DOM. A worker that trains a GPT uses them too, so they use no constant of this file.

import { causalMask, maskedSoftmax, zeroMatrix } from "../shared/attention_math.js";
import { randomNumbers } from "../shared/random_math.js";
import { addAttention, addFeedForward, applyLinear, applyNorm, remember, unpackParts } from "../shared/transformer_math.js";

/** @typedef {import("../shared/attention_math.js").Matrix} Matrix */
/** @typedef {import("../shared/transformer_math.js").StoredModel} StoredModel */
/** @typedef {import("../shared/transformer_math.js").Remembered} Remembered */
/** @typedef {ReturnType<typeof unpackWriter>} WriterModel */
/** @typedef {number[][]} WriterGates by layer and head; the output of a head is multiplied by its gate */

/**
 * What is kept of a text: for each token, the logits of the next one, and its weights by layer and head.
 * @typedef {{model: WriterModel, gates: WriterGates, tokens: number[], logits: Matrix, rows: Matrix[][],
 *   blocks: Remembered[]}} Reading
 */

/** @param {StoredModel} stored */
export function unpackWriter(stored) {
  return writerFrom(unpackParts(stored), stored.num_heads, stored.num_layers);
}

/** @param {ReturnType<typeof unpackParts>} parts @param {number} numHeads @param {number} numLayers */
export function writerFrom({ parameters, linear, stack }, numHeads, numLayers) {
  const table = parameters["embedding.weight"];
  const positions = parameters["position_embedding.weight"];
  return {
    numHeads,
    numLayers,
    maxLen: positions.rows,
    table,
    positions,
    encoder: stack("encoder"),
    output: parameters["output.weight"] ? linear("output") : { weight: table }, // tied, as in GPT-2
  };
}

/**
 * What is wrong with a text, for the reader who types it; empty if the model can continue it.
 * @param {string} text @param {readonly string[]} alphabet @param {number} most
 */
export function textProblem(text, alphabet, most) {
  const characters = [...text];
  if (characters.length === 0) return "Type at least one character: the model continues what is there.";
  if (characters.length > most) {
    return `${characters.length.toLocaleString("en")} characters are too many: a prompt has at most ${most.toLocaleString("en")}.`;
  }
  const unknown = [...new Set(characters.filter((character) => !alphabet.includes(character)))];
  if (unknown.length === 0) return "";
  const shown = unknown.slice(0, 5).map((character) => `“${character}”`).join(", ");
  if (unknown.length === 1) return `The model cannot read a character that it has never seen: ${shown}.`;
  const more = unknown.length > 5 ? " and others" : "";
  return `The model cannot read characters that it has never seen: ${shown}${more}.`;
}

/** @param {WriterModel} model @param {WriterGates} gates @returns {Reading} */
export function startReading(model, gates) {
  const none = () => Array.from({ length: model.numHeads }, () => []);
  const blocks = model.encoder.blocks.map(() => ({ keys: none(), values: none() }));
  return { model, gates, tokens: [], logits: [], rows: model.encoder.blocks.map(none), blocks };
}

/** Forgets all but the first tokens. @param {Reading} reading @param {number} length */
export function forget({ tokens, logits, rows, blocks }, length) {
  const lists = [tokens, logits, ...rows.flat(), ...blocks.flatMap(({ keys, values }) => [...keys, ...values])];
  for (const list of lists) list.length = length;
}

/** Continues reading: each new token sees the earlier ones and itself. @param {Reading} reading @param {readonly number[]} added */
export function readOn({ model, gates, tokens, logits, rows, blocks }, added) {
  const { table, positions, encoder, output, numHeads } = model;
  const first = tokens.length;
  const mask = causalMask(added.length, first + added.length);
  const x = zeroMatrix(added.length, table.columns);
  added.forEach((token, index) => {
    const [from, place] = [token * table.columns, (first + index) * table.columns];
    for (let i = 0; i < table.columns; i++) x[index][i] = table.data[from + i] + positions.data[place + i];
  });
  encoder.blocks.forEach((block, layer) => {
    const normed = applyNorm(x, block.self.norm);
    const { keys, values } = remember(block.self, normed, numHeads);
    const own = blocks[layer];
    keys.forEach((fresh, head) => own.keys[head].push(...fresh));
    values.forEach((fresh, head) => own.values[head].push(...fresh));
    const weights = addAttention(x, block.self, applyLinear(normed, block.self.query), own, gates[layer], mask);
    weights.forEach((fresh, head) => rows[layer][head].push(...fresh));
    addFeedForward(x, block);
  });
  tokens.push(...added);
  logits.push(...applyLinear(applyNorm(x, encoder.norm), output));
}

/**
 * Reads the end of a text, as many characters as the model has positions. The beginning that it shares with an earlier
 * reading is not computed again. If the text is longer than the model's window, every character moves to a different
 * position, so nothing can be reused.
 * @param {WriterModel} model @param {WriterGates} gates @param {readonly number[]} text tokens
 * @param {Reading | null} earlier which is changed
 * @returns {Reading}
 */
export function readText(model, gates, text, earlier = null) {
  const seen = text.slice(-model.maxLen);
  const isSame = earlier?.model === model && String(earlier.gates) === String(gates);
  const reading = earlier && isSame ? earlier : startReading(model, gates);
  let common = 0;
  while (common < seen.length && seen[common] === reading.tokens[common]) common += 1;
  if (common < reading.tokens.length) forget(reading, common);
  if (common < seen.length) readOn(reading, seen.slice(common));
  return reading;
}

/** The weights of all queries, by layer and head; later tokens have 0. @param {Reading} reading @returns {Matrix[][]} */
export function readingMaps({ rows, tokens: { length } }) {
  return rows.map((heads) =>
    heads.map((own) => {
      const map = zeroMatrix(length, length);
      own.forEach((row, query) => map[query].set(row.subarray(0, Math.min(row.length, length))));
      return map;
    }),
  );
}

/**
 * The probabilities from which the next token is drawn, the largest first.
 * @param {Float64Array} logits @param {number} temperature @param {number} topK the number of tokens that can be drawn
 * @returns {{token: number, probability: number}[]} one for each token
 */
export function nextChances(logits, temperature, topK) {
  const scaled = logits.map((logit) => logit / temperature);
  const least = scaled.slice().sort().at(-topK) ?? -Infinity;
  const [chances] = maskedSoftmax([scaled], [Array.from(scaled, (logit) => logit >= least)]);
  return Array.from(chances, (probability, token) => ({ token, probability })).sort((a, b) => b.probability - a.probability);
}

/** The random number for a position in the text, at least 0 and below 1. @param {number} seed @param {number} place */
export function numberAt(seed, place) {
  return randomNumbers(seed, place).uniform();
}

/**
 * The token on which a number falls if the probabilities are laid side by side.
 * @param {readonly {token: number, probability: number}[]} chances @param {number} number
 */
export function drawToken(chances, number) {
  let sum = 0;
  return (chances.find(({ probability }) => (sum += probability) > number) ?? chances[0]).token;
}
