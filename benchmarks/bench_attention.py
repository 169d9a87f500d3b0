"""Time and memory of the layer against others that compute the same; that they do is proved first.

    python benchmarks/bench_attention.py [--quick] [--output FILE] [--notebook FILE]

All contestants hold the same parameters and get the same tokens and lengths; those that want a mask make it
of the lengths, as their users must. How ratios are measured, rounds.py says. Milliseconds say little: they
belong to the machine that the result file names. A CPU runs one thread and is measured in processor time,
which does not run while another program has the core; a GPU is measured in wall time.
"""

from __future__ import annotations

import argparse
import datetime
import json
import math
import os
import platform
import resource
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
from rounds import medians, processor, ratio_of_medians, rounded, rounds_of, write_cell
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


# --------------------------------------------------------------------------------
# The contestants. Each takes (x, lens), lens or None, and returns (output, weights or None).


class Ours(nn.Module):
    """The layer of the course."""

    def __init__(self, layer: nn.MultiheadAttention, *, need_weights: bool) -> None:
        super().__init__()
        self.layer = MultiHeadAttention.from_torch(layer)
        self.need_weights = need_weights

    def forward(
        self, x: Tensor, lens: Tensor | None = None, causal: bool = False
    ) -> tuple[Tensor, Any]:
        """Attend."""
        options = {"is_causal": causal, "need_weights": self.need_weights}
        return self.layer(x, x, x, valid_lens=lens, **options)


