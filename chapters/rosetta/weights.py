"""The weights of one layer in the layout of every framework, and from any layout into any other.

A layout names its arrays and orders their axes. All of them hold the same numbers, so each is described by
two functions: from the layout of `mha_lib`, {"q_proj.weight": (out, in), "q_proj.bias": (out,), ...}, and
back. `convert` goes through that layout. Nothing here is computed, so every conversion is exact.
"""

import numpy as np

PROJECTIONS = ("q_proj", "k_proj", "v_proj", "out_proj")


def convert(weights, source, target, num_heads):
    """Return the weights in another layout.

    Args:
        weights: name -> numpy array, as the layout `source` has them.
        source, target: keys of `LAYOUTS`.
        num_heads: of the layer; some layouts have an axis for it.

    Raises:
        ValueError: a layout is unknown, an array is missing, or the layout cannot hold these widths.
    """
    for name in (source, target):
        if name not in LAYOUTS:
            raise ValueError(f"a layout must be one of {sorted(LAYOUTS)}, got {name!r}")
    try:
        ours = LAYOUTS[source][1](weights, num_heads)
    except KeyError as error:
        raise ValueError(f"the layout {source!r} needs an array {error}") from None
    return LAYOUTS[target][0](ours, num_heads)


def renamed(names, transpose=False):
    """A layout whose arrays have other names and, with `transpose`, matrices (in, out)."""

    def turn(name, array):
        return array.T if transpose and not name.endswith("bias") else array

    def there(ours, _num_heads):
        return {names[name]: turn(name, array) for name, array in ours.items()}

    def back(theirs, _num_heads):
        known = {
            name: theirs[names[name]]
            for name in names
            if names[name] in theirs or name.endswith("weight")
        }
        return {name: turn(name, array) for name, array in known.items()}

    return there, back


def with_head_axis(names):
    """The layout of Flax and Keras: kernels (in, heads, head_dim), the last one (heads, head_dim, out)."""

    def there(ours, num_heads):
        def turn(name, array):
            if name == "out_proj.bias":
                return array
            if name == "out_proj.weight":
                return array.T.reshape(num_heads, -1, len(array))
            return array.T.reshape(*array.T.shape[:-1], num_heads, -1)

        return {names[name]: turn(name, array) for name, array in ours.items()}

    def back(theirs, _num_heads):
        def turn(name, array):
            if name == "out_proj.bias":
                return array
            if name == "out_proj.weight":
                return array.reshape(-1, array.shape[-1]).T
            if name.endswith("bias"):
                return array.reshape(-1)
            return array.reshape(len(array), -1).T

        return {
            name: turn(name, theirs[other])
            for name, other in names.items()
            if other in theirs or name.endswith("weight")
        }

    return there, back


def to_torch(ours, _num_heads):
    """Torch stacks the three input projections, if they have one width, and always their biases."""
    parts = [ours[f"{name}_proj.weight"] for name in "qkv"]
    theirs = {"out_proj.weight": ours["out_proj.weight"]}
    if len({part.shape for part in parts}) == 1:
        theirs["in_proj_weight"] = np.concatenate(parts)
    else:
        names = (f"{name}_proj_weight" for name in "qkv")
        theirs.update(zip(names, parts, strict=True))
    if "q_proj.bias" in ours:
        biases = [ours[f"{name}_proj.bias"] for name in "qkv"]
        theirs["in_proj_bias"] = np.concatenate(biases)
        theirs["out_proj.bias"] = ours["out_proj.bias"]
    return theirs


def from_torch(theirs, _num_heads):
    """The three parts of what torch stacks."""
    ours = {"out_proj.weight": theirs["out_proj.weight"]}
    if "in_proj_weight" in theirs:
        parts = np.split(theirs["in_proj_weight"], 3)
    else:
        parts = [theirs[f"{name}_proj_weight"] for name in "qkv"]
    ours.update(zip((f"{name}_proj.weight" for name in "qkv"), parts, strict=True))
    if "in_proj_bias" in theirs:
        biases = np.split(theirs["in_proj_bias"], 3)
        ours.update(zip((f"{name}_proj.bias" for name in "qkv"), biases, strict=True))
        ours["out_proj.bias"] = theirs["out_proj.bias"]
    return ours


def to_interleaved(ours, num_heads):
    """MXNet's operators want one matrix: head by head the rows of the query, the key and the value."""
    theirs = {"out_proj.weight": ours["out_proj.weight"]}
    for kind in ("weight", "bias"):
        if f"q_proj.{kind}" in ours:
            parts = [ours[f"{name}_proj.{kind}"] for name in "qkv"]
            if len({part.shape for part in parts}) > 1:
                raise ValueError(
                    "the layout 'mxnet' needs keys and values as wide as queries"
                )
            by_head = [part.reshape(num_heads, -1, *part.shape[1:]) for part in parts]
            theirs[f"qkv_proj.{kind}"] = np.concatenate(by_head, axis=1).reshape(
                -1, *parts[0].shape[1:]
            )
    if "out_proj.bias" in ours:
        theirs["out_proj.bias"] = ours["out_proj.bias"]
    return theirs


def from_interleaved(theirs, num_heads):
    """The query's, the key's and the value's rows, each of all heads."""
    ours = {name: array for name, array in theirs.items() if name.startswith("out")}
    theirs["qkv_proj.weight"]  # the bias may be missing, the matrix may not
    for kind in ("weight", "bias"):
        if f"qkv_proj.{kind}" in theirs:
            stacked = theirs[f"qkv_proj.{kind}"]
            by_head = stacked.reshape(num_heads, 3, -1, *stacked.shape[1:])
            for place, name in enumerate("qkv"):
                part = by_head[:, place]
                ours[f"{name}_proj.{kind}"] = part.reshape(-1, *stacked.shape[1:])
    return ours


def names(weight, bias, *projections):
    """Our eight names -> theirs."""
    return {
        f"{ours}.{kind}": theirs + ending
        for ours, theirs in zip(PROJECTIONS, projections, strict=True)
        for kind, ending in (("weight", weight), ("bias", bias))
    }


SAME = names(".weight", ".bias", *PROJECTIONS)
D2L = ("W_q", "W_k", "W_v", "W_o")

# name -> (from our layout, into our layout)
LAYOUTS = {
    "mha_lib": renamed(SAME),
    "torch": (to_torch, from_torch),
    "flax": with_head_axis(names(".kernel", ".bias", "query", "key", "value", "out")),
    "keras": with_head_axis(
        names("/kernel", "/bias", "query", "key", "value", "attention_output")
    ),
    "paddle": renamed(SAME, transpose=True),
    "mxnet": (to_interleaved, from_interleaved),
    "d2l, MXNet and PyTorch": renamed(names(".weight", ".bias", *D2L)),
    "d2l, TensorFlow": renamed(names("/kernel", "/bias", *D2L), transpose=True),
    "d2l, Paddle": renamed(names(".weight", ".bias", *D2L), transpose=True),
}
