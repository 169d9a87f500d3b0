"""Small language models on the text of this book: what they predict, and what their induction heads do.

A Llama is trained on passages of the book alone. Its controls are n-gram models of the same tokens, whose
constant is chosen on the validation part.

A GPT-2 learns from passages and from rows of random tokens that repeat with an unknown period: from its
second period on, such a row can be predicted by induction only. Its controls are one layer instead of two,
and the passages alone. Nothing is measured on a section that training or a choice has seen.
"""

import math
from collections import Counter
from contextlib import ExitStack
from functools import partial
from itertools import combinations

import torch
from common import Arm
from torch import nn
from torch.nn import functional as F

from mha_course.data.book_text import VOCAB_SIZE, book_batch, book_tokens, decode_tokens
from mha_lib import GPT2, Llama, capture_attention, gate_heads

WIDTH, HEADS, LAYERS, LENGTH = 64, 4, 2, 128
# The hidden layers of both designs have about as many parameters: two and three matrices.
HIDDEN = {"Llama": 168, "GPT-2": 256}
# Samples of a batch: passages of the book, and rows that repeat.
PASSAGES = {"Llama": 8, "GPT-2": 4}
REPEATED, PERIODS = 8, (6, 32)
STEPS = {"Llama": 3000, "GPT-2": 4000}
LR = {"Llama": 4e-3, "GPT-2": 3e-3}
WARMUP, CLIP = 0.05, 1.0
BECAUSE = "one kind of model is described; induction.py compares depths, at three rates"
# Embeddings that start at the usual 0.02 are drowned by what the layers add to them.
START = 0.3
# No target: in the first period of a row nobody can know the next token.
UNKNOWN = -100
# The blocks that are repeated when the models are tested: as long as in training, and twice as long.
BLOCK, LONG, BLOCKS = 30, 60, 50
ORDERS = ("unigram", "bigram", "trigram", "4-gram", "5-gram")
DISCOUNTS = (0.6, 0.7, 0.8, 0.85, 0.9, 0.95)


def passage_loss(outputs, targets):
    """The models return their hidden states too."""
    return F.cross_entropy(outputs[1].transpose(1, 2), targets)


def mixed_loss(outputs, targets):
    """What repeats and the passages count alike, whatever the number of their tokens."""
    logits = outputs[1].transpose(1, 2)
    repeated = F.cross_entropy(
        logits[:REPEATED], targets[:REPEATED], ignore_index=UNKNOWN
    )
    return repeated + F.cross_entropy(logits[REPEATED:], targets[REPEATED:])


def passages(number, generator):
    return book_batch(number, LENGTH, generator=generator)


def mixture(number, generator):
    """Rows of distinct random tokens that repeat, with a period of their own, then passages."""
    first, last = PERIODS
    period = torch.randint(first, last + 1, (REPEATED, 1), generator=generator)
    place = torch.arange(LENGTH + 1)
    drawn = torch.rand(REPEATED, VOCAB_SIZE, generator=generator).argsort(-1)
    rows = drawn.gather(1, place % period)
    known = rows[:, 1:].masked_fill(place[1:] <= period, UNKNOWN)
    inputs, targets = passages(number, generator)
    return torch.cat((rows[:, :-1], inputs)), torch.cat((known, targets))


