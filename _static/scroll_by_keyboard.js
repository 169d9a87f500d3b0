// Wide content scrolls in its own box (see book.css). This script lets the keyboard reach such a box, but
// only while there is something to scroll, for example on a narrow screen or after a fold is opened.
(() => {
  const BOXES = ".bd-article :is(pre, div.math, span.math, .cell_output > *, .cell_output > figure > *, .text_html, .pst-scrollable-table-container)";

  const watch = new ResizeObserver((changes) => {
    for (const { target } of changes) {
      if (target.scrollWidth > target.clientWidth && getComputedStyle(target).overflowX !== "visible") {
        target.setAttribute("tabindex", "0");
      } else target.removeAttribute("tabindex");
    }
  });
  addEventListener("load", () => {
    for (const box of document.querySelectorAll(BOXES)) if (!box.closest(".widget-host")) watch.observe(box);
  });
})();
