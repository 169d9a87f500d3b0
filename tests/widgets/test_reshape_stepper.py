"""The reshape stepper: its tables against numpy, its steps and questions in a browser."""

import re
from itertools import product

import numpy as np
import pytest
import torch
from playwright.sync_api import expect
from widget_page import assert_shows_numbers, shown

from mha_course.widgets import ReshapeStepper

SIZES = [(length, n) for length in (2, 3, 4, 6) for n in range(1, 7) if 12 % (length * n) == 0]
WAYS = list(product(("transpose", "view"), ("transpose", "reshape")))


def in_numpy(split, merge, length, num_heads):
    """The tables of a way as numpy makes them: (axes, table) a step."""
    head_dim = 12 // length // num_heads
    x = np.arange(12).reshape(length, -1)
    walk = [("te", x)]
    if split == "transpose":
        walk.append(("thd", x.reshape(length, num_heads, head_dim)))
        walk.append(("htd", walk[-1][1].swapaxes(0, 1)))
    else:
        walk.append(("htd", x.reshape(num_heads, length, head_dim)))
    if merge == "transpose":
        walk.append(("thd", walk[-1][1].swapaxes(0, 1)))
    walk.append(("te", walk[-1][1].reshape(length, -1)))
    return walk


def count_misplaced(axes, table, length, num_heads):
    """By a loop over tokens, heads and places."""
    width = 12 // length
    head_dim = width // num_heads
    count = 0
    for token, head, place in np.ndindex(length, num_heads, head_dim):
        own = head * head_dim + place
        index = {"te": (token, own), "thd": (token, head, place), "htd": (head, token, place)}[axes]
        count += table[index] != token * width + head * head_dim + place
    return count


@pytest.mark.parametrize(("split", "merge"), WAYS)
@pytest.mark.parametrize(("length", "num_heads"), SIZES)
def test_tables_equal_numpy(split, merge, length, num_heads):
    walk = in_numpy(split, merge, length, num_heads)
    for step, (axes, table) in enumerate(walk):
        stepper = ReshapeStepper(split=split, merge=merge, length=length, num_heads=num_heads, step=step)
        numbers = stepper.numbers()
        assert numbers["table"].tolist() == table.tolist()
        assert numbers["misplaced"] == count_misplaced(axes, table, length, num_heads)
        strides = numbers["strides"].tolist()
        for index in np.ndindex(table.shape):
            offset = sum(i * stride for i, stride in zip(index, strides, strict=True))
            assert numbers["memory"][offset] == table[index]
    assert ReshapeStepper(split=split, merge=merge).split == split


def test_each_wrong_way_is_found_or_hides():
    ends = {way: len(in_numpy(*way, 3, 2)) - 1 for way in WAYS}
    last = {way: ReshapeStepper(split=way[0], merge=way[1], step=end) for way, end in ends.items()}
    misplaced = {way: int(s.numbers()["misplaced"]) for way, s in last.items()}
    assert misplaced == {
        ("transpose", "transpose"): 0,
        ("transpose", "reshape"): 8,
        ("view", "transpose"): 8,
        ("view", "reshape"): 0,  # the wrong merge undoes the wrong split
    }
    assert ReshapeStepper(split="view", merge="reshape", step=1).numbers()["misplaced"] == 8


def test_settings_that_depend_on_each_other():
    stepper = ReshapeStepper(num_heads=4, step=4)
    stepper.length = 2
    assert stepper.num_heads == 3  # four heads do not fit into six numbers
    stepper.split = "view"
    assert stepper.step == 3
    stepper.merge = "reshape"
    assert stepper.step == 2
    with pytest.raises(ValueError, match=r"step must lie in 0\.\.2"):
        stepper.step = 3


def test_repr():
    stepper = ReshapeStepper(split="view", step=1)
    shape = "step=1, shape=(2, 3, 2)"
    assert repr(stepper) == f"ReshapeStepper(split='view', merge='transpose', {shape})"


def asked(walk, length, num_heads):
    """Where each question points: written down again, so that a change of either is seen."""
    places, head_dim = [], 12 // length // num_heads
    for axes, _ in walk[1:]:
        if axes == "htd":
            places.append((0, 1, 0))
        elif axes == "te":
            places.append((length - 1, 0))
        elif places:  # the heads are swapped back
            places.append((1, num_heads - 1, head_dim - 1))
        else:
            places.append((0, 1, 0) if num_heads > 1 else (0, 0, 1))
    return places


