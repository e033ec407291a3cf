// What the housekeeper looks after, and how often.
#include "registry/housekeeper.h"

#include <gtest/gtest.h>

#include <atomic>
#include <chrono>
#include <future>
#include <thread>

namespace niccolite::registry {
namespace {

class Counted final : public Tended, public std::enable_shared_from_this<Counted> {
 public:
  explicit Counted(bool asks_again) : asks_again_(asks_again) {}
  std::optional<std::chrono::milliseconds> sweep() override {
    if (sweeps_++ == 0 && asks_again_) Housekeeper::instance().tend(shared_from_this());
    return kUsualInterval;
  }
  int sweeps() const { return sweeps_; }

 private:
  const bool asks_again_;
  std::atomic<int> sweeps_{0};
};

// A buffer that is exported while others are swept asks for the next sweep meanwhile.
TEST(Housekeeper, SweepsOnceInEachRoundWhoAsksWhileItIsSwept) {
  const auto asks = std::make_shared<Counted>(true);
  const auto does_not = std::make_shared<Counted>(false);
  Housekeeper::instance().tend(asks);
  Housekeeper::instance().tend(does_not);
  while (does_not->sweeps() < 8) std::this_thread::sleep_for(std::chrono::milliseconds(10));
  EXPECT_LE(asks->sweeps(), does_not->sweeps() + 2);
  EXPECT_GE(asks->sweeps(), 8 - 2);
}

TEST(Housekeeper, RunsErrandsInTheirOrder) {
  std::atomic<int> done{0};
  bool in_order = true;
  for (int errand = 0; errand < 100; ++errand)
    Housekeeper::mapper().run([&, errand] { in_order = (done++ == errand) && in_order; });
  while (done < 100) std::this_thread::sleep_for(std::chrono::milliseconds(1));
  EXPECT_TRUE(in_order);
}

// The driver may hold up whoever gives memory back until kernels end that wait for a mapping here.
TEST(Housekeeper, MapsWhileMemoryIsGivenBack) {
  std::promise<void> mapped;
  std::promise<void> given_back;
  Housekeeper::instance().run([&] {
    mapped.get_future().wait();
    given_back.set_value();
  });
  Housekeeper::mapper().run([&] { mapped.set_value(); });
  given_back.get_future().wait();
}

}  // namespace
}  // namespace niccolite::registry
