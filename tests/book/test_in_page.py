"""Python in the page: the stub's editor in a browser, and judgements that are those of torch."""

import ast
import json
import re
import subprocess
import sys
from copy import copy
from functools import partial
from pathlib import Path

import in_page as extension
import pytest
from exercise_cells import CHAPTERS, MARK, pieces_of, read
from playwright.sync_api import expect
from test_accessibility import AXE
from wrong_pieces import WRONG, text_of

from attention_check import _texts
from mha_course import in_page
from mha_course._take_home import take_home
from mha_course.in_page.above import names_of, needed, statements_of

SOFTMAX = "02_scoring_functions/write-my_masked_softmax"
PAGES = sorted(CHAPTERS.glob("*.ipynb"))
SLOW = pytest.mark.slow


# ------------------------------------------------------------------ the judge, in a Python of its own


class Data(dict):
    """What the build stores for each page, made when a test first asks for it."""

    def __missing__(self, page):
        self[page] = extension.data_of(CHAPTERS / f"{page}.ipynb")
        return self[page]


class Judge:
    """The Python of a page, in a process of its own: on the stand-in, or on torch."""

    def __init__(self, data, folder, module):
        self.data = data
        loop = "for line in sys.stdin: print(page.answer(line), flush=True)"
        pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "text": True, "cwd": folder}
        command = [sys.executable, "-c", f"import sys\n{module}\n{loop}"]
        self.process = subprocess.Popen(command, **pipes)

    def __call__(self, place, text, pieces=None, *, run=False):
        page, _, name = place.partition("/")
        asked = {"check": "", "exercise": "", "checker": "", "pieces": pieces or {}, "text": text}
        asked |= self.data[page][name]
        asked |= {"check": ""} if run else {}
        asked["statements"] = self.data[page]["statements"][: asked["above"]]
        self.process.stdin.write(json.dumps(asked) + "\n")
        self.process.stdin.flush()
        return json.loads(self.process.stdout.readline())


@pytest.fixture(scope="module")
def judges(tmp_path_factory):
    """Two that answer as the page does, on the stand-in and on torch."""
    folder = tmp_path_factory.mktemp("page")
    for path, text in in_page.page_sources().items():
        (folder / path).parent.mkdir(parents=True, exist_ok=True)
        (folder / path).write_text(text, encoding="utf-8")
    data = Data()
    torch = "from mha_course.in_page import session as page"
    found = Judge(data, folder, "import fresh as page"), Judge(data, CHAPTERS.parent, torch)
    yield found
    for judge in found:
        judge.process.communicate()


@pytest.fixture
def ask(judges):
    """The one on the stand-in."""
    return judges[0]


def solution(place):
    """The text of a folded solution with what it uses of the page, under the name that the check asks for."""
    page, _, name = place.partition("/")
    notebook = CHAPTERS / f"{page}.ipynb"
    cells = extension.cells_of(notebook, code=True)
    texts = [*cells.values()][: [*cells].index(f"{name}-solution") + 1]
    asked = ASKED.search(extension.stubs_of(notebook)[name][1])[1]
    own = re.search(r"^assert check_\w+\((\w+)", texts[-1], re.MULTILINE)
    own = own[1] if own else asked
    statements = [one for text in texts for one in statements_of(text)]
    text = needed(statements, own)
    # The page does not have the library, only what the reader has built.
    text = text.replace("from mha_lib import dot_product_attention", OWN_ATTENTION)
    return text if asked == own else f"{text}\n{asked} = {own}"


OWN_ATTENTION = """def dot_product_attention(query, key, value, mask=None, *, is_causal=False):
    return my_attention(query, key, value, my_causal_mask(query.shape[1]) if is_causal else mask)
"""


ASKED = re.compile(r"^check_\w+\(\s*(\w+)", re.MULTILINE)
PLACES = [f"{page.stem}/{name}" for page in PAGES for name in extension.stubs_of(page)]
IN_PAGE = [place for place in PLACES if tuple(place.split("/")) not in extension.reasons()]
PIECES = [place for place in IN_PAGE if "/write-" in place]
COMPUTED = {"appendix_bug_zoo/ex2"}  # the solution runs the page's specimens; the answer is a list


def test_all_pieces_of_the_layer_and_most_exercises_are_judged_in_the_page():
    assert {*extension.reasons()} < {tuple(place.split("/")) for place in PLACES}
    early = [place for place in PIECES if place < "06"]
    assert len(early) == sum(len(pieces_of(page.stem)) for page in PAGES if page.stem < "06") == 10
    assert len(IN_PAGE) - len(PIECES) >= 45


