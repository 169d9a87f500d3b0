"""A change of a widget, or of anything that it needs, runs its tests; another change does not."""

import changed
import pytest


@pytest.mark.parametrize(("files", "tested", "not_tested"), [
    (["mha_course/widgets/quiz/__init__.py"], "quiz", "head_explorer"),
    (["mha_course/widgets/quiz/quiz.css"], "quiz", "head_explorer"),
    (["mha_course/widgets/shared/attention_math.js"], "head_explorer", "quiz"),
    (["tests/widgets/test_quiz.py"], "quiz", "head_explorer"),
    (["mha_course/widgets/shared/frame.js"], "quiz", None), (["tests/widgets/seen.py"], "quiz", None),
    (["mha_lib/attention.py"], "head_explorer", None), (["README.md"], None, "quiz"),
])  # fmt: skip
def test_changed_widgets_are_tested(monkeypatch, files, tested, not_tested):
    monkeypatch.setattr(changed, "changed_files", lambda: set(files))
    assert tested is None or changed.may_be_broken(f"test_{tested}")
    assert not_tested is None or not changed.may_be_broken(f"test_{not_tested}")
    assert changed.may_be_broken("test_widgets_browser"), "a test of no single widget always runs"


def test_where_nobody_can_say_what_changed_each_commit_has_a_share(monkeypatch):
    monkeypatch.setattr(changed, "changed_files", set)
    widgets = {path.parent.name for path in changed.WIDGETS.glob("*/__init__.py")}
    shares = []
    for number in range(changed.SHARES):
        monkeypatch.setattr(changed, "commit", lambda number=number: 8 + number)
        shares.append({widget for widget in widgets if changed.may_be_broken(f"test_{widget}")})
        assert changed.may_be_broken("test_widgets_browser")
    assert set.union(*shares) == widgets
    assert sum(map(len, shares)) == len(widgets), "no two commits in a row test the same"
    assert min(map(len, shares)) > 1


def test_a_case_of_every_widget_is_known_by_its_class():
    assert changed.widget_of("test_every_widget", "HeadExplorer") == "head_explorer"
    assert changed.widget_of("test_every_widget", "Progress") == "progress"
    assert changed.widget_of("test_every_widget", "") is None
