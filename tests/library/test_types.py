"""Annotations name the axes of every tensor; the tests enforce them; every example in a docstring runs."""

import doctest
import importlib
import inspect
import json
import pkgutil
import re
import shutil
import subprocess
import sys
from pathlib import Path

import jaxtyping
import pytest
import torch
from planting import replaced
from test_exports import MODULES, examples_of, public

import mha_lib
import mha_lib.widgets
from mha_lib import attention_pooling, sinusoidal_encoding

PACKAGE = Path(mha_lib.__file__).parent
ALL_MODULES = {
    module.name.removeprefix("mha_lib."): importlib.import_module(module.name)
    for module in pkgutil.walk_packages([str(PACKAGE)], "mha_lib.")
    if "._" not in module.name
}


def public_name(module, name):
    """What a reader imports: mha_lib.causal_mask, mha_lib.data.curve, mha_lib.widgets.Quiz."""
    if name in mha_lib.__all__:
        return f"mha_lib.{name}"
    return f"mha_lib.{module.split('.')[0]}.{name}"


PUBLIC = {
    public_name(module, name): thing
    for module, loaded in ALL_MODULES.items()
    for name, thing in public(loaded).items()
} | {"mha_lib.widgets.Explorer": mha_lib.widgets.Explorer}
METHODS = {
    f"{path}.{name}": getattr(member, "__func__", member)
    for path, thing in PUBLIC.items()
    if inspect.isclass(thing)
    for name, member in vars(thing).items()
    if not name.startswith("_") and (inspect.isfunction(member) or isinstance(member, classmethod))
}


# Every tensor names its axes.

SHAPED = re.compile(r"\b(?!Tensor)[A-Z]\w+\[Tensor, (\"[^\"]*\"|'[^']*')\]")


def bare_tensors(thing):
    """The annotations of a function, or of a class's constructor or fields, that say Tensor without axes."""
    texts = dict(getattr(thing, "__annotations__", {}))
    if inspect.isclass(thing):
        texts |= getattr(thing.__init__, "__annotations__", {})
    texts = {name: SHAPED.sub("", str(text)) for name, text in texts.items()}
    # What a caller's function takes and returns is not ours to check.
    return {
        name: text
        for name, text in texts.items()
        if re.search(r"\bTensor\b", re.sub(r"Callable\[.*\]", "", text))
    }


def test_a_bare_tensor_is_seen():
    def named(x: 'Float[Tensor, "batch len"]', y: "int") -> 'Bool[Tensor, "..."]': ...
    def bare(x: "Tensor | None", y: 'Float[Tensor, "batch"]') -> "tuple[Tensor, int]": ...  # fmt: skip

    assert bare_tensors(named) == {}
    assert set(bare_tensors(bare)) == {"x", "return"}


@pytest.mark.parametrize(
    "path",
    [
        path
        for path in PUBLIC | METHODS
        # A widget's tensors are checked one by one, with errors that name them.
        if not path.startswith("mha_lib.widgets")
    ],
)
def test_every_tensor_names_its_axes(path):
    # Fields that start empty have no shape to name.
    exempt = {"mha_lib.KeyValueCache": {"keys", "values", "visible"}}
    bare = bare_tensors(inspect.unwrap((PUBLIC | METHODS)[path]))
    assert set(bare) <= exempt.get(path, set())


# The tests enforce them.


def test_the_library_is_checked():
    """A result is compared with the arguments, not only an argument with itself."""
    scores, value = torch.ones(2, 5, 7), torch.ones(2, 7, 3)
    assert attention_pooling(scores, value)[0].shape == (2, 5, 3)
    with pytest.raises(jaxtyping.TypeCheckError, match="scores"):
        attention_pooling(scores.int(), value)
    with pytest.raises(jaxtyping.TypeCheckError, match="value"):
        attention_pooling(scores, value[:, :6])
    with pytest.raises(jaxtyping.TypeCheckError, match="num_positions"):
        sinusoidal_encoding("5", 4)


def test_errors_of_the_library_come_first_where_they_are_expected():
    with pytest.raises(TypeError, match="scores must have") as caught:
        attention_pooling(torch.ones(5, 7).int(), torch.ones(7, 3))
    assert not isinstance(caught.value, jaxtyping.TypeCheckError)
    with pytest.raises(jaxtyping.TypeCheckError):  # and are checked again behind it
        attention_pooling(torch.ones(5, 7).int(), torch.ones(7, 3))


@pytest.mark.no_shape_checks
def test_marked_tests_are_not_checked():
    assert jaxtyping.config.jaxtyping_disable
    layer, x = mha_lib.MultiHeadAttention(6, 3), torch.rand(2, 5, 6)
    traced = torch.compile(layer, fullgraph=True, backend="eager")
    torch.testing.assert_close(traced(x, x, x)[0], layer(x, x, x)[0])


AXES_IN_A_SIGNATURE = r"\b(Bool|Float|Int|Integer|Shaped)\["


def test_the_others_are_and_so_is_every_function_that_names_axes():
    assert not jaxtyping.config.jaxtyping_disable
    checked = 0
    for path, thing in (PUBLIC | METHODS).items():
        if inspect.isfunction(thing) and re.search(AXES_IN_A_SIGNATURE, str(inspect.signature(thing))):
            assert hasattr(thing, "__wrapped__"), path
            checked += 1
    assert checked > 40


