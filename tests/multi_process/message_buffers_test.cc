// Buffers that are in no window, of live messages between processes: both ends of a message have
// one plan for it, whatever becomes of the memory.

#include <gtest/gtest.h>

#include <fstream>
#include <iostream>
#include <optional>
#include <string>
#include <vector>

#include "tests/multi_process/buffer_ranks.h"

namespace niccolite::test {
namespace {

/// What every rank here sends to all others and gets from them, by messages of uneven lengths.
class Messages {
 public:
  explicit Messages(BufferRanks& ranks) : ranks_(ranks) { allocate(); }
  ~Messages() { release(); }
  Messages(const Messages&) = delete;
  Messages& operator=(const Messages&) = delete;

  /// Other memory, perhaps at the same addresses.
  void replace() {
    release();
    allocate();
  }
  /// `groups`: in so many groups, as each process likes. False: a byte is wrong.
  bool exchange(int groups) {
    ++round_;
    for_each([&](size_t i, int peer, Block& block) {
      std::vector<uint8_t> bytes(kMost);
      for (size_t at = 0; at < kMost; ++at) bytes[at] = byte(ranks_.rank(i), peer, at);
      REQUIRE_CUDA(cudaMemcpy(block.sent, bytes.data(), kMost, cudaMemcpyHostToDevice));
      REQUIRE_CUDA(cudaMemset(block.received, 0, kMost));
    });
    // A group has the messages of some distances; where a process has several ranks, of all.
    for (int group = 0; group < groups; ++group) {
      REQUIRE_NCCL(ncclGroupStart());
      for_each([&](size_t i, int peer, const Block& block) {
        const int self = ranks_.rank(i);
        const auto is_now = [&](int from, int to) {
          return ((to - from + ranks_.nranks()) % ranks_.nranks()) % groups == group;
        };
        if (is_now(self, peer))
          REQUIRE_NCCL(ncclSend(block.sent, count(self, peer), ncclUint8, peer,
                                ranks_.ranks().comms[i], ranks_.ranks().streams[i]));
        if (is_now(peer, self))
          REQUIRE_NCCL(ncclRecv(block.received, count(peer, self), ncclUint8, peer,
                                ranks_.ranks().comms[i], ranks_.ranks().streams[i]));
      });
      REQUIRE_NCCL(ncclGroupEnd());
    }
    for (cudaStream_t stream : ranks_.ranks().streams) REQUIRE_CUDA(cudaStreamSynchronize(stream));
    bool is_right = true;
    for_each([&](size_t i, int peer, const Block& block) {
      std::vector<uint8_t> bytes(kMost);
      REQUIRE_CUDA(cudaMemcpy(bytes.data(), block.received, kMost, cudaMemcpyDeviceToHost));
      const int self = ranks_.rank(i);
      for (size_t at = 0; at < kMost; ++at)
        is_right &= bytes[at] == (at < count(peer, self) ? byte(peer, self, at) : 0);
    });
    if (!is_right) std::cout << "WRONG bytes in round " << round_ << "\n";
    return is_right;
  }
  /// Pairs, in either direction, of a rank here with one of another process.
  size_t agreeing() const {
    const auto here = ranks_.ranks().comms.size();
    return 2 * here * (static_cast<size_t>(ranks_.nranks()) - here);
  }

 private:
  static constexpr size_t kMost = 120'000;
  struct Block {
    uint8_t* sent = nullptr;
    uint8_t* received = nullptr;
  };

