"""To and from torch's own modules, and from masks that are added to the scores.

Torch's masks are inverted: True hides a key. Every axis has a different prime size.
"""

import copy

import pytest
import torch
import torch.nn.functional as F
from attention_layers import hidden, shaken
from random_tensors import bools, random
from torch import nn

from mha_lib.conversion import mask_from_additive
from mha_lib.inspection import prune_heads
from mha_lib.multi_head import MultiHeadAttention
from mha_lib.transformer import DecoderBlock, EncoderBlock, TransformerDecoder, TransformerEncoder

LAYERS, HEAD_DIM, BATCH, HEADS, Q_LEN, K_LEN, KDIM, HIDDEN_DIM, VDIM = 2, 4, 3, 5, 7, 11, 13, 17, 19
EMBED_DIM = HEADS * HEAD_DIM
EPS = 1e-3  # large enough to reveal the wrong one
FLOATS = (torch.float16, torch.bfloat16, torch.float32, torch.float64)
X, MEMORY = random(BATCH, Q_LEN, EMBED_DIM), random(BATCH, K_LEN, EMBED_DIM, seed=1)
LENS, MEMORY_LENS = torch.tensor([7, 4, 5]), torch.tensor([5, 11, 2])
FUTURE = torch.ones(Q_LEN, Q_LEN, dtype=torch.bool).triu(1)
SELF_MASK, CROSS_MASK = bools(Q_LEN, Q_LEN), bools(Q_LEN, K_LEN, seed=1)
HEAD_MASK, HEAD_CROSS_MASK = (bools(BATCH, HEADS, Q_LEN, n, seed=n) for n in (Q_LEN, K_LEN))
BIAS = random(BATCH, HEADS, Q_LEN, Q_LEN, seed=4)


def close(actual, expected):
    torch.testing.assert_close(actual, expected, rtol=1e-10, atol=1e-10)


def same_state(one, other):
    """Assert equal names, numbers, dtypes, devices, frozen parameters, and modes of all parts."""
    ours, theirs = (dict(module.named_parameters()) for module in (one, other))
    assert list(ours) == list(theirs)
    for name, parameter in ours.items():
        assert parameter.dtype == theirs[name].dtype
        assert parameter.requires_grad == theirs[name].requires_grad, name
        assert torch.equal(parameter, theirs[name]), name
        assert parameter is not theirs[name]
    modes = [{name: part.training for name, part in module.named_modules()} for module in (one, other)]
    assert modes[0] == modes[1]
    assert str(one) == str(other)  # sizes, epsilons, dropouts, activations


# The layer


def torch_layer(**options):
    return shaken(nn.MultiheadAttention(EMBED_DIM, HEADS, **options))


WIDTHS = pytest.mark.parametrize("widths", [{}, {"kdim": KDIM, "vdim": VDIM}], ids=["same", "other widths"])


