"""Where the heads meet: numbers against a slow loop and torch's layer, and what a reader sees of the sum."""

import re
from math import exp, sqrt

import pytest
import torch
from playwright.sync_api import expect
from torch import nn
from widget_page import assert_shows_numbers, copied_code, run_copied_code

from mha_course.data import SENTENCE_QUESTIONS, SENTENCE_WORDS, sentence_batch, sentence_text
from mha_course.experiments import load_experiment
from mha_course.plots import HEADS
from mha_course.widgets import HeadsMeet
from mha_lib import LearnedPositionalEncoding, MultiHeadAttention, RotaryPositionalEncoding, cosine_score

STORED = ("words", "4 heads", 4)
WORDS = ("", "we", "you", "like", "see", "hot", "cold", "tea", "milk", "today", "here")

# Number of heads, width of a head, longest sentence, bias, residual. Every other size is a different prime.
SIZES = [(3, 5, 7, True, True), (2, 7, 13, False, False), (5, 3, 11, True, False), (1, 13, 5, False, True)]


def make_model(num_heads, head_dim, max_len, bias, *, words=11, tasks=2, seed=0, **options):
    """A model with random weights, not trained: no head is indifferent."""
    torch.manual_seed(seed)
    model, width = nn.Module(), num_heads * head_dim
    model.embedding = nn.Embedding(words, width)
    model.positions = LearnedPositionalEncoding(width, max_len=max_len)
    model.attention = MultiHeadAttention(width, num_heads, bias=bias, **options)
    model.read_out = nn.Linear(width, tasks * words, bias=bias)
    for parameter in model.parameters():
        nn.init.normal_(parameter, std=0.6)
    return model


def make_sentence(length, seed=0):
    places = torch.randint(1, len(WORDS), (length,), generator=torch.Generator().manual_seed(seed))
    return " ".join(WORDS[place] for place in places.tolist())


def make_meet(size=SIZES[0], **settings):
    *sizes, residual = size
    sentences = [make_sentence(sizes[2], 0), make_sentence(sizes[2] - 2, 1), "we like tea"]
    settings = {"words": WORDS, "tasks": ("who", "what"), "residual": residual, **settings}
    return HeadsMeet(make_model(*sizes), sentences, **settings)


@pytest.fixture(scope="module")
def held_out():
    return sentence_batch(4000, held_out=True, generator=torch.Generator().manual_seed(99))


@pytest.fixture(scope="module")
def trained():
    """The four-head model of chapter 3, in the parts that the widget needs."""
    model = nn.Module()
    model.embedding, model.positions = nn.Embedding(56, 48), LearnedPositionalEncoding(48, max_len=15)
    model.attention, model.read_out = MultiHeadAttention(48, 4), nn.Linear(48, 4 * 56)
    model.load_state_dict(load_experiment(STORED[0]).state(STORED[1], seed=STORED[2]))
    return model


def chapter_meet(model, held_out, **settings):
    return HeadsMeet(
        model,
        [sentence_text(held_out.tokens[index]) for index in (7, 4, 10, 1)],
        words=("", *SENTENCE_WORDS[1:]),
        tasks=SENTENCE_QUESTIONS,
        blank="___",
        stored=STORED,
        **settings,
    )


