"""The page's kernels in JavaScript compute what Python defines, and train as torch does."""

import json
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
import torch

ROOT = Path(__file__).resolve().parents[2]
pytestmark = pytest.mark.newer_torch


def in_page(program):
    """What a program leaves in `result` when the page's Python runs it."""
    node = shutil.which("node", path=Path(sys.executable).parent) or "node"
    command = [node, "--no-warnings", Path(__file__).with_name("in_page_node.mjs"), ROOT]
    done = subprocess.run(command, input=program, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout + done.stderr
    return json.loads(done.stdout.splitlines()[-1])


TRAIN = """
import torch
import torch.nn.functional as F
from mha_course import built


def pointers(steps, num_heads):
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


def block(steps):
    torch.manual_seed(1)
    model = built.MyEncoderBlock(22, 2, 26)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9)
    schedule = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, steps)
    for _ in range(steps):
        x = torch.randn(5, 7, 22)
        mask = built.my_lens_mask(torch.tensor([7, 3, 5, 1, 2]), 7)
        loss = (model(x, mask) - x.roll(1, 1)).square().mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        schedule.step()
        yield loss.item()


def gpt(steps):
    torch.manual_seed(2)
    model = built.MyGPT(vocab_size=13, embed_dim=14, num_heads=2, num_layers=2, max_len=11)
    text = torch.arange(997).square() % 13
    for _, loss in built.train_gpt(model, text, steps):
        yield loss


result = {"one head": [*pointers(50, 1)], "two heads": [*pointers(50, 2)]}
result |= {"block": [*block(50)], "GPT": [*gpt(50)]}
"""


def test_losses_of_fifty_steps_are_those_of_torch():
    found = in_page(TRAIN)
    with torch.random.fork_rng(devices=[]):
        space = {"__name__": "train"}
        exec(compile(TRAIN, "train", "exec"), space)  # noqa: S102
    expected = space["result"]
    assert found.keys() == expected.keys()
    for name, losses in expected.items():
        assert len(found[name]) == len(losses) == 50
        assert max(abs(a - b) for a, b in zip(found[name], losses, strict=True)) < 1e-4, name
    assert expected["two heads"][-1] < 0.5 * expected["two heads"][0]


# With the kernels and without them; each line is tried on random shapes of primes.
COMPARE = """
import random
import torch
import torch.nn.functional as F
from torch import _kernels

CALLS = '''
a + b; a - b; a * b; a / (b * b + 1); -a; a * 3; 2 - a; (a * a + 0.1).log(); a.exp(); a.sin(); a.cos()
a.tanh(); a.sigmoid(); a.relu(); a.abs(); a.square(); (a * a).sqrt(); (a * a + 1).rsqrt(); a.maximum(b)
a.minimum(b); a.clone(); a.mT.contiguous(); (a.mT + 1).mT * b; a.masked_fill(a > 0, -2.5)
torch.where(a > b, a, b); a * (a > 0); a.softmax(-1); a.mT.softmax(-1); a.log_softmax(-1); a.softmax(0)
a.sum(); a.sum(0); a.sum(-1, True); a.mean(-2); a.mean(); a.sum((0, -1)); a @ b.mT; a.mT @ b; a @ w
(a @ w).mT @ b; a[0] @ w; a[0] @ w[:, 0]; a @ a.mT; a[i]; a[..., i[0] * 0]
a.gather(-1, (a * 0).long()); a.mT.gather(-1, (a.mT * 0).long() + 1); F.embedding(i, w)
F.layer_norm(a, a.shape[-1:]); F.cross_entropy(a.flatten(0, -2), torch.zeros(a[..., 0].numel()).long())
a.transpose(0, 1).reshape(-1) * 2; a.expand(2, *a.shape) * b; (a * float("inf")).softmax(-1); a[::2] + 1
a[1:].T * 2
'''.replace("\\n", ";").split(";")


def outcome(call, seed, js):
    _kernels.use(js)
    roll = random.Random(f"{call} {seed}")
    torch.manual_seed(seed)
    shape = [roll.choice([2, 3, 5, 7, 11]) for _ in range(roll.choice([2, 2, 3, 4]))]
    other = [1 if roll.random() < 0.2 and "@" not in call and "expand" not in call else n for n in shape]
    a = torch.randn(shape)
    if roll.random() < 0.3:
        a = torch.randn(shape[::-1]).permute(*range(len(shape))[::-1])
    b, w = torch.randn(other), torch.randn(shape[-1], 13)
    i = torch.randint(min(shape[0], shape[-1]), (3, 5))
    leaves = [one.detach().requires_grad_() for one in (a, b, w)]
    made = eval(call, {"torch": torch, "F": F, "i": i, **dict(zip("abw", leaves))})
    if made.requires_grad:
        (made * torch.arange(made.numel()).reshape(made.shape).cos()).sum().backward()
    grads = [one.grad for one in leaves if one.grad is not None]
    return [[list(one.shape), one.is_contiguous(), one.flatten().tolist()] for one in (made, *grads)]


def near(a, b):
    return a == b or (a != a and b != b) or abs(a - b) <= 2e-5 * (1 + abs(b))


js, result, used = _kernels.use(None), [], 0
for call in filter(None, map(str.strip, CALLS)):
    for seed in range(12):
        fast, slow = outcome(call, seed, js), outcome(call, seed, None)
        same = len(fast) == len(slow) and all(
            one[:2] == other[:2] and all(map(near, one[2], other[2])) for one, other in zip(fast, slow)
        )
        if not same:
            result.append([call, seed, str(fast)[:300], str(slow)[:300]])
            break
        used += 1
result = {"different": result, "used": used, "kernels": js is not None}
"""


def test_kernels_compute_what_python_defines():
    found = in_page(COMPARE)
    assert found["kernels"] and found["used"] > 600
    assert found["different"] == []
