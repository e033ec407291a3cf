// Making, asking and ending communicators, and their resources: registrations, windows, operators,
// device communicators.
#pragma once

#include <nanobind/nanobind.h>

namespace niccolite::python {

void bind_communicators(nanobind::module_& module);
void bind_resources(nanobind::module_& module);

}  // namespace niccolite::python
