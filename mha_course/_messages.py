"""Messages to readers, which stand in a Markdown file beside the module that prints them."""

from __future__ import annotations

import re
from pathlib import Path


def messages(module: str) -> dict[str, str]:
    """All messages of the file that has a module's name and is beside its `__file__`, by name.

    Each is a line "- name: text".
    """
    path = Path(module)
    name = path.parent.name if path.stem == "__init__" else path.stem
    text = path.with_name(f"{name}.md").read_text(encoding="utf-8")
    return dict(re.findall(r"^- ([\w-]+): (.*)$", text, re.MULTILINE))


def message(module: str, key: str, /, **words: object) -> str:
    """A message from the file beside a module, with words where braces name them."""
    return messages(module)[key].format(**words)
