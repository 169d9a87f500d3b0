// A mask that the reader paints over the scores, the weights under one of three policies for queries without a
// key, and the effect of one training step on the layer.

import { extentOf, inkOn, viridis } from "../shared/colors.js";
import { formatNumber } from "../shared/format.js";
import { element, inlineText, mark, widget } from "../shared/frame.js";
import { computeMask } from "./mask_math.js";
import { numberMap } from "../shared/number_map.js";
import { checkbox, segments, slider } from "../shared/parts.js";
import { runsOf } from "../shared/run_text.js";

/** @typedef {import("../shared/attention_math.js").Matrix} Matrix */
/** @typedef {import("../shared/frame.js").Frame} Frame */

/** @type {{name: string, title: string, about: string}[]} */
const POLICIES = [
  { name: "zeros", title: "Zeros", about: "`masked_softmax`: a query without a key gives no weight to any value." },
  { name: "nan", title: "NaN", about: "Hidden scores are filled with −∞, so the softmax of a query without a key is 0 / 0." },
  { name: "uniform", title: "Uniform", about: "What shows as −∞ is the lowest finite number here, so the scores of a query without a key are all equal." },
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
  /** @type {{painted: string, validLen: number, isCausal: boolean, policy: string, isTrained: boolean}} */
  const { painted, ...settings } = frame.read();
  const row = `[01]{${kLen}}`;
  frame.insist(new RegExp(`^${row}( ${row}){${qLen - 1}}$`).test(painted), "painted", `be ${qLen} groups of ${kLen} digits 0 or 1`);
  const cells = painted.split(" ").map((digits) => Array.from(digits, (digit) => digit === "1"));
  return { scores, value, qLen, kLen, painted: cells, ...settings };
}

/** @typedef {ReturnType<typeof readMask>} MaskState */
/** @typedef {ReturnType<typeof computeMask>} MaskNumbers */

/** @param {boolean[][]} painted */
const paintedText = (painted) => painted.map((row) => row.map(Number).join("")).join(" ");

/** Some queries in words, such as "queries 0–2, 4". @param {number[]} queries */
const nameQueries = (queries) =>
  queries.length === 0 ? "no query" : queries.length === 1 ? `query ${runsOf(queries)}` : `queries ${runsOf(queries)}`;

/** A clause on queries without a key. @param {number[]} empty */
const seeNoKey = (empty) => (empty.length === 1 ? `${nameQueries(empty)} sees no key` : `${nameQueries(empty)} see no key`);

/** @param {string} text */
const capital = (text) => text[0].toUpperCase() + text.slice(1);

/** The scores, over which the reader paints the mask cell by cell. @param {Frame} frame */
function paintedMap(frame) {
  let brush = false;
  const map = numberMap(frame, {
    name: "scores",
    rows: `queries`,
    columns: `keys`,
    hint: "Click, drag or press Space to hide or show a key. Hatched: hidden by valid_len or is_causal.",
    onPick(row, column, isFirst) {
      const { painted } = readMask(frame);
      // The first cell of a stroke decides whether the stroke hides or shows.
      if (isFirst) brush = !painted[row][column];
      if (painted[row][column] === brush) return;
      painted[row][column] = brush;
      frame.set({ painted: paintedText(painted) });
    },
  });

  /** @param {MaskState} state @param {MaskNumbers} numbers */
  function draw(state, { scores, padding, causal }) {
    const reasons = (/** @type {number} */ q, /** @type {number} */ k) => {
      const hiding = [];
      if (!state.painted[q][k]) hiding.push("the painted mask");
      if (!padding[q][k]) hiding.push("valid_len");
      if (state.isCausal && !causal[q][k]) hiding.push("is_causal");
      const hidden = hiding.join(" and ");
      return hiding.length === 0 ? `score ${formatNumber(state.scores[q][k], 2)}` : `hidden by ${hidden}`;
    };
    const [rowLabels, columnLabels] = [state.qLen, state.kLen].map((len) => Array.from({ length: len }, (_, i) => String(i)));
    map.draw({
      rowLabels,
      columnLabels,
      areNumbers: true,
      label: "Scores: queries in rows, keys in columns; paint to hide a key",
      numbers: scores,
      extent: extentOf([state.scores], false),
      isHidden: (q, k) => !padding[q][k] || !causal[q][k],
      describe: (q, k) => `query ${q} → key ${k}: ${reasons(q, k)}`,
      digits: 1,
    });
  }
  return { node: map.node, draw };
}

