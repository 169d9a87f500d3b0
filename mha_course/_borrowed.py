"""What the code of an answer borrows: found in its text, with a digest by which equal answers are found.

An answer is the definition of its name, what changes that, and in turn both of each name in there. In it,
nothing may stand that does its work. A text doesn't tell where values go, so three things are named wherever
they stand in a submission: the course's own answer, what runs a text or finds code by its name, and a module
that is handed on instead of used by its name, since nobody sees after that what is taken from it.
"""

from __future__ import annotations

import ast
import builtins
import hashlib
import inspect
import re
import symtable
import sys
from collections.abc import Iterable, Iterator, Mapping
from contextlib import suppress
from functools import cache
from importlib.machinery import PathFinder
from types import ModuleType
from typing import Any

from IPython.core.inputtransformer2 import classic_prompt, ipython_prompt

from mha_course import built, exercises

_OURS = ("mha_lib", "mha_course", "attention_check")
# What does the exercises' work in torch.
_FINISHED = """scaled_dot_product_attention multi_head_attention_forward MultiheadAttention
    Transformer TransformerEncoder TransformerDecoder TransformerEncoderLayer TransformerDecoderLayer
    self_attn flex_attention""".split()
# Their names for it in torch's own parts, such as `torch.ops.aten._scaled_dot_product_attention_math`.
_FINISHED_PART = re.compile("(?i)scaled_dot_product|multi_?head|flash_attention")
# In an answer, these may fetch anything.
_BY_NAME = ("getattr", "vars", "open")
# Those of Python's own modules that load no code and find none, and packages of notebooks. What is not
# installed may have been written while the submission ran; Python finds what is installed first.
_USUAL = """__future__ abc bisect collections contextlib copy csv dataclasses datetime decimal difflib enum
    fractions functools heapq io itertools json logging math numbers os pathlib platform pprint random
    re shutil statistics string tempfile textwrap time traceback typing urllib warnings""".split()
# Of these, only some parts are as usual.
_USUAL_PARTS = {
    "gc": "collect disable enable",
    "inspect": "Parameter getdoc signature",
    "operator": "add and_ eq floordiv ge gt invert le lt matmul mod mul ne neg or_ pow sub truediv",
    "sys": """argv byteorder exc_info executable exit float_info getrecursionlimit getrefcount getsizeof
        maxsize path platform prefix setrecursionlimit stderr stdin stdout version version_info""",
    "types": "MappingProxyType SimpleNamespace",
    "IPython": "display __version__",
}
_PACKAGES = """IPython PIL einops ipywidgets jaxtyping matplotlib numpy pandas plotly safetensors scipy
    seaborn sklearn tabulate torch torchvision tqdm typing_extensions""".split()
# At the start of a name, these run a text or reach every name.
_RUNS_TEXT = "exec eval compile globals locals __builtin__".split()
# Their first argument may get what is among the others.
_CHANGING = "delattr dict list object set setattr type".split()
_MAGICS = "gui matplotlib pip precision shell".split()  # which run no Python
# Parts of names by which code is loaded, unpickled, or found from an object that comes from it.
_REACHING = """_getframe __dict__ __globals__ __builtins__ __getattribute__ __subclasses__
    get_ipython __import__ importstring import_item get_type_hints ForwardRef dictConfig DictConfigurator
    BaseConfigurator CompilationUnit get_field sympify runstring
    __code__ __closure__ __loader__ __spec__ tb_frame gi_frame f_back f_globals f_locals
    ctypes f2py importlib pickle runpy singledispatch singledispatchmethod traitlets""".split()
# The same, in what is imported: elsewhere, they are the submission's own.
_OF_MODULES = re.compile(
    r"\.(fx|hub|inspect|masked|operator|ops|overrides|package|reference|(jit|export)\.load)\b|\.register_module_"
)
_HARMLESS = {"allow_pickle": False, "eval_str": False, "weights_only": True}
# In a text, such as the argument of something that imports what it names.
_NAMED = re.compile(r"\bmha_course\W+(import\W+)?(built|_)|TORCH_FORCE_NO")
_LOOKING = {*"dir hasattr help print".split()}  # at a module; they take nothing from it
_RESULTS = "_ __ ___ Out _oh".split()  # of earlier cells
_OPTIONS = r"(?: +-\w++(?: +\d++\b)?+)*+"
_MAGIC = r"(?m)^([ \t]*+)([\w, \t]++=[ \t]*+)?(?:%(\w+)|!).*$"
_IMPORTS = (ast.Import, ast.ImportFrom)
_DEFINES = (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef)
_MANY = 50  # origins of one name
_DEEPEST = 150  # parts of the syntax tree in one another
_LONG = 40  # parts of the syntax tree: shorter answers are equal by chance


