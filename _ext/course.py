"""Additions to Jupyter Book for this book.

They provide pages that need no network, stills that replace widgets, and docstrings in the library's style.
"""

import json
import re
import sys
from pathlib import Path

from docutils import nodes
from sphinx.addnodes import desc_signature
from sphinx.transforms.post_transforms import SphinxPostTransform
from sphinx.util.inspect import signature as read_signature
from sphinx.util.inspect import stringify_signature
from sphinx.util.nodes import make_refnode

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT / "tools"))

from as_markdown import write_list, write_text  # noqa: E402
from built import write_home  # noqa: E402
from captions import fold_measurements, put_numbers  # noqa: E402
from drawings import put_back  # noqa: E402
from equations import set_all_equations  # noqa: E402
from feedback import put_feedback  # noqa: E402
from in_page import put_buttons, write_in_page  # noqa: E402
from languages import (  # noqa: E402
    MarkUntranslated,
    translate_interface,
    translate_notebook,
    translate_scripts,
)
from lighten import lighten_site  # noqa: E402
from moved import write_moved  # noqa: E402
from offline import write_offline  # noqa: E402
from rosetta_notebooks import write_notebooks  # noqa: E402
from search_words import add_search_words, keep_index_entries  # noqa: E402
from security import secure_pages  # noqa: E402
from set_repository import PUBLISHED  # noqa: E402
from shared import name_address, tags_of, write_shared  # noqa: E402
from typefaces import STYLE as TYPEFACES  # noqa: E402
from widget_files import write_files  # noqa: E402

from mha_lib import __version__  # noqa: E402

WIDGET_VIEW = "application/vnd.jupyter.widget-view+json"

BOOK = f"&body=Book%20{__version__}%2C%20section%3A%20"

HEAD = """<noscript><style>.widget-host { display: none; }
.widget-still { display: block !important; }</style></noscript>"""

# These scripts come before the theme's, because they decide whether those work.
FIRST = ("storage.js", "old_browser.js")
DECODES_TYPEFACES = "typefaces.js"
LANDING = "landing.css"


class KeepStill(SphinxPostTransform):
    """Keep the figure or text that a widget's output also contains, for print and for pages without scripts.

    A notebook output contains the same thing in several formats. With priority 4, MyST-NB picks one of them,
    here the widget, so this transform runs just before. Style sheets decide when the still is shown.
    """

    default_priority = 3
    formats = ("html",)

    def run(self):
        for bundle in list(self.document.findall(nodes.container)):
            if bundle.get("nb_element") != "mime_bundle":
                continue
            formats = {child["mime_type"]: child for child in bundle.children}
            stand_in = formats.get("image/png") or formats.get("text/html")
            if WIDGET_VIEW in formats and stand_in:
                still = nodes.container(classes=["widget-still"])
                still += [child.deepcopy() for child in stand_in.children]
                for image in still.findall(nodes.image):
                    # The browser does not fetch the picture while it shows the widget instead.
                    image["loading"] = "lazy"
                formats[WIDGET_VIEW] += still


def prepare_notebook(app, docname, source):
    """Put back the graphics that a notebook stores as images, number figures, fold measurements."""
    path = Path(app.env.doc2path(docname))
    if path.suffix == ".ipynb":
        notebook = json.loads(source[0])
        for cell in notebook["cells"]:
            put_back(cell.get("outputs", []))
            cell["metadata"]["id"] = cell.get(
                "id"
            )  # MyST-NB passes on only the metadata
        put_numbers(path.stem, notebook)
        fold_measurements(notebook, printed=True)
        source[0] = json.dumps(notebook)


def load_only_where_needed(app, config):
    """Jupyter Book would load every script and style sheet of _static in every page.

    MyST-NB adds the scripts of widgets where they are needed, and `complete_page` the first scripts and the
    style sheet of the landing page.
    """
    elsewhere = {*config.nb_ipywidgets_js, *FIRST, DECODES_TYPEFACES, LANDING}
    for name in ("html_js_files", "html_css_files"):
        own = [file for file in getattr(config, name) if file not in elsewhere]
        setattr(config, name, own)


def sig_lines(match):
    """Return the arguments of a signature, one per line."""
    lines = re.sub(r"(</?)dd>", r"\1div>", match[1])
    return f'<div class="sig-lines">\n{lines}</div>'


