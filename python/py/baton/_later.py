"""What is to be done when a module is imported, now where it is already."""

import importlib.machinery
import importlib.util
import sys
import threading
from collections.abc import Callable, Sequence
from types import ModuleType
from typing import Any

Then = Callable[[ModuleType], object]


def when_imported(names: Sequence[str], then: Then) -> None:
    """Calls a function with each of the modules, once it has been executed."""
    for name in names:
        if name in sys.modules:
            then(sys.modules[name])
    sys.meta_path.insert(0, _Finder([n for n in names if n not in sys.modules], then))


class _Finder:
    """A finder of sys.meta_path by its method alone: importlib.abc would take as long to import as all of this
    package."""

    def __init__(self, names: Sequence[str], then: Then) -> None:
        self.names, self.then = set(names), then
        self.looking: set[tuple[int, str]] = set()  # by thread

    def find_spec(
        self, name: str, path: Any, target: ModuleType | None = None
    ) -> importlib.machinery.ModuleSpec | None:
        this = threading.get_ident(), name
        if name not in self.names or this in self.looking:
            return None
        self.looking.add(this)
        try:
            spec = importlib.util.find_spec(name)  # as if this finder were not there
        finally:
            self.looking.discard(this)
        if spec is None or spec.loader is None:
            return spec
        loader, execute = spec.loader, spec.loader.exec_module

        def executed(module: ModuleType) -> None:
            execute(module)
            if name in self.names:  # a look-up alone executes nothing
                self.names.discard(name)
                self.then(module)

        loader.exec_module = executed  # type: ignore[method-assign]
        return spec
