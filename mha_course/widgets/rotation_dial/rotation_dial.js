// One pair of columns of a query and a key, turned by their positions (rotary) or with a sinusoid added.

import { formatNumber, groupDigits } from "../shared/format.js";
import { element, isShortcut, mark, svgElement, widget } from "../shared/frame.js";
import { draggedOver, segments, slider, tellSlider } from "../shared/parts.js";
import { plane } from "../shared/plane.js";
import { arcPath, arrowPath, computeDial, encodeDial, wrapDegrees } from "./rotation_math.js";

const DIAL_ROLES = /** @type {const} */ (["query", "key"]);

/** @typedef {import("../shared/frame.js").Frame} Frame */
/** @typedef {import("./rotation_math.js").DialState} DialState */
/** @typedef {"query" | "key"} DialRole */
/** @typedef {ReturnType<typeof encodeDial>} Encoded */
/** @typedef {Object<string, any>} DialNumbers */

/**
 * An arrow from one point to another.
 * @param {SVGElement} parent @param {string} kind @param {number} size of the arrowhead; 0 for none
 * @param {string} [name] under which the page stores the point where the arrow ends
 */
function dialArrow(parent, kind, size, name) {
  const path = svgElement("path", { class: `mha-arrow ${kind}` });
  parent.append(path);
  /** @param {ArrayLike<number>} from @param {ArrayLike<number>} to */
  function draw(from, to) {
    path.setAttribute("d", arrowPath(from, to, size));
    if (name) mark(path, name, to);
  }
  return { node: path, draw };
}

/**
 * A circle with the arrows of query and key on it.
 * @param {string} name of the numbers
 * @param {number} reach from the middle to the edge
 * @param {string} title
 * @param {boolean} hasKnobs whether the tips of the arrows have handles instead of arrowheads
 */
function buildDial(name, reach, title, hasKnobs) {
  const svg = svgElement("svg", { viewBox: [-reach, -reach, 2 * reach, 2 * reach].join(" "), role: "img" });
  svg.append(svgElement("circle", { class: "mha-circle", r: 1 }));
  for (const d of [`M${-reach} 0H${reach}`, `M0 ${-reach}V${reach}`]) svg.append(svgElement("path", { class: "mha-axis", d }));
  const head = 0.09 * reach;
  const [query, key] = DIAL_ROLES.map((role) => ({
    before: dialArrow(svg, `mha-${role} mha-before`, head),
    step: dialArrow(svg, `mha-${role} mha-by-position`, head),
    arc: dialArrow(svg, `mha-${role} mha-by-position`, 0).node,
    after: dialArrow(svg, `mha-${role}`, hasKnobs ? 0 : head, `${name}_${role}`),
  }));
  const area = element("div", { class: "mha-dial" }, svg);
  const [pairScore, score] = [element("strong"), element("strong")];
  const allText = element("span", { class: "mha-name" });
  const node = element(
    "div",
    { class: "mha-dial-pane" },
    element("p", { class: "mha-title", text: title }),
    area,
    element(
      "p",
      { class: "mha-dial-scores" },
      element("span", {}, element("span", { class: "mha-name", text: "score of this pair" }), pairScore),
      element("span", {}, allText, score),
    ),
  );

  /** @param {Object<string, any>} numbers @param {number} pairs */
  function drawScores(numbers, pairs) {
    allText.textContent = pairs === 1 ? "all pairs (only 1)" : `all ${pairs} pairs`;
    pairScore.textContent = formatNumber(numbers[`${name}_pair_score`]);
    score.textContent = formatNumber(numbers[`${name}_score`]);
    mark(pairScore, `${name}_pair_score`, numbers[`${name}_pair_score`]);
    mark(score, `${name}_score`, numbers[`${name}_score`]);
  }
  return { node, area, svg, query, key, reach, drawScores };
}

/**
 * A handle at the tip of an arrow, which the reader drags around the circle or turns with the arrow keys.
 * @param {Frame} frame @param {ReturnType<typeof buildDial>} dial @param {DialRole} role
 * @param {(degrees: number) => void} onTurn receives the direction to which the reader drags the arrow
 * @param {(degrees: number) => void} onStep receives the angle by which a key turns the arrow
 */
function dialHandle(frame, dial, role, onTurn, onStep) {
  const knob = element("div", {
    class: `mha-handle mha-${role}`,
    role: "slider",
    tabindex: 0,
    "aria-label": `Direction of the ${role}'s arrow, before its position turns it`,
  });
  dial.area.append(knob);
  let current = 0;
  draggedOver(frame, knob, dial.area, (right, up, { width, height }) => {
    const [x, y] = [(right - 0.5) * width, (up - 0.5) * height];
    if (Math.hypot(x, y) > 4) onTurn((Math.atan2(y, x) * 180) / Math.PI);
  });
  frame.listen(knob, "keydown", (event) => {
    const step = event.shiftKey ? 10 : 1;
    /** @type {Object<string, number>} */
    const turns = {
      ArrowLeft: step,
      ArrowUp: step,
      ArrowRight: -step,
      ArrowDown: -step,
      PageUp: 45,
      PageDown: -45,
      Home: -180 - current,
      End: 180 - current,
    };
    const turn = turns[event.key];
    if (turn === undefined || isShortcut(event)) return;
    event.preventDefault();
    onStep(turn);
  });
  /** @param {ArrayLike<number>} tip @param {number} degrees */
  function draw(tip, degrees) {
    current = degrees;
    knob.style.left = `${50 + (50 * tip[0]) / dial.reach}%`;
    knob.style.bottom = `${50 + (50 * tip[1]) / dial.reach}%`;
    knob.textContent = role[0];
    tellSlider(knob, { text: `${formatNumber(degrees, 0)} degrees`, low: -180, high: 180, now: degrees });
  }
  return { draw };
}

