// Service: answers whoever asks at NCCL_RAS_ADDR what the job is doing: ncclras, niccolite ras, nc.
// All processes of a machine listen there, and one of them gets each client; it asks the others. A
// thread of its own, from the first communicator on until the process exits. Thread safety: any
// thread.
//
// Nothing here fails a program: where the address cannot be had, one line of INFO says so. Clients
// cost a bounded number of descriptors and bytes, and those that do not read are dropped.
#pragma once

#include "ras/report.h"

namespace niccolite::ras {

/// Starts the service of this process, once, unless NCCL_RAS_ENABLE is 0.
void start_service(const Versions& versions);

}  // namespace niccolite::ras
