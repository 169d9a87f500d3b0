"""What holds for every widget, in a real browser without a network: from a server, from disk, in a test."""

import base64
import contextlib
import functools
import inspect
import math
import operator
import random
import re

import pytest
import torch
import widget_looks
from playwright.sync_api import expect
from stills import at_rest
from widget_page import (
    ByHand,
    assert_gives,
    assert_shows,
    assert_shows_numbers,
    finger,
    run_copied_code,
    use_controls,
    write_page,
)
from widget_samples import SAMPLES

import mha_course.widgets
from mha_course.widgets import AttentionStepper, CourseWidget, Explorer, HeadExample, HeadExplorer
from mha_course.widgets._base import _BROWSER_FILES
from mha_course.widgets._traits import Flag, Number, Text, Whole

NAMES = sorted(SAMPLES)
every_widget = pytest.mark.parametrize("name", NAMES)
# The other widgets ask the reader questions, so they have no settings, numbers or program.
EXPLORERS = [name for name in NAMES if issubclass(getattr(mha_course.widgets, name), Explorer)]
every_explorer = pytest.mark.parametrize("name", EXPLORERS)


# Answers stored before a page opens; without them, Progress shows neither buttons nor links.
KEPT = """localStorage.setItem("mha-course/typed-answer/a", '{"attempts": [5]}');
localStorage.setItem("mha-course/repeat/quiz/orientation-quiz",
    '{"You add 10 to every input of a softmax. Its outputs …": {}}')"""

# These numbers are in a picture, where they cannot be read, but the browser reports them all.
DRAWN_AS_PIXELS = {
    "AblationLab": {"maps"}, "ChatHeads": {"weights"}, "HeadExplorer": {"weights"},
    "HeadTraining": {"start_maps", "first_loss"}, "SentenceHeads": {"weights"},
    "TextTraining": {"first_loss"},
}  # fmt: skip


def settings_of(widget):
    """The traits that a reader changes."""
    return getattr(widget, "_settings", ("chosen",))


@pytest.fixture(scope="module")
def bench(browser, address, tmp_path_factory):
    """A page in which the tests host widgets themselves; the page's own widget is not touched."""
    folder = tmp_path_factory.mktemp("bench")
    page = browser.new_page(viewport={"width": 900, "height": 1000})
    page.errors = []
    page.on("pageerror", lambda error: page.errors.append(str(error)))
    page.on("console", lambda message: page.errors.append(message.text) if message.type == "error" else None)
    path = write_page(folder, [SAMPLES["Quiz"]()])
    page.goto(f"{address}/{folder.name}/chapters/{path.name}")
    yield page
    page.close()


@pytest.fixture
def by_hand(bench):
    """A function that hosts a widget; at the end it is cleaned up, and no error may have been seen."""
    bench.errors.clear()
    hosted = []

    def host(widget):
        hosted.append(ByHand(bench, widget))
        return hosted[-1]

    yield host
    for widget in hosted:
        widget.clean_up()
    assert bench.errors == []


def contents(host):
    """The numbers and the controls that can be seen in a widget, as one value to compare."""
    return host.evaluate(
        """root => [...root.querySelectorAll(
             ".mha-body :is([data-number], input, select, textarea, [aria-current], [aria-pressed])"
           )].filter((node) => node.checkVisibility()).map((node) => [
             node.dataset.number, node.dataset.value, node.textContent, node.value, node.checked,
             node.disabled, node.selectedIndex, node.ariaCurrent, node.ariaPressed])"""
    )


@every_widget
def test_its_sample_is_of_its_class(name):
    cls = getattr(mha_course.widgets, name)
    assert isinstance(SAMPLES[name](), cls)
    assert issubclass(cls, CourseWidget)


@every_explorer
def test_constructor_signature_and_ranges_follow_from_the_traits(name):
    widget, cls = SAMPLES[name](), getattr(mha_course.widgets, name)
    parameters = inspect.signature(cls).parameters
    settings = widget.traits(setting=True)
    assert set(widget._settings) == set(settings) == set(widget._ranges)
    for setting, trait in settings.items():
        assert parameters[setting].kind is inspect.Parameter.KEYWORD_ONLY
        assert parameters[setting].default == trait.default_value
        assert widget._ranges[setting] == {"kind": trait.kind, **trait.limits()}
    described = re.search(r"Args:\n(.*?)\n\n", inspect.getdoc(cls), re.DOTALL)[1]
    assert set(re.findall(r"^    (\w+): ", described, re.MULTILINE)) == set(parameters)


def refusals(name, trait, widget):
    """Values that a state refuses to a setting, by its trait, each with the error and its whole message."""
    limits = trait.limits(widget)
    low, high, options = (limits.get(key) for key in ("low", "high", "options"))
    cases, told = [], f"{name} must {{}}, got {{!r}}".format
    refused = lambda error, rule, *values: [(value, error, told(rule, value)) for value in values]  # noqa: E731
    if isinstance(trait, Flag):
        cases += refused(TypeError, "be True or False", None, 1, "True", math.nan)
    elif isinstance(trait, Text):
        cases += refused(TypeError, "be a str", None, 1, ["a"], math.nan)
        if options:
            cases += refused(ValueError, f"be one of {options}", "", "nothing")
    elif isinstance(trait, Whole):
        cases += refused(TypeError, "be an int", None, "1", True, float(low), math.nan, [])
        cases += refused(ValueError, f"lie in {low}..{high}", low - 1, high + 1)
        missing = sorted(set(range(low, high)) - set(options or range(low, high)))
        cases += refused(ValueError, f"be one of {tuple(options or ())}", *missing[:2])
        if limits.get("step") == 2:
            cases += refused(ValueError, "be odd" if low % 2 else "be even", low + 1, high - 1)
        if whole := limits.get("divides"):
            other = next(number for number in range(low, high + 1) if whole % number)
            cases += refused(ValueError, f"divide {trait.limits()['divides']}={whole}", other)
    elif isinstance(trait, Number):
        cases += refused(TypeError, "be a number", None, "1", True, [])
        outside = low - 1, high + 1, math.nan, math.inf
        cases += refused(ValueError, f"be a number from {low} to {high}", *outside)
    else:
        length = limits.get("length", 2)
        cases += refused(TypeError, "be a list of numbers", None, 1.0, "11", [True] * length, ["1"] * length)
        count = f"{length} numbers" if "length" in limits else "numbers"
        wrong = [[], [high + 1] * length, [low - 1] * length, [math.nan] * length]
        cases += refused(ValueError, f"hold {count} from {low} to {high}", *wrong)
        if "length" in limits:
            cases += refused(ValueError, f"hold {count} from {low} to {high}", [low] * (length + 1))
    return cases


