"""Write the signatures of torch's functions and methods that the page's stand-in for torch has.

    python tools/torch_signatures.py

They are torch's own descriptions; the stand-in refuses what does not fit them, as torch does.
"""

import importlib.util
import re
import sys
from pathlib import Path

import torch

FOLDER = Path(__file__).resolve().parent.parent / "mha_course" / "in_page" / "torch"
TITLE = '''"""The pinned torch's descriptions of arguments; `tools/torch_signatures.py` writes this file."""

# ruff: noqa: E501, a line is a signature

SIGNATURES = """
'''
# What every function that makes tensors takes.
MAKES = "ScalarType? dtype=None, Layout? layout=None, Device? device=None, bool? pin_memory=None"

# Torch's parser adds to these what the description lacks.
OTHERWISE = {
    "to",
    "size",
    "stride",
    "as_tensor",
    "tensor",
    "dim",
    "cpu",
    "result_type",
    "item",
    "nonzero",
    "copy_",
}


def stand_in():
    """The stand-in under another name."""
    spec = importlib.util.spec_from_file_location(
        "stand_in", FOLDER / "__init__.py", submodule_search_locations=[str(FOLDER)]
    )
    sys.modules["stand_in"] = module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def is_native(owner, name):
    """Whether torch itself checks the arguments of a function or method, not Python."""
    found = getattr(owner, name, None)
    return (
        callable(found)
        and not hasattr(found, "__code__")
        and not isinstance(found, type)
    )


def described(name):
    """Torch's signatures of a name, shortened."""
    for schema in torch._C._jit_get_schemas_for_operator(f"aten::{name}"):
        text = str(schema).removeprefix("aten::").rpartition(" -> ")[0]
        inside = text[text.index("(") + 1 : -1]
        inside = re.sub(r"\((?:\w+!?)?(?: -> \*)?\)", "", inside).replace(
            "SymInt", "int"
        )
        inside = inside.replace(MAKES, "made").replace(
            MAKES.replace("None", "4", 1), "made"
        )
        inside = inside.replace("[0, 1]", "[0,1]")
        first = re.match(
            r"(Tensor\??(?:\[\])?|int|int\[\]|Scalar|str|float) \w+", inside
        )
        writes = re.search(
            r"Tensor (out|values|indices|max|min|max_values|min_indices)\b",
            inside.partition("*, ")[2],
        )
        numbers = re.match(r"(\w+)(\[\])? (a|b|x|l)\b", inside)
        lists = (
            re.match(r"(int|float|bool|complex|t|str)(\[\])? (self|l)\b", inside)
            and "Tensor" not in inside
        )
        other_copy = re.match(r"Tensor self, \w+ other$", inside) and name == "copy_"
        if (
            first
            and not other_copy
            and not writes
            and not numbers
            and not lists
            and "..." not in inside
        ):
            yield f"{name}({inside})"


def text():
    """Return the text of the file."""
    ours = stand_in()
    places = [
        (torch, ours),
        (torch.Tensor, ours.Tensor),
        (torch.nn.functional, ours.nn.functional),
    ]
    names = {
        name
        for there, here in places
        for name in dir(there)
        if name[0] != "_" and name not in OTHERWISE
        if hasattr(here, name) and is_native(there, name)
    }
    lines = [line for name in sorted(names) for line in dict.fromkeys(described(name))]
    return TITLE + "\n".join(lines) + '\n"""\n'


if __name__ == "__main__":
    (FOLDER / "_signatures.py").write_text(text(), encoding="utf-8")
