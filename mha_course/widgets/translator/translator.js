// A whole Transformer in the page. A reader types a date, the encoder reads it, and the decoder writes it in ISO 8601, one
// character after the other. The reader can see every attention weight on the way, and switch heads off.

import { headColor, inkOn, viridis } from "../shared/colors.js";
import { fileNotice, loadFile } from "../shared/file_source.js";
import { countOf, formatNumber } from "../shared/format.js";
import { element, mark, setAttribute, setText, widget } from "../shared/frame.js";
import { headGallery } from "../shared/head_gallery.js";
import { colorBar } from "../shared/number_map.js";
import { bars, checkbox, slider } from "../shared/parts.js";
import { sizedMap } from "../shared/pixel_map.js";
import { textField } from "../shared/text_field.js";
import {
  ATTENTIONS,
  calendarFault,
  dateDoubt,
  dateProblem,
  dateText,
  normalizeDate,
  readDate,
  runnersUp,
  shapeGates,
  translateDate,
  unpackTranslator,
  writeAnswer,
} from "./translator_math.js";

/** @typedef {import("../shared/frame.js").Frame} Frame */
/** @typedef {import("../shared/attention_math.js").Matrix} Matrix */
/** @typedef {import("./translator_math.js").DateTask} DateTask */
/** @typedef {import("./translator_math.js").TranslatorModel} TranslatorModel */
/** @typedef {ReturnType<typeof readTranslator>} TranslatorState */
/** @typedef {ReturnType<typeof translateDate>} Translation */
/** @typedef {{state: TranslatorState, found: Translation, step: number, reading: Float64Array, row: number}} TranslatorView */

const RUNNERS_UP = 5;
const SHARES = { low: 0, high: 1 };
const STEP_TIME = 900; // milliseconds for each character, so that a reader can follow
const CHUNK_TIME = 12; // milliseconds of counting, after which the page can do other work
const MOST_MISTAKES = 4;
const EXAMPLES = [
  { text: "3. März 2021", lang: "de" },
  { text: "2021年3月3日", lang: "ja" },
  { text: "miércoles 3 de marzo", lang: "es" },
  { text: "31 February 1850", lang: "en" },
];
const KINDS = [
  { title: "Encoder", about: "letters read letters" },
  { title: "Decoder", about: "the answer reads itself" },
  { title: "Cross", about: "the answer reads letters" },
];

/** Throws a RangeError if no model has this many heads, which fixes the number of gates. @param {Frame} frame */
function checkTranslator(frame) {
  const counts = frame.get("head_counts");
  frame.insist(counts.includes(frame.get("num_heads")), "num_heads", `be one of ${counts.join(", ")}`);
}

/** The settings for a model that has been loaded. @param {Frame} frame @param {TranslatorModel} model */
function readTranslator(frame, model) {
  /** @type {DateTask} */
  const task = frame.get("task");
  const { text, gates: flat, attention, layer, countRight: isCounting, ...settings } = frame.read();
  const problem = dateProblem(text, task);
  if (problem) throw new RangeError(`text must be a date that the model can read: ${problem}`);
  const { numHeads, numLayers } = model;
  frame.insist(layer < numLayers, "layer", `lie in 0..${numLayers - 1}`);
  const isCompact = frame.get("compact") === true;
  /** @type {number[]} */
  const switched = flat;
  return {
    task,
    model,
    text,
    letters: [...normalizeDate(text)],
    gates: shapeGates(switched, numLayers, numHeads),
    off: switched.filter((gate) => gate === 0).length,
    kind: ATTENTIONS.indexOf(attention),
    layer: /** @type {number} */ (layer),
    head: /** @type {number} */ (settings.head),
    step: /** @type {number} */ (settings.step),
    letter: /** @type {number} */ (settings.letter),
    beamSize: /** @type {number} */ (settings.beamSize),
    isCounting: /** @type {boolean} */ (isCounting),
    isCompact,
  };
}

/** @param {string} symbol @returns {string} a symbol of the answer as shown in a cell */
function symbolSign(symbol) {
  return { "[start]": "▷", "[end]": "■" }[symbol] ?? symbol;
}

