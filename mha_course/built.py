"""What the reader of this course builds, chapter by chapter; nothing here uses `mha_lib`.

`make notebooks` writes this file from the cells tagged `build`: change it there.
"""

import math
from math import sqrt

import torch
import torch.nn.functional as F
from torch import nn

# 01_attention_pooling


def my_pooling(query, key, value):
    """Attention with dot products as scores: the output and the weights."""
    scores = query @ key.T  # (q_len, k_len): every query with every key
    weights = scores.softmax(-1)  # each row sums to 1
    return weights @ value, weights  # (q_len, value_dim): one mean for each query


# 02_scoring_functions


def my_masked_softmax(scores, mask=None):
    """Softmax over the keys that the mask shows; a row that sees none is zeros."""
    if mask is None:
        return scores.softmax(-1)
    shown = scores.masked_fill(~mask, torch.finfo(scores.dtype).min)
    return shown.softmax(-1) * mask


def my_lens_mask(valid_lens, k_len):
    """Show the first keys of each sample: (batch, 1, k_len)."""
    return torch.arange(k_len) < valid_lens[:, None, None]


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


# 03_multi_head_attention


class MyHead(nn.Module):
    """One head: three projections of its own, then attention."""

    def __init__(self, embed_dim, head_dim, kdim=None, vdim=None):
        super().__init__()
        self.q_proj = nn.Linear(embed_dim, head_dim, bias=False)
        self.k_proj = nn.Linear(kdim or embed_dim, head_dim, bias=False)
        self.v_proj = nn.Linear(vdim or embed_dim, head_dim, bias=False)

    def forward(self, query, key, value, mask=None):
        q = self.q_proj(query)  # (batch, q_len, head_dim)
        k = self.k_proj(key)  # (batch, k_len, head_dim)
        v = self.v_proj(value)  # (batch, k_len, head_dim)
        # (batch, q_len, head_dim), and weights (batch, q_len, k_len)
        return my_attention(q, k, v, mask)


class MyHeadLoop(nn.Module):
    """Multi-head attention, one head after another."""

    def __init__(self, embed_dim, num_heads, kdim=None, vdim=None):
        super().__init__()
        head_dim = embed_dim // num_heads
        heads = [MyHead(embed_dim, head_dim, kdim, vdim) for _ in range(num_heads)]
        self.heads = nn.ModuleList(heads)
        self.out_proj = nn.Linear(embed_dim, embed_dim, bias=False)

    def forward(self, query, key, value, mask=None):
        results = [head(query, key, value, mask) for head in self.heads]
        outputs, weights = zip(*results, strict=True)
        outputs = torch.cat(outputs, dim=-1)  # (batch, q_len, embed_dim)
        weights = torch.stack(weights, dim=1)  # (batch, num_heads, q_len, k_len)
        return self.out_proj(outputs), weights


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


class TwoPointers(nn.Module):
    """Name the previous and the mirrored token at each of twelve places."""

    def __init__(self, num_heads):
        super().__init__()
        self.tokens = nn.Embedding(8, 32)  # one row for each token
        self.places = nn.Embedding(12, 32)  # one row for each place
        self.attention = MyMultiHead(32, num_heads)
        self.read_out = nn.Linear(32, 2 * 8)

    def forward(self, tokens):
        x = self.tokens(tokens) + self.places.weight  # (batch, 12, 32)
        output, _ = self.attention(x, x, x)
        return self.read_out(output).unflatten(-1, (2, 8))  # (batch, 12, 2, 8)


# 04_self_attention


def sees_the_future(model, tokens, vocab_size):
    """True if some output (batch, len, ...) changes when only later tokens change."""
    generator = torch.Generator().manual_seed(0)
    shift = torch.randint(1, vocab_size, tokens.shape, generator=generator)
    others = (tokens + shift) % vocab_size  # differs from `tokens` everywhere
    with torch.no_grad():
        before = model(tokens)
        for i in range(tokens.shape[1] - 1):
            past, changed_future = tokens[:, : i + 1], others[:, i + 1 :]
            after = model(torch.cat((past, changed_future), dim=1))
            if not torch.allclose(after[:, : i + 1], before[:, : i + 1], atol=1e-6):
                return True
    return False


# 05_positional_encoding


def encoding_by_loops(num_positions, embed_dim, base=10_000.0):
    table = torch.zeros(num_positions, embed_dim)
    for p in range(num_positions):
        for c in range(embed_dim):
            i = c // 2
            angle = p * base ** (-2 * i / embed_dim)
            table[p, c] = math.sin(angle) if c % 2 == 0 else math.cos(angle)
    return table


class MyPositions(nn.Module):
    """Add row p of the table to token p."""

    def __init__(self, embed_dim, max_len):
        super().__init__()
        table = encoding_by_loops(max_len, embed_dim)
        # A buffer moves with the module to another device, and is not trained.
        self.register_buffer("encoding", table, persistent=False)

    def forward(self, x):  # (batch, len, embed_dim)
        return x + self.encoding[: x.shape[1]]


