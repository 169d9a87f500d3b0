"""Inspecting a model: captured weights, importance of heads, pruning; no trace may stay behind."""

import contextlib
import copy
import pickle
import threading

import oracles
import pytest
import torch
from attention_layers import shaken
from random_tensors import random
from torch import nn
from torch.nn.utils import prune

from mha_lib.cache import KeyValueCache
from mha_lib.inspection import capture_attention, gate_heads, head_importance, prune_heads
from mha_lib.multi_head import MultiHeadAttention
from mha_lib.rotary import RotaryPositionalEncoding
from mha_lib.scores import cosine_score
from mha_lib.transformer import TransformerEncoder

BATCH, HEADS, Q_LEN, K_LEN, EMBED_DIM, KDIM, VDIM = 2, 3, 5, 7, 33, 17, 19


def make_layer(num_heads=HEADS, **options):
    return shaken(MultiHeadAttention(EMBED_DIM, num_heads, **options), std=0.3, seed=num_heads)


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


def stance():
    """The stance of torch's compiler, which torch has no public function to read."""
    return torch._dynamo.eval_frame._stance.stance


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


def test_an_error_inside_the_block_leaves_no_trace():
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


def test_other_hooks_see_what_the_model_asked_for():
    layer, x, seen = make_layer(), random(BATCH, Q_LEN, EMBED_DIM), []
    layer.register_forward_hook(lambda *call: seen.append(call[-1][1]))
    with capture_attention(layer):
        layer(x, x, x, need_weights=False)
    assert seen == [None]


def test_captures_may_end_in_any_order():
    layer, x = make_layer(), random(BATCH, Q_LEN, EMBED_DIM)
    with contextlib.ExitStack() as first, contextlib.ExitStack() as second:
        early = first.enter_context(capture_attention(layer))
        late = second.enter_context(capture_attention(layer))
        first.close()
        weights = layer(x, x, x)[1]
        assert early == {}
        assert torch.equal(late[""], weights)
        assert layer(x, x, x, need_weights=False)[1] is None
    assert "forward" not in vars(layer)
    assert stance() == "default"


def test_capture_and_a_forward_that_another_library_set():
    layer, x, calls = make_layer(), random(BATCH, Q_LEN, EMBED_DIM), []

    def counted(*args, **kwargs):
        calls.append(kwargs["need_weights"])
        return MultiHeadAttention.forward(layer, *args, **kwargs)

    layer.forward = counted
    with capture_attention(layer) as captured:
        assert layer(x, x, x, need_weights=False)[1] is None
    assert layer.forward is counted
    assert calls == [True]
    assert captured[""].shape == (BATCH, HEADS, Q_LEN, Q_LEN)


def test_copies_made_inside_the_block_are_not_captured():
    layer, x = make_layer(), random(BATCH, Q_LEN, EMBED_DIM)
    with capture_attention(layer) as captured:
        twins = copy.deepcopy(layer), pickle.loads(pickle.dumps(layer))  # noqa: S301, our own bytes
        expected, _ = layer(x, x, x)
        del captured[""]
        with torch.no_grad():
            layer.v_proj.weight.zero_()
        for twin in twins:
            assert torch.equal(twin(x, x, x)[0], expected)
    assert captured == {}


def test_threads_that_ask_for_weights_and_threads_that_do_not():
    layer, inputs = make_layer(), [random(BATCH, Q_LEN, EMBED_DIM, seed=seed) for seed in range(4)]
    expected = [layer(x, x, x)[0] for x in inputs]
    # Both threads of a pair are inside the layer at the same time, because each waits there for the other.
    both_inside, failures = threading.Barrier(2, timeout=60), []

    def meet(*_):
        both_inside.wait()

    layer.k_proj.register_forward_hook(meet)

    def call(number):
        asks, x = number % 2 == 0, inputs[number]
        try:
            for _ in range(25):
                output, weights = layer(x, x, x, need_weights=asks)
                assert (weights is not None) == asks
                torch.testing.assert_close(output, expected[number])
        except BaseException as error:
            failures.append(error)
            both_inside.abort()

    with capture_attention(layer) as captured:
        for pair in ((0, 1), (2, 3)):
            threads = [threading.Thread(target=call, args=(number,)) for number in pair]
            for thread in threads:
                thread.start()
            for thread in threads:
                thread.join()
    assert failures == []
    assert captured[""].shape == (BATCH, HEADS, Q_LEN, Q_LEN)


