"""How a folder of tests becomes targets: its helpers are one library, each test file a test."""

load("@rules_python//python:defs.bzl", "py_library", "py_test")

_PURE = [
    "@pypi//hypothesis",
    "@pypi//numpy",
    "@pypi//pytest",
]

_THIRD_PARTIES = _PURE + [
    "@pypi//cloudpickle",
    "@pypi//flatbuffers",
    "@pypi//flax",
    "@pypi//jax",
    "@pypi//keras",
    "@pypi//ml_dtypes",
    "@pypi//msgpack",
    "@pypi//onnx",
    "@pypi//onnxruntime",
    "@pypi//optax",
    "@pypi//orbax_checkpoint",
    "@pypi//orbax_export",
    "@pypi//protobuf",
    "@pypi//safetensors",
    "@pypi//tensorflow",
]

def bridge_tests(deps = [], test_deps = [], data = [], tags = [], pure = False):
    """Declares the library and the tests of the folder whose BUILD calls it.

    Args:
      deps: what the helpers import beside third parties; the tests have it too.
      test_deps: what the tests alone import.
      data: the files outside of the folder that they read.
      tags: of each test. "manual" keeps a folder out of `bazel test //...`.
      pure: whether all of them do without JAX and TensorFlow.
    """
    third_parties = _PURE if pure else _THIRD_PARTIES
    helpers = []
    if native.package_name() != "tests":
        name = native.package_name().split("/")[-1]
        helpers = [":" + name]
        py_library(
            name = name,
            testonly = True,
            srcs = native.glob(["**/*.py"], exclude = ["test_*.py"]),
            # The archives that the tests read, and programs that they compile or run.
            data = native.glob(
                ["**/*.cc", "**/*.h", "**/*.exported", "**/*.js", "**/*.json", "**/*.sh"],
                allow_empty = True,
            ),
            visibility = ["//:__subpackages__"],
            deps = deps + third_parties,
        )
    for file in native.glob(["test_*.py"], allow_empty = True):
        path = native.package_name() + "/" + file
        py_test(
            name = file[:-len(".py")],
            srcs = [
                file,
                "//tests:run_under_bazel.py",
            ],
            args = [path],
            # pytest reads its settings there.
            data = data + ["//:pyproject.toml"],
            main = "//tests:run_under_bazel.py",
            tags = tags,
            deps = helpers + deps + test_deps + third_parties + ["//tests"],
        )
