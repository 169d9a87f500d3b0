"""Load one module of a package without what its other modules need."""

from __future__ import annotations

import importlib
import importlib.abc
import importlib.machinery
import importlib.util
import sys
import types
from unittest.mock import MagicMock

# These import their own parts by way of their packages.
WHOLE = ("monai", "diffusers")


def load(name: str) -> types.ModuleType:
    """Import a module by its full name; its parent packages are found, but their `__init__` is not run.

    Such an `__init__` imports whole libraries, most of which the module does not use. If it does, Python's
    own error says what is missing.
    """
    if name.partition(".")[0] in WHOLE:
        return importlib.import_module(name)
    parent = ""
    for part in name.split(".")[:-1]:
        child = f"{parent}.{part}".lstrip(".")
        if child not in sys.modules:
            found = importlib.util.find_spec(child)
            if found is None:
                raise ModuleNotFoundError(f"No module named {child!r}")
            module = types.ModuleType(child)
            module.__path__, module.__spec__ = found.submodule_search_locations, found
            module.__version__ = "0"  # some modules ask for it
            sys.modules[child] = module
        parent = child
    return importlib.import_module(name)


class Nothing(importlib.abc.MetaPathFinder, importlib.abc.Loader):
    """Finds modules in which every name stands for something that does nothing."""

    def __init__(self, names: tuple[str, ...]) -> None:
        self.names = names

    def find_spec(self, name: str, path: object = None, target: object = None) -> object:
        wanted = name.partition(".")[0] in self.names
        return importlib.machinery.ModuleSpec(name, self, is_package=True) if wanted else None

    def create_module(self, spec: importlib.machinery.ModuleSpec) -> MagicMock:
        return MagicMock(name=spec.name, __spec__=spec, __path__=[])

    def exec_module(self, module: object) -> None:
        """There is nothing to run."""


def leave_out(names: tuple[str, ...]) -> None:
    """Let packages that a file imports for other purposes be empty, with all their modules."""
    sys.meta_path.insert(0, Nothing(names))
