"""Time and memory of the layer against others that compute the same; that they do is proved first.

    python benchmarks/bench_attention.py [--quick] [--output FILE] [--notebook FILE]

All contestants hold the same parameters and get the same tokens and lengths; those that want a mask make it
of the lengths, as their users must. How ratios are measured, rounds.py says. Milliseconds say little: they
belong to the machine that the result file names. A CPU runs one thread and is measured in processor time,
which does not run while another program has the core; a GPU is measured in wall time.
"""

import argparse
import datetime
import itertools
import json
import math
import os
import platform
import resource
import subprocess
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path

import torch
import torch.nn.functional as F
from rounds import medians, processor, ratio_of_medians, rounded, rounds_of, write_cell
from torch import Tensor, nn
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

import mha_lib
from mha_lib import MultiHeadAttention, causal_mask

HERE = Path(__file__).resolve().parent
SIZE = ("batch", "len", "embed_dim", "num_heads")
COMPILED_SIZES = ((2, 6, 100, 5), (8, 64, 128, 4))
SIZES = (*COMPILED_SIZES, (4, 256, 256, 8), (4, 512, 512, 8), (1, 2048, 512, 8))
TINY_SIZES = ((2, 6, 20, 5), (3, 16, 8, 2))
FORWARD, BACKWARD = "forward", "forward + backward"


# --------------------------------------------------------------------------------
# The contestants. Each takes (x, lens), lens or None, and returns (output, weights or None).


class Ours(nn.Module):
    """The layer of the course."""

    def __init__(self, layer, need_weights):
        super().__init__()
        self.layer = MultiHeadAttention.from_torch(layer)
        self.need_weights = need_weights

    def forward(self, x, lens=None, causal=False):
        """Attend."""
        options = {"is_causal": causal, "need_weights": self.need_weights}
        return self.layer(x, x, x, valid_lens=lens, **options)


class Torchs(nn.Module):
    """`nn.MultiheadAttention`."""

    def __init__(self, layer, need_weights):
        super().__init__()
        self.layer, self.need_weights = layer, need_weights

    def forward(self, x, lens=None, causal=False):
        """Attend. This layer wants the mask even where is_causal says it all."""
        length = x.shape[1]
        mask = ~causal_mask(length, device=x.device) if causal else None
        padding = None if lens is None else ~visible_keys(lens, length)
        masks = {"attn_mask": mask, "is_causal": causal, "key_padding_mask": padding}
        weights = {"need_weights": self.need_weights, "average_attn_weights": False}
        return self.layer(x, x, x, **masks, **weights)


class Plain(nn.Module):
    """Four linear layers, without checks; what happens between them is up to the subclass."""

    def __init__(self, layer):
        super().__init__()
        copy = MultiHeadAttention.from_torch(layer)
        self.num_heads = layer.num_heads
        self.q, self.k, self.v = copy.q_proj, copy.k_proj, copy.v_proj
        self.out = copy.out_proj

    def heads(self, x):
        """Queries, keys and values of each head, (batch, heads, len, head_dim)."""
        projected = (self.q(x), self.k(x), self.v(x))
        by_head = (self.num_heads, -1)
        return [y.unflatten(-1, by_head).transpose(1, 2) for y in projected]


class Fused(Plain):
    """`F.scaled_dot_product_attention` between four linear layers: the least that a layer can do."""

    def forward(self, x, lens=None):
        """Attend."""
        mask = None if lens is None else visible_keys(lens, x.shape[1])[:, None, None]
        heads = F.scaled_dot_product_attention(*self.heads(x), attn_mask=mask)
        return self.out(heads.transpose(1, 2).flatten(2)), None


class Folded(Plain):
    """The classic formulation: heads join the batch axis, lengths are repeated for them, weights exist."""

    def forward(self, x, lens=None):
        """Attend."""
        query, key, value = (y.flatten(0, 1) for y in self.heads(x))
        scores = torch.bmm(query, key.transpose(1, 2)) / math.sqrt(query.shape[-1])
        if lens is not None:
            repeated = lens.repeat_interleave(self.num_heads)
            visible = visible_keys(repeated, x.shape[1])[:, None]
            scores = scores.masked_fill(~visible, -1e6)
        weights = scores.softmax(-1)
        by_head = (len(x), self.num_heads)
        pooled = torch.bmm(weights, value).unflatten(0, by_head)
        output = self.out(pooled.transpose(1, 2).flatten(2))
        return output, weights.unflatten(0, by_head)