@WIDTHS
@pytest.mark.parametrize("bias", [False, True])
@pytest.mark.parametrize("batch_first", [False, True])
def test_layers_of_both_libraries_agree_in_both_directions(batch_first, bias, widths):
    """Outputs, the weights of each head, and gradients of inputs and of every parameter, under masks."""
    source = torch_layer(bias=bias, batch_first=batch_first, **widths)
    ours = MultiHeadAttention.from_torch(source)
    back = ours.to_torch()
    assert back.batch_first
    key = random(BATCH, K_LEN, widths.get("kdim", EMBED_DIM), seed=2)
    value = random(BATCH, K_LEN, widths.get("vdim", EMBED_DIM), seed=3)
    upstream = random(*X.shape, seed=4)

    def run(layer, turned, **hide):
        inputs = [x.clone().requires_grad_() for x in (X, key, value)]
        given = [x.transpose(0, 1) for x in inputs] if turned else inputs
        output, weights = layer(*given, **hide)
        output = output.transpose(0, 1) if turned else output
        parameters = dict(layer.named_parameters())
        gradients = torch.autograd.grad(output, [*inputs, *parameters.values()], upstream)
        return output, weights, gradients[:3], dict(zip(parameters, gradients[3:], strict=True))

    theirs = {"attn_mask": ~CROSS_MASK, "key_padding_mask": hidden(MEMORY_LENS, K_LEN)}
    theirs["average_attn_weights"] = False
    mine = run(ours, False, attn_mask=CROSS_MASK, key_mask=~hidden(MEMORY_LENS, K_LEN))
    for layer in (source, back):
        other = run(layer, not layer.batch_first, **theirs)
        for one, two in zip(mine[:2] + mine[2], other[:2] + other[2], strict=True):
            close(one, two)
        for kind in ("weight", "bias") if bias else ("weight",):
            close(mine[3][f"out_proj.{kind}"], other[3][f"out_proj.{kind}"])
            own = [mine[3][f"{letter}_proj.{kind}"] for letter in "qkv"]
            if f"in_proj_{kind}" in other[3]:
                close(torch.cat(own), other[3][f"in_proj_{kind}"])
            else:
                for one, letter in zip(own, "qkv", strict=True):
                    close(one, other[3][f"{letter}_proj_{kind}"])


@WIDTHS
@pytest.mark.parametrize("dtype", FLOATS, ids=str)
@pytest.mark.parametrize("training", [False, True])
def test_a_round_trip_of_the_layer_changes_nothing(training, dtype, widths):
    theirs = torch_layer(dropout=0.25, batch_first=True, **widths).to(dtype).train(training)
    state = torch.random.get_rng_state()
    ours = MultiHeadAttention.from_torch(theirs)
    same_state(ours.to_torch(), theirs)
    same_state(MultiHeadAttention.from_torch(ours.to_torch()), ours)
    assert torch.equal(torch.random.get_rng_state(), state)  # nothing is drawn
    before = copy.deepcopy(theirs)
    for parameter in ours.parameters():
        parameter.data.zero_()
    same_state(theirs, before)  # a copy, not the same memory
    meta = MultiHeadAttention.from_torch(copy.deepcopy(theirs).to("meta"))
    assert {p.device.type for module in (meta, meta.to_torch()) for p in module.parameters()} == {"meta"}


@WIDTHS
def test_frozen_parameters_stay_frozen(widths):
    theirs = torch_layer(batch_first=True, **widths)
    first = "in_proj_weight" if not widths else "q_proj_weight"
    every = [name for name, _ in theirs.named_parameters()]
    for frozen in ([first], ["out_proj.bias", "in_proj_bias"], every):
        theirs.requires_grad_(True)
        for name in frozen:
            theirs.get_parameter(name).requires_grad_(False)
        ours = MultiHeadAttention.from_torch(theirs)
        assert ours.q_proj.weight.requires_grad == (first not in frozen)
        assert ours.out_proj.bias.requires_grad == ("out_proj.bias" not in frozen)
        assert ours.v_proj.bias.requires_grad == ("in_proj_bias" not in frozen)
        same_state(ours.to_torch(), theirs)


def test_what_torch_holds_in_one_parameter_cannot_be_half_frozen():
    layer = MultiHeadAttention(EMBED_DIM, HEADS)
    layer.k_proj.weight.requires_grad_(False)
    with pytest.raises(ValueError, match=r"k_proj .* requires_grad=\[True, False, True\]"):
        layer.to_torch()
    apart = MultiHeadAttention(EMBED_DIM, HEADS, kdim=KDIM)  # torch's layer has three parameters here
    apart.k_proj.weight.requires_grad_(False)
    assert [p.requires_grad for p in apart.to_torch().parameters()] == [True, False, True, True]


EXTRAS = {
    "num_kv_heads": {"num_kv_heads": 1}, "scale": {"scale": 0.5}, "softcap": {"softcap": 2.0},
    "window": {"window": (1, 0)}, "score": {"score": lambda q, k: q @ k.mT},
    "rotary": {"rotary": lambda x, positions: x},
}  # fmt: skip


