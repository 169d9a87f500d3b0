"""Dates as people write them in many languages, and the same dates in ISO 8601: the task of the Transformer.

Babel writes each day as a language does: *3 March 2021*, *3. März 2021*, *2021年3月3日*. The model reads such
a text letter by letter and writes 2021-03-03. Nothing is downloaded; names and forms come with Babel.
"""

from __future__ import annotations

import datetime
import functools
import unicodedata
from collections.abc import Sequence
from typing import Any, NamedTuple

import torch
from jaxtyping import Int64
from torch import Tensor

from mha_lib._checks import (
    check_choice,
    check_numbers,
    check_positive_int,
    check_type,
    refusal,
)

# The languages for training, and those for a second test, which training never shows.
LOCALES = (
    *("en_US", "en_GB", "de", "fr", "es", "it", "nl", "sv", "nb", "fi", "pl"),
    *("cs", "hu", "ro", "tr", "id", "vi", "el", "ru", "uk", "ja", "zh", "ko"),
)
NEW_LOCALES = ("pt", "ca", "da", "sk", "et")
# Three named lengths of Babel, and two that it composes from parts. Babel's short form is left out, because
# 3/4/21 is a different day in the United States than in Britain.
FORMS = ("full", "long", "medium", "yMMMd", "yMMMEd")
FIRST_DAY, LAST_DAY = datetime.date(1900, 1, 1), datetime.date(2099, 12, 31)
# A letter's token is its index here, counted from 1; token 0 is padding.
DATE_LETTERS = (
    " '(),-./0123456789abcdefghijklmnopqrstuvwxyz"
    "áâäåçéìíóöøúûüýăąčěğıľłőřśşšźưțʼ’ảậủứ"
    "ΐάέήίαβγδεηικλμνοπρστυφωύ"
    "абвгдежзиклмнопрстуфцчьюяі"
    "一三二五六周四土年日星曜月期木水火金"
    "금년목수요월일토화"
)
# A target's token is its index here: the start of an answer, its end, and its characters.
ISO_SYMBOLS = ("[start]", "[end]", *"0123456789-")
START, END = 0, 1
SOURCE_LENGTH, TARGET_LENGTH = 40, 11
_LETTER = {letter: token for token, letter in enumerate(DATE_LETTERS, start=1)}
_SYMBOL = {symbol: token for token, symbol in enumerate(ISO_SYMBOLS)}


class WrittenDates(NamedTuple):
    """Dates as letters, in their written form and in ISO 8601."""

    source: Int64[Tensor, "batch 40"]
    target: Int64[Tensor, "batch 11"]
    texts: tuple[str, ...]
    locales: tuple[str, ...]


def normalize_date(text: str) -> str:
    """A text in the form that the model reads: Unicode's NFKC form, lower case, single spaces.

    Raises:
        TypeError: `text` is not a str.

    Example:
        >>> normalize_date("  3.  März ２０２１ ")
        '3. märz 2021'
    """
    check_type("text", text, str)
    return " ".join(unicodedata.normalize("NFKC", text).lower().split())


def write_date(day: datetime.date, locale: str = "en_GB", form: str = "long") -> str:
    """A day in the words of a language, normalized by `normalize_date`.

    Raises:
        TypeError: `day` is not a date, or another argument not a str.
        ValueError: Babel does not support `locale`, such as "de" or "en_US", or `form` is not in `FORMS`.

    Example:
        >>> day = datetime.date(2021, 3, 3)
        >>> [write_date(day, locale, "full") for locale in ("en_GB", "de", "zh")]
        ['wednesday, 3 march 2021', 'mittwoch, 3. märz 2021', '2021年3月3日星期三']
    """
    check_type("day", day, datetime.date)
    check_type("locale", locale, str)
    check_choice("form", form, FORMS)
    from babel.dates import format_date, format_skeleton

    if form in ("full", "long", "medium"):
        return normalize_date(format_date(day, form, locale=_locale(locale)))
    return normalize_date(format_skeleton(form, day, locale=_locale(locale)))


@functools.cache
def _locale(name: str) -> Any:
    from babel import Locale, UnknownLocaleError

    try:
        return Locale.parse(name)
    except (ValueError, UnknownLocaleError):
        rule = f"be one that Babel knows, such as {LOCALES[0]!r}"
        raise refusal("locale", rule, repr(name)) from None


def is_held_out(day: datetime.date) -> bool:
    """Whether a day belongs to the tenth of all days that training never shows, in any language or form.

    Raises:
        TypeError: `day` is not a date.

    Example:
        >>> sum(is_held_out(datetime.date.fromordinal(700_000 + i)) for i in range(1000))
        100
    """
    check_type("day", day, datetime.date)
    # Knuth's multiplicative hash spreads the held-out days evenly and identically on every machine.
    return day.toordinal() * 2_654_435_761 % 2**32 < 2**32 // 10


