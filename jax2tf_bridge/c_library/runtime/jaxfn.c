#include "jaxfn.h"

#include <ctype.h>
#include <inttypes.h>
#include <stdarg.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <tensorflow/c/c_api.h>

#include "jaxfn_file.h"

#define FUNCTION_NAME "jaxfn_function"

/* The file and its TensorFlow session, which handles share. TF_SessionRun is thread-safe. */
typedef struct {
  atomic_size_t handles;
  jaxfn_file file;
  TF_Graph *graph;
  TF_Session *session;
  size_t feed_count;
  TF_Output *feeds, *fetches;
  TF_Tensor **constants;
} program;

struct jaxfn_handle {
  program *program;
  TF_Status *status;
  TF_Tensor **feeds, **results; /* of a call */
  char message[JAXFN_MESSAGE_SIZE];
};

static jaxfn_status fail_in_tensorflow(jaxfn_handle *h) {
  TF_Code code = TF_GetCode(h->status);
  return jaxfn_fail(h, code == TF_RESOURCE_EXHAUSTED ? JAXFN_NO_MEMORY : JAXFN_FAILED,
                    "TensorFlow %s cannot run the function: %s", TF_Version(),
                    TF_Message(h->status));
}

static jaxfn_status fail_without_memory(jaxfn_handle *h) {
  return jaxfn_fail(h, JAXFN_NO_MEMORY, "There is not enough memory.");
}

static void keep_memory(void *data, size_t size, void *argument) {
  /* The caller or the program owns it. */
  (void)data, (void)size, (void)argument;
}

static TF_Tensor *wrap(const jaxfn_type *type, const int64_t *sizes, const void *data,
                       size_t size) {
  /* TF_NewTensor copies memory that is not aligned for TensorFlow. */
  static const char nothing[64];
  void *memory = (void *)(uintptr_t)(size ? data : nothing);
  return TF_NewTensor((TF_DataType)type->number, sizes, type->rank, memory, size, keep_memory,
                      NULL);
}

/* Returns the size in bytes, or SIZE_MAX if a size is negative or the array is too large. */
static size_t byte_size(const jaxfn_type *type, const int64_t *sizes) {
  size_t size = type->element_size;
  int is_empty = 0;
  for (int axis = 0; axis < type->rank; axis++) {
    if (sizes[axis] < 0) return SIZE_MAX;
    is_empty |= sizes[axis] == 0;
  }
  for (int axis = 0; axis < type->rank && !is_empty; axis++) {
    if ((uint64_t)sizes[axis] > (uint64_t)(PTRDIFF_MAX / 2) / size) return SIZE_MAX;
    size *= (size_t)sizes[axis];
  }
  return is_empty ? 0 : size;
}

static const jaxfn_type *feed_type(const program *p, size_t i) {
  const jaxfn_file *file = &p->file;
  return i < file->kept_count ? &file->arguments[file->kept[i]]
                              : &file->constants[i - file->kept_count].type;
}

static TF_Output add_placeholder(program *p, TF_Graph *graph, size_t i, TF_Status *status) {
  char name[32];
  snprintf(name, sizeof name, "input_%zu", i);
  const jaxfn_type *type = feed_type(p, i);
  TF_OperationDescription *description = TF_NewOperation(graph, "Placeholder", name);
  TF_SetAttrType(description, "dtype", (TF_DataType)type->number);
  TF_SetAttrShape(description, "shape", type->sizes, type->rank);
  TF_Output output = {TF_FinishOperation(description, status), 0};
  return output;
}

static TF_DataType *collect_result_types(const jaxfn_file *file) {
  TF_DataType *types = calloc(file->result_count + 1, sizeof *types);
  for (size_t i = 0; types && i < file->result_count; i++)
    types[i] = (TF_DataType)file->results[i].number;
  return types;
}

