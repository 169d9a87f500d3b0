"""A page with widgets as the book makes it, and what a reader does with it in a real browser."""

import copy
import importlib.util
import json
import shutil
from pathlib import Path

import torch
from ipywidgets.embed import dependency_state, embed_data
from playwright.sync_api import expect

ROOT = Path(__file__).resolve().parents[2]

spec = importlib.util.spec_from_file_location("security", ROOT / "_ext" / "security.py")
security = importlib.util.module_from_spec(spec)
spec.loader.exec_module(security)


def stand_in(widget):
    """What the book shows in place of a widget where there are no scripts, as _ext/course.py makes it."""
    still = '<svg width="300" height="100"></svg>'
    return f'<div class="widget-still">{widget.fallback_html() or still}</div>'


def write_page(folder, widgets, *, alter=None, loaders=1, theme="light", stills=False):
    """A page in a sub-folder, with the widgets' stored state and the book's loader and security policy.

    With `stills` the book's style sheet is there too, and what stands in for each widget.
    """
    # The state of these widgets only, because other tests' widgets may still be alive.
    state = dependency_state(widgets, drop_defaults=False)
    data = copy.deepcopy(embed_data(views=widgets, state=state))
    states = data["manager_state"]["state"]
    if alter is not None:
        alter([states[view["model_id"]]["state"] for view in data["view_specs"]])
    script = lambda kind, content: (  # noqa: E731
        f'<script type="application/vnd.jupyter.widget-{kind}+json">'
        + json.dumps(content).replace("</script>", r"<\/script>")
        + "</script>"
    )
    views = "".join(
        f'<div class="cell_output">{script("view", view)}{stand_in(widget) if stills else ""}</div>'
        for view, widget in zip(data["view_specs"], widgets, strict=True)
    )
    style = '<link rel="stylesheet" href="../_static/book.css">' if stills else ""
    loader = '<script src="../_static/widget_loader.js"></script>' * loaders
    html = (
        f'<!doctype html><html lang="en" data-theme="{theme}"><head><meta charset="utf-8" />'
        '<meta name="viewport" content="width=device-width"><link rel="icon" href="data:,">'
        "<title>Widgets</title>"
        f"<style>body {{ margin: 12px; font-family: sans-serif }}</style>{style}{loader}</head>"
        f"<body>{script('state', data['manager_state'])}{views}</body></html>"
    )
    (folder / "_static").mkdir(exist_ok=True)
    (folder / "chapters").mkdir(exist_ok=True)
    for name in ("widget_loader.js", "book.css"):
        shutil.copy(ROOT / "_static" / name, folder / "_static")
    path = folder / "chapters" / "page.html"
    path.write_text(security.secure(html), encoding="utf-8")
    return path


class Reader:
    """A browser tab: at its end, there must be no error and no request that left the page's own folder.

    A test that provokes an error looks at `errors` itself, and clears it.
    """

    def __init__(self, browser, address, *, over, width=900):
        self.page = browser.new_page(viewport={"width": width, "height": 1000})
        self.address, self.over = address, over
        self.errors, self.requests = [], []
        self.page.on("pageerror", lambda error: self.errors.append(str(error)))
        self.page.on(
            "console", lambda message: self.errors.append(message.text) if message.type == "error" else None
        )
        self.page.on("request", lambda request: self.requests.append(request.url))

    def open(self, path, count):
        folder = path.parent.parent
        self.home = f"{self.address}/{folder.name}/" if self.over == "http" else f"{folder.as_uri()}/"
        self.page.goto(f"{self.home}chapters/page.html")
        # Not `wait_for_function`: where it has to wait, the page's security policy forbids it.
        expect(self.page.locator("[data-widget]")).to_have_count(count)
        return self.page

    def close(self):
        self.page.close()
        assert [url for url in self.requests if not url.startswith((self.home, "blob:", "data:"))] == []
        assert self.errors == []

    def host(self, index=0):
        return self.page.locator(".widget-host").nth(index)


