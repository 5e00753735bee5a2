"""What previews are worth: the expected reward variance of kept seeds over that of random ones, in closed form.

Preview and exact reward are taken as jointly normal with correlation rho. Of N seeds the G with the most extreme
previews are kept: their previews lie beyond the quantiles +-c, and the exact reward takes over rho^2 of that variance.
Beyond N = G the gain is concave in N, which `allocate.py` relies on (tests/property/test_planner_property.py).
"""

from statistics import NormalDist

_NORMAL = NormalDist()


def excess(seeds: int, group_size: int) -> float:
    """2 c phi(c) / q with q = G / N and c the quantile 1 - q / 2: the gain above 1 of a perfect preview."""
    if seeds <= group_size:
        return 0.0
    share = group_size / seeds
    cut = _NORMAL.inv_cdf(1 - share / 2)
    return 2 * cut * _NORMAL.pdf(cut) / share


def spread_excess(previews: int, prompts: int, group_size: int, most: int) -> float:
    """Mean excess over prompts that vary alike, of which all or a few are explored, at most `most` seeds each."""
    explored = [max(1, prompts >> halvings) for halvings in range(prompts.bit_length())]
    return max(count / prompts * excess(min(most, previews // count), group_size) for count in explored)


def gain(seeds: int, group_size: int, rho: float) -> float:
    """1 where nothing can be selected; a negative correlation is noise about none."""
    return 1 + max(0.0, rho) ** 2 * excess(seeds, group_size)