@pytest.mark.parametrize("name", EXTRAS)
def test_settings_that_torch_lacks_are_refused(name):
    with pytest.raises(ValueError, match=name):
        MultiHeadAttention(EMBED_DIM, HEADS, **EXTRAS[name]).to_torch()
    if name != "score":
        with pytest.raises(ValueError, match=name):
            EncoderBlock(EMBED_DIM, HEADS, HIDDEN_DIM, **EXTRAS[name]).to_torch()


def test_layers_that_torch_cannot_hold_are_refused():
    with pytest.raises(ValueError, match="pruned heads"):
        prune_heads(MultiHeadAttention(EMBED_DIM, HEADS), [1]).to_torch()
    mixed = MultiHeadAttention(EMBED_DIM, HEADS, bias=True)
    mixed.out_proj.bias = None
    with pytest.raises(ValueError, match=r"bias .* none in out_proj"):
        mixed.to_torch()


def test_a_weight_that_is_computed_is_copied_as_it_is():
    layer = shaken(MultiHeadAttention(EMBED_DIM, HEADS)).eval()
    expected = layer(X, X, X)[0]
    nn.utils.parametrizations.weight_norm(layer.q_proj)
    close(layer.to_torch()(X, X, X)[0], expected)


# Blocks and stacks

ENCODES = {
    "nothing": ({}, {}),
    "mask": ({"attn_mask": SELF_MASK}, {"mask": ~SELF_MASK}),
    "mask of heads": ({"attn_mask": HEAD_MASK}, {"mask": ~HEAD_MASK.flatten(0, 1)}),
    "bias": ({"attn_bias": BIAS}, {"mask": BIAS.flatten(0, 1)}),
    "lens": ({"valid_lens": LENS}, {"src_key_padding_mask": hidden(LENS, Q_LEN)}),
    "causal, keys": (
        {"is_causal": True, "key_mask": ~hidden(LENS, Q_LEN)},
        {"mask": FUTURE, "src_key_padding_mask": hidden(LENS, Q_LEN)},
    ),
}
DECODES = {
    "nothing": ({}, {"tgt_mask": FUTURE}),
    "masks": (
        {"attn_mask": SELF_MASK, "memory_mask": CROSS_MASK},
        {"tgt_mask": ~SELF_MASK | FUTURE, "memory_mask": ~CROSS_MASK},
    ),
    "bias, masks of heads": (
        {"attn_bias": BIAS, "memory_mask": HEAD_CROSS_MASK},
        {"tgt_mask": BIAS.flatten(0, 1).masked_fill(FUTURE, -torch.inf),
            "memory_mask": ~HEAD_CROSS_MASK.flatten(0, 1)},
    ),
    "masks, lens": (
        {"memory_mask": CROSS_MASK, "valid_lens": LENS, "memory_valid_lens": MEMORY_LENS},
        {"tgt_mask": FUTURE, "memory_mask": ~CROSS_MASK, "tgt_key_padding_mask": hidden(LENS, Q_LEN),
            "memory_key_padding_mask": hidden(MEMORY_LENS, K_LEN)},
    ),
}  # fmt: skip
KINDS = {
    "encoder block": (EncoderBlock, nn.TransformerEncoderLayer),
    "decoder block": (DecoderBlock, nn.TransformerDecoderLayer),
    "encoder": (TransformerEncoder, nn.TransformerEncoderLayer),
    "decoder": (TransformerDecoder, nn.TransformerDecoderLayer),
}
ALL = pytest.mark.parametrize("kind", KINDS)
STACKS = pytest.mark.parametrize("kind", ["encoder", "decoder"])


def torch_stack(layer, norm=None, layers=LAYERS):
    if isinstance(layer, nn.TransformerDecoderLayer):
        return nn.TransformerDecoder(layer, layers, norm)
    return nn.TransformerEncoder(layer, layers, norm, enable_nested_tensor=False)


