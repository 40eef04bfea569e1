#!/usr/bin/env python
# SPDX-FileCopyrightText: Copyright (c) 2026 the nemo_sr maintainers
# SPDX-License-Identifier: Apache-2.0
"""Convert weights from and to Hugging Face; see --help."""

import sys

from nemo_sr.training.convert_hf import main

if __name__ == "__main__":
    sys.exit(main())
