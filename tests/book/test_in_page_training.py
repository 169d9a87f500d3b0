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


def bigram_loss():
    """The held-out loss of the chapter's bigram."""
    text, held_out = book_text("train"), book_text("test")
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


def gpt_losses_of_torch(steps):
    """The losses of the chapter's loop with the course's GPT, as small as that of the page."""
    text = book_text("train")
    characters = sorted(set(text + book_text("test")))
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
    assert floor == pytest.approx(bigram_loss(), abs=0.006)
    texts = panel.locator(".train-text").all_inner_texts()
    assert len(texts) == 2 and len(texts[0]) == 130 and texts[0].startswith("Each head ")
    page = panel.page
    kept = json.loads(page.evaluate("localStorage.getItem('mha-course/trained/gpt')"))
    losses = kept["story"]["losses"]["0"]
    assert len(losses) >= 125 and losses[:50] == pytest.approx(gpt_losses_of_torch(50), abs=1e-4)
    assert sum(losses[-20:]) / 20 < 3
    page.reload()
    page.get_by_role("button", name="Train your GPT").click()
    expect(panel.get_by_role("status")).to_have_text("Kept from your last training.")
    assert panel.locator(".train-text").all_inner_texts() == texts
    panel.get_by_role("button").first.click()
    expect(panel.locator(".train-text")).to_have_count(1, timeout=TRAINED)


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