def numbers_by_loop(model, tokens, query, gates, residual):
    """One query, one number at a time, in Python floats, from the definition of the layer."""
    layer = model.attention
    width, head_dim = layer.embed_dim, layer.head_dim
    weight = {name: p.double().tolist() for name, p in model.named_parameters()}
    encoding = weight["positions.encoding"]
    summands = [(weight["embedding.weight"][t], encoding[i]) for i, t in enumerate(tokens)]
    x = [[a + b for a, b in zip(*pair, strict=True)] for pair in summands]

    def linear(name, row):
        rows = weight[f"{name}.weight"]
        bias = weight.get(f"{name}.bias", [0.0] * len(rows))
        return [
            b + sum(w * v for w, v in zip(own, row, strict=True)) for own, b in zip(rows, bias, strict=True)
        ]

    q, k, v = ([linear(f"attention.{n}_proj", row) for row in x] for n in "qkv")
    found = {"weights": [], "heads": [], "contributions": []}
    output = list(weight.get("attention.out_proj.bias", [0.0] * width))
    for head in range(layer.num_heads):
        own = range(head * head_dim, (head + 1) * head_dim)
        scores = [sum(q[query][j] * key[j] for j in own) / sqrt(head_dim) for key in k]
        exponentials = [exp(score) for score in scores]
        weights = [e / sum(exponentials) for e in exponentials]
        vector = [sum(w * value[j] for w, value in zip(weights, v, strict=True)) for j in own]
        rows = weight["attention.out_proj.weight"]
        adds = [sum(rows[e][j] * n for j, n in zip(own, vector, strict=True)) for e in range(width)]
        output = [o + gates[head] * a for o, a in zip(output, adds, strict=True)]
        for name, value in zip(found, (weights, vector, adds), strict=True):
            found[name].append(value)
    if residual:
        output = [o + own for o, own in zip(output, x[query], strict=True)]
    return {**found, "output": output, "logits": linear("read_out", output)}


@pytest.mark.parametrize("size", SIZES)
def test_numbers_equal_a_slow_loop(size):
    meet, model = make_meet(size), make_model(*size[:-1])
    for seed in range(3):
        generator = torch.Generator().manual_seed(seed)
        meet.gates = torch.randint(2, (size[0],), generator=generator).tolist()
        meet.text = make_sentence(size[2] - seed, seed)
        meet.query = int(torch.randint(size[2] - seed, (1,), generator=generator))
        tokens = [WORDS.index(word) for word in meet.text.split(" ")]
        numbers = meet.numbers()
        expected = numbers_by_loop(model, tokens, meet.query, meet.gates, residual=size[-1])
        for name, value in expected.items():
            wanted = torch.tensor(value, dtype=torch.float64)
            torch.testing.assert_close(numbers[name].flatten(), wanted.flatten(), atol=1e-9, rtol=1e-9)
        assert numbers["logits"].shape == (2, 11)
        assert torch.equal(numbers["answers"], numbers["logits"].argmax(-1))


def test_the_trained_model_answers_what_chapter_3_says(trained, held_out):
    meet = chapter_meet(trained, held_out)
    for index, text in zip((7, 4, 10, 1), meet.sentences, strict=True):
        meet.text = text
        meet.query = meet.words.index("___")
        assert meet.numbers()["answers"].tolist() == held_out.targets[index].tolist()


def test_the_model_is_left_alone(trained, held_out):
    before = {name: tensor.clone() for name, tensor in trained.state_dict().items()}
    chapter_meet(trained, held_out, gates=[0, 1, 1, 0]).numbers()
    for name, parameter in trained.named_parameters():
        assert torch.equal(parameter, before[name])
        assert parameter.requires_grad
        assert parameter.dtype == torch.float32


def test_settings_that_depend_on_each_other(trained, held_out):
    meet = chapter_meet(trained, held_out)
    assert (meet.query, meet.gates, meet.coordinate) == (7, [1.0] * 4, 0)
    assert meet.text == meet.sentences[0]
    meet.text = "the sailor is happy"
    assert meet.query == 3, "the last word, because there is no blank"
    meet.text, meet.query = "the sailor ___ happy in the kitchen", 6
    meet.text = "the sailor ___ happy"
    assert meet.query == 2, "the blank, because there is no word 6"
    meet.query = 1
    meet.text = "the sailors ___ happy"
    assert meet.query == 1, "a query that is still there stays"


class Doubled(nn.Module):
    def forward(self, x):
        return 2 * x


