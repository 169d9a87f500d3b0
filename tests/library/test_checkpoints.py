"""BERT, GPT-2 and Llama from files: equal to transformers, and every file that does not fit is refused.

The checkpoints are made here with transformers' own classes, with random weights, so nothing is downloaded.
Every axis has a different size, prime where the architecture allows it.
"""

import functools
import hashlib
import json
import pickle
import re
import shutil
import sys
import tempfile
import types
from pathlib import Path

import pytest
import torch
from random_tensors import generator
from safetensors.torch import load_file, save_file
from torch import nn

from mha_lib import GPT2, Bert, Llama, capture_attention
from mha_lib.models import checkpoints
from mha_lib.models._families import FAMILIES
from mha_lib.models.checkpoints import load_checkpoint, save_checkpoint

transformers = pytest.importorskip("transformers")

VOCAB, LAYERS, HIDDEN, MAX_LEN, BATCH, LEN = 23, 2, 17, 13, 3, 7
HEADS, HEAD_DIM = 5, 2
WIDTH = HEADS * HEAD_DIM
EPS = 1e-2  # large enough to reveal the wrong one
NO_IDS = {"bos_token_id": None, "eos_token_id": None, "pad_token_id": None}


def bert_config(**options):
    sizes = {
        "vocab_size": VOCAB, "hidden_size": WIDTH, "num_hidden_layers": LAYERS, "num_attention_heads": HEADS,
        "intermediate_size": HIDDEN, "max_position_embeddings": MAX_LEN, "type_vocab_size": 3,
    }  # fmt: skip
    return transformers.BertConfig(**sizes | {"layer_norm_eps": EPS} | NO_IDS | options)


def gpt2_config(**options):
    sizes = {"vocab_size": VOCAB, "n_embd": WIDTH, "n_layer": LAYERS, "n_head": HEADS, "n_positions": MAX_LEN}
    return transformers.GPT2Config(
        **sizes | {"n_inner": HIDDEN, "layer_norm_epsilon": EPS} | NO_IDS | options
    )


def llama_config(**options):
    """Six heads of width 4 share two heads of keys; with width 2, both pairings of columns would be one."""
    sizes = {
        "vocab_size": VOCAB, "hidden_size": 24, "num_hidden_layers": LAYERS, "num_attention_heads": 6,
        "num_key_value_heads": 2, "intermediate_size": HIDDEN, "max_position_embeddings": MAX_LEN,
    }  # fmt: skip
    return transformers.LlamaConfig(**sizes | {"rms_norm_eps": EPS} | NO_IDS | options)


def relative_config(name, **options):
    sizes = llama_config().to_dict()
    names = ("vocab_size", "hidden_size", "num_hidden_layers", "num_attention_heads", "num_key_value_heads",
             "intermediate_size", "max_position_embeddings", "rms_norm_eps", *NO_IDS)  # fmt: skip
    return getattr(transformers, f"{name}Config")(**{name: sizes[name] for name in names} | options)


def scaled_llama(settings, **options):
    """Of five pairs of columns with this base, some turn fast and some slowly."""
    rotary = {"rope_parameters": settings | {"rope_theta": 50.0}}
    return transformers.LlamaForCausalLM, llama_config(head_dim=10, **rotary, **options)


ROTARY = {"rope_parameters": {"rope_type": "default", "rope_theta": 50.0}}
MODELS = {
    "bert": (transformers.BertForMaskedLM, bert_config()),
    "bert, relu": (transformers.BertForMaskedLM, bert_config(hidden_act="relu")),
    "bert with pooling": (transformers.BertForPreTraining, bert_config()),
    "gpt2": (transformers.GPT2LMHeadModel, gpt2_config()),
    "gpt2, untied": (transformers.GPT2LMHeadModel, gpt2_config(tie_word_embeddings=False)),
    "gpt2, exact gelu": (
        transformers.GPT2LMHeadModel, gpt2_config(activation_function="gelu", n_inner=None)
    ),
    "llama": (transformers.LlamaForCausalLM, llama_config()),
    "llama, tied": (transformers.LlamaForCausalLM, llama_config(tie_word_embeddings=True)),
    "llama, bare": (transformers.LlamaModel, llama_config()),
    "bert, bare": (transformers.BertModel, bert_config()),
    "llama, all biases": (
        transformers.LlamaForCausalLM, llama_config(attention_bias=True, mlp_bias=True, head_dim=6)
    ),
    "mistral": (transformers.MistralForCausalLM, relative_config("Mistral", sliding_window=3, head_dim=6)),
    "mistral, no window": (transformers.MistralForCausalLM, relative_config("Mistral", sliding_window=None)),
    "qwen2": (transformers.Qwen2ForCausalLM, relative_config("Qwen2")),
    "qwen3": (transformers.Qwen3ForCausalLM, relative_config("Qwen3", head_dim=6)),
    "qwen3, biases": (
        transformers.Qwen3ForCausalLM, relative_config("Qwen3", head_dim=4, attention_bias=True)
    ),
    "llama, linear": scaled_llama({"rope_type": "linear", "factor": 3.0}),
    "llama, dynamic": scaled_llama({"rope_type": "dynamic", "factor": 3.0}, max_position_embeddings=5),
    "llama, llama3": scaled_llama(
        {"rope_type": "llama3", "factor": 3.0, "low_freq_factor": 0.5, "high_freq_factor": 1.5,
         "original_max_position_embeddings": 11}
    ),
    "llama, yarn": scaled_llama(
        {"rope_type": "yarn", "factor": 3.0, "original_max_position_embeddings": 13, "beta_fast": 2.0}
    ),
    "llama, yarn with all settings": scaled_llama(
        {"rope_type": "yarn", "factor": 3.0, "original_max_position_embeddings": 11, "beta_fast": 9.0,
         "beta_slow": 0.25, "attention_factor": 1.5, "truncate": True}
    ),
    "llama, no shared keys": (transformers.LlamaForCausalLM, llama_config(num_key_value_heads=6, **ROTARY)),
}  # fmt: skip
FAMILY = pytest.mark.parametrize("name", ["bert", "gpt2", "llama"])
DECODERS = pytest.mark.parametrize(
    "name", ["gpt2", "gpt2, untied", "llama", "llama, tied", "mistral", "llama, yarn"]
)

