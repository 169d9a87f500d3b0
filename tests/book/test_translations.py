"""The translations keep what they must keep, and a book in another language is the same book."""

import json
import re
import shutil
import subprocess

import drawings
import languages
import paper
import pytest
import texts
import translate
import verdicts
from babel.messages.pofile import read_po
from playwright.sync_api import expect
from pypdf import PdfReader
from sphinx.application import Sphinx
from test_book import PAGES
from test_paper import chinese_faults

from conftest import ROOT
from mha_course.pictures.drawing import svg, text

CATALOGS = sorted((translate.LOCALE / translate.LANGUAGE).rglob("*.po"))


def test_no_translation_has_lost_or_added_anything(capsys):
    assert len(CATALOGS) > 25
    assert not translate.check(), capsys.readouterr().out


def test_a_message_written_by_hand_for_taiwan_whose_english_is_gone_is_named(tmp_path, monkeypatch, capsys):
    path, real = tmp_path / "by_hand.po", translate.path_of
    stale = 'msgid "A sentence that no page has."\nmsgstr "沒有一頁有的句子。"\n'
    path.write_text(real("by_hand", "zh_TW").read_text("utf-8") + "\n" + stale, "utf-8")
    with_stale = lambda name, *rest: path if name == "by_hand" else real(name, *rest)  # noqa: E731
    monkeypatch.setattr(translate, "path_of", with_stale)
    assert translate.check()
    said = capsys.readouterr().out
    assert "by_hand.po: 'A sentence that no page has.': no message is called this any more" in said


@pytest.mark.parametrize(("english", "chinese", "said"), [
    ("Call `f(x)`.", "调用 `f(y)`。", "code: ['`f(x)`'] lost, ['`f(y)`'] added"),
    ("It is $d$ wide.", "宽度为 $k$。", "formula: ['$d$'] lost, ['$k$'] added"),
    ("See [there](#a).", "见[那里](#b)。", "link: ['#a'] lost, ['#b'] added"),
    ("Say {name}.", "说。", "placeholder: ['{name}'] lost, [] added"),
    ("A<br>B", "甲乙", "tag: ['<br>'] lost, [] added"),
    ("**Now.** Go.", "**现在：走。", "the number of ** differs"),
    ("Now, go.", "现在,走。", "half-width punctuation"),
    ("1. Go", "1. 走", "begins like a list"),
    ("${a} of ${b}", "${a}", "expression: ['${b}'] lost, [] added"),
])  # fmt: skip
def test_a_fault_of_a_translation_is_named(english, chinese, said):
    assert said in [*translate.faults(english, chinese)]


def test_the_share_of_translated_messages_counts_no_fuzzy_one(monkeypatch, capsys):
    texts = [f"Sentence {word}." for word in ("one", "two", "three", "four")]
    template, known = translate.Catalog(), translate.Catalog(locale="zh_CN")
    for sentence in (*texts, "$x$"):
        template.add(sentence)
    known.add(texts[0], "一")
    known.add(texts[1], "二", flags=["fuzzy"])
    monkeypatch.setattr(translate, "read", lambda domain: known)
    monkeypatch.setattr(translate, "extracted", lambda: {"page": template})
    translate.main(["--shares"])
    assert "zh_CN: 25.0% of 4 messages" in capsys.readouterr().out


@pytest.mark.parametrize(("english", "chinese", "lost"), [
    ("Each query has a key.", "每个查询有一个索引。", ["key"]),
    ("The queries of *flash attention*", "*flash attention* 的提问", ["query"]),
    ("It takes exponentials of scores.", "它对得分求指数。", ["exponential"]),
    ("Self-attention with `key` and {value}", "带 `key` 和 {value} 的自我关注", ["self-attention"]),
    ("Two heads: (batch, heads)", "两个头：(batch, heads)", []),
    ("A keyboard, a monkey, a heading", "键盘、猴子、标题", []),
])  # fmt: skip
def test_a_term_of_the_glossary_that_a_translation_lacks_is_named(english, chinese, lost):
    found = [*translate.other_words(english, chinese, translate.terms())]
    assert [fault.split("'")[1] for fault in found] == lost