def test_wrong_models_and_sentences_are_refused():
    def refused(error, rule, model=None, sentences=("we like tea",), **options):
        model = make_model(*SIZES[0][:-1]) if model is None else model
        options = {"words": WORDS, "tasks": ("who", "what")} | options
        with pytest.raises(error, match=rule):
            HeadsMeet(model, sentences, **options)

    refused(TypeError, "model must be a Module", 3)
    refused(TypeError, "model.embedding must be an Embedding", nn.Linear(2, 2))
    refused(TypeError, "float32", make_model(3, 5, 7, True).double())
    damaged = make_model(3, 5, 7, True)
    damaged.read_out.bias.data[0] = float("nan")
    refused(ValueError, "finite", damaged)
    refused(ValueError, "at most 8 heads .*, got 11 and 33", make_model(11, 3, 7, True))
    refused(ValueError, r"model.embedding must have shape \(11, 15\)", make_model(3, 5, 7, True, words=13))
    rule = r"model.read_out.weight must have shape \(22, 15\)"
    refused(ValueError, rule, make_model(3, 5, 7, True, tasks=3))
    refused(ValueError, "own for each head", make_model(4, 5, 7, True, num_kv_heads=2))
    plain = "scaled dot product alone"
    refused(ValueError, plain, make_model(3, 5, 7, True, score=cosine_score))
    refused(ValueError, plain, make_model(3, 5, 7, True, scale=1.0))
    refused(ValueError, plain, make_model(3, 5, 7, True, window=(1, 1)))
    refused(ValueError, plain, make_model(3, 6, 7, True, rotary=RotaryPositionalEncoding(6)))
    strange = make_model(3, 5, 7, True)
    strange.positions = Doubled()
    refused(ValueError, "add one vector to each position", strange)
    refused(TypeError, "words must be a sequence of str", words="ab")
    refused(ValueError, "words must differ, got 'we' twice", words=("we", *WORDS[1:]))
    refused(ValueError, "words must not contain spaces, got 'a b'", words=("a b", *WORDS[1:]))
    refused(TypeError, "tasks must be a sequence of str", tasks="ab")
    refused(ValueError, "tasks must hold 1 to 6 str, got 0", tasks=())
    refused(ValueError, "tasks must not hold an empty str", tasks=("", "b"))
    refused(ValueError, "sentences must hold 1 to 24 str, got 0", sentences=())
    rule = r"sentences\[1\] must hold words of the model, .* got 'tee'"
    refused(ValueError, rule, sentences=("tea", "tee"))
    refused(ValueError, "blank must be one of words, got ''", blank="")
    refused(TypeError, "blank must be a str", blank=3)
    refused(TypeError, "residual must be a bool", residual=1)
    refused(TypeError, "stored must be a tuple of experiment, arm and seed, got 'words'", stored="words")
    refused(ValueError, "stored must name the weights of model", stored=STORED)
    refused(ValueError, "stored must name .*'nothing'", stored=("nothing", "at all", 0))
    refused(TypeError, "stored must name .*seed must be an int", stored=(*STORED[:2], "4"))


def test_repr():
    meet = make_meet(gates=[1, 0, 1], query=4, text="we like hot tea today")
    assert repr(meet) == "HeadsMeet(text='we like hot tea today', query=4, off=[1])"


