// ALiBi: a penalty on distance, with a slope of its own for each head.

import { causalMask, maskedSoftmax } from "./attention_math.js";
import { element, formatNumber, mark, mount } from "./frame.js";
import { colorBar, extentOf, numberMap } from "./number_map.js";
import { checkbox, segments, slider } from "./parts.js";
import { plane } from "./plane.js";
import { alibiBias, alibiSlopes } from "./position_math.js";

const ALIBI_SETTINGS = ["num_heads", "length", "head", "is_causal", "shown"];
const ALIBI_MOST_HEADS = 16;
const ALIBI_COLORS = 8; // as many as the style sheet has

/** @param {import("./frame.js").Frame} frame */
function readAlibi(frame) {
  const numHeads = frame.whole("num_heads", 1, ALIBI_MOST_HEADS);
  return {
    numHeads,
    length: frame.whole("length", 2, 16),
    head: frame.whole("head", 0, numHeads - 1),
    isCausal: frame.flag("is_causal"),
    shown: frame.choice("shown", ["bias", "weights"]),
  };
}

/** @param {ReturnType<typeof readAlibi>} state */
function computeAlibi({ numHeads, length, isCausal, shown }) {
  const slopes = alibiSlopes(numHeads);
  const mask = isCausal ? causalMask(length) : undefined;
  // Softmax of the bias: the weights where all scores are equal.
  const tables = slopes.map((slope) => {
    const bias = alibiBias(slope, length);
    return shown === "bias" ? bias : maskedSoftmax(bias, mask);
  });
  return {
    slopes,
    mask,
    // Of the slopes as torch keeps them, in float32.
    half_distances: slopes.map((slope) => Math.LN2 / Math.fround(slope)),
    tables,
    // The last query sees all keys, with a mask and without: one curve over the distance for each head.
    by_distance: tables.map((table) => Float64Array.from(table[length - 1]).reverse()),
  };
}

/** @param {number} slope */
function alibiFraction(slope) {
  const inverse = 1 / slope;
  return `1/${formatNumber(inverse, Math.abs(inverse - Math.round(inverse)) < 1e-9 ? 0 : 2)}`;
}

/** @param {number} head */
const alibiColor = (head) => `var(--mha-head-${head % ALIBI_COLORS})`;

/**
 * The heads as a list to choose from.
 * @param {import("./frame.js").Frame} frame
 */
function alibiList(frame) {
  const rows = Array.from({ length: ALIBI_MOST_HEADS }, (_, head) => {
    const [slope, half] = [element("span"), element("span")];
    const button = element(
      "button",
      { type: "button", class: "mha-head-row" },
      element("i"),
      element("span", { text: `head ${head}` }),
      element("span", { class: "mha-unseen", text: ": slope " }),
      slope,
      element("span", { class: "mha-unseen", text: ", the weight halves in " }),
      half,
    );
    button.style.setProperty("--head", alibiColor(head));
    frame.listen(button, "click", () => frame.set({ head }));
    return { node: element("li", {}, button), button, slope, half };
  });
  const node = element(
    "div",
    { class: "mha-head-list" },
    element(
      "p",
      { class: "mha-head-names mha-hint", "aria-hidden": "true" },
      ...["", "slope", "weight halves in"].map((text) => element("span", { text })),
    ),
    element("ul", { "aria-label": "Heads" }, ...rows.map((row) => row.node)),
  );

  /**
   * @param {number} chosen
   * @param {number[]} slopes
   * @param {number[]} halves
   */
  function draw(chosen, slopes, halves) {
    rows.forEach(({ node: row, button, slope, half }, head) => {
      row.hidden = head >= slopes.length;
      for (const span of [slope, half]) delete span.dataset.number;
      if (row.hidden) return;
      slope.textContent = alibiFraction(slopes[head]);
      half.textContent = `${formatNumber(halves[head], 1)} tokens`;
      mark(slope, "slopes", slopes[head]);
      mark(half, "half_distances", halves[head]);
      button.setAttribute("aria-pressed", String(head === chosen));
    });
  }
  return { node, draw };
}

