// Which operations wait for which, where several communicators share a device.
#include "operations/launch_order.h"

#include <gtest/gtest.h>

#include <cstdlib>

#include "gpu/virtual/driver.h"
#include "operations/launcher.h"

namespace niccolite::operations {
namespace {

constexpr int kPlaces = 1000;
// Before anybody reads it. No other test of the program has so wide operations.
[[maybe_unused]] const int limited =
    setenv("NICCOLITE_VIRTUAL_SMS", std::to_string(kPlaces).c_str(), 1);

gpu::Machine& machine() { return *gpu::virtual_::open(gpu::virtual_::kInterfaceVersion); }

/// A communicator whose executor tells nobody what it has begun, as kernels of real GPUs do not
/// unless they are asked to.
struct Member {
  explicit Member(int most = kPlaces / 2, int usual = 0)
      : last_work(std::make_shared<gpu::Event>(machine().create_event(0, /*timing=*/false).take())),
        order(LaunchOrder::join({.machine = machine(),
                                 .device = 0,
                                 .recorder = std::make_shared<observe::Recorder>(),
                                 .last_work = last_work,
                                 .most_ctas = most,
                                 .usual_ctas = usual})
                  .take()) {}

  /// For how many of the others' operations it waits.
  size_t launch(int ctas) {
    LaunchOptions options{.number = ++launches};
    EXPECT_TRUE(order->before(ctas, options).is_ok());
    return options.order.before.size();
  }
  /// What it has launched is queued, and behind it the event.
  void queued(gpu::StreamHandle stream) const {
    EXPECT_TRUE(machine().record_event(*last_work, 0, stream).is_ok());
    order->after();
  }

  std::shared_ptr<gpu::Event> last_work;
  std::unique_ptr<LaunchOrder> order;
  uint64_t launches = 0;
};

// Where not even two of the widest have a place together, the widest are expected from the start.
TEST(LaunchOrder, ExpectsTheWidestWhereTwoOfThemHaveNoPlace) {
  for (const int most : {kPlaces / 2, kPlaces}) {
    std::vector<Member> members;
    for (int i = 0; i < 2; ++i) members.emplace_back(most, kPlaces / 4);
    members[0].launch(kPlaces / 4);  // and has not begun
    EXPECT_EQ(members[1].launch(most), most == kPlaces / 2 ? 0u : 1u);
  }
}

TEST(LaunchOrder, CountsNobodyWhoIsIdle) {
  std::vector<Member> members(4);
  const gpu::Stream stream = machine().create_stream(0).take();
  for (Member& member : members) {
    member.launch(kPlaces / 2);
    member.queued(stream.handle());
  }
  ASSERT_TRUE(machine().synchronize_stream(0, stream.handle()).is_ok());
  EXPECT_EQ(members[0].launch(kPlaces / 2), 0u);
  members[0].queued(stream.handle());
}

TEST(LaunchOrder, CountsWhatIsUnderWayOrIsBeingLaunched) {
  std::vector<Member> members(3);
  const gpu::Stream stream = machine().create_stream(0).take();
  std::atomic<bool> may_end{false};
  const auto hold = [](void* flag) {
    while (!static_cast<std::atomic<bool>*>(flag)->load()) std::this_thread::yield();
  };
  ASSERT_TRUE(machine().call_host(0, stream.handle(), hold, &may_end).is_ok());
  EXPECT_EQ(members[0].launch(kPlaces / 2), 0u);
  members[0].queued(stream.handle());                          // has not ended
  EXPECT_EQ(members[1].launch(kPlaces / 2), 0u) << "two fit";  // and is not queued yet
  EXPECT_EQ(members[2].launch(kPlaces / 2), 2u);
  may_end = true;
  ASSERT_TRUE(machine().synchronize_stream(0, stream.handle()).is_ok());
  EXPECT_EQ(members[2].launch(kPlaces / 2), 0u) << "one is over";
  for (const Member& member : members) member.queued(stream.handle());
}

}  // namespace
}  // namespace niccolite::operations
