"""The widgets in a real browser, without a kernel and without a network: over HTTP and from disk."""

import base64
import copy
import importlib.util
import json
import math
import shutil
from pathlib import Path

import pytest
import torch
from ipywidgets.embed import embed_data
from playwright.sync_api import expect

from mha_lib.attention import MultiHeadAttention, attention_pooling, masked_softmax
from mha_lib.masking import build_mask, causal_mask
from mha_lib.scores import dot_product_score, scaled_dot_product_score
from mha_lib.widgets import HeadExample, HeadExplorer, Question, Quiz

ROOT = Path(__file__).resolve().parent.parent
JS = ROOT / "mha_lib" / "widgets" / "js"

spec = importlib.util.spec_from_file_location(
    "course_extension", ROOT / "_ext" / "course.py"
)
course_extension = importlib.util.module_from_spec(spec)
spec.loader.exec_module(course_extension)


# A page as the book makes it, and what a reader does with it


def write_page(folder, widgets, *, alter=None, loaders=1, theme="light"):
    """A page in a sub-folder, with the widgets' stored state and the book's loader and security policy."""
    data = copy.deepcopy(embed_data(views=widgets, drop_defaults=False))
    states = data["manager_state"]["state"]
    if alter is not None:
        alter([states[view["model_id"]]["state"] for view in data["view_specs"]])
    script = lambda kind, content: (  # noqa: E731
        f'<script type="application/vnd.jupyter.widget-{kind}+json">'
        + json.dumps(content).replace("</script>", r"<\/script>")
        + "</script>"
    )
    views = "".join(
        f'<div class="cell_output">{script("view", view)}</div>'
        for view in data["view_specs"]
    )
    loader = '<script src="../_static/widget_loader.js"></script>' * loaders
    csp = course_extension.CONTENT_SECURITY_POLICY
    html = (
        f'<!doctype html><html lang="en" data-theme="{theme}"><head><meta charset="utf-8">'
        f'<meta http-equiv="Content-Security-Policy" content="{csp}">'
        '<meta name="viewport" content="width=device-width"><link rel="icon" href="data:,">'
        "<title>Widgets</title>"
        f"<style>body {{ margin: 12px; font-family: sans-serif }}</style>{loader}</head>"
        f"<body>{script('state', data['manager_state'])}{views}</body></html>"
    )
    (folder / "_static").mkdir(exist_ok=True)
    (folder / "chapters").mkdir(exist_ok=True)
    shutil.copy(ROOT / "_static" / "widget_loader.js", folder / "_static")
    path = folder / "chapters" / "page.html"
    path.write_text(html, encoding="utf-8")
    return path


class Reader:
    """A browser tab that notes every error and every request that leaves the page's own folder."""

    def __init__(self, browser, address, *, over, width=900):
        self.page = browser.new_page(viewport={"width": width, "height": 1000})
        self.address, self.over = address, over
        self.errors, self.requests = [], []
        self.page.on("pageerror", lambda error: self.errors.append(str(error)))
        self.page.on(
            "console",
            lambda message: (
                self.errors.append(message.text) if message.type == "error" else None
            ),
        )
        self.page.on("request", lambda request: self.requests.append(request.url))

    def open(self, path, count):
        folder = path.parent.parent
        self.home = (
            f"{self.address}/{folder.name}/"
            if self.over == "http"
            else f"{folder.as_uri()}/"
        )
        self.page.goto(f"{self.home}chapters/page.html")
        # Not `wait_for_function`: where it has to wait, the page's security policy forbids it.
        expect(self.page.locator("[data-widget]")).to_have_count(count, timeout=30_000)
        return self.page

    def close(self):
        self.page.close()
        assert [
            url
            for url in self.requests
            if not url.startswith((self.home, "blob:", "data:"))
        ] == []

    def host(self, index=0):
        return self.page.locator(".widget-host").nth(index)


@pytest.fixture(scope="module")
def address(serve, tmp_path_factory):
    """Where the folders of all tests are served."""
    return serve(tmp_path_factory.getbasetemp())


