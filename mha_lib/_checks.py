"""Checks that public functions make before any arithmetic; each error names the argument, rule and value.

A check raises an error unless its argument is what the name of the check says. A check that only
one module needs is in that module; its errors also come from `refusal`.
"""

from __future__ import annotations

import builtins
import functools
import math
import numbers
from collections.abc import Callable, Iterable, Sequence
from typing import Any, TypeAlias, TypedDict, TypeVar, cast

import torch
from torch import Tensor

Device: TypeAlias = torch.device | str | None
DType: TypeAlias = torch.dtype | None


class FactoryKwargs(TypedDict):
    """The two keyword arguments that say where and in which dtype torch makes a layer's parameters."""

    device: Device
    dtype: DType


Positions: TypeAlias = tuple[Tensor, Tensor]  # of queries and of keys
_F = TypeVar("_F", bound=Callable[..., Any])
_INTEGERS = (torch.int64, torch.int32, torch.int16, torch.int8, torch.uint8)


def checked(check: Callable[..., object]) -> Callable[[_F], _F]:
    """Decorator that passes the arguments to `check` before calling the function; `unchecked` undoes it."""

    def decorate(formula: _F) -> _F:
        @functools.wraps(formula)
        def shell(*args: Any, **kwargs: Any) -> Any:
            check(*args, **kwargs)
            return formula(*args, **kwargs)

        return cast(_F, shell)

    return decorate


def unchecked(function: _F) -> _F:
    """Return the function that `checked` decorated; return any other callable unchanged."""
    return getattr(function, "__wrapped__", function)


def refusal(name: str, rule: str, got: object) -> ValueError:
    """The error for a value that breaks a rule; for a tensor, the message gives its shape."""
    found = tuple(got.shape) if isinstance(got, Tensor) else got
    return ValueError(f"{name} must {rule}, got {found}")


def wrong_type(name: str, kind: str, value: object) -> TypeError:
    """The error for a value that is not of type `kind`."""
    text = repr(value)  # many lines if it is a model
    shown = f": {text}" if "\n" not in text and len(text) < 200 else ""
    found = type(value).__name__
    if type(value) is not getattr(builtins, found, type(value)):  # numpy's bool
        found = f"{type(value).__module__}.{found}"
    return TypeError(f"{name} must be {kind}, got {found}{shown}")


def check_type(name: str, value: object, expected: type) -> None:
    if not isinstance(value, expected):
        article = "an" if expected.__name__[0] in "AEIOU" else "a"
        raise wrong_type(name, f"{article} {expected.__name__}", value)


def check_flags(**flags: object) -> None:
    for name, flag in flags.items():
        check_type(name, flag, bool)


def check_int(name: str, value: object) -> int:
    """Return `value` if it is an int, of numpy or torch.export too, but not a bool."""
    if isinstance(value, torch.SymInt):
        return value  # type: ignore[return-value]
    if isinstance(value, bool) or not isinstance(value, (int, numbers.Integral)):
        raise wrong_type(name, "an int", value)
    return value  # type: ignore[return-value]


def check_positive_int(name: str, value: object) -> None:
    if check_int(name, value) <= 0:
        raise refusal(name, "be positive", value)


def check_sizes(**sizes: object) -> None:
    for name, size in sizes.items():
        check_positive_int(name, size)


def check_lens(**lens: object) -> None:
    """Raise unless all are non-negative ints; None stands for a default."""
    for name, value in lens.items():
        if value is not None and check_int(name, value) < 0:
            raise refusal(name, "not be negative", value)


def check_divisible(**sizes: int) -> None:
    """Raise unless the second of two sizes divides the first."""
    (name, size), (divisor_name, divisor) = sizes.items()
    if size % divisor:
        got = f"{name}={size}, {divisor_name}={divisor}"
        raise refusal(name, f"be divisible by {divisor_name}", got)


def check_number(name: str, value: object) -> float:
    real = isinstance(value, (int, float, numbers.Integral))
    real = real or (
        isinstance(value, numbers.Real) and hasattr(value, "dtype")
    )  # numpy's
    if isinstance(value, bool) or not real:
        raise wrong_type(name, "a number", value)
    return value  # type: ignore[return-value]


