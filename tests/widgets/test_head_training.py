"""Training in the page: gradient, optimiser and random numbers against torch, and what is seen."""

import math
import re
import sys
from pathlib import Path

import pytest
import torch
import torch.nn.functional as F
from playwright.sync_api import expect
from scipy import stats
from seen import map_pixels
from widget_page import ByHand, copied_code, in_browser, write_page

from mha_course.data import pointer_batch
from mha_course.training import fit
from mha_course.widgets import HeadTraining, head_training

ROOT = Path(__file__).resolve().parents[2]
MATH = "head_training/head_training_math.js"
SIZES = {"vocabSize": 8, "length": 12, "embedDim": 32, "hiddenDim": 64, "batchSize": 32, "steps": 300,
         "heldOut": 96, "heldOutSeed": 5}  # fmt: skip


def plan(**changes):
    return {**SIZES, "numHeads": 2, "readOut": "linear", "lr": 0.03, "seed": 0, **changes}


def flat(tensors):
    return {name: tensor.flatten().tolist() for name, tensor in tensors.items()}


# The gradient


def draw_parameters(sizes, seed):
    """Parameters of a model of any size, by torch's names."""
    vocab, width, hidden = sizes["vocabSize"], sizes["embedDim"], sizes["hiddenDim"]
    shapes = {"embedding.weight": (vocab, width), "positions.encoding": (sizes["length"], width)}
    shapes |= {f"attention.{kind}_proj.weight": (width, width) for kind in ("q", "k", "v", "out")}
    if sizes["readOut"] == "MLP":
        shapes |= {"read_out.0.weight": (hidden, width), "read_out.0.bias": (hidden,)}
        shapes |= {"read_out.2.weight": (2 * vocab, hidden), "read_out.2.bias": (2 * vocab,)}
    else:
        shapes |= {"read_out.weight": (2 * vocab, width), "read_out.bias": (2 * vocab,)}
    generator = torch.Generator().manual_seed(seed)
    draw = lambda shape: torch.randn(shape, generator=generator, dtype=torch.float64)  # noqa: E731
    return {name: draw(shape) * 0.7 for name, shape in shapes.items()}


def torch_loss(parameters, tokens, targets, sizes):
    """The model in torch's own functions; none of the library's code is used."""
    p = parameters
    x = p["embedding.weight"][tokens] + p["positions.encoding"]
    split = lambda y: y.unflatten(-1, (sizes["numHeads"], -1)).transpose(1, 2)  # noqa: E731
    q, k, v = (split(F.linear(x, p[f"attention.{kind}_proj.weight"])) for kind in "qkv")
    heads = F.scaled_dot_product_attention(q, k, v).transpose(1, 2).flatten(2)
    y = F.linear(heads, p["attention.out_proj.weight"])
    if sizes["readOut"] == "MLP":
        y = F.relu(F.linear(y, p["read_out.0.weight"], p["read_out.0.bias"]))
        logits = F.linear(y, p["read_out.2.weight"], p["read_out.2.bias"])
    else:
        logits = F.linear(y, p["read_out.weight"], p["read_out.bias"])
    return F.cross_entropy(logits.reshape(-1, sizes["vocabSize"]), targets.flatten())


def loss_in_browser(page, parameters, tokens, targets, sizes):
    """What the page's module finds for a batch: the loss, and its gradient by name."""
    return in_browser(
        page,
        """const found = m.trainingRun(plan, typed(parameters), () => ({ tokens, targets })).look();
        return { loss: found.loss, gradient: found.gradient() };""",
        parameters=flat(parameters),
        tokens=tokens.flatten().tolist(),
        targets=targets.flatten().tolist(),
        plan=plan(**sizes),
    )