TOKENS = torch.randint(VOCAB, (BATCH, LEN), generator=generator())
SEGMENTS = torch.randint(3, (BATCH, LEN), generator=generator(1))
LENS = torch.tensor([7, 3, 5])
RIGHT = torch.arange(LEN) < LENS.unsqueeze(1)  # real tokens first, padding after them
PADDING = {"none": None, "right": RIGHT, "left": RIGHT.flip(1)}


def close(actual, expected):
    torch.testing.assert_close(actual, expected, rtol=1e-5, atol=1e-5)


@functools.cache
def made(name, **options):
    """Transformers' model, all parameters random, no norm 1, no bias 0; and the files that it saves."""
    cls, config = MODELS[name]
    config._attn_implementation = "eager"
    theirs = cls(config).eval()
    draw = generator(sum(map(ord, name)))
    with torch.no_grad():
        for parameter in theirs.parameters():
            parameter.normal_(std=0.3, generator=draw)
    with tempfile.TemporaryDirectory() as folder:
        theirs.save_pretrained(folder, safe_serialization=True, **options)
        return theirs, {path.name: path.read_bytes() for path in Path(folder).iterdir()}


def published(name, folder, **options):
    """Write the files of a model into a folder, and return transformers' own."""
    theirs, files = made(name, **options)
    folder.mkdir(parents=True)
    for file, data in files.items():
        (folder / file).write_bytes(data)
    return theirs


@pytest.fixture
def folder(tmp_path):
    return tmp_path / "checkpoint"


def inputs_of(name):
    """What ours is given, and theirs."""
    return ((TOKENS, SEGMENTS), {"token_type_ids": SEGMENTS}) if "bert" in name else ((TOKENS,), {})


def states_and_rest(model, *inputs, **options):
    """What enters each block, and the state after the last; logits; maps of all layers."""
    states = []
    hooks = [
        block.register_forward_pre_hook(lambda _, args: states.append(args[0]))
        for block in model.encoder.blocks
    ]
    with torch.no_grad(), capture_attention(model) as weights:
        hidden, logits = model(*inputs, **options)
    for hook in hooks:
        hook.remove()
    return [*states, hidden], logits, list(weights.values())


# Equal to transformers


def sample_by_sample(theirs, **inputs):
    """Their states, first output and maps; in a batch, their dynamic scaling counts the longest sample."""
    with torch.no_grad():
        samples = [
            theirs(
                TOKENS[i : i + 1],
                output_hidden_states=True,
                output_attentions=True,
                **{name: tensor[i : i + 1] for name, tensor in inputs.items()},
            )
            for i in range(BATCH)
        ]
    states, maps = (
        [torch.cat(layer) for layer in zip(*(getattr(one, name) for one in samples), strict=True)]
        for name in ("hidden_states", "attentions")
    )
    return states, torch.cat([one[0] for one in samples]), maps


@pytest.mark.parametrize("name", MODELS)
@pytest.mark.parametrize("padding", PADDING)
def test_equals_transformers(name, padding, folder):
    """The states before and after all blocks, the logits and all maps, at every token that is real."""
    theirs = published(name, folder)
    ours = load_checkpoint(folder)
    real = PADDING[padding]
    mine, other = inputs_of(name)
    if real is not None:
        positions = (real.long().cumsum(1) - 1).clamp(min=0)
        other |= {"attention_mask": real.long(), "position_ids": positions}
    expected_states, expected_logits, expected_maps = sample_by_sample(theirs, **other)
    states, logits, maps = states_and_rest(ours, *mine, key_mask=real)
    real = torch.ones(BATCH, LEN, dtype=torch.bool) if real is None else real
    assert len(states) == len(expected_states) == LAYERS + 1
    for own, other_state in zip(states, expected_states, strict=True):
        close(own[real], other_state[real])
    if "bare" in name:
        assert logits is None
    else:
        close(logits[real], expected_logits[real])
    assert len(maps) == len(expected_maps) == LAYERS
    for own, other_map in zip(maps, expected_maps, strict=True):
        close(own.transpose(1, 2)[real], other_map.transpose(1, 2)[real])
    if padding == "right":
        for own, same in zip(states, states_and_rest(ours, *mine, valid_lens=LENS)[0], strict=True):
            assert torch.equal(own, same)


