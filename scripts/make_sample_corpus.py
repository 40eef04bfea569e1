# SPDX-FileCopyrightText: Copyright (c) 2026 the nemo_sr maintainers
# SPDX-License-Identifier: Apache-2.0
"""Command line: a sample MediaWiki export from Python's own documentation; see ``nemo_sr.data.sample_corpus``."""

import sys

from nemo_sr.data.sample_corpus import main

if __name__ == "__main__":
    sys.exit(main())
