"""What the load of a stranger's summary may cost, and `farzi show`: at most five seconds and 500 MB
beside the numbers of its tensors, or a ValueError before.

Configs come from every causal language model of transformers, with two numbers of theirs at the
edge of what is read, or beyond.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from typing import Any

import pytest
from fuzzing import fuzzed
from hypothesis import given
from hypothesis import strategies as st
from load_trials import Outcome, trials
from tiny_architectures import KINDS, V, numbers, tiny
from transformers import CONFIG_MAPPING

Config = dict[str, Any]


@pytest.fixture(scope="module")
def ask(tmp_path_factory) -> Iterator[Callable[..., Outcome]]:
    with trials(tmp_path_factory.mktemp("trials")) as found:
        yield found


def carried(teacher: Config, **changes: Any) -> Config:
    """The config of a summary that carries such a teacher."""
    return {
        "model_type": "farzi_data",
        "num_sequences": 2,
        "sequence_length": 4,
        "vocab_size": V,
        "inputs": "drawn",
        "labels": "teacher",
        "teacher": teacher,
        "storage": "coded2",
        "seed": 0,
        **changes,
    }


def fixed(**changes: Any) -> Config:
    """That of a summary of two sequences without a teacher, with soft inputs."""
    return {
        "model_type": "farzi_data",
        "num_sequences": 2,
        "sequence_length": 32,
        "latent_dim": 1,
        "vocab_size": V,
        "inputs": "soft",
        "labels": "shared",
        "storage": "coded2",
        **changes,
    }


# -- known cases -----------------------------------------------------------------------------------


def gpt2(length: int) -> Config:
    return {"model_type": "gpt2", "n_embd": 1, "n_head": 1, "n_layer": 1, "n_positions": length}


def translator(kind: str, positions: int) -> Config:
    """A model whose positions transformers makes one at a time, in Python."""
    return {**tiny(kind), "d_model": 2, "max_position_embeddings": positions}


OWN = {"inputs": "tokens", "labels": "own", "label_dim": 1}
BART = {**tiny("bart"), "max_position_embeddings": 8192, "decoder_layers": 40}
CASES: dict[str, Config] = {
    "logits of 10⁹ numbers": carried(gpt2(100), vocab_size=10**7, sequence_length=100),
    "logits of 2 · 10⁸ numbers": carried(gpt2(100), vocab_size=2 * 10**6, sequence_length=100),
    "own labels over 2²⁵ entries": fixed(vocab_size=2**25, **OWN),
    "own labels over 4 · 10⁶ entries": fixed(vocab_size=4 * 10**6, **OWN),
    "soft inputs over 2²⁵ entries": fixed(vocab_size=2**25),
    "soft inputs over 4 · 10⁶ entries": fixed(vocab_size=4 * 10**6),
    "2,048 ids that the teacher writes": carried(
        gpt2(2048), inputs="written", sequence_length=2048
    ),
    "8,192 ids that the teacher writes": carried(
        gpt2(8192), inputs="written", sequence_length=8192
    ),
    "2 · 10⁶ positions of Marian": carried(translator("marian", 2 * 10**6)),
    "10⁷ positions of Marian": carried(translator("marian", 10**7)),
    "2 · 10⁶ positions of Pegasus": carried(translator("pegasus", 2 * 10**6)),
    "10⁷ positions of Pegasus": carried(translator("pegasus", 10**7)),
    "40 decoder layers of 8 heads": carried(
        {**BART, "decoder_attention_heads": 8}, sequence_length=8192
    ),
    "latents of 2³¹ − 1 numbers": fixed(latent_dim=2**31 - 1, vocab_size=7),
    "a teacher of width 0": carried({**tiny("seed_oss"), "hidden_size": 0}),
    "16,384 drawn ids": carried(gpt2(2**14), sequence_length=2**14),
}


@pytest.mark.parametrize(
    "show",
    [pytest.param(False, id="load", marks=pytest.mark.slow), pytest.param(True, id="show")],
)
@pytest.mark.parametrize("case", CASES)
def test_a_config_of_a_kilobyte_does_not_take_seconds_and_gigabytes(ask, case, show):
    """To show a summary is to load it, and more."""
    outcome = ask(config=CASES[case], show=show)
    assert outcome.fault == ""


@pytest.mark.parametrize("case", [name for name in CASES if "writes" in name])
def test_long_rows_that_are_written_are_loaded_and_shown(ask, case):
    for show in (False, True):
        assert ask(config=CASES[case], show=show).error == ""


# -- random cases ----------------------------------------------------------------------------------

WHOLE = st.sampled_from(
    [
        *[-1, 0, 1, 2, 3, 7, 16, 64, 100, 127, 255, 1000, 1001, 4096, 10**4, 2**15, 10**5],
        *[2**18, 10**6, 2 * 10**6, 2**22, 10**7, 10**7 + 1, 2**31 - 1],
    ]
)
BROKEN = st.sampled_from([-1.0, 0.0, 1e-9, 0.5, 2.0, 100.0, 1e4, 1e6, 1e9, 1e12])
EDGES = {int: WHOLE, float: BROKEN}
SIZES = ("num_sequences", "sequence_length", "vocab_size")
ROTARY_TYPES = st.sampled_from(["default", "linear", "dynamic", "yarn", "longrope", "llama3"])
ROTARY = {
    "rope_theta": BROKEN,
    "factor": BROKEN | WHOLE,
    "original_max_position_embeddings": WHOLE,
    "partial_rotary_factor": BROKEN,
    "beta_fast": BROKEN,
    "low_freq_factor": BROKEN,
    "high_freq_factor": BROKEN,
    "long_factor": st.lists(BROKEN, max_size=4),
    "short_factor": st.lists(BROKEN, max_size=4),
}


@st.composite
def carried_at_the_edge(draw: Callable[[Any], Any]) -> Config:
    """The config of a summary with a tiny teacher of any kind, two of whose numbers are at an
    edge.
    """
    kind = draw(st.sampled_from(KINDS))
    edges = {name: EDGES[of] for name, of in numbers(kind).items()}
    edges |= dict.fromkeys(SIZES, WHOLE.filter(lambda size: size >= 2))
    if hasattr(CONFIG_MAPPING[kind], "rope_parameters"):
        edges["rope_parameters"] = st.fixed_dictionaries(
            {"rope_type": ROTARY_TYPES}, optional=ROTARY
        )
    names = draw(st.lists(st.sampled_from(sorted(edges)), min_size=2, max_size=2, unique=True))
    values = {name: draw(edges[name], label=name) for name in names}
    sizes = {name: values.pop(name) for name in SIZES if name in values}
    return (
        carried(
            {**tiny(kind), **values},
            sequence_length=draw(st.sampled_from([4, 64])),
            inputs=draw(st.sampled_from(["drawn", "written", "tokens"])),
            storage=draw(st.sampled_from(["coded2", "coded6"])),
        )
        | sizes
    )


@st.composite
def fixed_at_the_edge(draw: Callable[[Any], Any]) -> Config:
    """That of a summary without a teacher, two of whose sizes are at an edge."""
    own = draw(st.booleans(), label="own labels")
    width = "label_dim" if own else "latent_dim"
    names = draw(st.lists(st.sampled_from([*SIZES, width]), min_size=2, max_size=2, unique=True))
    sizes = {name: draw(WHOLE.filter(lambda size: size >= 2), label=name) for name in names}
    storage = draw(st.sampled_from(["coded2", "coded6"]))
    return {**fixed(storage=storage), **(OWN if own else {}), **sizes}


@fuzzed
@pytest.mark.timeout(600)
@given(
    config=carried_at_the_edge() | fixed_at_the_edge(),
    fill=st.sampled_from([0, 1]),
    show=st.booleans(),
)
def test_a_config_at_the_edge_is_loaded_or_refused_in_time(ask, config, fill, show):
    outcome = ask(config=config, fill=fill, show=show)
    assert outcome.fault == "", json.dumps(config)
