# SPDX-FileCopyrightText: Copyright (c) 2026 the nemo_sr maintainers
# SPDX-License-Identifier: Apache-2.0
"""Brings files of the repository into the site when a page links to them.

Pages link to files by relative links (``../examples/train_gpt2.py``), which GitHub follows. In the site such a file
becomes a page of its own, ``repository/examples/train_gpt2.py``, and so do the files that it links to, if it is
Markdown. Links are turned to these pages before MkDocs checks them.
"""

from __future__ import annotations

import posixpath
import re
from pathlib import Path

from mkdocs.config.defaults import MkDocsConfig
from mkdocs.plugins import get_plugin_logger
from mkdocs.structure.files import File, Files
from mkdocs.structure.pages import Page

LINK = re.compile(r"(?<=\]\()(?!https?:|mailto:|#)([^)\s#]+)")
LANGUAGES = {".py": "python", ".sh": "bash", ".slurm": "bash", ".yaml": "yaml", ".toml": "toml", ".c": "c", ".h": "c"}
FOLDER = "repository"
FRONT_MATTER = "---\nhide: [toc]\nsearch: {exclude: true}\n---\n\n"  # code is not what a reader searches for
log = get_plugin_logger("repository_files")


def repository_path(page: str) -> str:
    """Return where a page of the site comes from: ``noise.md`` from ``docs/noise.md``, ``repository/X`` from ``X``."""
    return page.removeprefix(f"{FOLDER}/") if page.startswith(f"{FOLDER}/") else f"docs/{page}"


def page_of(path: str) -> str:
    """Return the page that shows a file of the repository."""
    if path.startswith("docs/"):
        return path.removeprefix("docs/")
    return f"{FOLDER}/{path}" if path.endswith(".md") else f"{FOLDER}/{path}.md"


def linked_paths(path: str, text: str) -> list[str]:
    """Return the files of the repository that a Markdown file links to."""
    return [posixpath.normpath(posixpath.join(posixpath.dirname(path), link)) for link in LINK.findall(text)]


def on_files(files: Files, config: MkDocsConfig) -> Files:
    """Add a page for each file outside of docs/ that a page, or an added page, links to."""
    root = Path(config.docs_dir).parent
    texts = {f"docs/{file.src_uri}": file.content_string for file in files.documentation_pages()}
    while texts:
        path, text = texts.popitem()
        for target in linked_paths(path, text):
            if target.startswith("docs/") or files.get_file_from_path(page_of(target)) is not None:
                continue
            if not (root / target).is_file():
                log.warning("%s links to %s, which is no file of the repository. Correct the link.", path, target)
                continue
            content = (root / target).read_text(encoding="utf-8")
            if target.endswith(".md"):
                texts[target] = content
            else:
                fence = "`" * (3 + max(map(len, re.findall("`+", content)), default=0))
                opening = fence + LANGUAGES.get(Path(target).suffix, "")
                content = f"{FRONT_MATTER}# {target}\n\n{opening}\n{content}{fence}\n"
            files.append(File.generated(config, page_of(target), content=content))
    return files


def on_page_markdown(markdown: str, page: Page, config: MkDocsConfig, files: Files) -> str:
    """Turn links to files of the repository into links to their pages."""
    path = repository_path(page.file.src_uri)
    if Path(path).with_suffix("").suffix:  # code, as X.py.md
        return markdown

    def turned(match: re.Match[str]) -> str:
        target = page_of(posixpath.normpath(posixpath.join(posixpath.dirname(path), match[1])))
        return posixpath.relpath(target, posixpath.dirname(page.file.src_uri) or ".")

    return LINK.sub(turned, markdown)
