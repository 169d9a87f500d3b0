"""The tape: how each result was computed, and gradients from a loss back to what it was computed from.

A tensor that owns its memory is a *root*; each of its views names it as `_base`. Only roots are on the tape,
with a `Node` for each operation that made or changed them. An operation on a view notes the view's shape and
strides, so one rule, `_spread`, gives the gradient of every view.
"""

from __future__ import annotations

import heapq
from contextlib import ContextDecorator
from itertools import count
from math import prod

from . import _kernels
from ._memory import FLOAT, Made, NeedsTorchError, Strided, broadcast, need, places

_numbered = count()
AGAIN = (
    "backward went through this graph before, and its numbers are gone: compute the loss again, or use "
    "retain_graph=True"
)
CHANGED = (
    "a tensor that a gradient needs was changed in place after it was used: use an operation that makes a "
    "new tensor instead"
)

# Torch lets backward pass these again, because they keep no numbers.
KEEPING_NOTHING = {f"{name}Backward0" for name in "Sum Mean Add Sub Neg Clone ToCopy Cat Flip Repeat".split()}


class GradMode(ContextDecorator):
    """Whether operations are recorded; if so, a parameter must not be changed in place."""

    def __init__(self, enabled=False):
        self._enabled, self._before = enabled, []

    def __enter__(self):
        self._before.append(Strided._recording)
        Strided._recording = self._enabled

    def __exit__(self, *_):
        Strided._recording = self._before.pop()


class set_grad_enabled(GradMode):  # noqa: N801, torch's name
    """It holds from now on or, with `with` or before a function, only there."""

    def __init__(self, mode):
        super().__init__(bool(mode))
        self._old, Strided._recording = Strided._recording, self._enabled

    def __exit__(self, *_):
        Strided._recording = self._old

    def __call__(self, function):
        Strided._recording = self._old
        return GradMode(self._enabled)(function)


class Node(Made):
    """An operation on the tape; a leaf, such as a parameter, has a `tensor` instead of gradients."""

    def __init__(self, name, made, gradients=(), edges=(), saved=(), tensor=None):
        self.number, self._name, self.tensor = next(_numbered), name, tensor
        self.gradients, self.edges, self.saved = gradients, edges, saved
        self.versions = [(one._changes, one._changes[0]) for one in saved if isinstance(one, Strided)]
        self.dtype, self.layout = made.dtype, (made.shape, made._strides, made._offset)

    def __lt__(self, other):
        return self.number > other.number  # the newest first


class Edge:
    """From an operation to one of its inputs: the node of the root, and how the input lies in its memory."""

    __slots__ = "dtype", "layout", "node"

    def __init__(self, tensor):
        root = tensor if tensor._base is None else tensor._base
        self.node, self.dtype = node_of(root), tensor.dtype
        self.layout = tensor.shape, tensor._strides, tensor._offset


def node_of(root):
    """Return what made a root that requires gradients; a leaf gets its node now."""
    if root._node is None:
        root._node = Node("AccumulateGrad", root, tensor=root)
    return root._node


def is_recorded(inputs):
    """Whether an operation on these inputs belongs on the tape."""
    return Strided._recording and any(isinstance(one, Strided) and one.requires_grad for one in inputs)


def _edges(inputs):
    return [Edge(one) if isinstance(one, Strided) and one.requires_grad else None for one in inputs]


def record(made, name, gradients, inputs, saved=()):
    """Note how `made` was computed.

    `gradients` has a function for each input: of the gradient of `made` and of what is `saved`. It returns
    the gradient of that input, or one that broadcasting repeats.
    """
    if made.dtype.kind == FLOAT and is_recorded(inputs):
        made._base, made._needs = None, True
        made._node = Node(f"{name}Backward0", made, gradients, _edges(inputs[: len(gradients)]), saved)
    return made


