"""The attention stepper: its rules and traits in Python, its numbers and its arithmetic in a browser."""

import functools
import math
import re
import shutil

import pytest
import torch
from matplotlib import colormaps
from playwright.sync_api import expect
from seen import CELLS, assert_color_bar, assert_colors
from widget_page import ROOT, assert_copied_code_gives, assert_shows_numbers, copied_code

from mha_course.data import SENTENCE_WORDS
from mha_course.experiments import load_experiment
from mha_course.widgets import AttentionStepper
from mha_course.widgets import attention_stepper as module
from mha_lib import MultiHeadAttention

BY_HAND = ["sailors were happy", "happy", "happy sailors sailors were happy sailors were"]
BLANK = "the old baker's sailors near the teacher ___ happy in the station"
# Twelve words, the most that fit, including the longest.
LONG = "in the library the teachers' sailors near the doctors ___ happy today"
TRAINED = [BLANK, "sailor", LONG]

X = {"sailors": [1, 0, 2, 0], "were": [0, 1, 1, 0], "happy": [1, 1, 0, 1]}
W_QUERY = [[1, 0, 0, 0], [0, 0, 1, 0], [0, 1, 0, 0], [0, 0, 0, 1]]
W_KEY = [[0, -1, 0, 1], [0, 1, 0, 0], [0, 1, 1, 0], [0, 0, 1, 0]]
W_VALUE = [[0, 1, 0, 0], [1, 0, 0, 0], [0, 0, 1, 0], [0, 0, 0, 1]]


def by_loops(x, matrices, query, is_causal):
    """All numbers by loops over lists."""

    def project(row, matrix):
        return [sum(row[i] * matrix[i][j] for i in range(len(row))) for j in range(len(matrix[0]))]

    n = len(x)
    q, k, v = ([project(row, w) for row in x] for w in matrices)
    scores = [[sum(a * b for a, b in zip(row, key, strict=True)) for key in k] for row in q]
    scaled = [[score / math.sqrt(len(k[0])) for score in row] for row in scores]
    weights = []
    for i, row in enumerate(scaled):
        powers = [0 if is_causal and j > i else math.exp(s) for j, s in enumerate(row)]
        weights.append([power / sum(powers) for power in powers])
    weighted = [[weights[query][j] * number for number in v[j]] for j in range(n)]
    columns = [[row[column] for row in v] for column in range(len(v[0]))]
    output = [[sum(w * number for w, number in zip(row, column, strict=True)) for column in columns]
              for row in weights]  # fmt: skip
    return {"x": x, "query": q, "key": k, "value": v, "scores": scores, "scaled": scaled,
            "weights": weights, "weighted": weighted, "output": output}  # fmt: skip


def state():
    """The stored model of the sentences."""
    return load_experiment("words").state("4 heads", seed=4)


def trained_inputs(words, head):
    """What the stored model makes of words, and the matrices of a head, as lists."""
    found = state()
    x = [
        (found["embedding.weight"][SENTENCE_WORDS.index(word)].double()
         + found["positions.encoding"][place].double()).tolist()
        for place, word in enumerate(words)
    ]  # fmt: skip
    matrices = [
        [[row[i] for row in found[f"attention.{role}_proj.weight"].tolist()[12 * head : 12 * head + 12]]
         for i in range(48)]
        for role in "qkv"
    ]  # fmt: skip
    return x, matrices


def assert_numbers(stepper, expected):
    found = stepper.numbers()
    assert found.keys() == expected.keys()
    for name, numbers in expected.items():
        wanted = torch.tensor(numbers, dtype=torch.float64)
        torch.testing.assert_close(found[name], wanted, atol=1e-9, rtol=1e-9)


