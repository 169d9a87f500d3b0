"""The reader's GPT is the library's GPT-2; the file to take home trains, writes, and says what is wrong."""

import ast
import contextlib
import copy
import re
import runpy
import subprocess
import sys

import pytest
import torch
from exercise_cells import read
from safetensors.torch import save_file

from mha_course._my_gpt import compute_on
from mha_course._take_home import take_home
from mha_course.built import MyGPT, my_loss, my_write, train_gpt
from mha_course.experiments import load_experiment
from mha_course.widgets.writer import _check_model
from mha_lib import generate

TEXT = "the old baker's sailors near the teacher are happy in the station. " * 30
# As on a machine that has torch but neither of the course's packages.
ALONE = """import runpy, sys
sys.modules |= dict.fromkeys(["mha_lib", "mha_course", "numpy"])
runpy.run_path(sys.argv.pop(1), run_name="__main__")"""


@pytest.fixture
def home(tmp_path):
    """The file to take home, as the build of the book writes it."""
    (tmp_path / "my_gpt.py").write_text(take_home({}).text, encoding="utf-8")
    return str(tmp_path / "my_gpt.py")


@pytest.mark.parametrize("sizes", [(11, 6, 3, 1, 5), (7, 10, 2, 3, 13)])
def test_the_readers_model_is_gpt_2(sizes):
    torch.manual_seed(0)
    model = MyGPT(*sizes)
    library = _check_model(model)
    tokens, new = torch.randint(sizes[0], (3, sizes[-1])), sizes[-1] - 2
    torch.testing.assert_close(model(tokens), library(tokens)[1])
    # With the same seed, both draw the same text from the same probabilities.
    for options in ({"top_k": 1}, {"temperature": 0.7}, {"temperature": 2.0, "top_k": 3}):
        drawn = {"temperature": 1.0, "generator": torch.Generator().manual_seed(5)}
        theirs = generate(library, tokens[:1, :2], max_new=new, **drawn | options)[0][0, 0]
        assert torch.equal(my_write(model, tokens[0, :2], new, seed=5, **options)[2:], theirs)


def test_the_model_with_its_training_and_the_file_can_be_read_in_one_sitting():
    asked = ("text", "batch", "write-MyGPT-stub", "write-MyGPT-check", "train-code", "loss-code", "run")
    cells = [cell.source for cell in read("07_gpt") if cell.id in asked]
    assert sum(bool(line.strip()) for cell in cells for line in cell.splitlines()) <= 90
    nodes = [node for node in ast.walk(ast.parse(take_home({}).text)) if isinstance(node, ast.stmt)]
    texts = [node for node in nodes if isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant)]
    assert len({node.lineno for node in nodes} - {node.lineno for node in texts}) <= 200  # without docstrings


def test_the_file_trains_and_writes_with_torch_alone(tmp_path, home):
    """Also where the prompt is far longer than what the model sees."""
    (tmp_path / "text.txt").write_text(TEXT.replace("old", "ältere"), encoding="utf-8")
    prompt = "the ä" * 2000
    options = ["text.txt", "--prompt", prompt, "--steps", "100"]
    command = [sys.executable, "-X", "utf8", "-W", "ignore", "-c", ALONE, home, *options]
    told = subprocess.run(command, cwd=tmp_path, capture_output=True, encoding="utf-8", check=False)
    assert told.returncode == 0, told.stderr
    *losses, saved, written = told.stdout.split("\n", 11)
    assert saved == "Saved as my_gpt.pt."
    first, last = (float(line.split("held-out ")[1]) for line in (losses[0], losses[-1]))
    assert last < 0.8 * first
    assert written.startswith(prompt)
    assert len(written.removesuffix("\n")) == len(prompt) + 500


def test_the_saved_model_writes_without_training_again(tmp_path, home):
    (tmp_path / "text.txt").write_text(TEXT, encoding="utf-8")

    def said(*options):
        command = [sys.executable, "-W", "ignore", home, *options]
        done = subprocess.run(command, cwd=tmp_path, capture_output=True, encoding="utf-8", check=False)
        assert done.returncode == 0, done.stderr
        return done.stdout

    sizes = ["--steps", "100", "--width", "16", "--layers", "1", "--seed", "5", "--model", "small.pt"]
    trained = said("text.txt", "--prompt", "the old", *sizes)
    saved = torch.load(tmp_path / "small.pt", weights_only=True)
    assert saved["sizes"] == (len(set(TEXT)), 16, 4, 1, 64)
    again = said("--model", "small.pt", "--prompt", "the old", "--seed", "5")
    assert again == trained.partition("Saved as small.pt.\n")[2]
    others = [
        said("--model", "small.pt", *more)
        for more in (["--seed", "6"], ["--temperature", "3"], ["--top-k", "1"])
    ]
    assert len({again, *others}) == 4
    assert all(other.startswith(TEXT[:20]) for other in others)
    assert said("--model", "small.pt", "--top-k", "1", "--seed", "8") == others[-1]


