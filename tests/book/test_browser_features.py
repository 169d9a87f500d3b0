"""What the book asks of a browser: no newer feature than *About* promises."""

import re

import pytest
import tinycss2
from imports import ROOT

SOURCES = [
    path
    for files in ("_static/*", "mha_course/in_page/*", "mha_course/widgets/*/*")
    for path in sorted(ROOT.glob(files))
    if path.suffix in (".js", ".css")
]
# *About* says: complete from Chrome 117, Firefox 121, Safari 16.4. Each of these is newer in one of them, as
# MDN's tables of compatibility say.
NEWER = {
    "nested rules of styles": r"^\s+&[\s:.>\[]",  # Chrome 120 without a sign, Safari 17.2
    "light-dark()": r"\blight-dark\(",  # Chrome 123, Firefox 120, Safari 17.5
    "text-wrap": r"\btext-wrap(-style)?\s*:",  # Firefox 121, Safari 17.5
    "@starting-style": r"@starting-style",  # Chrome 117, Firefox 129, Safari 17.5
    "@property": r"@property\b",  # Firefox 128
    "@scope": r"@scope\b",  # Chrome 118, Firefox 146, Safari 17.4
    "field-sizing": r"\bfield-sizing\s*:",  # Chrome 123
    "interpolate-size": r"\binterpolate-size\s*:",  # Chrome 129
    "anchored positions": r"\b(position-anchor|anchor-name)\s*:|\banchor\(",  # Chrome 125
    "popover": r"\bpopover\s*=|\.(show|toggle|hide)Popover\(",  # Firefox 125, Safari 17
    "view transitions": r"\bstartViewTransition\b",  # Chrome 111, Firefox 144, Safari 18
    "Promise.withResolvers": r"\bPromise\.(withResolvers|try)\b",  # Chrome 119, Safari 17.4
    "Array.fromAsync": r"\bArray\.fromAsync\b",  # Chrome 121, Safari 16.4, Firefox 115
    "groups": r"\b(Object|Map)\.groupBy\b",  # Chrome 117, Firefox 119, Safari 17.4
    "sets": r"\.(union|intersection|difference|symmetricDifference|is(Subset|Superset)Of)\(",
    # What iterators themselves can do: Chrome 122, Firefox 131, Safari 18.4.
    "iterators' methods": r"\.(values|keys|entries)\(\)\.(map|filter|take|drop|toArray|reduce|some|find)\(",
    "expressions with v": r"[^\w/]/[^/\n]+/[dgimsuy]*v[dgimsuy]*[.,;)\s]",  # Safari 17
    "import attributes": r"\bimport\b.*\bwith\s*\{",  # Chrome 123, Firefox 138, Safari 17.2
    "transfer of buffers": r"\.transfer\(",  # Chrome 114, Firefox 122, Safari 17.4
    "bytes in base 64": r"\.(toBase64|fromBase64|toHex|fromHex)\(",  # Chrome 140, Firefox 133, Safari 18.2
    "AbortSignal.any": r"\bAbortSignal\.any\b",  # Chrome 116, Firefox 124, Safari 17.4
    "scrollend": r"[\"']scrollend[\"']",  # Chrome 114, Firefox 109, Safari 26
    "checkVisibility": r"\.checkVisibility\(",  # Chrome 105, Firefox 106, Safari 17.4
    "idle callbacks": r"\brequestIdleCallback\(",  # Safari has none
}
# Each is found, so that the search is known to look.
PLANTED = {
    "nested rules of styles": ".mha-widget {\n  &:hover { color: red; }\n}",
    "light-dark()": "color: light-dark(black, white);",
    "text-wrap": "text-wrap: pretty;",
    "groups": "const byHead = Object.groupBy(rows, ({ head }) => head);",
    "sets": "seen.union(other)",
    "iterators' methods": "maps.values().map((map) => map.row)",
    "expressions with v": "text.match(/[\\p{L}--[a-z]]/v);",
    "import attributes": 'import words from "./words.json" with { type: "json" };',
    "Promise.withResolvers": "Promise.withResolvers()",
}


def newer_in(text):
    """The names of the features in a text that the oldest complete browsers lack."""
    code = re.sub(r"/\*.*?\*/|(?m:^\s*//.*$)", "", text, flags=re.DOTALL)
    return {name for name, form in NEWER.items() if re.search(form, code, flags=re.MULTILINE)}


@pytest.mark.parametrize("path", SOURCES, ids=lambda path: path.name)
def test_no_feature_is_newer_than_the_browsers_that_about_names(path):
    assert newer_in(path.read_text("utf-8")) == set()


@pytest.mark.parametrize("name", PLANTED)
def test_a_newer_feature_would_be_found(name):
    assert name in newer_in(PLANTED[name])


def test_about_names_the_browsers():
    text = " ".join((ROOT / "chapters" / "about.md").read_text("utf-8").split())
    assert "Chrome 117, Firefox 121 and Safari 16.4" in text
    assert "Chrome 111, Firefox 113 and Safari 16.4" in text


def rules_of(css):
    """All rules of a style sheet that have selectors, those within @media and the like too."""
    for rule in tinycss2.parse_stylesheet(css, skip_comments=True, skip_whitespace=True):
        if rule.type == "qualified-rule":
            yield tinycss2.serialize(rule.prelude)
        elif (
            rule.type == "at-rule"
            and rule.content
            and rule.lower_at_keyword in ("media", "container", "supports")
        ):
            yield from rules_of(tinycss2.serialize(rule.content))


def drops_others(css):
    """Rules that a browser without :has or ::details-content drops together with selectors that it knows."""
    found = []
    for selectors in rules_of(css):
        parts = re.split(r",(?![^(]*\))", selectors)
        new = [re.search(r":has\(|::details-content", part) is not None for part in parts]
        found += [selectors] if any(new) and not all(new) else []
    return found


@pytest.mark.parametrize(
    "path", [path for path in SOURCES if path.suffix == ".css"], ids=lambda path: path.name
)
def test_a_rule_that_an_older_browser_drops_is_a_rule_of_its_own(path):
    assert drops_others(path.read_text(encoding="utf-8")) == []


def test_a_rule_that_would_be_dropped_with_others_is_found():
    planted = "@media print { .a, .cell:has(> .b) + .c { display: none; } }"
    assert drops_others(planted) == [".a, .cell:has(> .b) + .c "]
    assert drops_others(".a:has(b, c), .d:has(e) { color: red; } .f, .g { color: red; }") == []
