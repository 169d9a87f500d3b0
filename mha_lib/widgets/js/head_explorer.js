// The centrepiece of the multi-head chapter: the number of heads as a slider, everything else follows.

import { causalMask, combineMasks, matrixFromFloat32, multiHeadSteps, validLenMask } from "./attention_math.js";
import { viridis, viridisGradient } from "./colors.js";
import { element, formatNumber, inlineText, mount, segmentedControl } from "./frame.js";

/**
 * What torch stored of one example; `versions` has one entry for a layer that is cut at every number of heads, or
 * one for each number of heads where each has its own trained layer.
 * @typedef {object} Example
 * @property {string} label
 * @property {string} note
 * @property {string[]} tokens
 * @property {number} embed_dim
 * @property {{num_heads: number[], parameters: number, query: string, key: string, value: string}[]} versions
 */

const HEAD_COLORS = 8; // as many as the style sheet has

const STAGES = {
  scores: { text: "Scores", noun: "scaled score", about: "query · key / √head_dim" },
  masked: { text: "Mask", noun: "masked score", about: "the score of a hidden key becomes −∞" },
  weights: { text: "Softmax", noun: "weight", about: "softmax over the keys: each row sums to 1" },
  output: { text: "Output", noun: "output", about: "weights · value: head_dim numbers a query" },
};

const TRAITS = ["examples", "example", "num_heads", "valid_len", "is_causal", "stage", "head"];

/** @param {import("./frame.js").Frame} frame */
function readState(frame) {
  /** @type {Example[]} */
  const examples = frame.get("examples");
  const label = frame.get("example");
  const numHeads = frame.get("num_heads");
  const validLen = frame.get("valid_len");
  const head = frame.get("head");
  const stage = frame.get("stage");
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
  const length = example.tokens.length;
  if (!Number.isInteger(validLen) || validLen < 0 || validLen > length) {
    throw new RangeError(`valid_len must lie in 0..${length}, got ${validLen}`);
  }
  if (!Number.isInteger(head) || head < 0 || head >= numHeads) {
    throw new RangeError(`head must lie in 0..${numHeads - 1}, got ${head}`);
  }
  if (!(stage in STAGES)) {
    throw new RangeError(`stage must be one of ${Object.keys(STAGES).join(", ")}, got “${stage}”`);
  }
  return { examples, example, version, stops, numHeads, validLen, isCausal: frame.get("is_causal"), stage, head };
}

/** @param {Example} example */
function headCounts(example) {
  return example.versions.flatMap((version) => version.num_heads).sort((a, b) => a - b);
}

/** @param {ReturnType<typeof readState>} state */
function compute({ example, version, numHeads, validLen, isCausal }) {
  const length = example.tokens.length;
  const visible = validLenMask(validLen, length, length);
  const mask = isCausal ? combineMasks([visible, causalMask(length)]) : visible;
  const [query, key, value] = [version.query, version.key, version.value].map((stored) =>
    matrixFromFloat32(stored, example.embed_dim),
  );
  return { mask, steps: multiHeadSteps({ query, key, value }, numHeads, mask) };
}

/**
 * The range of the colours: common to all heads, from 0 for weights.
 * @param {import("./attention_math.js").Matrix[]} heads
 * @param {boolean} fromZero
 */
function colorRange(heads, fromZero) {
  const numbers = heads.flatMap((head) => head.flatMap((row) => Array.from(row))).filter(Number.isFinite);
  const low = fromZero || numbers.length === 0 ? 0 : Math.min(...numbers);
  const high = numbers.length === 0 ? 1 : Math.max(...numbers);
  return { low, high: high > low ? high : low + 1 };
}

/** @param {import("./frame.js").Frame} frame */
function build(frame) {
  const controls = buildControls(frame);
  const facts = buildFacts();
  const map = buildMap(frame);
  const gallery = buildGallery(frame);
  const bar = buildColorBar();
  frame.body.append(
    controls.node,
    facts.node,
    element(
      "div",
      { class: "mha-panes" },
      element("div", { class: "mha-pane" }, map.node, bar.node, map.readout),
      element("div", { class: "mha-pane" }, gallery.node),
    ),
  );
  /** @type {ReturnType<typeof readState> | null} */
  let before = null;
  let reported = "";

  return () => {
    const state = readState(frame);
    const { mask, steps } = compute(state);
    const heads = steps[state.stage];
    const range = colorRange(heads, state.stage === "weights");
    controls.draw(state);
    facts.draw(state);
    gallery.draw(state, heads, range);
    map.draw(state, heads[state.head], mask, range);
    bar.draw(range, STAGES[state.stage]);
    if (before) frame.say(describeChange(before, state));
    before = state;

    // With a kernel, Python can compare these numbers with torch's.
    const { example, numHeads: num_heads, validLen: valid_len, isCausal: is_causal } = state;
    const report = { example: example.label, num_heads, valid_len, is_causal };
    if (JSON.stringify(report) !== reported) {
      reported = JSON.stringify(report);
      const weights = steps.weights.map((head) => head.map((row) => Array.from(row)));
      frame.set({ browser_report: { ...report, weights } });
    }
  };
}

