// Outbound: what becomes of ends whose peer has left. No peer is needed for that.
#include "transport/net/outbound.h"

#include <gtest/gtest.h>

#include <string>
#include <vector>

#include "base/wait.h"
#include "gpu/virtual/driver.h"

namespace niccolite::transport::net {
namespace {

using std::chrono::seconds;

constexpr executor::FifoShape kShape{.channels = 1, .depth = 4, .slot_bytes = 4096};

Key key(int tag) { return {.tag = tag, .protocol = executor::Protocol::Simple}; }

// An operation may connect to a rank that is about to leave, after its proxy was found to be gone.
TEST(Outbound, AbandonsEndsThatComeAfterThePeerHasLeft) {
  auto loop = bootstrap::EventLoop::create().take();
  executor::relay::Bell bell{[](void*, uint64_t) {}, nullptr};
  gpu::Machine& machine = *gpu::virtual_::open(gpu::virtual_::kInterfaceVersion);
  const auto early = Outgoing::create(machine, key(1), kShape, bell).take();
  const auto late = Outgoing::create(machine, key(2), kShape, bell).take();
  const Address here = Address::parse("127.0.0.1:1").take();
  Address nobody;
  {
    const Socket listener = Socket::listen(here.with_port(0)).take();
    nobody = listener.local_address().take();
  }

  Pulse pulse;
  std::vector<std::string> failures;
  Outbound outbound(*loop, {.link = {},
                            .number = 1,
                            .peer = "rank 1",
                            .rails = {.interfaces = {{.name = "", .address = here, .netmask = {}}}},
                            .has_left = [] { return true; },
                            .fail = [&](Status why) { failures.push_back(why.message()); },
                            .pulse = &pulse});
  outbound.add(key(1), *early);
  outbound.reach(std::vector{nobody});
  const Deadline end = Deadline::after(seconds(30));
  loop->set_poller([&]() -> bootstrap::EventLoop::Clock::duration {
    if (early->is_abandoned() || end.passed()) loop->stop();
    return std::chrono::milliseconds(5);
  });
  loop->run();
  ASSERT_TRUE(early->is_abandoned());
  outbound.add(key(2), *late);
  EXPECT_TRUE(late->is_abandoned());
  EXPECT_TRUE(failures.empty()) << failures[0];
}

}  // namespace
}  // namespace niccolite::transport::net
