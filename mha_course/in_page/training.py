"""The reader's layer learns in the page: the loop of chapter 3, with one head and with two.

The page asks again and again, and each time some steps are taken, so that it can draw the loss and be
stopped. The numbers are those of the chapter's loop from the same seed.
"""

# ruff: noqa: S102, what a reader writes is run
from __future__ import annotations

import inspect
import json
import time
from contextlib import redirect_stderr, redirect_stdout
from math import isfinite

import torch
import torch.nn.functional as F

from mha_course import built

try:
    import session  # as the page has it
except ModuleNotFoundError:
    from mha_course.in_page import session

SECONDS = 0.4  # of steps for each request
HEADS = (1, 2)


def batch(size):
    """Rows of twelve tokens, and for each place the previous and the mirrored token."""
    tokens = torch.randint(8, (size, 12))
    return tokens, torch.stack([tokens.roll(1, 1), tokens.flip(1)], dim=-1)


def check(layer):
    """Raise a sentence unless a layer returns an output in the shape of its query, and weights."""
    x = torch.zeros(2, 12, 32)
    with torch.no_grad():
        found = layer(x, x, x)
    if not isinstance(found, tuple) or len(found) != 2:
        raise TypeError("a MyMultiHead returns two things, its output and its weights")
    if found[0].shape != x.shape:
        told = f"the output of your MyMultiHead has the shape {tuple(found[0].shape)}"
        raise ValueError(f"{told}, expected that of its query, {tuple(x.shape)}")


class Training:
    """Models that are trained one after the other; `go` takes some steps."""

    def __init__(self, pieces, seed, steps):
        self.space = {"__name__": "__main__"}
        exec(compile(inspect.getsource(built), built.__name__, "exec"), self.space)
        for name, text in pieces.items():
            session._run(text, f"your {name}", self.space)
        self.seed, self.steps, self.waiting = seed, steps, [*HEADS]
        self._begin()

    def _begin(self):
        self.heads, self.step = self.waiting.pop(0), 0
        torch.manual_seed(self.seed)
        self.model = self.space["TwoPointers"](self.heads)
        self.optimizer = torch.optim.Adam(self.model.parameters(), lr=0.01)
        self.state = torch.default_generator.get_state()
        check(self.model.attention)

    def go(self):
        """Take steps for a while; return the losses, and after the last step what was learned."""
        torch.default_generator.set_state(self.state)
        end = time.monotonic() + SECONDS
        said = {"heads": self.heads, "first": self.step + 1, "losses": []}
        while self.step < self.steps and (time.monotonic() < end or not said["losses"]):
            said["losses"].append(self._take_step())
        self.state = torch.default_generator.get_state()
        if self.step == self.steps:
            said |= {"learned": self._learned(), "done": not self.waiting}
            if self.waiting:
                self._begin()
        return said

    def _take_step(self):
        tokens, targets = batch(64)
        loss = F.cross_entropy(self.model(tokens).flatten(0, 2), targets.flatten())
        self.optimizer.zero_grad()
        loss.backward()
        self.optimizer.step()
        self.step += 1
        number = loss.item()
        return number if isfinite(number) else None

    @torch.no_grad()
    def _learned(self):
        """The share of new positions with both answers correct, one row, and the mean weights per head."""
        torch.manual_seed(self.seed + 1000)
        tokens, targets = batch(200)
        model = self.model
        answers = model(tokens).argmax(-1)
        x = model.tokens(tokens) + model.places.weight
        _, weights = model.attention(x, x, x)
        return {
            "both": (answers == targets).all(-1).float().mean().item(),
            "row": tokens[0].tolist(),
            "targets": targets[0].T.tolist(),
            "answers": answers[0].T.tolist(),
            "maps": weights.mean(0).tolist(),
        }


class _Now:
    training = None


def answer(request):
    """Begin or continue a training; the request and the reply are JSON."""
    asked = json.loads(request)["train"]
    output = session.Output()
    try:
        with redirect_stdout(output), redirect_stderr(output):
            if asked:
                _Now.training = None
                _Now.training = Training(**asked)
            if _Now.training is None:
                return json.dumps({"gone": True})  # Python was started anew in between
            return json.dumps(_Now.training.go())
    except BaseException as error:
        _Now.training = None
        return json.dumps({"error": session._told(error)})
