// All heads of a chat model on a few texts: a grid of small maps to choose from, the words that the chosen head reads, and
// what is lost without it. The maps are loaded when the reader scrolls here.

import { causalMask } from "../shared/attention_math.js";
import { kindOf, largest, ofHead, ranksOf, receivedOf, unpackText } from "./chat_heads_math.js";
import { fileNotice, loadFile } from "../shared/file_source.js";
import { formatNumber } from "../shared/format.js";
import { element, setText, widget } from "../shared/frame.js";
import { mapGrid, WEIGHTS } from "../shared/map_grid.js";
import { say } from "../shared/messages.js";
import { colorBar } from "../shared/number_map.js";
import { bars, facts, menu } from "../shared/parts.js";
import { sizedMap } from "../shared/pixel_map.js";
import { tokenStrip } from "../shared/token_strip.js";

/** @typedef {import("../shared/frame.js").Frame} Frame */
/** @typedef {import("./chat_heads_math.js").StoredMaps} StoredMaps */
/** @typedef {import("../shared/attention_math.js").Matrix} Matrix */
/** @typedef {{tokens: string[], maps: Matrix[], stored: StoredMaps, layer: number, head: number, index: number, count: number,
 *   query: number, kind: string, kinds: string[], measured: string, losses: string[]}} HeadsView */

/** What the menu calls the texts. Their names stay as they are, because the file of the maps has them. @type {Object<string, string>} */
const TITLES = {
  "the-sailors": "The sailors",
  "a-repeated-list": "A repeated list",
  "keys-and-a-cabinet": "Keys and a cabinet",
  "a-rhyme": "A rhyme",
  "a-chat": "A chat",
  brackets: `Brackets`,
  chinese: `Chinese`,
};
/** @type {Object<string, string>} */
const KIND_NAMES = { all: `all`, induction: `induction` };
/** @param {any} kind */
const nameOfKind = (kind) => KIND_NAMES[kind] ?? kind;
const STRONGEST = 5;
const MOST_READ = 3;
const FULL_BAR = 0.1; // nats

/** @param {string} token @returns {string} how a token looks in its own box */
function tokenSign(token) {
  const sign = token.trim().replace(/\n/g, "↵");
  return sign || token.replace(/\n/g, "↵").replace(/ /g, "␣");
}

/** @param {string} token @returns {string} */
const tokenName = (token) => `“${tokenSign(token)}”`;

/** The stored text of the present state. @param {Frame} frame */
function textOf(frame) {
  /** @type {{name: string, about: string, tokens: string[]}[]} */
  const texts = frame.get("texts");
  const text = texts.find(({ name }) => name === frame.get("text"));
  if (!text) {
    const names = texts.map(({ name }) => `“${name}”`).join(", ");
    throw new RangeError(`text must be one of ${names}, got “${frame.get("text")}”`);
  }
  return text;
}

/** Throws a RangeError if Python does not accept the text or the query. @param {Frame} frame */
function checkHeads(frame) {
  if (typeof frame.get("text") !== "string") return; // the rule of the setting says so
  const { tokens } = textOf(frame);
  const query = frame.get("query");
  frame.insist(!(query >= tokens.length), "query", `lie in 0..${tokens.length - 1}`);
}

/**
 * The maps: those of the page, or those of a file beside it, which is loaded when the reader has scrolled to the widget.
 * With Python instead of a file, Python is asked for them.
 * @param {Frame} frame
 */
function mapSource(frame) {
  let [isNear, isLoading, problem, tries] = [false, false, "", 0];
  const count = frame.get("num_layers") * frame.get("num_heads");
  const isThere = () => Object.keys(frame.get("maps")).length > 0;

  async function load() {
    if (isLoading || isThere() || !isNear) return;
    const name = frame.get("file");
    if (!frame.get("_static")) {
      if (!frame.get("wanted")) frame.set({ wanted: true });
      return;
    }
    isLoading = true;
    const address = new URL(name, frame.get("_static"));
    if (tries > 0) address.search = `try=${tries}`; // the browser may have cached a damaged file
    try {
      const maps = await loadFile(address.href, name);
      if (!frame.signal.aborted) frame.set({ maps });
    } catch (error) {
      problem = /** @type {Error} */ (error).message;
      if (!frame.signal.aborted) frame.set({ maps: {} }); // draws again
    }
    isLoading = false;
  }
  const watcher = new IntersectionObserver((entries) => {
    isNear ||= entries.some(({ isIntersecting }) => isIntersecting);
    load();
  }, { rootMargin: "200px" });
  if (!isThere()) watcher.observe(frame.body);
  frame.signal.addEventListener("abort", () => watcher.disconnect());

  return {
    /** @returns {{maps?: StoredMaps, problem?: string, note?: string}} */
    find() {
      if (isThere()) return { maps: frame.get("maps") };
      if (problem) return { problem: say(frame, "broken", { problem }) };
      return { note: say(frame, frame.get("_static") ? "loading" : "waiting", { count }) };
    },
    again() {
      problem = "";
      tries += 1;
      frame.set({ maps: {} });
      load();
    },
  };
}