/** @param {Frame} frame */
function dialControls(frame) {
  const query = slider(frame, "query_position");
  const key = slider(frame, "key_position");
  // This slider shows the smaller of the two positions.
  const both = slider(frame, "move both", (value) => {
    const [m, n] = [frame.get("query_position"), frame.get("key_position")];
    const first = Math.min(m, n);
    frame.set({ query_position: m - first + value, key_position: n - first + value });
  });
  const pair = slider(frame, "pair");
  const headDim = slider(frame, "head_dim");
  const base = slider(frame, "base", (value) => frame.set({ base: Number((10 ** value).toPrecision(2)) }));
  const sliders = [query, pair, key, headDim, base].map(({ node }) => node);
  const [low, high] = [frame.limits("base").low, frame.limits("base").high].map(Math.log10);

  /** @param {DialState} state */
  function draw({ queryPosition: m, keyPosition: n, ...state }) {
    const positions = frame.limits("query_position");
    both.draw(Math.min(m, n), {
      low: 0,
      high: positions.high - Math.abs(n - m),
      text: `${m}, ${n}`,
      said: `query_position ${m}, key_position ${n}`,
    });
    base.draw(Math.log10(state.base), { low, high, step: 0.1, text: groupDigits(state.base) });
  }
  const question = "Move both positions by the same amount. On which dial do the scores stay the same?";
  const first = element("div", {}, element("p", { class: "mha-title", text: question }), both.node);
  return { first, node: element("div", { class: "mha-controls" }, ...sliders), draw };
}

/** The two dials: arrows that are turned, and arrows to which a sinusoid is added. @param {Frame} frame */
function dialPair(frame) {
  const rotary = buildDial("rotary", 1.25, "Rotary: query and key are turned", true);
  const added = buildDial("added", 2.15, "Sinusoid: an arrow is added to both", false);
  let turns = { query: 0, key: 0 }; // rotations due to the positions, in degrees
  const handles = DIAL_ROLES.map((role) => {
    const trait = `${role}_angle`;
    return dialHandle(
      frame,
      rotary,
      role,
      (degrees) => frame.set({ [trait]: wrapDegrees(Math.round(degrees - turns[role])) }),
      (step) => frame.set({ [trait]: wrapDegrees(frame.get(trait) + step) }),
    );
  });

  /** @param {DialState} state @param {Encoded} arrows @param {DialNumbers} numbers */
  function draw(state, arrows, numbers) {
    const degrees = (arrows.frequency * 180) / Math.PI;
    turns = { query: state.queryPosition * degrees, key: state.keyPosition * degrees };
    DIAL_ROLES.forEach((role, index) => {
      const [arrow, tip] = [arrows[role], numbers[`rotary_${role}`]];
      rotary[role].before.draw([0, 0], arrow);
      rotary[role].after.draw([0, 0], tip);
      rotary[role].arc.setAttribute("d", arcPath(arrow, (turns[role] * Math.PI) / 180, index === 0 ? 0.42 : 0.56));
      added[role].before.draw([0, 0], arrow);
      added[role].step.draw(arrow, numbers[`added_${role}`]);
      added[role].after.draw([0, 0], numbers[`added_${role}`]);
      handles[index].draw(tip, role === "query" ? state.queryAngle : state.keyAngle);
    });
    const [queryTurn, keyTurn] = [turns.query, turns.key].map((turn) => formatNumber(turn, 0));
    rotary.svg.setAttribute("aria-label", `Dial: the query is turned by ${queryTurn} degrees, the key by ${keyTurn}`);
    added.svg.setAttribute("aria-label", "Dial: query and key, each with the arrow of its position added");
    rotary.drawScores(numbers, state.headDim / 2);
    added.drawScores(numbers, state.headDim / 2);
  }
  return { node: element("div", { class: "mha-panes" }, rotary.node, added.node), draw };
}

