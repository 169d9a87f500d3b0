"""The book's own typefaces, reduced to its characters: Source Sans for text, Source Code for code.

npm brings them, of the versions and hashes in package-lock.json. They are written into a style sheet, which a
browser has before it draws a page, and typefaces.js has them decoded at once. So a page never changes its
typeface before the reader's eyes, nothing moves, and a book opened from disk looks the same. Their licence
reserves the name Source for the files as Adobe made them, so the reduced ones have other names. Chinese
characters and others are left to the system.
"""

import base64
import html
import io
import logging
import re
import shutil
from collections import defaultdict
from pathlib import Path

from fontTools import subset
from fontTools.ttLib import TTFont

MODULES = Path(__file__).resolve().parent.parent / "node_modules"
STYLE = "typefaces.css"
# Family: the package and its files, each with its weights and its style.
FAMILIES = {
    "Course Text": ("source-sans", [
        ("SourceSans3-Regular", "400", "normal"),
        ("SourceSans3-It", "400", "italic"),
        ("SourceSans3-Semibold", "600 700", "normal"),
    ]),
    "Course Code": ("source-code-pro", [
        ("SourceCodePro-Regular", "400", "normal"),
        ("SourceCodePro-Semibold", "600 700", "normal"),
    ]),
}  # fmt: skip
FEATURES = ["kern", "mark", "ccmp", "tnum"]
ABOUT = "/* {}: {}, © Adobe, under the SIL Open Font License (see {}), reduced and renamed. */\n"
FACE = (
    '@font-face {{ font-family: "{}"; font-weight: {}; font-style: {}; '
    'src: url("data:font/woff2;base64,{}") format("woff2"); }}\n'
)
EQUATION_FACE = (
    "@font-face {{ font-family: {0}; "
    'src: url("data:font/{1};base64,{2}") format("{1}"); }}\n'
)
NAMES = (1, 3, 4, 6, 16, 21, 25)  # where a font says what it is called
# What a reader may type: Western European and Greek letters. Of the blocks of Latin, punctuation, arrows
# and mathematics, the faces have what the book uses.
TYPED = {*range(0x20, 0x7F), *range(0xA0, 0x100), *range(0x391, 0x3CA)}
BLOCKS = ((0x100, 0x400), (0x1E00, 0x2C00))
# In the style sheet of the equations: what is drawn where, and a font.
DRAWN = re.compile(r'([^{}]*)\{[^{}]*content: "([^"]*)"')
MATHJAX_FACE = re.compile(
    r'@font-face[^{]*\{\s*font-family: ([\w-]+);\s*src: url\("([^"]+)"\)[^}]*\}\n*'
)


def reduced(source, characters, *, flavor="woff", features=(), name=None):
    """Return a web font with only these characters, under another name if one is given."""
    logging.getLogger("fontTools").setLevel(logging.ERROR)  # it logs everything
    font = TTFont(source, recalcTimestamp=False)  # the same bytes from every build
    options = subset.Options(layout_features=list(features), hinting=False)
    if name:
        options.name_IDs = [*range(7), 13, 14]  # the last two name the licence
    worker = subset.Subsetter(options)
    worker.populate(unicodes=characters)
    worker.subset(font)
    if name:
        for record in font["name"].names:
            if record.nameID in NAMES:
                record.string = name
    font.flavor = flavor
    file = io.BytesIO()
    font.save(file, reorderTables=False)
    return file.getvalue()


def characters_of(pages):
    """Return the characters of the pages that the typefaces may have."""
    text = set(html.unescape("".join(pages)))
    found = {ord(character) for character in text}
    return TYPED | {code for code in found if any(a <= code < b for a, b in BLOCKS)}


def write_typefaces(static, pages):
    """Write the style sheet with the typefaces, and their licences beside it."""
    characters, parts = characters_of(pages), []
    for family, (package, faces) in FAMILIES.items():
        licence = f"{package}-LICENSE.md"
        shutil.copy(MODULES / package / "LICENSE.md", static / licence)
        parts.append(ABOUT.format(family, package, licence))
        for file, weight, style in faces:
            source = MODULES / package / "TTF" / f"{file}.ttf"
            options = {"flavor": "woff2", "features": FEATURES, "name": family}
            font = base64.b64encode(reduced(source, characters, **options)).decode()
            parts.append(FACE.format(family, weight, style, font))
    (static / STYLE).write_text("".join(parts), encoding="utf-8")


def embed_mathjax(static):
    """Write the fonts of the equations into their style sheet, each with only the characters that it draws.

    So equations have their typeface when they are first painted, and nothing moves when it comes.
    """
    sheet, drawn = static / "equations.css", defaultdict(set)
    style = sheet.read_text(encoding="utf-8") if sheet.is_file() else ""
    for selector, text in DRAWN.findall(style):
        [kind] = re.findall(r"\.(TEX-\w+)", selector) or ["TEX"]
        escapes = re.findall(r"\\([0-9A-Fa-f]{1,6}) ?", text)
        codes = {int(code, 16) for code in escapes} or set(map(ord, text))
        # The parts of a long bracket or brace are in one of these.
        for one in ("TEX", "TEX-S1", "TEX-S4") if "stretchy" in selector else (kind,):
            drawn[f"MJX{one}"] |= codes

    def embedded(face):
        family, path = face[1], static / face[2]
        # The first only keeps lines from growing, with every character.
        if family == "MJXZERO":
            flavor, font = "woff", path.read_bytes()
        elif family in drawn:
            flavor, font = "woff2", reduced(path, drawn[family], flavor="woff2")
        else:
            return ""
        code = base64.b64encode(font).decode()
        return EQUATION_FACE.format(family, flavor, code)

    if style:
        sheet.write_text(MATHJAX_FACE.sub(embedded, style), encoding="utf-8")
        shutil.rmtree(static / "mathjax", ignore_errors=True)
