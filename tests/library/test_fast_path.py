"""What is special about the path through torch's kernel: memory, NaN, second derivatives.

The other files compare its results with those of the readable path.
"""

import itertools
import math

import pytest
import torch
from attention_cases import ASKED, FUSED, all_but, qkv
from attention_layers import even_inputs, layer_of, make_inputs, make_layer
from attention_marks import BOTH_PATHS, DTYPES, ERRORS, FUSED_FIRST, TRACED, slow
from attention_sizes import BATCH, HEAD_DIM, HEADS, K_LEN, Q_LEN, VALUE_DIM
from random_tensors import bools, differentiable, gradients, random
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from mha_lib import _fast, causal_mask, dot_product_attention, masked_softmax


@pytest.mark.parametrize("mask", [None, bools(Q_LEN, K_LEN)], ids=["", "mask"])
def test_scores_that_a_rule_returns_are_not_modified(mask, monkeypatch):
    """They may be a tensor that the rule keeps, such as scores that were computed before."""
    monkeypatch.setattr(_fast, "REUSE_FROM", 0)
    kept = random(BATCH, HEADS, Q_LEN, K_LEN)
    before = kept.clone()
    with torch.no_grad():
        _, weights = make_layer(score=lambda q, k: kept)(*make_inputs(), mask)
    assert torch.equal(kept, before)
    torch.testing.assert_close(weights, masked_softmax(before, mask))


@pytest.mark.parametrize("is_trained", [False, True])
@pytest.mark.parametrize("mask", [
    None, causal_mask(Q_LEN, K_LEN), all_but(bools(BATCH, HEADS, Q_LEN, K_LEN), 0, 1, 3),
], ids=["nothing", "some of each row", "a whole row"])  # fmt: skip
def test_weights_in_the_memory_of_the_scores_are_the_same(mask, is_trained, monkeypatch):
    """Weights reuse the memory of large scores. The numbers and the derivatives are the same."""
    sizes = ((Q_LEN, HEAD_DIM), (K_LEN, HEAD_DIM), (K_LEN, VALUE_DIM))
    inputs = [random(BATCH, HEADS, *size, seed=i).requires_grad_(is_trained) for i, size in enumerate(sizes)]
    results = []
    for least in (1 << 40, 0):
        monkeypatch.setattr(_fast, "REUSE_FROM", least)
        output, weights = dot_product_attention(*inputs, mask)
        results.append([output, weights])
        if is_trained:
            upstream = random(*output.shape, seed=3)
            results[-1] += torch.autograd.grad(output, inputs, upstream)
    torch.testing.assert_close(*results)


