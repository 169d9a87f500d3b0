// The table of sines and cosines: as a heatmap, one pair of columns as curves, and how alike two positions are.

import { viridis } from "./colors.js";
import { element, formatNumber, mark, mount } from "./frame.js";
import { colorBar } from "./number_map.js";
import { facts, slider } from "./parts.js";
import { plane } from "./plane.js";
import { dotProduct, pairFrequencies, sinusoidalEncoding } from "./position_math.js";

const POSITION_SETTINGS = ["num_positions", "embed_dim", "base", "position", "column"];
const POSITION_LARGEST = 64;
const POSITION_SHADES = 256;

/** @param {import("./frame.js").Frame} frame */
function readPosition(frame) {
  const numPositions = frame.whole("num_positions", 2, POSITION_LARGEST);
  const embedDim = frame.whole("embed_dim", 1, POSITION_LARGEST);
  return {
    numPositions,
    embedDim,
    base: frame.real("base", 1, 1_000_000),
    position: frame.whole("position", 0, numPositions - 1),
    column: frame.whole("column", 0, embedDim - 1),
  };
}

/** @typedef {ReturnType<typeof readPosition>} PositionState */

/**
 * The table, and the lowest and the highest dot product of two of its rows: what does not depend on the marked place.
 * @param {PositionState} state
 */
function computeTable({ numPositions, embedDim, base }) {
  const table = sinusoidalEncoding(numPositions, embedDim, base);
  let [lowest, highest] = [0, 0];
  for (let a = 0; a < numPositions; a += 1) {
    for (let b = a; b < numPositions; b += 1) {
      const product = dotProduct(table[a], table[b]);
      lowest = Math.min(lowest, product);
      highest = Math.max(highest, product);
    }
  }
  return { table, frequencies: pairFrequencies(embedDim, base), lowest, highest };
}

/**
 * @param {PositionState} state
 * @param {ReturnType<typeof computeTable>} computed
 */
function computePosition({ embedDim, position, column }, { table, frequencies }) {
  const pair = column >> 1;
  const hasCosine = 2 * pair + 1 < embedDim;
  return {
    table,
    frequency: frequencies[pair],
    wavelength: (2 * Math.PI) / frequencies[pair],
    encoding: table[position][column],
    sine: Float64Array.from(table, (row) => row[2 * pair]),
    cosine: hasCosine ? Float64Array.from(table, (row) => row[2 * pair + 1]) : new Float64Array(0),
    similarity: Float64Array.from(table, (row) => dotProduct(row, table[position])),
  };
}

/** @param {number} column */
const positionWords = (column) => `${column % 2 === 0 ? "sine" : "cosine"} of pair ${column >> 1}`;

/**
 * The table as a picture, with a cursor that marks a row and a column. As many numbers as here are too slow as elements.
 * @param {import("./frame.js").Frame} frame
 */
