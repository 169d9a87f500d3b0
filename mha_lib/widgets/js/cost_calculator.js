// What attention costs: parameters, operations, bytes. The number of heads changes one of them.

import { attentionCost, crossingLength, divisorsUpTo } from "./cost_math.js";
import { element, mount } from "./frame.js";
import { bars, facts, menu, segments, slider } from "./parts.js";
import { plane } from "./plane.js";

const COST_SETTINGS = ["embed_dim", "num_heads", "num_kv_heads", "length", "batch_size", "num_layers", "bytes_per_number", "sweep"];
const COST_WIDTHS = [64, 128, 256, 512, 768, 1024, 2048, 4096, 8192, 12288];
const COST_LENGTHS = Array.from({ length: 14 }, (_, power) => 16 * 2 ** power);
const COST_BATCHES = [1, 2, 4, 8, 16, 32, 64];
const COST_BYTES = [1, 2, 4, 8];
const COST_MAX_HEADS = 128;
const COST_CURVE_STEPS = 16;

const COST_NOUNS = { parameters: "parameters", flops: "FLOPs", cache: "key/value cache", weights: "attention weights" };

/** Sizes that were published: embed_dim, num_heads, num_kv_heads, num_layers, and the length of the context. */
const COST_MODELS = [
  { text: "GPT-2 small (Radford et al., 2019)", sizes: [768, 12, 12, 12, 1024] },
  { text: "GPT-3 (Brown et al., 2020)", sizes: [12288, 96, 96, 96, 2048] },
  { text: "Llama 2 7B (Touvron et al., 2023)", sizes: [4096, 32, 32, 32, 4096] },
  { text: "Llama 2 70B (Touvron et al., 2023)", sizes: [8192, 64, 8, 80, 4096] },
  { text: "Mistral 7B (Jiang et al., 2023)", sizes: [4096, 32, 8, 32, 8192] },
];

/** @param {import("./frame.js").Frame} frame */
function readCost(frame) {
  const embedDim = frame.whole("embed_dim", 1, 16384);
  const numHeads = frame.whole("num_heads", 1, COST_MAX_HEADS);
  const numKvHeads = frame.whole("num_kv_heads", 1, COST_MAX_HEADS);
  if (embedDim % numHeads !== 0) throw new RangeError(`num_heads must divide embed_dim=${embedDim}, got ${numHeads}`);
  if (numHeads % numKvHeads !== 0) {
    throw new RangeError(`num_kv_heads must divide num_heads=${numHeads}, got ${numKvHeads}`);
  }
  const bytesPerNumber = frame.whole("bytes_per_number", 1, 8);
  if (!COST_BYTES.includes(bytesPerNumber)) {
    throw new RangeError(`bytes_per_number must be one of 1, 2, 4, 8, got ${bytesPerNumber}`);
  }
  return {
    embedDim,
    numHeads,
    numKvHeads,
    length: frame.whole("length", 1, 1048576),
    batchSize: frame.whole("batch_size", 1, 1024),
    numLayers: frame.whole("num_layers", 1, 256),
    bytesPerNumber,
    sweep: frame.choice("sweep", ["num_heads", "num_kv_heads"]),
  };
}

/** @param {ReturnType<typeof readCost>} state */
function computeCost(state) {
  const { embedDim, numHeads, numKvHeads, length, sweep } = state;
  const ofHeads = sweep === "num_heads";
  const counts = barCounts(ofHeads ? embedDim : numHeads, ofHeads ? [numHeads] : [numHeads, numKvHeads]);
  const swept = counts.map((count) =>
    attentionCost(ofHeads ? { ...state, numHeads: count, numKvHeads: count } : { ...state, numKvHeads: count }),
  );
  const crossing = crossingLength(state);
  const stride = Math.ceil(Math.max(2 * crossing, Math.floor((length * 5) / 4)) / COST_CURVE_STEPS);
  const lengths = Array.from({ length: COST_CURVE_STEPS + 1 }, (_, step) => stride * step);
  const curves = lengths.map((tokens) => attentionCost({ ...state, length: tokens }));
  return {
    cost: attentionCost(state),
    counts,
    now: counts.indexOf(ofHeads ? numHeads : numKvHeads),
    swept: {
      parameters: swept.map(({ parameters }) => parameters),
      flops: swept.map(({ projectionFlops, attentionFlops }) => projectionFlops + attentionFlops),
      cache: swept.map(({ cacheBytes }) => cacheBytes),
      weights: swept.map(({ weightsBytes }) => weightsBytes),
    },
    crossing,
    lengths,
    projectionCurve: curves.map(({ projectionFlops }) => projectionFlops),
    attentionCurve: curves.map(({ attentionFlops }) => attentionFlops),
  };
}