class Largest(TorchDispatchMode):
    """The largest number of elements that an operation returned inside the block."""

    numel = 0

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        result = func(*args, **(kwargs or {}))
        tensors = [x for x in tree_leaves(result) if isinstance(x, torch.Tensor)]
        # An expanded tensor takes no memory of its own.
        sizes = [x.untyped_storage().nbytes() // x.element_size() for x in tensors]
        self.numel = max([self.numel, *sizes])
        return result


@pytest.mark.parametrize("hide", ["nothing", "lengths", "causal", "causal and lengths"])
@pytest.mark.parametrize("leading", [(BATCH,), (BATCH, HEADS)], ids=str)
@pytest.mark.parametrize("backward", [False, True])
def test_without_weights_no_tensor_of_all_pairs_is_made(leading, hide, backward, monkeypatch):
    """Neither a tensor of weights of all pairs nor a mask of all pairs."""
    if hide == "causal and lengths":
        monkeypatch.setattr(_fast, "_CAUSAL_BLOCK", 64)
    length, width = 509, 8
    x = random(*leading, length, width, dtype=torch.float32).requires_grad_(backward)
    options = {
        "nothing": {},
        "lengths": {"valid_lens": torch.tensor([length - 1, 3])},
        "causal": {"is_causal": True},
        "causal and lengths": {"is_causal": True, "valid_lens": torch.tensor([length - 1, 3])},
    }[hide]
    with Largest() as fused:
        output, _ = dot_product_attention(x, x, x, need_weights=False, **options)
        if backward:
            output.sum().backward()
    with Largest() as readable:
        dot_product_attention(x, x, x, **options)
    assert readable.numel >= math.prod(leading) * length**2
    assert fused.numel < length**2


@pytest.mark.parametrize("num_kv_heads", [HEADS, 1])
@pytest.mark.parametrize("lens", [None, (K_LEN, 2)])
@pytest.mark.parametrize(
    ("q_len", "k_len"), [(17, 17), (17, 23), (23, 17), (40, 6), (6, 40), (11, 1), (0, 5)]
)
def test_causal_attention_in_blocks_of_queries(q_len, k_len, lens, num_kv_heads, monkeypatch):
    """No mask of all pairs is built, and outputs and gradients are those of the readable path."""
    monkeypatch.setattr(_fast, "_CAUSAL_BLOCK", 5)
    sizes = ((HEADS, q_len, HEAD_DIM), (num_kv_heads, k_len, HEAD_DIM), (num_kv_heads, k_len, 13))
    inputs = [random(BATCH, *size, seed=i).requires_grad_() for i, size in enumerate(sizes)]
    lens = None if lens is None else torch.tensor(lens).clamp(max=k_len)
    options = {"valid_lens": lens, "is_causal": True}
    found, _ = dot_product_attention(*inputs, need_weights=False, **options)
    wanted, _ = dot_product_attention(*inputs, **options)
    torch.testing.assert_close(found, wanted)
    upstream = random(*wanted.shape, seed=7)
    both = [torch.autograd.grad(output, inputs, upstream) for output in (found, wanted)]
    torch.testing.assert_close(*both)


def test_few_keys_get_a_mask_so_that_no_nan_is_lost(monkeypatch):
    """With fewer keys than the widest processor adds at once, 16, torch's kernel would hide a NaN."""
    fused, given = torch.nn.functional.scaled_dot_product_attention, []

    def watch(query, key, value, mask=None, **options):
        given.append(mask is not None)
        return fused(query, key, value, mask, **options)

    monkeypatch.setattr(torch.nn.functional, "scaled_dot_product_attention", watch)
    for length in (1, 15, 16, 17):
        x = random(BATCH, length, HEAD_DIM, dtype=torch.float32)
        dot_product_attention(x, x, x, need_weights=False)
    assert given == [True, True, False, False]


def nan_rows(where, is_causal, q_len=K_LEN, place=0):
    """Where the output is NaN if row `place` of query, key or value is NaN in sample 0, head 1."""
    out = torch.zeros(BATCH, HEADS, q_len, HEAD_DIM, dtype=torch.bool)
    if where == 0:
        out[0, 1, place] = True
    else:
        out[0, 1, place if is_causal else 0 :] = True
    return out


@BOTH_PATHS
@DTYPES
@pytest.mark.parametrize("is_causal", [False, True])
@pytest.mark.parametrize("where", range(3), ids=["query", "key", "value"])
def test_a_visible_nan_is_never_hidden(where, is_causal, dtype, need_weights):
    """With few keys and no mask, torch's CPU kernel returns zeros for a row of NaN, as if it were hidden.

    A key or value that is NaN may also reach queries of its head that do not see it: only finite numbers are
    promised to stay hidden, and 0 times NaN is NaN. Nothing else changes.
    """
    asked = {"is_causal": is_causal, "need_weights": need_weights}
    lengths = (1, 2, 7, 8, 15, 16, 17, 37)
    for length, at_end in itertools.product(lengths, (False, True)):
        place = (length - 1) * at_end
        given = qkv(dtype, q_len=length, k_len=length)
        clean, _ = dot_product_attention(*given, **asked)
        given[where][0, 1, place] = math.nan
        output, _ = dot_product_attention(*given, **asked)
        expected = nan_rows(where, is_causal, length, place)
        assert output[expected].isnan().all()
        if where > 0:
            expected[0, 1] = True
        torch.testing.assert_close(output[~expected], clean[~expected], rtol=0, atol=ERRORS[dtype])


@BOTH_PATHS
@pytest.mark.parametrize("k_len", [3, 7, 37])
@pytest.mark.parametrize("is_causal", [False, True])
def test_scores_that_overflow_are_not_hidden(is_causal, k_len, need_weights):
    """Finite inputs, infinite scores: inf - inf is NaN, and must not come out as zero."""
    query, key, value = qkv(torch.float32, q_len=k_len, k_len=k_len)
    output, _ = dot_product_attention(
        query.abs() * 1e20, key.abs() * 1e20, value, is_causal=is_causal, need_weights=need_weights
    )  # fmt: skip
    assert output.isnan().all()


@BOTH_PATHS
@pytest.mark.parametrize("asked", FUSED)
def test_gradients_of_nan_are_not_hidden_either(asked, need_weights):
    given = qkv()
    given[0][1, 0, 4] = math.nan
    given = differentiable(given)
    output, _ = dot_product_attention(*given, need_weights=need_weights, **ASKED[asked])  # fmt: skip
    assert output[1, 0, 4].isnan().all()
    for_query, for_key, _ = gradients(output, given)
    assert for_query[1, 0, 4].isnan().all()
    assert for_key[1, 0].isnan().any()


@TRACED
@FUSED_FIRST
@pytest.mark.parametrize("is_causal", [False, True])
def test_nan_is_not_hidden_in_a_compiled_function(is_causal, need_weights):
    """With three keys, fewer than any processor adds at once, torch's kernel alone would hide a NaN."""
    torch.compiler.reset()

    def attend(query, key, value):
        return dot_product_attention(query, key, value, is_causal=is_causal, need_weights=need_weights)[0]

    traced = torch.compile(attend, fullgraph=True, backend="aot_eager")
    for where in range(2):
        given = qkv(q_len=3, k_len=3)
        given[where][0, 1, 0] = math.nan
        assert torch.equal(traced(*given).isnan(), nan_rows(where, is_causal, 3))


@BOTH_PATHS
@pytest.mark.parametrize("where", range(3), ids=["query", "key", "value"])
@pytest.mark.filterwarnings("ignore:There is a performance drop")
def test_nan_is_not_hidden_under_vmap(where, need_weights):
    given = qkv(q_len=K_LEN)
    given[where][0, 1, 0] = math.nan
    output = torch.func.vmap(lambda *qkv: dot_product_attention(*qkv, need_weights=need_weights)[0])(
        *(x[None] for x in given)
    )[0]
    assert torch.equal(output.isnan(), nan_rows(where, is_causal=False))


@pytest.mark.parametrize(
    "asked",
    [slow({}), {"is_causal": True, "valid_lens": torch.tensor([0, 3])}, {"softcap": 1.5, "scale": 0.8}],
    ids=str
)  # fmt: skip
def test_second_derivatives_of_the_readable_path(asked):
    shapes = (2, 2, 2), (1, 3, 2), (1, 3, 2), (2, 2, 3)
    given = [random(2, *s, seed=n).requires_grad_() for n, s in enumerate(shapes)]

    def attend(query, key, value, bias):
        return dot_product_attention(query, key, value, attn_bias=bias, **asked)

    assert torch.autograd.gradgradcheck(attend, given)


@pytest.mark.parametrize("kind", ["plain", "rotary", "additive"])
def test_second_derivatives_of_the_layer(kind):
    layer, (query, *memory) = layer_of(kind), even_inputs(batch=1, q_len=2, k_len=3)
    query.requires_grad_()
    assert torch.autograd.gradgradcheck(lambda x: layer(x, *memory, is_causal=True)[0], query, fast_mode=True)


@pytest.mark.parametrize("asked", ["nothing", "mask", "causal", "bias, hidden rows"])
def test_a_second_derivative_of_the_fast_path_is_refused_with_a_hint(asked):
    given = differentiable(qkv())
    output, _ = dot_product_attention(*given, need_weights=False, **ASKED[asked])
    assert "Flash" in output.grad_fn.name()
    first = torch.autograd.grad(output.square().sum(), given, create_graph=True)
    expected = torch.autograd.grad(dot_product_attention(*given, **ASKED[asked])[0].square().sum(), given)
    torch.testing.assert_close(first, expected)
    for gradient in first:
        with pytest.raises(RuntimeError, match="need_weights=True"):
            torch.autograd.grad(gradient.sum(), given, retain_graph=True)
    assert "differentiated twice" in dot_product_attention.__doc__