@pytest.fixture
def reader(browser, address):
    readers = []

    def make(over="http", width=900):
        readers.append(Reader(browser, address, over=over, width=width))
        return readers[-1]

    yield make
    for reader in readers:
        reader.close()


def layer(num_heads, embed_dim=12, **options):
    torch.manual_seed(num_heads)
    return MultiHeadAttention(embed_dim, num_heads, **options)


def make_explorer(**traits):
    generator = torch.Generator().manual_seed(5)
    sentence = HeadExample(
        "sentence",
        ["to", "be", "or", "not", "be"],
        2 * torch.randn(5, 12, generator=generator),
        layer(2),
        "See `head_dim`.",
    )
    x = {heads: 2 * torch.randn(7, 12, generator=generator) for heads in (1, 2, 4)}
    trained = HeadExample(
        "trained", list("abcdefg"), x, {heads: layer(heads, bias=True) for heads in x}
    )
    return HeadExplorer([sentence, trained], **traits)


def shown_numbers(host):
    """The numbers of the large map as the page holds them: (rows, columns)."""
    rows = host.locator("[role=row]").evaluate_all(
        """rows => rows.slice(1).map(row =>
             [...row.querySelectorAll('[data-value]')].map(cell => cell.dataset.value))"""
    )
    return torch.tensor(
        [[float(number) for number in row] for row in rows], dtype=torch.float64
    )


def assert_shows(host, explorer):
    """Every head of the widget on the page shows what torch computes for the traits of `explorer`."""
    expected = explorer.shown().double()
    heads = host.locator(".mha-maps input")
    assert heads.count() == explorer.num_heads == len(expected)
    for head, numbers in enumerate(expected):
        heads.nth(head).check(force=True)
        torch.testing.assert_close(shown_numbers(host), numbers, atol=1e-6, rtol=0)
    heads.nth(min(explorer.head, explorer.num_heads - 1)).check(force=True)


def facts(host):
    return host.locator(".mha-fact").all_inner_texts()


# The mathematics, against torch in float64


@pytest.fixture(scope="module")
def math_page(browser, serve):
    page = browser.new_page()
    page.goto(serve(JS) + "/attention_math.js")
    yield page
    page.close()


def in_browser(page, expression, **arguments):
    """Evaluate an expression over the functions of attention_math.js; tensors go and come as float64."""
    plain = {
        name: value.tolist() if isinstance(value, torch.Tensor) else value
        for name, value in arguments.items()
    }
    result = page.evaluate(
        """async ([expression, values]) => {
          const math = await import("/attention_math.js");
          const isRow = (value) => Array.isArray(value) && typeof value[0] === "number";
          const typed = (value) => isRow(value) ? Float64Array.from(value)
            : Array.isArray(value) ? value.map(typed) : value;
          const names = [...Object.keys(math), ...Object.keys(values)];
          const run = new Function(...names, `return (${expression})`);
          const result = run(...Object.values(math), ...Object.values(values).map(typed));
          const text = (value) => typeof value === "number" ? String(value)
            : typeof value === "boolean" ? value : Array.from(value, text);
          return text(result);
        }""",
        [expression, plain],
    )

    def number(value):
        return [number(v) for v in value] if isinstance(value, list) else float(value)

    return torch.tensor(number(result), dtype=torch.float64)


def normal(*shape, seed=0, scale=1.0):
    return scale * torch.randn(
        *shape, dtype=torch.float64, generator=torch.Generator().manual_seed(seed)
    )


def assert_equal(actual, expected):
    torch.testing.assert_close(actual, expected.double(), atol=1e-12, rtol=1e-12)


def test_scores_equal_torch(math_page):
    query, key = normal(5, 7), normal(3, 7, seed=1)
    assert_equal(
        in_browser(math_page, "dotProductScore(q, k)", q=query, k=key),
        dot_product_score(query, key),
    )
    assert_equal(
        in_browser(math_page, "scaledDotProductScore(q, k)", q=query, k=key),
        scaled_dot_product_score(query, key),
    )


