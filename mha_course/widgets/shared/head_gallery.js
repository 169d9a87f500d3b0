// Small maps of all heads of a model; a click chooses one, and the switch below a map turns its head off.

import { headColor } from "./colors.js";
import { element } from "./frame.js";
import { pixelCanvas } from "./pixel_canvas.js";

/** @typedef {import("./attention_math.js").Matrix} Matrix */

/**
 * @param {import("./frame.js").Frame} frame with the setting `gates`, in the order kinds, layers, heads
 * @param {readonly {title: string, about: string}[]} kinds of attention
 * @param {(kind: number, layer: number, head: number) => void} onChoose
 */
export function headGallery(frame, kinds, onChoose) {
  const allOn = element("button", { type: "button", text: "All heads on" });
  frame.listen(allOn, "click", () => frame.set({ gates: frame.get("gates").map(() => 1) }));
  const title = element("p", { class: "mha-title", text: "All heads: choose a map; switch heads off" });
  const node = element("div", { class: "mha-head-gallery" });
  /** @typedef {{card: HTMLElement, radio: HTMLInputElement, box: HTMLInputElement, canvas: ReturnType<typeof pixelCanvas>}} Card */
  /** @type {Card[]} */
  let cards = [];
  let sizes = [0, 0];
  /** @type {Map<string, {cards: Card[], groups: HTMLElement[]}>} what was built, by the sizes: a reader compares models */
  const built = new Map();
  const placeOf = (/** @type {number} */ index) => {
    const [layers, heads] = sizes;
    return [Math.floor(index / (layers * heads)), Math.floor(index / heads) % layers, index % heads];
  };
  frame.listen(node, "change", (event) => {
    const index = cards.findIndex(({ card }) => card.contains(event.target));
    if (event.target.type === "checkbox") {
      const gates = [...frame.get("gates")];
      gates[index] = event.target.checked ? 1 : 0;
      frame.set({ gates });
    } else {
      const [kind, layer, head] = placeOf(index);
      onChoose(kind, layer, head);
    }
  });

  /** @param {number} kind @param {number} layer @param {number} head */
  function makeCard(kind, layer, head) {
    const where = `${kinds[kind].title}, layer ${layer}, head ${head}`;
    const radio = element("input", { type: "radio", name: "map", class: "mha-over-map", "aria-label": where });
    const box = element("input", { type: "checkbox", "aria-label": `${where} is on` });
    const canvas = pixelCanvas();
    const choose = element("label", { class: "mha-choose" }, radio, canvas.node);
    const gate = element("label", { class: "mha-gate" }, box, element("span", { text: head, "aria-hidden": "true" }));
    const card = element("div", { class: "mha-card" }, choose, gate);
    card.style.setProperty("--head", headColor(head));
    return { card, radio, box, canvas };
  }

  /** @param {number} layers @param {number} heads */
  function makeCards(layers, heads) {
    /** @type {Card[]} */
    const all = [];
    const groups = kinds.map(({ title, about }, kind) => {
      const rows = Array.from({ length: layers }, (_, layer) => {
        const own = Array.from({ length: heads }, (_, head) => makeCard(kind, layer, head));
        all.push(...own);
        const name = element("span", { class: "mha-hint", text: `layer ${layer}` });
        return element("div", { class: "mha-layer" }, name, ...own.map(({ card }) => card));
      });
      const legend = element("legend", {}, element("b", { text: title }), ` – ${about}`);
      return element("fieldset", {}, legend, ...rows);
    });
    return { cards: all, groups };
  }

  /** @param {number} layers @param {number} heads */
  function rebuild(layers, heads) {
    sizes = [layers, heads];
    const found = built.get(String(sizes)) ?? makeCards(layers, heads);
    built.set(String(sizes), found);
    cards = found.cards;
    node.style.setProperty("--heads", String(heads));
    node.replaceChildren(...found.groups);
  }

  /**
   * @param {Matrix[][][]} maps by kind, layer and head @param {readonly (readonly (readonly number[])[])[]} gates likewise
   * @param {readonly number[]} chosen kind, layer and head
   */
  function draw(maps, gates, chosen) {
    const shape = [maps[0].length, maps[0][0].length];
    if (String(sizes) !== String(shape)) rebuild(shape[0], shape[1]);
    cards.forEach(({ card, radio, box, canvas }, index) => {
      const [kind, layer, head] = placeOf(index);
      canvas.draw(maps[kind][layer][head], { low: 0, high: 1 });
      radio.checked = String(chosen) === String([kind, layer, head]);
      box.checked = gates[kind][layer][head] === 1;
      card.classList.toggle("mha-off", !box.checked);
      card.classList.toggle("mha-chosen", radio.checked);
    });
  }
  return { nodes: [element("div", { class: "mha-all-on" }, title, allOn), node], draw };
}
