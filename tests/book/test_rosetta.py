"""Framework Rosetta: stored results belong to the sources, faults are seen, weights go both ways.

None of the frameworks is needed here. Two programs run in the book's environment and so in every test; the
others are judged by what `make rosetta` stored.
"""

import copy
import itertools
import json
import re
import shutil
import subprocess
import sys
from pathlib import Path

import bench_rosetta as bench
import course_files
import nbformat
import numpy as np
import pytest
import rosetta
import rosetta_notebooks
from rosetta_cases import answer, as_json, make_cases, multi_head
from set_repository import PUBLISHED, read_address

ROOT = Path(__file__).resolve().parents[2]
FOLDER = ROOT / "chapters" / "rosetta"

sys.path.insert(0, str(FOLDER))
import facts  # noqa: E402
import masks  # noqa: E402
import program  # noqa: E402
from weights import LAYOUTS, convert  # noqa: E402

sys.path.remove(str(FOLDER))

LAYERS = {name: p for name, p in rosetta.PROGRAMS.items() if p.kind == "attention"}


def run(name, *arguments):
    """Start a program of the book's environment as a reader would."""
    command = [sys.executable, FOLDER / rosetta.PROGRAMS[name].file, *arguments]
    return subprocess.run(command, capture_output=True, text=True, timeout=300, cwd=ROOT)


# --------------------------------------------------------------------------------
# What is stored


def test_a_change_of_the_folder_is_noticed(monkeypatch, tmp_path):
    """Continuous integration leaves the frameworks alone where nothing that they depend on changed."""
    folder = tmp_path / "rosetta"
    shutil.copytree(FOLDER, folder, ignore=shutil.ignore_patterns("__pycache__"))
    for name in ("FOLDER", "STORED", "INPUTS"):
        monkeypatch.setattr(rosetta, name, folder / getattr(rosetta, name).relative_to(FOLDER))
    rosetta.INPUTS.write_text(rosetta.inputs())
    assert rosetta.main(["--unchanged"]) == 0
    for file in ("attention_jax.py", "tensorflow.txt", "vectors.json"):
        before = (folder / file).read_text(encoding="utf-8")
        (folder / file).write_text(before + "\n", encoding="utf-8")
        assert rosetta.main(["--unchanged"]) == 1, file
        (folder / file).write_text(before, encoding="utf-8")
    rosetta.INPUTS.unlink()
    assert rosetta.main(["--unchanged"]) == 1


def test_stored_results_are_whole_and_of_these_sources():
    content = rosetta.load_stored()
    assert content["programs"].keys() == rosetta.PROGRAMS.keys()
    for name, found in content["programs"].items():
        assert "not run" not in found, name
        assert found["versions"] and re.fullmatch(r"\d{4}-\d\d-\d\d", found["date"])


def test_every_program_was_compared_in_every_case():
    cases = {case["name"] for case in make_cases()}
    programs = rosetta.load_stored()["programs"]
    for name in LAYERS:
        found = programs[name]
        assert found["compared"].keys() == cases
        gradients = name not in ("numpy", "perl")
        for case in found["compared"].values():
            by_dtype = case["from nothing"]
            assert by_dtype.keys() == ({"float32"} if name == "keras_torch" else {"float32", "float64"})
            for dtype, differences in by_dtype.items():
                assert differences.keys() == {"output", "weights"} | ({"gradients"} if gradients else set())
                assert max(differences.values()) <= rosetta.TOLERANCE[dtype]


@pytest.fixture
def stored(tmp_path):
    """A copy of the folder, to plant faults in; returns what loads it, and the folder."""
    folder = tmp_path / "rosetta"
    shutil.copytree(FOLDER, folder, ignore=shutil.ignore_patterns("__pycache__"))
    return (lambda: rosetta.load_stored(folder / "stored.json", folder)), folder


def change(folder, edit, *, whole=True):
    """Edit what is stored; with `whole` also its digest, as somebody would who wants it to pass."""
    path = folder / "stored.json"
    content = json.loads(path.read_text(encoding="utf-8"))
    edit(content["programs"])
    if whole:
        del content["digest"]
        content["digest"] = rosetta.digest(content)
    path.write_text(json.dumps(content), encoding="utf-8")


def test_changed_number_is_refused(stored):
    load, folder = stored

    def edit(programs):
        programs["jax"]["compared"]["self-attention"]["from nothing"]["float32"]["output"] = 0.0

    change(folder, edit, whole=False)
    with pytest.raises(ValueError, match="missing or damaged: run `make rosetta`"):
        load()


