// CUDA's small vectors, with its sizes and alignments.
#ifndef VCUDA_VECTOR_TYPES_H
#define VCUDA_VECTOR_TYPES_H

#define VCUDA_VECTORS(type, name, align2, align4)   \
  struct name##1 {                                  \
    type x;                                         \
  };                                                \
  struct __attribute__((aligned(align2))) name##2 { \
    type x, y;                                      \
  };                                                \
  struct name##3 {                                  \
    type x, y, z;                                   \
  };                                                \
  struct __attribute__((aligned(align4))) name##4 { \
    type x, y, z, w;                                \
  };                                                \
  typedef struct name##1 name##1;                   \
  typedef struct name##2 name##2;                   \
  typedef struct name##3 name##3;                   \
  typedef struct name##4 name##4;
VCUDA_VECTORS(signed char, char, 2, 4)
VCUDA_VECTORS(unsigned char, uchar, 2, 4)
VCUDA_VECTORS(short, short, 4, 8)
VCUDA_VECTORS(unsigned short, ushort, 4, 8)
VCUDA_VECTORS(int, int, 8, 16)
VCUDA_VECTORS(unsigned int, uint, 8, 16)
VCUDA_VECTORS(long long, longlong, 16, 16)
VCUDA_VECTORS(unsigned long long, ulonglong, 16, 16)
VCUDA_VECTORS(float, float, 8, 16)
VCUDA_VECTORS(double, double, 16, 16)
#undef VCUDA_VECTORS

struct dim3 {
  unsigned int x, y, z;
#ifdef __cplusplus
  constexpr dim3(unsigned int x_ = 1, unsigned int y_ = 1, unsigned int z_ = 1)
      : x(x_), y(y_), z(z_) {}
#endif
};
typedef struct dim3 dim3;

#endif