/**
 * Writes a number into a cell of a table.
 * @param {any} cell
 * @param {string} name under which the page stores the number, or "" if the reader cannot change it
 * @param {number} number @param {number} [digits] after the decimal point
 */
function writeCell(cell, name, number, digits = 2) {
  cell.textContent = formatNumber(number, digits);
  cell.classList.toggle("mha-nan", Number.isNaN(number));
  if (name) mark(cell, name, number);
}

/**
 * The weights with the output of each query beside them and the value of each key below them. Frames mark exactly
 * the rows that depend on the policy.
 */
function resultTable() {
  const head = element("thead");
  const body = element("tbody");
  const foot = element("tfoot");
  const node = element(
    "table",
    { class: "mha-result" },
    element("caption", { class: "mha-unseen", text: "Weights and output of each query, and the value of each key" }),
    head,
    body,
    foot,
  );
  let built = "";

  /** @param {MaskState} state */
  function rebuild({ qLen, kLen, value }) {
    const cells = (/** @type {number} */ count, /** @type {string} */ className) =>
      Array.from({ length: count }, () => element("td", { class: className }));
    const valueDim = value[0].length;
    head.replaceChildren(
      element(
        "tr",
        {},
        element("td"),
        ...Array.from({ length: kLen }, (_, key) =>
          element("th", { scope: "col", class: "mha-of-key" }, element("span", { class: "mha-unseen", text: "key " }), String(key)),
        ),
        element("th", { scope: "colgroup", colspan: valueDim, class: "mha-of-value", text: `output` }),
      ),
    );
    body.replaceChildren(
      ...Array.from({ length: qLen }, (_, query) =>
        element(
          "tr",
          {},
          element("th", { scope: "row", class: "mha-of-query" }, element("span", { class: "mha-unseen", text: "query " }), String(query)),
          ...cells(kLen, "mha-weight"),
          ...cells(valueDim, "mha-output"),
        ),
      ),
    );
    foot.replaceChildren(
      ...Array.from({ length: valueDim }, (_, column) =>
        element(
          "tr",
          {},
          element(
            "th",
            { scope: "row", class: "mha-of-value" },
            element("span", { class: column === 0 ? "" : "mha-unseen", text: `value` }),
            element("span", { class: "mha-unseen", text: `, column ${column}` }),
          ),
          ...cells(kLen, "mha-value-cell"),
        ),
      ),
    );
  }

  /** @param {MaskState} state @param {MaskNumbers} numbers */
  function draw(state, { weights, output, empty }) {
    const { qLen, kLen, value, isTrained } = state;
    const key = String([qLen, kLen, value[0].length]);
    if (key !== built) rebuild(state);
    built = key;
    // Nine columns of numbers fit on a phone only if the numbers are short.
    const isDense = kLen + value[0].length > 7;
    const digits = isDense ? 1 : 2;
    node.classList.toggle("mha-dense", isDense);
    weights.forEach((row, query) => {
      const isEmpty = empty.includes(query);
      const line = body.children[query].children;
      body.children[query].classList.toggle("mha-differs", isEmpty);
      row.forEach((weight, k) => {
        const cell = line[k + 1];
        writeCell(cell, "weights", weight);
        // A NaN has no colour.
        const color = Number.isNaN(weight) ? null : viridis(weight);
        cell.style.backgroundColor = color ? `rgb(${color.join(" ")})` : "";
        cell.style.color = color ? inkOn(color) : "";
      });
      output[query].forEach((number, i) => {
        const cell = line[kLen + 1 + i];
        writeCell(cell, "output", number, digits);
        // After the step, the policies have different matrices, so every output differs.
        cell.classList.toggle("mha-differs", !isEmpty && isTrained && empty.length > 0);
      });
    });
    Array.from(foot.children).forEach((line, column) =>
      value.forEach((row, k) => writeCell(line.children[k + 1], "", row[column], digits)),
    );
  }
  return { node, draw };
}