@pytest.mark.parametrize(("split", "merge"), WAYS)
def test_predict_then_see(show, split, merge):
    """Wrong answers on the way there, right ones on the second way; the place asked for is ringed."""
    host = show(ReshapeStepper(split=split, merge=merge))
    verdict, ring = host.locator(".mha-verdict"), host.locator(".mha-asked")
    status, walk = host.locator("[role=status]"), in_numpy(split, merge, 3, 2)
    for is_right in (False, True):
        for (_, table), place in zip(walk[1:], asked(walk, 3, 2), strict=True):
            number = str(table[place])
            buttons = host.locator(".mha-answers button")
            texts = buttons.all_inner_texts()
            assert len(set(texts)) == 4
            assert number in texts
            chosen = next(text for text in texts if (text == number) == is_right)
            buttons.nth(texts.index(chosen)).press("Enter")
            opening = "✓ Right: " if is_right else f"✗ Not {chosen}: "
            expect(verdict).to_contain_text(f"{opening}{number} is at [")
            expect(ring).to_have_text(number)
            expect(status).to_contain_text(f"{opening}{number} is at [")
        assert host.locator(".mha-answers:visible").count() == 0
        # The focus stays in the widget when the last answer is gone.
        expect(host.locator(".mha-step[aria-current]:visible")).to_be_focused()
        host.locator(".mha-step:visible").first.click()
        expect(verdict).to_be_hidden()
        assert ring.count() == 0


def test_every_question_has_four_answers(show):
    steppers = [
        ReshapeStepper(split=split, merge=merge, length=length, num_heads=num_heads)
        for (split, merge), (length, num_heads) in product(WAYS[1:3], SIZES[::3])
    ]
    for host, stepper in zip(show(*steppers), steppers, strict=True):
        walk = in_numpy(stepper.split, stepper.merge, stepper.length, stepper.num_heads)
        places = asked(walk, stepper.length, stepper.num_heads)
        for (_, table), place in zip(walk[1:], places, strict=True):
            texts = host.locator(".mha-answers button").all_inner_texts()
            assert len({int(text) for text in texts}) == 4
            assert str(table[place]) in texts
            host.get_by_role("button", name="Next").click()


def test_the_first_questions_have_different_answers_and_wrong_calls_give_others(show):
    """The places are read from the questions as the reader reads them."""
    host = show(ReshapeStepper())
    right, wrong = in_numpy("transpose", "transpose", 3, 2), in_numpy("view", "transpose", 3, 2)
    answers = []
    for axes, table in right[1:]:
        question = host.locator(".mha-predict p", has_text="Predict:").inner_text()
        place = tuple(int(index) for index in re.findall(r"\d", question.split("]")[0]))
        assert len(place) == table.ndim
        answers.append(int(table[place]))
        if axes == "htd":
            assert [t[place] for a, t in wrong if a == "htd"] != answers[-1:]
        if axes == "te":
            ways = ("view", "transpose"), ("transpose", "reshape")
            others = [in_numpy(*way, 3, 2)[-1][1][place] for way in ways]
            assert answers[-1] not in others
        host.locator(".mha-answers button").get_by_text(str(answers[-1]), exact=True).click()
        expect(host.locator(".mha-verdict")).to_contain_text("✓ Right")
    assert len(set(answers)) == 4


def test_numbers_can_be_walked_through_and_pointed_at(show):
    host = show(ReshapeStepper(step=2))
    cells, readout = host.locator(".mha-tables .mha-cell"), host.locator(".mha-readout")
    cells.first.focus()
    expect(readout).to_contain_text("[head 0, token 0, 0]: number 0")
    for key, text in (
        ("ArrowDown", "[head 0, token 1, 0]: number 4, entry 0 of head 0 of token 1"),
        ("ArrowRight", "[head 0, token 1, 1]: number 5"),
        ("End", "[head 1, token 2, 1]: number 11"),
        ("ArrowUp", "[head 1, token 1, 1]: number 7, entry 1 of head 1 of token 1"),
    ):
        host.locator(".mha-cell:focus").press(key)
        expect(readout).to_contain_text(text)
    expect(host.locator(".mha-memory .mha-now")).to_have_text("7")
    cells.nth(3).hover()
    expect(readout).to_contain_text("number 5")
    expect(readout).to_contain_text("offset 5 in memory")
    assert host.locator(".mha-tables .mha-cell[tabindex='0']").count() == 1


