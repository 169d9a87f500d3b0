// Compares self-attention with plain and dilated convolutions and a recurrence: cost, steps, path length.

import { countOf, formatNumber, groupDigits, shortAmount } from "../shared/format.js";
import { element, mark, svgElement, widget } from "../shared/frame.js";
import { checkbox, slider, stopsWith } from "../shared/parts.js";
import { computePath, connections, PATH_KINDS, PATH_LENGTHS, reachOfSignal, routeOfSignal } from "./path_math.js";
import { plane } from "../shared/plane.js";

/** @typedef {import("../shared/frame.js").Frame} Frame */
/** @typedef {import("./path_math.js").PathState} PathState */
/** @typedef {import("./path_math.js").PathKind} PathKind */

const PATH_NAMES = {
  attention: "self\u2011attention", // with a no-break hyphen
  convolution: `convolution`,
  dilated: "dilated convolution",
  recurrence: "recurrent network",
};
const MOST_WITH_WIRES = 16; // tokens; with more, individual connections cannot be told apart
const MOST_WITH_DOTS = 24; // tokens; with more, individual tokens cannot be told apart
const STOPS_N = [2, 3, 4, 5, 6, 8, 10, 12, 14, 16, 20, 24, 32, 48, 64, 96, 128, 192, 256, 384, 512, 768, 1024, 1536, 2048];
const STOPS_D = [8, 16, 32, 64, 128, 256, 512, 1024];
const STOPS_K = [3, 5, 7, 9, 11, 13, 15];

/**
 * The point of a token in a layer of a wiring, which is drawn 100 units wide and 100 units high.
 * @param {number} n @param {number} layers
 */
const wiringScale = (n, layers) => (/** @type {number} */ token, /** @type {number} */ layer) =>
  `${((100 * (token + 0.5)) / n).toFixed(2)} ${(94 - (88 * layer) / layers).toFixed(2)}`;

/**
 * The dots of the tokens, grouped by their style. Each dot is a line of length zero, whose round ends make it
 * visible. If there are too many tokens, only the two ends of the route have dots.
 * @param {number} n
 * @param {number[][]} bounds first and last token that the signal has reached, for each layer
 * @param {(token: number, layer: number) => string} at @param {string[]} corners of the route
 */
function wiringDots(n, bounds, at, corners) {
  const dots = { idle: "", reached: "", inputs: `M${corners[0]}h0`, outputs: `M${corners[corners.length - 1]}h0` };
  if (n > MOST_WITH_DOTS) return dots;
  Object.assign(dots, { inputs: "", outputs: "" });
  bounds.forEach(([low, high], layer) => {
    for (let token = 0; token < n; token += 1) {
      const inner = token >= low && token <= high ? "reached" : "idle";
      dots[layer === 0 ? "inputs" : layer === bounds.length - 1 ? "outputs" : inner] += `M${at(token, layer)}h0`;
    }
  });
  return dots;
}

/**
 * The wiring of one kind of layer, tokens below and outputs above: what the signal has reached and its path
 * to the target.
 * @param {PathKind} kind
 */
