# SPDX-FileCopyrightText: Copyright (c) 2026 the nemo_sr maintainers
# SPDX-License-Identifier: Apache-2.0
"""Command line: check a .bin/.idx pair byte by byte; see ``nemo_sr.data.verify``."""

import sys

from nemo_sr.data.verify import main

if __name__ == "__main__":
    sys.exit(main())
