// SPDX-FileCopyrightText: Copyright (c) 2026 the nemo_sr maintainers
// SPDX-License-Identifier: Apache-2.0
//
// Vectors of 4 floats or words in the vector extensions of GCC and Clang, which every processor can run.

#include <math.h>
#include <string.h>
#ifdef __SSE2__
#include <emmintrin.h>
#endif

#define LANES 4

typedef float vfloat __attribute__((vector_size(16)));
typedef uint32_t vword __attribute__((vector_size(16)));
typedef uint64_t vlong __attribute__((vector_size(16)));

static inline vword load(const void *p) {
  vword x;
  memcpy(&x, p, sizeof x);
  return x;
}
static inline void store(void *p, vword x) { memcpy(p, &x, sizeof x); }
static inline vword word(uint32_t x) { return (vword){x, x, x, x}; }
static inline vfloat broadcast(float x) { return (vfloat){x, x, x, x}; }
static inline vfloat as_float(vword x) { return (vfloat)x; }
static inline vword as_word(vfloat x) { return (vword)x; }

static inline vfloat mul(vfloat a, vfloat b) { return a * b; }
static inline vfloat add(vfloat a, vfloat b) { return a + b; }
static inline vfloat sub(vfloat a, vfloat b) { return a - b; }
static inline vfloat divide(vfloat a, vfloat b) { return a / b; }
static inline vfloat root(vfloat a) {
#ifdef __SSE2__
  return (vfloat)_mm_sqrt_ps((__m128)a);
#else
  return (vfloat){sqrtf(a[0]), sqrtf(a[1]), sqrtf(a[2]), sqrtf(a[3])};
#endif
}

static inline vword plus(vword a, vword b) { return a + b; }
static inline vword both(vword a, vword b) { return a & b; }
static inline vword xor3(vword a, vword b, vword c) { return a ^ b ^ c; }
static inline vword or3(vword a, vword b, vword c) { return a | b | c; }
static inline vword left16(vword a) { return a << 16; }
static inline vword right16(vword a) { return a >> 16; }
static inline int any_at_least(vword a, vword limit) {
  vlong reached = (vlong)(a >= limit);
  return (reached[0] | reached[1]) != 0;
}

// a + 0x7FFF, and one more where bit 16 of a is set.
static inline vword plus_half(vword a) { return a + 0x7FFFu + (a >> 16 & 1); }

// The upper half of each word of high, the upper half of low moved down.
static inline vword join(vword low, vword high) { return (low >> 16) | (high & 0xFFFF0000u); }

// The floats at even and at odd places among 8.
static inline void load_pairs(const float *p, vfloat *even, vfloat *odd) {
  *even = (vfloat){p[0], p[2], p[4], p[6]};
  *odd = (vfloat){p[1], p[3], p[5], p[7]};
}

// Below, words are pairs; their upper half is of no concern except where it is named.
static inline vword lane_blocks(void) { return (vword)(vlong){0, 1}; }
static inline vword long_word(uint64_t x) { return (vword)(vlong){x, x}; }
static inline vword long_plus(vword a, vword b) { return (vword)((vlong)a + (vlong)b); }
static inline vword product(vword a, vword b) {
#ifdef __SSE2__
  return (vword)_mm_mul_epu32((__m128i)a, (__m128i)b);
#else
  return (vword)(((vlong)a & 0xFFFFFFFFu) * ((vlong)b & 0xFFFFFFFFu));
#endif
}
static inline vword upper(vword a) { return (vword)((vlong)a >> 32); }
static inline vword pair(vword low, vword high) { return (vword)(((vlong)low & 0xFFFFFFFFu) | ((vlong)high << 32)); }
static inline vword even_pairs(vword a, vword b) { return (vword)(vlong){((vlong)a)[0], ((vlong)b)[0]}; }
static inline vword odd_pairs(vword a, vword b) { return (vword)(vlong){((vlong)a)[1], ((vlong)b)[1]}; }
