"""Linear algebra: of jax.numpy.linalg."""

from __future__ import annotations

import jax.numpy as jnp

from tests.primitives.arguments import (
    fixed,
    indefinite,
    matrix,
    normal,
    singular_values_apart,
    symmetric,
)
from tests.primitives.case import Case, cases
from tests.primitives.putting_together import (
    LOOSE,
    NO_DERIVATIVE,
    of_eig,
    of_eigh,
    of_qr,
    of_svd,
    sums,
)

_TWO = ("float32", "complex64")

CASES: tuple[Case, ...] = (
    *cases(
        "jax.numpy.linalg.cholesky",
        symmetric(5),
        call=lambda f, a: (f(a), f(a, upper=True)),
        dtypes=_TWO,
    ),
    *cases(
        "jax.numpy.linalg.cond",
        matrix(4),
        call=lambda f, a: (f(a), f(a, 1), f(a, "fro")),
        tolerance=LOOSE,
    ),
    *cases("jax.numpy.linalg.cross", normal(4, 3), normal(4, 3), dtypes=_TWO),
    *cases("jax.numpy.linalg: det inv slogdet", matrix(5), tolerance=LOOSE),
    *cases(
        "jax.numpy.linalg.slogdet",
        matrix(4),
        call=lambda f, a: f(a, method="qr"),
        label="qr",
        tolerance=LOOSE,
    ),
    *cases("jax.numpy.linalg: diagonal trace matrix_transpose", normal(2, 4, 5), dtypes=_TWO),
    *cases(
        "jax.numpy.linalg.eig",
        normal(6, 6),
        call=of_eig,
        tolerance=LOOSE,
        no_gradient=NO_DERIVATIVE,
    ),
    *cases(
        "jax.numpy.linalg.eigvals",
        normal(6, 6),
        call=lambda f, a: sums(f(a)),
        tolerance=LOOSE,
    ),
    *cases("jax.numpy.linalg.eigh", indefinite(5), call=of_eigh, dtypes=_TWO, tolerance=LOOSE),
    *cases(
        "jax.numpy.linalg.eigh",
        indefinite(5),
        call=lambda f, a: of_eigh(f, a, UPLO="U"),
        label="upper",
        tolerance=LOOSE,
    ),
    *cases("jax.numpy.linalg.eigvalsh", indefinite(5), tolerance=LOOSE),
    *cases("jax.numpy.linalg.lstsq", normal(6, 3), normal(6, 2), tolerance=LOOSE),
    *cases("jax.numpy.linalg.matmul", normal(2, 3, 4), normal(4, 5)),
    *cases(
        "jax.numpy.linalg.matrix_norm",
        matrix(4),
        tolerance=LOOSE,
        call=lambda f, a: [f(a, ord=o) for o in ("fro", "nuc", 1, -1, 2, -2, jnp.inf)],
    ),
    *cases(
        "jax.numpy.linalg.matrix_power",
        matrix(4),
        tolerance=LOOSE,
        call=lambda f, a: (f(a, 3), f(a / 3, -2)),
    ),
    *cases("jax.numpy.linalg.matrix_rank", fixed([[1.0, 2, 3], [2, 4, 6], [0, 1, 1]])),
    *cases(
        "jax.numpy.linalg.multi_dot",
        normal(3, 4),
        normal(4, 5),
        normal(5, 2),
        call=lambda f, *xs: f(xs),
    ),
    *cases(
        "jax.numpy.linalg.norm",
        normal(3, 4),
        dtypes=_TWO,
        call=lambda f, a: (f(a), f(a, 1, axis=0), f(a, 3, axis=1)),
    ),
    *cases("jax.numpy.linalg.outer", normal(3), normal(4)),
    *cases("jax.numpy.linalg.pinv", singular_values_apart(5, 3), tolerance=LOOSE),
    *cases(
        "jax.numpy.linalg.pinv",
        indefinite(4),
        label="hermitian",
        tolerance=LOOSE,
        call=lambda f, a: f((a + a.T) / 2, hermitian=True),
    ),
    *cases("jax.numpy.linalg.qr", normal(6, 4), call=of_qr, tolerance=LOOSE),
    *cases("jax.numpy.linalg.solve", matrix(5), normal(5, 2), dtypes=_TWO, tolerance=LOOSE),
    *cases("jax.numpy.linalg.solve", matrix(80), normal(80), label="larger", tolerance=LOOSE),
    *cases(
        "jax.numpy.linalg.svd",
        singular_values_apart(4, 5),
        tolerance=LOOSE,
        call=lambda f, a: of_svd(f, a, full_matrices=False),
    ),
    *cases(
        "jax.numpy.linalg.svd",
        indefinite(4),
        label="hermitian",
        tolerance=LOOSE,
        call=lambda f, a: of_svd(f, (a + a.T) / 2, hermitian=True),
    ),
    *cases("jax.numpy.linalg.svdvals", singular_values_apart(4, 5), tolerance=LOOSE),
    *cases("jax.numpy.linalg: tensordot", normal(2, 3, 4), normal(3, 4, 5)),
    *cases(
        "jax.numpy.linalg.tensorinv",
        matrix(6),
        tolerance=LOOSE,
        call=lambda f, a: f(a.reshape(6, 2, 3), ind=1),
    ),
    *cases(
        "jax.numpy.linalg.tensorsolve",
        matrix(6),
        normal(2, 3),
        tolerance=LOOSE,
        call=lambda f, a, b: f(a.reshape(2, 3, 6), b),
    ),
    *cases("jax.numpy.linalg.vecdot", normal(3, 4), normal(3, 4), dtypes=_TWO),
    *cases(
        "jax.numpy.linalg.vector_norm", normal(3, 4), call=lambda f, a: (f(a), f(a, ord=3, axis=1))
    ),
)
