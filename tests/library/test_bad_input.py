"""What must be refused: one table over every public function and constructor.

Each call raises the right exception, with a message that names the argument and the value it got, before
anything is computed: within each call, matrix products, softmaxes and random draws are forbidden.
"""

import datetime
import importlib
import math
import re
from functools import partial
from pathlib import Path

import numpy as np
import pytest
import torch
from test_exports import MODULES
from torch import nn
from torch.utils._python_dispatch import TorchDispatchMode

from mha_course import data
from mha_course.data import book_text as book
from mha_course.data import dates
from mha_course.exercises import Exercise, Verdict, Wrong, randn, rows_sum_to_one
from mha_course.exercises.bugs import check_escape
from mha_course.exercises.multi_head import check_multi_head
from mha_course.exercises.softmax_positions_cache import check_positions
from mha_course.experiments import load_experiment
from mha_course.measuring import longest_chain
from mha_course.notebook import compare_with_browser, set_seed, show_source, why
from mha_course.plots import plot_curves, plot_seeds, plot_weights
from mha_course.still_learning import is_still_learning
from mha_course.training import cross_entropy, fit, predict, seeded
from mha_lib import masking, scores, transformer
from mha_lib.attention import attention_pooling, dot_product_attention, masked_softmax
from mha_lib.cache import KeyValueCache
from mha_lib.conversion import mask_from_additive
from mha_lib.feed_forward import FeedForward, RMSNorm
from mha_lib.inspection import capture_attention, gate_heads, head_importance, prune_heads
from mha_lib.models.checkpoints import load_checkpoint, save_checkpoint
from mha_lib.models.generation import beam_decode, generate, greedy_decode
from mha_lib.models.language_models import GPT2, Bert, Llama
from mha_lib.models.parallel import shard_heads
from mha_lib.models.rotary_scaling import RotaryScaling
from mha_lib.models.seq2seq import EncoderDecoder
from mha_lib.multi_head import MultiHeadAttention
from mha_lib.positional import LearnedPositionalEncoding, SinusoidalPositionalEncoding, sinusoidal_encoding
from mha_lib.relative import ShawScore, T5RelativeBias, alibi_bias, alibi_slopes, t5_buckets
from mha_lib.rotary import RotaryPositionalEncoding, apply_rotary, rotary_angles

BATCH, HEADS, Q_LEN, K_LEN, HEAD_DIM, VALUE_DIM, WIDTH = 2, 3, 5, 7, 11, 13, 33
QUERY, KEY = (torch.ones(BATCH, HEADS, Q_LEN, HEAD_DIM), torch.ones(BATCH, HEADS, K_LEN, HEAD_DIM))
VALUE, SCORES = (torch.ones(BATCH, HEADS, K_LEN, VALUE_DIM), torch.ones(BATCH, HEADS, Q_LEN, K_LEN))
LONG_VALUE = torch.ones(BATCH, HEADS, K_LEN + 1, VALUE_DIM)
X, MEMORY = torch.ones(BATCH, Q_LEN, WIDTH), torch.ones(BATCH, K_LEN, WIDTH)
TOKENS = torch.ones(BATCH, Q_LEN, HEAD_DIM)
MASK, TRANSITION = torch.ones(Q_LEN, K_LEN, dtype=torch.bool), torch.full((3, 3), 1 / 3)
LAYER, SHARED = (MultiHeadAttention(WIDTH, HEADS), MultiHeadAttention(WIDTH, HEADS, num_kv_heads=1))
DAY, IDS = datetime.date(2021, 3, 3), torch.tensor([[1, 2], [3, 4], [5, 0]])
READER = EncoderDecoder(19, 13, WIDTH, HEADS, 7, 2, max_len=17)
WRITERS = [kind(19, 12, 3, 7, 2, max_len=17) for kind in (GPT2, Llama, Bert)]
FULL_CACHE = WRITERS[0].new_cache()
WRITERS[0](torch.ones(3, 16, dtype=torch.int64), cache=FULL_CACHE)
WITH_ZERO = nn.MultiheadAttention(6, 3, add_zero_attn=True)
WITH_BIAS = nn.MultiheadAttention(6, 3, add_bias_kv=True)
TENSORS = (QUERY, KEY, VALUE, SCORES, LONG_VALUE, X, MEMORY, TOKENS, MASK, TRANSITION, *LAYER.parameters())


def bools(*shape):
    return torch.ones(shape, dtype=torch.bool)


def ints(*values):
    return torch.tensor(values)


def batch(generator):
    return torch.ones(2, 1), torch.ones(2, 1)


FEED_FORWARD = FeedForward(WIDTH, HEAD_DIM)
ENCODER = transformer.TransformerEncoder(1, WIDTH, HEADS, HEAD_DIM)
DECODER, FULL = transformer.TransformerDecoder(1, WIDTH, HEADS, HEAD_DIM), transformer.DecoderBlockCache()
DECODER(X, MEMORY, cache=[FULL])
BIAS, INFINITE = torch.ones(Q_LEN, K_LEN), torch.full((Q_LEN, 9), math.inf)
LENGTHS = torch.ones(BATCH, Q_LEN, dtype=torch.int64)
X4 = torch.ones(2, 3, 5, 4)
ROTARY, YARN = RotaryPositionalEncoding(4), RotaryScaling("yarn", 2, 9)
TURNED = MultiHeadAttention(12, HEADS, rotary=ROTARY)
RELATIVE = MultiHeadAttention(WIDTH, HEADS, score=ShawScore(HEAD_DIM, 2))
CACHE, EMPTY, NARROW = KeyValueCache(), KeyValueCache(), X[..., :12]
CACHE.append(torch.ones(BATCH, HEADS, 4, HEAD_DIM), torch.ones(BATCH, HEADS, 4, HEAD_DIM))


def scoring(rule):
    return MultiHeadAttention(WIDTH, HEADS, score=rule)


def with_memory(decoder):
    return lambda x, *given, **options: decoder(x, MEMORY, *given, **options)


T5_BIAS, SHAW_SCORE = T5RelativeBias(HEADS), ShawScore(HEAD_DIM, 3)


