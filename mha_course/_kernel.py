"""What `mha_course` adds to a notebook's kernel: sentences after errors, and what the reader wrote elsewhere.

Each set-up cell imports `mha_course`, and that imports this. So does every new kernel in the environment that
`make` creates, and on Colab every new one after *Restart session*.
"""

import sys
from pathlib import Path
from typing import Any

from IPython import get_ipython

from mha_course._resume import explain_missing_names, forget_what_has_a_syntax_error

shell = get_ipython()


def use_what_was_kept(_: Any) -> None:
    """Before the next cell that the reader runs, use what they wrote in other notebooks of the folder.

    A kernel may import this when a notebook is opened, which must not run what a file contains.
    """
    shell.events.unregister("pre_run_cell", use_what_was_kept)
    if Path("my_pieces.json").is_file():
        from mha_course.exercises.kept import use_what_is_here

        use_what_is_here()


if shell is not None:
    for explain in (forget_what_has_a_syntax_error, explain_missing_names):
        shell.events.register("post_run_cell", explain)
    shell.events.register("pre_run_cell", use_what_was_kept)
    if "google.colab" in sys.modules:
        # Colab's *Restart session* keeps files and packages: its new kernel then knows this too.
        startup = Path(shell.profile_dir.startup_dir, "new_kernel.py")
        startup.write_text("__import__('mha_course')\n", encoding="utf-8")
