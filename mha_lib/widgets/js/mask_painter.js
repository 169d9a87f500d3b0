// A mask to paint, padding and causality, and three policies for a query that sees no key.

import { causalMask, combineMasks, maskedSoftmax, validLenMask, weightedSum } from "./attention_math.js";
import { element, formatNumber, mark, mount } from "./frame.js";
import { colorBar, extentOf, numberMap } from "./number_map.js";
import { checkbox, slider } from "./parts.js";
import { fillScores, plainSoftmax } from "./score_math.js";

/** @typedef {import("./attention_math.js").Matrix} Matrix */

const MASK_SETTINGS = ["painted", "valid_len", "is_causal"];

/** @type {{name: string, title: string, about: string}[]} */
const MASK_POLICIES = [
  { name: "zeros", title: "Zeros", about: "masked_softmax: no key, no weight" },
  { name: "nan", title: "NaN", about: "fill with −∞: the row is 0 / 0" },
  { name: "uniform", title: "Uniform", about: "fill with the lowest number" },
];

/** @param {import("./frame.js").Frame} frame */
function readMask(frame) {
  /** @type {Matrix[]} */
  const [scores, value] = ["scores", "value"].map((name) => {
    const rows = frame.get(name);
    const fits = Array.isArray(rows) && rows.length > 0 && rows.every((row) => row?.length === rows[0].length);
    if (!fits || !rows.flat().every(Number.isFinite)) throw new RangeError(`${name} must hold rows of finite numbers`);
    return rows.map((row) => Float64Array.from(row));
  });
  const [qLen, kLen] = [scores.length, scores[0].length];
  if (value.length !== kLen) throw new RangeError(`value must have a row for each of ${kLen} keys, got ${value.length}`);
  const painted = frame.get("painted");
  const row = `[01]{${kLen}}`;
  if (typeof painted !== "string" || !new RegExp(`^${row}( ${row}){${qLen - 1}}$`).test(painted)) {
    const got = JSON.stringify(painted) ?? "nothing";
    throw new RangeError(`painted must be ${qLen} groups of ${kLen} digits 0 or 1, got ${got}`);
  }
  return {
    scores,
    value,
    qLen,
    kLen,
    painted: painted.split(" ").map((digits) => Array.from(digits, (digit) => digit === "1")),
    validLen: frame.whole("valid_len", 0, kLen),
    isCausal: frame.flag("is_causal"),
  };
}

/** @param {boolean[][]} painted */
const paintedText = (painted) => painted.map((row) => row.map(Number).join("")).join(" ");

/** @param {ReturnType<typeof readMask>} state */
function computeMask({ scores, value, qLen, kLen, painted, validLen, isCausal }) {
  const padding = validLenMask(validLen, qLen, kLen);
  // A single query is the last one, which sees every key.
  const causal = isCausal ? causalMask(qLen, kLen) : padding;
  const mask = combineMasks([painted, padding, causal]);
  /** @type {Object<string, Matrix>} */
  const weights = {
    zeros: maskedSoftmax(scores, mask),
    nan: plainSoftmax(fillScores(scores, mask, -Infinity)),
    uniform: plainSoftmax(fillScores(scores, mask, -Number.MAX_VALUE)),
  };
  /** @type {Object<string, Matrix>} */
  const output = Object.fromEntries(MASK_POLICIES.map(({ name }) => [name, weightedSum(weights[name], value)]));
  const nanRows = output.nan.map((row) => Number(row.some(Number.isNaN)));
  return { padding, causal, mask, weights, output, nanRows };
}

/**
 * A small table of numbers, a row for each query or key.
 * @param {string} name under which the numbers are kept
 * @param {string} caption
 * @param {"query" | "key"} rows
 */
