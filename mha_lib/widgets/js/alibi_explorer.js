// ALiBi: a penalty on distance, with one slope per head.

import { computeAlibi } from "./alibi_math.js";
import { extentOf, headColor } from "./colors.js";
import { formatNumber, unitFraction } from "./format.js";
import { element, mark, mount } from "./frame.js";
import { colorBar, numberMap } from "./number_map.js";
import { checkbox, segments, slider } from "./parts.js";
import { plane } from "./plane.js";

const SOLID_LINES = 8; // from this head on, the colours repeat and the lines are dashed

/** @param {import("./frame.js").Frame} frame */
function readAlibi(frame) {
  const numHeads = frame.whole("num_heads");
  return {
    numHeads,
    length: frame.whole("length"),
    head: frame.whole("head", { high: numHeads - 1 }),
    isCausal: frame.flag("is_causal"),
    shown: frame.choice("shown"),
  };
}

/**
 * A list of the heads, from which the reader chooses one.
 * @param {import("./frame.js").Frame} frame
 */
function alibiList(frame) {
  const rows = Array.from({ length: frame.limits("num_heads").high }, (_, head) => {
    const [slope, half] = [element("span"), element("span")];
    const button = element(
      "button",
      { type: "button", class: "mha-head-row" },
      element("i"),
      element("span", { text: `head ${head}` }),
      element("span", { class: "mha-unseen", text: ": slope " }),
      slope,
      element("span", { class: "mha-unseen", text: ", the weight halves every " }),
      half,
    );
    button.style.setProperty("--head", headColor(head));
    frame.listen(button, "click", () => frame.set({ head }));
    return { node: element("li", {}, button), button, slope, half };
  });
  const node = element(
    "div",
    { class: "mha-head-list" },
    element(
      "p",
      { class: "mha-head-names mha-hint", "aria-hidden": "true" },
      ...["", "slope", "weight halves every"].map((text) => element("span", { text })),
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
      slope.textContent = unitFraction(slopes[head]);
      half.textContent = `${formatNumber(halves[head], 1)} tokens`;
      mark(slope, "slopes", slopes[head]);
      mark(half, "half_distances", halves[head]);
      button.setAttribute("aria-pressed", String(head === chosen));
    });
  }
  return { node, draw };
}

/**
 * Plots the bias or the weights of every head against distance.
 * @param {import("./frame.js").Frame} frame
 */
function alibiFan(frame) {
  const title = element("p", { class: "mha-title" });
  const label = "One line per head, plotted against distance";
  const fan = plane(frame, { label, xName: "distance in tokens", yName: "", ratio: 2.1 });
  const lines = Array.from({ length: frame.limits("num_heads").high }, (_, head) => {
    const line = fan.curve(`line-${head}`, "by_distance");
    line.node.style.setProperty("--role", headColor(head));
    if (head >= SOLID_LINES) line.node.style.strokeDasharray = "5 3";
    return line;
  });

  /**
   * @param {ReturnType<typeof readAlibi>} state
   * @param {Float64Array[]} byDistance
   * @param {number} lowest bias
   */
  function draw({ length, head: chosen, numHeads, shown }, byDistance, lowest) {
    const showsBias = shown === "bias";
    title.textContent = showsBias ? "Bias of every head" : "Weights of the last query for every head";
    const distances = Float64Array.from({ length }, (_, distance) => distance);
    const { high } = extentOf([byDistance], true);
    fan.draw([0, length - 1], showsBias ? [lowest, 0] : [0, high]);
    lines.forEach((line, head) => {
      line.node.classList.toggle("mha-chosen", head === chosen);
      line.draw(head < numHeads ? distances : [], head < numHeads ? byDistance[head] : []);
    });
    const [near, far] = [byDistance[chosen][0], byDistance[chosen][length - 1]].map((number) => formatNumber(number));
    fan.describe(`Head ${chosen}: ${showsBias ? "bias" : "weight"} ${near} at distance 0, ${far} at ${length - 1}`);
  }
  return { title, node: fan.node, draw };
}

