// Cost, sequential steps and path length: self-attention beside convolutions, plain and dilated, and a recurrence.

import { element, formatNumber, mark, mount } from "./frame.js";
import { checkbox, slider } from "./parts.js";
import { attentionCrossover, convolutionPath, kernelSteps, layerMultiplications, pathLengths } from "./path_math.js";
import { plane } from "./plane.js";

const PATH_SETTINGS = ["n", "d", "k", "source", "target", "with_projections"];
/** @typedef {"attention" | "convolution" | "dilated" | "recurrence"} PathKind */
const PATH_KINDS = /** @type {PathKind[]} */ (["attention", "convolution", "dilated", "recurrence"]);
const PATH_NAMES = {
  attention: "self-attention",
  convolution: "convolution",
  dilated: "dilated convolution",
  recurrence: "recurrent network",
};
const PATH_LENGTHS = Array.from({ length: 11 }, (_, index) => 2 ** (index + 1));
const PATH_MOST = 2048;
const PATH_N = [2, 3, 4, 5, 6, 8, 10, 12, 14, 16, 20, 24, 32, 48, 64, 96, 128, 192, 256, 384, 512, 768, 1024, 1536, 2048];
const PATH_D = [8, 16, 32, 64, 128, 256, 512, 1024];
const PATH_K = [3, 5, 7, 9, 11, 13, 15];
const PATH_SVG = "http://www.w3.org/2000/svg";

/** @param {import("./frame.js").Frame} frame */
function readPath(frame) {
  const n = frame.whole("n", 2, PATH_MOST);
  const k = frame.whole("k", 3, 15);
  if (k % 2 === 0) throw new RangeError(`k must be odd, got ${k}`);
  const target = frame.whole("target", 0, n - 1);
  return {
    n,
    d: frame.whole("d", 1, 1024),
    k,
    source: frame.whole("source", 0, target),
    target,
    withProjections: frame.flag("with_projections"),
  };
}

/** @param {ReturnType<typeof readPath>} state */
function computePath({ n, d, k, source, target, withProjections }) {
  const one = layerMultiplications({ n, d, k, withProjections });
  const multiplications = [one.attention, one.convolution, one.convolution, one.recurrence];
  const ofKinds = (/** @type {Record<PathKind, number>} */ lengths) => PATH_KINDS.map((kind) => lengths[kind]);
  const longest = ofKinds(pathLengths(0, n - 1, k));
  const curves = PATH_LENGTHS.map((length) => layerMultiplications({ n: length, d, k, withProjections }));
  const crossover = attentionCrossover({ d, k, withProjections });
  return {
    multiplications,
    steps: [1, 1, 1, n],
    longest,
    // A stack of convolutions; one layer of the others.
    total: multiplications.map((number, kind) => number * (kind === 1 || kind === 2 ? longest[kind] : 1)),
    path: ofKinds(pathLengths(source, target, k)),
    attention: curves.map((costs) => costs.attention),
    convolution: curves.map((costs) => costs.convolution),
    recurrence: curves.map((costs) => costs.recurrence),
    crossover: [crossover.recurrence, crossover.convolution],
  };
}

/** @param {number} number @returns {string} all digits, in groups of three */
const pathDigits = (number) => String(number).replace(/\B(?=(\d{3})+$)/g, "\u202f");

/** @param {number} number @returns {string} short: 1.57 M */
function pathShort(number) {
  const power = number < 1e4 ? 0 : Math.floor(Math.log10(number) / 3);
  if (power === 0) return pathDigits(number);
  return `${Number((number / 1000 ** power).toPrecision(3))}\u202f${["", "k", "M", "G", "T", "P"][power]}`;
}

/** @param {number} count @param {string} noun */
const pathCount = (count, noun) => `${pathDigits(count)} ${noun}${count === 1 ? "" : "s"}`;

/** The stops of a slider, with the value itself where Python has set another. @param {number[]} stops @param {number} value */
const pathStops = (stops, value) => (stops.includes(value) ? stops : [...stops, value].sort((a, b) => a - b));

