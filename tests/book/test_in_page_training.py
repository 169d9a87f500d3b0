"""The buttons "Train your layer" and "Train your GPT": the reader's own pieces learn in the page."""

import inspect
import json
import math
import re
from collections import Counter, defaultdict
from itertools import pairwise

import pytest
import torch
import torch.nn.functional as F
from playwright.sync_api import expect

from mha_course import built, in_page
from mha_course.data.book_text import book_text
from mha_course.experiments import load_experiment

KEY = "mha-course/write-here/"
LAYER = "chapters/03_multi_head_attention.html", "MyMultiHead", "Train your layer"
DATES = "chapters/06_transformer.html", "MyEncoderBlock", "Train your Transformer"
GPT = "chapters/07_gpt.html", "MyGPT", "Train your GPT"
OWN = """class MyMultiHead(nn.Module):
    def __init__(self, embed_dim, num_heads, kdim=None, vdim=None, bias=False):
        super().__init__()
        self.one = nn.Linear(embed_dim, embed_dim)
        self.num_heads = num_heads

    def forward(self, query, key, value, mask=None):
        BODY
"""
UNIFORM = "return self.one(value), torch.full((len(query), self.num_heads, 12, 12), 1 / 12)"
BOOK = book_text("train"), book_text("test")
TRAINED = 150_000  # milliseconds; a page beside other tests is slow


@pytest.fixture
def train(browser, book):
    """Open the page with an accepted layer of the reader's, or without, and press the button."""
    contexts = []

    def press(accepted=None, place=LAYER):
        address, piece, label = place
        contexts.append(browser.new_context())
        page = contexts[-1].new_page()
        page.goto(f"{book.as_uri()}/{address}")
        if accepted:
            kept = json.dumps({"draft": accepted, "accepted": accepted})
            page.evaluate("([key, kept]) => localStorage.setItem(key, kept)", [KEY + piece, kept])
            page.reload()
        page.get_by_role("button", name=label).click()
        return page.get_by_role("group", name=label)

    yield press
    for context in contexts:
        context.close()