/** @param {string} symbol @returns {string} a symbol of the answer as written in a sentence */
function symbolName(symbol) {
  return { "[start]": "the start", "[end]": "the end" }[symbol] ?? `“${symbol}”`;
}

/** @param {string} letter */
const letterName = (letter) => (letter === " " ? `space` : `“${letter}”`);

/** @param {string} letter */
const letterSign = (letter) => (letter === " " ? "␣" : letter);

// Models

/**
 * The models that the view has received. A missing one comes from Python or, without Python, from a file beside the page,
 * in a folder that the page's loader gives.
 * @param {Frame} frame
 */
function modelSource(frame) {
  /** @type {Map<number, {stored: any, model: TranslatorModel}>} */
  const kept = new Map();
  /** @type {Map<number, string>} */
  const problems = new Map();
  const loading = new Set();
  let tries = 0;

  /** @param {number} numHeads */
  async function load(numHeads) {
    const name = frame.get("files")[numHeads];
    const address = new URL(name, frame.get("_static"));
    if (tries > 0) address.search = `try=${tries}`; // the browser may have cached a damaged file
    loading.add(numHeads);
    try {
      const stored = await loadFile(address.href, name);
      if (!frame.signal.aborted) frame.set({ models: { ...frame.get("models"), [numHeads]: stored } });
    } catch (error) {
      problems.set(numHeads, /** @type {Error} */ (error).message);
      if (!frame.signal.aborted) frame.set({ models: { ...frame.get("models") } }); // draws again
    }
    loading.delete(numHeads);
  }

  /**
   * @param {number} numHeads
   * @returns {{model?: TranslatorModel, stored?: any, problem?: string, note?: string}}
   */
  function find(numHeads) {
    const stored = frame.get("models")[numHeads];
    if (stored && kept.get(numHeads)?.stored !== stored) kept.set(numHeads, { stored, model: unpackTranslator(stored) });
    const had = kept.get(numHeads);
    if (had) return had;
    const which = countOf(numHeads, "the model with 1 head", "the model with # heads");
    const problem = problems.get(numHeads);
    if (problem) return { problem: `${which[0].toUpperCase()}${which.slice(1)} could not be loaded: ${problem}.` };
    if (!frame.get("_static") || !frame.get("files")?.[numHeads]) return { note: `Waiting for ${which}, which Python sends.` };
    if (!loading.has(numHeads)) load(numHeads);
    return { note: `Loading ${which} …` };
  }

  /** @param {number} numHeads */
  function tryAgain(numHeads) {
    problems.delete(numHeads);
    tries += 1;
    frame.set({ models: { ...frame.get("models") } });
  }
  return { find, tryAgain };
}

// Controls

/** The field for the date, with some examples. @param {Frame} frame */
function dateField(frame) {
  /** @type {DateTask} */
  const task = frame.get("task");
  let drawn = /** @type {string | null} */ (null);
  const judge = (/** @type {string} */ text) => {
    const problem = dateProblem(text, task);
    const still = problem && drawn ? ` Still shown: “${drawn.trim()}”.` : "";
    return {
      problem: problem + still,
      remark: "A date from 1900 to 2099 in one of 23 languages, best with its month in words.",
    };
  };
  const field = textField(frame, `date`, "text", judge, (text) => frame.set({ text }));
  const buttons = EXAMPLES.map(({ text, lang }) => element("button", { type: "button", lang, text }));
  const examples = element("div", { class: "mha-examples", role: "group", "aria-label": "Examples" }, ...buttons);
  buttons.forEach((button, index) => frame.listen(button, "click", () => frame.set({ text: EXAMPLES[index].text })));

  /** @param {string} text */
  function draw(text) {
    // The field is set only when the text changes. While the reader types, it already contains the text.
    if (text === drawn) return;
    drawn = text;
    field.draw(text);
  }
  return { node: element("div", { class: "mha-date" }, ...field.nodes, examples), draw };
}

