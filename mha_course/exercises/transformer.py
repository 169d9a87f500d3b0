"""Checkers for chapter 6, the Transformer: each is an `Exercise`, data for the engine to judge by."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Generator, Tensor, nn

from mha_course._exercise import randn
from mha_course._sizes import Texts
from mha_course.data.dates import END, START
from mha_lib import EncoderBlock, EncoderDecoder

exercise = Texts(__name__)

# ------------------------------------------------------------------ exercise 1


def _count_parameters(embed_dim: int, num_heads: int, hidden_dim: int) -> int:
    attention = 4 * (embed_dim * embed_dim + embed_dim)
    up = embed_dim * hidden_dim + hidden_dim
    down = hidden_dim * embed_dim + embed_dim
    return 2 * attention + up + down + 3 * 2 * embed_dim


check_decoder_parameters = exercise(
    "check_decoder_parameters", reference=_count_parameters, returns="parameters"
)

# ------------------------------------------------------------------ exercise 2

_State = dict[str, Tensor]


def _run_block(
    answer: Callable[..., Any],
    sizes: tuple[int, int, int],
    state: _State,
    x: Tensor,
    mask: Tensor | None = None,
) -> Any:
    """Make a block of these sizes, give it the parameters, and call it."""
    block = answer(*sizes)
    if not isinstance(block, nn.Module):
        raise TypeError(f"the class must be an nn.Module, got {type(block).__name__}")
    block.load_state_dict(state)
    return block.eval()(x) if mask is None else block.eval()(x, mask)


def _block_case(
    sizes: tuple[int, int, int], batch: int, length: int, *, mask: bool = False
) -> Callable[[Generator], tuple[Any, ...]]:
    """A case of `_run_block`. The norms scale and shift, so none of them can be left out or swapped."""

    def case(g: Generator) -> tuple[Any, ...]:
        block = EncoderBlock(*sizes, norm_first=False, bias=True)
        state = {
            name: (1 + randn(g, *p.shape)) / 2 if "norm" in name else p.detach().clone()
            for name, p in block.state_dict().items()
        }
        x = randn(g, batch, length, sizes[0])
        return (sizes, state, x, torch.ones(length, length).tril() > 0)[: 3 + mask]

    return case


class _PostNormBlock(EncoderBlock):
    def __init__(self, *sizes: int) -> None:
        super().__init__(*sizes, norm_first=False, bias=True)

    def forward(self, x: Tensor, mask: Tensor | None = None) -> Any:  # type: ignore[override]
        attended = self.self_attention(x, x, x, mask)[0]
        x = self.self_attention_norm(x + attended)
        return self.feed_forward_norm(x + self.feed_forward(x))


check_post_norm = exercise(
    "check_post_norm",
    reference=_PostNormBlock,
    returns="output (batch, len, embed_dim)",
    takes="class",
    run=_run_block,
    atol=1e-4,
)

# ------------------------------------------------------------------ exercise 3


def _smooth_loss(logits: Tensor, target: Tensor, smoothing: float) -> Tensor:
    log_probs = logits.log_softmax(-1)
    of_target = log_probs.gather(-1, target.unsqueeze(-1)).squeeze(-1)
    of_all = log_probs.mean(-1)
    return -((1 - smoothing) * of_target + smoothing * of_all).mean()


def _loss_case(
    batch: int, length: int, symbols: int, smoothing: float
) -> Callable[[Generator], tuple[Any, ...]]:
    return lambda g: (
        2 * randn(g, batch, length, symbols),
        torch.randint(symbols, (batch, length), generator=g),
        smoothing,
    )


check_smooth_loss = exercise(
    "check_smooth_loss", reference=_smooth_loss, returns="loss", gradients=True
)

# ------------------------------------------------------------------ exercise 4


def _run_tie(
    answer: Callable[[EncoderDecoder], Any], source_vocab: int, target_vocab: int
) -> Any:
    """Tie a small model; return the result, the parameters left, and the logits after a training step."""
    torch.manual_seed(3)
    sizes = (source_vocab, target_vocab, 6, 2, 5, 1)
    model = EncoderDecoder(*sizes, max_len=7, bias=True).eval()
    saved = answer(model)
    if saved is None:
        return None
    source, target = torch.arange(1, 4)[None], torch.arange(2)[None]
    parameters = list(model.parameters())
    loss = model(source, target).square().sum()
    with torch.no_grad():
        for p, slope in zip(
            parameters, torch.autograd.grad(loss, parameters), strict=True
        ):
            p.sub_(0.1 * slope)
    logits = model(source, target).detach()
    return saved, sum(p.numel() for p in parameters), logits


def _tie(model: EncoderDecoder) -> int:
    model.output.weight = model.target_embedding.weight
    return model.output.weight.numel()


def _tie_the_other_way(model: EncoderDecoder) -> int:
    model.target_embedding.weight = model.output.weight
    return model.output.weight.numel()


check_tied = exercise(
    "check_tied",
    reference=_tie,
    accept=[_tie_the_other_way],
    run=_run_tie,
    returns=(
        "saved",
        "parameters left",
        "logits after a step (batch, target_len, symbols)",
    ),
)

# ------------------------------------------------------------------ exercise 5


def _toy_model(table: Tensor, places: Tensor) -> Callable[[Tensor, Tensor], Tensor]:
    """A model whose next symbol depends on the last one, on the position, and on the source's first token."""

    def model(source: Tensor, target: Tensor) -> Tensor:
        start = table[source[:, 0] % len(table)].unsqueeze(1)
        return table[target] + places[: target.shape[1]] + start

    return model


