# SPDX-FileCopyrightText: Copyright (c) 2026 the nemo_sr maintainers
# SPDX-License-Identifier: Apache-2.0
"""Command line: list, verify and describe a run's checkpoints; see ``nemo_sr.training.inspection``."""

import sys

from nemo_sr.training.inspection import main

if __name__ == "__main__":
    sys.exit(main())
