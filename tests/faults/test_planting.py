"""Each fault has its place, a function that contains its text, and its test. No fault is run here."""

import re
from collections import Counter

import pytest
import runner
from planting import NotFoundError, replaced

LIBRARY = runner.Library()

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


@pytest.mark.parametrize("fault", LIBRARY.faults, ids=[fault.what for fault in LIBRARY.faults])
def test_a_fault_has_its_place_and_its_test(fault):
    right = (LIBRARY.package / f"{fault.module}.py").read_text()
    wrong = runner.spoilt(LIBRARY.package / f"{fault.module}.py", fault)
    assert wrong != right
    compile(wrong, fault.module, "exec")
    file, _, name = fault.caught_by.partition("::")
    tests = (runner.TESTS / "library" / f"{file}.py").read_text()
    assert re.search(rf"^def {name}\(", tests, re.MULTILINE), f"{fault.what}: no {fault.caught_by}"


def test_no_fault_is_planted_twice():
    names = Counter(fault.what for fault in runner.FAULTS)
    copies = Counter(
        (fault.module, runner.spoilt(LIBRARY.package / f"{fault.module}.py", fault))
        for fault in LIBRARY.faults
    )
    assert max(names.values()) == max(copies.values()) == 1


@pytest.mark.parametrize(
    ("function", "old", "new", "line"),
    [
        (
            "Layer.forward",
            "x, x, mask",
            "x, mask",
            "        return attend(\n            x, mask,\n        )\n",
        ),
        ("Layer.forward", "attend(x, x", "mix(x, x", "        return mix(x, x,\n            mask,\n"),
        ("forward", "return x", "x = 2 * x\nreturn x", "def forward(x):\n    x = 2 * x\n    return x\n"),
        ("Layer.twice", "if mask is None:", "if True:", "        if True:\n"),
        ("LIMIT", "16", "15", "LIMIT = 15\n"),
    ],
)
def test_a_text_is_found_however_it_is_broken_into_lines(function, old, new, line):
    assert line in replaced(SOURCE, function, old, new)


@pytest.mark.parametrize(
    ("function", "old", "message"),
    [
        ("backward", "x", "backward is defined 0 times"),
        ("Layer.backward", "x", "Layer.backward is defined 0 times"),
        ("forward", "mask", "'mask' stands 0 times in forward"),
        ("forward", "eturn x", "stands 0 times"),
        ("Layer.twice", "forward", "stands 2 times"),
        ("LIMIT", "return", "stands 0 times in LIMIT"),
    ],
)
def test_a_text_without_its_place_is_refused(function, old, message):
    with pytest.raises(NotFoundError, match=re.escape(message)):
        replaced(SOURCE, function, old, "")


def test_the_error_names_the_fault(tmp_path):
    fault = LIBRARY.faults[0]._replace(what="a planet in retrograde", function="astrology")
    with pytest.raises(NotFoundError, match=r"a planet in retrograde: no place for it in .*astrology"):
        LIBRARY.plant(fault, tmp_path / "copy")


@pytest.mark.parametrize("fault", runner.Widgets.faults, ids=[fault.what for fault in runner.Widgets.faults])
def test_a_fault_of_a_widget_has_its_place_and_its_test(fault):
    text = (runner.Widgets.root / "mha_lib" / "widgets" / fault.file).read_text(encoding="utf-8")
    assert text.count(fault.old) == 1, f"{fault.what}: its text stands {text.count(fault.old)} times"
    assert fault.old != fault.new
    file, _, name = fault.caught_by.partition("::")
    tests = (runner.TESTS / "widgets" / f"{file}.py").read_text(encoding="utf-8")
    assert re.search(rf"^def {name}\(", tests, re.MULTILINE), f"{fault.what}: no {fault.caught_by}"