def test_a_faultless_translation_has_no_fault():
    english = "**Mind** that `f` gives $x$, {name}: see [there](#a), or 3 `{`."
    assert [*translate.faults(english, "**注意**，`f` 给出 $x$，{name}：见[那里](#a)，或 3 个 `{`。")] == []


@pytest.mark.parametrize(("english", "chinese", "taiwan"), [
    ("A row is a query, a column a key.", "一行是一个查询，一列是一个键。", "一列是一個查詢，一行是一個鍵。"),
    ("Run the rows in parallel; a sequence.", "并行运行各行；一个序列。", "平行執行各列；一個序列。"),
    ("Three lines of code.", "三行代码。", "三行程式碼。"),
    ("A mask and the default cache.", "掩码与默认缓存。", "遮罩與預設快取。"),
    ("The recurrent network passed the check.", "循环神经网络通过检查。", "循環神經網路通過檢查。"),
])  # fmt: skip
def test_rows_and_columns_change_places_for_taiwan(tmp_path, monkeypatch, english, chinese, taiwan):
    catalog = read_po((translate.LOCALE / "zh_TW/LC_MESSAGES/by_hand.po").open("rb"))
    catalog.add(english, chinese)
    monkeypatch.setattr(translate, "LANGUAGE", "zh_XX")
    monkeypatch.setattr(translate, "LOCALE", tmp_path / "locale")
    for name in ("words.txt", "LC_MESSAGES/by_hand.po"):
        (tmp_path / "locale/zh_TW" / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / "locale/zh_TW" / name).write_bytes((ROOT / "locale/zh_TW" / name).read_bytes())
    translate.write(catalog, translate.path_of("page", "zh_XX", tmp_path / "locale"))
    translate.write_taiwan(tmp_path)
    found = read_po((tmp_path / "zh_TW/LC_MESSAGES/page.po").open("rb"))
    assert found.get(english).string == taiwan


def test_a_changed_sentence_is_marked_with_the_old_one_beside_it(tmp_path):
    catalog = read_po(CATALOGS[0].open("rb"))
    old = next(one for one in catalog if one.id and len(one.id) > 80)
    new = old.id.replace(" ", "  ", 1) + " More."
    template = translate.Catalog()
    template.add(new)
    catalog.update(template)
    translate.write(catalog, tmp_path / "page.po")
    text = (tmp_path / "page.po").read_text("utf-8")
    assert "#, fuzzy" in text
    assert "#| msgid" in text
    assert json.dumps(new, ensure_ascii=False) in text


CONF = """extensions, language, locale_dirs = ["myst_parser"], "zh_CN", ["locale"]
import languages
def setup(app): app.add_transform(languages.MarkUntranslated)"""
FIVE = "# One\n\nIt is *two*.\n\nSoftmax\n\n$$x$$\n\nIt is five, new.\n"


def test_what_is_still_english_is_marked(tmp_path):
    """A changed sentence is, a formula and a name that is alike in Chinese are not."""
    (tmp_path / "conf.py").write_text(CONF)
    (tmp_path / "index.md").write_text(FIVE)
    translations = translate.Catalog(locale="zh_CN")
    for english, chinese in {"One": "一", "It is *two*.": "这是*二*。", "Softmax": "Softmax"}.items():
        translations.add(english, chinese)
    translations.add("It is five, new.", "这是五。", flags=["fuzzy"])
    translate.write(translations, translate.path_of("index", "zh_CN", tmp_path / "locale"))
    app = Sphinx(tmp_path, tmp_path, tmp_path / "out", tmp_path / "out", "html", status=None)
    app.build()
    page = (tmp_path / "out/index.html").read_text("utf-8")
    assert re.findall(r'class="untranslated[^>]*>(.*?)<', page) == ["It is five, new."]
    assert "<p>这是<em>二</em>。</p>" in page


