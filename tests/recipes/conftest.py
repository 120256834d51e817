"""Small data for the recipes, and runs of them that several tests look at."""

from __future__ import annotations

from pathlib import Path
from typing import NamedTuple

import pytest


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


class Finished(NamedTuple):
    """A run that is over: its folder, and what it printed to stdout and to stderr."""

    output: Path
    printed: str
    shown: str


@pytest.fixture(scope="session")
def finished_text(tmp_path_factory: pytest.TempPathFactory) -> Finished:
    """`ptb.py` on the small corpus, with all its rows."""
    pytest.importorskip("matplotlib")
    import ptb
    from tiny_recipes import DEMO

    return finished(
        ptb.main, [*DEMO, "--disable_tqdm", "false"], tmp_path_factory.mktemp("ptb") / "run"
    )


@pytest.fixture(scope="session")
def finished_items(tmp_path_factory: pytest.TempPathFactory) -> Finished:
    """`recsys.py` on the small interactions, two splits."""
    pytest.importorskip("matplotlib")
    import recsys
    from tiny_recipes import DEMO_RECSYS

    return finished(
        recsys.main, [*DEMO_RECSYS, "--splits", "0", "1"], tmp_path_factory.mktemp("recsys") / "run"
    )


def finished(main, argv: list[str], output: Path) -> Finished:
    import contextlib
    import io

    from tiny_recipes import use_small_data

    printed, shown = io.StringIO(), io.StringIO()
    with (
        pytest.MonkeyPatch.context() as patch,
        contextlib.redirect_stdout(printed),
        contextlib.redirect_stderr(shown),
    ):
        use_small_data(patch)
        main([*argv, "--output_dir", str(output)])
    return Finished(output, printed.getvalue(), shown.getvalue())
