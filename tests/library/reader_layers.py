"""Layers as readers write them: right ones in many styles, and wrong ones, made by editing the right ones.

Nothing here is taken from mha_lib: the checker must recognise a mistake in code that it has never seen.
"""

import runpy

import numpy as np
import torch
from torch import nn

# Three styles. An edit replaces lines of one of them.

AT_ONCE = """
import torch
from torch import nn
import torch.nn.functional as F


class Layer(nn.Module):
    def __init__(self, embed_dim, num_heads, kdim=None, vdim=None):
        super().__init__()
        self.num_heads = num_heads
        self.head_dim = embed_dim // num_heads
        self.q_proj = nn.Linear(embed_dim, embed_dim, bias=False)
        self.k_proj = nn.Linear(kdim or embed_dim, embed_dim, bias=False)
        self.v_proj = nn.Linear(vdim or embed_dim, embed_dim, bias=False)
        self.out_proj = nn.Linear(embed_dim, embed_dim, bias=False)

    def split(self, x):
        batch, length, _ = x.shape
        x = x.view(batch, length, self.num_heads, self.head_dim)
        return x.transpose(1, 2)

    def merge(self, x):
        batch, _, length, _ = x.shape
        x = x.transpose(1, 2).contiguous()
        return x.view(batch, length, -1)

    def forward(self, query, key, value, mask=None):
        q = self.split(self.q_proj(query))
        k = self.split(self.k_proj(key))
        v = self.split(self.v_proj(value))
        scores = q @ k.transpose(-2, -1) / self.head_dim**0.5
        if mask is not None:
            if mask.ndim == 3:
                mask = mask[:, None]
            scores = scores.masked_fill(mask == 0, float("-inf"))
        weights = torch.softmax(scores, dim=-1)
        if mask is not None:
            weights = weights.masked_fill(mask == 0, 0.0)
        output = self.merge(weights @ v)
        return self.out_proj(output), weights
"""

FOLDED = '''
import torch
from torch import nn


class Layer(nn.Module):
    """Heads are folded into the batch, as in older code."""

    def __init__(self, embed_dim, num_heads, kdim=None, vdim=None):
        super().__init__()
        self.h = num_heads
        self.out_proj = nn.Linear(embed_dim, embed_dim)
        self.v_proj = nn.Linear(vdim if vdim else embed_dim, embed_dim)
        self.k_proj = nn.Linear(kdim if kdim else embed_dim, embed_dim)
        self.q_proj = nn.Linear(embed_dim, embed_dim)

    def fold(self, x):
        x = x.reshape(x.shape[0], x.shape[1], self.h, -1).permute(0, 2, 1, 3)
        return x.reshape(-1, x.shape[2], x.shape[3])

    def unfold(self, x):
        x = x.reshape(-1, self.h, x.shape[1], x.shape[2]).permute(0, 2, 1, 3)
        return x.reshape(x.shape[0], x.shape[1], -1)

    def forward(self, query, key, value, mask=None):
        batch = query.shape[0]
        q = self.fold(self.q_proj(query))
        k = self.fold(self.k_proj(key))
        v = self.fold(self.v_proj(value))
        scores = torch.bmm(q, k.transpose(1, 2)) / q.shape[2] ** 0.5
        if mask is not None:
            if mask.ndim == 2:
                mask = mask[None].expand(batch, -1, -1)
            mask = mask.repeat_interleave(self.h, dim=0)
            scores = torch.where(mask, scores, torch.finfo(scores.dtype).min)
        weights = scores.softmax(2)
        if mask is not None:
            weights = weights * mask
        output = self.out_proj(self.unfold(torch.bmm(weights, v)))
        return output, weights.unflatten(0, (batch, self.h))
'''

