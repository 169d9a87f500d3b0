"""Answer the page's requests, each as if Python had just been started.

What a reader's code changes outside its own names, such as `torch.Tensor.mean` or `builtins.print`, is undone
before and after each run: modules, classes and the containers of the stand-in and of the course get back what
they had when this module was imported. Starting Python again would take seconds.
"""

from __future__ import annotations

import builtins
import json
import sys
import types
from contextlib import suppress

from mha_course._take_home import take_home

try:
    import session  # as the page has them
    import training
except ModuleNotFoundError:
    from mha_course.in_page import session, training

OURS = "torch", "mha_course", "mha_lib", "attention_check"  # their containers and namespaces are restored too
HEAP, IMMUTABLE = 1 << 9, 1 << 8  # flags of types: made by a `class` statement, attributes cannot be set
# These hold what lasts, such as a training.
PAGE = session, training, sys.modules[__name__], sys.modules["__main__"]
_BUILTINS = vars(builtins)


def _differs(now, then):
    return len(now) != len(then) or any(now.get(name, now) is not value for name, value in then.items())


class Snapshot:
    """What all modules and classes contain at this moment."""

    def __init__(self):
        self.modules = dict(sys.modules)
        self.namespaces, self.classes, self.containers = {}, {}, {}
        for name, module in self.modules.items():
            if isinstance(module, types.ModuleType) and module not in PAGE:
                self._keep(module, is_ours=name.startswith(OURS))
        self.builtins = dict(vars(builtins))

    def _keep(self, owner, *, is_ours):
        kept = dict(vars(owner))
        (self.classes if isinstance(owner, type) else self.namespaces)[owner] = kept
        for value in kept.values():
            if isinstance(value, type) and value.__flags__ & (HEAP | IMMUTABLE) == HEAP:
                if value not in self.classes:
                    self._keep(value, is_ours=value.__module__.startswith(OURS))
            elif is_ours and type(value) in (dict, list, set) and value is not _BUILTINS:
                self.containers[id(value)] = value, value.copy()
            elif is_ours and isinstance(value, types.SimpleNamespace):
                self.containers[id(vars(value))] = vars(value), dict(vars(value))

    def restore(self):
        """Undo what has been changed since."""
        # Until this has happened, no name of Python itself can be relied on.
        _BUILTINS.clear()
        _BUILTINS.update(self.builtins)
        if _differs(sys.modules, self.modules):
            sys.modules.clear()
            sys.modules.update(self.modules)
        for owner, then in (*self.namespaces.items(), *self.classes.items()):
            if _differs(vars(owner), then):
                self._restore(owner, then)
        for value, then in self.containers.values():
            value.clear()
            (value.extend if isinstance(value, list) else value.update)(then)

    @staticmethod
    def _restore(owner, then):
        kind = type if isinstance(owner, type) else types.ModuleType
        for name in {*vars(owner)} - {*then}:
            with suppress(AttributeError, TypeError):  # Python itself has added it
                kind.__delattr__(owner, name)
        for name, value in then.items():
            if vars(owner).get(name, owner) is not value:
                kind.__setattr__(owner, name, value)


START = Snapshot()


def answer(request):
    """Judge or run a text, or train, or make the file to take home; the request and the reply are JSON."""
    asked = json.loads(request)
    if "train" in asked:
        # The pieces of a training keep what they have changed until it is over.
        if asked["train"]:
            START.restore()
        return training.answer(request)
    START.restore()
    if "home" in asked:
        home = take_home(asked["home"])
        return json.dumps({"text": home.text, "told": home.told()})
    try:
        return session.answer(request)
    except BaseException as error:  # it has changed what the judge itself needs
        START.restore()
        return json.dumps({"output": "", "error": session._told(error)})
    finally:
        START.restore()
