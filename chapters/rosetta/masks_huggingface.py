"""What a decoder of HuggingFace's transformers makes of `attention_mask`, with its two kinds of attention.

The models are tiny and made here: nothing is downloaded.
"""

import masks
import numpy as np
import torch
import transformers
from masks import BATCH, HEAD_DIM, HEADS, LENGTH, ONE, ONE_ADDED, PADDING
from torch import nn
from transformers import (
    DynamicCache,
    GPT2Config,
    GPT2Model,
    MistralConfig,
    MistralModel,
)


class Decoder:
    """One layer of GPT-2 with matrices of our own, without positions and norms before it attends.

    `inputs` (batch, len, width) go in where embeddings do; what is returned is what the heads give.
    """

    def __init__(self, kind, width, heads, in_proj):
        config = GPT2Config(
            n_embd=width,
            n_head=heads,
            n_layer=1,
            vocab_size=2,
            attn_implementation=kind,
        )
        self.model = GPT2Model(config).eval()
        [layer] = self.model.h
        layer.ln_1 = nn.Identity()
        self.model.wpe.weight.data.zero_()
        layer.attn.c_attn.weight.data = torch.tensor(in_proj)  # (in, 3 · out)
        layer.attn.c_attn.bias.data.zero_()
        layer.attn.c_proj = nn.Identity()
        layer.attn.register_forward_hook(self.keep, with_kwargs=True)

    def keep(self, _module, _inputs, options, output):
        """Keep the mask that the layer got and the output of its heads."""
        self.mask, self.output = options["attention_mask"], output[0]

    def __call__(self, inputs, past=0, **arguments):
        inputs, cache = torch.tensor(inputs), None
        arguments = {name: torch.tensor(mask) for name, mask in arguments.items()}
        with torch.no_grad():
            if past:
                cache = DynamicCache(config=self.model.config)
                self.model(inputs_embeds=inputs[:, :past], past_key_values=cache)
                inputs = inputs[:, past:]
            self.model(inputs_embeds=inputs, past_key_values=cache, **arguments)
        return self.output.numpy()


def weights(kind, length, past=0, **arguments):
    """Weights (1, 1, q_len, k_len): queries and keys are zero, values the rows of an identity."""
    only_values = np.hstack([np.zeros((length, 2 * length)), np.eye(length)])
    decoder = Decoder(kind, length, 1, only_values.astype("float32"))
    inputs = np.eye(length, dtype="float32")[None]
    return decoder(inputs, past, **arguments)[None]


def the_batch(kind):
    """The batch of the page through the decoder: its difference, and the mask that the layer got."""
    width = HEADS * HEAD_DIM
    inputs = masks.numbers(BATCH, LENGTH, width)
    in_proj = masks.numbers(width, 3 * width, seed=1) / np.sqrt(width).astype("float32")
    decoder = Decoder(kind, width, HEADS, in_proj)
    tokens = (~PADDING).astype("int64")
    found = decoder(inputs, attention_mask=tokens)
    query, key, value = (
        part.reshape(BATCH, LENGTH, HEADS, HEAD_DIM).swapaxes(1, 2)
        for part in np.split(inputs @ in_proj, 3, axis=-1)
    )
    wanted = masks.expected(query, key, value).swapaxes(1, 2).reshape(found.shape)
    mask = decoder.mask
    kind = str(mask.dtype).removeprefix("torch.")
    inside = {"dtype": kind, "shape": list(mask.shape), "hidden": mask.min().item()}
    return masks.difference(found, wanted), inside


def window(kind):
    """Who sees whom under `sliding_window=2`, by the mask that a layer of Mistral gets."""
    config = MistralConfig(
        vocab_size=2,
        hidden_size=4,
        intermediate_size=4,
        num_hidden_layers=1,
        num_attention_heads=1,
        num_key_value_heads=1,
        sliding_window=2,
        attn_implementation=kind,
    )
    model, found = MistralModel(config).eval(), []
    model.layers[0].self_attn.register_forward_pre_hook(
        lambda _module, _inputs, options: found.append(options["attention_mask"]),
        with_kwargs=True,
    )
    with torch.no_grad():
        model(inputs_embeds=torch.zeros(1, 5, 4))
    [mask] = found
    return masks.pattern((mask if mask.dtype == torch.bool else mask == 0).numpy())


# The calls
ONE_TOKEN = {
    "bool": ONE[0, 0],
    "0 and 1, int": ONE[0, 0].astype("int64"),
    "0 and 1, float": ONE[0, 0].astype("float32"),
    "0 and −∞": ONE_ADDED[0, 0],
}
PADDED_LEFT = np.array([[0, 0, 1, 1, 1]])


def measure(kind):
    """The same questions as for the others; the last of the four queries sees all keys but hidden ones."""
    rounding, inside = the_batch(kind)
    one_key = {
        way: masks.ask(
            masks.convention, lambda m=mask: weights(kind, 4, attention_mask=m)
        )
        for way, mask in ONE_TOKEN.items()
    }
    with_cache = weights(kind, 5, past=3)
    return {
        "the batch": {"`attention_mask`, int": rounding},
        "one key": one_key,
        "two queries, five keys": {
            "three keys in `past_key_values`": masks.pattern(with_cache)
        },
        "five queries, five keys": {"`sliding_window=2`": window(kind)},
        "nothing": {
            "`attention_mask`, padded on the left": masks.empty(
                weights(kind, 5, attention_mask=PADDED_LEFT)
            )
        },
        "inside": inside,
    }


if __name__ == "__main__":
    torch.set_num_threads(1)
    arguments = masks.names(GPT2Model.forward)
    versions = {
        "transformers": transformers.__version__,
        "torch": torch.__version__.split("+")[0],
    }
    kinds = {f"HuggingFace, {kind}": kind for kind in ("eager", "sdpa")}
    masks.main(
        versions, {name: (arguments, measure(kind)) for name, kind in kinds.items()}
    )
