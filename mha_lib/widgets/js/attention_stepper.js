// The six steps of self-attention over a sentence that the reader types, with the arithmetic for one token
// written out.

import { extentOf } from "./colors.js";
import { formatEntry, formatNumber, formatTuple } from "./format.js";
import { element, mark, mount } from "./frame.js";
import { colorBar, numberMap } from "./number_map.js";
import { checkbox, stepper } from "./parts.js";
import { computeSix, sixCode, sixProblem, sixWords } from "./sentence_math.js";

/** @typedef {import("./frame.js").Frame} Frame */
/** @typedef {import("./attention_math.js").Matrix} Matrix */
/** @typedef {"query" | "key" | "value" | "plain"} SixRole */
/** @typedef {string | {text: string, role?: SixRole, number?: [string, number]}} SixPart */
/** @typedef {{word?: string, parts: SixPart[]}} SixLine `word` is the key token that the line is about */

const SIX_WIDTH = 4;
const SIX_NAMES = [
  "project – a query, a key and a value for each token",
  "score – the dot product of the query with each key",
  "scale – divide by the square root of the width",
  "softmax – weights from 0 to 1 that sum to 1",
  "weigh – multiply each value by its weight",
  "add – the sum is the output",
];
const SIX_VERBS = ["project", "score", "scale", "softmax", "weigh", "add"];

/**
 * @param {string} word
 * @returns {string} the word, cut to at most ten characters as a reader counts them
 */
function sixShort(word) {
  if (word.length <= 10) return word;
  const pieces =
    "Segmenter" in Intl ? Array.from(new Intl.Segmenter().segment(word), ({ segment }) => segment) : [...word];
  return pieces.length > 10 ? `${pieces.slice(0, 9).join("")}…` : word;
}

/**
 * Wraps a word in isolation marks, so that a right-to-left word does not reorder the sentence around it.
 * @param {string} word as it is shown
 */
const sixIsolate = (word) => `\u2068${word}\u2069`;

/**
 * @param {any} rows
 * @param {string} what
 * @returns {Matrix}
 */
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
 * @param {Frame} frame
 * @returns {import("./sentence_math.js").SentenceLimits}
 */
const sentenceLimits = (frame) => /** @type {any} */ (frame.limits("sentence"));

/** @param {Frame} frame */
function readSix(frame) {
  const sentence = frame.get("sentence");
  if (typeof sentence !== "string") throw new RangeError(`sentence must be text, got ${JSON.stringify(sentence)}`);
  const problem = sixProblem(sentence, sentenceLimits(frame));
  if (problem) throw new RangeError(`sentence must be fit to show. ${problem.slice(0, -1)}`);
  const words = sixWords(sentence);
  const table = frame.get("vectors") ?? {};
  const isKnown = words.map((word) => Object.hasOwn(table, word));
  const projections = frame.get("projections") ?? {};
  const [query, key, value] = ["query", "key", "value"].map((name) => {
    const matrix = sixMatrix(projections[name], `projections.${name}`);
    if (matrix.length !== SIX_WIDTH) throw new RangeError(`projections.${name} must have ${SIX_WIDTH} rows`);
    return matrix;
  });
  return {
    sentence,
    words,
    isKnown,
    x: sixMatrix(words.map((word, index) => (isKnown[index] ? table[word] : sixCode(word).digits)), "vectors"),
    projections: { query, key, value },
    chosen: frame.whole("query", { high: words.length - 1 }),
    step: frame.whole("step"),
    isCausal: frame.flag("is_causal"),
  };
}

/** @typedef {ReturnType<typeof readSix>} SixState */
/** @typedef {ReturnType<typeof computeSix>} SixNumbers */

/**
 * A state with its numbers, and what several panes use to describe it.
 * @typedef {object} SixView
 * @property {SixState} state
 * @property {SixNumbers} found
 * @property {string[]} short the words as they are shown
 * @property {string} asking the chosen query word, in quotes
 * @property {(row: number, column: number) => boolean} isHidden
 * @property {(partsOf: (index: number) => SixPart[]) => SixLine[]} lineForEachKey
 */

