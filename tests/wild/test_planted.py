"""Faults that were planted in published attentions are caught, and most of them get their name."""

import json
from pathlib import Path

import pytest
import table

FAULTS = json.loads(Path(__file__).with_name("planted.json").read_text("utf-8"))


@pytest.fixture(scope="module")
def told():
    found = table.printed_by("planted.py")
    assert len(found) == len(FAULTS)
    return found


def numbers(*reasons):
    """The faults with one of these reasons why they are not caught."""
    return [number for number, fault in enumerate(FAULTS) if {*reasons} & fault.keys()]


def test_nearly_all_are_caught(told):
    """The others, with the reason in planted.json, are said in the contract or differ only."""
    missed = [one["number"] for one in told if one["status"] != 1]
    assert missed == numbers("missed", "not_tried", "silent")
    beyond = numbers("not_tried", "silent")
    assert len(numbers("missed")) <= 0.03 * (len(told) - len(beyond))


def test_what_is_not_tried_is_said(told):
    """They are in calls that no case makes, or make another contract that fits; the report says it."""
    for number in numbers("not_tried"):
        said = f"{told[number]['contract']}; {told[number]['beside']}"
        assert FAULTS[number]["not_tried"] in said, (number, said)


def test_few_are_passed_over_in_silence():
    """Known limits, of which no report speaks: 5 of the 221 faults, each with its reason in planted.json."""
    assert (len(numbers("silent")), len(FAULTS)) == (5, 221)


def test_most_are_named_rightly(told):
    expected = [one for one in told if one["name"]]
    unnamed = [one for one in expected if one["name"] not in " ".join(one.get("found", {}).values())]
    assert len(unnamed) <= 0.15 * len(expected), unnamed
