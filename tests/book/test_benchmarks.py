"""The benchmark: it runs, it refuses to time what is not equal, and its page shows what is stored."""

import importlib.util
import json
import re
import subprocess
import sys
from pathlib import Path

import nbformat
import pytest
import torch
import yaml
from torch import nn
from widget_page import write_page
from widget_samples import SAMPLES

ROOT = Path(__file__).resolve().parents[2]
SCRIPT = ROOT / "benchmarks" / "bench_attention.py"
RESULTS = ROOT / "benchmarks" / "results.json"
APPENDIX = ROOT / "chapters" / "appendix_measurements.ipynb"


def load(name="bench_attention"):
    spec = importlib.util.spec_from_file_location(name, SCRIPT.with_name(f"{name}.py"))
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


bench = load()


# --------------------------------------------------------------------------------
# It runs


@pytest.fixture(scope="module")
def quick(tmp_path_factory):
    """What a quick run stores, and what it prints."""
    path = tmp_path_factory.mktemp("bench") / "results.json"
    done = subprocess.run(
        [sys.executable, SCRIPT, "--quick", "--output", path],
        capture_output=True,
        text=True,
        timeout=300,
        cwd=path.parent,
    )
    assert done.returncode == 0, done.stderr[-3000:]
    assert [entry.name for entry in path.parent.iterdir()] == ["results.json"]
    return json.loads(path.read_text(encoding="utf-8")), done.stdout


def test_quick_run_measures_every_part(quick):
    results, printed = quick
    assert len(results["layers"]) == len(bench.TINY_SIZES) * 2 * 2
    for row in results["layers"]:
        assert row["ms"].keys() == bench.CONTESTANTS.keys()
        assert [(r["of"], r["to"]) for r in row["ratios"]] == list(bench.PAIRS)
        assert all(ms > 0 for ms in row["ms"].values())
        assert row["difference"] < 2e-4
    assert results["decoding"][0]["ms"].keys() >= {"KeyValueCache", "everything again"}
    assert len(results["memory"]) == 2
    # Printed is a mark for each target; a missed one is no failure without --check.
    marks = re.findall(r"^[✓≈✗] ", printed, re.M)
    assert len(marks) == len(results["targets"]) > 16


# --------------------------------------------------------------------------------
# Equality comes first


class Wrong(nn.Module):
    """A contestant that is right but for one thing, chosen by `fault`."""

    def __init__(self, layer, fault):
        super().__init__()
        self.inner = bench.Folded(layer)
        self.fault = fault

    def forward(self, x, lens=None):
        if self.fault == "mask ignored":
            return self.inner(x, None)
        if self.fault == "one key more":
            return self.inner(x, (lens + 1).clamp(max=x.shape[1]))
        output, weights = self.inner(x, lens)
        if self.fault == "heads swapped":
            return output, weights.flip(1)
        if self.fault == "weights of another axis":
            return output, weights.mT
        if self.fault == "first sample for all":
            return output[:1].expand_as(output), weights
        if self.fault == "tokens reversed":
            return output.flip(1), weights
        if self.fault == "no gradient to the tokens":
            return self.inner(x.detach(), lens)[0] + 0 * x, weights
        if self.fault == "gradient doubled":
            return output + (output - output.detach()), weights
        if self.fault == "one parameter frozen":
            frozen = self.inner.v.weight
            return output - frozen.sum() * 1e-2 + frozen.detach().sum() * 1e-2, weights
        if self.fault == "wrong in training only":
            return output * (1.01 if self.training else 1), weights
        if self.fault == "wrong in eval only":
            return output * (1 if self.training else 1.01), weights
        if self.fault == "not a number":
            return output + torch.full((1,), torch.nan), weights
        if self.fault == "weights averaged":
            return output, weights.mean(1)
        return output, weights


FAULTS = (
    "mask ignored, one key more, heads swapped, weights of another axis, first sample for all, "
    "tokens reversed, no gradient to the tokens, gradient doubled, one parameter frozen, "
    "wrong in training only, wrong in eval only, not a number, weights averaged"
).split(", ")


def contestants(fault):
    def make():
        return bench.torch_layer(15, 5, "cpu")

    modules = {name: build(make()) for name, build in bench.CONTESTANTS.items()}
    return modules | {"wrong": Wrong(make(), fault)}


