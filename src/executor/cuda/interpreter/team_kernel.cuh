// The interpreter for programs some of whose connections go by a multicast team (lowering/routes.h:
// team store, team load). By Simple it moves units of 16 bytes by threads, and knows no stages; by
// LL it stores words (ll_step.cuh).
//
//   team store   the chunk is stored once, at the team's address of the slot
//   team load    each thread puts its units of the local operand into the own slot, and loads the
//                reduction of all members' slots from the team's address
//
// Waits, credit and announcements are as in single connections (simple_step.cuh). In
// an instruction's list of ports the connections by a team come first (launch/tables.cc), and
// there are LaunchHeader::team_peers of them. A slot ends with a whole unit, so that units by a
// team are always whole: what lies behind the chunk's end is not looked at.
//
// Workers that only wait until others have loaded or stored their data share a warp, and so do all
// at one end of one connection, if they are more than a CTA has warps (launch/worker_movers.h). The
// warp's threads move whatever chunk can go, so that no worker waits behind another.
#pragma once

#include "executor/cuda/interpreter/kernel.cuh"

namespace niccolite::executor::cuda {

/// An operation of a launch by a team.
template <typename Operation>
struct ByTeam : Operation {
  static constexpr bool kByTeam = true;
};

/// Where one instruction's chunk comes from and goes to.
struct TeamMove {
  const std::byte* staged_source;  // of a team load from slots: the local operand; else null
  std::byte* staged;               // and the own slot that it goes to
  const std::byte* team_source;    // the same slot of all members, or one place of their windows
  std::byte* const* operands;      // and other operands, in reduction order
  uint32_t operand_count;
  std::byte* team_target;  // of a team store, else null
  std::byte* const* sends;
  uint32_t send_count;
  std::byte* target;  // or null
  uint32_t bytes;
  uint32_t width;  // bytes that all addresses but the team's are aligned to, at most 16
};

/// Up to 16 bytes.
template <typename Element>
__device__ __forceinline__ Vec16 load_unit(const std::byte* address, uint32_t bytes,
                                           uint32_t width) {
  if (width >= kVec16 && bytes == kVec16) return ptx::load_vec16(address);
  Vec16 unit{};
  unit.half[0] = load_vec8<Element>(address, bytes < kVec8 ? bytes : kVec8, width);
  if (bytes > kVec8) unit.half[1] = load_vec8<Element>(address + kVec8, bytes - kVec8, width);
  return unit;
}
template <typename Element>
__device__ __forceinline__ void store_unit(std::byte* address, const Vec16& unit, uint32_t bytes,
                                           uint32_t width) {
  if (width >= kVec16 && bytes == kVec16) return ptx::store_vec16(address, unit);
  store_vec8<Element>(address, unit.half[0], bytes < kVec8 ? bytes : kVec8, width);
  if (bytes > kVec8) store_vec8<Element>(address + kVec8, unit.half[1], bytes - kVec8, width);
}

/// Moves a chunk, by all threads of the worker.
template <typename Operation>
__device__ __forceinline__ void team_chunk(const WorkerThreads& worker, const TeamMove& move) {
  using Element = typename Operation::Element;
  constexpr uint32_t kUnroll = Operation::kReduces ? 2 : 4;
  const uint32_t units = (move.bytes + kVec16 - 1) / kVec16;
  const auto bytes_of = [&](uint32_t unit) {
    const uint32_t left = move.bytes - unit * kVec16;
    return left < kVec16 ? left : kVec16;
  };
  if (move.staged != nullptr) {
    for (uint32_t unit = worker.rank; unit < units; unit += worker.size) {
      ptx::store_vec16(
          move.staged + unit * kVec16,
          load_unit<Element>(move.staged_source + unit * kVec16, bytes_of(unit), move.width));
    }
  }
  // Behind these stores, and behind what the members have announced.
  if (move.team_source != nullptr) ptx::fence_aliases();
  for (uint32_t first = worker.rank; first < units; first += kUnroll * worker.size) {
    // Calls function(i, unit) for the thread's units. The thread itself has staged them.
    const auto each = [&](auto&& function) {
#pragma unroll
      for (uint32_t i = 0; i < kUnroll; ++i) {
        const uint32_t unit = first + i * worker.size;
        if (unit < units) function(i, unit);
      }
    };
    Vec16 result[kUnroll] = {};
    uint32_t next = 0;  // operand
    if constexpr (Operation::kReduces) {
      if (move.team_source != nullptr) {
        each([&](uint32_t i, uint32_t unit) {
          result[i] = ptx::load_from_team<Operation::kDataType, Operation::kReduceOp>(
              move.team_source + unit * kVec16);
        });
      }
    }
    if (move.team_source == nullptr && move.operand_count != 0) {
      each([&](uint32_t i, uint32_t unit) {
        result[i] =
            load_unit<Element>(move.operands[0] + unit * kVec16, bytes_of(unit), move.width);
      });
      next = 1;
    }
    if constexpr (Operation::kReduces) {
      if (next < move.operand_count) {
        typename Operation::Values values[kUnroll][2];
#pragma unroll
        for (uint32_t i = 0; i < kUnroll; ++i) {
          for (int half = 0; half < 2; ++half)
            values[i][half] = Operation::widen(result[i].half[half]);
        }
#pragma unroll 1
        for (uint32_t k = next; k < move.operand_count; ++k) {
          each([&](uint32_t i, uint32_t unit) {
            const Vec16 operand =
                load_unit<Element>(move.operands[k] + unit * kVec16, bytes_of(unit), move.width);
            for (int half = 0; half < 2; ++half)
              Operation::accumulate(values[i][half], Operation::widen(operand.half[half]));
          });
        }
#pragma unroll
        for (uint32_t i = 0; i < kUnroll; ++i) {
          for (int half = 0; half < 2; ++half)
            result[i].half[half] = Operation::narrow(values[i][half]);
        }
      }
    }
    if (move.team_target != nullptr) {
      each([&](uint32_t i, uint32_t unit) {
        ptx::store_to_team(move.team_target + unit * kVec16, result[i]);
      });
    }
#pragma unroll 1
    for (uint32_t s = 0; s < move.send_count; ++s) {
      each([&](uint32_t i, uint32_t unit) {
        store_unit<Element>(move.sends[s] + unit * kVec16, result[i], bytes_of(unit), move.width);
      });
    }
    if (move.target != nullptr) {
      each([&](uint32_t i, uint32_t unit) {
        store_unit<Element>(move.target + unit * kVec16, result[i], bytes_of(unit), move.width);
      });
    }
  }
  // Before the service warp announces the chunk: members read it at their own addresses.
  if (move.team_target != nullptr) ptx::fence_aliases();
}

/// One address of the team is one place in the windows of all ranks, the own one included. So the
/// peers of all `count` ports by which an instruction loads, or stores, have advertised the place
/// of the own block, or data go through slots. The first round is enough, since the places of later
/// ones follow. The same in all threads.
template <typename Operation>
__device__ __forceinline__ bool have_one_place(const Cta& cta, const PortUse* uses, uint32_t count,
                                               const uint64_t* shifts, const std::byte* own) {
  if (own == nullptr || cta.header.team_windows == nullptr) return true;
  const uint64_t place = place_of(cta.header, shifts, reinterpret_cast<uint64_t>(own));
  bool has_any = false, are_same = place != 0;
  for (uint32_t i = 0; i < count; ++i) {
    const PortState& port = cta.ports[uses[i].port];
    if (port.team_end != TeamEnd::OfWindows) continue;
    const uint64_t theirs =
        has_agreed(port)
            ? reinterpret_cast<uint64_t>(chunk_at<Operation>(cta, port, uses[i], /*round=*/0))
            : 0;
    has_any |= theirs != 0;
    are_same &= theirs == place;
  }
  return !has_any || are_same;
}

/// Tells the peers of those ports that data go through slots. By one thread; false: aborted.
__device__ __forceinline__ bool refuse_places(const Cta& cta, const PortUse* uses, uint32_t count) {
  for (uint32_t i = 0; i < count; ++i) {
    PortState& port = cta.ports[uses[i].port];
    if (port.team_end != TeamEnd::OfWindows || !has_agreed(port)) continue;
    constexpr auto kRefused = static_cast<uint64_t>(Advertisement::Refused);
    // [refusal] pairs with the service warp's.
    ptx::store_release_shared(&port.advertisement, kRefused);
    for (SimpleWait wait(cta.header, *cta.work);
         ptx::load_acquire_shared(&port.advertisement) == kRefused;) {
      if (!wait.keep_going([&] { return Awaited{port.peer}; })) return false;
    }
  }
  return true;
}

/// Runs one instruction, by all threads of the worker. False: aborted, in all threads alike.
template <typename Operation>
__device__ __forceinline__ bool team_step(const Cta& cta, const WorkerThreads& worker,
                                          const CompactInstruction& instruction, uint32_t round,
                                          bool is_only, std::byte** pointers) {
  const PortsOfInstruction ports(cta, instruction);
  const uint32_t receives = instruction.receive_count;
  const bool has_source = instruction.source != OperandBuffer::None;
  const uint32_t loaded = ports_by_team(cta, ports.receives, receives);
  const uint32_t stored = ports_by_team(cta, ports.sends, instruction.send_count);
  SimplePlan& plan = plan_at(pointers);
  std::byte** operands = pointers + kPlanPointers;
  std::byte** sends = operands + receives + has_source;
  // A team load takes the local operand with it, and the other operands stand before it.
  const uint32_t source_index = loaded == 0 && instruction.source_position < receives
                                    ? instruction.source_position
                                    : receives;
  if (worker.rank == (worker.size > kWarp ? kWarp : 0)) {
    plan_transfer<Operation>(cta, instruction, round, is_only, plan, operands[source_index]);
  }
  constexpr uint64_t kPlacesDiffer = 2;  // of is_loose: data shall go through slots
  for (;;) {
    bool live = true;
    for (uint32_t i = worker.rank; i < ports.count; i += worker.size) {
      const PortUse use = ports.use(i);
      const PortState& port = cta.ports[use.port];
      live = live && wait_until_open(cta, port, step_of(port, use, round));
      std::byte* chunk = chunk_at<Operation>(cta, port, use, round);
      if (reinterpret_cast<uintptr_t>(chunk) % kVec16 != 0) plan.is_loose = 1;
      if (ports.is_send(i)) {
        sends[i - receives] = chunk;
      } else {
        operands[i + (has_source && i >= source_index)] = chunk;
      }
    }
    if (!live) plan.live = nullptr;
    worker.barrier();
    if (plan.live == nullptr) return false;
    if (round != 0 || plan.bytes == 0) break;

    // One thread looks: the word with the place may change, when a window ends.
    if (worker.rank == 0) {
      // A copy onto itself has no target of its own in the plan.
      const std::byte* const source = has_source ? operands[source_index] : nullptr;
      const std::byte* const target = plan.target != nullptr ? plan.target : source;
      const bool loads_once =
          have_one_place<Operation>(cta, ports.receives, loaded, cta.work->input_shifts, source);
      const bool stores_once =
          have_one_place<Operation>(cta, ports.sends, stored, cta.work->output_shifts, target);
      plan.is_loose = (plan.is_loose & 1) | (loads_once && stores_once ? 0 : kPlacesDiffer);
      if (!((loads_once || refuse_places(cta, ports.receives, loaded)) &&
            (stores_once || refuse_places(cta, ports.sends, stored)))) {
        plan.live = nullptr;
      }
    }
    worker.barrier();
    if (plan.live == nullptr) return false;
    if ((plan.is_loose & kPlacesDiffer) == 0) break;
    worker.barrier();  // all have looked
  }
  const bool gets = loaded != 0 && has_agreed(cta.ports[ports.receives[0].port]);
  const bool puts = stored != 0 && has_agreed(cta.ports[ports.sends[0].port]);
  const auto in_windows = [&](const std::byte* place) {
    return advertisement::address_of(cta.header.team_windows, reinterpret_cast<uint64_t>(place));
  };
  const int64_t offset = cta.header.team_offset;
  const uint32_t width = plan.is_loose == 0 ? cta.work->width : 1;
  const bool stages = loaded != 0 && !gets;
  const TeamMove move{stages ? operands[source_index] : nullptr,
                      stages ? operands[0] : nullptr,
                      gets          ? in_windows(operands[0])
                      : loaded != 0 ? operands[0] + offset
                                    : nullptr,
                      operands + loaded,
                      receives - loaded + (loaded == 0 && has_source ? 1u : 0u),
                      puts          ? in_windows(sends[0])
                      : stored != 0 ? sends[0] + offset
                                    : nullptr,
                      sends + stored,
                      instruction.send_count - stored,
                      puts ? nullptr : plan.target,  // which the store to windows reaches, too
                      static_cast<uint32_t>(plan.bytes),
                      width};
  team_chunk<Operation>(worker, move);

  finish_step<Operation>(cta, worker, instruction, ports, round, move.bytes);
  return true;
}

/// The port of a worker that shares its warps.
__device__ __forceinline__ PortState& only_port(const Cta& cta, const WorkerTask& task) {
  const CompactInstruction& only = cta.instructions[task.first];
  return cta.ports[cta.uses[only.receive_count != 0 ? only.receive : only.send].port];
}

/// Waits, by one thread, until a worker of the group can move a chunk, and returns its number.
/// Where other ranks move a worker's data, waits for their end, too. kServiceWorker: all is done;
/// kNoWorker: aborted.
__device__ __forceinline__ uint8_t await_ready(const Cta& cta, uint8_t first) {
  for (SimpleWait wait(cta.header, *cta.work);;) {
    const PortState* awaited = nullptr;
    for (uint8_t member = first; member != kNoWorker; member = worker_at(cta.header, member).ring) {
      PortState& port = only_port(cta, worker_at(cta.header, member));
      if (port.completed == port.end) continue;
      const uint64_t last = port.end - 1;
      // As in await_takers(). A refusal becomes visible before the counter that comes behind it.
      const bool is_done = is_open(cta, port, port.is_send ? last + cta.header.shape.depth : last);
      if (makes_advertisement(port) && ptx::load_acquire_shared(&port.advertisement) ==
                                           static_cast<uint64_t>(Advertisement::Agreed)) {
        if (is_done) {
          set_done(port, last);
          continue;
        }
      } else if (is_open(cta, port, port.completed)) {
        return member;
      }
      awaited = &port;
    }
    if (awaited == nullptr) return kServiceWorker;
    const bool live = wait.keep_going([&] {
      return Awaited{awaited->peer, ptx::load_relaxed_shared(&awaited->other_tag),
                     awaited->is_send ? ReportKind::WaitingForCredit : ReportKind::WaitingForData};
    });
    if (!live) return kNoWorker;
  }
}

/// Where the threads of a worker are in their program.
struct TeamTurn {
  const WorkerTask* task;
  uint32_t instruction;  // of the task's
  uint32_t round;
};

/// Waits until some worker of the group that begins with `first` can move a chunk, by all threads.
/// None waits for another, whatever order they are in. False: all is done, or aborted.
__device__ __forceinline__ bool await_turn(const Cta& cta, const WorkerThreads& worker,
                                           uint8_t first, TeamTurn& turn) {
  // Between two steps nobody needs the length of the last one.
  uint64_t& chosen = plan_at(cta.pointers + worker_at(cta.header, first).pointers).bytes;
  if (worker.rank == 0) chosen = await_ready(cta, first);
  worker.barrier();
  const auto number = static_cast<uint32_t>(chosen);
  worker.barrier();  // all have read it
  if (number >= kServiceWorker) return false;
  turn.task = &worker_at(cta.header, number);
  const PortState& port = only_port(cta, *turn.task);
  turn.round = static_cast<uint32_t>(port.completed - port.base);
  return true;
}

/// Calls function(task) for the workers that share the warps of `first`, or for it alone.
template <typename Function>
__device__ __forceinline__ void for_each_worker_of(const Cta& cta, uint8_t first,
                                                   Function&& function) {
  for (uint8_t member = first; member != kNoWorker;) {
    const WorkerTask& task = worker_at(cta.header, member);
    function(task);
    member = task.has(kSharesWarps) ? task.ring : kNoWorker;
  }
}

/// Runs a program. Its reductions are ones that switches have (switch_reduces()).
template <typename Of>
__device__ __forceinline__ void run_by_team(const LaunchArgs& args) {
  using Operation = ByTeam<Of>;
  Cta cta = start_cta<Operation, /*kAdvertises=*/true>(args);
  const uint8_t role = role_of_warp(args.header);
  if (role == kServiceWorker) return serve_ports</*kByTeam=*/true>(cta);
  const WorkerTask* const task = enter_worker(args, cta);
  if (task == nullptr) return;
  const WorkerThreads worker{ptx::thread() - task->first_thread, task->threads, task->barrier};
  if (worker.rank == 0) {
    for_each_worker_of(cta, role,
                       [&](const WorkerTask& each) { begin_plan(cta.pointers + each.pointers); });
  }
  worker.barrier();
  TeamTurn turn{task, 0, 0};
  const bool shares_warps = task->has(kSharesWarps);
  for (;;) {
    if (shares_warps) {
      if (!await_turn(cta, worker, role, turn)) break;
    } else if (turn.round == cta.work->partition.rounds) {
      return;
    }
    if (!team_step<Operation>(cta, worker, cta.instructions[turn.task->first + turn.instruction],
                              turn.round, turn.task->count == 1,
                              cta.pointers + turn.task->pointers)) {
      break;
    }
    if (!shares_warps && ++turn.instruction == task->count) {
      turn.instruction = 0;
      ++turn.round;
    }
  }
  // Where all is done, nobody looks.
  if (worker.rank == 0) {
    for_each_worker_of(cta, role, [&](const WorkerTask& each) { leave_advertisements(cta, each); });
  }
}

/// Runs a program by LL, whose words go to a team. No switch reduces them.
template <typename Of>
__device__ __forceinline__ void run_words_by_team(const LaunchArgs& args) {
  run_kernel<ByTeam<Of>, Protocol::LL>(args);
}

}  // namespace niccolite::executor::cuda