# (what is called, the exception, what its message names: argument first, then the value)
CASES = [
    # masking
    (lambda: masking.valid_lens_mask([1, 2], 3), TypeError, "valid_lens", "list"),
    (lambda: masking.valid_lens_mask(bools(2), 3), TypeError, "valid_lens", "torch.bool"),
    (lambda: masking.valid_lens_mask(ints(4, 2)[0], 5), ValueError, "valid_lens", "()"),
    (lambda: masking.valid_lens_mask(torch.ones(2, 3, 5).long(), 7), ValueError, "valid_lens", "(2, 3, 5)"),
    (lambda: masking.valid_lens_mask(ints(2, -1), 3), ValueError, "valid_lens", "-1"),
    (lambda: masking.valid_lens_mask(ints(2, 4), 3), ValueError, "valid_lens", "4"),
    (lambda: masking.valid_lens_mask(ints(2, 3), 3.0), TypeError, "k_len", "3.0"),
    (lambda: masking.valid_lens_mask(ints(0, 0), -3), ValueError, "k_len", "-3"),
    (lambda: masking.causal_mask("5"), TypeError, "q_len", "'5'"),
    (lambda: masking.causal_mask(True), TypeError, "q_len", "True"),
    (lambda: masking.causal_mask(-2), ValueError, "q_len", "-2"),
    (lambda: masking.causal_mask(2, 2.5), TypeError, "k_len", "2.5"),
    (lambda: masking.causal_mask(2, -1), ValueError, "k_len", "-1"),
    (lambda: masking.build_mask(-5, K_LEN), ValueError, "q_len", "-5"),
    (lambda: masking.build_mask(Q_LEN, None), TypeError, "k_len", "NoneType"),
    (lambda: masking.build_mask(Q_LEN, K_LEN, attn_mask=MASK.float()), TypeError, "attn_mask", "float32"),
    (lambda: masking.build_mask(Q_LEN, K_LEN, attn_mask=MASK.tolist()), TypeError, "attn_mask", "list"),
    (lambda: masking.build_mask(Q_LEN, K_LEN, attn_mask=bools(7)), ValueError, "attn_mask", "(7,)"),
    (lambda: masking.build_mask(5, 7, attn_mask=bools(1, 2, 3, 5, 7)), ValueError, "attn_mask", "(1, 2, 3"),
    (lambda: masking.build_mask(Q_LEN, K_LEN, attn_mask=bools(7, 5)), ValueError, "attn_mask", "(7, 5)"),
    (lambda: masking.build_mask(Q_LEN, K_LEN, valid_lens=ints(8, 1)), ValueError, "valid_lens", "8"),
    (lambda: masking.build_mask(5, 7, attn_mask=bools(2, 5, 7), valid_lens=ints(1, 2, 3)),
     ValueError, "valid_lens", "3"),
    (lambda: masking.align_mask(MASK.float(), SCORES.shape), TypeError, "mask", "torch.float32"),
    (lambda: masking.align_mask(bools(5, Q_LEN, K_LEN), SCORES.shape), ValueError, "mask", "(5, 5, 7)"),
    (lambda: masking.align_mask(bools(2, Q_LEN, K_LEN), (Q_LEN, K_LEN)), ValueError, "mask", "(2, 5, 7)"),
    (lambda: masking.align_mask(bools(2, 3, 5, 7), (2, Q_LEN, K_LEN)), ValueError, "mask", "(2, 3, 5, 7)"),
    (lambda: masking.align_mask(bools(3, 5, 7), (1, 2, 3, Q_LEN, K_LEN)), ValueError, "mask", "(3, 5, 7)"),
    # scores with parameters
    (lambda: scores.AdditiveScore(0, 5, 7), ValueError, "query_dim", "0"),
    (lambda: scores.AdditiveScore(3, -5, 7), ValueError, "key_dim", "-5"),
    (lambda: scores.AdditiveScore(3, 5, 7.5), TypeError, "hidden_dim", "7.5"),
    (lambda: scores.BilinearScore("3", 5), TypeError, "query_dim", "'3'"),
    (lambda: scores.BilinearScore(3, 0), ValueError, "key_dim", "0"),
    (lambda: scores.gaussian_score(QUERY, KEY, 0), ValueError, "bandwidth", "0"),
    (lambda: scores.gaussian_score(QUERY, KEY, math.nan), ValueError, "bandwidth", "nan"),
    (lambda: scores.gaussian_score(QUERY, KEY, "wide"), TypeError, "bandwidth", "'wide'"),
    (lambda: scores.gaussian_score(QUERY, KEY, True), TypeError, "bandwidth", "True"),
    (lambda: scores.gaussian_score(QUERY, KEY, torch.tensor(-2.0)), ValueError, "bandwidth", "-2."),
    # the softmax and the mean
    (lambda: masked_softmax([[1.0, 2.0]]), TypeError, "scores", "list"),
    (lambda: masked_softmax(torch.ones(3, 5).long()), TypeError, "scores", "torch.int64"),
    (lambda: masked_softmax(torch.ones(5)), ValueError, "scores", "(5,)"),
    (lambda: masked_softmax(SCORES, MASK.float()), TypeError, "mask", "torch.float32"),
    (lambda: masked_softmax(SCORES, bools(HEADS, Q_LEN, K_LEN)), ValueError, "mask", "(3, 5, 7)"),
    (lambda: masked_softmax(SCORES, valid_lens=ints(1, 8)), ValueError, "valid_lens", "8"),
    (lambda: masked_softmax(SCORES, valid_lens=ints(1, 2, 3)), ValueError, "valid_lens", "(3,)"),
    (lambda: masked_softmax(SCORES[0, 0], valid_lens=ints(1, 2)), ValueError, "valid_lens", "(2,)"),
    (lambda: attention_pooling(SCORES.int(), VALUE), TypeError, "scores", "torch.int32"),
    (lambda: attention_pooling(SCORES, VALUE.int()), TypeError, "value", "torch.int32"),
    (lambda: attention_pooling(SCORES, VALUE.double()), TypeError, "value", "torch.float64"),
    (lambda: attention_pooling(SCORES, LONG_VALUE), ValueError, "value", "8"),
    (lambda: attention_pooling(SCORES, torch.ones(5, K_LEN, 2)), ValueError, "value", "(5, 7, 2)"),
    (lambda: attention_pooling(SCORES, VALUE, MASK.float()), TypeError, "mask", "torch.float32"),
    (lambda: attention_pooling(SCORES, VALUE, bools(5, Q_LEN, K_LEN)), ValueError, "mask", "(5, 5, 7)"),
    (lambda: attention_pooling(SCORES, VALUE, dropout_p=-0.1), ValueError, "dropout_p", "-0.1"),
    (lambda: attention_pooling(SCORES, VALUE, dropout_p=math.nan), ValueError, "dropout_p", "nan"),
    (lambda: attention_pooling(SCORES, VALUE, dropout_p="0.1"), TypeError, "dropout_p", "'0.1'"),
    # the layer
    (lambda: MultiHeadAttention(0, 1), ValueError, "embed_dim", "0"),
    (lambda: MultiHeadAttention(33.0, 3), TypeError, "embed_dim", "33.0"),
    (lambda: MultiHeadAttention(33, 0), ValueError, "num_heads", "0"),
    (lambda: MultiHeadAttention(33, True), TypeError, "num_heads", "True"),
    (lambda: MultiHeadAttention(33, 4), ValueError, "num_heads", "4"),
    (lambda: MultiHeadAttention(33, 4), ValueError, "embed_dim", "33"),
    (lambda: MultiHeadAttention(33, 3, num_kv_heads=0), ValueError, "num_kv_heads", "0"),
    (lambda: MultiHeadAttention(33, 3, num_kv_heads=2), ValueError, "num_kv_heads", "2"),
    (lambda: MultiHeadAttention(33, 3, num_kv_heads=1.0), TypeError, "num_kv_heads", "1.0"),
    (lambda: MultiHeadAttention(33, 3, kdim=0), ValueError, "kdim", "0"),
    (lambda: MultiHeadAttention(33, 3, vdim="7"), TypeError, "vdim", "'7'"),
    (lambda: MultiHeadAttention(33, 3, dropout=1.5), ValueError, "dropout", "1.5"),
    (lambda: MultiHeadAttention(33, 3, dropout=False), TypeError, "dropout", "False"),
    (lambda: LAYER(X[0], MEMORY, MEMORY), ValueError, "query", "(5, 33)"),
    (lambda: LAYER(X[..., :-1], MEMORY, MEMORY), ValueError, "query", "(2, 5, 32)"),
    (lambda: LAYER(X, MEMORY[None], MEMORY), ValueError, "key", "(1, 2, 7, 33)"),
    (lambda: LAYER(X, MEMORY[..., :-2], MEMORY), ValueError, "key", "(2, 7, 31)"),
    (lambda: LAYER(X, MEMORY, MEMORY[..., :-3]), ValueError, "value", "(2, 7, 30)"),
    (lambda: LAYER(X.long(), MEMORY, MEMORY), TypeError, "query", "torch.int64"),
    (lambda: LAYER(X, MEMORY, MEMORY.numpy()), TypeError, "value", "ndarray"),
    (lambda: LAYER(X.double(), MEMORY, MEMORY), TypeError, "query", "torch.float64"),
    (lambda: LAYER(X[:1], MEMORY, MEMORY), ValueError, "query", "1"),
    (lambda: LAYER(X, MEMORY, MEMORY[:, :-1]), ValueError, "value", "6"),
    (lambda: LAYER(X, MEMORY, MEMORY, MASK.float()), TypeError, "attn_mask", "torch.float32"),
    (lambda: LAYER(X, MEMORY, MEMORY, bools(HEADS, Q_LEN, K_LEN)), ValueError, "attn_mask", "(3, 5, 7)"),
    (lambda: LAYER(X, MEMORY, MEMORY, valid_lens=ints(3, 8)), ValueError, "valid_lens", "8"),
    (lambda: LAYER(X, MEMORY, MEMORY, valid_lens=ints(1, 2, 3)), ValueError, "valid_lens", "(3,)"),
    (lambda: LAYER.split_heads(X.tolist()), TypeError, "x", "list"),
    (lambda: LAYER.split_heads(X[0]), ValueError, "x", "(5, 33)"),
    (lambda: LAYER.split_heads(X[..., :32]), ValueError, "x", "(2, 5, 32)"),
    (lambda: LAYER.merge_heads([1]), TypeError, "x", "list"),
    (lambda: LAYER.merge_heads(X), ValueError, "x", "(2, 5, 33)"),
    (lambda: LAYER.merge_heads(VALUE), ValueError, "x", "(2, 3, 7, 13)"),
    (lambda: MultiHeadAttention.from_torch(LAYER), TypeError, "layer", "MultiHeadAttention"),
    (lambda: MultiHeadAttention.from_torch(WITH_ZERO), ValueError, "layer", "add_zero_attn"),
    (lambda: MultiHeadAttention.from_torch(WITH_BIAS), ValueError, "layer", "add_bias_kv"),
    # positions
    (lambda: sinusoidal_encoding(0, 4), ValueError, "num_positions", "0"),
    (lambda: sinusoidal_encoding(5, 0), ValueError, "embed_dim", "0"),
    (lambda: sinusoidal_encoding(5, 4.0), TypeError, "embed_dim", "4.0"),
    (lambda: sinusoidal_encoding(5, 4, base=0), ValueError, "base", "0"),
    (lambda: sinusoidal_encoding(5, 4, base="10000"), TypeError, "base", "'10000'"),
    (lambda: rotary_angles(0, 4), ValueError, "num_positions", "0"),
    (lambda: rotary_angles(5, 3), ValueError, "head_dim", "3"),
    (lambda: rotary_angles(5, 4, base=-1.0), ValueError, "base", "-1.0"),
    (lambda: apply_rotary(torch.ones(5, 4).long(), torch.ones(5, 2)), TypeError, "x", "torch.int64"),
    (lambda: apply_rotary(torch.ones(4), torch.ones(5, 2)), ValueError, "x", "(4,)"),
    (lambda: apply_rotary(torch.ones(5, 3), torch.ones(5, 1)), ValueError, "x", "(5, 3)"),
    (lambda: apply_rotary(torch.ones(5, 4), torch.ones(5, 2).int()), TypeError, "angles", "torch.int32"),
    (lambda: apply_rotary(torch.ones(5, 4), torch.ones(5, 4)), ValueError, "angles", "(5, 4)"),
    (lambda: apply_rotary(torch.ones(5, 4), torch.ones(6, 2)), ValueError, "angles", "(6, 2)"),
    (lambda: RotaryPositionalEncoding(4, scaling="linear"), TypeError, "scaling", "'linear'"),
    (lambda: RotaryPositionalEncoding(4, base=1, scaling=YARN), ValueError, "base", "1"),
    (lambda: RotaryScaling("ntk", 2.0), ValueError, "kind", "'ntk'"),
    (lambda: RotaryScaling("linear", 0.0), ValueError, "factor", "0.0"),
    (lambda: RotaryScaling("linear", 2.0, 64), ValueError, "trained_len", "64"),
    (lambda: RotaryScaling("dynamic", 2.0), TypeError, "trained_len", "None"),
    (lambda: RotaryScaling("llama3", 2.0, 64, low=4.0), ValueError, "low", "4.0"),
    (lambda: RotaryScaling("llama3", 2.0, 64, attention_factor=2.0), ValueError, "attention_factor", "2.0"),
    (lambda: RotaryScaling("yarn", 2.0, 64, high="32"), TypeError, "high", "'32'"),
    (lambda: alibi_slopes(0), ValueError, "num_heads", "0"),
    (lambda: alibi_slopes(8.0), TypeError, "num_heads", "8.0"),
    (lambda: alibi_bias(-1, 5), ValueError, "num_heads", "-1"),
    (lambda: alibi_bias(3, 0), ValueError, "q_len", "0"),
    (lambda: alibi_bias(3, 5, 7.5), TypeError, "k_len", "7.5"),
    # looking into a model
    (lambda: capture_attention("model").__enter__(), TypeError, "model", "str"),
    (lambda: capture_attention(nn.Flatten()).__enter__(), ValueError, "model", "Flatten"),
    (lambda: gate_heads(nn.Flatten(), torch.ones(3)).__enter__(), TypeError, "attention", "Flatten"),
    (lambda: gate_heads(LAYER, [1.0, 1.0, 1.0]).__enter__(), TypeError, "gates", "list"),
    (lambda: gate_heads(LAYER, ints(1, 1, 1)).__enter__(), TypeError, "gates", "torch.int64"),
    (lambda: gate_heads(LAYER, torch.ones(4)).__enter__(), ValueError, "gates", "(4,)"),
    (lambda: gate_heads(LAYER, torch.ones(3, 1)).__enter__(), ValueError, "gates", "(3, 1)"),
    (lambda: head_importance("layer", lambda: 0), TypeError, "attention", "str"),
    (lambda: head_importance(LAYER, lambda: 0.5), TypeError, "loss", "0.5"),
    (lambda: head_importance(LAYER, lambda: torch.ones(2, 3)), ValueError, "loss", "(2, 3)"),
    (lambda: head_importance(LAYER, lambda: torch.ones(2)), ValueError, "loss", "1.0"),
    (lambda: head_importance(LAYER, lambda: SHARED.k_proj.weight[0]), ValueError, "loss", "does not"),
    (lambda: prune_heads(nn.Flatten(), [0]), TypeError, "attention", "Flatten"),
    (lambda: prune_heads(LAYER, 1), TypeError, "heads", "int"),
    (lambda: prune_heads(LAYER, [True]), TypeError, "heads", "True"),
    (lambda: prune_heads(LAYER, [3]), ValueError, "heads", "3"),
    (lambda: prune_heads(LAYER, [-1]), ValueError, "heads", "-1"),
    (lambda: prune_heads(LAYER, [1, 1]), ValueError, "heads", "[1, 1]"),
    (lambda: prune_heads(LAYER, [0, 1, 2]), ValueError, "heads", "3"),
    (lambda: prune_heads(SHARED, [0]), ValueError, "heads", "num_kv_heads=1"),
    # distributed_program.py, which has a mesh, tests that the mesh fits
    (lambda: shard_heads("layer", None), TypeError, "attention", "str"),
    (lambda: shard_heads(LAYER, 2), TypeError, "mesh", "int"),
    # data
    (lambda: data.pointer_batch(0), ValueError, "batch_size", "0"),
    (lambda: data.pointer_batch(2, vocab_size=8.0), TypeError, "vocab_size", "8.0"),
    (lambda: data.pointer_batch(2, length=-1), ValueError, "length", "-1"),
    (lambda: data.pointer_batch(2, tasks=["previous", "sideways"]), ValueError, "tasks", "sideways"),
    (lambda: data.pointer_batch(2, tasks=[]), ValueError, "tasks", "[]"),
    (lambda: data.markov_transition(0), ValueError, "vocab_size", "0"),
    (lambda: data.markov_transition(concentration=0.0), ValueError, "concentration", "0.0"),
    (lambda: data.markov_transition(concentration="1"), TypeError, "concentration", "'1'"),
    (lambda: data.markov_transition(seed=-1), ValueError, "seed", "-1"),
    (lambda: data.markov_transition(seed=0.5), TypeError, "seed", "0.5"),
    (lambda: data.markov_batch(0, 5, TRANSITION), ValueError, "batch_size", "0"),
    (lambda: data.markov_batch(2, 0, TRANSITION), ValueError, "length", "0"),
    (lambda: data.markov_batch(2, 5, TRANSITION.tolist()), TypeError, "transition", "list"),
    (lambda: data.markov_batch(2, 5, TRANSITION[:2]), ValueError, "transition", "(2, 3)"),
    (lambda: data.markov_batch(2, 5, torch.ones(1, 1) * 2), ValueError, "transition", "2.0"),
    (lambda: data.markov_batch(2, 5, torch.tensor([[1.5, -0.5], [0, 1]])), ValueError, "transition", "-0.5"),
    (lambda: data.markov_batch(2, 5, torch.full((2, 2), math.nan)), ValueError, "transition", "nan"),
    (lambda: data.markov_entropy(2.5, TRANSITION), TypeError, "length", "2.5"),
    (lambda: data.markov_entropy(5, TRANSITION[0]), ValueError, "transition", "(3,)"),
    (lambda: data.noisy_curve(0), ValueError, "num_train", "0"),
    (lambda: data.noisy_curve(5, 0.5), TypeError, "num_test", "0.5"),
    (lambda: data.noisy_curve(noise=-0.1), ValueError, "noise", "-0.1"),
    (lambda: data.noisy_curve(noise=None), TypeError, "noise", "None"),
    (lambda: data.digit_tokens(3), ValueError, "patch", "3"),
    (lambda: data.digit_tokens(0), ValueError, "patch", "0"),
    (lambda: data.digit_tokens(2.0), TypeError, "patch", "2.0"),
    (lambda: data.digit_tokens(test_fraction=1), ValueError, "test_fraction", "1"),
    (lambda: data.digit_tokens(test_fraction="0.2"), TypeError, "test_fraction", "'0.2'"),
    (lambda: data.digit_tokens(seed=-5), ValueError, "seed", "-5"),
    (lambda: data.sentence_batch(0), ValueError, "batch_size", "0"),
    (lambda: data.sentence_batch(2.0), TypeError, "batch_size", "2.0"),
    (lambda: data.sentence_batch(2, held_out="no"), TypeError, "held_out", "'no'"),
    (lambda: data.sentence_text([5, 24]), TypeError, "tokens", "list"),
    (lambda: dates.normalize_date(3), TypeError, "text", "3"),
    (lambda: dates.write_date("2021-03-03"), TypeError, "day", "'2021-03-03'"),
    (lambda: dates.write_date(DAY, 7), TypeError, "locale", "7"),
    (lambda: dates.write_date(DAY, "xx_YY"), ValueError, "locale", "'xx_YY'"),
    (lambda: dates.write_date(DAY, "de", "short"), ValueError, "form", "'short'"),
    (lambda: dates.is_held_out(737852), TypeError, "day", "737852"),
    (lambda: dates.encode_source([3]), TypeError, "text", "3"),
    (lambda: dates.encode_source(["3 ☃"]), ValueError, "texts", "'☃'"),
    (lambda: dates.encode_source([" "]), ValueError, "texts", "0"),
    (lambda: dates.encode_source(["3" * 41]), ValueError, "texts", "41"),
    (lambda: dates.encode_target([3]), TypeError, "texts", "3"),
    (lambda: dates.encode_target(["3 May 2021"]), ValueError, "texts", "'3 May 2021'"),
    (lambda: dates.decode_target([5, 6]), TypeError, "tokens", "list"),
    (lambda: dates.decode_target(ints(5, 13)), ValueError, "tokens", "13"),
    (lambda: dates.date_batch(0), ValueError, "batch_size", "0"),
    (lambda: dates.date_batch(2.0), TypeError, "batch_size", "2.0"),
    (lambda: dates.date_batch(2, held_out=1), TypeError, "held_out", "1"),
    (lambda: dates.date_batch(2, locales=("xx_YY",)), ValueError, "locale", "'xx_YY'"),
    (lambda: dates.date_batch(2, forms=("short",)), ValueError, "form", "'short'"),
    (lambda: book.split_text(3), TypeError, "text", "3"),
    (lambda: book.book_text("all"), ValueError, "part", "'all'"),
    (lambda: book.book_text(0), TypeError, "part", "0"),
    (lambda: book.book_tokens("all"), ValueError, "part", "'all'"),
    (lambda: book.encode_text(["a"]), TypeError, "text", "['a']"),
    (lambda: book.decode_tokens([5, 6]), TypeError, "tokens", "list"),
    (lambda: book.decode_tokens(ints(5, 512)), ValueError, "tokens", "512"),
    (lambda: book.decode_tokens(ints(5).unsqueeze(0)), ValueError, "tokens", "(1, 1)"),
    (lambda: book.book_batch(0, 5), ValueError, "batch_size", "0"),
    (lambda: book.book_batch(2, 5.0), TypeError, "length", "5.0"),
    (lambda: book.book_batch(2, 5, part="all"), ValueError, "part", "'all'"),
    (lambda: book.book_batch(2, 13397, part="test"), ValueError, "length", "13397"),
    # the whole Transformer
    (lambda: EncoderDecoder(0, 5, 6, 3, 7, 2), ValueError, "source_vocab", "0"),
    (lambda: EncoderDecoder(5, 7.0, 6, 3, 7, 2), TypeError, "target_vocab", "7.0"),
    (lambda: EncoderDecoder(5, 7, 6, 4, 7, 2), ValueError, "num_heads", "4"),
    (lambda: EncoderDecoder(5, 7, 6, 3, 7, 0), ValueError, "num_layers", "0"),
    (lambda: EncoderDecoder(5, 7, 6, 3, 7, 2, max_len=0), ValueError, "max_len", "0"),
    (lambda: EncoderDecoder(5, 7, 6, 3, 7, 2, dropout=2.0), ValueError, "dropout", "2.0"),
    (lambda: READER(torch.ones(2, 3), IDS), TypeError, "source", "torch.float32"),
    (lambda: READER(IDS[0], IDS), ValueError, "source", "(2,)"),
    (lambda: READER(ints(19, 1, 2).unsqueeze(1), IDS), ValueError, "source", "19"),
    (lambda: READER(IDS, ints(-1, 1, 2).unsqueeze(1)), ValueError, "target", "-1"),
    (lambda: READER(IDS.repeat(1, 9), IDS), ValueError, "max_len", "(3, 18)"),
    (lambda: READER(IDS, IDS, source_lens=ints(2, 1, 3)), ValueError, "source_lens", "3"),
    (lambda: READER(IDS, IDS, source_lens=ints(2, 1)), ValueError, "source_lens", "(2,)"),
    (lambda: READER(IDS, IDS, source_lens=torch.ones(3)), TypeError, "source_lens", "torch.float32"),
    (lambda: READER.encode(IDS.tolist()), TypeError, "source", "list"),
    (lambda: READER.decode(IDS, torch.ones(3, 5, 7)), ValueError, "memory", "(3, 5, 7)"),
    (lambda: READER.decode(IDS, torch.ones(2, 5, WIDTH)), ValueError, "memory", "2"),
    (lambda: READER.decode(IDS, torch.ones(3, 5, WIDTH), cache=[]), ValueError, "cache", "0"),
    (lambda: greedy_decode(LAYER, IDS, start=0, end=1, max_len=3), TypeError, "model", "MultiHead"),
    (lambda: greedy_decode(READER, IDS, start=13, end=1, max_len=3), ValueError, "start", "13"),
    (lambda: greedy_decode(READER, IDS, start=0, end=1.0, max_len=3), TypeError, "end", "1.0"),
    (lambda: greedy_decode(READER, IDS, start=0, end=1, max_len=0), ValueError, "max_len", "0"),
    (lambda: greedy_decode(READER, IDS, start=0, end=1, max_len=18), ValueError, "max_len", "18"),
    (lambda: beam_decode(READER, IDS, start=0, end=-1, max_len=3), ValueError, "end", "-1"),
    (lambda: generate(LAYER, IDS, max_new=2), TypeError, "model", "MultiHead"),
    (lambda: generate(READER, IDS, max_new=2), ValueError, "source", "None"),
    (lambda: generate(WRITERS[0], IDS, max_new=2, source=IDS), ValueError, "source", "(3, 2)"),
    (lambda: generate(WRITERS[0], IDS, max_new=0), ValueError, "max_new", "0"),
    (lambda: generate(WRITERS[0], IDS, max_new=99), ValueError, "max_new", "99"),
    (lambda: generate(WRITERS[0], IDS.float(), max_new=1), TypeError, "tokens", "torch.float32"),
    (lambda: generate(WRITERS[0], IDS, max_new=1, prompt_lens=ints(2, 1)), ValueError, "prompt_lens", "(2,)"),
    (lambda: generate(WRITERS[0], IDS, max_new=1, prompt_lens=ints(2, 1, 0)), ValueError, "prompt_lens", "0"),
    (lambda: generate(WRITERS[0], IDS, max_new=1, stop=99), ValueError, "stop", "99"),
    (lambda: generate(WRITERS[0], IDS, max_new=1, temperature=-1.0), ValueError, "temperature", "-1.0"),
    (lambda: generate(WRITERS[0], IDS, max_new=1, temperature=math.nan), ValueError, "temperature", "nan"),
    (lambda: generate(WRITERS[0], IDS, max_new=1, stop=None), TypeError, "stop", "None"),
    (lambda: generate(WRITERS[0], IDS, max_new=1, source_lens=ints(1)), ValueError, "source_lens", "(1,)"),
    (lambda: generate(WRITERS[0], IDS, max_new=1, top_k=3), ValueError, "top_k", "3"),
    (lambda: generate(WRITERS[0], IDS, max_new=1, temperature=1.0, top_k=0), ValueError, "top_k", "0"),
    (lambda: generate(WRITERS[0], IDS, max_new=1, temperature=1.0, top_p=0.0), ValueError, "top_p", "0.0"),
    (lambda: generate(WRITERS[0], IDS, max_new=1, temperature=9.0, beam_size=2), ValueError, "beam", "9.0"),
    (lambda: generate(WRITERS[0], IDS, max_new=1, beam_size=99), ValueError, "beam_size", "99"),
    (lambda: generate(WRITERS[0], IDS, max_new=1, generator=3), TypeError, "generator", "3"),
    *(
        (partial(beam_decode, READER, IDS, start=0, end=1, max_len=3, beam_size=n), *named)
        for n, *named in ((0, ValueError, "beam_size", "0"), (14, ValueError, "beam_size", "14"))
    ),
    # language models
    *[
        row
        for make in (partial(kind, max_len=17) for kind in (GPT2, Llama, Bert))
        for row in [
            (lambda make=make: make(0, 12, 3, 7, 2), ValueError, "vocab_size", "0"),
            (lambda make=make: make(19, 12.0, 3, 7, 2), TypeError, "embed_dim", "12.0"),
            (lambda make=make: make(19, 12, 5, 7, 2), ValueError, "num_heads", "5"),
            (lambda make=make: make(19, 12, 3, -7, 2), ValueError, "hidden_dim", "-7"),
            (lambda make=make: make(19, 12, 3, 7, "2"), TypeError, "num_layers", "'2'"),
            (lambda make=make: make(19, 12, 3, 7, 2, max_len=0), ValueError, "max_len", "0"),
            (lambda make=make: make(19, 12, 3, 7, 2, layer_norm_eps=0), ValueError, "layer_norm_eps", "0"),
        ]
    ],
    (lambda: GPT2(19, 12, 3, 7, 2, max_len=5, activation="swiglu"), ValueError, "activation", "'swiglu'"),
    (lambda: GPT2(19, 12, 3, 7, 2, max_len=5, dropout=1.5), ValueError, "dropout", "1.5"),
    (lambda: GPT2(19, 12, 3, 7, 2, max_len=5, tied=1), TypeError, "tied", "1"),
    (lambda: Llama(19, 12, 3, 7, 2, max_len=5, num_kv_heads=2), ValueError, "num_kv_heads", "2"),
    (lambda: Llama(19, 9, 3, 7, 2, max_len=5), ValueError, "head_dim", "3"),
    (lambda: Llama(19, 12, 3, 7, 2, max_len=5, base=-1.0), ValueError, "base", "-1.0"),
    (lambda: Llama(19, 12, 3, 7, 2, max_len=5, tied="no"), TypeError, "tied", "'no'"),
    (lambda: Bert(19, 12, 3, 7, 2, max_len=5, num_segments=0), ValueError, "num_segments", "0"),
    (lambda: Bert(19, 12, 3, 7, 2, max_len=5, activation="mish"), ValueError, "activation", "'mish'"),
    *[
        row
        for model in WRITERS
        for row in [
            (lambda model=model: model(IDS.tolist()), TypeError, "tokens", "list"),
            (lambda model=model: model(IDS.int()), TypeError, "tokens", "torch.int32"),
            (lambda model=model: model(IDS[0]), ValueError, "tokens", "(2,)"),
            (lambda model=model: model(IDS * 4), ValueError, "tokens", "20"),
            (lambda model=model: model(IDS.repeat(1, 9)), ValueError, "max_len", "(3, 18)"),
            (lambda model=model: model(IDS, key_mask=IDS), TypeError, "key_mask", "torch.int64"),
            (lambda model=model: model(IDS, key_mask=bools(3, 3)), ValueError, "key_mask", "(3, 3)"),
            (lambda model=model: model(IDS, valid_lens=ints(2, 1, 3)), ValueError, "valid_lens", "3"),
        ]
    ],
    (lambda: WRITERS[0](IDS, cache=[]), ValueError, "cache", "0"),
    (lambda: WRITERS[1](IDS, cache=3), TypeError, "cache", "3"),
    (lambda: WRITERS[0](IDS, cache=FULL_CACHE), ValueError, "max_len", "(3, 2)"),
    (lambda: WRITERS[0](IDS[:, :1], cache=FULL_CACHE, valid_lens=ints(1)), ValueError, "valid_lens", "(1,)"),
    (lambda: WRITERS[0](IDS[:2, :1], cache=FULL_CACHE), ValueError, "batch", "2"),
    (lambda: WRITERS[2](IDS, IDS.float()), TypeError, "segments", "torch.float32"),
    (lambda: WRITERS[2](IDS, IDS), ValueError, "segments", "5"),
    (lambda: WRITERS[2](IDS, IDS[:1] * 0), ValueError, "segments", "(1, 2)"),
    # checkpoints; tests/library/test_checkpoints.py tries files
    (lambda: load_checkpoint(3), TypeError, "source", "3"),
    (lambda: load_checkpoint("no/model", revision=3), TypeError, "revision", "3"),
    (lambda: load_checkpoint("a b", revision="main"), ValueError, "source", "'a b'"),
    (lambda: load_checkpoint(".", sha256=3), TypeError, "sha256", "3"),
    (lambda: load_checkpoint(".", sha256="abc"), ValueError, "sha256", "'abc'"),
    (lambda: load_checkpoint(".", sha256={"config.json": 3}), TypeError, "sha256", "3"),
    (lambda: save_checkpoint(LAYER, "."), TypeError, "model", "MultiHeadAttention"),
    (lambda: save_checkpoint(WRITERS[0], 3), TypeError, "folder", "3"),
    (lambda: data.sentence_text(torch.ones(2, 3).long()), ValueError, "tokens", "(2, 3)"),
    (lambda: data.sentence_text(ints(5, 56)), ValueError, "tokens", "56"),
    # experiments
    (lambda: load_experiment(3), TypeError, "name", "3"),
    (lambda: load_experiment("two_points"), ValueError, "name", "'two_points'"),
    (lambda: load_experiment("../common"), ValueError, "name", "'../common'"),
    (lambda: load_experiment("two_pointers", rerun="yes"), TypeError, "rerun", "'yes'"),
    (lambda: is_still_learning([[0.7, 0.6]]), TypeError, "losses", "list"),
    (lambda: is_still_learning(torch.ones(40)), ValueError, "losses", "(40,)"),
    # training
    (lambda: cross_entropy([[1.0]], ints(0)), TypeError, "logits", "list"),
    (lambda: cross_entropy(torch.ones(2, 3), torch.ones(2)), TypeError, "target", "torch.float32"),
    (lambda: cross_entropy(torch.ones(2, 5, 3), ints(0, 1)), ValueError, "target", "(2,)"),
    (lambda: seeded(nn.Flatten, 0), ValueError, "num_models", "0"),
    (lambda: seeded(nn.Flatten, 2, seed=2**32), ValueError, "seed", str(2**32)),
    (lambda: predict([], X), ValueError, "models", "none"),
    (lambda: predict([LAYER, "model"], X), TypeError, "models", "str"),
    (lambda: fit([], batch, steps=5), ValueError, "models", "none"),
    (lambda: fit(["model"], batch, steps=5), TypeError, "models", "str"),
    (lambda: fit(LAYER, batch, steps=0), ValueError, "steps", "0"),
    (lambda: fit(LAYER, batch, steps=5.0), TypeError, "steps", "5.0"),
    (lambda: fit(LAYER, batch, steps=5, records=0), ValueError, "records", "0"),
    (lambda: fit(LAYER, batch, steps=5, lr=0), ValueError, "lr", "0"),
    (lambda: fit(LAYER, batch, steps=5, lr="fast"), TypeError, "lr", "'fast'"),
    (lambda: fit(LAYER, batch, steps=5, seed=-1), ValueError, "seed", "-1"),
    (lambda: fit(LAYER, batch, steps=5, warmup=-0.1), ValueError, "warmup", "-0.1"),
    (lambda: fit(LAYER, batch, steps=5, warmup=1), ValueError, "warmup", "1"),
    (lambda: fit(LAYER, batch, steps=5, warmup=None), TypeError, "warmup", "NoneType"),
    (lambda: fit(LAYER, batch, steps=5, clip=0), ValueError, "clip", "0"),
    (lambda: fit(LAYER, batch, steps=5, clip="1"), TypeError, "clip", "'1'"),
    (lambda: fit(LAYER, batch, steps=5, progress="bar"), TypeError, "progress", "'bar'"),
    (lambda: fit([LAYER, SHARED], batch, steps=5), ValueError, "models", "num_kv_heads=1"),
    # notebook and plots
    (lambda: set_seed("7"), TypeError, "seed", "'7'"),
    (lambda: set_seed(-7), ValueError, "seed", "-7"),
    (lambda: show_source(3), TypeError, "objects", "3"),
    (lambda: show_source(len), TypeError, "objects", "len"),
    (lambda: longest_chain(None), TypeError, "output", "None"),
    (lambda: longest_chain(torch.ones(2)), ValueError, "output", "leaf"),
    (lambda: why(None), TypeError, "name", "None"),
    (lambda: why("a/b"), ValueError, "name", "'a/b'"),
    (lambda: compare_with_browser(3), TypeError, "widget", "3"),
    (lambda: plot_weights(np.eye(3)), TypeError, "weights", "ndarray"),
    (lambda: plot_weights(SCORES), ValueError, "weights", "(2, 3, 5, 7)"),
    (lambda: plot_weights(torch.ones(0, 3)), ValueError, "weights", "(0, 3)"),
    (lambda: plot_weights(torch.eye(3), query_labels=["a"]), ValueError, "query_labels", "1"),
    (lambda: plot_weights(torch.eye(3), key_labels="abcd"), ValueError, "key_labels", "4"),
    (lambda: plot_weights(torch.eye(3), titles=[]), ValueError, "titles", "0"),
    (lambda: plot_weights(torch.eye(3), columns=0), ValueError, "columns", "0"),
    (lambda: plot_curves(torch.arange(3), {}), ValueError, "curves", "{}"),
    (lambda: plot_curves(torch.arange(3), {"a": [1, 2, 3]}), TypeError, "curves", "list"),
    (lambda: plot_curves(torch.arange(3), {"a": torch.ones(4)}), ValueError, "curves", "(4,)"),
    (lambda: plot_seeds({}, xlabel="heads"), ValueError, "results", "{}"),
    (lambda: plot_seeds({"a": {"1": [0.5]}}, xlabel="heads"), TypeError, "results", "list"),
]  # fmt: skip

