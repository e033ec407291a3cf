#include "base/status.h"

#include <cstring>
#include <exception>

namespace niccolite {

const char* name_of(Code code) {
  switch (code) {
    case Code::Ok:
      return "ok";
    case Code::CudaError:
      return "CUDA error";
    case Code::SystemError:
      return "system error";
    case Code::InternalError:
      return "internal error";
    case Code::InvalidArgument:
      return "invalid argument";
    case Code::InvalidUsage:
      return "invalid usage";
    case Code::RemoteError:
      return "remote error";
  }
  return "unknown code";
}

Status Status::make(Code code, SourceLocation place, std::string message) {
  Status status;
  status.failure_ = std::make_unique<Failure>(Failure{code, -1, place, std::move(message)});
  return status;
}

Status Status::from_errno(int error_number, std::string_view what, SourceLocation place) {
  char text[128];
  // The GNU strerror_r: returns the text, which need not be in `text`.
  const char* cause = strerror_r(error_number, text, sizeof text);
  return make(Code::SystemError, place, fmt::format("{}: {}", what, cause));
}

const std::string& Status::message() const {
  static const std::string none;
  return failure_ ? failure_->message : none;
}

Status& Status::set_peer(int rank) & {
  if (failure_) failure_->peer = rank;
  return *this;
}

Status Status::copy() const {
  Status status;
  if (failure_) status.failure_ = std::make_unique<Failure>(*failure_);
  return status;
}

void Status::prepend(const std::string& context) {
  failure_->message = context + ": " + failure_->message;
}

Status detail::current_exception_status() {
  try {
    throw;
  } catch (const std::bad_alloc&) {
    return Status::system_error("out of host memory");
  } catch (const std::exception& exception) {
    return Status::internal("unexpected exception: {}", exception.what());
  } catch (...) {
    return Status::internal("unexpected exception of an unknown type");
  }
}

}  // namespace niccolite