def parsed(cell: str) -> ast.Module:
    """The statements of a cell, with `magic.run(…)` for `%run`; none if they cannot be read."""
    # IPython leaves prompts out, and its lines end where those of `str.splitlines` do.
    lines = ipython_prompt(classic_prompt(cell.splitlines(keepends=True)))
    cell = "".join(f"{line.splitlines()[0]}\n" for line in lines)
    plain = re.sub(rf"\A\s*%%(\w*){_OPTIONS}(.*)\n", _without_start, cell)
    timed = re.sub(rf"(?m)^([ \t]*)%(?:time|timeit|prun)\b{_OPTIONS} +", r"\1", plain)
    helped = re.sub(r"(?m)^[ \t]*\?*[\w.]+\?+[ \t]*$", "", timed)
    for text in ("".join(lines), plain, re.sub(_MAGIC, _without_magic, helped)):
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
    return f"{line[1]}{line[2] or ''}magic.{name}({line[0]!r})"


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
        self.statements = [
            (where, one) for where, tree in self.trees.items() for one in tree.body
        ]
        # What IPython may run, although it is not Python.
        self.unread = {
            where
            for where, source in sources.items()
            if not self.trees[where].body and re.sub(r"#.*", "", source).strip()
        }
        self.files = {re.split(r"/|\.py$", where)[0] for where in sources}
        for where, statement in self.statements:
            for name in _bound(statement):
                self.defined.setdefault(name, []).append((where, statement))
        self._find_origins()
        imported = {*self.origins}
        own = {name for _, one in self.statements for name in _bound_in(one)} | imported
        self.bound = {*dir(builtins), *"__file__ __name__ In Out display".split(), *own}
        self.looking = _LOOKING - own
        for where, statement in self.statements:
            for name in _changed(statement, imported):
                self.changing.setdefault(name, []).append((where, statement))
            if isinstance(statement, ast.Assert):
                self.asserted |= _parts(statement)
        self.allowed, self.given = set[str](), set[str]()
        if texts := {f"{number}": one for number, one in enumerate(handed_out)}:
            self.given = Words(texts, ())._allow(self)
        # Those that were not handed out.
        self.written = [
            one for one in self.statements if ast.dump(one[1]) not in self.given
        ]

    def _find_origins(self) -> None:
        """Find what names stand for, until a definition replaces one that nothing may have read."""
        read = set[str]()
        for _, statement in self.statements:
            found = [pair for node in ast.walk(statement) for pair in _imported(node)]
            found += [pair for _, whole in found for pair in _starred(whole)]
            for name, whole in found:
                self.origins.setdefault(name, set()).add(whole)
            word, others = _alias(statement)
            if word.partition(".")[0] in self.origins:
                for one in others:
                    places = self.origins.setdefault(one, set())
                    places |= self._origins(word) if len(places) < _MANY else set()
            here = _globals(statement)
            if not isinstance(statement, _IMPORTS):  # it may run later
                here |= {name for name, _ in found}
            if isinstance(statement, _DEFINES) and statement.name not in read | here:
                self.origins.pop(statement.name, None)
            if not self._is_check(statement):
                read |= here

    def _is_check(self, statement: ast.stmt) -> bool:
        """Whether it only calls a checker with a name."""
        call: Any = getattr(statement, "value", None)
        return (
            isinstance(call, ast.Call)
            and _start(call.func) in exercises.__all__
            and _start(call.func) not in self.defined
            and all(
                isinstance(getattr(one, "value", one), (ast.Name, ast.Constant))
                for one in [*call.args, *call.keywords]
            )
        )

    def _allow(self, other: Words) -> set[str]:
        """Let another submission use what this one, which was handed out, uses; return its statements."""
        used = [word for _, one in self.statements for word, _ in _words(one)]
        for word in [*used, *self.origins]:
            other.allowed |= self._origins(word)
        return {ast.dump(statement) for _, statement in self.statements}

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
        # What changes torch, or any class, may change what an answer calls.
        shared = {*self.origins, "type", "__class__"} - {*self.defined}
        own_names = {*self.defined} - {*self.origins}
        for where, code in self._answer(call, *shared.intersection(self.changing)):
            names, is_given = _globals(code), ast.dump(code) in self.given
            for name in sorted(names - self.bound) if self._knows_stars() else ():
                yield f"its code, in {where}, uses `{name}`, which nothing in the submission defines"
            for word, line in _words(code):
                first = word.partition(".")[0]
                # A parameter or a local variable, or what is looked at where it is defined.
                is_own = first not in {*names, ""} or first in own_names
                if is_own and word in (first, "self.self_attn"):
                    continue
                for whole in [word] if is_own else sorted(self._origins(word)):
                    last = whole.rpartition(".")[2]
                    # What a page compares with may stand there, and not in an answer.
                    rival = whole.startswith(("torch.", "mha_lib.")) and not is_given
                    may = last in parts or (whole in self.allowed and not rival)
                    # A whole module is not what was handed out: anything may be taken from it later.
                    may &= last not in own and whole not in sys.modules
                    if _is_finished(whole, last) and not may:
                        yield f"line {line} of its code, in {where}, uses `{whole}`"

    def mentioned(self, call: str) -> Iterator[str]:
        """Clauses on where else the course's own answer is used, which may get from there into this one."""
        own = tuple(f"mha_course.built.{name}." for name in _solution(call)[0])
        for where, statement in self.written:
            words = [] if self._is_check(statement) else _mentions(statement)
            for word, line in words:
                for whole in sorted(self._origins(word)):
                    if f"{whole}.".startswith(own):
                        yield f"line {line} of {where} uses `{whole}`"

    def _knows_stars(self) -> bool:
        """Whether all that stars bring is known."""
        stars = self.origins.get("*", ())
        return all(whole.removesuffix(".*") in sys.modules for whole in stars)

    def reaching(self) -> Iterator[str]:
        """Sentences on what could hide from the text where an answer comes from."""
        yield from self._too_many()
        for where in sorted(self.unread):
            if where.endswith(".py"):
                yield f"{where} was not read: it is not Python, or too deep."
        for where, statement in self.written:
            reached = [*self._reached(statement)] or self._named(statement)
            for word, line in dict.fromkeys(reached):
                yield f"Line {line} of {where} uses `{word}`."

    def _too_many(self) -> Iterator[str]:
        """Sentences on names that come from so many places that nobody could look at all; the others go."""
        for name, places in self.origins.items():
            if len(places) > _MANY:
                yield f"`{name}` stands for {len(places):,} imports."
                self.origins[name] = {*sorted(places)[:_MANY]}

    def _reached(self, statement: ast.stmt) -> Iterator[tuple[str, int]]:
        """What a statement uses that could hide something, with the lines."""
        own = _bound_in(statement)
        for node in ast.walk(statement):
            if hidden := self._hides(node, own):
                yield hidden, getattr(node, "lineno", 0)
            for _, whole in _imported(node):
                if self._is_far(whole, is_imported=True):
                    yield whole, getattr(node, "lineno", 0)
        alias = _alias(statement)[0]
        handed_on = {*_handed_on(statement, self.looking)}
        for word, line in _words(statement):
            is_imported = word.partition(".")[0] in self.origins
            is_lost = is_imported and word != alias and (word, line) in handed_on
            for whole in sorted(self._origins(word)):
                is_module = is_lost and (whole in self.files or _is_module(whole))
                if is_module or self._is_far(whole, is_imported=is_imported):
                    yield whole, line

    def _hides(self, node: Any, own: set[str]) -> str:
        """What a part of the syntax tree could hide, without those below it; "" if nothing."""
        said = ""
        if isinstance(node, ast.keyword):
            harmless = _HARMLESS.get(node.arg or "", node)
            is_harmless = harmless in (node, getattr(node.value, "value", None))
            said = f"{node.arg}" * (not is_harmless)
        elif isinstance(node, ast.Call):
            # Options that unpickle anything may be among those of `load`: by position, or by `**`.
            many = len(node.args) > 2 or any(one.arg is None for one in node.keywords)
            called = self._origins(_dotted(node.func, always=True))
            is_load = many and any(one.endswith(".load") for one in called)
            is_all = "vars" in called and not node.args
            said = ast.unparse(node.func) * (is_load or is_all)
        elif isinstance(node, ast.Name):
            said = node.id * (node.id in _RESULTS and node.id not in own)
        elif isinstance(node, ast.ImportFrom) and node.level:
            said = f"from {'.' * node.level}{node.module or ''}"
        elif isinstance(node, ast.ClassDef) and (found := _imports(node)):
            for one in ast.walk(node):
                if isinstance(one, _DEFINES[:2]):
                    found -= _imports(one)
            said = f"import in class {node.name}" * bool(found)  # as its attribute
        return said

    def _named(self, statement: ast.stmt) -> Iterator[tuple[str, int]]:
        """What texts name: the course's own answers, or a program beside it, which it may change."""
        programs = [one for one in self.trees if one.endswith(".py")]
        nodes: list[Any] = [*ast.walk(statement)]
        unused = {node.value for node in nodes if isinstance(node, ast.Expr)}
        for node in nodes:
            if isinstance(node, ast.Constant) and node not in unused:
                text = node.value if isinstance(node.value, str) else ""
                found = _NAMED.search(text)
                for one in [found[0]] if found else programs:
                    if one in text:
                        yield one, node.lineno

    def _is_far(self, whole: str, *, is_imported: bool) -> bool:
        """Whether a name may lead to any code."""
        first, *others = parts = whole.split(".")
        is_magic = first == "magic" and others[0] not in _MAGICS
        runs = first in _RUNS_TEXT or "sys.modules" in whole
        if runs or is_magic or not {*parts}.isdisjoint(_REACHING):
            return True
        if not is_imported:
            return False
        private = [one for one in others if one[:1] == "_" and one[-2:] != "__"]
        if private or _OF_MODULES.search(whole):
            return True
        if first in _USUAL_PARTS and first not in self.files:
            return bool(others) and others[0] not in _USUAL_PARTS[first].split()
        # Nobody here knows which names a star brings from a module that is not loaded.
        if first in _OURS:
            return others[-1:] == ["*"] and whole.removesuffix(".*") not in sys.modules
        # Python finds what is installed before the files beside the notebook.
        if first in sys.stdlib_module_names:
            return first not in _USUAL
        return first not in (_PACKAGES if _is_installed(first) else self.files)

    def _origins(self, word: str) -> set[str]:
        """Where a name comes from: as its imports say, or from the notebook."""
        first, dot, rest = word.partition(".")
        return {one + dot + rest for one in self.origins.get(first, {first})}

    def digest(self, call: str) -> str:
        """A number for the code of an answer, without comments and spaces; "" if it is short."""
        text = "\n".join(_bare(node) for _, node in self._answer(call))
        long = text.count("(") > _LONG
        return hashlib.sha256(text.encode(errors="replace")).hexdigest() * long

    def _answer(self, call: str, *more: str) -> Iterator[tuple[str, ast.AST]]:
        """The definitions of an answer and, in turn, of what it uses; `more` are names that it may use."""
        checked: Any = ast.parse(call, mode="eval").body
        answer = checked.args[0]
        yield "its check", answer
        left, known, seen = _first_parts(answer) | {*more}, set[str](), set[ast.stmt]()
        while left:
            known.add(name := left.pop())
            found = self.defined.get(name, []) + self.changing.get(name, [])
            for where, statement in found:
                if statement not in seen:
                    yield where, statement
                    left |= _globals(statement) - known
                seen.add(statement)


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
    """The names in code, and what imports in it bring, with their lines; dotted ones whole."""
    found, inside = list[tuple[str, int]](), set[ast.AST]()
    node: Any
    for node in ast.walk(tree):
        if node is not tree:
            found += [(whole, node.lineno) for _, whole in _imported(node)]
        called = _start(node.func) if isinstance(node, ast.Call) and node.args else ""
        if called == "getattr" and _dotted(node.args[0]) == "self":  # the layer's own
            inside.add(node.func)
        if isinstance(node, (ast.Name, ast.Attribute)) and node not in inside:
            found.append((_dotted(node, always=True), node.lineno))
            start: ast.expr = node
            while isinstance(start, ast.Attribute):
                start = start.value
                inside.add(start)
    return found