function pathWiring(kind) {
  const svg = svgElement("svg", { viewBox: "0 0 100 100", preserveAspectRatio: "none", role: "img" });
  const [edges, area, idle, reached, route, inputs, outputs] = [
    "mha-edges", "mha-reach", "mha-idle", "mha-reached", "mha-route", "mha-inputs", "mha-outputs",
  ].map((name) => svgElement("path", { class: name }));
  svg.append(edges, area, idle, reached, route, inputs, outputs);
  const count = element("strong");
  const caption = element("figcaption", {}, `${PATH_NAMES[kind]}: `, count);
  const depthHint = element("span", { class: "mha-hint" });
  const canvas = element("div", { class: "mha-canvas" }, svg);
  const node = element("figure", { class: `mha-wiring mha-path-${kind}` }, caption, canvas, depthHint);

  /**
   * @param {PathState} state @param {number} depth layers from the first token to the last
   * @param {number} length steps from source to target
   */
  function draw(state, depth, length) {
    const { n, source, target } = state;
    const isStack = kind === "convolution" || kind === "dilated";
    const layers = isStack ? depth : 1;
    const at = wiringScale(n, layers);
    const line = (/** @type {number[]} */ [token, layer, to, toLayer]) => `M${at(token, layer)}L${at(to, toLayer)}`;
    edges.setAttribute("d", n <= MOST_WITH_WIRES ? connections(kind, state, layers).map(line).join("") : "");

    const bounds = reachOfSignal(kind, state, layers);
    const up = bounds.map(([low], layer) => at(low, layer));
    const down = bounds.map(([, high], layer) => at(high, layer)).reverse();
    const states = line([source, 0, source, 1]) + line([source, 1, n - 1, 1]);
    area.setAttribute("d", kind === "recurrence" ? states : `M${[...up, ...down].join("L")}Z`);

    const corners = routeOfSignal(kind, state).map(([token, layer]) => at(token, layer));
    route.setAttribute("d", `M${corners.join("L")}`);
    const dots = wiringDots(n, bounds, at, corners);
    idle.setAttribute("d", dots.idle);
    reached.setAttribute("d", dots.reached);
    inputs.setAttribute("d", dots.inputs);
    outputs.setAttribute("d", dots.outputs);
    const size = n > MOST_WITH_DOTS ? 7 : Math.max(2, Math.min(7, 84 / n, 110 / layers));
    svg.style.setProperty("--dot", `${size}px`);

    const steps = countOf(length, "1 step", "# steps");
    count.textContent = steps;
    mark(count, "path", length);
    depthHint.textContent = {
      attention: "1 layer",
      recurrence: countOf(n, "1 layer, 1 state", "1 layer, # states"),
      convolution: countOf(layers, "a stack of 1 layer", "a stack of # layers"),
      dilated: countOf(layers, "a stack of 1 layer", "a stack of # layers"),
    }[kind];
    svg.setAttribute("aria-label", `${PATH_NAMES[kind]}: the signal of token ${source} reaches token ${target} in ${steps}`);
  }
  return { node, draw };
}

/** The comparison table of "Attention Is All You Need", with numbers. */
function pathTable() {
  const names = /** @type {const} */ (["multiplications", "steps", "longest", "total"]);
  const heads = [
    "work per layer",
    "steps per layer",
    "longest path",
    "work, first to last",
  ];
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
  // The columns have short headings, because a long one would break on a phone.
  const meaning = element("p", {
    class: "mha-hint mha-meaning",
    text:
      "Work: multiplications. Steps: those that must wait for one another. " +
      "First to last: in as many layers as the last token needs to depend on the first.",
  });
  /** @param {ReturnType<typeof computePath>} found */
  function draw(found) {
    rows.forEach(({ cells }, kind) =>
      cells.forEach((cell, column) => {
        const number = found[names[column]][kind];
        cell.textContent = shortAmount(number);
        cell.title = groupDigits(number);
        mark(cell, names[column], number);
      }),
    );
  }
  return { nodes: [node, meaning], draw };
}

