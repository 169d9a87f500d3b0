// Runs a training beside the page: in a web worker or, where the browser refuses workers, in animation frames.

import { learner, workerProgram } from "./head_training_math.js";

/** @typedef {import("./head_training_math.js").Plan} Plan */
/** @typedef {import("./head_training_math.js").TrainingRecord} TrainingRecord */
/** @typedef {{number: number, plan: Plan, from: number, to: number}} StepRequest */

/**
 * A worker that answers requests. Its program has no file: a page opened from disk may load none, and
 * a notebook has none to load.
 * @param {(answer: {number: number, records: TrainingRecord[]}) => void} onAnswer
 * @param {() => void} onRefused called if the browser does not run the worker
 */
function startWorker(onAnswer, onRefused) {
  const url = URL.createObjectURL(new Blob([workerProgram()], { type: "text/javascript" }));
  try {
    const worker = new Worker(url);
    worker.onmessage = ({ data }) => onAnswer(data);
    worker.onerror = (event) => {
      event.preventDefault(); // not an error of the page: it goes on in animation frames
      onRefused();
    };
    return {
      ask: (/** @type {StepRequest} */ request) => worker.postMessage(request),
      stop() {
        worker.terminate();
        URL.revokeObjectURL(url);
      },
    };
  } catch {
    URL.revokeObjectURL(url);
    return null;
  }
}

/**
 * The same in the page itself, one step in each frame.
 * @param {(answer: {number: number, records: TrainingRecord[]}) => void} onAnswer
 */
function startFrames(onAnswer) {
  const answer = learner();
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
 * Returns what asks for the next steps of a run. Only the answer to the latest request is passed on.
 * @param {(records: TrainingRecord[]) => void} onRecords
 */
export function trainingRunner(onRecords) {
  /** @type {{ask: (request: StepRequest) => void, stop: () => void} | null} */
  let runner = null;
  /** @type {StepRequest | null} */
  let pending = null;
  let number = 0;
  const onAnswer = (/** @type {{number: number, records: TrainingRecord[]}} */ answer) => {
    if (pending?.number !== answer.number) return;
    const { from } = pending;
    pending = null;
    onRecords(answer.records.filter(({ step }) => step >= from));
  };
  const useFrames = () => {
    runner?.stop();
    runner = startFrames(onAnswer);
    // The worker's run is lost, and a run is the same each time: it is repeated from its first step.
    if (pending) runner.ask({ ...pending, from: 1 });
  };
  return {
    isBusy: () => pending !== null,
    /**
     * @param {Plan} plan @param {number} from the next step; 1 starts the run anew
     * @param {number} to
     */
    ask(plan, from, to) {
      pending = { number: ++number, plan, from, to };
      runner ??= startWorker(onAnswer, useFrames);
      if (runner) runner.ask(pending);
      else useFrames();
    },
    /** Forgets the request that is not answered yet. */
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
