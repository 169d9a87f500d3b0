"""Modules that hold parameters and buffers, and the layers that the course uses."""

from __future__ import annotations

import math

from .._functions import empty, ones, zeros
from .._memory import DType, float64, need
from .._tensor import Tensor
from . import functional, init

F = functional
_HELD = "_parameters", "_buffers", "_modules"


class Parameter(Tensor):
    """A tensor that a module would train."""

    def __new__(cls, data=None, requires_grad=True):
        data = empty(0) if data is None else data
        made = cls._of(data._memory, data.shape, data.dtype, data._strides, data._offset)
        made.requires_grad = requires_grad
        return data._like(made)

    def __repr__(self):
        return f"Parameter containing:\n{super().__repr__()}"


class Module:
    """Holds parameters, buffers and other modules by the names of its attributes."""

    training = True

    def __init__(self):
        for place in (*_HELD, "_hooks"):
            self.__dict__[place] = {}
        self.__dict__["_not_saved"] = set()

    def __setattr__(self, name, value):
        kinds = {"_parameters": Parameter, "_modules": Module, "_buffers": Tensor}
        for place, kind in kinds.items():
            held, new = self.__dict__.get(place), isinstance(value, kind)
            if new and place != "_buffers":
                told = "call super().__init__() before parameters and modules are set"
                need(held is not None, told, AttributeError)
                for other in [self.__dict__[one] for one in _HELD if one != place]:
                    other.pop(name, None)
                self.__dict__.pop(name, None)
            elif name not in (held or ()):
                continue
            told = f"{name} must be a {kind.__name__} or None, got {type(value).__name__}"
            need(new or value is None, told, TypeError)
            held[name] = value
            return
        object.__setattr__(self, name, value)

    def __getattr__(self, name):
        for place in _HELD:
            if name in self.__dict__.get(place, ()):
                return self.__dict__[place][name]
        told = f"{type(self).__name__!r} object has no attribute {name!r}"
        raise AttributeError(told, name=name, obj=self)

    def __delattr__(self, name):
        held = [self.__dict__[place] for place in _HELD if name in self.__dict__[place]]
        del (held[0] if held else self.__dict__)[name]

    def register_buffer(self, name, tensor, persistent=True):
        told = f"attribute {name!r} already exists"
        need(not hasattr(self, name) or name in self._buffers, told, KeyError)
        self._buffers[name] = tensor
        (self._not_saved.discard if persistent else self._not_saved.add)(name)

    def register_parameter(self, name, param):
        self._parameters[name] = param

    def add_module(self, name, module):
        self._modules[name] = module

    register_module = add_module

    def forward(self, *_):
        raise NotImplementedError(f"{type(self).__name__} has no `forward`: write it")

    def __call__(self, *inputs, **options):
        output = self.forward(*inputs, **options)
        for hook in list(self._hooks.values()):
            changed = hook(self, inputs, output)
            output = output if changed is None else changed
        return output

    def register_forward_hook(self, hook):
        handle = _Handle(self._hooks)
        self._hooks[handle] = hook
        return handle

    # ------------------------------------------------------------------ what is inside
    def named_modules(self, memo=None, prefix=""):
        memo = set() if memo is None else memo
        if self not in memo:
            memo.add(self)
            yield prefix, self
            for name, module in self.named_children():
                yield from module.named_modules(memo, f"{prefix}.{name}".lstrip("."))

    def _named(self, place, recurse=True, prefix=""):
        seen = set()
        for path, module in self.named_modules() if recurse else [("", self)]:
            for name, value in module.__dict__[place].items():
                if value is not None and value not in seen:
                    seen.add(value)
                    yield ".".join(filter(None, (prefix, path, name))), value

    def named_parameters(self, prefix="", recurse=True):
        return self._named("_parameters", recurse, prefix)

    def named_buffers(self, prefix="", recurse=True):
        return self._named("_buffers", recurse, prefix)

    def named_children(self):
        return ((name, one) for name, one in self._modules.items() if one is not None)

    def parameters(self, recurse=True):
        return (one for _, one in self.named_parameters(recurse=recurse))

    def buffers(self, recurse=True):
        return (one for _, one in self.named_buffers(recurse=recurse))

    def modules(self):
        return (one for _, one in self.named_modules())

    def children(self):
        return (one for _, one in self.named_children())

    def state_dict(self, prefix="", **_):
        found = self._parameters | self._buffers
        kept = {name: x for name, x in found.items() if name not in self._not_saved}
        state = {f"{prefix}{name}": x.detach() for name, x in kept.items() if x is not None}
        for name, module in self.named_children():
            state |= module.state_dict(prefix=f"{prefix}{name}.")
        return state

    def load_state_dict(self, state_dict, strict=True):
        own, told = self.state_dict(), []
        if strict:
            told += [f"{name} is missing" for name in own if name not in state_dict]
            told += [f"{name} is not expected" for name in state_dict if name not in own]
        for name in own.keys() & state_dict.keys():
            if own[name].shape == state_dict[name].shape:
                own[name].copy_(state_dict[name])
            else:
                pair = tuple(state_dict[name].shape), tuple(own[name].shape)
                told.append(f"{name} has shape {pair[0]}, not {pair[1]}")
        need(not told, f"the state does not fit {type(self).__name__}: {'; '.join(told)}")

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
        """Do nothing: there are no gradients."""

    def apply(self, fn):
        for module in self.children():
            module.apply(fn)
        fn(self)
        return self

    def to(self, *args, **options):
        casts = any(isinstance(one, DType) for one in (*args, *options.values()))
        for module in self.modules():
            for held in (module._parameters, module._buffers):
                for name, one in held.items():
                    if one is not None and (one.is_floating_point() or not casts):
                        new = one.to(*args, **options)
                        held[name] = one._swap(new) if held is module._parameters else new
        return self

    def double(self):
        return self.to(float64)

    def extra_repr(self):
        return ""

    def __repr__(self):
        named = (f"({name}): {one!r}" for name, one in self._modules.items())
        parts = [f"\n  {text}".replace("\n", "\n  ")[2:] for text in named]
        said, end = self.extra_repr(), "\n" if parts else ""
        start = f"\n  {said}" if said and parts else said
        return f"{type(self).__name__}({start}{''.join(parts)}{end})"


