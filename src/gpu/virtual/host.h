// Facts about the host of the virtual GPUs: names that are equal in all processes of the machine.
// Devices have the machine's numbers (VisibleDevices::on_machine()).
#pragma once

#include <array>
#include <cstdint>
#include <string>

namespace niccolite::gpu::virtual_ {

/// Equal in all processes of this host (as seen by host name and boot), different between devices
/// and hosts.
std::array<uint8_t, 16> device_uuid(int device);
/// Returns the text that nvidia-smi writes: "GPU-", and the bytes in groups of 4, 2, 2, 2 and 6.
std::string uuid_text(const std::array<uint8_t, 16>& uuid);
/// Looks like a PCI address, in a domain that no machine uses.
std::string device_bus_id(int device);
int device_bus_domain(int device);
int device_bus(int device);

}  // namespace niccolite::gpu::virtual_
