"""Names in published files and the corresponding names in our models; each table has a column per family."""

from __future__ import annotations

import re
import warnings
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any, TypeAlias

from mha_lib.models.language_models import GPT2, Bert, Llama

Model: TypeAlias = Bert | GPT2 | Llama
_Renames: TypeAlias = Mapping[str, str]


@dataclass(frozen=True)
class Family:
    """The names that the files of one family use for the parts of our model."""

    model: type[Model]
    architecture: str  # HuggingFace's class
    settings: _Renames  # arguments of our class -> entries of the configuration
    layers: (
        _Renames  # our tensors and layers outside the blocks, and our list of blocks
    )
    block: (
        _Renames  # our layers in a block -> theirs, which may join the rows of several
    )
    prefix: str  # of all tensors except output layers; absent in a model without these
    copies: _Renames  # tensors that repeat another tensor and may be left out
    unused: str  # tensors that our model does not need: pooling, and constants in older files
    only: Mapping[str, Any]  # entries that must have these values if they are present
    # Entries that a configuration may leave out, with their defaults.
    defaults: Mapping[str, Any] = field(default_factory=dict)
    transposed: tuple[str, ...] = ()  # layers whose matrices are stored as (in, out)
    # Arguments of our class that all models of the family share.
    fixed: Mapping[str, Any] = field(default_factory=dict)


def _columns(table: str) -> list[dict[str, str]]:
    """Each column after the first, as a dict from the first column's entries to its own; omit dashes."""
    rows = [line.split() for line in table.strip().splitlines()]
    columns = list(zip(*rows, strict=True))
    return [
        {
            ours: theirs
            for ours, theirs in zip(columns[0], column, strict=True)
            if theirs != "-"
        }
        for column in columns[1:]
    ]


# Our name for each part, then the names in BERT, GPT-2 and Llama.
_SETTINGS = _columns("""
    vocab_size      vocab_size               vocab_size           vocab_size
    embed_dim       hidden_size              n_embd               hidden_size
    num_heads       num_attention_heads      n_head               num_attention_heads
    hidden_dim      intermediate_size        n_inner              intermediate_size
    num_layers      num_hidden_layers        n_layer              num_hidden_layers
    max_len         max_position_embeddings  n_positions          max_position_embeddings
    layer_norm_eps  layer_norm_eps           layer_norm_epsilon   rms_norm_eps
    activation      hidden_act               activation_function  -
    num_segments    type_vocab_size          -                    -
    tied            -                        tie_word_embeddings  tie_word_embeddings
    num_kv_heads    -                        -                    num_key_value_heads
    head_dim        -                        -                    head_dim
    base            -                        -                    rope_theta
    attention_bias  -                        -                    attention_bias
    mlp_bias        -                        -                    mlp_bias
""")
_LAYERS = _columns("""
    embedding           bert.embeddings.word_embeddings        transformer.wte   model.embed_tokens
    position_embedding  bert.embeddings.position_embeddings    transformer.wpe   -
    segment_embedding   bert.embeddings.token_type_embeddings  -                 -
    embedding_norm      bert.embeddings.LayerNorm              -                 -
    encoder.blocks      bert.encoder.layer                     transformer.h     model.layers
    encoder.norm        -                                      transformer.ln_f  model.norm
    output              -                                      lm_head           lm_head
    output_proj         cls.predictions.transform.dense        -                 -
    output_norm         cls.predictions.transform.LayerNorm    -                 -
    output_bias         cls.predictions.bias                   -                 -
""")
_BLOCK = _columns("""
    self_attention.q_proj    attention.self.query        attn.c_attn  self_attn.q_proj
    self_attention.k_proj    attention.self.key          attn.c_attn  self_attn.k_proj
    self_attention.v_proj    attention.self.value        attn.c_attn  self_attn.v_proj
    self_attention.q_norm    -                           -            self_attn.q_norm
    self_attention.k_norm    -                           -            self_attn.k_norm
    self_attention.out_proj  attention.output.dense      attn.c_proj  self_attn.o_proj
    self_attention_norm      attention.output.LayerNorm  ln_1         input_layernorm
    feed_forward.gate_proj   -                           -            mlp.gate_proj
    feed_forward.up_proj     intermediate.dense          mlp.c_fc     mlp.up_proj
    feed_forward.down_proj   output.dense                mlp.c_proj   mlp.down_proj
    feed_forward_norm        output.LayerNorm            ln_2         post_attention_layernorm
""")

