"""The training loop: models trained together learn what each learns alone, as with plain torch."""

import asyncio
import contextlib
import copy
import os
import pty
import re
import subprocess
import sys
import termios

import pytest
import torch
import torch.nn.functional as F
from nbclient import NotebookClient
from nbformat.v4 import new_code_cell, new_notebook
from torch import nn

from mha_course.training import History, _clip_each, cross_entropy, fit, predict, seeded
from mha_lib import LearnedPositionalEncoding, MultiHeadAttention

BATCH, LENGTH, WIDTH, CLASSES = 7, 5, 6, 11


class Reader(nn.Module):
    """A small model with attention, positions, a buffer and a read-out."""

    def __init__(self, need_weights=True, dropout=0.0):
        super().__init__()
        self.positions = LearnedPositionalEncoding(WIDTH, max_len=LENGTH)
        self.attention = MultiHeadAttention(WIDTH, 3, dropout=dropout)
        self.head = nn.Linear(WIDTH, CLASSES)
        self.register_buffer("scale", torch.tensor(2.0))
        self.need_weights = need_weights

    def forward(self, x):
        x = self.positions(x * self.scale)
        output, _ = self.attention(x, x, x, is_causal=True, need_weights=self.need_weights)
        return self.head(output)


def make_batch(generator):
    x = torch.randn(BATCH, LENGTH, WIDTH, generator=generator)
    return x, torch.randint(CLASSES, (BATCH, LENGTH), generator=generator)


def line(generator):
    x = torch.rand(16, 1, generator=generator)
    return x, 3 * x + 1


def states(models):
    return [{name: value.clone() for name, value in model.state_dict().items()} for model in models]


# fit


@pytest.mark.parametrize("need_weights", [True, False], ids=["readable", "fused"])
def test_several_models_at_once_learn_what_each_learns_alone(need_weights):
    together = seeded(lambda: Reader(need_weights), 3)
    alone = copy.deepcopy(together)
    history = fit(together, make_batch, steps=20, lr=0.01, records=4)
    for i, model in enumerate(alone):
        own = fit(model, make_batch, steps=20, lr=0.01, records=4, seed=i)
        torch.testing.assert_close(own.losses[0], history.losses[i], rtol=1e-4, atol=1e-5)
        torch.testing.assert_close(model.state_dict(), together[i].state_dict(), rtol=1e-3, atol=1e-4)
    assert not torch.allclose(together[0].head.weight, together[1].head.weight)


def plain_loop(model, steps, *, lr=0.01, pct_start, clip=None, seed=3):
    """What `fit` does for one model, in plain torch: losses, learning rates, norms of the gradients."""
    optimizer = torch.optim.Adam(model.parameters(), lr=lr)
    one_cycle = torch.optim.lr_scheduler.OneCycleLR
    schedule = one_cycle(optimizer, lr, total_steps=max(steps, 2), pct_start=pct_start)
    generator, losses, rates, norms = torch.Generator().manual_seed(seed), [], [], []
    for _ in range(steps):
        x, target = make_batch(generator)
        loss = F.cross_entropy(model(x).reshape(-1, CLASSES), target.reshape(-1))
        optimizer.zero_grad()
        loss.backward()
        norms.append(torch.nn.utils.clip_grad_norm_(model.parameters(), clip or float("inf")))
        rates.append(optimizer.param_groups[0]["lr"])
        optimizer.step()
        schedule.step()
        losses.append(loss.item())
    return torch.tensor(losses), rates, torch.stack(norms)


@pytest.mark.parametrize("steps", [1, 2, 5, 9, 10, 11, 20, 40])
def test_fit_equals_a_loop_of_plain_torch(steps):
    (model,) = seeded(Reader, 1)
    plain = copy.deepcopy(model)
    history = fit(model, make_batch, steps=steps, lr=0.01, records=steps, seed=3)
    # Warm-up over a tenth of the steps, but at least a step and a half; a schedule has at least two steps.
    losses, _, _ = plain_loop(plain, steps, pct_start=max(0.1, 1.5 / max(steps, 2)))
    torch.testing.assert_close(history.losses[0], losses, rtol=1e-4, atol=1e-5)
    torch.testing.assert_close(model.state_dict(), plain.state_dict(), rtol=1e-3, atol=1e-4)