  uint8_t byte(int from, int to, size_t at) const {
    return static_cast<uint8_t>(1 +
                                (at * 7 + round_ * 31 + static_cast<size_t>(from * 5 + to)) % 251);
  }
  static size_t count(int from, int to) {
    return kMost - static_cast<size_t>(10'007 * ((3 * from + to) % 5));
  }
  template <typename Function>
  void for_each(Function&& function) {
    for (size_t i = 0; i < ranks_.ranks().comms.size(); ++i) {
      REQUIRE_CUDA(cudaSetDevice(ranks_.rank(i)));
      for (int peer = 0; peer < ranks_.nranks(); ++peer)
        if (peer != ranks_.rank(i))
          function(i, peer,
                   blocks_[i * static_cast<size_t>(ranks_.nranks()) + static_cast<size_t>(peer)]);
    }
  }
  void allocate() {
    blocks_.resize(ranks_.ranks().comms.size() * static_cast<size_t>(ranks_.nranks()));
    for_each([](size_t, int, Block& block) {
      REQUIRE_CUDA(cudaMalloc(&block.sent, kMost));
      REQUIRE_CUDA(cudaMalloc(&block.received, kMost));
    });
  }
  void release() {
    for_each([](size_t, int, Block& block) {
      REQUIRE_CUDA(cudaFree(block.sent));
      REQUIRE_CUDA(cudaFree(block.received));
    });
  }

  BufferRanks& ranks_;
  std::vector<Block> blocks_;
  size_t round_ = 0;
};

// With buffers that stay, all pairs agree on direct plans; with such that are freed and come back,
// on slots again.
ROLE(agree_on_messages) {
  BufferRanks ranks(arguments);
  Messages messages(ranks);
  const auto goes_on_until_all = [&](const std::string& what, bool replaces) {
    LogLines changes(arguments[4], "on have plans for " + what);
    Attempts attempts;
    int round = 0;
    do {
      for (int i = 0; i < 10; ++i) {
        if (replaces) messages.replace();
        // Processes group alike or not, where each has one rank, which may.
        const bool is_alone = ranks.ranks().comms.size() == 1;
        if (!messages.exchange(is_alone && round % 2 == 1 ? 1 + ranks.rank(0) % 2 : 1))
          return false;
      }
      if (ranks.is_true_everywhere(changes.count() >= messages.agreeing())) return true;
      ++round;
    } while (attempts.go_on("plans are those for " + what));
    std::cout << changes.count() << " of " << messages.agreeing() << " pairs have them:\n";
    std::ifstream log(arguments[4]);
    for (std::string line; std::getline(log, line);)
      if (line.find("have plans for") != std::string::npos) std::cout << line << "\n";
    ranks.print_log();
    return false;
  };
  if (!goes_on_until_all("the receiver's buffers", false)) return 1;
  if (!goes_on_until_all("slots", true)) return 2;
  ranks.ranks().destroy();
  return 0;
}

// Ends agree on direct plans where the sender has mapped the receiver's buffers, whoever else has.
ROLE(agree_on_messages_of_the_last_later) {
  BufferRanks ranks(arguments);
  const int self = ranks.rank(0);
  const int last = ranks.nranks() - 1;
  Messages messages(ranks);
  if (!messages.exchange(1) || !ranks.is_true_everywhere(true)) return 1;  // all are connected
  messages.replace();
  std::optional<NoDescriptors> lack;
  if (self == last) lack.emplace();
  if (!ranks.is_true_everywhere(true)) return 1;  // it lacks them before it is asked
  const auto changes = [&](int sender) {
    return LogLines(arguments[4], "messages from rank " + std::to_string(sender) + " from number");
  };
  LogLines of_last = changes(last);
  LogLines of_other = changes(last - 1 - self);
  const auto goes_on_until_agreed = [&](LogLines& with) {
    Attempts attempts;
    do {
      for (int i = 0; i < 10; ++i)
        if (!messages.exchange(1)) return false;
      if (ranks.is_true_everywhere(self == last || with.count() > 0)) return true;
    } while (attempts.go_on("plans are those for the receiver's buffers"));
    ranks.print_log();
    return false;
  };
  if (!goes_on_until_agreed(of_other)) return 2;
  if (!ranks.is_true_everywhere(self == last || of_last.count() == 0)) return 3;
  lack.reset();
  if (!goes_on_until_agreed(of_last)) return 4;
  ranks.ranks().destroy();
  return 0;
}

class MessageBuffers : public BuffersOfProcesses {};

TEST_P(MessageBuffers, HaveTheirEndsAgreeOnPlans) { run("agree_on_messages", "1G"); }

INSTANTIATE_TEST_SUITE_P(, MessageBuffers, kLayouts, name_of_layout);

class MessageBuffersOfThree : public BuffersOfProcesses {};

TEST_P(MessageBuffersOfThree, AreAgreedOnWithTheThirdLaterWhereItCouldNotMapThem) {
  SKIP_WHERE_SANITIZERS_NEED_DESCRIPTORS();
  run("agree_on_messages_of_the_last_later", "1G");
}

INSTANTIATE_TEST_SUITE_P(, MessageBuffersOfThree, testing::Values(RankLayout{3, 1}),
                         name_of_layout);

}  // namespace
}  // namespace niccolite::test