CASES += [
    # masking
    (lambda: masking.sliding_window_mask(Q_LEN, K_LEN, left=-1), ValueError, "left", "-1"),
    (lambda: masking.sliding_window_mask(Q_LEN, K_LEN, left=True), TypeError, "left", "True"),
    (lambda: masking.sliding_window_mask(Q_LEN, K_LEN, left=2, right=-3), ValueError, "right", "-3"),
    (lambda: masking.sliding_window_mask(Q_LEN, K_LEN, left=2, right="0"), TypeError, "right", "'0'"),
    (lambda: masking.sliding_window_mask(-1, K_LEN, left=2), ValueError, "q_len", "-1"),
    (lambda: masking.sliding_window_mask(Q_LEN, 2.0, left=2), TypeError, "k_len", "2.0"),
    (lambda: masking.align_bias(BIAS.tolist(), SCORES.shape), TypeError, "attn_bias", "list"),
    (lambda: masking.align_bias(MASK, SCORES.shape), TypeError, "attn_bias", "torch.bool"),
    (lambda: masking.align_bias(BIAS[0], SCORES.shape), ValueError, "attn_bias", "(7,)"),
    (lambda: masking.align_bias(BIAS * math.inf, SCORES.shape), ValueError, "attn_bias", "inf"),
    # scores
    (lambda: scores.softcap_scores([1.0], 5.0), TypeError, "scores", "list"),
    (lambda: scores.softcap_scores(SCORES.int(), 5.0), TypeError, "scores", "torch.int32"),
    (lambda: scores.softcap_scores(SCORES, 0), ValueError, "cap", "0"),
    (lambda: scores.softcap_scores(SCORES, math.inf), ValueError, "cap", "inf"),
    (lambda: scores.softcap_scores(SCORES, math.nan), ValueError, "cap", "nan"),
    (lambda: scores.softcap_scores(SCORES, None), TypeError, "cap", "None"),
    (lambda: scores.scaled_dot_product_score(QUERY, KEY, scale=0.0), ValueError, "scale", "0.0"),
    (lambda: scores.scaled_dot_product_score(QUERY, KEY, scale=math.inf), ValueError, "scale", "inf"),
    (lambda: scores.scaled_dot_product_score(QUERY, KEY, scale="1"), TypeError, "scale", "'1'"),
    # the layer
    (lambda: scoring("dot"), TypeError, "score", "'dot'"),
    (lambda: MultiHeadAttention(33, 3, scale=torch.ones(2, 1, 1)), ValueError, "scale", "=3, got (2, 1, 1)"),
    (lambda: MultiHeadAttention(WIDTH, HEADS, scale=2.0, score=scores.dot_product_score),
     ValueError, "scale", "None where score is given"),
    (lambda: LAYER(X, X, X, key_mask=bools(1, Q_LEN)), ValueError, "key_mask", "(1, 5)"),
    (lambda: LAYER(X, X, X, key_mask=bools(BATCH, 1, Q_LEN)), ValueError, "key_mask", "(2, 1, 5)"),
    (lambda: scoring(3), TypeError, "score", "3"),
    (lambda: MultiHeadAttention(WIDTH, HEADS, rotary=ROTARY), ValueError, "rotary", "4"),
    (lambda: MultiHeadAttention(12, HEADS, rotary=10_000.0), TypeError, "rotary", "10000.0"),
    (lambda: LAYER(X, MEMORY, MEMORY, attn_bias=BIAS.T), ValueError, "attn_bias", "(7, 5)"),
    (lambda: LAYER(X, MEMORY, MEMORY, attn_bias=BIAS.long()), TypeError, "attn_bias", "torch.int64"),
    (lambda: LAYER(X, MEMORY, MEMORY, attn_bias=BIAS * -math.inf), ValueError, "attn_bias", "-inf"),
    (lambda: LAYER(X, MEMORY, MEMORY, cache={}), TypeError, "cache", "dict"),
    (lambda: LAYER(X[:1], X[:1], X[:1], cache=CACHE), ValueError, "cache", "(1, 3, 11)"),
    (lambda: SHARED(X, X, X, cache=CACHE), ValueError, "cache", "(2, 1, 11)"),
    (lambda: LAYER(X, X, X, MASK, cache=CACHE), ValueError, "attn_mask", "(5, 7)"),
    (lambda: LAYER(X, X, X, attn_bias=BIAS, cache=CACHE), ValueError, "attn_bias", "(5, 7)"),
    (lambda: LAYER(X, X, X, attn_bias=INFINITE, cache=CACHE), ValueError, "attn_bias", "inf"),
    (lambda: LAYER(X, X, X[:, :2], cache=CACHE), ValueError, "value", "2"),
    (lambda: LAYER(X, X, X, valid_lens=LENGTHS, cache=CACHE), ValueError, "valid_lens", "(2, 5)"),
    (lambda: LAYER(X, X, X, valid_lens=ints(1, 6), cache=CACHE), ValueError, "valid_lens", "6"),
    (lambda: TURNED(NARROW, NARROW[:, :3], NARROW[:, :3], cache=EMPTY), ValueError, "query", "5"),
    (lambda: LAYER(X, X, X, is_causal=MASK), TypeError, "is_causal", "Tensor"),
    # the cache
    (lambda: CACHE.append(QUERY.tolist(), QUERY), TypeError, "keys", "list"),
    (lambda: KeyValueCache().lens, ValueError, "lens", "empty"),
]  # fmt: skip


