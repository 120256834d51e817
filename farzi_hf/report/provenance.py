"""Where the data sets come from that this library knows by name, and under which licence."""

_OURS = {
    "dataset": "the sample data of farzi_hf",
    "licence": "apache-2.0",
    "licence_text": (
        "The source was invented for farzi_hf, whose licence is Apache-2.0. It does not describe"
        " real people."
    ),
}
PROVENANCES: dict[str, dict[str, str]] = {
    "ptb": {
        "dataset": "Penn Treebank",
        "language": "en",
        "licence": "other",
        "licence_text": (
            "The source, Penn Treebank, is licensed by the Linguistic Data Consortium (LDC99T42)."
            " Ask the consortium before you publish a summary of it."
        ),
    },
    "ml-100k": {
        "dataset": "MovieLens-100k",
        "licence": "other",
        "licence_text": (
            "The source, MovieLens, may be used for research; GroupLens forbids its redistribution."
        ),
    },
    "magazine": {
        "dataset": "Amazon Magazine Subscriptions",
        "licence": "other",
        "licence_text": (
            "The source, Amazon reviews of magazine subscriptions, was collected for research and"
            " states no licence."
        ),
    },
    "sample": {**_OURS, "language": "en"},
    "sample_interactions": _OURS,
}
"""By the name of the data set: what a card calls it, its licence as the Hub names it, and that
licence in words.
"""
