// Lets the book be installed, and opened without a network (_ext/service_worker.js). From disk, nothing changes.
(() => {
  if (!location.protocol.startsWith("http") || !navigator.serviceWorker) return;
  const root = new URL("../", /** @type {HTMLScriptElement} */ (document.currentScript).src);
  const link = document.createElement("link");
  link.rel = "manifest";
  link.href = new URL("book.webmanifest", root).href;
  document.head.append(link);
  addEventListener("load", async () => {
    try {
      const before = navigator.serviceWorker.controller;
      await navigator.serviceWorker.register(new URL("service-worker.js", root), { updateViaCache: "none" });
      if (before) return;
      const { active } = await navigator.serviceWorker.ready;
      active?.postMessage([location.href, link.href, ...performance.getEntriesByType("resource").map(({ name }) => name)]);
    } catch {
      // A browser that keeps nothing, as in a private window, reads the book from the network.
    }
  });
})();