/** Buttons that step through the answer, character by character, or play it. @param {Frame} frame */
function stepPlayer(frame) {
  const back = element("button", { type: "button", text: "← Back" });
  const play = element("button", { type: "button", class: "mha-play" });
  const next = element("button", { type: "button", text: "Next →" });
  const told = element("p", { class: "mha-told" });
  const buttons = element("div", { class: "mha-buttons" }, back, play, next);
  const node = element("div", { class: "mha-player" }, buttons, told);
  let timer = 0;
  let [current, last] = [0, 0];
  /** The state that the player expects; if the state differs, the reader has taken over. */
  let expected = "";
  let others = "";

  function stop() {
    clearTimeout(timer);
    timer = 0;
    drawPlay();
  }
  function drawPlay() {
    setText(play, timer ? "❚❚ Pause" : "▶ Play");
  }
  function advance() {
    timer = 0;
    if (current >= last) return stop();
    expected = `${current + 1} ${others}`;
    timer = setTimeout(advance, STEP_TIME);
    frame.set({ step: current + 1 });
  }
  frame.signal.addEventListener("abort", () => clearTimeout(timer));
  frame.listen(play, "click", () => {
    if (timer) return stop();
    const first = current >= last ? 0 : current;
    expected = `${first} ${others}`;
    timer = setTimeout(advance, STEP_TIME);
    drawPlay();
    if (first !== current) frame.set({ step: first });
  });
  frame.listen(back, "click", () => current > 0 && frame.set({ step: current - 1 }));
  frame.listen(next, "click", () => current < last && frame.set({ step: current + 1 }));

  /**
   * @param {number} step @param {number} count @param {string} text what happens at this step
   * @param {string} settings that the player does not change
   */
  function draw(step, count, text, settings) {
    [current, last, others] = [step, count - 1, settings];
    if (timer && expected !== `${step} ${settings}`) stop();
    setAttribute(back, "aria-disabled", String(step === 0));
    setAttribute(next, "aria-disabled", String(step === last));
    setText(told, `Step ${step + 1} of ${count}: ${text}`);
    drawPlay();
  }
  return { node, draw };
}

// What is read and written

/**
 * A cell with a character and, if the character is read, the weight as a colour and a number.
 * @param {string} tag @param {Object<string, any>} [attributes]
 */
function readCell(tag, attributes = {}) {
  const sign = element("span", { class: "mha-sign" });
  const number = element("span", { class: "mha-weight" });
  const node = element(tag, { class: "mha-cell", ...attributes }, sign, number);

  let drawn = /** @type {number | undefined} */ (undefined);
  /** @param {string} text @param {number | undefined} weight undefined if the cell is not read */
  function draw(text, weight) {
    setText(sign, text);
    if (weight === drawn) return;
    drawn = weight;
    node.classList.toggle("mha-read", weight !== undefined);
    if (weight === undefined) {
      node.style.backgroundColor = node.style.color = number.textContent = "";
      delete number.dataset.number;
      delete number.dataset.value;
      return;
    }
    const color = viridis(weight);
    node.style.backgroundColor = `rgb(${color.join(" ")})`;
    node.style.color = inkOn(color);
    setText(number, formatNumber(weight, 2));
    mark(number, "reading", weight);
  }
  return { node, draw };
}

/**
 * The letters, each with its weight. In the encoder, a click on a letter shows which letters it reads.
 * @param {Frame} frame
 */
function letterStrip(frame) {
  const strip = element("div", { class: "mha-strip", role: "list", "aria-label": "Letters that the model reads" });
  /** @type {ReturnType<typeof readCell>[]} */
  const cells = [];
  frame.listen(strip, "click", (event) => {
    const index = cells.findIndex(({ node }) => node.contains(event.target));
    if (index >= 0 && frame.get("attention") === "encoder") frame.set({ letter: index });
  });

  /** @param {TranslatorView} view */
  function draw({ state, reading, row }) {
    while (cells.length > state.letters.length) cells.pop()?.node.remove();
    while (cells.length < state.letters.length) {
      const cell = readCell("span", { role: "listitem" });
      cells.push(cell);
      strip.append(cell.node);
    }
    strip.classList.toggle("mha-choosable", state.kind === 0);
    state.letters.forEach((letter, index) => {
      const weight = state.kind === 1 ? undefined : reading[index];
      cells[index].draw(letterSign(letter), weight);
      cells[index].node.classList.toggle("mha-query", state.kind === 0 && index === row);
    });
  }
  return { node: strip, draw };
}

