"""The node cases that the onnx wheel ships for attention and rotary encoding.

They were written for other code by other people. Their inputs and outputs are used as they are; the code here
only translates the names of ONNX. No case is silently left out: the last test counts them.
"""

import functools
import importlib
import math
from dataclasses import dataclass

import numpy as np
import onnx
import onnx.backend.test.case.node
import pytest
import torch
import torch.nn.functional as F
from attention_marks import BOTH_PATHS
from torch import Tensor

from mha_lib.attention import dot_product_attention
from mha_lib.cache import KeyValueCache
from mha_lib.masking import align_bias, align_mask, build_mask, causal_mask, sliding_window_mask
from mha_lib.multi_head import MultiHeadAttention
from mha_lib.rotary import apply_rotary
from mha_lib.scores import scaled_dot_product_score, softcap_scores

# onnx compares with a relative 1e-3, and 2^-6 in bfloat16. In float32 two correct ways
# to sum differ by much less. Its half-precision results are rounded after each step,
# including the softmax, ours less often, so they differ by up to two units in the last place.
TOLERANCES = {torch.float32: 1e-5, torch.float16: 2**-9, torch.bfloat16: 2**-6}


@dataclass(frozen=True)
class Case:
    """One node with its arrays, under the names that the operator's specification gives them."""

    attributes: dict[str, object]
    inputs: dict[str, Tensor]
    outputs: dict[str, Tensor]


def as_tensor(array):
    if array.dtype.name == "bfloat16":  # a dtype that numpy lacks
        return torch.from_numpy(array.view(np.int16).copy()).view(torch.bfloat16)
    return torch.from_numpy(array.copy())


def load(module, operator):
    """All cases of an operator, {name: Case}, except those that expand it into smaller operators."""
    importlib.import_module(f"onnx.backend.test.case.node.{module}")
    cases = {}
    for case in onnx.backend.test.case.node._NodeTestCases:
        nodes = case.model.graph.node
        if len(nodes) != 1 or nodes[0].op_type != operator:
            continue
        (node,) = nodes
        schema = onnx.defs.get_schema(operator, case.model.opset_import[0].version)
        ((inputs, outputs),) = case.data_sets

        def named(arrays, given, formal):
            names = [f.name for f, name in zip(formal, given, strict=False) if name]
            return dict(zip(names, map(as_tensor, arrays), strict=True))

        cases[case.name.removeprefix("test_")] = Case(
            {a.name: onnx.helper.get_attribute_value(a) for a in node.attribute},
            named(inputs, node.input, schema.inputs),
            named(outputs, node.output, schema.outputs),
        )
    return cases


def assert_agrees(actual, expected):
    """Assert equality up to the tolerance of the dtype, which must agree; infinities in the same places."""
    torch.testing.assert_close(actual, expected, rtol=TOLERANCES[expected.dtype], atol=1e-7)


ATTENTION = load("attention", "Attention")
NAMES = pytest.mark.parametrize("name", ATTENTION)


def mask_and_bias(attn_mask, k_len):
    """ONNX has one argument for both: (bool mask or None, finite bias or None)."""
    if attn_mask is None:
        return None, None
    # A mask that is too short hides the keys that it does not cover.
    fill = False if attn_mask.dtype == torch.bool else -math.inf
    attn_mask = F.pad(attn_mask, (0, k_len - attn_mask.shape[-1]), value=fill)
    # Axes are matched from the right: three are heads, queries and keys, where ours are
    # samples, queries and keys.
    if attn_mask.ndim in (1, 3):
        attn_mask = attn_mask[None]
    if attn_mask.dtype == torch.bool:
        return attn_mask, None
    seen = attn_mask > -math.inf
    return None if seen.all() else seen, attn_mask.masked_fill(~seen, 0.0)


def placed(rule, offset, q_len, k_len):
    """A mask that depends on positions, for queries at offset, offset + 1, ... and keys at 0, 1, ...

    Our masks let both sequences end together, so the shorter one is extended until they do, then cut back.
    """
    end = max(offset + q_len, k_len)
    return rule(end - offset, end)[:q_len, :k_len]


def both(first, second):
    """Visible where both masks allow it; the first axis of a mask of rank 3 is the batch."""
    if first is None or second is None:
        return second if first is None else first
    first, second = (m[:, None] if m.ndim == 3 else m for m in (first, second))
    return first & second


def translate(case):
    """(query, key, value, arguments of `dot_product_attention`, cache or None), heads split, past keys in."""
    given, attributes = case.inputs, case.attributes
    query, key, value = (given[name] for name in "QKV")
    if query.ndim == 3:
        q_heads, kv_heads = attributes["q_num_heads"], attributes["kv_num_heads"]
        query, key, value = (
            MultiHeadAttention(x.shape[-1], heads).split_heads(x)
            for x, heads in ((query, q_heads), (key, kv_heads), (value, kv_heads))
        )
    cache = None
    if "past_key" in given:
        cache = KeyValueCache()
        cache.append(given["past_key"], given["past_value"])
    q_len = query.shape[2]
    k_len = key.shape[2] + (0 if cache is None else len(cache))

    # Position of the first query: after the cached keys; or, with a cache that the caller
    # keeps, such that the last query is at the last key in use; or at key 0.
    lens = given.get("nonpad_kv_seqlen")
    offsets = [0 if cache is None else len(cache)]
    if lens is not None:
        assert cache is None
        offsets = (lens - q_len).tolist()
    rules = []
    is_causal = bool(attributes.get("is_causal", 0))
    if is_causal and any(offset + q_len != k_len for offset in offsets):
        rules, is_causal = [causal_mask], False
    left, right = (attributes.get(f"{side}_window_size", -1) for side in ("left", "right"))
    if max(left, right) >= 0:
        left, right = (None if size < 0 else size for size in (left, right))
        rules.append(functools.partial(sliding_window_mask, left=left, right=right))

    mask, bias = mask_and_bias(given.get("attn_mask"), k_len)
    for rule in rules:
        masks = torch.stack([placed(rule, offset, q_len, k_len) for offset in offsets])
        mask = both(mask, masks[0] if len(masks) == 1 else masks)
    arguments = {
        "attn_mask": mask, "attn_bias": bias, "valid_lens": lens, "is_causal": is_causal,
        "scale": attributes.get("scale"), "softcap": attributes.get("softcap"),
    }  # fmt: skip
    return query, key, value, arguments, cache