# Compiled models


class CountedRuns:
    """A backend for torch.compile that runs what it is given, and counts compilations and runs."""

    def __init__(self):
        self.compiled = self.runs = 0

    def __call__(self, program, _):
        self.compiled += 1

        def run(*inputs):
            self.runs += 1
            return program(*inputs)

        return run


def compiled_outside(model, backend):
    return torch.compile(model, backend=backend)


def compiled_in_place(model, backend):
    model.compile(backend=backend)
    return model


@pytest.mark.no_shape_checks
@pytest.mark.parametrize("compiled", [compiled_outside, compiled_in_place])
def test_a_compiled_model_is_looked_into_and_compiled_again_afterwards(compiled):
    torch.compiler.reset()
    plain, x = TwoLayers(), random(BATCH, Q_LEN, EMBED_DIM)
    layer = plain.blocks[0]
    gates = torch.ones(11, dtype=torch.float64)
    gates[3] = 0
    expected = plain(x)[0]
    with capture_attention(plain) as weights:
        plain(x)
    with gate_heads(layer, gates):
        gated = plain(x)[0]
    importance = head_importance(layer, lambda: plain(x)[0].square().sum((1, 2)))
    assert not torch.allclose(gated, expected)

    backend = CountedRuns()
    model = compiled(plain, backend)
    with torch.no_grad():
        torch.testing.assert_close(model(x)[0], expected)
        before = backend.compiled, backend.runs
        assert before[1] > 0
        with capture_attention(model) as captured:
            torch.testing.assert_close(model(x)[0], expected)
        with gate_heads(layer, gates):
            torch.testing.assert_close(model(x)[0], gated)
        of_compiled = head_importance(layer, lambda: model(x)[0].square().sum((1, 2)))
        assert (backend.compiled, backend.runs) == before
        torch.testing.assert_close(model(x)[0], expected)
        assert (backend.compiled, backend.runs) == (before[0], 2 * before[1])
    torch.testing.assert_close(list(captured.values()), list(weights.values()))
    torch.testing.assert_close(of_compiled, importance)


@pytest.mark.no_shape_checks
def test_a_layer_that_is_compiled_itself_can_be_given():
    layer, x = make_layer(), random(BATCH, Q_LEN, EMBED_DIM)
    compiled = torch.compile(layer, backend="eager")
    with gate_heads(compiled, torch.zeros(HEADS)):
        assert (compiled(x, x, x)[0] == 0).all()
    assert head_importance(compiled, lambda: compiled(x, x, x)[0].sum((1, 2))).shape == (HEADS,)
    assert torch.equal(prune_heads(compiled, [1])(x, x, x)[0], prune_heads(layer, [1])(x, x, x)[0])


def test_the_stance_that_was_set_before_comes_back():
    layer = make_layer()
    with torch.compiler.set_stance("fail_on_recompile"):
        with capture_attention(layer), gate_heads(layer, torch.ones(HEADS)):
            assert stance() == "force_eager"
        assert stance() == "fail_on_recompile"
    assert stance() == "default"


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


def test_an_error_inside_gate_heads_leaves_no_hook():
    layer = make_layer()
    with pytest.raises(ZeroDivisionError), gate_heads(layer, torch.ones(HEADS)):
        _ = 1 / 0
    assert hooks(layer) == []


GROUPED = {"num_kv_heads": 3}


