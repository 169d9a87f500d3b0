"""Time of the layer from nothing and of each framework's own layer, as ratios within one framework.

    python benchmarks/bench_rosetta.py [--quick] [--only NAME ...] [--output FILE] [--notebook FILE]

Every framework runs in its environment of `make rosetta`, in a process of its own that keeps to one thread
and one core. The layers hold the same weights and must give the same output before they are timed, in
processor time, which does not run while another program has the core. How ratios are measured, rounds.py
says. Frameworks are not compared with each other.
"""

import argparse
import datetime
import importlib
import json
import os
import subprocess
import sys
from pathlib import Path

import numpy as np
from rounds import medians, processor, ratio_of_medians, rounded, rounds_of, write_cell

HERE = Path(__file__).resolve().parent
FOLDER = HERE.parent / "chapters" / "rosetta"
SIZES = ((2, 16, 64, 4), (4, 256, 256, 8))  # batch, length, embed_dim, num_heads
TINY_SIZES = ((2, 4, 12, 3),)
ROUNDS, LEAST_SECONDS = 31, 0.02  # rounds of calls that take at least so long together
NOTHING, OWN, PLAIN = "from nothing", "own layer", "own layer, no weights"
ONE_THREAD = {
    **dict.fromkeys(
        ("OMP_NUM_THREADS", "MKL_NUM_THREADS", "OPENBLAS_NUM_THREADS"), "1"
    ),
    **dict.fromkeys(("TF_NUM_INTRAOP_THREADS", "TF_NUM_INTEROP_THREADS"), "1"),
    "XLA_FLAGS": "--xla_cpu_multi_thread_eigen=false intra_op_parallelism_threads=1",
}
# The frameworks that have something of their own, and the modules that they run.
MODULES = {
    "pytorch": "attention_pytorch",
    "jax": "attention_jax",
    "tensorflow": "attention_tensorflow",
    "keras_jax": "attention_keras",
    "keras_torch": "attention_keras",
    "paddle": "attention_paddle",
    "mxnet": "attention_mxnet",
}


# --------------------------------------------------------------------------------
# In the framework's process. Each function returns {name: call without arguments that returns a numpy array}.


def make_case(size, kind):
    """Self-attention without a mask; `kind` is the class of the cases."""
    batch, length, width, heads = size
    draw = np.random.default_rng(0).standard_normal
    x = draw((batch, length, width))
    names = ("q_proj", "k_proj", "v_proj", "out_proj")
    weights = {f"{name}.weight": draw((width, width)) / width**0.5 for name in names}
    return kind("speed", heads, x, x, x, None, False, weights, x)


def without(no_grad, call, *inputs):
    """A call that keeps nothing for gradients and returns its result as numpy has it."""

    def run():
        with no_grad():
            return call(*inputs).numpy()

    return run


def pytorch(module, case):
    """Eager torch."""
    import torch

    torch.set_num_threads(1)
    inputs = [torch.tensor(x) for x in case.inputs("float32")]
    _, nothing = module.layer_from_nothing(case, torch.float32)
    layer, own = module.torch_layer(case, torch.float32)
    calls = {
        NOTHING: lambda: nothing(*inputs, None, False)[0],
        OWN: lambda: own(*inputs, None, False)[0],
        PLAIN: lambda: layer(*inputs, need_weights=False)[0],
    }

    return {name: without(torch.no_grad, call) for name, call in calls.items()}


def jax(module, case):
    """Compiled with `jax.jit`."""
    from flax import nnx

    inputs = [module.jnp.asarray(x) for x in case.inputs("float32")]

    def compiled(layer, call):
        graph, state = nnx.split(layer)

        @module.jax.jit
        def run(state, *inputs):
            output = call(nnx.merge(graph, state), *inputs)
            return output[0] if isinstance(output, tuple) else output

        return lambda: np.asarray(run(state, *inputs))

    layer, nothing = module.layer_from_nothing(case, "float32")
    own_layer, own = module.flax_layer(case, "float32")
    return {
        NOTHING: compiled(layer, lambda layer, *x: nothing(layer, *x, None, False)),
        OWN: compiled(own_layer, lambda layer, *x: own(layer, *x, None, False)),
        PLAIN: compiled(own_layer, lambda layer, *x: layer(*x)),
    }


def tensorflow(module, case):
    """Compiled with `tf.function`."""
    tf = module.tf
    inputs = [tf.constant(x) for x in case.inputs("float32")]
    _, nothing = module.layer_from_nothing(case, "float32")
    layer, own = module.keras_layer(case, "float32")
    calls = {
        NOTHING: tf.function(lambda *x: nothing(*x)[0]),
        OWN: tf.function(lambda *x: own(*x, None, False)[0]),
        PLAIN: tf.function(lambda query, key, value: layer(query, value, key)),
    }
    return {
        name: lambda call=call: call(*inputs).numpy() for name, call in calls.items()
    }


def keras(module, case):
    """Compiled with `jax.jit` on JAX, eager on torch."""
    ops, backend = module.ops, module.BACKEND
    inputs = [ops.convert_to_tensor(x) for x in case.inputs("float32")]
    _, nothing = module.layer_from_nothing(case, "float32")
    layer, own = module.keras_layer(case, "float32")
    calls = {
        NOTHING: lambda *x: nothing(*x)[0],
        OWN: lambda *x: own(*x, None, False)[0],
        PLAIN: lambda query, key, value: layer(query, value, key),
    }
    if backend == "jax":
        calls = {name: module.jax.jit(call) for name, call in calls.items()}
        return {
            name: lambda call=call: np.asarray(call(*inputs))
            for name, call in calls.items()
        }

    no_grad = module.torch.no_grad
    return {name: without(no_grad, call, *inputs) for name, call in calls.items()}


