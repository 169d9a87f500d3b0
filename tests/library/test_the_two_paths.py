"""The readable path and its faster replacement: few functions in a call, and the same results."""

import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from random_tensors import bools, random

import mha_lib
from mha_lib import MultiHeadAttention, _fast, attention_pooling, dot_product_attention
from mha_lib.scores import scaled_dot_product_score

ROOT = Path(__file__).resolve().parents[2]
BATCH, HEADS, Q_LEN, K_LEN, DIM = 2, 3, 5, 7, 11

# Tests of what may differ in _fast.py: memory, second derivatives, a NaN that only some queries see.
ABOUT_SPEED = {"test_fast_path.py", "test_the_two_paths.py"}


class Called:
    """The names of the library's functions that run inside the block, one entry per call."""

    def __enter__(self):
        self.names, folder = [], str(Path(mha_lib.__file__).parent)

        def note(frame, event, _):
            if event == "call" and frame.f_code.co_filename.startswith(folder):
                self.names.append(frame.f_code.co_name)

        sys.setprofile(note)
        return self

    def __exit__(self, *_):
        sys.setprofile(None)


@pytest.mark.no_shape_checks
@pytest.mark.parametrize("need_weights", [True, False])
def test_one_call_goes_through_few_functions(need_weights):
    """Arguments are checked once, and one mask is built."""
    layer, x = MultiHeadAttention(33, HEADS), random(BATCH, Q_LEN, 33, dtype=torch.float32)
    with Called() as called:
        layer(x, x, x, valid_lens=torch.tensor([3, 5]), is_causal=True, need_weights=need_weights)
    assert len(set(called.names)) <= 14, sorted(set(called.names))
    again = {name for name in called.names if called.names.count(name) > 1}
    assert again <= {"_split"}, called.names


def test_the_readable_path_is_what_the_chapters_teach():
    """Its weights and outputs equal, to the last bit, those of the steps written out by hand."""
    query, key = random(BATCH, HEADS, Q_LEN, DIM), random(BATCH, HEADS, K_LEN, DIM, seed=1)
    value, mask = random(BATCH, HEADS, K_LEN, 13, seed=2), bools(Q_LEN, K_LEN)
    found = dot_product_attention(query, key, value, mask)
    by_hand = attention_pooling(scaled_dot_product_score(query, key), value, mask)
    assert all(torch.equal(*pair) for pair in zip(found, by_hand, strict=True))


@pytest.mark.slow
def test_the_tests_pass_with_the_readable_path_instead_of_the_fast_one():
    """The tests of attention pass without the fast path, except those that are about it."""
    files = [
        path
        for path in sorted((ROOT / "tests" / "library").glob("test_*.py"))
        if path.name not in ABOUT_SPEED
        and any(
            word in path.name
            for word in ("attention", "multi_head", "softmax", "bias", "cache", "rules", "transformer")
        )
    ]
    assert len(files) > 5
    command = [sys.executable, "-m", "pytest", "-q", "-x", "-p", "no:cacheprovider"]
    done = subprocess.run(
        [*command, *map(str, files)],
        cwd=ROOT,
        capture_output=True,
        text=True,
        env={**os.environ, "MHA_LIB_READABLE": "1", "JAXTYPING_DISABLE": "1"},
    )
    assert done.returncode == 0, done.stdout[-6000:]
    assert " passed" in done.stdout


HIDDEN = {
    "valid_lens": {"valid_lens": torch.tensor([4, 7])},
    "key_mask": {"key_mask": torch.arange(K_LEN) < torch.tensor([[4], [7]])},
    "attn_mask": {"attn_mask": (torch.arange(K_LEN) < torch.tensor([[[4]], [[7]]])).expand(2, Q_LEN, K_LEN)},
    "a causal mask beside it": {"valid_lens": torch.tensor([4, 7]), "is_causal": True},
    "lengths per query": {"valid_lens": torch.tensor([[1, 2, 3, 4, 4], [3, 4, 5, 6, 7]])},
}  # fmt: skip


@pytest.mark.parametrize("asked", [True, False], ids=["asked first", "cleared at once"])
@pytest.mark.parametrize("wrong", [torch.nan, torch.inf, -torch.inf])
@pytest.mark.parametrize("heads", [1, HEADS])
@pytest.mark.parametrize("hide", HIDDEN)
@pytest.mark.parametrize("need_weights", [True, False])
def test_what_no_query_may_see_never_matters(need_weights, hide, heads, wrong, asked, monkeypatch):
    """Whatever key and value hold there, outputs, weights and gradients are those of a clean input."""
    if not asked:
        monkeypatch.setattr(_fast, "finite", lambda *_: False)
    results = []
    for spoilt in ((), (1, 2), (2,)):
        keys_and_values = (random(BATCH, heads, K_LEN, DIM, seed=seed) for seed in (1, 2))
        inputs = [random(BATCH, HEADS, Q_LEN, DIM), *keys_and_values]
        for place in (1, 2):
            inputs[place][0, :, 4:] = wrong if place in spoilt else 0.0
        for x in inputs:
            x.requires_grad_()
        output, weights = dot_product_attention(*inputs, need_weights=need_weights, **HIDDEN[hide])
        gradients = torch.autograd.grad(output, inputs, random(*output.shape, seed=3))
        results.append([output, *gradients, *([weights] if need_weights else [])])
        assert all(x.isfinite().all() for x in results[-1])
        torch.testing.assert_close(results[-1], results[0])


