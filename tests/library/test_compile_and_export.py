"""Attention and the layer under torch.compile and torch.export.

Tracing takes seconds: `make test` traces the most demanding cases, `make test-all` every kind on both paths.
"""

import functools
import itertools
import shutil

import pytest
import torch
from attention_cases import ASKED, LENS, exact_for, qkv
from attention_layers import even_inputs, even_layer, layer_of
from attention_marks import BOTH_PATHS, FUSED_FIRST, SLOW, TRACED, slow
from attention_sizes import BATCH, EVEN_DIM, K_LEN
from random_tensors import gradients, random
from torch import nn
from torch.export import Dim, export

from mha_lib import KeyValueCache, dot_product_attention


@BOTH_PATHS
@pytest.mark.parametrize(
    "asked", [slow("nothing"), slow("hidden rows"), slow("bias, hidden sample, causal"), "all"]
)
@TRACED
def test_attention_is_one_graph(asked, need_weights):
    def attend(query, key, value, **parts):
        return dot_product_attention(query, key, value, need_weights=need_weights, **parts)[0]

    torch.compiler.reset()
    traced = torch.compile(attend, fullgraph=True, backend="eager")
    output = traced(*qkv(), **ASKED[asked])
    torch.testing.assert_close(output, exact_for(asked)[0])


@FUSED_FIRST
@pytest.mark.parametrize("kind", [slow("additive"), "rotary, shared keys, dropout"])
@TRACED
def test_a_layer_is_one_graph_forward_and_backward(kind, need_weights):
    torch.compiler.reset()
    layer, given = layer_of(kind).eval(), even_inputs()
    traced = torch.compile(layer, fullgraph=True, backend="aot_eager")
    asked = {"valid_lens": LENS, "is_causal": True, "need_weights": need_weights}
    parameters = [*layer.parameters()]
    expected, output = (call(*given, **asked)[0] for call in (layer, traced))
    torch.testing.assert_close(output, expected)
    torch.testing.assert_close(gradients(output, parameters), gradients(expected, parameters))


@FUSED_FIRST
@TRACED
def test_a_layer_compiled_once_takes_many_lengths(need_weights):
    torch.compiler.reset()
    layer = even_layer()
    traced = torch.compile(layer, fullgraph=True, backend="eager", dynamic=True)
    with torch.no_grad():
        for batch, length in itertools.product((2, 3), (5, 11, 17, 31)):
            x = random(batch, length, EVEN_DIM, seed=length)
            asked = {"is_causal": True, "need_weights": need_weights}
            torch.testing.assert_close(traced(x, x, x, **asked)[0], layer(x, x, x, **asked)[0])


@FUSED_FIRST
@TRACED
def test_decoding_can_be_compiled(need_weights):
    torch.compiler.reset()
    layer = layer_of("rotary")
    traced = torch.compile(layer, fullgraph=True, backend="eager")
    x = random(BATCH, K_LEN, EVEN_DIM)
    whole, _ = layer(x, x, x, is_causal=True)
    cache = KeyValueCache()
    options = {"is_causal": True, "cache": cache, "need_weights": need_weights}
    steps = [traced(t, t, t, **options)[0] for t in x.split(1, dim=1)]
    torch.testing.assert_close(torch.cat(steps, dim=1), whole)
    assert len(cache) == K_LEN


@BOTH_PATHS
@TRACED
def test_lengths_that_differ_are_refused_while_compiling_too(need_weights):
    query, key, value = qkv()
    attend = functools.partial(dot_product_attention, need_weights=need_weights)
    with pytest.raises(ValueError, match="key and value must have the same length"):
        attend(query, key, value[:, :, :-1])
    torch.compiler.reset()
    traced = torch.compile(attend, backend="eager")
    with pytest.raises(Exception, match="key and value must have the same length"):
        traced(query, key, value[:, :, :-1])


@TRACED
@SLOW
@pytest.mark.skipif(shutil.which("g++") is None, reason="inductor needs a compiler")
def test_inductor_computes_the_same():
    torch.compiler.reset()
    layer = even_layer(torch.float32)
    given = even_inputs(torch.float32)
    traced = torch.compile(layer, fullgraph=True)
    asked = {"valid_lens": LENS, "is_causal": True}
    torch.testing.assert_close(traced(*given, **asked), layer(*given, **asked))


class Decided(nn.Module):
    """A layer whose settings are fixed, so that it takes only tensors."""

    def __init__(self, layer, **asked):
        super().__init__()
        self.layer, self.asked = layer, asked

    def forward(self, query, memory, lens):
        return self.layer(query, memory, memory, valid_lens=lens, **self.asked)[0]


class OnItself(Decided):
    def forward(self, x):
        return self.layer(x, x, x, **self.asked)[0]


@SLOW
@BOTH_PATHS
@pytest.mark.parametrize("kind", ["shared keys", "rotary", "Shaw"])
@TRACED
def test_export_for_any_batch(kind, need_weights):
    model = Decided(layer_of(kind), is_causal=True, need_weights=need_weights)
    query, memory, _ = even_inputs()
    batch = Dim("batch", min=2, max=64)
    program = export(model, (query, memory, LENS), dynamic_shapes=({0: batch},) * 3)
    for size in (2, 5, 17):
        query, memory, _ = even_inputs(batch=size)
        given = query, memory, torch.arange(size) % (K_LEN + 1)
        torch.testing.assert_close(program.module()(*given), model(*given))


@FUSED_FIRST
@pytest.mark.parametrize(
    ("kind", "is_causal"), [slow("plain", False), slow("shared keys", True), ("rotary", True)]
)
@pytest.mark.parametrize("example", [7, slow(19)])
@TRACED
def test_export_for_any_batch_and_length(kind, is_causal, example, need_weights):
    model = OnItself(layer_of(kind), is_causal=is_causal, need_weights=need_weights)
    batch = Dim("batch", min=2, max=64)
    length = Dim("length", min=2, max=512)
    x = random(3, example, EVEN_DIM)
    program = export(model, (x,), dynamic_shapes=({0: batch, 1: length},))
    for sizes in ((2, 2), (5, 19), (2, 67)):
        x = random(*sizes, EVEN_DIM, seed=1)
        torch.testing.assert_close(program.module()(x), model(x))