def _run_beam(
    answer: Callable[..., Any],
    table: Tensor,
    places: Tensor,
    source: Tensor,
    beam_size: int,
    steps: int,
) -> Any:
    """The answer's beam as two tensors; shorter rows are filled with the end symbol."""
    beam = answer(_toy_model(table, places), source, beam_size, steps)
    if beam is None:
        return None
    try:
        pairs = [
            (float(value), torch.as_tensor(symbols).flatten().tolist())
            for value, symbols in beam
        ]
    except (TypeError, ValueError):
        message = "the beam must be a list of pairs (log probability, symbols)"
        raise TypeError(message) from None
    filled = [symbols + (steps + 1 - len(symbols)) * [END] for _, symbols in pairs]
    if any(len(symbols) > steps + 1 for symbols in filled):
        raise ValueError(f"an answer is longer than START and {steps} symbols")
    return torch.tensor([value for value, _ in pairs]), torch.tensor(filled)


def _beam_case(
    symbols: int, beam_size: int, steps: int
) -> Callable[[Generator], tuple[Any, ...]]:
    # The model can go two symbols further, so that a loop that is too long does not fail inside the model.
    def case(g: Generator) -> tuple[Any, ...]:
        table, places = 0.6 * randn(g, symbols, symbols), randn(g, steps + 2, symbols)
        table[:, START] -= 5  # models rarely predict START
        table[:, END] += 0.5
        return table, places, torch.tensor([[symbols - 1, 2]]), beam_size, steps

    return case


_Pair = tuple[float, list[int]]


def _beam_search(model: Any, source: Tensor, beam_size: int, steps: int) -> list[_Pair]:
    beam: list[_Pair] = [(0.0, [START])]
    for _ in range(steps):
        longer: list[_Pair] = []
        for value, symbols in beam:
            if symbols[-1] == END:
                longer.append((value, symbols))
                continue
            logits = model(source, torch.tensor([symbols]))[0, -1]
            values = (value + logits.log_softmax(-1)).tolist()
            pairs = [(value, [*symbols, s]) for s, value in enumerate(values)]
            longer += pairs
        beam = sorted(longer, reverse=True)[:beam_size]
    return beam


check_beam = exercise(
    "check_beam",
    reference=_beam_search,
    returns=("log probabilities (beam)", "symbols (beam, 1 + steps)"),
    run=_run_beam,
)
