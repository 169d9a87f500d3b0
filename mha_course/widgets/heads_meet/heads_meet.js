// The reader chooses a word and sees where each head looks from there, what it adds to the output, how these
// contributions stack, and which answers follow from the sum. The browser computes everything from the weights.

import { headColor } from "../shared/colors.js";
import { formatNumber } from "../shared/format.js";
import { element, mark, svgElement, widget } from "../shared/frame.js";
import { meetAnswer, meetBoxes, meetModel, meetParts, meetReach, meetScale, meetStack, meetTerms } from "./meet_math.js";
import { menu, slider } from "../shared/parts.js";

/** @typedef {import("../shared/frame.js").Frame} Frame */
/** @typedef {import("./meet_math.js").MeetStored} MeetStored */
/** @typedef {import("./meet_math.js").MeetModel} MeetModel */
/** @typedef {import("./meet_math.js").MeetParts} MeetParts */
/** @typedef {import("./meet_math.js").MeetTerm} MeetTerm */
/** @typedef {ReturnType<typeof readMeet>} MeetState */

const WIDEST = 15; // pixels, for a weight of 1
const SUM_HEIGHT = 200; // pixels of all summands and their sum together
const ROW_HEIGHT = 20; // minimum height of a summand in pixels
const NAMED = 0.1; // words with at least this weight are named
// The bias is paler than the residual, even if the reader has chosen all colours.
const FIXED_COLOR = { residual: "var(--mha-muted)", bias: "color-mix(in srgb, currentColor 22%, transparent)" };

/** @param {Frame} frame */
function readMeet(frame) {
  /** @type {MeetStored} */
  const stored = frame.get("model");
  const { text, ...settings } = frame.read();
  const insist = (/** @type {boolean} */ holds, /** @type {string} */ rule) => {
    if (!holds) throw new RangeError(rule);
  };
  const words = text.split(" ");
  insist(words.length <= stored.max_len, `text must hold 1 to ${stored.max_len} words, got ${words.length}`);
  const tokens = words.map((/** @type {string} */ word) => (word === "" ? -1 : stored.words.indexOf(word)));
  const unknown = tokens.indexOf(-1);
  insist(
    unknown < 0,
    `text must hold words of the model, separated by single spaces, got ${JSON.stringify(words[unknown])}`,
  );
  frame.insist(settings.query < tokens.length, "query", `lie in 0..${tokens.length - 1}`);
  return {
    stored,
    words: /** @type {string[]} */ (words),
    tokens: /** @type {number[]} */ (tokens),
    query: /** @type {number} */ (settings.query),
    coordinate: /** @type {number} */ (settings.coordinate),
    gates: /** @type {number[]} */ (settings.gates),
  };
}

/**
 * The word that the model fills in or, without one, the last word.
 * @param {string[]} words @param {string | null} blank
 */
function firstQuery(words, blank) {
  const place = blank === null ? -1 : words.indexOf(blank);
  return place < 0 ? words.length - 1 : place;
}

/**
 * The sentence, one word per line; a radio button chooses the query, and a menu the word.
 * @param {Frame} frame
 */
function wordList(frame) {
  const rows = element("div", { class: "mha-meet-words", role: "group", "aria-label": "Words" });
  /** @type {{node: HTMLElement, radio: HTMLInputElement, select: HTMLSelectElement}[]} */
  const made = [];
  frame.listen(rows, "change", ({ target }) => {
    const place = made.findIndex(({ node: row }) => row.contains(target));
    if (target.type === "radio") frame.set({ query: place });
    else {
      const words = frame.get("text").split(" ");
      words[place] = target.value;
      frame.set({ text: words.join(" ") });
    }
  });

  let drawn = "";
  /** @param {MeetState} state */
  function draw({ stored, words, query }) {
    const wanted = `${query}: ${words.join(" ")}`;
    if (wanted === drawn) return;
    drawn = wanted;
    while (made.length > words.length) made.pop()?.node.remove();
    while (made.length < words.length) {
      const radio = element("input", { type: "radio", name: "query" });
      const offered = stored.words.filter((word) => word !== "");
      const select = element("select", {}, ...offered.map((word) => element("option", { text: word })));
      const row = element("div", { class: "mha-meet-word" }, element("label", {}, radio), select);
      made.push({ node: row, radio, select });
      rows.append(row);
    }
    made.forEach(({ node: row, radio, select }, place) => {
      radio.checked = place === query;
      radio.setAttribute("aria-label", `Query: word ${place + 1}, ${words[place]}`);
      // The browser takes time to look for the option, even if it is the same.
      if (select.value !== words[place]) select.value = words[place];
      select.setAttribute("aria-label", `Word ${place + 1}`);
      row.classList.toggle("mha-now", place === query);
    });
  }
  return { node: rows, draw };
}

