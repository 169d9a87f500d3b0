"""What a reader types stays text: markup in a field of a widget becomes no element and runs nothing."""

import pytest
from playwright.sync_api import expect
from widget_page import write_page
from widget_samples import SAMPLES

FIELDS = 'input:is([type="text"], [type="search"], :not([type])), textarea, [contenteditable="true"]'
# Each is one word, since the field of a sentence takes only a few of them.
MARKUP = [
    "<b>typed</b>", "<img/src=x/onerror=window.injected=1>", "<svg/onload=window.injected=2>",
    "</p><i>typed</i>", "&lt;u&gt;typed", '"><u>typed</u>',
]  # fmt: skip
# An element that no widget makes itself.
MADE = "b, i, u, img[src='x'], svg[onload], [onerror]"
# The widgets that have a field today; a new one is included automatically.
KNOWN = {"AttentionStepper", "SentenceHeads", "TextTraining", "Translator", "TypedAnswer", "Writer"}


@pytest.fixture(scope="module")
def hosted(browser, address, tmp_path_factory):
    """A page with one of each widget; the names of those that have fields."""
    folder = tmp_path_factory.mktemp("typed")
    names = sorted(SAMPLES)
    path = write_page(folder, [SAMPLES[name]() for name in names])
    # Without the policy, so that markup would run, because the widgets must not depend on the policy.
    html = path.read_text(encoding="utf-8")
    start = html.index("<meta http-equiv")
    path.write_text(html[:start] + html[html.index(">", start) + 1 :], encoding="utf-8")
    page = browser.new_page(viewport={"width": 900, "height": 1000})
    page.errors = []
    page.on("pageerror", lambda error: page.errors.append(str(error)))
    page.goto(f"{address}/{folder.name}/chapters/{path.name}")
    expect(page.locator('[data-widget="ready"]')).to_have_count(len(names))
    hosts = {name: page.locator(".widget-host").nth(index) for index, name in enumerate(names)}
    yield page, {name: host for name, host in hosts.items() if host.locator(FIELDS).count()}
    page.close()


def test_the_widgets_with_a_field_are_found(hosted):
    assert hosted[1].keys() >= KNOWN


@pytest.mark.parametrize("markup", MARKUP)
def test_markup_stays_text_in_every_field(hosted, markup):
    page, hosts = hosted
    for name, host in hosts.items():
        before = host.locator(MADE).count()
        for field in host.locator(FIELDS).all():
            field.fill(markup)
            field.press("Enter")
            for button in host.get_by_role("button", name="Check").all():
                button.click()
            # A turn of the event loop, in which handlers would run.
            page.evaluate("() => new Promise(done => setTimeout(done))")
            assert host.locator(MADE).count() == before, f"{name}: {markup} became an element"
            assert page.evaluate("() => window.injected ?? null") is None, name
    assert page.errors == []


def test_a_word_with_markup_is_shown_as_it_was_typed(hosted):
    """The stepper takes any word, and shows it in its tables and sentences."""
    _, hosts = hosted
    host = hosts["AttentionStepper"]
    host.locator(FIELDS).fill("<b>w</b> sat")
    expect(host).to_contain_text("<b>w</b>")
    assert host.locator(MADE).count() == 0
    assert host.locator(FIELDS).input_value() == "<b>w</b> sat"
