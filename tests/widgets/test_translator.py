"""The translator: its Transformer against torch, and what a reader sees, does and types in a browser."""

import calendar
import datetime
import gzip
import importlib.util
import itertools
import re
from contextlib import ExitStack
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch
from playwright.sync_api import expect
from seen import map_colors, map_pixels
from test_every_widget import too_wide
from torch import nn
from widget_looks import contrast
from widget_page import ByHand, assert_shows_numbers, in_browser, run_copied_code, shown, write_page

from mha_course.data import dates as date_data
from mha_course.widgets import Translator, translator
from mha_course.widgets.packing import round_to_bytes
from mha_course.widgets.translator import attention_layers, pack_model, unpack_model
from mha_lib import beam_decode, capture_attention, gate_heads, greedy_decode
from mha_lib.models.seq2seq import EncoderDecoder

ROOT = Path(__file__).resolve().parents[2]
MATH = "translator/translator_math.js"
LIMITS = {"start": date_data.START, "end": date_data.END, "max_len": date_data.TARGET_LENGTH}
TASK = {
    "letters": date_data.DATE_LETTERS, "source_length": date_data.SOURCE_LENGTH, "start": date_data.START,
    "symbols": list(date_data.ISO_SYMBOLS), "target_length": date_data.TARGET_LENGTH, "end": date_data.END,
}  # fmt: skip


def make_model(num_heads=3, width=21, hidden=13, layers=2, *, bias=True, seed=0, sharp=1.7, **options):
    """A model that has learned nothing, but answers different dates differently, the sharper the more."""
    torch.manual_seed(seed)
    sizes = (1 + len(date_data.DATE_LETTERS), len(date_data.ISO_SYMBOLS), width, num_heads, hidden, layers)
    model = EncoderDecoder(*sizes, max_len=date_data.SOURCE_LENGTH, bias=bias, **options)
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            if name.endswith("bias"):
                nn.init.normal_(parameter, std=0.1)
            elif parameter.ndim == 2:
                # Embeddings, which are drawn larger than the other matrices, are unchanged.
                parameter.mul_(1.0 if "embedding" in name else sharp)
    return model.eval()


@pytest.fixture(scope="module")
def models():
    return [make_model(heads, width=24, seed=heads, sharp=2.5) for heads in (1, 2, 4, 8)]


@pytest.fixture
def stored_models(models, monkeypatch):
    """As if these were the models of the stored experiment."""
    found = {model.encoder.num_heads: unpack_model(pack_model(model)) for model in models}
    for cached in (translator._trained_packed, translator.model_files):
        cached.cache_clear()
    monkeypatch.setattr(translator, "_trained", lambda: found)
    yield found
    for cached in (translator._trained_packed, translator.model_files):
        cached.cache_clear()


def held_out(count=200, seed=5, **kind):
    return date_data.date_batch(count, held_out=True, generator=torch.Generator().manual_seed(seed), **kind)


# The mathematics


def test_texts_are_normalized_as_in_python(math_page):
    spaces = "".join(chr(point) for point in range(0x3100) if chr(point).isspace()) + "\ufeff\u200b"
    texts = ["", " ", "ΑΎΓΟΥΣΤΟΣ 3ΗΣ", "İSTANBUL", "２０２１年３月３日", "ﬁ ß ẞ Ⅳ ① ㍻", "e\u0301 é", "ΣΑΣ Σ"]
    texts += ["".join(f"{index}{space}" for index, space in enumerate(spaces))]
    dates = held_out(300, locales=("el", "vi", "tr", "ja", "ko", "hu", *date_data.NEW_LOCALES))
    texts += [text.upper().replace(" ", "\u00a0 ") for text in dates.texts]
    wanted = [date_data.normalize_date(text) for text in texts]
    assert in_browser(math_page, "return texts.map(normalizeDate)", texts=texts) == wanted


@pytest.mark.parametrize(("text", "sentence"), [
    ("", "Type a date."),
    (" \t\u00a0 ", "Type a date."),
    ("3 März 2021!", "The model cannot read a letter that it never saw: “!”."),
    ("3🙂 @", "The model cannot read letters that it never saw: “🙂”, “@”."),
    ("§$%&#!", "“§”, “$”, “%”, “&”, “#” and others."),
    ("3 " * 21, "41 letters are too many: the model reads at most 40."),
])  # fmt: skip
def test_what_cannot_be_read_is_refused_with_a_sentence_as_python_refuses_it(math_page, text, sentence):
    found = in_browser(math_page, "return dateProblem(text, task)", text=text, task=TASK)
    assert sentence in found
    with pytest.raises(ValueError, match="texts must"):
        date_data.encode_source([text])


def test_what_can_be_read_becomes_the_tokens_of_python(math_page):
    texts = [*held_out(300).texts, "a" * 40, " 3 ", "MÄRZ"]
    found = in_browser(math_page, "return texts.map((t) => [dateProblem(t, task), dateTokens(t, task)])",
                       texts=texts, task=TASK)  # fmt: skip
    assert [problem for problem, _ in found] == [""] * len(texts)
    for (_, tokens), row in zip(found, date_data.encode_source(texts), strict=True):
        assert tokens == row[row != 0].tolist()