@pytest.mark.parametrize("read_out", ["linear", "MLP"])
@pytest.mark.parametrize(("num_heads", "head_dim", "length", "vocab", "hidden", "batch"), [
    (1, 7, 5, 3, 11, 2), (2, 3, 7, 5, 13, 11), (3, 5, 2, 11, 17, 7), (5, 2, 13, 7, 3, 1),
    (1, 32, 12, 8, 64, 32),
])  # fmt: skip
def test_gradient_is_that_of_autograd(math_page, read_out, num_heads, head_dim, length, vocab, hidden, batch):
    sizes = {"numHeads": num_heads, "embedDim": num_heads * head_dim, "length": length,
             "vocabSize": vocab, "hiddenDim": hidden, "readOut": read_out}  # fmt: skip
    parameters = draw_parameters(sizes, seed=batch)
    draw = torch.Generator().manual_seed(1)
    tokens, targets = pointer_batch(batch, vocab_size=vocab, length=length, generator=draw)
    for parameter in parameters.values():
        parameter.requires_grad_(True)
    loss = torch_loss(parameters, tokens, targets, sizes)
    loss.backward()
    found = loss_in_browser(math_page, parameters, tokens, targets, sizes)
    assert found["loss"] == pytest.approx(loss.item(), abs=1e-12)
    assert found["gradient"].keys() == parameters.keys()
    for name, parameter in parameters.items():
        assert parameter.grad.abs().max() > 1e-6, "or nothing would be compared"
        gradient = torch.tensor(found["gradient"][name], dtype=torch.float64)
        torch.testing.assert_close(gradient, parameter.grad.flatten(), atol=1e-10, rtol=1e-10, msg=name)


def test_cross_entropy_survives_large_logits(math_page):
    """The read-out's bias alone makes logits of ±2,000; a softmax without a shift would give NaN."""
    sizes = {"numHeads": 1, "embedDim": 3, "length": 2, "vocabSize": 5, "hiddenDim": 1, "readOut": "linear"}
    parameters = draw_parameters(sizes, seed=0)
    parameters["read_out.bias"] = 2000 * torch.tensor([1.0, -1, 0, 0.5, 0.2] * 2, dtype=torch.float64)
    parameters["attention.q_proj.weight"] *= 1000
    tokens, targets = torch.tensor([[0, 1]]), torch.tensor([[[2, 0], [1, 4]]])
    loss = torch_loss(parameters, tokens, targets, sizes)
    found = loss_in_browser(math_page, parameters, tokens, targets, sizes)
    assert found["loss"] == pytest.approx(loss.item(), rel=1e-12)
    assert all(math.isfinite(x) for numbers in found["gradient"].values() for x in numbers)


# The optimiser


@pytest.fixture(scope="module")
def experiment():
    """`experiments/common.py`: the model of the stored runs."""
    sys.path.insert(0, str(ROOT / "experiments"))
    yield __import__("common")
    sys.path.pop(0)


RUN = """const run = m.trainingRun(plan, typed(parameters), batches ? () => batches.shift() : undefined);
const records = [run.record()];
for (let i = 0; i < count; i++) {
  run.advance();
  records.push(run.record());
}
return records;"""


@pytest.mark.parametrize(("num_heads", "read_out"), [(1, "linear"), (2, "linear"), (8, "linear"), (2, "MLP")])
def test_training_curve_is_that_of_the_experiment(math_page, experiment, num_heads, read_out):
    """Fifty steps of `fit` on the experiment's model and data, from the same start, in float64."""
    usual = torch.get_default_dtype()
    torch.set_default_dtype(torch.float64)
    try:
        torch.manual_seed(3)
        model = experiment.PointerModel(num_heads, 2, read_out)
        start = {name: p.detach().clone() for name, p in model.named_parameters()}
        seen = []

        def make_batch(generator):
            seen.append(pointer_batch(32, generator=generator))
            return seen[-1]

        history = fit(model, make_batch, steps=50, lr=3e-2, records=50)
    finally:
        torch.set_default_dtype(usual)
    batches = [{"tokens": t.flatten().tolist(), "targets": y.flatten().tolist()} for t, y in seen]
    found = in_browser(
        math_page, RUN, parameters=flat(start), batches=batches, count=50,
        plan=plan(numHeads=num_heads, readOut=read_out, steps=50),
    )  # fmt: skip
    losses = torch.tensor([record["loss"] for record in found[1:]], dtype=torch.float64)
    torch.testing.assert_close(losses, history.losses[0].double(), atol=1e-9, rtol=1e-9)
    assert losses[-1] < losses[0] - 0.3, "it learns"
    assert [record["step"] for record in found] == list(range(51))
    assert found[0]["loss"] is None or math.isnan(found[0]["loss"])
    # The page's trained model, compared with torch's model after the same steps.
    both_right, roles, maps = head_training.measure(model.double())
    last = found[-1]
    assert last["bothRight"] == both_right.item()
    assert torch.allclose(torch.tensor(last["roles"], dtype=torch.float64), roles.flatten(), atol=1e-8)
    assert torch.allclose(torch.tensor(last["maps"], dtype=torch.float64), maps.flatten(), atol=1e-8)


