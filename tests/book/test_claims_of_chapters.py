"""What chapters 4, 5 and *Positions in depth* say of functions and experiments, beside what cells assert."""

import math

import pytest
import torch
from exercise_cells import read
from torch import nn
from torch.testing import assert_close

from mha_course import built
from mha_course.experiments import load_experiment, load_script
from mha_course.notebook import set_seed
from mha_course.training import fit, predict
from mha_course.widgets import AlibiExplorer, PositionExplorer
from mha_lib.inspection import capture_attention
from mha_lib.masking import causal_mask
from mha_lib.multi_head import MultiHeadAttention
from mha_lib.positional import SinusoidalPositionalEncoding, sinusoidal_encoding
from mha_lib.relative import ShawScore, T5RelativeBias, alibi_bias, t5_buckets
from mha_lib.rotary import RotaryPositionalEncoding, rotary_angles
from mha_lib.scores import scaled_dot_product_score

BAG = {"mirrored", "three back", "latest capital"}
RELATIVE = ("rotary", "ALiBi", "T5", "Shaw")


@pytest.fixture(scope="module")
def positional():
    """What the cells of chapter 5 and its appendix define that write their functions out."""
    names = {
        "cell-6", "cell-18", "cell-32", "cell-63-check", "rotary-in-layer", "cell-70", "causal-ceiling",
    } | {"shaw-loops", "t5-loops", "stretch-code"}  # fmt: skip
    space = {"torch": torch, "nn": nn, "math": math, "assert_close": assert_close}
    space |= vars(built) | {"scaled_dot_product_score": scaled_dot_product_score}
    for cell in (*read("05_positional_encoding"), *read("appendix_rotary_details")):
        if cell.id in names:
            exec(cell.source, space)  # noqa: S102
            names.remove(cell.id)
    assert not names
    return space


@pytest.fixture(scope="module")
def positions():
    return load_experiment("positions")


# Chapter 5: the code that the page spells out computes what the library computes.


def test_a_step_is_a_rotation(positional):
    table, step = sinusoidal_encoding(100, 32), positional["step_matrix"]
    for offset in (1, 3, 40):
        assert_close(table[:-offset] @ step(offset, 32), table[offset:], atol=1e-5, rtol=0)
        assert_close(step(offset, 32) @ step(offset, 32).T, torch.eye(32), atol=1e-5, rtol=0)
    assert_close(step(3, 32) @ step(4, 32), step(7, 32), atol=1e-5, rtol=0)


def test_the_sampled_bag_is_the_counted_one(positional, positions):
    ceilings = positional["ceilings"]
    for task, first in positions.bounds["bag of visible tokens, by place"].items():
        assert_close(ceilings[task][: len(first)], torch.tensor(first), atol=0.01, rtol=0)


def test_positions_along_the_batch_know_no_order(positional):
    class OnTheBatchAxis(SinusoidalPositionalEncoding):
        def forward(self, x):
            return x + self.encoding[: x.shape[0]].unsqueeze(1)

    set_seed(0)
    tokens, order = torch.randint(8, (3, 12)), torch.randperm(12)
    kinds = OnTheBatchAxis, SinusoidalPositionalEncoding
    wrong, right = (positional["OneLayer"](make(32, 48)) for make in kinds)
    assert_close(wrong(tokens[:, order]), wrong(tokens)[:, order])
    assert not torch.allclose(wrong(tokens)[2], wrong(tokens[2:])[0], atol=1e-2)
    fit(right, load_script("positions").mirrored, steps=150, lr=2e-2)  # as the chapter does
    right_answers, moved = predict(right, tokens)[0], predict(right, tokens[:, order])[0]
    assert not torch.allclose(moved, right_answers[:, order], atol=1)
    assert_close(right_answers[2], predict(right, tokens[2:])[0, 0], atol=1e-4, rtol=0)


def test_rotary_attention_is_the_layer_and_alibi_knows_no_direction(positional):
    set_seed(0)
    attend, x = positional["attend_with_rotary"], torch.randn(2, 7, 32)
    layer = MultiHeadAttention(32, 4, rotary=RotaryPositionalEncoding(8))
    for mask in (None, causal_mask(7)):
        assert_close(attend(layer, x, rotary_angles(7, 8), mask), layer(x, x, x, mask)[0])
    layer, bias = MultiHeadAttention(32, 4), alibi_bias(4, 7)[None]
    both_ways = [layer(t, t, t, attn_bias=bias)[0] for t in (x, x.flip(1))]
    assert_close(both_ways[1].flip(1), both_ways[0])