def test_days_of_the_calendar_are_told_from_others(math_page):
    def is_day(text):
        try:
            return bool(re.fullmatch(r"\d{4}-\d\d-\d\d", text)) and bool(datetime.date.fromisoformat(text))
        except ValueError:
            return False

    years = ("1900", "2000", "2024", "2023")
    texts = [f"{y}-{m:02}-{d:02}" for y, m, d in itertools.product(years, range(14), range(33))]
    texts += ["", "2021", "2021-3-3", "2021-03-031", "20210303", "2021-0-103", "[start]2021-03-03"]
    faults = in_browser(math_page, "return texts.map(calendarFault)", texts=texts)
    assert [fault == "" for fault in faults] == [is_day(text) for text in texts]
    assert faults[texts.index("2023-02-29")] == "month 02 of 2023 has no day 29"
    assert faults[texts.index("2023-13-01")] == "there is no month 13"
    assert sum(fault == "" for fault in faults) == sum(366 if calendar.isleap(int(y)) else 365 for y in years)


@pytest.mark.parametrize(("text", "answer", "doubt"), [
    ("3. März 2021", "2021-03-03", ""),
    ("2021年3月3日", "2021-03-03", ""),
    ("3. März 2021", "2012-03-03", "The text says 2021, the answer 2012: it is wrong."),
    ("13. März 2021", "2021-03-31", "No number in the text is the day 31 of the answer: it is wrong."),
    ("miércoles 3 de marzo", "2021-03-03", "The text does not say which year"),
    ("März 2021", "2021-03-03", "The text does not say which day"),
    ("yesterday", "2021-03-03", "The text has no number in it"),
])  # fmt: skip
def test_what_an_answer_contradicts_is_said(math_page, text, answer, doubt):
    found = in_browser(math_page, "return dateDoubt(text, answer)", text=text, answer=answer)
    assert found.startswith(doubt)
    assert bool(found) == bool(doubt)


def test_no_right_answer_to_a_written_date_is_doubted(math_page):
    dates = held_out(400)
    answers = map(date_data.decode_target, dates.target)
    pairs = [list(pair) for pair in zip(dates.texts, answers, strict=True)]
    run = "return pairs.map(([text, answer]) => dateDoubt(text, answer))"
    found = in_browser(math_page, run, pairs=pairs)
    assert found == [""] * 400


def test_rounding_to_bytes_keeps_every_weight_within_half_a_step():
    model = make_model()
    packed = pack_model(model)
    rounded = dict(unpack_model(packed).named_parameters())
    squares = torch.zeros(2)
    for name, parameter in model.named_parameters():
        found = rounded[name]
        if parameter.ndim == 1:
            assert torch.equal(found, parameter)
            continue
        numbers, scales = round_to_bytes(parameter)
        assert numbers.dtype == torch.int8
        assert numbers.abs().amax(1).tolist() == [127] * len(parameter)
        assert torch.equal(found, numbers.float() * scales[:, None])
        assert ((found - parameter).abs() <= scales[:, None] * 0.5001).all()
        squares += torch.stack(((found - parameter).square().sum(), parameter.square().sum())).detach()
    assert packed["error"] == pytest.approx((squares[0] / squares[1]).sqrt().item(), rel=1e-5)
    # A second rounding changes nothing.
    assert pack_model(unpack_model(packed))["int8"] == packed["int8"]


RUN = """
const model = unpackTranslator(stored);
return texts.map((text) => {
  const { memory, tokens, steps, maps } = translateDate(model, task, { text, gates, beamSize: 1 });
  return { tokens, states: memory.states, logits: steps.map((step) => step.logits), maps };
});
"""


def all_gates(model, gates=None):
    layers = attention_layers(model)
    flat = torch.ones(len(layers), model.encoder.num_heads) if gates is None else torch.tensor(gates)
    return flat.view(len(layers), -1)


def gated(model, gates):
    stack = ExitStack()
    for layer, row in zip(attention_layers(model), all_gates(model, gates), strict=True):
        stack.enter_context(gate_heads(layer, row))
    return stack


def nested(flat, model):
    """Gates as translator_math.js takes them: by attention, layer and head."""
    return flat.view(len(translator.ATTENTIONS), len(model.encoder.blocks), -1).tolist()


