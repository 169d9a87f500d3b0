"""Dates as they are written, held against the calendar, known spellings and Babel's own parser."""

import datetime
import re
import unicodedata

import pytest
import torch
from babel.dates import parse_date

from mha_course.data import dates

KNOWN = {
    ("en_US", "full"): "wednesday, march 3, 2021", ("en_GB", "medium"): "3 mar 2021",
    ("de", "medium"): "03.03.2021", ("es", "full"): "miércoles, 3 de marzo de 2021",
    ("hu", "long"): "2021. március 3.", ("ja", "full"): "2021年3月3日水曜日",
    ("zh", "yMMMEd"): "2021年3月3日周三", ("ko", "medium"): "2021. 3. 3.", ("ru", "long"): "3 марта 2021 г.",
}  # fmt: skip


def days():
    first, last = dates.FIRST_DAY.toordinal(), dates.LAST_DAY.toordinal()
    return [datetime.date.fromordinal(n) for n in range(first, last + 1)]


def text_of(row):
    return "".join(dates.DATE_LETTERS[token - 1] for token in row.tolist() if token)


@pytest.mark.parametrize(("how", "text"), KNOWN.items(), ids=map("-".join, KNOWN))
def test_known_spellings(how, text):
    assert dates.write_date(datetime.date(2021, 3, 3), *how) == text


@pytest.mark.parametrize("locale", [*dates.LOCALES, *dates.NEW_LOCALES])
def test_every_spelling_can_be_read_and_means_one_day(locale):
    """All forms of a leap year fit the alphabet; two days are never written alike, in any two languages."""
    year = [datetime.date(2024, 1, 1) + datetime.timedelta(day) for day in range(366)]
    written = {}
    for day in year:
        for form in dates.FORMS:
            text = dates.write_date(day, locale, form)
            assert text == text_of(dates.encode_source([text])[0])
            assert written.setdefault(text, day) == day
            assert str(day.year) in text
            assert str(day.day) in text
    if locale in ("en_US", "de", "fr", "es"):  # Babel reads numbers only
        for text, day in written.items():
            if re.fullmatch(r"[\d./]+", text):
                assert parse_date(text, locale=locale) == day


def test_no_spelling_means_two_days():
    meant = {}
    for day in days()[:: 11 * 13]:
        for locale in (*dates.LOCALES, *dates.NEW_LOCALES):
            for form in dates.FORMS:
                assert meant.setdefault(dates.write_date(day, locale, form), day) == day


def test_the_alphabet_has_no_letter_twice_and_none_that_normalizing_removes():
    assert len(set(dates.DATE_LETTERS)) == len(dates.DATE_LETTERS)
    for letter in dates.DATE_LETTERS.replace(" ", ""):
        assert dates.normalize_date(letter) == letter == unicodedata.normalize("NFKC", letter)


def test_a_tenth_of_all_days_is_held_out_evenly():
    held = [dates.is_held_out(day) for day in days()]
    assert len(held) == 73049
    assert sum(held) / len(held) == pytest.approx(0.1, abs=0.001)
    for month in range(1, 13):
        of_month = [out for out, day in zip(held, days(), strict=True) if day.month == month]
        assert sum(of_month) / len(of_month) == pytest.approx(0.1, abs=0.01)


@pytest.mark.parametrize("held_out", [True, False])
def test_a_batch_shows_days_of_its_kind_only(held_out):
    batch = dates.date_batch(509, held_out=held_out, generator=torch.Generator().manual_seed(3))
    assert batch.source.shape == (509, 40)
    assert batch.target.shape == (509, 11)
    for source, target, text, locale in zip(*batch, strict=True):
        day = datetime.date.fromisoformat(dates.decode_target(target))
        assert dates.is_held_out(day) == held_out
        assert text_of(source) == text
        assert text in {dates.write_date(day, locale, form) for form in dates.FORMS}
        assert target[-1] == dates.ISO_SYMBOLS.index("[end]")
    assert set(batch.locales) == set(dates.LOCALES)


def test_a_batch_can_be_asked_for_languages_and_forms():
    batch = dates.date_batch(17, locales=("pt",), forms=("long",), generator=torch.Generator().manual_seed(1))
    assert set(batch.locales) == {"pt"}
    assert all(re.fullmatch(r"\d+ de \w+ de \d{4}", text) for text in batch.texts)


def test_the_same_generator_gives_the_same_dates():
    first, second = (dates.date_batch(7, generator=torch.Generator().manual_seed(5)) for _ in range(2))
    assert first.texts == second.texts
    assert torch.equal(first.source, second.source)


def test_what_is_typed_in_other_ways_is_read_alike():
    assert dates.normalize_date("  3\u202fMARCH \t２０２１\n") == "3 march 2021"
    assert torch.equal(dates.encode_source(["3 MARCH 2021"]), dates.encode_source([" 3 march 2021 "]))


def test_answers_end_where_they_say():
    assert dates.decode_target(dates.encode_target(["1999-12-31"])[0]) == "1999-12-31"
    assert dates.decode_target(torch.tensor([4, 2, 1, 5])) == "20"
