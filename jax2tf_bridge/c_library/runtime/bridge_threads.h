// A pool of threads for products and convolutions.
#ifndef JAX2TF_BRIDGE_THREADS_H_
#define JAX2TF_BRIDGE_THREADS_H_

#include <atomic>
#include <condition_variable>
#include <cstdint>
#include <exception>
#include <functional>
#include <mutex>
#include <thread>
#include <vector>

namespace Eigen {

// The generated programs pass a pool by this name, and only to bridge_products.h.
class ThreadPoolDevice {
 public:
  // The thread that calls Run works as well.
  explicit ThreadPoolDevice(int threads) {
    try {
      for (int i = 1; i < threads; ++i) threads_.emplace_back([this] { Serve(); });
    } catch (...) {
      Stop();
      throw;
    }
  }
  ~ThreadPoolDevice() { Stop(); }

  int64_t size() const { return int64_t(threads_.size()) + 1; }

  // Calls task(0), task(1), ... in all threads, and returns after the last one. Raises the first
  // exception of a task.
  void Run(int64_t tasks, const std::function<void(int64_t)>& task) {
    {
      std::lock_guard<std::mutex> lock(mutex_);
      task_ = &task;
      tasks_ = tasks;
      next_ = 0;
      error_ = nullptr;
      busy_ = threads_.size();
      ++round_;
    }
    changed_.notify_all();
    Work();
    std::unique_lock<std::mutex> lock(mutex_);
    changed_.wait(lock, [this] { return busy_ == 0; });
    if (error_) std::rethrow_exception(error_);
  }

 private:
  void Work() {
    for (int64_t i; (i = next_++) < tasks_;) {
      try {
        (*task_)(i);
      } catch (...) {
        std::lock_guard<std::mutex> lock(mutex_);
        if (!error_) error_ = std::current_exception();
      }
    }
  }

  void Serve() {
    std::unique_lock<std::mutex> lock(mutex_);
    for (uint64_t known = 0;;) {
      changed_.wait(lock, [&] { return stops_ || round_ != known; });
      if (stops_) return;
      known = round_;
      lock.unlock();
      Work();
      lock.lock();
      if (--busy_ == 0) changed_.notify_all();
    }
  }

  void Stop() {
    {
      std::lock_guard<std::mutex> lock(mutex_);
      stops_ = true;
    }
    changed_.notify_all();
    for (std::thread& thread : threads_) thread.join();
  }

  std::mutex mutex_;
  std::condition_variable changed_;
  const std::function<void(int64_t)>* task_ = nullptr;
  int64_t tasks_ = 0;
  std::atomic<int64_t> next_{0};
  size_t busy_ = 0;
  uint64_t round_ = 0;
  bool stops_ = false;
  std::exception_ptr error_;
  std::vector<std::thread> threads_;
};

}  // namespace Eigen

#endif  // JAX2TF_BRIDGE_THREADS_H_
