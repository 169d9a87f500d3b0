"""Optimizers: they move parameters against their gradients; torch's documentation explains them."""

from __future__ import annotations

from math import sqrt

from .. import _kernels
from .._memory import NeedsTorchError, need, store
from .._tape import GradMode
from .._tensor import Tensor
from . import lr_scheduler


class Optimizer:
    """Parameters in groups with settings of their own, and what is remembered of each."""

    def __init__(self, params, defaults):
        need(
            not isinstance(params, Tensor),
            "an optimizer takes a list of tensors, such as model.parameters()",
            TypeError,
        )
        groups = list(params)
        need(
            groups,
            "the optimizer got no parameters: has the model any, and was the generator used before?",
            ValueError,
        )
        groups = groups if isinstance(groups[0], dict) else [{"params": groups}]
        self.defaults, self.state, self.param_groups = defaults, {}, []
        for group in groups:
            self.add_param_group(group)

    def add_param_group(self, param_group):
        params = param_group["params"]
        params = [params] if isinstance(params, Tensor) else list(params)
        for one in params:
            need(isinstance(one, Tensor), f"an optimizer moves tensors, got {type(one).__name__}", TypeError)
            need(one.is_leaf, "only leaves, such as parameters, can be optimized", ValueError)
        self.param_groups.append({**self.defaults, **param_group, "params": params})

    def zero_grad(self, set_to_none=True):
        for group in self.param_groups:
            for one in group["params"]:
                if one.grad is not None and not set_to_none:
                    one.grad.zero_()
                elif set_to_none:
                    one.grad = None

    def step(self, closure=None):
        found = closure and closure()
        with GradMode(False):
            for group in self.param_groups:
                for one in group["params"]:
                    if one.grad is not None:
                        self._move(one, one.grad, group, self.state.setdefault(one, {}))
                        one._changes[0] += 1
        return found

    def state_dict(self):
        raise NeedsTorchError("the state of an optimizer needs")

    load_state_dict = state_dict

    def __repr__(self):
        said = [
            "\n".join(
                [
                    f"Parameter Group {i}",
                    *(f"    {k}: {v}" for k, v in sorted(group.items()) if k != "params"),
                ]
            )
            for i, group in enumerate(self.param_groups)
        ]
        return f"{type(self).__name__} (\n" + "\n".join(said) + "\n)"


def _check(lr, **others):
    for name, value in {"lr": lr, **others}.items():
        need(value >= 0, f"{name} must not be negative, got {value}", ValueError)


# What optimizers of torch have besides; here it has these values.
_NO = dict.fromkeys(("differentiable", "maximize"), False) | dict.fromkeys(("foreach", "fused"))
_ADAM = _NO | dict.fromkeys(("amsgrad", "capturable", "decoupled_weight_decay"), False)
_MORE = {*_ADAM}


def _only_usual(options):
    unusual = [name for name, value in options.items() if value is not None and value is not False]
    need(not {*options} - _MORE, f"an optimizer takes no {[*({*options} - _MORE)]}", TypeError)
    need(not unusual, f"an optimizer with {', '.join(unusual)} needs", NeedsTorchError)


class SGD(Optimizer):
    """Gradient descent, with or without momentum."""

    def __init__(self, params, lr=1e-3, momentum=0, dampening=0, weight_decay=0, nesterov=False, **options):
        _check(lr, momentum=momentum, weight_decay=weight_decay)
        right = not nesterov or (momentum > 0 and dampening == 0)
        need(right, "nesterov needs momentum, and no dampening", ValueError)
        usual = {"lr": lr, "momentum": momentum, "dampening": dampening, "weight_decay": weight_decay}
        _only_usual(options)
        super().__init__(params, usual | {"nesterov": nesterov} | _NO)

    def _move(self, one, grad, group, state):
        momentum = group["momentum"]
        if group["weight_decay"]:
            grad = grad + one.detach() * group["weight_decay"]
        if momentum:
            before = state.get("momentum_buffer")
            moved = grad.clone() if before is None else before * momentum + grad * (1 - group["dampening"])
            state["momentum_buffer"] = moved
            grad = grad + moved * momentum if group["nesterov"] else moved
        one._become(one.detach() - grad * group["lr"])


class Adam(Optimizer):
    """Adam (Kingma and Ba, 2015)."""

    decoupled = False

    def __init__(self, params, lr=1e-3, betas=(0.9, 0.999), eps=1e-8, weight_decay=0, **options):
        _check(lr, eps=eps, weight_decay=weight_decay)
        for beta in betas:
            need(0 <= beta < 1, f"betas must lie in 0..1, got {betas}", ValueError)
        _only_usual(options)
        usual = {"lr": lr, "betas": betas, "eps": eps, "weight_decay": weight_decay}
        super().__init__(params, usual | _ADAM | {"decoupled_weight_decay": self.decoupled})

    def _move(self, one, grad, group, state):
        if not state:
            state.update(step=0, exp_avg=one.detach() * 0, exp_avg_sq=one.detach() * 0)
        state["step"] += 1
        (beta1, beta2), lr, decay = group["betas"], group["lr"], group["weight_decay"]
        rate, root = lr / (1 - beta1 ** state["step"]), sqrt(1 - beta2 ** state["step"])
        shrink, decay = (1 - lr * decay, 0.0) if self.decoupled else (1.0, decay)
        parts = one, grad.contiguous(), state["exp_avg"], state["exp_avg_sq"]
        settings = rate, beta1, beta2, group["eps"], root, decay, shrink
        if not _kernels.adam(*parts, settings):
            _adam(*parts, *settings)


def _adam(parameter, gradient, first, second, rate, beta1, beta2, eps, root, decay, shrink):
    """Move parameters by one step of Adam in place, number by number."""
    found = [[], [], []]
    kept = [list(one._numbers()) for one in (parameter, gradient, first, second)]
    for old, slope, m, v in zip(*kept, strict=True):
        old *= shrink
        slope += decay * old
        m, v = m + (slope - m) * (1 - beta1), v * beta2 + (1 - beta2) * slope * slope
        for numbers, new in zip(found, (old - rate * m / (sqrt(v) / root + eps), m, v), strict=True):
            numbers.append(new)
    for tensor, numbers in zip((parameter, first, second), found, strict=True):
        tensor._write(store(numbers, tensor.dtype))


class AdamW(Adam):
    """Adam whose weight decay does not pass through the gradient (Loshchilov and Hutter, 2019)."""

    decoupled = True

    def __init__(self, params, lr=1e-3, betas=(0.9, 0.999), eps=1e-8, weight_decay=0.01, **options):
        super().__init__(params, lr, betas, eps, weight_decay, **options)


def __getattr__(name):
    raise AttributeError(f"the small stand-in for torch has no optim.{name}: open this page in Colab")
