#include "cli/perf/buffers.h"

namespace niccolite::perf {
namespace {

size_t sets_of(const Options& options) {
  return options.allocator == Allocator::Nccl ? static_cast<size_t>(options.libraries()) : 1;
}

}  // namespace

size_t Buffers::bytes(const Options& options, size_t bytes_each) {
  const size_t pairs =
      options.has_fresh_buffers() ? kFreshPairs + 1 : static_cast<size_t>(options.buffer_pairs);
  const size_t borrowed = options.first_calls > 0 ? 1 : 0;
  return (sets_of(options) * pairs + borrowed) * 2 * bytes_each;
}

Result<Buffers> Buffers::create(gpu::Machine& machine, const Options& options,
                                std::span<const Library> libraries, int device,
                                gpu::StreamHandle stream, size_t bytes_each) {
  Buffers made;
  made.bytes_each_ = bytes_each;
  made.is_fresh_ = options.has_fresh_buffers();
  // Windows are of memory that other processes can map.
  made.is_shareable_ =
      options.registration == Registration::Window && options.allocator == Allocator::Malloc;
  for (size_t i = 0; i < sets_of(options); ++i) {
    Set& set = made.sets_.emplace_back();
    set.source = {&machine, options.allocator, &libraries[i], device, stream};
    for (int pair = 0; pair < options.buffer_pairs; ++pair) {
      set.pairs.push_back(TRY(made.allocate(set.source)));
      // Touched once: the first write to a page of a virtual GPU's memory is the system's work, not
      // the library's.
      for (const UserMemory* memory : {&set.pairs.back().send, &set.pairs.back().receive})
        TRY(machine.set_async(memory->data(), 0, bytes_each, device, stream));
    }
  }
  return made;
}

Result<BufferPair> Buffers::allocate(const MemorySource& source) const {
  const auto allocate = [&] {
    return is_shareable_ ? UserMemory::allocate_shareable(source, bytes_each_)
                         : UserMemory::allocate(source, bytes_each_);
  };
  BufferPair pair;
  pair.send = TRY(allocate());
  pair.receive = TRY(allocate());
  return pair;
}

const BufferPair& Buffers::current(int library) const {
  const Set& set = sets_[set_of(library)];
  if (set.borrowed) return *set.borrowed;
  return is_fresh_ ? set.pairs.back() : set.pairs[current_[static_cast<size_t>(library)]];
}

Status Buffers::advance(int library) {
  Set& set = sets_[set_of(library)];
  if (!is_fresh_) {
    size_t& current = current_[static_cast<size_t>(library)];
    current = (current + 1) % set.pairs.size();
    return {};
  }
  set.pairs.push_back(TRY(allocate(set.source)));
  if (set.pairs.size() > kFreshPairs) set.pairs.pop_front();
  return {};
}

Status Buffers::take_fresh(int library) {
  Set& set = sets_[set_of(library)];
  set.borrowed = TRY(allocate(set.source));
  return {};
}

}  // namespace niccolite::perf
