"""Blocks and stacks of the Transformer: what they may see, dropout, the cache, what a user of torch expects.

test_conversion.py compares their values and gradients with those of torch's own layers, test_checkpoints.py
with the models of transformers. Every axis has a different prime size, so that no two can be confused.
"""

import copy
import io
import itertools
import pickle

import pytest
import torch
from attention_layers import hidden, shaken
from attention_marks import slow
from random_tensors import bools, random
from torch import nn

from mha_lib import (
    GPT2,
    EncoderBlock,
    EncoderDecoder,
    FeedForward,
    RMSNorm,
    RotaryPositionalEncoding,
    capture_attention,
    masking,
)
from mha_lib.cache import KeyValueCache
from mha_lib.transformer import DecoderBlock, DecoderBlockCache, TransformerDecoder, TransformerEncoder

LAYERS = 2
HEAD_DIM, BATCH, HEADS, Q_LEN, K_LEN, HIDDEN_DIM = 2, 3, 5, 7, 11, 17
EMBED_DIM = HEADS * HEAD_DIM
EPS = 1e-3  # large enough to reveal the wrong one
SIZES = EMBED_DIM, HEADS, HIDDEN_DIM

NORMS = pytest.mark.parametrize("norm_first", [True, False], ids=["pre", "post"])


X, MEMORY = random(BATCH, Q_LEN, EMBED_DIM), random(BATCH, K_LEN, EMBED_DIM, seed=1)
LENS, MEMORY_LENS = torch.tensor([7, 4, 5]), torch.tensor([5, 11, 2])


def close(actual, expected):
    torch.testing.assert_close(actual, expected, rtol=1e-10, atol=1e-10)


FUTURE = torch.ones(Q_LEN, Q_LEN, dtype=torch.bool).triu(1)
SELF_MASK, CROSS_MASK = bools(Q_LEN, Q_LEN), bools(Q_LEN, K_LEN, seed=1)
HEAD_MASK = bools(BATCH, HEADS, Q_LEN, Q_LEN, seed=2)
BIAS = random(BATCH, HEADS, Q_LEN, Q_LEN, seed=4)
HEAD_CROSS_MASK = bools(BATCH, HEADS, Q_LEN, K_LEN, seed=3)


ALL_KINDS = {
    "encoder block": (EncoderBlock, (), (X,)),
    "encoder": (TransformerEncoder, (LAYERS,), (X,)),
    "decoder block": (DecoderBlock, (), (X, MEMORY)),
    "decoder": (TransformerDecoder, (LAYERS,), (X, MEMORY)),
}
KINDS = pytest.mark.parametrize("kind", ALL_KINDS)


def make(kind, **options):
    cls, layers, inputs = ALL_KINDS[kind]
    return shaken(cls(*layers, *SIZES, **{"bias": True} | options), std=0.5).eval(), inputs


@NORMS
def test_norm_first_is_the_default_and_ends_with_a_norm(norm_first):
    for stack in (TransformerEncoder, TransformerDecoder):
        block = stack(LAYERS, *SIZES).blocks[0]
        assert block.norm_first
        assert block.feed_forward.activation == "relu"
        assert block.feed_forward_norm.eps == 1e-5
        names = dict(stack(LAYERS, *SIZES, norm_first=norm_first).named_parameters())
        assert ("norm.weight" in names) == norm_first


# Feed-forward


def by_hand_feed_forward(x, layer):
    hidden = x @ layer.up_proj.weight.T + layer.up_proj.bias
    if layer.activation == "gelu":
        hidden = hidden * (1 + torch.erf(hidden / 2**0.5)) / 2
    elif layer.activation == "gelu_tanh":
        inner = (2 / torch.pi) ** 0.5 * (hidden + 0.044715 * hidden**3)
        hidden = hidden * (1 + torch.tanh(inner)) / 2
    elif layer.activation == "silu":
        hidden = hidden / (1 + torch.exp(-hidden))
    elif layer.activation == "swiglu":
        gate = x @ layer.gate_proj.weight.T + layer.gate_proj.bias
        hidden = hidden * gate / (1 + torch.exp(-gate))
    else:
        hidden = hidden.clamp(min=0)
    return hidden @ layer.down_proj.weight.T + layer.down_proj.bias


