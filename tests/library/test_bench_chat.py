"""The benchmark of the chat model, on a tiny one: every row is there, and different answers stop it."""

import json
from pathlib import Path

import bench_chat as bench
import pytest
import torch

ROOT = Path(__file__).resolve().parents[2]


@pytest.fixture(scope="module")
def models():
    return bench.tiny_models(max_len=40)


def test_every_task_has_a_ratio_to_each_kind_of_attention_in_both_dtypes():
    models = bench.tiny_models(max_len=40)  # of its own, because their dtype changes
    with torch.inference_mode():
        rows = list(bench.measure(models, bench.QUICK_TASKS, seconds=0, least=2))
    assert [(row["dtype"], row["name"], row["batch"], row["padded"]) for row in rows] == [
        (dtype, *task) for dtype in ("float32", "bfloat16")
        for task in (("read", 1, False), ("write", 1, False), ("write", 8, True))
    ]  # fmt: skip
    for row in rows:
        assert row["ratios"].keys() == {"transformers, eager", "transformers, sdpa"}
        assert row["ms"].keys() == {"mha_lib", *row["ratios"]}
        assert all(0 < found["low"] <= found["ratio"] <= found["high"] for found in row["ratios"].values())
    assert all(row["same"] == 1 for row in rows[:3])
    assert all(0 < row["same"] <= 1 for row in rows[3:])


def test_what_is_timed_writes_as_many_new_tokens_as_the_task_says(models):
    prompts, real = bench.prompts_of(bench.Task("write", 2, 5, 7), 97)
    assert real.all()
    with torch.inference_mode():
        answers = [call() for call in bench.calls_of(*models, prompts, real, 7).values()]
    assert len(answers) == 3
    assert all(answer.shape == (2, 7) for answer in answers)


def test_padded_prompts_have_every_length_and_are_padded_on_the_left():
    prompts, real = bench.prompts_of(bench.Task("write", 5, 5, 7, padded=True), 97)
    assert real.sum(1).tolist() == [5, 4, 3, 2, 1]
    assert real[:, -1].all()
    assert (prompts[~real] == 0).all() and (prompts[real] >= 3).all()


def test_contestants_that_write_different_tokens_are_not_compared(models):
    ours, _ = models
    torch.manual_seed(1)
    other = bench.tiny_models(max_len=40)[1]
    with torch.no_grad():
        for parameter in other["sdpa"].parameters():
            parameter.normal_()
    with (
        torch.inference_mode(),
        pytest.raises(RuntimeError, match=r"name='read'.*: transformers, sdpa writes other tokens"),
    ):
        list(bench.measure((ours, other), bench.QUICK_TASKS, seconds=0, least=1))


def test_the_cell_of_the_page_holds_what_the_file_holds():
    results = {"machine": {"threads": 1}, "rows": [{"name": "read", "ms": {"mha_lib": 1.5}}]}
    assert json.loads(bench.stored(results)) == results
    cell = bench.results_cell(results)
    assert json.loads(cell.split('"""')[1]) == results


def test_the_page_holds_the_results_of_the_file():
    results = json.loads((ROOT / "benchmarks" / "results_chat.json").read_text(encoding="utf-8"))
    page = json.loads((ROOT / "chapters" / "appendix_efficiency.ipynb").read_text(encoding="utf-8"))
    [cell] = [cell for cell in page["cells"] if cell["id"] == "results-chat"]
    assert "".join(cell["source"]) == bench.results_cell(results)
    assert [bench.Task(*(row[name] for name in bench.Task._fields)) for row in results["rows"]] == 2 * list(
        bench.TASKS
    )
