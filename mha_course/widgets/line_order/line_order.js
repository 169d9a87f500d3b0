// Lines of code to put in order by dragging, by keyboard, or with buttons. A check names the first mistake, help grows
// with each use, and the browser stores the answer.

import { countOf } from "../shared/format.js";
import { copyButton, element, focusedNear, inlineText, isShortcut, widget } from "../shared/frame.js";
import {
  PATIENCE,
  describeStep,
  emptyAnswer,
  fromStored,
  helpOnce,
  isAnswer,
  isIndentationSet,
  itemsOf,
  judge,
  putAt,
  takeOut,
  textOf,
  tidy,
  toStored,
} from "./order_math.js";
import { recall, remember } from "../shared/store.js";

/** @typedef {import("../shared/frame.js").Frame} Frame */
/** @typedef {import("./order_math.js").Answer} Answer */
/** @typedef {import("./order_math.js").Content} Content */
/** @typedef {import("./order_math.js").Item} Item */

/** Where an item is: whether it is in the solution, its position in its list, and its line and depths. */
/** @typedef {{item: Item, inSolution: boolean, place: number, line: number, total: number, depths: number[]}} Spot */

// The distance in pixels after which a click becomes a drag.
const DRAG_FROM = 6;

/**
 * Writes a text only if it has changed, because each write costs a new layout, even if the text is the same.
 * @param {HTMLElement} node @param {string} text
 */
function write(node, text) {
  if (node.textContent !== text) node.textContent = text;
}

/** @param {number} depth */
function depthWords(depth) {
  return ["not indented", "indented once", "indented twice"][depth] ?? `indented ${depth} times`;
}

/** @param {Spot} spot */
function describeSpot({ item, inSolution, place, line, total, depths }) {
  const { length } = item;
  if (!inSolution && length === 1) return `not used, ${place + 1} of ${total}`;
  if (!inSolution) return `block of ${length} lines, not used, ${place + 1} of ${total}`;
  const [last, indented] = [line + length, depthWords(depths[0])];
  if (length === 1) return `line ${last} of ${total}, ${indented}`;
  return `block of ${length} lines, lines ${line + 1} to ${last} of ${total}, ${indented}`;
}

/**
 * Where each item is, by the index of its first line.
 * @param {Content} content @param {Answer} answer @returns {Map<number, Spot>}
 */
function spotsOf(content, answer) {
  const { solution, source } = itemsOf(content, answer);
  const depths = new Map(answer.lines);
  const isSet = isIndentationSet(content, answer.helped);
  const depthOf = (/** @type {number} */ index) =>
    depths.get(index) ?? (isSet ? (content.lines[index]?.indent ?? 0) : 0);
  const spots = new Map();
  let line = 0;
  for (const [place, item] of solution.entries()) {
    const total = answer.lines.length;
    spots.set(item[0], { item, inSolution: true, place, line, total, depths: item.map(depthOf) });
    line += item.length;
  }
  for (const [place, item] of source.entries()) {
    const total = source.length;
    spots.set(item[0], { item, inSolution: false, place, line: 0, total, depths: item.map(depthOf) });
  }
  return spots;
}

/** The row of an item: a button with its lines of code. @param {Content} content @param {Item} item */
function itemRow(content, item) {
  const lines = item.map((index) => ({
    number: element("span", { class: "mha-number", "aria-hidden": "true" }),
    code: element("span", { class: "mha-text", text: textOf(content, index) }),
  }));
  const grip = element("span", { class: "mha-grip", "aria-hidden": "true" });
  // The text of the button is its name: first the position of the line, which is not visible, then the visible code.
  const spot = element("span", { class: "mha-unseen" });
  const texts = lines.map(({ number, code }, place) => {
    const between = place ? [element("span", { class: "mha-unseen", text: "; " })] : [];
    return element("span", { class: "mha-code-line" }, ...between, number, code);
  });
  const button = element("button", { type: "button", class: "mha-line" }, spot, grip, element("span", {}, ...texts));
  button.dataset.first = String(item[0]);
  const node = element("li", { class: "mha-item" }, button);

  /**
   * @param {Spot} where @param {boolean} isHeld
   * @param {number} fault the line that a check has found to be wrong, or 0
   */
  function draw(where, isHeld, fault) {
    const { line, inSolution, depths } = where;
    const isWrong = inSolution && fault > line && fault <= line + item.length;
    const said = isWrong ? `${describeSpot(where)}, stands wrong: ` : `${describeSpot(where)}: `;
    write(spot, said[0].toUpperCase() + said.slice(1));
    button.setAttribute("aria-pressed", String(isHeld));
    // A sign as well as a colour, for readers who cannot see the colour.
    write(grip, `${isWrong ? "✗" : ""}${isHeld ? "✥" : ""}` || "⠿");
    button.classList.toggle("mha-wrong-line", isWrong);
    lines.forEach(({ number, code: text }, place) => {
      write(number, inSolution ? String(line + place + 1) : "");
      text.style.setProperty("--depth", String(depths[place]));
    });
  }
  return { node, button, draw };
}

