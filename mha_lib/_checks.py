"""Checks that public functions make before any arithmetic; each error names the argument, rule and value."""

from __future__ import annotations

import functools
import math
import re
from collections.abc import Callable, Iterable, Sequence
from typing import Any, TypeAlias, TypeVar, cast

import torch
from torch import Tensor

Device: TypeAlias = torch.device | str | None
DType: TypeAlias = torch.dtype | None
Positions: TypeAlias = tuple[Tensor, Tensor]  # of queries and of keys
_F = TypeVar("_F", bound=Callable[..., Any])
_INTEGERS = (torch.int64, torch.int32, torch.int16, torch.int8, torch.uint8)


def checked(check: Callable[..., object]) -> Callable[[_F], _F]:
    """Decorator that passes the arguments to `check` before the function; `unchecked` undoes it."""

    def decorate(formula: _F) -> _F:
        @functools.wraps(formula)
        def shell(*args: Any, **kwargs: Any) -> Any:
            check(*args, **kwargs)
            return formula(*args, **kwargs)

        return cast(_F, shell)

    return decorate


def unchecked(function: _F) -> _F:
    """Return the function that `checked` decorated; any other callable unchanged."""
    return getattr(function, "__wrapped__", function)


def check_type(name: str, value: object, expected: type) -> None:
    """Raise unless `value` is an instance of `expected`."""
    if not isinstance(value, expected):
        article = "an" if expected.__name__[0] in "AEIOU" else "a"
        raise TypeError(
            f"{name} must be {article} {expected.__name__}, got {type(value).__name__}: {value!r}"
        )


def check_int(name: str, value: object) -> int:
    """Return `value` if it is an int (a bool is refused), or a symbolic int of torch.export."""
    if isinstance(value, torch.SymInt):
        return value  # type: ignore[return-value]
    if isinstance(value, bool) or not isinstance(value, int):
        raise TypeError(f"{name} must be an int, got {type(value).__name__}: {value!r}")
    return value


def check_positive_int(name: str, value: object) -> None:
    """Raise unless `value` is an int above 0."""
    if check_int(name, value) <= 0:
        raise ValueError(f"{name} must be positive, got {value}")


def check_sizes(**sizes: object) -> None:
    """Raise unless all are ints above 0."""
    for name, size in sizes.items():
        check_positive_int(name, size)


def check_lens(**lens: object) -> None:
    """Raise unless all are non-negative ints; None stands for a default."""
    for name, value in lens.items():
        if value is not None and check_int(name, value) < 0:
            raise ValueError(f"{name} must not be negative, got {value}")


def check_seed(name: str, value: object) -> None:
    """Raise unless `value` is an int that every generator accepts as a seed."""
    if not 0 <= check_int(name, value) < 2**32:
        raise ValueError(f"{name} must lie in 0..2^32-1, got {value}")


def check_number(name: str, value: object) -> float:
    """Return `value` if it is an int or a float."""
    if isinstance(value, bool) or not isinstance(value, (int, float)):
        raise TypeError(
            f"{name} must be a number, got {type(value).__name__}: {value!r}"
        )
    return value


def check_positive(name: str, value: object) -> None:
    """Raise unless `value` is a finite number above 0."""
    if not 0.0 < check_number(name, value) < math.inf:
        raise ValueError(f"{name} must be positive, got {value}")


def check_probability(name: str, value: object) -> None:
    """Raise unless `value` is a number in 0..1."""
    if not 0.0 <= check_number(name, value) <= 1.0:
        raise ValueError(f"{name} must be between 0 and 1, got {value}")


def check_float_tensor(name: str, value: object, *, axes: str) -> Tensor:
    """Return `value` if it is a floating-point tensor with the named axes, such as "batch, len, embed_dim".

    Axes that start with "..." stand for any number of leading axes.
    """
    open_ended = axes.startswith("...")
    rank = axes.count(",") + 1 - open_ended
    if not isinstance(value, Tensor):
        raise TypeError(
            f"{name} must be a Tensor, got {type(value).__name__}: {value!r}"
        )
    if not value.is_floating_point():
        raise TypeError(f"{name} must have a floating-point dtype, got {value.dtype}")
    if value.ndim < rank or (value.ndim > rank and not open_ended):
        raise ValueError(f"{name} must have shape ({axes}), got {tuple(value.shape)}")
    return value