@pytest.mark.parametrize(("warmup", "pct_start"), [(0, 0.0), (0.0, 0.0), (0.4, 0.4), (1e-6, 1.5 / 23)])
def test_the_length_of_the_warm_up_can_be_chosen(warmup, pct_start):
    (model,) = seeded(Reader, 1)
    plain = copy.deepcopy(model)
    history = fit(model, make_batch, steps=23, lr=0.01, records=23, seed=3, warmup=warmup)
    losses, rates, _ = plain_loop(plain, 23, pct_start=pct_start)
    torch.testing.assert_close(history.losses[0], losses, rtol=1e-4, atol=1e-5)
    torch.testing.assert_close(model.state_dict(), plain.state_dict(), rtol=1e-3, atol=1e-4)
    # Torch's schedule has the rates that the argument promises.
    if warmup == 0:
        assert rates[0] == pytest.approx(0.01, rel=0.01)
        assert rates == sorted(rates, reverse=True)
    else:
        assert rates[0] == pytest.approx(0.01 / 25)
        assert 1 + rates.index(max(rates)) == pytest.approx(23 * pct_start, abs=1)


@pytest.mark.parametrize("steps", [1, 2, 3, 7])
@pytest.mark.parametrize("warmup", [0, 0.5, 0.9, 0.999])
def test_every_warm_up_works_in_a_short_run(steps, warmup):
    history = fit(nn.Linear(1, 1), line, steps=steps, loss=F.mse_loss, warmup=warmup)
    assert history.losses.isfinite().all()


def test_gradients_are_clipped_for_each_model_alone():
    """One model of the stack has gradients that are a hundred times as long; only that one is clipped."""
    models = seeded(Reader, 3)
    models[1].scale *= 100
    alone = copy.deepcopy(models)
    # Between the norm of the long one and those of the others; a limit above all norms changes nothing.
    limit = 6.0
    history = fit(models, make_batch, steps=11, records=11, seed=3, clip=limit)
    for i, model in enumerate(alone):
        losses, _, norms = plain_loop(model, 11, pct_start=1.5 / 11, clip=limit, seed=3 + i)
        assert (norms > limit).all() if i == 1 else (norms < limit).all()
        torch.testing.assert_close(history.losses[i], losses, rtol=1e-3, atol=1e-4)
        torch.testing.assert_close(model.state_dict(), models[i].state_dict(), rtol=1e-3, atol=1e-4)


@pytest.mark.parametrize("largest", [0.5, 1e9])
def test_clipping_equals_that_of_torch_for_each_model(largest):
    """Also for parameters without an axis of their own, and beside parameters without a gradient."""
    shapes = ((), (5,), (2, 3))
    stacked = [torch.zeros(7, *shape) for shape in shapes] + [torch.zeros(7, 11)]
    for tensor in stacked[:-1]:
        tensor.grad = torch.randn_like(tensor)
    alone = [[tensor[i].clone() for tensor in stacked] for i in range(7)]
    for i, tensors in enumerate(alone):
        for tensor, whole in zip(tensors[:-1], stacked, strict=False):
            tensor.grad = whole.grad[i].clone()
        torch.nn.utils.clip_grad_norm_(tensors, largest)
    _clip_each(stacked, largest)
    for i, tensors in enumerate(alone):
        for tensor, whole in zip(tensors[:-1], stacked, strict=False):
            torch.testing.assert_close(whole.grad[i], tensor.grad)
    assert stacked[-1].grad is None


def test_training_is_in_place_and_keeps_the_parameter_objects():
    model = Reader()
    parameters, before = list(model.parameters()), states([model])[0]
    assert fit(model, make_batch, steps=2).losses.shape == (1, 2)
    assert all(now is then for now, then in zip(model.parameters(), parameters, strict=True))
    for name, parameter in model.named_parameters():
        assert not torch.equal(parameter, before[name])
        assert parameter.requires_grad
        assert parameter.is_leaf
        assert parameter.grad is None
    assert torch.equal(model.scale, before["scale"])


