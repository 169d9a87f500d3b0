"""Gradients of the stand-in for torch: each call of the other test, on random arguments, against torch's."""

import os
import random
import re
import warnings

import pytest
import torch
from test_in_page_torch import CALLS, LETTERS, Draw, Pair, ours

pytestmark = pytest.mark.newer_torch
TIMES = int(os.environ.get("TIMES", "12"))

# Calls whose results have no gradient, or whose gradient torch does not define.
NO_GRADIENT = ("half()", "//", "floor_divide", "cdist", "F.one_hot")
# For no axes at all, torch's own gradient of this one is that of another number of entries.
WRONG_IN_TORCH = "f.var(dims, correction=0)"
MORE = """
f * f; f / f; (f - g) * f; f.view(-1)[:2] * 3; f[..., 0] + f[..., -1]; (f * 2).T.flatten()
f.expand_as(f) * f; f.clone().mul_(2.0); f.clone().add_(g); f.softmax(-1) @ f.mT; f.log_softmax(-1)[..., 0]
(f * 2).masked_fill_(m, 0); f.clone().exp_(); f.unsqueeze(0).repeat_interleave(2, 0)
T.cat([f, f * 2], -1)[..., 1:]; f.detach() * f; f.mean(-1, keepdim=True) * f
F.layer_norm(f, f.shape[-1:], f.flatten()[: f.shape[-1]], f.flatten()[: f.shape[-1]]); f.norm(3, -1)
f.norm(1.5, -1); f.clamp(-0.5, 0.5); f.clamp(max=0.3).sum(0); f.pow(3); (f.abs() + 1).pow(g); T.pow(2.0, f)
f.abs() ** 1.5; T.stack([f, f], -1).unbind(-1)[0]; T.where(m, f, g); T.where(m, f, 0.0)
f.sort(-1).values * 2; f.topk(1, -1).values; f.max(-1).values + f.min(-1).values; f.prod(-1)
(f * 0).prod(-1); T.einsum("...i,...j->...ij", f, f); f.tril() + f.triu(1); f.flip(0, -1); f.roll(1, -1)
f.cumsum(-1) * f; f.diag() if f.ndim < 3 else f; f.unfold(-1, 1, 1); f.gather(-1, f.argsort(-1))
f.scatter(-1, f.argsort(-1), f * 2)
f.logsumexp(-1); f.var(); f.std(-1); f.index_select(-1, T.tensor([0, 0])); f[[0, 0]]; f[T.tensor([0, -1])]
f[..., [0]]; f.double() * 3; f.float() * f; F.scaled_dot_product_attention(f[None], f[None], f[None])
F.normalize(f, dim=-1); F.gelu(f); F.silu(f); F.embedding(T.tensor([[0, 0, 1 % len(f)]]), f.flatten(1))
F.cross_entropy(f.flatten(1), f.flatten(1).argmax(1))
F.cross_entropy(f.flatten(1), f.flatten(1).argmax(1), ignore_index=0, reduction="sum"); f.amax(-1)
f.amin(0); F.cross_entropy(f.flatten(1), f.flatten(1).softmax(1)); F.pad(f, (1, 2)); f.diff(dim=-1)
T.outer(f[0], f[0]); f[None] @ f[0]; f[0] @ f[0]; (f.T @ f) if f.ndim == 2 else f; f.sum() * f
f.median(-1).values; f.median(); f.max()
"""
CHANGES = """
y = x * 2; y[0] = 0; y * y
y = x * 2; y[..., 0] = x[..., 0] ** 2; y * x
y = x * 2; y[:, 1:] += 3 * x[:, 1:]; y * y
y = x * 2; v = y[0]; y.mul_(3); v * v
y = x * 2; y.T[0] = 1; y * x
y = T.zeros(2, *x.shape); y[0] = x; y[1] = x * x; y.sum(0) * x
y = x * 2; y[T.tensor([0, 1])] = x[:2] * 5; y * y
y = x * 1; y[y > 0] = 0.5; y * x
y = x.clone(); y.zero_(); y + x
y = x * 2; y.copy_(x ** 2); y * x
"""
SHAPES = [
    (5,),
    (2, 3),
    (3, 5),
    (5, 1),
    (7, 2),
    (3, 3),
    (2, 3, 5),
    (5, 3, 2),
    (1, 7, 3),
    (2, 1, 5),
    (3, 2, 2, 5),
]


