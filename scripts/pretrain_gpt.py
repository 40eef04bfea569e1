#!/usr/bin/env python
# SPDX-FileCopyrightText: Copyright (c) 2026 the nemo_sr maintainers
# SPDX-License-Identifier: Apache-2.0
"""Pretrain a GPT; see --help."""

from nemo_sr.training.pretrain import main

if __name__ == "__main__":
    main()
