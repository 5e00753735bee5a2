"""Package data by name.

Recipes, profiles, prices, traces and prompts are here. The folders of `APART` (weights, OCR models, glyphs and words)
are a distribution of their own, spotlight-rl-assets, because they are 40 times as large as the code and change seldom;
its source is the folder `assets` of the repository. `digests.txt` has the sha256 of its files as this code expects them
(tests/unit/test_assets.py).
"""

import hashlib
from pathlib import Path

from spotlight.core.errors import EnvironmentProblem

ROOT = Path(__file__).parent
APART = ("ocr", "weights", "words")
DISTRIBUTION = "spotlight-rl-assets"
REMEDY = f"reinstall {DISTRIBUTION} (in a checkout, `git checkout assets` and `make setup`)."


def asset(name: str) -> Path:
    """Path of one shipped file or folder."""
    return (assets_root() if name.partition("/")[0] in APART else ROOT) / name


def assets_root() -> Path:
    """Folder of the files of spotlight-rl-assets."""
    try:
        import spotlight_assets
    except ImportError as error:
        raise EnvironmentProblem(
            f"the package {DISTRIBUTION} is not installed ({error}), so weights and OCR models are missing; {REMEDY}"
        ) from error
    return Path(spotlight_assets.__file__).parent


def digests() -> dict[str, str]:
    """The expected sha256 of each file of spotlight-rl-assets, by name."""
    lines = (ROOT / "digests.txt").read_text().splitlines()
    return {name: digest for digest, name in (line.split(maxsplit=1) for line in lines)}


def altered(root: Path) -> list[str]:
    """Files of spotlight-rl-assets that are absent or have another content than expected."""
    return [name for name, digest in digests().items() if _sha256(root / name) != digest]


def _sha256(path: Path) -> str:
    try:
        with path.open("rb") as file:
            return hashlib.file_digest(file, "sha256").hexdigest()
    except OSError:
        return ""
