// The table of sines and cosines as a heatmap, one pair of columns as curves, and the similarity of
// positions.

import { formatNumber } from "../shared/format.js";
import { element, focusedNear, isShortcut, mark, widget } from "../shared/frame.js";
import { colorBar, placeByKey } from "../shared/number_map.js";
import { facts, slider, sliderPair } from "../shared/parts.js";
import { pixelCanvas } from "../shared/pixel_canvas.js";
import { plane } from "../shared/plane.js";
import { computePosition, computeTable, dotProduct } from "./position_math.js";

/** @typedef {import("../shared/frame.js").Frame} Frame */
/** @typedef {import("../shared/attention_math.js").Matrix} Matrix */

const SINES = { low: -1, high: 1 }; // the colour scale of sines and cosines

/** @typedef {{numPositions: number, embedDim: number, base: number, position: number, column: number}} PositionState */

/** @param {number} column */
const positionWords = (column) => (column % 2 === 0 ? `sine of pair ${column >> 1}` : `cosine of pair ${column >> 1}`);

/** Draws the numbers of the table as pixels, because one element per number would be too many. */
function tablePicture() {
  const picture = pixelCanvas();
  const { node } = picture;
  node.removeAttribute("aria-hidden");
  node.setAttribute("role", "img");

  /** @param {Matrix} rows */
  function draw(rows) {
    picture.draw(rows, SINES);
    node.setAttribute("aria-label", `Table of ${rows.length} positions by ${rows[0].length} columns, numbers from −1 to 1`);
    mark(node, "table", rows.flatMap((line) => Array.from(line)));
  }
  return { node, draw };
}

/** The picture of the table with its axes, and the marks of a row and of a pair of columns. */
function tableOfPositions() {
  const picture = tablePicture();
  const rowMark = element("div", { class: "mha-row-mark" });
  const pairMark = element("div", { class: "mha-pair-mark" });
  const cursor = element("div", { class: "mha-cursor" });
  const area = element("div", { class: "mha-picture" }, picture.node, rowMark, pairMark, cursor);
  const [first, last] = [element("span", { text: "0" }), element("span")];
  const [top, bottom] = [element("span", { text: "0" }), element("span")];
  const node = element(
    "div",
    { class: "mha-table-map" },
    element("div", { class: "mha-rows", "aria-hidden": "true" }, top, element("span", { text: "position" }), bottom),
    area,
    element("div", { class: "mha-columns", "aria-hidden": "true" }, first, element("span", { text: "column (embed_dim)" }), last),
  );

  /** @param {Matrix} rows */
  function drawTable(rows) {
    picture.draw(rows);
    bottom.textContent = String(rows.length - 1);
    last.textContent = rows[0].length > 1 ? String(rows[0].length - 1) : "";
  }

  /** @param {PositionState} state */
  function drawMarks({ numPositions, embedDim, position, column }) {
    const [cellHeight, cellWidth] = [100 / numPositions, 100 / embedDim];
    const [firstOfPair, isWhole] = [column & ~1, (column | 1) < embedDim];
    const numbers = [position * cellHeight, cellHeight, column * cellWidth, cellWidth];
    const [y, h, x, w] = numbers.map((number) => `${number}%`);
    Object.assign(rowMark.style, { top: y, height: h });
    Object.assign(pairMark.style, { left: `${firstOfPair * cellWidth}%`, width: `${(isWhole ? 2 : 1) * cellWidth}%` });
    Object.assign(cursor.style, { top: y, height: h, left: x, width: w });
  }
  return { node, area, cursor, drawTable, drawMarks };
}

