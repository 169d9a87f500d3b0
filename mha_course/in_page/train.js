// "Train your layer" and "Train your GPT": the loop of a chapter on the reader's own piece, in the page's Python,
// drawn while it runs.

import { element, inlineText, setText, svgElement } from "../widgets/shared/frame.js";
import { pixelCanvas } from "../widgets/shared/pixel_canvas.js";
import { recall, remember } from "../widgets/shared/store.js";
import { createChoice, sentenceOf } from "./texts.js";

/**
 * @typedef {{both: number, row: number[], targets: number[][], answers: number[][], maps: number[][][]}} Learned
 * @typedef {{step: number, text: string}} Written
 * @typedef {{losses: Object<number, number[]>, results: any[], used?: string, floor?: number, done?: boolean, error?: string, gone?: true}} Said
 * @typedef {import("./texts.js").Chosen} Chosen
 * @typedef {{chosen?: Chosen, chapterLoss: number}} Told what a result is compared with
 * @typedef {object} Task
 * @property {string} piece the reader's own, which learns
 * @property {string[]} arms names of the models that are trained one after the other
 * @property {number} steps for each of them
 * @property {number} highest loss that is drawn
 * @property {string} [floor] what the dotted line shows
 * @property {string} note
 * @property {true} [hasTexts] whether the reader chooses what it learns
 * @property {(add: (node: HTMLElement) => void, told: Told) => (result: any) => void} show makes what draws the results
 */

const [WIDTH, HEIGHT] = [300, 100];

/** @type {Object<string, Task>} */
const TASKS = {
  pointers: {
    piece: "MyMultiHead",
    arms: ["One head", "Two heads"],
    steps: 300,
    highest: 2.5, // a model that guesses has a loss of log 8 = 2.08
    note: "Maps: mean attention weights, dark is 0 and yellow is 1. Incorrect answers are crossed out.",
    show: (add) => (result) => add(describe(TASKS.pointers.arms[result.arm], result)),
  },
  gpt: {
    piece: "MyGPT",
    arms: ["Your GPT"],
    steps: 500,
    highest: 5, // unless the reader chooses a text of very many different characters
    hasTexts: true,
    floor: "a bigram, which only counts, on the held-out text",
    note: "What it wrote is kept in this browser until you train again.",
    show: showWritten,
  },
  dates: {
    piece: "MyEncoderBlock",
    arms: ["Your Transformer"],
    steps: 300,
    highest: 2.6, // a model that guesses has a loss of log 13 = 2.56
    note: "It answers three dates that training never shows. Incorrect answers are crossed out.",
    show: showAnswers,
  },
};

/** The curves of the loss, one for each model. @param {Task} task */
function buildCurves({ arms, steps, floor, ...task }) {
  let { highest } = task;
  const yOf = (/** @type {number} */ loss) => (HEIGHT * (1 - Math.min(loss, highest) / highest)).toFixed(1);
  const lines = arms.map((_, i) => svgElement("polyline", { class: `train-line train-${i + 1}`, points: "" }));
  const counted = svgElement("line", { class: "train-line train-floor", x1: 0, x2: WIDTH, y1: -9, y2: -9 });
  const svg = svgElement("svg", { viewBox: `0 0 ${WIDTH} ${HEIGHT}`, preserveAspectRatio: "none", role: "img" });
  svg.append(counted, ...lines);
  const legend = arms.map((_, i) => element("span", { class: `train-${i + 1}` }));
  const dotted = element("span");
  const axis = element("p");
  const node = element("div", {}, element("div", { class: "train-plot" }, svg), element("p", {}, ...legend, dotted), axis);
  /** @type {number[][]} */
  let losses = [];
  const draw = () => {
    losses.forEach((own, i) => {
      const points = own.map((loss, step) => `${((WIDTH * step) / (steps - 1)).toFixed(1)},${yOf(loss)}`);
      lines[i].setAttribute("points", points.join(" "));
      const last = own.at(-1);
      setText(legend[i], last === undefined ? `${arms[i]}: not yet. ` : `${arms[i]}: step ${own.length}, loss ${last.toFixed(2)}. `);
    });
    svg.setAttribute("aria-label", legend.map((each) => each.textContent).join(" "));
  };
  return {
    node,
    /** @param {number} [most] the largest loss that is drawn */
    clear(most) {
      highest = most ?? task.highest;
      setText(axis, `Loss from 0 (bottom) to ${highest} (top), by step from 1 (left) to ${steps} (right).`);
      for (const end of ["y1", "y2"]) counted.setAttribute(end, -9);
      setText(dotted, "");
      losses = arms.map(() => []);
      draw();
    },
    /** @param {Said} said */
    add(said) {
      for (const [arm, own] of Object.entries(said.losses)) losses[Number(arm)].push(...own);
      if (said.floor !== undefined) {
        for (const end of ["y1", "y2"]) counted.setAttribute(end, yOf(said.floor));
        setText(dotted, `Dotted: ${floor}, ${said.floor.toFixed(2)}.`);
      }
      draw();
    },
  };
}

