// How many users fit in memory: model, scores and caches as one bar, which fills while the reader drags the length.
// The cost of the number of heads in parameters, FLOPs and bytes is folded away below.

import { attentionCost, computeCost, divisorsUpTo } from "./cost_math.js";
import { countOf, formatRatio, groupDigits, powerOfThousand, shortAmount } from "../shared/format.js";
import { element, mark, svgElement, widget } from "../shared/frame.js";
import { bars, checkbox, facts, menu, segments, slider, stopsWith } from "../shared/parts.js";
import { plane } from "../shared/plane.js";

/** @typedef {import("../shared/frame.js").Frame} Frame */

const WIDTHS = [64, 128, 256, 512, 768, 1024, 2048, 4096, 8192, 12288];
const LENGTHS = Array.from({ length: 25 }, (_, step) => 256 * 2 ** (step >> 1) * (step % 2 ? 1.5 : 1));
const BATCHES = [1, 2, 4, 8, 16, 32, 64];
const MEMORIES = [8, 16, 24, 40, 80, 141, 192, 320, 640];
const MOST_LAYERS = 128; // the slider's upper end
const DRAWN = 120; // percent of the memory that the bar shows; anything beyond 100 does not fit
const MOST_WALLS = 200; // users between whom the bar draws a wall; with more users, the walls would touch

/** The quantities that the bars show, each with its unit. */
const SWEPT = /** @type {const} */ ([
  { name: "parameters", noun: "parameters", unit: "" },
  { name: "flops", noun: "FLOPs", unit: "" },
  { name: "cache", noun: "key/value cache", unit: "B" },
  { name: "weights", noun: "attention weights", unit: "B" },
]);

/** Published sizes: embed_dim, num_heads, num_kv_heads, num_layers, and millions of other parameters. */
const MODELS = [
  { text: "GPT-2 small (Radford et al., 2019)", sizes: [768, 12, 12, 12, 96] },
  { text: "GPT-3 (Brown et al., 2020)", sizes: [12288, 96, 96, 96, 116622] },
  { text: "Llama 2 7B (Touvron et al., 2023)", sizes: [4096, 32, 32, 32, 4591] },
  { text: "Llama 2 70B (Touvron et al., 2023)", sizes: [8192, 64, 8, 80, 56897] },
  { text: "Mistral 7B (Jiang et al., 2023)", sizes: [4096, 32, 8, 32, 5900] },
];
const OTHERS = MODELS.map(({ sizes }) => sizes[4]).sort((a, b) => a - b);

/**
 * @typedef {import("./cost_math.js").AttentionSizes & {numLayers: number, otherMillions: number, memoryGb: number,
 *   scoreTable: boolean, sweep: string}} CostState
 */

/**
 * The largest numbers of heads that divide their widths and do not exceed the wanted ones. If each head has its
 * own keys, it keeps them.
 * @param {CostState} state @param {number} embedDim @param {number} wanted heads
 * @param {number} most heads
 */
function fitHeads({ numHeads, numKvHeads }, embedDim, wanted, most) {
  const heads = divisorsUpTo(embedDim, Math.min(wanted, most)).at(-1) ?? 1;
  const mostKv = numHeads === numKvHeads ? heads : numKvHeads;
  return { embed_dim: embedDim, num_heads: heads, num_kv_heads: divisorsUpTo(heads, mostKv).at(-1) };
}

/**
 * How many heads share keys and values, in the usual words.
 * @param {CostState} state @returns {[string, string]} short and long
 */
function nameOfSharing({ numHeads, numKvHeads }) {
  if (numKvHeads === numHeads) return ["MHA", "multi-head attention"];
  if (numKvHeads === 1) return ["MQA", "multi-query attention"];
  return ["GQA", "grouped-query attention"];
}

/**
 * The controls in view: the model, the length, and how many heads share keys and values.
 * @param {Frame} frame
 */
