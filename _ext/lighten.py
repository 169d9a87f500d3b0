"""Remove from the built pages everything that a browser does not need, and store repeated parts only once.

These functions change finished files. Without them, pages look and work the same but load twice as much.
"""

import json
import re
from pathlib import Path

import tinycss2
from languages import code_translator
from PIL import Image
from typefaces import embed_mathjax, reduced, write_typefaces
from widget_code import with_code
from widget_files import NAME as DATA

STATE = re.compile(
    r'(<script type="application/vnd\.jupyter\.widget-state\+json">)(.*?)(</script>)',
    re.DOTALL,
)
# A picture from a file, in an element without width and height.
PICTURE = re.compile(
    r'(<img (?![^>]*\b(?:width|height)=)[^>]*src="([^":?]*_images/[^":?]+\.png)"[^>]*?)( ?/?>)'
)
VIEW = re.compile(
    r'(?=<script type="application/vnd\.jupyter\.widget-view\+json">(?:\s*\{[^<]*?"model_id": "([^"]*)")?)'
)
LOADER = re.compile(
    r'[ ]*<script [^>]*src="[^"]*\bwidget_loader\.js[^"]*"></script>\n?'
)
SCRIPT = '[ ]*<script (?:defer(?:="defer")? )?src="[^"]*\\b{}[^"]*"></script>\n?'
# For each page and widget, which has the name of its cell: its initial height on a phone, a tablet and a
# desktop, as measured by `make heights`.
HEIGHTS = Path(__file__).with_name("widget_heights.json")

# The line that compose_module and compose_style write before each file.
MARKER = re.compile(r"^(?=// [\w.]+\.js$|/\* [\w.]+\.css \*/$)", re.MULTILINE)

# The mark of a page that has been lightened, because the next build rewrites only changed pages.
DONE = "<!-- lightened -->"

# Every page loads these scripts, but only the search page uses them. (The script for icons, in NEVER, adds
# 1.5 MB to draw what the web font draws.)
ONLY_FOR_SEARCH = ["searchtools.js", "language_data.js", "searchindex.js"]
NEVER = ["fontawesome.js"]

# Scripts of the theme and of extensions, to whose addresses Sphinx adds a checksum. Text need not wait for
# them: they act when the whole page is there. Scripts within the page add to DOCUMENTATION_OPTIONS, though.
ACTS_LATER = re.compile(
    r'<script (?=(?:data-[\w-]+="[^"]*" )*src="(?![^"]*\bdocumentation_options\.js)[^"]*\.js\?v=)'
)

SHEETS = ["styles/pydata-sphinx-theme.css", "sphinx-design.min.css"]


def share_texts(state):
    """Store the modules and style sheets of a page's widgets in parts, each part only once.

    A model's `_esm` and `_css` become lists of indices into `texts`; widget_loader.js joins them again.
    """
    texts = state.setdefault("texts", [])
    places = {text: place for place, text in enumerate(texts)}
    for model in state["state"].values():
        for name in ("_esm", "_css"):
            whole = model["state"].get(name)
            if isinstance(whole, str):
                parts = [part for part in MARKER.split(whole) if part]
                for part in parts:
                    if part not in places:
                        places[part] = len(texts)
                        texts.append(part)
                model["state"][name] = [places[part] for part in parts]
    return state


def reserve_room(html, heights):
    """Put before each view a host of the widget's height, so that nothing moves when the widget starts."""

    def host(match):
        row = heights.get(match[1], ())
        room = dict(zip(("phone", "tablet", "desktop"), row, strict=False))
        style = "; ".join(f"--{screen}: {height}px" for screen, height in room.items())
        return f'<div class="widget-host" style="{style}"></div>'

    return VIEW.sub(host, html)


def size_images(html, folder):
    """Write the size of each picture into the page, so that nothing below it moves when it loads."""

    def say(match):
        with Image.open(folder / match[2]) as picture:
            width, height = picture.size
        return f'{match[1]} width="{width}" height="{height}"{match[3]}'

    return PICTURE.sub(say, html)


def plain_tokens(css):
    """Return the classes of tokens that look like plain code in all themes of Pygments' style sheet."""
    colors, tokens = {}, {}
    for theme, name, style in re.findall(
        r"([^{}\n/]*)\.highlight(?: \.(\w+))? \{([^}]*)\}", css
    ):
        if name:
            tokens.setdefault(name, {})[theme] = style.strip()
        else:
            colors[theme] = re.search(r"(?<![\w-])color: #\w+|$", style)[0]
    return {name for name, styles in tokens.items() if colors and styles == colors}