@every_explorer
def test_python_refuses_what_no_state_allows_and_changes_nothing(name):
    widget = SAMPLES[name]()
    before = widget.get_state()
    for setting, trait in widget.traits(setting=True).items():
        cases = refusals(setting, trait, widget)
        assert len(cases) >= 3
        for value, error, message in cases:
            with pytest.raises(error, match=f"^{re.escape(message)}$"):
                setattr(widget, setting, value)
            assert widget.get_state() == before
            if isinstance(SAMPLES[name], type) and not (value is None and trait.default_value is None):
                with pytest.raises((error, ValueError)):
                    SAMPLES[name](**{setting: value})


def test_an_argument_that_is_no_setting_is_refused():
    with pytest.raises(TypeError, match=r"AlibiExplorer\(\) got an unexpected keyword argument 'heads'"):
        mha_course.widgets.AlibiExplorer(heads=3)


@every_widget
def test_it_shows_the_numbers_of_torch_and_its_still_stands_by(show, name):
    widget = SAMPLES[name]()
    host = show(widget, over="http", stills=True)
    page = host.page
    expect(host).to_have_attribute("data-widget", "ready")
    expect(host.locator(".mha-body")).to_be_visible()
    expect(host.locator(".mha-problem")).to_be_hidden()
    if name in EXPLORERS:
        numbers = widget.numbers()
        assert numbers
        assert not any(tensor.isnan().any() for tensor in numbers.values())
        assert_shows_numbers(host, widget, numbers.keys() - DRAWN_AS_PIXELS.get(name, set()))
        assert_gives(run_copied_code(host), numbers)
    still = page.locator(".widget-still")
    expect(still).to_be_hidden()
    page.emulate_media(media="print")
    expect(host).to_be_visible()
    expect(still).to_be_hidden()
    # A widget that has not started is replaced on paper.
    host.evaluate("node => delete node.dataset.widget")
    expect(still).to_be_visible()
    expect(page.locator(".widget-host")).to_be_hidden()
    assert still.bounding_box()["height"] > 50


@every_explorer
def test_its_controls_lead_to_the_numbers_of_torch_and_reset_leads_back(by_hand, name):
    """After every control was used, torch and the copied program compute what the browser computed."""
    widget = SAMPLES[name]()
    hand = by_hand(widget)
    host = hand.host
    first = contents(host)
    traits = {trait: getattr(widget, trait) for trait in settings_of(widget)}
    changed = set()
    for fraction in (1, 0, 0.4):
        use_controls(host, fraction)
        report = hand.report()
        assert report["settings"] == {t: hand.get(t) for t in settings_of(widget)}
        changed |= {t for t, value in traits.items() if report["settings"][t] != value}
        widget.browser_report = report
        assert widget.browser_difference() < 1e-6
        expected = widget._numbers_at(report["settings"])
        for key in expected.keys() - DRAWN_AS_PIXELS.get(name, set()):
            assert_shows(host, key, expected[key])
        assert_gives(run_copied_code(host), expected)
    assert changed, "the controls change something"
    host.get_by_role("button", name="Reset").click()
    assert hand.report()["settings"] == traits
    assert contents(host) == first
    widget.browser_report = hand.report()
    assert widget.browser_difference() < 1e-6


# Training in the browser takes a while.
QUICK = [name for name in EXPLORERS if name not in ("HeadTraining", "TextTraining")]


def somewhere(trait, limits, draw):
    """A value within the limits of a setting, a small number rather than a large one."""
    low, high, options = (limits.get(key) for key in ("low", "high", "options"))
    if trait.kind == "flag":
        return draw.random() < 0.5
    if options:
        return draw.choice(options)
    if trait.kind == "reals":
        number = (lambda: draw.choice([low, high])) if limits.get("ends") else lambda: draw.uniform(low, high)
        return [round(number(), 3) for _ in range(limits["length"])]
    if trait.kind == "real":
        return round(low + (high - low) * draw.random() ** 2, 3)
    numbers = range(low, min(high, low + 20_000) + 1, limits.get("step") or 1)
    if whole := limits.get("divides"):
        numbers = [n for n in numbers if whole % n == 0]
    return numbers[int(len(numbers) ** draw.random()) - 1]


def move_anywhere(widget, draw):
    """Give each setting a value that no control may have; where Python refuses it, the old one stays."""
    for setting in widget._assigned:
        trait = widget.traits()[setting]
        limits = trait.limits(widget)
        if trait.kind != "text" and (trait.kind != "reals" or "length" in limits):
            with contextlib.suppress(ValueError):
                setattr(widget, setting, somewhere(trait, limits, draw))


