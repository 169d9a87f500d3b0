// A complete Transformer that reads a written date and writes it as ISO 8601 does: embeddings, positions, encoder, decoder
// with a cache of keys and values, greedy and beam decoding. Pure functions, no DOM. Weights are float32 numbers that were
// rounded to 8 bits, and sums are float64, as in the model that Python compares with.

import {
  attentionPooling,
  bytesFromBase64,
  mergeHeads,
  numbersFromFloat32,
  scaledDotProductScore,
  splitHeads,
  zeroMatrix,
} from "./attention_math.js";

/** @typedef {import("./attention_math.js").Matrix} Matrix */

export const ATTENTIONS = ["encoder", "decoder", "cross"]; // the order of their gates

const NORM_EPSILON = 1e-5; // of torch's layer norms
const POSITION_BASE = 10_000;
// What Python's str.split() takes for a space; JavaScript has other rules.
const DATE_SPACES = /[\t-\r\x1c-\x20\x85\xa0\u1680\u2000-\u200a\u2028\u2029\u202f\u205f\u3000]+/u;

/**
 * @typedef {object} StoredTranslator
 * @property {number} num_heads
 * @property {number} num_layers
 * @property {(string | number)[][]} shapes name and sizes of each parameter
 * @property {string} int8 the matrices, a signed byte for each number, in base64
 * @property {string} float32 in base64: for each matrix the scales of its rows, for each vector its numbers
 * @property {number} error how far rounding moved the weights: root mean square, relative to that of the weights
 */

/**
 * What the model reads and writes. A letter's token is its place in `letters`, counted from 1.
 * @typedef {object} DateTask
 * @property {string} letters
 * @property {string[]} symbols
 * @property {number} start
 * @property {number} end
 * @property {number} source_length at most so many letters
 * @property {number} target_length at most so many tokens of an answer
 */

/** @typedef {{data: Float64Array, rows: number, columns: number}} Weight */
/** @typedef {{weight: Weight, bias?: Float64Array}} Linear */
/** @typedef {{weight: Float64Array, bias?: Float64Array}} Norm */
/** @typedef {{query: Linear, key: Linear, value: Linear, out: Linear, norm: Norm}} AttentionPart */
/** @typedef {{self: AttentionPart, cross?: AttentionPart, up: Linear, down: Linear, norm: Norm}} Block */

/**
 * @typedef {object} TranslatorModel
 * @property {number} numHeads
 * @property {number} numLayers
 * @property {Weight} source embeddings
 * @property {Weight} target embeddings
 * @property {{blocks: Block[], norm: Norm}} encoder
 * @property {{blocks: Block[], norm: Norm}} decoder
 * @property {Linear} output
 */

/** @typedef {number[][][]} Gates by attention, layer and head; the output of a head is multiplied by its gate */
/** @typedef {Float64Array[][]} HeadRows by layer and head, the weights of one query */
/** @typedef {{logits: Float64Array, decoder: HeadRows, cross: HeadRows}} DateStep */
/** @typedef {{states: Matrix, maps: Matrix[][]}} DateMemory the encoder's states, and its weights by layer and head */
/** @typedef {{keys: Matrix[], values: Matrix[]}} Remembered by head */
/** @typedef {{length: number, blocks: {self: Remembered, cross: Remembered}[]}} Decoding what decoding remembers */

// Texts

/** A text as the model reads it, as mha_course.data.dates.normalize_date makes it. @param {string} text */
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
    return `The model cannot read ${which}${unknown.length > 5 ? " and others" : ""}.`;
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
 * Why an answer is no day of the calendar, as a sentence's end; empty if it is one.
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
 * What an answer contradicts in the text that it answers, as a sentence; empty where nothing can be seen. Nobody checks
 * the names of months here, which is what the model is for.
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

/**
 * The parameters of a stored model, from 8 bits to float32 exactly as Python computes them.
 * @param {StoredTranslator} stored
 */
function unpackParameters({ shapes, int8, float32 }) {
  const sizes = /** @type {[string, number, number?][]} */ (shapes);
  if (!Array.isArray(sizes)) throw new RangeError("shapes must hold the sizes of the parameters: what the page stores is damaged");
  const entries = sizes.reduce((sum, [, rows, columns]) => sum + (columns === undefined ? 0 : rows * columns), 0);
  const bytes = new Int8Array(bytesFromBase64(int8, "int8", entries).buffer);
  const floats = numbersFromFloat32(float32, "float32", sizes.reduce((sum, [, rows]) => sum + rows, 0));
  /** @type {Object<string, Weight>} */
  const parameters = {};
  let [byte, float] = [0, 0];
  for (const [name, rows, columns] of sizes) {
    const own = floats.subarray(float, (float += rows));
    const data = new Float64Array(rows * (columns ?? 1));
    if (columns === undefined) data.set(own);
    // A product of 8 and 24 bits is exact in float64; torch rounds it to float32.
    else for (let i = 0; i < data.length; i++) data[i] = Math.fround(bytes[byte++] * own[Math.floor(i / columns)]);
    parameters[name] = { data, rows, columns: columns ?? 1 };
  }
  return parameters;
}

