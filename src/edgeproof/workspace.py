"""A run on disk: a folder that a person can read and an interrupted command can go on from.

```
RUN/
  request.json       what was asked, frozen before the first measurement: digests of model, data, policy, target
  index.json         digest of every kept value and of the ledger's last line, so that a changed one is noticed, and a
                     seal, so that it is itself
  ledger.jsonl       one line per measuring run, each with the digest of the line before it
  calibration/       what was seen of the calibration samples: histograms by tensor
  candidates/NAME/   model.onnx, change.json, quality and bench results with every raw sample
  result.json        the table, the verdicts and where everything lies
  best.onnx          the accepted model, with best.json: how it was made and how the runtime must be set
  report.html
```

Every file is written under a temporary name and renamed, so what is there is whole. A folder belongs to one request:
another model, data set, policy or target is refused, since results of different requests must not be mixed.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any, final

from . import files
from .digest import canonical_json, digest_file, digest_json
from .errors import InputError, TrustError
from .files import os_error, read_json, write_bytes, write_json

FORMAT = "edgeproof.run/1"
SEAL = "seal"
"""Key in ``index.json`` of the digest of all its other entries."""
LEDGER = "ledger.jsonl"
"""Its key in ``index.json`` holds the digest of its last line, so that a deleted or shortened ledger is noticed."""
CONFIRMS = ("bench-confirm", "quality-confirm")
"""Kinds of ledger lines that confirm a candidate."""


@contextmanager
def only_one(root: Path) -> Iterator[None]:
    """Keep other processes from writing to the same run.

    Raises:
        InputError: workspace.busy, files.*.
    """
    lock = root / ".lock"
    busy = InputError("workspace.busy", str(root), "another edgeproof is working on this run", "wait for it to end")
    with ExitStack() as held:
        try:
            held.enter_context(files.only_one(lock, busy))
        except OSError as e:
            raise os_error(lock, e) from e
        yield


@final
class Workspace:
    """One run's folder.

    Args:
        root: The folder; it must hold a request.
    """

    def __init__(self, root: Path) -> None:
        self.root = root
        self._index: dict[str, str] = _index_of(root)
        request = read_json(root / "request.json")
        written = request.get("format") if isinstance(request, dict) else None
        if written != FORMAT:
            raise InputError(
                "workspace.format",
                str(root),
                f"was written in format {written!r}; expected {FORMAT!r}",
                "use the version of edgeproof that wrote it, or start a new run with another --out",
            )
        self.request: dict[str, Any] = request

    @staticmethod
    def create(root: Path, request: Mapping[str, Any]) -> Workspace:
        """Open a run, or start it. The same request goes on where it stopped.

        Raises:
            InputError: workspace.other_request, workspace.not_a_run.
        """
        asked = {"format": FORMAT, **request}
        path = root / "request.json"
        if path.is_file():
            workspace = Workspace(root)
            _same_request(root, workspace.request, asked)
            return workspace
        try:
            if root.is_dir() and any(p.name != ".lock" for p in root.iterdir()):
                raise InputError(
                    "workspace.not_a_run",
                    str(root),
                    "is a folder with other things in it, not a run",
                    "give --out a new or empty folder",
                )
        except OSError as e:
            raise os_error(root, e) from e
        write_json(path, asked)
        return Workspace(root)

    @staticmethod
    def open(root: Path) -> Workspace:
        """Open a run that exists.

        Raises:
            InputError: workspace.missing.
        """
        if not (root / "request.json").is_file():
            raise InputError(
                "workspace.missing",
                str(root),
                "is no run of edgeproof (it has no request.json)",
                "give the --out folder",
            )
        return Workspace(root)

    @contextmanager
    def locked(self) -> Iterator[None]:
        """Keep other processes from writing to the same run.

        Raises:
            InputError: workspace.busy.
        """
        with only_one(self.root):
            self._index = _index_of(self.root)  # what a process that has just ended wrote belongs to it
            yield

    def folder(self, candidate: str) -> Path:
        """Where a candidate's files lie."""
        return self.root / "candidates" / candidate

    def once(self, name: str, make: Callable[[], Any]) -> Any:
        """The JSON value kept under ``name``; made and kept when it is not there yet."""
        value = self.read(name)
        if value is None:
            value = make()
            self.write(name, value)
        return value

    def read(self, name: str) -> Any | None:
        """The JSON value kept under ``name``, or None.

        Raises:
            TrustError: workspace.changed, when it is not what was written here.
        """
        path = self.root / name
        if not path.is_file() or name not in self._index:
            return None
        if digest_file(path) != self._index[name]:
            raise TrustError(
                "workspace.changed",
                str(path),
                "was changed since it was measured",
                "delete it to have it measured again, or start a new run with another --out",
            )
        return read_json(path)

    def write(self, name: str, value: Any) -> Path:
        """Keep a JSON value under ``name``, and its digest in ``index.json``."""
        if name in self._index:  # or a process killed between the two writes would leave a value that looks changed
            self.forget(name)
        write_json(self.root / name, value)
        self._index[name] = digest_file(self.root / name)
        self._write_index()
        return self.root / name

    def forget(self, *beginnings: str) -> None:
        """No longer stand by the values whose names begin so: they are made again when they are asked for."""
        kept = {name: digest for name, digest in self._index.items() if not name.startswith(beginnings)}
        if len(kept) < len(self._index):
            self._index = kept
            self._write_index()

    def keeps(self, beginning: str) -> bool:
        """Whether any value was kept under a name that begins so."""
        return any(name.startswith(beginning) for name in self._index)

    def _write_index(self) -> None:
        write_json(self.root / "index.json", {**self._index, SEAL: digest_json(self._index)})

    def record(self, entry: Mapping[str, Any]) -> None:
        """Append a measuring run to the ledger; each line carries the digest of the line before it.

        A run that is already there (a resumed command) is not written twice.
        """
        lines = self.ledger()
        body = dict(entry)
        if any({k: v for k, v in line.items() if k not in ("n", "previous")} == body for line in lines):
            return
        previous = digest_json(lines[-1]) if lines else digest_json(self.request)
        lines.append({"n": len(lines), "previous": previous, **body})
        write_bytes(self.root / LEDGER, b"".join(_line(v) for v in lines))
        self._index[LEDGER] = digest_json(lines[-1])
        self._write_index()

    def ledger(self) -> list[dict[str, Any]]:
        """Every measuring run under this request, oldest first.

        Raises:
            TrustError: workspace.ledger, when a line was changed, removed or added by hand, or the file is gone.
        """
        path, lines = self.root / LEDGER, []
        try:
            if path.is_file():
                lines = [json.loads(text) for text in path.read_text(encoding="utf-8").splitlines()]
        except (OSError, ValueError, RecursionError) as e:
            raise TrustError("workspace.ledger", str(path), f"cannot be read: {e}", "start a new run") from e
        broken = broken_line(lines, digest_json(self.request))
        if broken is not None:
            raise TrustError(
                "workspace.ledger",
                f"{path}: line {broken + 1}",
                "does not follow from the line before it; the ledger or the request was changed",
                "start a new run with another --out",
            )
        last = self._index.get(LEDGER)
        # A process killed between the two writes leaves one line more than the index knows.
        if last is not None and last not in map(digest_json, lines[-2:]):
            raise TrustError(
                "workspace.ledger",
                str(path),
                f"does not end with the line that was written last ({len(lines)} lines are left); lines were removed",
                "restore the file, or start a new run with another --out",
            )
        return lines


