// Host conversions of the 8- and 16-bit types, against a search over all values of the type.
#include <cuda_bf16.h>
#include <cuda_fp16.h>
#include <cuda_fp8.h>
#include <gtest/gtest.h>

#include <cmath>
#include <random>
#include <vector>

namespace {

struct Format {
  const char* name;
  int bits;
  float largest;
  float (*value)(unsigned);
  unsigned (*round)(float);
};

const Format kFormats[] = {
    {"half", 16, 65504,
     [](unsigned b) { return float(__ushort_as_half(static_cast<unsigned short>(b))); },
     [](float v) { return unsigned{__half_as_ushort(__float2half(v))}; }},
    {"bfloat16", 16, 3.3895314e38f,
     [](unsigned b) { return float(__ushort_as_bfloat16(static_cast<unsigned short>(b))); },
     [](float v) { return unsigned{__bfloat16_as_ushort(__float2bfloat16(v))}; }},
    {"e4m3", 8, 448,
     [](unsigned b) {
       __nv_fp8_e4m3 x;
       x.__x = static_cast<unsigned char>(b);
       return float(x);
     },
     [](float v) { return unsigned{__nv_fp8_e4m3(v).__x}; }},
    {"e5m2", 8, 57344,
     [](unsigned b) {
       __nv_fp8_e5m2 x;
       x.__x = static_cast<unsigned char>(b);
       return float(x);
     },
     [](float v) { return unsigned{__nv_fp8_e5m2(v).__x}; }},
};

TEST(Minifloat, EveryValueSurvivesTheWayThereAndBack) {
  for (const Format& format : kFormats) {
    for (unsigned bits = 0; bits < 1u << format.bits; ++bits) {
      const float value = format.value(bits);
      if (std::isnan(value)) {
        EXPECT_TRUE(std::isnan(format.value(format.round(value))));
      } else if (std::isinf(value) && format.bits == 8) {
        EXPECT_EQ(std::abs(format.value(format.round(value))), format.largest);  // saturates
      } else {
        ASSERT_EQ(format.round(value), bits) << format.name;
      }
    }
  }
}

TEST(Minifloat, RoundsToTheNearestAndTiesToEven) {
  for (const Format& format : kFormats) {
    const unsigned top = format.round(format.largest);
    for (unsigned bits = 0; bits < top; ++bits) {
      const double low = format.value(bits);
      const double high = format.value(bits + 1);
      const auto middle = static_cast<float>((low + high) / 2);
      ASSERT_EQ(format.round(middle), (bits & 1) == 0 ? bits : bits + 1)
          << format.name << ' ' << bits;
      ASSERT_EQ(format.round(std::nextafter(middle, 0.0f)), bits) << format.name << ' ' << bits;
      ASSERT_EQ(format.round(std::nextafter(middle, INFINITY)), bits + 1)
          << format.name << ' ' << bits;
    }
  }
}

TEST(Minifloat, LargeValuesOverflowAsTheTypeWants) {
  EXPECT_TRUE(std::isinf(float(__float2half(65520))));
  EXPECT_EQ(float(__float2half(65519)), 65504);
  EXPECT_EQ(float(__nv_fp8_e4m3(1e9f)), 448);
  EXPECT_EQ(float(__nv_fp8_e5m2(-1e9f)), -57344);
  EXPECT_EQ(__nv_cvt_float_to_fp8(1e9f, __NV_NOSAT, __NV_E5M2), 0x7c);
  EXPECT_EQ(__nv_cvt_float_to_fp8(1e9f, __NV_NOSAT, __NV_E4M3), 0x7f);
}

TEST(Minifloat, Computes) {
  const __half half = __float2half(1.5f) + __float2half(2.25f) * __float2half(2);
  EXPECT_EQ(float(half), 6.0f);
  EXPECT_TRUE(__float2bfloat16(-1) < __float2bfloat16(2));
  EXPECT_EQ(float(-__float2bfloat16(3)), -3.0f);
}

}  // namespace