function mainControls(frame) {
  const models = menu(frame, "Sizes of", (index) => {
    if (index === 0) return;
    const [embed_dim, num_heads, num_kv_heads, num_layers, other_millions] = MODELS[index - 1].sizes;
    frame.set({ embed_dim, num_heads, num_kv_heads, num_layers, other_millions });
  });
  const table = checkbox(frame, "Store the table of scores", "score_table");
  const length = slider(frame, "length", "length", (value) => {
    const tokens = groupDigits(value);
    return { stops: stopsWith(LENGTHS, value), text: tokens, said: `${tokens} tokens` };
  });
  const kvHeads = slider(frame, "num_kv_heads", (value) => frame.set({ num_kv_heads: value }));
  const first = element("div", { class: "mha-sizes" }, models.node, table.node);
  const node = element("div", {}, first, element("div", { class: "mha-controls mha-main" }, length.node, kvHeads.node));

  /** @param {CostState} state */
  function draw(state) {
    const { embedDim, numHeads, numKvHeads, numLayers, otherMillions } = state;
    const present = String([embedDim, numHeads, numLayers, otherMillions]);
    const index = MODELS.findIndex(({ sizes: [width, heads, , ...rest] }) => String([width, heads, ...rest]) === present);
    models.draw(["custom sizes", ...MODELS.map(({ text }) => text)], 1 + index);
    // From left to right, more and more heads share: from one key head for each head to one for all.
    const [short, long] = nameOfSharing(state);
    const stops = divisorsUpTo(numHeads, numHeads).reverse();
    kvHeads.draw(numKvHeads, { stops, text: `${numKvHeads} · ${short}`, said: `${numKvHeads}, ${long}` });
  }
  return { node, draw };
}

/** A foldable part: a summary and its contents. @param {string} text @param {...Node} contents */
function fold(text, ...contents) {
  return element("details", { class: "mha-fold" }, element("summary", { text }), element("div", {}, ...contents));
}

/** The sizes that a reader seldom changes. @param {Frame} frame @param {ReturnType<typeof headFitter>} fit */
function otherSizes(frame, fit) {
  const width = slider(frame, "embed_dim", (value) => fit(value, frame.get("num_heads")));
  const layers = slider(frame, "num_layers", "num_layers", (value) => ({ low: 1, high: Math.max(MOST_LAYERS, value) }));
  const others = slider(frame, "other_millions", "other_millions", (value) => ({
    stops: stopsWith(OTHERS, value),
    said: `${value} million parameters outside the attention layers`,
  }));
  const memory = slider(frame, "memory_gb", "memory_gb", (value) => ({ stops: stopsWith(MEMORIES, value), said: `${value} GB` }));
  const sizes = frame.limits("bytes_per_number").options ?? [];
  const bytes = segments(frame, "Bytes per number", sizes.map((size) => [size, String(size)]), "bytes_per_number");
  const sliders = [width, layers, others, memory].map(({ node }) => node);
  const controls = element("div", { class: "mha-controls" }, ...sliders, bytes.node);

  /** @param {CostState} state */
  function draw(state) {
    width.draw(state.embedDim, { stops: stopsWith(WIDTHS, state.embedDim) });
  }
  return { node: fold("Other sizes", controls), draw };
}

/**
 * Returns a function that sets the width and the nearest numbers of heads that divide it.
 * @param {Frame} frame
 */
function headFitter(frame) {
  const mostHeads = frame.limits("num_heads").high;
  return (/** @type {number} */ embedDim, /** @type {number} */ heads) =>
    frame.set(fitHeads(frame.read(), embedDim, heads, mostHeads));
}

/** Query heads in a row, and below them the heads of keys and values, each joined to those that share it. */
function sharingPicture() {
  const svg = svgElement("svg", { role: "img", preserveAspectRatio: "none" });
  const [links, queries, keys, values] = ["links", "queries", "keys", "values"].map((name) =>
    svgElement("path", { class: `mha-${name}` }),
  );
  svg.append(links, queries, keys, values);
  const caption = element("p", { class: "mha-hint" });
  const node = element("div", { class: "mha-sharing" }, svg, caption);
  let drawn = "";

  /** @param {CostState} state */
  function draw(state) {
    const { numHeads, numKvHeads } = state;
    const key = `${numHeads} ${numKvHeads}`;
    if (key === drawn) return;
    drawn = key;
    const group = numHeads / numKvHeads;
    const heads = Array.from({ length: numHeads }, (_, head) => head + 0.5);
    const kvHeads = Array.from({ length: numKvHeads }, (_, head) => group * (head + 0.5));
    const boxes = (/** @type {number[]} */ places, /** @type {number} */ top, /** @type {number} */ height) =>
      places.map((x) => `M${x - 0.36} ${top}h.72v${height}h-.72z`).join("");
    svg.setAttribute("viewBox", `0 0 ${numHeads} 12`);
    links.setAttribute("d", heads.map((x) => `M${x} 4L${kvHeads[Math.floor(x / group)]} 8`).join(""));
    queries.setAttribute("d", boxes(heads, 0, 4));
    keys.setAttribute("d", boxes(kvHeads, 8, 2));
    values.setAttribute("d", boxes(kvHeads, 10, 2));
    const [queryHeads, shared] = [countOf(numHeads, "1 query head", "# query heads"), countOf(numKvHeads, "1 head", "# heads")];
    const text = `${queryHeads} (top), ${shared} of keys (middle) and values (bottom)`;
    svg.setAttribute("aria-label", text);
    caption.textContent = `${text}: ${nameOfSharing(state)[1]}.`;
  }
  return { node, draw };
}

