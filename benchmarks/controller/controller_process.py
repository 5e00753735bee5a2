"""The measured process: the controller's code without a loop, which issues samples and waits for all of them."""

import argparse
import asyncio
import json
import resource
import time
from pathlib import Path

from spotlight.control.directory import PublishedSet
from spotlight.control.dispatch import Dispatcher
from spotlight.control.ledger import Ledger
from spotlight.control.outside import Outgoing
from spotlight.control.scheduler import Scheduler
from spotlight.controller.door import Door
from spotlight.controller.hub import Hub
from spotlight.controller.payloads import PayloadFolder
from spotlight.core.clock import RealClock
from spotlight.core.events import Accepted, AnyEvent
from spotlight.core.journal import Journal
from spotlight.core.types import Prompt, Sample, Sampling, Size, Version
from spotlight.core.work import Request, WeightsId, Work

TOKEN = "benchmark"
DIGEST = "base"
GROUP = 16


class Measured:
    """The controller's collaborators over a real journal and folder."""

    def __init__(self, folder: Path, steps: int, commit_every: int) -> None:
        clock = RealClock()
        self.journal = Journal.create(folder / "journal", clock.now)
        self.ledger = Ledger(self._emit)
        self.steps = steps
        payloads = PayloadFolder(folder, lambda: None)
        scheduler = Scheduler(self.ledger)
        self.dispatcher = Dispatcher(
            self.ledger, scheduler, payloads, self._emit, lambda at: at, commit_every=commit_every
        )
        self.accepted = 0
        self.door = Door(TOKEN)
        self.hub = Hub(self.dispatcher, clock, self._send)

    def _emit(self, event: AnyEvent) -> None:
        self.journal.append(event)
        self.accepted += isinstance(event, Accepted)

    def _send(self, outgoing: Outgoing) -> None:
        self.door.send(outgoing)

    def issue(self, samples: int) -> None:
        self.dispatcher.publish(WeightsId(Version(0)), PublishedSet(DIGEST, ""), [])
        groups = -(-samples // GROUP)
        prompts = [Prompt(text=f"prompt {group}") for group in range(groups)]
        sampling = Sampling(steps=self.steps, size=Size(512, 512))
        requests = [
            Request(
                work=Work.ROLLOUT,
                iteration=0,
                group=number // GROUP,
                sample=Sample(prompt=prompts[number // GROUP].id, seed=number, sampling=sampling, version=Version(0)),
            )
            for number in range(samples)
        ]
        self.dispatcher.issue(requests, prompts, list(range(groups)))
        self.hub.flush()


def _cpu_s() -> float:
    used = resource.getrusage(resource.RUSAGE_SELF)
    return used.ru_utime + used.ru_stime


async def _until_accepted(measured: Measured, options: argparse.Namespace) -> dict[str, float]:
    """Issue the samples when all agents have joined; measure until all are accepted."""
    measured.issue(options.samples)
    began, cpu = time.monotonic(), _cpu_s()
    await measured.hub.until(lambda: measured.accepted >= options.samples)
    return {"cpu_s": _cpu_s() - cpu, "seconds": time.monotonic() - began}


async def _for_seconds(measured: Measured, options: argparse.Namespace) -> dict[str, float]:
    """Issue more samples than can be made; measure after the agents' first steps."""
    measured.issue(options.samples)
    await asyncio.sleep(options.warm_s)
    began, cpu = time.monotonic(), _cpu_s()
    await asyncio.sleep(options.seconds)
    return {"cpu_s": _cpu_s() - cpu, "seconds": time.monotonic() - began, "accepted": measured.accepted}


async def _run(options: argparse.Namespace) -> None:
    measured = Measured(options.folder, options.steps, options.commit_every)
    port = await measured.door.listen("127.0.0.1", 0, measured.hub)
    print(port, flush=True)
    ticking = asyncio.create_task(measured.hub.tick_forever())
    await measured.hub.until(lambda: len(measured.dispatcher.directory.workers) >= options.agents)
    found = await (_for_seconds if options.seconds else _until_accepted)(measured, options)
    found["peak_mb"] = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1000
    print(json.dumps(found), flush=True)
    ticking.cancel()
    await measured.door.close()
    measured.journal.close()


def main() -> None:
    arguments = argparse.ArgumentParser(description=__doc__)
    arguments.add_argument("--folder", type=Path, required=True)
    arguments.add_argument("--agents", type=int, required=True)
    arguments.add_argument("--samples", type=int, required=True)
    arguments.add_argument("--steps", type=int, default=10)
    arguments.add_argument("--commit-every", type=int, default=0)
    arguments.add_argument("--seconds", type=float, default=0.0, help="0: until all samples are accepted")
    arguments.add_argument("--warm-s", type=float, default=10.0)
    asyncio.run(_run(arguments.parse_args()))


if __name__ == "__main__":
    main()
