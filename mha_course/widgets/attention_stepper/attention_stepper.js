// The six steps of self-attention over a sentence, with the arithmetic for one token written out. The vectors are
// small whole numbers made by hand, or those of a trained model.

import { extentOf, headColor } from "../shared/colors.js";
import { formatEntry, formatNumber, formatTuple } from "../shared/format.js";
import { element, mark, widget } from "../shared/frame.js";
import { colorBar, numberMap } from "../shared/number_map.js";
import { checkbox, segments, stepper } from "../shared/parts.js";
import { computeSix, largestProducts, prepareSentenceModel, sixProblem, sixWords } from "./sentence_math.js";
import { textField } from "../shared/text_field.js";
import { mostOf, stripLegend, stripTable, vectorStrip } from "./vector_strip.js";

/** @typedef {import("../shared/frame.js").Frame} Frame */
/** @typedef {import("../shared/attention_math.js").Matrix} Matrix */
/** @typedef {"query" | "key" | "value" | "plain"} SixRole */
/** @typedef {string | Node | {text: string, role?: SixRole, number?: [string, number]}} SixPart */
/** @typedef {{word?: string, parts: SixPart[]}} SixLine `word` is the key token that the line is about */

const SIX_WIDTH = 4; // of the hand-made vectors
const MAX_NUMBERED = 6; // a map with more tokens has no room for numbers in its cells
const WRITTEN_EXPONENTIALS = 4; // more would fill too many lines
const WRITTEN_PRODUCTS = 3; // of a trained query and a key; the others are combined
const SIX_NAMES = [
  "project – a query, a key and a value for each token",
  "score – the dot product of the query with each key",
  "scale – divide by the square root of the width",
  "softmax – weights from 0 to 1 that sum to 1",
  "weight – multiply each value by its weight",
  "add – the sum is the output",
];
const SIX_VERBS = [`project`, `score`, `scale`, `softmax`, `weigh`, `add`];

/**
 * Wraps a word in isolation marks, so that a right-to-left word does not reorder the sentence around it.
 * @param {string} word as it is shown
 */
const sixIsolate = (word) => `\u2068${word}\u2069`;

/** @param {any} rows @param {string} what @returns {Matrix} */
function sixMatrix(rows, what) {
  const isRow = (/** @type {any} */ row) =>
    Array.isArray(row) && row.length === SIX_WIDTH && row.every((number) => Number.isFinite(number));
  if (!Array.isArray(rows) || !rows.every(isRow)) {
    throw new RangeError(`${what} must hold rows of ${SIX_WIDTH} numbers, got ${JSON.stringify(rows) ?? "nothing"}`);
  }
  return rows.map((row) => Float64Array.from(row));
}

/**
 * The largest numbers of words and characters, which Python sets.
 * @param {Frame} frame @returns {import("./sentence_math.js").SentenceLimits}
 */
const sentenceLimits = (frame) => /** @type {any} */ (frame.limits("sentence"));

/** The words that have vectors of each kind, or why there are none. @param {Frame} frame */
function sixSources(frame) {
  const given = frame.get("given") ?? {};
  const trained = frame.get("trained") ?? {};
  const problem = trained.problem ?? (Array.isArray(trained.words) && trained.weights ? "" : "the trained model is missing");
  return { given, trained, problem, known: { "by hand": Object.keys(given), trained: problem ? [] : trained.words } };
}

/** Returns a function that reads the stored model, once. @param {Frame} frame */
function sentenceModel(frame) {
  /** @type {Map<any, ReturnType<typeof prepareSentenceModel>>} */
  const kept = new Map();
  return () => {
    const stored = frame.get("trained");
    const model = kept.get(stored) ?? prepareSentenceModel(stored, sentenceLimits(frame).words);
    kept.set(stored, model);
    return model;
  };
}

