// Which NICs may read and write memory of a rank's GPU, by distance.
#include "comm/gpu_direct.h"

#include <gmock/gmock.h>

#include <map>

namespace niccolite::comm {
namespace {

using ::testing::AllOf;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using topology::PathType;
using transport::net::Network;

const std::vector<Network::Port> kPorts{{.name = "mlx5_0", .device = "mlx5_0"},
                                        {.name = "mlx5_1", .device = "mlx5_1"},
                                        {.name = "mlx5_1:2", .device = "mlx5_1"},
                                        {.name = "mlx5_2", .device = "mlx5_2"}};

PathType distance(const std::string& port) {
  static const std::map<std::string, PathType> kDistances{{"mlx5_0", PathType::PIX},
                                                          {"mlx5_1", PathType::PXB},
                                                          {"mlx5_1:2", PathType::PHB},
                                                          {"mlx5_2", PathType::SYS}};
  return kDistances.at(port);
}

TEST(GpuDirect, GoesByTheLevel) {
  const auto names = [](std::optional<PathType> level, gpu::Kind kind) {
    return choose_gpu_direct(kind, level, kPorts, distance).ports;
  };
  for (const gpu::Kind kind : {gpu::Kind::Cuda, gpu::Kind::Virtual}) {
    EXPECT_THAT(names(PathType::LOC, kind), IsEmpty());
    EXPECT_THAT(names(PathType::PIX, kind), ElementsAre("mlx5_0"));
    EXPECT_THAT(names(PathType::PXB, kind), ElementsAre("mlx5_0", "mlx5_1"));
    EXPECT_THAT(names(PathType::PHB, kind), ElementsAre("mlx5_0", "mlx5_1", "mlx5_1:2"));
    EXPECT_THAT(names(PathType::SYS, kind), ElementsAre("mlx5_0", "mlx5_1", "mlx5_1:2", "mlx5_2"));
  }
  EXPECT_THAT(names({}, gpu::Kind::Virtual), ElementsAre("mlx5_0", "mlx5_1"));
}

TEST(GpuDirect, OfRealGpusHasToBeAskedFor) {
  const GpuDirect unasked = choose_gpu_direct(gpu::Kind::Cuda, {}, kPorts, distance);
  EXPECT_THAT(unasked.ports, IsEmpty());
  EXPECT_THAT(unasked.obstacle,
              AllOf(HasSubstr("GPUDirect RDMA"), HasSubstr("NCCL_NET_GDR_LEVEL=")));
}

TEST(GpuDirect, SaysWhichPortsAreTooFar) {
  EXPECT_EQ(choose_gpu_direct(gpu::Kind::Cuda, PathType::PXB, kPorts, distance).obstacle,
            "mlx5_1:2 is PHB from the GPU, mlx5_2 is SYS from the GPU, beyond PXB "
            "(NCCL_NET_GDR_LEVEL)");
  EXPECT_EQ(choose_gpu_direct(gpu::Kind::Cuda, PathType::SYS, kPorts, distance).obstacle, "");
}

TEST(GpuDirect, TakesVirtualNicsForNear) {
  const std::vector<Network::Port> ports{{.name = "vnic0", .device = "vnic0", .is_virtual = true}};
  const auto nowhere = [](const std::string&) { return PathType::DIS; };
  EXPECT_THAT(choose_gpu_direct(gpu::Kind::Virtual, {}, ports, nowhere).ports,
              ElementsAre("vnic0"));
  EXPECT_THAT(choose_gpu_direct(gpu::Kind::Cuda, PathType::PIX, ports, nowhere).ports,
              ElementsAre("vnic0"));
  EXPECT_THAT(choose_gpu_direct(gpu::Kind::Virtual, PathType::LOC, ports, nowhere).ports,
              IsEmpty());
}

}  // namespace
}  // namespace niccolite::comm
