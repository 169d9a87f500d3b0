// One pair of columns of a query and a key: turned by their positions (rotary), or with a sinusoid added.

import { element, formatNumber, mark, mount } from "./frame.js";
import { segments, slider } from "./parts.js";
import { plane } from "./plane.js";
import { applyRotary, dotProduct, pairFrequencies, rotaryAngles, sinusoidalEncoding } from "./position_math.js";

const DIAL_SETTINGS = ["query_position", "key_position", "pair", "head_dim", "base", "query_angle", "key_angle", "shown"];
const DIAL_LAST = 32; // the last position
const DIAL_SVG = "http://www.w3.org/2000/svg";
const DIAL_ROLES = /** @type {const} */ (["query", "key"]);

/** @typedef {"query" | "key"} DialRole */
/** @typedef {[number, number]} DialPoint */

/** @param {import("./frame.js").Frame} frame */
function readDial(frame) {
  const headDim = frame.whole("head_dim", 2, 64);
  if (headDim % 2) throw new RangeError(`head_dim must be even, got ${headDim}`);
  return {
    queryPosition: frame.whole("query_position", 0, DIAL_LAST),
    keyPosition: frame.whole("key_position", 0, DIAL_LAST),
    pair: frame.whole("pair", 0, headDim / 2 - 1),
    headDim,
    base: frame.real("base", 1, 1_000_000),
    queryAngle: frame.real("query_angle", -180, 180),
    keyAngle: frame.real("key_angle", -180, 180),
    shown: frame.choice("shown", ["pair", "all"]),
  };
}

/** @typedef {ReturnType<typeof readDial>} DialState */

/**
 * The same arrow of length 1 in every pair of columns.
 * @param {number} degrees
 * @param {number} headDim
 */
function dialVector(degrees, headDim) {
  const angle = (degrees * Math.PI) / 180;
  return Float64Array.from({ length: headDim }, (_, column) => (column % 2 === 0 ? Math.cos(angle) : Math.sin(angle)));
}

/**
 * @param {Float64Array} a
 * @param {Float64Array} b
 */
const dialSum = (a, b) => a.map((number, column) => number + b[column]);

/**
 * Query and key at every position, with both encodings, and the range of the scores: what does not depend on the two
 * positions.
 * @param {DialState} state
 */
function encodeDial({ pair, headDim, base, queryAngle, keyAngle, shown }) {
  const [query, key] = [queryAngle, keyAngle].map((angle) => dialVector(angle, headDim));
  const table = sinusoidalEncoding(DIAL_LAST + 1, headDim, base);
  const turns = table.map((_, position) => rotaryAngles(position, headDim, base));
  const ofPair = (/** @type {Float64Array} */ x) => x.subarray(2 * pair, 2 * pair + 2);
  const encodings = [
    { name: "rotary", queries: turns.map((angles) => applyRotary(query, angles)), keys: turns.map((angles) => applyRotary(key, angles)) },
    { name: "added", queries: table.map((row) => dialSum(query, row)), keys: table.map((row) => dialSum(key, row)) },
  ];
  let [lowest, highest] = [0, 0];
  for (const { queries, keys } of encodings) {
    for (const q of queries) {
      for (const k of keys) {
        const score = shown === "pair" ? dotProduct(ofPair(q), ofPair(k)) : dotProduct(q, k);
        lowest = Math.min(lowest, score);
        highest = Math.max(highest, score);
      }
    }
  }
  const margin = 0.05 * (highest - lowest);
  return {
    encodings,
    ofPair,
    query: ofPair(query),
    key: ofPair(key),
    frequency: pairFrequencies(headDim, base)[pair],
    range: /** @type {DialPoint} */ ([lowest - margin, highest + margin]),
  };
}

/**
 * @param {DialState} state
 * @param {ReturnType<typeof encodeDial>} encoded
 */
function computeDial({ queryPosition, keyPosition, shown }, { encodings, ofPair }) {
  /** @type {Object<string, any>} */
  const numbers = {};
  for (const { name, queries, keys } of encodings) {
    const query = queries[queryPosition];
    const all = Float64Array.from(keys, (k) => dotProduct(query, k));
    const one = Float64Array.from(keys, (k) => dotProduct(ofPair(query), ofPair(k)));
    numbers[`${name}_query`] = ofPair(query);
    numbers[`${name}_key`] = ofPair(keys[keyPosition]);
    numbers[`${name}_pair_score`] = one[keyPosition];
    numbers[`${name}_score`] = all[keyPosition];
    numbers[`${name}_by_offset`] = shown === "pair" ? one : all;
  }
  return numbers;
}