@pytest.mark.parametrize("huge", [3e38, -3e38, 2e19])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
@pytest.mark.parametrize("place", [1, 2], ids=["key", "value"])
@pytest.mark.parametrize("sizes", [(1, 1, 2, 1), (2, 3, K_LEN, DIM)], ids=str)
@pytest.mark.parametrize("need_weights", [True, False])
def test_a_huge_hidden_number_never_matters(need_weights, sizes, place, dtype, huge):
    """Memory that was never written holds such numbers; a score beyond the largest float became NaN."""
    lens, results = torch.full(sizes[:1], sizes[2] // 2), []
    for hidden in (0.0, huge):
        inputs = [100 * random(*sizes, seed=seed, dtype=dtype) for seed in range(3)]
        inputs[place][..., -1, :] = hidden
        for x in inputs:
            x.requires_grad_()
        output, _ = dot_product_attention(*inputs, valid_lens=lens, need_weights=need_weights)
        gradients = torch.autograd.grad(output, inputs, random(*output.shape, seed=3, dtype=dtype))
        results.append([output, *gradients])
    torch.testing.assert_close(*results)


@pytest.mark.no_shape_checks
@pytest.mark.parametrize("need_weights", [True, False])
@pytest.mark.filterwarnings("ignore:There is a performance drop")
def test_what_no_query_may_see_never_matters_inside_vmap(need_weights):
    """Inside `vmap` the code cannot check whether all numbers are finite."""
    options, results = {"valid_lens": torch.tensor([4, 7]), "need_weights": need_weights}, []
    for filler in (0.0, torch.nan):
        query = random(3, BATCH, Q_LEN, DIM)
        key, value = (random(3, BATCH, K_LEN, DIM, seed=i) for i in (1, 2))
        key[:, 0, 4:] = value[:, 0, 4:] = filler
        attend = torch.func.vmap(lambda *qkv: dot_product_attention(*qkv, **options)[0])
        results.append(attend(query, key, value))
    torch.testing.assert_close(*results)


@pytest.mark.parametrize("need_weights", [True, False])
def test_a_shared_key_is_cleared_where_no_head_of_its_group_sees_it(need_weights):
    """Each of two key heads serves three query heads, whose masks differ."""
    mask = bools(BATCH, 6, 1, K_LEN) & False
    for head, seen in enumerate([(0, 1), (1, 2), (0, 3), (4,), (5, 6), (4, 6)]):
        mask[:, head, :, list(seen)] = True
    query = random(BATCH, 6, Q_LEN, DIM)
    key, value = (random(BATCH, 2, K_LEN, DIM, seed=i) for i in (1, 2))
    wide = (x.repeat_interleave(3, dim=1) for x in (key, value))
    wanted, _ = dot_product_attention(query, *wide, mask)
    for x in (key, value):
        x[:, 0, 4:], x[:, 1, :4] = torch.nan, torch.nan
    output, _ = dot_product_attention(query, key, value, mask, need_weights=need_weights)
    torch.testing.assert_close(output, wanted)


@pytest.mark.parametrize("need_weights", [True, False])
def test_what_mask_and_causal_order_hide_together_never_matters(need_weights):
    """Only the last query may see the last key in causal order, and the mask hides that key from it."""
    mask, results = torch.ones(Q_LEN, K_LEN, dtype=torch.bool), []
    mask[-1, -1] = False
    for filler in (0.0, torch.nan):
        inputs = [random(BATCH, HEADS, n, DIM, seed=i) for i, n in enumerate((Q_LEN, K_LEN, K_LEN))]
        for x in inputs[1:]:
            x[:, :, -1] = filler
        inputs[0].requires_grad_()
        output, _ = dot_product_attention(*inputs, mask, is_causal=True, need_weights=need_weights)
        results.append([output, *torch.autograd.grad(output, inputs[0], random(*output.shape, seed=3))])
    torch.testing.assert_close(*results)


@pytest.mark.parametrize("reuse_from", [0, 1 << 40], ids=["memory reused", "memory not reused"])
@pytest.mark.parametrize("need_weights", [True, False])
@pytest.mark.parametrize("length", [3, 15, 17])
def test_a_row_that_does_not_see_a_nan_is_not_spoiled(length, need_weights, reuse_from, monkeypatch):
    """In causal order a later key that is NaN, with a finite value, leaves earlier rows as they were."""
    monkeypatch.setattr(_fast, "REUSE_FROM", reuse_from)
    query, key, value = (random(BATCH, HEADS, length, DIM, seed=i) for i in range(3))
    clean, _ = dot_product_attention(query, key, value, is_causal=True, need_weights=need_weights)
    key[0, 1, -1] = torch.nan
    output, _ = dot_product_attention(query, key, value, is_causal=True, need_weights=need_weights)
    torch.testing.assert_close(output[:, :, :-1], clean[:, :, :-1])
    assert output[0, 1, -1].isnan().all()


@pytest.mark.parametrize("need_weights", [True, False])
@pytest.mark.newer_torch
def test_a_nan_in_a_shared_key_reaches_the_heads_of_its_group(need_weights):
    query = random(BATCH, 6, 3, DIM)
    key, value = (random(BATCH, 2, 3, DIM, seed=i) for i in (1, 2))
    key[0, 1, -1] = torch.nan
    output, _ = dot_product_attention(query, key, value, is_causal=True, need_weights=need_weights)
    expected = torch.zeros(BATCH, 6, 3, dtype=torch.bool)
    expected[0, 3:, -1] = True
    assert torch.equal(output.isnan().all(-1), expected)
    assert torch.equal(output.isnan().any(-1), expected)
