"""Keep the translations in locale/ up to date, and name what is wrong with them; CONTRIBUTING.md says how.

    python tools/translate.py               write new messages into the .po files, and list what is open
    python tools/translate.py --check       name what translations have lost or added, and terms they lack
    python tools/translate.py --shares      print how much of the course is translated, and write nothing
    python tools/translate.py --settings zh_TW FILE  write the settings of the book in a language
    python tools/translate.py --switch BOOK give a book's pages the switch to the languages below it

Sphinx extracts the messages of the pages, texts.py those of questions, exercises, pictures and drawings. A
sentence that has changed in English keeps its old translation, marked as fuzzy, with the old sentence beside
it; the page shows the new one in English until somebody has mended the translation and taken away the mark.

zh_TW is made from zh_CN by OpenCC, then by locale/zh_TW/words.txt. A message that needs more stands in
locale/zh_TW/LC_MESSAGES/by_hand.po.
"""

import functools
import json
import re
import subprocess
import sys
import tempfile
from pathlib import Path

import yaml
from babel.messages.catalog import Catalog
from babel.messages.pofile import read_po, write_po
from stored_notebooks import ROOT

LOCALE = ROOT / "locale"
LANGUAGE = "zh_CN"
# What does not come from a page; "widgets", the strings of JavaScript, and INTERFACE are written by hand.
TEXTS, DRAWINGS, INTERFACE = "texts", "drawings", "interface"
ENGLISH = ("chapters/api", "chapters/references")  # docstrings, and titles of papers
GLOSSARY = "chapters/glossary"
# What is right too where the glossary has another word (to score, a kernel of a GPU, an exercise to warm up),
# and one that it lacks, because Chinese calls exponent and exponential alike.
ALSO_RIGHT = {
    "attention": "注意",
    "exponential": "取指数|指数值|指数函数",
    "kernel": "核",
    "score": "[打得评]分",
    "warm-up": "热身",
}
# Messages in which a word of the glossary is none of its terms.
NO_TERM = ("The keys to the cabinet", "Keys and a cabinet", "kind: {kind} head")
# What a translation must keep, by name: code, formulas, targets of links, tags, placeholders.
KEPT = {
    "code": r"`+[^`]+`+",
    "expression": r"\$\{[^}]*\}",
    "formula": r"(?<![\\\w])\$[^$]+\$",
    "link": r"\]\(([^)]*)\)",
    "tag": r"</?[a-z][^>]*>",
    "placeholder": r"(?<!text)\{[a-z_]*\}",
}
NOT_TEXT = re.compile(r"\$[^$]*\$|`+[^`]*`+|\]\([^)]*\)|<[^>]*>|\\[a-z]+")


def has_words(message):
    """Whether a message holds anything to translate besides code and formulas."""
    if message.startswith("\n") or ("$" not in message and message.startswith("\\")):
        return False  # a displayed formula, which Sphinx does not translate
    return bool(re.search(r"[A-Za-z]{2,}", NOT_TEXT.sub(" ", message)))


def extracted():
    """Return the messages of the course: domain -> template."""
    found = {}
    with tempfile.TemporaryDirectory() as folder:
        options = "-q -b gettext -c tools/plain -D gettext_compact=0".split()
        command = [sys.executable, "-m", "sphinx", *options, ".", folder]
        subprocess.run(command, cwd=ROOT, check=True)
        for path in sorted(Path(folder).rglob("*.pot")):
            domain = path.relative_to(folder).with_suffix("").as_posix()
            if domain not in ENGLISH:
                found[domain] = read_po(path.open("rb"))
        subprocess.run([sys.executable, "tools/texts.py", folder], cwd=ROOT, check=True)
        for domain in (TEXTS, DRAWINGS):
            found[domain] = read_po((Path(folder) / f"{domain}.pot").open("rb"))
    return found


def path_of(domain, language=LANGUAGE, folder=LOCALE):
    """Where the translations of a domain are."""
    return folder / language / "LC_MESSAGES" / f"{domain}.po"


def read(domain):
    """Return the stored translations of a domain."""
    path = path_of(domain)
    return (
        read_po(path.open("rb"), locale=LANGUAGE)
        if path.exists()
        else Catalog(locale=LANGUAGE)
    )


