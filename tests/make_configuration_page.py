# SPDX-FileCopyrightText: Copyright (c) 2026 the nemo_sr maintainers
# SPDX-License-Identifier: Apache-2.0
"""Makes docs/configuration.md from the schema's dataclasses. Usage: python tests/make_configuration_page.py."""

from pathlib import Path

from nemo_sr.training.keys import ORIGINS, schema_keys
from nemo_sr.training.values import RULES

TARGET = Path(__file__).parent.parent / "docs" / "configuration.md"
HEAD = """\
# Configuration

Every key of `scripts/pretrain_gpt.py`. This page is made from `nemo_sr/training/schema.py` by `python
tests/make_configuration_page.py`; a test compares the two.

A key is set on the command line (`optim.lr=3e-4`), or in a file of your own in `--config-dir`, with `pretrain_schema`
or one of our configurations first among its `defaults`. `python scripts/pretrain_gpt.py --cfg job` prints all keys as a
run would have them, `--help` the common ones. A key that is not listed here is refused with the nearest ones named; so
is a value of another type, or one that is not allowed, before any process starts.

**Default** is what the schema sets; the configurations in `conf/` set some keys otherwise. `required` has no default,
and `${...}` is another key's value. What `null` means is said beside it. Whatever has a **unit** is below 2^31 as well.

**Source** says whose a key's name is: NeMo 1.x's (`megatron_gpt_config.yaml`, `exp_manager` and the optimizers and
schedules it registers), Megatron-core's (`OptimizerConfig`) or our own (nemo_sr). NeMo 1.x has `optim` and `data`
inside `model`: `model.optim.KEY` and `model.data.KEY` are read as `optim.KEY` and `data.KEY`.
"""
COLUMNS = ("key", "type", "unit", "allowed", "default", "source", "meaning")


def page():
    keys = schema_keys().values()
    parts = [HEAD]
    for group in (key for key in keys if key.is_group):
        members = [key for key in keys if key.name.rpartition(".")[0] == group.name and not key.is_group]
        rows = [" | ".join(cells) for cells in (COLUMNS, ["---"] * len(COLUMNS), *map(row, members))]
        parts.append("\n".join([f"## {group.name}", "", group.text, "", *(f"| {line} |" for line in rows), ""]))
    ours = {origin: [f"`{key.name}`" for key in keys if key.origin == origin] for origin in ORIGINS}
    lists = [f"{', '.join(names)} ({origin})" for origin, names in ours.items()]
    parts.append(f"## Keys that NeMo 1.x does not have\n\n{'; '.join(lists)}.\n")
    return "\n".join(parts)


def row(key):
    default = "required" if key.default is None else f"`{key.default}`"
    allowed = RULES[key.name][0] if key.name in RULES else ""
    return [f"`{key.name}`", key.kind, key.unit or "", allowed, default, key.origin, key.text.replace("|", "\\|")]


if __name__ == "__main__":
    TARGET.write_text(page(), encoding="utf-8")
