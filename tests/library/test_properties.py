"""Properties of any attention: hypothesis draws sizes, dtypes, masks, biases and the path.

Each draw is determined by its own arguments, so a failure prints all that is needed to reproduce it.
"""

import math
from dataclasses import dataclass

import oracles
import torch
from hypothesis import assume
from hypothesis import strategies as st
from random_draws import property_of
from random_tensors import random
from torch import nn

from mha_lib.attention import dot_product_attention, masked_softmax
from mha_lib.cache import KeyValueCache
from mha_lib.masking import align_mask, build_mask, sliding_window_mask
from mha_lib.multi_head import MultiHeadAttention
from mha_lib.relative import ShawScore
from mha_lib.rotary import RotaryPositionalEncoding
from mha_lib.scores import cosine_score

DTYPES = (torch.float64, torch.float32, torch.bfloat16, torch.float16)
# Two orders of summation differ by a few units in the last place of numbers near 1.
ERRORS = {torch.float64: 1e-12, torch.float32: 1e-5, torch.bfloat16: 4e-2, torch.float16: 5e-3}  # fmt: skip


@dataclass
class Call:
    """Arguments of one call of `dot_product_attention`."""

    query: torch.Tensor
    key: torch.Tensor
    value: torch.Tensor
    hide: dict
    window: tuple | None
    bias: torch.Tensor | None
    scale: float | None
    need_weights: bool

    @property
    def shape(self):
        """(batch, num_heads, q_len, k_len)."""
        return *self.query.shape[:3], self.key.shape[2]

    @property
    def group(self):
        return self.query.shape[1] // self.key.shape[1]

    @property
    def error(self):
        return ERRORS[self.query.dtype]

    @property
    def visible(self):
        """What the loop says is visible, bool of shape (batch, num_heads, q_len, k_len)."""
        pairs = oracles.visible_pairs(*self.shape, **self.hide, window=self.window)
        return torch.from_numpy(pairs)

    def asked(self):
        """The keyword arguments; a window is combined with the other masks."""
        q_len, k_len = self.shape[2:]
        parts = dict(self.hide)
        if self.window is not None:
            left, right = self.window
            window = sliding_window_mask(q_len, k_len, left=left, right=right)
            parts["attn_mask"] = build_mask(q_len, k_len, attn_mask=parts.get("attn_mask"))  # fmt: skip
            if parts["attn_mask"] is None:
                parts["attn_mask"] = window
            else:
                parts["attn_mask"] = parts["attn_mask"] & window
        mask = parts.get("attn_mask")
        if mask is not None and mask.ndim == 2 and len(mask) == self.shape[0] == q_len:
            parts["attn_mask"] = mask[None]  # which could also mean the keys of each sample
        parts |= {"attn_bias": self.bias, "scale": self.scale}
        return parts | {"need_weights": self.need_weights}

    def run(self, query=None, key=None, value=None, **other):
        """Call with some of the arguments replaced: (output, weights)."""
        pairs = (self.query, query), (self.key, key), (self.value, value)
        tensors = [own if new is None else new for own, new in pairs]
        return dot_product_attention(*tensors, **self.asked() | other)

    def seen_by_group(self):
        """Which keys of each key head any query sees: bool (batch, num_kv_heads, k_len)."""
        return self.visible.any(2).unflatten(1, (-1, self.group)).any(2)


seeds = st.integers(0, 10_000)


@st.composite
def masks(draw, batch, heads, q_len, k_len):
    """A bool mask of any rank, any of whose axes may have size 1; sometimes with hidden rows."""
    lead = draw(st.sampled_from([(), (batch,), (1,), (batch, heads), (1, heads), (batch, 1)]))  # fmt: skip
    shape = (*lead, draw(st.sampled_from([1, q_len])), draw(st.sampled_from([1, k_len])))  # fmt: skip
    share = draw(st.sampled_from([0.2, 0.5, 0.9]))
    generator = torch.Generator().manual_seed(draw(seeds))
    return torch.rand(shape, generator=generator) < share


