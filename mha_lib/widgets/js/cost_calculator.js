// What attention costs in parameters, FLOPs and bytes. If each head has its own keys, the number of heads
// changes only the bytes of the attention weights.

import { attentionCost, computeCost, divisorsUpTo } from "./cost_math.js";
import { formatRatio, powerOfThousand, shortAmount } from "./format.js";
import { element, mark, mount } from "./frame.js";
import { bars, facts, menu, segments, slider, stopsWith } from "./parts.js";
import { plane } from "./plane.js";

/** @typedef {import("./frame.js").Frame} Frame */

const WIDTHS = [64, 128, 256, 512, 768, 1024, 2048, 4096, 8192, 12288];
const LENGTHS = Array.from({ length: 14 }, (_, power) => 16 * 2 ** power);
const BATCHES = [1, 2, 4, 8, 16, 32, 64];
const MOST_LAYERS = 128; // the slider's upper end

/** What the bars count, each with its unit. */
const SWEPT = /** @type {const} */ ([
  { name: "parameters", noun: "parameters", unit: "" },
  { name: "flops", noun: "FLOPs", unit: "" },
  { name: "cache", noun: "key/value cache", unit: "B" },
  { name: "weights", noun: "attention weights", unit: "B" },
]);

/** Published sizes: embed_dim, num_heads, num_kv_heads, num_layers and context length. */
const MODELS = [
  { text: "GPT-2 small (Radford et al., 2019)", sizes: [768, 12, 12, 12, 1024] },
  { text: "GPT-3 (Brown et al., 2020)", sizes: [12288, 96, 96, 96, 2048] },
  { text: "Llama 2 7B (Touvron et al., 2023)", sizes: [4096, 32, 32, 32, 4096] },
  { text: "Llama 2 70B (Touvron et al., 2023)", sizes: [8192, 64, 8, 80, 4096] },
  { text: "Mistral 7B (Jiang et al., 2023)", sizes: [4096, 32, 8, 32, 8192] },
];

/** @param {Frame} frame */
function readCost(frame) {
  const embedDim = frame.whole("embed_dim");
  const numHeads = frame.whole("num_heads");
  const numKvHeads = frame.whole("num_kv_heads");
  if (embedDim % numHeads !== 0) throw new RangeError(`num_heads must divide embed_dim=${embedDim}, got ${numHeads}`);
  if (numHeads % numKvHeads !== 0) {
    throw new RangeError(`num_kv_heads must divide num_heads=${numHeads}, got ${numKvHeads}`);
  }
  return {
    embedDim,
    numHeads,
    numKvHeads,
    length: frame.whole("length"),
    batchSize: frame.whole("batch_size"),
    numLayers: frame.whole("num_layers"),
    bytesPerNumber: frame.whole("bytes_per_number"),
    sweep: frame.choice("sweep"),
  };
}

/** @typedef {ReturnType<typeof readCost>} CostState */

/**
 * The largest numbers of heads that divide their widths and do not exceed the wanted ones. If each head has
 * its own keys, this stays so.
 * @param {CostState} state
 * @param {number} embedDim
 * @param {number} wanted heads
 * @param {number} most heads
 */
function fitHeads({ numHeads, numKvHeads }, embedDim, wanted, most) {
  const heads = divisorsUpTo(embedDim, Math.min(wanted, most)).at(-1) ?? 1;
  const mostKv = numHeads === numKvHeads ? heads : numKvHeads;
  return { embed_dim: embedDim, num_heads: heads, num_kv_heads: divisorsUpTo(heads, mostKv).at(-1) };
}

