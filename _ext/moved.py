"""Old addresses of pages: each gets a page that leads to the new one, to the section that was asked for."""

import json
from pathlib import Path

# A page that was renamed -> where it is now, and which of its sections went elsewhere, by their anchors.
MOVED = {
    "06_what_heads_learn": ("08_what_heads_learn", {}),
    "07_transformer": ("06_transformer", {}),
    "08_inside_a_transformer": ("appendix_training_and_controls", {}),
}
PAGE = """<!DOCTYPE html>
<html lang="en">
<head><meta charset="utf-8" />
<meta name="viewport" content="width=device-width, initial-scale=1" />
<title>This page has moved</title>
<link rel="canonical" href="{new}.html" />
<noscript><meta http-equiv="refresh" content="0; url={new}.html" /></noscript>
</head>
<body><main><h1>This page has moved</h1><p><a href="{new}.html">Go to its new address.</a></p></main>
<script>
const {{ hash }} = location, elsewhere = {elsewhere};
location.replace(`${{elsewhere[hash.slice(1)] ?? "{new}"}}.html${{hash}}`);
</script></body>
</html>
"""


def write_moved(app):
    """Write the pages that lead from old addresses to new ones."""
    for old, (new, elsewhere) in MOVED.items():
        page = PAGE.format(new=new, elsewhere=json.dumps(elsewhere))
        Path(app.outdir, "chapters", f"{old}.html").write_text(page, encoding="utf-8")
