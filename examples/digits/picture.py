"""Draws some digits with the answers of JAX and TensorFlow below them."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import numpy.typing as npt
from PIL import Image, ImageDraw, ImageFont

Floats = npt.NDArray[np.float32]

_COLUMNS, _ROWS = 6, 3
_DIGIT, _GAP, _TEXT, _MARGIN, _HEADER = 188, 34, 96, 44, 132
_PAPER, _INK, _FAINT = "#ffffff", "#1f2933", "#7b8794"
_JAX, _TENSORFLOW, _WRONG = "#5e35b1", "#e65100", "#c62828"


def draw(
    path: Path,
    images: Floats,
    labels: npt.NDArray[np.int32],
    jax_probabilities: Floats,
    tf_probabilities: Floats,
    title: str,
    subtitle: str,
) -> None:
    """Writes a PNG of the hardest images and some of the others.

    Args:
      path: the file to write.
      images: (n, 8, 8), with pixels from 0 to 16.
      labels: (n,), the true digits.
      jax_probabilities: (n, 10), the answers of JAX.
      tf_probabilities: (n, 10), the answers of TensorFlow.
      title: the title above the images.
      subtitle: a smaller line below the title.
    """
    chosen = _choose_images(jax_probabilities, labels)
    width = 2 * _MARGIN + _COLUMNS * _DIGIT + (_COLUMNS - 1) * _GAP
    height = _MARGIN + _HEADER + _ROWS * (_DIGIT + _TEXT) + (_ROWS - 1) * _GAP // 2 + _MARGIN // 2
    canvas = Image.new("RGB", (width, height), _PAPER)
    pen = ImageDraw.Draw(canvas)
    pen.text((_MARGIN, _MARGIN - 6), title, _INK, font=_load_font(38))
    pen.text((_MARGIN, _MARGIN + 48), subtitle, _FAINT, font=_load_font(23))
    for place, index in enumerate(chosen):
        row, column = divmod(place, _COLUMNS)
        x = _MARGIN + column * (_DIGIT + _GAP)
        y = _MARGIN + _HEADER + row * (_DIGIT + _TEXT + _GAP // 2)
        canvas.paste(_make_tile(images[index]), (x, y))
        pen.rectangle((x - 1, y - 1, x + _DIGIT, y + _DIGIT), outline="#cbd2d9")
        label = int(labels[index])
        _draw_answer(pen, (x, y + _DIGIT + 10), "JAX", _JAX, jax_probabilities[index], label)
        _draw_answer(
            pen, (x, y + _DIGIT + 42), "TensorFlow", _TENSORFLOW, tf_probabilities[index], label
        )
    canvas.save(path)


def _choose_images(probabilities: Floats, labels: npt.NDArray[np.int32]) -> list[int]:
    """Returns the indices of the hardest images, one row, and then of each digit in turn."""
    right = probabilities[np.arange(len(labels)), labels]
    hardest = [int(i) for i in np.argsort(right, kind="stable")[:_COLUMNS]]
    others = [i for i in range(len(labels)) if i not in hardest]
    by_digit = sorted(others, key=lambda i: (labels[: i + 1].tolist().count(labels[i]), labels[i]))
    return hardest + by_digit[: _COLUMNS * (_ROWS - 1)]


def _make_tile(image: Floats) -> Image.Image:
    """Enlarges an image, dark on light; smoothed, because 8x8 blocks hide the shape."""
    gray = (255 - image * (255 / 16)).clip(0, 255).astype(np.uint8)
    return Image.fromarray(gray).convert("RGB").resize((_DIGIT, _DIGIT), Image.Resampling.BICUBIC)


def _draw_answer(
    pen: ImageDraw.ImageDraw,
    place: tuple[int, int],
    who: str,
    color: str,
    probabilities: Floats,
    label: int,
) -> None:
    """Draws a line such as "JAX 7 99%", or in red with the true digit if the answer is wrong."""
    x, y = place
    digit = int(probabilities.argmax())
    wrong = digit != label
    pen.text((x, y + 5), who, color, font=_load_font(18))
    pen.text((x + 110, y), str(digit), _WRONG if wrong else _INK, font=_load_font(25))
    note = f"true: {label}" if wrong else f"{probabilities[digit]:.0%}"
    pen.text(
        (x + _DIGIT, y + 6), note, _WRONG if wrong else _FAINT, font=_load_font(17), anchor="ra"
    )


def _load_font(size: int) -> ImageFont.FreeTypeFont | ImageFont.ImageFont:
    return ImageFont.load_default(size)
