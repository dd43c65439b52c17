"""From ONNX to machine code with TVM: import, fusion, tuned kernels where there are any, compilation.

The order matters: kernels are known by what fusion makes of the graph, so tuning and looking up happen behind it.
What was found is kept in TVM's own database under the user's cache, one folder per TVM version and target.
"""

from __future__ import annotations

import hashlib
import json
import logging
import re
import warnings
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ..errors import UnsupportedError
from ..files import cache_folder, read_json, write_json
from ..graph.rewrite import label
from ..model import Model
from ..protocols import Progress

BATCH = 64
"""Variants that MetaSchedule measures together."""

EVOLVING = 32
"""From so many trials on they evolve; fewer are drawn at random, since breeding takes longer than measuring."""

PATIENCE_SECONDS = 300.0
"""For one variant, the start of the process that builds or runs it included: a busy machine takes a minute for that."""


@dataclass(frozen=True, slots=True)
class Compiled:
    """A model as machine code.

    Attributes:
        executable: TVM's; runs or is exported.
        target: TVM's target, in words.
        cpu: LLVM's name of the processor.
        triple: LLVM's triple of another machine; empty for this one.
        kernels: Every kernel.
        tuned: Those with a schedule out of the database.
        reused: How many of them were tuned before.
    """

    executable: Any
    target: str
    cpu: str
    triple: str
    kernels: tuple[str, ...]
    tuned: frozenset[str]
    reused: int

    def kind_of(self, kernel: str) -> str:
        """What a kernel computes, without its numbers: ``fused_conv2d3_add1_relu`` → ``conv2d_add_relu``."""
        return re.sub(r"(?<=[a-z])\d+(?=_|$)", "", kernel.removeprefix("fused_"))


def lowered(
    model: Model,
    where: str,
    *,
    cpu: str,
    triple: str,
    threads: int,
    trials: int,
    progress: Progress,
    refused: Callable[[Exception], UnsupportedError],
) -> Compiled:
    """Compile a model.

    Args:
        model: Any; TVM fixes nothing.
        where: The target's name, for errors.
        cpu: LLVM's name of the processor; empty means this one.
        triple: LLVM's triple of another machine; empty for this one.
        threads: How many tuned kernels may use.
        trials: Variants of each kernel to try.
        progress: Told about import, tuning and compilation.
        refused: Makes the error of what TVM raises.

    Raises:
        UnsupportedError: backend.unknown_operator, or what ``refused`` makes.
    """
    import tvm
    from tvm import relax
    from tvm.relax.backend.cpu_generic import pipeline

    cpu = cpu or str(tvm.target.codegen.llvm_get_system_cpu())
    wanted = {"kind": "llvm", "mcpu": cpu, "num-cores": threads} | ({"mtriple": triple} if triple else {})
    progress("TVM imports", 0.0)
    try:
        target = tvm.target.Target(wanted)
        module = _imported(model, where)
        with target:
            fused = tvm.transform.Sequential(
                [*pipeline.library_dispatch_passes(target), *pipeline.legalize_passes(target)]
            )(module)
        database, reused = _database(fused, target, wanted, trials, progress)
        if database is not None:
            with target, database, tvm.transform.PassContext(opt_level=3):
                fused = relax.transform.MetaScheduleApplyDatabase()(fused)
        names = {str(v.name_hint): f for v, f in fused.functions.items() if isinstance(f, tvm.tirx.PrimFunc)}
        tuned = frozenset(k for k, f in names.items() if f.attrs and "tirx.is_scheduled" in f.attrs)
        progress("TVM compiles", 0.9)
        finish = [*pipeline.dataflow_lower_passes(target), *pipeline.finalize_passes(target)]
        with target:
            module = tvm.transform.Sequential(finish)(fused)
        made = tvm.compile(module, target=target, relax_pipeline=tvm.transform.Sequential([]))
    except UnsupportedError:
        raise
    except Exception as e:
        raise refused(e) from e
    return Compiled(made, json.dumps(wanted), cpu, triple, tuple(names), tuned, reused)


def _imported(model: Model, where: str) -> Any:
    """Relax's form of a model.

    Raises:
        UnsupportedError: backend.unknown_operator.
    """
    import onnx_ir as ir
    from tvm.relax.frontend.onnx import from_onnx

    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            return from_onnx(ir.to_proto(model.graph), keep_params_in_input=False)
    except Exception as e:
        text = " ".join(str(e).split())
        listed = re.search(r"operators are not supported[^:]*: *(.+)$", text)
        ops = {o.strip().rpartition(".")[2] for o in listed[1].split(",")} if listed else set()
        node = next((n for n in model.graph.graph if n.op_type in ops), None)
        failed = None if node else _at_fault(e)
        if node is None and failed is None:
            raise
        op, name = (node.op_type, label(node)) if node else (failed or ("", ""))
        raise UnsupportedError(
            "backend.unknown_operator",
            f"{model.name} on {where}",
            f"operator {op} (node {name}) cannot be imported: {text[-200:]}",
            "write it in other operators, fix shapes (pass 'fix_shapes'), or leave this model to another runtime",
        ) from e


