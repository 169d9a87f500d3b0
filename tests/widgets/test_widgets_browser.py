"""The widgets' mathematics against torch, and the loader that hosts widgets in a page, in a real browser."""

import base64
import math

import pytest
import torch
from widget_page import assert_shows_numbers, write_page
from widget_samples import SAMPLES

from mha_lib import MultiHeadAttention, attention_pooling, masked_softmax
from mha_lib.masking import build_mask, causal_mask

MATH = "shared/attention_math.js"


def layer(num_heads, embed_dim=12, **options):
    torch.manual_seed(num_heads)
    return MultiHeadAttention(embed_dim, num_heads, **options)


def in_browser(page, expression, **arguments):
    """Evaluate an expression over the functions of attention_math.js; tensors go and come as float64."""
    as_list = lambda value: value.tolist() if isinstance(value, torch.Tensor) else value  # noqa: E731
    plain = {name: as_list(value) for name, value in arguments.items()}
    result = page.evaluate(
        """async ([expression, values]) => {
          const math = await import("/shared/attention_math.js");
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
    return scale * torch.randn(*shape, dtype=torch.float64, generator=torch.Generator().manual_seed(seed))


def assert_equal(actual, expected):
    torch.testing.assert_close(actual, expected.double(), atol=1e-12, rtol=1e-12)


@pytest.mark.parametrize(("q_len", "k_len"), [(5, 5), (3, 7), (7, 3), (1, 4)])
def test_masks_equal_torch(math_page, q_len, k_len):
    mask = in_browser(math_page, "causalMask(q, k)", q=q_len, k=k_len)
    assert torch.equal(mask.bool(), causal_mask(q_len, k_len))
    for valid_len in range(k_len + 1):
        expected = build_mask(q_len, k_len, valid_lens=torch.tensor([valid_len]), is_causal=True)[0]
        expression = "combineMasks([validLenMask(v, q, k), causalMask(q, k)])"
        assert torch.equal(in_browser(math_page, expression, v=valid_len, q=q_len, k=k_len).bool(), expected)


@pytest.mark.parametrize("scale", [1.0, 1e4], ids=["small scores", "scores beyond exp"])
def test_softmax_and_pooling_equal_torch(math_page, scale):
    scores, value = normal(5, 7, scale=scale), normal(7, 3, seed=1)
    mask = normal(5, 7, seed=2) > 0
    mask[3] = False
    expected = masked_softmax(scores, mask)
    weights = in_browser(math_page, "maskedSoftmax(s, m)", s=scores, m=mask)
    assert_equal(weights, expected)
    assert not weights[3].any(), "exact zeros where nothing is visible"
    assert torch.equal(weights[~mask], torch.zeros(int((~mask).sum()), dtype=torch.float64))
    assert_equal(in_browser(math_page, "maskedSoftmax(s)", s=scores), scores.softmax(-1))
    output = in_browser(math_page, "attentionPooling(s, v, m).output", s=scores, v=value, m=mask)
    assert_equal(output, attention_pooling(scores, value, mask)[0])
    masked = in_browser(math_page, "maskScores(s, m)", s=scores, m=mask)
    assert torch.equal(masked, scores.masked_fill(~mask, -math.inf))


@pytest.mark.parametrize("num_heads", [1, 2, 3, 6])
@pytest.mark.parametrize(("valid_len", "is_causal"), [(7, False), (4, True), (0, False)])
def test_all_steps_equal_the_layer(math_page, num_heads, valid_len, is_causal):
    attention = layer(num_heads, embed_dim=18, bias=True).double()
    torch.nn.init.normal_(attention.q_proj.bias)
    x = normal(1, 7, 18, scale=2.0)
    with torch.no_grad():
        _, weights = attention(x, x, x, valid_lens=torch.tensor([valid_len]), is_causal=is_causal)
        projections = attention.q_proj, attention.k_proj, attention.v_proj
        query, key, value = (projection(x)[0] for projection in projections)
        heads = weights @ attention.split_heads(value[None])
    mask = build_mask(7, 7, valid_lens=torch.tensor([valid_len]), is_causal=is_causal)[0].expand(7, 7)
    steps = "multiHeadSteps({query: q, key: k, value: v}, n, m)"
    arguments = {"q": query, "k": key, "v": value, "n": num_heads, "m": mask}
    assert_equal(in_browser(math_page, f"{steps}.weights", **arguments), weights[0])
    assert_equal(in_browser(math_page, f"{steps}.output", **arguments), heads[0])


def test_float32_numbers_come_back_exactly(math_page):
    numbers = torch.randn(4, 3, generator=torch.Generator().manual_seed(3))
    stored = base64.b64encode(numbers.numpy().astype("<f4").tobytes()).decode()
    recovered = in_browser(math_page, "matrixFromFloat32(n, 3, 'n')", n=stored)
    assert torch.equal(recovered, numbers.double())


@pytest.mark.parametrize(("expression", "rule"), [
    ("splitHeads([new Float64Array(12)], 5)", "num_heads must divide embed_dim=12, got 5"),
    ("splitHeads([new Float64Array(12)], 0)", "num_heads must divide embed_dim=12, got 0"),
    ("validLenMask(4, 3, 3)", r"valid_len must lie in 0\.\.k_len=3, got 4"),
])  # fmt: skip
def test_the_mathematics_refuses_what_makes_no_sense(math_page, expression, rule):
    with pytest.raises(Exception, match=rule):
        in_browser(math_page, expression)


def test_plain_keys_stay_with_the_widget(show):
    """JupyterLab listens on the document and would take the arrow keys from a slider."""
    host = show(SAMPLES["HeadExplorer"]())
    page = host.page
    listen = "document.addEventListener('keydown', event => window.seen.push(event.key))"
    page.evaluate(f"window.seen = []; {listen}")
    host.get_by_role("slider", name="num_heads").focus()
    page.keyboard.press("ArrowRight")
    page.keyboard.press("Control+k")
    assert page.evaluate("window.seen") == ["Control", "k"], "shortcuts of the page still work"
    assert page.locator("[data-lm-suppress-shortcuts] .mha-body").count() == 1


def test_maps_that_are_drawn_later_follow_a_hand_that_never_rests(show):
    """A slider that moves in every frame; the maps change meanwhile, and end in the last state."""
    explorer = SAMPLES["HeadExplorer"]()
    host = show(explorer)
    changes = host.get_by_role("slider", name="valid_len").evaluate(
        """async (slider) => {
          const maps = slider.closest(".mha-widget").querySelector(".mha-maps");
          const seen = new Set();
          for (let frame = 0; frame < 30; frame++) {
            await new Promise(requestAnimationFrame);
            slider.value = String(1 + (frame % 3));
            slider.dispatchEvent(new Event("input", { bubbles: true }));
            seen.add(maps.dataset.value);
          }
          return seen.size;
        }"""
    )
    assert changes >= 3, "the first state, and others on the way"
    host.page.wait_for_timeout(100)
    explorer.valid_len = 3
    assert_shows_numbers(host, explorer)


def test_a_widget_keeps_its_height_until_the_hand_lets_go_of_the_slider(show):
    """On a phone, four small maps are two rows and one is one row: what is below stays in place meanwhile."""
    host = show(SAMPLES["HeadExplorer"]())
    host.page.set_viewport_size({"width": 360, "height": 740})
    slider = host.get_by_role("slider", name="num_heads")
    four, one, released = slider.evaluate(
        """async (slider) => {
          const widget = slider.closest(".mha-widget");
          const after = async (type, value) => {
            slider.value = value;
            slider.dispatchEvent(new Event(type, { bubbles: true }));
            for (let frame = 0; frame < 5; frame++) {
              await new Promise(requestAnimationFrame);
              await new Promise((resolve) => setTimeout(resolve));
            }
            return widget.offsetHeight;
          };
          return [await after("input", 3), await after("input", 0), await after("change", 0)];
        }"""
    )
    assert slider.get_attribute("aria-valuetext") == "1 head, head_dim 12"
    assert released < one == four


def test_two_widgets_are_independent_and_two_views_are_one(reader, tmp_path):
    first, second = SAMPLES["HeadExplorer"](), SAMPLES["HeadExplorer"]()
    second.num_heads = 3
    tab = reader()
    page = tab.open(write_page(tmp_path, [first, second, first], loaders=2), 3)
    assert page.locator(".widget-host").count() == 3, "a view is hosted once, even if it is there twice"
    sliders = page.get_by_role("slider", name="num_heads")
    sliders.nth(0).focus()
    page.keyboard.press("ArrowRight")
    page.keyboard.press("ArrowRight")
    sliders.nth(1).focus()
    page.keyboard.press("ArrowLeft")
    texts = [sliders.nth(i).get_attribute("aria-valuetext") for i in range(3)]
    assert texts == ["4 heads, head_dim 3", "2 heads, head_dim 6", "4 heads, head_dim 3"]
    tab.host(1).locator(".mha-segments input").nth(0).check(force=True)
    chosen = [tab.host(i).locator("input[name=Show]:checked").input_value() for i in range(3)]
    assert chosen == ["weights", "scores", "weights"], "radio buttons of two widgets form two groups"
    first.num_heads = 4
    assert_shows_numbers(tab.host(2), first)
    styles = page.locator("head style").all_text_contents()
    assert sum("mha-widget" in style for style in styles) == 1, "one style sheet for all three"


def test_a_module_that_fails_leaves_a_message_and_the_others_alone(reader, tmp_path):
    def break_three(states):
        states[0]["_esm"] = "export default { render() { throw new Error('no ink'); } };"
        states[1]["_esm"] = "this is no JavaScript"
        del states[2]["_esm"]

    tab = reader()
    widgets = [SAMPLES["HeadExplorer"]() for _ in range(3)] + [SAMPLES["Quiz"]()]
    page = tab.open(write_page(tmp_path, widgets, alter=break_three), 4)
    marks = page.locator(".widget-host").evaluate_all("hosts => hosts.map(host => host.dataset.widget)")
    assert marks == ["failed", "failed", "failed", "ready"]
    assert tab.host(0).inner_text() == "This widget could not be started: no ink"
    assert "its code is not stored in this page" in tab.host(2).inner_text()
    assert len(tab.errors) == 3, "and the console says it for who looks there"
    tab.errors.clear()


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
    widget, other = SAMPLES["Quiz"](), SAMPLES["Quiz"]()

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


# --------------------------------------------------------------------------------
# Legends

# The text of a sample in the legend, and the line, dot or cell to which it refers.
LEGENDS = {
    "PoolingExplorer": {
        "pairs: a larger dot has more weight": ".mha-fit .mha-dots.mha-key > span",
        "true curve": ".mha-fit .mha-curve.mha-truth",
        "fit": ".mha-fit .mha-curve[class='mha-curve mha-query']",
        "no key within reach: output 0": ".mha-fit .mha-curve.mha-nothing",
    },
    "PositionExplorer": {
        "column 0, sin": ".mha-curve.mha-sine",
        "1, cos": ".mha-curve.mha-cosine",
        "2, sin of pair 1": ".mha-curve.mha-next",
    },
    "MaskTranslator": {
        "may attend": "[role=gridcell][aria-label$='may attend']",
        "hidden. Colours mean the same in all panels; the entries do not.":
            "[role=gridcell][aria-label$=hidden]",
    },
}  # fmt: skip
# The colour of a swatch, a line, a dot or a cell, and whether it is solid, dashed or dotted.
LOOK = """(node) => {
  const { stroke, strokeDasharray, borderTopStyle, borderTopColor, backgroundColor } = getComputedStyle(node);
  const opaque = (color) => {
    const parts = color.match(/[\\d.]+/g).slice(0, 3).map(Number);
    return parts.map((part) => Math.round(color.startsWith("color") ? 255 * part : part)).join();
  };
  if (node instanceof SVGElement) {
    const [dash] = strokeDasharray.split("px");
    return [opaque(stroke), dash === "none" ? "solid" : Number(dash) > 2 ? "dashed" : "dotted"];
  }
  const isLine = node.matches("i:not(.mha-swatch)") && borderTopStyle !== "none";
  return [opaque(isLine ? borderTopColor : backgroundColor), isLine ? borderTopStyle : "solid"];
}"""


@pytest.mark.parametrize("theme", ["light", "dark"])
@pytest.mark.parametrize("name", LEGENDS)
def test_what_a_legend_names_looks_like_its_sign(show, name, theme):
    host = show(SAMPLES[name]())
    host.page.evaluate("theme => { document.documentElement.dataset.theme = theme; }", theme)
    swatches = host.locator(".mha-legend i")
    words = swatches.evaluate_all("all => all.map((node) => node.nextSibling.textContent.trim())")
    assert words == list(LEGENDS[name])
    signs = [swatch.evaluate(LOOK) for swatch in swatches.all()]
    assert signs == [host.locator(drawn).first.evaluate(LOOK) for drawn in LEGENDS[name].values()]
    assert len(set(map(tuple, signs))) == len(signs)


@pytest.mark.parametrize("theme", ["light", "dark"])
def test_the_paths_have_the_colours_that_their_legend_names(show, theme):
    host = show(SAMPLES["PathExplorer"]())
    host.page.evaluate("theme => { document.documentElement.dataset.theme = theme; }", theme)
    assert "Orange: the tokens. Blue: the outputs." in host.locator(".mha-legend").inner_text()
    for drawn, most in ((".mha-inputs", 0), (".mha-outputs", 2)):
        color = [int(part) for part in host.locator(drawn).first.evaluate(LOOK)[0].split(",")]
        assert color[most] == max(color)