/** @param {Frame} frame @param {() => ReturnType<typeof prepareSentenceModel>} model */
function readSix(frame, model) {
  const { vectors, sentence, head, query, step, isCausal } = frame.read();
  const kind = /** @type {"by hand" | "trained"} */ (vectors);
  const isTrained = kind === "trained";
  const { given, trained, problem, known } = sixSources(frame);
  if (isTrained && problem) throw new RangeError(`vectors must be "by hand", because ${problem}`);
  const wrong = sixProblem(sentence, known[kind], sentenceLimits(frame));
  if (wrong) throw new RangeError(`sentence must be fit to show. ${wrong.slice(0, -1)}`);
  const words = sixWords(sentence);
  const numHeads = isTrained ? trained.num_heads : 1;
  frame.insist(head < numHeads, "head", `lie in 0..${numHeads - 1}`);
  frame.insist(query < words.length, "query", `lie in 0..${words.length - 1}`);
  return {
    kind,
    isTrained,
    sentence,
    words,
    known: known[kind],
    problem,
    numHeads,
    head,
    x: isTrained ? model().vectors(words) : sixMatrix(words.map((word) => given[word]), "given"),
    projections: isTrained ? model().projections(head) : projectionsByHand(frame),
    chosen: query,
    step,
    isCausal,
  };
}

/** @param {Frame} frame */
function projectionsByHand(frame) {
  const projections = frame.get("projections") ?? {};
  const [query, key, value] = ["query", "key", "value"].map((name) => {
    const matrix = sixMatrix(projections[name], `projections.${name}`);
    if (matrix.length !== SIX_WIDTH) throw new RangeError(`projections.${name} must have ${SIX_WIDTH} rows`);
    return matrix;
  });
  return { query, key, value };
}

/** @typedef {ReturnType<typeof readSix>} SixState */
/** @typedef {ReturnType<typeof computeSix>} SixNumbers */

/**
 * A state with its numbers, and the texts and functions with which several panes describe it.
 * @typedef {object} SixView
 * @property {SixState} state
 * @property {SixNumbers} found
 * @property {string} asking the chosen query word, in quotes
 * @property {(row: number, column: number) => boolean} isHidden
 * @property {(partsOf: (index: number) => SixPart[]) => SixLine[]} lineForEachKey
 */

/**
 * A dot product written out, "1·0 + 2·(−1)", with each factor in the colour of its vector.
 * @param {ArrayLike<number>} left @param {SixRole} leftRole @param {ArrayLike<number>} right
 * @param {SixRole} rightRole @returns {SixPart[]}
 */
function sixDot(left, leftRole, right, rightRole) {
  const bracket = (/** @type {number} */ number) => (number < 0 ? `(${formatEntry(number)})` : formatEntry(number));
  return Array.from(left, (number, index) => [
    ...(index > 0 ? [" + "] : []),
    { text: bracket(number), role: leftRole },
    "·",
    { text: bracket(right[index]), role: rightRole },
  ]).flat();
}

/** @param {SixPart} part */
function sixNode(part) {
  if (typeof part === "string") return document.createTextNode(part);
  if (part instanceof Node) return part;
  const { text, role = "result", number } = part;
  const node = element("span", { text, class: `mha-six-${role}` });
  if (number) mark(node, ...number);
  return node;
}

/** A list of lines of arithmetic. @param {string} label */
function sixLines(label) {
  const node = element("ul", { class: "mha-lines", "aria-label": label });
  /** @param {SixLine[]} lines */
  function draw(lines) {
    while (node.children.length > lines.length) node.lastElementChild.remove();
    while (node.children.length < lines.length) node.append(element("li", {}, element("bdi", { class: "mha-word" }), element("span")));
    lines.forEach(({ word = "", parts }, index) => {
      const [name, arithmetic] = node.children[index].children;
      name.textContent = word;
      arithmetic.replaceChildren(...parts.map(sixNode));
    });
  }
  return { node, draw };
}

