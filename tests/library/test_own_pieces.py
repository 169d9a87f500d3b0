"""What a reader wrote is used by the page, in any style, and an error says whose code took part."""

import nbformat
import pytest
import torch
from exercise_cells import CHAPTERS, pieces_of
from IPython.core.interactiveshell import InteractiveShell

from mha_course import _resume as resume
from mha_course import built, exercises
from mha_course.exercises import own

PIECES = {name: page.stem for page in sorted(CHAPTERS.glob("*.ipynb")) for name in pieces_of(page.stem)}
# Correct answers in styles other than the solution's.
OTHERS = {
    "my_pooling": """
def my_pooling(query, key, value):
    weights = torch.nn.functional.softmax(torch.einsum("qd,kd->qk", query, key), dim=1)
    return torch.einsum("qk,kv->qv", weights, value), weights""",
    "my_masked_softmax": """
def my_masked_softmax(scores, mask=None):
    if mask is None:
        mask = torch.ones_like(scores, dtype=torch.bool)
    weights = torch.where(mask, scores, torch.finfo(scores.dtype).min).softmax(dim=-1)
    return torch.where(mask, weights, 0)""",
    "my_lens_mask": """
def my_lens_mask(valid_lens, k_len):
    lens = valid_lens.view(len(valid_lens), -1)
    rows = [[[j < int(n) for j in range(k_len)] for n in sample] for sample in lens]
    return torch.tensor(rows)""",
    "my_causal_mask": """
def my_causal_mask(q_len, k_len=None):
    k_len = k_len or q_len
    return torch.ones(q_len, k_len).tril(k_len - q_len).bool()""",
    "my_attention": """
def my_attention(query, key, value, mask=None):
    scores = torch.einsum("...qd,...kd->...qk", query / query.shape[-1] ** 0.5, key)
    weights = my_masked_softmax(scores, mask)
    return torch.einsum("...qk,...kv->...qv", weights, value), weights""",
    "MyHead": """
class MyHead(torch.nn.Module):
    def __init__(self, embed_dim, head_dim, kdim=None, vdim=None):
        super().__init__()
        for name, width in (("q", embed_dim), ("k", kdim or embed_dim), ("v", vdim or embed_dim)):
            setattr(self, name + "_proj", torch.nn.Linear(width, head_dim, False))
    def forward(self, query, key, value, mask=None):
        return my_attention(self.q_proj(query), self.k_proj(key), self.v_proj(value), mask)""",
    "split_heads": """
def split_heads(x, num_heads):
    return torch.stack(x.chunk(num_heads, dim=-1), dim=1)""",
    "merge_heads": """
def merge_heads(x):
    return torch.cat(list(x.unbind(1)), dim=-1)""",
    "MyMultiHead": """
class MyMultiHead(torch.nn.Module):
    def __init__(self, embed_dim, num_heads, kdim=None, vdim=None, bias=False):
        super().__init__()
        widths = {"q": embed_dim, "k": kdim or embed_dim, "v": vdim or embed_dim, "out": embed_dim}
        for name, width in widths.items():
            setattr(self, name + "_proj", torch.nn.Linear(width, embed_dim, bias=bias))
        self.num_heads = num_heads
    def forward(self, query, key, value, mask=None):
        parts = self.q_proj(query), self.k_proj(key), self.v_proj(value)
        heads = zip(*(part.chunk(self.num_heads, -1) for part in parts))
        pairs = [my_attention(q, k, v, mask) for q, k, v in heads]
        heads, weights = zip(*pairs)
        return self.out_proj(torch.cat(heads, -1)), torch.stack(weights, 1)""",
    "MyPositions": """
class MyPositions(torch.nn.Module):
    def __init__(self, embed_dim, max_len):
        super().__init__()
        self.register_buffer("rows", encoding_by_loops(max_len, embed_dim)[None], persistent=False)
    def forward(self, x):
        return torch.add(x, self.rows.narrow(1, 0, x.shape[1]))""",
    "MyEncoderBlock": """
class MyEncoderBlock(torch.nn.Module):
    def __init__(self, embed_dim, num_heads, hidden_dim):
        super().__init__()
        for name in ("self_attention_norm", "feed_forward_norm"):
            self.add_module(name, torch.nn.LayerNorm([embed_dim]))
        self.feed_forward = MyFeedForward(embed_dim, hidden_dim=hidden_dim)
        self.self_attention = MyMultiHead(num_heads=num_heads, embed_dim=embed_dim, bias=True)
    def forward(self, x, mask=None):
        normed = self.self_attention_norm(x)
        found, _ = self.self_attention(query=normed, key=normed, value=normed, mask=mask)
        both = torch.add(x, found)
        return both + self.feed_forward(self.feed_forward_norm(both))""",
    "my_batch": """
def my_batch(tokens, batch_size, length, generator):
    starts = torch.randint(0, len(tokens) - length, (batch_size,), generator=generator).tolist()
    rows = [tokens[start : start + length + 1] for start in starts]
    return torch.stack([row[:-1] for row in rows]), torch.stack([row[1:] for row in rows])""",
    "my_write": """
@torch.no_grad()
def my_write(model, tokens, number, temperature=1.0, top_k=None, seed=0):
    generator, text = torch.Generator(), tokens.tolist()
    generator.manual_seed(seed)
    while len(text) < len(tokens) + number:
        logits = model(torch.tensor([text[-model.max_len:]]))[:, -1]
        chances = my_probabilities(logits, temperature=temperature, top_k=top_k)
        text += torch.multinomial(chances[0], num_samples=1, generator=generator).tolist()
    return torch.tensor(text)""",
    "my_cached_attention": """
def my_cached_attention(query, key, value, cache=None):
    if cache:
        key, value = (torch.cat(pair, -2) for pair in zip(cache, (key, value)))
    earlier = key.shape[-2] - query.shape[-2]
    seen = torch.arange(key.shape[-2]) <= torch.arange(query.shape[-2])[:, None] + earlier
    return my_attention(query, key, value, seen)[0], (key, value)""",
    "MyGPT": """
class MyGPT(MyGPT):
    def forward(self, tokens):
        x = self.embedding(tokens) + self.position_embedding.weight[: tokens.shape[1]]
        for block in self.blocks:
            x = block(x, torch.ones(2 * tokens.shape[1:]).tril().bool())
        return torch.nn.functional.linear(self.norm(x), self.output.weight)""",
    "my_probabilities": """
def my_probabilities(logits, temperature=1.0, top_k=None):
    kept = logits >= logits.sort(descending=True).values[..., (top_k or 0) - 1, None]
    weights = ((logits - logits.amax(-1, keepdim=True)) / temperature).exp() * kept
    return weights / weights.sum(-1, keepdim=True)""",
    "MySwiGLU": """
class MySwiGLU(MySwiGLU):
    forward = lambda self, x: self.down_proj(self.up_proj(x) * nn.functional.silu(self.gate_proj(x)))""",
    "my_dequantize": """
def my_dequantize(scale, least, packed):
    numbers = torch.empty(len(packed), 32)
    numbers[:, :16], numbers[:, 16:] = packed % 16, packed // 16
    return least + numbers * scale""",
    "MyGroupedHeads": """
class MyGroupedHeads(MyGroupedHeads):
    def forward(self, query, key, value, mask=None):
        q = my_turn(split_heads(self.q_proj(query), self.num_heads), self.base)
        k = my_turn(split_heads(self.k_proj(key), self.num_kv_heads), self.base)
        v = split_heads(self.v_proj(value), self.num_kv_heads)
        shared = torch.arange(self.num_heads) // (self.num_heads // self.num_kv_heads)
        heads, weights = my_attention(q, k[:, shared], v[:, shared], mask)
        return self.out_proj(merge_heads(heads)), weights""",
    "my_row_order": """
def my_row_order(matrix, num_heads):
    return torch.cat([torch.cat((head[0::2], head[1::2])) for head in matrix.chunk(num_heads)])""",
}