@pytest.mark.parametrize("is_causal", [False, True])
@pytest.mark.parametrize("sentence", BY_HAND)
def test_numbers_by_hand_equal_loops(sentence, is_causal):
    stepper = AttentionStepper(sentence=sentence, is_causal=is_causal)
    x = [X[word] for word in sentence.split()]
    for query in range(len(x)):
        stepper.query = query
        assert_numbers(stepper, by_loops(x, (W_QUERY, W_KEY, W_VALUE), query, is_causal))


@pytest.mark.parametrize("is_causal", [False, True])
@pytest.mark.parametrize("head", [0, 1, 2, 3])
def test_trained_numbers_equal_loops(head, is_causal):
    for sentence in TRAINED:
        stepper = AttentionStepper(vectors="trained", sentence=sentence, head=head, is_causal=is_causal)
        stepper.query = len(stepper.words) - 1
        x, matrices = trained_inputs(sentence.split(), head)
        assert_numbers(stepper, by_loops(x, matrices, stepper.query, is_causal))


def test_trained_heads_are_those_of_the_layer_and_find_the_subject():
    layer = MultiHeadAttention(48, num_heads=4)
    parts = {n.removeprefix("attention."): p for n, p in state().items() if n.startswith("attention.")}
    layer.load_state_dict(parts)
    stepper = AttentionStepper(vectors="trained")
    x = stepper.numbers()["x"][None]
    with torch.no_grad():
        _, weights = layer.double()(x, x, x)
    for head in range(4):
        stepper.head = head
        torch.testing.assert_close(stepper.numbers()["weights"], weights[0, head])
    # The question above the widget has one answer: head 0, which skips the nearer teacher.
    words = BLANK.split()
    first = weights[0, :, words.index("___")].argmax(-1).tolist()
    assert [head for head in range(4) if words[first[head]] == "sailors"] == [0]
    assert weights[0, 0, 7, 6] < 0.01 < 0.98 < weights[0, 0, 7, 3]


def test_settings_that_depend_on_each_other():
    stepper = AttentionStepper(query=2)
    stepper.sentence = "happy were"
    assert stepper.query == 1
    stepper.vectors = "trained"
    assert (stepper.sentence, stepper.query, stepper.words[stepper.query]) == (BLANK, 7, "___")
    stepper.head = 3
    stepper.vectors = "by hand"
    assert (stepper.sentence, stepper.head, stepper.query) == ("sailors were happy", 0, 0)
    with stepper.hold_trait_notifications():  # in the form in which a browser sends them
        stepper.vectors, stepper.sentence, stepper.head, stepper.query = "trained", "the baker", 2, 1
    assert (stepper.sentence, stepper.head, stepper.query) == ("the baker", 2, 1)
    with pytest.raises(Exception, match="read-only"):
        stepper.projections = {}


@pytest.fixture(params=["missing", "damaged", "of another version"])
def without_model(request, monkeypatch, tmp_path):
    """What `load_experiment` says of files without a model of use."""
    shutil.copytree(ROOT / "experiments", tmp_path / "experiments")
    shutil.copytree(ROOT / "mha_course" / "stored", tmp_path / "experiments" / "stored")
    models = tmp_path / "experiments" / "stored" / "words.safetensors"
    if request.param == "missing":
        models.unlink()
        said = "the experiment 'words' lacks its models"
    elif request.param == "damaged":
        models.write_bytes(models.read_bytes()[:-1])
        said = "the stored models of 'words' are damaged"
    else:
        with (tmp_path / "experiments" / "words.py").open("a", encoding="utf-8") as script:
            script.write("\nANOTHER_VERSION = True\n")
        said = "the stored results of 'words' were made by other code"
    load = functools.partial(module.load_experiment, folder=tmp_path / "experiments")
    monkeypatch.setattr(module, "load_experiment", load)
    return said


def test_without_its_model_python_says_why(without_model):
    assert AttentionStepper().numbers()["scores"][0].tolist() == [2.0, 4.0, 0.0]
    with pytest.raises(ValueError, match=f"vectors must be 'by hand', because {without_model}"):
        AttentionStepper(vectors="trained")


