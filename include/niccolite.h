/* What Niccolite's libnccl.so.2 has beyond nccl.h. */
#ifndef NICCOLITE_H_
#define NICCOLITE_H_

#include "nccl.h"

#ifdef __cplusplus
extern "C" {
#endif

/* Adds an algorithm to those of the process: the schedule in `text` (a string that ends with 0), as
 * `niccolite schedule -o` writes it and docs/schedule-file.md describes it. It is proved at once,
 * and is then a name for NCCL_ALGO, and one of the algorithms that the planner chooses from, among
 * as many ranks as it is for. `name` stands for it in messages: a path, a URL.
 *
 * To be called before the process makes or joins its first communicator, with the same texts in the
 * same processes: ranks with other algorithms are refused when they meet. The folder
 * NICCOLITE_ALGORITHMS does the same without a call.
 *
 * ncclInvalidArgument: an argument is NULL, or the text is no schedule (the message has its line).
 * ncclInvalidUsage: the schedule is wrong (the message has the instruction), or it comes too late.
 */
ncclResult_t niccolite_register_algorithm(const char* name, const char* text);

#ifdef __cplusplus
}
#endif

#endif /* NICCOLITE_H_ */
