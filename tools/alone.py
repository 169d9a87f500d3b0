"""Run a command while no other `make` works in this folder.

    python3 tools/alone.py COMMAND ...

Whoever comes second says so and waits. The system releases the lock when a process ends, however it ends.
"""

import fcntl
import os
import subprocess
import sys
from pathlib import Path

LOCK = ".make-lock"


def main(command):
    """Wait for the lock and return the exit status of the command."""
    if not os.access(".", os.W_OK):
        print(f"`make` needs the right to write into {Path.cwd()}.", file=sys.stderr)
        return 1
    with Path(LOCK).open("w") as lock:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            print("Another `make` works in this folder; waiting for it.", flush=True)
            fcntl.flock(lock, fcntl.LOCK_EX)
        return subprocess.run(command, check=False).returncode


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
