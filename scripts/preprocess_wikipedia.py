# SPDX-FileCopyrightText: Copyright (c) 2026 the nemo_sr maintainers
# SPDX-License-Identifier: Apache-2.0
"""Command line: a MediaWiki dump to Megatron-core training data; see ``nemo_sr.data.preprocess``."""

import sys

from nemo_sr.data.preprocess import main

if __name__ == "__main__":
    sys.exit(main())
