"""What a page may run and load: a Content-Security-Policy for each page, written when the page is finished.

Pages load files that are next to them and run the widgets' modules, which are stored in the page and started
from blob URLs. A script in the text of a page runs only if the policy contains its SHA-256. Only the build
writes hashes there, so anything else that gets into a page stays text. Because GitHub Pages cannot send a
header, the policy is a <meta> element, before everything to which it applies.
"""

import base64
import hashlib
import re
from pathlib import Path

# `file:` is for a book opened from disk.
POLICY = {
    "default-src": "'none'",
    "script-src": "'self' file: blob: 'wasm-unsafe-eval'",  # the last for Python, in a worker
    # A widget may compute in a worker; the service worker keeps pages (see offline.py).
    "worker-src": "'self' blob:",
    "manifest-src": "'self'",
    "style-src": "'self' file: 'unsafe-inline'",
    "img-src": "'self' file: data: blob:",
    "font-src": "'self' file: data:",
    "connect-src": "'self' file:",
    "base-uri": "'none'",
    "form-action": "'self' file:",
}
META = '<meta http-equiv="Content-Security-Policy" content="{}" />'
WRITTEN = re.compile(META.format('[^"]*'))
# Firefox loads the next page in advance, which the policy forbids with a message on every page.
NEXT = re.compile(r'\s*<link rel="next"[^>]*>')
HEAD = re.compile(r'(<meta charset="utf-8" ?/>)')
SCRIPT = re.compile(r"<script\b([^>]*)>(.*?)</script\s*>", re.DOTALL | re.IGNORECASE)
TYPE = re.compile(r'\btype="([^"]*)"')
RUN = ("", "module", "text/javascript", "application/javascript")

# The theme's buttons have their code in attributes, which such a policy forbids. The attributes get a name
# instead, for which _static/buttons.js has the code.
ACTIONS = {"toggleFullScreen()": "full-screen", "window.print()": "print"}
ATTRIBUTE = re.compile(r'(<[a-z][^<>]*?\s)on[a-z]+="([^"]*)"')


class CodeInAttributeError(Exception):
    """A page has code in an attribute, which no browser will run."""


def scripts_in(html):
    """Return the texts of the scripts in a page that a browser would run."""
    found = []
    for attributes, text in SCRIPT.findall(html):
        kind = TYPE.search(attributes)
        if "src=" not in attributes and (not kind or kind[1] in RUN):
            found.append(text)
    return found


def hash_of(script):
    """Return the hash of a script's text as a policy writes it."""
    digest = hashlib.sha256(script.encode("utf-8")).digest()
    return f"'sha256-{base64.b64encode(digest).decode('ascii')}'"


def name_actions(html):
    """Replace code in attributes by names.

    Raises:
        CodeInAttributeError: there is code that has no name.
    """

    def name(match):
        if match[2] not in ACTIONS:
            fault = f"{match[2]!r} has no name in _ext/security.py, at {match[1]!r}"
            raise CodeInAttributeError(fault)
        return f'{match[1]}data-action="{ACTIONS[match[2]]}"'

    # Only in markup, because the contents of scripts are not attributes.
    parts = re.split(r"(<script\b.*?</script\s*>)", html, flags=re.DOTALL)
    parts[::2] = [ATTRIBUTE.sub(name, part) for part in parts[::2]]
    return "".join(parts)


def policy_of(html):
    """Return the policy of a page, which allows only the page's own scripts, by their hashes."""
    hashes = sorted({hash_of(script) for script in scripts_in(html)})
    rules = POLICY | {"script-src": " ".join([POLICY["script-src"], *hashes])}
    return "; ".join(f"{name} {value}" for name, value in rules.items())


def secure(html):
    """Return a page with its policy first in its head; a second call changes nothing."""
    html = name_actions(NEXT.sub("", WRITTEN.sub("", html)))
    before, charset, after = HEAD.split(html, maxsplit=1)
    return before + charset + META.format(policy_of(html)) + after


def secure_pages(app):
    """Write the policy into all pages of a finished build."""
    outdir = Path(app.outdir)
    for path in outdir.rglob("*.html"):
        if outdir / "_static" in path.parents:
            continue  # a part of the theme, not a page
        html = path.read_text(encoding="utf-8")
        secured = secure(html)
        if secured != html:
            path.write_text(secured, encoding="utf-8")
