// The main widget of the multi-head chapter: the reader sets the number of heads, and the rest follows.

import { headColor } from "../shared/colors.js";
import { formatNumber, groupDigits } from "../shared/format.js";
import { element, inlineText, mark, setText, widget } from "../shared/frame.js";
import { countHeads, countRight, headAnswers } from "./head_answers.js";
import { askedPlaces, fitHeads, headComputer, headCounts, headOrder } from "./head_math.js";
import { colorBar } from "../shared/number_map.js";
import { checkbox, facts, menu, segments, slider } from "../shared/parts.js";
import { pixelCanvas } from "../shared/pixel_canvas.js";
import { sizedMap } from "../shared/pixel_map.js";

/** @typedef {import("../shared/attention_math.js").Matrix} Matrix */
/** @typedef {import("../shared/attention_math.js").Mask} Mask */
/** @typedef {import("../shared/frame.js").Frame} Frame */
/** @typedef {import("./head_math.js").Example} Example */
/** @typedef {import("./head_math.js").Stage} Stage */

const MAX_MARKED = 1024; // the page stores the numbers of all small maps if there are at most this many

/** @type {Record<Stage, {text: string, noun: string, nouns: string, about: string}>} */
const STAGES = {
  scores: { text: "Scores", noun: "scaled score", nouns: "scaled scores", about: "query · key / √head_dim" },
  masked: { text: "Mask", noun: "masked score", nouns: "masked scores", about: "the score of a hidden key becomes −∞" },
  weights: { text: "Softmax", noun: `weight`, nouns: `weights`, about: "softmax over the keys: each row sums to 1" },
  output: { text: "Output", noun: `output`, nouns: `outputs`, about: "weights · value: head_dim numbers per query" },
};

const VIEWS = { one: "One head", both: "Side by side", difference: "Difference" };

/** @param {Frame} frame */
function readHeads(frame) {
  /** @type {Example[]} */
  const examples = frame.get("examples");
  /** @type {{example: string, numHeads: number, validLen: number, isCausal: boolean, stage: Stage, head: number, view: string, other: number}} */
  const { example: label, numHeads, validLen, ...settings } = frame.read();
  const example = examples.find((candidate) => candidate.label === label);
  if (!example) {
    throw new RangeError(`example must be one of ${examples.map((e) => `“${e.label}”`).join(", ")}, got “${label}”`);
  }
  const stops = headCounts(example);
  const version = example.versions.find((candidate) => candidate.num_heads.includes(numHeads));
  if (!version) {
    const rule = `num_heads must divide embed_dim=${example.embed_dim} and be one of ${stops.join(", ")}`;
    throw new RangeError(`${rule}, got ${numHeads}`);
  }
  frame.insist(validLen <= example.tokens.length, "valid_len", `lie in 0..${example.tokens.length}`);
  const isCompact = frame.get("compact") === true;
  return { examples, example, version, stops, numHeads, validLen, isCompact, ...settings };
}

/** @typedef {ReturnType<typeof readHeads>} HeadState */

