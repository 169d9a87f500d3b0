"""The mask translator: each array is given to its library, and each misreading is tried out."""

import itertools
import json
import random
import re
from pathlib import Path

import onnx
import pytest
import torch
import torch.nn.functional as F
from onnx.reference import ReferenceEvaluator
from playwright.sync_api import expect
from torch import nn
from widget_page import ByHand, assert_copied_code_gives, assert_shows_numbers, run_copied_code, write_page

from mha_course.widgets import MaskTranslator
from mha_course.widgets.mask_translator import CONVENTIONS, ONES, SOURCES, TARGETS
from mha_lib import causal_mask, dot_product_attention, sliding_window_mask, valid_lens_mask
from mha_lib.conversion import mask_from_additive

ROOT = Path(__file__).resolve().parents[2]
STORED = json.loads((ROOT / "chapters" / "rosetta" / "stored.json").read_text(encoding="utf-8"))["programs"]
WIDTH = 3


# Masks of all kinds


def text_of(mask):
    return " ".join("".join("01"[bit] for bit in row) for row in torch.as_tensor(mask).int().tolist())


def random_masks(count, seed, *, empty_rows):
    """Masks that few conventions can express, and masks that many can, for all lengths."""
    draw = random.Random(seed)
    masks = []
    while len(masks) < count:
        q_len, k_len = draw.randint(1, 6), draw.randint(2, 6)
        keys = torch.tensor([[draw.random() < 0.6 for _ in range(k_len)]]).expand(q_len, k_len)
        mask = [
            lambda q, k, keys: torch.tensor([[draw.random() < 0.6 for _ in range(k)] for _ in range(q)]),
            lambda q, k, keys: keys,
            lambda q, k, keys: keys & causal_mask(q, k),
            lambda q, k, keys: valid_lens_mask(torch.tensor([draw.randint(0, k)]), k)[0].expand(q, k),
            lambda q, k, keys: valid_lens_mask(torch.tensor([[draw.randint(0, k) for _ in range(q)]]), k)[0],
            lambda q, k, keys: sliding_window_mask(q, k, left=draw.randint(0, 2)),
        ][len(masks) % 6](q_len, k_len, keys)
        if empty_rows or mask.any(-1).all():
            masks.append(mask)
    return masks


def all_rows(k_len):
    """Every row of keys that exists."""
    return [torch.tensor([row]) for row in itertools.product((False, True), repeat=k_len)]


def possible(mask):
    """The conventions that can express a mask, found by trying all their arrays."""
    q_len, k_len = mask.shape
    names = set(CONVENTIONS) - {"key_mask", "module_key_padding_mask", "hf_attention_mask"}
    names -= {"valid_lens", "jax_lengths"}
    if any(torch.equal(row.expand_as(mask), mask) for row in all_rows(k_len)):
        names |= {"key_mask", "module_key_padding_mask", "hf_attention_mask"}
    if any(torch.equal(row & causal_mask(q_len, k_len), mask) for row in all_rows(k_len)):
        names |= {"hf_attention_mask"}
    prefixes = [torch.tensor([key < length for key in range(k_len)]) for length in range(k_len + 1)]
    if any(torch.equal(prefix.expand_as(mask), mask) for prefix in prefixes):
        names |= {"valid_lens", "jax_lengths"}
    if all(any(torch.equal(prefix, row) for prefix in prefixes) for row in mask):
        names |= {"valid_lens"}
    return names


# The libraries, each with its own array


def slow_attention(query, key, value, mask):
    """Attention with the keys that the mask shows, one number at a time; zeros where it shows none."""
    output = torch.zeros(len(query), value.shape[1], dtype=torch.float64)
    for q, k in itertools.product(range(len(query)), range(len(key))):
        scores = (key.double() @ query[q].double()) / WIDTH**0.5
        total = sum(scores[j].exp() for j in range(len(key)) if mask[q][j])
        if mask[q][k]:
            output[q] += scores[k].exp() / total * value[k].double()
    return output


def of_the_module(query, key, value, **masks):
    layer = nn.MultiheadAttention(WIDTH, 1, bias=False, batch_first=True)
    with torch.no_grad():
        layer.in_proj_weight.copy_(torch.eye(WIDTH).repeat(3, 1))
        layer.out_proj.weight.copy_(torch.eye(WIDTH))
        return layer(query[None], key[None], value[None], **masks)[0][0]


