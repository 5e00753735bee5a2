"""State machines of the code, for the documentation: diagrams and enums as the source files have them.

Files are parsed, not imported.
"""

import ast
import re
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from textwrap import dedent

ROOT = Path(__file__).parents[2]
SOURCE = ROOT / "src/spotlight"
SIMULATED = "sim"
"""Package that drives the same machines in virtual time; its own are not part of a run."""
LEAST_STATES = 3


@dataclass(frozen=True)
class Machine:
    """An enum of states and the docstring's diagram that names each of them."""

    file: Path
    enum: str
    states: tuple[tuple[str, str], ...]
    """Names, each with its docstring or an empty text."""

    @property
    def subject(self) -> str:
        """First sentence of the file's docstring."""
        return " ".join(docstring(self.file).partition("\n\n")[0].split())


def diagrams(file: Path) -> list[str]:
    """The diagrams of a file's docstring: its paragraphs of arrows."""
    paragraphs = re.split(r"\n\s*\n", docstring(file))
    return [dedent(paragraph).strip("\n") for paragraph in paragraphs if _is_diagram(paragraph)]


def machines() -> list[Machine]:
    """Every enum of which a diagram names all states, in its own file or in one that imports it."""
    found = []
    enums = {(file, enum.name): enum for file in _files() for enum in _enums(file)}
    for file in _files():
        drawn = "\n".join(diagrams(file))
        for enum in [*_enums(file), *(enums[at] for at in _imported(file) if at in enums)]:
            states = tuple(_states(enum))
            if len(states) >= LEAST_STATES and all(re.search(rf"\b{name}\b", drawn) for name, _ in states):
                found.append(Machine(file, enum.name, states))
    return found


def _is_diagram(paragraph: str) -> bool:
    lines = paragraph.splitlines()
    indented = all(line.startswith("    ") or not line.strip() for line in lines)
    return "->" in paragraph and (indented or bool(re.match(r"[A-Z]{4,} --", lines[0])))


@cache
def _files() -> list[Path]:
    return [file for file in sorted(SOURCE.rglob("*.py")) if file.relative_to(SOURCE).parts[0] != SIMULATED]


@cache
def _tree(file: Path) -> ast.Module:
    return ast.parse(file.read_text())


def docstring(file: Path) -> str:
    return ast.get_docstring(_tree(file)) or ""


def _enums(file: Path) -> list[ast.ClassDef]:
    classes = [node for node in _tree(file).body if isinstance(node, ast.ClassDef)]
    return [each for each in classes if any(ast.unparse(base).endswith("Enum") for base in each.bases)]


def _imported(file: Path) -> Iterator[tuple[Path, str]]:
    for node in _tree(file).body:
        if isinstance(node, ast.ImportFrom) and node.module is not None:
            module = (ROOT / "src" / node.module.replace(".", "/")).with_suffix(".py")
            yield from ((module, alias.name) for alias in node.names)


def _states(enum: ast.ClassDef) -> Iterator[tuple[str, str]]:
    for place, node in enumerate(enum.body):
        if isinstance(node, ast.Assign) and isinstance(node.targets[0], ast.Name):
            after = enum.body[place + 1] if place + 1 < len(enum.body) else None
            has_text = isinstance(after, ast.Expr) and isinstance(after.value, ast.Constant)
            yield node.targets[0].id, " ".join(str(after.value.value).split()) if has_text else ""  # type: ignore[union-attr]
