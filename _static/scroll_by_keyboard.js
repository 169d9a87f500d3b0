// What is wide scrolls in a box of its own (see book.css). This lets the keyboard reach such a box, but only as long as
// there is something to scroll: on a narrow screen, after a fold was opened, after equations were set.
(() => {
  const BOXES = ".bd-article :is(pre, div.math, span.math, .cell_output > *, .text_html, .pst-scrollable-table-container)";

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
