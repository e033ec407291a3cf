// Status: the result of a call that can fail; Result<T>: a value or a Status. One pointer wide,
// null when fine, so that success costs nothing. A failure carries its code (one per failure of
// ncclResult_t), one line of text that names rank, object, cause and remedy, the place that made
// it, and the peer rank where known. Thread safety: as for any value. Both are [[nodiscard]];
// dropping one is spelled `.ignore("why")`.
#pragma once

#include <fmt/core.h>

#include <cstdlib>
#include <memory>
#include <new>
#include <string>
#include <string_view>
#include <type_traits>
#include <utility>

namespace niccolite {

enum class Code : unsigned char {
  Ok,
  CudaError,        // a CUDA driver call failed
  SystemError,      // a system call or an allocation failed
  InternalError,    // a state that should be impossible
  InvalidArgument,  // null, out of range, not a communicator
  InvalidUsage,     // right arguments used in a forbidden way
  RemoteError,      // a peer died or a connection to it broke
};

const char* name_of(Code code);

struct SourceLocation {
  const char* file;
  int line;
};

// A format string and the place where it stands; made implicitly from a literal, so that factories
// need no macro.
template <typename... Args>
struct Format {
  template <typename Text>
  consteval Format(const Text& literal,
                   const char* file = __builtin_FILE(),  // NOLINT(google-explicit-constructor)
                   int line = __builtin_LINE())
      : text(literal), place{file, line} {}
  fmt::format_string<Args...> text;
  SourceLocation place;
};

class [[nodiscard]] Status {
 public:
  Status() = default;  // fine
  static Status ok() { return {}; }

  template <typename... Args>
  static Status error(Code code, Format<std::type_identity_t<Args>...> format, Args&&... args) {
    return make(code, format.place, fmt::vformat(format.text, fmt::make_format_args(args...)));
  }
#define NICCOLITE_STATUS_FACTORY(function, code)                                         \
  template <typename... Args>                                                            \
  static Status function(Format<std::type_identity_t<Args>...> format, Args&&... args) { \
    return make(Code::code, format.place,                                                \
                fmt::vformat(format.text, fmt::make_format_args(args...)));              \
  }
  NICCOLITE_STATUS_FACTORY(cuda_error, CudaError)
  NICCOLITE_STATUS_FACTORY(system_error, SystemError)
  NICCOLITE_STATUS_FACTORY(internal, InternalError)
  NICCOLITE_STATUS_FACTORY(invalid_argument, InvalidArgument)
  NICCOLITE_STATUS_FACTORY(invalid_usage, InvalidUsage)
  NICCOLITE_STATUS_FACTORY(remote_error, RemoteError)
#undef NICCOLITE_STATUS_FACTORY

  /// A failed system call: "<what>: <errno text>". `error_number` is errno right after the call.
  static Status from_errno(int error_number, std::string_view what,
                           SourceLocation place = {__builtin_FILE(), __builtin_LINE()});

  bool is_ok() const { return failure_ == nullptr; }
  Code code() const { return failure_ ? failure_->code : Code::Ok; }
  const std::string& message() const;  // empty when fine
  SourceLocation place() const { return failure_ ? failure_->place : SourceLocation{"", 0}; }
  int peer() const { return failure_ ? failure_->peer : -1; }  // rank, or -1

  Status& set_peer(int rank) &;
  Status&& with_peer(int rank) && { return std::move(set_peer(rank)); }
  /// Puts "<context>: " in front of the message; for knowledge that the failing function did not
  /// have.
  template <typename... Args>
  Status with_context(Format<std::type_identity_t<Args>...> format, Args&&... args) && {
    if (failure_) prepend(fmt::vformat(format.text, fmt::make_format_args(args...)));
    return std::move(*this);
  }

  Status copy() const;
  /// Drops the status; `why` is for the reader.
  void ignore([[maybe_unused]] const char* why) const {}

  // For TRY.
  Status status() && { return std::move(*this); }
  void take() && {}

 private:
  struct Failure {
    Code code;
    int peer;
    SourceLocation place;
    std::string message;
  };
  static Status make(Code code, SourceLocation place, std::string message);
  void prepend(const std::string& context);
  std::unique_ptr<Failure> failure_;
};

template <typename T>
class [[nodiscard]] Result {
 public:
  Result(T value) : has_value_(true) {
    new (&value_) T(std::move(value));
  }  // NOLINT(google-explicit-constructor)
  /// `status` must be a failure.
  Result(Status status) : status_(std::move(status)) {  // NOLINT(google-explicit-constructor)
    if (status_.is_ok()) std::abort();
  }
  Result(Result&& other) noexcept
      : status_(std::move(other.status_)), has_value_(other.has_value_) {
    if (has_value_) new (&value_) T(std::move(other.value_));
  }
  Result& operator=(Result&&) = delete;
  ~Result() {
    if (has_value_) value_.~T();
  }

  bool is_ok() const { return has_value_; }
  const Status& status() const& { return status_; }
  Status status() && { return has_value_ ? Status() : std::move(status_); }
  /// The value; only when is_ok().
  T& value() & { return value_; }
  const T& value() const& { return value_; }
  T take() && { return std::move(value_); }
  T* operator->() { return &value_; }
  T& operator*() & { return value_; }
  void ignore([[maybe_unused]] const char* why) const {}

 private:
  Status status_;
  bool has_value_ = false;
  union {
    T value_;
  };
};

/// A call on data from outside ended in an exception (bad_alloc, a dependency): runs `body` and
/// turns it into a Status.
template <typename Body>
Status guarded(Body&& body);

namespace detail {
Status current_exception_status();
}

template <typename Body>
Status guarded(Body&& body) {
  try {
    return body();
  } catch (...) {
    return detail::current_exception_status();
  }
}

}  // namespace niccolite

/// Returns the failure of `expression` (a Status or a Result) from the enclosing function, or
/// yields its value. Stands alone or initialises one variable, never inside a larger expression.
#define TRY(...)                                                                        \
  __extension__({                                                                       \
    auto&& niccolite_try_result = (__VA_ARGS__);                                        \
    if (!niccolite_try_result.is_ok()) return std::move(niccolite_try_result).status(); \
    std::move(niccolite_try_result).take();                                             \
  })
