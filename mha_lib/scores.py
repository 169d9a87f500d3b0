"""Scoring functions: how well a query matches a key.

Every rule has the same signature, (..., q_len, d) x (..., k_len, d) -> (..., q_len, k_len), so that the rest
of attention does not know which one it is given. Leading axes broadcast.
"""

from __future__ import annotations

import math

import torch
import torch.nn.functional as F
from jaxtyping import Float
from torch import Tensor, nn

from mha_lib._checks import (
    check_float_tensor,
    check_pair,
    check_positive,
    check_positive_int,
    check_same_kind,
    extremes,
)


def dot_product_score(
    query: Float[Tensor, "*#batch q_len d"], key: Float[Tensor, "*#batch k_len d"]
) -> Float[Tensor, "*batch q_len k_len"]:
    """Dot product q·k (Luong et al., 2015, "dot").

    Args:
        query: (..., q_len, d).
        key: (..., k_len, d).

    Returns:
        Scores (..., q_len, k_len). For independent unit-variance entries their standard deviation is √d.

    Raises:
        TypeError: not floating-point tensors of one dtype.
        ValueError: `d` differs, or the leading axes do not broadcast.

    Example:
        >>> dot_product_score(torch.tensor([[1.0, 2.0]]), torch.tensor([[3.0, 4.0], [0.0, 1.0]])).tolist()
        [[11.0, 2.0]]
    """
    check_pair(query, key)
    return query @ key.transpose(-2, -1)


def scaled_dot_product_score(
    query: Float[Tensor, "*#batch q_len d"],
    key: Float[Tensor, "*#batch k_len d"],
    *,
    scale: float | None = None,
) -> Float[Tensor, "*batch q_len k_len"]:
    """Dot product over √d, q·k / √d (Vaswani et al., 2017, equation 1).

    Args:
        query: (..., q_len, d).
        key: (..., k_len, d).
        scale: factor in the place of 1/√d; positive.

    Returns:
        Scores (..., q_len, k_len). For independent unit-variance entries their standard deviation is 1,
        whatever d.

    Raises:
        TypeError: not floating-point tensors of one dtype, or `scale` is not a number.
        ValueError: `d` differs, the leading axes do not broadcast, or `scale` is not positive.

    Example:
        >>> scaled_dot_product_score(torch.tensor([[1.0, 2.0, 2.0, 4.0]]), torch.ones(1, 4)).tolist()
        [[4.5]]
    """
    check_pair(query, key)
    # Scaling the query costs q_len * d products instead of q_len * k_len, and keeps
    # half precision in range.
    if scale is None:
        return (query / math.sqrt(query.shape[-1])) @ key.transpose(-2, -1)
    check_positive("scale", scale)
    return (query * scale) @ key.transpose(-2, -1)


def softcap_scores(
    scores: Float[Tensor, "*shape"], cap: float
) -> Float[Tensor, "*shape"]:
    """Bend scores smoothly into -cap..cap, cap · tanh(score / cap) (Gemma Team, 2024, §2).

    Small scores hardly change; no score gets beyond the cap, so no weight can take everything.

    Args:
        scores: any shape.
        cap: the limit, in the units of the scores; positive.

    Returns:
        Scores of the same shape and dtype.

    Raises:
        TypeError: `scores` is not a floating-point tensor, or `cap` is not a number.
        ValueError: `cap` is not positive.

    Example:
        >>> softcap_scores(torch.tensor([0.0, 25.0, 1000.0]), cap=50.0).round().tolist()
        [0.0, 23.0, 50.0]
    """
    check_float_tensor("scores", scores, axes="...")
    check_positive("cap", cap)
    return cap * torch.tanh(scores / cap)


def cosine_score(
    query: Float[Tensor, "*#batch q_len d"], key: Float[Tensor, "*#batch k_len d"]
) -> Float[Tensor, "*batch q_len k_len"]:
    """Cosine of the angle between query and key, in -1..1; a zero vector scores 0.

    Args:
        query: (..., q_len, d).
        key: (..., k_len, d).

    Returns:
        Scores (..., q_len, k_len).

    Raises:
        TypeError: not floating-point tensors of one dtype.
        ValueError: `d` differs, or the leading axes do not broadcast.

    Example:
        >>> cosine_score(torch.tensor([[2.0, 0.0]]), torch.tensor([[5.0, 0.0], [0.0, 3.0]])).tolist()
        [[1.0, 0.0]]
    """
    check_pair(query, key)
    return F.normalize(query, dim=-1) @ F.normalize(key, dim=-1).transpose(-2, -1)


