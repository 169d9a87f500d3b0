"""The widgets' Python side: traits, what is stored for the browser, what stands in for it."""

import base64
import json
import math
import re
import sys
import types
from io import BytesIO

import numpy as np
import pytest
import torch
import traitlets
from PIL import Image

from mha_lib import plots, prune_heads
from mha_lib.attention import MultiHeadAttention
from mha_lib.widgets import (
    HeadExample,
    HeadExplorer,
    Question,
    Quiz,
    _base,
    widget_sources,
)

TOKENS = ["to", "be", "or", "not", "be"]


def layer(num_heads=2, embed_dim=12, **options):
    torch.manual_seed(num_heads)
    return MultiHeadAttention(embed_dim, num_heads, **options)


@pytest.fixture
def sentence():
    return HeadExample(
        "sentence",
        TOKENS,
        torch.randn(5, 12, generator=torch.Generator().manual_seed(0)),
        layer(),
    )


@pytest.fixture
def trained():
    generator = torch.Generator().manual_seed(1)
    x = {heads: torch.randn(7, 12, generator=generator) for heads in (1, 2, 4)}
    return HeadExample(
        "trained",
        list("abcdefg"),
        x,
        {heads: layer(heads, bias=True) for heads in x},
        "a *note*",
    )


@pytest.fixture
def explorer(sentence, trained):
    return HeadExplorer([sentence, trained])


def weights_by_loops(layer, x, num_heads, valid_len, is_causal):
    """Attention weights of one sequence in plain Python, from the matrices of the layer."""
    project = lambda linear: (x.double() @ linear.weight.double().T).tolist()  # noqa: E731
    query, key = project(layer.q_proj), project(layer.k_proj)
    width = x.shape[-1] // num_heads
    maps = []
    for head in range(num_heads):
        own = slice(head * width, (head + 1) * width)
        rows = []
        for i in range(len(x)):
            seen = [j for j in range(valid_len) if not is_causal or j <= i]
            score = {
                j: sum(a * b for a, b in zip(query[i][own], key[j][own], strict=True))
                for j in seen
            }
            total = sum(math.exp(s / math.sqrt(width)) for s in score.values())
            rows.append(
                [
                    math.exp(score[j] / math.sqrt(width)) / total if j in score else 0.0
                    for j in range(len(x))
                ]
            )
        maps.append(rows)
    return torch.tensor(maps, dtype=torch.float64)


@pytest.mark.parametrize("num_heads", [1, 2, 3, 4, 6, 12])
@pytest.mark.parametrize(
    ("valid_len", "is_causal"),
    [(5, False), (3, False), (5, True), (2, True), (0, False)],
)
def test_weights_are_those_of_the_layer_cut_into_heads(
    sentence, num_heads, valid_len, is_causal
):
    explorer = HeadExplorer(
        [sentence], num_heads=num_heads, valid_len=valid_len, is_causal=is_causal
    )
    expected = weights_by_loops(
        sentence.layers, sentence.x, num_heads, valid_len, is_causal
    )
    torch.testing.assert_close(explorer.weights().double(), expected, atol=1e-6, rtol=0)


def test_each_number_of_heads_has_its_own_trained_layer(trained):
    explorer = HeadExplorer([trained], num_heads=4)
    x = trained.x[4][None]
    torch.testing.assert_close(
        explorer.weights(), trained.layers[4](x, x, x)[1][0].detach()
    )


def test_the_stages_follow_from_one_another(explorer):
    explorer.num_heads, explorer.valid_len, explorer.is_causal = 3, 4, True
    shown = {}
    for explorer.stage in ("scores", "masked", "weights", "output"):
        shown[explorer.stage] = explorer.shown()
    visible = torch.arange(5) < 4
    visible = visible & torch.ones(5, 5).tril().bool()
    assert torch.equal(shown["masked"].isfinite(), visible.expand(3, 5, 5))
    assert torch.equal(shown["masked"][:, visible], shown["scores"][:, visible])
    torch.testing.assert_close(shown["masked"].softmax(-1), shown["weights"])
    torch.testing.assert_close(shown["weights"], explorer.weights())
    layer = explorer._examples["sentence"].layer(3)
    value = layer.split_heads(layer.v_proj(explorer._examples["sentence"].input(3)))[
        0
    ].detach()
    torch.testing.assert_close(shown["output"], shown["weights"] @ value)