/** Reads the present state, and unpacks a text only once. @param {Frame} frame */
function headsReader(frame) {
  /** @type {Map<string, Matrix[]>} */
  const kept = new Map();
  /** @type {any} */
  let from = null;
  return (/** @type {StoredMaps} */ stored) => {
    const { text, layer, head, ...settings } = frame.read();
    const { tokens } = textOf(frame);
    if (from !== stored) kept.clear();
    from = stored;
    const maps = kept.get(text) ?? unpackText(stored, text, tokens.length);
    kept.set(text, maps);
    const kinds = (frame.limits("kind").options ?? []).filter((option) => option !== "all");
    const losses = frame.limits("measured").options ?? [];
    const [index, count] = [layer * stored.heads + head, stored.layers * stored.heads];
    return { ...settings, tokens, maps, stored, layer, head, index, count, kinds, losses };
  };
}

/** @param {Frame} frame @param {HeadsView} view @param {number} index of a head */
function kindName(frame, { stored, kinds, count }, index) {
  const kind = kindOf(ofHead(stored.scores, count, index));
  return kind < 0 ? say(frame, "none") : say(frame, "kind", { kind: nameOfKind(kinds[kind]) });
}

/** The grid of small maps, with a line above each for its kind and a bar below for what is lost. @param {Frame} frame */
function markedGrid(frame) {
  const [layers, heads] = [frame.get("num_layers"), frame.get("num_heads")];
  const count = layers * heads;
  const { node, entries, draw: drawMaps } = mapGrid(frame, layers, heads, say(frame, "gallery", { count, heads }));
  node.classList.add("mha-chat-grid");
  const effects = entries.map(({ label }) => label.appendChild(element("i")));

  /** @type {any[]} */
  let drawn = [];
  let mask = causalMask(1);

  /** @param {HeadsView} view */
  function draw(view) {
    const { maps, stored, tokens, index: chosen, kind, kinds, measured, losses } = view;
    if (drawn[0] !== maps) mask = causalMask(tokens.length);
    const place = (/** @type {number} */ index) => say(frame, "place", { layer: Math.floor(index / heads), head: index % heads });
    drawMaps(maps, chosen, (index) => `${place(index)}, ${kindName(frame, view, index)}`, mask);
    const row = losses.indexOf(measured);
    entries.forEach(({ label }, index) => {
      const own = kindOf(ofHead(stored.scores, count, index));
      if (drawn[0] !== maps || drawn[1] !== measured) {
        const share = Math.min(Math.max(stored.rises[row * count + index] / FULL_BAR, 0), 1);
        effects[index].style.width = `${100 * share}%`;
        label.dataset.kind = String(own);
      }
      label.classList.toggle("mha-other", kind !== "all" && kinds[own] !== kind);
    });
    drawn = [maps, measured];
  }
  return { node, draw };
}

/** What the line above a map means. @param {Frame} frame */
function markLegend(frame) {
  const kinds = (frame.limits("kind").options ?? []).filter((kind) => kind !== "all");
  const marks = kinds.map((kind, index) => element("span", {}, element("i", { "data-kind": index }), nameOfKind(kind)));
  return element("p", { class: "mha-hint mha-chat-legend" }, say(frame, "marks"), ...marks);
}

/** @param {number} rise @returns {string} with its sign */
function signed(rise) {
  const text = formatNumber(rise, 3);
  return text.startsWith("−") ? text : `+${text}`;
}

