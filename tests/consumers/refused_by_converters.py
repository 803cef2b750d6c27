"""Programs that a runtime does not take, or computes otherwise, by what comes of it."""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType

_NO_RULE = "No conversion rule found for operations: "

# It has no complex numbers outside its own pairs, no floats of 8 or 64 bits, and neither 64-bit
# integers nor unsigned ones of fewer than 32; an output that is a constant loses its name.
_OPENVINO = {
    "prng_symbolic": _NO_RULE + "Bitcast",
    "fft": "Conversion is failed for: Cast, FFT2D",
    "fft_symbolic": "Conversion is failed for: Cast, FFT, IFFT",
    "differentiable_loops": _NO_RULE + "StatelessCase",
    "interpolation": _NO_RULE + "Bitcast",
    "selections": _NO_RULE + "Bitcast",
    "float64": "differ",
    "small_integers": "differ",
    "large_integers": _NO_RULE + "PopulationCount",
    "fp8_inside": _NO_RULE + "Bitcast, LowerBound",
    "fp8_arguments": "cpu_convert can't convert from: f32 precision to: dynamic",
    "complex64": "Conversion is failed for: StatefulPartitionedCall",
    "complex128": "expected complex128[1, 4], got float32[1, 4]",
    "no_arguments": "KeyError: 'output_0'",
    "qr": _NO_RULE + "Qr",
    "eigh": _NO_RULE + "SelfAdjointEigV2",
    "cholesky": _NO_RULE + "Cholesky, MatrixDiagPartV3, SelfAdjointEigV2",
    "svd": _NO_RULE + "Svd",
    "lu_solve": _NO_RULE + "LogMatrixDeterminant, Lu, MatrixSetDiagV3, MatrixTriangularSolve",
    "triangular_solve": _NO_RULE + "MatrixSetDiagV3, MatrixTriangularSolve",
    "qr_batches": _NO_RULE + "Qr",
    "eigh_batches": _NO_RULE + "SelfAdjointEigV2",
    "cholesky_batches": _NO_RULE + "Cholesky, MatrixDiagPartV3, SelfAdjointEigV2",
    "svd_batches": _NO_RULE + "Svd",
    "solve_batches": _NO_RULE
    + "LogMatrixDeterminant, Lu, MatrixDiagPartV3, MatrixSetDiagV3, MatrixTriangularSolve",
    "triangular_solve_batches": _NO_RULE + "MatrixTriangularSolve",
    "determinants": _NO_RULE + "LogMatrixDeterminant, Lu",
    "inverse": _NO_RULE
    + "LogMatrixDeterminant, Lu, MatrixDiagPartV3, MatrixSetDiagV3, MatrixTriangularSolve",
    "pseudoinverse": "Scalars are not supported as MatMul inputs.",
    "least_squares": _NO_RULE + "Svd",
    "matrix_exponential": _NO_RULE
    + "Bitcast, LogMatrixDeterminant, Lu, MatrixSetDiagV3, MatrixTriangularSolve, StatelessCase",
    "matrix_rank": _NO_RULE + "Svd",
    "norms": _NO_RULE + "Svd",
    "cholesky_solve": _NO_RULE
    + "Cholesky, MatrixDiagPartV3, MatrixTriangularSolve, SelfAdjointEigV2",
    "complex_cholesky": "Conversion is failed for: StatefulPartitionedCall",
    "complex_eigh": "Conversion is failed for: PartitionedCall",
    "complex_solve": _NO_RULE + "Const of unknown type, MatrixSetDiagV3, MatrixTriangularSolve",
    "complex_qr_svd": "Conversion is failed for: PartitionedCall",
    "double_precision": _NO_RULE
    + "Cholesky, LogMatrixDeterminant, Lu, MatrixDiagPartV3, MatrixSetDiagV3",
    "double_precision_vectors": _NO_RULE + "SelfAdjointEigV2, Svd",
    "larger_matrices": _NO_RULE
    + "Cholesky, LogMatrixDeterminant, Lu, MatrixDiagPartV3, MatrixSetDiagV3",
}

REFUSED: Mapping[str, Mapping[str, str]] = MappingProxyType({"openvino": _OPENVINO})
"""What is in the outcome of each program that fails, by runtime and program."""