/** A list, in which an item keeps its row when it moves. @param {string} title @param {string} whenEmpty */
function itemList(title, whenEmpty) {
  const empty = element("p", { class: "mha-hint", text: whenEmpty });
  const list = element("ol", { class: "mha-items", role: "list", "aria-label": title });
  const node = element("div", { class: "mha-side" }, element("p", { class: "mha-title", text: title }), list, empty);

  /** @param {HTMLElement[]} rows */
  function draw(rows) {
    rows.forEach((row, place) => {
      if (list.children[place] !== row) list.insertBefore(row, list.children[place] ?? null);
    });
    while (list.children.length > rows.length) list.lastElementChild.remove();
    empty.hidden = rows.length > 0;
  }
  return { node, list, draw };
}

/** The buttons that move the line that the reader has picked up. @param {Frame} frame @param {Moves} moves */
function moveButtons(frame, moves) {
  const make = (/** @type {string} */ text, /** @type {string} */ label, /** @type {() => void} */ act) => {
    const button = element("button", { type: "button", text, "aria-label": label });
    frame.listen(button, "click", act);
    return button;
  };
  const add = make("Add", "Add to the solution", moves.add);
  const others = [
    make("Remove", "Remove from the solution", moves.remove),
    make("↑", "Move up", () => moves.shift(-1)),
    make("↓", "Move down", () => moves.shift(1)),
    make("←", "Indent less", () => moves.indent(-1)),
    make("→", "Indent more", () => moves.indent(1)),
  ];
  const node = element("div", { class: "mha-moves", role: "group", "aria-label": "Move the picked line" }, add, ...others);

  /** @param {Spot | undefined} spot of the picked line */
  function draw(spot) {
    // `disabled` would take the focus from the button that the reader has just pressed.
    add.setAttribute("aria-disabled", String(!spot || spot.inSolution));
    for (const button of others) button.setAttribute("aria-disabled", String(!spot?.inSolution));
  }
  return { node, draw };
}

/**
 * The end of the puzzle: the code, which can be copied, and what each faulty line would have done.
 * @param {Frame} frame @param {Content} content
 */
function ending(frame, content) {
  const title = element("p", { class: "mha-title" });
  const code = element("code");
  const scroller = { class: "mha-code", tabindex: 0, role: "group", "aria-label": "Python code" };
  const copy = copyButton(frame, code);
  const reasons = content.distractors.map(({ text, because }) =>
    element("li", {}, element("code", { text }), ": ", ...inlineText(because)),
  );
  const why = element("p", { text: "What the other lines would have done:", hidden: reasons.length === 0 });
  const list = element("ul", { "aria-label": "What the other lines would have done", hidden: reasons.length === 0 }, ...reasons);
  const node = element("div", { class: "mha-ending" }, title, element("div", scroller, element("pre", {}, code)), copy, why, list);

  /** @param {Answer} answer */
  function draw(answer) {
    const isShown = answer.helped === content.steps.length;
    node.hidden = !answer.solved && !isShown;
    if (node.hidden) return;
    const alone = "Right: every line is in its place.";
    const helped = countOf(answer.helped, "Right: every line is in its place, after 1 step of help.", "Right: every line is in its place, after # steps of help.");
    title.textContent = !answer.solved ? "The solution" : answer.helped === 0 ? alone : helped;
    const text = answer.lines.map(([index, depth]) => `${"    ".repeat(depth)}${textOf(content, index)}\n`).join("");
    write(code, text);
    copy.textContent = "Copy";
  }
  return { node, draw };
}