/**
 * The wiring of one kind: tokens below, outputs above; what the source has reached, and the way to the target.
 * @param {PathKind} kind
 */
function pathWiring(kind) {
  const svg = document.createElementNS(PATH_SVG, "svg");
  for (const [name, value] of Object.entries({ viewBox: "0 0 100 100", preserveAspectRatio: "none", role: "img" })) {
    svg.setAttribute(name, value);
  }
  const [edges, area, idle, reached, route, inputs, outputs] = [
    "mha-edges", "mha-reach", "mha-idle", "mha-reached", "mha-route", "mha-inputs", "mha-outputs",
  ].map((name) => {
    const path = document.createElementNS(PATH_SVG, "path");
    path.setAttribute("class", name);
    svg.append(path);
    return path;
  });
  const count = element("strong");
  const caption = element("figcaption", {}, `${PATH_NAMES[kind]}: `, count);
  const depthHint = element("span", { class: "mha-hint" });
  const node = element("figure", { class: `mha-wiring mha-path-${kind}` }, caption, element("div", { class: "mha-canvas" }, svg), depthHint);

  /**
   * @param {ReturnType<typeof readPath>} state
   * @param {number} depth layers from the first token to the last
   * @param {number} length steps from source to target
   */
  function draw({ n, k, source, target }, depth, length) {
    const isStack = kind === "convolution" || kind === "dilated";
    const layers = isStack ? depth : 1;
    const stepOf = kernelSteps(k, kind === "dilated");
    const x = (/** @type {number} */ token) => ((100 * (token + 0.5)) / n).toFixed(2);
    const y = (/** @type {number} */ layer) => (94 - (88 * layer) / layers).toFixed(2);
    const line = (/** @type {number} */ token, /** @type {number} */ layer, /** @type {number} */ to, /** @type {number} */ toLayer) =>
      `M${x(token)} ${y(layer)}L${x(to)} ${y(toLayer)}`;
    // First and last token that the source has reached, in each layer.
    const bounds = [[source, source]];
    for (let layer = 0; layer < layers; layer += 1) {
      const [low, high] = bounds[layer];
      const { spacing, most } = stepOf(layer);
      if (kind === "attention") bounds.push([0, n - 1]);
      else if (kind === "recurrence") bounds.push([source, n - 1]);
      else bounds.push([Math.max(0, low - spacing * most), Math.min(n - 1, high + spacing * most)]);
    }

    // Single connections are told apart up to here, single tokens a little longer.
    let wires = "";
    if (n <= 16) {
      for (let layer = 0; layer < layers; layer += 1) {
        const { spacing, most } = stepOf(layer);
        for (let to = 0; to < n; to += 1) {
          if (kind === "recurrence") {
            wires += line(to, 0, to, 1) + (to > 0 ? line(to - 1, 1, to, 1) : "");
          } else if (kind === "attention") {
            for (let from = 0; from < n; from += 1) wires += line(from, 0, to, 1);
          } else {
            for (let step = -most; step <= most; step += 1) {
              const from = to + step * spacing;
              if (from >= 0 && from < n) wires += line(from, layer, to, layer + 1);
            }
          }
        }
      }
    }
    edges.setAttribute("d", wires);
    const up = bounds.map(([low], layer) => `${x(low)} ${y(layer)}`);
    const down = bounds.map(([, high], layer) => `${x(high)} ${y(layer)}`).reverse();
    area.setAttribute("d", kind === "recurrence" ? line(source, 0, source, 1) + line(source, 1, n - 1, 1) : `M${[...up, ...down].join("L")}Z`);

    /** @type {number[][]} token and layer */
    let places;
    if (kind === "recurrence") places = [[source, 0], [source, 1], [target, 1]];
    else if (kind === "attention") places = [[source, 0], [target, 1]];
    else places = convolutionPath(source, target, k, kind === "dilated").map((token, layer) => [token, layer]);
    const corners = places.map(([token, layer]) => `${x(token)} ${y(layer)}`);
    route.setAttribute("d", `M${corners.join("L")}`);

    const isSmall = n <= 24;
    const dots = { idle: "", reached: "", inputs: `M${corners[0]}h0`, outputs: `M${corners[corners.length - 1]}h0` };
    if (isSmall) {
      Object.assign(dots, { inputs: "", outputs: "" });
      for (let layer = 0; layer <= layers; layer += 1) {
        for (let token = 0; token < n; token += 1) {
          const isReached = token >= bounds[layer][0] && token <= bounds[layer][1];
          const row = layer === 0 ? "inputs" : layer === layers ? "outputs" : isReached ? "reached" : "idle";
          dots[row] += `M${x(token)} ${y(layer)}h0`;
        }
      }
    }
    for (const [path, d] of /** @type {const} */ ([[idle, dots.idle], [reached, dots.reached], [inputs, dots.inputs], [outputs, dots.outputs]])) {
      path.setAttribute("d", d);
    }
    svg.style.setProperty("--dot", `${isSmall ? Math.max(2, Math.min(7, 84 / n, 110 / layers)) : 7}px`);

    count.textContent = pathCount(length, "step");
    mark(count, "path", length);
    depthHint.textContent = isStack ? `a stack of ${pathCount(layers, "layer")}` : kind === "attention" ? "1 layer" : `1 layer, ${pathCount(n, "state")}`;
    svg.setAttribute(
      "aria-label",
      `${PATH_NAMES[kind]}: the signal of token ${source} reaches token ${target} in ${pathCount(length, "step")}`,
    );
  }
  return { node, draw };
}

