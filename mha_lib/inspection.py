"""Look into a trained model: collect its attention weights, weigh its heads, remove them.

Nothing here changes the model: hooks are taken off again, and pruning returns a new layer.
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor, nn

from mha_lib._checks import check_float_tensor, check_type
from mha_lib.multi_head import MultiHeadAttention


@contextmanager
def capture_attention(
    model: nn.Module,
) -> Iterator[dict[str, Float[Tensor, "batch num_heads q_len k_len"]]]:
    """Collect the weights of every `MultiHeadAttention` in `model` while the block runs.

    The layers are asked for their weights even where the model itself does without; the model sees what it
    asked for.

    Args:
        model: any module; may be a `MultiHeadAttention` itself, whose name is then "".

    Yields:
        A dict from the layer's name in `model.named_modules()` to its weights (batch, num_heads, q_len,
        k_len), detached, of its latest call.

    Raises:
        TypeError: `model` is not a module.
        ValueError: it contains no `MultiHeadAttention`.

    Example:
        >>> attention = MultiHeadAttention(6, 3)
        >>> x = torch.ones(2, 5, 6)
        >>> with capture_attention(attention) as weights:
        ...     output, nothing = attention(x, x, x, need_weights=False)
        >>> weights[""].shape, nothing
        (torch.Size([2, 3, 5, 5]), None)
    """
    layers = _attention_layers(model)
    captured: dict[str, Tensor] = {}

    def watch(name: str, layer: MultiHeadAttention, stack: ExitStack) -> None:
        asked: list[bool] = []

        def before(
            _: nn.Module, args: Any, kwargs: dict[str, Any]
        ) -> tuple[Any, dict[str, Any]]:
            asked.append(kwargs.get("need_weights", True))
            return args, {**kwargs, "need_weights": True}

        def after(
            _: nn.Module, __: Any, result: tuple[Tensor, Tensor]
        ) -> tuple[Tensor, Tensor | None]:
            output, weights = result
            captured[name] = weights.detach()
            return output, weights if asked.pop() else None

        # Last before and first after the layer: other hooks, and a second capture, see
        # what was asked for.
        stack.callback(layer.register_forward_pre_hook(before, with_kwargs=True).remove)
        stack.callback(layer.register_forward_hook(after, prepend=True).remove)

    with ExitStack() as stack:
        for name, layer in layers.items():
            watch(name, layer, stack)
        yield captured


@contextmanager
def gate_heads(
    attention: MultiHeadAttention, gates: Float[Tensor, " {attention.num_heads}"]
) -> Iterator[None]:
    """Multiply the output of each head by its gate while the block runs: 0 switches a head off, 1 leaves it.

    Args:
        attention: the layer.
        gates: (num_heads,), floating-point. Gates that require grad receive the gradient of head importance.

    Raises:
        TypeError: `attention` is no `MultiHeadAttention`, or `gates` no floating-point tensor.
        ValueError: `gates` does not have shape (num_heads,).

    Example:
        >>> attention, x = MultiHeadAttention(6, 3), torch.ones(1, 5, 6)
        >>> with gate_heads(attention, torch.zeros(3)):
        ...     attention(x, x, x)[0].abs().sum().item()
        0.0
    """
    check_type("attention", attention, MultiHeadAttention)
    check_float_tensor("gates", gates, axes="num_heads")
    if tuple(gates.shape) != (attention.num_heads,):
        raise ValueError(
            f"gates must have shape (num_heads,) = ({attention.num_heads},), got {tuple(gates.shape)}"
        )

    def scale(_: nn.Module, args: tuple[Tensor]) -> tuple[Tensor]:
        return (_scale_heads(args[0], gates.to(args[0])),)

    handle = attention.out_proj.register_forward_pre_hook(scale)
    try:
        yield
    finally:
        handle.remove()


def head_importance(
    attention: MultiHeadAttention, loss: Callable[[], Float[Tensor, "*batch"]]
) -> Float[Tensor, " {attention.num_heads}"]:
    """Expected sensitivity of the loss to each head, |dL/dgate| at gate 1 (Michel et al., 2019, equation 2).

    A first-order guess of what switching a head off would cost, for all heads and samples in one backward
    pass. Gradients of the parameters are left alone.

    Args:
        attention: the layer, inside the model that `loss` runs.
        loss: a function without arguments that runs the model and returns one loss for each sample that the
            layer sees, shape (batch,), or a scalar. The absolute value is taken for each sample before the
            mean; a sample's loss must not depend on the other samples.

    Returns:
        Importance (num_heads,), at least 0.

    Raises:
        TypeError: `attention` is no `MultiHeadAttention`, or `loss()` no tensor.
        ValueError: `loss()` is not of rank 0 or 1, holds another number of losses than the layer saw samples,
            or does not depend on the heads.

    Example:
        >>> attention, x = MultiHeadAttention(6, 3), torch.ones(2, 5, 6)
        >>> head_importance(attention, lambda: attention(x, x, x)[0].square().mean((1, 2))).shape
        torch.Size([3])
    """
    check_type("attention", attention, MultiHeadAttention)
    gates: list[Tensor] = []  # one (batch, num_heads) for each call of the layer

    def one_gate_a_sample(_: nn.Module, args: tuple[Tensor]) -> tuple[Tensor]:
        gates.append(
            args[0].new_ones(args[0].shape[0], attention.num_heads).requires_grad_()
        )
        return (_scale_heads(args[0], gates[-1].unsqueeze(1)),)

    handle = attention.out_proj.register_forward_pre_hook(one_gate_a_sample)
    try:
        with torch.enable_grad():
            losses = loss()
    finally:
        handle.remove()
    check_type("the result of loss()", losses, Tensor)
    if losses.ndim > 1:
        raise ValueError(
            f"loss() must return a scalar or one loss a sample, got shape {tuple(losses.shape)}"
        )
    if not gates or not losses.requires_grad:
        raise ValueError(
            f"loss() must depend on the heads of attention, got {losses.tolist()} that does not"
        )
    if losses.ndim == 1 and any(len(gate) != len(losses) for gate in gates):
        seen = [len(gate) for gate in gates]
        raise ValueError(
            f"loss() must return one loss for each sample of the layer, got {len(losses)} for {seen}"
        )
    # The samples do not touch each other, so the gradient of the sum holds the gradient
    # of each.
    gradients = torch.autograd.grad(
        losses, gates, torch.ones_like(losses), allow_unused=True
    )
    if all(gradient is None for gradient in gradients):
        raise ValueError(
            f"loss() must depend on the heads of attention, got {losses.tolist()} that does not"
        )
    by_call = [gradient for gradient in gradients if gradient is not None]
    if losses.ndim == 0:
        return torch.stack([gradient.sum(0) for gradient in by_call]).sum(0).abs()
    return torch.stack(by_call).sum(0).abs().mean(0)


def _scale_heads(
    merged: Float[Tensor, "batch len width"], gates: Float[Tensor, "*#batch num_heads"]
) -> Float[Tensor, "batch len width"]:
    """Multiply merged heads (batch, len, num_heads * head_dim) by gates (..., num_heads) that broadcast."""
    heads: Tensor = merged.unflatten(-1, (gates.shape[-1], -1))
    return (heads * gates.unsqueeze(-1)).flatten(-2)


def prune_heads(
    attention: MultiHeadAttention, heads: Sequence[int]
) -> MultiHeadAttention:
    """Remove heads for good: a new layer with smaller matrices that computes what the others compute.

    Equal to switching the heads off with `gate_heads`, only faster. `embed_dim` and `head_dim` stay.

    Args:
        attention: the layer; it is not changed.
        heads: indices to remove, each once, at least one head must stay.

    Returns:
        A new layer with `num_heads - len(heads)` heads.

    Raises:
        TypeError: `attention` is no `MultiHeadAttention`, or an index is not an int.
        ValueError: an index is out of range or given twice, no head stays, or heads share keys and values.

    Example:
        >>> prune_heads(MultiHeadAttention(6, 3), [1])
        MultiHeadAttention(
          embed_dim=6, num_heads=2, head_dim=2
          (q_proj): Linear(in_features=6, out_features=4, bias=False)
          (k_proj): Linear(in_features=6, out_features=4, bias=False)
          (v_proj): Linear(in_features=6, out_features=4, bias=False)
          (out_proj): Linear(in_features=4, out_features=6, bias=False)
        )
    """
    check_type("attention", attention, MultiHeadAttention)
    check_type("heads", heads, Sequence)
    for head in heads:
        if isinstance(head, bool) or not isinstance(head, int):
            raise TypeError(
                f"heads must hold ints, got {type(head).__name__}: {head!r}"
            )
        if not 0 <= head < attention.num_heads:
            raise ValueError(
                f"heads must lie in 0..num_heads-1={attention.num_heads - 1}, got {head}"
            )
    if len(set(heads)) != len(heads):
        raise ValueError(f"heads must name each head once, got {list(heads)}")
    if len(heads) == attention.num_heads:
        raise ValueError(
            f"heads must leave at least one head, got all {attention.num_heads}"
        )
    if attention.num_kv_heads != attention.num_heads:
        raise ValueError(
            "heads cannot be removed from a layer whose heads share keys and values, "
            f"got num_heads={attention.num_heads}, num_kv_heads={attention.num_kv_heads}"
        )
    kept = [head for head in range(attention.num_heads) if head not in heads]
    pruned = copy.deepcopy(attention)
    pruned.num_heads = pruned.num_kv_heads = len(kept)
    rows = (
        torch.arange(attention.num_heads * attention.head_dim)
        .view(attention.num_heads, -1)[kept]
        .flatten()
    )
    for proj in (pruned.q_proj, pruned.k_proj, pruned.v_proj):
        proj.weight = _cut(proj.weight, rows)
        proj.out_features = len(rows)
        if proj.bias is not None:
            proj.bias = _cut(proj.bias, rows)
    pruned.out_proj.weight = _cut(pruned.out_proj.weight, (slice(None), rows))
    pruned.out_proj.in_features = len(rows)
    return pruned


def _cut(parameter: Tensor, where: Any) -> nn.Parameter:
    """A part of a parameter as one of its own, frozen if the whole is."""
    return nn.Parameter(parameter.detach()[where], parameter.requires_grad)


def _attention_layers(model: nn.Module) -> dict[str, MultiHeadAttention]:
    check_type("model", model, nn.Module)
    layers = {
        name: module
        for name, module in model.named_modules()
        if isinstance(module, MultiHeadAttention)
    }
    if not layers:
        raise ValueError(
            f"model must contain a MultiHeadAttention, got a {type(model).__name__} without one"
        )
    return layers
