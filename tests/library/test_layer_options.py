"""Options of the layer that newer models need: QK-norm, sinks, heads of any width, biases in some parts.

Each is compared with a loop over samples, heads and pairs, and with the code of a model that has it.
Blocks and stacks pass the options on, and take one sample without a batch axis.
"""

import oracles
import pytest
import torch
from attention_marks import BOTH_PATHS
from random_tensors import bools, random
from torch import nn

from mha_lib.cache import KeyValueCache
from mha_lib.inspection import capture_attention, prune_heads
from mha_lib.multi_head import MultiHeadAttention
from mha_lib.rotary import RotaryPositionalEncoding
from mha_lib.transformer import DecoderBlock, EncoderBlock, TransformerDecoder, TransformerEncoder

BATCH, HEADS, KV_HEADS, LENGTH, WIDTH, HEAD_DIM, EPS = 2, 6, 2, 5, 7, 4, 1e-3
OPTIONS = {
    "sink": {"sink": True},
    "norms": {"qk_norm": True, "norm_eps": EPS},
    "both, shared keys": {"sink": True, "qk_norm": True, "norm_eps": EPS, "num_kv_heads": KV_HEADS},
    "sink, scale": {"sink": True, "scale": 0.7},
    "sink, learned scales": {"sink": True, "scale": nn.Parameter(1 + random(HEADS, 1, 1).abs())},
}
EACH_OPTION = pytest.mark.parametrize("option", OPTIONS)
HIDING = {
    "nothing": {},
    "causal": {"is_causal": True},
    "empty rows": {"valid_lens": torch.tensor([0, 3])},
    "one column": {"attn_mask": torch.arange(LENGTH).view(-1, 1) != 2, "attn_bias": random(LENGTH, 1)},
    "all": {"attn_mask": bools(BATCH, HEADS, LENGTH, LENGTH), "valid_lens": torch.tensor([4, 5]),
        "is_causal": True, "attn_bias": random(BATCH, HEADS, LENGTH, LENGTH, seed=3)},
}  # fmt: skip


def layer_of(**options):
    """A layer in float64 whose heads are not a part of its width, all of its parameters random."""
    layer = MultiHeadAttention(WIDTH, HEADS, head_dim=HEAD_DIM, **options).double()
    for seed, (name, parameter) in enumerate(layer.named_parameters()):
        if name != "scale":
            parameter.data = random(*parameter.shape, seed=10 + seed)
    return layer


@BOTH_PATHS
@pytest.mark.parametrize("hide", HIDING)
@EACH_OPTION
def test_the_layer_equals_the_loop(option, hide, need_weights):
    layer, x = layer_of(**OPTIONS[option]), random(BATCH, LENGTH, WIDTH)
    output, weights = layer(x, need_weights=need_weights, **HIDING[hide])
    settings = {"scale": layer.scale, "norm_eps": EPS}
    wanted, wanted_weights = oracles.multi_head(
        x, x, x, layer.state_dict(), HEADS, layer.num_kv_heads, **settings, **HIDING[hide]
    )
    torch.testing.assert_close(output, torch.from_numpy(wanted))
    if need_weights:
        torch.testing.assert_close(weights, torch.from_numpy(wanted_weights))


@pytest.mark.parametrize("hide", HIDING)
@EACH_OPTION
def test_gradients_of_both_paths_agree(option, hide):
    layer, x = layer_of(**OPTIONS[option]), random(BATCH, LENGTH, WIDTH).requires_grad_()
    leaves = [x, *layer.parameters()]
    loss = lambda path: layer(x, need_weights=path, **HIDING[hide])[0].square().sum()  # noqa: E731
    found = [torch.autograd.grad(loss(path), leaves) for path in (True, False)]
    torch.testing.assert_close(*found)
    (of_sink,) = [g for g, p in zip(found[0], leaves, strict=True) if p is layer.sink] or [torch.ones(1)]
    assert of_sink.any()


