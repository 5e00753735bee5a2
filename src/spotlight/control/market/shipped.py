"""How the shipped traces were made: the files are these, byte for byte (tests/unit/test_market.py)."""

from spotlight.control.market.traces import Trace
from spotlight.control.market.weather import Weather, generate

SPOT_NODES = ("spot-1", "spot-2")


def demo() -> Trace:
    """Five minutes on two nodes: eight losses, half announced, both nodes at once in the middle, all return."""
    weather = Weather(
        median_life_s=40,
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
    """Six minutes on two nodes that seldom live for ten seconds: more than sixty losses, several of both at once."""
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
