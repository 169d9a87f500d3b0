"""The exercises of chapter 7: right answers pass, wrong ones are refused with their cause.

The answers here are written as a reader would write them, not as the checkers hold them. The blocks are the
reader's own: `MyBlock` has the names of the page's `MyEncoderBlock`.
"""

import pytest
import torch
import torch.nn.functional as F
from exercise_cells import CHECKS, cells_of, checkers_of
from torch import nn

from mha_lib import DecoderBlock, MultiHeadAttention
from mha_lib.dates import END, START

PAGE = "07_transformer"
EXERCISES = cells_of(PAGE)


def counted(embed_dim, num_heads, hidden_dim):
    block = DecoderBlock(embed_dim, num_heads, hidden_dim, bias=True)
    return sum(p.numel() for p in block.parameters())


def less(share):
    """The right number less what this function of (width, heads, hidden width) says."""
    return lambda e, n, h: counted(e, n, h) - share(e, n, h)


class MyFeedForward(nn.Module):
    def __init__(self, embed_dim, hidden_dim):
        super().__init__()
        self.up_proj = nn.Linear(embed_dim, hidden_dim)
        self.down_proj = nn.Linear(hidden_dim, embed_dim)

    def forward(self, x):
        return self.down_proj(self.up_proj(x).relu())


class MyBlock(nn.Module):
    def __init__(self, embed_dim, num_heads, hidden_dim):
        super().__init__()
        self.self_attention = MultiHeadAttention(embed_dim, num_heads, bias=True)
        self.self_attention_norm = nn.LayerNorm(embed_dim)
        self.feed_forward = MyFeedForward(embed_dim, hidden_dim)
        self.feed_forward_norm = nn.LayerNorm(embed_dim)

    def look(self, x, mask):
        return self.self_attention(x, x, x, mask)[0]


class PostNorm(MyBlock):
    def forward(self, x, mask=None):
        x = self.self_attention_norm(x + self.look(x, mask))
        return self.feed_forward_norm(x + self.feed_forward(x))


class TorchPostNorm(MyBlock):
    """Torch's own layer, given the parameters of the block."""

    def forward(self, x, mask=None):
        attention, norms = self.self_attention, (self.self_attention_norm, self.feed_forward_norm)
        layer = nn.TransformerEncoderLayer(
            x.shape[-1], attention.num_heads, self.feed_forward.up_proj.out_features, batch_first=True
        ).eval()
        three = (attention.q_proj, attention.k_proj, attention.v_proj)
        with torch.no_grad():
            layer.self_attn.in_proj_weight.copy_(torch.cat([p.weight for p in three]))
            layer.self_attn.in_proj_bias.copy_(torch.cat([p.bias for p in three]))
        layer.self_attn.out_proj.load_state_dict(attention.out_proj.state_dict())
        layer.linear1, layer.linear2 = self.feed_forward.up_proj, self.feed_forward.down_proj
        layer.norm1, layer.norm2 = norms
        return layer(x, src_mask=None if mask is None else ~mask)


class PreNorm(MyBlock):
    def forward(self, x, mask=None):
        x = x + self.look(self.self_attention_norm(x), mask)
        return x + self.feed_forward(self.feed_forward_norm(x))


class NormOfTheChange(MyBlock):
    def forward(self, x, mask=None):
        x = x + self.self_attention_norm(self.look(x, mask))
        return x + self.feed_forward_norm(self.feed_forward(x))


class NoResiduals(MyBlock):
    def forward(self, x, mask=None):
        x = self.self_attention_norm(self.look(x, mask))
        return self.feed_forward_norm(self.feed_forward(x))


class BothPlaces(MyBlock):
    def forward(self, x, mask=None):
        x = self.self_attention_norm(x + self.look(self.self_attention_norm(x), mask))
        return self.feed_forward_norm(x + self.feed_forward(self.feed_forward_norm(x)))


class AddsTheInputAgain(MyBlock):
    def forward(self, x, mask=None):
        y = self.self_attention_norm(x + self.look(x, mask))
        return self.feed_forward_norm(x + self.feed_forward(y))


class NormOnlyAtTheEnd(MyBlock):
    def forward(self, x, mask=None):
        x = x + self.look(x, mask)
        return self.feed_forward_norm(x + self.feed_forward(x))


class ExchangedNorms(MyBlock):
    def forward(self, x, mask=None):
        x = self.feed_forward_norm(x + self.look(x, mask))
        return self.self_attention_norm(x + self.feed_forward(x))


class SameNormTwice(MyBlock):
    def forward(self, x, mask=None):
        x = self.self_attention_norm(x + self.look(x, mask))
        return self.self_attention_norm(x + self.feed_forward(x))


class ForgetsTheMask(MyBlock):
    def forward(self, x, mask=None):
        x = self.self_attention_norm(x + self.look(x, None))
        return self.feed_forward_norm(x + self.feed_forward(x))


