// A web worker whose program is a text, so that a widget can compute without holding up the page.

/**
 * A worker that answers requests. Its program is not a file, because a page opened from disk may not load one, and
 * a notebook has none.
 * @param {string} program that sets `onmessage` and calls `postMessage` @param {(answer: any) => void} onAnswer
 * @param {() => void} onRefused called if the browser does not run the worker
 */
export function startWorker(program, onAnswer, onRefused) {
  const url = URL.createObjectURL(new Blob([program], { type: "text/javascript" }));
  try {
    const worker = new Worker(url);
    worker.onmessage = ({ data }) => onAnswer(data);
    worker.onerror = (event) => {
      event.preventDefault(); // not an error, because the page continues by itself
      onRefused();
    };
    return {
      ask: (/** @type {any} */ request) => worker.postMessage(request),
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
