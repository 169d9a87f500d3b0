"""Abbreviations and other names by which readers search for what a section teaches under its own name.

Each becomes an entry of the index, which the search shows before pages that only mention the word.
"""

import pickle
from pathlib import Path

from sphinx.addnodes import index
from sphinx.errors import SphinxError

POSITIONS, EFFICIENCY = "05_positional_encoding", "appendix_efficiency"
MODELS, MASKS = "appendix_models_you_know", "appendix_mask_rosetta"

# Section: the words that lead there.
WORDS = {
    f"{POSITIONS}#on-query-and-key-rotary": ["RoPE", "rotary position embedding"],
    f"{POSITIONS}#on-the-scores-alibi": ["attention with linear biases"],
    f"{EFFICIENCY}#a-cache-of-keys-and-values": ["KV cache", "key-value cache"],
    f"{EFFICIENCY}#query-heads-that-share-a-key-head": [
        "GQA", "MQA", "grouped-query attention", "multi-query attention",
    ],
    f"{EFFICIENCY}#tiles-a-softmax-that-never-sees-all-its-scores": ["FlashAttention", "flash attention"],
    f"{EFFICIENCY}#windows": ["SWA", "sliding window attention"],
    f"{MODELS}#a-language-model-on-this-book": ["BPE", "tokenizer"],
    f"{MODELS}#exercise-2-a-mixture-of-experts-10-minutes": ["MoE"],
    f"{MASKS}#the-same-in-every-convention-of-torch": ["SDPA", "F.scaled_dot_product_attention"],
    "04_self_attention#induction-two-layers-learn-sooner-than-one": ["induction head"],
    "06_transformer#layer-norm-each-token-to-one-scale": ["LayerNorm"],
}  # fmt: skip


def add_search_words(app, doctree):
    """Add the words of a page to its index; an error if a section has another name."""
    page = app.env.docname
    for target, words in WORDS.items():
        name, _, section = target.partition("#")
        if page == f"chapters/{name}":
            if section not in doctree.ids:
                raise SphinxError(
                    f"_ext/search_words.py: {page} has no section #{section}"
                )
            doctree += index(
                entries=[("single", word, section, "main", None) for word in words]
            )


def keep_index_entries(app):
    """Store the environment again with the index entries, which Sphinx collects only after it has stored it.

    The next build writes the pages that have changed, and would forget the entries of all others.
    """
    with open(Path(app.doctreedir) / "environment.pickle", "wb") as file:
        pickle.dump(app.env, file, pickle.HIGHEST_PROTOCOL)