/** The curves from the heads, on the right, to the words, on the left; a curve is as wide as its weight. */
function weightCurves() {
  const svg = svgElement("svg", { viewBox: "0 0 100 100", preserveAspectRatio: "none", role: "img" });
  const node = element("div", { class: "mha-meet-curves" }, svg);
  let drawn = /** @type {Float64Array[] | null} */ (null);
  /** @param {MeetState} state @param {Float64Array[]} weights the same object is not drawn twice in a row */
  function draw({ words, query, gates }, weights) {
    if (weights !== drawn) drawCurves(words, words[query], weights);
    drawn = weights;
    Array.from(svg.children).forEach((path, index) => {
      path.classList.toggle("mha-off", gates[Math.floor(index / words.length)] === 0);
    });
  }

  /** @param {string[]} words @param {string} query @param {Float64Array[]} weights */
  function drawCurves(words, query, weights) {
    const count = weights.length * words.length;
    while (svg.children.length > count) svg.lastElementChild.remove();
    while (svg.children.length < count) svg.append(svgElement("path", {}));
    const middle = (/** @type {number} */ index, /** @type {number} */ all) => ((100 * (index + 0.5)) / all).toFixed(2);
    weights.forEach((row, head) => {
      const right = middle(head, weights.length);
      row.forEach((weight, key) => {
        const path = svg.children[head * words.length + key];
        const left = middle(key, words.length);
        path.setAttribute("d", `M0 ${left}C55 ${left} 45 ${right} 100 ${right}`);
        path.style.stroke = headColor(head);
        path.style.strokeWidth = `${(WIDEST * weight).toFixed(3)}px`;
        mark(path, "weights", weight);
      });
    });
    const told = weights.map((row, head) => {
      const where = strongest(words, row) || "no word in particular";
      return `head ${head} to ${where}`;
    });
    svg.setAttribute("aria-label", `Weights from ${query}: ${told.join("; ")}`);
  }
  return { node, draw };
}

/** The words with large weights in a head. @param {string[]} words @param {Float64Array} row */
function strongest(words, row) {
  return Array.from(row, (weight, key) => ({ weight, word: words[key] }))
    .filter(({ weight }) => weight >= NAMED)
    .sort((a, b) => b.weight - a.weight)
    .slice(0, 2)
    .map(({ weight, word }) => `${word} ${formatNumber(weight, 2)}`)
    .join(", ");
}