@pytest.mark.parametrize("activation", ["relu", "gelu", "gelu_tanh", "silu", "swiglu"])
def test_feed_forward_equals_the_formula_for_any_leading_axes(activation):
    layer = shaken(FeedForward(EMBED_DIM, HIDDEN_DIM, activation=activation, bias=True))
    for shape in ((), (Q_LEN,), (BATCH, HEADS, Q_LEN)):
        x = random(*shape, EMBED_DIM) * 3
        close(layer(x), by_hand_feed_forward(x, layer))


@pytest.mark.parametrize("sizes", [(EMBED_DIM, HIDDEN_DIM), (HIDDEN_DIM, EMBED_DIM)])
def test_feed_forward_starts_with_xaviers_weights_and_zeros_as_biases(sizes):
    layer = FeedForward(*sizes, bias=True)
    bound = (6 / (EMBED_DIM + HIDDEN_DIM)) ** 0.5
    for proj in (layer.up_proj, layer.down_proj):
        assert 0.8 * bound < proj.weight.abs().max() <= bound
        assert not proj.bias.any()


# What a block may see


@KINDS
@NORMS
@pytest.mark.parametrize("training", [True, False], ids=["train", "eval"])
def test_no_peeking(kind, norm_first, training):
    """The gradient of each output reaches its own past and nothing else, in training and evaluation."""
    model, inputs = make(kind, norm_first=norm_first)
    model.train(training)
    hide = {} if "decoder" in kind else {"is_causal": True}
    x, *memory = (x.clone().requires_grad_() for x in inputs)
    output = model(x, *memory, **hide)
    for i in range(Q_LEN):
        reached = torch.autograd.grad(output[:, i].square().sum(), x, retain_graph=True)
        assert (reached[0].abs().sum(-1) > 0).tolist() == [[j <= i for j in range(Q_LEN)]] * BATCH


def test_lengths_of_the_memory_may_differ_by_query():
    model, inputs = make("decoder")
    lens = torch.arange(BATCH * Q_LEN).view(BATCH, Q_LEN) % K_LEN + 1
    mask = torch.arange(K_LEN) < lens.unsqueeze(-1)
    close(model(*inputs, memory_valid_lens=lens), model(*inputs, memory_mask=mask))
    both = model(*inputs, memory_valid_lens=lens, memory_mask=HEAD_CROSS_MASK)
    close(both, model(*inputs, memory_mask=HEAD_CROSS_MASK & mask.unsqueeze(1)))


@KINDS
def test_a_memory_or_sequence_without_visible_tokens_gives_no_nan(kind):
    model, inputs = make(kind)
    none = torch.zeros(BATCH, dtype=torch.int64)
    name = "memory_valid_lens" if "decoder" in kind else "valid_lens"
    x = inputs[0].clone().requires_grad_()
    output = model(x, *inputs[1:], **{name: none})
    output.sum().backward()
    assert output.isfinite().all() and x.grad.isfinite().all()


# Dropout


@KINDS
@NORMS
def test_dropout_is_applied_where_torch_applies_it(kind, norm_first):
    """From the same seed, ours and torch's drop the same numbers in the same places.

    There is one sample: torch's layer transposes the batch axis, and draws for several in another order.
    """
    # Not relu, for which dropout before and after are the same.
    options = {"norm_first": norm_first, "dropout": 0.3, "activation": "gelu"}
    ours, inputs = make(kind, **options)
    inputs = [x[:1] for x in inputs]
    theirs, hide = ours.train().to_torch(), {"tgt_mask": FUTURE} if "decoder" in kind else {}
    outputs = []
    for run in (lambda: ours(*inputs), lambda: theirs(*inputs, **hide)):
        torch.manual_seed(0)
        outputs.append(run())
    close(*outputs)
    assert not torch.allclose(ours(*inputs), outputs[0])


@KINDS
def test_no_dropout_in_evaluation(kind):
    dropping, inputs = make(kind, dropout=0.5)
    plain, _ = make(kind)
    state = torch.get_rng_state()
    assert torch.equal(dropping(*inputs), plain(*inputs))
    assert torch.equal(torch.get_rng_state(), state)


MODELS = {
    "GPT-2": (lambda p: GPT2(19, 12, 3, 7, 2, max_len=5, dropout=p), 1 + 2 * 3),
    "encoder and decoder": (lambda p: EncoderDecoder(19, 19, 12, 3, 7, 2, dropout=p), 2 + 2 * (3 + 4)),
}


