"""The button "Train your layer": the reader's own layer learns in the page."""

import re

import pytest
import torch
import torch.nn.functional as F
from playwright.sync_api import expect

from mha_course import built

PLACE = "chapters/03_multi_head_attention.html"
KEY = "mha-course/write-here/MyMultiHead"
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

    def press(accepted=None):
        contexts.append(browser.new_context())
        page = contexts[-1].new_page()
        page.goto(f"{book.as_uri()}/{PLACE}")
        if accepted:
            kept = {"draft": accepted, "accepted": accepted}
            page.evaluate("([key, kept]) => localStorage.setItem(key, JSON.stringify(kept))", [KEY, kept])
            page.reload()
        page.get_by_role("button", name="Train your layer").click()
        return page.get_by_role("group", name="Train your layer")

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
    expect(panel).to_contain_text("the course's layer learns here")
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
    ("return query[:, :5], None", "has the shape (2, 5, 32), expected that of its query, (2, 12, 32)"),
    ("return query", "returns two things"),
    ("return self.two(query), None", "'MyMultiHead' object has no attribute 'two'"),
    ("while True: pass", "still running after 5 seconds"),
])  # fmt: skip
def test_a_layer_that_fails_gets_a_sentence_and_the_page_goes_on(train, body, said):
    panel = train(OWN.replace("BODY", body))
    expect(panel.locator("pre")).to_contain_text(said, timeout=TRAINED)
    panel.page.evaluate("key => localStorage.removeItem(key)", KEY)
    panel.get_by_role("button", name="Start again").click()
    expect(panel.locator(".train-1").last).to_contain_text("loss", timeout=TRAINED)
    expect(panel.locator("pre")).to_have_count(0)
