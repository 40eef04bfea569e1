#!/bin/sh
# SPDX-FileCopyrightText: Copyright (c) 2026 the nemo_sr maintainers
# SPDX-License-Identifier: Apache-2.0
# Inside a container: runs a command with the checkout's code before the image's, and beside what the image itself needs.
set -eu
checkout=$(cd "$(dirname "$0")/.." && pwd)
export PYTHONPATH="$checkout${PYTHONPATH:+:$PYTHONPATH}"
exec "$@"
