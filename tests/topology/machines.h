// The machines of tests/topology/machines, as graphs.
#pragma once

#include <gtest/gtest.h>

#include <string>

#include "topology/graph.h"
#include "topology/xml.h"

namespace niccolite::topology {

inline Description description_of(const std::string& name) {
  Result<Description> description = load_xml(std::string(MACHINES) + "/" + name + ".xml");
  EXPECT_TRUE(description.is_ok()) << description.status().message();
  return std::move(description).take();
}
inline Graph graph_of(const std::string& name) { return Graph::make(description_of(name)).take(); }

/// So many machines of one kind, their ranks one machine after the other.
inline Graph cluster_of(const std::string& name, int machines) {
  Description whole;
  int first = 0;
  for (int machine = 0; machine < machines; ++machine) {
    Description one = description_of(name);
    int ranks = 0;
    for (Cpu& cpu : one.cpus) cpu.host = "host" + std::to_string(machine);
    for_each_gpu(one, [&](Cpu&, Pci&, Gpu& gpu) {
      gpu.rank += first;
      ++ranks;
    });
    first += ranks;
    EXPECT_TRUE(merge(whole, one).is_ok());
  }
  return Graph::make(std::move(whole)).take();
}

}  // namespace niccolite::topology
