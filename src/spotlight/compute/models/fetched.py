"""Folders in diffusers layout that a name stands for: fetched from the hub or made once; free of torch.

owner/name              the hub's files, kept in the hub's own cache
random-tiny:FAMILY      a tiny checkpoint with random weights, made by `random_weights.py` in a separate process
"""

import hashlib
import os
import shutil
import subprocess
import sys
import tempfile
from functools import cache
from importlib.metadata import version
from pathlib import Path

from spotlight import __version__
from spotlight.assets import asset
from spotlight.compute.models.family_registry import Family
from spotlight.core.errors import EnvironmentProblem, WeightsError

RANDOM, RANDOM_TINY = "random:", "random-tiny:"
"""Prefixes of names of models with random weights."""
FETCHED = ("*.json", "*.safetensors", "*.txt", "*.model", "*.jinja")
"""Files of a hub model that are fetched; pickled weights never are."""
PATTERNS = [*FETCHED, *(f"*/{each}" for each in FETCHED)]
MAKER = "spotlight.compute.models.random_weights"


@cache
def hub_folder(hub_id: str) -> Path:
    """Folder with the model's files; those that the hub's cache lacks are fetched, with a progress bar."""
    # Imported on demand: it takes a second.
    from huggingface_hub import snapshot_download
    from huggingface_hub.errors import HfHubHTTPError, LocalEntryNotFoundError

    try:
        return Path(snapshot_download(hub_id, allow_patterns=PATTERNS))
    except (HfHubHTTPError, LocalEntryNotFoundError, OSError) as error:
        reason = str(error).strip().partition("\n")[0]
        raise WeightsError(
            f"The model '{hub_id}' is neither in the hub's cache nor can it be fetched ({reason}); check the name and "
            "the network, log in with `hf auth login` if it is gated, or name a folder in diffusers layout."
        ) from error


def cached_hub_folder(hub_id: str) -> Path | None:
    """Folder with the model's files if the hub's cache has them all; fetches nothing."""
    from huggingface_hub import snapshot_download
    from huggingface_hub.errors import HFValidationError, LocalEntryNotFoundError

    try:
        return Path(snapshot_download(hub_id, allow_patterns=PATTERNS, local_files_only=True))
    except (HFValidationError, LocalEntryNotFoundError):
        return None


def tiny_folder(family: Family) -> Path:
    """Folder of the family's tiny checkpoint; made at the first use, the same on every machine."""
    made_from = [asset(f"random/tiny/{family.name}.json").read_text(), __version__]
    made_from += [version(package) for package in ("torch", "diffusers", "transformers")]
    key = hashlib.blake2b("|".join(made_from).encode(), digest_size=6).hexdigest()
    cache = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "spotlight" / "random-tiny"
    folder = cache / f"{family.name}-{key}"
    if not folder.is_dir():
        _make_tiny(family, folder)
    return folder


def _make_tiny(family: Family, folder: Path) -> None:
    sys.stderr.write(f"making a tiny random {family.name} in {folder}\n")
    try:
        folder.parent.mkdir(parents=True, exist_ok=True)
        scratch = Path(tempfile.mkdtemp(dir=folder.parent, prefix=".making-"))
    except OSError as error:
        raise EnvironmentProblem(
            f"the folder {folder.parent} cannot be written ({error.strerror}), and a tiny random model is kept there; "
            "set XDG_CACHE_HOME to another folder."
        ) from error
    try:
        # With -P nothing is imported from the working folder.
        command = [sys.executable, "-P", "-m", MAKER, family.name, str(scratch)]
        done = subprocess.run(command, stdin=subprocess.DEVNULL, capture_output=True, text=True)
        if done.returncode:
            last = done.stderr.strip().rpartition("\n")[2] or f"exit code {done.returncode}"
            raise EnvironmentProblem(
                f"the tiny random {family.name} could not be made in {folder} ({last}); check that its disk has room."
            )
        if not folder.is_dir():
            # Another process may have made it meanwhile; the content is the same.
            scratch.rename(folder)
    except OSError:
        if not folder.is_dir():
            raise
    finally:
        shutil.rmtree(scratch, ignore_errors=True)
