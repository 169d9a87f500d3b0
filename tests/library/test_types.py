"""Annotations name the axes of every tensor, and the tests enforce them."""

import importlib
import inspect
import re
import subprocess
import sys

import jaxtyping
import pytest
import torch
from test_exports import JUDGE, LIBRARY, modules_of, public

import mha_course.exercises
import mha_course.widgets
import mha_lib
from attention_check import _judging, _results
from mha_course import _exercise
from mha_lib import attention_pooling, sinusoidal_encoding

# Pictures are tested by their pages, which draw them.
ALL_MODULES = {
    name: importlib.import_module(name)
    for name in (*LIBRARY, "attention_check.pytest_plugin", *modules_of(mha_course))
    if not name.startswith(("mha_course.pictures", "mha_course.built", "mha_course.in_page"))
}


def public_name(module, name):
    """What a reader imports: mha_lib.causal_mask, mha_course.data.curve, mha_course.widgets.Quiz."""
    if module.startswith("mha_lib.") and name in mha_lib.__all__:
        return f"mha_lib.{name}"
    package = re.match(r"mha_course\.(widgets|exercises)", module)
    return f"{package[0] if package else module}.{name}"


def exported(module, name):
    """Widgets and exercises are imported from their package, which says what is public."""
    package = re.match(r"mha_course\.(widgets|exercises)", module)
    return package is None or name in sys.modules[package[0]].__all__


PUBLIC = {
    public_name(module, name): thing
    for module, loaded in ALL_MODULES.items()
    for name, thing in public(loaded).items()
    if exported(module, name)
} | {"mha_course.widgets.Explorer": mha_course.widgets.Explorer}
# The engine of the judge is private; the course decides what is public of it.
PUBLIC |= JUDGE
PUBLIC |= {
    f"mha_course.exercises.{name}": getattr(mha_course.exercises, name)
    for name in public(_judging) | public(_results) | public(_exercise)
    if name in mha_course.exercises.__all__
}
METHODS = {
    f"{path}.{name}": getattr(member, "__func__", member)
    for path, thing in PUBLIC.items()
    if inspect.isclass(thing)
    for name, member in vars(thing).items()
    if not name.startswith("_") and (inspect.isfunction(member) or isinstance(member, classmethod))
}


SHAPED = re.compile(r"\b(?!Tensor)[A-Z]\w+\[Tensor, (\"[^\"]*\"|'[^']*')\]")


def bare_tensors(thing):
    """The annotations of a function, or of a class's constructor or fields, that say Tensor without axes."""
    texts = dict(getattr(thing, "__annotations__", {}))
    if inspect.isclass(thing):
        texts |= getattr(thing.__init__, "__annotations__", {})
    texts = {name: SHAPED.sub("", str(text)) for name, text in texts.items()}
    # The arguments and results of a caller's function are not checked.
    bare = lambda text: re.search(r"\bTensor\b", re.sub(r"Callable\[.*\]", "", text))  # noqa: E731
    return {name: text for name, text in texts.items() if bare(text)}


def test_a_bare_tensor_is_seen():
    def named(x: 'Float[Tensor, "batch len"]', y: "int") -> 'Bool[Tensor, "..."]': ...
    def bare(x: "Tensor | None", y: 'Float[Tensor, "batch"]') -> "tuple[Tensor, int]": ...  # fmt: skip

    assert bare_tensors(named) == {}
    assert set(bare_tensors(bare)) == {"x", "return"}


# A widget's tensors are checked one by one, with errors that name them.
@pytest.mark.parametrize("path", [path for path in PUBLIC | METHODS if "mha_course.widgets" not in path])
def test_every_tensor_names_its_axes(path):
    # Fields that start empty have no shape to name.
    exempt = {"mha_lib.KeyValueCache": {"keys", "values", "visible"}}
    exempt["mha_course.exercises.randn"] = {"return"}  # of any number of axes, in a package without jaxtyping
    assert set(bare_tensors(inspect.unwrap((PUBLIC | METHODS)[path]))) <= exempt.get(path, set())


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
    with pytest.raises(jaxtyping.TypeCheckError):  # the shapes are checked again outside it
        attention_pooling(torch.ones(5, 7).int(), torch.ones(7, 3))


@pytest.mark.no_shape_checks
def test_marked_tests_are_not_checked():
    assert jaxtyping.config.jaxtyping_disable
    torch._dynamo.reset()  # earlier tests of this process have compiled it too, and torch counts them
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


def test_the_library_needs_no_checker():
    """Users of the library need the names of the axes, but not the checker that enforces them."""
    code = (
        "import sys; sys.modules['beartype'] = sys.modules['typeguard'] = None; import torch, mha_lib; "
        "print(mha_lib.causal_mask(2).sum().item(), hasattr(mha_lib.masked_softmax, '__wrapped__'))"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert done.stdout.split() == ["3", "False"], done.stderr
