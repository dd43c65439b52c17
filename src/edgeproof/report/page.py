"""Assemble the page: one file that needs no network, shows the verdict first and keeps every raw number.

The report decides nothing: states, reasons and measurements are those of the run; only values for display are derived.
The page's policy forbids loading anything, and runs only the style and script whose hashes it names.
"""

from __future__ import annotations

import hashlib
from base64 import b64encode
from importlib.resources import files
from pathlib import Path

from .. import __version__
from ..files import write_text
from . import candidates, changes, latency, layers, original, pareto, quantisation, record, verdict
from .markup import Html, h, join
from .run import Run, read_run


def write_report(run: Path, out: Path | None = None) -> Path:
    """Write the report of a run.

    Args:
        run: The run's folder.
        out: Where to write; ``report.html`` in the run's folder when left out.

    Returns:
        The file written.

    Raises:
        InputError: workspace.missing, workspace.format, report.unfinished, files.…
    """
    page = render(run)
    path = out if out is not None else run / "report.html"
    write_text(path, page)
    return path


def render(run: Path) -> str:
    """The report of a run as one HTML document; the same folder gives the same text.

    Raises:
        InputError: workspace.missing, workspace.format, report.unfinished, files.not_json.
    """
    return page_of(read_run(run))


def page_of(run: Run) -> str:
    """The page of a run that was read."""
    style, script = _asset("style.css"), _asset("page.js")
    title = f"{run.state.upper()}: {run.request.get('model_name') or 'model'} · edgeproof"
    policy = (
        f"default-src 'none'; style-src '{_source(style)}'; script-src '{_source(script)}'; img-src data:; "
        "base-uri 'none'; form-action 'none'"
    )
    head = h(
        "head",
        {},
        h("meta", {"charset": "utf-8"}),
        h("meta", {"http-equiv": "Content-Security-Policy", "content": policy}),
        h("meta", {"name": "viewport", "content": "width=device-width, initial-scale=1"}),
        h("meta", {"name": "color-scheme", "content": "light dark"}),
        h("meta", {"name": "referrer", "content": "no-referrer"}),
        h("title", {}, title),
        Html(f"<style>{style}</style>"),
    )
    main = h("main", {}, _remarks(run), *_sections(run))
    body = h("body", {}, _header(run), main, _footer(run), Html(f"<script>{script}</script>"))
    return f"<!doctype html>\n{h('html', {'lang': 'en'}, head, body)}\n"


def _sections(run: Run) -> list[Html]:
    ledger = join(
        h("h3", {}, "A/A control"),
        record.control(run),
        h("h3", {}, "Samples"),
        record.samples(run),
        h("h3", {}, "Machine"),
        record.environment(run),
        h("h3", {}, "Digests"),
        record.digests(run),
        h("h3", {}, "Ledger"),
        record.ledger(run),
    )
    parts = (
        ("verdict", "Verdict", verdict.section(run)),
        ("candidates", "Candidates", candidates.section(run)),
        ("pareto", "Quality against latency", pareto.section(run)),
        ("latency", "Latency", latency.section(run)),
        ("layers", "Layers", layers.section(run)),
        ("quantisation", "Quantisation", quantisation.section(run)),
        ("changes", "What changed in the graph", changes.section(run)),
        ("original", "The original model", original.section(run)),
        ("record", "What this rests on", ledger),
        ("data", "Raw numbers", record.downloads(run)),
    )
    return [_section(key, title, content) for key, title, content in parts if content is not None]


def _section(key: str, title: str, content: Html) -> Html:
    heading = h("h2", {"id": f"{key}-title"}, title)
    return h("section", {"id": key, "aria-labelledby": f"{key}-title"}, heading, content)


_NAVIGATION = (
    ("candidates", "Candidates"),
    ("pareto", "Quality and latency"),
    ("latency", "Latency"),
    ("layers", "Layers"),
    ("quantisation", "Quantisation"),
    ("changes", "Changes"),
    ("original", "Original"),
    ("record", "Record"),
    ("data", "Raw numbers"),
)


def _header(run: Run) -> Html:
    shown = [n for n in _NAVIGATION if n[0] != "quantisation" or quantisation.section(run) is not None]
    links = [h("li", {}, h("a", {"href": f"#{key}"}, title)) for key, title in shown]
    return h(
        "header",
        {},
        h("p", {"class": "brand"}, "edgeproof report"),
        h("h1", {}, str(run.request.get("model_name") or "A model")),
        h("nav", {"aria-label": "Sections"}, h("ul", {}, *links)),
    )


def _remarks(run: Run) -> Html | None:
    """What could not be read stands at the top: a report must not look whole when it is not."""
    if not run.remarks:
        return None
    items = [h("li", {}, text) for text in run.remarks]
    return h(
        "aside", {"class": "remarks", "role": "note"}, h("b", {}, "Not everything could be read"), h("ul", {}, *items)
    )


def _footer(run: Run) -> Html:
    made = f"Run by edgeproof {run.request.get('edgeproof', 'of an unknown version')}, shown by {__version__}. "
    return h("footer", {}, made, "The report decides nothing; verdicts are the gate's, as kept in result.json.")


def _asset(name: str) -> str:
    return files(__package__).joinpath(name).read_text(encoding="utf-8")


def _source(content: str) -> str:
    """A source expression of a Content Security Policy (CSP Level 3, section 2.3.1)."""
    return "sha256-" + b64encode(hashlib.sha256(content.encode()).digest()).decode()
