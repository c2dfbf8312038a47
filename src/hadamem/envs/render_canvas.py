"""Drawing on numpy arrays with nothing but numpy: rectangles, lines, discs, a small font, and the suits of cards."""

from __future__ import annotations

from functools import lru_cache

import numpy as np

Colour = tuple[int, int, int]

PAPER: Colour = (246, 244, 238)
INK: Colour = (52, 54, 60)
FAINT: Colour = (164, 164, 160)
RED: Colour = (196, 40, 40)
BLACK: Colour = (32, 34, 40)
GOLD: Colour = (240, 180, 40)
WHITE: Colour = (255, 255, 255)

# Letters of 5 x 7 dots: a digit to the base 32 for each row.
FONT = {
    "A": "EHHVHHH", "B": "UHHUHHU", "C": "EHGGGHE", "D": "UHHHHHU", "E": "VGGUGGV", "F": "VGGUGGG", "G": "EHGNHHF", "H": "HHHVHHH",
    "I": "E44444E", "J": "72222IC", "K": "HIKOKIH", "L": "GGGGGGV", "M": "HRLLHHH", "N": "HHPLJHH", "O": "EHHHHHE", "P": "UHHUGGG",
    "Q": "EHHHLID", "R": "UHHUKIH", "S": "FGGE11U", "T": "V444444", "U": "HHHHHHE", "V": "HHHHHA4", "W": "HHHLLLA", "X": "HHA4AHH",
    "Y": "HHA4444", "Z": "V1248GV", "0": "EHJLPHE", "1": "4C4444E", "2": "EH1248V", "3": "V2421HE", "4": "26AIV22", "5": "VGU11HE",
    "6": "68GUHHE", "7": "V124888", "8": "EHHEHHE", "9": "EHHF12C", " ": "0000000", ".": "00000CC", ",": "0000C48", ":": "0CC0CC0",
    "-": "000V000", "+": "044V440", "/": "01248G0", "(": "2488842", ")": "8422248", "=": "00V0V00", "?": "EH12404", "!": "4444404",
    "'": "4480000", "[": "E88888E", "]": "E22222E", "<": "248G842", ">": "G84248G", "%": "PP248JJ", "*": "04LEL40", "_": "000000V",
    "#": "AAVAVAA", "|": "4444444", "±": "044V40V", "@": "EHNLNGE", "■": "VVVVVVV", "·": "0000400", ";": "0CC0C48", "°": "6960000",
    "^": "4AH0000",
}
SYMBOLS = {
    "♠": "....#....|...###...|..#####..|.#######.|#########|#########|.##.#.##.|....#....|...###...",
    "♥": ".##...##.|####.####|#########|#########|#########|.#######.|..#####..|...###...|....#....",
    "♦": "....#....|...###...|..#####..|.#######.|#########|.#######.|..#####..|...###...|....#....",
    "♣": "...###...|..#####..|..#####..|.#.###.#.|#########|#########|.##.#.##.|....#....|...###...",
    "●": "..#####..|.#######.|#########|#########|#########|#########|#########|.#######.|..#####..",
}


def blank(width: int, height: int, colour: Colour = PAPER) -> np.ndarray:
    """[height, width, 3] uint8."""
    return np.full((height, width, 3), colour, dtype=np.uint8)


def fill(canvas: np.ndarray, x: int, y: int, width: int, height: int, colour: Colour) -> None:
    canvas[max(y, 0):max(y + height, 0), max(x, 0):max(x + width, 0)] = colour


def frame(canvas: np.ndarray, x: int, y: int, width: int, height: int, colour: Colour, thick: int = 1) -> None:
    for side in ((x, y, width, thick), (x, y + height - thick, width, thick), (x, y, thick, height), (x + width - thick, y, thick, height)):
        fill(canvas, *side, colour)


def line(canvas: np.ndarray, x0: float, y0: float, x1: float, y1: float, colour: Colour, thick: float = 1.0) -> None:
    """A straight line with round ends."""
    reach = thick / 2 + 1
    left, top = max(0, int(min(x0, x1) - reach)), max(0, int(min(y0, y1) - reach))
    part = canvas[top:max(0, int(max(y0, y1) + reach) + 1), left:max(0, int(max(x0, x1) + reach) + 1)]
    ys, xs = np.mgrid[top:top + part.shape[0], left:left + part.shape[1]]
    dx, dy = x1 - x0, y1 - y0
    along = np.clip(((xs - x0) * dx + (ys - y0) * dy) / max(dx * dx + dy * dy, 1e-9), 0, 1)
    part[(xs - x0 - along * dx) ** 2 + (ys - y0 - along * dy) ** 2 <= (thick / 2) ** 2] = colour


def disc(canvas: np.ndarray, x: float, y: float, radius: float, colour: Colour) -> None:
    line(canvas, x, y, x, y, colour, 2 * radius)


@lru_cache(maxsize=256)
def glyph(char: str) -> np.ndarray:
    """The dots of a character, [7, 5] or for a symbol [9, 9] bool; letters are capitals, unknown ones a box."""
    if char in SYMBOLS:
        return np.array([[dot == "#" for dot in row] for row in SYMBOLS[char].split("|")])
    rows = FONT.get(char.upper(), "VHHHHHV")
    return np.array([[int(row, 32) >> (4 - i) & 1 for i in range(5)] for row in rows], dtype=bool)


def text_size(text: str, scale: int = 2) -> tuple[int, int]:
    """Width and height in pixels."""
    widths = [glyph(char).shape[1] + 1 for char in text]
    return max(scale * (sum(widths) - 1), 0), scale * (9 if any(char in SYMBOLS for char in text) else 7)


def write(canvas: np.ndarray, x: int, y: int, text: str, colour: Colour = INK, scale: int = 2) -> None:
    """Text with its upper left corner at x, y; what does not fit is cut off."""
    height = text_size(text, scale)[1]
    for char in text:
        dots = np.kron(glyph(char), np.ones((scale, scale), dtype=bool))
        top = y + height - dots.shape[0]                                  # all stand on one line
        part = canvas[max(top, 0):top + dots.shape[0], max(x, 0):x + dots.shape[1]]
        part[dots[:part.shape[0], :part.shape[1]]] = colour
        x += dots.shape[1] + scale


def shrink(canvas: np.ndarray, factor: int) -> np.ndarray:
    """The mean of every factor x factor pixels: smooth edges for what was drawn too large."""
    height, width, _ = canvas.shape
    cells = canvas.reshape(height // factor, factor, width // factor, factor, 3)
    return np.round(cells.mean(axis=(1, 3))).astype(np.uint8)


def stack(parts: list[np.ndarray], widths: list[int], gap: int = 10, margin: int = 14) -> np.ndarray:
    """Pictures one below the other on a sheet that is as wide as `widths` ask for. Sides are multiples of 16, which videos like."""
    width = max(widths) + 2 * margin
    height = sum(part.shape[0] for part in parts) + gap * (len(parts) - 1) + 2 * margin
    sheet = blank(-(-width // 16) * 16, -(-height // 16) * 16)
    y = margin
    for part in parts:
        part = part[:, :sheet.shape[1] - margin]
        sheet[y:y + part.shape[0], margin:margin + part.shape[1]] = part
        y += part.shape[0] + gap
    return sheet
