"""Modules with parameters and buffers, and the layers that the course uses."""

from __future__ import annotations

from collections import OrderedDict, namedtuple
from types import SimpleNamespace

from .._functions import empty, full
from .._memory import DType, NeedsTorchError, float16, float32, float64, need
from .._tensor import Tensor
from . import functional, init, utils

F = functional


class Parameter(Tensor):
    """A tensor that a module would train."""

    def __new__(cls, data=None, requires_grad=True):
        made = object.__new__(cls)._swap(empty(0) if data is None else data.detach())
        return made.requires_grad_(requires_grad)

    def __repr__(self):
        return f"Parameter containing:\n{super().__repr__()}"


class _IncompatibleKeys(namedtuple("IncompatibleKeys", ["missing_keys", "unexpected_keys"])):
    """Which names of a state did not fit."""

    __slots__ = ()

    def __repr__(self):
        return super().__repr__() if any(self) else "<All keys matched successfully>"


class Module:
    """Stores parameters, buffers and other modules under the names of its attributes."""

    training = True

    def __init__(self):
        self.__dict__.update(_hooks=[], _buffers={})  # a buffer's name -> whether it is saved

    def __setattr__(self, name, value):
        kinds, held = (Parameter, Module), vars(self).get(name)
        part = isinstance(value, kinds)
        early = "call super().__init__() before parameters and modules are set"
        need(not part or "_buffers" in vars(self), early, AttributeError)
        right = part or value is None or not isinstance(held, kinds)
        told = f"{name} must be a {type(held).__name__} or None, got {type(value).__name__}"
        need(right, told, TypeError)
        object.__setattr__(self, name, value)

    def register_buffer(self, name, tensor, persistent=True):
        need(name in self._buffers or not hasattr(self, name), f"attribute {name!r} already exists", KeyError)
        self._buffers[name] = persistent
        setattr(self, name, tensor)

    register_parameter = add_module = __setattr__

    def forward(self, *_):
        raise NotImplementedError(f"{type(self).__name__} has no `forward`: write it")

    def __call__(self, *inputs, **options):
        output = self.forward(*inputs, **options)
        for hook in self._hooks[:]:
            changed = hook(self, inputs, output)
            output = output if changed is None else changed
        return output

    def register_forward_hook(self, hook):
        self._hooks.append(hook)
        return SimpleNamespace(remove=lambda: self._hooks.remove(hook))

    # ------------------------------------------------------------------ what is inside
    def _held(self, kind):
        """Return the attributes of a kind; a plain tensor counts only if it is a buffer."""
        found = [(name, one) for name, one in vars(self).items() if isinstance(one, kind)]
        return [pair for pair in found if kind is not Tensor or pair[0] in self._buffers]

    def _named(self, kind, recurse=True, prefix=""):
        found = {}
        for path, module in self.named_modules(prefix) if recurse else [(prefix, self)]:
            for name, one in module._held(kind):
                found.setdefault(one, f"{path}.{name}".lstrip("."))
        return ((name, one) for one, name in found.items())

    def named_modules(self, prefix=""):
        found = {self: prefix}
        for name, module in self.named_children():
            for path, one in module.named_modules(f"{prefix}.{name}".lstrip(".")):
                found.setdefault(one, path)
        return ((path, one) for one, path in found.items())

    def named_parameters(self, prefix="", recurse=True):
        return self._named(Parameter, recurse, prefix)

    def named_buffers(self, prefix="", recurse=True):
        return self._named(Tensor, recurse, prefix)

    def named_children(self):
        return iter(self._held(Module))

    def state_dict(self, *, prefix="", **_):
        saved = [pair for pair in self._held(Tensor) if self._buffers[pair[0]]]
        state = OrderedDict()
        state |= {f"{prefix}{name}": one.detach() for name, one in [*self._held(Parameter), *saved]}
        for name, module in self.named_children():
            state |= module.state_dict(prefix=f"{prefix}{name}.")
        return state

    def load_state_dict(self, state_dict, strict=True):
        own = self.state_dict()
        told = [f"{name} is missing" for name in own if name not in state_dict] if strict else []
        told += [f"{name} is not expected" for name in state_dict if name not in own] if strict else []
        for name in [name for name in own if name in state_dict]:
            if own[name].shape == state_dict[name].shape:
                own[name].copy_(state_dict[name].detach())
            else:
                told.append(f"{name} has shape {state_dict[name].shape}, not {own[name].shape}")
        need(not told, f"the state does not fit {type(self).__name__}: {'; '.join(told)}")
        missing = [name for name in own if name not in state_dict]
        return _IncompatibleKeys(missing, [name for name in state_dict if name not in own])

    def train(self, mode=True):
        for module in self.modules():
            module.training = mode
        return self

    def eval(self):
        return self.train(False)

    def requires_grad_(self, requires_grad=True):
        for parameter in self.parameters():
            parameter.requires_grad_(requires_grad)
        return self

    def zero_grad(self, set_to_none=True):
        for parameter in self.parameters():
            if parameter.grad is not None and not set_to_none:
                parameter.grad.zero_()
            elif set_to_none:
                parameter.grad = None

    def to(self, *args, **options):
        casts = any(isinstance(one, DType) for one in (*args, *options.values()))
        for module in self.modules():
            for name, one in [*module._held(Parameter), *module._held(Tensor)]:
                if one.is_floating_point() or not casts:
                    new = one.to(*args, **options)
                    vars(module)[name] = one._swap(new) if isinstance(one, Parameter) else new
        return self

    def double(self):
        return self.to(float64)

    def float(self):
        return self.to(float32)

    def bfloat16(self):
        raise NeedsTorchError("torch.bfloat16 needs")

    def half(self):
        return self.to(float16)

    def cpu(self):
        return self

    def cuda(self, device=None):
        return self.to("cuda")

    def apply(self, fn):
        for module in self.children():
            module.apply(fn)
        fn(self)
        return self

    def extra_repr(self):
        return ""

    def _listed(self):
        """Return the names and texts of the modules inside."""
        return [(name, repr(one)) for name, one in self._held(Module)]

    def __repr__(self):
        named = [f"({name}): {text}".replace("\n", "\n  ") for name, text in self._listed()]
        lines = [self.extra_repr()] * (self.extra_repr() != "") + named
        inside = "".join(f"\n  {line}" for line in lines) + "\n" if named else self.extra_repr()
        return f"{type(self).__name__}({inside})"


