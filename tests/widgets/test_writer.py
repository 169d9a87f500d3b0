"""The writer: its GPT against torch, and what a reader types and does in a browser."""

import gzip
import json

import pytest
import torch
from playwright.sync_api import expect
from widget_page import assert_shows_numbers, in_browser
from widget_samples import writer as sample

from mha_course.widgets import Writer
from mha_course.widgets.writer import pack_writer, unpack_writer
from mha_lib import GPT2, capture_attention, gate_heads

MATH = "writer/writer_math.js"
ALPHABET = "\n !,.abcdefghijklmnopqrstuvwxyzéß—🙂"


def make_model(width=24, heads=3, layers=2, *, vocab=35, max_len=11, sharp=0.35, seed=0, **options):
    """A model that has learned nothing, but answers different texts differently."""
    torch.manual_seed(seed)
    given = {"activation": "relu", "tied": False} | options
    model = GPT2(vocab, width, heads, 4 * width, layers, max_len=max_len, **given)
    for parameter in model.parameters():
        torch.nn.init.normal_(parameter, std=sharp)
    return model.eval()


STEPS = """
const model = unpackWriter(stored);
let reading = null;
return texts.map((tokens) => {
  reading = readText(model, gates, tokens, reading);
  return { logits: reading.logits.at(-1), maps: readingMaps(reading) };
});
"""


@pytest.mark.parametrize("tied", [True, False])
def test_every_step_is_that_of_torch_whatever_was_read_before(math_page, tied):
    """With the cache, past the last position, back again, and with another beginning."""
    model = make_model(tied=tied)
    packed = pack_writer(model)
    rounded = unpack_writer(packed)
    torch.manual_seed(1)
    text = torch.randint(35, (17,)).tolist()
    texts = [text[:n] for n in (3, *range(4, 18), 9, 6, 7)] + [[*text[:5], 1, 2], [5, *text[1:9]], text[:9]]
    gates = torch.tensor([[1.0, 0.0, 1.0], [1.0, 1.0, 0.0]])
    for precision, tolerance in ((torch.float32, 1e-5), (torch.float64, 1e-11)):
        torch_model = rounded.to(precision)
        for rows in (torch.ones(2, 3), gates):
            found = in_browser(math_page, STEPS, stored=packed, texts=texts, gates=rows.tolist())
            for tokens, answer in zip(texts, found, strict=True):
                seen = torch.tensor([tokens[-model.max_len :]])
                first, second = (block.self_attention for block in torch_model.encoder.blocks)
                off = gate_heads(first, rows[0]), gate_heads(second, rows[1])
                with off[0], off[1], capture_attention(torch_model) as captured, torch.no_grad():
                    logits = torch_model(seen)[1][0, -1]
                close = {"atol": tolerance * max(1.0, logits.abs().max().item()), "rtol": 0.0}
                torch.testing.assert_close(torch.tensor(answer["logits"], dtype=precision), logits, **close)
                maps = torch.cat([captured[f"encoder.blocks.{i}.self_attention"] for i in range(2)])
                torch.testing.assert_close(torch.tensor(answer["maps"], dtype=precision), maps, **close)


def test_what_a_reading_has_in_common_with_the_last_is_not_computed_again(math_page):
    run = """
    const model = unpackWriter(stored);
    const reading = readText(model, gates, [1, 2, 3, 4]);
    const kept = reading.blocks[1].keys[0].slice(0, 3);
    readText(model, gates, [1, 2, 3, 7, 8], reading);
    return kept.map((row, index) => row === reading.blocks[1].keys[0][index]);
    """
    stored = pack_writer(make_model())
    assert in_browser(math_page, run, stored=stored, gates=[[1, 1, 1]] * 2) == [True] * 3


