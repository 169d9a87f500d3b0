"""Checkers for the pieces that readers write on the way to their own layer, in the order of the chapters.

The reference is the page's own solution, from `built`. Later pages use each piece, so an answer may have
a different style, but it must return what they need. `solution` in `own` prevents it from being replaced.
"""

from __future__ import annotations

from functools import partial
from typing import Any

import torch
from torch import Tensor

from mha_course import built
from mha_course._classes import check_order, part_of
from mha_course._exercise import FaultError, UnfinishedError, randn, rows_sum_to_one
from mha_course._pieces import (
    check_linear,
    check_names,
    check_standing,
    looked_at,
    made,
    narrowed,
    standing,
    trained,
)
from mha_course._sizes import Texts

exercise = Texts(__name__)
# Later cells use what these return, so it must be of the page's dtype; those of functions must be tensors.
piece = partial(exercise, same_dtype=True, seeds=False, other_sizes=[1, 17])
module, function = partial(piece, takes="class"), partial(piece, arrays=False)

check_my_pooling = function(
    "check_my_pooling",
    reference=built.my_pooling,
    then=partial(narrowed, [(3, 2), (5, 2), (5, 7)]),
    returns=("output (q_len, value_dim)", "weights (q_len, k_len)"),
    properties=(rows_sum_to_one(1),),
    gradients=True,
)


check_lens_mask = function(
    "check_lens_mask",
    other_sizes=[17],
    reference=built.my_lens_mask,
    returns="mask (batch, 1, k_len)",
)

check_causal_mask = function(
    "check_causal_mask",
    reference=built.my_causal_mask,
    returns="mask (q_len, k_len)",
    further={"more queries than keys": lambda _: (5, 2)},
)

check_attention = function(
    "check_attention",
    reference=built.my_attention,
    then=partial(narrowed, [(3, 2), (5, 2), (5, 7), [3, 5]]),
    returns=("output (..., q_len, value_dim)", "weights (..., q_len, k_len)"),
    properties=(rows_sum_to_one(1),),
    gradients=True,
    atol=1e-4,
)


def _run_head(
    answer: Any,
    widths: tuple[Any, ...],
    query: Tensor,
    key: Tensor,
    value: Tensor,
    mask: Tensor | None,
) -> Any:
    """Make a head of these widths, give its projections fixed numbers, and call it.

    Later cells give the widths by their names, and leave the mask out where there is none.
    """
    names = ("embed_dim", "head_dim", "kdim", "vdim")
    given = {name: one for name, one in zip(names, widths, strict=False) if one}
    embed_dim, head_dim = widths[:2]
    kdim, vdim = (given.get(name, embed_dim) for name in names[2:])

    wide = {"q_proj": embed_dim, "k_proj": kdim, "v_proj": vdim}

    head = made(answer, **given)
    generator = torch.Generator().manual_seed(0)
    for name, width in wide.items():
        part_of(answer, head, name)
        proj = check_linear(head, name, head_dim, width, embed_dim, kdim, vdim)
        with torch.no_grad():
            proj.weight.normal_(generator=generator)
            if proj.bias is not None:
                proj.bias.fill_(1.0)
    found = head.k_proj.weight.shape[1], head.v_proj.weight.shape[1]
    if kdim != vdim and found == (vdim, kdim):
        raise FaultError(
            "`kdim` and `vdim` are exchanged. `kdim` is the width of the keys, `vdim` that of the values"
        )
    check_names(head, list(wide))
    inputs = [x.clone().requires_grad_() for x in (query, key, value)]
    masks = [] if mask is None else [mask]
    returned = head(*(x.clone() for x in inputs), *masks)
    if not isinstance(returned, (tuple, list)):
        return returned
    return *returned, *trained(head, returned, inputs)


def _head_of_width(width: int, generator: torch.Generator) -> tuple[Any, ...]:
    """Sizes of a head for tokens of width 7, and its inputs."""
    return (7, width), *(randn(generator, 2, 5, 7) for _ in range(3)), None