def losses_of_torch(num_heads, steps):
    """The losses of the chapter's loop with the course's layer."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        model = built.TwoPointers(num_heads)
        optimizer = torch.optim.Adam(model.parameters(), lr=0.01)
        for _ in range(steps):
            tokens = torch.randint(8, (64, 12))
            targets = torch.stack([tokens.roll(1, 1), tokens.flip(1)], dim=-1)
            loss = F.cross_entropy(model(tokens).flatten(0, 2), targets.flatten())
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            yield loss.item()


def test_the_layer_of_the_course_learns_as_in_the_chapter(train):
    panel = train()
    expect(panel).to_contain_text("so the course's learns here")
    expect(panel.get_by_role("status")).to_have_text("Trained.", timeout=TRAINED)
    shares = re.findall(r"correct at (\d+)% of 2,400", panel.inner_text())
    assert len(shares) == 2 and int(shares[0]) < 64 and int(shares[1]) > 95
    assert panel.get_by_role("img", name="Mean attention weights").count() == 3
    for num_heads in (1, 2):
        points = panel.locator(f".train-line.train-{num_heads}").get_attribute("points").split()
        heights = [float(point.split(",")[1]) for point in points]
        assert len(heights) == 300
        expected = [100 * (1 - min(loss, 2.5) / 2.5) for loss in losses_of_torch(num_heads, 60)]
        assert heights[:60] == pytest.approx(expected, abs=0.06)
    wrong = panel.locator(".train-wrong").count()
    assert 0 < wrong < 24


def test_the_readers_own_layer_is_used_stopped_and_started_again(train):
    panel = train(OWN.replace("BODY", UNIFORM))
    expect(panel).to_contain_text("This is your own MyMultiHead")
    legend = panel.locator(".train-1").last
    expect(legend).to_contain_text("loss", timeout=TRAINED)
    panel.get_by_role("button", name="Stop").click()
    expect(panel.get_by_role("status")).to_have_text("Stopped.")
    panel.page.wait_for_timeout(1500)
    said = legend.inner_text()
    panel.page.wait_for_timeout(1000)
    assert legend.inner_text() == said
    panel.get_by_label("Seed").fill("3")
    panel.get_by_role("button", name="Start again").click()
    expect(panel.get_by_role("status")).to_have_text("Trained.", timeout=TRAINED)
    # A layer that looks nowhere cannot name a token better than the frequencies of the row allow.
    shares = re.findall(r"correct at (\d+)% of 2,400", panel.inner_text())
    assert len(shares) == 2 and max(map(int, shares)) < 30


@pytest.mark.parametrize(("body", "said"), [
    ("return query[:, :5], None", "has the shape (2, 5, 32), expected (2, 12, 32)"),
    ("return query", "returns two things"),
    ("return self.two(query), None", "'MyMultiHead' object has no attribute 'two'"),
    ("return self.one(value) / 0, None", "numbers that are infinite or NaN, before any training"),
    ("return self.one(value) / (1 - value.requires_grad), None",
     "at step 1 the loss is nan, and no later step can repair that"),
    ("while True: pass", "still running after 20 seconds"),
])  # fmt: skip
def test_a_layer_that_fails_gets_a_sentence_and_the_page_goes_on(train, body, said):
    panel = train(OWN.replace("BODY", body))
    expect(panel.locator("pre")).to_contain_text(said, timeout=TRAINED)
    panel.page.evaluate("key => localStorage.removeItem(key)", KEY + "MyMultiHead")
    panel.get_by_role("button", name="Start again").click()
    expect(panel.locator(".train-1").last).to_contain_text("loss", timeout=TRAINED)
    expect(panel.locator("pre")).to_have_count(0)


def bigram_loss(text, held_out):
    """The held-out loss of a bigram as the chapter counts it."""
    size, following = len(set(text + held_out)), defaultdict(Counter)
    following[""] = Counter(text)
    for before, after in pairwise(text):
        following[before][after] += 1
    total = 0.0
    for before, after in zip(("", *held_out), held_out, strict=False):
        p = 1 / size
        for seen in (following[""], following[before] if before else {}):
            if seen:
                kept = max(seen[after] - 0.7, 0)
                p = (kept + 0.7 * len(seen) * p) / seen.total()
        total -= math.log(p)
    return total / len(held_out)


def gpt_losses_of_torch(steps, text, held_out):
    """The losses of the chapter's loop with the course's GPT, as small as that of the page."""
    characters = sorted(set(text + held_out))
    ids = {character: i for i, character in enumerate(characters)}
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        model = built.MyGPT(len(characters), 32, 2, 1, 32)
        tokens = torch.tensor([ids[character] for character in text])
        loop = built.train_gpt(model, tokens, 500, 0.02, 0)
        return [loss for (_, loss), _ in zip(loop, range(steps), strict=False)]


def test_the_readers_gpt_learns_the_book_and_what_it_wrote_is_kept(train):
    own = inspect.getsource(built.MyGPT)
    panel = train(own, GPT)
    expect(panel).to_contain_text("This is your own MyGPT")
    expect(panel).to_contain_text("This uses your MyGPT, and the course's MyEncoderBlock, my_causal_mask,")
    expect(panel).to_contain_text("After 125 steps:", timeout=2 * TRAINED)
    expect(panel.locator(".train-text").last).to_have_text(re.compile(r"Each head .{16,}", re.DOTALL))
    panel.get_by_role("button", name="Stop").click()
    floor = float(re.search(r"held-out text, (\d\.\d\d)", panel.inner_text())[1])
    assert floor == pytest.approx(bigram_loss(*BOOK), abs=0.006)
    texts = panel.locator(".train-text").all_inner_texts()
    assert len(texts) == 2 and len(texts[0]) == 130 and texts[0].startswith("Each head ")
    page = panel.page
    kept = json.loads(page.evaluate("localStorage.getItem('mha-course/trained/gpt')"))
    losses = kept["story"]["losses"]["0"]
    assert len(losses) >= 125 and losses[:50] == pytest.approx(gpt_losses_of_torch(50, *BOOK), abs=1e-4)
    assert sum(losses[-20:]) / 20 < 3
    page.reload()
    page.get_by_role("button", name="Train your GPT").click()
    expect(panel.get_by_role("status")).to_have_text("Kept from your last training.")
    assert panel.locator(".train-text").all_inner_texts() == texts
    panel.get_by_role("button").first.click()
    expect(panel.locator(".train-text")).to_have_count(1, timeout=TRAINED)


def halves(text):
    """A text as the page divides it, into training and its held-out last tenth."""
    return text[: len(text) * 9 // 10], text[len(text) * 9 // 10 :]


def choose(panel, name, own=None):
    """Stop the training with which the panel opens, choose a text, and start."""
    panel.get_by_role("button", name="Stop").click()
    panel.get_by_role("combobox", name="Text").select_option(label=name)
    if own is not None:
        panel.get_by_label("Your text").fill(own)
    panel.get_by_role("button", name="Start").click()


@pytest.mark.parametrize(("file", "name", "prompt"), [
    ("text_sonnets", "Shakespeare's sonnets", "Shall I "),
    ("text_code", "The code of this course's library", "def "),
])  # fmt: skip
def test_a_text_of_the_book_is_learned_and_named(train, file, name, prompt):
    """Its numbers are its own, and it is loaded only when somebody chooses it."""
    panel = train(inspect.getsource(built.MyGPT), GPT)
    loaded = "() => [...document.scripts].map((one) => one.src).join()"
    expect(panel).to_contain_text("It learns: The text of this course.")
    assert "text_" not in panel.page.evaluate(loaded)
    choose(panel, name)
    expect(panel).to_contain_text(f"It learns: {name}. At temperature 0.8 it continues “{prompt.strip()}”.")
    many = re.compile(r"step ([3-9]\d|\d{3})")
    expect(panel.locator(".train-1").last).to_have_text(many, timeout=TRAINED)
    panel.get_by_role("button", name="Stop").click()
    assert panel.page.evaluate(loaded).count("text_") == 1
    parts = halves(in_page.texts_to_learn()[file])
    floor = float(re.search(r"held-out text, (\d\.\d\d)", panel.inner_text())[1])
    assert floor == pytest.approx(bigram_loss(*parts), abs=0.006)
    kept = json.loads(panel.page.evaluate("localStorage.getItem('mha-course/trained/gpt')"))
    assert kept["story"]["losses"]["0"][:30] == pytest.approx(gpt_losses_of_torch(30, *parts), abs=1e-4)
    [written] = panel.locator(".train-text").all_inner_texts()
    assert written.startswith(prompt) and len(written) == len(prompt) + 120
    panel.page.reload()
    panel.page.get_by_role("button", name="Train your GPT").click()
    expect(panel.get_by_role("status")).to_have_text("Kept from your last training.")
    expect(panel).to_contain_text(f"It learns: {name}.")
    assert panel.get_by_role("combobox", name="Text").locator("option:checked").inner_text() == name
    assert panel.locator(".train-text").all_inner_texts() == [written]


# Ten thousand characters of which 1,501 are different.
MANY = "".join(chr(0x4E00 + n * n % 3001) for n in range(10_000))


@pytest.mark.parametrize(("text", "highest"), [("Großmutter häkelt 🧶.\n" * 200, 5), (MANY, 8)])
def test_a_reader_trains_on_a_text_of_their_own(train, text, highest):
    panel = train(place=GPT)
    choose(panel, "A text of your own", text)
    expect(panel).to_contain_text("It learns: A text of your own.")
    expect(panel).to_contain_text(f"Loss from 0 (bottom) to {highest} (top)")
    expect(panel.locator(".train-1").last).to_contain_text("step 1", timeout=TRAINED)
    panel.get_by_role("button", name="Stop").click()
    floor = float(re.search(r"held-out text, (\d\.\d\d)", panel.inner_text())[1])
    assert floor == pytest.approx(bigram_loss(*halves(text.strip())), abs=0.006)
    assert panel.locator(".train-text").inner_text().startswith(text[:10])
    panel.page.reload()
    panel.page.get_by_role("button", name="Train your GPT").click()
    assert panel.get_by_label("Your text").input_value() == text


@pytest.mark.parametrize(("text", "said"), [
    ("", "0 characters are too few: the model learns a text of 3,000 to 200,000."),
    ("🧶 " + "so " * 900, "2,701 characters are too few: the model learns a text of 3,000 to 200,000."),
    ("so " * 70_000, "209,999 characters are too many: the model learns a text of 3,000 to 200,000."),
])  # fmt: skip
def test_a_text_that_does_not_fit_is_refused_and_nothing_is_trained(train, text, said):
    panel = train(place=GPT)
    expect(panel.locator(".train-text")).to_have_count(1, timeout=TRAINED)
    choose(panel, "A text of your own", text)
    expect(panel.get_by_role("status")).to_have_text(said)
    expect(panel.get_by_label("Your text")).to_be_focused()
    expect(panel.get_by_label("Your text")).to_have_attribute("aria-invalid", "true")
    expect(panel).to_contain_text("It learns: The text of this course.")
    expect(panel.get_by_role("button", name="Stop")).to_be_disabled()


def test_the_choice_works_from_the_keyboard_on_a_narrow_screen(train):
    panel = train(place=GPT)
    page = panel.page
    page.set_viewport_size({"width": 360, "height": 740})
    panel.get_by_role("combobox", name="Text").focus()
    page.keyboard.type("A text")
    page.keyboard.press("Tab")
    expect(panel.get_by_label("Your text")).to_be_focused()
    page.keyboard.insert_text("The moon is old. " * 200)
    expect(panel).to_contain_text("3,399 characters, of which the last tenth is held out.")
    for one in (panel.get_by_role("combobox", name="Text"), panel.get_by_label("Your text")):
        box = one.bounding_box()
        assert box["x"] >= 0 and box["x"] + box["width"] <= 360
    page.keyboard.press("Tab")
    expect(panel.get_by_role("button", name="Start with this text")).to_be_focused()
    page.keyboard.press("Enter")
    expect(panel).to_contain_text("It learns: A text of your own.")


def test_the_held_out_loss_stands_beside_what_it_is_compared_with(train):
    """The chapter's number belongs to the chapter's text alone."""
    panel = train(place=GPT)
    page = panel.page
    panel.get_by_role("button", name="Stop").click()
    kept = {"seed": "0", "story": {"losses": {"0": [3.5]}, "results": [{"held_out": 2.345}], "floor": 2.4}}
    stored = load_experiment("gpt").results("GPT", "held-out loss")[0, -1]
    larger = f" The chapter's GPT, which is larger and was trained longer: {stored:.2f}."
    sonnets = {"name": "sonnets", "prompt": "Shall I ", "highest": 5}
    for chosen, said in ({}, f"The bigram: 2.40.{larger}"), (sonnets, "The bigram, on the same text: 2.40."):
        # What was kept before there was a choice names no text.
        entry = json.dumps(kept | ({"chosen": chosen} if chosen else {}))
        page.evaluate("entry => localStorage.setItem('mha-course/trained/gpt', entry)", entry)
        page.reload()
        page.get_by_role("button", name="Train your GPT").click()
        expect(panel.get_by_role("log")).to_have_text(f"Held-out loss: 2.35. {said}")


def test_the_texts_are_what_the_page_says_of_them():
    sonnets = in_page.texts_to_learn()["text_sonnets"]
    assert len(sonnets) == 94_039 and len(sonnets.split("\n\n")) == 154
    assert all(len(text.encode()) < 150_000 for text in in_page.texts_to_learn().values())


def date_losses_of_torch(steps):
    """The losses of chapter 6's loop on the dates that the page has."""
    space = {}
    exec(in_page.english_dates(), space)  # noqa: S102
    letters = sorted(set("".join(text for text, _ in space["TRAIN"])))
    longest = max(len(text) for text, _ in space["TRAIN"])
    rows = [[letters.index(one) + 1 for one in text] for text, _ in space["TRAIN"]]
    sources = torch.tensor([row + [0] * (longest - len(row)) for row in rows])
    targets = torch.tensor([[*("0123456789-".index(one) + 2 for one in day), 1] for _, day in space["TRAIN"]])
    losses = []
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        model = built.MyTransformer(1 + len(letters), 13, 32, 2, 64, 1)
        generator = torch.Generator().manual_seed(0)
        optimizer = torch.optim.Adam(model.parameters(), lr=0.02)
        schedule = torch.optim.lr_scheduler.OneCycleLR(optimizer, 0.02, total_steps=300, pct_start=0.1)
        for _ in range(steps):
            chosen = torch.randint(len(sources), (16,), generator=generator)
            seen = F.pad(targets[chosen][:, :-1], (1, 0))  # the symbol that starts an answer is 0
            loss = F.cross_entropy(model(sources[chosen], seen).flatten(0, 1), targets[chosen].flatten())
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            schedule.step()
            losses.append(loss.item())
    return losses


