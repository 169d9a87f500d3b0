"""What a framework's own layer does by default, measured: the same questions for every layer.

Each `facts_*.py` describes its layers by an `Adapter`, which only says how to make one and how to call it.
The answers are found here, by looking at what comes out.
"""

import inspect
import json
import math
import re

import numpy as np

WIDTH, HEADS, BATCH, Q_LEN, K_LEN = 12, 3, 2, 4, 5


class CannotError(Exception):
    """The layer has no such argument."""


class Adapter:
    """How to make a layer and how to call it. All arrays are numpy arrays in float32.

    Attributes:
        name: of the layer, as it is imported.
        constructor, forward: functions whose signatures are shown.
        order: names of the first three arguments in the order in which the layer takes them.
    """

    name = constructor = forward = None

    def make(self, width=WIDTH, heads=HEADS, **options):
        """Return a fresh layer; an option that is not named keeps the default. Options: dropout."""
        raise NotImplementedError

    def call(self, layer, query, key, value, mask=None, training=False, weights=True):
        """Return output and weights (or None); a mask (q_len, k_len) is given as it is, for all samples."""
        raise NotImplementedError

    def parameters(self, layer):
        """Return name -> array."""
        raise NotImplementedError

    def matrices(self, layer):
        """Return the matrices of the query's and of the output's projection, as (out, in)."""
        raise NotImplementedError

    def causal(self, layer, query, key, value):  # noqa: ARG002
        """Return the weights where the layer itself hides the future."""
        raise CannotError("no such argument")

    def lengths(self, layer, query, key, value, lens):  # noqa: ARG002
        """Return output and weights where the layer itself takes lengths."""
        raise CannotError("no such argument")


def numbers(*shape, seed=0):
    """Normal numbers in float32."""
    return np.random.default_rng(seed).standard_normal(shape).astype("float32")


def inputs(q_len=Q_LEN, k_len=K_LEN, v_len=None, width=WIDTH):
    """Query, key and value."""
    lens = q_len, k_len, k_len if v_len is None else v_len
    return [numbers(BATCH, n, width, seed=place) for place, n in enumerate(lens)]


def signature(function):
    """[[name, default as text or null], ...] without self."""
    shown = []
    for parameter in inspect.signature(function).parameters.values():
        if parameter.name == "self":
            continue
        stars = {parameter.VAR_POSITIONAL: "*", parameter.VAR_KEYWORD: "**"}
        default = None
        if parameter.default is not parameter.empty:
            default = repr(parameter.default)
            if " at 0x" in default or "<" in default:
                default = "…"
        shown.append([stars.get(parameter.kind, "") + parameter.name, default])
    return shown


def first_line(error):
    """The kind of an error and the first words of its message."""
    text = " ".join(re.sub(r"\x1b\[\d*m", "", str(error)).split())
    text = text if len(text) <= 160 else text[:157] + "…"
    return f"{type(error).__name__}: {text}"


def outcome(function):
    """What a wrong call gives: an error, or a result of which nobody is warned."""
    try:
        output, _ = function()
    except CannotError as error:
        return {"cannot": str(error)}
    except Exception as error:  # whatever it is, it is shown
        return {"error": first_line(error)}
    finite = "finite" if np.isfinite(output).all() else "not finite"
    return {"silent": f"{list(output.shape)}, {finite}"}


def where_the_batch_is(adapter):
    """The axis of the samples: another sample must not feel what happens to the first one."""
    layer = adapter.make()
    x = numbers(3, 3, WIDTH)  # both axes alike, so that both readings fit
    changed = x.copy()
    changed[0, 0] += 1
    before, after = (adapter.call(layer, a, a, a)[0] for a in (x, changed))
    felt = np.abs(before - after).max(axis=-1) > 1e-6
    return "batch, len" if felt[0].all() and not felt[1:].any() else "len, batch"


def order_of_weights(adapter):
    """What True means in a mask: keys 0 and 1 are True, the others False."""
    mask = np.zeros((Q_LEN, K_LEN), dtype=bool)
    mask[:, :2] = True
    weights = per_head(adapter.call(adapter.make(), *inputs(), mask=mask)[1])
    return meaning(weights)


def meaning(weights):
    """What a mask did whose first two columns are True or 1."""
    if (weights[..., 2:] < 1e-6).all():
        return "may attend"
    if (weights[..., :2] < 1e-6).all():
        return "hidden"
    return "added or ignored"


def ones_and_zeros(adapter):
    """What a float mask of ones and zeros does."""
    mask = np.zeros((Q_LEN, K_LEN), dtype="float32")
    mask[:, :2] = 1
    layer = adapter.make()
    try:
        weights = per_head(adapter.call(layer, *inputs(), mask=mask)[1])
    except CannotError:
        return "no such argument"
    except Exception as error:
        return first_line(error)
    found = meaning(weights)
    if found != "added or ignored":
        return f"1: {found}"
    plain = per_head(adapter.call(layer, *inputs())[1])
    if np.allclose(plain, weights, atol=1e-6):
        return "ignored"
    ratio = weights / plain
    ratio = ratio[..., :1] / ratio[..., 2:3]
    return "added to the scores" if np.allclose(ratio, math.e, rtol=1e-3) else "other"


def per_head(weights):
    """Weights (batch, heads, q_len, k_len); averaged ones get one head."""
    if weights is None:
        raise CannotError("returns no weights")
    return weights if weights.ndim == 4 else weights[:, None]


def hidden_row(adapter):
    """What the weights and the output are where a query may attend to nothing, by the polarity found."""
    hides = order_of_weights(adapter) == "hidden"
    mask = np.ones((Q_LEN, K_LEN), dtype=bool)
    mask[1] = False
    output, weights = adapter.call(adapter.make(), *inputs(), mask=mask != hides)
    return {
        "weights": kind_of(per_head(weights)[:, :, 1]),
        "output": kind_of(output[:, 1]),
    }