@pytest.mark.parametrize(("temperature", "top_k"), [(1.0, 30), (0.3, 5), (2.0, 1), (1.3, 2)])
def test_characters_are_drawn_as_often_as_the_bars_say(math_page, temperature, top_k):
    torch.manual_seed(0)
    logits = (2 * torch.randn(30)).double()
    run = """
    const chances = nextChances(Float64Array.from(logits), temperature, topK);
    const counts = new Array(30).fill(0);
    for (let place = 0; place < 200; place++)
      for (let seed = 0; seed < 100; seed++) counts[drawToken(chances, numberAt(seed, place))] += 1 / 20000;
    return [chances, counts];
    """
    chances, counts = in_browser(math_page, run, logits=logits.tolist(), temperature=temperature, topK=top_k)
    kept = logits.topk(top_k)
    wanted = torch.zeros(30).double().scatter(0, kept.indices, (kept.values / temperature).softmax(0))
    found = torch.zeros(30).double()
    for entry in chances:
        found[entry["token"]] = entry["probability"]
    torch.testing.assert_close(found, wanted, atol=1e-12, rtol=0)
    order = [entry["probability"] for entry in chances]
    assert order == sorted(order, reverse=True)
    assert (torch.tensor(counts).double() - wanted).abs().max() < 0.02
    assert sum(count > 0 for count in counts) <= top_k


@pytest.mark.parametrize(("text", "sentence"), [
    ("", "Type at least one character: the model continues what is there."),
    ("aB", "The model cannot read a character that it has never seen: “B”."),
    ("ABCDEFG", "characters that it has never seen: “A”, “B”, “C”, “D”, “E” and others."),
    ("a" * 10_000, "10,000 characters are too many: a prompt has at most 1,000."),
])  # fmt: skip
def test_what_cannot_be_continued_is_refused_with_a_sentence_and_nothing_is_lost(show, text, sentence):
    widget = Writer(make_model(), ALPHABET, prompt="the cat", written=" sat")
    host = show(widget)
    field, body = host.get_by_label("prompt"), host.locator(".mha-text-box")
    expect(body).to_have_text("the cat sat")
    field.fill(text)
    expect(host.locator(".mha-remark")).to_contain_text(sentence)
    expect(field).to_have_attribute("aria-invalid", "true")
    expect(body).to_have_text("the cat sat")
    field.blur()
    expect(field).to_have_value("the cat")
    expect(field).to_have_attribute("aria-invalid", "false")
    with pytest.raises(ValueError, match="prompt must have"):
        widget.prompt = text


def written(host):
    return host.locator(".mha-text-box").text_content()


def test_a_reader_writes_takes_back_and_writes_the_same_again(show):
    widget = Writer(make_model(), ALPHABET, prompt="a 🙂")
    host = show(widget)
    press = lambda name: host.get_by_role("button", name=name).click()  # noqa: E731
    texts = [written(host)]
    for _ in range(12):
        press("Next character")
        texts.append(written(host))
    assert [len(text) for text in texts] == list(range(3, 16))
    assert len(set(texts[-1])) > 3
    widget.written = texts[-1][3:]
    assert_shows_numbers(host, widget, {"probabilities", "drawn", "number"})
    for text in texts[-2:-5:-1]:
        press("Undo")
        assert written(host) == text
    for text in texts[-3:]:
        press("Next character")
        assert written(host) == text
    press("Back to the prompt")
    assert written(host) == "a 🙂"
    expect(host.get_by_role("button", name="Undo")).to_have_attribute("aria-disabled", "true")
    # Torch draws the same text from the same distribution.
    widget.written = ""
    for _ in range(12):
        widget.written += ALPHABET[int(widget.numbers()["drawn"])]
    assert widget.prompt + widget.written == texts[-1]


def test_it_runs_until_it_is_stopped_or_the_prompt_changes(show):
    host = show(Writer(make_model(), ALPHABET, prompt="run"))
    run, stop = (host.get_by_role("button", name=name) for name in ("Run", "Stop"))
    expect(stop).to_have_attribute("aria-disabled", "true")
    run.click()
    host.page.wait_for_timeout(700)
    stop.click()
    stopped = written(host)
    assert len(stopped) > 4
    host.page.wait_for_timeout(300)
    assert written(host) == stopped
    run.click()
    host.get_by_label("prompt").fill("new")
    expect(host.locator(".mha-text-box")).to_have_text("new")
    host.page.wait_for_timeout(300)
    assert written(host) == "new"
    expect(stop).to_have_attribute("aria-disabled", "true")