check_head = module(
    "check_head",
    reference=built.MyHead,
    returns=(
        "output (batch, q_len, head_dim)",
        "weights (batch, q_len, k_len)",
        "what is saved and gets no gradient",
        "size of each gradient",
    ),
    run=_run_head,
    further={
        "a head as wide as the tokens": partial(_head_of_width, 7),
        "a head of width 1": partial(_head_of_width, 1),
    },
    then=partial(looked_at, (6, 3), [(2, 5, 6)] * 3, [2, 1, 5], 0),
    atol=1e-4,
)


def _run_heads(answer: Any, x: Tensor, *numbers: Any) -> Any:
    """Cut or merge heads whose numbers may lie in memory as `einsum` leaves them, with the tokens first."""
    if "tokens first" in numbers:
        x = x.transpose(1, 2).contiguous().transpose(1, 2)
    return answer(x, *(one for one in numbers if one != "tokens first"))


check_split_heads = function(
    "check_split_heads",
    reference=built.split_heads,
    then=partial(narrowed, [(2, 5, 6), 3]),
    returns="heads (batch, num_heads, len, head_dim)",
    run=_run_heads,
    gradients=True,
)


check_merge_heads = function(
    "check_merge_heads",
    reference=built.merge_heads,
    then=partial(narrowed, [(2, 3, 5, 7)]),
    run=_run_heads,
    returns="merged (batch, len, embed_dim)",
    gradients=True,
)


def _run_positions(
    answer: Any, sizes: tuple[int, int], x: Tensor, device: str = "cpu"
) -> Any:
    """Make the module and call it on a device.

    Return the sum, and how many numbers would be trained and how many saved. "meta" has no numbers, so
    zeros stand for them.
    """
    embed_dim, max_len = sizes

    module = made(answer, embed_dim, max_len=max_len).to(device)
    added = module(x.to(device))
    if added is None and not [*module.parameters(), *module.buffers()]:
        raise UnfinishedError(
            "`__init__` registers no table. Write it there first, then `forward`"
        )
    learned = sum(p.numel() for p in module.parameters() if p.requires_grad)
    saved = sum(one.numel() for one in module.state_dict().values())
    return added if device == "cpu" else torch.zeros(added.shape), learned, saved


check_my_positions = module(
    "check_my_positions",
    reference=built.MyPositions,
    returns=(
        "sum (batch, len, embed_dim)",
        "count of trained numbers",
        "count of saved numbers",
    ),
    run=_run_positions,
    then=partial(looked_at, (6, 5), [(2, 5, 6)], [], 0),
    # "meta" has no numbers, and so no gradients.
    gradients=[
        case
        for case in exercise.cases("check_my_positions")
        if case != "another device"
    ],
    atol=1e-4,
)


def _run_module(
    parts: str,
    answer: Any,
    sizes: tuple[int, ...],
    x: Tensor,
    mask: Tensor | None = None,
) -> Any:
    """Make a module, give its parameters fixed numbers, and call it.

    Return the result, the count of parameters, and the names of those that no gradient reaches.

    The numbers of a parameter depend on its name only, so that one too many does not change the others.
    Modules in a plain list get theirs too, but do not count: an optimiser would not find them.
    """
    *first, last = sizes
    given = {"max_len": last} if "max_len" in parts else {}

    model = made(answer, *first, **given) if given else made(answer, *sizes)
    for name in parts.split():
        part_of(answer, model, name)
    hidden = [
        (f"{name}.{i}.{of}", parameter)
        for name, several in vars(model).items()
        if isinstance(several, (list, tuple))
        for i, one in enumerate(several)
        if hasattr(one, "named_parameters")
        for of, parameter in one.named_parameters()
    ]
    with torch.no_grad():
        for name, parameter in [*model.named_parameters(), *hidden]:
            seed = sum(place * ord(sign) for place, sign in enumerate(name, 1))
            parameter.normal_(generator=torch.Generator().manual_seed(seed))
    check_names(model, parts.split())
    inputs = [x.clone().requires_grad_() if x.is_floating_point() else x]
    masks = [] if mask is None else [mask]
    if given and model.max_len != last:
        raise FaultError(
            f"`max_len` is {model.max_len}, and the model was given {last}. Later cells cut texts to it: "
            "`self.max_len = max_len`"
        )
    returned = model(*(x.clone() for x in inputs), *masks)
    if returned is None:
        return None
    count = sum(parameter.numel() for parameter in model.parameters())
    return returned, count, *trained(model, returned, inputs[: x.is_floating_point()])


