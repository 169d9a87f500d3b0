"""Messages to readers, which stand in a Markdown file beside the module that prints them."""

from __future__ import annotations

import re
from pathlib import Path


def message(module: str, key: str, /, **words: object) -> str:
    """A message from the file beside a module (its `__file__`), with words where braces name them.

    Each message is a line "- name: text".
    """
    text = Path(module).with_suffix(".md").read_text(encoding="utf-8")
    messages = dict(re.findall(r"^- ([\w-]+): (.*)$", text, re.MULTILINE))
    return str(messages[key]).format(**words)