def visible_keys(lens, length):
    """Lengths (batch,) as a mask (batch, length), True = visible."""
    return torch.arange(length, device=lens.device) < lens[:, None]


OURS, OURS_WEIGHTS = "mha_lib", "mha_lib, weights"
TORCH, TORCH_WEIGHTS = "nn.MultiheadAttention", "nn.MultiheadAttention, weights"
FUSED, FOLDED = "scaled_dot_product_attention", "heads in the batch"
CONTESTANTS = {
    OURS: partial(Ours, need_weights=False),
    OURS_WEIGHTS: partial(Ours, need_weights=True),
    TORCH: partial(Torchs, need_weights=False),
    TORCH_WEIGHTS: partial(Torchs, need_weights=True),
    FUSED: Fused,
    FOLDED: Folded,
}
# Which ratios are reported.
PAIRS = (
    *((OURS, TORCH), (OURS, FUSED), (OURS, FOLDED)),
    *((OURS_WEIGHTS, TORCH_WEIGHTS), (OURS_WEIGHTS, FOLDED)),
)


def torch_layer(embed_dim, num_heads, device):
    """The layer whose parameters all contestants get, with biases that are not zero."""
    torch.manual_seed(0)
    layer = nn.MultiheadAttention(embed_dim, num_heads, batch_first=True)
    with torch.no_grad():
        layer.in_proj_bias.normal_(std=0.1)
        layer.out_proj.bias.normal_(std=0.1)
    return layer.to(device)


def tokens(batch, length, width, padding, device):
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


def prove_equal(contestants, x, lens, tolerance=2e-4):
    """Compare outputs, weights and gradients of all contestants with those of the first.

    Returns:
        The largest difference found, relative to the largest number compared.

    Raises:
        NotEqualError: one differs by more than `tolerance`.
    """
    upstream = torch.randn(x.shape, generator=torch.Generator().manual_seed(2)).to(x)
    largest, reference = 0.0, {}
    for name, module in contestants.items():
        for what, tensor in outcome(module, x, lens, upstream).items():
            expected = reference.setdefault(what, tensor)
            if tensor.shape != expected.shape:
                shapes = f"{tuple(tensor.shape)}, not {tuple(expected.shape)}"
                raise NotEqualError(f"{name}: {what} has shape {shapes}")
            difference = relative(tensor, expected)
            # NaN compares false with everything, so ask for what must hold.
            if not difference <= tolerance:
                raise NotEqualError(f"{name}: {what} differs by {difference:.1e}")
            largest = max(largest, difference)
    return largest


def relative(found, expected):
    """The largest difference, relative to the largest number that is expected."""
    return ((found - expected).abs().max() / expected.abs().max()).item()


def outcome(module, x, lens, upstream):
    """All that a contestant computes: with and without grad, and every gradient.

    Gradients of parameters stand one below the other, for queries, keys, values and output, because torch's
    layer stacks the first three.
    """
    x, found = x.detach().requires_grad_(), {}
    module.eval()
    with torch.no_grad():
        found["output"], found["weights"] = module(x, lens)
    module.train()
    output, found["weights in training"] = module(x, lens)
    found["output in training"] = output.detach()
    names, parameters = zip(*module.named_parameters(), strict=True)
    grads = torch.autograd.grad(output, (x, *parameters), upstream)
    found["gradient of x"], *grads = grads
    for kind in ("weight", "bias"):
        ours = [g for n, g in zip(names, grads, strict=True) if n.endswith(kind)]
        found[f"gradient of each {kind}"] = torch.cat(ours)
    return {what: tensor for what, tensor in found.items() if tensor is not None}


# --------------------------------------------------------------------------------
# Time


def forward_call(module, x, lens):
    """Forward as in use: eval, no gradients."""
    module.eval()
    return torch.no_grad()(lambda: module(x, lens))


def backward_call(module, x, lens):
    """Forward and backward as in training: gradients of the tokens and of every parameter."""
    module.train()
    x = x.detach().requires_grad_()
    # Not all the same: a layer norm at the end would let no gradient of ones through.
    upstream = torch.ones_like(x).cumsum(-1) / x.shape[-1]
    inputs = (x, *module.parameters())
    return lambda: torch.autograd.grad(module(x, lens)[0], inputs, upstream)