def of_both_paths(attend):
    """What both paths refuse as a bias, a scale, a softcap or grouped keys."""
    return [
        (lambda f=attend: f(QUERY, KEY, VALUE, attn_bias=BIAS.T), ValueError, "attn_bias", "(7, 5)"),
        (lambda f=attend: f(QUERY, KEY, VALUE, attn_bias=SCORES[0]), ValueError, "attn_bias", "(3, 5, 7)"),
        (lambda f=attend: f(QUERY, KEY, VALUE, attn_bias=MASK), TypeError, "attn_bias", "torch.bool"),
        (lambda f=attend: f(QUERY, KEY, VALUE, attn_bias=BIAS * math.nan), ValueError, "attn_bias", "nan"),
        (lambda f=attend: f(QUERY, KEY, VALUE, scale=0), ValueError, "scale", "0"),
        (lambda f=attend: f(QUERY, KEY, VALUE, scale=math.nan), ValueError, "scale", "nan"),
        (lambda f=attend: f(QUERY, KEY, VALUE, scale="2"), TypeError, "scale", "'2'"),
        (lambda f=attend: f(QUERY, KEY, VALUE, scale=torch.ones(3)), ValueError, "scale", "(3,)"),
        (lambda f=attend: f(QUERY, KEY, VALUE, scale=ints(1)), TypeError, "scale", "int64"),
        (lambda f=attend: f(QUERY, KEY, VALUE, softcap=0.0), ValueError, "softcap", "0.0"),
        (lambda f=attend: f(QUERY, KEY, VALUE, softcap="50"), TypeError, "softcap", "'50'"),
        (lambda f=attend: f(QUERY, KEY[:, :2], VALUE[:, :2]), ValueError, "key", "2"),
        (lambda f=attend: f(QUERY, KEY[:, :0], VALUE[:, :0]), ValueError, "key", "0"),
        (lambda f=attend: f(QUERY, KEY[:, :1], VALUE), ValueError, "value", "(2, 3)"),
    ]  # fmt: skip