def of_onnx(query, key, value, mask):
    arrays = {"Q": query, "K": key, "V": value}
    given = {name: x[None, None].numpy() for name, x in arrays.items()}
    given["attn_mask"] = mask.numpy() if isinstance(mask, torch.Tensor) else mask
    kind = onnx.helper.np_dtype_to_tensor_dtype
    inputs = [onnx.helper.make_tensor_value_info(n, kind(x.dtype), x.shape) for n, x in given.items()]
    node = onnx.helper.make_node("Attention", list(given), ["Y"])
    output = onnx.helper.make_tensor_value_info("Y", onnx.TensorProto.FLOAT, [None] * 4)
    graph = onnx.helper.make_graph([node], "attention", inputs, [output])
    model = onnx.helper.make_model(graph, opset_imports=[onnx.helper.make_opsetid("", 25)])
    return torch.tensor(ReferenceEvaluator(model).run(None, given)[0][0, 0])


def by_hand(query, key, value, hide):
    """The softmax formula, for libraries that are not here; `hide` changes the scores as they do."""
    scores = query @ key.T / WIDTH**0.5
    return hide(scores).softmax(-1) @ value


def outputs_of(arrays, query, key, value):
    """The output of each convention's own library."""
    q, k, v = query, key, value
    to_tensor = lambda name: torch.as_tensor(arrays[name])  # noqa: E731
    visible = lambda mask: lambda scores: scores.masked_fill(~mask, -torch.inf)  # noqa: E731
    calls = {
        "attn_mask": lambda x: dot_product_attention(q, k, v, x)[0],
        "key_mask": lambda x: dot_product_attention(q[None], k[None], v[None], key_mask=x)[0][0],
        "valid_lens": lambda x: dot_product_attention(q[None], k[None], v[None], valid_lens=x)[0][0],
        "sdpa_mask": lambda x: F.scaled_dot_product_attention(q, k, v, x),
        "sdpa_added": lambda x: F.scaled_dot_product_attention(q, k, v, x),
        "module_attn_mask": lambda x: of_the_module(q, k, v, attn_mask=x),
        "module_key_padding_mask": lambda x: of_the_module(q, k, v, key_padding_mask=x),
        "hf_extended": lambda x: by_hand(q, k, v, lambda scores: scores + x[0, 0]),
        "jax_mask": lambda x: by_hand(q, k, v, visible(x[0, 0])),
        "jax_lengths": lambda x: by_hand(q, k, v, visible(torch.arange(len(k)) < x)),
        "keras_mask": lambda x: by_hand(q, k, v, visible(x[0])),
        "onnx_mask": lambda x: of_onnx(q, k, v, x),
    }
    return {name: call(to_tensor(name)) for name, call in calls.items() if name in arrays}


def inputs_for(mask, seed):
    torch.manual_seed(seed)
    return tuple(torch.randn(length, WIDTH) for length in (mask.shape[0], mask.shape[1], mask.shape[1]))


def test_every_array_gives_its_library_the_same_output():
    used = dict.fromkeys(CONVENTIONS, 0)
    for seed, mask in enumerate(random_masks(120, 0, empty_rows=False)):
        numbers = MaskTranslator(visible=text_of(mask)).numbers()
        assert torch.equal(numbers.pop("mask"), mask)
        assert list(numbers) == [name for name in CONVENTIONS if name in numbers]
        assert set(numbers) == possible(mask)
        query, key, value = inputs_for(mask, seed)
        wanted = slow_attention(query, key, value, mask).float()
        for name, output in outputs_of(numbers, query, key, value).items():
            torch.testing.assert_close(output, wanted, atol=1e-6, rtol=1e-6, msg=name)
            used[name] += 1
    assert min(count for name, count in used.items() if name != "hf_attention_mask") >= 15


