"""Slow answers to compare with: float64 loops, written from the formulas, that know nothing of mha_lib."""

import cmath
import itertools
import math

import numpy as np


def doubles(tensor):
    """A tensor's numbers as a float64 array; an array's too."""
    if isinstance(tensor, np.ndarray):
        return tensor.astype(float)
    return tensor.detach().to("cpu").double().numpy()


def dot(u, v):
    return math.fsum(float(a) * float(b) for a, b in zip(u, v, strict=True))


def score_matrix(rule, query, key):
    """rule(q, k) for every pair of (..., q_len, d) and (..., k_len, d), leading axes alike."""
    query, key = doubles(query), doubles(key)
    out = np.empty((*query.shape[:-1], key.shape[-2]))
    for where in np.ndindex(out.shape):
        *lead, i, j = where
        out[where] = rule(query[*lead, i], key[*lead, j])
    return out


def entry(tensor, *index):
    """One entry of a tensor whose axes of size 1 stand for any size."""
    return tensor[tuple(n if size > 1 else 0 for n, size in zip(index, tensor.shape, strict=True))]


def is_visible(b, h, i, j, q_len, k_len, attn_mask=None, valid_lens=None, is_causal=False, window=None):
    """Whether query i of head h in sample b may attend to key j, one rule after the other."""
    if attn_mask is not None:
        lead = {2: (), 3: (b,), 4: (b, h)}[attn_mask.ndim]
        if not bool(entry(attn_mask, *lead, i, j)):
            return False
    if valid_lens is not None and j >= int(entry(valid_lens, *(b, i)[: valid_lens.ndim])):
        return False
    # Query i has position i + (k_len - q_len), so the last query and the last key have the same position.
    ahead = j - (i + (k_len - q_len))
    if window is not None:
        left, right = window
        if left is not None and ahead < -left:
            return False
        if right is not None and ahead > right:
            return False
    return not (is_causal and ahead > 0)


def visible_pairs(batch, heads, q_len, k_len, **hide):
    """`is_visible` for all, a bool array (batch, heads, q_len, k_len)."""
    out = np.empty((batch, heads, q_len, k_len), dtype=bool)
    for b, h, i, j in np.ndindex(out.shape):
        out[b, h, i, j] = is_visible(b, h, i, j, q_len, k_len, **hide)
    return out


def softmax_rows(scores, visible, sink=None):
    """Softmax of each row over its visible entries; zeros in a row without any. (..., q_len, k_len).

    A sink is a score beside those of a row, whose weight goes nowhere.
    """
    scores = np.asarray(scores, dtype=float)
    out = np.zeros(scores.shape)
    for *where, i in np.ndindex(scores.shape[:-1]):
        row, seen = scores[*where, i], visible[*where, i]
        shown = [j for j in range(len(row)) if seen[j]]
        if shown:
            largest = max(row[j] for j in shown)
            parts = {j: math.exp(row[j] - largest) for j in shown}
            lost = 0.0 if sink is None else math.exp(sink - largest)
            for j in shown:
                out[*where, i, j] = parts[j] / (math.fsum(parts.values()) + lost)
    return out


def weighted_means(weights, value):
    """Row i of the result is the sum over j of weights[i, j] * value[j]. (..., q_len, value_dim)."""
    out = np.empty((*weights.shape[:-1], value.shape[-1]))
    for *lead, i, c in np.ndindex(out.shape):
        out[*lead, i, c] = dot(weights[*lead, i], value[*lead, :, c])
    return out


def cosine(q, k):
    return dot(q, k) / math.sqrt(dot(q, q) * dot(k, k))


def additive(module):
    w_q, w_k, w_s = (doubles(parameter) for parameter in module.parameters())
    return lambda q, k: dot(w_s[0], np.tanh(w_q @ q + w_k @ k))


def bilinear(module):
    (weight,) = (doubles(parameter) for parameter in module.parameters())
    return lambda q, k: dot(q, weight @ k)


def capped(score, softcap):
    """A score as it is, or softcap * tanh(score / softcap)."""
    return score if softcap is None else softcap * math.tanh(score / softcap)


def biased(scores, attn_bias):
    """(batch, heads, q_len, k_len) scores plus a bias of rank 2 or 4, entry by entry."""
    out = np.array(scores, dtype=float)
    if attn_bias is not None:
        for b, h, i, j in np.ndindex(out.shape):
            lead = {2: (), 4: (b, h)}[attn_bias.ndim]
            out[b, h, i, j] += float(entry(attn_bias, *lead, i, j))
    return out


