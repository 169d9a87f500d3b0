"""The cases that every framework of chapters/rosetta gets, and their answers from loops in float64.

The inputs are sixteenths, so float32 holds them exactly. `make rosetta` writes them to vectors.json; the
answers are computed when they are needed and are never stored beside what they judge.
"""

import numpy as np
from oracles import dot, is_visible, linear, multi_head, softmax_rows, weighted_means

FORMAT = "attention vectors 1"
# Sizes that all differ within a case, so that a mix-up of axes cannot go unnoticed.
BATCH, EMBED_DIM, HEADS, Q_LEN, K_LEN = 2, 12, 3, 4, 5


class Sixteenths:
    """Numbers k/16 between -1 and 1, the same on every machine: a linear congruential generator."""

    def __init__(self, seed):
        self.state = seed

    def array(self, *shape):
        flat = np.empty(int(np.prod(shape)))
        for place in range(flat.size):
            self.state = (1664525 * self.state + 1013904223) % 2**32
            flat[place] = ((self.state >> 16) % 33 - 16) / 16
        return flat.reshape(shape)


def make_case(
    name, seed, *, heads=HEADS, q_len=Q_LEN, k_len=K_LEN, kdim=EMBED_DIM, vdim=EMBED_DIM,
    valid_lens=None, is_causal=False, bias=False, self_attention=False, ones=False,
):  # fmt: skip
    draw = Sixteenths(seed).array
    query = draw(BATCH, q_len, EMBED_DIM)
    key = query if self_attention else draw(BATCH, k_len, kdim)
    value = query if self_attention else draw(BATCH, k_len, vdim)
    if ones:
        query, key, value = (np.ones_like(x) for x in (query, key, value))
    widths = {"q_proj": EMBED_DIM, "k_proj": kdim, "v_proj": vdim, "out_proj": EMBED_DIM}
    weights = {f"{proj}.weight": draw(EMBED_DIM, width) for proj, width in widths.items()}
    if bias:
        weights |= {f"{proj}.bias": draw(EMBED_DIM) for proj in widths}
    return {
        "name": name, "num_heads": heads, "query": query, "key": key, "value": value,
        "valid_lens": None if valid_lens is None else np.array(valid_lens), "is_causal": is_causal,
        "weights": weights, "upstream": draw(*query.shape),
    }  # fmt: skip


def make_cases():
    """Every case, its arrays as numpy arrays."""
    return [
        make_case("self-attention", 1, self_attention=True),
        make_case("cross-attention, a length for each sample", 2, valid_lens=[5, 2]),
        make_case("a length for each query", 3, valid_lens=[[1, 3, 5, 2], [4, 1, 2, 5]]),
        make_case("causal, fewer queries than keys", 4, is_causal=True),
        make_case("causal and lengths", 5, self_attention=True, is_causal=True, valid_lens=[4, 3]),
        make_case("unequal widths", 6, kdim=7, vdim=10, heads=2),
        make_case("one head", 7, self_attention=True, heads=1, valid_lens=[3, 4]),
        make_case("many heads", 8, heads=EMBED_DIM, valid_lens=[3, 5]),
        make_case("biases", 9, bias=True, valid_lens=[2, 4]),
        make_case("a hidden row", 10, valid_lens=[[2, 0, 5, 3], [0, 4, 0, 1]]),
        make_case("all ones", 11, k_len=6, valid_lens=[3, 2], ones=True),
    ]


def as_json(cases):
    """What vectors.json holds."""

    def plain(value):
        if isinstance(value, dict):
            return {name: plain(part) for name, part in value.items()}
        return value.tolist() if isinstance(value, np.ndarray) else value

    return {"format": FORMAT, "cases": [plain(case) for case in cases]}


def hiding(case):
    return {"valid_lens": case["valid_lens"], "is_causal": case["is_causal"]}


