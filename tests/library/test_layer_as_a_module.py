"""The multi-head layer as an `nn.Module`: saved, copied, moved, in training and evaluation, with a seed."""

import copy
import itertools
import pickle

import pytest
import torch
from attention_cases import BIAS, LENS, NO_LENS
from attention_layers import EACH_KIND, KINDS, even_inputs, even_layer, layer_of, make_inputs, make_layer
from attention_marks import BOTH_PATHS, DTYPES
from attention_sizes import BATCH, EVEN_DIM, HEADS, K_LEN, Q_LEN
from random_tensors import bools, gradients

from mha_lib import KeyValueCache, MultiHeadAttention


@EACH_KIND
def test_weights_can_be_saved_and_loaded(kind, tmp_path):
    layer, given = layer_of(kind).eval(), even_inputs()
    expected, _ = layer(*given, is_causal=True)
    torch.save(layer.state_dict(), tmp_path / "weights.pt")
    other = layer_of(kind).eval()
    with torch.no_grad():
        for parameter in other.parameters():
            parameter.add_(1)
    assert not torch.allclose(other(*given, is_causal=True)[0], expected)
    stored = torch.load(tmp_path / "weights.pt", weights_only=True)
    assert not other.load_state_dict(stored).missing_keys
    assert torch.equal(other(*given, is_causal=True)[0], expected)


def test_only_the_four_projections_are_saved():
    """A rotary encoding computes its angles, so no checkpoint depends on a maximum length."""
    parts = itertools.product(("q", "k", "v", "out"), ("weight", "bias"))
    expected = [f"{part}_proj.{kind}" for part, kind in parts]
    for kind in ("plain", "rotary", "cosine", "scaled otherwise"):
        assert list(layer_of(kind).state_dict()) == expected
    assert list(MultiHeadAttention(6, 3).state_dict()) == expected[::2]  # no biases by default
    assert set(layer_of("bilinear").state_dict()) == {*expected, "score.key_proj.weight"}  # fmt: skip


@BOTH_PATHS
@EACH_KIND
@pytest.mark.parametrize("copied", [
    copy.deepcopy, lambda layer: pickle.loads(pickle.dumps(layer)),  # noqa: S301
], ids=["deepcopy", "pickle"])  # fmt: skip
def test_a_layer_can_be_copied_after_calls(copied, kind, need_weights):
    layer, given = layer_of(kind), even_inputs()
    handle = layer.register_forward_hook(lambda *_: None)
    layer(*given, need_weights=need_weights)[0].sum().backward()
    handle.remove()
    twin = copied(layer)
    assert twin.training == layer.training
    for layer_ in (layer, twin):
        layer_.eval()
    expected, _ = layer(*given, is_causal=True)
    assert torch.equal(twin(*given, is_causal=True)[0], expected)
    with torch.no_grad():
        for parameter in twin.parameters():
            parameter.zero_()
    assert (twin(*given)[0] == 0).all()
    assert torch.equal(layer(*given, is_causal=True)[0], expected)


@BOTH_PATHS
@EACH_KIND
def test_a_layer_on_the_meta_device(kind, need_weights):
    with torch.device("meta"):
        layer = MultiHeadAttention(
            EVEN_DIM, HEADS,
            **{name: part() if callable(part) else part for name, part in KINDS[kind].items()},
        )  # fmt: skip
        query, memory = (torch.empty(BATCH, n, EVEN_DIM) for n in (Q_LEN, K_LEN))
        mask, bias = torch.empty(Q_LEN, K_LEN, dtype=torch.bool), torch.empty(Q_LEN, K_LEN)  # fmt: skip
        lens = torch.empty(BATCH, dtype=torch.long)
    assert all(parameter.is_meta for parameter in layer.parameters())
    for asked in (
        {},
        {"attn_mask": mask, "attn_bias": bias, "valid_lens": lens, "is_causal": True},
        {"cache": KeyValueCache(), "is_causal": True},
    ):
        output, weights = layer(query, memory, memory, need_weights=need_weights, **asked)
        assert output.is_meta and output.shape == query.shape
        if need_weights:
            assert weights.shape == (BATCH, HEADS, Q_LEN, K_LEN)
    assert layer.to_empty(device="cpu")(*even_inputs(torch.float32))[0].shape == query.shape


@BOTH_PATHS
@EACH_KIND
def test_a_layer_moves_to_another_dtype_and_device(kind, need_weights):
    """To a dtype and back, and to the device it is on; to a GPU if there is one."""
    layer, given = layer_of(kind).eval(), even_inputs()
    expected, _ = layer(*given, is_causal=True, need_weights=need_weights)
    devices = ["cpu", *(["cuda"] if torch.cuda.is_available() else [])]
    for device in devices:
        moved = copy.deepcopy(layer).to(device)
        output, _ = moved(*(x.to(device) for x in given), is_causal=True, need_weights=need_weights)
        assert output.device.type == device
        torch.testing.assert_close(output.cpu(), expected)
    back = copy.deepcopy(layer).float().double()
    output, _ = back(*given, is_causal=True, need_weights=need_weights)
    torch.testing.assert_close(output, expected, rtol=1e-5, atol=1e-5)


