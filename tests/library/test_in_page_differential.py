"""Thousands of snippets, in torch and in the stand-in that pages have: the same, or refused as a stand-in.

Most snippets are made by rule from torch's own signatures (`in_page_snippets.py`), the others are what learners
write (`in_page_learners.txt`). The results must agree in kind, dtype, shape, strides and numbers, in what shares
memory with which tensor, in what was changed and printed; errors must agree in their kind.
"""

# ruff: noqa: E501, tables of texts, and rules that read one by one

import ast
import inspect
import io
import re
import sys
import warnings
from contextlib import redirect_stdout
from pathlib import Path

import in_page_snippets
import pytest
import torch
import torch_signatures
from in_page_snippets import space
from test_in_page_kernels import in_page
from test_in_page_torch import FOLDER, close, ours

pytestmark = pytest.mark.newer_torch
LEARNERS = Path(__file__).with_name("in_page_learners.txt")
# What Python says of a mistake inside the stand-in, and not torch, and not the stand-in itself.
INSIDE = re.compile(
    r"has no attribute '\w+'$|iterable argument is empty|<lambda>|not subscriptable|object is not iterable"
    r"|unsupported operand|not supported between|(?<![a-z])_\w+\(\)|unpack|argument after|must be a string or a real"
)


def learners():
    """What learners write: snippets, divided by semicolons; a line that assigns something is one snippet."""
    for line in LEARNERS.read_text("utf-8").splitlines():
        body = ast.parse(line).body
        own = re.match(
            r"(x|o|w|a|i) (=|\+=|@=)|\w+(\.\w+)?(\[0\])? (=|\+=) |[\w.()@* >\"0-9,\[\]:;-]*backward|a\.\w+_\(|[aiwk](\.\w+)*_\(",
            line,
        )
        if own and len(body) < 9:
            yield line
        else:
            for one in body:
                yield ast.unparse(one)


def run(module, snippet):
    """What a snippet returns, prints and changes, or its error."""
    names, output = space(module), io.StringIO()
    before = module.get_default_dtype() if module is torch else None
    tree = ast.parse(snippet)
    last = ast.Expression(tree.body.pop().value) if isinstance(tree.body[-1], ast.Expr) else None
    try:
        with redirect_stdout(output), warnings.catch_warnings():
            warnings.simplefilter("ignore")
            exec(compile(tree, "snippet", "exec"), names)  # noqa: S102
            value = eval(compile(last, "snippet", "eval"), names) if last else None  # noqa: S307
            return "returns", value, output.getvalue(), names
    except Exception as error:
        return type(error).__name__, error, output.getvalue(), names
    finally:
        if before:
            torch.set_default_dtype(before)
            torch.set_printoptions(profile="default")
            torch.set_grad_enabled(True)
        else:
            module.set_printoptions(profile="default")


def memory(tensor):
    """What is the same for two tensors that share memory."""
    return tensor.untyped_storage().data_ptr() if isinstance(tensor, torch.Tensor) else id(tensor._memory)


def shared(tensor, names):
    """The tensor of the snippet that shares memory with a result."""
    pool = {name: one for name, one in names.items() if hasattr(one, "is_contiguous") and one.numel()}
    return [
        name
        for name, one in pool.items()
        if name in "abcpvskzqrwghyijxumnt" and memory(one) == memory(tensor)
    ]


def alike(mine, right, said):
    """How two texts differ, apart from numbers that are close, or None."""
    if mine == right:
        return None
    number = re.compile(r"-?\d+\.\d*(?:e[+-]\d+)?")
    a, b = number.findall(mine), number.findall(right)
    near = len(a) == len(b) and all(
        abs(float(x) - float(y)) <= 2e-4 * (1 + abs(float(y))) for x, y in zip(a, b, strict=False)
    )
    same = number.sub("#", mine).split() == number.sub("#", right).split()
    return None if near and same else f"{said} {mine!r}, not {right!r}"


