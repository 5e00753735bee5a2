"""Trainers that help where previews follow the rollouts: nobody who rolls out waits for training there."""

from assist_stories import SPOT, TRAINS, Tale

from spotlight.control.pipeline.config import PipelineConfig
from spotlight.control.pipeline.tag import Assist
from spotlight.core import messages as m


def tale_of(previews_follow: bool) -> Tale:
    tale = Tale()
    tale.assist = Assist(PipelineConfig(gap=True), tale.directory, tale.scheduler, previews_follow)
    return tale


def test_help_though_training_is_the_longest() -> None:
    for previews_follow in (False, True):
        tale = tale_of(previews_follow)
        groups = tale.issue(8)
        tale.asks(SPOT)
        tale.assist.train([TRAINS], tale.now)
        tale.asks(TRAINS)
        # Eight groups take the spot worker 80 s, and the first one 10 s.
        tale.waits(groups[:1], train_s=90.0)
        tale.serve()
        assert tale.helps() is previews_follow


def test_help_still_needs_a_bubble_that_is_longer_than_a_step() -> None:
    for reached, helps in ((8, True), (9, False)):
        tale = tale_of(previews_follow=True)
        groups = tale.issue(8)
        tale.asks(SPOT)
        tale.assist.train([TRAINS], tale.now)
        tale.now = float(reached)
        tale.scheduler.heartbeat(SPOT, [m.Progress(each, 1, reached) for each in tale.given[SPOT]], tale.now)
        tale.asks(TRAINS)
        tale.waits(groups[:1], train_s=90.0)
        tale.serve()
        assert tale.helps() is helps