def test_no_more_than_500_characters_are_written(show):
    host = show(Writer(make_model(), ALPHABET, prompt="a", written="b" * 499))
    host.get_by_role("button", name="Run").click()
    expect(host.locator(".mha-told")).to_contain_text("500 characters written, which is the most.")
    expect(host.get_by_role("button", name="Run")).to_have_attribute("aria-disabled", "true")
    host.get_by_role("button", name="Next character").dispatch_event("click")
    assert len(written(host)) == 501


def test_the_caption_says_what_a_head_reads_most_and_how_far_back(show):
    model, text = make_model(), "hijkl"
    places = [(layer, head) for layer in range(2) for head in range(3)]
    widgets = [Writer(model, ALPHABET, prompt=text, layer=layer, head=head) for layer, head in places]
    for widget, host, (layer, head) in zip(widgets, show(*widgets), places, strict=True):
        most = widget.numbers()["weights"][-1].topk(3)
        where = [*(f"{back} before the last" for back in (4, 3, 2, 1)), "the last"]
        read = [
            f"“{text[index]}” ({where[index]}) {weight:.2f}"
            for weight, index in zip(most.values.tolist(), most.indices.tolist(), strict=True)
        ]
        told = f"head {head} of layer {layer} reads most: {', '.join(read)}"
        expect(host.locator(".mha-caption")).to_have_text(told)


def test_a_head_that_is_switched_off_changes_what_comes_next(show):
    widget = sample()
    host = show(widget)
    host.get_by_label("Attention, layer 0, head 1 is on").uncheck()
    widget.gates = [1, 0, *[1] * 6]
    changed = (widget.numbers()["probabilities"] - sample().numbers()["probabilities"]).abs().max()
    assert changed > 1e-3
    assert_shows_numbers(host, widget, {"probabilities", "weights"})


def test_a_model_of_a_hundred_thousand_parameters_is_light():
    model = make_model(64, 4, vocab=97, max_len=64)
    writer = Writer(model, "".join(map(chr, range(32, 129))))
    assert 1e5 < sum(p.numel() for p in model.parameters()) < 1.3e5
    assert len(gzip.compress(json.dumps(writer.packed).encode())) < 140_000
    assert writer.prompt == "A"


@pytest.mark.parametrize(("change", "error", "message"), [
    ({"activation": "gelu_tanh"}, ValueError, "model must have ReLU and the parts of a GPT2"),
    ({"heads": 12}, ValueError, "at most 8 heads, 4 layers and 256 positions"),
    ({"layers": 5}, ValueError, "at most 8 heads, 4 layers and 256 positions"),
    ({"max_len": 257}, ValueError, "at most 8 heads, 4 layers and 256 positions"),
    ({"dtype": torch.float64}, TypeError, "model must have float32 parameters"),
    ({"layer_norm_eps": 0.1}, ValueError, "model must have ReLU and the parts of a GPT2"),
])  # fmt: skip
def test_a_model_that_computes_something_else_is_refused(change, error, message):
    with pytest.raises(error, match=message):
        Writer(make_model(**change), ALPHABET)


@pytest.mark.parametrize("alphabet", ["", ALPHABET[1:], "a" + ALPHABET[1:], [*ALPHABET[1:], "ab"]])
def test_an_alphabet_that_does_not_fit_is_refused(alphabet):
    with pytest.raises(ValueError, match="alphabet must hold a different character for each of 35 tokens"):
        Writer(make_model(), alphabet)
    with pytest.raises(TypeError, match="alphabet must be a Sequence"):
        Writer(make_model(), None)
    with pytest.raises(TypeError, match="model must be a GPT2"):
        Writer(torch.nn.Linear(2, 2), ALPHABET)