@pytest.mark.parametrize("fault", FAULTS)
def test_wrong_contestant_is_found(fault):
    x, lens = bench.tokens(3, 7, 15, True, "cpu")
    with pytest.raises(bench.NotEqualError, match=r"^wrong: "):
        bench.prove_equal(contestants(fault), x, lens)


def test_nothing_is_timed_where_one_contestant_is_wrong(monkeypatch):
    timed = []
    monkeypatch.setattr(bench, "rounds_of", lambda *args, **kwargs: timed.append(args))
    rows = bench.time_layers(
        [(3, 7, 15, 5)],
        device="cpu",
        compiled=False,
        seconds=0.0,
        least=1,
        contestants=bench.CONTESTANTS | {"wrong": lambda layer: Wrong(layer, "gradient doubled")},
    )
    with pytest.raises(bench.NotEqualError, match=r"^wrong: gradient"):
        next(rows)
    assert timed == []


@pytest.mark.parametrize("padding", [False, True])
def test_right_contestants_pass(padding):
    x, lens = bench.tokens(3, 7, 15, padding, "cpu")
    assert bench.prove_equal(contestants("none"), x, lens) < 2e-5
    if padding:
        assert lens.tolist() == [3, 5, 6]  # all different, so that a mix-up shows


def test_every_gradient_is_compared():
    layer = bench.torch_layer(15, 5, "cpu")
    x, lens = bench.tokens(3, 7, 15, True, "cpu")
    upstream = torch.ones_like(x)
    names = {f"gradient of {owner} {kind}" for owner in ("q", "k", "v", "out") for kind in ("weight", "bias")}
    for build in bench.CONTESTANTS.values():
        found = bench.outcome(build(layer), x, lens, upstream)
        assert {name for name in found if name.startswith("gradient")} == names | {"gradient of x"}


@pytest.mark.parametrize("way", ["KeyValueCache", "a buffer by hand"])
def test_wrong_decoding_is_not_timed(way, monkeypatch):
    right = bench.decoders

    def planted(*args):
        ways = right(*args)
        output = ways[way]()
        ways[way] = lambda: output.roll(1, dims=1)
        return ways

    monkeypatch.setattr(bench, "decoders", planted)
    with pytest.raises(bench.NotEqualError, match=way):
        bench.time_decoding(7, 6, 3, device="cpu", seconds=0.0, least=1)


# --------------------------------------------------------------------------------
# Rounds, ratios, targets, memory


def test_rounds_are_interleaved_and_every_place_is_taken_equally_often():
    called = []
    calls = {name: (lambda name=name: called.append(name)) for name in "abc"}
    bench.rounds_of(calls, device="cpu", seconds=0.0, least=6, shortest=0.0)
    warm_up, turns = called[:6], called[6:]
    assert warm_up == list("aabbcc")
    rounds = ["".join(turns[i : i + 3]) for i in range(0, len(turns), 3)]
    assert len(rounds) == 6
    assert all(sorted(order) == ["a", "b", "c"] for order in rounds)
    for place in range(3):
        assert sorted(order[place] for order in rounds) == sorted("aabbcc")


def test_ratio_is_that_of_the_medians_and_the_interval_shows_the_spread():
    steady = {"a": [3.0] * 9, "b": [2.0] * 9}
    assert bench.ratio_of_medians(steady, "a", "b") == {"ratio": 1.5, "low": 1.5, "high": 1.5}
    noisy = {"a": [3.0, 3.0, 30.0, 2.0, 3.0], "b": [1.0, 2.0, 2.0, 4.0, 2.0]}
    found = bench.ratio_of_medians(noisy, "a", "b")
    assert found["ratio"] == 1.5  # one slow round in five changes nothing
    assert found["low"] < 1.5 < found["high"]
    back = bench.ratio_of_medians(noisy, "b", "a")
    assert back["low"] == pytest.approx(1 / found["high"], abs=2e-3)


def made_up(ratio, low, high, largest=100):
    row = {
        "device": "cpu", "batch": 1, "len": 2048, "embed_dim": 8, "num_heads": 2, "padding": False,
        "direction": "forward", "ratios": [],
    }  # fmt: skip
    row["ratios"] = [{"of": of, "to": to, "ratio": ratio, "low": low, "high": high} for of, to in bench.PAIRS]
    memory = {
        "contestant": bench.OURS, "mask": "none", "direction": "forward", "device": "cpu",
        "len": 16, "largest_tensor": largest,
    }  # fmt: skip
    return {"layers": [row], "memory": [memory]}


