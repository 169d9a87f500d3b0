// A layer learns the two pointers while the reader watches: the loss, the right answers, and where each head
// looks.

import { headColor } from "../shared/colors.js";
import { countOf, formatNumber } from "../shared/format.js";
import { element, mark, widget } from "../shared/frame.js";
import { POINTERS } from "./head_training_math.js";
import { segments, slider, stopsWith } from "../shared/parts.js";
import { pixelCanvas } from "../shared/pixel_canvas.js";
import { plane } from "../shared/plane.js";
import { buildRun, buildTransport } from "../shared/training_runner.js";

/** @typedef {import("../shared/frame.js").Frame} Frame */
/** @typedef {import("./head_training_math.js").Plan} Plan */
/** @typedef {import("./head_training_math.js").TrainingRecord} TrainingRecord */

const RATES = [0.001, 0.003, 0.01, 0.03, 0.1];
// The two pointers meet at 2 of 12 positions; at the others, the two tokens are equal with probability 1/8.
const SAME_TOKEN = 13 / 48;
const LEGEND =
  "Maps: mean weights, queries in rows, keys in columns, dark is 0 and yellow is 1. Dotted line: the share of " +
  "positions where both answers are the same token.";
const HIGHEST_LOSS = 2.5; // a model that guesses has a loss of log 8 = 2.08

/** @param {Frame} frame @returns {Plan} */
const readPlan = (frame) => ({ ...frame.get("_sizes"), ...frame.read() });

/** @typedef {ReturnType<typeof buildRun<Plan, TrainingRecord>>} Run */

/** @param {{records: TrainingRecord[], shown: number}} run */
function describeShown({ records, shown }) {
  const { step, loss, bothRight, roles } = records[shown];
  const heads = Array.from({ length: roles.length / 2 }, (_, head) => `head ${head}: ${describeRole(roles, head)}`);
  const learned = step > 0 ? `, loss ${formatNumber(loss, 2)}` : "";
  return `Step ${step}${learned}, both right in ${percent(bothRight)} of the positions. ${heads.join("; ")}.`;
}

/** @param {Float64Array} roles @param {number} head */
function describeRole(roles, head) {
  return `previous ${formatNumber(roles[2 * head], 2)}, mirrored ${formatNumber(roles[2 * head + 1], 2)}`;
}

/**
 * The settings. Changing one restarts the training.
 * @param {Frame} frame @param {(changes: Object<string, any>) => void} set
 */
function buildSettings(frame, set) {
  const counts = (frame.limits("num_heads").options ?? []).map(String);
  const heads = segments(frame, "num_heads", counts.map((n) => [n, n]), (value) => set({ num_heads: Number(value) }));
  const kinds = frame.limits("read_out").options ?? [];
  const readOuts = segments(frame, "read-out", kinds.map((kind) => [kind, kind]), (value) => set({ read_out: value }));
  const seed = slider(frame, "seed", (value) => set({ seed: value }));
  let rates = /** @type {readonly number[]} */ (RATES);
  const lr = slider(frame, "lr", (index) => set({ lr: rates[index] }));
  const node = element("div", { class: "mha-settings" }, heads.node, readOuts.node, seed.node, lr.node);
  /** @param {Plan} plan */
  function draw(plan) {
    heads.draw(String(plan.numHeads));
    readOuts.draw(plan.readOut);
    seed.draw(plan.seed, { high: frame.limits("seed").high });
    rates = stopsWith(RATES, plan.lr);
    lr.draw(rates.indexOf(plan.lr), { high: rates.length - 1, text: String(plan.lr), said: `learning rate ${plan.lr}` });
  }
  return { node, draw };
}

/** Loss and share of right answers against the steps. @param {Frame} frame */
function buildCurves(frame) {
  const losses = plane(frame, { label: "Loss by step", xName: `step`, yName: `loss`, ticks: [3, 3] });
  const shares = plane(frame, { label: "Share of positions with both answers right, by step", xName: `step`, yName: "both right", ticks: [3, 3] });
  const facts = ["loss of the batch: ", "both answers right: "].map((text) => {
    const number = element("strong");
    return { number, node: element("p", { class: "mha-name" }, text, number) };
  });
  const floor = shares.curve("truth");
  const earlier = [losses, shares].map((each) => each.curve("faint"));
  const lines = [losses, shares].map((each) => each.curve("now"));
  const cursors = [losses, shares].map((each) => each.curve("cursor"));
  const label = element("span", { class: "mha-floor", "aria-hidden": "true", text: "13/48" });
  label.style.bottom = `${100 * SAME_TOKEN}%`;
  shares.area.append(label);
  const panes = [losses, shares].map((each, index) => element("div", {}, facts[index].node, each.node));
  const node = element("div", { class: "mha-curves" }, ...panes);

  /** @param {Run} run */
  function draw({ plan, records, shown, before }) {
    const total = plan?.steps ?? 1;
    const tops = [HIGHEST_LOSS, 1];
    losses.draw([0, total], [0, tops[0]]);
    shares.draw([0, total], [0, tops[1]]);
    floor.draw([0, total], [SAME_TOKEN, SAME_TOKEN]);
    [earlier, lines].forEach((pair, index) => {
      const drawn = index === 0 ? (before?.records ?? []) : records;
      const steps = drawn.map(({ step }) => step);
      pair[0].draw(steps, drawn.map(({ loss }) => Math.min(loss, HIGHEST_LOSS)));
      pair[1].draw(steps, drawn.map(({ bothRight }) => bothRight));
    });
    cursors.forEach((cursor, index) => cursor.draw([shown, shown], [0, tops[index]]));
    const { step, loss, bothRight } = records[shown];
    facts[0].number.textContent = step > 0 ? formatNumber(loss, 2) : "none yet";
    facts[1].number.textContent = percent(bothRight);
    if (step === 0) mark(facts[1].number, "start_both_right", bothRight);
    else delete facts[1].number.dataset.number;
    losses.describe(`At step ${step}: ${facts[0].number.textContent}`);
    shares.describe(`At step ${step}: ${percent(bothRight)}. A dotted line marks ${percent(SAME_TOKEN)}`);
  }
  return { node, draw };
}