def compare_with_torch(page, model, dates, gates=None):
    """Encoder states, logits of all steps and all maps of all dates; the tokens equal.

    The page computes in double precision, so it must agree with torch in double precision to rounding. From
    torch in single precision it may be 1e-5 of the greatest number away: the last digits of a sum in single
    precision depend on the processor, and the logits are sums of numbers as great as ten.
    """
    packed = pack_model(model)
    rounded = unpack_model(packed)
    assert rounded.output.weight.dtype == torch.float32
    flat = all_gates(model, gates)
    given = {"texts": list(dates.texts), "task": TASK, "gates": nested(flat, model)}
    answers = in_browser(page, RUN, stored=packed, **given)
    lens = (dates.source != 0).sum(-1)
    for precision, tolerance in ((torch.float32, 1e-5), (torch.float64, 1e-10)):
        rounded = rounded.to(precision)
        with torch.no_grad(), gated(rounded, gates):
            tokens = greedy_decode(rounded, dates.source, source_lens=lens, **LIMITS)
            start = torch.full_like(tokens[:, :1], date_data.START)
            with capture_attention(rounded) as captured:
                memory = rounded.encode(dates.source, source_lens=lens)
                written = torch.cat((start, tokens[:, :-1]), dim=1)
                logits = rounded.decode(written, memory, source_lens=lens)
        maps = [captured[name] for name in layer_names(len(model.encoder.blocks))]
        pairs = []
        for row, answer in enumerate(answers):
            length, count = int(lens[row]), int((tokens[row] != date_data.END).sum()) + 1
            count = min(count, date_data.TARGET_LENGTH)
            assert answer["tokens"] == tokens[row, :count].tolist()
            pairs += [(answer["states"], memory[row, :length]), (answer["logits"], logits[row, :count])]
            found = [heads for kind in answer["maps"] for heads in kind]
            for index, (heads, expected) in enumerate(zip(found, maps, strict=True)):
                queries = length if index < len(maps) // 3 else count
                keys = count if len(maps) // 3 <= index < 2 * len(maps) // 3 else length
                pairs.append((heads, expected[row, :, :queries, :keys]))
        for found, expected in pairs:
            found = torch.tensor(found, dtype=torch.float64)
            assert expected.dtype == precision
            assert found.shape == expected.shape
            assert (found - expected).abs().max() < tolerance * max(1, expected.abs().max())
    return answers


def layer_names(num_layers):
    stacks = (("encoder", "self"), ("decoder", "self"), ("decoder", "cross"))
    return [f"{stack}.blocks.{i}.{kind}_attention" for stack, kind in stacks for i in range(num_layers)]


@pytest.mark.parametrize("sizes", [
    {"num_heads": 3, "width": 21, "hidden": 13, "layers": 2},
    {"num_heads": 1, "width": 10, "hidden": 7, "layers": 3, "bias": False},
    {"num_heads": 8, "width": 64, "hidden": 256, "layers": 2},
], ids=["odd sizes", "one head, no bias", "the experiment's sizes"])  # fmt: skip
def test_states_logits_and_maps_of_200_held_out_dates_equal_torch(math_page, sizes):
    answers = compare_with_torch(math_page, make_model(**sizes), held_out())
    # Letters and answers differ, and so do the answers' lengths, so the comparison means something.
    assert len({tuple(answer["tokens"]) for answer in answers}) > 20


def test_heads_that_are_off_are_off_as_in_torch(math_page):
    model = make_model(3)
    for seed in range(4):
        gates = (torch.rand(18, generator=torch.Generator().manual_seed(seed)) > 0.4).float().tolist()
        compare_with_torch(math_page, model, held_out(20), gates)
    without = compare_with_torch(math_page, model, held_out(20), [0.0] * 18)
    assert len({tuple(answer["tokens"]) for answer in without}) == 1, "nothing of the letters arrives"


@pytest.mark.parametrize("num_heads", [1, 2, 4, 8])
def test_the_trained_models_equal_torch(math_page, num_heads):
    model = translator._trained()[num_heads]
    dates = held_out(seed=99)
    answers = compare_with_torch(math_page, model, dates)
    right = [date_data.decode_target(torch.tensor(answer["tokens"])) for answer in answers]
    wanted = [date_data.decode_target(target) for target in dates.target]
    share = sum(map(str.__eq__, right, wanted)) / len(wanted)
    shown = Translator(num_heads=num_heads)
    assert share == pytest.approx(shown.exact_match())
    assert shown.exact_match() == pytest.approx(shown.exact_match(rounded=False), abs=0.02)
    for name in translator.model_files():
        assert len(gzip.compress(translator.model_files()[name].encode())) < 300_000


@pytest.mark.parametrize("beam_size", [2, 3, 5])
def test_beams_equal_torch(math_page, beam_size):
    for seed in (0, 3):
        model = make_model(seed=seed)
        with torch.no_grad():
            model.output.bias[date_data.END] += 1.0  # some answers end early
        packed, dates = pack_model(model), held_out(30)
        found = in_browser(
            math_page,
            """const model = unpackTranslator(stored);
            return texts.map((text) => translateDate(model, task, { text, gates, beamSize }).answers);""",
            stored=packed, texts=list(dates.texts), task=TASK, beamSize=beam_size,
            gates=nested(all_gates(model), model),
        )  # fmt: skip
        rounded = unpack_model(packed).double()
        lens = (dates.source != 0).sum(-1)
        options = {"source_lens": lens, "beam_size": beam_size, **LIMITS}
        tokens, log_probs = beam_decode(rounded, dates.source, **options)
        lengths = set()
        for row, answers in enumerate(found):
            for place, answer in enumerate(answers):
                own = tokens[row, place].tolist()
                own = own[: own.index(date_data.END) + 1] if date_data.END in own else own
                assert answer["tokens"] == own
                lengths.add(len(own))
            sums = torch.tensor([answer["logProb"] for answer in answers], dtype=torch.float64)
            torch.testing.assert_close(sums, log_probs[row], atol=1e-9, rtol=1e-9)
        assert len(lengths) > 1