/** The answers to one row, and the maps of the heads. @param {string} name @param {Learned} learned */
function describe(name, { both, row, targets, answers, maps }) {
  const cells = (/** @type {string} */ name, /** @type {number[]} */ numbers, /** @type {number[]} */ right) =>
    element("tr", {}, element("th", { scope: "row", text: name }), ...numbers.map((n, i) =>
      element("td", n === right[i] ? { text: n } : { text: n, class: "train-wrong", "aria-label": `${n}, wrong` })));
  const table = element("table", {}, cells(`tokens`, row, row), cells(`previous`, answers[0], targets[0]), cells(`mirrored`, answers[1], targets[1]));
  const drawn = maps.map((map, head) => {
    const canvas = pixelCanvas();
    canvas.draw(map.map((row) => Float64Array.from(row)), { low: 0, high: 1 });
    canvas.node.removeAttribute("aria-hidden");
    canvas.node.setAttribute("role", "img");
    canvas.node.setAttribute("aria-label", `Mean attention weights of head ${head}, queries in rows, keys in columns`);
    return element("figure", {}, canvas.node, element("figcaption", { text: `head ${head}` }));
  });
  const share = `${Math.round(100 * both)}%`;
  const title = element("p", {}, element("strong", { text: `${name}: ` }), `both answers are correct at ${share} of 2,400 new positions.`);
  return element("div", { class: "train-learned" }, title, element("div", { class: "train-maps" }, ...drawn), element("div", { class: "train-table" }, table));
}

/**
 * What a model writes at some steps of its training, and in the end its held-out loss.
 * @param {(node: HTMLElement) => void} add @param {Told} told
 */
function showWritten(add, { chosen, chapterLoss }) {
  /** @type {Object<number, HTMLElement>} */
  const texts = {};
  return (/** @type {any} */ { step, text, held_out: loss, floor }) => {
    if (loss !== undefined) {
      const [counted, stored] = [floor.toFixed(2), chapterLoss.toFixed(2)];
      const others = chosen?.name === "book" ? ` The bigram: ${counted}. The chapter's GPT, which is larger and was trained longer: ${stored}.`
        : ` The bigram, on the same text: ${counted}.`;
      return add(element("p", {}, element("strong", { text: `Held-out loss: ${loss.toFixed(2)}.` }), others));
    }
    if (!(step in texts)) {
      texts[step] = element("pre", { class: "train-text" });
      add(element("p", { text: whenOf(step) }));
      add(texts[step]);
    }
    texts[step].append(text);
  };
}

/** The answers to three dates at some steps, and in the end how many of all are right. @param {(node: HTMLElement) => void} add */
function showAnswers(add) {
  return (/** @type {any} */ { step, answers, right, of }) => {
    if (right !== undefined) {
      return add(element("p", {}, element("strong", { text: `${Math.round(100 * right)}%` }), ` of ${of} held-out dates are right.`));
    }
    const rows = answers.map((/** @type {string[]} */ [asked, day, answer]) => {
      const written = answer || `nothing`;
      return element("tr", {}, element("th", { scope: "row", text: asked }), element("td", answer === day ? { text: answer }
        : { text: answer || "(nothing)", class: "train-wrong", "aria-label": `${written}, wrong` }));
    });
    add(element("p", { text: whenOf(step) }));
    add(element("div", { class: "train-table" }, element("table", {}, ...rows)));
  };
}

/** @param {number} step */
const whenOf = (step) => (step === 0 ? "Before training:" : `After ${step} steps:`);

/**
 * @param {HTMLElement} cell below which the panel opens
 * @param {string} name of the task
 * @param {string} label of the button
 * @param {{request: (request: any) => Promise<any>, stop: () => void}} interpreter
 * @param {() => Object<string, string>} acceptedPieces by name
 * @param {{load: (name: string) => Promise<any>, chapterLoss: number}} book gives files of the build, and the held-out
 *   loss of the model that the chapter has stored
 */
