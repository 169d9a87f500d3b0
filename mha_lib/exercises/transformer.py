"""Checkers for chapter 7, the Transformer: each is an `Exercise`, data for the engine to judge by."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Generator, Tensor, nn

from mha_lib import EncoderBlock, EncoderDecoder
from mha_lib.dates import END, START
from mha_lib.exercises.engine import Exercise, Wrong, randn

# ------------------------------------------------------------------ exercise 1


def _count(
    attentions: int = 2, norms: int = 3, per_norm: int = 2, bias: int = 1
) -> Callable[[int, int, int], int]:
    """The parameters of a block, right with the defaults."""

    def count(embed_dim: int, _num_heads: int, hidden_dim: int) -> int:
        attention = 4 * (embed_dim * embed_dim + bias * embed_dim)
        feed_forward = 2 * embed_dim * hidden_dim + bias * (hidden_dim + embed_dim)
        return attentions * attention + feed_forward + norms * per_norm * embed_dim

    return count


def _heads_of_full_width(embed_dim: int, num_heads: int, hidden_dim: int) -> int:
    """As if each head had three matrices of the full width."""
    head = 3 * (embed_dim * embed_dim + embed_dim)
    merged = num_heads * embed_dim * embed_dim + embed_dim
    rest = _count(attentions=0)(embed_dim, num_heads, hidden_dim)
    return 2 * (num_heads * head + merged) + rest


check_decoder_parameters = Exercise(
    reference=_count(),
    returns="parameters",
    cases={
        "width 64, 4 heads, hidden width 256": lambda _: (64, 4, 256),
        "width 26, 2 heads, hidden width 11": lambda _: (26, 2, 11),
        "width 21, 3 heads, hidden width 17": lambda _: (21, 3, 17),
    },
    wrong=(
        Wrong(
            "there is only one attention",
            "That is an encoder block. A decoder block looks at its own tokens and at the memory.",
            _count(attentions=1),
        ),
        Wrong(
            "there are only two norms",
            "Each of the three parts, two attentions and a feed-forward layer, has a norm of its own.",
            _count(norms=2),
        ),
        Wrong(
            "the parameters of an encoder block are counted",
            "A decoder block has one more attention, to the memory, and one more norm.",
            _count(attentions=1, norms=2),
        ),
        Wrong(
            "the norms are not counted",
            "A layer norm learns a factor and a bias for each entry of a token.",
            _count(norms=0),
        ),
        Wrong(
            "a norm has one number for each entry",
            "It has two: a factor, and a bias that is added.",
            _count(per_norm=1),
        ),
        Wrong(
            "the biases of the linear layers are not counted",
            "Every matrix has a bias: one number for each entry of its output.",
            _count(bias=0),
        ),
        Wrong(
            "each head has projections of the full width",
            "The heads share the width: the same four matrices are divided among them, and their number "
            "does not matter.",
            _heads_of_full_width,
        ),
        Wrong(
            "an attention has three matrices",
            "Query, key and value, and a fourth: the output projection.",
            lambda embed_dim, num_heads, hidden_dim: (
                _count()(embed_dim, num_heads, hidden_dim)
                - 2 * embed_dim * (embed_dim + 1)
            ),
        ),
    ),
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
    """A case of `_run_block`. The norms scale and shift: none of them can be left out or exchanged."""

    def case(g: Generator) -> tuple[Any, ...]:
        block = EncoderBlock(*sizes, norm_first=False, bias=True)
        state = {
            name: (1 + randn(g, *p.shape)) / 2 if "norm" in name else p.detach().clone()
            for name, p in block.state_dict().items()
        }
        x = randn(g, batch, length, sizes[0])
        return (sizes, state, x, torch.ones(length, length).tril() > 0)[: 3 + mask]

    return case


class _Parts(EncoderBlock):
    """The parts of a block with a forward pass of its own: a function of (block, x, mask)."""

    def __init__(self, forward: Callable[..., Tensor], *sizes: int) -> None:
        super().__init__(*sizes, norm_first=False, bias=True)
        self._way = forward

    def attend(self, x: Tensor, mask: Tensor | None) -> Tensor:
        output: Tensor = self.self_attention(x, x, x, attn_mask=mask)[0]
        return output

    def forward(self, x: Tensor, mask: Tensor | None = None) -> Tensor:  # type: ignore[override]
        return self._way(self, x, mask)


def _way(forward: Callable[..., Tensor]) -> Callable[..., nn.Module]:
    return lambda *sizes: _Parts(forward, *sizes)


def _post_norm(
    block: _Parts,
    x: Tensor,
    mask: Tensor | None,
    first: str = "self_attention_norm",
    second: str = "feed_forward_norm",
) -> Any:
    x = getattr(block, first)(x + block.attend(x, mask))
    return getattr(block, second)(x + block.feed_forward(x))


def _pre_norm(block: _Parts, x: Tensor, mask: Tensor | None) -> Any:
    x = x + block.attend(block.self_attention_norm(x), mask)
    return x + block.feed_forward(block.feed_forward_norm(x))


def _norm_of_the_change(block: _Parts, x: Tensor, mask: Tensor | None) -> Any:
    x = x + block.self_attention_norm(block.attend(x, mask))
    return x + block.feed_forward_norm(block.feed_forward(x))


def _no_sums(block: _Parts, x: Tensor, mask: Tensor | None) -> Any:
    x = block.self_attention_norm(block.attend(x, mask))
    return block.feed_forward_norm(block.feed_forward(x))


def _both_places(block: _Parts, x: Tensor, mask: Tensor | None) -> Any:
    attention, feed_forward = block.self_attention_norm, block.feed_forward_norm
    x = attention(x + block.attend(attention(x), mask))
    return feed_forward(x + block.feed_forward(feed_forward(x)))


def _sum_with_the_input(block: _Parts, x: Tensor, mask: Tensor | None) -> Any:
    y = block.self_attention_norm(x + block.attend(x, mask))
    return block.feed_forward_norm(x + block.feed_forward(y))


def _one_norm_at_the_end(block: _Parts, x: Tensor, mask: Tensor | None) -> Any:
    x = x + block.attend(x, mask)
    return block.feed_forward_norm(x + block.feed_forward(x))


check_post_norm = Exercise(
    reference=_way(_post_norm),
    returns="output (batch, len, embed_dim)",
    takes="class",
    run=_run_block,
    atol=1e-4,
    cases={
        "no mask": _block_case((6, 2, 13), 3, 5),
        "a causal mask": _block_case((15, 3, 11), 2, 7, mask=True),
    },
    wrong=(
        Wrong(
            "the norm comes before each part",
            "That is pre-norm. Here each norm takes the sum: `norm(x + part(x))`.",
            _way(_pre_norm),
        ),
        Wrong(
            "the norm is taken before the sum",
            "`x + norm(part(x))` leaves the sum itself without a norm. Add first.",
            _way(_norm_of_the_change),
        ),
        Wrong(
            "the residual connections are missing",
            "Each part is added to what went into it.",
            _way(_no_sums),
        ),
        Wrong(
            "each norm stands in both places",
            "With post-norm the parts take x as it is; only the sums are normalised.",
            _way(_both_places),
        ),
        Wrong(
            "the second sum begins again at the block's input",
            "What is added to the feed-forward layer's output is what went into that layer.",
            _way(_sum_with_the_input),
        ),
        Wrong(
            "the sum after the attention is not normalised",
            "There are two sums, and each has its norm.",
            _way(_one_norm_at_the_end),
        ),
        Wrong(
            "the two norms are exchanged",
            "`self_attention_norm` belongs to the first sum, `feed_forward_norm` to the second.",
            _way(
                lambda block, x, mask: _post_norm(
                    block, x, mask, "feed_forward_norm", "self_attention_norm"
                )
            ),
        ),
        Wrong(
            "one norm is used twice",
            "Each sum has a norm with parameters of its own.",
            _way(
                lambda block, x, mask: _post_norm(
                    block, x, mask, "self_attention_norm", "self_attention_norm"
                )
            ),
        ),
        Wrong(
            "the mask is not passed on",
            "The attention needs it as its fourth argument, or every token sees the future.",
            _way(lambda block, x, _: _post_norm(block, x, None)),
        ),
    ),
)

# ------------------------------------------------------------------ exercise 3


def _of_target(numbers: Tensor, target: Tensor) -> Tensor:
    return numbers.gather(-1, target.unsqueeze(-1)).squeeze(-1)


def _smooth(
    logits: Tensor, target: Tensor, right: float, spread: float, total: float = 1.0
) -> Tensor:
    """The right token's share of the loss, and what is spread over all tokens together."""
    log_probs = logits.log_softmax(-1)
    everywhere = total * log_probs.mean(-1)
    return -(right * _of_target(log_probs, target) + spread * everywhere).mean()