def bag_ceilings(three_back, latest_capital, num_samples=10_000, length=48):
    """Best share of right answers at each place for a model that sees a bag."""
    generator = torch.Generator().manual_seed(0)
    tokens, _ = three_back(generator, num_samples, length)
    earlier = nn.functional.one_hot(tokens, 8).cumsum(1)[:, 2:-1]
    three = earlier.amax(-1) / torch.arange(3, length)  # m earlier tokens at place m
    tokens, _ = latest_capital(generator, num_samples, length)
    is_capital = tokens >= 4
    capitals = nn.functional.one_hot(tokens % 4, 4) * is_capital[..., None]
    capitals = capitals.cumsum(1)
    latest = torch.where(is_capital, 1.0, capitals.amax(-1) / capitals.sum(-1))
    return {"three back": three.mean(0), "latest capital": latest.mean(0)}


# 06_transformer


class MyFeedForward(nn.Module):
    def __init__(self, embed_dim, hidden_dim):
        super().__init__()
        self.up_proj = nn.Linear(embed_dim, hidden_dim)
        self.down_proj = nn.Linear(hidden_dim, embed_dim)

    def forward(self, x):
        return self.down_proj(torch.relu(self.up_proj(x)))


def my_layer_norm(x, weight, bias, eps=1e-5):
    centred = x - x.mean(-1, keepdim=True)
    variance = centred.square().mean(-1, keepdim=True)
    return centred / torch.sqrt(variance + eps) * weight + bias


class MyEncoderBlock(nn.Module):
    """Tokens look at each other, then each is changed alone."""

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


class MyDecoderBlock(nn.Module):
    def __init__(self, embed_dim, num_heads, hidden_dim):
        super().__init__()
        self.self_attention = MyMultiHead(embed_dim, num_heads, bias=True)
        self.self_attention_norm = nn.LayerNorm(embed_dim)
        self.cross_attention = MyMultiHead(embed_dim, num_heads, bias=True)
        self.cross_attention_norm = nn.LayerNorm(embed_dim)
        self.feed_forward = MyFeedForward(embed_dim, hidden_dim)
        self.feed_forward_norm = nn.LayerNorm(embed_dim)

    def forward(self, x, memory, memory_mask=None):
        y = self.self_attention_norm(x)
        x = x + self.self_attention(y, y, y, my_causal_mask(x.shape[1]))[0]
        y = self.cross_attention_norm(x)
        x = x + self.cross_attention(y, memory, memory, memory_mask)[0]
        return x + self.feed_forward(self.feed_forward_norm(x))


class MyStack(nn.Module):
    def __init__(self, block, num_layers, *sizes):
        super().__init__()
        self.blocks = nn.ModuleList(block(*sizes) for _ in range(num_layers))
        self.norm = nn.LayerNorm(sizes[0])

    def forward(self, x, *others):
        for block in self.blocks:
            x = block(x, *others)
        return self.norm(x)


class MyTransformer(nn.Module):
    def __init__(self, source_vocab, target_vocab, width, num_heads, hidden, layers):
        super().__init__()
        self.source_embedding = nn.Embedding(source_vocab, width)
        self.target_embedding = nn.Embedding(target_vocab, width)
        self.positions = MyPositions(width, max_len=40)
        self.encoder = MyStack(MyEncoderBlock, layers, width, num_heads, hidden)
        self.decoder = MyStack(MyDecoderBlock, layers, width, num_heads, hidden)
        self.output = nn.Linear(width, target_vocab)

    def forward(self, source, target):  # (batch, len), (batch, target_len)
        visible = (source != 0).unsqueeze(1)  # (batch, 1, len); token 0 is padding
        x = self.positions(self.source_embedding(source))  # (batch, len, width)
        memory = self.encoder(x, visible)
        y = self.positions(self.target_embedding(target))  # (batch, target_len, width)
        y = self.decoder(y, memory, visible)
        return self.output(y)  # (batch, target_len, target_vocab)


# 07_gpt


def my_batch(tokens, batch_size, length, generator):
    """Random windows of a text, and for each place the token that follows it."""
    if len(tokens) <= length:
        raise ValueError(f"tokens must be more than {length}, got {len(tokens)}")
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
    # The last token of a window is only a target, and the first of the next window.
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


def my_cached_attention(query, key, value, cache=None):
    """Attention of the newest tokens to all so far: the output and the new cache."""
    if cache is not None:
        key = torch.cat((cache[0], key), dim=-2)  # (..., k_len, width)
        value = torch.cat((cache[1], value), dim=-2)
    mask = my_causal_mask(query.shape[-2], key.shape[-2])
    output, _ = my_attention(query, key, value, mask)
    return output, (key, value)


