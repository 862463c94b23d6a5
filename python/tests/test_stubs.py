"""The stubs of the native classes have the classes' own docstrings, for editors, which do not import them.

`BATON_WRITE_STUBS=1 tools/python test -k stubs` writes them anew.
"""

import ast
import os
import textwrap
from pathlib import Path
from typing import Any

import pytest
from baton import _native

STUBS = sorted((Path(__file__).resolve().parents[1] / "py" / "baton").glob("_native*.pyi"))
WIDTH = 120
Node = ast.ClassDef | ast.FunctionDef


def prose(doc: str) -> list[str]:
    """The paragraphs before the first example."""
    text = textwrap.dedent(doc).split(">>>")[0].strip()
    return [" ".join(p.split()) for p in text.split("\n\n")] if text else []


def docstring(doc: str, indent: int) -> list[str]:
    """The lines of a docstring as the formatter leaves them."""
    pad = " " * indent
    first, *more = prose(doc)
    width = WIDTH if more else WIDTH - 3  # the quotes may end a line
    lines = textwrap.wrap(first, width, initial_indent=f'{pad}"""', subsequent_indent=pad, break_on_hyphens=False)
    if not more and len(lines) == 1:
        return [lines[0] + '"""']
    for p in more:
        lines += ["", *textwrap.wrap(p, WIDTH, initial_indent=pad, subsequent_indent=pad, break_on_hyphens=False)]
    return [*lines, f'{pad}"""']


def documented(tree: ast.Module) -> list[tuple[Node, str]]:
    """What users see, and what it says of itself."""
    found: list[tuple[Node, str]] = []
    for node in tree.body:
        if isinstance(node, ast.FunctionDef) and node.name == "wait_any":
            found.append((node, _native.wait_any.__doc__ or ""))
        if isinstance(node, ast.ClassDef) and node.name not in {"Pending", "Sending", "Provided"}:
            runtime: Any = getattr(_native, node.name)
            found.append((node, runtime.__doc__))
            for f in node.body:
                if isinstance(f, ast.FunctionDef) and (not f.name.startswith("_") or f.name == "__exit__"):
                    found.append((f, vars(runtime)[f.name].__doc__ or ""))
    return [(node, doc) for node, doc in found if doc and prose(doc)]


def with_docstrings(text: str) -> str:
    """The stub with the docstrings that the classes have."""
    lines = text.splitlines()
    for node, doc in sorted(documented(ast.parse(text)), key=lambda found: -found[0].lineno):
        body = node.body[0]
        made = docstring(doc, node.col_offset + 4)
        if isinstance(body, ast.Expr) and isinstance(body.value, ast.Constant) and body.value.value is ...:
            head, _, comment = lines[body.lineno - 1].rpartition(" ...")
            lines[body.lineno - 1 : body.end_lineno] = [head + comment, *made]
        elif isinstance(body, ast.Expr) and isinstance(body.value, ast.Constant):
            lines[body.lineno - 1 : body.end_lineno] = made
        else:  # a class begins
            at = min([body.lineno, *(d.lineno for d in getattr(body, "decorator_list", []))]) - 1
            lines[at:at] = [*made, ""]
    return "\n".join(lines) + "\n"


@pytest.mark.parametrize("stub", STUBS, ids=lambda p: p.name)
def test_stubs_say_what_the_classes_say(stub: Path) -> None:
    kept = stub.read_text()
    made = with_docstrings(kept)
    if os.environ.get("BATON_WRITE_STUBS"):
        stub.write_text(made)
        return
    assert made == kept, "docstrings differ: BATON_WRITE_STUBS=1 tools/python test -k stubs writes them"


def test_every_public_method_of_the_stubs_has_a_docstring() -> None:
    members = [
        f"{c.name}.{f.name}"
        for stub in STUBS
        for c in ast.parse(stub.read_text()).body
        if isinstance(c, ast.ClassDef) and c.name not in {"Pending", "Sending", "Provided"}
        for f in c.body
        if isinstance(f, ast.FunctionDef) and not f.name.startswith("_") and ast.get_docstring(f) is None
    ]
    assert members == []
