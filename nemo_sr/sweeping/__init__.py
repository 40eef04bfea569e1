# SPDX-FileCopyrightText: Copyright (c) 2026 the nemo_sr maintainers
# SPDX-License-Identifier: Apache-2.0
"""A learning-rate finder: a grid of short runs, and the range of rates that each strategy stands."""
