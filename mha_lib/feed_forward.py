"""The parts of a Transformer block that treat each token separately: the feed-forward layer and RMS norm."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import TypeAlias

import torch
import torch.nn.functional as F
from jaxtyping import Float
from torch import Tensor, nn

from mha_lib import _checks
from mha_lib._checks import Device, DType, FactoryKwargs

_Activation: TypeAlias = Callable[[Tensor], Tensor]
_ACTIVATIONS: dict[str, _Activation] = {
    "relu": torch.relu,
    "gelu": F.gelu,
    "gelu_tanh": partial(F.gelu, approximate="tanh"),
    "silu": F.silu,
    "swiglu": F.silu,
}


class FeedForward(nn.Module):
    """Two linear layers and an activation, applied to each token separately (Vaswani et al., 2017, §3.3).

    FFN(x) = activation(x W₁ + b₁) W₂ + b₂, equation 2. With "swiglu", a third linear layer and SiLU compute a
    gate for each entry of the hidden layer: FFN(x) = (SiLU(x W_gate) ⊙ x W₁) W₂ (Shazeer, 2020, equation 6).

    Args:
        embed_dim, hidden_dim: widths of a token and of the hidden layer (in the paper, four times as wide).
        dropout: probability that an entry of the hidden layer is dropped, in training only.
        activation: "relu"; "gelu", the exact x Φ(x) (Hendrycks & Gimpel, 2016, §2); "gelu_tanh", its
            approximation 0.5 x (1 + tanh(√(2/π) (x + 0.044715 x³))) (ibid.), with which GPT-2 was trained;
            "silu", x σ(x) (ibid.); or "swiglu", as above, which Llama uses.
        bias: whether to add b₁ and b₂, as the paper and torch do, and a bias to the gate.
        device, dtype: device and dtype of the parameters; default torch's.

    Raises:
        TypeError: a width is not an int, `dropout` not a number, `activation` not a str.
        ValueError: a width is not positive, `dropout` outside 0..1, or `activation` unknown.

    Example:
        >>> FeedForward(embed_dim=6, hidden_dim=24)(torch.ones(2, 5, 6)).shape
        torch.Size([2, 5, 6])
    """

    def __init__(
        self,
        embed_dim: int,
        hidden_dim: int,
        *,
        dropout: float = 0.0,
        activation: str = "relu",
        bias: bool = False,
        device: Device = None,
        dtype: DType = None,
    ) -> None:
        super().__init__()
        _checks.check_sizes(embed_dim=embed_dim, hidden_dim=hidden_dim)
        _checks.check_probability("dropout", dropout)
        _checks.check_choice("activation", activation, _ACTIVATIONS)
        self.embed_dim, self.activation = embed_dim, activation
        factory_kwargs: FactoryKwargs = {"device": device, "dtype": dtype}
        self.gate_proj: nn.Linear | None = None
        if activation == "swiglu":
            self.gate_proj = nn.Linear(embed_dim, hidden_dim, bias, **factory_kwargs)
        self.up_proj = nn.Linear(embed_dim, hidden_dim, bias, **factory_kwargs)
        self.down_proj = nn.Linear(hidden_dim, embed_dim, bias, **factory_kwargs)
        self.dropout = nn.Dropout(dropout)
        self.reset_parameters()

    def reset_parameters(self) -> None:
        """Draw the weights from Xavier's uniform distribution (Glorot & Bengio, 2010); zero the biases."""
        projections = (self.up_proj, self.down_proj, self.gate_proj)
        for proj in (proj for proj in projections if proj is not None):
            nn.init.xavier_uniform_(proj.weight)
            if proj.bias is not None:
                nn.init.zeros_(proj.bias)

    def forward(
        self, x: Float[Tensor, "*batch embed_dim"]
    ) -> Float[Tensor, "*batch embed_dim"]:
        """Map each token of `x` (..., embed_dim) to one of the same width.

        Raises:
            TypeError, ValueError: `x` is not floating-point, or its dtype or width differs from the layer's.
        """
        _checks.check_width("x", x, self.embed_dim, axes="..., embed_dim")
        activate = _ACTIVATIONS[self.activation]
        if self.gate_proj is None:
            hidden = activate(self.up_proj(x))
        else:
            hidden = activate(self.gate_proj(x)) * self.up_proj(x)
        output: Tensor = self.down_proj(self.dropout(hidden))
        return output

    def extra_repr(self) -> str:
        """Show the activation in the printed module."""
        return f"activation={self.activation!r}"


class RMSNorm(nn.Module):
    """Divide each token by its root mean square, then scale each entry (Zhang & Sennrich, 2019, equation 4).

    RMSNorm(x) = x / √(mean(x²) + eps) · weight, for tokens of width `embed_dim`. Unlike a layer norm, it
    has no mean and no bias. Half precision is computed in float32 and returned in its own dtype.

    Raises:
        TypeError, ValueError: `embed_dim` is not an int or `eps` not a number, or one is not positive.

    Example:
        >>> RMSNorm(2)(torch.tensor([[3.0, 4.0]])).square().mean().round(decimals=4).item()
        1.0
    """

    def __init__(
        self,
        embed_dim: int,
        *,
        eps: float = 1e-6,
        device: Device = None,
        dtype: DType = None,
    ) -> None:
        super().__init__()
        _checks.check_positive_int("embed_dim", embed_dim)
        _checks.check_positive("eps", eps)
        self.embed_dim, self.eps = embed_dim, eps
        self.weight = nn.Parameter(torch.ones(embed_dim, device=device, dtype=dtype))

    def reset_parameters(self) -> None:
        """Set the weight to ones."""
        nn.init.ones_(self.weight)

    def forward(
        self, x: Float[Tensor, "*batch embed_dim"]
    ) -> Float[Tensor, "*batch embed_dim"]:
        """Scale each token of `x`. Arguments and errors are those of `FeedForward.forward`."""
        _checks.check_width("x", x, self.embed_dim, axes="..., embed_dim")
        wide = x.to(torch.promote_types(x.dtype, torch.float32))
        mean_square = wide.square().mean(-1, keepdim=True)
        return (wide * torch.rsqrt(mean_square + self.eps) * self.weight).to(x.dtype)

    def extra_repr(self) -> str:
        """Show the width and epsilon in the printed module."""
        return f"{self.embed_dim}, eps={self.eps}"
