// Switch heads of a trained model off, and see what it still gets right: all of it computed here, from the weights.

import {
  attentionPooling,
  bytesFromBase64,
  matrixFromFloat32,
  multiHeadSteps,
  scaledDotProductScore,
  splitHeads,
  validLenMask,
  zeroMatrix,
} from "./attention_math.js";
import { element, formatNumber, mark, mount } from "./frame.js";
import { colorBar, numberMap } from "./number_map.js";
import { bars, slider } from "./parts.js";

const LAB_SETTINGS = ["num_heads", "gates", "sample"];
const LAB_ALL_SUBSETS = 4; // up to so many heads the table holds all subsets
const LAB_COLORS = 8; // as many as the style sheet has

/** @typedef {import("./attention_math.js").Matrix} Matrix */

/**
 * @typedef {object} StoredModel
 * @property {number} num_heads
 * @property {number} embed_dim
 * @property {Object<string, string>} weights by the names of torch, float32 in base64
 */

/**
 * @typedef {object} StoredBatch
 * @property {number} samples
 * @property {number} length
 * @property {string[]} tasks
 * @property {string} tokens bytes in base64, samples times length
 * @property {string} targets bytes in base64, samples times length times tasks
 */

/**
 * x · weightᵀ + bias, as nn.Linear does it.
 * @param {Matrix} x
 * @param {Matrix} weight (out, in)
 * @param {Float64Array} [bias]
 * @returns {Matrix}
 */
function linearRows(x, weight, bias) {
  const result = zeroMatrix(x.length, weight.length);
  for (let y = 0; y < x.length; y += 1) {
    const [row, own] = [x[y], result[y]];
    for (let out = 0; out < own.length; out += 1) {
      const column = weight[out];
      let sum = bias ? bias[out] : 0;
      for (let i = 0; i < row.length; i += 1) sum += row[i] * column[i];
      own[out] = sum;
    }
  }
  return result;
}

/** @param {Float64Array} a @param {Float64Array} b */
function addRows(a, b) {
  const sum = a.slice();
  for (let i = 0; i < sum.length; i += 1) sum[i] += b[i];
  return sum;
}

/**
 * All that does not depend on the gates: what each head adds to each logit. The logits with some heads off are then
 * sums, as the output of the layer is a sum over heads.
 * @param {StoredModel} stored
 * @param {StoredBatch} batch
 */
function prepareModel({ num_heads: numHeads, embed_dim: embedDim, weights: stored }, batch) {
  const { samples, length, tasks } = batch;
  /** @param {string} name @param {number} [columns] */
  const matrix = (name, columns = embedDim) => matrixFromFloat32(stored[name], columns);
  const vector = (/** @type {string} */ name) =>
    stored[name] === undefined ? undefined : matrixFromFloat32(stored[name], 1).map(([number]) => number);
  const biasOf = (/** @type {string} */ name) => {
    const numbers = vector(`${name}.bias`);
    return numbers && Float64Array.from(numbers);
  };
  const tokens = bytesFromBase64(batch.tokens);
  const targets = bytesFromBase64(batch.targets);
  const embedding = matrix("embedding");
  const positions = matrix("positions");
  // A projection of token + position is the sum of their projections.
  const tables = ["q_proj", "k_proj", "v_proj"].map((name) => {
    const weight = matrix(`${name}.weight`);
    return { ofToken: linearRows(embedding, weight), ofPlace: linearRows(positions, weight, biasOf(name)) };
  });
  const mask = validLenMask(length, length, length);
  const steps = (/** @type {number} */ sample) => {
    const [query, key, value] = tables.map(({ ofToken, ofPlace }) =>
      ofPlace.map((row, place) => addRows(row, ofToken[tokens[sample * length + place]])),
    );
    return multiHeadSteps({ query, key, value }, numHeads, mask);
  };

  const outProj = matrix("out_proj.weight");
  const readOut = matrix("read_out.weight");
  const logitCount = readOut.length;
  const headDim = embedDim / numHeads;
  // read_out · out_proj, cut into the columns of each head: (logits, head_dim).
  const turned = outProj[0] ? Array.from(outProj[0], (_, column) => Float64Array.from(outProj, (row) => row[column])) : [];
  const joined = linearRows(readOut, turned);
  const ofHead = Array.from({ length: numHeads }, (_, head) =>
    joined.map((row) => row.slice(head * headDim, (head + 1) * headDim)),
  );
  const outBias = biasOf("out_proj");
  const readBias = biasOf("read_out") ?? new Float64Array(logitCount);
  const base = outBias ? addRows(linearRows([outBias], readOut)[0], readBias) : readBias;
  // A token at a place is one of few inputs: what each pair of them scores, and what each adds to the logits where it is
  // all that a head looks at, is computed once for the whole batch.
  const [queries, keys, values] = tables.map(({ ofToken, ofPlace }) =>
    splitHeads(ofToken.flatMap((tokenRow) => ofPlace.map((placeRow) => addRows(placeRow, tokenRow))), numHeads),
  );
  const scores = queries.map((query, head) => scaledDotProductScore(query, keys[head]));
  const parts = values.map((value, head) => linearRows(value, ofHead[head]));
  const added = ofHead.map(() => new Float64Array(samples * length * logitCount));
  const seen = zeroMatrix(length, length);
  for (let sample = 0; sample < samples; sample += 1) {
    const inputs = Array.from({ length }, (_, place) => tokens[sample * length + place] * length + place);
    added.forEach((all, head) => {
      for (let q = 0; q < length; q += 1) {
        const row = scores[head][inputs[q]];
        for (let k = 0; k < length; k += 1) seen[q][k] = row[inputs[k]];
      }
      const { output } = attentionPooling(seen, inputs.map((input) => parts[head][input]));
      output.forEach((row, place) => all.set(row, (sample * length + place) * logitCount));
    });
  }
  return { numHeads, samples, length, tasks, tokens, targets, steps, base, added, classes: logitCount / tasks.length };
}