@pytest.mark.parametrize(("make_model", "drops"), MODELS.values(), ids=MODELS)
def test_embeddings_hidden_layers_and_residuals_are_dropped_once_each(make_model, drops):
    """Where everything is dropped, nothing of the tokens is left."""
    model, dropped = make_model(1.0).train(), []
    for part in model.modules():
        if isinstance(part, nn.Dropout):
            part.register_forward_hook(lambda part, _, output: dropped.append(output.abs().max().item()))
    tokens = torch.arange(6).view(2, 3)
    logits = model(tokens, tokens) if isinstance(model, EncoderDecoder) else model(tokens)[1]
    assert dropped == [0.0] * drops
    assert torch.equal(logits, logits[:1, :1].expand_as(logits))


# The cache


def decode(model, chunks, memory, cache, **hide):
    outputs = []
    for chunk in chunks:
        causal = {} if memory else {"is_causal": True}
        outputs.append(model(chunk, *memory, cache=cache, **causal, **hide))
    return torch.cat(outputs, dim=1)


def new_cache(model):
    if isinstance(model, EncoderBlock):
        return KeyValueCache()
    return DecoderBlockCache() if isinstance(model, DecoderBlock) else model.new_cache()


SPLITS = [(7,), (1,) * 7, (3, 4), (5, 1, 1), (1, 0, 6)]


@KINDS
@NORMS
@pytest.mark.parametrize("split", SPLITS, ids=str)
@pytest.mark.parametrize("modern", [False, True], ids=["plain", "rotary, shared keys"])
def test_chunks_with_a_cache_equal_the_whole(kind, norm_first, split, modern):
    rotary = RotaryPositionalEncoding(HEAD_DIM) if modern else None
    model, (x, *memory) = make(kind, norm_first=norm_first, rotary=rotary, num_kv_heads=1 if modern else None)
    hide = {"memory_valid_lens": MEMORY_LENS} if memory else {}
    whole = model(x, *memory, **hide) if memory else model(x, is_causal=True)
    cache = new_cache(model)
    close(decode(model, x.split(split, dim=1), memory, cache, **hide), whole)
    first = cache[0] if isinstance(cache, list) else cache
    assert len(first) == Q_LEN


@KINDS
@pytest.mark.parametrize("modern", [False, True], ids=["plain", "rotary, shared keys"])
def test_chunks_of_sequences_of_different_lengths(kind, modern):
    """Each sample fills its own part of a chunk; the rest of the chunk must not matter."""
    rotary = RotaryPositionalEncoding(HEAD_DIM) if modern else None
    model, (x, *memory) = make(kind, rotary=rotary, num_kv_heads=1 if modern else None)
    hide = {"memory_valid_lens": MEMORY_LENS} if memory else {"is_causal": True}
    whole = model(x, *memory, **hide)
    widths = (3, 1, 3)
    lens = torch.tensor([[3, 1, 3], [2, 0, 3], [0, 1, 2]])  # (batch, chunks)
    cache, done = new_cache(model), torch.zeros(BATCH, dtype=torch.int64)
    for width, real in zip(widths, lens.T, strict=True):
        chunk = 100 * random(BATCH, width, EMBED_DIM, seed=9)
        for b in range(BATCH):
            chunk[b, : real[b]] = x[b, done[b] : done[b] + real[b]]
        output = model(chunk, *memory, valid_lens=real, cache=cache, **hide)
        for b in range(BATCH):
            close(output[b, : real[b]], whole[b, done[b] : done[b] + real[b]])
        done += real
    first = cache[0] if isinstance(cache, list) else cache
    own = getattr(first, "self_attention", first)
    assert own.lens.tolist() == done.tolist() == [7, 5, 3]


def test_masks_and_biases_with_a_cache_span_all_slots():
    model, (x,) = make("encoder")
    hide, keys = {"attn_mask": HEAD_MASK, "attn_bias": BIAS}, ~hidden(LENS, Q_LEN)
    whole, cache = model(x, key_mask=keys, is_causal=True, **hide), model.new_cache()
    for i in range(Q_LEN):
        now = {name: part[:, :, i : i + 1, : i + 1] for name, part in hide.items()}
        now["key_mask"] = keys[:, : i + 1]
        output = model(x[:, i : i + 1], is_causal=True, cache=cache, **now)
        close(output, whole[:, i : i + 1])