@DECODERS
def test_decoding_step_by_step_equals_transformers_cache_and_the_whole(name, folder):
    theirs, ours = published(name, folder), load_checkpoint(folder)
    whole = ours(TOKENS)
    cache, past = ours.new_cache(), None
    for step, token in enumerate(TOKENS.split(1, dim=1)):
        with torch.no_grad(), capture_attention(ours) as weights:
            hidden, logits = ours(token, cache=cache)
            expected = theirs(token, past_key_values=past, use_cache=True, output_attentions=True)
        past = expected.past_key_values
        close(logits, expected.logits)
        close(logits, whole[1][:, step : step + 1])
        close(hidden, whole[0][:, step : step + 1])
        for own, other in zip(weights.values(), expected.attentions, strict=True):
            assert own.shape[-1] == step + 1
            left_out = step + 1 - other.shape[-1]  # their cache drops keys outside the window
            assert not own[..., :left_out].any()
            close(own[..., left_out:], other)
    assert [len(own) for own in cache] == [LEN] * LAYERS


@DECODERS
def test_a_padded_batch_continues_at_each_samples_own_position(name, folder):
    """Prompts of different lengths, then three more tokens each: equal to each sample alone."""
    published(name, folder)
    ours = load_checkpoint(folder)
    more = torch.randint(VOCAB, (BATCH, 3), generator=generator(2))
    cache = ours.new_cache()
    with torch.no_grad():
        ours(TOKENS, valid_lens=LENS, cache=cache)
        steps = [ours(token, cache=cache)[1] for token in more.split(1, dim=1)]
        for i, length in enumerate(LENS.tolist()):
            alone = ours(torch.cat((TOKENS[i, :length], more[i])).unsqueeze(0))[1]
            close(torch.cat(steps, dim=1)[i], alone[0, length:])


# Files


@FAMILY
def test_several_files_are_read_like_one(name, folder, tmp_path):
    theirs = published(name, folder, max_shard_size="2KB")
    assert len(list(folder.glob("model-*.safetensors"))) >= 3
    theirs.save_pretrained(tmp_path / "one")
    states = [load_checkpoint(path).state_dict() for path in (folder, tmp_path / "one")]
    assert list(states[0]) == list(states[1])
    assert all(torch.equal(states[0][key], states[1][key]) for key in states[0])


@pytest.mark.parametrize("name", MODELS)
def test_every_parameter_is_read_once_and_nothing_random_is_drawn(name, folder):
    theirs = published(name, folder)
    before = torch.random.get_rng_state()
    ours = load_checkpoint(str(folder))
    assert torch.equal(torch.random.get_rng_state(), before)
    family = FAMILIES[MODELS[name][1].model_type]
    assert type(ours) is family.model
    named = [part for parts in checkpoints._names_in_files(family, ours).values() for part in parts]
    assert sorted(named) == sorted(key for key, _ in ours.named_parameters())
    assert not any(parameter.is_meta for parameter in ours.parameters())
    assert all(parameter.requires_grad for parameter in ours.parameters())
    assert not any(part.training for part in ours.modules())
    pooling = [p for key, p in theirs.named_parameters() if "pooler" in key or "seq_relation" in key]
    counts = [sum(p.numel() for p in model) for model in (ours.parameters(), theirs.parameters(), pooling)]
    assert counts[0] == counts[1] - counts[2]


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16, torch.float64], ids=str)
def test_the_dtype_is_that_of_the_file(dtype, folder):
    published("llama", folder)
    rewrite(folder, lambda tensors: {key: tensor.to(dtype) for key, tensor in tensors.items()})
    assert {parameter.dtype for parameter in load_checkpoint(folder).parameters()} == {dtype}


def test_the_model_does_not_depend_on_the_file_any_more(folder):
    published("gpt2", folder)
    ours = load_checkpoint(folder)
    before = {key: tensor.clone() for key, tensor in ours.state_dict().items()}
    path = folder / "model.safetensors"
    path.write_bytes(bytes(path.stat().st_size))
    assert all(torch.equal(tensor, before[key]) for key, tensor in ours.state_dict().items())


def rewrite(folder, change):
    path = folder / "model.safetensors"
    tensors = {key: tensor.clone() for key, tensor in load_file(path).items()}
    new = change(tensors)
    save_file(tensors if new is None else new, path, metadata={"format": "pt"})


def reconfigure(folder, **entries):
    path = folder / "config.json"
    config = json.loads(path.read_text()) | entries
    path.write_text(json.dumps({key: value for key, value in config.items() if value is not ...}))


