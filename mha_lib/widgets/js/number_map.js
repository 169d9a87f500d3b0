// A table of numbers as colours: a grid of cells that can be pointed at, walked through with the arrow keys and, where a
// widget wants it, painted; below it the number under the pointer and the scale of the colours.

import { inkOn, viridis, viridisGradient } from "./colors.js";
import { element, formatNumber } from "./frame.js";

/** @typedef {import("./frame.js").Frame} Frame */
/** @typedef {{low: number, high: number}} Extent */

/**
 * The range of the colours over some tables.
 * @param {import("./attention_math.js").Matrix[]} tables
 * @param {boolean} fromZero as weights want it
 * @returns {Extent}
 */
export function extentOf(tables, fromZero) {
  let [low, high] = fromZero ? [0, -Infinity] : [Infinity, -Infinity];
  for (const table of tables) {
    for (const row of table) {
      for (let column = 0; column < row.length; column++) {
        const number = row[column];
        if (!Number.isFinite(number)) continue;
        if (number < low) low = number;
        if (number > high) high = number;
      }
    }
  }
  if (high === -Infinity) return { low: 0, high: 1 };
  return { low, high: high > low ? high : low + 1 };
}

/**
 * @param {Frame} frame
 * @param {{name: string, rows: string, columns: string, columnRole?: "key" | "value", rowRole?: "query" | "value",
 *   hint?: string, onPick?: (row: number, column: number, isFirst: boolean) => void}} options `name` keeps the numbers
 *   in the page; with `onPick` cells are picked by a click, by Space or Enter, and one after the other by a stroke
 */
