"""Exercises on efficiency: the solutions pass, and each fault planted in them is named."""

import pytest
import torch
import torch.nn.functional as F
from exercise_cells import cells_of, solution_of

from mha_lib import MultiHeadAttention, exercises
from mha_lib.exercises import Exercise, efficiency

PAGE = "appendix_efficiency"
CHECKS = {
    "check_cache_size": 1,
    "check_pieces": 2,
    "check_causal_tiles": 3,
    "check_torch_causal": 4,
    "check_join": 5,
    "check_share_keys": 6,
    "check_slots": 7,
}

ATTEND = "dot_product_attention(query, keys[:, :, :filled], values[:, :, :filled])"
GROUPS = "weight.view(shape).mean(1)"
OUT = "shared.out_proj.weight.copy_(layer.out_proj.weight)"

# checker -> {start of the message: (text in the page's solution, what a reader may have written instead)}
WRONG = {
    "check_cache_size": {
        "the query heads are counted": (
            "num_layers, num_kv_heads, head_dim, length)\n    return",
            "num_layers, _num_heads, head_dim, length)\n    return",
        ),
        "only the keys are counted": (
            "return size, memory // size",
            "return size // 2, memory // (size // 2)",
        ),
        "queries, keys and values": ("return size,", "size = size // 2 * 3\n    return size,"),
        "the numbers take four bytes": (
            "head_dim, length)\n    return",
            "head_dim, length, item=4)\n    return",
        ),
        "one layer is counted": ("cache_bytes(num_layers,", "cache_bytes(1,"),
        "one token is counted": ("head_dim, length)\n    return", "head_dim, 1)\n    return"),
        "the number of sequences is rounded up": ("memory // size", "-(-memory // size)"),
        "the number of sequences is no whole": ("memory // size", "memory / size"),
    },
    "check_pieces": {
        "all scores are computed at once": ("query.split(size, dim=-2)", "[query]"),
        "`size` is used as the number of pieces": ("query.split(size,", "query.chunk(size,"),
        "the last, shorter piece is missing": (
            "for piece in query.split(size, dim=-2)",
            "for piece in query.split(size, dim=-2) if piece.shape[-2] == size",
        ),
        "the keys are cut instead": (
            "return torch.cat(parts, dim=-2)",
            "return sum(dot_product_attention(query, k, v)[0] for k, v in "
            "zip(key.split(size, 2), value.split(size, 2))) / len(key.split(size, 2))",
        ),
        "queries and keys are cut together": (
            "return torch.cat(parts, dim=-2)",
            "cut = zip(*(x.split(size, 2) for x in (query, key, value)))\n"
            "    return torch.cat([dot_product_attention(*three)[0] for three in cut], 2)",
        ),
    },
    "check_causal_tiles": {
        "all tiles are counted": ("outputs, dim=-2), done", "outputs, dim=-2), len(key_blocks) ** 2"),
        "the tiles on the diagonal have no mask": ("if i == j", "if False"),
        "there is no mask, and no tile": ("(i + 1):", "(len(key_blocks)):\n            i = -1"),
        "the hidden scores become 0": (
            "scores.masked_fill(~causal_mask(scores.shape[-1]), -torch.inf)",
            "scores * causal_mask(scores.shape[-1])",
        ),
        "the earlier sums are not corrected": ("(largest - larger).exp()", "1"),
        "the tiles on the diagonal are skipped": (
            "for j in range(i + 1)",
            "total, mix = torch.zeros_like(largest), torch.zeros_like(value_blocks[i])\n"
            "        for j in range(i)",
        ),
    },
    "check_torch_causal": {
        "torch's own triangle is used for every chunk": ("if q_len == k_len", "if q_len > 1"),
        "torch's own triangle is used everywhere": ("if q_len == k_len", "if True"),
        "the future is visible": (
            "if q_len == k_len:",
            "if True:\n        return F.scaled_dot_product_attention(query, key, value)\n    if False:",
        ),
        "the mask is built even where": ("if q_len == k_len", "if False"),
        "the mask begins at the first key": (
            "    if q_len == k_len",
            "    mask = torch.ones(q_len, k_len, dtype=torch.bool).tril()\n"
            "    return F.scaled_dot_product_attention(query, key, value, mask)\n    if q_len == k_len",
        ),
        "a later chunk sees the first keys only": ("tril(k_len - q_len)", "tril()"),
        "the mask is inverted": ("attn_mask=mask", "attn_mask=~mask"),
    },
    "check_join": {
        "both halves get the same weight": ("torch.sigmoid(z1 - z2)", "0.5"),
        "the shares are exchanged": ("torch.sigmoid(z1 - z2)", "torch.sigmoid(z2 - z1)"),
        "the weights are the logarithms": ("torch.sigmoid(z1 - z2)", "z1 / (z1 + z2)"),
        "the exponentials overflow": (
            "torch.sigmoid(z1 - z2)",
            "torch.exp(z1) / (torch.exp(z1) + torch.exp(z2))",
        ),
        "the sums are not divided": (
            "share * o1 + (1 - share) * o2",
            "torch.exp(z1) * o1 + torch.exp(z2) * o2",
        ),
        "the outputs are added up": ("share * o1 + (1 - share) * o2", "o1 + o2"),
    },
    "check_share_keys": {
        "the first head of each group": (GROUPS, "weight.view(shape)[:, 0]"),
        "heads that are not neighbours": (GROUPS, "weight.view(-1, *shape[:1], *shape[2:]).mean(0)"),
        "the heads of a group are added up": (GROUPS, "weight.view(shape).sum(1)"),
        "the query and output projections keep": (
            "shared.q_proj.weight.copy_(layer.q_proj.weight)\n        " + OUT,
            "",
        ),
        "the output projection keeps": (OUT, ""),
        "the query projection keeps": ("shared.q_proj.weight.copy_(layer.q_proj.weight)", ""),
        "the value matrices keep": ('("k_proj", "v_proj")', '("k_proj",)'),
    },
    "check_slots": {
        "the empty slots are attended to": ("filled = min(t + 1, slots)", "filled = slots"),
        "the last slot is overwritten": ("[t % slots]", "[min(t, slots - 1)]"),
        "the first slot is overwritten": ("[t % slots]", "[t if t < slots else 0]"),
        "one slot is never used": ("[t % slots]", "[t % (slots - 1)]"),
        "the value is not kept": ("values = values.index_copy(2, torch.tensor([t % slots]), value)", ""),
        "the new token does not see itself": (
            "slots = keys.shape[2]",
            "slots, before = keys.shape[2], (keys, values)",
        ),
        "only the newest token is seen": (ATTEND, "dot_product_attention(query, key, value)"),
    },
}
LATE = (ATTEND, "dot_product_attention(query, *(x[:, :, :filled] for x in before))")


