"""The published chat model in our classes and in HuggingFace's: reading a prompt, and writing with the cache.

    python benchmarks/bench_chat.py [--quick] [--output FILE]

Both hold the same parameters in float32 and write the same tokens, which is checked first. Each is called as
its users call it: `mha_lib.generate`, and transformers' `generate` with its two kinds of attention. To read
is to write one token after a long prompt; to write is to add many tokens to a short one. How ratios are
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

import torch
import transformers
from rounds import medians, processor, ratio_of_medians, rounds_of

import mha_lib
from mha_course.data.published import CHAT_PACKAGE, chat_file, load_chat_model
from mha_lib import Llama, generate
from mha_lib.models.checkpoints import save_checkpoint

# What is measured: tokens of the prompt, new tokens.
TASKS = {"read": (256, 1), "write": (8, 32)}
QUICK_TASKS = {"read": (16, 1), "write": (4, 6)}
BATCHES = (1, 8)
OURS, KINDS = "mha_lib", ("eager", "sdpa")


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


def calls_of(ours, theirs, prompt, new):
    """For each contestant a function that returns the new tokens, (batch, new)."""

    def of_transformers(model):
        options = {"max_new_tokens": new, "do_sample": False, "pad_token_id": 0}
        everything = torch.ones_like(prompt)
        return lambda: model.generate(prompt, attention_mask=everything, **options)[
            :, prompt.shape[1] :
        ]

    calls = {OURS: lambda: generate(ours, prompt, max_new=new)[0][:, 0]}
    return calls | {
        f"transformers, {kind}": of_transformers(model)
        for kind, model in theirs.items()
    }


def measure(models, tasks, seconds, least):
    """Yield one row for each task and batch size; raises if two contestants write different tokens."""
    ours, theirs = models
    vocabulary = len(ours.embedding.weight)
    for task, (length, new) in tasks.items():
        for batch in BATCHES:
            generator = torch.Generator().manual_seed(batch)
            prompt = torch.randint(3, vocabulary, (batch, length), generator=generator)
            calls = calls_of(ours, theirs, prompt, new)
            answers = {name: call() for name, call in calls.items()}
            for name, answer in answers.items():
                if not torch.equal(answer, answers[OURS]):
                    raise RuntimeError(
                        f"{task}, batch {batch}: {name} writes other tokens than {OURS}"
                    )
            rounds = rounds_of(calls, seconds=seconds, least=least)
            ratios = {
                name: ratio_of_medians(rounds, OURS, name)
                for name in calls
                if name != OURS
            }
            yield {
                "task": task, "batch": batch, "prompt": length, "new": new,
                "rounds": len(rounds[OURS]), "ms": medians(rounds), "ratios": ratios,
            }  # fmt: skip


def main(arguments=None):
    """Run from the command line."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument(
        "--quick", action="store_true", help="a tiny random model, few rounds"
    )
    parser.add_argument("--output", type=Path, help="a JSON file for the results")
    options = parser.parse_args(arguments)
    torch.set_num_threads(1)
    transformers.logging.disable_progress_bar()
    tasks = QUICK_TASKS if options.quick else TASKS
    models = (tiny_models if options.quick else published_models)(max_len=320)
    machine = {
        "processor": processor(), "threads": 1, "clock": "processor time", "system": platform.system(),
        "python": platform.python_version(), "torch": torch.__version__, "mha_lib": mha_lib.__version__,
        "transformers": transformers.__version__, "date": datetime.date.today().isoformat(),
        "model": "tiny, random" if options.quick else CHAT_PACKAGE,
    }  # fmt: skip
    rows = []
    start = time.perf_counter()
    with torch.inference_mode():
        for row in measure(models, tasks, seconds=1 if options.quick else 60, least=3):
            rows.append(row)
            told = ", ".join(
                f"{r['ratio']:.2f} ({r['low']:.2f} to {r['high']:.2f}) of {name}"
                for name, r in row["ratios"].items()
            )
            print(f"{row['task']:5} batch {row['batch']}: {told}", flush=True)
    print(f"{time.perf_counter() - start:.0f} s")
    if options.output:
        options.output.write_text(
            json.dumps({"machine": machine, "rows": rows}, indent=1) + "\n"
        )


if __name__ == "__main__":
    main()