def clock_of(device):
    """The clock for a device: on a GPU it waits until that has done what it was told."""
    if device == "cpu":
        return time.process_time

    def after_the_device():
        torch.cuda.synchronize()
        return time.perf_counter()

    return after_the_device


def time_layers(sizes, device, compiled, **pace):
    """Time all contestants for every size, with and without padding, forward and with backward."""
    for size, padding in itertools.product(sizes, (False, True)):
        batch, length, width, heads = size
        x, lens = tokens(batch, length, width, padding, device)
        modules = {
            name: make(torch_layer(width, heads, device))
            for name, make in CONTESTANTS.items()
            if not (compiled and name == TORCH_WEIGHTS)
        }
        if compiled:
            torch._dynamo.reset()
            compiled_ones = {n: torch.compile(module) for n, module in modules.items()}
            modules |= {f"{n}, compiled": one for n, one in compiled_ones.items()}
        difference = prove_equal(modules, x, lens)
        for direction, prepare in CALLS.items():
            calls = {name: prepare(one, x, lens) for name, one in modules.items()}
            rounds = rounds_of(calls, clock=clock_of(device), **pace)
            row = {"device": device, **dict(zip(SIZE, size, strict=True))}
            row |= {"padding": padding, "direction": direction}
            row |= {"rounds": len(rounds[OURS])}
            row |= {"difference": float(f"{difference:.1e}"), "ms": medians(rounds)}
            row |= {"ratios": ratios(rounds, reported(compiled))}
            report(row)
            yield row


CALLS = {FORWARD: forward_call, BACKWARD: backward_call}


def reported(compiled):
    """Which contestants are compared: the first with the second."""
    if not compiled:
        return PAIRS
    pairs = [(f"{above}, compiled", f"{below}, compiled") for above, below in PAIRS]
    return [*pairs, (f"{OURS}, compiled", OURS)]


def ratios(rounds, pairs):
    """The ratios of those contestants that ran."""
    return [
        {"of": above, "to": below} | ratio_of_medians(rounds, above, below)
        for above, below in pairs
        if above in rounds and below in rounds
    ]


# --------------------------------------------------------------------------------
# Memory at a length where len² hurts, each case in a process of its own


class LargestTensor(TorchDispatchMode):
    """Remembers the number of elements of the largest storage that any operation returned."""

    numbers = 0

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        """Run the operation, look at what it returns. An expanded view is as large as its storage."""
        result = func(*args, **(kwargs or {}))
        for leaf in tree_leaves(result):
            if isinstance(leaf, Tensor):
                stored = leaf.untyped_storage().nbytes() // leaf.element_size()
                self.numbers = max(self.numbers, stored)
        return result


MEMORY_MASKS = ("none", "padding", "causal", "causal + padding")


