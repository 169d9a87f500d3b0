// All heads of a sentence model on the reader's own text: a grid of small maps to choose from, and what the chosen head reads.
// A button loads the model, and a worker reads the text; until then, the page has the maps of one text.

import { bytesFromBase64 } from "../shared/attention_math.js";
import { BERT, bertBlocks, bertReader, readPieces, unpackBert, unpackVocabulary } from "./bert_math.js";
import { largest, receivedOf } from "../chat_heads/chat_heads_math.js";
import { fileNotice, loadFile } from "../shared/file_source.js";
import { formatNumber } from "../shared/format.js";
import { element, setText, widget } from "../shared/frame.js";
import { mapGrid, WEIGHTS } from "../shared/map_grid.js";
import { say } from "../shared/messages.js";
import { colorBar } from "../shared/number_map.js";
import { startWorker } from "../shared/page_worker.js";
import { bars } from "../shared/parts.js";
import { sizedMap } from "../shared/pixel_map.js";
import { looksOf, mapsFromBytes } from "./sentence_heads_math.js";
import { textField } from "../shared/text_field.js";
import { tokenStrip } from "../shared/token_strip.js";

/** @typedef {import("../shared/frame.js").Frame} Frame */
/** @typedef {import("../shared/attention_math.js").Matrix} Matrix */
/** @typedef {import("./bert_math.js").PackedBert} PackedBert */
/** @typedef {{text: string, pieces: string[], missing: string[], maps: Matrix[]}} Reading */
/** @typedef {Reading & {layer: number, head: number, query: number}} SentenceView */

const STRONGEST = 5;
const MOST_READ = 3;
const SMALL = 1e6; // bytes of a model that reads a text while nobody waits, without a worker

const WORKER = `"use strict";
${BERT.map(String).join("\n")}
const read = bertReader(postMessage);
onmessage = ({ data }) => read(data);
`;

/** @param {string} piece */
const pieceName = (piece) => `“${piece}”`;

/** @param {readonly string[]} pieces */
const pieceNames = (pieces) => pieces.map(pieceName).join(", ");

/** What is wrong with the length of a text; empty if it may be read. @param {Frame} frame @param {string} text */
function lengthProblem(frame, text) {
  const [count, most] = [[...text].length, frame.get("bounds").characters];
  return count === 0 ? say(frame, "empty") : count > most ? say(frame, "characters", { count, most }) : "";
}

/** Throws a RangeError if Python does not accept the text. @param {Frame} frame */
function checkSentence(frame) {
  const text = frame.get("text");
  const problem = typeof text === "string" ? lengthProblem(frame, text) : ""; // a different type breaks the rule of the setting
  if (problem) throw new RangeError(`text must be fit to read: ${problem.replace(/\.$/, "")}`);
}

/**
 * Lets a model read texts: in a worker or, if the browser does not run it, in the page. Only the latest text is answered.
 * @param {Frame} frame @param {(reading: Reading, packed: PackedBert) => void} onReading
 * @param {(problem: string) => void} onProblem @param {(block: number) => void} onBlock
 */
function textReader(frame, onReading, onProblem, onBlock) {
  /** @type {{ask: (request: any) => void, stop: () => void} | null} */
  let runner = null;
  /** @type {{number: number, packed: PackedBert, text: string, read: ReturnType<typeof readPieces>} | null} */
  let pending = null;
  /** @type {PackedBert | null} */
  let sent = null;
  let number = 0;

  /** @param {import("./bert_math.js").BertAnswer} answer */
  function hear({ number: answered, block, maps, problem }) {
    if (frame.signal.aborted || answered !== pending?.number) return;
    if (block !== undefined) return onBlock(block);
    const { packed, text, read } = pending;
    pending = null;
    if (maps) onReading({ text, pieces: read.pieces, missing: read.missing, maps }, packed);
    else {
      stop();
      onProblem(problem ?? "");
    }
  }
  function readHere() {
    runner?.stop();
    const read = bertReader(hear);
    runner = { ask: (request) => setTimeout(() => read(request)), stop() {} };
    sent = null;
    send();
  }
  function send() {
    if (!pending) return;
    const { packed, read } = pending;
    runner?.ask({ packed: sent === packed ? undefined : packed, number: pending.number, tokens: read.tokens });
    sent = packed;
  }
  function stop() {
    runner?.stop();
    runner = sent = pending = null;
  }
  frame.signal.addEventListener("abort", stop);
  return {
    /** @param {PackedBert} packed @param {string} text @param {ReturnType<typeof readPieces>} read */
    ask(packed, text, read) {
      if (pending?.text === text && pending.packed === packed) return;
      pending = { number: ++number, packed, text, read };
      runner ??= startWorker(WORKER, hear, readHere);
      if (runner) send();
      else readHere();
    },
  };
}

/**
 * The reading of the present text: from the model, if the page contains it or has loaded it, or from Python.
 * @param {Frame} frame @param {() => void} show draws again
 */
