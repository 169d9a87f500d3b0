// Gathers the pages of the built book in one document, for paper and for e-readers.
//
// tools/paper.py runs this in an empty page at the book's address. It reads the pages as text, so none of their scripts
// run. Each page becomes a section. What needs a mouse or a keyboard is removed, what is folded is opened, and solutions
// and answers move to the end; a link at each end leads to the other. For a book in another language, tools/paper.py
// translates whole strings.

const SOLUTIONS = ["Show solution", "Solution", "Answer", "Why the tempting answer fails"];
const SOLUTION = new RegExp("^(" + SOLUTIONS.join("|") + ")");
const USELESS = `script, style, button, input, .headerlink, .open-in-colab, .only-in-colab, .widget-host, .way-and-caption,
  .toctree-wrapper, .flow > label, .tile-steps > label`;
const UNUSED = ["for", "aria-labelledby", "aria-describedby", "aria-controls", "loading", "tabindex"];
const all = (root, selector) => [...root.querySelectorAll(selector)];

function make(tag, attributes = {}, ...children) {
  const element = document.createElement(tag);
  for (const [name, value] of Object.entries(attributes)) element.setAttribute(name, value);
  element.append(...children);
  return element;
}

/** A link to a place in the book; on paper it names the page (see numberPages). */
const linkTo = (id, ...children) => make("a", { href: `#${id}` }, ...children, make("span", { "data-page": id }));

/** The pages in the order of the sidebar: the name, path and caption of each, and a section with its content. */
async function readPages() {
  const read = async (path) =>
    new DOMParser().parseFromString(await (await fetch(`/${path}`)).text(), "text/html");
  const pages = [];
  let part = "";
  for (const line of all(await read("index.html"), "nav.bd-links :is(.caption, a)")) {
    const href = line.getAttribute("href");
    if (href) pages.push({ part, path: href === "#" ? "index.html" : href });
    else part = line.textContent.trim();
  }
  for (const page of pages) {
    page.name = `p-${page.path.replace(/^.*\/|\.html$/g, "")}`;
    const article = (await read(page.path)).querySelector("article.bd-article");
    page.root = make("section", { id: page.name, class: "page" }, ...article.childNodes);
  }
  return pages;
}

/** Removes what does not work on paper, and says where a widget moves. */
function stopMoving({ path, root }, site) {
  for (const stub of all(root, ".cell:has(> [data-check], > .only-in-colab)")) {
    stub.nextElementSibling.querySelector(".cell_output")?.remove(); // the check reports only that the stub is empty
  }
  for (const details of all(root, "details.above-input")) {
    if (!SOLUTION.test(details.innerText.trim())) details.remove(); // code that draws, not to be learned from
  }
  const sayWhere = (element, text) => {
    const place = `${site}/${path}#${element.closest("section[id]").id}`;
    element.append(make("p", { class: "move-it" }, text, make("a", { href: place }, place)));
  };
  for (const still of all(root, ".widget-still:not(:has(details))")) {
    sayWhere(still, still.querySelector("img") ? "Move it in the book: " : "In the book: ");
  }
  for (const files of all(root, "details.sd-dropdown")) { // pages of code that nobody can copy from paper
    const text = files.querySelector("summary").textContent.trim();
    files.replaceChildren(make("summary", {}, text));
    sayWhere(files, "In the book: ");
  }
  for (const element of all(root, USELESS)) element.remove();
  for (const code of all(root, "pre")) code.classList.toggle("keep", code.textContent.split("\n").length < 25);
}

/** Makes ids unique in the whole document, and lets links lead to them, or else to the book on the web. */
function renameIds({ name: page, path, root }, names, site) {
  const drawings = all(root, "svg"); // several contain markers of the same name
  for (const element of all(root, "*")) {
    const drawing = drawings.indexOf(element.closest("svg"));
    const name = drawing < 0 ? page : `${page}--${drawing}`;
    for (const { name: attribute, value } of [...element.attributes]) {
      const set = (text) => element.setAttribute(attribute, text);
      const url = ["href", "src"].includes(attribute) && new URL(value, `${location.origin}/${path}`);
      if (attribute === "id") set(`${name}--${value}`);
      else if (UNUSED.includes(attribute)) element.removeAttribute(attribute);
      else if (value.includes("url(#")) set(value.replaceAll("url(#", `url(#${name}--`));
      else if (attribute === "src") set(url.pathname);
      else if (url && url.origin === location.origin) {
        const target = names.get(url.pathname.slice(1));
        set(target ? `#${target}${url.hash.replace("#", "--")}` : site + url.pathname + url.hash);
      }
    }
  }
}

/** Opens what is folded, and moves solutions and answers to a section of their own, which it returns. */
function unfold({ name, root }) {
  const moved = make("section", { class: "solutions", id: `solutions-${name}` });
  let count = 0, section;
  for (const details of all(root, "details")) {
    const summary = details.querySelector("summary");
    const label = (summary.querySelector(".collapsed") ?? summary).textContent.trim().replace("Show solution", "Solution");
    summary.remove();
    const block = make("div", { class: label.startsWith("Hint") ? "unfolded hint" : "unfolded" });
    if (SOLUTION.test(label) && !details.parentElement.closest(".unfolded, details")) {
      const text = `${label} ${(count += 1)}`, here = `${name}--ask-${count}`, there = `${name}--solve-${count}`;
      const heading = details.closest("section").querySelector("h1, h2, h3, h4");
      if (heading !== section) moved.append(make("h3", {}, heading.textContent));
      section = heading;
      block.append(make("p", { class: "lead", id: there }, linkTo(here, text)), ...details.childNodes);
      moved.append(block);
      details.replaceWith(make("p", { class: "lead", id: here }, linkTo(there, text)));
    } else {
      block.append(make("p", { class: "unfolded-title" }, label), ...details.childNodes);
      details.replaceWith(block);
    }
  }
  if (count) moved.prepend(make("h2", {}, root.querySelector("h1").textContent));
  return moved;
}