@pytest.mark.parametrize("place", IN_PAGE)
def test_a_solution_is_right_and_the_stub_is_not(ask, place):
    page, _, name = place.partition("/")
    said = ask(place, ask.data[page][name]["stub"])
    assert said["verdict"].startswith("Not yet: "), said
    if place not in COMPUTED:
        said = ask(place, solution(place))
        assert said.get("right"), said


TRIED = [f"{page.stem}/{name}" for page in PAGES for name in extension.tried(page.stem)]
# The first trains, the second compares with the library.
NEED_TORCH = {"07_gpt/train-code", "appendix_models_you_know/rotary-edit"}


@pytest.mark.parametrize("place", TRIED)
def test_a_cell_that_can_be_tried_prints_what_the_notebook_stored(judges, place):
    page, _, name = place.partition("/")
    text = judges[0].data[page][name]["stub"]
    said, expected = (judge(place, text) for judge in judges)
    assert said == expected
    assert "your" not in said.pop("used") == expected.pop("used")
    cell = next(cell for cell in read(page) if cell.id == name)
    if text == cell.source:
        expected = {"output": "".join(output.text for output in cell.outputs)}
    assert said == expected != {"output": ""}


def test_each_visible_cell_of_what_the_reader_builds_can_be_tried():
    built = {
        f"{page.stem}/{cell.id}"
        for page in PAGES
        for cell in read(page.stem)
        if {"build", *HIDDEN} & {*cell.metadata.get("tags", [])} == {"build"}
    }
    assert built - {*TRIED} == NEED_TORCH


HIDDEN = {"hide-input", "hide-cell", "remove-input", "remove-cell"}


def mistakes(place):
    """The known mistakes that are edits of a reference which needs nothing of the library: (name, text)."""
    page, _, name = place.partition("/")
    check = extension.stubs_of(CHAPTERS / f"{page}.ipynb")[name][1]
    exercise = in_page.exercise_of(check)
    modules = [one for key, one in sys.modules.items() if key.startswith("mha_course.exercises.")]
    named = [(one, key) for one in modules for key, value in vars(one).items() if value is exercise]
    reference, (module, section) = exercise.reference, named[0]
    if reference.__name__ == "<lambda>":
        return
    source = _texts._source(reference, [])
    used = [vars(module).get(one) for one in names_of(ast.parse(source))[0]]
    if any(getattr(one, "__module__", "").startswith("mha_lib") for one in used):
        return
    for item, match in vars(module)["exercise"]._items(section, "mistakes"):
        text, edits = source, [_texts.EDIT.fullmatch(one.text) for one in item.below]
        if all(edits):
            for edit in edits:
                new = _texts._NEW.match(edit[3])[2]
                text = text.replace(edit[2].replace(r"\n", "\n"), new.replace(r"\n", "\n"))
            asked = ASKED.search(check)[1]
            yield match[1], f"{HEAD}{text}\n{asked} = {reference.__name__}"


HEAD = "from __future__ import annotations\nfrom itertools import combinations\nfrom math import ceil, sqrt\n"
# Mistakes whose code calls what only torch itself has, as the page says.
ONLY_IN_TORCH = ("the attention is not `MyMultiHead`", "all tokens are drawn at once")
JUDGED = [place for place in IN_PAGE if place != "03_multi_head_attention/write-MyMultiHead"]


@pytest.mark.slow
@pytest.mark.parametrize("place", JUDGED)
def test_a_known_mistake_is_named_as_with_torch(ask, place):
    for name, text in mistakes(place):
        said = ask(place, text)
        told = said.get("verdict", said.get("error"))
        if name in ONLY_IN_TORCH:
            assert told.startswith("Not yet: ") and "stand-in" in told, (name, said)
        else:
            assert told.startswith(f"Not yet: {name}. "), (name, said)


def test_hundreds_of_known_mistakes_are_tried():
    assert sum(len([*mistakes(place)]) for place in JUDGED) > 150


@pytest.mark.parametrize(("old", "new", "said"), [
    ("mask.unsqueeze(1)", "mask", "the mask has no axis for the heads"),
    ("self.out_proj(output)", "output", "the output projection is forgotten"),
    ("self.out_proj = nn.Linear(embed_dim, embed_dim, bias=bias)", "pass", "`__init__` makes no `out_proj`"),
    ("Linear(kdim or embed_dim, embed_dim", "Linear(embed_dim, embed_dim", "weight of `k_proj` has shape"),
])  # fmt: skip
def test_mistakes_in_the_whole_layer(ask, old, new, said):
    place = "03_multi_head_attention/write-MyMultiHead"
    assert old in solution(place)
    answer = ask(place, solution(place).replace(old, new))
    assert said in answer.get("verdict", ""), answer


