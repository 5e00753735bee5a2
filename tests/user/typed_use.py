"""Code of a user of the Python API, for type checkers; tests/unit/test_api.py checks it with `mypy --strict`."""

import spotlight
from spotlight import RunHandle, SpotlightError


def best(run: RunHandle) -> float:
    return max(row["value"] for row in run.curve())


def trained() -> RunHandle | None:
    recipe = spotlight.load_recipe("words-nft", {"cluster.spot": 3}, iterations=4, eval={"every": 2})
    lr: float = recipe.config.train.lr
    try:
        run = spotlight.train(recipe, wait=False)
    except SpotlightError as error:
        print(error, lr)
        return None
    state: str = run.status().state
    dollars: float = run.status().cost.dollars
    for sample in run.samples("evaluation"):
        print(sample.prompt, sample.seed, sample.components.get("exact"), sample.picture)
    print(state, dollars, run.drain(), run.wait(60.0).reason, best(run))
    return run.resume(["iterations=6"], wait=True)


def read() -> list[float]:
    run = spotlight.open("runs/demo-1")
    clean: bool = run.audit().clean
    print(clean, run.report().name)
    return [row["rollout_s"] for row in run.iterations()]


def foreseen() -> tuple[float, float, str]:
    forecasts = spotlight.plan("words-nft", [0, 4])
    found = spotlight.compare("words-nft", ["reserved-only", "spotlight"], seeds=[0])
    simulated = spotlight.simulate("words-nft", "cpu-words")
    return forecasts[0].hours, found.comparison.endings[0].dollars.mean, simulated.name
