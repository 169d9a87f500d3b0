// Scores: a query and keys in the plane, a rule, and what the softmax makes of it.

import { dotProductScore, maskedSoftmax, matrixFromFloat32, scaledDotProductScore } from "./attention_math.js";
import { viridis } from "./colors.js";
import { element, formatNumber, mark, mount } from "./frame.js";
import { colorBar, extentOf } from "./number_map.js";
import { checkbox, facts, menu, slider } from "./parts.js";
import { plane } from "./plane.js";
import { additiveScore, bilinearScore, cosineScore, entropyOf, gaussianScore } from "./score_math.js";

/** @typedef {import("./attention_math.js").Matrix} Matrix */

const SCORE_SETTINGS = ["query", "key", "score", "d", "is_scaled"];
const SCORE_EDGE = 4;
const SCORE_SIDE = 33;
const SCORE_MAX_KEYS = 6;
const SCORE_WIDTHS = [2, 4, 8, 16, 32, 64, 128];
const SCORE_SEED = 158;
const SCORE_BILINEAR = [[0.5, -1], [1, 0.5]];
const SCORE_ADDITIVE = {
  query: [[1, 0], [0, 1], [1, 1], [1, -1]],
  key: [[1, -0.5], [0.5, 1], [-1, 0.5], [-0.5, -1]],
  score: [2, 1, -1.5, 1],
};

/** @type {[string, string, boolean][]} name, text in the menu, and whether √d has a say */
const SCORE_RULES = [
  ["dot", "dot product", true],
  ["cosine", "cosine", false],
  ["gaussian", "Gaussian", true],
  ["bilinear", "bilinear", true],
  ["additive", "additive", false],
];

/** @param {import("./frame.js").Frame} frame */
function readScore(frame) {
  const d = frame.whole("d", 2, SCORE_WIDTHS[SCORE_WIDTHS.length - 1]);
  if (!SCORE_WIDTHS.includes(d)) throw new RangeError(`d must be one of ${SCORE_WIDTHS.join(", ")}, got ${d}`);
  const keys = frame.reals("key", -SCORE_EDGE, SCORE_EDGE);
  const count = keys.length / 2;
  if (!Number.isInteger(count) || count < 2 || count > SCORE_MAX_KEYS) {
    throw new RangeError(`key must hold x and y of 2 to ${SCORE_MAX_KEYS} keys, got ${keys.length} numbers`);
  }
  const score = frame.choice("score", SCORE_RULES.map(([name]) => name));
  const isScaled = frame.flag("is_scaled");
  return {
    query: frame.reals("query", -SCORE_EDGE, SCORE_EDGE, 2),
    keys: Array.from({ length: count }, (_, key) => keys.slice(2 * key, 2 * key + 2)),
    score,
    d,
    isScaled,
    canScale: SCORE_RULES.some(([name, , isScalable]) => name === score && isScalable),
  };
}

/** @param {number[][]} rows */
const scoreRows = (rows) => rows.map((row) => Float64Array.from(row));

/** The places of the map, row by row from below. */
function scorePlaces() {
  const at = (/** @type {number} */ index) => SCORE_EDGE * ((2 * index) / (SCORE_SIDE - 1) - 1);
  return Array.from({ length: SCORE_SIDE ** 2 }, (_, index) =>
    Float64Array.of(at(index % SCORE_SIDE), at(Math.floor(index / SCORE_SIDE))),
  );
}

/**
 * The weights of the learned rules at one width.
 * @param {number} d
 */
function scoreWeights(d) {
  const row = (/** @type {number[]} */ start, /** @type {(i: number) => number} */ beyond) =>
    Float64Array.from({ length: d }, (_, i) => (i < 2 ? start[i] : beyond(i)));
  const bilinear = Array.from({ length: d }, (_, out) => row(SCORE_BILINEAR[out] ?? [0, 0], (i) => (i === out ? 1 : 0)));
  // A coordinate beyond the plane enters one hidden unit, each unit in turn.
  const units = SCORE_ADDITIVE.score.length;
  const enter = (/** @type {number[][]} */ weight) =>
    weight.map((start, unit) => row(start, (i) => ((i - 2) % units === unit ? 1 / Math.sqrt(d) : 0)));
  const additive = { query: enter(SCORE_ADDITIVE.query), key: enter(SCORE_ADDITIVE.key), score: SCORE_ADDITIVE.score };
  return { d, bilinear, additive };
}