@pytest.fixture(scope="module")
def mine():
    """The accepted texts of a reader whose pieces print that they are used."""
    cells = {name: one for page in PAGES for name, one in pieces_of(page.stem).items()}
    texts = {name: one["solution"].source.partition("\n@solution")[2] for name, one in cells.items()}
    texts |= {name: cells[name]["solution"].source for name, text in texts.items() if not text}
    found = {}
    for name, text in texts.items():
        start = re.search(r"^(?:def|class) ", text, re.MULTILINE).start()
        found[name] = text[start:] + MARK.replace("NAME", name)
    return found


def said_of(used):
    """The pieces that a reply calls the reader's."""
    yours = re.match(r"This uses your (.*?)(?:, and the course's|\.$)", used)
    return {*re.findall(r"`(\w+)`", yours[1])} if yours else set()


@pytest.mark.parametrize("place", [place for place in TRIED if place < "appendix"])
def test_a_cell_of_the_page_uses_what_the_reader_has_had_accepted(ask, mine, place):
    page, _, name = place.partition("/")
    said = ask(place, ask.data[page][name]["stub"], mine)
    assert "error" not in said, said
    marked = {*re.findall(r"^(\w+) is mine$", said["output"], re.MULTILINE)}
    # A piece that another one mentions need not be called; one that is called is told.
    assert marked <= said_of(said["used"])
    called = {one for one in mine if re.search(rf"\b{one}\(", ask.data[page][name]["stub"])}
    own = {*re.findall(r"^(?:def|class) (\w+)", ask.data[page][name]["stub"], re.MULTILINE)}
    assert called - own <= marked | {"MyMultiHead"} | NOT_RUN.get(place, set())
    assert not {*mine} & {*re.findall(r"`(\w+)`", said["used"].partition("the course's")[2])}


NOT_RUN = {}  # names that a cell defines a use of, without using it


@pytest.mark.parametrize("place", [place for place in PIECES if place < "appendix"])
def test_a_stub_is_checked_with_the_pieces_that_the_reader_has_had_accepted(ask, mine, place):
    page, _, name = place.partition("/")
    name = name.removeprefix("write-")
    others = {key: text for key, text in mine.items() if key != name}
    cells = pieces_of(page)[name]
    head = cells["stub"].source.partition("\n\n\n")[0]
    text = f"{extension.CHECKER.sub('', head)}\n{mine[name].partition(MARK[:10])[0]}"
    said = ask(place, text, others)
    assert said["right"], said
    marked = {*re.findall(r"^(\w+) is mine$", said["output"], re.MULTILINE)}
    assert marked == said_of(said["used"])
    assert marked == USED[name]


USED = {
    "my_pooling": set(),
    "my_masked_softmax": set(),
    "my_lens_mask": set(),
    "my_causal_mask": set(),
    "my_attention": {"my_masked_softmax"},
    "MyHead": {"my_attention", "my_masked_softmax"},
    "split_heads": set(),
    "merge_heads": set(),
    "MyMultiHead": {"my_attention", "my_masked_softmax", "split_heads", "merge_heads"},
    "MyPositions": set(),
    "MyEncoderBlock": {"MyMultiHead", "my_attention", "my_masked_softmax", "split_heads", "merge_heads"},
    "my_batch": set(),
    "MyGPT": {
        "MyEncoderBlock",
        "MyMultiHead",
        "my_attention",
        "my_masked_softmax",
        "my_causal_mask",
        "split_heads",
        "merge_heads",
    },
    "my_probabilities": set(),
    "my_write": {"my_probabilities"},
    "my_cached_attention": {"my_attention", "my_masked_softmax", "my_causal_mask"},
}


PLACE_OF = {place.partition("/write-")[2]: place for place in PIECES}


WRONG_IN_PAGE = [row for row in WRONG if row[0] in PLACE_OF]
IN_OTHER_WORDS = {
    "a call without a mask fails. ": "missing 1 required positional argument: 'mask'",
    "`q_proj` and `out_proj` are the same object. ": "wrong for one head (batch 1)",
    "`bias` is True by default": "without `bias=True`, `q_proj` has a bias",
    "the mask must have the shape of the scores. ": "shapes [(2, 3, 5), (2, 5)] do not fit",
}


