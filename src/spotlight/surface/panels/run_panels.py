"""All panels of a run, from its view and what its folder says beside the journal."""

from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING

import msgspec

from spotlight.budget import BudgetConfig
from spotlight.control.market.prices import PriceTable
from spotlight.surface.formats import without_controls
from spotlight.surface.liveness import RunStanding, standing_of
from spotlight.surface.panels.cost_panel import CostPanel, cost_panel
from spotlight.surface.panels.crew_panel import CrewPanel, crew_panel
from spotlight.surface.panels.gallery_panel import GalleryPanel, gallery_panel
from spotlight.surface.panels.iteration_panel import FeedPanel, IterationPanel, feed_panel, iteration_panel
from spotlight.surface.panels.ledger_panel import AuditVerdict, LedgerPanel, ledger_panel
from spotlight.surface.panels.preview_panel import PreviewPanel, preview_panel
from spotlight.surface.panels.problem_panel import ProblemPanel, problem_panel
from spotlight.surface.panels.reward_panel import RewardPanel, reward_panel
from spotlight.surface.panels.score_panel import ScorePanel, score_panel
from spotlight.surface.panels.slot_time_panel import SlotTimePanel, slot_time_panel
from spotlight.surface.panels.stale_panel import StalePanel, stale_panel
from spotlight.surface.panels.summary_panel import SummaryPanel, summary_panel
from spotlight.surface.panels.timeline_panel import TimelinePanel, timeline_panel
from spotlight.surface.panels.training_panel import TrainingPanel, training_panel
from spotlight.surface.projections import RunView

if TYPE_CHECKING:
    from spotlight.folder import RunFolder

NO_PROMPTS: Mapping[str, str] = {}


class RunSetting(msgspec.Struct, frozen=True, kw_only=True):
    """What panels need beside the journal; it does not change while a run lives."""

    word: str = "RUN"
    """The run in a command."""
    iterations: int | None = None
    prompts: Mapping[str, str] = NO_PROMPTS
    """Texts by prompt id."""
    trained_on: int = 0
    """Number of held-out prompts that are also trained on."""
    budget: BudgetConfig | None = None


class Panels(msgspec.Struct, frozen=True, kw_only=True):
    """One field per panel."""

    summary: SummaryPanel
    problems: ProblemPanel
    scores: ScorePanel
    rewards: RewardPanel
    training: TrainingPanel
    gallery: GalleryPanel
    timeline: TimelinePanel
    crews: CrewPanel | None
    slot_time: SlotTimePanel
    previews: PreviewPanel
    stale: StalePanel | None
    cost: CostPanel
    ledger: LedgerPanel
    feed: FeedPanel
    iterations: IterationPanel


def setting_of(folder: "RunFolder") -> RunSetting:
    """Read the folder's settings and prompts; a run without stored prompts has no captions."""
    config = folder.read_config()
    prompts = folder.read_prompts() if folder.prompts.exists() else None
    both = (*prompts.training, *prompts.held_out) if prompts else ()
    return RunSetting(
        word=without_controls(folder.word),
        iterations=config["iterations"],
        prompts={prompt.id: prompt.text for prompt in both},
        trained_on=len(prompts.shared(config["eval"]["prompts"])) if prompts else 0,
        budget=BudgetConfig.model_validate(config.get("budget", {})),
    )


def panels_of(
    view: RunView,
    prices: PriceTable,
    setting: RunSetting | None = None,
    standing: RunStanding | None = None,
    verdict: AuditVerdict | None = None,
    is_there: Callable[[str], bool] = lambda path: True,
) -> Panels:
    """Without `standing`, as if no controller worked on the run; `is_there` says which pictures can be shown."""
    setting, standing = setting or RunSetting(), standing or standing_of(view)
    cost = cost_panel(view, prices)
    return Panels(
        summary=summary_panel(view, prices, standing, setting.iterations, verdict),
        problems=problem_panel(view, standing, setting.word, cost.dollars, setting.budget, verdict),
        scores=score_panel(view, setting.trained_on),
        rewards=reward_panel(view, setting.prompts),
        training=training_panel(view),
        gallery=gallery_panel(view, setting.prompts, is_there),
        timeline=timeline_panel(view),
        crews=crew_panel(view),
        slot_time=slot_time_panel(view),
        previews=preview_panel(view),
        stale=stale_panel(view),
        cost=cost,
        ledger=ledger_panel(view, verdict),
        feed=feed_panel(view),
        iterations=iteration_panel(view),
    )
