"""The parts of which the course's pages are made: data, experiments, pictures, questions, exercises, widgets.

This package imports the library `mha_lib`; the library never imports it. A chapter imports modules by name,
such as `mha_course.plots`, so it loads only what it needs. Wrong arguments raise errors as in `mha_lib`.
"""

import sys

__version__ = "0.1.0"

if "IPython" in sys.modules:
    # In a notebook, this says after an error which cell to run.
    from mha_course import _kernel as _kernel