/**
 * @param {ReturnType<typeof readState>} before
 * @param {ReturnType<typeof readState>} now
 */
function describeChange(before, now) {
  const parts = [];
  if (now.example !== before.example) parts.push(`Example: ${now.example.label}.`);
  if (now.numHeads !== before.numHeads) {
    const same = now.version.parameters === before.version.parameters ? ", unchanged" : "";
    parts.push(
      `${countHeads(now.numHeads)}, head_dim ${now.example.embed_dim / now.numHeads}.`,
      `${groupDigits(now.version.parameters)} parameters${same}.`,
    );
  }
  if (now.validLen !== before.validLen) parts.push(`${now.validLen} of ${now.example.tokens.length} tokens visible.`);
  if (now.isCausal !== before.isCausal) {
    parts.push(now.isCausal ? "Causal mask on: no query sees a later key." : "Causal mask off.");
  }
  if (now.stage !== before.stage) parts.push(`Shown: ${STAGES[now.stage].noun}s, ${STAGES[now.stage].about}.`);
  if (now.head !== before.head) parts.push(`Head ${now.head}.`);
  return parts.join(" ");
}

/** @param {number} count */
function countHeads(count) {
  return count === 1 ? "1 head" : `${count} heads`;
}

/** @param {number} number */
function groupDigits(number) {
  return number.toLocaleString("en-US");
}

/** @param {import("./frame.js").Frame} frame */
function buildControls(frame) {
  const menu = element("select", {});
  const note = element("p", { class: "mha-note" });
  const slider = element("input", { type: "range", min: 0, step: 1 });
  const sliderText = element("span", { class: "mha-value", "aria-hidden": "true" });
  const ticks = element("div", { class: "mha-ticks", "aria-hidden": "true" });
  const causal = element("input", { type: "checkbox" });
  const visible = element("input", { type: "range", min: 0, step: 1 });
  const visibleText = element("span", { class: "mha-value", "aria-hidden": "true" });
  const stages = segmentedControl(
    "stage",
    "Show",
    Object.entries(STAGES).map(([value, { text }]) => [value, text]),
  );
  const menuRow = element("label", { class: "mha-row" }, element("span", { class: "mha-name", text: "Example" }), menu);
  const node = element(
    "div",
    { class: "mha-controls" },
    menuRow,
    note,
    element(
      "label",
      { class: "mha-row mha-heads-row" },
      element("span", { class: "mha-name", text: "num_heads" }),
      element("span", { class: "mha-slider" }, slider, ticks),
      sliderText,
    ),
    element(
      "label",
      { class: "mha-row" },
      element("span", { class: "mha-name", text: "valid_len" }),
      element("span", { class: "mha-slider" }, visible),
      visibleText,
    ),
    element(
      "div",
      { class: "mha-row mha-stage-row" },
      stages.node,
      element("label", { class: "mha-check" }, causal, element("span", { text: "Causal mask" })),
    ),
  );

  frame.listen(slider, "input", () => {
    const { stops, head } = readState(frame);
    const numHeads = stops[Number(slider.value)];
    frame.set({ num_heads: numHeads, head: Math.min(head, numHeads - 1) });
  });
  frame.listen(visible, "input", () => frame.set({ valid_len: Number(visible.value) }));
  frame.listen(causal, "change", () => frame.set({ is_causal: causal.checked }));
  frame.listen(stages.node, "change", (event) => frame.set({ stage: event.target.value }));
  frame.listen(menu, "change", () => {
    const { examples, example: old, numHeads: wanted, validLen, head } = readState(frame);
    const example = examples[menu.selectedIndex];
    const stops = headCounts(example);
    // The nearest setting that the new example has; all tokens stay visible if all were.
    const numHeads = stops.filter((stop) => stop <= wanted).at(-1) ?? stops[0];
    const length = example.tokens.length;
    frame.set({
      example: example.label,
      num_heads: numHeads,
      valid_len: validLen === old.tokens.length ? length : Math.min(validLen, length),
      head: Math.min(head, numHeads - 1),
    });
  });

  /** @param {ReturnType<typeof readState>} state */
  function draw({ examples, example, stops, numHeads, validLen, isCausal, stage }) {
    const labels = examples.map(({ label }) => label);
    if (labels.join("\n") !== Array.from(menu.options, (option) => option.text).join("\n")) {
      menu.replaceChildren(...labels.map((text) => element("option", { text })));
    }
    menu.selectedIndex = examples.indexOf(example);
    menuRow.hidden = examples.length === 1;
    note.replaceChildren(...inlineText(example.note));
    note.hidden = example.note === "";

    slider.max = stops.length - 1;
    slider.value = stops.indexOf(numHeads);
    slider.disabled = stops.length === 1;
    slider.setAttribute("aria-valuetext", `${countHeads(numHeads)}, head_dim ${example.embed_dim / numHeads}`);
    sliderText.textContent = countHeads(numHeads);
    ticks.replaceChildren(
      ...stops.map((stop, index) => {
        const tick = element("span", { text: stop, class: stop === numHeads ? "mha-now" : null });
        tick.style.setProperty("--place", String(stops.length === 1 ? 0.5 : index / (stops.length - 1)));
        return tick;
      }),
    );

    const length = example.tokens.length;
    visible.max = length;
    visible.value = validLen;
    visible.setAttribute("aria-valuetext", `${validLen} of ${length} tokens visible`);
    visibleText.textContent = `${validLen} of ${length}`;
    causal.checked = isCausal;
    for (const input of stages.inputs) input.checked = input.value === stage;
  }
  return { node, draw };
}