/* Adds XlaCallModule. Returns NULL if memory is missing. */
static TF_Operation *add_call(program *p, TF_Graph *graph, const TF_Output *inputs,
                              TF_Status *status) {
  const jaxfn_file *file = &p->file;
  TF_OperationDescription *call = TF_NewOperation(graph, "XlaCallModule", "call");
  TF_AddInputList(call, inputs, (int)p->feed_count);
  TF_SetAttrInt(call, "version", file->calling_convention);
  TF_SetAttrString(call, "module", file->module, file->module_size);
  size_t texts = file->platform_count + file->check_count;
  TF_DataType *types = collect_result_types(file);
  const int64_t **shapes = calloc(file->result_count + 1, sizeof *shapes);
  int *ranks = calloc(file->result_count + 1, sizeof *ranks);
  const void **starts = calloc(texts + 1, sizeof *starts);
  size_t *sizes = calloc(texts + 1, sizeof *sizes);
  char *names = NULL;
  size_t name_size = 0;
  for (size_t i = 0; i < file->platform_count; i++) name_size += file->platforms[i].size;
  names = malloc(name_size + 1);
  TF_Operation *operation = NULL;
  if (types && shapes && ranks && starts && sizes && names) {
    for (size_t i = 0; i < file->result_count; i++) {
      shapes[i] = file->results[i].sizes;
      ranks[i] = file->results[i].rank;
    }
    char *end = names;
    for (size_t i = 0; i < file->platform_count; i++) {
      starts[i] = end;
      sizes[i] = file->platforms[i].size;
      for (size_t j = 0; j < sizes[i]; j++)
        *end++ = (char)toupper((unsigned char)file->platforms[i].start[j]);
    }
    for (size_t i = 0; i < file->check_count; i++) {
      starts[file->platform_count + i] = file->checks[i].start;
      sizes[file->platform_count + i] = file->checks[i].size;
    }
    TF_SetAttrTypeList(call, "Tout", types, (int)file->result_count);
    TF_SetAttrShapeList(call, "Sout", shapes, ranks, (int)file->result_count);
    TF_SetAttrStringList(call, "platforms", starts, sizes, (int)file->platform_count);
    if (file->check_count)
      TF_SetAttrStringList(call, "disabled_checks", starts + file->platform_count,
                           sizes + file->platform_count, (int)file->check_count);
    operation = TF_FinishOperation(call, status);
  }
  free(types), free(shapes), free(ranks), free(starts), free(sizes), free(names);
  return operation;
}

/* Makes a function of XlaCallModule, which XLA compiles once for each combination of sizes. */
static TF_Function *make_function(program *p, TF_Status *status) {
  TF_Graph *graph = TF_NewGraph();
  TF_Output *inputs = calloc(p->feed_count + 1, sizeof *inputs);
  TF_Output *outputs = calloc(p->file.result_count + 1, sizeof *outputs);
  TF_Function *function = NULL;
  if (inputs && outputs) {
    TF_SetStatus(status, TF_OK, "");
    for (size_t i = 0; i < p->feed_count && TF_GetCode(status) == TF_OK; i++)
      inputs[i] = add_placeholder(p, graph, i, status);
    TF_Operation *call =
        TF_GetCode(status) == TF_OK ? add_call(p, graph, inputs, status) : NULL;
    for (size_t i = 0; i < p->file.result_count; i++)
      outputs[i] = (TF_Output){call, (int)i};
    if (call)
      function = TF_GraphToFunction(graph, FUNCTION_NAME, 0, -1, NULL, (int)p->feed_count, inputs,
                                    (int)p->file.result_count, outputs, NULL, NULL, NULL, status);
  }
  free(inputs), free(outputs);
  TF_DeleteGraph(graph);
  return function;
}

