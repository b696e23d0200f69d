"""What a value looks like besides its text: pictures, tables, JSON. Inside the jar, in the code's own process."""

from __future__ import annotations

import base64
import io
import json
import sys
from collections.abc import Callable
from typing import Any

_METHODS = {
    "text/html": "_repr_html_",
    "text/markdown": "_repr_markdown_",
    "text/latex": "_repr_latex_",
    "image/svg+xml": "_repr_svg_",
    "image/png": "_repr_png_",
    "image/jpeg": "_repr_jpeg_",
    "application/pdf": "_repr_pdf_",
    "application/json": "_repr_json_",
}
_LONGEST_TEXT = 1 << 20
FIGURES = "belljar_figures"
"""The name by which matplotlib finds its backend in a session."""
_BACKEND = """\
from matplotlib.backend_bases import FigureManagerBase as FigureManager
from matplotlib.backends.backend_agg import FigureCanvasAgg as FigureCanvas
"""


def text_of(value: object) -> str:
    """Its `repr`, cut where it is too long for anyone, and a word where it fails."""
    try:
        text = repr(value)
    except Exception as error:  # noqa: BLE001 - the code's own, which may do anything
        text = f"<{type(value).__name__}: its repr raised {type(error).__name__}>"
    return text if len(text) <= _LONGEST_TEXT else f"{text[:_LONGEST_TEXT]}… ({len(text)} characters)"


def bundle_of(value: object) -> dict[str, str]:
    """Every form that the value offers, by its type; what is not text is in base64."""
    forms: dict[str, Any] = {}
    offered = _ask(value, "_repr_mimebundle_")
    if isinstance(offered, tuple) and offered:
        offered = offered[0]
    if isinstance(offered, dict):
        forms.update({str(kind): form for kind, form in offered.items() if str(kind) != "text/plain"})
    for kind, method in _METHODS.items():
        if kind not in forms and (form := _ask(value, method)) is not None:
            forms[kind] = form[0] if isinstance(form, tuple) and form else form
    if "application/json" not in forms and type(value) in (dict, list):
        forms["application/json"] = value
    shown = {kind: _encoded(kind, form) for kind, form in forms.items()}
    return {kind: form for kind, form in shown.items() if form is not None}


def _ask(value: object, method: str) -> Any:
    """What the method says. A class is asked for none: its methods are for its instances."""
    if isinstance(value, type):
        return None
    try:
        found = getattr(value, method, None)
        return found() if callable(found) else None
    except Exception:  # noqa: BLE001 - a form that can't be had is left out
        return None


def _encoded(kind: str, form: Any) -> str | None:
    if isinstance(form, bytes):
        return base64.b64encode(form).decode() if not _is_text(kind) else form.decode(errors="replace")
    if kind.endswith("json"):
        try:
            return json.dumps(form, allow_nan=False)
        except (TypeError, ValueError, RecursionError):
            return None
    return form if isinstance(form, str) else None  # of a picture, that is base64 already


def _is_text(kind: str) -> bool:
    return kind.startswith("text/") or kind.endswith(("json", "+xml"))


# --- figures ----------------------------------------------------------------------------------------------------------


class FigureBackendFinder:
    """Makes `FIGURES` importable, when matplotlib asks for it: a backend that shows figures as results."""

    def __init__(self, show: Callable[[], None]) -> None:
        self._show = show

    def find_spec(self, name: str, _path: object = None, _target: object = None) -> Any:
        """As the import system calls it."""
        if name != FIGURES:
            return None
        from importlib.machinery import ModuleSpec

        return ModuleSpec(name, self)  # type: ignore[arg-type]

    def create_module(self, _spec: object) -> None:
        """An ordinary one."""

    def exec_module(self, module: Any) -> None:
        """What a backend of matplotlib's has to have."""
        exec(_BACKEND, module.__dict__)  # noqa: S102 - ours
        module.show = lambda *_arguments, **_options: self._show()


def figures() -> list[dict[str, str]]:
    """Every open figure as a picture; they are closed, so that each is shown once."""
    pyplot = sys.modules.get("matplotlib.pyplot")
    if pyplot is None:
        return []
    shown = []
    for number in pyplot.get_fignums():
        figure = pyplot.figure(number)
        try:
            picture = io.BytesIO()
            figure.savefig(picture, format="png", bbox_inches="tight")
            shown.append({"image/png": base64.b64encode(picture.getvalue()).decode()})
        finally:
            pyplot.close(figure)
    return shown
