// A translator for masks. The reader paints a mask and sees it in the conventions of all libraries, or sees what
// happens to an array that is passed untranslated.

import { inkOn, viridis } from "../shared/colors.js";
import { countOf } from "../shared/format.js";
import { copyButton, element, inlineText, mark, setText, widget } from "../shared/frame.js";
import { CONVENTIONS, ONES, patterns, readArray, resizeMask, writeMask } from "./mask_translator_math.js";
import { numberMap } from "../shared/number_map.js";
import { menu, segments } from "../shared/parts.js";

/** @typedef {import("../shared/attention_math.js").Mask} Mask */
/** @typedef {import("../shared/frame.js").Frame} Frame */
/** @typedef {import("./mask_translator_math.js").Convention} Convention */
/** @typedef {import("./mask_translator_math.js").Written} Written */

const Q_LENS = [1, 2, 3, 4, 5, 6];
const K_LENS = [2, 3, 4, 5, 6];

/**
 * The texts about a convention. `empty` is what the library returns for a query without a key.
 * @typedef {{library: string, argument: string, call: string, empty: string}} Words
 */

/** @type {(library: string, argument: string, call?: string, empty?: string) => Words} */
const words = (library, argument, call = "", empty = "zeros") => ({ library, argument, call, empty });
const COURSE = "dot_product_attention(query, key, value, ";
const SDPA = "F.scaled_dot_product_attention(query, key, value, attn_mask=attn_mask)";
const MODULE = "layer(query, key, value, ";
const JAX = "jax.nn.dot_product_attention(query, key, value, ";
const UNIFORM = "uniform weights";

/** @type {Object<string, Words>} */
const WORDS = {
  attn_mask: words("this course", "attn_mask", `${COURSE}attn_mask=attn_mask)`),
  key_mask: words("this course", "key_mask", `${COURSE}key_mask=key_mask)`),
  valid_lens: words("this course", "valid_lens", `${COURSE}valid_lens=valid_lens)`),
  sdpa_mask: words("torch SDPA", "attn_mask", SDPA),
  sdpa_added: words("torch SDPA", "attn_mask", SDPA),
  module_attn_mask: words("nn.MultiheadAttention", "attn_mask", `${MODULE}attn_mask=attn_mask)`, "NaN"),
  module_key_padding_mask: words(
    "nn.MultiheadAttention",
    "key_padding_mask",
    `${MODULE}key_padding_mask=key_padding_mask)`,
    "NaN",
  ),
  hf_attention_mask: words(
    "HuggingFace",
    "attention_mask",
    "model(input_ids, attention_mask=attention_mask)",
    "zeros, or uniform weights if it computes eagerly",
  ),
  hf_extended: words(
    "inside HuggingFace",
    "attention_mask",
    "scores + attention_mask, where attention is computed eagerly",
    UNIFORM,
  ),
  jax_mask: words("JAX", "mask", `${JAX}mask=mask)`, UNIFORM),
  jax_lengths: words("JAX", "key_value_seq_lengths", `${JAX}key_value_seq_lengths=key_value_seq_lengths)`, UNIFORM),
  keras_mask: words(
    "Keras",
    "attention_mask",
    "layer(query, value, key, attention_mask=attention_mask)",
    "zeros, or uniform weights if no weights are asked for",
  ),
  onnx_mask: words("ONNX", "attn_mask", "Attention, opset 25: attn_mask is its fourth input"),
  ones_mask: words("1 and 0 as float", "mask.float()"),
};

/** @param {Frame} frame */
function readState(frame) {
  /** @type {{visible: string, shown: string, source: string, target: string}} */
  const { visible, ...settings } = frame.read();
  const rows = visible.split(" ");
  const [qLen, kLen] = [rows.length, rows[0].length];
  const fits = Q_LENS.includes(qLen) && K_LENS.includes(kLen) && rows.every((row) => /^[01]+$/.test(row) && row.length === kLen);
  frame.insist(fits, "visible", "be 1 to 6 groups of 2 to 6 digits 0 or 1, of equal length");
  return { mask: rows.map((digits) => Array.from(digits, (digit) => digit === "1")), qLen, kLen, ...settings };
}