/** @param {StoredTranslator} stored @returns {TranslatorModel} */
export function unpackTranslator(stored) {
  const parameters = unpackParameters(stored);
  const linear = (/** @type {string} */ name) => ({
    weight: parameters[`${name}.weight`],
    bias: parameters[`${name}.bias`]?.data,
  });
  const norm = (/** @type {string} */ name) => ({
    weight: parameters[`${name}.weight`].data,
    bias: parameters[`${name}.bias`]?.data,
  });
  const attention = (/** @type {string} */ name) => ({
    query: linear(`${name}.q_proj`),
    key: linear(`${name}.k_proj`),
    value: linear(`${name}.v_proj`),
    out: linear(`${name}.out_proj`),
    norm: norm(`${name}_norm`),
  });
  const stack = (/** @type {string} */ name, /** @type {boolean} */ hasMemory) => ({
    blocks: Array.from({ length: stored.num_layers }, (_, layer) => {
      const block = `${name}.blocks.${layer}`;
      return {
        self: attention(`${block}.self_attention`),
        cross: hasMemory ? attention(`${block}.cross_attention`) : undefined,
        up: linear(`${block}.feed_forward.up_proj`),
        down: linear(`${block}.feed_forward.down_proj`),
        norm: norm(`${block}.feed_forward_norm`),
      };
    }),
    norm: norm(`${name}.norm`),
  });
  return {
    numHeads: stored.num_heads,
    numLayers: stored.num_layers,
    source: parameters["source_embedding.weight"],
    target: parameters["target_embedding.weight"],
    encoder: stack("encoder", false),
    decoder: stack("decoder", true),
    output: linear("output"),
  };
}

/** x · weightᵀ + bias @param {Matrix} x @param {Linear} linear @returns {Matrix} */
function applyLinear(x, { weight: { data, rows, columns }, bias }) {
  const result = zeroMatrix(x.length, rows);
  for (let y = 0; y < x.length; y++) {
    const [row, own] = [x[y], result[y]];
    let out = 0;
    // Four outputs at a time read the row once, and their sums do not wait for each other.
    for (; out + 3 < rows; out += 4) {
      let [a, b, c, d] = bias ? [bias[out], bias[out + 1], bias[out + 2], bias[out + 3]] : [0, 0, 0, 0];
      const first = out * columns;
      const [second, third, fourth] = [first + columns, first + 2 * columns, first + 3 * columns];
      for (let i = 0; i < columns; i++) {
        const number = row[i];
        a += number * data[first + i];
        b += number * data[second + i];
        c += number * data[third + i];
        d += number * data[fourth + i];
      }
      own[out] = a;
      own[out + 1] = b;
      own[out + 2] = c;
      own[out + 3] = d;
    }
    for (; out < rows; out++) {
      let sum = bias ? bias[out] : 0;
      for (let i = 0; i < columns; i++) sum += row[i] * data[out * columns + i];
      own[out] = sum;
    }
  }
  return result;
}

/**
 * Each row minus its mean, over its standard deviation, times the weight, plus the bias.
 * @param {Matrix} x @param {Norm} norm @returns {Matrix}
 */
function applyNorm(x, { weight, bias }) {
  const result = zeroMatrix(x.length, weight.length);
  for (let y = 0; y < x.length; y++) {
    const [row, own] = [x[y], result[y]];
    let [mean, variance] = [0, 0];
    for (let i = 0; i < row.length; i++) mean += row[i] / row.length;
    for (let i = 0; i < row.length; i++) variance += (row[i] - mean) ** 2 / row.length;
    const scale = 1 / Math.sqrt(variance + NORM_EPSILON);
    for (let i = 0; i < row.length; i++) own[i] = (row[i] - mean) * scale * weight[i] + (bias ? bias[i] : 0);
  }
  return result;
}

/** Adds to `x` in place: the residual connection. @param {Matrix} x @param {Matrix} added */
function addInPlace(x, added) {
  for (let y = 0; y < x.length; y++) for (let i = 0; i < x[y].length; i++) x[y][i] += added[y][i];
}

/**
 * The embedding of each token plus the sines and cosines of its position.
 * @param {Weight} table @param {readonly number[]} tokens @param {number} [first] position of the first token
 * @returns {Matrix}
 */
function embedTokens({ data, columns }, tokens, first = 0) {
  const x = zeroMatrix(tokens.length, columns);
  tokens.forEach((token, index) => {
    for (let i = 0; i < columns; i++) {
      const angle = (first + index) * POSITION_BASE ** (-(i - (i % 2)) / columns);
      // Positions are float32 numbers in torch.
      x[index][i] = data[token * columns + i] + Math.fround(i % 2 ? Math.cos(angle) : Math.sin(angle));
    }
  });
  return x;
}

/**
 * Attention with the heads gated, added to `x`.
 * @param {Matrix} x @param {AttentionPart} part @param {Matrix} queries @param {Remembered} remembered
 * @param {readonly number[]} gates @returns {Matrix[]} the weights of each head
 */
