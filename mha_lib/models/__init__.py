"""Models built from the layers: an encoder–decoder, BERT, GPT-2, Llama, their files, and how they write.

No layer needs them. `mha_lib` offers their names too: `from mha_lib import Llama, generate`.
"""
