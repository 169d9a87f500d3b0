"""Names in published files, and what they are in our models: one table for each family."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any, TypeAlias

from mha_lib.language_models import GPT2, Bert, Llama

Model: TypeAlias = Bert | GPT2 | Llama


@dataclass(frozen=True)
class Family:
    """How the files of one family name what our model has.

    Attributes:
        model: our class.
        architecture: HuggingFace's class.
        settings: arguments of our class -> entries of the configuration.
        fixed: arguments of our class that all models of the family share.
        only: entries that must have this value if they are there: our model can do no other.
        prefix: of all tensors outside the output layers; files of the model without them leave it out.
        names: their layers or tensors outside the blocks -> ours.
        blocks: their list of blocks; ours is `encoder.blocks`.
        block: their layers in a block -> ours; one of theirs may hold the rows of several of ours.
        copies: tensors that repeat another one, and may be left out.
        defaults: entries that a configuration may leave out, and what that means.
        unused: what our model does not need: pooling, and constants that older files hold.
        transposed: layers whose matrices are stored as (in, out).
    """

    model: type[Model]
    architecture: str
    settings: Mapping[str, str]
    only: Mapping[str, Any]
    prefix: str
    names: Mapping[str, str]
    blocks: str
    block: Mapping[str, str]
    copies: Mapping[str, str]
    unused: str
    defaults: Mapping[str, Any] = field(default_factory=dict)
    transposed: tuple[str, ...] = ()
    fixed: Mapping[str, Any] = field(default_factory=dict)


_SIZES = {  # of all but GPT-2
    "vocab_size": "vocab_size",
    "embed_dim": "hidden_size",
    "num_heads": "num_attention_heads",
    "hidden_dim": "intermediate_size",
    "num_layers": "num_hidden_layers",
    "max_len": "max_position_embeddings",
}

_BERT = Family(
    Bert,
    "BertForMaskedLM",
    settings={
        **_SIZES,
        "num_segments": "type_vocab_size",
        "activation": "hidden_act",
        "layer_norm_eps": "layer_norm_eps",
    },
    only={
        "position_embedding_type": "absolute",
        "is_decoder": False,
        "add_cross_attention": False,
        "tie_word_embeddings": True,
    },
    prefix="bert.",
    names={
        "bert.embeddings.word_embeddings": "embedding",
        "bert.embeddings.position_embeddings": "position_embedding",
        "bert.embeddings.token_type_embeddings": "segment_embedding",
        "bert.embeddings.LayerNorm": "embedding_norm",
        "cls.predictions.transform.dense": "output_proj",
        "cls.predictions.transform.LayerNorm": "output_norm",
        "cls.predictions.bias": "output_bias",
    },
    blocks="bert.encoder.layer",
    block={
        "attention.self.query": "self_attention.q_proj",
        "attention.self.key": "self_attention.k_proj",
        "attention.self.value": "self_attention.v_proj",
        "attention.output.dense": "self_attention.out_proj",
        "attention.output.LayerNorm": "self_attention_norm",
        "intermediate.dense": "feed_forward.up_proj",
        "output.dense": "feed_forward.down_proj",
        "output.LayerNorm": "feed_forward_norm",
    },
    copies={
        "cls.predictions.decoder.weight": "bert.embeddings.word_embeddings.weight",
        "cls.predictions.decoder.bias": "cls.predictions.bias",
    },
    unused=r"bert\.pooler\.dense\.\w+|cls\.seq_relationship\.\w+|bert\.embeddings\.position_ids",
)

_GPT2 = Family(
    GPT2,
    "GPT2LMHeadModel",
    settings={
        "vocab_size": "vocab_size",
        "embed_dim": "n_embd",
        "num_heads": "n_head",
        "hidden_dim": "n_inner",
        "num_layers": "n_layer",
        "max_len": "n_positions",
        "activation": "activation_function",
        "layer_norm_eps": "layer_norm_epsilon",
        "tied": "tie_word_embeddings",
    },
    only={
        "scale_attn_weights": True,
        "scale_attn_by_inverse_layer_idx": False,
        "add_cross_attention": False,
    },
    prefix="transformer.",
    names={
        "transformer.wte": "embedding",
        "transformer.wpe": "position_embedding",
        "transformer.ln_f": "encoder.norm",
        "lm_head": "output",
    },
    blocks="transformer.h",
    block={
        "ln_1": "self_attention_norm",
        "attn.c_attn": "self_attention.q_proj self_attention.k_proj self_attention.v_proj",
        "attn.c_proj": "self_attention.out_proj",
        "ln_2": "feed_forward_norm",
        "mlp.c_fc": "feed_forward.up_proj",
        "mlp.c_proj": "feed_forward.down_proj",
    },
    copies={"lm_head.weight": "transformer.wte.weight"},
    unused=r"transformer\.h\.\d+\.attn\.(bias|masked_bias)",
    defaults={"n_inner": None, "tie_word_embeddings": True},
    transposed=("c_attn", "c_proj", "c_fc"),
)

_LLAMA = Family(
    Llama,
    "LlamaForCausalLM",
    settings={
        **_SIZES,
        "num_kv_heads": "num_key_value_heads",
        "base": "rope_theta",
        "layer_norm_eps": "rms_norm_eps",
        "tied": "tie_word_embeddings",
        "head_dim": "head_dim",
        "attention_bias": "attention_bias",
        "mlp_bias": "mlp_bias",
    },
    only={
        "hidden_act": "silu",
        "partial_rotary_factor": 1.0,
        "rope_interleaved": False,
    },
    prefix="model.",
    names={
        "model.embed_tokens": "embedding",
        "model.norm": "encoder.norm",
        "lm_head": "output",
    },
    blocks="model.layers",
    block={
        "input_layernorm": "self_attention_norm",
        "self_attn.q_proj": "self_attention.q_proj",
        "self_attn.k_proj": "self_attention.k_proj",
        "self_attn.v_proj": "self_attention.v_proj",
        "self_attn.q_norm": "self_attention.q_norm",
        "self_attn.k_norm": "self_attention.k_norm",
        "self_attn.o_proj": "self_attention.out_proj",
        "post_attention_layernorm": "feed_forward_norm",
        "mlp.gate_proj": "feed_forward.gate_proj",
        "mlp.up_proj": "feed_forward.up_proj",
        "mlp.down_proj": "feed_forward.down_proj",
    },
    copies={"lm_head.weight": "model.embed_tokens.weight"},
    unused=r"model\.layers\.\d+\.self_attn\.rotary_emb\.inv_freq",
    defaults={
        "num_key_value_heads": None,
        "rope_theta": 10_000.0,
        "tie_word_embeddings": False,
        "head_dim": None,
        "attention_bias": False,
        "mlp_bias": False,
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

# A model is written as the first family of its class that can describe it.
FAMILIES = {
    "bert": _BERT,
    "gpt2": _GPT2,
    "llama": _LLAMA,
    "mistral": _MISTRAL,
    "qwen2": _QWEN2,
    "qwen3": _QWEN3,
}

_GEMMA = (
    "its norms multiply by 1 + weight, embeddings by √hidden_size, and GELU is the gate"
)
UNSUPPORTED = dict.fromkeys(("gemma", "gemma2", "gemma3", "gemma3_text"), _GEMMA)

# Their names of activations -> ours. The first of several is the one that is written.
ACTIVATIONS = {
    "gelu": "gelu",
    "gelu_new": "gelu_tanh",
    "gelu_pytorch_tanh": "gelu_tanh",
    "relu": "relu",
    "silu": "silu",
}
