"""Stored results of experiments that train longer than a page may; refused once the code or data has changed.

Each experiment is one script in the folder `experiments/`, which an installed package contains too. `make
experiments ONLY=name` runs it and stores its results with two hashes: of the code and of the data. A result
is refused if its hashes are not those of the present code and data.

The hashes cover the script and what it imports from its folder, such as the helper `common.py`; and those
definitions of `mha_lib.training`, `mha_lib.data`, `mha_lib.dates` and `mha_lib.book_text` that they import,
with all that these call in their module, among it the digest of the book's text. Comments, docstrings,
annotations, layout and refused arguments (`if ...: raise ...`, `check_...`) do not count. The hashes do not
cover the layers, because then every edit of a library file would require an hour of training. The layers
have tests of their own, and `make test-all` trains one seed of every arm again for some steps and compares.
"""

from __future__ import annotations

import ast
import hashlib
import importlib.util
import json
import sys
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from types import ModuleType
from typing import Any

import torch
from jaxtyping import Float, Shaped
from torch import Tensor

from mha_lib._checks import check_int, check_type
from mha_lib.training import History

_PACKAGE = Path(__file__).parent
_DATA = ("data", "dates", "book_text")  # the modules that hold the data of experiments


@dataclass(frozen=True)
class Experiment:
    """What an experiment found, arm by arm. An arm is one setting, trained with several seeds.

    Attributes:
        name: name of the experiment.
        arms: the settings and results of each arm: "parameters", "steps", "lr", "seeds", "results", "curve".
        bounds: what was computed rather than trained: chance, floors, ceilings.
        tensors: parameters of the models that were kept, as "arm/seed/parameter".
    """

    name: str
    arms: Mapping[str, Mapping[str, Any]]
    bounds: Mapping[str, Any]
    tensors: Mapping[str, Shaped[Tensor, "..."]]

    def results(self, arm: str, measure: str) -> Float[Tensor, "seeds *measure"]:
        """One measure of an arm, a row for each seed.

        Raises:
            ValueError: the experiment has no such arm, or the arm has no such measure.
        """
        found = self._arm(arm)["results"]
        _check_known("measure", measure, found)
        return torch.tensor(found[measure])

    def history(self, arm: str) -> History:
        """The learning curves of an arm, a row for each seed.

        Raises:
            ValueError: the experiment has no such arm.
        """
        curve = self._arm(arm)["curve"]
        return History(torch.tensor(curve["steps"]), torch.tensor(curve["losses"]))

    def state(self, arm: str, seed: int = 0) -> dict[str, Shaped[Tensor, "..."]]:
        """The parameters of one trained model, for `load_state_dict`.

        Raises:
            TypeError: `seed` is not an int.
            ValueError: the experiment has no such arm, or no such model of the arm was kept.
        """
        self._arm(arm)
        prefix = f"{arm}/{check_int('seed', seed)}/"
        state = {
            name.removeprefix(prefix): tensor
            for name, tensor in self.tensors.items()
            if name.startswith(prefix)
        }
        if not state:
            kept = sorted({name.rsplit("/", 1)[0] for name in self.tensors})
            raise ValueError(
                f"seed must be that of a model that was kept, one of {kept}, got {arm}/{seed}"
            )
        return state

    def _arm(self, arm: str) -> Mapping[str, Any]:
        _check_known("arm", arm, self.arms)
        return self.arms[arm]