def measure_memory(contestant, mask, direction, size, device):
    """Peak memory above what was there before, and the largest tensor seen. Meant for a fresh process."""
    batch, length, width, heads = size
    module = CONTESTANTS[contestant](torch_layer(width, heads, device))
    module.train(direction == BACKWARD)
    causal = {"causal": True} if "causal" in mask else {}
    options = (width, "padding" in mask, device)
    few = tokens(batch, length // 8, *options)
    all_of_them = tokens(batch, length, *options)

    def call(x, lens):
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
    case = {"contestant": contestant, "mask": mask, "direction": direction}
    case |= {"device": device, "len": length, "embed_dim": width, "num_heads": heads}
    found = {"megabytes": rounded(grown / 2**20), "largest_tensor": largest.numbers}
    return case | found


def peak_bytes(device, reset=False):
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


def memory_cases():
    """Contestant, mask, direction: ours under every mask, the others where they are wanted beside it."""
    masks = dict.fromkeys(CONTESTANTS, MEMORY_MASKS[:1])
    masks |= {OURS: MEMORY_MASKS, TORCH: MEMORY_MASKS[:3]}
    pairs = [(name, mask) for name, chosen in masks.items() for mask in chosen]
    return [(*pair, direction) for pair in pairs for direction in CALLS]


def memory_row(case, size, device):
    """Measure one case in a fresh process, whose peak nothing else has touched."""
    options = ["--memory", json.dumps([*case, size, device])]
    command = [sys.executable, __file__, *options]
    done = subprocess.run(command, capture_output=True, text=True)
    if done.returncode:
        raise RuntimeError(f"{case} failed:\n{done.stderr}")
    return json.loads(done.stdout)


# --------------------------------------------------------------------------------
# Decoding: one token after another


def decoders(layer, shared, x):
    """Ways to compute a causal layer token by token; each returns the outputs of all tokens.

    `layer` has a key head for each query head, `shared` one for all. The last way writes into a buffer that
    was made large enough at the start: the least that decoding can cost.
    """
    length, causal = x.shape[1], {"is_causal": True, "need_weights": False}

    def each(step):
        """The outputs of a step that gets the number of a token, and the token."""
        return torch.cat([step(*pair) for pair in enumerate(x.split(1, 1))], dim=1)

    def run_again(at, _):
        seen = x[:, : at + 1]
        return layer(seen, seen, seen, **causal)[0][:, -1:]

    def last_query(at, token):
        seen = x[:, : at + 1]
        return layer(token, seen, seen, need_weights=False)[0]

    def with_cache(layer):
        options = causal | {"cache": mha_lib.KeyValueCache()}
        return each(lambda _, token: layer(token, token, token, **options)[0])

    def with_buffer():
        shape = (x.shape[0], layer.num_kv_heads, length, layer.head_dim)
        keys, values = x.new_empty(shape), x.new_empty(shape)

        def step(at, token):
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


def time_decoding(length, width, heads, device, **pace):
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
            if not (difference := relative(way(), expected)) <= 2e-4:
                raise NotEqualError(f"{name}: decoding differs by {difference:.1e}")
        rounds = rounds_of(ways, clock=clock_of(device), **pace)
    pairs = [(name, "KeyValueCache") for name in rounds if name != "KeyValueCache"]
    row = {"device": device, "len": length, "embed_dim": width, "num_heads": heads}
    row |= {"rounds": len(rounds["KeyValueCache"]), "ms": medians(rounds)}
    return row | {"ratios": ratios(rounds, pairs)}


# --------------------------------------------------------------------------------
# What is printed and stored


def machine():
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


def measure(quick):
    """Measure everything and return what is stored."""
    pace = {"seconds": 0.0, "least": 1} if quick else {"seconds": 4.0, "least": 7}
    length, width, heads = (16, 8, 2) if quick else (512, 512, 8)
    memory_size = (1, 256, 16, 2) if quick else (1, 8192, 128, 2)
    results = {"machine": machine(), "layers": [], "compiled": []}
    results |= {"memory": [], "decoding": []}
    for device in ["cpu"] + ["cuda"] * torch.cuda.is_available():
        sizes = TINY_SIZES if quick else SIZES
        results["layers"] += time_layers(sizes, device=device, compiled=False, **pace)
        row = time_decoding(length, width, heads, device=device, **pace)
        results["decoding"].append(row)
        report(row)
        # Two at a time: what they do to each other's time is of no interest here.
        with ThreadPoolExecutor(2) as pool:
            measure_case = partial(memory_row, size=memory_size, device=device)
            cases = memory_cases()[: 2 if quick else None]
            results["memory"] += pool.map(measure_case, cases)
        if not quick:
            results["compiled"] += compiled_rows(device, pace)
    return results


def compiled_rows(device, pace):
    """Time compiled layers too, where a compiler can be had."""
    try:
        return list(time_layers(COMPILED_SIZES, device=device, compiled=True, **pace))
    except torch._dynamo.exc.BackendCompilerFailed as error:
        print(f"no compiler, so nothing compiled is timed: {error}", flush=True)
        return []


def report(row):
    """Print a row while the others still run."""
    print(json.dumps(row, ensure_ascii=False), flush=True)


def stored(results):
    """Results as JSON, one measurement a line, so that a diff shows what changed."""
    dump = partial(json.dumps, ensure_ascii=False)
    parts = []
    for name, value in results.items():
        text = dump(value)
        if value and isinstance(value, list):
            text = "[\n" + ",\n".join("    " + dump(row) for row in value) + "\n  ]"
        parts.append(f'  "{name}": {text}')
    return "{\n" + ",\n".join(parts) + "\n}\n"


def results_cell(results):
    """Source of the cell that carries the results into a chapter, which must run without this repository."""
    return (
        "# `make bench` writes this cell from benchmarks/results.json. Do not edit it.\n"
        f'RESULTS = json.loads("""\n{stored(results).rstrip()}\n""")  # noqa: E501'
    )


def main(arguments=None):
    """Run from the command line."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
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
