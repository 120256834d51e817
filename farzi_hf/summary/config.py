"""FarziDataConfig: shape and provenance of a summary, as config.json holds it."""

from __future__ import annotations

import copy
import inspect
import json
import sys
from collections.abc import Mapping
from numbers import Real
from pathlib import Path
from typing import Any

from transformers import PreTrainedConfig

from farzi_hf.common.checks import check_size
from farzi_hf.common.text import parse_mapping
from farzi_hf.data import Vocabulary
from farzi_hf.data.seeds import check_seed
from farzi_hf.summary.forms import INPUTS, LABELS, all_sizes, inputs_for, parts_of
from farzi_hf.summary.store.tensor_file import STORAGES
from farzi_hf.summary.store.untrusted import plain_learner
from farzi_hf.summary.student_starts import start_of


class FarziDataConfig(PreTrainedConfig):
    """Shape and provenance of a summary.

    Args:
        num_sequences: μ, how many synthetic sequences there are.
        sequence_length: ξ, positions per sequence (at least 2: one to read and one to predict).
        latent_dim: d, numbers stored per position.
        vocab_size: V, entries of the vocabulary that soft tokens are distributions over.
        tau: τ, the temperature of the softmax.
        latent_std: standard deviation of the normal distribution that a new summary's latents *and*
            decoder are drawn from. With the default of 0.1 every soft token starts close to
            uniform, which keeps the first meta-gradients small.
        inner: settings of the inner loop that the summary was distilled with (optimizer, lr, eps,
            steps, …). A student needs them to reproduce the published figures. Anything JSON can
            hold.
        inputs: "soft", "tokens", "drawn", "written" or "rows", what a student reads; see
            `summary.forms`.
            Inputs that are drawn or written do not run out, and μ is then the number of rows that
            tables and pages show.
        labels: "shared", "own", "teacher" or "real", what it should predict; see `summary.forms`.
            Shared labels need soft inputs.
        label_dim: e, numbers stored per position for labels of its own; by default `latent_dim`.
        teacher: the config of a carried teacher, arguments of `AutoConfig.for_model`.
        seed: of inputs that do not run out.
        origin: where inputs that are stored come from, a name of `summary.origins`; None where
            nobody says. Whatever sets the inputs sets it too.
        storage: "exact", "int8", "int6", "int5", "int4" or "coded6" to "coded2", how the tensors
            are stored; see `store.tensor_file` and `FarziData.store_as`.
        vocabulary_hash: the hash of the tokenizer or item list, see `data.vocabulary`, `None` while
            there is none.
        **kwargs: the sizes that a form alone has, see `Form.sizes`: with inputs="rows" `num_rows`,
            n, the rows of the data that have weights, and `row_words`, how many integers of 32 bits
            hold the rows that stay. Then what every config of transformers takes.

    Raises:
        ValueError: a size is too small or too large, τ or latent_std is not a positive finite
            number, JSON cannot store `inner`, students cannot begin as it says, or the origin or
            the hash is no text.
    """

    model_type = "farzi_data"

    # Defaults exist because transformers builds configs without arguments to tell what differs from
    # them.
    def __init__(
        self,
        num_sequences: int = 1,
        sequence_length: int = 2,
        latent_dim: int = 1,
        vocab_size: int = 2,
        tau: float = 1.0,
        latent_std: float = 0.1,
        inner: Mapping[str, Any] | None = None,
        inputs: str = "soft",
        labels: str = "shared",
        label_dim: int | None = None,
        teacher: Mapping[str, Any] | None = None,
        seed: int = 0,
        origin: str | None = None,
        storage: str = "exact",
        vocabulary_hash: str | None = None,
        **kwargs: Any,
    ) -> None:
        self.num_sequences = check_size("num_sequences", num_sequences)
        self.sequence_length = check_size("sequence_length", sequence_length, 2)
        self.latent_dim = check_size("latent_dim", latent_dim)
        self.vocab_size = check_size("vocab_size", vocab_size, 2)
        self.tau = _positive("tau", tau)
        self.latent_std = _positive("latent_std", latent_std)
        self.inner = _as_json("inner", inner)
        self.inputs = check_choice("inputs", inputs, INPUTS)
        self.labels = check_choice("labels", labels, LABELS)
        start_of(self.inner, LABELS[labels].carries_teacher)
        _check_fit(inputs, labels)
        self.teacher = _as_json("teacher", teacher)
        self.seed = check_seed(seed)
        self.label_dim = label_dim
        for name in all_sizes():
            self._set_size(name, kwargs.pop(name, None))
        INPUTS[inputs].check(self)
        LABELS[labels].check(self)
        if not isinstance(origin, str | None):
            raise ValueError(f"origin must be a text or None, got {origin!r:.200}")
        self.origin = origin
        self.storage = check_choice("storage", storage, STORAGES)
        if not isinstance(vocabulary_hash, str | None):
            raise ValueError(f"vocabulary_hash must be a text or None, got {vocabulary_hash!r}")
        self.vocabulary_hash = vocabulary_hash
        super().__init__(**kwargs)

    def _set_size(self, name: str, value: int | None) -> None:
        """Sets a size that some forms have. Raises ValueError if it is out of range, or is none of
        these forms.
        """
        setattr(self, name, value)
        if value is None:
            return
        check_size(name, value)
        if name not in (*INPUTS[self.inputs].sizes, *LABELS[self.labels].sizes):
            raise ValueError(
                f"{name}={value} with inputs={self.inputs!r} and labels={self.labels!r}: such a"
                " summary has none; leave it out"
            )

    @property
    def shapes(self) -> dict[str, tuple[int, ...]]:
        """The shapes of the tensors of such a summary, by name."""
        return {name: part.shape(self) for name, part in parts_of(self).items()}

    @property
    def floats(self) -> tuple[str, ...]:
        """The names of the tensors that hold floats. The others hold ids."""
        return tuple(name for name, part in parts_of(self).items() if not part.is_ids)

    def with_inputs(self, inputs: str) -> FarziDataConfig:
        """The config of a summary with the same tensors, whose inputs are of another form. Raises
        ValueError if that has other tensors, or does not go with the labels.
        """
        _check_fit(check_choice("inputs", inputs, INPUTS), self.labels)
        config = copy.deepcopy(self)
        config.inputs = inputs
        if config.shapes != self.shapes:
            raise ValueError(
                f"inputs={inputs!r} have other tensors than inputs={self.inputs!r}; make a new"
                " summary"
            )
        return config

    def adopt_vocabulary(self, vocabulary: Vocabulary, argument: str) -> None:
        """Checks a vocabulary, and takes over its hash if there is none yet.

        Args:
            argument: names the vocabulary's origin in an error.
        """
        if not vocabulary.named:
            return
        size = 1 + max((i for i, _ in vocabulary.pairs()), default=-1)
        its_hash = vocabulary.hash()
        if size > self.vocab_size:
            raise ValueError(
                f"{argument} brings {size} entries, the summary has {self.vocab_size}; use its own"
            )
        if self.vocabulary_hash not in (None, its_hash):
            raise ValueError(
                f"{argument} brings a vocabulary with hash {its_hash[:12]}…, but the summary has"
                f" {self.vocabulary_hash[:12]}…; use that one"
            )
        self.vocabulary_hash = its_hash

    def check_equal(self, expected: FarziDataConfig) -> None:
        """Raises ValueError unless this is the shape, and the temperature, of a summary with the
        config `expected`.
        """
        used = {axis for part in parts_of(self).values() for axis in part.axes}
        names = (
            "vocab_size",
            "num_sequences",
            "sequence_length",
            "latent_dim",
            "tau",
            "inputs",
            "labels",
            "label_dim",
            *all_sizes(),
        )
        unused = {"num_sequences", "latent_dim", "label_dim"} - used  # no tensor has such a size
        for name in names:
            if name in unused:
                continue
            ours = getattr(self, name)
            theirs = getattr(expected, name)
            if ours != theirs:
                source = "the learner's" if name == "vocab_size" else f"args.{name}"
                raise ValueError(
                    f"farzi_data has {name}={ours}, but {source} is {theirs}; make the two equal"
                )

    @classmethod
    def from_json(cls, content: bytes, path: Path) -> FarziDataConfig:
        """The config in `content`, which was read from the untrusted file `path`. Raises ValueError
        if the file is not a config of a summary.
        """
        values = parse_mapping(content, path)
        if values.get("model_type", cls.model_type) != cls.model_type:
            raise ValueError(
                f"{path} is the config of a {values['model_type']!r}, not of a summary:"
                " name one (a counted model is used by farzi count)"
            )
        # transformers gives every config attributes of models. They mean nothing for a summary, and
        # some are names of functions.
        fields = {*inspect.signature(cls).parameters, *all_sizes()}
        of_models = set(dir(cls())) - fields
        if "teacher" in values:
            values["teacher"] = plain_learner(values["teacher"], f"{path}: teacher")
        # Notes of others stay, and are saved and published again; none of them names code.
        notes = {name: x for name, x in values.items() if name not in fields | of_models}
        settings = {name: x for name, x in values.items() if name in fields}
        try:
            config = cls(**settings, **plain_learner(notes, str(path)))
            _ = config.shapes  # a model can be made of the teacher's config
            return config
        except (ValueError, TypeError, AttributeError) as error:
            raise ValueError(
                f"{path} is not a config of a summary: {error}; fetch the file again, or mend it"
            ) from None


