"""Train a small GPT on a text file, save it, and let it write. It needs torch, and nothing else.

    python my_gpt.py letters.txt --prompt "Dear "
    python my_gpt.py --temperature 0.5 --seed 3

The second line trains nothing: without a file, the model that was saved writes. Every piece was written in
a chapter of the course, whose code is free to use (MIT licence).
"""

import argparse
import functools
import sys
from pathlib import Path

import torch

# `_take_home.py` replaces this import with the pieces themselves.
from mha_course.built import MyGPT, my_loss, my_write, train_gpt

HEADS, LENGTH = 4, 64

parser = argparse.ArgumentParser(description=__doc__.partition(".")[0])
parser.add_argument("file", nargs="?", help="any text in UTF-8, to train on")
parser.add_argument("--model", default="my_gpt.pt", help="where the model is saved")
parser.add_argument("--prompt", help="what to continue; default: how the text begins")
parser.add_argument("--steps", type=int, default=10_000, help="at least 100")
parser.add_argument("--lr", type=float, default=0.01, help="the largest learning rate")
parser.add_argument("--width", type=int, default=64, help="numbers for each token")
parser.add_argument("--layers", type=int, default=2, help="blocks, one after another")
parser.add_argument("--seed", type=int, default=0, help="for training and writing")
parser.add_argument("--temperature", type=float, default=0.8, help="low is cautious")
parser.add_argument("--top-k", type=int, help="draw only from the k most probable")
parser.add_argument("--device", default="cpu", help="cpu, cuda, mps, ...")


def learned(asked):
    """Train a model on the file, and save it with its characters and its sizes."""
    try:
        text = Path(asked.file).read_text(encoding="utf-8-sig").strip()
    except UnicodeDecodeError:
        sys.exit(f"{asked.file} is not UTF-8: save it as plain text in UTF-8.")
    except OSError as error:
        sys.exit(f"{asked.file} cannot be read: {error.strerror}.")
    if len(text) < (least := 10 * (LENGTH + 1)):
        sys.exit(f"{asked.file} has {len(text)} characters of text, and needs {least}.")
    if asked.steps < 100:
        sys.exit(f"There must be at least 100 steps, and not {asked.steps}.")
    if asked.width < HEADS or asked.width % HEADS:
        sys.exit(f"The width must be a multiple of {HEADS}, and not {asked.width}.")
    if asked.layers < 1:
        sys.exit(f"There must be at least 1 layer, and not {asked.layers}.")
    numbers_of(asked.prompt or text[:1], characters := "".join(sorted(set(text))))
    tokens = numbers_of(text, characters)
    train, held_out = tokens.tensor_split([len(tokens) * 9 // 10])
    torch.manual_seed(asked.seed)
    sizes = len(characters), asked.width, HEADS, asked.layers, LENGTH
    model = MyGPT(*sizes)
    for step, loss in train_gpt(model, train, asked.steps, asked.lr, asked.seed):
        if step % (asked.steps // 10) == 0:
            told = f"step {step}: loss {loss:.2f}"
            print(f"{told}, held-out {my_loss(model, held_out):.2f}", flush=True)
    saved = {"characters": characters, "sizes": sizes, "begins": text[:20]}
    saved["held_out"] = text[len(train) :]
    torch.save(saved | {"weights": model.state_dict()}, asked.model)
    print(f"Saved as {asked.model}.")
    return saved, model


def opened(asked):
    """Open the model that was saved, perhaps from another device."""
    try:
        saved = torch.load(asked.model, map_location=asked.device, weights_only=True)
    except OSError as error:
        why = f"{asked.model} cannot be read: {error.strerror}."
        sys.exit(f"{why} Give a text to train on first.")
    model = MyGPT(*saved["sizes"])
    model.load_state_dict(saved["weights"])
    return saved, model


def numbers_of(text, characters):
    """The tokens of a text, (len,)."""
    if unseen := sorted(set(text) - set(characters)):
        sys.exit(f"The prompt has characters that the text lacks: {unseen}.")
    return torch.tensor([*map(characters.index, text)])


def compute_on(device):
    """Make new tensors on this device, and generators too, because a draw needs one of its own device."""
    try:
        torch.set_default_device(device)
        torch.zeros(1)
    except (RuntimeError, AssertionError, NotImplementedError) as error:
        torch.set_default_device("cpu")
        sys.exit(f"There is no device {device} here: {str(error).splitlines()[0]}")
    if torch.device(device).type not in ("cpu", "meta"):
        torch.Generator = functools.partial(torch.Generator, device)


def main():
    """Train or open a model, and let it continue the prompt."""
    asked = parser.parse_args()
    if asked.prompt == "":
        sys.exit("The prompt is empty: give the model at least one character.")
    for name, value in ("temperature", asked.temperature), ("learning rate", asked.lr):
        if value <= 0:
            sys.exit(f"The {name} must be more than 0, and not {value}.")
    if asked.top_k is not None and asked.top_k < 1:
        sys.exit(f"top-k must be at least 1, and not {asked.top_k}.")
    compute_on(asked.device)
    saved, model = learned(asked) if asked.file else opened(asked)
    characters = saved["characters"]
    start = numbers_of(asked.prompt or saved["begins"], characters)
    top_k = min(asked.top_k, len(characters)) if asked.top_k else None
    written = my_write(model, start, 500, asked.temperature, top_k, asked.seed)
    print("".join(characters[token] for token in written))


if __name__ == "__main__":
    main()
