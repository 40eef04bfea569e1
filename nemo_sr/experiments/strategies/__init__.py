# SPDX-FileCopyrightText: Copyright (c) 2026 the nemo_sr maintainers
# SPDX-License-Identifier: Apache-2.0
"""The paper's strategies trained side by side: the same data and initial weights, a sweep of learning rates, seeds."""
