"""A change of a widget, or of anything that it needs, runs its tests; another change does not."""

import changed
import pytest


@pytest.mark.parametrize(("files", "tested", "not_tested"), [
    (["mha_course/widgets/quiz.py"], "quiz", "head_explorer"),
    (["mha_course/widgets/js/quiz.css"], "quiz", "head_explorer"),
    (["mha_course/widgets/js/attention_math.js"], "head_explorer", "quiz"),
    (["tests/widgets/test_quiz.py"], "quiz", "head_explorer"),
    (["mha_course/widgets/js/frame.js"], "quiz", None), (["tests/widgets/seen.py"], "quiz", None),
    (["mha_lib/attention.py"], "head_explorer", None), (["README.md"], None, "quiz"),
    ([], "quiz", None),
])  # fmt: skip
def test_changed_widgets_are_tested(monkeypatch, files, tested, not_tested):
    monkeypatch.setattr(changed, "changed_files", lambda: set(files))
    assert tested is None or changed.may_be_broken(f"test_{tested}")
    assert not_tested is None or not changed.may_be_broken(f"test_{not_tested}")
    assert changed.may_be_broken("test_widgets_browser"), "a test of no single widget always runs"


def test_a_case_of_every_widget_is_known_by_its_class():
    assert changed.widget_of("test_every_widget", "HeadExplorer") == "head_explorer"
    assert changed.widget_of("test_every_widget", "Progress") == "progress"
    assert changed.widget_of("test_every_widget", "") is None