def test_numbers_are_those_of_the_model_step_by_step(models):
    shown = Translator(models, text="12 June 1987", num_heads=4, step=3, layer=0, head=2)
    model = shown.model().double()
    source = date_data.encode_source(["12 June 1987"])[:, :12]
    tokens, memory = [date_data.START], model.encode(source)
    for _ in range(4):
        with capture_attention(model) as captured:
            logits = model.decode(torch.tensor([tokens]), memory)[0, -1]
        tokens.append(int(logits.argmax()))
    numbers = shown.numbers()
    assert numbers["tokens"][:4].tolist() == tokens[1:]
    torch.testing.assert_close(numbers["probabilities"], logits.softmax(-1).sort(descending=True).values[:5])
    weights = captured["decoder.blocks.0.cross_attention"][0, 2, -1]
    torch.testing.assert_close(numbers["reading"], weights)
    torch.testing.assert_close(numbers["weights"][3], weights)
    shown.attention = "decoder"
    seen = captured["decoder.blocks.0.self_attention"][0, 2, -1]
    torch.testing.assert_close(shown.numbers()["reading"], seen)
    assert shown.answer() == date_data.decode_target(numbers["tokens"])


def test_settings_that_depend_on_each_other(models):
    shown = Translator(models)
    assert (shown.num_heads, shown.layer, len(shown.gates)) == (2, 1, 12)
    shown.num_heads, shown.head = 8, 7
    assert shown.gates == [1.0] * 48
    shown.num_heads = 4
    assert (shown.head, len(shown.gates)) == (3, 24)
    with shown.hold_trait_notifications():  # in the form in which a browser sends both
        shown.num_heads, shown.gates = 1, [0.0] * 6
    assert (shown.gates, shown.head) == ([0.0] * 6, 0)


@pytest.mark.parametrize(("wrong", "error", "rule"), [
    (lambda: 3, TypeError, "models must be"),
    (lambda: [3], TypeError, r"models\[0\] must be"),
    (list, ValueError, "at least one model"),
    (lambda: [make_model(), make_model()], ValueError, r"must differ, got \[3, 3\]"),
    (lambda: make_model().double(), TypeError, "float32"),
    (lambda: make_model(width=22, num_heads=11), ValueError, "at most 8 heads"),
    (lambda: make_model(layers=5), ValueError, "at most 8 heads and 4 layers"),
    (lambda: make_model(norm_first=False), ValueError, "pre-norm"),
    (lambda: make_model(activation="gelu"), ValueError, "ReLU"),
    (lambda: make_model(norm="rms"), ValueError, "layer norms"),
    (lambda: make_model(width=24, num_heads=4, num_kv_heads=2), ValueError, "a key for each head"),
    (lambda: EncoderDecoder(7, 12, 6, 2, 8, 1), ValueError, f"{1 + len(date_data.DATE_LETTERS)} letters"),
])  # fmt: skip
def test_models_that_compute_something_else_are_refused(wrong, error, rule):
    made = wrong()
    with pytest.raises(error, match=rule):
        Translator(made)


def test_repr_and_models_left_alone(models):
    before = {name: parameter.clone() for name, parameter in models[1].named_parameters()}
    shown = Translator(models, text="2021年3月3日", gates=[0, 1] * 6, beam_size=2)
    assert repr(shown) == "Translator(text='2021年3月3日', num_heads=2, beam_size=2, off=6)"
    for attention in translator.ATTENTIONS:
        shown.attention = attention
        shown.numbers()
    for name, parameter in models[1].named_parameters():
        assert torch.equal(parameter, before[name])
        assert parameter.requires_grad
    with pytest.raises(ValueError, match="num_heads must be one of"):
        shown.model(3)


def test_exact_match_counts_right_answers(models):
    shown = Translator(models, gates=[0] * 12)
    model, dates = shown.model().double(), translator._held_out()
    with gated(model.float(), [0.0] * 12):
        counts = (dates.source != 0).sum(-1)
        rows = [row[None, :count] for row, count in zip(dates.source, counts, strict=True)]
        answers = [greedy_decode(model, row, **LIMITS)[0] for row in rows]
    pairs = zip(answers, dates.target, strict=True)
    right = sum(date_data.decode_target(a) == date_data.decode_target(b) for a, b in pairs)
    assert shown.exact_match() == right / 200
    # A model that is given a correct answer is correct exactly there.
    text = dates.texts[0]
    assert shown.dates["answers"][0] == date_data.decode_target(dates.target[0])
    assert shown.dates["texts"][0] == text


def seen_strip(host, kind):
    """The signs of a strip's cells, and of those that are read the number and the colours."""
    return host.locator(f".mha-strip{kind} .mha-cell").evaluate_all(
        """cells => cells.map((cell) => {
          const [sign, number] = [...cell.children].map((node) => node.textContent);
          const { backgroundColor, color } = getComputedStyle(cell);
          return [sign, number, backgroundColor, color];
        })"""
    )


SAID = {date_data.START: "the start is written", date_data.END: "the end is written"}


def channels(color):
    return [int(number) for number in re.findall(r"\d+", color)[:3]]


