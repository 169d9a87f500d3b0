"""The readable path and what stands in its place for speed: one call, few functions, one meaning."""

import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from random_tensors import bools, random

import mha_lib
from mha_lib import MultiHeadAttention, _fast, attention_pooling, dot_product_attention, masking
from mha_lib.scores import scaled_dot_product_score

ROOT = Path(__file__).resolve().parents[2]
BATCH, HEADS, Q_LEN, K_LEN, DIM = 2, 3, 5, 7, 11

# Files about what _fast.py is for: memory, second derivatives, a NaN that only some queries see.
ABOUT_SPEED = {"test_fast_path.py", "test_the_two_paths.py"}


class Called:
    """The names of the library's functions that run inside the block, each as often as it ran."""

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
    assert again <= {"split_heads"}, called.names


def test_the_readable_path_is_what_the_chapters_teach():
    """Its weights and outputs are, to the last bit, those of the composition by hand."""
    query, key = random(BATCH, HEADS, Q_LEN, DIM), random(BATCH, HEADS, K_LEN, DIM, seed=1)
    value, mask = random(BATCH, HEADS, K_LEN, 13, seed=2), bools(Q_LEN, K_LEN)
    found = dot_product_attention(query, key, value, mask)
    by_hand = attention_pooling(scaled_dot_product_score(query, key), value, mask)
    assert all(torch.equal(*pair) for pair in zip(found, by_hand, strict=True))


@pytest.mark.slow
def test_all_holds_with_the_readable_path_in_the_place_of_the_fast_one():
    """Speed defines no meaning: the tests of attention pass without it, but for those that are about it."""
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


@pytest.mark.parametrize("numel", [1, 1 << 40], ids=["asked first", "cleared at once"])
@pytest.mark.parametrize("wrong", [torch.nan, torch.inf, -torch.inf])
@pytest.mark.parametrize("heads", [1, HEADS])
@pytest.mark.parametrize("hide", HIDDEN)
@pytest.mark.parametrize("need_weights", [True, False])
def test_what_no_query_may_see_never_matters(need_weights, hide, heads, wrong, numel, monkeypatch):
    """Whatever key and value hold there, outputs, weights and gradients are those of a clean input."""
    monkeypatch.setattr(_fast, "ASK_FROM", numel)
    results = []
    for filler in (0.0, wrong):
        inputs = [
            random(BATCH, HEADS, Q_LEN, DIM),
            random(BATCH, heads, K_LEN, DIM, seed=1),
            random(BATCH, heads, K_LEN, DIM, seed=2),
        ]
        for x in inputs[1:]:
            x[0, :, 4:] = filler
        for x in inputs:
            x.requires_grad_()
        output, weights = dot_product_attention(*inputs, need_weights=need_weights, **HIDDEN[hide])
        gradients = torch.autograd.grad(output, inputs, random(*output.shape, seed=3))
        results.append([output, *gradients, *([weights] if need_weights else [])])
        assert all(x.isfinite().all() for x in results[-1])
    torch.testing.assert_close(*results)


@pytest.mark.parametrize("need_weights", [True, False])
@pytest.mark.parametrize("length", [3, 15, 17])
def test_a_row_that_does_not_see_a_nan_is_not_spoiled(length, need_weights):
    """In causal order a later key that is NaN, with a finite value, leaves earlier rows as they were."""
    query, key, value = (random(BATCH, HEADS, length, DIM, seed=i) for i in range(3))
    clean, _ = dot_product_attention(query, key, value, is_causal=True, need_weights=need_weights)
    key[0, 1, -1] = torch.nan
    output, _ = dot_product_attention(query, key, value, is_causal=True, need_weights=need_weights)
    torch.testing.assert_close(output[:, :, :-1], clean[:, :, :-1])
    assert output[0, 1, -1].isnan().all()


def test_one_mask_is_built_in_a_call(monkeypatch):
    combined, combine = [], masking._combine_masks
    monkeypatch.setattr(masking, "_combine_masks", lambda *given: combined.append(1) or combine(*given))
    layer, x = MultiHeadAttention(33, HEADS), random(BATCH, Q_LEN, 33, dtype=torch.float32)
    layer(x, x, x, valid_lens=torch.tensor([3, 5]), is_causal=True)
    assert len(combined) == 1