@pytest.mark.parametrize("num_heads", [1, 2, 3, 5, 30])
def test_heads_are_cut_and_joined_as_in_torch(math_page, num_heads):
    x = normal(7, 30)
    attention = MultiHeadAttention(30, num_heads)
    assert_equal(
        in_browser(math_page, "splitHeads(x, n)", x=x, n=num_heads),
        attention.split_heads(x[None])[0],
    )
    assert torch.equal(
        in_browser(math_page, "mergeHeads(splitHeads(x, n))", x=x, n=num_heads), x
    )


@pytest.mark.parametrize(("q_len", "k_len"), [(5, 5), (3, 7), (7, 3), (1, 4)])
def test_masks_equal_torch(math_page, q_len, k_len):
    mask = in_browser(math_page, "causalMask(q, k)", q=q_len, k=k_len)
    assert torch.equal(mask.bool(), causal_mask(q_len, k_len))
    for valid_len in range(k_len + 1):
        expected = build_mask(
            q_len, k_len, valid_lens=torch.tensor([valid_len]), is_causal=True
        )[0]
        expression = "combineMasks([validLenMask(v, q, k), causalMask(q, k)])"
        assert torch.equal(
            in_browser(math_page, expression, v=valid_len, q=q_len, k=k_len).bool(),
            expected,
        )


@pytest.mark.parametrize("scale", [1.0, 1e4], ids=["small scores", "scores beyond exp"])
def test_softmax_and_pooling_equal_torch(math_page, scale):
    scores, value = normal(5, 7, scale=scale), normal(7, 3, seed=1)
    mask = normal(5, 7, seed=2) > 0
    mask[3] = False
    expected = masked_softmax(scores, mask)
    weights = in_browser(math_page, "maskedSoftmax(s, m)", s=scores, m=mask)
    assert_equal(weights, expected)
    assert torch.equal(weights[3], torch.zeros(7, dtype=torch.float64)), (
        "exact zeros where nothing is visible"
    )
    assert torch.equal(
        weights[~mask], torch.zeros(int((~mask).sum()), dtype=torch.float64)
    )
    assert_equal(
        in_browser(math_page, "maskedSoftmax(s)", s=scores), scores.softmax(-1)
    )
    output = in_browser(
        math_page, "attentionPooling(s, v, m).output", s=scores, v=value, m=mask
    )
    assert_equal(output, attention_pooling(scores, value, mask)[0])
    masked = in_browser(math_page, "maskScores(s, m)", s=scores, m=mask)
    assert torch.equal(masked, scores.masked_fill(~mask, -math.inf))


@pytest.mark.parametrize("num_heads", [1, 2, 3, 6])
@pytest.mark.parametrize(
    ("valid_len", "is_causal"), [(7, False), (4, True), (0, False)]
)
def test_all_steps_equal_the_layer(math_page, num_heads, valid_len, is_causal):
    attention = layer(num_heads, embed_dim=18, bias=True).double()
    torch.nn.init.normal_(attention.q_proj.bias)
    x = normal(1, 7, 18, scale=2.0)
    with torch.no_grad():
        _, weights = attention(
            x, x, x, valid_lens=torch.tensor([valid_len]), is_causal=is_causal
        )
        query, key, value = (
            projection(x)[0]
            for projection in (attention.q_proj, attention.k_proj, attention.v_proj)
        )
        heads = weights @ attention.split_heads(value[None])
    mask = build_mask(7, 7, valid_lens=torch.tensor([valid_len]), is_causal=is_causal)[
        0
    ].expand(7, 7)
    steps = "multiHeadSteps({query: q, key: k, value: v}, n, m)"
    arguments = {"q": query, "k": key, "v": value, "n": num_heads, "m": mask}
    assert_equal(in_browser(math_page, f"{steps}.weights", **arguments), weights[0])
    assert_equal(in_browser(math_page, f"{steps}.output", **arguments), heads[0])