/**
 * The powers of two up to 64 that divide, and those that must be there.
 * @param {number} whole
 * @param {number[]} always
 */
function barCounts(whole, always) {
  const powers = Array.from({ length: 7 }, (_, power) => 2 ** power).filter((count) => whole % count === 0);
  return [...new Set([...powers, ...always])].sort((a, b) => a - b);
}

/**
 * @param {readonly number[]} stops
 * @param {number} value
 * @returns {readonly number[]} with the value among them, whatever Python set
 */
function stopsWith(stops, value) {
  return stops.includes(value) ? stops : [...stops, value].sort((a, b) => a - b);
}

/** @param {number} number */
function powerOfThousand(number) {
  const power = number < 1000 ? 0 : Math.min(Math.floor(Math.log10(number) / 3), 6);
  return { scale: 1000 ** power, prefix: ["", "k", "M", "G", "T", "P", "E"][power] };
}

/**
 * Three figures and a prefix: 1.57 M.
 * @param {number} number
 * @param {string} [unit]
 */
function shortAmount(number, unit = "") {
  const { scale, prefix } = powerOfThousand(number);
  const digits = scale === 1 ? 0 : Math.max(0, 2 - Math.floor(Math.log10(number / scale)));
  return `${(number / scale).toFixed(digits)} ${prefix}${unit}`.trim();
}