@pytest.mark.parametrize(("name", "text", "said"), WRONG_IN_PAGE)
def test_a_wrong_piece_is_refused_in_the_page_too(ask, name, text, said):
    page, _, _ = PLACE_OF[name].partition("/")
    told = ask(PLACE_OF[name], text_of(pieces_of(page)[name]["solution"].source, text))["verdict"]
    assert told.startswith("Not yet: "), told
    assert IN_OTHER_WORDS.get(said, said) in told


def test_code_that_is_run_may_use_the_names_of_the_cells_above_it(ask):
    place = "01_attention_pooling/write-my_pooling"
    run = partial(ask, place, run=True)
    assert run("W_q.shape, travellers.shape")["output"] == "(torch.Size([2, 2]), torch.Size([3, 2]))\n"
    assert run("travellers = 3\ntravellers")["output"] == "3\n"
    assert "'wishes' is not defined" in run("wishes")["error"]  # it comes below
    # A piece that is accepted has to work on other pages, too.
    page_only = solution(place).replace("query @ key.T", "query @ key.T + 0 * travellers.sum()")
    assert "name 'travellers' is not defined" in ask(place, page_only)["verdict"]


def test_what_a_piece_prints_is_shown_once_and_for_the_case_that_fails(ask):
    text = solution(SOFTMAX).replace("):\n", "):\n    print('shape', tuple(scores.shape))\n", 1)
    said = ask(SOFTMAX, f"{text}\nprint('top')")
    assert said["right"]
    assert re.fullmatch(r"top\nIn the case '.*':\nshape \(.*\)\n", said["output"])
    fails = text.replace("print('shape'", "assert scores.ndim < 4\n    print('shape'")
    said = ask(SOFTMAX, fails)
    case = re.search(r"In the case '(.*)':", said["output"])[1]
    assert case in said["verdict"] or "ndim" in said["verdict"]


# What code may change outside its own names, and what another run would then get wrong.
CHANGES = {
    "torch.Tensor.mean = None": "torch.ones(2).mean()",
    "del torch.Tensor.sum": "torch.ones(2).sum()",
    "torch.Tensor.double_it = lambda x: x + x": "hasattr(torch.Tensor, 'double_it')",
    "torch.softmax = F.softmax = None": "torch.softmax(torch.ones(2), 0), F.softmax(torch.ones(2), 0)",
    "torch.cuda.is_available = lambda: True": "torch.cuda.is_available()",
    "torch.set_grad_enabled(False)": "torch.ones(1, requires_grad=True).exp().requires_grad",
    "torch.set_default_dtype(torch.float64)": "torch.ones(1).dtype",
    "torch.set_printoptions(precision=1)": "torch.tensor(1.2345)",
    "nn.Linear.forward = lambda self, x: x": "nn.Linear(2, 3)(torch.ones(2)).shape",
    "nn.Module.__call__ = None": "nn.ReLU()(torch.ones(1))",
    "import builtins; builtins.print = None": "print(3)",
    "import builtins; builtins.len = builtins.isinstance = builtins.repr = None": "len([1])",
    "import builtins; vars(builtins).clear()": "len([1])",
    "import math; math.sqrt = None; del math.pi": "import math; math.sqrt(4) + math.pi",
    "import sys; sys.modules['math'] = None; del sys.modules['json']": "import math, json; math.e",
    "import random; random.random = lambda: 7": "import random; random.random() < 1",
    "from collections import Counter; Counter.total = None": "import collections as c; c.Counter().total()",
    "import mha_course.built as b; b.mine = 3": "import mha_course.built as b; hasattr(b, 'mine')",
    "import warnings; warnings.warn = None": "import warnings; callable(warnings.warn)",
}


@pytest.mark.parametrize("change", CHANGES)
def test_each_run_starts_from_nothing(ask, change):
    place = "02_scoring_functions/cell-34"  # nothing is checked there
    before = ask(place, CHANGES[change])
    assert "error" not in before
    ask(place, change)
    assert ask(place, CHANGES[change]) == before
    assert ask(SOFTMAX, solution(SOFTMAX))["right"]


# ------------------------------------------------------------------ the editor, in a browser


