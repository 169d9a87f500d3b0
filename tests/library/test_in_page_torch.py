"""The stand-in for torch that pages have: it is compared with torch, call by call, on random arguments."""

import importlib.util
import math
import os
import random
import re
import subprocess
import sys
import warnings
from pathlib import Path

import pytest
import torch

pytestmark = pytest.mark.newer_torch  # the stand-in resembles the pinned torch
ROOT = Path(__file__).resolve().parents[2]
FOLDER = ROOT / "mha_course" / "in_page" / "torch"
TIMES = int(os.environ.get("TIMES", "12"))  # arguments for each call; the slow test draws more


def load():
    """The stand-in under another name, so that both are there."""
    spec = importlib.util.spec_from_file_location(
        "stand_in", FOLDER / "__init__.py", submodule_search_locations=[str(FOLDER)]
    )
    sys.modules["stand_in"] = module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


ours = load()

# What each letter of a call stands for: x is any tensor, n has numbers, f has floating-point numbers; y, o
# and g are others that broadcast with it, g with its dtype; m is a mask for it; i and j are indices; others
# are axes, sizes and numbers.
BY_NUMBER = """
x + y; x * y; n - o; x / y; n // o; n % o; n ** o; x + s; x * s; n - s; n / s; n // s; n % s; n ** s; s + n
s * n; s - n; s / n; s // n; s % n; -n; ~b; b & c; b | c; b ^ c; x < y; x <= y; x > y; x >= s; x == y; x != s
n.abs(); n.square(); n.sign(); n.floor(); n.ceil(); n.trunc(); n.round(); n.relu(); x.exp(); x.log(); x.sqrt()
x.rsqrt(); x.sin(); x.cos(); x.tanh(); x.sigmoid(); x.erf(); x.deg2rad(); x.log2(); x.isnan(); x.isinf()
x.isfinite(); x.logical_not(); x.logical_and(y); T.logical_or(x, y); x.maximum(y); T.minimum(x, y)
n.clamp(-1, 2); n.clamp(max=s); n.clamp(min=o); T.where(m, x, y); T.where(m, x, s); T.where(m, 1.0, 0)
x.where(m, y); T.pow(n, 2); x.nan_to_num(); f.isclose(g); f.allclose(g); T.equal(x, y)
T.div(n, o, rounding_mode="floor"); n.div(s, rounding_mode="trunc"); n.div(o, rounding_mode="up"); x.float()
x.double(); x.half(); x.long(); x.int(); x.bool(); x.to(T.float64); x.to(y); x.clone(); x.contiguous()
x.detach(); x + None; x + "a"; T.add(x, y); T.sub(n, o); T.mul(x, y); T.result_type(x, y); (n + 1).view(shape)
x.clone().view(shape); (x.mT * 2).view(shape); x.is_floating_point(); x.long().dtype
"""
VIEWS = """
x.view(shape); x.view(*shape); x.reshape(shape); x.reshape(*shape); x.flatten(); x.flatten(d, e)
x.unflatten(d, shape); x.unflatten(d, (k, -1)); x.transpose(d, e); x.permute(p); x.mT; x.T; x.t()
x.movedim(d, e); x.swapaxes(d, e); x.unsqueeze(d); x.squeeze(); x.squeeze(d); x.expand(big); x.expand_as(y)
x.view_as(y); x.split(q, d); x.chunk(q, d); x.split([1, q], d); x.unbind(d); x.select(d, k); x.narrow(d, k, q)
x.diagonal(k, d, e); x[None].unfold(d, q, k); x[k]; x[k:]; x[:k]; x[::q]; x[k:, q:]; x[None]; x[..., None]
x[..., k]; x[:, k]; x[k, k]; x[k, ..., None]; x[:, None, k:]; list(x); x.size(); x.size(d); x.shape[0]
x.stride(); len(x); x.numel(); x.dim(); x.is_contiguous(); x.tolist(); x.item(); bool(x); float(x); int(x)
x.shape; x.mT.reshape(shape); x.mT.view(shape); x.T.flatten().view(shape); T.transpose(x, d, e)
x.transpose(d); x.view("a"); x.permute(0.5); x.squeeze("a"); repr(x); str(x); f"{x}"; 1 in x
"""
BY_ROW = """
n.sum(); n.sum(axis=d, keepdims=keep); f.softmax(axis=d); f.mean(axis=d); abs(n); x.sum(d); x.sum(dims, keep)
f.sum(d, dtype=T.float64); x.mean(); f.mean(d, keepdim=keep); f.mean(dims); x.prod(); x.prod(d); x.any()
x.any(d, keep); x.all(); x.all(d); x.amax(dims, keep); x.amin(d); n.argmax(); n.argmax(d, keep); n.argmin(d)
x.max(); x.max(d); x.max(d, keep).indices; x.min(d); x.max(y); x.min(); f.var(); f.var(d)
f.var(dims, correction=0); f.std(d, keepdim=keep); f.std(); f.std(d, correction=0); f.norm(); f.norm(dim=d)
f.norm(1, d); f.norm(p=math.inf, dim=d); f.logsumexp(d, keep); n.softmax(d); f.softmax(d); n.log_softmax(d)
T.softmax(f, d, dtype=T.float64); f.softmax(-1, T.float64); x.cumsum(d); f.sort(d)
f.sort(d, True); f.argsort(d); T.argsort(f, descending=True); f[None].topk(q, d).values
f[None].topk(q, d, largest=False).indices; x.flip(dims); n[None].diff(dim=d); f.median(d).indices
x.nonzero(); x.nonzero(as_tuple=True); x.tril(k); x.triu(k); x[None].roll(k, d); x.roll(k)
x.scatter(d, j, 2); T.scatter(f, d, j[:1], f)
x.gather(d, j); x[None].index_select(d, i * 0); x.masked_select(m); x[i]; x[i, i]; x[:, i]; x[..., i]
x[i, :, i]; x[i, k]; x[m]; x[l]; x[:, l]; x[[0, 1]]; x[[True, False]]; x[True]; x[f]; x.repeat(sizes)
x.diag(k); x.repeat_interleave(q, d); x.repeat_interleave(2); T.cat([x, y], d); T.cat((x, x, x), d)
T.stack([x, y], d); T.stack((x, x), d); T.cat([x]); T.stack([]); x.sum("a"); x.softmax(); x.mean(0, True)
"""
PRODUCTS = """
x @ y; f @ g; f @ f.mT; f.matmul(g); f.mm(g); f.bmm(g); f[None].mv(g); f.dot(g); T.outer(f, g); f @ 2
T.einsum("ij,jk->ik", f, g); T.einsum("ij,kj", f, f); T.einsum("...i,...i->...", f, f); T.einsum("ii->i", f)
T.einsum("...ij,...kj->...ik", f, f); T.einsum("ii", f); T.einsum("i,j", f, g); T.einsum("bij->bj", f)
T.einsum("ij->ji", f); T.einsum("ij,ij->", f, f); T.einsum("ij->ik", f)
T.cdist(f.float(), f.float()[..., :1, :]); T.kron(f[None].flatten(1), g[None].flatten(1)); F.relu(n)
F.gelu(x); F.gelu(f, approximate="tanh"); F.silu(f); F.one_hot(h, 7); F.one_hot(h); F.softmax(f, dim=d)
F.linear(f, g); F.linear(f, f); F.layer_norm(f, f.shape[-1:]); F.layer_norm(f, (3,)); F.pad(f, (1, 2))
F.pad(f, (1, 0, 0, 1), value=s); F.normalize(f, dim=d)
F.cross_entropy(f.flatten(1), h.flatten()[: len(f)] % 2)
F.cross_entropy(f, f.softmax(1), label_smoothing=0.1)
F.cross_entropy(f.flatten(1), h.flatten()[: len(f)] % 2, label_smoothing=0.2, reduction="none")
F.scaled_dot_product_attention(f, f, f); F.scaled_dot_product_attention(f, f, f, is_causal=True, scale=0.3)
F.scaled_dot_product_attention(f, f, f, (f @ f.mT) > 2); F.scaled_dot_product_attention(f, f, f, f @ f.mT)
F.embedding(h, f.flatten(1)); f.masked_fill(m, s); s ** n; F.dropout(f, 0.0); F.dropout(f, 0.5, False)
F.dropout(f, 2)
"""
CHANGES = """
x[k] = s; x[k:] = y; x[:, k:] = y; x[m] = s; x[l] = s; x[i] = s; x[..., k] = y; x[:] = y; x += y; x -= y
x *= s; x /= y; x **= 2; x &= x; x.masked_fill_(m, s); x.fill_(s); x.copy_(y); x.zero_(); x.clamp_(-1, 1)
x.exp_(); x[None].scatter_(0, j[None], 1); x.transpose(d, e)[k] = s; x.view(shape)[0] += 1; x[k:] *= 2
x.mT[0] = s; x.expand(big)[0] = s; x[i] += 1; x.detach()[0] = 1; x.add_(y); x.abs_(); x.tril_()
x[None][0] = s; x[m] = y.to(x.dtype); x[i] = y; x.unbind(d)[0].zero_()
"""
NEW = """
T.zeros(sizes); T.ones(sizes, dtype=T.int64); T.full(sizes, s); T.full((2, 3), True); T.eye(q); T.eye(q, k)
T.arange(k); T.arange(k, q); T.arange(k, q, 2); T.arange(k, q, s); T.arange(float(q))
T.arange(3, dtype=T.float64); T.linspace(k, s, q); T.zeros_like(f); T.ones_like(f, dtype=T.bool)
T.full_like(f, s); f.new_zeros((2, 3)); T.tensor([[1, 2], [3, s]]); T.tensor([[1, 2], [3]]); T.tensor([f, f])
T.tensor("a"); T.tensor(s, dtype=T.int64); T.tensor([[[], []]]); T.tensor(True); T.tensor([f.sum(), 1])
T.as_tensor(f); T.zeros(2, "a"); T.zeros(2.0); T.tensor([1.5, 2]).to(T.int64); T.tensor([True, 2])
T.tensor(range(q)); T.Tensor([1, 2]); T.zeros(2, 3, 4).shape; T.finfo(T.float32).min; T.finfo(f.dtype).eps
T.unravel_index(T.tensor(q), (2, 3)); T.broadcast_shapes(sizes, (3,)); T.rand(3, 4, generator=G)
T.randn(3, 4, generator=G); T.randn(5, 4, generator=G); T.randn(3, generator=G)
T.randint(7, (2, 3), generator=G); T.randint(-2, 3, (5,), generator=G); T.randperm(9, generator=G)
T.multinomial(T.arange(5.0), 1, generator=G); T.randint(3, 3, (1,), generator=G)
T.multinomial(T.arange(5.0), 3, generator=G); T.rand(4, dtype=T.float64, generator=G)
T.zeros(2, 3).normal_(generator=G); T.zeros(20).uniform_(-2, 5, generator=G)
T.randn(40, dtype=T.float64, generator=G); T.rand((2, 2), generator=G); nn.Linear(3, 2)(T.ones(4, 3))
nn.Embedding(5, 3)(T.tensor([[0, 4]])); nn.LayerNorm(4)(T.arange(8.0).view(2, 4)); repr(nn.Linear(3, 2))
nn.ModuleList([nn.Linear(2, 2)] * 2)[1].weight; repr(nn.Embedding(3, 4)); nn.Linear(2, 3).bias
nn.Sequential(nn.Linear(3, 4), nn.ReLU(), nn.Linear(4, 2))(T.ones(3))
repr(nn.Sequential(nn.Linear(2, 3), nn.GELU()))
list(nn.Sequential(nn.Linear(3, 4), nn.LayerNorm(4)).state_dict()); nn.Softmax(-1)(f); nn.Dropout(0.0)(f)
nn.Module()(f); nn.Linear(3, 2).load_state_dict({}); nn.Linear(3, 2).weight.fill_(1)
nn.Linear(3, 2)(T.ones(4)); repr(nn.LayerNorm(4))
[name for name, _ in nn.Sequential(nn.Linear(3, 2, bias=False), nn.LayerNorm(2)).named_parameters()]
nn.Linear(1, 2).x; repr(nn.Linear(2, 1).eval().double().weight.dtype)
nn.Linear(3, 2).requires_grad_(False).weight.fill_(1.0); T.meshes; nn.Linear(3, 2).to("meta")(T.ones(2, 3))
T.ones(2).to("meta") + T.ones(2); repr(T.ones(2, 3).to("meta")); T.ones(2).to("meta").item()
T.ones(2).to("meta").cpu(); nn.init.xavier_uniform_(T.zeros(3, 4)); T.ones(3).device
"""
KINDS = {
    "by_number": BY_NUMBER,
    "views": VIEWS,
    "by_row": BY_ROW,
    "products": PRODUCTS,
    "changes": CHANGES,
    "new": NEW,
}
CALLS = [
    (kind, call.strip()) for kind, text in KINDS.items() for call in re.split(r";|\n", text) if call.strip()
]

