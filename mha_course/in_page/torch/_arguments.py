"""Arguments of functions and methods: checked and named as torch's own signatures say, see `_signatures.py`.

A call that fits no signature raises torch's error. One that fits, but that the function here cannot do, is
refused as what only torch can do. So is a call in which an error comes from inside the stand-in.
"""

from __future__ import annotations

import inspect
from ast import literal_eval
from functools import wraps

from ._memory import DType, NeedsTorchError, Size, Strided, need
from ._random import Generator
from ._signatures import SIGNATURES

# Torch accepts a number in place of a tensor here.
_NUMBERS = {f"{name}{end}" for name in "add sub mul div floor_divide".split() for end in ("", "_")}
_NUMPY = {"axis": "dim", "keepdims": "keepdim"}
_SEQUENCES = {tuple, list, Size}
_MADE = {
    "dtype": "ScalarType",
    "layout": "Layout",
    "device": "Device",
    "pin_memory": "bool",
    "requires_grad": "bool",
}
_AS_IS = object()  # the arguments are passed on as they are


class _Parameter:
    """One argument in a signature of torch."""

    def __init__(self, text, only_by_name):
        kind, _, name = text.partition(" ")
        self.name, equals, usual = name.partition("=")
        self.needed, self.only_by_name = not equals, only_by_name
        self.none = kind.endswith("?") or usual == "None"
        self.kind, _, length = kind.rstrip("?").partition("[")
        self.several, self.single = bool(length), length == "1]"
        try:
            self.usual = literal_eval(usual)
        except (ValueError, SyntaxError):
            self.usual = None

    def said(self):
        """The type as torch's errors name it."""
        kind = {"Scalar": "Number", "ScalarType": "torch.dtype"}.get(self.kind, self.kind)
        return f"tuple of {kind}s" if self.several else kind

    def takes(self, value, numbers):
        """Whether a value has the type of the argument."""
        if value is None:
            return self.none
        if self.several and isinstance(value, (tuple, list)):
            return all(self._one(one, False) or (one is None and self.none) for one in value)
        return (not self.several or self.single) and self._one(value, numbers)

    def _one(self, value, numbers):
        kind, tensor = self.kind, isinstance(value, Strided)
        if kind == "Tensor":
            return tensor or (numbers and isinstance(value, (int, float)))
        if tensor:
            whole = kind == "Scalar" or kind == "float" or (kind == "int" and value.dtype.kind == 1)
            return not value.ndim and whole
        if kind == "int":
            return hasattr(value, "__index__") and not isinstance(value, bool)
        if kind in ("Scalar", "float"):
            return isinstance(value, (int, float)) or (kind == "Scalar" and isinstance(value, complex))
        if kind == "ScalarType":
            return isinstance(value, DType) or value in (bool, int, float)
        python = {"bool": bool, "str": str, "Device": (str, int), "Generator": Generator}.get(kind)
        return python is None or isinstance(value, python)