check_encoder_block = module(
    "check_encoder_block",
    reference=built.MyEncoderBlock,
    returns=(
        "tokens (batch, len, embed_dim)",
        "count of parameters",
        "what is saved and gets no gradient",
        "size of each gradient",
    ),
    run=partial(
        _run_module, "self_attention self_attention_norm feed_forward feed_forward_norm"
    ),
    then=partial(looked_at, (6, 3, 5), [(2, 5, 6)], [2, 1, 5], 0),
    atol=1e-3,
)


def _run_batch(answer: Any, tokens: Tensor, batch_size: int, length: int) -> Any:
    """Draw a batch with a generator of its own, which must not be as before afterwards."""
    generator, unused = (torch.Generator().manual_seed(31) for _ in range(2))
    drawn = answer(tokens, batch_size, length, generator)
    if generator.initial_seed() != 31:
        raise FaultError(
            "it seeds the generator that it is given, so all batches are the same. Only draw with it"
        )
    following = [torch.rand(1, generator=one).item() for one in (generator, unused)]
    if drawn is not None and following[0] == following[1]:
        raise UnfinishedError(
            "the generator is not used. Give it to `torch.randint`, so that the same seed "
            "gives the same batches"
        )
    return drawn


check_batch = function(
    "check_batch",
    reference=built.my_batch,
    returns=("inputs (batch_size, length)", "targets (batch_size, length)"),
    run=_run_batch,
)


def _hidden_width(arguments: tuple[Any, ...], results: tuple[Any, ...]) -> str:
    """A property: the blocks are as wide inside as the page's, which their number of parameters tells."""
    vocab_size, width, _, layers, max_len = arguments[0]
    block = (
        4 * (width * width + width) + 4 * width + width
    )  # without what grows with the hidden width
    rest = (2 * vocab_size + max_len + 2) * width + layers * block
    hidden, over = divmod(int(results[1]) - rest, layers * (2 * width + 1))
    if over or hidden == 4 * width:
        return ""
    return f"the hidden width of the blocks is {hidden}, not `4 * embed_dim`, here {4 * width}"


check_gpt = module(
    "check_gpt",
    reference=built.MyGPT,
    returns=(
        "logits (batch, len, vocab_size)",
        "count of parameters",
        "what is saved and gets no gradient",
        "size of each gradient",
    ),
    run=partial(_run_module, "embedding position_embedding blocks norm output max_len"),
    properties=[_hidden_width],
    then=partial(looked_at, (13, 6, 2, 2, 7), [(2, 7)], [], 13),
    atol=1e-3,
)

check_probabilities = function(
    "check_probabilities",
    reference=built.my_probabilities,
    then=partial(narrowed, [(3, 5)]),
    atol=1e-6,  # what is hidden has a probability of 0, and none that is small
    returns="probabilities (..., vocab_size)",
)


