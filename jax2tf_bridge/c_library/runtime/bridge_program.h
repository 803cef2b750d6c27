// Runs compiled programs: chooses the one for the sizes of a call, pads inputs, and cuts results.
// Everything is internal to the file that includes it, so that a program can link several libraries.
#ifndef JAX2TF_BRIDGE_PROGRAM_H_
#define JAX2TF_BRIDGE_PROGRAM_H_

#include <cstdio>
#include <cstdlib>
#include <new>

#ifndef _WIN32
#include <fcntl.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>
#endif

#include "bridge_bfloat16.h"
#include "bridge_tensorflow.h"
#ifdef JAX2TF_BRIDGE_RANDOM
#include "xla/backends/cpu/runtime/rng_state_lib.h"
#else
namespace xla::cpu {
class RngState {};
}  // namespace xla::cpu
#endif
#ifdef JAX2TF_BRIDGE_THREADS
#include "bridge_threads.h"
#endif

// A namespace of its own, because a library may have the name of one of these functions.
namespace jax2tf_bridge {
namespace {

using StaticData = tensorflow::XlaCompiledCpuFunction::StaticData;

enum Status { kOk, kNoMemory, kNoWeights, kNoSize, kFailed };

// XLA tells LLVM that every array begins at a multiple of this many bytes.
constexpr size_t kAlignment = 64;

// An array of a signature. Its sizes begin at `start` in a list of sizes of all arrays. `pad` is one
// element, or null for zeros.
struct Array {
  const char* name;
  size_t element_size;
  int rank;
  int start;
  const void* pad;
};

// An argument of a program: an input or a mask by its index, or a weight by its place in the file.
struct Argument {
  enum Kind { kInput, kMask, kWeight } kind;
  uint64_t place;
};

// A compiled program. `shapes` has the sizes of all inputs, masks and outputs, one after another.
struct Program {
  const StaticData& (*data)();
  const int64_t* sizes;
  const int64_t* shapes;
};

struct Signature {
  const char* name;
  int num_variables;
  const char* const* variables;
  const bool* is_padded;
  int num_inputs, num_masks, num_outputs;
  const Array* arrays;  // inputs, masks, outputs
  int num_arguments;
  const Argument* arguments;
  int num_programs;
  const Program* programs;  // by increasing work
  const char* compiled_sizes;
  // Computes the sizes of all inputs, masks and outputs from the values of the variables.
  void (*compute_shapes)(const int64_t* sizes, int64_t* shapes);
  int num_sizes;  // elements of `shapes`
};

struct Library {
  const char* name;
  int num_signatures;
  const Signature* const* signatures;
  const unsigned char* weights_header;  // kTypesSize bytes
  uint64_t weights_size;                // with the header, a multiple of kAlignment
  const unsigned char* weights;         // null: they are in a file
};

struct Table {
  void** buffers = nullptr;
  unsigned char** own = nullptr;  // places in the arena
  std::vector<std::unique_ptr<xla::cpu::RngState>> random;
};

struct Handle {
  const Library* library = nullptr;
  const unsigned char* weights = nullptr;
  void* mapped = nullptr;
  unsigned char* arena = nullptr;
  void* arena_memory = nullptr;
  std::vector<std::vector<Table>> tables;
  std::vector<int64_t> shapes;
  xla::ExecutableRunOptions options;
  Status status = kOk;
  char message[512] = "";
#ifdef JAX2TF_BRIDGE_THREADS
  std::unique_ptr<Eigen::ThreadPoolDevice> pool;
#endif