class _Signature:
    """One signature of a function; of a method without `self`."""

    def __init__(self, text, is_method):
        parameters, only_by_name = [], False
        for part in text.split(", ") if text else ():
            if part == "*":
                only_by_name = True
            elif part == "made":
                parameters += [_Parameter(f"{kind} {name}=None", True) for name, kind in _MADE.items()]
            else:
                parameters.append(_Parameter(part, only_by_name))
        if is_method:
            parameters = [one for one in parameters if one.name != "self"]
        for one in parameters:
            one.name = "input" if one.name == "self" else one.name
        self.parameters = parameters
        by_place = [one for one in parameters if not one.only_by_name]
        # Sizes may be passed one by one where they are the only argument.
        self.one_by_one = len(by_place) == 1 and by_place[0].kind == "int" and by_place[0].several

    def bind(self, args, how, numbers):
        """Return the values by name, or the reason why they do not fit."""
        how = dict(how)
        by_place = [one for one in self.parameters if not one.only_by_name]
        apart = args and not isinstance(args[0], (tuple, list))
        if self.one_by_one and (apart or len(args) > 1):
            args = (args,)
        if len(args) > len(by_place):
            return None, f"takes {len(by_place)} positional arguments but {len(args)} were given"
        found = {}
        names = {one.name for one in self.parameters}
        for old, new in _NUMPY.items():
            if old in how and old not in names and new in names and new not in how:
                how[new] = how.pop(old)
        for place, one in enumerate(self.parameters):
            if place < len(args) and not one.only_by_name:
                value = args[place]
                if one.name in how:
                    return None, f"got multiple values for argument '{one.name}'"
            elif one.name in how:
                value = how.pop(one.name)
            elif one.needed and not (one.none and one.only_by_name):
                return None, f'missing 1 required positional arguments: "{one.name}"'
            else:
                continue
            if not one.takes(value, numbers):
                where = f" (position {place + 1})" if place < len(args) else ""
                return None, f"argument '{one.name}'{where} must be {one.said()}, not {type(value).__name__}"
            found[one.name] = value
        if how:
            return None, f"got an unexpected keyword argument '{next(iter(how))}'"
        return found, None


def _read():
    found = {}
    for line in SIGNATURES.split("\n"):
        name, _, rest = line.partition("(")
        found.setdefault(name, []).append(rest[:-1])
    return found


_TEXTS = _read()


def _kind_of(value):
    kind = type(value)
    return (kind, *{*map(type, value)}) if kind in _SEQUENCES else kind


def _plan(name, signatures, function, args, how, numbers, is_method):
    """Return how a function here gets the arguments of a call, or raise torch's error."""
    for signature in signatures:
        found, why = signature.bind(args, how, numbers)
        if found is not None:
            return _AS_IS if not how else _passed(signature, function, found, is_method)
    if len(signatures) == 1:
        colon = ": " if why.startswith("argument ") else " "
        raise TypeError(f"{name}(){colon}{why}")
    got = [type(one).__name__ for one in args] + [f"{key}={type(one).__name__}" for key, one in how.items()]
    fits = "".join(f"\n * ({', '.join(p.said() + ' ' + p.name for p in s.parameters)})" for s in signatures)
    told = "received an invalid combination of arguments - got"
    raise TypeError(f"{name}() {told} ({', '.join(got)}), but expected one of:{fits}")


def _passed(signature, function, found, is_method):
    """Return which arguments are passed by place, and which by name: values or defaults of torch."""
    own = list(inspect.signature(function).parameters.values())
    places = sum(one.kind in (one.POSITIONAL_ONLY, one.POSITIONAL_OR_KEYWORD) for one in own)
    rest = any(one.kind is one.VAR_POSITIONAL for one in own)
    any_name = any(one.kind is one.VAR_KEYWORD for one in own)
    by_place = [one for one in signature.parameters if not one.only_by_name]
    while by_place and by_place[-1].name not in found:
        by_place.pop()
    room = len(by_place) if rest else places - is_method
    order, checks, named = by_place[:room], by_place[room:], []
    for one in signature.parameters:
        if one.only_by_name and one.name in found:
            known = any_name or any(mine.name == one.name for mine in own)
            (named if known else checks).append(one)
    return order, checks, named


def _call(function, plan, own, bound, name):
    order, checks, named = plan
    for one in checks:
        value = bound.get(one.name, one.usual)
        usual = value is None or value is False or (type(value) is type(one.usual) and value == one.usual)
        need(usual, f"{name} with {one.name}={value!r} needs", NeedsTorchError)
    options = {one.name: bound[one.name] for one in named if bound[one.name] is not None}
    return function(*own, *(bound.get(one.name, one.usual) for one in order), **options)


_INSIDE = AttributeError, TypeError, KeyError, ValueError, ArithmeticError, AssertionError, IndexError


def honest(name, error):
    """Return an error that was meant; one that came from inside becomes a refusal."""
    last = error.__traceback__
    while last.tb_next is not None:
        last = last.tb_next
    meant = last.tb_frame.f_code.co_name in ("need", "_plan", "_check", "__getattr__", "_vector")
    return error if meant else NeedsTorchError(f"{name} with such arguments needs")