/**
 * The result of a check, the buttons Check and Help, and the effects of help.
 * @param {Frame} frame @param {Content} content @param {{check: () => void, help: () => void}} act
 */
function checking(frame, content, act) {
  const check = element("button", { type: "button", class: "mha-check-lines", text: "Check" });
  const help = element("button", { type: "button", text: "Help" });
  const offer = element("span", { class: "mha-hint" });
  const feedback = element("p", { class: "mha-feedback" });
  const did = element("ul", { class: "mha-helped", "aria-label": "What help did" });
  const buttons = element("div", { class: "mha-choices" }, check, help, offer);
  const node = element("div", { class: "mha-checking" }, buttons, feedback, did);
  frame.listen(check, "click", act.check);
  frame.listen(help, "click", act.help);
  let described = "";
  let found = "";

  /** @param {Answer} answer @param {string} text the result of the last check, if it was of these lines */
  function draw({ failed, helped, solved }, text) {
    const left = content.steps.length - helped;
    help.setAttribute("aria-disabled", String(failed < PATIENCE || left === 0));
    const waits = `Help comes after ${PATIENCE} failed checks; so far ${failed}.`;
    write(offer, failed < PATIENCE ? waits : countOf(left, "1 step of help left.", "# steps of help left."));
    if (found !== text) feedback.replaceChildren(...inlineText(text));
    found = text;
    // At the end, the page shows all reasons below.
    const withReasons = !solved && left > 0;
    const sentences = content.steps.slice(0, helped).map((step) => describeStep(content, step, withReasons));
    if (described === sentences.join()) return;
    described = sentences.join();
    did.replaceChildren(...sentences.map((sentence) => element("li", {}, ...inlineText(sentence))));
    did.hidden = helped === 0;
  }
  return { node, draw };
}

/**
 * Lets pointers drag rows. A mouse can start anywhere on a row, a finger only on the grip, so that it can scroll the
 * page elsewhere.
 * @param {Frame} frame @param {HTMLElement} area with both lists
 * @param {HTMLElement} solution the list of the solution
 * @param {(first: number, place: number | null, steps: number) => void} drop the row, at a place in the solution
 *   or outside of it (null), moved to the right by this many steps of indentation
 */
function buildDrag(frame, area, solution, drop) {
  /** @type {{id: number, row: HTMLElement, x: number, y: number, isOn: boolean, place: number | null} | null} */
  let drag = null;
  let wasDragged = false;
  const rowsBeside = (/** @type {HTMLElement} */ row) =>
    Array.from(solution.children).filter((item) => !item.contains(row));

  const placeAt = (/** @type {PointerEvent} */ { clientX, clientY }, /** @type {HTMLElement} */ row) => {
    const side = /** @type {HTMLElement} */ (solution.parentElement).getBoundingClientRect();
    const isInside = clientX >= side.left && clientX <= side.right && clientY >= side.top && clientY <= side.bottom;
    if (!isInside) return null;
    const middles = rowsBeside(row).map((item) => item.getBoundingClientRect()).map(({ top, height }) => top + height / 2);
    return middles.filter((middle) => middle < clientY).length;
  };
  const clearMarks = () => {
    for (const node of area.querySelectorAll(".mha-drop")) node.classList.remove("mha-drop");
    for (const node of area.querySelectorAll(".mha-drop-end")) node.classList.remove("mha-drop-end");
  };
  const stop = () => {
    if (!drag) return;
    clearMarks();
    drag.row.style.transform = "";
    drag.row.classList.remove("mha-dragged");
    drag = null;
  };

  frame.listen(area, "pointerdown", (event) => {
    wasDragged = false;
    const row = event.target.closest(".mha-line");
    const isMeant = event.pointerType === "mouse" || event.target.closest(".mha-grip");
    if (!row || !isMeant || event.button !== 0 || drag) return;
    drag = { id: event.pointerId, row, x: event.clientX, y: event.clientY, isOn: false, place: null };
  });
  frame.listen(area, "pointermove", (event) => {
    if (!drag || event.pointerId !== drag.id) return;
    const [dx, dy] = [event.clientX - drag.x, event.clientY - drag.y];
    if (!drag.isOn && Math.hypot(dx, dy) < DRAG_FROM) return;
    if (!drag.isOn) {
      drag.isOn = true;
      area.setPointerCapture(event.pointerId);
      drag.row.classList.add("mha-dragged");
    }
    // All positions are read before anything is changed, so that the browser lays the page out only once.
    drag.place = placeAt(event, drag.row);
    const target = drag.place === null ? null : rowsBeside(drag.row)[drag.place];
    clearMarks();
    if (target) target.classList.add("mha-drop");
    else if (drag.place !== null) solution.classList.add("mha-drop-end");
    drag.row.style.transform = `translate(${dx}px, ${dy}px)`;
  });
  frame.listen(area, "pointerup", (event) => {
    if (!drag || event.pointerId !== drag.id) return;
    const { row, isOn, place, x } = drag;
    const step = parseFloat(getComputedStyle(row).getPropertyValue("--step"));
    stop();
    if (!isOn) return;
    wasDragged = true;
    drop(Number(row.dataset.first), place, Math.round((event.clientX - x) / step));
  });
  frame.listen(area, "pointercancel", stop);
  return {
    stop,
    /** Whether a click is only the end of a drag. */
    endsDrag: () => wasDragged,
  };
}

