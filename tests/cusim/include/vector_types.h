/* CUDA's vector types, with its alignments: a load of four floats wants 16 bytes. */
#ifndef CUSIM_VECTOR_TYPES_H
#define CUSIM_VECTOR_TYPES_H

#define CUSIM_ALIGNED(n) __attribute__((aligned(n)))

/* X(type, element, alignment of 1, 2, 4) */
#define CUSIM_VECTORS(X) \
    X(char, signed char, 1, 2, 4) \
    X(uchar, unsigned char, 1, 2, 4) \
    X(short, short, 2, 4, 8) \
    X(ushort, unsigned short, 2, 4, 8) \
    X(int, int, 4, 8, 16) \
    X(uint, unsigned int, 4, 8, 16) \
    X(long, long, 8, 16, 16) \
    X(ulong, unsigned long, 8, 16, 16) \
    X(longlong, long long, 8, 16, 16) \
    X(ulonglong, unsigned long long, 8, 16, 16) \
    X(float, float, 4, 8, 16) \
    X(double, double, 8, 16, 16)

#define CUSIM_VECTOR(type, element, one, two, four) \
    typedef struct CUSIM_ALIGNED(one) type##1 { \
        element x; \
    } \
    type##1; \
    typedef struct CUSIM_ALIGNED(two) type##2 { \
        element x, y; \
    } \
    type##2; \
    typedef struct type##3 { \
        element x, y, z; \
    } \
    type##3; \
    typedef struct CUSIM_ALIGNED(four) type##4 { \
        element x, y, z, w; \
    } \
    type##4;
CUSIM_VECTORS(CUSIM_VECTOR)
#undef CUSIM_VECTOR

#ifdef __cplusplus
#define CUSIM_MAKE(type, element, one, two, four) \
    static inline type##1 make_##type##1(element x) { return type##1 {x}; } \
    static inline type##2 make_##type##2(element x, element y) { return type##2 {x, y}; } \
    static inline type##3 make_##type##3(element x, element y, element z) { \
        return type##3 {x, y, z}; \
    } \
    static inline type##4 make_##type##4(element x, element y, element z, element w) { \
        return type##4 {x, y, z, w}; \
    }
CUSIM_VECTORS(CUSIM_MAKE)
#undef CUSIM_MAKE

struct dim3 {
    unsigned int x, y, z;
    constexpr dim3(unsigned int vx = 1, unsigned int vy = 1, unsigned int vz = 1)
        : x(vx), y(vy), z(vz) {}
};
#else
typedef struct dim3 {
    unsigned int x, y, z;
} dim3;
#endif

#endif