def test_arrays_have_the_shapes_and_dtypes_that_libraries_take():
    numbers = MaskTranslator(visible="11100 11100").numbers()
    kinds = {name: (str(array.dtype)[6:], tuple(array.shape)) for name, array in numbers.items()}
    assert kinds == {
        "mask": ("bool", (2, 5)), "attn_mask": ("bool", (2, 5)), "key_mask": ("bool", (1, 5)),
        "valid_lens": ("int64", (1,)), "sdpa_mask": ("bool", (2, 5)), "sdpa_added": ("float32", (2, 5)),
        "module_attn_mask": ("bool", (2, 5)), "module_key_padding_mask": ("bool", (1, 5)),
        "hf_attention_mask": ("int64", (1, 5)), "hf_extended": ("float32", (1, 1, 2, 5)),
        "jax_mask": ("bool", (1, 1, 2, 5)), "jax_lengths": ("int32", (1,)),
        "keras_mask": ("bool", (1, 2, 5)), "onnx_mask": ("bool", (2, 5)),
    }  # fmt: skip
    assert MaskTranslator(visible="10000 11100").numbers()["valid_lens"].tolist() == [[1, 3]]
    lowest = STORED["masks_huggingface"]["masks"]["HuggingFace, eager"]["inside"]
    assert numbers["hf_extended"].min() == lowest["hidden"]
    assert lowest["dtype"] == "float32" and len(lowest["shape"]) == 4
    for name in ("sdpa_added", "hf_extended"):
        assert torch.equal(mask_from_additive(numbers[name]).view(2, 5), numbers["mask"])
    assert torch.equal(mask_from_additive(numbers["hf_attention_mask"]), numbers["key_mask"])


def attentions(mask, attention_mask, is_decoder):
    """Which keys a model of HuggingFace attends to, computed eagerly."""
    transformers = pytest.importorskip("transformers")
    torch.manual_seed(0)
    sizes = {"vocab_size": 7, "attn_implementation": "eager"}
    if is_decoder:
        model = transformers.GPT2Model(transformers.GPT2Config(n_embd=6, n_head=1, n_layer=1, **sizes))
    else:
        config = transformers.BertConfig(
            hidden_size=6, num_attention_heads=1, num_hidden_layers=1, intermediate_size=5, **sizes
        )
        model = transformers.BertModel(config)
    tokens = torch.arange(mask.shape[1])[None]
    output = model.eval()(tokens, attention_mask=attention_mask, output_attentions=True)
    return output.attentions[0][0, 0] > 0


def test_models_of_huggingface_read_their_mask_so():
    decoders = 0
    for mask in random_masks(240, 1, empty_rows=False):
        if mask.shape[0] != mask.shape[1]:
            continue
        array = MaskTranslator(visible=text_of(mask)).numbers().get("hf_attention_mask")
        if array is None:
            continue
        is_decoder = not torch.equal(mask[:1].expand_as(mask), mask)
        decoders += is_decoder
        assert torch.equal(attentions(mask, array, is_decoder), mask)
    assert decoders >= 3


# An untranslated array


def really_read(array, target, q_len, k_len):
    """Who sees whom if an argument gets the array, its axes adjusted; run where the library is here.

    Returns:
        What is seen, the name of the error, or "shape".
    """
    rows = array.reshape(-1, k_len)
    one_row = target in ("key_mask", "module_key_padding_mask", "hf_attention_mask")
    row = rows if one_row else rows.expand(q_len, k_len)
    q, k, v = torch.zeros(q_len, WIDTH), torch.zeros(k_len, WIDTH), torch.eye(k_len)
    if one_row and len(rows) > 1:
        row = rows[:1]  # to find out whether the dtype is accepted
    calls = {
        "attn_mask": lambda: dot_product_attention(q, k, v, row)[0],
        "key_mask": lambda: dot_product_attention(q[None], k[None], v[None], key_mask=row)[0][0],
        "sdpa_mask": lambda: F.scaled_dot_product_attention(q, k, v, row),
        "module_attn_mask": lambda: module_weights(q, k, attn_mask=row),
        "module_key_padding_mask": lambda: module_weights(q, k, key_padding_mask=row),
        "onnx_mask": lambda: of_onnx(q, k, v, row.contiguous()),
    }
    if target in calls:
        try:
            seen = calls[target]() > 0
        except (TypeError, ValueError, RuntimeError, AssertionError) as error:
            return type(error).__name__
    else:
        seen = as_stored(rows, target, q_len)
        if isinstance(seen, str):
            return seen
    return "shape" if one_row and len(rows) > 1 else seen


