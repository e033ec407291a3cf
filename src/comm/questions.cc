// The answers of a communicator to the questions of its other ranks (comm/question.h).
#include <algorithm>

#include "base/log.h"
#include "comm/communicator.h"
#include "diagnosis/stragglers.h"
#include "diagnosis/watch.h"
#include "observe/dumps.h"
#include "operations/buffer_comparison.h"
#include "operations/message_agreement.h"
#include "operations/one_sided.h"
#include "operations/plan_agreement.h"
#include "operations/tuning.h"
#include "registry/buffer_exports.h"
#include "registry/buffer_imports.h"
#include "registry/housekeeper.h"
#include "transport/endpoint.h"

namespace niccolite::comm {

namespace {

/// Calls take(from, bytes), which calls the driver. The driver may make it wait for a kernel: a
/// thread of the user's that loads a module, say, holds the driver up until all kernels have ended.
/// The kernel may wait for the peer, whose next question (Connect) is answered meanwhile.
template <typename Take>
void later(int device, int from, std::span<const std::byte> bytes, Take&& take) {
  registry::Housekeeper::mapper().run(
      [device, from, copy = Bytes(bytes.begin(), bytes.end()), take = std::forward<Take>(take)] {
        const log::ScopedDevice speaks_for(device);
        const Status taken = take(from, copy);
        if (!taken.is_ok()) LOG(Warn, Reg, "rank {}: {}", from, taken.message());
      });
}

}  // namespace

// A peer asks. On a service thread or a peer's, at any time between join_and_connect() and
// leave(). Calls that may wait for kernels are for later().
Result<Bytes> Communicator::answer(int from, std::span<const std::byte> request) {
  const log::ScopedDevice speaks_for(device());
  Reader reader(request, "a peer");
  const auto question = static_cast<Question>(reader.u8());
  switch (question) {
    case Question::Connect:
      return endpoint_->answer(from, reader.rest());
    case Question::HandOver:
      TRY(endpoint_->keep(from, reader.rest()));
      return Bytes();
    case Question::Signals:
      return one_sided_->answer(from, reader.rest());
    case Question::Account:
      if (lifetime_.is_revoked()) return lifetime_.revoked();
      TRY(lifetime_.failure());  // all that its waits could say has been said
      return supervision_.watch().account(from).encode();
    case Question::Farewell:
      if (lifetime_.is_revoked()) return lifetime_.revoked();
      supervision_.watch().keep_farewell(TRY(diagnosis::Account::decode(reader.rest(), from)));
      TRY(lifetime_.failure());
      return supervision_.watch().account(from).encode();
    case Question::Invite: {
      const std::span<const std::byte> bytes = reader.raw(bootstrap::UniqueId::kBytes);
      TRY(reader.finish());
      invitation_.put(TRY(bootstrap::UniqueId::parse(bytes.first<bootstrap::UniqueId::kBytes>())));
      return Bytes();
    }
    case Question::Decide:
      supervision_.watch().decide(TRY(diagnosis::Verdict::decode(reader.rest(), nranks())));
      return Bytes();
    case Question::Verdict:
      supervision_.watch().note(TRY(diagnosis::Verdict::decode(reader.rest(), nranks())));
      return Bytes();
    case Question::Status:
      return diagnosis::StatusBoard::of_process().describe_this_process().encode();
    case Question::Dump: {
      const std::string name = reader.text(Correspondence::kMostText);
      const std::span<const std::byte> text = reader.rest();
      observe::Dumps::of_process().keep(name,
                                        {reinterpret_cast<const char*>(text.data()), text.size()});
      return Bytes();
    }
    case Question::MapBuffer:
      if (buffers_.imports() == nullptr) break;
      later(device(), from, reader.rest(),
            [imports = buffers_.imports()](int peer, std::span<const std::byte> bytes) {
              return imports->map(peer, bytes);
            });
      return Bytes();
    case Question::BufferMapped:
      if (buffers_.exports() == nullptr) break;
      later(device(), from, reader.rest(),
            [exports = buffers_.exports()](int peer, std::span<const std::byte> bytes) {
              return exports->note_mapped(peer, bytes);
            });
      return Bytes();
    case Question::UnmapBuffer:
      if (buffers_.imports() == nullptr) break;
      later(device(), from, reader.rest(),
            [imports = buffers_.imports()](int peer, std::span<const std::byte> bytes) {
              return imports->unmap(peer, bytes);
            });
      return Bytes();
    case Question::Plans:
      if (agreement_ == nullptr) break;
      TRY(agreement_->note(from, reader.rest()));
      return Bytes();
    case Question::MessagePlans:
      if (message_agreement_ == nullptr) break;
      TRY(message_agreement_->note(from, reader.rest()));
      return Bytes();
    case Question::TeamBuffers:
      if (comparison_ == nullptr) break;
      TRY(comparison_->note(from, reader.rest()));
      return Bytes();
    case Question::Tune:
      if (tuning_ == nullptr) break;
      return tuning_->answer(reader.rest());
    case Question::Arrivals: {
      const uint64_t after = reader.u64();
      TRY(reader.finish());
      return diagnosis::arrivals_of(*log_->recorder(), after).encode();
    }
    case Question::LetGo:
      TRY(reader.finish());
      control_.tell(executor::Command::Leave);
      return Bytes();
    case Question::Fail: {
      const uint8_t code = reader.u8();
      const std::string text = reader.text(Correspondence::kMostText);
      if (code == static_cast<uint8_t>(Code::Ok) || code > static_cast<uint8_t>(Code::RemoteError))
        reader.reject("a failure without a code");
      TRY(reader.finish());
      fail(Status::error(static_cast<Code>(code), "{}", text));
      return Bytes();
    }
  }
  return Status::remote_error("rank {} asks what rank {} does not understand", from, rank());
}

// A failure that concerns every rank. The others are told first: afterwards this rank's user may
// end the communicator at any time.
void Communicator::fail_all(const Status& status, Printed printed) {
  if (!lifetime_.failure().is_ok()) return;  // then they have been told
  for (int peer = 0; peer < nranks(); ++peer)
    if (peer != rank()) peers_.tell_failure(peer, status);
  fail(status.copy(), printed);
}

}  // namespace niccolite::comm
