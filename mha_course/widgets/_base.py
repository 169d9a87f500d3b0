"""The base of all widgets: how their browser code is assembled, and what replaces it where no code runs."""

from __future__ import annotations

import inspect
import math
import re
from collections.abc import Callable, Mapping
from importlib import resources
from typing import Any, ClassVar

import anywidget
import torch
import traitlets
from torch import Tensor
from traitlets.traitlets import ValidateHandler

from mha_course.widgets._program import compose_program
from mha_course.widgets._traits import TraitTypeError, TraitValueError, _Setting
from mha_lib._checks import refusal

# Each widget has a folder, and so does what several widgets need. No two files have the same name.
_BROWSER_FILES = {
    file.name: file
    for folder in resources.files(__package__).iterdir()
    if folder.is_dir()
    for file in folder.iterdir()
    if file.name.endswith((".js", ".css"))
}
# Empty lines, comments on their own lines, types within a line, comments at the end (not Python's //).
_COMMENT = re.compile(
    r"^\n|^[ ]*(?://.*|/\*\*(?:[^*]|\*(?!/))*\*/)\n|/\*\* @type (?:[^*]|\*(?!/))*\*/ ?|(?<=[;,{]) // .*$",
    re.MULTILINE,
)
# A comment, an empty line, or the indentation of a line.
_STYLE_COMMENT = re.compile(r"[ ]*/\*[^*]*\*/\n|^\n|^ +", re.MULTILINE)
_RELATIVE_IMPORT = re.compile(
    r'^import \{\s*\w+(?:,\s*\w+)*,?\s*\} from "(?:\.|\.\./\w+)/(\w+\.js)";\n',
    re.MULTILINE,
)
# This does not match `import torch as t`, which occurs in the programs that widgets write.
_OTHER_IMPORT = re.compile(r"^import (?![\w.]+( as \w+)?$).*", re.MULTILINE)


def compose_module(name: str) -> str:
    """Join the file `name` and its imports, each before its first user, into one ES module.

    Both hosts of a widget, anywidget and the built page, take its code as a single text, in which relative
    imports could not be resolved. No bundler is needed as long as no two files have the same name or declare
    the same name at their top level, and all use one form of import: import { a, b } from "./file.js", or
    from "../folder/file.js". Comments are left out, because each page stores this text. Each file begins
    with a line that names it; from these lines, the build finds the files that widgets have in common.

    Raises:
        ValueError: a file has an import of a different form.
    """
    return "\n".join(
        f"// {file}\n{_COMMENT.sub('', text).strip()}\n"
        for file, text in _modules(name).items()
    )


def compose_style(name: str) -> str:
    """Join the style sheets of the module `name` and of its imports, in the order of the imports.

    The style sheet of `plane.js` is `plane.css`; a module may have none. Each sheet begins with a line that
    names it, as in `compose_module`; comments and indentation are left out.
    """
    sheets = [file.replace(".js", ".css") for file in _modules(name)]
    return "\n".join(
        f"/* {sheet} */\n"
        + _STYLE_COMMENT.sub(
            "", _BROWSER_FILES[sheet].read_text(encoding="utf-8")
        ).lstrip()
        for sheet in sheets
        if sheet in _BROWSER_FILES
    )


def _modules(name: str) -> dict[str, str]:
    """The texts of the file `name` and its imports, without import lines, each before its first user."""
    texts: dict[str, str] = {}
    visited: set[str] = set()

    def add(file: str) -> None:
        if file in visited:
            return
        visited.add(file)
        text = _BROWSER_FILES[file].read_text(encoding="utf-8")
        for imported in _RELATIVE_IMPORT.findall(text):
            add(imported)
        texts[file] = _RELATIVE_IMPORT.sub("", text)
        if line := _OTHER_IMPORT.search(texts[file]):
            raise ValueError(
                f'{file} may only import {{ names }} from "./file.js", got {line.group()!r}'
            )

    add(name)
    return texts


Given = tuple[Callable[[], Any], str]
"""How to make a value: a function, and an expression for the program under "These settings as Python"."""