/** @typedef {ReturnType<typeof readState>} State */

/** @param {Mask} mask */
const maskText = (mask) => mask.map((row) => row.map(Number).join("")).join(" ");

/** @param {string} name */
const conventionOf = (name) => [...CONVENTIONS, ONES].find((convention) => convention.name === name) ?? ONES;

/**
 * An entry of an array, in at most three characters.
 * @param {import("./mask_translator_math.js").Dtype} dtype @param {number} entry
 */
function entryText(dtype, entry) {
  if (dtype === "bool") return entry === 1 ? "T" : "F";
  if (entry === -Infinity) return "−∞";
  return entry < 0 ? "min" : String(entry);
}

/** @param {ArrayLike<number>} shape */
const shapeText = (shape) => `(${Array.from(shape).join(", ")}${shape.length === 1 ? "," : ""})`;

/** The meaning of the entries of a convention. @param {Convention} convention */
function meaning({ holds, dtype, entries }) {
  if (holds === "lengths") return "how many keys are seen";
  const [shows, hides] = entries.map((entry) => entryText(dtype, entry));
  return dtype === "bool" && hides === "T" ? "T: *hidden*" : dtype === "bool" ? `${shows}: may attend` : `${shows}: may attend, ${hides}: hidden`;
}

/** "2", "2 and 3", "2, 3 and 4" @param {(string | number)[]} items */
const listed = (items) => [items.slice(0, -1).join(", "), items[items.length - 1]].filter((part) => part !== "").join(" and ");

/** A name that may break into two lines between its words. @param {string} name */
const breakable = (name) =>
  name.split(/(?<=_)|(?=Attention)/).flatMap((part, index) => (index ? [element("wbr"), part] : [part]));

/** A small map with its entries; `seen` colours it, and wrong cells get a cross. */
function entryMap() {
  const node = element("div", { class: "mha-entries", role: "img" });
  /** @type {string[]} */
  let drawn = [];
  /**
   * @param {string} name under which the page stores the numbers
   * @param {string} label @param {number[][]} numbers @param {(number: number) => string} text
   * @param {Mask | null} seen null for numbers that are not a mask
   * @param {Mask} [wrong]
   */
  function draw(name, label, numbers, text, seen, wrong) {
    node.setAttribute("aria-label", label);
    node.style.setProperty("--columns", String(numbers[0].length));
    const columns = numbers[0].length;
    const count = numbers.length * columns;
    if (node.children.length !== count) {
      node.replaceChildren(...Array.from({ length: count }, () => element("span")));
      drawn = [];
    }
    numbers.flat().forEach((number, index) => {
      const [row, column] = [Math.floor(index / columns), index % columns];
      const isWrong = wrong?.[row][column] ?? false;
      // A stroke of the pointer changes one cell at a time, and only that cell is drawn again.
      const key = [name, text(number), number, seen?.[row][column], isWrong].join();
      if (key === drawn[index]) return;
      drawn[index] = key;
      const cell = /** @type {HTMLElement} */ (node.children[index]);
      const color = seen && viridis(seen[row][column] ? 1 : 0);
      cell.style.backgroundColor = color ? `rgb(${color.join(" ")})` : "";
      cell.style.color = color ? inkOn(color) : "";
      cell.textContent = text(number);
      cell.classList.toggle("mha-long", cell.textContent.length > 1);
      cell.classList.toggle("mha-misread", isWrong);
      mark(cell, name, number);
    });
  }
  const clear = () => node.replaceChildren();
  return { node, draw, clear };
}

/** The rows of an array as a screen reader reads them. @param {Written} array */
const spoken = ({ rows, dtype }) => rows.map((row) => row.map((entry) => entryText(dtype, entry)).join(" ")).join("; ");

