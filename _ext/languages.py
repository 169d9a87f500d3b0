"""The book in another language: what Sphinx, which translates the text of the pages, does not translate.

These are the questions and the other texts that widgets hold, which notebooks store with the widgets' states,
and short strings of the theme and of the course around the text, such as the titles of folds.
"""

import functools
import json
import re
from pathlib import Path

from babel.messages.pofile import read_po
from docutils import nodes
from drawings import put_back, with_labels
from markdown_it import MarkdownIt
from sphinx.errors import SphinxError
from sphinx.search import languages as search_languages
from sphinx.search.en import SearchEnglish
from sphinx.transforms import SphinxTransform
from texts import with_strings
from translate import ENGLISH, has_words

ROOT = Path(__file__).resolve().parent.parent
STATES = "application/vnd.jupyter.widget-state+json"
HTML = "text/html"
PARAGRAPH = re.compile(
    r"(<(p|li|summary)>)((?:(?!</?(?:p|li|[uo]l|details|summary)\b).)*)(?=</\2>)"
)

# Elsewhere in the state of a widget, one word may be a value that only its code knows.
ONE_WORD = {"tasks", "names", "measure", "choices", "columns", "states", "sentences"}

CHINESE = "\u4e00-\u9fff"
SPLIT = """function splitQuery(query) {
  const words = query.match(/[CHINESE]+|(?:(?![CHINESE])[\\p{Letter}\\p{Number}_])+/gu) ?? [];
  const pairs = (word) => [...word.slice(1)].map((second, i) => word[i] + second);
  return words.flatMap((word) => /[CHINESE]{3}/.test(word) ? pairs(word) : word);
}
""".replace("CHINESE", CHINESE)


class SearchPairs(SearchEnglish):
    """Chinese does not separate words, so each pair of neighbouring characters is one."""

    js_splitter_code = SPLIT

    def split(self, input):  # noqa: A002, Sphinx's name
        """Return the words of a text."""
        found = []
        for word in re.findall(rf"[{CHINESE}]+|[^\W{CHINESE}]+", input):
            is_long = len(word) > 2 and re.match(f"[{CHINESE}]", word)
            found += (
                [word[i : i + 2] for i in range(len(word) - 1)] if is_long else [word]
            )
        return found


search_languages["zh"] = f"{__name__}.SearchPairs"


def catalog(app, domain):
    """Return the translations of a domain, message -> text."""
    [folder] = app.config.locale_dirs
    path = Path(app.srcdir, folder, app.config.language, "LC_MESSAGES", f"{domain}.po")
    if not path.exists():
        raise SphinxError(
            f"{path} is missing: there is no translation into {app.config.language}"
        )
    return translations(path)


@functools.cache
def translations(path):
    """Return what is translated in a file, message -> text. Many pages need the same files."""
    with path.open("rb") as file:
        return {
            one.id: one.string
            for one in read_po(file)
            if one.id and one.string and not one.fuzzy
        }


def is_other(app):
    """Whether the book is built in another language than the one that it is written in."""
    return app.config.language != "en"


class MarkUntranslated(SphinxTransform):
    """Mark each paragraph and title that has no translation yet; the style sheet says so before it.

    Sphinx's own translation_progress_classes also marks formulas, which are then set wrongly.
    """

    default_priority = 950  # after Sphinx has translated the page

    def apply(self):
        """Give what is still English a class of its own."""
        page = self.env.docname
        if not is_other(self.app) or page in ENGLISH:
            return
        # A name stays as it is, and Sphinx takes it for open.
        same = catalog(self.app, page)
        for kind in (nodes.paragraph, nodes.title):
            for node in self.document.findall(kind):
                message = node.rawsource.replace("\n", " ").strip()
                is_open = node.get("translated") is False and message not in same
                if is_open and has_words(message):
                    node["classes"].append("untranslated")