def module_weights(query, key, **masks):
    layer = nn.MultiheadAttention(WIDTH, 1, batch_first=True)
    return layer(query[None], key[None], key[None], **masks)[1][0]


def as_stored(rows, target, q_len):
    """What `make rosetta` found for a mask of this dtype, where the library is not here."""
    program, call = {
        "hf_attention_mask": ("masks_huggingface", "HuggingFace, eager"),
        "jax_mask": ("masks_jax", "jax.nn.dot_product_attention"),
        "keras_mask": ("masks_keras_jax", "keras.layers.MultiHeadAttention"),
    }[target]
    found = STORED[program]["masks"][call]["one key"]
    way = {torch.bool: "bool", torch.int64: "0 and 1, int"}.get(rows.dtype)
    way = way or ("0 and 1, float" if (rows == 1).any() else "0 and −∞")
    answer = found[way]
    if answer.startswith("error"):
        return answer.split(": ")[1]
    # The program's mask has True, 1 or 0 for the one key that is visible.
    special = 0 if way == "0 and −∞" else 1
    seen = (rows == special) if answer == "visible" else (rows != special)
    return seen.expand(q_len, -1)


def pairs():
    return [(source, target) for source in SOURCES for target in TARGETS]


@pytest.mark.no_shape_checks  # a wrong dtype must reach the library's own checks
def test_what_is_read_is_what_the_libraries_read():
    outcomes = {"right": 0, "wrong": 0, "refused": 0, "shape": 0, "impossible": 0}
    for mask in random_masks(12, 2, empty_rows=False):
        q_len, k_len = mask.shape
        arrays = {**MaskTranslator(visible=text_of(mask)).numbers(), ONES: mask.float()}
        for source, target in pairs():
            translator = MaskTranslator(visible=text_of(mask), shown="mistake", source=source, target=target)
            numbers = translator.numbers()
            assert torch.equal(numbers["mask"], mask)
            if source not in arrays:
                assert set(numbers) == {"mask"}
                outcomes["impossible"] += 1
                continue
            assert torch.equal(numbers["written"], arrays[source])
            if source == ONES and mask.all() and target in ("hf_attention_mask", "keras_mask"):
                continue
            real = really_read(arrays[source], target, q_len, k_len)
            if isinstance(real, str):
                assert set(numbers) == {"mask", "written"}, (source, target, real)
                outcomes["shape" if real == "shape" else "refused"] += 1
                continue
            read = numbers["read"]
            # If no key is visible, libraries differ, but the argument means that all are hidden.
            left = read.any(-1)
            assert torch.equal(read[left], real[left]), (source, target)
            assert torch.equal(numbers["wrong"], read != mask)
            outcomes["wrong" if numbers["wrong"].any() else "right"] += 1
    assert min(outcomes.values()) >= 20, outcomes


def test_a_mask_of_another_torch_layer_is_read_upside_down():
    translator = MaskTranslator(visible="110 100", shown="mistake")
    told = "visible='110 100', shown='mistake', source='module_attn_mask', target='sdpa_mask'"
    assert repr(translator) == f"MaskTranslator({told})"
    numbers = translator.numbers()
    assert numbers["written"].int().tolist() == numbers["read"].int().tolist() == [[0, 0, 1], [0, 1, 1]]
    assert numbers["wrong"].all()


@pytest.mark.parametrize("visible", [
    "", "1", "11 1", "11 111", "11  11", " 11", "11 ", "11\n11", "11 1x", "1111111", " ".join(["11"] * 7),
])  # fmt: skip
def test_a_wrong_mask_is_refused(visible):
    message = rf"visible must be 1 to 6 groups of 2 to 6 digits 0 or 1, of equal length, got {visible!r}"
    with pytest.raises(ValueError, match=f"^{re.escape(message)}$"):
        MaskTranslator(visible=visible)
    translator = MaskTranslator()
    with pytest.raises(ValueError, match="visible must be"):
        translator.visible = visible
    assert translator.visible == MaskTranslator().visible


@pytest.fixture
def hand(reader, tmp_path):
    """A widget whose settings a test can change, with the code of all cards unfolded."""
    tab = reader("http")
    tab.open(write_page(tmp_path, [MaskTranslator()]), 1)
    hosted = ByHand(tab.page, MaskTranslator())
    hosted.host.locator("details").evaluate_all("nodes => nodes.forEach(node => { node.open = true; })")
    yield hosted
    hosted.clean_up()


