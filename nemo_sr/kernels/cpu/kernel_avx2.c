// SPDX-FileCopyrightText: Copyright (c) 2026 the nemo_sr maintainers
// SPDX-License-Identifier: Apache-2.0

#if defined(__x86_64__)
#include <stdint.h>

#include "simd_avx2.h"

#define KERNEL kernel_avx2
#include "kernel.h"
#endif
