// Tables with one pixel per number, because one cell per number would be too many for the page: the small
// maps of all heads, and a large map that the reader walks through like a grid, in which only the cell under
// the cursor exists.

import { formatNumber } from "./format.js";
import { element, focusedNear, isShortcut } from "./frame.js";
import { numberMap, placeByKey } from "./number_map.js";
import { pixelCanvas } from "./pixel_canvas.js";

/** @typedef {import("./frame.js").Frame} Frame */
/** @typedef {import("./attention_math.js").Matrix} Matrix */
/** @typedef {import("./attention_math.js").Mask} Mask */
/** @typedef {import("./number_map.js").MapOptions} MapOptions */
/** @typedef {import("./number_map.js").MapState & {mask: Mask | null}} PixelState `mask` as in `isHidden` */

// A table with more rows or more cells than these is drawn as pixels.
const MAX_ROWS = { wide: 24, narrow: 14 };
const MAX_CELLS = 768;
const MAX_TICKS = 8;

/**
 * A number map for tables of any size: small ones have cells, large ones pixels.
 * @param {Frame} frame @param {MapOptions} options
 */
export function sizedMap(frame, options) {
  const cells = numberMap(frame, options);
  /** @type {ReturnType<typeof pixelMap> | null} */
  let pixels = null;
  const node = element("div", {}, cells.node);

  /** @param {PixelState & {room: "wide" | "narrow"}} state */
  function draw(state) {
    const rows = state.numbers.length;
    if (rows <= MAX_ROWS[state.room] && rows * state.numbers[0].length <= MAX_CELLS) {
      if (!cells.node.parentNode) node.replaceChildren(cells.node);
      cells.draw(state);
    } else {
      pixels ??= pixelMap(frame, options);
      if (!pixels.node.parentNode) node.replaceChildren(pixels.node);
      pixels.draw(state);
    }
  }
  return { node, draw };
}

/** The picture of a large map with its axes. @param {MapOptions} options */
function buildPicture({ rows, columns, columnRole = "key", rowRole = "query" }) {
  const canvas = pixelCanvas();
  // Only the cell under the cursor exists, as two elements that take turns: when the focus moves from one to
  // the other, a screen reader reads out the new cell.
  const cursors = [0, 1].map(() => element("span", { role: "gridcell", class: "mha-cursor", tabindex: -1, hidden: true }));
  const cursorRow = element("div", { role: "row" }, ...cursors);
  const area = element("div", { class: "mha-pixels", role: "grid" }, canvas.node, cursorRow);
  const columnTicks = element("div", { class: "mha-x-ticks", "aria-hidden": "true" });
  const rowTicks = element("div", { class: "mha-y-ticks", "aria-hidden": "true" });
  const readout = element("p", { class: "mha-readout" });
  const axes = element(
    "div",
    { class: "mha-pixel-axes" },
    element("span", { class: "mha-columns-name", text: columns, "aria-hidden": "true" }),
    columnTicks,
    element("span", { class: "mha-rows-name", text: rows, "aria-hidden": "true" }),
    rowTicks,
    area,
  );
  const kinds = `mha-map mha-pixel-map mha-columns-${columnRole} mha-rows-${rowRole}`;
  const node = element("div", { class: kinds }, axes, readout);
  return { node, canvas, cursors, cursorRow, area, columnTicks, rowTicks, readout };
}

/**
 * Numbers some rows or columns.
 * @param {HTMLElement} ticks @param {number} count @param {"top" | "left"} side
 */
function drawTicks(ticks, count, side) {
  const step = 2 ** Math.ceil(Math.log2(count / MAX_TICKS));
  const places = Array.from({ length: Math.ceil(count / step) }, (_, index) => index * step);
  ticks.replaceChildren(
    ...places.map((index) => {
      const tick = element("span", { text: index });
      tick.style[side] = `${(100 * (index + 0.5)) / count}%`;
      return tick;
    }),
  );
}

