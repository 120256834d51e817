"""The artefact: a summary on disk and on the Hub, with card, viewer and tables, and writing that
survives a crash.

It works on tensors, a config and rows, and does not know `FarziData`. It imports data and models.
"""
