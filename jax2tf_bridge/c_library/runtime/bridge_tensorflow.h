// The base class of the classes that tfcompile generates. It only stores the facts that they pass
// to it; bridge_program.h runs them, with buffers of its own.
#ifndef JAX2TF_BRIDGE_TENSORFLOW_H_
#define JAX2TF_BRIDGE_TENSORFLOW_H_

#include <array>
#include <complex>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "bridge_abseil.h"

namespace Eigen {
class ThreadPoolDevice;
struct half;
struct bfloat16;
}  // namespace Eigen

namespace xla {

class ProgramShapeProto;
class HloProfilePrinterData;
using complex64 = std::complex<float>;
using complex128 = std::complex<double>;
using half = Eigen::half;
using bfloat16 = Eigen::bfloat16;

class ExecutableRunOptions {
 public:
  const Eigen::ThreadPoolDevice* intra_op_thread_pool() const { return pool_; }
  void set_intra_op_thread_pool(const Eigen::ThreadPoolDevice* pool) { pool_ = pool; }

 private:
  const Eigen::ThreadPoolDevice* pool_ = nullptr;
};

namespace cpu {

class CompilationResultProto;
class RngState;

// A buffer of a program, as XLA encodes it: the two lowest bits of `packed` are the kind.
struct BufferAllocationInfo {
  enum Kind { kConstant = 0, kTemp = 1, kParameter = 2, kThreadLocal = 3 };
  Kind kind() const { return static_cast<Kind>(packed & 3); }
  uint64_t size() const { return packed >> 2; }
  bool is_argument() const { return argument != ~0U; }
  uint64_t packed;
  uint32_t argument;
  uint32_t result;
};
using EncodedBufferAllocationInfo = BufferAllocationInfo;

}  // namespace cpu
}  // namespace xla

namespace tensorflow {

using int32 = int32_t;

class XlaCompiledCpuFunction {
 public:
  using Run = std::function<bool(void**, xla::ExecutableRunOptions*,
                                 std::vector<std::unique_ptr<xla::cpu::RngState>>&)>;
  struct ShapeInfo {
    const int32_t* dimensions = nullptr;
    int32_t num_dimensions = 0;
  };
  struct StaticData {
    Run run;
    std::vector<std::pair<uint64_t, char*>> constants;
    std::vector<int64_t> random_deltas;
    const xla::cpu::BufferAllocationInfo* buffers = nullptr;
    size_t num_buffers = 0;
    const int32_t* result_buffers = nullptr;
    const int32_t* argument_buffers = nullptr;
    int64_t num_results = 0;
    int64_t num_arguments = 0;
  };
  enum class AllocMode { ARGS_VARIABLES_RESULTS_PROFILES_AND_TEMPS };
  XlaCompiledCpuFunction(const StaticData&, AllocMode) {}
  virtual ~XlaCompiledCpuFunction() = default;
  void set_arg_data(size_t, const void*) {}
  void* arg_data(size_t) const { return nullptr; }
  void* result_data(size_t) const { return nullptr; }

 protected:
  virtual bool is_thunk_mode() const { return true; }
  static void set_static_data_function_library_symbol_map(
      StaticData*, const absl::flat_hash_map<std::string, void*>&) {}
  static void set_static_data_buffer_infos(StaticData* data,
                                           const xla::cpu::BufferAllocationInfo* buffers) {
    data->buffers = buffers;
  }
  static void set_static_data_num_buffers(StaticData* data, size_t number) {
    data->num_buffers = number;
  }
  static void set_static_data_result_index_table(StaticData* data, const int32_t* table) {
    data->result_buffers = table;
  }
  static void set_static_data_num_results(StaticData* data, int64_t number) {
    data->num_results = number;
  }
  static void set_static_data_arg_index_table(StaticData* data, const int32_t* table) {
    data->argument_buffers = table;
  }
  static void set_static_data_num_args(StaticData* data, int64_t number) {
    data->num_arguments = number;
  }
  static void set_static_data_thunk_run_impl(StaticData* data, Run run) {
    data->run = std::move(run);
  }
  static void set_static_data_embedded_constant_buffers(
      StaticData* data, std::vector<std::pair<uint64_t, char*>> constants) {
    data->constants = std::move(constants);
  }
  static void set_static_data_rng_state_deltas(StaticData* data, std::vector<int64_t> deltas) {
    data->random_deltas = std::move(deltas);
  }
  // The rest is for TensorFlow's own tools.
  static void set_static_data_num_variables(StaticData*, int64_t) {}
  static void set_static_data_temp_allocation_index(StaticData*, std::optional<size_t>) {}
  static void set_static_data_arg_shape_infos(StaticData*, const ShapeInfo*) {}
  static void set_static_data_result_shape_infos(StaticData*, const ShapeInfo*) {}
  static void set_static_data_arg_names(StaticData*, const char**) {}
  static void set_static_data_variable_names(StaticData*, const char**) {}
  static void set_static_data_result_names(StaticData*, const char**) {}
  static void set_static_data_program_shape(StaticData*, const xla::ProgramShapeProto*) {}
  static void set_static_data_hlo_profile_printer_data(StaticData*,
                                                       const xla::HloProfilePrinterData*) {}
  static void set_static_data_profile_counters_size(StaticData*, int64_t) {}
  static void set_static_data_compilation_result_proto(StaticData*, std::nullptr_t) {}
};

}  // namespace tensorflow

#endif  // JAX2TF_BRIDGE_TENSORFLOW_H_