SHAPES = [(), (1,), (2,), (3,), (2, 3), (3, 1), (1, 4), (3, 3), (2, 3, 4), (1, 3, 2), (2, 1, 3), (2, 2, 3, 2)]
EMPTY = [(0,), (0, 3), (2, 0)]
FLOATS, INTS = ["float32", "float32", "float32", "float64", "float16"], ["int64", "int64", "int32"]
TENSORS = {
    "x": [*FLOATS, *INTS, "bool"], "n": FLOATS + INTS, "f": FLOATS, "b": [*INTS, "bool"], "h": ["int64"],
    "y": [*FLOATS, *INTS, "bool"], "o": FLOATS + INTS, "c": [*INTS, "bool"], "m": ["bool"],
}  # fmt: skip


class Pair(tuple):
    """The same in torch and in the stand-in."""


class Draw:
    """Arguments that a seed chooses."""

    shapes = SHAPES

    def __init__(self, kind, seed):
        self.random, self.kind, self.shape, self.dtype = random.Random(seed), kind, None, None
        self.odd = kind == "by_number" and self.random.random() < 0.2  # with NaN and infinities

    def number(self, dtype):
        roll = self.random
        if dtype == "bool":
            return roll.random() < 0.5
        if "int" in dtype:
            return roll.randint(-4, 5)
        if self.odd and roll.random() < 0.2:
            return roll.choice([math.inf, -math.inf, math.nan])
        return float(roll.randint(-3, 3)) if roll.random() < 0.2 else roll.gauss(0, 1.5)

    def pair(self, numbers, shape, dtype):
        return Pair(T.tensor(numbers, dtype=getattr(T, dtype)).reshape(shape) for T in (torch, ours))

    def tensor(self, shape, dtype):
        """A tensor that may be a view: its memory in another order, or with gaps."""
        roll, base, view = self.random, list(shape), lambda x: x
        if len(shape) > 1 and roll.random() < 0.2:
            i, j = roll.sample(range(len(shape)), 2)
            base[i], base[j] = base[j], base[i]
            view = lambda x: x.transpose(i, j)  # noqa: E731
        elif shape and roll.random() < 0.15:
            i = roll.randrange(len(shape))
            base[i] *= 2
            view = lambda x: x[(*[slice(None)] * i, slice(None, None, 2))]  # noqa: E731
        pair = self.pair([self.number(dtype) for _ in range(math.prod(base))], base, dtype)
        return Pair(map(view, pair))

    def near(self):
        """A shape that fits the first one, most of the time."""
        if self.random.random() < 0.1:
            return self.random.choice(self.shapes)
        sizes = tuple(1 if self.random.random() < 0.2 else size for size in self.shape)
        return sizes[self.random.randint(0, len(sizes)) :] if self.random.random() < 0.3 else sizes

    def __call__(self, letter):
        roll, first = self.random, self.shape or ()
        count = len(first)
        if letter in ("x", "n", "f", "b") and self.shape is None:
            empty = self.kind in ("by_number", "views") and roll.random() < 0.1
            self.shape, self.dtype = (
                roll.choice(EMPTY if empty else self.shapes),
                roll.choice(TENSORS[letter]),
            )
            return self.tensor(self.shape, self.dtype)
        if letter in TENSORS or letter == "g":
            dtype = self.dtype if letter == "g" else roll.choice(TENSORS[letter])
            pair = self.tensor(self.near() if self.shape is not None else roll.choice(SHAPES), dtype)
            return Pair(x.abs() for x in pair) if letter == "h" else pair
        if letter == "l":  # a mask of the first axes
            return self.tensor(first[: roll.randint(0, count)], "bool")
        if letter in ("i", "j"):
            shape = (
                tuple(roll.randint(1, size) for size in first)
                if letter == "j"
                else roll.choice(self.shapes[:5])
            )
            numbers = [roll.randrange(min(first, default=1) or 1) for _ in range(math.prod(shape))]
            if roll.random() < 0.1 and letter == "i" and self.kind == "by_row":
                numbers = [9 for _ in numbers]
            return self.pair(numbers, shape, "int64")
        if letter in ("d", "e"):
            return (
                roll.randint(-count - 1, count)
                if roll.random() < 0.2
                else roll.randint(-count, max(count - 1, 0))
            )
        if letter == "dims":
            return tuple(roll.sample(range(-count, 0), roll.randint(0, count)))
        if letter == "p":
            return roll.sample(range(count), count) if roll.random() < 0.9 else [0, 0]
        if letter == "shape":
            sizes, rest = [], math.prod(first)
            while rest > 1 and roll.random() < 0.7:
                sizes.append(roll.choice([d for d in range(1, rest + 1) if rest % d == 0]))
                rest //= sizes[-1]
            sizes = roll.sample([*sizes, rest], len(sizes) + 1)
            if roll.random() < 0.4:
                sizes[roll.randrange(len(sizes))] = -1
            return tuple(sizes) if roll.random() < 0.85 else roll.choice([(2, 3), (-1, -1), (-2,), (7, -1)])
        if letter == "big":
            sizes = [roll.choice([size, -1]) if size != 1 else roll.choice([1, 3]) for size in first]
            return [2] * roll.randint(0, 1) + sizes if roll.random() < 0.9 else [5, *sizes[1:]]
        if letter == "sizes":
            return tuple(roll.randint(0, 3) for _ in range(roll.randint(0, 3)))
        options = {
            "k": range(-3, 5),
            "q": range(5),
            "keep": (True, False),
            "s": (0, 1, 3, -1, 0.5, 2.0, -1.5),
        }
        return roll.choice(options[letter])