def load_experiment(
    name: str, *, rerun: bool = False, folder: Path | None = None
) -> Experiment:
    """Load what an experiment stored, if its code and its data have not changed since.

    Args:
        name: name of its script in the folder of experiments, such as "two_pointers".
        rerun: train now, and store nothing. Takes minutes, for some experiments a quarter of an hour.
        folder: where scripts and stored results are; default the folder of this package.

    Returns:
        The `Experiment`.

    Raises:
        TypeError: `name` is not a str, or `rerun` not a bool.
        FileNotFoundError: nothing is stored.
        ValueError: there is no such experiment, or what is stored is damaged, or was made by other code or
            from another version of the data. The message says what to run.

    Example:
        >>> load_experiment("two_pointers").results("linear, 2 heads", "both right").shape
        torch.Size([5])
    """
    check_type("name", name, str)
    check_type("rerun", rerun, bool)
    folder = _own_folder() if folder is None else folder
    script = _script(name, folder)
    if rerun:
        return _experiment(*load_script(script).run())
    stored, remedy = folder / "stored" / f"{name}.json", _remedy(name)
    if not stored.is_file():
        raise FileNotFoundError(
            f"the experiment {name!r} has no stored results: {remedy}"
        )
    try:
        content = json.loads(stored.read_text(encoding="utf-8"))
        whole = content.pop("digest") == digest(content)
        hashes = content["code"], content["data"]
    except (ValueError, KeyError, AttributeError, TypeError):
        whole, hashes = False, ("", "")
    if not whole:
        raise ValueError(f"the stored results of {name!r} are damaged: {remedy}")
    for what, then, now in zip(
        ("code", "data"), hashes, hashes_of(script), strict=True
    ):
        if then != now:
            made = (
                "by other code"
                if what == "code"
                else "from another version of the data"
            )
            raise ValueError(
                f"the stored results of {name!r} were made {made}: {remedy}"
            )
    tensors: dict[str, Tensor] = {}
    if content["models"]:
        from safetensors.torch import load

        models = folder / "stored" / f"{name}.safetensors"
        if not models.is_file():
            raise FileNotFoundError(
                f"the experiment {name!r} lacks its models: {remedy}"
            )
        data = models.read_bytes()
        if hashlib.sha256(data).hexdigest() != content["models"]:
            raise ValueError(f"the stored models of {name!r} are damaged: {remedy}")
        tensors = load(data)
    return _experiment(content, tensors)


def _experiment(
    content: Mapping[str, Any], tensors: Mapping[str, Tensor]
) -> Experiment:
    """An `Experiment` from what a run returns: the content of its file, and the models."""
    return Experiment(content["name"], content["arms"], content["bounds"], tensors)


def _own_folder() -> Path:
    """The folder of scripts: inside an installed package, or next to the package in a checkout."""
    installed = _PACKAGE / "_experiments"
    return installed if installed.is_dir() else _PACKAGE.parent / "experiments"


def experiment_names(folder: Path | None = None) -> list[str]:
    """The names of all experiments.

    Args:
        folder: where the scripts are; default the folder of this package.

    Example:
        >>> "two_pointers" in experiment_names()
        True
    """
    folder = _own_folder() if folder is None else folder
    return sorted(path.stem for path in folder.glob("*.py") if path.stem != "common")


def load_script(script: Path) -> ModuleType:
    """Import the script of an experiment, which may import modules from its own folder.

    Args:
        script: path of the script.

    Returns:
        The module, with its settings and its `ARMS`.

    Example:
        >>> load_script(_own_folder() / "two_pointers.py").TASKS
        ('previous', 'mirrored')
    """
    spec = importlib.util.spec_from_file_location(f"experiment_{script.stem}", script)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.path.insert(0, str(script.parent))
    try:
        spec.loader.exec_module(module)
    finally:
        sys.path.remove(str(script.parent))
        # A script in another folder has its own `common`.
        for path in _with_imported(script):
            sys.modules.pop(path.stem, None)
    return module


def digest(content: object) -> str:
    """SHA-256 of numbers, strings, lists and dicts; the order of a dict does not matter.

    Args:
        content: anything that JSON can hold.

    Example:
        >>> digest({"a": 1, "b": [2]}) == digest({"b": [2], "a": 1})
        True
    """
    text = json.dumps(content, sort_keys=True, ensure_ascii=True)
    return hashlib.sha256(text.encode()).hexdigest()


def hashes_of(script: Path) -> tuple[str, str]:
    """Hashes of the code and of the data of an experiment; this module's docstring says what counts.

    Args:
        script: path of the script, in the folder that it imports from.

    Returns:
        (code, data), each 64 hexadecimal digits.

    Example:
        >>> pointers, stairs = (
        ...     hashes_of(_own_folder() / f"{name}.py") for name in ("two_pointers", "staircase")
        ... )
        >>> pointers[0] == stairs[0], pointers[1] == stairs[1]  # other code, the same data
        (False, True)
    """
    trees = [_parse(path) for path in _with_imported(script)]
    used = {
        module: _definitions(_PACKAGE / f"{module}.py", _imported(trees, module))
        for module in ("training", *_DATA)
    }
    code = [_plain(tree) for tree in trees], used["training"]
    data = {name: node for module in _DATA for name, node in used[module].items()}
    return digest(code), digest(data)


