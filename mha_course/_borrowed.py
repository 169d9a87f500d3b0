"""What the code of an answer borrows: found in its text, with a digest by which equal answers are found."""

from __future__ import annotations

import ast
import hashlib
import inspect
import re
import sys
from collections.abc import Iterable, Iterator, Mapping
from contextlib import suppress
from functools import cache
from importlib.machinery import PathFinder
from typing import Any

from mha_course import built, exercises

_OURS = ("mha_lib", "mha_course", "attention_check")
# What does the exercises' work in torch.
_FINISHED = """scaled_dot_product_attention multi_head_attention_forward MultiheadAttention
    Transformer TransformerEncoder TransformerDecoder TransformerEncoderLayer TransformerDecoderLayer
    self_attn flex_attention""".split()
# Their names for it in torch's own parts, such as `torch.ops.aten._scaled_dot_product_attention_math`.
_FINISHED_PART = re.compile("(?i)scaled_dot_product|multi_?head|flash_attention")
# In an answer, these may fetch anything.
_BY_NAME = ("getattr", "globals", "locals", "vars", "open")
# Those of Python's own modules that load no code and find none. What is not installed may have been written
# while the submission ran; what is installed cannot be replaced so, since Python finds it first.
_USUAL = """__future__ abc bisect collections contextlib copy csv dataclasses datetime decimal difflib enum
    fractions functools heapq io itertools json logging math os pathlib pprint random re shutil statistics
    string sys tempfile textwrap time typing urllib warnings""".split()
_LOADERS = "cffi cloudpickle dill joblib".split()
_RUNS_TEXT = "exec eval compile __import__ get_ipython".split()
_SOLUTION = {"mha_course.exercises.solution", "mha_course.exercises.own.solution"}
# Their first argument may get what is among the others.
_CHANGING = "delattr dict list object set setattr type".split()
_MAGICS = "gui matplotlib pip precision shell".split()  # which run no Python
# Parts of names by which code is loaded, unpickled, or found from an object that comes from it.
_REACHING = """allow_pickle ctypes f2py hub importlib inspect operator package pickle reference runpy
    traitlets weights_only _getframe __dict__ __globals__ __builtins__ __getattribute__ __subclasses__
    get_ipython __import__ importstring import_item get_type_hints ForwardRef dictConfig DictConfigurator
    BaseConfigurator CompilationUnit get_field ops sympify runstring _forward_from_src
    __code__ __closure__ __loader__ __spec__ tb_frame gi_frame f_back f_globals f_locals""".split()
_RESULTS = "_ __ ___ Out _oh".split()  # of earlier cells
_OPTIONS = r"(?: +-\w+(?: +\d+\b)?)*"
_MAGIC = r"(?m)^([ \t]*+)([\w, \t]++=[ \t]*+)?(?:%(\w+)|!).*$"
_DEFINES = (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef)
_MANY = 50  # origins of one name
_DEEPEST = 150  # parts of the syntax tree in one another
_LONG = 40  # parts of the syntax tree: shorter answers are equal by chance


def parsed(cell: str) -> ast.Module:
    """The statements of a cell, with `magic.run` for `%run`; none if they cannot be read."""
    plain = re.sub(rf"\A\s*%%(\w*){_OPTIONS}(.*)\n", _without_start, cell)
    timed = re.sub(rf"(?m)^([ \t]*)%(?:time|timeit|prun)\b{_OPTIONS} +", r"\1", plain)
    helped = re.sub(r"(?m)^[ \t]*\?*[\w.]+\?+[ \t]*$", "", timed)
    for text in (plain, re.sub(_MAGIC, _without_magic, helped)):
        with suppress(SyntaxError, ValueError, RecursionError, MemoryError):
            return _flat(ast.parse(text))
    return ast.Module([], [])


def _flat(tree: ast.Module) -> ast.Module:
    """A syntax tree that can be walked and written again; else a RecursionError or a ValueError."""
    level: list[Any] = [tree]
    for _ in range(_DEEPEST):
        for node in level:
            if isinstance(node, ast.Constant) and isinstance(node.value, int):
                str(node.value)  # Python refuses that with a very long one
        level = [below for node in level for below in ast.iter_child_nodes(node)]
    if level:
        raise RecursionError
    return tree


def _without_start(line: re.Match[str]) -> str:
    """Nothing for `%%time`, and `magic.timeit` for `%%timeit` with code in its line."""
    return f"magic.{line[1]}\n" if line[1] != "capture" and line[2].strip() else ""