def write(catalog, path):
    """Write a catalog without what changes with each edit of a page: places and dates."""
    path.parent.mkdir(parents=True, exist_ok=True)
    lines = ['msgid ""', 'msgstr "Content-Type: text/plain; charset=UTF-8\\n"', ""]
    with tempfile.NamedTemporaryFile(suffix=".po") as file:
        write_po(
            file,
            catalog,
            width=0,
            no_location=True,
            omit_header=True,
            include_previous=True,
        )
        file.flush()
        path.write_text(
            "\n".join(lines) + "\n" + Path(file.name).read_text("utf-8"),
            encoding="utf-8",
        )


def update():
    """Write new messages into the .po files, and list by file what is open."""
    for domain, template in extracted().items():
        for message in list(template):
            if message.id and not has_words(message.id):
                template.delete(message.id)
        catalog = read(domain)
        catalog.update(template)
        catalog.obsolete.clear()
        write(catalog, path_of(domain))
        messages = [message for message in catalog if message.id]
        left = [message for message in messages if not message.string or message.fuzzy]
        share = 1 - len(left) / max(1, len(messages))
        print(
            f"{domain}: {share:.1%} of {len(messages)}",
            *(f"    {one.id[:90]}" for one in left[:20]),
            sep="\n",
        )


def shares():
    """Print for each language the share of the messages that are translated."""
    total = done = 0
    for domain, template in extracted().items():
        wanted = {one.id for one in template if one.id and has_words(one.id)}
        known = {one.id for one in read(domain) if one.string and not one.fuzzy}
        total += len(wanted)
        done += len(wanted & known)
    print(f"{LANGUAGE}: {done / total:.1%} of {total:,} messages are translated")
    print(f"zh_TW: {done / total:.1%}, because it is made from {LANGUAGE}")


def faults(english, chinese):
    """Yield what is wrong with the translation of a message."""
    both = english, chinese
    if (
        english.count("`") % 2 == 0 and "{" not in english
    ):  # else a line of a longer item, or a role
        yield from _differences("code", both)
    yield from _differences("expression", both)
    both = tuple(
        re.sub(f"{KEPT['code']}|{KEPT['expression']}", "", text) for text in both
    )
    for name in KEPT.keys() - {"code", "expression"}:
        yield from _differences(name, both)
    if english.count("**") != chinese.count("**"):
        yield "the number of ** differs"
    if re.search(
        r"[\u4e00-\u9fff][,;:?!](?=[\u4e00-\u9fff]|$)", chinese.replace(".** ", "")
    ):
        yield "half-width punctuation"
    if re.match(r"\d+\. ", chinese):
        yield "begins like a list"  # `1\.` begins like a sentence


def _differences(name, both):
    wanted, found = (set(re.findall(KEPT[name], text)) for text in both)
    if wanted != found:
        yield f"{name}: {sorted(wanted - found)} lost, {sorted(found - wanted)} added"


def terms():
    """Return the Chinese word for each term of the glossary, as a pattern."""
    entries = re.findall(
        r"(?m)^(\w.*)\n  \S", (ROOT / f"{GLOSSARY}.md").read_text("utf-8")
    )
    known = {one.id: one.string.split("（")[0] for one in read(GLOSSARY) if one.id}
    words = {entry.lower(): re.escape(known[entry]) for entry in entries}
    for entry, others in ALSO_RIGHT.items():
        words[entry] = f"{words[entry]}|{others}" if entry in words else others
    return words


def other_words(english, chinese, words):
    """Yield what a translation calls otherwise than the glossary, {term: pattern}."""
    left_out = f"{KEPT['expression']}|{KEPT['placeholder']}|{NOT_TEXT.pattern}"
    text = re.sub(left_out, " ", english.lower())
    longest_first = "|".join(sorted(map(re.escape, words), key=len, reverse=True))
    found = re.findall(
        rf"(?<![\w-])({longest_first})s?(?![\w-])", text.replace("queries", "query")
    )
    for term in sorted(set(found)):
        # A quotation or a name keeps its English words: *flash attention*, (batch, heads).
        quoted = rf"[a-z.*\"“(·] ?{term}|{term}s? ?[a-z.*\"”(（,:]"
        if not re.search(f"{words[term]}|{quoted}", chinese, re.IGNORECASE):
            yield f"{term!r} is {words[term]!r} in the glossary"