def test_the_same_seed_gives_the_same_training():
    first, second, third = (copy.deepcopy(seeded(Reader, 1)) for _ in range(3))
    histories = [fit(m, make_batch, steps=5, seed=s) for m, s in ((first, 0), (second, 0), (third, 1))]
    assert torch.equal(histories[0].losses, histories[1].losses)
    assert not torch.equal(histories[0].losses, histories[2].losses)
    torch.testing.assert_close(states(first), states(second), rtol=0, atol=0)


def test_frozen_parameters_stay():
    models = seeded(Reader, 2)
    for model in models:
        model.attention.requires_grad_(False)
    before = states(models)
    fit(models, make_batch, steps=3, lr=0.1)
    for model, old in zip(models, before, strict=True):
        for name, parameter in model.named_parameters():
            assert torch.equal(parameter, old[name]) == name.startswith("attention")
            assert parameter.requires_grad != name.startswith("attention")


def test_history_holds_means_since_the_previous_record():
    fine = fit(nn.Linear(1, 1), line, steps=12, records=12, loss=lambda o, t: o.sum() * 0 + t.mean())
    coarse = fit(nn.Linear(1, 1), line, steps=12, records=4, loss=lambda o, t: o.sum() * 0 + t.mean())
    assert isinstance(fine, History)
    assert coarse.steps.tolist() == [3, 6, 9, 12]
    torch.testing.assert_close(coarse.losses, fine.losses.reshape(1, 4, 3).mean(-1))


def test_records_need_not_divide_steps():
    history = fit(seeded(lambda: nn.Linear(1, 1), 2), line, steps=11, records=4, loss=F.mse_loss)
    assert history.losses.shape == (2, 4)
    assert history.steps[-1] == 11
    assert (history.steps.diff() > 0).all()
    assert fit(nn.Linear(1, 1), line, steps=3, records=50, loss=F.mse_loss).steps.tolist() == [1, 2, 3]


def test_each_model_has_its_own_dropout():
    (model,) = seeded(lambda: nn.Sequential(nn.Dropout(0.5), nn.Linear(WIDTH, 1)), 1)
    twins = [model, copy.deepcopy(model)]

    def same_batch(generator):
        return torch.ones(BATCH, WIDTH), torch.ones(BATCH, 1)

    losses = fit(twins, same_batch, steps=5, loss=F.mse_loss).losses
    assert not torch.equal(losses[0], losses[1])


PROGRESS = """
import torch
from torch import nn
from mha_course.training import fit
_ = fit(nn.Linear(1, 1), lambda g: (torch.ones(2, 1),) * 2, steps=40, progress={progress},
    loss=lambda o, t: (o - t).square().mean())
"""


def seen_in_a_terminal(progress, **settings):
    """What a program writes to a terminal in which it runs."""
    controller, terminal = pty.openpty()
    termios.tcsetwinsize(terminal, (24, 80))
    command = [sys.executable, "-c", PROGRESS.format(progress=progress)]
    done = subprocess.run(command, stdout=terminal, stderr=terminal, env=os.environ | settings, check=True)
    os.close(terminal)
    text = b""
    with contextlib.suppress(OSError):  # reading past a terminal's last byte raises
        while part := os.read(controller, 4096):
            text += part
    os.close(controller)
    assert done.returncode == 0
    return text.decode()


def test_progress_is_a_bar_that_disappears():
    text = seen_in_a_terminal(True, TQDM_DISABLE="", TQDM_MININTERVAL="0")
    assert "40/40" in text
    assert re.search(r"loss=\d+\.\d{3}\b", text)
    assert "\n" not in text
    # The last thing written is a line of blanks, which the next output overwrites.
    assert text.endswith("\r")
    assert set(text.split("\r")[-2]) <= {" "}


