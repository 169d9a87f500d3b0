"""Multi-head attention in NumPy, from nothing. NumPy has neither gradients nor a layer of its own."""

import math

import numpy as np
import program


# From nothing
def masked_softmax(scores, mask):
    """Softmax over the keys that a query may see; zeros where it may see none."""
    hidden = np.where(mask.any(axis=-1, keepdims=True), -np.inf, 0.0)
    scores = np.where(mask, scores, hidden.astype(scores.dtype))
    parts = np.exp(scores - scores.max(axis=-1, keepdims=True))
    return parts / parts.sum(axis=-1, keepdims=True) * mask


def build_mask(q_len, k_len, valid_lens=None, is_causal=False):
    """Bool, True = may attend, (batch or 1, 1, q_len, k_len)."""
    mask = np.ones((1, 1, q_len, k_len), dtype=bool)
    if is_causal:  # the last query sees every key
        mask = np.tril(mask, k=k_len - q_len)
    if valid_lens is not None:  # (batch,) or (batch, q_len)
        lens = valid_lens.reshape(len(valid_lens), 1, -1, 1)
        mask = mask & (np.arange(k_len) < lens)
    return mask


class MultiHeadAttention:
    """Project, split into heads, attend, merge."""

    def __init__(self, num_heads, weights):
        self.num_heads, self.weights = num_heads, weights

    def project(self, name, x):
        bias = self.weights.get(f"{name}.bias", 0)
        return x @ self.weights[f"{name}.weight"].T + bias

    def split_heads(self, x):
        x = x.reshape(*x.shape[:2], self.num_heads, -1)
        return x.transpose(0, 2, 1, 3)

    def merge_heads(self, x):
        x = x.transpose(0, 2, 1, 3)
        return x.reshape(*x.shape[:2], -1)

    def __call__(self, query, key, value, valid_lens=None, is_causal=False):
        q = self.split_heads(self.project("q_proj", query))
        k = self.split_heads(self.project("k_proj", key))
        v = self.split_heads(self.project("v_proj", value))
        scores = q @ k.swapaxes(-2, -1) / math.sqrt(q.shape[-1])
        mask = build_mask(q.shape[2], k.shape[2], valid_lens, is_causal)
        weights = masked_softmax(scores, mask)
        return self.project("out_proj", self.merge_heads(weights @ v)), weights


# The program
def from_nothing(case, dtype):
    """Output and weights of the layer above."""
    weights = {name: np.asarray(array, dtype) for name, array in case.weights.items()}
    layer = MultiHeadAttention(case.num_heads, weights)
    output, weights = layer(*case.inputs(dtype), case.valid_lens, case.is_causal)
    assert output.dtype == weights.dtype == dtype
    return {"output": output, "weights": weights}


if __name__ == "__main__":
    program.main("NumPy", {"numpy": np.__version__}, {"from nothing": from_nothing})
