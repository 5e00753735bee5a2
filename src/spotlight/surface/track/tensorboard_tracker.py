"""TensorBoard: event files in RUN/trackers/tensorboard, written by TensorBoard's own package, without torch."""

import struct
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from spotlight.control.market.bill import Bill
from spotlight.surface.track.tracker import BILL_COLUMNS, TrackedPicture, TrackedRun, bill_rows

PNG_SIZE = struct.Struct(">16xII")
"""Width and height in the first chunk of a PNG."""
RGB = 3


class TensorboardTracker:
    def __init__(self) -> None:
        self._writer: Any = None

    def prepare(self) -> None:
        from tensorboard.summary.writer import event_file_writer  # noqa: F401

    def open(self, run: TrackedRun) -> None:
        from tensorboard.summary.writer.event_file_writer import EventFileWriter

        folder = run.own_folder / "tensorboard"
        folder.mkdir(parents=True, exist_ok=True)
        self._writer = EventFileWriter(str(folder))

    def scalars(self, step: int, values: Mapping[str, float]) -> None:
        self._add(step, [{"tag": name, "simple_value": value} for name, value in values.items()])

    def pictures(self, step: int, pictures: Sequence[TrackedPicture]) -> None:
        from tensorboard.compat.proto.summary_pb2 import Summary, SummaryMetadata

        values = []
        for picture in pictures:
            data = Path(picture.path).read_bytes()
            width, height = PNG_SIZE.unpack_from(data)
            image = Summary.Image(height=height, width=width, colorspace=RGB, encoded_image_string=data)
            about = SummaryMetadata(summary_description=picture.caption)
            values.append({"tag": f"pictures/{picture.key}", "image": image, "metadata": about})
        self._add(step, values)

    def bill(self, step: int, bill: Bill) -> None:
        from tensorboard.compat.proto.summary_pb2 import SummaryMetadata
        from tensorboard.util.tensor_util import make_tensor_proto

        head = f"| {' | '.join(BILL_COLUMNS)} |\n|{'---|' * len(BILL_COLUMNS)}\n"
        table = head + "".join(f"| {' | '.join(map(str, row))} |\n" for row in bill_rows(bill))
        plugin = SummaryMetadata.PluginData(plugin_name="text")
        text = make_tensor_proto([table.encode()])
        self._add(step, [{"tag": "bill", "tensor": text, "metadata": SummaryMetadata(plugin_data=plugin)}])

    def close(self) -> None:
        if self._writer is not None:
            self._writer.close()
        self._writer = None

    def _add(self, step: int, values: list[dict[str, Any]]) -> None:
        from tensorboard.compat.proto.event_pb2 import Event
        from tensorboard.compat.proto.summary_pb2 import Summary

        summary = Summary(value=[Summary.Value(**value) for value in values])
        self._writer.add_event(Event(wall_time=time.time(), step=step, summary=summary))
        self._writer.flush()