/** @typedef {ReturnType<typeof computeCost>["memory"]} Memory */

/** The memory as one bar: the model, the scores, and the cache of each user that fits. */
function memoryBar() {
  const svg = svgElement("svg", { viewBox: `0 0 ${DRAWN} 2`, preserveAspectRatio: "none", role: "img" });
  const rect = (/** @type {string} */ name, y = 0, height = 2) => {
    const node = svgElement("rect", { class: `mha-${name}`, y, height, x: 0, width: 0 });
    svg.append(node);
    return (/** @type {number} */ from, /** @type {number} */ to) => {
      const ends = [from, to].map((place) => Math.min(place, DRAWN));
      node.setAttribute("x", String(ends[0]));
      node.setAttribute("width", String(ends[1] - ends[0]));
    };
  };
  const [model, scores, keys, values] = [rect("model"), rect("scores"), rect("keys", 0, 1), rect("values", 1, 1)];
  const walls = svgElement("path", { class: "mha-walls" });
  const over = rect("over");
  const limit = svgElement("path", { class: "mha-limit", d: "M100 0V2" });
  svg.append(walls, limit);
  const ticks = element("div", { class: "mha-memory-ticks", "aria-hidden": "true" });
  const more = element("span", { class: "mha-more", "aria-hidden": "true" });
  const node = element("div", { class: "mha-memory" }, svg, more, ticks);

  /** @param {Memory} memory */
  function draw({ modelBytes, scoresBytes, userBytes, memoryBytes, users }) {
    const percent = (/** @type {number} */ bytes) => (100 * bytes) / memoryBytes;
    // A user who does not fit is drawn too, so that the part beyond the line shows how much is missing.
    const shown = Math.max(users, 1);
    const [one, two] = [percent(modelBytes), percent(modelBytes + scoresBytes)];
    const end = two + percent(shown * userBytes);
    model(0, one);
    scores(one, two);
    keys(two, end);
    values(two, end);
    over(Math.min(100, end), end);
    const places = Array.from({ length: shown <= MOST_WALLS ? shown : 0 }, (_, user) => two + percent(user * userBytes));
    walls.setAttribute("d", places.filter((place) => place <= DRAWN).map((place) => `M${place} 0V2`).join(""));
    more.textContent = end > DRAWN ? `${shortAmount(modelBytes + scoresBytes + userBytes, "B")} →` : "";
    const written = [0, 25, 50, 75, 100].map((place) => {
      const tick = element("span", { text: place ? shortAmount((memoryBytes * place) / 100, "B") : "0" });
      tick.style.left = `${(100 * place) / DRAWN}%`;
      return tick;
    });
    ticks.replaceChildren(...written);
    const full = Math.round(Math.min(percent(modelBytes + scoresBytes + users * userBytes), 999));
    const who = countOf(users, "1 user", "# users");
    svg.setAttribute("aria-label", `The memory with ${who}: ${full} percent full`);
  }
  return { node, draw };
}