static jaxfn_status make_session(jaxfn_handle *h, program *p) {
  TF_Status *status = h->status;
  TF_SetStatus(status, TF_OK, "");
  p->graph = TF_NewGraph();
  p->feeds = calloc(p->feed_count + 1, sizeof *p->feeds);
  p->fetches = calloc(p->file.result_count + 1, sizeof *p->fetches);
  TF_DataType *in = calloc(p->feed_count + 1, sizeof *in);
  TF_DataType *out = collect_result_types(&p->file);
  TF_Function *function = NULL;
  jaxfn_status result = JAXFN_OK;
  if (p->feeds == NULL || p->fetches == NULL || in == NULL || out == NULL) {
    result = fail_without_memory(h);
  } else if ((function = make_function(p, status)) == NULL) {
    result = TF_GetCode(status) == TF_OK ? fail_without_memory(h) : fail_in_tensorflow(h);
  } else {
    TF_GraphCopyFunction(p->graph, function, NULL, status);
    for (size_t i = 0; i < p->feed_count && TF_GetCode(status) == TF_OK; i++) {
      p->feeds[i] = add_placeholder(p, p->graph, i, status);
      in[i] = (TF_DataType)feed_type(p, i)->number;
    }
    TF_Operation *call = NULL;
    if (TF_GetCode(status) == TF_OK) {
      TF_OperationDescription *description =
          TF_NewOperation(p->graph, "StatefulPartitionedCall", "call");
      TF_AddInputList(description, p->feeds, (int)p->feed_count);
      TF_SetAttrTypeList(description, "Tin", in, (int)p->feed_count);
      TF_SetAttrTypeList(description, "Tout", out, (int)p->file.result_count);
      TF_SetAttrFuncName(description, "f", FUNCTION_NAME, strlen(FUNCTION_NAME));
      TF_SetAttrBool(description, "_XlaMustCompile", 1);
      call = TF_FinishOperation(description, status);
    }
    for (size_t i = 0; i < p->file.result_count; i++) p->fetches[i] = (TF_Output){call, (int)i};
    if (TF_GetCode(status) == TF_OK) {
      TF_SessionOptions *options = TF_NewSessionOptions();
      p->session = TF_NewSession(p->graph, options, status);
      TF_DeleteSessionOptions(options);
    }
    if (TF_GetCode(status) != TF_OK) result = fail_in_tensorflow(h);
  }
  if (function) TF_DeleteFunction(function);
  free(in), free(out);
  return result;
}

static void release(program *p) {
  if (p == NULL || atomic_fetch_sub(&p->handles, 1) > 1) return;
  TF_Status *status = TF_NewStatus();
  if (p->session) TF_DeleteSession(p->session, status);
  TF_DeleteStatus(status);
  if (p->graph) TF_DeleteGraph(p->graph);
  for (size_t i = 0; p->constants && i < p->file.constant_count; i++)
    if (p->constants[i]) TF_DeleteTensor(p->constants[i]);
  free(p->constants), free(p->feeds), free(p->fetches);
  jaxfn_file_close(&p->file);
  free(p);
}

static jaxfn_status make_buffers(jaxfn_handle *h) {
  const program *p = h->program;
  h->feeds = calloc(p->feed_count + 1, sizeof *h->feeds);
  h->results = calloc(p->file.result_count + 1, sizeof *h->results);
  if (h->feeds == NULL || h->results == NULL) return fail_without_memory(h);
  for (size_t i = 0; i < p->file.constant_count; i++)
    h->feeds[p->file.kept_count + i] = p->constants[i];
  return JAXFN_OK;
}

static jaxfn_handle *make_handle(void) {
  jaxfn_handle *h = calloc(1, sizeof *h);
  if (h) h->status = TF_NewStatus();
  return h;
}

static jaxfn_status fail_of_other_function(jaxfn_handle *h, const char *path,
                                           const char *signature) {
  const char *other = h->program->file.signature, *separator = ", with the structure ";
  size_t size = (size_t)(strstr(other, separator) - other);
  size_t expected = (size_t)(strstr(signature, separator) - signature);
  if (size == expected && !memcmp(other, signature, size))
    return jaxfn_fail(h, JAXFN_NO_WEIGHTS,
                      "%.300s holds a function whose arguments or results have other names, or "
                      "another structure, than those of this library. Write the library again for "
                      "this file.",
                      path);
  return jaxfn_fail(h, JAXFN_NO_WEIGHTS,
                    "%.300s holds a function %.*s, but this library is for %.*s. Write the library "
                    "again for this file.",
                    path, (int)(size < 200 ? size : 200), other,
                    (int)(expected < 200 ? expected : 200), signature);
}