/**
 * Degrees in -180..180.
 * @param {number} degrees
 */
const wrapDegrees = (degrees) => (Math.abs(degrees) <= 180 ? degrees : degrees - 360 * Math.round(degrees / 360));

/**
 * @param {string} tag
 * @param {string} kind
 * @param {SVGElement} parent
 */
function dialShape(tag, kind, parent) {
  const shape = document.createElementNS(DIAL_SVG, tag);
  shape.setAttribute("class", kind);
  parent.append(shape);
  return shape;
}

/**
 * A line with a head, from one point to another.
 * @param {SVGElement} parent
 * @param {string} kind
 * @param {number} size of the head; 0 for none
 * @param {string} [name] keeps the point where it ends in the page
 */
function dialArrow(parent, kind, size, name) {
  const path = dialShape("path", `mha-arrow ${kind}`, parent);
  /**
   * @param {ArrayLike<number>} from
   * @param {ArrayLike<number>} to
   */
  function draw(from, to) {
    const [dx, dy] = [to[0] - from[0], to[1] - from[1]];
    const length = Math.hypot(dx, dy);
    let d = "";
    if (length > 1e-6) {
      // Shorter than its head it is a head alone.
      const head = Math.min(size, length);
      const [ux, uy] = [dx / length, dy / length];
      const [nx, ny] = [to[0] - head * ux, to[1] - head * uy];
      const wide = 0.45 * head;
      const points = [from, to, [nx - wide * uy, ny + wide * ux], [nx + wide * uy, ny - wide * ux]];
      const [a, b, left, right] = points.map((point) => `${point[0].toFixed(4)} ${(-point[1]).toFixed(4)}`);
      d = `M${a}L${b}${head > 0 ? `M${left}L${b}L${right}` : ""}`;
    }
    path.setAttribute("d", d);
    if (name) mark(path, name, to);
  }
  return { draw };
}

/**
 * A circle with the arrows of query and key on it.
 * @param {string} name of the numbers
 * @param {number} reach from the middle to the edge
 * @param {string} title
 * @param {boolean} hasKnobs at the tips of the arrows, in the place of their heads
 */
function buildDial(name, reach, title, hasKnobs) {
  const svg = document.createElementNS(DIAL_SVG, "svg");
  svg.setAttribute("viewBox", [-reach, -reach, 2 * reach, 2 * reach].join(" "));
  svg.setAttribute("role", "img");
  const circle = dialShape("circle", "mha-circle", svg);
  circle.setAttribute("r", "1");
  for (const d of [`M${-reach} 0H${reach}`, `M0 ${-reach}V${reach}`]) dialShape("path", "mha-axis", svg).setAttribute("d", d);
  const head = 0.09 * reach;
  const [query, key] = DIAL_ROLES.map((role) => ({
    before: dialArrow(svg, `mha-${role} mha-before`, head),
    step: dialArrow(svg, `mha-${role} mha-by-position`, head),
    arc: dialShape("path", `mha-arrow mha-${role} mha-by-position`, svg),
    after: dialArrow(svg, `mha-${role}`, hasKnobs ? 0 : head, `${name}_${role}`),
  }));
  const area = element("div", { class: "mha-dial" }, svg);
  const [pairScore, score] = [element("strong"), element("strong")];
  const allText = element("span");
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
  allText.className = "mha-name";

  /**
   * @param {Object<string, any>} numbers
   * @param {number} pairs
   */
  function drawScores(numbers, pairs) {
    allText.textContent = pairs === 1 ? "all of them (1 pair)" : `all ${pairs} pairs`;
    pairScore.textContent = formatNumber(numbers[`${name}_pair_score`]);
    score.textContent = formatNumber(numbers[`${name}_score`]);
    mark(pairScore, `${name}_pair_score`, numbers[`${name}_pair_score`]);
    mark(score, `${name}_score`, numbers[`${name}_score`]);
  }
  return { node, area, svg, query, key, reach, drawScores };
}