def check_width(name: str, value: object, width: int, *, axes: str) -> Tensor:
    """Return `value` if it is a floating-point tensor with the named axes, the last one of size `width`."""
    tokens = check_float_tensor(name, value, axes=axes)
    if tokens.shape[-1] != width:
        raise ValueError(
            f"{name} must have shape ({axes}={width}), got {tuple(tokens.shape)}"
        )
    return tokens


def check_choice(name: str, value: object, choices: Iterable[str]) -> None:
    """Raise unless `value` is one of the strings in `choices`."""
    check_type(name, value, str)
    if value not in tuple(choices):
        raise ValueError(f"{name} must be one of {', '.join(choices)}, got {value!r}")


def check_kept_name(name: object) -> str:
    """Return `name` if a widget can keep the reader's answers under it; "" means that it keeps none."""
    check_type("name", name, str)
    if not re.fullmatch(r"[\w.-]*", cast(str, name), re.ASCII):
        raise ValueError(
            f"name must hold only letters, digits, '.', '_' and '-', got {name!r}"
        )
    return cast(str, name)


def check_same(what: str, names: Sequence[str], values: Sequence[object]) -> None:
    """Raise unless all `values` are equal; `what` is the property that the arguments `names` must share."""
    for value in values[1:]:
        if value != values[0]:
            break
    else:
        return
    pairs = ", ".join(
        f"{name}: {value}" for name, value in zip(names, values, strict=True)
    )
    error = TypeError if isinstance(values[0], torch.dtype) else ValueError
    raise error(f"{' and '.join(names)} must have the same {what}, got {pairs}")


def check_same_kind(names: Sequence[str], tensors: Sequence[Tensor]) -> None:
    """Raise unless all tensors share dtype and device."""
    device, dtype = tensors[0].device, tensors[0].dtype
    for tensor in tensors:
        if tensor.dtype is not dtype or tensor.device != device:
            break
    else:
        return
    check_same("device", names, [tensor.device for tensor in tensors])
    # Under autocast torch itself casts the operands to one dtype.
    if tensors[0].is_meta or not torch.is_autocast_enabled(tensors[0].device.type):
        check_same("dtype", names, [tensor.dtype for tensor in tensors])


def check_tokens(x: object, width: int, proj: object, axes: str) -> None:
    """Raise unless `x` has the named axes, the width, and the dtype and device of the weight of `proj`.

    A module that replaced a projection (LoRA, quantization) may have no weight tensor.
    """
    tokens = check_width("x", x, width, axes=axes)
    weight = getattr(proj, "weight", None)
    if isinstance(weight, Tensor):
        check_same_kind(("x", "the weights"), (tokens, weight))


