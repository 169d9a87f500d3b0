// The six steps of self-attention, over a sentence that the reader types, with the arithmetic of one token written out.

import { attentionPooling, causalMask, dotProductScore, scaledDotProductScore } from "./attention_math.js";
import { element, formatNumber, mark, mount } from "./frame.js";
import { colorBar, extentOf, numberMap } from "./number_map.js";
import { checkbox, stepper } from "./parts.js";

/** @typedef {import("./attention_math.js").Matrix} Matrix */
/** @typedef {"query" | "key" | "value" | "plain"} SixRole */
/** @typedef {string | {text: string, role?: SixRole, number?: [string, number]}} SixPart */
/** @typedef {{word?: string, parts: SixPart[]}} SixLine `word` is the key token that the line is about */

const SIX_SETTINGS = ["sentence", "query", "step", "is_causal"];
const SIX_WIDTH = 4;
const SIX_MAX_WORDS = 8;
const SIX_MAX_CHARACTERS = 200;
const SIX_NAMES = [
  "project – a query, a key and a value for each token",
  "score – the query meets each key",
  "scale – divide by the root of the width",
  "softmax – positive weights with sum 1",
  "weigh – multiply each value by its weight",
  "add – the sum is the output",
];
const SIX_VERBS = ["project", "score", "scale", "softmax", "weigh", "add"];

// Written out, since Python and a browser do not agree on what a space is.
const SIX_SEPARATORS = /[\t-\r \u0085\u00a0\u1680\u2000-\u200b\u2028\u2029\u202f\u205f\u3000\ufeff]+/u;
// Controls, those of the direction of text among them, and halves of a character.
const SIX_REFUSED = /[\x00-\x08\x0e-\x1f\x7f-\x84\x86-\x9f\u202a-\u202e\u2060-\u206f\ud800-\udfff]/u;
// What shapes other characters and is nothing by itself.
const SIX_UNSEEN = /^[\u00ad\u034f\u061c\u180b-\u180f\u200c-\u200f\ufe00-\ufe0f]+$/u;

/**
 * @param {string} sentence
 * @returns {string[]}
 */
function sixWords(sentence) {
  return sentence.normalize("NFC").split(SIX_SEPARATORS).filter((word) => word !== "");
}

/**
 * @param {string} sentence
 * @returns {string} what is wrong with it, said to the one who types; empty where nothing is
 */
function sixProblem(sentence) {
  const { length } = [...sentence];
  if (length > SIX_MAX_CHARACTERS) return `${length} characters are too many: up to ${SIX_MAX_CHARACTERS} fit here.`;
  if (SIX_REFUSED.test(sentence)) return "There is a control character in the sentence: please leave it out.";
  const words = sixWords(sentence);
  if (words.length === 0) return "Type at least one word.";
  if (words.length > SIX_MAX_WORDS) return `${words.length} words are too many: up to ${SIX_MAX_WORDS} fit here.`;
  if (words.some((word) => SIX_UNSEEN.test(word))) return "One of the words cannot be seen: please leave it out.";
  return "";
}

/** @param {string} word */
function sixCode(word) {
  const points = Array.from(word, (character) => /** @type {number} */ (character.codePointAt(0)));
  const total = points.reduce((sum, point, index) => sum + (index + 1) * point, 0);
  const code = 1 + (total % 80);
  const digits = [Math.floor(code / 27), Math.floor(code / 9) % 3, Math.floor(code / 3) % 3, code % 3];
  return { points, total, code, digits };
}

/**
 * @param {string} word
 * @returns {string} at most ten characters as a reader counts them
 */
function sixShort(word) {
  if (word.length <= 10) return word;
  const pieces =
    "Segmenter" in Intl ? Array.from(new Intl.Segmenter().segment(word), ({ segment }) => segment) : [...word];
  return pieces.length > 10 ? `${pieces.slice(0, 9).join("")}…` : word;
}

/** A word inside a sentence keeps its direction to itself. @param {string} word as it is shown */
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

/** @param {import("./frame.js").Frame} frame */
function readSix(frame) {
  const sentence = frame.get("sentence");
  const problem = typeof sentence === "string" ? sixProblem(sentence) : "It is no text.";
  if (problem) throw new RangeError(`sentence must be one that can be shown. ${problem.slice(0, -1)}`);
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
    chosen: frame.whole("query", 0, words.length - 1),
    step: frame.whole("step", 1, SIX_NAMES.length),
    isCausal: frame.flag("is_causal"),
  };
}

/**
 * @param {Matrix} x
 * @param {Matrix} matrix
 * @returns {Matrix} x @ matrix
 */
function sixProduct(x, matrix) {
  return dotProductScore(
    x,
    Array.from(matrix[0], (_, column) => Float64Array.from(matrix, (row) => row[column])),
  );
}