def old_gpt2(tensors):
    """As OpenAI's was converted: no prefix, with the causal mask as a constant."""
    new = {key.removeprefix("transformer."): tensor for key, tensor in tensors.items()}
    constants = {"h.0.attn.bias": torch.ones(1, 1, 13, 13), "h.1.attn.masked_bias": torch.tensor(-1e4)}
    return new | constants


def old_bert(tensors):
    """As Google's was converted: names of norms from TensorFlow, and the output matrix once more."""
    words = tensors["bert.embeddings.word_embeddings.weight"]
    new = {
        re.sub("(LayerNorm.)weight", r"\1gamma", re.sub("(LayerNorm.)bias", r"\1beta", key)): tensor
        for key, tensor in tensors.items()
    }
    assert len([key for key in new if key.endswith("gamma")]) == 2 * LAYERS + 2
    copies = {"decoder.weight": words, "decoder.bias": tensors["cls.predictions.bias"]}
    new |= {f"cls.predictions.{key}": tensor.clone() for key, tensor in copies.items()}
    return new | {"bert.embeddings.position_ids": torch.arange(13).unsqueeze(0)}


def old_llama(tensors):
    return tensors | {"model.layers.1.self_attn.rotary_emb.inv_freq": torch.ones(2)}


@pytest.mark.parametrize(("name", "change"), [
    ("bert", old_bert), ("gpt2", old_gpt2), ("llama", old_llama)
], ids=["bert", "gpt2", "llama"])  # fmt: skip
def test_older_files_are_the_same_models(name, change, folder):
    published(name, folder)
    today = load_checkpoint(folder).state_dict()
    rewrite(folder, change)
    older = load_checkpoint(folder).state_dict()
    assert all(torch.equal(older[key], today[key]) for key in today)


def test_older_configurations_are_the_same_models(folder):
    """Before version 5 of transformers, Llama's base stood alone; older files have fewer entries."""
    published("llama, no shared keys", folder)
    today = repr(load_checkpoint(folder))
    assert "base=50," in today
    left_out = {"head_dim": ..., "tie_word_embeddings": ..., "num_key_value_heads": ...}
    reconfigure(folder, rope_parameters=..., rope_theta=50.0, rope_scaling=None, **left_out)
    assert repr(load_checkpoint(folder)) == today
    reconfigure(folder, rope_scaling={"rope_type": "default"})
    assert repr(load_checkpoint(folder)) == today
    reconfigure(folder, rope_theta=...)
    assert "base=10000," in repr(load_checkpoint(folder))
    both = {"type": "dynamic", "factor": 2.0, "original_max_position_embeddings": 7}
    for old, new in (
        ({"type": "linear", "factor": 2.0}, "kind='linear', factor=2.0, trained_len=None"),
        (both, "kind='dynamic', factor=2.0, trained_len=13"),
        ({"type": "yarn", "factor": 2.0}, "kind='yarn', factor=2.0, trained_len=13, low=1.0, high=32.0"),
    ):
        reconfigure(folder, rope_scaling=old)
        assert new in repr(load_checkpoint(folder))


def test_a_scaled_model_reads_as_far_as_it_is_scaled(folder):
    """Its files say how long the texts of training were, where that is no limit."""
    for name, longest in (("llama, dynamic", 15), ("llama, yarn", 39), ("llama, llama3", 13)):
        published(name, folder / name)
        assert load_checkpoint(folder / name).max_len == longest


# What is rejected


def without(*keys):
    def change(tensors):
        for key in keys:
            del tensors[key]

    return lambda folder: rewrite(folder, change)


def with_tensors(**tensors):
    return lambda folder: rewrite(
        folder, lambda old: old | {k.replace("__", "."): t for k, t in tensors.items()}
    )


def configured(**entries):
    return lambda folder: reconfigure(folder, **entries)


def cut(folder):
    path = folder / "model.safetensors"
    path.write_bytes(path.read_bytes()[:-7])


def damaged(folder):
    """The first letter of the header is wrong."""
    path = folder / "model.safetensors"
    data = bytearray(path.read_bytes())
    data[8] ^= 1
    path.write_bytes(data)


def pickled(folder):
    class Trap:
        def __reduce__(self):
            return pytest.fail, ("something was unpickled",)

    (folder / "model.safetensors").unlink()
    (folder / "pytorch_model.bin").write_bytes(pickle.dumps(Trap()))


def gone(name):
    return lambda folder: (folder / name).unlink()


def write(name, text):
    return lambda folder: (folder / name).write_text(text)


