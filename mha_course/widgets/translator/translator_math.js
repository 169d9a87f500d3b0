// A complete Transformer that reads a written date and writes it in ISO 8601: embeddings, positions, encoder, decoder with
// a cache of keys and values, greedy and beam decoding. Pure functions, no DOM. Weights are float32 numbers that were
// rounded to 8 bits, and sums are float64, as in the model that Python compares with.

import { zeroMatrix } from "../shared/attention_math.js";
import {
  addAttention,
  addFeedForward,
  applyLinear,
  applyNorm,
  remember,
  unpackParts,
} from "../shared/transformer_math.js";

/** @typedef {import("../shared/attention_math.js").Matrix} Matrix */
/** @typedef {import("../shared/transformer_math.js").StoredModel} StoredModel */
/** @typedef {import("../shared/transformer_math.js").Weight} Weight */
/** @typedef {import("../shared/transformer_math.js").Linear} Linear */
/** @typedef {import("../shared/transformer_math.js").Stack} Stack */
/** @typedef {import("../shared/transformer_math.js").AttentionPart} AttentionPart */
/** @typedef {import("../shared/transformer_math.js").Remembered} Remembered */

export const ATTENTIONS = ["encoder", "decoder", "cross"]; // the order of their gates

const POSITION_BASE = 10_000;
// The characters that Python's str.split() treats as spaces; JavaScript's rules differ.
const DATE_SPACES = /[\t-\r\x1c-\x20\x85\xa0\u1680\u2000-\u200a\u2028\u2029\u202f\u205f\u3000]+/u;

/**
 * The characters that the model reads and writes. A letter's token is its index in `letters`, counted from 1.
 * @typedef {object} DateTask
 * @property {string} letters
 * @property {string[]} symbols
 * @property {number} start
 * @property {number} end
 * @property {number} source_length the greatest number of letters
 * @property {number} target_length the greatest number of tokens of an answer
 */

/**
 * @typedef {object} TranslatorModel
 * @property {number} numHeads
 * @property {number} numLayers
 * @property {Weight} source embeddings
 * @property {Weight} target embeddings
 * @property {Stack} encoder
 * @property {Stack} decoder
 * @property {Linear} output
 */

/** @typedef {number[][][]} Gates by attention, layer and head; the output of a head is multiplied by its gate */
/** @typedef {Float64Array[][]} HeadRows by layer and head, the weights of one query */
/** @typedef {{logits: Float64Array, decoder: HeadRows, cross: HeadRows}} DateStep */
/** @typedef {{states: Matrix, maps: Matrix[][]}} DateMemory the encoder's states, and its weights by layer and head */
/** @typedef {{length: number, blocks: {self: Remembered, cross: Remembered}[]}} Decoding the cache of a decoder */
/** @typedef {(tokens: readonly number[]) => DateStep} StepAfter the step that follows the beginning of an answer */
/** @typedef {(tokens: readonly number[], steps: readonly DateStep[]) => Matrix[][][]} MapsOf the weights of an answer's steps */

// Texts

/** A text in the form that the model reads, as from mha_course.data.dates.normalize_date. @param {string} text */
export function normalizeDate(text) {
  const parts = text.normalize("NFKC").toLowerCase().split(DATE_SPACES);
  return parts.filter((part) => part !== "").join(" ");
}

/**
 * What is wrong with a text, for the reader who types it; empty if the model can read it.
 * @param {string} text @param {DateTask} task
 */
export function dateProblem(text, { letters, source_length: most }) {
  const characters = [...normalizeDate(text)];
  if (characters.length === 0) return "Type a date.";
  const unknown = [...new Set(characters.filter((character) => !letters.includes(character)))];
  if (unknown.length > 0) {
    const shown = unknown.slice(0, 5).map((character) => `“${character}”`).join(", ");
    const which = unknown.length === 1 ? `a letter that it never saw: ${shown}` : `letters that it never saw: ${shown}`;
    return unknown.length > 5 ? `The model cannot read ${which} and others.` : `The model cannot read ${which}.`;
  }
  if (characters.length > most) return `${characters.length} letters are too many: the model reads at most ${most}.`;
  return "";
}

/**
 * @param {string} text that has no problem
 * @param {DateTask} task
 */
export function dateTokens(text, { letters }) {
  return Array.from(normalizeDate(text), (letter) => letters.indexOf(letter) + 1);
}