/** @param {import("./frame.js").Frame} frame */
function build(frame) {
  // The nearest counts that divide; where each head has keys of its own, it stays so.
  const fitHeads = (/** @type {number} */ embedDim, /** @type {number} */ wanted) => {
    const { numHeads, numKvHeads } = readCost(frame);
    const heads = divisorsUpTo(embedDim, Math.min(wanted, COST_MAX_HEADS)).at(-1) ?? 1;
    const most = numHeads === numKvHeads ? heads : numKvHeads;
    return { embed_dim: embedDim, num_heads: heads, num_kv_heads: divisorsUpTo(heads, most).at(-1) };
  };
  const models = menu(frame, "Model", (index) => {
    if (index === 0) return;
    const [embed_dim, num_heads, num_kv_heads, num_layers, length] = COST_MODELS[index - 1].sizes;
    frame.set({ embed_dim, num_heads, num_kv_heads, num_layers, length });
  });
  const width = slider(frame, "embed_dim", (value) => frame.set(fitHeads(value, frame.get("num_heads"))));
  const heads = slider(frame, "num_heads", (value) => frame.set(fitHeads(frame.get("embed_dim"), value)));
  const kvHeads = slider(frame, "num_kv_heads", (value) => frame.set({ num_kv_heads: value }));
  const length = slider(frame, "length", (value) => frame.set({ length: value }));
  const batch = slider(frame, "batch_size", (value) => frame.set({ batch_size: value }));
  const layers = slider(frame, "num_layers", (value) => frame.set({ num_layers: value }));
  const bytes = segments(frame, "Bytes per number", COST_BYTES.map((n) => [String(n), String(n)]), (value) =>
    frame.set({ bytes_per_number: Number(value) }),
  );
  const sweep = segments(
    frame,
    "Bars against",
    [["num_heads", "num_heads"], ["num_kv_heads", "num_kv_heads"]],
    (value) => frame.set({ sweep: value }),
  );
  const sizes = facts(["parameters", "projection_flops", "attention_flops", "cache_bytes", "weights_bytes"]);
  const groups = ["parameters", "flops", "cache", "weights"].map((name) => {
    const verdict = element("span", {});
    const title = element("p", { class: "mha-title" }, COST_NOUNS[/** @type {keyof typeof COST_NOUNS} */ (name)], verdict);
    const list = bars(`${name}_swept`, "muted");
    return { name, verdict, list, node: element("div", {}, title, list.node) };
  });
  const about = element("p", { class: "mha-hint" });
  const growth = element("p", { class: "mha-title" });
  const crossed = element("p", { class: "mha-hint" });
  const graph = plane(frame, { label: "FLOPs against length", xName: "length", yName: "", ticks: [5, 5] });
  const projections = graph.curve("truth", "projection_curve");
  const attention = graph.curve("solid", "attention_curve");
  const points = graph.dots("points");
  const where = element("strong", {});
  frame.body.append(
    element(
      "div",
      { class: "mha-controls" },
      models.node,
      width.node,
      heads.node,
      kvHeads.node,
      length.node,
      batch.node,
      layers.node,
      element("div", { class: "mha-choices" }, sweep.node, bytes.node),
    ),
    sizes.node,
    element("div", { class: "mha-groups" }, ...groups.map(({ node }) => node)),
    about,
    growth,
    graph.node,
    crossed,
  );
  let news = "";

  return () => {
    const state = readCost(frame);
    const { cost, counts, now, swept, crossing, lengths, projectionCurve, attentionCurve } = computeCost(state);
    const { embedDim, numHeads, numKvHeads } = state;
    const headDim = embedDim / numHeads;
    const present = String([embedDim, numHeads, numKvHeads, state.numLayers, state.length]);
    models.draw(
      ["own sizes", ...COST_MODELS.map(({ text }) => text)],
      1 + COST_MODELS.findIndex((model) => String(model.sizes) === present),
    );
    width.draw(embedDim, { stops: stopsWith(COST_WIDTHS, embedDim) });
    heads.draw(numHeads, { stops: divisorsUpTo(embedDim, COST_MAX_HEADS), said: `${numHeads} heads of width ${headDim}` });
    kvHeads.draw(numKvHeads, { stops: divisorsUpTo(numHeads, numHeads) });
    length.draw(state.length, { stops: stopsWith(COST_LENGTHS, state.length) });
    batch.draw(state.batchSize, { stops: stopsWith(COST_BATCHES, state.batchSize) });
    layers.draw(state.numLayers, { low: 1, high: Math.max(128, state.numLayers) });
    bytes.draw(String(state.bytesPerNumber));
    sweep.draw(state.sweep);
    sizes.draw([
      { text: shortAmount(cost.parameters), hint: "four projections, no biases", number: cost.parameters },
      { text: shortAmount(cost.projectionFlops), hint: "2 · parameters · tokens", number: cost.projectionFlops },
      { text: shortAmount(cost.attentionFlops), hint: "4 · embed_dim · length², a layer and sequence", number: cost.attentionFlops },
      { text: shortAmount(cost.cacheBytes, "B"), hint: "keys and values, for decoding", number: cost.cacheBytes },
      { text: shortAmount(cost.weightsBytes, "B"), hint: "attention weights, if stored", number: cost.weightsBytes },
    ]);

    for (const { name, verdict, list } of groups) {
      const amounts = swept[/** @type {keyof typeof swept} */ (name)];
      const unit = name === "cache" || name === "weights" ? "B" : "";
      const high = Math.max(...amounts);
      const changes = Math.min(...amounts) < high;
      verdict.textContent = changes ? `changes with ${state.sweep}` : `the same for every ${state.sweep}`;
      list.node.classList.toggle("mha-changes", changes);
      list.draw(counts.map(String), amounts, { high, format: (amount) => shortAmount(amount, unit), now });
    }
    about.textContent =
      state.sweep === "num_heads"
        ? "Rows: num_heads, each head with keys of its own, the width of the model cut finer and finer."
        : `Rows: num_kv_heads, shared by ${numHeads} query heads.`;

    const high = 1.04 * Math.max(...attentionCurve, ...projectionCurve);
    const { scale, prefix } = powerOfThousand(high);
    growth.textContent = `${prefix}FLOPs against length`;
    graph.draw([0, lengths[COST_CURVE_STEPS]], [0, high / scale]);
    projections.draw(lengths, projectionCurve.map((flops) => flops / scale));
    attention.draw(lengths, attentionCurve.map((flops) => flops / scale));
    markCurve(projections.node, projectionCurve);
    markCurve(attention.node, attentionCurve);
    const atCrossing = attentionCost({ ...state, length: crossing }).attentionFlops / scale;
    points.draw(
      [crossing, state.length, state.length],
      [atCrossing, cost.projectionFlops / scale, cost.attentionFlops / scale],
      (index) => ({ size: index === 0 ? 13 : 8 }),
    );
    where.textContent = String(crossing);
    where.dataset.number = "crossing";
    where.dataset.value = String(crossing);
    const more = cost.attentionFlops / cost.projectionFlops;
    const ratio = more >= 1 ? `${shortRatio(more)} times` : `1/${shortRatio(1 / more)} of`;
    crossed.replaceChildren(
      "Dashed: the projections. Solid: scores and values. Ring: they meet at length ",
      where,
      ` = embed_dim + num_kv_heads · head_dim. Dots: at length ${state.length}, scores and values cost ${ratio} the projections.`,
    );
    graph.describe(`They meet at length ${crossing}.`);

    const told = `${shortAmount(cost.parameters)} parameters, ${shortAmount(cost.projectionFlops + cost.attentionFlops)} FLOPs, cache ${shortAmount(cost.cacheBytes, "bytes")}, attention weights ${shortAmount(cost.weightsBytes, "bytes")}.`;
    if (news && news !== told) frame.say(told);
    news = told;
    frame.report(() => ({
      parameters: cost.parameters,
      projection_flops: cost.projectionFlops,
      attention_flops: cost.attentionFlops,
      weights_bytes: cost.weightsBytes,
      cache_bytes: cost.cacheBytes,
      crossing,
      parameters_swept: swept.parameters,
      flops_swept: swept.flops,
      cache_swept: swept.cache,
      weights_swept: swept.weights,
      projection_curve: projectionCurve,
      attention_curve: attentionCurve,
    }));
  };
}

