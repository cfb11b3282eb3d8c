"""The engine room: the arbiter's thread, its journal, its beginning after whatever happened. Knows no callers."""
