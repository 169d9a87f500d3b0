"""The reader's own pieces learn in the page, by the loops of the chapters.

The page asks again and again, and each time some steps are taken, so that it can draw the loss and be
stopped. The numbers are those of the chapter's loop from the same seed.
"""

# ruff: noqa: S102, what a reader writes is run
from __future__ import annotations

import inspect
import json
import time
from collections import Counter
from contextlib import redirect_stderr, redirect_stdout
from functools import partial
from itertools import pairwise
from math import isfinite, log

import torch
import torch.nn.functional as F

from mha_course import built
from mha_course._whose import used_by
from mha_course.data.book_text import book_text

try:
    import session  # as the page has it
except ModuleNotFoundError:
    from mha_course.in_page import session

SECONDS = 0.4  # of steps for each request


def check(name, found, expected):
    """Raise a sentence unless a reader's piece returns finite numbers in the shape that the loop needs."""
    if found.shape != expected:
        shape, due = tuple(found.shape), tuple(expected)
        raise ValueError(f"the output of your {name} has the shape {shape}, expected {due}")
    if not found.isfinite().all():
        raise ArithmeticError(
            f"the output of your {name} has numbers that are infinite or NaN, before any training: is "
            "something divided by 0?"
        )


# ------------------------------------------------------------------ chapter 3: two pointers
def _pointer_rows(size):
    """Rows of twelve tokens, and for each place the previous and the mirrored token."""
    tokens = torch.randint(8, (size, 12))
    return tokens, torch.stack([tokens.roll(1, 1), tokens.flip(1)], dim=-1)


def pointers(space, seed, steps):
    """Train the reader's layer with one head and then with two, and say what each has learned."""
    for num_heads in (1, 2):
        torch.manual_seed(seed)
        model = space["TwoPointers"](num_heads)
        optimizer = torch.optim.Adam(model.parameters(), lr=0.01)
        _check_layer(model.attention)
        for _ in range(steps):
            tokens, targets = _pointer_rows(64)
            loss = F.cross_entropy(model(tokens).flatten(0, 2), targets.flatten())
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            yield {"loss": loss.item(), "arm": num_heads - 1}
        yield {"result": _pointed(model, seed), "arm": num_heads - 1}


def _check_layer(layer):
    x = torch.zeros(2, 12, 32)
    state = torch.default_generator.get_state()
    with torch.no_grad():
        found = layer(x, x, x)
    torch.default_generator.set_state(state)
    if not isinstance(found, tuple) or len(found) != 2:
        raise TypeError("a MyMultiHead returns two things, its output and its weights")
    check("MyMultiHead", found[0], x.shape)


@torch.no_grad()
def _pointed(model, seed):
    """The share of new positions with both answers correct, one row, and the mean weights per head."""
    torch.manual_seed(seed + 1000)
    tokens, targets = _pointer_rows(200)
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


# ------------------------------------------------------------------ chapter 7: the text of the course
# Smaller than the chapter's model, and at twice its rate, so that 500 steps take about a minute.
SIZES, WINDOW, RATE = (32, 2, 1), 32, 0.02  # width, heads, layers
SAMPLES, PROMPT, TEMPERATURE = 4, "Each head ", 0.8  # moments of training at which the model writes
WRITTEN, AT_ONCE = 120, 3  # characters: in all, and without a look at the clock
DISCOUNT = 0.7  # the chapter finds it best for the bigram


def gpt(space, seed, steps, text="", prompt=PROMPT):
    """Train the reader's GPT on a text, or else on the course's; it writes on the way.

    Of a text, the last tenth is held out; of the course's, whole sections are. A bigram, counted on the same
    characters for training, says what counting reaches.
    """
    cut = len(text) * 9 // 10
    text, held_out = (text[:cut], text[cut:]) if text else (book_text("train"), book_text("test"))
    characters = sorted(set(text + held_out))
    ids = {character: i for i, character in enumerate(characters)}
    tokens, others = ([ids[one] for one in part] for part in (text, held_out))
    yield {"floor": bigram_loss(tokens, others, len(characters))}
    torch.manual_seed(seed)
    model = space["MyGPT"](len(characters), *SIZES, WINDOW)
    with torch.no_grad():
        check("MyGPT", model(torch.zeros(2, WINDOW).long()), (2, WINDOW, len(characters)))
    yield {}
    train = space["train_gpt"](model, torch.tensor(tokens), steps, RATE, seed)
    yield {}
    written = partial(_written, space, model, characters, ids, prompt)
    yield from written(0)
    for step, loss in train:
        yield {"loss": loss}
        if step * SAMPLES % steps < SAMPLES and step < steps:
            yield from written(step)
    yield from written(steps)
    losses = []
    size = min(16 * WINDOW, len(others) - 1)
    for start in range(0, len(others) - size, size):
        losses.append(space["my_loss"](model, torch.tensor(others[start : start + size + 1])))
        yield {}
    yield {"result": {"held_out": sum(losses) / len(losses)}}