def broken_line(lines: Sequence[Any], anchor: str) -> int | None:
    """Index of the first ledger line that does not follow from the one before it; None when all do.

    Args:
        lines: The ledger, oldest line first.
        anchor: Digest of what was frozen before the first line: the request.
    """
    previous = anchor
    for n, line in enumerate(lines):
        if not isinstance(line, dict) or line.get("previous") != previous or line.get("n") != n:
            return n
        previous = digest_json(line)
    return None


def confirmations(lines: Sequence[Mapping[str, Any]], apart: Collection[str] = ("original", "control")) -> int:
    """How many times candidates were confirmed, by a ledger: what the policy's declared looks allow.

    A candidate measured or scored anew counts again, so that trying until it is accepted does not go unseen.

    Args:
        lines: The ledger.
        apart: Names of what is no candidate.
    """
    made = Counter((v.get("candidate"), v.get("kind")) for v in lines if v.get("candidate") not in apart)
    names = {name for name, kind in made if kind in CONFIRMS}
    return sum(max(made[name, kind] for kind in CONFIRMS) for name in names)


def _index_of(root: Path) -> dict[str, str]:
    """Name → digest of every value that was kept.

    Raises:
        TrustError: workspace.changed, when the index is not what was written here.
    """
    path = root / "index.json"
    if not path.is_file():
        return {}
    index = read_json(path)
    if not isinstance(index, dict) or index.pop(SEAL, None) != digest_json(index):
        raise TrustError(
            "workspace.changed",
            str(path),
            "is not what was written here",
            "delete it to have everything measured again, or start a new run with another --out",
        )
    return index


def _line(value: Mapping[str, Any]) -> bytes:
    return canonical_json(value) + b"\n"


def _same_request(root: Path, kept: Mapping[str, Any], asked: Mapping[str, Any]) -> None:
    for key in sorted(set(kept) | set(asked)):
        where, old, new = _difference(key, kept.get(key), asked.get(key))
        if where:
            raise InputError(
                "workspace.other_request",
                str(root),
                f"holds a run with another {where}: {_short(old)}; now {_short(new)}",
                "give --out another folder, or delete this one to start again",
            )


def _difference(where: str, old: Any, new: Any) -> tuple[str, Any, Any]:
    """The first place where two JSON values differ, with both values; an empty place when they are equal."""
    if old == new:
        return "", old, new
    if isinstance(old, Mapping) and isinstance(new, Mapping):
        inner = [(f"{where}.{k}", old.get(k), new.get(k)) for k in sorted(set(old) | set(new))]
    elif isinstance(old, list) and isinstance(new, list) and len(old) == len(new):
        inner = [(f"{where}[{i}]", a, b) for i, (a, b) in enumerate(zip(old, new, strict=True))]
    else:
        return where, old, new
    return next(_difference(*item) for item in inner if item[1] != item[2])


def _short(value: Any) -> str:
    text = str(value)
    return text if len(text) <= 80 else text[:77] + "..."
