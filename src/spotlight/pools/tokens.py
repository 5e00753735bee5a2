"""The secrets of a run that listens: its identity and its token, in a private folder of the user.

A token file has what another machine needs to join. Secrets are in files of mode 0600 alone, never in the run folder,
a log, an argument or the environment (tests/unit/test_join_security.py).
"""

import hmac
import os
import secrets
import shutil
from pathlib import Path

import msgspec

from spotlight.core.errors import EnvironmentProblem, InputError
from spotlight.core.tls import IDENTITY, Identity, read_private, write_private
from spotlight.pools.machine import private_name

TOKEN_FILE = "join.json"
TOKEN_BYTES = 32


class TokenFile(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """What a machine needs to join a run."""

    address: str
    """host:port of the controller."""
    fingerprint: str
    token: str
    run: str

    def __repr__(self) -> str:
        return f"TokenFile({self.address}, {self.run})"

    def content(self) -> bytes:
        return msgspec.json.format(msgspec.json.encode(self)) + b"\n"

    def write(self, path: Path) -> None:
        try:
            write_private(path, self.content())
        except OSError as error:
            raise EnvironmentProblem(
                f"the token file {path} cannot be written ({error.strerror}), so no machine could join; choose another "
                "place."
            ) from error

    @classmethod
    def read(cls, path: Path) -> "TokenFile":
        try:
            return msgspec.json.decode(read_private(path), type=cls)
        except OSError as error:
            raise InputError(
                f"the token file {path} cannot be read ({error.strerror}); copy it from the machine of the run, where "
                "`spotlight token RUN --out FILE` writes it."
            ) from error
        except msgspec.MsgspecError as error:
            raise InputError(
                f"{path} is not a token file, or was cut; write a new one with `spotlight token RUN --out FILE`."
            ) from error


def state_folder(run: Path) -> Path:
    """Private folder of this run's secrets; it outlives the controller."""
    state = os.environ.get("XDG_STATE_HOME") or Path.home() / ".local" / "state"
    return Path(state) / "spotlight" / private_name(run)


class RunSecrets:
    """Identity and token of a run, made at its first start with `cluster.listen`."""

    def __init__(self, run: Path) -> None:
        """Load the secrets of a run, or make them."""
        self._run = run
        self.folder = state_folder(run)
        try:
            is_known = (self.folder / IDENTITY).exists()
            self.identity = Identity.load(self.folder) if is_known else Identity.make(self.folder)
            path = self.folder / TOKEN_FILE
            self._file = TokenFile.read(path) if path.exists() else self._new()
        except OSError as error:
            raise EnvironmentProblem(
                f"the folder {self.folder} for the run's key cannot be used ({error.strerror}); set XDG_STATE_HOME to "
                "a folder of your own."
            ) from error

    @staticmethod
    def forget(run: Path) -> None:
        """Delete the secrets of an earlier run of this path."""
        shutil.rmtree(state_folder(run), ignore_errors=True)

    def listens_at(self, address: str) -> None:
        """Write the token file."""
        self._file = msgspec.structs.replace(self._file, address=address, fingerprint=self.identity.fingerprint)
        self._file.write(self.folder / TOKEN_FILE)

    @property
    def token_path(self) -> Path:
        return self.folder / TOKEN_FILE

    def renew(self) -> None:
        """Revoke the token, and write the file with a new one."""
        self._file = msgspec.structs.replace(self._file, token=_new_token())
        self._file.write(self.folder / TOKEN_FILE)

    def matches(self, token: str) -> bool:
        """Compare in constant time."""
        return hmac.compare_digest(token.encode(), self._file.token.encode())

    def _new(self) -> TokenFile:
        return TokenFile(
            address="", fingerprint=self.identity.fingerprint, token=_new_token(), run=self._run.resolve().name
        )


def token_file_of(run: Path) -> TokenFile:
    """The token file of a run that listens, or has listened."""
    path = state_folder(run) / TOKEN_FILE
    if not path.exists():
        raise InputError(
            f"the run {run.name} takes no machines, because it does not listen; start or resume it with "
            "--set cluster.listen=HOST:PORT."
        )
    return TokenFile.read(path)


def _new_token() -> str:
    return secrets.token_urlsafe(TOKEN_BYTES)
