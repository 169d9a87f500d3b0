"""Look into a trained model: collect its attention weights, measure how much its heads matter, remove heads.

Nothing here changes the model: hooks that a `with` block installs are removed when the block ends, and
pruning returns a new layer. Compiled programs ignore such hooks, so compiled models run eagerly inside the
block (`torch.compiler.set_stance`, which affects all threads) and use their compiled programs again
afterwards. Inside a function that is being compiled, torch raises an error on entering such a block.
"""

from __future__ import annotations

import copy
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from typing import Any, TypeVar, cast, overload

import torch
from jaxtyping import Float
from torch import Tensor, nn

from mha_lib._checks import check_float_tensor, check_int, check_type, refusal
from mha_lib.conversion import _check_plain_linear
from mha_lib.multi_head import MultiHeadAttention

_Copied = TypeVar("_Copied")

_LOCK = threading.Lock()  # guards what all threads share: the stance and the captures


@contextmanager
def capture_attention(
    model: nn.Module,
) -> Iterator[dict[str, Float[Tensor, "batch num_heads q_len k_len"]]]:
    """Collect the weights of every `MultiHeadAttention` in `model` while the block runs.

    The yielded dict maps the name of a layer in `model.named_modules()`, "" for `model` itself, to the
    weights of its latest call in any thread, (batch, num_heads, q_len, k_len), detached. The layers compute
    their weights even if the model does not request them; the model, compiled or not, and its hooks receive
    only what the model requested. Several threads may call the model at the same time.

    Raises:
        TypeError, ValueError: `model` is not a module, or contains no `MultiHeadAttention`.

    Example:
        >>> attention = MultiHeadAttention(6, 3)
        >>> x = torch.ones(2, 5, 6)
        >>> with capture_attention(attention) as weights:
        ...     output, nothing = attention(x, x, x, need_weights=False)
        >>> weights[""].shape, nothing
        (torch.Size([2, 3, 5, 5]), None)
    """
    check_type("model", model, nn.Module)
    layers = _layers_in("model", model)
    captured: dict[str, Tensor] = {}
    with ExitStack() as stack:
        stack.enter_context(_eager())
        for name, layer in layers.items():
            stack.enter_context(_watch(layer, name, captured))
        yield captured


class _WatchedForward:
    """Replaces a layer's `forward` while at least one block captures its weights.

    A call stores no state, so failed and parallel calls do no harm. Blocks may end in any order.
    """

    def __init__(self, layer: MultiHeadAttention) -> None:
        self.replaced = vars(layer).get("forward")  # another library may have set one
        self.forward: Callable[..., Any] = layer.forward
        self.captures: list[tuple[str, dict[str, Tensor]]] = []

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        captures = tuple(self.captures)
        if not captures:
            return self.forward(*args, **kwargs)
        output, weights = self.forward(*args, **{**kwargs, "need_weights": True})
        assert weights is not None
        for name, captured in captures:
            captured[name] = weights.detach()
        return output, weights if kwargs.get("need_weights", True) else None

    def __reduce__(self) -> tuple[object, ...]:
        """Let a copy of the layer, if it is made inside the block, call its own `forward`."""
        return _identity, (self.forward,)


def _identity(x: _Copied) -> _Copied:
    return x


@contextmanager
def _watch(
    layer: MultiHeadAttention, name: str, captured: dict[str, Tensor]
) -> Iterator[None]:
    """Write the weights of each call of `layer` into `captured[name]` while the block runs."""
    capture = name, captured
    with _LOCK:
        if not isinstance(vars(layer).get("forward"), _WatchedForward):
            vars(layer)["forward"] = _WatchedForward(layer)
        watched: _WatchedForward = vars(layer)["forward"]
        watched.captures.append(capture)
    try:
        yield
    finally:
        with _LOCK:
            watched.captures = [c for c in watched.captures if c is not capture]
            # If other code has wrapped `forward` meanwhile, it still calls ours, which captures nothing now.
            if not watched.captures and vars(layer).get("forward") is watched:
                del vars(layer)["forward"]
                if watched.replaced is not None:
                    vars(layer)["forward"] = watched.replaced


class _Stance:
    """The stance of torch's compiler, shared by all threads, and the number of blocks that need it eager."""

    blocks = 0
    changed: Any = None


