"""What a reader sees of a widget: marks, texts and frames in the colours that the browser really uses."""

import colorsys
import io
import json

import numpy as np
from PIL import Image

LOOKS = """root => {
  const context = new OffscreenCanvas(1, 1).getContext("2d", { willReadFrequently: true });
  const known = new Map();
  const rgba = (css) => {
    if (!known.has(css)) {
      context.clearRect(0, 0, 1, 1);
      context.fillStyle = css;
      context.fillRect(0, 0, 1, 1);
      known.set(css, [...context.getImageData(0, 0, 1, 1).data]);
    }
    return known.get(css);
  };
  const over = ([r, g, b, a], below) =>
    [r, g, b].map((c, i) => Math.round((c * a + below[i] * (255 - a)) / 255));
  const canvas = document.body.appendChild(document.createElement("i"));
  canvas.style.cssText = "color: Canvas; forced-color-adjust: none";
  const page = rgba(getComputedStyle(canvas).color);
  canvas.remove();

  const pictures = [...root.querySelectorAll("canvas")].map((picture) => picture.getBoundingClientRect());
  const isOnPicture = (node) => {
    const { left, top, width, height } = node.getBoundingClientRect();
    const [x, y] = [left + width / 2, top + height / 2];
    const isIn = (box) => x > box.left && x < box.right && y > box.top && y < box.bottom;
    return node.localName !== "canvas" && pictures.some(isIn);
  };
  // The colour behind the text of each element; null where a picture is behind it.
  const grounds = new Map();
  const groundOf = (node) => {
    if (!(node instanceof Element)) return page.slice(0, 3);
    if (!grounds.has(node)) {
      let ground = isOnPicture(node) ? null : groundOf(node.parentNode);
      // The visible part of a handle is its pseudo-element.
      for (const pseudo of node.matches(".mha-handle") ? [null, "::before"] : [null]) {
        const style = getComputedStyle(node, pseudo);
        const color = rgba(style.backgroundColor);
        if (color[3] === 255) ground = color.slice(0, 3);
        else if (ground && color[3]) ground = over(color, ground);
        if (style.backgroundImage !== "none") ground = null;
      }
      grounds.set(node, ground);
    }
    return grounds.get(node);
  };
  const sides = ["Top", "Right", "Bottom", "Left"];
  const bordersOf = (style, ground) => sides.map((side) => {
    const [width, kind] = [parseFloat(style[`border${side}Width`]), style[`border${side}Style`]];
    const color = rgba(style[`border${side}Color`]);
    return width > 0 && kind !== "none" && color[3] > 0 ? [width, kind, over(color, ground ?? page)] : null;
  });
  const isSeen = (node) => {
    const { width, height } = node.getBoundingClientRect();
    const isVisible = node.checkVisibility({ opacityProperty: true });
    return isVisible && width + height > 0 && !node.closest(".mha-unseen");
  };
  const paints = (node) => {
    const style = getComputedStyle(node);
    const outline = style.outlineStyle === "none" ? null : [style.outlineStyle, style.outlineWidth];
    const drawn = [style.stroke, style.strokeWidth, style.strokeDasharray, style.fill];
    const plain = (value) => (/^(rgb|color|ok)/.test(value) ? rgba(value) : value);
    const shape = node.ownerSVGElement ? drawn.map(plain) : null;
    return [groundOf(node), style.backgroundImage, bordersOf(style, groundOf(node)), style.boxShadow, outline,
      style.opacity, style.fontWeight, style.textDecorationLine, shape];
  };
  const nodes = [...root.querySelectorAll("*")];
  const places = new Map(nodes.map((node, index) => [node, index]));
  return nodes.map((node, index) => {
    if (!isSeen(node)) return null;
    const style = getComputedStyle(node);
    const { left, top, width, height } = node.getBoundingClientRect();
    let opacity = 1;
    for (let n = node; n instanceof Element; n = n.parentNode) opacity *= getComputedStyle(n).opacity;
    const hasText = [...node.childNodes].some((child) => child.nodeType === 3 && child.data.trim());
    const ground = groundOf(node);
    const below = isOnPicture(node) ? null : groundOf(node.parentNode);
    const svg = Boolean(node.ownerSVGElement);
    const inside = [...node.querySelectorAll("*")].filter(isSeen);
    const color = rgba(svg ? style.fill : style.color);
    return {
      what: node.outerHTML.slice(0, 100),
      parent: places.get(node.parentNode) ?? -1,
      tag: node.localName,
      role: node.getAttribute("role"),
      box: [left + scrollX, top + scrollY, width, height],
      svg,
      ground,
      below,
      borders: svg ? [] : bordersOf(style, below),
      text: hasText ? over(color, ground ?? page) : null,
      isLeaf: !node.firstChild && !svg,
      isNative: node.matches("input, select, textarea, option"),
      isOff: Boolean(node.closest(":disabled, [aria-disabled=true]")) || opacity < 0.99,
      hasColorOfItsOwn: Boolean(node.style.backgroundColor) && rgba(style.backgroundColor)[3] === 255,
      isEmpty: node.innerText?.trim() === "" && !node.matches("canvas, img, svg, input")
        && !node.querySelector("canvas, img, svg, input"),
      ink: [style.stroke, style.fill].filter((ink) => svg && opacity > 0.2 && ink !== "none").map(rgba)
        .filter((ink) => ink[3] > 60),
      looks: JSON.stringify([paints(node), inside.map(paints)]),
      own: paints(node),
      // Buttons and tabs say so themselves; the look of a radio button is that of the text after it.
      isChosen: node.matches("[aria-current], [aria-pressed=true], [aria-selected=true], input:checked + *"),
      group: places.get(node.closest("fieldset") ?? node.parentNode) ?? -1,
    };
  });
}"""