/**
 * A table of vectors: one row per token, four columns per group.
 * @param {string} label
 * @param {{title: string, role: SixRole, name?: string, digits?: number}[]} groups the page stores the
 *   numbers of each group that has a `name`
 */
function sixTable(label, groups) {
  const titles = groups.map(({ title, role }) =>
    element("th", { scope: "colgroup", colspan: SIX_WIDTH, class: `mha-six-${role}`, text: title }),
  );
  const body = element("tbody");
  const node = element(
    "table",
    { class: "mha-vectors", "aria-label": label },
    element("thead", {}, element("tr", {}, element("td"), ...titles)),
    body,
  );

  /**
   * @param {readonly string[]} words @param {Matrix[]} arrays one for each group
   * @param {{chosen?: number, sum?: ArrayLike<number>}} how `chosen` is the highlighted row, `sum` a last row
   *   below a rule
   */
  function draw(words, arrays, { chosen = -1, sum } = {}) {
    const count = words.length + (sum ? 1 : 0);
    while (body.children.length > count) body.lastElementChild.remove();
    while (body.children.length < count) {
      const cells = groups.flatMap(({ role }) =>
        Array.from({ length: SIX_WIDTH }, () => element("td", { class: `mha-six-${role}` })),
      );
      body.append(element("tr", {}, element("th", { scope: "row" }, element("bdi", { class: "mha-word" })), ...cells));
    }
    Array.from(body.children).forEach((row, index) => {
      const isSum = index === words.length;
      row.classList.toggle("mha-chosen", index === chosen);
      row.classList.toggle("mha-sum", isSum);
      row.firstElementChild.firstElementChild.textContent = isSum ? "sum" : words[index];
      groups.forEach(({ name, digits = 0 }, group) => {
        for (let column = 0; column < SIX_WIDTH; column += 1) {
          const cell = row.children[1 + group * SIX_WIDTH + column];
          const number = isSum && sum ? sum[column] : arrays[group][index][column];
          cell.textContent = formatNumber(number, digits);
          if (name) mark(cell, name, number);
        }
      });
    });
  }
  return { node, draw };
}

/**
 * A table of vectors: numbers if they are hand-made, coloured strips if they are trained.
 * @param {Frame} frame @param {string} label
 * @param {{title: string, role: SixRole, name?: string, digits?: number}[]} groups as in `sixTable`
 */
function vectorTable(frame, label, groups) {
  const numbers = sixTable(label, groups);
  const strips = stripTable(frame, label, groups);
  const node = element("div", {}, numbers.node, strips.node);

  /**
   * @param {SixState} state @param {Matrix[]} arrays one for each group
   * @param {{chosen?: number, sum?: ArrayLike<number>}} how as in `sixTable`
   */
  function draw({ isTrained, words }, arrays, how) {
    numbers.node.hidden = isTrained;
    strips.node.hidden = !isTrained;
    const [shown, empty] = isTrained ? [strips, numbers] : [numbers, strips];
    empty.draw([], arrays.map(() => []), {});
    shown.draw(words, arrays, how);
  }
  return { node, draw };
}

/** Lets the reader choose the query token: one native radio button per word. @param {Frame} frame */
function sixChooser(frame) {
  const row = element("div");
  const node = element("fieldset", { class: "mha-segments" }, element("legend", { text: "query token" }), row);
  frame.listen(row, "change", (event) => frame.set({ query: Number(event.target.value) }));
  /** @param {readonly string[]} words @param {number} chosen */
  function draw(words, chosen) {
    while (row.children.length > words.length) row.lastElementChild.remove();
    while (row.children.length < words.length) {
      const input = element("input", { type: "radio", name: "query", value: row.children.length });
      row.append(element("label", {}, input, element("span", {}, element("bdi", { class: "mha-word" }))));
    }
    words.forEach((word, index) => {
      const label = row.children[index];
      label.querySelector("bdi").textContent = word;
      const input = label.querySelector("input");
      input.setAttribute("aria-label", `${word}, token ${index + 1} of ${words.length}`);
      input.checked = index === chosen;
    });
  }
  return { node, draw };
}