CASES += [
    # positional
    (lambda: rotary_angles(5.0, 4), TypeError, "num_positions", "5.0"),
    (lambda: rotary_angles(torch.ones(5).bool(), 4), TypeError, "num_positions", "torch.bool"),
    (lambda: rotary_angles(torch.tensor([3, -2]), 4), ValueError, "num_positions", "-2"),
    (lambda: rotary_angles(torch.ones(2, 3, 5).long(), 4), ValueError, "num_positions", "(2, 3, 5)"),
    (lambda: rotary_angles(torch.arange(5), 4.0), TypeError, "head_dim", "4.0"),
    (lambda: rotary_angles(torch.arange(5), 4, base="big"), TypeError, "base", "'big'"),
    (lambda: apply_rotary(torch.ones(5, 4), torch.ones(5, 2).half()), TypeError, "angles", "torch.float16"),
    (lambda: apply_rotary(torch.ones(5, 4), torch.ones(5, 0)), ValueError, "angles", "(5, 0)"),
    (lambda: apply_rotary(torch.ones(5, 4), torch.ones(2, 5, 2)), ValueError, "angles", "(2, 5, 2)"),
    (lambda: apply_rotary(X4, torch.ones(3, 5, 2)), ValueError, "angles", "(3, 5, 2)"),
    (lambda: apply_rotary(X4, torch.ones(2, 1, 5, 2)), ValueError, "angles", "(2, 1, 5, 2)"),
    (lambda: apply_rotary(torch.ones(5, 4), torch.ones(5, 2, device="meta")), ValueError, "angles", "meta"),
    (lambda: apply_rotary(torch.ones(5, 4), torch.ones(5, 2), interleaved=1), TypeError, "interleaved", "1"),
    (lambda: RotaryPositionalEncoding(7), ValueError, "head_dim", "7"),
    (lambda: RotaryPositionalEncoding(8.0), TypeError, "head_dim", "8.0"),
    (lambda: RotaryPositionalEncoding(8, rotary_dim=3), ValueError, "rotary_dim", "3"),
    (lambda: RotaryPositionalEncoding(8, rotary_dim=10), ValueError, "rotary_dim", "10"),
    (lambda: RotaryPositionalEncoding(8, rotary_dim=0.5), TypeError, "rotary_dim", "0.5"),
    (lambda: RotaryPositionalEncoding(8, base=0), ValueError, "base", "0"),
    (lambda: RotaryPositionalEncoding(8, interleaved="yes"), TypeError, "interleaved", "'yes'"),
    (lambda: ROTARY(torch.ones(5, 4).long()), TypeError, "x", "torch.int64"),
    (lambda: ROTARY(torch.ones(2, 5, 6)), ValueError, "x", "(2, 5, 6)"),
    (lambda: ROTARY(torch.ones(5, 4), torch.arange(5.0)), TypeError, "positions", "torch.float32"),
    (lambda: ROTARY(torch.ones(5, 4), [0, 1, 2, 3, 4]), TypeError, "positions", "list"),
    (lambda: ROTARY(torch.ones(5, 4), torch.arange(5) - 1), ValueError, "positions", "-1"),
    (lambda: ROTARY(torch.ones(5, 4), torch.arange(6)), ValueError, "positions", "(6,)"),
    (lambda: ROTARY(torch.ones(5, 4), torch.ones(2, 5).int()), ValueError, "positions", "(2, 5)"),
    (lambda: ROTARY(torch.ones(5, 4), torch.ones(5, device="meta").int()), ValueError, "positions", "meta"),
    (lambda: t5_buckets(0), ValueError, "q_len", "0"),
    (lambda: t5_buckets(5, 7.0), TypeError, "k_len", "7.0"),
    (lambda: t5_buckets(5, num_buckets=7), ValueError, "num_buckets", "7"),
    (lambda: t5_buckets(5, num_buckets=2), ValueError, "num_buckets", "2"),
    (lambda: t5_buckets(5, num_buckets=1, bidirectional=False), ValueError, "num_buckets", "1"),
    (lambda: t5_buckets(5, num_buckets=32.0), TypeError, "num_buckets", "32.0"),
    (lambda: t5_buckets(5, max_distance=8), ValueError, "max_distance", "8"),
    (lambda: t5_buckets(5, max_distance=16, bidirectional=False), ValueError, "max_distance", "16"),
    (lambda: t5_buckets(5, max_distance="far"), TypeError, "max_distance", "'far'"),
    (lambda: t5_buckets(5, bidirectional=0), TypeError, "bidirectional", "0"),
    (lambda: T5RelativeBias(0), ValueError, "num_heads", "0"),
    (lambda: T5RelativeBias(3, num_buckets=9), ValueError, "num_buckets", "9"),
    (lambda: T5RelativeBias(3, num_buckets=40, max_distance=10), ValueError, "max_distance", "10"),
    (lambda: T5RelativeBias(3, bidirectional=None), TypeError, "bidirectional", "None"),
    (lambda: T5_BIAS(0), ValueError, "q_len", "0"),
    (lambda: T5_BIAS(5, "7"), TypeError, "k_len", "'7'"),
    (lambda: ShawScore(0, 3), ValueError, "head_dim", "0"),
    (lambda: ShawScore(8, 0), ValueError, "max_distance", "0"),
    (lambda: ShawScore(8, 3.5), TypeError, "max_distance", "3.5"),
    (lambda: SHAW_SCORE(QUERY[..., :10], KEY[..., :10]), ValueError, "query", "10"),
    (lambda: SHAW_SCORE(QUERY, KEY[..., :10]), ValueError, "key", "10"),
    (lambda: SHAW_SCORE(QUERY.long(), KEY), TypeError, "query", "torch.int64"),
    (lambda: SHAW_SCORE(QUERY, torch.ones(4, 3, 7, 11)), ValueError, "key", "(4, 3, 7, 11)"),
]  # fmt: skip