LETTERS = "x n f b y o c g h m l i j d e dims p shape big sizes k q keep s".split()


def outcomes(kind, call, seed):
    """What torch and the stand-in make of a call: ("returns", value) or (name of the error, error)."""
    draw = Draw(kind, f"{call} {seed}")
    words = re.findall(r"[a-z]+", re.sub(r'\.\w+|\w+=|"[^"]*"', "", call))
    given = {letter: draw(letter) for letter in LETTERS if letter in words}
    for T, side in ((torch, 0), (ours, 1)):
        own = {k: v[side] if isinstance(v, Pair) else v for k, v in given.items()}
        space = {**own, "T": T, "F": T.nn.functional, "nn": T.nn, "math": math}
        space["G"] = T.Generator().manual_seed(seed)
        T.manual_seed(seed)
        try:
            if kind == "changes":
                space["x"] = space["x"].clone()
                exec(call, space)  # noqa: S102
            yield "returns", space["x"] if kind == "changes" else eval(call, space), given  # noqa: S307
        except Exception as error:
            yield type(error).__name__, error, given


def difference(mine, right, *, layout):
    """How two results differ, or None."""
    if isinstance(right, torch.Tensor):
        said = f"{type(mine).__name__} {getattr(mine, 'shape', '')} {getattr(mine, 'dtype', '')}"
        if said != f"Tensor {right.shape} {right.dtype}" and said != f"Parameter {right.shape} {right.dtype}":
            return f"{said}, not {right.shape} {right.dtype}"
        if layout and mine.is_contiguous() != right.is_contiguous():
            return f"strides {mine.stride()}, not {right.stride()}"
        if right.is_meta:
            return None if mine.is_meta else "numbers, not the device meta"
        pairs = zip(mine.flatten().tolist(), right.flatten().tolist(), strict=True)
        near = all(close(a, b, str(right.dtype)) for a, b in pairs)
        return None if near else f"{mine.flatten().tolist()[:9]}, not {right.flatten().tolist()[:9]}"
    if isinstance(right, (tuple, list)):
        if len(mine) != len(right):
            return f"{len(mine)} results, not {len(right)}"
        return next(
            filter(None, (difference(*two, layout=layout) for two in zip(mine, right, strict=True))), None
        )
    if isinstance(right, float):
        return None if type(mine) is float and close(mine, right, "torch.float32") else f"{mine}, not {right}"
    return None if str(mine) == str(right) else f"{mine!r}, not {right!r}"