/** @param {ReturnType<typeof readSix>} state */
function computeSix({ words, x, projections, chosen, isCausal }) {
  const query = sixProduct(x, projections.query);
  const key = sixProduct(x, projections.key);
  const value = sixProduct(x, projections.value);
  const scaled = scaledDotProductScore(query, key);
  const mask = isCausal ? causalMask(words.length) : undefined;
  const { output, weights } = attentionPooling(scaled, value, mask);
  const weighted = value.map((row, index) => row.map((number) => weights[chosen][index] * number));
  return { x, query, key, value, scores: dotProductScore(query, key), scaled, weights, weighted, output, mask };
}

/** Whole numbers as they are, others with `digits`. @param {number} number @param {number} [digits] */
const sixText = (number, digits = 4) => formatNumber(number, Number.isInteger(number) ? 0 : digits);

/** @param {ArrayLike<number>} numbers @param {number} [digits] */
const sixTuple = (numbers, digits) => `(${Array.from(numbers, (number) => sixText(number, digits)).join(", ")})`;

/**
 * "1·0 + 2·(−1)", each factor in the colour of its owner.
 * @param {ArrayLike<number>} left
 * @param {SixRole} leftRole
 * @param {ArrayLike<number>} right
 * @param {SixRole} rightRole
 * @returns {SixPart[]}
 */
