"""Stored results of experiments that train longer than a page may; invalid once the code or data has changed.

Each experiment is a script in the folder `experiments/`, which an installed package also contains. `make
experiments ONLY=name` runs it and stores its results with two hashes, one of the code and one of the data.
Stored results are rejected if the code or data now has a different hash.

The hashes cover the script and the files that it imports from its folder, such as the helper `common.py`.
They also cover the definitions of `mha_course` that these import, with everything that the definitions use
in turn, including the digest of the book's text. Comments, docstrings, annotations, layout, checks of
arguments (`if ...: raise ...`, `check_...`) and the module of a definition do not count. The hashes do not
cover the layers, because every edit of a library file would then require hours of training. Instead, the
layers have their own tests, and the tests train one seed of every arm again for some steps and compare.
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
from torch import Tensor, nn

from mha_course.still_learning import Measured, is_still_learning
from mha_course.training import History
from mha_lib._checks import check_choice, check_int, check_type, refusal

_PACKAGE = Path(__file__).parent
_OURS = "mha_course."
_DATA = f"{_OURS}data"  # the modules with the data of experiments


@dataclass(frozen=True)
class Experiment:
    """The results of an experiment, arm by arm. An arm is one setting, trained with several seeds.

    If an arm was still learning when its training ended, a cell that prints, compares or draws its numbers
    ends with "Still learning after 200 steps: ...".

    Attributes:
        name: name of the experiment.
        arms: the settings and results of each arm: "parameters", "steps", "lr", "seeds", "results", "curve";
            and "rates", with one number per seed for each rate, if the best of several rates was chosen.
        bounds: numbers that were computed, not trained: chance, floors, ceilings.
        tensors: parameters of the stored models, as "arm/seed/parameter".
    """

    name: str
    arms: Mapping[str, Mapping[str, Any]]
    bounds: Mapping[str, Any]
    tensors: Mapping[str, Shaped[Tensor, "..."]]

    def results(self, arm: str, measure: str) -> Float[Tensor, "seeds *measure"]:
        """One measure of an arm, with a row for each seed.

        Raises:
            ValueError: the experiment has no such arm, or the arm has no such measure.
        """
        found = self._arm(arm)["results"]
        check_choice("measure", measure, found)
        return self._measured(arm, found[measure])

    def still_learning(self, arm: str) -> bool:
        """Whether an arm counts as still learning at the end of its training; see `is_still_learning`.

        Raises:
            ValueError: the experiment has no such arm.

        A published model, which no experiment trains, has no learning curve and is not learning.

        Example:
            >>> runs = load_experiment("two_pointers")
            >>> runs.still_learning("linear, 2 heads"), runs.still_learning("linear, 1 head")
            (False, True)
        """
        curve = self._arm(arm).get("curve")
        return curve is not None and is_still_learning(torch.tensor(curve["losses"]))

    def _measured(self, arm: str, values: Any) -> Tensor:
        if not self.still_learning(arm):
            return torch.tensor(values)
        return Measured.of(torch.tensor(values), {arm: self.arms[arm]["steps"]})

    def history(self, arm: str) -> History:
        """The learning curves of an arm, with a row for each seed.

        Raises:
            ValueError: the experiment has no such arm, or nothing was trained in it.
        """
        if "curve" not in self._arm(arm):
            trained = [name for name in self.arms if "curve" in self.arms[name]]
            raise refusal("arm", f"be one that was trained, one of {trained}", arm)
        curve = self.arms[arm]["curve"]
        losses = self._measured(arm, curve["losses"])
        return History(torch.tensor(curve["steps"]), losses)

    def state(self, arm: str, seed: int = 0) -> dict[str, Shaped[Tensor, "..."]]:
        """The parameters of one trained model, for `load_state_dict`.

        Raises:
            TypeError: `seed` is not an int.
            ValueError: the experiment has no such arm, or stored no such model of it.
        """
        self._arm(arm)
        prefix = f"{arm}/{check_int('seed', seed)}/"
        found = {n: x for n, x in self.tensors.items() if n.startswith(prefix)}
        if not found:
            kept = sorted({name.rsplit("/", 1)[0] for name in self.tensors})
            rule = f"be that of a model that was kept, one of {kept}"
            raise refusal("seed", rule, f"{arm}/{seed}")
        return {name.removeprefix(prefix): tensor for name, tensor in found.items()}

    def model(self, arm: str, seed: int = 0) -> nn.Module:
        """One trained model of the course's own experiments, as its script builds it.

        Raises:
            TypeError: `seed` is not an int.
            ValueError: the experiment has no such arm, or stored no such model of it.

        Example:
            >>> load_experiment("words").model("4 heads", seed=4).attention.num_heads
            4
        """
        state = self.state(arm, seed)
        model: nn.Module = load_script(self.name).ARMS[arm].make_model()
        model.load_state_dict(state)
        return model

    def _arm(self, arm: str) -> Mapping[str, Any]:
        check_choice("arm", arm, self.arms)
        return self.arms[arm]


def load_experiment(
    name: str, *, rerun: bool = False, folder: Path | None = None
) -> Experiment:
    """Load the stored results of an experiment if its code and data have not changed since.

    Args:
        name: name of its script in the folder of experiments, such as "two_pointers".
        rerun: train now, and store nothing. This takes minutes, for some experiments an hour.
        folder: where scripts and stored results are; default the folder of this package.

    Raises:
        TypeError: `name` is not a str, or `rerun` not a bool.
        FileNotFoundError: nothing is stored.
        ValueError: there is no such experiment, or its stored results are damaged, or come from different
            code or a different version of the data. The message says what to run.

    Example:
        >>> load_experiment("two_pointers").results("linear, 2 heads", "both right").shape
        torch.Size([5])
    """
    check_type("rerun", rerun, bool)
    folder = _own_folder() if folder is None else folder
    check_choice("name", name, experiment_names(folder))
    script = folder / f"{name}.py"
    if rerun:
        module, common = load_script(script), load_script(script.with_name("common.py"))
        content, tensors = common.run_arms(script, module.ARMS, module.BOUNDS)
    else:
        content, tensors = _stored(script)
    return Experiment(content["name"], content["arms"], content["bounds"], tensors)


def _stored(script: Path) -> tuple[dict[str, Any], dict[str, Tensor]]:
    """The stored results and models of a script, if undamaged and from its present code and data."""
    name, stored = repr(script.stem), stored_results(script)

    def need(good: bool, problem: str, error: type[Exception] = ValueError) -> None:
        if not good:
            remedy = f"run `make experiments ONLY={script.stem}`"
            raise error(f"{problem}: {remedy}, or set RERUN = True to train it now")

    missing = f"the experiment {name} has no stored results"
    need(stored.is_file(), missing, FileNotFoundError)
    try:
        content = json.loads(stored.read_text(encoding="utf-8"))
        whole = content.pop("digest") == digest(content)
        whole &= {"code", "data", "models"} <= content.keys()
    except (ValueError, KeyError, AttributeError, TypeError):
        whole = False
    results = f"the stored results of {name}"
    need(whole, f"{results} are damaged")
    code, data = hashes_of(script)
    need(content["code"] == code, f"{results} were made by other code")
    other = "were made from another version of the data"
    need(content["data"] == data, f"{results} {other}")
    if not content["models"]:
        return content, {}
    from safetensors.torch import load

    models = stored.with_suffix(".safetensors")
    lacking = f"the experiment {name} lacks its models"
    need(models.is_file(), lacking, FileNotFoundError)
    parameters = models.read_bytes()
    whole = hashlib.sha256(parameters).hexdigest() == content["models"]
    need(whole, f"the stored models of {name} are damaged")
    return content, load(parameters)


def _own_folder() -> Path:
    """The folder of scripts, which is inside an installed package, or next to the package in a checkout."""
    installed = _PACKAGE / "_experiments"
    return installed if installed.is_dir() else _PACKAGE.parent / "experiments"


def stored_results(script: Path) -> Path:
    """Where the results of a script are stored: in this package for the course's own, or beside the script.

    Example:
        >>> stored_results(_own_folder() / "two_pointers.py").is_file()
        True
    """
    own = script.parent.resolve() == _own_folder().resolve()
    folder = _PACKAGE if own else script.parent
    return folder / "stored" / f"{script.stem}.json"


def experiment_names(folder: Path | None = None) -> list[str]:
    """The names of all experiments in a folder, by default that of this package.

    Example:
        >>> "two_pointers" in experiment_names()
        True
    """
    folder = _own_folder() if folder is None else folder
    return sorted(path.stem for path in folder.glob("*.py") if path.stem != "common")


def load_script(script: Path | str) -> ModuleType:
    """Import the script of an experiment, which may import modules from its own folder.

    A name means one of the course's own scripts. The module has the script's settings and its `ARMS`.

    Example:
        >>> load_script("two_pointers").TASKS
        ('previous', 'mirrored')
    """
    if isinstance(script, str):
        script = _own_folder() / f"{script}.py"
    spec = importlib.util.spec_from_file_location(f"experiment_{script.stem}", script)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.path.insert(0, str(script.parent))
    sys.modules[spec.name] = module  # its dataclasses look it up here
    try:
        spec.loader.exec_module(module)
    finally:
        sys.path.remove(str(script.parent))
        del sys.modules[spec.name]
        # A script in a different folder has its own `common`.
        for path in _with_imported(script):
            sys.modules.pop(path.stem, None)
    return module


def digest(content: object) -> str:
    """SHA-256 of anything that JSON supports; the order of a dict does not matter.

    Example:
        >>> digest({"a": 1, "b": [2]}) == digest({"b": [2], "a": 1})
        True
    """
    text = json.dumps(content, sort_keys=True, ensure_ascii=True)
    return hashlib.sha256(text.encode()).hexdigest()


def hashes_of(script: Path) -> tuple[str, str]:
    """Hashes (code, data) of an experiment, each of 64 hexadecimal digits; see above for what counts.

    Example:
        >>> code, data = hashes_of(_own_folder() / "two_pointers.py")
        >>> other_code, same_data = hashes_of(_own_folder() / "one_head.py")
        >>> code == other_code, data == same_data
        (False, True)
    """
    scripts = [_read(path) for path in _with_imported(script)]
    used: dict[str, dict[str, Any]] = {}
    for tree in scripts:
        for module, name in _imported(tree):
            _follow(module, name, used)
    code: dict[str, Any] = {}
    data: dict[str, Any] = {}
    for module, definitions in used.items():
        (data if module.startswith(_DATA) else code).update(definitions)
    return digest([[_plain(_bare(tree)) for tree in scripts], code]), digest(data)


def _read(path: Path) -> ast.Module:
    return ast.parse(path.read_text(encoding="utf-8"))


def _bare(tree: Any) -> Any:
    """The code without the parts that do not change its results."""
    return _Bare().visit(tree)


class _Bare(ast.NodeTransformer):
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
    """Whether a statement is an import, a docstring, or a check of an argument."""
    if isinstance(statement, ast.ImportFrom):
        return (statement.module or "").startswith(("mha_lib", _OURS, "__future__"))
    if isinstance(statement, ast.If):
        raises = [isinstance(part, ast.Raise) for part in statement.body]
        return not statement.orelse and all(raises)
    if not isinstance(statement, ast.Expr):
        return False
    value = statement.value
    if isinstance(value, ast.Call) and isinstance(value.func, ast.Name):
        return value.func.id.lstrip("_").startswith("check_")
    return isinstance(value, ast.Constant) and isinstance(value.value, str)


def _with_imported(script: Path) -> list[Path]:
    """A script and the files that it imports from its folder, directly or indirectly, such as `common.py`."""
    found, waiting = [], [script]
    while waiting:
        path = waiting.pop()
        if path not in found and path.is_file():
            found.append(path)
            nodes = [n for n in ast.walk(_read(path)) if isinstance(n, ast.ImportFrom)]
            waiting += [script.with_name(f"{node.module}.py") for node in nodes]
    return [script, *sorted(set(found) - {script})]


def _imported(tree: ast.AST) -> Iterator[tuple[str, str]]:
    """The names that a piece of code imports from the course, as (module, name)."""
    for node in ast.walk(tree):
        if isinstance(node, ast.ImportFrom) and (node.module or "").startswith(_OURS):
            yield from ((str(node.module), alias.name) for alias in node.names)


def _follow(module: str, name: str, used: dict[str, dict[str, Any]]) -> None:
    """Collect a definition of the course and those that it uses, from whatever module."""
    if module == __name__ or name in used.setdefault(module, {}):
        return
    tree = _read(_file_of(module))
    defined = {own: node for node in tree.body for own in _names(node)}
    elsewhere = {own: source for source, own in _imported(tree)}
    if name in elsewhere:
        _follow(elsewhere[name], name, used)
        return
    if name not in defined:
        raise refusal("the name", f"be one that {module} defines", repr(name))
    bare = _bare(defined[name])
    used[module][name] = _plain(bare)
    for node in ast.walk(bare):
        if isinstance(node, ast.Name) and node.id in {*defined, *elsewhere}:
            _follow(module, node.id, used)


def _file_of(module: str) -> Path:
    """The file of a module of the course; for a package, its `__init__.py`."""
    place = _PACKAGE.joinpath(*module.split(".")[1:])
    return place / "__init__.py" if place.is_dir() else place.with_suffix(".py")


def _names(node: ast.stmt) -> Iterator[str]:
    """The names that a statement at the top of a module defines."""
    if isinstance(node, (ast.FunctionDef, ast.ClassDef)):
        yield node.name
    elif isinstance(node, (ast.Assign, ast.AnnAssign)):
        targets = node.targets if isinstance(node, ast.Assign) else [node.target]
        for part in (part for target in targets for part in ast.walk(target)):
            if isinstance(part, ast.Name):
                yield part.id


def _plain(node: Any) -> Any:
    """A syntax tree as lists; without absent and empty parts, it is the same in all Python versions."""
    if isinstance(node, ast.AST):
        fields = {*node._fields} - {"ctx", "kind", "type_comment"}
        parts = {field: _plain(getattr(node, field, None)) for field in fields}
        present = {k: v for k, v in parts.items() if v is not None and v != []}
        return [type(node).__name__, present]
    if isinstance(node, list):
        return [_plain(part) for part in node]
    return node if node is None or isinstance(node, (str, int, float)) else repr(node)