/** @typedef {ReturnType<typeof prepareModel>} LabModel */

/**
 * The answers of some places of the batch with the heads gated, tasks side by side.
 * @param {LabModel} model
 * @param {readonly number[]} gates
 * @param {number} [first]
 * @param {number} [count]
 */
function gatedAnswers({ base, added, classes, tasks, samples, length }, gates, first = 0, count = samples * length) {
  const width = base.length;
  const answers = new Uint8Array(count * tasks.length);
  const logits = new Float64Array(width);
  for (let place = 0; place < count; place += 1) {
    logits.set(base);
    for (let head = 0; head < gates.length; head += 1) {
      if (gates[head] === 0) continue;
      const offset = (first + place) * width;
      for (let i = 0; i < width; i += 1) logits[i] += gates[head] * added[head][offset + i];
    }
    for (let task = 0; task < tasks.length; task += 1) {
      let best = task * classes;
      for (let i = best + 1; i < (task + 1) * classes; i += 1) if (logits[i] > logits[best]) best = i;
      answers[place * tasks.length + task] = best - task * classes;
    }
  }
  return answers;
}

/**
 * Share of right answers: of each task, and of places where all tasks are right.
 * @param {LabModel} model
 * @param {readonly number[]} gates
 */
function gatedAccuracy(model, gates) {
  const { targets, tasks, samples, length } = model;
  const answers = gatedAnswers(model, gates);
  const right = new Array(tasks.length + 1).fill(0);
  for (let place = 0; place < samples * length; place += 1) {
    let all = 1;
    for (let task = 0; task < tasks.length; task += 1) {
      const isRight = answers[place * tasks.length + task] === targets[place * tasks.length + task] ? 1 : 0;
      right[task] += isRight;
      all *= isRight;
    }
    right[tasks.length] += all;
  }
  return Float64Array.from(right, (count) => count / (samples * length));
}

/**
 * The rows of the table: all subsets of few heads, smallest first; of many heads none and each single one.
 * @param {number} numHeads
 * @returns {number[][]} the heads that are off
 */
function ablationSubsets(numHeads) {
  const most = numHeads <= LAB_ALL_SUBSETS ? numHeads : 1;
  /** @type {number[][]} */
  let latest = [[]];
  const all = [...latest];
  for (let size = 1; size <= most; size += 1) {
    latest = latest.flatMap((off) =>
      Array.from({ length: numHeads }, (_, head) => head)
        .filter((head) => off.length === 0 || head > off[off.length - 1])
        .map((head) => [...off, head]),
    );
    all.push(...latest);
  }
  return all;
}

