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
from random_tensors import generator, gradients, random
from torch import nn
from torch.export import Dim, export

from mha_lib import GPT2, Bert, EncoderDecoder, KeyValueCache, Llama, dot_product_attention


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


def decoder_only(kind):
    sizes = {"embed_dim": 12, "num_heads": 3, "hidden_dim": 7, "num_layers": 2, "max_len": 96}
    model = Llama(19, **sizes, num_kv_heads=1) if kind == "Llama" else GPT2(19, **sizes)
    return model.eval()


# (batch, length, lengths of the prompts)
PROMPTS = ((1, 5, None), (1, 9, None), (3, 7, None), (3, 6, [6, 4, 1]), (4, 9, [9, 2, 5, 5]), (2, 8, None))


@pytest.mark.newer_torch  # torch 2.6 compiles again for each length of a cache
@torch.no_grad()
@pytest.mark.parametrize("kind", ["Llama", slow("GPT-2")])
@TRACED
def test_compiled_decoding_takes_every_new_cache(kind):
    """A guard on the identity of a cache once compiled the model again for every prompt."""
    graphs, of_prompts = [], 0

    def counting(graph, _):
        graphs.append(graph)
        return graph.forward

    torch.compiler.reset()
    model = decoder_only(kind)
    traced = torch.compile(model, fullgraph=True, backend=counting, dynamic=True)
    for batch, length, lens in PROMPTS:
        tokens = torch.randint(19, (batch, length + 50), generator=generator())
        prompts, *new = tokens.split((length, *[1] * 50), dim=1)
        lens = None if lens is None else torch.tensor(lens)
        cache, before = model.new_cache(), len(graphs)
        traced(prompts, valid_lens=lens, cache=cache)
        of_prompts += len(graphs) - before
        steps = torch.cat([traced(token, cache=cache)[1] for token in new], dim=1)
        for row, real in enumerate([length] * batch if lens is None else lens.tolist()):
            whole = torch.cat((tokens[row, :real], tokens[row, length:]))[None]
            torch.testing.assert_close(steps[row], model(whole)[1][0, real:], atol=1e-5, rtol=1e-4)
    # For one sample, several, and several of different lengths.
    assert of_prompts <= 3 and len(graphs) - of_prompts <= 4


class OfAnyBatch(nn.Module):
    """A model that takes only tensors, the last of which are lengths."""

    def __init__(self, kind):
        super().__init__()
        sizes = {"embed_dim": 6, "num_heads": 3, "hidden_dim": 7, "num_layers": 1}
        makers = {"encoder-decoder": EncoderDecoder, "Bert": Bert}
        vocab = (19, 19) if kind == "encoder-decoder" else (19,)
        self.model = makers[kind](*vocab, **sizes, max_len=64) if kind in makers else decoder_only(kind)
        self.name = "source_lens" if kind == "encoder-decoder" else "valid_lens"

    def forward(self, *given):
        *tokens, lens = given
        output = self.model(*tokens, **{self.name: lens})
        return output if isinstance(output, torch.Tensor) else output[1]


@pytest.mark.parametrize("kind", ["encoder-decoder", slow("Bert"), slow("Llama"), slow("GPT-2")])
@TRACED
def test_models_are_exported_for_any_batch_and_length(kind):
    """The `len` of a tensor is an int even while a program is traced, so it fixed the batch."""
    model = OfAnyBatch(kind).eval()
    sides = ("length", "target") if kind == "encoder-decoder" else ("length",)
    batch = Dim("batch", min=2, max=64)
    shapes = [{0: batch, 1: Dim(name, min=2, max=64)} for name in sides]

    def given(size, *lengths):
        tokens = [torch.randint(19, (size, n), generator=generator()) for n in lengths[: len(sides)]]
        return *tokens, torch.arange(size) % (lengths[0] + 1)

    program = export(model, given(3, 5, 4), dynamic_shapes=((*shapes, {0: batch}),)).module()
    for sizes in ((2, 7, 9), (9, 3, 2)):
        torch.testing.assert_close(program(*given(*sizes)), model(*given(*sizes)))
