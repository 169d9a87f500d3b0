// The buttons "Write it here" of a page. They stay hidden where they cannot work.
(() => {
  if (typeof WebAssembly !== "object" || typeof DecompressionStream !== "function") return;
  const page = /** @type {any} */ (window);
  const folder = `${document.documentElement.dataset.content_root}_static/in_page/`;

  /** @param {HTMLButtonElement} button */
  const ask = (button) => {
    if (page.mhaWriteHere) return page.mhaWriteHere(button);
    const isFirst = !document.querySelector("[data-asked]");
    button.dataset.asked = ""; // the editor opens where it finds this
    if (!isFirst) return;
    const script = document.createElement("script");
    script.src = `${folder}editor.js`;
    script.onerror = () => {
      delete button.dataset.asked;
      button.textContent = "The editor could not be loaded. Is there a network? Try again";
    };
    document.head.append(script);
  };

  for (const button of document.querySelectorAll("button.write-here-button")) {
    if (!(button instanceof HTMLButtonElement)) continue;
    button.hidden = false;
    button.addEventListener("click", () => ask(button));
  }
})();
