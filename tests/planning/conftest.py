# SPDX-FileCopyrightText: Copyright (c) 2026 the nemo_sr maintainers
# SPDX-License-Identifier: Apache-2.0
import sys
from pathlib import Path

# What trains small models, and looks at them.
sys.path.insert(0, str(Path(__file__).parents[1] / "training"))
