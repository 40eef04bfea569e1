# SPDX-FileCopyrightText: Copyright (c) 2026 the nemo_sr maintainers
# SPDX-License-Identifier: Apache-2.0
"""What each choice of the method is worth: a small transformer in plain torch, trained with and without it."""
