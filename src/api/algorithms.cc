// Calls that are Niccolite's own (niccolite.h).
#include "algorithms/registry.h"
#include "api/call.h"

#pragma GCC visibility push(default)
#include "niccolite.h"
#pragma GCC visibility pop

using namespace niccolite;

extern "C" ncclResult_t niccolite_register_algorithm(const char* name, const char* text) {
  constexpr const char* kFunction = "niccolite_register_algorithm";
  return api::call(kFunction, [&]() -> Status {
    if (name == nullptr || text == nullptr)
      return Status::invalid_argument("{} : an argument is NULL", kFunction);
    return algorithms::register_file(name, text);
  });
}
