"""The embedded samples, with which the demo and the tests need no licence and no network:
sentences, and viewers of a catalogue.

`SampleGrammar` draws English-like sentences with more structure than a bigram model can learn:

* **Number agreement at a distance**, across phrases whose nouns have a number of their own: ``the
  captain near the boats mends``.
* **Gender agreement** of a person with ``himself/herself/themselves`` and ``his/her/their`` after
  the verb.
* **One topic** for all words of a sentence, and for a transitive verb only the objects of its
  frame: ``bakes the roll``.
* **Pairs**: ``either … or``, ``if … then``, ``( … )``, and a question's first word (``does/do``)
  with its final ``?``.

`SampleCatalogue` draws the histories of viewers. The catalogue holds series of several parts in a
few genres. A viewer likes two genres. They start a series of one of them (popular ones more often),
watch its parts in order, drop it at some point, and start another; now and then they watch a random
part of anything. So the last item tells the next one, and the history tells the genre.
"""

import random
from itertools import chain

import numpy as np

_VOWELS = "aeiou"


def inflect(word: str) -> str:
    """Plural of a noun, or third person singular of a verb: English spells both by one rule."""
    if word.endswith("y") and word[-2] not in _VOWELS:
        return word[:-1] + "ies"
    if word.endswith(("s", "sh", "ch", "x", "z")):
        return word + "es"
    return word + "s"


class Topic:
    """Words of one topic, all in their base form, most frequent first.

    Args:
        words: men, women, places, adjectives and intransitive verbs. Then come frames: transitive
            verbs, and the things that they may act on.
    """

    def __init__(self, *words: str) -> None:
        men, women, places, adjectives, intransitive, *frames = (tuple(x.split()) for x in words)
        verbs = frames[::2]
        things = frames[1::2]
        self.men = men
        self.places = places
        self.adjectives = adjectives
        self.intransitive = intransitive
        # By turns, so that neither gender is rarer.
        self.people = tuple(chain.from_iterable(zip(men, women, strict=True)))
        self.frames = tuple(zip(verbs, things, strict=True))
        self.things = tuple(chain.from_iterable(things))


TOPICS = (
    Topic(
        "captain pilot",
        "diver smuggler",
        "harbour island reef",
        "salty brave drowsy windy",
        "swim drift sink whistle",
        "mend fold drag",
        "net sail rope",
        "steer paint anchor",
        "boat ferry raft",
        "fear watch",
        "storm wave shark",
    ),
    Topic(
        "cook butler",
        "baker waitress",
        "kitchen cellar pantry",
        "hungry sweet burnt cheerful",
        "whisper yawn hum giggle",
        "bake slice burn",
        "roll cake pie",
        "stir pour taste",
        "soup sauce tea",
        "polish drop",
        "spoon plate kettle",
    ),
    Topic(
        "farmer shepherd",
        "widow milkmaid",
        "barn meadow orchard",
        "muddy patient stubborn weary",
        "kneel wander sweat doze",
        "feed chase comb",
        "goat horse goose",
        "plant harvest weigh",
        "turnip pumpkin pear",
        "sharpen carry",
        "plough sickle bucket",
    ),
    Topic(
        "king duke",
        "queen countess",
        "palace garden tower",
        "proud royal jealous silent",
        "bow reign frown kneel",
        "crown banish pardon",
        "prince traitor knight",
        "sign seal forge",
        "letter treaty decree",
        "steal wear",
        "ring cloak sceptre",
    ),
    Topic(
        "actor drummer",
        "dancer soprano",
        "theatre studio balcony",
        "famous nervous graceful loud",
        "rehearse tremble blush sigh",
        "sing hear learn",
        "aria ballad chorus",
        "write stage praise",
        "drama comedy opera",
        "tune borrow",
        "violin trumpet drum",
    ),
    Topic(
        "smith clockmaker",
        "weaver potter",
        "workshop market bridge",
        "careful clever dusty skilful",
        "hurry grumble rest cough",
        "hammer weld bend",
        "nail blade hinge",
        "weave dye stitch",
        "carpet shawl ribbon",
        "repair sell",
        "clock lantern wheel",
    ),
)

PREPOSITIONS = ("near", "behind", "with", "beyond")
ADVERBS = ("today", "again", "at dawn", "every night", "in silence", "without pause", "after lunch")
ASIDES = ("so they say", "as always", "it seems", "of all people", "to be fair")
SINGULAR_DETERMINERS = ("the", "a", "this", "every", "one")
PLURAL_DETERMINERS = ("the", "some", "these", "many", "two")
REFLEXIVES = {"m": "himself", "f": "herself", "p": "themselves"}
POSSESSIVES = {"m": "his", "f": "her", "p": "their"}


