// One instruction by the LL128 protocol (executor/protocol/ll128.h). Eight neighbouring threads
// handle a line, 16 bytes each, the eighth 8 bytes and the flag; a warp handles four lines by one
// access, a *row* of the worker's warps as many as they have threads for, and several rows are in
// flight. Everything is reduced in the order of the line; only local buffers are read and written 8
// bytes at a time, since every other line begins 8 bytes behind a multiple of 16.
//
// All threads of a warp access lines together, by the same instruction. This keeps a line whole,
// and makes the flag that the eighth thread reads valid for the words that the other seven read
// with it. Waits, and `live`, are therefore the same in all threads of a warp.
//
// Line l of a chunk is always handled by the same eight threads: if an instruction reads data from
// a local block that an earlier instruction of the worker has written, the same thread has written
// it.
// local block that an earlier one of the worker has written, the same thread has written.
#pragma once

#include "executor/cuda/interpreter/credit.cuh"
#include "executor/protocol/ll128.h"

namespace niccolite::executor::cuda {

inline constexpr uint32_t kLineThreads = 8;
inline constexpr uint32_t kLinePart = ll128::kLineBytes / kLineThreads;
inline constexpr uint32_t kWarpLines = kWarp / kLineThreads;
inline constexpr uint32_t kRowData = kWarpLines * ll128::kDataBytes;  // of a warp's four lines
inline constexpr int kCopyRows = 4;

/// From the data of a row to a thread's part of one of its lines.
__device__ __forceinline__ constexpr uint32_t offset_in_row(uint32_t line, uint32_t part) {
  return line * ll128::kDataBytes + part * kLinePart;
}

/// The moves of one instruction in a round, as the calling thread sees them.
struct LineMove {
  const PortUse* receives;
  const PortUse* sends;
  Transfer transfer;
  uint32_t round;
  uint32_t operand_count;
  uint32_t send_count;
  uint32_t source_index;  // of the local operand; operand_count: none
  uint32_t lines;
  uint32_t stride;  // lines of a row
  uint32_t part;    // of the thread in its line

