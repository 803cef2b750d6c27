"""Recipe of the files in tests/archives/lapack: run it under each release of JAX.

It needs JAX and flatbuffers alone, on the CPU:

    pip install 'jax[cpu]==0.4.30' 'numpy<2' absl-py flatbuffers
    python write_lapack_archives.py lapack [PROGRAM ...]

For each program it writes what `Exported.serialize` gives, and beside it, as JSON, arguments with
what this JAX computes for them. A program takes a matrix of each of LAPACK's four types.
"""

from __future__ import annotations

import importlib.metadata
import json
import platform
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import jax.scipy.linalg as jsl
import numpy as np
from jax import export, lax

RELEASE = tuple(int(p) for p in jax.__version__.split(".")[:3])
DTYPES = (np.float32, np.float64, np.complex64, np.complex128)
TWO = (np.float32, np.complex128)
LETTERS = "sdcz"
# JAX promises nothing of them, and writes them if it is told to.
UNSTABLE = (
    *("gehrd", "sytrd", "hetrd", "geqp3_ffi", "gesvd_ffi", "gtsv_ffi", "ormqr_ffi", "unmqr_ffi"),
)


@dataclass(frozen=True)
class Program:
    """A function that is archived.

    Attributes:
      function: of one matrix, to arrays; the archive holds it for each of the dtypes.
      shapes: one for each call.
      polymorphic: the shape as the archive has it, if sizes are open.
      first: the first release that can write it.
      dtypes: of the matrices.
      differentiable: whether the archive holds the VJP as well.
    """

    function: Callable[[Any], Any]
    shapes: Sequence[tuple[int, ...]]
    polymorphic: str | None = None
    first: tuple[int, ...] = (0, 4, 30)
    dtypes: Sequence[Any] = DTYPES
    differentiable: bool = False


def eigenvalues(a: Any) -> Any:
    values, left, right = lax.linalg.eig(a)
    only = lax.linalg.eig(a, compute_left_eigenvectors=False, compute_right_eigenvectors=True)
    return values, left, right, only, jnp.linalg.eigvals(a)


def eigenvalues_alone(a: Any) -> Any:
    return jnp.linalg.eigvals(a)


def schur(a: Any) -> Any:
    return lax.linalg.schur(a), lax.linalg.schur(a, compute_schur_vectors=False)


def hessenberg(a: Any) -> Any:
    return lax.linalg.hessenberg(a), jsl.hessenberg(a, calc_q=True)


def tridiagonal(a: Any) -> Any:
    return lax.linalg.tridiagonal(a, lower=True), lax.linalg.tridiagonal(a, lower=False)


def cholesky(a: Any) -> Any:
    return lax.linalg.cholesky(positive(a))


def lu(a: Any) -> Any:
    return lax.linalg.lu(a)


def qr(a: Any) -> Any:
    return jnp.linalg.qr(a), jnp.linalg.qr(a, mode="complete")


def singular_values(a: Any) -> Any:
    """With the singular vectors put together, since their signs are free."""
    u, s, vh = jnp.linalg.svd(a, full_matrices=False)
    full = jnp.linalg.svd(jnp.swapaxes(a, -1, -2), full_matrices=True)
    return u @ (s[..., None] * vh), adjoint(full[2]) @ full[2], jnp.linalg.svd(a, compute_uv=False)


def hermitian_eigenvalues(a: Any) -> Any:
    """With the eigenvectors put together, since their signs are free."""
    found = []
    for lower in (True, False):
        vectors, values = lax.linalg.eigh(a, lower=lower, symmetrize_input=False)
        found += [values, (vectors * values[..., None, :].astype(a.dtype)) @ adjoint(vectors)]
    return found


def triangular_solve(a: Any) -> Any:
    b = jnp.ones_like(a[..., :2])
    return [
        lax.linalg.triangular_solve(
            a,
            b if left else jnp.swapaxes(b, -1, -2),
            left_side=left,
            lower=lower,
            transpose_a=transposed,
            conjugate_a=transposed,
            unit_diagonal=unit,
        )
        for left, lower, transposed, unit in (
            (True, True, False, False),
            (True, False, True, True),
            (False, True, True, False),
            (False, False, False, True),
        )
    ]


def pivoted_qr(a: Any) -> Any:
    return jsl.qr(a, pivoting=True)


def times_q(a: Any) -> Any:
    packed, taus = jnp.linalg.qr(a, mode="raw")
    packed, b = jnp.swapaxes(packed, -1, -2), a[..., :2]
    return [
        lax.linalg.ormqr(packed, taus, b if left else adjoint(b), left=left, transpose=transpose)
        for left in (True, False)
        for transpose in (True, False)
    ]


def tridiagonal_solve(a: Any) -> Any:
    zero = jnp.zeros_like(a[..., :1, 0])
    beside = a[..., 1:, 0]
    return lax.linalg.tridiagonal_solve(
        jnp.concatenate([zero, beside], -1),
        jnp.abs(a[..., 1]).astype(a.dtype) + 4,
        jnp.concatenate([beside, zero], -1),
        a,
    )


def singular_values_by_qr(a: Any) -> Any:
    u, s, vh = lax.linalg.svd(a, full_matrices=False, algorithm=lax.linalg.SvdAlgorithm.QR)
    return s, u @ (s[..., None] * vh)


def positive(a: Any) -> Any:
    return a @ adjoint(a) + jnp.eye(a.shape[-1], dtype=a.dtype)