LOOP = """
import math
import torch
from torch import nn


class Layer(nn.Module):
    def __init__(self, embed_dim, num_heads, kdim=None, vdim=None):
        super().__init__()
        self.num_heads, self.head_dim = num_heads, embed_dim // num_heads
        self.k_proj = nn.Linear(kdim or embed_dim, embed_dim, bias=False)
        self.q_proj = nn.Linear(embed_dim, embed_dim, bias=False)
        self.v_proj = nn.Linear(vdim or embed_dim, embed_dim, bias=False)
        self.out_proj = nn.Linear(embed_dim, embed_dim, bias=False)

    def forward(self, query, key, value, mask=None, is_causal=False):
        q_len, k_len = query.shape[1], key.shape[1]
        if is_causal:
            mask = torch.tril(torch.ones(q_len, k_len), diagonal=k_len - q_len).bool()
        queries, keys, values = self.q_proj(query), self.k_proj(key), self.v_proj(value)
        outputs, all_weights = [], []
        for i in range(self.num_heads):
            mine = slice(i * self.head_dim, (i + 1) * self.head_dim)
            q, k, v = queries[..., mine], keys[..., mine], values[..., mine]
            scores = torch.einsum("bqd,bkd->bqk", q, k) / math.sqrt(self.head_dim)
            if mask is not None:
                hidden = torch.logical_not(mask)
                scores = scores.masked_fill(hidden, -1e30)
            powers = torch.exp(scores - scores.max(dim=-1, keepdim=True).values)
            if mask is not None:
                powers = powers * mask
            total = powers.sum(dim=-1, keepdim=True)
            weights = powers / total.clamp(min=1e-20)
            outputs.append(weights @ v)
            all_weights.append(weights)
        output = torch.cat(outputs, dim=-1)
        return self.out_proj(output), torch.stack(all_weights, dim=1)
"""


def layer_of(folder, text, *edits):
    """The class that a text defines after edits (old, new); each old text must be there once."""
    for old, new in edits:
        assert text.count(old) == 1, f"{old!r} is there {text.count(old)} times"
        text = text.replace(old, new)
    path = folder / "reader.py"
    path.write_text(text)
    return runpy.run_path(str(path))["Layer"]


SCALE = "/ self.head_dim**0.5"
FILL = 'scores = scores.masked_fill(mask == 0, float("-inf"))'
SOFTMAX = "weights = torch.softmax(scores, dim=-1)"
ZEROES = "            weights = weights.masked_fill(mask == 0, 0.0)"
CUT = "x = x.view(batch, length, self.num_heads, self.head_dim)\n        return x.transpose(1, 2)"
MERGE = "x = x.transpose(1, 2).contiguous()\n        return x.view(batch, length, -1)"
MIX = "output = self.merge(weights @ v)"
RETURN = "return self.out_proj(output), weights"

# What the checker must say -> the style and the edits that make the mistake. These are the mistakes whose
# code differs most from the edits by which the checker knows them; its audit tries all of those.
WRONG = {
    "tokens and heads are exchanged": (
        AT_ONCE, ("return x.transpose(1, 2)", "return x"), (MERGE, "return x.flatten(2)"),
        ("batch, _, length, _ = x.shape\n", "\n"), ("mask = mask[:, None]", "pass"),
    ),
    "the merge mixes the columns of the heads": (AT_ONCE,
        (MERGE, "return torch.stack(list(x.unbind(1)), dim=-1).reshape(batch, length, -1)")),
    "the heads are averaged": (
        LOOP,
        ("torch.cat(outputs, dim=-1)", "torch.cat(self.num_heads * [sum(outputs) / self.num_heads], dim=-1)"),
    ),
    "only the first head is used": (LOOP,
        ("slice(i * self.head_dim, (i + 1) * self.head_dim)", "slice(0, self.head_dim)")),
    "the inputs are cut into heads before the projection": (
        AT_ONCE,
        (
            "q = self.split(self.q_proj(query))\n        k = self.split(self.k_proj(key))\n"
            "        v = self.split(self.v_proj(value))",
            "q, k, v = (\n"
            "            torch.stack([\n"
            "                part @ block.chunk(self.num_heads, 1)[i].T\n"
            "                for i, (part, block) in enumerate(\n"
            "                    zip(x.split(self.head_dim, -1), proj.weight.split(self.head_dim))\n"
            "                )\n"
            "            ], dim=1)\n"
            "            for x, proj in ((query, self.q_proj), (key, self.k_proj), (value, self.v_proj))\n"
            "        )",
        ),
    ),
    "the bias of out_proj is forgotten": (
        FOLDED,
        ("output = self.out_proj(self.unfold(torch.bmm(weights, v)))",
         "output = self.unfold(torch.bmm(weights, v)) @ self.out_proj.weight.T"),
    ),
    "the scores are not scaled": (LOOP, (" / math.sqrt(self.head_dim)", "")),
    "the scale has the wrong width": (FOLDED, ("/ q.shape[2] ** 0.5", "/ query.shape[-1] ** 0.5")),
    "the softmax is applied twice": (
        FOLDED,
        (
            "scores.softmax(2)",
            "scores.softmax(2)\n        if mask is not None:\n            weights = (weights * mask)"
            ".masked_fill(~mask, torch.finfo(scores.dtype).min)\n        weights = weights.softmax(2)",
        ),
    ),
    "the mask is inverted": (FOLDED, ("mask.repeat_interleave", "~mask.repeat_interleave")),
    "a query that sees nothing gets equal weights": (FOLDED,
        ("            weights = weights * mask", "            pass")),
    "the masks of the samples are repeated in the wrong order": (FOLDED,
        ("mask.repeat_interleave(self.h, dim=0)", "mask.repeat(self.h, 1, 1)")),
    "the mask hides keys from the first head only": (
        LOOP,
        ("if mask is not None:\n                hidden",
         "mask = None if i else mask\n            if mask is not None:\n                hidden"),
    ),
    "the future is hidden at the wrong corner": (LOOP, (", diagonal=k_len - q_len", "")),
    "is_causal does nothing": (LOOP, ("if is_causal:", "if False:")),
    "no gradient flows through the values": (AT_ONCE, (MIX, "output = self.merge(weights @ v.detach())")),
    "the hidden scores are filled with a number that is not low enough": (LOOP, ("-1e30", "-1e4")),
}  # fmt: skip

