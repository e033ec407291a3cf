#include "communicator.h"

#include <string>

#include "errors.h"
#include "library.h"

namespace niccolite::python {
namespace {

template <typename Function>
int ask_once(const Communicator& communicator, int& answer, const Function& function) {
  if (answer < 0) check(function(communicator.handle, &answer));
  return answer;
}

}  // namespace

// Dropped without destroy() or abort(), it lives on in the library, and so do its operations.
Communicator::~Communicator() {
  if (handle != nullptr) in_flight.abandon();
}

void Communicator::require(const char* operation) const {
  if (handle == nullptr) [[unlikely]]
    throw_invalid(std::string("Cannot ") + operation + ": Communicator not initialized");
}

int Communicator::ask_nranks() { return ask_once(*this, nranks, library().CommCount); }
int Communicator::ask_rank() { return ask_once(*this, rank, library().CommUserRank); }
int Communicator::ask_device() { return ask_once(*this, device, library().CommCuDevice); }

bool Communicator::is_settled() const {
  ncclResult_t state = ncclSuccess;
  return !works_aside ||
         (library().CommGetAsyncError(handle, &state) == ncclSuccess && state == ncclSuccess);
}

}  // namespace niccolite::python
