"""Where the library meets other code: wrapped, quantized and compiled models, caches cut by hand, hints.

What stands in the place of a layer is called, never asked for its weight; and what a check compares is only
what decides a meaning, never where or in which dtype a weight lies at the moment.
"""

import copy

import pytest
import torch
from attention_marks import BOTH_PATHS
from random_tensors import bools, random
from torch import nn

from mha_lib.attention import dot_product_attention, masked_softmax
from mha_lib.cache import KeyValueCache
from mha_lib.inspection import capture_attention
from mha_lib.models.generation import generate
from mha_lib.models.language_models import GPT2, Bert, Llama
from mha_lib.models.rotary_scaling import RotaryScaling
from mha_lib.models.seq2seq import EncoderDecoder
from mha_lib.multi_head import MultiHeadAttention
from mha_lib.rotary import RotaryPositionalEncoding
from mha_lib.scores import AdditiveScore, BilinearScore
from mha_lib.transformer import EncoderBlock, TransformerDecoder, TransformerEncoder

SIZES = {"embed_dim": 12, "num_heads": 3, "hidden_dim": 7, "num_layers": 2}
TOKENS = torch.tensor([[1, 2, 3, 4], [5, 6, 7, 8]])
SOURCE_AND_TARGET = TOKENS, TOKENS[:, :3]
MODELS = {
    "Llama": lambda: Llama(19, **SIZES, max_len=64),
    "untied GPT-2": lambda: GPT2(19, **SIZES, max_len=64, tied=False),
    "GPT-2": lambda: GPT2(19, **SIZES, max_len=64),
    "BERT": lambda: Bert(19, **SIZES, max_len=64),
    "encoder-decoder": lambda: EncoderDecoder(19, 17, **SIZES),
}


def model_of(kind):
    torch.manual_seed(0)
    return MODELS[kind]().eval()


def logits_of(model, cache=None):
    if isinstance(model, EncoderDecoder):
        return model(*SOURCE_AND_TARGET)
    return model(TOKENS)[1]


class Wrapper(nn.Module):
    """What a library puts around a layer: it calls the layer, and has none of its attributes."""

    def __init__(self, layer):
        super().__init__()
        self.inside, self.extra = layer, nn.Parameter(torch.zeros(()))

    def forward(self, x):
        return self.inside(x) + self.extra


@pytest.mark.parametrize("kind", ["Llama", "untied GPT-2", "encoder-decoder"])
def test_what_replaces_the_output_matrix_is_called(kind):
    """A LoRA adapter on `output` got no gradient, and hooks on it did not fire."""
    model, seen = model_of(kind), []
    model.output = Wrapper(model.output)
    model.output.register_forward_hook(lambda *_: seen.append(1))
    plain = logits_of(model)
    plain.sum().backward()
    assert seen == [1] and model.output.extra.grad == plain.numel()
    nn.init.ones_(model.output.extra)
    torch.testing.assert_close(logits_of(model), plain + 1)


@pytest.mark.parametrize("kind", ["Llama", "GPT-2", "BERT", "encoder-decoder"])
def test_embeddings_may_be_wrapped(kind):
    model, plain = model_of(kind), logits_of(model_of(kind))
    names = [name for name, part in model.named_children() if isinstance(part, nn.Embedding)]
    names = [name for name in names if "position" not in name]
    for name in names:
        setattr(model, name, Wrapper(getattr(model, name)))
    torch.testing.assert_close(logits_of(model), plain)
    with pytest.raises(ValueError, match=r"must lie in 0\.\.18, got values from 19 to 19"):
        model(torch.full((1, 1), 19), *([TOKENS[:1]] if kind == "encoder-decoder" else []))


