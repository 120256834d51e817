"""Small data for the recipes, and runs of them that several tests look at."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from pathlib import Path

    from tiny_recipes import Finished


@pytest.fixture
def small_data(monkeypatch: pytest.MonkeyPatch) -> None:
    """Each test process makes the data of its recipes itself: scripts that it starts do not see
    these.
    """
    from tiny_recipes import use_small_data

    use_small_data(monkeypatch)


@pytest.fixture
def no_figures(monkeypatch: pytest.MonkeyPatch) -> None:
    """See `leave_out_figures`."""
    from tiny_recipes import leave_out_figures

    leave_out_figures(monkeypatch)


@pytest.fixture(scope="session")
def finished_text(tmp_path_factory: pytest.TempPathFactory) -> Finished:
    """`ptb.py` on the small corpus, with all its rows."""
    pytest.importorskip("matplotlib")
    import ptb
    from tiny_recipes import DEMO, finished

    return finished(
        ptb.main, [*DEMO, "--disable_tqdm", "false"], tmp_path_factory.mktemp("ptb") / "run"
    )


@pytest.fixture(scope="session")
def carried_summary(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A summary that carries a teacher, in the folder of its run. Tests only read it."""
    pytest.importorskip("matplotlib")
    import ptb
    from tiny_recipes import DEMO, finished

    argv = [
        *DEMO,
        *("--inputs", "drawn", "--labels", "teacher", "--storage", "coded5"),
        *("--max_steps", "0", "--synthetic_batch_size", "10"),
        *("--baselines", "teacher", "full", "full_long"),
    ]
    return finished(ptb.main, argv, tmp_path_factory.mktemp("carried") / "run").output / "summary"


@pytest.fixture(scope="session")
def finished_items(tmp_path_factory: pytest.TempPathFactory) -> Finished:
    """`recsys.py` on the small interactions, two splits."""
    pytest.importorskip("matplotlib")
    import recsys
    from tiny_recipes import DEMO_RECSYS, finished

    return finished(
        recsys.main, [*DEMO_RECSYS, "--splits", "0", "1"], tmp_path_factory.mktemp("recsys") / "run"
    )