WTE, QKV = "transformer.wte.weight", "transformer.h.1.attn.c_attn.weight"
REFUSED = {
    # weights
    "missing tensor": ("gpt2", without(QKV), ValueError, rf"missing: {QKV}$"),
    "many missing tensors": (
        "bert", without(*(f"bert.encoder.layer.{i}.attention.self.{n}.bias" for i in (0, 1)
                          for n in ("query", "key", "value"))),
        ValueError, r"missing: bert\.\S+, bert\.\S+, bert\.\S+ and 3 more$",
    ),
    "extra tensor": ("llama", with_tensors(model__layers__2__mlp__up_proj__weight=torch.ones(17, 24)),
        ValueError, r"unexpected: model\.layers\.2\.mlp\.up_proj\.weight$"),
    "a bias where there is none": (
        "llama", with_tensors(model__layers__0__self_attn__q_proj__bias=torch.ones(24)),
        ValueError, r"unexpected: model\.layers\.0\.self_attn\.q_proj\.bias$",
    ),
    "wrong shape": ("gpt2", with_tensors(transformer__wpe__weight=torch.ones(11, 10)),
        ValueError, r"wrong: transformer\.wpe\.weight has shape \(11, 10\) instead of \(13, 10\)$"),
    "a matrix lying the other way": (
        "gpt2", lambda folder: rewrite(folder, lambda old: old | {QKV: old[QKV].T.contiguous()}),
        ValueError, r"c_attn\.weight has shape \(30, 10\) instead of \(10, 30\)$",
    ),
    "all three at once": (
        "gpt2", lambda folder: (without(WTE)(folder), with_tensors(
            extra=torch.ones(1), transformer__ln_f__bias=torch.ones(7))(folder)),
        ValueError, rf"missing: {WTE}; unexpected: extra; wrong: transformer\.ln_f\.bias has shape \(7,\)",
    ),
    "no output matrix where it is untied": (
        "gpt2, untied", without("lm_head.weight"), ValueError, r"missing: lm_head\.weight$",
    ),
    "another output matrix where it is tied": (
        "llama, tied", with_tensors(lm_head__weight=torch.ones(23, 24)),
        ValueError, r"lm_head\.weight must equal model\.embed_tokens\.weight",
    ),
    "another output bias": ("bert", with_tensors(cls__predictions__decoder__bias=torch.ones(23)),
        ValueError, r"decoder\.bias must equal cls\.predictions\.bias"),
    "one tensor under two names": ("bert", with_tensors(bert__embeddings__LayerNorm__gamma=torch.ones(10)),
        ValueError, r"bert\.embeddings\.LayerNorm\.weight must occur once"),
    "quantized": (
        "llama", lambda folder: rewrite(folder, lambda old: {k: t.to(torch.int8) for k, t in old.items()}),
        ValueError, "must all be of one of the dtypes F64, F32, F16, BF16, got I8",
    ),
    "two dtypes": ("gpt2", lambda folder: rewrite(folder, lambda old: old | {WTE: old[WTE].half()}),
        ValueError, "got F16, F32"),
    # files
    "a cut file": ("gpt2", cut, ValueError, r"model\.safetensors must be a safetensors file"),
    "a damaged file": ("gpt2", damaged, ValueError, r"model\.safetensors must be a safetensors file"),
    "an empty file": (
        "bert", write("model.safetensors", ""), ValueError, r"model\.safetensors must be a safetensors file",
    ),
    "pickled weights": (
        "gpt2", pickled, FileNotFoundError, r"model\.safetensors must be in .*pytorch_model\.bin: unpickling",
    ),
    "no weights": ("gpt2", gone("model.safetensors"), FileNotFoundError, r"model\.safetensors must be in"),
    "no configuration": ("gpt2", gone("config.json"), FileNotFoundError, r"config\.json must be in"),
    "a damaged configuration": (
        "gpt2", write("config.json", '{"model_type": "gpt2"'), ValueError, r"config\.json must be JSON",
    ),
    "a configuration in bytes": ("gpt2", lambda folder: (folder / "config.json").write_bytes(b"\xff\xfe\xff"),
        ValueError, r"config\.json must be JSON"),
    "a list as configuration": ("gpt2", write("config.json", "[1]"), ValueError, r"a dict, got \[1\]"),
    # configurations
    "another family": (
        "gpt2", configured(model_type="gpt_neox"), ValueError, "mistral, qwen2, qwen3, got 'gpt_neox'$",
    ),
    "no family": ("gpt2", configured(model_type=...), ValueError, "model_type .* got None"),
    "no name as family": ("gpt2", configured(model_type=["gpt2"]), ValueError, r"got \['gpt2'\]"),
    "one family's weights as another's": ("gpt2", lambda folder: MODELS["llama"][1].save_pretrained(folder),
        ValueError, "missing: .*; unexpected: "),
    "an entry missing": ("llama", configured(rms_norm_eps=...), ValueError, "missing: rms_norm_eps$"),
    "relative positions": ("bert", configured(position_embedding_type="relative_key"),
        ValueError, "position_embedding_type is 'relative_key', supported is 'absolute'"),
    "a decoder": ("bert", configured(is_decoder=True), ValueError, "is_decoder is True"),
    "an untied BERT": ("bert", configured(tie_word_embeddings=False), ValueError, "tie_word_embeddings is F"),
    "cross-attention": ("gpt2", configured(add_cross_attention=True), ValueError, "add_cross_attention is T"),
    "scales of layers": (
        "gpt2", configured(scale_attn_by_inverse_layer_idx=True), ValueError, "inverse_layer_idx is True",
    ),
    "no scale": ("gpt2", configured(scale_attn_weights=False), ValueError, "scale_attn_weights is False"),
    "biases": ("llama", configured(attention_bias=True, mlp_bias=True), ValueError, "missing: .*_proj.bias"),
    "biases in a Mistral": ("mistral", configured(mlp_bias=True), ValueError, "mlp_bias is True"),
    "windows in some layers": (
        "qwen3", configured(use_sliding_window=True), ValueError, "use_sliding_window is True",
    ),
    "a window of no token": ("mistral", configured(sliding_window=0), ValueError, "window"),
    "no window named": ("mistral", configured(sliding_window=...), ValueError, "missing: sliding_window$"),
    "Gemma": (
        "llama", configured(model_type="gemma"), ValueError, r"got 'gemma' \(norms multiply by 1 \+ w",
    ),
    "another gate": ("llama", configured(hidden_act="gelu"), ValueError, "hidden_act is 'gelu'"),
    "another scaling of positions": (
        "llama", configured(rope_parameters={"rope_type": "longrope"}), ValueError, "rope_type .* 'longrope'",
    ),
    "a setting of scaled positions": (
        "llama", configured(rope_parameters={"rope_type": "yarn", "factor": 4.0, "mscale": 0.7}),
        ValueError, "not supported: mscale of rotary positions",
    ),
    "no factor of scaled positions": (
        "llama", configured(rope_parameters={"rope_type": "linear"}), ValueError, "factor",
    ),
    "positions scaled as text": (
        "llama", configured(rope_parameters=..., rope_scaling="linear"), ValueError, "rope_scaling .* dict",
    ),
    "positions that are no dict": ("llama", configured(rope_parameters=[1]), ValueError, "rope_parameters"),
    "wider heads": ("llama", configured(head_dim=8), ValueError, r"_proj\.weight has shape"),
    "heads of odd width": ("llama", configured(head_dim=3), ValueError, "head_dim must be even, got 3"),
    "quantization": (
        "llama", configured(quantization_config={"bits": 4}), ValueError, "quantization_config is {",
    ),
    "an unknown activation": (
        "gpt2", configured(activation_function="mish"), ValueError, "activation_function .* got 'mish'",
    ),
    "heads that do not fit": ("bert", configured(num_attention_heads=3), ValueError, "num_heads=3"),
    "text for a number": ("gpt2", configured(n_layer="2"), ValueError, "num_layers must be an int, got str"),
    "no width": ("gpt2", configured(n_embd=None, n_inner=None), ValueError, "must describe a GPT2"),
    "more layers": ("llama", configured(num_hidden_layers=3), ValueError, r"missing: model\.layers\.2\."),
    "fewer layers": ("llama", configured(num_hidden_layers=1), ValueError, r"unexpected: model\.layers\.1\."),
    "another vocabulary": ("llama", configured(vocab_size=29), ValueError, r"\(23, 24\) instead of \(29,"),
}  # fmt: skip


