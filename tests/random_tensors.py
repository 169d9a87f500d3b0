"""Random tensors that are the same in every run."""

import torch


def generator(seed=0):
    return torch.Generator().manual_seed(seed)


def random(*shape, seed=0, dtype=torch.float64, **options):
    """Standard normal numbers, the same ones in every dtype but for rounding."""
    return torch.randn(shape, generator=generator(seed), dtype=torch.float64, **options).to(dtype)


def bools(*shape, seed=0):
    """A random mask in which every query sees something: the first key."""
    mask = torch.rand(shape, generator=generator(seed)) < 0.5
    mask[..., 0] = True
    return mask


def differentiable(tensors):
    return [tensor.detach().clone().requires_grad_() for tensor in tensors]


def gradients(output, tensors):
    """Gradients of a sum in which every entry of the output has another factor."""
    factors = torch.linspace(-1, 1, output.numel(), dtype=output.dtype)
    return torch.autograd.grad(output, tensors, factors.reshape(output.shape))


def transposed(x):
    return x.mT.contiguous().mT


def every_other(x):
    """The same numbers, with others between them."""
    return torch.stack((x, x + 100), dim=-1).flatten(-2)[..., ::2]


def offset(x):
    """The same numbers inside a larger tensor."""
    padded = x.new_full([size + 2 for size in x.shape], 99)
    return padded[(slice(1, -1),) * x.ndim].copy_(x)


def heads_last(x):
    """As they come from a projection: (batch, len, heads, width), seen with the heads in front."""
    return x.transpose(1, 2).contiguous().transpose(1, 2)


LAYOUTS = [transposed, every_other, offset, heads_last]
