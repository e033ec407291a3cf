#include "communicator.h"

#include <string>

#include "errors.h"
#include "interrupts.h"
#include "library.h"

namespace niccolite::python {
namespace {

template <typename Function>
int ask_once(const Communicator& communicator, const char* what, int& answer,
             const Function& function) {
  if (answer >= 0) return answer;
  communicator.require(what);  // another thread may have aborted it
  check(function(communicator.handle, &answer));
  return answer;
}

constexpr int kMostListed = 8;  // a text that names more ranks is hard to read

const char* reason_of(Communicator::End end) {
  switch (end) {
    case Communicator::End::Destroyed:
      return "the communicator has been destroyed";
    case Communicator::End::Aborted:
      return "the communicator has been aborted";
    case Communicator::End::NeverMade:
      break;
  }
  return "the communicator is not initialized (nothing has made it, or a split left this rank out)";
}

}  // namespace

// Without destroy() or abort() the communicator and its operations live on in the library.
Communicator::~Communicator() {
  if (handle != nullptr) in_flight.abandon();
}

void Communicator::require(const char* operation) const {
  if (handle == nullptr) [[unlikely]]
    throw_invalid(std::string("Cannot ") + operation + ": " + reason_of(end));
}

void Communicator::forget(End how) {
  take(handle);
  end = how;
  nranks = rank = device = -1;
}

std::string Communicator::describe_wait() const {
  std::string text = rank < 0 ? "this rank" : "rank " + std::to_string(rank);
  if (nranks > 0) text += " of " + std::to_string(nranks);
  text += std::string(" waited in ") + (call != nullptr ? call : "a call") + " for ";
  if (peer != kAllPeers) return text + "rank " + std::to_string(peer);
  if (rank < 0 || nranks < 2 || nranks > kMostListed) return text + "the other ranks";
  text += nranks == 2 ? "rank " : "ranks ";
  const char* separator = "";
  for (int other = 0; other < nranks; ++other) {
    if (other == rank) continue;
    text += separator + std::to_string(other);
    separator = ", ";
  }
  return text;
}

int Communicator::ask_nranks() {
  return ask_once(*this, "get nranks", nranks, library().CommCount);
}
int Communicator::ask_rank() { return ask_once(*this, "get rank", rank, library().CommUserRank); }
int Communicator::ask_device() {
  return ask_once(*this, "get device", device, library().CommCuDevice);
}

void Communicator::ask_names() {
  if (handle == nullptr || !is_settled()) return;
  ask_rank();
  ask_nranks();
}

bool Communicator::is_settled() const {
  ncclResult_t state = ncclSuccess;
  return !works_aside ||
         (library().CommGetAsyncError(handle, &state) == ncclSuccess && state == ncclSuccess);
}

}  // namespace niccolite::python