/**
 * The tip of an arrow, which can be dragged round the circle and turned with the arrow keys.
 * @param {import("./frame.js").Frame} frame
 * @param {ReturnType<typeof buildDial>} dial
 * @param {DialRole} role
 * @param {(degrees: number) => void} onTurn the wanted direction of the arrow, as it stands on the dial
 * @param {(degrees: number) => void} onStep by how much the keys turn it
 */
function dialHandle(frame, dial, role, onTurn, onStep) {
  const knob = element("div", {
    class: `mha-handle mha-${role}`,
    role: "slider",
    tabindex: 0,
    "aria-label": `Direction of the ${role}'s arrow, without its position`,
    "aria-valuemin": -180,
    "aria-valuemax": 180,
  });
  dial.area.append(knob);
  let current = 0;
  frame.listen(knob, "pointerdown", (event) => {
    knob.setPointerCapture(event.pointerId);
    knob.focus();
    event.preventDefault();
  });
  frame.listen(knob, "pointermove", (event) => {
    if (!knob.hasPointerCapture(event.pointerId)) return;
    const box = dial.area.getBoundingClientRect();
    const [x, y] = [event.clientX - box.left - box.width / 2, box.top + box.height / 2 - event.clientY];
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
    if (turn === undefined || event.ctrlKey || event.metaKey || event.altKey) return;
    event.preventDefault();
    onStep(turn);
  });
  /**
   * @param {ArrayLike<number>} tip
   * @param {number} degrees
   */
  function draw(tip, degrees) {
    current = degrees;
    knob.style.left = `${50 + (50 * tip[0]) / dial.reach}%`;
    knob.style.bottom = `${50 + (50 * tip[1]) / dial.reach}%`;
    knob.textContent = role[0];
    knob.setAttribute("aria-valuenow", String(degrees));
    knob.setAttribute("aria-valuetext", `${formatNumber(degrees, 0)} degrees`);
  }
  return { draw };
}

/**
 * The arc from one direction on by an angle, whole turns left out.
 * @param {ArrayLike<number>} from
 * @param {number} angle
 * @param {number} radius
 */
function dialArc(from, angle, radius) {
  const rest = angle % (2 * Math.PI);
  const start = Math.atan2(from[1], from[0]);
  const [a, b] = [start, start + rest].map((way) => `${(radius * Math.cos(way)).toFixed(4)} ${(-radius * Math.sin(way)).toFixed(4)}`);
  return rest > 1e-6 ? `M${a}A${radius} ${radius} 0 ${rest > Math.PI ? 1 : 0} 0 ${b}` : "";
}

