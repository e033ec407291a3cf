// A libnccl that is nobody's: it has one function, and the words by which NVIDIA's are known.
#include <cstdio>

extern "C" {
__attribute__((visibility("default"))) const char* which_banner() {
  return "NCCL version 2.99.1+cuda13.0";
}
}
namespace {
// No line of the library may run.
[[maybe_unused]] const int kLoaded = std::puts("the library's code has run");
}  // namespace
