// A query and keys in the plane, a rule that scores them, and the weights that the softmax computes.

import { matrixFromFloat32 } from "../shared/attention_math.js";
import { extentOf } from "../shared/colors.js";
import { formatNumber } from "../shared/format.js";
import { element, mark, widget } from "../shared/frame.js";
import { colorBar } from "../shared/number_map.js";
import { checkbox, facts, menu, slider } from "../shared/parts.js";
import { pixelCanvas } from "../shared/pixel_canvas.js";
import { plane } from "../shared/plane.js";
import {
  computeScore,
  SCORE_ADDITIVE,
  SCORE_BILINEAR,
  SCORE_EDGE,
  scoreLandscape,
  scorePlaces,
  scoreWeights,
} from "./score_math.js";

/** @typedef {import("../shared/attention_math.js").Matrix} Matrix */
/** @typedef {import("../shared/frame.js").Frame} Frame */

const SCORE_MAX_KEYS = 6;

/** @type {[string, string, boolean][]} name, text in the menu, and whether the score can be divided by √d */
const SCORE_RULES = [
  ["dot", "dot product", true],
  ["cosine", `cosine`, false],
  ["gaussian", "Gaussian", true],
  ["bilinear", `bilinear`, true],
  ["additive", `additive`, false],
];

/** @param {Frame} frame */
function readScore(frame) {
  const { query, key, score, d, isScaled } = frame.read();
  const count = key.length / 2;
  const fits = Number.isInteger(count) && count >= 2 && count <= SCORE_MAX_KEYS;
  if (!fits) throw new RangeError(`key must hold x and y of 2 to ${SCORE_MAX_KEYS} keys, got ${key.length} numbers`);
  /** @type {number[][]} */
  const keys = Array.from({ length: count }, (_, index) => key.slice(2 * index, 2 * index + 2));
  const canScale = SCORE_RULES.some(([name, , isScalable]) => name === score && isScalable);
  return { query, keys, score, d, isScaled, canScale };
}

/** @typedef {ReturnType<typeof readScore>} State */

/** The coordinates beyond the plane, which Python drew at random for the widest query and keys. @param {Frame} frame */
function readExtra(frame) {
  return matrixFromFloat32(frame.get("extra"), frame.limits("d").high - 2, "extra", SCORE_MAX_KEYS + 1);
}

/** The rule as a formula, and a remark on it. @param {State} state @returns {[string, string]} */
function describeRule({ score, d, isScaled }) {
  const root = `√${d}`;
  const over = isScaled ? ` / ${root}` : "";
  const additive = SCORE_ADDITIVE.score.reduce((sum, number) => sum + Math.abs(number), 0);
  /** @type {Object<string, [string, string]>} */
  const texts = {
    dot: [`q · k${over}`, "No best place for a key, only a best direction."],
    cosine: ["q · k / (|q| |k|)", "From −1 to 1 at every d: nothing to scale."],
    gaussian: ["−|q − k|² / 2σ²", `σ² = ${isScaled ? root : "1"}. The best key equals the query.`],
    bilinear: [`q · W k${over}`, `W = (${SCORE_BILINEAR.map((row) => row.map((number) => String(number).replace("-", "−")).join(", ")).join("; ")}), fixed here, learned in a model.`],
    additive: ["w · tanh(W_q q + W_k k)", `From −${additive} to ${additive} at every d: nothing to scale. Weights fixed here, learned in a model.`],
  };
  return texts[score];
}

/**
 * The keys with their scores and weights.
 * @returns {{node: HTMLElement, draw: (scores: ArrayLike<number>, weights: ArrayLike<number>) => void}}
 */
