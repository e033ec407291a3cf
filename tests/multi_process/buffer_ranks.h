// For tests of buffers that are in no window, of ranks in several processes: the ranks of one
// process, which see in their log what peers are offered; and the processes.
#pragma once

#include <gtest/gtest.h>
#include <sys/resource.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <iostream>
#include <span>
#include <string>
#include <string_view>
#include <thread>
#include <utility>
#include <vector>

#include "tests/api/trial.h"
#include "tests/multi_process/process.h"
#include "tests/multi_process/ranks.h"

namespace niccolite::test {

/// How often a role repeats what comes true by and by: as threads that map memory get a core, or
/// after so many operations. Where other processes keep the cores busy neither rounds nor seconds
/// tell by themselves that it never will.
class Attempts {
 public:
  /// After a round. False: that was the last; says so, with `what` should have come true.
  bool go_on(std::string_view what) {
    const Clock::time_point now = Clock::now();
    slowest_ = std::max(slowest_, now - std::exchange(round_began_, now));
    ++rounds_;
    const bool is_enough =
        (rounds_ >= kRounds && now - begin_ > kPatience) || now - begin_ > kMostPatience;
    if (is_enough)
      std::cout << "not within " << rounds_ << " rounds in " << seconds(now - begin_)
                << " s, the slowest of " << seconds(slowest_) << " s: " << what << "\n";
    // A thread of this process may want the core.
    if (rounds_ > kRounds) std::this_thread::sleep_for(std::chrono::milliseconds(2));
    return !is_enough;
  }

 private:
  using Clock = std::chrono::steady_clock;
  static constexpr int kRounds = 20;
  static constexpr std::chrono::seconds kPatience{100};
  static constexpr std::chrono::seconds kMostPatience{200};  // of BuffersOfProcesses::run() is more
  static double seconds(Clock::duration time) {
    return std::chrono::duration<double>(time).count();
  }

  const Clock::time_point begin_ = Clock::now();
  Clock::time_point round_began_ = begin_;
  Clock::duration slowest_{};
  int rounds_ = 0;
};

/// Counts the lines of a log with `text`, each once, however often it is asked.
class LogLines {
 public:
  LogLines(std::string path, std::string text) : path_(std::move(path)), text_(std::move(text)) {}
  size_t count() {
    std::ifstream file(path_);
    file.seekg(read_);
    for (std::string line; std::getline(file, line) && !file.eof();) {
      read_ = file.tellg();
      count_ += line.find(text_) != std::string::npos;
    }
    return count_;
  }

 private:
  const std::string path_;
  const std::string text_;
  std::streamoff read_ = 0;  // whole lines only
  size_t count_ = 0;
};

/// UndefinedBehaviorSanitizer, which builds with AddressSanitizer have, opens a pipe to see whether
/// an object can be read, and takes each for broken where it cannot.
#ifdef __SANITIZE_ADDRESS__
inline constexpr bool kNeedsDescriptors = true;
#else
inline constexpr bool kNeedsDescriptors = false;
#endif
#define SKIP_WHERE_SANITIZERS_NEED_DESCRIPTORS() \
  if (kNeedsDescriptors) GTEST_SKIP() << "UndefinedBehaviorSanitizer needs descriptors"

/// As long as it lives this process cannot open another descriptor.
class NoDescriptors {
 public:
  NoDescriptors() {
    if (getrlimit(RLIMIT_NOFILE, &before_) != 0) std::exit(40);
    rlimit none = before_;
    // None but these, which stay open: others are closed meanwhile, as memory is given back.
    none.rlim_cur = STDERR_FILENO + 1;
    if (setrlimit(RLIMIT_NOFILE, &none) != 0) std::exit(41);
  }
  ~NoDescriptors() {
    if (setrlimit(RLIMIT_NOFILE, &before_) != 0) std::exit(42);
  }
  NoDescriptors(const NoDescriptors&) = delete;

 private:
  rlimit before_{};
};

/// The ranks of one process. Arguments of its roles: id, ranks, first rank, ranks here, the file of
/// the log.
class BufferRanks {
 public:
  explicit BufferRanks(const Arguments& arguments)
      : nranks_(std::stoi(arguments[1])),
        first_(std::stoi(arguments[2])),
        ranks_(to_id(arguments[0]), nranks_, first_, std::stoi(arguments[3])),
        log_(arguments[4]),
        direct_calls_(log_, "peers are offered") {}

  /// Calls of this process of which peers were offered a buffer.
  size_t direct_calls() { return direct_calls_.count(); }

  /// What the process writes to whose log ends in that number.
  std::string log_of_process(int process) const {
    return log_.substr(0, log_.rfind('-') + 1) + std::to_string(process);
  }
  /// For a role that fails: how the log begins and ends.
  void print_log() const {
    std::vector<std::string> lines;
    std::ifstream file(log_);
    for (std::string line; std::getline(file, line);) lines.push_back(line);
    for (size_t i = 0; i < lines.size(); ++i)
      if (i < kPrinted || i + kPrinted >= lines.size()) std::cout << lines[i] << "\n";
  }

