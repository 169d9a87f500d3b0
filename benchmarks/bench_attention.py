"""Time and memory of the layer against others that compute the same; that they do is proved first.

    python benchmarks/bench_attention.py [--quick] [--check] [--output FILE] [--notebook FILE]

All contestants hold the same parameters and get the same tokens and lengths; those that want a mask make it
of the lengths, as their users must. A round times each contestant once, in an order that changes from round
to round, so that whatever else the machine does hits all of them. What counts is the ratio of two medians
over the same rounds, with an interval from 1000 bootstrap samples of these rounds. Milliseconds say little:
they belong to the machine that the result file names. One thread on a CPU is measured in processor time,
which does not run while another program has the core; anything else in wall time.
"""

from __future__ import annotations

import argparse
import datetime
import gc
import json
import math
import os
import platform
import resource
import statistics
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

import mha_lib
from mha_lib import MultiHeadAttention, causal_mask

HERE = Path(__file__).resolve().parent
SIZES = (
    (2, 6, 100, 5),
    (8, 64, 128, 4),
    (4, 256, 256, 8),
    (4, 512, 512, 8),
    (1, 2048, 512, 8),
)
COMPILED_SIZES = ((2, 6, 100, 5), (8, 64, 128, 4))
TINY_SIZES = ((2, 6, 20, 5), (3, 16, 8, 2))
FORWARD, BACKWARD = "forward", "forward + backward"
BOOTSTRAP = 1000
PROCESSOR, WALL = "processor time", "wall time"


# --------------------------------------------------------------------------------
# The contestants. Each takes (x, lens), lens or None, and returns (output, weights or None).


class Ours(nn.Module):
    """The layer of the course."""

    def __init__(self, layer: nn.MultiheadAttention, *, need_weights: bool) -> None:
        super().__init__()
        self.layer = MultiHeadAttention.from_torch(layer)
        self.need_weights = need_weights

    def forward(self, x: Tensor, lens: Tensor | None = None) -> tuple[Tensor, Any]:
        """Attend."""
        return self.layer(x, x, x, valid_lens=lens, need_weights=self.need_weights)

    def projections(self) -> list[nn.Linear]:
        """The four projections, for comparing gradients."""
        layer = self.layer
        return [layer.q_proj, layer.k_proj, layer.v_proj, layer.out_proj]


class Torchs(nn.Module):
    """`nn.MultiheadAttention`."""

    def __init__(self, layer: nn.MultiheadAttention, *, need_weights: bool) -> None:
        super().__init__()
        self.layer = layer
        self.need_weights = need_weights

    def forward(self, x: Tensor, lens: Tensor | None = None) -> tuple[Tensor, Any]:
        """Attend."""
        hidden = None if lens is None else ~visible_keys(lens, x.shape[1])
        return self.layer(
            x,
            x,
            x,
            key_padding_mask=hidden,
            need_weights=self.need_weights,
            average_attn_weights=False,
        )


class Plain(nn.Module):
    """Four linear layers, without checks; what happens between them is up to the subclass."""

    def __init__(self, layer: nn.MultiheadAttention) -> None:
        super().__init__()
        copy = MultiHeadAttention.from_torch(layer)
        self.num_heads = layer.num_heads
        self.q, self.k, self.v = copy.q_proj, copy.k_proj, copy.v_proj
        self.out = copy.out_proj

    def projections(self) -> list[nn.Linear]:
        """The four projections, for comparing gradients."""
        return [self.q, self.k, self.v, self.out]


class Fused(Plain):
    """`F.scaled_dot_product_attention` between four linear layers: the least that a layer can do."""

    def forward(self, x: Tensor, lens: Tensor | None = None) -> tuple[Tensor, None]:
        """Attend."""
        query, key, value = (
            proj(x).unflatten(-1, (self.num_heads, -1)).transpose(1, 2)
            for proj in (self.q, self.k, self.v)
        )
        mask = None if lens is None else visible_keys(lens, x.shape[1])[:, None, None]
        heads = F.scaled_dot_product_attention(query, key, value, attn_mask=mask)
        return self.out(heads.transpose(1, 2).flatten(2)), None