def test_the_labels_of_a_drawing_are_translated_and_its_words_of_a_sentence_are_not():
    drawing = svg(20, 10, "A 'key' & a query", text(5, 5, "key"), text(9, 9, "the")) + "<span>mask →</span>"
    assert drawings.labels(drawing) == ["key", "the", "mask →", "A 'key' & a query"]
    assert drawings.labels("<p>No drawing <span>here</span></p>") == []
    known = {"key": "键", "mask →": "掩码 →", "A 'key' & a query": "“键”与 <查询>", "the": "the"}
    cell = {"outputs": [{"data": {"text/html": [drawings.as_images(drawing)]}}]}
    cell["metadata"] = {"mystnb": {"image": {"alt": "key"}}}
    languages.translate_outputs({"metadata": {}, "cells": [cell]}, {}, known)
    page = cell["outputs"][0]["data"]["text/html"]
    assert drawings.labels(page) == ["键", "the", "掩码 →", "“键”与 <查询>"]
    assert "&lt;查询&gt;" in page and cell["metadata"]["mystnb"]["image"] == {"alt": "键"}
    card = '<ol class="cards"><li style=""><div>One</div>the key</li></ol>'
    assert drawings.labels(card) == ["One", "the key"]
    assert ">键</li>" in drawings.with_labels(card, {"the key": "键"})


def test_questions_are_translated_in_the_widget_and_in_what_stands_in_for_it():
    question = "What *is* hidden, `a`?"
    notebook = {
        "metadata": {"widgets": {languages.STATES: {"state": {"one": {"state": {
            "questions": [{"text": question, "choices": ["a < b", "not known"]}], "mode": "hidden"}}}}}},
        "cells": [{"outputs": [{"data": {"text/html": [
            "<ol><li><p>What <em>is</em> hidden, <code>a</code>?</p><ul><li>a &lt; b</li></ul></li></ol>",
        ]}}]}],
    }  # fmt: skip
    languages.translate_outputs(notebook, {question: "什么*是*不可见的，`a`？", "a < b": "甲 < 乙"}, {})
    [model] = notebook["metadata"]["widgets"][languages.STATES]["state"].values()
    [asked] = model["state"]["questions"]
    assert asked == {"text": "什么*是*不可见的，`a`？", "choices": ["甲 < 乙", "not known"]}
    page = notebook["cells"][0]["outputs"][0]["data"]["text/html"]
    assert (
        page
        == "<ol><li><p>什么<em>是</em>不可见的，<code>a</code>？</p><ul><li>甲 &lt; 乙</li></ul></li></ol>"
    )


def test_an_answer_of_one_word_and_what_follows_it_are_translated():
    known = {"yes": "是", "Keys are hidden. So are values.": "键不可见。值也是。"}
    state = {"questions": [{"choices": ["yes", "(3, 7)"]}], "mode": "yes"}
    page = "<p>{}. Keys are hidden. So are values.</p>"
    page = page.format("yes") + page.format("(3, 7)") + "<li>yes</li>"
    notebook = {
        "metadata": {"widgets": {languages.STATES: {"state": {"one": {"state": state}}}}},
        "cells": [{"outputs": [{"data": {"text/html": [page]}}]}],
    }
    languages.translate_outputs(notebook, known, {})
    [model] = notebook["metadata"]["widgets"][languages.STATES]["state"].values()
    assert model["state"] == {"questions": [{"choices": ["是", "(3, 7)"]}], "mode": "yes"}
    said = notebook["cells"][0]["outputs"][0]["data"]["text/html"]
    assert said == "<p>是。键不可见。值也是。</p><p>(3, 7)。键不可见。值也是。</p><li>是</li>"


def test_a_whole_string_of_a_script_is_translated():
    code = 'label(\'Head\', "Head", `${n} heads`, `one ${n} heads`); // "Head"'
    known = {"Head": "头", "${n} heads": "${n} 个头"}
    wanted = 'label(\'Head\', "头", `${n} 个头`, `one ${n} heads`); // "头"'
    assert languages.with_strings(code, known) == wanted


def test_a_text_of_one_word_is_told_from_a_value():
    code = 'shown === "weights" ? `weights` : "head-dim"'
    assert languages.with_strings(code, {"weights": "权重"}) == 'shown === "weights" ? `权重` : "head-dim"'
    state = {"tasks": ["previous"], "kind": "previous", "sentences": {"show": "previous"}}
    wanted = {"tasks": ["前一个"], "kind": "previous", "sentences": {"show": "前一个"}}
    assert languages.translated(state, {"previous": "前一个"}) == wanted