def _without_magic(line: re.Match[str]) -> str:
    plain = re.search(r"%config [\w.]+ *= *(['\"]?)\w+\1 *$", line[0])  # runs no code
    name = "matplotlib" if plain else line[3] or "shell"
    return f"{line[1]}{line[2] or ''}magic.{name}"


class Words:
    """The definitions and imports of a submission.

    Args:
        sources: where -> code, such as "code cell 3" -> "x = 2".
        handed_out: code that everybody has: its words may be used, and its statements are not looked at.
    """

    def __init__(self, sources: Mapping[str, str], handed_out: Iterable[str]) -> None:
        # name in the notebook -> where its imports say that it comes from
        self.origins: dict[str, set[str]] = {}
        self.defined: dict[str, list[tuple[str, ast.stmt]]] = {}
        # What changes something, such as `fs.append(f)`, by its name.
        self.changing: dict[str, list[tuple[str, ast.stmt]]] = {}
        self.asserted = set[str]()
        self.trees = {where: parsed(source) for where, source in sources.items()}
        # What IPython may run, although it is not Python.
        self.unread = {
            where
            for where, source in sources.items()
            if not self.trees[where].body and re.sub(r"#.*", "", source).strip()
        }
        self.files = {re.split(r"/|\.py$", where)[0] for where in sources}
        for tree in self.trees.values():
            for node in ast.walk(tree):
                self._import(node)
        for where, tree in self.trees.items():
            for statement in tree.body:
                for name in _bound(statement):
                    self.defined.setdefault(name, []).append((where, statement))
                for name in _changed(statement, self.origins):
                    self.changing.setdefault(name, []).append((where, statement))
                if isinstance(statement, ast.Assert):
                    self.asserted |= _parts(statement)
        self.given, self.allowed = set[str](), set[str]()
        if given := {f"{number}": one for number, one in enumerate(handed_out)}:
            Words(given, ())._allow(self)

    def _import(self, node: ast.AST) -> None:
        for name, whole in _imported(node):
            self.origins.setdefault(name, set()).add(whole)
            for one in _starred(whole):
                self.origins.setdefault(one, set()).add(whole.replace("*", one))

    def _allow(self, other: Words) -> None:
        """Let another submission use what this one, which was handed out, imports and uses."""
        for tree in self.trees.values():
            other.given |= {ast.dump(statement) for statement in tree.body}
            used = [word for word, _ in _words(tree)] + list(self.origins)
            for word in used:
                other.allowed |= self._origins(word)

    def like(self, name: str) -> list[str]:
        """Other functions with as many parameters; in an assert, the page uses its own."""
        counts = {
            one: len(found[-1][1].args.args)
            for one, found in self.defined.items()
            if isinstance(found[-1][1], ast.FunctionDef) and one not in self.asserted
        }
        return [
            one for one in counts if counts[one] == counts.get(name) and one != name
        ]

    def borrowed(self, call: str) -> Iterator[str]:
        """Clauses on what the answer of a call of a checker uses that it was to write."""
        own, parts = _solution(call)
        for where, code in self._answer(call):
            for word, line in _words(code):
                for whole in sorted(self._origins(word)):
                    last = whole.rpartition(".")[2]
                    may = whole in self.allowed or last in parts
                    # A whole module is not what was handed out: anything may be taken from it later.
                    may &= last not in own and whole not in sys.modules
                    if _is_finished(whole, last) and not may:
                        yield f"line {line} of its code, in {where}, uses `{whole}`"

    def reaching(self) -> Iterator[str]:
        """Sentences on what could hide from the text where an answer comes from."""
        yield from self._too_many()
        for where, tree in self.trees.items():
            for statement in tree.body:
                if ast.dump(statement) not in self.given:
                    for word, line in self._reached(statement):
                        yield f"Line {line} of {where} uses `{word}`."

    def _too_many(self) -> Iterator[str]:
        """Sentences on names that come from so many places that nobody could look at all; the others go."""
        for name, places in self.origins.items():
            if len(places) > _MANY:
                yield f"`{name}` stands for {len(places):,} imports."
                self.origins[name] = {*sorted(places)[:_MANY]}

    def _reached(self, statement: ast.stmt) -> Iterator[tuple[str, int]]:
        """What a statement uses that could hide something, with the lines."""
        for node in ast.walk(statement):
            if isinstance(node, ast.keyword) and node.arg in _REACHING:
                yield node.arg, node.value.lineno
            is_read = isinstance(getattr(node, "ctx", None), ast.Load)
            if is_read and isinstance(node, ast.Name) and node.id in _RESULTS:
                yield node.id, node.lineno
            if isinstance(node, ast.ImportFrom) and node.level:
                yield f"from {'.' * node.level}{node.module or ''}", node.lineno
            for _, whole in _imported(node):
                if self._is_far(whole, is_imported=True):
                    yield whole, getattr(node, "lineno", 0)
        for word, line in _words(statement):
            is_imported = word.split(".")[0] in self.origins
            for whole in sorted(self._origins(word)):
                if self._is_far(whole, is_imported=is_imported):
                    yield whole, line

    def _is_far(self, whole: str, *, is_imported: bool) -> bool:
        """Whether a name may lead to any code."""
        first, *others = whole.split(".")
        runs = re.split(r"\W", first)[0] in _RUNS_TEXT or "sys.modules" in whole
        is_magic = first == "magic" and others[0] not in _MAGICS
        if runs or is_magic or not {*others}.isdisjoint(_REACHING):
            return True
        # Nobody here knows which names a star brings from a module that is not loaded.
        if first in _OURS and others and others[-1] == "*":
            return whole.removesuffix(".*") not in sys.modules
        # Python finds what is installed before the files beside the notebook.
        if not is_imported or first in _OURS:
            return False
        if first in sys.stdlib_module_names:
            return first not in _USUAL
        is_there = first in self.files or _is_installed(first)
        return first in _LOADERS or not is_there

    def _origins(self, word: str) -> set[str]:
        """Where a name comes from: as its imports say, or from the notebook."""
        first, dot, rest = word.partition(".")
        return {one + dot + rest for one in self.origins.get(first, {first})}

    def digest(self, call: str) -> str:
        """A number for the code of an answer, without comments and spaces; "" if it is short."""
        text = "\n".join(_bare(node) for _, node in self._answer(call))
        long = text.count("(") > _LONG
        return hashlib.sha256(text.encode(errors="replace")).hexdigest() * long

    def _answer(self, call: str) -> Iterator[tuple[str, ast.AST]]:
        """The definitions of an answer and, in turn, of what it uses, without the course's solutions."""
        checked: Any = ast.parse(call, mode="eval").body
        answer = checked.args[0]
        yield "its check", answer
        left, known, seen = _first_parts(answer), set[str](), set[ast.stmt]()
        while left:
            known.add(name := left.pop())
            places = self.defined.get(name, []) + self.changing.get(name, [])
            for where, statement in places:
                if statement not in seen and not self._is_solution(statement):
                    yield where, statement
                    left |= _first_parts(statement) - known
                seen.add(statement)

    def _is_solution(self, statement: ast.stmt) -> bool:
        """Whether a definition is the course's own: its `solution` is no function of the submission."""
        for mark in getattr(statement, "decorator_list", ()):
            name = ast.unparse(mark)
            changed = {*self.defined, *self.changing} & _first_parts(mark)
            if self._origins(name) <= _SOLUTION and not changed:
                return True
        return False