def check_leading_axes(names: Sequence[str], tensors: Sequence[Tensor]) -> None:
    """Raise unless the axes before the last two broadcast."""
    leading = [tensor.shape[:-2] for tensor in tensors]
    if all(axes == leading[0] for axes in leading):
        return
    try:
        torch.broadcast_shapes(*leading)
    except RuntimeError:
        shapes = " and ".join(str(tuple(tensor.shape)) for tensor in tensors)
        raise ValueError(
            f"the leading axes of {' and '.join(names)} must broadcast, got {shapes}"
        ) from None


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

    If `integers` names axes, such as "(len,) or (batch, len)", `values` must hold integers and have one of
    these ranks.

    Where reading the numbers would make the program wait for a GPU, or would break the graph that a
    compiler traces, torch checks them when the program runs and raises a RuntimeError that states the
    rule. Inside `vmap` the numbers of all samples are read. The meta device has no numbers.
    """
    if not isinstance(values, Tensor):
        raise TypeError(
            f"{name} must be a Tensor, got {type(values).__name__}: {values!r}"
        )
    if integers is not None:
        if values.dtype not in _INTEGERS:
            raise TypeError(f"{name} must hold integers, got dtype {values.dtype}")
        if values.ndim not in range(1, 2 + integers.count(" or ")):
            raise ValueError(
                f"{name} must have shape {integers}, got {tuple(values.shape)}"
            )
    if values.is_meta or values.numel() == 0:
        return values
    if torch.compiler.is_compiling() or values.is_cuda:
        inside = ((values >= low) & (values <= high)).all()
        torch._assert_async(inside, f"{name} {rule}")
        return values
    numbers = values.detach()
    while torch._C._functorch.is_functorch_wrapped_tensor(numbers):
        numbers = torch._C._functorch.get_unwrapped(numbers)
    try:
        # `min` and `max` of a list are wrong if it holds a NaN; `aminmax` returns the NaN.
        few = integers is not None and numbers.numel() <= 64
        ends = numbers if few else torch.stack(numbers.aminmax())
        listed = ends.flatten().tolist()
        least, most = min(listed), max(listed)
    except RuntimeError:  # a fake tensor, which has no numbers
        return values
    if not low <= least <= most <= high:
        raise ValueError(f"{name} {rule}, got values from {least} to {most}")
    return values


def finite(*tensors: Tensor) -> bool:
    """Whether all numbers are finite; also False where a check would wait for a GPU or break a graph."""
    if torch.compiler.is_compiling() or not tensors[0].is_cpu:
        return False
    for tensor in tensors:
        try:  # A NaN or infinity makes the sum non-finite. A sum that overflows only costs time.
            if not math.isfinite(tensor.detach().sum().item()):
                return False
        except RuntimeError:  # `vmap`, and fake tensors, which have no numbers
            return False
    return True


def check_vectors(
    query: Tensor,
    key: Tensor,
    dims: tuple[int, int] | None = None,
    weight: Tensor | None = None,
) -> None:
    """Raise unless queries and keys are vectors, of the widths `dims`, whose leading axes broadcast.

    If a `weight` is given, they must have its dtype and device.
    """
    check_float_tensor("query", query, axes="..., q_len, d")
    check_float_tensor("key", key, axes="..., k_len, d")
    check_same_kind(("query", "key"), (query, key))
    if dims is not None:
        for name, x, dim in (("query", query, dims[0]), ("key", key, dims[1])):
            if x.shape[-1] != dim:
                raise ValueError(
                    f"the last axis of {name} must be {name}_dim={dim}, got shape {tuple(x.shape)}"
                )
    if weight is not None:
        check_same_kind(("query", "the weights"), (query, weight))
    check_leading_axes(("query", "key"), (query, key))


def check_pair(query: Tensor, key: Tensor) -> None:
    """Raise unless queries and keys are vectors of one width whose leading axes broadcast."""
    check_vectors(query, key)
    check_same("last axis", ("query", "key"), (query.shape[-1], key.shape[-1]))


def check_scale(name: str, scale: float | Tensor) -> None:
    """Raise unless `scale` is a positive number, or a floating-point tensor with one number for each head."""
    if not isinstance(scale, Tensor):
        check_positive(name, scale)
        return
    check_float_tensor(name, scale, axes="...")
    if scale.ndim and scale.shape[-2:] != (1, 1):
        raise ValueError(
            f"{name} must be a number or a tensor of shape () or (num_heads, 1, 1), got {tuple(scale.shape)}"
        )


def check_scaled(
    query: Tensor, key: Tensor, *, scale: float | Tensor | None = None
) -> None:
    """Raise unless the scaled dot product can take these arguments."""
    check_pair(query, key)
    if scale is not None:
        check_scale("scale", scale)


def check_cap(scores: Tensor, cap: float) -> None:
    """Raise unless `scores` can be bent below `cap`."""
    check_float_tensor("scores", scores, axes="...")
    check_positive("cap", cap)


def check_gaussian(query: Tensor, key: Tensor, bandwidth: float | Tensor = 1.0) -> None:
    """Raise unless the Gaussian kernel can take these arguments."""
    check_pair(query, key)
    if isinstance(bandwidth, Tensor):
        smallest = torch.finfo(torch.float32).tiny
        check_numbers("bandwidth", bandwidth, smallest, math.inf, "must be positive")
    else:
        check_positive("bandwidth", bandwidth)


def check_bool(name: str, mask: object) -> Tensor:
    """Return `mask` if it is a bool tensor."""
    if not isinstance(mask, Tensor) or mask.dtype != torch.bool:
        got = mask.dtype if isinstance(mask, Tensor) else type(mask).__name__
        raise TypeError(
            f"{name} must be a bool tensor, True = may attend, got {got}; a mask of zeros and ones would be "
            "added to the scores, so convert it with .bool(), or with mask_from_additive"
        )
    return mask


def check_no_key_mask(attn_mask: object, shape: Sequence[int]) -> None:
    """Raise if a mask of rank 2 could also mean (batch, k_len), the padding mask of other libraries."""
    if not isinstance(attn_mask, Tensor) or attn_mask.ndim != 2 or len(shape) < 3:
        return
    if attn_mask.shape[0] == shape[0] == shape[-2] > 1:
        raise ValueError(
            "attn_mask must say which axes it has where batch = q_len: attn_mask[None] means (q_len, k_len), "
            f"key_mask=attn_mask means (batch, k_len), got shape {tuple(attn_mask.shape)}"
        )


def fits(shape: Sequence[int], target: Sequence[int]) -> bool:
    """Whether a tensor of `shape` broadcasts to `target` without changing it."""
    ends = target[len(target) - len(shape) :]
    return all(size in (1, end) for size, end in zip(shape, ends, strict=True))


def check_pooling(scores: Tensor, value: Tensor, dropout_p: float) -> None:
    """Raise unless `attention_pooling` can take these arguments."""
    check_float_tensor("scores", scores, axes="..., q_len, k_len")
    check_float_tensor("value", value, axes="..., k_len, value_dim")
    names, tensors = ("scores", "value"), (scores, value)
    check_same_kind(names, tensors)
    check_same("number of keys", names, (scores.shape[-1], value.shape[-2]))
    check_leading_axes(names, tensors)
    check_probability("dropout_p", dropout_p)


def check_attention(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    is_causal: bool,
    dropout_p: float,
    scale: float | Tensor | None,
    softcap: float | None,
) -> None:
    """Raise unless `dot_product_attention` can take these arguments; masks and bias are checked elsewhere."""
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
            raise ValueError(
                "the heads of query must be a multiple of those of key and value, "
                f"got query: {leading[0]}, key: {leading[1]}"
            )
    else:
        check_same("leading axes", names, leading)
    check_same("last axis", ("query", "key"), (query.shape[-1], key.shape[-1]))
    # torch's kernel reads past the end of the keys where the values are longer, so this
    # must be refused here.
    check_same("length", ("key", "value"), (key.shape[-2], value.shape[-2]))
    check_type("is_causal", is_causal, bool)
    check_probability("dropout_p", dropout_p)
    if scale is not None:
        check_scale("scale", scale)
    if softcap is not None:
        check_positive("softcap", softcap)


def check_layer(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    widths: tuple[int, int, int],
    weight: object,
    is_causal: object,
) -> None:
    """Raise unless a layer with these widths and this weight can take the inputs.

    This runs in every call, so one quick test comes first; the other checks only raise the errors.
    """
    like = weight if isinstance(weight, Tensor) else query
    axes = ("batch, q_len, embed_dim", "batch, k_len, kdim", "batch, k_len, vdim")
    inputs = ((query, "query"), (key, "key"), (value, "value"))
    rank = getattr(query, "ndim", 3)
    if (
        rank != 2
        or rank != getattr(key, "ndim", 3)
        or rank != getattr(value, "ndim", 3)
    ):
        rank = 3
    # In self-attention the three inputs are one tensor, which is checked once.
    alone = query is key is value and widths[0] == widths[1] == widths[2]
    for (x, name), width, axis in zip(inputs[: 1 if alone else 3], widths, axes):  # noqa: B905
        good = isinstance(x, Tensor) and x.ndim == rank and x.shape[-1] == width
        good = good and x.is_floating_point()
        if not good or x.dtype != like.dtype or x.device != like.device:
            check_width(name, x, width, axes=axis.removeprefix("batch, " * (rank == 2)))
            check_same_kind((name, "the layer's weights"), (x, like))
    fit = alone or (
        query.shape[:-2] == key.shape[:-2] and key.shape[:-1] == value.shape[:-1]
    )
    if not fit:
        names, tensors = ("query", "key", "value"), (query, key, value)
        check_same("batch", names, [tuple(x.shape[:-2]) for x in tensors])
        check_same("length", names[1:], [x.shape[-2] for x in tensors[1:]])
    if not isinstance(is_causal, bool):
        check_type("is_causal", is_causal, bool)


def check_plain_linear(attention: Any) -> None:
    """Raise unless the projections of a layer are linear layers whose matrices can be cut into heads."""
    for name in ("q_proj", "k_proj", "v_proj", "out_proj"):
        proj = getattr(attention, name)
        # Weight norm removes the parameter but keeps the class; sharding and torchao change its class.
        weight = proj._parameters.get("weight")
        if type(proj) is not torch.nn.Linear or type(weight) is not torch.nn.Parameter:
            held = (
                "" if weight is None else f" with a weight of {type(weight).__name__}"
            )
            raise TypeError(
                f"attention.{name} must be a plain Linear, so that its matrix can be cut into heads, "
                f"got {type(proj).__name__}{held or ' without a weight of its own'}"
            )


def check_divisible(**sizes: int) -> None:
    """Raise unless the second of two sizes divides the first."""
    (name, size), (divisor_name, divisor) = sizes.items()
    if size % divisor:
        raise ValueError(
            f"{name} must be divisible by {divisor_name}, got {name}={size}, {divisor_name}={divisor}"
        )


def check_scoring(
    score: object, scale: float | Tensor | None, softcap: float | None, num_heads: int
) -> None:
    """Raise unless a layer can compute scores with these settings."""
    if score is not None and not callable(score):
        raise TypeError(
            f"score must be a function of query and key, got {type(score).__name__}: {score!r}"
        )
    if softcap is not None:
        check_positive("softcap", softcap)
    if scale is None:
        return
    check_scale("scale", scale)
    if score is not None:
        raise ValueError(f"scale must be None where score is given, got scale={scale}")
    if isinstance(scale, Tensor) and scale.numel() not in (1, num_heads):
        raise ValueError(
            f"scale must hold one number, or one for each of num_heads={num_heads}, got {tuple(scale.shape)}"
        )


def check_window(window: object) -> None:
    """Raise unless `window` is None or a pair of lengths (left, right), each None if unlimited."""
    if window is None:
        return
    if not isinstance(window, (tuple, list)) or len(window) != 2:
        raise TypeError(
            f"window must be a pair (left, right), got {type(window).__name__}: {window!r}"
        )
    for side in window:
        if side is not None and check_int("a side of window", side) < 0:
            raise ValueError(f"a side of window must not be negative, got {window}")


def check_rotary(rotary: object, head_dim: int) -> None:
    """Raise unless `rotary` can turn heads of width `head_dim`."""
    if rotary is not None and not callable(rotary):
        raise TypeError(
            f"rotary must be a function of x and positions, got {type(rotary).__name__}: {rotary!r}"
        )
    made_for = getattr(rotary, "head_dim", head_dim)
    if made_for != head_dim:
        raise ValueError(
            f"rotary must be made for head_dim={head_dim}, got one for {made_for}"
        )


def checked_rule(
    score: Callable[..., Tensor], positions: tuple[Tensor, Tensor] | None = None
) -> Callable[[Tensor, Tensor], Tensor]:
    """Wrap a user's scoring rule, which must return one number for each query and key.

    A function receives half precision as float32, a module the dtype of its parameters. Where the slots of a
    cache are not the positions of their tokens, a rule that takes `positions` receives them.
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


