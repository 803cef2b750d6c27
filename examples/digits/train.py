"""Trains the net on the handwritten digits of scikit-learn, with a progress bar."""

from __future__ import annotations

import sys
import time
from dataclasses import dataclass

import jax
import numpy as np
import numpy.typing as npt

from examples.digits import model

_HELD_OUT = 360
_BATCH = 64
_LEARNING_RATE = 2e-3
_BAR_WIDTH = 30


@dataclass(frozen=True)
class Digits:
    """Images of (n, 8, 8), float32 with pixels from 0 to 16, and their labels, int32."""

    images: npt.NDArray[np.float32]
    labels: npt.NDArray[np.int32]


def digits() -> tuple[Digits, Digits]:
    """Returns the training and the held-out images, shuffled with a fixed seed."""
    from sklearn.datasets import load_digits

    data = load_digits()
    order = np.random.default_rng(0).permutation(len(data.target))
    images = data.images[order].astype(np.float32)
    labels = data.target[order].astype(np.int32)
    return (
        Digits(images[_HELD_OUT:], labels[_HELD_OUT:]),
        Digits(images[:_HELD_OUT], labels[:_HELD_OUT]),
    )


def train(data: Digits, held_out: Digits, steps: int, seed: int = 0) -> model.Params:
    """Trains with Adam, and shows the progress; returns the weights."""
    params = model.init(jax.random.key(seed))
    adam = model.Adam.zero(params)
    rng = np.random.default_rng(seed)
    score = jax.jit(model.logits)
    progress = _Progress(steps)
    for step in range(1, steps + 1):
        batch = rng.choice(len(data.labels), _BATCH, replace=False)
        rate = _LEARNING_RATE * (1 + np.cos(np.pi * step / steps)) / 2
        params, adam, loss = model.train_step(
            params, adam, data.images[batch], data.labels[batch], rate
        )
        if progress.is_due(step):
            held_out_accuracy = accuracy(np.asarray(score(params, held_out.images)), held_out)
            progress.show(
                step, f"loss {float(loss):.4f}  held-out accuracy {held_out_accuracy:.1%}"
            )
    progress.end()
    return params


def accuracy(logits: npt.NDArray[np.float32], data: Digits) -> float:
    """Returns the fraction of images whose true digit has the highest score."""
    return float(np.mean(logits.argmax(axis=1) == data.labels))


class _Progress:
    """A progress bar on a terminal, or a few lines in a file."""

    def __init__(self, steps: int) -> None:
        self._steps, self._start = steps, time.monotonic()
        self._moves = sys.stdout.isatty()
        shown = 40 if self._moves else 6
        self._every = max(1, -(-steps // shown))

    def is_due(self, step: int) -> bool:
        return step % self._every == 0 or step == self._steps

    def show(self, step: int, text: str) -> None:
        filled = _BAR_WIDTH * step // self._steps
        bar = "█" * filled + "·" * (_BAR_WIDTH - filled) if self._moves else f"{step:>5}"
        seconds = time.monotonic() - self._start
        line = f"   {bar}  of {self._steps} steps  {text}  {seconds:4.1f} s"
        print(
            f"\r{line}\x1b[K" if self._moves else line, end="" if self._moves else "\n", flush=True
        )

    def end(self) -> None:
        if self._moves:
            print()
