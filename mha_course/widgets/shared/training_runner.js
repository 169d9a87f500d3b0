// Runs a training in a web worker or, if the browser does not allow workers, in animation frames; and makes the
// buttons with which a reader starts it, stops it, and looks back.

import { element } from "./frame.js";
import { learner } from "./learning_math.js";
import { startWorker } from "./page_worker.js";
import { slider } from "./parts.js";

/** @typedef {import("./frame.js").Frame} Frame */
/** @typedef {{number: number, plan: any, from: number, to: number}} StepRequest */
/** @typedef {{step: number, loss: number}} TrainingRecord with what a task has measured; the first record is that of step 0 */
/** @typedef {{number: number, records: TrainingRecord[]}} StepAnswer */

/**
 * What is trained: `startRun` makes a new model, `parts` are this function and all that it calls, and `atOnce` is the
 * number of steps from one drawing to the next.
 * @typedef {{startRun: (plan: any) => any, parts: Function[], atOnce: number}} Task
 */

/** The program of a worker: it answers each request, whose number it returns with the records. @param {Task} task */
const workerProgram = ({ parts, startRun }) => `"use strict";
${parts.map(String).join("\n")}
const answer = learner(${startRun.name});
onmessage = ({ data }) => postMessage({ number: data.number, records: answer(data) });
`;

/** Trains in the page itself, one step per frame. @param {Task} task @param {(answer: StepAnswer) => void} onAnswer */
function startFrames({ startRun }, onAnswer) {
  const answer = learner(startRun);
  let frame = 0;
  return {
    ask(/** @type {StepRequest} */ { number, plan, from, to }) {
      const records = /** @type {TrainingRecord[]} */ ([]);
      const work = () => {
        const step = from + records.length;
        records.push(...answer({ plan, from: step, to: step }));
        if (step < to) frame = requestAnimationFrame(work);
        else onAnswer({ number, records });
      };
      cancelAnimationFrame(frame);
      frame = requestAnimationFrame(work);
    },
    stop: () => cancelAnimationFrame(frame),
  };
}

/**
 * Returns an object that requests the next steps of a run. Only the answer to the latest request is passed on.
 * @param {Task} task @param {(records: TrainingRecord[]) => void} onRecords
 */
function trainingRunner(task, onRecords) {
  /** @type {{ask: (request: StepRequest) => void, stop: () => void} | null} */
  let runner = null;
  /** @type {StepRequest | null} */
  let pending = null;
  let number = 0;
  const onAnswer = (/** @type {StepAnswer} */ answer) => {
    if (pending?.number !== answer.number) return;
    const { from } = pending;
    pending = null;
    onRecords(answer.records.filter(({ step }) => step >= from));
  };
  const useFrames = () => {
    runner?.stop();
    runner = startFrames(task, onAnswer);
    // The worker's run is lost. Every run is the same, so it is repeated from its first step.
    if (pending) runner.ask({ ...pending, from: 1 });
  };
  return {
    isBusy: () => pending !== null,
    /**
     * @param {any} plan @param {number} from the next step; 1 restarts the run
     * @param {number} to
     */
    ask(plan, from, to) {
      pending = { number: ++number, plan, from, to };
      runner ??= startWorker(workerProgram(task), onAnswer, useFrames);
      if (runner) runner.ask(pending);
      else useFrames();
    },
    /** Forgets the pending request. */
    drop() {
      pending = null;
    },
    stop() {
      pending = null;
      runner?.stop();
      runner = null;
    },
  };
}

/**
 * The run of the present settings: its records so far, and which of them is shown.
 * @template {{steps: number}} Plan
 * @template {TrainingRecord} Entry
 * @param {Frame} frame @param {Task} task @param {() => Plan} readPlan
 * @param {(run: {plan: Plan | null, records: Entry[], shown: number}) => string} describe
 * @param {() => void} show draws the run
 */
