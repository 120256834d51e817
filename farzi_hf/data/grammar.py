"""The grammar of the embedded sample corpus: English-like sentences with more structure than a bigram model can learn.

With this corpus the demo and the tests need no licence and no network. Each rule is a dependency that a model cannot learn if it
only sees the previous word:

* **Number agreement at a distance.** A main verb agrees with its subject across a relative clause, a prepositional phrase or
  a bracketed aside, whose own nouns have a number of their own: ``the captain near the boats mends``.
* **Gender agreement.** Each person has a fixed gender, shown by ``himself/herself/themselves`` and ``his/her/their`` after the verb.
* **Topic.** All words of a sentence come from one topic (harbour, kitchen, farm, court, theatre, workshop).
* **Selection.** A transitive verb takes only the objects of its frame: ``bakes the roll``, ``stirs the soup``.
* **Pairs.** ``either … or``, ``if … then``, ``( … )``, and a question's first word (``does/do``) with its final ``?``.

Words of one category are drawn with Zipf's weights, 1 / rank, in the order in which they are listed.
"""

from __future__ import annotations

import random
from dataclasses import dataclass
from itertools import accumulate
from typing import NamedTuple

_VOWELS = "aeiou"


def inflect(word: str) -> str:
    """Plural of a noun, or third person singular of a verb: English spells both by the same rule."""
    if word.endswith(("s", "sh", "ch", "x", "z")):
        return word + "es"
    if word.endswith("y") and word[-2] not in _VOWELS:
        return word[:-1] + "ies"
    return word + "s"


@dataclass(frozen=True)
class Topic:
    """Words of one topic, all in their base form, most frequent first."""

    men: tuple[str, ...]
    women: tuple[str, ...]
    places: tuple[str, ...]
    adjectives: tuple[str, ...]
    intransitive: tuple[str, ...]
    frames: tuple[tuple[tuple[str, ...], tuple[str, ...]], ...]  # (verbs, the things they may act on)

    @property
    def people(self) -> tuple[str, ...]:
        """Men and women in turn, so that neither gender is the rarer one."""
        return tuple(name for pair in zip(self.men, self.women, strict=True) for name in pair)

    @property
    def things(self) -> tuple[str, ...]:
        """The objects of all frames."""
        return tuple(thing for _, things in self.frames for thing in things)


def _topic(men: str, women: str, places: str, adjectives: str, intransitive: str, *frames: tuple[str, str]) -> Topic:
    pairs = tuple((tuple(verbs.split()), tuple(things.split())) for verbs, things in frames)
    return Topic(*(tuple(words.split()) for words in (men, women, places, adjectives, intransitive)), frames=pairs)


TOPICS: tuple[Topic, ...] = (
    _topic(
        "captain pilot", "diver smuggler", "harbour island reef", "salty brave drowsy windy", "swim drift sink whistle",
        ("mend fold drag", "net sail rope"), ("steer paint anchor", "boat ferry raft"), ("fear watch", "storm wave shark"),
    ),
    _topic(
        "cook butler", "baker waitress", "kitchen cellar pantry", "hungry sweet burnt cheerful", "whisper yawn hum giggle",
        ("bake slice burn", "roll cake pie"), ("stir pour taste", "soup sauce tea"), ("polish drop", "spoon plate kettle"),
    ),
    _topic(
        "farmer shepherd", "widow milkmaid", "barn meadow orchard", "muddy patient stubborn weary", "kneel wander sweat doze",
        ("feed chase comb", "goat horse goose"), ("plant harvest weigh", "turnip pumpkin pear"), ("sharpen carry", "plough sickle bucket"),
    ),
    _topic(
        "king duke", "queen countess", "palace garden tower", "proud royal jealous silent", "bow reign frown kneel",
        ("crown banish pardon", "prince traitor knight"), ("sign seal forge", "letter treaty decree"), ("steal wear", "ring cloak sceptre"),
    ),
    _topic(
        "actor drummer", "dancer soprano", "theatre studio balcony", "famous nervous graceful loud", "rehearse tremble blush sigh",
        ("sing hear learn", "aria ballad chorus"), ("write stage praise", "drama comedy opera"), ("tune borrow", "violin trumpet drum"),
    ),
    _topic(
        "smith clockmaker", "weaver potter", "workshop market bridge", "careful clever dusty skilful", "hurry grumble rest cough",
        ("hammer weld bend", "nail blade hinge"), ("weave dye stitch", "carpet shawl ribbon"), ("repair sell", "clock lantern wheel"),
    ),
)  # fmt: skip

