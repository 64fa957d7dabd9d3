"""A translator or a classifier behind HTTP: `keras-tfm serve`.

Nothing here is imported before a server starts: FastAPI and Ray come with the
extra `serve`.
"""