def scores_of(query, key, arguments, mode):
    """What `qk_matmul_output` is before the softmax: 0 the scores, 1 capped, 2 with bias and mask too."""
    key = key.repeat_interleave(query.shape[1] // key.shape[1], dim=1)
    scores = scaled_dot_product_score(query, key, scale=arguments["scale"])
    if mode >= 1 and arguments["softcap"] is not None:
        scores = softcap_scores(scores, arguments["softcap"])
    if mode == 2:
        if arguments["attn_bias"] is not None:
            scores = scores + align_bias(arguments["attn_bias"], scores.shape)
        mask = build_mask(
            *scores.shape[-2:],
            attn_mask=arguments["attn_mask"],
            valid_lens=arguments["valid_lens"],
            is_causal=arguments["is_causal"],
        )
        if mask is not None:
            mask = align_mask(mask, scores.shape)
            scores = scores.masked_fill(~mask, -math.inf)
    return scores


@NAMES
@BOTH_PATHS
def test_attention(name, need_weights):
    case = ATTENTION[name]
    query, key, value, arguments, cache = translate(case)
    if cache is not None:
        key, value, visible = cache.append(key, value)
        assert visible is None
    output, weights = dot_product_attention(query, key, value, **arguments, need_weights=need_weights)
    if case.inputs["Q"].ndim == 3:
        heads, width = output.shape[1], output.shape[-1]
        output = MultiHeadAttention(heads * width, heads).merge_heads(output)
    assert_agrees(output, case.outputs["Y"])
    assert (weights is not None) == need_weights
    if cache is not None and "present_key" in case.outputs:
        assert torch.equal(key, case.outputs["present_key"])
        assert torch.equal(value, case.outputs["present_value"])
    if "qk_matmul_output" in case.outputs and need_weights:
        mode = case.attributes.get("qk_matmul_output_mode", 0)
        if mode < 3:
            weights = scores_of(query, key, arguments, mode)
        assert_agrees(weights, case.outputs["qk_matmul_output"])


ROTARY = load("rotaryembedding", "RotaryEmbedding")


@pytest.mark.parametrize("name", ROTARY)
def test_rotary_embedding(name):
    case = ROTARY[name]
    x, attributes = case.inputs["X"], case.attributes
    interleaved = bool(attributes.get("interleaved", 0))
    if x.ndim == 3:
        layer = MultiHeadAttention(x.shape[-1], attributes["num_heads"])
        x = layer.split_heads(x)
    cos, sin = case.inputs["cos_cache"], case.inputs["sin_cache"]
    if "position_ids" in case.inputs:
        cos, sin = (table[case.inputs["position_ids"]] for table in (cos, sin))
    turned = apply_rotary(x, torch.atan2(sin, cos), interleaved=interleaved)

    # These cosines and sines are random numbers that belong to no angle: they turn and also stretch
    # each pair.
    stretch = torch.hypot(cos, sin)
    stretch = stretch.repeat_interleave(2, dim=-1) if interleaved else torch.cat((stretch, stretch), dim=-1)
    rest = x.shape[-1] - stretch.shape[-1]
    turned = turned * F.pad(stretch, (0, rest), value=1.0)[:, None]
    if case.inputs["X"].ndim == 3:
        turned = layer.merge_heads(turned)
    torch.testing.assert_close(turned, case.outputs["Y"], rtol=1e-5, atol=1e-6)


# What the tests above cover, under the names in the operators' specifications.
USED = {
    "Attention": (
        "Q K V attn_mask past_key past_value nonpad_kv_seqlen "
        "is_causal scale softcap left_window_size right_window_size q_num_heads kv_num_heads "
        "qk_matmul_output_mode Y present_key present_value qk_matmul_output"
    ),
    "RotaryEmbedding": ("X cos_cache sin_cache position_ids interleaved num_heads rotary_embedding_dim Y"),
}
LEFT_OUT = {"softmax_precision": "ours is float32 at least; the difference is below the tolerance"}


@pytest.mark.parametrize(
    ("operator", "cases", "at_least"), [("Attention", ATTENTION, 93), ("RotaryEmbedding", ROTARY, 8)]
)
def test_every_case_is_used(operator, cases, at_least):
    # The number in onnx 1.23. New ones are tested automatically, unless they contain something
    # that no test covers.
    assert len(cases) >= at_least
    named = set()
    for case in cases.values():
        named.update(case.attributes, case.inputs, case.outputs)
    assert named - set(LEFT_OUT) == set(USED[operator].split())
