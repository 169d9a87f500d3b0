"""What a module that later pages use must do besides returning the right numbers.

Objects of its class share nothing, an earlier call changes nothing, and a gradient passes through it. The
page has these functions too, so they use only what its stand-in for torch has.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Sequence
from copy import deepcopy
from functools import partial
from itertools import combinations, pairwise, starmap
from typing import Any

import torch
from torch import nn

from attention_check._results import AGAIN, IN_PLACE, listed, quietly, tensors_in
from mha_course import built
from mha_course._classes import check_order, made_by_name, unlearned
from mha_course._elsewhere import Elsewhere
from mha_course._exercise import SEEDS, FaultError, UnfinishedError, described

SAME_START = (
    "two objects of the class begin with the same weights, so several heads or blocks would all learn the "
    "same. Let `nn.Linear` draw them, or draw them anew in each `__init__`: no constants, and no generator "
    "with a fixed seed"
)


def made(make: Callable[..., Any], *sizes: Any, **by_name: Any) -> Any:
    """What a class makes of sizes, or a FaultError if it is an object, or its objects are no modules."""
    if isinstance(make, nn.Module):
        raise FaultError(
            f"the checker takes a class, and was given an object, `{type(make).__name__}(…)`. Pass the class "
            "itself, without calling it"
        )
    module = made_by_name(make, *sizes, **by_name)
    if not isinstance(module, nn.Module):
        raise FaultError(
            "the class is no `nn.Module`. Its first line names it: `class …(nn.Module):`"
        )
    return module


def looked_at(
    sizes: tuple[int, ...],
    shapes: Sequence[tuple[int, ...]],
    mask: Sequence[int],
    below: int,
    answer: Any,
) -> str:
    """What is wrong with a class whose objects return the right numbers, in words; "" if nothing.

    Its objects get inputs of these shapes: numbers or, with `below`, tokens. If `mask` has a shape, they are
    called with a mask, too, which hides the first key.
    """
    if isinstance(answer, Elsewhere):
        return str(answer.do(looked_at, sizes, shapes, mask, below, answer))
    return fault_of(partial(_look_at, sizes, shapes, mask, below, answer))


def fault_of(look: Callable[[], None]) -> str:
    """What a look at an answer finds wrong, in words; "" if nothing."""
    try:
        look()
    except UnfinishedError as fault:
        return str(fault)
    except Exception as error:
        return described(error)
    return ""


def _look_at(
    sizes: tuple[int, ...],
    shapes: Sequence[tuple[int, ...]],
    mask: Sequence[int],
    below: int,
    answer: Any,
) -> None:
    module = independent(partial(answer, *sizes))
    g = torch.Generator().manual_seed(0)
    inputs = [
        torch.randint(below, one, generator=g)
        if below
        else torch.randn(one, generator=g)
        for one in shapes
    ]
    shown = torch.arange(mask[-1]).expand(*mask) > 0 if mask else None
    for hides in [None] if shown is None else [None, shown]:
        steady(module, inputs, hides, masks=shown is not None)
        stay_double(module, inputs, hides)
    if any(True for _ in module.parameters()):
        check_learning(answer(*sizes), inputs)


def check_learning(module: Any, inputs: Sequence[Any]) -> None:
    """Raise a FaultError if a matrix stays as it begins, because it only gets gradients of zeros."""
    optimizer = torch.optim.AdamW(module.parameters(), lr=0.01)
    learn = set()
    for _ in range(3):  # a matrix of zeros keeps others from learning in the first step
        optimizer.zero_grad()
        unlearned(module, module(*inputs))
        for name, one in module.named_parameters():
            if one.grad is None or one.ndim < 2 or one.grad.any():
                learn.add(name)
        optimizer.step()
    for name, _ in module.named_parameters():
        if name not in learn:
            raise FaultError(
                f"`{name}` never learns: its gradient is 0 in each step. A product of two matrices that both "
                "begin with zeros has no gradient. Let `nn.Linear` draw them"
            )


def independent(make: Callable[[], Any]) -> Any:
    """What a class makes, or a FaultError if two objects share weights or begin with the same ones."""
    seed = torch.default_generator.initial_seed()
    first = make()
    with quietly():
        second = make()
    if torch.default_generator.initial_seed() != seed:
        raise FaultError(SEEDS)
    known = {id(one) for one in first.parameters()}
    for name, one in second.named_parameters():
        if id(one) in known:
            raise FaultError(
                f"two objects of the class share `{name}`, so they would learn the same. Make it anew in "
                "each `__init__`"
            )
    matrices = [[p for p in one.parameters() if p.ndim > 1] for one in (first, second)]
    if matrices[0] and all(starmap(torch.equal, zip(*matrices, strict=True))):
        raise FaultError(SAME_START)
    return first


def standing(module: Any) -> dict[str, Any]:
    """What a call must leave as it is: the modes of a module, and what is trained, in which dtype."""
    found: dict[str, Any] = {
        f"training of {name}": one.training for name, one in module.named_modules()
    }
    for name, one in (*module.named_parameters(), *module.named_buffers()):
        learns = one.grad is not None and bool(one.grad.any())
        found[name] = one.dtype, one.requires_grad, learns
    return found


def check_standing(module: Any, before: dict[str, Any]) -> None:
    """Raise a FaultError if a call has changed what `standing` has returned before."""
    now = standing(module)
    if any(now.get(name) != one for name, one in before.items()):
        raise FaultError(
            "a call changes the model: its mode (`model.eval()`), its dtype, its gradients, or what is "
            "trained (`requires_grad_`). It has to go on as before"
        )


def check_linear(module: Any, name: str, out: int, width: int, *others: int) -> Any:
    """Return a projection if it is registered and has its widths, or a different one that is in `others`."""
    proj = getattr(module, name)
    if isinstance(proj, nn.Parameter):
        raise FaultError(
            f"`{name}` is a bare `nn.Parameter`. Later cells read `{name}.weight`: make an `nn.Linear`"
        )
    if not hasattr(proj, "weight"):
        raise FaultError(
            f"`{name}` is an object of the class `{type(proj).__name__}`. Later cells read `{name}.weight`: "
            "make an `nn.Linear`, and nothing around it"
        )
    known = {id(one) for one in module.parameters()}
    if not all(id(one) in known for one in proj.parameters()):
        raise FaultError(
            f"`{name}` is not registered, so an optimiser would not find its weights. Keep it on the object "
            f"itself, `self.{name} = nn.Linear(…)`, and not in a list or a dict"
        )
    shape = tuple(proj.weight.shape)
    # That widths are exchanged, or not used, is known by the numbers.
    if shape[0] != out or shape[1] not in (width, *others):
        raise FaultError(
            f"the weight of `{name}` has shape {shape}, expected {(out, width)}, that is (out, in): "
            f"`nn.Linear({width}, {out}, …)` with these sizes"
        )
    return proj


def check_names(module: Any, parts: Sequence[str]) -> None:
    """Raise a FaultError if weights have other names than those of the parts, or two parts share theirs."""
    for one, other in combinations(parts, 2):
        first, second = getattr(module, one), getattr(module, other)
        if first is second:
            raise FaultError(
                f"`{one}` and `{other}` are the same object. They then have one set of weights between "
                "them: make an object for each"
            )
        weights = [getattr(part, "weight", None) for part in (first, second)]
        # An output and an embedding that share theirs are known by the numbers.
        if type(first) is type(second) and weights[0] is weights[1] is not None:
            raise FaultError(
                f"`{one}` and `{other}` share a weight, so one cannot learn without the other. Leave the "
                "weight that each makes for itself"
            )
    buffers = {name for name, _ in module.named_buffers()}
    for name in module.state_dict():
        if name not in buffers and name.partition(".")[0] not in parts:
            saved = listed([f"`{one}`" for one in parts])
            raise FaultError(
                f"weights are saved as `{name}`, besides {saved}; the stored weights that later pages load "
                "hold none of this name. Leave it out"
            )


def steady(
    module: Any, inputs: Sequence[Any], mask: Any = None, *, masks: bool = False
) -> Any:
    """What a module returns, or a FaultError if an earlier call changes that.

    Between two equal calls, it gets one sample that is shorter and reversed and, if `masks`, another mask.
    A copy gets that first, so that what it cannot do is not blamed on an earlier call.
    """
    fresh = deepcopy(module)

    def call(used: Any, given: Sequence[Any], shown: Any) -> Any:
        copies = [one.clone() for one in given]
        last = [] if shown is None else [shown.clone()]
        for one in used.parameters():
            one.grad = torch.ones_like(one)
        before = standing(used)
        result = used(*copies, *last)
        check_standing(used, before)
        used.zero_grad()
        names = inspect.signature(used.forward).parameters
        for name, mine, before in zip(
            names, [*copies, *last], [*given, shown], strict=False
        ):
            if not torch.equal(mine, before):
                raise FaultError(
                    f"it changes its argument `{name}` in place. {IN_PLACE}"
                )
        return result

    first = call(module, inputs, mask)
    if first is None:
        return None
    with quietly():
        returned = _again(call, (module, fresh), first, inputs, mask, masks)
        _check_same_object(module, inputs, mask)
        with torch.no_grad():
            tested = call(module.eval(), inputs, mask)
        if not same(returned, tested):
            raise FaultError(
                "in evaluation (`model.eval()`, `no_grad`) it returns different numbers than in training. "
                "Nothing here depends on that: leave out `self.training`, dropout and batch norm"
            )
    module.train()
    return returned


def _again(
    call: Callable[..., Any],
    pair: tuple[Any, Any],
    first: Any,
    inputs: Sequence[Any],
    mask: Any,
    masks: bool,
) -> Any:
    module, fresh = pair

    def result_of(given: tuple[Any, Any]) -> Any:
        try:
            return call(fresh, *given)
        except Exception:
            return None

    others = [_other_call(inputs, masks and mask is None, end) for end in (-1, None)]
    others += [_other_call(inputs, False, None)]
    expected = other_call = None
    for other_call in others:
        if (expected := result_of(other_call)) is not None:
            break
    else:  # it needs a mask or this length, which the cases tell
        return call(module, inputs, mask)
    try:
        found = call(module, *other_call)
        again = call(module, inputs, mask)
    except FaultError:
        raise
    except Exception as error:
        raise FaultError(
            f"a second call with another text fails ({type(error).__name__}). {KEPT}"
        ) from error
    if same(first, again):
        if not (same(found, expected) and same(call(fresh, inputs, mask), first)):
            raise FaultError(f"another text gets numbers of the text before. {KEPT}")
        _check_same_length(call, module, inputs, mask, other_call)
        return again
    if not same(again, call(module, inputs, mask)):
        raise FaultError(AGAIN)
    raise FaultError(
        f"after a call with another text, the first one gives other numbers. {KEPT}"
    )


def _check_same_length(
    call: Callable[..., Any],
    module: Any,
    inputs: Sequence[Any],
    mask: Any,
    other_call: tuple[Any, Any],
) -> None:
    """Raise a FaultError if it matters whether the call before had inputs of the same sizes."""
    backwards = [one.flip(min(1, one.ndim - 1)) for one in inputs]
    behind = call(module, backwards, mask)
    between = [other_call]
    if other_call[1] is not None:  # it takes masks
        between.append((backwards, _first_key(backwards)))
    for one in between:
        call(module, *one)
        if not same(behind, call(module, backwards, mask)):
            raise FaultError(
                f"what it returns depends on whether the call before had inputs of the same sizes. {KEPT}"
            )


def _check_same_object(module: Any, inputs: Sequence[Any], mask: Any) -> None:
    """Raise a FaultError if it matters whether two of three equal inputs are the same object."""
    last = [] if mask is None else [mask]
    count = len(inputs)
    for i, j, end in [
        *((i, j, j + 1) for i, j in pairwise(range(count))),
        (0, 1, count),
    ]:
        if count > 1 and inputs[i].shape == inputs[j].shape == inputs[end - 1].shape:
            given = [*inputs[:j], *[inputs[i]] * (end - j), *inputs[end:]]
            if not same(
                module(*given, *last), module(*(x.clone() for x in given), *last)
            ):
                names = [*inspect.signature(module.forward).parameters]
                raise FaultError(
                    f"it matters whether `{names[i]}` and `{names[j]}` are the same object or only equal. "
                    "Leave out the question (`is`), and project each of the three inputs"
                )


def _other_call(inputs: Sequence[Any], masks: bool, end: int | None) -> tuple[Any, Any]:
    """One sample, reversed and without what lies behind `end`, and a mask that shows the first key only."""
    texts = [one[:1, :end].flip(1) if one.ndim > 1 else one.flip(0) for one in inputs]
    return texts, _first_key(texts) if masks else None


def _first_key(texts: Sequence[Any]) -> Any:
    """A mask that shows the first key only."""
    q_len, k_len = texts[0].shape[1], texts[min(1, len(texts) - 1)].shape[1]
    return (torch.arange(k_len) < 1).expand(q_len, k_len)


KEPT = "`forward` keeps something from an earlier call (`self.… = …`, `hasattr`): make it anew in each call"


def same(mine: Any, other: Any) -> bool:
    """Whether two results hold the same numbers."""
    pairs = zip(tensors_in("", mine), tensors_in("", other), strict=True)
    return all(
        a.shape == b.shape
        and torch.allclose(a, b, atol=1e-5, rtol=1e-4, equal_nan=True)
        for (_, a), (_, b) in pairs
    )


def trained(module: Any, returned: Any, inputs: Sequence[Any]) -> tuple[str, Any]:
    """What is saved and gets no gradient, and how large the gradients of inputs and parameters are."""
    module.zero_grad()  # another object may share them
    names = unlearned(module, returned)
    parameters = [one for _, one in sorted(module.named_parameters())]
    sizes = [
        torch.zeros(()) if one.grad is None else one.grad.norm().float()
        for one in (*inputs, *parameters)
    ]
    return names, torch.stack(sizes)


def stay_double(module: Any, inputs: Sequence[Any], mask: Any = None) -> None:
    """Raise a FaultError if a copy of a module in float64 fails, or returns another dtype."""
    given = [x.double() if x.is_floating_point() else x for x in inputs]
    given += [] if mask is None else [mask]
    if fault := narrowed(given, deepcopy(module).double()):
        raise FaultError(fault)


def narrowed(given: Sequence[Any], answer: Any) -> str:
    """What is wrong if an answer to float64 numbers is not float64; "" if nothing.

    A shape stands for ones of float64, and a list of sizes for a mask that hides nothing.
    """
    if isinstance(answer, Elsewhere):
        return str(answer.do(narrowed, given, answer))
    kinds: dict[type, Any] = {tuple: torch.float64, list: torch.bool}
    arguments = [
        torch.ones(one, dtype=kinds[type(one)]) if type(one) in kinds else one
        for one in given
    ]
    try:
        with quietly():
            found = {one.dtype for _, one in tensors_in("", answer(*arguments))}
    except Exception as error:
        return f"with numbers in float64 it fails ({type(error).__name__}). {NARROW}"
    return (
        "" if found == {torch.float64} else f"float64 becomes another dtype. {NARROW}"
    )


NARROW = (
    "Models also run in other precisions (`model.double()`): leave out `float()`, and make new tensors like "
    "the given ones (`torch.zeros_like(x)`, `x.new_zeros(…)`)"
)


def layer_fault(make: Any) -> str:
    """What is wrong with a class of layers that return the right numbers; "" if later pages can use it.

    They read the number of heads, load stored weights by their names, and train the layer.
    """
    return fault_of(partial(_check_layer, make))


def _check_layer(make: Any) -> None:
    bias = inspect.signature(make).parameters.get("bias")
    if bias is not None and bias.default is True:
        raise FaultError(
            "`bias` is True by default, and later cells rely on the default of the stub. Write `bias=False` "
            "in the first line of `__init__`"
        )
    check_order(make, "embed_dim", "num_heads", "kdim", "vdim", "bias")
    layer = independent(lambda: make(6, 3))
    for given, name, lacks in (("kdim", "v_proj", "vdim"), ("vdim", "k_proj", "kdim")):
        width = getattr(make(6, 3, **{given: 5}), name).weight.shape[1]
        if width != 6:
            raise FaultError(
                f"with `{given}` alone, `{name}` takes {width} numbers instead of `embed_dim`. Each has "
                f"a default of its own: `{lacks} or embed_dim`"
            )
    if getattr(layer, "num_heads", None) != 3:
        raise FaultError(
            "`num_heads` is not kept. Later cells read it: `self.num_heads = num_heads`"
        )
    names = ["q_proj.weight", "k_proj.weight", "v_proj.weight", "out_proj.weight"]
    for name in layer.state_dict():
        if name not in names:
            raise FaultError(
                f"`{name}` is saved besides the weights of the four projections. Later chapters load stored "
                "weights, which hold none of this name"
            )
    check_names(layer, [name.removesuffix(".weight") for name in names])
    generator = torch.Generator().manual_seed(0)
    inputs = [torch.randn(2, 5, 6, generator=generator) for _ in names[:3]]
    for one in (make(6, 3, bias=True), layer):
        returned = steady(one, inputs, masks=True)
        stay_double(one, inputs)
        check_learning(deepcopy(one), inputs)
    for name, one in zip(("output", "weights"), returned, strict=True):
        if one.dtype != torch.float32:
            raise FaultError(f"`{name}` has dtype {one.dtype}, expected torch.float32")
    lost, _ = trained(layer, returned, ())
    if lost != "nothing":
        raise FaultError(f"in training, no gradient reaches `{lost}`")
    _check_least(make)


def _check_least(make: Any) -> None:
    """Raise a FaultError if heads of width 1, or a hidden key that is the only one, give other numbers."""
    layer, expected = make(5, 5), built.MyMultiHead(5, 5)
    expected.load_state_dict(layer.state_dict())
    generator = torch.Generator().manual_seed(0)
    query, key = (torch.randn(2, 3, 5, generator=generator) for _ in range(2))
    hidden = torch.zeros(2, 1, 1, dtype=torch.bool)
    for where, keys, mask in (
        ("heads of width 1", key, None),
        ("a hidden key that is the only one", key[:, :1], hidden),
    ):
        try:
            fine = same(
                layer(query, keys, keys, mask), expected(query, keys, keys, mask)
            )
        except Exception as error:
            raise FaultError(f"for {where}, {described(error)}") from error
        if not fine:
            raise FaultError(f"right in all cases, but wrong for {where}")