class _Handle:
    """What `register_forward_hook` returns."""

    def __init__(self, hooks):
        self._hooks = hooks

    def remove(self):
        self._hooks.pop(self, None)


# ------------------------------------------------------------------ layers
class Linear(Module):
    """A matrix and a bias: x Wᵀ + b."""

    def __init__(self, in_features, out_features, bias=True, **how):
        super().__init__()
        self.in_features, self.out_features = in_features, out_features
        self.weight = Parameter(empty(out_features, in_features, **how))
        self.bias = Parameter(empty(out_features, **how)) if bias else None
        bound = 1 / math.sqrt(in_features) if in_features else 0
        for one in self.parameters():
            init.uniform_(one, -bound, bound)

    def forward(self, input):
        return functional.linear(input, self.weight, self.bias)

    def extra_repr(self):
        sizes = f"in_features={self.in_features}, out_features={self.out_features}"
        return f"{sizes}, bias={self.bias is not None}"


class Embedding(Module):
    """A table with a row for each token."""

    def __init__(self, num_embeddings, embedding_dim, padding_idx=None, **how):
        super().__init__()
        self.num_embeddings, self.embedding_dim = num_embeddings, embedding_dim
        self.padding_idx = padding_idx
        self.weight = Parameter(empty(num_embeddings, embedding_dim, **how))
        init.normal_(self.weight)
        if padding_idx is not None:
            self.weight.detach()[padding_idx] = 0

    @classmethod
    def from_pretrained(cls, embeddings, freeze=True):
        made = cls(*embeddings.shape)
        made.weight = Parameter(embeddings, not freeze)
        return made

    def forward(self, input):
        return functional.embedding(input, self.weight)

    def extra_repr(self):
        return f"{self.num_embeddings}, {self.embedding_dim}"


class LayerNorm(Module):
    """Mean 0 and variance 1 over the last axes, then a scale and a shift that are learned."""

    def __init__(
        self, normalized_shape, eps=1e-5, elementwise_affine=True, bias=True, **how
    ):
        super().__init__()
        one = isinstance(normalized_shape, int)
        shape = (normalized_shape,) if one else tuple(normalized_shape)
        self.normalized_shape, self.eps = shape, eps
        self.elementwise_affine = elementwise_affine
        self.weight = Parameter(ones(shape, **how)) if elementwise_affine else None
        self.bias = Parameter(zeros(shape, **how)) if elementwise_affine and bias else None

    def forward(self, input):
        how = self.normalized_shape, self.weight, self.bias, self.eps
        return functional.layer_norm(input, *how)

    def extra_repr(self):
        affine = f"elementwise_affine={self.elementwise_affine}"
        return f"{self.normalized_shape}, eps={self.eps}, {affine}"


class ModuleList(Module):
    """Modules in a list."""

    def __init__(self, modules=()):
        super().__init__()
        self.extend(modules)

    def append(self, module):
        self._modules[str(len(self))] = module
        return self

    def extend(self, modules):
        for module in modules:
            self.append(module)
        return self

    def __len__(self):
        return len(self._modules)

    def __iter__(self):
        return iter(self._modules.values())

    def __getitem__(self, index):
        found = list(self)[index]
        if not isinstance(index, slice):
            return found
        made = type(self)()
        return made.extend(found)


class Sequential(ModuleList):
    """Modules, each of which takes what the one before returned."""

    def __init__(self, *modules):
        super().__init__(modules)

    def forward(self, input):
        for module in self:
            input = module(input)
        return input


class Dropout(Module):
    """Numbers that become 0 at random, in training only."""

    def __init__(self, p=0.5):
        super().__init__()
        self.p = p

    def forward(self, input):
        return functional.dropout(input, self.p, self.training)

    def extra_repr(self):
        return f"p={self.p}"


class Identity(Module):
    """Returns what it takes."""

    def __init__(self, *_, **__):
        super().__init__()

    def forward(self, input):
        return input


def _layer(title, function, *names):
    """Return a layer without parameters: `functional` computes, with the arguments of its constructor."""

    def start(self, *given, **options):
        Module.__init__(self)
        self._options = dict(zip(names, given, strict=False)) | options

    def forward(self, *inputs):
        return function(*inputs, **self._options)

    def extra_repr(self):
        return ", ".join(f"{name}={value}" for name, value in self._options.items())

    parts = {"__init__": start, "forward": forward, "extra_repr": extra_repr}
    return type(title, (Module,), parts)


ReLU, Tanh = _layer("ReLU", F.relu), _layer("Tanh", F.tanh)
Sigmoid, SiLU = _layer("Sigmoid", F.sigmoid), _layer("SiLU", F.silu)
GELU = _layer("GELU", F.gelu, "approximate")
Softmax, LogSoftmax = (
    _layer("Softmax", F.softmax, "dim"),
    _layer("LogSoftmax", F.log_softmax, "dim"),
)
CrossEntropyLoss = _layer("CrossEntropyLoss", F.cross_entropy)
MSELoss = _layer("MSELoss", F.mse_loss)


def __getattr__(name):
    told = f"the small stand-in for torch has no nn.{name}: open this page in Colab"
    raise AttributeError(told)
