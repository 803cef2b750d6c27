// What XLA's runtime uses of Abseil, in a few lines of standard C++: this library links no Abseil.
#ifndef JAX2TF_BRIDGE_ABSEIL_H_
#define JAX2TF_BRIDGE_ABSEIL_H_

#include <condition_variable>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <initializer_list>
#include <memory>
#include <mutex>
#include <numeric>
#include <sstream>
#include <stdexcept>
#include <string>
#include <string_view>
#include <type_traits>
#include <utility>
#include <vector>

#define ABSL_ATTRIBUTE_ALWAYS_INLINE inline __attribute__((always_inline))
#define ABSL_ANNOTATE_MEMORY_IS_INITIALIZED(address, size) ((void)0)
#define ABSL_GUARDED_BY(mutex)
#define ABSL_PREDICT_FALSE(condition) (__builtin_expect(!!(condition), 0))
#define ABSL_PREDICT_TRUE(condition) (__builtin_expect(!!(condition), 1))
#if __BYTE_ORDER__ == __ORDER_LITTLE_ENDIAN__
#define ABSL_IS_LITTLE_ENDIAN 1
#endif

namespace jax2tf_bridge {

// Raises an exception with the streamed text when it is destroyed; NAME_run catches it.
class Failure {
 public:
  Failure(const char* file, int line) { text_ << file << ":" << line << ": "; }
  ~Failure() noexcept(false) { throw std::runtime_error(text_.str()); }
  template <typename T>
  Failure& operator<<(const T& value) {
    text_ << value;
    return *this;
  }

 private:
  std::ostringstream text_;
};

struct NoText {
  template <typename T>
  NoText& operator<<(const T&) {
    return *this;
  }
};

}  // namespace jax2tf_bridge

#define CHECK(condition)      \
  while (!(condition))        \
  ::jax2tf_bridge::Failure(__FILE__, __LINE__) << "Check failed: " #condition " "
#define CHECK_EQ(left, right) CHECK((left) == (right))
#define DCHECK(condition) \
  while (false && (condition)) ::jax2tf_bridge::NoText()
#define DCHECK_EQ(left, right) DCHECK((left) == (right))
#define DCHECK_LT(left, right) DCHECK((left) < (right))
#define LOG(severity) ::jax2tf_bridge::Failure(__FILE__, __LINE__)

namespace absl {

using string_view = std::string_view;

// Ignores its contents: the table of symbols is only for TensorFlow's own tools.
template <typename Key, typename Value>
struct flat_hash_map {
  flat_hash_map() = default;
  flat_hash_map(std::initializer_list<std::pair<Key, Value>>) {}
};

template <typename T>
class Span {
 public:
  Span() = default;
  Span(T* data, size_t size) : data_(data), size_(size) {}
  Span(std::initializer_list<std::remove_const_t<T>> values)
      : data_(values.begin()), size_(values.size()) {}
  template <typename Container, typename = decltype(std::declval<Container&>().data())>
  Span(Container& values) : data_(values.data()), size_(values.size()) {}
  template <typename Container, typename = decltype(std::declval<const Container&>().data()),
            typename = void>
  Span(const Container& values) : data_(values.data()), size_(values.size()) {}
  T& operator[](size_t index) const { return data_[index]; }
  T* data() const { return data_; }
  size_t size() const { return size_; }
  bool empty() const { return size_ == 0; }
  T* begin() const { return data_; }
  T* end() const { return data_ + size_; }

 private:
  T* data_ = nullptr;
  size_t size_ = 0;
};

template <typename Signature>
class AnyInvocable;

// A function object that can be moved, but need not be copied.
template <typename Result, typename... Arguments>
class AnyInvocable<Result(Arguments...)> {
 public:
  AnyInvocable() = default;
  template <typename F, typename = std::enable_if_t<!std::is_same_v<std::decay_t<F>, AnyInvocable>>>
  AnyInvocable(F&& function)
      : function_(std::make_unique<Holder<std::decay_t<F>>>(std::forward<F>(function))) {}
  Result operator()(Arguments... arguments) {
    return function_->call(std::forward<Arguments>(arguments)...);
  }
  explicit operator bool() const { return function_ != nullptr; }

 private:
  struct Callable {
    virtual ~Callable() = default;
    virtual Result call(Arguments... arguments) = 0;
  };
  template <typename F>
  struct Holder final : Callable {
    explicit Holder(F&& function) : function(std::move(function)) {}
    explicit Holder(const F& function) : function(function) {}
    Result call(Arguments... arguments) override {
      return function(std::forward<Arguments>(arguments)...);
    }
    F function;
  };
  std::unique_ptr<Callable> function_;
};

class BlockingCounter {
 public:
  explicit BlockingCounter(int64_t count) : count_(count) {}
  void DecrementCount() {
    std::lock_guard<std::mutex> lock(mutex_);
    if (--count_ == 0) changed_.notify_all();
  }
  void Wait() {
    std::unique_lock<std::mutex> lock(mutex_);
    changed_.wait(lock, [this] { return count_ <= 0; });
  }

 private:
  std::mutex mutex_;
  std::condition_variable changed_;
  int64_t count_;
};

class Notification {
 public:
  void Notify() { counter_.DecrementCount(); }
  void WaitForNotification() { counter_.Wait(); }

 private:
  BlockingCounter counter_{1};
};

using Mutex = std::mutex;
struct MutexLock : std::lock_guard<std::mutex> {
  explicit MutexLock(std::mutex& mutex) : std::lock_guard<std::mutex>(mutex) {}
  explicit MutexLock(std::mutex* mutex) : std::lock_guard<std::mutex>(*mutex) {}
};

#ifdef __SIZEOF_INT128__
using int128 = __int128;
constexpr uint64_t Int128Low64(int128 value) { return static_cast<uint64_t>(value); }
constexpr int64_t Int128High64(int128 value) { return static_cast<int64_t>(value >> 64); }
constexpr int128 MakeInt128(int64_t high, uint64_t low) {
  return (static_cast<int128>(high) << 64) | low;
}
#endif

template <typename To, typename From>
To bit_cast(const From& value) {
  static_assert(sizeof(To) == sizeof(From), "bit_cast keeps the size");
  To result;
  std::memcpy(&result, &value, sizeof(To));
  return result;
}

template <typename Container, typename Value>
void c_iota(Container& values, Value first) {
  std::iota(values.begin(), values.end(), first);
}

}  // namespace absl

#endif  // JAX2TF_BRIDGE_ABSEIL_H_
