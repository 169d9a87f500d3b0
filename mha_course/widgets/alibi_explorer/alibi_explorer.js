// ALiBi: a penalty on distance, with one slope per head. The reader drags a needle, the one key that matches the
// query, out of the reach of one head after another.

import { computeAlibi, curveDistances, needleTarget } from "./alibi_math.js";
import { headColor } from "../shared/colors.js";
import { countOf, formatNumber, groupDigits, unitFraction } from "../shared/format.js";
import { element, isShortcut, mark, widget } from "../shared/frame.js";
import { draggedOver, segments, slider, stopsWith, tellSlider } from "../shared/parts.js";
import { plane } from "../shared/plane.js";
import { runsOf } from "../shared/run_text.js";

const SOLID_LINES = 8; // from this head on, the colours repeat and the lines are dashed
const LENGTHS = [2, 3, 4, 6, 8, 12, 16, 24, 32, 48, 64, 96, 128, 192, 256, 384, 512];
// The plane ends a little below 0, because a head that is far below 0 has lost the needle anyway. Above the numbers
// there is room for a line of text.
const RANGES = { bias: [-4, 14], weights: [0, 1.2] };

/** @typedef {import("../shared/frame.js").Frame} Frame */
/** @typedef {{numHeads: number, length: number, needle: number, needleScore: number, head: number, shown: string}} AlibiState */
/** @typedef {ReturnType<typeof computeAlibi>} AlibiNumbers */

/** @param {string} shown */
const rangeOf = (shown) => (shown === "bias" ? RANGES.bias : RANGES.weights);

/** @param {number} distance */
const across = (distance) => Math.log2(distance);

/**
 * Lists the heads that have lost the needle: those in which the query's own token has a higher score.
 * @param {AlibiNumbers} numbers
 */
function lostHeads({ score_after }) {
  return Array.from(score_after.keys()).filter((head) => score_after[head] < 0);
}

/** @param {number} needle */
const placeOf = (needle) => countOf(needle, "1 token back", "# tokens back");

/** The message of the plane: how many heads find the needle. @param {AlibiState} state @param {number[]} lost */
function verdict({ numHeads, needle }, lost) {
  const place = placeOf(needle);
  if (lost.length === 0) return numHeads === 1 ? `${place}: the head finds the needle.` : `${place}: all ${numHeads} heads find the needle.`;
  if (lost.length === numHeads) return numHeads === 1 ? `${place}: the head has lost the needle.` : `${place}: all ${numHeads} heads have lost the needle.`;
  const rest = numHeads - lost.length;
  if (lost.length === 1) return `${place}: head ${lost[0]} has lost the needle, and ${rest} of ${numHeads} find it.`;
  return `${place}: heads ${runsOf(lost)} have lost the needle, and ${rest} of ${numHeads} find it.`;
}

/**
 * The knob with which the reader moves the needle along the logarithmic axis, and the line at its distance. For a
 * screen reader, it is a slider over distances; a handle of the plane would be a slider over logarithms.
 * @param {Frame} frame @param {HTMLElement} area of the plane
 */
function needleKnob(frame, area) {
  const knob = element("div", {
    class: "mha-handle mha-key mha-needle",
    role: "slider",
    tabindex: 0,
    "aria-label": "needle: tokens before the query",
    "aria-orientation": "horizontal",
  });
  const line = element("span", { class: "mha-needle-line", "aria-hidden": "true" });
  area.append(line, knob);
  let [now, last] = [1, 1];
  const move = (/** @type {number} */ to) => {
    if (to !== now) frame.set({ needle: to });
  };
  draggedOver(frame, knob, area, (right) => {
    const distance = 2 ** (across(frame.limits("length").high) * right);
    move(Math.min(Math.max(Math.round(distance), 1), last));
  });
  frame.listen(knob, "keydown", (event) => {
    const target = needleTarget(event, now, last);
    if (target === undefined || isShortcut(event)) return;
    event.preventDefault();
    move(target);
  });

  /**
   * @param {AlibiState} state @param {number} height of the knob in the area, in percent
   * @param {string} text that a screen reader reads for this distance
   */
  function draw({ needle, length }, height, text) {
    [now, last] = [needle, length - 1];
    const left = `${(100 * across(needle)) / across(frame.limits("length").high)}%`;
    Object.assign(knob.style, { left, bottom: `${height}%` });
    line.style.left = left;
    tellSlider(knob, { text, low: 1, high: last, now: needle });
  }
  return { draw };
}

/**
 * The needle's score or weight in every head, plotted against its distance on a logarithmic axis. Dots mark the
 * present distance, and a dashed line shows the value without the bias.
 * @param {Frame} frame
 */