# Mistakes that the checker does not know by name: part of the sentence -> the style and the edits.
UNKNOWN = {
    "called again with the same arguments, it returns different numbers": (AT_ONCE,
        (SOFTMAX, "weights = F.dropout(torch.softmax(scores, dim=-1), 0.1)")),
    "right for one head (batch 1), one head (batch 2) and scores far below zero, wrong for three heads": (
        AT_ONCE,
        (SOFTMAX,
         "weights = torch.softmax(scores * torch.arange(1, self.num_heads + 1).view(1, -1, 1, 1), dim=-1)"),
    ),
    "right for one head (batch 1) and three heads (batch 1), wrong for one head (batch 2)": (AT_ONCE,
        (MIX, "output = self.merge(weights @ v[:1])")),
    "but not the gradients, for one head (batch 1) (query (1, 5, 7), key (1, 5, 7), value (1, 5, 7)): "
    "no gradient reaches `k_proj.weight`": (AT_ONCE,
        ("self.k_proj(key)", "F.linear(key, self.k_proj.weight.data)")),
    "for a query that sees nothing (query (2, 5, 33), key (2, 7, 33), value (2, 7, 33), mask (2, 5, 7)): "
    "the gradient with respect to `q_proj.weight` holds NaN": (AT_ONCE,
        (FILL, "scores = scores + torch.zeros(mask.shape).masked_fill(~mask, -torch.inf)")),
    "no result carries a gradient: was it detached": (AT_ONCE,
        (RETURN, "return self.out_proj(output).detach(), weights")),
    "a hidden key has weight": (
        AT_ONCE, (FILL, "pass"), (ZEROES, "            weights = weights.masked_fill(mask == 0, 0.01)"),
    ),
    "it changes its argument `query` in place": (AT_ONCE,
        ("q = self.split", "query *= 2\n        q = self.split")),
    "`output` has shape (5, 1, 7), expected (1, 5, 7), that is (batch, q_len, embed_dim)": (AT_ONCE,
        (RETURN, "return self.out_proj(output).transpose(0, 1), weights")),
    "it returns 1 result, where 2 results (`output`, `weights`) are expected": (AT_ONCE,
        (RETURN, "return self.out_proj(output)")),
    "the layer returns None": (AT_ONCE, ("        return self.out_proj(output), weights", "")),
    "`weights` is None": (AT_ONCE, (RETURN, "return self.out_proj(output), None")),
    "`output` is a list, where a torch.Tensor is expected": (AT_ONCE,
        (RETURN, "return [self.merge], weights")),
    "`output` holds NaN, first at [0, 0, 0]": (AT_ONCE, (SCALE, "/ 0.0 * 0")),
    "no layer can be made with embed_dim=7, num_heads=1: it raises NameError in line 14 of your `Layer`, "
    "`self.v_proj = nn.Linear(vdim or embed_dm": (AT_ONCE, ("vdim or embed_dim", "vdim or embed_dm")),
    "no layer can be made with embed_dim=33, num_heads=3, kdim=17, vdim=19: it raises TypeError": (
        AT_ONCE, (", kdim=None, vdim=None", ""), ("kdim or embed_dim", "embed_dim"),
        ("vdim or embed_dim", "embed_dim"),
    ),
    "the projections of the layer were not found ('Layer' object has no attribute 'q_proj')": (AT_ONCE,
        ("self.q_proj = nn", "self.W_q = nn")),
    "the weight of `q_proj` has shape (11, 11), expected (33, 33), that is (out, in). Are the inputs cut": (
        AT_ONCE,
        ("self.q_proj = nn.Linear(embed_dim, embed_dim",
         "self.q_proj = nn.Linear(self.head_dim, self.head_dim"),
    ),
    "the weight of `out_proj` has shape (33, 11), expected (33, 33), that is (out, in). Are the heads": (
        AT_ONCE,
        ("self.out_proj = nn.Linear(embed_dim, embed_dim",
         "self.out_proj = nn.Linear(self.head_dim, embed_dim"),
    ),
    "the weight of `k_proj` has shape (11, 33), expected (33, 33), that is (out, in). The projection": (
        AT_ONCE,
        ("nn.Linear(kdim or embed_dim, embed_dim", "nn.Linear(kdim or embed_dim, self.head_dim"),
    ),
    "it raises RuntimeError in line 31 of your `Layer`, `scores = q @ k / self.head_dim**0.5`": (AT_ONCE,
        ("q @ k.transpose(-2, -1)", "q @ k")),
}  # fmt: skip

