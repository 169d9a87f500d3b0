"""Multi-head attention in exchangeable steps, and layers with a wrong step, which a checker knows by name."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any, Protocol

import torch
import torch.nn.functional as F
from torch import Tensor

from mha_lib.attention import _softmax as masked_softmax
from mha_lib.exercises.engine import Wrong
from mha_lib.masking import causal_mask

NAMES = ("q_proj", "k_proj", "v_proj", "out_proj")
Projection = tuple[Tensor, Tensor | None]


class Made(Protocol):
    """A layer that a reader made: all that the formula needs to know of it."""

    embed_dim: int
    num_heads: int

    def projections(self) -> dict[str, Projection]:
        """Weight and bias of each projection, as in `nn.Linear`."""


# ------------------------------------------------------------------ the formula, step by step


def _project(made: Made, name: str, x: Tensor) -> Tensor:
    return F.linear(x, *made.projections()[name])


def _project_all(
    made: Made, query: Tensor, key: Tensor, value: Tensor
) -> tuple[Tensor, ...]:
    inputs = zip(NAMES, (query, key, value), strict=False)
    return tuple(_project(made, name, x) for name, x in inputs)


def _split(x: Tensor, num_heads: int) -> Tensor:
    heads: Tensor = x.unflatten(-1, (num_heads, -1))
    return heads.transpose(1, 2)


def _score(q: Tensor, k: Tensor) -> Tensor:
    scores: Tensor = q @ k.transpose(-2, -1) / q.shape[-1] ** 0.5
    return scores


def _merge(heads: Tensor) -> Tensor:
    return heads.transpose(1, 2).flatten(-2)


def _finish(made: Made, merged: Tensor) -> Tensor:
    return _project(made, "out_proj", merged)


def per_sample(mask: Tensor) -> Tensor:
    """Give a mask for each sample an axis for the heads."""
    return mask.unsqueeze(1) if mask.ndim == 3 else mask


def hide_future(q_len: int, k_len: int) -> Tensor:
    return causal_mask(q_len, k_len)


def show_weights(weights: Tensor, *_: Any) -> Tensor:
    return weights


@dataclass(frozen=True)
class Steps:
    """The layer as exchangeable steps; a wrong answer exchanges one."""

    project: Callable[..., tuple[Tensor, ...]] = _project_all
    split: Callable[[Tensor, int], Tensor] = _split
    split_values: Callable[[Tensor, int], Tensor] | None = None
    score: Callable[[Tensor, Tensor], Tensor] = _score
    fit: Callable[[Tensor], Tensor] = per_sample
    future: Callable[[int, int], Tensor] = hide_future
    weigh: Callable[[Tensor, Tensor | None], Tensor] = masked_softmax
    mix: Callable[[Tensor, Tensor], Tensor] = torch.matmul
    merge: Callable[[Tensor], Tensor] = _merge
    finish: Callable[[Made, Tensor], Tensor] = _finish
    shown: Callable[[Tensor, Tensor | None, Tensor], Tensor] = show_weights

    def __call__(
        self,
        made: Made,
        query: Tensor,
        key: Tensor,
        value: Tensor,
        mask: Tensor | None,
        is_causal: bool = False,
    ) -> tuple[Tensor, Tensor]:
        num_heads = made.num_heads
        q, k, v = self.project(made, query, key, value)
        q, k = self.split(q, num_heads), self.split(k, num_heads)
        v = (self.split_values or self.split)(v, num_heads)
        scores = self.score(q, k)
        if is_causal:
            mask = self.future(query.shape[1], key.shape[1])
        if mask is not None:
            mask = self.fit(mask).expand(scores.shape)
        weights = self.weigh(scores, mask)
        output = self.finish(made, self.merge(self.mix(weights, v)))
        return output, self.shown(weights, mask, scores)


def _wrong(name: str, cause: str, **steps: Any) -> Wrong:
    return Wrong(name, cause, Steps(**steps))


# ------------------------------------------------------------------ wrong steps


def _raw_cut(x: Tensor, num_heads: int) -> Tensor:
    return x.reshape(x.shape[0], num_heads, x.shape[1], -1)


def _raw_merge(heads: Tensor) -> Tensor:
    return heads.reshape(heads.shape[0], heads.shape[2], -1)


def _dealt_cut(x: Tensor, num_heads: int) -> Tensor:
    heads: Tensor = x.unflatten(-1, (-1, num_heads))
    return heads.movedim(-1, 1)


def _dealt_merge(heads: Tensor) -> Tensor:
    return heads.permute(0, 2, 3, 1).flatten(-2)


def _cut_then_project(made: Made, *inputs: Tensor) -> tuple[Tensor, ...]:
    """Each head sees only its own columns of the input."""
    heads, found = made.num_heads, made.projections()
    results = []
    for name, x in zip(NAMES, inputs, strict=False):
        weight, bias = found[name]
        if x.shape[-1] != made.embed_dim:
            raise RuntimeError(
                f"{x.shape[-1]} columns cannot be cut into {heads} heads"
            )
        pairs = zip(x.chunk(heads, -1), weight.chunk(heads), strict=True)
        parts = [
            part @ rows.chunk(heads, 1)[i].T for i, (part, rows) in enumerate(pairs)
        ]
        results.append(torch.cat(parts, -1) + (0 if bias is None else bias))
    return tuple(results)


def _projected_by(*names: str) -> Callable[..., tuple[Tensor, ...]]:
    """Queries, keys and values by projections of these names; "" leaves the input as it is."""

    def project(made: Made, *inputs: Tensor) -> tuple[Tensor, ...]:
        pairs = zip(names, inputs, strict=True)
        return tuple(_project(made, name, x) if name else x for name, x in pairs)

    return project


def _taken_from(*places: int) -> Callable[..., tuple[Tensor, ...]]:
    """Queries, keys and values from other inputs: 0 is the query, 1 the key, 2 the value."""
    return lambda made, *inputs: _project_all(made, *(inputs[i] for i in places))


def _transposed_projections(made: Made, *inputs: Tensor) -> tuple[Tensor, ...]:
    found = made.projections()
    results = []
    for name, x in zip(NAMES, inputs, strict=False):
        weight, bias = found[name]
        results.append(x @ weight + (0 if bias is None else bias))
    return tuple(results)


def _without_biases(made: Made, *inputs: Tensor) -> tuple[Tensor, ...]:
    found = made.projections()
    pairs = zip(NAMES, inputs, strict=False)
    return tuple(F.linear(x, found[name][0]) for name, x in pairs)


def _out(
    made: Made, x: Tensor, *, transposed: bool = False, bias: bool = True
) -> Tensor:
    weight, offset = made.projections()["out_proj"]
    product = x @ (weight if transposed else weight.T)
    return product + offset if bias and offset is not None else product


def _scaled(
    factor: Callable[[Tensor, Tensor], float],
) -> Callable[[Tensor, Tensor], Tensor]:
    return lambda q, k: q @ k.transpose(-2, -1) * factor(q, k)


def _filled(number: float) -> Callable[[Tensor, Tensor | None], Tensor]:
    def weigh(scores: Tensor, mask: Tensor | None) -> Tensor:
        if mask is not None:
            scores = scores.masked_fill(~mask, number)
        return scores.softmax(-1)

    return weigh


def _filled_and_zeroed(number: float, scores: Tensor, mask: Tensor) -> Tensor:
    return _filled(number)(scores, mask) * mask


def _softmax_over(axis: int) -> Callable[[Tensor, Tensor | None], Tensor]:
    def weigh(scores: Tensor, mask: Tensor | None) -> Tensor:
        if mask is None:
            return scores.softmax(axis)
        low = torch.finfo(scores.dtype).min
        return scores.masked_fill(~mask, low).softmax(axis) * mask

    return weigh


def _with_mask(
    change: Callable[[Tensor, Tensor], Tensor],
) -> Callable[[Tensor, Tensor | None], Tensor]:
    """Weights that are wrong only if there is a mask."""
    return lambda scores, mask: (
        scores.softmax(-1) if mask is None else change(scores, mask)
    )


def _divided_again(scores: Tensor, mask: Tensor) -> Tensor:
    weights = scores.softmax(-1) * mask
    return weights / weights.sum(-1, keepdim=True)


def _first_head_only(scores: Tensor, mask: Tensor) -> Tensor:
    mask = mask.clone()
    mask[:, 1:] = True
    return masked_softmax(scores, mask)


def _tiled(scores: Tensor, mask: Tensor) -> Tensor:
    """The mask of sample (batch * num_heads) % batch, as `repeat` gives it to heads folded into the batch."""
    batch, heads = scores.shape[:2]
    folded = mask[:, 0].repeat(heads, 1, 1)
    return masked_softmax(scores, folded.view(batch, heads, *mask.shape[2:]))


def _spread(pool: Callable[[Tensor], Tensor]) -> Callable[[Tensor], Tensor]:
    """All heads are replaced by one: their mean, their sum, the first."""
    return lambda heads: _merge(pool(heads).expand_as(heads))


def _averaged(weights: Tensor, *_: Any) -> Tensor:
    return weights.mean(1)


def _masked_scores(_: Tensor, mask: Tensor | None, scores: Tensor) -> Tensor:
    return scores if mask is None else scores.masked_fill(~mask, -torch.inf)


def _twice(made: Made, merged: Tensor) -> Tensor:
    return _finish(made, _finish(made, merged))


def _scaled_weights(made: Made, *inputs: Any, **options: Any) -> tuple[Tensor, Tensor]:
    root = (made.embed_dim / made.num_heads) ** 0.5
    steps = Steps(
        score=_scaled(lambda *_: 1.0),
        weigh=lambda scores, mask: masked_softmax(scores, mask) / root,
    )
    return steps(made, *inputs, **options)


WRONG = (
    # Cutting and merging.
    _wrong(
        "the heads are cut without a transpose",
        "`view(batch, num_heads, len, head_dim)` mixes tokens; cut the last axis, "
        "`view(batch, len, num_heads, head_dim)`, and then exchange the axes 1 and 2.",
        split=_raw_cut,
    ),
    _wrong(
        "the heads are merged without a transpose",
        "`reshape` reads the numbers in the order (heads, len); exchange the axes 1 and 2 first, so that the "
        "heads of one token stand side by side.",
        merge=_raw_merge,
    ),
    _wrong(
        "the heads are cut and merged without a transpose",
        "Every head gets a block of tokens instead of a block of columns; exchange the axes 1 and 2 after "
        "the cut and before the merge.",
        split=_raw_cut,
        merge=_raw_merge,
    ),
    _wrong(
        "the values are cut without a transpose",
        "Queries and keys are cut correctly; cut the values in the same way.",
        split_values=_raw_cut,
    ),
    _wrong(
        "tokens and heads are exchanged",
        "The scores compare the heads of one token with each other; exchange the axes 1 and 2 after "
        "the cut, so that the last two axes are len and head_dim.",
        split=lambda x, heads: x.unflatten(-1, (heads, -1)),
        merge=lambda heads: heads.flatten(-2),
        fit=lambda mask: mask,
    ),
    _wrong(
        "the columns are dealt out to the heads in turn",
        "`view(batch, len, head_dim, num_heads)` gives head i the columns i, i + num_heads, …; head i owns "
        "head_dim neighbouring columns: `view(batch, len, num_heads, head_dim)`.",
        split=_dealt_cut,
    ),
    _wrong(
        "the columns are dealt out to the heads in turn, and merged so",
        "Head i owns head_dim neighbouring columns: `view(batch, len, num_heads, head_dim)`.",
        split=_dealt_cut,
        merge=_dealt_merge,
    ),
    _wrong(
        "the merge mixes the columns of the heads",
        "All numbers of head 0 come first, then all of head 1; transpose to (batch, len, num_heads, "
        "head_dim) and flatten the last two axes.",
        merge=_dealt_merge,
    ),
    _wrong(
        "the heads are averaged",
        "The mean of the heads takes the place of all of them; put them side by side.",
        merge=_spread(lambda heads: heads.mean(1, keepdim=True)),
    ),
    _wrong(
        "the heads are added up before the output projection",
        "Their sum takes the place of all of them; put them side by side, each has its own columns of "
        "`out_proj`.",
        merge=_spread(lambda heads: heads.sum(1, keepdim=True)),
    ),
    _wrong(
        "the contributions of the heads are averaged",
        "The output is the sum of head_i W_i over the heads; it is divided by num_heads here.",
        merge=lambda heads: _merge(heads) / heads.shape[1],
    ),
    _wrong(
        "only the first head is used",
        "All heads take the columns of the first one; look at the index in the loop.",
        split=lambda x, heads: _split(x, heads)[:, :1].expand(-1, heads, -1, -1),
    ),
    _wrong(
        "only the first head is used",
        "All heads return what the first one does; look at the index in the loop.",
        merge=_spread(lambda heads: heads[:, :1]),
    ),
    _wrong(
        "only the last head is used",
        "All heads return what the last one does; look at what the loop overwrites.",
        merge=_spread(lambda heads: heads[:, -1:]),
    ),
    _wrong(
        "the heads are merged in reverse order",
        "Head 0 comes first.",
        merge=lambda heads: _merge(heads.flip(1)),
    ),
    # Projections.
    _wrong(
        "the inputs are cut into heads before the projection",
        "Each head then sees only its own columns of the input; project first, so that every head sees the "
        "whole token, and cut the result.",
        project=_cut_then_project,
    ),
    _wrong(
        "k_proj is used for the values",
        "Values have a projection of their own, `v_proj`.",
        project=_projected_by("q_proj", "k_proj", "k_proj"),
    ),
    _wrong(
        "q_proj is used for the keys",
        "Keys have a projection of their own, `k_proj`.",
        project=_projected_by("q_proj", "q_proj", "v_proj"),
    ),
    _wrong(
        "q_proj is used for queries, keys and values",
        "Each of the three has a projection of its own.",
        project=_projected_by("q_proj", "q_proj", "q_proj"),
    ),
    _wrong(
        "v_proj is used for the keys",
        "Keys have a projection of their own, `k_proj`.",
        project=_projected_by("q_proj", "v_proj", "v_proj"),
    ),
    _wrong(
        "k_proj and v_proj are exchanged",
        "`k_proj` makes the keys, `v_proj` the values.",
        project=_projected_by("q_proj", "v_proj", "k_proj"),
    ),
    _wrong(
        "q_proj and k_proj are exchanged",
        "`q_proj` makes the queries, `k_proj` the keys.",
        project=_projected_by("k_proj", "q_proj", "v_proj"),
    ),
    _wrong(
        "the values are not projected",
        "Only queries and keys are; the values need `v_proj`.",
        project=_projected_by("q_proj", "k_proj", ""),
    ),
    _wrong(
        "nothing is projected before the cut",
        "Queries, keys and values need `q_proj`, `k_proj` and `v_proj`.",
        project=_projected_by("", "", ""),
    ),
    _wrong(
        "the values are made from the keys",
        "`v_proj` is applied to `key`; apply it to `value`.",
        project=_taken_from(0, 1, 1),
    ),
    _wrong(
        "the keys are made from the values",
        "`k_proj` is applied to `value`; apply it to `key`.",
        project=_taken_from(0, 2, 2),
    ),
    _wrong(
        "keys and values are exchanged",
        "`k_proj` is applied to `value` and `v_proj` to `key`.",
        project=_taken_from(0, 2, 1),
    ),
    _wrong(
        "keys and values are made from the query",
        "That is right only in self-attention, where all three inputs are the same.",
        project=_taken_from(0, 0, 0),
    ),
    _wrong(
        "the projections are transposed",
        "`nn.Linear` computes `x @ weight.T`.",
        project=_transposed_projections,
    ),
    _wrong(
        "the output projection is forgotten",
        "Return `out_proj` of the merged heads; without it, each output number comes from one head.",
        finish=lambda _, merged: merged,
    ),
    _wrong(
        "the output projection is transposed",
        "`nn.Linear` computes `x @ weight.T`.",
        finish=partial(_out, transposed=True),
    ),
    _wrong(
        "the output projection is applied twice",
        "Apply it once, to the merged heads.",
        finish=_twice,
    ),
    _wrong(
        "the biases are forgotten",
        "The projections have biases, and none of them is added.",
        project=_without_biases,
        finish=partial(_out, bias=False),
    ),
    _wrong(
        "the biases of q_proj, k_proj and v_proj are forgotten",
        "Only that of `out_proj` is added.",
        project=_without_biases,
    ),
    _wrong(
        "the bias of out_proj is forgotten",
        "Only those of the other projections are added.",
        finish=partial(_out, bias=False),
    ),
    # Scores.
    _wrong(
        "the scores are not scaled",
        "Divide them by the square root of head_dim.",
        score=_scaled(lambda *_: 1.0),
    ),
    _wrong(
        "the scale has the wrong width",
        "The scores are divided by the root of embed_dim; a head's dot product runs over head_dim numbers.",
        score=_scaled(lambda q, _: (q.shape[1] * q.shape[-1]) ** -0.5),
    ),
    _wrong(
        "the scores are divided by head_dim",
        "The square root is missing, or the scale is applied twice.",
        score=_scaled(lambda q, _: 1 / q.shape[-1]),
    ),
    _wrong(
        "the scores are multiplied by the scale",
        "Divide by the square root of head_dim.",
        score=_scaled(lambda q, _: q.shape[-1] ** 0.5),
    ),
    _wrong(
        "the scale is the root of the number of heads",
        "A head's dot product runs over head_dim numbers, not over heads; look at the axes after the cut.",
        score=_scaled(lambda q, _: q.shape[1] ** -0.5),
    ),
    _wrong(
        "the scale is the root of the number of keys",
        "It is the width of a head that makes dot products large; look at the axis that you read.",
        score=_scaled(lambda _, k: k.shape[-2] ** -0.5),
    ),
    _wrong(
        "the scale is the root of the number of queries",
        "It is the width of a head that makes dot products large; look at the axis that you read.",
        score=_scaled(lambda q, _: q.shape[-2] ** -0.5),
    ),
    Wrong(
        "the scale comes after the softmax",
        "Divide the scores, not the weights, which must add up to 1.",
        _scaled_weights,
    ),
    _wrong(
        "each head compares its queries with the keys of another head",
        "Query and key of one head have the same index on the head axis.",
        score=lambda q, k: _score(q, k.roll(1, 1)),
    ),
    _wrong(
        "every sample uses the keys of the first one",
        "The batch axis of the keys is lost; it must take part in the product.",
        score=lambda q, k: _score(q, k[:1]),
    ),
    # Softmax.
    _wrong(
        "the softmax runs over the queries",
        "The weights of each query must add up to 1; use `dim=-1`, the axis of the keys.",
        weigh=_softmax_over(-2),
    ),
    _wrong(
        "the softmax runs over the heads",
        "`dim=1` is the axis of the heads; use `dim=-1`, the axis of the keys.",
        weigh=_softmax_over(1),
    ),
    _wrong(
        "the softmax runs over the batch",
        "`dim=0` is the axis of the samples; use `dim=-1`, the axis of the keys.",
        weigh=_softmax_over(0),
    ),
    _wrong(
        "the softmax is missing",
        "Scores are not weights: they may be negative and do not add up to 1.",
        weigh=lambda scores, mask: (
            scores if mask is None else scores.masked_fill(~mask, 0.0)
        ),
    ),
    _wrong(
        "the softmax is applied twice",
        "The second one makes the weights nearly equal.",
        weigh=lambda scores, mask: masked_softmax(masked_softmax(scores, mask), mask),
    ),
    _wrong(
        "a sigmoid takes the place of the softmax",
        "The weights of each query must add up to 1.",
        weigh=lambda scores, mask: (
            scores.sigmoid() if mask is None else scores.sigmoid() * mask
        ),
    ),
    # The mask.
    _wrong(
        "the mask is not used",
        "Hidden keys still get weight; set their scores to -inf before the softmax.",
        weigh=_with_mask(lambda scores, _: scores.softmax(-1)),
    ),
    _wrong(
        "the mask is inverted",
        "True means that the query may attend to the key; fill where the mask is False, at `~mask`.",
        weigh=_with_mask(lambda scores, mask: masked_softmax(scores, ~mask)),
    ),
    _wrong(
        "the mask comes after the softmax",
        "The weights of the visible keys no longer add up to 1; hide the scores before the softmax.",
        weigh=_with_mask(lambda scores, mask: scores.softmax(-1) * mask),
    ),
    _wrong(
        "the weights are masked after the softmax and divided again",
        "If a hidden score is large, the visible weights underflow to 0 and are divided by 0; hide the "
        "scores before the softmax.",
        weigh=_with_mask(_divided_again),
    ),
    _wrong(
        "the values are masked instead of the scores",
        "Hidden values become zeros, but their keys keep their share of the weight; hide the scores before "
        "the softmax.",
        weigh=_with_mask(lambda scores, mask: scores.softmax(-1) * mask),
        shown=lambda *all_three: all_three[2].softmax(-1),
    ),
    _wrong(
        "hidden scores are set to 0",
        "A score of 0 still has the weight exp(0) = 1 before the division; only -inf has none.",
        weigh=_filled(0.0),
    ),
    _wrong(
        "the mask is added to the scores as 0 and 1",
        "That raises the visible scores by 1 only; replace the hidden scores by -inf.",
        weigh=_with_mask(lambda scores, mask: (scores + mask).softmax(-1)),
    ),
    _wrong(
        "a query that sees nothing gets NaN",
        "A row of only -inf is 0 / 0 in the softmax; set the weights of such a row to 0.",
        weigh=_filled(-torch.inf),
    ),
    _wrong(
        "a query that sees nothing gets equal weights",
        "The fill is the same for all keys of that row, and the softmax spreads the weight evenly; multiply "
        "the weights by the mask.",
        weigh=_filled(torch.finfo(torch.float32).min),
    ),
    *(
        _wrong(
            "the hidden scores are filled with a number that is not low enough",
            "Where the visible scores are lower than the fill, the hidden keys win; fill with -inf or the "
            "smallest number of the dtype.",
            weigh=weigh,
        )
        for number in (-1e4, -1e5, -1e3, -1e2, -1e1)
        for weigh in (_filled(number), _with_mask(partial(_filled_and_zeroed, number)))
    ),
    _wrong(
        "all samples use the mask of the first one",
        "A mask for each sample has a batch axis; give it an axis for the heads with `unsqueeze(1)`.",
        weigh=_with_mask(lambda scores, mask: masked_softmax(scores, mask[:1])),
    ),
    _wrong(
        "the masks of the samples are repeated in the wrong order",
        "If heads are folded into the batch, sample 0 comes num_heads times, then sample 1: use "
        "`repeat_interleave`, not `repeat`.",
        weigh=_with_mask(_tiled),
    ),
    _wrong(
        "the mask hides keys from the first head only",
        "One mask serves all heads; an axis of size 1 broadcasts.",
        weigh=_with_mask(_first_head_only),
    ),
    _wrong(
        "the mask has no axis for the heads",
        "A mask (batch, 1 or q_len, k_len) meets scores (batch, num_heads, q_len, k_len), and its batch axis "
        "stands beside the heads; use `unsqueeze(1)`.",
        fit=lambda mask: mask,
    ),
    _wrong(
        "the future is hidden at the wrong corner",
        "If there are fewer queries than keys, queries and keys end together: the last query sees every key. "
        "Use `tril(k_len - q_len)`.",
        future=lambda q_len, k_len: torch.ones(q_len, k_len).tril().bool(),
    ),
    _wrong(
        "a query sees one token of the future",
        "Query i may see the keys up to its own position, and no further: the diagonal is one too high.",
        future=lambda q_len, k_len: (
            torch.ones(q_len, k_len).tril(k_len - q_len + 1) > 0
        ),
    ),
    _wrong(
        "a query does not see its own position",
        "The diagonal is one too low: query i may see key i.",
        future=lambda q_len, k_len: (
            torch.ones(q_len, k_len).tril(k_len - q_len - 1).bool()
        ),
    ),
    _wrong(
        "the past is hidden instead of the future",
        "Keep the lower triangle (`tril`), where the key is not later than the query.",
        future=lambda q_len, k_len: torch.ones(q_len, k_len).triu(k_len - q_len).bool(),
    ),
    _wrong(
        "is_causal does nothing",
        "With `is_causal=True` a query must not see later keys.",
        future=lambda q_len, k_len: torch.ones(q_len, k_len).bool(),
    ),
    # What is returned, and gradients.
    _wrong(
        "the weights are averaged over the heads",
        "Each head has its own; return (batch, num_heads, q_len, k_len).",
        shown=_averaged,
    ),
    _wrong(
        "the scores are returned in the place of the weights",
        "The output is right; return what the softmax made.",
        shown=_masked_scores,
    ),
    _wrong(
        "the scores are returned in the place of the weights",
        "The output is right; return what the softmax made.",
        shown=lambda *all_three: all_three[2],
    ),
    _wrong(
        "no gradient flows through the weights",
        "They were detached (`detach`, `data`, `no_grad`), so that `q_proj` and `k_proj` cannot learn.",
        mix=lambda weights, v: weights.detach() @ v,
    ),
    _wrong(
        "no gradient flows through the values",
        "They were detached (`detach`, `data`, `no_grad`), so that `v_proj` cannot learn.",
        mix=lambda weights, v: weights @ v.detach(),
    ),
)