/**
 * @typedef {object} Moves
 * @property {(first: number | null) => void} pick picks an item up, or puts it down
 * @property {() => void} add
 * @property {() => void} remove
 * @property {(by: number) => void} shift
 * @property {(by: number) => void} indent
 * @property {(first: number, place: number | null, steps: number) => void} drop
 */

/**
 * The moves of the item that the reader has picked up. Each move announces its result.
 * @param {Content} content
 * @param {{read: () => Answer, keep: (answer: Answer) => void, tell: (text: string) => void,
 *   held: {first: number | null}, redraw: () => void}} view
 * @returns {Moves}
 */
function buildMoves(content, { read, keep, tell, held, redraw }) {
  const spot = (/** @type {number | null} */ first) => (first === null ? undefined : spotsOf(content, read()).get(first));
  const named = (/** @type {Item} */ item) => `\`${textOf(content, item[0])}\``;
  const report = (/** @type {number} */ first) => {
    const now = spot(first);
    if (now) tell(`${named(now.item)} is ${describeSpot(now)}.`);
  };
  const put = (/** @type {Spot} */ { item }, /** @type {number} */ place, /** @type {number | null} */ depth = null) => {
    keep(putAt(content, read(), item, place, depth));
    report(item[0]);
  };
  const withHeld = (/** @type {(now: Spot) => void} */ act) => () => {
    const now = spot(held.first);
    if (!now) tell("Pick a line first: click it, or press Space on it.");
    else act(now);
  };
  const add = withHeld((now) => {
    if (now.inSolution) tell(`${named(now.item)} is already in the solution.`);
    else put(now, Infinity);
  });
  const remove = withHeld((now) => {
    if (!now.inSolution) return tell(`${named(now.item)} is not in the solution.`);
    keep(takeOut(content, read(), now.item));
    report(now.item[0]);
  });
  const shift = (/** @type {number} */ by) =>
    withHeld((now) => {
      const last = itemsOf(content, read()).solution.length - 1;
      if (!now.inSolution) return by > 0 ? put(now, Infinity) : tell("Add puts the line into the solution, and so does →.");
      if (now.place + by < 0 || now.place + by > last) {
        return tell(by < 0 ? `${named(now.item)} is already the first line.` : `${named(now.item)} is already the last line.`);
      }
      put(now, now.place + by);
    })();
  const indent = (/** @type {number} */ by) =>
    withHeld((now) => {
      if (!now.inSolution) return by > 0 ? put(now, Infinity) : tell("Add puts the line into the solution, and so does →.");
      if (isIndentationSet(content, read().helped)) return tell("Help has set the indentation.");
      const depth = now.depths[0] + by;
      if (depth < 0) return tell(`${named(now.item)} is at the margin. Remove, or the Delete key, takes it out.`);
      if (depth > content.deepest) return tell(`${named(now.item)} cannot be indented further.`);
      put(now, now.place, depth);
    })();
  return {
    add,
    remove,
    shift,
    indent,
    pick(first) {
      const now = spot(first ?? held.first);
      held.first = first;
      redraw();
      if (!now) return;
      const how = now.inSolution ? "Arrow keys move and indent it, Escape puts it down." : "→ puts it into the solution, Escape puts it down.";
      tell(first === null ? `Put down ${named(now.item)}, ${describeSpot(now)}.` : `Picked up ${named(now.item)}, ${describeSpot(now)}. ${how}`);
    },
    drop(first, place, steps) {
      const now = spot(first);
      if (!now) return;
      held.first = null;
      if (place !== null) put(now, place, now.inSolution ? Math.max(0, now.depths[0] + steps) : null);
      else if (now.inSolution) {
        keep(takeOut(content, read(), now.item));
        report(first);
      }
      redraw();
    },
  };
}