def _others_only(logits: Tensor, target: Tensor, smoothing: float) -> Tensor:
    log_probs, symbols = logits.log_softmax(-1), logits.shape[-1]
    chosen = _of_target(log_probs, target)
    rest = (log_probs.sum(-1) - chosen) / (symbols - 1)
    return -((1 - smoothing) * chosen + smoothing * rest).mean()


def _mixed_probabilities(logits: Tensor, target: Tensor, smoothing: float) -> Tensor:
    chosen = _of_target(logits.softmax(-1), target)
    return -((1 - smoothing) * chosen + smoothing / logits.shape[-1]).log().mean()


def _logits_as_log_probs(logits: Tensor, target: Tensor, smoothing: float) -> Tensor:
    chosen = _of_target(logits, target)
    return -((1 - smoothing) * chosen + smoothing * logits.mean(-1)).mean()


def _loss_case(
    batch: int, length: int, symbols: int, smoothing: float
) -> Callable[[Generator], tuple[Any, ...]]:
    return lambda g: (
        2 * randn(g, batch, length, symbols),
        torch.randint(symbols, (batch, length), generator=g),
        smoothing,
    )


check_smooth_loss = Exercise(
    reference=lambda logits, target, smoothing: _smooth(
        logits, target, 1 - smoothing, smoothing
    ),
    returns="loss",
    gradients=True,
    cases={
        "no smoothing": _loss_case(2, 3, 5, 0.0),
        "smoothing 0.1": _loss_case(3, 11, 13, 0.1),
        "smoothing 0.3": _loss_case(2, 5, 7, 0.3),
    },
    wrong=(
        Wrong(
            "the smoothing is spread over the other tokens only",
            "As the paper does it, the right token gets its part of it too.",
            _others_only,
        ),
        Wrong(
            "the probabilities are mixed, and not the targets",
            "The labels are smoothed, not the prediction: take the logarithm of each probability first.",
            _mixed_probabilities,
        ),
        Wrong(
            "every token gets the whole smoothing",
            "It is divided among all tokens: take the mean of the log probabilities, not their sum.",
            lambda logits, target, smoothing: _smooth(
                logits, target, 1 - smoothing, smoothing, logits.shape[-1]
            ),
        ),
        Wrong(
            "the right token keeps the whole probability 1",
            "What is spread must be taken from it: 1 less the smoothing is left.",
            lambda logits, target, smoothing: _smooth(logits, target, 1.0, smoothing),
        ),
        Wrong(
            "nothing is smoothed",
            "This is the cross-entropy: all tokens must enter, each with a small target.",
            lambda logits, target, _: _smooth(logits, target, 1.0, 0.0),
        ),
        Wrong(
            "the smoothing is missing from the sum",
            "The part that is taken from the right token must be spread over all tokens.",
            lambda logits, target, smoothing: _smooth(
                logits, target, 1 - smoothing, 0.0
            ),
        ),
        Wrong(
            "the two shares are exchanged",
            "The right token gets 1 less the smoothing.",
            lambda logits, target, smoothing: _smooth(
                logits, target, smoothing, 1 - smoothing
            ),
        ),
        Wrong(
            "the logits are taken for log probabilities",
            "Apply `log_softmax` over the symbols first.",
            _logits_as_log_probs,
        ),
        Wrong(
            "the sign is wrong",
            "The loss is minus a mean of log probabilities.",
            lambda logits, target, smoothing: (
                -_smooth(logits, target, 1 - smoothing, smoothing)
            ),
        ),
        Wrong(
            "the losses of all places are added up",
            "Take their mean, so that the loss does not grow with the length.",
            lambda logits, target, smoothing: (
                target.numel() * _smooth(logits, target, 1 - smoothing, smoothing)
            ),
        ),
    ),
)