  template <typename... Values>
  Status fail(Status status, const char* text, Values... values) {
    std::snprintf(message, sizeof(message), text, values...);
    return status;
  }
};

// The header of a file of weights: bytes that identify their types, and a checksum.
constexpr size_t kTypesSize = 48;

// Returns whether the values are those for which the checksum in the header was computed.
bool has_right_checksum(const unsigned char* weights, uint64_t size) {
  uint64_t sums[2] = {0, 0};
  for (uint64_t i = kAlignment; i < size; i += sizeof(uint64_t)) {
    uint64_t word;
    std::memcpy(&word, weights + i, sizeof word);
    sums[0] += word;
    sums[1] += sums[0];
  }
  return std::memcmp(weights + kTypesSize, sums, sizeof sums) == 0;
}

size_t round_up(size_t size) { return (size + kAlignment - 1) / kAlignment * kAlignment; }

Status map_weights(Handle& handle, const char* file) {
  const Library& library = *handle.library;
  if (library.weights != nullptr) {
    if (file != nullptr)
      return handle.fail(kNoWeights, "The weights of %s are in the program. Leave out the file %s.",
                         library.name, file);
    handle.weights = library.weights;
    return kOk;
  }
  if (library.weights_size == 0) return kOk;
  if (file == nullptr)
    return handle.fail(kNoWeights, "The weights of %s are in a file. Pass its path.", library.name);
  const uint64_t size = library.weights_size;
  uint64_t actual = 0;
#ifdef _WIN32
  if (FILE* stream = std::fopen(file, "rb")) {
    handle.mapped = std::malloc(size + 1);
    actual = handle.mapped ? std::fread(handle.mapped, 1, size + 1, stream) : 0;
    std::fclose(stream);
  }
#else
  const int descriptor = open(file, O_RDONLY | O_CLOEXEC);
  struct stat information;
  if (descriptor >= 0 && fstat(descriptor, &information) == 0) {
    actual = information.st_size;
    if (actual == size) {
      void* mapped = mmap(nullptr, size, PROT_READ, MAP_PRIVATE, descriptor, 0);
      if (mapped != MAP_FAILED) handle.mapped = mapped;
    }
  }
  if (descriptor >= 0) close(descriptor);
#endif
  if (actual != 0 && actual != size)
    return handle.fail(kNoWeights, "%s has %llu bytes; the weights of %s have %llu.", file,
                       (unsigned long long)actual, library.name, (unsigned long long)size);
  if (handle.mapped == nullptr)
    return handle.fail(kNoWeights, "%s, the file of the weights, cannot be read.", file);
  if (std::memcmp(handle.mapped, library.weights_header, kTypesSize) != 0)
    return handle.fail(kNoWeights, "%s has other weights than %s: their names, dtypes or shapes "
                       "differ.", file, library.name);
  handle.weights = static_cast<const unsigned char*>(handle.mapped);
  if (!has_right_checksum(handle.weights, size))
    return handle.fail(kNoWeights, "%s is damaged: its values do not fit its checksum. Copy it "
                       "anew.", file);
  return kOk;
}

// Places all buffers of a program in the arena, except for weights, and returns the size that they
// need.
size_t lay_out(const Signature& signature, const StaticData& data, unsigned char* arena,
               Table* table) {
  size_t size = 0, constant = 0;
  for (size_t i = 0; i < data.num_buffers; ++i) {
    const auto& buffer = data.buffers[i];
    void* place = nullptr;
    if (buffer.kind() == buffer.kConstant) {
      place = data.constants[constant++].second;
    } else if (buffer.kind() != buffer.kThreadLocal &&
               !(buffer.is_argument() &&
                 signature.arguments[buffer.argument].kind == Argument::kWeight)) {
      place = arena + size;
      size += round_up(buffer.size());
    }
    if (table != nullptr) {
      table->buffers[i] = place;
      table->own[i] = static_cast<unsigned char*>(place);
    }
  }
  return size;
}

Status allocate(Handle& handle) {
  size_t size = kAlignment, sizes = 0;
  const Library& library = *handle.library;
  for (int s = 0; s < library.num_signatures; ++s) {
    const Signature& signature = *library.signatures[s];
    if (size_t(signature.num_sizes) > sizes) sizes = signature.num_sizes;
    for (int p = 0; p < signature.num_programs; ++p) {
      const size_t needed = lay_out(signature, signature.programs[p].data(), nullptr, nullptr);
      if (needed > size) size = needed;
    }
  }
  // Programs of one handle never run at the same time, so they share this memory.
  handle.arena_memory = std::calloc(1, size + kAlignment);
  if (handle.arena_memory == nullptr) throw std::bad_alloc();
  handle.arena =
      reinterpret_cast<unsigned char*>(round_up(reinterpret_cast<size_t>(handle.arena_memory)));
  handle.shapes.resize(sizes + 1);
  handle.tables.resize(library.num_signatures);
  for (int s = 0; s < library.num_signatures; ++s) {
    const Signature& signature = *library.signatures[s];
    handle.tables[s].resize(signature.num_programs);
    for (int p = 0; p < signature.num_programs; ++p) {
      const StaticData& data = signature.programs[p].data();
      Table& table = handle.tables[s][p];
      table.buffers = new void*[2 * data.num_buffers + 1];
      table.own = reinterpret_cast<unsigned char**>(table.buffers + data.num_buffers);
      lay_out(signature, data, handle.arena, &table);
      for (int a = 0; a < signature.num_arguments; ++a) {
        const Argument& argument = signature.arguments[a];
        if (argument.kind == Argument::kWeight)
          table.buffers[data.argument_buffers[a]] =
              const_cast<unsigned char*>(handle.weights + argument.place);
      }
#ifdef JAX2TF_BRIDGE_RANDOM
      for (int64_t delta : data.random_deltas)
        table.random.push_back(std::make_unique<xla::cpu::RngState>(delta));
#endif
    }
  }
#ifdef JAX2TF_BRIDGE_THREADS
  const int threads = std::thread::hardware_concurrency();
  if (threads > 1) {
    handle.pool = std::make_unique<Eigen::ThreadPoolDevice>(threads);
    handle.options.set_intra_op_thread_pool(handle.pool.get());
  }
#endif
  return kOk;
}

void free_handle(Handle* handle) {
  if (handle == nullptr) return;
  for (auto& tables : handle->tables)
    for (Table& table : tables) delete[] table.buffers;
  std::free(handle->arena_memory);
  if (handle->mapped != nullptr) {
#ifdef _WIN32
    std::free(handle->mapped);
#else
    munmap(handle->mapped, handle->library->weights_size);
#endif
  }
  delete handle;
}

Status new_handle(const Library& library, const char* weights_file, Handle** result) {
  *result = new (std::nothrow) Handle;
  Handle* handle = *result;
  if (handle == nullptr) return kNoMemory;
  handle->library = &library;
  try {
    handle->status = map_weights(*handle, weights_file);
    if (handle->status == kOk) handle->status = allocate(*handle);
  } catch (const std::exception& error) {
    handle->status = handle->fail(kNoMemory, "There is not enough memory for %s.", library.name);
  }
  return handle->status;
}

// Copies the common part of two arrays.
void copy_part(unsigned char* to, const int64_t* to_shape, const unsigned char* from,
               const int64_t* from_shape, int rank, size_t element_size) {
  if (rank == 0) {
    std::memcpy(to, from, element_size);
    return;
  }
  const int64_t common = to_shape[0] < from_shape[0] ? to_shape[0] : from_shape[0];
  size_t to_stride = element_size, from_stride = element_size;
  bool is_whole = true;
  for (int axis = 1; axis < rank; ++axis) {
    to_stride *= to_shape[axis];
    from_stride *= from_shape[axis];
    is_whole = is_whole && to_shape[axis] == from_shape[axis];
  }
  if (is_whole) {
    std::memcpy(to, from, common * to_stride);
    return;
  }
  for (int64_t i = 0; i < common; ++i)
    copy_part(to + i * to_stride, to_shape + 1, from + i * from_stride, from_shape + 1, rank - 1,
              element_size);
}

size_t count(const int64_t* shape, int rank) {
  size_t elements = 1;
  for (int axis = 0; axis < rank; ++axis) elements *= shape[axis];
  return elements;
}

void fill(unsigned char* to, size_t elements, const Array& array) {
  if (array.pad == nullptr) {
    std::memset(to, 0, elements * array.element_size);
    return;
  }
  for (size_t i = 0; i < elements; ++i)
    std::memcpy(to + i * array.element_size, array.pad, array.element_size);
}

// Fills a mask with `pad`, which is 1 in its dtype, where every index is below the actual size.
void fill_mask(unsigned char* to, const Array& array, const int64_t* shape, const int64_t* actual) {
  const size_t elements = count(shape, array.rank);
  for (size_t i = 0; i < elements; ++i) {
    size_t rest = i;
    bool is_real = true;
    for (int axis = array.rank - 1; axis >= 0; --axis) {
      is_real = is_real && int64_t(rest % shape[axis]) < actual[axis];
      rest /= shape[axis];
    }
    if (is_real)
      std::memcpy(to + i * array.element_size, array.pad, array.element_size);
    else
      std::memset(to + i * array.element_size, 0, array.element_size);
  }
}

const Program* choose(const Signature& signature, const int64_t* sizes) {
  for (int p = 0; p < signature.num_programs; ++p) {
    const int64_t* compiled = signature.programs[p].sizes;
    bool fits = true;
    for (int v = 0; v < signature.num_variables; ++v)
      fits = fits && (signature.is_padded[v] ? 0 <= sizes[v] && sizes[v] <= compiled[v]
                                             : sizes[v] == compiled[v]);
    if (fits) return &signature.programs[p];
  }
  return nullptr;
}

Status fail_size(Handle& handle, const Signature& signature, const int64_t* sizes) {
  char got[200] = "";
  size_t length = 0;
  for (int v = 0; v < signature.num_variables && length < sizeof(got); ++v)
    length += std::snprintf(got + length, sizeof(got) - length, "%s%s=%lld", v ? "," : "",
                            signature.variables[v], (long long)sizes[v]);
  return handle.fail(kNoSize, "%s is not compiled for %s. Its sizes: %s.", signature.name, got,
                     signature.compiled_sizes);
}

Status run(Handle* handle, int index, const int64_t* sizes, const void* const* inputs,
           void* const* outputs) try {
  if (handle == nullptr) return kFailed;
  if (handle->status != kOk) return handle->status;
  handle->message[0] = 0;
  const Library& library = *handle->library;
  const Signature& signature = *library.signatures[index];
  const Program* program = choose(signature, sizes);
  if (program == nullptr) return fail_size(*handle, signature, sizes);
  const StaticData& data = program->data();
  Table& table = handle->tables[index][program - signature.programs];
  int64_t* actual = handle->shapes.data();
  signature.compute_shapes(sizes, actual);
  auto is_aligned = [&](const void* pointer) {
    return reinterpret_cast<size_t>(pointer) % kAlignment == 0;
  };
  auto is_same = [&](int array) {
    const auto& [name, element_size, rank, start, pad] = signature.arrays[array];
    return std::memcmp(actual + start, program->shapes + start, rank * sizeof(int64_t)) == 0;
  };
  for (int a = 0; a < signature.num_arguments; ++a) {
    const Argument& argument = signature.arguments[a];
    if (argument.kind == Argument::kWeight) continue;
    const int i = int(argument.place);
    const Array& array = signature.arrays[i];
    const int buffer = data.argument_buffers[a];
    const int64_t* shape = program->shapes + array.start;
    unsigned char* own = table.own[buffer];
    if (argument.kind == Argument::kMask) {
      fill_mask(own, array, shape, actual + array.start);
      continue;
    }
    const size_t elements = count(actual + array.start, array.rank);
    if (elements != 0 && inputs[i] == nullptr)
      return handle->fail(kFailed, "%s: the input %s is NULL.", signature.name, array.name);
    const bool is_whole = is_same(i);
    if (is_whole && elements != 0 && is_aligned(inputs[i])) {
      table.buffers[buffer] = const_cast<void*>(inputs[i]);
      continue;
    }
    table.buffers[buffer] = own;
    if (!is_whole) fill(own, count(shape, array.rank), array);
    if (elements != 0)
      copy_part(own, shape, static_cast<const unsigned char*>(inputs[i]), actual + array.start,
                array.rank, array.element_size);
  }
  // The program may still read an input after it has written a result.
  auto overlaps_input = [&](const void* output, size_t size) {
    const uintptr_t start = reinterpret_cast<uintptr_t>(output);
    for (int i = 0; i < signature.num_inputs; ++i) {
      const Array& array = signature.arrays[i];
      const uintptr_t input = reinterpret_cast<uintptr_t>(inputs[i]);
      const size_t input_size = count(actual + array.start, array.rank) * array.element_size;
      if (start < input + input_size && input < start + size) return true;
    }
    return false;
  };
  const int first = signature.num_inputs + signature.num_masks;
  for (int o = 0; o < signature.num_outputs; ++o) {
    const int buffer = data.result_buffers[o];
    const auto& information = data.buffers[buffer];
    // A result is written where the caller wants it, unless it is cut, needs an alignment, or would
    // overwrite an input.
    if (information.kind() == information.kParameter && !information.is_argument()) {
      const bool is_direct = outputs[o] != nullptr && is_same(first + o) && is_aligned(outputs[o]) &&
                             !overlaps_input(outputs[o], information.size());
      table.buffers[buffer] = is_direct ? outputs[o] : table.own[buffer];
    }
  }
  if (!data.run(table.buffers, &handle->options, table.random))
    return handle->fail(kFailed, "%s: the compiled program failed.", signature.name);
  for (int o = 0; o < signature.num_outputs; ++o) {
    const void* from = table.buffers[data.result_buffers[o]];
    const Array& array = signature.arrays[first + o];
    if (outputs[o] == nullptr || outputs[o] == from) continue;
    if (count(actual + array.start, array.rank) != 0)
      copy_part(static_cast<unsigned char*>(outputs[o]), actual + array.start,
                static_cast<const unsigned char*>(from), program->shapes + array.start,
                array.rank, array.element_size);
  }
  return kOk;
} catch (const std::bad_alloc&) {
  return handle->fail(kNoMemory, "There is not enough memory for a call of %s.",
                      handle->library->name);
} catch (const std::exception& error) {
  return handle->fail(kFailed, "%s", error.what());
}

int64_t floor_div(int64_t left, int64_t right) {
  if (right == 0) return 0;
  return left / right - ((left % right != 0) && ((left < 0) != (right < 0)));
}
int64_t floor_mod(int64_t left, int64_t right) { return left - right * floor_div(left, right); }
int64_t maximum(int64_t left, int64_t right) { return left < right ? right : left; }
int64_t minimum(int64_t left, int64_t right) { return left < right ? left : right; }

}  // namespace
}  // namespace jax2tf_bridge

#endif  // JAX2TF_BRIDGE_PROGRAM_H_
