"""The attention stepper: its rules and traits in Python, its numbers and its arithmetic in a browser."""

import io
import math
import random
import re
import warnings

import pytest
import torch
from playwright.sync_api import expect
from widget_page import assert_copied_code_gives, assert_shows_numbers, copied_code, write_page

from mha_lib.attention import MultiHeadAttention
from mha_lib.widgets import AttentionStepper
from mha_lib.widgets.attention_stepper import _split_words, _word_vector

LONG = "the dog that chased the unbelievably happy cat"
# Emoji of several characters, accents in both forms, letters that run to the left, a word of 100 characters.
STRANGE = "👩‍👩‍👧 cafe\u0301 café שלום مرحبا 日本語 ❤️ " + 100 * "x"
# What a space is, and what is none: the last word has a no-break hyphen in it.
SPACED = "\u3000a\u00a0b\u2009c\u200bd\ufeff e\u2011f "
SENTENCES = ["we like tea", "tea", LONG, STRANGE, SPACED, "A a Á á ª ᾳ ǅ ﬁ"]

X = {"we": [1, 0, 2, 0], "like": [0, 1, 1, 0], "tea": [1, 1, 0, 1]}
W_QUERY = [[1, 0, 0, 0], [0, 0, 1, 0], [0, 1, 0, 0], [0, 0, 0, 1]]
W_KEY = [[0, -1, 0, 1], [0, 1, 0, 0], [0, 1, 1, 0], [0, 0, 1, 0]]
W_VALUE = [[0, 1, 0, 0], [1, 0, 0, 0], [0, 0, 1, 0], [0, 0, 0, 1]]


def by_hand(words, query, is_causal):
    """All numbers by loops over lists, with the matrices as chapter 4 prints them."""

    def vector(word):
        if word in X:
            return X[word]
        code = 1 + sum(ord(word[i]) * (i + 1) for i in range(len(word))) % 80
        digits = []
        for _ in range(4):
            code, digit = divmod(code, 3)
            digits.insert(0, digit)
        return digits

    def project(x, matrix):
        return [sum(x[i] * matrix[i][j] for i in range(4)) for j in range(4)]

    n = len(words)
    x = [vector(word) for word in words]
    q, k, v = ([project(row, w) for row in x] for w in (W_QUERY, W_KEY, W_VALUE))
    scores = [[sum(a * b for a, b in zip(row, key, strict=True)) for key in k] for row in q]
    scaled = [[score / 2 for score in row] for row in scores]
    weights = []
    for i, row in enumerate(scaled):
        powers = [0 if is_causal and j > i else math.exp(s) for j, s in enumerate(row)]
        weights.append([power / sum(powers) for power in powers])
    weighted = [[weights[query][j] * number for number in v[j]] for j in range(n)]
    columns = [[row[column] for row in v] for column in range(4)]
    output = [[sum(w * number for w, number in zip(row, column, strict=True)) for column in columns]
              for row in weights]  # fmt: skip
    return {"x": x, "query": q, "key": k, "value": v, "scores": scores, "scaled": scaled,
            "weights": weights, "weighted": weighted, "output": output}  # fmt: skip


# In Python


@pytest.mark.parametrize("is_causal", [False, True])
@pytest.mark.parametrize("sentence", SENTENCES)
def test_numbers_equal_loops(sentence, is_causal):
    stepper = AttentionStepper(sentence=sentence, is_causal=is_causal)
    for query in range(len(stepper.words)):
        stepper.query = query
        expected = by_hand(stepper.words, query, is_causal)
        found = stepper.numbers()
        assert found.keys() == expected.keys()
        for name, numbers in expected.items():
            torch.testing.assert_close(found[name], torch.tensor(numbers, dtype=torch.float64))


