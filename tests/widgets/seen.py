"""What a reader sees, turned back into numbers: curves and dots of a plane, by its ticks; bars and texts."""

import re

import torch
from matplotlib import colormaps

SEEN = """(node) => {
  const { left, top, width, height } = node.querySelector(".mha-area svg").getBoundingClientRect();
  const place = (part) => {
    const box = part.getBoundingClientRect();
    return [(100 * ((box.left + box.right) / 2 - left)) / width, (100 * ((box.top + box.bottom) / 2 - top)) / height];
  };
  const ticks = (axis) => [...node.querySelectorAll(`.mha-${axis}-ticks span`)]
    .filter((tick) => tick.checkVisibility() && tick.innerText.trim()).map((tick) => [tick.innerText, ...place(tick)]);
  const dots = [...node.querySelectorAll(".mha-dots > span")].filter((dot) => dot.checkVisibility());
  return {
    x: ticks("x"),
    y: ticks("y"),
    curves: [...node.querySelectorAll("path.mha-curve")].map((path) => [path.getAttribute("class"), path.getAttribute("d")]),
    dots: dots.map((dot) => [dot.parentNode.className, ...place(dot), dot.getBoundingClientRect().width]),
    handles: [...node.querySelectorAll(".mha-handle")].map(place),
  };
}"""  # noqa: E501, the program would not be clearer in more lines

SHARES = """rows => rows.map((row) => {
  const width = (part) => row.querySelector(part).getBoundingClientRect().width;
  return width(".mha-bar-track i") / width(".mha-bar-track");
})"""


def slider(host, name):
    return host.get_by_role("slider", name=name, exact=True)


def number_in(text):
    """The first number in a text; in the page a minus sign is no hyphen, and commas group digits."""
    return float(re.search(r"-?\d[\d,]*\.?\d*", text.replace("−", "-"))[0].replace(",", ""))


CELLS = """cells => cells.map((cell) => {
  const { backgroundColor, color } = getComputedStyle(cell);
  const numbers = (text) => text.match(/[\\d.]+/g).map(Number);
  return [numbers(backgroundColor), numbers(color)];
})"""
PIXELS = """canvas => [canvas.height, canvas.width,
  ...canvas.getContext("2d").getImageData(0, 0, canvas.width, canvas.height).data]"""


def map_colors(numbers, most, *, is_signed):
    """The colours that matplotlib's map gives numbers: red, green and blue in 0..255 on a last axis.

    Signed numbers have the diverging map from -most to most, weights the sequential one from 0 to most.
    """
    shares = torch.as_tensor(numbers, dtype=torch.float64) / most
    drawn = colormaps["RdBu_r"]((shares + 1) / 2) if is_signed else colormaps["viridis"](shares)
    return 255 * torch.tensor(drawn)[..., :3]


def map_pixels(canvas):
    """The colours of a canvas, (height, width, 4)."""
    height, width, *numbers = canvas.evaluate(PIXELS)
    return torch.tensor(numbers).view(height, width, 4)


def assert_colors(drawn, numbers, most, *, is_signed):
    """Colours in the page are those of matplotlib's map; the page mixes the colours between a few of them."""
    expected = map_colors(numbers, most, is_signed=is_signed)
    difference = (torch.as_tensor(drawn)[..., :3] - expected).abs().max()
    assert difference < (4 if is_signed else 8), difference


def assert_color_bar(bar, most, *, is_signed):
    """A colour bar has the map's colours at even places, and the numbers at its ends and in its middle."""
    gradient = bar.locator(".mha-scale").evaluate("node => getComputedStyle(node).backgroundImage")
    assert gradient.startswith("linear-gradient(to right, rgb(")
    stops = [[int(part) for part in stop] for stop in re.findall(r"rgb\((\d+), (\d+), (\d+)\)", gradient)]
    low = -most if is_signed else 0
    places = torch.linspace(low, most, len(stops), dtype=torch.float64)
    assert_colors(stops, places, most, is_signed=is_signed)
    texts = bar.locator(".mha-bar-ends span").all_inner_texts()
    assert [number_in(text) for text in texts] == [round(end, 2) for end in (low, (low + most) / 2, most)]


def shares_of_bars(rows):
    """How much of its track the bar of each row fills: one number from 0 to 1 for each."""
    return rows.evaluate_all(SHARES)


class Plane:
    """The curves and dots of a plane as points (x, y), in the units that its visible ticks give.

    Args:
        node: locator of the `.mha-plane`, or of what holds one
        x: turns the text of a tick into its place on the axis, for example into a logarithm
        y: the same for the other axis
    """

    def __init__(self, node, x=number_in, y=number_in):
        self.seen = node.evaluate(SEEN)
        self.x = self._axis([(x(text), across) for text, across, _ in self.seen["x"]])
        self.y = self._axis([(y(text), down) for text, _, down in self.seen["y"]])

    @staticmethod
    def _axis(ticks):
        if not ticks:  # planes may share an axis
            return None
        (low, start), (high, end) = ticks[0], ticks[-1]
        return lambda percent: low + (percent - start) / (end - start) * (high - low)

    def curve(self, kind):
        """The corners of the only curve with these classes; a gap in it leaves no point."""
        [path] = [path for kinds, path in self.seen["curves"] if kinds == f"mha-curve {kind}"]
        return self._corners(path)

    def curves(self, kind):
        """The corners of each curve that is drawn and has this class among others, in order."""
        return [self._corners(path) for kinds, path in self.seen["curves"] if path and kind in kinds.split()]

    def _corners(self, path):
        pairs = re.findall(r"[ML](\S+?) ([-\d.]+)", path)
        return [(self.x(float(x)), self.y(float(y))) for x, y in pairs]

    def handles(self):
        """The middles of the handles."""
        return [(self.x(x), self.y(y)) for x, y in self.seen["handles"]]

    def dots(self, kind):
        """The middles of the dots with these classes, and the width of each in pixels."""
        dots = [place for kinds, *place in self.seen["dots"] if kinds == f"mha-dots {kind}"]
        return [(self.x(x), self.y(y), width) for x, y, width in dots]
