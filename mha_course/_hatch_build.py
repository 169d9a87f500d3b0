"""Put the experiments, which stand beside this folder in the repository, into the packages of the course."""

from pathlib import Path
from typing import Any

from hatchling.builders.hooks.plugin.interface import BuildHookInterface


class Experiments(BuildHookInterface[Any]):
    """From the repository they are added; an sdist, from which a wheel can be built too, contains them."""

    def initialize(self, version: str, build_data: dict[str, Any]) -> None:
        """Name the folders to include; `version` is hatchling's name for the kind of build."""
        here = Path(self.root).resolve()
        if version == "editable" or (here / "_experiments").exists():
            return
        build_data["force_include"] |= {
            str(here.parent / "experiments"): "_experiments",
            str(here.parent / "LICENSE"): "LICENSE",
        }