def test_missing_framework_is_refused_by_name(stored):
    load, folder = stored
    change(folder, lambda programs: programs.pop("paddle"))
    with pytest.raises(ValueError, match=r"every framework, but \['paddle'\]"):
        load()


def test_framework_that_was_not_run_is_named_and_not_refused(stored):
    load, folder = stored
    reason = {"title": "MXNet", "not run": "pip failed: no wheel"}
    change(folder, lambda programs: programs.update(mxnet=reason))
    assert load()["programs"]["mxnet"] == reason


@pytest.mark.parametrize(
    "name", sorted({source for p in rosetta.PROGRAMS.values() for source in p.sources} | {"vectors.json"})
)
def test_changed_source_is_refused(stored, name):
    """Every file that a result depends on; a comment is enough."""
    load, folder = stored
    with (folder / name).open("a", encoding="utf-8") as source:
        source.write("\n")
    with pytest.raises(ValueError, match=r"run `make rosetta`") as caught:
        load()
    assert name in str(caught.value) or name == "vectors.json"


@pytest.mark.parametrize("text", ["", "{}", "[]", '{"programs": {}, "digest": ""}'])
def test_damaged_file_is_refused(stored, text):
    load, folder = stored
    (folder / "stored.json").write_text(text, encoding="utf-8")
    with pytest.raises(ValueError, match="missing or damaged"):
        load()


@pytest.mark.parametrize(
    "page", [rosetta.PAGE, rosetta.MASK_PAGE, rosetta.JUDGED_PAGE], ids=lambda path: path.stem
)
def test_page_carries_its_stored_results_and_names_every_framework(page):
    content = rosetta.load_stored()
    notebook = nbformat.read(page, as_version=4)
    [cell] = [cell for cell in notebook.cells if cell.id == "results"]
    assert cell.source == rosetta.results_cell(content, page)
    shown = "\n".join(
        output.get("text", "") + output.get("data", {}).get("text/markdown", "")
        for cell in notebook.cells
        for output in cell.get("outputs", [])
    )
    ours = {name: p for name, p in rosetta.PROGRAMS.items() if p.page == page}
    for name in ours:
        found = content["programs"][name]
        assert f"| {found['title']} |" in shown or page == rosetta.JUDGED_PAGE
        assert found["date"] in shown
        for part, version in found["versions"].items():
            assert f"{part} {version}" in shown
    included = set(re.findall(r"literalinclude\} rosetta/(\S+)", "\n".join(c.source for c in notebook.cells)))
    # The page about masks runs torch itself.
    shared = {rosetta.MASK_PAGE: {"masks_torch.py"}, rosetta.JUDGED_PAGE: {"judged.py"}}
    assert {p.file for p in ours.values()} ^ shared.get(page, {"weights.py"}) == included


def test_stored_versions_of_the_book_are_its_pins():
    pins = dict(re.findall(r"^([\w-]+)==(\S+)$", (ROOT / "requirements.in").read_text("utf-8"), re.M))
    programs = rosetta.load_stored()["programs"]
    for name, p in rosetta.PROGRAMS.items():
        if p.environment == "book":
            assert {part: pins[part] for part in programs[name]["versions"]} == programs[name]["versions"]


# --------------------------------------------------------------------------------
# The vectors


def test_vectors_are_those_of_the_cases():
    text = (FOLDER / "vectors.json").read_text(encoding="utf-8")
    assert text == json.dumps(as_json(make_cases())) + "\n"


def test_cases_ask_for_what_they_should():
    cases = {case["name"]: case for case in make_cases()}
    hidden = answer(cases["a hidden row"])["weights"].sum(axis=-1) == 0
    assert hidden.any() and not hidden.all()
    causal = cases["causal, fewer queries than keys"]
    assert causal["is_causal"] and causal["query"].shape[1] < causal["key"].shape[1]
    ranks = {case["valid_lens"].ndim for case in cases.values() if case["valid_lens"] is not None}
    assert ranks == {1, 2}
    assert (
        len({case[x].shape[-1] for case in [cases["unequal widths"]] for x in ("query", "key", "value")}) == 3
    )
    for case in cases.values():  # float32 holds every number exactly
        for x in (case["query"], case["key"], case["value"], *case["weights"].values()):
            assert (x == x.astype("float32")).all()