def boxes(path):
    """The boxes of a picture's path, as the numbers where they begin and end: (count, 2)."""
    found = re.findall(r"M([\d.]+) (-?[\d.]+)V(-?[\d.]+)h([\d.]+)V(-?[\d.]+)z", path)
    assert found
    assert all(start == back for _, start, _, _, back in found)
    assert [float(x) // 1 for x, *_ in found] == list(range(len(found))), "one box per column, in order"
    return -torch.tensor([[float(start), float(end)] for _, start, end, _, _ in found], dtype=torch.float64)


def path_of(locator):
    return locator.get_attribute("d")


def bars_of(host):
    """The height of each bar of what each summand adds, row by row: (summands, numbers)."""
    rows = host.locator(".mha-meet-rows .mha-meet-row path:not(.mha-zero)").all()
    return torch.stack([boxes(path_of(row))[:, 1] for row in rows])


def sum_line(host):
    """Where the short lines of the sum stand."""
    marks = re.findall(r"M(\d+) (-?[\d.]+)h1", path_of(host.locator(".mha-meet-sum")))
    assert [int(x) for x, _ in marks] == list(range(len(marks)))
    return -torch.tensor([float(y) for _, y in marks], dtype=torch.float64)


def stacked(host):
    """The pieces of the stack, without those of heads that are off: (pieces, numbers, 2)."""
    pieces = host.locator(".mha-meet-total path:not(.mha-zero, .mha-meet-sum)").all()
    return torch.stack([boxes(path_of(piece)) for piece in pieces if path_of(piece)])


def answered(host):
    return host.locator(".mha-meet-answers strong").all_inner_texts()


def words_of(meet):
    return [meet.model["words"][token] for token in meet.numbers()["answers"].tolist()]


def seen(tensor, digits=3e-4):
    return {"actual": tensor, "atol": digits, "rtol": 0}


@pytest.mark.parametrize("size", SIZES)
def test_the_browser_computes_the_numbers_of_torch(show, size):
    meets = [make_meet(size), make_meet(size, text=make_sentence(3, 5), query=1, gates=[0] * size[0])]
    for host, meet in zip(show(*meets), meets, strict=True):
        assert_shows_numbers(host, meet)


@pytest.mark.parametrize("size", SIZES[:2])
def test_bars_stack_to_the_output(show, size):
    """Each piece begins where the one below it ends, and the line is at the sum of both sides."""
    meet = make_meet(size)
    host = show(meet)
    numbers = meet.numbers()
    fixed = [numbers[name][None] for name in ("residual", "bias") if name in numbers]
    summands = torch.cat((numbers["contributions"], *fixed))
    torch.testing.assert_close(expected=summands, **seen(bars_of(host)))
    names = host.locator(".mha-meet-rows .mha-meet-name").all_inner_texts()
    wanted = [f"head {head} · W{head}O" for head in range(size[0])]
    wanted += ["residual"] * size[4] + ["bias"] * size[3]
    assert ["".join(name.split("\n")) for name in names] == wanted
    pieces = stacked(host)
    assert len(pieces) == len(summands)
    torch.testing.assert_close(expected=summands, **seen(pieces[..., 1] - pieces[..., 0]))
    for column in range(summands.shape[1]):
        for sign in (1, -1):
            end = 0.0
            for piece, summand in zip(pieces[:, column], summands[:, column], strict=True):
                if summand * sign > 0:
                    assert abs(piece[0] - end) < 2e-4
                    end = float(piece[1])
    torch.testing.assert_close(expected=summands.sum(0), **seen(sum_line(host)))
    torch.testing.assert_close(expected=numbers["output"], **seen(sum_line(host)))


def test_pieces_of_heads_that_are_off_leave_no_gap(show):
    """Without heads 0 and 3 the other pieces move together, and the line moves with them."""
    meet = make_meet(SIZES[2], gates=[0, 1, 1, 0, 1])
    host = show(meet)
    numbers = meet.numbers()
    pieces = stacked(host)
    kept = torch.stack([*numbers["contributions"][[1, 2, 4]], numbers["bias"]])
    assert len(pieces) == 4
    above = torch.cat((torch.zeros(1, 15), kept.clamp(min=0).cumsum(0)))
    below = torch.cat((torch.zeros(1, 15), kept.clamp(max=0).cumsum(0)))
    start, end = (torch.where(kept > 0, above[part], below[part]) for part in (slice(0, -1), slice(1, None)))
    torch.testing.assert_close(expected=torch.stack((start, end), -1), **seen(pieces))
    torch.testing.assert_close(expected=above[-1] + below[-1], **seen(sum_line(host)))


PIXELS_OF_ONE = (
    """svgs => svgs.map((svg) => svg.getBoundingClientRect().height / svg.viewBox.baseVal.height)"""
)


def test_all_bars_have_one_scale_and_their_columns_are_aligned(show):
    """Only then does the eye see that the pieces of the sum are as long as the bars above it."""
    host = show(make_meet())
    pictures = host.locator(".mha-meet-bars svg")
    scales = pictures.evaluate_all(PIXELS_OF_ONE)
    assert len(scales) == 6
    assert max(scales) / min(scales) < 1.01
    places = pictures.evaluate_all("svgs => svgs.map((svg) => svg.getBoundingClientRect())")
    assert len({(round(place["x"], 1), round(place["width"], 1)) for place in places}) == 1
    before = scales
    host.locator("input[type=checkbox]").first.uncheck()
    assert pictures.evaluate_all(PIXELS_OF_ONE) == before, "a switch changes no scale"


CURVES = """paths => paths.map((path) => {
  const at = (length) => path.getPointAtLength(length).matrixTransform(path.getScreenCTM());
  const [left, right] = [at(0), at(path.getTotalLength())];
  const { strokeWidth, stroke, strokeOpacity: opacity } = getComputedStyle(path);
  const ends = { left: [left.x, left.y], right: [right.x, right.y] };
  return { ...ends, width: parseFloat(strokeWidth), stroke, opacity };
})"""
MIDDLES = """nodes => nodes.map((node) => {
  const { top, bottom, left, right } = node.getBoundingClientRect();
  return [left, right, (top + bottom) / 2];
})"""


def rgb(color):
    return f"rgb({', '.join(str(int(color[i : i + 2], 16)) for i in (1, 3, 5))})"


@pytest.mark.parametrize("width", [720, 360])
def test_curves_lead_from_each_head_to_the_words_and_are_as_wide_as_the_weights(show, width):
    meet = make_meet()
    host = show(meet, width=width)
    curves = host.locator(".mha-meet-curves path").evaluate_all(CURVES)
    words = host.locator(".mha-meet-word").evaluate_all(MIDDLES)
    heads = host.locator(".mha-meet-head").evaluate_all(MIDDLES)
    assert (len(curves), len(words), len(heads)) == (21, 7, 3)
    widths = torch.tensor([curve["width"] for curve in curves], dtype=torch.float64).view(3, 7)
    torch.testing.assert_close(expected=15 * meet.numbers()["weights"], **seen(widths, 0.01))
    for index, curve in enumerate(curves):
        head, key = divmod(index, 7)
        assert curve["stroke"] == rgb(HEADS[head])
        assert curve["left"] == pytest.approx(words[key][1:], abs=1)
        assert curve["right"] == pytest.approx([heads[head][0], heads[head][2]], abs=1)


def test_the_sum_and_the_answers_follow_a_switch_at_once(show, trained, held_out):
    meet = chapter_meet(trained, held_out)
    host = show(meet)
    assert answered(host) == ["are", "baker's", "teacher", "station"]
    every = bars_of(host)
    switches = host.locator("input[type=checkbox]")
    # In the order of a Gray code, so that each step to the next subset flips one switch.
    for step in range(1, 16):
        head = (step & -step).bit_length() - 1
        switches.nth(head).press("Space")
        gates = list(meet.gates)
        gates[head] = 1 - gates[head]
        meet.gates = gates
        torch.testing.assert_close(expected=meet.numbers()["output"], **seen(sum_line(host), 1e-3))
        torch.testing.assert_close(bars_of(host), every, msg="what a head would add stays in view")
        assert answered(host) == words_of(meet)
        now = [f"≠ {word}" for word in ("are", "baker's", "teacher", "station")]
        kept = zip(words_of(meet), ["are", "baker's", "teacher", "station"], now, strict=True)
        wanted = ["" if word == before else other for word, before, other in kept]
        assert host.locator(".mha-meet-was").all_inner_texts() == wanted
        names = host.locator(".mha-meet-rows .mha-meet-name").all_inner_texts()
        assert [name.endswith("off") for name in names] == [gate == 0 for gate in gates]
        assert len(stacked(host)) == sum(gates) if any(gates) else True
        curves = host.locator(".mha-meet-curves path").evaluate_all(CURVES)
        faded = [float(curve["opacity"]) < 0.2 for curve in curves]
        assert faded == [gates[index // 12] == 0 for index in range(48)]


def test_head_0_alone_holds_the_verb(show, trained, held_out):
    """The question of the chapter, answered by hand."""
    host = show(chapter_meet(trained, held_out))
    expect(host.locator(".mha-meet-question")).to_contain_text("which", ignore_case=True)
    expect(host.locator(".mha-meet-head").first).to_contain_text("sailors 1.00")
    host.get_by_label("head 0", exact=True).uncheck()
    assert answered(host) == ["is", "baker's", "teacher", "station"]
    assert host.locator(".mha-meet-was").all_inner_texts() == ["≠ are", "", "", ""]
    expect(host.locator("[role=status]")).to_have_text(
        "Query ___. Heads off: 0. Answers: verb is, owner baker's, neighbour teacher, place station."
    )
    host.get_by_label("head 0", exact=True).check()
    host.get_by_label("head 1", exact=True).uncheck()
    assert answered(host) == ["are", "baker's", "teacher", "station"]


def test_words_are_exchanged_and_everything_follows(show, trained, held_out):
    meet = chapter_meet(trained, held_out)
    host = show(meet)
    menus = host.locator(".mha-meet-word select")
    offered = menus.first.locator("option").all_inner_texts()
    assert offered == list(SENTENCE_WORDS[1:]), "all words except the padding"
    for place, word in ((3, "sailor"), (6, "doctors"), (11, "garden"), (2, "guests'")):
        menus.nth(place).select_option(word)
        words = meet.words
        words[place] = word
        meet.text = " ".join(words)
        assert answered(host) == words_of(meet)
        assert_shows_numbers(host, meet, ["weights", "heads", "contributions", "output", "logits"])
    assert answered(host) == ["is", "guests'", "doctors", "garden"]
    sentence = host.get_by_label("sentence")
    assert sentence.evaluate("node => node.selectedOptions[0].text") == "your own words"
    sentence.select_option(index=1)
    assert menus.evaluate_all("all => all.map((one) => one.value).join(' ')") == meet.sentences[1]
    meet.text = meet.sentences[1]
    meet.query = meet.words.index("___")
    assert host.locator("input[type=radio]").nth(meet.query).is_checked()
    assert answered(host) == words_of(meet) == ["is", "teachers'", "sailors", "school"]


def test_another_query_by_keyboard(show, trained, held_out):
    meet = chapter_meet(trained, held_out)
    host = show(meet)
    note = host.locator(".mha-meet-result .mha-hint").last
    expect(note).to_have_text("≠ shows the answer with all heads on.")
    host.locator("input[type=radio]").nth(7).press("ArrowUp")
    meet.query = 6
    assert_shows_numbers(host, meet)
    assert answered(host) == words_of(meet)
    expect(note).to_have_text("The model was trained to answer only at ___.")
    label = host.locator(".mha-meet-curves svg").get_attribute("aria-label")
    assert label.startswith("Weights from teacher: head 0 to ")
    # The picture's text names the same words as the rows of weights.
    for head, row in enumerate(meet.numbers()["weights"].tolist()):
        strongest = max(range(12), key=row.__getitem__)
        named = (
            f"{meet.words[strongest]} {row[strongest]:.2f}" if row[strongest] >= 0.1 else "no word above 0.1"
        )
        expect(host.locator(".mha-meet-head").nth(head)).to_contain_text(named)


def written(host):
    """The numbers of the sum that is written out, and its index."""
    text = host.locator(".mha-meet-written").inner_text().replace("−", "-")
    index, rest = re.match(r"y\s*(\d+)\s*=\s*(.*)", text, re.DOTALL).groups()
    *summands, total = re.findall(r"[+-]?\d+\.\d\d", rest)
    return int(index), [float(number) for number in summands], float(total)


BAND = """node => {
  const { left, width } = node.getBoundingClientRect();
  const style = getComputedStyle(node);
  const part = parseFloat(style.backgroundSize) / 100;
  const shift = parseFloat(style.backgroundPositionX) / 100;
  return [left + shift * width * (1 - part), part * width];
}"""


def test_one_number_of_the_sum_is_written_out(show):
    meet = make_meet(gates=[1, 0, 1])
    host = show(meet)
    numbers = meet.numbers()

    def assert_written(coordinate):
        parts = numbers["contributions"]
        rows = [parts[0], parts[2], numbers["residual"], numbers["bias"]]
        index, summands, total = written(host)
        assert index == coordinate
        assert summands == pytest.approx([float(row[coordinate]) for row in rows], abs=0.0051)
        assert total == pytest.approx(float(numbers["output"][coordinate]), abs=0.0051)
        for bars in host.locator(".mha-meet-bars").all():
            box = bars.bounding_box()
            left, width = bars.evaluate(BAND)
            assert left == pytest.approx(box["x"] + coordinate * box["width"] / 15, abs=1)
            assert width == pytest.approx(box["width"] / 15, abs=1)

    assert_written(0)
    slider = host.locator("input[type=range]")
    slider.press("End")
    assert_written(14)
    slider.press("ArrowLeft")
    assert_written(13)
    bars = host.locator(".mha-meet-bars").nth(1)
    box = bars.bounding_box()
    bars.click(position={"x": 4.5 * box["width"] / 15, "y": 8})
    assert_written(4)
    assert slider.input_value() == "4"


def test_logits_are_bars_and_the_highest_is_the_answer(show, trained, held_out):
    meet = chapter_meet(trained, held_out, gates=[0, 1, 1, 1])
    host = show(meet)
    for task, logits in enumerate(meet.numbers()["logits"]):
        found = boxes(path_of(host.locator(".mha-meet-logits").nth(task)))[:, 1]
        torch.testing.assert_close(expected=logits, **seen(found, 1e-3))
        best = re.match(r"M(\d+) 0V(-?[\d.]+)h1V0z", path_of(host.locator(".mha-meet-best").nth(task)))
        assert int(best[1]) == int(logits.argmax())
        assert -float(best[2]) == pytest.approx(float(logits.max()), abs=1e-3)
        shown = host.locator(".mha-meet-answers > div").nth(task).inner_text()
        assert f"{logits.max():.1f}" in shown


def test_the_program_loads_the_weights_by_name(show, trained, held_out):
    meet = chapter_meet(trained, held_out, gates=[1, 0, 1, 1], query=6)
    host = show(meet)
    code = copied_code(host)
    assert 'load_experiment("words").state("4 heads", seed=4)' in code
    assert len(code) < 3000, "short enough to be read"
    variables = run_copied_code(host)
    for name, expected in meet.numbers().items():
        torch.testing.assert_close(variables[name].double(), expected.double(), atol=1e-6, rtol=1e-6)


def test_a_sentence_of_fifteen_long_words_fits_320_pixels(show, trained, held_out):
    text = "today in the theatre the tall teachers' young teachers near the young teachers ___ happy"
    host = show(chapter_meet(trained, held_out, text=text), width=320)
    assert host.page.evaluate("document.documentElement.scrollWidth") <= 320
    for row in host.locator(".mha-meet-row").all():
        name, bars = (row.locator(f".mha-meet-{part}").bounding_box() for part in ("name", "bars"))
        assert row.locator(".mha-meet-name").evaluate("node => node.scrollWidth <= node.clientWidth")
        assert name["x"] + name["width"] <= bars["x"] + 1
    # A finger can hit every word and every switch.
    for control in host.locator(".mha-meet select, .mha-meet label").all():
        assert control.bounding_box()["height"] >= 24