function valueTable(name, caption, rows) {
  const body = element("tbody");
  const node = element("table", {}, element("caption", { text: caption }), body);
  /**
   * @param {Matrix} numbers
   * @param {(row: number) => boolean} [isMarked]
   */
  function draw(numbers, isMarked = () => false) {
    if (body.children.length !== numbers.length || body.querySelectorAll("td").length !== numbers.length * numbers[0].length) {
      body.replaceChildren(
        ...numbers.map((row, index) =>
          element("tr", {}, element("th", { scope: "row", class: `mha-of-${rows}`, text: `${rows} ${index}` }), ...Array.from(row, () => element("td"))),
        ),
      );
    }
    numbers.forEach((row, index) => {
      const line = body.children[index];
      line.classList.toggle("mha-marked", isMarked(index));
      row.forEach((number, column) => {
        const cell = line.children[column + 1];
        cell.textContent = formatNumber(number, 2);
        mark(cell, name, number);
      });
    });
  }
  return { node, draw };
}

/** @param {import("./frame.js").Frame} frame */
function build(frame) {
  const valid = slider(frame, "valid_len", (value) => frame.set({ valid_len: value }));
  const causal = checkbox(frame, "is_causal", (checked) => frame.set({ is_causal: checked }));
  const showAll = element("button", { type: "button", text: "Show all" });
  const invert = element("button", { type: "button", text: "Invert" });
  const repaint = (/** @type {(visible: boolean) => boolean} */ change) =>
    frame.set({ painted: paintedText(readMask(frame).painted.map((row) => row.map(change))) });
  frame.listen(showAll, "click", () => repaint(() => true));
  frame.listen(invert, "click", () => repaint((visible) => !visible));

  let brush = false;
  const paper = numberMap(frame, {
    name: "mask",
    rows: "queries",
    columns: "keys",
    hint: "Click, drag, or press Space to hide a key from a query or to show it. Hatched: hidden by a switch.",
    onPick(row, column, isFirst) {
      const { painted } = readMask(frame);
      // The first cell of a stroke says what the stroke does.
      if (isFirst) brush = !painted[row][column];
      if (painted[row][column] === brush) return;
      painted[row][column] = brush;
      frame.set({ painted: paintedText(painted) });
    },
  });
  const scoreMap = numberMap(frame, { name: "scores", rows: "queries", columns: "keys", hint: "" });
  const scoreScale = colorBar();
  const values = valueTable("value", "values", "key");
  const summary = element("p", { class: "mha-title mha-mask-summary" });
  const panes = MASK_POLICIES.map(({ name, title, about }) => {
    const map = numberMap(frame, { name: `weights_${name}`, rows: "queries", columns: "keys", hint: "" });
    const output = valueTable(`output_${name}`, "output", "query");
    const heading = element("p", { class: "mha-title", text: title });
    const node = element("div", {}, heading, element("p", { class: "mha-hint", text: about }), map.node, output.node);
    return { name, title, map, output, node };
  });
  const weightScale = colorBar();
  frame.body.append(
    element(
      "div",
      { class: "mha-panes mha-mask-inputs" },
      element(
        "div",
        {},
        valid.node,
        causal.node,
        element("div", { class: "mha-choices" }, showAll, invert),
        values.node,
      ),
      element("div", {}, element("p", { class: "mha-title", text: "Mask: 1 = may attend" }), paper.node),
      element("div", {}, element("p", { class: "mha-title", text: "Scores" }), scoreMap.node, scoreScale.node),
    ),
    summary,
    element("div", { class: "mha-panes mha-mask-policies" }, ...panes.map(({ node }) => node)),
    weightScale.node,
  );
  let before = "";

  return () => {
    const state = readMask(frame);
    const { padding, causal: causality, mask, weights, output, nanRows } = computeMask(state);
    valid.draw(state.validLen, { low: 0, high: state.kLen, text: `${state.validLen} of ${state.kLen}` });
    causal.draw(state.isCausal);

    const [rowLabels, columnLabels] = [state.qLen, state.kLen].map((len) => Array.from({ length: len }, (_, i) => String(i)));
    const bits = mask.map((row) => Float64Array.from(row, Number));
    const seesNothing = (/** @type {number} */ q) => !mask[q].includes(true);
    const reasons = (/** @type {number} */ q, /** @type {number} */ k) => {
      const all = [
        [state.painted[q][k], "the paint"],
        [padding[q][k], "valid_len"],
        [causality[q][k] || !state.isCausal, "is_causal"],
      ].filter(([allows]) => !allows);
      return all.length === 0 ? "may attend" : `hidden by ${all.map(([, name]) => name).join(" and ")}`;
    };
    const labels = { rowLabels, columnLabels, areNumbers: true };
    const isHidden = (/** @type {number} */ q, /** @type {number} */ k) => !mask[q][k];
    paper.draw({
      ...labels,
      label: "Mask: queries in rows, keys in columns, 1 = may attend",
      numbers: bits,
      extent: { low: 0, high: 1 },
      isHidden: (q, k) => !padding[q][k] || !causality[q][k],
      describe: (q, k) => `query ${q} → key ${k}: ${reasons(q, k)}`,
      digits: 0,
    });
    const extent = extentOf([state.scores], false);
    scoreMap.draw({
      ...labels,
      label: "Scores: queries in rows, keys in columns",
      numbers: state.scores,
      extent,
      isHidden,
      describe: (q, k, number) => `query ${q} → key ${k}: ${number}${isHidden(q, k) ? ", hidden" : ""}`,
      digits: 1,
    });
    scoreScale.draw(extent, "score");
    values.draw(state.value);
    for (const { name, title, map, output: table } of panes) {
      map.draw({
        ...labels,
        label: `Weights, policy ${title}: queries in rows, keys in columns`,
        numbers: weights[name],
        extent: { low: 0, high: 1 },
        describe: (q, k, number) => `query ${q} → key ${k}: ${number}`,
        digits: 2,
      });
      table.draw(output[name], seesNothing);
    }
    weightScale.draw({ low: 0, high: 1 }, "weight");

    const empty = rowLabels.filter((_, q) => seesNothing(q));
    const who = `${empty.length === 1 ? "Query" : "Queries"} ${empty.join(", ")}`;
    summary.textContent =
      empty.length === 0
        ? "Every query sees a key: the three policies agree."
        : `${who} may attend to nothing: there, and only there, the policies differ.`;
    mark(summary, "nan_rows", nanRows);

    const visible = bits.reduce((sum, row) => sum + row.reduce((total, bit) => total + bit, 0), 0);
    const news = `${visible} of ${state.qLen * state.kLen} cells may attend. ${summary.textContent}`;
    if (before && before !== news) frame.say(news);
    before = news;
    frame.report(() => ({
      scores: state.scores,
      value: state.value,
      mask: bits,
      weights_zeros: weights.zeros,
      output_zeros: output.zeros,
      weights_uniform: weights.uniform,
      output_uniform: output.uniform,
      nan_rows: nanRows,
    }));
  };
}

