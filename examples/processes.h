// Starts the processes of a job on this machine, without MPI: the parent becomes nothing but their
// parent, each child learns its number, and process 0 hands the unique id to the others through
// pipes. Any other way to carry 128 bytes does as well: a file, a socket, a job scheduler's
// key-value store.
#pragma once

#include <sys/wait.h>
#include <unistd.h>

#include <vector>

#include "check.h"

class Processes {
 public:
  explicit Processes(int count) : pipes_(static_cast<size_t>(count)) {
    for (Pipe& pipe : pipes_) {
      int ends[2];
      if (::pipe(ends) != 0) fail("pipe");
      pipe = {ends[0], ends[1]};
    }
  }
  Processes(const Processes&) = delete;
  Processes& operator=(const Processes&) = delete;

  /// Runs `body(process number)` in processes of their own; its result is the process's exit code.
  /// Returns how many failed. No CUDA or NCCL call may come before: neither survives a fork.
  template <typename Body>
  int run(Body body) {
    std::vector<pid_t> children;
    for (int number = 0; number < static_cast<int>(pipes_.size()); ++number) {
      const pid_t child = fork();
      if (child < 0) fail("fork");
      if (child == 0) {
        keep_ends_of(number);
        std::exit(body(number));
      }
      children.push_back(child);
    }
    keep_ends_of(kNoProcess);
    int failed = 0;
    for (pid_t child : children) {
      int status = 0;
      waitpid(child, &status, 0);
      failed += !(WIFEXITED(status) && WEXITSTATUS(status) == 0);
    }
    return failed;
  }

  /// The same id in every process: made by process 0, read from their pipe by the others.
  ncclUniqueId share_unique_id(int number) const {
    ncclUniqueId id;
    if (number == 0) {
      CHECK_NCCL(ncclGetUniqueId(&id));
      for (size_t other = 1; other < pipes_.size(); ++other)
        if (write(pipes_[other].write_end, &id, sizeof(id)) != sizeof(id)) fail("write");
    } else if (read(pipes_[static_cast<size_t>(number)].read_end, &id, sizeof(id)) != sizeof(id)) {
      fail("process 0 ended before it sent the unique id");
    }
    return id;
  }

 private:
  struct Pipe {
    int read_end = -1;
    int write_end = -1;
  };
  static constexpr int kNoProcess = -1;

  [[noreturn]] static void fail(const char* what) {
    std::perror(what);
    std::exit(1);
  }

  // Process 0 keeps the writing ends, every other one its reading end, so that a reader sees the
  // end of a writer that died.
  void keep_ends_of(int number) {
    for (int i = 0; i < static_cast<int>(pipes_.size()); ++i) {
      const Pipe& pipe = pipes_[static_cast<size_t>(i)];
      if (number != 0) close(pipe.write_end);
      if (number != i) close(pipe.read_end);
    }
  }

  std::vector<Pipe> pipes_;
};
