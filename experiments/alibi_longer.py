"""ALiBi on the latest capital with four times the steps of the experiment on positions.

The control of that experiment: at equal steps steeper slopes do better. Is it the slopes that the flat ones
lack, or the steps?
"""

from common import run_arms, run_script
from positions import BOUNDS, LONG, arm

TASK = "latest capital"
ARMS = {
    f"slopes x{slopes}, {LONG} steps": arm("ALiBi", TASK, LONG, slopes)
    for slopes in (1, 2, 4)
}


def run():
    bounds = {name: values[TASK] for name, values in BOUNDS.items()}
    return run_arms(__file__, ARMS, bounds)


if __name__ == "__main__":
    run_script(__file__, run)