/** The choice of the vectors and, if they are trained, of the head. @param {Frame} frame */
function sourceChooser(frame) {
  const kinds = segments(frame, "vectors", [["by hand", "small whole numbers"], ["trained", `trained`]], (vectors) => {
    const sentence = frame.get("beginnings")[vectors];
    frame.set({ vectors, sentence, head: 0, query: Math.max(sixWords(sentence).indexOf("___"), 0) });
  });
  const heads = segments(frame, "head", [0, 1, 2, 3].map((head) => [head, String(head)]), "head");
  heads.inputs.forEach((input, head) => {
    input.parentElement.style.setProperty("--head", headColor(head));
    input.setAttribute("aria-label", `head ${head}`);
  });
  heads.node.classList.add("mha-head-choice");
  const missing = element("p", { class: "mha-hint" });
  const node = element("div", { class: "mha-choices" }, kinds.node, heads.node, missing);

  /** @param {SixState} state */
  function draw({ kind, numHeads, isTrained, problem }) {
    kinds.draw(kind);
    kinds.inputs[1].disabled = problem !== "";
    missing.textContent = problem && `The trained vectors are not there: ${problem}.`;
    missing.hidden = problem === "";
    heads.node.hidden = !isTrained;
    heads.inputs.forEach((input, index) => (input.parentElement.hidden = index >= numHeads));
  }
  return { node, draw };
}

/** The prediction to make before anything is computed. @param {Frame} frame @param {SixState} state */
function sixQuestion(frame, { isTrained, sentence }) {
  if (!isTrained) return "What comes out for the chosen token? Work out each number before you press Next.";
  // The words in this question are those of the model's first sentence.
  return sentence === frame.get("beginnings").trained
    ? "This model fills in the blank: “is” or “are”? Which head looks from ___ to the subject, “sailors”, and skips the nearer “teacher”? Predict, then try each head at step 4."
    : "Where does each head look from the chosen token? Predict, then try each head at step 4.";
}

/** Says where the vector of a word comes from. @param {SixState} state */
function sixRule({ isTrained, words, chosen, x }) {
  const word = `“${sixIsolate(words[chosen])}”`;
  if (!isTrained) return `The numbers of ${word} are given: x = ${formatTuple(x[chosen])}.`;
  return (
    `x of ${word} has ${x[chosen].length} numbers: the learned vector of the word plus the learned vector of position ${chosen}. ` +
    `It begins (${Array.from(x[chosen].slice(0, 4), (number) => formatNumber(number, 2)).join(", ")}, …).`
  );
}

/** The field for the sentence, and the words that it may contain. @param {Frame} frame */
function sentenceField(frame) {
  const limits = sentenceLimits(frame);
  const list = element("p", { class: "mha-hint" });
  const words = element("details", {}, element("summary", { text: "These words" }), list);
  let known = /** @type {readonly string[]} */ ([]);
  const judge = (/** @type {string} */ text) => {
    const which = words.hidden ? `words, each one of ${known.join(", ")}` : `of the ${known.length} words that the model knows`;
    return { problem: sixProblem(text, known, limits), remark: `Up to ${limits.words} ${which}.` };
  };
  const field = textField(frame, "sentence", "sentence", judge, (sentence) =>
    frame.set({ query: Math.min(frame.get("query"), sixWords(sentence).length - 1), sentence }),
  );

  let drawn = "";
  /** @param {SixState} state */
  function draw({ sentence, known: now, isTrained }) {
    // The field is set only when the sentence changes. While the reader types, it already contains the sentence.
    const key = JSON.stringify([sentence, now]);
    if (key === drawn) return;
    drawn = key;
    known = now;
    words.hidden = !isTrained;
    list.textContent = now.join(", ");
    field.draw(sentence);
  }
  return { node: element("div", {}, ...field.nodes, words), draw };
}