def _without_names(method):
    return lambda self, **how: (one for _, one in getattr(self, method)(**how))


for _name in ("parameters", "buffers", "modules", "children"):
    setattr(Module, _name, _without_names(f"named_{_name}"))


# ------------------------------------------------------------------ layers
class Linear(Module):
    """A matrix and a bias: x Wᵀ + b."""

    def __init__(self, in_features, out_features, bias=True, device=None, dtype=None):
        super().__init__()
        how = {"device": device, "dtype": dtype}
        self.in_features, self.out_features = in_features, out_features
        self.weight = Parameter(empty(out_features, in_features, **how))
        self.bias = Parameter(empty(out_features, **how)) if bias else None
        for one in self.parameters():
            init.uniform_(one, -((in_features or 1) ** -0.5), (in_features or 1) ** -0.5)

    def forward(self, input):
        return functional.linear(input, self.weight, self.bias)

    def extra_repr(self):
        sizes = f"in_features={self.in_features}, out_features={self.out_features}"
        return f"{sizes}, bias={self.bias is not None}"


class Embedding(Module):
    """A table with a row for each token."""

    def __init__(
        self, num_embeddings, embedding_dim, padding_idx=None, max_norm=None, norm_type=2.0,
        scale_grad_by_freq=False, sparse=False, _weight=None, _freeze=False, device=None, dtype=None,
    ):  # fmt: skip
        super().__init__()
        how, usual = {"device": device, "dtype": dtype}, norm_type == 2 and max_norm is _weight is None
        usual = usual and not (scale_grad_by_freq or sparse or _freeze)
        need(usual, "an embedding with more than a padding_idx needs", NeedsTorchError)
        if padding_idx is not None:
            inside = -num_embeddings <= padding_idx < num_embeddings
            need(
                inside, f"padding_idx must be one of {num_embeddings} rows, got {padding_idx}", AssertionError
            )
            padding_idx %= num_embeddings
        self.num_embeddings, self.embedding_dim = num_embeddings, embedding_dim
        self.padding_idx, self.weight = padding_idx, Parameter(empty(num_embeddings, embedding_dim, **how))
        init.normal_(self.weight)
        if padding_idx is not None:
            self.weight.detach()[padding_idx] = 0

    @classmethod
    def from_pretrained(cls, embeddings, freeze=True):
        made = cls(*embeddings.shape)
        made.weight = Parameter(embeddings, not freeze)
        return made

    def forward(self, input):
        return functional.embedding(input, self.weight, self.padding_idx)

    def extra_repr(self):
        padding = "" if self.padding_idx is None else f", padding_idx={self.padding_idx}"
        return f"{self.num_embeddings}, {self.embedding_dim}{padding}"