function readingSource(frame, show) {
  const { pieces: most, megabytes } = frame.get("bounds");
  /** @type {Reading | null} */
  let latest = null;
  /** @type {any} the packed model or the answer from which the latest reading comes */
  let from = null;
  /** @type {{packed: PackedBert, vocabulary: import("./bert_math.js").Vocabulary, model?: ReturnType<typeof unpackBert>} | null} */
  let kept = null;
  let [isLoading, problem, tries, block] = [false, "", 0, 0];
  const take = (/** @type {Reading} */ reading, /** @type {any} */ source) => ([latest, from] = [reading, source]);
  const reader = textReader(
    frame,
    (reading, packed) => {
      take(reading, packed);
      show();
    },
    (fault) => {
      problem = say(frame, "broken", { problem: fault });
      frame.set({ model: {} }); // draws again
    },
    (count) => {
      block = count;
      show();
    },
  );

  /** @param {string} text @returns {{problem?: string, note?: string, isReading?: boolean}} */
  function readOwn(text) {
    /** @type {PackedBert} */
    const packed = frame.get("model");
    if (kept?.packed !== packed) kept = { packed, vocabulary: unpackVocabulary(packed) };
    const read = readPieces(text, kept.vocabulary);
    const count = read.pieces.length;
    if (count > most) return { note: say(frame, "pieces", { count, most }) };
    if (latest?.text === text && from === packed) return {};
    if (packed.sizes.int8 <= SMALL) {
      kept.model ??= unpackBert(packed);
      const maps = [...bertBlocks(kept.model, read.tokens)].flatMap(({ weights }) => weights);
      take({ text, pieces: read.pieces, missing: read.missing, maps }, packed);
      return {};
    }
    reader.ask(packed, text, read);
    return { note: say(frame, "reading"), isReading: true };
  }

  /** @param {string} text @returns {{problem?: string, note?: string}} */
  function readFromPython(text) {
    const answer = frame.get("answer");
    if (answer.text === text) {
      if (answer.problem) return { note: say(frame, "broken", { problem: answer.problem }) };
      const { pieces, maps } = answer;
      if (!maps) return { note: say(frame, "pieces", { count: pieces.length, most }) };
      const bytes = () => bytesFromBase64(maps, "maps", 4 * frame.get("num_layers") * frame.get("num_heads") * pieces.length ** 2);
      if (from !== answer) take({ text, pieces, missing: [], maps: mapsFromBytes(bytes(), pieces.length) }, answer);
    }
    if (frame.get("_static")) return {};
    if (!frame.get("wanted")) frame.set({ wanted: true });
    return answer.text === text ? {} : { note: say(frame, "waiting") };
  }

  async function load() {
    if (isLoading || !frame.get("_static")) return;
    [isLoading, problem] = [true, ""];
    show();
    const name = frame.get("file");
    const address = new URL(name, frame.get("_static"));
    if (tries++ > 0) address.search = `try=${tries}`; // the browser may have cached a damaged file
    try {
      const model = await loadFile(address.href, name);
      unpackVocabulary(model);
      isLoading = false;
      if (!frame.signal.aborted) frame.set({ model });
    } catch (error) {
      const { message, cause } = /** @type {Error} */ (error);
      const fault = cause === "missing" ? say(frame, "absent", { problem: message }) : message;
      [isLoading, problem] = [false, say(frame, "broken", { problem: fault })];
      if (!frame.signal.aborted) show();
    }
  }
  return {
    load,
    /** @param {string} text */
    find(text) {
      const isThere = Object.keys(frame.get("model")).length > 0;
      const state = isThere ? readOwn(text) : readFromPython(text);
      const isOffered = !isThere && !isLoading && !problem && Boolean(frame.get("_static"));
      if (isLoading) state.note = say(frame, "loading", { megabytes });
      if (!isThere && problem) state.problem = problem;
      const isBusy = isLoading || "isReading" in state;
      if (!("isReading" in state)) block = 0;
      const isCurrent = latest?.text === text && (!isThere || from === frame.get("model"));
      return { ...state, latest, isOffered, isBusy, isCurrent, block };
    },
  };
}

/** The button that loads the model, and what the page shows before. @param {Frame} frame @param {() => void} onLoad */
function loadOffer(frame, onLoad) {
  const { megabytes } = frame.get("bounds");
  const button = element("button", { type: "button", text: say(frame, "load", { megabytes }) });
  const text = element("span", { class: "mha-hint" });
  const node = element("p", { class: "mha-offer", hidden: true }, button, text);
  frame.listen(button, "click", onLoad);

  /** @param {boolean} isOffered @param {string} [stored] the text whose maps the page has */
  function draw(isOffered, stored) {
    node.hidden = !isOffered;
    if (isOffered && stored !== undefined) setText(text, say(frame, "offer", { text: stored }));
  }
  return { node, draw };
}