def test_masks_of_the_memory_with_a_cache_are_those_of_each_call():
    model, inputs = make("decoder")
    lens = torch.arange(BATCH * Q_LEN).view(BATCH, Q_LEN) % K_LEN + 1
    whole = model(*inputs, memory_mask=HEAD_CROSS_MASK, memory_valid_lens=lens)
    cache = model.new_cache()
    for i in range(Q_LEN):
        now = slice(i, i + 1)
        masks = {"memory_mask": HEAD_CROSS_MASK[:, :, now], "memory_valid_lens": lens[:, now]}
        output = model(X[:, now], MEMORY, cache=cache, **masks)
        close(output, whole[:, now])


def test_the_memory_is_projected_once():
    model, (x, memory) = make("decoder")
    projected = []
    for block in model.blocks:
        for proj in (block.cross_attention.k_proj, block.cross_attention.v_proj):
            proj.register_forward_pre_hook(lambda _, args: projected.append(args[0].shape[1]))
    decode(model, x.split(1, dim=1), (memory,), model.new_cache())
    assert sum(projected) == LAYERS * 2 * K_LEN


def test_a_cache_that_does_not_fit_is_unchanged():
    model, (x, memory) = make("decoder")
    cache = model.new_cache()
    model(x[:, :2], memory, cache=cache)
    for change in (
        lambda: model(x, memory[:, 1:], cache=cache), lambda: model(x[1:], memory[1:], cache=cache),
        lambda: model(x, memory, cache=cache[1:]), lambda: model(x, memory, cache=cache[:1] * LAYERS),
        lambda: model(x, memory, memory_valid_lens=LENS + K_LEN, cache=cache),
        lambda: model(x, memory, memory_mask=CROSS_MASK[1:], cache=cache),
        lambda: model(x, memory, SELF_MASK, cache=cache),
    ):  # fmt: skip
        with pytest.raises(ValueError, match="must"):
            change()
        assert [(len(own), len(own.cross_attention)) for own in cache] == [(2, K_LEN)] * LAYERS
    model(x, memory, cache=cache)
    cache[1] = DecoderBlockCache()
    with pytest.raises(ValueError, match=r"lengths \[9, 0\]"):
        model(x, memory, cache=cache)


# Gated feed-forward


def test_a_gate_is_a_layer_of_its_own():
    gated, plain = (FeedForward(EMBED_DIM, HIDDEN_DIM, activation=name) for name in ("swiglu", "silu"))
    names = ["gate_proj.weight", "up_proj.weight", "down_proj.weight"]
    assert list(gated.state_dict()) == names
    assert list(plain.state_dict()) == names[1:]
    biased = FeedForward(EMBED_DIM, HIDDEN_DIM, activation="swiglu", bias=True)
    assert biased.gate_proj.bias.abs().sum() == 0
    before = gated.gate_proj.weight.clone()
    gated.reset_parameters()
    assert not torch.equal(gated.gate_proj.weight, before)
    # Where every gate is SiLU(40) = 40, the layer is linear.
    shaken(gated)
    x = random(BATCH, EMBED_DIM)
    x[:, 0] = 1.0
    with torch.no_grad():
        gated.gate_proj.weight.zero_()[:, 0] = 40.0
    close(gated(x), 40.0 * x @ (gated.down_proj.weight @ gated.up_proj.weight).T)


@pytest.mark.parametrize("kind", ["encoder", "decoder"])
def test_torchs_layers_cannot_hold_other_activations(kind):
    for activation in ("gelu_tanh", "silu", "swiglu"):
        stack, _ = make(kind, activation=activation)
        rule = f"activation must be relu or the exact gelu, got '{activation}'"
        with pytest.raises(ValueError, match=rule):
            stack.to_torch()


# The options reach every block