class CourseWidget(anywidget.AnyWidget):
    """Base class of the widgets; a subclass names its ES module in `_module`.

    Where neither a kernel nor a script runs (on GitHub, in print), a reader sees `fallback_html()` or the
    picture of the widget that `make notebooks` stores.
    """

    _module: ClassVar[str]

    def __init_subclass__(cls, **kwargs: Any) -> None:
        # traitlets makes a subclass for each instance; only a class that names a module has code to compose.
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

    def fallback_html(self) -> str | None:
        """The present state as plain HTML without scripts, or None if a picture of the widget shows more."""
        return None

    def _repr_mimebundle_(
        self, **kwargs: Any
    ) -> tuple[dict[str, Any], dict[str, Any]] | None:
        bundle = super()._repr_mimebundle_(**kwargs)
        if bundle is None:
            return None
        data, metadata = bundle
        if (html := self.fallback_html()) is not None:
            data["text/html"] = html
        return data, metadata


class Explorer(CourseWidget):
    """A widget that computes in the browser, from the same settings, what torch computes in Python.

    A subclass declares its settings as traits of `_traits`, each in one line with its default and its range.
    The constructor, its signature, the repr, and the browser's checks and controls follow from these lines.
    `_compute` defines the numbers on the page. "These settings as Python", at the bottom of the widget, is a
    program made from the source of `_compute`; it leaves the same numbers in variables of the same names.
    """

    _settings: ClassVar[tuple[str, ...]] = ()
    _assigned: ClassVar[tuple[str, ...]] = ()
    __signature__: ClassVar[inspect.Signature] = inspect.Signature()

    browser_report = traitlets.Dict().tag(sync=True)
    """The latest `settings` and `numbers` from a browser; empty before a browser has computed."""

    _ranges = traitlets.Dict(read_only=True).tag(sync=True)
    """The kind and limits of each setting, by name, with which the browser reads and checks settings."""

    _program = traitlets.Unicode(read_only=True).tag(sync=True)
    """The settings as a program, where a name in angle brackets stands for the value of a trait."""

    _compute: ClassVar[Callable[..., dict[str, Any]]]
    """A static function that computes the numbers of a state, by name, with torch; -inf is a hidden score.

    Its parameters are settings, other traits and names in `_given`. The last statement returns a dict of
    tensors, numbers or lists; an entry that is None is left out. A reader sees the body as a program."""

    def __init_subclass__(cls, **kwargs: Any) -> None:
        super().__init_subclass__(**kwargs)
        own = {
            name: trait
            for name, trait in vars(cls).items()
            if isinstance(trait, _Setting) and trait.metadata["setting"]
        }
        if not own:
            return
        cls._settings = (*cls._settings, *own)
        # A setting whose rule depends on other settings is assigned after them.
        dependent = {
            name
            for member in vars(cls).values()
            if isinstance(member, ValidateHandler)
            for name in member.trait_names
        }

        def depth(name: str) -> int:
            sources = own[name].sources & own.keys() if name in own else set()
            return max([name in dependent, *(1 + depth(source) for source in sources)])

        cls._assigned = tuple(sorted(cls._settings, key=depth))
        named = {
            name: parameter
            for name, parameter in inspect.signature(cls.__init__).parameters.items()
            if name != "self" and parameter.kind != parameter.VAR_KEYWORD
        }
        others = [_parameter(k, trait) for k, trait in own.items() if k not in named]
        cls.__signature__ = inspect.Signature([*named.values(), *others])

    def __init__(self, **settings: Any) -> None:
        for name in settings:
            if name not in self._settings:
                raise TypeError(
                    f"{type(self).__name__}() got an unexpected keyword argument {name!r}"
                )
        traits = self._setting_traits()
        sources = {source for trait in traits.values() for source in trait.sources}
        if sources:
            self.observe(self._fit_settings, names=sorted(sources))
        # Assign all settings before the widget opens, so that its first message to the browser contains them.
        for name in self._assigned:
            value = settings.get(name)
            is_missing = name not in settings or (
                value is None and traits[name].default_value is None
            )
            setattr(self, name, self.trait_defaults(name) if is_missing else value)
        ranges = {
            k: {"kind": trait.kind, **trait.limits()} for k, trait in traits.items()
        }
        self.set_trait("_ranges", ranges)
        settings = {name: getattr(self, name) for name in self._settings}
        texts = {name: text for name, (_, text) in self._given(settings).items()}
        self.set_trait("_program", compose_program(type(self)._compute, texts))
        super().__init__()

    def _setting_traits(self) -> dict[str, _Setting]:
        traits = self.traits(setting=True)
        return {name: traits[name] for name in self._settings}

    def _fit_settings(self, change: traitlets.Bunch) -> None:
        """Bring the settings into the ranges that follow from a change of another trait."""
        for name, trait in self._setting_traits().items():
            if change.name in trait.sources:
                value = getattr(self, name)
                if (fitted := trait.fitted(value, self)) != value:
                    setattr(self, name, fitted)

    def _given(self, settings: Mapping[str, Any]) -> dict[str, Given]:  # noqa: ARG002
        """How to make each parameter of `_compute` that is not a trait, here and in the program, by name.

        A name in angle brackets, ⟨model⟩, stands for a trait or for one of the `values` of the ES module.
        """
        return {}

    def _numbers_at(self, settings: Mapping[str, Any]) -> dict[str, Tensor]:
        """The numbers for these settings, which may come from a browser, rather than for the traits."""
        given = {k: make for k, (make, _) in self._given(settings).items()}
        arguments = {
            name: settings[name]
            if name in settings
            else given[name]()
            if name in given
            else getattr(self, name)
            for name in inspect.signature(self._compute).parameters
        }
        numbers = self._compute(**arguments)
        return {
            name: torch.as_tensor(
                number, dtype=None if hasattr(number, "dtype") else torch.float64
            )
            for name, number in numbers.items()
            if number is not None
        }

    def numbers(self) -> dict[str, Tensor]:
        """The numbers that the page shows in the present state, computed with torch, as tensors by name."""
        return self._numbers_at({name: getattr(self, name) for name in self._settings})

    def _details(self) -> list[str]:
        """Further entries of the repr, after the settings."""
        return []

    def __repr__(self) -> str:
        shown = [
            f"{name}={trait.text(getattr(self, name))}"
            for name, trait in self._setting_traits().items()
            if trait.metadata["in_repr"]
        ]
        return f"{type(self).__name__}({', '.join([*shown, *self._details()])})"

    def browser_difference(self) -> float | None:
        """Largest difference between the browser's numbers and torch's; None before a browser has computed.

        Raises:
            ValueError: the browser reported numbers with different names or shapes than `numbers` has.
        """
        if not self.browser_report:
            return None
        found = self.browser_report["numbers"]
        expected = self._numbers_at(self.browser_report["settings"])
        if set(found) != set(expected):
            raise refusal("the browser", f"report {sorted(expected)}", sorted(found))
        largest = 0.0
        for name, tensor in expected.items():
            drawn = torch.tensor(_with_infinities(found[name]), dtype=torch.float64)
            if drawn.shape != tensor.shape:
                rule = f"have shape {tuple(tensor.shape)}"
                raise refusal(name, rule, tuple(drawn.shape))
            if not torch.equal(drawn.isfinite(), tensor.isfinite()):
                raise refusal(name, "be -inf where torch has it", "it elsewhere")
            apart = (drawn - tensor.double())[tensor.isfinite()].abs()
            if apart.numel():
                largest = max(largest, float(apart.max()))
        return largest


def _parameter(name: str, trait: _Setting) -> inspect.Parameter:
    """A setting as a keyword argument; its default is None if the widget determines it."""
    annotation = trait.annotation
    if trait.default_value is None:
        annotation += " | None"
    return inspect.Parameter(
        name,
        inspect.Parameter.KEYWORD_ONLY,
        default=trait.default_value,
        annotation=annotation,
    )


def _with_infinities(value: Any) -> Any:
    """Numbers from a browser, as lists, with -inf in place of JSON's null."""
    if isinstance(value, list):
        return [_with_infinities(entry) for entry in value]
    return -math.inf if value is None else value
