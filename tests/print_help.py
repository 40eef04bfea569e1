# SPDX-FileCopyrightText: Copyright (c) 2026 the nemo_sr maintainers
# SPDX-License-Identifier: Apache-2.0
"""Prints, as JSON, the --help of several programs in one process, which imports torch once: PROGRAM ..."""

import contextlib
import io
import json
import runpy
import sys
from pathlib import Path


def help_of(program):
    """Return what a program, `scripts/x.py [SUBCOMMAND]` or `-m MODULE`, says when asked for help."""
    first, *rest = program.split()
    printed = io.StringIO()
    argv, path = sys.argv, list(sys.path)
    with contextlib.redirect_stdout(printed), contextlib.suppress(SystemExit):
        if first == "-m":
            sys.argv = [rest[0], "--help"]
            runpy.run_module(rest[0], run_name="__main__", alter_sys=True)
        else:
            sys.argv = [first, *rest, "--help"]
            sys.path.insert(0, str(Path(first).parent))
            runpy.run_path(first, run_name="__main__")
    sys.argv, sys.path[:] = argv, path
    return printed.getvalue()


if __name__ == "__main__":
    print(json.dumps({program: help_of(program) for program in sys.argv[1:]}))