/** @param {Frame} frame */
function buildHeads(frame) {
  const compute = headComputer();
  const controls = buildControls(frame);
  const sizes = buildSizes();
  const results = headAnswers();
  const largeMaps = [buildLargeMap(frame, "table"), buildLargeMap(frame, "other_table")];
  const gallery = buildGallery(frame);
  const apart = facts(["max_difference", "mean_difference"]);
  const bar = colorBar();
  const side = element("div", { class: "mha-pane" }, gallery.node, bar.node);
  const panes = element("div", { class: "mha-panes" }, ...largeMaps.map((map) => map.node), side);
  frame.body.append(...controls.nodes, sizes.node, panes, results.node);
  /** @type {HeadState | null} */
  let before = null;

  return () => {
    const state = readHeads(frame);
    const { example, version, numHeads, stage, head, other, view } = state;
    const computed = compute(state);
    const { maps, extent, answers } = computed;
    const difference = view === "one" ? null : computed.difference();
    const large =
      view === "difference" && difference
        ? [{ heads: [head, other], table: difference.table }]
        : (view === "both" ? [head, other] : [head]).map((index) => ({ heads: [index], table: maps[index] }));
    const largeExtent = view === "difference" ? { low: 0, high: difference?.largest || 1 } : extent;

    frame.body.classList.toggle("mha-compact", state.isCompact);
    panes.classList.toggle("mha-side-by-side", view === "both");
    controls.draw(state);
    sizes.draw(state);
    largeMaps.forEach((map, index) => map.draw(state, large[index], computed, largeExtent));
    frame.later(() => gallery.draw(state, maps, extent));
    results.draw(state, answers);
    bar.draw(largeExtent, view === "difference" ? `difference of ${STAGES[stage].nouns}` : STAGES[stage].noun);
    if (!difference) apart.node.remove();
    else {
      if (!apart.node.parentNode) side.append(apart.node);
      const pair = `|head ${head} − head ${other}|`;
      apart.draw([
        { text: formatNumber(difference.largest), hint: `largest ${pair}`, number: difference.largest },
        { text: formatNumber(difference.mean), hint: `mean ${pair}`, number: difference.mean },
      ]);
    }
    const news = before && describeChange(before, state, difference, answers);
    if (news) frame.say(news);
    before = state;

    frame.report(() => {
      return {
        head_dim: example.embed_dim / numHeads,
        parameters: version.parameters,
        table: large[0].table,
        ...(view === "both" ? { other_table: large[1].table } : {}),
        ...(difference ? { max_difference: difference.largest, mean_difference: difference.mean } : {}),
        ...(answers ? { answers, shares: sharesOf(example) } : {}),
        ...(areMarked(maps) ? { shown: maps } : {}),
      };
    });
  };
}

/**
 * @param {HeadState} before @param {HeadState} now @param {{largest: number} | null} difference
 * @param {number[][] | null} answers
 */
function describeChange(before, now, difference, answers) {
  const parts = [];
  if (now.example !== before.example) parts.push(`Example: ${now.example.label}.`);
  if (now.numHeads !== before.numHeads) {
    const parameters = groupDigits(now.version.parameters);
    parts.push(
      `${countHeads(now.numHeads)}, head_dim ${now.example.embed_dim / now.numHeads}.`,
      now.version.parameters === before.version.parameters ? `${parameters} parameters, unchanged.` : `${parameters} parameters.`,
    );
  }
  if (now.validLen !== before.validLen) parts.push(`${now.validLen} of ${now.example.tokens.length} tokens visible.`);
  if (now.isCausal !== before.isCausal) {
    parts.push(now.isCausal ? "Causal mask on: no query sees a later key." : "Causal mask off.");
  }
  if (now.stage !== before.stage) parts.push(`Shown: ${STAGES[now.stage].nouns}, ${STAGES[now.stage].about}.`);
  const isOtherPair = now.head !== before.head || now.other !== before.other || now.view !== before.view;
  if (difference) {
    const view = VIEWS[/** @type {"both"} */ (now.view)].toLowerCase();
    if (isOtherPair) parts.push(`Heads ${now.head} and ${now.other}, ${view}.`);
    parts.push(`They differ by at most ${formatNumber(difference.largest)}.`);
  } else if (isOtherPair) parts.push(`Head ${now.head}.`);
  const isAsked = now.numHeads !== before.numHeads || now.validLen !== before.validLen || now.isCausal !== before.isCausal;
  if (answers && isAsked) {
    const { right, asked } = countRight(now.example, answers);
    parts.push(`All answers right at ${right} of ${asked} positions.`);
  }
  return parts.join(" ");
}

/** @param {Example} example */
function sharesOf({ versions }) {
  return [...versions].sort((a, b) => a.num_heads[0] - b.num_heads[0]).map((version) => version.share ?? 0);
}

/** @param {Matrix[]} maps */
function areMarked(maps) {
  return maps.length * maps[0].length * maps[0][0].length <= MAX_MARKED;
}

