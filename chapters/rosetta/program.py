"""What the Python programs of this folder share: they read vectors, run every case and print JSON.

    python attention_jax.py vectors.json

A file that does not fit is refused with one line on stderr and the exit status 2. Weights have the names and
the axes of `mha_lib`: `q_proj.weight` is (out, in), as in torch. `weights.py` turns them into other layouts.
"""

import json
import sys
from dataclasses import dataclass
from pathlib import Path

import numpy as np

FORMAT = "attention vectors 1"
PROJECTIONS = ("q_proj", "k_proj", "v_proj", "out_proj")
DTYPES = ("float32", "float64")


class VectorsError(ValueError):
    """The vectors do not fit; the message names the case, the entry and the rule."""


class CannotError(Exception):
    """A framework's own layer has no way to do what a case asks; the message says why."""


@dataclass(frozen=True)
class Case:
    """One call: inputs, lengths, weights, and the factors of the sum whose gradients are asked for."""

    name: str
    num_heads: int
    query: np.ndarray  # (batch, q_len, embed_dim)
    key: np.ndarray  # (batch, k_len, kdim)
    value: np.ndarray  # (batch, k_len, vdim)
    valid_lens: np.ndarray | None  # (batch,) or (batch, q_len)
    is_causal: bool
    weights: dict
    upstream: np.ndarray  # (batch, q_len, embed_dim)

    @property
    def bias(self):
        """Whether the four projections have biases."""
        return "q_proj.bias" in self.weights

    @property
    def sizes(self):
        """The constructor's arguments."""
        return {
            "embed_dim": self.query.shape[-1],
            "num_heads": self.num_heads,
            "kdim": self.key.shape[-1],
            "vdim": self.value.shape[-1],
            "bias": self.bias,
        }

    def inputs(self, dtype):
        """Query, key and value in a dtype."""
        return [np.asarray(x, dtype) for x in (self.query, self.key, self.value)]


def read_vectors(path):
    """Return the cases of a file, or raise a `VectorsError` that says what does not fit."""
    try:
        content = json.loads(Path(path).read_text(encoding="utf-8"))
    except OSError as error:
        raise VectorsError(f"cannot be read: {error.strerror}") from None
    except ValueError as error:
        raise VectorsError(f"is not JSON: {error}") from None
    if not isinstance(content, dict) or content.get("format") != FORMAT:
        raise VectorsError(f"must be an object whose format is {FORMAT!r}")
    if not isinstance(content.get("cases"), list) or not content["cases"]:
        raise VectorsError("cases must be a list with at least one case")
    return [read_case(number, case) for number, case in enumerate(content["cases"])]


def read_case(number, given):
    """Return one case, its arrays in float64, every shape checked."""
    where = f"case {given.get('name', number) if isinstance(given, dict) else number}"
    expected = {"name", "num_heads", "query", "key", "value", "valid_lens"}
    expected |= {"is_causal", "weights", "upstream"}
    if not isinstance(given, dict) or given.keys() != expected:
        raise VectorsError(f"{where}: the entries must be {sorted(expected)}")
    query, key, value, upstream = (
        array(where, name, given[name], 3)
        for name in ("query", "key", "value", "upstream")
    )
    (batch, q_len, embed_dim), (_, k_len, _) = query.shape, key.shape
    must_have_shape(where, "key", key, (batch, k_len, key.shape[2]))
    must_have_shape(where, "value", value, (batch, k_len, value.shape[2]))
    must_have_shape(where, "upstream", upstream, query.shape)
    heads = given["num_heads"]
    if type(heads) is not int or heads < 1 or embed_dim % heads:
        raise VectorsError(
            f"{where}: num_heads must divide the width {embed_dim}, got {heads!r}"
        )
    if type(given["is_causal"]) is not bool:
        raise VectorsError(f"{where}: is_causal must be true or false")
    lens = given["valid_lens"]
    if lens is not None:
        lens = array(where, "valid_lens", lens)
        if lens.shape not in ((batch,), (batch, q_len)):
            raise VectorsError(
                f"{where}: valid_lens must be ({batch},) or ({batch}, {q_len}), got {lens.shape}"
            )
        if (lens != np.round(lens)).any() or lens.min() < 0 or lens.max() > k_len:
            raise VectorsError(f"{where}: valid_lens must be integers in 0..{k_len}")
        lens = lens.astype("int64")
    widths = {"q_proj": embed_dim, "k_proj": key.shape[2], "v_proj": value.shape[2]}
    weights = read_weights(where, given["weights"], embed_dim, widths)
    return Case(
        given["name"], heads, query, key, value, lens, given["is_causal"], weights, upstream
    )  # fmt: skip


def read_weights(where, given, embed_dim, widths):
    """Return the eight or four arrays of the projections."""
    names = [f"{name}.weight" for name in PROJECTIONS]
    with_bias = names + [f"{name}.bias" for name in PROJECTIONS]
    if not isinstance(given, dict) or set(given) not in (set(names), set(with_bias)):
        raise VectorsError(f"{where}: weights must be {names}, with or without biases")
    weights = {}
    for name, numbers in given.items():
        projection, _, kind = name.partition(".")
        width = widths.get(projection, embed_dim)
        shape = (embed_dim, width) if kind == "weight" else (embed_dim,)
        weights[name] = array(where, name, numbers)
        must_have_shape(where, name, weights[name], shape)
    return weights


def array(where, name, numbers, rank=None):
    """Return nested lists of finite numbers as float64."""
    try:
        found = np.array(numbers, dtype=float)
    except (TypeError, ValueError):
        raise VectorsError(
            f"{where}: {name} must hold numbers in lists of equal length"
        ) from None
    if not np.isfinite(found).all() or not found.size:
        raise VectorsError(f"{where}: {name} must hold finite numbers, and some")
    if rank is not None and found.ndim != rank:
        raise VectorsError(f"{where}: {name} must have {rank} axes, got {found.ndim}")
    return found


def must_have_shape(where, name, found, shape):
    """Refuse an array of another shape."""
    if found.shape != shape:
        raise VectorsError(f"{where}: {name} must be {shape}, got {found.shape}")


def nested(value):
    """Arrays as nested lists; what JSON cannot write (NaN, infinities) as null."""
    if isinstance(value, dict):
        return {name: nested(part) for name, part in value.items()}
    numbers = np.asarray(value, dtype=float)
    finite = np.where(np.isfinite(numbers), numbers, None)
    return finite.tolist()


def run_case(way, case, dtype):
    """Run one layer on one case: its numbers, or the reason why it cannot."""
    try:
        return nested(way(case, dtype))
    except CannotError as error:
        return {"cannot": str(error)}


def main(framework, versions, ways, dtypes=DTYPES):
    """Run every way (name -> function of a case and a dtype) on the vectors named on the command line.

    A way returns a dict with "output", "weights" and, where the framework has gradients, "gradients".
    """
    if len(sys.argv) != 2:
        print(f"usage: {Path(sys.argv[0]).name} vectors.json", file=sys.stderr)
        sys.exit(2)
    try:
        cases = read_vectors(sys.argv[1])
    except VectorsError as error:
        print(f"{sys.argv[1]}: {error}", file=sys.stderr)
        sys.exit(2)
    results = {
        case.name: {
            name: {dtype: run_case(way, case, dtype) for dtype in dtypes}
            for name, way in ways.items()
        }
        for case in cases
    }
    content = {"framework": framework, "versions": versions, "results": results}
    print(json.dumps(content, allow_nan=False))