def test_repr():
    assert repr(AttentionStepper(query=2, step=4)) == (
        "AttentionStepper(vectors='by hand', sentence='sailors were happy', head=0, query=2, step=4)"
    )


@pytest.fixture
def opened(show):
    def open_page(width=900, **settings):
        return show(AttentionStepper(**settings), width=width)

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
    is_trained = stepper.vectors == "trained"
    rounded = 2e-3 if is_trained else 5e-4  # sums of numbers with three digits
    lines = visible_lines(host)
    if stepper.step == 1:
        names = ("query", "key", "value")
        if is_trained:
            written = [evaluate(sides[0]) for _, sides in lines]
            for numbers, name in zip(written, names, strict=True):
                assert list(numbers) == pytest.approx(found[name][row].tolist(), abs=5.1e-3)
            return
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
            scaled = found["scaled"][row, :visible]
            # Trained scores are large; the page subtracts the largest, which changes no weight.
            expected.append((scaled - is_trained * scaled.max()).exp().sum().item())
            hidden = [sides for _, sides in lines[:-1] if len(sides) == 1]
            assert len(hidden) == len(stepper.words) - visible
            assert all(sides[0] == "hidden, because this key comes later: 0" for sides in hidden)
        sides = [["0"] if sides[0].startswith("hidden") else sides for _, sides in lines]  # fmt: skip
    elif stepper.step == 5:
        weights = found["weights"][row].tolist()
        for index, (_, (left, right)) in enumerate(lines):
            weight, value = left.split(" · ")
            assert evaluate(weight) == pytest.approx(weights[index], abs=5e-5)
            if not is_trained:
                weighted = found["weighted"][index].tolist()
                products = [evaluate(weight) * number for number in evaluate(value)]
                assert products == pytest.approx(weighted, abs=5e-4)
                assert evaluate(right) == pytest.approx(weighted, abs=5e-5)
        return
    elif is_trained:
        written = host.locator(".mha-sum-numbers").inner_text().removeprefix("sum = ")
        assert list(evaluate(written)) == pytest.approx(found["output"][row].tolist(), abs=5.1e-3)
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
    words = [word for word, _ in lines if word != "sum"]
    assert words == (stepper.words if stepper.step > 1 else [word for word, _ in lines])
    assert len(sides) == len(expected)
    for line, number in zip(sides, expected, strict=True):
        for side in filter(None, line):
            assert evaluate(side.strip()) == pytest.approx(number, rel=1e-3, abs=rounded)


# Where each cell of the visible strips lies on the scale, from −1 (blue) to 1 (red), and their number
# of cells; the colours are converted back by the stops of the map.
STRIPS = """node => [...node.querySelectorAll(".mha-strip")].filter(strip => strip.checkVisibility() &&
    !strip.closest(".mha-strip-legend")).map(strip => {
  const cell = /rgb\\((\\d+), (\\d+), (\\d+)\\) ([\\d.]+)%/g;
  const cells = [...getComputedStyle(strip).backgroundImage.matchAll(cell)];
  return [strip.getBoundingClientRect().width, ...cells.map(([, r, g, b, start]) => [+r, +g, +b, +start])];
})"""
SHARES = torch.linspace(-1, 1, 2001, dtype=torch.float64)
MAP = 255 * torch.tensor(colormaps["RdBu_r"].resampled(2001)(range(2001)))[:, :3]


def share_of(color):
    """Where a colour lies on the diverging map of matplotlib, by a search over fine steps."""
    distances = (MAP - torch.tensor(color)).square().sum(-1)
    assert distances.min() < 4, color
    return SHARES[distances.argmin()].item()