@pytest.mark.parametrize("is_causal", [False, True])
def test_numbers_are_those_of_a_layer(is_causal):
    stepper = AttentionStepper(sentence=LONG, is_causal=is_causal)
    found = stepper.numbers()
    layer = MultiHeadAttention(4, num_heads=1).double()
    with torch.no_grad():
        for proj, matrix in (
            (layer.q_proj, W_QUERY),
            (layer.k_proj, W_KEY),
            (layer.v_proj, W_VALUE),
            (layer.out_proj, torch.eye(4).tolist()),
        ):
            proj.weight.copy_(torch.tensor(matrix).T)
        x = found["x"][None]
        output, weights = layer(x, x, x, is_causal=is_causal)
    torch.testing.assert_close(found["output"], output[0])
    torch.testing.assert_close(found["weights"], weights[0, 0])


def test_words_and_their_vectors():
    assert _split_words(SPACED) == ["a", "b", "c", "d", "e\u2011f"]
    composed = _split_words(STRANGE)
    assert composed[1] == composed[2] == "café"
    assert _word_vector("dog") == [2, 2, 0, 0]  # 100 + 2·111 + 3·103 = 631, 72 = 2200₃
    letters = [chr(number) for number in range(97, 123)]
    words = [a + b + c for a in letters for b in letters for c in "aeiou"]
    vectors = {tuple(_word_vector(word)) for word in words}
    assert len(vectors) == 80  # all that there are
    assert (0, 0, 0, 0) not in vectors
    assert {number for vector in vectors for number in vector} == {0, 1, 2}
    assert _word_vector("god") != _word_vector("dog")


@pytest.mark.parametrize(
    ("sentence", "error", "message"),
    [
        ("", ValueError, "sentence must hold 1 to 8 words, got ''"),
        (" \u200b\u3000", ValueError, "sentence must hold 1 to 8 words"),
        ("a b c d e f g h i", ValueError, "sentence must hold 1 to 8 words"),
        (201 * "a", ValueError, "sentence must have at most 200 characters"),
        ("a\x00b", ValueError, "sentence must hold no control characters"),
        ("a \u202etxet", ValueError, "sentence must hold no control characters"),
        ("half \ud83d", ValueError, "sentence must hold no control characters"),
        ("a \u200d\ufe0f", ValueError, "sentence must hold words that can be seen"),
        (None, TypeError, "sentence must be a str, got None"),
        (["we"], TypeError, "sentence must be a str"),
    ],
)
def test_sentence_is_refused(sentence, error, message):
    stepper = AttentionStepper(sentence="one two", query=1)
    with pytest.raises(error, match=re.escape(message)):
        stepper.sentence = sentence
    assert (stepper.sentence, stepper.query) == ("one two", 1)
    with pytest.raises(error, match=re.escape(message)):
        AttentionStepper(sentence=sentence)


@pytest.mark.parametrize(
    ("name", "value", "error", "message"), [("query", 3, ValueError, r"query must lie in 0\.\.2, got 3")]
)
def test_trait_is_refused(name, value, error, message):
    stepper = AttentionStepper()
    before = getattr(stepper, name)
    with pytest.raises(error, match=message):
        setattr(stepper, name, value)
    assert getattr(stepper, name) == before
    with pytest.raises(error, match=message):
        AttentionStepper(**{name: value})


def test_query_stays_a_word():
    stepper = AttentionStepper(sentence=LONG, query=7)
    stepper.sentence = "we like tea"
    assert stepper.query == 2
    stepper.sentence = LONG
    assert stepper.query == 2
    with pytest.raises(Exception, match="read-only"):
        stepper.projections = {}


def test_repr_and_figure():
    stepper = AttentionStepper(sentence=STRANGE, query=1, step=6, is_causal=True)
    assert repr(AttentionStepper(query=2, step=4)) == (
        "AttentionStepper(sentence='we like tea', query=2, step=4)"
    )

    def texts(stepper):
        figure = stepper.figure()
        with warnings.catch_warnings():
            warnings.simplefilter("error")  # no character is missing from the font
            figure.savefig(io.BytesIO())
        return [text.get_text() for text in figure.axes[0].texts]

    drawn = texts(stepper)
    assert drawn.count("hidden") == 6
    assert f"{stepper.numbers()['output'][1, 0]:.2f}" in drawn
    stepper.step = 1
    assert not any("sum" in text for text in texts(stepper))
    assert "$x$" in texts(AttentionStepper(sentence="$x$"))


