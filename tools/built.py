"""Collect what the cells of all pages define: the pieces that readers write, and where each name comes from.

    python tools/built.py [--check]

`mha_course/built.py` has the definitions from the cells tagged `build`, each function once: later chapters
and appendices import from it what the reader has written in earlier ones. `mha_course/cells.json` lists the
names that each cell binds, with the section of its page, for a reader whose kernel has forgotten them. `make
notebooks` writes both. With --check, nothing is written; the exit status is 1 if they differ from the pages.

From the same pieces and `mha_course/_my_gpt.py`, the build of the book makes `chapters/my_gpt.py`, which
readers can take home; notebooks and pages make it of the reader's own.
"""

import ast
import copy
import json
import re
import sys
from pathlib import Path

from mha_course._resume import digest
from mha_course._take_home import grouped, take_home

ROOT = Path(__file__).resolve().parent.parent
TARGET, WHERE = ROOT / "mha_course" / "built.py", ROOT / "mha_course" / "cells.json"
HOME = ROOT / "chapters" / "my_gpt.py"
DEFINES = ast.FunctionDef | ast.ClassDef
HEAD = '''"""What the reader of this course builds, chapter by chapter; nothing here uses `mha_lib`.

`make notebooks` writes this file from the cells tagged `build`: change it there.
"""
'''


def cells(path):
    """Yield the syntax, the source and the tags of a notebook's code cells, without the set-up for Colab."""
    for cell in json.loads(path.read_text(encoding="utf-8"))["cells"]:
        if cell["cell_type"] == "code" and cell["id"] != "setup":
            source = "".join(cell["source"])
            yield ast.parse(source), source, cell["metadata"].get("tags", [])


def collected(root=ROOT):
    """Return the imports of the pages, {name: line}, and the pieces that their cells tagged `build` define.

    A piece is (page, source, names that it uses). Statements that only try out the definitions are left out,
    and so are decorators, which are for the page. If a name is defined twice, the later definition counts.
    """
    imports, parts = {}, {}
    for path in sorted(root.glob("chapters/*.ipynb")):
        for tree, source, tags in cells(path):
            for node in tree.body:
                if isinstance(node, ast.Import | ast.ImportFrom):
                    for alias in node.names:
                        one = copy.copy(node)
                        one.names = [alias]
                        imports.setdefault(alias.asname or alias.name, ast.unparse(one))
                elif "build" in tags and isinstance(node, DEFINES):
                    lines = source.splitlines()[node.lineno - 1 : node.end_lineno]
                    node.decorator_list = []
                    parts[node.name] = path.stem, "\n".join(lines), names_in(node)
    ours = ("from mha_", "import mha_")
    return {k: v for k, v in imports.items() if not v.startswith(ours)}, parts


def where_names_come_from(root=ROOT):
    """Return as JSON, for each page, its title and its cells in order: [digest, section, "names bound"]."""
    pages = []
    for path in [root / "index.ipynb", *sorted(root.glob("chapters/*.ipynb"))]:
        headings, found = [], []
        for cell in json.loads(path.read_text(encoding="utf-8"))["cells"]:
            source = "".join(cell["source"])
            if cell["cell_type"] == "markdown":
                headings += re.findall(r"^#+ (.+)$", source, re.MULTILINE)
            elif cell["id"] != "setup":
                names = " ".join(sorted(bound_by(ast.parse(source))))
                found.append([digest(source), plain(headings[-1]), names])
        lines = ",\n".join(json.dumps(cell, ensure_ascii=False) for cell in found)
        title = json.dumps(plain(headings[0]), ensure_ascii=False)
        pages.append(f'"{path.stem}": {{"title": {title}, "cells": [\n{lines}\n]}}')
    return "{" + ",\n".join(pages) + "}\n"


def plain(heading):
    """Return a heading without the marks of Markdown."""
    return re.sub(r"[*`]", "", heading).strip()


def bound_by(tree):
    """Return the names that a cell binds for later cells, not those inside its functions and classes."""
    found, waiting = set(), list(tree.body)
    while waiting:
        node = waiting.pop()
        if isinstance(node, DEFINES):
            found.add(node.name)
        elif isinstance(node, ast.Import | ast.ImportFrom):
            found |= {
                (alias.asname or alias.name).partition(".")[0] for alias in node.names
            }
        elif not isinstance(
            node, ast.Lambda | ast.comprehension | ast.GeneratorExp | ast.ListComp
        ):
            if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store):
                found.add(node.id)
            waiting += ast.iter_child_nodes(node)
    return found


def names_in(tree):
    """Return the names that a piece of syntax reads or binds."""
    return {node.id for node in ast.walk(tree) if isinstance(node, ast.Name)}


def needed(imports, used):
    """Return the lines of the imports that these names need, in the linter's order."""
    return grouped([imports[name] for name in sorted(used & imports.keys())])


def text(root=ROOT):
    """Return the text of the module: its imports, then each piece below the name of its page."""
    imports, parts = collected(root)
    used = set().union(*(names for _, _, names in parts.values())) - parts.keys()
    lines, last = [HEAD, *needed(imports, used)], ""
    for page, source, _ in parts.values():
        lines += ["", ""] if last else [""]
        lines += [f"# {page}", "", "", source] if page != last else [source]
        last = page
    names = "\n".join(f'    "{name}",' for name in sorted(parts))
    return "\n".join([*lines, "", "", f"__all__ = [\n{names}\n]", ""])


def write_home(*_):
    """Write the file that readers take home to the place where a page offers it."""
    HOME.write_text(take_home({}).text, encoding="utf-8")


def main(arguments=None):
    """Write the files that differ, or name them."""
    status = 0
    for path, made in ((TARGET, text()), (WHERE, where_names_come_from())):
        if path.is_file() and path.read_text(encoding="utf-8") == made:
            continue
        if "--check" in (sys.argv[1:] if arguments is None else arguments):
            name = path.relative_to(ROOT)
            print(f"{name} is not what the pages define: run python tools/built.py")
            status = 1
        else:
            path.write_text(made, encoding="utf-8")
    return status


if __name__ == "__main__":
    sys.exit(main())
