//! The class of functions. Its methods stand in `face`.

use pyo3::prelude::*;

/// A function that processes provide, or one that came as an argument: call it. The keywords of a call are all the
/// function's.
///
/// >>> @baton.function("doc/twice")
/// ... def twice(x: int) -> int:
/// ...     "Doubles."
/// ...     return 2 * x
/// >>> with baton.start_functions(twice):
/// ...     f = baton.get_function("doc/twice")
/// ...     f.name, f.signature, f.doc, f.providers
/// ...     f(3), f.submit(4).result(), asyncio.run(f.acall(5)), f.options(timeout=60, wait=5)(6)
/// ('doc/twice', '(x: int) -> int', 'Doubles.', 1)
/// (6, 8, 10, 12)
/// >>> @baton.function("doc/count")
/// ... def count(n: int):
/// ...     yield from range(n)
/// >>> async def taken(parts):
/// ...     return [part async for part in parts]
/// >>> with baton.start_functions(count):
/// ...     f = baton.get_function("doc/count")
/// ...     list(f.stream(3)), asyncio.run(taken(f.astream(2)))
/// ([0, 1, 2], [0, 1])
#[pyclass(frozen, module = "baton", weakref)]
pub(crate) struct Function {
    pub(crate) function: baton::Function,
    pub(crate) session: baton::Session,
}
