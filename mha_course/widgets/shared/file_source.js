// Large data in a file beside the page, and the message in their place until they have been loaded.

import { element } from "./frame.js";

/**
 * Loads a script that delivers data, which works even for a page that was opened from disk.
 * @param {string} address @param {string} name of the file, which the script repeats
 * @returns {Promise<any>}
 */
export function loadFile(address, name) {
  return new Promise((resolve, reject) => {
    const script = element("script", { src: address });
    /** @type {any} */
    let content = null;
    const hear = (/** @type {any} */ event) => {
      if (event.detail?.name === name) content = event.detail.content;
    };
    /** @param {string} text @param {string} cause */
    const end = (text, cause) => {
      removeEventListener("mha-file", hear);
      script.remove();
      if (content) resolve(content);
      else reject(new Error(text, { cause }));
    };
    addEventListener("mha-file", hear);
    script.addEventListener("load", () => end(`the file ${name} is damaged`, "damaged")); // the script ran but delivered nothing
    script.addEventListener("error", () => end(`the file ${name} is missing`, "missing"));
    document.head.append(script);
  });
}

/**
 * The message in place of what a missing file would show.
 * @param {import("./frame.js").Frame} frame @param {() => void} onAgain
 */
export function fileNotice(frame, onAgain) {
  const text = element("span");
  const again = element("button", { type: "button", text: "Try again" });
  const node = element("p", { class: "mha-notice", hidden: true }, text, again);
  frame.listen(again, "click", onAgain);

  /** @param {{problem?: string, note?: string}} found neither of them if the file is there */
  function draw({ problem, note }) {
    const message = problem ?? note;
    node.hidden = message === undefined;
    again.hidden = problem === undefined;
    text.textContent = message ?? "";
    if (message) frame.say(message);
  }
  return { node, draw };
}
