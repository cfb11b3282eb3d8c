"""Bundles: the files that a job is sent with, as one archive that is named by its SHA-256.

``pack`` makes the archive of a folder, ``store`` keeps archives on disk, ``unpack`` writes one into a job's folder.
Nothing but the standard library is imported here; ``pack`` reads ignore files with pathspec.
"""

PIECE = 96 << 10
"""Bytes of a bundle in one message: as base64 it fits a socket's buffer, so the sender does not wait for the reader."""
