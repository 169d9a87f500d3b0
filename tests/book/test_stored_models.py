"""What a built page shows of a trained model is what torch computes from the numbers stored in that page.

The Python side of the widgets takes no part: the numbers are unpacked here, and torch's own functions
compute. What is compared is seen: the colours of maps, texts, the lengths of bars and the heights of lines.
"""

import base64
import json
import re
import time

import pytest
import torch
from playwright.sync_api import expect
from seen import CELLS, assert_colors, map_pixels, shares_of_bars
from torch.nn.functional import linear, scaled_dot_product_attention, softmax

from mha_course.data.dates import encode_source
from mha_lib.inspection import capture_attention
from mha_lib.models.generation import greedy_decode
from mha_lib.models.seq2seq import EncoderDecoder

STATE = 'script[type="application/vnd.jupyter.widget-state+json"]'


@pytest.fixture(scope="module")
def opened(browser, book):
    """A function that opens a page and finds a widget: (its place, what the page stores of it)."""
    page = browser.new_page(viewport={"width": 1280, "height": 900})

    def find(page_name, name, index=0):
        page.goto(f"{book.as_uri()}/{page_name}.html")
        models = json.loads(page.locator(STATE).text_content())["state"].values()
        states = [model["state"] for model in models]
        stored = [state for state in states if str(state.get("_anywidget_id", "")).endswith(f".{name}")]
        css = re.sub(r"(?<!^)(?=[A-Z])", "-", name).lower()
        host = page.locator(f".mha-{css}").nth(index)
        host.scroll_into_view_if_needed()
        # An element that has not been painted yet shows the reader no text.
        expect(host).to_have_text(re.compile(r"\S"), use_inner_text=True)
        return host, stored[index]

    yield find
    page.close()


def unpacked(text, *shape, dtype=torch.float32):
    """Numbers from base64, floats in double precision."""
    numbers = torch.frombuffer(bytearray(base64.b64decode(text)), dtype=dtype)
    return (numbers.double() if dtype.is_floating_point else numbers).view(*shape)


def eventually(assertion, seconds=60):
    """Try until it holds: a page may draw some time after a reader did something."""
    end = time.monotonic() + seconds
    while True:
        try:
            return assertion()
        except AssertionError:
            if time.monotonic() > end:
                raise
            time.sleep(0.05)


def assert_drawn_line(path, numbers):
    """A path has a short line at the height of each number."""
    marks = re.findall(r"M\d+ (-?[\d.]+)h1", path.get_attribute("d"))
    line = -torch.tensor([float(mark) for mark in marks], dtype=torch.float64)
    torch.testing.assert_close(line, numbers, atol=1e-3, rtol=0)


def of_heads(x, num_heads):
    return x.unflatten(-1, (num_heads, -1)).transpose(-3, -2)


def weights_of(query, key, num_heads):
    """Attention weights: torch's attention applied to the columns of the identity."""
    query, key = of_heads(query, num_heads), of_heads(key, num_heads)
    identity = torch.eye(key.shape[-2], dtype=key.dtype).expand(*key.shape[:-1], -1)
    return scaled_dot_product_attention(query, key, identity)


def merged(query, key, value, num_heads, gates=1.0):
    """The outputs of all heads side by side, each times its gate."""
    outputs = scaled_dot_product_attention(*(of_heads(x, num_heads) for x in (query, key, value)))
    gates = torch.as_tensor(gates, dtype=outputs.dtype).view(-1, 1, 1)
    return (outputs * gates).transpose(-3, -2).flatten(-2)


def tokens_of(words, text):
    return torch.tensor([words.index(word) for word in text.split()])