@pytest.mark.parametrize("name", QUICK)
def test_in_any_state_the_page_shows_what_torch_computes(by_hand, name):
    """A kernel may bring any of these states at once."""
    draw = random.Random(0)
    widget = SAMPLES[name]()
    hand = by_hand(widget)
    first, moved = widget.get_state(widget._settings), set()
    for index in range(24):
        move_anywhere(widget, draw)
        state = widget.get_state(widget._settings)
        moved |= {setting for setting in state if state[setting] != first[setting]}
        hand.set(**state)
        widget.browser_report = hand.report()
        assert widget.browser_report["settings"] == state
        assert widget.browser_difference() < 1e-6, state
        numbers = widget.numbers()
        for key in numbers.keys() - DRAWN_AS_PIXELS.get(name, set()):
            assert_shows(hand.host, key, numbers[key])
        if index % 4 == 0:
            assert_gives(run_copied_code(hand.host), numbers)
    kinds = {setting: trait.kind for setting, trait in widget.traits(setting=True).items()}
    assert moved >= {setting for setting, kind in kinds.items() if kind not in ("text", "reals")}


@every_widget
def test_python_accepts_what_the_page_can_set(by_hand, name):
    """With a kernel each change in the page changes a trait, which Python may refuse: it never has to."""
    widget = SAMPLES[name]()
    hand = by_hand(widget)
    reset = hand.host.get_by_role("button", name="Reset")
    for fraction in (1, 0, 0.4, None):
        if fraction is not None:
            use_controls(hand.host, fraction)
        elif name in EXPLORERS:
            reset.click()
        for changes in hand.saved():
            widget.set_state(changes)
            assert {trait: getattr(widget, trait) for trait in changes} == changes
        for trait in settings_of(widget):
            assert getattr(widget, trait) == hand.get(trait), trait


def outside(limits):
    """Values beyond the limits of a setting, each with what the browser says about it."""
    low, high, options = (limits.get(key) for key in ("low", "high", "options"))
    if low is None:
        return [("nothing", f"be one of {', '.join(options)}")] if options else []
    if "length" in limits:
        count = limits["length"]
        rule = f"hold {count} numbers from {low:g} to {high:g}"
        return [([low - 1] * count, rule), ([low] * (count + 1), rule)]
    return [(value, f"got {value:g}") for value in (low - 1, high + 1)] if high < 1e6 else []


def is_refused(name, trait, value):
    """Whether Python refuses the value, in the state of the sample."""
    try:
        setattr(SAMPLES[name](), trait, value)
    except (TypeError, ValueError):
        return True
    return False


@every_widget
def test_a_setting_that_makes_no_sense_gives_a_message_and_the_widget_recovers(by_hand, name):
    widget = SAMPLES[name]()
    hand = by_hand(widget)
    problem, body = hand.host.locator(".mha-problem"), hand.host.locator(".mha-body")
    first = contents(hand.host)
    refused = 0
    for trait in settings_of(widget):
        good = hand.get(trait)
        setting = widget.traits().get(trait)
        limits = setting.limits(widget) if hasattr(setting, "limits") else {}
        rules = [(value, trait) for value in (None, "nan", math.nan, [])]
        for value, rule in [*rules, *outside(limits)]:
            hand.set(**{trait: value})
            if is_refused(name, trait, value):
                refused += 1
                expect(body).to_be_hidden()
                expect(problem).to_contain_text("This widget cannot show its state: ")
                expect(problem).to_contain_text(f"{trait} must ")
                expect(problem).to_contain_text(rule)
                assert problem.get_attribute("role") == "alert"
            else:
                expect(body).to_be_visible()
            hand.set(**{trait: good})
            expect(problem).to_be_hidden()
            expect(body).to_be_visible()
            assert contents(hand.host) == first, (trait, value)
    assert refused >= 2 * len(settings_of(widget))