/** @param {number} numHeads @param {readonly number[]} off */
function gatesWithout(numHeads, off) {
  return Array.from({ length: numHeads }, (_, head) => (off.includes(head) ? 0 : 1));
}

/** @param {import("./frame.js").Frame} frame */
function readLab(frame) {
  /** @type {StoredModel[]} */
  const models = frame.get("models");
  /** @type {StoredBatch} */
  const batch = frame.get("batch");
  const counts = models.map((model) => model.num_heads);
  const numHeads = frame.whole("num_heads", 1, 8);
  const stored = models.find((model) => model.num_heads === numHeads);
  if (!stored) throw new RangeError(`num_heads must be one of ${counts.join(", ")}, got ${numHeads}`);
  const gates = frame.reals("gates", 0, 1, numHeads);
  if (gates.some((gate) => gate !== 0 && gate !== 1)) throw new RangeError(`gates must be 0 or 1 each, got ${gates.join(", ")}`);
  return { stored, batch, counts, numHeads, gates, sample: frame.whole("sample", 0, batch.samples - 1) };
}

/** @param {readonly number[]} gates */
function headsOff(gates) {
  return gates.flatMap((gate, head) => (gate === 0 ? [head] : []));
}

/** @param {import("./frame.js").Frame} frame */
function build(frame) {
  const heads = slider(frame, "num_heads", (value) => frame.set({ num_heads: value, gates: gatesWithout(value, []) }));
  const sample = slider(frame, "sample", (value) => frame.set({ sample: value }));
  const allOn = element("button", { type: "button", text: "All heads on" });
  frame.listen(allOn, "click", () => frame.set({ gates: gatesWithout(frame.get("num_heads"), []) }));
  const cards = element("div", { class: "mha-heads" });
  /** @type {{node: HTMLElement, input: HTMLInputElement, state: HTMLElement, map: ReturnType<typeof numberMap>}[]} */
  const made = [];
  frame.listen(cards, "change", (event) => {
    const head = made.findIndex(({ input }) => input === event.target);
    const gates = [...frame.get("gates")];
    gates[head] = event.target.checked ? 1 : 0;
    frame.set({ gates });
  });
  const scale = colorBar();
  const shares = bars("accuracy", "muted");
  const guessing = element("p", { class: "mha-hint" });
  const answers = element("div", { class: "mha-answers", role: "table", "aria-label": "Answers for this sequence" });
  const subsetTitle = element("p", { class: "mha-title" });
  const subsets = numberMap(frame, {
    name: "subsets",
    rows: "heads off",
    columns: "share of right answers",
    hint: "Click a row, or press Space on it, to switch just these heads off.",
    onPick: (row) => {
      const { numHeads } = readLab(frame);
      frame.set({ gates: gatesWithout(numHeads, ablationSubsets(numHeads)[row]) });
    },
  });
  subsets.node.classList.add("mha-subsets");
  frame.body.append(
    element("div", { class: "mha-controls" }, heads.node, sample.node),
    element("fieldset", {}, element("legend", { text: "Heads: switch them off, and their outputs become 0" }), cards),
    element("div", { class: "mha-below" }, allOn, scale.node),
    element(
      "div",
      { class: "mha-panes" },
      element(
        "div",
        {},
        element("p", { class: "mha-title", text: "Right on the test batch" }),
        shares.node,
        guessing,
        element("p", { class: "mha-title", text: "Answers for this sequence" }),
        answers,
      ),
      element("div", {}, subsetTitle, subsets.node),
    ),
  );

  let prepared = /** @type {{stored: StoredModel, batch: StoredBatch, model: LabModel, table: Float64Array[]} | null} */ (null);
  let mapsDrawn = "";
  let news = "";

  /** @param {ReturnType<typeof readLab>} state */
  function modelOf({ stored, batch, numHeads }) {
    if (prepared?.stored !== stored || prepared.batch !== batch) {
      const model = prepareModel(stored, batch);
      const table = ablationSubsets(numHeads).map((off) => gatedAccuracy(model, gatesWithout(numHeads, off)));
      prepared = { stored, batch, model, table };
      mapsDrawn = "";
    }
    return prepared;
  }

  /** @param {number} count */
  function makeCards(count) {
    while (made.length > count) made.pop()?.node.remove();
    while (made.length < count) {
      const head = made.length;
      const input = element("input", { type: "checkbox" });
      const state = element("span", { class: "mha-hint", "aria-hidden": "true" });
      const map = numberMap(frame, { name: "maps", rows: "queries", columns: "keys", hint: "" });
      const label = element("label", { class: "mha-switch" }, input, element("span", { text: `head ${head}` }), state);
      const node = element("div", { class: "mha-head" }, label, map.node);
      node.style.setProperty("--head", `var(--mha-head-${head % LAB_COLORS})`);
      made.push({ node, input, state, map });
      cards.append(node);
    }
  }

  return () => {
    const state = readLab(frame);
    const { batch, numHeads, gates, counts } = state;
    const { model, table } = modelOf(state);
    const { length, tasks } = batch;
    const first = state.sample * length;
    const sequence = Array.from(model.tokens.subarray(first, first + length), String);
    heads.draw(numHeads, { stops: counts });
    heads.node.hidden = counts.length === 1;
    sample.draw(state.sample, { low: 0, high: batch.samples - 1, said: `sequence ${state.sample} of 0 to ${batch.samples - 1}` });
    makeCards(numHeads);
    const { weights } = model.steps(state.sample);
    made.forEach(({ node, input, state: shown, map }, head) => {
      input.checked = gates[head] === 1;
      node.classList.toggle("mha-off", gates[head] === 0);
      shown.textContent = gates[head] === 0 ? "off" : "on";
      if (mapsDrawn === String(state.sample)) return;
      map.draw({
        label: `Weights of head ${head}: queries in rows, keys in columns`,
        rowLabels: sequence,
        columnLabels: sequence,
        numbers: weights[head],
        extent: { low: 0, high: 1 },
        describe: (q, k, number) => `place ${q} → place ${k}: ${number}`,
      });
    });
    mapsDrawn = String(state.sample);
    scale.draw({ low: 0, high: 1 }, "weight");

    const accuracy = gatedAccuracy(model, gates);
    const names = [...tasks, "all at once"];
    shares.draw(names, accuracy, { digits: 3 });
    guessing.textContent = `Guessing one of ${model.classes} is right in ${formatNumber(1 / model.classes, 3)}.`;
    const answered = gatedAnswers(model, gates, first, length);
    drawAnswers(answers, model, sequence, answered, first);

    const off = headsOff(gates);
    const rows = ablationSubsets(numHeads);
    subsetTitle.textContent = numHeads <= LAB_ALL_SUBSETS ? `All ${rows.length} subsets of heads` : "Without one head";
    subsets.draw({
      label: "Share of right answers: heads that are off in rows, tasks in columns",
      rowLabels: rows.map((row) => row.join(", ") || "none"),
      columnLabels: names,
      numbers: table,
      extent: { low: 0, high: 1 },
      digits: 2,
      areNumbers: true,
      describe: (row, column, number) => `off: ${rows[row].join(", ") || "none"}; ${names[column]} right: ${number}`,
    });
    subsets.node.querySelectorAll("[role=rowheader]").forEach((/** @type {HTMLElement} */ header, /** @type {number} */ row) => {
      header.classList.toggle("mha-current", String(rows[row]) === String(off));
    });

    const told = `${off.length ? `Off: head ${off.join(", ")}.` : "All heads on."} Right: ${names.map((name, index) => `${name} ${formatNumber(accuracy[index], 2)}`).join(", ")}.`;
    if (news && news !== told) frame.say(told);
    news = told;
    frame.report(() => ({
      accuracy,
      subsets: table,
      answers: tasks.map((_, task) => Array.from({ length }, (_, place) => answered[place * tasks.length + task])),
      maps: weights,
    }));
  };
}