def _written(space, model, characters, ids, prompt, step):
    """Write a text in parts, each with a seed of its own, so that nobody waits long for the page."""
    tokens = torch.tensor([ids[one] for one in prompt])
    for part in range(WRITTEN // AT_ONCE):
        longer = space["my_write"](model, tokens, AT_ONCE, TEMPERATURE, seed=part)
        new = longer[len(tokens) :]
        start = "" if part else prompt
        yield {"result": {"step": step, "text": start + "".join(characters[i] for i in new.tolist())}}
        tokens = longer


def bigram_loss(tokens, others, kinds):
    """The loss on other tokens of a model that counts pairs of neighbours, as chapter 7 does."""
    single, pairs = Counter(tokens), Counter(pairwise(tokens))
    followers = Counter(first for first, _ in pairs)
    before = Counter(tokens[:-1])

    def p(second, first=None):
        base = (max(single[second] - DISCOUNT, 0) + DISCOUNT * len(single) / kinds) / len(tokens)
        if first not in before:
            return base
        kept = max(pairs[first, second] - DISCOUNT, 0)
        return (kept + DISCOUNT * followers[first] * base) / before[first]

    inside = sum(log(p(second, first)) for first, second in pairwise(others))
    return -(log(p(others[0])) + inside) / len(others)


# ------------------------------------------------------------------ chapter 6: dates
START, SYMBOLS = 0, ("", "", *"0123456789-")  # token 0 starts an answer, and token 1 ends it


def dates(space, seed, steps):
    """Train the reader's Transformer on English dates; it answers three held-out ones on the way."""
    import english_dates  # which the build has written

    letters = sorted({*"".join(text for text, _ in english_dates.TRAIN)})
    (sources, targets), (asked, right) = (_encoded(part, letters) for part in english_dates.PARTS)
    yield {}
    torch.manual_seed(seed)
    model = space["MyTransformer"](1 + len(letters), len(SYMBOLS), 32, 2, 64, 1)
    with torch.no_grad():
        check("MyTransformer", model(sources[:2], targets[:2]), (2, targets.shape[1], len(SYMBOLS)))
    generator = torch.Generator().manual_seed(seed)
    optimizer = torch.optim.Adam(model.parameters(), lr=0.02)
    schedule = torch.optim.lr_scheduler.OneCycleLR(optimizer, 0.02, total_steps=steps, pct_start=0.1)
    yield from _answered(model, asked[:3], right[:3], english_dates, 0)
    for step in range(1, steps + 1):
        rows = torch.randint(len(sources), (16,), generator=generator)
        source, target = sources[rows], targets[rows]
        start = torch.full_like(target[:, :1], START)
        logits = model(source, torch.cat((start, target[:, :-1]), dim=1))
        loss = F.cross_entropy(logits.flatten(0, 1), target.flatten())
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        schedule.step()
        yield {"loss": loss.item()}
        if step * SAMPLES % steps < SAMPLES:
            yield from _answered(model, asked[:3], right[:3], english_dates, step)
    answers = yield from _answers(model, asked, right.shape[1])
    yield {"result": {"right": (answers == right).all(-1).float().mean().item(), "of": len(right)}}


def _encoded(pairs, letters):
    """Tokens of dates as they are written, padded with 0, and of the same dates in ISO 8601."""
    known = {letter: token for token, letter in enumerate(letters, start=1)}
    longest = max(len(text) for text, _ in pairs)
    sources = [known.get(one, 0) for text, _ in pairs for one in text.ljust(longest, "\n")]
    targets = [token for _, day in pairs for token in (*map(SYMBOLS.index, day), 1)]
    return torch.tensor(sources).view(len(pairs), -1), torch.tensor(targets).view(len(pairs), -1)


def _answers(model, sources, length):
    """Write answers, always the most probable symbol, with a look at the clock after each."""
    written = torch.full((len(sources), 1), START)
    for _ in range(length):
        with torch.no_grad():
            best = model(sources, written)[:, -1:].argmax(-1)
        written = torch.cat((written, best), dim=1)
        yield {}
    return written[:, 1:]


def _answered(model, sources, right, english_dates, step):
    answers = yield from _answers(model, sources, right.shape[1])
    texts = ["".join(SYMBOLS[token] for token in row) for row in answers.tolist()]
    asked = [[*pair, text] for pair, text in zip(english_dates.HELD_OUT, texts, strict=False)]
    yield {"result": {"step": step, "answers": asked}}


# ------------------------------------------------------------------ what the page asks
TASKS = {"pointers": pointers, "gpt": gpt, "dates": dates}
# What each uses of the pieces.
TEXTS = {"pointers": "TwoPointers", "gpt": "MyGPT, train_gpt, my_loss, my_write", "dates": "MyTransformer"}


class Training:
    """A training that goes on for a while whenever the page asks."""

    def __init__(self, task, pieces, seed, steps, **learned):
        space = {"__name__": "__main__"}
        exec(compile(inspect.getsource(built), built.__name__, "exec"), space)
        for name, text in pieces.items():
            session._run(text, session.YOURS + name, space)
        self.events = TASKS[task](space, seed, steps, **learned)
        self.used = used_by(TEXTS[task], pieces, space)
        self.state, self.steps = torch.default_generator.get_state(), Counter()

    def go(self):
        """Take steps for a while; return the losses of each model, and what has been learned."""
        torch.default_generator.set_state(self.state)
        end = time.monotonic() + SECONDS
        said = {"losses": {}, "results": [], "done": True, "used": self.used}
        self.used = ""
        for event in self.events:
            arm = event.get("arm", 0)
            if "loss" in event:
                self._note(arm, event["loss"])
                said["losses"].setdefault(arm, []).append(event["loss"])
            if "result" in event:
                said["results"].append({"arm": arm, **event["result"]})
            if "floor" in event:
                said["floor"] = event["floor"]
            if time.monotonic() > end:
                said["done"] = False
                break
        self.state = torch.default_generator.get_state()
        return said

    def _note(self, arm, loss):
        self.steps[arm] += 1
        if not isfinite(loss):
            raise ArithmeticError(
                f"at step {self.steps[arm]} the loss is {loss}, and no later step can repair that: does a "
                "row of weights see no key, or is something divided by 0?"
            )


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
