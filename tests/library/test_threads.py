"""Small models train with one thread, and a reader's setting comes back."""

import torch
from torch import nn

from mha_course.training import fit


def test_fit_uses_one_thread_and_restores_the_number():
    seen = []

    def make_batch(generator):
        seen.append(torch.get_num_threads())
        x = torch.rand(5, 3, generator=generator)
        return x, x

    before = torch.get_num_threads()
    try:
        torch.set_num_threads(2)
        fit(nn.Linear(3, 3), make_batch, steps=2, loss=nn.functional.mse_loss)
        assert torch.get_num_threads() == 2
    finally:
        torch.set_num_threads(before)
    assert seen == [1, 1]
