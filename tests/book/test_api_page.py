"""The page of the library in the book: every public name, signatures as in the source, examples that run."""

import inspect
import re

import pytest
from bs4 import BeautifulSoup
from test_exports import ENGINE, examples_of
from test_types import ALL_MODULES, METHODS, PUBLIC

import mha_course.widgets
import mha_lib

# pytest's fixtures, which are not functions
FIXTURES = {
    f"attention_check.pytest_plugin.assert_{what}" for what in ("conforms", "rotary", "decoding", "results")
}
NOT_ON_THE_PAGE = {"extra_repr"}  # for torch, not for people


@pytest.fixture(scope="module")
def page(book):
    text = (book / "chapters" / "api.html").read_text(encoding="utf-8")
    return BeautifulSoup(text, "html.parser")


@pytest.fixture(scope="module")
def signatures(page):
    """Anchor -> the signature as it is read."""
    return {entry["id"]: " ".join(entry.get_text().split()) for entry in page.select("dt.sig[id]")}


def documented(path):
    return path.rpartition(".")[2] not in NOT_ON_THE_PAGE and inspect.getdoc((PUBLIC | METHODS)[path])


def test_every_public_name_is_on_the_page(signatures):
    expected = {path for path in PUBLIC | METHODS if documented(path)}
    exported = {f"mha_lib.{name}" for name in mha_lib.__all__} - {"mha_lib.__version__"}
    widgets = {f"mha_course.widgets.{name}" for name in mha_course.widgets.__all__}
    assert exported | widgets <= expected
    assert expected - set(signatures) == set()
    assert set(signatures) - set(PUBLIC | METHODS) - FIXTURES <= attributes()


def attributes():
    """What else may have an entry: traits, properties, the length of a cache."""
    return {
        f"{path}.{name}"
        for path, thing in PUBLIC.items()
        if inspect.isclass(thing)
        for base in thing.__mro__
        if base.__module__.startswith(("mha_lib", "attention_check", "mha_course"))
        for name in vars(base)
    }


def test_signatures_read_as_in_the_source(signatures):
    spoilt = re.compile(r"jaxtyping|typing\.|<class|<function|object at|\*args|'|\bt\.")
    assert {text for text in signatures.values() if spoilt.search(text)} == set()
    assert 'query: Float[Tensor, "*#batch q_len d"]' in signatures[
        "mha_lib.scaled_dot_product_score"
    ]  # fmt: skip
    for path, thing in (PUBLIC | METHODS).items():
        if not documented(path) or (inspect.isclass(thing) and not vars(thing).get("__init__")):  # fmt: skip
            continue
        for name in inspect.signature(thing).parameters:
            assert name in ("self", "cls") or name in signatures[path], path


def test_docstrings_are_rendered_without_leftovers(page):
    assert page.select(".problematic, .system-message") == []
    prose = " ".join(node.get_text() for node in page.select("dl.py p, dl.py li") if not node.pre)
    assert not re.search(r"``|:math:|:py:|\bArgs:|\bReturns:\n|>>>", prose)
    assert "|dL/dgate|" in prose  # bars and stars are not markup


def test_names_in_docstrings_lead_to_their_entries(page, signatures):
    found = page.select("dl.py > dd a.reference.internal:has(code.xref)")
    links = {link["href"].removeprefix("#") for link in found}
    assert links <= set(signatures)
    # In the same module, and in a different one.
    assert {"mha_lib.scaled_dot_product_score", "mha_course.training.seeded"} <= links
    links = {link["href"] for link in page.select("#mha_course\\.widgets\\.HeadExample + dd a")}
    assert "#mha_lib.MultiHeadAttention" in links


def test_every_example_on_the_page_runs(page):
    # An example with text between its lines becomes several blocks on the page.
    shown = {
        line.strip().removeprefix(">>> ")
        for block in page.select("dl.py pre")
        for line in block.get_text().splitlines()
        if line.strip().startswith(">>> ")
    }
    run = {
        example.source.splitlines()[0]
        for module in (*ALL_MODULES, *ENGINE)
        for test in examples_of(module)
        for example in test.examples
    }
    assert len(shown) >= 100
    assert shown <= run


def test_what_is_copied_from_an_example_is_its_code(book, serve, browser):
    context = browser.new_context(permissions=["clipboard-read", "clipboard-write"])
    page = context.new_page()
    page.goto(f"{serve(book)}/chapters/api.html", wait_until="load")
    example = page.locator("dl.py div.highlight").filter(has_text="with capture_attention")
    example.first.hover()
    example.first.locator("button.copybtn").click()
    copied = page.evaluate("navigator.clipboard.readText()")
    context.close()
    assert copied.splitlines()[0] == "attention = MultiHeadAttention(6, 3)"
    assert ">>>" not in copied
    assert "torch.Size" not in copied
    compile(copied, "example", "exec")