@pytest.mark.parametrize("what", REFUSED)
def test_what_does_not_fit_is_refused(what, folder):
    name, change, error, message = REFUSED[what]
    published(name, folder)
    assert load_checkpoint(folder) is not None
    change(folder)
    with pytest.raises(error, match=message) as caught:
        load_checkpoint(folder)
    assert type(caught.value) is error


INDEX = "model.safetensors.index.json"


def reindexed(change):
    def apply(folder):
        index = json.loads((folder / INDEX).read_text())
        change(index["weight_map"])
        (folder / INDEX).write_text(json.dumps(index))

    return apply


SHARDS = 14
FIRST, SECOND = (f"model-{i:05}-of-{SHARDS:05}.safetensors" for i in (1, 2))
EMBEDDING, NORM = "model.embed_tokens.weight", "model.layers.0.input_layernorm.weight"
REFUSED_INDEXES = {
    "a folder above": (reindexed(lambda places: places.update({EMBEDDING: f"../{FIRST}"})),
        ValueError, rf"named without a folder, got '\.\./{FIRST}'"),
    "an absolute path": (reindexed(lambda places: places.update({EMBEDDING: "/etc/passwd"})),
        ValueError, "named without a folder, got '/etc/passwd'"),
    "a folder above, in Windows": (reindexed(lambda places: places.update({EMBEDDING: f"..\\{FIRST}"})),
        ValueError, "named without a folder"),
    "the folder above itself": (
        reindexed(lambda places: places.update({EMBEDDING: ".."})), FileNotFoundError, r"\.\. must be in",
    ),
    "a missing file": (gone(SECOND), FileNotFoundError, f"{SECOND} must be in"),
    "a tensor in another file": (reindexed(lambda places: places.update({EMBEDDING: SECOND})),
        ValueError, rf"does not hold what {INDEX} says; (missing|unexpected): {EMBEDDING}"),
    "a tensor that the index leaves out": (reindexed(lambda places: places.pop(NORM)),
        ValueError, f"does not hold what {INDEX} says; unexpected: {NORM}"),
    "a file that the index leaves out": (
        reindexed(lambda places: places.pop(EMBEDDING)), ValueError, f"missing: {EMBEDDING}$",
    ),
    "no map": (write(INDEX, '{"metadata": {}}'), ValueError, "weight_map .* got None"),
    "an empty map": (write(INDEX, '{"weight_map": {}}'), ValueError, "weight_map .* got {}"),
    "numbers in the map": (write(INDEX, '{"weight_map": {"a": 3}}'), ValueError, "weight_map"),
    "no JSON": (write(INDEX, "weight_map"), ValueError, f"{INDEX} must be JSON"),
}  # fmt: skip


