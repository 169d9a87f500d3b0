"""Each fault has its place, a function that contains its text, and its test. No fault is run here."""

import re
from collections import Counter

import pytest
import runner
from planting import NotFoundError, replaced

SOURCE = """\
LIMIT = 16


class Layer:
    def forward(self, x):
        return attend(
            x,  x,
            mask,
        )

    def twice(self, mask):
        if mask is None:
            return self.forward(self.forward(mask))


def forward(x):
    return x
"""


EACH = [pytest.param(kind, fault, id=fault.what) for kind in runner.KINDS for fault in kind.faults]


@pytest.mark.parametrize(("kind", "fault"), EACH)
def test_a_fault_has_its_place_and_its_test(kind, fault):
    path = kind.root / kind.path_of(fault)
    right, wrong = path.read_text(encoding="utf-8"), runner.spoilt(kind, fault)
    assert wrong != right
    if path.suffix == ".py":
        compile(wrong, path.name, "exec")
    file, _, name = fault.caught_by.partition("[")[0].partition("::")
    tests = (runner.TESTS / kind.tests / f"{file}.py").read_text(encoding="utf-8")
    assert re.search(rf"^def {name}\(", tests, re.MULTILINE), f"{fault.what}: no {fault.caught_by}"


def test_no_fault_is_planted_twice():
    names = Counter(fault.what for fault in runner.FAULTS)
    each = [(kind, fault) for kind in runner.KINDS for fault in kind.faults]
    copies = Counter((kind.path_of(fault), runner.spoilt(kind, fault)) for kind, fault in each)
    assert max(names.values()) == max(copies.values()) == 1


@pytest.mark.parametrize("name", [name for names in runner.listed_for_each_push().values() for name in names])
def test_a_name_for_each_push_is_that_of_one_fault(name):
    assert [
        fault.what.startswith(name) if "`" in name else fault.what == name for fault in runner.FAULTS
    ].count(True) == 1


def test_some_sixty_faults_of_every_class_are_planted_for_each_push():
    classes = runner.listed_for_each_push()
    assert len(classes) > 10 and all(classes.values())
    chosen = [fault for fault in runner.FAULTS if runner.is_planted_for_each_push(fault)]
    assert 50 <= len(chosen) == sum(map(len, classes.values())) <= 70


@pytest.mark.parametrize(("function", "old", "new", "line"), [
    ("Layer.forward", "x, x, mask", "x, mask", "        return attend(\n            x, mask,\n        )\n"),
    ("Layer.forward", "attend(x, x", "mix(x, x", "        return mix(x, x,\n            mask,\n"),
    ("forward", "return x", "x = 2 * x\nreturn x", "def forward(x):\n    x = 2 * x\n    return x\n"),
    ("Layer.twice", "if mask is None:", "if True:", "        if True:\n"),
    ("LIMIT", "16", "15", "LIMIT = 15\n"),
])  # fmt: skip
def test_a_text_is_found_however_it_is_broken_into_lines(function, old, new, line):
    assert line in replaced(SOURCE, function, old, new)


@pytest.mark.parametrize(("function", "old", "message"), [
    ("backward", "x", "backward is defined 0 times"),
    ("Layer.backward", "x", "Layer.backward is defined 0 times"),
    ("forward", "mask", "'mask' stands 0 times in forward"), ("forward", "eturn x", "stands 0 times"),
    ("Layer.twice", "forward", "stands 2 times"), ("LIMIT", "return", "stands 0 times in LIMIT"),
])  # fmt: skip
def test_a_text_without_its_place_is_refused(function, old, message):
    with pytest.raises(NotFoundError, match=re.escape(message)):
        replaced(SOURCE, function, old, "")


def test_the_error_names_the_fault(tmp_path):
    kind = runner.KINDS[0]
    fault = kind.faults[0]._replace(what="a planet in retrograde", function="astrology")
    with pytest.raises(NotFoundError, match=r"a planet in retrograde: no place for it in .*astrology"):
        runner.plant(kind, fault, tmp_path / "copy")
