// Serves a SavedModel with one float input and one float output from C++.
//
//   serve MODEL INPUT OUTPUT WIDTH BATCH...
//
// INPUT is a raw file of float32 numbers, of which each BATCH takes the first
// BATCH * WIDTH as its [BATCH, WIDTH] input. THREADSxBATCH in place of BATCH calls
// the model from several threads at once, each with the next BATCH rows. All answers
// go to OUTPUT, one after another, as raw float32. The shapes go to stdout, one line
// a call. An error of TensorFlow ends it with status 1 and one line on stderr: its
// code and message.

#include <algorithm>
#include <cstdint>
#include <cstdlib>
#include <fstream>
#include <iostream>
#include <iterator>
#include <string>
#include <thread>
#include <vector>

#include "tensorflow/cc/saved_model/loader.h"
#include "tensorflow/core/framework/tensor.h"
#include "tensorflow/core/protobuf/meta_graph.pb.h"
#include "tensorflow/core/public/session.h"
#include "tensorflow/core/public/session_options.h"
#include "common.h"

namespace {

struct Endpoints {
  std::string input;
  std::string output;
};

bool ReadFloats(const std::string& path, std::vector<float>* numbers) {
  std::ifstream file(path, std::ios::binary);
  if (!file) return false;
  const std::vector<char> bytes((std::istreambuf_iterator<char>(file)),
                                std::istreambuf_iterator<char>());
  numbers->resize(bytes.size() / sizeof(float));
  std::copy(bytes.begin(), bytes.begin() + numbers->size() * sizeof(float),
            reinterpret_cast<char*>(numbers->data()));
  return true;
}

bool FindEndpoints(const tensorflow::SavedModelBundle& bundle,
                   Endpoints* endpoints) {
  const auto& signatures = bundle.GetSignatures();
  const auto found = signatures.find(kServingDefault);
  if (found == signatures.end()) return false;
  const auto& signature = found->second;
  if (signature.inputs_size() != 1 || signature.outputs_size() != 1) {
    return false;
  }
  endpoints->input = signature.inputs().begin()->second.name();
  endpoints->output = signature.outputs().begin()->second.name();
  return true;
}

tensorflow::Tensor Batch(const std::vector<float>& numbers, int64_t first,
                         int64_t batch, int64_t width) {
  tensorflow::Tensor tensor(tensorflow::DT_FLOAT,
                            tensorflow::TensorShape({batch, width}));
  std::copy(numbers.begin() + first * width,
            numbers.begin() + (first + batch) * width,
            tensor.flat<float>().data());
  return tensor;
}

}  // namespace

int main(int argc, char** argv) {
  if (argc < 6) return Misuse("usage: serve MODEL INPUT OUTPUT WIDTH BATCH...");
  std::vector<float> numbers;
  if (!ReadFloats(argv[2], &numbers)) {
    return Misuse(std::string("cannot read ") + argv[2]);
  }
  std::ofstream answers(argv[3], std::ios::binary);
  if (!answers) return Misuse(std::string("cannot write ") + argv[3]);

  tensorflow::SavedModelBundle bundle;
  const auto loaded = tensorflow::LoadSavedModel(
      tensorflow::SessionOptions(), tensorflow::RunOptions(), argv[1],
      {kServeTag}, &bundle);
  if (!loaded.ok()) return Fail("load", loaded);
  Endpoints endpoints;
  if (!FindEndpoints(bundle, &endpoints)) {
    return Misuse("no serving_default with one input and one output");
  }

  const int64_t width = std::atoll(argv[4]);
  for (int i = 5; i < argc; ++i) {
    const std::string call = argv[i];
    const size_t x = call.find('x');
    const int threads =
        x == std::string::npos ? 1 : std::atoi(call.substr(0, x).c_str());
    const int64_t batch =
        std::atoll(call.substr(x == std::string::npos ? 0 : x + 1).c_str());
    if (threads * batch * width > static_cast<int64_t>(numbers.size())) {
      return Misuse(std::string("too few numbers for a batch of ") + call);
    }
    std::vector<std::vector<tensorflow::Tensor>> results(threads);
    std::vector<tensorflow::Status> statuses(threads);
    std::vector<std::thread> running;
    for (int k = 0; k < threads; ++k) {
      running.emplace_back([&, k] {
        statuses[k] = bundle.session->Run(
            {{endpoints.input, Batch(numbers, k * batch, batch, width)}},
            {endpoints.output}, {}, &results[k]);
      });
    }
    for (std::thread& thread : running) thread.join();
    for (int k = 0; k < threads; ++k) {
      if (!statuses[k].ok()) return Fail("run", statuses[k]);
      const tensorflow::Tensor& result = results[k].at(0);
      if (result.dtype() != tensorflow::DT_FLOAT) {
        return Misuse("the output is not of float32");
      }
      std::cout << "batch " << batch << ": " << result.shape().DebugString()
                << std::endl;
      answers.write(reinterpret_cast<const char*>(result.flat<float>().data()),
                    result.NumElements() * sizeof(float));
    }
  }
  answers.close();
  return answers ? 0 : Misuse("cannot write the answers");
}
