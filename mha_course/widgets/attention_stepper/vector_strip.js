// Long vectors as rows of coloured cells: red is positive, blue is negative, white is zero. Each vector is a single
// element, so that a page can have many.

import { colorOf, extentOf, scaleGradient } from "../shared/colors.js";
import { formatNumber } from "../shared/format.js";
import { element, mark } from "../shared/frame.js";

/** @typedef {import("../shared/frame.js").Frame} Frame */
/** @typedef {{title: string, role: string, name?: string}} StripGroup the page stores the numbers under `name` */

/**
 * @param {ArrayLike<number>} numbers @param {number} most the number with the darkest red
 * @returns {string} a CSS gradient with one even cell for each number
 */
function stripGradient(numbers, most) {
  const cells = Array.from(numbers, (number, index) => {
    const [start, end] = [index, index + 1].map((place) => `${Number(((100 * place) / numbers.length).toFixed(3))}%`);
    return `rgb(${colorOf(number, { low: -most, high: most }).join(" ")}) ${start} ${end}`;
  });
  return `linear-gradient(to right, ${cells.join(", ")})`;
}

/**
 * The largest absolute value in some tables, for their common colour scale.
 * @param {import("../shared/attention_math.js").Matrix[]} tables
 */
export function mostOf(tables) {
  return extentOf(tables, false).high;
}

/**
 * One vector.
 * @param {ArrayLike<number>} numbers @param {number} most
 * @param {string} label for screen readers
 * @param {string} [name] under which the page stores the numbers
 */
export function vectorStrip(numbers, most, label, name) {
  const node = element("span", { class: "mha-strip", role: "img", "aria-label": label });
  node.style.background = stripGradient(numbers, most);
  node.style.setProperty("--cells", String(numbers.length));
  if (name) mark(node, name, numbers);
  return node;
}

/**
 * A table of vectors, one row per token and one strip per group. The number under the pointer is shown below.
 * @param {Frame} frame @param {string} label @param {StripGroup[]} groups
 */
export function stripTable(frame, label, groups) {
  const titles = groups.map(({ title, role }) => element("th", { scope: "col", class: `mha-six-${role}`, text: title }));
  const body = element("tbody");
  const readout = element("p", { class: "mha-readout mha-hint" });
  const table = element(
    "table",
    { class: "mha-strips", "aria-label": label },
    element("thead", {}, element("tr", {}, element("td"), ...titles)),
    body,
  );
  const node = element("div", {}, table, readout);
  const hint = "Point at a cell to read its number; the numbers of the chosen token are written out.";
  let [words, arrays] = [/** @type {readonly string[]} */ ([]), /** @type {import("../shared/attention_math.js").Matrix[]} */ ([])];
  const rest = () => {
    readout.textContent = hint;
    readout.classList.add("mha-hint");
  };
  const point = (/** @type {any} */ event) => {
    const strip = event.target.closest?.(".mha-strip");
    if (!strip) return rest();
    const [row, group] = [strip.dataset.row, strip.dataset.group].map(Number);
    const box = strip.getBoundingClientRect();
    const numbers = arrays[group][row];
    const entry = Math.min(Math.max(Math.floor(((event.clientX - box.left) / box.width) * numbers.length), 0), numbers.length - 1);
    readout.textContent = `${groups[group].title} of ${words[row]}, entry ${entry + 1} of ${numbers.length}: ${formatNumber(numbers[entry])}`;
    readout.classList.remove("mha-hint");
  };
  for (const type of ["pointermove", "pointerdown"]) frame.listen(body, type, point);
  frame.listen(body, "pointerleave", rest);
  rest();

  /**
   * @param {readonly string[]} tokens if there are none, the table is empty
   * @param {import("../shared/attention_math.js").Matrix[]} tables one for each group
   * @param {{chosen?: number, sum?: ArrayLike<number>}} [how] `chosen` is the highlighted row, `sum` a last row
   *   below a rule
   */
  function draw(tokens, tables, { chosen = -1, sum } = {}) {
    words = sum ? [...tokens, "the sum"] : tokens;
    arrays = sum ? [[...tables[0], Float64Array.from(sum)]] : tables;
    const most = mostOf(arrays);
    body.replaceChildren(
      ...words.map((word, row) => {
        const isSum = sum !== undefined && row === tokens.length;
        const cells = groups.map(({ title, name }, group) => {
          const strip = vectorStrip(arrays[group][row], most, `${title} of ${word}`, name);
          [strip.dataset.row, strip.dataset.group] = [String(row), String(group)];
          return element("td", {}, strip);
        });
        const head = element("th", { scope: "row" }, element("bdi", { class: "mha-word", text: isSum ? "sum" : word }));
        return element("tr", { class: isSum ? "mha-sum" : row === chosen ? "mha-chosen" : null }, head, ...cells);
      }),
    );
  }
  return { node, draw };
}

/** The colours of the strips, with the numbers at both ends. */
export function stripLegend() {
  const [low, high] = [element("span"), element("span")];
  const scale = element("span", { class: "mha-strip", role: "img", "aria-label": "from blue, negative, through white, 0, to red, positive" });
  scale.style.background = scaleGradient({ low: -1, high: 1 });
  const node = element("p", { class: "mha-strip-legend mha-hint" }, low, scale, high);
  /** @param {number} most */
  function draw(most) {
    [low.textContent, high.textContent] = [formatNumber(-most, 2), formatNumber(most, 2)];
  }
  return { node, draw };
}
