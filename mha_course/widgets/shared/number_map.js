// A table of numbers shown as colours: a grid of cells that the reader can point at, walk through with the
// arrow keys and, if the widget allows it, paint. A line below shows the number under the pointer. The
// module also makes colour scales.

import { colorOf, inkOn, scaleGradient } from "./colors.js";
import { formatNumber } from "./format.js";
import { element, focusedNear, isShortcut, setText } from "./frame.js";

/** @typedef {import("./frame.js").Frame} Frame */
/** @typedef {import("./colors.js").Extent} Extent */
/** @typedef {number[]} Place row and column */

/**
 * The page stores the numbers under `name`. With `onPick`, the reader picks a cell with a click, Space or
 * Enter, and several cells with a stroke of the pointer.
 * @typedef {{name: string, rows: string, columns: string, columnRole?: "key" | "value",
 *   rowRole?: "query" | "value", hint?: string,
 *   onPick?: (row: number, column: number, isFirst: boolean) => void}} MapOptions
 */

/**
 * @typedef {object} MapState
 * @property {string} label what the whole map shows, for screen readers
 * @property {readonly string[]} rowLabels
 * @property {readonly string[]} columnLabels
 * @property {import("./attention_math.js").Matrix} numbers [row][column]; a number that is not finite has no
 *   colour
 * @property {Extent} extent
 * @property {(row: number, column: number, number: string) => string} describe the text for one cell
 * @property {(row: number, column: number) => boolean} [isHidden] whether a cell is hatched
 * @property {(row: number, column: number) => boolean} [isBlank] whether a cell has no number to show
 * @property {number} [digits] after the decimal point of the numbers in the cells; without it the cells are
 *   empty
 * @property {boolean} [areNumbers] whether the column labels are only numbers, some of which may be left out
 */

/**
 * The place to which a key leads in a table; it may be outside the table.
 * @param {string} key @param {Place} from @param {number} columns @param {number} [step]
 * @returns {Place | undefined} undefined for a key that moves nothing
 */
export function placeByKey(key, [row, column], columns, step = 1) {
  /** @type {Object<string, Place>} */
  const places = {
    ArrowUp: [row - step, column],
    ArrowDown: [row + step, column],
    ArrowLeft: [row, column - step],
    ArrowRight: [row, column + step],
    Home: [row, 0],
    End: [row, columns - 1],
  };
  return places[key];
}

/**
 * Removes the last nodes of a row, or adds new ones, until there are `count`.
 * @param {HTMLElement[]} nodes @param {number} count @param {any} row @param {(index: number) => HTMLElement} make
 */
function fit(nodes, count, row, make) {
  while (nodes.length > count) nodes.pop()?.remove();
  while (nodes.length < count) {
    const node = make(nodes.length);
    nodes.push(node);
    row.append(node);
  }
}

/** Cells and labels of a map; `rebuild` fits them to new labels. @param {MapOptions} options */
function buildGrid({ name, rows, columns }) {
  const columnsName = element("span", { class: "mha-columns-name", text: columns, "aria-hidden": "true" });
  const header = element("div", { role: "row" }, element("span", { role: "columnheader", "aria-label": rows }));
  const node = element("div", { class: "mha-grid", role: "grid", "data-number-map": name }, columnsName, header);
  // Copying a cell takes a third of the time of creating one.
  const cell = element("span", { role: "gridcell", tabindex: -1, "data-number": name });
  /** @type {any[]} its rows, without the one of the column labels */
  const lines = [];
  const grid = {
    node,
    /** @type {any[][]} [row][column] */
    cells: [],
    /** @type {HTMLElement[]} */
    columnLabels: [],
    /** @type {HTMLElement[]} */
    rowLabels: [],
    rebuild,
  };

  /**
   * Adds the cells that are missing and removes those that are too many; otherwise only the labels change.
   * @param {readonly string[]} rowTexts @param {readonly string[]} columnTexts
   * @param {boolean} areNumbers whether the column labels are only numbers; if there are many, some are
   *   omitted
   */
  function rebuild(rowTexts, columnTexts, areNumbers) {
    const step = areNumbers ? Math.ceil(columnTexts.length / 8) : 1;
    resize(rowTexts.length, columnTexts.length);
    columnTexts.forEach((text, column) => {
      grid.columnLabels[column].setAttribute("aria-label", text);
      setText(grid.columnLabels[column], column % step === 0 ? text : "");
    });
    rowTexts.forEach((text, row) => setText(grid.rowLabels[row], text));
  }

  /** @param {number} rowCount @param {number} columnCount */
  function resize(rowCount, columnCount) {
    fit(grid.columnLabels, columnCount, header, () => element("span", { role: "columnheader" }));
    fit(lines, rowCount, node, () => element("div", { role: "row" }, element("span", { role: "rowheader" })));
    grid.rowLabels = lines.map((line) => line.firstChild);
    grid.cells = lines.map((line, row) => {
      const cells = grid.cells[row] ?? [];
      fit(cells, columnCount, line, (column) => {
        const copy = cell.cloneNode(false);
        Object.assign(copy.dataset, { row, column });
        return copy;
      });
      return cells;
    });
    node.style.setProperty("--columns", String(columnCount));
  }
  return grid;
}