def test_the_readers_transformer_learns_dates(train):
    panel = train(inspect.getsource(built.MyEncoderBlock), DATES)
    expect(panel).to_contain_text("This is your own MyEncoderBlock")
    expect(panel).to_contain_text("This uses your MyEncoderBlock, and the course's")
    expect(panel).to_contain_text("After 75 steps:", timeout=2 * TRAINED)
    panel.get_by_role("button", name="Stop").click()
    assert panel.locator("table").count() == 2 and panel.locator("tr").count() == 6
    kept = json.loads(panel.page.evaluate("localStorage.getItem('mha-course/trained/dates')"))
    losses = kept["story"]["losses"]["0"]
    assert losses[:50] == pytest.approx(date_losses_of_torch(50), abs=1e-4)
    assert sum(losses[-10:]) / 10 < 0.5 * losses[0]


@pytest.mark.parametrize(("change", "said"), [
    ("return self.output(self.norm(x)).mT", "has the shape (2, 118, 32), expected (2, 32, 118)"),
    ("return self.output(self.norm(x) / 0)", "numbers that are infinite or NaN, before any training"),
    ("y = self.output(self.norm(x)); y.requires_grad and y.sum().backward(); return y",
     "backward went through this graph before"),
])  # fmt: skip
def test_a_gpt_that_fails_gets_a_sentence(train, change, said):
    own = inspect.getsource(built.MyGPT).replace("return self.output(self.norm(x))", change)
    panel = train(own, GPT)
    expect(panel.locator("pre.write-here-error")).to_contain_text(said, timeout=TRAINED)
    assert not panel.page.evaluate("localStorage.getItem('mha-course/trained/gpt')")