def test_shaw_by_loops(positional):
    set_seed(0)
    shaw, query, key = ShawScore(8, max_distance=3), torch.randn(2, 4, 12, 8), torch.randn(2, 4, 12, 8)
    for b in range(2):
        for h in range(4):
            expected = positional["shaw_by_loops"](query[b, h], key[b, h], shaw.table)
            assert_close(shaw(query, key)[b, h], expected)
    x = torch.randn(2, 7, 32)
    assert MultiHeadAttention(32, 4, score=shaw)(x, x, x, is_causal=True)[1].shape == (2, 4, 7, 7)


def test_buckets_by_formula(positional):
    buckets = t5_buckets(200)
    for i in range(0, 200, 7):
        for j in range(200):
            after = 16 if j > i else 0  # keys after the query have buckets 16 to 31
            assert buckets[i, j] == after + positional["bucket_by_formula"](abs(j - i))
    trained, needed = (t5_buckets(n, bidirectional=False).unique() for n in (12, 48))
    assert (len(trained), len(needed)) == (12, 25)
    relative = T5RelativeBias(4)
    bias = relative(7)
    assert bias.shape == (1, 4, 7, 7)
    assert relative.table.numel() == 32 * 4
    assert bias[0, 2, 6, 1] == relative.table[5, 2]  # five back: bucket 5, head 2
    assert bias[0, 2, 1, 6] == relative.table[16 + 5, 2]  # five ahead


def test_stretched_frequencies_are_the_experiment_s(positional):
    script, stretched = load_script("beyond"), positional["stretched"]
    for way, expected in (
        (stretched("interpolated", 4), script.interpolated(4)),
        (stretched("NTK-aware", 4), script.ntk_aware(4)),
        (stretched("YaRN", 4), script.yarn(4, beta=4.0)),
        (stretched("YaRN", 4, beta=32), script.yarn(4)),
    ):
        assert_close(way.double(), expected, rtol=1e-5, atol=0)
    assert 5 < 32 / (2 * math.pi) < 5.2  # turns of the fastest pair
    # Every fourth position of an interpolated text coincides with a position of the short text.
    slow = torch.outer(torch.arange(0, 128, 4.0), stretched("interpolated", 4))
    assert_close(slow, rotary_angles(32, 16))


# Chapter 5: what the text tells a reader to try in a widget.


def test_position_explorer(positional):
    widget = PositionExplorer(position=12, column=6)
    table = positional["encoding_by_loops"](widget.num_positions, widget.embed_dim, widget.base)
    assert_close(table.double(), widget.numbers()["table"], atol=1e-6, rtol=0)
    similarity = widget.numbers()["similarity"]
    assert_close((table @ table[12]).double(), similarity, atol=1e-4, rtol=0)
    for position in (0, 17, 40):  # the peak of the dot products stays at offset 0
        assert (table @ table[position]).argmax() == position
    alone = table[:, :1]  # a sine without its cosine: elsewhere the product is larger
    assert (alone @ alone[3]).argmax() != 3


def test_alibi_explorer():
    far = AlibiExplorer(num_heads=8, length=512, needle=100).numbers()
    assert far["reaches"].tolist() == [16 * 2.0**head for head in range(8)]
    assert (far["score_after"] > 0).tolist() == [False] * 3 + [True] * 5


# Chapter 5: what the experiments found.


def test_encodings_at_the_trained_length(positions):
    right = {name: positions.results(name, "right") for name in positions.arms}
    exact = positions.bounds["bag of visible tokens"]
    assert {arm["seeds"] for arm in positions.arms.values()} == {5}
    for task in BAG:  # no positions: almost exactly the ceiling of a bag of tokens
        assert (right[f"{task}, none"] - exact[task]).abs().max() < 0.01
        for encoding in ("sinusoidal", "learned"):
            assert right[f"{task}, {encoding}"].min() > 0.999
    for encoding in RELATIVE:
        assert exact["mirrored"] + 0.01 < right[f"mirrored, {encoding}"].min()
        assert right[f"mirrored, {encoding}"].max() < 0.43
    for encoding in ("rotary", "T5", "Shaw"):
        assert right[f"three back, {encoding}"].min() > 0.999
        assert right[f"latest capital, {encoding}"].min() > 0.99
    assert right["three back, ALiBi"].max() < exact["three back"]


