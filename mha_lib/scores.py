"""Scoring functions: how well a query matches a key.

Every rule maps query (..., q_len, d) and key (..., k_len, d) to scores (..., q_len, k_len), so attention
works with any of them. Leading axes broadcast. The body of each function is only the formula, because the
decorator above it checks the arguments first.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from functools import partial
from typing import TypeAlias

import torch
import torch.nn.functional as F
from jaxtyping import Float
from torch import Tensor, nn

from mha_lib import _checks
from mha_lib._checks import Device, DType, FactoryKwargs, Positions, checked, unchecked

# (query, key) -> scores, (..., q_len, d) x (..., k_len, d) -> (..., q_len, k_len)
ScoringRule: TypeAlias = Callable[..., Tensor]


@checked(_checks.check_pair)
def dot_product_score(
    query: Float[Tensor, "*#batch q_len d"], key: Float[Tensor, "*#batch k_len d"]
) -> Float[Tensor, "*batch q_len k_len"]:
    """Dot product q·k (Luong et al., 2015, "dot"): (..., q_len, d), (..., k_len, d) -> (..., q_len, k_len).

    For independent entries of mean 0 and variance 1, the standard deviation of the scores is √d.

    Raises:
        TypeError: `query` and `key` are not floating-point tensors of the same dtype.
        ValueError: their widths `d` differ, or the leading axes do not broadcast.

    Example:
        >>> dot_product_score(torch.tensor([[1.0, 2.0]]), torch.tensor([[3.0, 4.0], [0.0, 1.0]])).tolist()
        [[11.0, 2.0]]
    """
    return query @ key.transpose(-2, -1)


_dot_product = unchecked(dot_product_score)  # used by the other rules


@checked(_checks.check_pair)
def scaled_dot_product_score(
    query: Float[Tensor, "*#batch q_len d"],
    key: Float[Tensor, "*#batch k_len d"],
    *,
    scale: float | Float[Tensor, "..."] | None = None,
) -> Float[Tensor, "*batch q_len k_len"]:
    """Dot product divided by √d, q·k / √d (Vaswani et al., 2017, equation 1).

    Arguments and errors are those of `dot_product_score`. In addition, `scale` replaces 1/√d: a positive
    number, or a tensor of shape () or (num_heads, 1, 1), which may be learned. With the default scale and
    independent entries of mean 0 and variance 1, the standard deviation of the scores is 1, whatever d is.

    Example:
        >>> scaled_dot_product_score(torch.tensor([[1.0, 2.0, 2.0, 4.0]]), torch.ones(1, 4)).tolist()
        [[4.5]]
    """
    # Scaling the query takes q_len * d multiplications; scaling the scores would take q_len * k_len.
    if scale is None:
        return query / math.sqrt(query.shape[-1]) @ key.transpose(-2, -1)
    return (query * scale).to(key.dtype) @ key.transpose(-2, -1)


@checked(_checks.check_cap)
def softcap_scores(
    scores: Float[Tensor, "*shape"], cap: float
) -> Float[Tensor, "*shape"]:
    """Limit scores smoothly to -cap..cap with cap · tanh(score / cap) (Gemma Team, 2024, §2).

    The scores may have any shape; the result has the same shape and dtype. Small scores hardly change, and
    none exceeds the positive `cap`, so no weight is more than exp(2 · cap) times another.

    Raises:
        TypeError, ValueError: `scores` is not floating-point, or `cap` not a number, or not positive.

    Example:
        >>> softcap_scores(torch.tensor([0.0, 25.0, 1000.0]), cap=50.0).round().tolist()
        [0.0, 23.0, 50.0]
    """
    return cap * torch.tanh(scores / cap)


def _compose_rule(
    score: ScoringRule | None,
    scale: float | Tensor | None,
    softcap: float | None,
    positions: Positions | None = None,
) -> ScoringRule | None:
    """Combine the settings into one rule; None stands for the scaled dot product of torch's kernel."""
    rule = None if score is None else _checks.checked_rule(score, positions)
    if softcap is None:
        return rule
    inner = rule or partial(unchecked(scaled_dot_product_score), scale=scale)
    return lambda query, key: unchecked(softcap_scores)(inner(query, key), softcap)


@checked(_checks.check_pair)
def cosine_score(
    query: Float[Tensor, "*#batch q_len d"], key: Float[Tensor, "*#batch k_len d"]
) -> Float[Tensor, "*batch q_len k_len"]:
    """Cosine of the angle between query and key, in -1..1; a zero vector scores 0.

    Arguments and errors are those of `dot_product_score`.

    Example:
        >>> cosine_score(torch.tensor([[2.0, 0.0]]), torch.tensor([[5.0, 0.0], [0.0, 3.0]])).tolist()
        [[1.0, 0.0]]
    """
    return _dot_product(F.normalize(query, dim=-1), F.normalize(key, dim=-1))