@contextmanager
def _eager() -> Iterator[None]:
    """Run compiled models eagerly; the first block to begin sets the stance, the last to end restores it."""
    with _LOCK:
        if not _Stance.blocks:
            _Stance.changed = torch.compiler.set_stance("force_eager")
        _Stance.blocks += 1
    try:
        yield
    finally:
        with _LOCK:
            _Stance.blocks -= 1
            if not _Stance.blocks:
                _Stance.changed.__exit__(None, None, None)


@contextmanager
def gate_heads(
    attention: MultiHeadAttention, gates: Float[Tensor, " {attention.num_heads}"]
) -> Iterator[None]:
    """Multiply the output of each head by its gate while the block runs: 0 switches a head off, 1 keeps it.

    The `gates` are (num_heads,), floating-point; those that require grad receive the gradient from which
    `head_importance` is computed. The layer, or the model around it, may be compiled.

    Raises:
        TypeError: `attention` is not a `MultiHeadAttention`, or `gates` is not a floating-point tensor.
        ValueError: `gates` does not have shape (num_heads,).

    Example:
        >>> attention, x = MultiHeadAttention(6, 3), torch.ones(1, 5, 6)
        >>> with gate_heads(attention, torch.zeros(3)):
        ...     attention(x, x, x)[0].abs().sum().item()
        0.0
    """
    attention = _bare_layer(attention)
    check_float_tensor("gates", gates, axes="num_heads")
    if tuple(gates.shape) != (attention.num_heads,):
        rule = f"have shape (num_heads,) = ({attention.num_heads},)"
        raise refusal("gates", rule, tuple(gates.shape))

    with _scaled_heads(attention, gates.to):
        yield


@contextmanager
def _scaled_heads(
    attention: MultiHeadAttention, gates_for: Callable[[Tensor], Tensor]
) -> Iterator[None]:
    """Multiply heads by the gates (..., num_heads) that `gates_for` makes for the merged heads."""
    scale = _ScaledHeads(attention, gates_for)
    # Where processes divide the heads, torch's own hook, which makes a DTensor, must run after this one.
    handle = attention.out_proj.register_forward_pre_hook(scale, prepend=True)
    try:
        with _eager():
            yield
    finally:
        handle.remove()


class _ScaledHeads:
    """Hook on the output projection that multiplies the merged heads by gates."""

    def __init__(
        self, attention: MultiHeadAttention, gates_for: Callable[[Tensor], Tensor]
    ) -> None:
        self.num_heads, self.gates_for = attention.num_heads, gates_for

    def __call__(self, _: nn.Module, args: tuple[Tensor]) -> tuple[Tensor]:
        heads = args[0].unflatten(-1, (self.num_heads, -1))
        gates = self.gates_for(args[0]).unsqueeze(-1)
        return ((heads * gates).flatten(-2),)

    def __reduce__(self) -> tuple[object, ...]:
        """Leave the heads of a copy as they are, because no block would ever remove its hook."""
        return _identity, (_ungated,)


def _ungated(_: nn.Module, _args: tuple[Tensor]) -> None:
    """Hook that changes nothing."""


@overload
def head_importance(  # type: ignore[overload-overlap]
    attention: MultiHeadAttention, loss: Callable[[], Tensor]
) -> Tensor: ...


@overload
def head_importance(
    attention: nn.Module, loss: Callable[[], Tensor]
) -> dict[str, Tensor]: ...


