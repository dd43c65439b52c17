"""A backend in another Python: this end, and the child process ``python -m edgeproof.remote``.

Every session is a child of its own; frames carry JSON and arrays. Inferences that are timed are timed in the child, so
that the pipe costs nothing that is shown.
"""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import asdict, fields
from pathlib import Path
from typing import IO, Any, ClassVar, final

from . import registry, toolchain
from .dataset import Feeds
from .errors import EdgeproofError, UnsupportedError, error_from
from .frames import EndedError, Frame, receive, send
from .measurement import LayerTime, Placement
from .model import Model, load_model, save_model
from .protocols import Backend, Builder, Built, Outputs, Planning, Progress, Session
from .target import QuantScheme, Target


@final
class RemoteBackend:
    """A backend that another Python has.

    Args:
        name: Of the backend.
        python: Which Python.
    """

    settings: ClassVar[type]

    def __init__(self, name: str, python: Path) -> None:
        self._name, self._python = name, python
        self._here: Backend = registry.load("backends", name)()
        self.settings = type(self._here).settings  # type: ignore[misc]
        self._targets: dict[str, tuple[Target, ...]] = {}

    def missing(self) -> str | None:
        """Nothing: it is there."""
        return None

    def targets(self) -> tuple[Target, ...]:
        """Targets on this machine, fastest first."""
        return self._listed("targets")

    def planned(self) -> tuple[Target, ...]:
        """Targets that it can build for."""
        return self._listed("planned")

    def compile(self, model: Model, target: Target) -> RemoteSession:
        """Load a model in a child process.

        Raises:
            UnsupportedError: as the backend says; backend.crashed.
        """
        return RemoteSession(_Child(self._name, self._python), model, target)

    def build(self, model: Model, target: Target, out: Path, progress: Progress) -> Built:
        """Write what the runtime loads, in a child process."""
        child = _Child(self._name, self._python)
        try:
            with _saved(model) as path:
                ask = {"do": "build", "path": path, "target": target_to_json(target), "out": str(out.absolute())}
                return _built_from_json(child.ask(Frame(ask), progress).head)
        finally:
            child.close()

    def _listed(self, what: str) -> tuple[Target, ...]:
        if what not in self._targets:
            child = _Child(self._name, self._python)
            try:
                found = child.ask(Frame({"do": what})).head["targets"]
            finally:
                child.close()
            self._targets[what] = tuple(target_from_json(t) for t in found)
        return self._targets[what]


@final
class RemoteSession:
    """A model in a child process. Close it."""

    def __init__(self, child: _Child, model: Model, target: Target) -> None:
        self._child = child
        self._held: Sequence[Feeds] = ()
        try:
            with _saved(model) as path:
                child.ask(Frame({"do": "compile", "path": path, "target": target_to_json(target)}))
        except BaseException:
            child.close()
            raise

    def run(self, feeds: Feeds) -> Outputs:
        """Run one batch."""
        return dict(self._child.ask(Frame({"do": "run"}, feeds)).arrays)

    def timed(self, feeds: Sequence[Feeds], first: int, count: int) -> list[int]:
        """Nanoseconds of each of ``count`` inferences inside the child, cycling through ``feeds`` from ``first``."""
        if self._held is not feeds:
            self._child.ask(Frame({"do": "forget"}))
            for sample in feeds:
                self._child.ask(Frame({"do": "hold"}, sample))
            self._held = feeds
        times: list[int] = self._child.ask(Frame({"do": "timed", "first": first, "count": count})).head["ns"]
        return times

    def placement(self) -> Placement:
        """Where it ran, as the backend says."""
        return _placement_from_json(self._child.ask(Frame({"do": "placement"})).head)

    def layers(self) -> tuple[LayerTime, ...]:
        """Times per node, as the backend says."""
        found = self._child.ask(Frame({"do": "layers"})).head["layers"]
        return tuple(LayerTime(**{**v, "time_ns": tuple(v["time_ns"])}) for v in found)

    def close(self) -> None:
        """End the child."""
        self._child.close()


