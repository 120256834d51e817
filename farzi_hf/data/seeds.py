"""The one table of random streams: a seed, a purpose from the table and a few numbers name a
stream.

    generator = stream(args.seed, Purpose.SPLIT)
    # For functions that take a seed, such as torch.manual_seed:
    seed = derive(args.seed, Purpose.OUTER_STEP, global_step, position)

Purpose and numbers go into the spawn key of NumPy's `SeedSequence`, two words for each number. They
cannot go into its entropy, which is padded with zeros: (2, 2, 0) would equal (2, 2, 0, 0). A spawn
key is not padded.

Not in the table: the embedded data sets (`samples`) have a seed of their own, and transformers
orders the real batches by `TrainingArguments.seed` in its own way.
"""

import operator
from collections.abc import Iterator
from contextlib import contextmanager
from enum import IntEnum

import numpy as np
import torch

BITS = 64
_WORD = 2**32


class Purpose(IntEnum):
    """The purpose of a stream. The numbers are part of the streams: add new ones at the end, change
    none, and use no number again.
    """

    SUMMARY_NORMAL = 0  # latents and decoder of a random start
    SUMMARY_WINDOWS = 1  # the real sequences of a spectral start
    SUMMARY_PROJECTION = 2  # the random projection in its decomposition
    # (global step, position among the micro-batches of all processes): all that an objective draws
    OUTER_STEP = 5
    LEARNER = 6  # (k): of the learners that train together, those after the first
    INNER_STEPS = 7  # T of an outer step
    MATCHED_STEP = 8  # t, the step whose gradients are matched
    MINIBATCH = 9  # (epoch): the order of the rows
    FRESH_START = 10  # whether an inner loop starts fresh or from Ω
    TRAJECTORY = 11  # which trajectory of Ω, and which checkpoint of it
    RECORDED_START = 12  # (trajectory): the initialisation of a training that is recorded
    # (first of a group): the minibatches of those that are recorded together
    RECORDED_MINIBATCHES = 13
    EVALUATION_STUDENT = 14  # (student): of `FarziTrainer.evaluate`
    REAL_STUDENT = 15  # (student): on real data, of a table's row
    STOCK_STUDENT = 16  # (student): on the summary, under the stock Trainer
    SUBSET = 17  # a random subset of the real data
    SPLIT = 18  # of the users, in training, validation and test
    HARD_TOKENS = 19  # ids drawn from a summary; (1): its labels
    BOOTSTRAP = 20  # the resamples of an interval
    TEACHER = 21  # the initialisation of a teacher
    TEACHER_MINIBATCHES = 22  # its minibatches of real sequences
    INPUT_SEQUENCES = 23  # the ids that a summary with token inputs has
    POOL = 24  # (process): a pool of learners that go on from outer step to outer step
    POOL_LEARNER = 25  # (place, generation): the start of one of them, and its minibatches
    TEACHER_NUMBER = 26  # (teacher): all that one of several teachers draws
    SUMMARY_CLUSTERS = 27  # the groups of tokens of a start, and their order
    # changes of the training sequences' weights, by which smoothness is measured
    WEIGHT_DIRECTIONS = 28
    LEFT_OUT = 29  # the training sequences that each retraining leaves out
    RANDOM_SCORES = 31  # scores that know nothing, to compare with
    TEACHER_KIND = 35  # (kind): all that teachers of the second and later kinds draw
    DRAWN_ROWS = 36  # (block): rows of ids that are drawn for a student
    WRITTEN_ROWS = 37  # (block): rows that a teacher writes
    PACKING = 38  # the minibatches of a teacher's training in few bits
    DROPOUT = 39  # (step): the masks of a step of training on real data
    NEGATIVES = 40  # items among which a target is ranked
    MEMORY_ROWS = 41  # the training rows whose losses are compared with those of held-out rows
    SPARE_LABELS = 42  # the decoder of labels that have dimensions to spare
    COUNTED_ROWS = 45  # (row): a text that a counted model writes
    WEIGHED_START = 46  # (training): the start of one of several trainings on weighed rows
    WEIGHED_ORDER = 47  # (training): which rows it reads when
    CHOSEN_ROWS = 48  # (choice): rows that are chosen at random, or halves of a pool
    REAL_ROWS = 49  # windows of real rows that students read with a teacher's labels
    ROW_CLUSTERS = 50  # the first centres of groups of training rows
    START_ROWS = 51  # rows of which a teacher's states are looked at, where a student begins
    NESTED_DROPOUT = 52  # (step): how many dimensions a teacher's head reads of each row


def stream(seed: int, purpose: Purpose, *numbers: int) -> np.random.Generator:
    """The generator of one purpose. `numbers` distinguish several streams of the same purpose.

    Raises:
        ValueError: as `check_seed`.
    """
    return np.random.default_rng(_sequence(seed, purpose, numbers))


def derive(seed: int, purpose: Purpose, *numbers: int) -> int:
    """A seed of 64 bits for code that draws by itself. torch's CPU uses the lower 32.

    Such code is a factory of models, or a function with streams of its own.
    """
    return int(_sequence(seed, purpose, numbers).generate_state(1, np.uint64)[0])


@contextmanager
def seeded(seed: int = 0) -> Iterator[None]:
    """Inside, the random numbers of the CPU and of the CUDA device in use follow the seed.

    Afterwards the caller's are as they were. Seeding by `torch.manual_seed` would reach all
    devices, also those whose numbers nobody keeps.
    """
    devices = [torch.cuda.current_device()] if torch.cuda.is_initialized() else []
    generators = [torch.default_generator]
    generators += [torch.cuda.default_generators[device] for device in devices]
    with torch.random.fork_rng(devices):
        for generator in generators:
            generator.manual_seed(seed)
        yield


def check_seed(seed: int, name: str = "seed", bits: int = BITS) -> int:
    """The seed as an `int`. An error calls it `name`.

    Raises:
        ValueError: it is not an integer, negative, or has more than `bits` bits.
    """
    try:
        number = operator.index(seed)
    except TypeError:
        number = -1
    if not 0 <= number < 2**bits:
        raise ValueError(f"{name}={seed!r} is not usable; give an integer from 0 to 2**{bits} - 1")
    return number


def _sequence(seed: int, purpose: Purpose, numbers: tuple[int, ...]) -> np.random.SeedSequence:
    words = []
    for number in numbers:
        # Always two words: otherwise 2**32 would be the words (0, 1), and so would the two numbers
        # 0 and 1.
        words += divmod(check_seed(number, "a number of a stream"), _WORD)
    return np.random.SeedSequence(check_seed(seed), spawn_key=(Purpose(purpose), *words))