def test_more_steps_and_steeper_slopes(positions):
    exact = positions.bounds["bag of visible tokens"]["three back"]
    short, long = (positions.results(f"mirrored, rotary{more}", "right") for more in ("", ", 2000 steps"))
    assert short.median() < long.median()
    assert (positions.results("three back, ALiBi, 2000 steps", "right") < exact).all()
    slopes = ("", ", slopes x2", ", slopes x4")
    once, twice, four = (positions.results(f"latest capital, ALiBi{s}", "right") for s in slopes)
    assert once.median() < twice.median() < four.min()
    assert positions.results("three back, ALiBi, slopes x4", "right").min() > exact + 0.05
    longer = load_experiment("alibi_longer")
    more = [longer.results(f"slopes x{factor}, 2000 steps", "right") for factor in (1, 2, 4)]
    assert min(shares.min() for shares in more) > 0.996
    assert more[0].max() < more[2].min()


def test_encodings_beyond_the_trained_length(positions):
    def beyond(task, encoding):
        places = ("12 to 23", "24 to 47")
        return [positions.results(f"{task}, {encoding}", f"right, places {p}") for p in places]

    for task, new, most in (("three back", 1, 0.6), ("latest capital", 3, 0.8)):
        for encoding in ("sinusoidal", "learned"):  # perfect at position 11, wrong soon after
            places = positions.results(f"{task}, {encoding}", "right by place")[:, -37:]
            assert places[:, 0].min() > 0.99
            assert places[:, new].max() < most
            assert beyond(task, encoding)[0].median() < beyond(task, "none")[0].median() + 0.1
    near, far = beyond("three back", "rotary")
    assert near.min() > 0.9  # nearly exact at twice the length, but not at four times
    assert (far < 0.4).sum() == 4
    near, far = beyond("three back", "T5")
    assert near.max() < 0.95
    assert far.max() < 0.7
    for task, encoding, least in (
        ("three back", "Shaw", 0.99), ("latest capital", "ALiBi", 0.94),
        ("latest capital", "Shaw", 0.96), ("latest capital", "ALiBi, slopes x2", 0.98),
        ("latest capital", "ALiBi, slopes x4", 0.99),
    ):  # fmt: skip
        assert min(shares.min() for shares in beyond(task, encoding)) > least


@pytest.fixture(scope="module")
def stretched():
    """Shares 3 and 20 places back, of the model of base 10,000 after 2,000 steps unless an arm is named."""
    runs = load_experiment("beyond")

    def shares(place, way="", arm="base 10000, 2000 steps"):
        name = f"length {place}".format(way)
        return [runs.results(arm, f"{name}, {back} back") for back in (3, 20)]

    return runs, shares


def test_stretched_without_training(stretched):
    runs, shares = stretched
    guess = runs.bounds["guessing"]
    assert {arm["seeds"] for arm in runs.arms.values()} == {5}
    assert runs.history("base 10000, 2000 steps").losses[:, -4:].max() < 0.01
    assert min(found.min() for found in shares("32")) > 0.999
    for arm in runs.arms:
        assert min(found.min() for found in shares("32", arm=arm)) > 0.92
        for place in ("64, {}", "128, {}"):
            for way in ("interpolated", "YaRN, beta 32"):
                assert max((found - guess).abs().max() for found in shares(place, way, arm)) < 0.02
    for place, times in (("64, {}", 2), ("128, {}", 4)):
        near, far = shares(place, "window of 32")
        assert near.min() > 0.999 and far.min() > 0.8 and (far > 0.999).sum() == 4
        near, far = shares(place, "YaRN, beta 4")
        assert near.min() > 0.98 and (far - guess).abs().max() < 0.01
        plain, ntk = (shares(place, way)[0] for way in ("as trained", "NTK-aware"))
        assert (ntk > plain).all()
        for arm in runs.arms:  # the head points too far, with every base
            named = runs.results(arm, f"length {32 * times}, interpolated, {3 * times} back named")
            assert named.min() > (0.55 if times == 2 else 0.35), arm
    assert {arm["lr"] for arm in runs.arms.values()} == {0.01}


# Chapter 4.


def test_the_sentence_with_a_blank():
    runs, arm = load_experiment("words"), "4 heads"
    assert runs.results(arm, "all four right")[4] > 0.98
    # Head 1 is dispensable; and each model has one head without which it loses the neighbour.
    ablated = runs.results(arm, "each right without one head")
    assert (ablated[4, 1] > 0.99).all()
    neighbour = ablated[:, :, 2].sort(dim=1).values
    assert (neighbour[:, 0] < 0.25).all()
    assert (neighbour[:, 1:] > 0.85).all()


def test_models_that_see_the_answer():
    runs = load_experiment("leak")
    in_use, names_next = (
        {arm: runs.results(arm, measure) for arm in runs.arms}
        for measure in ("loss one by one", "names the next token of a random sequence")
    )
    guessing, control = runs.bounds["guessing"], "inverted, last place not scored"
    for arm, shares in names_next.items():
        assert (shares < 0.15).all() if arm == "correct" else (shares > 0.99).all()
    assert (in_use["no mask"] > guessing).all()
    assert runs.bounds["entropy"] < in_use["inverted"].min()
    assert in_use["inverted"].max() < in_use[control].min() < in_use[control].max() < guessing