def answer(case):
    """Output, weights and gradients of sum(output * upstream), by loops over single numbers."""
    inputs = case["query"], case["key"], case["value"]
    output, weights = multi_head(*inputs, case["weights"], case["num_heads"], **hiding(case))
    return {"output": output, "weights": weights, "gradients": gradients(case)}


def back_through_linear(grad, x, weight):
    """Gradients of x, of the weight (out, in) and of the bias, from the gradient of x W^T + b."""
    batch, length, _ = x.shape
    places = [(b, i) for b in range(batch) for i in range(length)]
    of_x, of_weight = np.empty(x.shape), np.empty(weight.shape)
    for b, i, c in np.ndindex(x.shape):
        of_x[b, i, c] = dot(grad[b, i], weight[:, c])
    for o, c in np.ndindex(weight.shape):
        of_weight[o, c] = dot([grad[b, i, o] for b, i in places], [x[b, i, c] for b, i in places])
    of_bias = [dot([grad[b, i, o] for b, i in places], [1.0] * len(places)) for o in range(len(weight))]
    return of_x, of_weight, np.array(of_bias)


def gradients(case):
    """The backward pass by hand, one head and one sample at a time."""
    parameters, heads = case["weights"], case["num_heads"]
    x = {"q": case["query"], "k": case["key"], "v": case["value"]}
    projected = {
        name: linear(x[name], parameters[f"{name}_proj.weight"], parameters.get(f"{name}_proj.bias"))
        for name in "qkv"
    }
    batch, q_len, embed_dim = case["query"].shape
    k_len, width = case["key"].shape[1], embed_dim // heads
    joined = np.empty((batch, q_len, embed_dim))
    kept = {}
    for b in range(batch):
        for h in range(heads):
            part = slice(h * width, (h + 1) * width)
            q, k, v = (projected[name][b][:, part] for name in "qkv")
            scores, seen = np.empty((q_len, k_len)), np.empty((q_len, k_len), dtype=bool)
            for i, j in np.ndindex(q_len, k_len):
                scores[i, j] = dot(q[i], k[j]) / width**0.5
                seen[i, j] = is_visible(b, h, i, j, q_len, k_len, **hiding(case))
            weights = softmax_rows(scores, seen)
            joined[b][:, part] = weighted_means(weights, v)
            kept[b, h] = q, k, v, weights

    of_joined, of_weight, of_bias = back_through_linear(
        case["upstream"], joined, parameters["out_proj.weight"]
    )
    found = {"out_proj.weight": of_weight, "out_proj.bias": of_bias}
    of_projected = {name: np.empty(projected[name].shape) for name in "qkv"}
    for (b, h), (q, k, v, weights) in kept.items():
        part = slice(h * width, (h + 1) * width)
        of_heads = of_joined[b][:, part]
        of_weights, of_scores = np.empty(weights.shape), np.empty(weights.shape)
        for i, j in np.ndindex(weights.shape):
            of_weights[i, j] = dot(of_heads[i], v[j])
        for i, j in np.ndindex(weights.shape):
            mean = dot(weights[i], of_weights[i])
            of_scores[i, j] = weights[i, j] * (of_weights[i, j] - mean) / width**0.5
        for i, c in np.ndindex(q.shape):
            of_projected["q"][b, i, h * width + c] = dot(of_scores[i], k[:, c])
        for j, c in np.ndindex(k.shape):
            of_projected["k"][b, j, h * width + c] = dot(of_scores[:, j], q[:, c])
            of_projected["v"][b, j, h * width + c] = dot(weights[:, j], of_heads[:, c])
    for name, long in (("q", "query"), ("k", "key"), ("v", "value")):
        of_x, of_weight, of_bias = back_through_linear(
            of_projected[name], x[name], parameters[f"{name}_proj.weight"]
        )
        found |= {long: of_x, f"{name}_proj.weight": of_weight, f"{name}_proj.bias": of_bias}
    return {name: array for name, array in found.items() if not name.endswith("bias") or name in parameters}
