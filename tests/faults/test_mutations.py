# ruff: noqa: E501 - the texts are as long as they are
"""Do the tests notice? Faults known from real code are planted in a copy of mha_lib, and each must be caught.

Run as a script, this file prints a table of which test caught what: `python tests/faults/test_mutations.py`.
"""

import json
import os
import re
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

import pytest

TESTS = Path(__file__).resolve().parents[1]
PACKAGE = TESTS.parent / "mha_lib"

# The files about attention, for a fault that several of them notice.
ATTENTION = "softmax_and_pooling attention bias_groups_and_scale multi_head rules_and_positions_in_the_layer layer_as_a_module torch_parity"

# fault -> (file, the text as it is, the faulty text, who should notice: test files, or one test)
FAULTS = {
    "a block of causal queries sees the keys of the first": (
        "_paths.py",
        "        seen = k_len - q_len + done",
        "        seen = k_len - q_len + _CAUSAL_BLOCK",
        "fast_path::test_causal_attention_in_blocks_of_queries",
    ),
    "padding forgotten in a block of causal queries": (
        "_paths.py",
        "attn_mask=None if mask is None else mask[..., :seen]",
        "attn_mask=None",
        ATTENTION,
    ),
    "mask ignored": (
        "_paths.py",
        "    if visible is None:\n        return _softmax_of",
        "    if True:\n        return _softmax_of",
        ATTENTION,
    ),
    "mask ignored in the fused path": (
        "_paths.py",
        "        value,\n        mask,\n        dropout_p=dropout_p,",
        "        value,\n        None,\n        dropout_p=dropout_p,",
        ATTENTION,
    ),
    "mask inverted": (
        "_paths.py",
        "torch.where(visible, scores, hidden)",
        "torch.where(visible, hidden, scores)",
        ATTENTION,
    ),
    "mask inverted in the fused path": (
        "_paths.py",
        "        value,\n        mask,\n        dropout_p=dropout_p,",
        "        value,\n        None if mask is None or mask.dtype != torch.bool else ~mask,\n        dropout_p=dropout_p,",
        ATTENTION,
    ),
    "lengths inverted": ("masking.py", "positions < valid_lens", "positions >= valid_lens", "masking"),
    "softmax over the queries": (
        "_paths.py",
        "    return scores.softmax(-1)\n",
        "    return scores.softmax(-2)\n",
        ATTENTION,
    ),
    "scale by embed_dim": (
        "scores.py",
        "math.sqrt(query.shape[-1])",
        "math.sqrt(query.shape[-1] * (query.shape[1] if query.ndim == 4 else 1))",
        ATTENTION,
    ),
    "scale by embed_dim in the fused path": (
        "_paths.py",
        "        scale=scale,\n        enable_gqa",
        "        scale=scale or query[0, ..., 0, :].numel() ** -0.5,\n        enable_gqa",
        ATTENTION,
    ),
    "no scale": ("scores.py", "(query / math.sqrt(query.shape[-1]))", "query", "scores"),
    "no scale in the fused path": (
        "_paths.py",
        "        scale=scale,\n        enable_gqa",
        "        scale=scale or 1.0,\n        enable_gqa",
        ATTENTION,
    ),
    "split without transpose": (
        "attention.py",
        "heads = x.view(batch, length, width // self.head_dim, self.head_dim)\n        return heads.transpose(1, 2)",
        "return x.reshape(batch, width // self.head_dim, length, self.head_dim)",
        ATTENTION,
    ),
    "merge without transpose": (
        "attention.py",
        "return x.transpose(1, 2).flatten(2)",
        "return x.reshape(len(x), x.shape[2], -1)",
        ATTENTION,
    ),
    "a head dropped": (
        "attention.py",
        "self.merge_heads(heads)",
        "self.merge_heads(torch.cat((heads[:, :-1], 0 * heads[:, -1:]), 1))",
        ATTENTION,
    ),
    "heads in another order": (
        "attention.py",
        "self.merge_heads(heads)",
        "self.merge_heads(heads.flip(1))",
        ATTENTION,
    ),
    "bottom-right causal made top-left": ("masking.py", ".tril(k_len - q_len)", ".tril()", "masking"),
    "torch's top-left causal flag used for any lengths": (
        "_paths.py",
        "    elif is_causal and (mask is not None or query.shape[-2] != key.shape[-2]):",
        "    elif is_causal and mask is not None:",
        "fast_path::test_causal_attention_in_blocks_of_queries",
    ),
    "a token does not see itself": (
        "masking.py",
        ".tril(k_len - q_len)",
        ".tril(k_len - q_len - 1)",
        "masking",
    ),
    "causal dropped beside another mask": (
        "masking.py",
        "mask = causal if mask is None else mask & causal",
        "mask = causal if mask is None else mask",
        "masking",
    ),
    "mask or lengths instead of both": (
        "masking.py",
        "mask = mask & (lens",
        "mask = mask | (lens",
        "masking",
    ),
    "fill of -1e9": (
        "_paths.py",
        "torch.where(sees, scores.new_full((), -torch.inf), 0.0)",
        "torch.where(sees, scores.new_tensor(-1e9), 0.0)",
        ATTENTION,
    ),
    "uniform weights in a hidden row": (
        "_paths.py",
        "return torch.where(visible, scores, hidden).softmax(-1) * visible",
        "return torch.where(visible, scores, hidden).softmax(-1)",
        ATTENTION,
    ),
    "input overwritten in place": ("_paths.py", "    in_place = owned and", "    in_place =", ATTENTION),
    "lengths off by one": ("masking.py", "positions < valid_lens", "positions <= valid_lens", "masking"),
    "lengths repeated over heads in the wrong order": (
        "masking.py",
        "aligned = mask.unsqueeze(1) if",
        "aligned = mask.expand(shape[0], -1, -1).repeat(shape[1], 1, 1).unflatten(0, shape[:2]) if",
        "masking",
    ),
    "dropout while evaluating": (
        "attention.py",
        "self.dropout if self.training else 0.0",
        "self.dropout",
        ATTENTION,
    ),
    "weights returned after dropout": (
        "attention.py",
        "return kept @ value, weights",
        "return kept @ value, kept",
        ATTENTION,
    ),
    "shared keys given to the wrong heads": (
        "_paths.py",
        "(x.repeat_interleave(group, dim=1) for x in (key, value))",
        "(x.repeat(1, group, 1, 1) for x in (key, value))",
        ATTENTION,
    ),
    "torch's projections copied in another order": (
        "attention.py",
        "layer.in_proj_weight.chunk(3)",
        "layer.in_proj_weight.chunk(3)[::-1]",
        ATTENTION,
    ),
    "longer values accepted": (
        "attention.py",
        'check_same("length", ("key", "value"), (key.shape[-2], value.shape[-2]))',
        "pass",
        "bad_input",
    ),
    "sine and cosine swapped": (
        "positional.py",
        "(angles.sin(), angles.cos())",
        "(angles.cos(), angles.sin())",
        "positional",
    ),
    "exponent i instead of 2i": (
        "positional.py",
        "exponents = -torch.arange(0, dim, 2, dtype=dtype, device=positions.device) / dim",
        "exponents = -torch.arange(0, dim, 2, dtype=dtype, device=positions.device) / (2 * dim)",
        "positional",
    ),
    "positions along the batch": (
        "positional.py",
        "self.encoding[: x.shape[1]]",
        "self.encoding[: x.shape[0], None]",
        "positional",
    ),
    "rotation that is none": (
        "positional.py",
        "first * cos - second * sin",
        "first * cos + second * sin",
        "positional",
    ),
    "bandwidth not squared": ("scores.py", "(2 * bandwidth**2)", "(2 * bandwidth)", "scores"),
    "all models trained on the same data": (
        "training.py",
        "torch.Generator().manual_seed(seed + i)",
        "torch.Generator().manual_seed(seed + 0 * i)",
        "training",
    ),
    "a hook left behind": (
        "inspection.py",
        "stack.callback(layer.register_forward_hook(after, prepend=True).remove)",
        "layer.register_forward_hook(after, prepend=True)",
        "inspection",
    ),
    "the wrong head pruned": (
        "inspection.py",
        "if head not in heads]",
        "if head != 0 or not heads][: attention.num_heads - len(heads)]",
        "inspection",
    ),
    "norm before and after swapped": (
        "transformer.py",
        "            if self.norm_first\n",
        "            if not self.norm_first\n",
        "transformer",
    ),
    "a residual around the norm": (
        "transformer.py",
        "x + self.dropout(layer(norm(x)))",
        "norm(x) + self.dropout(layer(norm(x)))",
        "transformer",
    ),
    "residual dropped before a norm": (
        "transformer.py",
        "norm(x + self.dropout(layer(x)))",
        "norm(self.dropout(layer(x)))",
        "transformer",
    ),
    "residual dropped after a norm": (
        "transformer.py",
        "x + self.dropout(layer(norm(x)))",
        "self.dropout(layer(norm(x)))",
        "transformer",
    ),
    "the decoder sees the future while evaluating": (
        "transformer.py",
        "is_causal=True,\n                cache=own,",
        "is_causal=self.training,\n                cache=own,",
        "transformer",
    ),
    "the decoder sees the future": (
        "transformer.py",
        "is_causal=True,\n                cache=own,",
        "is_causal=False,\n                cache=own,",
        "transformer",
    ),
    "cross-attention reads the decoder's own tokens": (
        "transformer.py",
        "x, memory, memory, memory_mask, cache=projected",
        "x, x, x, cache=projected",
        "transformer",
    ),
    "queries from the memory": (
        "transformer.py",
        "x, memory, memory, memory_mask, cache=projected",
        "memory[:, : x.shape[1]], memory, memory, memory_mask, cache=projected",
        "transformer",
    ),
    "padding of the memory visible": (
        "transformer.py",
        "x, memory, memory, memory_mask, cache=projected",
        "x, memory, memory, cache=projected",
        "transformer",
    ),
    "lengths or mask of the memory instead of both": (
        "transformer.py",
        "memory_mask & lens",
        "memory_mask | lens",
        "transformer",
    ),
    "the encoder's lengths lost": (
        "transformer.py",
        "valid_lens=valid_lens,\n                is_causal=is_causal,\n                cache=cache,",
        "is_causal=is_causal,\n                cache=cache,",
        "transformer",
    ),
    "the encoder's causal flag lost": (
        "transformer.py",
        "                is_causal=is_causal,\n                cache=cache,",
        "                cache=cache,",
        "transformer",
    ),
    "dropout of what a layer adds moved behind the sum": (
        "transformer.py",
        "x + self.dropout(layer(norm(x)))",
        "self.dropout(x + layer(norm(x)))",
        "transformer",
    ),
    "dropout of what a layer adds moved behind the norm": (
        "transformer.py",
        "norm(x + self.dropout(layer(x)))",
        "self.dropout(norm(x + layer(x)))",
        "transformer",
    ),
    "no dropout of what a layer adds": (
        "transformer.py",
        "norm(x + self.dropout(layer(x)))",
        "norm(x + layer(x))",
        "transformer",
    ),
    "dropout before the activation": (
        "transformer.py",
        "hidden = _ACTIVATIONS[self.activation](self.up_proj(x))\n        output: Tensor = self.down_proj(self.dropout(hidden))",
        "hidden = self.dropout(self.up_proj(x))\n        output: Tensor = self.down_proj(_ACTIVATIONS[self.activation](hidden))",
        "transformer",
    ),
    "dropout on the tokens instead of the hidden layer": (
        "transformer.py",
        "hidden = _ACTIVATIONS[self.activation](self.up_proj(x))\n        output: Tensor = self.down_proj(self.dropout(hidden))",
        "hidden = _ACTIVATIONS[self.activation](self.up_proj(self.dropout(x)))\n        output: Tensor = self.down_proj(hidden)",
        "transformer",
    ),
    "no activation": (
        "transformer.py",
        "_ACTIVATIONS[self.activation](self.up_proj(x))",
        "self.up_proj(x)",
        "transformer",
    ),
    "gelu by its approximation": (
        "transformer.py",
        '"gelu": F.gelu,',
        '"gelu": lambda x: F.gelu(x, approximate="tanh"),',
        "transformer",
    ),
    "no last norm": ("transformer.py", 'if not options.get("norm_first", True):', "if True:", "transformer"),
    "a last norm after post-norm blocks": (
        "transformer.py",
        'if not options.get("norm_first", True):',
        "if False:",
        "transformer",
    ),
    "the last norm has another epsilon": (
        "transformer.py",
        'options.get("layer_norm_eps", 1e-5)',
        "1e-5",
        "transformer",
    ),
    "positions of another sequence turned in the cross-attention": (
        "transformer.py",
        "                dropout=dropout,\n                bias=bias,\n            )\n            self.cross",
        "                dropout=dropout,\n                bias=bias,\n                rotary=rotary,\n            )\n            self.cross",
        "transformer",
    ),
    "no dropout of the cross-attention's weights": (
        "transformer.py",
        "                dropout=dropout,\n                bias=bias,\n            )\n            self.cross",
        "                bias=bias,\n            )\n            self.cross",
        "transformer",
    ),
    "the memory projected in every step": (
        "transformer.py",
        "memory = memory[:, :0]",
        "projected = KeyValueCache()",
        "transformer::test_the_memory_is_projected_once",
    ),
    "the memory appended in every step": ("transformer.py", "memory = memory[:, :0]", "pass", "transformer"),
    "one cache for all blocks": (
        "transformer.py",
        "return [KeyValueCache() for _ in self.blocks]",
        "return [KeyValueCache()] * len(self.blocks)",
        "transformer",
    ),
    "lengths beside a cache lost": (
        "transformer.py",
        "        caches = _check_caches(cache, KeyValueCache, len(self.blocks))\n        if cache is None:",
        "        caches = _check_caches(cache, KeyValueCache, len(self.blocks))\n        if cache is not None:\n            valid_lens = None\n        if cache is None:",
        "transformer::test_chunks_of_sequences_of_different_lengths",
    ),
    "causal in the first block only": (
        "transformer.py",
        "                is_causal=is_causal,\n                cache=own,\n            )",
        "                is_causal=is_causal and block is self.blocks[0],\n                cache=own,\n            )",
        "transformer",
    ),
    "the memory's mask in the first block only": (
        "transformer.py",
        "                memory_mask=memory_mask,\n                cache=own,\n            )",
        "                memory_mask=memory_mask if block is self.blocks[0] else None,\n                cache=own,\n            )",
        "transformer",
    ),
    "all blocks one block": (
        "transformer.py",
        "            self._block(embed_dim, num_heads, hidden_dim, **options)\n            for _ in range(num_layers)",
        "            [self._block(embed_dim, num_heads, hidden_dim, **options)] * num_layers",
        "transformer",
    ),
    "the same norm twice": (
        "transformer.py",
        "x = self._residual(\n            x,\n            self.cross_attention_norm,",
        "x = self._residual(\n            x,\n            self.self_attention_norm,",
        "transformer",
    ),
    "a bias where none was asked for": (
        "transformer.py",
        'bias=options.get("bias", True)',
        "bias=True",
        "transformer",
    ),
    "bias ignored in the fused path": (
        "_paths.py",
        "mask = bias if mask is None else torch.where(mask, bias, -torch.inf)",
        "pass",
        "bias_groups_and_scale::test_a_bias_is_added_to_the_scores",
    ),
    "bias ignored": (
        "_paths.py",
        "        scores = scores + _fit(bias, scores.dtype)",
        "        pass",
        "bias_groups_and_scale::test_a_bias_is_added_to_the_scores",
    ),
    "a mask beside a bias ignored in the fused path": (
        "_paths.py",
        "bias if mask is None else torch.where(mask, bias, -torch.inf)",
        "bias",
        "bias_groups_and_scale::test_a_bias_is_added_to_the_scores",
    ),
    "bias before the softcap": (
        "_paths.py",
        "    if softcap is not None:\n        scores = softcap_scores(scores, softcap)\n    if bias is not None:\n        scores = scores + _fit(bias, scores.dtype)",
        "    if bias is not None:\n        scores = scores + _fit(bias, scores.dtype)\n    if softcap is not None:\n        scores = softcap_scores(scores, softcap)",
        "bias_groups_and_scale::test_another_scale_and_a_softcap",
    ),
    "a bias for each sample taken for one a head": (
        "masking.py",
        "fits = bias.ndim in (2, len(shape)) and all(",
        "fits = bias.ndim in (2, 3, len(shape)) and all(",
        "masking",
    ),
    "softmax in half precision": (
        "_paths.py",
        "return x.float() if x.dtype in (torch.float16, torch.bfloat16) else x",
        "return x",
        "precision::test_the_fast_path_is_at_most_twice_as_inaccurate",
    ),
    "dropout in the fused path while evaluating": (
        "attention.py",
        "dropout_p=self.dropout if self.training else 0.0",
        "dropout_p=self.dropout if self.training or not need_weights else 0.0",
        "layer_as_a_module::test_dropout_in_training_only",
    ),
    "the score rule ignored": (
        "attention.py",
        "            score=self.score,\n",
        "",
        "rules_and_positions_in_the_layer::test_a_layer_with_another_scoring_rule",
    ),
    "no second derivative, and nothing said": (
        "_paths.py",
        "            node.register_hook(_explain_second_derivative)",
        "            pass",
        "fast_path::test_a_second_derivative_of_the_fast_path_is_refused_with_a_hint",
    ),
    "a window off by one": (
        "masking.py",
        "mask.triu(k_len - q_len - left)",
        "mask.triu(k_len - q_len - left + 1)",
        "masking",
    ),
    "a window without its right side": ("masking.py", "mask.tril(k_len - q_len + right)", "mask", "masking"),
    "a window that starts top-left": (
        "masking.py",
        "mask.triu(k_len - q_len - left)",
        "mask.triu(-left)",
        "masking",
    ),
    "the cache forgets": (
        "cache.py",
        "keys = torch.cat((self.keys, keys), dim=2)",
        "keys = torch.cat((self.keys[:, :, 1:], keys), dim=2) if self.keys.shape[2] > 3 else torch.cat((self.keys, keys), dim=2)",
        "cache",
    ),
    "new keys before the old": (
        "cache.py",
        "keys = torch.cat((self.keys, keys), dim=2)",
        "keys = torch.cat((keys, self.keys), dim=2)",
        "cache",
    ),
    "padding in the cache seen later": (
        "attention.py",
        "                mask = real if mask is None else mask & real",
        "                mask = mask if mask is not None else None",
        "cache::test_samples_of_different_lengths",
    ),
    "rotary positions begin anew with each chunk": (
        "attention.py",
        "positions = positions + (len(cache) + new - longest)",
        "positions = positions + 0",
        "cache",
    ),
    "rotary takes one position for a ragged batch": (
        "attention.py",
        "if cache is not None and cache.visible is not None:\n            # Each",
        "if False:\n            # Each",
        "cache::test_samples_of_different_lengths",
    ),
    "positions of queries at the wrong end": (
        "attention.py",
        "first_query = positions.shape[-1] - q_len",
        "first_query = 0",
        "rules_and_positions_in_the_layer::test_a_layer_rotates_queries_and_keys",
    ),
    "values not turned into the model's order of pairs": (
        "positional.py",
        "first, second = turning[..., 0::2], turning[..., 1::2]",
        "first, second = turning[..., :pairs], turning[..., pairs:]",
        "positional",
    ),
    "angles in half precision": (
        "positional.py",
        "cos, sin = angles.cos(), angles.sin()",
        "cos, sin = angles.to(x.dtype).cos(), angles.to(x.dtype).sin()",
        "positional",
    ),
    "partial width turns the wrong columns": (
        "positional.py",
        "turning, still = x[..., : 2 * pairs], x[..., 2 * pairs :]",
        "still, turning = x[..., : x.shape[-1] - 2 * pairs], x[..., x.shape[-1] - 2 * pairs :]",
        "positional",
    ),
    "past and future buckets swapped": (
        "positional.py",
        "side * (ahead > 0)",
        "side * (ahead < 0)",
        "positional",
    ),
    "bucket borders one late": (
        "positional.py",
        "ahead.abs(), starts, right=True",
        "ahead.abs(), starts, right=False",
        "positional",
    ),
    "relative vectors in reverse": (
        "positional.py",
        "by_distance = query @ self.table.t()",
        "by_distance = query @ self.table.flip(0).t()",
        "positional",
    ),
    "distances not clipped": (
        "positional.py",
        "            0, 2 * self.max_distance\n",
        "            1, 2 * self.max_distance\n",
        "positional",
    ),
    "penalty that rewards the future": (
        "positional.py",
        "[:, None, None] * _distances(q_len, k_len).abs()",
        "[:, None, None] * _distances(q_len, k_len)",
        "positional",
    ),
    "fused: a bias alone is ignored": (
        "_paths.py",
        "mask = bias if mask is None else torch.where(mask, bias, -torch.inf)",
        "mask = mask if mask is None else torch.where(mask, bias, -torch.inf)",
        "bias_groups_and_scale::test_a_bias_is_added_to_the_scores",
    ),
    "fused: a mask beside a bias is ignored": (
        "_paths.py",
        "mask = bias if mask is None else torch.where(mask, bias, -torch.inf)",
        "mask = bias",
        "bias_groups_and_scale::test_a_bias_is_added_to_the_scores",
    ),
    "readable: a bias is ignored": (
        "_paths.py",
        "        scores = scores + _fit(bias, scores.dtype)\n",
        "        pass\n",
        "bias_groups_and_scale::test_a_bias_is_added_to_the_scores",
    ),
    "a bias is multiplied": (
        "_paths.py",
        "scores = scores + _fit(bias, scores.dtype)",
        "scores = scores * _fit(bias, scores.dtype)",
        "bias_groups_and_scale::test_a_bias_is_added_to_the_scores",
    ),
    "a bias too large becomes infinite": (
        "_paths.py",
        "    return wide.clamp(limits.min, limits.max).to(dtype)",
        "    return wide.to(dtype)",
        "precision::test_a_bias_beyond_what_the_scores_can_hold",
    ),
    "fused: the scale is ignored": (
        "_paths.py",
        "        scale=scale,\n        enable_gqa",
        "        enable_gqa",
        "bias_groups_and_scale::test_another_scale_and_a_softcap",
    ),
    "the scale on top of the default": (
        "scores.py",
        "    return (query * scale) @ key",
        "    return (query * scale / math.sqrt(query.shape[-1])) @ key",
        "scores",
    ),
    "the cap is ignored on the fused path": (
        "_paths.py",
        "readable = need_weights or score is not None or softcap is not None",
        "readable = need_weights or score is not None",
        "bias_groups_and_scale::test_another_scale_and_a_softcap",
    ),
    "the cap without its factor": (
        "scores.py",
        "return cap * torch.tanh(scores / cap)",
        "return torch.tanh(scores / cap)",
        "scores",
    ),
    "another scoring rule is ignored on the fused path": (
        "_paths.py",
        "readable = need_weights or score is not None or softcap is not None",
        "readable = need_weights or softcap is not None",
        "rules_and_positions_in_the_layer::test_a_layer_with_another_scoring_rule",
    ),
    "scores of any shape accepted": (
        "_paths.py",
        '        check_same("shape", names, (tuple(scores.shape), shape))\n',
        "",
        "rules_and_positions_in_the_layer::test_scores_of_another_shape_are_refused",
    ),
    "half precision not widened": (
        "_paths.py",
        "query, key = widen(query), widen(key).contiguous()",
        "query, key = query, key.contiguous()",
        "precision::test_attention_in_every_dtype_equals_the_loop",
    ),
    "autocast rounds the scores": (
        "_paths.py",
        "    with torch.autocast(device, enabled=False) if narrowed else nullcontext():",
        "    with nullcontext():",
        "precision::test_a_layer_whose_scores_go_beyond_65504",
    ),
    "a NaN is hidden where keys are few": (
        "_paths.py",
        "            mask = query.new_zeros(1, 1)",
        "            pass",
        "fast_path::test_a_visible_nan_is_never_hidden",
    ),
    "a NaN is hidden, off by one": (
        "_paths.py",
        "_KERNEL_KEEPS_NAN_FROM = 16",
        "_KERNEL_KEEPS_NAN_FROM = 15",
        "fast_path::test_few_keys_get_a_mask_so_that_no_nan_is_lost",
    ),
    "a NaN is hidden by few keys": (
        "_paths.py",
        "_KERNEL_KEEPS_NAN_FROM = 16",
        "_KERNEL_KEEPS_NAN_FROM = 7",  # a processor may add no more than 8 at once
        "fast_path::test_a_visible_nan_is_never_hidden",
    ),
    "the future is seen where a NaN was looked for": (
        "_paths.py",
        "            mask = causal_mask(query.size(-2), key.size(-2))",
        "            mask = query.new_zeros(1, 1)",
        "compile_and_export::test_a_layer_compiled_once_takes_many_lengths",
    ),
    "a graph alone is refused": (
        "_paths.py",
        "        gradient if gradient is None else _OnlyOnce.apply(gradient)  # type: ignore[no-untyped-call]\n",
        "        _OnlyOnce.backward()\n",
        "torch_func::test_func_grad_equals_autograd",
    ),
    "fused: dropout forgotten": (
        "_paths.py",
        "        dropout_p=dropout_p,\n        is_causal=is_causal,\n        scale=scale,\n        enable_gqa",
        "        is_causal=is_causal,\n        scale=scale,\n        enable_gqa",
        "attention::test_dropout_has_the_same_statistics_on_both_paths",
    ),
    "weights kept on the layer": (
        "attention.py",
        "        output: Tensor = self.out_proj(self.merge_heads(heads))",
        "        self.weights = weights\n        output: Tensor = self.out_proj(self.merge_heads(heads))",
        "precision::test_a_layer_in_every_dtype",
    ),
    "a window too wide to the left": (
        "masking.py",
        "mask.triu(k_len - q_len - left)",
        "mask.triu(k_len - q_len - left - 1)",
        "masking",
    ),
    "the right side of a window ignored": (
        "masking.py",
        "        mask = mask.tril(k_len - q_len + right)\n",
        "        mask = mask.tril(k_len - q_len)\n",
        "masking",
    ),
    "a bias of three axes taken for one of heads": (
        "masking.py",
        "    fits = bias.ndim in (2, len(shape)) and all(",
        "    fits = bias.ndim in (2, 3, len(shape)) and all(",
        "masking",
    ),
    "an infinite bias accepted": (
        "masking.py",
        "    if limits is not None and not all(map(math.isfinite, limits)):",
        "    if False:",
        "masking",
    ),
    "new values before old ones": (
        "cache.py",
        "values = torch.cat((self.values, values), dim=2)",
        "values = torch.cat((values, self.values), dim=2)",
        "cache",
    ),
    "padded slots are seen": (
        "attention.py",
        "                mask = real if mask is None else mask & real\n",
        "                pass\n",
        "cache::test_samples_of_different_lengths",
    ),
    "padded slots instead of the mask": (
        "attention.py",
        "                mask = real if mask is None else mask & real\n",
        "                mask = real\n",
        "cache::test_a_mask_beside_samples_of_different_lengths",
    ),
    "positions start anew in each chunk": (
        "attention.py",
        "            positions = positions + (len(cache) + new - longest)\n",
        "            pass\n",
        "cache",
    ),
    "positions count padded slots": (
        "attention.py",
        "        if cache is not None and cache.visible is not None:\n            # Each",
        "        if False:\n            # Each",
        "cache::test_samples_of_different_lengths",
    ),
    "a refused length changes the cache": (
        "cache.py",
        "        visible = self._append_visible(keys, valid_lens)\n        if self.keys",
        "        held = self.visible\n        self.visible = None\n        visible = self._append_visible(keys, valid_lens)\n        if self.keys",
        "cache::test_samples_of_different_lengths",
    ),
    "another width of values fits the cache": (
        "cache.py",
        '            check_same("value_dim", ("the new values", "the cache"), widths)\n',
        "",
        "cache::test_what_does_not_fit_is_refused_and_changes_nothing",
    ),
    "values are turned too": (
        "attention.py",
        "            queries, keys = self._turn(self.rotary, queries, keys, cache)\n",
        "            queries, keys = self._turn(self.rotary, queries, keys, cache)\n            values = self.rotary(values)\n",
        "rules_and_positions_in_the_layer::test_a_layer_rotates_queries_and_keys",
    ),
    "queries and keys begin together": (
        "attention.py",
        "        first_query = positions.shape[-1] - q_len\n",
        "        first_query = 0\n",
        "rules_and_positions_in_the_layer::test_a_layer_rotates_queries_and_keys",
    ),
    "scores of a rule overwritten": (
        "_paths.py",
        "owned=score is None",
        "owned=True",
        "fast_path::test_scores_that_a_rule_returns_are_not_modified",
    ),
    "-inf in a hidden row": (
        "_paths.py",
        "torch.where(sees, scores.new_full((), -torch.inf), 0.0)",
        "scores.new_full((), -torch.inf)",
        ATTENTION,
    ),
    "the cap after the bias": (
        "_paths.py",
        "    if softcap is not None:\n        scores = softcap_scores(scores, softcap)\n    if bias is not None:\n        scores = scores + _fit(bias, scores.dtype)\n",
        "    if bias is not None:\n        scores = scores + _fit(bias, scores.dtype)\n    if softcap is not None:\n        scores = softcap_scores(scores, softcap)\n",
        "bias_groups_and_scale::test_another_scale_and_a_softcap",
    ),
    "readable: no scale": (
        "_paths.py",
        "query / math.sqrt(query.shape[-1]) if scale is None",
        "query if scale is None",
        ATTENTION,
    ),
    "readable: the scale is ignored": (
        "_paths.py",
        "if scale is None else query * scale",
        "if True else query",
        "bias_groups_and_scale::test_another_scale_and_a_softcap",
    ),
    "readable: dropout without growth": (
        "_paths.py",
        "    kept = F.dropout(weights, dropout_p) if dropout_p > 0 else weights\n",
        "    kept = F.dropout(weights, dropout_p) * (1 - dropout_p)\n",
        "attention::test_dropout_has_the_same_statistics_on_both_paths",
    ),
    "random numbers drawn while evaluating": (
        "_paths.py",
        "    kept = F.dropout(weights, dropout_p) if dropout_p > 0 else weights\n",
        "    kept = F.dropout(weights, max(dropout_p, 1e-12))\n",
        "precision::test_the_smallest_visible_scores_win_against_hidden_ones",
    ),
    "scale after the product": (
        "scores.py",
        "return (query / math.sqrt(query.shape[-1])) @ key.transpose(-2, -1)",
        "return (query @ key.transpose(-2, -1)) / math.sqrt(query.shape[-1])",
        "scores",
    ),
    "softmax over the queries without gradients": (
        "_paths.py",
        "return torch.softmax(scores, -1, out=scores)",
        "return torch.softmax(scores, -2, out=scores)",
        "precision::test_the_fast_path_is_at_most_twice_as_inaccurate",
    ),
    "a mask of all pairs where torch's causal path does": (
        "_paths.py",
        "    elif is_causal and (mask is not None or query.shape[-2] != key.shape[-2]):",
        "    elif is_causal:",
        "fast_path::test_without_weights_no_tensor_of_all_pairs_is_made",
    ),
    "torch's formula instead of its kernel": (
        "_paths.py",
        "    if headless:  # without",
        "    if False:  # without",
        "fast_path::test_without_weights_no_tensor_of_all_pairs_is_made",
    ),
    "mask inverted where every row sees a key": (
        "_paths.py",
        "torch.where(visible, scores.new_full((), torch.inf), -torch.inf)",
        "torch.where(~visible, scores.new_full((), torch.inf), -torch.inf)",
        "fast_path::test_weights_in_the_memory_of_the_scores_are_the_same",
    ),
    "softmax over the queries where a row is hidden": (
        "_paths.py",
        "return torch.where(visible, scores, hidden).softmax(-1) * visible",
        "return torch.where(visible, scores, hidden).softmax(-2) * visible",
        ATTENTION,
    ),
    "fill of the smallest number": (
        "_paths.py",
        "torch.where(sees, scores.new_full((), -torch.inf), 0.0)",
        "scores.new_tensor(torch.finfo(scores.dtype).min)",
        "attention::test_a_hidden_row_does_not_change_other_samples",
    ),
    "a NaN is hidden in a compiled function": (
        "_paths.py",
        "        output = output.masked_fill(lost, torch.nan)",
        "        pass",
        "fast_path::test_nan_is_not_hidden_in_a_compiled_function",
    ),
    "half precision in a rule of the user's": (
        "_paths.py",
        "        if not isinstance(score, nn.Module):",
        "        if False:",
        "precision::test_a_function_as_rule_gets_half_precision_as_float32",
    ),
}
UNCHANGED = "nothing"