def windows(part):
    """All tokens of a part, in windows that overlap by half; (inputs, targets)."""
    found = book_tokens(part).unfold(0, LENGTH + 1, LENGTH // 2)
    return found[:, :-1], found[:, 1:]


def losses_of(model, inputs, targets):
    """The loss of every token, in nats."""
    with torch.no_grad():
        logits = model(inputs)[1]
    return F.cross_entropy(logits.transpose(1, 2), targets, reduction="none")


def book_loss(model, part="test"):
    """Mean loss of the second half of every window: each token is predicted from at least 65 others."""
    return losses_of(model, *windows(part))[:, LENGTH // 2 :].mean()


def random_block(part, length=BLOCK):
    """Random tokens, (BLOCKS, length)."""
    generator = torch.Generator().manual_seed({"test": 99, "validation": 98}[part])
    return torch.randint(VOCAB_SIZE, (BLOCKS, length), generator=generator)


def blocks(part):
    """What is said twice, (BLOCKS, BLOCK) tokens: random ones, and passages of a part."""
    text = book_tokens(part).unfold(0, BLOCK, BLOCK)[:BLOCKS]
    return {"random": random_block(part), "text": text}


def repeat_losses(model, block):
    """Loss of the same tokens when they are said first, and again, (2,). The first token is left out."""
    twice = block.repeat(1, 2)
    loss = losses_of(model, twice[:, :-1], twice[:, 1:])
    return torch.stack((loss[:, : BLOCK - 1].mean(), loss[:, BLOCK:].mean()))


def look_back(model, block):
    """Where heads look when a block is said twice, the mean over its rows.

    Returns:
        (2, layers, heads, places): the weight of the second saying on the token after the earlier occurrence
        (induction), and the weight of the first saying on the token before. There is one place less than
        tokens: the last token has nothing after it, the first nothing before it.
    """
    length = block.shape[1]
    with capture_attention(model) as captured, torch.no_grad():
        model(block.repeat(1, 2))
    weights = torch.stack(list(captured.values())).mean(1)
    following = weights[:, :, length:].diagonal(1, 2, 3)[..., : length - 1]
    before = weights[:, :, :length].diagonal(-1, 2, 3)
    return torch.stack((following, before))


def by_place(model):
    """For long blocks: induction by the heads of the last layer, and the best head on the token before.

    (2, LONG - 1), both by the place of the key that is needed: a token and, before it, what was said then.
    """
    induction, previous = look_back(model, random_block("validation", LONG))
    return torch.stack((induction[-1].mean(0), previous[0].amax(0)))


def without_heads(model, heads, measure):
    """What `measure` gives while heads, pairs of (layer, head), are switched off."""
    gates = torch.ones(len(model.encoder.blocks), HEADS)
    for layer, head in heads:
        gates[layer, head] = 0.0
    with ExitStack() as stack:
        for block, gate in zip(model.encoder.blocks, gates, strict=True):
            stack.enter_context(gate_heads(block.self_attention, gate))
        return measure(model)


def damage(model):
    """Losses that heads may matter to, (5,): random tokens and text, each first and again; the test part."""
    said = [repeat_losses(model, block) for block in blocks("test").values()]
    return torch.cat((*said, book_loss(model)[None]))


def without_subsets(model, layer):
    """The damage without 1, 2, ... heads of a layer, the mean over all choices, (HEADS, 5)."""
    rows = []
    for number in range(1, HEADS + 1):
        choices = combinations([(layer, head) for head in range(HEADS)], number)
        found = [without_heads(model, chosen, damage) for chosen in choices]
        rows.append(torch.stack(found).mean(0))
    return torch.stack(rows)


def measure(models):
    """The losses, the heads' scores, and the losses while heads are switched off."""
    found = {}
    for model in models:
        layers = len(model.encoder.blocks)
        said = [repeat_losses(model, block) for block in blocks("test").values()]
        # The scores and the losses that they sort come from different texts.
        scores = [
            look_back(model, block).mean(-1) for block in blocks("validation").values()
        ]
        single = [
            without_heads(model, [(layer, head)], damage)
            for layer in range(layers)
            for head in range(HEADS)
        ]
        induction, previous = torch.stack(scores, dim=1)
        single = torch.stack(single).unflatten(0, (layers, HEADS))
        for name, value in (
            ("test loss", book_loss(model)),
            ("validation loss", book_loss(model, "validation")),
            ("said first and again", torch.stack(said)),
            ("induction", induction),
            ("previous token", previous),
            ("without one head", single),
            ("without heads of the last layer", without_subsets(model, layers - 1)),
            ("by place", by_place(model)),
        ):
            found.setdefault(name, []).append(value)
    return {name: torch.stack(values) for name, values in found.items()}


def make_llama():
    sizes = (WIDTH, HEADS, HIDDEN["Llama"], LAYERS)
    return Llama(VOCAB_SIZE, *sizes, max_len=LENGTH, tied=True)


def make_gpt2(layers):
    sizes = (WIDTH, HEADS, HIDDEN["GPT-2"], layers)
    model = GPT2(VOCAB_SIZE, *sizes, max_len=LENGTH)
    for table in (model.embedding, model.position_embedding):
        nn.init.normal_(table.weight, std=START)
    return model


def arm(design, model, batch, loss, keep=0):
    options = {"steps": STEPS[design], "rates": (LR[design],), "keep": keep}
    options |= {"loss": loss, "warmup": WARMUP, "clip": CLIP, "because": BECAUSE}
    return Arm(model, partial(batch, PASSAGES[design]), measure, **options)


ARMS = {
    "Llama": arm("Llama", make_llama, passages, passage_loss, keep=1),
    "GPT-2, repeats": arm(
        "GPT-2", partial(make_gpt2, LAYERS), mixture, mixed_loss, keep=1
    ),
    "GPT-2, repeats, 1 layer": arm("GPT-2", partial(make_gpt2, 1), mixture, mixed_loss),
    "GPT-2, no repeats": arm(
        "GPT-2", partial(make_gpt2, LAYERS), passages, passage_loss
    ),
}


class Ngrams:
    """Interpolated n-grams with absolute discounting (Ney, Essen & Kneser, 1994).

    From each count the discount is taken off; what it frees goes to the model of a context one token shorter,
    and at last to all tokens alike.
    """

    def __init__(self, tokens, order):
        self.order = order
        tokens = tokens.tolist()
        self.counts, self.totals, self.kinds = Counter(), Counter(), Counter()
        for length in range(order):
            for end in range(length, len(tokens)):
                context = tuple(tokens[end - length : end])
                gram = (*context, tokens[end])
                self.kinds[context] += gram not in self.counts
                self.counts[gram] += 1
                self.totals[context] += 1

    def probability(self, token, context, discount):
        """The probability of a token after a context, a tuple."""
        chance = 1 / VOCAB_SIZE
        for length in range(len(context) + 1):
            shorter = context[len(context) - length :]
            total = self.totals[shorter]
            if total:
                kept = max(self.counts[*shorter, token] - discount, 0.0)
                chance = (kept + discount * self.kinds[shorter] * chance) / total
        return chance

    def loss(self, part, discount):
        """Mean loss in nats, of the tokens that `book_loss` scores."""
        tokens = book_tokens(part).tolist()
        scored, total = range(*scored_tokens(part)), 0.0
        for end in scored:
            context = tuple(tokens[end - self.order + 1 : end])
            total -= math.log(self.probability(tokens[end], context, discount))
        return total / len(scored)


def scored_tokens(part):
    """The first token that `book_loss` scores, and the one after the last."""
    count = len(windows(part)[0])
    return LENGTH // 2 + 1, (count - 1) * (LENGTH // 2) + LENGTH + 1


def ngram_loss(order):
    """The loss on the test part with the discount that is best on the validation part."""
    ngrams = Ngrams(book_tokens("train"), order)
    discount = min(DISCOUNTS, key=partial(ngrams.loss, "validation"))
    return ngrams.loss("test", discount)


def tokens_per_character():
    """In the tokens that `book_loss` scores: what turns nats per token into nats per character."""
    first, end = scored_tokens("test")
    return (end - first) / len(decode_tokens(book_tokens("test")[first:end]))


BOUNDS = {
    "uniform": math.log(VOCAB_SIZE),
    **{name: ngram_loss(order) for order, name in enumerate(ORDERS, start=1)},
    "tokens per character": tokens_per_character(),
}