/**
 * Handles keys on a line, which move the picked line or, without one, the focus.
 * @param {Frame} frame @param {HTMLElement} area @param {{first: number | null}} held @param {Moves} moves
 * @param {() => void} stopDrag
 */
function buildKeys(frame, area, held, moves, stopDrag) {
  frame.listen(area, "keydown", (event) => {
    const line = event.target.closest(".mha-line");
    if (!line || isShortcut(event)) return;
    const { key } = event;
    const sign = key === "ArrowUp" || key === "ArrowLeft" ? -1 : 1;
    const isHeld = held.first === Number(line.dataset.first);
    if (key === "Escape") {
      stopDrag();
      if (held.first === null) return;
      moves.pick(null);
    } else if (isHeld && (key === "ArrowUp" || key === "ArrowDown")) moves.shift(sign);
    else if (isHeld && (key === "ArrowLeft" || key === "ArrowRight")) moves.indent(sign);
    else if (isHeld && (key === "Delete" || key === "Backspace")) moves.remove();
    else if (key === "ArrowUp" || key === "ArrowDown") {
      const all = Array.from(area.querySelectorAll(".mha-line"));
      /** @type {HTMLElement | undefined} */ (all[all.indexOf(line) + sign])?.focus();
    } else return;
    event.preventDefault();
  });
}

/**
 * The two lists between which lines move.
 * @param {Frame} frame @param {Content} content @param {{first: number | null}} held @param {Moves} moves
 */
function board(frame, content, held, moves) {
  const source = itemList("Lines", "All lines are in the solution.");
  const solution = itemList("Your solution", "Nothing yet. Some lines may belong nowhere.");
  const tools = moveButtons(frame, moves);
  const left = element("div", { class: "mha-left" }, source.node, tools.node);
  const area = element("div", { class: "mha-board" }, left, solution.node);
  /** @type {Map<string, ReturnType<typeof itemRow>>} */
  const rows = new Map();
  const drag = buildDrag(frame, area, solution.list, moves.drop);
  frame.listen(area, "click", (event) => {
    const line = event.target.closest(".mha-line");
    if (!line || drag.endsDrag()) return;
    const first = Number(line.dataset.first);
    moves.pick(held.first === first ? null : first);
  });
  buildKeys(frame, area, held, moves, drag.stop);

  /** @param {Answer} answer @param {number} fault the line that a check has found to be wrong, or 0 */
  function draw(answer, fault) {
    const focused = /** @type {HTMLElement | null} */ (focusedNear(area))?.closest(".mha-line");
    const spots = spotsOf(content, answer);
    const nodes = { true: [], false: [] };
    for (const [first, spot] of spots) {
      const key = spot.item.join();
      const row = rows.get(key) ?? itemRow(content, spot.item);
      rows.set(key, row);
      row.draw(spot, held.first === first, fault);
      /** @type {HTMLElement[]} */ (nodes[`${spot.inSolution}`]).push(row.node);
    }
    source.draw(nodes.false);
    solution.draw(nodes.true);
    tools.draw(held.first === null ? undefined : spots.get(held.first));
    // Moving a line within the page takes the focus away from it.
    if (focused instanceof HTMLElement && area.contains(focused)) focused.focus();
  }
  return { node: area, draw };
}

