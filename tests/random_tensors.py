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