CASES += [
    # transformer
    *[
        row
        for make in (
            transformer.EncoderBlock, partial(transformer.TransformerEncoder, 1),
            transformer.DecoderBlock, partial(transformer.TransformerDecoder, 1),
        )
        for row in [
            (lambda make=make: make("33", 3, 5), TypeError, "embed_dim", "'33'"),
            (lambda make=make: make(33, 3.0, 5), TypeError, "num_heads", "3.0"),
            (lambda make=make: make(33, 5, 5), ValueError, "num_heads", "5"),
            (lambda make=make: make(33, 3, 0), ValueError, "hidden_dim", "0"),
            (lambda make=make: make(33, 3, 5.0), TypeError, "hidden_dim", "5.0"),
            (lambda make=make: make(33, 3, 5, dropout=1.5), ValueError, "dropout", "1.5"),
            (lambda make=make: make(33, 3, 5, activation="swish"), ValueError, "activation", "'swish'"),
            (lambda make=make: make(33, 3, 5, activation=None), TypeError, "activation", "None"),
            (lambda make=make: make(33, 3, 5, layer_norm_eps=0), ValueError, "layer_norm_eps", "0"),
            (lambda make=make: make(33, 3, 5, layer_norm_eps="0"), TypeError, "layer_norm_eps", "'0'"),
            (lambda make=make: make(33, 3, 5, num_kv_heads=2), ValueError, "num_kv_heads", "2"),
            (lambda make=make: make(33, 3, 5, rotary=True), TypeError, "rotary", "True"),
            (lambda make=make: make(33, 3, 5, norm="batch"), ValueError, "norm", "'batch'"),
            (lambda make=make: make(33, 3, 5, norm=True), TypeError, "norm", "True"),
            (lambda make=make: make(33, 3, 5, scale=-0.5), ValueError, "scale", "-0.5"),
            (lambda make=make: make(33, 3, 5, softcap=0), ValueError, "softcap", "0"),
            (lambda make=make: make(33, 3, 5, window=3), TypeError, "window", "3"),
            (lambda make=make: make(33, 3, 5, window=(-1, 0)), ValueError, "window", "-1"),
        ]
    ],
    (lambda: FeedForward(0, 5), ValueError, "embed_dim", "0"),
    (lambda: FeedForward(5, -2), ValueError, "hidden_dim", "-2"),
    (lambda: FeedForward(5, 7, dropout="0.1"), TypeError, "dropout", "'0.1'"),
    (lambda: FeedForward(5, 7, activation="tanh"), ValueError, "activation", "'tanh'"),
    (lambda: RMSNorm(0), ValueError, "embed_dim", "0"),
    (lambda: RMSNorm(5.0), TypeError, "embed_dim", "5.0"),
    (lambda: RMSNorm(5, eps=0), ValueError, "eps", "0"),
    (lambda: RMSNorm(5, eps=None), TypeError, "eps", "None"),
    (lambda: RMSNorm(WIDTH)(X.long()), TypeError, "x", "torch.int64"),
    (lambda: RMSNorm(WIDTH)(X[..., 1:]), ValueError, "x", "(2, 5, 32)"),
    (lambda: transformer.EncoderBlock.from_torch(LAYER), TypeError, "module", "MultiHeadAttention"),
    (lambda: transformer.TransformerDecoder.from_torch(FEED_FORWARD), TypeError, "module", "FeedForward"),
    (lambda: mask_from_additive([0, 1]), TypeError, "mask", "list"),
    (lambda: FEED_FORWARD(X.long()), TypeError, "x", "torch.int64"),
    (lambda: FEED_FORWARD(X[..., 1:]), ValueError, "x", "(2, 5, 32)"),
    (lambda: transformer.TransformerEncoder(0, 33, 3, 5), ValueError, "num_layers", "0"),
    (lambda: transformer.TransformerDecoder(2.0, 33, 3, 5), TypeError, "num_layers", "2.0"),
    (lambda: transformer.TransformerEncoder(1, 33, 3, 5, kdim=7), TypeError, "kdim", "'kdim'"),
    *[
        row
        for f in (ENCODER, ENCODER.blocks[0], with_memory(DECODER), with_memory(DECODER.blocks[0]))
        for row in [
            (lambda f=f: f(X.tolist()), TypeError, "x", "list"),
            (lambda f=f: f(X.long()), TypeError, "x", "torch.int64"),
            (lambda f=f: f(X[None]), ValueError, "x", "(1, 2, 5, 33)"),
            (lambda f=f: f(X[..., 1:]), ValueError, "x", "(2, 5, 32)"),
            (lambda f=f: f(X, bools(5, 6)), ValueError, "attn_mask", "(5, 6)"),
            (lambda f=f: f(X, MASK.float()), TypeError, "attn_mask", "torch.float32"),
            (lambda f=f: f(X, valid_lens=ints(2, 6)), ValueError, "valid_lens", "6"),
            (lambda f=f: f(X, valid_lens=ints(2, 2, 2)), ValueError, "valid_lens", "3"),
            (lambda f=f: f(X, attn_bias=torch.ones(5, 6)), ValueError, "attn_bias", "(5, 6)"),
            (lambda f=f: f(X, cache=3), TypeError, "cache", "3"),
            (lambda f=f: f(X, key_mask=bools(5)), ValueError, "key_mask", "(5,)"),
            (lambda f=f: f(X, key_mask=torch.ones(2, 5)), TypeError, "key_mask", "torch.float32"),
            (lambda f=f: f(X, bools(2, 5)), ValueError, "attn_mask", "key_mask=attn_mask"),
        ]
    ],
    *[
        row
        for f in (DECODER, DECODER.blocks[0])
        for row in [
            (lambda f=f: f(X, MEMORY.tolist()), TypeError, "memory", "list"),
            (lambda f=f: f(X, MEMORY.double()), TypeError, "memory", "torch.float64"),
            (lambda f=f: f(X, MEMORY[0]), ValueError, "memory", "(7, 33)"),
            (lambda f=f: f(X, MEMORY[..., 1:]), ValueError, "memory", "32"),
            (lambda f=f: f(X, MEMORY[:1]), ValueError, "memory", "1"),
            (lambda f=f: f(X, MEMORY, memory_mask=MASK.int()), TypeError, "memory_mask", "torch.int32"),
            (lambda f=f: f(X, MEMORY, memory_mask=bools(7, 5)), ValueError, "memory_mask", "(7, 5)"),
            (lambda f=f: f(X, MEMORY, memory_valid_lens=[1, 2]), TypeError, "memory_valid_lens", "list"),
            (lambda f=f: f(X, MEMORY, memory_valid_lens=ints(1, 8)), ValueError, "memory_valid_lens", "8"),
            (lambda f=f: f(X, MEMORY, memory_valid_lens=ints(1, 2, 3)),
             ValueError, "memory_valid_lens", "(3,)"),
            (lambda f=f: f(X, MEMORY, memory_key_mask=bools(2, 5)), ValueError, "memory_key_mask", "(2, 5)"),
            (lambda f=f: f(X, MEMORY, memory_mask=bools(2, 7)),
             ValueError, "memory_mask", "memory_key_mask=memory_mask"),
        ]
    ],
    (lambda: ENCODER(X, cache=KeyValueCache()), TypeError, "cache", "KeyValueCache"),
    (lambda: ENCODER(X, cache=DECODER.new_cache()), TypeError, "cache", "DecoderBlockCache"),
    (lambda: ENCODER(X, cache=ENCODER.new_cache() * 2), ValueError, "cache", "[0, 0]"),
    (lambda: DECODER(X, MEMORY, cache=ENCODER.new_cache()), TypeError, "cache", "KeyValueCache"),
    (lambda: DECODER(X, MEMORY, cache=[]), ValueError, "cache", "[]"),
    (lambda: DECODER(X, MEMORY[:, 1:], cache=[FULL]), ValueError, "memory", "(2, 6, 33)"),
]  # fmt: skip

