"""Snippets for the comparison of torch with its stand-in: made by rule from torch's own signatures.

Torch describes the arguments of its functions and methods itself: their names, types and default values. From
each signature of a name that the stand-in has, calls are drawn at random: positional or by name, with torch's
names and with NumPy's, most of them right, some of a wrong type. Functions and modules that torch writes in
Python are drawn from their Python signatures.
"""

# ruff: noqa: E501, E731, SIM102, tables of texts, and rules that read one by one

import inspect
import math
import random
import warnings
import zlib

import torch

# The tensors that snippets use: name -> how each is made of numbers, see `world`.
FLOATS = "a b c p t v s k z q r w g h y".split()
INTS, BOOLS = "i j x u".split(), "m n".split()
SAME = "a g h k w z".split()  # of the shape (2, 3), or broadcast with it
VIEWS = "p t z y".split()


def world(module):
    """The tensors of the snippets, the same numbers for torch and for the stand-in; w needs gradients."""
    roll = random.Random(0)
    make = lambda *shape, **how: (
        module.tensor([roll.gauss(0, 1.5) for _ in range(math.prod(shape))], **how).reshape(shape).clone()
    )
    whole = lambda *shape, below, **how: (
        module.tensor([roll.randrange(below) for _ in range(math.prod(shape))], **how).reshape(shape).clone()
    )
    return {
        "a": make(2, 3), "b": make(3, 5), "c": make(2, 3, 5), "v": make(7), "s": make(), "k": make(1, 3),
        "q": make(3, 3), "w": make(2, 3).requires_grad_(), "g": make(2, 3, dtype=module.float64),
        "h": make(2, 3, dtype=module.float16), "e": module.tensor([]).reshape(0, 3),
        "r": module.tensor([float("nan"), 2.0, float("inf"), 0.0, -0.5, float("-inf"), 1e-9]),
        "p": make(2, 3, 5).permute(2, 0, 1), "t": make(3, 5).t(), "z": make(4, 3)[::2], "y": make(1, 3).expand(5, 3),
        "i": whole(2, 3, below=2), "j": whole(3, below=3), "x": whole(3, 5, below=7),
        "u": whole(2, 3, below=5, dtype=module.int32), "m": whole(2, 3, below=2) > 0, "n": whole(3, below=2) > 0,
    }  # fmt: skip


def space(module):
    """All names of a snippet."""
    module.manual_seed(0)
    names = {"T": module, "torch": module, "nn": module.nn, "F": module.nn.functional}
    return {**world(module), **names, "math": math, "G": module.Generator().manual_seed(5)}


