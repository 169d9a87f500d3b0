"""Run one layer in every framework of chapters/rosetta, compare it with loops, and store what was found.

    python tools/rosetta.py [--check] [--only NAME ...]

Each framework has an environment of its own in .venv-rosetta/, made from exact pins when it is missing or
its pins changed. Every program gets the same vectors; its numbers are compared with answers that loops over
single float64 numbers compute here. What a framework cannot do, or what could not be installed, is written
down. The same is done with what each library makes of a mask.

With --check nothing is stored: the exit status tells whether the programs still agree with what is stored.
"""

import argparse
import datetime
import hashlib
import json
import os
import platform
import shutil
import subprocess
import sys
import threading
from collections import defaultdict
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT / "tests"))

from rosetta_cases import answer, as_json, make_cases  # noqa: E402

FOLDER = ROOT / "chapters" / "rosetta"
VECTORS = FOLDER / "vectors.json"
STORED = FOLDER / "stored.json"
INPUTS = FOLDER / "inputs.sha256"  # hashes of the inputs when the results were stored
PAGE = ROOT / "chapters" / "appendix_framework_rosetta.ipynb"
MASK_PAGE = ROOT / "chapters" / "appendix_mask_rosetta.ipynb"
JUDGED_PAGE = ROOT / "chapters" / "appendix_is_my_attention_right.ipynb"
ENVIRONMENTS = ROOT / ".venv-rosetta"
PYTHON = (3, 11)  # MXNet 1.9 needs a numpy without wheels for later Pythons

TOLERANCE = {"float32": 1e-5, "float64": 1e-12}
TIME_LIMIT = 600  # seconds for one program


@dataclass(frozen=True)
class Program:
    """One program: its file, where it runs, and the file that measures what the framework does by default.

    A program `masks_*` asks what its library makes of a mask, `judged` what `attention_check` says. They
    have no vectors.
    """

    title: str
    file: str
    environment: str
    facts: str | None = None
    settings: dict = field(default_factory=dict)

    @property
    def page(self):
        """The page that the results belong to."""
        pages = {"masks": MASK_PAGE, "judged": JUDGED_PAGE}
        return pages.get(self.kind, PAGE)

    @property
    def kind(self):
        """What is asked: "attention", "masks" or "judged"."""
        return self.file.partition(".")[0].partition("_")[0]

    @property
    def sources(self):
        """The files whose change makes the stored results stale."""
        shared = {"masks": ("masks.py",), "judged": ()}.get(
            self.kind, ("program.py", "weights.py") if self.file.endswith(".py") else ()
        )
        pins = (
            () if self.environment in ("book", "perl") else (f"{self.environment}.txt",)
        )
        own = (self.file,) if self.facts is None else (self.file, self.facts)
        common = () if self.facts is None else ("facts.py",)
        return (*own, *common, *shared, *pins)


# XLA's expensive passes cost most of the time and change nothing here.
QUICK_XLA = {
    "XLA_FLAGS": "--xla_backend_optimization_level=0 --xla_llvm_disable_expensive_passes=true"
}
PROGRAMS = {
    "numpy": Program("NumPy", "attention_numpy.py", "book"),
    "pytorch": Program("PyTorch", "attention_pytorch.py", "book", "facts_pytorch.py"),
    "jax": Program("JAX, Flax NNX", "attention_jax.py", "jax", "facts_jax.py", QUICK_XLA),
    "tensorflow": Program(
        "TensorFlow", "attention_tensorflow.py", "tensorflow", "facts_keras.py",
        {"KERAS_BACKEND": "tensorflow"},
    ),
    "keras_jax": Program(
        "Keras on JAX", "attention_keras.py", "jax", "facts_keras.py",
        {"KERAS_BACKEND": "jax", **QUICK_XLA},
    ),
    "keras_torch": Program(
        "Keras on torch", "attention_keras.py", "jax", "facts_keras.py",
        {"KERAS_BACKEND": "torch"},
    ),
    "paddle": Program("PaddlePaddle", "attention_paddle.py", "paddle", "facts_paddle.py"),
    "mxnet": Program("MXNet", "attention_mxnet.py", "mxnet", "facts_mxnet.py"),
    "perl": Program("Perl, PDL", "attention_perl.pl", "perl"),
    "masks_torch": Program("PyTorch", "masks_torch.py", "book"),
    "masks_jax": Program("JAX", "masks_jax.py", "jax"),
    "masks_keras_jax": Program(
        "Keras on JAX", "masks_keras.py", "jax", settings={"KERAS_BACKEND": "jax"}
    ),
    "masks_keras_torch": Program(
        "Keras on torch", "masks_keras.py", "jax", settings={"KERAS_BACKEND": "torch"}
    ),
    "masks_keras_tensorflow": Program(
        "Keras on TensorFlow", "masks_keras.py", "tensorflow",
        settings={"KERAS_BACKEND": "tensorflow"},
    ),
    "masks_huggingface": Program("HuggingFace", "masks_huggingface.py", "book"),
    "masks_onnx": Program("ONNX", "masks_onnx.py", "book"),
    "judged": Program("Conformance", "judged.py", "jax"),
}  # fmt: skip


