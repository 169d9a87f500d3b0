"""ALiBi on the latest capital with four times the steps of the experiment on positions.

It is a control: do flat slopes themselves do worse, or are there only too few steps?
"""

from positions import BOUNDS as BY_TASK
from positions import LONG, arm

TASK = "latest capital"
ARMS = {
    f"slopes x{slopes}, {LONG} steps": arm("ALiBi", TASK, LONG, slopes)
    for slopes in (1, 2, 4)
}
BOUNDS = {name: values[TASK] for name, values in BY_TASK.items()}