def test_float32_numbers_come_back_exactly(math_page):
    numbers = torch.randn(4, 3, generator=torch.Generator().manual_seed(3))
    stored = base64.b64encode(numbers.numpy().astype("<f4").tobytes()).decode()
    recovered = in_browser(math_page, "matrixFromFloat32(n, 3)", n=stored)
    assert torch.equal(recovered, numbers.double())


@pytest.mark.parametrize(
    ("expression", "rule"),
    [
        (
            "splitHeads([new Float64Array(12)], 5)",
            "num_heads must divide embed_dim=12, got 5",
        ),
        (
            "splitHeads([new Float64Array(12)], 0)",
            "num_heads must divide embed_dim=12, got 0",
        ),
        ("validLenMask(4, 3, 3)", r"valid_len must lie in 0\.\.k_len=3, got 4"),
    ],
)
def test_the_mathematics_refuses_what_makes_no_sense(math_page, expression, rule):
    with pytest.raises(Exception, match=rule):
        in_browser(math_page, expression)


# The head explorer, by keyboard


@pytest.mark.parametrize("over", ["http", "disk"])
def test_the_slider_moves_through_all_numbers_of_heads(reader, tmp_path, over):
    explorer = make_explorer(num_heads=1)
    tab = reader(over)
    page = tab.open(write_page(tmp_path, [explorer]), 1)
    host = tab.host()
    slider = host.get_by_role("slider", name="num_heads")
    slider.focus()
    for num_heads in (1, 2, 3, 4, 6, 12):
        explorer.num_heads = num_heads
        head_dim = 12 // num_heads
        heads = "1 head" if num_heads == 1 else f"{num_heads} heads"
        assert slider.get_attribute("aria-valuetext") == f"{heads}, head_dim {head_dim}"
        assert facts(host) == [
            f"12 / {num_heads} = {head_dim}",
            "576",
            str(num_heads * 25),
        ]
        if num_heads > 1:
            status = host.get_by_role("status").text_content()
            assert f"{heads}, head_dim {head_dim}. 576 parameters, unchanged." in status
        assert_shows(host, explorer)
        slider.focus()
        page.keyboard.press("ArrowRight")
    page.keyboard.press("Home")
    assert slider.get_attribute("aria-valuetext") == "1 head, head_dim 12"
    assert tab.errors == []


def test_stages_and_masks_show_what_torch_computes(reader, tmp_path):
    explorer = make_explorer(num_heads=3, stage="scores")
    tab = reader()
    page = tab.open(write_page(tmp_path, [explorer]), 1)
    host = tab.host()
    stages = host.locator(".mha-segments input")
    for is_causal in (False, True):
        if is_causal:
            host.get_by_role("checkbox", name="Causal mask").focus()
            page.keyboard.press("Space")
            assert "Causal mask on" in host.get_by_role("status").text_content()
            explorer.is_causal = True
            stages.nth(3).focus()
            for _ in range(3):
                page.keyboard.press("ArrowLeft")
        else:
            stages.nth(0).focus()
        for stage in ("scores", "masked", "weights", "output"):
            explorer.stage = stage
            assert host.locator(".mha-segments input:checked").input_value() == stage
            assert_shows(host, explorer)
            stages.nth(("scores", "masked", "weights", "output").index(stage)).focus()
            if stage != "output":
                page.keyboard.press("ArrowRight")
    explorer.stage = "weights"
    page.keyboard.press("ArrowLeft")
    visible = host.get_by_role("slider", name="valid_len")
    for valid_len in (4, 3, 2, 1, 0):
        visible.focus()
        page.keyboard.press("ArrowLeft")
        explorer.valid_len = valid_len
        assert (
            visible.get_attribute("aria-valuetext")
            == f"{valid_len} of 5 tokens visible"
        )
        assert_shows(host, explorer)
    assert torch.equal(shown_numbers(host), torch.zeros(5, 5, dtype=torch.float64))
    assert host.locator(".mha-hidden").count() == 25
    assert tab.errors == []