class Writer:
    """A reader who writes on a page."""

    def __init__(self, page, address, place=SOFTMAX):
        self.page, self.asked, self.violations = page, [], []
        page.on("request", lambda request: self.asked.append(request.url))
        page.on("console", lambda m: "Content Security" in m.text and self.violations.append(m.text))
        page.goto(f"{address}/chapters/{place.partition('/')[0]}.html", wait_until="load")
        self.look_at(place)

    def look_at(self, place):
        """Turn to a stub of the page."""
        self.place, page = place, self.page
        self.button = page.locator(f'[data-stub="{place}"]')
        self.box = page.locator(".cell", has=self.button).locator(".write-here")
        self.code = self.box.locator(".cm-content")
        self.results = self.box.locator(".write-here-results")
        return self

    def open(self):
        """Press "Write it here"."""
        self.button.click()
        expect(self.code).to_be_focused()
        return self

    def press(self, name):
        """Press a button, and return what it makes the page say."""
        self.results.evaluate("results => results.replaceChildren()")
        self.box.get_by_role("button", name=name, exact=True).click()
        expect(self.results.locator("*").first).to_be_attached()
        used = self.results.locator(".write-here-used")
        self.used = used.inner_text() if used.count() else ""
        said = self.results.inner_text().removesuffix(self.used)
        return f"{said.rstrip()}\n" if self.used else said

    def run(self, text, button="Run"):
        """Write a text in place of what is there, and press a button."""
        self.code.fill(text)
        return self.press(button)


@pytest.fixture(scope="module")
def writer(browser, book):
    """One who has opened the editor on a page from disk; Python starts once for most tests."""
    page = browser.new_page()
    yield Writer(page, book.as_uri()).open()
    page.close()


@pytest.fixture
def visit(browser, book, serve):
    """Open a page in a browser that keeps nothing from before."""
    contexts = []

    def make(place=SOFTMAX, script="", over="disk", **options):
        contexts.append(browser.new_context(**options))
        contexts[-1].add_init_script(script)
        address = book.as_uri() if over == "disk" else serve(book)
        return Writer(contexts[-1].new_page(), address, place)

    yield make
    for context in contexts:
        context.close()


@pytest.mark.parametrize("over", [pytest.param("http", marks=pytest.mark.slow), "disk"])
def test_a_page_loads_nothing_before_somebody_asks_and_then_judges(visit, over):
    writer = visit(over=over)
    expect(writer.button).to_be_visible()
    assert [url for url in writer.asked if "in_page" in url] == []
    assert writer.open().run(solution(SOFTMAX), "Check").startswith("Right in all 14 cases")
    names = {url.rpartition("/")[2] for url in writer.asked if "in_page" in url}
    assert names == {"editor.js", "02_scoring_functions.js", "python.js"}
    assert writer.violations == []


def test_a_mistake_is_named(writer):
    wrong = solution(SOFTMAX).replace("softmax(-1) * mask", "softmax(-2) * mask")
    assert writer.run(wrong, "Check").startswith("Not yet: the softmax runs over the queries.")
    assert writer.violations == []


def test_what_is_printed_and_the_last_value_are_shown_and_errors_with_their_lines(writer):
    assert writer.run("print(1)\n2 + 1") == "1\n3\n"
    assert writer.run("x = 1") == "It ran, and printed nothing."
    said = writer.run("def f(x):\n    return x @ nothing\n\n\nf(torch.ones(2))")
    assert said == (
        "Line 5:\n    f(torch.ones(2))\nLine 2, in f:\n    return x @ nothing\n"
        "NameError: name 'nothing' is not defined"
    )


TYPED = {
    "def f(x:": "SyntaxError",
    "x = 3\nreturn x": "Line 2:\n    return x\nSyntaxError: 'return' outside function",
    "if True:\n\tx = 1\n        y = 2": "TabError",
    "größe = 2\ngröße": "2",
    "def f(n):\n    return f(n + 1)\n\n\nf(0)": "A function calls itself again and again",
    "import numpy": "No module named 'numpy'\nThis page has only Python",
    "import os\nos.environ['HOME']": "'/home/pyodide'",
    "import js\njs.fetch('http://127.0.0.1:9')": "AttributeError",
    "from urllib.request import urlopen\nurlopen('http://127.0.0.1:9')": "URLError",
    "input()": "nobody can type here",
    "for i in range(200_000):\n    print(i)": "and 1,268,890 more characters",
    "raise SystemExit(3)": "SystemExit: 3",
    "len(bytearray(10**9))": "Your code asked for more memory than this page has.",
}


def test_no_way_leads_from_what_is_typed_to_a_network_or_a_storage(writer):
    assert writer.run("1 + 1") == "2\n"
    ways = "fetch XMLHttpRequest WebSocket EventSource importScripts Worker indexedDB caches BroadcastChannel"
    found = f"'{ways}'.split(' ').filter((name) => self[name] !== undefined)"
    assert writer.page.workers[-1].evaluate(found) == []