def test_the_stored_numbers_are_torch_s_float32_projections(
    explorer, sentence, trained
):
    first, second = explorer.get_state()["examples"]
    [version] = first["versions"]
    assert version["num_heads"] == [1, 2, 3, 4, 6, 12]
    assert version["parameters"] == 4 * 12**2
    assert [v["num_heads"] for v in second["versions"]] == [[1], [2], [4]]
    assert {v["parameters"] for v in second["versions"]} == {4 * 12**2 + 4 * 12}
    stored = np.frombuffer(base64.b64decode(version["key"]), "<f4").reshape(5, 12)
    np.testing.assert_array_equal(
        stored, sentence.layers.k_proj(sentence.x).detach().numpy()
    )
    stored = np.frombuffer(
        base64.b64decode(second["versions"][2]["value"]), "<f4"
    ).reshape(7, 12)
    np.testing.assert_array_equal(
        stored, trained.layers[4].v_proj(trained.x[4]).detach().numpy()
    )


def test_a_page_stays_small():
    x = {heads: torch.randn(12, 32) for heads in (1, 2, 4, 8)}
    trained = HeadExample(
        "trained", list("abcdefghijkl"), x, {h: layer(h, embed_dim=32) for h in x}
    )
    sentence = HeadExample(
        "sentence", list("abcdefghij"), torch.randn(10, 32), layer(4, embed_dim=32)
    )
    assert len(json.dumps(HeadExplorer([sentence, trained]).get_state())) < 90_000


def test_a_change_of_example_takes_the_nearest_setting(explorer):
    explorer.num_heads, explorer.head = 6, 5
    explorer.example = "trained"
    assert (explorer.num_heads, explorer.head, explorer.valid_len) == (4, 3, 7), (
        "all tokens stay visible"
    )
    explorer.valid_len = 6
    explorer.example = "sentence"
    assert (explorer.num_heads, explorer.valid_len) == (4, 5)
    explorer.valid_len = 3
    explorer.example = "trained"
    assert explorer.valid_len == 3


def test_a_change_from_the_browser_arrives_as_one(explorer):
    explorer.set_state(
        {"example": "trained", "num_heads": 4, "head": 3, "valid_len": 7}
    )
    assert (
        explorer.example,
        explorer.num_heads,
        explorer.head,
        explorer.valid_len,
    ) == ("trained", 4, 3, 7)
    seen = []
    explorer.observe(lambda change: seen.append(change.new), "num_heads")
    explorer.set_state({"num_heads": 2})
    assert seen == [2]
    assert explorer.head == 1


def test_the_difference_from_the_browser_is_that_of_what_it_drew(explorer):
    assert explorer.browser_difference() is None
    report = {"example": "trained", "num_heads": 2, "valid_len": 5, "is_causal": True}
    weights = explorer._weights(**report)
    explorer.browser_report = {**report, "weights": weights.tolist()}
    assert explorer.browser_difference() < 1e-7
    weights[1, 3, 2] += 0.25
    explorer.browser_report = {**report, "weights": weights.tolist()}
    assert explorer.browser_difference() == pytest.approx(0.25)


@pytest.mark.parametrize(
    ("trait", "value", "rule"),
    [
        ("num_heads", 5, r"num_heads must divide embed_dim=12 .* got 5"),
        ("num_heads", 0, r"num_heads must divide .* got 0"),
        ("num_heads", True, r"num_heads must divide .* got True"),
        ("valid_len", 6, r"valid_len must lie in 0\.\.5, got 6"),
        ("valid_len", -1, r"valid_len must lie in 0\.\.5, got -1"),
        ("head", 2, r"head must lie in 0\.\.1, got 2"),
        (
            "stage",
            "softmax",
            r"stage must be one of \['scores', 'masked', 'weights', 'output'\], got 'softmax'",
        ),
        (
            "example",
            "other",
            r"example must be one of \['sentence', 'trained'\], got 'other'",
        ),
    ],
)
def test_a_wrong_trait_is_refused_and_changes_nothing(
    explorer, sentence, trait, value, rule
):
    before = getattr(explorer, trait)
    with pytest.raises(ValueError, match=rule):
        setattr(explorer, trait, value)
    with pytest.raises(ValueError, match=rule):
        explorer.set_state({trait: value})
    assert getattr(explorer, trait) == before
    if trait != "example":
        with pytest.raises(ValueError, match=rule):
            HeadExplorer(
                [sentence, sentence_twin(sentence, "trained")], **{trait: value}
            )


def sentence_twin(example, label):
    return HeadExample(label, example.tokens, example.x, example.layers)


def test_a_trait_of_another_type_is_refused(explorer):
    for kind in (TypeError, traitlets.TraitError):
        with pytest.raises(kind, match=r"num_heads.*int.*'4'"):
            explorer.num_heads = "4"
        with pytest.raises(kind, match=r"is_causal.*bool.*'yes'"):
            explorer.is_causal = "yes"
    assert (explorer.num_heads, explorer.is_causal) != ("4", "yes")


