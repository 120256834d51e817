"""The benchmark of cost over size, on its smallest sizes."""

import pytest

pytest.importorskip("matplotlib")
import size


@pytest.mark.slow
def test_data_are_read_and_steps_are_timed():
    found: dict = {}
    for axis, number in (
        ("interactions", 5_000),
        ("tokens", 20_000),
        ("items", 50),
        ("entries of a text's vocabulary", 50),
    ):
        size.measure(found.update, axis, number)
        assert found.pop("peak") >= 0
        assert found.pop("read" if axis in size.WANTED else "student's step") > 0
    assert found["summary"] > 0


def test_the_fit_goes_through_the_two_largest_sizes(tmp_path, capsys):
    rows = [
        {"axis": "tokens", "size": 10**i, "read": 2.0 * 10**i, "peak": 10**6, "status": "ok"}
        for i in (5, 6, 7)
    ]
    assert size.exponent(rows, "read") == pytest.approx(1)
    assert size.exponent(rows[:1], "read") is None
    size.write(rows, tmp_path)
    assert "| 1,000,000,000 (from the fit) | 2,000,000,000.0" in capsys.readouterr().out
    assert (tmp_path / "size.png").stat().st_size > 1000
