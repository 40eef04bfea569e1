// SPDX-FileCopyrightText: Copyright (c) 2026 the nemo_sr maintainers
// SPDX-License-Identifier: Apache-2.0
//
// The step of nemo_sr/update.py over vectors. Included once for each instruction set, after its simd_*.h; KERNEL names
// the result. A vector of BF16 pairs is two vectors of FP32, one of the elements at even places and one of the others,
// so that nothing needs to be permuted; the Philox words come in the same order.

#include <math.h>
#include <string.h>

#include "step.h"

#define INLINE static inline __attribute__((always_inline))
#define UNLIKELY(x) __builtin_expect(!!(x), 0)

#define UNIT (4 * LANES)  // elements: those of LANES / 2 Philox calls, which a vector of 64-bit products makes at once

// The elements at the even places, and those at the odd ones, of 2 * LANES neighbours.
struct values {
  vfloat even, odd;
};

struct constants {
  vfloat beta1, one_minus_beta1, beta2, one_minus_beta2;
  vfloat inverse_root_correction2, eps, decay, step_size, grad_scale;
};

INLINE struct constants broadcast_all(const struct options *o) {
  return (struct constants){
      broadcast(o->beta1),  broadcast(o->one_minus_beta1), broadcast(o->beta2),
      broadcast(o->one_minus_beta2), broadcast(o->inverse_root_correction2),
      broadcast(o->eps), broadcast(o->decay), broadcast(o->step_size), broadcast(o->grad_scale)};
}

// Philox4x32-10 of the blocks whose lower halves are in the even words of `low`: 16 bits of noise for each of UNIT
// elements, in the order of two vectors of BF16. Only the even words of a vector are used until the end.
INLINE void make_noise(vword low, uint32_t high, uint32_t step, uint32_t stream, const uint32_t (*keys)[2], vword *noise) {
  const vword m0 = word(0xD2511F53u), m1 = word(0xCD9E8D57u);
  vword c0 = low, c1 = word(high), c2 = word(step), c3 = word(stream);
#pragma GCC unroll 10
  for (int i = 0; i < 10; i++) {
    vword p0 = product(c0, m0), p1 = product(c2, m1);
    c0 = xor3(upper(p1), c1, word(keys[i][0]));
    c1 = p1;
    c2 = xor3(upper(p0), c3, word(keys[i][1]));
    c3 = p0;
  }
  vword first = pair(c0, c1), second = pair(c2, c3);
  noise[0] = even_pairs(first, second);
  noise[1] = odd_pairs(first, second);
}

// One AdamW step in FP32: adamw_float32 of nemo_sr/update.py, operation by operation, in three parts.
INLINE void step_moments(vfloat g, vfloat *m, vfloat *v, const struct constants *c) {
  g = mul(g, c->grad_scale);
  *m = add(mul(*m, c->beta1), mul(g, c->one_minus_beta1));
  *v = add(mul(*v, c->beta2), mul(mul(g, g), c->one_minus_beta2));
}

INLINE vfloat step_direction(vfloat m, vfloat v, const struct constants *c) {
  return divide(m, add(mul(root(v), c->inverse_root_correction2), c->eps));
}

INLINE vfloat step_weight(vfloat w, vfloat direction, const struct constants *c) {
  return sub(mul(w, c->decay), mul(direction, c->step_size));
}

INLINE struct values load_bf16(const uint16_t *p) {
  vword x = load(p);
  return (struct values){as_float(left16(x)), as_float(both(x, word(0xFFFF0000u)))};
}

INLINE struct values load_grad(const void *grad, int float32_grad, int64_t i) {
  if (!float32_grad) return load_bf16((const uint16_t *)grad + i);
  struct values g;
  load_pairs((const float *)grad + i, &g.even, &g.odd);
  return g;
}

// Rounding of values below the largest BF16: no NaN, no infinity, none that might round to one.
INLINE vword round_small(struct values x, int stochastic, vword noise) {
  vword even = as_word(x.even), odd = as_word(x.odd);
  if (!stochastic) return join(plus_half(even), plus_half(odd));
  return join(plus(even, both(noise, word(0xFFFFu))), plus(odd, right16(noise)));
}