PYTHON = '''
def say(name, wanted="two words"):
    """A docstring of two words."""
    known = {"word": "two words"}
    if name in known:
        return (
            f"{name} is {len(known):.2f}, "
            f"and not {wanted!r}"
        )
    return "word"
'''


def test_a_whole_string_of_python_is_translated():
    known = {"two words": "两个词", "word": "词", "A docstring of two words.": "文档"}
    known["{name} is {len(known):.2f}, and not {wanted!r}"] = "不是 {wanted!r}，{name} 是 {len(known):.2f}"
    space = {}
    exec(verdicts.with_python_strings(PYTHON, known), space)  # noqa: S102
    assert space["say"]("a") == "word"  # which may be a value
    assert space["say"]("word") == "不是 '两个词'，word 是 1.00"
    assert space["say"].__doc__ == "A docstring of two words."


def test_an_exercise_is_translated_with_its_labels_everywhere():
    outcome = {"results": [1]}
    exercise = {
        "cases": {"one head": []},
        "further": {"one head, with another size (3)": []},
        "rights": [
            [{"one head": outcome}, {"one head": outcome}, {"one head, with another size (3)": outcome}]
        ],
        "wrong": [["it is late", "Come `early`.", {"one head": outcome}, {}], ["new", "Not known.", {}, {}]],
        "left": ["`is_causal`", "two heads"],
        "code": "def f(x):\n    return 'it has two axes'",
        "options": {
            "returns": ["size of each gradient", "mask (q_len)"],
            "takes": "class",
            "gradients": ["one head"],
        },
    }
    known = {
        "one head": "一个头",
        "two heads": "两个头",
        "**it is late.** Come `early`.": "**太晚。** `early` 来。",
    }
    said = {"it has two axes": "它有两个轴", "size of each gradient": "梯度", "class": "类"}
    said[verdicts.RESIZED_MESSAGE] = "{label}（{number}）"
    found = verdicts.translated_exercise(exercise, known, said)
    assert found == {
        "cases": {"一个头": []},
        "further": {"一个头（3）": []},
        "rights": [[{"一个头": outcome}, {"一个头": outcome}, {"一个头（3）": outcome}]],
        "wrong": [["太晚", "`early` 来。", {"一个头": outcome}, {}], ["new", "Not known.", {}, {}]],
        "left": ["`is_causal`", "两个头"],
        "code": "def f(x):\n    return '它有两个轴'",
        "options": {"returns": ["梯度", "mask (q_len)"], "takes": "类", "gradients": ["一个头"]},
    }


def test_two_cases_never_become_one():
    exercise = {"cases": {"a key": [1], "one key": [2]}, "further": {}, "rights": [], "wrong": [], "left": []}
    exercise |= {"code": "", "options": {"returns": "x", "takes": "function", "gradients": []}}
    found = verdicts.translated_exercise(exercise, {"a key": "一个键", "one key": "一个键"}, {})
    assert found["cases"] == {"一个键": [1], "one key": [2]}


def test_every_message_of_python_and_of_javascript_stands_in_the_code():
    """A translation whose English string has changed would silently be left out."""
    pieces = [path.read_text("utf-8") for path in ROOT.glob("mha_course/**/*.py")]
    pieces += [path.read_text("utf-8") for path in ROOT.glob("attention_check/*.py")]
    said = {message for text in pieces for _, message in verdicts.PythonStrings(text).found}
    assert {one.id for one in translate.read("verdicts") if one.id} - said == set()
    scripts = [*ROOT.glob("mha_course/**/*.js"), *ROOT.glob("_static/*.js")]
    whole = "".join(path.read_text("utf-8") for path in scripts)
    # The build has left out the types in a widget's code, and not in the book's own scripts.
    strings = {match[2] for text in (whole, TYPE.sub("", whole)) for match in texts.JS_STRING.finditer(text)}
    assert {one.id for one in translate.read("widgets") if one.id} - strings == set()


TYPE = re.compile(r"/\*\* @type (?:[^*]|\*(?!/))*\*/ ?")


