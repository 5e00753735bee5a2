"""Reads what trackers wrote, by their packages where these can, else by the format of the file."""

import json
import sqlite3
import struct
from contextlib import closing
from pathlib import Path
from typing import Any

Written = dict[str, list[tuple[int, Any]]]
"""Values by name, with their steps."""
BLOCK = 32768
HEADER_BYTES = 7


def tensorboard_files(run: Path) -> Written:
    from tensorboard.backend.event_processing.event_file_loader import LegacyEventFileLoader

    found: Written = {}
    for path in sorted((run / "trackers" / "tensorboard").glob("events.*")):
        for event in LegacyEventFileLoader(str(path)).Load():
            for value in event.summary.value:
                kind = value.WhichOneof("value")
                content = {"simple_value": lambda v: v.simple_value, "image": lambda v: v.image.encoded_image_string}
                shown = content.get(kind, lambda v: v.tensor.string_val[0].decode())(value)
                found.setdefault(value.tag, []).append((event.step, shown))
                if kind == "image":
                    found.setdefault("captions", []).append((event.step, value.metadata.summary_description))
    return found


def trackio_store(store: Path, project: str) -> Written:
    """Its database; the package reads only the store that was set when it was imported."""
    found: Written = {}
    with closing(sqlite3.connect(store / f"{project}.db")) as database:
        rows = database.execute("select step, metrics from metrics order by id").fetchall()
    for step, metrics in rows:
        for name, value in json.loads(metrics).items():
            if isinstance(value, dict) and value["_type"] == "trackio.image":
                found.setdefault("captions", []).append((step, value["caption"]))
                value = (store / "media" / value["file_path"]).read_bytes()
            found.setdefault(name, []).append((step, value))
    return found


def wandb_files(run: Path) -> Written:
    """The records of an offline run: blocks of chunks as in LevelDB's log, after a header of the file."""
    from wandb.proto.wandb_internal_pb2 import Record

    found: Written = {}
    for path in sorted((run / "trackers" / "wandb").glob("offline-run-*/*.wandb")):
        for data in _records(path.read_bytes()):
            record = Record()
            record.ParseFromString(data)
            row: dict[str, Any] = {}
            for item in record.history.item:
                name, *inner = item.nested_key
                value = json.loads(item.value_json)
                row[name] = row.get(name, {}) | {inner[0]: value} if inner else value
            for name, value in row.items():
                if isinstance(value, dict) and "filenames" in value:
                    found.setdefault("captions", []).extend((row["iteration"], text) for text in value["captions"])
                    value = [(path.parent / "files" / file).read_bytes() for file in value["filenames"]]
                elif isinstance(value, dict):
                    value = (path.parent / "files" / value["path"]).read_text()
                found.setdefault(name, []).append((row["iteration"], value))
    return found


def _records(data: bytes) -> list[bytes]:
    found, part, place = [], b"", HEADER_BYTES
    while place + HEADER_BYTES <= len(data):
        left = BLOCK - place % BLOCK
        if left < HEADER_BYTES:
            place += left
            continue
        _, length, kind = struct.unpack_from("<IHB", data, place)
        chunk = data[place + HEADER_BYTES : place + HEADER_BYTES + length]
        place += HEADER_BYTES + length
        part += chunk
        if kind in (1, 4):
            found.append(part)
            part = b""
    return found