def test_each_trained_layer_shows_its_own_numbers(reader, tmp_path):
    explorer = make_explorer(num_heads=6, head=5)
    tab = reader()
    page = tab.open(write_page(tmp_path, [explorer]), 1)
    host = tab.host()
    host.get_by_role("combobox", name="Example").select_option("trained")
    explorer.example = "trained"
    assert explorer.num_heads == 4, (
        "Python and the browser take the same nearest setting"
    )
    assert (
        host.get_by_role("slider", name="num_heads").get_attribute("aria-valuetext")
        == "4 heads, head_dim 3"
    )
    assert host.locator(".mha-maps input:checked").input_value() == str(explorer.head)
    for num_heads in (4, 2, 1):
        explorer.num_heads = num_heads
        assert_shows(host, explorer)
        host.get_by_role("slider", name="num_heads").focus()
        page.keyboard.press("ArrowLeft")
    assert facts(host)[1] == "624"
    assert tab.errors == []


def test_plain_keys_stay_with_the_widget(reader, tmp_path):
    """JupyterLab listens on the document and would take the arrow keys from a slider."""
    tab = reader()
    page = tab.open(write_page(tmp_path, [make_explorer()]), 1)
    page.evaluate(
        "window.seen = []; document.addEventListener('keydown', event => window.seen.push(event.key))"
    )
    tab.host().get_by_role("slider", name="num_heads").focus()
    page.keyboard.press("ArrowRight")
    page.keyboard.press("Control+k")
    assert page.evaluate("window.seen") == ["Control", "k"], (
        "shortcuts of the page still work"
    )
    assert page.locator("[data-lm-suppress-shortcuts] .mha-body").count() == 1


def test_a_menu_of_one_example_is_not_shown(reader, tmp_path):
    example = HeadExample("alone", ["a", "b"], torch.randn(2, 12), layer(2))
    tab = reader()
    tab.open(write_page(tmp_path, [HeadExplorer([example]), make_explorer()]), 2)
    assert [tab.host(i).get_by_role("combobox").count() for i in range(2)] == [0, 1]


def test_a_cell_is_read_by_pointer_and_by_keyboard(reader, tmp_path):
    explorer = make_explorer(num_heads=2, valid_len=4, is_causal=True)
    tab = reader()
    page = tab.open(write_page(tmp_path, [explorer]), 1)
    host = tab.host()
    readout = host.locator(".mha-readout")
    weights = explorer.weights()[0]
    cells = host.get_by_role("gridcell")
    cells.nth(2 * 5 + 1).hover()
    assert (
        readout.inner_text() == f"query 'or' at 2 → key 'be' at 1: {weights[2, 1]:.4f}"
    )
    page.mouse.move(0, 0)
    assert "arrow keys" in readout.inner_text()
    host.locator("[role=gridcell][tabindex='0']").focus()
    for key in (
        "ArrowDown",
        "ArrowDown",
        "ArrowDown",
        "ArrowRight",
        "ArrowUp",
        "End",
        "ArrowRight",
    ):
        page.keyboard.press(key)
    focused = page.evaluate("document.activeElement.getAttribute('aria-label')")
    assert (
        readout.inner_text()
        == focused
        == "query 'or' at 2 → key 'be' at 4: 0.0000, hidden by the padding mask"
    )
    page.keyboard.press("ArrowLeft")
    assert (
        readout.inner_text()
        == "query 'or' at 2 → key 'not' at 3: 0.0000, hidden by the causal mask"
    )
    assert host.locator("[role=gridcell][tabindex='0']").count() == 1, (
        "one stop for the Tab key"
    )
    assert host.locator("[role=rowheader].mha-now").inner_text() == "or"
    assert tab.errors == []