def test_every_sentence_of_the_python_in_a_page_is_a_message():
    from mha_course.in_page import page_sources

    known = {one.id: one.string for one in translate.read("verdicts")}
    speaking = {path: text for path, text in page_sources().items() if verdicts.SPEAKING.fullmatch(path)}
    left = {
        message
        for path, text in speaking.items()
        if not path.startswith("torch/")  # which speaks as torch does
        for _, message in verdicts.PythonStrings(text).found
        if not known.get(message) and ENGLISH.search(re.sub(r"\{[^}]*\}|`[^`]*`", "…", message))
    }
    assert left - NOT_SAID == set()


# Two English words in a row, of which the second is no name.
ENGLISH = re.compile(r"[A-Za-z]{2,},? [a-z]{2,}")
# What no page says: errors for authors, names of files, parts of torch's errors, and code.
NOT_SAID = {
    "Boolean value of Tensor with more than one value", "Each head ", "MyGPT, train_gpt, my_loss, my_write",
    "Not yet: {wrong.name}. ", "The course's", "^sqrt\\(\\).*Tensor, not (int|float)",
    "a right answer is rejected: {one}", "an answer of another process is called by `do`", "changed in place",
    "cases must hold at least one case, got {self.cases!r}", "from __future__ import annotations\n",
    "no way back", "the page", "training of {name}", "{wrong.name!r} gets the verdict {message!r}",
    "# .*\\nfrom mha_course\\.built import (.*)\\n",
}  # fmt: skip


def test_pairs_of_chinese_characters_are_searched_for():
    text = "多头注意力 (Multi-head) 用 softmax；键"
    words = ["多头", "头注", "注意", "意力", "Multi", "head", "用", "softmax", "键"]
    assert languages.SearchPairs({}).split(text) == words
    script = f"{languages.SPLIT}; console.log(JSON.stringify(splitQuery({json.dumps(text)})))"
    command = [ROOT / ".venv/bin/node", "-e", script]
    found = subprocess.run(command, capture_output=True, text=True, check=True)
    assert json.loads(found.stdout) == words


@pytest.mark.slow
def test_every_message_of_the_pages_is_translated():
    """A new sentence is translated, or `make translate` has put it into the .po file for somebody who can."""
    open_ones = []
    for domain, template in translate.extracted().items():
        known = {one.id: one for one in translate.read(domain)}
        wanted = {one.id for one in template if one.id and translate.has_words(one.id)}
        open_ones += [(domain, message) for message in wanted - known.keys()]
        if domain != translate.TEXTS:
            open_ones += [(domain, one) for one in wanted & known.keys() if not known[one].string]
    assert open_ones == [], "run `make translate`"


@pytest.fixture(scope="module")
def chinese(book, tmp_path_factory):
    """The book in Chinese, built below a copy of what the switch needs of the English one."""
    folder = tmp_path_factory.mktemp("chinese")
    translate.settings("zh_CN", folder / "settings.yml")
    command = [ROOT / ".venv/bin/jupyter-book", "build", ROOT, "--config", folder / "settings.yml"]
    subprocess.run([*command, "--path-output", folder, "-q", "-W", "--keep-going"], check=True)
    english = folder / "book"
    shutil.copytree(book, english, ignore=shutil.ignore_patterns("zh_*"))
    shutil.move(folder / "_build" / "html", english / "zh_CN")
    translate.switch(english)
    return english


@pytest.mark.slow
@pytest.mark.weekly
def test_the_book_in_chinese_is_the_same_book(chinese):
    for name in PAGES:
        english, other = ((chinese / folder / name).read_text("utf-8") for folder in (".", "zh_CN"))
        assert '<html lang="zh-CN"' in other
        for pattern in (r'<section[^>]* id="([^"]*)"', r"<pre>.*?</pre>", r"<math.*?</math>"):
            # Formulas may stand in another order.
            same = [sorted(re.findall(pattern, page, re.DOTALL)) for page in (english, other)]
            assert same[0] == same[1], name
        assert len(other.encode()) < 1.15 * len(english.encode()), name