@pytest.mark.parametrize("text", TYPED)
def test_whatever_is_typed_one_sentence_answers_and_the_page_goes_on(writer, text):
    assert TYPED[text] in writer.run(text)
    assert writer.run("1 + 1") == "2\n"


HEADING = "def my_masked_softmax(scores, mask=None):"


@pytest.mark.parametrize(("text", "said"), [
    ("def another(scores): ...", "looks for `my_masked_softmax`, and your text does not"),
    (f"{HEADING}\n    ...", "the function returns None"),
    (f"{HEADING}\n    scores += 1\n    return scores", "it changes its argument"),
    ("my_masked_softmax = 3", "this checker takes a function, and was given an int"),
])  # fmt: skip
def test_a_check_says_what_is_missing(writer, text, said):
    assert said in writer.run(text, "Check").replace("`scores`", "")


LOOP = "class Mine(nn.Module):\n    def forward(self, x):\n        return self(x)"


@pytest.mark.slow
@pytest.mark.parametrize(("text", "said"), [
    ("while True:\n    pass", "still running after 20 seconds, so it was stopped"),
    ("import os\nos._exit(1)", "Python has ended"),
    (f"{LOOP}\nMine()(3)", "calls itself again and again, so it was stopped: what should end that?"),
])  # fmt: skip
def test_what_does_not_come_back_is_ended_and_the_draft_kept(writer, text, said):
    assert said in writer.run(text)
    assert writer.code.inner_text() == text
    assert writer.run("1 + 1") == "2\n"


def test_after_too_much_memory_code_that_fits_runs(writer):
    fits = "kept = bytearray(300 * 2**20)\nlen(kept)"
    assert writer.run(fits) == "314572800\n"
    more = "held = []\nwhile True:\n    held.append(bytearray(2**20))"
    assert "more memory than this page has" in writer.run(more)
    assert writer.run(fits) == "314572800\n"
    caught = f"try:\n    {more.replace(chr(10), chr(10) + '    ')}\nexcept MemoryError:\n    print(len(held))"
    assert int(writer.run(caught)) > 300
    assert writer.run(fits) == "314572800\n"


def test_what_was_accepted_is_there_for_the_next_stub_and_in_the_next_chapter(writer):
    text = solution(SOFTMAX) + "\n\nmine = True\n"
    assert writer.run(text, "Check").startswith("Right")
    expect(writer.box.get_by_role("status")).to_have_text("From now on the course uses your code.")
    writer.code.fill("def my_masked_softmax(scores, mask=None):\n    return scores")  # not accepted
    following = copy(writer).look_at("02_scoring_functions/write-my_attention").open()
    assert following.run("mine") == "True\n"
    assert following.run(solution(following.place), "Check").startswith("Right")
    following.code.fill("my_masked_softmax(torch.zeros(1, 2))")
    assert following.press("Run") == "tensor([[0.5000, 0.5000]])\n"
    assert following.used == "This uses your my_masked_softmax."
    assert copy(writer).look_at("02_scoring_functions/cell-44").open().run("mine") == "True\n"


def test_pieces_that_are_done_say_so_at_their_stub_and_in_the_strip_of_each_page(visit, book):
    writer = visit("03_multi_head_attention/write-split_heads")
    page, strip = writer.page, writer.page.locator(".way")
    caption = "The parts that you will write."
    expect(page.locator(".way-caption")).to_have_text(f"{caption} Filled: your code passed.")
    assert strip.locator(".way-done").count() == 0
    assert writer.open().run(solution(writer.place), "Check").startswith("Right")
    assert strip.locator(".way-done").count() == 0  # the other half of "heads" is missing
    kept = json.dumps({"draft": "more", "accepted": solution("03_multi_head_attention/write-merge_heads")})
    page.evaluate("kept => localStorage.setItem('mha-course/write-here/merge_heads', kept)", kept)
    page.reload()
    expect(writer.button).to_have_text("✓ Accepted: open what you wrote")
    expect(writer.look_at("03_multi_head_attention/write-MyHead").button).to_have_text("Write it here")
    for other in ("index", "chapters/00_orientation", "chapters/08_what_heads_learn"):
        page.goto(f"{book.as_uri()}/{other}.html")
        expect(strip.locator(".way-done")).to_have_text("heads")
        expect(strip.locator(".way-done")).to_have_attribute("aria-label", "heads, accepted")
        expect(page.locator(".way-caption")).to_contain_text("Filled: your code passed.")