def _bare(node: Any) -> str:
    """The parts of code without what makes equal code look different: docstrings, annotations and `pass`."""
    if isinstance(node, list):
        return f"[{','.join(filter(None, map(_bare, node)))}]"
    if isinstance(node, ast.AnnAssign) and node.value:
        node = ast.Assign([node.target], node.value)
    is_text = isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant)
    if is_text or isinstance(node, (ast.Pass, ast.AnnAssign)):
        return ""
    if not isinstance(node, ast.AST):
        return repr(node)
    left_out = ("annotation", "returns", "type_comment")
    parts = [
        _bare(part) for name, part in ast.iter_fields(node) if name not in left_out
    ]
    return f"{type(node).__name__}({','.join(parts)})"


def _words(tree: ast.AST) -> list[tuple[str, int]]:
    """The names in code with their lines, dotted ones whole."""
    found, inside = list[tuple[str, int]](), set[ast.AST]()
    for node in ast.walk(tree):
        if isinstance(node, (ast.Name, ast.Attribute)) and node not in inside:
            with suppress(RecursionError):
                found.append((ast.unparse(node), node.lineno))
            start: ast.expr = node
            while isinstance(start, ast.Attribute):
                start = start.value
                inside.add(start)
    return found


@cache
def _is_installed(module: str) -> bool:
    return PathFinder.find_spec(module) is not None