/** @param {import("./frame.js").Frame} frame */
function maskPython(frame) {
  const { scores, value, painted, validLen, isCausal } = readMask(frame);
  // Seven digits say all that a float32 holds.
  const tensor = (/** @type {Matrix} */ rows) =>
    `torch.tensor(\n    [\n${rows.map((row) => `        [${Array.from(row, (number) => Number(number.toPrecision(7))).join(", ")}],\n`).join("")}    ],\n    dtype=torch.float64,\n)`;
  return `import torch

from mha_lib import build_mask, masked_softmax

scores = ${tensor(scores)}
value = ${tensor(value)}
painted = "${paintedText(painted)}"  # one group a query, 1 = may attend
attn_mask = torch.tensor([[digit == "1" for digit in row] for row in painted.split()])
mask = build_mask(
    *attn_mask.shape,
    attn_mask=attn_mask,
    valid_lens=torch.tensor([${validLen}]),
    is_causal=${isCausal ? "True" : "False"},
)[0]

# Three policies for a query that may attend to nothing.
weights_zeros = masked_softmax(scores, mask)
weights_nan = scores.masked_fill(~mask, -torch.inf).softmax(-1)
weights_uniform = scores.masked_fill(~mask, torch.finfo(scores.dtype).min).softmax(-1)
output_zeros = weights_zeros @ value
output_nan = weights_nan @ value
output_uniform = weights_uniform @ value
nan_rows = output_nan.isnan().any(-1)
print(torch.round(output_zeros, decimals=4))
`;
}

export default {
  /** @param {{model: import("./frame.js").Model, el: HTMLElement}} view */
  render: (view) =>
    mount(
      view,
      {
        name: "mask-painter",
        label: "Mask painter",
        settings: MASK_SETTINGS,
        data: ["scores", "value"],
        python: maskPython,
      },
      build,
    ),
};
