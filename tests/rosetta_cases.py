"""The cases that every framework of chapters/rosetta gets, and their answers in float64.

The inputs are sixteenths, so float32 holds them exactly. `make rosetta` writes them to vectors.json; the
answers are computed when they are needed and are never stored beside what they judge.
"""

import numpy as np
import torch
import torch.nn.functional as F
from oracles import multi_head, visible_pairs

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
    """Output and weights by loops over single numbers, and the gradients of sum(output * upstream)."""
    inputs = case["query"], case["key"], case["value"]
    output, weights = multi_head(*inputs, case["weights"], case["num_heads"], **hiding(case))
    return {"output": output, "weights": weights, "gradients": gradients(case)}


def gradients(case):
    """Those of sum(output * upstream), by torch's derivatives of the formula in float64."""
    names = ("query", "key", "value")
    arrays = {name: case[name] for name in names} | case["weights"]
    leaves = {name: torch.tensor(array, requires_grad=True) for name, array in arrays.items()}

    def projected(x, proj):
        return F.linear(x, leaves[f"{proj}_proj.weight"], leaves.get(f"{proj}_proj.bias"))

    query, key, value = (
        projected(leaves[name], name[0]).unflatten(-1, (case["num_heads"], -1)).transpose(1, 2)
        for name in names
    )
    visible = visible_pairs(*query.shape[:3], key.shape[2], **hiding(case))
    shown = (query @ key.mT / query.shape[-1] ** 0.5).exp() * torch.from_numpy(visible)
    weights = shown / shown.sum(-1, keepdim=True).clamp(min=1e-300)  # a row that sees nothing stays zero
    output = projected((weights @ value).transpose(1, 2).flatten(2), "out")
    total = (output * torch.from_numpy(case["upstream"])).sum()
    found = torch.autograd.grad(total, [*leaves.values()])
    return {name: gradient.numpy() for name, gradient in zip(leaves, found, strict=True)}
