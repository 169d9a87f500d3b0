// Lines of code to put in order: what a check says, what help does, where a line goes. No DOM.
//
// Lines are identified by index: first the correct lines, in a correct order, then the faulty ones.

/** @typedef {{text: string, indent: number, uses: string[], gives: string[]}} RightLine */
/** @typedef {{text: string, line: number, because: string}} FaultyLine `line` is the one that it replaces */
/** @typedef {{kind: "remove", line: number} | {kind: "join", size: number} | {kind: "indent" | "show"}} Step */

/**
 * @typedef {object} Content
 * @property {RightLine[]} lines
 * @property {FaultyLine[]} distractors
 * @property {number[][]} orders all accepted ones, that of the lines first
 * @property {number[]} shuffled
 * @property {Step[]} steps of help
 * @property {number} deepest indentation that a reader may give
 */

/**
 * What the reader has done; `lines` are pairs of an index and an indentation.
 * @typedef {{lines: [number, number][], failed: number, helped: number, solved: boolean}} Answer
 */

/** A unit that moves as one: a line, or lines that help has joined. @typedef {number[]} Item */

/** The number of failed checks after which help is offered. */
export const PATIENCE = 3;

/** @returns {Answer} */
export function emptyAnswer() {
  return { lines: [], failed: 0, helped: 0, solved: false };
}

/** @param {Content} content @param {any} answer @returns {boolean} whether it is an answer to this puzzle */
export function isAnswer({ lines, distractors, steps, deepest }, answer) {
  const isWhole = (/** @type {any} */ number, /** @type {number} */ high) =>
    Number.isInteger(number) && number >= 0 && number <= high;
  const isPair = (/** @type {any} */ pair) =>
    Array.isArray(pair) &&
    pair.length === 2 &&
    isWhole(pair[0], lines.length + distractors.length - 1) &&
    isWhole(pair[1], deepest);
  return (
    typeof answer === "object" &&
    Array.isArray(answer?.lines) &&
    answer.lines.every(isPair) &&
    new Set(answer.lines.map((/** @type {number[]} */ [index]) => index)).size === answer.lines.length &&
    isWhole(answer.failed, Infinity) &&
    isWhole(answer.helped, steps.length) &&
    typeof answer.solved === "boolean"
  );
}

/** @param {Content} content @param {number} index */
export function textOf({ lines, distractors }, index) {
  return index < lines.length ? lines[index].text : distractors[index - lines.length].text;
}

/** @param {Content} content @param {number} helped uses of help */
function helpSoFar({ steps, lines }, helped) {
  const used = steps.slice(0, helped);
  const removed = new Set(used.map((step) => (step.kind === "remove" ? step.line : -1)));
  const size = used.reduce((most, step) => (step.kind === "join" ? step.size : most), 1);
  const isShown = used.some((step) => step.kind === "show");
  // Once lines are joined, there is nothing left to indent, even in code without any indentation.
  const isIndented = size > 1 || isShown || used.some((step) => step.kind === "indent");
  return { removed, size, isIndented, isShown, count: lines.length };
}

/**
 * @param {Content} content @param {number} helped uses of help
 * @returns {boolean} whether help has set the indentation
 */
export function isIndentationSet(content, helped) {
  return helpSoFar(content, helped).isIndented;
}

/**
 * The lines that move together with a line.
 * @param {Content} content @param {number} helped uses of help
 * @param {number} index @returns {Item}
 */
function itemOf(content, helped, index) {
  const { size, count } = helpSoFar(content, helped);
  if (index >= count) return [index];
  const first = index - (index % size);
  return Array.from({ length: Math.min(size, count - first) }, (_, place) => first + place);
}

/**
 * The items of the solution, and those that are not used yet, in their shuffled order.
 * @param {Content} content @param {Answer} answer @returns {{solution: Item[], source: Item[]}}
 */
export function itemsOf(content, { lines, helped }) {
  const { removed } = helpSoFar(content, helped);
  const collect = (/** @type {number[]} */ indices) => {
    /** @type {Item[]} */
    const items = [];
    const seen = new Set();
    for (const index of indices) {
      if (seen.has(index)) continue;
      const item = itemOf(content, helped, index);
      item.forEach((each) => seen.add(each));
      items.push(item);
    }
    return items;
  };
  const used = new Set(lines.map(([index]) => index));
  return {
    solution: collect(lines.map(([index]) => index)),
    source: collect(content.shuffled.filter((index) => !used.has(index) && !removed.has(index))),
  };
}

/**
 * The answer after everything that help has done: lines removed, indented, joined, or all put in the correct order.
 * @param {Content} content @param {Answer} answer @returns {Answer}
 */
export function tidy(content, answer) {
  const { removed, isIndented, isShown } = helpSoFar(content, answer.helped);
  const kept = answer.lines.filter(([index]) => !removed.has(index));
  const depths = new Map(kept);
  const depthOf = (/** @type {number} */ index) =>
    isIndented ? (content.lines[index]?.indent ?? 0) : (depths.get(index) ?? 0);
  const order = isShown
    ? content.orders[0]
    : itemsOf(content, { ...answer, lines: kept }).solution.flat();
  return { ...answer, lines: order.map((index) => [index, depthOf(index)]) };
}

/** @param {Content} content @param {Answer} answer @returns {Answer} after one more step of help */
export function helpOnce(content, answer) {
  return tidy(content, { ...answer, helped: Math.min(answer.helped + 1, content.steps.length), solved: false });
}

/**
 * A sentence on what a step of help did and, if it removed a line, why.
 * @param {Content} content @param {Step} step @param {boolean} [withReason]
 */