/** @param {string} [text] */
const paneTitle = (text) => element("p", { class: "mha-title", text });

/** Step 1: where the chosen word's vector comes from, and its query, key and value. @param {Frame} frame */
function projectPane(frame) {
  const rule = element("p", { class: "mha-hint" });
  const roles = /** @type {("query" | "key" | "value")[]} */ (["query", "key", "value"]);
  const products = roles.map((role) => {
    const letter = role === "query" ? "Q" : role === "key" ? "K" : "V";
    const title = element("p", { class: `mha-title mha-six-${role}` }, `${role} ${role[0]} = x W`, element("sup", { text: letter }));
    const body = element("tbody");
    const matrix = element("table", { class: "mha-vectors", "aria-label": `W ${letter}, the projection of the ${role}` }, body);
    const lines = sixLines(`the arithmetic of the ${role}`);
    return { role, node: element("div", {}, title, element("div", { class: "mha-product" }, matrix, lines.node)), body, lines };
  });
  const vectors = vectorTable(frame, "Input, query, key and value of each token", [
    { title: "x", role: "plain", name: "x" },
    { title: "q", role: "query", name: "query" },
    { title: "k", role: "key", name: "key" },
    { title: "v", role: "value", name: "value" },
  ]);
  const legend = stripLegend();
  const byHand = element("div", { class: "mha-products" }, ...products.map((product) => product.node));
  const trained = sixLines("the query, key and value of the chosen token");
  const node = element(
    "div",
    { class: "mha-pane" },
    rule,
    byHand,
    trained.node,
    paneTitle("All tokens, projected by the same three matrices"),
    vectors.node,
    legend.node,
  );

  /** @param {Pick<SixView, "state" | "found">} view */
  function drawProducts({ state, found }) {
    for (const { role, body, lines } of products) {
      const matrix = state.projections[role];
      const cell = (/** @type {number} */ number) => element("td", { class: `mha-six-${role}`, text: formatEntry(number) });
      body.replaceChildren(...matrix.map((row) => element("tr", {}, ...Array.from(row, cell))));
      lines.draw(
        Array.from(found[role][state.chosen], (number, column) => ({
          word: `${role[0]}${"₁₂₃₄"[column]}`,
          parts: [
            ...sixDot(state.x[state.chosen], "plain", matrix.map((row) => row[column]), role),
            " = ",
            { text: formatEntry(number) },
          ],
        })),
      );
    }
  }

  /** @param {SixView} view */
  function draw({ state, found }) {
    const { chosen, step, isTrained } = state;
    const [from, to] = [state.x[0].length, found.query[0].length];
    rule.textContent =
      `${sixRule(state)} ` +
      (isTrained
        ? `Head ${state.head} has three matrices of ${from} × ${to} numbers. Each entry of q, k and v is the dot product of x with one column.`
        : "Each entry of q, k and v is the dot product of x with one column of the matrix.");
    byHand.hidden = isTrained;
    trained.node.hidden = !isTrained;
    legend.node.hidden = !isTrained;
    if (step === 1 && !isTrained) drawProducts({ state, found });
    trained.draw(
      isTrained ? roles.map((role) => ({ word: role[0], parts: [{ text: formatTuple(found[role][chosen], 2), role }] })) : [],
    );
    const tables = [found.x, found.query, found.key, found.value];
    vectors.draw(state, tables, { chosen });
    legend.draw(mostOf(tables));
  }
  return { node, draw };
}

/**
 * How the chosen query's scores are computed.
 * @param {SixView} view @returns {{title: string, lines: SixLine[]}}
 */