/** The answer, with a button for each character that leads to the step that writes it. @param {Frame} frame */
function answerStrip(frame) {
  const start = readCell("span");
  const strip = element("div", { class: "mha-strip mha-answer", role: "group", "aria-label": "The answer" }, start.node);
  /** @type {ReturnType<typeof readCell>[]} */
  const cells = [];
  frame.listen(strip, "click", (event) => {
    const index = cells.findIndex(({ node }) => node.contains(event.target));
    if (index >= 0) frame.set({ step: index });
  });

  /** @param {TranslatorView} view */
  function draw({ state, found, step, reading }) {
    const { symbols, start: first } = state.task;
    const { tokens } = found;
    while (cells.length > tokens.length) cells.pop()?.node.remove();
    while (cells.length < tokens.length) {
      const cell = readCell("button", { type: "button" });
      cells.push(cell);
      strip.append(cell.node);
    }
    const isRead = state.kind === 1;
    start.draw(symbolSign(symbols[first]), isRead ? reading[0] : undefined);
    tokens.forEach((token, index) => {
      const { node, draw: drawCell } = cells[index];
      drawCell(symbolSign(symbols[token]), isRead && index < step ? reading[index + 1] : undefined);
      setAttribute(node, "aria-label", `Step ${index + 1}: ${symbolName(symbols[token])}`);
      node.classList.toggle("mha-later", index > step);
      if (index === step) setAttribute(node, "aria-current", "step");
      else node.removeAttribute("aria-current");
      mark(node, "tokens", token);
    });
  }
  return { node: strip, draw };
}

/** A verdict on the answer that is possible without knowing the correct one. */
function verdictLine() {
  const node = element("p", { class: "mha-verdict" });

  /** @param {TranslatorView} view */
  function draw({ state, found }) {
    const answer = dateText(found.tokens, state.task);
    const fault = calendarFault(answer);
    const doubt = fault ? `“${answer}” is no day of the calendar: ${fault}.` : dateDoubt(state.text, answer);
    node.classList.toggle("mha-wrong", doubt !== "");
    const always = "The model always writes an answer, whatever it reads";
    const right = `${answer} is a day of the calendar. ${always}, and can be wrong: nothing here checks the month.`;
    setText(node, doubt ? `${doubt} ${always}.` : right);
  }
  return { node, draw };
}

/** The answers with their probabilities, either that of greedy decoding or all of the beam. */
function answerList() {
  const title = element("p", { class: "mha-title" });
  const list = element("ol", { class: "mha-answers" });
  const node = element("div", {}, title, list);

  /** @param {TranslatorView} view */
  function draw({ state, found: { answers } }) {
    setText(title, state.beamSize > 1 ? `The ${answers.length} answers of the beam` : "Probability of the whole answer");
    while (list.children.length > answers.length) list.lastElementChild.remove();
    while (list.children.length < answers.length) list.append(element("li", {}, element("span"), element("b")));
    answers.forEach(({ tokens, logProb }, index) => {
      const [text, number] = list.children[index].children;
      setText(text, dateText(tokens, state.task) || "(nothing)");
      setText(number, formatNumber(Math.exp(logProb), 4));
      mark(number, "log_probs", logProb);
    });
  }
  return { node, draw };
}

// Maps

