#!/usr/bin/env python
# SPDX-FileCopyrightText: Copyright (c) 2026 the nemo_sr maintainers
# SPDX-License-Identifier: Apache-2.0
"""Plot the curves of runs; see --help."""

import sys

from nemo_sr.plotting.command import main

if __name__ == "__main__":
    sys.exit(main())