# The visible part of each card or map: its text, and its cells row by row, as text, colour and mark.
SEEN = """nodes => nodes.filter(node => node.checkVisibility()).map(node => {
  const rows = new Map();
  for (const cell of node.querySelectorAll(".mha-entries > span")) {
    if (!cell.checkVisibility()) continue;
    const top = Math.round(cell.getBoundingClientRect().top);
    const sign = getComputedStyle(cell, "::after").content;
    const look = [cell.innerText, getComputedStyle(cell).backgroundColor, sign === "none" ? "" : sign];
    rows.set(top, [...(rows.get(top) ?? []), look]);
  }
  const code = node.querySelector("pre");
  const lines = node.innerText.split(/\\n+/);
  return { name: node.dataset.convention, lines, rows: [...rows.values()],
           code: code?.checkVisibility() ? code.innerText : null };
})"""
ENTRIES = {"T": True, "F": False, "−∞": -torch.inf, "min": torch.finfo(torch.float32).min}
YELLOW, PURPLE = "rgb(253, 231, 37)", "rgb(68, 1, 84)"


def shown_cards(host):
    return {card["name"]: card for card in host.locator(".mha-card").evaluate_all(SEEN)}


def values_seen(rows):
    """The entries of a map that can be seen, as numbers."""
    number = lambda text: ENTRIES[text] if text in ENTRIES else int(text)  # noqa: E731
    return torch.tensor([[number(text) for text, _, _ in row] for row in rows])


def colors_seen(rows):
    """Which cells of a map have the colour of what is visible."""
    assert {color for row in rows for _, color, _ in row} <= {YELLOW, PURPLE}
    return torch.tensor([[color == YELLOW for _, color, _ in row] for row in rows])


def assert_reason_is_true(reason, mask):
    """The queries and keys that a reason names are as it says."""
    *_, words = reason.split(", but ")
    numbers = [int(number) for number in re.findall(r"\d+", words)]
    if "and query" in words and words.endswith("does not."):
        sees, key, misses = numbers
        assert words == f"query {sees} sees key {key} and query {misses} does not."
        assert mask[sees, key] and not mask[misses, key]
    elif "and not key" in words:
        query, seen, hole = numbers
        assert words == f"query {query} sees key {seen} and not key {hole}."
        assert hole < seen and mask[query, seen] and not mask[query, hole]
    else:
        first, count, second, other = numbers
        assert words == f"query {first} sees {count} and query {second} sees {other} keys."
        assert mask[first].sum() == count != other == mask[second].sum()


def test_the_cards_show_each_array_or_why_there_is_none(hand):
    """What is seen, and what the code in a card makes, are the arrays; all reasons are true."""
    impossible = 0
    for mask in random_masks(72, 3, empty_rows=True):
        hand.set(visible=text_of(mask))
        numbers = MaskTranslator(visible=text_of(mask)).numbers()
        assert set(numbers) == {"mask", *possible(mask)}
        cards = shown_cards(hand.host)
        assert list(cards) == list(CONVENTIONS)
        for name, card in cards.items():
            library, argument, about, *lines = card["lines"]
            title = CONVENTIONS[name].replace(", bool", "").replace(", float", "")
            assert f"{library}\n{argument}" == title
            if name not in numbers:
                impossible += 1
                assert (about, card["rows"], card["code"]) == ("✗ not possible", [], None)
                assert_reason_is_true(" ".join(lines).strip(), mask)
                continue
            array = numbers[name]
            shape = tuple(array.shape)
            assert about == f"{str(array.dtype)[6:]} {shape}"
            rows = array.reshape(-1, array.shape[-1])
            assert torch.equal(values_seen(card["rows"]).to(array.dtype), rows)
            if name not in ("valid_lens", "jax_lengths"):
                assert torch.equal(colors_seen(card["rows"]), mask[-len(rows) :])
            variables = {}
            exec(card["code"], variables)  # noqa: S102, what a reader does with it
            made = torch.as_tensor(variables[argument])
            assert torch.equal(made, array) and made.dtype == array.dtype
        told = f"{len(numbers) - 1} of 13 conventions can express this mask."
        expect(hand.host.locator(".mha-about .mha-title")).to_have_text(told)
    assert impossible > 100