@pytest.mark.parametrize("kind", ["Llama", "GPT-2", "encoder-decoder"])
def test_a_wrapped_model_writes(kind):
    model, given = model_of(kind), {"source": TOKENS} if kind == "encoder-decoder" else {}
    plain, _ = generate(model, TOKENS, max_new=5, **given)
    for name, part in [*model.named_children()]:
        if isinstance(part, (nn.Embedding, nn.Linear)):
            setattr(model, name, Wrapper(part))
    assert torch.equal(generate(model, TOKENS, max_new=5, **given)[0], plain)


@pytest.mark.parametrize("kind", MODELS)
@pytest.mark.filterwarnings("ignore")
def test_linear_layers_may_be_quantized(kind):
    model, plain = model_of(kind), logits_of(model_of(kind))
    small = torch.ao.quantization.quantize_dynamic(model, {nn.Linear}, dtype=torch.qint8)
    assert not [part for part in small.modules() if type(part) is nn.Linear]
    torch.testing.assert_close(logits_of(small), plain, rtol=0.1, atol=0.1)


@pytest.mark.parametrize("score", [AdditiveScore(4, 4, 5), BilinearScore(4, 4)])
@pytest.mark.filterwarnings("ignore")
def test_scores_may_be_quantized(score):
    layer, x = MultiHeadAttention(12, 3, score=score), torch.rand(2, 5, 12)
    small = torch.ao.quantization.quantize_dynamic(layer, {nn.Linear}, dtype=torch.qint8)
    torch.testing.assert_close(small(x), layer(x), rtol=0.1, atol=0.1)


class Elsewhere(nn.Linear):
    """A linear layer whose weight has another dtype, and no numbers, until it is called."""

    def forward(self, x):
        return nn.functional.linear(x, self.kept.to(x.dtype))


@pytest.mark.parametrize(
    "place", [{"dtype": torch.float8_e4m3fn}, {"device": "meta"}, {"dtype": torch.float64}]
)
@pytest.mark.parametrize("kind", ["Llama", "BERT", "encoder-decoder"])
def test_weights_may_be_of_any_dtype_and_anywhere_until_they_are_used(kind, place):
    """As in layers that store float8, hold a shard of float32, or fetch a weight when they are called."""
    model, plain = model_of(kind), logits_of(model_of(kind))
    for part in [part for part in model.modules() if type(part) is nn.Linear and part.bias is None]:
        part.kept, part.__class__ = part.weight.detach(), Elsewhere
        part.weight = nn.Parameter(part.weight.detach().to(**place), requires_grad=False)
    torch.testing.assert_close(logits_of(model), plain)


@pytest.mark.no_shape_checks
@pytest.mark.parametrize("kind", ["layer", "encoder", "decoder", "GPT-2", "Llama"])
@pytest.mark.newer_torch
def test_compiled_decoding_makes_few_graphs(kind):
    from torch._dynamo.testing import CompileCounter

    torch.compiler.reset()
    torch.manual_seed(0)
    graphs, memory = CompileCounter(), torch.rand(2, 7, 12)
    model = {
        "layer": lambda: MultiHeadAttention(12, 3, rotary=RotaryPositionalEncoding(4)),
        "encoder": lambda: TransformerEncoder(2, 12, 3, 7),
        "decoder": lambda: TransformerDecoder(2, 12, 3, 7),
    }.get(kind, MODELS.get(kind))().eval()
    program = torch.compile(model, backend=graphs, fullgraph=True)
    cache = KeyValueCache() if kind == "layer" else model.new_cache()
    more = [memory] if kind == "decoder" else []
    asked = {} if kind in ("decoder", "GPT-2", "Llama") else {"is_causal": True}
    with torch.no_grad():
        for step in range(50):
            token = TOKENS[:, :1] if kind in MODELS else random(2, 1, 12, seed=step, dtype=torch.float32)
            program(token, *more, cache=cache, **asked)
    assert graphs.frame_count <= 4


