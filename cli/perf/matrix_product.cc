#include "cli/perf/matrix_product.h"

#include <dlfcn.h>

#include <algorithm>
#include <cstring>
#include <random>
#include <vector>

namespace niccolite::perf {
namespace {

struct Matrices {
  gpu::Memory a, b, product;
};

/// `element` makes the elements of a and b, since products of zeros would be faster than others.
template <typename Element, typename Make>
Result<Matrices> make_matrices(gpu::Machine& machine, int device, int edge,
                               gpu::StreamHandle stream, Make make) {
  constexpr size_t kStagedElements = size_t{1} << 20;
  const size_t elements = static_cast<size_t>(edge) * static_cast<size_t>(edge);
  const size_t staged = std::min(elements, kStagedElements);
  Matrices made;
  for (gpu::Memory Matrices::*each : {&Matrices::a, &Matrices::b, &Matrices::product})
    made.*each = TRY(machine.allocate_as_user(device, elements * sizeof(Element)));
  const gpu::Memory staging = TRY(machine.allocate_host(staged * sizeof(Element)));
  for (size_t i = 0; i < staged; ++i) static_cast<Element*>(staging.data())[i] = make();
  for (gpu::Memory Matrices::*each : {&Matrices::a, &Matrices::b})
    for (size_t at = 0; at < elements; at += staged)
      TRY(machine.copy_async(static_cast<Element*>((made.*each).data()) + at, staging.data(),
                             std::min(staged, elements - at) * sizeof(Element), device, stream));
  TRY(machine.synchronize_stream(device, stream));
  return made;
}

/// The part of cuBLAS's ABI that is used here (cublas_api.h of CUDA 12 and 13).
class Cublas {
 public:
  using Handle = struct HandleObject*;
  static constexpr int kNoTranspose = 0, kBfloat16 = 14, kComputeFloat = 68, kDefault = -1;

  int (*create)(Handle*) = nullptr;
  int (*destroy)(Handle) = nullptr;
  int (*set_stream)(Handle, void* stream) = nullptr;
  int (*set_workspace)(Handle, void* memory, size_t bytes) = nullptr;
  int (*multiply)(Handle, int transposes_a, int transposes_b, int m, int n, int k,
                  const void* alpha, const void* a, int a_type, int a_stride, const void* b,
                  int b_type, int b_stride, const void* beta, void* c, int c_type, int c_stride,
                  int compute_type, int algorithm) = nullptr;

  static Result<Cublas> open(const std::string& path) {
    std::vector<std::string> names{path};
    if (path.empty()) names = {"libcublas.so.13", "libcublas.so.12"};
    void* library = nullptr;
    for (const std::string& name : names)
      if (library == nullptr) library = dlopen(name.c_str(), RTLD_NOW | RTLD_LOCAL);
    if (library == nullptr)
      return Status::invalid_argument("--beside: no cuBLAS ({}); name it by --cublas", dlerror());
    Cublas cublas;
    TRY(find(library, "cublasCreate_v2", cublas.create));
    TRY(find(library, "cublasDestroy_v2", cublas.destroy));
    TRY(find(library, "cublasSetStream_v2", cublas.set_stream));
    TRY(find(library, "cublasSetWorkspace_v2", cublas.set_workspace));
    TRY(find(library, "cublasGemmEx", cublas.multiply));
    return cublas;
  }