# Where torch prints another name of what made a tensor than that of the method; "+" after a method means
# a call with further arguments.
_TITLES = """
mean+ MeanBackward1; sum+ SumBackward1; prod+ ProdBackward1; max MaxBackward1; max+ MaxBackward0
min MinBackward1; min+ MinBackward0; squeeze+ SqueezeBackward1; square PowBackward0; reshape ViewBackward0
view_as ViewBackward0; flatten ViewBackward0; unflatten ViewBackward0; expand_as ExpandBackward0
broadcast_to ExpandBackward0; contiguous CloneBackward0; chunk SplitBackward0; t TBackward0
swapaxes TransposeBackward0; movedim PermuteBackward0; narrow SliceBackward0; concat CatBackward0
float ToCopyBackward0; double ToCopyBackward0; half ToCopyBackward0; index_put IndexPutBackward0
floor_divide NotImplemented; floor_divide_ NotImplemented
"""
_TITLES = dict(one.split() for line in _TITLES.strip().splitlines() for one in line.split("; "))
# Here the operation itself, or the function for layers, notes the name.
_OWN = set(
    """
    matmul mm bmm pow div where split detach copy_ one_hot pad kron einsum scaled_dot_product_attention linear
    sub add diff outer
""".split()
)


def titled(made, name, args, how):
    """Note under which name torch prints what made a tensor."""
    if not Strided._recording or name in _OWN:
        return made
    for one in made if isinstance(made, tuple) else (made,):
        if isinstance(one, Strided) and one.requires_grad and not one.is_leaf:
            one._said = _title(one, name, args, how)
    return made


def _title(one, name, args, how):
    more = len(args) + len(how) > 1
    usual = "".join(map(str.capitalize, name.strip("_").split("_"))) + "Backward0"
    if name.endswith("_") and one._base is not None:
        return "AsStridedBackward0"
    if name == "sort" and "stable" in how:
        return "SortBackward1"
    if name in ("max", "min") and ("other" in how or (len(args) > 1 and isinstance(args[1], Strided))):
        return {"max": "MaximumBackward0", "min": "MinimumBackward0"}[name]
    if name in ("clamp_min", "clamp_max") and isinstance([*args, *how.values()][-1], Strided):
        return usual.replace("0", "1")
    if name == "scatter" and not isinstance([*args, *how.values()][-1], Strided):
        return "ScatterBackward1"
    if name == "reshape" and one._base is None:
        return "UnsafeViewBackward0"
    if name == "contiguous" and one._said is not None:
        return one._said
    return (_TITLES.get(f"{name}+") if more else None) or _TITLES.get(name) or usual


def checked(name, function, is_method):
    """Return a function or method that takes the arguments of torch's."""
    texts = _TEXTS.get(name)
    if texts is None or not callable(function):
        return function
    signatures, plans, numbers = [], set(), name in _NUMBERS

    @wraps(function)
    def call(*args, **how):
        try:
            if not how:
                kinds = tuple(map(_kind_of, args))
                if kinds in plans:
                    made = function(*args)
                    return titled(made, name, args, how) if Strided._recording else made
            if not signatures:
                signatures.extend(_Signature(text, is_method) for text in texts)
            own, given = (args[:1], args[1:]) if is_method else ((), args)
            plan = _plan(name, signatures, function, given, how, numbers, is_method)
            if plan is _AS_IS:
                if all(not isinstance(one, Strided) or one.ndim for one in given):
                    plans.add(tuple(map(_kind_of, args)))
                return titled(function(*args), name, args, how)
            found = next(filter(None, (one.bind(given, how, numbers)[0] for one in signatures)), {})
            return titled(_call(function, plan, own, found, name), name, args, how)
        except _INSIDE as error:
            found = honest(name, error)
            if found is error:
                raise
            raise found from error

    return call