_TABLES = list(zip(_SETTINGS, _LAYERS, _BLOCK, strict=True))

_BERT = Family(
    Bert,
    "BertForMaskedLM",
    *_TABLES[0],
    prefix="bert.",
    copies={
        "cls.predictions.decoder.weight": "bert.embeddings.word_embeddings.weight",
        "cls.predictions.decoder.bias": "cls.predictions.bias",
    },
    unused=r"bert\.pooler\.dense\.\w+|cls\.seq_relationship\.\w+|bert\.embeddings\.position_ids",
    only={
        "position_embedding_type": "absolute",
        "is_decoder": False,
        "add_cross_attention": False,
        "tie_word_embeddings": True,
    },
)
_GPT2 = Family(
    GPT2,
    "GPT2LMHeadModel",
    *_TABLES[1],
    prefix="transformer.",
    copies={"lm_head.weight": "transformer.wte.weight"},
    unused=r"transformer\.h\.\d+\.attn\.(bias|masked_bias)",
    only={
        "scale_attn_weights": True,
        "scale_attn_by_inverse_layer_idx": False,
        "add_cross_attention": False,
    },
    defaults={"n_inner": None, "tie_word_embeddings": True},
    transposed=("c_attn", "c_proj", "c_fc"),
)
_LLAMA = Family(
    Llama,
    "LlamaForCausalLM",
    *_TABLES[2],
    prefix="model.",
    copies={"lm_head.weight": "model.embed_tokens.weight"},
    unused=r"model\.layers\.\d+\.self_attn\.rotary_emb\.inv_freq",
    only={
        "hidden_act": "silu",
        "partial_rotary_factor": 1.0,
        "rope_interleaved": False,
    },
    defaults={
        **dict.fromkeys(("num_key_value_heads", "head_dim")),
        **dict.fromkeys(("tie_word_embeddings", "attention_bias", "mlp_bias"), False),
        "rope_theta": 10_000.0,
    },
)

_MISTRAL = replace(
    _LLAMA,
    architecture="MistralForCausalLM",
    settings={**_LLAMA.settings, "window": "sliding_window"},
    only={**_LLAMA.only, "attention_bias": False, "mlp_bias": False},
)
_QWEN = {**_LLAMA.only, "mlp_bias": False, "use_sliding_window": False}
_QWEN2 = replace(
    _LLAMA,
    architecture="Qwen2ForCausalLM",
    fixed={"attention_bias": ("q_proj", "k_proj", "v_proj")},
    only=_QWEN,
)
_QWEN3 = replace(
    _LLAMA, architecture="Qwen3ForCausalLM", fixed={"qk_norm": True}, only=_QWEN
)

# A model is written in the format of the first family of its class that can describe it.
FAMILIES = {
    "bert": _BERT,
    "gpt2": _GPT2,
    "llama": _LLAMA,
    "mistral": _MISTRAL,
    "qwen2": _QWEN2,
    "qwen3": _QWEN3,
}

_GEMMA = "norms multiply by 1 + weight, embeddings by √hidden_size; the gate is GELU"
UNSUPPORTED = dict.fromkeys(("gemma", "gemma2", "gemma3", "gemma3_text"), _GEMMA)

# Arguments of `RotaryScaling` -> entries of the configuration, for each kind.
_SCALED = {"factor": "factor", "trained_len": "original_max_position_embeddings"}
_SHARPER = {"attention_factor": "attention_factor"}
SCALING = {
    **dict.fromkeys(("linear", "dynamic"), _SCALED),
    "llama3": _SCALED | {"low": "low_freq_factor", "high": "high_freq_factor"},
    "yarn": _SCALED | {"low": "beta_slow", "high": "beta_fast"} | _SHARPER,
}

# Their names for activations -> ours. If several map to the same, the first is written.
ACTIVATIONS = {
    "gelu": "gelu",
    "gelu_new": "gelu_tanh",
    "gelu_pytorch_tanh": "gelu_tanh",
    "relu": "relu",
    "silu": "silu",
}


def note_left_out(model: Any, names: Iterable[str]) -> None:
    """Remember which learned weights of a file are no part of the model that was built from it."""
    model._left_out = sorted(
        name for name in names if re.search("pooler|seq_relationship", name)
    )


def warn_left_out(model: object) -> None:
    """Say what a file that is written lacks, although the file from which the model came had it."""
    if left_out := getattr(model, "_left_out", None):
        text = f"{', '.join(left_out)} were left out when the model was read, so they are not written"
        warnings.warn(text, stacklevel=3)
