// SPDX-FileCopyrightText: Copyright (c) 2026 the nemo_sr maintainers
// SPDX-License-Identifier: Apache-2.0

#include <stdint.h>

#include "simd_portable.h"

#define KERNEL kernel_portable
#include "kernel.h"