def close(a, b, dtype):
    tolerance = {"torch.float16": 4e-3, "torch.float32": 2e-5, "torch.float64": 1e-9}.get(dtype, 0)
    return (a != a and b != b) or a == b or abs(a - b) <= tolerance * (1 + abs(b))


def compare(kind, call, times):
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        for seed in range(times):
            (expected, right, given), (found, mine, _) = outcomes(kind, call, seed)
            told = {k: f"{v[0].dtype} {v[0].shape}" if isinstance(v, Pair) else v for k, v in given.items()}
            assert found == expected, (
                f"{found}: {mine}, and torch: {expected}: {right}, with {told}, seed {seed}"
            )
            if found == "returns":
                problem = difference(mine, right, layout=kind in ("by_number", "views"))
                assert problem is None, f"{problem}, with {told}, seed {seed}"


@pytest.mark.parametrize(("kind", "call"), CALLS, ids=[call for _, call in CALLS])
def test_it_does_what_torch_does(kind, call):
    compare(kind, call, TIMES)


@pytest.mark.slow
@pytest.mark.parametrize(("kind", "call"), CALLS, ids=[call for _, call in CALLS])
def test_it_does_what_torch_does_on_more_arguments(kind, call):
    compare(kind, call, 40)


def test_views_share_memory_and_copies_do_not():
    x = ours.zeros(2, 3)
    for view in (x.view(3, 2), x.T, x[:, 1:], x.unsqueeze(0), x.expand(4, 2, 3), x.detach(), x.reshape(6)):
        assert view.data_ptr() - x.data_ptr() in (0, x.dtype.itemsize)
    x.T[2, 1] = 5
    assert x.tolist() == [[0, 0, 0], [0, 0, 5]]
    for copy in (x.clone(), x + 0, x[[0, 1]], x.T.reshape(6), ours.tensor(x), x.repeat(1, 1), x.double()):
        copy.zero_()
    assert x[1, 2] == 5