def torch_module(kind, *, with_norm=None, **options):
    """Torch's layer or stack; a stack ends with a norm if the norms come first, or as `with_norm` says."""
    options = {"batch_first": True, "dropout": 0.0, "layer_norm_eps": EPS} | options
    module = KINDS[kind][1](EMBED_DIM, HEADS, HIDDEN_DIM, **options)
    if "block" not in kind:
        with_norm = options.get("norm_first", False) if with_norm is None else with_norm
        norm = nn.LayerNorm(EMBED_DIM, 2 * EPS, bias=options.get("bias", True)) if with_norm else None
        module = torch_stack(module, norm)
    return shaken(module)


def ours_of(kind, theirs):
    return KINDS[kind][0].from_torch(theirs)


def run_both(kind, ours, theirs, mine, other):
    """Outputs and gradients, of the inputs and of the weights with the same name in both."""
    results = []
    if kind == "encoder block" and "mask" in other:
        other = {"src_mask" if name == "mask" else name: mask for name, mask in other.items()}
    turned = not next(m for m in theirs.modules() if isinstance(m, nn.MultiheadAttention)).batch_first
    for model, hide in ((ours, mine), (theirs, other)):
        inputs = [x.clone().requires_grad_() for x in ([X, MEMORY] if "decoder" in kind else [X])]
        swap = turned and model is theirs
        given = [x.transpose(0, 1) for x in inputs] if swap else inputs
        output = model(*given, **hide)
        output = output.transpose(0, 1) if swap else output
        model.zero_grad()
        (output * random(*X.shape, seed=5)).sum().backward()
        results.append([output, *(x.grad for x in inputs)])
    for one, two in zip(*results, strict=True):
        close(one, two)


def gradients(model):
    """The gradients of a model of torch, under its own names."""
    return {name: parameter.grad for name, parameter in model.named_parameters()}


@pytest.mark.parametrize(
    ("kind", "hide"), [(kind, hide) for kind in KINDS for hide in (DECODES if "decoder" in kind else ENCODES)]
)
@pytest.mark.parametrize("options", [
    {"norm_first": True, "activation": "gelu", "batch_first": False},
    {"norm_first": False, "activation": "relu"},
    {"norm_first": True, "bias": False},
], ids=["pre, gelu, length first", "post, relu", "no biases"])  # fmt: skip
def test_values_and_gradients_are_torchs_in_both_directions(kind, hide, options):
    mine, other = (DECODES if "decoder" in kind else ENCODES)[hide]
    theirs = torch_module(kind, **options).train()
    ours = ours_of(kind, theirs)
    run_both(kind, ours, theirs, mine, other)
    # The gradients of parameters, under the names that they have in torch's module.
    as_weights = copy.deepcopy(ours)
    for parameter, source in zip(as_weights.parameters(), ours.parameters(), strict=True):
        parameter.data = source.grad
    named = gradients(theirs)
    for name, gradient in as_weights.to_torch().named_parameters():
        close(gradient.data, named[name])
    back = ours.to_torch()
    run_both(kind, ours, back, mine, other)
    for name, gradient in gradients(back).items():
        close(gradient, named[name])


@ALL
@pytest.mark.parametrize("training", [False, True])
@pytest.mark.parametrize("with_norm", [False, True])
def test_a_round_trip_changes_nothing(kind, training, with_norm):
    """Also if a stack of pre-norm blocks has no final norm, or a stack of post-norm blocks has one."""
    for norm_first, bias in ((True, True), (False, True), (True, False)):
        options = {"norm_first": norm_first, "bias": bias, "activation": "gelu", "dropout": 0.25}
        theirs = torch_module(kind, with_norm=with_norm, **options)
        theirs.train(training)
        state = torch.random.get_rng_state()
        ours = ours_of(kind, theirs)
        same_state(ours.to_torch(), theirs)
        same_state(ours_of(kind, ours.to_torch()), ours)
        assert torch.equal(torch.random.get_rng_state(), state)
        assert all(part.training == training for part in ours.modules())
        block = getattr(ours, "blocks", [ours])[0]
        assert block.dropout.p == block.feed_forward.dropout.p == block.self_attention.dropout == 0.25
        assert (block.norm_first, block.feed_forward.activation) == (norm_first, "gelu")