def check_choice(name: str, value: Any, table: Mapping[str, Any]) -> str:
    """`value`. Raises ValueError unless it is a key of `table`."""
    if not isinstance(value, str) or value not in table:
        raise ValueError(f"{name} must be one of {', '.join(map(repr, table))}, got {value!r:.200}")
    return value


def _check_fit(inputs: str, labels: str) -> None:
    """Raises ValueError unless the two forms go with each other."""
    fitting = inputs_for(labels)
    if inputs not in fitting:
        raise ValueError(
            f"labels={labels!r} need inputs of {' or '.join(map(repr, fitting))}, got"
            f" inputs={inputs!r}"
        )


def _positive(name: str, value: Any) -> float:
    if (
        isinstance(value, bool)
        or not isinstance(value, Real)
        or not 0 < value <= sys.float_info.max
    ):
        raise ValueError(f"{name} must be a positive, finite number, got {value!r:.200}")
    return float(value)


def _as_json(name: str, value: Mapping[str, Any] | None) -> dict[str, Any] | None:
    """`value` as JSON stores it (tuples become lists), so that a reloaded config is equal."""
    if value is None:
        return None
    try:
        if not isinstance(value, Mapping):
            raise TypeError(f"a {type(value).__name__} is not a mapping of names to values")
        return json.loads(json.dumps(dict(value), allow_nan=False))
    except (TypeError, ValueError, RecursionError) as error:
        raise ValueError(
            f"{name} must hold only what JSON can store, got {value!r}: {error}"
        ) from None
