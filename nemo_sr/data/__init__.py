# SPDX-FileCopyrightText: Copyright (c) 2026 the nemo_sr maintainers
# SPDX-License-Identifier: Apache-2.0
"""From a MediaWiki dump to articles, tokens and Megatron-core's .bin/.idx files."""