class NotRunError(Exception):
    """A framework is not here and cannot be installed; the message says why and what would help."""


# --------------------------------------------------------------------------------
# Environments


def interpreter(name):
    """Return the program that runs the files of an environment, made if it has to be."""
    if name == "book":
        return sys.executable
    if name == "perl":
        return perl()
    if sys.version_info[:2] != PYTHON:
        wanted = ".".join(map(str, PYTHON))
        raise NotRunError(
            f"its pins are for Python {wanted}, and this is {platform.python_version()}"
        )
    with LOCKS[name]:  # two programs share the environment "jax"
        return made(ENVIRONMENTS / name, FOLDER / f"{name}.txt")


LOCKS = defaultdict(threading.Lock)


def made(folder, pins):
    """Return the Python of an environment, made again if its pins changed."""
    python, ready = folder / "bin" / "python", folder / "ready"
    wanted = hash_of(pins)
    if not ready.is_file() or ready.read_text(encoding="utf-8") != wanted:
        shutil.rmtree(folder, ignore_errors=True)
        run_or_not([sys.executable, "-m", "venv", "--without-pip", str(folder)])
        text = pins.read_text(encoding="utf-8")
        if "beside the book's packages" in text:
            # Keras takes torch, and JAX takes numpy, from the book's environment, which stays unchanged.
            [packages] = folder.glob("lib/python*/site-packages")
            book = Path(np.__file__).parent.parent
            (packages / "book.pth").write_text(f"{book}\n", encoding="utf-8")
        install = [sys.executable, "-m", "pip", "--python", str(python), "install"]
        run_or_not([*install, "--quiet", "--no-deps", "--requirement", str(pins)])
        ready.write_text(wanted, encoding="utf-8")
    return str(python)


def perl():
    """Return perl, with PDL: from Debian's package where that is allowed."""
    found = shutil.which("perl")
    if (
        found
        and subprocess.run([found, "-MPDL", "-e1"], capture_output=True).returncode == 0
    ):
        return found
    debian = Path("/etc/debian_version").is_file()
    if debian and hasattr(os, "geteuid") and os.geteuid() == 0:
        settings = {"DEBIAN_FRONTEND": "noninteractive"}
        run_or_not(["apt-get", "update", "-qq"], settings)
        run_or_not(
            ["apt-get", "install", "-qq", "-y", "--no-install-recommends", "pdl"],
            settings,
        )
        return shutil.which("perl")
    raise NotRunError("Perl has no PDL here: apt-get install pdl, or cpan PDL")


def run_or_not(command, settings=None):
    """Run a step of the installation; its last words become the reason why a framework is not run."""
    done = subprocess.run(
        command, capture_output=True, text=True, env={**os.environ, **(settings or {})}
    )
    if done.returncode != 0:
        lines = [line for line in done.stderr.splitlines() if line.startswith("ERROR")]
        last = (lines or done.stderr.splitlines() or ["no message"])[-1]
        raise NotRunError(f"{Path(command[0]).name} failed: {last[:300]}")


def hash_of(path):
    """SHA-256 of a file."""
    return hashlib.sha256(path.read_bytes()).hexdigest()


# --------------------------------------------------------------------------------
# Programs