function scoreArithmetic({ state: { chosen, isTrained }, found, asking, lineForEachKey }) {
  const query = found.query[chosen];
  if (!isTrained) {
    return {
      title: `q of ${asking} is ${formatTuple(query)}. Its dot product with each key:`,
      lines: lineForEachKey((index) => [
        ...sixDot(query, "query", found.key[index], "key"),
        " = ",
        { text: formatEntry(found.scores[chosen][index]) },
      ]),
    };
  }
  const all = found.key.map((key) => largestProducts(query, key, WRITTEN_PRODUCTS));
  const most = mostOf([all.map(({ products }) => Float64Array.from(products))]);
  const bracket = (/** @type {number} */ number) => (number < 0 ? `(${formatNumber(number, 3)})` : formatNumber(number, 3));
  return {
    title:
      `The dot product of q of ${asking} with each key has ${query.length} products. The strip shows them all (red is positive, ` +
      `blue negative); the ${WRITTEN_PRODUCTS} largest are written out, and the last term is the sum of the others:`,
    lines: lineForEachKey((index) => {
      const { products, largest, rest } = all[index];
      return [
        vectorStrip(products, most, `the ${query.length} products`),
        ` ${[...largest, rest].map(bracket).join(" + ")} = `,
        { text: formatNumber(found.scores[chosen][index], 3) },
      ];
    }),
  };
}

/** @param {SixView} view @returns {{title: string, lines: SixLine[]}} */
function scaleArithmetic({ state: { chosen, isTrained }, found, asking, lineForEachKey }) {
  const width = found.query[chosen].length;
  const root = formatEntry(Math.sqrt(width));
  return {
    title: `A query has ${width} numbers, so each score of ${asking} is divided by √${width}:`,
    lines: lineForEachKey((index) => {
      const score = formatEntry(found.scores[chosen][index]);
      return [`${score} / √${width} = ${isTrained ? "" : `${score} / ${root} = `}`, { text: formatEntry(found.scaled[chosen][index]) }];
    }),
  };
}

/** @param {SixView} view @returns {{title: string, lines: SixLine[]}} */
function softmaxArithmetic({ state: { chosen, isTrained }, found, asking, isHidden, lineForEachKey }) {
  const given = Array.from(found.scaled[chosen]);
  const visible = given.map((_, index) => index).filter((index) => !isHidden(chosen, index));
  // Trained scores are large. Subtracting the largest does not change the weights and makes the powers readable.
  const largest = isTrained ? Math.max(...visible.map((index) => given[index])) : 0;
  const scaled = given.map((score) => score - largest);
  const exps = visible.map((index) => `exp(${formatEntry(scaled[index])})`);
  const terms = visible.map((index) => formatEntry(Math.exp(scaled[index])));
  const total = formatEntry(visible.reduce((sum, index) => sum + Math.exp(scaled[index]), 0));
  return {
    title: isTrained
      ? `exp() of each scaled score of ${asking} minus the largest, ${formatEntry(largest)}, divided by their sum:`
      : `exp() of each scaled score of ${asking}, divided by their sum:`,
    lines: [
      {
        word: `sum`,
        parts: [exps.length > WRITTEN_EXPONENTIALS ? "" : `${exps.join(" + ")} = `, `${terms.join(" + ")} = `, { text: total }],
      },
      ...lineForEachKey((index) =>
        isHidden(chosen, index)
          ? ["hidden, because this key comes later: ", { text: "0" }]
          : [`exp(${formatEntry(scaled[index])}) / ${total} = `, { text: formatNumber(found.weights[chosen][index]) }],
      ),
    ],
  };
}

/**
 * Steps 2 to 4: the arithmetic of one query, and a map with the numbers of all queries.
 * @param {Frame} frame @param {number} step @param {"scores" | "scaled" | "weights"} name
 * @param {[string, string]} nouns what a number is, and what several are
 * @param {(view: SixView) => {title: string, lines: SixLine[]}} arithmetic
 */