def assert_seen(host, widget):
    """Letters, colours, answer and probabilities as text and colour, not as hidden numbers."""
    # A colour that fades in is read when the fade has ended.
    host.evaluate("host => Promise.allSettled(host.getAnimations({ subtree: true }).map((a) => a.finished))")
    numbers = widget.numbers()
    step = min(widget.step, len(numbers["tokens"]) - 1)
    letters = seen_strip(host, ":not(.mha-answer)")
    assert "".join(cell[0] for cell in letters) == date_data.normalize_date(widget.text).replace(" ", "␣")
    answer = seen_strip(host, ".mha-answer")
    signs = ["▷", *(date_data.ISO_SYMBOLS[token] for token in numbers["tokens"])]
    assert [cell[0] for cell in answer] == [{"[start]": "▷", "[end]": "■"}.get(s, s) for s in signs]
    read, plain = (answer, letters) if widget.attention == "decoder" else (letters, answer)
    reading = numbers["reading"].tolist()
    for (_, number, background, ink), weight in zip(read, reading, strict=False):
        assert number == f"{weight:.2f}"
        expected = map_colors(weight, 1, is_signed=False).round()
        assert (torch.tensor(channels(background)) - expected).abs().max() <= 6
        assert contrast(channels(background), channels(ink)) >= 4.5
    others = [*read[len(reading) :], *plain]
    assert [cell[1] for cell in others] == [""] * len(others)
    bars = host.locator(".mha-bars li b").all_inner_texts()
    assert bars == [f"{p:.3f}" for p in numbers["probabilities"].tolist()]
    told = host.locator(".mha-told").inner_text()
    written = SAID.get(int(numbers["tokens"][step]), date_data.ISO_SYMBOLS[numbers["tokens"][step]])
    assert told.startswith(f"Step {step + 1} of {len(numbers['tokens'])}: ")
    assert written in told
    chances = host.locator(".mha-answers li").all_inner_texts()
    expected = [f"{p:.4f}" for p in numbers["log_probs"].exp().tolist()]
    assert [re.search(r"\d\.\d{4}$", text)[0] for text in chances] == expected
    assert widget.answer() in chances[0]


@pytest.mark.parametrize("over", ["http", "disk"])
def test_a_reader_types_dates_and_sees_what_torch_computes(show, models, over):
    shown_now = Translator(models[:2])
    host = show(shown_now, over=over)
    field = host.get_by_role("textbox", name="date")
    assert_seen(host, shown_now)
    texts = ("2021年3月3日", "miércoles 3 de marzo", "  WEDNESDAY,  3 March ２０２１", "среда, 3 марта 2021")
    for text in texts:
        field.fill(text)
        shown_now.text = text
        assert_seen(host, shown_now)
        assert_shows_numbers(host, shown_now, {"tokens", "log_probs", "probabilities", "reading"})
    # Letter by letter, every prefix has its answer.
    field.fill("")
    for end in range(1, 11):
        field.press_sequentially("3 May 2021"[end - 1])
        shown_now.text = "3 May 2021"[:end]
        assert_shows_numbers(host, shown_now, {"tokens", "log_probs"})
    host.get_by_role("button", name="miércoles 3 de marzo").click()
    shown_now.text = "miércoles 3 de marzo"
    assert_seen(host, shown_now)
    expect(field).to_have_value("miércoles 3 de marzo")


def test_what_cannot_be_read_gets_a_sentence_and_the_last_answer_stays(show, models):
    widget = Translator(models[:1], text="3 May 2021")
    host = show(widget)
    page = host.page
    field = host.get_by_role("textbox", name="date")
    remark, status = host.locator(".mha-remark"), host.locator("[role=status]")
    for text, sentence in (
        ("", "Type a date. Still shown: “3 May 2021”."),
        ("3 May 2021?", "The model cannot read a letter that it never saw: “?”. Still shown: “3 May 2021”."),
        ("3 May 2021" * 5, "50 letters are too many: the model reads at most 40. Still shown: “3 May 2021”."),
    ):
        field.fill(text)
        expect(remark).to_have_text(sentence)
        expect(status).to_have_text(sentence)
        expect(field).to_have_attribute("aria-invalid", "true")
        expect(host.locator("form > .mha-problem")).to_be_hidden()
        assert_seen(host, widget)
    field.blur()
    expect(field).to_have_value("3 May 2021")
    expect(remark).to_have_text(re.compile("23 languages"))
    assert page.evaluate("document.querySelectorAll('[aria-invalid=true]').length") == 0


def test_the_page_says_where_the_answer_is_none(show, models):
    """What is said about an answer is what Python can find out about the same answer."""
    widget = Translator(models[:2])
    host = show(widget)
    field = host.get_by_role("textbox", name="date")
    verdict = host.locator(".mha-verdict")
    for text in ("31 February 1850", "hello", "3 May 2021", "2021"):
        field.fill(text)
        widget.text = text
        expect(verdict).to_contain_text("The model always writes an answer, whatever it reads")
        answer = widget.answer()
        try:
            datetime.date.fromisoformat(answer)
        except ValueError:
            expect(verdict).to_contain_text(f"“{answer}” is no day of the calendar: ")
            expect(verdict).to_have_class(re.compile("mha-wrong"))


