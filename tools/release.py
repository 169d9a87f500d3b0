"""Print what the changelog says of a release, and stop one that the files do not name.

    python tools/release.py v0.1.0

The tag, the packages and CITATION.cff must have the same version, and CHANGELOG.md must have a section
`## 0.1.0` with something in it. Continuous integration makes its text that of the release.
"""

import re
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
VERSION = re.compile(r'^(?:__)?version(?:__)?(?: =|:) "?([^"\s]+)', re.MULTILINE)
NAMED = """pyproject.toml attention_check/pyproject.toml mha_course/pyproject.toml
    mha_lib/__init__.py attention_check/__init__.py mha_course/__init__.py CITATION.cff""".split()


def notes(tag, root=ROOT):
    """Return the changelog's section about a tag; ValueError says why there is no release."""
    for name in NAMED:
        [version] = VERSION.findall((root / name).read_text(encoding="utf-8"))
        if tag != f"v{version}":
            raise ValueError(f"{name} has the version {version}, and the tag is {tag}")
    changes = (root / "CHANGELOG.md").read_text(encoding="utf-8")
    for section in re.split(r"^## ", changes, flags=re.MULTILINE)[1:]:
        title, _, text = section.partition("\n")
        if title.split()[0] == tag.removeprefix("v") and text.strip():
            return text.strip()
    raise ValueError(
        f"CHANGELOG.md says nothing in a section ## {tag.removeprefix('v')}"
    )


if __name__ == "__main__":
    try:
        print(notes(sys.argv[1]))
    except ValueError as error:
        sys.exit(f"No release: {error}.")