export function buildRun(frame, task, readPlan, describe, show) {
  const run = {
    plan: /** @type {Plan | null} */ (null),
    records: /** @type {Entry[]} */ ([]),
    /** The last finished run. */
    before: /** @type {{plan: Plan, records: Entry[]} | null} */ (null),
    shown: 0,
    isPlaying: false,
    isDone: () => run.records.length > (run.plan?.steps ?? 0),
    firstLoss: () => NaN,
    begin,
    restart,
    play,
    pause,
    oneStep,
    lookBack,
    describe: () => describe(run),
  };
  let waiting = 0;
  // Requested steps still arrive after a pause. They advance what is shown only if the reader has not
  // gone back meanwhile.
  let follows = true;
  // Single steps that the reader requested while an answer was pending; they are taken after it.
  let owed = 0;
  // The next steps are requested after the last ones were drawn, so the page never falls behind.
  const runner = trainingRunner(task, (records) => {
    run.records.push(.../** @type {Entry[]} */ (records));
    if (follows) run.shown = run.records.length - 1;
    waiting = requestAnimationFrame(() => {
      if (run.isDone()) pause();
      show();
      proceed();
    });
  });

  /** Requests the next steps, if any are wanted and no answer is pending. */
  function proceed() {
    if (!run.plan || run.isDone() || runner.isBusy()) return;
    const count = run.isPlaying ? task.atOnce : Math.min(owed, 1);
    if (count === 0) return;
    owed = Math.max(0, owed - 1);
    const next = run.records.length;
    runner.ask(run.plan, next, Math.min(next + count - 1, run.plan.steps));
  }

  /** Goes back to step 0, even if the settings are the same. */
  function start() {
    runner.drop();
    cancelAnimationFrame(waiting);
    if (run.plan && run.isDone()) run.before = { plan: run.plan, records: run.records };
    run.plan = readPlan();
    const untrained = task.startRun(run.plan);
    run.records = [untrained.record()];
    /** @type {number | undefined} */
    let loss;
    run.firstLoss = () => (loss ??= untrained.look().loss);
    run.shown = 0;
    run.isPlaying = false;
    [follows, owed] = [true, 0];
  }

  function begin() {
    start();
    show();
  }

  /** @param {Object<string, any>} [changes] of settings */
  function restart(changes = {}) {
    frame.set(changes);
    frame.later(begin);
  }

  function play() {
    if (run.isDone()) start();
    run.isPlaying = true;
    run.shown = run.records.length - 1;
    [follows, owed] = [true, 0];
    proceed();
    frame.say("Training.");
  }

  function oneStep() {
    pause();
    follows = true;
    owed++;
    proceed();
  }

  /** Shows an earlier step; the later ones are kept. @param {number} step */
  function lookBack(step) {
    pause();
    [follows, owed] = [false, 0];
    run.shown = Math.min(step, run.records.length - 1);
  }

  function pause() {
    if (run.isPlaying) frame.say(run.describe());
    run.isPlaying = false;
  }

  // A reset may not change any setting, but it restarts the training.
  frame.listen(/** @type {HTMLElement} */ (frame.body.parentElement), "click", (event) => {
    if (event.target.closest(".mha-reset")) restart();
  });
  frame.signal.addEventListener("abort", () => {
    cancelAnimationFrame(waiting);
    runner.stop();
  });
  return run;
}

/**
 * Play and pause, one step, and a slider that goes back to any step.
 * @param {Frame} frame @param {ReturnType<typeof buildRun>} run @param {() => void} show
 */
export function buildTransport(frame, run, show) {
  const play = element("button", { type: "button", class: "mha-play" });
  const one = element("button", { type: "button", text: "One step" });
  const steps = slider(frame, "step", (step) => {
    run.lookBack(step);
    show();
    frame.say(run.describe());
  });
  const node = element("div", { class: "mha-transport" }, play, one, steps.node);
  frame.listen(play, "click", () => {
    if (run.isPlaying) run.pause();
    else run.play();
    show();
  });
  frame.listen(one, "click", () => {
    run.oneStep();
    show();
  });
  function draw() {
    const total = run.plan?.steps ?? 0;
    play.textContent = run.isPlaying ? "❚❚ Pause" : run.isDone() ? "▶ Play again" : "▶ Play";
    // `disabled` would take the focus away from the button that the reader has just pressed.
    one.setAttribute("aria-disabled", String(run.isDone()));
    steps.draw(run.shown, { high: total, text: `${run.shown} of ${total}` });
    steps.input.disabled = run.records.length < 2; // there is nothing to go back to
  }
  return { node, draw };
}
