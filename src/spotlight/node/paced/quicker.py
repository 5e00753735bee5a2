"""Accelerated profile, so that a paced run takes a fraction of the profile's time."""

import msgspec

from spotlight.control.profiles import Point, Profile


def quicker(profile: Profile, speed: float) -> Profile:
    """The profile with all seconds divided by `speed`."""
    if speed == 1.0:
        return profile

    def shorter(point: Point) -> Point:
        return Point(point.batch, point.degree, point.p50 / speed, point.p99 / speed)

    operations = {
        operation: msgspec.structs.replace(
            times,
            series=tuple(
                msgspec.structs.replace(series, points=tuple(map(shorter, series.points))) for series in times.series
            ),
        )
        for operation, times in profile.operations.items()
    }
    return msgspec.structs.replace(profile, operations=operations)