/** @param {import("./frame.js").Frame} frame */
function build(frame) {
  const heads = slider(frame, "num_heads", (value) =>
    frame.set({ num_heads: value, head: Math.min(frame.get("head"), value - 1) }),
  );
  const head = slider(frame, "head", (value) => frame.set({ head: value }));
  const length = slider(frame, "length", (value) => frame.set({ length: value }));
  const causal = checkbox(frame, "Causal mask", (checked) => frame.set({ is_causal: checked }));
  const shown = segments(frame, "Show", [["bias", "Bias"], ["weights", "Weights"]], (value) => frame.set({ shown: value }));
  const title = element("p", { class: "mha-title" });
  const map = numberMap(frame, { name: "table", rows: "queries", columns: "keys" });
  const scale = colorBar();
  const fanTitle = element("p", { class: "mha-title" });
  const fan = plane(frame, { label: "One line a head, against the distance", xName: "distance in tokens", yName: "", ratio: 2.1 });
  const lines = Array.from({ length: ALIBI_MOST_HEADS }, (_, index) => {
    const line = fan.curve(`line-${index}`, "by_distance");
    line.node.style.setProperty("--role", alibiColor(index));
    if (index >= ALIBI_COLORS) line.node.style.strokeDasharray = "5 3";
    return line;
  });
  const list = alibiList(frame);
  frame.body.append(
    element(
      "div",
      { class: "mha-controls" },
      heads.node,
      head.node,
      length.node,
      element("div", { class: "mha-choices" }, shown.node, causal.node),
    ),
    element(
      "div",
      { class: "mha-panes" },
      element("div", {}, title, map.node, scale.node),
      element("div", {}, fanTitle, fan.node, list.node),
    ),
  );
  /** @type {ReturnType<typeof readAlibi> | null} */
  let before = null;

  return () => {
    const state = readAlibi(frame);
    const { slopes, mask, half_distances, tables, by_distance } = computeAlibi(state);
    const table = tables[state.head];
    const showsBias = state.shown === "bias";
    const noun = showsBias ? "bias" : "weight";
    heads.draw(state.numHeads, { low: 1, high: ALIBI_MOST_HEADS });
    head.draw(state.head, { low: 0, high: state.numHeads - 1 });
    length.draw(state.length, { low: 2, high: 16 });
    causal.draw(state.isCausal);
    shown.draw(state.shown);

    // One scale for all heads: a head with a small slope is meant to look flat.
    const extent = showsBias ? { low: -Math.max(...slopes) * (state.length - 1), high: 0 } : extentOf(tables, true);
    const isHidden = (/** @type {number} */ q, /** @type {number} */ k) => mask !== undefined && !mask[q][k];
    const positions = Array.from({ length: state.length }, (_, index) => String(index));
    title.textContent = `Head ${state.head}: ${showsBias ? "bias added to the scores" : "weights if all scores are equal"}`;
    map.draw({
      label: `${showsBias ? "Bias" : "Weights"} of head ${state.head}: queries in rows, keys in columns`,
      rowLabels: positions,
      columnLabels: positions,
      numbers: table,
      extent,
      isHidden,
      describe: (q, k, number) => `query ${q} → key ${k}: ${number}${isHidden(q, k) ? ", hidden by the causal mask" : ""}`,
    });
    scale.draw(extent, noun);

    fanTitle.textContent = showsBias ? "Bias of every head" : "Weights of the last query, every head";
    const distances = Float64Array.from({ length: state.length }, (_, distance) => distance);
    const high = extentOf([by_distance], true).high;
    fan.draw([0, state.length - 1], showsBias ? [extent.low, 0] : [0, high]);
    lines.forEach((line, index) => {
      const isThere = index < state.numHeads;
      line.node.classList.toggle("mha-chosen", index === state.head);
      line.draw(isThere ? distances : [], isThere ? by_distance[index] : []);
    });
    const [near, far] = [by_distance[state.head][0], by_distance[state.head][state.length - 1]];
    fan.describe(`Head ${state.head}: ${noun} ${formatNumber(near)} at distance 0, ${formatNumber(far)} at ${state.length - 1}`);
    list.draw(state.head, slopes, half_distances);

    if (before) frame.say(describeAlibi(before, state, slopes));
    before = state;
    frame.report(() => ({ slopes, half_distances, table, by_distance }));
  };
}

/**
 * @param {ReturnType<typeof readAlibi>} before
 * @param {ReturnType<typeof readAlibi>} state
 * @param {number[]} slopes
 */
function describeAlibi(before, state, slopes) {
  const slope = slopes[state.head];
  const chosen = `Head ${state.head}: slope ${alibiFraction(slope)}, the weight halves in ${formatNumber(Math.LN2 / slope, 1)} tokens.`;
  if (before.numHeads !== state.numHeads) return `${state.numHeads} heads. ${chosen}`;
  if (before.length !== state.length) return `${state.length} tokens.`;
  if (before.isCausal !== state.isCausal) return state.isCausal ? "Later keys are hidden." : "All keys are visible.";
  return before.shown === state.shown ? chosen : `The map shows the ${state.shown}.`;
}

/** @param {import("./frame.js").Frame} frame */
function alibiPython(frame) {
  const { numHeads, length, head, isCausal, shown } = readAlibi(frame);
  const mask = isCausal ? `, causal_mask(${length})` : "";
  const imports = ["alibi_bias", "alibi_slopes"];
  if (shown === "weights") imports.push(...(isCausal ? ["causal_mask"] : []), "masked_softmax");
  const tables =
    shown === "bias"
      ? `tables = alibi_bias(${numHeads}, ${length})`
      : `# The weights of scores that are all equal: only the distance counts.
tables = masked_softmax(alibi_bias(${numHeads}, ${length})${mask})`;
  return `import math

from mha_lib import ${imports.join(", ")}

slopes = alibi_slopes(${numHeads})
half_distances = math.log(2) / slopes  # there a weight is half of the nearest one
${tables}
table = tables[${head}]
# The last query, from the nearest key to the farthest: (num_heads, distances).
by_distance = tables[:, -1].flip(-1)
print(table)
`;
}

export default {
  /** @param {{model: import("./frame.js").Model, el: HTMLElement}} view */
  render: (view) =>
    mount(
      view,
      { name: "alibi-explorer", label: "ALiBi explorer", settings: ALIBI_SETTINGS, python: alibiPython },
      build,
    ),
};
