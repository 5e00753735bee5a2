"""Section `notices` of the settings: where a node learns that it will be lost; free of torch."""

from enum import StrEnum
from pathlib import Path
from typing import Self
from urllib.parse import urlsplit

from pydantic import Field, model_validator

from spotlight.core.errors import ConfigError
from spotlight.core.section import Section
from spotlight.node.notices.metadata_http import LINK_LOCAL


class NoticeSource(StrEnum):
    AUTO = "auto"
    """The cloud whose metadata service replies, and SIGTERM inside Kubernetes and Slurm."""
    AWS = "aws"
    GCP = "gcp"
    AZURE = "azure"
    SIGTERM = "sigterm"
    FILE = "file"
    NONE = "none"


class NoticesConfig(Section):
    """Preemption notices of a node."""

    source: NoticeSource = NoticeSource.AUTO
    """Source of notices: auto, aws, gcp, azure, sigterm, file or none."""
    file: Path | None = None
    """File whose appearance is a notice, and whose content may be the seconds left; watched beside every source but
    none."""
    grace_s: float | None = Field(default=None, gt=0)
    """Seconds from a signal without a time (SIGTERM, GCP's preemption, an empty file) to the loss; None: 15 for
    SIGTERM, 30 for the others."""
    poll_s: float = Field(default=1.0, gt=0, le=10)
    """Seconds between polls of a metadata service or of the file."""
    metadata_url: str = LINK_LOCAL
    """Address of the metadata service, for containers that reach it through a proxy."""

    @model_validator(mode="after")
    def _check(self) -> Self:
        if self.source is NoticeSource.FILE and self.file is None:
            raise ConfigError(
                "notices.source is file but notices.file is not set, so there is nothing to watch; set notices.file to "
                "the path, or choose another source."
            )
        if self.source is NoticeSource.NONE and self.file is not None:
            raise ConfigError(
                f"notices.file is '{self.file}' but notices.source is none, so the file would not be watched; set "
                "notices.source to file, or remove notices.file."
            )
        try:
            parts = urlsplit(self.metadata_url)
            is_usable = parts.scheme == "http" and bool(parts.hostname) and parts.port != 0
        except ValueError:
            is_usable = False
        if not is_usable:
            raise ConfigError(
                f"notices.metadata_url is '{self.metadata_url}', and metadata services speak plain HTTP; write it as "
                "http://host or http://host:port."
            )
        return self
