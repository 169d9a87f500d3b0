// The theme's buttons, whose code the build takes out of their attributes (see _ext/security.py).
(() => {
  /** @type {Object<string, () => void>} */
  const actions = {
    print: () => window.print(),
    "full-screen": () => /** @type {any} */ (window).toggleFullScreen(), // the theme's own
  };
  addEventListener("click", ({ target }) => {
    const button = target instanceof Element && target.closest("[data-action]");
    if (button instanceof HTMLElement) actions[button.dataset.action ?? ""]?.();
  });
})();
