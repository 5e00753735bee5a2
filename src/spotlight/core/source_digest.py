"""Digest of this package's source files: machines of one run must compute with the same code."""

import hashlib
from functools import cache
from pathlib import Path

PACKAGE = Path(__file__).parents[1]


@cache
def source_digest(package: Path = PACKAGE) -> str:
    """Hash over the paths and the content of all Python files of the package."""
    digest = hashlib.blake2b(digest_size=16)
    for path in sorted(package.rglob("*.py"), key=lambda path: path.relative_to(package).as_posix()):
        content = path.read_bytes()
        digest.update(f"{path.relative_to(package).as_posix()} {len(content)}\n".encode())
        digest.update(content)
    return digest.hexdigest()
