// Tasks on a pool of threads, and an action after the last of them: what XLA's convolutions need of
// its runtime.
#ifndef JAX2TF_BRIDGE_WORKERS_H_
#define JAX2TF_BRIDGE_WORKERS_H_

#include <atomic>
#include <functional>
#include <memory>
#include <utility>

#include "bridge_abseil.h"

#define EIGEN_USE_THREADS
#include "unsupported/Eigen/CXX11/Tensor"

namespace tsl {

struct Chain {};

template <typename>
class CountDownAsyncValueRef {
 public:
  explicit CountDownAsyncValueRef(int64_t count) : state_(std::make_shared<State>(count)) {}
  void CountDown() {
    if (--state_->count == 0) state_->action();
  }
  CountDownAsyncValueRef& AsPtr() { return *this; }
  void AndThen(absl::AnyInvocable<void()> action) { state_->action = std::move(action); }

 private:
  struct State {
    explicit State(int64_t count) : count(count) {}
    std::atomic<int64_t> count;
    absl::AnyInvocable<void()> action;
  };
  std::shared_ptr<State> state_;
};

}  // namespace tsl

namespace xla::cpu {

struct Worker {
  template <typename Task>
  static void Parallelize(Eigen::ThreadPoolInterface* pool, int64_t, int64_t tasks, Task task) {
    for (int64_t i = 0; i < tasks; ++i) pool->Schedule([task, i]() mutable { task(i); });
  }
};

}  // namespace xla::cpu

#endif  // JAX2TF_BRIDGE_WORKERS_H_
