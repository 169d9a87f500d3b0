// The small maps of all heads of a model, layer by layer, to choose one from.

import { element, setAttribute } from "./frame.js";
import { placeByKey } from "./number_map.js";
import { pixelCanvas } from "./pixel_canvas.js";

/** @typedef {import("./attention_math.js").Matrix} Matrix */

/** The numbers of a map. */
export const WEIGHTS = { low: 0, high: 1 };
const MOST_WHOLE = 12; // tokens; a map of more has more numbers than pixels

/**
 * The grid, with one radio button for each head. Its entries are there for what a widget adds to a map.
 * @param {import("./frame.js").Frame} frame @param {number} layers @param {number} heads @param {string} name of the group
 */
export function mapGrid(frame, layers, heads, name) {
  const entries = Array.from({ length: layers * heads }, (_, index) => {
    const input = element("input", { type: "radio", name: "head", value: index, class: "mha-over-map" });
    const canvas = pixelCanvas();
    return { label: element("label", {}, input, canvas.node), input, canvas };
  });
  const rows = Array.from({ length: layers }, (_, layer) =>
    element(
      "div",
      { class: "mha-layer" },
      element("span", { text: layer, "aria-hidden": "true" }),
      ...entries.slice(layer * heads, (layer + 1) * heads).map(({ label }) => label),
    ),
  );
  const node = element("fieldset", { class: "mha-map-grid" }, element("legend", { text: name }), element("div", {}, ...rows));
  node.style.setProperty("--heads", String(heads));
  const choose = (/** @type {number} */ index) => frame.set({ layer: Math.floor(index / heads), head: index % heads });
  frame.listen(node, "change", (event) => choose(Number(event.target.value)));
  frame.listen(node, "keydown", (event) => {
    const index = entries.findIndex(({ input }) => input === event.target);
    const target = placeByKey(event.key, [Math.floor(index / heads), index % heads], heads);
    if (index < 0 || !target) return;
    event.preventDefault();
    const [layer, head] = target;
    if (layer < 0 || layer >= layers || head < 0 || head >= heads) return;
    entries[layer * heads + head].input.focus();
    choose(layer * heads + head);
  });
  let shown = -1;

  /** On a phone the grid may scroll; the chosen map is in view, and the page stays. @param {number} index */
  function scrollTo(index) {
    const [box, row] = [/** @type {HTMLElement} */ (node.lastElementChild), rows[Math.floor(index / heads)]];
    if (box.scrollHeight > box.clientHeight) box.scrollTop = row.offsetTop - box.offsetTop - box.clientHeight / 2;
    shown = index;
  }

  /**
   * @param {readonly Matrix[]} maps head by head @param {number} chosen @param {(index: number) => string} nameOf a head
   * @param {import("./attention_math.js").Mask} [mask]
   */
  function draw(maps, chosen, nameOf, mask) {
    node.classList.toggle("mha-fine", maps[0].length > MOST_WHOLE);
    entries.forEach(({ input, canvas }, index) => {
      canvas.draw(maps[index], WEIGHTS, mask);
      setAttribute(input, "aria-label", nameOf(index));
      input.checked = index === chosen;
    });
    if (chosen !== shown) scrollTo(chosen);
  }
  return { node, entries, draw };
}
