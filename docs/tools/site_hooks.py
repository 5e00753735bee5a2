"""Hooks of the documentation's build: pages that are made from the code, and links to files outside of docs/.

- A line `[diagram](FILE)` becomes the diagram of a docstring, `[listing](FILE)` the docstring without its first
  sentence, `[metrics](FILE)` the table of metrics.
- `states.md` has all state machines of the code; `tour.md` is the notebook as a page.
- A file outside of docs/ that a page links to becomes a page under `repository/`: the site needs no other host.
"""

import json
import os
import re
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from textwrap import indent

from mkdocs.config.defaults import MkDocsConfig
from mkdocs.structure.files import File, Files
from mkdocs.structure.pages import Page
from state_diagrams import ROOT, SOURCE, diagrams, docstring, machines

from spotlight.surface.metrics import METRICS

DOCS = ROOT / "docs"
OUTSIDE = "repository"
LINK = re.compile(r"(?<=\]\()(?!\w+:)([^)#\s]+)")
MADE = re.compile(r"^( *)\[(diagram|listing|metrics)\]\(([^)]+)\)$", re.MULTILINE)
LANGUAGES = {".py": "python", ".yaml": "yaml", ".json": "json", ".sbatch": "bash", "": "text"}
NOT_SEARCHED = "---\nsearch:\n  exclude: true\n---\n"


class MissingDiagram(Exception):
    """A page wants the diagram of a file that has none."""


def on_files(files: Files, config: MkDocsConfig) -> Files:
    generated = {"states.md": states_page(), "tour.md": notebook_page(DOCS / "tour.ipynb")}
    generated |= {place_of(path): repository_page(path) for path in linked_outside()}
    for place, text in generated.items():
        files.append(File.generated(config, place, content=text))
    return files


def on_page_markdown(markdown: str, page: Page, config: MkDocsConfig, files: Files) -> str:
    """The page with its diagrams, and with links that are right at its place in the site."""
    source = source_of(page.file.src_uri)
    text = MADE.sub(lambda match: indent(made(match[2], (source.parent / match[3]).resolve()), match[1]), markdown)
    return LINK.sub(lambda match: link_from(page.file.src_uri, source, match[1]), text)


# -- parts of the code -------------------------------------------------------------------------------------------------


def made(kind: str, file: Path) -> str:
    """The text in place of a line `[kind](file)`."""
    match kind:
        case "diagram":
            return drawn(file)
        case "listing":
            return f"```text\n{docstring(file).partition(chr(10) * 2)[2]}\n```"
        case _:
            rows = [f"| `{name}` | {kind.type} | {kind.help} |" for name, kind in METRICS.items()]
            return "\n".join(["| metric | type | value |", "|---|---|---|", *rows])


def drawn(file: Path) -> str:
    found = diagrams(file)
    if not found:
        raise MissingDiagram(f"{file.relative_to(ROOT)} has no diagram in its docstring")
    return "\n\n".join(f"```text\n{diagram}\n```" for diagram in found)


def states_page() -> str:
    """All state machines, each with its diagram and what its states mean."""
    parts = ["# State machines\n\nFrom the docstrings and enums of the code, by package."]
    for machine in machines():
        name = machine.file.relative_to(SOURCE)
        parts += [f"## {name}", f"{machine.subject} `{machine.enum}`:", drawn(machine.file)]
        meanings = [f"| {state} | {text} |" for state, text in machine.states if text]
        parts += ["\n".join(["| state | meaning |", "|---|---|", *meanings])] if meanings else []
    return "\n\n".join(parts) + "\n"


# -- files outside of docs/ --------------------------------------------------------------------------------------------


def place_of(path: Path) -> str:
    """Where the site has a file of the repository."""
    if path.is_relative_to(DOCS):
        return path.relative_to(DOCS).as_posix()
    name = path.relative_to(ROOT).as_posix()
    return f"{OUTSIDE}/{name}" if path.suffix == ".md" else f"{OUTSIDE}/{name}.md"


def source_of(place: str) -> Path:
    """The file of the repository that a page is made of."""
    if not place.startswith(f"{OUTSIDE}/"):
        return DOCS / place
    path = ROOT / place.removeprefix(f"{OUTSIDE}/")
    return path if path.is_file() else path.with_suffix("")


def link_from(place: str, source: Path, link: str) -> str:
    target = (source.parent / link).resolve()
    if not target.is_relative_to(ROOT) or not target.exists():
        return link
    return os.path.relpath(place_of(target), os.path.dirname(place) or ".")


@cache
def linked_outside() -> frozenset[Path]:
    """Files outside of docs/ to which a page links, and those to which these link."""
    found: set[Path] = set()
    waiting = [*DOCS.rglob("*.md"), ROOT / "CHANGELOG.md"]
    while waiting:
        path = waiting.pop()
        if path in found:
            continue
        if not path.is_relative_to(DOCS):
            found.add(path)
        waiting += [target for target in linked(path) if not target.is_relative_to(DOCS)]
    return frozenset(found)


def linked(path: Path) -> Iterator[Path]:
    if path.suffix == ".md":
        for link in LINK.findall(MADE.sub("", path.read_text())):
            target = (path.parent / link).resolve()
            if target.is_file() and target.is_relative_to(ROOT):
                yield target


def repository_page(path: Path) -> str:
    if path.suffix == ".md":
        return path.read_text()
    name = path.relative_to(ROOT).as_posix()
    return f"{NOT_SEARCHED}# {name}\n\n````{LANGUAGES.get(path.suffix, 'text')}\n{path.read_text()}````\n"


def notebook_page(path: Path) -> str:
    cells = [(cell["cell_type"], "".join(cell["source"])) for cell in json.loads(path.read_text())["cells"]]
    parts = [text if kind == "markdown" else f"```python\n{text}\n```" for kind, text in cells]
    return "\n\n".join(parts) + f"\n\nThe notebook: [{path.name}]({path.name}).\n"