/**
 * A map of the bias or of the weights of the chosen head.
 * @param {import("./frame.js").Frame} frame
 */
function alibiMap(frame) {
  const title = element("p", { class: "mha-title" });
  const map = numberMap(frame, { name: "table", rows: "queries", columns: "keys" });
  const scale = colorBar();

  /**
   * @param {ReturnType<typeof readAlibi>} state
   * @param {ReturnType<typeof computeAlibi>} computed
   * @param {import("./colors.js").Extent} extent
   */
  function draw({ head, length, shown }, { mask, tables }, extent) {
    const showsBias = shown === "bias";
    const isHidden = (/** @type {number} */ q, /** @type {number} */ k) => mask !== undefined && !mask[q][k];
    const positions = Array.from({ length }, (_, index) => String(index));
    title.textContent = `Head ${head}: ${showsBias ? "bias added to the scores" : "weights if all scores are equal"}`;
    map.draw({
      label: `${showsBias ? "Bias" : "Weights"} of head ${head}: queries in rows, keys in columns`,
      rowLabels: positions,
      columnLabels: positions,
      numbers: tables[head],
      extent,
      isHidden,
      describe: (q, k, number) => `query ${q} → key ${k}: ${number}${isHidden(q, k) ? ", hidden by the causal mask" : ""}`,
    });
    scale.draw(extent, showsBias ? "bias" : "weight");
  }
  return { node: element("div", {}, title, map.node, scale.node), draw };
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
  const map = alibiMap(frame);
  const fan = alibiFan(frame);
  const list = alibiList(frame);
  const choices = element("div", { class: "mha-choices" }, shown.node, causal.node);
  frame.body.append(
    element("div", { class: "mha-controls" }, heads.node, head.node, length.node, choices),
    element("div", { class: "mha-panes" }, map.node, element("div", {}, fan.title, fan.node, list.node)),
  );
  /** @type {ReturnType<typeof readAlibi> | null} */
  let before = null;

  return () => {
    const state = readAlibi(frame);
    const computed = computeAlibi(state);
    const { slopes, half_distances, tables, by_distance } = computed;
    heads.draw(state.numHeads, frame.limits("num_heads"));
    head.draw(state.head, { low: 0, high: state.numHeads - 1 });
    length.draw(state.length, frame.limits("length"));
    causal.draw(state.isCausal);
    shown.draw(state.shown);
    // All heads share one scale, so a head with a small slope looks flat.
    const lowest = -Math.max(...slopes) * (state.length - 1);
    const extent = state.shown === "bias" ? { low: lowest, high: 0 } : extentOf(tables, true);
    map.draw(state, computed, extent);
    fan.draw(state, by_distance, extent.low);
    list.draw(state.head, slopes, half_distances);
    if (before) frame.say(describeAlibi(before, state, slopes));
    before = state;
    frame.report(() => ({ slopes, half_distances, table: tables[state.head], by_distance }));
  };
}

/**
 * @param {ReturnType<typeof readAlibi>} before
 * @param {ReturnType<typeof readAlibi>} state
 * @param {number[]} slopes
 */
function describeAlibi(before, state, slopes) {
  const slope = slopes[state.head];
  const half = formatNumber(Math.LN2 / slope, 1);
  const chosen = `Head ${state.head}: slope ${unitFraction(slope)}, the weight halves every ${half} tokens.`;
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
      : `# The weights if all scores are equal: only the distance matters.
tables = masked_softmax(alibi_bias(${numHeads}, ${length})${mask})`;
  return `import math

from mha_lib import ${imports.join(", ")}

slopes = alibi_slopes(${numHeads})
half_distances = math.log(2) / slopes  # at this distance a weight is half the weight at distance 0
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
    mount(view, { name: "alibi-explorer", label: "ALiBi explorer", python: alibiPython }, build),
};