/**
 * A row a task: what the model answers at each place, and what is wanted where that is wrong.
 * @param {HTMLElement} node
 * @param {LabModel} model
 * @param {string[]} sequence
 * @param {Uint8Array} answered
 * @param {number} first place in the batch
 */
function drawAnswers(node, { tasks, length, targets }, sequence, answered, first) {
  if (node.children.length === 0) {
    const row = (/** @type {string} */ name) =>
      element(
        "div",
        { role: "row" },
        element("span", { role: "rowheader", text: name }),
        ...Array.from({ length }, () => element("span", { role: "cell" })),
      );
    node.style.setProperty("--columns", String(length));
    node.append(row("token"), ...tasks.map(row));
  }
  const cellsOf = (/** @type {number} */ row) => /** @type {any[]} */ (Array.from(node.children[row].children)).slice(1);
  cellsOf(0).forEach((cell, place) => (cell.textContent = sequence[place]));
  tasks.forEach((task, index) =>
    cellsOf(index + 1).forEach((cell, place) => {
      const answer = answered[place * tasks.length + index];
      const target = targets[(first + place) * tasks.length + index];
      mark(cell, "answers", answer);
      cell.replaceChildren(String(answer), ...(answer === target ? [] : [element("small", { text: `✗ ${target}` })]));
      cell.classList.toggle("mha-missed", answer !== target);
      cell.title = answer === target ? `${task}: right` : `${task}: wanted ${target}`;
    }),
  );
}

