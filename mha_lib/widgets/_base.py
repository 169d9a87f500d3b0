"""What all widgets share: how their browser code is put together, and what stands in where none runs."""

from __future__ import annotations

import base64
import io
import math
import re
from importlib import resources
from typing import TYPE_CHECKING, Any, ClassVar

import anywidget
import torch
import traitlets
from torch import Tensor

from mha_lib.widgets._traits import TraitTypeError, TraitValueError

if TYPE_CHECKING:
    from matplotlib.figure import Figure

_JS = resources.files(__package__) / "js"
_COMMENT = re.compile(r"^[ ]*(//.*|/\*\*(?:[^*]|\*(?!/))*\*/)\n", re.MULTILINE)
_RELATIVE_IMPORT = re.compile(
    r'^import \{\s*\w+(?:,\s*\w+)*,?\s*\} from "\./(\w+\.js)";\n', re.MULTILINE
)
# Not `import torch as t`, which stands in the programs that widgets write.
_OTHER_IMPORT = re.compile(r"^import (?![\w.]+( as \w+)?$).*", re.MULTILINE)


def compose_module(name: str) -> str:
    """One ES module out of the file `name` in js/ and all files that it imports, each before its first user.

    Both hosts of a widget, anywidget and the built page, take its code as a single text in which no relative
    address could be resolved. No bundler is needed as long as the files keep to one form of import,
    import { a, b } from "./file.js", and the names at the top of the files differ. Comments that have their
    own lines stay behind: every notebook stores this text. Each file begins with a line that names it, by
    which the book finds what its widgets share.

    Raises:
        ValueError: a file has an import of another form.
    """
    texts: list[str] = []
    visited: set[str] = set()

    def add(file: str) -> None:
        if file in visited:
            return
        visited.add(file)
        text = (_JS / file).read_text(encoding="utf-8")
        for imported in _RELATIVE_IMPORT.findall(text):
            add(imported)
        rest = _RELATIVE_IMPORT.sub("", text)
        if line := _OTHER_IMPORT.search(rest):
            raise ValueError(
                f'{file} may only import {{ names }} from "./file.js", got {line.group()!r}'
            )
        texts.append(f"// {file}\n{_COMMENT.sub('', rest).strip()}\n")

    add(name)
    return "\n".join(texts)


def compose_style(name: str) -> str:
    """The style sheet of all widgets, and behind it that of the module `name`, if it has one of its own.

    Each begins with a line that names it, as in `compose_module`.
    """
    own = _JS / name.replace(".js", ".css")
    sheets = [_JS / "frame.css", *([own] if own.is_file() else [])]
    return "\n".join(
        f"/* {sheet.name} */\n{sheet.read_text(encoding='utf-8')}" for sheet in sheets
    )


class CourseWidget(anywidget.AnyWidget):
    """Base class of the widgets: a subclass names its ES module in `_module` and says what stands in for it.

    Where neither kernel nor script runs (on GitHub, in print) a reader sees `figure()` or `fallback_html()`.
    """

    _module: ClassVar[str]

    def __init_subclass__(cls, **kwargs: Any) -> None:
        # traitlets makes a subclass for each instance: only one that names a module has
        # code to compose.
        if "_module" in cls.__dict__:
            cls._esm = compose_module(cls._module)
            cls._css = compose_style(cls._module)
        super().__init_subclass__(**kwargs)

    def __setattr__(self, name: str, value: Any) -> None:
        try:
            super().__setattr__(name, value)
        except TraitValueError:
            raise
        except traitlets.TraitError as error:
            raise TraitTypeError(str(error)) from None

    def figure(self) -> Figure | None:
        """The present state as a matplotlib Figure, or None where text says more."""
        return None

    def fallback_html(self) -> str | None:
        """The present state as plain HTML without scripts, or None where a figure says more."""
        return None

    def _repr_mimebundle_(
        self, **kwargs: Any
    ) -> tuple[dict[str, Any], dict[str, Any]] | None:
        bundle = super()._repr_mimebundle_(**kwargs)
        if bundle is None:
            return None
        data, metadata = bundle
        if (figure := self.figure()) is not None:
            png = io.BytesIO()
            figure.savefig(
                png,
                format="png",
                dpi=100,
                bbox_inches="tight",
                metadata={"Software": None},
            )
            data["image/png"] = base64.b64encode(png.getvalue()).decode("ascii")
        if (html := self.fallback_html()) is not None:
            data["text/html"] = html
        return data, metadata


class Explorer(CourseWidget):
    """A widget that computes in the browser what torch computes here, from the same settings.

    A subclass names in `_settings` the traits that a reader can change, and says in `_compute` what the
    numbers on the page are. "These settings as Python", in the widget's lower edge, is a program that leaves
    them in variables of the same names.
    """

    _settings: ClassVar[tuple[str, ...]]

    browser_report = traitlets.Dict().tag(sync=True)
    """What a browser last computed: its `settings` and `numbers`; empty before."""

    def _compute(self, *args: Any, **settings: Any) -> dict[str, Tensor]:
        """The numbers of a state by name, from torch and the library: finite, or -inf for a hidden score."""
        raise NotImplementedError

    def numbers(self) -> dict[str, Tensor]:
        """The numbers that the page shows in the present state, computed here: tensors by name."""
        return self._compute(**{name: getattr(self, name) for name in self._settings})

    def browser_difference(self) -> float | None:
        """Largest difference between a number that a browser computed and torch's; None before it did.

        Raises:
            ValueError: the browser computed other numbers than there are here, or a shape differs.
        """
        if not self.browser_report:
            return None
        found = self.browser_report["numbers"]
        expected = self._compute(**self.browser_report["settings"])
        if set(found) != set(expected):
            raise ValueError(
                f"the browser must report {sorted(expected)}, got {sorted(found)}"
            )
        largest = 0.0
        for name, tensor in expected.items():
            drawn = torch.tensor(_with_infinities(found[name]), dtype=torch.float64)
            if drawn.shape != tensor.shape:
                raise ValueError(
                    f"{name} must have shape {tuple(tensor.shape)}, got {tuple(drawn.shape)}"
                )
            if not torch.equal(drawn.isfinite(), tensor.isfinite()):
                raise ValueError(
                    f"{name} must be -inf where torch has it, got it elsewhere"
                )
            apart = (drawn - tensor.double())[tensor.isfinite()].abs()
            if apart.numel():
                largest = max(largest, float(apart.max()))
        return largest


def _with_infinities(value: Any) -> Any:
    """A browser's numbers, in lists, with -inf where JSON had to write null."""
    if isinstance(value, list):
        return [_with_infinities(entry) for entry in value]
    return -math.inf if value is None else value