/** A convention's array as a program to copy. @param {Convention} convention @param {Written} array */
function snippet({ name, holds, axes }, { rows, shape, dtype, note }) {
  const isNumpy = name.startsWith("jax") || name.startsWith("keras") || name.startsWith("onnx");
  const hidden = name === "sdpa_added" ? "-torch.inf" : "torch.finfo(torch.float32).min";
  const texts = rows.map((row) =>
    row.map((entry) => {
      if (dtype === "bool") return entry === 1 ? "True" : "False";
      if (dtype === "float32") return entry === 0 ? "0.0" : "hidden";
      return String(entry);
    }),
  );
  const isFlat = holds === "lengths" && shape.length === 1;
  const body = isFlat ? `[${texts[0].join(", ")}]` : `[\n${texts.map((row) => `    [${row.join(", ")}],\n`).join("")}]`;
  const { argument, call } = WORDS[name];
  const lines = [isNumpy ? "import numpy as np" : "import torch", ""];
  if (dtype === "float32") lines.push(`hidden = ${hidden}`);
  const lead = axes > 0 ? `[${Array(axes).fill("None").join(", ")}]` : "";
  const type = dtype === "int32" ? ", dtype=np.int32" : "";
  lines.push(`${argument} = ${isNumpy ? "np.array" : "torch.tensor"}(${body}${type})${lead}  # ${shapeText(shape)}`);
  lines.push(`# ${call}`);
  if (note) lines.push(`# ${note}`);
  return `${lines.join("\n")}\n`;
}

/** A program with a button that copies it. @param {Frame} frame @param {string} label */
function copyable(frame, label) {
  const code = element("code");
  const scroller = element("div", { class: "mha-code", tabindex: 0, role: "group", "aria-label": label }, element("pre", {}, code));
  const copy = copyButton(frame, code);
  const draw = (/** @type {string} */ text) => {
    if (code.textContent === text) return;
    code.textContent = text;
    copy.textContent = "Copy";
  };
  return { nodes: [scroller, copy], draw };
}

/** A convention: argument, array, program. @param {Frame} frame @param {Convention} convention */
function conventionCard(frame, convention) {
  const { name } = convention;
  const { library, argument, empty } = WORDS[name];
  const about = element("p", { class: "mha-hint mha-about-array" });
  const map = entryMap();
  const says = element("p", { class: "mha-hint mha-says" }, ...inlineText(meaning(convention)));
  const remark = element("p", { class: "mha-hint mha-remark" });
  const program = copyable(frame, `Python code: ${argument} of ${library}`);
  const details = element("details", {}, element("summary", { text: "Code" }), ...program.nodes);
  let code = "";
  const drawCode = () => details.open && program.draw(code);
  frame.listen(details, "toggle", drawCode);
  const node = element(
    "li",
    { class: "mha-card", "data-convention": name },
    element("p", { class: "mha-library" }, ...breakable(library)),
    element("p", {}, element("code", {}, ...breakable(argument))),
    about,
    map.node,
    says,
    remark,
    details,
  );

  /** @param {State} state */
  function draw({ mask }) {
    const array = writeMask(convention, mask);
    const isPossible = !("reason" in array);
    node.classList.toggle("mha-impossible", !isPossible);
    for (const part of [map.node, says, details]) part.hidden = !isPossible;
    if ("reason" in array) {
      setText(about, "✗ not possible");
      setText(remark, array.reason);
      map.clear();
      return null;
    }
    const { rows, shape, dtype } = array;
    setText(about, `${dtype} ${shapeText(shape)}`);
    const isLength = convention.holds === "lengths";
    const seen = isLength ? null : rows.length === 1 ? [mask[mask.length - 1]] : mask;
    map.draw(name, `${argument} of ${library}: ${spoken(array)}`, rows, (entry) => entryText(dtype, entry), seen);
    const blind = Array.from(mask.keys()).filter((query) => !mask[query].includes(true));
    const effect = blind.length === 1 ? `Query ${blind[0]} gets ${empty}.` : `Queries ${listed(blind)} get ${empty}.`;
    setText(remark, [array.note, blind.length > 0 && effect].filter(Boolean).join(" "));
    code = snippet(convention, array);
    drawCode();
    return array;
  }
  return { node, name, draw };
}