/** The strip of embed_dim numbers cut into heads, and the sizes that follow from it. */
function buildFacts() {
  const strip = element("div", { class: "mha-strip", role: "img" });
  const [headDimFact, parametersFact, scoresFact] = ["head_dim", "parameters", "scores"].map((term) => {
    const value = element("strong", { class: "mha-fact" });
    const hint = element("span", { class: "mha-hint" });
    const name = element("span", { class: "mha-name", text: term });
    return { node: element("p", {}, name, value, hint), value, hint };
  });
  headDimFact.hint.textContent = "embed_dim / num_heads";
  scoresFact.hint.textContent = "num_heads · q_len · k_len";
  const list = element("div", { class: "mha-fact-list" }, headDimFact.node, parametersFact.node, scoresFact.node);
  const node = element("div", { class: "mha-facts" }, strip, list);

  /** @param {ReturnType<typeof readState>} state */
  function draw({ example, version, numHeads, head }) {
    const { embed_dim: embedDim, tokens } = example;
    const headDim = embedDim / numHeads;
    strip.setAttribute("aria-label", `The ${embedDim} numbers of a token, cut into ${numHeads} slices of ${headDim}`);
    strip.replaceChildren(
      ...Array.from({ length: numHeads }, (_, index) => {
        const slice = element("span", { class: index === head ? "mha-now" : null });
        if (numHeads <= 8) slice.append(element("span", { class: "mha-word", text: "head " }), String(index));
        slice.style.setProperty("--head", headColor(index));
        slice.style.setProperty("--numbers", String(headDim));
        return slice;
      }),
    );
    const hasBias = version.parameters > 4 * embedDim ** 2;
    const formula = hasBias ? "4 · (embed_dim² + embed_dim)" : "4 · embed_dim²";
    headDimFact.value.textContent = `${embedDim} / ${numHeads} = ${headDim}`;
    parametersFact.value.textContent = groupDigits(version.parameters);
    parametersFact.hint.replaceChildren(`${formula}, `, element("strong", { text: "the same for every num_heads" }));
    scoresFact.value.textContent = groupDigits(numHeads * tokens.length ** 2);
  }
  return { node, draw };
}

/** @param {number} head */
function headColor(head) {
  return `var(--mha-head-${head % HEAD_COLORS})`;
}

/**
 * Small maps of all heads; one of them is chosen.
 * @param {import("./frame.js").Frame} frame
 */
function buildGallery(frame) {
  const maps = element("div", { class: "mha-maps" });
  const node = element("fieldset", { class: "mha-gallery" }, element("legend", { text: "All heads" }), maps);
  frame.listen(maps, "change", (event) => frame.set({ head: Number(event.target.value) }));

  /**
   * @param {ReturnType<typeof readState>} state
   * @param {import("./attention_math.js").Matrix[]} heads
   * @param {{low: number, high: number}} range
   */
  function draw({ head: chosen }, heads, range) {
    while (maps.children.length > heads.length) maps.lastElementChild.remove();
    while (maps.children.length < heads.length) {
      const index = maps.children.length;
      const label = element(
        "label",
        {},
        element("input", { type: "radio", name: "head", value: index, "aria-label": `head ${index}` }),
        element("canvas", { "aria-hidden": "true" }),
        element("span", { text: index, "aria-hidden": "true" }),
      );
      label.style.setProperty("--head", headColor(index));
      maps.append(label);
    }
    const columns = [2, 4, 6].find((width) => heads.length <= width ** 2) ?? 8;
    maps.style.setProperty("--columns", String(columns));
    heads.forEach((matrix, index) => {
      const [input, canvas] = maps.children[index].children;
      input.checked = index === chosen;
      paint(canvas, matrix, range);
    });
  }
  return { node, draw };
}

