"""The summary that comes with the library."""

from pathlib import Path


def sample() -> str:
    """The folder of a small summary that comes with the library, to try all that one can do with
    one: it was distilled from the embedded corpus, which we have written.

    ```python
    farzi = FarziData.from_pretrained(sample())
    ```

    `recipes/sample.py` makes it.
    """
    return str(Path(__file__).with_name("sample"))
