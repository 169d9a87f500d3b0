"""The browser's storage as a reader's browser may have it: missing, blocked, full, or holding anything."""

import json

from playwright.sync_api import expect

PREFIX = "mha-course/"

# Scripts that run before the page. In a sandboxed frame the storage throws; some web views have none.
UNUSABLE = {
    "blocked": """Object.defineProperty(window, "localStorage", {
        get() { throw new DOMException("denied", "SecurityError"); } });""",
    "missing": 'Object.defineProperty(window, "localStorage", { value: null });',
    "full": """Storage.prototype.setItem = () => {
        throw new DOMException("full", "QuotaExceededError"); };""",
}


def stored(page, days=False):
    """What this course keeps in the browser, by key without the prefix: answers, or the days of answers."""
    items = page.evaluate("Object.entries(localStorage)")
    kept = {key.removeprefix(PREFIX): json.loads(text) for key, text in items if key.startswith(PREFIX)}
    return {key: value for key, value in kept.items() if key.startswith("repeat/") == days}


def store(page, **texts):
    """Write texts into the storage as they are, with `__` in a name for `/`."""
    for name, text in texts.items():
        given = [PREFIX + name.replace("__", "/"), text]
        page.evaluate("([key, text]) => localStorage.setItem(key, text)", given)


def reload(page, count=1):
    """Load the page again, with its widgets."""
    page.reload()
    expect(page.locator("[data-widget]")).to_have_count(count)
