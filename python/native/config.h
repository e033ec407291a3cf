// The configuration structs of the library, as keyword arguments of Python.
#pragma once

#include <nanobind/nanobind.h>

#include <string>

#include "nccl.h"
#include "nccl_device.h"

namespace niccolite::python {

/// ncclConfig_t and the texts that it points to. Made by the calls of nccl.core.NCCLConfig.
struct Config {
  ncclConfig_t values = NCCL_CONFIG_INITIALIZER;
  std::string net_name;
  std::string comm_name;
};

void bind_configs(nanobind::module_& module);

}  // namespace niccolite::python
