"""A GPT that learns the reader's text in the page: its mathematics against torch, and what a reader does."""

import copy
import re

import pytest
import torch
from playwright.sync_api import expect
from widget_page import assert_shows_numbers, in_browser

from mha_course.built import MyGPT
from mha_course.training import cross_entropy
from mha_course.widgets import TextTraining, text_training

MATH = "text_training/text_training_math.js"
# Letters, characters of two UTF-16 units, and one that sorts between them only in UTF-16.
TEXT = "Der Uhu 🦉 sah den Mond 🌝, und ｄer Mond sah den Uhu 🦉; 夜は静か。\nУтром"
NAMES = ("EMBED_DIM", "NUM_HEADS", "NUM_LAYERS", "LENGTH", "BATCH_SIZE", "STEPS")
SIZES = [(15, 3, 2, 7, 5, 40), (14, 1, 1, 11, 3, 40), (8, 4, 3, 5, 6, 40), (32, 4, 1, 32, 8, 600)]

START = """const run = m.TEXTS.startRun(plan);
for (const [name, numbers] of Object.entries(parameters ?? {})) run.parameters[name].set(numbers);
"""
LOOK = "const { loss, gradient } = run.look(); return { loss, gradient: gradient() };"
TRAIN = """const losses = Array.from({ length: steps }, () => run.advance());
return { losses, parameters: run.parameters, sample: run.record().sample };"""


def in_page(page, body, widget, **given):
    """Run the page's module on the run of a widget."""
    plan = {**widget._sizes, "text": widget.text, "seed": widget.seed}
    return in_browser(page, START + body, plan=plan, **given)


def assert_same(found, model, of=lambda parameter: parameter.detach()):
    """Numbers by name are those of the parameters of a model."""
    assert found.keys() == dict(model.named_parameters()).keys()
    for name, parameter in model.named_parameters():
        numbers = torch.tensor(found[name], dtype=torch.float64)
        torch.testing.assert_close(numbers, of(parameter).flatten(), atol=1e-9, rtol=1e-9, msg=name)


@pytest.mark.parametrize("sizes", SIZES)
def test_loss_gradient_and_steps_are_those_of_torch(math_page, monkeypatch, sizes):
    """With the same weights, all of them random: each gradient, one step of AdamW, and twenty."""
    for name, size in zip(NAMES, sizes, strict=True):
        monkeypatch.setattr(text_training, name, size)
    widget = TextTraining(text=TEXT, seed=5)
    model = widget.model()
    assert isinstance(model, MyGPT)
    torch.manual_seed(0)
    for parameter in model.parameters():
        torch.nn.init.normal_(parameter, std=0.5)
    start = {name: p.detach().flatten().tolist() for name, p in model.named_parameters()}
    inputs, targets = next(widget.batches())
    loss = cross_entropy(model(inputs), targets)
    loss.backward()
    found = in_page(math_page, LOOK, widget, parameters=start)
    assert found["loss"] == pytest.approx(loss.item(), abs=1e-12)
    # The bias of the keys shifts all scores of a query equally, so its gradient is 0.
    for name, parameter in model.named_parameters():
        assert parameter.grad.abs().max() > 1e-6 or name.endswith("k_proj.bias")
    assert_same(found["gradient"], model, lambda parameter: parameter.grad)
    for steps in (1, 20):
        trained = copy.deepcopy(model)
        losses = list(text_training.train(trained, text_training.encode(TEXT), 5, steps))
        found = in_page(math_page, TRAIN, widget, parameters=start, steps=steps)
        assert found["losses"] == pytest.approx(losses, abs=1e-7)
        if steps == 1:
            assert_same(found["parameters"], trained)


def test_run_of_a_seed_is_the_same_in_python(math_page):
    """The start, 25 steps, and the text that is written then."""
    widget = TextTraining(seed=3)
    model, tokens = widget.model(), text_training.encode(widget.text)
    assert_same(in_page(math_page, "return run.parameters;", widget, parameters=None), model)
    losses = list(text_training.train(model, tokens, 3, 25))
    found = in_page(math_page, TRAIN, widget, parameters=None, steps=25)
    assert found["losses"] == pytest.approx(losses, abs=1e-9)
    assert found["sample"] == text_training.write(model, tokens, 120, 3)
    # The initial weights are distributed like torch's.
    torch.manual_seed(0)
    theirs = dict(MyGPT(int(tokens.max()) + 1, 32, 4, 1, 32).named_parameters())
    for name, parameter in widget.model().named_parameters():
        spread = parameter.std().item(), parameter.abs().max().item()
        wanted = theirs[name].std().item(), theirs[name].abs().max().item()
        assert spread == pytest.approx(wanted, rel=0.35), name