def run_program(program, file, *arguments):
    """Run a file of chapters/rosetta and return the JSON that it prints."""
    settings = {**os.environ, **program.settings, "PYTHONPATH": str(ROOT)}
    settings |= {"OMP_NUM_THREADS": "1", "PYTHONDONTWRITEBYTECODE": "1"}
    done = subprocess.run(
        [interpreter(program.environment), str(FOLDER / file), *map(str, arguments)],
        capture_output=True,
        text=True,
        env=settings,
        timeout=TIME_LIMIT,
    )
    if done.returncode != 0:
        raise RuntimeError(f"{file} failed:\n{done.stderr[-3000:]}")
    return json.loads(done.stdout.splitlines()[-1])


def measure_or_say(name):
    """What `measure` returns, or why it could not, as text."""
    try:
        return measure(name)
    except (ValueError, RuntimeError, subprocess.TimeoutExpired) as error:
        return str(error)


def measure(name):
    """Run one program and its facts, and return what is stored of it."""
    program = PROGRAMS[name]
    try:
        interpreter(program.environment)
    except NotRunError as error:
        return {"title": program.title, "not run": str(error)}
    vectors = (VECTORS,) if program.kind == "attention" else ()
    printed = run_program(program, program.file, *vectors)
    found = {
        "title": program.title,
        "versions": printed["versions"],
        "date": datetime.date.today().isoformat(),
        "sources": {source: hash_of(FOLDER / source) for source in program.sources},
    }
    if program.kind == "masks":
        return {**found, "masks": printed["calls"]}
    if program.kind == "judged":
        return {**found, "judged": printed["judged"]}
    found["framework"] = printed["framework"]
    found["compared"] = compare(printed["results"])
    found["facts"] = run_program(program, program.facts) if program.facts else {}
    return found


# --------------------------------------------------------------------------------
# Comparison


def answers():
    """The cases with their answers, computed once."""
    if not ANSWERS:
        ANSWERS.update({case["name"]: (case, answer(case)) for case in make_cases()})
    return ANSWERS


ANSWERS = {}


def compare(results):
    """Return how far the numbers of every case, way and dtype are from the answers; refuse what is too far.

    A row that may attend to nothing is compared in the layer from nothing and in ours. What a framework's
    own layer puts there is not an error but a finding: zeros, NaN, uniform weights.
    """
    if results.keys() != answers().keys():
        raise ValueError(
            f"the cases must be {sorted(answers())}, got {sorted(results)}"
        )
    compared = {}
    for name, ways in results.items():
        case, expected = answers()[name]
        compared[name] = {
            way: {
                dtype: judge(
                    f"{name}, {way}, {dtype}", case, expected, found, way, dtype
                )
                for dtype, found in by_dtype.items()
            }
            for way, by_dtype in ways.items()
        }
    return compared


STRICT = ("from nothing", "mha_lib.MultiHeadAttention")
# Layers that accept float64 but are accurate only to float32, because they round 1/√head_dim to float32.
LIKE_FLOAT32 = ("tf.keras.layers.MultiHeadAttention",)


def judge(where, case, expected, found, way, dtype):
    """The differences of one run."""
    limit = TOLERANCE["float32" if way in LIKE_FLOAT32 else dtype]
    if "cannot" in found:
        if way in STRICT:
            raise ValueError(f"{where}: {found['cannot']}")
        return found
    output, weights = (as_numbers(found[name]) for name in ("output", "weights"))
    for what, given in (("output", output), ("weights", weights)):
        if given.shape != expected[what].shape:
            raise ValueError(
                f"{where}: {what} must be {expected[what].shape}, got {given.shape}"
            )
    hidden = expected["weights"][:, 0].sum(axis=-1) == 0  # (batch, q_len)
    differences, sees = (
        {},
        ~hidden if way not in STRICT else np.full(hidden.shape, True),
    )
    differences["output"] = far(
        where, "output", output[sees], expected["output"][sees], limit
    )
    by_row = [
        array.transpose(0, 2, 1, 3)[sees] for array in (weights, expected["weights"])
    ]
    differences["weights"] = far(where, "weights", *by_row, limit)
    of_own = hidden.any() and way not in STRICT
    if of_own:
        unmasked = answer({**case, "valid_lens": None})["weights"]
        rows = [array.transpose(0, 2, 1, 3)[hidden] for array in (weights, unmasked)]
        differences["hidden row"] = what_is(*rows)
    if "gradients" in found:
        gradients = {
            name: as_numbers(array) for name, array in found["gradients"].items()
        }
        if of_own:
            finite = all(np.isfinite(array).all() for array in gradients.values())
            differences["hidden row, gradients"] = "finite" if finite else "NaN"
        else:
            wanted = expected["gradients"]
            missing = set(case["weights"]) - gradients.keys()
            if missing or gradients.keys() - wanted.keys():
                raise ValueError(f"{where}: gradients {sorted(gradients)} do not fit")
            differences["gradients"] = max(
                far(where, f"the gradient of {name}", array, wanted[name], limit)
                for name, array in gradients.items()
            )
    return differences


