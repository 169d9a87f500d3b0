// A small GPT learns the text that a reader types: the loss, and what the model writes during training.

import { countOf, formatNumber, groupDigits } from "../shared/format.js";
import { element, mark, setText, widget } from "../shared/frame.js";
import { slider } from "../shared/parts.js";
import { plane } from "../shared/plane.js";
import { textBox, textField } from "../shared/text_field.js";
import { charactersOf, TEXTS } from "./text_training_math.js";
import { buildRun, buildTransport } from "../shared/training_runner.js";

/** @typedef {import("../shared/frame.js").Frame} Frame */
/** @typedef {import("./text_training_math.js").TextPlan} TextPlan */
/** @typedef {ReturnType<typeof buildRun<TextPlan, import("./text_training_math.js").TextRecord>>} Run */

const WORD = /[\p{L}\p{M}\p{N}]+/gu;

/** @param {Frame} frame @returns {TextPlan} */
const readPlan = (frame) => ({ ...frame.get("_sizes"), ...frame.read() });

/** @param {string} text */
const lengthOf = (text) => countOf([...text].length, "1 character", "# characters");

/** What is wrong with the length of a text; empty if it can be learned. @param {Frame} frame @param {string} text */
function lengthProblem(frame, text) {
  const { fewest, most } = frame.get("_sizes");
  const count = [...text].length;
  if (count >= fewest && count <= most) return "";
  const [characters, longest] = [lengthOf(text), groupDigits(most)];
  return count < fewest
    ? `${characters} are too few: the model learns a text of ${fewest} to ${longest}.`
    : `${characters} are too many: the model learns a text of ${fewest} to ${longest}.`;
}

/** Throws a RangeError if Python does not accept the text. @param {Frame} frame */
function checkText(frame) {
  const text = frame.get("text");
  const problem = typeof text === "string" ? lengthProblem(frame, text) : ""; // a different type breaks the rule of the setting
  if (problem) throw new RangeError(`text must be fit to learn: ${problem.slice(0, -1)}`);
}

/**
 * The latest text that the model wrote at or before the step shown, with those of its words that occur in the source.
 * @param {Pick<Run, "plan" | "records" | "shown">} run
 */
function latestSample({ plan, records, shown }) {
  let at = shown;
  while (!records[at].sample) at--;
  const { text } = /** @type {TextPlan} */ (plan);
  const { alphabet } = charactersOf(text);
  const known = new Set(text.match(WORD));
  const written = (records[at].sample ?? []).map((token) => alphabet[token]).join("");
  // The words have odd indices; the last one may be cut off, so it does not count.
  const parts = written.split(/([\p{L}\p{M}\p{N}]+)/u).map((part) => ({ part, isKnown: known.has(part) }));
  const words = parts.filter((_, index) => index % 2 === 1).slice(0, -1);
  const [copied, all] = [words.filter(({ isKnown }) => isKnown).length, countOf(words.length, "1 word", "# words")];
  const count = `${copied} of ${all}`;
  return { at, tokens: records[at].sample ?? [], written, parts, count };
}

/** @param {Pick<Run, "plan" | "records" | "shown">} run */
function describeShown(run) {
  const { step, loss } = run.records[run.shown];
  const { written, count, at } = latestSample(run);
  const wrote = `After step ${at} it writes, with ${count} of your text: ${written}`;
  return step > 0 ? `Step ${step}, loss ${formatNumber(loss, 2)}. ${wrote}` : `Step ${step}. ${wrote}`;
}

