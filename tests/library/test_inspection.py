"""Looking into a model: what is collected, what a head is worth, what pruning leaves; no trace may stay."""

import copy
import pickle

import oracles
import pytest
import torch
from random_tensors import random
from torch import nn

from mha_lib import MultiHeadAttention, capture_attention, gate_heads, head_importance, prune_heads

BATCH, HEADS, Q_LEN, K_LEN, EMBED_DIM, KDIM, VDIM = 2, 3, 5, 7, 33, 17, 19


def make_layer(num_heads=HEADS, **options):
    torch.manual_seed(num_heads)
    layer = MultiHeadAttention(EMBED_DIM, num_heads, **options).double()
    for parameter in layer.parameters():
        nn.init.normal_(parameter, std=0.3)
    return layer


class TwoLayers(nn.Module):
    """A model with one layer of three heads that asks for its weights and one of eleven that does not."""

    def __init__(self):
        super().__init__()
        self.first = make_layer()
        self.blocks = nn.ModuleList([make_layer(11)])

    def forward(self, x):
        hidden, weights = self.first(x, x, x, is_causal=True)
        output, nothing = self.blocks[0](hidden, x, x, valid_lens=torch.tensor([3, 4]), need_weights=False)
        return output, weights, nothing


def hooks(model):
    return [
        hook
        for module in model.modules()
        for registered in (module._forward_hooks, module._forward_pre_hooks, module._backward_hooks)
        for hook in registered
    ]


# capture_attention


def test_capture_collects_the_weights_of_every_layer():
    model, x = TwoLayers(), random(BATCH, Q_LEN, EMBED_DIM)
    plain = model(x)
    with capture_attention(model) as captured:
        output, weights, nothing = model(x)
    assert list(captured) == ["first", "blocks.0"]
    torch.testing.assert_close(output, plain[0])
    assert nothing is None
    assert torch.equal(captured["first"], weights)
    hidden, _ = model.first(x, x, x, is_causal=True)
    expected = model.blocks[0](hidden, x, x, valid_lens=torch.tensor([3, 4]))[1]
    torch.testing.assert_close(captured["blocks.0"], expected)
    assert captured["blocks.0"].shape == (BATCH, 11, Q_LEN, Q_LEN)
    assert not any(w.requires_grad for w in captured.values())


def test_capture_of_a_layer_by_itself():
    layer, x = make_layer(), random(BATCH, Q_LEN, EMBED_DIM)
    with capture_attention(layer) as captured:
        assert captured == {}
        layer(x, x, x, need_weights=False)
    assert torch.equal(captured[""], layer(x, x, x)[1])


def test_capture_keeps_the_latest_call():
    layer, x, other = (make_layer(), random(BATCH, Q_LEN, EMBED_DIM), random(BATCH, K_LEN, EMBED_DIM, seed=1))
    with capture_attention(layer) as captured:
        layer(x, x, x)
        layer(x, other, other)
    assert torch.equal(captured[""], layer(x, other, other)[1])


def test_gradients_pass_through_a_captured_layer():
    layer, x = make_layer(), random(BATCH, Q_LEN, EMBED_DIM).requires_grad_()
    (expected,) = torch.autograd.grad(layer(x, x, x)[0].square().sum(), x)
    with capture_attention(layer):
        (gradient,) = torch.autograd.grad(layer(x, x, x, need_weights=False)[0].square().sum(), x)
    torch.testing.assert_close(gradient, expected)


def test_capture_leaves_no_trace():
    model, x = TwoLayers(), random(BATCH, Q_LEN, EMBED_DIM)
    attributes = {name: set(vars(module)) for name, module in model.named_modules()}
    with capture_attention(model):
        model(x)
    assert hooks(model) == []
    assert {name: set(vars(module)) for name, module in model.named_modules()} == attributes
    for twin in (copy.deepcopy(model), pickle.loads(pickle.dumps(model))):  # noqa: S301, our own bytes
        torch.testing.assert_close(twin(x)[0], model(x)[0])
    assert model(x)[2] is None


def test_an_error_inside_the_block_leaves_no_trace_either():
    model = TwoLayers()
    with pytest.raises(ValueError, match="query must have shape"), capture_attention(model):
        model(random(BATCH, Q_LEN, EMBED_DIM + 1))
    assert hooks(model) == []
    with pytest.raises(KeyError), capture_attention(model) as captured:
        captured["no such layer"]
    assert hooks(model) == []


def test_a_call_that_failed_does_not_disturb_the_next_one():
    layer, x = make_layer(), random(BATCH, Q_LEN, EMBED_DIM)
    with capture_attention(layer) as captured:
        with pytest.raises(ValueError, match="valid_lens"):
            layer(x, x, x, valid_lens=torch.tensor([99, 99]), need_weights=False)
        assert torch.equal(layer(x, x, x)[1], captured[""])
        assert layer(x, x, x, need_weights=False)[1] is None