def head_importance(
    attention: nn.Module, loss: Callable[[], Float[Tensor, "*batch"]]
) -> Float[Tensor, " num_heads"] | dict[str, Float[Tensor, " num_heads"]]:
    """Expected sensitivity of the loss to each head, |dL/dgate| at gate 1 (Michel et al., 2019, equation 2).

    The result, (num_heads,), is a first-order estimate of what switching a head off would cost, for all heads
    and samples in one backward pass. If `attention` is a model, the result is a dict of such tensors, from
    the name of each `MultiHeadAttention` in `named_modules()`, still in one pass; a layer that `loss` does
    not use has importance 0. The `grad` of the parameters does not change. The function also works under
    `torch.no_grad()` and `torch.inference_mode()`; compiled models run eagerly meanwhile.

    The function `loss` has no arguments. It runs the model that contains `attention` and returns either one
    loss for each sample that the layer sees, (batch,), or a scalar. The absolute value is taken for each
    sample before the mean, so a sample's loss must not depend on other samples.

    Raises:
        TypeError: `attention` is not a module, or `loss()` is not a tensor.
        ValueError: `attention` contains no `MultiHeadAttention`; `loss()` is not of rank 0 or 1, is not one
            loss for each sample that the layer saw, does not depend on the heads, or needs gradients of
            tensors created in inference mode.

    Example:
        >>> attention, x = MultiHeadAttention(6, 3), torch.ones(2, 5, 6)
        >>> head_importance(attention, lambda: attention(x, x, x)[0].square().mean((1, 2))).shape
        torch.Size([3])
        >>> model = nn.Sequential(attention)
        >>> list(head_importance(model, lambda: attention(x)[0].square().mean((1, 2))))
        ['0']
    """
    bare: nn.Module = getattr(attention, "_orig_mod", attention)
    check_type("attention", bare, nn.Module)
    is_one_layer = isinstance(bare, MultiHeadAttention)
    layers = _layers_in("attention", bare)  # a layer is found in itself, by the name ""
    gates: dict[str, list[Tensor]] = {name: [] for name in layers}

    def gate_each_sample(name: str) -> Callable[[Tensor], Tensor]:
        def one_gate_per_sample(merged: Tensor) -> Tensor:
            ones = merged.new_ones(merged.shape[0], layers[name].num_heads)
            gates[name].append(ones.requires_grad_())
            return ones.unsqueeze(1)

        return one_gate_per_sample

    try:
        with ExitStack() as stack:
            for name, layer in layers.items():
                stack.enter_context(_scaled_heads(layer, gate_each_sample(name)))
            with torch.inference_mode(False), torch.enable_grad():
                losses = loss()
    except RuntimeError as error:
        if "nference tensor" not in str(error):
            raise
        rule = "use tensors made outside torch.inference_mode(), or clones of them, for gradients"
        raise refusal("loss()", rule, error) from error
    sizes = _sensitivities(losses, gates)
    if is_one_layer:
        return sizes[""]
    unused = {name: losses.new_zeros(layer.num_heads) for name, layer in layers.items()}
    return {name: sizes.get(name, zeros) for name, zeros in unused.items()}


def _sensitivities(losses: Tensor, gates: dict[str, list[Tensor]]) -> dict[str, Tensor]:
    """Mean size of the gradient of each gate over the samples, for the layers on which the losses depend."""
    # The gates of a layer, (batch, num_heads) each, are one for each of its calls.
    every = [gate for calls in gates.values() for gate in calls]
    _check_losses(losses, every)
    # A sample's loss depends only on its own gates, so the gradient of the sum contains those of all samples.
    with torch.inference_mode(False):
        ones = torch.ones_like(losses)
        found = iter(torch.autograd.grad(losses, every, ones, allow_unused=True))
        by_layer = {
            name: [x for x in (next(found) for _ in calls) if x is not None]
            for name, calls in gates.items()
        }
        if not any(by_layer.values()):
            got = f"{losses.tolist()}, which does not"
            raise refusal("loss()", "depend on the heads of attention", got)
        if losses.ndim == 0:
            return {
                name: torch.stack([x.sum(0) for x in calls]).sum(0).abs()
                for name, calls in by_layer.items()
                if calls
            }
        return {
            name: torch.stack(calls).sum(0).abs().mean(0)
            for name, calls in by_layer.items()
            if calls
        }


def _layers_in(name: str, model: nn.Module) -> dict[str, MultiHeadAttention]:
    """Every `MultiHeadAttention` in a module, by its name; an error calls the module `name`."""
    layers = {
        path: module
        for path, module in model.named_modules()
        if isinstance(module, MultiHeadAttention)
    }
    if not layers:
        found = f"a {type(model).__name__} without one"
        raise refusal(name, "contain a MultiHeadAttention", found)
    return layers


def _check_losses(losses: Tensor, gates: Sequence[Tensor]) -> None:
    """Raise unless a loss for each sample, or one for all, depends on the gates."""
    check_type("the result of loss()", losses, Tensor)
    if losses.ndim > 1:
        raise refusal("loss()", "return a scalar or one loss for each sample", losses)
    if not gates or not losses.requires_grad:
        rule = "depend on the heads of attention, and leave gradients switched on"
        raise refusal("loss()", rule, f"{losses.tolist()}, which does not")
    if losses.ndim == 1 and any(len(gate) != len(losses) for gate in gates):
        got = f"{len(losses)} for {[len(gate) for gate in gates]}"
        raise refusal("loss()", "return one loss for each sample of the layer", got)