/**
 * @param {ReturnType<typeof readScore>} state
 * @param {ReturnType<typeof scoreWeights>} learned
 * @param {Matrix} extra coordinates beyond the plane, of the query, then of each key
 */
function computeScore({ query, keys, score, d, isScaled }, learned, extra) {
  const row = (/** @type {number[]} */ start, /** @type {number} */ index) =>
    Float64Array.from({ length: d }, (_, i) => (i < 2 ? start[i] : extra[index][i - 2]));
  const q = [row(query, 0)];
  const k = keys.map((key, index) => row(key, index + 1));
  const factor = isScaled ? 1 / Math.sqrt(d) : 1;
  /** @type {Object<string, () => Matrix>} */
  const rules = {
    dot: () => (isScaled ? scaledDotProductScore : dotProductScore)(q, k),
    cosine: () => cosineScore(q, k),
    gaussian: () => gaussianScore(q, k, isScaled ? d ** 0.25 : 1),
    bilinear: () => bilinearScore(q, k, learned.bilinear).map((scores) => scores.map((number) => number * factor)),
    additive: () => additiveScore(q, k, learned.additive),
  };
  const scores = rules[score]();
  const weights = maskedSoftmax(scores);
  const entropy = entropyOf(weights[0]);
  const mean = scores[0].reduce((sum, number) => sum + number, 0) / keys.length;
  const variance = scores[0].reduce((sum, number) => sum + (number - mean) ** 2, 0) / keys.length;
  return { q, scores, weights, entropy, effectiveKeys: Math.exp(entropy), spread: Math.sqrt(variance) };
}

/**
 * The score of a key at each place of the plane. Beyond the plane such a key is 0, so that two coordinates of it do,
 * and what the query is there adds a constant or changes its length.
 * @param {ReturnType<typeof readScore>} state
 * @param {ReturnType<typeof scoreWeights>} learned
 * @param {Matrix} q the whole query, (1, d)
 * @param {Matrix} places
 * @returns {Matrix} [row][column], from below
 */
function scoreLandscape({ query, score, d, isScaled }, learned, q, places) {
  const inPlane = [Float64Array.from(query)];
  const [inside, whole] = [inPlane[0], q[0]].map((row) => row.reduce((sum, number) => sum + number * number, 0));
  const factor = isScaled ? 1 / Math.sqrt(d) : 1;
  const toLength = Math.sqrt(inside) / Math.max(Math.sqrt(whole), 1e-12);
  /** @type {Object<string, () => Float64Array>} */
  const rules = {
    dot: () => dotProductScore(inPlane, places)[0].map((number) => number * factor),
    cosine: () => cosineScore(inPlane, places)[0].map((number) => number * toLength),
    gaussian: () =>
      gaussianScore(inPlane, places, isScaled ? d ** 0.25 : 1)[0].map((number) => number - ((whole - inside) * factor) / 2),
    bilinear: () => bilinearScore(inPlane, places, scoreRows(SCORE_BILINEAR))[0].map((number) => number * factor),
    additive: () => additiveScore(q, places, { ...learned.additive, key: scoreRows(SCORE_ADDITIVE.key) })[0],
  };
  const flat = rules[score]();
  return Array.from({ length: SCORE_SIDE }, (_, y) => flat.slice(y * SCORE_SIDE, (y + 1) * SCORE_SIDE));
}

/**
 * The rule as a formula, and a remark on it.
 * @param {ReturnType<typeof readScore>} state
 * @returns {[string, string]}
 */