@torch.no_grad()
@pytest.mark.no_shape_checks
@pytest.mark.parametrize(("kind", "dynamic", "most"), [("GPT-2", True, 4), ("Llama", None, 5)])
@pytest.mark.newer_torch
def test_a_compiled_loop_with_a_new_cache_for_each_prompt_makes_few_graphs(kind, dynamic, most):
    """Prompts are read without the compiler, and tokens are written with it; samples may differ in length.

    Without `dynamic`, torch takes the first batch for fixed, and compiles again when it changes.
    """
    from torch._dynamo.testing import CompileCounter

    torch.compiler.reset()
    graphs, model = CompileCounter(), model_of(kind).eval()
    program = torch.compile(model, backend=graphs, fullgraph=True, dynamic=dynamic)
    sizes = [(1, 5, False), (1, 9, False), (3, 5, False), (1, 7, True), (3, 9, True), (8, 6, True)]
    for rows, length, is_padded in sizes:
        cache, prompts = model.new_cache(), torch.zeros(rows, length, dtype=torch.int64)
        lens = torch.arange(rows) % length + 1 if is_padded else None
        model(prompts, valid_lens=lens, cache=cache)
        for _ in range(3):
            program(prompts[:, :1].clone(), cache=cache)
    assert graphs.frame_count <= most


@pytest.mark.parametrize("dtype", [torch.float64, torch.float16, torch.float32], ids=str)
@BOTH_PATHS
def test_a_scale_may_have_another_dtype(dtype, need_weights):
    scale = random(3, 1, 1, seed=5).abs().to(dtype)
    query, key, value = (random(2, 3, 5, 4, seed=i, dtype=torch.float32) for i in range(3))
    found, _ = dot_product_attention(query, key, value, scale=scale, need_weights=need_weights)
    wanted, _ = dot_product_attention(query, key, value, scale=scale.float())
    torch.testing.assert_close(found, wanted)


def test_a_stack_can_be_differentiated_twice_as_the_error_says():
    stack, x = TransformerEncoder(1, 12, 3, 7).double().eval(), random(2, 5, 12).requires_grad_()

    def second():
        (first,) = torch.autograd.grad(stack(x).square().sum(), x, create_graph=True)
        return torch.autograd.grad(first.square().sum(), x)[0]

    with pytest.raises(RuntimeError, match=r"capture_attention\(model\)"):
        second()
    with capture_attention(stack):
        assert second().isfinite().all()


def test_the_error_about_a_wrapper_names_what_it_is():
    class Linear(nn.Linear):
        """The name that adapters have too."""

        def forward(self, x):
            return 2 * super().forward(x)

    layer = MultiHeadAttention(6, 3)
    layer.q_proj = Linear(6, 6, bias=False)
    rule = r"q_proj must be a Linear, got Linear of .*test_edges; merge or remove"
    with pytest.raises(ValueError, match=rule):
        layer.to_torch()


def test_nested_tensors_are_refused_in_words():
    x = torch.nested.nested_tensor([torch.rand(3, 6), torch.rand(5, 6)], layout=torch.jagged)
    for model in (MultiHeadAttention(6, 3), EncoderBlock(6, 3, 7)):
        with pytest.raises(TypeError, match="must be a padded tensor, with valid_lens .*got a nested tensor"):
            model(x)
    tokens = torch.nested.nested_tensor([*TOKENS.split([1, 3], 1)[1], TOKENS[0]], layout=torch.jagged)
    with pytest.raises(TypeError, match="tokens must hold int64, padded to one length, got a nested tensor"):
        model_of("Llama")(tokens)


@pytest.mark.parametrize("kind", [EncoderBlock, TransformerEncoder, TransformerDecoder, EncoderDecoder])
def test_an_unknown_option_is_named_with_those_there_are(kind):
    sizes = {EncoderBlock: (6, 3, 7), EncoderDecoder: (5, 5, 6, 3, 7, 1)}.get(kind, (1, 6, 3, 7))
    said = r"^[A-Z]\w*Block has no option 'nrom_first', only .*norm_first.*qk_norm"
    with pytest.raises(TypeError, match=said):
        kind(*sizes, nrom_first=True)