/** @param {Frame} frame */
function pathChart(frame) {
  const raised = (/** @type {number} */ value) => `10${String(value).replace(/\d/g, (digit) => "⁰¹²³⁴⁵⁶⁷⁸⁹"[Number(digit)])}`;
  const chart = plane(frame, {
    label: "Multiplications per layer against length, both on logarithmic scales",
    xName: "length n",
    yName: "multiplications per layer",
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

  /** @param {PathState} state @param {ReturnType<typeof computePath>} found */
  function draw({ n, d }, found) {
    const logs = kinds.map((kind) => found[kind].map(Math.log10));
    const low = Math.floor(Math.min(...logs.map((ys) => ys[0])));
    const high = Math.ceil(Math.max(...logs.map((ys) => ys[ys.length - 1])));
    chart.draw([1, 11], [low, high]);
    const isInside = d >= 2;
    border.draw(isInside ? [Math.log2(d), Math.log2(d)] : [], [low, high]);
    label.hidden = !isInside;
    label.style.left = `${10 * (Math.log2(d) - 1)}%`;
    label.classList.toggle("mha-at-end", d > PATH_LENGTHS[PATH_LENGTHS.length - 1] / 8);
    now.draw([Math.log2(n), Math.log2(n)], [low, high]);
    curves.forEach(({ kind, curve, dots }, index) => {
      curve.draw(xs, logs[index]);
      mark(curve.node, kind, found[kind]);
      const cost = found.multiplications[PATH_KINDS.indexOf(kind)];
      dots.draw([Math.log2(n)], [Math.log10(cost)], () => ({ size: 9 }));
    });
    chart.describe(
      `At n = ${n}: attention ${shortAmount(found.multiplications[0])}, convolution ${shortAmount(found.multiplications[1])}, ` +
        `recurrence ${shortAmount(found.multiplications[3])}`,
    );
  }
  return { node: chart.node, draw };
}

/** @param {Frame} frame */
function buildPath(frame) {
  const length = slider(frame, "n tokens", (n) => {
    const wasLast = frame.get("target") === frame.get("n") - 1;
    const target = wasLast ? n - 1 : Math.min(frame.get("target"), n - 1);
    frame.set({ n, target, source: Math.min(frame.get("source"), target) });
  });
  const width = slider(frame, "d width", "d", (d) => ({ stops: stopsWith(STOPS_D, d), isTicked: false }));
  const kernel = slider(frame, "k kernel", "k", () => ({ stops: STOPS_K, isTicked: false }));
  const source = slider(frame, "from token", (value) => frame.set({ source: value, target: Math.max(value, frame.get("target")) }));
  const target = slider(frame, "to token", "target");
  const projections = checkbox(frame, "Count attention's four projections", "with_projections");
  const wirings = PATH_KINDS.map(pathWiring);
  const table = pathTable();
  const chart = pathChart(frame);
  const crossings = ["recurrence", "convolution"].map(() => element("strong"));
  const verdict = element(
    "p",
    { class: "mha-verdict" },
    "The rule of thumb is n = d, dotted in the chart. " +
      "By exact count, attention multiplies at most as often as a recurrence ",
    crossings[0],
    ", and at most as often as a convolution ",
    crossings[1],
    ".",
  );
  frame.body.append(
    element("div", { class: "mha-controls" }, length.node, width.node, kernel.node, source.node, target.node, projections.node),
    element("div", { class: "mha-wirings" }, ...wirings.map(({ node }) => node)),
    element("p", {
      class: "mha-hint mha-legend",
      text: "Orange: the tokens. Blue: the outputs. Shaded: reached by the signal. Line: a shortest path.",
    }),
    element("div", { class: "mha-panes" }, element("div", {}, ...table.nodes, verdict), chart.node),
  );

  return () => {
    const state = frame.read();
    const found = computePath(state);
    const { n, d, k } = state;
    length.draw(n, { stops: stopsWith(STOPS_N, n), said: countOf(n, "1 token", "# tokens"), isTicked: false });
    source.draw(state.source, { low: 0, high: n - 1 });
    wirings.forEach(({ draw }, kind) => draw(state, found.longest[kind], found.path[kind]));
    table.draw(found);
    chart.draw(state, found);
    found.crossover.forEach((number, index) => {
      crossings[index].textContent = number > 0 ? `up to n = ${groupDigits(number)}` : "at no length";
      mark(crossings[index], "crossover", number);
    });

    const paths = PATH_KINDS.map((kind, index) => `${PATH_NAMES[kind]} ${found.path[index]}`).join(", ");
    const news =
      `n = ${n}, d = ${d}, k = ${k}. From token ${state.source} to ${state.target}: ${paths} steps. ` +
      `Attention multiplies ${formatNumber(found.multiplications[0] / found.multiplications[3], 2)} times as often as a recurrence.`;
    frame.tell(news);
    frame.report(() => found);
  };
}

export default widget({ name: "path-explorer", label: "Path explorer" }, buildPath);