@STACKS
@pytest.mark.parametrize(("norm_first", "with_norm"), [(True, False), (False, True)])
def test_the_final_norm_is_that_of_torchs_stack(kind, norm_first, with_norm):
    theirs = torch_module(kind, norm_first=norm_first, with_norm=with_norm)
    ours = ours_of(kind, theirs)
    assert isinstance(ours.norm, nn.LayerNorm if with_norm else nn.Identity)
    other = {"tgt_mask": FUTURE} if kind == "decoder" else {}
    run_both(kind, ours, theirs, {}, other)


@ALL
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float32], ids=str)
def test_dtypes_devices_and_frozen_parameters_are_kept(kind, dtype):
    theirs = torch_module(kind).to(dtype)
    frozen = [name for name, _ in theirs.named_parameters() if "linear1" in name or "in_proj" in name]
    for name in frozen:
        theirs.get_parameter(name).requires_grad_(False)
    ours = ours_of(kind, theirs)
    assert {parameter.dtype for parameter in ours.parameters()} == {dtype}
    still = {name for name, parameter in ours.named_parameters() if not parameter.requires_grad}
    assert still == {
        name
        for name, _ in ours.named_parameters()
        if "up_proj" in name or any(f"{letter}_proj" in name.split(".") for letter in "qkv")
    }
    same_state(ours.to_torch(), theirs)
    meta = ours_of(kind, copy.deepcopy(theirs).to("meta"))
    assert all(p.is_meta for module in (meta, meta.to_torch()) for p in module.parameters())


def test_modes_and_frozen_blocks_may_differ_within_a_stack():
    theirs = torch_module("encoder", dropout=0.5)
    theirs.layers[0].eval().requires_grad_(False)
    ours = TransformerEncoder.from_torch(theirs)
    assert [block.training for block in ours.blocks] == [False, True]
    same_state(ours.to_torch(), theirs)


def test_each_norm_keeps_its_epsilon():
    theirs = torch_module("decoder block")
    theirs.norm1.eps, theirs.norm2.eps, theirs.norm3.eps = 0.1, 0.2, 0.3
    ours = DecoderBlock.from_torch(theirs)
    norms = (ours.self_attention_norm, ours.cross_attention_norm, ours.feed_forward_norm)
    assert [norm.eps for norm in norms] == [0.1, 0.2, 0.3]
    same_state(ours.to_torch(), theirs)


@ALL
@pytest.mark.parametrize(("activation", "name"), [
    (torch.relu, "relu"), (F.relu, "relu"), (nn.ReLU(), "relu"), (F.gelu, "gelu"), (nn.GELU(), "gelu"),
    (torch.tanh, None), (F.silu, None), (nn.GELU(approximate="tanh"), None), (lambda x: x, None),
], ids=lambda part: getattr(part, "__name__", None) or str(part))  # fmt: skip
def test_activations_are_recognized_or_refused_by_name(kind, activation, name):
    if "block" not in kind:
        return
    theirs = torch_module(kind, activation=activation)
    if name is not None:
        assert ours_of(kind, theirs).feed_forward.activation == name
        return
    found = getattr(activation, "__name__", "approximate='tanh'")
    with pytest.raises(ValueError, match=rf"activation must be relu or the exact gelu, got .*{found}"):
        ours_of(kind, theirs)


def changed(module, path, part):
    module.set_submodule(path, part)
    return module