class _ModelOfSevenTokens(torch.nn.Module):
    """Logits that depend on all tokens of a window, which has at most `max_len` of them."""

    def __init__(self, max_len: int) -> None:
        super().__init__()
        self.max_len = max_len
        self.factor = torch.nn.Parameter(torch.tensor(3.0))

    def forward(self, tokens: Tensor) -> Tensor:
        """Return logits (batch, len, 7)."""
        if tokens.ndim != 2:
            raise ValueError(
                f"the model takes tokens (batch, len), got {tokens.ndim} axes"
            )
        if tokens.shape[1] > self.max_len:
            more = f"got {tokens.shape[1]}: give it the last ones only"
            raise IndexError(f"the model has {self.max_len} positions, {more}")
        past = tokens.cumsum(1)[..., None]
        angles = past + 2.0 * torch.arange(7) * (1 + tokens[..., None])
        return self.factor * torch.sin(angles)


def _run_write(
    answer: Any, tokens: Tensor, number: int, options: Any, max_len: int = 5
) -> Any:
    """Let a small model continue a text; options that are left out have their defaults."""
    check_order(answer, "model", "tokens", "number", "temperature", "top_k", "seed")
    model = _ModelOfSevenTokens(max_len).eval()
    model.factor.grad = torch.ones(())
    before = standing(model)
    written = answer(model, tokens, number, **options)
    check_standing(model, before)
    if model.factor.item() != 3.0:
        raise FaultError(
            "it changes the weights of the model, which has to write again. Only call the model"
        )
    return written


check_write = function(
    "check_write",
    reference=built.my_write,
    returns="tokens (len + number,)",
    run=_run_write,
    seeds=True,  # so does an answer that draws with torch's own generator, and its tokens are the same
)


def _run_cached(
    answer: Any, query: Tensor, key: Tensor, value: Tensor, pieces: list[int]
) -> Any:
    """Let the tokens of a text come in pieces; return all outputs, and the cache at the end."""
    outputs, start = [], 0
    cache: Any = None
    earlier: Any = None
    for length in pieces:
        new = [x[..., start : start + length, :] for x in (query, key, value)]
        earlier, copies = cache, [one.clone() for one in cache or ()]
        returned = answer(*new) if cache is None else answer(*new, cache)
        if returned is None:
            return None
        if not isinstance(returned, tuple) or len(returned) != 2:
            raise UnfinishedError("return two things: the output, and the cache")
        output, cache = returned
        if not isinstance(output, Tensor):
            raise FaultError(
                "the output is no tensor. `my_attention` returns two things, and the first is the output: "
                "`output, _ = my_attention(…)`"
            )
        if (
            not isinstance(cache, (tuple, list))
            or len(cache) != 2
            or not all(isinstance(one, Tensor) for one in cache)
        ):
            raise UnfinishedError(
                "the cache is a pair: all keys so far, all values so far"
            )
        if any(a.shape != b.shape for a, b in zip(earlier or (), copies, strict=False)):
            raise FaultError(
                "it changes the cache that it is given. Return a new pair: a text may go on in two ways"
            )
        outputs.append(output)
        start += length
    if earlier is not None:
        # Another text comes between.
        answer(*(one[..., :2, :] for one in (query, key, value)))
        returned = answer(*new, earlier)
        if returned[0].shape != output.shape or not torch.allclose(returned[0], output):
            raise FaultError(
                "after another text, the same call returns something different. Keep keys and values only in "
                "the cache that you return"
            )
    return torch.cat(outputs, dim=-2), *cache


check_cached_attention = function(
    "check_cached_attention",
    reference=built.my_cached_attention,
    then=partial(narrowed, [(3, 2), (3, 2), (3, 5)]),
    returns=("output (..., len, value_dim)", "cached keys", "cached values"),
    run=_run_cached,
    atol=1e-4,
)

check_swiglu = module(
    "check_swiglu",
    reference=built.MySwiGLU,
    returns=(
        "output (..., embed_dim)",
        "count of parameters",
        "what is saved and gets no gradient",
        "size of each gradient",
    ),
    run=partial(_run_module, "gate_proj up_proj down_proj"),
    then=partial(looked_at, (6, 5), [(2, 3, 6)], [], 0),
    atol=1e-4,
)