# Rules other than ranges: a widget, a trait, an invalid value, and the message in the page.
TRAINED = lambda: AttentionStepper(vectors="trained")  # noqa: E731
STATES = SAMPLES | {"trained": TRAINED}
RULES = [
    ("AblationLab", "num_heads", 3, "num_heads must be one of 2, 4, got 3"),
    ("AblationLab", "gates", [1, 0.5], "gates must hold 2 numbers, each 0 or 1, got [1,0.5]"),
    ("AblationLab", "gates", [1], "gates must hold 2 numbers from 0 to 1, got [1]"),
    ("AblationLab", "sample", 30, "sample must lie in 0..29, got 30"),
    ("AttentionStepper", "sentence", "", "sentence must be fit to show. Type at least one word"),
    ("AttentionStepper", "sentence", "sailors were coffee", "“coffee” has no vector"),
    ("AttentionStepper", "sentence", "We", "“We” has no vector"),
    ("AttentionStepper", "query", 3, "query must lie in 0..2, got 3"),
    ("AttentionStepper", "head", 1, "head must lie in 0..0, got 1"),
    ("trained", "query", 12, "query must lie in 0..11, got 12"),
    ("trained", "sentence", "we like tea", "“we” has no vector"),
    ("trained", "sentence", "the [padding]", "“[padding]” has no vector"),
    ("ChatHeads", "text", "none", "text must be one of “few”, “more”, got “none”"),
    ("ChatHeads", "query", 3, "query must lie in 0..2, got 3"),
    ("ChatHeads", "layer", 4, "layer must lie in 0..3, got 4"),
    ("HeadExplorer", "num_heads", 5, "num_heads must divide embed_dim=12 and be one of 1, 2, 3, 4, 6, 12"),
    ("HeadExplorer", "valid_len", 6, "valid_len must lie in 0..5, got 6"),
    ("HeadExplorer", "head", 2, "head must lie in 0..1, got 2"),
    ("HeadExplorer", "other", 2, "other must lie in 0..1, got 2"),
    ("HeadExplorer", "example", "a", "example must be one of “sentence”, got “a”"),
    ("HeadsMeet", "text", "we like coffee", "text must hold words of the model, separated by single spaces"),
    ("HeadsMeet", "text", "we  like", 'separated by single spaces, got ""'),
    ("HeadsMeet", "text", " ".join(["tea"] * 8), "text must hold 1 to 7 words, got 8"),
    ("HeadsMeet", "query", 5, "query must lie in 0..4, got 5"),
    ("HeadsMeet", "gates", [1, 0], "gates must hold 3 numbers"),
    ("HeadsMeet", "gates", [1, 0.5, 1], "gates must hold 3 numbers, each 0 or 1"),
    ("HeadsMeet", "coordinate", 15, "coordinate must lie in 0..14, got 15"),
    ("ReshapeStepper", "num_heads", 3, "num_heads must divide"),
    ("ReshapeStepper", "step", 5, "step must lie in 0..4, got 5"),
    ("SentenceHeads", "text", "", "text must be fit to read: Type at least one character"),
    ("SentenceHeads", "text", "a" * 201, "201 characters are too many: the model reads at most 200"),
    ("SentenceHeads", "layer", 3, "layer must lie in 0..2, got 3"),
    ("SentenceHeads", "query", 48, "query must lie in 0..47, got 48"),
    ("TextTraining", "text", "abc", "text must be fit to learn: 3 characters are too few"),
    ("TextTraining", "text", "", "0 characters are too few: the model learns a text of 40 to 5,000"),
    ("TextTraining", "text", "ж" * 10_000, "10,000 characters are too many: the model learns a text of"),
    ("Translator", "num_heads", 3, "num_heads must be one of 2, 4, got 3"),
    ("Translator", "gates", [1.0] * 11, "gates must hold 12 numbers from 0 to 1"),
    ("Translator", "gates", [0.5] * 12, "gates must hold 12 numbers, each 0 or 1, got [0.5"),
    ("Translator", "text", "5 мая 2021!",
     "text must be a date that the model can read: The model cannot read"),
    ("Translator", "layer", 2, "layer must lie in 0..1, got 2"),
    ("Translator", "head", 2, "head must lie in 0..1, got 2"),
    ("Writer", "prompt", "", "prompt must be a text that the model can read: Type at least one character"),
    ("Writer", "prompt", "a🙂", "The model cannot read a character that it has never seen: “🙂”"),
    ("Writer", "prompt", "a" * 10_000, "10,000 characters are too many: a prompt has at most 1,000"),
    ("Writer", "written", "a" * 501, "501 characters are too many"),
    ("Writer", "layer", 2, "layer must lie in 0..1, got 2"),
    ("Writer", "gates", [0.5] * 8, "gates must hold 8 numbers, each 0 or 1"),
    ("CostCalculator", "num_heads", 5, "num_heads must divide embed_dim=4096, got 5"),
    ("CostCalculator", "num_kv_heads", 5, "num_kv_heads must divide num_heads=32, got 5"),
    ("MaskPainter", "painted", "11111", "painted must be 5 groups of 5 digits 0 or 1"),
    ("MaskPainter", "painted", " ".join(["11112"] * 5), "painted must be 5 groups of 5 digits 0 or 1"),
    ("MaskPainter", "scores", [[1, 2], [3]], "scores must hold rows of finite numbers"),
    ("MaskPainter", "value", [["NaN"]] * 5, "value must hold rows of finite numbers"),
    ("MaskPainter", "value", [[1.0]], "value must have a row for each of 5 keys, got 1"),
    ("MaskTranslator", "visible", "11 111", "visible must be 1 to 6 groups of 2 to 6 digits 0 or 1"),
    ("PoolingExplorer", "key_range", [5, 0], "key_range must begin below its end"),
    ("PoolingExplorer", "value_range", [0], "value_range must begin below its end"),
    ("PoolingExplorer", "truth", [1, 2], "truth must hold 101 numbers or none, got 2"),
    ("PoolingExplorer", "truth", None, "truth must hold numbers"),
    ("ScoreExplorer", "key", [0.0, 0.0, 1.0], "key must hold x and y of 2 to 6 keys, got 3 numbers"),
]  # fmt: skip


def test_the_page_and_python_refuse_what_breaks_a_rule_of_one_widget(show):
    def alter(states):
        for state, (_, trait, value, _) in zip(states, RULES, strict=True):
            state[trait] = value

    widgets = [STATES[name]() for name, *_ in RULES]
    hosts = show(*widgets, alter=alter)
    for host, widget, (_, trait, value, message) in zip(hosts, widgets, RULES, strict=True):
        expect(host.locator(".mha-problem")).to_contain_text(message)
        expect(host.locator(".mha-body")).to_be_hidden()
        before = getattr(widget, trait)
        with pytest.raises((TypeError, ValueError), match=trait):
            setattr(widget, trait, value)
        assert getattr(widget, trait) == before


def stored_numbers(state, path=()):
    """Where a state holds numbers as text in base64: the keys that lead there."""
    items = state.items() if isinstance(state, dict) else enumerate(state) if isinstance(state, list) else ()
    for key, value in items:
        if isinstance(value, str) and not str(key).startswith("_"):
            if len(value) >= 24 and re.fullmatch(r"[A-Za-z0-9+/]+={0,2}", value):
                yield (*path, key)
        else:
            yield from stored_numbers(value, (*path, key))