/**
 * Changes only the parts of a cell that differ from before, because each change of a style makes the browser
 * compute the cell's styles again.
 * @param {any} cell @param {number} number @param {Extent} extent @param {string} label
 * @param {number} [digits]
 */
function drawCell(cell, number, extent, label, digits) {
  cell.dataset.value = String(number);
  if (cell.ariaLabel !== label) cell.setAttribute("aria-label", label);
  const color = Number.isFinite(number) ? colorOf(number, extent) : null;
  const ground = color ? `rgb(${color.join(" ")})` : "transparent";
  if (cell.ground !== ground) {
    cell.ground = ground;
    cell.style.backgroundColor = ground;
    cell.style.color = color ? inkOn(color) : "inherit";
  }
  setText(cell, digits === undefined ? "" : formatNumber(number, digits));
}

/**
 * Lets a reader point at the cells of a grid, walk through them and pick them.
 * @param {Frame} frame @param {{node: HTMLElement, cells: any[][]}} grid @param {MapOptions["onPick"]} onPick
 * @param {() => void} onChange called when the reader points at a different cell or the focus moves
 */
export function gridCursor(frame, grid, onPick, onChange) {
  const cursor = {
    pointed: /** @type {Place | null} */ (null),
    current: [0, 0],
    /** @returns {Place | null} of the cell that the reader points at or walks through */
    place: () => cursor.pointed ?? (grid.node.contains(focusedNear(grid.node)) ? cursor.current : null),
    placeOf,
  };
  let stroke = false;
  /** @param {any} target @returns {Place | null} */
  function placeOf(target) {
    const cell = target.closest?.("[role=gridcell]");
    return cell ? [Number(cell.dataset.row), Number(cell.dataset.column)] : null;
  }
  const pick = (/** @type {Place | null} */ place, /** @type {boolean} */ isFirst) => {
    if (place && onPick) onPick(place[0], place[1], isFirst);
  };
  frame.listen(grid.node, "pointerdown", (event) => {
    // Without this, a finger would send all events of its stroke to the cell where the stroke began.
    event.target.releasePointerCapture?.(event.pointerId);
    stroke = event.button === 0;
    if (stroke) pick(placeOf(event.target), true);
  });
  frame.listen(grid.node, "pointerover", (event) => {
    cursor.pointed = placeOf(event.target);
    if (stroke && event.buttons === 1) pick(cursor.pointed, false);
    onChange();
  });
  frame.listen(grid.node, "pointerleave", () => {
    cursor.pointed = null;
    onChange();
  });
  frame.listen(grid.node, "focusin", (event) => {
    const place = placeOf(event.target);
    if (!place) return;
    const [row, column] = cursor.current;
    grid.cells[row]?.[column]?.setAttribute("tabindex", "-1");
    event.target.closest("[role=gridcell]").setAttribute("tabindex", "0");
    cursor.current = place;
    onChange();
  });
  frame.listen(grid.node, "focusout", onChange);
  frame.listen(grid.node, "keydown", (event) => {
    if (isShortcut(event)) return;
    const target = placeByKey(event.key, cursor.current, grid.cells[0].length);
    if (target) grid.cells[target[0]]?.[target[1]]?.focus();
    else if (onPick && (event.key === " " || event.key === "Enter")) pick(cursor.current, true);
    else return;
    event.preventDefault();
  });
  return cursor;
}