@st.composite
def calls(draw, need_weights=None, causal=None, plain=False):
    batch, group = draw(st.integers(1, 3)), draw(st.integers(1, 3))
    kv_heads = draw(st.integers(1, 2))
    heads = kv_heads * group
    # Torch's CPU kernel processes 16 keys at once, and the remaining ones at the end.
    q_len, k_len = draw(st.integers(1, 5)), draw(st.integers(1, 7) | st.integers(15, 19))  # fmt: skip
    width = draw(st.integers(1, 5))
    # If values are as wide as keys, torch's fused kernel runs; otherwise, its plain formula.
    value_width = width if draw(st.booleans()) else draw(st.integers(1, 5))
    dtype, seed = draw(st.sampled_from(DTYPES)), draw(seeds)
    if causal is None:
        causal = draw(st.booleans())
    if draw(st.booleans()):
        k_len = q_len
    hide, window, bias = {}, None, None
    if not plain:
        if draw(st.booleans()):
            hide["attn_mask"] = draw(masks(batch, heads, q_len, k_len))
        if draw(st.booleans()):
            count = draw(st.sampled_from([1, q_len]))
            size = (batch, count) if count > 1 else (batch,)
            generator = torch.Generator().manual_seed(draw(seeds))
            hide["valid_lens"] = torch.randint(0, k_len + 1, size, generator=generator)
        if draw(st.integers(0, 3)) == 0:
            side = st.none() | st.integers(0, 3)
            window = draw(side), draw(side)
        if draw(st.booleans()):
            leads = [(), (batch, heads), (1, heads), (batch, 1)]
            lead = draw(st.sampled_from(leads))
            bias = random(*lead, draw(st.sampled_from([1, q_len])), k_len, seed=seed + 3)  # fmt: skip
            bias = bias.to(torch.promote_types(dtype, torch.float32))
    if causal:
        hide["is_causal"] = True
    return Call(
        query=random(batch, heads, q_len, width, seed=seed, dtype=dtype),
        key=random(batch, kv_heads, k_len, width, seed=seed + 1, dtype=dtype),
        value=random(batch, kv_heads, k_len, value_width, seed=seed + 2, dtype=dtype),
        hide=hide,
        window=window,
        bias=bias,
        scale=draw(st.none() | st.sampled_from([0.1, 1.0])),
        need_weights=draw(st.booleans()) if need_weights is None else need_weights,
    )


def differentiable(*tensors):
    return [tensor.detach().clone().requires_grad_() for tensor in tensors]


def close(own, other, error):
    torch.testing.assert_close(own, other, rtol=error, atol=error)


@property_of(call=calls())
def test_attention_is_what_the_loop_computes(call):
    output, weights = call.run()
    expected, expected_weights = oracles.attention(
        call.query, call.key, call.value,
        attn_bias=call.bias, scale=call.scale, window=call.window, **call.hide,
    )  # fmt: skip
    assert output.dtype == call.query.dtype
    close(output.double(), torch.from_numpy(expected), call.error)
    if call.need_weights:
        close(weights.double(), torch.from_numpy(expected_weights), call.error)


@property_of(call=calls(), fill=st.sampled_from([1e30, -1e30, 1e4, 0.0]))
def test_hidden_keys_and_values_cannot_matter(call, fill):
    """Whatever finite numbers they hold, the output does not change, and they receive no gradient."""
    if call.query.dtype == torch.float16:
        fill = max(-6e4, min(6e4, fill))
    hidden = ~call.seen_by_group()
    query, *plain = differentiable(call.query, call.key, call.value)
    filled = differentiable(*(x.masked_fill(hidden[..., None], fill) for x in (call.key, call.value)))
    outputs = [call.run(query, *keys_values)[0] for keys_values in (plain, filled)]
    assert torch.equal(*outputs)
    assert outputs[0].isfinite().all()
    results = [
        torch.autograd.grad(output.float().square().sum(), (query, *keys_values))
        for output, keys_values in zip(outputs, (plain, filled), strict=True)
    ]
    for own, other in zip(*results, strict=True):
        assert torch.equal(own, other)
    for gradient in results[1][1:]:
        assert (gradient[hidden] == 0).all()
    assert (results[1][0][~call.visible.any(-1)] == 0).all()


