// The theme's buttons, whose code the build takes out of their attributes (see _ext/security.py), and "Write it here",
// whose code is loaded when somebody presses it (see _ext/in_page.py).
(() => {
  const FOLDER = new URL("in_page/", /** @type {HTMLScriptElement} */ (document.currentScript).src).href;
  const page = /** @type {any} */ (window);

  /** @param {HTMLElement} button */
  const writeHere = (button) => {
    if (page.mhaWriteHere) return page.mhaWriteHere(button);
    button.dataset.asked = ""; // the editor opens where it finds this
    const script = document.createElement("script");
    script.src = `${FOLDER}editor.js`;
    script.onerror = () => button.replaceWith("The editor could not be loaded. Is there a network? Then load the page again.");
    document.head.append(script);
  };

  /** @type {Object<string, (button: HTMLElement) => void>} */
  const actions = {
    print: () => page.print(),
    "full-screen": () => page.toggleFullScreen(), // the theme's own
    "write-here": writeHere,
  };
  addEventListener("click", ({ target }) => {
    const button = target instanceof Element && target.closest("[data-action]");
    if (button instanceof HTMLElement) actions[button.dataset.action ?? ""]?.(button);
  });
  // Elsewhere the button would lead nowhere, so it stays hidden.
  if (typeof WebAssembly === "object" && typeof DecompressionStream === "function") {
    const show = () => document.querySelectorAll(".write-here-button").forEach((button) => button.removeAttribute("hidden"));
    addEventListener("DOMContentLoaded", show);
  }
})();
