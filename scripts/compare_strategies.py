#!/usr/bin/env python
# SPDX-FileCopyrightText: Copyright (c) 2026 the nemo_sr maintainers
# SPDX-License-Identifier: Apache-2.0
"""Compare the strategies of runs, or train them first; see --help."""

import sys

from nemo_sr.experiments.strategies.command import main

if __name__ == "__main__":
    sys.exit(main())