def overwrite(part, new, where=None):
    """Note that a tensor was changed in place: its numbers, or those at some places, are those of `new`."""
    if not is_recorded((part, new)):
        return
    root = part if part._base is None else part._base
    shape, strides, offset = part.shape, part._strides, part._offset
    where = places(shape, strides, offset) if where is None else where

    layout = root.shape, root._strides, root._offset

    def of_old(gradient):
        kept = _spread(gradient, layout, layout)
        for place in where:
            kept._memory[place - layout[2]] = 0.0
        return kept

    def of_new(gradient):
        flat = _spread(gradient, layout, layout)._memory
        return gradient._made([flat[place - layout[2]] for place in where], new.shape)

    # Made in this order, `root` still has the node of its old numbers.
    edges = _edges((root if root.requires_grad else None, new))
    root._node, root._needs = Node("CopySlices", root, (of_old, of_new), edges), True
    root._said = part._said = None


def _fitted(gradient, edge):
    """Return a gradient with the shape, the dtype and the layout of the root that an edge leads to."""
    shape = edge.layout[0]
    if gradient.shape != shape:
        gradient = sum_to(gradient, shape)
    if gradient.dtype is not edge.dtype:
        gradient = gradient.to(edge.dtype)
    whole = edge.node.layout
    return gradient if edge.layout == whole else _spread(gradient, edge.layout, whole)


def _span(shape, strides):
    return 1 + sum((n - 1) * step for n, step in zip(shape, strides, strict=True)) if prod(shape) else 0


def _spread(gradient, part, whole):
    """Add the gradient of a view, place by place, to zeros that lie as the root's numbers do."""
    (shape, strides, offset), (root_shape, root_strides, root_offset) = part, whole
    length = _span(root_shape, root_strides)
    once = all(step or n < 2 for n, step in zip(root_shape, root_strides, strict=True))
    need(once or part == whole, "gradients of parts of an expanded tensor need", NeedsTorchError)
    memory = _kernels.zeros(length, gradient.dtype)
    _kernels.accumulate(memory, offset - root_offset, strides, gradient, shape)
    return gradient._plain._of(memory, root_shape, gradient.dtype, root_strides, 0, gradient.device)


def sum_to(gradient, shape):
    """Sum over the axes that broadcasting has added or repeated."""
    if broadcast(gradient.shape, shape) != gradient.shape:  # one number for many
        gradient = gradient.expand(broadcast(gradient.shape, shape))
    new = gradient.ndim - len(shape)
    repeated = [new + i for i, n in enumerate(shape) if n == 1 and gradient.shape[new + i] != 1]
    gone = [*range(new), *repeated]
    return (gradient.sum(gone) if gone else gradient).reshape(shape)


def run_backward(pairs, retain_graph=False, wanted=None):
    """Pass gradients from tensors back to the leaves, or return those of the `wanted` tensors.

    Raises:
        RuntimeError: a graph was used before, or numbers that a gradient needs have changed.
    """
    waiting, heap, used = {}, [], []

    def deliver(node, gradient):
        if node in waiting:
            waiting[node] = waiting[node] + gradient
        else:
            waiting[node] = gradient
            heapq.heappush(heap, node)

    asked = {node_of(one if one._base is None else one._base): one for one in wanted or ()}
    found = {}
    with GradMode(False):
        for tensor, gradient in pairs:
            edge = Edge(tensor)
            deliver(edge.node, _fitted(gradient, edge))
        while heap:
            node = heapq.heappop(heap)
            gradient = waiting.pop(node)
            if node in asked:
                found[node] = gradient
            if node.tensor is not None:
                if wanted is None:
                    _keep(node.tensor, gradient)
                continue
            need(node.gradients is not None, AGAIN)
            same = all(now[0] == then for now, then in node.versions)
            need(same or node.name() in KEEPING_NOTHING, CHANGED)
            used.append(node)
            for edge, function in zip(node.edges, node.gradients, strict=True):
                if edge is not None:
                    deliver(edge.node, _fitted(function(gradient, *node.saved), edge))
    for node in [] if retain_graph else used:
        if (node.saved or node.edges) and node.name() not in KEEPING_NOTHING:
            node.gradients, node.saved, node.versions = None, (), []
    return [found.get(node) for node in asked]


def _keep(leaf, gradient):
    """Add a gradient to `grad` of a leaf, which has memory of its own."""
    if leaf.grad is None:
        layout = leaf.shape, leaf._strides, 0
        alike = _span(*layout[:2]) == prod(leaf.shape)  # torch then gives both the same strides
        leaf.grad = _spread(gradient, layout, layout) if alike else gradient._dense()
    else:
        leaf.grad._become(leaf.grad + gradient)
