// The common part of all calls that make communicators.
#pragma once

#include "api/call.h"

namespace niccolite::api {

/// Makes the object and its handle, and has the ranks' rendezvous done as a job of the group.
Result<comm::Completion> make(ncclComm_t* handle, const comm::Identity& identity,
                              comm::Meeting meeting, const comm::Configuration& configuration);

/// The group in which it was made failed: ends it, and takes the handle back.
void give_up(ncclComm_t* handle, const std::shared_ptr<comm::Communicator>& communicator);

}  // namespace niccolite::api
