"""Section `cluster.notices` of a recipe: where a node learns that it will be lost; free of torch."""

from enum import StrEnum
from pathlib import Path
from typing import Any, Literal, Self
from urllib.parse import urlsplit

from pydantic import Field, model_validator

from spotlight.core.errors import ConfigError
from spotlight.core.section import Section
from spotlight.node.notices.metadata_http import LINK_LOCAL

FILE = "file:"
"""Start of a source that is a file; its path follows."""
NODE = "{node}"
"""Replaced by the name of the node in paths and addresses, such as spot-1."""


class NoticeSource(StrEnum):
    AWS = "aws"
    GCP = "gcp"
    AZURE = "azure"
    SIGTERM = "sigterm"


CHOICES = f"choose from {', '.join(NoticeSource)} and file:PATH, or write auto or off alone"


class NoticesConfig(Section):
    """Preemption notices of a node; a value alone stands for `sources`."""

    sources: Literal["auto", "off"] | tuple[str, ...] = "auto"
    """Sources of notices: any of aws, gcp, azure, sigterm and file:PATH. `auto` is the cloud whose metadata service
    replies, and SIGTERM inside Kubernetes and Slurm; on nodes that are simulated on the controller's machine it is
    `off`. `{node}` in a path is the name of the node."""
    grace_s: float | None = Field(default=None, gt=0)
    """Seconds from a signal without a time (SIGTERM, GCP's preemption, an empty file) to the loss; None: 15 for
    SIGTERM, 30 for the others."""
    poll_s: float = Field(default=1.0, gt=0, le=10)
    """Seconds between polls of a metadata service or of a file."""
    metadata_url: str = LINK_LOCAL
    """Address of the metadata service, for containers that reach it through a proxy; `{node}` is the node's name."""

    @model_validator(mode="before")
    @classmethod
    def _sources_alone(cls, given: Any) -> Any:
        """YAML reads off as false, and one source need not be a list."""
        fields = dict(given) if isinstance(given, dict) else {"sources": given}
        sources = fields.get("sources", "auto")
        if sources is False:
            sources = "off"
        if isinstance(sources, str) and sources not in ("auto", "off"):
            sources = [sources]
        if not isinstance(sources, str | list | tuple) or not all(isinstance(source, str) for source in sources):
            raise ConfigError(f"cluster.notices.sources is {sources!r}, which is no list of sources; {CHOICES}.")
        return {**fields, "sources": sources}

    @model_validator(mode="after")
    def _check(self) -> Self:
        for source in () if isinstance(self.sources, str) else self.sources:
            _check_source(source)
        if not self.sources:
            raise ConfigError(
                "cluster.notices.sources is an empty list, so it says neither what to watch nor that nothing is; name "
                "a source, or write off."
            )
        try:
            parts = urlsplit(self.metadata_url)
            is_usable = parts.scheme == "http" and bool(parts.hostname) and parts.port != 0
        except ValueError:
            is_usable = False
        if not is_usable:
            raise ConfigError(
                f"cluster.notices.metadata_url is '{self.metadata_url}', and metadata services speak plain HTTP; write "
                "it as http://host or http://host:port."
            )
        return self

    def on_simulated_nodes(self) -> Self:
        """The settings for nodes that are processes of the controller's machine: it is watched only if asked for, since
        a notice of that machine is not one of a single node."""
        return self.model_copy(update={"sources": "off"}) if self.sources == "auto" else self

    def of_node(self, name: str) -> Self:
        """The settings with the node's name in paths and in the address."""
        sources = self.sources
        if not isinstance(sources, str):
            sources = tuple(source.replace(NODE, name) for source in sources)
        return self.model_copy(update={"sources": sources, "metadata_url": self.metadata_url.replace(NODE, name)})


def _check_source(source: str) -> None:
    if source.startswith(FILE) and not Path(source.removeprefix(FILE)).is_absolute():
        raise ConfigError(
            f"cluster.notices.sources has '{source}', whose path is relative, and agents run in other folders; write "
            "the whole path, as file:/run/preempted."
        )
    if not source.startswith(FILE) and source not in list(NoticeSource):
        raise ConfigError(f"cluster.notices.sources has '{source}', which is no source of notices; {CHOICES}.")