@pytest.mark.parametrize(("page_name", "counts"), [
    ("index", [1, 2, 4, 8]),
    ("chapters/03_multi_head_attention", [1, 2, 4, 8]),
    ("chapters/04_self_attention", [4]),
])  # fmt: skip
def test_the_maps_and_answers_of_the_head_explorer(opened, page_name, counts):
    host, state = opened(page_name, "HeadExplorer")
    [example] = [e for e in state["examples"] if e["label"] == state["example"]]
    slider = host.get_by_role("slider", name="num_heads")
    slider.press("Home")
    for num_heads in counts:
        while len(counts) == 1 and not slider.get_attribute("aria-valuetext").startswith(f"{num_heads} head"):
            slider.press("ArrowRight")
        expect(slider).to_have_attribute("aria-valuetext", re.compile(rf"^{num_heads} head"))
        [version] = [v for v in example["versions"] if num_heads in v["num_heads"]]
        length = len(example["tokens"])
        query, key, value = (unpacked(version[name], length, -1) for name in ("query", "key", "value"))
        weights = weights_of(query, key, num_heads)
        labels = host.locator(".mha-maps label")
        expect(labels).to_have_count(num_heads)
        largest = float(host.locator(".mha-bar-ends span").last.inner_text())
        assert largest == pytest.approx(weights.max().item(), abs=0.00501)
        heads = [int(text) for text in labels.all_inner_texts()]
        assert sorted(heads) == list(range(num_heads))
        for label, head in zip(labels.all(), heads, strict=True):
            assert_colors(map_pixels(label.locator("canvas")), weights[head], largest, is_signed=False)
        if "task" in example:
            classes = len(example["task"]["words"])
            read_out = unpacked(version["read_out"], -1, example["embed_dim"])
            bias = unpacked(version["read_out_bias"], -1)
            logits = linear(merged(query, key, value, num_heads), read_out, bias)
            answers = logits.unflatten(-1, (-1, classes)).argmax(-1)
            rows = host.get_by_role("table").get_by_role("row").all()[1:]
            for row, column in zip(rows, answers.T.tolist(), strict=True):
                shown = [re.compile(rf"^{answer}\b") for answer in column]
                expect(row.locator("td")).to_have_text(shown, use_inner_text=True)
        slider.press("ArrowRight")


def test_the_ablation_lab_without_each_head(opened):
    host, state = opened("chapters/08_what_heads_learn", "AblationLab")
    batch, [model] = state["batch"], [m for m in state["models"] if m["num_heads"] == state["num_heads"]]
    shape, width = (batch["samples"], batch["length"]), model["embed_dim"]
    tokens = unpacked(batch["tokens"], *shape, dtype=torch.uint8).long()
    targets = unpacked(batch["targets"], *shape, -1, dtype=torch.uint8).long()
    packed = model["weights"]
    weights = {name: unpacked(packed[name], -1, width) for name in packed if not name.endswith("bias")}
    x = weights["embedding"][tokens] + weights["positions"][: shape[1]]
    query, key, value = (linear(x, weights[f"{name}_proj.weight"]) for name in "qkv")
    maps = weights_of(query, key, model["num_heads"])
    canvases = host.locator(".mha-heads canvas:visible").all()
    for canvas, expected in zip(canvases, maps[state["sample"]], strict=True):
        assert_colors(map_pixels(canvas), expected, 1, is_signed=False)
    switches = host.locator(".mha-switch input")
    for off in (None, *range(model["num_heads"])):
        gates = [float(head != off) for head in range(model["num_heads"])]
        if off is not None:
            switches.nth(off).press("Space")
        output = linear(merged(query, key, value, model["num_heads"], gates), weights["out_proj.weight"])
        logits = linear(output, weights["read_out.weight"], unpacked(packed["read_out.bias"], -1))
        right = logits.unflatten(-1, (len(batch["tasks"]), -1)).argmax(-1) == targets
        accuracy = [*right.double().mean((0, 1)).tolist(), right.all(-1).double().mean().item()]
        rows = host.locator(".mha-bars li")
        written = [f"{share:.3f}" for share in accuracy]
        expect(rows.locator("b")).to_have_text(written, use_inner_text=True)
        assert shares_of_bars(rows) == pytest.approx(accuracy, abs=0.01)
        if off is not None:
            switches.nth(off).press("Space")


def test_the_sum_and_the_answers_where_heads_meet(opened):
    host, state = opened("chapters/03_multi_head_attention", "HeadsMeet")
    model, num_heads = state["model"], state["model"]["num_heads"]
    packed, width = model["weights"], model["embed_dim"]
    weights = {name: unpacked(packed[name], -1, width) for name in packed if not name.endswith("bias")}
    bias = unpacked(packed["read_out.bias"], -1)
    switches = host.locator("input[type=checkbox]")
    for index, sentence in enumerate(state["sentences"]):
        host.get_by_role("combobox", name="sentence").select_option(index=index)
        tokens = tokens_of(model["words"], sentence)
        x = weights["embedding"][tokens] + weights["positions"][: len(tokens)]
        query, key, value = (linear(x, weights[f"{name}_proj.weight"]) for name in "qkv")
        place = sentence.split().index(model["blank"])
        for off in (None, index):
            if off is not None:
                switches.nth(off).press("Space")
            gates = [float(head != off) for head in range(num_heads)]
            output = linear(merged(query, key, value, num_heads, gates)[place], weights["out_proj.weight"])
            eventually(lambda output=output: assert_drawn_line(host.locator(".mha-meet-sum"), output))
            logits = linear(output, weights["read_out.weight"], bias).view(len(model["tasks"]), -1)
            answers = [model["words"][token] for token in logits.argmax(-1).tolist()]
            expect(host.locator(".mha-meet-answers strong")).to_have_text(answers, use_inner_text=True)
        switches.nth(index).press("Space")


