// The reader's answers, stored in the browser's local storage under one prefix. Nothing leaves the machine. The
// storage may be missing, blocked, full or damaged; each function then does what it can and never throws.
//
// A key is "<widget name>/<id>", where the id is the name that the author gave to the widget. What is stored under a
// former key of a question is moved to its present one.

import { presentKey } from "./former_keys.js";

// An address may serve several books, which then share one storage.
const COURSE = "mha-course/";

/** The event on the window after each change, so that other widgets of the page can update their counts. */
export const ANSWERS_CHANGED = "mha-answers-changed";

/**
 * @param {string} key
 * @returns {any} the stored value; null if there is no value or no storage, or if the value is damaged
 */
export function recall(key) {
  try {
    return JSON.parse(localStorage.getItem(COURSE + presentKey(key)) ?? "null");
  } catch {
    return null;
  }
}

/**
 * @param {string} key @param {any} value that JSON supports; null removes the answer
 * @returns {boolean} whether it is stored; false if the storage is missing, blocked or full
 */
export function remember(key, value) {
  try {
    if (value === null) localStorage.removeItem(COURSE + presentKey(key));
    else localStorage.setItem(COURSE + presentKey(key), JSON.stringify(value));
  } catch {
    return false;
  }
  dispatchEvent(new Event(ANSWERS_CHANGED));
  return true;
}

/** @returns {string[]} the keys of this course in the storage, with the prefix */
function storedKeys() {
  try {
    return Object.keys(localStorage).filter((key) => key.startsWith(COURSE));
  } catch {
    return [];
  }
}

/** @returns {Object<string, any>} all undamaged answers of this course by key, sorted by key */
export function everything() {
  const keys = storedKeys().map((key) => key.slice(COURSE.length));
  const answers = keys.sort().map((key) => [key, recall(key)]);
  return Object.fromEntries(answers.filter(([, value]) => value !== null));
}

/** Removes all answers of this course, including damaged ones, and nothing else. */
export function forget() {
  for (const key of storedKeys()) {
    try {
      localStorage.removeItem(key);
    } catch {
      // If the reader blocks the storage meanwhile, the remaining answers stay.
    }
  }
  dispatchEvent(new Event(ANSWERS_CHANGED));
}

/** @param {any} value */
export const isObject = (value) => value !== null && typeof value === "object" && !Array.isArray(value);

/** Both, and the second where they differ. @param {any} old @param {any} given @returns {any} */
export function join(old, given) {
  const parts = () => Object.entries(given).map(([name, part]) => [name, join(old[name], part)]);
  return isObject(old) && isObject(given) ? { ...old, ...Object.fromEntries(parts()) } : given;
}

/** Moves what is stored under former keys. What does not fit into a full storage stays until there is room. */
function moveFormer() {
  for (const stored of storedKeys()) {
    const [key, present] = [stored.slice(COURSE.length), presentKey(stored.slice(COURSE.length))];
    if (key === present) continue;
    try {
      const former = JSON.parse(localStorage.getItem(stored) ?? "null");
      const isMoved = remember(present, recall(present) === null ? former : join(former, recall(present)));
      if (isMoved) localStorage.removeItem(stored);
    } catch {
      // A damaged answer stays where nothing reads it.
    }
  }
}

moveFormer();