def test_recall_by_distance():
    runs, longer = load_experiment("recall"), load_experiment("recall_longer")
    reach = runs.bounds["reach of the convolutions"]

    def shares(arm, where=runs):
        return where.results(arm, "right by places back")  # (seeds, 12)

    assert (shares("attention") > 0.999).all()
    # With convolutions, all seeds are right within reach and guess beyond it, but not at a different rate.
    assert (shares("2 convolutions")[:, :reach] > 0.999).all()
    assert (shares("2 convolutions")[:, reach:] < 0.2).all()
    rates = runs.arms["2 convolutions"]["rates"]
    assert sum(right < 0.51 for right in rates["0.01"]["right"]) == 4
    assert {tuple(arm["rates"])[:3] for arm in runs.arms.values()} == {("0.001", "0.003", "0.01")}
    best = "recurrent"
    assert (shares(best)[:, :2] > 0.95).all()
    assert (shares(best)[:, 5:] < 0.25).all()
    more = shares("recurrent, 8000 steps", longer)
    assert (more[:, :5] > 0.95).all()
    assert (more[:, 8:] < 0.25).all()
    gated = shares("gated")
    assert (gated > 1.5 / 8).all()
    assert gated.mean() > shares(best).mean()
    assert (gated[:, -1] > gated[:, 5:10].amax(1)).all()  # worst in the middle
    assert (shares("gated, 8000 steps", longer) > 0.6).all()


def test_the_recalling_head_looks_at_the_answer():
    script = load_script("recall")
    letters, _ = script.recall_batch(1, torch.Generator().manual_seed(99))
    asked = torch.cat((letters[:, :-1].expand(12, -1), 8 + torch.arange(12)[:, None]), dim=1)
    model = script.Recall(script.AttentionReader)
    model.load_state_dict(load_experiment("recall").state("attention"))
    with capture_attention(model) as captured, torch.no_grad():
        model(asked)
    weights = captured["reader.attention"][:, 0, -1]
    assert (weights[torch.arange(12), 11 - torch.arange(12)] > 0.5).all()


def test_one_matrix_or_two():
    runs = load_experiment("shared_matrices")
    assert {run["steps"] for run in runs.arms.values()} == {500}
    guess = runs.bounds["guessing"]
    for task, elsewhere in (
        ("mirrored, one matrix, itself visible", 6), ("mirrored, one matrix, itself hidden", 0),
        ("three back, one matrix, itself visible", 0), ("three back, one matrix, itself hidden", 0),
    ):  # fmt: skip
        bound = 1 - elsewhere / 12 * (1 - guess)
        assert runs.results(task, "right").min() > 0.99 * bound


def test_induction():
    runs = load_experiment("induction")
    right, bag = {arm: runs.results(arm, "right") for arm in runs.arms}, runs.bounds["bag of visible letters"]
    single = [arm for arm in right if arm.startswith("1 layer")]
    trained = [arm for arm in single if "300 steps" not in arm]
    assert all(right[arm].min() > bag for arm in single)
    assert min(right[arm].min() for arm in trained) > 0.6
    assert max(right[arm].max() for arm in trained if "8 heads" not in arm) < 0.71
    assert right["1 layer, 8 heads, 20000 steps"].max() < 0.81
    assert min(right[arm].min() for arm in ("2 layers", "2 layers, 300 steps")) > 0.999
    # The two layers look one position back, and at what followed the same letter.
    script, period = load_script("induction"), 8
    sequences, _ = script.repeat_batch(500, torch.Generator().manual_seed(99))
    example = (torch.arange(24) % period)[None]
    for seed in (0, 1):
        model = script.AttentionOnly(2)
        model.load_state_dict(runs.state("2 layers", seed=seed))
        with capture_attention(model) as captured, torch.no_grad():
            model(torch.cat((example, sequences)))
        first, second = (captured[f"layers.{i}"][:, 0] for i in (0, 1))
        back = first.diagonal(-1, 1, 2).mean(0)
        assert (back[:12] > 0.75).all()  # positions 2 to 13
        assert (back[12:] < 0.1).float().mean() > 0.8
        followed = second[0].diagonal(1 - period).clone()  # what followed the copy one period back
        followed[8:] += second[0].diagonal(1 - 2 * period)  # or two periods back
        assert (followed[1:] > 0.95).all()