@pytest.mark.parametrize(("num_heads", "read_out", "seed"), [(1, "linear", 9), (4, "MLP", 3)])
def test_run_of_a_seed_is_the_same_in_python(math_page, num_heads, read_out, seed):
    """The seed's start, batches and held-out sequences, and 50 of the 300 steps."""
    widget = HeadTraining(num_heads=num_heads, read_out=read_out, seed=seed, lr=0.01)
    model = widget.model()
    expected = list(head_training.train(model, widget.lr, widget.seed, 50))
    found = in_browser(
        math_page, RUN.replace("typed(parameters)", "undefined"), batches=None, count=50,
        plan=plan(numHeads=num_heads, readOut=read_out, seed=seed, lr=0.01),
    )  # fmt: skip
    losses = torch.tensor([record["loss"] for record in found[1:]])
    torch.testing.assert_close(losses, torch.tensor(expected), atol=1e-9, rtol=1e-9)
    ends = (found[0], widget.model()), (found[-1], model)
    for record, numbers in ((record, head_training.measure(own)) for record, own in ends):
        for name, number in zip(("bothRight", "roles", "maps"), numbers, strict=True):
            assert torch.allclose(torch.tensor(record[name]), number.flatten().float(), atol=1e-6), name


# The random numbers


def test_first_output_of_the_published_generator(math_page):
    """Numbers that mulberry32(0) is known for (github.com/bryc/code, PRNGs.md)."""
    run = "const random = m.randomNumbers(0, 0); return [0, 1, 2].map(() => random.uniform() * 2 ** 32);"
    found = in_browser(math_page, run)
    assert found == [1144304738, 1416247, 958946056]


def test_starts_are_distributed_as_torch_draws_them(math_page, experiment):
    """Each kind of parameter over ten seeds is distributed as in torch's models, by Kolmogorov's test."""
    for read_out in ("linear", "MLP"):
        plans = [plan(seed=seed, readOut=read_out) for seed in range(10)]
        starts = [in_browser(math_page, "return m.trainingRun(plan).parameters;", plan=one) for one in plans]
        torch.manual_seed(0)
        models = [experiment.PointerModel(2, 2, read_out) for _ in range(10)]
        for name, parameter in models[0].named_parameters():
            ours = [number for start in starts for number in start[name]]
            theirs = torch.cat([dict(model.named_parameters())[name].flatten() for model in models]).tolist()
            assert len(ours) == len(theirs) == 10 * parameter.numel()
            assert stats.ks_2samp(ours, theirs).pvalue > 1e-3, name
            if "proj" in name or "read_out" in name:
                assert max(map(abs, ours)) <= max(map(abs, theirs)) * 1.02, name
            spreads = [torch.tensor(numbers).std().item() for numbers in (ours, theirs)]
            assert spreads[0] == pytest.approx(spreads[1], rel=max(0.03, 3 / len(ours) ** 0.5))
        assert starts[0].keys() == dict(models[0].named_parameters()).keys()


def test_seeds_differ_and_batches_are_uniform(math_page):
    draws = [
        in_browser(
            math_page,
            """const random = m.randomNumbers(seed, 1);
            return m.pointerBatch(random, 300, plan);""",
            seed=seed,
            plan=plan(),
        )
        for seed in range(10)
    ]
    assert len({tuple(draw["tokens"]) for draw in draws}) == 10
    counts = torch.bincount(torch.tensor([draw["tokens"] for draw in draws]).flatten(), minlength=8)
    assert stats.chisquare(counts).pvalue > 1e-3
    for draw in draws[:2]:
        tokens = torch.tensor(draw["tokens"]).unflatten(0, (-1, 12))
        expected = torch.stack((tokens.roll(1, -1), tokens.flip(-1)), -1)
        assert torch.equal(torch.tensor(draw["targets"]).view_as(expected), expected)