// Whether a magnitude reaches the limit; with false alarms, where the bits of several magnitudes do together.
INLINE int any_may_reach(vword limit, struct values a, struct values b, struct values c) {
  vword bits = or3(as_word(a.even), as_word(a.odd), as_word(b.even));
  bits = or3(bits, as_word(b.odd), as_word(c.even));
  return any_at_least(both(or3(bits, as_word(c.odd), as_word(c.odd)), word(MAGNITUDE)), limit);
}

INLINE int any_reaches(vword limit, struct values x) {
  return any_at_least(both(as_word(x.even), word(MAGNITUDE)), limit) |
         any_at_least(both(as_word(x.odd), word(MAGNITUDE)), limit);
}

static uint16_t round_any(uint32_t x, int stochastic, uint32_t noise) {
  uint32_t magnitude = x & MAGNITUDE;
  if (magnitude > INFINITE) return 0x7FFF;
  if (!stochastic) return (uint16_t)((x + 0x7FFFu + (x >> 16 & 1)) >> 16);
  return (uint16_t)((magnitude >= LARGEST_BF16 ? x : x + noise) >> 16);
}

// Rounding of any values, one by one; and their trace.
static __attribute__((noinline)) void round_and_store(const struct values *x, int stochastic, const vword *noise,
                                                      uint16_t *p, float *trace) {
  float lanes[2][LANES];
  uint32_t words[LANES];
  memcpy(lanes, x, sizeof lanes);
  memcpy(words, noise, sizeof words);
  for (int i = 0; i < 2 * LANES; i++) {
    uint32_t bits;
    memcpy(&bits, &lanes[i % 2][i / 2], sizeof bits);
    p[i] = round_any(bits, stochastic, words[i / 2] >> 16 * (i % 2) & 0xFFFFu);
    if (trace) trace[i] = lanes[i % 2][i / 2];
  }
}

INLINE void step_run(const struct run *run, const struct options *o, int float32_grad, int stochastic_m, int stochastic_v) {
  uint16_t *restrict weight = run->weight, *restrict exp_avg = run->exp_avg, *restrict exp_avg_sq = run->exp_avg_sq;
  const void *restrict grad = run->grad;
  float *const trace[NUM_STREAMS] = {run->trace[WEIGHT], run->trace[EXP_AVG], run->trace[EXP_AVG_SQ]};
  const int tracing = trace[WEIGHT] != 0;
  // While tracing everything reaches it.
  const vword limit = word(tracing ? 0 : LARGEST_BF16);
  const struct constants c = broadcast_all(o);
  const int64_t n = run->units * UNIT;
  const uint32_t high = (uint32_t)(run->block >> 32), step = o->step;
  uint32_t keys[10][2];
  memcpy(keys, run->keys, sizeof keys);
  vword low = long_plus(long_word(run->block & 0xFFFFFFFFu), lane_blocks());
  for (int64_t i = 0; i < n; i += UNIT) {
    // Independent work stands side by side, and the noise after the divisions, whose latency it hides.
    struct values m[2], v[2], direction[2];
#pragma GCC unroll 2
    for (int k = 0; k < 2; k++) {
      const int64_t j = i + k * 2 * LANES;
      const struct values g = load_grad(grad, float32_grad, j);
      m[k] = load_bf16(exp_avg + j);
      v[k] = load_bf16(exp_avg_sq + j);
      step_moments(g.even, &m[k].even, &v[k].even, &c);
      step_moments(g.odd, &m[k].odd, &v[k].odd, &c);
    }
#pragma GCC unroll 2
    for (int k = 0; k < 2; k++) {
      direction[k].even = step_direction(m[k].even, v[k].even, &c);
      direction[k].odd = step_direction(m[k].odd, v[k].odd, &c);
    }
    vword noise[NUM_STREAMS][2] = {{word(0), word(0)}, {word(0), word(0)}, {word(0), word(0)}};
    make_noise(low, high, step, WEIGHT, keys, noise[WEIGHT]);
    if (stochastic_m) make_noise(low, high, step, EXP_AVG, keys, noise[EXP_AVG]);
    if (stochastic_v) make_noise(low, high, step, EXP_AVG_SQ, keys, noise[EXP_AVG_SQ]);
    low = long_plus(low, long_word(LANES / 2));
#pragma GCC unroll 2
    for (int k = 0; k < 2; k++) {
      const int64_t j = i + k * 2 * LANES;
      struct values w = load_bf16(weight + j);
      w.even = step_weight(w.even, direction[k].even, &c);
      w.odd = step_weight(w.odd, direction[k].odd, &c);
      if (UNLIKELY(any_may_reach(limit, w, m[k], v[k])) &&
          (any_reaches(limit, w) | any_reaches(limit, m[k]) | any_reaches(limit, v[k]))) {
        // Copies, so that only this path needs them in memory.
        const struct values values[NUM_STREAMS] = {w, m[k], v[k]};
        const vword words[NUM_STREAMS] = {noise[WEIGHT][k], noise[EXP_AVG][k], noise[EXP_AVG_SQ][k]};
        round_and_store(&values[WEIGHT], 1, &words[WEIGHT], weight + j, tracing ? trace[WEIGHT] + j : 0);
        round_and_store(&values[EXP_AVG], stochastic_m, &words[EXP_AVG], exp_avg + j, tracing ? trace[EXP_AVG] + j : 0);
        round_and_store(&values[EXP_AVG_SQ], stochastic_v, &words[EXP_AVG_SQ], exp_avg_sq + j,
                        tracing ? trace[EXP_AVG_SQ] + j : 0);
        continue;
      }
      store(weight + j, round_small(w, 1, noise[WEIGHT][k]));
      store(exp_avg + j, round_small(m[k], stochastic_m, noise[EXP_AVG][k]));
      store(exp_avg_sq + j, round_small(v[k], stochastic_v, noise[EXP_AVG_SQ][k]));
    }
  }
}