def test_a_parameter_is_changed_under_no_grad_only():
    layer = ours.nn.Linear(2, 2)
    for change in (
        lambda: layer.weight.zero_(),
        lambda: layer.weight[0].fill_(1),
        lambda: layer.bias.add_(1),
    ):
        with pytest.raises(RuntimeError, match="no_grad"):
            change()
        with ours.no_grad():
            change()
    ours.no_grad()(lambda: layer.weight.fill_(2))()
    layer.weight.data.mul_(2)
    assert layer.weight.tolist() == [[4, 4], [4, 4]]


@pytest.mark.parametrize(("what", "word"), [
    (lambda: ours.ones(2, requires_grad=True).sum().backward(create_graph=True), "need torch itself"),
    (lambda: ours.ones(2, requires_grad=True).register_hook(print), "hooks on gradients need torch itself"),
    (lambda: ours.ones(2).numpy().sum(), "NumPy need torch itself"),
    (lambda: ours.ones(2).to("cuda"), "the device 'cuda' needs torch itself"),
    (lambda: ours.ones(2, dtype=ours.bfloat16), "torch.bfloat16 needs torch itself"),
    (lambda: ours.ones(2) * 1j, "complex"),
    (lambda: ours.optim.LBFGS, "no optim.LBFGS: open this page in Colab"),
    (lambda: ours.nn.Transformer, "no nn.Transformer: open this page in Colab"),
    (lambda: ours.nn.functional.glu, "no F.glu: open this page in Colab"),
    (lambda: ours.ones(2).qr, "no Tensor.qr: open this page in Colab"),
])  # fmt: skip
def test_what_it_cannot_do_it_refuses_and_says_so(what, word):
    with pytest.raises((ours.NeedsTorchError, AttributeError, TypeError), match=word):
        what()


