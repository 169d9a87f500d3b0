"""The training loop: models trained together learn what each learns alone, as with plain torch."""

import copy

import pytest
import torch
import torch.nn.functional as F
from torch import nn

from mha_lib import LearnedPositionalEncoding, MultiHeadAttention, attention_pooling, gaussian_score
from mha_lib.training import History, cross_entropy, fit, predict, seeded

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


@pytest.mark.parametrize("steps", [1, 2, 5, 9, 10, 11, 20, 40])
def test_fit_equals_a_loop_of_plain_torch(steps):
    (model,) = seeded(Reader, 1)
    plain = copy.deepcopy(model)
    history = fit(model, make_batch, steps=steps, lr=0.01, records=steps, seed=3)

    optimizer = torch.optim.Adam(plain.parameters(), lr=0.01)
    # Warm-up over a tenth of the steps, but at least a step and a half; a schedule has at least two steps.
    total = max(steps, 2)
    schedule = torch.optim.lr_scheduler.OneCycleLR(
        optimizer, 0.01, total_steps=total, pct_start=max(0.1, 1.5 / total)
    )
    generator, losses = torch.Generator().manual_seed(3), []
    for _ in range(steps):
        x, target = make_batch(generator)
        loss = F.cross_entropy(plain(x).reshape(-1, CLASSES), target.reshape(-1))
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        schedule.step()
        losses.append(loss.item())
    torch.testing.assert_close(history.losses[0], torch.tensor(losses), rtol=1e-4, atol=1e-5)
    torch.testing.assert_close(model.state_dict(), plain.state_dict(), rtol=1e-3, atol=1e-4)


@pytest.mark.parametrize("steps", range(1, 31))
def test_every_number_of_steps_works(steps):
    history = fit(nn.Linear(1, 1), line, steps=steps, loss=F.mse_loss)
    assert history.steps.tolist() == list(range(1, steps + 1))
    assert history.losses.isfinite().all()


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


def test_a_learned_bandwidth_can_be_trained_for_several_seeds():
    class Smoother(nn.Module):
        def __init__(self):
            super().__init__()
            self.bandwidth = nn.Parameter(0.5 + torch.rand(()))

        def forward(self, x):
            return attention_pooling(gaussian_score(x, x, self.bandwidth), x)[0]

    models = seeded(Smoother, 3)
    fit(models, lambda g: (torch.rand(9, 1, generator=g),) * 2, steps=100, lr=0.02, loss=F.mse_loss)
    assert all(model.bandwidth < 0.5 for model in models)  # to give back each point, be narrow


def test_lengths_that_come_with_the_batch_can_be_used():
    class Padded(Reader):
        def forward(self, x):
            lens = (x[..., 0] > 0).sum(-1)
            return self.head(self.attention(x, x, x, valid_lens=lens)[0])

    together = seeded(Padded, 2)
    alone = copy.deepcopy(together)
    history = fit(together, make_batch, steps=5)
    for i, model in enumerate(alone):
        torch.testing.assert_close(fit(model, make_batch, steps=5, seed=i).losses[0], history.losses[i])


def test_progress_is_printed_only_where_asked_for(capsys):
    fit(nn.Linear(1, 1), line, steps=40, loss=F.mse_loss)
    assert capsys.readouterr().out == ""
    fit(nn.Linear(1, 1), line, steps=40, loss=F.mse_loss, progress=True)
    printed = capsys.readouterr().out.splitlines()
    assert len(printed) == 10
    assert printed[-1].startswith("step    40 of 40, loss ")


def test_no_warning_reaches_the_page(recwarn):
    fit(seeded(lambda: Reader(need_weights=False), 2), make_batch, steps=3)
    assert not [str(warning.message) for warning in recwarn]


@pytest.mark.slow
def test_the_two_pointer_task_is_learned():
    """The loop does train: two heads point to two places at once."""
    from mha_lib.data import pointer_batch

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


# the helpers


def test_cross_entropy_is_the_mean_over_all_places():
    logits, target = torch.randn(2, 3, 5), torch.randint(5, (2, 3))
    expected = -logits.log_softmax(-1).gather(-1, target[..., None]).mean()
    torch.testing.assert_close(cross_entropy(logits, target), expected)
    torch.testing.assert_close(
        cross_entropy(logits[0, 0], target[0, 0]), -logits[0, 0].log_softmax(-1)[target[0, 0]]
    )


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