DAMAGES = {
    "cut off": lambda text: text[:-16],
    "no base64": lambda text: "?" + text[1:],
    "half": lambda text: base64.b64encode(
        base64.b64decode(text)[: len(base64.b64decode(text)) // 2]
    ).decode(),
    "empty": lambda text: "",
    "another type": lambda text: None,
    "not finite": lambda text: "AADAfw" + text[6:],  # a float32 that is not a number comes first
}
BYTES = {"bytes", "int8", "targets", "tokens"}  # every value of the bytes is a number


def answering_heads():
    """A widget with stored models that answer."""
    models = {heads: ("two_pointers", f"linear, {heads} heads", 0) for heads in (2, 4)}
    tokens, targets = torch.arange(12) % 7, torch.arange(24).view(12, 2) % 7
    words = [str(token) for token in range(8)]
    options = {"tasks": ["one", "two"], "targets": targets, "measure": "both right"}
    return HeadExplorer([HeadExample.stored("two pointers", models, tokens, words, **options)])


MODELS = (
    "AblationLab", "AttentionStepper", "ChatHeads", "HeadExplorer", "HeadsMeet", "ScoreExplorer",
    "Translator", "Writer",
)  # fmt: skip


def test_the_widgets_that_store_numbers_as_text_are_known():
    assert tuple(name for name in NAMES if list(stored_numbers(SAMPLES[name]().get_state()))) == MODELS


# In a state that shows the stored numbers.
DRAWN = {name: SAMPLES[name] for name in MODELS} | {
    "AttentionStepper": lambda: AttentionStepper(vectors="trained"),
    "HeadExplorer with answers": answering_heads,
}


@pytest.mark.parametrize("make", DRAWN.values(), ids=DRAWN)
def test_damaged_numbers_are_named(show, make):
    """What a page stores of a model can be cut off or spoilt on its way; no widget draws half of it."""
    paths = list(stored_numbers(make().get_state()))
    kinds = sorted({path[-1] for path in paths})
    cases = [(kind, *damage) for kind in kinds for damage in DAMAGES.items()]
    cases = [case for case in cases if not (case[0] in BYTES and case[1] == "not finite")]

    def alter(states):
        for state, (kind, _, spoil) in zip(states, cases, strict=True):
            for *parents, key in (path for path in paths if path[-1] == kind):
                place = functools.reduce(operator.getitem, parents, state)
                place[key] = spoil(place[key])

    hosts = show(*(make() for _ in cases), over="http", alter=alter)
    for host, (kind, damage, _) in zip(hosts, cases, strict=True):
        problem = host.locator(".mha-problem")
        # Half of a matrix may be whole rows; then a different part reveals that some are missing.
        named = "" if damage == "half" else f"{kind} must hold "
        expect(problem).to_contain_text(f"This widget cannot show its state: {named}")
        expect(problem).to_contain_text("what the page stores is damaged.")
        expect(host.locator(".mha-body")).to_be_hidden()


@every_widget
def test_a_hundred_views_come_and_go_without_a_trace(bench, name):
    widget = SAMPLES[name]()
    bench.errors.clear()
    client = bench.context.new_cdp_session(bench)

    def count_after(renders):
        size = bench.evaluate(RENDER_AND_CLEAN_UP, [widget.get_state(), settings_of(widget), renders])
        client.send("HeapProfiler.collectGarbage")
        counters = client.send("Memory.getDOMCounters")
        return counters["nodes"], counters["jsEventListeners"], size

    # Once by hand, which loads the module.
    ByHand(bench, widget).clean_up()
    nodes_before, listeners_before, _ = count_after(5)
    nodes, listeners, size = count_after(100)
    client.detach()
    # The browser may keep the last view for a while.
    # Progress shows two sentences and two buttons.
    assert size > (10 if name == "Progress" else 20)
    assert nodes - nodes_before < 3 * size + 100
    assert listeners - listeners_before < 50
    assert bench.errors == []


RENDER_AND_CLEAN_UP = """async ([state, settings, renders]) => {
  const { load, makeModel } = window.byHand;
  const widget = await load(state._esm);
  const timers = new Set();
  const kept = { setTimeout, clearTimeout, setInterval, requestAnimationFrame, cancelAnimationFrame };
  const start = (make) => (act, ...rest) => {
    const id = make((...args) => {
      timers.delete(id);
      act(...args);
    }, ...rest);
    timers.add(id);
    return id;
  };
  const stop = (clear) => (id) => {
    timers.delete(id);
    clear(id);
  };
  const wait = () => new Promise((resolve) => kept.setTimeout.call(window, resolve));
  window.setTimeout = start(kept.setTimeout);
  window.clearTimeout = stop(kept.clearTimeout);
  window.requestAnimationFrame = start(kept.requestAnimationFrame);
  window.cancelAnimationFrame = stop(kept.cancelAnimationFrame);
  window.setInterval = () => { throw new Error("no clock may run"); };
  let size = 0;
  try {
    for (let i = 0; i < renders; i += 1) {
      const model = makeModel(structuredClone(state));
      const el = document.body.appendChild(document.createElement("div"));
      const cleanUp = await widget.render({ model, el });
      for (const trait of settings) model.set(trait, structuredClone(model.get(trait)));
      const controls = el.querySelectorAll(":is(.mha-body, .mha-footer) :is(input, button, summary)");
      controls[i % controls.length].click();
      const input = new Event("input", { bubbles: true });
      el.querySelectorAll("input").forEach((node) => node.dispatchEvent(input));
      await wait();
      size = el.querySelectorAll("*").length;
      cleanUp();
      if (el.childNodes.length) throw new Error("a node was left behind");
      if (model.listening()) throw new Error("the model is still watched");
      if (timers.size) throw new Error("a timer still runs");
      for (const trait of settings) model.set(trait, null); // a late change must do nothing
      el.remove();
    }
  } finally {
    Object.assign(window, kept);
  }
  await wait();
  return size;
}"""


# Two Progress widgets show the same answers, so they are expected to affect each other.
@pytest.mark.parametrize("name", [name for name in NAMES if name != "Progress"])
def test_two_on_a_page_from_disk_do_not_disturb_each_other(show, name):
    widgets = [SAMPLES[name](), SAMPLES[name]()]
    first, second = show(*widgets)
    if name in EXPLORERS:
        for host, widget in zip((first, second), widgets, strict=True):
            assert_shows_numbers(host, widget, widget.numbers().keys() - DRAWN_AS_PIXELS.get(name, set()))
    untouched = contents(second)
    assert untouched
    use_controls(first, 1)
    changed = contents(first)
    assert changed != untouched
    assert contents(second) == untouched
    use_controls(second, 0)
    use_controls(second, 0.4)
    assert contents(first) == changed
    assert first.page.locator(".mha-widget [id]").count() == 0, "an id would be there twice"


def too_wide(page):
    """What sticks out of the page on the right or left, and neither scrolls by itself nor is cut off."""
    return page.evaluate(
        """() => {
          const width = document.documentElement.clientWidth;
          const kinds = (node) => node.localName === "svg" ? ["hidden", "clip"] : ["auto", "scroll"];
          const scrolls = (node) => kinds(node).includes(getComputedStyle(node).overflowX);
          const isInside = (node) => {
            for (let n = node.parentElement; n; n = n.parentElement) if (scrolls(n)) return true;
            return false;
          };
          const out = [...document.querySelectorAll(".mha-widget *")].filter((node) => {
            const { left, right, width: own } = node.getBoundingClientRect();
            return own > 0 && (right > width + 0.5 || left < -0.5) && !isInside(node);
          });
          if (document.documentElement.scrollWidth > width) out.push(document.body);
          return out.map((node) => node.outerHTML.slice(0, 120));
        }"""
    )


def cut_off(host):
    """What is wider than its box, which cuts it off; a text that ends in an ellipsis says so itself."""
    return host.evaluate(
        """root => [...root.querySelectorAll("*")].filter((node) => {
          const { overflowX, textOverflow } = getComputedStyle(node);
          const cuts = ["hidden", "clip"].includes(overflowX) && textOverflow !== "ellipsis";
          const isText = !node.ownerSVGElement && node.innerText?.trim() && !node.closest(".mha-unseen");
          return cuts && isText && node.scrollWidth > node.clientWidth + 1;
        }).map((node) => node.outerHTML.slice(0, 120))"""
    )


@every_widget
def test_it_fits_a_phone_in_light_and_dark_and_moves_nothing(show, name):
    host = show(SAMPLES[name](), over="http", width=360, script=KEPT)
    page = host.page
    page.emulate_media(reduced_motion="reduce")
    host.locator("details").evaluate_all("folds => folds.forEach((fold) => { fold.open = true; })")
    for theme, width in (("light", 360), ("dark", 320)):
        page.set_viewport_size({"width": width, "height": 1000})
        page.evaluate("theme => { document.documentElement.dataset.theme = theme; }", theme)
        for fraction in (None, 1, 0):
            if fraction is not None:
                use_controls(host, fraction)
            assert too_wide(page) == []
            assert cut_off(host) == []
            assert page.evaluate("document.getAnimations().length") == 0
        scheme = "dark" if theme == "dark" else "normal"
        expect(host.locator(".mha-widget")).to_have_css("color-scheme", scheme)


# Moves a slider through its range, in up to twelve steps, and back.
# Returns the values at which it has moved, and by how many pixels.
STROLL = """async (slider) => {
  const widget = slider.closest(".mha-widget");
  const place = () => slider.getBoundingClientRect().top - widget.getBoundingClientRect().top;
  const [min, max, step] = [slider.min, slider.max, slider.step].map(Number);
  const stops = Math.min(12, Math.round((max - min) / step));
  const [start, first, moves] = [place(), slider.value, []];
  for (let stop = 0; stop <= stops + 1; stop++) {
    slider.value = stop > stops ? first : min + step * Math.round(stop * (max - min) / stops / step);
    slider.dispatchEvent(new Event("input", { bubbles: true }));
    await new Promise(requestAnimationFrame);
    if (Math.abs(place() - start) > 0.5) moves.push([slider.ariaValueText, place() - start]);
  }
  return moves;
}"""


def using(call):
    """The widgets whose own module makes such a part."""
    module = lambda name: _BROWSER_FILES[getattr(mha_course.widgets, name)._module].read_text("utf-8")  # noqa: E731
    return [name for name in NAMES if call in module(name)]


@pytest.mark.parametrize("name", using("slider(frame"))
def test_a_slider_stays_where_it_is_while_it_moves(show, name):
    """Numbers above it get longer and have room for that, or it would run away from under the finger."""
    host = show(SAMPLES[name](), over="http")
    host.locator("details").evaluate_all("folds => folds.forEach((fold) => { fold.open = true; })")
    for width in (900, 360):
        host.page.set_viewport_size({"width": width, "height": 900})
        sliders = host.locator("input[type=range]:enabled:visible").all()
        moves = [slider.evaluate(STROLL) for slider in sliders]
        assert sliders
        assert moves == [[]] * len(sliders)


@pytest.mark.parametrize("name", using(".handle({"))
def test_a_finger_drags_every_handle_and_the_page_stays(show, name):
    host = show(SAMPLES[name](), over="http", width=360)
    page = host.page
    page.add_style_tag(content="body { padding-block: 900px }")
    touch = finger(page)
    handles = host.locator(".mha-handle:visible")
    assert handles.count() >= 1
    for handle in handles.all():
        handle.evaluate("node => node.scrollIntoView({ block: 'center' })")
        scrolled = page.evaluate("scrollY")
        box = handle.bounding_box()
        x, y = box["x"] + box["width"] / 2, box["y"] + box["height"] / 2
        area = handle.locator("..").bounding_box()
        left, right = area["x"] + 1, area["x"] + area["width"] - 1
        top, bottom = area["y"] + 1, area["y"] + area["height"] - 1
        touch("touchStart", x, y)
        # All over the plane; numbers that get longer during the drag must not push it away from the finger.
        for across in (0.5, 0, 1, 0.9, 0.1):
            for down in (0, 0.5, 1):
                place = left + across * (right - left), top + down * (bottom - top)
                touch("touchMove", *place)
                assert handle.locator("..").bounding_box() == area
        touch("touchEnd")
        moved = handle.bounding_box()
        distance = math.hypot(moved["x"] - box["x"], moved["y"] - box["y"])
        assert distance > 15, handle.get_attribute("aria-label")
        assert page.evaluate("scrollY") == scrolled


# The buttons that an arrow key moves: a screen reader would not say that they can be moved, or how far. In a
# list, a grid or a group, the arrow keys lead from one part to the next.
BUTTONS_WITH_ARROW_KEYS = """root => {
  const isPart = (node) => node.closest("[role=grid], [role=toolbar], [role=list], [role=radiogroup]");
  const isAction = (node, key) =>
    !node.dispatchEvent(new KeyboardEvent("keydown", { key, bubbles: true, cancelable: true }));
  return [...root.querySelectorAll(".mha-body :is(button, [role=button])")]
    .filter((node) => node.checkVisibility() && !isPart(node))
    .filter((node) => ["ArrowLeft", "ArrowRight", "ArrowUp", "ArrowDown"].some((key) => isAction(node, key)))
    .map((node) => node.outerHTML.slice(0, 120));
}"""

# Whether a range input is the topmost element at its upper and its lower edge, where a finger may land.
IS_HIT_AT_ITS_EDGES = """input => {
  input.scrollIntoView({ block: "center" });
  const { left, width, top, bottom } = input.getBoundingClientRect();
  return [top + 1, bottom - 1].every((y) => document.elementFromPoint(left + width / 2, y) === input);
}"""

BACK_AND_FORTH = {"horizontal": ("ArrowLeft", "ArrowRight"), "vertical": ("ArrowDown", "ArrowUp")}


@every_widget
def test_what_moves_is_a_slider_and_sliders_are_high_enough_for_a_finger(show, name):
    host = show(SAMPLES[name](), over="http")
    for slider in host.locator("input[type=range]:visible").all():
        assert slider.bounding_box()["height"] >= 24
        assert slider.evaluate(IS_HIT_AT_ITS_EDGES)
    for slider in host.locator("[role=slider]:visible").all():
        read = lambda what, slider=slider: slider.get_attribute(f"aria-{what}")  # noqa: E731
        label, keys = read("label"), BACK_AND_FORTH[read("orientation") or "vertical"]

        def state(read=read, slider=slider, label=label):
            low, now, high = (float(read(f"value{part}")) for part in ("min", "now", "max"))
            assert low <= now <= high and low < high, label
            assert re.search(r"\d", read("valuetext")), label
            box = slider.bounding_box()
            return now, read("valuetext"), (box["x"] + box["width"] / 2, box["y"] + box["height"] / 2)

        # At one end, one key moves away from it, and the opposite key moves back.
        slider.press("Home")
        lowest = state()
        slider.press("End")
        highest = state()
        assert highest[0] > lowest[0], label
        back, forth = keys
        if math.dist(lowest[2], highest[2]) < 1:  # a dial, which closes
            assert highest[0] - lowest[0] == 360
        slider.press(back)
        if state() == highest:  # it grows downwards, like the rows of a table
            back, forth = forth, back
            slider.press(back)
        less = state()
        assert less[0] < highest[0] and less[1] != highest[1] and less[2] != highest[2], label
        slider.press(forth)
        assert state() == highest, label
    assert host.evaluate(BUTTONS_WITH_ARROW_KEYS) == []


def in_states(host):
    """The state in which a widget opens, and the one after every control was used."""
    yield "as it opens"
    use_controls(host, 0.4)
    at_rest(lambda: host.page.wait_for_timeout(1_500) or host.inner_html())  # animations have ended
    yield "after every control was used"


def set_theme(page, theme):
    """The page's theme, with the colours that the book then has."""
    page.evaluate(
        """theme => {
          document.documentElement.dataset.theme = theme;
          const [ground, text] = theme === "dark" ? ["#121212", "#ced6dd"] : ["#fff", "#222832"];
          Object.assign(document.body.style, { background: ground, color: text });
        }""",
        theme,
    )


# A reader who forces dark colours on a light page, and vice versa, which are the harder cases.
@pytest.mark.parametrize(("theme", "forced"), [("light", "dark"), ("dark", "light")])
@every_widget
def test_forced_colours_leave_maps_bars_legends_and_what_is_selected(show, name, theme, forced):
    host = show(SAMPLES[name](), over="http")
    page = host.page
    for state in in_states(host):
        set_theme(page, "light")
        page.emulate_media(forced_colors="none", color_scheme="light", reduced_motion="reduce")
        before, photo_before = widget_looks.looks_of(host), widget_looks.photograph(page)
        set_theme(page, theme)
        page.emulate_media(forced_colors="active", color_scheme=forced)
        after, photo_after = widget_looks.looks_of(host), widget_looks.photograph(page)
        # The colours of text and background are the reader's.
        black, white = "rgb(0, 0, 0)", "rgb(255, 255, 255)"
        ground, text = (black, white) if forced == "dark" else (white, black)
        expect(host.locator(".mha-widget")).to_have_css("background-color", ground)
        expect(host.locator(".mha-widget")).to_have_css("color", text)
        assert widget_looks.unreadable(after) == [], state
        assert widget_looks.lost_marks(before, photo_before, after, photo_after) == [], state
        assert widget_looks.lost_lines(before, after) == [], state
        assert widget_looks.merged_states(before, after) == [], state
        assert widget_looks.lost_choices(before, after) == [], state


NUMBERS_SEEN = """root => [...root.querySelectorAll(".mha-body [data-number]")]
  .filter((node) => node.checkVisibility())
  .map((node) => [node.dataset.number, node.textContent, node.dataset.value])"""
CHOICES_SEEN = """root => [...root.querySelectorAll(".mha-body :is(input, select, textarea)")]
  .filter((node) => node.checkVisibility()).map((node) => [node.value, node.checked, node.selectedIndex])"""


@every_widget
def test_paper_shows_the_readers_state_in_dark_ink_and_no_empty_frame(show, name):
    host = show(SAMPLES[name](), over="http", width=700, stills=True)
    page = host.page
    for state in in_states(host):
        page.emulate_media(media="screen", color_scheme="light")
        set_theme(page, "light")
        seen = [host.evaluate(what) for what in (NUMBERS_SEEN, CHOICES_SEEN)]
        on_screen, photo_of_screen = widget_looks.looks_of(host), widget_looks.photograph(page)
        # A dark page is printed on white.
        set_theme(page, "dark")
        page.emulate_media(media="print")
        page.evaluate("document.body.style.background = 'white'")  # the background of a page is not printed
        expect(host).to_be_visible()
        expect(page.locator(".widget-still")).to_be_hidden()
        assert [host.evaluate(what) for what in (NUMBERS_SEEN, CHOICES_SEEN)] == seen, state
        on_paper, photo_of_paper = widget_looks.looks_of(host), widget_looks.photograph(page)
        kept = [(old if new else None, new) for old, new in zip(on_screen, on_paper, strict=True)]
        lost = widget_looks.lost_marks(*column(kept, 0, photo_of_screen), *column(kept, 1, photo_of_paper))
        assert lost == [], state
        assert widget_looks.unreadable(on_paper) == [], state
        assert widget_looks.empty_frames(on_paper, photo_of_paper) == [], state
        assert too_wide(page) == []
        expect(host.locator(".mha-footer")).to_have_count(host.locator(".mha-footer:not(:visible)").count())


def column(pairs, index, photo):
    """One of two states that are compared, with its photograph."""
    return [pair[index] for pair in pairs], photo


NEED_A_NAME = """button checkbox combobox DisclosureTriangle grid gridcell group image img link list listbox
    radio radiogroup region searchbox slider spinbutton switch tab textbox""".split()


@every_widget
def test_everything_has_a_name_and_focus_comes_and_goes_by_tab(show, name):
    host = show(SAMPLES[name](), over="http", script=KEPT)
    page = host.page
    host.locator("details").evaluate_all("folds => folds.forEach((fold) => { fold.open = true; })")
    client = page.context.new_cdp_session(page)
    nodes = client.send("Accessibility.getFullAXTree")["nodes"]
    described = [node for node in nodes if not node["ignored"]]
    controls = [node for node in described if node["role"]["value"] in NEED_A_NAME]
    assert controls
    nameless = [
        client.send("DOM.describeNode", {"backendNodeId": node["backendDOMNodeId"]})["node"]
        for node in controls
        if not node.get("name", {}).get("value", "").strip()
    ]
    # A folded part has the text of its summary, and a list the text of its items.
    assert [n for n in nameless if n["nodeName"] not in ("DETAILS", "OL")] == []

    page.evaluate(
        """() => {
          const make = (text) => Object.assign(document.createElement("button"), { textContent: text });
          document.body.prepend(make("before"));
          document.body.append(make("after"));
        }"""
    )
    for key, start, end in (("Tab", "before", "after"), ("Shift+Tab", "after", "before")):
        page.get_by_role("button", name=start, exact=True).focus()
        for _ in range(150):
            page.keyboard.press(key)
            if page.evaluate(VISIT, key) == end:
                break
        else:
            raise AssertionError(f"{key} does not lead out of the widget")
    assert page.evaluate(MISSED) == []


VISIT = """(key) => {
  const node = document.activeElement;
  node.setAttribute("data-visited", `${node.getAttribute("data-visited") ?? ""} ${key}`);
  return node.closest(".mha-widget") ? null : node.textContent;
}"""
# A group of radio buttons is a single stop, and so are the parts of anything with keys of its own.
MISSED = """() => {
  const stops = [...document.querySelectorAll(
    ".mha-widget :is(input, select, textarea, button, summary, a[href], [tabindex='0'])"
  )].filter((node) => node.checkVisibility() && !node.disabled)
    .filter((node) => node.tabIndex >= 0 || !node.closest("[role=grid], [role=toolbar], [role=radiogroup]"));
  const wasVisited = (node) => /(^| )Tab.*Shift/.test(node.getAttribute("data-visited") ?? "");
  const group = (node) => node.type === "radio"
    ? stops.filter((other) => other.type === "radio" && other.name === node.name) : [node];
  return stops.filter((node) => !group(node).some(wasVisited)).map((node) => node.outerHTML.slice(0, 120));
}"""