/**
 * A small matrix of value_dim × value_dim numbers with a title.
 * @param {string} name under which the page stores the numbers
 */
function smallMatrix(name) {
  const title = element("span", { class: "mha-hint" });
  const cells = element("span", { class: "mha-matrix" });
  const node = element("figure", {}, title, cells);
  /** @param {string} text @param {Matrix} numbers */
  function draw(text, numbers) {
    title.replaceChildren(...inlineText(text));
    cells.style.setProperty("--columns", String(numbers.length));
    const flat = numbers.flatMap((row) => Array.from(row));
    while (cells.children.length > flat.length) cells.lastElementChild?.remove();
    while (cells.children.length < flat.length) cells.append(element("span"));
    flat.forEach((number, index) => writeCell(cells.children[index], name, number));
  }
  return { node, draw };
}

/** The effect of the step in words. @param {MaskState} state @param {MaskNumbers} numbers */
function stepVerdict({ policy, qLen }, { empty, projection, step }) {
  if (empty.length === 0) return "Every query sees a key: this step is the same under all three policies.";
  const who = seeNoKey(empty);
  const rest = empty.length === qLen ? "W stays as it was" : "W is what the other queries made of it";
  const lost = projection.flatMap((row) => Array.from(row)).filter(Number.isNaN).length;
  if (policy === "nan") {
    return `NaN spreads through the layer: ${lost} of the ${projection.length ** 2} numbers of W are lost, and with them the output of every query.`;
  }
  const isMoved = step.ofEmpty.some((row) => row.some((number) => number !== 0));
  if (isMoved) return `A leak: ${who}, yet hidden values changed W. Nothing raises an error.`;
  return `${capital(who)} and did not change W: ${rest}.`;
}

/** One training step of the matrix W: a button, and the step as a sum of two parts. @param {Frame} frame */
function trainingStrip(frame) {
  const button = element("button", { type: "button", text: "One training step" });
  frame.listen(button, "click", () => frame.set({ is_trained: !frame.get("is_trained") }));
  const hint = element("p", { class: "mha-hint" });
  hint.append(
    ...inlineText("The layer multiplies each value by a matrix W. The loss is the sum of the squared outputs, the learning rate 0.1."),
  );
  const start = smallMatrix("");
  const [seeing, ofEmpty, after] = ["step_of_seeing", "step_of_empty", "projection"].map(smallMatrix);
  const sign = (/** @type {string} */ text) => element("span", { class: "mha-sign", text });
  const signs = [sign("+"), sign("+"), sign("=")];
  const sum = element(
    "div",
    { class: "mha-sum" },
    ...[start, seeing, ofEmpty, after].flatMap((matrix, i) => (i === 0 ? [matrix.node] : [element("div", {}, signs[i - 1], matrix.node)])),
  );
  const result = element("p", { class: "mha-title" });
  const node = element("div", { class: "mha-training" }, element("div", {}, button, hint), sum, result);

  /** @param {MaskState} state @param {MaskNumbers} numbers */
  function draw(state, numbers) {
    const { isTrained } = state;
    const { empty, identity, step, projection } = numbers;
    button.setAttribute("aria-pressed", String(isTrained));
    start.node.hidden = !isTrained;
    for (const { node: matrix } of [seeing, ofEmpty]) matrix.parentElement.hidden = !isTrained;
    signs[2].hidden = !isTrained;
    if (isTrained) {
      start.draw("W before", identity);
      const sees = Array.from(state.scores.keys()).filter((query) => !empty.includes(query));
      seeing.draw(`from ${nameQueries(sees)}`, step.seeing);
      ofEmpty.draw(`from ${nameQueries(empty)}`, step.ofEmpty);
    } else {
      for (const { node: matrix } of [start, seeing, ofEmpty]) matrix.querySelector(".mha-matrix").replaceChildren();
    }
    after.draw(isTrained ? "W after" : "W before the step", projection);
    result.textContent = isTrained ? stepVerdict(state, numbers) : "Predict: which numbers of W will change, and which will be lost?";
  }
  return { node, draw };
}

