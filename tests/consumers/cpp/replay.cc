// Loads a SavedModel, replays its warm-up file as TensorFlow Serving does, and
// then answers a trace of requests, as a server would.
//
//   replay MODEL ANSWERS SIZE...
//
// Each SIZE is a request to serving_default, which has one float input [SIZE, WIDTH]
// with, in row i and column j of request r, ((31 i + 17 j + 7 r) mod 101) / 50.5 - 1.
// All answers go to ANSWERS as raw float32. stdout has a line for each run:
//
//   warm-up SIGNATURE MICROSECONDS COMPILATIONS
//   request SIZE MICROSECONDS COMPILATIONS
//
// with the number of XLA compilations of the process so far. An error of TensorFlow
// ends it with status 1 and one line on stderr: its code and message.

#include <chrono>
#include <cstdint>
#include <cstdlib>
#include <fstream>
#include <iostream>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "tensorflow/cc/saved_model/loader.h"
#include "tensorflow/core/framework/tensor.h"
#include "tensorflow/core/framework/tensor.pb.h"
#include "tensorflow/core/lib/io/record_reader.h"
#include "tensorflow/core/lib/monitoring/collected_metrics.h"
#include "tensorflow/core/lib/monitoring/collection_registry.h"
#include "tensorflow/core/platform/env.h"
#include "tensorflow/core/protobuf/meta_graph.pb.h"
#include "tensorflow/core/public/session.h"
#include "tensorflow/core/public/session_options.h"
#include "common.h"

namespace {

constexpr char kWarmUpFile[] = "/assets.extra/tf_serving_warmup_requests";
constexpr char kCompilations[] = "/tensorflow/core/xla_compilations";

using Feeds = std::vector<std::pair<std::string, tensorflow::Tensor>>;

struct Request {
  std::string signature = kServingDefault;
  Feeds inputs;  // by the signature's names
};

int64_t Compilations() {
  namespace monitoring = tensorflow::monitoring;
  const auto metrics = monitoring::CollectionRegistry::Default()->CollectMetrics(
      monitoring::CollectionRegistry::CollectMetricsOptions());
  const auto found = metrics->point_set_map.find(kCompilations);
  int64_t count = 0;
  if (found == metrics->point_set_map.end()) return count;
  for (const auto& point : found->second->points) count += point->int64_value;
  return count;
}

// A protocol buffer's fields that hold bytes, read without its schema: the messages
// of TensorFlow Serving are not in the wheel.
class Message {
 public:
  explicit Message(std::string bytes) : bytes_(std::move(bytes)) {}

  // All values of a field; false if the bytes are no message.
  bool Find(uint64_t number, std::vector<std::string>* values) const {
    size_t at = 0;
    while (at < bytes_.size()) {
      uint64_t tag, size;
      if (!Varint(&at, &tag)) return false;
      const uint64_t kind = tag & 7;
      if (kind == 0) {
        if (!Varint(&at, &size)) return false;
        continue;
      }
      if (kind == 1) {
        size = 8;
      } else if (kind == 5) {
        size = 4;
      } else if (kind != 2 || !Varint(&at, &size)) {
        return false;
      }
      if (size > bytes_.size() - at) return false;
      if (kind == 2 && tag >> 3 == number) {
        values->push_back(bytes_.substr(at, size));
      }
      at += size;
    }
    return true;
  }

 private:
  bool Varint(size_t* at, uint64_t* value) const {
    *value = 0;
    for (int shift = 0; shift < 64 && *at < bytes_.size(); shift += 7) {
      const uint8_t byte = static_cast<uint8_t>(bytes_[(*at)++]);
      *value |= static_cast<uint64_t>(byte & 0x7f) << shift;
      if (byte < 0x80) return true;
    }
    return false;
  }

  std::string bytes_;
};

// The field's only value, or nothing where it is missing.
bool Only(const std::string& message, uint64_t number, std::string* value) {
  std::vector<std::string> values;
  if (!Message(message).Find(number, &values) || values.size() > 1) return false;
  *value = values.empty() ? "" : values[0];
  return true;
}

// From a tensorflow.serving.PredictionLog: predict_log (6), request (1), of which
// model_spec (1) has the signature_name (3), and inputs (2) is a map to TensorProto.
bool ParseLog(const std::string& log, Request* request) {
  std::string predict, message, spec, signature;
  std::vector<std::string> inputs;
  if (!Only(log, 6, &predict) || !Only(predict, 1, &message) ||
      !Only(message, 1, &spec) || !Only(spec, 3, &signature) ||
      !Message(message).Find(2, &inputs)) {
    return false;
  }
  if (!signature.empty()) request->signature = signature;
  for (const std::string& entry : inputs) {
    std::string name, value;
    tensorflow::TensorProto proto;
    tensorflow::Tensor tensor;
    if (!Only(entry, 1, &name) || !Only(entry, 2, &value) ||
        !proto.ParseFromString(value) || !tensor.FromProto(proto)) {
      return false;
    }
    request->inputs.emplace_back(name, tensor);
  }
  return true;
}

// The requests in the model's warm-up file; none where there is no such file.
bool ReadWarmUp(const std::string& path, std::vector<Request>* requests) {
  std::unique_ptr<tensorflow::RandomAccessFile> file;
  auto* env = tensorflow::Env::Default();
  if (!env->FileExists(path).ok()) return true;
  if (!env->NewRandomAccessFile(path, &file).ok()) return false;
  tensorflow::io::SequentialRecordReader reader(file.get());
  uint64_t size = 0;
  if (!env->GetFileSize(path, &size).ok()) return false;
  while (reader.TellOffset() < size) {
    tensorflow::tstring record;
    Request request;
    if (!reader.ReadRecord(&record).ok() ||
        !ParseLog(std::string(record.data(), record.size()), &request)) {
      return false;
    }
    requests->push_back(std::move(request));
  }
  return true;
}

class Server {
 public:
  explicit Server(const tensorflow::SavedModelBundle& bundle) : bundle_(bundle) {}