/** @param {Frame} frame */
function buildControls(frame) {
  const chosen = menu(frame, "Example", (index) => {
    const { examples, example: old, numHeads: wanted, validLen } = readHeads(frame);
    const example = examples[index];
    const stops = headCounts(example);
    // A setting that the new example does not allow moves to a nearby one; if all tokens were visible, all
    // stay visible.
    const numHeads = stops.filter((stop) => stop <= wanted).at(-1) ?? stops[0];
    const length = example.tokens.length;
    frame.set({
      example: example.label,
      ...fitHeads(example, numHeads),
      valid_len: validLen === old.tokens.length ? length : Math.min(validLen, length),
    });
  });
  const note = element("p", { class: "mha-note" });
  const heads = slider(frame, "num_heads", (value) => frame.set(fitHeads(readHeads(frame).example, value)));
  const visible = slider(frame, "valid_len", (value) => frame.set({ valid_len: value }));
  const stages = segments(frame, "Show", Object.entries(STAGES).map(([value, { text }]) => [value, text]), "stage");
  stages.node.classList.add("mha-stages");
  const causal = checkbox(frame, "Causal mask", "is_causal");
  const views = segments(frame, "Compare", Object.entries(VIEWS), "view");
  const second = menu(frame, `with`, (index) => frame.set({ other: index }));
  const comparison = element("div", { class: "mha-choices" }, views.node, second.node, causal.node);
  // The main controls are direct children of the body, so that they can stay in view while the rest scrolls.
  const main = element("div", { class: "mha-controls mha-kept-in-view" }, heads.node, element("div", { class: "mha-choices" }, stages.node));
  const above = element("div", { class: "mha-controls" }, chosen.node, note);
  const below = element("div", { class: "mha-controls" }, visible.node, comparison);
  /** @type {{example: Example, numHeads: number, validLen: number} | null} */
  let shown = null;

  /** @param {HeadState} state */
  function draw({ examples, example, stops, numHeads, validLen, view, other, isCompact }) {
    chosen.node.hidden = examples.length === 1;
    if (example !== shown?.example) chosen.draw(examples.map(({ label }) => label), examples.indexOf(example));
    if (note.dataset.text !== example.note) note.replaceChildren(...inlineText(example.note));
    note.dataset.text = example.note;
    note.hidden = example.note === "";
    const text = countHeads(numHeads);
    // A slider that has not moved is left alone, because every write into the page costs a new layout.
    if (example !== shown?.example || numHeads !== shown.numHeads) {
      heads.draw(numHeads, { stops, text, said: `${text}, head_dim ${example.embed_dim / numHeads}` });
    }
    const length = example.tokens.length;
    if (example !== shown?.example || validLen !== shown.validLen) {
      const said = `${validLen} of ${length} tokens visible`;
      visible.draw(validLen, { high: length, text: `${validLen} of ${length}`, said });
    }
    if (view !== "one") second.draw(Array.from({ length: numHeads }, (_, index) => `head ${index}`), other);
    second.node.hidden = view === "one";
    above.hidden = chosen.node.hidden && note.hidden;
    below.hidden = isCompact;
    stages.node.hidden = isCompact;
    shown = { example, numHeads, validLen };
  }
  return { nodes: [above, main, below], draw };
}

/** A strip of embed_dim numbers, divided into heads, and the sizes that follow from the division. */
function buildSizes() {
  const strip = element("div", { class: "mha-strip", role: "img" });
  const list = facts(["head_dim", "parameters", "scores"], ["head_dim", `parameters`, `scores`]);
  const node = element("div", { class: "mha-sizes" }, strip, list.node);
  /** @type {Pick<HeadState, "example" | "version" | "numHeads"> | null} */
  let built = null;

  /** @param {HeadState} state */
  function draw({ example, version, numHeads, head }) {
    const { embed_dim: embedDim, tokens } = example;
    const headDim = embedDim / numHeads;
    strip.setAttribute("aria-label", `The ${embedDim} numbers of a token, divided into ${numHeads} slices of ${headDim}`);
    while (strip.children.length > numHeads) strip.lastElementChild.remove();
    while (strip.children.length < numHeads) {
      const index = strip.children.length;
      const slice = element("span", {}, element("span", { class: "mha-word", text: "head " }), String(index));
      slice.style.setProperty("--head", headColor(index));
      strip.append(slice);
    }
    strip.classList.toggle("mha-numbers", numHeads > 4);
    strip.classList.toggle("mha-many", numHeads > 16);
    Array.from(strip.children).forEach((slice, index) => slice.classList.toggle("mha-now", index === head));
    const formula = version.parameters > 4 * embedDim ** 2 ? "4 · (embed_dim² + embed_dim)" : "4 · embed_dim²";
    if (built?.version === version && built.numHeads === numHeads && built.example === example) return;
    built = { example, version, numHeads };
    list.draw([
      { text: `${embedDim} / ${numHeads} = ${headDim}`, hint: "embed_dim / num_heads", number: headDim },
      {
        text: groupDigits(version.parameters),
        hint: `${formula}, the same for every num_heads`,
        number: version.parameters,
      },
      { text: groupDigits(numHeads * tokens.length ** 2), hint: "num_heads · q_len · k_len" },
    ]);
  }
  return { node, draw };
}