/**
 * A dot product written out, "1·0 + 2·(−1)", with each factor in the colour of its vector.
 * @param {ArrayLike<number>} left
 * @param {SixRole} leftRole
 * @param {ArrayLike<number>} right
 * @param {SixRole} rightRole
 * @returns {SixPart[]}
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
  const { text, role = "result", number } = part;
  const node = element("span", { text, class: `mha-six-${role}` });
  if (number) mark(node, ...number);
  return node;
}

/**
 * A list of lines of arithmetic.
 * @param {string} label
 */
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
   * @param {readonly string[]} words
   * @param {Matrix[]} arrays one for each group
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
 * Lets the reader choose the query token: one native radio button per word.
 * @param {Frame} frame
 */
function sixChooser(frame) {
  const row = element("div");
  const node = element("fieldset", { class: "mha-segments" }, element("legend", { text: "query token" }), row);
  frame.listen(row, "change", (event) => frame.set({ query: Number(event.target.value) }));
  /**
   * @param {readonly string[]} words
   * @param {readonly string[]} short
   * @param {number} chosen
   */
  function draw(words, short, chosen) {
    while (row.children.length > words.length) row.lastElementChild.remove();
    while (row.children.length < words.length) {
      const input = element("input", { type: "radio", name: "query", value: row.children.length });
      row.append(element("label", {}, input, element("span", {}, element("bdi", { class: "mha-word" }))));
    }
    words.forEach((word, index) => {
      const label = row.children[index];
      label.title = word;
      label.querySelector("bdi").textContent = short[index];
      const input = label.querySelector("input");
      input.setAttribute("aria-label", `${short[index]}, token ${index + 1} of ${words.length}`);
      input.checked = index === chosen;
    });
  }
  return { node, draw };
}

/**
 * Says how a word became a vector.
 * @param {string} word
 * @param {boolean} isKnown
 * @param {ArrayLike<number>} x
 */
function sixRule(word, isKnown, x) {
  const shown = `“${sixIsolate(sixShort(word))}”`;
  const vector = `x = ${formatTuple(x)}`;
  if (isKnown) return `${shown} is one of the words with given numbers: ${vector}.`;
  const { points, total, code, digits } = sixCode(word);
  const terms = points.map((point, index) => `${index + 1}·${point}`);
  const all = terms.length > 5 ? [...terms.slice(0, 3), "…", terms[terms.length - 1]] : terms;
  return (
    `The characters of ${shown} have the Unicode code points ` +
    `${points.slice(0, 3).join(", ")}${points.length > 3 ? ", …" : ""}. ` +
    `Each code point times its place: ${all.join(" + ")}${terms.length > 1 ? ` = ${total}` : ""}. ` +
    `The remainder after division by 80, plus 1, is ${code}, written ${digits.join("")} in base 3: ${vector}.`
  );
}

/**
 * The field for the sentence, with a remark below it. Only a valid sentence reaches the model. Otherwise the
 * remark says what is wrong, and the widget keeps the last valid sentence, which returns to the field when
 * the reader leaves it.
 * @param {Frame} frame
 */
function sentenceField(frame) {
  const limits = sentenceLimits(frame);
  const input = element("input", {
    type: "text",
    autocapitalize: "none",
    autocomplete: "off",
    spellcheck: "false",
    dir: "auto",
    enterkeyhint: "done",
  });
  const remark = element("p", { class: "mha-hint mha-remark" });
  const label = element("label", { class: "mha-row" }, element("span", { class: "mha-name", text: "sentence" }), input);
  const judge = () => {
    const problem = sixProblem(input.value, limits);
    input.setAttribute("aria-invalid", String(problem !== ""));
    remark.classList.toggle("mha-problem", problem !== "");
    remark.textContent =
      problem ||
      `Up to ${limits.words} words. A word without given numbers gets a vector made from its characters, without meaning.`;
    return problem;
  };
  frame.listen(input, "input", () => {
    const problem = judge();
    if (problem) frame.say(problem);
    else frame.set({ query: Math.min(frame.get("query"), sixWords(input.value).length - 1), sentence: input.value });
  });
  frame.listen(input, "change", () => {
    if (judge()) {
      input.value = frame.get("sentence");
      judge();
    }
  });

  let typed = /** @type {string | null} */ (null);
  /** @param {string} sentence */
  function draw(sentence) {
    // The field is set only when the sentence changes. While the reader types, it already holds the sentence.
    if (sentence === typed) return;
    typed = sentence;
    if (input.value !== typed) input.value = typed;
    judge();
  }
  return { node: element("div", {}, label, remark), draw };
}