def test_repr_names_the_sizes():
    assert "embed_dim=6, num_heads=3, head_dim=2" in repr(MultiHeadAttention(6, 3))
    settings = {"num_kv_heads": 1, "window": (3, 0), "softcap": 50.0, "scale": 0.25}
    for name, value in settings.items():
        assert f"{name}={value}" in repr(MultiHeadAttention(6, 3, **settings))


def state(module):
    """Everything that a module and its parts hold: names, identities, version counters."""
    found = {}
    for path, part in module.named_modules():
        for name, thing in vars(part).items():
            found[path, name] = id(thing)
            if isinstance(thing, dict):
                found[path, name, "keys"] = list(thing), [id(v) for v in thing.values()]
    for name, tensor in itertools.chain(module.named_parameters(), module.named_buffers()):  # fmt: skip
        found[name] = tensor._version, tensor.requires_grad, tensor.grad
    return found


@BOTH_PATHS
@EACH_KIND
@pytest.mark.parametrize("training", [True, False], ids=["train", "eval"])
def test_a_call_leaves_nothing_on_the_layer(training, kind, need_weights):
    layer, given = layer_of(kind).train(training), even_inputs()
    before = state(layer)
    for asked in (
        {}, {"is_causal": True, "valid_lens": LENS},
        {"attn_bias": BIAS, "attn_mask": bools(Q_LEN, K_LEN)}, {"cache": KeyValueCache()},
    ):  # fmt: skip
        output, _ = layer(*given, need_weights=need_weights, **asked)
        assert state(layer) == before
    with pytest.raises(ValueError, match="valid_lens"):
        layer(*given, valid_lens=LENS + 1)  # nor does a rejected call
    assert state(layer) == before
    output.sum().backward()
    for part in layer.modules():
        assert not part._forward_hooks and not part._forward_pre_hooks
        assert not part._backward_hooks and not part._buffers


def test_returned_weights_are_those_before_dropout():
    layer, inputs = make_layer(dropout=0.5), make_inputs()
    torch.testing.assert_close(layer(*inputs)[1], make_layer()(*inputs)[1])


@BOTH_PATHS
def test_dropout_comes_from_the_layer_and_in_training_only(need_weights):
    layer, plain, given = even_layer(dropout=0.5), even_layer(), even_inputs()
    expected, _ = plain(*given, need_weights=need_weights)
    torch.manual_seed(0)
    before = torch.get_rng_state()
    assert not torch.allclose(layer(*given, need_weights=need_weights)[0], expected)
    assert not torch.equal(torch.get_rng_state(), before)
    assert torch.equal(layer.eval()(*given, need_weights=need_weights)[0], expected)
    layer.train()
    layer.dropout = 0.0
    assert torch.equal(layer(*given, need_weights=need_weights)[0], expected)


@BOTH_PATHS
def test_a_seed_fixes_the_result(need_weights):
    layer, given = even_layer(dropout=0.5), even_inputs()

    def run(seed):
        torch.manual_seed(seed)
        output, _ = layer(*given, need_weights=need_weights)
        return output, gradients(output, [*layer.parameters()])

    first, same, other = run(1), run(1), run(2)
    assert torch.equal(first[0], same[0])
    assert all(torch.equal(*pair) for pair in zip(first[1], same[1], strict=True))
    assert not torch.allclose(first[0], other[0])


@BOTH_PATHS
@EACH_KIND
def test_a_call_without_dropout_draws_no_random_numbers(kind, need_weights):
    layer, given = layer_of(kind), even_inputs()
    for training in (False, True):
        if training and layer.dropout:
            continue
        layer.train(training)
        torch.manual_seed(0)
        before = torch.get_rng_state()
        for asked in ({}, {"is_causal": True}, {"valid_lens": LENS, "attn_bias": BIAS}):
            layer(*given, need_weights=need_weights, **asked)[0].sum().backward()
        assert torch.equal(torch.get_rng_state(), before)


@EACH_KIND
@pytest.mark.parametrize("hide", [{}, {"valid_lens": NO_LENS, "is_causal": True}], ids=str)  # fmt: skip
@DTYPES
def test_the_same_answer_in_every_mode(dtype, hide, kind):
    """With and without weights, with and without grad, in training without dropout and in evaluation."""
    layer, given = layer_of(kind, dtype), even_inputs(dtype)
    layer.dropout = 0.0
    by_path = []
    for need_weights in (True, False):
        outputs = []
        modes = (torch.enable_grad, torch.no_grad, torch.inference_mode)
        for training, mode in itertools.product((True, False), modes):
            layer.train(training)
            with mode():
                output, weights = layer(*given, need_weights=need_weights, **hide)
            assert (weights is not None) == need_weights
            assert output.requires_grad == (mode is torch.enable_grad)
            outputs.append(output.detach().clone())
        assert all(torch.equal(output, outputs[0]) for output in outputs)
        by_path.append(outputs[0])
    error = {torch.float64: 1e-12, torch.float32: 1e-5}.get(dtype)
    error = error or 20 * torch.finfo(dtype).eps
    torch.testing.assert_close(*by_path, rtol=0, atol=error)
