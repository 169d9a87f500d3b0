"""What the formula of a layer has besides is found, said and judged; and so is each layer of a model."""

import math

import pytest
import torch
import torch.nn.functional as F
from torch import nn
from unusual import FusedCausal

from attention_check import check
from attention_check._aspects import TOGETHER, pairwise

HEADS, WIDTH = 4, 64


def turned(x, interleaved, part=16, sign=1):
    """Heads whose first columns are rotated by their positions, number by number of a pair."""
    angles = torch.arange(x.shape[-2])[:, None] * 10_000.0 ** (-torch.arange(0, part, 2) / part)
    cos, sin = angles.cos(), sign * angles.sin()
    own, rest = x[..., :part], x[..., part:]
    a, b = (own[..., ::2], own[..., 1::2]) if interleaved else own.chunk(2, -1)
    pair = (a * cos - b * sin, a * sin + b * cos)
    both = torch.stack(pair, -1).flatten(-2) if interleaved else torch.cat(pair, -1)
    return torch.cat((both, rest), -1)


class Besides(nn.Module):
    """A layer with one thing besides the formula, and perhaps a fault."""

    def __init__(self, kind, fault=""):
        super().__init__()
        self.num_heads, self.kind, self.fault = HEADS, kind, fault
        shared = WIDTH // 2 if kind == "in turn" else WIDTH
        self.q_proj, self.k_proj = nn.Linear(WIDTH, WIDTH), nn.Linear(WIDTH, shared)
        self.v_proj, self.out_proj = nn.Linear(WIDTH, shared), nn.Linear(WIDTH, WIDTH)
        if kind == "norms":
            self.q_norm, self.k_norm = nn.LayerNorm(16), nn.LayerNorm(16)
        if kind == "null":
            self.null_kv = nn.Parameter(torch.randn(2, HEADS, 1, 16))
        if kind == "table":
            self.far = nn.Embedding(257, HEADS)

    def forward(self, x, mask=None):
        query, key, value = (
            make(x).unflatten(-1, (-1, 16)).transpose(1, 2)
            for make in (self.q_proj, self.k_proj, self.v_proj)
        )
        if self.kind.startswith("rotary"):
            pairs, part = "neighbours" in self.kind, 8 if "part" in self.kind else 16
            query = turned(query, pairs, part)
            key = key if self.fault == "queries" else turned(key, pairs, part)
        if self.kind == "norms":
            query, key = self.q_norm(query), self.k_norm(key)
        if self.kind == "in turn":
            key, value = key.repeat(1, 2, 1, 1), value.repeat(1, 2, 1, 1)
        if self.kind == "null":
            more = self.null_kv.unsqueeze(1).expand(-1, len(x), -1, -1, -1)
            key, value = torch.cat((more[0], key), 2), torch.cat((more[1], value), 2)
            mask = None if mask is None else F.pad(mask, (1, 0), value=True)
        scores = query @ key.mT / (1 if self.fault == "unscaled" else 4)
        ahead = torch.arange(x.shape[1]) - torch.arange(x.shape[1])[:, None]
        if self.kind == "alibi":
            scores = scores - ahead.abs() * 2.0 ** (-2 * torch.arange(1, 5)).view(-1, 1, 1)
        if self.kind == "table":
            scores = scores + self.far(ahead + 128).permute(2, 0, 1)
        if self.kind == "window":
            scores = scores.masked_fill((ahead > 0) | (ahead < -3), -math.inf)
        if mask is not None:
            scores = scores.masked_fill(mask if self.fault == "inverted" else ~mask, -math.inf)
        return self.out_proj((scores.softmax(-1) @ value).transpose(1, 2).flatten(2))


KINDS = {
    "rotary, halves": "rotary, halves ·",
    "rotary, neighbours": "rotary, neighbours ·",
    "rotary, halves, part": "rotary, halves, 8 of 16 columns",
    "rotary, neighbours, part": "rotary, neighbours, 8 of 16 columns",
    "norms": "`q_norm` and `k_norm` of heads",
    "in turn": "key heads shared in turn",
    "null": "`null_kv` before the keys",
    "alibi": "ALiBi, slopes 0.25, 0.0625, 0.0156, 0.00391",
    "table": "a bias by distance",
    "window": "window 3 back, 0 ahead",
}


@pytest.mark.parametrize("kind", KINDS)
def test_what_is_besides_the_formula_is_found_and_said(kind):
    torch.manual_seed(0)
    report = check(Besides(kind))
    assert KINDS[kind] in report.contract
    assert report.status == 0
    assert [report.findings[name].kind for name in ("scores", "masks", "gradients")] == ["right"] * 3


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize(("fault", "aspect"), [("unscaled", "scores"), ("inverted", "masks")])
def test_it_hides_no_fault(kind, fault, aspect):
    torch.manual_seed(0)
    report = check(Besides(kind, fault), tries=["scores", "masks"])
    assert report.findings[aspect].kind == "wrong", report