def test_gradients_are_those_of_differences_of_the_loops():
    case = next(case for case in make_cases() if case["name"] == "biases")
    gradients = answer(case)["gradients"]

    def total(name, place, step):
        changed = copy.deepcopy(case)
        array = changed["weights"][name] if name in case["weights"] else changed[name]
        array.reshape(-1)[place] += step
        inputs = changed["query"], changed["key"], changed["value"]
        output, _ = multi_head(*inputs, changed["weights"], case["num_heads"], valid_lens=case["valid_lens"])
        return (output * case["upstream"]).sum()

    assert gradients.keys() == {*case["weights"], "query", "key", "value"}
    for name, gradient in gradients.items():
        place = gradient.size // 2
        slope = (total(name, place, 1e-4) - total(name, place, -1e-4)) / 2e-4
        assert gradient.reshape(-1)[place] == pytest.approx(slope, abs=1e-6), name


# --------------------------------------------------------------------------------
# The comparison detects faults


@pytest.fixture(scope="module")
def printed():
    """What the program for PyTorch prints now."""
    done = run("pytorch", FOLDER / "vectors.json")
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


@pytest.mark.parametrize("name", ["numpy", "pytorch"])
def test_programs_of_the_book_are_still_as_stored(name):
    """What the page says of our own layer, its signature too, changes with the library alone."""
    found, before = rosetta.measure_or_say(name), rosetta.load_stored()["programs"]
    says, good = rosetta.verdict(name, found, before, check=True)
    assert good, says


def edit_number(part, *place):
    def edit(results):
        found = results["biases"]["from nothing"]["float64"]
        array = np.array(found["gradients"][part] if part in found["gradients"] else found[part])
        array[place] += 1e-9
        (found["gradients"] if part in found["gradients"] else found)[part] = array.tolist()

    return edit


def swap_heads(results):
    found = results["biases"]["from nothing"]["float32"]
    found["weights"] = np.flip(np.array(found["weights"]), axis=1).tolist()


def average_heads(results):
    found = results["biases"]["from nothing"]["float32"]
    found["weights"] = np.array(found["weights"]).mean(axis=1).tolist()


FAULTS = {
    "an output": (edit_number("output", 1, 2, 3), "output differs by"),
    "a weight": (edit_number("weights", 1, 2, 3, 1), "weights differs by"),
    "a gradient": (edit_number("k_proj.weight", 5, 7), "the gradient of k_proj.weight differs by"),
    "heads in another order": (swap_heads, "weights differs by"),
    "weights averaged": (average_heads, "weights must be"),
    "NaN": (lambda r: r["biases"]["from nothing"]["float32"]["output"][0][0].__setitem__(0, None),
        "output differs by nan"),
    "a case left out": (lambda r: r.pop("one head"), "the cases must be"),
    "a gradient left out": (lambda r: r["biases"]["from nothing"]["float32"]["gradients"].pop("v_proj.bias"),
        "do not fit"),
    "a layer from nothing that cannot": (
        lambda r: r["biases"]["from nothing"].update(float32={"cannot": "biases"}),
        "biases",
    ),
}  # fmt: skip


@pytest.mark.parametrize("fault", FAULTS)
def test_planted_fault_in_what_a_program_prints_is_found(printed, fault):
    results = copy.deepcopy(printed["results"])
    plant, message = FAULTS[fault]
    plant(results)
    with pytest.raises(ValueError, match=message):
        rosetta.compare(results)


def test_hidden_rows_are_told_apart(printed):
    results = printed["results"]["a hidden row"]
    case, expected = rosetta.answers()["a hidden row"]
    found = rosetta.judge(
        "", case, expected, results["torch.nn.MultiheadAttention"]["float32"], "own", "float32"
    )
    assert (found["hidden row"], found["hidden row, gradients"]) == ("NaN", "NaN")
    rows = np.array([[0.5, 0.5]])
    assert rosetta.what_is(rows, np.array([[0.1, 0.9]])) == "uniform"
    assert rosetta.what_is(rows * 0, rows) == "zeros"
    assert rosetta.what_is(np.array([[0.1, 0.9]]), np.array([[0.1, 0.9]])) == "as without a mask"
    assert rosetta.what_is(np.array([[0.1, 0.9]]), rows) == "others"


def test_changes_since_the_last_run_are_named():
    found = rosetta.load_stored()["programs"]["jax"]
    assert rosetta.changes(found, copy.deepcopy(found)) == []
    other = copy.deepcopy(found)
    other["date"] = "2001-01-01"
    assert rosetta.changes(found, other) == []
    [layer] = other["facts"]["layers"].values()
    layer["True in a bool mask"] = "hidden"
    assert rosetta.changes(found, other) == ["facts differs from what is stored"]


