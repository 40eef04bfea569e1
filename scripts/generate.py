#!/usr/bin/env python
# SPDX-FileCopyrightText: Copyright (c) 2026 the nemo_sr maintainers
# SPDX-License-Identifier: Apache-2.0
"""Continue a text with a checkpoint's model; see --help."""

import sys

from nemo_sr.training.generate import main

if __name__ == "__main__":
    sys.exit(main())
