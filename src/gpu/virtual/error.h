// Error: the refusals of a virtual GPU, with the numbers of CUDA's cudaError_t, so that vcuda hands
// it on as it is and Machine turns it into a Status. Inside gpu/virtual and vcuda only.
#pragma once

namespace niccolite::gpu::virtual_ {

// X(enumerator, value, "text"): the errors that virtual GPUs give. The name is "cudaError" +
// enumerator.
#define NICCOLITE_VIRTUAL_ERRORS(X)                                                              \
  X(InvalidValue, 1, "invalid argument")                                                         \
  X(MemoryAllocation, 2, "out of memory")                                                        \
  X(InitializationError, 3,                                                                      \
    "initialization error: forked from a process that used its virtual GPUs, or no threads")     \
  X(InvalidPitchValue, 12, "invalid pitch argument")                                             \
  X(InvalidMemcpyDirection, 21, "invalid copy direction for memcpy")                             \
  X(NoDevice, 100, "no virtual GPU is configured, or visible to this process")                   \
  X(InvalidDevice, 101, "invalid device ordinal")                                                \
  X(OperatingSystem, 304, "a call of the operating system failed")                               \
  X(InvalidResourceHandle, 400, "invalid resource handle")                                       \
  X(IllegalState, 401, "the object is in a state that does not allow this call")                 \
  X(NotReady, 600, "device not ready")                                                           \
  X(PeerAccessAlreadyEnabled, 704, "peer access is already enabled")                             \
  X(PeerAccessNotEnabled, 705, "peer access has not been enabled")                               \
  X(HostMemoryAlreadyRegistered, 712, "part or all of the memory range is already registered")   \
  X(HostMemoryNotRegistered, 713, "the memory range is not registered")                          \
  X(NotSupported, 801, "operation not supported by virtual GPUs")                                \
  X(SystemNotReady, 802, "a device of the multicast team was not added in time")                 \
  X(StreamCaptureUnsupported, 900, "operation not permitted when stream is capturing")           \
  X(StreamCaptureInvalidated, 901, "the capture was invalidated by an earlier error")            \
  X(StreamCaptureMerge, 902, "operation would merge two captures into one")                      \
  X(StreamCaptureUnmatched, 903, "the capture was not begun in this stream")                     \
  X(StreamCaptureUnjoined, 904, "capturing streams have work that the origin has not joined")    \
  X(StreamCaptureIsolation, 905, "capturing stream would depend on work outside of the capture") \
  X(StreamCaptureImplicit, 906, "operation would depend on a capture through the legacy stream") \
  X(GraphExecUpdateFailure, 910, "the graph differs from the one that is to be updated")         \
  X(CapturedEvent, 907, "operation not permitted on an event last recorded in a capture")        \
  X(StreamCaptureWrongThread, 908, "the capture was begun by another thread")

enum class [[nodiscard]] Error : int{None = 0,
#define X(name, value, text) name = value,
                                     NICCOLITE_VIRTUAL_ERRORS(X)
#undef X
};

constexpr const char* name_of(Error error) {
  switch (error) {
    case Error::None:
      return "cudaSuccess";
#define X(name, value, text) \
  case Error::name:          \
    return "cudaError" #name;
      NICCOLITE_VIRTUAL_ERRORS(X)
#undef X
  }
  return "cudaErrorUnknown";
}

constexpr const char* text_of(Error error) {
  switch (error) {
    case Error::None:
      return "no error";
#define X(name, value, text) \
  case Error::name:          \
    return text;
      NICCOLITE_VIRTUAL_ERRORS(X)
#undef X
  }
  return "unknown error";
}

}  // namespace niccolite::gpu::virtual_

/// Returns the error of `expression` from the enclosing function, unless it is None.
#define TRY_VIRTUAL(...)                                                             \
  do {                                                                               \
    const ::niccolite::gpu::virtual_::Error niccolite_virtual_error = (__VA_ARGS__); \
    if (niccolite_virtual_error != ::niccolite::gpu::virtual_::Error::None)          \
      return niccolite_virtual_error;                                                \
  } while (false)
