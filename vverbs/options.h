// The virtual NICs that NICCOLITE_NICS asks for:
// virtual:N[,ports=P][,speed=GBIT][,rate=GBIT][,latency=US]
// [,fault=KIND@DEVICE[/PORT]:AFTER]. A fault strikes once, in each process, after AFTER messages on
// its port.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

namespace vverbs {

enum class FaultKind {
  Down,
  Flap,
  Drop,
  Lose,
  Late,
  Refuse,
  Flush,
  Slow,
  Corrupt,
  CorruptGpu,
  MemoryRefused,
  GpuMemoryRefused,
  Gone
};

struct Fault {
  FaultKind kind = FaultKind::Down;
  int device = 0;
  int port = 1;
  uint64_t after = 0;
};

struct Options {
  int devices = 1;
  int ports = 1;
  int speed_gbit = 100;   // what ports announce
  double rate_gbit = 0;   // what they carry; 0: as fast as the host can
  double latency_us = 0;  // added to each message
  std::vector<Fault> faults;
};

// Fills `options`; answers what is wrong with the text, or nothing.
std::string parse_options(const std::string& text, Options& options);

// What NICCOLITE_NICS says, read once. A wrong text gives no devices, and one line on stderr.
const Options& options();

}  // namespace vverbs