/** The list of all conventions. @param {Frame} frame */
function conventionList(frame) {
  const cards = CONVENTIONS.map((convention) => conventionCard(frame, convention));
  const node = element("ul", { class: "mha-cards", "aria-label": "Conventions" }, ...cards.map((card) => card.node));
  /** @param {State} state */
  function draw(state) {
    /** @type {Object<string, any>} */
    const arrays = {};
    for (const card of cards) {
      const array = card.draw(state);
      if (array) arrays[card.name] = nest(array);
    }
    return arrays;
  }
  return { node, draw };
}

/** The rows of an array, inside its leading axes. @param {Written} array @returns {any} */
function nest({ rows, shape }) {
  if (shape.length === 1) return rows[0];
  let nested = /** @type {any} */ (rows);
  for (let axis = shape.length; axis > 2; axis--) nested = [nested];
  return nested;
}

/** @type {Object<string, string>} */
const RULES = {
  "True shows": "reads T as “may attend”",
  "True hides": "reads T as “hidden”",
  added: "adds the numbers to the scores, so that only −∞ or the lowest number hides",
  "not 0 shows": "turns the entries into bool, so that all but 0 and F are visible",
};

/**
 * How the axes of an array have to be changed; its entries stay the same.
 * @param {Convention} source @param {Convention} target @param {number} qLen
 */
function fitting(source, target, qLen) {
  if (source.holds === "keys" && target.holds === "cells" && qLen > 1) return "If the row is repeated for all queries: ";
  return source.holds === target.holds && source.axes !== target.axes ? "If only the axes are adjusted: " : "";
}

/**
 * The verdict on an array that was passed to an argument, and the numbers on the page.
 * @param {State} state @param {Written | {reason: string}} array
 * @returns {{verdict: string, why: string, read?: Mask, wrong?: Mask}}
 */
function judge({ mask, qLen, source, target }, array) {
  const { library, argument } = WORDS[target];
  if ("reason" in array) return { verdict: "The source cannot express this mask.", why: array.reason };
  const outcome = readArray(array, conventionOf(target), qLen);
  if ("error" in outcome) {
    const verdict = `The call fails: ${outcome.error}. No cell is read wrongly.`;
    return { verdict, why: `\`${argument}\` (${library}) refuses ${array.dtype}. An error is the best that can happen.` };
  }
  if ("rowsGiven" in outcome) {
    const why = `\`${argument}\` (${library}) holds one row of keys for each sample, and the array has a row for each of ` +
      `${outcome.rowsGiven} queries. With ${outcome.rowsGiven} samples it would fit, and each row would be taken for a sample.`;
    return { verdict: "The shapes do not fit.", why };
  }
  const { read, rule } = outcome;
  const wrong = read.map((row, q) => row.map((sees, k) => sees !== mask[q][k]));
  const cells = wrong.flatMap((row, q) => row.flatMap((isWrong, k) => (isWrong ? [mask[q][k]] : [])));
  const all = qLen * mask[0].length;
  const why = `${fitting(conventionOf(source), conventionOf(target), qLen)}\`${argument}\` (${library}) ${RULES[rule]}.`;
  if (cells.length === 0) return { verdict: `All ${all} cells are read as they were meant.`, why, read, wrong };
  const lost = cells.filter(Boolean).length;
  const verdict = `${cells.length} of ${all} cells are read wrongly, and nothing raises an error.`;
  const parts = [];
  if (cells.length > lost) parts.push(countOf(cells.length - lost, "1 hidden cell can be seen", "# hidden cells can be seen"));
  if (lost > 0) parts.push(countOf(lost, "1 visible cell cannot", "# visible cells cannot"));
  return { verdict, why: `${why} ${parts.join(", ")}.`, read, wrong };
}

