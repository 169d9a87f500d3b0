// Tables of numbers with a pixel a number, for what would be too many cells for the page: the small maps of all heads,
// and a large map that is walked through like a grid of cells, of which only the one under the cursor is there.

import { viridis } from "./colors.js";
import { element, formatNumber } from "./frame.js";
import { numberMap } from "./number_map.js";

/** @typedef {import("./frame.js").Frame} Frame */
/** @typedef {import("./attention_math.js").Matrix} Matrix */
/** @typedef {Parameters<typeof numberMap>[1]} MapOptions */
/** @typedef {Parameters<ReturnType<typeof numberMap>["draw"]>[0]} MapState */

const MAX_ROWS = { wide: 24, narrow: 14 }; // beyond these, and beyond so many cells, a pixel stands for a number
const MAX_CELLS = 768;
const MAX_TICKS = 8;
const SHADES = 1024;

/** @type {Uint32Array | undefined} the colours as pixels, in the order of bytes that this machine has */
let viridisPixels;

function shadesOfViridis() {
  if (!viridisPixels) {
    const bytes = new Uint8ClampedArray(4 * SHADES);
    for (let shade = 0; shade < SHADES; shade++) bytes.set([...viridis(shade / (SHADES - 1)), 255], 4 * shade);
    viridisPixels = new Uint32Array(bytes.buffer);
  }
  return viridisPixels;
}

/** A canvas with one pixel a number. What is not finite stays transparent, and so does what is hidden. */
export function pixelCanvas() {
  const node = element("canvas", { "aria-hidden": "true" });
  const context = /** @type {CanvasRenderingContext2D} */ (node.getContext("2d"));
  /** @type {ImageData | null} */
  let image = null;
  /** @type {any[]} */
  let drawn = [];

  /**
   * @param {Matrix} numbers
   * @param {import("./number_map.js").Extent} extent
   * @param {import("./attention_math.js").Mask | null} [mask] false = hidden
   */
  function draw(numbers, { low, high }, mask = null) {
    const wanted = [numbers, low, high, mask];
    if (wanted.every((part, index) => part === drawn[index])) return;
    drawn = wanted;
    const [rows, columns] = [numbers.length, numbers[0].length];
    if (image?.width !== columns || image.height !== rows) {
      [node.width, node.height] = [columns, rows];
      image = context.createImageData(columns, rows);
    }
    const pixels = new Uint32Array(image.data.buffer);
    const shades = shadesOfViridis();
    const scale = (SHADES - 1) / (high - low);
    for (let y = 0, place = 0; y < rows; y++) {
      const [row, seen] = [numbers[y], mask?.[y]];
      for (let x = 0; x < columns; x++, place++) {
        const shade = (row[x] - low) * scale + 0.5;
        const isSeen = shade >= 0 && shade < SHADES && (!seen || seen[x]); // no infinity is, and no NaN
        pixels[place] = isSeen ? shades[shade | 0] : 0;
      }
    }
    context.putImageData(image, 0, 0);
  }
  return { node, draw };
}

/**
 * A number map for tables of any size: cells while they are few, beyond that pixels.
 * @param {Frame} frame
 * @param {MapOptions} options
 */
