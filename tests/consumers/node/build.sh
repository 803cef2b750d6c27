# Builds the addon of node_modules/@tensorflow/tfjs-node against the TensorFlow of `python`.
set -eu
find='from importlib.util import find_spec as f; print(*f("tensorflow").submodule_search_locations)'
tensorflow=$(python -c "$find")
headers=$(node -p 'path.resolve(process.execPath, "../../include/node")')
cd node_modules/@tensorflow/tfjs-node
mkdir -p lib/napi-v8
g++ -O1 -std=c++17 -w -shared -fPIC -DNAPI_VERSION=8 "-I$headers" "-I$tensorflow/include" \
  binding/*.cc -o lib/napi-v8/tfjs_binding.node "-L$tensorflow" "-Wl,-rpath,$tensorflow" \
  -Wl,--no-as-needed -l:libtensorflow_cc.so.2 -l:libtensorflow_framework.so.2