for name in ("dot_product", "scaled_dot_product", "cosine", "gaussian"):
    score = getattr(scores, f"{name}_score")
    CASES += [
        (lambda score=score: score(QUERY.tolist(), KEY), TypeError, "query", "list"),
        (lambda score=score: score(QUERY, KEY.long()), TypeError, "key", "torch.int64"),
        (lambda score=score: score(QUERY, KEY.double()), TypeError, "key", "torch.float64"),
        (lambda score=score: score(QUERY.to("meta"), KEY), ValueError, "query", "meta"),
        (lambda score=score: score(torch.ones(11), KEY), ValueError, "query", "(11,)"),
        (lambda score=score: score(QUERY, KEY[..., :10]), ValueError, "key", "10"),
        (lambda score=score: score(QUERY, torch.ones(5, 7, 11)), ValueError, "key", "(5, 7, 11)"),
    ]
for module in (scores.AdditiveScore(HEAD_DIM, VALUE_DIM, 17), scores.BilinearScore(HEAD_DIM, VALUE_DIM)):
    CASES += [
        (lambda score=module: score(QUERY.int(), VALUE), TypeError, "query", "torch.int32"),
        (lambda score=module: score(QUERY, VALUE.half()), TypeError, "key", "torch.float16"),
        (lambda score=module: score(VALUE, VALUE), ValueError, "query", "(2, 3, 7, 13)"),
        (lambda score=module: score(QUERY, KEY), ValueError, "key", "(2, 3, 7, 11)"),
        (lambda score=module: score(QUERY[0], VALUE[:, :2]), ValueError, "key", "(2, 2, 7, 13)"),
    ]
for need_weights in (True, False):

    def attend(*arguments, need_weights=need_weights, **hide):
        return dot_product_attention(*arguments, need_weights=need_weights, **hide)

    CASES += of_both_paths(attend)
    CASES += [
        (lambda f=attend: f(QUERY.tolist(), KEY, VALUE), TypeError, "query", "list"),
        (lambda f=attend: f(QUERY, KEY.long(), VALUE), TypeError, "key", "torch.int64"),
        (lambda f=attend: f(QUERY, KEY, VALUE.double()), TypeError, "value", "torch.float64"),
        (lambda f=attend: f(QUERY, KEY.to("meta"), VALUE), ValueError, "key", "meta"),
        (lambda f=attend: f(torch.ones(11), KEY, VALUE), ValueError, "query", "(11,)"),
        (lambda f=attend: f(QUERY[:, :2], KEY, VALUE), ValueError, "query", "(2, 2)"),
        (lambda f=attend: f(QUERY[:1], KEY, VALUE), ValueError, "query", "(1, 3)"),
        (lambda f=attend: f(QUERY, VALUE, VALUE), ValueError, "key", "13"),
        (lambda f=attend: f(QUERY, KEY, LONG_VALUE), ValueError, "value", "8"),
        (lambda f=attend: f(QUERY, KEY, VALUE, MASK.float()), TypeError, "attn_mask", "torch.float32"),
        (lambda f=attend: f(QUERY, KEY, VALUE, MASK.T), ValueError, "attn_mask", "(7, 5)"),
        (lambda f=attend: f(QUERY, KEY, VALUE, bools(3, 5, 7)), ValueError, "attn_mask", "(3, 5, 7)"),
        (lambda f=attend: f(QUERY, KEY, VALUE, bools(2, 2, 5, 7)), ValueError, "attn_mask", "(2, 2, 5, 7)"),
        (lambda f=attend: f(QUERY[0], KEY[0], VALUE[0], bools(2, 3, 5, 7)), ValueError, "attn_mask", "(2, 3"),
        (lambda f=attend: f(QUERY, KEY, VALUE, valid_lens=[1, 2]), TypeError, "valid_lens", "list"),
        (lambda f=attend: f(QUERY, KEY, VALUE, valid_lens=ints(-1, 2)), ValueError, "valid_lens", "-1"),
        (lambda f=attend: f(QUERY, KEY, VALUE, valid_lens=ints(1, 8)), ValueError, "valid_lens", "8"),
        (lambda f=attend: f(QUERY, KEY, VALUE, valid_lens=ints(1, 2, 3)), ValueError, "valid_lens", "(3,)"),
        (lambda f=attend: f(QUERY, KEY, VALUE, dropout_p=1.01), ValueError, "dropout_p", "1.01"),
        (lambda f=attend: f(QUERY, KEY, VALUE, dropout_p=None), TypeError, "dropout_p", "None"),
    ]  # fmt: skip