function positionMap(frame) {
  const shades = Array.from({ length: POSITION_SHADES }, (_, shade) => viridis(shade / (POSITION_SHADES - 1)));
  const canvas = element("canvas", { role: "img" });
  const context = /** @type {CanvasRenderingContext2D} */ (canvas.getContext("2d"));
  const rowMark = element("div", { class: "mha-row-mark" });
  const pairMark = element("div", { class: "mha-pair-mark" });
  const cursor = element("button", { type: "button", class: "mha-cursor" });
  const picture = element("div", { class: "mha-picture" }, canvas, rowMark, pairMark, cursor);
  const readout = element("p", { class: "mha-readout" });
  const [first, last] = [element("span", { text: "0" }), element("span")];
  const [top, bottom] = [element("span", { text: "0" }), element("span")];
  const node = element(
    "div",
    { class: "mha-table-map" },
    element("div", { class: "mha-rows", "aria-hidden": "true" }, top, element("span", { text: "position" }), bottom),
    picture,
    element("div", { class: "mha-columns", "aria-hidden": "true" }, first, element("span", { text: "column (embed_dim)" }), last),
  );
  /** @type {import("./attention_math.js").Matrix} */
  let table = [];
  let [row, column] = [0, 0];
  let pointed = /** @type {number[] | null} */ (null);

  const words = (/** @type {number} */ r, /** @type {number} */ c) =>
    `Position ${r}, column ${c}, ${positionWords(c)}: ${formatNumber(table[r][c])}`;
  function showReadout() {
    const root = /** @type {Document} */ (picture.getRootNode());
    // A table may have become smaller under the pointer.
    const isPointed = pointed && pointed[0] < table.length && pointed[1] < table[0].length;
    const place = isPointed ? pointed : root.activeElement === cursor ? [row, column] : null;
    readout.classList.toggle("mha-hint", !place);
    readout.textContent = place
      ? words(place[0], place[1])
      : "Point at the table to read a number. Click, or move the box with the arrow keys, to mark a row and a column.";
  }
  const placeOf = (/** @type {PointerEvent} */ event) => {
    const box = picture.getBoundingClientRect();
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
  frame.listen(picture, "pointerdown", (event) => {
    if (event.button !== 0) return;
    picture.setPointerCapture(event.pointerId);
    cursor.focus({ preventScroll: true });
    event.preventDefault();
    go(placeOf(event));
  });
  frame.listen(picture, "pointermove", (event) => {
    pointed = placeOf(event);
    if (picture.hasPointerCapture(event.pointerId)) go(pointed);
    showReadout();
  });
  frame.listen(picture, "pointerleave", () => {
    pointed = null;
    showReadout();
  });
  frame.listen(cursor, "focus", showReadout);
  frame.listen(cursor, "blur", showReadout);
  frame.listen(cursor, "keydown", (event) => {
    const step = event.shiftKey ? 8 : 1;
    /** @type {Object<string, number[]>} */
    const targets = {
      ArrowUp: [row - step, column],
      ArrowDown: [row + step, column],
      ArrowLeft: [row, column - step],
      ArrowRight: [row, column + step],
      Home: [row, 0],
      End: [row, table[0].length - 1],
    };
    const target = targets[event.key];
    if (!target || event.ctrlKey || event.metaKey || event.altKey) return;
    event.preventDefault();
    pointed = null;
    go(target);
  });

  /** @param {import("./attention_math.js").Matrix} rows */
  function drawTable(rows) {
    table = rows;
    const [height, width] = [rows.length, rows[0].length];
    [canvas.width, canvas.height] = [width, height];
    const image = context.createImageData(width, height);
    let place = 0;
    for (const line of rows) {
      for (const number of line) {
        image.data.set(shades[Math.round(((number + 1) / 2) * (POSITION_SHADES - 1))], place);
        image.data[place + 3] = 255;
        place += 4;
      }
    }
    context.putImageData(image, 0, 0);
    canvas.setAttribute("aria-label", `Table of ${height} positions by ${width} columns, numbers from −1 to 1`);
    mark(canvas, "table", rows.flatMap((line) => Array.from(line)));
    bottom.textContent = String(height - 1);
    last.textContent = width > 1 ? String(width - 1) : "";
  }

  /** @param {PositionState} state */
  function drawPlace(state) {
    [row, column] = [state.position, state.column];
    const [cellHeight, cellWidth] = [100 / state.numPositions, 100 / state.embedDim];
    const [firstOfPair, isWhole] = [column & ~1, (column | 1) < state.embedDim];
    const [y, h, x, w] = [row * cellHeight, cellHeight, column * cellWidth, cellWidth].map((number) => `${number}%`);
    Object.assign(rowMark.style, { top: y, height: h });
    Object.assign(pairMark.style, { left: `${firstOfPair * cellWidth}%`, width: `${(isWhole ? 2 : 1) * cellWidth}%` });
    Object.assign(cursor.style, { top: y, height: h, left: x, width: w });
    cursor.setAttribute("aria-label", `${words(row, column)}; the arrow keys move the mark`);
    showReadout();
  }
  return { node, readout, drawTable, drawPlace };
}

/**
 * A short piece of line and what it stands for.
 * @param {string} kind
 */
function positionLegend(kind) {
  const text = element("span");
  const node = element("span", { class: `mha-legend mha-${kind}` }, element("i"), text);
  return { node, draw: (/** @type {string} */ words) => ((node.hidden = words === ""), (text.textContent = words)) };
}

/**
 * Dots in one path, each a line to where it began, with round ends: as elements so many would be slow.
 * @param {ReturnType<typeof plane>} on
 * @param {string} kind
 */
function positionDots(on, kind) {
  const curve = on.curve(`dotted mha-${kind}`);
  /**
   * @param {Float64Array} xs
   * @param {Float64Array} ys
   * @param {number} size in pixels
   */
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

/** @param {import("./frame.js").Frame} frame */
function build(frame) {
  const numPositions = slider(frame, "num_positions", (value) =>
    frame.set({ num_positions: value, position: Math.min(frame.get("position"), value - 1) }),
  );
  const embedDim = slider(frame, "embed_dim", (value) =>
    frame.set({ embed_dim: value, column: Math.min(frame.get("column"), value - 1) }),
  );
  const base = slider(frame, "base", (value) => frame.set({ base: Number((10 ** value).toPrecision(2)) }));
  const position = slider(frame, "position", (value) => frame.set({ position: value }));
  const column = slider(frame, "column", (value) => frame.set({ column: value }));
  const sizes = facts(["wavelength", "frequency", "encoding"]);
  const map = positionMap(frame);
  const scale = colorBar();

  const curvesTitle = element("p", { class: "mha-title mha-pair" });
  const legend = ["sine", "cosine", "next"].map(positionLegend);
  const curves = plane(frame, { label: "One pair of columns", xName: "position", yName: "encoding", ratio: 2.6, ticks: [6, 3] });
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

  const similarityTitle = element("p", { class: "mha-title" });
  const alike = plane(frame, { label: "Dot product of encodings", xName: "offset from the position", yName: "dot product", ratio: 2.6, ticks: [6, 3] });
  const fromFirst = alike.curve("faint");
  const alikeLine = alike.curve("alike", "similarity");
  const alikeDots = positionDots(alike, "alike");
  const atZero = alike.curve("here");
  const alikeReadout = element("p", { class: "mha-hint" });

  frame.body.append(
    element("div", { class: "mha-controls" }, numPositions.node, position.node, embedDim.node, column.node, base.node),
    sizes.node,
    element(
      "div",
      { class: "mha-panes" },
      element("div", {}, element("p", { class: "mha-title", text: "The table: one row a position" }), map.node, scale.node, map.readout),
      element(
        "div",
        {},
        curvesTitle,
        element("p", { class: "mha-legends" }, ...legend.map((entry) => entry.node)),
        curves.node,
        similarityTitle,
        alike.node,
        alikeReadout,
      ),
    ),
  );

  let drawn = "";
  let computed = /** @type {ReturnType<typeof computeTable> | null} */ (null);
  let numbers = /** @type {ReturnType<typeof computePosition> | null} */ (null);
  let shown = /** @type {PositionState | null} */ (null);
  let pointedOffset = /** @type {number | null} */ (null);

  function showSimilarity() {
    if (!shown || !numbers) return;
    const isThere = pointedOffset !== null && shown.position + pointedOffset in numbers.similarity;
    const offset = isThere ? Number(pointedOffset) : 0;
    const number = formatNumber(numbers.similarity[shown.position + offset], 3);
    alikeReadout.textContent = `Position ${shown.position} · position ${shown.position + offset} (offset ${formatNumber(offset, 0)}): ${number}. Grey: from position 0.`;
  }
  frame.listen(alike.area, "pointermove", (event) => {
    if (!shown) return;
    const box = alike.area.getBoundingClientRect();
    const span = shown.numPositions - 1;
    pointedOffset = Math.round(((event.clientX - box.left) / box.width) * 2 * span - span);
    showSimilarity();
  });
  frame.listen(alike.area, "pointerleave", () => {
    pointedOffset = null;
    showSimilarity();
  });

  return () => {
    const state = readPosition(frame);
    const key = [state.numPositions, state.embedDim, state.base].join(" ");
    if (key !== drawn || !computed) {
      computed = computeTable(state);
      map.drawTable(computed.table);
      scale.draw({ low: -1, high: 1 }, "encoding");
    }
    drawn = key;
    numbers = computePosition(state, computed);
    const { sine, cosine, similarity, frequency, wavelength, encoding } = numbers;
    const last = state.numPositions - 1;
    const pair = state.column >> 1;
    numPositions.draw(state.numPositions, { low: 2, high: POSITION_LARGEST });
    embedDim.draw(state.embedDim, { low: 1, high: POSITION_LARGEST });
    base.draw(Math.log10(state.base), { low: 0, high: 6, step: 0.1, text: String(state.base) });
    position.draw(state.position, { low: 0, high: last });
    column.draw(state.column, { low: 0, high: state.embedDim - 1, said: `${state.column}, ${positionWords(state.column)}` });
    map.drawPlace(state);

    sizes.draw([
      { text: `${formatNumber(wavelength, 1)} positions`, hint: `2π / frequency, pair i = ${pair}`, number: wavelength },
      { text: `${formatNumber(frequency)} rad`, hint: `a position: ${state.base}^(−2 · ${pair} / ${state.embedDim})`, number: frequency },
      {
        text: formatNumber(encoding),
        hint: `${state.column % 2 === 0 ? "sin" : "cos"}(${state.position} · ${formatNumber(frequency)})`,
        number: encoding,
      },
    ]);

    // Between two positions there is nothing: the thin lines only lead the eye from dot to dot.
    const fine = Float64Array.from({ length: 4 * last + 1 }, (_, index) => index / 4);
    const isWhole = cosine.length > 0;
    const hasNext = pair + 1 < computed.frequencies.length;
    const places = Float64Array.from(sine, (_, index) => index);
    const size = state.numPositions > 32 ? 4 : 6;
    curves.draw([0, last], [-1.15, 1.15]);
    next.draw(hasNext ? fine : [], fine.map((x) => Math.sin(x * Number(computed?.frequencies[pair + 1]))));
    sineLine.draw(fine, fine.map((x) => Math.sin(x * frequency)));
    cosineLine.draw(isWhole ? fine : [], fine.map((x) => Math.cos(x * frequency)));
    sineDots.draw(places, sine, size);
    cosineDots.draw(isWhole ? places : places.subarray(0, 0), cosine, size);
    mark(sineDots.node, "sine", sine);
    mark(cosineDots.node, "cosine", cosine);
    atPosition.draw([state.position, state.position], [-1.15, 1.15]);
    handle.draw(state.position, -1.15);
    handle.node.setAttribute("aria-valuetext", String(state.position));
    const values = [sine, ...(isWhole ? [cosine] : [])].map((curve) => formatNumber(curve[state.position], 3));
    curvesTitle.textContent = `Pair ${pair}, position ${state.position}: (${values.join(", ")})`;
    curves.describe(`Pair ${pair}: wavelength ${formatNumber(wavelength, 1)} positions`);
    legend[0].draw(`column ${2 * pair}, sin`);
    legend[1].draw(isWhole ? `${2 * pair + 1}, cos` : "");
    legend[2].draw(hasNext ? `${2 * pair + 2}, sin of pair ${pair + 1}` : "");

    const offsets = places.map((place) => place - state.position);
    const margin = 0.06 * (computed.highest - computed.lowest);
    /** @type {[number, number]} */
    const range = [computed.lowest - margin, computed.highest + margin];
    alike.draw([-last, last], range);
    // Of position 0 there are offsets to one side only; the other is its mirror image.
    const { table } = computed;
    const all = Float64Array.from({ length: 2 * last + 1 }, (_, index) => index - last);
    fromFirst.draw(all, all.map((offset) => dotProduct(table[0], table[Math.abs(offset)])));
    alikeLine.draw(offsets, similarity);
    alikeDots.draw(offsets, similarity, size);
    atZero.draw([0, 0], range);
    similarityTitle.textContent = `Position ${state.position} · each position`;
    alike.describe(`Position ${state.position} with itself ${formatNumber(similarity[state.position], 2)}`);

    if (shown) frame.say(describePosition(shown, state, wavelength, encoding));
    shown = state;
    showSimilarity();
    const reported = numbers;
    frame.report(() => reported);
  };
}

/**
 * @param {PositionState} before
 * @param {PositionState} state
 * @param {number} wavelength
 * @param {number} encoding
 */
function describePosition(before, state, wavelength, encoding) {
  const place = `Position ${state.position}, column ${state.column}, ${positionWords(state.column)}: ${formatNumber(encoding)}.`;
  const wave = `Pair ${state.column >> 1} has wavelength ${formatNumber(wavelength, 1)} positions.`;
  if (before.numPositions !== state.numPositions) return `${state.numPositions} positions.`;
  if (before.embedDim !== state.embedDim) return `Width ${state.embedDim}. ${wave}`;
  if (before.base !== state.base) return `Base ${state.base}. ${wave}`;
  return before.column >> 1 === state.column >> 1 ? place : `${place} ${wave}`;
}

/** @param {import("./frame.js").Frame} frame */
function positionPython(frame) {
  const { numPositions, embedDim, base, position, column } = readPosition(frame);
  const pair = column >> 1;
  return `import math

from mha_lib import sinusoidal_encoding

table = sinusoidal_encoding(${numPositions}, ${embedDim}, base=${base})
encoding = table[${position}, ${column}]
# Columns 2i and 2i + 1 are pair i. The last pair of an odd width has its sine only.
pair = ${column} // 2
frequency = ${base} ** (-2 * pair / ${embedDim})
wavelength = 2 * math.pi / frequency
sine = table[:, 2 * pair]
cosine = ${2 * pair + 1 < embedDim ? "table[:, 2 * pair + 1]" : "table[:0, 0]"}
similarity = table @ table[${position}]
print(f"pair {pair}: wavelength {wavelength:.1f} positions")
`;
}

export default {
  /** @param {{model: import("./frame.js").Model, el: HTMLElement}} view */
  render: (view) =>
    mount(
      view,
      { name: "position-explorer", label: "Position explorer", settings: POSITION_SETTINGS, python: positionPython },
      build,
    ),
};