/** The passed array, and how the argument reads it. */
function mistakeView() {
  const verdict = element("p", { class: "mha-title mha-verdict" });
  const why = element("p", { class: "mha-why" });
  const titles = ["as written", "as read, 1: visible"].map((text) => element("p", { class: "mha-hint", text }));
  const maps = [entryMap(), entryMap()];
  const boxes = maps.map((map, index) => element("div", {}, titles[index], map.node));
  const pair = element("div", { class: "mha-pair" }, boxes[0], element("span", { class: "mha-arrow", text: "→", "aria-hidden": "true" }), boxes[1]);
  const node = element("div", { class: "mha-mistake" }, verdict, pair, why);

  /** @param {State} state */
  function draw(state) {
    const convention = conventionOf(state.source);
    const array = writeMask(convention, state.mask);
    const judged = judge(state, array);
    const { read, wrong } = judged;
    verdict.textContent = judged.verdict;
    why.replaceChildren(...inlineText(judged.why));
    node.dataset.outcome = wrong === undefined ? "refused" : wrong.flat().includes(true) ? "wrong" : "right";
    pair.hidden = "reason" in array;
    for (const part of pair.children) part.hidden = part !== boxes[0] && read === undefined;
    /** @type {Object<string, any>} */
    const numbers = {};
    if ("reason" in array) return numbers;
    const { rows, dtype } = array;
    const seen = rows.length === 1 ? [state.mask[state.qLen - 1]] : state.mask;
    maps[0].draw("written", `as it is written: ${spoken(array)}`, rows, (entry) => entryText(dtype, entry), seen);
    numbers.written = nest(array);
    if (!read || !wrong) return numbers;
    const bits = read.map((row) => row.map(Number));
    const label = wrong.map((row, query) => {
      const [sees, errs] = [read[query], row].map((flags) => flags.flatMap((flag, key) => (flag ? [key] : [])));
      const [seen, fault] = [sees.length ? `keys ${listed(sees)}` : "no key", errs.length ? `wrong at ${listed(errs)}` : "all right"];
      return `query ${query} sees ${seen}, ${fault}`;
    });
    maps[1].draw("read", `as it is read: ${label.join("; ")}`, bits, String, read, wrong);
    numbers.read = bits;
    numbers.wrong = wrong.map((row) => row.map(Number));
    mark(verdict, "wrong", numbers.wrong.flat());
    return numbers;
  }
  return { node, draw };
}

/** The mask, which the reader paints. @param {Frame} frame */
function paper(frame) {
  let brush = false;
  const map = numberMap(frame, {
    name: "mask",
    rows: `queries`,
    columns: `keys`,
    hint: "Click, drag or press Space: hide a key from a query, or show it.",
    onPick(row, column, isFirst) {
      const { mask } = readState(frame);
      // The first cell of a stroke decides whether the stroke hides or shows.
      if (isFirst) brush = !mask[row][column];
      if (mask[row][column] === brush) return;
      mask[row][column] = brush;
      frame.set({ visible: maskText(mask) });
    },
  });
  /** @param {State} state */
  function draw({ mask, qLen, kLen }) {
    const [rowLabels, columnLabels] = [qLen, kLen].map((len) => Array.from({ length: len }, (_, i) => String(i)));
    map.draw({
      rowLabels,
      columnLabels,
      areNumbers: true,
      label: "Mask: queries in rows, keys in columns, 1 = may attend",
      numbers: mask.map((row) => Float64Array.from(row, Number)),
      extent: { low: 0, high: 1 },
      describe: (query, key) => (mask[query][key] ? `query ${query} → key ${key}: may attend` : `query ${query} → key ${key}: hidden`),
      digits: 0,
    });
  }
  return { node: map.node, draw };
}