def gaussian_score(
    query: Float[Tensor, "*#batch q_len d"],
    key: Float[Tensor, "*#batch k_len d"],
    bandwidth: float | Float[Tensor, "..."] = 1.0,
) -> Float[Tensor, "*batch q_len k_len"]:
    """Logarithm of the Gaussian kernel, -|q - k|² / (2 bandwidth²).

    The softmax of this score is Nadaraya-Watson kernel regression (Nadaraya, 1964; Watson, 1964).

    Args:
        query: (..., q_len, d).
        key: (..., k_len, d).
        bandwidth: width of the kernel, in the units of query and key; positive. A tensor that requires grad
            is learned.

    Returns:
        Scores (..., q_len, k_len), at most 0.

    Raises:
        TypeError: not floating-point tensors of one dtype.
        ValueError: `d` differs, the leading axes do not broadcast, or `bandwidth` is not positive.

    Example:
        >>> gaussian_score(torch.tensor([[0.0, 0.0]]), torch.tensor([[3.0, 4.0]]), bandwidth=5.0).tolist()
        [[-0.5]]
    """
    check_pair(query, key)
    if isinstance(bandwidth, Tensor):
        limits = extremes(bandwidth)
        if limits is not None and not limits[0] > 0:
            raise ValueError(f"bandwidth must be positive, got {bandwidth}")
    else:
        check_positive("bandwidth", bandwidth)
    difference = query.unsqueeze(-2) - key.unsqueeze(-3)
    return -difference.square().sum(-1) / (2 * bandwidth**2)


class AdditiveScore(nn.Module):
    """Additive score w·tanh(W_q q + W_k k) (Bahdanau et al., 2015, appendix A.1.2).

    Query and key may have different widths. Parameters: hidden_dim * (query_dim + key_dim + 1).

    Args:
        query_dim: width of a query.
        key_dim: width of a key.
        hidden_dim: width of the hidden layer.

    Raises:
        TypeError: a width is not an int.
        ValueError: a width is not positive.

    Example:
        >>> score = AdditiveScore(query_dim=3, key_dim=5, hidden_dim=7)
        >>> score(torch.ones(2, 4, 3), torch.ones(2, 6, 5)).shape
        torch.Size([2, 4, 6])
    """

    def __init__(self, query_dim: int, key_dim: int, hidden_dim: int) -> None:
        super().__init__()
        for name, value in (
            ("query_dim", query_dim),
            ("key_dim", key_dim),
            ("hidden_dim", hidden_dim),
        ):
            check_positive_int(name, value)
        self.query_proj = nn.Linear(query_dim, hidden_dim, bias=False)
        self.key_proj = nn.Linear(key_dim, hidden_dim, bias=False)
        self.score_proj = nn.Linear(hidden_dim, 1, bias=False)

    def forward(
        self,
        query: Float[Tensor, "*#batch q_len query_dim"],
        key: Float[Tensor, "*#batch k_len key_dim"],
    ) -> Float[Tensor, "*batch q_len k_len"]:
        """Score (..., q_len, query_dim) against (..., k_len, key_dim): (..., q_len, k_len).

        Raises:
            TypeError: not floating-point tensors of one dtype, that of the weights.
            ValueError: a width is wrong, or the leading axes do not broadcast.
        """
        check_pair(query, key, same_dim=False)
        _check_width("query", query, self.query_proj.in_features)
        _check_width("key", key, self.key_proj.in_features)
        check_same_kind(("query", "the weights"), (query, self.key_proj.weight))
        # Each query meets each key: (..., q_len, 1, hidden) + (..., 1, k_len, hidden).
        hidden = self.query_proj(query).unsqueeze(-2) + self.key_proj(key).unsqueeze(-3)
        scores: Tensor = self.score_proj(torch.tanh(hidden)).squeeze(-1)
        return scores


class BilinearScore(nn.Module):
    """Bilinear score q·W k (Luong et al., 2015, "general").

    Query and key may have different widths. Parameters: query_dim * key_dim.

    Args:
        query_dim: width of a query.
        key_dim: width of a key.

    Raises:
        TypeError: a width is not an int.
        ValueError: a width is not positive.

    Example:
        >>> BilinearScore(query_dim=3, key_dim=5)(torch.ones(2, 4, 3), torch.ones(2, 6, 5)).shape
        torch.Size([2, 4, 6])
    """

    def __init__(self, query_dim: int, key_dim: int) -> None:
        super().__init__()
        check_positive_int("query_dim", query_dim)
        check_positive_int("key_dim", key_dim)
        self.key_proj = nn.Linear(key_dim, query_dim, bias=False)

    def forward(
        self,
        query: Float[Tensor, "*#batch q_len query_dim"],
        key: Float[Tensor, "*#batch k_len key_dim"],
    ) -> Float[Tensor, "*batch q_len k_len"]:
        """Score (..., q_len, query_dim) against (..., k_len, key_dim): (..., q_len, k_len).

        Raises:
            TypeError: not floating-point tensors of one dtype, that of the weights.
            ValueError: a width is wrong, or the leading axes do not broadcast.
        """
        check_pair(query, key, same_dim=False)
        _check_width("query", query, self.key_proj.out_features)
        _check_width("key", key, self.key_proj.in_features)
        check_same_kind(("query", "the weights"), (query, self.key_proj.weight))
        scores: Tensor = query @ self.key_proj(key).transpose(-2, -1)
        return scores


def _check_width(name: str, value: Tensor, width: int) -> None:
    if value.shape[-1] != width:
        raise ValueError(
            f"the last axis of {name} must be {name}_dim={width}, got shape {tuple(value.shape)}"
        )
