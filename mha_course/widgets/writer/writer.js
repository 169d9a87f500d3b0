// A small GPT in the page continues what a reader types, one character after the other. The probabilities from which each is
// drawn and the map of each head are shown, and heads can be switched off.

import { headColor } from "../shared/colors.js";
import { countOf, formatNumber } from "../shared/format.js";
import { element, mark, setText, widget } from "../shared/frame.js";
import { headGallery } from "../shared/head_gallery.js";
import { colorBar } from "../shared/number_map.js";
import { bars, slider } from "../shared/parts.js";
import { sizedMap } from "../shared/pixel_map.js";
import { textBox, textField } from "../shared/text_field.js";
import { drawToken, nextChances, numberAt, readingMaps, readText, textProblem, unpackWriter } from "./writer_math.js";

/** @typedef {import("../shared/frame.js").Frame} Frame */
/** @typedef {ReturnType<typeof viewText>} WriterView */

const LIKELIEST = 8;
const MAX_PROMPT = 1000;
const MAX_WRITTEN = 500;
const MOST_READ = 3;
const STEP_TIME = 100; // milliseconds for each character, so that a reader can follow
const HEADS = [{ title: "Attention", about: "each character reads itself and earlier ones" }];

/** @param {string} character @returns {string} how it looks in a row of its own */
const characterSign = (character) => ({ " ": "␣", "\n": "↵", "\t": "⇥" })[character] ?? character;

/** @param {string} character @returns {string} how a sentence names it */
const characterName = (character) => ({ " ": "a space", "\n": "a new line", "\t": "a tab" })[character] ?? `“${character}”`;

/** Throws a RangeError if Python does not accept the text. @param {Frame} frame */
function checkTexts(frame) {
  const alphabet = [...frame.get("alphabet")];
  const check = (/** @type {string} */ name, /** @type {number} */ most) => {
    const text = frame.get(name);
    if (typeof text !== "string") return; // the rule of the setting says so
    const problem = name === "written" && text === "" ? "" : textProblem(text, alphabet, most);
    if (problem) throw new RangeError(`${name} must be a text that the model can read: ${problem.replace(/\.$/, "")}`);
  };
  check("prompt", MAX_PROMPT);
  check("written", MAX_WRITTEN);
}

/** Reads the text of the present state, with the probabilities of the next character. @param {Frame} frame */
function textReader(frame) {
  /** @type {any} */
  let stored = null;
  /** @type {import("./writer_math.js").WriterModel} */
  let model;
  /** @type {import("./writer_math.js").Reading | null} */
  let reading = null;
  let key = "";
  /** @type {import("../shared/attention_math.js").Matrix[][]} */
  let maps = [];
  return () => {
    if (stored !== frame.get("packed")) {
      model = unpackWriter(frame.get("packed"));
      stored = frame.get("packed");
    }
    const { gates: flat, ...state } = frame.read();
    const gates = Array.from({ length: model.numLayers }, (_, layer) =>
      flat.slice(layer * model.numHeads, (layer + 1) * model.numHeads),
    );
    const alphabet = [...frame.get("alphabet")];
    const text = [...state.prompt, ...state.written];
    const wanted = JSON.stringify([text, flat]);
    if (wanted !== key || reading?.model !== model) {
      reading = readText(model, gates, text.map((character) => alphabet.indexOf(character)), reading);
      maps = readingMaps(reading);
      key = wanted;
    }
    return viewText({ ...state, model, gates, alphabet, text, maps, logits: reading.logits[reading.logits.length - 1] });
  };
}

/**
 * @param {{prompt: string, written: string, temperature: number, topK: number, seed: number, layer: number, head: number,
 *   model: import("./writer_math.js").WriterModel, gates: number[][], alphabet: string[], text: string[],
 *   maps: import("../shared/attention_math.js").Matrix[][], logits: Float64Array}} state
 */
function viewText(state) {
  const place = [...state.written].length;
  const number = numberAt(state.seed, place);
  const chances = nextChances(state.logits, state.temperature, state.topK);
  const seen = state.text.slice(-state.model.maxLen);
  return { ...state, place, number, chances, drawn: drawToken(chances, number), seen };
}