/**
 * One pixel a number; what is hidden stays transparent.
 * @param {HTMLCanvasElement} canvas
 * @param {import("./attention_math.js").Matrix} matrix
 * @param {{low: number, high: number}} range
 */
function paint(canvas, matrix, { low, high }) {
  canvas.width = matrix[0].length;
  canvas.height = matrix.length;
  const context = /** @type {CanvasRenderingContext2D} */ (canvas.getContext("2d"));
  const image = context.createImageData(canvas.width, canvas.height);
  matrix.forEach((row, y) =>
    row.forEach((number, x) => {
      const alpha = Number.isFinite(number) ? 255 : 0;
      image.data.set([...viridis((number - low) / (high - low)), alpha], 4 * (y * canvas.width + x));
    }),
  );
  context.putImageData(image, 0, 0);
}

/**
 * The large map of one head: a grid of cells that can be pointed at and walked through with the arrow keys.
 * @param {import("./frame.js").Frame} frame
 */
function buildMap(frame) {
  const title = element("p", { class: "mha-title" });
  const about = element("span", { class: "mha-hint" });
  const columnsName = element("span", { class: "mha-columns-name", "aria-hidden": "true" });
  const rowsName = element("span", { class: "mha-rows-name", text: "queries", "aria-hidden": "true" });
  const grid = element("div", { class: "mha-grid", role: "grid" });
  const readout = element("p", { class: "mha-readout" });
  const node = element(
    "div",
    { class: "mha-map" },
    title,
    element("p", { class: "mha-about" }, about),
    element("div", { class: "mha-axes" }, rowsName, grid),
  );
  /** @type {HTMLElement[][]} [row][column] */
  let cells = [];
  /** @type {HTMLElement[]} */
  let columnLabels = [];
  /** @type {HTMLElement[]} */
  let rowLabels = [];
  let current = [0, 0];
  let pointed = /** @type {number[] | null} */ (null);

  const placeOf = (/** @type {any} */ target) => {
    const cell = target.closest?.("[data-value]");
    return cell ? [Number(cell.dataset.row), Number(cell.dataset.column)] : null;
  };
  frame.listen(grid, "pointerover", (event) => {
    pointed = placeOf(event.target);
    showReadout();
  });
  frame.listen(grid, "pointerleave", () => {
    pointed = null;
    showReadout();
  });
  frame.listen(grid, "focusin", (event) => {
    const place = placeOf(event.target);
    if (place) moveTo(place);
  });
  frame.listen(grid, "focusout", () => showReadout());
  frame.listen(grid, "keydown", (event) => {
    const [row, column] = current;
    const targets = {
      ArrowUp: [row - 1, column],
      ArrowDown: [row + 1, column],
      ArrowLeft: [row, column - 1],
      ArrowRight: [row, column + 1],
      Home: [row, 0],
      End: [row, cells[0].length - 1],
    };
    const target = targets[event.key];
    if (!target) return;
    event.preventDefault();
    cells[target[0]]?.[target[1]]?.focus();
  });

  /** @param {number[]} place */
  function moveTo([row, column]) {
    cells[current[0]]?.[current[1]]?.setAttribute("tabindex", "-1");
    current = [row, column];
    cells[row][column].setAttribute("tabindex", "0");
    showReadout();
  }

  function showReadout() {
    const focused = grid.contains(grid.getRootNode().activeElement) ? current : null;
    const place = pointed ?? focused;
    rowLabels.forEach((label, row) => label.classList.toggle("mha-now", place?.[0] === row));
    columnLabels.forEach((label, column) => label.classList.toggle("mha-now", place?.[1] === column));
    readout.classList.toggle("mha-hint", !place);
    readout.textContent = place
      ? cells[place[0]][place[1]].getAttribute("aria-label")
      : "Point at a cell, or walk through the map with the arrow keys, to read its number.";
  }

  /**
   * @param {string[]} tokens
   * @param {string[]} columnNames
   * @param {boolean} isOutput
   */
  function rebuild(tokens, columnNames, isOutput) {
    // Where columns are many and only numbered, some of the numbers will do.
    const step = isOutput ? Math.ceil(columnNames.length / 8) : 1;
    columnLabels = columnNames.map((text, column) =>
      element("span", { role: "columnheader", "aria-label": text, text: column % step === 0 ? text : "" }),
    );
    rowLabels = tokens.map((text) => element("span", { role: "rowheader", text }));
    cells = tokens.map((_, row) =>
      columnNames.map((_, column) =>
        element("span", { role: "gridcell", tabindex: -1, "data-row": row, "data-column": column }),
      ),
    );
    const corner = element("span", { role: "columnheader", "aria-label": "query" });
    grid.style.setProperty("--columns", String(columnNames.length));
    grid.replaceChildren(
      columnsName,
      element("div", { role: "row" }, corner, ...columnLabels),
      ...cells.map((row, index) => element("div", { role: "row" }, rowLabels[index], ...row)),
    );
    current = [Math.min(current[0], tokens.length - 1), Math.min(current[1], columnNames.length - 1)];
    cells[current[0]][current[1]].setAttribute("tabindex", "0");
    pointed = null;
  }

  let built = "";
  /**
   * @param {ReturnType<typeof readState>} state
   * @param {import("./attention_math.js").Matrix} matrix
   * @param {import("./attention_math.js").Mask} mask
   * @param {{low: number, high: number}} range
   */
  function draw({ example, validLen, stage, head }, matrix, mask, { low, high }) {
    const { tokens } = example;
    const { noun, about: aboutStage } = STAGES[stage];
    const isOutput = stage === "output";
    const first = head * matrix[0].length;
    const columnNames = isOutput ? Array.from(matrix[0], (_, column) => String(first + column)) : tokens;
    const key = JSON.stringify([tokens, columnNames, isOutput]);
    if (key !== built) rebuild(tokens, columnNames, isOutput);
    built = key;

    title.textContent = `Head ${head}: ${noun}s`;
    title.style.setProperty("--head", headColor(head));
    about.textContent = aboutStage;
    columnsName.textContent = isOutput ? "numbers of the output" : "keys";
    node.classList.toggle("mha-of-values", isOutput);
    node.classList.toggle("mha-tall-labels", !isOutput && tokens.some((text) => text.length > 2));
    const columnsKind = isOutput ? "the head's output numbers" : "keys";
    grid.setAttribute("aria-label", `${noun}s of head ${head}: queries in rows, ${columnsKind} in columns`);

    const repeated = new Set(tokens).size < tokens.length;
    const quoted = (/** @type {number} */ index) => `'${tokens[index]}'${repeated ? ` at ${index}` : ""}`;
    matrix.forEach((row, y) =>
      row.forEach((number, x) => {
        const cell = cells[y][x];
        const hidden = !isOutput && stage !== "scores" && !mask[y][x];
        const value = formatNumber(number);
        const reason = hidden ? `, hidden by the ${x >= validLen ? "padding" : "causal"} mask` : "";
        const target = isOutput ? `number ${first + x} of the output` : `key ${quoted(x)}`;
        cell.dataset.value = String(number);
        cell.setAttribute("aria-label", `query ${quoted(y)} → ${target}: ${value}${reason}`);
        cell.classList.toggle("mha-hidden", hidden);
        const color = viridis((number - low) / (high - low)).join(" ");
        cell.style.backgroundColor = Number.isFinite(number) ? `rgb(${color})` : "transparent";
      }),
    );
    showReadout();
  }
  return { node, readout, draw };
}

function buildColorBar() {
  const [low, middle, high] = [0, 1, 2].map(() => element("span"));
  const scale = element("div", { class: "mha-scale" });
  scale.style.background = viridisGradient();
  const name = element("span", { class: "mha-hint" });
  const node = element(
    "div",
    { class: "mha-bar" },
    name,
    element("div", {}, scale, element("div", { class: "mha-bar-ends" }, low, middle, high)),
  );
  /**
   * @param {{low: number, high: number}} range
   * @param {{noun: string}} stage
   */
  function draw(range, { noun }) {
    name.textContent = noun;
    low.textContent = formatNumber(range.low, 2);
    middle.textContent = formatNumber((range.low + range.high) / 2, 2);
    high.textContent = formatNumber(range.high, 2);
  }
  return { node, draw };
}

export default {
  /** @param {{model: import("./frame.js").Model, el: HTMLElement}} view */
  render: (view) => mount(view, { name: "head-explorer", label: "Head explorer", traits: TRAITS }, build),
};
