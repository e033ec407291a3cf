#include "observe/dump_writer.h"

#include <condition_variable>
#include <map>
#include <mutex>
#include <utility>

#include "base/thread.h"

namespace niccolite::observe {

struct DumpWriter::State {
  using Clock = std::chrono::steady_clock;
  explicit State(Write write_) : write(std::move(write_)) {}

  const Write write;
  std::mutex mutex;
  std::condition_variable changed;  // a file has been written
  std::map<std::string, std::string> texts;
  bool is_running = false;     // the thread
  Clock::time_point began_at;  // of the file under way
};

DumpWriter::DumpWriter(Write write) : state_(std::make_shared<State>(std::move(write))) {}

void DumpWriter::write(const std::string& path, std::string text) {
  std::unique_lock lock(state_->mutex);
  state_->texts[path] = std::move(text);
  const bool is_first = !std::exchange(state_->is_running, true);
  if (is_first) state_->began_at = State::Clock::now();
  lock.unlock();
  if (is_first) {
    Result<Thread> thread = Thread::start("nccl-dump", [state = state_] { run(*state); });
    if (thread.is_ok())
      thread->detach();
    else
      run(*state_);  // without a thread the caller writes
  }
  wait();
}

void DumpWriter::run(State& state) {
  std::unique_lock lock(state.mutex);
  while (!state.texts.empty()) {
    const auto next = state.texts.extract(state.texts.begin());
    state.began_at = State::Clock::now();
    lock.unlock();
    state.write(next.key(), next.mapped());
    lock.lock();
    state.changed.notify_all();
  }
  state.is_running = false;
  state.changed.notify_all();
}

void DumpWriter::wait() const {
  std::unique_lock lock(state_->mutex);
  while (state_->is_running) {
    const auto end = state_->began_at + kPatience;
    if (State::Clock::now() >= end) return;
    state_->changed.wait_until(lock, end);
  }
}

}  // namespace niccolite::observe