static jaxfn_status open_program(jaxfn_handle *h, const char *path, const char *signature) {
  program *p = h->program;
  int no_memory = 0;
  if (!jaxfn_file_read(&p->file, path, h->message, &no_memory))
    return no_memory ? JAXFN_NO_MEMORY : JAXFN_NO_WEIGHTS;
  if (strcmp(p->file.signature, signature)) return fail_of_other_function(h, path, signature);
  p->feed_count = p->file.kept_count + p->file.constant_count;
  p->constants = calloc(p->file.constant_count + 1, sizeof *p->constants);
  if (p->constants == NULL) return fail_without_memory(h);
  for (size_t i = 0; i < p->file.constant_count; i++) {
    const jaxfn_constant *constant = &p->file.constants[i];
    p->constants[i] =
        wrap(&constant->type, constant->type.sizes, constant->data, constant->size);
    if (p->constants[i] == NULL) return fail_without_memory(h);
  }
  return make_session(h, p);
}

jaxfn_status jaxfn_open(jaxfn_handle **handle, const char *path, const char *signature) {
  jaxfn_handle *h = *handle = make_handle();
  if (h == NULL) return JAXFN_NO_MEMORY;
  h->program = calloc(1, sizeof *h->program);
  if (h->program == NULL) return fail_without_memory(h);
  atomic_init(&h->program->handles, 1);
  if (path == NULL)
    return jaxfn_fail(h, JAXFN_NO_WEIGHTS, "The file is NULL. Pass the path of a .jaxfn file.");
  jaxfn_status status = open_program(h, path, signature);
  return status == JAXFN_OK ? make_buffers(h) : status;
}

jaxfn_status jaxfn_share(jaxfn_handle **handle, jaxfn_handle *other) {
  jaxfn_handle *h = *handle = make_handle();
  if (h == NULL) return JAXFN_NO_MEMORY;
  if (other == NULL || other->feeds == NULL)
    return jaxfn_fail(h, JAXFN_FAILED,
                      "The other handle is not open. Pass a handle that was opened without an "
                      "error.");
  atomic_fetch_add(&other->program->handles, 1);
  h->program = other->program;
  return make_buffers(h);
}

static jaxfn_status feed(jaxfn_handle *h, const jaxfn_array *inputs) {
  const jaxfn_file *file = &h->program->file;
  for (size_t i = 0; i < file->argument_count; i++) {
    size_t size = byte_size(&file->arguments[i], inputs[i].sizes);
    if (size == SIZE_MAX)
      return jaxfn_fail(h, JAXFN_NO_SIZE,
                        "%s has a negative size, or too many elements. Pass other sizes.",
                        inputs[i].name);
    if (size && inputs[i].data == NULL)
      return jaxfn_fail(h, JAXFN_FAILED, "%s is NULL. Pass an array of %zu bytes.", inputs[i].name,
                        size);
  }
  for (size_t i = 0; i < file->kept_count; i++) {
    const jaxfn_type *type = &file->arguments[file->kept[i]];
    const jaxfn_array *input = &inputs[file->kept[i]];
    h->feeds[i] = wrap(type, input->sizes, input->data, byte_size(type, input->sizes));
    if (h->feeds[i] == NULL) return fail_without_memory(h);
  }
  return JAXFN_OK;
}

static jaxfn_status copy_results(jaxfn_handle *h, const jaxfn_array *outputs) {
  const jaxfn_file *file = &h->program->file;
  for (size_t i = 0; i < file->result_count; i++) {
    int is_equal = TF_NumDims(h->results[i]) == file->results[i].rank;
    for (int axis = 0; is_equal && axis < file->results[i].rank; axis++)
      is_equal = TF_Dim(h->results[i], axis) == outputs[i].sizes[axis];
    size_t size = TF_TensorByteSize(h->results[i]);
    if (!is_equal || size != byte_size(&file->results[i], outputs[i].sizes))
      return jaxfn_fail(h, JAXFN_FAILED,
                        "%s has another shape than its type says. Report this as a bug of "
                        "jax2tf-bridge.",
                        outputs[i].name);
    if (size && outputs[i].data)
      memcpy((void *)(uintptr_t)outputs[i].data, TF_TensorData(h->results[i]), size);
  }
  return JAXFN_OK;
}