def test_errors_do_not_print_a_model():
    with pytest.raises(TypeError) as error:
        MultiHeadAttention(model_of("Llama"), 3)
    assert str(error.value) == "embed_dim must be an int, got Llama"
    with pytest.raises(TypeError, match="embed_dim must be an int, got str: 'six'"):
        MultiHeadAttention("six", 3)


# Two axes of a mask


@BOTH_PATHS
@pytest.mark.parametrize("batch", [1, 4, 5])
def test_two_axes_always_mean_queries_and_keys(batch, need_weights):
    """Whether a program runs does not depend on a batch that happens to be as large as the length."""
    layer, mask = MultiHeadAttention(6, 3).double(), bools(5, 5)
    x = random(batch, 5, 6)
    output, _ = layer(x, attn_mask=mask, need_weights=need_weights)
    for i in range(batch):
        torch.testing.assert_close(output[i], layer(x[i], attn_mask=mask)[0])
    stack = EncoderBlock(6, 3, 7).double()
    torch.testing.assert_close(stack(x, mask)[0], stack(x[0], mask))
    scores = random(batch, 5, 5)
    torch.testing.assert_close(masked_softmax(scores, mask)[0], masked_softmax(scores[0], mask))


@pytest.mark.parametrize("batch", [2, 3])
def test_a_mask_of_samples_and_keys_gets_the_hint(batch):
    x, memory = random(batch, 5, 6), random(batch, 7, 6)
    message = r"attn_mask must broadcast to .*two axes mean \(q_len, k_len\), key_mask=attn_mask"
    with pytest.raises(ValueError, match=message):
        MultiHeadAttention(6, 3).double()(x, memory, attn_mask=bools(batch, 7))


# Caches


def filled(rotary=True, lens=None):
    layer = MultiHeadAttention(12, 3, rotary=RotaryPositionalEncoding(4) if rotary else None).double()
    cache, x = KeyValueCache(), random(2, 6, 12)
    layer(x, is_causal=True, cache=cache, valid_lens=lens)
    return layer, cache, x


def test_a_cropped_cache_goes_on_where_it_was_cut():
    layer, cache, x = filled()
    assert cache.crop(4) is cache and len(cache) == 4
    new = random(2, 2, 12, seed=9)
    found, _ = layer(new, is_causal=True, cache=cache)
    wanted, _ = layer(torch.cat((x[:, :4], new), 1), is_causal=True)
    torch.testing.assert_close(found, wanted[:, 4:])


def test_a_ragged_cache_is_cropped_with_its_padding():
    _, cache, _ = filled(lens=torch.tensor([6, 3]))
    cache.crop(5)
    assert cache.visible.tolist() == [[True] * 5, [True] * 3 + [False] * 2]
    assert cache.lens.tolist() == [5, 3]


def test_samples_of_a_cache_are_reordered():
    layer, cache, x = filled()
    new, rows = random(3, 1, 12, seed=9), torch.tensor([1, 0, 1])
    found, _ = layer(new, is_causal=True, cache=cache.reorder(rows))
    wanted, _ = layer(torch.cat((x[rows], new), 1), is_causal=True)
    torch.testing.assert_close(found, wanted[:, -1:])


def test_a_cache_moves_to_another_dtype_and_device():
    _, cache, _ = filled(lens=torch.tensor([6, 3]))
    keys = cache.keys
    assert cache.to("cpu", torch.bfloat16) is cache
    assert cache.keys.dtype == cache.values.dtype == torch.bfloat16 and cache.visible.dtype == torch.bool
    torch.testing.assert_close(cache.keys, keys.bfloat16())
    assert {part.device.type for part in (cache.to("meta").keys, cache.visible)} == {"meta"}
    assert len(KeyValueCache().to("meta")) == 0