@pytest.mark.parametrize("seed", [0, 1])
def test_at_the_end_it_writes_the_words_of_the_text(math_page, seed):
    widget = TextTraining(seed=seed)
    sample = in_page(math_page, TRAIN, widget, parameters=None, steps=600)["sample"]
    written = "".join(sorted(set(widget.text))[token] for token in sample)
    words = re.findall(r"\w+", written)[:-1]
    known = sum(word in re.findall(r"\w+", widget.text) for word in words)
    assert known >= 0.85 * len(words) > 15, written


def press(host, name):
    host.get_by_role("button", name=name).click()


def test_it_learns_stops_goes_on_and_looks_back(show):
    """In a worker, with any script: what is written is the text of torch, and its words are bold."""
    widget = TextTraining(text=TEXT, seed=2)
    host = show(widget)
    assert_shows_numbers(host, widget, {"guess_loss", "start_sample"})
    steps, written = host.locator(".mha-transport .mha-value"), host.locator(".mha-text-box")
    press(host, "Play")
    while int(steps.inner_text().split()[0]) < 25:
        host.page.wait_for_timeout(20)
    press(host, "Pause")
    assert len(host.page.workers) == 1
    model, tokens = widget.model(), text_training.encode(TEXT)
    losses = list(text_training.train(model, tokens, 2, 25))
    host.get_by_role("slider", name="step").evaluate(
        "node => { node.value = 25; node.dispatchEvent(new Event('input', { bubbles: true })); }"
    )
    sample = [sorted(set(TEXT))[token] for token in text_training.write(model, tokens, 120, 2)]
    assert written.text_content() == "".join(sample)
    assert set(written.locator("b").all_text_contents()) <= set(re.findall(r"\w+", TEXT))
    facts = host.locator(".mha-curves .mha-name")
    expect(facts.first).to_have_text(f"loss of the batch: {losses[-1]:.2f}")
    expect(facts.last).to_contain_text("after step 25: ")
    # A single step continues where the training stopped, and so do the remaining ones.
    press(host, "One step")
    expect(steps).not_to_have_text("25 of 600")
    stopped = int(steps.inner_text().split()[0])
    assert stopped > 25
    press(host, "Play")
    while int(steps.inner_text().split()[0]) < stopped + 5:
        host.page.wait_for_timeout(20)


@pytest.mark.parametrize(("text", "sentence"), [
    ("", "0 characters are too few: the model learns a text of 40 to 5,000."),
    ("夜🦉。", "3 characters are too few: the model learns a text of 40 to 5,000."),
    ("x" * 10_000, "10,000 characters are too many: the model learns a text of 40 to 5,000."),
])  # fmt: skip
def test_a_text_that_cannot_be_learned_gets_a_sentence_and_nothing_is_lost(show, text, sentence):
    widget = TextTraining()
    host = show(widget)
    field, steps = host.get_by_label("text to learn"), host.locator(".mha-transport .mha-value")
    press(host, "One step")
    expect(steps).to_have_text("1 of 600")
    field.fill(text)
    expect(host.locator(".mha-remark")).to_contain_text(sentence)
    press(host, "One step")
    expect(steps).to_have_text("2 of 600")
    expect(field).to_have_value(text)
    expect(field).to_have_attribute("aria-invalid", "true")
    with pytest.raises(ValueError, match="text must have 40 to 5,000 characters, got"):
        widget.text = text
    press(host, "Reset")
    expect(field).to_have_value(widget.text)
    expect(field).to_have_attribute("aria-invalid", "false")
    expect(steps).to_have_text("0 of 600")
    # One kind of character leaves nothing to guess.
    field.fill("夜" * 41)
    assert_shows_numbers(host, TextTraining(text="夜" * 41), {"guess_loss", "start_sample"})