class Draws(Draw):
    """Arguments of floating-point numbers that are leaves, of shapes with different primes."""

    shapes = SHAPES

    def number(self, dtype):
        return super().number(dtype) if "float" not in dtype else self.random.gauss(0, 1.5)

    def tensor(self, shape, dtype):
        pair = super().tensor(shape, "float64" if "float" in dtype else dtype)
        return Pair(x.detach().requires_grad_() if "float" in str(x.dtype) else x for x in pair)


def graph(module, call, own):
    """What a call returns; only its last part if there are several."""
    space = {**own, "T": module, "F": module.nn.functional, "nn": module.nn, "math": __import__("math")}
    *before, last = call.split("; ") if call.startswith("y = ") else [call]
    for line in before:
        exec(line, space)  # noqa: S102
    return eval(last, space)  # noqa: S307


def floats_of(module, value):
    """The tensors among the results through which a gradient can pass."""
    values = value if isinstance(value, (tuple, list)) else [value]
    return [one for one in values if isinstance(one, module.Tensor) and one.requires_grad]


def outcome(module, side, call, given, seed):
    """The gradients of all leaves, or None where the call fails."""
    own = {k: v[side] if isinstance(v, Pair) else v for k, v in given.items()}
    leaves = {k: v for k, v in own.items() if isinstance(v, module.Tensor) and v.requires_grad}
    try:
        results = floats_of(module, graph(module, call, own))
    except Exception:
        return None
    if not results:
        return {}
    roll, total = random.Random(seed), 0
    for one in results:
        weights = [roll.gauss(0, 1) for _ in range(one.numel())]
        total = total + (one * module.tensor(weights, dtype=module.float64).reshape(one.shape)).sum()
    try:
        total.backward()
    except RuntimeError:
        if module is torch:  # it has no gradient of this
            return None
        raise
    return {
        k: None if v.grad is None else (tuple(v.grad.shape), v.grad.flatten().tolist())
        for k, v in leaves.items()
    }


def near(a, b):
    return a == b or (a != a and b != b) or abs(a - b) <= 2e-6 * (1 + abs(b))


def compare(call, times):
    words = re.findall(r"[a-z]+", re.sub(r'\.\w+|\w+=|"[^"]*"', "", call))
    tried = 0
    for seed in range(times):
        draw = Draws("gradients", f"{call} {seed}")
        draw.dtype = None
        given = {letter: draw(letter) for letter in LETTERS if letter in words}
        if call == WRONG_IN_TORCH and not given["dims"]:
            continue
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            expected = outcome(torch, 0, call, given, seed)
        if expected is None:
            continue
        mine = outcome(ours, 1, call, given, seed)
        pairs = {name: value[0] for name, value in given.items() if isinstance(value, Pair)}
        told = {name: f"{one.shape} {one.stride()}" for name, one in pairs.items()}
        assert mine is not None and mine.keys() == expected.keys(), f"{mine}, not {expected}, with {told}"
        for name, right in expected.items():
            got = mine[name]
            # Torch gives zeros where a result needs nothing of an input, and so do we, or None.
            if got is None or right is None:
                assert not any((got or right or [0, []])[1]), f"{name}: {got}, not {right}, with {told}"
                continue
            assert got[0] == right[0], f"{name}: {got[0]}, not {right[0]}"
            same = all(near(a, b) for a, b in zip(got[1], right[1], strict=True))
            assert same, f"{name}: {got[1]}, not {right[1]}, with {told}, seed {seed}"
        tried += bool(expected)
    return tried


ALL = [call for kind, call in CALLS if kind in ("by_number", "views", "by_row", "products")]
ALL = [call for call in ALL if not any(word in call for word in NO_GRADIENT)]
ALL += [one.strip() for one in re.split(r";|\n", MORE) if one.strip()]
ALL += [one.strip() for one in CHANGES.strip().splitlines()]


@pytest.mark.parametrize("call", list(dict.fromkeys(ALL)))
def test_its_gradients_are_those_of_torch(call):
    compare(call, TIMES)


def test_most_calls_have_gradients_to_compare():
    assert sum(compare(call, 3) > 0 for call in ALL[::7]) > len(ALL[::7]) / 2