/** The table as a picture, with a cursor that marks a row and a column. @param {Frame} frame */
function positionMap(frame) {
  const { node, area, cursor, drawTable: drawPicture, drawMarks } = tableOfPositions();
  const readout = element("p", { class: "mha-readout" });
  const sliders = sliderPair(frame, cursor, ["column in the table", "position in the table"]);
  /** @type {Matrix} */
  let table = [];
  let [row, column] = [0, 0];
  let pointed = /** @type {number[] | null} */ (null);

  const words = (/** @type {number} */ r, /** @type {number} */ c) =>
    `Position ${r}, column ${c}, ${positionWords(c)}: ${formatNumber(table[r][c])}`;
  function showReadout() {
    // The table may have become smaller while the pointer was on it.
    const isPointed = pointed && pointed[0] < table.length && pointed[1] < table[0].length;
    const place = isPointed ? pointed : cursor.contains(focusedNear(area)) ? [row, column] : null;
    readout.classList.toggle("mha-hint", !place);
    readout.textContent = place
      ? words(place[0], place[1])
      : "Point at the table to read a number. Click, or move the box with the arrow keys, to mark a row and a column.";
  }
  const placeOf = (/** @type {PointerEvent} */ event) => {
    const box = area.getBoundingClientRect();
    const index = (/** @type {number} */ share, /** @type {number} */ count) =>
      Math.min(Math.max(Math.floor(share * count), 0), count - 1);
    return [
      index((event.clientY - box.top) / box.height, table.length),
      index((event.clientX - box.left) / box.width, table[0].length),
    ];
  };
  const go = (/** @type {number[]} */ [r, c]) => {
    if (r === row && c === column) return;
    if (r >= 0 && r < table.length && c >= 0 && c < table[0].length) frame.set({ position: r, column: c });
  };
  frame.listen(area, "pointerdown", (event) => {
    if (event.button !== 0) return;
    area.setPointerCapture(event.pointerId);
    sliders.focus();
    event.preventDefault();
    go(placeOf(event));
  });
  frame.listen(area, "pointermove", (event) => {
    pointed = placeOf(event);
    if (area.hasPointerCapture(event.pointerId)) go(pointed);
    showReadout();
  });
  frame.listen(area, "pointerleave", () => {
    pointed = null;
    showReadout();
  });
  frame.listen(cursor, "focusin", showReadout);
  frame.listen(cursor, "focusout", showReadout);
  frame.listen(cursor, "keydown", (event) => {
    const isEnd = event.key === "Home" || event.key === "End";
    const ends = { Home: [0, column], End: [table.length - 1, column] };
    const byKey = placeByKey(event.key, [row, column], table[0].length, event.shiftKey ? 8 : 1);
    const target = isEnd && sliders.axis() === 1 ? ends[/** @type {"Home" | "End"} */ (event.key)] : byKey;
    if (!target || isShortcut(event)) return;
    event.preventDefault();
    pointed = null;
    if (target[1] !== column) sliders.focus(0);
    if (target[0] !== row) sliders.focus(1);
    go(target);
  });

  /** @param {Matrix} rows */
  function drawTable(rows) {
    table = rows;
    drawPicture(rows);
  }

  /** @param {PositionState} state */
  function drawPlace(state) {
    [row, column] = [state.position, state.column];
    drawMarks(state);
    const text = words(row, column);
    sliders.draw([
      { low: 0, high: state.embedDim - 1, now: column, text },
      { low: 0, high: state.numPositions - 1, now: row, text },
    ]);
    showReadout();
  }
  return { node, readout, drawTable, drawPlace };
}

/** A sample of a line and its meaning. @param {string} kind */
function positionLegend(kind) {
  const text = element("span");
  const node = element("span", { class: `mha-legend mha-${kind}` }, element("i"), text);
  return { node, draw: (/** @type {string} */ words) => ((node.hidden = words === ""), (text.textContent = words)) };
}

/**
 * Dots in one path, because so many elements would be slow. Each is a line of length zero with round ends.
 * @param {ReturnType<typeof plane>} on @param {string} kind
 */
function positionDots(on, kind) {
  const curve = on.curve(`dotted mha-${kind}`);
  /** @param {Float64Array} xs @param {Float64Array} ys @param {number} size in pixels */
  function draw(xs, ys, size) {
    const [thrice, gaps] = [new Float64Array(3 * xs.length), new Float64Array(3 * xs.length).fill(NaN)];
    xs.forEach((x, index) => {
      thrice.fill(x, 3 * index, 3 * index + 2);
      gaps.fill(ys[index], 3 * index, 3 * index + 2);
    });
    curve.node.style.strokeWidth = `${size}px`;
    curve.draw(thrice, gaps);
  }
  return { node: curve.node, draw };
}

/** @param {Frame} frame */
function positionControls(frame) {
  const numPositions = slider(frame, "num_positions");
  const embedDim = slider(frame, "embed_dim");
  const base = slider(frame, "base", (value) => frame.set({ base: Number((10 ** value).toPrecision(2)) }));
  const position = slider(frame, "position");
  const column = slider(frame, "column", "column", (value) => ({ said: `${value}, ${positionWords(value)}` }));
  const sliders = [numPositions, position, embedDim, column, base].map(({ node }) => node);
  const [low, high] = [frame.limits("base").low, frame.limits("base").high].map(Math.log10);

  /** @param {PositionState} state */
  function draw(state) {
    base.draw(Math.log10(state.base), { low, high, step: 0.1, text: String(state.base) });
  }
  return { node: element("div", { class: "mha-controls" }, ...sliders), draw };
}

