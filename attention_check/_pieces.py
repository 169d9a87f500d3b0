"""What a module that later pages use must do besides returning the right numbers.

Objects of its class share nothing, an earlier call changes nothing, and a gradient passes through it. The
page has these functions too, so they use only what its stand-in for torch has.
"""

from __future__ import annotations

import inspect
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager, redirect_stdout
from io import StringIO
from itertools import combinations, cycle, pairwise, starmap
from typing import Any

import torch
from torch import nn

from attention_check._results import Outcome, listed, tensors_in
from attention_check._verdicts import AGAIN, IN_PLACE, FaultError, unlearned

SEEDS = (
    "it seeds torch's own generator (`torch.manual_seed`), so whatever is drawn next, such as the weights of "
    "the next layer, is the same each time. Leave the seed to the cell that trains"
)


SAME_START = (
    "two objects of the class begin with the same weights, so several heads or blocks would all learn the "
    "same. Let `nn.Linear` draw them, or draw them anew in each `__init__`: no constants, and no generator "
    "with a fixed seed"
)


def seed_draws(number: int) -> None:
    """Seed the draws of an answer on a CPU; `torch.manual_seed` is slow, since it looks for other devices."""
    torch.default_generator.manual_seed(number)


def quietly() -> AbstractContextManager[Any]:
    """What a reader prints in these calls is not shown, because the first call has printed it."""
    return redirect_stdout(StringIO())


def changes(
    tried: Callable[..., Outcome],
    outcomes: Mapping[str, Outcome],
    atol: float,
    rtol: float,
) -> bool:
    """Whether one of many further calls, in as much time as nobody notices, gives other results."""
    end = time.monotonic() + 0.1
    for seed, case in zip(range(2, 26), cycle(outcomes), strict=False):
        with quietly():
            again = tried(case, seed=seed)
        if not outcomes[case].agrees(again, atol, rtol):
            return True
        if time.monotonic() > end:
            break
    return False


def two_of(
    make: Callable[[], Any], prepare: Callable[[Any], None] | None = None
) -> tuple[Any, Any]:
    """Two objects that a class makes, or a FaultError if they share weights or begin with the same ones.

    `prepare` then gives each of them the numbers of the check.
    """
    seed = torch.default_generator.initial_seed()
    first = make()
    with quietly():
        second = make()
    if torch.default_generator.initial_seed() != seed:
        raise FaultError(SEEDS)
    for one in (first, second):
        if not isinstance(one, nn.Module):
            raise FaultError(
                "the class is no `nn.Module`. Its first line names it: `class …(nn.Module):`"
            )
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
    for one in (first, second):
        if prepare is not None:
            prepare(one)
    return first, second


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
    """Raise a FaultError if weights have other names than those of the parts, or two parts are one."""
    for one, other in combinations(parts, 2):
        if getattr(module, one) is getattr(module, other):
            raise FaultError(
                f"`{one}` and `{other}` are the same object. They then have one set of weights between "
                "them: make an object for each"
            )
    buffers = {name for name, _ in module.named_buffers()}
    for name in module.state_dict():
        if name not in buffers and name.partition(".")[0] not in parts:
            raise FaultError(
                f"weights are saved as `{name}`, besides {listed([f'`{one}`' for one in parts])}; "
                "the stored weights that later pages load hold none of this name. Leave it out"
            )


def steady(
    pair: tuple[Any, Any],
    inputs: Sequence[Any],
    mask: Any = None,
    *,
    masks: bool = False,
) -> Any:
    """What the first of two equal modules returns, or a FaultError if an earlier call changes that.

    Between two equal calls, it gets one sample that is shorter and reversed and, if `masks`, another mask.
    The second module gets that first, so that what it cannot do is not blamed on an earlier call.
    """
    module, _ = pair

    def call(used: Any, given: Sequence[Any], shown: Any) -> Any:
        copies = [one.clone() for one in given]
        last = [] if shown is None else [shown.clone()]
        result = used(*copies, *last)
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
        returned = _again(call, pair, first, inputs, mask, masks)
        _check_same_object(module, inputs, mask)
        if not same(returned, call(module.eval(), inputs, mask)):
            raise FaultError(
                "in evaluation (`model.eval()`) it returns different numbers than in training. Nothing here "
                "depends on that: leave out `self.training`"
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

    def works(given: tuple[Any, Any]) -> bool:
        try:
            call(fresh, *given)
        except Exception:
            return False
        return True

    others = [_other_call(inputs, masks and mask is None, end) for end in (-1, None)]
    others += [_other_call(inputs, False, None)]
    other_call = next((one for one in others if works(one)), None)
    if other_call is None:  # it needs a mask or this length, which the cases tell
        return call(module, inputs, mask)
    try:
        call(module, *other_call)
        again = call(module, inputs, mask)
    except FaultError:
        raise
    except Exception as error:
        raise FaultError(
            f"a second call with another text fails ({type(error).__name__}). {KEPT}"
        ) from error
    if same(first, again):
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
    for i, j in pairwise(range(len(inputs))):
        if inputs[i].shape == inputs[j].shape:
            given = [*inputs[:j], inputs[i], *inputs[j + 1 :]]
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
    names = unlearned(module, returned)
    parameters = [one for _, one in sorted(module.named_parameters())]
    sizes = [
        torch.zeros(()) if one.grad is None else one.grad.norm().float()
        for one in (*inputs, *parameters)
    ]
    return names, torch.stack(sizes)


def layer_fault(make: Any) -> str:
    """What is wrong with a class of layers that return the right numbers; "" if later pages can use it.

    They read the number of heads, load stored weights by their names, and train the layer.
    """
    try:
        _check_layer(make)
    except FaultError as fault:
        return str(fault)
    return ""


def _check_layer(make: Any) -> None:
    bias = inspect.signature(make).parameters.get("bias")
    if bias is not None and bias.default is True:
        raise FaultError(
            "`bias` is True by default, and later cells rely on the default of the stub. Write `bias=False` "
            "in the first line of `__init__`"
        )
    layer, other = two_of(lambda: make(6, 3))
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
    generator = torch.Generator().manual_seed(0)
    inputs = [
        torch.randn(2, 5, 6, generator=generator).requires_grad_() for _ in names[:3]
    ]
    returned = steady((layer, other), inputs, masks=True)
    for name, one in zip(("output", "weights"), returned, strict=True):
        if one.dtype != torch.float32:
            raise FaultError(f"`{name}` has dtype {one.dtype}, expected torch.float32")
    lost, _ = trained(layer, returned, inputs)
    if lost != "nothing":
        raise FaultError(f"in training, no gradient reaches `{lost}`")
