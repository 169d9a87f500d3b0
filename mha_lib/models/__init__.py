"""What is built from the layers: an encoder–decoder, BERT, GPT-2, Llama, their files, and how they write.

No layer needs it. `mha_lib` offers its public names too: `from mha_lib import Llama, generate`.
"""