class SampleGrammar:
    """Draws sentences. Equal seeds give equal sentences, on every platform. Words are drawn with
    Zipf's weights, in the order of their list.
    """

    def __init__(self, seed: int = 0) -> None:
        self._random = random.Random(seed)

    def sentence(self) -> list[str]:
        """One sentence, a list of 4 to about 40 words with its closing ``.`` or ``?``."""
        topic = self._pick(TOPICS)
        draw = self._random.random()
        if draw < 0.60:
            return [*self._clause(topic), "."]
        if draw < 0.75:
            subject, agreement = self._subject(topic)
            return [
                "do" if agreement == "p" else "does",
                *subject,
                *self._verb_phrase(topic, agreement, base_form=True),
                "?",
            ]
        if draw < 0.85:
            return ["either", *self._clause(topic), "or", *self._clause(topic), "."]
        if draw < 0.95:
            return ["if", *self._clause(topic), "then", *self._clause(topic), "."]
        speaker, agreement = self._subject(topic)
        return [*speaker, "say" if agreement == "p" else "says", "that", *self._clause(topic), "."]

    def _pick(self, options: tuple):
        return self._random.choices(options, [1 / rank for rank in range(1, len(options) + 1)])[0]

    def _chance(self, probability: float) -> bool:
        return self._random.random() < probability

    def _clause(self, topic: Topic) -> list[str]:
        subject, agreement = self._subject(topic)
        clause = subject + self._verb_phrase(topic, agreement)
        return clause + self._pick(ADVERBS).split() if self._chance(0.25) else clause

    def _subject(self, topic: Topic) -> tuple[list[str], str]:
        """A noun phrase that governs a verb: its words, and the agreement class m, f
        or p (plural).
        """
        person = self._pick(topic.people)
        plural = self._chance(0.45)
        agreement = "m" if person in topic.men else "f"
        if plural:
            agreement = "p"
        words = self._noun_phrase(topic, person, plural)
        draw = self._random.random()
        if draw < 0.25:
            preposition = self._pick(PREPOSITIONS)
            noun = self._pick(topic.places + topic.things)
            words += [preposition, *self._noun_phrase(topic, noun, self._chance(0.45))]
        elif draw < 0.40:
            words += ["who", *self._action(topic, agreement)]
        elif draw < 0.50:
            inner = self._pick(topic.people)
            inner_plural = self._chance(0.45)
            words += [
                "whom",
                *self._noun_phrase(topic, inner, inner_plural),
                "admire" if inner_plural else "admires",
            ]
        elif draw < 0.58:
            words += ["(", *self._pick(ASIDES).split(), ")"]
        return words, agreement

    def _verb_phrase(self, topic: Topic, agreement: str, base_form: bool = False) -> list[str]:
        draw = self._random.random()
        form = "p" if base_form else agreement
        if draw < 0.20:
            return [self._verb(self._pick(topic.intransitive), form)]
        if draw < 0.35:
            return [
                self._verb(self._pick(("admire", "blame", "trust")), form),
                REFLEXIVES[agreement],
            ]
        return self._action(topic, form, owner=agreement)

    def _action(self, topic: Topic, form: str, owner: str | None = None) -> list[str]:
        """A transitive verb and an object of its frame; with ``owner``, at times a possessive that
        agrees with the subject.
        """
        verbs, things = self._pick(topic.frames)
        verb = self._verb(self._pick(verbs), form)
        thing = self._pick(things)
        plural = self._chance(0.45)
        if owner is not None and self._chance(0.35):
            return [verb, POSSESSIVES[owner], inflect(thing) if plural else thing]
        return [verb, *self._noun_phrase(topic, thing, plural)]

    @staticmethod
    def _verb(verb: str, form: str) -> str:
        return verb if form == "p" else inflect(verb)

    def _noun_phrase(self, topic: Topic, noun: str, plural: bool) -> list[str]:
        determiner = self._pick(PLURAL_DETERMINERS if plural else SINGULAR_DETERMINERS)
        words = [self._pick(topic.adjectives)] if self._chance(0.25) else []
        words.append(inflect(noun) if plural else noun)
        if determiner == "a" and words[0][0] in _VOWELS:
            determiner = "an"
        return [determiner, *words]


# -- viewers ---------------------------------------------------------------------------------------

GENRES = ("mystery", "comedy", "western", "romance", "space", "history")
_PLACES = ("Harbour", "Orchard", "Station", "Lighthouse", "Valley", "Castle")
SERIES_PER_GENRE = len(_PLACES)
MIN_PARTS = 3
MAX_PARTS = 9
CONTINUE = 0.8
"""How likely a viewer goes on with a series after each part."""
FAVOURITE = 0.85
"""How likely the next series is of a genre that the viewer likes."""
STRAY = 0.1
"""How likely a viewer watches something else after a part."""


class SampleCatalogue:
    """Series with their parts, and viewers. Equal seeds give equal ones."""

    def __init__(self, seed: int = 0) -> None:
        self._random = np.random.default_rng(seed)
        parts = self._random.integers(
            MIN_PARTS, MAX_PARTS + 1, size=(len(GENRES), SERIES_PER_GENRE)
        )
        self.num_items = int(parts.sum())
        numbers = np.arange(1, self.num_items + 1)  # 0 is the padding
        series = np.split(numbers, np.cumsum(parts)[:-1])
        by_genre = range(0, len(series), SERIES_PER_GENRE)
        self.series = [series[first : first + SERIES_PER_GENRE] for first in by_genre]
        self.titles = []
        for genre, parts_of_series in zip(GENRES, parts, strict=True):
            for place, number in zip(_PLACES, parts_of_series, strict=True):
                self.titles += [f"{place} ({genre}), part {part + 1}" for part in range(number)]
        weights = 1 / np.arange(1, SERIES_PER_GENRE + 1)
        self._weights = weights / weights.sum()

    def history(self) -> np.ndarray:
        """One viewer's items, 5 to 30 of them, none twice."""
        length = int(self._random.integers(5, 31))
        favourites = self._random.choice(len(GENRES), size=2, replace=False)
        watched: dict[int, None] = {}  # a set that keeps the order
        while len(watched) < length:
            genres = favourites if self._random.random() < FAVOURITE else len(GENRES)
            genre = self._random.choice(genres)
            place = self._random.choice(SERIES_PER_GENRE, p=self._weights)
            for item in self.series[genre][place]:
                watched[int(item)] = None
                if self._random.random() < STRAY:
                    watched[int(self._random.integers(1, self.num_items + 1))] = None
                if self._random.random() > CONTINUE:
                    break
        return np.array(list(watched)[:length], dtype=np.int32)
