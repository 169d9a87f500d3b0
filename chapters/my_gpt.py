"""Train a small GPT on a text file, and let it write. It needs torch, and nothing else.

    python my_gpt.py letters.txt --prompt "Dear "

Every piece was written in a chapter of the course, whose code is free to use (MIT licence).
"""

import argparse
import sys
from math import sqrt
from pathlib import Path

import torch
import torch.nn.functional as F
from torch import nn


def my_masked_softmax(scores, mask=None):
    """Softmax over the keys that the mask shows; a row that sees none is zeros."""
    if mask is None:
        return scores.softmax(-1)
    shown = scores.masked_fill(~mask, torch.finfo(scores.dtype).min)
    return shown.softmax(-1) * mask


def my_causal_mask(q_len, k_len=None):
    """Show each query its own place and all earlier ones, (q_len, k_len)."""
    k_len = q_len if k_len is None else k_len
    place = torch.arange(q_len)[:, None] + (k_len - q_len)
    return torch.arange(k_len) <= place


def my_attention(query, key, value, mask=None):
    """Scaled dot-product attention: the output and the weights."""
    width = query.shape[-1]
    scores = query @ key.transpose(-2, -1) / sqrt(width)  # (..., q_len, k_len)
    weights = my_masked_softmax(scores, mask)  # (..., q_len, k_len)
    return weights @ value, weights  # (..., q_len, value_dim)


def split_heads(x, num_heads):
    x = x.unflatten(-1, (num_heads, -1))  # (batch, len, num_heads, head_dim)
    return x.transpose(1, 2)  # (batch, num_heads, len, head_dim)


def merge_heads(x):
    x = x.transpose(1, 2)  # (batch, len, num_heads, head_dim)
    return x.flatten(-2)  # (batch, len, embed_dim)


class MyMultiHead(nn.Module):
    """Multi-head attention, all heads at once."""

    def __init__(self, embed_dim, num_heads, kdim=None, vdim=None, bias=False):
        super().__init__()
        self.num_heads = num_heads
        self.q_proj = nn.Linear(embed_dim, embed_dim, bias=bias)
        self.k_proj = nn.Linear(kdim or embed_dim, embed_dim, bias=bias)
        self.v_proj = nn.Linear(vdim or embed_dim, embed_dim, bias=bias)
        self.out_proj = nn.Linear(embed_dim, embed_dim, bias=bias)

    def forward(self, query, key, value, mask=None):
        q = self.q_proj(query)  # (batch, q_len, embed_dim)
        k = self.k_proj(key)  # (batch, k_len, embed_dim)
        v = self.v_proj(value)  # (batch, k_len, embed_dim)
        q = split_heads(q, self.num_heads)  # (batch, num_heads, q_len, head_dim)
        k = split_heads(k, self.num_heads)  # (batch, num_heads, k_len, head_dim)
        v = split_heads(v, self.num_heads)  # (batch, num_heads, k_len, head_dim)
        if mask is not None and mask.ndim == 3:
            mask = mask.unsqueeze(1)  # (batch, 1, 1 or q_len, k_len)
        heads, weights = my_attention(q, k, v, mask)  # heads: shaped as q
        output = merge_heads(heads)  # (batch, q_len, embed_dim)
        return self.out_proj(output), weights  # (batch, q_len, embed_dim)


class MyFeedForward(nn.Module):
    def __init__(self, embed_dim, hidden_dim):
        super().__init__()
        self.up_proj = nn.Linear(embed_dim, hidden_dim)
        self.down_proj = nn.Linear(hidden_dim, embed_dim)

    def forward(self, x):
        return self.down_proj(torch.relu(self.up_proj(x)))


class MyEncoderBlock(nn.Module):
    def __init__(self, embed_dim, num_heads, hidden_dim):
        super().__init__()
        self.self_attention = MyMultiHead(embed_dim, num_heads, bias=True)
        self.self_attention_norm = nn.LayerNorm(embed_dim)
        self.feed_forward = MyFeedForward(embed_dim, hidden_dim)
        self.feed_forward_norm = nn.LayerNorm(embed_dim)

    def forward(self, x, mask=None):  # (batch, len, embed_dim)
        y = self.self_attention_norm(x)
        x = x + self.self_attention(y, y, y, mask)[0]
        return x + self.feed_forward(self.feed_forward_norm(x))


def my_batch(tokens, batch_size, length, generator):
    """Random windows of a text, and for each place the token that follows it."""
    starts = torch.randint(len(tokens) - length, (batch_size, 1), generator=generator)
    windows = tokens[starts + torch.arange(length + 1)]  # (batch, length + 1)
    return windows[:, :-1], windows[:, 1:]  # both (batch, length)