function describeRule({ score, d, isScaled }) {
  const root = `√${d}`;
  const over = isScaled ? ` / ${root}` : "";
  const additive = SCORE_ADDITIVE.score.reduce((sum, number) => sum + Math.abs(number), 0);
  /** @type {Object<string, [string, string]>} */
  const texts = {
    dot: [`q · k${over}`, "No best place for a key, only a best direction."],
    cosine: ["q · k / (|q| |k|)", "From −1 to 1 at every d: nothing to scale."],
    gaussian: ["−|q − k|² / 2σ²", `σ² = ${isScaled ? root : "1"}. Nothing is better than being equal.`],
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

/** The score of a key at each place of the plane, as a picture that lies under it. */
function scoreMap() {
  const canvas = element("canvas", { width: SCORE_SIDE, height: SCORE_SIDE });
  const node = element("div", { class: "mha-score-map", "aria-hidden": "true" }, canvas);
  const context = canvas.getContext("2d");
  const image = context.createImageData(SCORE_SIDE, SCORE_SIDE);
  /**
   * @param {Matrix} landscape from below
   * @param {import("./number_map.js").Extent} extent
   */
  function draw(landscape, { low, high }) {
    landscape.forEach((row, y) =>
      row.forEach((number, x) => {
        const color = viridis((number - low) / (high - low));
        image.data.set([...color, 255], 4 * ((SCORE_SIDE - 1 - y) * SCORE_SIDE + x));
      }),
    );
    context.putImageData(image, 0, 0);
    mark(canvas, "landscape", landscape.flatMap((row) => Array.from(row)));
  }
  return { node, draw };
}

/** @param {import("./frame.js").Frame} frame */
function build(frame) {
  const rule = menu(frame, "score", (index) => frame.set({ score: SCORE_RULES[index][0] }));
  const width = slider(frame, "width d", (value) => frame.set({ d: value }));
  const scaled = checkbox(frame, "Divide by √d", (checked) => frame.set({ is_scaled: checked }));
  const formula = element("code");
  const remark = element("span", { class: "mha-hint" });
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
  // A disc under each key, as large as its weight.
  const discs = view.dots("weight");
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
  const scale = colorBar();
  const results = facts(
    ["entropy", "effective_keys", "spread"],
    ["entropy", "effective keys", "spread of scores"],
  );
  const table = scoreTable();
  const beyond = element("p", { class: "mha-hint mha-score-beyond" });
  frame.body.append(
    element(
      "div",
      { class: "mha-controls" },
      rule.node,
      element("p", { class: "mha-score-rule" }, formula, remark),
      width.node,
      scaled.node,
    ),
    element(
      "div",
      { class: "mha-panes" },
      element("div", {}, view.node, scale.node),
      element("div", {}, results.node, table.node, beyond),
    ),
  );
  const places = scorePlaces();
  let learned = scoreWeights(2);
  let before = "";

  return () => {
    const state = readScore(frame);
    if (learned.d !== state.d) learned = scoreWeights(state.d);
    const extra = matrixFromFloat32(frame.get("extra"), SCORE_WIDTHS[SCORE_WIDTHS.length - 1] - 2);
    const { q, scores, weights, entropy, effectiveKeys, spread } = computeScore(state, learned, extra);
    const landscape = scoreLandscape(state, learned, q, places);
    rule.draw(SCORE_RULES.map(([, text]) => text), SCORE_RULES.findIndex(([name]) => name === state.score));
    width.draw(state.d, { stops: SCORE_WIDTHS });
    scaled.draw(state.isScaled && state.canScale);
    scaled.input.disabled = !state.canScale;
    [formula.textContent, remark.textContent] = describeRule(state);

    const extent = extentOf([landscape], false);
    map.draw(landscape, extent);
    scale.draw(extent, "score of a key");
    discs.draw(state.keys.map(([x]) => x), state.keys.map(([, y]) => y), (index) => ({ size: 68 * Math.sqrt(weights[0][index]) }));
    query.draw(state.query[0], state.query[1], "q");
    keys.forEach((handle, index) => {
      handle.node.hidden = index >= state.keys.length;
      if (index < state.keys.length) handle.draw(state.keys[index][0], state.keys[index][1], String(index));
    });
    view.describe(`The colour at each place is the score that a key would have there, from ${formatNumber(extent.low, 2)} to ${formatNumber(extent.high, 2)}`);
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
        ? "The plane shows both coordinates."
        : `The plane shows 2 of ${state.d} coordinates. The other ${rest} were drawn once from a normal distribution, for the query and for each key; in the map they are 0 for the key.`;

    const best = weights[0].indexOf(Math.max(...weights[0]));
    const news = `Key ${best} has the largest weight, ${formatNumber(weights[0][best], 2)}. Effective number of keys: ${formatNumber(effectiveKeys, 2)}.`;
    if (before && before !== news) frame.say(news);
    before = news;
    frame.report(() => ({ scores, weights, entropy, effective_keys: effectiveKeys, spread, landscape }));
  };
}

/**
 * Rows of numbers as a torch tensor.
 * @param {readonly (readonly number[])[]} rows
 */
function scoreTensor(rows) {
  return `torch.tensor([${rows.map((row) => `[${row.join(", ")}]`).join(", ")}], dtype=torch.float64)`;
}

/** @param {import("./frame.js").Frame} frame */
function scorePython(frame) {
  const { query, keys, score, d, isScaled } = readScore(frame);
  const { query: queryWeight, key: keyWeight, score: scoreWeight } = SCORE_ADDITIVE;
  const over = isScaled ? " / math.sqrt(d)" : "";
  /** @type {Object<string, [string, string]>} what is imported, and the rule */
  const rules = {
    dot: isScaled ? ["scaled_dot_product_score", "score = scaled_dot_product_score"] : ["dot_product_score", "score = dot_product_score"],
    cosine: ["cosine_score", "score = cosine_score"],
    gaussian: ["gaussian_score", `
def score(query, key):
    return gaussian_score(query, key, bandwidth=${isScaled ? "d**0.25" : "1.0"})

`],
    bilinear: ["BilinearScore", `bilinear = BilinearScore(d, d).double().requires_grad_(False)
# W turns and stretches the plane; beyond it, W is the identity.
in_plane = ${scoreTensor(SCORE_BILINEAR)}
bilinear.key_proj.weight.copy_(torch.block_diag(in_plane, torch.eye(d - 2)))


def score(query, key):
    return bilinear(query, key)${over}

`],
    additive: ["AdditiveScore", `score = AdditiveScore(d, d, ${scoreWeight.length}).double().requires_grad_(False)
# A coordinate beyond the plane enters one hidden unit.
units = torch.eye(${scoreWeight.length}, dtype=torch.float64).repeat(1, d)[:, : d - 2] / math.sqrt(d)
query_weight = ${scoreTensor(queryWeight)}
key_weight = ${scoreTensor(keyWeight)}
score.query_proj.weight.copy_(torch.hstack([query_weight, units]))
score.key_proj.weight.copy_(torch.hstack([key_weight, units]))
score.score_proj.weight.copy_(torch.tensor([${scoreWeight.join(", ")}]))`],
  };
  const [name, lines] = rules[score];
  const imported = [name, "masked_softmax"].sort((a, b) => (a.toLowerCase() < b.toLowerCase() ? -1 : 1)).join(", ");
  const math = lines.includes("math.") ? "import math\n\n" : "";
  return `${math}import torch

from mha_lib import ${imported}

d = ${d}
query = ${scoreTensor([query])}
key = ${scoreTensor(keys)}
# What lies beyond the plane was drawn once, for the query and for up to ${SCORE_MAX_KEYS} keys.
generator = torch.Generator().manual_seed(${SCORE_SEED})
beyond = torch.randn(${1 + SCORE_MAX_KEYS}, ${SCORE_WIDTHS[SCORE_WIDTHS.length - 1] - 2}, generator=generator).double()[:, : d - 2]
query = torch.hstack([query, beyond[:1]])
key = torch.hstack([key, beyond[1 : len(key) + 1]])

${lines}
scores = score(query, key)
weights = masked_softmax(scores)
entropy = torch.special.entr(weights).sum()
effective_keys = entropy.exp()
spread = scores.std(correction=0)
print(torch.round(weights, decimals=4))

# The score of a key at each place of the plane, which is 0 beyond it; y by row, x by column.
side = torch.linspace(-${SCORE_EDGE}, ${SCORE_EDGE}, ${SCORE_SIDE}, dtype=torch.float64)
places = torch.nn.functional.pad(torch.cartesian_prod(side, side), (0, d - 2))
landscape = score(query, places).view(${SCORE_SIDE}, ${SCORE_SIDE}).T
`;
}

export default {
  /** @param {{model: import("./frame.js").Model, el: HTMLElement}} view */
  render: (view) =>
    mount(
      view,
      {
        name: "score-explorer",
        label: "Score explorer",
        settings: SCORE_SETTINGS,
        data: ["extra"],
        python: scorePython,
      },
      build,
    ),
};
