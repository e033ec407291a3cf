#include "conformance/gpu_fixture.h"

#include "gpu/cuda/open.h"
#include "gpu/virtual/tasks.h"

extern "C" niccolite::gpu::virtual_::VirtualMachine* niccolite_virtual_driver(int);

namespace niccolite::gpu {

Result<Machine*> machine_of(Kind kind) {
  if (kind == Kind::Cuda) return cuda::open();
  Machine* machine = niccolite_virtual_driver(virtual_::kInterfaceVersion);
  if (machine == nullptr) return Status::cuda_error("the virtual driver refused to open");
  return machine;
}

namespace {

INSTANTIATE_TEST_SUITE_P(All, Gpu, testing::Values(Kind::Virtual, Kind::Cuda),
                         [](const auto& instance) {
                           return std::string(instance.param == Kind::Virtual ? "Virtual" : "Cuda");
                         });

}  // namespace
}  // namespace niccolite::gpu
