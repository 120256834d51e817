"""Names of folders, files and repositories that name nothing: each public door says which argument
it was, and what to give.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from farzi_hf import FarziData, sample
from farzi_hf.attribution import Attribution, influence
from farzi_hf.data import load_interactions, load_text, recognise
from farzi_hf.metrics import ranking_metrics
from farzi_hf.report import compare
from farzi_hf.report.counted import Counts

DOORS: dict[str, Callable[[Any], Any]] = {
    "FarziData.from_pretrained": FarziData.from_pretrained,
    "save_pretrained": lambda name: FarziData.from_pretrained(sample()).save_pretrained(name),
    "push_to_hub": lambda name: FarziData.from_pretrained(sample()).push_to_hub(name),
    "Counts.from_pretrained": Counts.from_pretrained,
    "Attribution.load": Attribution.load,
    "recognise": recognise,
}


@pytest.mark.parametrize("value", [None, "", 3], ids=repr)
@pytest.mark.parametrize("door", DOORS)
def test_what_names_nothing_is_refused(door, value):
    with pytest.raises(ValueError, match=rf"^\w+={value!r} names nothing: give .+"):
        DOORS[door](value)


@pytest.mark.parametrize("load", [load_text, load_interactions])
def test_an_empty_name_is_not_the_working_folder(load):
    with pytest.raises(ValueError, match=r"^data='' names nothing: give a file, a folder"):
        load("")


def test_other_arguments_that_are_none():
    with pytest.raises(TypeError, match=r"^training is a NoneType; give a WeightedTraining"):
        influence(None, None)
    with pytest.raises(TypeError, match=r"^trainer is a NoneType; give a FarziTrainer"):
        compare(None)
    with pytest.raises(ValueError, match=r"^config is a NoneType; give a FarziDataConfig"):
        FarziData(None)
    with pytest.raises(ValueError, match=r"^scores or targets are no numbers"):
        ranking_metrics(None, None)
