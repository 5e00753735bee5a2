"""The mean reward of a prompt, estimated from the seeds that selection kept and the ones that the audit drew.

Selected seeds are extremes, so their mean is not the prompt's. Every seed of the prompt that was previewed or added
fresh is in one of two strata:

- the group itself, `G` seeds: all are rolled out, with probability 1, and stand for themselves. Fresh seeds belong
  here: no preview chose them, but they are draws of the same prompt, and each stands for one seed;
- the `U` previewed seeds that were not selected: each is rolled out with the same probability `audit_share`,
  independently (`choose.py`), so that each audited one stands for 1 / audit_share of them.

    mean = (G mean of the group + U mean of the audited) / (G + U)

Within the second stratum the weights 1 / audit_share are all alike and cancel: its mean is Hajek's estimate, and its
size U is known, so it need not be estimated too. Horvitz and Thompson's sum over G + U is unbiased as well but moves
when a constant is added to all rewards, by the chance number of audited seeds, which a baseline must not; Hajek's ratio
over both strata leans towards the group's mean where few are audited. This one is unbiased whenever any seed is
audited, moves exactly with a constant, and is the plain mean where nothing was selected (U = 0).

A seed without a usable reward, dropped or unscored, is taken to be like the others of its stratum. Where no audited
seed has one, by chance with probability (1 - audit_share)^U, the unselected seeds are unknown and there is no estimate.

Checked by simulation (tests/property/test_baseline_property.py).
"""

import math

from spotlight.control.advantage import Floats, scored


def prompt_mean(group: Floats, audited: Floats, unselected: int) -> float | None:
    """Of all seeds of the prompt; None: the rewards cannot tell, and the group's own mean has to do.

    `group` and `audited` are exact rewards in any order, NaN where there is none; `unselected` counts the previewed
    seeds that were not selected, whether they were audited or not.
    """
    kept, drawn = scored(group), scored(audited)
    if not kept.size or (unselected and not drawn.size):
        return None
    if not unselected:
        drawn = kept
    # Relative to the lowest, so that equal rewards have exactly their value as their mean.
    lowest = float(min(kept.min(), drawn.min()))
    kept_mean, drawn_mean = (math.fsum(rewards - lowest) / rewards.size for rewards in (kept, drawn))
    return lowest + (group.size * kept_mean + unselected * drawn_mean) / (group.size + unselected)
