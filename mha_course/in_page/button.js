// The buttons "Write it here" of a page, and what the reader has had accepted: at each stub and in the strip of
// parts at the top. The buttons stay hidden where they cannot work.
(() => {
  const page = /** @type {any} */ (window);

  /** @param {string} key of a stub @returns {boolean} */
  const isAccepted = (key) => {
    try {
      return typeof JSON.parse(localStorage.getItem(`mha-course/write-here/${key}`) ?? "{}").accepted === "string";
    } catch {
      return false;
    }
  };

  const hasPieces = () => {
    try {
      return Object.keys(localStorage).some((key) => /^mha-course\/write-here\/\w+$/.test(key) && isAccepted(key.slice(22)));
    } catch {
      return false;
    }
  };

  page.mhaShowDone = () => {
    for (const part of document.querySelectorAll(".way [data-pieces]")) {
      const isDone = (part.getAttribute("data-pieces") ?? "").split(" ").every(isAccepted);
      part.classList.toggle("way-done", isDone);
      if (isDone) part.setAttribute("aria-label", `${part.textContent}, accepted`);
      else part.removeAttribute("aria-label");
    }
    for (const strip of document.querySelectorAll(".way-filled")) if (strip instanceof HTMLElement) strip.hidden = false;
    for (const button of document.querySelectorAll("[data-check]")) {
      const [chapter, id] = (button.getAttribute("data-stub") ?? "").split("/");
      const isDone = isAccepted(id.startsWith("write-") ? id.slice(6) : `${chapter}.${id}`);
      button.textContent = isDone ? "✓ Accepted: open what you wrote" : "Write it here";
    }
  };
  page.mhaShowDone();
  // Another tab may have had a piece accepted.
  addEventListener("storage", page.mhaShowDone);

  if (typeof WebAssembly !== "object" || typeof DecompressionStream !== "function") return;
  const folder = `${document.documentElement.dataset.content_root}_static/in_page/`;

  /** @param {HTMLButtonElement | HTMLAnchorElement} button */
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
  // The file that the link offers is the course's; it is made anew for a reader who has had pieces accepted.
  for (const link of document.querySelectorAll('a[href$="/my_gpt.py"]')) {
    link.addEventListener("click", (event) => {
      if (!(link instanceof HTMLAnchorElement) || !(page.mhaWriteHere || hasPieces())) return;
      event.preventDefault();
      ask(link);
    });
  }
})();