/** The large map of the chosen head. @param {Frame} frame */
function chosenMap(frame) {
  const title = element("p", { class: "mha-title mha-of-head" });
  const map = sizedMap(frame, { name: "weights", rows: `queries`, columns: `keys` });
  const scale = colorBar();
  const node = element("div", { class: "mha-chosen-map" }, title, map.node, scale.node);
  /** @type {Matrix | null} */
  let drawn = null;

  /** @param {TranslatorView} view */
  function draw({ state, found }) {
    const { kind, layer, head, letters, task } = state;
    const numbers = found.maps[kind][layer][head];
    // A matrix belongs to one head and one pair of date and answer, so all that is drawn here is the same as before.
    if (numbers === drawn) return;
    drawn = numbers;
    const { title: name, about } = KINDS[kind];
    title.textContent = `${name}, layer ${layer}, head ${head}: ${about}`;
    title.style.setProperty("--head", headColor(head));
    const signs = letters.map(letterSign);
    const written = found.tokens.map((token) => symbolSign(task.symbols[token]));
    const rowLabels = kind === 0 ? signs : written;
    const columnLabels = kind === 1 ? [symbolSign(task.symbols[task.start]), ...written.slice(0, -1)] : signs;
    map.draw({
      label: `Weights of ${name.toLowerCase()}, layer ${layer}, head ${head}: ${about}`,
      rowLabels,
      columnLabels,
      numbers,
      extent: SHARES,
      mask: kind === 1 ? numbers.map((row, q) => Array.from(row, (_, k) => k <= q)) : null,
      isHidden: (q, k) => kind === 1 && k > q,
      describe: (q, k, number) => {
        const [row, column] = [`${rowLabels[q]} (${q + 1})`, `${columnLabels[k]} (${k + 1})`];
        return kind === 0 ? `${row} reads ${column}: ${number}` : `${row} is written, reading ${column}: ${number}`;
      },
      room: "wide",
    });
    scale.draw(SHARES, `weight`);
  }
  return { node, draw };
}

// The count

/**
 * The number of held-out dates that the model answers correctly with the heads that are on, counted in chunks between
 * which the page can do other work.
 * @param {Frame} frame
 */
function rightCounter(frame) {
  /** @type {{texts: string[], answers: string[]}} */
  const dates = frame.get("dates");
  const count = dates.texts.length;
  const box = checkbox(frame, `Count the right answers to ${count} dates that training never showed`, "count_right");
  const result = element("p", { class: "mha-result" });
  const mistakes = element("ul", { class: "mha-mistakes" });
  const node = element("div", { class: "mha-count" }, box.node, result, mistakes);
  /** @typedef {{next: number, right: number, wrong: {text: string, answer: string, wanted: string}[]}} Tally */
  /** @type {Map<string, Tally>} */
  const tallies = new Map();
  let timer = 0;
  let running = "";
  frame.signal.addEventListener("abort", () => clearTimeout(timer));

  /** @param {TranslatorState} state @param {Tally} tally */
  function answerOne({ model, task, gates }, tally) {
    const text = dates.texts[tally.next];
    const { stepAfter } = readDate(model, task, { text, gates });
    const answer = dateText(writeAnswer(stepAfter, task).tokens, task);
    const wanted = dates.answers[tally.next];
    tally.next += 1;
    if (answer === wanted) tally.right += 1;
    else if (tally.wrong.length < MOST_MISTAKES) tally.wrong.push({ text, answer, wanted });
  }

  /** @param {TranslatorState} state @param {Tally} tally */
  function drawTally(state, tally) {
    const isDone = tally.next === count;
    const who = countOf(state.model.numHeads, "1 head", "# heads");
    const off = state.off > 0 ? `, ${state.off} switched off` : "";
    result.textContent = isDone
      ? `${tally.right} of ${count} right (${formatNumber(tally.right / count, 3)}) with ${who} in each layer${off}.`
      : `${tally.right} of ${tally.next} right so far …`;
    if (isDone) frame.say(result.textContent);
    mistakes.replaceChildren(
      ...(isDone ? tally.wrong : []).map(({ text, answer, wanted }) => {
        const written = answer || `nothing`;
        return element("li", {}, element("span", { text }), ` → ${written}, wanted ${wanted}`);
      }),
    );
  }

  /** @param {TranslatorState} state */
  function draw(state) {
    box.draw(state.isCounting);
    result.hidden = mistakes.hidden = !state.isCounting;
    const key = `${state.model.numHeads} ${state.gates}`;
    if (!state.isCounting || key !== running) clearTimeout(timer);
    if (!state.isCounting) running = "";
    if (!state.isCounting || key === running) return;
    running = key;
    const tally = tallies.get(key) ?? { next: 0, right: 0, wrong: [] };
    tallies.set(key, tally);
    const work = () => {
      const start = performance.now();
      while (tally.next < count && performance.now() - start < CHUNK_TIME) answerOne(state, tally);
      drawTally(state, tally);
      if (tally.next < count) timer = setTimeout(work);
    };
    drawTally(state, tally);
    if (tally.next < count) timer = setTimeout(work);
  }
  return { node, draw };
}