class EmptyBlock(MyBlock):
    def forward(self, x, mask=None): ...


def torch_loss(logits, target, smoothing):
    return F.cross_entropy(logits.flatten(0, 1), target.flatten(), label_smoothing=smoothing)


def loss_by_targets(share_of_others, right):
    """Cross-entropy with targets that are written out: both are functions of (smoothing, symbols)."""

    def loss(logits, target, smoothing):
        symbols = logits.shape[-1]
        wanted = torch.full_like(logits, share_of_others(smoothing, symbols))
        wanted.scatter_(-1, target.unsqueeze(-1), right(smoothing, symbols))
        return -(wanted * logits.log_softmax(-1)).sum(-1).mean()

    return loss


def shared(model):
    before = sum(p.numel() for p in model.parameters())
    model.output.weight = model.target_embedding.weight
    return before - sum(p.numel() for p in model.parameters())


def shared_the_other_way(model):
    model.target_embedding.weight = model.output.weight
    return model.output.out_features * model.output.in_features


def copied(model):
    with torch.no_grad():
        model.output.weight.copy_(model.target_embedding.weight)
    return model.output.weight.numel()


def same_data(model):
    model.output.weight.data = model.target_embedding.weight.data
    return model.output.weight.numel()


def tied_to_the_source(model):
    model.output.weight = model.source_embedding.weight
    return model.source_embedding.weight.numel()


def beam_search(model, source, beam_size, steps):
    """All answers of the beam in one call of the model, as tensors."""
    symbols, values = torch.full((1, 1), START), torch.zeros(1)
    for _ in range(steps):
        log_probs = model(source.expand(len(symbols), -1), symbols)[:, -1].log_softmax(-1)
        ended = (symbols == END).any(1)
        log_probs[ended] = -torch.inf
        log_probs[ended, END] = 0
        total = (values[:, None] + log_probs).flatten()
        values, best = total.topk(min(beam_size, int((total > -torch.inf).sum())))
        parent, symbol = best // log_probs.shape[1], best % log_probs.shape[1]
        symbols = torch.cat([symbols[parent], symbol[:, None]], dim=1)
    return list(zip(values, symbols, strict=True))


def listed_beam(
    beam_size=None, stop=True, drop=False, last_only=False, of=torch.log_softmax, place=-1, reverse=True,
    per_answer=False, mean=False,
):  # fmt: skip
    def search(model, source, asked, steps):
        size, beam = beam_size or asked, [(0.0, [START])]
        for step in range(steps):
            longer = []
            for value, symbols in beam:
                if stop and symbols[-1] == END:
                    if not drop:
                        longer.append((value, symbols))
                    continue
                numbers = of(model(source, torch.tensor([symbols]))[0, place], -1).tolist()
                mine = [(p if last_only else value + p, [*symbols, s]) for s, p in enumerate(numbers)]
                longer += [max(mine)] if per_answer and step else mine
            key = (lambda pair: pair[0] / (len(pair[1]) - 1)) if mean else (lambda pair: pair[0])
            beam = sorted(longer, key=key, reverse=reverse)[:size]
        return beam

    return search


# Checker -> the empty stub, and other right answers.
STUB = {
    "check_decoder_parameters": lambda embed_dim, num_heads, hidden_dim: None,
    "check_post_norm": EmptyBlock,
    "check_smooth_loss": lambda logits, target, smoothing: None,
    "check_tied": lambda model: None,
    "check_beam": lambda model, source, beam_size, steps: None,
}
RIGHT = {
    "check_decoder_parameters": [counted, lambda e, _, h: 8 * e * e + 2 * e * h + 15 * e + h],
    "check_post_norm": [PostNorm, TorchPostNorm],
    "check_smooth_loss": [torch_loss, loss_by_targets(lambda s, n: s / n, lambda s, n: 1 - s + s / n)],
    "check_tied": [shared, shared_the_other_way],
    "check_beam": [listed_beam(), beam_search],
}

