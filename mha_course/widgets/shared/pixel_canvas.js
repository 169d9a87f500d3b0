// A picture with one pixel per number, for tables that would need too many cells.

import { colorOf } from "./colors.js";
import { element } from "./frame.js";

/** @typedef {import("./attention_math.js").Matrix} Matrix */
/** @typedef {import("./attention_math.js").Mask} Mask */

const SHADES = 1025; // an odd number, so that 0 has its own shade among signed numbers

/** @type {Uint32Array[]} the colours of weights and of signed numbers, in this machine's byte order */
const pixelShades = [];

/**
 * @param {number} low -1 for signed numbers, 0 for others
 * @returns {Uint32Array} the colours from the lowest number of a scale to its highest
 */
function shadesFrom(low) {
  const bytes = new Uint8ClampedArray(4 * SHADES);
  for (let shade = 0; shade < SHADES; shade++) {
    bytes.set([...colorOf(low + (shade * (1 - low)) / (SHADES - 1), { low, high: 1 }), 255], 4 * shade);
  }
  return new Uint32Array(bytes.buffer);
}

/** A canvas with one pixel for each number. Hidden numbers, infinities and NaN stay transparent. */
export function pixelCanvas() {
  const node = element("canvas", { class: "mha-shades", "aria-hidden": "true" });
  const context = /** @type {CanvasRenderingContext2D} */ (node.getContext("2d"));
  /** @type {ImageData | null} */
  let image = null;
  /** @type {any[]} */
  let drawn = [];

  /**
   * @param {Matrix} numbers @param {import("./colors.js").Extent} extent
   * @param {Mask | null} [mask] false = hidden
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
    const shades = (pixelShades[low < 0 ? 1 : 0] ??= shadesFrom(low < 0 ? -1 : 0));
    const scale = (SHADES - 1) / (high - low);
    for (let y = 0, place = 0; y < rows; y++) {
      const [row, seen] = [numbers[y], mask?.[y]];
      for (let x = 0; x < columns; x++, place++) {
        const shade = (row[x] - low) * scale + 0.5;
        const isSeen = shade >= 0 && shade < SHADES && (!seen || seen[x]); // false for infinities and NaN
        pixels[place] = isSeen ? shades[shade | 0] : 0;
      }
    }
    context.putImageData(image, 0, 0);
  }
  return { node, draw };
}