export function sizedMap(frame, options) {
  const cells = numberMap(frame, options);
  /** @type {ReturnType<typeof pixelMap> | null} */
  let pixels = null;
  const node = element("div", {}, cells.node);

  /**
   * @param {MapState & {mask: import("./attention_math.js").Mask | null, room: "wide" | "narrow"}} state `mask` says
   *   what `isHidden` says
   */
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

/**
 * @param {Frame} frame
 * @param {MapOptions} options
 */
function pixelMap(frame, { rows, columns, columnRole = "key", rowRole = "query", hint }) {
  const canvas = pixelCanvas();
  // Of all cells only one is there, in two copies that take turns: as the focus moves, the new one is read out.
  const cursors = [0, 1].map(() => element("span", { role: "gridcell", class: "mha-cursor", tabindex: -1, hidden: true }));
  const cursorRow = element("div", { role: "row" }, ...cursors);
  const area = element("div", { class: "mha-pixels", role: "grid" }, canvas.node, cursorRow);
  const columnTicks = element("div", { class: "mha-x-ticks", "aria-hidden": "true" });
  const rowTicks = element("div", { class: "mha-y-ticks", "aria-hidden": "true" });
  const readout = element("p", { class: "mha-readout" });
  const node = element(
    "div",
    { class: `mha-map mha-pixel-map mha-columns-${columnRole} mha-rows-${rowRole}` },
    element(
      "div",
      { class: "mha-pixel-axes" },
      element("span", { class: "mha-columns-name", text: columns, "aria-hidden": "true" }),
      columnTicks,
      element("span", { class: "mha-rows-name", text: rows, "aria-hidden": "true" }),
      rowTicks,
      area,
    ),
    readout,
  );
  /** @type {MapState | null} */
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
  for (const type of ["pointermove", "pointerdown"]) {
    frame.listen(area, type, (event) => {
      pointed = placeOf(event);
      showReadout();
    });
  }
  frame.listen(area, "pointerleave", () => {
    pointed = null;
    showReadout();
  });
  frame.listen(area, "click", (event) => moveTo(placeOf(event)));
  frame.listen(area, "focusin", () => showReadout());
  frame.listen(area, "focusout", () => showReadout());
  frame.listen(area, "keydown", (event) => {
    if (event.ctrlKey || event.metaKey || event.altKey) return;
    const [row, column] = current;
    /** @type {Object<string, [number, number]>} */
    const targets = {
      ArrowUp: [row - 1, column],
      ArrowDown: [row + 1, column],
      ArrowLeft: [row, column - 1],
      ArrowRight: [row, column + 1],
      PageUp: [Math.max(row - 10, 0), column],
      PageDown: [Math.min(row + 10, size[0] - 1), column],
      Home: [row, 0],
      End: [row, size[1] - 1],
    };
    const target = targets[event.key];
    if (!target) return;
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
    Object.assign(cursor.style, {
      left: `${column * width}%`,
      top: `${row * height}%`,
      width: `${width}%`,
      height: `${height}%`,
    });
  }

  function showReadout() {
    const root = /** @type {Document} */ (area.getRootNode());
    const place = pointed ?? (area.contains(root.activeElement) ? current : null);
    readout.classList.toggle("mha-hint", !place);
    readout.textContent = place
      ? describe(place)
      : (hint ?? "Point at the map, or walk through it with the arrow keys, to read a number.");
  }

  /**
   * @param {HTMLElement} ticks
   * @param {readonly string[]} labels
   * @param {string} side
   */
  function drawTicks(ticks, labels, side) {
    const step = 2 ** Math.ceil(Math.log2(labels.length / MAX_TICKS));
    const places = labels.flatMap((_, index) => (index % step === 0 ? [index] : []));
    ticks.replaceChildren(
      ...places.map((index) => {
        const tick = element("span", { text: index });
        tick.style[side] = `${(100 * (index + 0.5)) / labels.length}%`;
        return tick;
      }),
    );
  }

  let built = "";
  /** @param {MapState & {mask: import("./attention_math.js").Mask | null}} state */
  function draw(state) {
    const { numbers, rowLabels, columnLabels, label, extent, mask } = state;
    shown = state;
    size = [numbers.length, numbers[0].length];
    if (built !== String(size)) {
      built = String(size);
      drawTicks(rowTicks, rowLabels, "top");
      drawTicks(columnTicks, columnLabels, "left");
      area.setAttribute("aria-rowcount", String(size[0]));
      area.setAttribute("aria-colcount", String(size[1]));
      current = current.map((index, axis) => Math.min(index, size[axis] - 1));
      pointed = null;
    }
    area.setAttribute("aria-label", label);
    canvas.draw(numbers, extent, mask);
    placeCursor();
    showReadout();
  }
  return { node, draw };
}