def space():
    """The names that a page has when a piece is written: torch, and the pieces before it."""
    return {"torch": torch, "nn": torch.nn} | {name: getattr(built, name) for name in built.__all__}


def run_solution(name, names):
    exec(pieces_of(PIECES[name])[name]["stub"].source.split("\n\n\n")[0], names)  # noqa: S102, its imports
    if "solution" not in names:
        names["solution"] = own.solution
    exec(pieces_of(PIECES[name])[name]["solution"].source, names)  # noqa: S102
    return names[name]


@pytest.mark.parametrize("name", PIECES)
def test_an_accepted_answer_is_not_replaced_and_a_stub_is(name, capsys):
    names = space()
    exec(OTHERS[name], names)  # noqa: S102
    mine = names[name]
    assert run_solution(name, names) is mine
    assert "was accepted" in capsys.readouterr().out
    names = space()
    exec(pieces_of(PIECES[name])[name]["stub"].source, names)  # noqa: S102
    stub = names[name]
    solved = run_solution(name, names)
    assert solved is not stub
    assert run_solution(name, names) is not solved  # the page's own is defined again
    assert capsys.readouterr().out == ""


@pytest.fixture
def shell():
    """An IPython without a terminal, which tells of errors as a page does."""
    shell = InteractiveShell.instance()
    for explain in (own.explain_error, resume.explain_missing_names):
        shell.events.register("post_run_cell", explain)
    shell.user_ns.update(space())
    yield shell
    for explain in (own.explain_error, resume.explain_missing_names):
        shell.events.unregister("post_run_cell", explain)
    InteractiveShell.clear_instance()


