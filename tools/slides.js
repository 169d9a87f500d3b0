// The content of a slide is scaled to fit, but text is never enlarged. reveal.js shows and prints slides.
(() => {
  const { Reveal, RevealNotes } = /** @type {any} */ (window);
  const fit = () => {
    for (const box of document.querySelectorAll(".fits")) {
      if (!(box instanceof HTMLElement) || !box.offsetHeight) continue;
      box.style.zoom = "1";
      const most = box.querySelector("img, svg") ? 1.8 : 1;
      box.style.zoom = String(Math.min(1180 / box.scrollWidth, 580 / box.scrollHeight, most));
    }
  };
  Reveal.on("slidechanged", fit);
  Reveal.on("ready", fit);
  Reveal.on("pdf-ready", () => {
    fit();
    document.documentElement.dataset.fits = "yes";
  });
  addEventListener("toggle", fit, true); // an answer that is opened
  Reveal.initialize({
    width: 1280,
    height: 720,
    margin: 0,
    center: false,
    hash: true,
    slideNumber: "c/t",
    transition: "none",
    pdfMaxPagesPerSlide: 1,
    plugins: [RevealNotes],
  });
})();
