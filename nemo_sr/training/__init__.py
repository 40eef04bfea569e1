# SPDX-FileCopyrightText: Copyright (c) 2026 the nemo_sr maintainers
# SPDX-License-Identifier: Apache-2.0
"""Pretraining a GPT: Hydra configures, Lightning runs the loop, NeMo schedules, Megatron-core does the rest."""