def check_positive(name: str, value: object) -> None:
    if not 0.0 < check_number(name, value) < math.inf:
        raise refusal(name, "be positive", value)


def check_probability(name: str, value: object) -> None:
    if not 0.0 <= check_number(name, value) <= 1.0:
        raise refusal(name, "be between 0 and 1", value)


def check_choice(name: str, value: object, choices: Iterable[str]) -> None:
    check_type(name, value, str)
    if value not in tuple(choices):
        raise refusal(name, f"be one of {', '.join(choices)}", repr(value))


def check_function(name: str, value: object, arguments: str) -> None:
    """Raise unless `value` is None or a function."""
    if value is not None and not callable(value):
        raise wrong_type(name, f"a function of {arguments}", value)


def check_float_tensor(name: str, value: object, *, axes: str) -> Tensor:
    """Return `value` if it is a float tensor with axes such as "batch, len, d"; "..." means any axes."""
    open_ended = axes.startswith("...")
    rank = axes.count(",") + 1 - open_ended
    if not isinstance(value, Tensor):
        raise wrong_type(name, "a Tensor", value)
    if not value.is_floating_point():
        raise TypeError(f"{name} must have a floating-point dtype, got {value.dtype}")
    if value.is_nested:
        padded = "a padded tensor, with valid_lens for its lengths"
        raise TypeError(f"{name} must be {padded}, got a nested tensor")
    if value.ndim < rank or (value.ndim > rank and not open_ended):
        raise refusal(name, f"have shape ({axes})", value)
    return value


def check_width(name: str, value: object, width: int, *, axes: str) -> Tensor:
    """Return `value` if it is a floating-point tensor with the named axes, and the last has size `width`."""
    tokens = check_float_tensor(name, value, axes=axes)
    if tokens.shape[-1] != width:
        raise refusal(name, f"have shape ({axes}={width})", tokens)
    return tokens


def check_same(what: str, names: Sequence[str], values: Sequence[object]) -> None:
    """Raise unless all `values` are equal; `what` is the property that the arguments `names` must share."""
    for value in values[1:]:
        if value != values[0]:
            got = ", ".join(map("{}: {}".format, names, values))
            error = refusal(" and ".join(names), f"have the same {what}", got)
            raise TypeError(*error.args) if isinstance(value, torch.dtype) else error


def check_same_kind(names: Sequence[str], tensors: Sequence[Tensor]) -> None:
    check_same("device", names, [tensor.device for tensor in tensors])
    # Under autocast, torch itself casts the operands to the same dtype.
    if tensors[0].is_meta or not torch.is_autocast_enabled(tensors[0].device.type):
        check_same("dtype", names, [tensor.dtype for tensor in tensors])


def check_leading_axes(names: Sequence[str], tensors: Sequence[Tensor]) -> None:
    """Raise unless the axes before the last two broadcast."""
    try:
        torch.broadcast_shapes(*[tensor.shape[:-2] for tensor in tensors])
    except RuntimeError:
        shapes = " and ".join(str(tuple(tensor.shape)) for tensor in tensors)
        what = f"the leading axes of {' and '.join(names)}"
        raise refusal(what, "broadcast", shapes) from None


def shown(name: str, size: int) -> str:
    """Name and size, for a rule; only the name where its text would tie a compiled program to this size."""
    return name if torch.compiler.is_compiling() else f"{name}={size}"


