"""Attention in packages that others publish, each in the least code that makes one and lets the judge try.

A function named as its line in the table returns what `attention_check.check` takes: the layer and, where its
contract must be declared, options. Every size is small; weights are drawn by each package in its own way.
"""

from __future__ import annotations

import importlib
import types
from collections.abc import Callable
from typing import Any, NamedTuple

import torch
from one_module import load
from torch import nn

WIDTH, HEADS = 48, 4
HEAD_DIM = WIDTH // HEADS
NAMES = ("q_proj", "k_proj", "v_proj", "out_proj")


class Implementation(NamedTuple):
    """One attention of a package.

    Attributes:
        package: its name on PyPI.
        name: of the class, as its users import it.
        make: returns the layer and the options of `check`.
        glue: lines of code that its users would have to write before the call, beside making the layer.
        without: packages that its file imports for other purposes; empty modules take their place.
    """

    package: str
    name: str
    make: Callable[[], tuple[Any, dict[str, Any]]]
    glue: int = 0
    without: tuple[str, ...] = ()


IMPLEMENTATIONS: list[Implementation] = []


def add(
    package: str,
    name: str,
    *,
    glue: int = 0,
    without: tuple[str, ...] = (),
    declare: Callable[[Any], dict[str, Any]] = lambda layer: {},
    **options: Any,
):
    """Enter a layer of `name`, which the decorated function makes from its class.

    Some options are the same for each layer; others, such as its projections, are said by `declare`.
    """

    def entered(make: Callable[[type], Any]) -> Callable[[type], Any]:
        def made() -> tuple[Any, dict[str, Any]]:
            module, _, kind = name.partition(" ")[0].rpartition(".")
            layer = make(getattr(load(module), kind))
            return layer, options | declare(layer)

        IMPLEMENTATIONS.append(Implementation(package, name, made, glue, without))
        return make

    return entered


def add_alike(package: str, names: str, make: Callable[[type], Any], **options: Any) -> None:
    """Enter several classes that are made in the same way."""
    for name in names.split():
        add(package, name, **options)(make)


# Image models
add_alike(
    "vit-pytorch",
    """vit_pytorch.vit.Attention vit_pytorch.simple_vit.Attention vit_pytorch.vivit.Attention
    vit_pytorch.parallel_vit.Attention vit_pytorch.cross_vit.Attention
    vit_pytorch.simple_vit_with_patch_dropout.Attention vit_pytorch.vit_3d.Attention""",
    lambda kind: kind(WIDTH, HEADS, HEAD_DIM),
)
add("vit-pytorch", "vit_pytorch.cct.Attention")(lambda kind: kind(WIDTH, HEADS))
add("timm", "timm.layers.attention.Attention")(lambda kind: kind(WIDTH, HEADS, qkv_bias=True))
add("dinov2", "dinov2.layers.attention.Attention")(lambda kind: kind(WIDTH, HEADS, qkv_bias=True))
add("segment-anything", "segment_anything.modeling.transformer.Attention")(lambda kind: kind(WIDTH, HEADS))
add("monai", "monai.networks.blocks.crossattention.CrossAttentionBlock")(lambda kind: kind(WIDTH, HEADS))
add("monai", "monai.networks.blocks.selfattention.SABlock")(lambda kind: kind(WIDTH, HEADS))
add("self-attention-cv", "self_attention_cv.transformer_vanilla.mhsa.MultiHeadSelfAttention", mask="hidden")(
    lambda kind: kind(WIDTH, HEADS)
)
add("axial-attention", "axial_attention.axial_attention.SelfAttention")(lambda kind: kind(WIDTH, HEADS))
add("labml-nn", "labml_nn.diffusion.stable_diffusion.model.unet_attention.CrossAttention")(
    lambda kind: kind(WIDTH, WIDTH, HEADS, HEAD_DIM)
)
add("dalle-pytorch", "dalle_pytorch.attention.Attention")(
    lambda kind: kind(WIDTH, 128, heads=HEADS, dim_head=HEAD_DIM, causal=True)
)
add("diffusers", "diffusers.models.attention_processor.Attention")(
    lambda kind: kind(WIDTH, heads=HEADS, dim_head=HEAD_DIM)
)