# ------------------------------------------------------------------ exercise 4


def _run_tie(
    answer: Callable[[EncoderDecoder], Any], source_vocab: int, target_vocab: int
) -> Any:
    """Tie a small model: what was returned, the parameters left, and the logits after a step of training."""
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


def _copy(model: EncoderDecoder) -> int:
    model.output.weight.data.copy_(model.target_embedding.weight.data)
    return model.output.weight.numel()


def _share_memory(model: EncoderDecoder) -> int:
    model.output.weight.data = model.target_embedding.weight.data
    return model.output.weight.numel()


def _tie_the_source(model: EncoderDecoder) -> int:
    model.output.weight = model.source_embedding.weight
    return model.output.weight.numel()


def _count_the_bias(model: EncoderDecoder) -> int:
    return _tie(model) + model.output.bias.numel()


def _count_what_is_left(model: EncoderDecoder) -> int:
    _tie(model)
    return sum(p.numel() for p in model.parameters())


def _count_both(model: EncoderDecoder) -> int:
    return 2 * _tie(model)


check_tied = Exercise(
    reference=_tie,
    accept=[_tie_the_other_way],
    run=_run_tie,
    returns=(
        "saved",
        "parameters left",
        "logits after a step (batch, target_len, symbols)",
    ),
    cases={
        "7 source symbols, 5 target symbols": lambda _: (7, 5),
        "11 symbols on both sides": lambda _: (11, 11),
    },
    wrong=(
        Wrong(
            "the numbers are copied, and there are still two parameters",
            "After one step of training they differ. Assign the parameter itself, not its numbers.",
            _copy,
        ),
        Wrong(
            "the two parameters share their memory, but are still two",
            "An optimiser sees two parameters and steps twice. Assign the parameter, not its `data`.",
            _share_memory,
        ),
        Wrong(
            "the output is tied to the embedding of the source",
            "The output layer writes target symbols: `target_embedding` has a row for each of them.",
            _tie_the_source,
        ),
        Wrong(
            "the bias of the output is counted as saved",
            "An embedding has no bias: that of the output layer stays.",
            _count_the_bias,
        ),
        Wrong(
            "this is the number of parameters that are left",
            "Return how many fewer there are than before.",
            _count_what_is_left,
        ),
        Wrong(
            "both matrices are counted as saved", "One of the two stays.", _count_both
        ),
    ),
)