def _handed_on(tree: ast.AST, looking: Iterable[str] = ()) -> Iterator[tuple[str, int]]:
    """The names whose values go elsewhere: neither called, nor before a dot, nor in a call of `looking`."""
    node: Any
    one: Any
    for node in ast.walk(tree):
        function = getattr(node, "func", None)
        if isinstance(node, ast.Attribute) or _dotted(function) in looking:
            continue
        for one in ast.iter_child_nodes(node):
            is_read = isinstance(getattr(one, "ctx", None), ast.Load)
            if is_read and one is not function and (word := _dotted(one)):
                yield word, one.lineno


def _mentions(statement: ast.stmt) -> Iterable[tuple[str, int]]:
    """The names in a statement; of an assert that compares results, only those whose values go elsewhere."""
    kinds = {type(one) for one in ast.walk(statement)}
    compares = isinstance(statement, ast.Assert) and ast.Lambda not in kinds
    return _handed_on(statement) if compares else _words(statement)


def _dotted(node: Any, *, always: bool = False) -> str:
    """The text of `a.b.c`; for what is no such name "" or, always, the dotted part at its end."""
    parts = list[str]()
    while isinstance(node, ast.Attribute):
        parts.append(node.attr)
        node = node.value
    start = node.id if isinstance(node, ast.Name) else ""
    return ".".join([start, *reversed(parts)]) if start or always else ""