  __device__ __forceinline__ bool has_flag() const { return part == kLineThreads - 1; }
  /// Returns the begin of the warp's row that contains `line`, the thread's.
  __device__ __forceinline__ uint32_t row_at(uint32_t line) const {
    return (line - line % kWarpLines) * ll128::kDataBytes;
  }
  __device__ __forceinline__ uint32_t offset_of(uint32_t line) const {
    return line * ll128::kDataBytes + part * kLinePart;
  }
};

/// The place of the thread's part of a port's first line, and the flag of the line.
struct LinePort {
  std::byte* slot;
  uint64_t flag;
};
__device__ __forceinline__ LinePort line_port(const Cta& cta, const LineMove& move,
                                              const PortUse& use) {
  const PortState& port = cta.ports[use.port];
  const uint64_t step = step_of(port, use, move.round);
  return {slot_of(cta, port, step) + move.part * kLinePart, ll128::flag_of(step, cta.work->tag)};
}

/// The port of an operand that is not the local one.
__device__ __forceinline__ const PortUse& receive_of(const LineMove& move, uint32_t operand) {
  return move.receives[operand - (operand > move.source_index)];
}

/// Bytes of the vec8 at `offset` that belong to the chunk.
__device__ __forceinline__ uint32_t bytes_at(const LineMove& move, uint32_t offset) {
  if (offset >= move.transfer.bytes) return 0;
  const uint32_t left = move.transfer.bytes - offset;
  return left < 8 ? left : 8;
}

// Piece is the type by which vec8s of user memory are moved. AnyPiece stands for memory that is
// aligned to less than 4 bytes. The last vec8 of a chunk may be partial: it is loaded together with
// the bytes behind it in its words, and its bytes are stored by elements, apart from the others.

struct AnyPiece {};

/// Calls function(Piece()). (Around the accesses alone: another instance of all that is done with a
/// row is six times the code, and accesses that are chosen one by one make an operation 0.2 us
/// slower.)
template <typename Operation, typename Function>
__device__ __forceinline__ void with_local_piece(const Cta& cta, Function&& function) {
  if (sizeof(typename Operation::Element) == kVec8 || cta.work->width >= kVec8) {
    function(uint64_t());
  } else if (sizeof(typename Operation::Element) == kVec8 / 2 || cta.work->width >= kVec8 / 2) {
    function(uint32_t());
  } else {
    function(AnyPiece());
  }
}

/// `exists`: the thread's line does.
template <typename Piece>
__device__ __forceinline__ Words load_local(const LineMove& move, uint32_t line, bool exists) {
  if (!exists) return {0, 0};
  const uint32_t offset = move.offset_of(line);
  const auto load = [&](uint32_t at) -> uint64_t {
    const uint32_t bytes = bytes_at(move, at);
    if (bytes == 0) return 0;
    const std::byte* address = move.transfer.source + at;
    if constexpr (sizeof(Piece) == kVec8) {
      return ptx::load<uint64_t>(address);
    } else {
      return load_halves(address, bytes);
    }
  };
  return {load(offset), move.has_flag() ? 0 : load(offset + kVec8)};
}

/// Loads the thread's lines `line`, `line` + stride, ... (kRows of them), wherever their data lie.
/// All loads are on their way before any line is put together; branches are taken by whole warps.
template <typename Element, int kRows>
__device__ __forceinline__ void load_local_rows(const LineMove& move, uint32_t line,
                                                Words (&rows)[kRows]) {
  using Around = PairAround<Element>;
  Around around[kRows] = {};
#pragma unroll
  for (int i = 0; i < kRows; ++i) {
    const uint32_t offset = move.offset_of(line + i * move.stride);
    const std::byte* address = move.transfer.source + offset;
    const uint32_t row = move.row_at(line + i * move.stride);
    if (row + kRowData <= move.transfer.bytes) {
      around[i] = Around::load_whole(address, !move.has_flag());
    } else if (row < move.transfer.bytes) {
      const uint32_t most = move.has_flag() ? kVec8 : 2 * kVec8;
      const uint32_t left = offset < move.transfer.bytes ? move.transfer.bytes - offset : 0;
      around[i] = Around::load(address, left < most ? left : most);
    }
  }
#pragma unroll
  for (int i = 0; i < kRows; ++i) {
    if (move.row_at(line + i * move.stride) < move.transfer.bytes) {
      rows[i] = around[i].pair(move.transfer.source);
    }
  }
}

/// Whole vec8s; AnyPiece: all there is, by all threads of the warp. `exists`: the thread's line
/// does.
template <typename Operation, typename Piece>
__device__ __forceinline__ void store_local(const LineMove& move, uint32_t line, bool exists,
                                            const Words& words) {
  const uint32_t offset = move.offset_of(line);
  std::byte* target = move.transfer.target + offset;
  const uint32_t bytes = move.transfer.bytes;
  if constexpr (std::is_same_v<Piece, AnyPiece>) {
    if (move.row_at(line) >= bytes) return;
    const uint32_t left = exists && offset < bytes ? bytes - offset : 0;
    const uint32_t in_row = offset_in_row(line % kWarpLines, move.part);
    store_row_part<typename Operation::Element>(target - in_row, kRowData, in_row, words,
                                                move.has_flag() ? 1 : 2, left);
  } else {
    if (!exists) return;
    if (offset + kVec8 <= bytes) store_pieces<Piece>(target, words.first, kVec8);
    if (!move.has_flag() && offset + 2 * kVec8 <= bytes) {
      store_pieces<Piece>(target + kVec8, words.second, kVec8);
    }
  }
}

/// Stores the last vec8 of a chunk if it is partial. The thread that has it among its rows stores
/// it.
template <typename Operation, int kRows>
__device__ __forceinline__ void store_last_vec8(const LineMove& move, uint32_t line,
                                                const Words (&rows)[kRows]) {
  const uint32_t last = move.transfer.bytes / kVec8 * kVec8;
  uint64_t vec8 = 0;
  bool has_it = false;
#pragma unroll
  for (int i = 0; i < kRows; ++i) {
    const uint32_t offset = move.offset_of(line + i * move.stride);
    const bool is_second = offset + kVec8 == last && !move.has_flag();
    if (offset != last && !is_second) continue;
    vec8 = is_second ? rows[i].second : rows[i].first;
    has_it = true;
  }
  if (!has_it) return;
  store_pieces<typename PieceOf<sizeof(typename Operation::Element)>::Type>(
      move.transfer.target + last, vec8, move.transfer.bytes - last);
}

/// Moves the thread's lines `line`, `line` + stride, ... (at most kRows, as far as they exist) from
/// operands to destinations. Called by all threads of a warp; returns false in all of them if
/// aborted.
template <typename Operation, int kRows, bool kReduces>
__device__ __forceinline__ bool ll128_rows(const Cta& cta, const LineMove& move, uint32_t line) {
  const auto exists = [&](int i) { return line + i * move.stride < move.lines; };
  const auto at = [&](int i) {
    return static_cast<size_t>(line + i * move.stride) * ll128::kLineBytes;
  };
  // Loads an operand; lines that have not arrived by then are loaded again in settle().
  const auto ask = [&](uint32_t operand, Words(&words)[kRows]) {
    if (operand == move.source_index) {
      with_local_piece<Operation>(cta, [&]<typename Piece>(Piece) {
        if constexpr (std::is_same_v<Piece, AnyPiece>) {
          load_local_rows<typename Operation::Element>(move, line, words);
        } else {
#pragma unroll
          for (int i = 0; i < kRows; ++i) {
            words[i] = load_local<Piece>(move, line + i * move.stride, exists(i));
          }
        }
      });
      if constexpr (Operation::kReduces) {
        if (!move.transfer.scales_input) return;
#pragma unroll
        for (int i = 0; i < kRows; ++i) {
          words[i] = {scale_input<Operation>(cta, words[i].first),
                      scale_input<Operation>(cta, words[i].second)};
        }
      }
      return;
    }
    const std::byte* slot = line_port(cta, move, receive_of(move, operand)).slot;
#pragma unroll
    for (int i = 0; i < kRows; ++i) {
      if (exists(i)) words[i] = ptx::load_line_part(slot + at(i));
    }
  };
  const auto settle = [&](uint32_t operand, Words(&words)[kRows]) {
    if (operand == move.source_index) return true;
    const PortUse& use = receive_of(move, operand);
    const LinePort port = line_port(cta, move, use);
    for (Wait wait(cta.header, *cta.work);;) {
      bool is_missing = false;
      uint32_t other_tag = Awaited::kNoTag;
#pragma unroll
      for (int i = 0; i < kRows; ++i) {
        if (!move.has_flag() || !exists(i) || words[i].second == port.flag) continue;
        is_missing = true;
        if (ll128::is_mismatch(words[i].second, port.flag)) {
          other_tag = call_tag::tag_in(words[i].second);
        }
      }
      if (!ptx::any_of_warp(is_missing)) return true;
      const bool goes_on = wait.keep_going([&] {
        return Awaited{cta.ports[use.port].peer, other_tag, ReportKind::WaitingForData};
      });
      if (ptx::any_of_warp(!goes_on)) return false;
#pragma unroll
      for (int i = 0; i < kRows; ++i) {
        if (exists(i)) words[i] = ptx::load_line_part(port.slot + at(i));
      }
    }
  };

  ptx::barrier_warp();       // together again after local accesses of different widths
  Words result[kRows] = {};  // set: see simple_pieces()
  ask(0, result);
  if constexpr (kReduces) {
    typename Operation::Values values[kRows][2];
    Words next[kRows] = {};
    if (move.operand_count > 1) ask(1, next);
    if (!settle(0, result)) return false;
#pragma unroll
    for (int i = 0; i < kRows; ++i) {
      values[i][0] = Operation::widen(result[i].first);
      values[i][1] = Operation::widen(result[i].second);
    }
#pragma unroll 1
    for (uint32_t k = 1; k < move.operand_count; ++k) {
      if (!settle(k, next)) return false;
#pragma unroll
      for (int i = 0; i < kRows; ++i) result[i] = next[i];
      if (k + 1 < move.operand_count) ask(k + 1, next);  // on its way while this one is reduced
#pragma unroll
      for (int i = 0; i < kRows; ++i) {
        Operation::accumulate(values[i][0], Operation::widen(result[i].first));
        Operation::accumulate(values[i][1], Operation::widen(result[i].second));
      }
    }
#pragma unroll
    for (int i = 0; i < kRows; ++i) {
      const bool scales = move.transfer.scales_result;
      result[i] = {Operation::finish(cta.header, values[i][0], scales),
                   Operation::finish(cta.header, values[i][1], scales)};
    }
  } else {
    if (!settle(0, result)) return false;
  }

  ptx::barrier_warp();
#pragma unroll 1
  for (uint32_t s = 0; s < move.send_count; ++s) {
    const LinePort port = line_port(cta, move, move.sends[s]);
#pragma unroll
    for (int i = 0; i < kRows; ++i) {
      if (!exists(i)) continue;
      ptx::store_line_part(port.slot + at(i),
                           {result[i].first, move.has_flag() ? port.flag : result[i].second});
    }
  }
  if (move.transfer.target != nullptr) {
    with_local_piece<Operation>(cta, [&]<typename Piece>(Piece) {
#pragma unroll
      for (int i = 0; i < kRows; ++i) {
        store_local<Operation, Piece>(move, line + i * move.stride, exists(i), result[i]);
      }
      // AnyPiece has stored it with its row.
      constexpr bool kMayBePart = sizeof(typename Operation::Element) < kVec8;
      if constexpr (kMayBePart && !std::is_same_v<Piece, AnyPiece>) {
        if (move.transfer.bytes % kVec8 != 0) {
          store_last_vec8<Operation, kRows>(move, line, result);
        }
      }
    });
  }
  return true;
}

/// The whole chunk.
template <typename Operation, int kRows, bool kReduces>
__device__ __forceinline__ bool ll128_chunk(const Cta& cta, const WorkerThreads& worker,
                                            const LineMove& move) {
  // The first line of the warp, so that all its threads take the same branches.
  uint32_t first = worker.rank / kWarp * kWarpLines;
  const uint32_t in_warp = worker.rank % kWarp / kLineThreads;
  for (; first < move.lines; first += kRows * move.stride) {
    if (!ll128_rows<Operation, kRows, kReduces>(cta, move, first + in_warp)) return false;
  }
  return true;
}

/// All threads of the worker. `live` turns false in all threads of a warp that saw an abort: they
/// go through the rest of the program doing nothing but meeting the others at barriers.
template <typename Operation>
__device__ __forceinline__ void ll128_step(const Cta& cta, const WorkerThreads& worker,
                                           const CompactInstruction& instruction, uint32_t round,
                                           bool& live) {
  const bool has_source = instruction.source != OperandBuffer::None;
  const Transfer transfer = transfer_of<Operation>(cta, instruction, round);
  const uint32_t operand_count = uint32_t{instruction.receive_count} + has_source;
  const uint32_t source_index = !has_source ? operand_count
                                : instruction.source_position < instruction.receive_count
                                    ? instruction.source_position
                                    : instruction.receive_count;
  const auto lines = static_cast<uint32_t>(ll128::lines_of(transfer.bytes));
  const LineMove move{cta.uses + instruction.receive,
                      cta.uses + instruction.send,
                      transfer,
                      round,
                      operand_count,
                      instruction.send_count,
                      source_index,
                      lines,
                      worker.size / kLineThreads,
                      worker.rank % kLineThreads};

  for (uint32_t s = 0; live && s < move.send_count; ++s) {
    PortState& port = cta.ports[move.sends[s].port];
    live = wait_for_credit(cta, worker, port, step_of(port, move.sends[s], round));
  }
  live = !ptx::any_of_warp(!live);
  if (live && lines != 0) {
    if constexpr (Operation::kReduces) {
      if (operand_count > 1 || transfer.scales_result) {
        live = ll128_chunk<Operation, Operation::kLineRows, true>(cta, worker, move);
      } else {
        live = ll128_chunk<Operation, kCopyRows, false>(cta, worker, move);
      }
    } else {
      live = ll128_chunk<Operation, kCopyRows, false>(cta, worker, move);
    }
  }
  give_credit(cta, worker, instruction, round, live);
}

}  // namespace niccolite::executor::cuda
