"""What makes the pages of the course: data, experiments, pictures, questions, exercises, widgets.

It imports `mha_lib`, the library; the library never imports it. A chapter imports each module by name, such
as `mha_course.plots`, so that importing one of them stays light. Wrong arguments are refused as in `mha_lib`.
"""

__version__ = "0.1.0"
