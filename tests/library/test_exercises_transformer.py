"""Exercises of chapter 6, of its controls and of the models you know: right answers in other styles pass."""

import pytest
import torch
import torch.nn.functional as F
from exercise_cells import CHECKS, accepts

from mha_course.data.dates import DATE_LETTERS, END, START
from mha_lib import GPT2, DecoderBlock, EncoderBlock


def counted(embed_dim, num_heads, hidden_dim):
    block = DecoderBlock(embed_dim, num_heads, hidden_dim, bias=True)
    return sum(p.numel() for p in block.parameters())


class TorchPostNorm(EncoderBlock):
    """Torch's own layer, given the parameters of the block."""

    def __init__(self, *sizes):
        super().__init__(*sizes, norm_first=False, bias=True)

    def forward(self, x, mask=None):
        return self.to_torch()(x, src_mask=None if mask is None else ~mask)


def torch_loss(logits, target, smoothing):
    return F.cross_entropy(logits.flatten(0, 1), target.flatten(), label_smoothing=smoothing)


def loss_by_targets(logits, target, smoothing):
    """Cross-entropy with targets that are written out."""
    share = smoothing / logits.shape[-1]
    wanted = torch.full_like(logits, share).scatter_(-1, target.unsqueeze(-1), 1 - smoothing + share)
    return -(wanted * logits.log_softmax(-1)).sum(-1).mean()


def tied_the_other_way(model):
    model.target_embedding.weight = model.output.weight
    return model.output.out_features * model.output.in_features


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


def gates(num_heads):
    return torch.stack([(torch.arange(num_heads) == kept).float() for kept in range(num_heads)])


def written(model, memories, lens, switch, steps):
    """Greedy decoding with a list of what each step reads."""
    so_far = torch.tensor([[START]])
    for one in [0] * switch + [1] * (steps - switch):
        logits = model.decode(so_far, memories[one], source_lens=lens[one])
        so_far = torch.cat((so_far, logits[:, -1].argmax(-1)[:, None]), dim=1)
    return so_far[0, 1:]


def wide(text, spaces):
    row = torch.zeros(40, dtype=torch.int64)
    for place, letter in enumerate((" " * spaces).join(text.split(" "))[:40].rstrip()):
        row[place] = 1 + DATE_LETTERS.index(letter)
    return row


def parameters_of_gpt2(vocab_size, max_len, width, hidden, layers):
    model = GPT2(vocab_size, width, 1, hidden, layers, max_len=max_len, device="meta")
    return sum(p.numel() for p in model.parameters())


def loss_again(logits, twice):
    half, log_probs = twice.shape[1] // 2, logits.log_softmax(-1)
    return -log_probs[:, half:].gather(-1, twice[:, half + 1 :, None]).mean()


RIGHT = {
    "check_decoder_parameters": [counted, lambda e, _, h: 8 * e * e + 2 * e * h + 15 * e + h],
    "check_post_norm": [TorchPostNorm], "check_smooth_loss": [torch_loss, loss_by_targets],
    "check_tied": [tied_the_other_way], "check_beam": [beam_search], "check_one_head_left": [gates],
    "check_mixed_memory": [written], "check_wide_tokens": [wide],
    "check_gpt2_parameters": [parameters_of_gpt2], "check_loss_again": [loss_again],
}  # fmt: skip
test_other_right_answers_are_accepted = accepts(RIGHT)


def too_long(model, source, beam_size, steps):
    return [(0.0, [START] * (steps + 2))]


@pytest.mark.parametrize(("name", "answer", "sentence"), [
    ("check_post_norm", lambda *_: 3, "it raises TypeError: the class must be an nn.Module"),
    ("check_beam", lambda *_: 5, "it raises TypeError: the beam must be a list of pairs"),
    ("check_beam", too_long, "it raises ValueError: an answer is longer than START and 3 symbols"),
])  # fmt: skip
def test_what_has_another_form_is_asked_for_in_words(name, answer, sentence):
    assert sentence in CHECKS[name](answer).message