class ByHand:
    """A widget that the test hosts itself, as anywidget would: its model can be read and changed."""

    def __init__(self, page, widget):
        state = widget.get_state()
        state = {name: state[name] for name in state if name != "layout" and not name.startswith("_model")}
        self.name = type(widget).__name__
        self.page, self.kept = page, page.evaluate_handle(BY_HAND, [self.name, state])
        self.host = page.locator(f".by-hand[data-name={self.name}]")

    def get(self, name):
        return self.kept.evaluate("({ model }, name) => model.get(name)", name)

    def set(self, **changes):
        """As a kernel does it: all traits first, then one event for each."""
        self.kept.evaluate("({ change }, changes) => change(changes)", changes)

    def report(self):
        """What the widget tells Python, as soon as it is about the present state."""
        return self.kept.evaluate("({ report }) => report()")

    def saved(self):
        """What the widget told Python since the last time, message by message."""
        return self.kept.evaluate("({ model }) => model.saved.splice(0)")

    def clean_up(self):
        self.kept.evaluate("({ cleanUp }) => cleanUp()")


BY_HAND = """async ([name, state]) => {
  const { makeModel, load } = window.byHand ??= {
    modules: new Map(),
    async load(source) {
      const url = URL.createObjectURL(new Blob([source], { type: "text/javascript" }));
      const { modules } = window.byHand;
      if (!modules.has(source)) modules.set(source, (await import(url)).default);
      return modules.get(source);
    },
    makeModel(state) {
      let listeners = [];
      let changes = {};
      const saved = [];
      const tell = (name) => {
        for (const [event, callback] of listeners) if (event === `change:${name}`) callback();
      };
      return {
        listening: () => listeners.length,
        saved,
        state,
        tell,
        get: (name) => state[name],
        set(name, value) {
          changes[name] = state[name] = value;
          tell(name);
        },
        on: (event, callback) => listeners.push([event, callback]),
        off: (event, callback) => {
          listeners = listeners.filter(([e, c]) => e !== event || c !== callback);
        },
        save_changes() {
          saved.push(JSON.parse(JSON.stringify(changes)));
          changes = {};
        },
      };
    },
  };
  const widget = await load(state._esm);
  const model = makeModel(structuredClone(state));
  const el = document.createElement("div");
  el.className = "by-hand";
  el.dataset.name = name;
  const style = document.createElement("style");
  style.textContent = state._css;
  document.body.append(style, el);
  const stop = await widget.render({ model, el });
  return {
    model,
    async change(changes) {
      Object.assign(model.state, changes);
      for (const name of Object.keys(changes)) model.tell(name);
      await new Promise((resolve) => setTimeout(resolve));
    },
    async report() {
      for (let i = 0; i < 500; i += 1) {
        const report = model.get("browser_report");
        const isSame = ([name, value]) => JSON.stringify(value) === JSON.stringify(model.get(name));
        if (report?.settings && Object.entries(report.settings).every(isSame)) {
          return JSON.parse(JSON.stringify(report)); // as it reaches a kernel
        }
        await new Promise((resolve) => setTimeout(resolve, 10));
      }
      throw new Error("there was no report");
    },
    cleanUp() {
      stop();
      if (el.childNodes.length || model.listening()) throw new Error("something was left behind");
      el.remove();
      style.remove();
    },
  };
}"""

USE_CONTROLS = """async (root, fraction) => {
  const settle = () => new Promise((resolve) => setTimeout(resolve));
  const options = { bubbles: true, cancelable: true };
  const send = (node, ...types) => types.forEach((type) => node.dispatchEvent(new Event(type, options)));
  const press = (node, key) => node.dispatchEvent(new KeyboardEvent("keydown", { key, ...options }));
  const within = (low, high, step) => low + Math.round((fraction * (high - low)) / step) * step;
  const group = (radio) => [...radio.form.querySelectorAll(`input[name="${radio.name}"]`)];
  const use = (node) => {
    if (node.disabled || node.getAttribute("aria-disabled") === "true") return;
    if (node.role === "slider") press(node, fraction === 1 ? "End" : fraction === 0 ? "Home" : "ArrowRight");
    else if (node.role === "gridcell") press(node, " ");
    else if (node.matches("button")) node.click();
    else if (node.matches("select")) {
      node.selectedIndex = within(0, node.options.length - 1, 1);
      send(node, "input", "change");
    } else if (node.type === "radio") {
      const all = group(node);
      if (all.indexOf(node) === within(0, all.length - 1, 1)) node.click();
    } else if (node.type === "checkbox") {
      if (node.checked !== fraction > 0.5) node.click();
    } else if (node.type === "range" || node.type === "number") {
      const [low, high, step] = [node.min, node.max, node.step].map(Number);
      node.value = within(low, high, step || 1);
      send(node, "input", "change");
    } else {
      node.value = node.value.split(" ").reverse().join(" ");
      send(node, "input", "change");
    }
  };
  const find = () => [...root.querySelectorAll(
    ".mha-body :is(input, select, textarea, button, [role=slider], [role=gridcell][tabindex='0'])"
  )].filter((node) => node.checkVisibility() && !node.matches(".mha-reset"));
  // A change may make other controls appear: asked for anew after each.
  for (let i = 0; i < find().length; i += 1) {
    use(find()[i]);
    await settle();
    const problem = root.querySelector(".mha-problem");
    if (problem?.checkVisibility()) throw new Error(problem.textContent);
  }
}"""


