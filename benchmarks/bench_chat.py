"""The published chat model in our classes and in HuggingFace's: reading a prompt, and writing with the cache.

    python benchmarks/bench_chat.py [--quick] [--output FILE] [--notebook FILE]

Both hold the same parameters. In float32 they must write the same tokens, which is checked first; in bfloat16
rounding may decide between two near tokens, so a row counts the tokens that all of them share. Each is called
as its users call it: `mha_lib.generate`, and transformers' `generate` with its two kinds of attention. To
read is to write one token after a prompt; to write is to add many tokens to a short one. How ratios are
measured, rounds.py says. One thread is measured in processor time, which does not run while another program
has the core. Run it on a machine that does nothing else: programs on the other cores still share its memory.
With --quick, a tiny random model takes the place of the published one.
"""

import argparse
import datetime
import json
import platform
import tempfile
import time
from pathlib import Path
from typing import NamedTuple

import torch
import transformers
from rounds import medians, processor, ratio_of_medians, rounds_of, write_cell

import mha_lib
from mha_course.data.published import CHAT_PACKAGE, chat_file, load_chat_model
from mha_lib import Llama, generate
from mha_lib.models.checkpoints import save_checkpoint

OURS, KINDS = "mha_lib", ("eager", "sdpa")


class Task(NamedTuple):
    """What is measured in a row."""

    name: str
    batch: int
    prompt: int  # tokens
    new: int
    padded: bool = False  # prompts of different lengths, with padding on the left


TASKS = (
    Task("read", 1, 16, 1),
    Task("read", 1, 256, 1),
    Task("read", 1, 2000, 1),
    Task("write", 1, 8, 32),
    Task("write", 8, 8, 32),
    Task("write", 8, 8, 32, padded=True),
)
QUICK_TASKS = (
    Task("read", 1, 16, 1),
    Task("write", 1, 4, 6),
    Task("write", 8, 4, 6, padded=True),
)
DTYPES = (torch.float32, torch.bfloat16)


def published_models(max_len):
    """The library's model, and HuggingFace's with each kind of attention; both read the same file."""
    folder, name = chat_file().parent, chat_file().name
    ours, _ = load_chat_model(max_len=max_len)
    return ours, {
        kind: read_by_transformers(folder, kind, gguf_file=name) for kind in KINDS
    }


def tiny_models(max_len):
    """The same with few random parameters."""
    torch.manual_seed(0)
    sizes = (97, 24, 6, 32, 2)
    ours = (
        Llama(*sizes, max_len=max_len, num_kv_heads=3, tied=True)
        .eval()
        .requires_grad_(False)
    )
    with tempfile.TemporaryDirectory() as folder:
        save_checkpoint(ours, folder)
        return ours, {kind: read_by_transformers(folder, kind) for kind in KINDS}


def read_by_transformers(folder, kind, **options):
    """HuggingFace's model of a folder, which never ends a text early."""
    model = transformers.AutoModelForCausalLM.from_pretrained(
        folder,
        attn_implementation=kind,
        dtype=torch.float32,
        local_files_only=True,
        **options,
    )
    model.generation_config.eos_token_id = None
    return model.eval()


def prompts_of(task, vocabulary):
    """Random prompts and which of their tokens are real, both (batch, len)."""
    generator = torch.Generator().manual_seed(task.batch)
    shape = (task.batch, task.prompt)
    prompts = torch.randint(3, vocabulary, shape, generator=generator)
    lens = torch.full((task.batch,), task.prompt)
    if task.padded:
        lens -= torch.arange(task.batch) % task.prompt
    first_real = (task.prompt - lens).unsqueeze(1)
    real = torch.arange(task.prompt) >= first_real
    return prompts.where(real, 0), real


def calls_of(ours, theirs, prompts, real, new):
    """For each contestant a function that returns the new tokens, (batch, new)."""

    def of_transformers(model):
        options = {"max_new_tokens": new, "do_sample": False, "pad_token_id": 0}
        return lambda: model.generate(prompts, attention_mask=real.long(), **options)[
            :, prompts.shape[1] :
        ]

    # A caller knows whether there is padding.
    key_mask = None if real.all() else real
    calls = {
        OURS: lambda: generate(ours, prompts, max_new=new, key_mask=key_mask)[0][:, 0]
    }
    return calls | {
        f"transformers, {kind}": of_transformers(model)
        for kind, model in theirs.items()
    }