# In a browser


@pytest.fixture
def opened(reader, tmp_path):
    def open_page(width=900, **settings):
        tab = reader("disk", width=width)
        tab.open(write_page(tmp_path, [AttentionStepper(**settings)]), 1)
        return tab, tab.host()

    return open_page


def evaluate(text):
    """What a side of the written arithmetic comes to."""
    text = text.replace("−", "-").replace("·", "*").replace("√", "math.sqrt ")
    text = re.sub(r"sqrt (\d+)", r"sqrt(\1)", text).replace("exp", "math.exp")
    return eval(text, {"math": math})  # noqa: S307, the page's own arithmetic


def visible_lines(host):
    """(word, [sides of the equation]) for each line of arithmetic that is seen."""
    lines = host.locator(".mha-lines > li").evaluate_all(
        """lines => lines.filter((line) => line.checkVisibility())
             .map((line) => Array.from(line.children, (part) => part.textContent))"""
    )
    return [(word, text.split(" = ")) for word, text in lines]


def assert_arithmetic_holds(host, stepper):
    """Each equation is true, and ends in torch's number for the chosen query."""
    found, row = stepper.numbers(), stepper.query
    lines = visible_lines(host)
    if stepper.step == 1:
        names = ("query", "key", "value")
        expected = [number for name in names for number in found[name][row].tolist()]
        sides = [sides for _, sides in lines]
    elif stepper.step in (2, 3, 4):
        if stepper.step == 4:
            total = lines.pop(0)
            assert total[0] == "sum"
            lines.append(total)
        name = ("scores", "scaled", "weights")[stepper.step - 2]
        expected = found[name][row].tolist()
        visible = row + 1 if stepper.is_causal else len(stepper.words)
        if stepper.step == 4:
            expected.append(found["scaled"][row, :visible].exp().sum().item())
            hidden = [sides for _, sides in lines[:-1] if len(sides) == 1]
            assert len(hidden) == len(stepper.words) - visible
            assert all(sides[0] == "hidden, because this key comes later: 0" for sides in hidden)
        sides = [["0"] if sides[0].startswith("hidden") else sides for _, sides in lines]  # fmt: skip
    elif stepper.step == 5:
        for (_, (left, right)), weighted in zip(lines, found["weighted"].tolist(), strict=True):  # fmt: skip
            weight, value = left.split(" · ")
            products = [evaluate(weight) * number for number in evaluate(value)]
            assert products == pytest.approx(weighted, abs=5e-4)
            assert evaluate(right) == pytest.approx(weighted, abs=5e-5)
        return
    else:
        rows = host.locator(".mha-pane:visible table").first.locator("tbody tr")
        texts = rows.evaluate_all(
            "rows => rows.map((row) => Array.from(row.querySelectorAll('td'), (cell) => cell.textContent))"
        )
        cells = [[evaluate(text) for text in row] for row in texts]
        columns = [sum(column) for column in zip(*cells[:-1], strict=True)]
        assert columns == pytest.approx(cells[-1], abs=5e-4)
        assert cells[-1] == pytest.approx(found["output"][row].tolist(), abs=5e-5)
        return
    assert len(sides) == len(expected)
    for line, number in zip(sides, expected, strict=True):
        for side in line:
            assert evaluate(side) == pytest.approx(number, rel=1e-3, abs=5e-4)


