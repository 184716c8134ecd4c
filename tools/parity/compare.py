"""Compare new recordings of an engine with those in the repository; exit 1 where they differ."""

from __future__ import annotations

import gzip
import itertools
import sys
from pathlib import Path

TESTS = Path(__file__).resolve().parents[2] / "tests"
KEPT = [TESTS / room / "recordings" for room in ("replay", "cache", "serve")]


def difference(new: Path) -> str | None:
    """Say in one line where two recordings differ first; None where they do not."""
    kept = next((place for folder in KEPT if (place := folder / new.name).exists()), None)
    if kept is None:
        return f"{new.name}: is not in the repository"
    with gzip.open(new, "rt") as one, gzip.open(kept, "rt") as other:
        for number, (mine, its) in enumerate(itertools.zip_longest(one, other), 1):
            if mine != its:
                return f"{new.name}, line {number}: {mine!r:.100} is new, {its!r:.100} was kept"
    return None


def main() -> int:
    """Compare every recording of ``engine`` in a folder: ``compare.py ENGINE FOLDER``."""
    engine, folder = sys.argv[1], Path(sys.argv[2])
    made = sorted(folder.glob(f"{engine}-*.jsonl.gz"))
    found = [said for each in made if (said := difference(each)) is not None]
    kept = {path.name for folder in KEPT for path in folder.glob(f"{engine}-*.jsonl.gz")}
    left = sorted(kept - {path.name for path in made})
    for name in left:
        print(f"{name}: not recorded again (its trace is not here)")
    for said in found:
        print(said)
    print(f"{engine}: {len(made) - len(found)} recordings as before, {len(found)} differ")
    return 1 if found or not made else 0


if __name__ == "__main__":
    sys.exit(main())