def test_the_trained_vectors_of_the_attention_stepper(opened):
    host, state = opened("chapters/04_self_attention", "AttentionStepper")
    model, num_heads = state["trained"], state["trained"]["num_heads"]
    weights = {name: unpacked(text, -1, model["embed_dim"]) for name, text in model["weights"].items()}
    host.get_by_role("radio", name="trained").check()
    sentence = state["beginnings"]["trained"]
    tokens = tokens_of(model["words"], sentence)
    x = weights["embedding"][tokens] + weights["positions"][: len(tokens)]
    query, key = (linear(x, weights[name]) for name in ("query", "key"))
    expected = weights_of(query, key, num_heads)
    host.get_by_role("button", name="Step 4").click()
    for head in range(num_heads):
        host.locator(".mha-head-choice label").nth(head).click()
        cells = host.locator(".mha-pane:visible .mha-map [role=gridcell]")
        grounds = [ground for ground, _ in cells.evaluate_all(CELLS)]
        assert_colors(grounds, expected[head].flatten(), 1, is_signed=False)


@pytest.mark.parametrize("page_name", ["index", "chapters/06_transformer"])
def test_the_date_and_what_it_reads_of_the_translator(opened, page_name):
    host, state = opened(page_name, "Translator")
    stored, task = state["models"][str(state["num_heads"])], state["task"]
    floats = unpacked(stored["float32"], -1)
    whole = unpacked(stored["int8"], -1, dtype=torch.int8)
    numbers = {}
    for name, *shape in stored["shapes"]:
        own, floats = floats[: shape[0]], floats[shape[0] :]
        if len(shape) == 2:  # a scale for each row of integers
            count = shape[0] * shape[1]
            own, whole = whole[:count].view(shape) * own[:, None], whole[count:]
        numbers[name] = own
    source_size, width = numbers["source_embedding.weight"].shape
    hidden = len(numbers["encoder.blocks.0.feed_forward.up_proj.weight"])
    model = EncoderDecoder(
        source_size, len(task["symbols"]), embed_dim=width, num_heads=stored["num_heads"], hidden_dim=hidden,
        num_layers=stored["num_layers"], bias="output.bias" in numbers,
    ).double().eval()  # fmt: skip
    missing, unexpected = model.load_state_dict(numbers, strict=False)
    assert unexpected == []
    assert not [name for name in missing if not name.endswith(("encoding", "frequencies"))]
    for text in (state["text"], "31 December 1999"):
        host.get_by_role("textbox", name="date").fill(text)
        source = encode_source([text])
        lens = (source != 0).sum(-1)
        with torch.no_grad(), capture_attention(model) as captured:
            tokens = greedy_decode(
                model, source, source_lens=lens, start=task["start"], end=task["end"],
                max_len=task["target_length"],
            )  # fmt: skip
            start = torch.full_like(tokens[:, :1], task["start"])
            memory = model.encode(source, source_lens=lens)
            logits = model.decode(torch.cat((start, tokens[:, :-1]), 1), memory, source_lens=lens)
        written = "".join(task["symbols"][t] for t in tokens[0].tolist() if t != task["end"])
        signs = host.locator(".mha-strip.mha-answer .mha-cell > :first-child:visible")
        expect(signs).to_have_text([*f"▷{written}■"], use_inner_text=True)
        step = state["step"]
        reading = captured[f"decoder.blocks.{state['layer']}.cross_attention"][0, state["head"], step, :lens]
        seen = host.locator(".mha-strip:not(.mha-answer) .mha-weight:visible").all_inner_texts()
        assert [float(number) for number in seen] == pytest.approx(reading.tolist(), abs=0.00501)
        chance = softmax(logits[0, step], -1).max().item()
        told = f"with probability {chance:.2f}"
        expect(host.locator(".mha-told")).to_contain_text(told, use_inner_text=True)
