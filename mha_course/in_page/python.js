// Python for the page: one worker, started when it is first needed, ended and started again when a request takes too long.

import { createKernels } from "./kernels.js";
import { unpack, work } from "./worker.js";

/** Milliseconds after which code counts as an endless loop: much more than a check takes on a busy machine in Safari. */
const PATIENCE = 20_000;

/** What browsers say of calls within calls for which they have no room; Python has then ended with them. */
const TOO_DEEP = /call stack|recursion/;

/** A sentence for the reader on what went wrong. */
export class PythonError extends Error {}

/**
 * @param {() => Promise<import("./worker.js").Parts & {programs: string[]}>} load gives what the worker needs, and the
 *   programs that its text begins with
 */
export function createPython(load) {
  /** @type {Worker | null} */
  let worker = null;
  /** @type {Promise<void> | null} */
  let started = null;
  let wasUsed = false;
  /** Python as compiled by the first worker. @type {WebAssembly.Module | undefined} */
  let compiled;
  /** The previous request, because the worker answers one at a time. @type {Promise<unknown>} */
  let before = Promise.resolve();

  /** Makes the request that is being answered fail with a sentence. @type {((why: string) => void) | null} */
  let interrupt = null;

  const end = () => {
    worker?.terminate();
    worker = started = null;
    wasUsed = false;
  };

  /** @param {Worker} to @param {any} message @param {number} [patience] @returns {Promise<any>} */
  const ask = (to, message, patience) =>
    new Promise((resolve, reject) => {
      const fail = (/** @type {string} */ why) => {
        clearTimeout(timer);
        interrupt = null;
        end();
        reject(new PythonError(why));
      };
      const ended = (/** @type {string} */ said) =>
        fail(TOO_DEEP.test(said) ? "Your code calls itself again and again, so it was stopped: what should end that?" : `Python has ended: ${said}`);
      const slow = () => fail(`Your code was still running after ${PATIENCE / 1000} seconds, so it was stopped. Is there a loop without end?`);
      const timer = patience && setTimeout(slow, patience);
      to.onmessage = ({ data }) => {
        if (data.compiled) return (compiled = data.compiled);
        if (data.failed !== undefined) return ended(data.failed);
        clearTimeout(timer);
        interrupt = null;
        resolve(data);
      };
      to.onerror = ({ message: said }) => ended(said);
      interrupt = fail;
      to.postMessage(message);
    });

  /** Starts Python unless it is running. */
  const start = () => {
    started ??= load().then(async ({ programs, ...parts }) => {
      const text = [...(await Promise.all(programs.map(unpack))), `\n;(${work})(self, ${createKernels}, ${unpack})`];
      const url = URL.createObjectURL(new Blob(text, { type: "text/javascript" }));
      worker = new Worker(url);
      await ask(worker, { parts: { ...parts, compiled } });
      URL.revokeObjectURL(url);
    });
    started.catch(end);
    return started;
  };

  /** Asks, and once more in a new worker if earlier runs may have taken the memory. @param {any} request @returns {Promise<any>} */
  const answer = async (request) => {
    await start();
    const isFirst = !wasUsed;
    wasUsed = true;
    const said = await ask(/** @type {Worker} */ (worker), { request: JSON.stringify(request) }, PATIENCE);
    if (said.isFull) {
      end();
      if (!isFirst && !("train" in request)) return answer(request);
      void start();
    }
    return JSON.parse(said.answer);
  };

  return {
    start,
    /** @param {any} request for `answer` in session.py @returns {Promise<any>} its reply */
    request(request) {
      const mine = before.then(() => answer(request));
      before = mine.catch(() => {});
      return mine;
    },
    /** Ends the code that is running, and with it what Python held. */
    stop: () => interrupt?.("You have stopped it."),
  };
}