/** @param {Frame} frame */
function costControls(frame) {
  const mostHeads = frame.limits("num_heads").high;
  const bytesOptions = frame.limits("bytes_per_number").options ?? [];
  const sweeps = frame.limits("sweep").options ?? [];
  const fit = (/** @type {number} */ embedDim, /** @type {number} */ heads) =>
    frame.set(fitHeads(readCost(frame), embedDim, heads, mostHeads));
  const models = menu(frame, "Model", (index) => {
    if (index === 0) return;
    const [embed_dim, num_heads, num_kv_heads, num_layers, length] = MODELS[index - 1].sizes;
    frame.set({ embed_dim, num_heads, num_kv_heads, num_layers, length });
  });
  const width = slider(frame, "embed_dim", (value) => fit(value, frame.get("num_heads")));
  const heads = slider(frame, "num_heads", (value) => fit(frame.get("embed_dim"), value));
  const kvHeads = slider(frame, "num_kv_heads", (value) => frame.set({ num_kv_heads: value }));
  const length = slider(frame, "length", (value) => frame.set({ length: value }));
  const batch = slider(frame, "batch_size", (value) => frame.set({ batch_size: value }));
  const layers = slider(frame, "num_layers", (value) => frame.set({ num_layers: value }));
  const bytes = segments(frame, "Bytes per number", bytesOptions.map((n) => [String(n), String(n)]), (value) =>
    frame.set({ bytes_per_number: Number(value) }),
  );
  const sweep = segments(frame, "Bars vary", sweeps.map((name) => [name, name]), (value) =>
    frame.set({ sweep: value }),
  );
  const choices = element("div", { class: "mha-choices" }, sweep.node, bytes.node);
  const sliders = [width, heads, kvHeads, length, batch, layers].map(({ node }) => node);
  const node = element("div", { class: "mha-controls" }, models.node, ...sliders, choices);

  /** @param {CostState} state */
  function draw(state) {
    const { embedDim, numHeads, numKvHeads, numLayers } = state;
    const present = String([embedDim, numHeads, numKvHeads, numLayers, state.length]);
    const index = MODELS.findIndex((model) => String(model.sizes) === present);
    models.draw(["custom sizes", ...MODELS.map(({ text }) => text)], 1 + index);
    width.draw(embedDim, { stops: stopsWith(WIDTHS, embedDim) });
    const said = `${numHeads} heads of width ${embedDim / numHeads}`;
    heads.draw(numHeads, { stops: divisorsUpTo(embedDim, mostHeads), said });
    kvHeads.draw(numKvHeads, { stops: divisorsUpTo(numHeads, numHeads) });
    length.draw(state.length, { stops: stopsWith(LENGTHS, state.length) });
    batch.draw(state.batchSize, { stops: stopsWith(BATCHES, state.batchSize) });
    layers.draw(numLayers, { low: 1, high: Math.max(MOST_LAYERS, numLayers) });
    bytes.draw(String(state.bytesPerNumber));
    sweep.draw(state.sweep);
  }
  return { node, draw };
}

/** The bars: what each number of heads costs. */
function costBars() {
  const groups = SWEPT.map(({ name, noun, unit }) => {
    const verdict = element("span", {});
    const list = bars(`${name}_swept`, "muted");
    const node = element("div", {}, element("p", { class: "mha-title" }, noun, verdict), list.node);
    return { name, unit, verdict, list, node };
  });
  const about = element("p", { class: "mha-hint" });
  const node = element("div", { class: "mha-groups" }, ...groups.map((group) => group.node));

  /**
   * @param {CostState} state
   * @param {ReturnType<typeof computeCost>} computed
   */
  function draw({ sweep, numHeads }, { swept, counts, now }) {
    for (const { name, unit, verdict, list } of groups) {
      const amounts = swept[name];
      const high = Math.max(...amounts);
      const changes = Math.min(...amounts) < high;
      verdict.textContent = changes ? `changes with ${sweep}` : `the same for every ${sweep}`;
      list.node.classList.toggle("mha-changes", changes);
      list.draw(counts.map(String), amounts, { high, format: (amount) => shortAmount(amount, unit), now });
    }
    about.textContent =
      sweep === "num_heads"
        ? "One row for each num_heads. Each head has its own keys; the more heads, the narrower each one is."
        : `One row for each num_kv_heads: the key/value heads that ${numHeads} query heads share.`;
  }
  return { nodes: [node, about], draw };
}

/**
 * Plots FLOPs against length.
 * @param {Frame} frame
 */