# One process imports torch and pytest, once; each fault gets a fork of it, which imports its own copy of mha_lib.
# What the forks inherit is frozen: the garbage collector of each would go through all of torch.
RUNNER = """
import gc, json, os, sys
import hypothesis, jaxtyping, numpy.testing, pytest, torch, torch._dynamo, torch.testing
torch.testing.assert_close(torch.ones(1), torch.ones(1))
torch.empty(2, device="meta") + 1
pytest.main(["--version"])
gc.freeze()
tests = sys.argv[1]
for folder, targets in json.load(sys.stdin):
    child = os.fork()
    if child == 0:
        os.chdir(folder)
        log = os.open("log", os.O_CREAT | os.O_WRONLY)
        os.dup2(log, 1), os.dup2(log, 2)
        sys.path[:0] = [folder, tests, os.path.join(tests, "library")]
        import mha_lib
        assert mha_lib.__file__ == os.path.join(folder, "mha_lib", "__init__.py"), mha_lib.__file__
        where = ["-c", "pytest.ini", "--rootdir", tests, "--noconftest", "--import-mode=importlib"]
        status = pytest.main(["-x", "-q", "--tb=no", "-rf", "-p", "no:cacheprovider", *where, *targets])
        sys.stdout.flush()
        os._exit(status)
    status = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
    open(os.path.join(folder, "status"), "w").write(str(status))
"""