def seen_strips(host):
    """The vectors in the pane that is open, each as shares of its scale."""
    strips = host.locator(".mha-pane:visible").evaluate(STRIPS)
    vectors = []
    for width, *cells in strips:
        assert width > 25
        # A browser lists both ends of each cell.
        cells, ends = cells[::2], cells[1::2]
        assert [cell[:3] for cell in cells] == [end[:3] for end in ends]
        starts = [start for *_, start in cells]
        assert starts == pytest.approx([100 * i / len(cells) for i in range(len(cells))], abs=0.01)
        vectors.append([share_of(cell[:3]) for cell in cells])
    return vectors


def assert_strips(vectors, expected):
    """The colours are those of the numbers on a common scale from minus to plus the largest size."""
    most = max(abs(number) for row in expected for number in row)
    assert len(vectors) == len(expected)
    for shares, numbers in zip(vectors, expected, strict=True):
        assert shares == pytest.approx([number / most for number in numbers], abs=0.02)


def test_trained_vectors_are_seen_in_colour(opened):
    stepper = AttentionStepper(vectors="trained", head=2)
    host = opened(vectors="trained", head=2)
    found = {name: numbers.tolist() for name, numbers in stepper.numbers().items()}
    weights = found["weights"][7]
    rows = zip(*(found[name] for name in ("x", "query", "key", "value")), strict=True)
    assert_strips(seen_strips(host), [vector for row in rows for vector in row])
    step = lambda number: host.get_by_role("button", name=f"Step {number}").click()  # noqa: E731
    step(2)
    products = [[a * b for a, b in zip(found["query"][7], key, strict=True)] for key in found["key"]]
    assert_strips(seen_strips(host), products)
    step(5)
    pairs = zip(found["value"], weights, strict=True)
    assert_strips(seen_strips(host), [v for value, w in pairs for v in (value, [w * n for n in value])])
    step(6)
    strips = seen_strips(host)
    assert_strips(strips[:13], [*found["weighted"], found["output"][7]])
    assert_strips(strips[13:], found["output"])
    # A screen reader reads out the number under the pointer.
    step(1)
    strip = host.locator(".mha-strips .mha-strip:visible").nth(4 * 2 + 3)  # the value of the third word
    width = strip.bounding_box()["width"]
    strip.hover(position={"x": width * 4.5 / 12, "y": 5})
    told = f"v of baker's, entry 5 of 12: {minus(found['value'][2][4])}"
    expect(host.locator(".mha-pane:visible .mha-readout")).to_have_text(told)


def minus(number):
    return f"{number:.4f}".replace("-", "−")


def test_trained_steps_of_every_head(opened):
    host = opened(vectors="trained")
    stepper = AttentionStepper(vectors="trained")
    assert host.locator(".mha-question").inner_text().startswith("This model fills in the blank")
    for head in range(4):
        host.locator(".mha-head-choice label").nth(head).click()
        stepper.head = head
        for step in range(1, 7):
            stepper.step = step
            host.get_by_role("button", name=f"Step {step}").click()
            assert_arithmetic_holds(host, stepper)
            if step == 2:  # the three products of the largest size are written out, the largest first
                found = stepper.numbers()
                for (_, (sum_, _)), key in zip(visible_lines(host), found["key"], strict=True):
                    sizes = (found["query"][7] * key).abs().sort(descending=True).values[:3]
                    written = [abs(evaluate(term)) for term in sum_.split(" + ")[:3]]
                    assert written == pytest.approx(sizes.tolist(), abs=6e-4)
            if step == 4:
                row = stepper.numbers()["weights"][7]
                word = stepper.words[row.argmax()]
                expect(host.locator(".mha-finding:visible")).to_have_text(
                    re.compile(f"“.?___.?” gives most weight, {row.max():.2f}, to “.?{word}.?”")
                )
        assert_shows_numbers(host, stepper)
    assert_copied_code_gives(host, stepper)
    code = copied_code(host)
    assert 'load_experiment("words").state("4 heads", seed=4)' in code
    assert max(map(len, code.splitlines())) < 110
    host.get_by_text("Causal mask").click()
    stepper.is_causal = True
    assert_shows_numbers(host, stepper)
    host.get_by_role("button", name="Step 4").click()
    stepper.step = 4
    assert_arithmetic_holds(host, stepper)


