"""Attention and the layer under torch.func: vmap, grad, ensembles."""

import pytest
import torch
from attention_cases import ASKED, BIAS, EACH_ASKED, FUSED, exact, exact_for, qkv
from attention_layers import even_inputs, even_layer
from attention_marks import BOTH_PATHS
from attention_sizes import BATCH, HEADS, K_LEN, Q_LEN
from random_tensors import bools, differentiable

from mha_lib import dot_product_attention


@BOTH_PATHS
@EACH_ASKED
@pytest.mark.filterwarnings("ignore:There is a performance drop")
def test_vmap_over_attention(asked, need_weights):
    def attend(query, key, value):
        return dot_product_attention(query, key, value, need_weights=need_weights, **ASKED[asked])[0]

    query, key, value = qkv()
    many = torch.stack((query, query)), torch.stack((key, key)), torch.stack((value, -value))  # fmt: skip
    expected, _ = exact_for(asked)
    torch.testing.assert_close(torch.func.vmap(attend)(*many), torch.stack((expected, -expected)))


@BOTH_PATHS
@pytest.mark.parametrize(
    "mapped",
    [["attn_mask"], ["valid_lens"], ["attn_bias"], ["attn_mask", "valid_lens", "attn_bias"]],
    ids=", ".join,
)  # fmt: skip
@pytest.mark.filterwarnings("ignore:There is a performance drop")
def test_vmap_over_masks_lengths_and_bias(mapped, need_weights):
    """Queries, keys and values stay the same, so that only what is mapped grows."""
    given = qkv()
    many = {
        "attn_mask": torch.stack([bools(BATCH, HEADS, Q_LEN, K_LEN, seed=n) for n in range(3)]),
        "valid_lens": torch.tensor([[0, 3], [7, 2], [5, 5]]),
        "attn_bias": torch.stack((BIAS, BIAS + 1, -BIAS)),
    }  # fmt: skip

    def attend(*parts):
        hide = dict(zip(mapped, parts, strict=True))
        return dot_product_attention(*given, need_weights=need_weights, **hide)[0]

    together = torch.func.vmap(attend)(*(many[name] for name in mapped))
    for n in range(3):
        expected, _ = exact(*given, **{name: many[name][n] for name in mapped})
        torch.testing.assert_close(together[n], expected)


@BOTH_PATHS
@pytest.mark.parametrize("asked", FUSED)
def test_func_grad_equals_autograd(asked, need_weights):
    def loss(query, key, value):
        output, _ = dot_product_attention(query, key, value, need_weights=need_weights, **ASKED[asked])
        return output.square().sum()

    given = differentiable(qkv())
    expected = torch.autograd.grad(dot_product_attention(*given, **ASKED[asked])[0].square().sum(), given)
    own = torch.func.grad(loss, argnums=(0, 1, 2))(*(x.detach() for x in given))
    torch.testing.assert_close(own, expected)


@BOTH_PATHS
@pytest.mark.filterwarnings("ignore:There is a performance drop")
def test_per_sample_gradients(need_weights):
    layer, (query, key, value) = even_layer(), even_inputs()
    parameters = {name: p.detach() for name, p in layer.named_parameters()}

    def loss(parameters, *sample):
        one = tuple(x[None] for x in sample)
        asked = {"is_causal": True, "need_weights": need_weights}
        output, _ = torch.func.functional_call(layer, parameters, one, asked)
        return output.square().sum()

    together = torch.func.vmap(torch.func.grad(loss), in_dims=(None, 0, 0, 0))(parameters, query, key, value)
    for b in range(BATCH):
        layer.zero_grad()
        one = [x[b : b + 1] for x in (query, key, value)]
        layer(*one, is_causal=True)[0].square().sum().backward()
        for name, parameter in layer.named_parameters():
            torch.testing.assert_close(together[name][b], parameter.grad)