def looks_of(host):
    """Each element of a widget as the browser paints it; None for those that nobody sees."""
    return host.evaluate(LOOKS)


def photograph(page):
    """The whole page as it is on the screen or on paper: (height, width, 3), one pixel per CSS pixel."""
    shot = page.screenshot(full_page=True, animations="disabled")
    return np.asarray(Image.open(io.BytesIO(shot)).convert("RGB")).astype(int)


def contrast(one, other):
    """The contrast of two colours by the WCAG's formula, 1 to 21."""

    def luminance(color):
        parts = [c / 3294.6 if c <= 10 else ((c / 255 + 0.055) / 1.055) ** 2.4 for c in color[:3]]
        return 0.2126 * parts[0] + 0.7152 * parts[1] + 0.0722 * parts[2]

    low, high = sorted((luminance(one), luminance(other)))
    return (high + 0.05) / (low + 0.05)


def is_colourful(color):
    """Whether it is neither white nor grey nor black."""
    return max(color) - min(color) > 60


def same_hue(one, other):
    """Whether two colours are both, say, blue, one perhaps darker."""
    hues = [colorsys.rgb_to_hsv(*(c / 255 for c in color))[0] for color in (one, other)]
    apart = abs(hues[0] - hues[1])
    return is_colourful(other) and min(apart, 1 - apart) < 0.09


def pixel(photo, box, across, down):
    """The colour at a place of a box, given as shares of its width and height."""
    x, y = box[0] + across * box[2], box[1] + down * box[3]
    return photo[min(int(y), len(photo) - 1), min(int(x), photo.shape[1] - 1)].tolist()


def unreadable(looks):
    """Texts with too little contrast."""
    return [
        (look["what"], look["text"], look["ground"])
        for look in looks
        if look and look["text"] and look["ground"] and not look["isOff"] and not look["isNative"]
        if contrast(look["text"], look["ground"]) < 4.5
    ]