def test_held_out_sequences_have_exactly_the_share_of_the_line():
    tokens, targets = HeadTraining().held_out()
    assert tokens.shape == (96, 12)
    assert (targets[..., 0] == targets[..., 1]).double().mean().item() == 13 / 48
    batches = list(HeadTraining(seed=4).batches())
    assert len(batches) == 300
    for inputs, wanted in batches:
        assert torch.equal(wanted, torch.stack((inputs.roll(1, -1), inputs.flip(-1)), -1))
    assert not any(torch.equal(t[0], tokens[0]) for t, _ in batches)


def test_start_leaves_torchs_random_numbers_alone():
    torch.manual_seed(0)
    expected = torch.rand(3)
    torch.manual_seed(0)
    HeadTraining().model()
    assert torch.equal(torch.rand(3), expected)


# The results of the seeds


# How the ten seeds end: how many have all positions right, and how many are at 13/48.
ENDS = {
    (1, "linear", 0.03): (0, 10), (2, "linear", 0.03): (9, 1), (2, "linear", 0.01): (10, 0),
    (1, "MLP", 0.03): (10, 0),
}  # fmt: skip


@pytest.mark.parametrize(("num_heads", "read_out", "lr"), ENDS)
def test_as_many_seeds_reach_the_end_as_the_page_says(math_page, num_heads, read_out, lr):
    records = in_browser(
        math_page,
        """return Array.from({ length: 10 }, (_, seed) => {
          const run = m.trainingRun({ ...plan, seed });
          for (let i = 0; i < plan.steps; i++) run.advance();
          return run.record();
        });""",
        plan=plan(numHeads=num_heads, readOut=read_out, lr=lr),
    )
    shares = torch.tensor([record["bothRight"] for record in records], dtype=torch.float64)
    right, stalled = (int((shares - end).abs().lt(0.002).sum()) for end in (1, 13 / 48))
    assert (right, stalled) == ENDS[num_heads, read_out, lr], shares
    if (num_heads, read_out, lr) != (2, "linear", 0.03):
        return
    # Which head looks at the previous token differs among the seeds that succeed.
    roles = torch.tensor([record["roles"] for record in records]).view(10, 2, 2)[shares > 0.99]
    assert roles.amax(1).min() > 0.8
    assert roles.argmax(1)[:, 0].tolist() == [1, 1, 1, 1, 0, 1, 1, 0, 1]
    assert shares[9] < 0.3
    text = " ".join(HeadTraining.__doc__.split())
    assert "one head ends at 13/48 with all ten seeds" in text
    assert "two heads get every position right with nine; the tenth, seed 9, also ends at 13/48" in text


def curve_points(host, index, kind):
    """The points of a curve on one of the two planes, turned back into steps and values."""
    plane = host.locator(".mha-plane").nth(index)
    path = plane.locator(f".mha-curve.mha-{kind}").get_attribute("d") or ""
    points = torch.tensor([[float(x) for x in pair.split()] for pair in re.findall(r"[ML]([\d. -]+)", path)])
    top = (2.5, 1.0)[index]
    if not len(points):
        return points.reshape(0, 2)
    return torch.stack((points[:, 0] * 3, (1 - points[:, 1] / 100) * top), -1)


def colors_of(host, head):
    """The colours of a head's map, (12, 12, 3)."""
    return map_pixels(host.locator(".mha-heads canvas").nth(head))[..., :3]


def press(host, name):
    host.get_by_role("button", name=name, exact=True).click()


def at_step(host):
    return int(host.locator(".mha-transport .mha-value").inner_text().split(" of ")[0])


def play_to(host, step):
    """Play until a step is reached, and pause."""
    press(host, "▶ Play")
    expect(host.locator(".mha-play")).to_have_text("❚❚ Pause")
    while at_step(host) < step:
        host.page.wait_for_timeout(20)
    press(host, "❚❚ Pause")


def drag(host, step):
    """Move the slider of the steps."""
    host.get_by_role("slider", name="step").evaluate(
        """(node, step) => {
          node.value = step;
          node.dispatchEvent(new Event("input", { bubbles: true }));
        }""",
        step,
    )