/** Plots the scores against the offset between the two positions. @param {Frame} frame */
function dialCurves(frame) {
  const { low, high } = frame.limits("key_position");
  const options = /** @type {[string, string][]} */ ([["pair", "this pair"], ["all", "all pairs"]]);
  const shown = segments(frame, "Score of", options, "shown");
  const scores = plane(frame, {
    label: "Score against the offset",
    xName: "offset: key_position − query_position",
    yName: "query · key",
    ratio: 4,
    ticks: [8, 3],
  });
  const addedLine = scores.curve("added", "added_by_offset");
  const rotaryLine = scores.curve("rotary", "rotary_by_offset");
  const now = scores.curve("now");
  const [addedDot, rotaryDot] = [scores.dots("added"), scores.dots("rotary")];
  const handle = scores.handle({
    label: "offset",
    role: "offset",
    axis: "x",
    step: 1,
    onMove: (x) => frame.set({ key_position: Math.min(Math.max(frame.get("query_position") + x, low), high) }),
  });
  const legend = ["rotary", "added"].map((kind) =>
    element("span", { class: `mha-legend mha-${kind}` }, element("i"), kind === "rotary" ? "rotary" : "sinusoid added"),
  );
  const legends = element("p", { class: "mha-legends" }, ...legend);
  const head = element("div", { class: "mha-choices mha-curve-head" }, shown.node, legends);

  /**
   * @param {DialState} state @param {[number, number]} range of the scores
   * @param {DialNumbers} numbers
   */
  function draw(state, range, numbers) {
    const offset = state.keyPosition - state.queryPosition;
    const offsets = Float64Array.from({ length: high + 1 }, (_, position) => position - state.queryPosition);
    const score = state.shown === "pair" ? "pair_score" : "score";
    const [rotaryNow, addedNow] = ["rotary", "added"].map((name) => numbers[`${name}_${score}`]);
    scores.draw([-high, high], range);
    rotaryLine.draw(offsets, numbers.rotary_by_offset);
    addedLine.draw(offsets, numbers.added_by_offset);
    now.draw([offset, offset], range);
    rotaryDot.draw([offset], [rotaryNow]);
    addedDot.draw([offset], [addedNow]);
    handle.draw(offset, range[0]);
    const text = formatNumber(offset, 0);
    handle.node.setAttribute("aria-valuetext", text);
    scores.describe(`At offset ${text}: rotary ${formatNumber(rotaryNow)}, sinusoid added ${formatNumber(addedNow)}`);
  }
  return { nodes: [head, scores.node], draw };
}

/** @param {Frame} frame */
function build(frame) {
  const controls = dialControls(frame);
  const speed = element("p", { class: "mha-hint mha-speed" });
  const dials = dialPair(frame);
  const curves = dialCurves(frame);
  const hint = "Dashed: the arrows before their positions are applied. Drag q and k; all pairs hold the same arrows.";
  const words = element("p", { class: "mha-hint", text: hint });
  frame.body.append(controls.first, dials.node, speed, words, controls.node, ...curves.nodes);
  let made = "";
  let encoded = /** @type {Encoded | null} */ (null);
  /** @type {{state: DialState, numbers: DialNumbers} | null} */
  let before = null;

  return () => {
    const state = frame.read();
    const { queryPosition, keyPosition, ...fixed } = state;
    const wanted = JSON.stringify(fixed);
    if (wanted !== made || !encoded) encoded = encodeDial(state);
    made = wanted;
    const numbers = computeDial(state, encoded);
    controls.draw(state);
    const degrees = formatNumber((encoded.frequency * 180) / Math.PI, 2);
    const columns = `columns ${2 * state.pair} and ${2 * state.pair + 1}`;
    const offset = formatNumber(keyPosition - queryPosition, 0);
    speed.textContent = `Pair ${state.pair}, ${columns}: ${degrees}° per position, offset ${offset}.`;
    dials.draw(state, encoded, numbers);
    curves.draw(state, encoded.range, numbers);
    if (before) frame.say(describeDial(before, { state, numbers }));
    before = { state, numbers };
    frame.report(() => numbers);
  };
}

/**
 * @param {{state: DialState, numbers: DialNumbers}} before
 * @param {{state: DialState, numbers: DialNumbers}} after
 */
function describeDial(before, { state, numbers }) {
  const [m, n] = [state.queryPosition - before.state.queryPosition, state.keyPosition - before.state.keyPosition];
  const [rotary, added] = [numbers.rotary_pair_score, numbers.added_pair_score].map((score) => formatNumber(score));
  const hasMoved = m === n && m !== 0;
  if (hasMoved && Math.abs(numbers.rotary_pair_score - before.numbers.rotary_pair_score) < 1e-4) {
    const addedBefore = formatNumber(before.numbers.added_pair_score);
    const moved = formatNumber(m, 0);
    return added === addedBefore
      ? `Both moved by ${moved}: the rotary score stays ${rotary}; with the sinusoid added, the score stays ${added}.`
      : `Both moved by ${moved}: the rotary score stays ${rotary}; with the sinusoid added, the score goes from ${addedBefore} to ${added}.`;
  }
  const offset = formatNumber(state.keyPosition - state.queryPosition, 0);
  return `Pair ${state.pair}, offset ${offset}: rotary score ${rotary}, with the sinusoid added ${added}.`;
}

export default widget({ name: "rotation-dial", label: "Rotation dial" }, build);