/** The table of the paper, with its numbers. */
function pathTable() {
  const names = /** @type {const} */ (["multiplications", "steps", "longest", "total"]);
  const heads = ["multipli\u00adcations in a layer", "sequential steps in a layer", "longest path", "multipli\u00adcations, first token to last"];
  const rows = PATH_KINDS.map((kind) => {
    const cells = names.map(() => element("td"));
    const swatch = element("i", { class: `mha-swatch mha-path-${kind}` });
    return { cells, node: element("tr", {}, element("th", { scope: "row" }, swatch, PATH_NAMES[kind]), ...cells) };
  });
  const node = element(
    "table",
    { class: "mha-costs", "aria-label": "Cost, sequential steps and longest path of each kind of layer" },
    element("thead", {}, element("tr", {}, element("td"), ...heads.map((text) => element("th", { scope: "col", text })))),
    element("tbody", {}, ...rows.map((row) => row.node)),
  );
  /** @param {ReturnType<typeof computePath>} found */
  function draw(found) {
    rows.forEach(({ cells }, kind) =>
      cells.forEach((cell, column) => {
        const number = found[names[column]][kind];
        cell.textContent = pathShort(number);
        cell.title = pathDigits(number);
        mark(cell, names[column], number);
      }),
    );
  }
  return { node, draw };
}