keras_jax = keras_torch = keras


def paddle(module, case):
    """Eager Paddle."""
    inputs = [module.paddle.to_tensor(x) for x in case.inputs("float32")]
    _, nothing = module.layer_from_nothing(case, "float32")
    _, own = module.paddle_layer(case, "float32")
    calls = {
        NOTHING: lambda: nothing(*inputs, None, False)[0],
        OWN: lambda: own(*inputs, None, False)[0],
    }
    no_grad = module.paddle.no_grad
    return {name: without(no_grad, call) for name, call in calls.items()}


def mxnet(module, case):
    """Gluon's block from nothing, and MXNet's own operators for self-attention."""
    array = module.np.array
    query = array(case.inputs("float32")[0])
    layer = module.MultiHeadAttention(case.sizes["embed_dim"], case.num_heads, False)
    layer.initialize()
    layer(query, query, query)
    for name, weight in case.weights.items():
        getattr(layer, name.partition(".")[0]).weight.set_data(
            array(weight, dtype="float32")
        )
    stacked = module.convert(case.weights, "mha_lib", "mxnet", case.num_heads)
    parameters = {
        name: module.mxnet.nd.array(w, dtype="float32") for name, w in stacked.items()
    }
    keep = module.build_mask(*query.shape[1:2] * 2)
    return {
        NOTHING: lambda: layer(query, query, query)[0].asnumpy(),
        OWN: lambda: module.interleaved(parameters, query, keep, case.num_heads)[
            0
        ].asnumpy(),
    }


def measure(name, sizes, least):
    """Time one framework, in its own process."""
    if hasattr(os, "sched_setaffinity"):
        os.sched_setaffinity(0, {min(os.sched_getaffinity(0))})
    sys.path.insert(0, str(FOLDER))
    module = importlib.import_module(MODULES[name])
    kind = importlib.import_module("program").Case
    rows = []
    for size in sizes:
        calls = globals()[name](module, make_case(size, kind))
        outputs = {way: call() for way, call in calls.items()}
        for way, output in outputs.items():
            difference = np.abs(output - outputs[NOTHING]).max()
            if not difference < 1e-4:
                raise ValueError(f"{name}, {size}: {way} differs by {difference:.1g}")
        rounds = rounds_of(calls, seconds=0, least=least, shortest=LEAST_SECONDS)
        ratios = {
            way: [
                rounded(r, 3) for r in ratio_of_medians(rounds, way, NOTHING).values()
            ]
            for way in calls
            if way != NOTHING
        }
        rows.append({"size": size, "ms": medians(rounds, 3), "ratios": ratios})
    return rows


# --------------------------------------------------------------------------------
# In the process that starts them


def run_all(only, quick):
    """Start every framework, one after another, and return what is stored."""
    sys.path.insert(0, str(HERE.parent / "tools"))
    import rosetta

    stored, found = rosetta.load_stored()["programs"], {}
    for name in only:
        program = rosetta.PROGRAMS[name]
        try:
            python = rosetta.interpreter(program.environment)
        except rosetta.NotRunError as error:
            found[name] = {"title": program.title, "not run": str(error)}
            print(f"{name}: NOT RUN: {error}", flush=True)
            continue
        settings = {**os.environ, **ONE_THREAD, "PYTHONPATH": str(HERE.parent)}
        settings |= {k: v for k, v in program.settings.items() if k != "XLA_FLAGS"}
        done = subprocess.run(
            [python, __file__, "--child", name, *(["--quick"] if quick else [])],
            capture_output=True, text=True, env=settings, timeout=600,
        )  # fmt: skip
        if done.returncode != 0:
            raise RuntimeError(f"{name} failed:\n{done.stderr[-3000:]}")
        rows = json.loads(done.stdout.splitlines()[-1])
        versions = stored[name].get("versions", {})
        found[name] = {"title": program.title, "versions": versions, "rows": rows}
        print(f"{name}: {[row['ratios'] for row in rows]}", flush=True)
    return {
        "machine": {
            "processor": processor(),
            "cores": os.cpu_count(),
            "threads": 1,
            "date": datetime.date.today().isoformat(),
        },
        "programs": found,
    }


def speed_cell(results):
    """Source of the cell that carries the results into the page, which must run without this repository."""
    lines = ",\n".join(
        f"{json.dumps(name)}: {json.dumps(found)}"
        for name, found in results["programs"].items()
    )
    return (
        "# `make bench-rosetta` writes this cell from benchmarks/results_rosetta.json. Do not edit it.\n"
        f'SPEED = json.loads(r"""{{"machine": {json.dumps(results["machine"])}, "programs": {{\n'
        f'{lines}\n}}}}""")  # noqa: E501'
    )


def main(arguments=None):
    """Run from the command line."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument(
        "--quick",
        action="store_true",
        help="tiny sizes and few rounds, to see that it runs",
    )
    parser.add_argument("--only", nargs="+", choices=MODULES, default=list(MODULES))
    parser.add_argument("--output", type=Path, help="where to store the results")
    parser.add_argument(
        "--notebook", type=Path, help='whose cell "speed" is written too'
    )
    parser.add_argument("--child", choices=MODULES, help=argparse.SUPPRESS)
    options = parser.parse_args(arguments)
    if options.child:
        sizes, rounds = (TINY_SIZES, 3) if options.quick else (SIZES, ROUNDS)
        print(json.dumps(measure(options.child, sizes, rounds)))
        return 0
    results = run_all(options.only, options.quick)
    if options.output:
        text = json.dumps(results, indent=1) + "\n"
        options.output.write_text(text, encoding="utf-8")
    if options.notebook:
        write_cell(options.notebook, "speed", speed_cell(results))
    return 0


if __name__ == "__main__":
    sys.exit(main())