/** Sine and cosine of the marked pair of columns, and the sine of the next pair. @param {Frame} frame */
function pairCurves(frame) {
  const title = element("p", { class: "mha-title mha-pair" });
  const legend = ["sine", "cosine", "next"].map(positionLegend);
  const label = "One pair of columns";
  const curves = plane(frame, { label, xName: `position`, yName: `encoding`, ratio: 2.6, ticks: [6, 3] });
  const next = curves.curve("next");
  const [sineLine, cosineLine] = [curves.curve("sine"), curves.curve("cosine")];
  const [sineDots, cosineDots] = [positionDots(curves, "sine"), positionDots(curves, "cosine")];
  const atPosition = curves.curve("here");
  const handle = curves.handle({
    label: "position on the curves",
    role: "position",
    axis: "x",
    step: 1,
    onMove: (x) => frame.set({ position: x }),
  });
  const legends = element("p", { class: "mha-legends" }, ...legend.map((entry) => entry.node));

  /**
   * @param {PositionState} state @param {Float64Array} frequencies of all pairs
   * @param {ReturnType<typeof computePosition>} numbers
   */
  function draw({ numPositions, position, column }, frequencies, { sine, cosine, frequency, wavelength }) {
    const last = numPositions - 1;
    const pair = column >> 1;
    // The encoding exists only at whole positions; the thin lines between them just guide the eye.
    const fine = Float64Array.from({ length: 4 * last + 1 }, (_, index) => index / 4);
    const isWhole = cosine.length > 0;
    const hasNext = pair + 1 < frequencies.length;
    const places = Float64Array.from(sine, (_, index) => index);
    const size = dotSize(numPositions);
    curves.draw([0, last], [-1.15, 1.15]);
    next.draw(hasNext ? fine : [], fine.map((x) => Math.sin(x * frequencies[pair + 1])));
    sineLine.draw(fine, fine.map((x) => Math.sin(x * frequency)));
    cosineLine.draw(isWhole ? fine : [], fine.map((x) => Math.cos(x * frequency)));
    sineDots.draw(places, sine, size);
    cosineDots.draw(isWhole ? places : places.subarray(0, 0), cosine, size);
    mark(sineDots.node, "sine", sine);
    mark(cosineDots.node, "cosine", cosine);
    atPosition.draw([position, position], [-1.15, 1.15]);
    handle.draw(position, -1.15);
    handle.node.setAttribute("aria-valuetext", String(position));
    const values = [sine, ...(isWhole ? [cosine] : [])].map((curve) => formatNumber(curve[position], 3));
    title.textContent = `Pair ${pair}, position ${position}: (${values.join(", ")})`;
    curves.describe(`Pair ${pair}: wavelength ${formatNumber(wavelength, 1)} positions`);
    legend[0].draw(`column ${2 * pair}, sin`);
    legend[1].draw(isWhole ? `${2 * pair + 1}, cos` : "");
    legend[2].draw(hasNext ? `${2 * pair + 2}, sin of pair ${pair + 1}` : "");
  }
  return { nodes: [title, legends, curves.node], draw };
}

/** The dot products of the marked position with all positions. @param {Frame} frame */
function similarityCurve(frame) {
  const title = element("p", { class: "mha-title" });
  const alike = plane(frame, {
    label: "Dot products of encodings",
    xName: "offset from the position",
    yName: "dot product",
    ratio: 2.6,
    ticks: [6, 3],
  });
  const fromFirst = alike.curve("faint");
  const line = alike.curve("alike", "similarity");
  const dots = positionDots(alike, "alike");
  const atZero = alike.curve("here");
  const readout = element("p", { class: "mha-hint" });
  let shown = /** @type {{position: number, similarity: Float64Array} | null} */ (null);
  let pointed = /** @type {number | null} */ (null);

  function showReadout() {
    if (!shown) return;
    const { position, similarity } = shown;
    const offset = pointed !== null && position + pointed in similarity ? pointed : 0;
    const number = formatNumber(similarity[position + offset], 3);
    readout.textContent =
      `Position ${position} · position ${position + offset} ` +
      `(offset ${formatNumber(offset, 0)}): ${number}. Grey: dot products with position 0.`;
  }
  const point = (/** @type {number | null} */ offset) => {
    pointed = offset;
    showReadout();
  };
  const pointAt = (/** @type {PointerEvent} */ event) => {
    if (!shown) return;
    const box = alike.area.getBoundingClientRect();
    const span = shown.similarity.length - 1;
    point(Math.round(((event.clientX - box.left) / box.width) * 2 * span - span));
  };
  for (const type of ["pointermove", "pointerdown"]) frame.listen(alike.area, type, pointAt);
  frame.listen(alike.area, "pointerleave", () => point(null));

  /**
   * @param {PositionState} state @param {ReturnType<typeof computeTable>} computed
   * @param {Float64Array} similarity
   */
  function draw({ numPositions, position }, { table, lowest, highest }, similarity) {
    const last = numPositions - 1;
    const offsets = Float64Array.from(similarity, (_, index) => index - position);
    const margin = 0.06 * (highest - lowest);
    /** @type {[number, number]} */
    const range = [lowest - margin, highest + margin];
    alike.draw([-last, last], range);
    // Position 0 has offsets on one side only. On the other side, its curve is continued as a mirror image.
    const all = Float64Array.from({ length: 2 * last + 1 }, (_, index) => index - last);
    fromFirst.draw(all, all.map((offset) => dotProduct(table[0], table[Math.abs(offset)])));
    line.draw(offsets, similarity);
    dots.draw(offsets, similarity, dotSize(numPositions));
    atZero.draw([0, 0], range);
    title.textContent = `Dot products of position ${position} with every position`;
    alike.describe(`Position ${position} with itself: ${formatNumber(similarity[position], 2)}`);
    shown = { position, similarity };
    showReadout();
  }
  return { nodes: [title, alike.node, readout], draw };
}