def test_two_widgets_are_independent_and_two_views_are_one(reader, tmp_path):
    first, second = make_explorer(num_heads=2), make_explorer(num_heads=3)
    tab = reader()
    page = tab.open(write_page(tmp_path, [first, second, first], loaders=2), 3)
    assert page.locator(".widget-host").count() == 3, (
        "the loader hosts a view once, even if it is there twice"
    )
    sliders = page.get_by_role("slider", name="num_heads")
    sliders.nth(0).focus()
    page.keyboard.press("ArrowRight")
    page.keyboard.press("ArrowRight")
    sliders.nth(1).focus()
    page.keyboard.press("ArrowLeft")
    texts = [sliders.nth(i).get_attribute("aria-valuetext") for i in range(3)]
    assert texts == [
        "4 heads, head_dim 3",
        "2 heads, head_dim 6",
        "4 heads, head_dim 3",
    ]
    tab.host(1).locator(".mha-segments input").nth(0).check(force=True)
    chosen = [
        tab.host(i).locator(".mha-segments input:checked").input_value()
        for i in range(3)
    ]
    assert chosen == ["weights", "scores", "weights"], (
        "radio buttons of two widgets form two groups"
    )
    first.num_heads = 4
    assert_shows(tab.host(2), first)
    styles = page.locator("head style").all_text_contents()
    assert sum("mha-widget" in style for style in styles) == 1, (
        "one style sheet for all three"
    )
    assert tab.errors == []


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        (
            {"num_heads": 5},
            "num_heads must divide embed_dim=12 and be one of 1, 2, 3, 4, 6, 12, got 5",
        ),
        (
            {"example": "other"},
            "example must be one of “sentence”, “trained”, got “other”",
        ),
        ({"valid_len": 9}, "valid_len must lie in 0..5, got 9"),
        ({"head": -1}, "head must lie in 0..1, got -1"),
        (
            {"stage": "softmax"},
            "stage must be one of scores, masked, weights, output, got “softmax”",
        ),
    ],
)
def test_a_state_that_makes_no_sense_gives_a_message(
    reader, tmp_path, changes, message
):
    tab = reader()
    page = tab.open(
        write_page(
            tmp_path,
            [make_explorer(), make_explorer()],
            alter=lambda states: states[0].update(changes),
        ),
        2,
    )
    assert (
        tab.host(0).get_by_role("alert").inner_text()
        == f"This widget cannot show its state: {message}."
    )
    assert tab.host(0).get_by_role("slider").count() == 0
    assert tab.host(1).get_by_role("slider").count() == 2, (
        "the other widget is not concerned"
    )
    assert tab.host(1).get_by_role("alert").count() == 0
    assert page.locator("[data-widget=ready]").count() == 2
    assert tab.errors == []


def test_a_widget_recovers_when_its_state_does(reader, tmp_path):
    """With a kernel the state can go wrong and right again while the widget is on the page."""
    explorer = make_explorer(num_heads=2)
    tab = reader()
    page = tab.open(write_page(tmp_path, [Quiz([Question("?", ["a", "b"], 0)])]), 1)
    texts = render_by_hand(
        page, explorer, [("set", "num_heads", 5), ("set", "num_heads", 3)]
    )
    assert "must divide" in texts[0]
    assert "3 heads" not in texts[0]
    assert "must divide" not in texts[1]
    assert "3 heads" in texts[1]


def render_by_hand(page, widget, actions):
    """Import a widget's module as anywidget does, render it, act, clean up: its text after each action."""
    state = {
        name: value
        for name, value in widget.get_state().items()
        if not name.startswith("_model")
    }
    state.pop("layout", None)
    return page.evaluate(
        """async ([state, actions]) => {
          const url = URL.createObjectURL(new Blob([state._esm], { type: "text/javascript" }));
          const widget = (await import(url)).default;
          let listeners = [];
          const model = {
            get: (name) => state[name],
            set(name, value) {
              state[name] = value;
              for (const [event, callback] of listeners) if (event === `change:${name}`) callback();
            },
            on: (event, callback) => listeners.push([event, callback]),
            off(event, callback) {
              listeners = listeners.filter(([e, c]) => e !== event || c !== callback);
            },
            save_changes() {},
          };
          const el = document.createElement("div");
          document.body.append(el);
          const cleanUp = await widget.render({ model, el });
          const texts = [];
          for (const [action, name, value] of actions) {
            if (action === "click") el.querySelector(name).click();
            else model.set(name, value);
            await new Promise((resolve) => setTimeout(resolve));
            texts.push(el.innerText);
          }
          cleanUp();
          if (el.childNodes.length || listeners.length) throw new Error("something was left behind");
          model.set("num_heads", 1);  // a late change after the clean-up must do nothing
          el.remove();
          return texts;
        }""",
        [state, actions],
    )


