// Loads a SavedModel and answers requests to serving_default, of any dtypes.
//
//   answer MODEL REQUESTS ANSWERS
//
// Both files are TFRecords of NamedTensorProto: the tensors of a request, or of an
// answer, by the signature's names, and then one without a name. An error of
// TensorFlow ends it with status 1 and one line on stderr: its code and message.

#include <cstdint>
#include <iostream>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "tensorflow/cc/saved_model/loader.h"
#include "tensorflow/core/framework/tensor.h"
#include "tensorflow/core/lib/io/record_reader.h"
#include "tensorflow/core/lib/io/record_writer.h"
#include "tensorflow/core/platform/env.h"
#include "tensorflow/core/protobuf/meta_graph.pb.h"
#include "tensorflow/core/protobuf/named_tensor.pb.h"
#include "tensorflow/core/public/session.h"
#include "tensorflow/core/public/session_options.h"
#include "common.h"

int main(int argc, char** argv) {
  if (argc != 4) return Misuse("usage: answer MODEL REQUESTS ANSWERS");
  tensorflow::SavedModelBundle bundle;
  const auto loaded = tensorflow::LoadSavedModel(
      tensorflow::SessionOptions(), tensorflow::RunOptions(), argv[1], {kServeTag},
      &bundle);
  if (!loaded.ok()) return Fail("load", loaded);
  const auto found = bundle.GetSignatures().find(kServingDefault);
  if (found == bundle.GetSignatures().end()) return Misuse("no serving_default");
  std::vector<std::string> names, fetches;
  for (const auto& output : found->second.outputs()) {
    names.push_back(output.first);
    fetches.push_back(output.second.name());
  }

  auto* env = tensorflow::Env::Default();
  std::unique_ptr<tensorflow::RandomAccessFile> requests;
  std::unique_ptr<tensorflow::WritableFile> answers;
  uint64_t size = 0;
  if (!env->NewRandomAccessFile(argv[2], &requests).ok() ||
      !env->GetFileSize(argv[2], &size).ok() ||
      !env->NewWritableFile(argv[3], &answers).ok()) {
    return Misuse("the files of requests and answers cannot be opened");
  }
  tensorflow::io::SequentialRecordReader reader(requests.get());
  tensorflow::io::RecordWriter writer(answers.get());
  std::vector<std::pair<std::string, tensorflow::Tensor>> feeds;
  while (reader.TellOffset() < size) {
    tensorflow::tstring record;
    tensorflow::NamedTensorProto named;
    if (!reader.ReadRecord(&record).ok() ||
        !named.ParseFromArray(record.data(), record.size())) {
      return Misuse("a request cannot be read");
    }
    if (!named.name().empty()) {
      const auto input = found->second.inputs().find(named.name());
      tensorflow::Tensor tensor;
      if (input == found->second.inputs().end()) {
        return Misuse("no input " + named.name());
      }
      if (!tensor.FromProto(named.tensor())) return Misuse("not a tensor");
      feeds.emplace_back(input->second.name(), tensor);
      continue;
    }
    std::vector<tensorflow::Tensor> results;
    const auto ran = bundle.session->Run(feeds, fetches, {}, &results);
    if (!ran.ok()) return Fail("run", ran);
    feeds.clear();
    for (size_t i = 0; i <= results.size(); ++i) {
      tensorflow::NamedTensorProto answer;
      if (i < results.size()) {
        answer.set_name(names[i]);
        results[i].AsProtoTensorContent(answer.mutable_tensor());
      }
      if (!writer.WriteRecord(answer.SerializeAsString()).ok()) {
        return Misuse("an answer cannot be written");
      }
    }
  }
  return writer.Close().ok() && answers->Close().ok() ? 0 : Misuse("no answers");
}