@pytest.mark.slow
def test_no_progress_is_shown_where_nobody_asks_or_looks():
    assert seen_in_a_terminal(False) == ""
    assert seen_in_a_terminal(True, TQDM_DISABLE="1") == ""
    command = [sys.executable, "-c", PROGRESS.format(progress=True)]
    piped = subprocess.run(command, capture_output=True, env=os.environ | {"TQDM_DISABLE": ""}, check=True)
    assert (piped.stdout, piped.stderr) == (b"", b"")


@pytest.mark.slow
@pytest.mark.parametrize(("setting", "shown"), [("1", 0), ("", 1)])
def test_progress_in_a_notebook_is_shown_unless_outputs_are_stored(setting, shown):
    """tqdm's bar for notebooks ignores TQDM_DISABLE, and its text would stay in the stored output."""
    notebook = new_notebook(cells=[new_code_cell(PROGRESS.format(progress=True))])
    client = NotebookClient(notebook, kernel_name="python3", extra_arguments=["--log-level=ERROR"])
    asyncio.run(client.async_execute(env=os.environ | {"TQDM_DISABLE": setting}))
    assert len(notebook.cells[0].outputs) == shown


def test_no_warning_reaches_the_page(recwarn):
    fit(seeded(lambda: Reader(need_weights=False), 2), make_batch, steps=3)
    assert not [str(warning.message) for warning in recwarn]


@pytest.mark.slow
def test_the_two_pointer_task_is_learned():
    """The loop does train: two heads point to two places at once."""
    from mha_course.data import pointer_batch

    class TwoPointers(nn.Module):
        def __init__(self):
            super().__init__()
            self.tokens, self.positions = (nn.Embedding(5, 16), LearnedPositionalEncoding(16, max_len=4))
            nn.init.normal_(self.positions.encoding)
            self.attention, self.head = MultiHeadAttention(16, 2), nn.Linear(16, 2 * 5)

        def forward(self, tokens):
            x = self.positions(self.tokens(tokens))
            return self.head(self.attention(x, x, x)[0]).unflatten(-1, (2, 5))

    models = seeded(TwoPointers, 2)
    fit(models, lambda g: pointer_batch(64, vocab_size=5, length=4, generator=g), steps=400, lr=0.02)
    tokens, targets = pointer_batch(500, vocab_size=5, length=4, generator=torch.Generator().manual_seed(99))
    accuracy = (predict(models, tokens).argmax(-1) == targets).float().mean((1, 2, 3))
    assert (accuracy > 0.95).all()


def test_cross_entropy_is_the_mean_over_all_places():
    logits, target = torch.randn(2, 3, 5), torch.randint(5, (2, 3))
    expected = -logits.log_softmax(-1).gather(-1, target[..., None]).mean()
    torch.testing.assert_close(cross_entropy(logits, target), expected)
    own, wanted = logits[0, 0], target[0, 0]
    torch.testing.assert_close(cross_entropy(own, wanted), -own.log_softmax(-1)[wanted])


def test_seeded_models_differ_and_can_be_made_again():
    torch.manual_seed(123)
    before = torch.get_rng_state()
    models = seeded(Reader, 3, seed=5)
    assert torch.equal(torch.get_rng_state(), before)
    assert not torch.equal(models[0].head.weight, models[1].head.weight)
    again = seeded(Reader, 2, seed=6)
    torch.testing.assert_close(states(models[1:]), states(again), rtol=0, atol=0)
    torch.manual_seed(5)
    torch.testing.assert_close(states([Reader()]), states(models[:1]), rtol=0, atol=0)


def test_predict_stacks_the_outputs_of_each_model():
    models, x = seeded(Reader, 3), torch.randn(BATCH, LENGTH, WIDTH)
    outputs = predict(models, x)
    assert outputs.shape == (3, BATCH, LENGTH, CLASSES)
    assert not outputs.requires_grad
    for model, output in zip(models, outputs, strict=True):
        torch.testing.assert_close(output, model(x).detach())
    assert torch.equal(predict(models[0], x), outputs[:1])
