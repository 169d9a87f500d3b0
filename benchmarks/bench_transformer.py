"""Time of our encoder against that of `transformers`' BERT and `nn.TransformerEncoder`, with equal weights.

    python benchmarks/bench_transformer.py [--quick] [--output FILE]

All contestants are encoders of post-norm blocks, as in BERT, hold the same parameters, get the same tokens
and must give the same output and the same gradients of the tokens before they are timed. Rounds, clock and
intervals are those of bench_attention.py: what counts is the ratio of two medians over the same rounds.
"""

from __future__ import annotations

import argparse
import sys
import tempfile
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import bench_attention as bench
import torch
import transformers
from torch import Tensor, nn

from mha_lib.checkpoints import load_checkpoint

# batch, length, embed_dim, num_heads, num_layers
SIZES = ((32, 128, 256, 8, 4),)
TINY_SIZES = ((2, 7, 12, 3, 2),)
OURS, TORCHS = "mha_lib", "nn.TransformerEncoder"
EAGER, SDPA = "BertModel, eager", "BertModel, sdpa"
OTHERS = (TORCHS, EAGER, SDPA)
Encoder = Callable[[Tensor], Tensor]


def encoders(
    embed_dim: int, num_heads: int, num_layers: int, length: int
) -> dict[str, tuple[nn.Module, Encoder]]:
    """Name -> (the module, how it is called), four encoders with the same weights."""
    torch.manual_seed(0)
    config = transformers.BertConfig(
        vocab_size=7,
        hidden_size=embed_dim,
        num_attention_heads=num_heads,
        intermediate_size=4 * embed_dim,
        num_hidden_layers=num_layers,
        max_position_embeddings=length,
        hidden_dropout_prob=0.0,
        attention_probs_dropout_prob=0.0,
    )
    with tempfile.TemporaryDirectory() as folder:
        transformers.BertForMaskedLM(config).save_pretrained(folder)
        ours: nn.Module = load_checkpoint(folder).encoder
        berts = {
            name: transformers.BertModel.from_pretrained(
                folder, attn_implementation=kind, add_pooling_layer=False
            ).encoder
            for name, kind in ((EAGER, "eager"), (SDPA, "sdpa"))
        }
    torchs = ours.to_torch()
    found: dict[str, tuple[nn.Module, Encoder]] = {
        OURS: (ours, ours),
        TORCHS: (torchs, torchs),
    }
    for name, bert in berts.items():
        found[name] = (bert, lambda x, bert=bert: bert(x)[0])
    return found


def forward_call(module: nn.Module, encode: Encoder, x: Tensor) -> Callable[[], Any]:
    """Forward as in use: evaluation mode, no gradients."""
    module.eval()

    def call() -> Tensor:
        with torch.no_grad():
            return encode(x)

    return call


def backward_call(module: nn.Module, encode: Encoder, x: Tensor) -> Callable[[], Any]:
    """Forward and backward as in training: gradients of the tokens and of every parameter."""
    module.train()
    x = x.detach().requires_grad_()
    inputs = (x, *module.parameters())
    upstream = torch.ones_like(x).cumsum(-1) / x.shape[-1]

    def call() -> tuple[Tensor, ...]:
        return torch.autograd.grad(encode(x), inputs, upstream)

    return call


CALLS = {bench.FORWARD: forward_call, bench.BACKWARD: backward_call}


def prove_equal(found: dict[str, tuple[nn.Module, Encoder]], x: Tensor) -> float:
    """Raise unless all encoders have equal outputs and gradients of the tokens; return the difference."""
    largest, reference = 0.0, found[OURS]
    for contestant in found.values():
        assert sum(p.numel() for p in contestant[0].parameters()) == sum(
            p.numel() for p in reference[0].parameters()
        )
        for make in CALLS.values():
            theirs, ours = make(*contestant, x)(), make(*reference, x)()
            if make is backward_call:
                theirs, ours = theirs[0], ours[0]
            scale = ours.abs().max()
            torch.testing.assert_close(theirs, ours, rtol=0, atol=2e-5 * float(scale))
            largest = max(largest, float((theirs - ours).abs().max() / scale))
    return largest


def time_size(
    size: tuple[int, ...], seconds: float, least: int
) -> list[dict[str, Any]]:
    """One row for inference and one for a training step: medians in ms, and our time over theirs."""
    batch, length, embed_dim, num_heads, num_layers = size
    found = encoders(embed_dim, num_heads, num_layers, length)
    x = torch.randn(
        batch, length, embed_dim, generator=torch.Generator().manual_seed(1)
    )
    difference = prove_equal(found, x[:2])
    rows = []
    for what, make in CALLS.items():
        rounds = bench.rounds_of(
            {name: make(*contestant, x) for name, contestant in found.items()},
            device="cpu",
            seconds=seconds,
            least=least,
        )
        rows.append(
            {
                "size": list(size),
                "what": what,
                "difference": bench.rounded(difference),
                "rounds": len(rounds[OURS]),
                "ms": {
                    name: bench.rounded(float(torch.tensor(times).quantile(0.5)))
                    for name, times in rounds.items()
                },
                "ratios": [
                    {"of": OURS, "to": other}
                    | bench.ratio_of_medians(rounds, OURS, other)
                    for other in OTHERS
                ],
            }
        )
        print(rows[-1], flush=True)
    return rows


def main(arguments: Sequence[str] | None = None) -> int:
    """Measure, print, and store where asked to."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--quick", action="store_true", help="tiny sizes, few rounds")
    parser.add_argument("--output", type=Path, help="file for the results")
    options = parser.parse_args(arguments)
    torch.set_num_threads(1)
    transformers.logging.set_verbosity_error()
    transformers.logging.disable_progress_bar()
    seconds, least = (0.1, 3) if options.quick else (20.0, 7)
    sizes = TINY_SIZES if options.quick else SIZES
    results: dict[str, Any] = {
        "machine": bench.machine(1) | {"transformers": transformers.__version__},
        "encoders": [row for size in sizes for row in time_size(size, seconds, least)],
    }
    if options.output:
        options.output.write_text(bench.stored(results), encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main())