@pytest.mark.parametrize("what", REFUSED_INDEXES)
def test_an_index_that_does_not_fit_is_refused(what, folder):
    change, error, message = REFUSED_INDEXES[what]
    published("llama", folder, max_shard_size="3KB")
    assert len(list(folder.glob("model-*"))) == SHARDS
    shutil.copy(folder / FIRST, folder.parent / FIRST)  # a path to the parent folder would find this file
    load_checkpoint(folder)
    change(folder)
    with pytest.raises(error, match=message):
        load_checkpoint(folder)


# Digests and revisions


def digest(path):
    return hashlib.sha256(path.read_bytes()).hexdigest()


def test_digests_are_compared(folder):
    published("gpt2", folder)
    right = digest(folder / "model.safetensors")
    config = digest(folder / "config.json")
    load_checkpoint(folder, sha256=right)
    load_checkpoint(folder, sha256=right.upper())
    load_checkpoint(folder, sha256={"model.safetensors": right, "config.json": config})
    wrong = "0" * 64
    for demanded in (wrong, {"model.safetensors": right, "config.json": wrong}):
        with pytest.raises(ValueError, match=rf"sha256 of \S+ must be {wrong}, got ({right}|{config})"):
            load_checkpoint(folder, sha256=demanded)
    for demanded in ({}, {"config.json": config}):
        with pytest.raises(ValueError, match=r"every weights file, got none for model\.safetensors"):
            load_checkpoint(folder, sha256=demanded)
    with pytest.raises(FileNotFoundError, match=r"other\.safetensors must be in"):
        load_checkpoint(folder, sha256={"model.safetensors": right, "other.safetensors": right})
    with pytest.raises(ValueError, match="without a folder"):
        load_checkpoint(folder, sha256={"../checkpoint/model.safetensors": right})


def test_one_changed_bit_is_found_by_the_digest(folder):
    published("gpt2", folder)
    path = folder / "model.safetensors"
    right, data = digest(path), bytearray(path.read_bytes())
    data[-3] ^= 1
    path.write_bytes(data)
    load_checkpoint(folder)  # every pattern of bits is a number
    with pytest.raises(ValueError, match="sha256 of model.safetensors must be"):
        load_checkpoint(folder, sha256=right)


def test_digests_come_before_any_parsing(folder, monkeypatch):
    published("gpt2", folder)
    for parser in ("_read_json", "_open"):
        monkeypatch.setattr(checkpoints, parser, lambda *args: pytest.fail("a file was parsed"))
    with pytest.raises(ValueError, match="sha256"):
        load_checkpoint(folder, sha256="0" * 64)


def test_all_of_several_files_need_a_digest(folder):
    published("llama", folder, max_shard_size="3KB")
    digests = {path.name: digest(path) for path in folder.glob("model-*.safetensors")}
    load_checkpoint(folder, sha256=digests)
    last = max(digests)
    del digests[last]
    with pytest.raises(ValueError, match=f"got none for {last}"):
        load_checkpoint(folder, sha256=digests)
    with pytest.raises(FileNotFoundError, match=r"model\.safetensors must be in"):
        load_checkpoint(folder, sha256="0" * 64)


COMMIT = "607a30d783dfa663caf39e06633721c8d4cfcd7e"


@pytest.fixture
def hub(monkeypatch, tmp_path):
    """A hub that holds one model, and what it was asked for."""
    calls = []
    snapshot = tmp_path / "snapshots" / COMMIT
    published("gpt2", snapshot)

    def snapshot_download(name, *, revision, allow_patterns):
        calls.append((name, revision, allow_patterns))
        return str(snapshot)

    fake = types.SimpleNamespace(snapshot_download=snapshot_download)
    monkeypatch.setitem(sys.modules, "huggingface_hub", fake)
    return calls


def test_a_name_is_looked_up_only_with_a_revision(hub):
    with pytest.raises(FileNotFoundError, match="or, with a revision, a name on the hub, got 'owner/model'"):
        load_checkpoint("owner/model")
    assert hub == []
    for revision in (COMMIT, "main"):
        assert isinstance(load_checkpoint("owner/model", revision=revision), GPT2)
    wanted = ["config.json", "model.safetensors", INDEX, "model-*.safetensors"]
    assert hub == [("owner/model", COMMIT, wanted), ("owner/model", "main", wanted)]
    other = COMMIT[::-1]
    with pytest.raises(ValueError, match=f"revision must be {other}, got {COMMIT}"):
        load_checkpoint("owner/model", revision=other)


def test_a_hub_is_asked_for_names_only(hub, folder):
    published("gpt2", folder)
    for source in (folder, "../up", "a/b/c", "owner/..", "", "https://x/y"):
        with pytest.raises(ValueError, match="source must be a name on the hub"):
            load_checkpoint(source, revision="main")
    assert hub == []