/** @param {string} [text] */
const paneTitle = (text) => element("p", { class: "mha-title", text });

/** Step 1: how the chosen word became a vector, and its query, key and value. */
function projectPane() {
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
  const vectors = sixTable("Input, query, key and value of each token", [
    { title: "x", role: "plain", name: "x" },
    { title: "q", role: "query", name: "query" },
    { title: "k", role: "key", name: "key" },
    { title: "v", role: "value", name: "value" },
  ]);
  const node = element(
    "div",
    { class: "mha-pane" },
    rule,
    element("div", { class: "mha-products" }, ...products.map((product) => product.node)),
    paneTitle("All tokens, projected by the same three matrices"),
    vectors.node,
  );

  /** @param {SixView} view */
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
  function draw(view) {
    const { words, isKnown, x, chosen, step } = view.state;
    const { found } = view;
    rule.textContent =
      `${sixRule(words[chosen], isKnown[chosen], x[chosen])} ` +
      "Each entry of q, k and v is the dot product of x with one column of the matrix.";
    if (step === 1) drawProducts(view);
    vectors.draw(view.short, [found.x, found.query, found.key, found.value], { chosen });
  }
  return { node, draw };
}

/**
 * The arithmetic of the chosen query's scores.
 * @param {SixView} view
 * @returns {{title: string, lines: SixLine[]}}
 */
function scoreArithmetic({ state: { chosen }, found, asking, lineForEachKey }) {
  const query = found.query[chosen];
  return {
    title: `q of ${asking} is ${formatTuple(query)}. Its dot product with each key:`,
    lines: lineForEachKey((index) => [
      ...sixDot(query, "query", found.key[index], "key"),
      " = ",
      { text: formatEntry(found.scores[chosen][index]) },
    ]),
  };
}

/**
 * @param {SixView} view
 * @returns {{title: string, lines: SixLine[]}}
 */
function scaleArithmetic({ state: { chosen }, found, asking, lineForEachKey }) {
  const root = formatEntry(Math.sqrt(SIX_WIDTH));
  return {
    title: `A query has ${SIX_WIDTH} numbers, so each score of ${asking} is divided by √${SIX_WIDTH}:`,
    lines: lineForEachKey((index) => {
      const score = formatEntry(found.scores[chosen][index]);
      return [`${score} / √${SIX_WIDTH} = ${score} / ${root} = `, { text: formatEntry(found.scaled[chosen][index]) }];
    }),
  };
}

/**
 * @param {SixView} view
 * @returns {{title: string, lines: SixLine[]}}
 */
