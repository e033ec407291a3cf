#include "gpu/virtual/visible.h"

#include <gtest/gtest.h>

#include <optional>
#include <string>
#include <vector>

#include "gpu/virtual/host.h"

namespace niccolite::gpu::virtual_ {
namespace {

constexpr int kDevices = 4;

std::vector<int> visible(const std::optional<std::string>& text) {
  const VisibleDevices found(text, kDevices);
  std::vector<int> devices;
  for (int device = 0; device < found.count(); ++device) {
    devices.push_back(found.on_machine(device));
    EXPECT_EQ(found.in_process(devices.back()), device);
  }
  return devices;
}

std::string uuid(int device) { return uuid_text(device_uuid(device)); }

TEST(VisibleDevices, AreNumberedAsTheVariableListsThem) {
  EXPECT_EQ(visible(std::nullopt), std::vector({0, 1, 2, 3}));
  EXPECT_EQ(visible("2"), std::vector({2}));
  EXPECT_EQ(visible("3,0,2"), std::vector({3, 0, 2}));
  EXPECT_EQ(visible("3, 0"), std::vector({3, 0})) << "strtol skips spaces ...";
  EXPECT_EQ(visible("1gpu,+2"), std::vector({1, 2})) << "... takes a sign, and stops at text";
  EXPECT_EQ(VisibleDevices("3,0", kDevices).in_process(1), -1);
}

TEST(VisibleDevices, EndAtTheFirstThatThereIsNot) {
  EXPECT_EQ(visible(""), std::vector<int>());
  EXPECT_EQ(visible("-1"), std::vector<int>());
  EXPECT_EQ(visible("1,4,2"), std::vector({1}));
  EXPECT_EQ(visible("0,1,-1,2"), std::vector({0, 1}));
  EXPECT_EQ(visible("0,none,2"), std::vector({0}));
  EXPECT_EQ(visible("99999999999999999999"), std::vector<int>());
  EXPECT_EQ(visible("0,"), std::vector({0}));
}

TEST(VisibleDevices, AreNoneWhenOneIsNamedTwice) {
  EXPECT_EQ(visible("0,1,0"), std::vector<int>());
  EXPECT_EQ(visible(uuid(1) + "," + uuid(1)), std::vector<int>());
}

TEST(VisibleDevices, AreNamedByTheBeginningsOfUuids) {
  EXPECT_EQ(uuid(0).size(), std::string("GPU-8932f937-d72c-4106-c12f-20bd9faed9f6").size());
  EXPECT_EQ(visible(uuid(2) + "," + uuid(0)), std::vector({2, 0}));
  EXPECT_EQ(visible(uuid(3).substr(0, 20)), std::vector({3}));
  EXPECT_EQ(visible(uuid(1) + ",GPU-," + uuid(0)), std::vector({1})) << "it could be any";
  EXPECT_EQ(visible(uuid(1) + "0"), std::vector<int>());
  EXPECT_EQ(visible(uuid(1) + ",0"), std::vector({1})) << "numbers are not mixed with UUIDs";
  EXPECT_EQ(visible("0," + uuid(1)), std::vector({0}));
  EXPECT_EQ(visible("MIG-" + uuid(1)), std::vector<int>());
}

TEST(VisibleDevices, TellWhyThereAreFewer) {
  EXPECT_EQ(VisibleDevices(std::nullopt, kDevices).describe(), "4");
  EXPECT_EQ(VisibleDevices("7", kDevices).describe(), "0 of 4, as CUDA_VISIBLE_DEVICES is \"7\"");
}

}  // namespace
}  // namespace niccolite::gpu::virtual_
