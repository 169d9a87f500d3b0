// A mask made of the reader's painting, padding and causality, and three policies for queries without a key.

import { extentOf } from "./colors.js";
import { formatNumber } from "./format.js";
import { element, mark, mount } from "./frame.js";
import { computeMask } from "./mask_math.js";
import { colorBar, numberMap } from "./number_map.js";
import { checkbox, slider } from "./parts.js";

/** @typedef {import("./attention_math.js").Matrix} Matrix */
/** @typedef {import("./frame.js").Frame} Frame */

const FROM_0_TO_1 = { low: 0, high: 1 };

/** @type {{name: string, title: string, about: string}[]} */
const POLICIES = [
  { name: "zeros", title: "Zeros", about: "masked_softmax: the row is all zeros" },
  { name: "nan", title: "NaN", about: "fill with −∞: the row is 0 / 0" },
  { name: "uniform", title: "Uniform", about: "fill with the lowest number" },
];

/** @param {Frame} frame */
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
    validLen: frame.whole("valid_len", { high: kLen }),
    isCausal: frame.flag("is_causal"),
  };
}

/** @typedef {ReturnType<typeof readMask>} MaskState */
/** @typedef {ReturnType<typeof computeMask>} MaskNumbers */

/** @param {boolean[][]} painted */
const paintedText = (painted) => painted.map((row) => row.map(Number).join("")).join(" ");

/**
 * A small table of numbers, with one row per query or key.
 * @param {string} name under which the page stores the numbers
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

/**
 * The labels of rows and columns, which are the same for all maps.
 * @param {MaskState} state
 */
function mapLabels({ qLen, kLen }) {
  const [rowLabels, columnLabels] = [qLen, kLen].map((len) => Array.from({ length: len }, (_, i) => String(i)));
  return { rowLabels, columnLabels, areNumbers: true };
}

/**
 * The mask, which a reader paints cell by cell.
 * @param {Frame} frame
 */
function paintedMap(frame) {
  let brush = false;
  const map = numberMap(frame, {
    name: "mask",
    rows: "queries",
    columns: "keys",
    hint:
      "Click, drag, or press Space to hide a key from a query or to show it. " +
      "Hatched: hidden by valid_len or is_causal.",
    onPick(row, column, isFirst) {
      const { painted } = readMask(frame);
      // The first cell of a stroke decides whether the stroke hides or shows.
      if (isFirst) brush = !painted[row][column];
      if (painted[row][column] === brush) return;
      painted[row][column] = brush;
      frame.set({ painted: paintedText(painted) });
    },
  });

  /**
   * @param {MaskState} state
   * @param {MaskNumbers} numbers
   */
  function draw(state, { bits, padding, causal }) {
    const reasons = (/** @type {number} */ q, /** @type {number} */ k) => {
      const hiding = [];
      if (!state.painted[q][k]) hiding.push("the painted mask");
      if (!padding[q][k]) hiding.push("valid_len");
      if (state.isCausal && !causal[q][k]) hiding.push("is_causal");
      return hiding.length === 0 ? "may attend" : `hidden by ${hiding.join(" and ")}`;
    };
    map.draw({
      ...mapLabels(state),
      label: "Mask: queries in rows, keys in columns, 1 = may attend",
      numbers: bits,
      extent: FROM_0_TO_1,
      isHidden: (q, k) => !padding[q][k] || !causal[q][k],
      describe: (q, k) => `query ${q} → key ${k}: ${reasons(q, k)}`,
      digits: 0,
    });
  }
  return { node: map.node, draw };
}

/**
 * The scores, with the hidden ones hatched, and their colour scale.
 * @param {Frame} frame
 */
function scoresMap(frame) {
  const map = numberMap(frame, { name: "scores", rows: "queries", columns: "keys", hint: "" });
  const scale = colorBar();

  /**
   * @param {MaskState} state
   * @param {MaskNumbers} numbers
   */
  function draw(state, { mask }) {
    const extent = extentOf([state.scores], false);
    const isHidden = (/** @type {number} */ q, /** @type {number} */ k) => !mask[q][k];
    map.draw({
      ...mapLabels(state),
      label: "Scores: queries in rows, keys in columns",
      numbers: state.scores,
      extent,
      isHidden,
      describe: (q, k, number) => `query ${q} → key ${k}: ${number}${isHidden(q, k) ? ", hidden" : ""}`,
      digits: 1,
    });
    scale.draw(extent, "score");
  }
  return { nodes: [map.node, scale.node], draw };
}