@pytest.mark.parametrize("kind", ["explorer", "quiz"])
def test_nothing_leaks_when_a_view_goes(reader, tmp_path, kind):
    widget = make_explorer() if kind == "explorer" else make_quiz()
    tab = reader()
    page = tab.open(write_page(tmp_path, [make_quiz()]), 1)
    client = page.context.new_cdp_session(page)

    def count_after(renders):
        for _ in range(renders):
            render_by_hand(
                page, widget, [("click", "input"), ("click", "[type=checkbox], button")]
            )
        client.send("HeapProfiler.collectGarbage")
        counters = client.send("Memory.getDOMCounters")
        return counters["nodes"], counters["jsEventListeners"]

    before = count_after(3)
    nodes, listeners = count_after(12)
    assert listeners <= before[1]
    # The browser may hold on to the last view for a while; twelve of them have more than a thousand nodes.
    assert nodes <= before[0] + 400
    assert tab.errors == []


@pytest.mark.parametrize("theme", ["light", "dark"])
def test_nothing_overflows_a_phone(reader, tmp_path, theme):
    explorers = [
        make_explorer(num_heads=num_heads, stage=stage)
        for num_heads, stage in (
            (1, "output"),
            (3, "masked"),
            (12, "weights"),
            (12, "output"),
        )
    ]
    tokens, label = (
        ["incomprehensibilities"] * 24,
        "a rather long name for an example, to be cut somewhere",
    )
    long = HeadExample(
        label, tokens, torch.randn(24, 60), layer(4, embed_dim=60), "word " * 40
    )
    widgets = [
        *explorers,
        HeadExplorer([long]),
        HeadExplorer([long], num_heads=60),
        make_quiz(),
    ]
    tab = reader(width=360)
    page = tab.open(write_page(tmp_path, widgets, theme=theme), len(widgets))
    page.get_by_role("button", name="Check question 1").click()
    assert page.evaluate("document.documentElement.scrollWidth") <= 360
    too_wide = page.locator(".mha-widget *").evaluate_all(
        "nodes => nodes.filter(n => n.getBoundingClientRect().right > 360).map(n => n.outerHTML.slice(0, 80))"
    )
    assert too_wide == []
    assert tab.errors == []


# The loader


def test_a_module_that_fails_leaves_a_message_and_the_others_alone(reader, tmp_path):
    def break_three(states):
        states[0]["_esm"] = (
            "export default { render() { throw new Error('no ink'); } };"
        )
        states[1]["_esm"] = "this is no JavaScript"
        del states[2]["_esm"]

    tab = reader()
    widgets = [make_explorer(), make_explorer(), make_explorer(), make_quiz()]
    page = tab.open(write_page(tmp_path, widgets, alter=break_three), 4)
    marks = page.locator(".widget-host").evaluate_all(
        "hosts => hosts.map(host => host.dataset.widget)"
    )
    assert marks == ["failed", "failed", "failed", "ready"]
    assert tab.host(0).inner_text() == "This widget could not be started: no ink"
    assert "its code is not stored in this page" in tab.host(2).inner_text()
    assert len(tab.errors) == 3, "and the console says it for who looks there"


