// In a browser that is too old for the widgets or for Python, the page says so, and shows the pictures that stand for
// widgets. In one that only draws less, it says what is missing. This file has no newer syntax than those understand.
(function () {
  /** @type {(rule: string) => boolean} */
  var draws = function (rule) {
    return !!window.CSS && !!CSS.supports && CSS.supports(rule);
  };
  var runs = draws("(color: color-mix(in srgb, red, blue))") && typeof DecompressionStream === "function";
  if (runs && draws("selector(:has(*))") && draws("(grid-template-columns: subgrid)")) return;
  if (!runs) document.documentElement.classList.add("old-browser");
  document.addEventListener("DOMContentLoaded", function () {
    var article = document.querySelector("article");
    if (!article) return;
    var note = document.createElement("p");
    note.className = "old-browser-note";
    note.textContent = runs
      ? "This browser is older than Chrome 117, Firefox 121 and Safari 16.4. What you choose in a widget may have no " +
        "frame, and columns may not line up."
      : "This browser is older than Chrome 111, Firefox 113 and Safari 16.4. The text is complete; the widgets are " +
        "pictures, and no code runs on the page.";
    article.insertBefore(note, article.firstChild);
  });
})();