export function describeStep(content, step, withReason = true) {
  if (step.kind === "remove") {
    const { text, because } = content.distractors[step.line - content.lines.length];
    return withReason ? `Help took away \`${text}\`. ${because}` : `Help took away \`${text}\`.`;
  }
  if (step.kind === "indent") return "Help set the indentation: every line now has its own, wherever it stands.";
  if (step.kind === "join") return `Help joined lines into blocks of ${step.size}; the last one may be shorter.`;
  return "Help put all lines in their places: this is the solution.";
}

/**
 * Moves an item to a place in the solution. If help has not set the indentation, an item from the other list is
 * indented as an editor would do it: like the line above it, or one step more after a colon.
 * @param {Content} content @param {Answer} answer @param {Item} item
 * @param {number} place among the other items of the solution
 * @param {number | null} depth the new indentation of a single line; null leaves it
 * @returns {Answer}
 */
export function putAt(content, answer, item, place, depth = null) {
  const others = itemsOf(content, answer).solution.filter(([index]) => index !== item[0]);
  const before = others.slice(0, place).flat();
  const after = others.slice(place).flat();
  const depths = new Map(answer.lines);
  const above = before.at(-1);
  const asInAnEditor =
    above === undefined ? 0 : (depths.get(above) ?? 0) + Number(textOf(content, above).endsWith(":"));
  const own = depth ?? depths.get(item[0]) ?? asInAnEditor;
  depths.set(item[0], Math.max(0, Math.min(own, content.deepest)));
  const lines = [...before, ...item, ...after].map(
    (index) => /** @type {[number, number]} */ ([index, depths.get(index) ?? 0]),
  );
  return tidy(content, { ...answer, lines, solved: false });
}

/**
 * @param {Content} content @param {Answer} answer @param {Item} item
 * @returns {Answer} without the item in the solution
 */
export function takeOut(content, answer, item) {
  const lines = answer.lines.filter(([index]) => !item.includes(index));
  return tidy(content, { ...answer, lines, solved: false });
}

/**
 * The end of a sentence on why the line cannot follow the lines before it, or "".
 * @param {Content} content @param {number[]} before the indices of the lines above, a correct beginning
 * @param {number} index
 */
function faultOfOrder({ lines, orders }, before, index) {
  const begins = orders.filter((order) => before.every((each, place) => order[place] === each));
  if (begins.some((order) => order[before.length] === index)) return "";
  // In every correct continuation, these lines come before the line.
  const earlier = begins
    .map((order) => order.slice(before.length, order.indexOf(index)))
    .reduce((common, each) => common.filter((line) => each.includes(line)));
  const known = new Set(before.flatMap((line) => lines[line].gives));
  const missing = lines[index].uses.find(
    (name) => !known.has(name) && earlier.some((line) => lines[line].gives.includes(name)),
  );
  if (missing) return `uses \`${missing}\`, which no line above it defines.`;
  if (earlier.length === 0) return "cannot stand here yet.";
  return `comes too early: \`${lines[earlier[0]].text}\` belongs above it.`;
}

/**
 * The end of a sentence on the indentation of a line in its correct position, or "".
 * @param {Content} content @param {number[]} before @param {number} index
 * @param {number} depth its indentation
 */
function faultOfDepth({ lines }, before, index, depth) {
  const { indent } = lines[index];
  if (depth === indent) return "";
  const parent = before.filter((line) => lines[line].indent < indent).at(-1);
  if (parent === undefined) return "must not be indented, because it is part of no block.";
  const block = `\`${lines[parent].text}\``;
  return depth < indent
    ? `must be indented further: it belongs inside ${block}.`
    : `is indented too far: it belongs directly inside ${block}.`;
}

/**
 * Checks the lines from the top and describes the first one that is wrong.
 * @param {Content} content @param {Answer} answer
 * @returns {{isRight: boolean, place: number, text: string}} the place of this line, or -1
 */
export function judge(content, { lines }) {
  const before = [];
  for (const [place, [index, depth]] of lines.entries()) {
    const say = (/** @type {string} */ end) => {
      const text = `Line ${place + 1}, \`${textOf(content, index)}\`, ${end}`;
      return { isRight: false, place, text };
    };
    if (index >= content.lines.length) {
      const { because } = content.distractors[index - content.lines.length];
      return say(`has a fault. ${because}`);
    }
    const fault = faultOfOrder(content, before, index) || faultOfDepth(content, before, index, depth);
    if (fault) return say(fault);
    before.push(index);
  }
  const missing = content.lines.length - lines.length;
  if (missing === 0) return { isRight: true, place: -1, text: "Every line is in its place." };
  const rest = missing === 1 ? "one line is still missing" : `${missing} lines are still missing`;
  const text =
    lines.length === 0
      ? "The solution is empty: put lines into it first."
      : `What is there is right so far, but ${rest}.`;
  return { isRight: false, place: -1, text };
}

/**
 * The answer in the form that the browser stores: as texts, since indices would be wrong after the author changes a line.
 * @param {Content} content @param {Answer} answer
 */
export function toStored(content, answer) {
  return { ...answer, lines: answer.lines.map(([index, depth]) => [textOf(content, index), depth]) };
}

/** @param {Content} content @param {any} stored @returns {Answer | null} null if it answers a different puzzle */
export function fromStored(content, stored) {
  if (!Array.isArray(stored?.lines) || !stored.lines.every(Array.isArray)) return null;
  const texts = [...content.lines, ...content.distractors].map(({ text }) => text);
  const { failed, helped, solved } = stored;
  const lines = stored.lines.map((/** @type {any[]} */ [text, depth]) => [texts.indexOf(text), depth]);
  const answer = { lines, failed, helped, solved };
  if (!isAnswer(content, answer)) return null;
  const tidied = tidy(content, answer);
  return { ...tidied, solved: solved && judge(content, tidied).isRight };
}