/** @param {import("./frame.js").Frame} frame */
function pathChart(frame) {
  const raised = (/** @type {number} */ value) => `10${String(value).replace(/\d/g, (digit) => "⁰¹²³⁴⁵⁶⁷⁸⁹"[Number(digit)])}`;
  const chart = plane(frame, {
    label: "Multiplications in a layer against the length, both on logarithmic scales",
    xName: "length n",
    yName: "multiplications in a layer",
    ratio: 1.6,
    ticks: [5, 5],
    texts: [(value) => String(2 ** value), raised],
  });
  const border = chart.curve("border");
  const now = chart.curve("faint");
  const kinds = /** @type {const} */ (["attention", "convolution", "recurrence"]);
  const curves = kinds.map((kind) => ({ kind, curve: chart.curve(`path-${kind}`), dots: chart.dots(`path-${kind}`) }));
  const label = element("span", { class: "mha-border-name", text: "n = d", "aria-hidden": "true" });
  chart.area.append(label);
  const xs = PATH_LENGTHS.map(Math.log2);

  /** @param {ReturnType<typeof readPath>} state @param {ReturnType<typeof computePath>} found */
  function draw({ n, d }, found) {
    const logs = kinds.map((kind) => found[kind].map(Math.log10));
    const low = Math.floor(Math.min(...logs.map((ys) => ys[0])));
    const high = Math.ceil(Math.max(...logs.map((ys) => ys[ys.length - 1])));
    chart.draw([1, 11], [low, high]);
    const isInside = d >= 2;
    border.draw(isInside ? [Math.log2(d), Math.log2(d)] : [], [low, high]);
    label.hidden = !isInside;
    label.style.left = `${10 * (Math.log2(d) - 1)}%`;
    label.classList.toggle("mha-at-end", d > PATH_MOST / 8);
    now.draw([Math.log2(n), Math.log2(n)], [low, high]);
    curves.forEach(({ kind, curve, dots }, index) => {
      curve.draw(xs, logs[index]);
      mark(curve.node, kind, found[kind]);
      const cost = found.multiplications[PATH_KINDS.indexOf(kind)];
      dots.draw([Math.log2(n)], [Math.log10(cost)], () => ({ size: 9 }));
    });
    chart.describe(
      `At n = ${n}: attention ${pathShort(found.multiplications[0])}, convolution ${pathShort(found.multiplications[1])}, ` +
        `recurrence ${pathShort(found.multiplications[3])}`,
    );
  }
  return { node: chart.node, draw };
}

/** @param {import("./frame.js").Frame} frame */
function buildPath(frame) {
  const length = slider(frame, "n tokens", (n) => {
    const wasLast = frame.get("target") === frame.get("n") - 1;
    const target = wasLast ? n - 1 : Math.min(frame.get("target"), n - 1);
    frame.set({ n, target, source: Math.min(frame.get("source"), target) });
  });
  const width = slider(frame, "d width", (d) => frame.set({ d }));
  const kernel = slider(frame, "k kernel", (k) => frame.set({ k }));
  const source = slider(frame, "from token", (value) => frame.set({ source: value, target: Math.max(value, frame.get("target")) }));
  const target = slider(frame, "to token", (value) => frame.set({ target: value, source: Math.min(value, frame.get("source")) }));
  const projections = checkbox(frame, "Count attention's four projections", (checked) => frame.set({ with_projections: checked }));
  const wirings = PATH_KINDS.map(pathWiring);
  const table = pathTable();
  const chart = pathChart(frame);
  const crossings = ["recurrence", "convolution"].map(() => element("strong"));
  const verdict = element(
    "p",
    { class: "mha-verdict" },
    "The rule of thumb is n = d, dotted in the chart. Counted, attention multiplies no more than a recurrence ",
    crossings[0],
    ", and no more than a convolution ",
    crossings[1],
    ".",
  );
  frame.body.append(
    element("div", { class: "mha-controls" }, length.node, width.node, kernel.node, source.node, target.node, projections.node),
    element("div", { class: "mha-wirings" }, ...wirings.map(({ node }) => node)),
    element("p", {
      class: "mha-hint mha-legend",
      text: "Orange: the tokens. Blue: the outputs. Shaded: what the signal has reached. The line: a shortest path.",
    }),
    element("div", { class: "mha-panes" }, element("div", {}, table.node, verdict), chart.node),
  );
  let before = "";

  return () => {
    const state = readPath(frame);
    const found = computePath(state);
    const { n, d, k } = state;
    length.draw(n, { stops: pathStops(PATH_N, n), said: pathCount(n, "token") });
    width.draw(d, { stops: pathStops(PATH_D, d) });
    kernel.draw(k, { stops: PATH_K });
    for (const { node } of [length, width, kernel]) node.querySelector(".mha-ticks").hidden = true;
    source.draw(state.source, { low: 0, high: n - 1 });
    target.draw(state.target, { low: 0, high: n - 1 });
    projections.draw(state.withProjections);
    wirings.forEach(({ draw }, kind) => draw(state, found.longest[kind], found.path[kind]));
    table.draw(found);
    chart.draw(state, found);
    found.crossover.forEach((number, index) => {
      crossings[index].textContent = number > 0 ? `up to n = ${pathDigits(number)}` : "at no length";
      mark(crossings[index], "crossover", number);
    });

    const news =
      `n = ${n}, d = ${d}, k = ${k}. From token ${state.source} to ${state.target}: ` +
      `${PATH_KINDS.map((kind, index) => `${PATH_NAMES[kind]} ${found.path[index]}`).join(", ")} steps. ` +
      `Attention multiplies ${formatNumber(found.multiplications[0] / found.multiplications[3], 2)} times as often as a recurrence.`;
    if (before && before !== news) frame.say(news);
    before = news;
    frame.report(() => found);
  };
}

