"""The embedded sample interactions: viewers of a made-up catalogue. Popularity alone does not predict their next item.

The catalogue holds series of several parts in a few genres. A viewer likes two genres. They start a series of one of them (popular
ones more often, Zipf's weights), watch its parts in order, drop it at some point, and start another; now and then they watch
a random part of anything. So the last item tells the next one, the history tells the genre, and popularity only tells
where people begin.
"""

from __future__ import annotations

import numpy as np

GENRES = ("mystery", "comedy", "western", "romance", "space", "history")
_PLACES = ("Harbour", "Orchard", "Station", "Lighthouse", "Valley", "Castle")
SERIES_PER_GENRE, MIN_PARTS, MAX_PARTS = len(_PLACES), 3, 9
CONTINUE, FAVOURITE, STRAY = 0.8, 0.85, 0.1


class SampleCatalogue:
    """Series with their parts, and viewers drawn from one seeded generator.

    Args:
        seed: equal seeds give equal catalogues and viewers.
    """

    def __init__(self, seed: int = 0) -> None:
        self._random = np.random.default_rng(seed)
        parts = self._random.integers(MIN_PARTS, MAX_PARTS + 1, size=(len(GENRES), SERIES_PER_GENRE))
        ends = np.cumsum(parts).reshape(parts.shape)
        self.series = [
            [np.arange(end - n, end) + 1 for end, n in zip(*row, strict=True)] for row in zip(ends, parts, strict=True)
        ]  # [genre][series] → its items; 0 is the padding
        self.num_items = int(parts.sum())
        self.titles = [
            f"{place} ({genre}), part {part + 1}"
            for genre, row in zip(GENRES, parts, strict=True)
            for place, n in zip(_PLACES, row, strict=True)
            for part in range(n)
        ]
        weights = 1 / np.arange(1, SERIES_PER_GENRE + 1)
        self._weights = weights / weights.sum()

    def history(self) -> np.ndarray:
        """One viewer's items, 5 to 30 of them, none twice."""
        length = int(self._random.integers(5, 31))
        favourites = self._random.choice(len(GENRES), size=2, replace=False)
        watched: dict[int, None] = {}  # a set that keeps the order
        while len(watched) < length:
            liked = self._random.random() < FAVOURITE
            genre = self._random.choice(favourites if liked else len(GENRES))
            for item in self.series[genre][self._random.choice(SERIES_PER_GENRE, p=self._weights)]:
                watched[int(item)] = None
                if self._random.random() < STRAY:
                    watched[int(self._random.integers(1, self.num_items + 1))] = None
                if self._random.random() > CONTINUE:
                    break
        return np.array(list(watched)[:length], dtype=np.int32)
