"""Writes docs/settings.md, the reference of every setting, from the classes of `RunConfig`.

    python docs/tools/settings_page.py

`make docs` writes it first; `tests/unit/test_settings_page.py` fails if the committed page is another.
"""

import ast
import inspect
import re
import sys
import textwrap
import types
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from enum import Enum
from functools import cache
from pathlib import Path
from typing import Annotated, Any, Literal, Union, get_args, get_origin

from annotated_types import Ge, Gt, Le, Lt
from pydantic import BaseModel
from pydantic.fields import FieldInfo
from pydantic_core import PydanticUndefined

from spotlight.config import RunConfig

ROOT = Path(__file__).parents[2]
PAGE = ROOT / "docs/settings.md"
HEAD = """# Settings

Every setting of a recipe with its type, default and meaning, generated from the classes of the settings by
`docs/tools/settings_page.py`. How recipes and overrides are written: [configuration](configuration.md). `null` leaves
a setting unset. An unknown key, and a value of another type or beyond its limits, is refused with exit code 2;
*refused* lists further cases, with … in place of a value.
"""
WORDS = {bool: ["`true`", "`false`"], int: ["integer"], float: ["number"], str: ["text"], types.NoneType: ["unset"]}
LIMITS = {Ge: "at least", Gt: "above", Le: "at most", Lt: "below"}


@dataclass(frozen=True)
class Part:
    """A class of settings at its place in the recipe."""

    path: str
    model: type[BaseModel]
    description: str


def page() -> str:
    plain = _table("", [(key, field) for key, field in RunConfig.model_fields.items() if not _models(field.annotation)])
    parts = _distinct()
    refusals = _refusals(parts)
    return "\n".join([HEAD, plain, *(_section(part, refusals) for part in parts)])


def keys() -> Iterator[tuple[str, str]]:
    """Every key of a recipe with its description, empty if it has none."""
    for key, field in RunConfig.model_fields.items():
        if not _models(field.annotation):
            yield key, _description(field)
    for part in _distinct():
        yield part.path, part.description
        for key, field in part.model.model_fields.items():
            if not _models(field.annotation):
                yield f"{part.path}.{key}", _description(field)


# -- sections ----------------------------------------------------------------------------------------------------------


def _parts(model: type[BaseModel], prefix: str = "") -> Iterator[Part]:
    for key, field in model.model_fields.items():
        for part in _models(field.annotation):
            described = f"{inspect.getdoc(part) or ''} {field.description or ''}"
            yield Part(f"{prefix}{key}", part, _line(described))
            yield from _parts(part, f"{prefix}{key}.")


def _distinct() -> list[Part]:
    """The sections; one that both losses have counts once."""
    return list({(part.path, part.model): part for part in _parts(RunConfig)}.values())


def _models(annotation: Any) -> list[type[BaseModel]]:
    if isinstance(annotation, type) and get_origin(annotation) is None:
        return [annotation] if issubclass(annotation, BaseModel) else []
    return [model for part in get_args(annotation) for model in _models(part)]


def _section(part: Part, refusals: dict[str, list[str]]) -> str:
    kind = part.model.model_fields.get("kind")
    chosen = f", `kind: {kind.default}`" if kind is not None and get_origin(kind.annotation) is Literal else ""
    fields = [(key, field) for key, field in part.model.model_fields.items() if not _models(field.annotation)]
    lines = [f"{'##' if '.' not in part.path else '###'} {part.path}{chosen}", f"{part.description}\n"]
    lines.append(_table(f"{part.path}.", fields))
    refused = refusals.pop(part.path, [])
    if refused:
        lines += ["Refused:\n", *(f"- {sentence}" for sentence in refused), ""]
    return "\n".join(lines)


def _table(prefix: str, fields: list[tuple[str, FieldInfo]]) -> str:
    rows = [
        f"| `{prefix}{key}` | {_type(field.annotation)}{_limits(field.metadata)} | {_default(field)} | {_cell(field)} |"
        for key, field in fields
    ]
    return "\n".join(["| setting | type | default | meaning |", "|---|---|---|---|", *rows, ""])


# -- one setting -------------------------------------------------------------------------------------------------------


def _type(annotation: Any) -> str:
    *first, last = _choices(annotation)
    return f"{', '.join(first)} or {last}" if first else last