def check_numbers(
    name: str,
    values: object,
    low: float,
    high: float,
    rule: str,
    *,
    integers: str | None = None,
) -> Tensor:
    """Return `values` if it is a tensor whose numbers all lie in low..high; an error states this as `rule`.

    If `integers` names axes, such as "(len,) or (batch, len)", `values` must contain integers and have one of
    these ranks. Where reading the numbers would wait for a GPU or break a graph, torch checks them when the
    program runs and raises a RuntimeError with the rule. Inside `vmap`, the numbers of all samples are read.
    """
    if not isinstance(values, Tensor):
        raise wrong_type(name, "a Tensor", values)
    if integers is not None:
        if values.dtype not in _INTEGERS:
            raise TypeError(f"{name} must hold integers, got dtype {values.dtype}")
        if values.ndim not in range(1, 2 + integers.count(" or ")):
            raise refusal(name, f"have shape {integers}", values)
    if values.is_meta or values.numel() == 0:
        return values
    if torch.compiler.is_compiling() or values.is_cuda:
        inside = ((values >= low) & (values <= high)).all()
        torch._assert_async(inside, f"{name} must {rule}")
        return values
    numbers = values.detach()
    while torch._C._functorch.is_functorch_wrapped_tensor(numbers):
        numbers = torch._C._functorch.get_unwrapped(numbers)
    try:
        # Python's `min` and `max` may miss a NaN in a list; `aminmax` returns it.
        few = integers is not None and numbers.numel() <= 64
        listed = (numbers if few else torch.stack(numbers.aminmax())).flatten().tolist()
        least, most = min(listed), max(listed)
    except RuntimeError:  # a fake tensor, which has no numbers
        return values
    if not low <= least <= most <= high:
        raise refusal(name, rule, f"values from {least} to {most}")
    return values


def check_vectors(
    query: Tensor, key: Tensor, dims: tuple[int, int] | None = None
) -> None:
    """Raise unless queries and keys are vectors of widths `dims` whose leading axes broadcast."""
    check_float_tensor("query", query, axes="..., q_len, d")
    check_float_tensor("key", key, axes="..., k_len, d")
    check_same_kind(("query", "key"), (query, key))
    if dims is not None:
        for name, x, dim in (("query", query, dims[0]), ("key", key, dims[1])):
            if x.shape[-1] != dim:
                got = f"shape {tuple(x.shape)}"
                raise refusal(f"the last axis of {name}", f"be {name}_dim={dim}", got)
    check_leading_axes(("query", "key"), (query, key))


def check_pair(
    query: Tensor, key: Tensor, *, scale: float | Tensor | None = None
) -> None:
    """Raise unless queries and keys are vectors of equal width whose leading axes broadcast."""
    check_vectors(query, key)
    check_same("last axis", ("query", "key"), (query.shape[-1], key.shape[-1]))
    check_settings(scale)


def check_settings(scale: float | Tensor | None, softcap: float | None = None) -> None:
    """Raise unless `scale` is positive, one number or one per head, and `softcap` is positive."""
    if softcap is not None:
        check_positive("softcap", softcap)
    if not isinstance(scale, Tensor):
        return None if scale is None else check_positive("scale", scale)
    check_float_tensor("scale", scale, axes="...")
    if scale.ndim and scale.shape[-2:] != (1, 1):
        rule = "be a number or a tensor of shape () or (num_heads, 1, 1)"
        raise refusal("scale", rule, scale)
    return None


def check_cap(scores: Tensor, cap: float) -> None:
    check_float_tensor("scores", scores, axes="...")
    check_positive("cap", cap)


def check_attention(query: Tensor, key: Tensor, value: Tensor) -> None:
    names = ("query", "key", "value")
    check_float_tensor("query", query, axes="..., q_len, d")
    check_float_tensor("key", key, axes="..., k_len, d")
    check_float_tensor("value", value, axes="..., k_len, value_dim")
    check_same_kind(names, (query, key, value))
    leading = [tuple(tensor.shape[:-2]) for tensor in (query, key, value)]
    if query.ndim == key.ndim == value.ndim == 4 and query.shape[1] != key.shape[1]:
        check_same("batch and heads", ("key", "value"), leading[1:])
        check_same("batch", ("query", "key"), (query.shape[0], key.shape[0]))
        if key.shape[1] == 0 or query.shape[1] % key.shape[1]:
            name, got = "the heads of query", f"query: {leading[0]}, key: {leading[1]}"
            raise refusal(name, "be a multiple of those of key and value", got)
    else:
        check_same("leading axes", names, leading)
    check_same("last axis", ("query", "key"), (query.shape[-1], key.shape[-1]))
    # If there were more values than keys, torch's kernel would read past the end of the keys.
    check_same("length", ("key", "value"), (key.shape[-2], value.shape[-2]))


