// A file that a page makes itself.

import { element } from "./frame.js";

/** Offers a download, which the browser creates itself. @param {string} name @param {string} text */
export function download(name, text) {
  const url = URL.createObjectURL(new Blob([text], { type: name.endsWith("json") ? "application/json" : "text/plain" }));
  element("a", { href: url, download: name }).click();
  URL.revokeObjectURL(url);
}