def test_a_message_may_name_the_function_of_another_processor():
    found = rosetta.load_stored()["programs"]["tensorflow"]
    other = json.loads(re.sub(r"__wrapped__\w*?BatchMatMulV2", "__wrapped__Another", json.dumps(found)))
    assert other != found
    assert rosetta.changes(found, other) == []
    other = json.loads(json.dumps(found).replace("InvalidArgumentError", "ValueError"))
    assert rosetta.changes(found, other) == ["facts differs from what is stored"]


def test_framework_that_cannot_be_installed_is_named(monkeypatch, capsys, tmp_path):
    def interpreter(name):
        if name == "book":
            return sys.executable
        raise rosetta.NotRunError("pip failed: ERROR: no matching distribution")

    monkeypatch.setattr(rosetta, "interpreter", interpreter)
    monkeypatch.setattr(rosetta, "STORED", tmp_path / "stored.json")
    monkeypatch.setattr(rosetta, "PAGE", tmp_path / "page.ipynb")
    monkeypatch.setattr(rosetta, "MASK_PAGE", tmp_path / "page.ipynb")
    shutil.copy(FOLDER / "stored.json", tmp_path)
    assert rosetta.main(["--only", "numpy", "mxnet"]) == 0
    assert "mxnet: NOT RUN: pip failed" in capsys.readouterr().out
    programs = json.loads((tmp_path / "stored.json").read_text(encoding="utf-8"))["programs"]
    assert programs["mxnet"] == {"title": "MXNet", "not run": "pip failed: ERROR: no matching distribution"}
    assert "compared" in programs["numpy"] and "compared" in programs["jax"]


# --------------------------------------------------------------------------------
# The programs


def misfit(name):
    """The vectors with one fault, and a word of the message."""
    content = json.loads((FOLDER / "vectors.json").read_text(encoding="utf-8"))
    case = content["cases"][1]
    match name:
        case "another format":
            content["format"] = "vectors 0"
        case "no cases":
            content["cases"] = []
        case "an entry missing":
            del case["upstream"]
        case "a ragged array":
            case["query"][0][0].pop()
        case "a text for a number":
            case["key"][0][0][0] = "one"
        case "heads that do not divide":
            case["num_heads"] = 5
        case "a length beyond the keys":
            case["valid_lens"][0] = 6
        case "too many lengths":
            case["valid_lens"].append(1)
        case "a matrix of another shape":
            case["weights"]["k_proj.weight"].pop()
        case "a bias too few":
            case["weights"]["q_proj.bias"] = [0.0] * 12
        case "values of another length":
            case["value"] = [rows[:-1] for rows in case["value"]]
    return content


MISFITS = {
    "another format": "format",
    "no cases": "at least one case",
    "an entry missing": "the entries must be",
    "a ragged array": "equal length",
    "a text for a number": "key must hold",
    "heads that do not divide": "num_heads must divide the width 12, got 5",
    "a length beyond the keys": r"valid_lens must be integers in 0\.\.5",
    "too many lengths": r"valid_lens must be \(2,?\) or \(2, 4\), got \(3,?\)",
    "a matrix of another shape": r"k_proj.weight must be \(12, 12\), got \(11, 12\)",
    "a bias too few": "weights must be",
    "values of another length": r"value must be \(2, 5, 12\), got \(2, 4, 12\)",
}


@pytest.mark.parametrize("name", MISFITS)
def test_vectors_that_do_not_fit_are_refused(tmp_path, name):
    path = tmp_path / "vectors.json"
    path.write_text(json.dumps(misfit(name)), encoding="utf-8")
    with pytest.raises(program.VectorsError, match=MISFITS[name]):
        program.read_vectors(path)


def test_program_that_refuses_says_why_in_one_line(tmp_path):
    path = tmp_path / "vectors.json"
    path.write_text(json.dumps(misfit("heads that do not divide")), encoding="utf-8")
    for arguments, message in (
        ([path], "num_heads must divide the width 12, got 5"),
        ([tmp_path / "nowhere.json"], "cannot be read"),
        ([], "usage: attention_numpy.py vectors.json"),
    ):
        done = run("numpy", *arguments)
        assert (done.returncode, done.stdout) == (2, "")
        assert message in done.stderr and len(done.stderr.splitlines()) == 1
    path.write_text("{", encoding="utf-8")
    assert "is not JSON" in run("numpy", path).stderr


PERL = shutil.which("perl")
HAS_PDL = PERL and subprocess.run([PERL, "-MPDL", "-e1"], capture_output=True).returncode == 0