def look_at(host, step):
    drag(host, step)
    expect(host.locator(".mha-transport .mha-value")).to_have_text(f"{step} of 300")


def roles_seen(host):
    """The numbers below each map: weight on the previous and on the mirrored place."""
    parts = host.locator(".mha-role").all()
    return [[float(text) for text in part.locator("b").all_inner_texts()] for part in parts]


@pytest.mark.parametrize("over", ["http", "disk"])
def test_curves_and_maps_are_those_of_torch(show, over):
    """Played in a worker, under the page's security policy, and looked back at: the state after 70 steps."""
    widget = HeadTraining(num_heads=2, seed=3)
    host = show(widget, over=over)
    page = host.page
    assert page.workers == []
    play_to(host, 74)
    assert len(page.workers) == 1
    look_at(host, 70)

    model = widget.model()
    losses = list(head_training.train(model, widget.lr, widget.seed, 70))
    both_right, roles, maps = head_training.measure(model)
    points = curve_points(host, 0, "now")
    assert points[:70, 0].tolist() == pytest.approx(list(range(1, 71)), abs=0.02)
    assert points[:70, 1].tolist() == pytest.approx(losses, abs=2e-3)
    shares = curve_points(host, 1, "now")
    assert shares[0].tolist() == pytest.approx([0, widget.numbers()["start_both_right"].item()], abs=1e-3)
    assert shares[70].tolist() == pytest.approx([70, both_right.item()], abs=0.02)
    assert curve_points(host, 1, "truth")[:, 1].tolist() == pytest.approx([13 / 48] * 2, abs=1e-3)
    facts = host.locator(".mha-curves .mha-name")
    assert facts.all_inner_texts() == [
        f"loss of the batch: {losses[-1]:.2f}", f"both answers right: {100 * both_right:.0f}\xa0%"
    ]  # fmt: skip
    assert torch.allclose(torch.tensor(roles_seen(host)), roles.float(), atol=0.0051)
    assert maps.max() > 0.2, "there is something to see"
    for head in range(2):
        # Viridis goes from dark to bright: its green channel grows with the weight.
        green = colors_of(host, head)[..., 1].flatten()
        order = maps[head].flatten().argsort()
        assert (green[order].diff() >= 0).all()
        assert green[order[0]] < 40
    bold = [["mha-now" in (row.get_attribute("class") or "") for row in part.locator("> span").all()]
            for part in host.locator(".mha-role").all()]  # fmt: skip
    assert bold == (roles > 0.8).tolist()


def test_whole_run_ends_as_the_text_says_and_stays_for_comparison(show):
    """One head to the end, then two: the earlier curve stays, pale; the heads divide the work."""
    host = show(HeadTraining(seed=4))
    page = host.page
    note = host.locator(".mha-body > .mha-hint")
    expect(note).not_to_contain_text("Pale")
    press(host, "▶ Play")
    expect(host.locator(".mha-play")).to_have_text("▶ Play again")
    assert at_step(host) == 300
    expect(host.get_by_role("status")).to_contain_text("Step 300, loss 0.3")
    assert host.locator(".mha-curves .mha-name").nth(1).inner_text() == "both answers right: 27\xa0%"
    one = curve_points(host, 1, "now")
    assert len(one) == 301
    assert host.get_by_role("button", name="One step").get_attribute("aria-disabled") == "true"
    host.get_by_role("button", name="One step").evaluate("node => node.click()")
    host.locator("input[value='2']").check(force=True)
    assert at_step(host) == 0
    assert torch.equal(curve_points(host, 1, "faint"), one)
    expect(note).to_contain_text("Pale lines: the run before, 1 head, linear, seed 4: 27 %.")
    press(host, "▶ Play")
    expect(host.locator(".mha-play")).to_have_text("▶ Play again")
    assert host.locator(".mha-curves .mha-name").nth(1).inner_text() == "both answers right: 100\xa0%"
    (first, second) = roles_seen(host)
    assert min(first[0], second[1]) > 0.8
    assert max(first[1], second[0]) < 0.2
    press(host, "▶ Play again")
    expect(host.locator(".mha-play")).to_have_text("❚❚ Pause")
    assert at_step(host) < 100
    expect(note).to_contain_text("2 heads, linear, seed 4: 100 %.")
    assert page.locator(".mha-problem:visible").count() == 0