export function numberMap(frame, { name, rows, columns, columnRole = "key", rowRole = "query", hint, onPick }) {
  const columnsName = element("span", { class: "mha-columns-name", text: columns, "aria-hidden": "true" });
  const rowsName = element("span", { class: "mha-rows-name", text: rows, "aria-hidden": "true" });
  const grid = element("div", { class: "mha-grid", role: "grid", "data-number-map": name });
  const readout = element("p", { class: "mha-readout" });
  const node = element(
    "div",
    { class: `mha-map mha-columns-${columnRole} mha-rows-${rowRole}` },
    element("div", { class: "mha-axes" }, rowsName, grid),
    readout,
  );
  node.classList.toggle("mha-paintable", onPick !== undefined);
  /** @type {HTMLElement[][]} [row][column] */
  let cells = [];
  /** @type {HTMLElement[]} */
  let columnLabels = [];
  /** @type {HTMLElement[]} */
  let rowLabels = [];
  let current = [0, 0];
  let pointed = /** @type {number[] | null} */ (null);
  let stroke = false;

  const placeOf = (/** @type {any} */ target) => {
    const cell = target.closest?.("[role=gridcell]");
    return cell ? [Number(cell.dataset.row), Number(cell.dataset.column)] : null;
  };
  const pick = (/** @type {number[] | null} */ place, /** @type {boolean} */ isFirst) => {
    if (place && onPick) onPick(place[0], place[1], isFirst);
  };
  frame.listen(grid, "pointerdown", (event) => {
    // A finger would otherwise keep all events of a stroke at the cell where it began.
    event.target.releasePointerCapture?.(event.pointerId);
    stroke = event.button === 0;
    if (stroke) pick(placeOf(event.target), true);
  });
  frame.listen(grid, "pointerover", (event) => {
    pointed = placeOf(event.target);
    if (stroke && event.buttons === 1) pick(pointed, false);
    showReadout();
  });
  frame.listen(grid, "pointerleave", () => {
    pointed = null;
    showReadout();
  });
  frame.listen(grid, "focusin", (event) => {
    const place = placeOf(event.target);
    if (place) moveTo(place);
  });
  frame.listen(grid, "focusout", () => showReadout());
  frame.listen(grid, "keydown", (event) => {
    if (event.ctrlKey || event.metaKey || event.altKey) return;
    const [row, column] = current;
    /** @type {Object<string, [number, number]>} */
    const targets = {
      ArrowUp: [row - 1, column],
      ArrowDown: [row + 1, column],
      ArrowLeft: [row, column - 1],
      ArrowRight: [row, column + 1],
      Home: [row, 0],
      End: [row, cells[0].length - 1],
    };
    const target = targets[event.key];
    if (target) cells[target[0]]?.[target[1]]?.focus();
    else if (onPick && (event.key === " " || event.key === "Enter")) pick(current, true);
    else return;
    event.preventDefault();
  });

  /** @param {number[]} place */
  function moveTo([row, column]) {
    cells[current[0]]?.[current[1]]?.setAttribute("tabindex", "-1");
    current = [row, column];
    cells[row][column].setAttribute("tabindex", "0");
    showReadout();
  }

  function showReadout() {
    const root = /** @type {Document} */ (grid.getRootNode());
    const place = pointed ?? (grid.contains(root.activeElement) ? current : null);
    rowLabels.forEach((label, row) => label.classList.toggle("mha-now", place?.[0] === row));
    columnLabels.forEach((label, column) => label.classList.toggle("mha-now", place?.[1] === column));
    readout.classList.toggle("mha-hint", !place);
    readout.textContent = place
      ? cells[place[0]][place[1]].getAttribute("aria-label")
      : (hint ?? "Point at a cell, or walk through the map with the arrow keys, to read its number.");
  }

  /**
   * @param {readonly string[]} rowTexts
   * @param {readonly string[]} columnTexts
   * @param {boolean} areNumbers where columns are many and only numbered, some of the numbers will do
   */
  function rebuild(rowTexts, columnTexts, areNumbers) {
    const step = areNumbers ? Math.ceil(columnTexts.length / 8) : 1;
    columnLabels = columnTexts.map((text, column) =>
      element("span", { role: "columnheader", "aria-label": text, text: column % step === 0 ? text : "" }),
    );
    rowLabels = rowTexts.map((text) => element("span", { role: "rowheader", text }));
    cells = rowTexts.map((_, row) =>
      columnTexts.map((_, column) =>
        element("span", { role: "gridcell", tabindex: -1, "data-number": name, "data-row": row, "data-column": column }),
      ),
    );
    const corner = element("span", { role: "columnheader", "aria-label": rows });
    grid.style.setProperty("--columns", String(columnTexts.length));
    grid.replaceChildren(
      columnsName,
      element("div", { role: "row" }, corner, ...columnLabels),
      ...cells.map((row, index) => element("div", { role: "row" }, rowLabels[index], ...row)),
    );
    current = [Math.min(current[0], rowTexts.length - 1), Math.min(current[1], columnTexts.length - 1)];
    cells[current[0]][current[1]].setAttribute("tabindex", "0");
    pointed = null;
  }

  let built = "";
  /**
   * @param {object} state
   * @param {string} state.label what the whole map shows, read out
   * @param {readonly string[]} state.rowLabels
   * @param {readonly string[]} state.columnLabels
   * @param {import("./attention_math.js").Matrix} state.numbers [row][column]; what is not finite has no colour
   * @param {Extent} state.extent
   * @param {(row: number, column: number, number: string) => string} state.describe the words for one cell
   * @param {(row: number, column: number) => boolean} [state.isHidden] hatched
   * @param {number} [state.digits] print the numbers into the cells, with so many digits
   * @param {boolean} [state.areNumbers] the columns are many and only numbered
   */
  function draw({ label, rowLabels: rowTexts, columnLabels: columnTexts, numbers, extent, ...rest }) {
    const { describe, isHidden = () => false, digits, areNumbers = false } = rest;
    const key = JSON.stringify([rowTexts, columnTexts, areNumbers]);
    if (key !== built) rebuild(rowTexts, columnTexts, areNumbers);
    built = key;
    grid.setAttribute("aria-label", label);
    node.classList.toggle("mha-few-columns", areNumbers);
    node.classList.toggle("mha-tall-labels", !areNumbers && columnTexts.some((text) => text.length > 2));
    numbers.forEach((row, y) =>
      row.forEach((number, x) => {
        const cell = cells[y][x];
        cell.dataset.value = String(number);
        cell.setAttribute("aria-label", describe(y, x, formatNumber(number)));
        cell.classList.toggle("mha-hidden", isHidden(y, x));
        const isFinite = Number.isFinite(number);
        const color = viridis(isFinite ? (number - extent.low) / (extent.high - extent.low) : 0);
        cell.style.backgroundColor = isFinite ? `rgb(${color.join(" ")})` : "transparent";
        const text = digits === undefined ? "" : formatNumber(number, digits);
        if (cell.textContent !== text) cell.textContent = text;
        cell.style.color = isFinite ? inkOn(color) : "inherit";
      }),
    );
    showReadout();
  }
  return { node, draw };
}

/** The scale of the colours, with its ends and its middle. */
export function colorBar() {
  const [low, middle, high] = [0, 1, 2].map(() => element("span"));
  const scale = element("div", { class: "mha-scale" });
  scale.style.background = viridisGradient();
  const name = element("span", { class: "mha-hint" });
  const ends = element("div", { class: "mha-bar-ends" }, low, middle, high);
  const node = element("div", { class: "mha-bar" }, name, element("div", {}, scale, ends));
  /**
   * @param {Extent} extent
   * @param {string} noun what the numbers are
   */
  function draw(extent, noun) {
    name.textContent = noun;
    low.textContent = formatNumber(extent.low, 2);
    middle.textContent = formatNumber((extent.low + extent.high) / 2, 2);
    high.textContent = formatNumber(extent.high, 2);
  }
  return { node, draw };
}