class Folded(Plain):
    """The classic formulation: heads join the batch axis, lengths are repeated for them, weights exist."""

    def forward(self, x: Tensor, lens: Tensor | None = None) -> tuple[Tensor, Tensor]:
        """Attend."""
        batch, length, width = x.shape
        heads, head_dim = self.num_heads, width // self.num_heads
        query, key, value = (
            proj(x)
            .reshape(batch, length, heads, head_dim)
            .permute(0, 2, 1, 3)
            .reshape(batch * heads, length, head_dim)
            for proj in (self.q, self.k, self.v)
        )
        scores = torch.bmm(query, key.transpose(1, 2)) / math.sqrt(head_dim)
        if lens is not None:
            repeated = lens.repeat_interleave(heads)
            scores = scores.masked_fill(~visible_keys(repeated, length)[:, None], -1e6)
        weights = scores.softmax(-1)
        pooled = torch.bmm(weights, value).reshape(batch, heads, length, head_dim)
        output = self.out(pooled.permute(0, 2, 1, 3).reshape(batch, length, width))
        return output, weights.view(batch, heads, length, length)


def visible_keys(lens: Tensor, length: int) -> Tensor:
    """Lengths (batch,) as a mask (batch, length), True = visible."""
    return torch.arange(length, device=lens.device) < lens[:, None]


OURS, OURS_WEIGHTS = "mha_lib", "mha_lib, weights"
TORCH, TORCH_WEIGHTS = "nn.MultiheadAttention", "nn.MultiheadAttention, weights"
FUSED, FOLDED = "scaled_dot_product_attention", "heads in the batch"
CONTESTANTS: dict[str, Callable[[nn.MultiheadAttention], nn.Module]] = {
    OURS: lambda layer: Ours(layer, need_weights=False),
    OURS_WEIGHTS: lambda layer: Ours(layer, need_weights=True),
    TORCH: lambda layer: Torchs(layer, need_weights=False),
    TORCH_WEIGHTS: lambda layer: Torchs(layer, need_weights=True),
    FUSED: Fused,
    FOLDED: Folded,
}
# Which ratios are reported, and how large each may be; the last has a target at length 2048 only.
PAIRS: dict[tuple[str, str], float | None] = {
    (OURS, TORCH): 1.0,
    (OURS, FUSED): None,
    (OURS, FOLDED): 0.5,
    (OURS_WEIGHTS, TORCH_WEIGHTS): 1.0,
    (OURS_WEIGHTS, FOLDED): None,
}


def torch_layer(embed_dim: int, num_heads: int, device: str) -> nn.MultiheadAttention:
    """The layer whose parameters all contestants get, with biases that are not zero."""
    torch.manual_seed(0)
    layer = nn.MultiheadAttention(embed_dim, num_heads, batch_first=True)
    with torch.no_grad():
        layer.in_proj_bias.normal_(std=0.1)
        layer.out_proj.bias.normal_(std=0.1)
    return layer.to(device)