# HTML from the tools that would hinder some readers, and its replacements.
REPAIRS_OF_BODY = [
    # Every collapsed cell has the label "Toggle hidden content"; its own text says more.
    (r'<summary aria-label="Toggle hidden content">', "<summary>"),
    # A reference is a list item; ARIA has deprecated the role doc-biblioentry.
    (r'(<div class="citation" id="[^"]*" role=)"doc-biblioentry"', r'\1"listitem"'),
    # The arguments of a signature, one per line, are not a definition list, because they define nothing.
    (r'<dl>\n((?:<dd><em class="sig-param.*</dd>\n)+)</dl>', sig_lines),
    # An empty cell above a column is not a header.
    (r"<th( class=\"[^\"]*\")?>(?:<p></p>)?\s*</th>", r"<td\1></td>"),
]
REPAIRS_OF_PAGE = [
    # The sidebar, with the home link, the search and the table of contents, is a landmark.
    (r'<div id="pst-primary-sidebar"', r'\g<0> role="navigation" aria-label="Book"'),
    # The page sets light or dark mode at once and does not wait for the theme's scripts, so nothing flashes
    # or moves. Without scripts, a page is in light mode; otherwise it would lack the theme's colours.
    (r'(<html [^>]*data-theme=)"auto"', r'\1"light"'),
    (
        r'(dataset\.theme = localStorage\.getItem\("theme"\) \|\| )"auto"',
        r'\1(matchMedia("(prefers-color-scheme: dark)").matches ? "dark" : "light")',
    ),
    # The accessible name of the button is its text: "Search Ctrl+K".
    (r'(<button class="[^"]*search-button-field[^>]*) aria-label="Search"', r"\1"),
]


def repair(html, repairs):
    """Apply all replacements."""
    for pattern, replacement in repairs:
        html = re.sub(pattern, replacement, html)
    return html


def link_to_published(html, options):
    """Make the links that open notebooks in Colab lead to the published copies instead of the branch.

    A published copy names the files that the book serves by their SHA-256, which git does not contain.
    """
    repository = options["repository_url"].removeprefix("https://github.com/")
    start = f"{options['launch_buttons']['colab_url']}/github/{repository}/blob"
    branch = options["repository_branch"]
    return html.replace(f"{start}/{branch}/", f"{start}/{PUBLISHED}/")


def complete_page(app, pagename, templatename, context, doctree):
    """Add what comes before the theme's scripts and, below the title of a chapter, the link to Colab."""
    scripts = "".join(
        f'<script src="{context["pathto"](f"_static/{name}", 1)}"></script>'
        for name in FIRST
    )
    if pagename == app.config.root_doc:
        app.add_css_file(LANDING)
    # Sphinx would add a file that the build has not written yet in another form than in the next build.
    sheet = context["pathto"](f"_static/{TYPEFACES}", 1)
    typefaces = f'<link rel="stylesheet" href="{sheet}" />'
    decoder = context["pathto"](f"_static/{DECODES_TYPEFACES}", 1)
    typefaces += f'<script src="{decoder}"></script>'
    about = "" if doctree is None else tags_of(app, pagename, context, doctree)
    parts = (HEAD, scripts, typefaces, about, context.get("metatags", ""))
    context["metatags"] = "\n".join(parts)
    body = repair(context.get("body", ""), REPAIRS_OF_BODY)
    if doctree is not None and Path(app.env.doc2path(pagename)).suffix == ".ipynb":
        options = app.config.html_theme_options
        repository = options["repository_url"].removeprefix("https://github.com/")
        notebook = f"{repository}/blob/{PUBLISHED}/{pagename}.ipynb"
        address = f"{options['launch_buttons']['colab_url']}/github/{notebook}"
        link = f'<p class="open-in-colab"><a href="{address}">Open in Colab</a></p>'
        body = body.replace("</h1>", f"</h1>\n{link}", 1)
    context["body"] = body


def repair_pages(app):
    """Repair the HTML that the theme's templates write around the text of each page."""
    for path in Path(app.outdir).rglob("*.html"):
        html = whole = path.read_text(encoding="utf-8")
        if 'aria-label="Book"' not in html and "pst-primary-sidebar" in html:
            whole = repair(whole, REPAIRS_OF_PAGE)
        whole = link_to_published(whole, app.config.html_theme_options)
        # An issue names its book. The theme names only the page, with "content here" for the reader.
        whole = whole.replace("&body=Your%20issue%20content%20here.", BOOK)
        if whole != html:
            path.write_text(whole, encoding="utf-8")