// One specialised loop for each combination, so that no option is looked at inside.
static void step_bf16(const struct run *run, const struct options *o) {
  switch ((run->float32_grad != 0) << 2 | (o->stochastic_exp_avg != 0) << 1 | (o->stochastic_exp_avg_sq != 0)) {
    case 0: step_run(run, o, 0, 0, 0); break;
    case 1: step_run(run, o, 0, 0, 1); break;
    case 2: step_run(run, o, 0, 1, 0); break;
    case 3: step_run(run, o, 0, 1, 1); break;
    case 4: step_run(run, o, 1, 0, 0); break;
    case 5: step_run(run, o, 1, 0, 1); break;
    case 6: step_run(run, o, 1, 1, 0); break;
    default: step_run(run, o, 1, 1, 1); break;
  }
}

// FP32 parameters: the same formulas, no rounding.
INLINE void step_floats(float *restrict weight, const void *restrict grad, int float32_grad, float *restrict exp_avg,
                        float *restrict exp_avg_sq, int64_t n, const struct options o) {
  for (int64_t i = 0; i < n; i++) {
    float g, d;
    if (float32_grad) {
      g = ((const float *)grad)[i];
    } else {
      uint32_t bits = (uint32_t)((const uint16_t *)grad)[i] << 16;
      memcpy(&g, &bits, sizeof g);
    }
    g = g * o.grad_scale;
    float m = exp_avg[i] * o.beta1 + g * o.one_minus_beta1;
    float v = exp_avg_sq[i] * o.beta2 + (g * g) * o.one_minus_beta2;
    d = sqrtf(v) * o.inverse_root_correction2 + o.eps;
    weight[i] = weight[i] * o.decay - (m / d) * o.step_size;
    exp_avg[i] = m;
    exp_avg_sq[i] = v;
  }
}

static void step_float32(float *weight, const void *grad, int float32_grad, float *exp_avg, float *exp_avg_sq, int64_t n,
                         const struct options *options) {
  if (float32_grad)
    step_floats(weight, grad, 1, exp_avg, exp_avg_sq, n, *options);
  else
    step_floats(weight, grad, 0, exp_avg, exp_avg_sq, n, *options);
}

const struct kernel KERNEL = {UNIT, step_bf16, step_float32};