def verdicts(results):
    return [target["verdict"] for target in bench.judge(results)]


def test_targets_are_judged():
    # Ours to torch's without weights, to heads in the batch, with weights; and memory.
    assert verdicts(made_up(0.4, 0.3, 0.45)) == ["met"] * 4
    assert verdicts(made_up(0.8, 0.7, 0.9)) == ["met", "missed", "met", "met"]
    assert verdicts(made_up(1.2, 1.1, 1.3)) == ["missed"] * 3 + ["met"]
    assert verdicts(made_up(1.01, 0.9, 1.1))[0] == "level"
    assert verdicts(made_up(0.4, 0.3, 0.45, largest=16**2))[-1] == "missed"
    short = made_up(0.8, 0.7, 0.9)
    short["layers"][0]["len"] = 512
    assert verdicts(short) == ["met"] * 3  # no target against heads in the batch here


@pytest.mark.parametrize(("ratio", "status"), [(0.3, 0), (1.5, 1)])
def test_check_tells_by_the_exit_status(ratio, status, monkeypatch, capsys):
    results = made_up(ratio, ratio, ratio)
    results["targets"] = bench.judge(results)
    monkeypatch.setattr(bench, "measure", lambda options: results)
    threads = torch.get_num_threads()
    assert bench.main(["--check", "--threads", str(threads)]) == status
    assert bench.main(["--threads", str(threads)]) == 0
    assert ("✗" in capsys.readouterr().out) == bool(status)


def test_listener_sees_the_largest_tensor():
    x = torch.ones(7, 11)
    with bench.LargestTensor() as seen:
        (x.T @ x).sum()
    assert seen.numbers == 121
    with bench.LargestTensor() as seen:
        torch.ones(13).expand(1000, 13)  # a view is as large as what it shows
        (x + 1)[:2].sum()
    assert seen.numbers == 77


@pytest.mark.parametrize("direction", [bench.FORWARD, bench.BACKWARD])
def test_memory_tells_weights_from_none(direction):
    size, square = (1, 512, 16, 2), 2 * 512**2
    found = {
        (name, mask): bench.measure_memory(name, mask, direction, size, "cpu")["largest_tensor"]
        for name, mask, way in bench.memory_cases()
        if way == direction
    }
    for mask in ("none", "padding", "causal"):
        assert found[bench.OURS, mask] <= 512 * 16
    assert found[bench.OURS_WEIGHTS, "none"] == found[bench.FOLDED, "none"] == square
    # Two masks in one have to be built.
    assert found[bench.OURS, "causal + padding"] == 512**2


def test_memory_of_a_process_is_its_own():
    """A large parent must not hide what its child takes."""
    parent = torch.ones(200_000_000)
    size = (1, 2048, 16, 2)
    few, many = (
        bench.memory_row((name, "none", bench.FORWARD), size=size, device="cpu")
        for name in (bench.OURS, bench.OURS_WEIGHTS)
    )
    assert len(parent) == 200_000_000
    weights = 4 * 2 * 2048**2 / 2**20
    assert few["megabytes"] < weights / 2 < weights < many["megabytes"] < 8 * weights


# --------------------------------------------------------------------------------
# What is stored, and what the page of measurements shows


@pytest.fixture(scope="module")
def stored():
    return json.loads(RESULTS.read_text(encoding="utf-8"))


def test_stored_results_are_those_of_a_full_run(stored):
    rows = {
        (row["batch"], row["len"], row["embed_dim"], row["num_heads"], row["padding"], row["direction"]):
            row["rounds"]
        for row in stored["layers"] if row["device"] == "cpu"
    }  # fmt: skip
    expected = {
        (*size, padding, direction)
        for size in bench.SIZES
        for padding in (False, True)
        for direction in (bench.FORWARD, bench.BACKWARD)
    }
    assert rows.keys() == expected
    assert min(rows.values()) >= 7
    assert {(r["contestant"], r["mask"], r["direction"]) for r in stored["memory"]} == set(
        bench.memory_cases()
    )
    assert {row["len"] for row in stored["memory"]} == {8192}
    assert {row["len"] for row in stored["decoding"]} == {512}
    assert stored["targets"] == bench.judge(stored)
    assert RESULTS.read_text(encoding="utf-8") == bench.stored(stored)