/** The text: what the model no longer sees is faint, what it has written is bold. */
function writtenText() {
  const parts = ["mha-unseen-prompt", "", "mha-unseen-written", "mha-written"].map((name) => element("span", { class: name }));
  const node = textBox("The text", ...parts);
  let drawn = "";

  /** @param {WriterView} view */
  function draw({ text: all, place, seen }) {
    const [gone, start] = [all.length - seen.length, all.length - place];
    const cuts = [0, Math.min(gone, start), start, Math.max(gone, start), all.length];
    parts.forEach((part, index) => setText(part, all.slice(cuts[index], cuts[index + 1]).join("")));
    if (drawn === all.join("")) return;
    drawn = all.join("");
    node.scrollTop = node.scrollHeight;
  }
  return { node, draw };
}

/** Buttons that write, stop, and undo. @param {Frame} frame @param {() => string} nextCharacter */
function writingButtons(frame, nextCharacter) {
  const make = (/** @type {string} */ text) => element("button", { type: "button", text });
  const [next, run, stop, undo, back] = ["Next character", "▶ Run", "■ Stop", "Undo", "Back to the prompt"].map(make);
  const node = element("div", { class: "mha-buttons", role: "group", "aria-label": "Writing" }, next, run, stop, undo, back);
  let timer = 0;
  let place = 0;
  frame.signal.addEventListener("abort", () => clearTimeout(timer));

  function write() {
    if (place < MAX_WRITTEN) frame.set({ written: frame.get("written") + nextCharacter() });
  }
  function halt() {
    clearTimeout(timer);
    timer = 0;
    draw(place);
  }
  function goOn() {
    timer = setTimeout(goOn, STEP_TIME);
    write();
  }
  /** @param {string} written */
  function take(written) {
    halt();
    frame.set({ written });
  }
  frame.listen(next, "click", write);
  frame.listen(run, "click", () => {
    if (timer || place >= MAX_WRITTEN) return;
    timer = setTimeout(goOn, STEP_TIME);
    draw(place);
  });
  frame.listen(stop, "click", () => {
    if (!timer) return;
    halt();
    frame.say(`Stopped. Written: ${frame.get("written")}`);
  });
  frame.listen(undo, "click", () => place > 0 && take([...frame.get("written")].slice(0, -1).join("")));
  frame.listen(back, "click", () => place > 0 && take(""));

  /** @param {number} count of characters that are written */
  function draw(count) {
    place = count;
    if (timer && count >= MAX_WRITTEN) return halt();
    const isFull = count >= MAX_WRITTEN;
    for (const [button, isOff] of [[next, isFull], [run, isFull || timer > 0], [stop, timer === 0], [undo, count === 0], [back, count === 0]]) {
      button.setAttribute("aria-disabled", String(isOff));
    }
  }
  return { node, draw, halt, isRunning: () => timer > 0 };
}

/** The number that is drawn here, and the character on which it falls. */
function drawnLine() {
  const [number, drawn] = [element("b"), element("b")];
  const node = element("p", { class: "mha-drawn" });

  /** @param {WriterView} view */
  function draw(view) {
    setText(number, formatNumber(view.number, 3));
    mark(number, "number", view.number);
    setText(drawn, characterName(view.alphabet[view.drawn]));
    mark(drawn, "drawn", view.drawn);
    if (node.childNodes.length === 0) node.append("The seed draws ", number, " here. With the bars of all characters end to end, it falls on ", drawn, ".");
  }
  return { node, draw };
}

/** A sentence on which characters the chosen head reads most before the next is written. @param {WriterView} view */
function describeReading({ maps, layer, head, seen }) {
  const most = Array.from(maps[layer][head][seen.length - 1], (weight, index) => ({ weight, index }))
    .sort((a, b) => b.weight - a.weight)
    .slice(0, MOST_READ)
    .map(({ weight, index }) => {
      const back = seen.length - 1 - index;
      const where = back === 0 ? "the last" : `${back} before the last`;
      return `${characterName(seen[index])} (${where}) ${formatNumber(weight, 2)}`;
    });
  return `head ${head} of layer ${layer} reads most: ${most.join(", ")}`;
}