def test_the_learning_rate_can_be_chosen(tmp_path, monkeypatch, capsys, home):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "text.txt").write_text(TEXT, encoding="utf-8")

    def said(*options):
        command = ["my_gpt.py", "text.txt", *options, "--steps", "100", "--width", "16", "--layers", "1"]
        monkeypatch.setattr(sys, "argv", command)
        runpy.run_path(home, run_name="__main__")
        return capsys.readouterr().out

    assert said() == said("--lr", "0.01")
    losses = re.findall(r": loss (\d\.\d\d)", said("--lr", "1e-9"))
    assert max(map(float, losses)) - min(map(float, losses)) < 0.2  # it has hardly moved


@pytest.mark.parametrize(("content", "options", "message"), [
    (None, [], "text.txt cannot be read: No such file or directory."),
    (b"\xef\xbb\xbfabc\n", [], "text.txt has 3 characters of text, and needs 650."),
    (b" \r\n" * 900, [], "text.txt has 0 characters of text, and needs 650."),
    ("Grüße ".encode("latin-1") * 200, [], "text.txt is not UTF-8: save it as plain text in UTF-8."),
    (TEXT.encode(), ["--prompt", ""], "The prompt is empty: give the model at least one character."),
    (TEXT.encode(), ["--prompt", "Zoë"], "The prompt has characters that the text lacks: ['Z', 'ë']."),
    (TEXT.encode(), ["--steps", "3"], "There must be at least 100 steps, and not 3."),
    (TEXT.encode(), ["--lr", "-1"], "The learning rate must be more than 0, and not -1.0."),
    (TEXT.encode(), ["--width", "30"], "The width must be a multiple of 4, and not 30."),
    (TEXT.encode(), ["--layers", "0"], "There must be at least 1 layer, and not 0."),
    (TEXT.encode(), ["--temperature", "0"], "The temperature must be more than 0, and not 0.0."),
    (TEXT.encode(), ["--top-k", "0"], "top-k must be at least 1, and not 0."),
])  # fmt: skip
def test_the_file_says_what_is_wrong_in_one_sentence(tmp_path, monkeypatch, home, content, options, message):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "argv", ["my_gpt.py", "text.txt", *options])
    if content is not None:
        (tmp_path / "text.txt").write_bytes(content)
    with pytest.raises(SystemExit, match=f"^{re.escape(message)}$"):
        runpy.run_path(home, run_name="__main__")


def test_without_a_text_there_must_be_a_saved_model(tmp_path, monkeypatch, home):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "argv", ["my_gpt.py"])
    message = "my_gpt.pt cannot be read: No such file or directory. Give a text to train on first."
    with pytest.raises(SystemExit, match=f"^{re.escape(message)}$"):
        runpy.run_path(home, run_name="__main__")


@pytest.mark.parametrize("is_told", [True, False])
def test_what_the_page_says_is_enough_to_train_on_another_device(is_told):
    """On the device without numbers, which needs no generator of its own, a step reaches its loss."""
    model, tokens = MyGPT(9, 12, 2, 1, 8).to("meta"), torch.arange(9).repeat(30).to("meta")
    error = "cannot be called on meta tensors" if is_told else "not on the expected device"
    for run in (lambda: next(train_gpt(model, tokens, steps=100)), lambda: my_loss(model, tokens)):
        told = torch.device("meta") if is_told else contextlib.nullcontext()
        with told, pytest.raises(RuntimeError, match=error):
            run()


# The cells of chapter 8 that look into the reader's GPT.
OWN_GPT = ("without-head", "own-gpt", "own-gpt-all")


def test_chapter_8_opens_the_readers_gpt_and_says_which_one_it_must_be(tmp_path, monkeypatch, capsys, home):
    monkeypatch.chdir(tmp_path)
    cells = [cell.source for cell in read("08_what_heads_learn") if cell.id in OWN_GPT]

    def shown():
        space = {"torch": torch, "copy": copy, "load_experiment": load_experiment, "RERUN": False}
        for cell in cells:
            exec(cell, space)  # noqa: S102
        return capsys.readouterr().out

    assert shown().startswith("the stored GPT: 1.28\n")
    save_file(MyGPT(118, 64, 4, 2, 64).state_dict(), "my_gpt.safetensors")
    assert shown().startswith("your GPT: ")
    # The file of `my_gpt.py`, with another text and other sizes.
    (tmp_path / "text.txt").write_text(TEXT.replace("sailors", "Matrosen"), encoding="utf-8")
    options = ["my_gpt.py", "text.txt", "--steps", "100", "--width", "16", "--layers", "1"]
    monkeypatch.setattr(sys, "argv", options)
    runpy.run_path(home, run_name="__main__")
    last = re.findall(r"held-out (\d\.\d\d)", capsys.readouterr().out)[-1]
    told = shown()
    assert told.startswith(f"your GPT: {last}\nwithout head 3 of layer 0: ")
    assert "without head 3 of layer 1" not in told
    (tmp_path / "my_gpt.pt").unlink()
    save_file(MyGPT(118, 32, 4, 3, 64).state_dict(), "my_gpt.safetensors")
    with pytest.raises(
        ValueError, match="^my_gpt.safetensors must be a GPT that `my_gpt.py` or chapter 7 has"
    ):
        shown()


