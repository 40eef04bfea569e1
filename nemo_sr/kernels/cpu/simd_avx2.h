// SPDX-FileCopyrightText: Copyright (c) 2026 the nemo_sr maintainers
// SPDX-License-Identifier: Apache-2.0
//
// Vectors of 8 floats or words: AVX2.

#include <immintrin.h>

#define LANES 8

typedef __m256 vfloat;
typedef __m256i vword;

static inline vword load(const void *p) { return _mm256_loadu_si256(p); }
static inline void store(void *p, vword x) { _mm256_storeu_si256(p, x); }
static inline vword word(uint32_t x) { return _mm256_set1_epi32((int)x); }
static inline vfloat broadcast(float x) { return _mm256_set1_ps(x); }
static inline vfloat as_float(vword x) { return _mm256_castsi256_ps(x); }
static inline vword as_word(vfloat x) { return _mm256_castps_si256(x); }

static inline vfloat mul(vfloat a, vfloat b) { return _mm256_mul_ps(a, b); }
static inline vfloat add(vfloat a, vfloat b) { return _mm256_add_ps(a, b); }
static inline vfloat sub(vfloat a, vfloat b) { return _mm256_sub_ps(a, b); }
static inline vfloat divide(vfloat a, vfloat b) { return _mm256_div_ps(a, b); }
static inline vfloat root(vfloat a) { return _mm256_sqrt_ps(a); }

static inline vword plus(vword a, vword b) { return _mm256_add_epi32(a, b); }
static inline vword both(vword a, vword b) { return _mm256_and_si256(a, b); }
static inline vword xor3(vword a, vword b, vword c) { return _mm256_xor_si256(a, _mm256_xor_si256(b, c)); }
static inline vword or3(vword a, vword b, vword c) { return _mm256_or_si256(a, _mm256_or_si256(b, c)); }
static inline vword left16(vword a) { return _mm256_slli_epi32(a, 16); }
static inline vword right16(vword a) { return _mm256_srli_epi32(a, 16); }
static inline int any_at_least(vword a, vword limit) {
  return _mm256_movemask_epi8(_mm256_cmpeq_epi32(_mm256_max_epu32(a, limit), a)) != 0;
}

// a + 0x7FFF, and one more where bit 16 of a is set.
static inline vword plus_half(vword a) {
  return plus(plus(a, word(0x7FFF)), both(right16(a), word(1)));
}

// The upper half of each word of high, the upper half of low moved down.
static inline vword join(vword low, vword high) { return _mm256_blend_epi16(_mm256_srli_epi32(low, 16), high, 0xAA); }

// The floats at even and at odd places among 16.
static inline void load_pairs(const float *p, vfloat *even, vfloat *odd) {
  vfloat a = _mm256_loadu_ps(p), b = _mm256_loadu_ps(p + 8);
  vfloat low = _mm256_permute2f128_ps(a, b, 0x20), high = _mm256_permute2f128_ps(a, b, 0x31);
  *even = _mm256_shuffle_ps(low, high, 0x88);
  *odd = _mm256_shuffle_ps(low, high, 0xDD);
}

// Below, words are pairs; their upper half is of no concern except where it is named.
static inline vword lane_blocks(void) { return _mm256_setr_epi64x(0, 2, 1, 3); }
static inline vword long_word(uint64_t x) { return _mm256_set1_epi64x((long long)x); }
static inline vword long_plus(vword a, vword b) { return _mm256_add_epi64(a, b); }
static inline vword product(vword a, vword b) { return _mm256_mul_epu32(a, b); }
static inline vword upper(vword a) { return _mm256_srli_epi64(a, 32); }
static inline vword pair(vword low, vword high) {
  return _mm256_blend_epi32(low, _mm256_slli_epi64(high, 32), 0xAA);
}
static inline vword even_pairs(vword a, vword b) { return _mm256_unpacklo_epi64(a, b); }
static inline vword odd_pairs(vword a, vword b) { return _mm256_unpackhi_epi64(a, b); }