def test_the_kind_of_vectors_is_chosen_in_the_page(opened):
    host = opened()
    stepper = AttentionStepper()
    assert "Work out each number before" in host.locator(".mha-question").inner_text()
    expect(host.locator(".mha-head-choice")).to_be_hidden()
    host.locator("label", has_text="trained").click()
    stepper.vectors = "trained"
    expect(host.get_by_label("sentence", exact=True)).to_have_value(BLANK)
    expect(host.locator(".mha-head-choice label:visible")).to_have_count(4)
    expect(host.get_by_role("radio", name="___, token 8 of 12")).to_be_checked()
    assert_shows_numbers(host, stepper)
    host.locator(".mha-head-choice label").nth(3).click()
    stepper.head = 3
    assert_shows_numbers(host, stepper)
    host.locator("label", has_text="small whole numbers").click()
    stepper.vectors = "by hand"
    expect(host.get_by_label("sentence", exact=True)).to_have_value("sailors were happy")
    assert_shows_numbers(host, stepper)


def test_a_page_without_the_model_says_why_and_works_by_hand(opened, without_model):
    host = opened()
    expect(host.get_by_text(f"The trained vectors are not there: {without_model}")).to_be_visible()
    expect(host.get_by_role("radio", name="trained")).to_be_disabled()
    assert_shows_numbers(host, AttentionStepper())


def test_by_keyboard(opened):
    stepper = AttentionStepper()
    host = opened()
    press = host.page.keyboard.press
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
        host.locator("input[name=query]").nth(stepper.query).focus()
        for _ in range(3):
            press("ArrowRight")
            stepper.query = (stepper.query + 1) % 3
            expect(host.locator("input[name=query]").nth(stepper.query)).to_be_checked()
            for step in (1, 4, 6):
                host.get_by_role("button", name=f"Step {step}").click()
                assert_step(step)
            host.locator("input[name=query]").nth(stepper.query).focus()

    status = host.get_by_role("status")
    expect(status).to_have_text("Step 6, add. sailors: output (0, 1, 2, 0).")  # it sees only itself
    host.get_by_role("button", name="Step 2").click()
    expect(status).to_have_text("Step 2, score. sailors: scores (2, 4, 0).")


@pytest.mark.parametrize(("vectors", "sentences"), [("by hand", BY_HAND), ("trained", TRAINED)])
def test_typed_sentences(opened, vectors, sentences):
    host = opened(vectors=vectors)
    stepper = AttentionStepper(vectors=vectors)
    field = host.get_by_label("sentence", exact=True)
    for sentence in sentences:
        field.fill(sentence.replace(" ", "\u3000 "))
        stepper.sentence = sentence.replace(" ", "\u3000 ")
        expect(host.locator(".mha-choices input[name=query]")).to_have_count(len(sentence.split()))
        expect(field).to_have_attribute("aria-invalid", "false")
        assert_shows_numbers(host, stepper)
        assert host.locator(".mha-choices bdi").all_inner_texts() == sentence.split()
    assert_copied_code_gives(host, stepper)


def test_letter_by_letter(opened):
    stepper = AttentionStepper()
    host = opened()
    field = host.get_by_label("sentence", exact=True)
    field.focus()
    host.page.keyboard.press("End")
    for word in (" sailors", " happy "):
        host.page.keyboard.insert_text(word)
        stepper.sentence += word
        expect(field).to_have_value(stepper.sentence)
        assert_shows_numbers(host, stepper)
    host.page.keyboard.press("Enter")  # submits nothing
    assert_shows_numbers(host, stepper)