@pytest.mark.parametrize("kind", ["encoder", "decoder"])
def test_a_stack_has_blocks_of_its_own_alike_in_everything(kind):
    rotary = RotaryPositionalEncoding(HEAD_DIM)
    options = {
        "dropout": 0.5, "norm_first": False, "activation": "gelu", "bias": False, "layer_norm_eps": 0.25,
        "num_kv_heads": 1,
    }  # fmt: skip
    stack, _ = make(kind, rotary=rotary, **options)
    assert len(stack.blocks) == LAYERS
    block = (EncoderBlock if kind == "encoder" else DecoderBlock)(*SIZES, **options)
    count = sum(parameter.numel() for parameter in block.parameters())
    assert sum(parameter.numel() for parameter in stack.parameters()) == LAYERS * count
    for own in stack.blocks:
        assert own.self_attention.rotary is rotary
        assert own.self_attention.dropout == own.feed_forward.dropout.p == own.dropout.p == 0.5
        for name, module in block.named_modules():
            assert own.get_submodule(name).extra_repr() == module.extra_repr()
        if kind == "decoder":
            assert own.cross_attention.rotary is None
            assert own.cross_attention.dropout == 0.5


@KINDS
def test_no_part_has_a_bias_unless_asked(kind):
    cls, layers, *_ = ALL_KINDS[kind]
    assert not any("bias" in name for name in cls(*layers, *SIZES).state_dict())
    assert not any("bias" in name for name in FeedForward(EMBED_DIM, HIDDEN_DIM).state_dict())


def self_attentions(model):
    return [block.self_attention for block in getattr(model, "blocks", [model])]


def by_hand(model, x, *memory, **hide):
    """A pre-norm model around the layer's own attention, which the tests of the layer compare with a loop."""
    for block in getattr(model, "blocks", [model]):
        own = block.self_attention_norm(x)
        x = x + block.self_attention(own, own, own, **hide)[0]
        if memory:
            own = block.cross_attention_norm(x)
            x = x + block.cross_attention(own, *memory, *memory)[0]
        x = x + block.feed_forward(block.feed_forward_norm(x))
    return model.norm(x) if hasattr(model, "blocks") else x


SETTINGS = {"window": (2, 1), "scale": 0.3, "softcap": 1.5}
SETTINGS["rotary"] = lambda x, positions: x * positions[:, None]


@KINDS
@pytest.mark.parametrize("name", SETTINGS)
def test_settings_of_attention_reach_it(kind, name):
    """Window and rotary reach only the self-attention: positions in the memory are of another sequence."""
    model, inputs = make(kind, **{name: SETTINGS[name]})
    plain, _ = make(kind)
    causal = {"is_causal": True}
    output = model(*inputs, **({} if "decoder" in kind else causal))
    close(output, by_hand(model, *inputs, **causal))
    assert not torch.allclose(output, by_hand(plain, *inputs, **causal))
    assert all(getattr(attention, name) == SETTINGS[name] for attention in self_attentions(model))
    for block in getattr(model, "blocks", [model]) if "decoder" in kind else []:
        shared = SETTINGS[name] if name in ("scale", "softcap") else None
        assert getattr(block.cross_attention, name) == shared


def test_a_learned_scale_is_one_parameter_of_all_blocks():
    scale = nn.Parameter(torch.full((HEADS, 1, 1), 0.5))
    model = TransformerEncoder(LAYERS, *SIZES, scale=scale)
    assert sum(parameter is scale for parameter in model.parameters()) == 1
    model(X.float()).square().sum().backward()
    assert scale.grad.abs().sum() > 0


@KINDS
def test_device_and_dtype_reach_every_parameter(kind):
    cls, layers, inputs = ALL_KINDS[kind]
    for norm in ("layer", "rms"):
        model = cls(*layers, *SIZES, bias=True, norm=norm, device="meta", dtype=torch.bfloat16)
        assert {(p.device.type, p.dtype) for p in model.parameters()} == {("meta", torch.bfloat16)}
        assert model(*(x.to("meta", torch.bfloat16) for x in inputs)).dtype == torch.bfloat16


@KINDS
def test_a_key_mask_hides_what_lengths_hide(kind):
    model, inputs = make(kind)
    keys, memory_keys = ~hidden(LENS, Q_LEN), ~hidden(MEMORY_LENS, K_LEN)
    lens = {"valid_lens": LENS}
    by_keys = {"key_mask": keys}
    if "decoder" in kind:
        lens["memory_valid_lens"] = MEMORY_LENS
        by_keys["memory_key_mask"] = memory_keys
    expected = model(*inputs, **lens)
    close(model(*inputs, **by_keys), expected)
    close(model(*inputs, **by_keys, **lens), expected)
    assert not torch.allclose(model(*inputs), expected)