def translated(value, known, name=""):
    """Return a value of JSON in which each string that is a known message is replaced.

    One word is a message only under one of the names in ONE_WORD.
    """
    if isinstance(value, str):
        may_be_value = " " not in value and name not in ONE_WORD
        return value if may_be_value else known.get(value, value)
    if isinstance(value, list):
        return [translated(one, known, name) for one in value]
    if isinstance(value, dict):
        inside = name == "sentences"  # whose names are those of the messages
        return {
            key: translated(one, known, name if inside else key)
            for key, one in value.items()
        }
    return value


def paragraph(text, written):
    """Return the translation of a paragraph, which may be a short answer with an explanation behind it."""
    if text in written:
        return written[text]
    for stop in re.finditer(r"\. ", text):
        answer, explanation = text[: stop.start()], text[stop.end() :]
        if explanation in written:
            return f"{written.get(answer, answer)}。{written[explanation]}"
    return text


@functools.cache
def in_html(text):
    """Return a message as it stands in an output. Every notebook looks for all of them."""
    return MarkdownIt().renderInline(text)


def translate_outputs(notebook, known, drawn):
    """Translate a notebook's widgets, the paragraphs that stand in for them, and what drawings say."""
    held = notebook["metadata"].get("widgets", {}).get(STATES, {}).get("state", {})
    for model in held.values():
        model["state"] = translated(model["state"], known)
    known_texts = (drawn | known).items()
    written = {in_html(text): in_html(other) for text, other in known_texts}
    for cell in notebook["cells"]:
        put_back(cell.get("outputs", ()))
        if image := cell.get("metadata", {}).get("mystnb", {}).get("image"):
            image["alt"] = drawn.get(image["alt"], image["alt"])
        for output in cell.get("outputs", ()):
            data = output.get("data", {})
            if HTML in data:
                page = PARAGRAPH.sub(
                    lambda found: found[1] + paragraph(found[3], written),
                    "".join(data[HTML]),
                )
                data[HTML] = with_labels(page, drawn)


def translate_notebook(app, docname, source):
    """Translate what Sphinx leaves as it is in a notebook."""
    if is_other(app) and Path(app.env.doc2path(docname)).suffix == ".ipynb":
        notebook = json.loads(source[0])
        known = catalog(app, "texts") | catalog(app, "labels")
        translate_outputs(notebook, known, catalog(app, "drawings"))
        source[0] = json.dumps(notebook, ensure_ascii=False)


def code_translator(app):
    """Return a function of the states of a page's widgets that translates the strings in their code."""
    if not is_other(app):
        return lambda states: states
    known = catalog(app, "widgets")

    def translate(states):
        for model in states["state"].values():
            if "_esm" in model["state"]:
                model["state"]["_esm"] = with_strings(model["state"]["_esm"], known)
        return states

    return translate


def translate_interface(app):
    """Translate what stands around the text of the finished pages: texts of elements, titles and labels."""
    if not is_other(app):
        return
    known = catalog(app, "interface")
    keys = "|".join(map(re.escape, sorted(known, key=len, reverse=True)))
    # What is emphasised or code names a part of a widget or of a program.
    text = re.compile(
        rf'(<(?!em|strong|code|span class="pre")[^>]*>\s*)({keys})(?=\s*<)'
    )
    label = re.compile(
        rf'(\s(?:aria-label|title|placeholder|data-bs-title|alt)=")({keys})(?=")'
    )
    for path in Path(app.outdir).rglob("*.html"):
        page = path.read_text("utf-8")
        for pattern in (text, label):
            page = pattern.sub(lambda found: found[1] + known[found[2]], page)
        path.write_text(page, "utf-8")


def translate_scripts(app):
    """Translate the strings in the scripts of the book itself, such as the labels of its buttons."""
    if is_other(app):
        known = catalog(app, "widgets")
        static = Path(app.outdir, "_static")
        for path in (static / one.name for one in ROOT.glob("_static/*.js")):
            path.write_text(with_strings(path.read_text("utf-8"), known), "utf-8")
        # Sphinx makes a function of a text here, which a page's policy forbids; Chinese has one plural form.
        script = static / "doctools.js"
        script.write_text(
            re.sub(r"new Function\([^;]*\);", "() => 0;", script.read_text("utf-8")),
            "utf-8",
        )