@pytest.mark.skipif(not HAS_PDL, reason="`make rosetta` installs PDL where it may")
@pytest.mark.parametrize("name", [*MISFITS, "nothing"])
def test_perl_refuses_the_same_vectors(tmp_path, name):
    path = tmp_path / "vectors.json"
    path.write_text(json.dumps(misfit(name)), encoding="utf-8")
    command = [PERL, FOLDER / "attention_perl.pl", path]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60)
    if name == "nothing":
        assert (done.returncode, done.stderr) == (0, "")
        return
    assert (done.returncode, done.stdout) == (2, "")
    assert re.search(MISFITS[name], done.stderr), done.stderr
    assert len(done.stderr.splitlines()) == 1


# The part of a program that is written from scratch; the longest function names of the sources for Perl.
PARTS = ["masked_softmax", "build_mask", "MultiHeadAttention", "split_heads", "merge_heads"]
PARTS_OF_PERL = [*PARTS[:3], "new", "transpose_qkv", "transpose_output", "forward"]


@pytest.mark.parametrize("file", sorted({p.file for p in LAYERS.values()}))
def test_layer_from_nothing_is_short_and_in_the_same_order(file):
    text = (FOLDER / file).read_text(encoding="utf-8")
    part = re.split(r"^# The (framework|program)", text.partition("# From nothing\n")[2], flags=re.M)[0]
    code = [line for line in part.splitlines() if not re.fullmatch(r'\s*(#.*|""".*""")?', line)]
    assert 30 <= len(code) <= 45
    parts = PARTS_OF_PERL if file.endswith(".pl") else PARTS
    defined = re.findall(r"^\s*(?:def|class|sub|package) (\w+)", part, re.M)
    assert [name for name in defined if name in parts] == parts
    # Not a layer of the framework, because this one is written from scratch.
    assert "MultiheadAttention" not in part
    assert not re.search(r"\.MultiHeadAttention\b|dot_product_attention|interleaved", part)


# --------------------------------------------------------------------------------
# Weights


def random_weights(bias, kdim=12, vdim=12, width=12):
    draw = np.random.default_rng(0).standard_normal
    widths = {"q_proj": width, "k_proj": kdim, "v_proj": vdim, "out_proj": width}
    weights = {f"{name}.weight": draw((width, n)) for name, n in widths.items()}
    return weights | ({f"{name}.bias": draw(width) for name in widths} if bias else {})


@pytest.mark.parametrize("bias", [False, True])
@pytest.mark.parametrize(("source", "target"), list(itertools.permutations(LAYOUTS, 2)))
def test_weights_go_both_ways(source, target, bias):
    ours = random_weights(bias)
    given = convert(ours, "mha_lib", source, 3)
    there = convert(given, source, target, 3)
    back = convert(there, target, source, 3)
    assert back.keys() == given.keys()
    assert all((back[name] == given[name]).all() for name in given)
    final = convert(there, target, "mha_lib", 3)
    assert final.keys() == ours.keys()
    assert all((final[name] == ours[name]).all() for name in ours)


@pytest.mark.parametrize("layout", sorted(set(LAYOUTS) - {"mxnet"}))
def test_unequal_widths_go_both_ways_too(layout):
    ours = random_weights(True, kdim=7, vdim=10)
    final = convert(convert(ours, "mha_lib", layout, 3), layout, "mha_lib", 3)
    assert final.keys() == ours.keys()
    assert all((final[name] == ours[name]).all() for name in ours)


def test_layouts_are_those_of_the_layers():
    """Names and shapes of what the frameworks' fresh layers hold, as `make rosetta` found them."""
    programs = rosetta.load_stored()["programs"]
    ours = random_weights(True)
    for name, layout in (("pytorch", "torch"), ("jax", "flax"), ("keras_jax", "keras"), ("paddle", "paddle")):
        layer = next(iter(programs[name]["facts"]["layers"].values()))
        theirs = convert(ours, "mha_lib", layout, facts.HEADS)
        assert {key: list(array.shape) for key, array in theirs.items()} == layer["parameters"]


@pytest.mark.parametrize(("layout", "edit", "message"), [
    ("numpy", dict, "a layout must be one of"),
    ("torch", lambda w: w.pop("out_proj.weight"), "needs an array 'out_proj.weight'"),
    ("flax", lambda w: w.pop("key.kernel"), "needs an array 'key.kernel'"),
    ("paddle", lambda w: w.pop("v_proj.weight"), "needs an array 'v_proj.weight'"),
    ("mxnet", lambda w: w.pop("qkv_proj.weight"), "needs an array 'qkv_proj.weight'"),
])  # fmt: skip
def test_weights_that_do_not_fit_are_refused(layout, edit, message):
    theirs = convert(random_weights(False), "mha_lib", layout, 3) if layout in LAYOUTS else {}
    edit(theirs)
    with pytest.raises(ValueError, match=message):
        convert(theirs, layout, "mha_lib", 3)