@pytest.mark.parametrize("kind", ["encoder", "decoder"])
def test_a_stack_builds_its_mask_once(kind, monkeypatch):
    model, inputs = make(kind)
    built, build = [], masking._mask_from_lens
    monkeypatch.setattr(masking, "_mask_from_lens", lambda *args: built.append(1) or build(*args))
    lens = {"memory_valid_lens": MEMORY_LENS} if "decoder" in kind else {}
    model(*inputs, valid_lens=LENS, **lens)
    assert len(built) == 1 + len(lens)


# The norm without a mean


def test_rms_norm_equals_the_formula_and_torch():
    ours, theirs = RMSNorm(EMBED_DIM, eps=EPS), nn.RMSNorm(EMBED_DIM, eps=EPS)
    theirs = shaken(theirs)
    ours.double().load_state_dict(theirs.state_dict())
    ours_in, theirs_in = (X.clone().requires_grad_() for _ in range(2))
    close(ours(ours_in), X / (X.square().mean(-1, keepdim=True) + EPS).sqrt() * theirs.weight)
    close(ours(ours_in), theirs(theirs_in))
    for norm, x in ((ours, ours_in), (theirs, theirs_in)):
        (norm(x) * random(*X.shape, seed=5)).sum().backward()
    close(ours_in.grad, theirs_in.grad)
    close(ours.weight.grad, theirs.weight.grad)
    assert RMSNorm(EMBED_DIM).eps == 1e-6
    assert torch.equal(RMSNorm(EMBED_DIM).weight, torch.ones(EMBED_DIM))


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16], ids=str)
def test_rms_norm_computes_half_precision_in_float32(dtype):
    """1000² is beyond the largest number of float16."""
    ours, x = RMSNorm(EMBED_DIM, dtype=dtype), (X * 1000).to(dtype)
    exact = RMSNorm(EMBED_DIM)(x.float()).to(dtype)
    assert ours(x).dtype == dtype
    assert torch.equal(ours(x), exact)
    torch.testing.assert_close(ours(x), nn.RMSNorm(EMBED_DIM, eps=1e-6, dtype=dtype)(x))


@KINDS
def test_rms_norms_replace_layer_norms_everywhere(kind):
    model, inputs = make(kind, norm="rms", layer_norm_eps=EPS, bias=False)
    norms = {name: part for name, part in model.named_modules() if name.endswith("norm")}
    assert all(type(norm) is RMSNorm and norm.eps == EPS for norm in norms.values())
    assert not any("bias" in name for name in model.state_dict())
    causal = {} if "decoder" in kind else {"is_causal": True}
    close(model(*inputs, **causal), by_hand(model, *inputs, is_causal=True))


# Projections that were replaced


class LowRank(nn.Module):
    """What LoRA puts in place of a linear layer; it has no weight of its own."""

    def __init__(self, base):
        super().__init__()
        self.base = base
        self.down = nn.Parameter(random(2, base.in_features, dtype=base.weight.dtype))
        self.up = nn.Parameter(random(base.out_features, 2, dtype=base.weight.dtype))

    def forward(self, x):
        return self.base(x) + x @ self.down.T @ self.up.T

    def merged(self):
        linear = copy.deepcopy(self.base)
        with torch.no_grad():
            linear.weight += self.up @ self.down
        return linear


def replace_linear_layers(model, change):
    for name, part in list(model.named_modules()):
        if isinstance(part, nn.Linear):
            model.set_submodule(name, change(part))
    return model


@KINDS
def test_low_rank_adapters_work_in_every_place(kind):
    model, inputs = make(kind)
    adapted = replace_linear_layers(copy.deepcopy(model), LowRank)
    for name, part in adapted.named_modules():
        if isinstance(part, LowRank):
            model.set_submodule(name, part.merged())
    close(adapted(*inputs), model(*inputs))
    with pytest.raises(ValueError, match=r"_proj must be a Linear, got LowRank"):
        adapted.to_torch()


# What a user of torch expects