/** @param {Frame} frame @param {MapOptions} options */
function pixelMap(frame, options) {
  const { node, canvas, cursors, cursorRow, area, columnTicks, rowTicks, readout } = buildPicture(options);
  const hint = options.hint ?? "Point at the map, or walk through it with the arrow keys, to read a number.";
  /** @type {PixelState | null} */
  let shown = null;
  let size = [0, 0];
  let current = [0, 0];
  let pointed = /** @type {number[] | null} */ (null);
  let turn = 0;

  const placeOf = (/** @type {PointerEvent} */ event) => {
    const box = area.getBoundingClientRect();
    const place = [(event.clientY - box.top) / box.height, (event.clientX - box.left) / box.width];
    return place.map((share, axis) => Math.min(Math.max(Math.floor(share * size[axis]), 0), size[axis] - 1));
  };
  const point = (/** @type {number[] | null} */ place) => {
    pointed = place;
    showReadout();
  };
  for (const type of ["pointermove", "pointerdown"]) frame.listen(area, type, (event) => point(placeOf(event)));
  frame.listen(area, "pointerleave", () => point(null));
  frame.listen(area, "click", (event) => moveTo(placeOf(event)));
  frame.listen(area, "focusin", () => showReadout());
  frame.listen(area, "focusout", () => showReadout());
  frame.listen(area, "keydown", (event) => {
    const [row, column] = current;
    const pages = { PageUp: [Math.max(row - 10, 0), column], PageDown: [Math.min(row + 10, size[0] - 1), column] };
    const target = placeByKey(event.key, current, size[1]) ?? pages[/** @type {keyof typeof pages} */ (event.key)];
    if (!target || isShortcut(event)) return;
    event.preventDefault();
    if (target.every((index, axis) => index >= 0 && index < size[axis])) moveTo(target);
  });

  /** @param {number[]} place */
  function moveTo(place) {
    const left = cursors[turn];
    turn = 1 - turn;
    current = place;
    pointed = null;
    placeCursor();
    cursors[turn].focus({ preventScroll: true });
    left.hidden = true;
    left.tabIndex = -1;
  }

  /** @param {number[]} place */
  function describe([row, column]) {
    return shown ? shown.describe(row, column, formatNumber(shown.numbers[row][column])) : "";
  }

  function placeCursor() {
    if (!shown) return;
    const [row, column] = current;
    const cursor = cursors[turn];
    cursor.hidden = false;
    cursor.tabIndex = 0;
    cursor.dataset.value = String(shown.numbers[row][column]);
    cursor.setAttribute("aria-label", describe(current));
    cursor.setAttribute("aria-colindex", String(column + 1));
    cursorRow.setAttribute("aria-rowindex", String(row + 1));
    const [height, width] = size.map((count) => 100 / count);
    const [left, top] = [column * width, row * height].map((share) => `${share}%`);
    Object.assign(cursor.style, { left, top, width: `${width}%`, height: `${height}%` });
  }

  function showReadout() {
    const place = pointed ?? (area.contains(focusedNear(area)) ? current : null);
    readout.classList.toggle("mha-hint", !place);
    readout.textContent = place ? describe(place) : hint;
  }

  let built = "";
  /** @param {PixelState} state */
  function draw(state) {
    shown = state;
    size = [state.numbers.length, state.numbers[0].length];
    if (built !== String(size)) {
      built = String(size);
      drawTicks(rowTicks, size[0], "top");
      drawTicks(columnTicks, size[1], "left");
      area.setAttribute("aria-rowcount", String(size[0]));
      area.setAttribute("aria-colcount", String(size[1]));
      current = current.map((index, axis) => Math.min(index, size[axis] - 1));
      pointed = null;
    }
    area.setAttribute("aria-label", state.label);
    canvas.draw(state.numbers, state.extent, state.mask);
    placeCursor();
    showReadout();
  }
  return { node, draw };
}
