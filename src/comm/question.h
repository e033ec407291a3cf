// Question: the questions and news between ranks of a communicator, beside their operations. A rank
// that asks gets an answer (bootstrap::Member::request()) or wants none (notify()).
#pragma once

#include <cstdint>

namespace niccolite::comm {

/// The requests between ranks; the first byte of a request.
enum class Question : uint8_t {
  Connect,       // transport::Endpoint::answer
  Account,       // what do you do? (diagnosis/account.h)
  Fail,          // none, but a failure of all ranks: code, text
  LetGo,         // none, but of a rank that ends its work: kernels leave the buffers of its user
  Farewell,      // as Account, with the last account of the rank that asks
  Signals,       // transport::Signals::answer
  Invite,        // none, but the id of a root: see Communicator::invite()
  MapBuffer,     // none: registry::BufferImports::map(); BufferMapped answers
  Verdict,       // none: Watch::note()
  Dump,          // none: observe::Dumps::keep()
  Status,        // StatusBoard::describe_this_process()
  BufferMapped,  // none: registry::BufferExports::note_mapped()
  UnmapBuffer,   // none: registry::BufferImports::unmap()
  Plans,         // none: PlanAgreement::note()
  MessagePlans,  // none: MessageAgreement::note()
  TeamBuffers,   // none: BufferComparison::note()
  Tune,          // Tuning::answer()
  Arrivals,      // arrivals_of(): when did you come to your collectives?
  Decide,        // Watch::decide(), with an empty answer
  HandOver,      // transport::Endpoint::keep(), with an empty answer
};

}  // namespace niccolite::comm
