"""The entry of every py_test: runs the test file that it is given under pytest.

`bazel test --test_arg=-m --test_arg=slow //tests/...` runs the slow ones.
"""

import os
import sys

import pytest

if __name__ == "__main__":
    # Tests start further interpreters, which have to find what this one finds beside its own.
    own = (sys.prefix, sys.base_prefix)
    found = [path for path in sys.path[1:] if path and not path.startswith(own)]
    os.environ["PYTHONPATH"] = os.pathsep.join(found)
    status = pytest.main(["-p", "no:cacheprovider", *sys.argv[1:]])
    # A file all of whose tests are slow has none to run here, and that is no failure.
    sys.exit(0 if status == pytest.ExitCode.NO_TESTS_COLLECTED else status)
