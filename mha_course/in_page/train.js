// "Train your layer": the loop of chapter 3 on the reader's own layer, in the page's Python, drawn while it runs.

import { element, setText, svgElement } from "../widgets/js/frame.js";
import { pixelCanvas } from "../widgets/js/pixel_canvas.js";

/**
 * @typedef {{both: number, row: number[], targets: number[][], answers: number[][], maps: number[][][]}} Learned
 * @typedef {{heads: number, first: number, losses: (number | null)[], learned?: Learned, done?: boolean, error?: string, gone?: true}} Said
 */

const STEPS = 300; // for each of the two models
const HIGHEST = 2.5; // a model that guesses has a loss of log 8 = 2.08
const [WIDTH, HEIGHT] = [300, 100];
const OF_COURSE = "You have not yet had a MyMultiHead of your own accepted on this site, so the course's layer learns here.";
const OF_READER = "This is your own MyMultiHead, as you wrote it and as it was accepted.";

/** @param {number} count */
const named = (count) => (count === 1 ? "One head" : "Two heads");

/** The curves of the loss, one for each number of heads. */
function buildCurves() {
  const lines = [1, 2].map((count) => svgElement("polyline", { class: `train-line train-${count}`, points: "" }));
  const svg = svgElement("svg", { viewBox: `0 0 ${WIDTH} ${HEIGHT}`, preserveAspectRatio: "none", role: "img" });
  svg.append(...lines);
  const legend = [1, 2].map((count) => element("span", { class: `train-${count}` }));
  const axis = `Loss from 0 (bottom) to ${HIGHEST} (top), by step from 1 (left) to ${STEPS} (right).`;
  const node = element("div", {}, element("div", { class: "train-plot" }, svg), element("p", {}, ...legend), element("p", { text: axis }));
  /** @type {(number | null)[][]} */
  let losses = [[], []];
  const draw = () => {
    losses.forEach((own, i) => {
      const points = own.flatMap((loss, step) => {
        const height = HEIGHT * (1 - Math.min(loss ?? HIGHEST, HIGHEST) / HIGHEST);
        return [`${((WIDTH * step) / (STEPS - 1)).toFixed(1)},${height.toFixed(1)}`];
      });
      lines[i].setAttribute("points", points.join(" "));
      const last = own.at(-1);
      const said = own.length === 0 ? "not yet" : `step ${own.length}, loss ${last == null ? "not a number" : last.toFixed(2)}`;
      setText(legend[i], `${named(i + 1)}: ${said}. `);
    });
    svg.setAttribute("aria-label", legend.map((each) => each.textContent).join(" "));
  };
  return {
    node,
    clear: () => ((losses = [[], []]), draw()),
    /** @param {Said} said */
    add: (said) => (losses[said.heads - 1].push(...said.losses), draw()),
  };
}

/** The answers to one row, and the maps of the heads. @param {number} heads @param {Learned} learned */
function describe(heads, { both, row, targets, answers, maps }) {
  const cells = (/** @type {string} */ name, /** @type {number[]} */ numbers, /** @type {number[]} */ right) =>
    element("tr", {}, element("th", { scope: "row", text: name }), ...numbers.map((n, i) =>
      element("td", n === right[i] ? { text: n } : { text: n, class: "train-wrong", "aria-label": `${n}, wrong` })));
  const table = element("table", {}, cells("tokens", row, row), cells("previous", answers[0], targets[0]), cells("mirrored", answers[1], targets[1]));
  const drawn = maps.map((map, head) => {
    const canvas = pixelCanvas();
    canvas.draw(map.map((row) => Float64Array.from(row)), { low: 0, high: 1 });
    canvas.node.removeAttribute("aria-hidden");
    canvas.node.setAttribute("role", "img");
    canvas.node.setAttribute("aria-label", `Mean attention weights of head ${head}, queries in rows, keys in columns`);
    return element("figure", {}, canvas.node, element("figcaption", { text: `head ${head}` }));
  });
  const share = `${Math.round(100 * both)}%`;
  const title = element("p", {}, element("strong", { text: `${named(heads)}: ` }), `both answers are correct at ${share} of 2,400 new positions.`);
  return element("div", { class: "train-learned" }, title, element("div", { class: "train-maps" }, ...drawn), element("div", { class: "train-table" }, table));
}

/**
 * @param {HTMLElement} cell below which the panel opens
 * @param {{request: (request: any) => Promise<any>}} interpreter
 * @param {() => Object<string, string>} acceptedPieces by name
 */
export function openTraining(cell, interpreter, acceptedPieces) {
  const seed = element("input", { type: "number", min: 0, max: 9999, step: 1, value: 0, "aria-label": "Seed" });
  const start = element("button", { type: "button", text: "Start", class: "write-here-main" });
  const stop = element("button", { type: "button", text: "Stop", disabled: true });
  const status = element("span", { role: "status" });
  const curves = buildCurves();
  const whose = element("p", { class: "train-whose" });
  const results = element("div", { class: "train-results", role: "log", "aria-label": "What was learned" });
  const note = element("p", { text: "Maps: mean attention weights, dark is 0 and yellow is 1. Incorrect answers are crossed out." });
  let run = 0; // each start has a number, so that a late reply to an earlier one is not drawn

  /** @param {string} [error] */
  const end = (error) => {
    run += 1;
    stop.disabled = true;
    setText(start, "Start again");
    if (error) results.append(element("pre", { class: "write-here-error", text: error }));
  };
  /** @param {any} first */
  const train = async (first) => {
    const mine = ++run;
    try {
      for (let asked = first; ; asked = null) {
        const said = /** @type {Said} */ (await interpreter.request({ train: asked }));
        if (mine !== run) return;
        if (said.gone) said.error = "Python was started again, and the training is gone. Start it again.";
        if (said.error) return (setText(status, ""), end(said.error));
        curves.add(said);
        setText(status, `Training with ${named(said.heads).toLowerCase()} …`);
        if (said.learned) results.append(describe(said.heads, said.learned));
        if (said.done) return (setText(status, "Trained."), end());
      }
    } catch (error) {
      if (mine === run) (setText(status, ""), end(/** @type {Error} */ (error).message));
    }
  };
  start.addEventListener("click", () => {
    const pieces = acceptedPieces();
    setText(whose, "MyMultiHead" in pieces ? OF_READER : OF_COURSE);
    curves.clear();
    results.replaceChildren();
    stop.disabled = false;
    setText(start, "Start again");
    setText(status, "Python is starting …");
    void train({ pieces, seed: Math.floor(Number(seed.value)) || 0, steps: STEPS });
  });
  stop.addEventListener("click", () => {
    setText(status, "Stopped.");
    end();
  });
  const bar = element("div", { class: "write-here-bar" }, start, stop, element("label", {}, "seed ", seed), status);
  cell.append(element("div", { class: "write-here train-layer", role: "group", "aria-label": "Train your layer" }, whose, bar, curves.node, note, results));
  start.click();
  start.focus();
}