def check_buckets(num_buckets: int, max_distance: int, bidirectional: bool) -> None:
    """Raise unless T5's buckets can have these sizes."""
    check_type("bidirectional", bidirectional, bool)
    check_positive_int("num_buckets", num_buckets)
    check_positive_int("max_distance", max_distance)
    if bidirectional and (num_buckets % 2 or num_buckets < 4):
        raise ValueError(
            f"num_buckets must be even and at least 4 where bidirectional, got {num_buckets}"
        )
    if num_buckets < 2:
        raise ValueError(f"num_buckets must be at least 2, got {num_buckets}")
    exact = num_buckets // (4 if bidirectional else 2)
    if max_distance <= exact:
        raise ValueError(
            f"max_distance must be larger than {exact}, the distances with a bucket of their own "
            f"(num_buckets={num_buckets}), got {max_distance}"
        )


def check_even(name: str, value: object) -> None:
    """Raise unless `value` is an even int above 0."""
    check_positive_int(name, value)
    if check_int(name, value) % 2:
        raise ValueError(f"{name} must be even, got {value}")


def check_positions(positions: object, q_len: int, k_len: int) -> Positions:
    """Return `positions` if they are a pair, of queries and of keys: integers (len,) or (batch, len) each."""
    if not isinstance(positions, (tuple, list)) or len(positions) != 2:
        raise TypeError(
            f"positions must be a pair of tensors, for queries and keys, got {type(positions).__name__}"
        )
    for what, own, length in zip(
        ("queries", "keys"), positions, (q_len, k_len), strict=True
    ):
        name, axes = f"positions of {what}", "(len,) or (batch, len)"
        check_numbers(name, own, 0, math.inf, "must not be negative", integers=axes)
        check_same("length", (name, what), (own.shape[-1], length))
    return positions[0], positions[1]