/** @param {Frame} frame */
function build(frame) {
  /** @type {Content} */
  const content = frame.get("content");
  const name = frame.get("name");
  const key = `line-order/${name}`;
  const read = () => {
    const answer = frame.get("answer");
    if (!isAnswer(content, answer)) throw new RangeError(`answer must be one to these lines, got ${JSON.stringify(answer) ?? "nothing"}`);
    return tidy(content, answer);
  };
  const keep = (/** @type {Answer} */ answer) => {
    frame.set({ answer });
    if (name) remember(key, toStored(content, answer));
  };
  const stored = name ? fromStored(content, recall(key)) : null;
  const isUntouched = JSON.stringify(frame.get("answer")) === JSON.stringify(emptyAnswer());
  if (stored && isUntouched) frame.set({ answer: stored });

  const held = { first: /** @type {number | null} */ (null) };
  /** The result of the last check, and the lines that it checked. */
  let verdict = { text: "", place: -1, about: "" };
  const readout = element("p", { class: "mha-readout mha-hint" });
  const tell = (/** @type {string} */ text) => {
    readout.replaceChildren(...inlineText(text));
    frame.say(readout.textContent ?? "");
  };
  const moves = buildMoves(content, { read, keep, tell, held, redraw: () => draw() });
  const lists = board(frame, content, held, moves);
  const check = () => {
    const answer = read();
    if (answer.helped === content.steps.length) return tell("This is the solution that help has shown. Start again to find it yourself.");
    const found = judge(content, answer);
    const failed = answer.failed + Number(!found.isRight && answer.lines.length > 0);
    const offer = failed === PATIENCE && failed > answer.failed ? " You can ask for help now." : "";
    verdict = { text: found.text + offer, place: found.place, about: JSON.stringify(answer.lines) };
    if (found.isRight) held.first = null;
    keep({ ...answer, failed, solved: found.isRight });
    draw();
    readout.textContent = "";
    frame.say(result.node.querySelector(".mha-feedback")?.textContent ?? "");
  };
  const help = () => {
    const answer = read();
    if (answer.failed < PATIENCE) return tell(`Help comes after ${PATIENCE} failed checks; so far ${answer.failed}.`);
    if (answer.helped === content.steps.length) return tell("There is no help left.");
    held.first = null;
    keep(helpOnce(content, answer));
    readout.textContent = ""; // the page shows it below
    frame.say(describeStep(content, content.steps[answer.helped]).replaceAll("`", ""));
  };
  const result = checking(frame, content, { check, help });
  const end = ending(frame, content);
  const again = element("button", { type: "button", class: "mha-reset", text: "Start again" });
  frame.listen(again, "click", () => {
    held.first = null;
    verdict = { text: "", place: -1, about: "" };
    keep(emptyAnswer());
    tell("All lines are back, and help begins anew.");
  });
  const task = element("p", { class: "mha-task" }, ...inlineText(frame.get("task")));
  const how = element("p", {
    class: "mha-hint mha-how",
    text: "Drag a line by its handle ⠿, or click it and use the buttons. With the keyboard, Space picks a line up, ↑ ↓ move it, ← → indent it, Delete removes it, and Escape puts it down.",
  });
  frame.body.append(task, how, lists.node, readout, result.node, end.node);
  // In the place of the reset button of other widgets.
  frame.body.after(element("div", { class: "mha-footer" }, again));

  function draw() {
    const answer = read();
    if (held.first !== null && !spotsOf(content, answer).has(held.first)) held.first = null;
    const isAbout = verdict.about === JSON.stringify(answer.lines);
    lists.draw(answer, isAbout ? verdict.place + 1 : 0);
    result.draw(answer, isAbout && !answer.solved ? verdict.text : "");
    end.draw(answer);
  }
  return draw;
}

export default widget({ name: "line-order", label: "Lines to put in order", data: ["answer"] }, build);
