"""Messages to readers, which stand in a Markdown file beside the module that prints them."""

from __future__ import annotations

import re
from pathlib import Path


def messages(module: str) -> dict[str, str]:
    """All messages of the file beside a module (its `__file__`), by name: each is a line "- name: text"."""
    text = Path(module).with_suffix(".md").read_text(encoding="utf-8")
    return dict(re.findall(r"^- ([\w-]+): (.*)$", text, re.MULTILINE))


def message(module: str, key: str, /, **words: object) -> str:
    """A message from the file beside a module, with words where braces name them."""
    return messages(module)[key].format(**words)