/** The legend of the bar: each part in bytes and as a product. */
function memoryLegend() {
  const parts = /** @type {const} */ (["model", "scores", "user"]);
  const nouns = { model: "model", scores: "scores", user: "cache per user" };
  const entries = parts.map((name) => {
    const [amount, product] = [element("strong"), element("span", { class: "mha-hint" })];
    const node = element("p", { class: `mha-part mha-of-${name}` }, element("i"), element("span", {}, `${nouns[name]} `, amount), product);
    return { name, node, amount, product };
  });
  const node = element("div", { class: "mha-parts" }, ...entries.map((entry) => entry.node));

  /** @param {CostState} state @param {Memory} memory */
  function draw(state, memory) {
    const { numHeads, numKvHeads, numLayers, embedDim, length, bytesPerNumber } = state;
    const tokens = groupDigits(length);
    const layers = countOf(numLayers, "1 layer", "# layers");
    const [heads, shared] = [numHeads, numKvHeads].map((count) => countOf(count, "1 head", "# heads"));
    const products = {
      model: `${countInWords(memory.allParameters)} parameters · ${bytesPerNumber} B`,
      scores: state.scoreTable ? `1 layer · ${heads} · ${tokens}² · ${bytesPerNumber} B` : "computed in pieces, never a table",
      user: `2 · ${layers} · ${shared} · ${embedDim / numHeads} wide · ${tokens} tokens · ${bytesPerNumber} B`,
    };
    for (const { name, amount, product } of entries) {
      const bytes = memory[`${name}Bytes`];
      amount.textContent = shortAmount(bytes, "B");
      mark(amount, `${name}_bytes`, bytes);
      product.textContent = products[name];
    }
  }
  return { node, draw };
}

/** A count as papers write it: 6.74 billion. @param {number} count */
function countInWords(count) {
  if (count < 1e6) return groupDigits(count);
  const shown = Number((count / (count < 1e9 ? 1e6 : 1e9)).toPrecision(3));
  return count < 1e9 ? `${shown} million` : `${shown} billion`;
}

/** The question and its answer. */
function memoryQuestion() {
  const size = element("span");
  const question = element("p", { class: "mha-question" }, "How many users fit in ", size, "?");
  const hint = element("p", {
    class: "mha-hint",
    text: "Predict before you drag: how many users remain if each has twice as many tokens? How many fit if all heads share one head of keys and values? (1 GB is 10⁹ bytes.)",
  });
  const users = element("strong", { class: "mha-users" });
  const why = element("span", { class: "mha-hint" });
  const answer = element("p", { class: "mha-answer" }, users, why);

  /** @param {CostState} state @param {Memory} memory */
  function draw(state, { users: count, modelBytes, room, userBytes, memoryBytes }) {
    size.textContent = shortAmount(memoryBytes, "B");
    users.textContent = countOf(count, "1 user", "# users");
    mark(users, "users", count);
    const bytes = (/** @type {number} */ number) => shortAmount(number, "B");
    const tokens = groupDigits(state.length);
    if (count > 0) why.textContent = `of ${tokens} tokens each; ${bytes(room - count * userBytes)} left`;
    else if (modelBytes > memoryBytes) why.textContent = "The model alone does not fit.";
    else if (room < 0) why.textContent = "The scores alone need more than is left.";
    else why.textContent = `One cache needs ${bytes(userBytes)}; ${bytes(room)} left.`;
  }
  return { nodes: [question, hint], answer, draw };
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

  /** @param {CostState} state @param {ReturnType<typeof computeCost>} computed */
  function draw({ sweep, numHeads, numKvHeads }, { swept, counts, now }) {
    // In these rows, no heads share keys; if the reader's heads do, no row is marked as the reader's layer.
    const own = sweep === "num_heads" && numKvHeads !== numHeads ? -1 : now;
    for (const { name, unit, verdict, list } of groups) {
      const amounts = swept[name];
      const high = Math.max(...amounts);
      const changes = Math.min(...amounts) < high;
      verdict.textContent = changes ? `changes with ${sweep}` : `the same for every ${sweep}`;
      list.node.classList.toggle("mha-changes", changes);
      list.draw(counts.map(String), amounts, { high, format: (amount) => shortAmount(amount, unit), now: own });
    }
    about.textContent =
      sweep === "num_heads"
        ? "One row for each num_heads, without sharing: each head has its own keys and values, and the more heads there are, the narrower each one is."
        : `One row for each num_kv_heads: the key/value heads that ${numHeads} query heads share.`;
  }
  return { nodes: [node, about], draw };
}

