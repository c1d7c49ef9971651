"""Copy a trained pool without its logs into the package, where `drafterforge` looks for names that runs/ lacks.

python scripts/ship_pool.py [--runs-dir runs] [--target smollm2-135m] general sql python math chat store
python scripts/ship_pool.py [--runs-dir runs] [--target smollm2-135m] --kind policies router
"""

from __future__ import annotations

import argparse
import shutil
from pathlib import Path

from drafterforge.artifacts.folder import open_artifact, write_artifact
from drafterforge.artifacts.locate import SHIPPED, artifact_dir

LIMIT = 40e6  # bytes of all shipped artifacts


def main() -> None:
    """Copy in the typed order; a generalist must come before its experts."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("names", nargs="+")
    parser.add_argument("--runs-dir", default="runs")
    parser.add_argument("--target", default="smollm2-135m")
    parser.add_argument("--kind", default="drafters", choices=("drafters", "policies"))
    options = parser.parse_args()
    shipped: dict[str, dict[str, str]] = {}  # digest of a source -> its copy, which experts name as parent
    for name in options.names:
        source = artifact_dir(options.runs_dir, options.target, options.kind, name)
        manifest = open_artifact(source, options.kind)
        parents = [shipped.get(parent["sha256"], parent) for parent in manifest.parents]
        folder = SHIPPED / options.target / options.kind / name
        with write_artifact(
            folder,
            kind=options.kind,
            name=manifest.name,
            target=manifest.target,
            target_fingerprint=manifest.target_fingerprint,
            config=manifest.config,
            parents=parents,
            metrics=manifest.metrics,
            replace=True,
        ) as staged:
            for file in manifest.files:
                if not file.startswith("logs/"):
                    (staged / file).parent.mkdir(exist_ok=True)
                    shutil.copyfile(source / file, staged / file)
        shipped[manifest.digest] = open_artifact(folder, options.kind).as_parent()
        print(f"{folder.relative_to(SHIPPED)}: {size(folder) / 1e6:.2f} MB")
    total = size(SHIPPED)
    print(f"{total / 1e6:.2f} MB in total")
    assert total <= LIMIT, f"the package may hold at most {LIMIT / 1e6:.0f} MB"


def size(folder: Path) -> int:
    """Bytes of all files in a folder."""
    return sum(path.stat().st_size for path in folder.rglob("*") if path.is_file())


if __name__ == "__main__":
    main()