def _script(name: str, folder: Path) -> Path:
    _check_known("name", name, experiment_names(folder))
    return folder / f"{name}.py"


def _check_known(argument: str, value: str, known: Any) -> None:
    if value not in known:
        raise ValueError(f"{argument} must be one of {sorted(known)}, got {value!r}")


def _remedy(name: str) -> str:
    return f"run `make experiments ONLY={name}`, or set RERUN = True to train it now"


def _parse(path: Path) -> ast.Module:
    tree = ast.parse(path.read_text(encoding="utf-8"))
    _Bare().visit(tree)
    return tree


class _Bare(ast.NodeTransformer):
    """Removes from code what does not change its results."""

    def generic_visit(self, node: ast.AST) -> ast.AST:
        super().generic_visit(node)
        for field in ("annotation", "returns"):
            if hasattr(node, field) and not isinstance(node, ast.AnnAssign):
                setattr(node, field, None)
        body = getattr(node, "body", None)
        if isinstance(body, list):
            node.body = [part for part in body if not _says_nothing(part)]  # type: ignore[attr-defined]
        return node

    def visit_AnnAssign(self, node: ast.AnnAssign) -> ast.AST:
        self.generic_visit(node)
        if node.value is None:
            return node
        return ast.Assign(targets=[node.target], value=node.value)


def _says_nothing(statement: ast.stmt) -> bool:
    """Whether a statement is a docstring, a refused argument, or a call of a check."""
    if isinstance(statement, ast.If):
        return not statement.orelse and all(
            isinstance(part, ast.Raise) for part in statement.body
        )
    if not isinstance(statement, ast.Expr):
        return False
    value = statement.value
    if isinstance(value, ast.Call) and isinstance(value.func, ast.Name):
        return value.func.id.lstrip("_").startswith("check_")
    return isinstance(value, ast.Constant) and isinstance(value.value, str)


def _with_imported(script: Path) -> list[Path]:
    """A script and what it imports from its folder, directly or indirectly, such as `common.py`."""
    found, waiting = [], [script]
    while waiting:
        path = waiting.pop()
        if path in found or not path.is_file():
            continue
        found.append(path)
        waiting += [
            script.with_name(f"{node.module}.py")
            for node in ast.walk(_parse(path))
            if isinstance(node, ast.ImportFrom)
        ]
    return [script, *sorted(set(found) - {script})]


def _imported(trees: list[ast.Module], module: str) -> set[str]:
    return {
        alias.name
        for tree in trees
        for node in ast.walk(tree)
        if isinstance(node, ast.ImportFrom) and node.module == f"mha_lib.{module}"
        for alias in node.names
    }


def _definitions(path: Path, wanted: set[str]) -> dict[str, Any]:
    """The named definitions of a module, and those that they use."""
    defined = {name: node for node in _parse(path).body for name in _names(node)}
    found: dict[str, Any] = {}
    waiting = sorted(wanted & defined.keys())
    while waiting:
        name = waiting.pop()
        found[name] = _plain(defined[name])
        used = {
            node.id for node in ast.walk(defined[name]) if isinstance(node, ast.Name)
        }
        waiting += sorted((used & defined.keys()) - found.keys() - set(waiting))
    return found


def _names(node: ast.stmt) -> Iterator[str]:
    if isinstance(node, (ast.FunctionDef, ast.ClassDef)):
        yield node.name
    elif isinstance(node, ast.Assign):
        for target in node.targets:
            if isinstance(target, ast.Name):
                yield target.id


def _plain(node: Any) -> Any:
    """A syntax tree as lists, the same in every version of Python: absent and empty parts are left out."""
    if isinstance(node, ast.AST):
        parts = {
            field: _plain(getattr(node, field, None))
            for field in node._fields
            if field not in ("ctx", "kind", "type_comment")
        }
        return [
            type(node).__name__,
            {k: v for k, v in parts.items() if v is not None and v != []},
        ]
    if isinstance(node, list):
        return [_plain(part) for part in node]
    return node if node is None or isinstance(node, (str, int, float)) else repr(node)