def test_cards_say_what_true_means(hand):
    cards = shown_cards(hand.host)
    first = lambda lines: next(line for line in lines if ": " in line or "how many" in line)  # noqa: E731
    meanings = {name: first(card["lines"]) for name, card in cards.items()}
    hidden = {name for name, text in meanings.items() if text == "T: hidden"}
    assert hidden == {"module_attn_mask", "module_key_padding_mask"}
    for name in ("attn_mask", "key_mask", "sdpa_mask", "jax_mask", "keras_mask", "onnx_mask"):
        assert meanings[name] == "T: may attend"
    assert meanings["sdpa_added"] == "0: may attend, −∞: hidden"
    assert meanings["hf_extended"] == "0: may attend, min: hidden"
    assert meanings["hf_attention_mask"] == "1: may attend, 0: hidden"
    assert meanings["valid_lens"] == meanings["jax_lengths"] == "how many keys are seen"


def test_cards_say_what_a_query_without_a_key_gets(hand):
    """Run where the library is here, else as `make rosetta` found it."""
    mask = torch.zeros(2, 5, dtype=torch.bool)
    query, key, value = inputs_for(mask, 0)
    kinds = {}
    numbers = MaskTranslator(visible=text_of(mask)).numbers()
    for name, output in outputs_of(numbers, query, key, value).items():
        uniform = torch.allclose(output, value.mean(0).expand_as(output), atol=1e-6)
        kinds[name] = "NaN" if output.isnan().all() else "uniform weights" if uniform else "zeros"
        assert kinds[name] != "zeros" or not output.any()
    nothing = {
        library: found["nothing"]
        for program in ("masks_jax", "masks_keras_jax", "masks_huggingface")
        for library, found in STORED[program]["masks"].items()
    }
    jax = nothing["jax.nn.dot_product_attention"]
    keras = nothing["keras.layers.MultiHeadAttention"]
    left = "`attention_mask`, padded on the left"
    kinds |= {
        "jax_mask": f"{jax['`mask`']} weights",
        "jax_lengths": f"{jax['`key_value_seq_lengths=0`']} weights",
        "keras_mask": f"{keras['`attention_mask`, weights asked for']}, "
        f"or {keras['`attention_mask`, no weights']} weights if no weights are asked for",
        "hf_attention_mask": f"{nothing['HuggingFace, sdpa'][left]}, "
        f"or {nothing['HuggingFace, eager'][left]} weights if it computes eagerly",
    }
    hand.set(visible=text_of(mask))
    for name, card in shown_cards(hand.host).items():
        assert f"Queries 0 and 1 get {kinds[name]}." in card["lines"], name
    hand.set(visible="110 000 111")
    assert "Query 1 gets NaN." in shown_cards(hand.host)["module_attn_mask"]["lines"]
    hand.set(visible="110 110 111")
    assert not re.search(r" gets? ", hand.host.inner_text())


@pytest.mark.no_shape_checks  # a wrong dtype must reach the library's own checks
def test_a_mistake_is_marked_cell_by_cell(hand):
    """All pairs for a few masks: verdict, colours, crosses, and the error that the call really raises."""
    verdict, boxes = hand.host.locator(".mha-verdict"), hand.host.locator(".mha-pair > div")
    masks = ("1110 1110 1110", "1100 1110 1111", "1011 0111 1000", "11111")
    for visible, (source, target) in itertools.product(masks, pairs()):
        settings = {"visible": visible, "shown": "mistake", "source": source, "target": target}
        hand.set(**settings)
        numbers = MaskTranslator(**settings).numbers()
        mask, text = numbers["mask"], verdict.inner_text()
        maps = boxes.evaluate_all(SEEN)
        if "written" not in numbers:
            assert (text, maps) == ("The source cannot express this mask.", [])
            assert_reason_is_true(hand.host.locator(".mha-why").inner_text(), mask)
            continue
        array = numbers["written"]
        assert torch.equal(values_seen(maps[0]["rows"]).to(array.dtype), array.reshape(-1, mask.shape[1]))
        if "read" not in numbers:
            assert len(maps) == 1
            real = really_read(array, target, *mask.shape)
            failed = f"The call fails: {real}. No cell is read wrongly."
            assert text == ("The shapes do not fit." if real == "shape" else failed), settings
            continue
        assert torch.equal(colors_seen(maps[1]["rows"]), numbers["read"])
        assert torch.equal(values_seen(maps[1]["rows"]).bool(), numbers["read"])
        crosses = [[sign == '"✗"' for _, _, sign in row] for row in maps[1]["rows"]]
        assert torch.equal(torch.tensor(crosses), numbers["wrong"])
        wrong, cells = int(numbers["wrong"].sum()), mask.numel()
        why = hand.host.locator(".mha-why").inner_text()
        if wrong == 0:
            assert text == f"All {cells} cells are read as they were meant."
            continue
        assert text == f"{wrong} of {cells} cells are read wrongly, and nothing raises an error."
        lost = int((numbers["wrong"] & mask).sum())
        assert [int(count) for count in re.findall(r"(\d+) (?:hidden|visible) cells?", why)] == [
            count for count in (wrong - lost, lost) if count
        ]
        assert ("can be seen" in why, "cannot" in why) == (wrong > lost, lost > 0)