/** What the chosen head reads. @param {Frame} frame */
function sentencePanel(frame) {
  const title = element("p", { class: "mha-title" });
  const words = tokenStrip(frame, say(frame, "choose"), (piece) => piece);
  const scale = colorBar();
  const reads = element("p", { class: "mha-caption" });
  const looks = bars("looks", "muted");
  const strongest = bars("strongest", "muted");
  const map = sizedMap(frame, { name: "weights", rows: `queries`, columns: `keys` });
  const heading = (/** @type {string} */ name) => element("p", { class: "mha-name", text: say(frame, name) });
  const left = element("div", {}, title, words.node, scale.node, reads, heading("looks"), looks.node);
  const right = element("div", {}, map.node, heading("strongest"), strongest.node);
  const node = element("div", { class: "mha-sentence-panes" }, left, right);
  const places = ["previous", "itself", "next", "marks"].map((name) => say(frame, name));

  /** @param {SentenceView} view */
  function draw({ pieces, maps, layer, head, query }) {
    const numbers = maps[layer * frame.get("num_heads") + head];
    const place = say(frame, "place", { layer, head });
    setText(title, place);
    words.draw(pieces, numbers[query], query);
    scale.draw(WEIGHTS, `weight`);
    const most = largest(numbers[query], MOST_READ)
      .map(({ number, index: key }) => `${pieceName(pieces[key])} (${key + 1}) ${formatNumber(number, 2)}`)
      .join(", ");
    setText(reads, say(frame, "reads", { token: pieceName(pieces[query]), number: query + 1, length: pieces.length, most }));
    looks.draw(places, looksOf(numbers), { digits: 2 });
    const received = largest(receivedOf(numbers), STRONGEST);
    strongest.draw(received.map(({ index: key }) => `${pieces[key]} (${key + 1})`), received.map(({ number }) => number), { digits: 2 });
    map.draw({
      label: place,
      rowLabels: pieces,
      columnLabels: pieces,
      numbers,
      extent: WEIGHTS,
      mask: null,
      describe: (q, k, number) => `${pieces[q]} (${q + 1}) reads ${pieces[k]} (${k + 1}): ${number}`,
      room: "narrow",
    });
    return `${place}. ${reads.textContent}`;
  }
  return { node, draw };
}

/** @param {Frame} frame */
function buildSentence(frame) {
  const [layers, heads] = [frame.get("num_layers"), frame.get("num_heads")];
  const source = readingSource(frame, draw);
  const judge = (/** @type {string} */ text) => {
    const problem = lengthProblem(frame, text);
    const still = problem && ` ${say(frame, "still", { text: frame.get("text") })}`;
    return { problem: problem + still, remark: say(frame, "remark", frame.get("bounds")) };
  };
  const field = textField(frame, say(frame, "field"), "text", judge, (text) => frame.set({ text }));
  const offer = loadOffer(frame, source.load);
  const notice = fileNotice(frame, source.load);
  const progress = element("progress", { max: layers, "aria-label": say(frame, "progress"), hidden: true });
  const missing = element("p", { class: "mha-hint mha-missing" });
  const grid = mapGrid(frame, layers, heads, say(frame, "gallery", { count: layers * heads, heads, layers }));
  const panel = sentencePanel(frame);
  const shown = element("div", {}, missing, grid.node, panel.node);
  frame.body.append(...field.nodes, offer.node, notice.node, progress, shown);

  function draw() {
    const { text, layer, head, query } = frame.read();
    const { latest, isOffered, isBusy, isCurrent, block, problem, note } = source.find(text);
    field.draw(text);
    offer.draw(isOffered, latest?.text);
    const still = note && !isCurrent && latest ? ` ${say(frame, "still", { text: latest.text })}` : "";
    notice.draw({ problem, note: note && note + still });
    progress.hidden = !isBusy;
    if (block > 0) progress.value = block;
    else progress.removeAttribute("value"); // nobody knows how long it takes
    shown.hidden = !latest;
    if (!latest) return;
    const view = { ...latest, layer, head, query: Math.min(query, latest.pieces.length - 1) };
    missing.hidden = latest.missing.length === 0;
    setText(missing, latest.missing.length ? say(frame, "missing", { pieces: pieceNames(latest.missing) }) : "");
    grid.draw(latest.maps, layer * heads + head, (index) => say(frame, "place", { layer: Math.floor(index / heads), head: index % heads }));
    const told = panel.draw(view);
    if (!isCurrent) return;
    frame.tell(say(frame, "said", { text: latest.text, reads: told }));
    const numbers = latest.maps[layer * heads + head];
    frame.report(() => ({
      reading: numbers[view.query],
      looks: looksOf(numbers),
      strongest: largest(receivedOf(numbers), STRONGEST).map(({ number }) => number),
      weights: numbers,
    }));
  }
  return draw;
}

export default widget(
  { name: "sentence-heads", label: "Heads of a sentence model", data: ["model", "answer"], check: checkSentence },
  buildSentence,
);