def prune_heads(
    attention: MultiHeadAttention, heads: Sequence[int]
) -> MultiHeadAttention:
    """Remove heads permanently: return a new, smaller layer that computes what the remaining heads compute.

    The output is that of `gate_heads` with gates 0 for the removed heads, at a lower cost. `embed_dim` and
    `head_dim` stay the same, masks and biases per head have one entry for each remaining head, and frozen
    parameters stay frozen. `attention` itself is not changed. `heads` are the indices of the heads to remove,
    without repetition. Query heads that share a key and value head are removed together, so list them all.

    Raises:
        TypeError: `attention` is not a `MultiHeadAttention`, an index is not an int, or a projection is not a
            plain `nn.Linear` (a wrapper may have replaced it: LoRA, quantization, weight norm, sharding).
        ValueError: an index is out of range or repeated, no head remains, or only some of the query heads
            that share a key and value head are listed.

    Example:
        >>> smaller = prune_heads(MultiHeadAttention(6, 3), [1])
        >>> smaller.num_heads, smaller.q_proj
        (2, Linear(in_features=6, out_features=4, bias=False))
    """
    attention = _bare_layer(attention)
    group = _check_heads(attention, heads)
    _check_plain_linear(attention)
    kept = [head for head in range(attention.num_heads) if head not in heads]
    kv_kept = [head // group for head in kept if head % group == 0]
    pruned = copy.deepcopy(attention)
    pruned.num_heads, pruned.num_kv_heads = len(kept), len(kv_kept)
    width = attention.head_dim
    query_rows, kv_rows = (
        torch.cat([torch.arange(width) + head * width for head in of])
        for of in (kept, kv_kept)
    )
    projections = (pruned.q_proj, pruned.k_proj, pruned.v_proj)
    for proj, rows in zip(projections, (query_rows, kv_rows, kv_rows), strict=True):
        proj.weight = _cut(proj.weight, rows)
        proj.out_features = len(rows)
        if proj.bias is not None:
            proj.bias = _cut(proj.bias, rows)
    pruned.out_proj.weight = _cut(pruned.out_proj.weight, (slice(None), query_rows))
    pruned.out_proj.in_features = len(query_rows)
    if pruned.sink is not None:
        pruned.sink = _cut(pruned.sink, torch.tensor(kept))
    scale = attention.scale
    if isinstance(scale, Tensor) and scale.ndim > 2:
        per_head = scale.expand(*scale.shape[:-3], attention.num_heads, 1, 1)
        cut = per_head.detach()[..., kept, :, :].clone()
        learned = isinstance(scale, nn.Parameter)
        pruned.scale = nn.Parameter(cut, scale.requires_grad) if learned else cut
    return pruned


def _check_heads(attention: MultiHeadAttention, heads: Sequence[int]) -> int:
    """Raise unless these heads can be removed; return how many query heads share a key and value head."""
    check_type("heads", heads, Sequence)
    count, shared = attention.num_heads, attention.num_kv_heads
    for head in heads:
        if not 0 <= check_int("a head in heads", head) < count:
            raise refusal("heads", f"lie in 0..num_heads-1={count - 1}", head)
    if len(set(heads)) != len(heads):
        raise refusal("heads", "name each head once", list(heads))
    if len(heads) == count:
        raise refusal("heads", "leave at least one head", f"all {count}")
    group = count // shared
    for first in range(0, count, group):
        sharing = range(first, first + group)
        named = [head for head in sharing if head in heads]
        if 0 < len(named) < group:
            rule = f"name all of the query heads {list(sharing)}, which share key and value head "
            rule += f"{first // group} (num_kv_heads={shared}), or none of them"
            raise refusal("heads", rule, named)
    return group


def _cut(parameter: Tensor, where: Tensor | tuple[slice | Tensor, ...]) -> nn.Parameter:
    """A part of a parameter as a new parameter, frozen if the original is."""
    return nn.Parameter(parameter.detach()[where], parameter.requires_grad)


def _bare_layer(attention: nn.Module) -> MultiHeadAttention:
    """The layer itself, without the wrapper that `torch.compile` puts around it."""
    layer = cast(MultiHeadAttention, getattr(attention, "_orig_mod", attention))
    check_type("attention", layer, MultiHeadAttention)
    return layer