def test_the_verdict_has_its_colour_in_light_and_dark(show):
    host = show(MaskTranslator(shown="mistake"))
    for theme, color in (("light", "rgb(179, 38, 30)"), ("dark", "rgb(255, 138, 128)")):
        host.page.evaluate("theme => { document.documentElement.dataset.theme = theme; }", theme)
        expect(host.locator(".mha-verdict")).to_have_css("color", color)
    host.get_by_role("combobox", name="passed to").select_option("nn.MultiheadAttention: attn_mask")
    expect(host.locator(".mha-verdict")).to_have_text("All 24 cells are read as they were meant.")
    expect(host.locator(".mha-verdict")).not_to_have_css("color", "rgb(255, 138, 128)")


# Painting and choosing


def cell(host, query, key):
    return host.get_by_role("grid").locator(f"[data-row='{query}'][data-column='{key}']")


def test_the_mask_is_painted(show):
    """Strokes and fingers are the mask painter's, which has the same paper."""
    translator = MaskTranslator(visible="111 111")
    host = show(translator)
    cell(host, 0, 0).focus()
    for key in ("ArrowRight", "ArrowDown", "Space"):
        host.page.keyboard.press(key)
    translator.visible = "111 101"
    assert_shows_numbers(host, translator)
    expect(cell(host, 1, 1)).to_have_accessible_name("query 1 → key 1: hidden")
    expect(host.get_by_role("status")).to_have_text("8 of 13 conventions can express this mask.")