class MyGPT(nn.Module):
    """Predict the next token at each place of a text."""

    def __init__(self, vocab_size, embed_dim, num_heads, num_layers, max_len):
        super().__init__()
        self.max_len = max_len
        self.embedding = nn.Embedding(vocab_size, embed_dim)
        self.position_embedding = nn.Embedding(max_len, embed_dim)
        sizes = embed_dim, num_heads, 4 * embed_dim
        self.blocks = nn.ModuleList(MyEncoderBlock(*sizes) for _ in range(num_layers))
        self.norm = nn.LayerNorm(embed_dim)
        self.output = nn.Linear(embed_dim, vocab_size, bias=False)

    def forward(self, tokens):  # (batch, len)
        places = torch.arange(tokens.shape[1])
        x = self.embedding(tokens) + self.position_embedding(places)
        mask = my_causal_mask(len(places))
        for block in self.blocks:
            x = block(x, mask)
        return self.output(self.norm(x))  # (batch, len, vocab_size)


def train_gpt(model, tokens, steps, lr=0.01, seed=0):
    """Train in place; yield the number and the loss of each step."""
    generator = torch.Generator().manual_seed(seed)
    optimizer = torch.optim.AdamW(model.parameters(), weight_decay=0.1)
    schedule = torch.optim.lr_scheduler.OneCycleLR(optimizer, lr, steps, pct_start=0.05)
    for step in range(1, steps + 1):
        inputs, targets = my_batch(tokens, 16, model.max_len, generator)
        loss = F.cross_entropy(model(inputs).mT, targets)
        optimizer.zero_grad()
        loss.backward()
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        schedule.step()
        yield step, loss.item()


def my_loss(model, tokens):
    """The mean loss on a text, in windows as long as the table of positions."""
    windows = tokens.unfold(0, model.max_len + 1, model.max_len)[:500]
    with torch.no_grad():
        return F.cross_entropy(model(windows[:, :-1]).mT, windows[:, 1:]).item()


def my_probabilities(logits, temperature=1.0, top_k=None):
    """The probabilities from which the next token is drawn, (..., vocab_size)."""
    logits = logits / temperature
    if top_k is not None:
        least = logits.topk(top_k).values[..., -1:]
        logits = logits.masked_fill(logits < least, -torch.inf)
    return logits.softmax(-1)


def my_write(model, tokens, number, temperature=1.0, top_k=None, seed=0):
    """Continue a text, (len,), by so many tokens, one after another."""
    generator = torch.Generator().manual_seed(seed)
    for _ in range(number):
        with torch.no_grad():
            logits = model(tokens[None, -model.max_len :])[0, -1]  # of the last place
        chances = my_probabilities(logits, temperature, top_k)
        drawn = torch.multinomial(chances, 1, generator=generator)
        tokens = torch.cat((tokens, drawn))
    return tokens


WIDTH, HEADS, LAYERS, LENGTH = 64, 4, 2, 64  # larger ones learn more, and more slowly

parser = argparse.ArgumentParser(description="Train a small GPT, and let it write.")
parser.add_argument("file", help="any text in UTF-8")
parser.add_argument("--prompt", help="what to continue; default: how the text begins")
parser.add_argument("--steps", type=int, default=10_000, help="at least 100")
asked = parser.parse_args()
try:
    text = Path(asked.file).read_text(encoding="utf-8")
except UnicodeDecodeError:
    sys.exit(f"{asked.file} is not UTF-8: save it as plain text in UTF-8.")
except OSError as error:
    sys.exit(f"{asked.file} cannot be read: {error.strerror}.")
if len(text) < (least := 10 * (LENGTH + 1)):
    sys.exit(f"{asked.file} has {len(text)} characters, at least {least} are needed.")
prompt = text[:20] if asked.prompt is None else asked.prompt
if not prompt:
    sys.exit("The prompt is empty: give the model at least one character.")
if unseen := sorted(set(prompt) - set(text)):
    sys.exit(f"The prompt has characters that the text lacks: {unseen}.")
if asked.steps < 100:
    sys.exit(f"There must be at least 100 steps, and not {asked.steps}.")
characters = sorted(set(text))
ids = {character: i for i, character in enumerate(characters)}
tokens, start = (torch.tensor([ids[c] for c in part]) for part in (text, prompt))
train, held_out = tokens.tensor_split([len(tokens) * 9 // 10])
torch.manual_seed(0)
model = MyGPT(len(characters), WIDTH, HEADS, LAYERS, LENGTH)
for step, loss in train_gpt(model, train, asked.steps):
    if step % (asked.steps // 10) == 0:
        print(f"step {step}: loss {loss:.2f}, held-out {my_loss(model, held_out):.2f}")
print("".join(characters[token] for token in my_write(model, start, 500, 0.8)))
