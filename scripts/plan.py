#!/usr/bin/env python
# SPDX-FileCopyrightText: Copyright (c) 2026 the nemo_sr maintainers
# SPDX-License-Identifier: Apache-2.0
"""Plan the memory and the layout of a training job; see --help."""

import sys

from nemo_sr.planning.command import main

if __name__ == "__main__":
    sys.exit(main())