def test_pause_one_step_and_going_back(show):
    host = show(HeadTraining(), script=HOLD)
    page = host.page
    slider = host.get_by_role("slider", name="step")
    expect(slider).to_be_disabled()
    for step in (1, 2, 3):
        press(host, "One step")
        expect(host.locator(".mha-transport .mha-value")).to_have_text(f"{step} of 300")
    expect(slider).to_be_enabled()
    play_to(host, 10)
    until_drawn(page)
    stopped = at_step(host)
    until_drawn(page)
    assert at_step(host) == stopped
    assert stopped == len(curve_points(host, 1, "now")) - 1
    look_at(host, 2)
    assert len(curve_points(host, 1, "now")) == stopped + 1, "what was learned stays"
    assert curve_points(host, 0, "cursor")[:, 0].tolist() == pytest.approx([2, 2], abs=0.02)
    drag(host, 299)
    assert at_step(host) == stopped, "no further than it was trained"
    assert int(slider.input_value()) == stopped
    look_at(host, 2)
    press(host, "One step")
    expect(host.locator(".mha-transport .mha-value")).to_have_text(f"{stopped + 1} of 300")


# The worker's answers wait while `holds` is true, as on a busy machine. `underWay` counts the
# requests that have not been answered yet.
HOLD = """window.held = [];
window.holds = false;
window.underWay = 0;
window.release = () => {
  holds = false;
  for (const answer of held.splice(0)) answer();
};
window.Worker = class extends Worker {
  postMessage(request) {
    underWay++;
    super.postMessage(request);
  }
  set onmessage(listener) {
    super.onmessage = (event) => {
      const answer = () => {
        underWay--;
        listener(event);
      };
      if (holds) held.push(answer);
      else answer();
    };
  }
}"""
DRAWN = """() => new Promise((resolve) => {
  let quiet = 0;
  const look = () => {
    quiet = underWay ? 0 : quiet + 1;
    if (quiet < 4) requestAnimationFrame(look);
    else resolve();
  };
  look();
})"""


def until_drawn(page):
    """Return when all answers are drawn: one that is drawn may ask for more, in the frame after."""
    page.evaluate(DRAWN)


def hold_an_answer(page):
    """From now on answers wait; one is there when this returns."""
    page.evaluate("window.holds = true")
    while not page.evaluate("held.length"):
        page.wait_for_timeout(10)


@pytest.fixture
def held_tab(show):
    """A widget that played to step 20 at least, and the answer that is still under way."""
    host = show(HeadTraining(num_heads=2), script=HOLD)
    page = host.page
    press(host, "▶ Play")
    while at_step(host) < 20:
        page.wait_for_timeout(20)
    hold_an_answer(page)
    return page, host