// The whole

/**
 * A translation, computed again only if the text, the gates or the beam has changed since the last translation of the
 * same model, so that a reader who switches between numbers of heads never waits twice. A different beam alone reads
 * nothing again.
 */
function translationComputer() {
  /** @type {WeakMap<TranslatorModel, {key: string, reading: ReturnType<typeof readDate>, found: Translation[]}>} */
  const kept = new WeakMap();
  return (/** @type {TranslatorState} */ state) => {
    const { model, task, beamSize } = state;
    const key = JSON.stringify([state.text, state.gates]);
    let known = kept.get(model);
    if (known?.key !== key) known = { key, reading: readDate(model, task, state), found: [] };
    kept.set(model, known);
    return (known.found[beamSize] ??= translateDate(model, task, state, known.reading));
  };
}

/**
 * The parts of a translation that the page shows in a state.
 * @param {TranslatorState} state @param {Translation} found @returns {TranslatorView}
 */
function viewTranslation(state, found) {
  const step = Math.min(state.step, found.tokens.length - 1);
  const row = state.kind === 0 ? Math.min(state.letter, state.letters.length - 1) : step;
  const weights = found.maps[state.kind][state.layer][state.head][row];
  return { state, found, step, row, reading: state.kind === 1 ? weights.slice(0, step + 1) : weights };
}

/** A sentence on which letters or characters are read most. @param {TranslatorView} view */
function describeReading({ state, found, reading, row }) {
  const { symbols, start } = state.task;
  const names =
    state.kind === 1
      ? [start, ...found.tokens].map((token) => symbolName(symbols[token]))
      : state.letters.map(letterName);
  const most = Array.from(reading, (weight, index) => ({ weight, index }))
    .sort((a, b) => b.weight - a.weight)
    .slice(0, 3)
    .map(({ weight, index }) => `${names[index]} ${formatNumber(weight, 2)}`);
  const where = `head ${state.head} of layer ${state.layer}`;
  const told = {
    encoder: `From letter ${row + 1}, ${letterName(state.letters[row])}, ${where} of the encoder`,
    decoder: `To write ${symbolName(symbols[found.tokens[row]])}, ${where} of the decoder`,
    cross: `To write ${symbolName(symbols[found.tokens[row]])}, ${where} of cross-attention`,
  }[ATTENTIONS[state.kind]];
  return `${told} reads most: ${most.join(", ")}.`;
}

