"""What the reader builds runs without `mha_lib`, and is multi-head attention.

`mha_course/built.py`, made from the cells tagged `build`, runs in a process of its own in which `mha_lib`
cannot be imported. What it defines is held against torch's layer, with its weights.
"""

import subprocess
import sys
from pathlib import Path

import built
import torch

import mha_lib
from mha_course import built as pages

ROOT = Path(__file__).resolve().parents[2]

BLOCKED = """
import sys
sys.modules["mha_lib"] = None
"""

CHECK = """
import torch as _torch
from torch import nn as _nn
from torch.testing import assert_close as _close

_torch.manual_seed(0)
BATCH, Q_LEN, K_LEN, HEADS, WIDTH, KDIM, VDIM = 2, 5, 7, 3, 33, 11, 13
_masks = {
    "none": None,
    "causal": my_causal_mask(Q_LEN, K_LEN),
    "lengths": my_lens_mask(_torch.tensor([3, 7]), K_LEN),
    "lengths per query": _torch.arange(K_LEN) < _torch.tensor([[1, 2, 3, 4, 5], [7, 6, 5, 4, 3]])[..., None],
    "both": my_lens_mask(_torch.tensor([3, 7]), K_LEN) & my_causal_mask(Q_LEN, K_LEN),
}


def _copy(ours, theirs):
    with _torch.no_grad():
        if isinstance(ours, MyMultiHead):
            for letter in "qkv":
                weight = getattr(theirs, letter + "_proj_weight")
                getattr(ours, letter + "_proj").weight.copy_(weight)
        else:
            for i, head in enumerate(ours.heads):
                rows = slice(i * WIDTH // HEADS, (i + 1) * WIDTH // HEADS)
                for letter in "qkv":
                    weight = getattr(theirs, letter + "_proj_weight")
                    getattr(head, letter + "_proj").weight.copy_(weight[rows])
        ours.out_proj.weight.copy_(theirs.out_proj.weight)


for _cls in (MyHeadLoop, MyMultiHead):
    _widths = {"kdim": KDIM, "vdim": VDIM}
    _theirs = _nn.MultiheadAttention(WIDTH, HEADS, bias=False, batch_first=True, **_widths)
    _ours = _cls(WIDTH, HEADS, kdim=KDIM, vdim=VDIM)
    _copy(_ours, _theirs)
    _inputs = [_torch.randn(BATCH, n, d) for n, d in ((Q_LEN, WIDTH), (K_LEN, KDIM), (K_LEN, VDIM))]
    for _name, _mask in _masks.items():
        _output, _weights = _ours(*_inputs, _mask)
        _hidden = None
        if _mask is not None:
            _full = _mask.expand(BATCH, Q_LEN, K_LEN)
            assert _full.any(-1).all(), _name
            _hidden = ~_full.repeat_interleave(HEADS, 0)
        _expected = _theirs(*_inputs, attn_mask=_hidden, average_attn_weights=False)
        _close(_output, _expected[0], atol=1e-5, rtol=1e-5)
        _close(_weights, _expected[1], atol=1e-5, rtol=1e-5)
    # A query that may see nothing gets zeros, where torch's layer gives NaN.
    _output, _weights = _ours(*_inputs, my_lens_mask(_torch.tensor([0, 4]), K_LEN))
    assert (_weights[0] == 0).all() and (_output[0] == 0).all()
    assert _output.isfinite().all()

_scores = _torch.randn(2, 3, 5)
_close(my_masked_softmax(_scores, None), _scores.softmax(-1))
print("all equal")
"""


def run(source, folder):
    command = [sys.executable, "-I", "-c", source]
    return subprocess.run(command, capture_output=True, text=True, cwd=folder, check=False)


BUILT = (ROOT / "mha_course" / "built.py").read_text(encoding="utf-8")


def test_the_module_is_what_the_pages_build(capsys, monkeypatch):
    assert built.main(["--check"]) == 0
    monkeypatch.setattr(built, "TARGET", ROOT / "README.md")
    assert built.main(["--check"]) == 1
    assert "run python tools/built.py" in capsys.readouterr().out


def test_what_the_reader_built_equals_torchs_layer(tmp_path):
    found = run(BLOCKED + BUILT + CHECK, tmp_path)
    assert found.stdout.endswith("all equal\n"), found.stderr


def test_a_fault_in_what_the_reader_built_is_noticed(tmp_path):
    """The comparison can fail: a missing scale, and a mask that means the opposite."""
    for old, new in ((".softmax(-1)", ".softmax(-2)"), ("sqrt(", "abs(")):
        assert old in BUILT
        found = run(BLOCKED + BUILT.replace(old, new) + CHECK, tmp_path)
        assert "all equal" not in found.stdout, (old, new)
        assert "AssertionError" in found.stderr, found.stderr


def test_nothing_built_leans_on_the_library(tmp_path):
    assert "ModuleNotFoundError" in run(BLOCKED + "import mha_lib", tmp_path).stderr


def test_each_piece_equals_the_librarys():
    """The checkers of the pieces take what is built for right, so it is held against the library here."""
    lens, per_query = torch.tensor([3, 0, 7]), torch.tensor([[1, 2], [0, 7], [3, 3]])
    query, key, value = torch.randn(3, 2, 5), torch.randn(3, 7, 5), torch.randn(3, 7, 11)
    mask = mha_lib.valid_lens_mask(per_query, 7)
    pooled = mha_lib.attention_pooling(mha_lib.dot_product_score(query[0], key[0]), value[0])
    for mine, library in (
        (pages.my_lens_mask(lens, 7), mha_lib.valid_lens_mask(lens, 7)),
        (pages.my_causal_mask(2, 7), mha_lib.causal_mask(2, 7)),
        (pages.my_masked_softmax(query @ key.mT, mask), mha_lib.masked_softmax(query @ key.mT, mask)),
        (pages.my_pooling(query[0], key[0], value[0]), pooled),
        (pages.my_attention(query, key, value, mask), mha_lib.dot_product_attention(query, key, value, mask)),
        (pages.MyPositions(10, 13)(query.new_zeros(2, 7, 10))[1], mha_lib.sinusoidal_encoding(7, 10)),
    ):
        torch.testing.assert_close(mine, library)
