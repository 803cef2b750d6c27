"""Load tests: a model in TensorFlow Serving, called from many callers."""

from jax2tf_bridge.serve_checking.load._measure import DEFAULT_CALLERS as DEFAULT_CALLERS
from jax2tf_bridge.serve_checking.load._measure import DEFAULT_SECONDS as DEFAULT_SECONDS
from jax2tf_bridge.serve_checking.load._measure import LoadOptions as LoadOptions
from jax2tf_bridge.serve_checking.load._measure import measure_load as measure_load
from jax2tf_bridge.serve_checking.load._measure import run_measure_load as run_measure_load
from jax2tf_bridge.serve_checking.load._report import BucketLoad as BucketLoad
from jax2tf_bridge.serve_checking.load._report import LoadReport as LoadReport
from jax2tf_bridge.serve_checking.load._requests import MAX_SIZES as MAX_SIZES
from jax2tf_bridge.serve_checking.load._servers import SERVER_VARIABLE as SERVER_VARIABLE
from jax2tf_bridge.serve_checking.load._servers import BatchCount as BatchCount
from jax2tf_bridge.serve_checking.load._servers import ServerCommand as ServerCommand
from jax2tf_bridge.serve_checking.load._servers import find_free_ports as find_free_ports
from jax2tf_bridge.serve_checking.load._servers import find_server as find_server
from jax2tf_bridge.serve_checking.load._servers import start_server as start_server