WRONG = ["'a'", "None", "1.5", "[1]", "a", "True", "(0, 'b')", "3"]
DTYPES = "T.float64 T.int64 T.float32 float int bool T.bool T.float16".split()
WORDS = {
    "rounding_mode": ["'floor'", "'trunc'", "'up'"], "reduce": ["'sum'", "'prod'", "'amax'"],
    "indexing": ["'ij'", "'xy'"], "equation": ["'ij,ij->i'"], "approximate": ["'tanh'", "'none'"],
    "mode": ["'constant'"], "reduction": ["'sum'", "'mean'", "'none'"], "side": ["'right'"],
    "ord": ["'fro'"],
}  # fmt: skip
BY_NAME = {
    "normalized_shape": ["(3,)", "3", "[3]"], "in_features": ["3"], "out_features": ["5", "2"],
    "num_embeddings": ["7"], "embedding_dim": ["5", "3"], "bias": ["True", "False"], "p": ["2", "1", "0.5"],
    "num_classes": ["7", "-1"], "eps": ["1e-5", "1e-3"], "pad": ["(1, 2)", "[0, 1, 2, 0]"],
    "label_smoothing": ["0.1", "0.0"], "ignore_index": ["1", "-100"], "is_causal": ["True", "False"],
    "modules": ["[nn.Linear(2, 3), nn.ReLU()]", "[]"], "inplace": ["True", "False"],
    "padding_idx": ["0", "-1", "None"], "start_dim": ["0", "1", "-2"], "end_dim": ["-1", "1"],
    "training": ["False"], "train": ["False"], "elementwise_affine": ["True", "False"],
    "lr": ["0.1", "0.5"], "momentum": ["0.9", "0"], "betas": ["(0.8, 0.9)"], "weight_decay": ["0.1", "0"],
    "params": ["[w]", "nn.Linear(2, 3).parameters()"], "nesterov": ["False", "True"],
    "gain": ["2.0", "1.0"], "max_norm": ["1.0", "0.5"], "norm_type": ["2.0", "1.0"], "clip_value": ["0.5"],
    "parameters": ["[w]", "w"], "sizes": ["(2, 3)", "(3, -1)", "[5]"], "shifts": ["1", "2", "-1"],
    "repeats": ["2", "(2, 1, 1)", "(2, 2)"], "decimals": ["1", "2", "0"], "num_samples": ["1", "2"],
    "offset": ["0", "1", "-1"], "diagonal": ["0", "1", "-1"], "alpha": ["2", "0.5"], "value": ["2", "0.5", "-1.5"],
    "split_size": ["1", "2", "(1, 1)"], "split_sizes": ["(1, 1)", "[1, 2]"], "chunks": ["2", "3", "1"],
    "size": ["(2, 3)", "(3,)", "(6,)", "(5, 1)", "()", "(-1,)"], "dims": ["(0, 1)", "(1, 0)", "(0,)", "(2, 0, 1)"],
    "correction": ["0", "1"], "n": ["1", "3"], "step": ["1", "2"], "end": ["5", "7"], "start": ["0", "1"],
    "steps": ["5", "1"], "low": ["0", "2"], "high": ["5", "7"], "max": ["1", "0.5"], "min": ["-1", "0.2"],
    "output_size": ["None"], "source": ["0", "-1", "(0, 1)"], "destination": ["1", "0"],
    "shape": ["(2, 3)", "(6,)", "(-1,)", "(3, 2)"], "dimension": ["0", "-1"], "k": ["1", "2"],
    "length": ["1", "2"], "index": ["0", "1", "-1"], "max_lr": ["0.1"], "total_steps": ["10"],
    "d_model": ["6"], "nhead": ["2"], "embed_dim": ["6"], "num_heads": ["2"], "rtol": ["0.1"], "atol": ["0.1"],
    "approximate": ["'tanh'", "'none'"], "equal_nan": ["True", "False"], "scale": ["0.5", "0.0"],
    "dropout_p": ["0.0"], "enable_gqa": ["False"], "_stacklevel": ["3"], "beta": ["1"], "negative_slope": ["0.1"],
}  # fmt: skip
TENSORS = {
    "mask": ["m", "n", "a > 0", "~m"], "condition": ["m", "n", "a > 0"], "index": ["i", "j", "i.T", "j[:2]"],
    "indices": ["i", "j"], "input": [*FLOATS, *INTS, *BOOLS, "e"], "target": ["j[:2]", "j", "i"],
    "weight": ["q", "b.T", "None"], "bias": ["None", "q[0]"], "attn_mask": ["None", "q[:2, :2]", "m[:, :2]"],
    "query": ["a", "c", "p"], "key": ["a", "c", "p"], "value": ["a", "c", "2"], "tensor": ["a", "v", "z", "w"],
    "batch1": ["c"], "batch2": ["c.mT"], "vec2": ["v", "a[0]"], "mat2": ["b", "q"], "vec": ["k[0]"],
    "repeats": ["i", "j"], "probabilities": ["v.abs()"],
}  # fmt: skip
KINDS = {  # torch's names of types -> values
    "bool": ["True", "False"], "float": ["0.5", "2.0", "1"], "Scalar": ["2", "0.5", "-1", "0", "3", "True"],
    "int": ["1", "0", "2", "-1", "3"], "ScalarType": DTYPES, "str": ["'sum'"], "Device": ["'cpu'"],
    "Tensor[]": ["[a, a]", "(a, g)", "[v]", "[a, k]", "[z, z, z]", "[]", "[i, a]", "[m, m]"],
    "int[]": ["(0,)", "(0, 1)", "[-1]", "1", "0", "-1", "(1, 0)"], "float[]": ["[0.5]"],
}  # fmt: skip
NUMPY = {"dim": "axis", "keepdim": "keepdims"}
NEVER = {"out", "layout", "pin_memory", "generator", "memory_format", "names", "device", "path", "stable"}
UNEQUAL = {"dropout", "bernoulli", "empty", "data_ptr", "storage"}  # random otherwise, or no numbers at all