/** @param {number} numPositions @returns {number} pixels */
const dotSize = (numPositions) => (numPositions > 32 ? 4 : 6);

/** @param {Frame} frame */
function build(frame) {
  const controls = positionControls(frame);
  const sizes = facts(["wavelength", "frequency", "encoding"]);
  const map = positionMap(frame);
  const scale = colorBar();
  const curves = pairCurves(frame);
  const similarity = similarityCurve(frame);
  const title = element("p", { class: "mha-title", text: "The table: one row for each position" });
  const question = "Most models use a base of 10,000. In which columns do neighbouring positions still differ visibly? Predict, then move the base there.";
  frame.body.append(
    element("p", { class: "mha-title mha-question", text: question }),
    controls.node,
    sizes.node,
    element(
      "div",
      { class: "mha-panes" },
      element("div", {}, title, map.node, scale.node, map.readout),
      element("div", {}, ...curves.nodes, ...similarity.nodes),
    ),
  );
  let drawn = "";
  let computed = /** @type {ReturnType<typeof computeTable> | null} */ (null);
  let before = /** @type {PositionState | null} */ (null);

  return () => {
    const state = frame.read();
    const key = [state.numPositions, state.embedDim, state.base].join(" ");
    if (key !== drawn || !computed) {
      computed = computeTable(state);
      map.drawTable(computed.table);
      scale.draw(SINES, "encoding");
    }
    drawn = key;
    const numbers = computePosition(state, computed);
    const { frequency, wavelength, encoding } = numbers;
    const pair = state.column >> 1;
    controls.draw(state);
    map.drawPlace(state);
    sizes.draw([
      { text: `${formatNumber(wavelength, 1)} positions`, hint: `2π / frequency, pair i = ${pair}`, number: wavelength },
      {
        text: `${formatNumber(frequency)} rad`,
        hint: `per position: ${state.base}^(−2 · ${pair} / ${state.embedDim})`,
        number: frequency,
      },
      {
        text: formatNumber(encoding),
        hint: `${state.column % 2 === 0 ? "sin" : "cos"}(${state.position} · ${formatNumber(frequency)})`,
        number: encoding,
      },
    ]);
    curves.draw(state, computed.frequencies, numbers);
    similarity.draw(state, computed, numbers.similarity);
    if (before) frame.say(describePosition(before, state, wavelength, encoding));
    before = state;
    frame.report(() => numbers);
  };
}

/**
 * @param {PositionState} before @param {PositionState} state @param {number} wavelength
 * @param {number} encoding
 */
function describePosition(before, state, wavelength, encoding) {
  const place = `Position ${state.position}, column ${state.column}, ${positionWords(state.column)}: ${formatNumber(encoding)}.`;
  const wave = `Pair ${state.column >> 1} has a wavelength of ${formatNumber(wavelength, 1)} positions.`;
  if (before.numPositions !== state.numPositions) return `${state.numPositions} positions.`;
  if (before.embedDim !== state.embedDim) return `Width ${state.embedDim}. ${wave}`;
  if (before.base !== state.base) return `Base ${state.base}. ${wave}`;
  return before.column >> 1 === state.column >> 1 ? place : `${place} ${wave}`;
}

export default widget({ name: "position-explorer", label: "Position explorer" }, build);
