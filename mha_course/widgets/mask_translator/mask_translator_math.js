// One mask in the conventions of several libraries, and how an argument reads an array. Pure functions, no DOM.
// The rules are those that the appendix Mask Rosetta measures.

import { causalMask } from "../shared/attention_math.js";

/** @typedef {import("../shared/attention_math.js").Mask} Mask */
/** @typedef {"bool" | "int32" | "int64" | "float32"} Dtype */

/**
 * What an array of a convention contains: entries for each query and key, one row of keys for all queries, or the
 * number of visible keys. `entries` are the numbers for "may attend" and "hidden"; `axes` is the number of axes of
 * size 1 in front of the rows.
 * @typedef {{name: string, holds: "cells" | "keys" | "lengths", dtype: Dtype, entries: number[], axes: number}}
 *   Convention
 */

/**
 * An array as rows, with its real shape; or the reason why there is no array.
 * @typedef {{rows: number[][], shape: number[], dtype: Dtype, note?: string}} Written
 */

const LOWEST = -(2 - 2 ** -23) * 2 ** 127; // the smallest number of float32
const HIDES = -10_000; // an added number hides a key if it is at most this

/** @type {(name: string, dtype: Dtype, entries: number[], axes?: number) => Convention} */
const cells = (name, dtype, entries, axes = 0) => ({ name, holds: "cells", dtype, entries, axes });
/** @type {(name: string, dtype: Dtype, entries: number[]) => Convention} */
const keys = (name, dtype, entries) => ({ name, holds: "keys", dtype, entries, axes: 0 });
/** @type {(name: string, dtype: Dtype) => Convention} */
const lengths = (name, dtype) => ({ name, holds: "lengths", dtype, entries: [], axes: 0 });

export const CONVENTIONS = [
  cells("attn_mask", "bool", [1, 0]),
  keys("key_mask", "bool", [1, 0]),
  lengths("valid_lens", "int64"),
  cells("sdpa_mask", "bool", [1, 0]),
  cells("sdpa_added", "float32", [0, -Infinity]),
  cells("module_attn_mask", "bool", [0, 1]),
  keys("module_key_padding_mask", "bool", [0, 1]),
  keys("hf_attention_mask", "int64", [1, 0]),
  cells("hf_extended", "float32", [0, LOWEST], 2),
  cells("jax_mask", "bool", [1, 0], 2),
  lengths("jax_lengths", "int32"),
  cells("keras_mask", "bool", [1, 0], 1),
  cells("onnx_mask", "bool", [1, 0]),
];

/** 1 and 0 in floating point, the result of `mask.float()`, which no library has as its convention. */
export const ONES = cells("ones_mask", "float32", [1, 0]);

/** @typedef {"True shows" | "True hides" | "added" | "not 0 shows"} Rule */

const OBEYED = { bool: "True shows", int64: "TypeError", float32: "TypeError" };
const OF_MODULE = { bool: "True hides", int64: "AssertionError", float32: "added" };
const MADE_BOOL = { bool: "not 0 shows", int64: "not 0 shows", float32: "not 0 shows" };

/**
 * How each argument reads each dtype: a rule, or the error that it raises.
 * @type {Object<string, Object<string, string>>}
 */
const ARGUMENTS = {
  attn_mask: OBEYED,
  key_mask: OBEYED,
  sdpa_mask: { bool: "True shows", int64: "RuntimeError", float32: "added" },
  module_attn_mask: OF_MODULE,
  module_key_padding_mask: OF_MODULE,
  hf_attention_mask: MADE_BOOL,
  jax_mask: { bool: "True shows", int64: "ValueError", float32: "ValueError" },
  keras_mask: MADE_BOOL,
  onnx_mask: { bool: "True shows", int64: "added", float32: "added" },
};

/** @type {Record<Rule, (entry: number) => boolean>} */
const SHOWS = {
  "True shows": (entry) => entry === 1,
  "True hides": (entry) => entry === 0,
  added: (entry) => entry > HIDES,
  "not 0 shows": (entry) => entry !== 0,
};

/** @param {Mask} mask */
const differingQuery = (mask) => mask.findIndex((row) => row.some((sees, key) => sees !== mask[0][key]));

/**
 * The one row of keys that all queries see, or why there is none.
 * @param {Convention} convention @param {Mask} mask
 * @returns {{row: boolean[], note?: string} | {reason: string}}
 */