def test_the_file_to_take_home_is_made_of_what_was_accepted(visit):
    writer = visit("07_gpt/write-my_write").open()
    mine = solution(writer.place).replace("generator =", "mine = generator =", 1)
    assert writer.run(mine, "Check").startswith("Right")
    writer.page.reload()  # the editor is not there yet
    with writer.page.expect_download() as found:
        writer.page.get_by_role("link", name="my_gpt.py").click()
    text = Path(found.value.path()).read_text(encoding="utf-8")
    told = writer.page.locator(".take-home")
    expect(told).to_contain_text("my_gpt.py has your own my_write. The course's are my_masked_softmax, ")
    assert "# Yours: my_write.\n# The course's: my_masked_softmax" in text
    assert text == take_home({"my_write": mine}).text
    assert writer.violations == []


def test_the_landing_page_lets_one_write_at_once(visit, book):
    writer = visit()
    writer.page.goto(f"{book.as_uri()}/index.html")
    writer.look_at("index/first-mean").open()
    begun = writer.code.inner_text()
    assert "2.0, 0.0" in begun
    writer.code.fill(begun.replace("2.0, 0.0", "0.0, 0.0"))
    writer.page.keyboard.press("Shift+Enter")
    expect(writer.results).to_have_text("(tensor([0.5000, 0.5000]), tensor(0.5000))")
    assert writer.violations == []


def test_the_cursor_begins_at_what_is_to_be_filled_in_and_the_keys_can_be_seen(visit):
    writer = visit().open()
    begun = writer.code.inner_text()
    expect(writer.box.locator(".write-here-keys")).to_have_text("Shift+Enter runs, Ctrl+Enter checks")
    writer.page.keyboard.type("return 7")
    assert writer.code.inner_text() == begun.replace("...", "return 7", 1)


def test_code_that_runs_can_be_stopped_and_hides_what_was_printed_before(writer):
    assert writer.run("print(1)") == "1\n"
    stop = writer.box.get_by_role("button", name="Stop")
    expect(stop).to_be_hidden()
    writer.code.fill("while True:\n    pass")
    writer.page.keyboard.press("Shift+Enter")
    expect(writer.results).to_be_empty()
    stop.click()
    expect(writer.results).to_have_text("You have stopped it.")
    expect(stop).to_be_hidden()
    assert writer.run("1 + 1") == "2\n"


def test_two_tabs_on_a_stub_lose_nothing(visit):
    writer = visit(over="http").open()
    other = Writer(writer.page.context.new_page(), writer.page.url.partition("/chapters/")[0]).open()
    other.code.fill("written in the second tab")
    expect(writer.code).to_have_text("written in the second tab")
    expect(writer.box.get_by_role("status")).to_contain_text("You have changed this text in another tab")
    # The first tab has not heard of this change when its reader goes on writing.
    at_once = json.dumps({"draft": "at the same moment"})
    writer.page.evaluate(
        "kept => localStorage.setItem('mha-course/write-here/my_masked_softmax', kept)", at_once
    )
    writer.code.fill("mine")
    others = writer.box.locator(".write-here-others")
    expect(others).to_contain_text("Another text is kept, from another tab, 1 line")
    expect(others.locator("pre")).to_have_text("at the same moment")
    others.get_by_role("button", name="Show it instead").click()
    expect(writer.code).to_have_text("at the same moment")
    expect(others.locator("pre")).to_have_text("mine")
    writer.page.reload()
    expect(writer.open().code).to_have_text("at the same moment")
    others.get_by_role("button", name="Show it instead").click()
    expect(writer.code).to_have_text("mine")
    others.get_by_role("button", name="Remove it").click()
    expect(others).to_be_empty()
    expect(writer.code).to_have_text("mine")


def test_a_draft_is_kept_and_reset_asks_first(visit):
    writer = visit().open()
    begun = writer.code.inner_text()
    assert begun.startswith("def my_masked_softmax") and "..." in begun
    writer.code.fill("a draft")
    kept = writer.page.evaluate("() => JSON.parse(localStorage['mha-course/write-here/my_masked_softmax'])")
    assert kept == {"draft": "a draft"}
    writer.page.reload()
    # A page that loads at the same moment may read what was stored just before.
    writer.page.wait_for_function("() => localStorage['mha-course/write-here/my_masked_softmax']")
    expect(writer.open().code).to_have_text("a draft")
    writer.box.get_by_role("button", name="Reset …").click()
    writer.page.keyboard.press("Enter")  # the focus is on the button that changes nothing
    expect(writer.code).to_have_text("a draft")
    writer.box.get_by_role("button", name="Reset …").click()
    writer.box.get_by_role("button", name="Reset", exact=True).click()
    assert writer.code.inner_text() == begun
    assert (
        writer.page.evaluate("() => localStorage['mha-course/write-here/my_masked_softmax'] ?? null") is None
    )