class _Child:
    """The process, and the pipe to it."""

    def __init__(self, name: str, python: Path) -> None:
        self._name = name
        self._log: IO[bytes] = tempfile.TemporaryFile()  # noqa: SIM115 (closed with the child)
        try:
            self._process = subprocess.Popen(
                toolchain.command(python, __name__ if __name__ != "__main__" else "edgeproof.remote"),
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=self._log,
                bufsize=0,
            )
        except OSError as e:
            self._log.close()
            raise toolchain.broken(name, e.strerror or str(e)) from e
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._to, self._from = self._process.stdin.fileno(), self._process.stdout.fileno()
        os.set_blocking(self._to, False)
        try:
            self.ask(Frame({"backend": name}))
        except BaseException as e:
            self.close()
            if isinstance(e, EdgeproofError) and e.code == "backend.crashed":
                raise toolchain.broken(name, e.problem) from e
            raise

    def ask(self, question: Frame, progress: Progress = lambda _what, _share: None) -> Frame:
        """Send a question and wait for its answer.

        Raises:
            EdgeproofError: what the other end says; backend.crashed, when it is gone.
        """
        try:
            send(self._to, question)
            answer = receive(self._from)
            while "progress" in answer.head:
                progress(*answer.head["progress"])
                answer = receive(self._from)
        except EndedError as e:
            self._process.kill()
            code = self._process.wait()
            raise UnsupportedError(
                "backend.crashed",
                self._name,
                f"its process {e} (exit code {code}): {self._last_line()}",
                "run it again; when it repeats, the runtime cannot take this model",
            ) from e
        if "error" in answer.head:
            raise error_from(answer.head["error"])
        return answer

    def close(self) -> None:
        """End the process."""
        self._process.kill()
        self._process.wait()
        for pipe in (self._process.stdin, self._process.stdout, self._log):
            if pipe is not None:
                pipe.close()

    def _last_line(self) -> str:
        self._log.seek(0)
        lines = [t for t in self._log.read()[-4000:].decode("utf-8", "replace").splitlines() if t.strip()]
        return lines[-1][:300] if lines else "it said nothing"


@contextmanager
def _saved(model: Model) -> Iterator[str]:
    """A model as a file for as long as the block lasts."""
    with tempfile.TemporaryDirectory(prefix="edgeproof-remote-") as folder:
        yield str(save_model(model, Path(folder, "model.onnx")))


def target_to_json(target: Target) -> dict[str, Any]:
    """A target as JSON, with its scheme; hardware stays behind, since a backend acts on settings."""
    held = {f.name: getattr(target, f.name) for f in fields(Target) if f.name not in ("scheme", "hardware")}
    scheme = None if target.scheme is None else asdict(target.scheme)
    return {**held, "settings": dict(target.settings), "scheme": scheme}


def target_from_json(value: Mapping[str, Any]) -> Target:
    """Inverse of `target_to_json`."""
    scheme = value["scheme"]
    if scheme is not None:
        plain: dict[str, Any] = {k: tuple(v) if isinstance(v, list) else v for k, v in scheme.items()}
        plain["fixed_output"] = {k: tuple(v) for k, v in scheme["fixed_output"].items()}
        scheme = QuantScheme(**plain)
    return Target(**{**value, "scheme": scheme})


def _placement_to_json(value: Placement) -> dict[str, Any]:
    return {
        "nodes": [list(n) for n in value.nodes],
        "fallbacks": [list(f) for f in value.fallbacks],
        "source": value.source,
    }


def _placement_from_json(value: Mapping[str, Any]) -> Placement:
    nodes = tuple((a, b, c, d) for a, b, c, d in value["nodes"])
    return Placement(nodes, tuple((a, b) for a, b in value["fallbacks"]), value["source"])


def _built_to_json(value: Built) -> dict[str, Any]:
    return {
        "path": str(value.path),
        "files": [str(p) for p in value.files],
        "format": value.format,
        "command": value.command,
        "placement": None if value.placement is None else _placement_to_json(value.placement),
        "fallbacks": [list(f) for f in value.fallbacks],
        "notes": list(value.notes),
        "facts": dict(value.facts),
    }


