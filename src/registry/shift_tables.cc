#include "registry/shift_tables.h"

#include <algorithm>

#include "executor/protocol/advertisement.h"
#include "gpu/machine.h"

namespace niccolite::registry {
namespace {

constexpr size_t kLeastBytes = 8 << 10;

}  // namespace

Result<const uint64_t*> ShiftTables::add(std::span<const uint64_t> shifts) {
  if (free_.empty()) TRY(grow());
  std::byte* const table = free_.front();
  std::vector<uint64_t> entries(shifts.begin(), shifts.end());
  entries.resize(nranks_ + 1, executor::advertisement::kUnseen);
  TRY(machine_.upload(device_, table, entries.data(), table_bytes()));
  free_.pop_front();
  return reinterpret_cast<const uint64_t*>(table);
}

Status ShiftTables::set_place(const uint64_t* table, uint64_t shift) {
  return machine_.upload(device_, const_cast<uint64_t*>(table) + nranks_, &shift, sizeof shift);
}

Status ShiftTables::grow() {
  const size_t bytes = std::max(kLeastBytes, table_bytes());
  std::vector<transport::Span> page = TRY(memory_.allocate({&bytes, 1}));
  for (size_t at = 0; at + table_bytes() <= bytes; at += table_bytes())
    free_.push_back(page[0].data() + at);
  pages_.push_back(std::move(page[0]));
  return {};
}

Status ShiftTables::end(const uint64_t* table) {
  const std::vector<uint64_t> unseen(nranks_ + 1, executor::advertisement::kUnseen);
  return machine_.upload(device_, const_cast<uint64_t*>(table), unseen.data(), table_bytes());
}

void ShiftTables::give_back(const uint64_t* table) {
  free_.push_back(reinterpret_cast<std::byte*>(const_cast<uint64_t*>(table)));
}

}  // namespace niccolite::registry