@pytest.mark.parametrize(
    ("argument", "value"),
    [
        ("example", ["a"]),
        ("num_heads", "4"),
        ("valid_len", 2.5),
        ("is_causal", 1.5),
        ("stage", 3),
        ("head", "0"),
    ],
)
def test_an_argument_of_another_type_is_refused(sentence, argument, value):
    with pytest.raises(
        TypeError, match=rf"{argument}.*expected.*{type(value).__name__}"
    ):
        HeadExplorer([sentence], **{argument: value})


def test_a_pruned_layer_is_refused(sentence):
    """Its heads do not fill the width, so the browser would cut them in the wrong places."""
    pruned = prune_heads(sentence.layers, [0])
    for layers in (pruned, {pruned.num_heads: pruned}):
        with pytest.raises(
            ValueError, match=r"layers.*must fill embed_dim=.*got num_heads="
        ):
            HeadExample("pruned", sentence.tokens, sentence.x, layers)


@pytest.mark.parametrize(
    ("make", "argument"),
    [
        (lambda: HeadExplorer(5), "examples"),
        (lambda: Quiz(5), "questions"),
        (lambda: Question("how many?", 5, 1), "choices"),
        (lambda: Question("how many?", [1, 2], 1, feedback=5), "feedback"),
        (
            lambda: HeadExample("a", 5, torch.ones(1, 6), MultiHeadAttention(6, 3)),
            "tokens",
        ),
    ],
)
def test_what_is_no_sequence_is_refused_by_name(make, argument):
    with pytest.raises(TypeError, match=rf"{argument} must be .*5"):
        make()


X = torch.zeros(5, 12)


@pytest.mark.parametrize(
    ("changes", "error", "rule"),
    [
        ({"label": 3}, TypeError, "label must be a str, got 3"),
        ({"label": ""}, ValueError, "label must not be empty"),
        ({"note": None}, TypeError, "note must be a str, got None"),
        ({"tokens": "to be"}, TypeError, "tokens must be a sequence of str"),
        ({"tokens": [1, 2]}, TypeError, "tokens must be a sequence of str"),
        ({"tokens": []}, ValueError, "tokens must hold 1 to 24 labels, got 0"),
        ({"tokens": ["a"] * 25}, ValueError, "tokens must hold 1 to 24 labels, got 25"),
        (
            {"layers": torch.nn.Linear(12, 12)},
            TypeError,
            "layers must be a MultiHeadAttention, got Linear",
        ),
        ({"layers": {}}, ValueError, "layers must hold at least one layer"),
        (
            {"layers": {3: layer(2)}},
            ValueError,
            r"layers\[3\] must have num_heads=3, got 2",
        ),
        (
            {"layers": {2: layer(2), 4: layer(4, embed_dim=16)}},
            ValueError,
            r"same embed_dim, got \[12, 16\]",
        ),
        (
            {"layers": layer(4, num_kv_heads=2)},
            ValueError,
            "as many key heads .* got num_kv_heads=2, num_heads=4",
        ),
        (
            {"layers": layer(2, kdim=6)},
            ValueError,
            r"equal embed_dim, kdim and vdim, got \(12, 6, 12\)",
        ),
        (
            {"layers": layer(2, embed_dim=66)},
            ValueError,
            "embed_dim of at most 64, got 66",
        ),
        ({"x": X.tolist()}, TypeError, "x must be a torch.Tensor, got list"),
        (
            {"x": X.double()},
            TypeError,
            "dtype of its layer, torch.float32, got torch.float64",
        ),
        (
            {"x": X[:4]},
            ValueError,
            r"x must have shape \(len=5, embed_dim=12\), got \(4, 12\)",
        ),
        ({"x": X[None]}, ValueError, r"got \(1, 5, 12\)"),
        ({"x": X * math.nan}, ValueError, "x must be finite"),
        (
            {"x": {3: X}, "layers": {2: layer()}},
            ValueError,
            r"x must have the keys of layers, \[2\], got \[3\]",
        ),
    ],
)
def test_an_example_that_cannot_be_shown_is_refused(changes, error, rule):
    arguments = {"label": "a", "tokens": TOKENS, "x": X, "layers": layer(), **changes}
    with pytest.raises(error, match=rule):
        HeadExample(**arguments)