# Language
add("torchscale", "torchscale.component.multihead_attention.MultiheadAttention")(
    lambda kind: kind(
        types.SimpleNamespace(multiway=False, layernorm_eps=1e-5, xpos_rel_pos=False, flash_attention=False),
        WIDTH, HEADS, self_attention=True,
    )
)  # fmt: skip
add("torchtune", "torchtune.modules.attention.MultiHeadAttention")(
    lambda kind: kind(
        embed_dim=WIDTH, num_heads=HEADS, num_kv_heads=HEADS, head_dim=HEAD_DIM, is_causal=False,
        **{name: nn.Linear(WIDTH, WIDTH) for name in ("q_proj", "k_proj", "v_proj", "output_proj")},
    )
)  # fmt: skip
add("fair-esm", "esm.multihead_attention.MultiheadAttention")(lambda kind: kind(WIDTH, HEADS))
add("espnet", "espnet.nets.pytorch_backend.transformer.attention.MultiHeadedAttention")(
    lambda kind: kind(HEADS, WIDTH, 0.0)
)
add("labml-nn", "labml_nn.transformers.mha.MultiHeadAttention", without=("labml",))(
    lambda kind: kind(HEADS, WIDTH, 0.0)
)
add("memory-efficient-attention-pytorch",
    "memory_efficient_attention_pytorch.memory_efficient_attention.Attention")(
    lambda kind: kind(dim=WIDTH, heads=HEADS, dim_head=HEAD_DIM)
)  # fmt: skip
add("memory-efficient-attention-pytorch",
    "memory_efficient_attention_pytorch.memory_efficient_attention.Attention in chunks")(
    lambda kind: kind(
        dim=WIDTH, heads=HEADS, dim_head=HEAD_DIM, memory_efficient=True, q_bucket_size=16, k_bucket_size=16
    )
)  # fmt: skip
add("perceiver-pytorch", "perceiver_pytorch.perceiver_pytorch.Attention")(
    lambda kind: kind(WIDTH, heads=HEADS, dim_head=HEAD_DIM)
)
add("perceiver-pytorch", "perceiver_pytorch.perceiver_io.Attention")(
    lambda kind: kind(WIDTH, heads=HEADS, dim_head=HEAD_DIM)
)
add("x-transformers", "x_transformers.x_transformers.Attention", without=("loguru", "einx"))(
    lambda kind: kind(WIDTH, heads=HEADS, dim_head=HEAD_DIM)
)
for said, option in (("two learned keys", {"num_mem_kv": 2}), ("a key of zeros", {"add_zero_kv": True})):
    add("x-transformers", f"x_transformers.x_transformers.Attention with {said}", without=("loguru", "einx"))(
        lambda kind, option=option: kind(WIDTH, heads=HEADS, dim_head=HEAD_DIM, **option)
    )
add("x-clip", "x_clip.x_clip.Attention", without=("torchvision",))(
    lambda kind: kind(WIDTH, dim_head=HEAD_DIM, heads=HEADS)
)
add("speechbrain", "speechbrain.nnet.attention.MultiheadAttention", without=("torchaudio",))(
    lambda kind: kind(HEADS, WIDTH)
)
add("open-clip-torch", "open_clip.transformer.Attention", without=("torchvision", "ftfy"))(
    lambda kind: kind(WIDTH, HEADS)
)


def called_once(layer: nn.Module) -> nn.Module:
    """A lazy layer has its weights after the first call."""
    layer(*torch.zeros(3, 1, 2, WIDTH), None)
    return layer


add("d2l", "d2l.torch.MultiHeadAttention",
    without=("torchvision", "gym", "pandas", "requests"))(
    lambda kind: called_once(kind(WIDTH, HEADS, 0.0))
)  # fmt: skip


