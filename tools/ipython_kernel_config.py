"""Settings of notebooks' kernels in the course's environment, where `make book` puts a link to this file.

A new kernel says which cells to run first, also before the set-up cell has been run.
"""

get_config().InteractiveShellApp.exec_lines = ["__import__('mha_course')"]