/** The loss by step, and the text that the model writes. @param {Frame} frame */
function buildPanes(frame) {
  const losses = plane(frame, { label: "Loss by step", xName: `step`, yName: `loss`, ticks: [3, 3] });
  const [loss, count, at] = ["strong", "strong", "span"].map((tag) => element(tag));
  const [guess, earlier, line, cursor] = ["truth", "faint", "now", "cursor"].map((kind) => losses.curve(kind));
  const floor = element("span", { class: "mha-floor", "aria-hidden": "true", text: `guessing` });
  losses.area.append(floor);
  const box = textBox("What the model writes");
  const written = box.firstChild;
  const node = element(
    "div",
    { class: "mha-curves" },
    element("div", {}, element("p", { class: "mha-name" }, "loss of the batch: ", loss), losses.node),
    element("div", {}, element("p", { class: "mha-name" }, at, count, " of your text (bold)"), box),
  );
  let drawn = "";

  /** @param {Run} run @param {TextPlan} plan */
  function draw(run, plan) {
    const { records, shown, before } = run;
    const chance = Math.log(charactersOf(plan.text).alphabet.length);
    const top = Math.max(1, 1.2 * chance);
    const low = (/** @type {{loss: number}} */ record) => Math.min(record.loss, top);
    const steps = (/** @type {{step: number}[]} */ all) => all.map(({ step }) => step);
    losses.draw([0, plan.steps], [0, top]);
    guess.draw([0, plan.steps], [chance, chance]);
    mark(floor, "guess_loss", chance);
    floor.style.bottom = `${(100 * chance) / top}%`;
    earlier.draw(steps(before?.records ?? []), (before?.records ?? []).map(low));
    line.draw(steps(records), records.map(low));
    cursor.draw([shown, shown], [0, top]);
    setText(loss, shown > 0 ? formatNumber(records[shown].loss, 2) : "none yet");
    losses.describe(`At step ${shown}: ${loss.textContent}. A dotted line marks ${formatNumber(chance, 2)}, the loss of guessing`);
    const sample = latestSample(run);
    setText(at, `after step ${sample.at}: `);
    setText(count, sample.count);
    if (sample.at === 0) mark(written, "start_sample", sample.tokens);
    else delete written.dataset.number;
    if (drawn === sample.written) return;
    drawn = sample.written;
    written.replaceChildren(...sample.parts.map(({ part, isKnown }) => (isKnown ? element("b", { text: part }) : part)));
  }
  return { node, draw };
}

/** @param {Frame} frame */
function buildTextTraining(frame) {
  const run = buildRun(frame, TEXTS, () => readPlan(frame), describeShown, show);
  const judge = (/** @type {string} */ text) => {
    const problem = lengthProblem(frame, text);
    const remark = `${lengthOf(text)}, learned in your browser: no text leaves this page`;
    return { problem: problem && `${problem} What you typed stays here; below, the text before it is learned.`, remark };
  };
  const field = textField(frame, "text to learn", "text", judge, (text) => run.restart({ text }), true);
  const seed = slider(frame, "seed", (value) => run.restart({ seed: value }));
  const transport = buildTransport(frame, run, show);
  const panes = buildPanes(frame);
  const hint = element("p", { class: "mha-hint" });
  frame.body.append(...field.nodes, transport.node, element("div", { class: "mha-settings" }, seed.node), panes.node, hint);

  function show() {
    if (!run.plan) return;
    transport.draw();
    panes.draw(run, run.plan);
    const { before } = run;
    const rest = before ? ` Pale line: the run before, seed ${before.plan.seed}, ${lengthOf(before.plan.text)}.` : "";
    setText(hint, `Dotted line: the loss of a model for which all characters are alike.${rest}`);
  }
  return () => {
    const plan = readPlan(frame);
    if (JSON.stringify(plan) !== JSON.stringify(run.plan)) frame.later(run.begin);
    field.draw(plan.text);
    seed.draw(plan.seed, { high: frame.limits("seed").high });
    show();
    frame.report(() => ({
      first_loss: run.firstLoss(),
      guess_loss: Math.log(charactersOf(plan.text).alphabet.length),
      start_sample: run.records[0].sample,
    }));
  };
}

export default widget({ name: "text-training", label: "A GPT that learns your text", data: ["_sizes"], check: checkText }, buildTextTraining);