def _choices(annotation: Any) -> list[str]:
    origin, parts = get_origin(annotation), get_args(annotation)
    if origin is Annotated:
        return [f"{_type(parts[0])}{_limits(list(parts[1:]))}"]
    if origin is Literal:
        return [f"`{part}`" for part in parts]
    if origin in (Union, types.UnionType):
        return [choice for part in parts for choice in _choices(part)]
    if origin is tuple:
        many = len(parts) == 2 and parts[1] is Ellipsis
        return [f"list of {_type(parts[0])}" if many else f"[{', '.join(_type(part) for part in parts)}]"]
    if origin is dict:
        return ["mapping"]
    if isinstance(annotation, type) and issubclass(annotation, Enum):
        return [f"`{member.value}`" for member in annotation]
    return WORDS[annotation]


def _limits(metadata: list[Any]) -> str:
    limits = []
    for each in metadata:
        if type(each) in LIMITS:
            limits.append(f"{LIMITS[type(each)]} {asdict(each).popitem()[1]}")
        elif isinstance(each, FieldInfo):
            return _limits(each.metadata)
        elif getattr(each, "pattern", None):
            limits.append(f"of the form `{each.pattern}`")
    return f" ({', '.join(limits)})" if limits else ""


def _default(field: FieldInfo) -> str:
    if field.default is PydanticUndefined:
        return "required"
    return "unset" if field.default is None else f"`{_yaml(field.default)}`"


def _yaml(value: Any) -> str:
    if isinstance(value, Enum):
        return str(value.value)
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, tuple):
        return f"[{', '.join(_yaml(each) for each in value)}]"
    return "''" if value == "" else str(value)


def _description(field: FieldInfo) -> str:
    if field.description:
        return _line(field.description)
    return next((_line(inspect.getdoc(enum) or "") for enum in _enums(field.annotation)), "")


def _cell(field: FieldInfo) -> str:
    values = [f"`{value}`: {text}" for enum in _enums(field.annotation) for value, text in _described(enum)]
    return "<br>".join([_description(field), *values]).replace("|", "\\|")


def _enums(annotation: Any) -> list[type[Enum]]:
    if isinstance(annotation, type) and get_origin(annotation) is None:
        return [annotation] if issubclass(annotation, Enum) else []
    return [enum for part in get_args(annotation) for enum in _enums(part)]


@cache
def _described(enum: type[Enum]) -> list[tuple[str, str]]:
    """The values that have a docstring, which Python keeps in the source only."""
    (declared,) = ast.parse(textwrap.dedent(inspect.getsource(enum))).body
    assert isinstance(declared, ast.ClassDef)
    found = []
    for member, text in zip(declared.body, declared.body[1:], strict=False):
        if isinstance(member, ast.Assign) and isinstance(text, ast.Expr) and isinstance(text.value, ast.Constant):
            found.append((ast.literal_eval(member.value), _line(str(text.value.value))))
    return found


def _line(text: str) -> str:
    """One line, with pages as links; Python's None is an unset value in a recipe."""
    line = re.sub(r"\bdocs/(\w+)\.md\b", r"[\1](\1.md)", " ".join(text.split()))
    return re.sub(r"\bNone\b", "Unset", re.sub(r"(?<=[;,] )None\b", "unset", line))


# -- refused combinations ----------------------------------------------------------------------------------------------


def _refusals(parts: list[Part]) -> dict[str, list[str]]:
    """Sentences of the errors that the classes raise, by the section of the first setting that each names."""
    paths = [part.path for part in parts]
    named = re.compile(rf"^({'|'.join(re.escape(path) for path in sorted(paths, key=len, reverse=True))})\.\w+")
    modules = dict.fromkeys(inspect.getmodule(model) for model in (RunConfig, *(part.model for part in parts)))
    found: dict[str, list[str]] = {}
    for module in modules:
        assert module is not None
        for raised in ast.walk(ast.parse(inspect.getsource(module))):
            sentence = _sentence(raised)
            match = named.match(sentence)
            if match and sentence not in found.setdefault(match[1], []):
                found[match[1]].append(sentence)
    return found


def _sentence(node: ast.AST) -> str:
    """The text of `raise ConfigError(...)`, with an ellipsis for each value in it."""
    if not (isinstance(node, ast.Raise) and isinstance(node.exc, ast.Call) and node.exc.args):
        return ""
    if ast.unparse(node.exc.func) not in ("ConfigError", "ValueError"):
        return ""
    text = node.exc.args[0]
    parts = text.values if isinstance(text, ast.JoinedStr) else [text]
    return _line("".join(str(part.value) if isinstance(part, ast.Constant) else "…" for part in parts))


if __name__ == "__main__":
    PAGE.write_text(page())
    sys.stdout.write(f"{PAGE.relative_to(ROOT)}: {len(page().splitlines())} lines\n")