def take_docstring_literally(app, what, name, obj, options, lines):
    """Keep the stars and bars of a docstring, because |x| and *shape are formulas, not markup.

    Text between backticks and the example at the end are already literal.
    """
    text = "\n".join(lines)
    prose, *example = re.split(r"(?m)^(?=Example:$)", text, maxsplit=1)
    prose = re.sub(r"(`[^`]*`)|([*|])", lambda m: m[1] or f"\\{m[2]}", prose)
    lines[:] = (prose + "".join(example)).split("\n")


def complete_signature(app, what, name, obj, options, signature, returns):
    """Show the arguments of a widget's constructor, which traitlets hides, but not private option types."""
    if what == "class" and "*args" in (signature or "") and "__init__" in vars(obj):
        own = read_signature(obj.__init__, bound_method=True)
        short = {"show_return_annotation": False, "unqualified_typehints": True}
        signature = stringify_signature(own, **short)
    if signature is None:  # an attribute
        return None
    signature = re.sub(r"(\*\*\w+): [~\w.]*Unpack\[[^]]*\]", r"\1", signature)
    # A default that a factory creates for each object has no text that Sphinx can parse.
    return signature.replace("<factory>", "..."), returns


def quote_as_in_the_source(app, domain, objtype, content):
    """Write strings in a signature in double quotes, as in the source; Python's repr uses single quotes."""
    for signature in content.parent.findall(desc_signature):
        for text in list(signature.findall(nodes.Text)):
            if "'" in text:
                text.parent.replace(text, nodes.Text(text.replace("'", '"')))


def find_by_short_name(app, env, node, content):
    """Resolve the names of the library's functions and classes in docstrings and chapters without modules."""
    if node.get("refdomain") != "py":
        return None
    ending, known = f".{node['reftarget']}", env.get_domain("py").objects.items()
    found = [entry for name, entry in known if name.endswith(ending)]
    found = [entry for entry in found if entry.objtype in ("function", "class")]
    if len(found) != 1:
        return None
    source, [target] = node["refdoc"], found
    return make_refnode(app.builder, source, target.docname, target.node_id, content)


def put_code_below(app, doctree, docname):
    """Put the code of a cell tagged code-below after its output, for readers who want to see it.

    A style sheet could do so only after the browser had drawn the code, which would then jump down.
    """
    for cell in doctree.findall(nodes.container):
        if "tag_code-below" in cell["classes"]:
            cell.children.reverse()


def put_picture_first(app, doctree, docname):
    """Show what a cell tagged opening-picture draws below the title, though the set-up has to run before."""
    for cell in list(doctree.findall(nodes.container)):
        if "tag_opening-picture" in cell["classes"]:
            title = next(doctree.findall(nodes.title))
            cell.parent.remove(cell)
            title.parent.insert(title.parent.index(title) + 1, cell)


def finish(app, exception):
    """Change the finished pages. A page's policy names its scripts, so nothing may change them afterwards."""
    if not exception and app.builder.format == "html":
        steps = [
            translate_interface,
            set_all_equations,
            repair_pages,
            write_notebooks,
            lighten_site,
        ]
        # The last ones write scripts, which lighten_site would read.
        steps += [write_moved, write_shared, secure_pages, write_files]
        steps += [
            write_in_page,
            translate_scripts,
            write_list,
            write_offline,
            keep_index_entries,
        ]
        for step in steps:
            step(app)


def setup(app):
    """Register these functions with Sphinx."""
    app.add_post_transform(KeepStill)
    app.add_transform(MarkUntranslated)
    # This must run before napoleon, which turns sections into markup.
    app.connect("autodoc-process-docstring", take_docstring_literally, priority=100)
    app.connect("autodoc-process-signature", complete_signature)
    app.connect("object-description-transform", quote_as_in_the_source)
    app.connect("missing-reference", find_by_short_name)
    app.connect("source-read", translate_notebook)
    app.connect("source-read", prepare_notebook)
    app.connect("doctree-read", add_search_words)
    app.connect("doctree-resolved", put_buttons)
    app.connect("doctree-resolved", put_code_below)
    app.connect("doctree-resolved", put_picture_first)
    app.connect("config-inited", load_only_where_needed)
    app.connect("config-inited", name_address)
    app.connect("config-inited", write_home)  # before Sphinx reads the page
    app.connect("html-page-context", write_text, priority=800)
    app.connect("html-page-context", put_feedback, priority=850)
    app.connect("html-page-context", complete_page, priority=900)
    # This must run after the theme, which writes its code colours at the same event.
    app.connect("build-finished", finish, priority=900)
    return {"version": "1", "parallel_read_safe": True, "parallel_write_safe": True}