# Checker -> the beginning of a message -> a wrong answer.
WRONG = {
    "check_decoder_parameters": {
        "there is only one attention": less(lambda e, n, h: 4 * e * (e + 1)),
        "there are only two norms": less(lambda e, n, h: 2 * e),
        "the parameters of an encoder block": less(lambda e, n, h: 4 * e * (e + 1) + 2 * e),
        "the norms are not counted": less(lambda e, n, h: 6 * e),
        "a norm has one number": less(lambda e, n, h: 3 * e),
        "the biases of the linear layers": less(lambda e, n, h: 9 * e + h),
        "each head has projections of the full width": less(
            lambda e, n, h: -2 * (n - 1) * (3 * e * (e + 1) + e * e)
        ),
        "an attention has three matrices": less(lambda e, n, h: 2 * (e * e + e)),
    },
    "check_post_norm": {
        "the norm comes before each part": PreNorm,
        "the norm is taken before the sum": NormOfTheChange,
        "the residual connections are missing": NoResiduals,
        "each norm stands in both places": BothPlaces,
        "the second sum begins again": AddsTheInputAgain,
        "the sum after the attention is not normalised": NormOnlyAtTheEnd,
        "the two norms are exchanged": ExchangedNorms,
        "one norm is used twice": SameNormTwice,
        "the mask is not passed on": ForgetsTheMask,
        "wrong for no mask (x (3, 5, 6)): it raises TypeError: the class must be an nn.Module": lambda *_: 3,
    },
    "check_smooth_loss": {
        "the smoothing is spread over the other tokens only": loss_by_targets(
            lambda s, n: s / (n - 1), lambda s, n: 1 - s
        ),
        "the probabilities are mixed": lambda z, t, s: F.nll_loss(
            ((1 - s) * z.softmax(-1) + s / z.shape[-1]).log().flatten(0, 1), t.flatten()
        ),
        "every token gets the whole smoothing": loss_by_targets(lambda s, n: s, lambda s, n: 1.0),
        "the right token keeps the whole": loss_by_targets(lambda s, n: s / n, lambda s, n: 1 + s / n),
        "nothing is smoothed": lambda z, t, s: torch_loss(z, t, 0.0),
        "the smoothing is missing from the sum": lambda z, t, s: (1 - s) * torch_loss(z, t, 0.0),
        "the two shares are exchanged": lambda z, t, s: torch_loss(z, t, 1 - s),
        "the logits are taken for log probabilities": lambda z, t, s: (
            -((1 - s) * z.gather(-1, t[..., None])[..., 0] + s * z.mean(-1)).mean()
        ),
        "the sign is wrong": lambda z, t, s: -torch_loss(z, t, s),
        "the losses of all places are added up": lambda z, t, s: F.cross_entropy(
            z.flatten(0, 1), t.flatten(), label_smoothing=s, reduction="sum"
        ),
        "the numbers are right, but not the gradients, for no smoothing": lambda z, t, s: (
            torch_loss(z, t, s).detach() + 0 * z.sum()
        ),
    },
    "check_tied": {
        "the numbers are copied": copied,
        "the two parameters share their memory": same_data,
        "the output is tied to the embedding of the source": tied_to_the_source,
        "the bias of the output is counted": lambda m: shared(m) + m.output.out_features,
        "this is the number of parameters that are left": lambda m: (
            shared(m) and sum(p.numel() for p in m.parameters())
        ),
        "both matrices are counted": lambda m: shared(m) * 2,
    },
    "check_beam": {
        "only the most probable answer is kept": listed_beam(beam_size=1),
        "every answer keeps one continuation": listed_beam(per_answer=True),
        "an answer that has ended is continued": listed_beam(stop=False),
        "an answer that has ended is dropped": listed_beam(drop=True),
        "only the last symbol's log probability": listed_beam(last_only=True),
        "logits are added up": listed_beam(of=lambda logits, _: logits),
        "probabilities are added up": listed_beam(of=torch.softmax),
        "the logits are read at the first place": listed_beam(place=0),
        "the least probable answers are kept": listed_beam(reverse=False),
        "answers are ranked by the mean": listed_beam(mean=True),
        "wrong for a beam of one (table (5, 5), places (5, 5), source (1, 2)): it raises TypeError: "
        "the beam must be a list of pairs": lambda *arguments: 5,
        "wrong for a beam of one (table (5, 5), places (5, 5), source (1, 2)): it raises ValueError: "
        "an answer is longer than START and 3 symbols": lambda m, source, size, steps: listed_beam(
            stop=False
        )(m, source, size, steps + 1),
    },
}


@pytest.mark.parametrize("name", RIGHT)
def test_right_answers_are_accepted_and_the_empty_stub_is_not(name):
    assert CHECKS[name].audit() == []
    for answer in RIGHT[name]:
        assert CHECKS[name](answer), CHECKS[name](answer)
    verdict = CHECKS[name](STUB[name])
    assert not verdict
    assert "returns None. Write the missing lines" in verdict.message


@pytest.mark.parametrize(("name", "start"), [(name, start) for name in WRONG for start in WRONG[name]])
def test_wrong_answers_are_refused_with_their_cause(name, start):
    verdict = CHECKS[name](WRONG[name][start])
    assert not verdict
    assert verdict.message.startswith(f"Not yet: {start}")


def test_every_known_mistake_is_made_here():
    for name, starts in WRONG.items():
        for wrong in CHECKS[name].wrong:
            assert any(f"{wrong.name}. ".startswith(start) for start in starts), wrong.name


def test_the_page_has_five_exercises_each_with_a_checker_of_its_own():
    assert list(EXERCISES) == list(range(1, 6))
    assert checkers_of(PAGE) == list(RIGHT) == list(WRONG)
