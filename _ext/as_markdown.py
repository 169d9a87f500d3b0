"""A Markdown text of each page beside it, and `llms.txt`, the list of the texts (see llmstxt.org).

The texts are made from Sphinx's HTML, so citations, questions and docstrings are in them as
readers see them. Folded code is left out unless it is a solution, and a diagram is its description.
"""

import re
from pathlib import Path

import yaml
from bs4 import BeautifulSoup
from markdownify import markdownify

LINK = '<link rel="alternate" type="text/markdown" href="{}.md" />'
NOT_TEXT = "script, style, button, .headerlink, .eqno, .open-in-colab, .only-in-colab, .way, .expanded"
HEAD = """# {title}

> Eight chapters from a weighted average to multi-head attention, positions, the Transformer, a
> GPT of your own and what its heads learn, with code, questions and exercises; and `mha_lib`, the
> small PyTorch library that they build.
"""


def language(pre):
    """Return the language of a block of code."""
    return "python" if pre.find_parent(class_="highlight-python") else "text"


def text_of(body):
    """Return the Markdown of a page's HTML."""
    soup = BeautifulSoup(body, "html.parser")
    for code in soup.select("details.above-input"):
        if "Show solution" not in code.summary.text:
            code.decompose()
    for element in soup.select(NOT_TEXT):
        element.decompose()
    for equation in soup.select(".math"):
        dollars = "$$" if equation.name == "div" else "$"
        equation.string = dollars + equation.text.strip()[2:-2].strip() + dollars
    for diagram in soup.select('[role="img"][aria-label]'):
        description = f"Diagram: {diagram['aria-label']}"
        diagram.name, diagram.string = "p", description
    for label in soup.select("summary"):
        label.wrap(soup.new_tag("p")).append(label.extract())
        label.name, label.string = "strong", label.text.strip()
    for signature in soup.select("dt.sig"):
        signature.name, signature.string = "h3", " ".join(signature.text.split())
    for link in soup.select("a[href]"):
        del link["title"]
        if "://" not in link["href"]:  # a text links to texts
            link["href"] = re.sub(r"\.html(?=#|$)", ".md", link["href"])
    plain = {"escape_asterisks": False, "escape_underscores": False}
    options = {"heading_style": "ATX", "bullets": "-", **plain}
    return markdownify(str(soup), code_language_callback=language, **options)


def write_text(app, pagename, templatename, context, doctree):
    """Write a page's text beside the page, which names it in its head."""
    if doctree is not None:
        path = Path(app.outdir, f"{pagename}.md")
        path.parent.mkdir(exist_ok=True)
        path.write_text(text_of(context["body"]).strip() + "\n", encoding="utf-8")
        context["metatags"] = context.get("metatags", "") + LINK.format(path.stem)


def write_list(app):
    """Write `llms.txt` from the table of contents."""
    contents = yaml.safe_load(Path(app.srcdir, "_toc.yml").read_text(encoding="utf-8"))
    first = {"caption": "First page", "chapters": [{"file": contents["root"]}]}
    lines = [HEAD.format(title=app.config.html_title)]
    for part in [first, *contents["parts"]]:
        names = [chapter["file"] for chapter in part["chapters"]]
        lines += [f"## {part['caption']}", ""]
        lines += [f"- [{app.env.titles[name].astext()}]({name}.md)" for name in names]
        lines.append("")
    Path(app.outdir, "llms.txt").write_text("\n".join(lines), encoding="utf-8")