function mapPane(frame, step, name, [noun, nouns], arithmetic) {
  const title = paneTitle();
  const lines = sixLines(`the arithmetic of the ${nouns} of one query`);
  const map = numberMap(frame, { name, rows: `queries`, columns: `keys` });
  const bar = colorBar();
  const right = element("div", {}, paneTitle(`All queries at once: ${nouns}`), map.node, bar.node);
  const panes = element("div", { class: "mha-panes" }, element("div", {}, title, lines.node), right);
  const isWeight = name === "weights";
  const finding = element("p", { class: "mha-finding" });
  if (isWeight) right.append(finding);

  /** @param {SixView} view */
  function draw(view) {
    const { state, found, asking, isHidden } = view;
    const short = state.words;
    if (state.step === step) {
      const told = arithmetic(view);
      title.textContent = told.title;
      lines.draw(told.lines);
    }
    const extent = isWeight ? { low: 0, high: 1 } : extentOf([found[name]], false);
    map.draw({
      label: `${nouns}: queries in rows, keys in columns`,
      rowLabels: short,
      columnLabels: short,
      numbers: found[name],
      extent,
      isHidden: isWeight ? isHidden : undefined,
      digits: short.length > MAX_NUMBERED ? undefined : isWeight ? 2 : state.isTrained || name === "scaled" ? 1 : 0,
      describe: (row, column, number) => {
        const hidden = isWeight && isHidden(row, column) ? ", hidden by the causal mask" : "";
        return `query ${sixIsolate(short[row])} → key ${sixIsolate(short[column])}: ${noun} ${number}${hidden}`;
      },
    });
    bar.draw(extent, noun);
    const row = found.weights[state.chosen];
    const first = row.indexOf(Math.max(...row));
    finding.textContent = `${asking} gives most weight, ${formatNumber(row[first], 2)}, to “${sixIsolate(short[first])}”.`;
    for (const [place, item] of map.node.querySelectorAll("[role=rowheader]").entries()) {
      item.parentElement.classList.toggle("mha-chosen", place === state.chosen);
    }
  }
  return { node: element("div", { class: "mha-pane" }, panes), draw };
}

/** Step 5: each value times its weight. */
function weighPane() {
  const title = paneTitle();
  const lines = sixLines("each value times its weight");
  const legend = stripLegend();

  /** @param {SixView} view */
  function draw({ state: { chosen, isTrained }, found, asking, lineForEachKey }) {
    const most = mostOf([found.value]);
    title.textContent = isTrained
      ? `Each value, times the weight that ${asking} gives it, in the same colours:`
      : `Each value, times the weight that ${asking} gives it:`;
    legend.node.hidden = !isTrained;
    legend.draw(most);
    const entry = (/** @type {number} */ number) => ({
      text: formatNumber(number),
      role: /** @type {SixRole} */ ("value"),
      number: /** @type {[string, number]} */ (["weighted", number]),
    });
    lines.draw(
      lineForEachKey((index) =>
        isTrained
          ? [
              `${formatNumber(found.weights[chosen][index])} · `,
              vectorStrip(found.value[index], most, "value"),
              " = ",
              vectorStrip(found.weighted[index], most, "weight times value", "weighted"),
            ]
          : [
              `${formatNumber(found.weights[chosen][index])} · `,
              { text: formatTuple(found.value[index]), role: "value" },
              " = (",
              ...Array.from(found.weighted[index], (number, column) => [...(column > 0 ? [", "] : []), entry(number)]).flat(),
              ")",
            ],
      ),
    );
  }
  return { node: element("div", { class: "mha-pane" }, title, lines.node, legend.node), draw };
}

/** Step 6: the sum of the weighted values. @param {Frame} frame */
function addPane(frame) {
  const title = paneTitle();
  const table = vectorTable(frame, "the weighted values and their sum", [{ title: "weight × v", role: "value", digits: 4 }]);
  const sum = element("p", { class: "mha-six-value mha-sum-numbers" });
  const outputs = vectorTable(frame, "Output of each token", [{ title: `output`, role: "value", name: "output", digits: 4 }]);
  const right = element("div", {}, paneTitle("All queries at once: outputs"), outputs.node);
  const panes = element("div", { class: "mha-panes" }, element("div", {}, title, table.node, sum), right);

  /** @param {SixView} view */
  function draw({ state, found, asking }) {
    const { chosen, isTrained } = state;
    title.textContent = `The weighted values of ${asking}, added column by column:`;
    table.draw(state, [found.weighted], { sum: found.output[chosen] });
    sum.hidden = !isTrained;
    sum.textContent = `sum = ${formatTuple(found.output[chosen], 2)}`;
    outputs.draw(state, [found.output], { chosen });
  }
  return { node: element("div", { class: "mha-pane" }, panes), draw };
}