def test_steps_by_button_by_character_and_by_key(show, models):
    widget = Translator(models[:2], step=0, attention="decoder")
    host = show(widget)
    last = len(widget.numbers()["tokens"]) - 1
    back, forth = (host.get_by_role("button", name=name) for name in ("Back", "Next"))
    expect(back).to_have_attribute("aria-disabled", "true")
    for step in range(last + 1):
        widget.step = step
        assert_seen(host, widget)
        current = host.locator(".mha-answer [aria-current=step]")
        expect(current).to_have_count(1)
        expect(current).to_have_attribute("aria-label", re.compile(f"^Step {step + 1}: "))
        expect(host.locator(".mha-answer .mha-later")).to_have_count(last - step)
        forth.press("Enter")
    expect(forth).to_have_attribute("aria-disabled", "true")
    back.click()
    widget.step = last - 1
    assert_seen(host, widget)
    host.locator(".mha-answer button").nth(2).click()
    widget.step = 2
    assert_seen(host, widget)
    expect(host.locator("[role=status]")).to_contain_text("Step 3: ")


def test_play_walks_through_the_answer_pauses_and_stops_where_the_reader_takes_over(reader, tmp_path, models):
    widget = Translator(models[:2], step=2)
    tab = reader()
    tab.page.clock.install()
    page = tab.open(write_page(tmp_path, [widget]), 1)
    host = tab.host()
    count = len(widget.numbers()["tokens"])
    told = host.locator(".mha-told")
    host.get_by_role("button", name="Play").click()
    page.clock.run_for(950)
    expect(told).to_contain_text("Step 4 of")
    page.clock.run_for(900)
    expect(told).to_contain_text("Step 5 of")
    host.get_by_role("button", name="Pause").click()
    page.clock.run_for(5000)
    expect(told).to_contain_text("Step 5 of")
    host.get_by_role("button", name="Play").click()
    page.clock.run_for(900 * count)
    expect(told).to_contain_text(f"Step {count} of {count}")
    play = host.get_by_role("button", name="Play")
    expect(play).to_be_visible()
    play.click()  # from the end, it starts again
    expect(told).to_contain_text("Step 1 of")
    host.get_by_role("textbox", name="date").fill("4 May 2021")
    expect(play).to_be_visible()
    page.clock.run_for(5000)
    expect(told).to_contain_text("Step 1 of")


def test_a_click_on_a_small_map_chooses_it_and_letters_choose_their_row(show, models):
    widget = Translator(models[:2], text="3 May 2021")
    host = show(widget)
    for attention, layer, head in (("encoder", 1, 0), ("decoder", 0, 1), ("cross", 1, 1)):
        name = f"{attention.capitalize()}, layer {layer}, head {head}"
        host.get_by_role("radio", name=name, exact=True).check()
        widget.attention, widget.layer, widget.head = attention, layer, head
        expect(host.locator(".mha-chosen-map .mha-title")).to_contain_text(name)
        assert_seen(host, widget)
        assert_shows_numbers(host, widget)
    host.get_by_role("radio", name="Encoder, layer 0, head 1", exact=True).check()
    widget.attention, widget.layer, widget.head, widget.letter = "encoder", 0, 1, 4
    host.locator(".mha-strip:not(.mha-answer) .mha-cell").nth(4).click()
    assert_seen(host, widget)
    slider = host.locator("label", has_text="letter").locator("input[type=range]")
    expect(slider).to_have_value("4")
    slider.press("ArrowRight")
    widget.letter = 5
    assert_seen(host, widget)
    assert_shows_numbers(host, widget)


def test_small_maps_show_their_weights(show, models):
    widget = Translator(models[:2], text="3 May 2021")
    host = show(widget)
    pictures = host.locator(".mha-choose canvas").all()
    places = itertools.product(translator.ATTENTIONS, range(2), range(2))
    for picture, (attention, layer, head) in zip(pictures, places, strict=True):
        widget.attention, widget.layer, widget.head = attention, layer, head
        weights = widget.numbers()["weights"]
        pixels = map_pixels(picture)
        assert pixels.shape[:2] == weights.shape
        assert (pixels[..., 3] == 255).all()
        assert (pixels[..., :3] - map_colors(weights, 1, is_signed=False)).abs().max() < 7


def test_heads_are_switched_off_and_the_answer_changes_at_once(show, models):
    widget = Translator(models[:2], text="3 May 2021")
    host = show(widget)
    answers = {widget.answer()}
    for index in (2, 9, 5, 0, 2):
        boxes = host.locator(".mha-gate input")
        boxes.nth(index).press("Space")
        gates = list(widget.gates)
        gates[index] = 1 - gates[index]
        widget.gates = gates
        assert boxes.evaluate_all("all => all.map((box) => Number(box.checked))") == gates
        assert_seen(host, widget)
        assert_shows_numbers(host, widget)
        answers.add(widget.answer())
    assert len(answers) > 1
    assert run_copied_code(host)["tokens"].tolist() == widget.numbers()["tokens"].tolist()
    host.get_by_role("button", name="All heads on").click()
    widget.gates = [1] * 12
    assert_seen(host, widget)