def lost_marks(before, photo_before, after, photo_after):
    """Bars, swatches, dots, cells and maps that can be seen before, and not, or in another colour, after."""
    lost = []
    for old, new in zip(before, after, strict=True):
        if not old or old["isNative"]:
            continue
        if not new:
            lost.append((old["what"], "gone"))
            continue
        is_map = old["tag"] == "canvas"
        is_cell = old["hasColorOfItsOwn"] and (old["role"] == "gridcell" or not old["isLeaf"])
        if not (is_map or is_cell or old["isLeaf"]):
            continue
        shares = (0.05, 0.23, 0.41, 0.59, 0.77, 0.95) if is_map else (0.25, 0.5, 0.75)
        places = [(x, y) for x in shares for y in (shares if is_map else (0.5,))]
        # The text of a cell is centred.
        for place in [(0.08, 0.1)] if is_cell else places:
            seen = pixel(photo_before, old["box"], *place)
            now = pixel(photo_after, new["box"], *place)
            if not is_map and (not old["below"] or not new["below"] or contrast(seen, old["below"]) < 1.25):
                continue
            if is_map or is_cell:
                if is_colourful(seen) and max(abs(np.subtract(seen, now))) > 12:
                    lost.append((old["what"], place, seen, now))
            elif contrast(now, new["below"]) < 1.2:
                lost.append((old["what"], "no colour", seen, now))
            elif is_colourful(seen) and not same_hue(seen, now):
                lost.append((old["what"], "another colour", seen, now))
    return lost


def lost_lines(before, after):
    """Lines and shapes of drawings that stand out before, and not after."""

    def stands_out(look):
        return look["below"] and any(contrast(ink, look["below"]) >= 1.25 for ink in look["ink"])

    pairs = zip(before, after, strict=True)
    return [
        (old["what"], old["ink"], new and new["ink"])
        for old, new in pairs
        if old and old["svg"] and stands_out(old) and not (new and stands_out(new))
    ]


def tells_apart(one, other):
    """Whether two looks differ by more than a hue: in brightness, or in anything that is not a colour."""
    if isinstance(one, list) and isinstance(other, list) and len(one) == len(other):
        if len(one) in (3, 4) and all(isinstance(part, (int, float)) for part in [*one, *other]):
            return contrast(one, other) >= 1.25
        return any(tells_apart(*parts) for parts in zip(one, other, strict=True))
    return one != other


def merged_states(before, after):
    """Neighbours of one kind that look different before, such as chosen and not chosen, and alike after.

    The hues of queries, keys and values are given up for the colours of the reader; a word names each.
    """
    groups = {}
    for old, new in zip(before, after, strict=True):
        if old and new:
            groups.setdefault((old["parent"], old["tag"]), []).append((old, new))
    merged = []
    for group in groups.values():
        first_with = {}
        for old, new in group:
            other = first_with.setdefault(new["looks"], old)
            if other["looks"] != old["looks"] and tells_apart(
                *(json.loads(o["looks"]) for o in (other, old))
            ):
                merged.append((other["what"], old["what"]))
    return merged


def lost_choices(before, after):
    """What is chosen, where its own look tells it from the others of its group before, and not after."""
    seen = [(old, new) for old, new in zip(before, after, strict=True) if old and new]
    lost = []
    for old, new in seen:
        if not old["isChosen"]:
            continue
        for other, other_new in seen:
            is_rival = (other["group"], other["tag"]) == (old["group"], old["tag"]) and not other["isChosen"]
            differed = is_rival and tells_apart(old["own"], other["own"])
            if differed and not tells_apart(new["own"], other_new["own"]):
                lost.append((old["what"], other["what"]))
    return lost


def empty_frames(looks, photo):
    """Frames and panels with nothing in them. A box in which something can be typed is not one of them."""
    found = []
    for look in looks:
        if not look or not look["isEmpty"] or look["isNative"] or look["svg"]:
            continue
        x, y, width, height = (round(number) for number in look["box"])
        below = look["below"] or [255] * 3
        borders = [b for b in look["borders"] if b and contrast(b[2], below) > 1.05]
        is_panel = look["ground"] is not None and look["ground"] != below
        if width < 30 or height < 20 or (len(borders) < 3 and not is_panel):
            continue
        inside = photo[y + 5 : y + height - 5, x + 5 : x + width - 5].reshape(-1, 3)
        if len(inside) and (np.ptp(inside, axis=0) < 8).all() and not is_colourful(inside[0].tolist()):
            found.append(look["what"])
    return found
