"""What all widgets share: how their browser code is put together, and what stands in where none runs."""

from __future__ import annotations

import base64
import io
import re
from importlib import resources
from typing import TYPE_CHECKING, Any, ClassVar

import anywidget
import traitlets

if TYPE_CHECKING:
    from matplotlib.figure import Figure

_JS = resources.files(__package__) / "js"
_COMMENT = re.compile(r"^[ ]*(//.*|/\*\*(.|\n)*?\*/)\n", re.MULTILINE)
_RELATIVE_IMPORT = re.compile(
    r'^import \{\s*\w+(?:,\s*\w+)*,?\s*\} from "\./(\w+\.js)";\n', re.MULTILINE
)


class TraitValueError(traitlets.TraitError, ValueError):
    """A trait was given a value that breaks its rule: traitlets takes it back, callers catch a ValueError."""


class TraitTypeError(traitlets.TraitError, TypeError):
    """A trait was given a value of another type: traitlets takes it back, callers catch a TypeError."""


def compose_module(name: str) -> str:
    """One ES module out of the file `name` in js/ and all files that it imports, each before its first user.

    Both hosts of a widget, anywidget and the built page, take its code as a single text in which no relative
    address could be resolved. No bundler is needed as long as the files keep to one form of import,
    import { a, b } from "./file.js", and the names at the top of the files differ. Comments that have their
    own lines stay behind: every notebook stores this text.

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
        if line := re.search(r"^import .*", rest, re.MULTILINE):
            raise ValueError(
                f'{file} may only import {{ names }} from "./file.js", got {line.group()!r}'
            )
        texts.append(_COMMENT.sub("", rest).strip() + "\n")

    add(name)
    return "\n".join(texts)


def compose_style(name: str) -> str:
    """The style sheet of all widgets, and behind it that of the module `name`, if it has one of its own."""
    own = _JS / name.replace(".js", ".css")
    texts = [_JS / "frame.css", *([own] if own.is_file() else [])]
    return "\n".join(text.read_text(encoding="utf-8") for text in texts)


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