class Argument:
    """One argument of a signature."""

    def __init__(self, name, kind, required, only_by_name):
        self.name, self.kind, self.required, self.only_by_name = name, kind, required, only_by_name


def kind_of(described):
    """The plain name of a type: without the mark of an alias, a length or that None is allowed."""
    text = str(described)
    for old, new in (("Optional[", ""), ("List[Tensor]", "Tensor[]"), ("List[int]", "int[]"), ("]", "")):
        text = text.replace(old, new)
    return {"number": "Scalar", "Tensor[": "Tensor[]", "int[": "int[]", "Listfloat": "float[]"}.get(
        text, text
    )


def signatures(name):
    """Torch's own signatures of a function or method, each a list of arguments."""
    for schema in torch._C._jit_get_schemas_for_operator(f"aten::{name}"):
        found = []
        for one in schema.arguments:
            kind = kind_of(one.type)
            if kind == "int" and "dtype" in one.name:
                kind = "ScalarType"
            found.append(Argument(one.name, kind, not one.has_default_value(), one.kwarg_only))
        tensors = found and (found[0].name in ("self", "input", "condition", "tensors", "equation") or
                             any("size" in one.name or one.name in ("n", "end", "steps", "start") for one in found))  # fmt: skip
        if tensors and not any(
            one.name in ("out", "a", "values") and one.kind == "Tensor" for one in found[1:]
        ):
            if found[0].kind not in ("str", "int[]", "float[]") or found[0].name == "size":
                yield found


def drawn(roll, one, first):
    """The text of a value for an argument."""
    if roll.random() < 0.05:
        return roll.choice(WRONG)
    if one.kind == "Tensor":
        if one.name in TENSORS and first is not None:
            return roll.choice(TENSORS[one.name])
        if first in SAME and roll.random() < 0.7:
            return roll.choice([*SAME, "i", "u"])
        usual = [*FLOATS, *FLOATS, *VIEWS, *VIEWS, *INTS, *BOOLS, "e"]
        return first if first and roll.random() < 0.4 else roll.choice(usual)
    if one.name in BY_NAME and one.kind in ("int", "int[]", "Scalar", "float", "bool", "unknown"):
        if one.name != "dims" or one.kind == "int[]":
            return roll.choice(BY_NAME[one.name])
    if one.name in WORDS:
        return roll.choice(WORDS[one.name])
    if "dim" in one.name and one.kind == "int":
        return roll.choice(["0", "1", "-1", "-1", "0", "-2", "2"])
    return roll.choice(KINDS.get(one.kind, ["2"]))


def call(roll, name, arguments, method):
    """The text of a call, or None where a needed argument has no values."""
    parts, named, first, head = [], False, None, f"T.{name}"
    for place, one in enumerate(arguments):
        if one.name in NEVER and not one.required:
            named = True
            continue
        if not one.required and roll.random() < 0.55:
            named = True
            continue
        text = drawn(roll, one, first)
        first = text if place == 0 else first
        if method and place == 0:
            head = f"{text}.{name}" if text.isidentifier() else f"({text}).{name}"
            continue
        named = named or one.only_by_name or roll.random() < 0.3
        if one.name == "from" and named:
            continue
        written = {"self": "input"}.get(one.name, one.name)
        written = NUMPY.get(written, written) if roll.random() < 0.15 else written
        parts.append(f"{written}={text}" if named else text)
    return f"{head}({', '.join(parts)})"