def test_interleaved_weights_need_equal_widths():
    with pytest.raises(ValueError, match="as wide as queries"):
        convert(random_weights(False, kdim=7), "mha_lib", "mxnet", 3)


# --------------------------------------------------------------------------------
# The measurements


class Planted(facts.Adapter):
    """Attention in NumPy without projections, with one thing done as in some framework."""

    name = "planted"

    def __init__(self, **ways):
        self.ways = {"hides": False, "empty": "zeros", "returned": "before", "shared": False, **ways}

    @staticmethod
    def constructor(embed_dim, num_heads, dropout=0.0):
        """Only its signature counts."""

    @staticmethod
    def forward(query, value, key=None):
        """Only its signature counts."""

    def make(self, width=12, heads=3, dropout=0.0):
        return {"dropout": dropout, "draw": np.random.default_rng(1)}

    def call(self, layer, query, key, value, mask=None, training=False, weights=True):
        if mask is not None and mask.shape != (query.shape[1], key.shape[1]):
            raise ValueError("mask")
        scores = (query @ key.swapaxes(-2, -1))[:, None].repeat(3, 1)
        keep = np.ones(scores.shape[-2:], bool) if mask is None else mask.astype(bool) != self.ways["hides"]
        scores = np.where(keep, scores, -1e9 if self.ways["empty"] == "uniform" else -np.inf)
        with np.errstate(invalid="ignore"):
            parts = np.exp(scores - scores.max(-1, keepdims=True))
            found = parts / parts.sum(-1, keepdims=True)
        if self.ways["empty"] == "zeros":
            found = np.nan_to_num(found)
        used = found
        if training and layer["dropout"]:
            shape = (1, *found.shape[1:]) if self.ways["shared"] else found.shape
            used = found * 2 * (layer["draw"].random(shape) > layer["dropout"])
        output = (used @ value[:, None]).mean(1)
        return output, used if self.ways["returned"] == "after" else found


@pytest.mark.parametrize("hides", [False, True])
def test_polarity_is_measured(hides):
    assert facts.order_of_weights(Planted(hides=hides)) == ("hidden" if hides else "may attend")


@pytest.mark.parametrize(
    ("empty", "hides"), list(itertools.product(["zeros", "NaN", "uniform"], [False, True]))
)
def test_hidden_row_is_measured(empty, hides):
    assert facts.hidden_row(Planted(empty=empty, hides=hides))["weights"] == empty


@pytest.mark.parametrize(("returned", "shared"), list(itertools.product(["before", "after"], [False, True])))
def test_dropout_is_measured(returned, shared):
    found = facts.dropout(Planted(returned=returned, shared=shared))
    assert found["returned weights"].startswith(f"{returned} dropout")
    assert found["all samples lose the same weights"] == shared


def test_rules_of_initialisation_are_told_apart():
    draw = np.random.default_rng(0)
    bound = {
        "Glorot uniform ±√(6/(in + out))": (3 / 64) ** 0.5,
        "uniform ±1/√in": 1 / 8,
        "uniform ±0.07": 0.07,
    }
    for rule, limit in bound.items():
        assert facts.describe(draw.uniform(-limit, limit, (8, 64, 64)), 64)["rule"] == rule
    assert facts.describe(draw.normal(0, 1 / 8, (8, 64, 64)), 64)["rule"].startswith("LeCun normal")
    assert facts.describe(draw.normal(0, 1, (8, 64, 64)), 64)["rule"] == "another rule"


def test_signatures_are_read():
    assert facts.signature(Planted.forward) == [["query", None], ["value", None], ["key", "None"]]
    assert facts.signature(Planted.constructor)[-1] == ["dropout", "0.0"]


def test_wrong_calls_are_told_apart():
    def refuse():
        raise ValueError("no\nway")

    assert facts.outcome(refuse) == {"error": "ValueError: no way"}
    assert facts.outcome(lambda: (np.ones((2, 3)), None)) == {"silent": "[2, 3], finite"}
    assert facts.outcome(lambda: (np.full((2,), np.nan), None)) == {"silent": "[2], not finite"}
    assert "cannot" in facts.outcome(lambda: facts.Adapter().lengths(None, None, None, None, None))


# --------------------------------------------------------------------------------
# Speed; no test here depends on the time that anything takes