/** A switch for each head, where it looks, and its vector as bars. @param {Frame} frame */
function headSwitches(frame) {
  const cards = element("div", { class: "mha-meet-heads", role: "group", "aria-label": "Heads" });
  /** @type {{node: HTMLElement, input: HTMLInputElement, where: HTMLElement, svg: any, path: any}[]} */
  const made = [];
  frame.listen(cards, "change", ({ target }) => {
    const head = made.findIndex(({ input }) => input === target);
    const gates = [...frame.get("gates")];
    gates[head] = target.checked ? 1 : 0;
    frame.set({ gates });
  });

  let drawn = /** @type {MeetParts | null} */ (null);
  /** @param {MeetState} state @param {MeetParts} parts the same object is not drawn twice in a row */
  function draw({ words, gates }, parts) {
    if (parts !== drawn) drawVectors(words, parts);
    drawn = parts;
    made.forEach(({ node: card, input }, head) => {
      input.checked = gates[head] === 1;
      card.classList.toggle("mha-off", gates[head] === 0);
    });
  }

  /** @param {string[]} words @param {MeetParts} parts */
  function drawVectors(words, { weights, heads }) {
    while (made.length > heads.length) made.pop()?.node.remove();
    while (made.length < heads.length) {
      const head = made.length;
      const input = element("input", { type: "checkbox" });
      const where = element("span", { class: "mha-hint" });
      const path = svgElement("path", {});
      const svg = svgElement("svg", { preserveAspectRatio: "none", role: "img" });
      svg.append(svgElement("path", { class: "mha-zero", d: `M0 0H${heads[head].length}` }), path);
      const label = element("label", {}, input, element("b", { text: `head ${head}` }));
      const card = element("div", { class: "mha-meet-head" }, element("div", {}, label, where), svg);
      card.style.setProperty("--head", headColor(head));
      made.push({ node: card, input, where, svg, path });
      cards.append(card);
    }
    // All heads have the same scale, so a short bar is a small number on every card.
    const most = Math.max(...heads.map((row) => row.reduce((top, number) => Math.max(top, Math.abs(number)), 1e-9)));
    made.forEach(({ where, svg, path }, head) => {
      const numbers = heads[head];
      where.textContent = strongest(words, weights[head]) || "no word above 0.1";
      svg.setAttribute("viewBox", `0 ${-most} ${numbers.length} ${2 * most}`);
      svg.setAttribute("aria-label", `Vector of head ${head}: ${numbers.length} numbers, ${spread(numbers)}`);
      path.setAttribute("d", meetBoxes(new Float64Array(numbers.length), numbers));
      mark(path, "heads", numbers);
    });
  }
  return { node: cards, draw };
}

/** @param {Float64Array} numbers */
function spread(numbers) {
  return `from ${formatNumber(Math.min(...numbers), 2)} to ${formatNumber(Math.max(...numbers), 2)}`;
}

/** @type {Object<string, string>} */
const TERM_NAMES = { bias: `bias`, residual: `residual` };

/** @param {MeetTerm} term */
const termColor = ({ name, head }) => (head < 0 ? FIXED_COLOR[/** @type {"bias" | "residual"} */ (name)] : headColor(head));

/**
 * One line of the written addition: a name and bars, with a band behind the chosen number.
 * @param {Frame} frame @param {string} kind
 */
function sumRow(frame, kind) {
  const name = element("span", { class: "mha-meet-name" });
  const svg = svgElement("svg", { preserveAspectRatio: "none", role: "img" });
  const zero = svgElement("path", { class: "mha-zero" });
  svg.append(zero);
  const bars = element("div", { class: "mha-meet-bars" }, svg);
  const node = element("div", { class: `mha-meet-row ${kind}` }, name, bars);
  let count = 1;
  frame.listen(bars, "click", (event) => {
    const { left, width } = bars.getBoundingClientRect();
    const place = Math.floor((count * (event.clientX - left)) / width);
    frame.set({ coordinate: Math.min(Math.max(place, 0), count - 1) });
  });

  /**
   * @param {number} columns @param {[number, number]} reach of the bars
   * @param {number} unit the pixels for a number of 1
   */
  function fit(columns, [low, high], unit) {
    count = columns;
    const height = Math.max(ROW_HEIGHT, (high - low) * unit + 2);
    const space = (height / unit - (high - low)) / 2;
    svg.setAttribute("viewBox", `0 ${-high - space} ${columns} ${height / unit}`);
    svg.style.height = `${height.toFixed(1)}px`;
    zero.setAttribute("d", `M0 0H${columns}`);
  }

  /** @param {number} coordinate of the number that the band marks */
  function point(coordinate) {
    bars.style.backgroundSize = `${100 / count}% 100%`;
    bars.style.backgroundPositionX = `${(100 * coordinate) / Math.max(count - 1, 1)}%`;
  }
  return { node, name, svg, fit, point };
}