/** The step and its result, for screen readers. @param {SixView} view */
function describeSix({ state: { step, chosen, words, isTrained, head }, found }) {
  const largest = (/** @type {Float64Array} */ row) => {
    const first = row.indexOf(Math.max(...row));
    return `largest for ${words[first]}, ${formatNumber(row[first], 2)}`;
  };
  const [scores, scaled, weights] = [found.scores, found.scaled, found.weights].map((rows) => rows[chosen]);
  const tell = (/** @type {Float64Array} */ row, /** @type {number} */ digits) => (isTrained ? largest(row) : formatTuple(row, digits));
  const result = [
    `query ${formatTuple(found.query[chosen], 2)}`,
    `scores ${tell(scores, 4)}`,
    `scaled scores ${tell(scaled, 4)}`,
    `weights ${tell(weights, 2)}`,
    `weights ${tell(weights, 2)}`,
    `output ${formatTuple(found.output[chosen], 2)}`,
  ][step - 1];
  const verb = SIX_VERBS[step - 1];
  if (isTrained) return `Step ${step}, ${verb}. Head ${head}. ${words[chosen]}: ${result}.`;
  return `Step ${step}, ${verb}. ${words[chosen]}: ${result}.`;
}

/** @param {Frame} frame */
function buildSix(frame) {
  const question = element("p", { class: "mha-title mha-question" });
  const source = sourceChooser(frame);
  const sentence = sentenceField(frame);
  const chooser = sixChooser(frame);
  const causal = checkbox(frame, "Causal mask", "is_causal");
  const steps = stepper(frame, SIX_NAMES, (step) => frame.set({ step: step + 1 }));
  const panes = [
    projectPane(frame),
    mapPane(frame, 2, "scores", [`score`, `scores`], scoreArithmetic),
    mapPane(frame, 3, "scaled", ["scaled score", "scaled scores"], scaleArithmetic),
    mapPane(frame, 4, "weights", [`weight`, `weights`], softmaxArithmetic),
    weighPane(),
    addPane(frame),
  ];
  const choices = element("div", { class: "mha-choices" }, chooser.node, causal.node);
  frame.body.append(
    question,
    element("div", { class: "mha-controls" }, source.node, sentence.node, choices, steps.node),
    ...panes.map(({ node }) => node),
  );
  const model = sentenceModel(frame);

  return () => {
    const state = readSix(frame, model);
    const { mask, ...found } = computeSix(state);
    /** @type {SixView} */
    const view = {
      state,
      found: { mask, ...found },
      asking: `“${sixIsolate(state.words[state.chosen])}”`,
      isHidden: (row, column) => mask !== undefined && !mask[row][column],
      lineForEachKey: (partsOf) => state.words.map((word, index) => ({ word, parts: partsOf(index) })),
    };
    question.textContent = sixQuestion(frame, state);
    source.draw(state);
    sentence.draw(state);
    chooser.draw(state.words, state.chosen);
    steps.draw(state.step - 1);
    panes.forEach(({ node, draw }, index) => {
      node.hidden = index !== state.step - 1;
      draw(view);
    });
    const news = describeSix(view);
    frame.tell(news);
    frame.report(() => found);
  };
}

export default widget({
  name: "attention-stepper",
  label: "Self-attention in six steps",
  data: ["given", "projections", "beginnings", "trained"],
}, buildSix);