def measure(models, tasks, seconds, least):
    """Yield one row for each dtype and task; raises if two contestants write different tokens in float32."""
    ours, theirs = models
    vocabulary = len(ours.embedding.weight)
    for dtype in DTYPES:
        for model in (ours, *theirs.values()):
            model.to(dtype)
        for task in tasks:
            prompts, real = prompts_of(task, vocabulary)
            calls = calls_of(ours, theirs, prompts, real, task.new)
            answers = {name: call() for name, call in calls.items()}
            same = torch.stack(
                [answer == answers[OURS] for answer in answers.values()]
            ).all(0)
            if dtype == torch.float32 and not same.all():
                names = [
                    n
                    for n, answer in answers.items()
                    if not answer.equal(answers[OURS])
                ]
                raise RuntimeError(
                    f"{task}: {names[0]} writes other tokens than {OURS}"
                )
            rounds = rounds_of(calls, seconds=seconds, least=least)
            ratios = {
                name: ratio_of_medians(rounds, OURS, name)
                for name in calls
                if name != OURS
            }
            yield {
                "dtype": str(dtype).removeprefix("torch."), **task._asdict(),
                "same": round(same.float().mean().item(), 3),
                "rounds": len(rounds[OURS]), "ms": medians(rounds), "ratios": ratios,
            }  # fmt: skip


def stored(results):
    """The results as JSON, one row a line."""
    rows = ",\n".join("  " + json.dumps(row) for row in results["rows"])
    return f'{{"machine": {json.dumps(results["machine"])},\n "rows": [\n{rows}\n]}}\n'


def results_cell(results):
    """Source of the cell that carries the results into a page, which must run without this repository."""
    return (
        "import json\n\n"
        "# `make bench-chat` writes this cell from benchmarks/results_chat.json. Do not edit it.\n"
        f'CHAT = json.loads("""\n{stored(results).rstrip()}\n""")  # noqa: E501'
    )


def main(arguments=None):
    """Run from the command line."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument(
        "--quick", action="store_true", help="a tiny random model, few rounds"
    )
    parser.add_argument("--output", type=Path, help="a JSON file for the results")
    parser.add_argument("--notebook", type=Path, help="whose results cell is written")
    options = parser.parse_args(arguments)
    torch.set_num_threads(1)
    transformers.logging.disable_progress_bar()
    tasks = QUICK_TASKS if options.quick else TASKS
    longest = max(task.prompt + task.new for task in tasks)
    models = (tiny_models if options.quick else published_models)(max_len=longest)
    machine = {
        "processor": processor(), "threads": 1, "clock": "processor time", "system": platform.system(),
        "python": platform.python_version(), "torch": torch.__version__, "mha_lib": mha_lib.__version__,
        "transformers": transformers.__version__, "date": datetime.date.today().isoformat(),
        "model": "tiny, random" if options.quick else CHAT_PACKAGE,
    }  # fmt: skip
    rows = []
    start = time.perf_counter()
    with torch.inference_mode():
        for row in measure(models, tasks, seconds=1 if options.quick else 40, least=3):
            rows.append(row)
            told = ", ".join(
                f"{r['ratio']:.2f} ({r['low']:.2f} to {r['high']:.2f}) of {name}"
                for name, r in row["ratios"].items()
            )
            padded = ", padded" if row["padded"] else ""
            size = f"{row['name']:5} {row['batch']} x {row['prompt']}{padded}"
            print(f"{row['dtype']:8} {size}: {told}", flush=True)
    print(f"{time.perf_counter() - start:.0f} s")
    results = {"machine": machine, "rows": rows}
    if options.output:
        options.output.write_text(stored(results), encoding="utf-8")
    if options.notebook:
        write_cell(options.notebook, "results-chat", results_cell(results))


if __name__ == "__main__":
    main()