/** What the chosen head reads, gets and is worth. @param {Frame} frame */
function headPanel(frame) {
  const losses = frame.limits("measured").options ?? [];
  const title = element("p", { class: "mha-title" });
  const words = tokenStrip(frame, say(frame, "choose"), tokenSign);
  const scale = colorBar();
  const reads = element("p", { class: "mha-caption" });
  const strongest = bars("strongest", "muted");
  const scores = bars("scores", "muted");
  const worth = facts(losses.map(() => "rises"), losses.map((text) => say(frame, "fact", { text })));
  const map = sizedMap(frame, { name: "weights", rows: `queries`, columns: `keys` });
  const heading = (/** @type {string} */ name) => element("p", { class: "mha-name", text: say(frame, name) });
  const left = element("div", {}, title, words.node, scale.node, reads, worth.node, heading("kinds"), scores.node);
  const right = element("div", {}, map.node, heading("strongest"), strongest.node);
  const node = element("div", { class: "mha-chat-panes" }, left, right);
  /** @type {any} */
  let ranked = null;
  /** @type {number[][]} */
  let ranks = [];

  /** @param {HeadsView} view */
  function draw(view) {
    const { tokens, maps, stored, layer, head, index, count, query, kinds } = view;
    if (ranked !== stored) ranks = losses.map((_, row) => ranksOf(stored.rises.slice(row * count, (row + 1) * count)));
    ranked = stored;
    const numbers = maps[index];
    const [place, kind] = [say(frame, "place", { layer, head }), kindName(frame, view, index)];
    setText(title, `${place} · ${kind}`);
    words.draw(tokens, numbers[query], query, (key) => key > query);
    scale.draw(WEIGHTS, `weight`);
    const most = largest(numbers[query].subarray(0, query + 1), MOST_READ)
      .map(({ number, index: key }) => `${tokenName(tokens[key])} (${key + 1}) ${formatNumber(number, 2)}`)
      .join(", ");
    setText(reads, say(frame, "reads", { token: tokenName(tokens[query]), number: query + 1, length: tokens.length, most }));
    const rises = ofHead(stored.rises, count, index);
    worth.draw(rises.map((rise, row) => ({ text: signed(rise), hint: say(frame, "nats", { rank: ranks[row][index], count }), number: rise })));
    const received = largest(receivedOf(numbers), STRONGEST);
    strongest.draw(received.map(({ index: key }) => `${tokenSign(tokens[key])} (${key + 1})`), received.map(({ number }) => number), { digits: 2 });
    scores.draw(kinds.map(nameOfKind), ofHead(stored.scores, count, index), { digits: 2 });
    const labels = tokens.map(tokenSign);
    map.draw({
      label: place,
      rowLabels: labels,
      columnLabels: labels,
      numbers,
      extent: WEIGHTS,
      mask: causalMask(tokens.length),
      isHidden: (q, k) => k > q,
      describe: (q, k, number) => `${labels[q]} (${q + 1}) reads ${labels[k]} (${k + 1}): ${number}`,
      room: "narrow",
    });
    const told = rises.map((rise, row) => say(frame, "rise", { rise: formatNumber(rise, 3), text: losses[row], rank: ranks[row][index], count }));
    const off = say(frame, "off", { rises: told.join(` ${say(frame, "and")} `) });
    return say(frame, "said", { place, kind, reads: reads.textContent, off });
  }
  return { node, draw };
}

/** @param {Frame} frame */
function buildHeads(frame) {
  const source = mapSource(frame);
  const read = headsReader(frame);
  /** @type {{name: string, about: string, tokens: string[]}[]} */
  const texts = frame.get("texts");
  const names = texts.map(({ name }) => name);
  const text = menu(frame, say(frame, "text"), (index) => frame.set({ text: names[index], query: texts[index].tokens.length - 1 }));
  const about = element("p", { class: "mha-hint" });
  const kind = menu(frame, say(frame, "show"), "kind", (frame.limits("kind").options ?? []).map(nameOfKind));
  const measured = menu(frame, say(frame, "measured"), "measured");
  const hint = element("p", { class: "mha-hint", text: say(frame, "bars", { full: FULL_BAR }) });
  const notice = fileNotice(frame, source.again);
  const grid = markedGrid(frame);
  const panel = headPanel(frame);
  const shown = element("div", {}, grid.node, markLegend(frame), hint, panel.node);
  frame.body.append(element("div", { class: "mha-controls" }, text.node, kind.node, measured.node), about, notice.node, shown);

  return () => {
    const { maps, ...missing } = source.find();
    const titles = names.map((name) => TITLES[name.toLowerCase().replaceAll(" ", "-")] ?? name);
    text.draw(titles, names.indexOf(frame.get("text")));
    setText(about, textOf(frame).about);
    notice.draw(missing);
    shown.hidden = !maps;
    if (!maps) return;
    const view = read(maps);
    grid.draw(view);
    frame.tell(panel.draw(view));
    const numbers = view.maps[view.index];
    frame.report(() => ({
      reading: numbers[view.query].slice(0, view.query + 1),
      strongest: largest(receivedOf(numbers), STRONGEST).map(({ number }) => number),
      scores: ofHead(maps.scores, view.count, view.index),
      rises: ofHead(maps.rises, view.count, view.index),
      weights: numbers,
    }));
  };
}

export default widget({ name: "chat-heads", label: "Heads of a chat model", data: ["maps"], check: checkHeads }, buildHeads);