/** The large map of the chosen head. @param {Frame} frame */
function headMap(frame) {
  const title = element("p", { class: "mha-title mha-of-head" });
  const map = sizedMap(frame, { name: "weights", rows: `queries`, columns: `keys` });
  const scale = colorBar();
  const node = element("div", { class: "mha-chosen-map" }, title, map.node, scale.node);

  /** @param {WriterView} view */
  function draw({ maps, layer, head, seen }) {
    setText(title, `Layer ${layer}, head ${head}`);
    title.style.setProperty("--head", headColor(head));
    const labels = seen.map(characterSign);
    const numbers = maps[layer][head];
    map.draw({
      label: `Weights of layer ${layer}, head ${head}`,
      rowLabels: labels,
      columnLabels: labels,
      numbers,
      extent: { low: 0, high: 1 },
      mask: numbers.map((row, q) => Array.from(row, (_, k) => k <= q)),
      isHidden: (q, k) => k > q,
      describe: (q, k, number) => `${labels[q]} (${q + 1}) reads ${labels[k]} (${k + 1}): ${number}`,
      room: "narrow",
    });
    scale.draw({ low: 0, high: 1 }, `weight`);
  }
  return { node, draw };
}

/** @param {Frame} frame */
function buildWriter(frame) {
  const read = textReader(frame);
  /** @type {WriterView} */
  let view;
  const alphabet = [...frame.get("alphabet")];
  const remark = "is continued in your browser; no text leaves this page";
  const judge = (/** @type {string} */ text) => {
    const problem = textProblem(text, alphabet, MAX_PROMPT);
    return { problem: problem && `${problem} Nothing below is lost.`, remark };
  };
  const field = textField(frame, "prompt", "prompt", judge, (prompt) => {
    buttons.halt();
    frame.set({ prompt, written: "" });
  });
  const temperature = slider(frame, "temperature", "temperature", (value) => ({ step: 0.05, text: formatNumber(value, 2) }));
  const topK = slider(frame, "top_k", "top_k", (value) => ({ text: value === alphabet.length ? `all` : String(value) }));
  const seed = slider(frame, "seed");
  const buttons = writingButtons(frame, () => view.alphabet[view.drawn]);
  const text = writtenText();
  const [next, drawn] = [bars("probabilities", "muted"), drawnLine()];
  const told = element("p", { class: "mha-told" });
  const caption = element("p", { class: "mha-caption" });
  const gallery = headGallery(frame, HEADS, (_, layer, head) => frame.set({ layer, head }));
  const large = headMap(frame);
  const controls = element("div", { class: "mha-controls" }, temperature.node, topK.node, seed.node);
  const title = element("p", { class: "mha-title", text: "The likeliest next characters" });
  const chances = element("div", {}, title, next.node, drawn.node);
  const heads = element("div", {}, ...gallery.nodes, caption);
  const panes = element("div", { class: "mha-panes" }, element("div", {}, chances, heads), large.node);
  frame.body.append(...field.nodes, controls, text.node, buttons.node, told, panes);

  return () => {
    view = read();
    field.draw(view.prompt);
    text.draw(view);
    buttons.draw(view.place);
    const likely = view.chances.slice(0, LIKELIEST);
    next.draw(
      likely.map(({ token }) => characterSign(view.alphabet[token])),
      likely.map(({ probability }) => probability),
      { digits: 3, now: likely.findIndex(({ token }) => token === view.drawn) },
    );
    drawn.draw(view);
    const written = countOf(view.place, "1 character written", "# characters written");
    const full = view.place >= MAX_WRITTEN ? ", which is the most" : "";
    setText(told, `${written}${full}. The model sees the last ${view.seen.length} of the text.`);
    setText(caption, describeReading(view));
    frame.later(() => {
      gallery.draw([view.maps], [view.gates], [0, view.layer, view.head]);
      large.draw(view);
    });
    const last = view.place > 0 ? `${characterName(view.text[view.text.length - 1])} is written. ` : "";
    if (!buttons.isRunning()) frame.tell(`${last}${told.textContent} ${title.textContent}: ${likely.slice(0, MOST_READ).map(({ token, probability }) => `${characterName(view.alphabet[token])} ${formatNumber(probability, 2)}`).join(", ")}. ${caption.textContent}`);
    frame.report(() => ({
      probabilities: likely.map(({ probability }) => probability),
      number: [view.number],
      drawn: view.drawn,
      weights: view.maps[view.layer][view.head],
    }));
  };
}

export default widget({ name: "writer", label: "Writer", data: ["packed", "alphabet"], check: checkTexts }, buildWriter);
