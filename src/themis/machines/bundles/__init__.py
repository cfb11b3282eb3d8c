"""Bundles: the files that a job is sent with, as one archive that is named by its SHA-256.

``pack`` makes the archive of a folder, ``store`` keeps archives on disk, ``unpack`` writes one into a job's folder.
Nothing but the standard library is imported here; ``pack`` reads ignore files with pathspec.
"""
