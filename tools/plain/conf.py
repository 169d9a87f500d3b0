"""The settings of the book for Sphinx alone: those of _config.yml, and what Jupyter Book would add to them.

`make newest` builds the book from them each week. Should Jupyter Book break, this file takes its place.
"""

import sys
from pathlib import Path

import yaml

ROOT = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT / "_ext"))

book = yaml.safe_load((ROOT / "_config.yml").read_text(encoding="utf-8"))
globals().update(book["sphinx"]["config"])
for name in ("jupyter_book", "sphinx_comments"):
    extensions.remove(name)

html_title = project = book["title"]
author, copyright = book["author"], book["copyright"]  # noqa: A001, Sphinx's names
exclude_patterns = book["exclude_patterns"]
external_toc_path = str(ROOT / "_toc.yml")
external_toc_exclude_missing = book["only_build_toc_files"]
bibtex_bibfiles = [str(ROOT / name) for name in book["bibtex_bibfiles"]]
myst_enable_extensions = book["parse"]["myst_enable_extensions"]
nb_execution_mode = book["execute"]["execute_notebooks"]
nb_output_stderr = book["execute"]["stderr_output"]
numfig, suppress_warnings = True, ["myst.domains"]
html_theme = "sphinx_book_theme"
html_theme_options |= {f"repository_{k}": v for k, v in book["repository"].items()}
for name in ("use_repository_button", "use_issues_button", "extra_footer"):
    html_theme_options[name] = book["html"][name]
html_theme_options["launch_buttons"] = book["launch_buttons"]
html_favicon = str(ROOT / book["html"]["favicon"])
html_static_path = [str(ROOT / "_static")]
html_css_files = [path.name for path in sorted((ROOT / "_static").glob("*.css"))]
html_js_files = [path.name for path in sorted((ROOT / "_static").glob("*.js"))]
html_sourcelink_suffix = ""