def expected_patterns(q_len, k_len):
    ones = torch.ones(q_len, k_len, dtype=torch.bool)
    lengths = torch.tensor([k_len - padding for padding in range(4)]).clamp(min=0)
    padded = valid_lens_mask(lengths, k_len).expand(-1, q_len, -1)
    hole, blind = ones.clone(), ones.clone()
    hole[:, k_len // 2] = False
    blind[q_len // 2] = False
    return {
        "every key": ones, "1 padding key": padded[1], "2 padding keys": padded[2],
        "3 padding keys": padded[3], "2 padding keys on the left": ones & (torch.arange(k_len) > 1),
        "causal": causal_mask(q_len, k_len),
        "causal, 2 padding keys": causal_mask(q_len, k_len) & padded[2],
        "sliding, 2 tokens": sliding_window_mask(q_len, k_len, left=1), "a hole in the middle": hole,
        "a query without a key": blind,
    }  # fmt: skip


def test_patterns_and_lengths(show):
    translator = MaskTranslator()
    host = show(translator)
    combobox = lambda name: host.get_by_role("combobox", name=name, exact=True)  # noqa: E731
    queries, keys, pattern = map(combobox, ("queries", "keys", "pattern"))
    chosen = "node => node.selectedOptions[0].text"
    for q_len, k_len in ((4, 6), (5, 3)):
        queries.select_option(str(q_len))
        keys.select_option(str(k_len))
        for name, mask in expected_patterns(q_len, k_len).items():
            pattern.select_option(name)
            translator.visible = text_of(mask)
            assert_shows_numbers(host, translator)
    # A mask that has a name keeps it when a length changes.
    for length in ("4", "6"):
        queries.select_option(length)
        keys.select_option(length)
        pattern.select_option("causal")
    keys.select_option("5")
    queries.select_option("3")
    assert pattern.evaluate(chosen) == "causal"
    assert_shows_numbers(host, MaskTranslator(visible="11100 11110 11111"))
    # One without a name keeps its cells, and new cells are visible.
    cell(host, 2, 0).click()
    assert pattern.evaluate(chosen) == "as painted"
    keys.select_option("6")
    queries.select_option("4")
    assert_shows_numbers(host, MaskTranslator(visible="111001 111101 011111 111111"))
    keys.select_option("2")
    assert_shows_numbers(host, MaskTranslator(visible="11 11 01 11"))
    expect(pattern.locator("option")).to_have_count(11)


def test_the_two_views(show):
    translator = MaskTranslator()
    host = show(translator)
    cards, pair = host.locator(".mha-cards"), host.locator(".mha-pair")
    expect(cards).to_be_visible()
    expect(pair).to_be_hidden()
    host.get_by_role("radio", name="Passed untranslated").check()
    expect(cards).to_be_hidden()
    expect(pair).to_be_visible()
    combobox = lambda name: host.get_by_role("combobox", name=name, exact=True)  # noqa: E731
    source, target = map(combobox, ("written for", "passed to"))
    for menu, count in ((source, len(SOURCES)), (target, len(TARGETS))):
        texts = menu.locator("option").all_text_contents()
        assert len(texts) == len(set(texts)) == count
    source.select_option("1 and 0 as float: mask.float()")
    target.select_option("torch SDPA: attn_mask")
    translator.shown, translator.source = "mistake", "ones_mask"
    assert_shows_numbers(host, translator)
    assert_copied_code_gives(host, translator)
    assert translator.numbers()["wrong"].sum() == 8
    images = pair.get_by_role("img")
    expect(images.nth(0)).to_have_accessible_name(f"as it is written: {'; '.join(['1 1 1 1 0 0'] * 4)}")
    row = "sees keys 0, 1, 2, 3, 4 and 5, wrong at 4 and 5"
    rows = "; ".join(f"query {query} {row}" for query in range(4))
    expect(images.nth(1)).to_have_accessible_name(f"as it is read: {rows}")
    target.select_option("JAX: mask")
    expect(host.get_by_role("status")).to_have_text("The call fails: ValueError. No cell is read wrongly.")
    assert set(run_copied_code(host)) >= {"mask", "written"}
    assert run_copied_code(host)["read"] is None


def test_a_card_is_copied(show):
    host = show(MaskTranslator())
    host.page.context.grant_permissions(["clipboard-read", "clipboard-write"])
    card = host.locator("[data-convention=module_key_padding_mask]")
    narrow = card.bounding_box()["width"]
    card.get_by_text("Code", exact=True).click()
    assert card.bounding_box()["width"] > 2 * narrow
    card.get_by_role("button", name="Copy").click()
    expect(card.get_by_role("button", name="Copied")).to_be_visible()
    copied = host.page.evaluate("navigator.clipboard.readText()")
    assert copied == card.locator("pre").text_content()
    assert "key_padding_mask = torch.tensor([\n    [False, False, False, False, True, True],\n])" in copied
    cell(host, 0, 0).click()
    cell(host, 0, 0).click()
    host.get_by_role("combobox", name="pattern").select_option("1 padding key")
    expect(card.get_by_role("button", name="Copy", exact=True)).to_be_visible()


def test_the_result_is_in_view_on_a_phone(show):
    host = show(MaskTranslator(), width=360)
    host.page.set_viewport_size({"width": 360, "height": 740})
    first = host.locator(".mha-card").first.locator(".mha-entries").bounding_box()
    assert first["y"] + first["height"] < 740
    host.get_by_role("radio", name="Passed untranslated").check()
    result = host.locator(".mha-pair").bounding_box()
    assert result["y"] + result["height"] < 740


@pytest.mark.parametrize("width", [360, 900])
def test_no_entry_is_cut_off(show, width):
    host = show(MaskTranslator(visible=" ".join(["000000"] * 6)), width=width)
    cut = """nodes => nodes.filter(node => node.checkVisibility() && node.scrollWidth > node.clientWidth)
               .map(node => node.innerText)"""
    assert host.locator(".mha-entries > span").evaluate_all(cut) == []