/** An entry of the contents: a section, and below it the sections that it contains. */
function entryOf(root) {
  const entry = make("li", {}, linkTo(root.id, make("span", {}, root.querySelector("h1, h2").textContent)));
  const inner = all(root, "h2").map((heading) => heading.parentElement).filter((part) => part !== root);
  if (inner.length) entry.append(make("ol", {}, ...inner.map(entryOf)));
  return entry;
}

/** The picture on the cover: the first of chapter 3, or else of the first page that has one. */
function coverPicture(pages) {
  const [chapter] = pages.filter(({ name }) => name === "p-03_multi_head_attention");
  const picture = [chapter, ...pages].map((page) => page?.root.querySelector("svg[role=img], img")).find(Boolean);
  if (!picture) return [];
  const copy = picture.cloneNode(true);
  copy.removeAttribute("style"); // its size on a screen
  for (const element of all(copy, "[id]")) element.removeAttribute("id"); // ids are unique in the book
  return [copy];
}

/** Builds the document: the cover, the contents, the pages and the solutions. */
async function makeBook({ title, author, version, site }) {
  const pages = await readPages();
  const names = new Map(pages.map(({ path, name }) => [path, name]));
  const solutions = make("section", { id: "solutions", class: "page" }, make("h1", {}, "Solutions and answers"));
  const sections = [...pages.map(({ root }) => root), solutions];
  const contents = make("ol");
  let list = contents, part = "";
  for (const page of pages) {
    stopMoving(page, site);
    renameIds(page, names, site);
    const moved = unfold(page);
    if (moved.firstChild) solutions.append(moved);
    if (page.part !== part) {
      contents.append(make("li", {}, make("span", { class: "part" }, page.part), (list = make("ol"))));
      part = page.part;
    }
    list.append(entryOf(page.root));
  }
  contents.append(entryOf(solutions));
  document.body.append(
    make("section", { id: "cover", class: "cover page" }, make("p", { class: "title" }, title), ...coverPicture(pages),
      make("p", {}, author), make("p", {}, `Version ${version}. In the book on the web, everything moves:`),
      make("p", {}, make("a", { href: site }, site))),
    make("section", { id: "contents", class: "page" }, make("h1", {}, "Contents"), make("nav", {}, contents)),
    ...sections);
  const heads = sections.map((root) => `#${root.id} { page: ${root.id} }
    @page ${root.id} { @top-right { content: ${JSON.stringify(root.querySelector("h1").textContent)}; font: 9pt Text, Hanzi; } }`);
  document.head.append(make("title", {}, title), make("style", {}, heads.join("\n")));
  for (const link of all(document, '[href^="#"]')) {
    const id = link.getAttribute("href").slice(1);
    if (!document.getElementById(id)) throw new Error(`a link leads to #${id}, which is nowhere in the book`);
  }
  await Promise.all([document.fonts.ready, ...[...document.images].map((picture) => picture.decode())]);
}

/** Shrinks what is too wide, and returns a sentence about each thing that would still be cut off. */
function fitBook(height) {
  const width = document.body.clientWidth;
  for (const element of all(document, ".page :is(table, pre, svg, dl, div.math, .steps)")) {
    let zoom = 1;
    while (zoom > 0.6 && element.getBoundingClientRect().right + element.scrollWidth - element.clientWidth > width + 1) {
      element.style.zoom = zoom -= 0.05;
    }
  }
  return all(document, ".page *:not(mjx-container *)").flatMap((element) => {
    const box = element.getBoundingClientRect(), text = element.textContent.trim().slice(0, 50);
    const what = `${element.closest(".page").id.replace("p-", "")}: <${element.localName}> “${text}”`;
    const tall = element.matches("img, svg, tr, div.math") && box.height > height;
    if (element.matches(".widget-still img") && box.width < element.naturalWidth / 2) return [`${what} would be too small to read`];
    if (box.right > width + 1) return [`${what} needs ${Math.round(box.right)} pixels, and a page has ${width}`];
    return tall ? [`${what} is higher than a page`] : [];
  });
}

/** Writes the page numbers; before they are known, placeholders of the same width. */
function numberPages(numbers) {
  for (const place of all(document, "[data-page]")) {
    const number = numbers[place.dataset.page] ?? "000";
    place.textContent = place.closest("nav") ? number : ` · page ${number}`;
  }
}

/** The sections as files for an e-reader: for each its name, its title and its text as XHTML. */
function filesForReaders() {
  for (const link of all(document, '[href^="#"]')) {
    const id = link.getAttribute("href").slice(1);
    link.setAttribute("href", `${document.getElementById(id).closest(".page").id}.xhtml#${id}`);
  }
  for (const picture of document.images) picture.setAttribute("src", picture.getAttribute("src").slice(1));
  for (const equation of all(document, "mjx-container")) equation.replaceWith(equation.querySelector("math"));
  for (const place of all(document, "[data-page]")) place.remove();
  document.querySelector("nav").setAttributeNS("http://www.idpf.org/2007/ops", "epub:type", "toc");
  const title = (section) => section.querySelector("h1, .title").textContent;
  const write = (section) => new XMLSerializer().serializeToString(section);
  return all(document, ".page").map((section) => ({ name: section.id, title: title(section), text: write(section) }));
}
