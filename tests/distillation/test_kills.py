"""kill -9 at twenty moments: what goes on afterwards ends bit for bit as if nothing had happened.

python -m pytest tests/distillation/test_kills.py -m slow
"""

from __future__ import annotations

import random
import signal
import time
from dataclasses import dataclass
from pathlib import Path

import pytest
from trainer_runs import forked

from farzi_hf import FarziData

pytestmark = pytest.mark.slow
SEED = 14
KILLS = {
    ("distil", "distil"): 7,
    ("distil", "save 2"): 3,
    ("distil", "save 4"): 2,
    ("record", "record"): 4,
    ("publish", "save summary 2"): 2,
    ("publish", "push summary 2"): 2,
}
"""How many in which phase of which job; see kill_jobs.py."""


def moments() -> list[tuple[str, str, float]]:
    """Twenty: job, phase, and the share of it that has passed."""
    draw = random.Random(SEED)
    return [
        (job, phase, round(draw.uniform(0.0, 0.9), 3))
        for (job, phase), count in KILLS.items()
        for _ in range(count)
    ]


@dataclass
class Ended:
    """How the process of a job ended, and when its phases began and ended, in seconds."""

    code: int
    times: dict[tuple[str, str], float]

    def seconds(self, phase: str) -> float:
        return self.times[phase, "has ended"] - self.times[phase, "begins"]


class Jobs:
    """Starts jobs in processes of their own."""

    def __init__(self, folder: Path, hub):
        self.folder, self.hub = folder, hub
        self._undisturbed: dict[str, tuple[Ended, dict[str, bytes]]] = {}

    def run(self, job: str, folder: Path, phase: str = "", after: float = 0.0) -> Ended:
        """To its end, or to the kill that it gets `after` seconds of a phase."""
        import kill_jobs

        folder.mkdir(parents=True, exist_ok=True)
        ours, theirs = forked().Pipe(duplex=False)
        process = forked().Process(target=kill_jobs.run, args=(job, folder, theirs))
        process.start()
        theirs.close()
        times: dict[tuple[str, str], float] = {}
        waiting = phase != ""
        while True:
            begun = times.get((phase, "begins")) if waiting else None
            due = True
            if ours.poll(None if begun is None else max(0.0, begun + after - time.monotonic())):
                try:
                    message = ours.recv()
                except EOFError:
                    break
                times[message] = time.monotonic()
                due = message == (phase, "has ended")  # sooner than it did undisturbed
            if waiting and due:
                process.kill()
                waiting = False
        process.join()
        return Ended(process.exitcode, times)

    def finish(self, job: str, folder: Path) -> tuple[Ended, dict[str, bytes]]:
        """Runs it to its end; what it leaves."""
        ended = self.run(job, folder)
        assert ended.code == 0, folder.with_suffix(".log").read_text()
        contents = self.contents(job, folder)
        self.hub.forget()
        return ended, contents

    def undisturbed(self, job: str) -> tuple[Ended, dict[str, bytes]]:
        """What it leaves, twice the same, and how long its phases take: the second time, when all
        is warm.
        """
        if job not in self._undisturbed:
            first, second = (self.finish(job, self.folder / str(number) / job) for number in (1, 2))
            assert first[1] == second[1]
            self._undisturbed[job] = second
        return self._undisturbed[job]

    def contents(self, job: str, folder: Path) -> dict[str, bytes]:
        """Files, and the summaries on the Hub, less what tells the time."""
        files = {
            path.relative_to(folder).as_posix(): path.read_bytes()
            for path in folder.rglob("*")
            if path.is_file()
        }
        if job == "distil":  # checkpoints and cards hold times
            files = {"end.safetensors": files["end.safetensors"]}
        pushed = {name: repository.files() for name, repository in self.hub.repositories.items()}
        return {
            **files,
            **{
                f"hub: {name}": found.get("farzi.safetensors", b"")
                for name, found in pushed.items()
            },
        }


@pytest.fixture(scope="module")
def jobs(tmp_path_factory, hub_server):
    return Jobs(tmp_path_factory.mktemp("undisturbed"), hub_server)


@pytest.mark.parametrize(("job", "phase", "share"), moments())
def test_what_kill_9_ends_goes_on_as_if_nothing_had_happened(
    jobs, hub, tmp_path, job, phase, share
):
    whole, expected = jobs.undisturbed(job)
    folder = tmp_path / job
    ended = jobs.run(job, folder, phase, share * whole.seconds(phase))
    assert ended.code == -signal.SIGKILL
    if phase.endswith("summary 2"):
        summary = FarziData.from_pretrained(folder)
        values = {
            value for parameter in summary.parameters() for value in parameter.unique().tolist()
        }
        assert values in ({1.0}, {2.0})  # the old one or the new one
        assert hub.repositories.keys() <= {"user/publish"}
    assert jobs.finish(job, folder)[1] == expected
