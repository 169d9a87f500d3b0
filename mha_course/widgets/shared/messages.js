// The messages of a widget, which stand in a Markdown file beside its Python and come with its state.

/** Fills words into a sentence. @param {import("./frame.js").Frame} frame @param {string} name @param {Object<string, any>} [words] */
export function say(frame, name, words = {}) {
  return frame.get("sentences")[name].replace(/\{(\w+)\}/g, (/** @type {string} */ _, /** @type {string} */ key) => words[key]);
}