/** The large map of a head, or of the difference of two. @param {Frame} frame @param {string} name */
function buildLargeMap(frame, name) {
  const title = element("p", { class: "mha-title mha-of-head" });
  const about = element("p", { class: "mha-hint mha-about" });
  const map = sizedMap(frame, { name, rows: `queries`, columns: `keys` });
  const ofOutput = sizedMap(frame, { name, rows: `queries`, columns: "numbers of the output", columnRole: "value" });
  const place = element("div");
  const node = element("div", { class: "mha-pane" }, title, about, place);

  /**
   * @param {HeadState} state
   * @param {{heads: number[], table: Matrix} | undefined} shown one head with its table, or two heads with
   *   the table of their difference
   * @param {{maps: Matrix[], mask: Mask}} computed @param {import("../shared/colors.js").Extent} extent
   */
  function draw({ example, validLen, stage, view, isCompact }, shown, { maps, mask }, extent) {
    node.hidden = !shown;
    if (!shown) {
      place.replaceChildren();
      return;
    }
    const { heads, table } = shown;
    const { tokens } = example;
    const { nouns, about: aboutStage } = STAGES[stage];
    const isOutput = stage === "output";
    const isDifference = heads.length === 2;
    const whose = isDifference ? `|head ${heads[0]} − head ${heads[1]}|` : `head ${heads[0]}`;
    setText(title, `${whose[0].toUpperCase()}${whose.slice(1)}: ${nouns}`);
    const colors = heads.map((head, index) => `${headColor(head)} ${50 * index}% ${isDifference ? 50 * index + 50 : 100}%`);
    title.style.setProperty("--head", `linear-gradient(135deg, ${colors.join(", ")})`);
    setText(about, isDifference ? "how far apart the two heads are" : aboutStage);

    const repeated = new Set(tokens).size < tokens.length;
    const quoted = (/** @type {number} */ index) => (repeated ? `'${tokens[index]}' at ${index}` : `'${tokens[index]}'`);
    const first = isDifference ? 0 : heads[0] * table[0].length;
    const isHidden = (/** @type {number} */ q, /** @type {number} */ k) => !isOutput && stage !== "scores" && !mask[q][k];
    const isBlank = (/** @type {number} */ q, /** @type {number} */ k) => isDifference && table[q][k] === -Infinity;
    const describe = (/** @type {number} */ q, /** @type {number} */ k, /** @type {string} */ number) => {
      const ofOutput = isDifference ? `number ${first + k} of each head's output` : `number ${first + k} of the output`;
      const target = isOutput ? ofOutput : `key ${quoted(k)}`;
      const each = () => heads.map((head) => `head ${head}: ${formatNumber(maps[head][q][k])}`).join(", ");
      if (isBlank(q, k)) number = "no difference";
      const mask = k >= validLen ? ", hidden by the padding mask" : ", hidden by the causal mask";
      const [both, reason] = [isDifference ? ` (${each()})` : "", isHidden(q, k) ? mask : ""];
      return `query ${quoted(q)} → ${target}: ${number}${both}${reason}`;
    };
    const columns = isOutput ? Array.from(table[0], (_, column) => String(first + column)) : tokens;
    const room = view === "both" || isCompact ? "narrow" : "wide";
    const few = columns.length <= (room === "wide" ? 12 : 6);
    const used = isOutput ? ofOutput : map;
    if (used.node.parentNode !== place) place.replaceChildren(used.node);
    used.node.classList.toggle("mha-dense", columns.length > 8);
    used.node.style.setProperty("--rows", String(tokens.length));
    used.draw({
      label: isOutput
        ? `${nouns} of ${whose}: queries in rows, the head's output numbers in columns`
        : `${nouns} of ${whose}: queries in rows, keys in columns`,
      rowLabels: tokens,
      columnLabels: columns,
      numbers: table,
      extent,
      mask: isOutput || stage === "scores" ? null : mask,
      isHidden,
      isBlank,
      describe,
      digits: few ? (stage === "weights" ? 2 : 1) : undefined,
      areNumbers: isOutput,
      room,
    });
  }
  return { node, draw };
}