@functools.cache
def _days(held_out: bool) -> tuple[datetime.date, ...]:
    """All days that are held out, or all others."""
    first, last = FIRST_DAY.toordinal(), LAST_DAY.toordinal()
    days = map(datetime.date.fromordinal, range(first, last + 1))
    return tuple(day for day in days if is_held_out(day) == held_out)


def encode_source(texts: Sequence[str]) -> Int64[Tensor, "texts 40"]:
    """The letters of written dates as tokens, padded with 0 at the end.

    Each text is normalized by `normalize_date`.

    Raises:
        TypeError: an entry of `texts` is not a str.
        ValueError: a text is empty, longer than 40 letters, or has a letter that is not in `DATE_LETTERS`.

    Example:
        >>> encode_source(["3 May 2021"])[0, :5].tolist() == [DATE_LETTERS.index(x) + 1 for x in "3 may"]
        True
    """
    tokens = torch.zeros(len(texts), SOURCE_LENGTH, dtype=torch.long)
    for row, text in zip(tokens, texts, strict=True):
        normal = normalize_date(text)
        if unknown := "".join(sorted(set(normal) - _LETTER.keys())):
            got = f"{unknown!r} in {text!r}"
            raise refusal("texts", "use the letters of DATE_LETTERS", got)
        if not 1 <= len(normal) <= SOURCE_LENGTH:
            got = f"{len(normal)} in {text!r}"
            raise refusal("texts", f"have 1 to {SOURCE_LENGTH} letters", got)
        row[: len(normal)] = torch.tensor([_LETTER[letter] for letter in normal])
    return tokens


def encode_target(texts: Sequence[str]) -> Int64[Tensor, "texts 11"]:
    """ISO dates as tokens, each followed by the token for the end.

    Raises:
        TypeError: an entry of `texts` is not a str.
        ValueError: a text is not ten characters of ISO 8601.

    Example:
        >>> encode_target(["2021-03-03"]).tolist()
        [[4, 2, 4, 3, 12, 2, 5, 12, 2, 5, 1]]
    """
    for text in texts:
        check_type("texts[i]", text, str)
        if len(text) != TARGET_LENGTH - 1 or not set(text) <= set(ISO_SYMBOLS):
            raise refusal("texts", "be dates such as '2021-03-03'", repr(text))
    rows = [[*(_SYMBOL[symbol] for symbol in text), END] for text in texts]
    return torch.tensor(rows, dtype=torch.long).reshape(-1, TARGET_LENGTH)


def decode_target(tokens: Int64[Tensor, " symbols"]) -> str:
    """The characters of one answer, up to its end.

    Raises:
        TypeError: `tokens` is not a tensor of integers.
        ValueError: `tokens` does not have one axis, or a token is out of range.

    Example:
        >>> decode_target(torch.tensor([4, 2, 4, 3, 1, 1]))
        '2021'
    """
    check_numbers("tokens", tokens, 0, 12, "lie in 0..12", integers="(symbols,)")
    numbers = tokens.tolist()
    shown = numbers[: numbers.index(END)] if END in numbers else numbers
    return "".join(ISO_SYMBOLS[number] for number in shown)


def date_batch(
    batch_size: int,
    *,
    held_out: bool = False,
    locales: Sequence[str] = LOCALES,
    forms: Sequence[str] = FORMS,
    generator: torch.Generator | None = None,
) -> WrittenDates:
    """Random days between 1900 and 2099, written in a random language and form.

    Without `held_out`, the days are for training; with it, they are the held-out tenth, see `is_held_out`.

    Returns:
        `WrittenDates`: source int64 (batch_size, 40), letters, padded with 0; target int64 (batch_size, 11),
        the ISO date and its end; the written dates; their languages.

    Raises:
        TypeError: `batch_size` is not an int, or `held_out` not a bool.
        ValueError: `batch_size` is not positive, a form is unknown, or Babel does not support a language.

    Example:
        >>> dates = date_batch(2, generator=torch.Generator().manual_seed(0))
        >>> dates.source.shape, [decode_target(target) for target in dates.target]
        (torch.Size([2, 40]), ['2058-12-31', '1966-06-21'])
    """
    check_positive_int("batch_size", batch_size)
    check_type("held_out", held_out, bool)
    for locale in locales:
        _locale(locale)
    for form in forms:
        check_choice("form", form, FORMS)

    def draw(choices: Sequence[Any]) -> list[Any]:
        picks = torch.randint(len(choices), (batch_size,), generator=generator)
        return [choices[pick] for pick in picks.tolist()]

    days, names = draw(_days(held_out)), draw(locales)
    texts = tuple(map(write_date, days, names, draw(forms)))
    target = encode_target([day.isoformat() for day in days])
    return WrittenDates(encode_source(texts), target, texts, tuple(names))
