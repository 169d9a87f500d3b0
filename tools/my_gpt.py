"""Train a small GPT on a text file, and let it write. It needs torch, and nothing else.

    python my_gpt.py letters.txt --prompt "Dear "

Every piece was written in a chapter of the course, whose code is free to use (MIT licence).
"""

import argparse
import sys
from pathlib import Path

import torch

# `tools/built.py` replaces this import with the pieces themselves.
from mha_course.built import MyGPT, my_loss, my_write, train_gpt

WIDTH, HEADS, LAYERS, LENGTH = 64, 4, 2, 64  # larger ones learn more, but more slowly

parser = argparse.ArgumentParser(description="Train a small GPT, and let it write.")
parser.add_argument("file", help="any text in UTF-8")
parser.add_argument("--prompt", help="what to continue; default: how the text begins")
parser.add_argument("--steps", type=int, default=10_000, help="at least 100")
asked = parser.parse_args()
try:
    text = Path(asked.file).read_text(encoding="utf-8-sig").strip()
except UnicodeDecodeError:
    sys.exit(f"{asked.file} is not UTF-8: save it as plain text in UTF-8.")
except OSError as error:
    sys.exit(f"{asked.file} cannot be read: {error.strerror}.")
if len(text) < (least := 10 * (LENGTH + 1)):
    sys.exit(f"{asked.file} has {len(text)} characters of text, and needs {least}.")
prompt = text[:20] if asked.prompt is None else asked.prompt
if not prompt:
    sys.exit("The prompt is empty: give the model at least one character.")
if unseen := sorted(set(prompt) - set(text)):
    sys.exit(f"The prompt has characters that the text lacks: {unseen}.")
if asked.steps < 100:
    sys.exit(f"There must be at least 100 steps, and not {asked.steps}.")
characters = sorted(set(text))
tokens, start = (torch.tensor([*map(characters.index, t)]) for t in (text, prompt))
train, held_out = tokens.tensor_split([len(tokens) * 9 // 10])
torch.manual_seed(0)
model = MyGPT(len(characters), WIDTH, HEADS, LAYERS, LENGTH)
for step, loss in train_gpt(model, train, asked.steps):
    if step % (asked.steps // 10) == 0:
        print(f"step {step}: loss {loss:.2f}, held-out {my_loss(model, held_out):.2f}")
print("".join(characters[token] for token in my_write(model, start, 500, 0.8)))