def test_speed_on_the_page_is_what_was_measured():
    results = json.loads((ROOT / "benchmarks" / "results_rosetta.json").read_text(encoding="utf-8"))
    page = nbformat.read(rosetta.PAGE, as_version=4)
    cells = {cell.id: cell for cell in page.cells}
    assert cells["speed"].source == bench.speed_cell(results)
    shown = "".join(str(output) for output in cells["speed-table"].outputs)
    assert results["machine"]["processor"] in shown and results["machine"]["date"] in shown
    # All frameworks with a layer of their own, with the same versions as in the other tables.
    own = {name for name in LAYERS if name not in ("numpy", "perl")}
    assert results["programs"].keys() == own == bench.MODULES.keys()
    programs = rosetta.load_stored()["programs"]
    for name, found in results["programs"].items():
        assert found["versions"] == programs[name]["versions"], "run `make bench-rosetta`"
        assert [tuple(row["size"]) for row in found["rows"]] == list(bench.SIZES)
        for row in found["rows"]:
            assert all(0 < low <= middle <= high for middle, low, high in row["ratios"].values())
            assert f"{row['ratios']['own layer'][0]:.2f} (" in shown


def test_layers_are_timed_only_if_they_are_equal(monkeypatch):
    def unequal(_module, _case):
        return {bench.NOTHING: lambda: np.zeros(3), bench.OWN: lambda: np.full(3, 1e-3)}

    monkeypatch.setattr(bench, "pytorch", unequal)
    monkeypatch.setattr(bench.os, "sched_setaffinity", lambda *_: None, raising=False)
    monkeypatch.setattr(sys, "path", [*sys.path])
    with pytest.raises(ValueError, match="own layer differs by 0.001"):
        bench.measure("pytorch", bench.TINY_SIZES, 2)