def kind_of(array):
    """Zeros, NaN, equal numbers, or others."""
    if np.isnan(array).any():
        return "NaN"
    if (array == 0).all():
        return "zeros"
    if np.allclose(array, 1 / array.shape[-1], atol=1e-6):
        return "uniform"
    return "other numbers"


def returned_weights(adapter):
    """What comes back where nothing is said about weights, and where they are asked for."""
    layer = adapter.make()
    return {
        asked: None if found is None else list(found.shape)
        for asked, found in (
            ("by default", adapter.call(layer, *inputs(), weights=None)[1]),
            ("asked for", adapter.call(layer, *inputs(), weights=True)[1]),
        )
    }


def initialisation(adapter, width=64, draws=8):
    """Standard deviation and largest entry of fresh matrices, and which known rule they follow."""
    found = {}
    for place, name in enumerate(("query", "output")):
        fresh = [
            adapter.matrices(adapter.make(width=width, heads=4))[place]
            for _ in range(draws)
        ]
        found[name] = describe(np.stack(fresh), width)
    return found


def describe(matrices, width):
    """Which rule drew (draws, out, in) matrices: uniform ones have a bound, normal ones only a spread."""
    std, largest = float(matrices.std()), float(np.abs(matrices).max())
    uniform = {
        "uniform ±1/√in": 1 / math.sqrt(width),
        "Glorot uniform ±√(6/(in + out))": math.sqrt(6 / (2 * width)),
        "Glorot uniform of the stacked matrices ±√(6/(in + 3 out))": math.sqrt(6 / (4 * width)),
        "uniform ±0.07": 0.07,
    }  # fmt: skip
    rule = "another rule"
    for name, bound in uniform.items():
        as_spread = abs(std * math.sqrt(3) / bound - 1) < 0.03
        if 0.98 * bound < largest <= bound * 1.0001 and as_spread:
            rule = name
    if rule == "another rule" and abs(std * math.sqrt(width) - 1) < 0.03:
        rule = "LeCun normal, cut off, standard deviation 1/√in"
    return {
        "rule": rule,
        "std": float(f"{std:.3g}"),
        "largest": float(f"{largest:.3g}"),
    }


def dropout(adapter):
    """What half the weights dropped does to the weights that come back, and who shares the dropped places."""
    layer = adapter.make(dropout=0.5)
    query, key, value = (x[:1].repeat(BATCH, 0) for x in inputs(q_len=24, k_len=24))
    wet, trained = adapter.call(layer, query, key, value, training=True)
    dry, still = adapter.call(layer, query, key, value, training=False)
    assert not np.allclose(wet, dry), "nothing was dropped"
    dropped, returned = trained == 0, "before dropout"
    if dropped.any():
        doubled = np.allclose(trained[~dropped], 2 * still[~dropped], rtol=1e-4)
        returned = (
            f"after dropout, the kept ones {'doubled' if doubled else 'as they were'}"
        )
    # The samples are the same, so their outputs differ only if different weights were dropped.
    alike = bool(np.allclose(wet[0], wet[1], atol=1e-6))
    return {"returned weights": returned, "all samples lose the same weights": alike}


def bad_input(adapter):
    """What wrong calls give."""
    query, key, value = inputs()
    wide = np.ones((Q_LEN, K_LEN + 1), dtype=bool)
    return {
        "5 heads, width 12": outcome(
            lambda: adapter.call(adapter.make(heads=5), query, key, value)
        ),
        "a mask of one key too many": outcome(
            lambda: adapter.call(adapter.make(), query, key, value, mask=wide)
        ),
        "lengths beyond the keys": outcome(
            lambda: adapter.lengths(adapter.make(), query, key, value, [3, K_LEN + 4])
        ),
        "5 keys, 6 values": outcome(
            lambda: adapter.call(adapter.make(), *inputs(v_len=K_LEN + 1))
        ),
        "queries of width 8": outcome(
            lambda: adapter.call(built(adapter), inputs(width=8)[0], key, value)
        ),
    }


def built(adapter):
    """A layer that has seen inputs of the right width: some fix it only then."""
    layer = adapter.make()
    adapter.call(layer, *inputs())
    return layer


def causal(adapter):
    """How many keys the first of 2 queries sees of 5 keys, if the layer hides the future itself."""
    layer = adapter.make()
    try:
        weights = per_head(adapter.causal(layer, *inputs(q_len=2)))
    except CannotError as error:
        return str(error)
    except Exception as error:
        return first_line(error)
    return int((weights[0, 0, 0] > 1e-6).sum())


def measure(adapter):
    """All of the above, for one layer."""
    layer = built(adapter)
    parameters = adapter.parameters(layer)
    biases = [array for name, array in parameters.items() if "bias" in name]
    return {
        "constructor": signature(adapter.constructor),
        "call": signature(adapter.forward),
        "axes": where_the_batch_is(adapter),
        "True in a bool mask": order_of_weights(adapter),
        "float mask of ones": ones_and_zeros(adapter),
        "first of 2 queries, 5 keys": causal(adapter),
        "parameters": {name: list(array.shape) for name, array in parameters.items()},
        "biases": len(biases),
        "biases are zero": all((array == 0).all() for array in biases),
        "initialisation": initialisation(adapter),
        "hidden row": hidden_row(adapter),
        "weights": returned_weights(adapter),
        "dropout": dropout(adapter),
        "bad input": bad_input(adapter),
    }


def main(adapters, more=None):
    """Print the facts of some layers as JSON."""
    found = {adapter.name: measure(adapter) for adapter in adapters}
    print(json.dumps({"layers": found, **(more or {})}))