def test_it_needs_only_the_standard_library():
    code = "import sys, torch, torch.nn.functional; print(*{name.partition('.')[0] for name in sys.modules})"
    options = {"capture_output": True, "text": True, "check": True, "env": {"PYTHONPATH": str(FOLDER.parent)}}
    names = subprocess.run([sys.executable, "-S", "-c", code], **options).stdout.split()
    assert set(names) - {"torch", "sitecustomize"} <= {*sys.stdlib_module_names, "__main__"}


# Calls of what the cells tagged `build` define; r draws normal numbers.
BUILT = """
my_pooling(r(3, 2), r(5, 2), r(5, 4)); my_lens_mask(T.tensor([2, 0, 5]), 5)
my_causal_mask(3, 5)
my_masked_softmax(r(2, 3, 5), T.rand(2, 3, 5) > 0.6); split_heads(r(2, 3, 6), 3)
my_attention(r(2, 3, 4, 5), r(2, 3, 4, 5), r(2, 3, 4, 5), my_causal_mask(4)); merge_heads(r(2, 3, 4, 5))
MyHead(6, 4, 5, 7)(r(2, 3, 6), r(2, 4, 5), r(2, 4, 7)); MyHeadLoop(6, 3)(r(2, 3, 6), *[r(2, 4, 6)] * 2)
MyMultiHead(6, 3, bias=True)(r(2, 3, 6), *[r(2, 4, 6)] * 2, my_lens_mask(T.tensor([1, 4]), 4))
encoding_by_loops(5, 7); MyPositions(6, 9)(r(2, 5, 6)); MyFeedForward(6, 11)(r(2, 3, 6))
repr(MyEncoderBlock(6, 2, 8)); my_layer_norm(r(2, 5), r(5), r(5)); MyEncoderBlock(6, 2, 8)(r(2, 4, 6))
MyDecoderBlock(6, 2, 8)(r(2, 4, 6), r(2, 3, 6))
MyTransformer(7, 9, 6, 2, 8, 2)(T.randint(7, (2, 5)), T.randint(9, (2, 4)))
my_probabilities(r(2, 9), 0.7, top_k=3); MyGPT(9, 6, 2, 2, 8)(T.randint(9, (2, 7)))
my_loss(MyGPT(9, 6, 2, 1, 8), T.randint(9, (60,))); my_write(MyGPT(9, 6, 2, 1, 8), T.arange(3), 12, 0.8, 5)
my_batch(T.arange(50), 3, 7, T.Generator().manual_seed(2))
sees_the_future(lambda x: x.float().cumsum(1), T.arange(5)[None], 9)
sees_the_future(MyGPT(5, 6, 2, 1, 8), T.arange(5)[None], 5)
sees_the_future(lambda x: x.flip(1).float(), T.arange(5)[None], 9)
[*MyStack(MyEncoderBlock, 2, 6, 2, 8).state_dict()]
"""