/** @param {Frame} frame */
function buildTranslator(frame) {
  const models = modelSource(frame);
  const notice = fileNotice(frame, () => models.tryAgain(frame.get("num_heads")));
  const field = dateField(frame);
  const heads = slider(frame, "num_heads", (value) => frame.set({ num_heads: value }));
  const beam = slider(frame, "beam_size", "beam_size", (value) => ({ text: value === 1 ? `greedy` : `beam ${value}` }));
  const letter = slider(frame, "letter", (value) => frame.set({ letter: value }));
  const [letters, answer, verdict] = [letterStrip(frame), answerStrip(frame), verdictLine()];
  const caption = element("p", { class: "mha-caption" });
  const player = stepPlayer(frame);
  const next = bars("probabilities", "muted");
  const nextTitle = element("p", { class: "mha-title" });
  const answers = answerList();
  const gallery = headGallery(frame, KINDS, (kind, layer, head) => frame.set({ attention: ATTENTIONS[kind], layer, head }));
  const large = chosenMap(frame);
  const counter = rightCounter(frame);
  const rounding = element("p", { class: "mha-hint" });
  const chances = element("div", { class: "mha-panes" }, element("div", {}, nextTitle, next.node), answers.node);
  const details = element("div", { class: "mha-details" }, chances, ...gallery.nodes, large.node, counter.node, rounding);
  const strips = element(
    "div",
    { class: "mha-strips" },
    element("span", { class: "mha-name", text: `reads` }),
    letters.node,
    element("span", { class: "mha-name", text: `writes` }),
    answer.node,
  );
  const results = element("div", { class: "mha-results" }, strips, caption, letter.node, player.node, verdict.node, details);
  frame.body.append(field.node, element("div", { class: "mha-controls" }, heads.node, beam.node), notice.node, results);
  const compute = translationComputer();

  /**
   * @param {TranslatorView} view @param {ReturnType<typeof runnersUp>} chances
   * @param {number} [error] of rounding the weights
   */
  function drawDetails(view, chances, error) {
    const { symbols } = view.state.task;
    const written = view.found.tokens[view.step];
    setText(nextTitle, `Step ${view.step + 1}: the most probable next characters`);
    next.draw(
      chances.map(({ token }) => symbolSign(symbols[token])),
      chances.map(({ probability }) => probability),
      { digits: 3, now: chances.findIndex(({ token }) => token === written) },
    );
    answers.draw(view);
    const { gates, kind, layer, head } = view.state;
    gallery.draw(view.found.maps, gates, [kind, layer, head]);
    large.draw(view);
    if (error !== undefined) setText(rounding, `The weights have 8 bits each; rounding changed them by ${formatNumber(100 * error, 2)} % (root mean square).`);
  }

  return () => {
    /** @type {number[]} */
    const stops = frame.get("head_counts");
    const numHeads = frame.get("num_heads");
    heads.draw(numHeads, { stops });
    heads.node.hidden = stops.length === 1;
    const source = models.find(numHeads);
    notice.draw(source);
    results.hidden = source.problem !== undefined;
    results.setAttribute("aria-busy", String(source.model === undefined));
    if (!source.model) return;
    const state = readTranslator(frame, source.model);
    const found = compute(state);
    const view = viewTranslation(state, found);
    const { symbols } = state.task;
    frame.body.classList.toggle("mha-compact", state.isCompact);
    field.draw(state.text);
    const last = state.letters.length - 1;
    letter.draw(Math.min(state.letter, last), { high: last, said: `letter ${view.row + 1} of ${last + 1}` });
    letter.node.hidden = state.kind !== 0 || state.isCompact;
    beam.node.hidden = details.hidden = state.isCompact;
    letters.draw(view);
    answer.draw(view);
    verdict.draw(view);
    const chances = runnersUp(found.steps[view.step], RUNNERS_UP);
    const written = found.tokens[view.step];
    const chance = chances.find(({ token }) => token === written);
    const symbol = symbolName(symbols[written]);
    const told = chance ? `${symbol} is written, with probability ${formatNumber(chance.probability, 2)}.` : `${symbol} is written.`;
    const settings = JSON.stringify([state.text, numHeads, state.gates, state.kind, state.layer, state.head, state.letter, state.beamSize]);
    player.draw(view.step, found.tokens.length, told, `${settings} ${state.isCounting}`);
    setText(caption, describeReading(view));
    counter.draw(state);
    if (!details.hidden) frame.later(() => drawDetails(view, chances, source.stored?.error));

    const now = `${dateText(found.tokens, state.task)}. ${verdict.node.textContent} Step ${view.step + 1}: ${told} ${describeReading(view)}`;
    frame.tell(now);
    frame.report(() => ({
      tokens: found.tokens,
      log_probs: found.answers.map(({ logProb }) => logProb),
      probabilities: chances.map(({ probability }) => probability),
      reading: view.reading,
      weights: found.maps[state.kind][state.layer][state.head],
    }));
  };
}

/** @param {Frame} frame */
const translatorValues = (frame) => ({ packed: frame.get("models")[frame.get("num_heads")] });

export default widget({
  name: "translator",
  label: "Translator of dates",
  data: ["models", "compact"],
  values: translatorValues,
  check: checkTranslator,
}, buildTranslator);