def test_the_keyboard_enters_indents_and_leaves(visit):
    writer = visit()
    writer.button.press("Enter")
    expect(writer.code).to_be_focused()
    writer.code.fill("")
    writer.page.keyboard.type("def f(x):\nreturn (x")
    assert writer.code.inner_text() == "def f(x):\n    return (x)"
    writer.page.keyboard.press("Tab")
    expect(writer.code).to_be_focused()
    writer.page.keyboard.press("Escape")
    writer.page.keyboard.press("Tab")
    expect(writer.box.get_by_role("button", name="Run")).to_be_focused()


@pytest.mark.parametrize(("place", "old", "new", "shows"), [
    pytest.param("01_attention_pooling/cell-11", ".tolist(), 2)", ".tolist(), 0.1)", "18.0000", marks=SLOW),
    ("03_multi_head_attention/build-loop", "heads=3)", "heads=6)", "[(1, 12, 12), (1, 6, 12, 12)]"),
    pytest.param("07_gpt/batch", "train, 2, 30", "train, 1, 3", "'fir' -> 'irs'", marks=SLOW),
])  # fmt: skip
def test_a_cell_of_the_page_can_be_tried(visit, place, old, new, shows):
    writer = visit(place)
    printed = writer.page.locator(".cell", has=writer.button).locator(".cell_output")
    printed = printed.inner_text() if printed.count() else ""
    writer.open()
    assert writer.results.inner_text() == printed
    text = writer.code.inner_text()
    assert old in text and writer.box.get_by_role("button", name="Check").count() == 0
    assert printed.strip() in writer.press("Run") != f"{shows}\n"
    assert writer.run(text.replace(old, new)) == f"{shows}\n"


@pytest.mark.slow
def test_a_phone_shows_letters_that_need_no_zoom_and_nothing_wider_than_itself(visit):
    writer = visit(viewport={"width": 360, "height": 740}, has_touch=True, is_mobile=True)
    writer.button.tap()
    expect(writer.code).to_be_focused()
    assert writer.code.evaluate("code => getComputedStyle(code).fontSize") == "16px"
    assert writer.page.evaluate("() => document.documentElement.scrollWidth") == 360


@pytest.mark.slow
def test_axe_finds_no_obstacle_in_the_open_editor(writer):
    writer.run("print(1)\n1 / 0")
    writer.page.evaluate(AXE)
    run = "async () => (await axe.run('.write-here')).violations.map(({ id }) => id)"
    assert writer.page.evaluate(run) == []


@pytest.mark.slow
def test_where_it_cannot_work_the_page_is_as_it_was(visit):
    for writer in (visit(script="delete window.WebAssembly"), visit(java_script_enabled=False)):
        expect(writer.button).to_be_hidden()
        expect(writer.page.get_by_text("Not yet: the function returns None").first).to_be_visible()


@pytest.mark.parametrize("blocked", [
    "Object.defineProperty(window, 'localStorage', { get() { throw new Error('blocked'); } })",
    pytest.param("Storage.prototype.setItem = () => { throw new Error('full'); }", marks=SLOW),
])  # fmt: skip
def test_without_a_storage_the_editor_says_that_it_keeps_nothing(visit, blocked):
    writer = visit(script=blocked).open()
    expect(writer.box).to_contain_text("This browser keeps no drafts")
    assert writer.run(f"{solution(SOFTMAX)}\n\nmine = 3", "Check").startswith("Right")
    expect(writer.box.get_by_role("status")).to_have_text(
        "The course uses your code on this page. This browser keeps nothing: copy your code before you leave."
    )
    assert copy(writer).look_at("02_scoring_functions/write-my_attention").open().run("mine") == "3\n"


def test_a_stub_that_needs_colab_says_why(book):
    pages = {
        page.stem: (book / f"chapters/{page.stem}.html").read_text("utf-8")
        for page in PAGES
        if page.stem != "index"
    }
    for page, name in extension.reasons():
        assert f'data-stub="{page}/{name}"' not in pages[page]
    assert sum(html.count('class="only-in-colab"') for html in pages.values()) == len(extension.reasons())
    buttons = sum(html.count('class="write-here-button" data-stub=') for html in pages.values())
    assert buttons == len(IN_PAGE) + len(TRIED)
