"""Store the pictures of widgets and diagrams: `make pictures`, with ONLY="Quiz 04_*" for some.

Prints what is new, what looks different from the stored picture, and what is no longer there.
"""

import argparse
import sys
from fnmatch import fnmatch
from pathlib import Path

TESTS = Path(__file__).resolve().parents[1]
sys.path[:0] = [str(TESTS / folder) for folder in ("../tools", "widgets", "pictures", "..")]

import gallery  # noqa: E402


def main():
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--only", nargs="+", help="names of widgets and diagrams, with * for several")
    only = parser.parse_args().only or ["*"]
    names = [name for name in gallery.NAMES if any(fnmatch(name, pattern) for pattern in only)]
    if not names:
        parser.error(
            f"no widget or diagram is called {' or '.join(only)}; there are {', '.join(gallery.NAMES)}"
        )
    with gallery.open_studio(gallery.ROOT / "_build" / "html") as studio:
        for name in names:
            sheet, path = studio.sheet(name), gallery.stored_path(name)
            state = "new" if not path.is_file() else "changed" if gallery.faults_of(sheet, name) else ""
            if state:  # an unchanged picture is not written again, because git keeps every version
                gallery.save(sheet, path)
                print(f"{name}: {state}")
    for path in gallery.left_over():
        path.unlink()
        print(f"{path.stem}: removed, there is no such widget or diagram any more")
    print(f"{len(names)} pictures are up to date in {gallery.STORED.relative_to(gallery.ROOT)}")


if __name__ == "__main__":
    main()