/** @param {import("./frame.js").Frame} frame */
function labPython(frame) {
  const { stored, batch, numHeads, gates, sample } = readLab(frame);
  const { samples, length, tasks } = batch;
  const { embed_dim: embedDim, weights } = stored;
  const hasBias = weights["q_proj.bias"] !== undefined;
  const readBias = weights["read_out.bias"] !== undefined;
  const lines = Object.entries(weights).map(([name, base64]) => `    "${name}": "${base64}",\n`);
  const list = (/** @type {readonly number[]} */ numbers) => `[${numbers.join(", ")}]`;
  return `from base64 import b64decode

import torch

from mha_lib import MultiHeadAttention, capture_attention, gate_heads

# The trained weights, float32, and the test batch, one byte a token, as the page stores them.
weights = {
${lines.join("")}}
tokens = "${batch.tokens}"
targets = "${batch.targets}"


def stored(text, *shape, dtype=torch.uint8):
    return torch.frombuffer(bytearray(b64decode(text)), dtype=dtype).view(shape)


def parameter(name, *shape):
    return stored(weights[name], *shape, dtype=torch.float32).double()


tokens = stored(tokens, ${samples}, ${length}).long()
targets = stored(targets, ${samples}, ${length}, ${tasks.length}).long()
x = parameter("embedding", -1, ${embedDim})[tokens] + parameter("positions", ${length}, ${embedDim})
attention = MultiHeadAttention(${embedDim}, ${numHeads}, bias=${hasBias ? "True" : "False"}).double()
attention.load_state_dict({n: parameter(n, *p.shape) for n, p in attention.named_parameters()})
read_out = parameter("read_out.weight", -1, ${embedDim})
read_out_bias = ${readBias ? 'parameter("read_out.bias", -1)' : "0.0"}


def answer(gates):
    """The answers with some heads off, (samples, len, tasks)."""
    with gate_heads(attention, torch.tensor(gates, dtype=torch.float64)), torch.no_grad():
        logits = attention(x, x, x)[0] @ read_out.T + read_out_bias
    return logits.unflatten(-1, (${tasks.length}, -1)).argmax(-1)


def share_right(gates):
    """Of ${tasks.join(", of ")}, and of all at once."""
    right = answer(gates) == targets
    return torch.cat((right.double().mean((0, 1)), right.all(-1).double().mean()[None]))


gates = ${list(gates)}
accuracy = share_right(gates)
answers = answer(gates)[${sample}].T
subsets = torch.stack([
${ablationSubsets(numHeads)
  .map((off) => `    share_right(${list(gatesWithout(numHeads, off))}),\n`)
  .join("")}])
with capture_attention(attention) as captured, torch.no_grad():
    attention(*[x[${sample} : ${sample + 1}]] * 3)
maps = captured[""][0]
print(accuracy)
`;
}

export default {
  /** @param {{model: import("./frame.js").Model, el: HTMLElement}} view */
  render: (view) =>
    mount(
      view,
      { name: "ablation-lab", label: "Ablation lab", settings: LAB_SETTINGS, data: ["models", "batch"], python: labPython },
      build,
    ),
};