def difference(mine, right, own, other, exact=True):
    """How two results differ, or None."""
    if isinstance(right, torch.Tensor):
        if not isinstance(mine, ours.Tensor):
            return f"a {type(mine).__name__}, not a tensor"
        if isinstance(right, torch.nn.Parameter) != isinstance(mine, ours.nn.Parameter):
            return f"{type(mine).__name__}, not {type(right).__name__}"
        found, expected = ((str(x.dtype), tuple(x.shape), x.requires_grad, x.is_leaf) for x in (mine, right))
        if found != expected:
            return f"{found}, not {expected}"
        # The stride of an axis with one entry says nothing.
        mine_at, right_at = (
            tuple(s for n, s in zip(x.shape, x.stride(), strict=True) if n > 1) for x in (mine, right)
        )
        if right.numel() and mine_at != right_at:
            return f"strides {mine.stride()}, not {right.stride()}"
        views = [] if not right.numel() else [shared(mine, own), shared(right, other)]
        if views and views[0] != views[1]:
            return f"shares the memory of {views[0]}, not {views[1]}"
        if not exact:
            return None
        pairs = list(zip(mine.detach().flatten().tolist(), right.detach().flatten().tolist(), strict=True))
        if not all(close(x, y, str(right.dtype)) for x, y in pairs):
            return f"{mine.flatten().tolist()[:9]}, not {right.flatten().tolist()[:9]}"
        return alike(repr(mine), repr(right), "is printed as")
    if isinstance(right, torch.nn.Module):
        if not isinstance(mine, ours.nn.Module):
            return f"{mine!r}, not a module"
        problem = alike(repr(mine), repr(right), "is printed as")
        return problem or difference(mine.state_dict(), dict(right.state_dict()), own, other)
    if isinstance(right, dict):
        if not isinstance(mine, dict) or list(mine) != list(right):
            return f"{mine!r}, not {right!r}"
        right, mine = list(right.values()), list(mine.values())
    if isinstance(right, (tuple, list)):
        if not isinstance(mine, (tuple, list)) or isinstance(right, list) != isinstance(mine, list):
            return f"{type(mine).__name__}, not {type(right).__name__}"
        if len(mine) != len(right):
            return f"{len(mine)} results, not {len(right)}"
        found = [difference(*two, own, other, exact) for two in zip(mine, right, strict=True)]
        return next(filter(None, found), None)
    if isinstance(right, float):
        same = type(mine) is float and close(mine, right, "torch.float32")
        return None if same else f"{mine!r}, not {right!r}"
    if isinstance(right, (bool, int, str, type(None), torch.dtype, torch.device)) or "torch.Size" in str(
        type(right)
    ):
        same = type(mine).__name__.lower() in (
            type(right).__name__.lower(),
            "dtype" if isinstance(right, torch.dtype) else "",
        )
        return alike(repr(mine), repr(right), "the value") if same else f"{mine!r}, not {right!r}"
    if inspect.isgenerator(right):
        return None if inspect.isgenerator(mine) else f"{mine!r}, not a generator"
    if callable(right):
        return None if callable(mine) else f"{mine!r}, not {right!r}"
    return None if str(mine) == str(right) else f"{mine!r}, not {right!r}"


def judged(snippet):
    """What a snippet does in the stand-in compared with torch: a class, and what differs."""
    expected, right, printed, other = run(torch, snippet)
    found, mine, shown, own = run(ours, snippet)
    if found != "returns":
        if "stand-in" in str(mine):
            return ("refused" if expected == "returns" else "both refuse"), None
        if expected == "returns":
            return "fails where torch works", f"{found}: {mine}"
        if INSIDE.search(str(mine)) and not (found == expected and INSIDE.search(str(right))):
            return "error from inside", f"{found}: {mine}, and torch: {expected}: {str(right)[:150]}"
        if found != expected:
            return "another kind of error", f"{found}: {mine}, and torch: {expected}: {str(right)[:150]}"
        return "same", None
    if expected != "returns":
        return "accepted though refused", f"torch: {expected}: {str(right)[:200]}"
    exact = not re.search("empty|dropout|Dropout|trunc_normal|random_|orthogonal|manual_seed", snippet)
    try:
        problem = difference(mine, right, own, other, exact) or alike(shown, printed, "prints")
    except ours.NeedsTorchError:  # it cannot be shown
        return "refused", None
    if problem is None:
        used = {node.id for node in ast.walk(ast.parse(snippet)) if isinstance(node, ast.Name)}
        for name in used & {*"abcpvskzqrwghyijxumnt"} if exact else ():
            problem = problem or difference(own[name], other[name], own, other)
    return ("other result", problem) if problem else ("same", None)