PREPOSITIONS = ("near", "behind", "with", "beyond")
ADVERBS = ("today", "again", "at dawn", "every night", "in silence", "without pause", "after lunch")
ASIDES = ("so they say", "as always", "it seems", "of all people", "to be fair")
SINGULAR_DETERMINERS = ("the", "a", "this", "every", "one")
PLURAL_DETERMINERS = ("the", "some", "these", "many", "two")
REFLEXIVES = {"m": "himself", "f": "herself", "p": "themselves"}
POSSESSIVES = {"m": "his", "f": "her", "p": "their"}


class Subject(NamedTuple):
    """A noun phrase that governs a verb: its words, and the agreement class m, f or p (plural)."""

    words: list[str]
    agreement: str


class SampleGrammar:
    """Draws sentences; every choice comes from one seeded generator.

    Args:
        seed: equal seeds give equal sentences, on every platform.
    """

    def __init__(self, seed: int = 0) -> None:
        self._random = random.Random(seed)
        self._weights = {n: list(accumulate(1 / rank for rank in range(1, n + 1))) for n in range(1, 32)}

    def sentence(self) -> list[str]:
        """One sentence, a list of 4 to about 40 words with its closing ``.`` or ``?``."""
        topic = self._pick(TOPICS)
        draw = self._random.random()
        if draw < 0.60:
            return [*self._clause(topic), "."]
        if draw < 0.75:
            return [*self._question(topic), "?"]
        if draw < 0.85:
            return ["either", *self._clause(topic), "or", *self._clause(topic), "."]
        if draw < 0.95:
            return ["if", *self._clause(topic), "then", *self._clause(topic), "."]
        speaker = self._subject(topic)
        return [*speaker.words, "say" if speaker.agreement == "p" else "says", "that", *self._clause(topic), "."]

    def _pick(self, options: tuple):
        return self._random.choices(options, cum_weights=self._weights[len(options)])[0]

    def _chance(self, probability: float) -> bool:
        return self._random.random() < probability

    def _clause(self, topic: Topic) -> list[str]:
        subject = self._subject(topic)
        clause = subject.words + self._verb_phrase(topic, subject.agreement)
        return clause + self._pick(ADVERBS).split() if self._chance(0.25) else clause

    def _question(self, topic: Topic) -> list[str]:
        subject = self._subject(topic)
        auxiliary = "do" if subject.agreement == "p" else "does"
        return [auxiliary, *subject.words, *self._verb_phrase(topic, subject.agreement, base_form=True)]

    def _subject(self, topic: Topic) -> Subject:
        person = self._pick(topic.people)
        plural = self._chance(0.45)
        agreement = "p" if plural else "m" if person in topic.men else "f"
        words = self._noun_phrase(topic, person, plural)
        draw = self._random.random()
        if draw < 0.25:
            words += [self._pick(PREPOSITIONS), *self._any_noun_phrase(topic)]
        elif draw < 0.40:
            words += ["who", *self._action(topic, agreement)]
        elif draw < 0.50:
            inner = self._pick(topic.people)
            inner_plural = self._chance(0.45)
            verb = "admire" if inner_plural else "admires"
            words += ["whom", *self._noun_phrase(topic, inner, inner_plural), verb]
        elif draw < 0.58:
            words += ["(", *self._pick(ASIDES).split(), ")"]
        return Subject(words, agreement)

    def _verb_phrase(self, topic: Topic, agreement: str, base_form: bool = False) -> list[str]:
        draw = self._random.random()
        form = "p" if base_form else agreement
        if draw < 0.20:
            return [self._verb(self._pick(topic.intransitive), form)]
        if draw < 0.35:
            verb = self._pick(("admire", "blame", "trust"))
            return [self._verb(verb, form), REFLEXIVES[agreement]]
        return self._action(topic, form, owner=agreement)

    def _action(self, topic: Topic, form: str, owner: str | None = None) -> list[str]:
        """A transitive verb and an object of its frame; with ``owner``, at times a possessive that agrees with the subject."""
        verbs, things = self._pick(topic.frames)
        verb, thing, plural = self._verb(self._pick(verbs), form), self._pick(things), self._chance(0.45)
        if owner is not None and self._chance(0.35):
            return [verb, POSSESSIVES[owner], inflect(thing) if plural else thing]
        return [verb, *self._noun_phrase(topic, thing, plural)]

    @staticmethod
    def _verb(verb: str, form: str) -> str:
        return verb if form == "p" else inflect(verb)

    def _any_noun_phrase(self, topic: Topic) -> list[str]:
        return self._noun_phrase(topic, self._pick(topic.places + topic.things), self._chance(0.45))

    def _noun_phrase(self, topic: Topic, noun: str, plural: bool) -> list[str]:
        determiner = self._pick(PLURAL_DETERMINERS if plural else SINGULAR_DETERMINERS)
        words = [self._pick(topic.adjectives)] if self._chance(0.25) else []
        words.append(inflect(noun) if plural else noun)
        if determiner == "a" and words[0][0] in _VOWELS:
            determiner = "an"
        return [determiner, *words]
