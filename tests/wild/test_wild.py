"""Attention in packages that others publish gets the verdict that is stored for its pinned version."""

import pytest
import table

STORED = table.stored()["judged"]


@pytest.fixture(scope="module")
def judged():
    """All verdicts of today, by the names of the classes."""
    found = table.printed_by("run.py")
    return {one["name"]: one for one in found}


def changes(before, now):
    """What is new in a verdict, in words: aspect, old and new."""
    old, new = ({**one.get("findings", {}), **one, "findings": ""} for one in (before, now))
    return [
        f"{what}: was {old.get(what)!r}, is {new.get(what)!r}"
        for what in {**old, **new}
        if old.get(what) != new.get(what) and what not in ("name", "seconds")
    ]


@pytest.mark.parametrize("name", STORED)
def test_the_verdict_is_the_stored_one(judged, name):
    changed = changes(STORED[name], judged[name])
    advice = "Find out who is right, then: .venv-wild/bin/python tests/wild/run.py --write"
    assert not changed, "\n".join([name, *changed, advice])


def test_what_is_new_is_stored_too(judged):
    assert judged.keys() == STORED.keys()