def test_two_captures_at_once():
    layer, x = make_layer(), random(BATCH, Q_LEN, EMBED_DIM)
    with capture_attention(layer) as outer, capture_attention(layer) as inner:
        assert layer(x, x, x, need_weights=False)[1] is None
    assert torch.equal(outer[""], inner[""])
    assert hooks(layer) == []


def test_other_hooks_see_what_the_model_asked_for():
    layer, x, seen = make_layer(), random(BATCH, Q_LEN, EMBED_DIM), []
    layer.register_forward_hook(lambda *call: seen.append(call[-1][1]))
    with capture_attention(layer):
        layer(x, x, x, need_weights=False)
    assert seen == [None]


# gate_heads and prune_heads


@pytest.mark.parametrize("off", [[], [0], [1], [2], [0, 2], [1, 2], [0, 1]], ids=str)
@pytest.mark.parametrize(
    "options", [{}, {"bias": True, "kdim": KDIM, "vdim": VDIM}], ids=["plain", "other widths"]
)
def test_a_pruned_layer_equals_one_with_heads_switched_off(options, off):
    layer = make_layer(**options)
    query = random(BATCH, Q_LEN, EMBED_DIM)
    key = random(BATCH, K_LEN, options.get("kdim", EMBED_DIM), seed=1)
    value = random(BATCH, K_LEN, options.get("vdim", EMBED_DIM), seed=2)
    hide = {"valid_lens": torch.tensor([3, 7]), "is_causal": True}
    before = copy.deepcopy(layer.state_dict())
    full, weights = layer(query, key, value, **hide)

    gates = torch.ones(HEADS)
    gates[off] = 0
    with gate_heads(layer, gates):
        gated, gated_weights = layer(query, key, value, **hide)
    pruned = prune_heads(layer, off)
    output, pruned_weights = pruned(query, key, value, **hide)

    kept = [h for h in range(HEADS) if h not in off]
    torch.testing.assert_close(output, gated)
    torch.testing.assert_close(gated_weights, weights)
    torch.testing.assert_close(pruned_weights, weights[:, kept])
    torch.testing.assert_close(output, pruned(query, key, value, need_weights=False, **hide)[0])
    assert torch.allclose(output, full) == (not off)
    assert (pruned.num_heads, pruned.head_dim, pruned.embed_dim) == (len(kept), layer.head_dim, EMBED_DIM)
    assert hooks(layer) == []
    assert all(torch.equal(value, layer.state_dict()[name]) for name, value in before.items())


def test_a_gated_head_is_left_out_of_the_loop():
    """Against the slow loop: the columns of `out_proj` that belong to the head are zero."""
    layer, x = make_layer(bias=True), random(BATCH, Q_LEN, EMBED_DIM)
    parameters = {name: value.clone() for name, value in layer.state_dict().items()}
    parameters["out_proj.weight"][:, 11:22] = 0
    expected, _ = oracles.multi_head(x, x, x, parameters, HEADS)
    with gate_heads(layer, torch.tensor([1.0, 0.0, 1.0])):
        gated, _ = layer(x, x, x)
    torch.testing.assert_close(gated.detach(), torch.from_numpy(expected))


def test_gates_scale_and_have_a_gradient():
    layer, x = make_layer(bias=True), random(BATCH, Q_LEN, EMBED_DIM)
    gates = torch.tensor([0.5, -1.0, 2.0], dtype=torch.float64, requires_grad=True)

    def gated(gates):
        with gate_heads(layer, gates):
            return layer(x, x, x)[0]

    ones, zeros = torch.eye(HEADS).double(), torch.zeros(HEADS).double()
    bias = gated(zeros)
    torch.testing.assert_close(bias, layer.out_proj.bias.expand_as(bias))
    parts = sum(gate * (gated(one) - bias) for gate, one in zip(gates, ones, strict=True))
    torch.testing.assert_close(gated(gates), bias + parts)
    assert torch.autograd.gradcheck(gated, (gates,), atol=1e-4)


def test_heads_that_share_keys_can_be_gated():
    layer = MultiHeadAttention(30, 6, num_kv_heads=2).double()
    x = random(BATCH, Q_LEN, 30)
    with gate_heads(layer, torch.zeros(6)):
        assert (layer(x, x, x)[0] == 0).all()


def test_an_error_inside_gate_heads_leaves_no_hook():
    layer = make_layer()
    with pytest.raises(ZeroDivisionError), gate_heads(layer, torch.ones(HEADS)):
        _ = 1 / 0
    assert hooks(layer) == []