def plant(fault, folder):
    """Copy the package into a new folder, put the fault in its place, and return the tests to run."""
    folder.mkdir()
    (folder / "pytest.ini").write_text("[pytest]\n")
    shutil.copytree(PACKAGE, folder / "mha_lib", ignore=shutil.ignore_patterns("__pycache__", "widgets"))
    (folder / "mha_lib" / "widgets").symlink_to(PACKAGE / "widgets")
    if fault == UNCHANGED:
        every = {target for *_, target in FAULTS.values()}
        files = {name for target in every for name in target.split() if "::" not in name}
        targets = sorted(files | {t for t in every if "::" in t and t.partition("::")[0] not in files})
    else:
        file, right, wrong, target = FAULTS[fault]
        path = folder / "mha_lib" / file
        text = path.read_text()
        assert text.count(right) == 1, f"{fault}: {right!r} occurs {text.count(right)} times in {file}"
        path.write_text(text.replace(right, wrong))
        targets = [target]
    # attention::test_causal -> tests/library/test_attention.py::test_causal
    return [
        str(TESTS / "library" / re.sub(r"^(\w+)", r"test_\1.py", t))
        for target in targets
        for t in target.split()
    ]


def run_all(root):
    """Fault -> (exit status of pytest, the test that failed first, all that was printed)."""
    folders = {fault: root / str(number) for number, fault in enumerate([UNCHANGED, *FAULTS])}
    work = [(str(folder), plant(fault, folder)) for fault, folder in folders.items()]
    environment = {name: value for name, value in os.environ.items() if not name.startswith("PYTEST_")}
    environment |= {"PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1", "OMP_NUM_THREADS": "1"}
    command, given = [sys.executable, "-c", RUNNER, str(TESTS)], json.dumps(work)
    subprocess.run(
        command,
        input=given,
        stdout=subprocess.DEVNULL,
        text=True,
        check=True,
        env=environment,
        cwd=root,
        timeout=1800,
    )
    verdicts = {}
    for fault, folder in folders.items():
        log = (folder / "log").read_text()
        failed = re.search(r"^FAILED .*?(test_\w+\.py::.*?)(?: - |$)", log, re.MULTILINE)
        verdicts[fault] = (int((folder / "status").read_text()), failed and failed[1], log)
    return verdicts


@pytest.fixture(scope="module")
def verdicts(tmp_path_factory):
    return run_all(tmp_path_factory.mktemp("faults"))


def test_without_a_fault_all_tests_pass(verdicts):
    status, _, log = verdicts[UNCHANGED]
    assert status == pytest.ExitCode.OK, log


@pytest.mark.parametrize("fault", FAULTS)
def test_fault_is_caught(fault, verdicts, record_property):
    status, caught_by, log = verdicts[fault]
    assert status == pytest.ExitCode.TESTS_FAILED, f"{fault} was not caught:\n{log}"
    assert caught_by, log
    record_property("caught by", caught_by)


if __name__ == "__main__":
    with tempfile.TemporaryDirectory() as folder:
        verdicts = run_all(Path(folder))
    print("| planted fault | first caught by |\n|---|---|")
    for fault in FAULTS:
        status, caught_by, _ = verdicts[fault]
        print(f"| {fault} | {f'`{caught_by}`' if status == 1 else '**not caught**'} |")
    print(f"\nWithout a fault: {'all tests pass' if verdicts[UNCHANGED][0] == 0 else 'TESTS FAIL'}.")