jaxfn_status jaxfn_run(jaxfn_handle *h, const jaxfn_array *inputs, const jaxfn_array *outputs) {
  if (h->feeds == NULL || h->results == NULL)
    return jaxfn_fail(h, JAXFN_FAILED,
                      "The handle is not open. Call the function with a handle that was opened "
                      "without an error.");
  program *p = h->program;
  jaxfn_status result = feed(h, inputs);
  for (size_t i = 0; i < p->file.result_count && result == JAXFN_OK; i++) {
    size_t size = byte_size(&p->file.results[i], outputs[i].sizes);
    if (size == SIZE_MAX)
      result = jaxfn_fail(h, JAXFN_NO_SIZE,
                          "%s has a negative size, or too many elements. Pass other sizes.",
                          outputs[i].name);
  }
  if (result == JAXFN_OK) {
    TF_SessionRun(p->session, NULL, p->feeds, h->feeds, (int)p->feed_count, p->fetches, h->results,
                  (int)p->file.result_count, NULL, 0, NULL, h->status);
    result = TF_GetCode(h->status) == TF_OK ? copy_results(h, outputs) : fail_in_tensorflow(h);
  }
  for (size_t i = 0; i < p->file.result_count; i++) {
    if (h->results[i]) TF_DeleteTensor(h->results[i]);
    h->results[i] = NULL;
  }
  for (size_t i = 0; i < p->file.kept_count; i++) {
    if (h->feeds[i]) TF_DeleteTensor(h->feeds[i]);
    h->feeds[i] = NULL;
  }
  return result;
}

jaxfn_status jaxfn_fail(jaxfn_handle *h, jaxfn_status status, const char *format, ...) {
  va_list arguments;
  va_start(arguments, format);
  vsnprintf(h->message, sizeof h->message, format, arguments);
  va_end(arguments);
  return status;
}

const char *jaxfn_message(const jaxfn_handle *h) {
  return h ? h->message : "There is not enough memory.";
}

void jaxfn_free(jaxfn_handle *h) {
  if (h == NULL) return;
  release(h->program);
  TF_DeleteStatus(h->status);
  free(h->feeds), free(h->results), free(h);
}

int64_t jaxfn_add(int64_t left, int64_t right) {
  if (left == JAXFN_INVALID || right == JAXFN_INVALID) return JAXFN_INVALID;
  if (right > 0 ? left > INT64_MAX - right : left < INT64_MIN - right) return JAXFN_INVALID;
  return left + right;
}

int64_t jaxfn_multiply(int64_t left, int64_t right) {
  if (left == JAXFN_INVALID || right == JAXFN_INVALID) return JAXFN_INVALID;
  if (left == 0 || right == 0) return 0;
  int64_t limit = INT64_MAX / (right < 0 ? -right : right);
  return left > limit || left < -limit ? JAXFN_INVALID : left * right;
}

int64_t jaxfn_floor_div(int64_t left, int64_t right) {
  if (left == JAXFN_INVALID || right == JAXFN_INVALID || right == 0) return JAXFN_INVALID;
  int64_t quotient = left / right;
  return quotient - (left % right != 0 && (left < 0) != (right < 0));
}

int64_t jaxfn_floor_mod(int64_t left, int64_t right) {
  if (left == JAXFN_INVALID || right == JAXFN_INVALID || right == 0) return JAXFN_INVALID;
  int64_t rest = left % right;
  return rest != 0 && (rest < 0) != (right < 0) ? rest + right : rest;
}

int64_t jaxfn_maximum(int64_t left, int64_t right) {
  if (left == JAXFN_INVALID || right == JAXFN_INVALID) return JAXFN_INVALID;
  return left > right ? left : right;
}

int64_t jaxfn_minimum(int64_t left, int64_t right) {
  return left < right ? left : right; /* JAXFN_INVALID is the least */
}

int jaxfn_compare(int64_t left, const char *comparison, int64_t right) {
  if (left == JAXFN_INVALID || right == JAXFN_INVALID) return 0;
  int is_equal_allowed = comparison[1] == '=';
  if (comparison[0] == '>') return left > right || (is_equal_allowed && left == right);
  if (comparison[0] == '<') return left < right || (is_equal_allowed && left == right);
  return (left == right) == (comparison[0] == '=');
}