/** The characters of an answer up to its end. @param {readonly number[]} tokens @param {DateTask} task */
export function dateText(tokens, { symbols, end }) {
  const length = tokens.indexOf(end);
  return (length < 0 ? tokens : tokens.slice(0, length)).map((token) => symbols[token]).join("");
}

/**
 * Why an answer is not a day of the calendar, as the end of a sentence; empty if it is one.
 * @param {string} answer
 */
export function calendarFault(answer) {
  const parts = /^(\d{4})-(\d\d)-(\d\d)$/.exec(answer);
  if (!parts) return "it is not written as YYYY-MM-DD";
  const [year, month, day] = parts.slice(1).map(Number);
  if (month < 1 || month > 12) return `there is no month ${parts[2]}`;
  const leap = (year % 4 === 0 && year % 100 !== 0) || year % 400 === 0;
  const most = [31, leap ? 29 : 28, 31, 30, 31, 30, 31, 31, 30, 31, 30, 31][month - 1];
  return day < 1 || day > most ? `month ${parts[2]} of ${parts[1]} has no day ${parts[3]}` : "";
}

/**
 * How an answer contradicts its text, as a sentence; empty if no contradiction is found. The names of months are not
 * checked here, because reading them is the task of the model.
 * @param {string} text @param {string} answer a day of the calendar
 */
export function dateDoubt(text, answer) {
  const numbers = (normalizeDate(text).match(/\d+/g) ?? []).map((digits) => ({ digits, number: Number(digits) }));
  if (numbers.length === 0) return "The text has no number in it, so no day can follow from it.";
  const [year, , day] = answer.split("-").map(Number);
  const years = numbers.filter(({ digits }) => digits.length === 4);
  if (years.length === 0) return "The text does not say which year; the model makes one up.";
  if (!years.some(({ number }) => number === year)) return `The text says ${years[0].digits}, the answer ${year}: it is wrong.`;
  const others = numbers.filter(({ digits }) => digits.length < 4);
  if (others.length === 0) return "The text does not say which day; the model makes one up.";
  if (others.some(({ number }) => number === day)) return "";
  return `No number in the text is the day ${day} of the answer: it is wrong.`;
}

// The model

/** @param {StoredModel} stored @returns {TranslatorModel} */
export function unpackTranslator(stored) {
  const { parameters, linear, stack } = unpackParts(stored);
  return {
    numHeads: stored.num_heads,
    numLayers: stored.num_layers,
    source: parameters["source_embedding.weight"],
    target: parameters["target_embedding.weight"],
    encoder: stack("encoder"),
    decoder: stack("decoder", true),
    output: linear("output"),
  };
}

/**
 * The embedding of each token plus the sines and cosines of its position.
 * @param {Weight} table @param {readonly number[]} tokens @param {number} [first] position of the first token
 * @returns {Matrix}
 */
function embedTokens({ data, columns }, tokens, first = 0) {
  const x = zeroMatrix(tokens.length, columns);
  tokens.forEach((token, index) => {
    const position = positionVector(first + index, columns);
    for (let i = 0; i < columns; i++) x[index][i] = data[token * columns + i] + position[i];
  });
  return x;
}

/** @type {Map<string, Float32Array>} by position and width */
const positionVectors = new Map();

/** The sines and cosines of a position, which are float32 numbers in torch. @param {number} position @param {number} columns */
function positionVector(position, columns) {
  const key = `${position} ${columns}`;
  const known = positionVectors.get(key);
  if (known) return known;
  const vector = Float32Array.from({ length: columns }, (_, i) => {
    const angle = position * POSITION_BASE ** (-(i - (i % 2)) / columns);
    return i % 2 ? Math.cos(angle) : Math.sin(angle);
  });
  positionVectors.set(key, vector);
  return vector;
}

/**
 * Reads a date.
 * @param {TranslatorModel} model @param {readonly number[]} tokens @param {Gates} gates @returns {DateMemory}
 */
export function encodeDate({ encoder, source, numHeads }, tokens, gates) {
  const x = embedTokens(source, tokens);
  const maps = encoder.blocks.map((block, layer) => {
    const normed = applyNorm(x, block.self.norm);
    const remembered = remember(block.self, normed, numHeads);
    const weights = addAttention(x, block.self, applyLinear(normed, block.self.query), remembered, gates[0][layer]);
    addFeedForward(x, block);
    return weights;
  });
  return { states: applyNorm(x, encoder.norm), maps };
}