/** @param {number} share */
function percent(share) {
  return `${formatNumber(100 * share, 0)}\u00a0%`;
}

/** @param {{plan: Plan, records: TrainingRecord[]}} run that has finished */
function describeEarlier({ plan, records }) {
  const { bothRight } = records[records.length - 1];
  const heads = countOf(plan.numHeads, "1 head", "# heads");
  return `${heads}, ${plan.readOut}, seed ${plan.seed}: ${percent(bothRight)}`;
}

/** The maps of the heads, and the weight of each head on the two target positions. */
function buildMaps() {
  const node = element("div", { class: "mha-heads" });
  /** @type {{node: HTMLElement, canvas: ReturnType<typeof pixelCanvas>, shares: HTMLElement[]}[]} */
  const entries = [];

  /** @param {number} head */
  function entry(head) {
    const canvas = pixelCanvas();
    canvas.node.setAttribute("role", "img");
    canvas.node.removeAttribute("aria-hidden");
    const shares = [`previous`, `mirrored`].map(() => element("b"));
    const rows = shares.map((share, index) => element("span", {}, element("span", { text: [`previous`, `mirrored`][index] }), " ", share));
    const title = element("p", { class: "mha-title", text: `head ${head}` });
    title.style.setProperty("--head", headColor(head));
    return { node: element("div", {}, title, canvas.node, element("p", { class: "mha-role" }, ...rows)), canvas, shares };
  }

  /** @param {Plan} plan @param {TrainingRecord} record */
  function draw({ numHeads, length }, { step, maps, roles }) {
    while (entries.length < numHeads) entries.push(entry(entries.length));
    node.replaceChildren(...entries.slice(0, numHeads).map((each) => each.node));
    node.style.setProperty("--columns", String(Math.max(numHeads, 5)));
    entries.slice(0, numHeads).forEach(({ canvas, shares }, head) => {
      const row = (/** @type {number} */ query) => maps.subarray((head * length + query) * length, (head * length + query + 1) * length);
      canvas.draw(Array.from({ length }, (_, query) => row(query)), { low: 0, high: 1 });
      canvas.node.setAttribute("aria-label", `Mean weights of head ${head}, queries in rows, keys in columns: ${describeRole(roles, head)}`);
      shares.forEach((share, index) => {
        const role = roles[2 * head + index];
        share.textContent = formatNumber(role, 2);
        share.parentElement?.classList.toggle("mha-now", role > 0.8);
        if (step === 0) mark(share, "start_roles", role);
        else delete share.dataset.number;
      });
    });
  }
  return { node, draw };
}

/**
 * The numbers that Python computes too: the initial model, and the loss of the first step. The model has been
 * drawn already, so only the loss is computed here, in the page; the training runs in a worker.
 * @param {Run} run @param {Plan} plan
 */
function firstNumbers({ records, firstLoss }, plan) {
  const { bothRight, roles, maps } = records[0];
  const cut = (/** @type {Float64Array} */ numbers, /** @type {number} */ size) =>
    Array.from({ length: numbers.length / size }, (_, i) => numbers.subarray(i * size, (i + 1) * size));
  return {
    start_both_right: bothRight,
    start_roles: cut(roles, 2),
    start_maps: cut(maps, plan.length ** 2).map((map) => cut(map, plan.length)),
    first_loss: firstLoss(),
  };
}

/** @param {Frame} frame */
function buildTraining(frame) {
  const run = buildRun(frame, POINTERS, () => readPlan(frame), describeShown, show);
  const transport = buildTransport(frame, run, show);
  const settings = buildSettings(frame, run.restart);
  const curves = buildCurves(frame);
  const maps = buildMaps();
  const question = element(
    "p",
    { class: "mha-question" },
    element("strong", { text: "How far will one head get, and how far two? " }),
    "Decide before you press Play. Then watch: when do the stripes appear, and which head draws which stripe?",
  );
  const legend = element("p", { class: "mha-hint" });
  frame.body.append(question, transport.node, settings.node, curves.node, maps.node, legend);

  function show() {
    if (!run.plan) return;
    transport.draw();
    curves.draw(run);
    maps.draw(run.plan, run.records[run.shown]);
    legend.textContent = run.before ? `${LEGEND} Pale lines: the run before, ${describeEarlier(run.before)}.` : LEGEND;
  }
  return () => {
    const plan = readPlan(frame);
    if (JSON.stringify(plan) !== JSON.stringify(run.plan)) frame.later(run.begin);
    settings.draw(plan);
    show();
    frame.report(() => firstNumbers(run, plan));
  };
}

export default widget({ name: "head-training", label: "Training with one or more heads", data: ["_sizes"] }, buildTraining);
