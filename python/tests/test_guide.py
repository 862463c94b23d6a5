"""The user guide, docs/python.md, docs/torch.md, and what docs/functions.md says of Python are run: each section by itself, its blocks in order.

`# → value` behind an expression is what it gives, `# raises X: text` what a statement raises. A block that
begins with a file's name is a program: the section's programs are run together, all must end well and
print their `# → ` and `# prints ` lines.
"""

import ast
import builtins
import importlib
import re
import subprocess
import sys
from pathlib import Path

import baton
import pytest
from conftest import PATIENCE, need

DOCS = Path(__file__).resolve().parents[2] / "docs"
PAGE, TORCH, FUNCTIONS = DOCS / "python.md", DOCS / "torch.md", DOCS / "functions.md"
TITLE = re.compile(r"^## (.*)$", re.MULTILINE)
BLOCK = re.compile(r"^```python\n(.*?)^```$", re.MULTILINE | re.DOTALL)
OPTIONAL = ("gymnasium", "tensordict", "ray")
PROGRAM = re.compile(r"# (\w+\.py)\n")


def sections(page: Path = PAGE) -> dict[str, list[tuple[int, str]]]:
    """The blocks of each section, with the line of the page on which they begin."""
    text = page.read_text()
    starts = [*TITLE.finditer(text)]
    ends = [m.start() for m in starts[1:]] + [len(text)]
    found = {}
    for m, end in zip(starts, ends, strict=True):
        blocks = [(text.count("\n", 0, b.start(1)), b[1]) for b in BLOCK.finditer(text, m.end(), end)]
        found[m[1]] = blocks
    return found


def marks(block: str, word: str) -> dict[int, str]:
    """What stands behind a mark, by line."""
    lines = enumerate(block.splitlines(), 1)
    return {n: line.split(word, 1)[1].strip() for n, line in lines if word in line}


def run_block(at: int, block: str, names: dict[str, object]) -> None:
    gives, raises = marks(block, "# →"), marks(block, "# raises ")
    tree = ast.parse(block)
    for statement in tree.body:
        last = statement.end_lineno
        first = min([statement.lineno, *[d.lineno for d in getattr(statement, "decorator_list", [])]])
        code = "\n" * (at + first - 1) + "\n".join(block.splitlines()[first - 1 : last])
        if last in raises:
            kind, text = raises[last].split(": ", 1)
            kind = kind.removeprefix("baton.")
            with pytest.raises(getattr(baton, kind, None) or getattr(builtins, kind), match=re.escape(text)):
                exec(compile(code, PAGE, "exec"), names)
        elif last in gives:
            assert isinstance(statement, ast.Expr), f"line {at + last}: nothing to compare"
            got = eval(compile("\n" * (at + statement.lineno - 1) + code.lstrip("\n"), PAGE, "eval"), names)
            assert repr(got) == gives[last], f"line {at + last} of the guide"
        else:
            exec(compile(code, PAGE, "exec"), names)


def run_programs(programs: dict[str, str], folder: Path) -> None:
    for name, text in programs.items():
        (folder / name).write_text(text)
    started = {
        name: subprocess.Popen([sys.executable, name], cwd=folder, stdout=subprocess.PIPE, text=True)
        for name in programs
    }
    for name, process in started.items():
        out, _ = process.communicate(timeout=PATIENCE)
        wanted = [*marks(programs[name], "# →").values(), *marks(programs[name], "# prints ").values()]
        assert (process.returncode, out.splitlines()) == (0, wanted), name


def test_the_guide_has_what_it_promises():
    found = sections()
    assert len(found) == 10 and all(found.values())
    links = re.findall(r"\[[^\]]*\]\(#([\w-]+)\)", PAGE.read_text())
    assert links == [re.sub(r"[^\w -]", "", title.lower()).replace(" ", "-") for title in found]


def run_section(blocks: list[tuple[int, str]], tmp_path: Path) -> None:
    for framework in ("torch", "jax"):
        if any(f"import {framework}" in block for _, block in blocks):
            need(framework)
    names = {"__name__": "guide"}
    programs = {}
    for at, block in blocks:
        if name := PROGRAM.match(block):
            programs[name[1]] = block
        else:
            run_block(at, block, names)
    run_programs(programs, tmp_path)


@pytest.mark.parametrize("title", sections())
def test_guide(title, tmp_path):
    run_section(sections()[title], tmp_path)


def test_page_of_functions(tmp_path, monkeypatch):
    monkeypatch.setattr(importlib.import_module("baton._functions"), "_defined", {})
    blocks = sections(FUNCTIONS)["Python"]
    assert len(blocks) > 5
    run_section(blocks, tmp_path)


def test_page_of_functions_with_tvm_ffi(tmp_path):
    need("tvm_ffi")
    blocks = sections(FUNCTIONS)["With tvm-ffi"]
    assert len(blocks) == 2
    run_section(blocks, tmp_path)


@pytest.mark.parametrize("title", [title for title, blocks in sections(TORCH).items() if blocks])
def test_page_of_torch(title, tmp_path):
    need("torch")
    for framework in OPTIONAL:
        if any(f"import {framework}\n" in block for _, block in sections(TORCH)[title]):
            need(framework)
    run_programs({PROGRAM.match(block)[1]: block for _, block in sections(TORCH)[title]}, tmp_path)