def shared_heads(x, num_heads):
    """(batch, num_kv_heads, len, width) -> (batch, num_heads, len, width), neighbours share a head."""
    num_kv_heads = x.shape[1]
    return x[:, [h * num_kv_heads // num_heads for h in range(num_heads)]]


def attention(query, key, value, *, attn_bias=None, scale=None, softcap=None, **hide):
    """Scaled dot-product attention of (batch, heads, len, width) tensors: (output, weights).

    One thing after the other: scale * q·k, the cap, the bias, the mask, the softmax, the mean.
    """
    factor = 1 / math.sqrt(query.shape[-1]) if scale is None else scale
    key, value = (shared_heads(x, query.shape[1]) for x in (key, value))
    scores = score_matrix(lambda q, k: capped(factor * dot(q, k), softcap), query, key)
    scores = biased(scores, attn_bias)
    weights = softmax_rows(scores, visible_pairs(*scores.shape, **hide))
    return weighted_means(weights, doubles(value)), weights


def linear(x, weight, bias=None):
    """Rows of x times weight transposed, plus bias; (batch, len, in) and (out, in)."""
    x, weight = doubles(x), doubles(weight)
    out = np.empty((*x.shape[:-1], len(weight)))
    for *lead, c in np.ndindex(out.shape):
        out[*lead, c] = dot(x[*lead], weight[c]) + (0.0 if bias is None else float(bias[c]))
    return out


def rms_normed(x, weight, eps):
    """Each row of x over the root of the mean of its squares, times the weight."""
    return x / np.sqrt((x**2).mean(-1, keepdims=True) + eps) * doubles(weight)


def multi_head(
    query,
    key,
    value,
    parameters,
    num_heads,
    num_kv_heads=None,
    *,
    rule=None,
    scale=None,
    softcap=None,
    norm_eps=None,
    turn=None,
    attn_bias=None,
    **hide,
):
    """Multi-head attention, one head at a time, from the tensors of a state dict: (output, weights).

    rule(q, k) scores a pair instead of q·k / √width, and `scale`, one number or one for each head, takes the
    place of 1 / √width; turn(x, first) turns the rows of x (batch, len, width), the first of which stands at
    place `first`. Norms and sinks of heads are used where the state dict has them.
    """
    num_kv_heads = num_kv_heads or num_heads
    projected = {
        name: linear(x, parameters[f"{name}_proj.weight"], parameters.get(f"{name}_proj.bias"))
        for name, x in (("q", query), ("k", key), ("v", value))
    }
    width = projected["q"].shape[-1] // num_heads
    scale = 1 / math.sqrt(width) if scale is None else scale
    scales = np.broadcast_to(scale if isinstance(scale, float) else doubles(scale).ravel(), num_heads)
    sinks = doubles(parameters["sink"]) if "sink" in parameters else [None] * num_heads
    joined, weights = [], []
    for h in range(num_heads):
        own, shared = (h, h * num_kv_heads // num_heads)  # consecutive query heads share a key-value head
        q = projected["q"][:, :, own * width : (own + 1) * width]
        k, v = (projected[name][:, :, shared * width : (shared + 1) * width] for name in "kv")
        batch, q_len, k_len = len(q), q.shape[1], k.shape[1]
        if "q_norm.weight" in parameters:
            q, k = (
                rms_normed(x, parameters[f"{name}_norm.weight"], norm_eps)
                for name, x in zip("qk", (q, k), strict=True)
            )
        if turn is not None:
            q, k = turn(q, k_len - q_len), turn(k, 0)
        scores = np.empty((batch, q_len, k_len))
        seen = np.empty(scores.shape, dtype=bool)
        for b, i, j in np.ndindex(scores.shape):
            pair = q[b, i], k[b, j]
            scores[b, i, j] = capped(rule(*pair) if rule else scales[h] * dot(*pair), softcap)
            if attn_bias is not None:
                lead = {2: (), 4: (b, h)}[attn_bias.ndim]
                scores[b, i, j] += float(entry(attn_bias, *lead, i, j))
            seen[b, i, j] = is_visible(b, h, i, j, q_len, k_len, **hide)
        weights.append(softmax_rows(scores, seen, sinks[h]))
        joined.append(weighted_means(weights[-1], v))
    together = np.concatenate(joined, axis=-1)
    weight, bias = (doubles(parameters["out_proj.weight"]), parameters.get("out_proj.bias"))
    output = np.empty((*together.shape[:-1], len(weight)))
    for b, i, c in np.ndindex(output.shape):
        output[b, i, c] = dot(together[b, i], weight[c]) + (0.0 if bias is None else float(bias[c]))
    return output, np.stack(weights, axis=1)


def sinusoids(num_positions, width, base=10_000.0):
    """PE(p, 2i) = sin(p / base^(2i / width)), PE(p, 2i + 1) = cos of the same (Vaswani et al., 2017)."""
    out = np.empty((num_positions, width))
    for position, column in np.ndindex(out.shape):
        pair = column // 2
        angle = position / base ** (2 * pair / width)
        out[position, column] = math.cos(angle) if column % 2 else math.sin(angle)
    return out


def rotated(
    x, positions=None, *, first=0, rotary_dim=None, interleaved=True, base=10_000.0, frequencies=None
):
    """Each pair of columns of (..., len, width) as a complex number, times exp(i * position * frequency).

    The rows stand at `positions`, (len,) or (batch, len), or else one after another from `first` on. Only the
    first `rotary_dim` columns turn. `frequencies`, (len, pairs), replace those of the base.
    """
    x = doubles(x)
    out, width = x.copy(), rotary_dim or x.shape[-1]
    if frequencies is None:
        frequencies = [[base ** (-2 * pair / width) for pair in range(width // 2)]] * x.shape[-2]
    positions = np.arange(first, first + x.shape[-2]) if positions is None else np.asarray(positions)
    for *lead, row, pair in np.ndindex(*x.shape[:-1], width // 2):
        position = float(positions[row] if positions.ndim == 1 else positions[lead[0], row])
        one, two = (2 * pair, 2 * pair + 1) if interleaved else (pair, pair + width // 2)
        number = complex(x[*lead, row, one], x[*lead, row, two])
        number *= cmath.exp(1j * position * frequencies[row][pair])
        out[*lead, row, one], out[*lead, row, two] = number.real, number.imag
    return out


def entropy_floor(length, transition):
    """Mean over the places of E[-log P(next | now)], by going through every sequence of length + 1 tokens."""
    transition = doubles(transition)
    tokens = range(len(transition))
    total = 0.0
    for sequence in itertools.product(tokens, repeat=length + 1):
        steps = [transition[a, b] for a, b in itertools.pairwise(sequence)]
        probability = math.prod(steps) / len(transition)
        if probability > 0:
            total += probability * sum(-math.log(step) for step in steps)
    return total / length