@pytest.mark.parametrize("lens", [None, torch.tensor([[6, 3], [2, 2], [0, 1], [3, 1]])])
@pytest.mark.parametrize("settings", [
    {}, {"rotary": RotaryPositionalEncoding(4)}, {"softcap": 2.0},
    {"rotary": RotaryPositionalEncoding(4, scaling=RotaryScaling("dynamic", 3.0, trained_len=4))},
], ids=["plain", "rotary", "softcap", "dynamic"])  # fmt: skip
def test_a_cache_that_forgets_what_no_window_sees_changes_nothing(settings, lens):
    layer = MultiHeadAttention(12, 3, window=(3, 0), **settings).double()
    whole, short = KeyValueCache(), KeyValueCache()
    for step, chunk in enumerate(random(2, 12, 12).split([6, 2, 1, 3], 1)):
        call = {"is_causal": True, "valid_lens": None if lens is None else lens[step]}
        wanted, _ = layer(chunk, cache=whole, **call)
        found, _ = layer(chunk, cache=short, **call)
        torch.testing.assert_close(found, wanted)
        assert short.keep_last(3) is short
        assert torch.equal(short.lens, whole.lens)
    assert len(short) == (3 if lens is None else 5) < len(whole) == 12
    new = random(2, 1, 12, seed=9)
    for cache in (whole, short):
        cache.reorder(torch.tensor([1, 0])).to("cpu")
    torch.testing.assert_close(*(layer(new, is_causal=True, cache=cache)[0] for cache in (whole, short)))


def test_a_gpt2_whose_cache_forgets_counts_on():
    model = model_of("GPT-2")
    whole, short = model.new_cache(), model.new_cache()
    for cache in (whole, short):
        model(TOKENS[:, :3], cache=cache)
    for cache in short:
        cache.keep_last(2)
    hidden = torch.tensor([[False, True, True, True]]).expand(len(TOKENS), 4)
    at = torch.tensor([3])
    wanted = model(TOKENS[:, 3:4], cache=whole, key_mask=hidden, positions=at)[1]
    torch.testing.assert_close(model(TOKENS[:, 3:4], cache=short)[1], wanted)
    with pytest.raises(ValueError, match="key_mask must come with positions where the cache has forgotten"):
        model(TOKENS[:, :1], cache=short, key_mask=hidden)
    with pytest.raises(ValueError, match="tokens"):
        model(torch.zeros(len(TOKENS), model.max_len - 3, dtype=torch.int64), cache=short)


def test_a_translator_takes_no_cache_that_has_forgotten_tokens():
    model, memory = EncoderDecoder(7, 7, 6, 3, 11, 1), random(2, 3, 6).float()
    cache = model.decoder.new_cache()
    model.decode(torch.ones(2, 3, dtype=torch.int64), memory, cache=cache)
    cache[0].self_attention.keep_last(3)  # all of them
    model.decode(torch.ones(2, 4, dtype=torch.int64), memory, cache=cache)
    cache[0].self_attention.keep_last(2)
    with pytest.raises(
        ValueError, match="cache must hold all tokens of the target, got one that has forgotten"
    ):
        model.decode(torch.ones(2, 5, dtype=torch.int64), memory, cache=cache)


@pytest.mark.parametrize(("change", "error", "message"), [
    (lambda cache: cache.keep_last(-1), ValueError, "length must not be negative, got -1"),
    (lambda cache: cache.keep_last(2.0), TypeError, "length must be an int"),
    (lambda cache: cache.crop(7), ValueError, r"length must lie in 0..len\(cache\)=6, got 7"),
    (lambda cache: cache.crop(-1), ValueError, "got -1"),
    (lambda cache: cache.crop(2.0), TypeError, "length must be an int"),
    (lambda cache: cache.reorder(torch.tensor([2])), ValueError, r"samples must lie in 0\.\.1, got"),
    (lambda cache: cache.reorder([0]), TypeError, "samples must be a Tensor"),
    (lambda cache: setattr(cache, "keys", cache.keys[:, :, 2:]), ValueError,
     r"keys must keep the 6 slots of the cache .crop .* got \(2, 3, 4, 4\)"),
    (lambda cache: setattr(cache, "values", cache.values[:, :, :2]), ValueError,
     "values must keep the 6 slots"),
    (lambda cache: setattr(cache, "keys", None), ValueError, "keys must keep the 6 slots .* got None"),
])  # fmt: skip
def test_a_cache_is_not_cut_by_hand(change, error, message):
    _, cache, _ = filled()
    with pytest.raises(error, match=message):
        change(cache)
    assert len(cache) == 6
    cache.keys, cache.values = 2 * cache.keys, cache.values.clone()  # the number of slots stays the same