def _globals(tree: ast.AST) -> set[str]:
    """The names that code reads and does not have of its own: neither parameters nor local variables."""
    with suppress(SyntaxError, ValueError, RecursionError):
        tables, found = [symtable.symtable(ast.unparse(tree), "", "exec")], set[str]()
        while tables:
            table = tables.pop()
            tables += table.get_children()
            is_top = table.get_type() == "module"
            for one in table.get_symbols():
                if one.is_referenced() and (is_top or one.is_global()):
                    found.add(one.get_name())
        return found
    return _first_parts(tree)


def _imports(tree: ast.AST) -> set[ast.AST]:
    return {one for one in ast.walk(tree) if isinstance(one, _IMPORTS)}


def _alias(statement: ast.stmt) -> tuple[str, list[str]]:
    """Of `s = t = sys`, "sys" and the others."""
    if not isinstance(statement, ast.Assign):
        return "", []
    names = [one.id for one in statement.targets if isinstance(one, ast.Name)]
    is_alias = len(names) == len(statement.targets)
    return (_dotted(statement.value), names) if is_alias else ("", [])


def _is_module(whole: str) -> bool:
    """Whether a name stands for a module; nothing is loaded to find that out."""
    first, *others = whole.split(".")
    found: Any = sys.modules.get(first)
    for one in others:
        found = vars(found).get(one) if isinstance(found, ModuleType) else None
    return isinstance(found, ModuleType) or (found is None and _is_installed(whole))


