"""The rotation dial: its traits in Python, its numbers, its arrows and its curves in a browser."""

import cmath
import math

import pytest
import torch
from playwright.sync_api import expect
from seen import Plane, slider
from widget_page import assert_shows_numbers, shown

from mha_course.widgets import RotationDial


def loops(m, n, pair, head_dim, base, query_angle, key_angle):
    """Scores of one pair and of all by complex numbers, number by number: rotary, sinusoid added."""

    def pairs(degrees, position, kind):
        arrow = cmath.exp(1j * math.radians(degrees))
        for i in range(head_dim // 2):
            angle = position * base ** (-2 * i / head_dim)
            if kind == "rotary":
                yield arrow * cmath.exp(1j * angle)
            else:
                yield arrow + complex(math.sin(angle), math.cos(angle))

    results = {}
    for kind in ("rotary", "added"):
        query, key = (list(pairs(query_angle, m, kind)), list(pairs(key_angle, n, kind)))
        scores = [(q * k.conjugate()).real for q, k in zip(query, key, strict=True)]
        results[f"{kind}_query"] = [query[pair].real, query[pair].imag]
        results[f"{kind}_key"] = [key[pair].real, key[pair].imag]
        results[f"{kind}_pair_score"] = scores[pair]
        results[f"{kind}_score"] = sum(scores)
    return results


@pytest.mark.parametrize("shown_scores", ["pair", "all"])
@pytest.mark.parametrize(("m", "n", "pair", "head_dim", "base", "angles"), [
    (3, 5, 1, 16, 10_000.0, (20.0, 50.0)), (0, 32, 0, 2, 10_000.0, (-180.0, 180.0)),
    (32, 0, 31, 64, 1_000_000.0, (90.0, -37.5)), (7, 7, 2, 6, 1.0, (0.0, 0.0)),
])  # fmt: skip
def test_numbers_follow_the_definition(m, n, pair, head_dim, base, angles, shown_scores):
    dial = RotationDial(
        query_position=m,
        key_position=n,
        pair=pair,
        head_dim=head_dim,
        base=base,
        query_angle=angles[0],
        key_angle=angles[1],
        shown=shown_scores,
    )
    numbers = dial.numbers()
    expected = loops(m, n, pair, head_dim, base, *angles)
    curve = "pair_score" if shown_scores == "pair" else "score"
    for kind in ("rotary", "added"):
        scores = (loops(m, k, pair, head_dim, base, *angles) for k in range(33))
        expected[f"{kind}_by_offset"] = [one[f"{kind}_{curve}"] for one in scores]
    assert numbers.keys() == expected.keys()
    for name, value in expected.items():
        value = torch.tensor(value, dtype=torch.float64)
        assert numbers[name].shape == value.shape, name
        # The library rounds angles up to 32 to float32, each pair's on its own.
        torch.testing.assert_close(numbers[name], value, atol=2e-6 * head_dim, rtol=1e-6, msg=name)


def test_moving_both_changes_only_what_is_added():
    dials = [RotationDial(query_position=3 + k, key_position=5 + k, pair=1) for k in range(28)]
    for name in ("rotary_pair_score", "rotary_score"):
        scores = torch.stack([dial.numbers()[name] for dial in dials])
        torch.testing.assert_close(scores, scores[:1].expand(28), atol=1e-5, rtol=0)
    added = torch.stack([dial.numbers()["added_pair_score"] for dial in dials])
    assert added.max() - added.min() > 1


def test_the_pair_stays_in_the_head():
    dial = RotationDial(head_dim=8, pair=3)
    dial.head_dim = 4
    assert dial.pair == 1


def test_moving_both_leaves_the_rotary_score(show):
    dial = RotationDial(query_position=0, key_position=2, pair=1)
    host = show(dial)
    both = slider(host, "move both")
    rotary = host.locator("[data-number=rotary_pair_score]")
    added = host.locator("[data-number=added_pair_score]")
    before, seen = rotary.inner_text(), [added.inner_text()]
    both.focus()
    for position in range(1, 31):
        host.page.keyboard.press("ArrowRight")
        dial.query_position, dial.key_position = position, position + 2
        assert_shows_numbers(host, dial)
        assert rotary.inner_text() == before
        seen.append(added.inner_text())
    assert len(set(seen)) > 20
    both.press("ArrowRight")  # the key is at the end
    assert_shows_numbers(host, dial)
    expect(host.get_by_role("status")).to_have_text(
        f"Both moved by 1: the rotary score stays {before}; with the sinusoid added, the score "
        f"goes from {seen[-2]} to {seen[-1]}."
    )
    both.press("Home")
    dial.query_position, dial.key_position = 0, 2
    assert_shows_numbers(host, dial)


def test_the_question_and_its_slider_come_first_and_the_dials_follow(show):
    host = show(RotationDial())
    for width, height in ((900, 800), (360, 740)):
        host.page.set_viewport_size({"width": width, "height": height})
        both, others = slider(host, "move both"), host.locator("input[type=range]").all()
        question = host.get_by_text("On which dial do the scores stay the same?")
        tops = [place.bounding_box()["y"] for place in (question, both, host.locator(".mha-dial").first)]
        assert tops == sorted(tops)
        assert sum(slider.bounding_box()["y"] < tops[2] for slider in others) == 1
        # The slider is on the screen together with the dial and the score that must not change.
        score = host.locator("[data-number=rotary_pair_score]").bounding_box()
        assert score["y"] + score["height"] - tops[0] < 0.75 * height
    host.locator("input, button").first.focus()
    expect(both).to_be_focused()


def test_arrows_by_keyboard_and_by_pointer(show):
    dial = RotationDial(query_position=3, key_position=5, pair=1)
    host = show(dial)
    query = slider(host, "Direction of the query's arrow, before its position turns it")
    key = slider(host, "Direction of the key's arrow, before its position turns it")
    for knob, trait, presses in (
        (query, "query_angle", {"ArrowUp": 1, "ArrowRight": -1, "Shift+ArrowLeft": 10}),
        (key, "key_angle", {"PageUp": 45, "ArrowDown": -1, "PageDown": -45}),
    ):
        for press, turn in presses.items():
            knob.press(press)
            setattr(dial, trait, getattr(dial, trait) + turn)
            assert_shows_numbers(host, dial)
            expect(knob).to_have_attribute("aria-valuenow", str(int(getattr(dial, trait))))
    for press, angle in (("Home", -180), ("End", 180), ("Home", -180)):
        query.press(press)
        dial.query_angle = angle
        expect(query).to_have_attribute("aria-valuenow", str(angle))
        assert_shows_numbers(host, dial)
    # A full turn: the angle stays in -180..180.
    dial.query_angle = float(query.get_attribute("aria-valuenow"))
    for _ in range(36):
        query.press("Shift+ArrowLeft")
        wrapped = dial.query_angle + 10
        dial.query_angle = wrapped - 360 if wrapped > 180 else wrapped
        assert_shows_numbers(host, dial)

    # Straight up: with 3 positions of 10000^(-2/16) radians behind it.
    area = host.locator(".mha-dial").first.bounding_box()
    knob = query.bounding_box()
    mouse = host.page.mouse
    mouse.move(knob["x"] + knob["width"] / 2, knob["y"] + knob["height"] / 2)
    mouse.down()
    mouse.move(area["x"] + area["width"] / 2, area["y"] + 10)
    mouse.up()
    dial.query_angle = round(90 - 3 * math.degrees(10_000 ** (-2 / 16)))
    assert_shows_numbers(host, dial)
    x, y = shown(host, "rotary_query").tolist()
    assert abs(x) < 0.02 and y > 0.99
    mouse.move(area["x"], area["y"])
    assert_shows_numbers(host, dial)  # after release, nothing moves
    expect(host.get_by_role("status")).to_contain_text("Pair 1, offset 2: rotary score")

    # The mark on the curves.
    handle = slider(host, "offset")
    handle.scroll_into_view_if_needed()
    knob, plane = handle.bounding_box(), host.locator(".mha-area").bounding_box()
    mouse.move(knob["x"] + knob["width"] / 2, knob["y"] + knob["height"] / 2)
    mouse.down()
    mouse.move(plane["x"] + plane["width"] * (32 + 10) / 64, knob["y"])
    mouse.up()
    dial.key_position = 13
    assert_shows_numbers(host, dial)


def test_arrows_end_where_the_numbers_say(show):
    dial = RotationDial(query_position=3, key_position=5, pair=1)
    host = show(dial)
    for name in ("rotary_query", "rotary_key", "added_query", "added_key"):
        path = host.locator(f"[data-number={name}]").get_attribute("d")
        # "M<start>L<tip>..." with y downwards.
        x, y = (float(number) for number in path.split("L")[1].split("M")[0].split())
        expected = dial.numbers()[name]
        torch.testing.assert_close(torch.tensor([x, -y], dtype=torch.float64), expected, atol=1e-4, rtol=0)


ARCS = """nodes => nodes.map((path) => {
  const total = path.getTotalLength();
  const ways = [0, 0.25, 0.5, 0.75, 1].map((share) => {
    const { x, y } = path.getPointAtLength(share * total);
    return Math.atan2(-y, x);
  });
  const { x, y } = path.getPointAtLength(0);
  return { turn: total / Math.hypot(x, y), ways };
})"""


def test_arcs_texts_and_scores_are_the_turns_of_the_positions(show):
    angles = {"query_angle": 20, "key_angle": 50}
    dial = RotationDial(query_position=11, key_position=5, pair=1, head_dim=6, base=10, **angles)
    host = show(dial)
    frequency = 10 ** (-2 / 6)
    arcs = host.locator("path.mha-by-position[d*=A]").evaluate_all(ARCS)
    assert len(arcs) == 2
    for arc, position, angle in zip(arcs, (11, 5), (20, 50), strict=True):
        turn = position * frequency % (2 * math.pi)
        assert arc["turn"] == pytest.approx(turn, abs=0.02)
        for share, way in zip((0, 0.25, 0.5, 0.75, 1), arc["ways"], strict=True):
            wanted = math.radians(angle) + share * turn
            assert math.cos(way - wanted) == pytest.approx(1, abs=1e-3)
    assert 11 * frequency % (2 * math.pi) > math.pi > 5 * frequency % math.pi  # a long and a short one
    told = f"Pair 1, columns 2 and 3: {math.degrees(frequency):.2f}° per position, offset −6."
    expect(host.locator(".mha-speed")).to_have_text(told)
    expected = loops(11, 5, 1, 6, 10, 20, 50)
    for place, kind in enumerate(("rotary", "added")):
        scores = host.locator(".mha-dial-scores").nth(place)
        texts = [float(text.replace("−", "-")) for text in scores.locator("strong").all_inner_texts()]
        wanted = [expected[f"{kind}_{name}"] for name in ("pair_score", "score")]
        assert texts == pytest.approx(wanted, abs=2e-4)
        expect(scores).to_contain_text("all 3 pairs")


def test_curves_are_the_scores_at_every_offset(show):
    dial = RotationDial(query_position=11, key_position=17, pair=1, head_dim=6, base=10)
    host = show(dial)
    plane, angles = Plane(host.locator(".mha-plane")), (dial.query_angle, dial.key_angle)
    for kind in ("rotary", "added"):
        heights = [loops(11, n, 1, 6, 10, *angles)[f"{kind}_pair_score"] for n in range(33)]
        drawn, [dot] = plane.curve(f"mha-{kind}"), plane.dots(f"mha-{kind}")
        assert [x for x, _ in drawn] == pytest.approx(range(-11, 22), abs=0.3)
        assert [y for _, y in drawn] == pytest.approx(heights, abs=0.1)
        assert dot[:2] == pytest.approx((6, heights[17]), abs=0.3)
    # The knobs lie on the tips of the turned arrows.
    circle = host.locator(".mha-circle").first.bounding_box()
    middle = circle["x"] + circle["width"] / 2, circle["y"] + circle["height"] / 2
    for role, position, angle in (("query", 11, angles[0]), ("key", 17, angles[1])):
        knob = host.locator(f".mha-dial .mha-handle.mha-{role}").bounding_box()
        x, y = knob["x"] + knob["width"] / 2 - middle[0], middle[1] - knob["y"] - knob["height"] / 2
        way = math.radians(angle) + position * 10 ** (-2 / 6)
        assert math.cos(math.atan2(y, x) - way) == pytest.approx(1, abs=2e-3)
