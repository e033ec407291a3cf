#include "executor/protocol/advertisement.h"

#include <gtest/gtest.h>

namespace niccolite::executor::advertisement {
namespace {

TEST(Advertisement, CarryAnyAddressAndAnyTag) {
  for (const uint64_t address :
       {uint64_t{0x7f91'7c80'0000}, uint64_t{0x10'0001}, (uint64_t{1} << 47) - 1}) {
    for (const uint16_t tag : {uint16_t{0}, uint16_t{0x1234}, uint16_t{0xffff}}) {
      for (const bool serves_pulls : {false, true}) {
        ASSERT_TRUE(fits(address));
        const uint64_t advertisement = of(address, tag, serves_pulls);
        EXPECT_NE(advertisement, kNone);
        EXPECT_EQ(address_in(advertisement), address);
        EXPECT_EQ(tag_in(advertisement), tag);
        EXPECT_EQ(serves(advertisement), serves_pulls);
      }
    }
  }
}

TEST(Advertisement, OneOfSlotsIsAnAdvertisement) {
  for (const uint16_t tag : {uint16_t{0}, uint16_t{0xffff}}) {
    const uint64_t advertisement = of(0, tag);
    EXPECT_NE(advertisement, kNone);
    EXPECT_EQ(address_in(advertisement), 0u);
    EXPECT_EQ(tag_in(advertisement), tag);
  }
  EXPECT_EQ(address_in(kNone), 0u);
}

TEST(Advertisement, TakesNoAddressThatIsTooLong) {
  EXPECT_TRUE(fits((uint64_t{1} << 47) - 1));
  EXPECT_FALSE(fits(uint64_t{1} << 47));
}

}  // namespace
}  // namespace niccolite::executor::advertisement