def test_refused_sentences(opened):
    """What Python refuses, the field refuses too: with a message, and the last good sentence stays."""
    stepper = AttentionStepper(sentence="were happy", query=1)
    host = opened(sentence="were happy", query=1)
    field = host.get_by_label("sentence", exact=True)
    remark = host.locator(".mha-remark")
    for sentence, message in [
        ("", "Type at least one word."), (" \u200b ", "Type at least one word."),
        (13 * "sailors ", "13 words are too many: up to 12 fit here."),
        (201 * "🙂", "201 characters are too many: up to 200 fit here."),
        ("sailors were coffee", "“coffee” has no vector."), ("constructor", "“constructor” has no vector."),
    ]:  # fmt: skip
        with pytest.raises(ValueError, match="sentence must"):
            AttentionStepper(sentence=sentence)
        field.fill(sentence)
        expect(remark).to_contain_text(message)
        expect(field).to_have_attribute("aria-invalid", "true")
        expect(host.get_by_role("status")).to_contain_text(message)
        assert_shows_numbers(host, stepper)
        # Using a different control does not delete what is being typed.
        host.get_by_role("checkbox").evaluate("box => box.click()")
        expect(field).to_have_value(sentence)
        host.get_by_role("checkbox").evaluate("box => box.click()")
    field.blur()
    expect(field).to_have_value("were happy")
    expect(field).to_have_attribute("aria-invalid", "false")
    expect(remark).to_have_text("Up to 12 words, each one of sailors, were, happy.")


@pytest.mark.parametrize(("name", "value", "message"), [
    ("projections", {"query": [[1]]}, "projections.query must hold rows of 4"),
    ("given", {"sailors": [1, 0, 2, None], "were": [1], "happy": [1]}, "given must hold rows of 4 numbers"),
])  # fmt: skip
def test_vectors_of_another_size_are_named(show, name, value, message):
    host = show(AttentionStepper(), alter=lambda states: states[0].update({name: value}))
    expect(host.get_by_role("alert")).to_contain_text(message)
    expect(host.locator(".mha-body")).to_be_hidden()


OVERFLOWING = """node => [...node.querySelectorAll("*")].filter(child => child.checkVisibility() &&
    !child.closest("svg, .mha-unseen, .mha-code")).filter(child => {
  const frame = child.parentElement.closest(".mha-panes > div, .mha-pane, .mha-body").getBoundingClientRect();
  const own = child.getBoundingClientRect();
  return own.width > 0 && (own.right > frame.right + 1 || own.left < frame.left - 1);
}).map(child => child.outerHTML.slice(0, 90))"""


@pytest.mark.parametrize("settings", [
    {"vectors": "trained", "sentence": LONG, "query": 7},
    {"sentence": 12 * "were ", "query": 7},
], ids=["trained", "by hand"])  # fmt: skip
@pytest.mark.parametrize("width", [320, 360, 620, 900])
def test_every_step_fits_its_frame(opened, width, settings):
    """Each part of a step stays within its half of the pane, with the longest words and the most of them."""
    host = opened(width=width, **settings)
    for step in range(1, 7):
        host.get_by_role("button", name=f"Step {step}").click()
        expect(host.locator("[aria-current=step]")).to_have_text(str(step))
        page = host.page.evaluate("document.documentElement.scrollWidth")
        body = host.locator(".mha-body").evaluate("node => node.scrollWidth - node.clientWidth")
        assert (page, body) == (width, 0), step
        assert host.locator(".mha-body").evaluate(OVERFLOWING) == [], step
    words = host.locator(".mha-pane:visible th bdi")
    cut = words.evaluate_all("all => all.filter(one => one.scrollWidth > one.clientWidth + 1).length")
    assert cut == 0, "no word is cut"