/**
 * The written addition: what each head adds, one line each, and below the line all of it stacked to the output.
 * @param {Frame} frame
 */
function addition(frame) {
  const rows = element("div", { class: "mha-meet-rows" });
  const total = sumRow(frame, "mha-meet-total");
  const sums = svgElement("path", { class: "mha-meet-sum" });
  const node = element("div", { class: "mha-meet-addition" }, rows, total.node);
  /** @type {{row: ReturnType<typeof sumRow>, bars: any, piece: any}[]} */
  const made = [];
  total.svg.append(sums);

  /** @param {MeetTerm[]} terms */
  function makeRows(terms) {
    if (made.length === terms.length) return;
    for (const { row, piece } of made.splice(0)) for (const old of [row.node, piece]) old.remove();
    for (const term of terms) {
      const row = sumRow(frame, "");
      const [bars, piece] = [svgElement("path", {}), svgElement("path", {})];
      for (const path of [bars, piece]) path.style.fill = termColor(term);
      row.node.style.setProperty("--head", termColor(term));
      const slice = element("span", {}, " · W", element("sub", { text: term.head }), element("sup", { text: "O" }));
      const off = element("span", { text: ": off" });
      row.name.replaceChildren(TERM_NAMES[term.name] ?? term.name, ...(term.head < 0 ? [] : [slice, off]));
      row.svg.append(bars);
      total.svg.insertBefore(piece, sums);
      rows.append(row.node);
      made.push({ row, bars, piece });
    }
    total.name.replaceChildren(element("b", { text: "= y" }), element("small", { text: "stacked; line: the sum" }));
  }

  let drawn = /** @type {Float64Array | null} */ (null);
  /**
   * @param {MeetState} state @param {MeetTerm[]} terms
   * @param {Float64Array} output the same object is not drawn twice in a row
   */
  function draw({ gates, coordinate }, terms, output) {
    if (output !== drawn) drawBars(gates, terms, output);
    drawn = output;
    for (const row of [...made.map(({ row: own }) => own), total]) row.point(coordinate);
  }

  /** @param {readonly number[]} gates @param {MeetTerm[]} terms @param {Float64Array} output */
  function drawBars(gates, terms, output) {
    makeRows(terms);
    const columns = output.length;
    const isOn = terms.map(({ head }) => head < 0 || gates[head] === 1);
    // The scale fits all heads together, so that no bar changes its size when a head is switched off.
    const alone = terms.map(({ numbers }) => meetReach([{ from: numbers, to: numbers }]));
    const whole = meetReach(meetStack(terms.map(({ numbers }) => numbers)));
    const unit = meetScale([...alone, whole], SUM_HEIGHT);
    const pieces = meetStack(terms.filter((_, index) => isOn[index]).map(({ numbers }) => numbers));
    let next = 0;
    made.forEach(({ row, bars, piece }, index) => {
      const { name, head, numbers } = terms[index];
      row.fit(columns, alone[index], unit);
      row.node.classList.toggle("mha-off", !isOn[index]);
      const term = TERM_NAMES[name] ?? name;
      row.svg.setAttribute("aria-label", isOn[index] ? `What ${term} adds: ${spread(numbers)}` : `What ${term} adds, switched off: ${spread(numbers)}`);
      bars.setAttribute("d", meetBoxes(new Float64Array(columns), numbers));
      mark(bars, head < 0 ? name : "contributions", numbers);
      const own = isOn[index] ? pieces[next++] : null;
      piece.setAttribute("d", own ? meetBoxes(own.from, own.to) : "");
    });
    total.fit(columns, whole, unit);
    sums.setAttribute("d", Array.from(output, (number, i) => `M${i} ${(-number).toFixed(4)}h1`).join(""));
    mark(sums, "output", output);
    total.svg.setAttribute("aria-label", `The output, the sum of what is switched on: ${spread(output)}`);
  }
  return { node, draw };
}