@pytest.fixture(scope="module")
def built():
    """The names of the reader's own library, made with torch and with the stand-in."""
    source = (ROOT / "mha_course" / "built.py").read_text(encoding="utf-8")
    spaces = []
    for T in (torch, ours):
        modules = {"torch": T, "torch.nn": T.nn, "torch.nn.functional": T.nn.functional}
        with pytest.MonkeyPatch.context() as patch:
            for name, module in modules.items():
                patch.setitem(sys.modules, name, module)
            spaces.append({"T": T, "r": T.randn, "__name__": "built"})
            exec(compile(source, "built", "exec"), spaces[-1])  # noqa: S102
    return spaces


@pytest.mark.parametrize("call", [call for call in re.split(r"; |\n", BUILT) if call])
def test_the_cells_of_the_pages_return_the_same(built, call):
    results = []
    for space in built:
        space["T"].manual_seed(0)
        with space["T"].no_grad():
            results.append(eval(call, space))  # noqa: S307
    assert difference(results[1], results[0], layout=True) is None


# Tests of exercises that fail with it: the suite -> a word of each test, and what it needs from torch.
NEEDS_TORCH = {
    "masks": {},
    "pooling": {"check_pooling-<lambda>1": "arrays of NumPy", "check_local_line-solved_line": "torch.linalg",
                "check_jacobian-by_autograd": "torch.autograd"},
    "scoring": {"check_bilinear_matrix-the highest rank": "torch.linalg"},
    "positions": {},
    "self_attention": {"test_other_right_answers": "arrays of NumPy"},
    "bugs": {},
    "heads": {"test_what_is_returned_is_asked_for": "nn.MultiheadAttention",
              "test_other_right_answers": "nn.MultiheadAttention"},
    "transformer": {"TorchPostNorm": "nn.TransformerEncoderLayer"},
    "efficiency": {},
    "parts": {"table_of_complex_numbers": "complex numbers",
              "test_right_answer_is_accepted[check11-<lambda>]": "arrays of NumPy"},
    "of_pages": {"two_seconds[03_multi_head_attention-7]": "nn.MultiheadAttention",
                 "two_seconds[04_self_attention-3]": "torch.autograd",
                 "two_seconds[09_a_model_people_use-1]": "torch.uint8",
                 "two_seconds[09_a_model_people_use-2]": "torch.uint8",
                 "mistakes_apart[check_dequantize]": "torch.uint8",
                 "mistakes_apart[check_encoder_block]": "nn.MultiheadAttention",
                 "mistakes_apart[check_write]": "draws with replacement",
                 "mistakes_apart[check_to_torch]": "nn.MultiheadAttention"},
}  # fmt: skip


@pytest.mark.slow
@pytest.mark.parametrize("suite", NEEDS_TORCH)
def test_exercises_are_judged_with_it_as_with_torch(suite):
    """The library, the checkers and their tests run with the stand-in, on the same random cases."""
    folders = [FOLDER.parent, ROOT, ROOT / "tests" / "library", ROOT / "tests", ROOT / "tools"]
    path = os.pathsep.join(map(str, folders))
    env = os.environ | {"PYTHONPATH": path, "PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1"}
    # Without the device meta, a model of GPT-2's size would take up memory.
    options = ["-rf", "--tb=no", "-p", "in_page_world", "--noconftest", "-k", "not parameters_of_gpt2"]
    command = [sys.executable, "-m", "pytest", *options, f"tests/library/test_exercises_{suite}.py"]
    done = subprocess.run(command, cwd=ROOT, env=env, capture_output=True, text=True)
    failed = re.findall(r"^FAILED (.*)$", done.stdout, re.MULTILINE)
    assert " passed" in done.stdout, done.stdout + done.stderr
    strange = [name for name in failed if not any(word in name for word in NEEDS_TORCH[suite])]
    assert not strange, done.stdout
    assert len(failed) == len(NEEDS_TORCH[suite]), failed
