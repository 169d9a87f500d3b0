"""To and from torch's own layer, and from masks that are added to the scores.

Torch's masks are inverted: True hides a key. Every axis has another prime size.
"""

import pytest
import torch
import torch.nn.functional as F
from random_tensors import bools, generator, random
from torch import nn

from mha_lib import MultiHeadAttention, mask_from_additive

LAYERS, HEAD_DIM, BATCH, HEADS, Q_LEN, K_LEN, KDIM, HIDDEN_DIM, VDIM = 2, 4, 3, 5, 7, 11, 13, 17, 19
EMBED_DIM = HEADS * HEAD_DIM
EPS = 1e-3  # large enough that the wrong one is seen
FLOATS = (torch.float16, torch.bfloat16, torch.float32, torch.float64)
X, MEMORY = random(BATCH, Q_LEN, EMBED_DIM), random(BATCH, K_LEN, EMBED_DIM, seed=1)
LENS, MEMORY_LENS = torch.tensor([7, 4, 5]), torch.tensor([5, 11, 2])
FUTURE = torch.ones(Q_LEN, Q_LEN, dtype=torch.bool).triu(1)
SELF_MASK, CROSS_MASK = bools(Q_LEN, Q_LEN), bools(Q_LEN, K_LEN, seed=1)


def shaken(module):
    """The module in float64, all parameters random: no weight of a norm is 1, no bias 0."""
    draw = generator()
    for parameter in module.double().parameters():
        with torch.no_grad():
            parameter.normal_(std=0.4, generator=draw)
    return module


def close(actual, expected):
    torch.testing.assert_close(actual, expected, rtol=1e-10, atol=1e-10)


def hidden(lens, length):
    return torch.arange(length) >= lens.unsqueeze(1)


def same_state(one, other):
    """The same names, numbers, dtypes and devices, what is frozen, and the modes of all parts."""
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

    theirs = {
        "attn_mask": ~CROSS_MASK,
        "key_padding_mask": hidden(MEMORY_LENS, K_LEN),
        "average_attn_weights": False,
    }
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
def test_frozen_parameters_stay_frozen(widths):
    theirs = torch_layer(batch_first=True, **widths)
    first = "in_proj_weight" if not widths else "q_proj_weight"
    for frozen in (
        [first],
        ["out_proj.bias", "in_proj_bias"],
        [name for name, _ in theirs.named_parameters()],
    ):
        theirs.requires_grad_(True)
        for name in frozen:
            theirs.get_parameter(name).requires_grad_(False)
        ours = MultiHeadAttention.from_torch(theirs)
        assert ours.q_proj.weight.requires_grad == (first not in frozen)
        assert ours.out_proj.bias.requires_grad == ("out_proj.bias" not in frozen)
        assert ours.v_proj.bias.requires_grad == ("in_proj_bias" not in frozen)
        same_state(ours.to_torch(), theirs)


EXTRAS = {
    "num_kv_heads": {"num_kv_heads": 1},
    "scale": {"scale": 0.5},
    "softcap": {"softcap": 2.0},
    "window": {"window": (1, 0)},
    "score": {"score": lambda q, k: q @ k.mT},
    "rotary": {"rotary": lambda x, positions: x},
}


@pytest.mark.parametrize("name", EXTRAS)
def test_settings_that_torch_has_not_are_refused(name):
    with pytest.raises(ValueError, match=name):
        MultiHeadAttention(EMBED_DIM, HEADS, **EXTRAS[name]).to_torch()


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
    added = wide.to(dtype)  # -1e9 is infinite in float16
    assert torch.equal(mask_from_additive(added), VISIBLE)
    both = added.clone()
    both[~VISIBLE] = torch.tensor(-torch.inf, dtype=dtype)  # two ways in one mask
    both[0, 0, 0, 1:] = added[0, 0, 0, 1:]
    assert torch.equal(mask_from_additive(both), VISIBLE)


INTEGERS = (torch.int64, torch.int32, torch.int16, torch.int8, torch.uint8)


@pytest.mark.parametrize("dtype", [*FLOATS, *INTEGERS], ids=str)
def test_masks_of_zeros_and_ones_become_ours(dtype):
    assert torch.equal(mask_from_additive(VISIBLE.to(dtype)), VISIBLE)
    assert mask_from_additive(torch.ones(2, 3, dtype=dtype)).all()
    # Floats that are all zero are added, and hide nothing; integers are never added.
    nothing = mask_from_additive(torch.zeros(2, 3, dtype=dtype))
    assert nothing.all() if dtype.is_floating_point else not nothing.any()
    empty = mask_from_additive(torch.zeros(2, 0, dtype=dtype))
    assert empty.shape == (2, 0) and empty.dtype == torch.bool


@pytest.mark.parametrize(
    ("mask", "error", "value"),
    [
        (VISIBLE, TypeError, "torch.bool; .* write ~mask"),
        (torch.tensor([0.0, -1.5]), ValueError, "-1.5; attn_bias takes other numbers"),
        (torch.tensor([0.0, -100.0]), ValueError, "-100.0"),
        (torch.tensor([0.0, torch.nan]), ValueError, "nan"),
        (torch.tensor([torch.nan, -torch.inf]), ValueError, "nan"),
        (torch.tensor([0.0, torch.inf]), ValueError, "inf"),
        (torch.tensor([1.0, -torch.inf]), ValueError, "-inf"),
        (torch.tensor([0, -10_000]), ValueError, "-10000"),
        (torch.tensor([0, 2]), ValueError, "2"),
    ],
    ids=str,
)
def test_other_numbers_are_no_mask(mask, error, value):
    with pytest.raises(TypeError, match="mask must be a Tensor, got list"):
        mask_from_additive(mask.tolist())
    with pytest.raises(error, match=rf"^mask must hold .*, got .*{value}"):
        mask_from_additive(mask)


@pytest.mark.parametrize("how", HIDES)
@pytest.mark.parametrize("per_query", [True, False], ids=["(batch, 1, q, k)", "(batch, k)"])
@pytest.mark.parametrize("need_weights", [True, False])
def test_a_converted_mask_hides_what_the_added_one_does(need_weights, per_query, how):
    """HuggingFace's extended masks and its attention_mask, beside torch's function that adds them."""
    layer = shaken(MultiHeadAttention(EMBED_DIM, HEADS))
    visible = VISIBLE if per_query else ~hidden(MEMORY_LENS, K_LEN)
    added = torch.zeros(visible.shape, dtype=X.dtype).masked_fill(~visible, HIDES[how](X.dtype))
    heads = [layer.split_heads(proj(x)) for proj, x in
             ((layer.q_proj, X), (layer.k_proj, MEMORY), (layer.v_proj, MEMORY))]  # fmt: skip
    over_scores = added if per_query else added[:, None, None]
    expected = layer.out_proj(layer.merge_heads(F.scaled_dot_product_attention(*heads, over_scores)))
    name = "attn_mask" if per_query else "key_mask"
    for mask in (added, visible.long()):
        hide = {name: mask_from_additive(mask)}
        close(layer(X, MEMORY, MEMORY, need_weights=need_weights, **hide)[0], expected)