def test_stored_results_name_the_kind_of_machine_and_no_machine(stored):
    machine = stored["machine"]
    assert machine.keys() == bench.machine(1).keys()
    assert machine["processor"]
    assert machine["cores"] >= machine["threads"] >= 1
    import socket

    assert socket.gethostname() not in RESULTS.read_text(encoding="utf-8")


def test_appendix_carries_the_stored_results_and_shows_every_ratio(stored):
    notebook = nbformat.read(APPENDIX, as_version=4)
    [cell] = [cell for cell in notebook.cells if cell.id == "results"]
    assert cell.source == bench.results_cell(stored)
    shown = "\n".join(
        output.get("text", "") + output.get("data", {}).get("text/markdown", "")
        for cell in notebook.cells
        for output in cell.get("outputs", [])
    )
    pairs = [pair for pair in bench.PAIRS if pair != (bench.OURS_WEIGHTS, bench.FOLDED)]
    for row in stored["layers"]:
        for ratio in row["ratios"]:
            if (ratio["of"], ratio["to"]) in pairs:
                text = f"{ratio['ratio']:.2f} ({ratio['low']:.2f}–{ratio['high']:.2f})"
                assert text in shown, (row, ratio)
    for row in stored["memory"]:
        assert (
            f"| `{row['contestant']}` | {row['mask']} | {row['direction']} | {row['megabytes']:.0f} |"
            in shown
        )
    assert stored["machine"]["date"] in shown


def test_writing_the_cell_changes_nothing_else(stored, tmp_path):
    path = tmp_path / "appendix.ipynb"
    path.write_bytes(APPENDIX.read_bytes())
    changed = json.loads(json.dumps(stored))
    changed["machine"]["date"] = "2001-01-01"
    bench.write_cell(path, changed)
    before, after = (nbformat.read(file, as_version=4).cells for file in (APPENDIX, path))
    assert [a.id for a, b in zip(after, before, strict=True) if a != b] == ["results"]
    bench.write_cell(path, stored)
    assert path.read_bytes() == APPENDIX.read_bytes()


# --------------------------------------------------------------------------------
# Encoders


@pytest.fixture
def transformer(monkeypatch):
    monkeypatch.syspath_prepend(SCRIPT.parent)
    return load("bench_transformer")


def test_encoders_are_measured_against_each_other(transformer, tmp_path, capsys):
    path = tmp_path / "results.json"
    assert transformer.main(["--quick", "--output", str(path)]) == 0
    rows = json.loads(path.read_text(encoding="utf-8"))["encoders"]
    assert [row["what"] for row in rows] == [bench.FORWARD, bench.BACKWARD]
    for row in rows:
        assert row["ms"].keys() == {transformer.OURS, *transformer.OTHERS}
        for ratio in row["ratios"]:
            assert 0 < ratio["low"] <= ratio["ratio"] <= ratio["high"]


def test_encoders_that_differ_are_not_timed(transformer):
    found = transformer.encoders(12, 3, 2, 7)
    assert transformer.prove_equal(found, torch.randn(2, 7, 12)) < 2e-5
    with torch.no_grad():
        next(found[transformer.EAGER][0].parameters()).add_(0.01)
    with pytest.raises(AssertionError, match="not close"):
        transformer.prove_equal(found, torch.randn(2, 7, 12))


def test_stored_results_cover_all_encoders(transformer):
    results = json.loads((SCRIPT.parent / "results_transformer.json").read_text(encoding="utf-8"))
    assert results["machine"]["processor"] and results["machine"]["transformers"]
    measured = {(tuple(row["size"]), row["what"]) for row in results["encoders"]}
    assert measured == {(size, what) for size in transformer.SIZES for what in transformer.CALLS}
    for row in results["encoders"]:
        assert [ratio["to"] for ratio in row["ratios"]] == list(transformer.OTHERS)


# --------------------------------------------------------------------------------
# Widgets and pages