def lighten_page(
    html, *, searches, heights=None, plain=(), translate=lambda states: states
):
    """Remove scripts that the page does not need, and store the common parts of its widgets only once.

    The widgets' state and the loader move to the end, so that the text does not wait for them. Code tokens
    whose class is in `plain` lose their element, which a browser would lay out for no benefit.
    """
    for script in [*NEVER, *([] if searches else ONLY_FOR_SEARCH)]:
        html = re.sub(SCRIPT.format(re.escape(script)), "", html)
    if not searches:
        head, between, body = html.partition("</head>")
        html = ACTS_LATER.sub("<script defer ", head) + between + body
    last = []

    def take(match):
        state = share_texts(translate(with_code(json.loads(match[2]))))
        text = json.dumps(state, separators=(",", ":"), ensure_ascii=False)
        last.append(match[1] + text.replace("</", r"<\/") + match[3])
        return ""

    html = STATE.sub(take, html)
    if plain:
        names = "|".join(sorted(plain))
        html = re.sub(f'<span class="(?:{names})">([^<]*)</span>', r"\1", html)
    if last:
        loaders = LOADER.findall(html)
        html = reserve_room(LOADER.sub("", html), heights or {})
        html = html.replace("</body>", "\n".join([*last, *loaders, "</body>"]))
    return html


def used_rules(css, names):
    """Remove rules of a style sheet whose classes occur in no page and no script."""

    def is_used(selector):
        # A selector may match even if a class inside :not(...) or :is(...) is missing, and an apparent class
        # inside [...] is not one. Bootstrap's scripts build names from `bs-` and the name of the component.
        outside = re.sub(r"\[[^]]*\]", "", selector)
        outside = re.sub(r"\([^()]*(?:\([^()]*\)[^()]*)*\)", "", outside)
        classes = re.findall(r"\.(-?[A-Za-z_][\w-]*)", outside)
        return all(name in names or name.startswith("bs-") for name in classes)

    def clean(rules):
        kept = []
        for rule in rules:
            if rule.type == "qualified-rule":
                groups = [[]]
                for token in rule.prelude:
                    if token.type == "literal" and token.value == ",":
                        groups.append([])
                    else:
                        groups[-1].append(token)
                selectors = [tinycss2.serialize(group).strip() for group in groups]
                if used := ",".join(filter(is_used, selectors)):
                    kept.append(f"{used}{{{tinycss2.serialize(rule.content)}}}")
            elif getattr(rule, "lower_at_keyword", "") in ("media", "supports"):
                inside = clean(tinycss2.parse_rule_list(rule.content, True, True))
                if inside:
                    head = tinycss2.serialize(rule.prelude)
                    kept.append(f"@{rule.at_keyword}{head}{{{inside}}}")
            else:
                kept.append(rule.serialize())
        return "".join(kept)

    # Icons remain escapes. With six digits, the next character cannot belong to the escape.
    text = clean(tinycss2.parse_stylesheet(css, True, True))
    return re.sub("[\ue000-\uf8ff]", lambda icon: f"\\{ord(icon[0]):06x}", text)


def lighten_styles(static, pages):
    """Reduce the theme's style sheets to the rules in use, and its icon font to the icons in the sheets."""
    code = (path for path in static.rglob("*.js") if not DATA.fullmatch(path.name))
    scripts = [path.read_text(encoding="utf-8") for path in code]
    classes = re.findall(r'class="([^"]*)"', "".join(pages))
    names = set(re.findall(r"[\w-]+", " ".join([*classes, *scripts])))
    for path in (static / sheet for sheet in SHEETS):
        rules = used_rules(path.read_text(encoding="utf-8"), names)
        path.write_text(rules, encoding="utf-8")

    sheets = [path.read_text(encoding="utf-8") for path in static.rglob("*.css")]
    codes = re.findall(r"\\(?:00)?(f[0-9a-f]{3})\b", "\n".join(sheets))
    characters = {int(code, 16) for code in codes}
    fonts = static / "vendor" / "fontawesome" / "webfonts"
    older = fonts / "fa-solid-900.ttf"  # newer themes have only the .woff2
    source = older if older.exists() else older.with_suffix(".woff2")
    icons = reduced(source, characters)
    (fonts / "fa-solid-900.woff").write_bytes(icons)
    theme = static / SHEETS[0]
    text = theme.read_text(encoding="utf-8")
    addresses = re.compile(
        r"(url\([^)]*fa-solid-900\.)woff2\)(?: format\(\"woff2\"\))?(?:,url\([^)]*\) format\(\"truetype\"\))?"
    )
    theme.write_text(addresses.sub(r'\1woff) format("woff")', text), encoding="utf-8")


def lighten_site(app):
    """Lighten all pages, style sheets and scripts of a finished build."""
    static = Path(app.outdir, "_static")
    heights = json.loads(HEIGHTS.read_text(encoding="utf-8"))
    plain = plain_tokens((static / "pygments.css").read_text(encoding="utf-8"))
    pages = []
    for path in sorted(Path(app.outdir).rglob("*.html")):
        if static in path.parents:
            continue
        html = path.read_text(encoding="utf-8")
        if DONE not in html:
            name = path.relative_to(app.outdir).as_posix()
            options = {
                "heights": heights.get(name),
                "plain": plain,
                "translate": code_translator(app),
            }
            html = lighten_page(html, searches=name == "search.html", **options)
            html = size_images(html, path.parent)
            path.write_text(f"{html}\n{DONE}\n", encoding="utf-8")
        pages.append(html)
    for unused in [static / "scripts" / "fontawesome.js", *static.rglob("*.map")]:
        unused.unlink(missing_ok=True)
    lighten_styles(static, pages)
    write_typefaces(static, pages)
    embed_mathjax(static)