class Near(FusedCausal):
    """Keys at most two positions away that are no padding; a fault shows those that fulfil one of both."""

    def __init__(self, fault=False):
        super().__init__()
        self.fault = fault

    def forward(self, x, padding_mask=None):
        places = torch.arange(x.shape[1])
        visible = (places[:, None] - places).abs().expand(1, 1, -1, -1) <= 2
        if padding_mask is not None:
            kept = ~padding_mask[:, None, None]
            visible = visible | kept if self.fault else visible & kept
        split = (part.unflatten(-1, (3, 11)).transpose(1, 2) for part in self.c_attn(x).chunk(3, -1))
        heads = F.scaled_dot_product_attention(*split, visible)
        return self.c_proj(heads.transpose(1, 2).flatten(-2))


def test_padding_in_a_window_hides_no_more_than_some_of_it():
    """What a query gets that sees nothing is a convention, of which the aspect of masks says nothing."""
    right, wrong = (check(Near(fault), mask="hidden").findings["masks"] for fault in (False, True))
    assert (right.kind, wrong.kind) == ("right", "wrong"), (right, wrong)


def test_a_rotation_of_queries_alone_is_named():
    layer = Besides("rotary, halves", "queries")
    layer.rotary = True
    assert check(layer).findings["scores"].message.startswith("only the queries are rotated.")


class LowRank(nn.Module):
    """A linear layer with an addition of low rank, as LoRA has."""

    def __init__(self, base):
        super().__init__()
        self.base, self.down, self.up = base, nn.Linear(64, 2, bias=False), nn.Linear(2, 64, bias=False)

    def forward(self, x):
        return self.base(x) + self.up(self.down(x))


def with_lora():
    layer = Besides("plain")
    layer.q_proj, layer.v_proj = LowRank(layer.q_proj), LowRank(layer.v_proj)
    return layer


@pytest.mark.parametrize("make", [
    with_lora,
    lambda: nn.DataParallel(Besides("plain")),
    lambda: torch.compile(Besides("plain"), backend="eager"),
    lambda: nn.MultiheadAttention(64, 4, add_bias_kv=True),
    lambda: nn.MultiheadAttention(64, 4, add_zero_attn=True),
], ids=["LoRA", "parallel", "compiled", "a learned key", "a key of zeros"])  # fmt: skip
def test_wrapped_layers_are_right(make):
    report = check(make(), tries=["scores", "masks"])
    assert report.findings["scores"] and report.findings["masks"], report


class Blocks(nn.Module):
    """Two blocks of a model; in the second one, the attention may have a fault."""

    def __init__(self, wrong=False):
        super().__init__()
        self.embedding, self.attn = nn.Embedding(9, 33), nn.ModuleList([FusedCausal(), FusedCausal()])
        if wrong:
            self.attn[1].triangle.fill_(1.0)
            self.attn[1].triangle[0, 0, 0, 1:] = 0.0


def test_each_attention_of_a_model_is_judged():
    report = check(Blocks())
    assert report.contract.startswith("model, 2 × layer, one input")
    assert {name: found.kind for name, found in report.findings.items()} == {
        "attn.0": "right",
        "attn.1": "right",
    }
    assert report.findings["attn.0"].message == "scores, causal, together and gradients"
    wrong = check(Blocks(wrong=True))
    assert (wrong.status, bool(wrong.findings["attn.0"]), wrong.findings["attn.1"].kind) == (1, True, "wrong")


def test_the_call_that_shows_a_fault_can_be_pasted():
    def attention(query, key, value, mask=None):
        return F.scaled_dot_product_attention(query, key, value, None if mask is None else ~mask)

    call = check(attention, tries=["masks"]).findings["masks"].call
    code, said = call.split("  # ")
    *draws, last = code.split("; ")
    space = {"torch": torch, "attention": attention}
    exec("\n".join([*draws, f"output = {last}"]), space)  # noqa: S102, it is what a reader does
    # A query that sees one key gets its value.
    mine, right = (space[name].item() for name in ("output", "v"))
    assert said.endswith(f"{mine:.4g} for {right:.4g} at [0, 0, 0, 0]")
    assert mine != right


def test_each_two_choices_meet():
    cases = pairwise(TOGETHER, lambda case: True)
    assert len(cases) < 30
    for one in TOGETHER:
        for other in TOGETHER:
            met = {(case[one], case[other]) for case in cases}
            assert one == other or len(met) == len(TOGETHER[one]) * len(TOGETHER[other])


@pytest.mark.parametrize(("wrong_where", "blamed"), [
    (lambda q, v, mask: q.shape[-1] == 128, "wrong with heads of width 128:"),
    (lambda q, v, mask: q.shape[-1] != v.shape[-1], "wrong with values of another width:"),
    (lambda q, v, mask: mask is not None and len(q) == 1, "one sample"),
])  # fmt: skip
def test_options_together(wrong_where, blamed):
    def attend(q, k, v, mask=None):
        output = F.scaled_dot_product_attention(q, k, v, mask)
        return 1.01 * output if wrong_where(q, v, mask) else output

    found = check(attend, tries=["scores", "masks", "together"]).findings["together"]
    assert found.kind == "wrong" and blamed in found.message