@pytest.mark.parametrize(
    "options",
    [
        {},
        {"bias": True, "window": (2, 0), "softcap": 5.0},
        {"scale": torch.linspace(0.1, 0.9, 6, dtype=torch.float64).view(6, 1, 1)},
        {"scale": nn.Parameter(torch.linspace(0.1, 0.9, 6, dtype=torch.float64).view(1, 6, 1, 1))},
        {"scale": nn.Parameter(torch.rand(6, 1, 1, dtype=torch.float64), requires_grad=False)},
        {"scale": torch.tensor(0.3, dtype=torch.float64)},
        {"rotary": RotaryPositionalEncoding(8)},
        {"score": cosine_score},
    ],
    ids="plain, window and softcap, scale per head, learned scale, frozen, scale, rotary, score".split(", "),
)
@pytest.mark.parametrize("off", [[2, 3], [5, 0, 1, 4], []], ids=str)
def test_query_heads_that_share_keys_are_pruned_together(options, off):
    torch.manual_seed(0)
    layer = MultiHeadAttention(48, 6, **GROUPED, **options).double()
    layer.q_proj.requires_grad_(False)
    x, kept = random(BATCH, Q_LEN, 48), [h for h in range(6) if h not in off]
    mask = random(BATCH, 6, Q_LEN, Q_LEN) > -0.5
    bias = random(1, 6, 1, Q_LEN, seed=1)
    gates = torch.ones(6, dtype=torch.float64)
    gates[off] = 0
    with gate_heads(layer, gates):
        gated, weights = layer(x, x, x, mask, attn_bias=bias, is_causal=True)
    pruned = prune_heads(layer, off)
    cache = KeyValueCache()
    for need_weights, store in ((True, None), (False, None), (True, cache)):
        output, pruned_weights = pruned(
            x, x, x, mask[:, kept], attn_bias=bias[:, kept], is_causal=True, cache=store,
            need_weights=need_weights,
        )  # fmt: skip
        torch.testing.assert_close(output, gated)
        if need_weights:
            torch.testing.assert_close(pruned_weights, weights[:, kept])
    assert (pruned.num_heads, pruned.num_kv_heads) == (len(kept), len(kept) // 2)
    assert cache.keys.shape == (BATCH, len(kept) // 2, Q_LEN, 8)
    assert (pruned.embed_dim, pruned.head_dim) == (48, 8)
    for name, parameter in layer.named_parameters():
        assert pruned.get_parameter(name).requires_grad == parameter.requires_grad, name
    assert pruned.state_dict().keys() == layer.state_dict().keys()
    if off and getattr(layer.scale, "ndim", 0):
        assert pruned.scale.numel() == len(kept)
        assert layer.scale.numel() == 6


def test_a_part_of_the_heads_that_share_keys_cannot_be_pruned():
    layer = MultiHeadAttention(48, 6, **GROUPED)
    with pytest.raises(ValueError, match=r"heads must name all of the query heads \[2, 3\].* 1 .*got \[3\]"):
        prune_heads(layer, [0, 3, 1])


class LowRank(nn.Module):
    """What LoRA puts in place of a linear layer."""

    def __init__(self, linear):
        super().__init__()
        self.linear = linear

    def forward(self, x):
        return self.linear(x)


@pytest.mark.parametrize(("wrap", "found"), [
    (LowRank, "LowRank"),
    (lambda linear: nn.utils.parametrizations.weight_norm(linear), "ParametrizedLinear"),
    (lambda linear: prune.random_unstructured(linear, "weight", 0.5), "Linear without a weight"),
])  # fmt: skip
@pytest.mark.parametrize("name", ["k_proj", "out_proj"])
def test_a_projection_that_was_replaced_is_named_when_heads_are_pruned(wrap, found, name):
    layer = make_layer()
    setattr(layer, name, wrap(getattr(layer, name)))
    with pytest.raises(TypeError, match=rf"attention.{name} must be a plain Linear.*{found}"):
        prune_heads(layer, [0])


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


@pytest.mark.parametrize("per_sample", [True, False])
def test_importance_of_all_heads_in_one_pass(per_sample):
    """The same numbers as layer by layer, from one call of the loss."""
    torch.manual_seed(0)
    model, x, calls = TransformerEncoder(3, 12, 3, 7).double(), torch.rand(4, 5, 12).double(), []
    model.unused = MultiHeadAttention(12, 2)

    def loss():
        calls.append(1)
        losses = model(x).square().sum((1, 2))
        return losses if per_sample else losses.mean()

    found = head_importance(model, loss)
    assert len(calls) == 1 and list(found) == [f"blocks.{i}.self_attention" for i in range(3)] + ["unused"]
    assert found.pop("unused").tolist() == [0.0, 0.0]
    for name, importance in found.items():
        torch.testing.assert_close(importance, head_importance(model.get_submodule(name), loss))
    with pytest.raises(ValueError, match="attention must contain a MultiHeadAttention, got a Linear"):
        head_importance(torch.nn.Linear(2, 2), loss)
    with pytest.raises(ValueError, match="depend on the heads of attention"):
        head_importance(model, lambda: x.sum().clone().requires_grad_())


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
    """The gradients of two samples have opposite signs: they cancel in the mean, not in the importance."""
    layer, x = make_layer(), random(1, Q_LEN, EMBED_DIM)
    x = torch.cat((x, x))
    signs = torch.tensor([1.0, -1.0]).double()
    importance = head_importance(layer, lambda: signs * layer(x, x, x)[0].sum((1, 2)))
    of_the_mean = head_importance(layer, lambda: (signs * layer(x, x, x)[0].sum((1, 2))).mean())
    assert (importance > 0.01).all()
    assert (of_the_mean < 1e-6).all()


def test_importance_needs_one_loss_for_each_sample():
    layer, x = make_layer(), random(BATCH, Q_LEN, EMBED_DIM)
    with pytest.raises(ValueError, match=rf"loss\(\).*got 1 for \[{BATCH}\]"):
        head_importance(layer, lambda: layer(x, x, x)[0].sum((1, 2))[:1])


def test_importance_leaves_gradients_and_hooks_alone():
    layer, x = make_layer(), random(BATCH, Q_LEN, EMBED_DIM)
    with torch.no_grad():  # even if a caller has switched gradients off
        head_importance(layer, lambda: layer(x, x, x)[0].sum((1, 2)))
    assert all(parameter.grad is None for parameter in layer.parameters())
    assert hooks(layer) == []


def test_importance_in_inference_mode():
    layer, x = make_layer(), random(BATCH, Q_LEN, EMBED_DIM)
    expected = head_importance(layer, lambda: layer(x, x, x)[0].square().sum((1, 2)))
    with torch.inference_mode():
        importance = head_importance(layer, lambda: layer(x, x, x)[0].square().sum((1, 2)))
    assert torch.equal(importance, expected)
    assert not importance.is_inference()


def test_importance_of_inputs_or_weights_made_in_inference_mode():
    layer, x = make_layer(), random(BATCH, Q_LEN, EMBED_DIM)
    with torch.inference_mode():
        made_inside, built_inside = x.clone(), make_layer()
    for model, tokens in ((layer, made_inside), (built_inside, x)):
        with pytest.raises(ValueError, match=r"loss\(\) must use tensors .* outside torch.inference_mode"):
            head_importance(model, lambda: model(tokens, tokens, tokens)[0].sum((1, 2)))  # noqa: B023
    with pytest.raises(RuntimeError, match="of the user's own"):  # other errors in loss() are unchanged
        head_importance(layer, lambda: (_ for _ in ()).throw(RuntimeError("of the user's own")))


def test_a_loss_that_switches_gradients_off_is_named():
    layer, x = make_layer(), random(BATCH, Q_LEN, EMBED_DIM)
    with pytest.raises(ValueError, match="leave gradients switched on"):
        head_importance(layer, torch.inference_mode()(lambda: layer(x, x, x)[0].sum((1, 2))))
