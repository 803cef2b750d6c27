// Calls a SavedModel from many threads at once, each with one row at a time.
//
//   callers MODEL THREADS SECONDS SIZE...
//
// SIZE... are the sizes of the float32 input after the batch. It first calls the
// model with 1, 2, 4, 8 and 16 rows, so that everything is compiled. Each thread
// then sends one request after another. The seconds of each request go to stdout,
// one a line.

#include <atomic>
#include <chrono>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <string>
#include <thread>
#include <vector>

#include "tensorflow/cc/saved_model/loader.h"
#include "tensorflow/core/framework/tensor.h"
#include "tensorflow/core/public/session.h"
#include "tensorflow/core/public/session_options.h"
#include "common.h"

namespace {

using Clock = std::chrono::steady_clock;

tensorflow::Tensor Rows(int64_t rows, tensorflow::TensorShape shape) {
  shape.set_dim(0, rows);
  tensorflow::Tensor tensor(tensorflow::DT_FLOAT, shape);
  tensor.flat<float>().setConstant(0.01f);
  return tensor;
}

}  // namespace

int main(int argc, char** argv) {
  if (argc < 5) return Misuse("usage: callers MODEL THREADS SECONDS SIZE...");
  tensorflow::SavedModelBundle bundle;
  const auto loaded = tensorflow::LoadSavedModel(
      tensorflow::SessionOptions(), tensorflow::RunOptions(), argv[1],
      {kServeTag}, &bundle);
  if (!loaded.ok()) return Fail("load", loaded);
  const auto& signature = bundle.GetSignatures().at(kServingDefault);
  const std::string input = signature.inputs().begin()->second.name();
  const std::string output = signature.outputs().begin()->second.name();
  const int threads = std::atoi(argv[2]);
  const std::chrono::duration<double> seconds(std::atof(argv[3]));
  tensorflow::TensorShape shape({1});
  for (int i = 4; i < argc; ++i) shape.AddDim(std::atoll(argv[i]));
  for (const int64_t rows : {1, 2, 4, 8, 16}) {
    std::vector<tensorflow::Tensor> results;
    const auto ran =
        bundle.session->Run({{input, Rows(rows, shape)}}, {output}, {}, &results);
    if (!ran.ok()) return Fail("run", ran);
  }

  std::atomic<bool> failed{false};
  std::vector<std::vector<double>> times(threads);
  std::vector<std::thread> running;
  const auto end = Clock::now() + seconds;
  for (int k = 0; k < threads; ++k) {
    running.emplace_back([&, k] {
      const tensorflow::Tensor row = Rows(1, shape);
      while (Clock::now() < end) {
        std::vector<tensorflow::Tensor> results;
        const auto start = Clock::now();
        if (!bundle.session->Run({{input, row}}, {output}, {}, &results).ok()) {
          failed = true;
          return;
        }
        times[k].push_back(
            std::chrono::duration<double>(Clock::now() - start).count());
      }
    });
  }
  for (std::thread& thread : running) thread.join();
  if (failed) return Misuse("a request failed");
  for (const auto& own : times) {
    for (const double time : own) std::printf("%.9f\n", time);
  }
  return 0;
}
