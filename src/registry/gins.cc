#include "registry/gins.h"

#include <algorithm>
#include <chrono>
#include <cstring>
#include <thread>
#include <utility>
#include <vector>

#include "base/wait.h"

namespace niccolite::registry {

Result<std::shared_ptr<Gin>> Gins::create(uint64_t number, const GinNeeds& needs) {
  bool has_other_processes = false;
  for (int peer = 0; peer < nranks(); ++peer)
    has_other_processes |= !is_remote(peer) && !is_here(peer);
  return Gin::create(
      {.machine = options_.machine,
       .device = options_.device,
       .rank = rank(),
       .nranks = nranks(),
       .number = number,
       .find_window = options_.find_window,
       .find_numbered = options_.find_numbered,
       .fail = options_.fail,
       .is_over =
           [this] { return is_closed_.load(std::memory_order_relaxed) || options_.is_over(); },
       .has_left = options_.has_left},
      needs, has_other_processes);
}

Status Gins::connect(Gin& gin, std::span<const Gin::Name> names, const Deadline& deadline) {
  links_.resize(static_cast<size_t>(nranks()));
  for (int peer = 0; peer < nranks(); ++peer) {
    const auto at = static_cast<size_t>(peer);
    if (!is_remote(peer))
      TRY(gin.memory().connect(peer, names[at], is_here(peer)));
    else if (links_[at] == nullptr)
      links_[at] = std::make_shared<GinLink>(TRY(options_.connect(peer, deadline)));
  }
  return {};
}

Status Gins::start(uint64_t number, std::shared_ptr<Gin> gin, std::byte* state,
                   const void* handle) {
  TRY(gin->start(state, options_.find_window(handle), links_));
  std::lock_guard lock(mutex_);
  live_.emplace(number, Live{handle, std::move(gin)});
  begun_ = number + 1;
  return {};
}

void Gins::end(const void* resources) {
  std::shared_ptr<Gin> gin;
  {
    std::lock_guard lock(mutex_);
    const auto found = std::ranges::find_if(
        live_, [&](const auto& entry) { return entry.second.resources == resources; });
    if (found == live_.end()) return;
    gin = found->second.gin;
  }
  gin->stop();  // meanwhile others may get
  std::lock_guard lock(mutex_);
  std::erase_if(live_, [&](const auto& entry) { return entry.second.gin == gin; });
}

void Gins::close() {
  // Kernels have ended, and their last operations are carried out, while others may get; but a peer
  // that takes nothing holds up no end.
  constexpr std::chrono::seconds kLastOperations{2};
  constexpr std::chrono::microseconds kNap{50};
  std::vector<std::shared_ptr<Gin>> all;
  {
    std::lock_guard lock(mutex_);
    for (const auto& [number, of] : live_) all.push_back(of.gin);
  }
  for (const auto& gin : all) gin->ask_to_stop();
  const Deadline until = Deadline::after(kLastOperations);
  const auto has_ended = [](const std::shared_ptr<Gin>& gin) { return gin->has_ended(); };
  while (!until.passed() && !std::ranges::all_of(all, has_ended)) std::this_thread::sleep_for(kNap);
  is_closed_.store(true, std::memory_order_relaxed);  // publishes nothing
  std::map<uint64_t, Live> live;                      // ends behind the lock
  std::lock_guard lock(mutex_);
  live.swap(live_);
}

Status Gins::land(int from, std::span<const std::byte> bytes) {
  using executor::kPutDataAt;
  GinChunk chunk;
  if (bytes.size() < kPutDataAt)
    return Status::remote_error("a kernel's operation of rank {} has a chunk of {} bytes", from,
                                bytes.size());
  std::memcpy(&chunk, bytes.data(), sizeof chunk);
  if (chunk.bytes != bytes.size() - kPutDataAt)
    return Status::remote_error("a kernel's operation of rank {} says {} bytes of a chunk of {}",
                                from, chunk.bytes, bytes.size() - kPutDataAt);
  std::shared_ptr<Gin> gin;
  {
    std::lock_guard lock(mutex_);
    if (const auto found = live_.find(chunk.communicator); found != live_.end())
      gin = found->second.gin;
    else if (chunk.communicator >= begun_)
      return Status::remote_error("a kernel of rank {} names device communicator number {}", from,
                                  chunk.communicator);
  }
  if (gin != nullptr) return gin->land(from, chunk, bytes.data() + kPutDataAt);
  if (chunk.kind == GinChunk::Kind::Get) return Gin::too_late(from);
  return {};  // nobody waits for it any more
}

}  // namespace niccolite::registry