# Right layers: edits of the three styles, and classes of other kinds.
RIGHT_EDITS = {
    "all heads at once": (AT_ONCE,),
    "folded into the batch, with biases, made in another order": (FOLDED,),
    "a loop with a softmax by hand": (LOOP,),
    "unflatten and flatten": (
        AT_ONCE,
        (CUT, "return x.unflatten(2, (self.num_heads, self.head_dim)).swapaxes(1, 2)"),
        (MERGE, "return x.permute(0, 2, 1, 3).flatten(start_dim=2)"),
    ),
    "chunk and stack": (
        AT_ONCE,
        (CUT, "return torch.stack(x.chunk(self.num_heads, dim=-1), dim=1)"),
        (MERGE, "return torch.cat(x.unbind(dim=1), dim=-1)"),
    ),
    "the queries are scaled": (
        AT_ONCE,
        (f" {SCALE}", ""),
        ("q = self.split(self.q_proj(query))", "q = self.split(self.q_proj(query)) * self.head_dim**-0.5"),
    ),
    "queries and keys are scaled by the fourth root": (AT_ONCE,
        (f"q @ k.transpose(-2, -1) {SCALE}", "(q / self.head_dim**0.25) @ (k / self.head_dim**0.25).mT")),
    "the smallest number, then zeros": (
        AT_ONCE,
        (FILL, "scores = torch.where(mask, scores, torch.finfo(scores.dtype).min)"),
        (ZEROES, "            weights = weights * mask"),
    ),
    "minus infinity and nan_to_num": (AT_ONCE, (ZEROES, "            weights = torch.nan_to_num(weights)")),
    "an additive mask": (
        AT_ONCE,
        (FILL, "scores = scores + torch.zeros(mask.shape).masked_fill(~mask, torch.finfo(scores.dtype).min)"),
    ),
    "log-softmax and exp": (AT_ONCE, (SOFTMAX, "weights = F.log_softmax(scores, dim=-1).exp()")),
    "einsum": (
        AT_ONCE,
        ("q @ k.transpose(-2, -1)", 'torch.einsum("bhqd,bhkd->bhqk", q, k)'),
        ("weights @ v", 'torch.einsum("bhqk,bhkd->bhqd", weights, v)'),
    ),
    "dropout in training only": (AT_ONCE,
        (MIX, "output = self.merge(F.dropout(weights, 0.5, self.training) @ v)")),
    "torch's fused attention": (
        AT_ONCE,
        (MIX, "seen = True if mask is None else mask.any(-1, keepdim=True)\n"
         "        either = None if mask is None else mask | ~seen\n"
         "        output = self.merge(F.scaled_dot_product_attention(q, k, v, either) * seen)"),
    ),
    "one query at a time": (
        AT_ONCE,
        (MIX,
         "output = self.merge(torch.cat([weights[:, :, i:i + 1] @ v for i in range(q.size(2))], dim=2))"),
    ),
    "a sum of contributions": (
        LOOP,
        ("outputs.append(weights @ v)", "outputs.append(weights @ v @ self.out_proj.weight[:, mine].T)"),
        ("output = torch.cat(outputs, dim=-1)", "output = sum(outputs)"),
        ("return self.out_proj(output)", "return output"),
    ),
    "biases in some projections": (
        AT_ONCE,
        ("self.v_proj = nn.Linear(vdim or embed_dim, embed_dim, bias=False)",
         "self.v_proj = nn.Linear(vdim or embed_dim, embed_dim)"),
    ),
    "float64 inside": (AT_ONCE,
        (SOFTMAX, "weights = torch.softmax(scores.double(), dim=-1).to(scores.dtype)")),
    "weights without a gradient": (AT_ONCE, (RETURN, "return self.out_proj(output), weights.detach()")),
    "the transposed product": (AT_ONCE,
        ("q @ k.transpose(-2, -1)", "(k @ q.transpose(-2, -1)).transpose(-2, -1)")),
}  # fmt: skip