function costCurves(frame) {
  const growth = element("p", { class: "mha-title" });
  const crossed = element("p", { class: "mha-hint" });
  const graph = plane(frame, { label: "FLOPs against length", xName: "length", yName: "", ticks: [5, 5] });
  const projections = graph.curve("truth", "projection_curve");
  const attention = graph.curve("solid", "attention_curve");
  const points = graph.dots("points");
  const where = element("strong", {});

  /**
   * @param {CostState} state
   * @param {ReturnType<typeof computeCost>} computed
   */
  function draw(state, { cost, crossing, lengths, projectionCurve, attentionCurve }) {
    const high = 1.04 * Math.max(...attentionCurve, ...projectionCurve);
    const { scale, prefix } = powerOfThousand(high);
    growth.textContent = `${prefix}FLOPs against length`;
    graph.draw([0, lengths[lengths.length - 1]], [0, high / scale]);
    projections.draw(lengths, projectionCurve.map((flops) => flops / scale));
    attention.draw(lengths, attentionCurve.map((flops) => flops / scale));
    // The curves are drawn in larger units; the page stores the FLOPs themselves.
    mark(projections.node, "projection_curve", projectionCurve);
    mark(attention.node, "attention_curve", attentionCurve);
    const atCrossing = attentionCost({ ...state, length: crossing }).attentionFlops;
    points.draw(
      [crossing, state.length, state.length],
      [atCrossing, cost.projectionFlops, cost.attentionFlops].map((flops) => flops / scale),
      (index) => ({ size: index === 0 ? 13 : 8 }),
    );
    where.textContent = String(crossing);
    mark(where, "crossing", crossing);
    const ratio = formatRatio(cost.attentionFlops / cost.projectionFlops);
    crossed.replaceChildren(
      "Dashed: the projections. Solid: scores and values. Ring: the curves meet at length ",
      where,
      ` = embed_dim + num_kv_heads · head_dim. Dots: at length ${state.length}, ` +
        `scores and values cost ${ratio} what the projections cost.`,
    );
    graph.describe(`The curves meet at length ${crossing}.`);
  }
  return { nodes: [growth, graph.node, crossed], draw };
}

/** @param {Frame} frame */
function build(frame) {
  const controls = costControls(frame);
  const sizes = facts(["parameters", "projection_flops", "attention_flops", "cache_bytes", "weights_bytes"]);
  const groups = costBars();
  const curves = costCurves(frame);
  frame.body.append(controls.node, sizes.node, ...groups.nodes, ...curves.nodes);
  let news = "";

  return () => {
    const state = readCost(frame);
    const computed = computeCost(state);
    const { cost, swept, crossing } = computed;
    controls.draw(state);
    sizes.draw([
      { text: shortAmount(cost.parameters), hint: "four projections, no biases", number: cost.parameters },
      { text: shortAmount(cost.projectionFlops), hint: "2 · parameters · tokens", number: cost.projectionFlops },
      {
        text: shortAmount(cost.attentionFlops),
        hint: "4 · embed_dim · length², per layer and sequence",
        number: cost.attentionFlops,
      },
      { text: shortAmount(cost.cacheBytes, "B"), hint: "keys and values, for decoding", number: cost.cacheBytes },
      { text: shortAmount(cost.weightsBytes, "B"), hint: "attention weights, if stored", number: cost.weightsBytes },
    ]);
    groups.draw(state, computed);
    curves.draw(state, computed);

    const flops = shortAmount(cost.projectionFlops + cost.attentionFlops);
    const [cache, weights] = [cost.cacheBytes, cost.weightsBytes].map((bytes) => shortAmount(bytes, "B"));
    const told = `${shortAmount(cost.parameters)} parameters, ${flops} FLOPs, cache ${cache}, attention weights ${weights}.`;
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
      projection_curve: computed.projectionCurve,
      attention_curve: computed.attentionCurve,
    }));
  };
}

/** @param {Frame} frame */
function costPython(frame) {
  const state = readCost(frame);
  const { embedDim, numHeads, numKvHeads, length, batchSize, numLayers, bytesPerNumber, sweep } = state;
  const { counts, lengths } = computeCost(state);
  const pair = sweep === "num_heads" ? "n, n" : `${numHeads}, n`;
  return `import torch
from torch.utils.flop_counter import FlopCounterMode

from mha_lib import KeyValueCache, MultiHeadAttention


def cost(num_heads, num_kv_heads, length):
    """For all layers: parameters, FLOPs of projections, of scores and values, bytes of weights and cache."""
    # On the meta device, tensors have shapes but no numbers, so any size fits.
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

by_length = [[0] * 5] + [cost(${numHeads}, ${numKvHeads}, n) for n in range(${lengths[1]}, ${lengths[lengths.length - 1] + 1}, ${lengths[1]})]
_, projection_curve, attention_curve, _, _ = torch.tensor(by_length, dtype=torch.float64).T
print(f"{parameters:,} parameters, {projection_flops + attention_flops:,} FLOPs, cache {cache_bytes:,} bytes")
`;
}

export default {
  /** @param {{model: import("./frame.js").Model, el: HTMLElement}} view */
  render: (view) =>
    mount(view, { name: "cost-calculator", label: "Cost calculator", python: costPython }, build),
};
