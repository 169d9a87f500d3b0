"""A book that can be installed, and whose opened pages open without a network (service_worker.js).

The service worker names its build by a hash of all files, so a browser notices a new build, and only then.
"""

import hashlib
import json
from pathlib import Path

WORKER = Path(__file__).with_name("service_worker.js")
NAME, MANIFEST = "service-worker.js", "book.webmanifest"


def build_of(folder):
    """Return a hash of all files of a built book."""
    whole = hashlib.sha256()
    for path in sorted(folder.rglob("*")):
        if path.is_file() and path.name != NAME:
            content = hashlib.sha256(path.read_bytes()).hexdigest()
            whole.update(f"{path.relative_to(folder).as_posix()} {content}\n".encode())
    return whole.hexdigest()[:16]


def write_offline(app):
    """Write what a browser needs to install the book, and then, as the last file, the service worker."""
    folder, config = Path(app.outdir), app.config
    manifest = {
        "name": config.project,
        "short_name": "Attention",
        "start_url": "index.html",
        "scope": "./",
        "display": "minimal-ui",
        "background_color": "#ffffff",
        "theme_color": "#440154",
        "icons": [{"src": "_static/icon.png", "sizes": "512x512", "type": "image/png"}],
    }
    text = json.dumps(manifest, indent=1)
    (folder / MANIFEST).write_text(text, encoding="utf-8")
    titles = {
        app.builder.get_target_uri(page): title.astext()
        for page, title in app.env.titles.items()
    }
    worker = WORKER.read_text(encoding="utf-8")
    worker = worker.replace("TITLES = {}", f"TITLES = {json.dumps(titles, indent=1)}")
    worker = worker.replace("course-BUILD", f"course-{build_of(folder)}")
    (folder / NAME).write_text(worker, encoding="utf-8")