def test_widgets_and_pages_are_measured(browser, tmp_path, monkeypatch):
    widgets = load("bench_widgets")
    row, *others = widgets.measure_steps(browser, lambda: widgets.explorer(8, 8, 4), 20)
    assert row["control"] == "num_heads"
    assert row["steps"] == 20
    assert 0 < row["median"] <= row["p95"]
    assert others, "every slider is measured"

    # A page whose widget takes its place late, and one that keeps room for it.
    for name, room in (("moves", 0), ("stands", 300)):
        (tmp_path / f"{name}.html").write_text(
            f"""<!doctype html><div class="widget-host" style="min-height: {room}px"></div>
            <script type="application/vnd.jupyter.widget-view+json">{{}}</script><p>Below</p><script>
            setTimeout(() => {{
              const host = document.querySelector(".widget-host");
              host.innerHTML = '<div style="height: 300px"></div>';
              host.dataset.widget = "ready";
            }}, 400);</script>""",
            encoding="utf-8",
        )
    with widgets.serving(tmp_path) as address:
        moves, stands = (
            widgets.measure_page(browser, f"{address}/{name}.html", 1) for name in ("moves", "stands")
        )
        heights = widgets.measure_heights(browser, f"{address}/stands.html")
    assert moves["shift"] > 0 == stands["shift"]
    assert 400 <= moves["ready_ms"] < 5000
    assert moves["raw"] == (tmp_path / "moves.html").stat().st_size > moves["gzip"]
    assert heights == [[300, 300, 300]]
    limits = dict.fromkeys(widgets.LIMITS, 0)
    monkeypatch.setattr(widgets, "LIMITS", limits)
    slow = {**row, "widget": "W", "limit": 0}
    in_pages = [{**slow, "page": "p", "throttle": 4}, {**slow, "page": "p", "throttle": 1, "limit": None}]
    training = {"widget": "T", "steps": 300, "seconds": 20.1, "limit": 20}
    found = {"steps": [slow], "in_pages": in_pages, "training": training, "pages": [{"page": "p", **moves}]}
    assert len(widgets.missed(found)) == 3 + len(limits)
    training["seconds"] = 20
    assert len(widgets.missed(found)) == 2 + len(limits)


def test_a_step_ends_when_its_frame_is_painted(browser, tmp_path):
    """The browser's trace tells the order of its work: input, layout, paint, layers, end of step."""
    widgets = load("bench_widgets")
    path = write_page(tmp_path, [widgets.explorer(16, 8, 4)])
    page = browser.new_page()
    page.goto(path.as_uri())
    widgets.all_ready(page)
    browser.start_tracing(page=page, categories=["devtools.timeline", "cc", "blink.user_timing"])
    rows = widgets.measure_in_page(page, 7)
    trace = json.loads(browser.stop_tracing())["traceEvents"]
    page.close()
    assert [row["steps"] for row in rows] == [7, 7]
    inputs = [e for e in trace if e["name"] == "EventDispatch" and e["args"]["data"]["type"] == "input"]
    assert len(inputs) == 2 * (7 + 5), "five steps of each slider come before those that count"
    thread = (inputs[0]["pid"], inputs[0]["tid"])
    at = lambda *names: sorted(  # noqa: E731
        e["ts"] for e in trace if e["name"] in names and (e["pid"], e["tid"]) == thread
    )
    layouts, paints, layers = at("Layout"), at("Paint"), at("Layerize")
    ends = sorted(e["ts"] for e in trace if e["name"] == "painted")
    for event in inputs:
        end = next(ts for ts in ends if ts > event["ts"])
        for work in (layouts, paints, layers):
            assert any(event["ts"] < ts < end for ts in work)


def test_the_same_step_is_measured_in_a_page_of_the_book(browser, tmp_path):
    """On the landing page also with a slower processor; in a chapter also with a planted explorer."""
    widgets = load("bench_widgets")
    book = tmp_path / "book"
    book.mkdir()
    made = write_page(book, [widgets.explorer(5, 8, 2), SAMPLES["RotationDial"]()])
    (book / "index.html").write_text(
        made.read_text(encoding="utf-8").replace("../_static", "_static"), encoding="utf-8"
    )
    rows = widgets.in_page_rows(browser, book, 6)
    landing = [row for row in rows if row["page"] == "index.html"]
    assert {row["throttle"]: row["limit"] for row in landing} == {1: 16, 4: 50}
    controls = {row["control"] for row in landing}
    assert controls >= {"num_heads", "valid_len", "query_position"}
    [*firsts, heads, visible] = [row for row in rows if row["page"] == "chapters/page.html"]
    assert [row["widget"] for row in firsts] == ["Head explorer", "Rotation dial"]
    assert heads["widget"] == visible["widget"] == "planted head explorer, 64 tokens, 8 heads"
    assert [heads["control"], visible["control"]] == ["num_heads", "valid_len"]
    assert heads["limit"] == visible["limit"] == 24
    assert all(row["steps"] == 6 and row["p95"] > 0 for row in rows)