function scoreTable() {
  const rows = Array.from({ length: SCORE_MAX_KEYS }, (_, index) => {
    const [score, bar, weight] = [element("td"), element("i"), element("td")];
    const track = element("td", { "aria-hidden": "true" }, element("span", { class: "mha-bar-track" }, bar));
    const head = element("th", { scope: "row", text: `key ${index}` });
    return { node: element("tr", {}, head, score, track, weight), score, bar, weight };
  });
  const heads = ["key", "score", "", "weight"].map((text) =>
    text ? element("th", { scope: "col", text }) : element("td"),
  );
  const body = element("tbody");
  const node = element("table", {}, element("thead", {}, element("tr", {}, ...heads)), body);
  return {
    node,
    draw(scores, weights) {
      rows.forEach(({ node: line, score, bar, weight }, index) => {
        if (index >= scores.length) return line.remove();
        if (!line.parentNode) body.append(line);
        score.textContent = formatNumber(scores[index], 2);
        mark(score, "scores", scores[index]);
        bar.style.width = `${100 * weights[index]}%`;
        weight.textContent = formatNumber(weights[index], 3);
        mark(weight, "weights", weights[index]);
      });
    },
  };
}

/** The score of a key at each point of the plane, as a picture under the plane. */
function scoreMap() {
  const canvas = pixelCanvas();
  const node = element("div", { class: "mha-score-map", "aria-hidden": "true" }, canvas.node);
  /**
   * @param {Matrix} landscape with the row of the lowest y first
   * @param {import("../shared/number_map.js").Extent} extent
   */
  function draw(landscape, extent) {
    canvas.draw([...landscape].reverse(), extent);
    mark(canvas.node, "landscape", landscape.flatMap((row) => Array.from(row)));
  }
  return { node, draw };
}

/**
 * The legend of the map, with a line at the score of each key. For a large width d, the coordinates beyond the
 * plane give keys scores that no point of the map has; the legend covers them too.
 */
function scoreLegend() {
  const scale = colorBar();
  const lines = Array.from({ length: SCORE_MAX_KEYS }, () => element("i", { class: "mha-key-score", "aria-hidden": "true" }));
  scale.node.querySelector(".mha-scale").append(...lines);
  /** @param {ArrayLike<number>} scores @param {import("../shared/number_map.js").Extent} extent */
  function draw(scores, extent) {
    scale.draw(extent, "score of a key");
    lines.forEach((line, index) => {
      line.hidden = index >= scores.length;
      line.style.left = `${(100 * (scores[index] - extent.low)) / (extent.high - extent.low)}%`;
    });
  }
  return { node: scale.node, draw };
}

/** @param {Frame} frame */
function scoreControls(frame) {
  const rule = menu(frame, "score", "score", SCORE_RULES.map(([, text]) => text));
  const width = slider(frame, "width d", "d", () => ({ stops: frame.limits("d").options }));
  const scaled = checkbox(frame, "Divide by √d", (checked) => frame.set({ is_scaled: checked }));
  const formula = element("code");
  const remark = element("span", { class: "mha-hint" });
  const text = element("p", { class: "mha-score-rule" }, formula, remark);
  const node = element("div", { class: "mha-controls" }, rule.node, text, width.node, scaled.node);

  /** @param {State} state */
  function draw(state) {
    scaled.draw(state.isScaled && state.canScale);
    scaled.input.disabled = !state.canScale;
    [formula.textContent, remark.textContent] = describeRule(state);
  }
  return { node, draw };
}