/** The sum of one number of the output, written out. */
function writtenSum() {
  const node = element("p", { class: "mha-meet-written", "aria-live": "off" });
  /** @param {MeetState} state @param {MeetTerm[]} terms @param {Float64Array} output */
  function draw({ gates, coordinate }, terms, output) {
    const signed = (/** @type {number} */ number) => `${number < 0 ? "" : "+"}${formatNumber(number, 2)}`;
    const summands = terms
      .filter(({ head }) => head < 0 || gates[head] === 1)
      .map((term) => {
        const chip = element("span", {}, element("i"), signed(term.numbers[coordinate]));
        chip.title = term.name;
        chip.style.setProperty("--head", termColor(term));
        return chip;
      });
    const left = element("span", {}, "y", element("sub", { text: coordinate }), " = ");
    node.replaceChildren(left, ...summands, element("b", { text: `= ${formatNumber(output[coordinate], 2)}` }));
  }
  return { node, draw };
}

/** For each task, the answer and a bar for the logit of every word. */
function answerList() {
  const list = element("div", { class: "mha-meet-answers" });
  const note = element("p", { class: "mha-hint" });
  const title = element("p", { class: "mha-hint", text: "Answers: the words with the largest logits" });
  const node = element("div", { class: "mha-meet-result" }, title, list, note);
  /** @type {{word: HTMLElement, logit: HTMLElement, was: HTMLElement, svg: any, bars: any, best: any}[]} */
  const made = [];

  /** @param {MeetStored} stored */
  function makeTasks({ tasks, words }) {
    while (made.length < tasks.length) {
      const [word, logit, was] = [element("strong"), element("span", { class: "mha-hint" }), element("span", { class: "mha-meet-was" })];
      const svg = svgElement("svg", { preserveAspectRatio: "none", role: "img" });
      const [bars, best] = [svgElement("path", { class: "mha-meet-logits" }), svgElement("path", { class: "mha-meet-best" })];
      svg.append(svgElement("path", { class: "mha-zero", d: `M0 0H${words.length}` }), bars, best);
      const text = element("p", {}, element("span", { class: "mha-name", text: tasks[made.length] }), word, logit, was);
      list.append(element("div", {}, text, svg));
      made.push({ word, logit, was, svg, bars, best });
    }
  }

  let drawn = /** @type {object | null} */ (null);
  /**
   * @param {MeetState} state
   * @param {{logits: Float64Array[], answers: number[]}} found the same object is not drawn twice in a row
   * @param {{logits: Float64Array[], answers: number[]}} full with all heads on
   */
  function draw({ stored, words, query }, found, full) {
    if (found === drawn) return;
    drawn = found;
    const { logits, answers } = found;
    makeTasks(stored);
    const size = stored.words.length;
    const [low, high] = meetReach([...logits, ...full.logits].map((row) => ({ from: row, to: row })));
    const named = (/** @type {number} */ token) => stored.words[token] || `token ${token}`;
    made.forEach(({ word, logit, was, svg, bars, best }, task) => {
      const [answer, before] = [answers[task], full.answers[task]];
      word.textContent = named(answer);
      logit.textContent = formatNumber(logits[task][answer], 1);
      was.textContent = answer === before ? "" : `≠ ${named(before)}`;
      was.title = answer === before ? "" : "with all heads on";
      mark(word, "answers", answer);
      svg.setAttribute("viewBox", `0 ${-high} ${size} ${high - low || 1}`);
      svg.setAttribute("aria-label", `${stored.tasks[task]}: logits of ${size} words, highest ${named(answer)}, ${formatNumber(logits[task][answer], 2)}`);
      const zeros = new Float64Array(size);
      bars.setAttribute("d", meetBoxes(zeros, logits[task]));
      mark(bars, "logits", logits[task]);
      best.setAttribute("d", `M${answer} 0V${-logits[task][answer]}h1V0z`);
    });
    const { blank } = stored;
    const isTrained = blank === null || words[query] === blank;
    note.textContent = isTrained ? "≠ shows the answer with all heads on." : `The model was trained to answer only at ${blank}.`;
    note.classList.toggle("mha-meet-untrained", !isTrained);
  }
  return { node, draw };
}

