// Descriptors of kernels: every field comes from its own bits, and no other bit matters.
#include "registry/gin_descriptor.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <random>

namespace niccolite::registry {
namespace {

using Words = uint64_t[kGinWords];

// Writes a descriptor as the headers do; `garbage`: from the kernel's stack.
void write(Words& words, uint64_t garbage, uint32_t operation) {
  const auto set = [&](size_t word, int shift, int bits, uint64_t value) {
    const uint64_t mask = (bits == 64 ? ~uint64_t{0} : (uint64_t{1} << bits) - 1) << shift;
    words[word] = (words[word] & ~mask) | (value << shift & mask);
  };
  std::fill(std::begin(words), std::end(words), garbage | 1);
  set(0, 7, 57, 0x123456789abcde);
  set(3, 1, 63, 0x3333444455556666);
  set(4, 1, 63, 0x7000111122223333);
  set(5, 1, 23, 0x654321);
  set(5, 24, 24, 0xabcdef);
  set(5, 48, 16, 0xcafe);
  set(6, 8, 16, 0xbeef);
  set(6, 24, 32, 0x01234567);
  set(7, 8, 16, operation);
  if ((operation & GinDescriptor::kInline) != 0) {
    set(1, 8, 32, 0x44332211);
    set(1, 40, 16, 0x6655);
    set(2, 8, 16, 0x8877);
  } else {
    set(1, 1, 63, 0x1111222233334444);
    set(2, 1, 63, 0x5555666677770000);
  }
}

TEST(GinDescriptors, AreReadFromTheirBitsAlone) {
  std::mt19937_64 random(7);
  for (int round = 0; round < 100; ++round) {
    const uint64_t garbage = round == 0 ? 0 : round == 1 ? ~uint64_t{0} : random();
    Words words;
    write(words, garbage, GinDescriptor::kPut | GinDescriptor::kAdd | GinDescriptor::kCounter);
    const GinDescriptor put = GinDescriptor::decode(words);
    EXPECT_EQ(put.operation, GinDescriptor::kPut | GinDescriptor::kAdd | GinDescriptor::kCounter);
    EXPECT_EQ(put.bytes, 0x123456789abcdeU);
    EXPECT_EQ(put.source_offset, 0x1111222233334444U);
    EXPECT_EQ(put.source_window, 0x5555666677770000U);
    EXPECT_EQ(put.target_offset, 0x3333444455556666U);
    EXPECT_EQ(put.target_window, 0x7000111122223333U);
    EXPECT_EQ(put.counter, 0x654321U);
    EXPECT_EQ(put.signal, 0xabcdefU);
    EXPECT_EQ(put.amount, 0x01234567beefcafeU);
    write(words, garbage, GinDescriptor::kPut | GinDescriptor::kInline | GinDescriptor::kIncrement);
    const GinDescriptor value = GinDescriptor::decode(words);
    EXPECT_EQ(value.value, 0x8877665544332211U);
    EXPECT_EQ(value.amount, 1U);
  }
}

}  // namespace
}  // namespace niccolite::registry
