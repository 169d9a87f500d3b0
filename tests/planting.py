"""How a fault is planted: a piece of text inside one function, or in a whole file, is replaced by another.

The function is found by its name, and the text by its words and signs, so indentation and line breaks do not
matter.
"""

import ast
import itertools
import re
import textwrap
from typing import NamedTuple


class Fault(NamedTuple):
    """One fault of the library or of the course's data and training, and the test that must notice it."""

    what: str
    module: str  # attention or models/generation, in mha_lib; else data, for mha_course/data/__init__.py
    function: str  # masked_softmax, MultiHeadAttention.forward, or a name assigned at the top of the module
    old: str  # occurs once in that function
    new: str  # later lines are indented like the line where the first is put
    caught_by: str  # test_attention::test_attention_equals_the_loop


class WidgetFault(NamedTuple):
    """One fault of a widget, in Python, JavaScript or styles, and the test that must notice it."""

    file: str  # pooling_math.js; quiz.py for the class of a widget
    old: str  # occurs once in the file
    new: str
    caught_by: str  # test_pooling_explorer::test_by_pointer
    function: str | None = None

    @property
    def what(self):
        """The change itself, on one line."""
        old, new = (" ".join(text.split()).replace("|", "\\|") for text in (self.old, self.new))
        return f"{self.file}: `{old}` becomes `{new}`"


class NotFoundError(LookupError):
    """A fault has no place: its function is gone, or its text does not stand there exactly once."""


def replaced(source, function, old, new):
    """The source in which `old`, found once inside `function` (None: anywhere), is `new`."""
    start, end = span(source, function) if function else (0, len(source))
    found = [*pattern(old).finditer(source, start, end)]
    if len(found) != 1:
        raise NotFoundError(f"{old!r} stands {len(found)} times in {function or 'the file'}, not once")
    first, last = found[0].span()
    line = source[source.rfind("\n", 0, first) + 1 : first]
    indent = line[: len(line) - len(line.lstrip())]
    text = textwrap.indent(textwrap.dedent(new), indent).removeprefix(indent)
    return source[:first] + text + source[last:]


def span(source, name):
    """Where a function, a class or an assigned name stands in Python source, as offsets of characters."""
    body = ast.parse(source).body
    for part in name.split("."):
        named = [node for node in body if part in names(node)]
        if len(named) != 1:
            raise NotFoundError(f"{name} is defined {len(named)} times, not once")
        body = getattr(named[0], "body", [])
    (node,) = named
    first = min([node, *getattr(node, "decorator_list", [])], key=lambda part: part.lineno)
    lines = source.splitlines(keepends=True)
    return len("".join(lines[: first.lineno - 1])), len("".join(lines[: node.end_lineno]))


def names(node):
    """What a statement defines."""
    if isinstance(node, ast.FunctionDef | ast.ClassDef):
        return [node.name]
    targets = node.targets if isinstance(node, ast.Assign) else [getattr(node, "target", None)]
    return [target.id for target in targets if isinstance(target, ast.Name)]


def pattern(text):
    """A regular expression that finds the words and signs of a text, however it is broken into lines."""
    parts = re.findall(r"\w+|[^\w\s]", text)
    between = [
        # Two words need space between them; signs need none.
        r"\s+" if re.match(r"\w", right) and re.match(r"\w", left) else r"\s*"
        for left, right in itertools.pairwise(parts)
    ]
    middle = "".join(f"{space}{re.escape(part)}" for space, part in zip(["", *between], parts, strict=True))
    before = r"(?<!\w)" if re.match(r"\w", parts[0]) else ""
    after = r"(?!\w)" if re.match(r"\w", parts[-1]) else ""
    return re.compile(before + middle + after)