function needlePlane(frame) {
  const title = element("p", { class: "mha-title" });
  const fan = plane(frame, {
    label: "The needle in each head, by its distance",
    xName: "tokens before the query",
    yName: "",
    ratio: 1.5,
    ticks: [9, 4],
    texts: [(value) => String(2 ** value), (value, digits) => formatNumber(value, digits)],
  });
  const lines = Array.from({ length: frame.limits("num_heads").high }, (_, head) => {
    const line = fan.curve("head");
    line.node.style.setProperty("--role", headColor(head));
    if (head >= SOLID_LINES) line.node.style.strokeDasharray = "5 3";
    return line;
  });
  const [zero, before] = [fan.curve("zero"), fan.curve("key")];
  before.node.classList.add("mha-truth");
  const own = element("span", { class: "mha-plane-label", text: "query’s own token: 0" });
  const without = element("span", { class: "mha-plane-label mha-without" });
  fan.area.append(own, without);
  const dots = fan.dots("heads");
  const knob = needleKnob(frame, fan.area);
  const ends = [0, across(frame.limits("length").high)];
  let drawn = "";

  /**
   * Draws the parts that do not change while the needle moves.
   * @param {AlibiState} state @param {AlibiNumbers} numbers @param {number} level without the bias
   */
  function drawCurves({ numHeads, length, head: chosen, shown, needleScore }, { by_distance }, level) {
    const key = JSON.stringify([numHeads, length, chosen, shown, needleScore]);
    if (key === drawn) return;
    drawn = key;
    const showsBias = shown === "bias";
    title.textContent = showsBias ? "Score of the needle, with the bias" : "Weight of the needle";
    const [low, high] = rangeOf(shown);
    fan.draw([ends[0], ends[1]], [low, high]);
    const distances = curveDistances(length - 1);
    lines.forEach((line, head) => {
      const curve = by_distance[head] ?? [];
      line.node.classList.toggle("mha-chosen", head === chosen);
      line.draw(curve.length === 0 ? [] : distances.map(across), distances.map((distance) => curve[distance - 1]));
      mark(line.node, "by_distance", curve);
      if (head >= numHeads) delete line.node.dataset.number;
    });
    zero.draw(showsBias ? ends : [], [0, 0]);
    before.draw(ends, [level, level]);
    own.hidden = !showsBias;
    own.style.bottom = `${(100 * -low) / (high - low)}%`;
    without.textContent = `╌╌ without the bias: ${formatNumber(level, showsBias ? 1 : 2)}`;
  }

  /** @param {AlibiState} state @param {AlibiNumbers} numbers @param {number[]} lost */
  function draw(state, numbers, lost) {
    const { needle, numHeads, shown, needleScore } = state;
    const showsBias = shown === "bias";
    const level = showsBias ? needleScore : numbers.weight_before;
    const values = showsBias ? numbers.score_after : numbers.weight_after;
    drawCurves(state, numbers, level);
    const [low, high] = rangeOf(shown);
    // A dot that would be below the plane stays at its lower edge.
    dots.draw(values.map(() => across(needle)), values.map((value) => Math.max(value, low)), () => ({ size: 9 }));
    values.forEach((_, head) => {
      const dot = /** @type {any} */ (dots.node.children[head]);
      dot.style.setProperty("--role", headColor(head));
    });
    const lostText = lost.length === 0 ? "no head has lost it" : `${lost.length} of ${numHeads} heads have lost it`;
    const place = placeOf(needle);
    knob.draw(state, (100 * (level - low)) / (high - low), `${place}, ${lostText}`);
    const range = [Math.min(...values), Math.max(...values)].map((value) => formatNumber(value, 2));
    fan.describe(showsBias ? `${place}: scores from ${range[0]} to ${range[1]}.` : `${place}: weights from ${range[0]} to ${range[1]}.`);
  }
  return { node: element("div", {}, title, fan.node), draw };
}

/** A line of the list, with elements for its numbers. @param {string} tag @param {string} name */
function needleRow(tag, name) {
  const [slope, reach, score, sign, weight] = Array.from({ length: 5 }, () => element("span"));
  const bar = element("i");
  const unseen = (/** @type {string} */ text) => element("span", { class: "mha-unseen", text });
  const node = element(
    tag,
    { class: "mha-needle-row", type: tag === "button" ? "button" : null },
    element("b", {}),
    element("span", {}, unseen("head "), element("span", { text: name })),
    element("span", {}, unseen(": slope "), slope),
    element("span", {}, unseen(", reach "), reach),
    element("span", {}, unseen(", score "), score),
    element("span", { class: "mha-bar-track" }, bar, sign),
    element("span", {}, unseen(", weight "), weight),
  );
  return { node, slope, reach, score, sign, weight, bar };
}

/**
 * Stores a number, and writes its text only if the text has changed. While the needle moves, most texts stay the
 * same and need no new layout.
 * @param {any} span @param {string} text @param {string} name under which the page stores the number
 * @param {number} number
 */
function writeNumber(span, text, name, number) {
  if (span.textContent !== text) span.textContent = text;
  mark(span, name, number);
}

/**
 * A list of the heads: slope, reach, and the score and the weight of the needle. The reader chooses a head.
 * @param {Frame} frame
 */