FALSE_ANNOTATIONS = """
from jaxtyping import Float, Int64
from torch import Tensor

def transposed(x: Float[Tensor, "rows columns"]) -> Float[Tensor, "rows columns"]:
    return x.T

def counted(x: Float[Tensor, "rows columns"]) -> Int64[Tensor, "rows columns"]:
    return x

def repeated(x: Float[Tensor, "rows columns"], times: int) -> Float[Tensor, "{times} rows columns"]:
    return x[None]
"""


def test_a_false_annotation_is_caught(tmp_path, monkeypatch, shape_checker):
    (tmp_path / "false_annotations.py").write_text(FALSE_ANNOTATIONS)
    monkeypatch.syspath_prepend(tmp_path)
    with jaxtyping.install_import_hook("false_annotations", shape_checker):
        import false_annotations
    monkeypatch.delitem(sys.modules, "false_annotations")
    square, oblong = torch.ones(3, 3), torch.ones(2, 3)
    false_annotations.transposed(square)
    false_annotations.repeated(oblong, 1)
    for call in (
        lambda: false_annotations.transposed(oblong),
        lambda: false_annotations.counted(oblong),
        lambda: false_annotations.repeated(oblong, 5),
    ):
        with pytest.raises(jaxtyping.TypeCheckError, match="return value"):
            call()


# What is wrong -> (module, function, its text, the text that gives another shape, a call that should notice).
WRONG_SHAPES = {
    "nothing": ("masking", "causal_mask", "k_len", "k_len", "causal_mask(3, 5)"),
    "a transposed mask": (
        "masking", "causal_mask", ".tril(k_len - q_len)", ".tril(k_len - q_len).T", "causal_mask(3, 5)"
    ),
    "heads that are not merged": (
        "multi_head", "MultiHeadAttention.merge_heads", "x.transpose(1, 2).flatten(2)", "x.transpose(1, 2)",
        "MultiHeadAttention(6, 3).merge_heads(torch.ones(2, 3, 5, 2))",
    ),
    "a mean over the wrong axis": (
        "inspection", "head_importance", "sum(0).abs().mean(0)", "sum(0).abs().mean(1)",
        "head_importance(layer, lambda: layer(x, x, x)[0].square().mean((1, 2)))",
    ),
    "a transposed history": (
        "training", "fit", "torch.stack(kept, dim=-1)", "torch.stack(kept)",
        "fit(seeded(lambda: nn.Linear(1, 1), 2), lambda _: (x, x), steps=3, loss=nn.MSELoss())",
    ),
}  # fmt: skip
# In one process that imports torch once; each copy of the library is imported in a fork of it.
CALLS = """
import json, os, sys, beartype, jaxtyping, torch
from torch import nn
for folder, call in json.load(sys.stdin):
    if os.fork() == 0:
        sys.path.insert(0, folder)
        jaxtyping.install_import_hook("mha_lib", sys.argv[1])
        from mha_lib import *
        from mha_lib.training import *
        layer, x = MultiHeadAttention(1, 1), torch.rand(2, 5, 1)
        try:
            eval(call)
            print("passed", flush=True)
        except jaxtyping.TypeCheckError as error:
            print("caught:", str(error).splitlines()[0], flush=True)
        os._exit(0)
    os.wait()
"""


@pytest.mark.slow
def test_a_wrong_shape_in_the_library_is_caught(tmp_path, shape_checker):
    work = []
    for what, (module, function, right, wrong, call) in WRONG_SHAPES.items():
        copy = tmp_path / what / "mha_lib"
        shutil.copytree(PACKAGE, copy, ignore=shutil.ignore_patterns("__pycache__", "widgets"))
        file = copy / f"{module}.py"
        if right != wrong:
            file.write_text(replaced(file.read_text(), function, right, wrong))
        work.append((str(copy.parent), call))
    done = subprocess.run(
        [sys.executable, "-c", CALLS, shape_checker],
        input=json.dumps(work), cwd=tmp_path, capture_output=True, text=True,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    verdicts = dict(zip(WRONG_SHAPES, done.stdout.splitlines(), strict=True))
    assert verdicts.pop("nothing") == "passed"
    assert [what for what, verdict in verdicts.items() if "Type-check error whilst" not in verdict] == []


def test_the_library_needs_no_checker():
    """Users of the library need the names of the axes, but not the checker that enforces them."""
    code = (
        "import sys; sys.modules['beartype'] = sys.modules['typeguard'] = None; import torch, mha_lib; "
        "print(mha_lib.causal_mask(2).sum().item(), hasattr(mha_lib.masked_softmax, '__wrapped__'))"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert done.stdout.split() == ["3", "False"], done.stderr


# Examples.

# Those of the other modules run in test_exports.
OTHER_EXAMPLES = {
    test.name: test for module in ALL_MODULES if module not in MODULES for test in examples_of(module)
}


@pytest.mark.parametrize("name", OTHER_EXAMPLES)
def test_other_examples_run(name):
    printed = []
    runner = doctest.DocTestRunner(optionflags=doctest.NORMALIZE_WHITESPACE)
    results = runner.run(OTHER_EXAMPLES[name], out=printed.append, clear_globs=False)
    assert results.attempted > 0
    assert results.failed == 0, "".join(printed)