@property_of(call=calls(), where=st.sampled_from(["query", "key", "value"]), seed=seeds)
def test_nan_in_what_is_visible_is_never_hidden(call, where, seed):
    changed = getattr(call, where).clone()
    b, h, n, c = (seed // divisor % size for divisor, size in zip((1, 3, 7, 11), changed.shape, strict=True))
    changed[b, h, n, c] = math.nan
    output, weights = call.run(**{where: changed})
    visible, expected = call.visible, torch.zeros(output.shape, dtype=torch.bool)
    touched = [h] if where == "query" else range(h * call.group, (h + 1) * call.group)
    for head in touched:
        if where == "query":
            expected[b, head, n] = visible[b, head, n].any()
        elif where == "key":
            expected[b, head, visible[b, head, :, n]] = True
        else:
            expected[b, head, visible[b, head, :, n], c] = True
    assert output[expected].isnan().all()
    # It cannot reach any other sample, or a head that does not share it.
    for head in touched:
        expected[b, head] = True
    assert output[~expected].isfinite().all()
    if call.need_weights and where == "key":
        assert weights[b, touched][visible[b, touched][..., n]].isnan().all()


@property_of(call=calls(causal=True), seed=seeds)
def test_the_future_cannot_change_the_past(call, seed):
    q_len, k_len = call.shape[2:]
    first = seed % (k_len + 1)  # from this key on, the future differs
    key, value = call.key.clone(), call.value.clone()
    key[:, :, first:] = random(*key[:, :, first:].shape, seed=seed, dtype=key.dtype)
    value[:, :, first:] = 7
    before, after = call.run()[0], call.run(key=key, value=value)[0]
    past = max(first - (k_len - q_len), 0)  # queries before that key
    assert torch.equal(before[:, :, :past], after[:, :, :past])


@property_of(call=calls())
def test_arguments_are_never_modified(call):
    tensors = [call.query, call.key, call.value]
    tensors += [part for part in call.asked().values() if isinstance(part, torch.Tensor)]  # fmt: skip
    bias = call.bias
    for tensor in tensors:
        if tensor.is_floating_point():
            tensor.requires_grad_()
    copies, versions = [t.detach().clone() for t in tensors], [t._version for t in tensors]  # fmt: skip
    output, _ = call.run()
    output.float().sum().backward()
    assert call.bias is bias
    for tensor, copy, version in zip(tensors, copies, versions, strict=True):
        assert tensor._version == version
        assert torch.equal(tensor.detach(), copy)


@property_of(call=calls(need_weights=True))
def test_both_paths_are_one_function(call):
    given = differentiable(call.query, call.key, call.value)
    upstream = random(*call.run()[0].shape, seed=1, dtype=call.query.dtype)
    outputs, gradients = [], []
    for need_weights in (True, False):
        output, weights = call.run(*given, need_weights=need_weights)
        assert (weights is not None) == need_weights
        outputs.append(output)
        gradients.append(torch.autograd.grad(output, given, upstream))
    close(*outputs, call.error)
    for own, other in zip(*gradients, strict=True):
        # A gradient sums over all heads that share a key.
        close(own, other, 5 * call.error * max(1.0, own.abs().max().item()))


@property_of(data=st.data())
def test_the_softmax_alone(data):
    """Shifts change nothing, order is kept, and hidden scores may be anything at all."""
    batch, heads, q_len, k_len = (data.draw(st.integers(1, 4)) for _ in range(4))
    mask = data.draw(st.none() | masks(batch, heads, q_len, k_len))
    seed, dtype = data.draw(seeds), data.draw(st.sampled_from(DTYPES[:2]))
    scores = random(batch, heads, q_len, k_len, seed=seed, dtype=dtype) * 5
    weights = masked_softmax(scores, mask)
    seen = torch.ones(scores.shape, dtype=torch.bool)
    if mask is not None:
        seen = align_mask(mask, scores.shape).expand(scores.shape)
    close(masked_softmax(scores + 3, mask), weights, 10 * ERRORS[dtype])
    for wrong in (math.nan, math.inf, -math.inf, 1e30):
        assert torch.equal(masked_softmax(scores.masked_fill(~seen, wrong), mask), weights)
    largest = scores.masked_fill(~seen, -math.inf).amax(-1, keepdim=True)
    assert (weights == weights.amax(-1, keepdim=True))[(scores == largest) & seen].all()


# The layer

EMBED_DIM, HEADS = 12, 6
RULES = {
    "plain": dict,
    "rotary": lambda: {"rotary": RotaryPositionalEncoding(EMBED_DIM // HEADS)},
    "cosine": lambda: {"score": cosine_score},
    "Shaw": lambda: {"score": ShawScore(EMBED_DIM // HEADS, 2)},
}


@st.composite
def layers(draw):
    torch.manual_seed(draw(seeds))
    layer = MultiHeadAttention(
        EMBED_DIM,
        HEADS,
        num_kv_heads=draw(st.sampled_from([6, 3, 2, 1])),
        bias=draw(st.booleans()),
        **RULES[draw(st.sampled_from([*RULES]))](),
    ).double()
    for parameter in layer.parameters():
        nn.init.normal_(parameter, std=0.5)
    return layer


@property_of(
    layer=layers(), batch=st.integers(1, 3), length=st.integers(1, 6) | st.integers(16, 18),
    seed=seeds, need_weights=st.booleans(), is_causal=st.booleans(),
)  # fmt: skip
def test_a_layer_keeps_samples_padding_and_future_apart(layer, batch, length, seed, need_weights, is_causal):
    generator = torch.Generator().manual_seed(seed)
    lens = torch.randint(0, length + 1, (batch,), generator=generator)
    x = random(batch, length, EMBED_DIM, seed=seed)
    asked = {"is_causal": is_causal, "need_weights": need_weights}
    output, weights = layer(x, x, x, valid_lens=lens, **asked)
    for b in range(batch):
        alone, _ = layer(*[x[b : b + 1]] * 3, valid_lens=lens[b : b + 1], **asked)
        close(alone[0], output[b], 1e-10)
    padding = torch.arange(length) >= lens[:, None]
    memory = x.masked_fill(padding[..., None], 1e30).requires_grad_()
    other, _ = layer(x, memory, memory, valid_lens=lens, **asked)
    assert torch.equal(other, output)
    (gradient,) = torch.autograd.grad(other.sum(), memory)
    assert (gradient[padding] == 0).all()
    if need_weights:
        rows = weights.sum(-1)
        close(rows, (lens > 0).double()[:, None, None].expand_as(rows), 1e-10)
    if is_causal:
        cut = seed % length
        later = x.clone()
        later[:, cut:] += 1
        changed, _ = layer(later, later, later, **asked)
        plain, _ = layer(x, x, x, **asked)
        assert torch.equal(changed[:, :cut], plain[:, :cut])


@property_of(layer=layers(), need_weights=st.booleans(), with_cache=st.booleans(), seed=seeds)
def test_a_layer_modifies_nothing_that_it_is_given(layer, need_weights, with_cache, seed):
    assume(not (with_cache and isinstance(layer.score, ShawScore)))  # refused
    x, memory = random(2, 3, EMBED_DIM, seed=seed), random(2, 5, EMBED_DIM, seed=seed + 1)  # fmt: skip
    mask, bias = torch.ones(2, 3, 5, dtype=torch.bool), random(3, 5, seed=seed + 2)
    lens = torch.tensor([4, 5])
    given = [x, memory, mask, bias, lens, *layer.parameters()]
    copies, versions = [t.clone() for t in given], [t._version for t in given]
    cache = KeyValueCache() if with_cache else None
    for _ in range(2):
        asked = {} if with_cache else {"attn_mask": mask, "attn_bias": bias}
        layer(
            x, memory, memory, valid_lens=lens, cache=cache, need_weights=need_weights, **asked
        )  # fmt: skip
        held = () if cache is None else (cache.keys, cache.values)
        before = [t.clone() for t in held]
        layer(x, memory[:, :0], memory[:, :0], cache=cache, need_weights=need_weights)
        assert all(torch.equal(*pair) for pair in zip(held, before, strict=True))
    for tensor, copy, version in zip(given, copies, versions, strict=True):
        assert tensor._version == version
        assert torch.equal(tensor, copy)