export function openTraining(cell, name, label, interpreter, acceptedPieces, { load, chapterLoss }) {
  const task = TASKS[name];
  const seed = element("input", { type: "number", min: 0, max: 9999, step: 1, value: 0, "aria-label": "Seed" });
  const start = element("button", { type: "button", text: "Start", class: "write-here-main" });
  const stop = element("button", { type: "button", text: "Stop", disabled: true });
  const status = element("span", { role: "status" });
  const curves = buildCurves(task);
  const choice = task.hasTexts && createChoice(load);
  const whose = element("p", { class: "train-whose" });
  const results = element("div", { class: "train-results", role: "log", "aria-label": "What was learned" });
  let run = 0; // each start has a number, so that a late reply to an earlier one is not drawn
  const key = `trained/${name}`;
  /** All that this training has said, which is kept when it is over or stopped. @type {Said} */
  let story = { losses: {}, results: [] };
  let isOwn = false;
  /** What the model learns that is drawn, while the reader may already choose another text. @type {Chosen | undefined} */
  let chosen;
  /** @type {(result: any) => void} */
  let showResult;

  const clear = (/** @type {boolean} */ own, /** @type {Chosen | undefined} */ learned) => {
    [isOwn, chosen] = [own, learned];
    const told = `This is your own ${task.piece}, as you wrote it and as it was accepted.`;
    whose.replaceChildren(own ? told : `You have not yet had a ${task.piece} of your own accepted on this site, so the course's learns here.`);
    if (chosen) whose.append(" ", sentenceOf(chosen));
    curves.clear(chosen?.highest);
    results.replaceChildren();
    showResult = task.show((node) => results.append(node), { chosen, chapterLoss });
    story = { losses: {}, results: [] };
  };
  /** @param {Said} said */
  const draw = (said) => {
    curves.add(said);
    for (const result of said.results) showResult({ floor: said.floor ?? story.floor, ...result });
    if (said.used) whose.append(" ", ...inlineText(said.used));
    const losses = { ...story.losses };
    for (const [arm, own] of Object.entries(said.losses)) losses[Number(arm)] = [...(losses[Number(arm)] ?? []), ...own];
    story = { ...story, ...said, used: said.used || story.used, losses, results: [...story.results, ...said.results] };
  };
  const nameStart = () => {
    const isOther = choice && chosen && choice.chosen().name !== chosen.name;
    setText(start, isOther ? "Start with this text" : "Start again");
  };
  /** @param {string} [error] */
  const end = (error) => {
    run += 1;
    stop.disabled = true;
    nameStart();
    if (!error && story.results.length > 0) remember(key, { seed: seed.value, isOwn, chosen, story });
    if (error) results.append(element("pre", { class: "write-here-error", text: error }));
  };
  /** @param {Promise<any>} first */
  const train = async (first) => {
    const mine = ++run;
    try {
      for (let asked = await first; mine === run; asked = null) {
        const said = /** @type {Said} */ (await interpreter.request({ train: asked }));
        if (mine !== run) return;
        if (said.gone) said.error = "Python was started again, and the training is gone. Start it again.";
        if (said.error) return (setText(status, ""), end(said.error));
        draw(said);
        const arm = Math.max(0, ...Object.keys(said.losses).map(Number));
        const model = task.arms[arm].toLowerCase();
        setText(status, task.arms.length > 1 ? `Training with ${model} …` : "Training …");
        if (said.done) return (setText(status, "Trained."), end());
      }
    } catch (error) {
      if (mine === run) (setText(status, ""), end(/** @type {Error} */ (error).message));
    }
  };
  start.addEventListener("click", () => {
    const refusal = choice && choice.refuse();
    if (refusal) {
      if (!stop.disabled) end();
      return setText(status, refusal);
    }
    const pieces = acceptedPieces();
    clear(task.piece in pieces, choice ? choice.chosen() : undefined);
    stop.disabled = false;
    nameStart();
    setText(status, "Python is starting …");
    const asked = { task: name, pieces, seed: Math.floor(Number(seed.value)) || 0, steps: task.steps };
    void train(choice ? choice.request().then((text) => ({ ...asked, ...text })) : Promise.resolve(asked));
  });
  if (choice) choice.node.addEventListener("change", nameStart);
  stop.addEventListener("click", () => {
    setText(status, "Stopped.");
    end();
  });
  const bar = element("div", { class: "write-here-bar" }, start, stop, element("label", {}, "seed ", seed), status);
  const note = element("p", { text: task.note });
  cell.append(element("div", { class: "write-here train-layer", role: "group", "aria-label": label }, whose, choice ? choice.node : null, bar, curves.node, note, results));
  const kept = recall(key);
  if (kept?.story) {
    seed.value = kept.seed;
    clear(kept.isOwn, choice ? choice.restore(kept.chosen) : undefined);
    draw(kept.story);
    setText(status, "Kept from your last training.");
  } else start.click();
  start.focus();
}