def check_chunk(
    keys: Tensor, values: Tensor, held_keys: Tensor | None, held_values: Tensor | None
) -> None:
    """Raise unless keys and values can be appended to those that a cache holds."""
    check_float_tensor("keys", keys, axes="batch, num_kv_heads, new, head_dim")
    check_float_tensor("values", values, axes="batch, num_kv_heads, new, value_dim")
    names = ("keys", "values")
    check_same_kind(names, (keys, values))
    sizes = tuple(keys.shape[:3]), tuple(values.shape[:3])
    check_same("(batch, num_kv_heads, new)", names, sizes)
    if held_keys is not None and held_values is not None:
        check_same_kind(("the new keys", "the cache"), (keys, held_keys))
        widths = (values.shape[3], held_values.shape[3])
        check_same("value_dim", ("the new values", "the cache"), widths)


def check_chunk_sizes(
    sizes: tuple[int, ...], held: Sequence[int] | None, valid_lens: object
) -> None:
    """Raise unless keys of these sizes (batch, num_kv_heads, new, head_dim) match those in the cache."""
    batch, num_kv_heads, _, head_dim = sizes
    if valid_lens is not None and getattr(valid_lens, "shape", ()) != (batch,):
        check_type("valid_lens", valid_lens, Tensor)
        raise ValueError(
            "valid_lens must have shape (batch,) with a cache, the number of real new tokens, "
            f"got {tuple(getattr(valid_lens, 'shape', ()))} for batch={batch}"
        )
    if held is not None:
        names, own = ("the new keys", "the cache"), (batch, num_kv_heads, head_dim)
        check_same(
            "(batch, num_kv_heads, head_dim)", names, (own, (*held[:2], held[3]))
        )