def test_right_answers_are_counted_in_the_page(show):
    """A model that always writes the same date is right where that is the date."""
    widget = Translator(make_model(2, width=24, seed=7))
    wanted = widget.dates["answers"][11]
    change = lambda states: states[0]["dates"]["answers"].__setitem__(11, wrote)  # noqa: E731
    widget.text = widget.dates["texts"][11]
    wrote = widget.answer()
    assert wrote != wanted
    host = show(widget, alter=change)
    host.get_by_label("Count the right answers").check()
    result = host.locator(".mha-result")
    right = round(200 * widget.exact_match()) + 1
    expect(result).to_have_text(f"{right} of 200 right ({right / 200:.3f}) with 2 heads in each layer.")
    mistakes = host.locator(".mha-mistakes li")
    expect(mistakes).to_have_count(4)
    expect(mistakes.first).to_contain_text(f"wanted {widget.dates['answers'][0]}")
    host.locator(".mha-gate input").nth(11).uncheck()
    widget.gates = [1.0] * 11 + [0.0]
    expect(result).to_contain_text(re.compile(r"of 200 right .* 1 switched off\.$"))
    host.get_by_label("Count the right answers").uncheck()
    expect(result).to_be_hidden()


def test_the_copied_program_of_the_count_counts(show, models, capsys):
    widget = Translator(models[:2], count_right=True, gates=[1, 0] * 6)
    host = show(widget)
    assert sum(run_copied_code(host)["right"]) == round(200 * widget.exact_match())
    assert "of 200 held-out dates are right" in capsys.readouterr().out


# Further models


def put_files(folder, names=None):
    for name, text in translator.model_files().items():
        if names is None or name in names:
            (folder / "_static" / name).write_text(text, encoding="utf-8")


@pytest.mark.parametrize("over", ["http", "disk"])
def test_further_models_load_from_files_when_the_slider_needs_them(reader, tmp_path, stored_models, over):
    assert sorted(stored_models) == [1, 2, 4, 8]
    widgets = [Translator(), Translator()]
    assert [list(widget.models) for widget in widgets] == [["2"], ["2"]]
    tab = reader(over)
    path = write_page(tmp_path, widgets)
    put_files(tmp_path)
    page = tab.open(path, 2)
    host, widget = tab.host(), widgets[0]
    assert not any("translator-" in url for url in tab.requests)
    assert_seen(host, widget)
    heads = host.locator("label", has_text="num_heads").locator("input[type=range]")
    for key, count in (("ArrowRight", 4), ("ArrowRight", 8), ("Home", 1), ("ArrowRight", 2)):
        heads.press(key)
        widget.num_heads = count
        expect(host.locator(".mha-gate")).to_have_count(6 * count)
        expect(host.locator(".mha-notice")).to_be_hidden()
        assert_seen(host, widget)
        assert_shows_numbers(host, widget)
    loaded = [url.rsplit("/", 1)[1] for url in tab.requests if "translator-" in url]
    assert sorted(loaded) == sorted(name for name in translator.model_files() if "translator-2-" not in name)
    assert_seen(tab.host(1), widgets[1])
    assert page.evaluate("document.querySelectorAll('script[src*=translator-]').length") == 0