NORM = nn.LayerNorm(EMBED_DIM)
TORCH_BLOCK, TORCH_DECODER_BLOCK = torch_module("encoder block"), torch_module("decoder block")
REFUSED_FROM_TORCH = {
    "no module": (EncoderBlock, lambda: X, TypeError, "module must be a TransformerEncoderLayer"),
    "another kind": (EncoderBlock, lambda: TORCH_DECODER_BLOCK, TypeError,
        "module must be a TransformerEncoderLayer, got TransformerDecoderLayer"),
    "a stack for a block": (
        DecoderBlock, lambda: torch_stack(TORCH_DECODER_BLOCK), TypeError, "got TransformerDecoder",
    ),
    "a block for a stack": (
        TransformerEncoder, lambda: TORCH_BLOCK, TypeError, "module must be a TransformerEncoder, got",
    ),
    "no layers": (
        TransformerEncoder, lambda: torch_stack(TORCH_BLOCK, layers=0), ValueError, "num_layers .* got 0",
    ),
    "strange layers": (
        TransformerDecoder, lambda: changed(torch_stack(TORCH_DECODER_BLOCK), "layers.1", NORM),
        TypeError, "TransformerDecoderLayer, got LayerNorm",
    ),
    "a strange last norm": (TransformerEncoder, lambda: torch_stack(TORCH_BLOCK, nn.RMSNorm(EMBED_DIM)),
        ValueError, "norm must be a LayerNorm, got RMSNorm"),
    "another norm": (
        EncoderBlock, lambda: changed(copy.deepcopy(TORCH_BLOCK), "norm2", nn.RMSNorm(EMBED_DIM)),
        ValueError, "norm2 must be a LayerNorm, got RMSNorm",
    ),
    "a wrapper": (
        EncoderBlock, lambda: changed(copy.deepcopy(TORCH_BLOCK), "linear1", nn.Sequential(nn.Linear(20, 9))),
        ValueError, "linear1 must be a Linear, got Sequential",
    ),
    "another dropout": (
        EncoderBlock, lambda: changed(copy.deepcopy(TORCH_BLOCK), "dropout2", nn.Dropout(0.5)),
        ValueError, "dropout must be the same everywhere, got .*'dropout2': 0.5",
    ),
    "no dropout in one place": (
        EncoderBlock, lambda: changed(torch_module("encoder block", dropout=0.5), "dropout2", nn.Identity()),
        ValueError, "dropout must be the same everywhere, got .*'dropout2': 0.0",
    ),
    "another width of the memory": (
        DecoderBlock,
        lambda: changed(copy.deepcopy(TORCH_DECODER_BLOCK), "multihead_attn",
            nn.MultiheadAttention(EMBED_DIM, HEADS, kdim=KDIM, vdim=KDIM)),
        ValueError, "kdim and vdim of multihead_attn must be embed_dim=20, got 13 and 13",
    ),
    "a bias of keys": (
        EncoderBlock,
        lambda: changed(copy.deepcopy(TORCH_BLOCK), "self_attn",
            nn.MultiheadAttention(EMBED_DIM, HEADS, add_bias_kv=True)),
        ValueError, "add_bias_kv",
    ),
}  # fmt: skip


@pytest.mark.parametrize("what", REFUSED_FROM_TORCH)
def test_what_our_blocks_cannot_express_is_refused(what):
    cls, make, error, match = REFUSED_FROM_TORCH[what]
    module = make()
    with pytest.raises(error, match=match):
        cls.from_torch(module)


def block(**options):
    return DecoderBlock(EMBED_DIM, HEADS, HIDDEN_DIM, **options)


def with_biases_in_some_parts():
    made = block(bias=True)
    made.feed_forward_norm.bias = None
    return made


