"""What all benchmarks of layers share: calls timed in turns, and the ratio of two of them. Needs numpy alone.

A round times each contestant once, in an order that changes from round to round, so that whatever else the
machine does hits all of them. What counts is the ratio of two medians over the same rounds, with an interval
from 1000 bootstrap samples of these rounds.
"""

import gc
import math
import time
from pathlib import Path

import numpy as np

BOOTSTRAP, MOST = 1000, 400  # samples, rounds


def rounds_of(calls, *, clock=time.process_time, seconds, least, shortest=2e-3):
    """Time each call once a round until `seconds` are over: milliseconds a call, one number a round.

    A call too short for the clock is repeated within its turn until that takes `shortest` seconds.
    """

    def timed(call, repeats):
        start = clock()
        for _ in range(repeats):
            call()
        return clock() - start

    names, repeats = list(calls), {}
    for name, call in calls.items():
        call()
        # The very first calls are not typical yet.
        once = min(timed(call, 1) for _ in range(5 if timed(call, 1) < shortest else 1))
        repeats[name] = max(1, math.ceil(shortest / max(once, 1e-9)))
    found = {name: [] for name in names}
    collecting = gc.isenabled()
    gc.collect()
    gc.disable()
    try:
        start = time.perf_counter()
        for number in range(MOST):
            if number >= least and time.perf_counter() - start > seconds:
                break
            # Each contestant comes first, second, ... equally often, and after each other one.
            turn = number % len(names)
            order = names[turn:] + names[:turn]
            for name in order[:: -1 if number // len(names) % 2 else 1]:
                spent = timed(calls[name], repeats[name])
                found[name].append(1e3 * spent / repeats[name])
    finally:
        if collecting:
            gc.enable()
    return found


def medians(rounds, digits=4):
    """The median of each contestant in milliseconds, without digits that mean nothing."""
    return {name: rounded(np.median(times), digits) for name, times in rounds.items()}


def ratio_of_medians(rounds, above, below):
    """Median over median, with an interval of 95 % from bootstrap samples of whole rounds."""
    top, bottom = np.array(rounds[above]), np.array(rounds[below])
    drawn = np.random.default_rng(3).integers(0, len(top), (BOOTSTRAP, len(top)))
    samples = np.median(top[drawn], axis=1) / np.median(bottom[drawn], axis=1)
    low, high = np.quantile(samples, [0.025, 0.975])
    found = {"ratio": np.median(top) / np.median(bottom), "low": low, "high": high}
    return {name: round(float(number), 3) for name, number in found.items()}


def rounded(number, digits=4):
    """A measured number without digits that mean nothing."""
    return float(f"{number:.{digits}g}")


def processor():
    """The name of the processor, as far as the system tells it."""
    try:
        text = Path("/proc/cpuinfo").read_text(encoding="utf-8")
    except OSError:
        return "unknown"
    names = [line for line in text.splitlines() if line.startswith("model name")]
    return names[0].partition(":")[2].strip() if names else "unknown"


def write_cell(path, name, source):
    """Put results into the cell of that name of a notebook."""
    import nbformat  # here, because the frameworks' environments have none

    notebook = nbformat.read(path, as_version=4)
    [cell] = [cell for cell in notebook.cells if cell.id == name]
    cell.source = source
    nbformat.write(notebook, path)