# 09_a_model_people_use


def my_dequantize(scale, least, packed):
    """The numbers of some blocks, (blocks, 32).

    Scales and minima are (blocks, 1); the bytes, `packed`, are (blocks, 16).
    """
    return torch.cat((packed & 15, packed >> 4), dim=1) * scale + least


class MyGroupedHeads(MyMultiHead):
    """Rotary multi-head attention in which query heads share keys and values."""

    def __init__(self, embed_dim, num_heads, num_kv_heads, base=10_000.0):
        super().__init__(embed_dim, num_heads)
        self.num_kv_heads, self.base = num_kv_heads, base
        width = embed_dim // num_heads * num_kv_heads
        self.k_proj = nn.Linear(embed_dim, width, bias=False)
        self.v_proj = nn.Linear(embed_dim, width, bias=False)

    def forward(self, query, key, value, mask=None):
        q = split_heads(self.q_proj(query), self.num_heads)
        k = split_heads(self.k_proj(key), self.num_kv_heads)
        v = split_heads(self.v_proj(value), self.num_kv_heads)
        group = self.num_heads // self.num_kv_heads
        k, v = (x.repeat_interleave(group, dim=1) for x in (my_turn(k, self.base), v))
        heads, weights = my_attention(my_turn(q, self.base), k, v, mask)
        return self.out_proj(merge_heads(heads)), weights


def my_row_order(weight, num_heads):
    """Rows of a query or key matrix, (num_heads * head_dim, embed_dim), in our order."""
    pairs = weight.unflatten(0, (num_heads, -1, 2))  # (heads, pairs, 2, embed_dim)
    return pairs.transpose(1, 2).reshape(weight.shape)


# appendix_models_you_know


class MyRMSNorm(nn.Module):
    """Divide each token by its root mean square, then multiply by a learned weight."""

    def __init__(self, embed_dim, eps=1e-6):
        super().__init__()
        self.eps = eps
        self.weight = nn.Parameter(torch.ones(embed_dim))

    def forward(self, x):
        mean_square = x.square().mean(-1, keepdim=True)
        return x / torch.sqrt(mean_square + self.eps) * self.weight


def my_turn(x, base=10_000.0):
    """Turn queries or keys, (batch, num_heads, len, head_dim), by their places."""
    length, width = x.shape[-2:]
    frequencies = base ** (-2 * torch.arange(width // 2) / width)
    angles = torch.arange(length)[:, None] * frequencies  # (len, head_dim / 2)
    a, b = x.chunk(2, dim=-1)  # chapter 5: x[..., 0::2], x[..., 1::2]
    cos, sin = angles.cos(), angles.sin()
    return torch.cat((a * cos - b * sin, a * sin + b * cos), dim=-1)


class MyRotaryHeads(MyMultiHead):
    """Your multi-head attention; queries and keys are turned after the split."""

    def forward(self, query, key, value, mask=None):  # mask: (len, len)
        projected = self.q_proj(query), self.k_proj(key), self.v_proj(value)
        q, k, v = (split_heads(y, self.num_heads) for y in projected)
        heads, weights = my_attention(my_turn(q), my_turn(k), v, mask)
        return self.out_proj(merge_heads(heads)), weights


class NoPositions(nn.Module):
    """Add nothing: the attention turns its queries and keys instead."""

    def forward(self, _places):
        return 0.0


class MySwiGLU(nn.Module):
    """The feed-forward layer of Llama: one hidden vector gates the other."""

    def __init__(self, embed_dim, hidden_dim):
        super().__init__()
        self.gate_proj = nn.Linear(embed_dim, hidden_dim, bias=False)
        self.up_proj = nn.Linear(embed_dim, hidden_dim, bias=False)
        self.down_proj = nn.Linear(hidden_dim, embed_dim, bias=False)

    def forward(self, x):  # (..., embed_dim)
        return self.down_proj(F.silu(self.gate_proj(x)) * self.up_proj(x))


__all__ = [
    "MyDecoderBlock",
    "MyEncoderBlock",
    "MyFeedForward",
    "MyGPT",
    "MyGroupedHeads",
    "MyHead",
    "MyHeadLoop",
    "MyMultiHead",
    "MyPositions",
    "MyRMSNorm",
    "MyRotaryHeads",
    "MyStack",
    "MySwiGLU",
    "MyTransformer",
    "NoPositions",
    "TwoPointers",
    "bag_ceilings",
    "encoding_by_loops",
    "merge_heads",
    "my_attention",
    "my_batch",
    "my_cached_attention",
    "my_causal_mask",
    "my_dequantize",
    "my_layer_norm",
    "my_lens_mask",
    "my_loss",
    "my_masked_softmax",
    "my_pooling",
    "my_probabilities",
    "my_row_order",
    "my_turn",
    "my_write",
    "sees_the_future",
    "split_heads",
    "train_gpt",
]