@KINDS
def test_weights_of_every_attention_can_be_captured(kind):
    model, inputs = make(kind)
    lens = {"memory_valid_lens": MEMORY_LENS} if "decoder" in kind else {"valid_lens": LENS}
    plain = model(*inputs, **lens)
    with capture_attention(model) as captured:
        close(model(*inputs, **lens), plain)
    prefixes = [f"blocks.{i}." for i in range(LAYERS)] if hasattr(model, "blocks") else [""]
    names = ["self_attention", "cross_attention"] if "decoder" in kind else ["self_attention"]
    assert list(captured) == [prefix + name for prefix in prefixes for name in names]
    for name, weights in captured.items():
        own = name.endswith("self_attention")
        assert weights.shape == (BATCH, HEADS, Q_LEN, Q_LEN if own else K_LEN)
        close(weights.sum(-1), torch.ones(BATCH, HEADS, Q_LEN, dtype=torch.float64))
        padding = hidden(LENS, Q_LEN) if own else hidden(MEMORY_LENS, K_LEN)
        unseen = FUTURE if own and "decoder" in kind else padding[:, None, None, :]
        assert not weights[unseen.expand(weights.shape)].any()
        assert (weights[~unseen.expand(weights.shape)] > 0).all()


@KINDS
def test_parts_have_the_documented_names(kind):
    names = {
        "self_attention_norm.weight", "self_attention_norm.bias",
        "feed_forward_norm.weight", "feed_forward_norm.bias",
        "feed_forward.up_proj.weight", "feed_forward.up_proj.bias",
        "feed_forward.down_proj.weight", "feed_forward.down_proj.bias",
    }  # fmt: skip
    attentions = ["self_attention", "cross_attention"] if "decoder" in kind else ["self_attention"]
    for attention, proj, part in itertools.product(attentions, "q k v out".split(), ("weight", "bias")):
        names.add(f"{attention}.{proj}_proj.{part}")
    if "decoder" in kind:
        names |= {"cross_attention_norm.weight", "cross_attention_norm.bias"}
    model, _ = make(kind)
    if hasattr(model, "blocks"):
        names = {f"blocks.{i}.{name}" for i in range(LAYERS) for name in names}
        names |= {"norm.weight", "norm.bias"}
    assert set(model.state_dict()) == names


@KINDS
@NORMS
def test_copies_compute_the_same(kind, norm_first):
    options = {"norm_first": norm_first, "rotary": RotaryPositionalEncoding(HEAD_DIM)}
    model, inputs = make(kind, **options)
    loaded, stored = make(kind, **options)[0], io.BytesIO()
    for parameter in loaded.parameters():
        nn.init.zeros_(parameter)
    torch.save(model.state_dict(), stored)
    stored.seek(0)
    loaded.load_state_dict(torch.load(stored, weights_only=True))
    for twin in (loaded, copy.deepcopy(model), pickle.loads(pickle.dumps(model))):  # noqa: S301, our own bytes
        assert torch.equal(twin(*inputs), model(*inputs))


@pytest.mark.no_shape_checks
@pytest.mark.parametrize("kind", [slow(kind) if "block" in kind else kind for kind in ALL_KINDS])
@pytest.mark.parametrize("norm_first", [True, slow(False)], ids=["pre", "post"])
def test_models_can_be_traced_in_one_graph(kind, norm_first):
    model, inputs = make(kind, norm_first=norm_first)
    hide = {"valid_lens": LENS}
    hide |= {"memory_valid_lens": MEMORY_LENS} if "decoder" in kind else {"is_causal": True}
    traced = torch.compile(model, fullgraph=True, backend="eager")
    close(traced(*inputs, **hide), model(*inputs, **hide))
    torch._dynamo.reset()


@pytest.mark.no_shape_checks
@pytest.mark.parametrize("kind", [slow("encoder"), "decoder"])
def test_models_can_be_exported(kind):
    model, inputs = make(kind)
    hide = {"memory_valid_lens": MEMORY_LENS} if "decoder" in kind else {"valid_lens": LENS}
    exported = torch.export.export(model, inputs, hide)
    close(exported.module()(*inputs, **hide), model(*inputs, **hide))


@KINDS
def test_no_samples_and_one_token(kind):
    model, inputs = make(kind)
    assert model(*(x[:0] for x in inputs)).shape == (0, Q_LEN, EMBED_DIM)
    assert model(*(x[:, :1] for x in inputs)).isfinite().all()


@KINDS
def test_autocast_is_left_to_torch(kind):
    model, inputs = make(kind)
    expected = model(*inputs)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        output = model.float()(*(x.float() for x in inputs))
    assert output.dtype == torch.float32
    torch.testing.assert_close(output.double(), expected, rtol=0.1, atol=0.1)