/** @param {Frame} frame @param {MapOptions} options */
export function numberMap(frame, options) {
  const { rows, columnRole = "key", rowRole = "query", onPick } = options;
  const hint =
    options.hint ?? "To read a number, point at its cell or walk through the map with the arrow keys.";
  const grid = buildGrid(options);
  const rowsName = element("span", { class: "mha-rows-name", text: rows, "aria-hidden": "true" });
  const readout = element("p", { class: "mha-readout" });
  const axes = element("div", { class: "mha-axes" }, rowsName, grid.node);
  const node = element("div", { class: `mha-map mha-columns-${columnRole} mha-rows-${rowRole}` }, axes, readout);
  node.classList.toggle("mha-paintable", onPick !== undefined);
  const cursor = gridCursor(frame, grid, onPick, showReadout);

  function showReadout() {
    const place = cursor.place();
    grid.rowLabels.forEach((label, row) => label.classList.toggle("mha-now", place?.[0] === row));
    grid.columnLabels.forEach((label, column) => label.classList.toggle("mha-now", place?.[1] === column));
    readout.classList.toggle("mha-hint", !place);
    setText(readout, place ? grid.cells[place[0]][place[1]].getAttribute("aria-label") : hint);
  }

  let built = "";
  /** @param {MapState} state */
  function draw({ label, rowLabels, columnLabels, numbers, extent, ...rest }) {
    const { describe, isHidden = () => false, isBlank = () => false, digits, areNumbers = false } = rest;
    const key = JSON.stringify([rowLabels, columnLabels, areNumbers]);
    if (key !== built) {
      grid.rebuild(rowLabels, columnLabels, areNumbers);
      const [row, column] = cursor.current;
      cursor.current = [Math.min(row, rowLabels.length - 1), Math.min(column, columnLabels.length - 1)];
      grid.cells[cursor.current[0]][cursor.current[1]].setAttribute("tabindex", "0");
      cursor.pointed = null;
    }
    built = key;
    grid.node.setAttribute("aria-label", label);
    node.classList.toggle("mha-few-columns", areNumbers);
    node.classList.toggle("mha-tall-labels", !areNumbers && columnLabels.some((text) => text.length > 2));
    numbers.forEach((row, y) =>
      row.forEach((number, x) => {
        const cell = grid.cells[y][x];
        drawCell(cell, number, extent, describe(y, x, formatNumber(number)), isBlank(y, x) ? undefined : digits);
        cell.classList.toggle("mha-hidden", isHidden(y, x));
      }),
    );
    showReadout();
  }
  return { node, draw };
}

/** A colour scale, with the numbers at both ends and in the middle. */
export function colorBar() {
  const [low, middle, high] = [0, 1, 2].map(() => element("span"));
  const scale = element("div", { class: "mha-scale" });
  const name = element("span", { class: "mha-hint" });
  const ends = element("div", { class: "mha-bar-ends" }, low, middle, high);
  const node = element("div", { class: "mha-bar" }, name, element("div", {}, scale, ends));
  /** @param {Extent} extent @param {string} noun what the numbers are */
  function draw(extent, noun) {
    const gradient = scaleGradient(extent);
    // A style that has not changed is left alone, like the texts.
    if (scale.drawn !== gradient) scale.style.background = scale.drawn = gradient;
    setText(name, noun);
    setText(low, formatNumber(extent.low, 2));
    setText(middle, formatNumber((extent.low + extent.high) / 2, 2));
    setText(high, formatNumber(extent.high, 2));
  }
  return { node, draw };
}