/** The lengths, and the masks to start from. @param {Frame} frame */
function maskMenus(frame) {
  const change = (/** @type {(state: State) => Mask} */ next) => frame.set({ visible: maskText(next(readState(frame))) });
  const nameOf = (/** @type {Mask} */ mask) =>
    patterns(mask.length, mask[0].length).find(([, pattern]) => maskText(pattern) === maskText(mask))?.[0];
  // A mask with a name keeps its name when a length changes.
  const resized = (/** @type {Mask} */ mask, /** @type {number} */ qLen, /** @type {number} */ kLen) =>
    patterns(qLen, kLen).find(([name]) => name === nameOf(mask))?.[1] ?? resizeMask(mask, qLen, kLen);
  const queries = menu(frame, "queries", (index) => change(({ mask, kLen }) => resized(mask, Q_LENS[index], kLen)));
  const keys = menu(frame, "keys", (index) => change(({ mask, qLen }) => resized(mask, qLen, K_LENS[index])));
  const pattern = menu(frame, "pattern", (index) =>
    change(({ mask, qLen, kLen }) => patterns(qLen, kLen)[index]?.[1] ?? mask),
  );
  const node = element("div", { class: "mha-sizes" }, queries.node, keys.node, pattern.node);
  /** @param {State} state */
  function draw({ mask, qLen, kLen }) {
    queries.draw(Q_LENS.map(String), Q_LENS.indexOf(qLen));
    keys.draw(K_LENS.map(String), K_LENS.indexOf(kLen));
    const names = patterns(qLen, kLen).map(([name]) => name);
    const name = nameOf(mask);
    pattern.draw(name ? names : [...names, "as painted"], name ? names.indexOf(name) : names.length);
  }
  return { node, draw };
}

/** The convention of the array and the argument to which it is passed. @param {Frame} frame */
function directionMenus(frame) {
  const label = (/** @type {string} */ name) => {
    const form = name === "sdpa_added" ? " (float)" : "";
    return `${WORDS[name].library}: ${WORDS[name].argument}${form}`;
  };
  const [sources, targets] = ["source", "target"].map((name) => (frame.limits(name).options ?? []).map(label));
  const source = menu(frame, "written for", "source", sources);
  const target = menu(frame, "passed to", "target", targets);
  return element("div", { class: "mha-direction" }, source.node, target.node);
}

/** @param {Frame} frame */
function build(frame) {
  const view = segments(
    frame,
    "Show",
    [
      ["conventions", "In every library"],
      ["mistake", "Passed untranslated"],
    ],
    "shown",
  );
  const grid = paper(frame);
  const menus = maskMenus(frame);
  const direction = directionMenus(frame);
  const summary = element("p", { class: "mha-title" });
  const swatches = [1, 0].map((fraction) => {
    const swatch = element("i", { class: "mha-swatch" });
    swatch.style.backgroundColor = `rgb(${viridis(fraction).join(" ")})`;
    return swatch;
  });
  const legend = element(
    "p",
    { class: "mha-hint mha-legend" },
    ...[swatches[0], "may attend ", swatches[1], "hidden. Colours mean the same in all panels; the entries do not."],
  );
  const about = element("div", { class: "mha-about" }, summary, legend);
  const list = conventionList(frame);
  const mistake = mistakeView();
  const controls = element("div", { class: "mha-controls" }, view.node, menus.node, direction);
  frame.body.append(
    element("div", { class: "mha-translator-top" }, controls, grid.node, about),
    list.node,
    mistake.node,
  );

  return () => {
    const state = readState(frame);
    const isMistake = state.shown === "mistake";
    menus.draw(state);
    grid.draw(state);
    direction.hidden = mistake.node.hidden = !isMistake;
    about.hidden = list.node.hidden = isMistake;
    const arrays = isMistake ? mistake.draw(state) : list.draw(state);
    summary.textContent = `${Object.keys(arrays).length} of ${CONVENTIONS.length} conventions can express this mask.`;
    frame.tell((isMistake ? mistake.node.querySelector(".mha-verdict") : summary).textContent);
    frame.report(() => ({ mask: state.mask.map((row) => row.map(Number)), ...arrays }));
  };
}

export default widget({ name: "mask-translator", label: "Mask translator" }, build);
