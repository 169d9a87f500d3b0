// The switch to the book's other languages. It keeps the page and the section, whose names are the same in all of them.
(() => {
  /** @type {string[]} */
  const others = []; // `make book LANGUAGE=zh_CN` names here what stands below the English book
  /** @type {Object<string, string>} */
  const names = { en: "English", zh_CN: "简体中文", zh_TW: "繁體中文" };
  /** @type {Object<string, string>} */
  const short = { en: "EN", zh_CN: "简体", zh_TW: "繁體" };
  const own = document.documentElement.lang.replace("-", "_");
  const root = new URL("../", /** @type {HTMLScriptElement} */ (document.currentScript).src).href;
  const english = own in names && own !== "en" ? new URL("../", root).href : root;
  const page = location.href.split(/[?#]/)[0].slice(root.length);

  /** The nearest section whose title is not below the top of the window. */
  const section = () => {
    const above = [...document.querySelectorAll("section[id]")].filter((one) => one.getBoundingClientRect().top < 120);
    return above.length > 1 ? `#${above[above.length - 1].id}` : "";
  };

  addEventListener("DOMContentLoaded", () => {
    const header = document.querySelector(".article-header-buttons");
    for (const language of header && others.length ? ["en", ...others] : []) {
      if (language === own) continue;
      const link = document.createElement("a");
      link.className = "btn language-switch";
      link.lang = link.hreflang = language.replace("_", "-");
      link.textContent = short[language];
      link.title = names[language];
      link.href = new URL(language === "en" ? page : `${language}/${page}`, english).href;
      link.addEventListener("click", () => (link.hash = section()));
      header?.prepend(link);
    }
  });
})();
