// Engine: a thread that moves what it finds at its looks, rung for or not.
#include "transport/net/engine.h"

#include <gtest/gtest.h>

#include <atomic>
#include <thread>

#include "base/wait.h"

namespace niccolite::transport::net {
namespace {

using std::chrono::seconds;

class Engines : public testing::TestWithParam<gpu::Kind> {
 protected:
  void SetUp() override {
    engine = Engine::create({.machine = GetParam(),
                             .name = "test",
                             .progress =
                                 [this] {
                                   if (work.load() == moved.load()) return false;
                                   ++moved;
                                   return true;
                                 },
                             .is_finished = [this] { return is_over.load(); }})
                 .take();
    ASSERT_TRUE(engine->start().is_ok());
  }
  void TearDown() override {
    is_over = true;
    engine->loop().post([] {});
    engine->join();
  }
  bool is_moved() {
    for (const Deadline deadline = Deadline::after(seconds(30)); !deadline.passed();
         std::this_thread::yield())
      if (work.load() == moved.load()) return true;
    return false;
  }

  std::atomic<int> work{0};
  std::atomic<int> moved{0};
  std::atomic<bool> is_over{false};
  std::unique_ptr<Engine> engine;
};

TEST_P(Engines, MoveWhatTheyAreRungFor) {
  for (int i = 0; i < 1000; ++i) {
    ++work;
    engine->bell().announce();
    ASSERT_TRUE(is_moved()) << i;
  }
}

TEST_P(Engines, OfGpusFindWhatNobodyRingsFor) {
  if (GetParam() != gpu::Kind::Cuda) GTEST_SKIP() << "kernels of virtual GPUs ring";
  for (int i = 0; i < 1000; ++i) {
    ++work;
    ASSERT_TRUE(is_moved()) << i;
  }
}

INSTANTIATE_TEST_SUITE_P(, Engines, testing::Values(gpu::Kind::Virtual, gpu::Kind::Cuda),
                         [](const auto& kind) {
                           return std::string(kind.param == gpu::Kind::Cuda ? "Cuda" : "Virtual");
                         });

}  // namespace
}  // namespace niccolite::transport::net