def as_numbers(nested):
    """Nested lists as float64, null as NaN."""
    return np.array(nested, dtype=float)


def far(where, what, found, expected, limit):
    """The largest difference, relative to the largest expected number if that is above 1."""
    if found.shape != expected.shape:
        raise ValueError(f"{where}: {what} must be {expected.shape}, got {found.shape}")
    difference = np.abs(found - expected).max() / max(1.0, np.abs(expected).max())
    if not difference <= limit:
        raise ValueError(
            f"{where}: {what} differs by {difference:.2g}, more than {limit:g}"
        )
    return float(f"{difference:.1e}")


def what_is(rows, unmasked):
    """What the weights of rows that may attend to nothing are; `unmasked` are those without a mask."""
    if np.isnan(rows).all():
        return "NaN"
    if (rows == 0).all():
        return "zeros"
    if np.allclose(rows, 1 / rows.shape[-1], atol=1e-6):
        return "uniform"
    return "as without a mask" if np.allclose(rows, unmasked, atol=1e-6) else "others"


# --------------------------------------------------------------------------------
# What is stored


def digest(content):
    """SHA-256 of a JSON object, whatever the order of its entries."""
    text = json.dumps(content, sort_keys=True)
    return hashlib.sha256(text.encode()).hexdigest()


def inputs():
    """SHA-256 of all that results depend on: programs, vectors, pins, and this file."""
    paths = [path for path in sorted(FOLDER.iterdir()) if path.is_file()]
    paths = [path for path in paths if path not in (STORED, INPUTS)]
    lines = [f"{hash_of(path)}  {path.name}" for path in [*paths, Path(__file__)]]
    return hashlib.sha256("\n".join(lines).encode()).hexdigest() + "\n"


def unchanged():
    """Whether all is as it was when the results were stored, by one run of everything."""
    return INPUTS.is_file() and INPUTS.read_text(encoding="utf-8") == inputs()


def store(programs):
    """Write results, one program a line, with a digest that tells whether the file is whole."""
    content = {"vectors": hash_of(VECTORS), "programs": programs}
    content["digest"] = digest(content)
    text = json.dumps(content, ensure_ascii=False)
    for name in programs:
        text = text.replace(f'"{name}": {{"title"', f'\n"{name}": {{"title"')
    STORED.write_text(text + "\n", encoding="utf-8")


def load_stored(path=STORED, folder=FOLDER):
    """Return the stored results, if they are whole and belong to the sources that are here now.

    Raises:
        ValueError: the message says what is missing, damaged or stale, and what to run.
    """
    remedy = "run `make rosetta`"
    try:
        content = json.loads(path.read_text(encoding="utf-8"))
        whole = content.pop("digest") == digest(content)
    except (OSError, ValueError, KeyError, AttributeError, TypeError):
        whole = False
    if not whole:
        raise ValueError(
            f"the results of the frameworks are missing or damaged: {remedy}"
        )
    if content["vectors"] != hash_of(folder / "vectors.json"):
        raise ValueError(
            f"the results of the frameworks are of other vectors: {remedy}"
        )
    programs = content["programs"]
    if list(programs) != list(PROGRAMS):
        missing = sorted(PROGRAMS.keys() ^ programs.keys()) or "in another order"
        raise ValueError(
            f"the results must name every framework, but {missing}: {remedy}"
        )
    for name, found in programs.items():
        if "not run" in found:
            continue
        expected = {
            source: hash_of(folder / source) for source in PROGRAMS[name].sources
        }
        stale = [s for s in expected if expected[s] != found["sources"].get(s)]
        if stale or found["sources"].keys() != expected.keys():
            raise ValueError(f"the results of {name} are of another {stale}: {remedy}")
    return content