class Torchs(nn.Module):
    """`nn.MultiheadAttention`."""

    def __init__(self, layer: nn.MultiheadAttention, *, need_weights: bool) -> None:
        super().__init__()
        self.layer = layer
        self.need_weights = need_weights

    def forward(
        self, x: Tensor, lens: Tensor | None = None, causal: bool = False
    ) -> tuple[Tensor, Any]:
        """Attend. This layer wants the mask even where is_causal says it all."""
        length = x.shape[1]
        return self.layer(
            x,
            x,
            x,
            attn_mask=~causal_mask(length, device=x.device) if causal else None,
            is_causal=causal,
            key_padding_mask=None if lens is None else ~visible_keys(lens, length),
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
# Which ratios are reported.
PAIRS = (
    (OURS, TORCH),
    (OURS, FUSED),
    (OURS, FOLDED),
    (OURS_WEIGHTS, TORCH_WEIGHTS),
    (OURS_WEIGHTS, FOLDED),
)


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
    # Not all the same: a layer norm at the end would let no gradient of ones through.
    upstream = torch.ones_like(x).cumsum(-1) / x.shape[-1]
    inputs = (x, *module.parameters())

    def call() -> Any:
        output, _ = module(x, lens)
        return torch.autograd.grad(output, inputs, upstream)

    return call


def clock_of(device: str) -> Callable[[], float]:
    """The clock for a device: on a GPU it waits until that has done what it was told."""
    if device == "cpu":
        return time.process_time

    def after_the_device() -> float:
        torch.cuda.synchronize()
        return time.perf_counter()

    return after_the_device


def time_layers(
    sizes: Sequence[tuple[int, int, int, int]],
    *,
    device: str,
    compiled: bool,
    seconds: float,
    least: int,
) -> Iterator[dict[str, Any]]:
    """Time all contestants for every size, with and without padding, forward and with backward."""
    for batch, length, width, heads in sizes:
        for padding in (False, True):
            x, lens = tokens(batch, length, width, padding, device)
            modules = {
                name: make(torch_layer(width, heads, device))
                for name, make in CONTESTANTS.items()
                if not (compiled and name == TORCH_WEIGHTS)
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
                rounds = rounds_of(
                    calls, clock=clock_of(device), seconds=seconds, least=least
                )
                row = {
                    "device": device,
                    "batch": batch,
                    "len": length,
                    "embed_dim": width,
                    "num_heads": heads,
                    "padding": padding,
                    "direction": direction,
                    "rounds": len(rounds[OURS]),
                    "difference": float(f"{difference:.1e}"),
                    "ms": medians(rounds),
                    "ratios": ratios(rounds, compiled=compiled),
                }
                report(row)
                yield row


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


def measure_memory(
    contestant: str, mask: str, direction: str, size: Sequence[int], device: str
) -> dict[str, Any]:
    """Peak memory above what was there before, and the largest tensor seen. Meant for a fresh process."""
    batch, length, width, heads = size
    module = CONTESTANTS[contestant](torch_layer(width, heads, device))
    causal = {"causal": True} if "causal" in mask else {}

    few, all_of_them = (
        tokens(batch, n, width, "padding" in mask, device)
        for n in (length // 8, length)
    )

    def call(x: Tensor, lens: Tensor | None) -> None:
        module.train(direction == BACKWARD)
        if direction == FORWARD:
            with torch.no_grad():
                module(x, lens, **causal)
        else:
            output, _ = module(x.requires_grad_(), lens, **causal)
            inputs = (x, *module.parameters())
            torch.autograd.grad(output, inputs, torch.ones_like(output))

    with LargestTensor():
        call(*few)  # what is loaded once does not count
    before = peak_bytes(device, reset=True)
    with LargestTensor() as largest:
        call(*all_of_them)
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

    def each(step: Callable[[int, Tensor], Tensor]) -> Tensor:
        """The outputs of a step that gets the number of a token, and the token."""
        return torch.cat([step(*pair) for pair in enumerate(x.split(1, 1))], dim=1)

    def run_again(at: int, _: Tensor) -> Tensor:
        seen = x[:, : at + 1]
        return layer(seen, seen, seen, is_causal=True, need_weights=False)[0][:, -1:]

    def last_query(at: int, token: Tensor) -> Tensor:
        seen = x[:, : at + 1]
        return layer(token, seen, seen, need_weights=False)[0]

    def with_cache(layer: MultiHeadAttention) -> Tensor:
        options = {"is_causal": True, "cache": mha_lib.KeyValueCache()}
        options["need_weights"] = False
        return each(lambda _, token: layer(token, token, token, **options)[0])

    def with_buffer() -> Tensor:
        shape = (x.shape[0], layer.num_kv_heads, length, layer.head_dim)
        keys, values = x.new_empty(shape), x.new_empty(shape)

        def step(at: int, token: Tensor) -> Tensor:
            keys[:, :, at : at + 1] = layer.split_heads(layer.k_proj(token))
            values[:, :, at : at + 1] = layer.split_heads(layer.v_proj(token))
            query = layer.split_heads(layer.q_proj(token))
            seen = keys[:, :, : at + 1], values[:, :, : at + 1]
            heads = F.scaled_dot_product_attention(query, *seen)
            return layer.out_proj(layer.merge_heads(heads))

        return each(step)

    return {
        "everything again": lambda: each(run_again),
        "last query, keys again": lambda: each(last_query),
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
        rounds = rounds_of(ways, clock=clock_of(device), seconds=seconds, least=least)
    return {
        "device": device,
        "len": length,
        "embed_dim": width,
        "num_heads": heads,
        "rounds": len(rounds["KeyValueCache"]),
        "ms": medians(rounds),
        "ratios": [
            {"of": name, "to": "KeyValueCache"}
            | ratio_of_medians(rounds, name, "KeyValueCache")
            for name in rounds
            if name != "KeyValueCache"
        ],
    }


# --------------------------------------------------------------------------------
# What is printed and stored


def machine() -> dict[str, Any]:
    """What the numbers belong to: processor and versions, no name of the machine."""
    return {
        "processor": processor(),
        "instructions": torch.backends.cpu.get_cpu_capability(),
        "cores": os.cpu_count(),
        "threads": 1,
        "clock": "processor time",
        "gpu": torch.cuda.get_device_name() if torch.cuda.is_available() else None,
        "system": platform.system(),
        "python": platform.python_version(),
        "torch": torch.__version__,
        "mha_lib": mha_lib.__version__,
        "date": datetime.datetime.now(datetime.UTC).date().isoformat(),
    }


def measure(quick: bool) -> dict[str, Any]:
    """Measure everything and return what is stored."""
    pace = {"seconds": 0.0, "least": 1} if quick else {"seconds": 4.0, "least": 7}
    length, width, heads = (16, 8, 2) if quick else (512, 512, 8)
    memory_size = (1, 256, 16, 2) if quick else (1, 8192, 128, 2)
    results: dict[str, Any] = {"machine": machine()}
    results |= {"layers": [], "compiled": [], "memory": [], "decoding": []}
    for device in ["cpu"] + ["cuda"] * torch.cuda.is_available():
        sizes = TINY_SIZES if quick else SIZES
        results["layers"] += time_layers(sizes, device=device, compiled=False, **pace)
        row = time_decoding(length, width, heads, device=device, **pace)
        results["decoding"].append(row)
        report(row)
        # Two at a time: what they do to each other's time is of no interest here.
        with ThreadPoolExecutor(2) as pool:
            measure_case = partial(memory_row, size=memory_size, device=device)
            cases = list(memory_cases())[: 2 if quick else None]
            results["memory"] += pool.map(measure_case, cases)
        if not quick:
            results["compiled"] += compiled_rows(device, pace)
    return results


def compiled_rows(device: str, pace: dict[str, Any]) -> list[dict[str, Any]]:
    """Time compiled layers too, where a compiler can be had."""
    try:
        return list(time_layers(COMPILED_SIZES, device=device, compiled=True, **pace))
    except torch._dynamo.exc.BackendCompilerFailed as error:
        print(f"no compiler, so nothing compiled is timed: {error}", flush=True)
        return []


def report(row: dict[str, Any]) -> None:
    """Print a row while the others still run."""
    print(json.dumps(row, ensure_ascii=False), flush=True)


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


def main(arguments: Sequence[str] | None = None) -> None:
    """Run from the command line."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--quick", action="store_true", help="tiny sizes: does it run?")
    parser.add_argument("--output", type=Path, help="where the results go")
    parser.add_argument("--notebook", type=Path, help="whose results cell is written")
    parser.add_argument("--memory", type=json.loads, help=argparse.SUPPRESS)
    options = parser.parse_args(arguments)
    torch.set_num_threads(1)
    if options.memory:
        print(json.dumps(measure_memory(*options.memory), ensure_ascii=False))
        return
    results = measure(options.quick)
    if options.output:
        options.output.write_text(stored(results), encoding="utf-8")
    if options.notebook:
        write_cell(options.notebook, "results", results_cell(results))


if __name__ == "__main__":
    main()