@pytest.mark.parametrize("over", ["http", "disk"])
def test_a_model_that_cannot_be_loaded_gives_a_sentence_and_another_try(
    reader, tmp_path, stored_models, over
):
    assert 4 in stored_models
    widget = Translator()
    tab = reader(over)
    tab.open(write_page(tmp_path, [widget]), 1)
    host = tab.host()
    heads = host.locator("label", has_text="num_heads").locator("input[type=range]")
    heads.press("ArrowRight")
    notice, results = host.locator(".mha-notice"), host.locator(".mha-results")
    expect(notice).to_contain_text("The model with 4 heads could not be loaded: the file translator-4-")
    expect(host.locator("[role=status]")).to_contain_text("could not be loaded")
    expect(results).to_be_hidden()
    # The other models still work.
    heads.press("ArrowLeft")
    expect(notice).to_be_hidden()
    assert_seen(host, widget)
    heads.press("ArrowRight")
    expect(notice).to_be_visible()
    # A truncated file delivers no model.
    for name, text in translator.model_files().items():
        (tmp_path / "_static" / name).write_text(text[: len(text) // 2], encoding="utf-8")
    host.get_by_role("button", name="Try again").click()
    expect(notice).to_contain_text(re.compile(r"the file translator-4-\S+ is damaged"))
    put_files(tmp_path)
    host.get_by_role("button", name="Try again").click()
    widget.num_heads = 4
    expect(results).to_be_visible()
    assert_seen(host, widget)
    # The console may say that a file is missing or truncated, but nothing else.
    noted = ("ERR_FILE_NOT_FOUND", "404", "Invalid or unexpected token", "Unexpected end of input")
    assert all(any(text in error for text in noted) for error in tab.errors), tab.errors
    tab.errors.clear()


def test_with_a_kernel_python_sends_further_models(browser, serve, tmp_path, stored_models):
    assert 8 in stored_models
    page = browser.new_page()
    path = write_page(tmp_path, [Translator()])
    page.goto(f"{serve(tmp_path)}/chapters/{path.name}")
    widget = Translator(text="3 May 2021")
    hand = ByHand(page, widget)
    heads = hand.host.locator("label", has_text="num_heads").locator("input[type=range]")
    heads.press("End")
    notice = hand.host.locator(".mha-notice")
    expect(notice).to_have_text(re.compile("Waiting for the model with 8 heads, which Python sends"))
    for changes in hand.saved():
        widget.set_state(changes)
    assert (widget.num_heads, list(widget.models)) == (8, ["8"])
    hand.set(models=widget.models)
    expect(notice).to_be_hidden()
    assert_seen(hand.host, widget)
    # The page keeps its previous model.
    heads.press("ArrowLeft")
    heads.press("ArrowLeft")
    widget.num_heads = 2
    expect(notice).to_be_hidden()
    assert_seen(hand.host, widget)
    hand.clean_up()
    page.close()


def test_the_program_of_a_trained_model_loads_it(show, stored_models):
    assert 2 in stored_models
    widget = Translator(text="3 May 2021")
    host = show(widget)
    torch.testing.assert_close(run_copied_code(host)["weights"], widget.numbers()["weights"])
    # The program holds functions, not the numbers of the model.
    assert len(host.locator(".mha-python pre").inner_text()) < 3100


def test_the_build_puts_the_files_where_pages_ask_for_them(tmp_path, stored_models, caplog):
    assert 2 in stored_models
    spec = importlib.util.spec_from_file_location("models", ROOT / "_ext" / "widget_files.py")
    extension = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(extension)
    static = tmp_path / "_static"
    static.mkdir()
    (static / "translator-2-000000000000.js").write_text("old")
    app = SimpleNamespace(outdir=tmp_path)
    extension.write_files(app)
    assert list(static.iterdir()) == []
    write_page(tmp_path, [Translator()])
    extension.write_files(app)
    names = {path.name for path in static.glob("translator-*.js")}
    assert names == set(translator.model_files())
    assert (static / min(names)).read_text(encoding="utf-8") == translator.model_files()[min(names)]
    page = tmp_path / "chapters" / "page.html"
    text = page.read_text(encoding="utf-8").replace(min(names)[:14], "translator-1-f")
    page.write_text(text, encoding="utf-8")
    warned = []
    extension.logger = SimpleNamespace(warning=lambda *given: warned.append(given))
    extension.write_files(app)
    assert len(warned) == 1
    assert "make notebooks" in warned[0][0]


def test_the_compact_one_has_the_field_the_strips_and_the_steps(show, models):
    host = show(Translator(models[:2], compact=True))
    for part in (".mha-date", ".mha-strip", ".mha-player", ".mha-verdict", ".mha-caption"):
        expect(host.locator(part).first).to_be_visible()
    for part in (".mha-head-gallery", ".mha-chosen-map", ".mha-count", ".mha-answers", ".mha-bars"):
        expect(host.locator(part)).to_be_hidden()
    assert host.bounding_box()["height"] < 560


@pytest.mark.parametrize("theme", ["light", "dark"])
@pytest.mark.parametrize("attention", translator.ATTENTIONS)
def test_eight_heads_and_forty_letters_fit_a_phone(show, models, theme, attention):
    text = "wednesday, the 30th of September 1999 ad"
    widget = Translator(models[3], text=text, attention=attention, beam_size=5)
    host = show(widget, width=360, theme=theme)
    assert too_wide(host.page) == []
    assert_seen(host, widget)
    small = host.locator(":is(.mha-answer button, .mha-choose, .mha-gate, .mha-buttons button)").evaluate_all(
        """nodes => nodes.map((node) => node.getBoundingClientRect())
          .filter(({ width, height }) => width < 21 || height < 24).length"""
    )
    assert small == 0


def test_what_is_read_is_said(show, models):
    widget = Translator(models[:2], text="3 May 2021", step=1)
    host = show(widget)
    weights = shown(host, "reading")
    best = int(weights.argmax())
    letter = {" ": "space"}.get("3 may 2021"[best], f"“{'3 may 2021'[best]}”")
    symbol = date_data.ISO_SYMBOLS[int(widget.numbers()["tokens"][1])]
    caption = host.locator(".mha-caption")
    written = "the end" if symbol == "[end]" else f"“{symbol}”"
    expect(caption).to_contain_text(f"To write {written}, head 0 of layer 1")
    expect(caption).to_contain_text(f"reads most: {letter} {weights[best]:.2f}, ")
    host.get_by_role("button", name="Next").click()
    expect(host.locator("[role=status]")).to_contain_text("reads most: ")


def test_the_large_map_has_the_labels_colours_and_numbers_of_its_letters(show, models):
    widget = Translator(models[:2], text="3 May 21", attention="encoder", layer=1, head=1)
    host = show(widget)
    chosen = host.locator(".mha-chosen-map")
    weights = widget.numbers()["weights"]
    letters = list(date_data.normalize_date(widget.text).replace(" ", "␣"))
    assert chosen.get_by_role("rowheader").all_inner_texts() == letters
    assert chosen.get_by_role("columnheader").all_inner_texts()[1:] == letters
    ground = "cells => cells.map((cell) => getComputedStyle(cell).backgroundColor)"
    colors = chosen.get_by_role("gridcell").evaluate_all(ground)
    found = torch.tensor([channels(color) for color in colors]).view(*weights.shape, 3)
    assert (found - map_colors(weights, 1, is_signed=False)).abs().max() < 7
    row, column = 6, 3
    chosen.get_by_role("gridcell").nth(row * weights.shape[1] + column).hover()
    expect(chosen.locator(".mha-readout")).to_contain_text(f"{weights[row, column]:.4f}")
    told = f"{letters[row]} ({row + 1}) reads {letters[column]} ({column + 1})"
    expect(chosen.locator(".mha-readout")).to_contain_text(told)