# ------------------------------------------------------------------ exercise 5


def _toy_model(table: Tensor, places: Tensor) -> Callable[[Tensor, Tensor], Tensor]:
    """A model whose next symbol depends on the last one, on the place, and on the source's first token."""

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
    """The answer's beam as two tensors; symbols after an end are filled with it, to a common length."""
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
        table[:, START] -= 5  # a model hardly ever begins anew
        table[:, END] += 0.5
        return table, places, torch.tensor([[symbols - 1, 2]]), beam_size, steps

    return case


_Pair = tuple[float, list[int]]


def _beam(
    keep_ended: Callable[[_Pair], list[_Pair]] | None = lambda pair: [pair],
    score: Callable[[float, Tensor], Tensor] = lambda value, logits: (
        value + logits.log_softmax(-1)
    ),
    cut: Callable[[list[list[_Pair]], int], list[_Pair]] | None = None,
    place: int = -1,
    rank: Callable[[_Pair], float] = lambda pair: pair[0],
) -> Callable[..., list[_Pair]]:
    """Beam search, right with the defaults; `keep_ended=None` continues answers that have ended."""

    def best(groups: list[list[_Pair]], beam_size: int) -> list[_Pair]:
        everything = [pair for group in groups for pair in group]
        return sorted(everything, key=rank, reverse=True)[:beam_size]

    def search(model: Any, source: Tensor, beam_size: int, steps: int) -> list[_Pair]:
        beam: list[_Pair] = [(0.0, [START])]
        for _ in range(steps):
            groups: list[list[_Pair]] = []
            for value, symbols in beam:
                if symbols[-1] == END and keep_ended is not None:
                    groups.append(keep_ended((value, symbols)))
                    continue
                logits = model(source, torch.tensor([symbols]))[0, place]
                scores = score(value, logits).tolist()
                groups.append([(v, [*symbols, s]) for s, v in enumerate(scores)])
            beam = (cut or best)(groups, beam_size)
        return beam

    return search