@pytest.mark.slow
def test_quick_benchmark_of_torch_runs(tmp_path):
    command = [sys.executable, ROOT / "benchmarks" / "bench_rosetta.py", "--quick", "--only", "pytorch"]
    command += ["--output", tmp_path / "r.json"]
    done = subprocess.run(command, capture_output=True, text=True, cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    [row] = json.loads((tmp_path / "r.json").read_text("utf-8"))["programs"]["pytorch"]["rows"]
    assert row["ratios"].keys() == {bench.OWN, bench.PLAIN}


# --------------------------------------------------------------------------------
# The notebooks for Colab; test_colab.py runs them


@pytest.mark.parametrize("file", rosetta_notebooks.PROGRAMS)
def test_notebook_holds_the_whole_program_and_its_tab_links_it(file):
    name, branch = read_address()
    files = course_files.of_this_course()
    notebook = rosetta_notebooks.notebook_of(FOLDER / file, f"https://github.com/{name}", branch, files)
    nbformat.validate(notebook)
    code = "\n\n\n".join(cell.source for cell in notebook.cells if cell.cell_type == "code")
    text = (FOLDER / file).read_text(encoding="utf-8")
    program = text.partition('"""\n')[2].partition('\nif __name__ == "__main__":')[0]
    parts = re.split(r"^# (?:From nothing|The framework's own layer|The program)\n", program, flags=re.M)
    assert len(parts) == 4
    for part in parts:  # in order, a cell for each definition
        assert part.strip() in code
    page = nbformat.read(rosetta.PAGE, as_version=4)
    [tabs] = [cell.source for cell in page.cells if cell.id == "tabs-nothing"]
    [tab] = [tab for tab in tabs.split("{tab-item}") if f"rosetta/{file}\n" in tab]
    built = file.replace(".py", ".ipynb")
    assert f"(https://colab.research.google.com/github/{name}/blob/{PUBLISHED}/colab/{built})" in tab
    assert f'<a href="../colab/{built}" download>' in tab


@pytest.mark.parametrize("file", rosetta_notebooks.PROGRAMS)
def test_built_notebook_fetches_what_the_same_build_serves(book, file):
    text = (book / "colab" / file).with_suffix(".ipynb").read_text(encoding="utf-8")
    served = (book / "wheel" / "SHA256SUMS").read_text(encoding="utf-8")
    digests = dict(line.split()[::-1] for line in served.splitlines())
    wheels = [name for name in digests if name.endswith(".whl")] if "import mha_lib" in text else []
    assert len(wheels) in (0, 3)
    assert all(name in text and digests[name] in text for name in [*wheels, "programs.zip"])


# --------------------------------------------------------------------------------
# The masks


@pytest.mark.parametrize("name", ["masks_torch", "masks_onnx"])
def test_masks_of_the_book_are_still_as_stored(name):
    assert rosetta.changes(rosetta.load_stored()["programs"][name], rosetta.measure(name)) == []


def softmax_attention(query, key, value, keep=None, hide=None, added=None, empty=-np.inf):
    """Attention in NumPy that takes a mask in three conventions."""
    scores = query @ key.swapaxes(-2, -1) / query.shape[-1] ** 0.5
    if hide is not None:
        keep = ~hide
    if keep is not None:
        scores = np.where(keep, scores, empty)
    if added is not None:
        scores = scores + added
    with np.errstate(invalid="ignore"):
        parts = np.exp(scores - scores.max(axis=-1, keepdims=True))
        return parts / parts.sum(axis=-1, keepdims=True) @ value


def ask_one(question, **arguments):
    found = masks.measure(softmax_attention, {question: {"": arguments}})
    return found[question][""]


def test_conventions_of_masks_are_told_apart():
    one, as_numbers = masks.ONE, masks.ONE.astype("float32")
    assert ask_one("one key", keep=one) == "visible"
    assert ask_one("one key", hide=one) == "hidden"
    assert ask_one("one key", added=as_numbers) == "added"
    assert ask_one("one key", added=masks.ONE_ADDED) == "visible"
    assert ask_one("one key") == "ignored"
    assert ask_one("one key", added=2 * as_numbers) == "other"
    assert ask_one("one key", key_mask=one).startswith("error: TypeError: ")
    assert ask_one("three masks", keep=masks.THREE) == "head"
    assert ask_one("three masks", keep=masks.THREE[:, None]) == "batch"
    assert ask_one("nothing", keep=masks.NOTHING) == "NaN"
    assert ask_one("nothing", keep=masks.NOTHING, empty=-1e9) == "uniform"
    assert ask_one("two queries, five keys", keep=np.tri(2, 5, 3, dtype=bool)) == ["xxxx.", "xxxxx"]
    assert ask_one("the batch", keep=masks.KEEP) < 1e-5
    assert ask_one("the batch", keep=~masks.PADDING[:, None, None]) is None  # no causal part


def test_fault_of_a_probe_is_no_answer():
    """Only what the library raises becomes an answer."""
    with pytest.raises(IndexError):
        masks.ask(masks.pattern, lambda: np.zeros(0))


CLAIMS = {
    "a polarity": ("JAX", "one key", "bool", "hidden"),
    "a corner": ("Keras", "two queries, five keys", "`use_causal_mask`", ["xxxx.", "xxxxx"]),
    "a corner with a cache": (
        "HuggingFace, eager", "two queries, five keys", "three keys in `past_key_values`", ["x....", "xx..."],
    ),
    "an empty row": ("HuggingFace, sdpa", "nothing", "`attention_mask`, padded on the left", "uniform"),
    "numbers that are added": ("ONNX", "one key", "0 and 1, int", "visible"),
    "an axis": ("JAX", "three masks", "rank 3", "batch"),
    "the batch": ("Keras", "the batch", "`attention_mask`, bool", None),
}  # fmt: skip


@pytest.fixture
def mask_page():
    """Runs cells of the page about masks, and holds what they define: (run, names)."""
    notebook = nbformat.read(rosetta.MASK_PAGE, as_version=4)
    cells = {cell.id: cell.source for cell in notebook.cells}
    space = {"json": json, "table": lambda *_: None}

    def run(name):
        exec(cells[name], space)  # noqa: S102

    run("results")
    run("others-batch")
    return run, space


def test_page_agrees_with_what_is_stored(mask_page, capsys):
    run_cell, _ = mask_page
    run_cell("others-checked")
    assert "agree" in capsys.readouterr().out


@pytest.mark.parametrize("claim", CLAIMS)
def test_page_refuses_a_result_that_contradicts_it(mask_page, claim):
    """The page's own check, with one stored answer turned round."""
    run_cell, names = mask_page
    library, question, way, answer = CLAIMS[claim]
    assert names["others"][library][question][way] != answer
    names["others"][library][question][way] = answer
    with pytest.raises(AssertionError):
        run_cell("others-checked")


def test_backend_of_keras_that_differs_is_refused(mask_page):
    run_cell, names = mask_page
    found = names["RESULTS"]["masks_keras_tensorflow"]["masks"]["keras.layers.MultiHeadAttention"]
    found["nothing"]["`attention_mask`, no weights"] = "zeros"
    with pytest.raises(AssertionError):
        run_cell("others-checked")
