// The reader's answers, kept in this browser and nowhere else. A page opened from disk may have no storage, and
// a browser may refuse access to it: then nothing is kept, and everything else works.

const PREFIX = "mha-course/";

/** @returns {Storage | null} */
function storage() {
  try {
    return globalThis.localStorage ?? null;
  } catch {
    return null; // merely naming it throws where storage is blocked
  }
}

/** @param {string} text */
function parse(text) {
  try {
    return JSON.parse(text);
  } catch {
    return null; // what is stored is damaged
  }
}

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
    storage()?.setItem(PREFIX + key, JSON.stringify(value));
    return storage() !== null;
  } catch {
    return false; // the storage is full or blocked
  }
}

/** @returns {Object<string, any>} all stored answers of this course */
export function everything() {
  try {
    const kept = Object.entries({ ...storage() }).filter(([key]) => key.startsWith(PREFIX));
    return Object.fromEntries(kept.map(([key, text]) => [key.slice(PREFIX.length), parse(text)]));
  } catch {
    return {};
  }
}

/** Removes all answers of this course. */
export function forget() {
  for (const key of Object.keys(everything())) storage()?.removeItem(PREFIX + key);
}
