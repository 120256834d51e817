"""A few interactions, and what comes of them."""

from __future__ import annotations

from farzi_hf.data import Interactions

# user, item, timestamp: user 7 has four rows, two of them equal, at one time two; user 5 has three, user 9 two
ROWS = [(7, 30, 5), (5, 20, 1), (7, 10, 2), (9, 20, 1), (7, 20, 5), (5, 30, 0), (9, 50, 2), (5, 40, 3), (7, 10, 2)]


EXPECTED = [[3, 2, 4], [1, 1, 3, 2]]  # users 5 and 7; items 10, 20, 30, 40 as 1 … 4, 50 is nobody's


def lines(form: str, rows: list[tuple[int, int, int]] = ROWS) -> str:
    return "".join(form.format(u=u, i=i, t=t) + "\n" for u, i, t in rows)


def lists(interactions: Interactions) -> list[list[int]]:
    return [sequence.tolist() for sequence in interactions.sequences]
