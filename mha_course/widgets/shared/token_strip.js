// The tokens of a text as a row of boxes, coloured by how much one of them reads of each. A click chooses the one that reads.

import { inkOn, viridis } from "./colors.js";
import { element, mark } from "./frame.js";

/**
 * @param {import("./frame.js").Frame} frame @param {string} name of the group
 * @param {(token: string) => string} signOf how a token looks in its box
 */
export function tokenStrip(frame, name, signOf) {
  const strip = element("div");
  const node = element("fieldset", { class: "mha-token-strip" }, element("legend", { text: name }), strip);
  frame.listen(node, "change", (event) => frame.set({ query: Number(event.target.value) }));
  /** @type {{label: HTMLElement, input: HTMLInputElement, sign: HTMLElement}[]} */
  let words = [];
  /** @type {any} */
  let drawn = null;

  /**
   * @param {readonly string[]} tokens @param {ArrayLike<number>} weights @param {number} query
   * @param {(key: number) => boolean} [isHidden] whether the query cannot see a token
   */
  function draw(tokens, weights, query, isHidden = () => false) {
    if (drawn !== tokens) {
      words = tokens.map((token, place) => {
        const input = element("input", { type: "radio", name: "query", value: place, "aria-label": `${signOf(token)} (${place + 1})` });
        const sign = element("span", { text: signOf(token) });
        return { input, sign, label: element("label", {}, input, sign) };
      });
      strip.replaceChildren(...words.map(({ label }) => label));
      drawn = tokens;
    }
    words.forEach(({ label, input, sign }, key) => {
      input.checked = key === query;
      label.classList.toggle("mha-later", isHidden(key));
      const color = viridis(weights[key]);
      sign.style.backgroundColor = isHidden(key) ? "" : `rgb(${color.join(" ")})`;
      sign.style.color = isHidden(key) ? "" : inkOn(color);
      if (!isHidden(key)) mark(sign, "reading", weights[key]);
      else {
        delete sign.dataset.number;
        delete sign.dataset.value;
      }
    });
  }
  return { node, draw };
}