def _at_fault(error: BaseException) -> tuple[str, str] | None:
    """(operator, name) of the node that TVM's importer was at, from the frames of its error."""
    trace = error.__traceback__
    while trace is not None:
        if trace.tb_frame.f_code.co_name == "_construct_nodes":
            node = trace.tb_frame.f_locals.get("node")
            if node is not None:
                return str(node.op_type), str(node.name or (node.output[0] if node.output else ""))
        trace = trace.tb_next
    return None


def _database(module: Any, target: Any, wanted: Mapping[str, Any], trials: int, progress: Progress) -> tuple[Any, int]:
    """(tuned kernels, how many of the module's were tuned before); kernels that had fewer trials are tuned first."""
    from tvm.s_tir import meta_schedule as ms
    from tvm_ffi import structural_hash

    folder = _folder(wanted)
    known = folder / "trials.json"
    if not trials and not known.is_file():
        return None, 0
    folder.mkdir(parents=True, exist_ok=True)
    tasks = ms.relax_integration.extract_tasks(module, target)
    tried: dict[str, int] = read_json(known) if known.is_file() else {}
    keys = [str(structural_hash(task.dispatched[0])) for task in tasks]
    reused = sum(tried.get(k, 0) > 0 for k in keys)
    left = [(task, key) for task, key in zip(tasks, keys, strict=True) if tried.get(key, 0) < trials]
    with _quiet():
        database = ms.database.JSONDatabase(work_dir=str(folder))
        if left:
            _tune([task for task, _ in left], database, folder, trials, progress)
            found = {key: trials for task, key in left if _has_record(database, task)}
            write_json(known, tried | found)
    return database, reused


def _has_record(database: Any, task: Any) -> bool:
    return bool(database.get_top_k(database.commit_workload(task.dispatched[0]), 1))


def _tune(tasks: list[Any], database: Any, folder: Path, trials: int, progress: Progress) -> None:
    from tvm.ir.utils import derived_object
    from tvm.s_tir import meta_schedule as ms

    total, done, worked, wrong = trials * len(tasks), 0, 0, ""

    @derived_object
    class Told(ms.measure_callback.PyMeasureCallback):  # type: ignore[misc]
        """Counts what was measured."""

        def apply(self, scheduler: Any, task: int, candidates: Any, built: Any, ran: Any) -> None:
            """Called with each batch of results."""
            nonlocal done, worked, wrong
            done += len(candidates)
            worked += sum(r.run_secs is not None for r in ran or ())
            wrong = wrong or next((str(r.error_msg) for r in (*built, *(ran or ())) if r.error_msg), "")
            progress(f"TVM tunes {len(tasks)} kernels", min(0.9, 0.9 * done / total))

    contexts, weights = ms.relax_integration.extracted_tasks_to_tune_contexts(
        tasks,
        work_dir=str(folder),
        seed=0,
        num_threads=1,
        strategy="evolutionary" if trials >= EVOLVING else "replay-trace",
    )
    kinds = ms.measure_callback
    callbacks = [kinds.AddToDatabase(), kinds.RemoveBuildArtifact(), kinds.UpdateCostModel(), Told()]
    ms.tune_tasks(
        tasks=contexts,
        task_weights=weights,
        work_dir=str(folder),
        max_trials_global=total,
        max_trials_per_task=trials,
        num_trials_per_iter=min(trials, BATCH),
        database=database,
        measure_callbacks=callbacks,
        builder=ms.builder.LocalBuilder(max_workers=1, timeout_sec=PATIENCE_SECONDS),
        runner=ms.runner.LocalRunner(timeout_sec=PATIENCE_SECONDS),
    )
    if done and not worked:
        raise RuntimeError(f"none of {done} variants could be measured: {' '.join(wrong.split())[-200:]}")


def _folder(wanted: Mapping[str, Any]) -> Path:
    import tvm

    named = json.dumps([tvm.__version__, dict(wanted)], sort_keys=True)
    return cache_folder("tvm") / hashlib.sha256(named.encode()).hexdigest()[:16]


@contextmanager
def _quiet() -> Iterator[None]:
    """Keep what MetaSchedule logs about every trial off the terminal."""
    logger = logging.getLogger("tvm.s_tir.meta_schedule")
    before = logger.level
    logger.setLevel(logging.ERROR)
    logging.disable(logging.WARNING)  # its loggers of single tasks have levels of their own
    try:
        yield
    finally:
        logging.disable(logging.NOTSET)
        logger.setLevel(before)
