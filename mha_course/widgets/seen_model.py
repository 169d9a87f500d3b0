"""The models with one attention layer that widgets show, as the browser computes them."""

from __future__ import annotations

import copy
from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor, nn

from mha_course.widgets.packing import pack_all, unpack
from mha_lib._checks import check_type
from mha_lib.multi_head import MultiHeadAttention


class SeenModel(nn.Module):
    """Embedding, positions, one layer and a linear read-out, with float32 weights and float64 arithmetic.

    Args:
        weights: "embedding" (tokens, embed_dim), "positions" (len, embed_dim), the parameters of the layer by
            their names in it, "read_out.weight" and, if there is one, "read_out.bias".
        num_heads: number of heads of the layer.

    Example:
        >>> state = {"embedding": torch.zeros(3, 2), "positions": torch.zeros(4, 2)}
        >>> layer = MultiHeadAttention(2, 1).state_dict()
        >>> seen = SeenModel({**state, **layer, "read_out.weight": torch.ones(5, 2)}, 1)
        >>> seen(torch.tensor([[0, 1]])).shape
        torch.Size([1, 2, 5])
    """

    def __init__(self, weights: Mapping[str, Tensor], num_heads: int) -> None:
        super().__init__()
        own = {name: part.float().double() for name, part in weights.items()}
        self.embedding, self.positions = own.pop("embedding"), own.pop("positions")
        width, has_bias = self.embedding.shape[1], "read_out.bias" in own
        self.attention = MultiHeadAttention(width, num_heads, bias="q_proj.bias" in own)
        self.read_out = nn.Linear(width, len(own["read_out.weight"]), bias=has_bias)
        names = {n if n.startswith("read_out.") else f"attention.{n}": n for n in own}
        self.double().eval().requires_grad_(False)
        self.load_state_dict({new: own[name] for new, name in names.items()})

    def inputs(self, tokens: Tensor) -> Tensor:
        """The input of the layer, (..., len, embed_dim)."""
        return self.embedding[tokens] + self.positions[: tokens.shape[-1]]

    def forward(self, tokens: Tensor) -> Tensor:
        """The logits of tokens (batch, len)."""
        x = self.inputs(tokens)
        logits: Tensor = self.read_out(self.attention(x, x, x)[0])
        return logits

    def state(self) -> dict[str, Any]:
        """The sizes and the exact float32 weights for the browser, as base64 by name."""
        tensors = {
            "embedding": self.embedding,
            "positions": self.positions,
            **dict(self.attention.named_parameters()),
            "read_out.weight": self.read_out.weight,
            "read_out.bias": self.read_out.bias,
        }
        return {
            "num_heads": self.attention.num_heads,
            "embed_dim": self.attention.embed_dim,
            "weights": pack_all(tensors),
        }


def read_seen(state: Mapping[str, Any]) -> SeenModel:
    """The model from which `SeenModel.state` was made."""
    width = state["embed_dim"]
    weights = {
        name: unpack(text, -1) if name.endswith("bias") else unpack(text, -1, width)
        for name, text in state["weights"].items()
    }
    return SeenModel(weights, state["num_heads"])


def seen_of_state(state: Mapping[str, Tensor], num_heads: int) -> SeenModel:
    """The model of a `state_dict` that contains its positions as a table."""
    names = {"embedding.weight": "embedding", "positions.encoding": "positions"}
    weights = {
        names.get(name, name.removeprefix("attention.")): part
        for name, part in state.items()
    }
    return SeenModel(weights, num_heads)


def check_parts(name: str, model: nn.Module) -> None:
    """Raise unless a model has the parts of a `SeenModel`, in float32."""
    check_type(name, model, nn.Module)
    parts = {
        "embedding": nn.Embedding,
        "positions": nn.Module,
        "attention": MultiHeadAttention,
        "read_out": nn.Linear,
    }
    for part, kind in parts.items():
        check_type(f"{name}.{part}", getattr(model, part, None), kind)
    if any(p.dtype != torch.float32 for p in model.parameters()):
        raise TypeError(f"{name} must have float32 parameters")


def see_model(name: str, model: nn.Module, length: int, tokens: Tensor) -> SeenModel:
    """Copy a model that `check_parts` has accepted, or raise if it does not add one vector to each position.

    Args:
        name: name of the model in errors.
        model: the model; its `positions` is called with zeros, and its parameters are copied.
        length: number of positions.
        tokens: int64 (batch, len), on which the copy is compared with the model.
    """
    copied: Any = copy.deepcopy(model).double().eval().requires_grad_(False)
    zeros = torch.zeros(1, length, copied.attention.embed_dim, dtype=torch.float64)
    weights = {
        "embedding": copied.embedding.weight,
        "positions": copied.positions(zeros)[0],
        **copied.attention.state_dict(),
        **{f"read_out.{n}": part for n, part in copied.read_out.named_parameters()},
    }
    seen = SeenModel(weights, copied.attention.num_heads)
    x, theirs = seen.inputs(tokens), copied.positions(copied.embedding(tokens))
    if theirs.shape != x.shape or not torch.allclose(theirs, x, atol=1e-6):
        raise ValueError(f"{name}.positions must add one vector to each position")
    return seen