/**
 * An empty cache: the memory is projected once, and no token is written yet.
 * @param {TranslatorModel} model @param {DateMemory} memory @returns {Decoding}
 */
export function startDecoding({ decoder, numHeads }, { states }) {
  const none = () => Array.from({ length: numHeads }, () => []);
  const blocks = decoder.blocks.map(({ cross }) => ({
    self: { keys: none(), values: none() },
    cross: remember(/** @type {AttentionPart} */ (cross), states, numHeads),
  }));
  return { length: 0, blocks };
}

/**
 * A copy that can continue independently. The projected memory never changes and is shared.
 * @param {Decoding} decoding @returns {Decoding}
 */
function copyDecoding({ length, blocks }) {
  const copy = (/** @type {Matrix[]} */ heads) => heads.map((rows) => rows.slice());
  return {
    length,
    blocks: blocks.map(({ self, cross }) => ({ self: { keys: copy(self.keys), values: copy(self.values) }, cross })),
  };
}

/**
 * Reads one more token and predicts the next. Only this token is computed; the others are in the cache.
 * @param {TranslatorModel} model @param {Decoding} decoding the cache, to which the token is added
 * @param {number} token @param {Gates} gates @returns {DateStep}
 */
export function decodeNext({ decoder, target, output, numHeads }, decoding, token, gates) {
  const x = embedTokens(target, [token], decoding.length);
  decoding.length += 1;
  /** @type {DateStep} */
  const step = { logits: new Float64Array(0), decoder: [], cross: [] };
  decoder.blocks.forEach((block, layer) => {
    const own = decoding.blocks[layer];
    const normed = applyNorm(x, block.self.norm);
    const { keys, values } = remember(block.self, normed, numHeads);
    own.self.keys.forEach((rows, head) => rows.push(keys[head][0]));
    own.self.values.forEach((rows, head) => rows.push(values[head][0]));
    const seen = addAttention(x, block.self, applyLinear(normed, block.self.query), own.self, gates[1][layer]);
    const cross = /** @type {AttentionPart} */ (block.cross);
    const queries = applyLinear(applyNorm(x, cross.norm), cross.query);
    const read = addAttention(x, cross, queries, own.cross, gates[2][layer]);
    addFeedForward(x, block);
    step.decoder.push(seen.map(([row]) => row));
    step.cross.push(read.map(([row]) => row));
  });
  step.logits = applyLinear(applyNorm(x, decoder.norm), output)[0];
  return step;
}

// Answers

/** @param {Float64Array} logits */
export function logSoftmax(logits) {
  let highest = -Infinity;
  let total = 0;
  for (const logit of logits) highest = Math.max(highest, logit);
  for (const logit of logits) total += Math.exp(logit - highest);
  const log = Math.log(total);
  return logits.map((logit) => logit - highest - log);
}

/** @param {Float64Array} numbers */
function placeOfHighest(numbers) {
  let best = 0;
  for (let i = 1; i < numbers.length; i++) if (numbers[i] > numbers[best]) best = i;
  return best;
}

/**
 * Reads a date, and returns its memory and a function that gives the step after the beginning of an answer. A beginning is
 * decoded only once, however many answers have it: those of a larger beam share most of theirs with those of a smaller one.
 * The weights of an answer are collected only once too, so a page that has drawn them sees that they are the same.
 * @param {TranslatorModel} model @param {DateTask} task @param {{text: string, gates: Gates}} state
 * @returns {{memory: DateMemory, stepAfter: StepAfter, mapsOf: MapsOf}}
 */
export function readDate(model, task, { text, gates }) {
  const memory = encodeDate(model, dateTokens(text, task), gates);
  /** @type {Map<string, {decoding: Decoding, step: DateStep}>} by the tokens of the beginning */
  const decoded = new Map();

  /** @param {readonly number[]} tokens of which all but the last one have been decoded */
  function stepAfter(tokens) {
    const known = decoded.get(String(tokens));
    if (known) return known.step;
    const before = decoded.get(String(tokens.slice(0, -1)));
    const decoding = before ? copyDecoding(before.decoding) : startDecoding(model, memory);
    const step = decodeNext(model, decoding, tokens.at(-1) ?? task.start, gates);
    decoded.set(String(tokens), { decoding, step });
    return step;
  }

  /** @type {Map<string, Matrix[][][]>} by the tokens of the answer */
  const collected = new Map();
  /** @type {MapsOf} */
  const mapsOf = (tokens, steps) => {
    const maps = collected.get(String(tokens)) ?? collectMaps(memory, steps);
    collected.set(String(tokens), maps);
    return maps;
  };
  return { memory, stepAfter, mapsOf };
}