def check_layer(
    layer: Any, query: Tensor, key: Tensor, value: Tensor, is_causal: object
) -> None:
    """Raise unless a layer supports the inputs. A quick test runs in each call; slower checks raise errors.

    The dtype and device of weights are not checked, since sharded, quantized or offloaded ones may differ.
    """
    widths = (layer.embed_dim, layer.kdim, layer.vdim)
    # If none of the three has a batch axis, they are one sample.
    unbatched = 2 == getattr(query, "ndim", 3) == getattr(key, "ndim", 3)
    rank = 2 if unbatched and getattr(value, "ndim", 3) == 2 else 3
    axes = ("batch, q_len, embed_dim", "batch, k_len, kdim", "batch, k_len, vdim")
    names = ("query", "key", "value")
    for name, x, width, axis in zip(names, (query, key, value), widths, axes):  # noqa: B905
        good = isinstance(x, Tensor) and x.ndim == rank and x.shape[-1] == width
        good = good and x.is_floating_point() and not x.is_nested
        if not good or x.dtype != query.dtype or x.device != query.device:
            check_width(name, x, width, axes=axis.removeprefix("batch, " * (rank == 2)))
            check_same_kind(("query", name), (query, x))
    if query.shape[:-2] != key.shape[:-2] or key.shape[:-1] != value.shape[:-1]:
        check_same("batch", names, [tuple(x.shape[:-2]) for x in (query, key, value)])
        check_same("length", names[1:], (key.shape[-2], value.shape[-2]))
    if not isinstance(is_causal, bool):
        check_type("is_causal", is_causal, bool)


def check_chunk(keys: Tensor, values: Tensor, held: Sequence[Tensor | None]) -> None:
    """Raise unless keys and values fit each other and the contents of a cache."""
    axes, names = "batch, num_kv_heads, new", ("keys", "values")
    check_float_tensor("keys", keys, axes=f"{axes}, head_dim")
    check_float_tensor("values", values, axes=f"{axes}, value_dim")
    check_same_kind(names, (keys, values))
    check_same(f"({axes})", names, [tuple(x.shape[:3]) for x in (keys, values)])
    if held[0] is not None and held[1] is not None:
        check_same_kind(("the new keys", "the cache"), (keys, held[0]))
        widths = (values.shape[3], held[1].shape[3])
        check_same("value_dim", ("the new values", "the cache"), widths)


def check_buckets(num_buckets: int, max_distance: int, bidirectional: bool) -> None:
    check_type("bidirectional", bidirectional, bool)
    check_sizes(num_buckets=num_buckets, max_distance=max_distance)
    least, rule = 2, "be at least 2"
    if bidirectional:
        least, rule = 4, "be even and at least 4 where bidirectional"
    if num_buckets < least or (bidirectional and num_buckets % 2):
        raise refusal("num_buckets", rule, num_buckets)
    exact = num_buckets // least
    if max_distance <= exact:
        rule = f"be larger than {exact}, the distances with a bucket of their own"
        rule += f" (num_buckets={num_buckets})"
        raise refusal("max_distance", rule, max_distance)


def checked_rule(
    score: Callable[..., Tensor], positions: Positions | None
) -> Callable[..., Tensor]:
    """Wrap a user's scoring rule, which must return one number for each query and key.

    A module receives the dtype of its parameters; a rule with `positions` receives those of a cache's tokens.
    """
    knows = positions is not None and getattr(score, "takes_positions", False)
    where = {"positions": positions} if knows else {}

    def rule(query: Tensor, key: Tensor) -> Tensor:
        shape = (*query.shape[:-1], key.shape[-2])
        if isinstance(score, torch.nn.Module):
            for parameter in score.parameters():
                query, key = query.to(parameter.dtype), key.to(parameter.dtype)
                break
        scores = unchecked(score)(query, key, **where)
        name = "score(query, key)"
        check_float_tensor(name, scores, axes="..., q_len, k_len")
        check_same("shape", (name, "the weights"), (tuple(scores.shape), shape))
        return scores.to(torch.promote_types(scores.dtype, torch.float32))

    return rule