function needleList(frame) {
  const rows = Array.from({ length: frame.limits("num_heads").high }, (_, head) => {
    const row = needleRow("button", String(head));
    row.node.style.setProperty("--head", headColor(head));
    frame.listen(row.node, "click", () => frame.set({ head }));
    return { ...row, item: element("li", {}, row.node) };
  });
  const first = element("p", { class: "mha-needle-row mha-needle-names mha-hint", "aria-hidden": "true" });
  first.append(...["", "head", "slope", "reach", "score", "weight"].map((text) => element("span", { text })));
  const without = needleRow("p", "");
  without.node.replaceChildren(
    element("span", { class: "mha-needle-without", text: "without the bias" }),
    element("span", {}, without.score),
    element("span", { class: "mha-bar-track" }, without.bar),
    element("span", {}, without.weight),
  );
  const node = element(
    "div",
    { class: "mha-needle-list" },
    element("p", { class: "mha-title", text: "What each head gives to the needle" }),
    first,
    without.node,
    element("ul", { "aria-label": "Heads" }, ...rows.map((row) => row.item)),
  );

  /** @param {AlibiState} state @param {AlibiNumbers} numbers @param {number[]} lost */
  function draw({ head: chosen, numHeads, needleScore }, numbers, lost) {
    without.score.textContent = formatNumber(needleScore, 1);
    without.weight.textContent = formatNumber(numbers.weight_before, 2);
    mark(without.weight, "weight_before", numbers.weight_before);
    without.bar.style.width = `${100 * numbers.weight_before}%`;
    rows.forEach(({ node: button, item, slope, reach, score, sign, weight, bar }, head) => {
      item.hidden = head >= numHeads;
      if (item.hidden) {
        for (const span of [slope, reach, score, weight]) delete span.dataset.number;
        return;
      }
      const far = numbers.reaches[head];
      const isLost = lost.includes(head);
      const [after, share] = [numbers.score_after[head], numbers.weight_after[head]];
      writeNumber(slope, unitFraction(numbers.slopes[head]), "slopes", numbers.slopes[head]);
      writeNumber(reach, reachText(far), "reaches", far);
      writeNumber(score, formatNumber(after, 1), "score_after", after);
      writeNumber(weight, formatNumber(share, 2), "weight_after", share);
      if (button.classList.contains("mha-lost") !== isLost) sign.textContent = isLost ? "lost" : "";
      bar.style.width = `${100 * share}%`;
      button.classList.toggle("mha-lost", isLost);
      button.setAttribute("aria-pressed", String(head === chosen));
    });
  }
  return { node, draw };
}

/** The sliders, and the choice between scores and weights. @param {Frame} frame */
function alibiControls(frame) {
  const heads = slider(frame, "num_heads");
  // Each stop is 1.5 times as far as the one before, so this slider is logarithmic too.
  const length = slider(frame, "length", "length", (value) => {
    return { stops: stopsWith(LENGTHS, value), said: `${value} tokens`, isTicked: false };
  });
  const match = slider(frame, "needle_score", "needle_score", (value) => ({ step: 0.5, text: formatNumber(value, 1) }));
  const shown = segments(frame, "Show", [["bias", "Scores"], ["weights", "Weights"]], "shown");
  return element("div", { class: "mha-controls" }, heads.node, length.node, match.node, shown.node);
}

/** @param {Frame} frame */
function build(frame) {
  const controls = alibiControls(frame);
  const picture = needlePlane(frame);
  const list = needleList(frame);
  const question = element("p", {
    class: "mha-question",
    text:
      "One key of a long text matches the last query: the needle. A head finds it as long as its score stays above 0, the score of the query’s own token. Which heads still find it 100 tokens back? " +
      "Predict, then drag the orange knob there.",
  });
  const result = element("p", { class: "mha-title mha-verdict" });
  frame.body.append(
    question,
    // The list comes last because it grows with the number of heads and must not push a slider away.
    element("div", { class: "mha-panes" }, element("div", {}, picture.node, result, controls), list.node),
  );
  /** @type {AlibiState | null} */
  let before = null;

  return () => {
    const state = frame.read();
    const numbers = computeAlibi(state);
    const lost = lostHeads(numbers);
    picture.draw(state, numbers, lost);
    list.draw(state, numbers, lost);
    result.textContent = verdict(state, lost);
    if (before) frame.say(describeAlibi(before, state, numbers, lost));
    before = state;
    frame.report(() => numbers);
  };
}

/** @param {number} far tokens */
function reachText(far) {
  return far < 100 ? String(Number(far.toFixed(1))) : groupDigits(Math.round(far));
}

/**
 * @param {AlibiState} before @param {AlibiState} state @param {AlibiNumbers} numbers @param {number[]} lost
 */
function describeAlibi(before, state, { slopes, reaches }, lost) {
  const { head, shown } = state;
  if (before.shown !== shown) return shown === "bias" ? "The picture shows the scores." : "The picture shows the weights.";
  if (before.head !== head && before.numHeads === state.numHeads) {
    return `Head ${head}: slope ${unitFraction(slopes[head])}, reach ${reachText(reaches[head])} tokens.`;
  }
  return verdict(state, lost);
}

export default widget({ name: "alibi-explorer", label: "ALiBi explorer" }, build);