def _each_its_best(groups: list[list[_Pair]], beam_size: int) -> list[_Pair]:
    """The first step fills the beam; from then on every answer keeps its own best continuation."""
    if len(groups) == 1:
        return sorted(groups[0], reverse=True)[:beam_size]
    return sorted((max(group) for group in groups), reverse=True)


check_beam = Exercise(
    reference=_beam(),
    returns=("log probabilities (beam)", "symbols (beam, 1 + steps)"),
    run=_run_beam,
    cases={
        "a beam of one": _beam_case(5, 1, 3),
        "a beam of three": _beam_case(7, 3, 5),
        "a beam of two, more steps": _beam_case(5, 2, 7),
    },
    wrong=(
        Wrong(
            "only the most probable answer is kept",
            "That is greedy search: after every step keep `beam_size` answers.",
            lambda model, source, _, steps: _beam()(model, source, 1, steps),
        ),
        Wrong(
            "every answer keeps one continuation",
            "Continuations of all answers compete: the best answer may keep several, another none.",
            _beam(cut=_each_its_best),
        ),
        Wrong(
            "an answer that has ended is continued",
            "Carry an answer that ends with END over as it is.",
            _beam(keep_ended=None),
        ),
        Wrong(
            "an answer that has ended is dropped",
            "Carry it over as it is: it stays in the beam until better ones push it out.",
            _beam(keep_ended=lambda _: []),
        ),
        Wrong(
            "only the last symbol's log probability counts",
            "Add it to that of the answer so far.",
            _beam(score=lambda _, logits: logits.log_softmax(-1)),
        ),
        Wrong(
            "logits are added up, not log probabilities",
            "Logits of different steps cannot be compared: apply `log_softmax` first.",
            _beam(score=lambda value, logits: value + logits),
        ),
        Wrong(
            "probabilities are added up",
            "The probability of an answer is a product: add logarithms.",
            _beam(score=lambda value, logits: value + logits.softmax(-1)),
        ),
        Wrong(
            "the logits are read at the first place",
            "The next symbol is predicted at the last place: `[0, -1]`.",
            _beam(place=0),
        ),
        Wrong(
            "the least probable answers are kept",
            "Sort from the largest log probability to the smallest.",
            _beam(rank=lambda pair: -pair[0]),
        ),
        Wrong(
            "answers are ranked by the mean over their symbols",
            "This exercise compares the log probabilities themselves, as `beam_decode` does.",
            _beam(rank=lambda pair: pair[0] / (len(pair[1]) - 1)),
        ),
    ),
)