def _check_gaussian(query: Tensor, key: Tensor, bandwidth: object = 1.0) -> None:
    _checks.check_pair(query, key)
    if isinstance(bandwidth, Tensor):
        low = torch.finfo(torch.float32).tiny
        _checks.check_numbers("bandwidth", bandwidth, low, math.inf, "be positive")
    else:
        _checks.check_positive("bandwidth", bandwidth)


@checked(_check_gaussian)
def gaussian_score(
    query: Float[Tensor, "*#batch q_len d"],
    key: Float[Tensor, "*#batch k_len d"],
    bandwidth: float | Float[Tensor, "..."] = 1.0,
) -> Float[Tensor, "*batch q_len k_len"]:
    """Logarithm of the Gaussian kernel, -|q - k|² / (2 bandwidth²).

    The softmax of this score is Nadaraya-Watson kernel regression (Nadaraya, 1964; Watson, 1964).
    Arguments and errors are those of `dot_product_score`. In addition, `bandwidth` is the positive width of
    the kernel in the units of query and key; it may be a tensor that requires grad, and is then learned.

    Example:
        >>> gaussian_score(torch.tensor([[0.0, 0.0]]), torch.tensor([[3.0, 4.0]]), bandwidth=5.0).tolist()
        [[-0.5]]
    """
    difference = query.unsqueeze(-2) - key.unsqueeze(-3)
    return -difference.square().sum(-1) / (2 * bandwidth**2)


class AdditiveScore(nn.Module):
    """Additive score w·tanh(W_q q + W_k k) (Bahdanau et al., 2015, appendix A.1.2).

    Query and key may have different widths, `query_dim` and `key_dim`. The hidden layer, tanh(...), has width
    `hidden_dim`. Parameters: hidden_dim * (query_dim + key_dim + 1).

    Raises:
        TypeError, ValueError: a width is not an int, or not positive.

    Example:
        >>> score = AdditiveScore(query_dim=3, key_dim=5, hidden_dim=7)
        >>> score(torch.ones(2, 4, 3), torch.ones(2, 6, 5)).shape
        torch.Size([2, 4, 6])
    """

    def __init__(
        self,
        query_dim: int,
        key_dim: int,
        hidden_dim: int,
        *,
        device: Device = None,
        dtype: DType = None,
    ) -> None:
        super().__init__()
        _checks.check_sizes(query_dim=query_dim, key_dim=key_dim, hidden_dim=hidden_dim)
        factory_kwargs: FactoryKwargs = {"device": device, "dtype": dtype}
        self.query_proj = nn.Linear(query_dim, hidden_dim, bias=False, **factory_kwargs)
        self.key_proj = nn.Linear(key_dim, hidden_dim, bias=False, **factory_kwargs)
        self.score_proj = nn.Linear(hidden_dim, 1, bias=False, **factory_kwargs)

    def forward(
        self,
        query: Float[Tensor, "*#batch q_len query_dim"],
        key: Float[Tensor, "*#batch k_len key_dim"],
    ) -> Float[Tensor, "*batch q_len k_len"]:
        """Score (..., q_len, query_dim) against (..., k_len, key_dim): (..., q_len, k_len).

        Arguments and errors are those of `dot_product_score`, with the layer's own widths and dtype.
        """
        dims = self.query_proj.in_features, self.key_proj.in_features
        _checks.check_vectors(query, key, dims)
        # (..., q_len, 1, hidden) + (..., 1, k_len, hidden)
        hidden = self.query_proj(query).unsqueeze(-2) + self.key_proj(key).unsqueeze(-3)
        return torch.squeeze(self.score_proj(torch.tanh(hidden)), -1)


class BilinearScore(nn.Module):
    """Bilinear score q·W k (Luong et al., 2015, "general").

    Query and key may have different widths. Parameters: query_dim * key_dim.

    Raises:
        TypeError, ValueError: a width is not an int, or not positive.

    Example:
        >>> BilinearScore(query_dim=3, key_dim=5)(torch.ones(2, 4, 3), torch.ones(2, 6, 5)).shape
        torch.Size([2, 4, 6])
    """

    def __init__(
        self,
        query_dim: int,
        key_dim: int,
        *,
        device: Device = None,
        dtype: DType = None,
    ) -> None:
        super().__init__()
        _checks.check_sizes(query_dim=query_dim, key_dim=key_dim)
        self.key_proj = nn.Linear(
            key_dim, query_dim, bias=False, device=device, dtype=dtype
        )

    def forward(
        self,
        query: Float[Tensor, "*#batch q_len query_dim"],
        key: Float[Tensor, "*#batch k_len key_dim"],
    ) -> Float[Tensor, "*batch q_len k_len"]:
        """Score (..., q_len, query_dim) against (..., k_len, key_dim): (..., q_len, k_len).

        Arguments and errors are those of `dot_product_score`, with the layer's own widths and dtype.
        """
        dims = self.key_proj.out_features, self.key_proj.in_features
        _checks.check_vectors(query, key, dims)
        return _dot_product(query, self.key_proj(key))