def test_the_planted_explorer_is_the_one_that_is_measured(browser, tmp_path):
    """The page's own first widget is an explorer in pixels too; only the planted one has 64 tokens."""
    widgets = load("bench_widgets")
    path = write_page(tmp_path, [widgets.explorer(30, 8, 4)])
    page = browser.new_page()
    page.goto(path.as_uri())
    widgets.all_ready(page)
    root = widgets.plant(page, widgets.explorer(*widgets.LARGE))
    assert page.locator(".mha-widget:has(.mha-pixels)").count() == 2
    own, planted = (
        page.locator(".mha-widget").nth(index).get_by_role("slider", name="valid_len") for index in (0, 1)
    )
    # What is measured moves each slider 7 times, the last time to another place than the first.
    rows = widgets.measure_in_page(page, 2, roots=[root])
    assert [row["control"] for row in rows] == ["num_heads", "valid_len"]
    assert planted.get_attribute("max") == "64"
    assert int(planted.input_value()) != 64
    assert own.input_value() == own.get_attribute("max") == "30"
    page.close()


def test_a_training_is_measured_to_its_last_step(browser, monkeypatch):
    """The seconds hold all frames, the longest gap is one of them, and a frame that is late is seen."""
    widgets = load("bench_widgets")
    row = widgets.measure_training(browser, 12)
    assert 12 <= row["steps"] < 20, "a pause ends it, and what was under way is not counted"
    assert row["limit"] == 20
    assert row["in_a_worker"]
    longest = row["longest_gap_ms"] / 1000
    assert row["seconds"] / row["frames"] - 1e-3 <= longest <= row["seconds"] + 0.01
    # A page that stands still for half a second between two frames.
    late = "setTimeout(() => { const end = performance.now() + 500; while (performance.now() < end); });"
    monkeypatch.setattr(widgets, "TRAIN", widgets.TRAIN.replace("play.click();\n  request", late + "request"))
    monkeypatch.setattr(widgets, "TRAIN", widgets.TRAIN.replace("taken < steps", "frames < 40"))
    assert widgets.measure_training(browser, 12)["longest_gap_ms"] >= 500


def test_stored_results_cover_all_widgets_and_pages():
    results = json.loads((ROOT / "benchmarks" / "results_widgets.json").read_text(encoding="utf-8"))
    assert results["machine"]["processor"] and results["machine"]["chromium"]
    measured = {row["widget"] for row in results["steps"]}
    assert measured >= {*SAMPLES} - load("bench_widgets").STILL
    assert len([row for row in results["steps"] if row["limit"]]) > 1
    limits = {}
    for row in results["in_pages"]:
        assert row["control"] and row["steps"] >= 100 and 0 < row["median"] <= row["p95"]
        limits.setdefault((row["page"], row["throttle"]), set()).add(row["limit"])
    assert limits["index.html", 1] == {16}
    assert limits["index.html", 4] == {50}
    planted = [row for row in results["in_pages"] if row["widget"] == load("bench_widgets").PLANTED]
    assert {row["control"] for row in planted} == {"num_heads", "valid_len"}
    assert {row["limit"] for row in planted} == {24}
    training = results["training"]
    assert training["steps"] == 300
    assert training["limit"] == 20
    assert training["seconds"] > 0
    assert training["longest_gap_ms"] > 0
    assert training["in_a_worker"]
    toc = yaml.safe_load((ROOT / "_toc.yml").read_text(encoding="utf-8"))
    chapters = [entry["file"] for part in toc["parts"] for entry in part["chapters"]]
    pages = {row["page"].removesuffix(".html") for row in results["pages"]}
    assert pages >= {toc["root"], *chapters}
