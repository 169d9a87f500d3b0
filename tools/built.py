"""Collect what the cells tagged `build` define into `mha_course/built.py`, one text for each function.

    python tools/built.py [--check]

Later chapters and appendices import from it what a reader of the earlier ones has written. `make notebooks`
writes it; with --check, nothing is written, and the exit status is 1 if the file is not what the pages say.
"""

import ast
import copy
import json
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
TARGET = ROOT / "mha_course" / "built.py"
HEAD = '''"""What the reader of this course builds, chapter by chapter; nothing here uses `mha_lib`.

`make notebooks` writes this file from the cells tagged `build`: change it there.
"""
'''


def cells(path):
    """Yield the syntax, the source and the tags of a notebook's code cells; `set-up` is for Colab alone."""
    for cell in json.loads(path.read_text(encoding="utf-8"))["cells"]:
        if cell["cell_type"] == "code" and cell["id"] != "setup":
            source = "".join(cell["source"])
            yield ast.parse(source), source, cell["metadata"].get("tags", [])


def text(root=ROOT):
    """Return the module: the imports that it needs, then each function and class below the name of its page.

    What a cell tries out beside its definitions is left out, as are decorators, which are for the page. Where
    a name is defined twice, the later one takes the place of the earlier one.
    """
    imports, parts, used = {}, {}, set()
    for path in sorted(root.glob("chapters/*.ipynb")):
        for tree, source, tags in cells(path):
            for node in tree.body:
                if isinstance(node, ast.Import | ast.ImportFrom):
                    for alias in node.names:
                        one = copy.copy(node)
                        one.names = [alias]
                        imports.setdefault(alias.asname or alias.name, ast.unparse(one))
                elif "build" in tags and isinstance(
                    node, ast.FunctionDef | ast.ClassDef
                ):
                    lines = source.splitlines()[node.lineno - 1 : node.end_lineno]
                    parts[node.name] = path.stem, "\n".join(lines)
                    used |= {
                        n.id
                        for part in node.body
                        for n in ast.walk(part)
                        if isinstance(n, ast.Name)
                    }
                    used |= {
                        n.value.id
                        for n in getattr(node, "bases", [])
                        if isinstance(n, ast.Attribute)
                    }
    needed = [imports[name] for name in used & imports.keys() - parts.keys()]
    needed = [
        line for line in needed if not line.startswith(("from mha_", "import mha_"))
    ]
    lines, last = [HEAD, *grouped(needed)], ""
    for page, source in parts.values():
        lines += ["", ""] if last else [""]
        lines += [f"# {page}", "", "", source] if page != last else [source]
        last = page
    names = "\n".join(f'    "{name}",' for name in sorted(parts))
    return "\n".join([*lines, "", "", f"__all__ = [\n{names}\n]", ""])


def grouped(imports):
    """Return lines of imports in the order that the linter wants: Python's own, a blank line, others."""
    own = {line for line in imports if line.split()[1] in sys.stdlib_module_names}
    order = sorted(imports, key=lambda line: (line.startswith("from"), line))
    return [
        *(line for line in order if line in own),
        "",
        *(line for line in order if line not in own),
    ]


def main(arguments=None):
    """Write the module, or compare it."""
    check = "--check" in (sys.argv[1:] if arguments is None else arguments)
    made = text()
    if TARGET.is_file() and TARGET.read_text(encoding="utf-8") == made:
        return 0
    if check:
        print(
            "mha_course/built.py is not what the pages build: run python tools/built.py"
        )
        return 1
    TARGET.write_text(made, encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main())