def in_browser(page, body, **given):
    """Run the body of a function in a `math_page`; typed arrays come back as lists.

    It knows what is given and what the module and `random_math.js` export, which is also in `m`; `typed`
    makes typed arrays of an object's lists.
    """
    return page.evaluate(
        """async ([body, given]) => {
          const m = { ...(await import("/shared/random_math.js")), ...(await import(location.pathname)) };
          const typed = (parameters) => Object.fromEntries(
            Object.entries(parameters ?? {}).map(([name, numbers]) => [name, Float64Array.from(numbers)]));
          const isList = (value) => Array.isArray(value) || ArrayBuffer.isView(value);
          const plain = (value) => isList(value) ? Array.from(value, plain)
            : value && typeof value === "object"
              ? Object.fromEntries(Object.entries(value).map(([key, entry]) => [key, plain(entry)])) : value;
          const known = { m, typed, ...m, ...given };
          return plain(new Function(...Object.keys(known), body)(...Object.values(known)));
        }""",
        [body, given],
    )


def finger(page):
    """A function that sends a page the events of a finger: touch(kind, x, y), without a place at its end."""
    devtools = page.context.new_cdp_session(page)
    devtools.send("Emulation.setTouchEmulationEnabled", {"enabled": True})

    def touch(kind, *place):
        points = [{"x": place[0], "y": place[1]}] if place else []
        devtools.send("Input.dispatchTouchEvent", {"type": kind, "touchPoints": points})

    return touch


def use_controls(host, fraction):
    """Use every control of a widget: 0 takes it to its lowest or first choice, 1 to its highest or last.

    What starts again is left alone: it would undo the rest.
    """
    host.evaluate(USE_CONTROLS, fraction)


def shown(host, name):
    """All numbers of one name that a widget holds in the page, in reading order: (count,) in float64."""
    values = host.locator(f"[data-number='{name}']").evaluate_all(
        "nodes => nodes.flatMap(node => node.dataset.value.split(' ').filter(Boolean).map(Number))"
    )
    return torch.tensor(values, dtype=torch.float64)


def assert_shows_numbers(host, explorer, names=None):
    """The widget on the page shows what torch computes for the settings of `explorer`."""
    for name, expected in explorer.numbers().items():
        if names is None or name in names:
            assert_shows(host, name, expected)


def assert_shows(host, name, expected):
    """The widget shows these numbers under this name, in reading order; NaN only where torch has it."""
    found, wanted = shown(host, name), expected.double().flatten()
    torch.testing.assert_close(found, wanted, atol=1e-6, rtol=1e-6, equal_nan=True)


def copied_code(host):
    """The program under "These settings as Python"."""
    details = host.locator(".mha-python")
    if not details.evaluate("node => node.open"):
        details.locator("summary").click()
    code = details.locator("pre code")
    expect(code).not_to_be_empty()
    return code.text_content()


def run_copied_code(host):
    """The variables that are there when the program under "These settings as Python" has run."""
    variables = {}
    exec(copied_code(host), variables)  # noqa: S102, what a reader does with it
    return variables


def assert_copied_code_gives(host, explorer):
    """The copied program leaves the numbers of the page in variables of their names."""
    assert_gives(run_copied_code(host), explorer.numbers())


def assert_gives(variables, numbers):
    """A program left these numbers in variables of their names."""
    for name, expected in numbers.items():
        found = torch.as_tensor(variables[name]).double()
        torch.testing.assert_close(found, expected.double(), atol=1e-6, rtol=1e-6, equal_nan=True)