for encoding in (SinusoidalPositionalEncoding, LearnedPositionalEncoding):
    made = encoding(HEAD_DIM, max_len=Q_LEN)
    CASES += [
        (lambda make=encoding: make(0), ValueError, "embed_dim", "0"),
        (lambda make=encoding: make(4.0), TypeError, "embed_dim", "4.0"),
        (lambda make=encoding: make(4, max_len=0), ValueError, "max_len", "0"),
        (lambda make=encoding: make(4, "10"), TypeError, "max_len", "'10'"),
        (lambda make=encoding: make(4, dropout=2), ValueError, "dropout", "2"),
        (lambda made=made: made(TOKENS.long()), TypeError, "x", "torch.int64"),
        (lambda made=made: made(TOKENS.tolist()), TypeError, "x", "list"),
        (lambda made=made: made(TOKENS[0]), ValueError, "x", "(5, 11)"),
        (lambda made=made: made(TOKENS[..., :10]), ValueError, "x", "(2, 5, 10)"),
        (lambda made=made: made(torch.ones(BATCH, Q_LEN + 1, HEAD_DIM)), ValueError, "x", "6"),
    ]


class NothingComputed(TorchDispatchMode):
    """Fail if a tensor is multiplied, squashed, rotated or drawn at random."""

    FORBIDDEN = re.compile(
        r"(mm|bmm|addmm|baddbmm|_softmax|_scaled_dot_product\w*|div|exp|pow|sin|cos|tanh|add|rand\w*|multinomial"
        r"|native_dropout|bernoulli_?|normal_|uniform_|linalg\w*)\b"
    )

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        assert not self.FORBIDDEN.match(func.overloadpacket.__name__), f"{func} ran before the check"
        return func(*args, **(kwargs or {}))


def message_of(call, error):
    with NothingComputed(), pytest.raises((TypeError, ValueError)) as caught:
        call()
    assert type(caught.value) is error, f"{type(caught.value).__name__}: {caught.value}"
    return str(caught.value)


EXAMPLE = {"reference": abs, "cases": {"one number": lambda g: 1.0}}
CASES += [
    # exercises
    (lambda: Verdict("yes", "Right."), TypeError, "right", "'yes'"),
    (lambda: Verdict(True, None), TypeError, "message", "None"),
    (lambda: Wrong(3, "cause", abs), TypeError, "name", "3"),
    (lambda: Wrong("name", 5, abs), TypeError, "cause", "5"),
    (lambda: Wrong("name", "cause", 7), TypeError, "answer", "7"),
    (lambda: Exercise(**EXAMPLE | {"reference": 3}), TypeError, "reference", "3"),
    (lambda: Exercise(**EXAMPLE | {"cases": {}}), ValueError, "cases", "{}"),
    (lambda: Exercise(**EXAMPLE | {"cases": {"one": 5}}), TypeError, "cases", "5"),
    (lambda: Exercise(**EXAMPLE, wrong=[abs]), TypeError, "wrong", "abs"),
    (lambda: Exercise(**EXAMPLE, accept=[7]), TypeError, "accept", "7"),
    (lambda: Exercise(**EXAMPLE, run=2), TypeError, "run", "2"),
    (lambda: Exercise(**EXAMPLE, properties=["rows"]), TypeError, "properties", "'rows'"),
    (lambda: check_positions(abs, added="x"), TypeError, "added", "'x'"),
    (lambda: check_multi_head(abs, adapter=3), TypeError, "adapter", "3"),
    (lambda: check_multi_head(abs, adapter={"W_q": "q"}), ValueError, "adapter", "W_q"),
    (lambda: check_multi_head(abs, call="forward"), TypeError, "call", "'forward'"),
    (lambda: check_multi_head(abs, own_widths=0), TypeError, "own_widths", "0"),
    (lambda: check_multi_head(abs, weights=None), TypeError, "weights", "None"),
    (lambda: check_multi_head(abs, gradients="no"), TypeError, "gradients", "'no'"),
    (lambda: randn(torch.Generator(), 2.0), TypeError, "sizes", "2.0"),
    (lambda: randn(torch.Generator(), 3, 0), ValueError, "sizes", "0"),
    (lambda: rows_sum_to_one("0"), TypeError, "position", "'0'"),
    (lambda: check_escape(None, 3, {}), TypeError, "right", "3"),
    (lambda: check_escape(None, nn.ReLU(), {}), TypeError, "right", "ReLU"),
    (lambda: check_escape(None, nn.Linear, [abs]), TypeError, "detectors", "list"),
    (lambda: check_escape(None, nn.Linear, {"shape": 5}), TypeError, "detectors", "5"),
]


@pytest.mark.parametrize(
    ("call", "error", "argument", "value"),
    CASES,
    ids=[f"{number}-{argument}={value}" for number, (_, _, argument, value) in enumerate(CASES)],
)
def test_bad_input_is_refused_by_name(call, error, argument, value):
    versions, held = [tensor._version for tensor in TENSORS], [*vars(CACHE).values()]
    message = message_of(call, error)
    assert re.search(rf"\b{argument}\b", message), f"{argument!r} is not named: {message}"
    assert value in message, f"{value!r} is not in: {message}"
    assert [tensor._version for tensor in TENSORS] == versions, "an argument was modified"
    unchanged = zip(vars(CACHE).values(), held, strict=True)
    assert all(now is then for now, then in unchanged), "the cache was changed"


def test_a_refused_call_leaves_no_hook():
    for block in (lambda: gate_heads(LAYER, torch.ones(4)), lambda: capture_attention(nn.Flatten())):
        with pytest.raises(ValueError, match="must"), block():
            pass
    assert not LAYER._forward_hooks
    assert not LAYER.out_proj._forward_pre_hooks


def test_the_guard_itself_works():
    """Each kind of computation that comes after the checks is noticed when it happens."""
    computations = [
        lambda: scores.dot_product_score(QUERY, KEY), lambda: scores.cosine_score(QUERY, KEY),
        lambda: scores.gaussian_score(QUERY, KEY), lambda: masked_softmax(SCORES),
        lambda: dot_product_attention(QUERY, KEY, VALUE, need_weights=False),
        lambda: LAYER(X, MEMORY, MEMORY), lambda: MultiHeadAttention(6, 3),
        lambda: sinusoidal_encoding(3, 4), lambda: SinusoidalPositionalEncoding(HEAD_DIM)(TOKENS),
        lambda: LearnedPositionalEncoding(4), lambda: apply_rotary(torch.ones(5, 4), torch.ones(5, 2)),
        lambda: data.pointer_batch(2), lambda: data.noisy_curve(),
    ]  # fmt: skip
    for compute in computations:
        with NothingComputed(), pytest.raises(AssertionError, match="ran before the check"):
            compute()


def test_every_public_callable_is_in_the_table():
    """A new function needs its rows here."""
    called = set(re.findall(r"\b(\w+)\(", Path(__file__).read_text()))
    # Called in loops, under other names.
    called |= {"dot_product_score", "scaled_dot_product_score", "cosine_score", "EncoderBlock"}
    called |= {"DecoderBlock", "SinusoidalPositionalEncoding", "LearnedPositionalEncoding"}
    elsewhere = set("Split Sentences WrittenDates History curve head_color new_figure".split())
    # Those that judge any answer (test_exercises.py), take a path that was checked (test_experiments.py), or
    # mark the numbers of models that were still learning (test_plots.py).
    elsewhere |= {"check_masked_softmax", "check_cache"}
    elsewhere |= set("Experiment experiment_names load_script digest hashes_of stored_results".split())
    elsewhere |= {"Measured", "fill_of", "say_hollow", "sentence"}
    # Functions that run a caller's function, and those that chapter 4 compares, with their own sizes.
    elsewhere |= {"count_saved_numbers", "milliseconds", "make_layers", "run_recurrence"}
    elsewhere |= {"if_installed"}  # it runs a block that fails: test_notebook.py
    # Functions that judge or write any notebook, or read files of others, have tests of their own:
    # test_grade.py, test_handout.py, test_gguf.py and test_sentence_model.py.
    tested = {"mha_course.grade", "mha_course.handout"}
    tested |= {"mha_course.data.published", "mha_course.data.sentences"}
    for module in map(importlib.import_module, set(MODULES) - tested):
        for name, thing in vars(module).items():
            own = callable(thing) and getattr(thing, "__module__", None) == module.__name__
            if own and not name.startswith("_") and name not in elsewhere:
                assert name in called, f"{module.__name__}.{name}"