/**
 * Writes an answer from the most probable token at each step, or from the given tokens.
 * @param {StepAfter} stepAfter @param {DateTask} task @param {readonly number[]} [given]
 */
export function writeAnswer(stepAfter, { end, target_length: most }, given) {
  /** @type {number[]} */
  const tokens = [];
  /** @type {DateStep[]} */
  const steps = [];
  let logProb = 0;
  while (tokens.length < (given?.length ?? most) && tokens.at(-1) !== end) {
    const step = stepAfter(tokens);
    const token = given ? given[tokens.length] : placeOfHighest(step.logits);
    logProb += logSoftmax(step.logits)[token];
    tokens.push(token);
    steps.push(step);
  }
  return { tokens, steps, logProb };
}

/**
 * The most probable answers that beam search finds, as in mha_lib.models.generation.beam_decode.
 * @param {StepAfter} stepAfter @param {DateTask} task @param {number} beamSize
 * @returns {{tokens: number[], logProb: number}[]} the most probable first
 */
export function beamAnswers(stepAfter, { end, target_length: most }, beamSize) {
  /** @type {{tokens: number[], logProb: number}[]} */
  let beam = [{ tokens: [], logProb: 0 }];
  const hasEnded = (/** @type {number[]} */ tokens) => tokens.at(-1) === end;
  for (let length = 0; length < most && !beam.every(({ tokens }) => hasEnded(tokens)); length++) {
    const candidates = beam.flatMap((answer) => {
      const { tokens, logProb } = answer;
      if (hasEnded(tokens)) return [answer];
      const steps = Array.from(logSoftmax(stepAfter(tokens).logits));
      return steps.map((step, token) => ({ tokens: [...tokens, token], logProb: logProb + step }));
    });
    beam = candidates.sort((a, b) => b.logProb - a.logProb).slice(0, beamSize);
  }
  return beam;
}

/**
 * The weights of all queries, by attention, layer and head; 0 for later tokens, which an answer's token cannot see.
 * @param {DateMemory} memory @param {readonly DateStep[]} steps @returns {Matrix[][][]}
 */
export function collectMaps({ maps, states }, steps) {
  const gather = (/** @type {"decoder" | "cross"} */ kind, /** @type {number} */ columns) =>
    steps[0][kind].map((heads, layer) =>
      heads.map((_, head) => {
        const map = zeroMatrix(steps.length, columns);
        steps.forEach((step, row) => map[row].set(step[kind][layer][head]));
        return map;
      }),
    );
  return [maps, gather("decoder", steps.length), gather("cross", states.length)];
}

/**
 * Everything that the page shows about one date.
 * @param {TranslatorModel} model @param {DateTask} task
 * @param {{text: string, gates: Gates, beamSize: number}} state
 * @param {ReturnType<typeof readDate>} [reading] the same date as it was read before
 */
export function translateDate(model, task, state, reading = readDate(model, task, state)) {
  const { memory, stepAfter, mapsOf } = reading;
  const answers = state.beamSize > 1 ? beamAnswers(stepAfter, task, state.beamSize) : [];
  const { tokens, steps, logProb } = writeAnswer(stepAfter, task, answers[0]?.tokens);
  return {
    memory,
    tokens,
    steps,
    answers: answers.length > 0 ? answers : [{ tokens, logProb }],
    maps: mapsOf(tokens, steps),
  };
}

/**
 * The most probable tokens of a step.
 * @param {DateStep} step @param {number} count @returns {{token: number, probability: number}[]}
 */
export function runnersUp({ logits }, count) {
  const logs = Array.from(logSoftmax(logits), (log, token) => ({ token, probability: Math.exp(log) }));
  return logs.sort((a, b) => b.probability - a.probability).slice(0, count);
}

/**
 * Gates from a flat list, in the order of ATTENTIONS, then layers, then heads.
 * @param {readonly number[]} flat @param {number} numLayers @param {number} numHeads @returns {Gates}
 */
export function shapeGates(flat, numLayers, numHeads) {
  return ATTENTIONS.map((_, kind) =>
    Array.from({ length: numLayers }, (_, layer) => {
      const first = (kind * numLayers + layer) * numHeads;
      return flat.slice(first, first + numHeads);
    }),
  );
}
