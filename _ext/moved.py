"""Old addresses of pages; each gets a page that leads to the requested section at the new address."""

import json
from pathlib import Path

# Old name -> new name, a second page, and the sections that moved there.
HEADS, CONTROLS = "08_what_heads_learn", "appendix_training_and_controls"
RENAMED = [
    ("06_what_heads_learn", HEADS, CONTROLS, """two-things-at-once watch-it-learn
        what-one-head-gets-wrong real-data-handwritten-digits"""),
    ("07_transformer", "06_transformer", CONTROLS, "why-not-batch-norm does-the-number-of-heads-matter-here"),
    ("08_inside_a_transformer", CONTROLS, HEADS,
        "where-does-the-decoder-look switch-a-head-off does-a-map-tell-what-matters"),
]  # fmt: skip
MOVED = {a: (b, dict.fromkeys(gone.split(), c)) for a, b, c, gone in RENAMED}
PAGE = """<!DOCTYPE html><html lang="en"><head><meta charset="utf-8" /><title>This page has moved</title>
<noscript><meta http-equiv="refresh" content="0; url={new}.html" /></noscript></head>
<body><p><a href="{new}.html">This page has moved.</a></p>
<script>location.replace(({elsewhere}[location.hash.slice(1)] ?? "{new}") + ".html" + location.hash);</script>
</body></html>
"""


def write_moved(app):
    """Write the pages that lead from old addresses to new ones."""
    for old, (new, elsewhere) in MOVED.items():
        page = PAGE.format(new=new, elsewhere=json.dumps(elsewhere))
        Path(app.outdir, "chapters", f"{old}.html").write_text(page, encoding="utf-8")