def _starred(whole: str) -> list[str]:
    """The names that a star imports from a module of the course, if that is loaded here."""
    module, _, star = whole.rpartition(".")
    if star != "*" or module.partition(".")[0] not in _OURS:
        return []
    if module == "mha_course.exercises":
        return ["solution"]
    found = sys.modules.get(module)
    names = getattr(found, "__all__", None) or dir(found)
    return [name for name in names if not name.startswith("_")]


def _imported(node: Any) -> Iterator[tuple[str, str]]:
    """The names that an import binds, with where each comes from, unless that is a file beside this one."""
    if isinstance(node, (ast.Import, ast.ImportFrom)) and not getattr(node, "level", 0):
        module = getattr(node, "module", "")
        for one in node.names:
            yield one.asname or one.name, f"{module}.{one.name}".strip(".")


def _parts(tree: ast.AST) -> set[str]:
    return {part for word, _ in _words(tree) for part in word.split(".")}


def _first_parts(tree: ast.AST) -> set[str]:
    return {word.partition(".")[0] for word, _ in _words(tree)}


def _changed(statement: ast.stmt, imported: Iterable[str]) -> set[str]:
    """The names that it changes: `global k`, `A.f = …`, `d["f"] = …`, `fs.append(…)`, `setattr(A, …)`."""
    outside, inside, found = set[str](), set[str](), set[str]()
    is_local = isinstance(statement, _DEFINES)
    for node in ast.walk(statement):
        if isinstance(node, ast.Global):
            outside |= {*node.names}
        elif is_local and isinstance(node, ast.arg):
            inside.add(node.arg)
        elif isinstance(getattr(node, "ctx", None), ast.Store):
            is_inside = is_local and isinstance(node, ast.Name)
            (inside if is_inside else found).add(_start(node))
        elif isinstance(node, ast.Call) and _start(node.func) in _CHANGING:
            found |= {_start(one) for one in node.args[:1]}
        elif isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute):
            # Neither `torch.manual_seed(0)` nor `super().__init__()` changes what it starts with.
            found |= {_start(node.func)} - {*imported, "super"}
    return outside | found - inside


def _start(node: Any) -> str:
    """The name at the start of `a.b[0].c()`; "" if it starts with none."""
    while node and not isinstance(node, ast.Name):
        node = getattr(node, "value", getattr(node, "func", None))
    return node.id if isinstance(node, ast.Name) else ""


def _bound(statement: ast.stmt) -> set[str]:
    """The names that a statement defines at the top of a cell."""
    if isinstance(statement, _DEFINES):
        return {statement.name}
    found = set[str]()
    for one in ast.walk(statement):
        if isinstance(one, _DEFINES):  # such as in `if`
            found.add(one.name)
        elif isinstance(one, ast.Name) and isinstance(one.ctx, ast.Store):
            found.add(one.id)
        elif isinstance(one, (ast.MatchAs, ast.MatchStar, ast.MatchMapping)):
            name = one.rest if isinstance(one, ast.MatchMapping) else one.name
            found |= {name} if name else set()
    return found


def _is_finished(whole: str, last: str) -> bool:
    """Whether a name with its origin, and the last part of it, does what an answer should do itself."""
    ours = whole.partition(".")[0] in _OURS and last != "solution"
    of_torch = whole.startswith("torch.") and _FINISHED_PART.search(last)
    listed = last in _FINISHED or whole in _BY_NAME
    return listed or bool(of_torch) or (ours and not last.startswith("check_"))


def _solution(call: str) -> tuple[set[str], set[str]]:
    """The names of an answer, and the words of the course's own: what that uses, others may use."""
    checked: Any = ast.parse(call, mode="eval").body
    checker = ast.unparse(checked.func).rpartition(".")[2]
    own = getattr(getattr(exercises, checker, None), "reference", None)
    own = built.MyMultiHead if checker == "check_multi_head" else own
    names = {ast.unparse(checked.args[0]), getattr(own, "__name__", "")}
    with suppress(TypeError, OSError, SyntaxError):
        source = inspect.cleandoc("\n" + inspect.getsource(own))  # type: ignore[arg-type]
        return names, _parts(ast.parse(source)) - names
    return names, set()
