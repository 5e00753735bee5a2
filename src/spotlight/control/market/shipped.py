"""Generators of the shipped traces, which equal the files byte for byte (tests/unit/test_market.py)."""

from spotlight.control.market.traces import Trace
from spotlight.control.market.weather import Weather, generate

SPOT_NODES = ("spot-1", "spot-2")
EIGHT_NODES = tuple(f"spot-{number}" for number in range(1, 9))
CALM = Weather(
    median_life_s=28800,
    shortest_life_s=300,
    mean_absence_s=1200,
    shortest_absence_s=300,
    zones=2,
    median_zone_s=36000,
    mean_outage_s=1200,
)
"""A good market."""


def demo() -> Trace:
    """Five minutes on two nodes: eight losses, half with notice, both nodes at once in the middle, all return."""
    weather = Weather(
        median_life_s=40,
        tail=1.1,
        shortest_life_s=15,
        mean_absence_s=8,
        shortest_absence_s=6,
        median_zone_s=180,
        mean_outage_s=12,
        noticed_share=0.5,
        notices_s=(10, 20, 30),
    )
    return generate(2545, SPOT_NODES, hours=290 / 3600, weather=weather, name="demo")


def storm() -> Trace:
    """Six minutes on two nodes with few stays above ten seconds: more than sixty losses, several of both at once."""
    weather = Weather(
        median_life_s=6,
        tail=1.6,
        shortest_life_s=4,
        mean_absence_s=1.5,
        shortest_absence_s=1,
        median_zone_s=60,
        mean_outage_s=3,
        noticed_share=0.5,
        notices_s=(2, 4, 8),
    )
    return generate(72, SPOT_NODES, hours=0.1, weather=weather, name="storm")


def calm() -> Trace:
    """Two days on eight nodes of a good market: all of them for most of the time, never more than half lost at once.

    Modelled on eight H100 in GCP's us-east4-a: 7.7 nodes on average, 0.9 lost per hour, 9 node-hours per loss. This
    trace has 7.6, 0.9 and 9.0.
    """
    return generate(15, EIGHT_NODES, hours=48, weather=CALM, name="calm")


def bulk() -> Trace:
    """Two days on eight nodes of a bad market: five losses of six or more nodes at once, each with hours of scarcity.

    Modelled on eight H100 in GCP's asia-southeast1-b and us-west1-a: 3 to 4.4 nodes on average, 0.8 to 0.9 lost per
    hour, 3.4 to 5.4 node-hours per loss. This trace has 4.7, 1.3 and 3.6.
    """
    weather = Weather(
        median_life_s=21600,
        shortest_life_s=300,
        mean_absence_s=1200,
        shortest_absence_s=300,
        median_zone_s=28800,
        mean_outage_s=2400,
        median_plenty_s=14400,
        median_scarcity_s=10800,
        scarce_share=0.15,
        scarce_life=0.25,
    )
    return generate(7, EIGHT_NODES, hours=48, weather=weather, name="bulk")