def test_an_explorer_needs_examples_with_different_labels(sentence):
    with pytest.raises(ValueError, match=r"at least one entry.*got \[\]"):
        HeadExplorer([])
    with pytest.raises(ValueError, match="labels must differ, got"):
        HeadExplorer([sentence, sentence])
    with pytest.raises(
        TypeError, match=r"examples\[0\] must be a HeadExample, got str"
    ):
        HeadExplorer(["sentence"])
    with pytest.raises(ValueError, match="num_heads must be one of"):
        sentence.layer(5)


def test_text_and_figure_stand_in_for_the_explorer(explorer):
    data, metadata = explorer._repr_mimebundle_()
    assert metadata == {}
    assert (
        data["text/plain"]
        == "HeadExplorer(example='sentence', num_heads=2, head_dim=6)"
    )
    assert (
        data["application/vnd.jupyter.widget-view+json"]["model_id"]
        == explorer.model_id
    )
    image = Image.open(BytesIO(base64.b64decode(data["image/png"])))
    assert image.width > 300
    assert data == explorer._repr_mimebundle_()[0], (
        "the same state gives the same bytes"
    )
    explorer.num_heads = 4
    assert data["image/png"] != explorer._repr_mimebundle_()[0]["image/png"]


@pytest.mark.parametrize("stage", ["scores", "masked", "weights", "output"])
@pytest.mark.parametrize(("num_heads", "valid_len"), [(1, 5), (4, 3), (12, 5), (3, 0)])
def test_a_figure_has_a_map_for_each_head(explorer, stage, num_heads, valid_len):
    explorer.num_heads, explorer.valid_len, explorer.stage = num_heads, valid_len, stage
    maps = [axis for axis in explorer.figure().axes if axis.images]
    assert len(maps) == num_heads
    shown = np.ma.filled(maps[-1].images[0].get_array(), -math.inf)
    np.testing.assert_allclose(shown, explorer.shown()[-1].numpy(), atol=1e-6)


def test_colab_is_told_of_its_widget_manager(explorer, monkeypatch):
    output = types.SimpleNamespace(
        enable_custom_widget_manager=lambda: None,
        _widgets=types.SimpleNamespace(_installed_url="https://manager"),
    )
    monkeypatch.setitem(sys.modules, "google.colab.output", output)
    data, metadata = explorer._repr_mimebundle_()
    assert "image/png" in data
    view = metadata["application/vnd.jupyter.widget-view+json"]
    assert view["colab"]["custom_widget_manager"]["url"] == "https://manager"


def test_the_palette_is_that_of_the_figures():
    css = _base.compose_style("head_explorer.js")
    light = css[: css.index("html[data-theme")]
    colors = dict(re.findall(r"--mha-([\w-]+): (#\w{6});", light))
    assert [colors[role] for role in ("query", "key", "value")] == [
        plots.QUERY,
        plots.KEY,
        plots.VALUE,
    ]
    assert tuple(colors[f"head-{head}"] for head in range(8)) == tuple(plots.HEADS)


def test_a_widget_stores_the_code_that_the_package_has_now(explorer):
    quiz = Quiz([Question("Which?", ["a", "b"], 0)])
    sources = widget_sources()
    assert set(sources) == {
        widget.get_state()["_anywidget_id"] for widget in (explorer, quiz)
    }
    for widget in (explorer, quiz):
        state = widget.get_state()
        assert {"_esm": state["_esm"], "_css": state["_css"]} == sources[
            state["_anywidget_id"]
        ]


def test_a_composed_module_needs_no_other_file():
    for source in widget_sources().values():
        code = source["_esm"]
        assert not re.search(r"^\s*import\b", code, re.MULTILINE)
        assert len(re.findall(r"^export default", code, re.MULTILINE)) == 1
        assert "</script" not in code.lower()
        assert "<!--" not in code
        assert not re.search(r"\b(fetch|XMLHttpRequest|https?:)", code), (
            "nothing is asked from the network"
        )
    assert (
        widget_sources()["mha_lib.widgets.head_explorer.HeadExplorer"]["_esm"].count(
            "function splitHeads"
        )
        == 1
    )


def test_an_import_that_cannot_be_composed_is_refused(tmp_path, monkeypatch):
    monkeypatch.setattr(_base, "_JS", tmp_path)
    (tmp_path / "shared.js").write_text("export const a = 1;\n")
    for line in (
        'import * as shared from "./shared.js";',
        'import { a as b } from "./shared.js";',
        'import d from "d";',
    ):
        (tmp_path / "widget.js").write_text(f"{line}\nexport default {{}};\n")
        with pytest.raises(ValueError, match=r"widget\.js may only import"):
            _base.compose_module("widget.js")
    (tmp_path / "widget.js").write_text(
        'import { a } from "./shared.js";\n// why\nexport default { a };\n'
    )
    assert (
        _base.compose_module("widget.js")
        == "export const a = 1;\n\nexport default { a };\n"
    )


