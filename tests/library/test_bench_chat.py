"""The benchmark of the chat model, on a tiny one: every row is there, and different answers stop it."""

import bench_chat as bench
import pytest
import torch


@pytest.fixture(scope="module")
def models():
    return bench.tiny_models(max_len=40)


def test_every_task_and_batch_has_a_ratio_to_each_kind_of_attention(models):
    with torch.inference_mode():
        rows = list(bench.measure(models, bench.QUICK_TASKS, seconds=0, least=2))
    assert [(row["task"], row["batch"]) for row in rows] == [
        ("read", 1), ("read", 8), ("write", 1), ("write", 8),
    ]  # fmt: skip
    for row in rows:
        assert row["ratios"].keys() == {"transformers, eager", "transformers, sdpa"}
        assert row["ms"].keys() == {"mha_lib", *row["ratios"]}
        assert all(0 < found["low"] <= found["ratio"] <= found["high"] for found in row["ratios"].values())


def test_what_is_timed_writes_as_many_new_tokens_as_the_task_says(models):
    prompt = torch.randint(3, 97, (2, 5), generator=torch.Generator().manual_seed(0))
    with torch.inference_mode():
        answers = [call() for call in bench.calls_of(*models, prompt, 7).values()]
    assert len(answers) == 3
    assert all(answer.shape == (2, 7) for answer in answers)


def test_contestants_that_write_different_tokens_are_not_compared(models):
    ours, _ = models
    torch.manual_seed(1)
    other = bench.tiny_models(max_len=40)[1]
    with torch.no_grad():
        for parameter in other["sdpa"].parameters():
            parameter.normal_()
    with (
        torch.inference_mode(),
        pytest.raises(RuntimeError, match=r"^read, batch 1: transformers, sdpa writes"),
    ):
        list(bench.measure((ours, other), bench.QUICK_TASKS, seconds=0, least=1))
