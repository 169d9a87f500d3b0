"""Modules that hold parameters and buffers, and the layers that the course uses."""

from __future__ import annotations

from .._functions import empty, full
from .._memory import DType, float64, need
from .._tensor import Tensor
from . import functional, init

F = functional


class Parameter(Tensor):
    """A tensor that a module would train."""

    def __new__(cls, data, requires_grad=True):
        made = object.__new__(cls)._swap(data)
        return made.requires_grad_(requires_grad)

    def __repr__(self):
        return f"Parameter containing:\n{super().__repr__()}"


class Module:
    """Holds parameters, buffers and other modules by the names of its attributes."""

    training = True
    _kinds = {"_parameters": Parameter, "_buffers": Tensor}

    def __init__(self):
        self.__dict__.update(_parameters={}, _buffers={}, _modules={}, _hooks={}, _not_saved=set())

    def __setattr__(self, name, value):
        held = [place for place in self._kinds if name in self.__dict__.get(place, ())]
        new = next(
            (place for place in ("_parameters", "_modules") if isinstance(value, self._kinds[place])), None
        )
        need(not new or new in self.__dict__, "call super().__init__() before parameters and modules are set",
             AttributeError)  # fmt: skip
        if new:
            for other in [self.__dict__, *(self.__dict__[place] for place in held if place != new)]:
                other.pop(name, None)
            self.__dict__[new][name] = value
        elif held:
            kind = self._kinds[held[0]]
            right = value is None or isinstance(value, kind)
            need(right, f"{name} must be a {kind.__name__} or None, got {type(value).__name__}", TypeError)
            self.__dict__[held[0]][name] = value
        else:
            object.__setattr__(self, name, value)

    def __getattr__(self, name):
        for place in self._kinds:
            if name in self.__dict__.get(place, ()):
                return self.__dict__[place][name]
        raise AttributeError(f"{type(self).__name__!r} object has no attribute {name!r}", name=name, obj=self)

    def __delattr__(self, name):
        held = [self.__dict__[place] for place in self._kinds if name in self.__dict__[place]]
        del (held[0] if held else self.__dict__)[name]

    def register_buffer(self, name, tensor, persistent=True):
        need(name not in self.__dict__, f"attribute {name!r} already exists", KeyError)
        self._buffers[name] = tensor
        (self._not_saved.discard if persistent else self._not_saved.add)(name)

    def register_parameter(self, name, param):
        self._parameters[name] = param

    def add_module(self, name, module):
        self._modules[name] = module

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
    def named_modules(self, prefix=""):
        found = {self: prefix}
        for name, module in self.named_children():
            for path, one in module.named_modules(f"{prefix}.{name}".lstrip(".")):
                found.setdefault(one, path)
        return ((path, one) for one, path in found.items())

    def _named(self, place, recurse=True, prefix=""):
        found = {}
        for path, module in self.named_modules(prefix) if recurse else [(prefix, self)]:
            for name, one in module.__dict__[place].items():
                found.setdefault(one, f"{path}.{name}".lstrip("."))
        return ((name, one) for one, name in found.items() if one is not None)

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

    def state_dict(self, *, prefix="", **_):
        found = (self._parameters | self._buffers).items()
        kept = {name: one for name, one in found if one is not None and name not in self._not_saved}
        state = {f"{prefix}{name}": one.detach() for name, one in kept.items()}
        for name, module in self.named_children():
            state |= module.state_dict(prefix=f"{prefix}{name}.")
        return state

    def load_state_dict(self, state_dict, strict=True):
        own = self.state_dict()
        told = [f"{name} is missing" for name in own if name not in state_dict] if strict else []
        told += [f"{name} is not expected" for name in state_dict if name not in own] if strict else []
        for name in [name for name in own if name in state_dict]:
            if own[name].shape == state_dict[name].shape:
                own[name].copy_(state_dict[name])
            else:
                told.append(f"{name} has shape {state_dict[name].shape}, not {own[name].shape}")
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

    def apply(self, fn):
        for module in self.children():
            module.apply(fn)
        fn(self)
        return self

    def to(self, *args, **options):
        casts = any(isinstance(one, DType) for one in (*args, *options.values()))
        for held in [held for one in self.modules() for held in (one._parameters, one._buffers)]:
            for name, one in held.items():
                if one is not None and (one.is_floating_point() or not casts):
                    new = one.to(*args, **options)
                    held[name] = one._swap(new) if isinstance(one, Parameter) else new
        return self

    def double(self):
        return self.to(float64)

    def extra_repr(self):
        return ""

    def __repr__(self):
        named = (f"({name}): {one!r}".replace("\n", "\n  ") for name, one in self._modules.items())
        lines = [self.extra_repr()] * (self.extra_repr() != "") + list(named)
        inside = "".join(f"\n  {line}" for line in lines) + "\n" if self._modules else self.extra_repr()
        return f"{type(self).__name__}({inside})"


Module._kinds["_modules"] = Module


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
        for one in self.parameters():
            init.uniform_(one, -((in_features or 1) ** -0.5), (in_features or 1) ** -0.5)

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
        return functional.embedding(input, self.weight)

    def extra_repr(self):
        return f"{self.num_embeddings}, {self.embedding_dim}"


class LayerNorm(Module):
    """Mean 0 and variance 1 over the last axes, then a scale and a shift that are learned."""

    def __init__(self, normalized_shape, eps=1e-5, elementwise_affine=True, bias=True, **how):
        super().__init__()
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
        return type(self)().extend(found) if isinstance(index, slice) else found


class Sequential(ModuleList):
    """Modules, each of which takes what the one before returned."""

    def __init__(self, *modules):
        super().__init__(modules)

    def forward(self, input):
        for module in self:
            input = module(input)
        return input


def _layer(title, function, *names, **usual):
    """Return a layer without parameters: a function with the options of its constructor."""

    def start(self, *given, **options):
        Module.__init__(self)
        self._options = usual | dict(zip(names, given, strict=False)) | options

    def forward(self, *inputs):
        training = {"training": self.training} if title == "Dropout" else {}
        return function(*inputs, **self._options, **training)

    def extra_repr(self):
        return ", ".join(f"{name}={value!r}" for name, value in self._options.items())

    return type(title, (Module,), {"__init__": start, "forward": forward, "extra_repr": extra_repr})


ReLU, Tanh, Sigmoid = (_layer(*pair) for pair in (("ReLU", F.relu), ("Tanh", F.tanh), ("Sigmoid", F.sigmoid)))
SiLU, GELU = _layer("SiLU", F.silu), _layer("GELU", F.gelu, "approximate", approximate="none")
Softmax, LogSoftmax = _layer("Softmax", F.softmax, "dim"), _layer("LogSoftmax", F.log_softmax, "dim")
Dropout, Identity = _layer("Dropout", F.dropout, "p", p=0.5), _layer("Identity", lambda x, **_: x)
CrossEntropyLoss, MSELoss = _layer("CrossEntropyLoss", F.cross_entropy), _layer("MSELoss", F.mse_loss)


def __getattr__(name):
    raise AttributeError(f"the small stand-in for torch has no nn.{name}: open this page in Colab")