def test_pruning_twice_equals_pruning_at_once():
    layer, x = make_layer(11), random(BATCH, Q_LEN, EMBED_DIM)
    at_once = prune_heads(layer, [1, 4, 9])
    twice = prune_heads(prune_heads(layer, [9, 1]), [3])  # head 4 has become number 3
    assert torch.equal(at_once(x, x, x)[0], twice(x, x, x)[0])


def test_a_pruned_layer_can_be_stored_trained_and_pickled():
    layer, x = make_layer(bias=True), random(BATCH, Q_LEN, EMBED_DIM)
    pruned = prune_heads(layer, [1])
    assert pruned.q_proj.weight.shape == (22, EMBED_DIM)
    assert pruned.out_proj.weight.shape == (EMBED_DIM, 22)
    assert pruned.out_proj.bias.shape == (EMBED_DIM,)
    assert (pruned.q_proj.out_features, pruned.out_proj.in_features) == (22, 22)
    pruned(x, x, x)[0].sum().backward()
    assert all(parameter.grad is not None for parameter in pruned.parameters())
    assert all(parameter.grad is None for parameter in layer.parameters())
    twin = pickle.loads(pickle.dumps(pruned))  # noqa: S301, our own bytes
    assert torch.equal(twin(x, x, x)[0], pruned(x, x, x)[0])


# head_importance


def squared_error(layer, x, target):
    return (layer(x, x, x, is_causal=True)[0] - target).square().mean((1, 2))


def test_importance_equals_finite_differences():
    layer = make_layer(bias=True)
    x, target = random(BATCH, Q_LEN, EMBED_DIM), random(BATCH, Q_LEN, EMBED_DIM, seed=1)
    importance = head_importance(layer, lambda: squared_error(layer, x, target))
    assert importance.shape == (HEADS,)
    step = 1e-5
    for h in range(HEADS):
        sides = []
        for sign in (1, -1):
            gates = torch.ones(HEADS, dtype=torch.float64)
            gates[h] += sign * step
            with gate_heads(layer, gates), torch.no_grad():
                sides.append(squared_error(layer, x, target))
        slopes = (sides[0] - sides[1]) / (2 * step)
        assert importance[h].item() == pytest.approx(slopes.abs().mean().item(), rel=1e-4)


def test_the_absolute_value_is_taken_for_each_sample():
    """Two samples want the opposite of a head: their gradients cancel in the mean, not in the importance."""
    layer, x = make_layer(), random(1, Q_LEN, EMBED_DIM)
    x = torch.cat((x, x))
    signs = torch.tensor([1.0, -1.0]).double()
    importance = head_importance(layer, lambda: signs * layer(x, x, x)[0].sum((1, 2)))
    of_the_mean = head_importance(layer, lambda: (signs * layer(x, x, x)[0].sum((1, 2))).mean())
    assert (importance > 0.01).all()
    assert (of_the_mean < 1e-6).all()


def test_a_head_without_values_has_no_importance():
    layer = make_layer()
    with torch.no_grad():
        layer.v_proj.weight[11:22] = 0
    x, target = random(BATCH, Q_LEN, EMBED_DIM), random(BATCH, Q_LEN, EMBED_DIM, seed=1)
    importance = head_importance(layer, lambda: squared_error(layer, x, target))
    assert importance[1] == 0
    assert importance[0] > 0
    assert importance[2] > 0


def test_importance_of_a_layer_inside_a_model():
    model, x = TwoLayers(), random(BATCH, Q_LEN, EMBED_DIM)
    importance = head_importance(model.blocks[0], lambda: model(x)[0].square().sum((1, 2)))
    assert importance.shape == (11,)
    assert (importance > 0).all()


def test_importance_wants_one_loss_for_each_sample():
    layer, x = make_layer(), random(BATCH, Q_LEN, EMBED_DIM)
    with pytest.raises(ValueError, match=rf"loss\(\).*got 1 for \[{BATCH}\]"):
        head_importance(layer, lambda: layer(x, x, x)[0].sum((1, 2))[:1])


def test_importance_leaves_gradients_and_hooks_alone():
    layer, x = make_layer(), random(BATCH, Q_LEN, EMBED_DIM)
    with torch.no_grad():  # also where a caller has switched gradients off
        head_importance(layer, lambda: layer(x, x, x)[0].sum((1, 2)))
    assert all(parameter.grad is None for parameter in layer.parameters())
    assert hooks(layer) == []


def test_what_is_frozen_stays_frozen_when_pruned():
    layer = MultiHeadAttention(6, 3, bias=True)
    layer.q_proj.requires_grad_(False)
    pruned = prune_heads(layer, [1])
    for name, parameter in pruned.named_parameters():
        assert parameter.requires_grad == (not name.startswith("q_proj")), name
