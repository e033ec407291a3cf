#include "executor/protocol/offer.h"

#include <gtest/gtest.h>

namespace niccolite::executor::offer {
namespace {

TEST(Offer, CarryAnyAddressAndAnyTag) {
  for (const uint64_t address :
       {uint64_t{0x7f91'7c80'0000}, uint64_t{0x10'0001}, (uint64_t{1} << 47) - 1}) {
    for (const uint16_t tag : {uint16_t{0}, uint16_t{0x1234}, uint16_t{0xffff}}) {
      for (const bool serves_requests : {false, true}) {
        ASSERT_TRUE(fits(address));
        const uint64_t offer = of(address, tag, serves_requests);
        EXPECT_NE(offer, kNone);
        EXPECT_EQ(address_in(offer), address);
        EXPECT_EQ(tag_in(offer), tag);
        EXPECT_EQ(serves(offer), serves_requests);
      }
    }
  }
}

TEST(Offer, OneOfSlotsIsAnOffer) {
  for (const uint16_t tag : {uint16_t{0}, uint16_t{0xffff}}) {
    const uint64_t offer = of(0, tag);
    EXPECT_NE(offer, kNone);
    EXPECT_EQ(address_in(offer), 0u);
    EXPECT_EQ(tag_in(offer), tag);
  }
  EXPECT_EQ(address_in(kNone), 0u);
}

TEST(Offer, TakesNoAddressThatIsTooLong) {
  EXPECT_TRUE(fits((uint64_t{1} << 47) - 1));
  EXPECT_FALSE(fits(uint64_t{1} << 47));
}

}  // namespace
}  // namespace niccolite::executor::offer