def bert_sizes() -> types.SimpleNamespace:
    return types.SimpleNamespace(
        hidden_size=WIDTH, num_attention_heads=HEADS, attention_probs_dropout_prob=0.0,
        hidden_dropout_prob=0.0, output_attentions=False, pruned_heads=[], keep_multihead_output=False,
        layer_norm_eps=1e-12,
    )  # fmt: skip


add_alike(
    "pytorch-pretrained-bert",
    "pytorch_pretrained_bert.modeling.BertAttention",
    lambda kind: kind(bert_sizes()),
    without=("boto3", "botocore", "requests"),
)
add("pytorch-pretrained-bert", "pytorch_pretrained_bert.modeling_gpt2.Attention",
    without=("boto3", "botocore", "requests"))(
    lambda kind: kind(
        WIDTH, 128,
        types.SimpleNamespace(n_head=HEADS, output_attentions=False, attn_pdrop=0.0, resid_pdrop=0.0),
        scale=True,
    )
)  # fmt: skip
add("bert-pytorch", "bert_pytorch.model.attention.multi_head.MultiHeadedAttention", declare=lambda layer: {
    "projections": dict(zip(
        NAMES, (*layer.linear_layers, layer.output_linear), strict=True
    )),
})(lambda kind: kind(HEADS, WIDTH))  # fmt: skip
add("llms-from-scratch", "llms_from_scratch.ch03.MultiHeadAttention")(
    lambda kind: kind(WIDTH, WIDTH, 128, 0.0, HEADS)
)
add("rtdl-revisiting-models", "rtdl_revisiting_models.MultiheadAttention", num_heads=HEADS)(
    lambda kind: kind(d_embedding=WIDTH, n_heads=HEADS, dropout=0.0)
)
add("tab-transformer-pytorch", "tab_transformer_pytorch.tab_transformer_pytorch.Attention",
    without=("x_mlps_pytorch", "hyper_connections", "discrete_continuous_embed_readout"))(
    lambda kind: kind(WIDTH, HEADS, HEAD_DIM)
)  # fmt: skip


# HuggingFace's, which its models use
def add_of_transformers(family: str, kind: str, config: str, *given: Any, **options: Any):
    """Enter an attention of `transformers` that is made from its config of these sizes."""
    name = f"transformers.models.{family}.modeling_{family}.{kind}"
    sizes = {key: options.pop(key) for key in [*options] if key not in ("scale", "mask")}

    def made() -> tuple[Any, dict[str, Any]]:
        settings = getattr(importlib.import_module("transformers"), config)(**sizes)
        settings._attn_implementation = "eager"
        module = importlib.import_module(name.rpartition(".")[0])
        return getattr(module, kind)(settings, *given), options

    IMPLEMENTATIONS.append(Implementation("transformers", name, made))


ENCODER = {"hidden_size": WIDTH, "num_attention_heads": HEADS}
add_of_transformers("bert", "BertAttention", "BertConfig", **ENCODER)
add_of_transformers("vit", "ViTAttention", "ViTConfig", **ENCODER)
add_of_transformers("clip", "CLIPAttention", "CLIPTextConfig", **ENCODER)
add_of_transformers("opt", "OPTAttention", "OPTConfig", 0, **ENCODER)
add_of_transformers("distilbert", "DistilBertSelfAttention", "DistilBertConfig", dim=WIDTH, n_heads=HEADS)
add_of_transformers("gpt2", "GPT2Attention", "GPT2Config", n_embd=WIDTH, n_head=HEADS, n_positions=128)
add_of_transformers("t5", "T5Attention", "T5Config", d_model=WIDTH, num_heads=HEADS, d_kv=HEAD_DIM, scale=1.0)


for family, kind, config in (
    ("llama", "LlamaAttention", "LlamaConfig"),
    ("mistral", "MistralAttention", "MistralConfig"),
    ("qwen2", "Qwen2Attention", "Qwen2Config"),
):
    add_of_transformers(family, kind, config, 0, num_key_value_heads=HEADS // 2, **ENCODER)