class LayerNorm(Module):
    """Mean 0 and variance 1 over the last axes, then a scale and a shift that are learned."""

    def __init__(
        self, normalized_shape, eps=1e-5, elementwise_affine=True, bias=True, device=None, dtype=None
    ):
        super().__init__()
        how = {"device": device, "dtype": dtype}
        shape = (normalized_shape,) if isinstance(normalized_shape, int) else tuple(normalized_shape)
        self.normalized_shape, self.eps, self.elementwise_affine = shape, eps, elementwise_affine
        self.weight = Parameter(full(shape, 1.0, **how)) if elementwise_affine else None
        self.bias = Parameter(full(shape, 0.0, **how)) if elementwise_affine and bias else None

    def forward(self, input):
        return functional.layer_norm(input, self.normalized_shape, self.weight, self.bias, self.eps)

    def extra_repr(self):
        said = f"{self.normalized_shape}, eps={self.eps}, elementwise_affine={self.elementwise_affine}"
        return f"{said}, bias={self.bias is not None}"


class ModuleList(Module):
    """Modules in a list."""

    def __init__(self, modules=()):
        super().__init__()
        self.extend(modules)

    def append(self, module):
        need(module is not None, "None in the place of a module needs", NeedsTorchError)
        told = f"{type(self).__name__} keeps modules, got {type(module).__name__}"
        need(isinstance(module, Module), told, TypeError)
        setattr(self, str(len(self)), module)
        return self

    def extend(self, modules):
        told = f"{type(self).__name__} takes an iterable of modules, but got {type(modules).__name__}"
        need(hasattr(modules, "__iter__"), told, TypeError)
        for module in modules:
            self.append(module)
        return self

    def insert(self, index, module):
        modules = list(self)
        modules.insert(index, module)
        for name, _ in self._held(Module):
            delattr(self, name)
        made = self.extend(modules)
        return made if isinstance(self, Sequential) else None

    def __add__(self, other):
        return type(self)(*self, *other) if isinstance(self, Sequential) else type(self)([*self, *other])

    def __len__(self):
        return len(self._held(Module))

    def __iter__(self):
        return (one for _, one in self._held(Module))

    def __getitem__(self, index):
        found = list(self)[index]
        return type(self)().extend(found) if isinstance(index, slice) else found

    def _listed(self):
        """Return names and texts; neighbours of one text share a line."""
        found = []
        for name, text in super()._listed():
            if found and found[-1][1] == text:
                found[-1][0].append(name)
            else:
                found.append(([name], text))
        several = lambda names, text: (f"{names[0]}-{names[-1]}", f"{len(names)} x {text}")
        return [several(names, text) if len(names) > 1 else (names[0], text) for names, text in found]


class Sequential(ModuleList):
    """Modules, each of which receives the result of the previous one."""

    def __init__(self, *modules):
        named = len(modules) == 1 and isinstance(modules[0], dict)
        super().__init__(() if named else modules)
        for name, module in modules[0].items() if named else ():
            setattr(self, name, module)

    def _listed(self):
        return Module._listed(self)

    def forward(self, input):
        for module in self:
            input = module(input)
        return input


def _layer(title, function, *names, **usual):
    """Return a layer without parameters: a function with the options of its constructor."""

    def start(self, *given, **options):
        Module.__init__(self)
        told = f"{title}.__init__() got unexpected arguments"
        need(len(given) <= len(names) and set(options) <= set(names), told, TypeError)
        self._options = usual | dict(zip(names, given, strict=False)) | options
        p = self._options.get("p", 0)
        need(0 <= p <= 1, f"a probability lies between 0 and 1, got {p}", ValueError)

    def forward(self, input):
        training = {"training": self.training} if title == "Dropout" else {}
        return function(input, **self._options, **training)

    def extra_repr(self):
        shown = {
            name: one for name, one in self._options.items() if name != "inplace" or one or title == "Dropout"
        }
        return ", ".join(f"{name}={value!r}" for name, value in shown.items())

    return type(title, (Module,), {"__init__": start, "forward": forward, "extra_repr": extra_repr})


ReLU, SiLU = (_layer(*one, "inplace", inplace=False) for one in (("ReLU", F.relu), ("SiLU", F.silu)))
Tanh, Sigmoid = _layer("Tanh", F.tanh), _layer("Sigmoid", F.sigmoid)
GELU = _layer("GELU", F.gelu, "approximate", approximate="none")
Softmax, Dropout = (
    _layer("Softmax", F.softmax, "dim", dim=None),
    _layer("Dropout", F.dropout, "p", "inplace", p=0.5, inplace=False),
)


class Identity(Module):
    """Returns what it gets."""

    def __init__(self, *_, **__):
        super().__init__()

    def forward(self, input):
        return input


def __getattr__(name):
    raise AttributeError(f"the small stand-in for torch has no nn.{name}: open this page in Colab")
