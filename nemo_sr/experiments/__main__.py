# SPDX-FileCopyrightText: Copyright (c) 2026 the nemo_sr maintainers
# SPDX-License-Identifier: Apache-2.0
"""``python -m nemo_sr.experiments``."""

import sys

from nemo_sr.experiments.frame.command import main

sys.exit(main())
