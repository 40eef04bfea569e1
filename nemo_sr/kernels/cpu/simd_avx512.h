// SPDX-FileCopyrightText: Copyright (c) 2026 the nemo_sr maintainers
// SPDX-License-Identifier: Apache-2.0
//
// Vectors of 16 floats or words: AVX-512 F, BW, DQ and VL.

#include <immintrin.h>

#define LANES 16

typedef __m512 vfloat;
typedef __m512i vword;

static inline vword load(const void *p) { return _mm512_loadu_si512(p); }
static inline void store(void *p, vword x) { _mm512_storeu_si512(p, x); }
static inline vword word(uint32_t x) { return _mm512_set1_epi32((int)x); }
static inline vfloat broadcast(float x) { return _mm512_set1_ps(x); }
static inline vfloat as_float(vword x) { return _mm512_castsi512_ps(x); }
static inline vword as_word(vfloat x) { return _mm512_castps_si512(x); }

static inline vfloat mul(vfloat a, vfloat b) { return _mm512_mul_ps(a, b); }
static inline vfloat add(vfloat a, vfloat b) { return _mm512_add_ps(a, b); }
static inline vfloat sub(vfloat a, vfloat b) { return _mm512_sub_ps(a, b); }
static inline vfloat divide(vfloat a, vfloat b) { return _mm512_div_ps(a, b); }
static inline vfloat root(vfloat a) { return _mm512_sqrt_ps(a); }

static inline vword plus(vword a, vword b) { return _mm512_add_epi32(a, b); }
static inline vword both(vword a, vword b) { return _mm512_and_si512(a, b); }
static inline vword xor3(vword a, vword b, vword c) { return _mm512_ternarylogic_epi32(a, b, c, 0x96); }
static inline vword or3(vword a, vword b, vword c) { return _mm512_ternarylogic_epi32(a, b, c, 0xFE); }
static inline vword left16(vword a) { return _mm512_slli_epi32(a, 16); }
static inline vword right16(vword a) { return _mm512_srli_epi32(a, 16); }
static inline int any_at_least(vword a, vword limit) { return _mm512_cmpge_epu32_mask(a, limit) != 0; }

// a + 0x7FFF, and one more where bit 16 of a is set.
static inline vword plus_half(vword a) {
  __mmask16 odd = _mm512_test_epi32_mask(a, _mm512_set1_epi32(0x10000));
  return _mm512_mask_add_epi32(_mm512_add_epi32(a, _mm512_set1_epi32(0x7FFF)), odd, a, _mm512_set1_epi32(0x8000));
}

// The upper half of each word of high, the upper half of low moved down.
static inline vword join(vword low, vword high) {
  return _mm512_mask_blend_epi16(0xAAAAAAAAu, _mm512_srli_epi32(low, 16), high);
}

// The floats at even and at odd places among 32.
static inline void load_pairs(const float *p, vfloat *even, vfloat *odd) {
  vfloat a = _mm512_loadu_ps(p), b = _mm512_loadu_ps(p + 16);
  const vword places = _mm512_setr_epi32(0, 2, 4, 6, 8, 10, 12, 14, 16, 18, 20, 22, 24, 26, 28, 30);
  *even = _mm512_permutex2var_ps(a, places, b);
  *odd = _mm512_permutex2var_ps(a, _mm512_add_epi32(places, _mm512_set1_epi32(1)), b);
}

// Below, words are pairs; their upper half is of no concern except where it is named.
static inline vword lane_blocks(void) { return _mm512_setr_epi64(0, 4, 1, 5, 2, 6, 3, 7); }
static inline vword long_word(uint64_t x) { return _mm512_set1_epi64((long long)x); }
static inline vword long_plus(vword a, vword b) { return _mm512_add_epi64(a, b); }
static inline vword product(vword a, vword b) { return _mm512_mul_epu32(a, b); }
static inline vword upper(vword a) { return _mm512_srli_epi64(a, 32); }
static inline vword pair(vword low, vword high) {
  return _mm512_mask_shuffle_epi32(low, 0xAAAA, high, _MM_PERM_CCAA);
}
static inline vword even_pairs(vword a, vword b) { return _mm512_unpacklo_epi64(a, b); }
static inline vword odd_pairs(vword a, vword b) { return _mm512_unpackhi_epi64(a, b); }