function oneRow({ name }, mask) {
  const query = differingQuery(mask);
  if (query < 0) return { row: mask[0] };
  const last = mask[mask.length - 1];
  const causal = causalMask(mask.length, last.length);
  const isCausal = mask.every((row, q) => row.every((sees, key) => sees === (causal[q][key] && last[key])));
  if (name === "hf_attention_mask" && isCausal) {
    return { row: last, note: "In a decoder, which hides the later keys itself." };
  }
  const key = mask[0].findIndex((sees, k) => sees !== mask[query][k]);
  const [sees, misses] = mask[0][key] ? [0, query] : [query, 0];
  return { reason: `It holds one row for all queries, but query ${sees} sees key ${key} and query ${misses} does not.` };
}

/**
 * The number of keys that each query sees, or why lengths cannot express the mask.
 * @param {Convention} convention @param {Mask} mask
 * @returns {{counts: number[], shape: number[]} | {reason: string}}
 */
function asLengths({ name }, mask) {
  const counts = mask.map((row) => row.filter(Boolean).length);
  const query = mask.findIndex((row, q) => row.indexOf(false) !== -1 && row.indexOf(false) < counts[q]);
  if (query >= 0) {
    const hole = mask[query].indexOf(false);
    const seen = mask[query].indexOf(true, hole);
    return { reason: `A length counts from the first key, but query ${query} sees key ${seen} and not key ${hole}.` };
  }
  const other = counts.findIndex((count) => count !== counts[0]);
  if (other < 0) return { counts: [counts[0]], shape: [1] };
  if (name === "valid_lens") return { counts, shape: [1, counts.length] };
  return { reason: `It holds one length for all queries, but query 0 sees ${counts[0]} and query ${other} sees ${counts[other]} keys.` };
}

/**
 * The mask as an array of a convention, or the reason why the convention cannot express it.
 * @param {Convention} convention @param {Mask} mask @returns {Written | {reason: string}}
 */
export function writeMask(convention, mask) {
  const { holds, dtype, entries, axes } = convention;
  const kLen = mask[0].length;
  if (holds === "lengths") {
    const found = asLengths(convention, mask);
    return "reason" in found ? found : { rows: [found.counts], shape: found.shape, dtype };
  }
  const toEntries = (/** @type {boolean[]} */ row) => row.map((sees) => entries[sees ? 0 : 1]);
  if (holds === "keys") {
    const found = oneRow(convention, mask);
    if ("reason" in found) return found;
    return { rows: [toEntries(found.row)], shape: [1, kLen], dtype, note: found.note };
  }
  return { rows: mask.map(toEntries), shape: [...Array(axes).fill(1), mask.length, kLen], dtype };
}

/**
 * How an argument reads an array: which keys it shows, by which rule; or the error that it raises; or that its
 * one row for all queries does not fit the array.
 * @param {Written} array @param {Convention} target @param {number} qLen
 * @returns {{read: Mask, rule: Rule} | {error: string} | {rowsGiven: number}}
 */
export function readArray({ rows, dtype }, target, qLen) {
  const rule = ARGUMENTS[target.name][dtype];
  if (!(rule in SHOWS)) return { error: rule };
  if (target.holds === "keys" && rows.length > 1) return { rowsGiven: rows.length };
  const shows = SHOWS[/** @type {Rule} */ (rule)];
  const read = Array.from({ length: qLen }, (_, query) => rows[rows.length === 1 ? 0 : query].map(shows));
  return { read, rule: /** @type {Rule} */ (rule) };
}

/**
 * The masks that a reader can start from, by name.
 * @param {number} qLen @param {number} kLen @returns {[string, Mask][]}
 */
export function patterns(qLen, kLen) {
  const causal = causalMask(qLen, kLen);
  /** @type {(sees: (query: number, key: number) => boolean) => Mask} */
  const where = (sees) =>
    Array.from({ length: qLen }, (_, q) => Array.from({ length: kLen }, (_, k) => sees(q, k)));
  return [
    ["every key", where(() => true)],
    ["1 padding key", where((_, k) => k < kLen - 1)],
    ["2 padding keys", where((_, k) => k < kLen - 2)],
    ["3 padding keys", where((_, k) => k < kLen - 3)],
    ["2 padding keys on the left", where((_, k) => k >= 2)],
    [`causal`, causal],
    ["causal, 2 padding keys", where((q, k) => causal[q][k] && k < kLen - 2)],
    ["sliding, 2 tokens", where((q, k) => causal[q][k] && k >= q + kLen - qLen - 1)],
    ["a hole in the middle", where((_, k) => k !== Math.floor(kLen / 2))],
    ["a query without a key", where((q) => q !== Math.floor(qLen / 2))],
  ];
}

/**
 * The same mask for other lengths; new cells are visible.
 * @param {Mask} mask @param {number} qLen @param {number} kLen @returns {Mask}
 */
export function resizeMask(mask, qLen, kLen) {
  return Array.from({ length: qLen }, (_, q) => Array.from({ length: kLen }, (_, k) => mask[q]?.[k] ?? true));
}
