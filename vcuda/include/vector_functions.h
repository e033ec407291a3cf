// make_float4() and its like.
#ifndef VCUDA_VECTOR_FUNCTIONS_H
#define VCUDA_VECTOR_FUNCTIONS_H

#include "vector_types.h"

#define VCUDA_MAKE(type, name)                                           \
  static inline name##1 make_##name##1(type x) {                         \
    name##1 made = {x};                                                  \
    return made;                                                         \
  }                                                                      \
  static inline name##2 make_##name##2(type x, type y) {                 \
    name##2 made = {x, y};                                               \
    return made;                                                         \
  }                                                                      \
  static inline name##3 make_##name##3(type x, type y, type z) {         \
    name##3 made = {x, y, z};                                            \
    return made;                                                         \
  }                                                                      \
  static inline name##4 make_##name##4(type x, type y, type z, type w) { \
    name##4 made = {x, y, z, w};                                         \
    return made;                                                         \
  }
VCUDA_MAKE(signed char, char)
VCUDA_MAKE(unsigned char, uchar)
VCUDA_MAKE(short, short)
VCUDA_MAKE(unsigned short, ushort)
VCUDA_MAKE(int, int)
VCUDA_MAKE(unsigned int, uint)
VCUDA_MAKE(long long, longlong)
VCUDA_MAKE(unsigned long long, ulonglong)
VCUDA_MAKE(float, float)
VCUDA_MAKE(double, double)
#undef VCUDA_MAKE

#endif
