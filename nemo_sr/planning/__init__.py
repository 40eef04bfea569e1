# SPDX-FileCopyrightText: Copyright (c) 2026 the nemo_sr maintainers
# SPDX-License-Identifier: Apache-2.0
"""What a training configuration needs in bytes per rank, and which parallel layouts fit and are fast."""
