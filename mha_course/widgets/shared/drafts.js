// What a reader writes in the page, as it is stored. A text that comes from elsewhere, such as an imported file or
// another tab, never replaces one that is there: both are kept, and the editor offers the other one.

/** The beginning of a draft's key in the storage. */
export const DRAFTS = "write-here/";

/**
 * @typedef {{text: string, from: string}} Other a text that is kept beside the draft, and where it comes from
 * @typedef {object} Draft
 * @property {string} [draft] the text that the editor shows
 * @property {string} [accepted] the last text that the check has accepted
 * @property {Other[]} [others]
 */

/**
 * Keeps texts beside a draft unless they are known.
 * @param {Draft} entry @param {Other[]} texts @returns {Draft}
 */
export function withOthers(entry, texts) {
  const others = [...(entry.others ?? [])];
  const known = new Set([entry.draft, entry.accepted, ...others.map(({ text }) => text)]);
  for (const other of texts) {
    if (typeof other.text !== "string" || known.has(other.text)) continue;
    known.add(other.text);
    others.push(other);
  }
  return others.length ? { ...entry, others } : entry;
}

/**
 * The draft that is here, with what a file holds. What was accepted here stays in use.
 * @param {Draft | null} here @param {Draft} given
 */
export function joinDrafts(here, given) {
  const joined = { ...given, ...here, others: here?.others };
  const texts = [given.draft, given.accepted].map((text) => ({ text: /** @type {string} */ (text), from: "an imported file" }));
  return withOthers(joined, [...texts, ...(Array.isArray(given.others) ? given.others : [])]);
}