def _built_from_json(value: Mapping[str, Any]) -> Built:
    return Built(
        path=Path(value["path"]),
        files=tuple(Path(p) for p in value["files"]),
        format=value["format"],
        command=value["command"],
        placement=None if value["placement"] is None else _placement_from_json(value["placement"]),
        fallbacks=tuple((a, b) for a, b in value["fallbacks"]),
        notes=tuple(value["notes"]),
        facts=value["facts"],
    )


class _Served:
    """The child's end."""

    def __init__(self, backend: Backend, out: int) -> None:
        self._backend, self._out = backend, out
        self._session: Session | None = None
        self._held: list[Feeds] = []
        self._tasks: Mapping[str, Callable[[Frame], Frame]] = {
            "targets": lambda _: self._targets(self._backend.targets()),
            "planned": lambda _: self._targets(
                self._backend.planned() if isinstance(self._backend, Planning) else self._backend.targets()
            ),
            "compile": self._compile,
            "build": self._build,
            "run": lambda f: Frame({}, self._open.run(dict(f.arrays))),
            "forget": self._forget,
            "hold": self._hold,
            "timed": self._timed,
            "placement": lambda _: Frame(_placement_to_json(self._open.placement())),
            "layers": lambda _: Frame({"layers": [asdict(v) for v in self._open.layers()]}),
        }

    def answer(self, question: Frame) -> Frame:
        """Do what is asked; an error is an answer too."""
        try:
            return self._tasks[question.head["do"]](question)
        except EdgeproofError as e:
            return Frame({"error": e.to_json()})

    @property
    def _open(self) -> Session:
        assert self._session is not None
        return self._session

    def _targets(self, found: Sequence[Target]) -> Frame:
        return Frame({"targets": [target_to_json(t) for t in found]})

    def _compile(self, question: Frame) -> Frame:
        head = question.head
        self._session = self._backend.compile(load_model(head["path"]), target_from_json(head["target"]))
        return Frame({})

    def _build(self, question: Frame) -> Frame:
        head, backend = question.head, self._backend
        assert isinstance(backend, Builder)

        def tell(what: str, share: float) -> None:
            send(self._out, Frame({"progress": [what, float(share)]}))

        made = backend.build(load_model(head["path"]), target_from_json(head["target"]), Path(head["out"]), tell)
        return Frame(_built_to_json(made))

    def _forget(self, _: Frame) -> Frame:
        self._held = []
        return Frame({})

    def _hold(self, question: Frame) -> Frame:
        self._held.append(dict(question.arrays))
        return Frame({})

    def _timed(self, question: Frame) -> Frame:
        first, count = question.head["first"], question.head["count"]
        times = []
        for i in range(first, first + count):
            sample = self._held[i % len(self._held)]
            start = time.perf_counter_ns()
            outputs = self._open.run(sample)
            times.append(time.perf_counter_ns() - start)
            del outputs
        return Frame({"ns": times})


def main() -> int:
    """Serve one backend until the other end is gone."""
    # Native libraries write to file descriptor 1 as they please: answers go through a private copy of it.
    out = os.dup(1)
    os.dup2(2, 1)
    try:
        backend: Backend = registry.load("backends", receive(0).head["backend"])()
        line = backend.missing()
        if line is not None:
            problem = f"this Python ({sys.executable}) lacks it"
            send(out, Frame({"error": UnsupportedError("target.not_installed", "backend", problem, line).to_json()}))
            return UnsupportedError.exit_code
        send(out, Frame({}))
        served = _Served(backend, out)
        with suppress(EndedError):
            while True:
                answer = served.answer(receive(0))
                try:
                    send(out, answer)
                except EdgeproofError as e:  # outputs of a type that frames do not carry
                    send(out, Frame({"error": e.to_json()}))
    except EndedError:
        return 0
    return 0


if __name__ == "__main__":
    sys.exit(main())
