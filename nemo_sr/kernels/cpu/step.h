// SPDX-FileCopyrightText: Copyright (c) 2026 the nemo_sr maintainers
// SPDX-License-Identifier: Apache-2.0
//
// What the entry point (step.c) and the kernels, one for each instruction set, have in common.

#ifndef NEMO_SR_STEP_H
#define NEMO_SR_STEP_H

#include <stdint.h>

#define LARGEST_BF16 0x7F7F0000u
#define INFINITE 0x7F800000u
#define MAGNITUDE 0x7FFFFFFFu

enum { WEIGHT, EXP_AVG, EXP_AVG_SQ, NUM_STREAMS };

// One call's options: the scalars of nemo_sr.update.StepScalars (grad_scale negated when maximizing: the same bits).
struct options {
  float beta1, one_minus_beta1, beta2, one_minus_beta2;
  float inverse_root_correction2, eps, decay, step_size, grad_scale;
  uint32_t step;
  int32_t stochastic_exp_avg, stochastic_exp_avg_sq;
};

// Elements that are neighbours in memory and in the whole parameter, starting at a multiple of eight there.
struct run {
  uint16_t *weight, *exp_avg, *exp_avg_sq;
  const void *grad;
  int float32_grad;
  int64_t units;               // of the kernel's own number of elements each
  uint64_t block;              // index of the first eight elements; its upper half is that of all
  const uint32_t (*keys)[2];   // the Philox key of each round
  float *trace[NUM_STREAMS];   // where to write the FP32 values before rounding, or null
};

struct kernel {
  int64_t unit;  // elements that are stepped at a time
  void (*step_bf16)(const struct run *run, const struct options *options);
  void (*step_float32)(float *weight, const void *grad, int float32_grad, float *exp_avg, float *exp_avg_sq, int64_t n,
                       const struct options *options);
};

extern const struct kernel kernel_portable, kernel_avx2, kernel_avx512;

#endif