def tokens(
    batch: int, length: int, width: int, padding: bool, device: str
) -> tuple[Tensor, Tensor | None]:
    """Random tokens, and with padding lengths from half to the whole."""
    generator = torch.Generator().manual_seed(1)
    x = torch.randn(batch, length, width, generator=generator).to(device)
    if not padding:
        return x, None
    lens = torch.linspace(length // 2, length, batch + 1)[:batch].ceil().long()
    return x, lens.to(device)


# --------------------------------------------------------------------------------
# Equality, before anything is timed


class NotEqualError(AssertionError):
    """Two contestants do not compute the same, so comparing their speed would say nothing."""


def prove_equal(
    contestants: dict[str, nn.Module],
    x: Tensor,
    lens: Tensor | None,
    *,
    tolerance: float = 2e-4,
) -> float:
    """Compare outputs, weights and gradients of all contestants with those of the first.

    Returns:
        The largest difference found, relative to the largest number compared.

    Raises:
        NotEqualError: one differs by more than `tolerance`.
    """
    upstream = torch.randn(x.shape, generator=torch.Generator().manual_seed(2)).to(x)
    largest = 0.0
    reference: dict[str, Tensor] = {}
    for name, module in contestants.items():
        found = outcome(module, x, lens, upstream)
        for what, tensor in found.items():
            expected = reference.setdefault(what, tensor)
            if tensor.shape != expected.shape:
                raise NotEqualError(
                    f"{name}: {what} has shape {tuple(tensor.shape)}, not {tuple(expected.shape)}"
                )
            # The key bias adds the same to every score of a row, which the softmax does not
            # see: its gradient is zero but for rounding, and is measured on its neighbour's.
            scale = reference[what.replace("k bias", "k weight")].abs().max()
            difference = ((tensor - expected).abs().max() / scale).item()
            # NaN compares false with everything, so ask for what must hold.
            if not difference <= tolerance:
                raise NotEqualError(f"{name}: {what} differs by {difference:.1e}")
            largest = max(largest, difference)
    return largest


def outcome(
    module: nn.Module, x: Tensor, lens: Tensor | None, upstream: Tensor
) -> dict[str, Tensor]:
    """All that a contestant computes: with and without grad, and every gradient."""
    found = {}
    module.eval()
    with torch.no_grad():
        output, weights = module(x, lens)
    found["output"] = output
    if weights is not None:
        found["weights"] = weights
    module.train()
    x = x.detach().requires_grad_()
    output, weights = module(x, lens)
    names, parameters = zip(*module.named_parameters(), strict=True)
    grads = torch.autograd.grad(output, (x, *parameters), upstream)
    found["output in training"] = output.detach()
    if weights is not None:
        found["weights in training"] = weights.detach()
    found["gradient of x"] = grads[0]
    found |= in_one_form(dict(zip(names, grads[1:], strict=True)))
    return found


def in_one_form(grads: dict[str, Tensor]) -> dict[str, Tensor]:
    """Gradients of parameters under the names q, k, v, out, whatever the module calls them."""
    found = {}
    for name, grad in grads.items():
        kind = "bias" if name.endswith("bias") else "weight"
        if "in_proj" in name:  # torch's layer stacks the three
            parts: Sequence[Tensor] = grad.chunk(3)
            owners = ["q", "k", "v"]
        else:
            parts = [grad]
            owners = [name.split(".")[-2].removesuffix("_proj")]
        for owner, part in zip(owners, parts, strict=True):
            found[f"gradient of {owner} {kind}"] = part
    return found


# --------------------------------------------------------------------------------
# Time


def forward_call(
    module: nn.Module, x: Tensor, lens: Tensor | None
) -> Callable[[], Any]:
    """Forward as in use: eval, no gradients."""
    module.eval()

    def call() -> Any:
        with torch.no_grad():
            return module(x, lens)

    return call


def backward_call(
    module: nn.Module, x: Tensor, lens: Tensor | None
) -> Callable[[], Any]:
    """Forward and backward as in training: gradients of the tokens and of every parameter."""
    module.train()
    x = x.detach().requires_grad_()
    upstream = torch.ones_like(x)
    inputs = (x, *module.parameters())

    def call() -> Any:
        output, _ = module(x, lens)
        return torch.autograd.grad(output, inputs, upstream)

    return call


def synchronise(device: str) -> None:
    """Wait until the device has done what it was told."""
    if device == "cuda":
        torch.cuda.synchronize()


def rounds_of(
    calls: dict[str, Callable[[], Any]],
    *,
    device: str,
    seconds: float,
    least: int,
    most: int = 400,
    shortest: float = 2e-3,
) -> dict[str, list[float]]:
    """Time each call once a round until `seconds` are over: milliseconds a call, one number a round.

    A call too short for the clock is repeated within its turn until that takes `shortest` seconds.
    """
    names = list(calls)
    repeats = {}
    for name, call in calls.items():
        call()
        once = timed(call, 1, device)
        if once < shortest:  # the very first calls of short ones are not typical yet
            once = min(timed(call, 1, device) for _ in range(5))
        repeats[name] = max(1, math.ceil(shortest / max(once, 1e-9)))
    found: dict[str, list[float]] = {name: [] for name in names}
    collecting = gc.isenabled()
    gc.collect()
    gc.disable()
    try:
        start = time.perf_counter()
        for number in range(most):
            if number >= least and time.perf_counter() - start > seconds:
                break
            # Each contestant comes first, second, ... equally often, and after each other one.
            turn = number % len(names)
            order = names[turn:] + names[:turn]
            for name in order[:: -1 if number // len(names) % 2 else 1]:
                spent = timed(calls[name], repeats[name], device)
                found[name].append(1e3 * spent / repeats[name])
    finally:
        if collecting:
            gc.enable()
    return found


def timed(call: Callable[[], Any], repeats: int, device: str) -> float:
    """Seconds that `repeats` calls take."""
    clock = time.process_time if clock_name(device) == PROCESSOR else time.perf_counter
    synchronise(device)
    start = clock()
    for _ in range(repeats):
        call()
    synchronise(device)
    return clock() - start


def clock_name(device: str) -> str:
    """Which time is measured."""
    return PROCESSOR if device == "cpu" and torch.get_num_threads() == 1 else WALL


def ratio_of_medians(
    rounds: dict[str, list[float]], above: str, below: str
) -> dict[str, float]:
    """Median over median, with an interval of 95 % from bootstrap samples of whole rounds."""
    top, bottom = (
        torch.tensor(rounds[name], dtype=torch.float64) for name in (above, below)
    )
    generator = torch.Generator().manual_seed(3)
    picked = torch.randint(len(top), (BOOTSTRAP, len(top)), generator=generator)
    # torch's median takes the lower of two middle values; quantile takes their mean.
    samples = top[picked].quantile(0.5, dim=1) / bottom[picked].quantile(0.5, dim=1)
    low, high = samples.quantile(
        torch.tensor([0.025, 0.975], dtype=torch.float64)
    ).tolist()
    return {
        "ratio": round(
            statistics.median(rounds[above]) / statistics.median(rounds[below]), 3
        ),
        "low": round(low, 3),
        "high": round(high, 3),
    }


def time_layers(
    sizes: Sequence[tuple[int, int, int, int]],
    *,
    device: str,
    compiled: bool,
    seconds: float,
    least: int,
    contestants: dict[str, Callable[[nn.MultiheadAttention], nn.Module]] = CONTESTANTS,
) -> Iterator[dict[str, Any]]:
    """Time all contestants for every size, with and without padding, forward and with backward."""
    for batch, length, width, heads in sizes:
        for padding in (False, True):
            x, lens = tokens(batch, length, width, padding, device)
            modules = {
                name: make(torch_layer(width, heads, device))
                for name, make in contestants.items()
            }
            if compiled:
                torch._dynamo.reset()
                modules |= {
                    f"{name}, compiled": torch.compile(module)
                    for name, module in modules.items()
                }
            difference = prove_equal(modules, x, lens)
            for direction, prepare in (
                (FORWARD, forward_call),
                (BACKWARD, backward_call),
            ):
                calls = {
                    name: prepare(module, x, lens) for name, module in modules.items()
                }
                rounds = rounds_of(calls, device=device, seconds=seconds, least=least)
                yield {
                    "device": device,
                    "batch": batch,
                    "len": length,
                    "embed_dim": width,
                    "num_heads": heads,
                    "padding": padding,
                    "direction": direction,
                    "rounds": len(rounds[OURS]),
                    "difference": float(f"{difference:.1e}"),
                    "ms": {
                        name: rounded(statistics.median(t))
                        for name, t in rounds.items()
                    },
                    "ratios": ratios(rounds, compiled=compiled),
                }


def ratios(rounds: dict[str, list[float]], *, compiled: bool) -> list[dict[str, Any]]:
    """The ratios that are reported, of those contestants that ran."""
    pairs = list(PAIRS)
    if compiled:
        pairs = [(f"{a}, compiled", f"{b}, compiled") for a, b in PAIRS]
        pairs += [(f"{OURS}, compiled", OURS)]
    return [
        {"of": above, "to": below} | ratio_of_medians(rounds, above, below)
        for above, below in pairs
        if above in rounds and below in rounds
    ]


def rounded(number: float, digits: int = 4) -> float:
    """A measured number without digits that mean nothing."""
    return float(f"{number:.{digits}g}")


# --------------------------------------------------------------------------------
# Memory at a length where len² hurts, each case in a process of its own


class LargestTensor(TorchDispatchMode):
    """Remembers the number of elements of the largest storage that any operation returned."""

    def __init__(self) -> None:
        super().__init__()
        self.numbers = 0

    def __torch_dispatch__(
        self, func: Any, types: Any, args: Any = (), kwargs: Any = None
    ) -> Any:
        """Run the operation, look at what it returns. An expanded view is as large as its storage."""
        result = func(*args, **(kwargs or {}))
        for leaf in tree_leaves(result):
            if isinstance(leaf, Tensor):
                stored = leaf.untyped_storage().nbytes() // leaf.element_size()
                self.numbers = max(self.numbers, stored)
        return result


MEMORY_MASKS = ("none", "padding", "causal", "causal + padding")


def attend_masked(
    contestant: str, module: nn.Module, x: Tensor, lens: Tensor, mask: str
) -> Tensor:
    """Run a contestant with one of `MEMORY_MASKS`, in the way its users would."""
    lens_or_none = lens if "padding" in mask else None
    if "causal" not in mask:
        return module(x, lens_or_none)[0]
    if contestant in (OURS, OURS_WEIGHTS):
        assert isinstance(module, Ours)
        output, _ = module.layer(
            x,
            x,
            x,
            valid_lens=lens_or_none,
            is_causal=True,
            need_weights=module.need_weights,
        )
        return output
    assert isinstance(module, Torchs)
    length = x.shape[1]
    output, _ = module.layer(
        x,
        x,
        x,
        # This layer wants the mask even where is_causal says it all.
        attn_mask=~causal_mask(length, device=x.device),
        is_causal=True,
        key_padding_mask=None if lens_or_none is None else ~visible_keys(lens, length),
        need_weights=module.need_weights,
        average_attn_weights=False,
    )
    return output


def measure_memory(
    contestant: str, mask: str, direction: str, size: Sequence[int], device: str
) -> dict[str, Any]:
    """Peak memory above what was there before, and the largest tensor seen. Meant for a fresh process."""
    batch, length, width, heads = size
    module = CONTESTANTS[contestant](torch_layer(width, heads, device))
    x, lens = tokens(batch, length, width, True, device)
    short, few = tokens(batch, length // 8, width, True, device)
    assert lens is not None
    assert few is not None

    def call(x: Tensor, lens: Tensor) -> None:
        if direction == FORWARD:
            module.eval()
            with torch.no_grad():
                attend_masked(contestant, module, x, lens, mask)
        else:
            module.train()
            output = attend_masked(contestant, module, x.requires_grad_(), lens, mask)
            torch.autograd.grad(
                output, (x, *module.parameters()), torch.ones_like(output)
            )

    with LargestTensor():
        call(short, few)  # what is loaded once does not count
    before = peak_bytes(device, reset=True)
    with LargestTensor() as largest:
        call(x, lens)
    grown = peak_bytes(device) - before
    return {
        "contestant": contestant,
        "mask": mask,
        "direction": direction,
        "device": device,
        "len": length,
        "embed_dim": width,
        "num_heads": heads,
        "megabytes": rounded(grown / 2**20),
        "largest_tensor": largest.numbers,
    }


def peak_bytes(device: str, *, reset: bool = False) -> int:
    """Highest memory so far: of the process, or of tensors on a GPU, there since the last reset."""
    if device == "cuda":
        if reset:
            torch.cuda.reset_peak_memory_stats()
        return torch.cuda.max_memory_allocated()
    try:
        # Not getrusage: a process inherits the peak of the one that started it.
        status = Path("/proc/self/status").read_text(encoding="utf-8")
    except OSError:
        peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
        return peak if sys.platform == "darwin" else 1024 * peak
    [line] = [line for line in status.splitlines() if line.startswith("VmHWM:")]
    return 1024 * int(line.split()[1])


def memory_cases() -> Iterator[tuple[str, str, str]]:
    """Contestant, mask, direction: ours under every mask, the others where they are wanted beside it."""
    masks = dict.fromkeys(CONTESTANTS, ("none",)) | {
        OURS: MEMORY_MASKS,
        TORCH: ("none", "padding", "causal"),
    }
    for contestant, chosen in masks.items():
        for mask in chosen:
            for direction in (FORWARD, BACKWARD):
                yield contestant, mask, direction


def memory_row(
    case: tuple[str, str, str], *, size: Sequence[int], device: str
) -> dict[str, Any]:
    """Measure one case in a fresh process, whose peak nothing else has touched."""
    done = subprocess.run(
        [sys.executable, __file__, "--memory", json.dumps([*case, size, device])],
        capture_output=True,
        text=True,
        check=False,
    )
    if done.returncode:
        raise RuntimeError(f"{case} failed:\n{done.stderr}")
    row: dict[str, Any] = json.loads(done.stdout)
    return row


# --------------------------------------------------------------------------------
# Decoding: one token after another


def decoders(
    layer: MultiHeadAttention, shared: MultiHeadAttention, x: Tensor
) -> dict[str, Callable[[], Tensor]]:
    """Ways to compute a causal layer token by token; each returns the outputs of all tokens.

    `layer` has a key head for each query head, `shared` one for all. The last way writes into a buffer that
    was made large enough at the start: the least that decoding can cost.
    """
    length = x.shape[1]

    def run_again() -> Tensor:
        outputs = []
        for end in range(1, length + 1):
            seen = x[:, :end]
            output, _ = layer(seen, seen, seen, is_causal=True, need_weights=False)
            outputs.append(output[:, -1:])
        return torch.cat(outputs, dim=1)

    def last_query() -> Tensor:
        outputs = []
        for end in range(1, length + 1):
            seen = x[:, :end]
            outputs.append(layer(seen[:, -1:], seen, seen, need_weights=False)[0])
        return torch.cat(outputs, dim=1)

    def with_cache(layer: MultiHeadAttention) -> Tensor:
        cache = mha_lib.KeyValueCache()
        outputs = []
        for token in x.split(1, dim=1):
            output, _ = layer(
                token, token, token, is_causal=True, cache=cache, need_weights=False
            )
            outputs.append(output)
        return torch.cat(outputs, dim=1)

    def with_buffer() -> Tensor:
        shape = (x.shape[0], layer.num_kv_heads, length, layer.head_dim)
        keys, values = x.new_empty(shape), x.new_empty(shape)
        outputs = []
        for at, token in enumerate(x.split(1, dim=1)):
            keys[:, :, at : at + 1] = layer.split_heads(layer.k_proj(token))
            values[:, :, at : at + 1] = layer.split_heads(layer.v_proj(token))
            heads = F.scaled_dot_product_attention(
                layer.split_heads(layer.q_proj(token)),
                keys[:, :, : at + 1],
                values[:, :, : at + 1],
            )
            outputs.append(layer.out_proj(layer.merge_heads(heads)))
        return torch.cat(outputs, dim=1)

    return {
        "everything again": run_again,
        "last query, keys again": last_query,
        "KeyValueCache": lambda: with_cache(layer),
        "KeyValueCache, one key head": lambda: with_cache(shared),
        "a buffer by hand": with_buffer,
    }


def time_decoding(
    length: int, width: int, heads: int, *, device: str, seconds: float, least: int
) -> dict[str, Any]:
    """Time the ways to decode, after all have given what the layer gives at once."""
    torch.manual_seed(0)
    layer = MultiHeadAttention(width, heads).to(device).eval()
    shared = MultiHeadAttention(width, heads, num_kv_heads=1).to(device).eval()
    x, _ = tokens(1, length, width, False, device)
    with torch.no_grad():
        ways = decoders(layer, shared, x)
        for name, way in ways.items():
            model = shared if "one key head" in name else layer
            expected, _ = model(x, x, x, is_causal=True, need_weights=False)
            difference = ((way() - expected).abs().max() / expected.abs().max()).item()
            if not difference <= 2e-4:
                raise NotEqualError(f"{name}: decoding differs by {difference:.1e}")
        rounds = rounds_of(ways, device=device, seconds=seconds, least=least)
    return {
        "device": device,
        "len": length,
        "embed_dim": width,
        "num_heads": heads,
        "rounds": len(rounds["KeyValueCache"]),
        "ms": {name: rounded(statistics.median(t)) for name, t in rounds.items()},
        "ratios": [
            {"of": name, "to": "KeyValueCache"}
            | ratio_of_medians(rounds, name, "KeyValueCache")
            for name in rounds
            if name != "KeyValueCache"
        ],
    }


# --------------------------------------------------------------------------------
# Targets, and what is printed and stored


def judge(results: dict[str, Any]) -> list[dict[str, Any]]:
    """Hold every ratio and every large tensor against its target.

    A ratio is "met" at or below the target, else "missed"; where its interval holds the target, "level" says
    that these rounds cannot tell.
    """
    found = []
    for row in results["layers"]:
        for ratio in row["ratios"]:
            target = PAIRS.get((ratio["of"], ratio["to"]))
            if target is None or (ratio["to"] == FOLDED and row["len"] < 2048):
                continue
            verdict = "met" if ratio["ratio"] <= target else "missed"
            if ratio["low"] <= target < ratio["high"]:
                verdict = "level"
            found.append(
                {
                    "what": f"{ratio['of']} / {ratio['to']}, {size_text(row)}",
                    "value": ratio["ratio"],
                    "target": target,
                    "verdict": verdict,
                }
            )
    for row in results["memory"]:
        if row["contestant"] == OURS and row["mask"] != "causal + padding":
            most = row["len"] ** 2 // 2
            found.append(
                {
                    "what": f"largest tensor, {row['device']}, mask: {row['mask']}, {row['direction']}",
                    "value": row["largest_tensor"],
                    "target": most,
                    "verdict": "met" if row["largest_tensor"] <= most else "missed",
                }
            )
    return found


def size_text(row: dict[str, Any]) -> str:
    """A row's size in a few words."""
    size = f"{row['batch']}×{row['len']}×{row['embed_dim']}, {row['num_heads']} heads"
    padding = "padding" if row["padding"] else "no padding"
    return f"{row['device']}, {size}, {padding}, {row['direction']}"


def machine(threads: int) -> dict[str, Any]:
    """What the numbers belong to: processor and versions, no name of the machine."""
    processor = platform.processor() or platform.machine()
    try:
        for line in Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines():
            if line.startswith("model name"):
                processor = line.split(":", 1)[1].strip()
                break
    except OSError:
        pass
    return {
        "processor": processor,
        "instructions": torch.backends.cpu.get_cpu_capability(),
        "cores": os.cpu_count(),
        "threads": threads,
        "clock": clock_name("cpu"),
        "gpu": torch.cuda.get_device_name() if torch.cuda.is_available() else None,
        "system": platform.system(),
        "python": platform.python_version(),
        "torch": torch.__version__,
        "mha_lib": mha_lib.__version__,
        "date": datetime.datetime.now(datetime.UTC).date().isoformat(),
    }


def measure(options: argparse.Namespace) -> dict[str, Any]:
    """Measure everything and return what is stored."""
    quick = options.quick
    sizes = TINY_SIZES if quick else SIZES
    pace = {"seconds": 0.0 if quick else options.seconds, "least": 1 if quick else 7}
    results: dict[str, Any] = {
        "machine": machine(torch.get_num_threads()),
        "layers": [],
    }
    results |= {"compiled": [], "memory": [], "decoding": []}
    devices = ["cpu"] + (["cuda"] if torch.cuda.is_available() else [])
    for device in devices:
        for row in time_layers(sizes, device=device, compiled=False, **pace):
            results["layers"].append(row)
            report(row)
        length, width, heads = (16, 8, 2) if quick else (512, 512, 8)
        row = time_decoding(length, width, heads, device=device, **pace)
        results["decoding"].append(row)
        report(row)
        memory_size = (1, 256, 16, 2) if quick else (1, 8192, 128, 2)
        cases = list(memory_cases())[: 2 if quick else None]
        # Two at a time: what they do to each other's time is of no interest here.
        with ThreadPoolExecutor(2) as pool:
            measure_case = partial(memory_row, size=memory_size, device=device)
            for row in pool.map(measure_case, cases):
                results["memory"].append(row)
                print(json.dumps(row, ensure_ascii=False), flush=True)
        if not options.no_compile and not quick:
            results["compiled"] += compiled_rows(device, pace)
    results["targets"] = judge(results)
    return results


def compiled_rows(device: str, pace: dict[str, Any]) -> list[dict[str, Any]]:
    """Time compiled layers too, where a compiler can be had."""
    some = {
        name: CONTESTANTS[name] for name in (OURS, OURS_WEIGHTS, TORCH, FUSED, FOLDED)
    }
    found = []
    try:
        for row in time_layers(
            COMPILED_SIZES, device=device, compiled=True, contestants=some, **pace
        ):
            report(row)
            found.append(row)
    except torch._dynamo.exc.BackendCompilerFailed as error:
        print(f"no compiler, so nothing compiled is timed: {error}", flush=True)
        return []
    return found


def report(row: dict[str, Any]) -> None:
    """Print a row while the others still run."""
    about = (
        size_text(row) if "batch" in row else f"{row['device']}, decoding {row['len']}"
    )
    print(f"\n{about}: {row['rounds']} rounds", flush=True)
    for name, ms in row["ms"].items():
        print(f"  {name:42s} {ms:10.4g} ms")
    for ratio in row["ratios"]:
        interval = f"{ratio['low']:.2f} to {ratio['high']:.2f}"
        print(f"  {ratio['of']} / {ratio['to']}: {ratio['ratio']:.2f} ({interval})")


def stored(results: dict[str, Any]) -> str:
    """Results as JSON, one measurement a line, so that a diff shows what changed."""
    parts = []
    for name, value in results.items():
        if isinstance(value, list):
            rows = ",\n".join(
                "    " + json.dumps(row, ensure_ascii=False) for row in value
            )
            parts.append(f'  "{name}": [\n{rows}\n  ]' if value else f'  "{name}": []')
        else:
            parts.append(f'  "{name}": {json.dumps(value, ensure_ascii=False)}')
    return "{\n" + ",\n".join(parts) + "\n}\n"


def results_cell(results: dict[str, Any]) -> str:
    """Source of the cell that carries the results into a chapter, which must run without this repository."""
    return (
        "# `make bench` writes this cell from benchmarks/results.json. Do not edit it.\n"
        f'RESULTS = json.loads("""\n{stored(results).rstrip()}\n""")  # noqa: E501'
    )


def write_cell(path: Path, results: dict[str, Any]) -> None:
    """Put the results into the cell named "results" of a notebook."""
    import nbformat

    notebook = nbformat.read(path, as_version=4)
    [cell] = [cell for cell in notebook.cells if cell.id == "results"]
    cell.source = results_cell(results)
    nbformat.write(notebook, path)


def main(arguments: Sequence[str] | None = None) -> int:
    """Run from the command line; with --check the exit status is 1 if a target was missed."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument(
        "--quick", action="store_true", help="tiny sizes, one round: does it run?"
    )
    parser.add_argument(
        "--check", action="store_true", help="exit with 1 if a target is missed"
    )
    parser.add_argument(
        "--no-compile", action="store_true", help="leave out torch.compile"
    )
    parser.add_argument(
        "--seconds", type=float, default=4.0, help="of rounds for each row"
    )
    parser.add_argument(
        "--threads", type=int, default=1, help="of the CPU; 1 is the steadiest"
    )
    parser.add_argument(
        "--output", type=Path, help="where the results go, default: nowhere"
    )
    parser.add_argument(
        "--notebook", type=Path, help="whose results cell is written too"
    )
    parser.add_argument("--memory", type=json.loads, help=argparse.SUPPRESS)
    options = parser.parse_args(arguments)
    torch.set_num_threads(options.threads)
    if options.memory:
        print(json.dumps(measure_memory(*options.memory), ensure_ascii=False))
        return 0
    started = time.perf_counter()
    results = measure(options)
    missed = [target for target in results["targets"] if target["verdict"] == "missed"]
    print()
    for target in results["targets"]:
        mark = {"met": "✓", "level": "≈", "missed": "✗"}[target["verdict"]]
        print(
            f"{mark} {target['what']}: {target['value']} (target: at most {target['target']})"
        )
    print(f"{len(missed)} of {len(results['targets'])} targets missed", end=", ")
    print(f"{time.perf_counter() - started:.0f} s")
    if options.output:
        text = stored(results)
        json.loads(text)
        options.output.write_text(text, encoding="utf-8")
    if options.notebook:
        write_cell(options.notebook, results)
    return int(options.check and bool(missed))


if __name__ == "__main__":
    sys.exit(main())