/**
 * Keeps the FLOPs of a curve, which is drawn in other units.
 * @param {SVGElement} node
 * @param {number[]} flops
 */
function markCurve(node, flops) {
  node.dataset.value = flops.join(" ");
}

/** @param {number} ratio at least 1 */
function shortRatio(ratio) {
  return ratio.toFixed(ratio < 10 ? 1 : 0);
}

/** @param {import("./frame.js").Frame} frame */
function costPython(frame) {
  const state = readCost(frame);
  const { embedDim, numHeads, numKvHeads, length, batchSize, numLayers, bytesPerNumber, sweep } = state;
  const { counts, lengths } = computeCost(state);
  const pair = sweep === "num_heads" ? "n, n" : `${numHeads}, n`;
  return `import torch
from torch.utils.flop_counter import FlopCounterMode

from mha_lib import KeyValueCache, MultiHeadAttention


def cost(num_heads, num_kv_heads, length):
    """All layers: parameters, FLOPs of projections, of scores and values, bytes of weights, of the cache."""
    # On the meta device tensors have shapes and no numbers, so that any size fits.
    with torch.device("meta"), torch.no_grad():
        layer = MultiHeadAttention(${embedDim}, num_heads, num_kv_heads=num_kv_heads)
        x, cache = torch.empty(${batchSize}, length, ${embedDim}), KeyValueCache()
        with FlopCounterMode(display=False) as counter:
            _, weights = layer(x, x, x, cache=cache)
    attention = counter.get_flop_counts()["Global"][torch.ops.aten.bmm]
    amounts = [
        sum(parameter.numel() for parameter in layer.parameters()),
        counter.get_total_flops() - attention,
        attention,
        weights.numel() * ${bytesPerNumber},
        (cache.keys.numel() + cache.values.numel()) * ${bytesPerNumber},
    ]
    return [${numLayers} * amount for amount in amounts]


now = cost(${numHeads}, ${numKvHeads}, ${length})
parameters, projection_flops, attention_flops, weights_bytes, cache_bytes = now
crossing = projection_flops / attention_flops * ${length}

swept = [cost(${pair}, ${length}) for n in ${JSON.stringify(counts).replaceAll(",", ", ")}]
parameters_swept, projections, attention, weights_swept, cache_swept = torch.tensor(
    swept, dtype=torch.float64
).T
flops_swept = projections + attention

by_length = [[0] * 5] + [cost(${numHeads}, ${numKvHeads}, n) for n in range(${lengths[1]}, ${lengths[COST_CURVE_STEPS] + 1}, ${lengths[1]})]
_, projection_curve, attention_curve, _, _ = torch.tensor(by_length, dtype=torch.float64).T
print(f"{parameters:,} parameters, {projection_flops + attention_flops:,} FLOPs, cache {cache_bytes:,} bytes")
`;
}

export default {
  /** @param {{model: import("./frame.js").Model, el: HTMLElement}} view */
  render: (view) =>
    mount(
      view,
      { name: "cost-calculator", label: "Cost calculator", settings: COST_SETTINGS, python: costPython },
      build,
    ),
};