/** The plane with a handle for the query and for each key, over the map of the score. @param {Frame} frame */
function scorePlane(frame) {
  const map = scoreMap();
  const view = plane(frame, {
    label: "The plane of query and keys",
    xName: "first coordinate",
    yName: "second coordinate",
    ratio: 1,
    ticks: [4, 4],
  });
  view.area.prepend(map.node);
  view.draw([-SCORE_EDGE, SCORE_EDGE], [-SCORE_EDGE, SCORE_EDGE]);
  const discs = view.dots("weight"); // under each key, with an area in proportion to its weight
  const query = view.handle({
    label: "Query",
    role: "query",
    axis: "both",
    step: 0.1,
    onMove: (x, y) => frame.set({ query: [x, y] }),
  });
  const keys = Array.from({ length: SCORE_MAX_KEYS }, (_, index) =>
    view.handle({
      label: `Key ${index}`,
      role: "key",
      axis: "both",
      step: 0.1,
      onMove(x, y) {
        const moved = [...frame.get("key")];
        moved.splice(2 * index, 2, x, y);
        frame.set({ key: moved });
      },
    }),
  );
  const legend = scoreLegend();

  /**
   * @param {State} state @param {Float64Array} scores @param {ArrayLike<number>} weights
   * @param {Matrix} landscape
   */
  function draw(state, scores, weights, landscape) {
    const extent = extentOf([landscape, [scores]], false);
    map.draw(landscape, extent);
    legend.draw(scores, extent);
    const sizeOf = (/** @type {number} */ index) => ({ size: 68 * Math.sqrt(weights[index]) });
    discs.draw(state.keys.map(([x]) => x), state.keys.map(([, y]) => y), sizeOf);
    query.draw(state.query[0], state.query[1], "q");
    keys.forEach((handle, index) => {
      handle.node.hidden = index >= state.keys.length;
      if (index < state.keys.length) handle.draw(state.keys[index][0], state.keys[index][1], String(index));
    });
    const [low, high] = [extent.low, extent.high].map((number) => formatNumber(number, 2));
    view.describe(`The colour at each place is the score that a key would have there. The legend runs from ${low} to ${high}`);
  }
  return { node: element("div", {}, view.node, legend.node), draw };
}

/** @param {Frame} frame */
function build(frame) {
  const controls = scoreControls(frame);
  const view = scorePlane(frame);
  const results = facts(
    ["entropy", "effective_keys", "spread"],
    ["entropy", "effective keys", "spread of scores"],
  );
  const table = scoreTable();
  const beyond = element("p", { class: "mha-hint mha-score-beyond" });
  const numbers = element("div", {}, results.node, table.node, beyond);
  frame.body.append(controls.node, element("div", { class: "mha-panes" }, view.node, numbers));
  const places = scorePlaces();
  let learned = scoreWeights(2);

  return () => {
    const state = readScore(frame);
    if (learned.d !== state.d) learned = scoreWeights(state.d);
    const { q, scores, weights, entropy, effectiveKeys, spread } = computeScore(state, learned, readExtra(frame));
    const landscape = scoreLandscape(state, learned, q, places);
    controls.draw(state);
    view.draw(state, scores[0], weights[0], landscape);
    const count = state.keys.length;
    results.draw([
      { text: `${formatNumber(entropy, 3)} nats`, hint: `at most ln ${count} = ${formatNumber(Math.log(count), 3)}`, number: entropy },
      { text: formatNumber(effectiveKeys, 2), hint: `e to the entropy; at most ${count}`, number: effectiveKeys },
      { text: formatNumber(spread, 2), hint: "standard deviation", number: spread },
    ]);
    table.draw(scores[0], weights[0]);
    const rest = state.d - 2;
    beyond.textContent =
      rest === 0
        ? "The plane shows both coordinates. White lines in the legend: the scores of the keys."
        : `The plane shows 2 of ${state.d} coordinates. The other ${rest} were drawn once from a normal distribution; in the map they are 0 for the key. White lines in the legend: the scores of the keys.`;

    const best = weights[0].indexOf(Math.max(...weights[0]));
    const news = `Key ${best} has the largest weight, ${formatNumber(weights[0][best], 2)}. Effective number of keys: ${formatNumber(effectiveKeys, 2)}.`;
    frame.tell(news);
    frame.report(() => ({ scores, weights, entropy, effective_keys: effectiveKeys, spread, landscape }));
  };
}

export default widget({ name: "score-explorer", label: "Score explorer", data: ["extra"] }, build);