def results_cell(content, page):
    """Source of the cell that carries the results into a page, which must run without this repository."""
    lines = ",\n".join(
        f"{json.dumps(name)}: {json.dumps(found, ensure_ascii=False)}"
        for name, found in content["programs"].items()
        if PROGRAMS[name].page.name == page.name
    )
    return (
        "# `make rosetta` writes this cell from chapters/rosetta/stored.json. Do not edit it.\n"
        f'RESULTS = json.loads(r"""{{\n{lines}\n}}""")  # noqa: E501'
    )


def write_cell(path, content):
    """Put the results into the cell named "results" of the page."""
    import nbformat  # here, because the programs and the notebooks on Colab do not need it

    notebook = nbformat.read(path, as_version=4)
    [cell] = [cell for cell in notebook.cells if cell.id == "results"]
    cell.source = results_cell(content, path)
    nbformat.write(notebook, path)


MEASURED = ("versions", "date")


def changes(stored, found):
    """What is no longer as stored, leaving out what differs between machines."""

    def plain(value):
        if isinstance(value, dict):
            return {k: plain(v) for k, v in value.items() if k not in MEASURED}
        if isinstance(value, str):
            # Which of its functions TensorFlow names in a message depends on the processor.
            return value.partition("{{function_node")[0]
        return "number" if isinstance(value, float) else value

    return [
        f"{part} differs from what is stored"
        for part in ("compared", "facts", "masks", "judged", "sources")
        if plain(stored.get(part)) != plain(found.get(part))
    ]


def stored_before(check):
    """Return the results that are stored; where they are outdated, ValueError with `check`."""
    try:
        return load_stored()["programs"]
    except ValueError:
        if check:
            raise
        known = STORED.is_file()
        text = STORED.read_text(encoding="utf-8") if known else '{"programs": {}}'
        return json.loads(text)["programs"]


def verdict(name, found, before, check):
    """Return what to say of a program's results, and whether they are as they should be."""
    if isinstance(found, str):
        return f"FAILED: {found}", False
    if "not run" in found:
        ours_to_install = sys.version_info[:2] == PYTHON and name != "perl"
        good = not (check and ours_to_install and "not run" not in before[name])
        return f"NOT RUN: {found['not run']}", good
    if check and (differs := changes(before[name], found)):
        return f"{'; '.join(differs)}: run `make rosetta`", False
    whats = {"masks": "masks asked", "judged": "judged"}
    what = whats.get(PROGRAMS[name].kind, "agrees with the loops")
    return f"{what}, {found['versions']}", True


def options_of(arguments):
    """Read the command line."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument(
        "--check", action="store_true", help="compare, and store nothing"
    )
    parser.add_argument("--only", nargs="+", choices=PROGRAMS, default=list(PROGRAMS))
    parser.add_argument("--jobs", type=int, default=2, help="programs at the same time")
    parser.add_argument(
        "--unchanged",
        action="store_true",
        help="run nothing; the exit status is 0 if nothing changed since all was stored",
    )
    return parser.parse_args(arguments)


def main(arguments=None):
    """Run from the command line; the exit status is 1 if a program fails or, with --check, differs."""
    options = options_of(arguments)
    if options.unchanged:
        print(
            f"Frameworks: {'un' * unchanged()}changed since their results were stored"
        )
        return 0 if unchanged() else 1
    text = json.dumps(as_json(make_cases())) + "\n"
    if not VECTORS.is_file() or VECTORS.read_text(encoding="utf-8") != text:
        if options.check:
            print("vectors.json is not what tests/rosetta_cases.py makes")
            return 1
        VECTORS.write_text(text, encoding="utf-8")
    try:
        before = stored_before(options.check)
    except ValueError as error:
        print(error)
        return 1

    programs, status = dict(before), 0
    answers()  # before the first program needs them
    with ThreadPoolExecutor(options.jobs) as pool:
        results = zip(options.only, pool.map(measure_or_say, options.only), strict=True)
        results = dict(results)
    for name, found in results.items():
        says, good = verdict(name, found, before, options.check)
        print(f"{name}: {says}", flush=True)
        status |= not good
        if not isinstance(found, str):
            programs[name] = found
    if status or options.check:
        return int(status)
    store({name: programs[name] for name in PROGRAMS if name in programs})
    if options.only == list(PROGRAMS):
        INPUTS.write_text(inputs(), encoding="utf-8")
    for page in (PAGE, MASK_PAGE, JUDGED_PAGE):
        if page.is_file():
            write_cell(page, load_stored())
    return 0


if __name__ == "__main__":
    sys.exit(main())