function addAttention(x, part, queries, { keys, values }, gates) {
  const pooled = splitHeads(queries, gates.length).map((query, head) =>
    attentionPooling(scaledDotProductScore(query, keys[head]), values[head]),
  );
  const outputs = pooled.map(({ output }, head) =>
    gates[head] === 1 ? output : output.map((row) => row.map((number) => number * gates[head])),
  );
  addInPlace(x, applyLinear(mergeHeads(outputs), part.out));
  return pooled.map(({ weights }) => weights);
}

/** The feed-forward layer of a block, added to `x`. @param {Matrix} x @param {Block} block */
function addFeedForward(x, { norm, up, down }) {
  const hidden = applyLinear(applyNorm(x, norm), up);
  for (const row of hidden) for (let i = 0; i < row.length; i++) if (row[i] < 0) row[i] = 0;
  addInPlace(x, applyLinear(hidden, down));
}

/** @param {AttentionPart} part @param {Matrix} x @param {number} numHeads @returns {Remembered} */
function remember({ key, value }, x, numHeads) {
  return { keys: splitHeads(applyLinear(x, key), numHeads), values: splitHeads(applyLinear(x, value), numHeads) };
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
 * A copy that can go on by itself. The projected memory, which never changes, is shared.
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
 * Takes one more token in and predicts the next; only this token is computed, the others are in the cache.
 * @param {TranslatorModel} model @param {Decoding} decoding the cache, which grows by the token
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
  return logits.map((logit) => logit - highest - Math.log(total));
}

/** @param {Float64Array} numbers */
function placeOfHighest(numbers) {
  let best = 0;
  for (let i = 1; i < numbers.length; i++) if (numbers[i] > numbers[best]) best = i;
  return best;
}

/**
 * Writes an answer, at each step the most probable token, or the given tokens.
 * @param {TranslatorModel} model @param {DateMemory} memory @param {Gates} gates @param {DateTask} task
 * @param {readonly number[]} [given]
 */
export function writeAnswer(model, memory, gates, { start, end, target_length: most }, given) {
  const decoding = startDecoding(model, memory);
  /** @type {number[]} */
  const tokens = [];
  /** @type {DateStep[]} */
  const steps = [];
  let logProb = 0;
  while (tokens.length < (given?.length ?? most) && tokens.at(-1) !== end) {
    const step = decodeNext(model, decoding, tokens.at(-1) ?? start, gates);
    const token = given ? given[tokens.length] : placeOfHighest(step.logits);
    logProb += logSoftmax(step.logits)[token];
    tokens.push(token);
    steps.push(step);
  }
  return { tokens, steps, logProb };
}

/**
 * The most probable answers among those that a beam keeps, as mha_lib.seq2seq.beam_decode finds them.
 * @param {TranslatorModel} model @param {DateMemory} memory @param {Gates} gates @param {DateTask} task
 * @param {number} beamSize @returns {{tokens: number[], logProb: number}[]} the most probable first
 */
export function beamAnswers(model, memory, gates, { start, end, target_length: most }, beamSize) {
  /** @type {{tokens: number[], logProb: number, decoding: Decoding}[]} */
  let beam = [{ tokens: [], logProb: 0, decoding: startDecoding(model, memory) }];
  const hasEnded = (/** @type {number[]} */ tokens) => tokens.at(-1) === end;
  for (let length = 0; length < most && !beam.every(({ tokens }) => hasEnded(tokens)); length++) {
    const candidates = beam.flatMap((answer) => {
      const { tokens, logProb, decoding } = answer;
      if (hasEnded(tokens)) return [answer];
      const { logits } = decodeNext(model, decoding, tokens.at(-1) ?? start, gates);
      const steps = Array.from(logSoftmax(logits));
      return steps.map((step, token) => ({ tokens: [...tokens, token], logProb: logProb + step, decoding }));
    });
    beam = candidates
      .sort((a, b) => b.logProb - a.logProb)
      .slice(0, beamSize)
      // Answers with the same beginning must not share what they remember from here on.
      .map((answer) => ({ ...answer, decoding: copyDecoding(answer.decoding) }));
  }
  return beam.map(({ tokens, logProb }) => ({ tokens, logProb }));
}

/**
 * The weights of all queries, by attention, layer and head. A token of the answer cannot see later ones: 0.
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
 * Everything about one date: what the page shows.
 * @param {TranslatorModel} model @param {DateTask} task
 * @param {{text: string, gates: Gates, beamSize: number}} state
 */
export function translateDate(model, task, { text, gates, beamSize }) {
  const memory = encodeDate(model, dateTokens(text, task), gates);
  const answers = beamSize > 1 ? beamAnswers(model, memory, gates, task, beamSize) : [];
  const { tokens, steps, logProb } = writeAnswer(model, memory, gates, task, answers[0]?.tokens);
  return {
    memory,
    tokens,
    steps,
    answers: answers.length > 0 ? answers : [{ tokens, logProb }],
    maps: collectMaps(memory, steps),
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