@pytest.mark.parametrize("lens", [None, torch.tensor([6, 3])])
def test_a_cache_that_belongs_to_a_graph_is_copied(lens):
    layer, cache, _ = filled(lens=lens)
    twin, new = copy.deepcopy(cache), random(2, 1, 12, seed=9)
    assert twin.keys.requires_grad and twin.keys is not cache.keys
    found, _ = layer(new, is_causal=True, cache=twin)
    assert (len(twin), len(cache)) == (7, 6)
    torch.testing.assert_close(found, layer(new, is_causal=True, cache=cache)[0])


# Positions


@pytest.mark.parametrize("kind", ["GPT-2", "BERT"])
def test_padding_on_the_left_changes_nothing(kind):
    model, short, padding = model_of(kind), TOKENS[:1, :3], torch.tensor([[0, 0]])
    padded, wanted = torch.cat((padding, short), 1), model(short)[1]
    asked = {"key_mask": torch.arange(5)[None] >= 2}
    for positions in (torch.tensor([0, 0, 0, 1, 2]), torch.tensor([[7, 5, 0, 1, 2]])):
        torch.testing.assert_close(model(padded, positions=positions, **asked)[1][:, 2:], wanted)
    torch.testing.assert_close(model(padded, **asked)[1][:, 2:], wanted)


@pytest.mark.parametrize("kind", ["GPT-2", "BERT"])
def test_given_positions_are_those_of_the_tokens(kind):
    model, positions = model_of(kind), torch.tensor([5, 2, 0, 7])
    moved = copy.deepcopy(model)
    with torch.no_grad():
        moved.position_embedding.weight[:4] = model.position_embedding.weight[positions]
    wanted = moved(TOKENS)[1]
    assert not torch.allclose(wanted, model(TOKENS)[1])
    torch.testing.assert_close(model(TOKENS, positions=positions)[1], wanted)


def test_a_padded_gpt2_goes_on_with_a_cache():
    model, cache, mask = model_of("GPT-2"), model_of("GPT-2").new_cache(), torch.arange(6)[None] >= 2
    wanted = model(TOKENS[:1])[1][:, 3:]
    model(torch.cat((torch.zeros(1, 2).long(), TOKENS[:1, :3]), 1), key_mask=mask[:, :5], cache=cache,
          positions=torch.tensor([0, 0, 0, 1, 2]))  # fmt: skip
    found = model(TOKENS[:1, 3:], key_mask=mask, cache=cache, positions=torch.tensor([[3]]))[1]
    torch.testing.assert_close(found, wanted)


@pytest.mark.parametrize(("kind", "positions", "error", "message"), [
    ("GPT-2", torch.arange(3), ValueError, r"positions must have shape .*\(2, 4\), got \(3,\)"),
    ("BERT", torch.arange(12).view(3, 4), ValueError, r"got \(3, 4\)"),
    ("GPT-2", torch.arange(4) - 1, ValueError, r"positions must lie in 0\.\.max_len-1=63, got .* -1"),
    ("GPT-2", torch.rand(4), TypeError, "positions must hold integers"),
    ("Llama", torch.arange(4), ValueError, "positions must be None: rotations depend on distances"),
])  # fmt: skip
def test_positions_that_do_not_fit_are_refused(kind, positions, error, message):
    with pytest.raises(error, match=message):
        model_of(kind)(TOKENS, positions=positions)
