// Parameters by name: typed values, no conversion, and every variable of the library.
#include <gtest/gtest.h>
#include <nccl.h>

#include <cstring>
#include <string>
#include <vector>

namespace niccolite::test {
namespace {

ncclParamHandle_t bound(const char* key) {
  ncclParamHandle_t handle = nullptr;
  EXPECT_EQ(ncclParamBind(&handle, key), ncclSuccess) << key;
  return handle;
}

std::string text_of(const char* key) {
  const char* value = nullptr;
  int length = -1;
  EXPECT_EQ(ncclParamGetParameter(key, &value, &length), ncclSuccess) << key;
  EXPECT_EQ(static_cast<size_t>(length), std::strlen(value));
  return value;
}

TEST(Parameters, AreReadByTheirOwnTypeAlone) {
  const ncclParamHandle_t integer = bound("NICCOLITE_INIT_TIMEOUT");
  int64_t i64 = 0;
  ASSERT_EQ(ncclParamGetI64(integer, &i64), ncclSuccess);
  EXPECT_EQ(i64, 120);
  int8_t i8 = 0;
  int16_t i16 = 0;
  int32_t i32 = 0;
  uint8_t u8 = 0;
  uint16_t u16 = 0;
  uint32_t u32 = 0;
  uint64_t u64 = 0;
  const char* text = nullptr;
  EXPECT_EQ(ncclParamGetI8(integer, &i8), ncclInvalidArgument);
  EXPECT_EQ(ncclParamGetI16(integer, &i16), ncclInvalidArgument);
  EXPECT_EQ(ncclParamGetI32(integer, &i32), ncclInvalidArgument);
  EXPECT_EQ(ncclParamGetU8(integer, &u8), ncclInvalidArgument);
  EXPECT_EQ(ncclParamGetU16(integer, &u16), ncclInvalidArgument);
  EXPECT_EQ(ncclParamGetU32(integer, &u32), ncclInvalidArgument);
  EXPECT_EQ(ncclParamGetU64(integer, &u64), ncclInvalidArgument);
  EXPECT_EQ(ncclParamGetStr(integer, &text), ncclInvalidArgument);

  const ncclParamHandle_t flag = bound("NCCL_SET_THREAD_NAME");
  EXPECT_EQ(ncclParamGetI64(flag, &i64), ncclInvalidArgument);
  const ncclParamHandle_t unset = bound("NCCL_SOCKET_IFNAME");
  EXPECT_EQ(ncclParamGetStr(unset, &text), ncclSuccess);
  EXPECT_EQ(text, nullptr);
}

TEST(Parameters, AreCopiedAsTheyAreStored) {
  int64_t integer = 0;
  int length = -1;
  ASSERT_EQ(ncclParamGet(bound("NICCOLITE_INIT_TIMEOUT"), &integer, sizeof integer, &length),
            ncclSuccess);
  EXPECT_EQ(integer, 120);
  EXPECT_EQ(length, 8);
  char room[1024];
  EXPECT_EQ(ncclParamGet(bound("NICCOLITE_INIT_TIMEOUT"), room, 7, &length), ncclInvalidArgument);
  EXPECT_EQ(length, 0);
  ASSERT_EQ(ncclParamGet(bound("NCCL_SET_THREAD_NAME"), room, sizeof room, &length), ncclSuccess);
  EXPECT_EQ(length, 1);
  // The tests of this program run with NICCOLITE_DEVICES set or not; either way it is a text.
  ASSERT_EQ(ncclParamGet(bound("NICCOLITE_DEVICES"), room, sizeof room, &length), ncclSuccess);
  EXPECT_EQ(static_cast<size_t>(length), std::strlen(room) + 1);
  EXPECT_EQ(room, text_of("NICCOLITE_DEVICES"));
}

TEST(Parameters, AreListedAndEachIsFound) {
  const char** keys = nullptr;
  int count = 0;
  ASSERT_EQ(ncclParamGetAllParameterKeys(&keys, &count), ncclSuccess);
  ASSERT_GT(count, 20);
  std::vector<std::string> names(keys, keys + count);
  for (const char* known : {"NCCL_DEBUG", "NCCL_BUFFSIZE", "NCCL_ALGO", "NCCL_COMM_BLOCKING"})
    EXPECT_NE(std::find(names.begin(), names.end(), known), names.end()) << known;
  for (const std::string& name : names) {
    bound(name.c_str());
    text_of(name.c_str());
  }
}

TEST(Parameters, RefuseWhatIsNotThere) {
  ncclParamHandle_t handle = nullptr;
  const char* value = "";
  const char** keys = nullptr;
  int length = 7;
  int64_t integer = 0;
  EXPECT_EQ(ncclParamBind(nullptr, "NCCL_DEBUG"), ncclInvalidArgument);
  EXPECT_EQ(ncclParamBind(&handle, nullptr), ncclInvalidArgument);
  EXPECT_EQ(ncclParamBind(&handle, "NCCL_NO_SUCH"), ncclInvalidArgument);
  EXPECT_EQ(ncclParamGetParameter("NCCL_NO_SUCH", &value, &length), ncclInvalidArgument);
  EXPECT_EQ(value, nullptr);
  EXPECT_EQ(length, 0);
  EXPECT_EQ(ncclParamGetI64(nullptr, &integer), ncclInvalidArgument);
  EXPECT_EQ(ncclParamGetI64(bound("NICCOLITE_INIT_TIMEOUT"), nullptr), ncclInvalidArgument);
  EXPECT_EQ(ncclParamGet(bound("NICCOLITE_INIT_TIMEOUT"), &integer, 0, &length),
            ncclInvalidArgument);
  EXPECT_EQ(ncclParamGetAllParameterKeys(nullptr, &length), ncclInvalidArgument);
  EXPECT_EQ(ncclParamGetAllParameterKeys(&keys, nullptr), ncclInvalidArgument);
}

TEST(Parameters, ArePrintedWithTheirMeaning) {
  testing::internal::CaptureStdout();
  ncclParamDumpAll();
  const std::string output = testing::internal::GetCapturedStdout();
  EXPECT_NE(output.find("NICCOLITE_INIT_TIMEOUT\n  value: 120\n"), std::string::npos);
}

}  // namespace
}  // namespace niccolite::test