def test_by_keyboard(opened):
    stepper = AttentionStepper()
    tab, host = opened()
    press = tab.page.keyboard.press
    arrays = ["x query key value", "scores", "scaled", "weights", "weighted", "output"]

    def assert_step(step):
        stepper.step = step
        expect(host.locator("[aria-current=step]")).to_have_text(str(step))
        assert_shows_numbers(host, stepper)
        assert_arithmetic_holds(host, stepper)
        visible = host.evaluate(
            """host => [...new Set(Array.from(host.querySelectorAll('[data-number]'))
                 .filter((node) => node.checkVisibility()).map((node) => node.dataset.number))]"""
        )
        assert visible == arrays[step - 1].split()

    assert_step(1)
    host.get_by_role("button", name="Next →").focus()
    for step in range(2, 7):
        press("Enter")
        assert_step(step)
    press("Enter")  # no step after the last, and the focus stays
    assert_step(6)
    expect(host.get_by_role("button", name="Next →")).to_be_focused()
    host.get_by_role("button", name="← Back").focus()
    for step in range(5, 0, -1):
        press("Space")
        assert_step(step)

    # The query token, at each step, with the mask and without it.
    for is_causal in (False, True):
        host.get_by_role("checkbox").set_checked(is_causal)
        stepper.is_causal = is_causal
        host.get_by_role("radio").nth(stepper.query).focus()
        for _ in range(3):
            press("ArrowRight")
            stepper.query = (stepper.query + 1) % 3
            expect(host.get_by_role("radio").nth(stepper.query)).to_be_checked()
            for step in (1, 4, 6):
                host.get_by_role("button", name=f"Step {step}").click()
                assert_step(step)
            host.get_by_role("radio").nth(stepper.query).focus()

    status = host.get_by_role("status")
    expect(status).to_have_text("Step 6, add. we: output (0, 1, 2, 0).")  # it sees only itself
    host.get_by_role("button", name="Step 2").click()
    expect(status).to_have_text("Step 2, score. we: scores (2, 4, 0).")
    assert tab.errors == []


def test_typed_sentences(opened):
    tab, host = opened(query=1)
    field = host.get_by_label("sentence", exact=True)
    stepper = AttentionStepper(query=1)
    letters = [chr(c) for c in range(0x21, 0x7F)] + list("éßøĲǆΩжאع中🙂🧑🏽𝔘\u0301\u200d")
    generator = random.Random(0)
    words = ["".join(generator.choices(letters, k=generator.randint(1, 12))) for _ in range(80)]  # fmt: skip
    random_sentences = [" ".join(words[i : i + 8]) for i in range(0, 80, 8)]
    for sentence in [*SENTENCES, *random_sentences]:
        stepper.sentence = sentence
        field.fill(sentence)
        expect(host.get_by_role("radio")).to_have_count(len(stepper.words))
        expect(field).to_have_attribute("aria-invalid", "false")
        assert_shows_numbers(host, stepper)
    field.fill(STRANGE)
    stepper.sentence = STRANGE
    for step in range(1, 7):
        stepper.step = step
        host.get_by_role("button", name=f"Step {step}").click()
        assert_arithmetic_holds(host, stepper)
    shown = host.locator(".mha-segments bdi").all_inner_texts()
    assert shown[:2] == ["👩‍👩‍👧", "café"]
    assert shown[-1] == 9 * "x" + "…"
    assert_copied_code_gives(host, stepper)
    assert tab.errors == []


def test_letter_by_letter(opened):
    stepper = AttentionStepper()
    tab, host = opened()
    field = host.get_by_label("sentence", exact=True)
    field.focus()
    tab.page.keyboard.press("End")
    for letter in " with me":
        tab.page.keyboard.type(letter)
        stepper.sentence += letter
        expect(field).to_have_value(stepper.sentence)
        assert_shows_numbers(host, stepper)
    tab.page.keyboard.press("Enter")  # submits nothing
    assert_shows_numbers(host, stepper)
    assert tab.errors == []