@BOTH_PATHS
@EACH_OPTION
def test_decoding_with_a_cache_equals_one_call(option, need_weights):
    layer = layer_of(**OPTIONS[option], rotary=RotaryPositionalEncoding(HEAD_DIM))
    x = random(2, LENGTH, WIDTH)
    cache = KeyValueCache()
    steps = [layer(part, is_causal=True, cache=cache, need_weights=need_weights)[0] for part in x.split(2, 1)]
    torch.testing.assert_close(torch.cat(steps, 1), layer(x, is_causal=True)[0])


@BOTH_PATHS
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16], ids=str)
def test_lower_precision_is_close(dtype, need_weights):
    layer, x = layer_of(**OPTIONS["both, shared keys"]), random(BATCH, LENGTH, WIDTH) / 4
    wanted, _ = layer(x, is_causal=True)
    found, _ = layer.to(dtype)(x.to(dtype), is_causal=True, need_weights=need_weights)
    allowed = 1e-5 if dtype == torch.float32 else 0.2
    torch.testing.assert_close(found.double(), wanted, rtol=allowed, atol=allowed)


@pytest.mark.no_shape_checks
@BOTH_PATHS
def test_a_layer_with_a_sink_is_one_graph(need_weights):
    torch.compiler.reset()
    layer, x = layer_of(**OPTIONS["both, shared keys"]), random(BATCH, LENGTH, WIDTH)
    traced = torch.compile(layer, fullgraph=True, backend="aot_eager")
    found, _ = traced(x, is_causal=True, need_weights=need_weights)
    torch.testing.assert_close(found, layer(x, is_causal=True)[0])


def test_a_sink_that_wins_leaves_no_weight():
    layer, x = layer_of(sink=True), random(BATCH, LENGTH, WIDTH)
    nn.init.constant_(layer.sink, 1e3)
    output, weights = layer(x)
    assert weights.sum() == 0 and output.abs().max() == 0


@pytest.mark.newer_torch
def test_equals_the_attention_of_gpt_oss():
    from transformers.models.gpt_oss.modeling_gpt_oss import eager_attention_forward

    ours, x = layer_of(sink=True, num_kv_heads=KV_HEADS), random(BATCH, LENGTH, WIDTH)
    heads = [ours.split_heads(proj(x)) for proj in (ours.q_proj, ours.k_proj, ours.v_proj)]
    theirs = nn.Module()
    theirs.num_key_value_groups, theirs.sinks = HEADS // KV_HEADS, ours.sink
    theirs.training = False
    output, weights = eager_attention_forward(theirs, *heads, None, scaling=HEAD_DIM**-0.5)
    torch.testing.assert_close(ours(x), (ours.out_proj(output.flatten(2)), weights))


def test_heads_may_have_any_width():
    layer = MultiHeadAttention(7, 3, head_dim=4, num_kv_heads=1)
    shapes = [tuple(proj.weight.shape) for proj in (layer.q_proj, layer.k_proj, layer.v_proj, layer.out_proj)]
    assert shapes == [(12, 7), (4, 7), (4, 7), (7, 12)]
    with pytest.raises(ValueError, match="embed_dim must be divisible by num_heads"):
        MultiHeadAttention(7, 3)
    with pytest.raises(ValueError, match="torch's layer lacks, got one with .*head_dim"):
        layer.to_torch()


def test_some_projections_may_have_a_bias():
    of_qwen2 = MultiHeadAttention(6, 3, bias=("q_proj", "k_proj", "v_proj"))
    assert [name for name, _ in of_qwen2.named_parameters() if "bias" in name] == [
        "q_proj.bias", "k_proj.bias", "v_proj.bias"
    ]  # fmt: skip
    for wrong in ("q_proj", ["q"], {"query_proj": True}):
        with pytest.raises(ValueError, match=r"bias must be a bool, or name some of q_proj, .*got "):
            MultiHeadAttention(6, 3, bias=wrong)
    block = DecoderBlock(6, 3, 7, attention_bias=["out_proj"])
    assert [name for name, _ in block.named_parameters() if "bias" in name] == [
        "self_attention.out_proj.bias", "cross_attention.out_proj.bias"
    ]  # fmt: skip
    assert EncoderBlock(6, 3, 7, bias=True, attention_bias=False).self_attention.out_proj.bias is None