# Quiz


def test_a_question_finds_its_answer_by_value_or_by_index():
    assert Question("?", ["a", "b"], "b").answer_index == 1
    assert Question("?", ["a", "b"], 0).answer_index == 0
    assert Question("?", [16, 32, 64], 2 * 16).answer_index == 1
    assert Question("?", [16, 32, 64], torch.tensor(64).sum()).answer_index == 2
    assert Question("?", [0.25, 0.5], np.float64(0.5)).answer_index == 1
    assert Question("?", [True, False], 1 > 2).answer_index == 1
    assert Question("?", [1, True], True).answer_index == 1


@pytest.mark.parametrize(
    ("changes", "error", "rule"),
    [
        ({"text": None}, TypeError, "text must be a str, got None"),
        ({"text": " "}, ValueError, "text must not be empty"),
        (
            {"choices": "ab"},
            TypeError,
            "choices must be a sequence of texts or numbers",
        ),
        (
            {"choices": [None, "a"]},
            TypeError,
            "choices must be a sequence of texts or numbers",
        ),
        ({"choices": ["a"]}, ValueError, "choices must hold at least two entries"),
        ({"choices": ["a", "a"]}, ValueError, "choices must all differ"),
        ({"choices": ["1", 1], "answer": 1}, ValueError, "choices must all differ"),
        (
            {"answer": 2},
            ValueError,
            r"an index in 0\.\.1, as all choices are texts, got 2",
        ),
        ({"answer": -1}, ValueError, "got -1"),
        (
            {"answer": "c"},
            ValueError,
            r"answer must be one of the choices \['a', 'b'\], got 'c'",
        ),
        (
            {"answer": None},
            TypeError,
            "answer must be a text, a number or an index, got None",
        ),
        (
            {"choices": [1, 2], "answer": 1.5},
            ValueError,
            r"answer must be one of the choices \[1, 2\], got 1.5",
        ),
        ({"choices": [1, 2], "answer": True}, ValueError, "got True"),
        (
            {"feedback": ["only one"]},
            ValueError,
            "feedback must hold 2 texts, as choices, got 1",
        ),
        (
            {"feedback": ["one", 2]},
            TypeError,
            "feedback must be a str or a sequence of str",
        ),
    ],
)
def test_a_question_that_cannot_be_asked_is_refused(changes, error, rule):
    with pytest.raises(error, match=rule):
        Question(**{"text": "Which?", "choices": ["a", "b"], "answer": "a", **changes})


@pytest.fixture
def quiz():
    return Quiz(
        [
            Question(
                "Is `a < b` *always* true?",
                ["no & never", "yes"],
                1,
                ["Look `<here>`.", "Right: 2 * 3 * 4."],
            ),
            Question("How many?", [16, 32], 2**4, "Count them."),
        ]
    )


def test_the_score_counts_right_answers(quiz):
    assert repr(quiz) == "Quiz(2 questions)"
    assert (quiz.chosen, quiz.score) == ([None, None], 0)
    quiz.set_state({"chosen": [1, 1]})
    assert quiz.score == 1
    quiz.chosen = [1, 0]
    assert quiz.score == 2


@pytest.mark.parametrize("chosen", [[0], [0, 2], [-1, 0], [0, 0, 0]])
def test_a_choice_that_is_not_there_is_refused(quiz, chosen):
    with pytest.raises(
        ValueError, match=r"chosen must hold None or an index below \[2, 2\]"
    ):
        quiz.chosen = chosen
    assert quiz.chosen == [None, None]


def test_a_quiz_needs_different_questions():
    question = Question("?", ["a", "b"], 0)
    with pytest.raises(ValueError, match="at least one entry"):
        Quiz([])
    with pytest.raises(ValueError, match="texts must differ"):
        Quiz([question, question])
    with pytest.raises(TypeError, match=r"questions\[1\] must be a Question, got str"):
        Quiz([question, "?"])


def test_a_quiz_can_be_read_without_scripts(quiz):
    data, _ = quiz._repr_mimebundle_()
    assert data["text/plain"] == "Quiz(2 questions)"
    assert "image/png" not in data
    html = data["text/html"]
    assert "<p>Is <code>a &lt; b</code> <em>always</em> true?</p>" in html
    assert "<li>no &amp; never</li><li>yes</li>" in html
    assert (
        "<details><summary>Answer</summary><p>yes. Right: 2 * 3 * 4.</p></details>"
        in html
    )
    assert "<p>16. Count them.</p>" in html
    assert "Look" not in html, "feedback on a wrong choice would confuse here"