# ------------------------------------------------------------------ of the reader's own pieces
SOFTMAX = """from mha_course.exercises import check_masked_softmax
import torch.nn.functional as F
import collections

CALLS = collections.Counter()


def my_masked_softmax(scores, mask=None):
    # It says when it is first called.
    if not CALLS["softmax"]:
        print("my softmax is called")
    CALLS["softmax"] += 1
    if mask is None:
        return F.softmax(scores, -1)
    return F.softmax(torch.where(mask, scores, -1e9), -1) * mask


print(my_masked_softmax(page_only))"""
WRITE = """from mha_course.built import my_probabilities


def my_write(model, tokens, number, temperature=1.0, top_k=None, seed=0):
    print("my write is called", CALLS["softmax"] > 100)
    generator = torch.Generator().manual_seed(seed)
    for _ in range(number):
        with torch.no_grad():
            logits = model(tokens[None, -model.max_len :])[0, -1]
        chances = my_probabilities(logits, temperature, top_k)
        tokens = torch.cat((tokens, torch.multinomial(chances, 1, generator=generator)))
    return tokens"""
BLOCK = """class MyEncoderBlock(MyEncoderBlock):
    def forward(self, x, mask=None):
        y = self.self_attention_norm(x)
        x = x + self.self_attention(y, y, y, mask)[0]
        return x + self.feed_forward(self.feed_forward_norm(x))"""
OWN = {"my_masked_softmax": SOFTMAX, "my_write": WRITE, "MyEncoderBlock": BLOCK}


def test_the_file_has_the_readers_pieces_and_says_at_its_head_whose_each_is(tmp_path):
    """It runs with torch alone, although the cells import the course, and try out what only a page has."""
    made = take_home(OWN)
    assert made.yours == ["my_masked_softmax", "MyEncoderBlock", "my_write"]
    head = " ".join(made.text.partition("import")[0].replace("#  ", "").split())
    assert "# Yours: my_masked_softmax, MyEncoderBlock, my_write. # The course's: my_causal_mask, " in head
    assert made.told().startswith(
        "`my_gpt.py` has your own `my_masked_softmax`, `MyEncoderBlock`, `my_write`."
    )
    assert "# It says when it is first called." in made.text
    (tmp_path / "mine.py").write_text(made.text, encoding="utf-8")
    (tmp_path / "text.txt").write_text(TEXT, encoding="utf-8")
    options = ["text.txt", "--steps", "100", "--width", "16", "--layers", "1"]
    command = [sys.executable, "-W", "ignore", "-c", ALONE, "mine.py", *options]
    told = subprocess.run(command, cwd=tmp_path, capture_output=True, encoding="utf-8", check=False)
    assert told.returncode == 0, told.stderr
    assert told.stdout.startswith("my softmax is called\nstep 10: loss")
    assert "Saved as my_gpt.pt.\nmy write is called True\n" in told.stdout


def test_a_piece_that_needs_its_page_stays_there_and_is_named():
    made = take_home({"my_write": WRITE, "MyGPT": "class MyGPT:\n    sizes = WIDTH, HEADS_OF_MINE"})
    assert made.yours == []
    assert made.left == {"my_write": ["CALLS"], "MyGPT": ["HEADS_OF_MINE", "WIDTH"]}
    assert made.text == take_home({}).text
    assert "Your `my_write` is not in it, because it uses `CALLS`, which only its page has." in made.told()


def test_pieces_that_the_file_does_not_need_are_left_out():
    made = take_home({"my_pooling": "def my_pooling(query, key, value):\n    return nothing"})
    assert (made.text, made.left) == (take_home({}).text, {})


def test_an_import_that_would_change_a_name_stays_in_its_piece():
    other = SOFTMAX.replace("import torch.nn.functional as F", "import math as torch_F\nimport torch.nn as F")
    text = take_home({"my_masked_softmax": other.replace("F.softmax", "F.functional.softmax")}).text
    assert text.count("\nimport torch.nn.functional as F\n") == 1
    assert text.index("\nimport torch.nn as F\n") > text.index("from torch import nn")
    compile(text, "my_gpt.py", "exec")


def test_all_is_made_on_the_device_that_is_asked_for(monkeypatch):
    """Without another device here: the one without numbers, and one that torch does not find."""
    try:
        compute_on("meta")
        assert torch.ones(2).device.type == MyGPT(9, 12, 2, 1, 8).output.weight.device.type == "meta"
    finally:
        torch.set_default_device("cpu")
    for missing in ("cuda:99", "nowhere"):
        with pytest.raises(SystemExit, match=f"^There is no device {missing} here: "):
            compute_on(missing)
    assert torch.ones(2).device.type == "cpu"
    # A draw on another device needs a generator of that device.
    monkeypatch.setattr(torch, "Generator", torch.Generator)
    monkeypatch.setattr(torch, "set_default_device", lambda device: None)
    compute_on("cuda")
    assert torch.Generator.args == ("cuda",)