def adjoint(a: Any) -> Any:
    return jnp.swapaxes(a, -1, -2).conj()


PROGRAMS = {
    "eig": Program(eigenvalues, [(2, 4, 4)]),
    "eig_open": Program(eigenvalues, [(2, 3, 3), (1, 5, 5)], "b, n, n", dtypes=TWO),
    "eigvals": Program(eigenvalues_alone, [(3, 3)], dtypes=TWO, differentiable=True),
    "schur": Program(schur, [(2, 4, 4)]),
    "schur_open": Program(schur, [(2, 3, 3), (1, 5, 5)], "b, n, n", dtypes=TWO),
    "hessenberg": Program(hessenberg, [(2, 4, 4)]),
    "hessenberg_open": Program(hessenberg, [(2, 3, 3)], "b, 3, 3", dtypes=TWO),
    "tridiagonal": Program(tridiagonal, [(2, 4, 4)]),
    "tridiagonal_open": Program(tridiagonal, [(2, 3, 3)], "b, 3, 3", dtypes=TWO),
    "cholesky": Program(cholesky, [(2, 3, 3)]),
    "lu": Program(lu, [(2, 4, 3)]),
    "qr": Program(qr, [(2, 4, 3)]),
    "svd": Program(singular_values, [(2, 4, 3)]),
    "eigh": Program(hermitian_eigenvalues, [(2, 4, 4)]),
    "triangular_solve": Program(triangular_solve, [(3, 3)]),
    "pivoted_qr": Program(pivoted_qr, [(4, 3)], first=(0, 5, 0)),
    "tridiagonal_solve": Program(tridiagonal_solve, [(4, 3)], first=(0, 5, 0)),
    "svd_by_qr": Program(singular_values_by_qr, [(4, 3)], first=(0, 5, 3)),
    "times_q": Program(times_q, [(2, 4, 3)], first=(0, 10, 0)),
}


def write(name: str, folder: Path) -> None:
    """Writes the two files of a program."""
    program = PROGRAMS[name]

    def function(*matrices: Any) -> Any:
        # As a list, since the oldest archives hold no named tuples.
        return jax.tree_util.tree_leaves([program.function(a) for a in matrices])

    calls = [arguments(program, shape) for shape in program.shapes]
    shape: Any = program.shapes[0]
    if program.polymorphic is not None:
        shape = export.symbolic_shape(program.polymorphic)
    checks = [
        export.DisabledSafetyCheck.custom_call(f"lapack_{letter}{routine}")
        for letter in LETTERS
        for routine in UNSTABLE
    ]
    exported = export.export(jax.jit(function), platforms=["cpu"], disabled_checks=checks)(
        *(jax.ShapeDtypeStruct(shape, dtype) for dtype in program.dtypes)
    )
    order = int(program.differentiable)
    facts = {
        "recipe": f"python write_lapack_archives.py lapack {name}",
        "versions": {
            "jax": jax.__version__,
            "jaxlib": importlib.metadata.version("jaxlib"),
            "numpy": np.__version__,
            "python": platform.python_version(),
        },
        "calls": [answers(function, call, program.differentiable) for call in calls],
    }
    folder.mkdir(parents=True, exist_ok=True)
    (folder / f"{name}.exported").write_bytes(exported.serialize(vjp_order=order))
    (folder / f"{name}.json").write_text(json.dumps(facts) + "\n")


def arguments(program: Program, shape: tuple[int, ...]) -> list[Any]:
    """Matrices without structure, well conditioned."""
    found = []
    for i, dtype in enumerate(program.dtypes):
        rng = np.random.default_rng([7, i])
        a = rng.uniform(-1, 1, shape)
        if np.issubdtype(dtype, np.complexfloating):
            a = a + 1j * rng.uniform(-1, 1, shape)
        # Few digits, so that the file is small.
        found.append((np.round(a * 64) / 64 + 2 * np.eye(shape[-2], shape[-1])).astype(dtype))
    return found


def answers(function: Any, call: Sequence[Any], differentiable: bool) -> dict[str, Any]:
    """Returns the arguments and results of a call, and what ones as cotangents give."""
    found = {"inputs": call, "results": jax.jit(function)(*call), "gradients": []}
    if differentiable:
        results, pull_back = jax.vjp(function, *call)
        found["gradients"] = pull_back([jnp.ones_like(r) for r in results])
    return {name: [listed(a) for a in arrays] for name, arrays in found.items()}


def listed(array: Any) -> dict[str, Any]:
    """Lists the array with as many digits as its type has; complex numbers as pairs."""
    array = np.asarray(array)
    values = np.stack([array.real, array.imag], -1) if np.iscomplexobj(array) else array
    numbers = [float(str(v)) if values.dtype.kind == "f" else int(v) for v in values.ravel()]
    return {"dtype": array.dtype.name, "shape": array.shape, "values": numbers}


def main(folder: str, *names: str) -> None:
    """Writes the files of this release of JAX into a folder of its own."""
    # Modules otherwise hold the paths of the files that they were traced from.
    jax.config.update("jax_traceback_in_locations_limit", 0)
    jax.config.update("jax_hlo_source_file_canonicalization_regex", ".*/")
    jax.config.update("jax_enable_x64", True)
    for name in names or [name for name, p in PROGRAMS.items() if p.first <= RELEASE]:
        write(name, Path(folder) / jax.__version__)
        print(jax.__version__, name)


if __name__ == "__main__":
    main(*sys.argv[1:])
