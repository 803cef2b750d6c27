"""Fourier transforms and signals: of jax.numpy.fft, jax.lax, jax.scipy.fft and jax.scipy.signal."""

from __future__ import annotations

import jax.numpy as jnp
from jax import lax

from tests.primitives.arguments import normal
from tests.primitives.case import COMPLEX, Case, cases

_REAL = ("float32", "float64")

CASES: tuple[Case, ...] = (
    *cases(
        "jax.numpy.fft: fft ifft",
        normal(3, 8),
        call=lambda f, x: (f(x), f(x, 6, axis=0, norm="ortho")),
        dtypes=(*COMPLEX, "float32"),
    ),
    *cases("jax.numpy.fft: fft2 ifft2 fftn ifftn", normal(3, 4, 6), dtypes=COMPLEX),
    *cases(
        "jax.numpy.fft: rfft ihfft", normal(3, 8), call=lambda f, x: (f(x), f(x, 7)), dtypes=_REAL
    ),
    *cases("jax.numpy.fft: rfft2 rfftn", normal(3, 4, 6), dtypes=_REAL),
    *cases(
        "jax.numpy.fft: irfft hfft", normal(3, 5), call=lambda f, x: (f(x), f(x, 7)), dtypes=COMPLEX
    ),
    *cases("jax.numpy.fft: irfft2 irfftn", normal(3, 4, 5), dtypes=COMPLEX),
    *cases("jax.numpy.fft: fftshift ifftshift", normal(3, 5), dtypes=("float32", "complex64")),
    *cases("jax.numpy.fft: fftfreq rfftfreq", normal(), call=lambda f, x: f(7) * x),
    *cases(
        "jax.lax.fft",
        normal(3, 8),
        call=lambda f, x: [f(x, t, (8,)) for t in ("fft", "ifft")],
        dtypes=COMPLEX,
    ),
    *cases(
        "jax.lax.fft",
        normal(2, 3, 4, 5),
        label="three dimensions",
        call=lambda f, x: f(x, lax.FftType.FFT, (3, 4, 5)),
        dtypes=("complex64",),
    ),
    *cases(
        "jax.lax.fft",
        normal(3, 5),
        label="to real",
        call=lambda f, x: f(x, lax.FftType.IRFFT, (8,)),
        dtypes=("complex64",),
    ),
    *cases(
        "jax.scipy.fft: dct idct",
        normal(3, 8),
        call=lambda f, x: (f(x), f(x, norm="ortho")),
        dtypes=_REAL,
    ),
    *cases("jax.scipy.fft: dctn idctn", normal(3, 4, 6), dtypes=_REAL),
    *cases(
        "jax.scipy.signal: convolve correlate",
        normal(9),
        normal(4),
        call=lambda f, x, y: [f(x, y, mode=m) for m in ("full", "same", "valid")],
        dtypes=("float32", "complex64"),
        open_gradient_needs="b >= 2",
    ),
    *cases(
        "jax.scipy.signal: convolve correlate",
        normal(9),
        normal(4),
        label="fft",
        call=lambda f, x, y: f(x, y, method="fft"),
    ),
    *cases(
        "jax.scipy.signal: convolve2d correlate2d",
        normal(5, 6),
        normal(3, 2),
        open_gradient_needs="b >= 2",
        call=lambda f, x, y: [f(x, y, mode=m) for m in ("full", "same", "valid")],
    ),
    *cases("jax.scipy.signal.fftconvolve", normal(9), normal(4), dtypes=("float32", "complex64")),
    *cases("jax.scipy.signal.stft", normal(64), call=lambda f, x: f(x, nperseg=16), dtypes=_REAL),
    *cases(
        "jax.scipy.signal.istft",
        normal(9, 8),
        call=lambda f, z: f(z, nperseg=16),
        dtypes=("complex64",),
    ),
    *cases(
        "jax.scipy.signal.csd", normal(64), normal(64), call=lambda f, x, y: f(x, y, nperseg=16)
    ),
    *cases("jax.scipy.signal.welch", normal(64), call=lambda f, x: f(x, nperseg=16)),
    *cases(
        "jax.scipy.signal.detrend", normal(3, 16), call=lambda f, x: (f(x), f(x, type="constant"))
    ),
    *cases(
        "jax.numpy.convolve",
        normal(9),
        normal(4),
        open_gradient_needs="b >= 2",
        call=lambda f, x, y: jnp.abs(f(x, y)),
    ),
)
