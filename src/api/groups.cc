// Group calls.

#include "api/call.h"

using namespace niccolite;

extern "C" {

ncclResult_t pncclGroupStart(void) {
  comm::Group::current().start();
  return ncclSuccess;
}

ncclResult_t pncclGroupEnd(void) {
  return api::call("ncclGroupEnd", [] { return comm::Group::current().end(); });
}

}  // extern "C"

NICCOLITE_EXPORT(ncclGroupStart);
NICCOLITE_EXPORT(ncclGroupEnd);
