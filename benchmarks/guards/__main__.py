"""Take each guard away in a copy of the source, one at a time, and run the test that must notice."""

from __future__ import annotations

import argparse
import hashlib
import json
import re
import sys
import tempfile
from collections import Counter
from pathlib import Path

from benchmarks.guards.table import GROUPS, ROOT, Case, cases, source_of
from benchmarks.guards.trial import Trial, copied, load_heavy, passing, run


def key(case: Case) -> str:
    """Digest of everything that a trial's outcome depends on in the first place: row, guarded files, test file."""
    h = hashlib.sha256(repr((case.edits, case.test)).encode())
    for file in (*(source_of(e.file) for e in case.edits), ROOT / case.test.partition("::")[0]):
        h.update(file.read_bytes())
    return h.hexdigest()


def page(rows: list[tuple[Case, Trial]]) -> str:
    """The outcomes as a page of the documentation."""
    count = Counter(trial.outcome for _, trial in rows)
    head = [
        "# Guards",
        "",
        "What must be refused, where the guard stands that refuses it, and the test that fails when that guard is",
        "taken out of a copy of the source. Made by `scripts/bench guards --write docs/guards.md`, from the tables in",
        "[benchmarks/guards](../benchmarks/guards); a test holds the tables against the source, so that they stay",
        "true. Cases in italics go beyond the list that the project began with. `tuf/` is python-tuf's own code, of",
        "which a copy is changed in the same way. Where one attack meets several guards, *+n* counts those that are",
        "taken out with the first.",
        "",
        f"**{len(rows)} cases: {', '.join(f'{n} {o}' for o, n in sorted(count.items()))}.**",
    ]
    for group, title in GROUPS.items():
        head += ["", f"## {title}", "", "| refused | guard in | test | outcome |", "|---|---|---|---|"]
        for case, trial in rows:
            if case.group == group:
                what = f"*{case.case}*" if case.extra else case.case
                more = f" +{len(case.edits) - 1}" if len(case.edits) > 1 else ""
                file, _, test = case.test.removeprefix("tests/").partition("::")
                words = re.sub(r"^test_", "", test).replace("_", " ")
                head.append(f"| {what} | `{case.edits[0].file}`{more} | {words} (`{file}`) | {trial.outcome} |")
    return "\n".join(head) + "\n"


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--group", choices=GROUPS, action="append", help="only this group; may be given again")
    parser.add_argument("--only", default="", metavar="TEXT", help="only cases with this text in them")
    parser.add_argument("--kept", type=Path, default=Path("guards.json"), help="outcomes so far; a later run goes on")
    parser.add_argument("--write", type=Path, metavar="FILE", help="write the outcomes of all cases as a page")
    args = parser.parse_args()
    kept = json.loads(args.kept.read_text()) if args.kept.exists() else {}
    everything = cases()
    chosen = [c for c in everything if c.group in (args.group or GROUPS) and args.only in c.case]
    todo = [c for c in chosen if kept.get(key(c), {}).get("outcome") not in ("noticed", "survived")]
    load_heavy()
    with tempfile.TemporaryDirectory() as folder, copied(Path(folder, "copy")) as tree:
        log = Path(folder, "log")
        tests = sorted({c.test for c in todo if not c.needs})
        if tests and not passing(tests, tree, log):
            print(log.read_text(errors="replace")[-3000:], file=sys.stderr)
            print("these tests fail with every guard in its place: nothing can be told", file=sys.stderr)
            return 2
        for n, case in enumerate(todo, 1):
            trial = run(case, tree, log)
            print(
                f"{n:3}/{len(todo)} {trial.outcome:9} {case.group}: {case.case}\n{'':12}{trial.how[:110]}", flush=True
            )
            kept[key(case)] = {"outcome": trial.outcome, "how": trial.how}
            part = args.kept.with_suffix(".part")
            part.write_text(json.dumps(kept, indent=1))
            part.replace(args.kept)
    outcomes = [(c, Trial(**kept[key(c)])) for c in everything if key(c) in kept]
    if args.write:
        args.write.write_text(page(outcomes), encoding="utf-8")
    bad = [c.case for c in chosen if kept.get(key(c), {}).get("outcome") != "noticed"]
    print(f"{len(chosen) - len(bad)} of {len(chosen)} noticed" + "".join(f"\n  NOT: {b}" for b in bad))
    return 1 if bad else 0


if __name__ == "__main__":
    raise SystemExit(main())