 private:
  template <typename Function>
  static Status find(void* library, const char* name, Function*& function) {
    function = reinterpret_cast<Function*>(dlsym(library, name));
    if (function == nullptr) return Status::invalid_argument("--cublas: it has no {}", name);
    return {};
  }
};

Status check(int result, const char* call) {
  if (result == 0) return {};
  return Status::cuda_error("{} failed with {}", call, result);
}

class CublasProduct final : public MatrixProduct {
 public:
  static Result<std::unique_ptr<MatrixProduct>> create(gpu::Machine& machine, int device, int edge,
                                                       gpu::StreamHandle stream,
                                                       const std::string& path) {
    constexpr size_t kWorkspaceBytes = size_t{64} << 20;
    auto made = std::make_unique<CublasProduct>(TRY(Cublas::open(path)), edge);
    TRY(machine.set_current_device(device));
    std::mt19937 random(static_cast<unsigned>(edge));
    made->matrices_ = TRY(make_matrices<uint16_t>(machine, device, edge, stream, [&] {
      const float value = std::uniform_real_distribution<float>(-1, 1)(random);
      uint32_t bits = 0;
      std::memcpy(&bits, &value, sizeof bits);
      return static_cast<uint16_t>(bits >> 16);  // the bfloat16 towards zero
    }));
    // Its own: cuBLAS would allocate some in the middle of a capture.
    made->workspace_ = TRY(machine.allocate_as_user(device, kWorkspaceBytes));
    TRY(check(made->cublas_.create(&made->handle_), "cublasCreate"));
    TRY(check(made->cublas_.set_stream(made->handle_, stream), "cublasSetStream"));
    TRY(check(made->cublas_.set_workspace(made->handle_, made->workspace_.data(), kWorkspaceBytes),
              "cublasSetWorkspace"));
    return std::unique_ptr<MatrixProduct>(std::move(made));
  }

  CublasProduct(Cublas cublas, int edge) : cublas_(cublas), edge_(edge) {}
  ~CublasProduct() override {
    if (handle_ != nullptr) cublas_.destroy(handle_);
  }

  Status launch() override {
    const float one = 1, zero = 0;
    return check(
        cublas_.multiply(handle_, Cublas::kNoTranspose, Cublas::kNoTranspose, edge_, edge_, edge_,
                         &one, matrices_.a.data(), Cublas::kBfloat16, edge_, matrices_.b.data(),
                         Cublas::kBfloat16, edge_, &zero, matrices_.product.data(),
                         Cublas::kBfloat16, edge_, Cublas::kComputeFloat, Cublas::kDefault),
        "cublasGemmEx");
  }

 private:
  const Cublas cublas_;
  const int edge_;
  Cublas::Handle handle_ = nullptr;
  Matrices matrices_;
  gpu::Memory workspace_;
};

class HostProduct final : public MatrixProduct {
 public:
  static Result<std::unique_ptr<MatrixProduct>> create(gpu::Machine& machine, int device, int edge,
                                                       gpu::StreamHandle stream) {
    auto made = std::make_unique<HostProduct>(machine, device, edge, stream);
    std::mt19937 random(static_cast<unsigned>(edge));
    made->matrices_ = TRY(make_matrices<float>(machine, device, edge, stream, [&] {
      return std::uniform_real_distribution<float>(-1, 1)(random);
    }));
    return std::unique_ptr<MatrixProduct>(std::move(made));
  }

  HostProduct(gpu::Machine& machine, int device, int edge, gpu::StreamHandle stream)
      : machine_(machine), device_(device), edge_(static_cast<size_t>(edge)), stream_(stream) {}

  Status launch() override {
    return machine_.call_host(
        device_, stream_, [](void* self) { static_cast<const HostProduct*>(self)->multiply(); },
        this);
  }

 private:
  void multiply() const {
    const auto* const a = static_cast<const float*>(matrices_.a.data());
    const auto* const b = static_cast<const float*>(matrices_.b.data());
    auto* const product = static_cast<float*>(matrices_.product.data());
    for (size_t row = 0; row < edge_; ++row) {
      float* const sums = product + row * edge_;
      std::fill_n(sums, edge_, 0.0F);
      for (size_t k = 0; k < edge_; ++k)
        for (size_t column = 0; column < edge_; ++column)
          sums[column] += a[row * edge_ + k] * b[k * edge_ + column];
    }
  }

  gpu::Machine& machine_;
  const int device_;
  const size_t edge_;
  const gpu::StreamHandle stream_;
  Matrices matrices_;
};

}  // namespace

Result<std::unique_ptr<MatrixProduct>> MatrixProduct::create(gpu::Machine& machine, int device,
                                                             int edge, gpu::StreamHandle stream,
                                                             const std::string& cublas) {
  if (machine.kind() == gpu::Kind::Virtual)
    return HostProduct::create(machine, device, edge, stream);
  return CublasProduct::create(machine, device, edge, stream, cublas);
}

}  // namespace niccolite::perf