/** Small maps of all heads, from which the reader chooses one. @param {Frame} frame */
function buildGallery(frame) {
  const maps = element("div", { class: "mha-maps" });
  const node = element("fieldset", { class: "mha-gallery" }, element("legend", { text: "All heads, the sharpest first" }), maps);
  frame.listen(maps, "change", (event) => frame.set({ head: Number(event.target.value) }));
  /** @type {{label: HTMLElement, input: HTMLInputElement, canvas: ReturnType<typeof pixelCanvas>}[]} */
  const entries = [];
  /** @type {number[]} the order of the heads in the page */
  let drawn = [];

  /** @param {HeadState} state @param {Matrix[]} heads @param {import("../shared/colors.js").Extent} extent */
  function draw({ head: chosen, other, view, stage, example, isCompact, numHeads }, heads, extent) {
    while (entries.length < heads.length) {
      const index = entries.length;
      const input = element("input", { type: "radio", name: "head", class: "mha-over-map", value: index, "aria-label": `head ${index}` });
      const canvas = pixelCanvas();
      const label = element("label", {}, input, canvas.node, element("span", { text: index, "aria-hidden": "true" }));
      label.style.setProperty("--head", headColor(index));
      entries.push({ label, input, canvas });
    }
    const order = headOrder(example, numHeads);
    if (order !== drawn) maps.replaceChildren(...order.map((index) => entries[index].label));
    drawn = order;
    const square = [2, 4, 6].find((width) => heads.length <= width ** 2) ?? 8;
    const columns = isCompact ? Math.min(Math.max(heads.length, 4), 8) : square;
    maps.style.setProperty("--columns", String(columns));
    maps.classList.toggle("mha-fine", example.tokens.length > 48);
    // A hidden score has no colour; without the pattern, it would look like a score near 0.
    maps.classList.toggle("mha-hatched", stage === "masked");
    entries.forEach(({ label, input, canvas }, index) => {
      if (index >= heads.length) return;
      input.checked = index === chosen;
      label.classList.toggle("mha-other", view !== "one" && index === other);
      canvas.draw(heads[index], extent);
    });
    if (areMarked(heads)) mark(maps, "shown", heads.flat().flatMap((row) => Array.from(row)));
    else delete maps.dataset.number;
  }
  return { node, draw };
}

/** The values for the program: the numbers of an example, or where its model is stored. @param {Frame} frame */
function headValues(frame) {
  const { example, version } = readHeads(frame);
  const { embed_dim, ids, positions, task } = example;
  const { query, key, value, read_out, read_out_bias, parameters, model } = version;
  const numbers = model ? { model, ids, positions } : { query, key, value };
  const answered = task && { asked: askedPlaces(task), tasks: task.names.length, shares: sharesOf(example) };
  const readOut = task && !model && { read_out, read_out_bias };
  return { found: { embed_dim, length: example.tokens.length, parameters, ...numbers, ...readOut, ...answered } };
}

export default widget({
  name: "head-explorer",
  label: "Head explorer",
  data: ["examples", "compact"],
  values: headValues,
}, buildHeads);