@pytest.mark.slow
@pytest.mark.weekly
def test_nothing_in_chinese_is_marked_as_open_and_no_label_is_english(chinese):
    """What is still English in a drawing is a word of a sentence, a name or code, which its catalog says."""
    same = {one.id for one in translate.read(translate.DRAWINGS) if one.id == one.string}
    for name in PAGES:
        page = (chinese / "zh_CN" / name).read_text("utf-8")
        assert 'class="untranslated' not in page, name
        drawn = re.findall(r"<text\b[^>]*>(.*?)</text>", page, re.DOTALL)
        labels = [
            one for one in drawn if translate.has_words(one) and not re.search("[\u3001\u4e00-\u9fff]", one)
        ]
        assert set(labels) <= same, name


@pytest.mark.slow
@pytest.mark.weekly
def test_the_chinese_book_is_whole_on_paper(chinese, tmp_path):
    book = chinese / "zh_CN"
    for name in ("book.pdf", "book.epub"):
        paper.main([book, tmp_path / name])
        assert (tmp_path / name).stat().st_size < 40e6
    assert [*chinese_faults(tmp_path / "book.pdf")] == []
    outline = [one.title for one in PdfReader(tmp_path / "book.pdf").outline if not isinstance(one, list)]
    assert (outline[0], outline[-1]) == ("目录", "参考解答与答案")
    assert any("多头注意力" in title for title in outline)


@pytest.mark.slow
@pytest.mark.weekly
def test_the_switch_keeps_page_and_section(chinese, browser):
    page = browser.new_page(viewport={"width": 1280, "height": 800})
    page.goto((chinese / "chapters/03_multi_head_attention.html").as_uri())
    expect(page.locator(".mha-widget")).to_have_count(page.locator(".widget-host").count())
    page.locator("#your-layer-learns").evaluate("section => section.scrollIntoView()")
    # A click of Playwright would move the page first.
    page.get_by_role("link", name="简体").evaluate("link => link.click()")
    page.wait_for_url("**/zh_CN/chapters/03_multi_head_attention.html#your-layer-learns")
    expect(page.locator("h1").last).to_contain_text("多头注意力")
    page.get_by_role("link", name="EN", exact=True).evaluate("link => link.click()")
    page.wait_for_url("**/book/chapters/03_multi_head_attention.html#your-layer-learns")
    complaints = []
    page.on("pageerror", lambda error: complaints.append(str(error)))
    for name in PAGES:
        page.goto((chinese / "zh_CN" / name).as_uri())
        widgets = page.locator(".widget-host")
        expect(widgets.locator(".mha-widget")).to_have_count(widgets.count())
    assert complaints == []
    page.goto((chinese / "zh_CN/search.html").as_uri() + "?q=旋转")
    expect(page.locator("#search-results li a").first).to_contain_text("位置编码")


# What stays English on a page, and why. Code, formulas and titles of papers are found by their elements; what
# stands in parentheses is the English of a term, or the axes of a shape.
STAYS = {
    "texts that models read": "Each head|sailors|teacher|happy|owl|moon|cabinets|the cat sat|same number",
    "phrases that a model compares": "what can go wrong|Common mistakes|Positional encoding|no repeats",
    "dates in other languages": "de marzo|März",
    "names of people and models": "et al|GPT|BERT|Llama|[A-Z]\\w+ and [A-Z]",
    "titles of books": "Deep Learning|The Elements of",
    "names of libraries": "torch|numpy|jax|keras|nn[.]|HuggingFace|ONNX|Colab",
    "names of functions and arguments": "view, |, reshape|query, ",
    "terms beside their translation": "QK|OV|flash attention|linear biases|(scores?|norm)。|(One|Two) heads?",
    "a button of GitHub, and a label in a plot": "Cite this repository|Learned numbers",
    "what attention_check prints": "empty rows|NaN in padding|shared keys|[Nn]ot tried|many lengths",
    "formulas, and products of names": "[=·×√→^_{}]",
}
IN_PARENTHESES = re.compile(r"（[^）]*）?|\([^)]*\)?")
NO_TEXT = """pre, code, kbd, script, style, noscript, svg, math, mjx-container, textarea, article [lang],
    .math, .widget-still, .bibtex, .citation, .mha-code, .mha-code-line, .cm-editor, .mha-text-box,
    .cell_output:not(:has(.mha-widget))"""