/** The other settings that hide keys, and the buttons that change the whole painting. @param {Frame} frame */
function maskTools(frame) {
  const valid = slider(frame, "valid_len", "valid_len", (value) => ({ text: `${value} of ${frame.limits("valid_len").high}` }));
  const causal = checkbox(frame, "is_causal", "is_causal");
  const repaint = (/** @type {string} */ text, /** @type {(visible: boolean) => boolean} */ change) => {
    const button = element("button", { type: "button", text });
    frame.listen(button, "click", () =>
      frame.set({ painted: paintedText(readMask(frame).painted.map((row) => row.map(change))) }),
    );
    return button;
  };
  const buttons = [repaint("Show all", () => true), repaint("Invert", (visible) => !visible)];
  const node = element("div", { class: "mha-tools" }, valid.node, element("div", { class: "mha-choices" }, causal.node, ...buttons));
  return node;
}

/** Says which rows the choice of a policy changes. @param {number[]} empty */
function summaryOf(empty) {
  if (empty.length === 0) return "Every query sees a key, so the three policies agree.";
  return `${capital(seeNoKey(empty))}: only there do the weights depend on the policy.`;
}

/** @param {Frame} frame */
function build(frame) {
  const policy = segments(
    frame,
    "A query that sees no key gets",
    POLICIES.map(({ name, title }) => [name, title]),
    (value) => frame.set({ policy: value }),
  );
  const about = element("p", { class: "mha-hint" });
  const paper = paintedMap(frame);
  const result = resultTable();
  const tools = maskTools(frame);
  const training = trainingStrip(frame);
  const summary = element("p", { class: "mha-mask-summary" });
  const title = (/** @type {string} */ text) => element("p", { class: "mha-title", text });
  frame.body.append(
    element("p", {
      text: "Suppose a query sees no key. Under which policy does one training step destroy the layer, and under which does the layer learn from hidden values?",
    }),
    element("div", { class: "mha-policy" }, policy.node, about),
    element(
      "div",
      { class: "mha-panes" },
      element("div", {}, title("Scores: paint over them"), paper.node),
      element("div", { class: "mha-results" }, title("Weights and outputs"), result.node, summary),
      tools,
    ),
    training.node,
  );

  return () => {
    const state = readMask(frame);
    const numbers = computeMask(state);
    const { mask, empty } = numbers;
    policy.draw(state.policy);
    about.replaceChildren(...inlineText(POLICIES.find(({ name }) => name === state.policy)?.about ?? ""));
    paper.draw(state, numbers);
    result.draw(state, numbers);
    training.draw(state, numbers);
    summary.textContent = summaryOf(empty);

    const visible = mask.flat().filter(Boolean).length;
    const news = state.isTrained
      ? `${visible} of ${state.qLen * state.kLen} cells may attend. ${stepVerdict(state, numbers)}`
      : `${visible} of ${state.qLen * state.kLen} cells may attend. ${summary.textContent}`;
    frame.tell(news);
    frame.report(() => ({
      scores: numbers.scores,
      weights: numbers.weights,
      projection: numbers.projection,
      output: numbers.output,
      ...(state.isTrained && { step_of_seeing: numbers.step.seeing, step_of_empty: numbers.step.ofEmpty }),
    }));
  };
}

export default widget({ name: "mask-painter", label: "Mask painter", data: ["scores", "value"] }, build);