/** @param {import("./frame.js").Frame} frame */
function build(frame) {
  const query = slider(frame, "query_position", (value) => frame.set({ query_position: value }));
  const key = slider(frame, "key_position", (value) => frame.set({ key_position: value }));
  // The smaller of the two stands for both.
  const both = slider(frame, "move both", (value) => {
    const [m, n] = [frame.get("query_position"), frame.get("key_position")];
    const first = Math.min(m, n);
    frame.set({ query_position: m - first + value, key_position: n - first + value });
  });
  const pair = slider(frame, "pair", (value) => frame.set({ pair: value }));
  const headDim = slider(frame, "head_dim", (value) =>
    frame.set({ head_dim: value, pair: Math.min(frame.get("pair"), value / 2 - 1) }),
  );
  const base = slider(frame, "base", (value) => frame.set({ base: Number((10 ** value).toPrecision(2)) }));
  const speed = element("p", { class: "mha-hint mha-speed" });
  const rotary = buildDial("rotary", 1.25, "Rotary: query and key are turned", true);
  const added = buildDial("added", 2.15, "Sinusoid: an arrow is added to both", false);
  const shown = segments(frame, "Score of", [["pair", "this pair"], ["all", "all pairs"]], (value) => frame.set({ shown: value }));
  const scores = plane(frame, { label: "Score against the offset", xName: "offset: key_position − query_position", yName: "query · key", ratio: 4, ticks: [8, 3] });
  const addedLine = scores.curve("added", "added_by_offset");
  const rotaryLine = scores.curve("rotary", "rotary_by_offset");
  const now = scores.curve("now");
  const [addedDot, rotaryDot] = [scores.dots("added"), scores.dots("rotary")];
  const offsetHandle = scores.handle({
    label: "offset",
    role: "offset",
    axis: "x",
    step: 1,
    onMove: (x) => {
      const position = frame.get("query_position") + x;
      frame.set({ key_position: Math.min(Math.max(position, 0), DIAL_LAST) });
    },
  });
  const legend = ["rotary", "added"].map((kind) =>
    element("span", { class: `mha-legend mha-${kind}` }, element("i"), kind === "rotary" ? "rotary" : "sinusoid added"),
  );
  const hint = "Dotted: the arrows without a position. Drag q and k; all pairs hold the same arrows.";
  frame.body.append(
    element("div", { class: "mha-controls" }, query.node, pair.node, key.node, headDim.node, both.node, base.node),
    speed,
    element("p", { class: "mha-hint", text: hint }),
    element("div", { class: "mha-panes" }, rotary.node, added.node),
    element("div", { class: "mha-choices mha-curve-head" }, shown.node, element("p", { class: "mha-legends" }, ...legend)),
    scores.node,
  );

  let turns = { query: 0, key: 0 }; // in degrees, what the position adds
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
  let made = "";
  let encoded = /** @type {ReturnType<typeof encodeDial> | null} */ (null);
  /** @type {{state: DialState, numbers: Object<string, any>} | null} */
  let before = null;

  return () => {
    const state = readDial(frame);
    const { queryPosition, keyPosition, ...fixed } = state;
    const wanted = JSON.stringify(fixed);
    if (wanted !== made || !encoded) encoded = encodeDial(state);
    made = wanted;
    const { frequency, range } = encoded;
    const numbers = computeDial(state, encoded);
    const offset = keyPosition - queryPosition;
    const pairs = state.headDim / 2;
    const first = Math.min(state.queryPosition, state.keyPosition);
    const degrees = (frequency * 180) / Math.PI;
    turns = { query: state.queryPosition * degrees, key: state.keyPosition * degrees };
    query.draw(state.queryPosition, { low: 0, high: DIAL_LAST });
    key.draw(state.keyPosition, { low: 0, high: DIAL_LAST });
    both.draw(first, {
      low: 0,
      high: DIAL_LAST - Math.abs(offset),
      text: `${state.queryPosition}, ${state.keyPosition}`,
      said: `query_position ${state.queryPosition}, key_position ${state.keyPosition}`,
    });
    pair.draw(state.pair, { low: 0, high: pairs - 1 });
    headDim.draw(state.headDim, { low: 2, high: 64, step: 2 });
    base.draw(Math.log10(state.base), { low: 0, high: 6, step: 0.1, text: String(state.base) });
    shown.draw(state.shown);
    speed.textContent =
      `Pair ${state.pair}, columns ${2 * state.pair} and ${2 * state.pair + 1}: ${formatNumber(degrees, 2)}° a position, ` +
      `offset ${formatNumber(offset, 0)}.`;

    const arrows = encoded;
    DIAL_ROLES.forEach((role, index) => {
      const arrow = arrows[role];
      rotary[role].before.draw([0, 0], arrow);
      rotary[role].after.draw([0, 0], numbers[`rotary_${role}`]);
      rotary[role].arc.setAttribute("d", dialArc(arrow, (turns[role] * Math.PI) / 180, index === 0 ? 0.42 : 0.56));
      added[role].before.draw([0, 0], arrow);
      added[role].step.draw(arrow, numbers[`added_${role}`]);
      added[role].after.draw([0, 0], numbers[`added_${role}`]);
      handles[index].draw(numbers[`rotary_${role}`], role === "query" ? state.queryAngle : state.keyAngle);
    });
    rotary.svg.setAttribute(
      "aria-label",
      `Dial: the query is turned by ${formatNumber(turns.query, 0)} degrees, the key by ${formatNumber(turns.key, 0)}`,
    );
    added.svg.setAttribute("aria-label", "Dial: query and key, each with the arrow of its position added");
    rotary.drawScores(numbers, pairs);
    added.drawScores(numbers, pairs);

    const offsets = Float64Array.from({ length: DIAL_LAST + 1 }, (_, position) => position - state.queryPosition);
    const isPair = state.shown === "pair";
    const [rotaryNow, addedNow] = ["rotary", "added"].map((name) => numbers[isPair ? `${name}_pair_score` : `${name}_score`]);
    scores.draw([-DIAL_LAST, DIAL_LAST], range);
    rotaryLine.draw(offsets, numbers.rotary_by_offset);
    addedLine.draw(offsets, numbers.added_by_offset);
    now.draw([offset, offset], range);
    rotaryDot.draw([offset], [rotaryNow]);
    addedDot.draw([offset], [addedNow]);
    offsetHandle.draw(offset, range[0]);
    offsetHandle.node.setAttribute("aria-valuetext", formatNumber(offset, 0));
    scores.describe(`At offset ${formatNumber(offset, 0)}: rotary ${formatNumber(rotaryNow)}, sinusoid added ${formatNumber(addedNow)}`);

    if (before) frame.say(describeDial(before, { state, numbers }));
    before = { state, numbers };
    frame.report(() => numbers);
  };
}