@cache
def _is_installed(module: str) -> bool:
    parts, places = module.split("."), None
    for end in range(1, len(parts) + 1):
        found = PathFinder.find_spec(".".join(parts[:end]), places)
        if found is None:
            return False
        places = list(found.submodule_search_locations or ())
    return True


def _starred(whole: str) -> Iterator[tuple[str, str]]:
    """The names that a star imports from a module that is loaded here, with where each comes from."""
    module, _, star = whole.rpartition(".")
    if star != "*":
        return
    found = sys.modules.get(module)
    for name in getattr(found, "__all__", None) or dir(found):
        if not name.startswith("_"):
            yield name, f"{module}.{name}"


def _imported(node: Any) -> Iterator[tuple[str, str]]:
    """The names that an import binds, with where each comes from, unless that is a file beside this one."""
    if isinstance(node, _IMPORTS) and not getattr(node, "level", 0):
        module = getattr(node, "module", "")
        for one in node.names:
            whole = f"{module}.{one.name}".strip(".")
            yield one.asname or one.name, whole
            if isinstance(node, ast.Import) and not one.asname and "." in whole:
                yield whole.partition(".")[0], whole.partition(".")[0]


def _parts(tree: ast.AST) -> set[str]:
    return {part for word, _ in _words(tree) for part in word.split(".")}


def _first_parts(tree: ast.AST) -> set[str]:
    return {word.partition(".")[0] for word, _ in _words(tree)} - {""}


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
            found |= {"__class__"} & {*_dotted(node, always=True).split(".")}
        elif isinstance(node, ast.Call) and _start(node.func) in _CHANGING:
            found |= {_start(one) for one in node.args[:1]}
        elif isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute):
            # Neither `torch.manual_seed(0)` nor `super().__init__()` changes what it starts with.
            sets = node.func.attr in ("__setattr__", "__setitem__")
            found |= {_start(node.func)} - (set() if sets else {*imported, "super"})
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
    return _bound_in(statement)


def _bound_in(statement: ast.stmt) -> set[str]:
    return {name for one in ast.walk(statement) for name in _bound_by(one)}


def _bound_by(node: Any) -> set[str]:
    """The names that a part of the syntax tree binds, without those below it."""
    if isinstance(node, ast.Name):
        return {node.id} if isinstance(node.ctx, ast.Store) else set()
    if isinstance(node, ast.arg):
        return {node.arg}
    kinds = (*_DEFINES, ast.MatchAs, ast.MatchStar, ast.ExceptHandler)
    name = node.name if isinstance(node, kinds) else getattr(node, "rest", None)
    return {name} if name else set()


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