def call_of_python(roll, head, signature, wrapped="{}"):
    """The text of a call by a signature of Python."""
    parts, named, first = [], False, None
    for name, one in signature.parameters.items():
        needed = one.default is inspect.Parameter.empty
        if name in ("self", "args", "kwargs", "device", "generator", "size_average", "reduce", "_stacklevel"):
            continue
        if not needed and roll.random() < 0.55:
            named = True
            continue
        kind = "ScalarType" if name == "dtype" else "unknown"
        known = TENSORS.get(name) or BY_NAME.get(name) or WORDS.get(name)
        if kind == "unknown" and not known:
            known = ["1", "0", "-1"] if "dim" in name else ["True", "False"] if isinstance(one.default, bool) else [
                repr(one.default)] if not needed and isinstance(one.default, (int, float, str)) else ["a", "2"]  # fmt: skip
        text = roll.choice(WRONG) if roll.random() < 0.05 else roll.choice(known or DTYPES)
        first = first or text
        named = named or one.kind is one.KEYWORD_ONLY or roll.random() < 0.3
        parts.append(f"{name}={text}" if named else text)
    return wrapped.format(f"{head}({', '.join(parts)})")


def works(text):
    """Whether torch runs a snippet."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        try:
            eval(text, space(torch))  # noqa: S307
        except Exception:
            return False
    return True


def chosen(seed, draw, count, tries=40):
    """Different calls, at most a third of which torch refuses."""
    roll, right, wrong = random.Random(zlib.crc32(seed.encode())), [], []
    for _ in range(tries):
        text = draw(roll)
        if text is None or text in right or text in wrong:
            continue
        (right if works(text) else wrong).append(text)
        if len(right) >= count:
            break
    return right[:count] + wrong[: max(count // 3, 1)]


def from_signatures(ours, count=4):
    """Snippets of every function and method of torch that the stand-in has, by torch's signatures."""
    random.seed(0)
    for name in sorted({*dir(torch), *dir(torch.Tensor)}):
        skipped = name in ("from_file", "set_", "tensor", "Tensor", "Optimizer") or any(
            one in name for one in UNEQUAL
        )
        if skipped or name.startswith("_"):
            continue
        for number, arguments in enumerate(signatures(name)):
            function, method = (
                has(torch, name) and has(ours, name),
                has(torch.Tensor, name) and has(ours.Tensor, name),
            )
            for is_method in [False] * function + [True] * (method and arguments[0].kind == "Tensor"):
                seed = f"{name} {number} {is_method}"
                yield from chosen(seed, lambda roll: call(roll, name, arguments, is_method), count)  # noqa: B023


def has(place, name):
    return callable(getattr(place, name, None))


INPUTS = ["(a)", "(c)", "(q)", "(i)", "(z)", "(b.T)", "(w)"]


def from_python(ours, count=7):
    """Snippets of functions and modules that torch describes in Python."""
    places = [("F", torch.nn.functional, ours.nn.functional), ("nn.init", torch.nn.init, ours.nn.init),
              ("nn.utils", torch.nn.utils, ours.nn.utils), ("T.optim", torch.optim, ours.optim),
              ("nn", torch.nn, ours.nn)]  # fmt: skip
    for prefix, there, here in places:
        for name in sorted(vars(there)):
            thing = getattr(there, name)
            if (
                not has(here, name)
                or name.startswith("_")
                or name == "Optimizer"
                or any(one in name.lower() for one in UNEQUAL)
            ):
                continue
            try:
                signature = inspect.signature(thing)
            except ValueError:
                continue
            module = prefix == "nn" and isinstance(thing, type) and issubclass(thing, torch.nn.Module)
            if prefix == "nn" and not module:
                continue

            def draw(roll, head=f"{prefix}.{name}", signature=signature, module=module):
                end = roll.choice(["", *INPUTS]) if module else ""
                return call_of_python(roll, head, signature) + end

            yield from chosen(f"{prefix}.{name}", draw, count)


def missing(ours):
    """The names of torch that the stand-in lacks."""
    places = {"T": (torch, ours), "a": (torch.Tensor, ours.Tensor), "nn": (torch.nn, ours.nn),
              "F": (torch.nn.functional, ours.nn.functional), "nn.init": (torch.nn.init, ours.nn.init),
              "T.optim": (torch.optim, ours.optim), "T.linalg": (torch.linalg, None)}  # fmt: skip
    for prefix, (there, here) in places.items():
        for name in sorted(vars(there)):
            if name.islower() and not name.startswith("_") and callable(getattr(there, name)):
                if here is None or not hasattr(here, name):
                    yield f"{prefix}.{name}(a)"
