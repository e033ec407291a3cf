// OwnedStream: a stream of a device, made and ended by nccl.virtual. Non-blocking: it does not wait
// for the default stream.
#pragma once

#include "devices.h"

namespace niccolite::python {

class OwnedStream {
 public:
  explicit OwnedStream(int device) : device_(device), handle_(devices().create_stream(device)) {}
  OwnedStream(const OwnedStream&) = delete;
  ~OwnedStream() { close(); }

  Stream handle() const { return handle_; }
  int device() const { return device_; }
  /// Its work goes on.
  void close() {
    if (handle_ != 0) devices().destroy_stream(handle_);
    handle_ = 0;
  }

 private:
  int device_;
  Stream handle_;  // 0: closed
};

}  // namespace niccolite::python
