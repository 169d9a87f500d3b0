// The reader's answers, kept in this browser and nowhere else. A page may have no storage, and a browser may
// refuse access to it, so that even its name throws: then nothing is kept, and everything else works.

const PREFIX = "mha-course/";

/**
 * @param {string} key
 * @returns {any} the stored value, or null
 */
export function recall(key) {
  return everything()[key] ?? null;
}

/**
 * @param {string} key
 * @param {any} value of JSON
 * @returns {boolean} whether it was stored
 */
export function remember(key, value) {
  try {
    localStorage.setItem(PREFIX + key, JSON.stringify(value));
    return true;
  } catch {
    return false; // missing, blocked or full
  }
}

/** @returns {Object<string, any>} all stored answers of this course; null where one is damaged */
export function everything() {
  try {
    const kept = Object.entries({ ...localStorage }).filter(([key]) => key.startsWith(PREFIX));
    return Object.fromEntries(kept.map(([key, text]) => [key.slice(PREFIX.length), parse(text)]));
  } catch {
    return {};
  }
}

/** Removes all answers of this course. */
export function forget() {
  for (const key of Object.keys(everything())) localStorage.removeItem(PREFIX + key);
}

/** @param {string} text */
function parse(text) {
  try {
    return JSON.parse(text);
  } catch {
    return null;
  }
}
