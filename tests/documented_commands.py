# SPDX-FileCopyrightText: Copyright (c) 2026 the nemo_sr maintainers
# SPDX-License-Identifier: Apache-2.0
"""What the commands in the documents rely on: scripts, options, keys of the configuration, targets of the Makefile."""

import re
import shlex
from dataclasses import dataclass, field
from importlib.util import find_spec

from documented import ROOT
from nemo_sr.training.config import compose_config, rewrite_argv
from nemo_sr.training.values import check_values

TARGETS = re.findall(r"^([a-z-]+):", (ROOT / "Makefile").read_text(encoding="utf-8"), re.MULTILINE)
# They belong to the machine, and take what they take.
FOREIGN = {"pip", "git", "tensorboard", "scancel", "scontrol", "touch", "docker", "sbatch", "pytest"}
LAUNCHER = "nemo_sr.megatron.run"


@dataclass
class Uses:
    """What commands rely on: for each program (a path, `-m MODULE`, or a subcommand of one) its options; problems."""

    options: dict[str, set[str]] = field(default_factory=dict)
    problems: list[str] = field(default_factory=list)

    def add_options(self, program, words):
        """Note the options among the words, for the program's --help."""
        found = {word.partition("=")[0] for word in words if re.match(r"--?[a-zA-Z]", word)}
        if found - {"--help"}:
            self.options.setdefault(program, set()).update(found)

    def require_file(self, path):
        """Note a path that is no file here, but for the reader's, in capitals, and those of `make setup`."""
        if not re.match(r"[A-Z]|\.venv/", path) and not (ROOT / path).exists():
            self.problems.append(f"no file {path}")


def split_commands(text):
    """Return the simple commands of a block as lists of words, without variables, comments and ellipses."""
    commands = []
    for line in text.replace("\\\n", " ").splitlines():
        rest = shlex.split(line, comments=True)
        while rest:
            end = next((i for i, word in enumerate(rest) if word in ("&&", "|", ";")), len(rest))
            words = [word for word in rest[:end] if not re.fullmatch(r"(\S+=)?\.\.\.", word)]
            while words and re.match(r"[A-Z_]+=", words[0]):
                words = words[1:]
            commands += [words] if words else []
            rest = rest[end + 1 :]
    return commands


def check_command(words, uses):
    """Note what a simple command relies on."""
    program, *rest = words
    if program in ("python", "python3"):
        check_python(rest, uses)
    elif program == "torchrun":
        check_torchrun(rest, uses)
    elif program == "make":
        uses.problems += [f"no target {word}" for word in rest if "=" not in word and word not in TARGETS]
    elif program == ".":
        uses.require_file(rest[0])
    elif program.startswith("slurm/"):
        check_slurm(program, rest, uses)
    elif program == "sbatch":
        scripts = [i for i, word in enumerate(rest) if word.endswith(".slurm")]
        check_slurm(rest[scripts[0]], rest[scripts[0] + 1 :], uses)
    elif program == "docker":
        uses.require_file(rest[rest.index("--file") + 1])
    elif program not in FOREIGN:
        uses.problems.append(f"unknown program {program}")


def check_python(words, uses):
    """Note what `python WORDS` relies on."""
    if words[0] == "-c":
        compile(words[1], "-c", "exec")
    elif words[0] == "-m":
        check_module(words[1], words[2:], uses)
    else:
        check_script(words[0], words[1:], uses)


def check_torchrun(words, uses):
    """Note what `torchrun WORDS` relies on; torch's own parser refuses what is no option of it."""
    from torch.distributed.run import get_args_parser

    args = get_args_parser().parse_args(words)
    check = check_module if args.module else check_script
    check(args.training_script, args.training_script_args, uses)


def check_module(module, words, uses):
    """Note what `python -m MODULE WORDS` relies on."""
    if module == "pytest":
        for word in words:
            if word.startswith("tests/"):
                uses.require_file(word)
    elif module == LAUNCHER:
        end = next((i for i, word in enumerate(words) if word.endswith(".py")), len(words))
        uses.add_options(f"-m {module}", words[:end])  # what follows belongs to the program that it starts
    elif find_spec(module) is None:
        uses.problems.append(f"no module {module}")
    else:
        uses.add_options(f"-m {module}", words)


def check_script(script, words, uses):
    """Note what a script of the repository relies on."""
    uses.require_file(script)
    if script == "scripts/pretrain_gpt.py":
        check_configuration([word for word in words if word not in ("--help", "--cfg", "job")], uses)
    elif script == "scripts/plan.py":
        own = {
            "--gpus": 2,
            "--gpu-memory": 2,
            "--gpus-per-node": 2,
            "--reserve": 2,
            "--gpu": 2,
            "--top": 2,
            "--json": 1,
        }
        uses.add_options(script, [word for word in words if not word.startswith("--config-")])
        rest = list(words)
        while name := next((word for word in rest if word in own), None):
            at = rest.index(name)
            del rest[at : at + own[name]]
        check_configuration([word for word in rest if word != "--help"], uses)
    else:
        commands = (
            [word for word in words[:1] if re.fullmatch(r"[a-z]+", word)] if script != "scripts/add_masters.py" else []
        )
        uses.add_options(" ".join([script, *commands]), words)


def check_slurm(script, words, uses):
    """Note what a batch script relies on: sbatch's options are SLURM's, its own are in its text."""
    uses.require_file(script)
    if "--" in words:
        at = words.index("--")
        check_script("scripts/preprocess_wikipedia.py", words[at + 1 :], uses)
        words = words[:at]
    text = (ROOT / script).read_text(encoding="utf-8")
    uses.problems += [
        f"{script} has no {word}" for word in words if word in ("--dry-run", "--table", "--shards") and word not in text
    ]
    if script != "slurm/preprocess.slurm":
        check_configuration([word for word in words if re.match(r"--config-|\+?[a-z_.]+=", word)], uses)


def check_configuration(words, uses):
    """Compose the configuration of a run, and check its values; a group's choice in capitals is the reader's."""
    words = [word for word in words if not re.fullmatch(r"\+?\w+=[A-Z]+", word)]
    try:
        check_values(compose_config(rewrite_argv(words)))
    except (ValueError, SystemExit) as error:
        uses.problems.append(f"{' '.join(words)}: {error}")