/** Plots FLOPs against length. @param {Frame} frame */
function costCurves(frame) {
  const growth = element("p", { class: "mha-title" });
  const crossed = element("p", { class: "mha-hint" });
  const graph = plane(frame, { label: "FLOPs against length", xName: "length", yName: "", ticks: [5, 5] });
  const projections = graph.curve("truth", "projection_curve");
  const attention = graph.curve("solid", "attention_curve");
  const points = graph.dots("points");
  const where = element("strong", {});

  /** @param {CostState} state @param {ReturnType<typeof computeCost>} computed */
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

/**
 * The cost of one forward pass, and the parts of it that depend on the number of heads.
 * @param {Frame} frame @param {ReturnType<typeof headFitter>} fit
 */
function passCosts(frame, fit) {
  const mostHeads = frame.limits("num_heads").high;
  const sweeps = frame.limits("sweep").options ?? [];
  const heads = slider(frame, "num_heads", (value) => fit(frame.get("embed_dim"), value));
  const batch = slider(frame, "batch_size", "batch_size", (value) => ({ stops: stopsWith(BATCHES, value) }));
  const sweep = segments(frame, "Bars vary", sweeps.map((name) => [name, name]), "sweep");
  const controls = element("div", { class: "mha-controls" }, heads.node, batch.node, sweep.node);
  const sizes = facts(["parameters", "projection_flops", "attention_flops", "cache_bytes", "weights_bytes"]);
  const groups = costBars();
  const curves = costCurves(frame);
  const node = fold("One forward pass: what does num_heads change?", controls, sizes.node, ...groups.nodes, ...curves.nodes);

  /** @param {CostState} state @param {ReturnType<typeof computeCost>} computed */
  function draw(state, computed) {
    const { cost } = computed;
    const said = `${state.numHeads} heads of width ${state.embedDim / state.numHeads}`;
    heads.draw(state.numHeads, { stops: divisorsUpTo(state.embedDim, mostHeads), said });
    sizes.draw([
      { text: shortAmount(cost.parameters), hint: "four projections, no biases", number: cost.parameters },
      { text: shortAmount(cost.projectionFlops), hint: "2 · parameters · tokens", number: cost.projectionFlops },
      {
        text: shortAmount(cost.attentionFlops),
        hint: "4 · embed_dim · length², per layer and sequence",
        number: cost.attentionFlops,
      },
      { text: shortAmount(cost.cacheBytes, "B"), hint: "keys and values, for decoding", number: cost.cacheBytes },
      { text: shortAmount(cost.weightsBytes, "B"), hint: "weights, if all are stored", number: cost.weightsBytes },
    ]);
    groups.draw(state, computed);
    curves.draw(state, computed);
  }
  return { node, draw };
}

/** @param {Frame} frame */
function build(frame) {
  const fit = headFitter(frame);
  const question = memoryQuestion();
  const controls = mainControls(frame);
  const picture = sharingPicture();
  const bar = memoryBar();
  const legend = memoryLegend();
  const sizes = otherSizes(frame, fit);
  const pass = passCosts(frame, fit);
  frame.body.append(...question.nodes, controls.node, picture.node, question.answer, bar.node, legend.node);
  frame.body.append(sizes.node, pass.node);

  return () => {
    const state = frame.read();
    const computed = computeCost(state);
    const { cost, swept, crossing, memory } = computed;
    for (const part of [controls, picture, sizes]) part.draw(state);
    for (const part of [question, legend]) part.draw(state, memory);
    bar.draw(memory);
    pass.draw(state, computed);

    const [model, scores, cache] = [memory.modelBytes, memory.scoresBytes, memory.userBytes].map((bytes) => shortAmount(bytes, "B"));
    const flops = shortAmount(cost.projectionFlops + cost.attentionFlops);
    const who = countOf(memory.users, "1 user", "# users");
    const told =
      `${who}: model ${model}, scores ${scores}, cache ${cache} per user. ` +
      `Attention layers: ${shortAmount(cost.parameters)} parameters, ${flops} FLOPs.`;
    frame.tell(told);
    frame.report(() => ({
      model_bytes: memory.modelBytes,
      scores_bytes: memory.scoresBytes,
      user_bytes: memory.userBytes,
      users: memory.users,
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

export default widget({ name: "cost-calculator", label: "Cost calculator" }, build);