@pytest.mark.parametrize(("step", "name"), [(2, "scores"), (3, "scaled")])
@pytest.mark.parametrize("vectors", ["by hand", "trained"])
def test_scores_are_red_above_zero_and_blue_below(opened, vectors, step, name):
    """Scores of the small vectors are never negative; their map is that of signed numbers all the same."""
    stepper = AttentionStepper(vectors=vectors, step=step)
    host = opened(vectors=vectors, step=step)
    numbers = stepper.numbers()[name]
    assert (numbers.min() < 0) == (vectors == "trained")
    most = numbers.abs().max().item()
    pane = host.locator(".mha-pane:visible")
    grounds = [ground for ground, _ in pane.get_by_role("gridcell").evaluate_all(CELLS)]
    assert_colors(grounds, numbers.flatten(), most, is_signed=True)
    assert_color_bar(pane.locator(".mha-bar"), most, is_signed=True)


def test_step_1_says_where_the_numbers_of_a_word_come_from(opened):
    rule = ".mha-pane:visible > .mha-hint >> nth=0"
    for query, word in enumerate("happy sailors were".split()):
        host = opened(sentence="happy sailors were", query=query, step=1)
        numbers = ", ".join(map(str, X[word]))
        assert re.sub("[\u2066-\u2069]", "", host.locator(rule).inner_text()) == (
            f"The numbers of “{word}” are given: x = ({numbers}). Each entry of q, k and v is the dot "
            "product of x with one column of the matrix."
        )
    for query, word in ((5, "the"), (7, "___")):
        host = opened(vectors="trained", query=query, head=query // 2, step=1)
        x = trained_inputs(BLANK.split(), 0)[0][query]
        numbers = ", ".join(f"{number:.2f}".replace("-", "−") for number in x[:4])
        assert re.sub("[\u2066-\u2069]", "", host.locator(rule).inner_text()) == (
            f"x of “{word}” has 48 numbers: the learned vector of the word plus the learned vector of "
            f"position {query}. It begins ({numbers}, …). "
            f"Head {query // 2} has three matrices of 48 × 12 numbers. "
            "Each entry of q, k and v is the dot product of x with one column."
        )


@pytest.mark.parametrize("query", [0, 2])
def test_the_map_of_weights_and_its_sentence_are_those_of_the_query(opened, query):
    words = "happy sailors sailors were happy".split()
    stepper = AttentionStepper(sentence=" ".join(words), query=query, step=4)
    host = opened(sentence=" ".join(words), query=query, step=4)
    weights = torch.tensor(
        by_loops([X[word] for word in words], (W_QUERY, W_KEY, W_VALUE), query, stepper.is_causal)["weights"]
    )
    rows = host.locator(".mha-pane:visible .mha-map [role=row]:has([role=gridcell])")
    found = rows.evaluate_all(
        """rows => rows.map((row) => [...row.querySelectorAll("[role=rowheader], [role=gridcell]")]
          .map((cell) => [cell.innerText.trim(), getComputedStyle(cell).fontWeight,
            getComputedStyle(cell).backgroundColor]))"""
    )
    assert [row[0][0] for row in found] == words
    texts = [[text for text, *_ in row[1:]] for row in found]
    assert texts == [[f"{number:.2f}" for number in row] for row in weights.tolist()]
    assert [row[0][1] == "700" for row in found] == [place == query for place in range(len(words))]
    rgb = lambda color: [int(part) for part in re.findall(r"\d+", color)[:3]]  # noqa: E731
    colors = torch.tensor([[rgb(color) for *_, color in row[1:]] for row in found])
    assert_colors(colors, weights, 1, is_signed=False)
    assert_color_bar(host.locator(".mha-pane:visible .mha-bar"), 1, is_signed=False)
    best = int(weights[query].argmax())
    told = f"gives most weight, {weights[query, best]:.2f}, to “"
    expect(host.locator(".mha-finding:visible")).to_contain_text(told)
    said = re.sub("[\u2066-\u2069]", "", host.locator(".mha-finding:visible").inner_text())
    assert said == (f"“{words[query]}” gives most weight, {weights[query, best]:.2f}, to “{words[best]}”.")