def test_the_loader_keeps_the_contract_of_front_end_modules(reader, tmp_path):
    """Initialize once a model, render once a view, a factory as default export, on and off."""
    module = """
      export default async () => ({
        initialize({ model }) {
          model.set("count", 0);
          model.on("change:count", () => model.set("echo", model.get("count")));
        },
        render({ model, el }) {
          const show = () => { el.textContent = `${model.get("count")} ${model.get("echo")}`; };
          model.on("change:echo", show);
          el.addEventListener("click", () => {
            model.set("count", model.get("count") + 1);
            model.save_changes();
          });
          el.addEventListener("dblclick", () => model.off("change:echo", show));
          show();
        },
      });"""
    widget, other = make_quiz(), make_quiz()

    def replace(states):
        for state in states:
            state["_esm"] = module

    tab = reader()
    page = tab.open(write_page(tmp_path, [widget, widget, other], alter=replace), 3)
    tab.host(0).click()
    assert [tab.host(i).inner_text() for i in range(3)] == ["1 1", "1 1", "0 undefined"]
    tab.host(1).dispatch_event("dblclick")
    tab.host(0).click()
    assert [tab.host(i).inner_text() for i in range(3)] == ["2 2", "1 1", "0 undefined"]
    assert page.locator("[data-widget=ready]").count() == 3
    assert tab.errors == []


# The quiz, by keyboard


def make_quiz():
    return Quiz(
        [
            Question(
                "Which width is under the `√`?",
                ["`embed_dim`", "`head_dim`", "*none*"],
                1,
                ["Too wide.", "Yes.", "No."],
            ),
            Question(
                "How many parameters?", [64, 256], 4 * 8**2, "Four matrices of 8 · 8."
            ),
        ]
    )


@pytest.mark.parametrize("over", ["http", "disk"])
def test_a_quiz_is_answered_by_keyboard(reader, tmp_path, over):
    tab = reader(over)
    page = tab.open(write_page(tmp_path, [make_quiz()]), 1)
    host = tab.host()
    assert host.get_by_role("group", name="How many parameters?").count() == 1
    assert host.locator("legend code").inner_text() == "√"
    assert host.locator("em").inner_text() == "none"
    feedback, score, status = (
        host.locator(".mha-feedback"),
        host.locator(".mha-score"),
        host.get_by_role("status"),
    )
    first_check = host.get_by_role("button", name="Check question 1")

    first_check.focus()
    page.keyboard.press("Enter")
    assert feedback.nth(0).inner_text() == "Choose an answer first."

    host.get_by_role("radio").nth(0).focus()
    page.keyboard.press("Space")
    page.keyboard.press("Tab")
    page.keyboard.press("Enter")
    assert feedback.nth(0).inner_text() == "Not quite. Too wide."
    assert status.text_content() == "Question 1: Not quite. Too wide."
    assert score.inner_text() == "0 of 2 correct"

    host.get_by_role("radio").nth(0).focus()
    page.keyboard.press("ArrowDown")
    assert feedback.nth(0).inner_text() == "", (
        "feedback goes when another answer is picked"
    )
    first_check.focus()
    page.keyboard.press("Space")
    assert feedback.nth(0).inner_text() == "Correct. Yes."
    assert score.inner_text() == "1 of 2 correct"

    host.get_by_role("radio", name="256").check()
    host.get_by_role("button", name="Check question 2").click()
    assert feedback.nth(1).inner_text() == "Correct. Four matrices of 8 · 8."
    assert score.inner_text() == "2 of 2 correct"
    assert feedback.nth(0).inner_text() == "Correct. Yes.", "the first answer stays"
    assert tab.errors == []


def test_a_quiz_shows_what_python_chose(reader, tmp_path):
    quiz = make_quiz()
    quiz.chosen = [2, None]
    tab = reader()
    tab.open(write_page(tmp_path, [quiz]), 1)
    assert tab.host().get_by_role("radio", name="none").is_checked()
    assert tab.host().locator(".mha-feedback").nth(0).inner_text() == "Not quite. No."


def test_a_quiz_with_a_wrong_state_gives_a_message(reader, tmp_path):
    tab = reader()
    tab.open(
        write_page(
            tmp_path,
            [make_quiz()],
            alter=lambda states: states[0].update(chosen=[7, None]),
        ),
        1,
    )
    assert (
        "chosen must hold one choice or null for each question"
        in tab.host().get_by_role("alert").inner_text()
    )
    assert tab.errors == []
