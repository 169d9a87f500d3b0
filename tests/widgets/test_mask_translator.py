"""The mask translator: each array is given to the library that it is for, and each misreading is tried out."""

import itertools
import json
import random
import re
from pathlib import Path

import numpy as np
import onnx
import pytest
import torch
import torch.nn.functional as F
from onnx.reference import ReferenceEvaluator
from playwright.sync_api import expect
from torch import nn
from widget_page import ByHand, assert_copied_code_gives, assert_shows_numbers, run_copied_code, write_page

from mha_lib import causal_mask, dot_product_attention, plots, sliding_window_mask, valid_lens_mask
from mha_lib.conversion import mask_from_additive
from mha_lib.widgets import MaskTranslator
from mha_lib.widgets.mask_translator import CONVENTIONS, ONES, SOURCES, TARGETS

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


# The libraries, each given its own array


def slow_attention(query, key, value, mask):
    """Attention with exactly the keys that the mask shows, one number at a time; zeros where there is none."""
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
    inputs = [
        onnx.helper.make_tensor_value_info(name, onnx.helper.np_dtype_to_tensor_dtype(x.dtype), x.shape)
        for name, x in given.items()
    ]
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
    for seed, mask in enumerate(random_masks(240, 0, empty_rows=False)):
        numbers = MaskTranslator(visible=text_of(mask)).numbers()
        assert torch.equal(numbers.pop("mask"), mask)
        assert list(numbers) == [name for name in CONVENTIONS if name in numbers]
        assert set(numbers) == possible(mask)
        query, key, value = inputs_for(mask, seed)
        wanted = slow_attention(query, key, value, mask).float()
        for name, output in outputs_of(numbers, query, key, value).items():
            torch.testing.assert_close(output, wanted, atol=1e-6, rtol=1e-6, msg=name)
            used[name] += 1
    assert min(count for name, count in used.items() if name != "hf_attention_mask") >= 30


def test_arrays_have_the_shapes_and_dtypes_that_libraries_take():
    numbers = MaskTranslator(visible="11100 11100").numbers()
    kinds = {name: (str(array.dtype)[6:], tuple(array.shape)) for name, array in numbers.items()}
    assert kinds == {
        "mask": ("bool", (2, 5)),
        "attn_mask": ("bool", (2, 5)),
        "key_mask": ("bool", (1, 5)),
        "valid_lens": ("int64", (1,)),
        "sdpa_mask": ("bool", (2, 5)),
        "sdpa_added": ("float32", (2, 5)),
        "module_attn_mask": ("bool", (2, 5)),
        "module_key_padding_mask": ("bool", (1, 5)),
        "hf_attention_mask": ("int64", (1, 5)),
        "hf_extended": ("float32", (1, 1, 2, 5)),
        "jax_mask": ("bool", (1, 1, 2, 5)),
        "jax_lengths": ("int32", (1,)),
        "keras_mask": ("bool", (1, 2, 5)),
        "onnx_mask": ("bool", (2, 5)),
    }
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
    for mask in random_masks(600, 1, empty_rows=False):
        if mask.shape[0] != mask.shape[1]:
            continue
        array = MaskTranslator(visible=text_of(mask)).numbers().get("hf_attention_mask")
        if array is None:
            continue
        is_decoder = not torch.equal(mask[:1].expand_as(mask), mask)
        decoders += is_decoder
        assert torch.equal(attentions(mask, array, is_decoder), mask)
    assert decoders >= 5


# An array that nobody translated


def really_read(array, target, q_len, k_len):
    """Who sees whom if an argument gets the array, its axes adjusted: by running the library, where it is here.

    Returns:
        What is seen, the name of the error, or "shape".
    """
    rows = array.reshape(-1, k_len)
    one_row = target in ("key_mask", "module_key_padding_mask", "hf_attention_mask")
    row = rows if one_row else rows.expand(q_len, k_len)
    q, k, v = torch.zeros(q_len, WIDTH), torch.zeros(k_len, WIDTH), torch.eye(k_len)
    if one_row and len(rows) > 1:
        row = rows[:1]  # to learn whether the dtype is taken
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


def test_what_is_read_is_what_the_libraries_read():
    outcomes = {"right": 0, "wrong": 0, "refused": 0, "shape": 0, "impossible": 0}
    for mask in random_masks(36, 2, empty_rows=False):
        q_len, k_len = mask.shape
        arrays = {**MaskTranslator(visible=text_of(mask)).numbers(), ONES: mask.float()}
        for source, target in pairs():
            translator = MaskTranslator(
                visible=text_of(mask), shown="mistake", source=source, target=target
            )
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
            # Where no key is left, libraries differ; what the argument says is that all are hidden.
            left = read.any(-1)
            assert torch.equal(read[left], real[left]), (source, target)
            assert torch.equal(numbers["wrong"], read != mask)
            outcomes["wrong" if numbers["wrong"].any() else "right"] += 1
    assert min(outcomes.values()) >= 50, outcomes


def test_a_mask_of_another_torch_layer_is_read_upside_down():
    translator = MaskTranslator(visible="110 100", shown="mistake")
    assert repr(translator) == (
        "MaskTranslator(visible='110 100', shown='mistake', source='module_attn_mask', target='sdpa_mask')"
    )
    numbers = translator.numbers()
    assert numbers["written"].int().tolist() == numbers["read"].int().tolist() == [[0, 0, 1], [0, 1, 1]]
    assert numbers["wrong"].all()


@pytest.mark.parametrize(
    "visible",
    ["", "1", "11 1", "11 111", "11  11", " 11", "11 ", "11\n11", "11 1x", "1111111", " ".join(["11"] * 7)],
)
def test_a_wrong_mask_is_refused(visible):
    message = rf"visible must be 1 to 6 groups of 2 to 6 digits 0 or 1, of equal length, got {visible!r}"
    with pytest.raises(ValueError, match=f"^{re.escape(message)}$"):
        MaskTranslator(visible=visible)
    translator = MaskTranslator()
    with pytest.raises(ValueError, match="visible must be"):
        translator.visible = visible
    assert translator.visible == MaskTranslator().visible


def test_figures_show_the_entries():
    translator = MaskTranslator(visible="10 11")
    panels = {axis.get_title(): axis for axis in translator.figure().axes if axis.get_title()}
    texts = {title: [text.get_text() for text in axis.texts] for title, axis in panels.items()}
    assert list(texts) == list(CONVENTIONS.values())
    assert texts["torch SDPA\nattn_mask, float"] == ["0", "−∞", "0", "0"]
    assert texts["inside HuggingFace\nattention_mask"] == ["0", "min", "0", "0"]
    assert texts["nn.MultiheadAttention\nattn_mask"] == ["F", "T", "F", "F"]
    assert texts["this course\nvalid_lens"] == ["1", "2"]
    assert texts["this course\nkey_mask"] == texts["JAX\nkey_value_seq_lengths"] == ["not possible"]
    colored = panels["nn.MultiheadAttention\nattn_mask"].images[0]
    assert colored.get_array().tolist() == [[1, 0], [1, 1]]
    assert colored.get_cmap().name == plots.COLORMAP
    translator.shown = "mistake"
    steps = [[text.get_text() for text in axis.texts] for axis in translator.figure().axes]
    assert steps == [["T", "F", "T", "T"], *[["F", "T", "F", "F"]] * 2, ["T"] * 4]
