"""Multi-head attention in one small canonical implementation: the library behind the course.

Masks are bool, True = may attend. Axes are (batch, len, embed_dim) outside a layer and
(batch, num_heads, len, head_dim) inside it. Data, plots and widgets are in a second package, `mha_course`.

A wrong argument raises an error before anything is computed: a `TypeError` if its type or dtype is wrong, a
`ValueError` if its shape or value is. The message names the argument, the rule and the value.

On a CPU and inside `vmap`, the numbers inside tensors (lengths, biases) are checked at once too. On a GPU,
reading them would make the program wait; there, and in compiled or exported programs, torch checks them
while the program runs, and raises a RuntimeError.
"""

from mha_lib.attention import attention_pooling, dot_product_attention, masked_softmax
from mha_lib.cache import KeyValueCache
from mha_lib.conversion import mask_from_additive
from mha_lib.feed_forward import FeedForward, RMSNorm
from mha_lib.inspection import (
    capture_attention,
    gate_heads,
    head_importance,
    prune_heads,
)
from mha_lib.masking import (
    align_bias,
    align_mask,
    build_mask,
    causal_mask,
    sliding_window_mask,
    valid_lens_mask,
)
from mha_lib.models.generation import beam_decode, generate, greedy_decode
from mha_lib.models.language_models import GPT2, Bert, Llama
from mha_lib.models.parallel import shard_heads
from mha_lib.models.rotary_scaling import RotaryScaling
from mha_lib.models.seq2seq import EncoderDecoder
from mha_lib.multi_head import MultiHeadAttention
from mha_lib.positional import (
    LearnedPositionalEncoding,
    SinusoidalPositionalEncoding,
    sinusoidal_encoding,
)
from mha_lib.relative import (
    ShawScore,
    T5RelativeBias,
    alibi_bias,
    alibi_slopes,
    t5_buckets,
)
from mha_lib.rotary import RotaryPositionalEncoding, apply_rotary, rotary_angles
from mha_lib.scores import (
    AdditiveScore,
    BilinearScore,
    cosine_score,
    dot_product_score,
    gaussian_score,
    scaled_dot_product_score,
    softcap_scores,
)
from mha_lib.transformer import (
    DecoderBlock,
    DecoderBlockCache,
    EncoderBlock,
    TransformerDecoder,
    TransformerEncoder,
)

__version__ = "0.1.0"

__all__ = [
    "GPT2", "AdditiveScore", "Bert", "BilinearScore", "DecoderBlock",
    "DecoderBlockCache", "EncoderBlock", "EncoderDecoder", "FeedForward",
    "KeyValueCache", "LearnedPositionalEncoding", "Llama", "MultiHeadAttention",
    "RMSNorm", "RotaryPositionalEncoding", "RotaryScaling", "ShawScore",
    "SinusoidalPositionalEncoding", "T5RelativeBias", "TransformerDecoder",
    "TransformerEncoder", "__version__", "alibi_bias", "alibi_slopes", "align_bias",
    "align_mask", "apply_rotary", "attention_pooling", "beam_decode", "build_mask",
    "capture_attention", "causal_mask", "cosine_score", "dot_product_attention",
    "dot_product_score", "gate_heads", "gaussian_score", "generate", "greedy_decode",
    "head_importance", "mask_from_additive", "masked_softmax", "prune_heads",
    "rotary_angles", "scaled_dot_product_score", "shard_heads", "sinusoidal_encoding",
    "sliding_window_mask", "softcap_scores", "t5_buckets", "valid_lens_mask",
]  # fmt: skip