function sixDot(left, leftRole, right, rightRole) {
  const bracket = (/** @type {number} */ number) => (number < 0 ? `(${sixText(number)})` : sixText(number));
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

/** Arithmetic, one line each. @param {string} label */
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
 * Vectors in a table: a row for each token, four columns for each group.
 * @param {string} label
 * @param {{title: string, role: SixRole, name?: string, digits?: number}[]} groups with a `name` numbers are marked
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
   * @param {Matrix[]} arrays one a group
   * @param {{chosen?: number, sum?: ArrayLike<number>}} how the row that stands out, and a last row below a line
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

/** The query token: native radio buttons, one a word. @param {import("./frame.js").Frame} frame */
function sixChooser(frame) {
  const row = element("div");
  const node = element("fieldset", { class: "mha-segments" }, element("legend", { text: "query token" }), row);
  frame.listen(row, "change", (event) => frame.set({ query: Number(event.target.value) }));
  /** @param {readonly string[]} words @param {readonly string[]} short @param {number} chosen */
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

/** How a word became a vector. @param {string} word @param {boolean} isKnown @param {ArrayLike<number>} x */
function sixRule(word, isKnown, x) {
  const shown = `“${sixIsolate(sixShort(word))}”`;
  const vector = `x = ${sixTuple(x)}`;
  if (isKnown) return `${shown} is one of the three words with given numbers: ${vector}.`;
  const { points, total, code, digits } = sixCode(word);
  const terms = points.map((point, index) => `${index + 1}·${point}`);
  const all = terms.length > 5 ? [...terms.slice(0, 3), "…", terms[terms.length - 1]] : terms;
  return (
    `The characters of ${shown} have the Unicode numbers ${points.slice(0, 3).join(", ")}${points.length > 3 ? ", …" : ""}. ` +
    `Each times its place: ${all.join(" + ")}${terms.length > 1 ? ` = ${total}` : ""}. ` +
    `The remainder by 80, plus 1, is ${code}, written ${digits.join("")} in base 3: ${vector}.`
  );
}

/** @param {import("./frame.js").Frame} frame */
function buildSix(frame) {
  const input = element("input", {
    type: "text",
    autocapitalize: "none",
    autocomplete: "off",
    spellcheck: "false",
    dir: "auto",
    enterkeyhint: "done",
  });
  const remark = element("p", { class: "mha-hint mha-remark" });
  const sentence = element("label", { class: "mha-row" }, element("span", { class: "mha-name", text: "sentence" }), input);
  const chooser = sixChooser(frame);
  const causal = checkbox(frame, "Causal mask", (checked) => frame.set({ is_causal: checked }));
  const steps = stepper(frame, SIX_NAMES, (step) => frame.set({ step: step + 1 }));

  // What is typed reaches the model only where it makes sense; what does not is told here, and the last good sentence
  // stays below. On leaving the field that one comes back.
  const judge = () => {
    const problem = sixProblem(input.value);
    input.setAttribute("aria-invalid", String(problem !== ""));
    remark.classList.toggle("mha-problem", problem !== "");
    remark.textContent =
      problem || `Up to ${SIX_MAX_WORDS} words. Their vectors are made from their letters and carry no meaning.`;
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

  const mapOf = (/** @type {string} */ name) => numberMap(frame, { name, rows: "queries", columns: "keys" });
  const [scores, scaled, weights] = ["scores", "scaled", "weights"].map((name) => ({
    name,
    noun: name === "scores" ? "score" : name === "scaled" ? "scaled score" : "weight",
    title: element("p", { class: "mha-title" }),
    lines: sixLines(`the arithmetic of the ${name} of one query`),
    map: mapOf(name),
    bar: colorBar(),
  }));
  const weighing = { title: element("p", { class: "mha-title" }), lines: sixLines("each value times its weight") };
  const adding = {
    title: element("p", { class: "mha-title" }),
    table: sixTable("the weighted values and their sum", [{ title: "weight × v", role: "value", digits: 4 }]),
  };
  const outputs = sixTable("Output of each token", [{ title: "output", role: "value", name: "output", digits: 4 }]);

  const aside = (/** @type {string} */ text) => element("p", { class: "mha-title", text });
  const panes = [
    [
      rule,
      element("div", { class: "mha-products" }, ...products.map(({ node }) => node)),
      aside("All tokens, by the same three matrices"),
      vectors.node,
    ],
    ...[scores, scaled, weights].map(({ title, lines, map, bar, noun }) => [
      element(
        "div",
        { class: "mha-panes" },
        element("div", {}, title, lines.node),
        element("div", {}, aside(`All queries at once: ${noun}s`), map.node, bar.node),
      ),
    ]),
    [weighing.title, weighing.lines.node],
    [
      element(
        "div",
        { class: "mha-panes" },
        element("div", {}, adding.title, adding.table.node),
        element("div", {}, aside("All queries at once: outputs"), outputs.node),
      ),
    ],
  ].map((children) => element("div", { class: "mha-pane" }, ...children));

  frame.body.append(
    element(
      "div",
      { class: "mha-controls" },
      element("div", {}, sentence, remark),
      element("div", { class: "mha-choices" }, chooser.node, causal.node),
      steps.node,
    ),
    ...panes,
  );
  let before = "";
  let typed = /** @type {string | null} */ (null);

  return () => {
    const state = readSix(frame);
    const { words, chosen, step, isCausal, projections } = state;
    const { mask, ...found } = computeSix(state);
    // Only where the sentence has changed: whoever is typing has it in the field already.
    if (state.sentence !== typed) {
      typed = state.sentence;
      if (input.value !== typed) input.value = typed;
      judge();
    }
    const short = words.map(sixShort);
    chooser.draw(words, short, chosen);
    causal.draw(isCausal);
    steps.draw(step - 1);
    panes.forEach((pane, index) => (pane.hidden = index !== step - 1));

    const isolated = short.map(sixIsolate);
    const asking = `“${sixIsolate(short[chosen])}”`;
    const isHidden = (/** @type {number} */ row, /** @type {number} */ column) => mask !== undefined && !mask[row][column];
    const query = found.query[chosen];
    const ofQuery = (/** @type {(index: number) => SixPart[]} */ partsOf) =>
      short.map((word, index) => ({ word, parts: partsOf(index) }));

    // Step 1
    rule.textContent =
      sixRule(words[chosen], state.isKnown[chosen], state.x[chosen]) + " Each entry of q, k and v is x times one column.";
    if (step === 1) {
      for (const { role, body, lines } of products) {
        const matrix = projections[role];
        body.replaceChildren(
          ...matrix.map((row) =>
            element("tr", {}, ...Array.from(row, (number) => element("td", { class: `mha-six-${role}`, text: sixText(number) }))),
          ),
        );
        lines.draw(
          Array.from(found[role][chosen], (number, column) => ({
            word: `${role[0]}${"₁₂₃₄"[column]}`,
            parts: [
              ...sixDot(state.x[chosen], "plain", matrix.map((row) => row[column]), role),
              " = ",
              { text: sixText(number) },
            ],
          })),
        );
      }
    }
    vectors.draw(short, [found.x, found.query, found.key, found.value], { chosen });

    // Steps 2 to 4
    const exponentials = Array.from(found.scaled[chosen], (score, index) => (isHidden(chosen, index) ? 0 : Math.exp(score)));
    const total = exponentials.reduce((sum, number) => sum + number, 0);
    const root = sixText(Math.sqrt(SIX_WIDTH));
    if (step === 2) {
      scores.title.textContent = `q of ${asking} is ${sixTuple(query)}. Its dot product with each key:`;
      scores.lines.draw(
        ofQuery((index) => [
          ...sixDot(query, "query", found.key[index], "key"),
          " = ",
          { text: sixText(found.scores[chosen][index]) },
        ]),
      );
    } else if (step === 3) {
      scaled.title.textContent = `A query has ${SIX_WIDTH} numbers, so each score of ${asking} is divided by √${SIX_WIDTH}:`;
      scaled.lines.draw(
        ofQuery((index) => [
          `${sixText(found.scores[chosen][index])} / √${SIX_WIDTH} = ${sixText(found.scores[chosen][index])} / ${root} = `,
          { text: sixText(found.scaled[chosen][index]) },
        ]),
      );
    } else if (step === 4) {
      weights.title.textContent = `exp() of each scaled score of ${asking}, over the sum of them:`;
      const visible = words.map((_, index) => index).filter((index) => !isHidden(chosen, index));
      const exps = visible.map((index) => `exp(${sixText(found.scaled[chosen][index])})`);
      const terms = visible.map((index) => sixText(exponentials[index]));
      weights.lines.draw([
        { word: "sum", parts: [`${exps.join(" + ")} = ${terms.join(" + ")} = `, { text: sixText(total) }] },
        ...ofQuery((index) =>
          isHidden(chosen, index)
            ? ["hidden, it comes later: ", { text: "0" }]
            : [
                `exp(${sixText(found.scaled[chosen][index])}) / ${sixText(total)} = `,
                { text: formatNumber(found.weights[chosen][index]) },
              ],
        ),
      ]);
    }
    for (const { name, noun, map, bar } of [scores, scaled, weights]) {
      const numbers = found[/** @type {"scores" | "scaled" | "weights"} */ (name)];
      const isWeight = name === "weights";
      const extent = isWeight ? { low: 0, high: 1 } : extentOf([numbers], false);
      map.draw({
        label: `${noun}s: queries in rows, keys in columns`,
        rowLabels: short,
        columnLabels: short,
        numbers,
        extent,
        isHidden: isWeight ? isHidden : undefined,
        digits: name === "scores" ? 0 : isWeight ? 2 : 1,
        describe: (row, column, number) => {
          const hidden = isWeight && isHidden(row, column) ? ", hidden by the causal mask" : "";
          return `query ${isolated[row]} → key ${isolated[column]}: ${noun} ${number}${hidden}`;
        },
      });
      bar.draw(extent, noun);
      for (const [row, item] of map.node.querySelectorAll("[role=rowheader]").entries()) {
        item.parentElement.classList.toggle("mha-chosen", row === chosen);
      }
    }

    // Steps 5 and 6
    weighing.title.textContent = `Each value, times the weight that ${asking} gives it:`;
    weighing.lines.draw(
      ofQuery((index) => [
        `${formatNumber(found.weights[chosen][index])} · `,
        { text: sixTuple(found.value[index]), role: "value" },
        " = (",
        ...Array.from(found.weighted[index], (number, column) => [
          ...(column > 0 ? [", "] : []),
          { text: formatNumber(number), role: /** @type {SixRole} */ ("value"), number: /** @type {[string, number]} */ (["weighted", number]) },
        ]).flat(),
        ")",
      ]),
    );
    adding.title.textContent = `The weighted values of ${asking}, added column by column:`;
    adding.table.draw(short, [found.weighted], { sum: found.output[chosen] });
    outputs.draw(short, [found.output], { chosen });

    const results = [
      `query ${sixTuple(query)}`,
      `scores ${sixTuple(found.scores[chosen])}`,
      `scaled scores ${sixTuple(found.scaled[chosen])}`,
      `weights ${sixTuple(found.weights[chosen], 2)}`,
      `weights ${sixTuple(found.weights[chosen], 2)}`,
      `output ${sixTuple(found.output[chosen], 2)}`,
    ];
    const news = `Step ${step}, ${SIX_VERBS[step - 1]}. ${short[chosen]}: ${results[step - 1]}.`;
    if (before && before !== news) frame.say(news);
    before = news;
    frame.report(() => found);
  };
}

/** @param {import("./frame.js").Frame} frame */
function sixPython(frame) {
  const { words, isKnown, x, projections, chosen, isCausal } = readSix(frame);
  const rows = (/** @type {Matrix} */ matrix) => `[${matrix.map((row) => `[${Array.from(row).join(", ")}]`).join(", ")}]`;
  const known = words.flatMap((word, index) => (isKnown[index] ? [`${JSON.stringify(word)}: [${Array.from(x[index]).join(", ")}]`] : []));
  return `import torch

from mha_lib import attention_pooling, causal_mask, dot_product_score, scaled_dot_product_score

words = ${JSON.stringify(words).replaceAll('","', '", "')}
given = {${[...new Set(known)].join(", ")}}


def word_vector(word):
    """The given numbers, or else four digits that the characters make."""
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
# Step 5 by itself, for the query ${chosen}
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
        settings: SIX_SETTINGS,
        data: ["vectors", "projections"],
        python: sixPython,
      },
      buildSix,
    ),
};