def check():
    """Name each translation that has lost or added something, lacks a term, or belongs to no message.

    Return whether one has.
    """
    bad = 0
    words = terms()
    known = set()
    for path in sorted((LOCALE / LANGUAGE).rglob("*.po")):
        messages = [one for one in read_po(path.open("rb")) if one.id]
        known |= {message.id for message in messages}
        for number, message in enumerate(messages):
            if message.string and not message.fuzzy:
                near = [message]
                if (
                    path.stem == TEXTS
                ):  # a line, whose words may stand before or after it
                    near = messages[max(0, number - 1) : number + 2]
                said = " ".join(one.string for one in near)
                found = [*faults(message.id, message.string)]
                if message.id not in (message.string, *NO_TERM):
                    found += other_words(message.id, said, words)
                for fault in found:
                    bad += 1
                    print(
                        f"{path.relative_to(ROOT)}:{message.lineno}: {message.id[:60]!r}: {fault}"
                    )
    by_hand = path_of("by_hand", "zh_TW")
    for message in read_po(by_hand.open("rb")):
        if message.id and message.id not in known:
            bad += 1
            print(
                f"{by_hand.name}: {message.id[:60]!r}: no message is called this any more"
            )
    return bool(bad)


# In Taiwan a row is called what a column is called in Beijing, and the other way round; these words stay.
ROW = re.compile(r"(?<![运执进并流举可自银平另发强同就不])行(?![为动走代业程列])")
COLUMN = re.compile(r"(?<![序系排并队下陈之])列(?![表出举车])")


def for_taiwan(english, chinese, convert, words):
    """Return a message in the characters and the words of Taiwan."""
    rows, columns = (
        bool(re.search(rf"\b{word}s?\b", english, re.IGNORECASE))
        for word in ("row", "column")
    )
    text = ROW.sub("\0", chinese) if rows else chinese
    text = COLUMN.sub("行", text) if columns else text.replace("列对", "行对")
    text = convert(text.replace("\0", "列"))
    for word, ours in words:
        text = text.replace(word, ours)
    return text


def write_taiwan(folder):
    """Write all translations for Taiwan into a folder."""
    from opencc import OpenCC

    convert = OpenCC("s2twp").convert
    lines = (LOCALE / "zh_TW" / "words.txt").read_text("utf-8").splitlines()
    words = [line.split() for line in lines if line and not line.startswith("#")]
    by_hand = read_po(path_of("by_hand", "zh_TW").open("rb"))
    for path in sorted((LOCALE / LANGUAGE).rglob("*.po")):
        catalog = read_po(path.open("rb"))
        for message in catalog:
            if message.id and message.string:
                own = by_hand.get(message.id)
                message.string = (
                    own.string
                    if own
                    else for_taiwan(message.id, message.string, convert, words)
                )
        write(catalog, folder / "zh_TW" / path.relative_to(LOCALE / LANGUAGE))


@functools.cache
def interface(language):
    """Return the translations of what stands around the text of the book, message -> text."""
    if language == "en":
        return {}
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name) if language == "zh_TW" else LOCALE
        if language == "zh_TW":
            write_taiwan(folder)
        with path_of(INTERFACE, language, folder).open("rb") as file:
            return {one.id: one.string for one in read_po(file) if one.id}


def settings(language, path):
    """Write the settings of the book in a language: _config.yml with the language, its title and author."""
    folder = LOCALE
    if language == "zh_TW":
        folder = path.parent / "locale"
        write_taiwan(folder)
    config = yaml.safe_load((ROOT / "_config.yml").read_text("utf-8"))
    known = interface(language)
    for name in ("title", "author"):
        config[name] = known[config[name]]
    config["html"]["extra_footer"] = known[config["html"]["extra_footer"].strip()]
    config["sphinx"]["local_extensions"] = {"course": str(ROOT / "_ext")}
    config["sphinx"]["config"] |= {
        "language": language,
        "locale_dirs": [str(folder.resolve())],
    }
    config["sphinx"]["config"] |= {"gettext_compact": False}
    path.write_text(
        yaml.safe_dump(config, allow_unicode=True, sort_keys=False), "utf-8"
    )


def switch(book):
    """Name in each book the languages that stand below it, for the switch in the header of its pages."""
    languages = sorted(path.name for path in book.glob("zh_*"))
    for folder in (book, *map(book.joinpath, languages)):
        script = folder / "_static" / "languages.js"
        text = script.read_text("utf-8")
        script.write_text(
            re.sub(r"(?<=others = )\[.*?\]", json.dumps(languages), text), "utf-8"
        )


def main(arguments):
    """Do what the arguments ask for."""
    if not arguments:
        return update()
    if arguments[0] == "--check":
        return check()
    if arguments[0] == "--shares":
        return shares()
    if arguments[0] == "--settings":
        return settings(arguments[1], Path(arguments[2]))
    return switch(Path(arguments[1]))


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