  // Runs a request, and prints how long that took.
  int Run(const Request& request, const std::string& title,
          std::vector<tensorflow::Tensor>* results) const {
    const auto& signatures = bundle_.GetSignatures();
    const auto found = signatures.find(request.signature);
    if (found == signatures.end()) {
      return Misuse("there is no signature " + request.signature);
    }
    Feeds feeds;
    for (const auto& input : request.inputs) {
      const auto& inputs = found->second.inputs();
      const auto tensor = inputs.find(input.first);
      if (tensor == inputs.end()) return Misuse("no input " + input.first);
      feeds.emplace_back(tensor->second.name(), input.second);
    }
    std::vector<std::string> fetches;
    for (const auto& output : found->second.outputs()) {
      fetches.push_back(output.second.name());
    }
    const auto start = std::chrono::steady_clock::now();
    const auto ran = bundle_.session->Run(feeds, fetches, {}, results);
    const std::chrono::duration<double, std::micro> time =
        std::chrono::steady_clock::now() - start;
    if (!ran.ok()) return Fail("run", ran);
    std::cout << title << " " << time.count() << " " << Compilations() << "\n";
    return 0;
  }

 private:
  const tensorflow::SavedModelBundle& bundle_;
};

tensorflow::Tensor Numbers(int64_t number, int64_t size, int64_t width) {
  tensorflow::Tensor tensor(tensorflow::DT_FLOAT,
                            tensorflow::TensorShape({size, width}));
  auto matrix = tensor.matrix<float>();
  for (int64_t i = 0; i < size; ++i) {
    for (int64_t j = 0; j < width; ++j) {
      matrix(i, j) = ((31 * i + 17 * j + 7 * number) % 101) / 50.5 - 1;
    }
  }
  return tensor;
}

}  // namespace

int main(int argc, char** argv) {
  if (argc < 3) return Misuse("usage: replay MODEL ANSWERS SIZE...");
  const std::string model = argv[1];
  std::ofstream answers(argv[2], std::ios::binary);
  if (!answers) return Misuse(std::string("cannot write ") + argv[2]);

  tensorflow::SavedModelBundle bundle;
  const auto loaded = tensorflow::LoadSavedModel(
      tensorflow::SessionOptions(), tensorflow::RunOptions(), model, {kServeTag},
      &bundle);
  if (!loaded.ok()) return Fail("load", loaded);
  const Server server(bundle);
  std::vector<tensorflow::Tensor> results;

  std::vector<Request> warm_up;
  if (!ReadWarmUp(model + kWarmUpFile, &warm_up)) {
    return Misuse("the warm-up file cannot be read");
  }
  for (const Request& request : warm_up) {
    const int status = server.Run(request, "warm-up " + request.signature, &results);
    if (status != 0) return status;
  }

  const auto found = bundle.GetSignatures().find(kServingDefault);
  if (found == bundle.GetSignatures().end() || found->second.inputs_size() != 1 ||
      found->second.outputs_size() != 1) {
    return Misuse("no serving_default with one input and one output");
  }
  const auto& input = *found->second.inputs().begin();
  const int64_t width = input.second.tensor_shape().dim(1).size();
  for (int i = 3; i < argc; ++i) {
    const int64_t size = std::atoll(argv[i]);
    Request request;
    request.inputs.emplace_back(input.first, Numbers(i - 3, size, width));
    const int status =
        server.Run(request, std::string("request ") + argv[i], &results);
    if (status != 0) return status;
    const tensorflow::Tensor& result = results.at(0);
    if (result.dtype() != tensorflow::DT_FLOAT || result.dim_size(0) != size) {
      return Misuse("not the output that was expected");
    }
    answers.write(reinterpret_cast<const char*>(result.flat<float>().data()),
                  result.NumElements() * sizeof(float));
  }
  answers.close();
  return answers ? 0 : Misuse("cannot write the answers");
}