/**
 * Returns a function that computes a state. The model is decoded once. The heads are computed again only when the
 * words or the query change, and the sum only when these or the switches change.
 */
function meetComputer() {
  let decoded = /** @type {{stored: MeetStored, model: MeetModel} | null} */ (null);
  let kept = /** @type {{key: string, parts: MeetParts, terms: MeetTerm[], full: ReturnType<typeof meetAnswer>} | null} */ (null);
  let summed = /** @type {{key: string, found: ReturnType<typeof meetAnswer>} | null} */ (null);
  return (/** @type {MeetState} */ { stored, tokens, query, gates }) => {
    if (decoded?.stored !== stored) [decoded, kept, summed] = [{ stored, model: meetModel(stored) }, null, null];
    const { model } = decoded;
    const key = `${tokens}/${query}`;
    if (kept?.key !== key) {
      const parts = meetParts(model, tokens, query);
      const terms = meetTerms(model, parts);
      kept = { key, parts, terms, full: meetAnswer(model, terms, gates.map(() => 1)) };
    }
    const switched = `${key}/${gates}`;
    if (summed?.key !== switched) summed = { key: switched, found: meetAnswer(model, kept.terms, gates) };
    return { ...kept, found: summed.found };
  };
}

/** @param {Frame} frame */
function sentenceMenu(frame) {
  const own = "your own words";
  const choice = menu(frame, "sentence", (index) => {
    const text = frame.get("sentences")[index];
    if (text === undefined) return;
    frame.set({ text, query: firstQuery(text.split(" "), frame.get("model").blank) });
  });
  /** @param {MeetState} state */
  function draw({ words }) {
    /** @type {string[]} */
    const sentences = frame.get("sentences");
    const index = sentences.indexOf(words.join(" "));
    choice.draw(index < 0 ? [...sentences, own] : sentences, index < 0 ? sentences.length : index);
  }
  return { node: choice.node, draw };
}

/** @param {Frame} frame */
function build(frame) {
  const question = element("p", { class: "mha-meet-question", text: "Which answers will change if you switch off head 0? Predict, then try it." });
  const sentence = sentenceMenu(frame);
  const [list, curves, heads] = [wordList(frame), weightCurves(), headSwitches(frame)];
  const [sum, written, answers] = [addition(frame), writtenSum(), answerList()];
  const titles = ["query, word", `weights`, "head: where it looks, its vector"].map((text) => element("p", { class: "mha-hint", text }));
  const coordinate = slider(frame, "entry of y", "coordinate");
  const below = element("div", { class: "mha-meet-below" }, element("div", {}, sum.node, coordinate.node, written.node), answers.node);
  const columns = element("div", { class: "mha-meet" }, ...titles, list.node, curves.node, heads.node);
  frame.body.append(question, sentence.node, columns, below);
  const compute = meetComputer();

  return () => {
    const state = readMeet(frame);
    const { stored, words, query, gates } = state;
    const { parts, terms, found, full } = compute(state);
    sentence.draw(state);
    list.draw(state);
    curves.draw(state, parts.weights);
    heads.draw(state, parts);
    sum.draw(state, terms, found.output);
    written.draw(state, terms, found.output);
    answers.draw(state, found, full);

    const off = gates.flatMap((gate, head) => (gate === 0 ? [head] : []));
    const told = stored.tasks.map((task, index) => `${task} ${stored.words[found.answers[index]] || found.answers[index]}`);
    const switches = off.length ? `Heads off: ${off.join(", ")}.` : "All heads on.";
    const now = `Query ${words[query]}. ${switches} Answers: ${told.join(", ")}.`;
    frame.tell(now);
    const { weights, heads: vectors, contributions } = parts;
    const fixed = Object.fromEntries(terms.filter(({ head }) => head < 0).map(({ name, numbers }) => [name, numbers]));
    frame.report(() => ({ weights, heads: vectors, contributions, ...fixed, ...found }));
  };
}

export default widget({ name: "heads-meet", label: "Where the heads meet", data: ["model", "sentences"] }, build);