@pytest.mark.parametrize("by", ["click", "drag", "key"])
def test_the_slider_stays_where_the_reader_puts_it_while_it_plays(held_tab, by):
    """An answer that arrives after it draws the curve on, but shows the step that the reader chose."""
    page, host = held_tab
    slider = host.get_by_role("slider", name="step")
    trained = len(curve_points(host, 1, "now")) - 1
    box = slider.bounding_box()
    at = lambda step: (box["x"] + box["width"] * step / 300, box["y"] + box["height"] / 2)  # noqa: E731
    if by == "click":
        page.mouse.click(*at(10))
    elif by == "drag":
        page.mouse.move(*at(trained))
        page.mouse.down()
        for step in (trained - 2, trained - 5, trained // 2):
            page.mouse.move(*at(step))
    else:
        slider.press("ArrowLeft")
    chosen = at_step(host)
    assert chosen < trained
    assert host.locator(".mha-play").inner_text() == "▶ Play"
    looks = [colors_of(host, head) for head in range(2)]
    page.evaluate("release()")
    until_drawn(page)
    if by == "drag":
        page.mouse.up()
    assert len(curve_points(host, 1, "now")) - 1 == trained + 2, "the answer arrived"
    assert at_step(host) == int(slider.input_value()) == chosen
    assert curve_points(host, 0, "cursor")[:, 0].tolist() == pytest.approx([chosen] * 2, abs=0.02)
    assert all(torch.equal(colors_of(host, head), looks[head]) for head in range(2))
    # When a reader resumes, the newest step is shown again.
    play_to(host, trained + 6)
    until_drawn(page)
    assert at_step(host) == len(curve_points(host, 1, "now")) - 1


def test_single_steps_are_taken_after_the_answer_that_is_under_way(held_tab):
    page, host = held_tab
    stopped = at_step(host)
    press(host, "❚❚ Pause")
    for _ in range(2):
        press(host, "One step")
    assert at_step(host) == stopped
    page.evaluate("release()")
    expect(host.locator(".mha-transport .mha-value")).to_have_text(f"{stopped + 2 + 2} of 300")
    until_drawn(page)
    assert at_step(host) == len(curve_points(host, 1, "now")) - 1 == stopped + 4
    assert host.locator(".mha-play").inner_text() == "▶ Play"


@pytest.mark.parametrize("instead", ["reset", "slider", "play"])
def test_single_steps_that_wait_are_forgotten_if_the_reader_does_something_else(held_tab, instead):
    page, host = held_tab
    stopped = at_step(host)
    for _ in range(3):
        press(host, "One step")
    if instead == "reset":
        host.locator(".mha-reset").click()
    elif instead == "slider":
        look_at(host, 4)
    else:
        press(host, "▶ Play")
        press(host, "❚❚ Pause")
    page.evaluate("release()")
    until_drawn(page)
    trained, shown = {"reset": (0, 0), "slider": (stopped + 2, 4)}.get(instead, (stopped + 2, stopped + 2))
    assert len(curve_points(host, 1, "now")) - 1 == trained
    assert at_step(host) == shown
    press(host, "One step")
    expect(host.locator(".mha-transport .mha-value")).to_have_text(f"{trained + 1} of 300")


CHANGES = {
    "heads": "input[type=radio][value='4']", "read-out": "input[type=radio][value=MLP]",
    "the same heads": "input[type=radio][value='1']", "reset": ".mha-reset",
}  # fmt: skip


@pytest.mark.parametrize("change", CHANGES)
def test_a_change_starts_anew_and_late_answers_are_ignored(show, change):
    """Whoever touches a setting while the training runs starts at step 0, paused."""
    host = show(HeadTraining())
    page = host.page
    untrained = colors_of(host, 0)
    press(host, "▶ Play")
    while at_step(host) < 6:
        page.wait_for_timeout(20)
    control = host.locator(CHANGES[change])
    if change == "the same heads":
        # A slider released where it was sends an event, but its setting stays.
        event = "node => node.dispatchEvent(new Event('input', { bubbles: true }))"
        host.get_by_role("slider", name="seed").evaluate(event)
    else:
        control.evaluate("node => node.click()")
    expect(host.locator(".mha-play")).to_have_text("▶ Play")
    for _ in range(2):
        assert at_step(host) == 0
        assert len(curve_points(host, 1, "now")) == 1
        assert curve_points(host, 0, "now").shape == (0, 2)
        assert len(curve_points(host, 1, "faint")) == 0, "only a run to the end is worth comparing"
        page.wait_for_timeout(400)
    if change in ("reset", "the same heads"):
        assert torch.equal(colors_of(host, 0), untrained)
    assert host.locator(".mha-heads canvas").count() == (4 if change == "heads" else 1)
    press(host, "One step")
    expect(host.locator(".mha-transport .mha-value")).to_have_text("1 of 300")
    assert len(curve_points(host, 0, "now")) == 1


REFUSED = {
    "no workers": "delete window.Worker",
    "refused at once": """window.Worker = class {
      constructor() { throw new DOMException("no", "SecurityError"); }
    }""",
    "refused later": """window.Worker = class {
      constructor() { setTimeout(() => this.onerror(new Event("error", { cancelable: true })), 50); }
      postMessage() {}
      terminate() {}
    }""",
    "after some steps": """window.Worker = class extends Worker {
      postMessage(request) {
        if (request.from < 3) super.postMessage(request);
        else setTimeout(() => this.onerror(new Event("error", { cancelable: true })));
      }
    }""",
    "by the policy": """document.addEventListener("DOMContentLoaded", () => {
      const meta = document.createElement("meta");
      meta.httpEquiv = "Content-Security-Policy";
      meta.content = "worker-src 'none'";
      document.head.append(meta);
    })""",
}


@pytest.mark.parametrize("how", REFUSED)
def test_without_workers_it_trains_in_frames(reader, tmp_path, how):
    tab = reader()
    tab.page.add_init_script(REFUSED[how])
    widget = HeadTraining(num_heads=2, read_out="MLP")
    page = tab.open(write_page(tmp_path, [widget]), 1)
    host = tab.host()
    play_to(host, 8)
    page.wait_for_timeout(300)
    expected = list(head_training.train(widget.model(), widget.lr, widget.seed, 8))
    points = curve_points(host, 0, "now")
    assert points[:8, 0].tolist() == pytest.approx(list(range(1, 9)), abs=0.02)
    assert points[:8, 1].tolist() == pytest.approx(expected, abs=2e-3)
    assert len(points) == at_step(host)
    # When a policy blocks something, the console has an entry, which no page can prevent.
    assert [error for error in tab.errors if "Content Security Policy" not in error] == []
    tab.errors.clear()


def test_worker_ends_with_the_view(browser, tmp_path):
    page = browser.new_page()
    page.goto(write_page(tmp_path, [HeadTraining()]).as_uri())
    expect(page.locator("[data-widget=ready]")).to_have_count(1)
    hand = ByHand(page, HeadTraining(seed=1))
    hand.host.get_by_role("button", name="▶ Play").click()
    while at_step(hand.host) < 4:
        page.wait_for_timeout(20)
    assert len(page.workers) == 1
    hand.clean_up()
    page.wait_for_timeout(300)
    assert page.workers == []
    page.close()


def test_a_change_costs_the_page_one_measurement_and_one_loss(browser, tmp_path):
    """The page's own thread draws the start and computes one loss for Python; a step of training it does not.

    Work is counted by its exponentials, one for each weight and each logit, and by its square roots, of which
    an update takes one for each of the 5,300 parameters.
    """
    page = browser.new_page()
    page.goto(write_page(tmp_path, [HeadTraining()]).as_uri())
    expect(page.locator("[data-widget=ready]")).to_have_count(1)
    widget = HeadTraining(num_heads=2, seed=1)
    hand = ByHand(page, widget)
    hand.report()
    page.evaluate(
        """() => {
          window.calls = { exp: 0, sqrt: 0 };
          for (const name of ["exp", "sqrt"]) {
            const usual = Math[name];
            Math[name] = (number) => {
              calls[name]++;
              return usual(number);
            };
          }
        }"""
    )
    hand.set(seed=2)
    found = hand.report()
    weights = 12 * 12 * 2
    drawn = 8 * 32 + 12 * 32  # normal numbers, each of which takes a square root
    calls = page.evaluate("window.calls")
    assert calls["exp"] == 96 * weights + 32 * (weights + 12 * 2 * 8)
    assert drawn < calls["sqrt"] < drawn + 50
    widget.seed = 2
    # The loss from torch's own function.
    tokens, targets = next(widget.batches())
    expected = F.cross_entropy(widget.model()(tokens).flatten(0, 2), targets.flatten())
    assert found["numbers"]["first_loss"] == pytest.approx(expected.item(), abs=1e-12)
    hand.clean_up()
    page.close()


def test_program_trains_the_run_of_the_page(show):
    """The copied program says at which loss the page's run ends, and can be changed."""
    code = copied_code(show(HeadTraining(num_heads=2, seed=7, lr=0.01)))
    assert "num_heads = 2\n" in code and "seed = 7\n" in code
    assert len(code.splitlines()) < 50
    variables = {}
    exec(code, variables)  # noqa: S102, what a reader does with it
    assert variables["both_right"] > 0.99
    assert len(variables["losses"]) == 300 and variables["losses"][-1] < 0.1
    expected = list(head_training.train(head_training.start_model(2, "linear", 7), 0.01, 7, 20))
    assert variables["losses"][:20] == pytest.approx(expected, abs=1e-12)