class OneHead(nn.Module):
    def __init__(self, embed_dim, head_dim, kdim, vdim):
        super().__init__()
        self.to_q = nn.Linear(embed_dim, head_dim, bias=False)
        self.to_k = nn.Linear(kdim or embed_dim, head_dim, bias=False)
        self.to_v = nn.Linear(vdim or embed_dim, head_dim, bias=False)

    def forward(self, query, key, value, mask):
        scores = self.to_q(query) @ self.to_k(key).mT / self.to_q.out_features**0.5
        if mask is not None:
            scores = scores.masked_fill(~mask, -torch.inf)
        weights = scores.softmax(-1).nan_to_num()
        return weights @ self.to_v(value), weights


class ListOfHeads(nn.Module):
    """As the loop of chapter 3: each head is a module."""

    def __init__(self, embed_dim, num_heads, kdim=None, vdim=None):
        super().__init__()
        one = (embed_dim, embed_dim // num_heads, kdim, vdim)
        self.heads = nn.ModuleList(OneHead(*one) for _ in range(num_heads))
        self.mix = nn.Linear(embed_dim, embed_dim, bias=False)

    def forward(self, query, key, value, mask=None):
        outputs, weights = zip(*(head(query, key, value, mask) for head in self.heads), strict=True)
        return self.mix(torch.cat(outputs, -1)), torch.stack(weights, 1)


def of_all_heads(layer):
    names = {"q_proj": "to_q", "k_proj": "to_k", "v_proj": "to_v"}
    joined = {
        ours: torch.cat([getattr(head, theirs).weight for head in layer.heads])
        for ours, theirs in names.items()
    }
    return joined | {"out_proj": layer.mix}


class Packed(nn.Module):
    """One matrix for queries, keys and values, in the layout x @ W."""

    def __init__(self, embed_dim, num_heads):
        super().__init__()
        self.num_heads = num_heads
        self.w_out = nn.Parameter(torch.randn(embed_dim, embed_dim))
        self.w_in = nn.Parameter(torch.randn(embed_dim, 3 * embed_dim))
        self.b_in = nn.Parameter(torch.randn(3 * embed_dim))

    def forward(self, query, key, value, mask=None):
        matrices = zip((query, key, value), self.w_in.chunk(3, 1), self.b_in.chunk(3), strict=True)
        q, k, v = ((x @ w + b).unflatten(-1, (self.num_heads, -1)).transpose(1, 2) for x, w, b in matrices)
        scores = q @ k.mT / q.shape[-1] ** 0.5
        if mask is not None:
            mask = mask.unsqueeze(1) if mask.ndim == 3 else mask
            scores = scores.masked_fill(~mask, -torch.inf)
        weights = scores.softmax(-1).nan_to_num()
        return (weights @ v).transpose(1, 2).flatten(2) @ self.w_out, weights


def of_the_packed(layer):
    parts = zip(layer.w_in.chunk(3, 1), layer.b_in.chunk(3), strict=True)
    found = dict(zip(("q_proj", "k_proj", "v_proj"), ((w.T, b) for w, b in parts), strict=True))
    return found | {"out_proj": layer.w_out.T}


class WithTorch(nn.Module):
    """torch's own layer, with our masks."""

    def __init__(self, embed_dim, num_heads, kdim=None, vdim=None):
        super().__init__()
        self.inner = nn.MultiheadAttention(embed_dim, num_heads, kdim=kdim, vdim=vdim, batch_first=True)

    def forward(self, query, key, value, mask=None):
        if mask is not None:
            shape = (query.shape[0], self.inner.num_heads, query.shape[1], key.shape[1])
            mask = (mask.unsqueeze(1) if mask.ndim == 3 else mask).expand(shape)
            seen = mask.any(-1, keepdim=True)
            mask = ~(mask | ~seen).flatten(0, 1)
        heads = {"average_attn_weights": False}
        output, weights = self.inner(query, key, value, attn_mask=mask, **heads)
        if mask is None:
            return output, weights
        # If a query sees nothing, each head returns zeros, so only the bias of the output projection is left.
        seen_by_all = seen[:, 0]
        return torch.where(seen_by_all, output, self.inner.out_proj.bias), weights * seen


def of_torch(layer):
    inner = layer.inner
    packed = inner.in_proj_weight
    weights = (
        packed.chunk(3)
        if packed is not None
        else (inner.q_proj_weight, inner.k_proj_weight, inner.v_proj_weight)
    )
    pairs = zip(weights, inner.in_proj_bias.chunk(3), strict=True)
    return dict(zip(("q_proj", "k_proj", "v_proj"), pairs, strict=True)) | {"out_proj": inner.out_proj}


class InNumpy:
    """No torch at all."""

    def __init__(self, embed_dim, num_heads, kdim=None, vdim=None):
        random = np.random.default_rng(3)
        sizes = {"q": embed_dim, "k": kdim or embed_dim, "v": vdim or embed_dim, "o": embed_dim}
        self.w = {name: random.normal(size=(embed_dim, width)) / width**0.5 for name, width in sizes.items()}
        self.num_heads = num_heads

    def __call__(self, query, key, value, mask=None):
        inputs = {"q": query.numpy(), "k": key.numpy(), "v": value.numpy()}
        split = {}
        for name, x in inputs.items():
            y = x @ self.w[name].T
            split[name] = y.reshape(*y.shape[:2], self.num_heads, -1).swapaxes(1, 2)
        scores = split["q"] @ split["k"].swapaxes(2, 3) / split["q"].shape[-1] ** 0.5
        seen = np.ones(scores.shape, bool)
        if mask is not None:
            seen = seen & (mask.numpy()[:, None] if mask.ndim == 3 else mask.numpy())
        scores = np.where(seen, scores, -1e300)
        powers = np.exp(scores - scores.max(-1, keepdims=True)) * seen
        weights = powers / np.maximum(powers.sum(-1, keepdims=True), 1e-30)
        merged = (weights @ split["v"]).swapaxes(1, 2)
        return merged.reshape(*merged.shape[:2], -1) @ self.w["o"].T, weights


def of_numpy(layer):
    return {
        name: layer.w[short]
        for name, short in zip(("q_proj", "k_proj", "v_proj", "out_proj"), "qkvo", strict=True)
    }


def of_the_dealt(layer):
    def in_order(weight):
        return weight.unflatten(0, (-1, layer.num_heads)).transpose(0, 1).flatten(0, 1)

    inner = {name: in_order(getattr(layer, name).weight) for name in ("q_proj", "k_proj", "v_proj")}
    return inner | {"out_proj": in_order(layer.out_proj.weight.T).T}


class KerasOrder(ListOfHeads):
    """call(query, value, key), and only the output."""

    def forward(self, query, value, key, attention_mask=None):
        return super().forward(query, key, value, attention_mask)[0]


# name -> the class, or style and edits, and the options of the check.
RIGHT_LAYERS = {
    "a list of heads": (ListOfHeads, {"adapter": of_all_heads}),
    "a packed matrix": (Packed, {"adapter": of_the_packed, "own_widths": False}),
    "torch's layer": (WithTorch, {"adapter": of_torch}),
    "NumPy": (InNumpy, {"adapter": of_numpy, "gradients": False}),
    # Head i owns the columns i, i + num_heads, …, as the adapter states.
    "columns dealt out to the heads": (
        (
            AT_ONCE,
            (CUT, "return x.view(batch, length, self.head_dim, self.num_heads).permute(0, 3, 1, 2)"),
            (MERGE, "return x.permute(0, 2, 3, 1).reshape(batch, length, -1)"),
        ),
        {"adapter": of_the_dealt},
    ),
    "another order of arguments": (
        KerasOrder,
        {"adapter": of_all_heads, "weights": False,
            "call": lambda layer, query, key, value, mask: layer(query, value, key, attention_mask=mask)},
    ),
}  # fmt: skip
