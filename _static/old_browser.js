// In a browser that is too old for the widgets, the page says so once, and shows the pictures that stand for widgets.
// What it asks for is their newest need: Chrome 111, Firefox 113 and Safari 16.2 mix colours. This file has no newer
// syntax than such browsers understand.
(function () {
  if (window.CSS && CSS.supports && CSS.supports("color", "color-mix(in srgb, red, blue)")) return;
  document.documentElement.classList.add("old-browser");
  document.addEventListener("DOMContentLoaded", function () {
    var article = document.querySelector("article");
    if (!article) return;
    var note = document.createElement("p");
    note.className = "old-browser-note";
    note.textContent =
      "This browser is older than Chrome 111, Firefox 113 and Safari 16.4. The text is complete; the widgets are " +
      "pictures, and no code runs on the page.";
    article.insertBefore(note, article.firstChild);
  });
})();
