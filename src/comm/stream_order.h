// StreamOrder: makes the operations of one communicator run one after the other, whatever streams
// they are queued on. They share connections, whose counters the next operation reads.
//
//   same stream as before            nothing to do: the stream orders them
//   another stream                   an event of the last operation's stream is waited for by the
//   new one within one stream capture        the same, which becomes edges of the graph capture
//   after live work, and     nothing here: a graph replays where its user launches it, ordered by
//   the stream it is live work after capture          launched on
//
// The first time a second stream appears, the previous operation's stream must still exist; from
// then on an event is recorded after each operation, so that streams may be destroyed at will.
// Thread safety: one thread at a time.
#pragma once

#include "gpu/machine.h"

namespace niccolite::comm {

class StreamOrder {
 public:
  StreamOrder(gpu::Machine& machine, int device) : machine_(machine), device_(device) {}

  /// To be called before an operation is queued on `stream`.
  Status before(gpu::StreamHandle stream);
  /// To be called after it was queued.
  Status after(gpu::StreamHandle stream);

 private:
  struct Last {
    bool exists = false;
    gpu::StreamHandle stream = nullptr;
    bool recorded = false;  // event_ stands for it
  };
  Status order(Last& last, const gpu::Event& event, gpu::StreamHandle stream);
  Status ensure_events();

  gpu::Machine& machine_;
  const int device_;
  bool many_streams_ = false;
  uint64_t capture_id_ = 0;  // of `captured_`
  bool capturing_ = false;   // the operation between before() and after() is being captured
  Last live_;
  Last captured_;
  gpu::Event live_event_;
  gpu::Event captured_event_;
};

}  // namespace niccolite::comm
