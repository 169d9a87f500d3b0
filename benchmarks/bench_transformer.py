"""Time of our encoder against that of `transformers`' BERT and `nn.TransformerEncoder`, with equal weights.

    python benchmarks/bench_transformer.py [--quick] [--output FILE]

All contestants are encoders of post-norm blocks, as in BERT, hold the same parameters, get the same tokens
and must give the same output and the same gradients of the tokens before they are timed. Rounds, clock and
intervals are those of bench_attention.py: what counts is the ratio of two medians over the same rounds.
"""

from __future__ import annotations

import argparse
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import bench_attention as bench
import torch
import transformers
from rounds import medians, ratio_of_medians, rounded, rounds_of
from torch import Tensor, nn

from mha_lib.checkpoints import load_checkpoint

# batch, length, embed_dim, num_heads, num_layers
SIZE = (32, 128, 256, 8, 4)
TINY_SIZE = (2, 7, 12, 3, 2)
OURS, TORCHS = "mha_lib", "nn.TransformerEncoder"
EAGER, SDPA = "BertModel, eager", "BertModel, sdpa"
OTHERS = (TORCHS, EAGER, SDPA)


class Encoder(nn.Module):
    """An encoder that is called as the contestants of bench_attention.py are."""

    def __init__(self, module: nn.Module) -> None:
        super().__init__()
        self.module = module

    def forward(self, x: Tensor, _lens: None = None) -> tuple[Tensor, None]:
        """Encode; BERT returns its output in a tuple."""
        found = self.module(x)
        return found if isinstance(found, Tensor) else found[0], None


def encoders(
    embed_dim: int, num_heads: int, num_layers: int, length: int
) -> dict[str, Encoder]:
    """Four encoders with the same weights, by their names."""
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
        found = {OURS: ours, TORCHS: ours.to_torch()}
        for name, kind in ((EAGER, "eager"), (SDPA, "sdpa")):
            found[name] = transformers.BertModel.from_pretrained(
                folder, attn_implementation=kind, add_pooling_layer=False
            ).encoder
    return {name: Encoder(module) for name, module in found.items()}


CALLS = {bench.FORWARD: bench.forward_call, bench.BACKWARD: bench.backward_call}


def prove_equal(found: dict[str, Encoder], x: Tensor) -> float:
    """Raise unless all encoders have equal outputs and gradients of the tokens; return the difference."""
    largest = 0.0
    sizes = {sum(p.numel() for p in module.parameters()) for module in found.values()}
    assert len(sizes) == 1, sizes
    for make in CALLS.values():
        ours, *others = (make(module, x, None)()[0] for module in found.values())
        scale = float(ours.abs().max())
        for theirs in others:
            torch.testing.assert_close(theirs, ours, rtol=0, atol=2e-5 * scale)
            largest = max(largest, float((theirs - ours).abs().max()) / scale)
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
        calls = {name: make(module, x, None) for name, module in found.items()}
        rounds = rounds_of(calls, seconds=seconds, least=least)
        rows.append(
            {
                "size": list(size),
                "what": what,
                "difference": rounded(difference),
                "rounds": len(rounds[OURS]),
                "ms": medians(rounds),
                "ratios": [
                    {"of": OURS, "to": other} | ratio_of_medians(rounds, OURS, other)
                    for other in OTHERS
                ],
            }
        )
        print(rows[-1], flush=True)
    return rows


def main(arguments: Sequence[str] | None = None) -> None:
    """Measure, print, and store where asked to."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--quick", action="store_true", help="tiny sizes, few rounds")
    parser.add_argument("--output", type=Path, help="file for the results")
    options = parser.parse_args(arguments)
    torch.set_num_threads(1)
    transformers.logging.set_verbosity_error()
    transformers.logging.disable_progress_bar()
    size, pace = (TINY_SIZE, (0.1, 3)) if options.quick else (SIZE, (20.0, 7))
    results: dict[str, Any] = {
        "machine": bench.machine() | {"transformers": transformers.__version__},
        "encoders": time_size(size, *pace),
    }
    if options.output:
        options.output.write_text(bench.stored(results), encoding="utf-8")


if __name__ == "__main__":
    main()
