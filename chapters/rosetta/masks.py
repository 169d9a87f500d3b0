"""What an attention makes of a mask, measured: the same questions for every library.

Each `masks_*.py` says how its library is called. Most questions use queries of zeros and values that are the
rows of an identity matrix: all visible keys are then equal, and the output is the weights.
"""

import inspect
import json

import numpy as np

# One key of four, as a mask that says True for it, and as one that is added to the scores.
ONE = np.array([True, False, False, False]).reshape(1, 1, 1, 4)
ONE_ADDED = np.where(ONE, 0, -np.inf).astype("float32")
NOTHING = np.zeros_like(ONE)
# Three masks for two queries and three keys; mask number i shows key i alone.
THREE = np.eye(3, dtype=bool)[:, None].repeat(2, axis=1)

# The batch of the page: two sentences of five and three tokens, and nobody sees a later token.
BATCH, HEADS, LENGTH, HEAD_DIM = 2, 3, 5, 4
LENS = np.array([5, 3])
PADDING = np.arange(LENGTH) >= LENS[:, None]
KEEP = np.tri(LENGTH, dtype=bool) & ~PADDING[:, None, None]  # (batch, 1, q_len, k_len)
ADDED = np.where(KEEP, 0, -np.inf).astype("float32")


def numbers(*shape, seed=0):
    """Normal numbers in float32."""
    return np.random.default_rng(seed).standard_normal(shape).astype("float32")


def expected(query, key, value):
    """What the batch of the page gives, in float64; every query sees a key."""
    query, key, value = (x.astype("float64") for x in (query, key, value))
    scores = query @ key.swapaxes(-2, -1) / query.shape[-1] ** 0.5
    parts = np.exp(np.where(KEEP, scores, -np.inf))
    return parts / parts.sum(axis=-1, keepdims=True) @ value


def weights(attend, q_len, k_len, batch=1, heads=1, **arguments):
    """The weights of an attention that takes (batch, heads, len, head_dim) and returns its output."""
    query = np.zeros((batch, heads, q_len, k_len), "float32")
    key = np.zeros((batch, heads, k_len, k_len), "float32")
    value = np.eye(k_len, dtype="float32") + key
    return np.asarray(attend(query, key, value, **arguments))


def convention(found):
    """What a mask did that says True, 1 or 0 of the first of four keys, and something else of the others."""
    first, *others = found.reshape(-1, 4)[-1]
    if first == 1 or first == 0:
        return "visible" if first == 1 else "hidden"
    if np.allclose(others, first):
        return "ignored"
    return "added" if np.allclose(first / others, np.e, rtol=1e-3) else "other"


def pattern(found):
    """Who sees whom, one text for each query: x for a key that is seen."""
    return ["".join(".x"[int(cell > 0)] for cell in row) for row in found[0, 0]]


def whose(found):
    """Which axis of (batch, heads, q_len, k_len) three masks of two axes belong to."""
    seen = found[:, :, 0].argmax(axis=-1)
    by_sample = np.arange(3)[:, None]
    if (seen == by_sample).all():
        return "batch"
    return "head" if (seen == by_sample.T).all() else "other"


def empty(found):
    """What comes out where a query may attend to nothing."""
    row = found.reshape(-1, found.shape[-1])[0]
    if np.isnan(row).all():
        return "NaN"
    if (row == 0).all():
        return "zeros"
    return "uniform" if np.allclose(row, 1 / len(row)) else "other"


def difference(found, wanted):
    """The largest difference; None if it is no rounding."""
    largest = float(np.abs(np.asarray(found) - wanted).max())
    return float(f"{largest:.0e}") if largest < 1e-5 else None


def ask(judge, run, **arguments):
    """The answer to a question, or the error that the library raised instead."""
    try:
        found = np.asarray(run(**arguments))
    except Exception as error:  # whatever it is, it is shown
        text = f"{type(error).__name__}: {' '.join(str(error).split())}"
        return f"error: {text if len(text) <= 120 else text[:117] + '…'}"
    return judge(found)


# How many queries and keys a question has, and what is read from the weights.
QUESTIONS = {
    "one key": ((1, 4), convention),
    "three masks": ((2, 3, 3, 3), whose),
    "two queries, five keys": ((2, 5), pattern),
    "five queries, five keys": ((5, 5), pattern),
    "nothing": ((1, 4), empty),
}


def measure(attend, asked):
    """Ask every question in every way; `asked` is {question: {way: arguments of `attend`}}."""
    found = {}
    for question, ways in asked.items():
        found[question] = {}
        for way, arguments in ways.items():
            if question == "the batch":
                sizes = (BATCH, HEADS, LENGTH, HEAD_DIM)
                inputs = [numbers(*sizes, seed=seed) for seed in range(3)]
                wanted = expected(*inputs)
                answer = ask(
                    lambda output, wanted=wanted: difference(output, wanted),
                    lambda inputs=inputs, **given: attend(*inputs, **given),
                    **arguments,
                )
            else:
                sizes, judge = QUESTIONS[question]
                answer = ask(
                    judge,
                    lambda sizes=sizes, **given: weights(attend, *sizes, **given),
                    **arguments,
                )
            found[question][way] = answer
    return found


def names(*functions):
    """The names of all arguments."""
    found = [name for f in functions for name in inspect.signature(f).parameters]
    return [name for name in found if name != "self"]


def main(versions, calls):
    """Print what was found as JSON; `calls` is {name: (names of its arguments, answers)}."""
    content = {
        name: {"arguments": arguments, **found}
        for name, (arguments, found) in calls.items()
    }
    print(json.dumps({"versions": versions, "calls": content}, ensure_ascii=False))