/**
 * Weights and output under one policy.
 * @param {Frame} frame
 * @param {{name: string, title: string, about: string}} policy
 */
function policyPane(frame, { name, title, about }) {
  const map = numberMap(frame, { name: `weights_${name}`, rows: "queries", columns: "keys", hint: "" });
  const output = valueTable(`output_${name}`, "output", "query");
  const heading = element("p", { class: "mha-title", text: title });
  const node = element("div", {}, heading, element("p", { class: "mha-hint", text: about }), map.node, output.node);

  /**
   * @param {MaskState} state
   * @param {MaskNumbers} numbers
   */
  function draw(state, numbers) {
    map.draw({
      ...mapLabels(state),
      label: `Weights, policy ${title}: queries in rows, keys in columns`,
      numbers: numbers.weights[name],
      extent: FROM_0_TO_1,
      describe: (q, k, number) => `query ${q} → key ${k}: ${number}`,
      digits: 2,
    });
    output.draw(numbers.output[name], (q) => numbers.empty.includes(q));
  }
  return { node, draw };
}

/** @param {Frame} frame */
function build(frame) {
  const valid = slider(frame, "valid_len", (value) => frame.set({ valid_len: value }));
  const causal = checkbox(frame, "is_causal", (checked) => frame.set({ is_causal: checked }));
  const repaint = (/** @type {string} */ text, /** @type {(visible: boolean) => boolean} */ change) => {
    const button = element("button", { type: "button", text });
    frame.listen(button, "click", () =>
      frame.set({ painted: paintedText(readMask(frame).painted.map((row) => row.map(change))) }),
    );
    return button;
  };
  const buttons = [repaint("Show all", () => true), repaint("Invert", (visible) => !visible)];
  const paper = paintedMap(frame);
  const scores = scoresMap(frame);
  const values = valueTable("value", "values", "key");
  const summary = element("p", { class: "mha-title mha-mask-summary" });
  const panes = POLICIES.map((policy) => policyPane(frame, policy));
  const scale = colorBar();
  const title = (/** @type {string} */ text) => element("p", { class: "mha-title", text });
  frame.body.append(
    element(
      "div",
      { class: "mha-panes mha-mask-inputs" },
      element("div", {}, valid.node, causal.node, element("div", { class: "mha-choices" }, ...buttons), values.node),
      element("div", {}, title("Mask: 1 = may attend"), paper.node),
      element("div", {}, title("Scores"), ...scores.nodes),
    ),
    summary,
    element("div", { class: "mha-panes mha-mask-policies" }, ...panes.map(({ node }) => node)),
    scale.node,
  );
  let before = "";

  return () => {
    const state = readMask(frame);
    const numbers = computeMask(state);
    const { bits, weights, output, nanRows, empty } = numbers;
    valid.draw(state.validLen, { low: 0, high: state.kLen, text: `${state.validLen} of ${state.kLen}` });
    causal.draw(state.isCausal);
    paper.draw(state, numbers);
    scores.draw(state, numbers);
    values.draw(state.value);
    for (const pane of panes) pane.draw(state, numbers);
    scale.draw(FROM_0_TO_1, "weight");

    const who = `${empty.length === 1 ? "Query" : "Queries"} ${empty.join(", ")}`;
    summary.textContent =
      empty.length === 0
        ? "Every query sees a key, so the three policies agree."
        : `${who} may attend to no key: the policies differ there and only there.`;
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

/** @param {Frame} frame */
function maskPython(frame) {
  const { scores, value, painted, validLen, isCausal } = readMask(frame);
  // Seven digits bring back decimals such as 0.7, which float32 stores as 0.699999988.
  const tensor = (/** @type {Matrix} */ rows) =>
    `torch.tensor(\n    [\n${rows.map((row) => `        [${Array.from(row, (number) => Number(number.toPrecision(7))).join(", ")}],\n`).join("")}    ],\n    dtype=torch.float64,\n)`;
  return `import torch

from mha_lib import build_mask, masked_softmax

scores = ${tensor(scores)}
value = ${tensor(value)}
painted = "${paintedText(painted)}"  # one group for each query, 1 = may attend
attn_mask = torch.tensor([[digit == "1" for digit in row] for row in painted.split()])
mask = build_mask(
    *attn_mask.shape,
    attn_mask=attn_mask,
    valid_lens=torch.tensor([${validLen}]),
    is_causal=${isCausal ? "True" : "False"},
)[0]

# Three policies for a query that may attend to no key.
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
        data: ["scores", "value"],
        python: maskPython,
      },
      build,
    ),
};
