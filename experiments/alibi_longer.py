"""ALiBi on the latest capital with four times the steps of the experiment on positions.

In that experiment, steeper slopes do better with the same number of steps. This is its control: do the flat
slopes themselves cause the difference, or only too few steps?
"""

from positions import BOUNDS as BY_TASK
from positions import LONG, arm

TASK = "latest capital"
ARMS = {
    f"slopes x{slopes}, {LONG} steps": arm("ALiBi", TASK, LONG, slopes)
    for slopes in (1, 2, 4)
}
BOUNDS = {name: values[TASK] for name, values in BY_TASK.items()}
