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
from functools import partial
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
    **{f"{name}_NUM_THREADS": "1" for name in ("OMP", "MKL", "OPENBLAS")},
    **{f"TF_NUM_{kind}_THREADS": "1" for kind in ("INTRAOP", "INTEROP")},
    "XLA_FLAGS": "--xla_cpu_multi_thread_eigen=false intra_op_parallelism_threads=1",
}
# The frameworks that have something of their own, and the modules that they run.
NAMES = "pytorch jax tensorflow keras_jax keras_torch paddle mxnet".split()
MODULES = {name: f"attention_{name.partition('_')[0]}" for name in NAMES}


# --------------------------------------------------------------------------------
# In the framework's process. Each function returns calls without arguments, whose results are
# outputs or begin with one.


def make_case(size, kind):
    """Self-attention without a mask; `kind` is the class of the cases."""
    batch, length, width, heads = size
    draw = np.random.default_rng(0).standard_normal
    x = draw((batch, length, width))
    names = ("q_proj", "k_proj", "v_proj", "out_proj")
    weights = {f"{name}.weight": draw((width, width)) / width**0.5 for name in names}
    return kind("speed", heads, x, x, x, None, False, weights, x)


def pytorch(module, case):
    """Eager torch."""
    import torch

    torch.set_num_threads(1)
    inputs = [torch.tensor(x) for x in case.inputs("float32")]
    _, nothing = module.layer_from_nothing(case, torch.float32)
    layer, own = module.torch_layer(case, torch.float32)
    torch.set_grad_enabled(False)
    return {
        NOTHING: lambda: nothing(*inputs, None, False),
        OWN: lambda: own(*inputs, None, False),
        PLAIN: lambda: layer(*inputs, need_weights=False),
    }


def jax(module, case):
    """Compiled with `jax.jit`."""
    from flax import nnx

    inputs = [module.jnp.asarray(x) for x in case.inputs("float32")]

    def compiled(layer, call):
        graph, state = nnx.split(layer)
        run = module.jax.jit(lambda state, *x: call(nnx.merge(graph, state), *x))
        return lambda: run(state, *inputs)

    layer, nothing = module.layer_from_nothing(case, "float32")
    own_layer, own = module.flax_layer(case, "float32")
    return {
        NOTHING: compiled(layer, lambda layer, *x: nothing(layer, *x, None, False)),
        OWN: compiled(own_layer, lambda layer, *x: own(layer, *x, None, False)),
        PLAIN: compiled(own_layer, lambda layer, *x: layer(*x)),
    }


def of_keras(module, case, inputs, compiled):
    """The layer from nothing and Keras's, compiled; its own order is query, value, key."""
    _, nothing = module.layer_from_nothing(case, "float32")
    layer, own = module.keras_layer(case, "float32")
    calls = {
        NOTHING: lambda *x: nothing(*x)[0],
        OWN: lambda *x: own(*x, None, False)[0],
        PLAIN: lambda query, key, value: layer(query, value, key),
    }
    return {name: partial(compiled(call), *inputs) for name, call in calls.items()}


def tensorflow(module, case):
    """Compiled with `tf.function`."""
    inputs = [module.tf.constant(x) for x in case.inputs("float32")]
    return of_keras(module, case, inputs, module.tf.function)


def keras(module, case):
    """Compiled with `jax.jit` on JAX, eager on torch."""
    inputs = [module.ops.convert_to_tensor(x) for x in case.inputs("float32")]
    on_jax = module.BACKEND == "jax"
    compiled = module.jax.jit if on_jax else module.torch.no_grad()
    return of_keras(module, case, inputs, compiled)


keras_jax = keras_torch = keras


def paddle(module, case):
    """Eager Paddle."""
    inputs = [module.paddle.to_tensor(x) for x in case.inputs("float32")]
    _, nothing = module.layer_from_nothing(case, "float32")
    _, own = module.paddle_layer(case, "float32")
    module.paddle.set_grad_enabled(False)
    return {
        NOTHING: lambda: nothing(*inputs, None, False),
        OWN: lambda: own(*inputs, None, False),
    }


def mxnet(module, case):
    """Gluon's block from nothing, and MXNet's own operators for self-attention."""
    array = module.np.array
    query = array(case.inputs("float32")[0])
    layer = module.MultiHeadAttention(case.sizes["embed_dim"], case.num_heads, False)
    layer.initialize()
    layer(query, query, query)
    for name, weight in case.weights.items():
        owner = getattr(layer, name.partition(".")[0])
        owner.weight.set_data(array(weight, dtype="float32"))
    stacked = module.convert(case.weights, "mha_lib", "mxnet", case.num_heads)
    as_array = partial(module.mxnet.nd.array, dtype="float32")
    parameters = {name: as_array(weight) for name, weight in stacked.items()}
    keep = module.build_mask(*query.shape[1:2] * 2)
    return {
        NOTHING: lambda: layer(query, query, query),
        OWN: lambda: module.interleaved(parameters, query, keep, case.num_heads),
    }


def as_numpy(call):
    """The output of a call as numpy has it, which no framework gives before it is computed."""
    output = call()
    output = output[0] if isinstance(output, (tuple, list)) else output
    for method in ("asnumpy", "numpy"):
        if hasattr(output, method):
            return getattr(output, method)()
    return np.asarray(output)


def measure(name, sizes, least):
    """Time one framework, in its own process."""
    if hasattr(os, "sched_setaffinity"):
        os.sched_setaffinity(0, {min(os.sched_getaffinity(0))})
    sys.path.insert(0, str(FOLDER))
    module = importlib.import_module(MODULES[name])
    kind = importlib.import_module("program").Case
    rows = []
    for size in sizes:
        made = globals()[name](module, make_case(size, kind))
        calls = {way: partial(as_numpy, call) for way, call in made.items()}
        outputs = {way: call() for way, call in calls.items()}
        for way, output in outputs.items():
            difference = np.abs(output - outputs[NOTHING]).max()
            if not difference < 1e-4:
                raise ValueError(f"{name}, {size}: {way} differs by {difference:.1g}")
        rounds = rounds_of(calls, seconds=0, least=least, shortest=LEAST_SECONDS)
        ratios = {}
        for way in [way for way in calls if way != NOTHING]:
            found = ratio_of_medians(rounds, way, NOTHING).values()
            ratios[way] = [rounded(number, 3) for number in found]
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
    machine = {"processor": processor(), "cores": os.cpu_count(), "threads": 1}
    machine |= {"date": datetime.date.today().isoformat()}
    return {"machine": machine, "programs": found}


def speed_cell(results):
    """Source of the cell that carries the results into the page, which must run without this repository."""
    rows = [(json.dumps(n), json.dumps(x)) for n, x in results["programs"].items()]
    lines = ",\n".join(map(": ".join, rows))
    return (
        "# `make bench-rosetta` writes this cell from benchmarks/results_rosetta.json. Do not edit it.\n"
        f'SPEED = json.loads(r"""{{"machine": {json.dumps(results["machine"])}, "programs": {{\n'
        f'{lines}\n}}}}""")  # noqa: E501'
    )


def main(arguments=None):
    """Run from the command line."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--quick", action="store_true", help="tiny sizes: does it run?")
    parser.add_argument("--only", nargs="+", choices=MODULES, default=list(MODULES))
    parser.add_argument("--output", type=Path, help="where the results go")
    parser.add_argument("--notebook", type=Path, help="whose speed cell is written")
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
