#include "executor/host/one_sided.h"

#include <atomic>
#include <cstring>
#include <utility>

#include "executor/host/control.h"
#include "executor/protocol/call_tag.h"
#include "executor/protocol/relay.h"

namespace niccolite::executor::host {
namespace {

using gpu::virtual_::Kernel;
using gpu::virtual_::Progress;
using gpu::virtual_::Task;

class PutTask final : public Task {
 public:
  explicit PutTask(const Put& put) : put_(put) {}

  Progress step() override {
    if (!has_copied_) {
      if (put_.bytes > 0) std::memcpy(put_.target, put_.source, put_.bytes);
      // relaxed: only a number is taken.
      number_ = std::atomic_ref(put_.own->begun).fetch_add(1, std::memory_order_relaxed);
      has_copied_ = true;
    }
    const std::atomic_ref raised(put_.own->raised);
    // [acquire] the signal of the put before, from its [turn].
    if (raised.load(std::memory_order_acquire) != number_) return Progress::WouldBlock;
    // [publish] the data, to the wait's [consume].
    std::atomic_ref(*put_.arrived).store(number_ + 1, std::memory_order_release);
    // [turn] to the next put.
    raised.store(number_ + 1, std::memory_order_release);
    return Progress::Done;
  }

 private:
  const Put put_;
  uint64_t number_ = 0;
  bool has_copied_ = false;
};

class RelayedPutTask final : public Task {
 public:
  explicit RelayedPutTask(const RelayedPut& put) : put_(put) {}

  Progress step() override {
    // As WaitTask: a communicator that has failed goes on waiting.
    if (command_in(*put_.control) == Command::End) return Progress::Done;
    if (!has_number_) {
      // relaxed: only a number is taken.
      number_ = std::atomic_ref(put_.own->begun).fetch_add(1, std::memory_order_relaxed);
      has_number_ = true;
    }
    const std::atomic_ref raised(put_.own->raised);
    if (!has_turn_) {
      // [acquire] the connection's step of the put before, from its [turn].
      if (raised.load(std::memory_order_acquire) != number_) return Progress::WouldBlock;
      has_turn_ = true;
    }
    if (!has_room()) return Progress::WouldBlock;
    send_chunk();
    if (at_ < put_.bytes) return Progress::Advanced;
    // [turn] to the next put.
    raised.store(number_ + 1, std::memory_order_release);
    return Progress::Done;
  }
  bool is_woken() const override { return has_turn_ && put_.port.bells[0]->wakes_kernels(); }

 private:
  bool has_room() const {
    // [credit] the proxy has read the slot.
    return std::atomic_ref(put_.port.control->remote).load(std::memory_order_acquire) +
               kPutShape.depth >
           put_.port.control->step;
  }
  void send_chunk() {
    uint64_t& step = put_.port.control->step;  // of the put whose turn it is
    std::byte* const slot = put_.port.slots + kPutShape.slot_offset(0, step);
    const PutHeader header = put_header(put_.window, put_.offset, put_.bytes, at_);
    std::memcpy(slot, &header, sizeof header);
    if (header.bytes > 0) std::memcpy(slot + kPutDataAt, put_.source + at_, header.bytes);
    const uint32_t bytes = kPutDataAt + header.bytes;
    // relaxed: [publish] releases it.
    std::atomic_ref(put_.port.notes[step & (kPutShape.depth - 1)])
        .store(relay::note_of(bytes, /*tag=*/0), std::memory_order_relaxed);
    at_ += header.bytes;
    ++step;
    // [publish] the slot's content, to the proxy's [arrival].
    std::atomic_ref(put_.port.remote_control->remote)
        .store(call_tag::tail(step, /*tag=*/0), std::memory_order_release);
    put_.port.bells[0]->announce(bytes);
  }

  const RelayedPut put_;
  uint64_t number_ = 0;
  uint64_t at_ = 0;  // of the data: sent
  bool has_number_ = false;
  bool has_turn_ = false;
};

class WaitTask final : public Task {
 public:
  explicit WaitTask(const SignalWait& wait) : wait_(wait) {}

  Progress step() override {
    // A communicator that has failed goes on waiting until its user ends it.
    if (command_in(*wait_.control) == Command::End) return Progress::Done;
    if (awaited_.empty()) {
      for (const SignalWait::Item& item : wait_.items)  // relaxed: only numbers are taken
        awaited_.push_back(
            std::atomic_ref(item.line->claimed).fetch_add(item.count, std::memory_order_relaxed) +
            item.count);
    }
    for (; done_ < wait_.items.size(); ++done_) {
      // [consume] acquires the data put before the signals, from [publish].
      const uint64_t arrived =
          std::atomic_ref(wait_.items[done_].line->arrived).load(std::memory_order_acquire);
      if (!has_arrived(arrived, awaited_[done_])) return Progress::WouldBlock;
    }
    return Progress::Done;
  }

 private:
  const SignalWait wait_;
  std::vector<uint64_t> awaited_;  // by item, from the first step on
  size_t done_ = 0;
};

template <typename Made, typename Operation>
class OperationKernel final : public Kernel {
 public:
  explicit OperationKernel(Operation operation) : operation_(std::move(operation)) {}
  std::unique_ptr<Task> start() override { return std::make_unique<Made>(operation_); }

 private:
  const Operation operation_;
};

}  // namespace

Status launch(gpu::virtual_::VirtualMachine& machine, int device, gpu::StreamHandle stream,
              const Put& put) {
  return machine.launch(device, stream, std::make_shared<OperationKernel<PutTask, Put>>(put));
}

Status launch(gpu::virtual_::VirtualMachine& machine, int device, gpu::StreamHandle stream,
              const RelayedPut& put) {
  return machine.launch(device, stream,
                        std::make_shared<OperationKernel<RelayedPutTask, RelayedPut>>(put));
}

Status launch(gpu::virtual_::VirtualMachine& machine, int device, gpu::StreamHandle stream,
              SignalWait wait) {
  return machine.launch(device, stream,
                        std::make_shared<OperationKernel<WaitTask, SignalWait>>(std::move(wait)));
}

}  // namespace niccolite::executor::host