@BOTH_PATHS
def test_one_argument_is_self_attention(need_weights):
    layer, x = layer_of(), random(BATCH, LENGTH, WIDTH)
    hide = {"is_causal": True, "need_weights": need_weights}
    torch.testing.assert_close(layer(x, **hide), layer(x, x, x, **hide), rtol=0, atol=0)
    memory = random(BATCH, 3, WIDTH)
    torch.testing.assert_close(layer(x, memory), layer(x, memory, memory), rtol=0, atol=0)
    with pytest.raises(ValueError, match="key must have shape .*kdim=3"):
        MultiHeadAttention(6, 3, kdim=3)(torch.ones(2, 5, 6))


def test_heads_with_their_sinks_are_pruned():
    layer, x = layer_of(sink=True, qk_norm=True), random(BATCH, LENGTH, WIDTH)
    small = prune_heads(layer, [0, 4])
    _, wanted = layer(x)
    torch.testing.assert_close(small(x)[1], wanted[:, [1, 2, 3, 5]])


@pytest.mark.parametrize("norm", ["layer", "rms"])
def test_blocks_pass_the_options_on(norm):
    options = {"head_dim": 8, "qk_norm": True, "sink": True, "layer_norm_eps": 1e-2, "norm": norm}
    block = DecoderBlock(6, 3, 7, **options)
    for layer in (block.self_attention, block.cross_attention):
        assert (layer.head_dim, layer.q_norm.eps, layer.k_norm.eps) == (8, 1e-2, 1e-2)
        assert layer.sink.tolist() == [0, 0, 0]


ONE = {
    "nothing": {},
    "mask": {"attn_mask": bools(LENGTH, LENGTH)},
    "mask of heads": {"attn_mask": bools(3, LENGTH, LENGTH)},
    "bias": {"attn_bias": random(LENGTH, LENGTH)},
    "bias of heads": {"attn_bias": random(3, LENGTH, LENGTH)},
    "key mask": {"key_mask": bools(LENGTH)},
    "length": {"valid_lens": torch.tensor(3)},
    "lengths of queries": {"valid_lens": torch.tensor([1, 5, 2, 3, 0])},
}
MEMORY = {"memory_mask": bools(LENGTH, 8), "memory_key_mask": bools(8, seed=1)}
MEMORY["memory_valid_lens"] = torch.tensor(6)


@pytest.mark.parametrize("kind", [EncoderBlock, TransformerEncoder, DecoderBlock, TransformerDecoder])
@pytest.mark.parametrize("hide", ONE)
def test_blocks_and_stacks_take_one_sample_without_a_batch_axis(hide, kind):
    sizes = (6, 3, 7) if kind in (EncoderBlock, DecoderBlock) else (2, 6, 3, 7)
    model, inputs, given = kind(*sizes).double().eval(), [random(LENGTH, 6)], ONE[hide]
    if kind in (DecoderBlock, TransformerDecoder):
        inputs, given = [*inputs, random(8, 6, seed=1)], given | MEMORY
    shared = ("attn_mask", "attn_bias", "memory_mask")
    batched = {
        name: part if part.ndim == 2 and name in shared else part[None] for name, part in given.items()
    }
    with capture_attention(model) as weights:
        output = model(*inputs, **given)
    with capture_attention(model) as wanted:
        torch.testing.assert_close(output, model(*(x[None] for x in inputs), **batched)[0])
    torch.testing.assert_close(dict(weights), dict(wanted))
    with pytest.raises(ValueError, match=r"got \((1, )?9\)"):
        model(*inputs, key_mask=bools(9))