REFUSED_TO_TORCH = {
    "rms norms": (lambda: block(norm="rms"), ValueError, "_norm must be a LayerNorm, got RMSNorm"),
    "rms norms in a stack": (lambda: TransformerEncoder(1, EMBED_DIM, HEADS, HIDDEN_DIM, norm="rms"),
        ValueError, "got RMSNorm"),
    "some biases": (
        with_biases_in_some_parts, ValueError, "bias must be in all parts or in none, got none in norm3",
    ),
    "another dropout": (lambda: changed(block(dropout=0.5), "dropout", nn.Dropout(0.25)),
        ValueError, "dropout must be the same everywhere, got .*'dropout': 0.25"),
    "another feed-forward layer": (lambda: changed(block(), "feed_forward", nn.Identity()),
        TypeError, "feed_forward must be a FeedForward, got Identity"),
    "another attention": (
        lambda: changed(block(), "cross_attention", nn.MultiheadAttention(EMBED_DIM, HEADS)),
        TypeError, "cross_attention must be a MultiHeadAttention",
    ),
    "a last norm that is none": (
        lambda: changed(TransformerDecoder(1, EMBED_DIM, HEADS, HIDDEN_DIM), "norm", nn.Tanh()),
        ValueError, "norm must be a LayerNorm, got Tanh",
    ),
}  # fmt: skip


@pytest.mark.parametrize("what", REFUSED_TO_TORCH)
def test_what_torchs_blocks_cannot_express_is_refused(what):
    make, error, match = REFUSED_TO_TORCH[what]
    module = make()
    with pytest.raises(error, match=match):
        module.to_torch()


# Masks that are added to the scores

VISIBLE = bools(BATCH, 1, Q_LEN, K_LEN)
HIDES = {
    "-inf": lambda dtype: -torch.inf,
    "the smallest number": lambda dtype: torch.finfo(dtype).min,
    "-10000": lambda dtype: -10_000.0,
    "-1e9": lambda dtype: -1e9,
}


@pytest.mark.parametrize("dtype", FLOATS, ids=str)
@pytest.mark.parametrize("how", HIDES)
def test_additive_masks_become_ours(how, dtype):
    wide = torch.zeros(VISIBLE.shape, dtype=torch.float64).masked_fill(~VISIBLE, HIDES[how](dtype))
    added = wide.to(dtype)  # -1e9 is -inf in float16
    assert torch.equal(mask_from_additive(added), VISIBLE)
    both = added.clone()
    both[~VISIBLE] = torch.tensor(-torch.inf, dtype=dtype)  # one mask with two hidden values
    both[0, 0, 0, 1:] = added[0, 0, 0, 1:]
    assert torch.equal(mask_from_additive(both), VISIBLE)


INTEGERS = (torch.int64, torch.int32, torch.int16, torch.int8, torch.uint8)


@pytest.mark.parametrize("dtype", [*FLOATS, *INTEGERS], ids=str)
def test_masks_of_zeros_and_ones_become_ours(dtype):
    assert torch.equal(mask_from_additive(VISIBLE.to(dtype)), VISIBLE)
    assert mask_from_additive(torch.ones(2, 3, dtype=dtype)).all()
    # A mask of zeros is added and hides nothing if it is float; a mask of integers is never added.
    nothing = mask_from_additive(torch.zeros(2, 3, dtype=dtype))
    assert nothing.all() if dtype.is_floating_point else not nothing.any()
    empty = mask_from_additive(torch.zeros(2, 0, dtype=dtype))
    assert empty.shape == (2, 0) and empty.dtype == torch.bool


@pytest.mark.parametrize(("mask", "error", "value"), [
    (VISIBLE, TypeError, "torch.bool; .* write ~mask"),
    (torch.tensor([0.0, -1.5]), ValueError, "-1.5; attn_bias takes other numbers"),
    (torch.tensor([0.0, -100.0]), ValueError, "-100.0"),
    (torch.tensor([0.0, torch.nan]), ValueError, "nan"),
    (torch.tensor([torch.nan, -torch.inf]), ValueError, "nan"),
    (torch.tensor([0.0, torch.inf]), ValueError, "inf"),
    (torch.tensor([1.0, -torch.inf]), ValueError, "-inf"),
    (torch.tensor([0, -10_000]), ValueError, "-10000"),
    (torch.tensor([0, 2]), ValueError, "2"),
], ids=str)  # fmt: skip
def test_other_numbers_are_not_a_mask(mask, error, value):
    with pytest.raises(error, match=rf"^mask must hold .*, got .*{value}"):
        mask_from_additive(mask)