def test_every_exercise_is_there():
    assert len(cells_of(PAGE)) == 8


def test_every_checker_is_used_on_the_page():
    assert set(CHECKS) == {name for name, one in vars(efficiency).items() if isinstance(one, Exercise)}
    assert set(CHECKS) == set(WRONG)


@pytest.mark.no_shape_checks  # they take most of the time, and a reader's function has no annotations
@pytest.mark.parametrize("name", CHECKS)
def test_solution_passes_and_each_planted_fault_is_named(name):
    check = getattr(exercises, name)
    assert check(solution_of(PAGE, CHECKS[name]))
    messages = set()
    for start, plant in WRONG[name].items():
        late = [LATE] if "before" in plant[1] else []
        verdict = check(solution_of(PAGE, CHECKS[name], plant, *late))
        assert not verdict
        assert verdict.message.startswith(f"Not yet: {start}"), verdict
        messages.add(verdict.message)
    assert len(messages) == len(check.wrong) >= 3, "each known wrong answer was planted"
    assert not check(lambda *arguments: None)
    assert check.audit() == []


def test_the_cache_of_fixed_size_passes_and_its_faults_are_named():
    check = exercises.check_cache
    assert check(solution_of(PAGE, 8))
    for start, plant in {
        "empty slots get weight": ("keys[: t + 1], values[: t + 1]", "keys, values"),
        "the numbers are right, but not the gradients": ("torch.is_grad_enabled()", "False"),
        "only the newest key is kept": (
            "keys[: t + 1], values[: t + 1]",
            "keys[t : t + 1], values[t : t + 1]",
        ),
    }.items():
        verdict = check(solution_of(PAGE, 8, plant))
        assert verdict.message.startswith(f"Not yet: {start}"), verdict


def test_what_is_returned_is_asked_for_in_words():
    def grows(layer, token, keys, values, t):
        keys, values = (torch.cat((x, x[:, :, :1]), 2) for x in (keys, values))
        return token, keys, values

    assert "after token 0 the keys have shape (2, 3, 6, 11)" in exercises.check_slots(grows).message
    assert "should return three results" in exercises.check_slots(lambda layer, x, *_: x).message
    assert (
        "MultiHeadAttention, got Linear"
        in exercises.check_share_keys(lambda layer, count: torch.nn.Linear(2, 3)).message
    )
    assert "the layer has 6 key heads" in exercises.check_share_keys(lambda layer, count: layer).message


def test_other_right_answers_pass():
    def with_kernel(query, key, value, size):
        return torch.cat([F.scaled_dot_product_attention(q, key, value) for q in query.split(size, 2)], 2)

    def by_softmax(o1, z1, o2, z2):
        share = torch.cat((z1, z2), -1).softmax(-1)
        return share[..., :1] * o1 + share[..., 1:] * o2

    def by_state(layer, count):
        shared = MultiHeadAttention(layer.embed_dim, layer.num_heads, num_kv_heads=count)
        state = dict(layer.state_dict())
        for name in ("k_proj.weight", "v_proj.weight"):
            parts = state[name].split(layer.embed_dim // count)
            heads = [torch.stack(part.split(layer.head_dim)).mean(0) for part in parts]
            state[name] = torch.cat(heads)
        shared.load_state_dict(state)
        return shared

    assert exercises.check_pieces(with_kernel)
    assert exercises.check_join(by_softmax)
    assert exercises.check_share_keys(by_state)