/**
 * @param {{state: DialState, numbers: Object<string, any>}} before
 * @param {{state: DialState, numbers: Object<string, any>}} after
 */
function describeDial(before, { state, numbers }) {
  const [m, n] = [state.queryPosition - before.state.queryPosition, state.keyPosition - before.state.keyPosition];
  const [rotary, added] = [numbers.rotary_pair_score, numbers.added_pair_score].map((score) => formatNumber(score));
  const hasMoved = m === n && m !== 0;
  if (hasMoved && Math.abs(numbers.rotary_pair_score - before.numbers.rotary_pair_score) < 1e-4) {
    const addedBefore = formatNumber(before.numbers.added_pair_score);
    const change = added === addedBefore ? `stays ${added}` : `goes from ${addedBefore} to ${added}`;
    return `Both moved by ${formatNumber(m, 0)}: the rotary score stays ${rotary}, with the sinusoid added it ${change}.`;
  }
  const offset = formatNumber(state.keyPosition - state.queryPosition, 0);
  return `Pair ${state.pair}, offset ${offset}: rotary score ${rotary}, with the sinusoid added ${added}.`;
}

/** @param {import("./frame.js").Frame} frame */
function dialPython(frame) {
  const { queryPosition, keyPosition, pair, headDim, base, queryAngle, keyAngle, shown } = readDial(frame);
  return `import torch

from mha_lib import apply_rotary, dot_product_score, rotary_angles, sinusoidal_encoding

m, n, pair, head_dim, base = ${queryPosition}, ${keyPosition}, ${pair}, ${headDim}, ${base}


def arrows(degrees):
    """The same arrow of length 1 in each pair of columns."""
    way = torch.tensor(degrees, dtype=torch.float64).deg2rad()
    return torch.stack((way.cos(), way.sin())).repeat(head_dim // 2)


def scores(queries, keys):
    """Of this pair and of all pairs, the query at m with the keys at all positions."""
    columns = slice(2 * pair, 2 * pair + 2)
    of_pair = dot_product_score(queries[m : m + 1, columns], keys[:, columns])[0]
    return queries[m, columns], keys[n, columns], of_pair, dot_product_score(queries[m : m + 1], keys)[0]


query, key = arrows(${queryAngle}), arrows(${keyAngle})
angles = rotary_angles(${DIAL_LAST + 1}, head_dim, base=base).double()
table = sinusoidal_encoding(${DIAL_LAST + 1}, head_dim, base=base).double()

rotary_query, rotary_key, of_pair, of_all = scores(
    apply_rotary(query.expand(len(angles), -1), angles),
    apply_rotary(key.expand(len(angles), -1), angles),
)
rotary_pair_score, rotary_score = of_pair[n], of_all[n]
rotary_by_offset = ${shown === "pair" ? "of_pair" : "of_all"}  # offsets -m, 1 - m, ...

added_query, added_key, of_pair, of_all = scores(query + table, key + table)
added_pair_score, added_score = of_pair[n], of_all[n]
added_by_offset = ${shown === "pair" ? "of_pair" : "of_all"}
print(f"pair {pair}: rotary {rotary_pair_score:.4f}, sinusoid added {added_pair_score:.4f}")
`;
}

export default {
  /** @param {{model: import("./frame.js").Model, el: HTMLElement}} view */
  render: (view) =>
    mount(view, { name: "rotation-dial", label: "Rotation dial", settings: DIAL_SETTINGS, python: dialPython }, build),
};