def test_refused_sentences(opened):
    """What Python refuses, the field refuses too: with a message, and the last good sentence stays."""
    stepper = AttentionStepper(sentence="one two", query=1)
    tab, host = opened(sentence="one two", query=1)
    field = host.get_by_label("sentence", exact=True)
    remark = host.locator(".mha-remark")
    for sentence, message in [
        ("", "Type at least one word."),
        (" \u200b ", "Type at least one word."),
        ("a b c d e f g h i", "9 words are too many: up to 8 fit here."),
        (201 * "🙂", "201 characters are too many: up to 200 fit here."),
        ("a\x07b", "There is a control character"),
        ("a \u202etxet", "There is a control character"),
        ("a \u200d\ufe0f", "One of the words cannot be seen"),
    ]:
        with pytest.raises(ValueError, match="sentence must"):
            AttentionStepper(sentence=sentence)
        field.fill(sentence)
        expect(remark).to_contain_text(message)
        expect(field).to_have_attribute("aria-invalid", "true")
        expect(host.get_by_role("status")).to_contain_text(message)
        assert_shows_numbers(host, stepper)
        # Another control does not take away what is being typed.
        host.get_by_role("checkbox").evaluate("box => box.click()")
        expect(field).to_have_value(sentence)
        host.get_by_role("checkbox").evaluate("box => box.click()")
    field.blur()
    expect(field).to_have_value("one two")
    expect(field).to_have_attribute("aria-invalid", "false")
    expect(remark).to_contain_text("Up to 8 words.")
    field.fill(200 * "🙂")  # exactly what fits
    expect(field).to_have_attribute("aria-invalid", "false")
    assert tab.errors == []


def test_pointer_reset_and_python(opened):
    stepper = AttentionStepper(sentence=LONG, query=3, step=4)
    tab, host = opened(sentence=LONG, query=3, step=4)
    host.get_by_text("Causal mask").click()
    stepper.is_causal = True
    assert_shows_numbers(host, stepper)
    assert_arithmetic_holds(host, stepper)
    assert "causal_mask(len(words))" in copied_code(host)
    assert_copied_code_gives(host, stepper)
    host.locator(".mha-segments label").nth(6).click()
    host.get_by_role("button", name="Step 5").click()
    host.get_by_label("sentence", exact=True).fill("say \"\\n\" 'tea'")
    stepper.sentence, stepper.step = "say \"\\n\" 'tea'", 5
    stepper.query = 2
    assert_shows_numbers(host, stepper)
    assert_copied_code_gives(host, stepper)

    host.get_by_role("button", name="Reset").click()
    expect(host.get_by_label("sentence", exact=True)).to_have_value(LONG)
    expect(host.locator("[aria-current=step]")).to_have_text("4")
    expect(host.get_by_role("radio").nth(3)).to_be_checked()
    assert_shows_numbers(host, AttentionStepper(sentence=LONG, query=3, step=4))

    # Over a cell of the map the number is read out; hidden cells say so.
    host.get_by_text("Causal mask").click()
    host.locator(".mha-pane:visible [role=gridcell]").nth(1).hover()
    expect(host.locator(".mha-pane:visible .mha-readout")).to_contain_text("hidden")
    assert tab.errors == []


@pytest.mark.parametrize(
    ("name", "value", "message"),
    [
        ("sentence", "", "sentence must be fit to show. Type at least one word"),
        ("sentence", "a \ud83d", "There is a control character"),
        ("query", 3, "query must lie in 0..2, got 3"),
        ("projections", {"query": [[1]]}, "projections.query must hold rows of 4"),
        ("vectors", {"we": [1, 0, 2, None]}, "vectors must hold rows of 4 numbers"),
    ],
)
def test_bad_state_shows_a_message(reader, tmp_path, name, value, message):
    tab = reader("disk")
    page = write_page(tmp_path, [AttentionStepper()], alter=lambda states: states[0].update({name: value}))
    tab.open(page, 1)
    expect(tab.host().get_by_role("alert")).to_contain_text(message)
    expect(tab.host().locator(".mha-body")).to_be_hidden()
    assert tab.errors == []


def test_narrow_page(opened):
    tab, host = opened(width=360, sentence=STRANGE, query=7)
    for step in range(1, 7):
        host.get_by_role("button", name=f"Step {step}").click()
        expect(host.locator("[aria-current=step]")).to_have_text(str(step))
        page = tab.page.evaluate("document.documentElement.scrollWidth")
        body = host.locator(".mha-body").evaluate("node => node.scrollWidth - node.clientWidth")
        assert (page, body) == (360, 0), step