function softmaxArithmetic({ state: { chosen }, found, asking, isHidden, lineForEachKey }) {
  const scaled = Array.from(found.scaled[chosen]);
  const visible = scaled.map((_, index) => index).filter((index) => !isHidden(chosen, index));
  const exps = visible.map((index) => `exp(${formatEntry(scaled[index])})`);
  const terms = visible.map((index) => formatEntry(Math.exp(scaled[index])));
  const total = formatEntry(visible.reduce((sum, index) => sum + Math.exp(scaled[index]), 0));
  return {
    title: `exp() of each scaled score of ${asking}, divided by their sum:`,
    lines: [
      { word: "sum", parts: [`${exps.join(" + ")} = ${terms.join(" + ")} = `, { text: total }] },
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
 * @param {Frame} frame
 * @param {number} step
 * @param {"scores" | "scaled" | "weights"} name
 * @param {string} noun
 * @param {(view: SixView) => {title: string, lines: SixLine[]}} arithmetic
 */
function mapPane(frame, step, name, noun, arithmetic) {
  const title = paneTitle();
  const lines = sixLines(`the arithmetic of the ${noun}s of one query`);
  const map = numberMap(frame, { name, rows: "queries", columns: "keys" });
  const bar = colorBar();
  const right = element("div", {}, paneTitle(`All queries at once: ${noun}s`), map.node, bar.node);
  const panes = element("div", { class: "mha-panes" }, element("div", {}, title, lines.node), right);
  const isWeight = name === "weights";

  /** @param {SixView} view */
  function draw(view) {
    const { state, found, short, isHidden } = view;
    if (state.step === step) {
      const told = arithmetic(view);
      title.textContent = told.title;
      lines.draw(told.lines);
    }
    const extent = isWeight ? { low: 0, high: 1 } : extentOf([found[name]], false);
    map.draw({
      label: `${noun}s: queries in rows, keys in columns`,
      rowLabels: short,
      columnLabels: short,
      numbers: found[name],
      extent,
      isHidden: isWeight ? isHidden : undefined,
      digits: name === "scores" ? 0 : isWeight ? 2 : 1,
      describe: (row, column, number) => {
        const hidden = isWeight && isHidden(row, column) ? ", hidden by the causal mask" : "";
        return `query ${sixIsolate(short[row])} → key ${sixIsolate(short[column])}: ${noun} ${number}${hidden}`;
      },
    });
    bar.draw(extent, noun);
    for (const [row, item] of map.node.querySelectorAll("[role=rowheader]").entries()) {
      item.parentElement.classList.toggle("mha-chosen", row === state.chosen);
    }
  }
  return { node: element("div", { class: "mha-pane" }, panes), draw };
}

/** Step 5: each value times its weight. */
function weighPane() {
  const title = paneTitle();
  const lines = sixLines("each value times its weight");

  /** @param {SixView} view */
  function draw({ state: { chosen }, found, asking, lineForEachKey }) {
    title.textContent = `Each value, times the weight that ${asking} gives it:`;
    const entry = (/** @type {number} */ number) => ({
      text: formatNumber(number),
      role: /** @type {SixRole} */ ("value"),
      number: /** @type {[string, number]} */ (["weighted", number]),
    });
    lines.draw(
      lineForEachKey((index) => [
        `${formatNumber(found.weights[chosen][index])} · `,
        { text: formatTuple(found.value[index]), role: "value" },
        " = (",
        ...Array.from(found.weighted[index], (number, column) => [...(column > 0 ? [", "] : []), entry(number)]).flat(),
        ")",
      ]),
    );
  }
  return { node: element("div", { class: "mha-pane" }, title, lines.node), draw };
}

/** Step 6: the sum of the weighted values. */
function addPane() {
  const title = paneTitle();
  const table = sixTable("the weighted values and their sum", [{ title: "weight × v", role: "value", digits: 4 }]);
  const outputs = sixTable("Output of each token", [{ title: "output", role: "value", name: "output", digits: 4 }]);
  const right = element("div", {}, paneTitle("All queries at once: outputs"), outputs.node);
  const panes = element("div", { class: "mha-panes" }, element("div", {}, title, table.node), right);

  /** @param {SixView} view */
  function draw({ state: { chosen }, found, short, asking }) {
    title.textContent = `The weighted values of ${asking}, added column by column:`;
    table.draw(short, [found.weighted], { sum: found.output[chosen] });
    outputs.draw(short, [found.output], { chosen });
  }
  return { node: element("div", { class: "mha-pane" }, panes), draw };
}

/**
 * The step and its result, for screen readers.
 * @param {SixView} view
 */
function describeSix({ state: { step, chosen }, found, short }) {
  const result = [
    `query ${formatTuple(found.query[chosen])}`,
    `scores ${formatTuple(found.scores[chosen])}`,
    `scaled scores ${formatTuple(found.scaled[chosen])}`,
    `weights ${formatTuple(found.weights[chosen], 2)}`,
    `weights ${formatTuple(found.weights[chosen], 2)}`,
    `output ${formatTuple(found.output[chosen], 2)}`,
  ][step - 1];
  return `Step ${step}, ${SIX_VERBS[step - 1]}. ${short[chosen]}: ${result}.`;
}

/** @param {Frame} frame */
function buildSix(frame) {
  const sentence = sentenceField(frame);
  const chooser = sixChooser(frame);
  const causal = checkbox(frame, "Causal mask", (checked) => frame.set({ is_causal: checked }));
  const steps = stepper(frame, SIX_NAMES, (step) => frame.set({ step: step + 1 }));
  const panes = [
    projectPane(),
    mapPane(frame, 2, "scores", "score", scoreArithmetic),
    mapPane(frame, 3, "scaled", "scaled score", scaleArithmetic),
    mapPane(frame, 4, "weights", "weight", softmaxArithmetic),
    weighPane(),
    addPane(),
  ];
  const choices = element("div", { class: "mha-choices" }, chooser.node, causal.node);
  frame.body.append(
    element("div", { class: "mha-controls" }, sentence.node, choices, steps.node),
    ...panes.map(({ node }) => node),
  );
  let before = "";

  return () => {
    const state = readSix(frame);
    const { mask, ...found } = computeSix(state);
    const short = state.words.map(sixShort);
    /** @type {SixView} */
    const view = {
      state,
      found: { mask, ...found },
      short,
      asking: `“${sixIsolate(short[state.chosen])}”`,
      isHidden: (row, column) => mask !== undefined && !mask[row][column],
      lineForEachKey: (partsOf) => short.map((word, index) => ({ word, parts: partsOf(index) })),
    };
    sentence.draw(state.sentence);
    chooser.draw(state.words, short, state.chosen);
    causal.draw(state.isCausal);
    steps.draw(state.step - 1);
    panes.forEach(({ node, draw }, index) => {
      node.hidden = index !== state.step - 1;
      draw(view);
    });
    const news = describeSix(view);
    if (before && before !== news) frame.say(news);
    before = news;
    frame.report(() => found);
  };
}

/** @param {Frame} frame */
function sixPython(frame) {
  const { words, isKnown, x, projections, chosen, isCausal } = readSix(frame);
  const rows = (/** @type {Matrix} */ matrix) => `[${matrix.map((row) => `[${Array.from(row).join(", ")}]`).join(", ")}]`;
  const known = words.flatMap((word, index) => (isKnown[index] ? [`${JSON.stringify(word)}: [${Array.from(x[index]).join(", ")}]`] : []));
  return `import torch

from mha_lib import attention_pooling, causal_mask, dot_product_score, scaled_dot_product_score

words = ${JSON.stringify(words).replaceAll('","', '", "')}
given = {${[...new Set(known)].join(", ")}}


def word_vector(word):
    """The given vector of a word or, if there is none, four digits made from its characters."""
    if word in given:
        return given[word]
    total = sum(place * ord(character) for place, character in enumerate(word, 1))
    code = 1 + total % 80
    return [code // 27, code // 9 % 3, code // 3 % 3, code % 3]


x = torch.tensor([word_vector(word) for word in words], dtype=torch.float64)
w_query = x.new_tensor(${rows(projections.query)})
w_key = x.new_tensor(${rows(projections.key)})
w_value = x.new_tensor(${rows(projections.value)})

# 1 project, 2 score, 3 scale
query, key, value = x @ w_query, x @ w_key, x @ w_value
scores = dot_product_score(query, key)
scaled = scaled_dot_product_score(query, key)
# 4 softmax, 5 weigh, 6 add: for all queries at once
mask = ${isCausal ? "causal_mask(len(words))" : "None"}
output, weights = attention_pooling(scaled, value, mask)
# Step 5 alone, for query ${chosen}
weighted = weights[${chosen}][:, None] * value
print(torch.round(output, decimals=4))
`;
}

export default {
  /** @param {{model: import("./frame.js").Model, el: HTMLElement}} view */
  render: (view) =>
    mount(
      view,
      {
        name: "attention-stepper",
        label: "Self-attention in six steps",
        data: ["vectors", "projections"],
        python: sixPython,
      },
      buildSix,
    ),
};