# Torch reads memory that is not a number of the tensor, or its root is a number that 16 bits round otherwise.
LEFT_OUT = re.compile(r"median\((input=)?y|y\.median|silu\(h, inplace")
GOOD = ("same", "refused", "both refuse")
GROUPS = {
    "signatures": in_page_snippets.from_signatures,
    "modules and functions of Python": in_page_snippets.from_python,
    "names": in_page_snippets.missing,
    "learners": lambda _: learners(),
}


@pytest.mark.slow
@pytest.mark.parametrize("group", GROUPS)
def test_snippets_do_what_they_do_in_torch_or_are_refused_as_a_stand_in(group):
    counts, wrong = {}, []
    for snippet in dict.fromkeys(GROUPS[group](ours)):
        if LEFT_OUT.search(snippet):
            continue
        kind, told = judged(snippet)
        counts[kind] = counts.get(kind, 0) + 1
        if kind not in GOOD:
            wrong.append(f"{kind}: {snippet}\n    {told}")
    print(counts)
    assert not wrong, f"{counts}\n" + "\n".join(wrong)


# What a snippet comes to, as a text; the page's Python runs this, too.
AS_TEXT = """
import contextlib, io


def as_text(space, snippet):
    output = io.StringIO()
    try:
        with contextlib.redirect_stdout(output):
            *before, last = snippet.split("; ")
            exec("; ".join(before), space)
            try:
                code = compile(last, "snippet", "eval")
            except SyntaxError:
                exec(last, space)
                return output.getvalue()
            return f"{eval(code, space)!r} {output.getvalue()}"
    except Exception as error:
        return type(error).__name__
"""
IN_PAGE = """
import math, sys
sys.modules.setdefault("in_page_snippets", type(sys)("in_page_snippets"))
import random
import torch

SIZE = torch.Size
FILL
result = [as_text(space(torch), snippet) for snippet in SNIPPETS]
"""


def test_the_page_with_its_kernels_returns_the_same():
    """A part of the snippets, in the page's Python with its kernels and in this one without."""
    strange = re.compile(
        r"generator|object at|empty|data_ptr|hash|dropout|numpy|type\(|<lambda>|print\(|a\.sum$|T\.sum$"
    )
    chosen = [one for one in learners() if not strange.search(one) and not one.startswith("for")][::5]
    made = [
        inspect.getsource(in_page_snippets.world),
        inspect.getsource(space),
        AS_TEXT,
        f"SNIPPETS = {chosen!r}",
    ]
    found = in_page(IN_PAGE.replace("FILL", "\n".join(made)))
    names = {}
    exec(AS_TEXT, names)  # noqa: S102
    try:
        expected = [names["as_text"](space(ours), snippet) for snippet in chosen]
    finally:
        ours.set_printoptions(profile="default")  # a snippet may change it
    assert len(found) == len(expected) > 200
    problems = [(one, alike(*pair, "is")) for one, *pair in zip(chosen, found, expected, strict=True)]
    assert not [pair for pair in problems if pair[1]]


def test_the_stored_signatures_are_those_of_torch():
    stored = (FOLDER / "_signatures.py").read_text("utf-8")
    with pytest.MonkeyPatch.context() as patch:  # it loads the stand-in under the same name
        patch.setitem(sys.modules, "stand_in", None)
        assert torch_signatures.text() == stored