def said(shell, capsys, *cells):
    for cell in cells:
        shell.run_cell(cell)
    return [
        line
        for line in capsys.readouterr().out.splitlines()
        if "mha_course.built" in line or "still a stub" in line
    ]


def test_a_cell_that_fails_says_which_piece_it_used(shell, capsys):
    stub = pieces_of("02_scoring_functions")["my_attention"]["stub"].source
    [line] = said(shell, capsys, stub, "output, weights = my_attention(*3 * [torch.ones(2, 3)])")
    assert line.startswith("`my_attention` is still a stub")
    wrong = "def my_attention(query, key, value, mask=None):\n    return query @ key"
    within = "def mine(x):\n    return my_attention(x, x, x)"
    [line] = said(shell, capsys, wrong, within, "mine(torch.ones(2, 3))")
    assert line.startswith("Your `my_attention` took part in this.")
    [line] = said(shell, capsys, "del my_attention", "my_attention(1, 2, 3)")
    assert line.startswith("  or go on with `from mha_course.built import my_attention`")
    assert said(shell, capsys, "1 / 0", "1 / 1", "this is no Python") == []


def test_a_class_is_a_stub_or_the_readers_but_not_what_the_page_shows_complete(shell, capsys):
    stub = pieces_of("03_multi_head_attention")["MyHead"]["stub"].source
    [line] = said(shell, capsys, stub, "MyHead(12, 4)(1)")
    assert line.startswith("`MyHead` is still a stub")
    notebook = nbformat.read(CHAPTERS / "03_multi_head_attention.ipynb", as_version=4)
    [complete] = [cell.source for cell in notebook.cells if cell.id == "build-loop"]
    shell.user_ns["MyHead"] = built.MyHead
    assert said(shell, capsys, complete, "MyHeadLoop(12, 3)(1, 2, 3)") == []
    wrong = complete.replace("dim=1", "dim=9")
    [line] = said(shell, capsys, wrong, "MyHeadLoop(12, 3)(*3 * [torch.ones(1, 2, 12)])")
    assert line.startswith("Your `MyHeadLoop` took part in this.")


def test_the_stubs_of_classes_are_told_what_to_write_first():
    for name in ("MyHead", "MyMultiHead", "MyPositions"):
        names, piece = space() | vars(exercises), pieces_of(PIECES[name])[name]
        exec(piece["stub"].source, names)  # noqa: S102
        missing = "registers no table" if name == "MyPositions" else "makes no `q_proj`"
        told = f"the class is not finished: `__init__` {missing}. Write it there first, then `forward`."
        assert eval(piece["check"].source, names).message == f"Not yet: {told}"  # noqa: S307
