"""Exercises on efficiency: other right answers pass, and what is no answer is asked for in words."""

import torch
import torch.nn.functional as F
from exercise_cells import accepts, solution_of

from mha_course import exercises
from mha_lib import MultiHeadAttention, dot_product_attention


def test_rows_that_autograd_needs_must_not_be_overwritten():
    overwritten = solution_of("appendix_efficiency", 8, ("torch.is_grad_enabled()", "False"))
    verdict = exercises.check_cache(overwritten)
    assert verdict.message.startswith("Not yet: the numbers are right, but not the gradients"), verdict


def test_a_cache_that_is_filled_without_gradients_is_accepted():
    solution = solution_of("appendix_efficiency", 8)
    verdict = exercises.check_cache(torch.no_grad()(solution))
    assert verdict, verdict
    assert verdict.message.startswith("Right in all 4 cases, without gradients: ")
    # Detaching only a part is not such a choice, because some gradients are then missing.
    frozen = exercises.check_cache(lambda x, q, k, v: solution(x, q, k.detach(), v))
    assert "but not the gradients, for two tokens" in frozen.message
    assert "no gradient reaches `W_k`" in frozen.message


def by_position(query, key, value):
    if query.shape[-2] in (1, key.shape[-2]):
        return F.scaled_dot_product_attention(query, key, value, None, 0.0, query.shape[-2] > 1)
    return dot_product_attention(query, key, value, is_causal=True, need_weights=False)[0]


test_another_right_answer_is_accepted = accepts({"check_torch_causal": [by_position]})


def test_what_is_returned_is_asked_for_in_words():
    def grows(layer, token, keys, values, t):
        keys, values = (torch.cat((x, x[:, :, :1]), 2) for x in (keys, values))
        return token, keys, values

    assert "after token 0 the keys have shape (2, 3, 6, 11)" in exercises.check_slots(grows).message
    assert "should return three results" in exercises.check_slots(lambda layer, x, *_: x).message
    other = exercises.check_share_keys(lambda layer, count: torch.nn.Linear(2, 3))
    assert "MultiHeadAttention, got Linear" in other.message
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

    def by_shifting(layer, token, keys, values, t):
        """All slots move on by one."""
        query = layer.split_heads(layer.q_proj(token))
        keys = torch.cat((keys[:, :, 1:], layer.split_heads(layer.k_proj(token))), dim=2)
        values = torch.cat((values[:, :, 1:], layer.split_heads(layer.v_proj(token))), dim=2)
        filled = min(t + 1, keys.shape[2])
        heads, _ = dot_product_attention(query, keys[:, :, -filled:], values[:, :, -filled:])
        return layer.out_proj(layer.merge_heads(heads)), keys, values

    assert exercises.check_slots(by_shifting)
    assert exercises.check_pieces(with_kernel)
    assert exercises.check_join(by_softmax)
    assert exercises.check_share_keys(by_state)