def test_without_the_package_for_the_hub_the_error_says_so(monkeypatch):
    monkeypatch.setitem(sys.modules, "huggingface_hub", None)
    with pytest.raises(ImportError, match="package huggingface_hub"):
        load_checkpoint("owner/model", revision="main")


# Writing


@pytest.mark.parametrize("name", MODELS)
def test_what_is_written_is_read_back_by_both(name, folder, tmp_path):
    published(name, folder)
    ours = load_checkpoint(folder)
    save_checkpoint(ours, tmp_path / "deeper" / "written")
    again = load_checkpoint(tmp_path / "deeper" / "written")
    assert repr(again) == repr(ours)
    assert all(torch.equal(a, b) for a, b in zip(again.parameters(), ours.parameters(), strict=True))
    mine, other = inputs_of(name)
    cls = MODELS[name][0] if name != "bert with pooling" else transformers.BertForMaskedLM
    read, report = cls.from_pretrained(tmp_path / "deeper" / "written", output_loading_info=True)
    missing = [key for key in report["missing_keys"] if not key.startswith("pooler.")]
    assert not missing and not any(report[key] for key in ("unexpected_keys", "mismatched_keys"))
    with torch.no_grad():
        expected, hidden_and_logits = read.eval()(TOKENS, **other), ours(*mine)
    close(hidden_and_logits["bare" not in name], expected[0])


def test_our_own_model_is_trained_written_and_read_into_transformers(folder):
    model = GPT2(VOCAB, WIDTH, HEADS, HIDDEN, LAYERS, max_len=MAX_LEN, dropout=0.1)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    loss = nn.functional.cross_entropy(model(TOKENS)[1][:, :-1].flatten(0, 1), TOKENS[:, 1:].flatten())
    loss.backward()
    assert all(parameter.grad.abs().sum() > 0 for parameter in model.parameters() if parameter.ndim > 1)
    optimizer.step()
    save_checkpoint(model, folder)
    read = transformers.GPT2LMHeadModel.from_pretrained(folder).eval()
    with torch.no_grad():
        close(load_checkpoint(folder)(TOKENS)[1], read(TOKENS).logits)
        close(model.eval()(TOKENS)[1], read(TOKENS).logits)
    save_checkpoint(load_checkpoint(folder), folder)
    with torch.no_grad():
        assert torch.equal(load_checkpoint(folder)(TOKENS)[1], model(TOKENS)[1])


def change_window(model):
    model.encoder.blocks[1].self_attention.window = (3, 0)


def change_scale(model):
    model.encoder.blocks[0].self_attention.scale = nn.Parameter(torch.tensor(0.3))


def change_epsilon(model):
    model.encoder.norm.eps = 0.5


def change_attention(model):
    model.encoder.blocks[0].self_attention = nn.Identity()


def change_activation(model):
    model.encoder.blocks[0].feed_forward.activation = "swiglu"


def change_output(model):
    model.output = nn.Linear(WIDTH, VOCAB)


@pytest.mark.parametrize("change", [
    change_window, change_scale, change_epsilon, change_attention, change_activation, change_output,
])  # fmt: skip
def test_a_changed_model_is_not_written(change, folder):
    model = GPT2(VOCAB, WIDTH, HEADS, HIDDEN, LAYERS, max_len=MAX_LEN)
    change(model)
    with pytest.raises(ValueError, match="model must be as GPT2 builds it"):
        save_checkpoint(model, folder)
    assert not folder.exists()


# The models


def test_tied_models_hold_the_embedding_once():
    tied, own = (GPT2(VOCAB, WIDTH, HEADS, HIDDEN, 1, max_len=MAX_LEN, tied=tied) for tied in (True, False))
    assert not any("output" in key for key in tied.state_dict())
    assert own.output.weight.shape == own.embedding.weight.shape
    hidden, logits = tied(TOKENS)
    close(logits, hidden @ tied.embedding.weight.T)
    hidden, logits = own(TOKENS)
    close(logits, hidden @ own.output.weight.T)


def test_segments_default_to_the_first():
    model = Bert(VOCAB, WIDTH, HEADS, HIDDEN, 1, max_len=MAX_LEN, num_segments=3).eval()
    first = torch.zeros_like(TOKENS)
    assert torch.equal(model(TOKENS)[1], model(TOKENS, first)[1])
    assert not torch.allclose(model(TOKENS)[1], model(TOKENS, first + 2)[1], atol=1e-4)


def test_bert_sees_both_sides_and_the_others_only_the_past():
    sizes = (VOCAB, 20, HEADS, HIDDEN, 1)
    changed = TOKENS.clone()
    changed[:, -1] = (changed[:, -1] + 1) % VOCAB
    for kind in (Bert, GPT2, Llama):
        model = kind(*sizes, max_len=MAX_LEN).eval()
        before, after = (model(tokens)[0][:, :-1] for tokens in (TOKENS, changed))
        assert torch.equal(before, after) == (kind is not Bert)