def test_wrong_places_are_marked(show):
    stepper = ReshapeStepper(merge="reshape", step=3)
    host = show(stepper)
    table, right = stepper.numbers()["table"].flatten(), torch.arange(12)
    is_marked = "cells => cells.map(cell => cell.classList.contains('mha-misplaced'))"
    marked = host.locator(".mha-tables .mha-cell").evaluate_all(is_marked)
    assert marked == (table != right).tolist()
    assert "tokens are mixed" in host.inner_text()


def test_changing_the_way_keeps_the_stage_and_reset_brings_all_back(show):
    host = show(ReshapeStepper(step=2))
    start = shown(host, "table")
    host.locator("input[name=Split][value=view]").check(force=True)
    assert_shows_numbers(host, ReshapeStepper(split="view", step=1))
    host.locator("input[name=Split][value=transpose]").check(force=True)
    assert torch.equal(shown(host, "table"), start)
    host.locator("input[name=Merge][value=reshape]").check(force=True)
    host.get_by_role("button", name="Next").click()
    assert_shows_numbers(host, ReshapeStepper(merge="reshape", step=3))
    host.get_by_role("button", name="Reset").click()
    assert_shows_numbers(host, ReshapeStepper(step=2))
    expect(host.locator("[role=status]")).to_have_text("All settings are back at their initial values.")


def test_a_verdict_gives_the_strides_or_says_what_was_copied(show):
    """The reason under an answer, against the strides and the memory of numpy."""
    steppers = [ReshapeStepper(split=split, merge=merge) for split, merge in WAYS]
    copies = 0
    for host, way in zip(show(*steppers), WAYS, strict=True):
        walk = in_numpy(*way, 3, 2)
        places = asked(walk, 3, 2)
        for (_, before), (axes, table), place in zip(walk, walk[1:], places, strict=False):
            host.locator(".mha-answers button").get_by_text(str(table[place]), exact=True).click()
            strides = [stride // table.itemsize for stride in table.strides]
            offset = sum(i * stride for i, stride in zip(place, strides, strict=True))
            copied = not np.shares_memory(before, table)
            copies += copied
            terms = " + ".join(f"{i}·{stride}" for i, stride in zip(place, strides, strict=True))
            reason = (
                f"Reshape copied the previous table row by row; this is number {offset} of the copy, "
                "counted from 0." if copied else f"Its offset is {terms} = {offset}."
            )  # fmt: skip
            names = {"te": ("token",), "thd": ("token", "head"), "htd": ("head", "token")}[axes]
            where = ", ".join([f"{n} {i}" for n, i in zip(names, place, strict=False)] + [str(place[-1])])
            told = f"✓ Right: {table[place]} is at [{where}]. {reason}"
            expect(host.locator(".mha-verdict")).to_have_text(told)
    assert copies == 2


@pytest.mark.parametrize(("step", "misplaced"), [(0, 0), (2, 0), (3, 8)])
def test_rows_cells_and_memory_have_the_colours_of_their_token_and_head(show, step, misplaced):
    host = show(ReshapeStepper(merge="reshape", step=step))
    axes, table = in_numpy("transpose", "reshape", 3, 2)[step]
    color = "node => getComputedStyle(node).backgroundColor"
    keys = host.locator(".mha-keys > span").all()
    legend = {key.inner_text(): key.locator("i").evaluate(color) for key in keys}
    assert len(set(legend.values())) == len(legend) == 5
    # A cell has two colours: above that of its token, below that of its head.
    look = """(cell) => [Number(cell.innerText),
      ...new Set(getComputedStyle(cell).backgroundImage.match(/rgb\\([^)]*\\)/g))]"""
    rows = host.locator(".mha-tables [role=row]")
    names = [f"token {i}" for i in range(3)] * (2 if axes == "htd" else 1)
    if axes == "thd":
        names = ["head 0", "head 1"] * 3
    assert rows.locator("[role=rowheader]").all_inner_texts() == names

    def painted(numbers):
        places = ((n, n // 4, n % 4 // 2) for n in numbers.flatten().tolist())
        return [[n, legend[f"token {token}"], legend[f"head {head}"]] for n, token, head in places]

    cells = rows.locator(".mha-cell").evaluate_all(f"cells => cells.map({look})")
    assert cells == painted(table)
    memory = host.locator(".mha-memory .mha-cell").evaluate_all(f"cells => cells.map({look})")
    assert memory == painted(table if step == 3 else np.arange(12))
    facts = host.locator(".mha-facts > p").all_inner_texts()
    shape = ", ".join(map(str, table.shape))
    strides = ", ".join(str(stride // table.itemsize) for stride in table.strides)
    assert f"({shape})" in facts[0] and f"({strides})" in facts[1] and f"{misplaced} of 12" in facts[2]
