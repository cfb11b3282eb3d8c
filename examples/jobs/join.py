"""The second app of array.yaml: joins the files of a folder into embeddings.txt."""

import sys
from pathlib import Path

files = sorted(Path(sys.argv[1]).glob("*.txt"), key=lambda path: int(path.stem))
Path("embeddings.txt").write_text("".join(path.read_text() for path in files))
print(f"joined {len(files)} files")