  bool call(const Trial& trial) {
    const Trial* const one = &trial;
    return call(std::span(&one, 1));
  }
  /// All of them in one group.
  bool call(std::span<const Trial* const> trials) {
    REQUIRE_NCCL(ncclGroupStart());
    for (const Trial* trial : trials)
      for (size_t i = 0; i < ranks_.comms.size(); ++i)
        REQUIRE_NCCL(trial->call(rank(i), ranks_.comms[i], ranks_.streams[i]));
    REQUIRE_NCCL(ncclGroupEnd());
    return std::ranges::all_of(trials, [this](const Trial* trial) { return is_right(*trial); });
  }
  bool is_right(const Trial& trial) {
    for (cudaStream_t stream : ranks_.streams) REQUIRE_CUDA(cudaStreamSynchronize(stream));
    for (size_t i = 0; i < ranks_.comms.size(); ++i) {
      if (const auto right = trial.is_right(rank(i)); !right) {
        std::cout << "WRONG rank " << rank(i) << " " << trial.operation() << ": " << right.message()
                  << "\n";
        return false;
      }
    }
    return true;
  }
  /// Is it true on all ranks? A collective.
  bool is_true_everywhere(bool here) {
    std::vector<int*> flags(ranks_.comms.size());
    const int value = here ? 1 : 0;
    REQUIRE_NCCL(ncclGroupStart());
    for (size_t i = 0; i < flags.size(); ++i) {
      REQUIRE_CUDA(cudaSetDevice(rank(i)));
      REQUIRE_CUDA(cudaMalloc(&flags[i], sizeof(int)));
      REQUIRE_CUDA(cudaMemcpy(flags[i], &value, sizeof value, cudaMemcpyHostToDevice));
      REQUIRE_NCCL(ncclAllReduce(flags[i], flags[i], 1, ncclInt, ncclMin, ranks_.comms[i],
                                 ranks_.streams[i]));
    }
    REQUIRE_NCCL(ncclGroupEnd());
    int all = 0;
    for (size_t i = 0; i < flags.size(); ++i) {
      REQUIRE_CUDA(cudaStreamSynchronize(ranks_.streams[i]));
      REQUIRE_CUDA(cudaMemcpy(&all, flags[i], sizeof all, cudaMemcpyDeviceToHost));
      REQUIRE_CUDA(cudaFree(flags[i]));
    }
    return all == 1;
  }

  int nranks() const { return nranks_; }
  int rank(size_t i) const { return first_ + static_cast<int>(i); }
  LocalRanks& ranks() { return ranks_; }

 private:
  static constexpr size_t kPrinted = 60;

  const int nranks_;
  const int first_;
  LocalRanks ranks_;
  const std::string log_;
  LogLines direct_calls_;
};

struct RankLayout {
  int processes;
  int devices;
};
class BuffersOfProcesses : public testing::TestWithParam<RankLayout> {
 protected:
  /// `algorithms`: null for those of which all connections put or get directly. With the Simple
  /// protocol alone.
  void run(const char* role, const char* cache, const char* algorithms = nullptr) {
    const auto [processes, devices] = GetParam();
    if (algorithms == nullptr)
      algorithms = processes * devices > 2
                       ? "direct_workers,two_shot_workers,scatter_gather_workers"
                       : "direct,two_shot";
    run(role, cache, Process::Environment{{"NCCL_PROTO", "Simple"}, {"NCCL_ALGO", algorithms}});
  }
  /// With other variables.
  void run(const char* role, const char* cache, Process::Environment environment) {
    const auto [processes, devices] = GetParam();
    ncclUniqueId id;
    ASSERT_EQ(ncclGetUniqueId(&id), ncclSuccess) << ncclGetLastError(nullptr);
    environment.insert({{"NICCOLITE_BUFFER_CACHE", cache},
                        {"NCCL_DEBUG", "TRACE"},
                        {"NCCL_DEBUG_SUBSYS", "INIT,BOOTSTRAP,P2P,REG,TUNING,DESTROY"}});
    const auto environment_of = [&](const std::string& log) {
      Process::Environment of_process = environment;
      of_process.emplace("NCCL_DEBUG_FILE", log);
      return of_process;
    };
    std::vector<Process> running;
    std::vector<std::string> logs;
    for (int p = 0; p < processes; ++p) {
      logs.push_back(testing::TempDir() + "niccolite-buffers-" + std::to_string(getpid()) + "-" +
                     std::to_string(p));
      running.emplace_back(
          role,
          Arguments{to_text(id), std::to_string(processes * devices), std::to_string(p * devices),
                    std::to_string(devices), logs[static_cast<size_t>(p)]},
          environment_of(logs.back()));
    }
    for (Process& process : running)
      EXPECT_EQ(process.wait(std::chrono::seconds(240)), 0) << process.output();
    for (const std::string& log : logs) std::filesystem::remove(log);
  }
};

inline const auto kLayouts = testing::Values(RankLayout{2, 1}, RankLayout{3, 1}, RankLayout{2, 2});
inline std::string name_of_layout(const testing::TestParamInfo<RankLayout>& layout) {
  return std::to_string(layout.param.processes) + "x" + std::to_string(layout.param.devices);
}

}  // namespace niccolite::test