/** @param {import("./frame.js").Frame} frame */
function pathPython(frame) {
  const { n, d, k, source, target, withProjections } = readPath(frame);
  return `import torch
import torch.nn.functional as F
from torch import nn
from torch.utils.flop_counter import FlopCounterMode

from mha_lib import ${withProjections ? "MultiHeadAttention" : "dot_product_attention"}

n, d, k = ${n}, ${d}, ${k}

# Tensors of the device "meta" have a shape and no numbers, which is all that counting needs.
with torch.device("meta"):
${withProjections ? "    layer = MultiHeadAttention(d, num_heads=1)\n" : ""}    kernel = nn.Conv1d(d, d, k, padding=k // 2, bias=False)
    state = nn.Linear(d, d, bias=False)


def attend(x):
    return ${withProjections ? "layer" : "dot_product_attention"}(x, x, x)[0]


def count(layer, *shape):
    with FlopCounterMode(display=False) as counter, torch.no_grad():
        layer(torch.empty(shape, device="meta"))
    return counter.get_total_flops() // 2


def one_layer(n):
    """Multiplications of attention, convolution and recurrence."""
    return count(attend, 1, n, d), count(kernel, 1, d, n), (n - 1) * count(state, 1, d)


def depth(source, target, is_dilated):
    """Convolutions that a signal goes through from one token to another: sent, not computed."""
    signal, layers = torch.zeros(1, 1, n), 0
    signal[..., source] = 1
    while layers == 0 or signal[..., target] == 0:
        spacing = ((k + 1) // 2) ** layers if is_dilated else 1
        signal = F.conv1d(signal, torch.ones(1, 1, k), padding=spacing * (k // 2), dilation=spacing)
        signal, layers = signal.clamp(max=1), layers + 1
    return layers


def steps_between(source, target):
    """Steps of a signal in attention, convolutions, dilated convolutions, a recurrence."""
    return [1, depth(source, target, False), depth(source, target, True), 1 + target - source]


path = steps_between(${source}, ${target})
longest = steps_between(0, n - 1)
per_attention, per_convolution, per_recurrence = one_layer(n)
multiplications = [per_attention, per_convolution, per_convolution, per_recurrence]
steps = [1, 1, 1, n]
layers = [1, longest[1], longest[2], 1]
total = [count * number for count, number in zip(multiplications, layers)]
attention, convolution, recurrence = zip(*(one_layer(2**i) for i in range(1, 12)))

# The greatest length at which attention multiplies no more than a recurrence, and than a convolution.
lengths = torch.arange(1, (k + 1) * d + 2)
own = 2 * lengths**2 * d${withProjections ? " + 4 * lengths * d**2" : ""}
crossover = [int(((own <= other) * lengths).max()) for other in ((lengths - 1) * d**2, k * lengths * d**2)]

names = ("attention", "convolution", "dilated convolution", "recurrence")
for row in zip(names, multiplications, steps, longest, total):
    print(*row)
`;
}

export default {
  /** @param {{model: import("./frame.js").Model, el: HTMLElement}} view */
  render: (view) =>
    mount(view, { name: "path-explorer", label: "Path explorer", settings: PATH_SETTINGS, python: pathPython }, buildPath),
};