SEEN = r"""(noText) => {
  const found = new Set();
  const isEnglish = (text) => /[A-Za-z]{2,},? [a-z]{2,}/.test(text ?? "");
  for (const node of document.querySelectorAll("article *")) {
    if (node.closest(noText)) continue;
    const labels = node.matches("a") ? ["aria-label"] : ["aria-label", "aria-valuetext", "title"];
    const texts = labels.map((name) => node.getAttribute(name));
    const own = [...node.childNodes].filter((one) => one.nodeType === Node.TEXT_NODE);
    if (node.checkVisibility()) texts.push(...own.map((one) => one.data));
    for (const text of texts.filter(isEnglish)) found.add(text.trim().replace(/\s+/g, " "));
  }
  return [...found];
}"""
USE = """async (widget) => {
  const pause = () => new Promise((resolve) => setTimeout(resolve, 30));
  for (const slider of widget.querySelectorAll("input[type=range]")) {
    slider.value = slider.max;
    slider.dispatchEvent(new Event("input", { bubbles: true }));
    await pause();
  }
  const parts = widget.querySelectorAll("button:not(.mha-reset), input[type=radio], input[type=checkbox]");
  for (const part of [...parts].slice(0, 40)) {
    if (part.isConnected && part.checkVisibility() && !/导出|▶/.test(part.textContent)) part.click();
    await pause();
  }
}"""


def english_in(page):
    """The visible texts and the labels of a page that hold two English words in a row."""
    stays = re.compile("|".join(STAYS.values()))
    seen = page.evaluate(SEEN, NO_TEXT)
    return {text for text in seen if ENGLISH.search(IN_PARENTHESES.sub("…", text)) and not stays.search(text)}


def use_widgets(page):
    """Open all folds; then move the sliders and press the buttons of the first widget of each kind."""
    page.evaluate("document.querySelectorAll('article details').forEach((fold) => (fold.open = true))")
    widgets = page.locator(".mha-widget")
    kinds = widgets.evaluate_all("all => all.map((one) => one.className)")
    for place in sorted({kinds.index(kind) for kind in kinds}):
        widgets.nth(place).evaluate(USE)


@pytest.mark.slow
@pytest.mark.weekly
def test_a_reader_of_the_chinese_pages_meets_no_english(chinese, browser):
    page, left = browser.new_page(viewport={"width": 1280, "height": 800}), {}
    for name in PAGES:
        if name in ("chapters/api.html", "chapters/references.html"):
            continue  # docstrings, and titles of papers
        page.goto((chinese / "zh_CN" / name).as_uri())
        hosts = page.locator(".widget-host")
        expect(hosts.locator(".mha-widget")).to_have_count(hosts.count())
        left[name] = english_in(page)
        use_widgets(page)
        left[name] |= english_in(page)
    assert {name: sorted(found) for name, found in left.items() if found} == {}


RIGHT_ANSWER = """if mask is None:
        return scores.softmax(-1)
    lowest = torch.finfo(scores.dtype).min
    return scores.masked_fill(~mask, lowest).softmax(-1) * mask"""


@pytest.mark.slow
@pytest.mark.weekly
def test_the_checker_in_a_chinese_page_speaks_chinese(chinese, browser):
    page = browser.new_page(viewport={"width": 1280, "height": 800})
    page.goto((chinese / "zh_CN/chapters/02_scoring_functions.html").as_uri())
    page.locator("[data-stub$='/write-my_masked_softmax']").click()
    box = page.get_by_role("group", name="你的 my_masked_softmax")
    answers = {
        "return scores.softmax(-1)": "还不对：没有使用掩码。",
        RIGHT_ANSWER: "全部 14 种情况都对，梯度也对：",
    }
    for body, verdict in answers.items():
        box.locator(".cm-content").fill(f"def my_masked_softmax(scores, mask=None):\n    {body}\n")
        box.get_by_role("button", name="检查").click()
        expect(box.get_by_role("log")).to_contain_text(verdict, timeout=120_000)
        assert english_in(page) == set()
