#include "cli/perf/collective.h"

#include <algorithm>
#include <bit>

#include "cli/grammar/names.h"

namespace niccolite::perf {
namespace {

// ---- how bandwidth is counted

double all_but_own(int nranks) { return static_cast<double>(nranks - 1) / nranks; }
double twice_all_but_own(int nranks) { return 2 * all_but_own(nranks); }

// ---- in how many groups

int dimensions(int nranks) { return std::countr_zero(static_cast<unsigned>(nranks)); }

// ---- the expected results

void expect_reduced(const Output& output) { output.put(0, output.count, Pattern::kReduced, 0); }

void expect_reduced_block(const Output& output) {
  output.put(0, output.count, Pattern::kReduced, static_cast<size_t>(output.rank) * output.count);
}

void expect_reduced_at_root(const Output& output) {
  if (output.rank == output.root) expect_reduced(output);
}

void expect_roots(const Output& output) { output.put(0, output.count, output.root, 0); }

void expect_block_of_root(const Output& output) {
  output.put(0, output.count, output.root, static_cast<size_t>(output.rank) * output.count);
}

void expect_previous(const Output& output) {
  output.put(0, output.count, (output.rank + output.nranks - 1) % output.nranks, 0);
}

void expect_every_rank(const Output& output) {
  for (int peer = 0; peer < output.nranks; ++peer)
    output.put(static_cast<size_t>(peer) * output.count, output.count, peer, 0);
}

void expect_every_rank_at_root(const Output& output) {
  if (output.rank == output.root) expect_every_rank(output);
}

void expect_own_block_of_every_rank(const Output& output) {
  for (int peer = 0; peer < output.nranks; ++peer)
    output.put(static_cast<size_t>(peer) * output.count, output.count, peer,
               static_cast<size_t>(output.rank) * output.count);
}

void expect_uneven_shares(const Output& output) {
  for (int peer = 0; peer < output.nranks; ++peer)
    output.put(static_cast<size_t>(peer) * output.count,
               uneven_share(output.count, peer, output.rank), peer,
               static_cast<size_t>(output.rank) * output.count);
}

// ---- the table

constexpr Collective kCollectives[] = {
    {.name = "all_reduce",
     .summary = "the reduction of all ranks' data, on all ranks",
     .send = Part::Whole,
     .receive = Part::Whole,
     .bus_factor = twice_all_but_own,
     .reduces = true,
     .function = "ncclAllReduce",
     .call = call_all_reduce,
     .kernel = KernelCall::Work::AllReduce,
     .expect = expect_reduced},
    {.name = "all_gather",
     .summary = "every rank's block, on all ranks",
     .send = Part::Block,
     .receive = Part::Blocks,
     .bus_factor = all_but_own,
     .function = "ncclAllGather",
     .call = call_all_gather,
     .kernel = KernelCall::Work::AllGather,
     .expect = expect_every_rank},
    {.name = "reduce_scatter",
     .summary = "the reduction of all ranks' data, a block on each rank",
     .send = Part::Blocks,
     .receive = Part::Block,
     .bus_factor = all_but_own,
     .reduces = true,
     .function = "ncclReduceScatter",
     .call = call_reduce_scatter,
     .kernel = KernelCall::Work::ReduceScatter,
     .expect = expect_reduced_block},
    {.name = "broadcast",
     .summary = "the root's data, on all ranks",
     .send = Part::Whole,
     .receive = Part::Whole,
     .bus_factor = one,
     .is_rooted = true,
     .function = "ncclBroadcast",
     .call = call_broadcast,
     .expect = expect_roots},
    {.name = "reduce",
     .summary = "the reduction of all ranks' data, on the root",
     .send = Part::Whole,
     .receive = Part::Whole,
     .bus_factor = one,
     .is_rooted = true,
     .reduces = true,
     .function = "ncclReduce",
     .call = call_reduce,
     .expect = expect_reduced_at_root},
    {.name = "alltoall",
     .summary = "block p of each rank to rank p; ncclAlltoAll, or sends and receives",
     .send = Part::Blocks,
     .receive = Part::Blocks,
     .bus_factor = all_but_own,
     .has_in_place = false,
     .function = "ncclAlltoAll",
     .has_send_recv_form = true,
     .call = call_alltoall,
     .kernel = KernelCall::Work::AllToAll,
     .expect = expect_own_block_of_every_rank},
    {.name = "gather",
     .summary = "every rank's block, on the root; ncclGather, or sends and receives",
     .send = Part::Block,
     .receive = Part::Blocks,
     .bus_factor = all_but_own,
     .is_rooted = true,
     .function = "ncclGather",
     .has_send_recv_form = true,
     .call = call_gather,
     .expect = expect_every_rank_at_root},
    {.name = "scatter",
     .summary = "the root's blocks, one on each rank; ncclScatter, or sends and receives",
     .send = Part::Blocks,
     .receive = Part::Block,
     .bus_factor = all_but_own,
     .is_rooted = true,
     .function = "ncclScatter",
     .has_send_recv_form = true,
     .call = call_scatter,
     .expect = expect_block_of_root},
    {.name = "sendrecv",
     .summary = "a ring: to the next rank and from the previous one, in one group",
     .send = Part::Whole,
     .receive = Part::Whole,
     .bus_factor = one,
     .has_in_place = false,
     .has_send_recv_form = true,
     .call = call_sendrecv,
     .kernel = KernelCall::Work::SendReceive,
     .expect = expect_previous},
    {.name = "hypercube",
     .summary = "an all-gather of log2(n) groups of sends and receives; n a power of two",
     .send = Part::Block,
     .receive = Part::Blocks,
     .bus_factor = all_but_own,
     .algorithm_factor = all_but_own,  // nccl-tests counts only arriving bytes
     .has_send_recv_form = true,
     .needs_power_of_two = true,
     .copies_own_block = true,
     .steps = dimensions,
     .call = call_hypercube,
     .expect = expect_every_rank},
    {.name = "alltoallv",
     .summary = "no, one, two or three thirds of block p of each rank to rank p, in one group",
     .send = Part::Blocks,
     .receive = Part::Blocks,
     .bus_factor = all_but_own,
     .has_in_place = false,
     .has_send_recv_form = true,
     .call = call_alltoallv,
     .expect = expect_uneven_shares},
    {.name = "messages_8",
     .summary = "as sendrecv, in 8 messages to the one and from the other",
     .send = Part::Whole,
     .receive = Part::Whole,
     .bus_factor = one,
     .has_in_place = false,
     .has_send_recv_form = true,
     .call = call_messages_8,
     .expect = expect_previous},
    {.name = "messages_32",
     .summary = "as sendrecv, in 32 messages to the one and from the other",
     .send = Part::Whole,
     .receive = Part::Whole,
     .bus_factor = one,
     .has_in_place = false,
     .has_send_recv_form = true,
     .call = call_messages_32,
     .expect = expect_previous},
};

}  // namespace

Shape Collective::shape(size_t elements, int nranks, int rank) const {
  const bool is_whole = send == Part::Whole;
  const auto n = static_cast<size_t>(nranks);
  Shape shape;
  shape.count = is_whole ? elements : elements / n;
  shape.send = send == Part::Blocks ? shape.count * n : shape.count;
  shape.receive = receive == Part::Blocks ? shape.count * n : shape.count;
  const size_t offset = static_cast<size_t>(rank) * shape.count;
  if (send == Part::Block) shape.send_offset = offset;
  if (receive == Part::Block) shape.receive_offset = offset;
  return shape;
}

Area Collective::expected(const Shape& shape, int root, int rank, int nranks,
                          bool is_in_place) const {
  Area area(is_in_place ? shape.area() : shape.receive);
  if (is_in_place)
    area.put({.first = shape.send_offset, .count = shape.send, .source = rank, .source_first = 0});
  expect({.area = area,
          .offset = is_in_place ? shape.receive_offset : 0,
          .count = shape.count,
          .root = root,
          .rank = rank,
          .nranks = nranks});
  return area;
}

Status Collective::check_available(const Library& library, int nranks, bool by_send_recv) const {
  if (needs_power_of_two && !std::has_single_bit(static_cast<unsigned>(nranks)))
    return Status::invalid_usage(
        "{} needs a power of two of ranks, because each swaps with those whose number differs in "
        "one bit; there are {}",
        name, nranks);
  const bool has_function = function != nullptr && library.has(function);
  if (has_function && !(by_send_recv && has_send_recv_form)) return {};
  if (!has_send_recv_form)
    return Status::invalid_usage("{} needs {}, which {} (version {}) does not have", name, function,
                                 library.path(), library.version_text());
  if (library.send != nullptr && library.receive != nullptr) return {};
  return Status::invalid_usage(
      "{} needs {}ncclSend and ncclRecv, which {} (version {}) does not have", name,
      function ? fmt::format("{} or ", function) : "", library.path(), library.version_text());
}

std::span<const Collective> collectives() { return kCollectives; }

const Collective* find_collective(std::string_view name) {
  for (const Collective& each : kCollectives)
    if (grammar::letters_of_collective(each.name) == grammar::letters_of_collective(name))
      return &each;
  return nullptr;
}

std::string describe_collectives() {
  std::string text;
  for (const Collective& each : kCollectives)
    text += fmt::format("  {:<15} {}\n", each.name, each.summary);
  return text;
}

}  // namespace niccolite::perf
