"""What Baton raises: a class for each code of the protocol, all below `Error`.

The text says what happened, to what, and what to do next. Match by class, or by `code`, which is the
same in every language; `remedy` and `detail` (figures by name) are there for programs.
"""

import queue
import sys
from collections.abc import Callable
from typing import Any, ClassVar


class Error(Exception):
    """The base of all errors of Baton."""

    code: str = ""
    remedy: str = ""
    detail: ClassVar[dict[str, object]] = {}

    def __str__(self) -> str:  # KeyError would quote the text
        return str(self.args[0]) if self.args else type(self).__name__


class NoBroker(Error, ConnectionError):
    """No broker answers at the address."""


class BrokerLost(Error, ConnectionError):
    """The broker was there and has gone."""


class VersionError(Error):
    """Broker and client have another protocol or layout."""


class ProtocolError(Error):
    """The other side wrote what is not of this protocol."""


class Unsupported(Error, NotImplementedError):
    """An unknown feature or device."""


class PermissionDenied(Error, PermissionError):
    """The socket, file or memory may not be used."""


class OutOfMemory(Error, MemoryError):
    """The machine, the container or the broker's limit is full."""


class QuotaExceeded(Error):
    """The quota of the session or of all together is used up."""


class TooMany(Error):
    """A table is full: sessions, topics, lanes, chunks, references."""


class InvalidArgument(Error, ValueError):
    """A shape, dtype, name or option that cannot be."""


class InvalidHandle(Error, ValueError):
    """A handle that is malformed, outside its segment, or of another broker that this one does not reach."""


class Expired(Error):
    """The memory has been recycled."""


class Closed(Error):
    """The session, topic, queue or tensor is closed."""


class Conflict(Error):
    """An option differs from what exists."""


class NotFound(Error, KeyError):
    """Nothing has that name."""


class Timeout(Error, TimeoutError):
    """Time ran out."""


class Empty(Timeout, queue.Empty):
    """Time ran out and the queue has no item."""


class Full(Timeout, queue.Full):
    """Time ran out and there is no room."""


class ReadOnly(Error, BufferError):
    """The memory must not be written."""


class Busy(Error):
    """It is not possible now; try again."""


class InternalError(Error):
    """A mistake in Baton."""


class SessionLost(Error, ConnectionError):
    """The broker said that the session is over. Tensors of it can still be read and copied."""


class Unreachable(Error, ConnectionError):
    """Nothing is known of another host now: the link to it is down, or it does not answer."""


class HostLost(Error, ConnectionError):
    """The host that has the bytes is gone."""


class NoProvider(Error):
    """No process provides the function."""


class ProviderDied(Error):
    """The process that ran the function has ended without a reply."""

    @property
    def pid(self) -> int | None:
        """The process."""
        pid = self.detail.get("pid")
        return pid if isinstance(pid, int) and pid else None

    @property
    def provider(self) -> str | None:
        """The session that ran it; None if that is not known."""
        return str(self.detail.get("provider", "")) or None

    @property
    def reason(self) -> str:
        """How it ended, as far as that is known."""
        return str(self.detail.get("reason", ""))

    @property
    def signal(self) -> int | None:
        """The signal that ended the process; None if it exited, or the system does not tell."""
        signal = self.detail.get("signal")
        return signal if isinstance(signal, int) else None

    @property
    def status(self) -> int | None:
        """What the process exited with; None if a signal ended it, or the system does not tell."""
        status = self.detail.get("status")
        return status if isinstance(status, int) else None

    @property
    def seconds(self) -> float | None:
        """For how long the function had run for the call; None if that is not known."""
        seconds = self.detail.get("seconds")
        return float(seconds) if isinstance(seconds, int | float) else None


class Cancelled(Error):
    """The call is wanted no more."""


class RemoteError(Error):
    """The function itself failed, with an error of a type that is not raised here as itself.

    type is its name where the function is written, message and trace are its texts, provider is the session that ran it,
    and cause the error that led to it, if one did.
    """

    @property
    def type(self) -> str:
        """The name of the error's type, as `ValueError`."""
        return str(self.detail.get("kind", ""))

    @property
    def message(self) -> str:
        """What the error says."""
        return str(self.detail.get("message", ""))

    @property
    def trace(self) -> str:
        """Where it happened, in the form of the function's language."""
        return str(self.detail.get("trace", ""))

    @property
    def provider(self) -> str:
        """The session that ran the function."""
        return str(self.detail.get("provider", ""))

    @property
    def cause(self) -> "RemoteError | None":
        """The error that led to it."""
        cause = self.detail.get("cause")
        if not isinstance(cause, dict):
            return None
        e = RemoteError(": ".join(filter(None, [cause.get("kind"), cause.get("message")])))
        e.detail = {**cause, "provider": self.provider}  # type: ignore[misc]
        return e


BY_CODE: dict[str, type[Error]] = {
    "NoBroker": NoBroker,
    "BrokerLost": BrokerLost,
    "Version": VersionError,
    "Protocol": ProtocolError,
    "Unsupported": Unsupported,
    "PermissionDenied": PermissionDenied,
    "OutOfMemory": OutOfMemory,
    "QuotaExceeded": QuotaExceeded,
    "TooMany": TooMany,
    "InvalidArgument": InvalidArgument,
    "InvalidHandle": InvalidHandle,
    "Expired": Expired,
    "Closed": Closed,
    "Conflict": Conflict,
    "NotFound": NotFound,
    "Timeout": Timeout,
    "Empty": Empty,
    "Full": Full,
    "ReadOnly": ReadOnly,
    "Busy": Busy,
    "Internal": InternalError,
    "NoProvider": NoProvider,
    "ProviderDied": ProviderDied,
    "Cancelled": Cancelled,
    "Remote": RemoteError,
    "Unreachable": Unreachable,
    "HostLost": HostLost,
    "SessionLost": SessionLost,
}
for _code, _class in BY_CODE.items():
    _class.code = _code
    _class.__module__ = "baton"
Error.__module__ = "baton"

# Errors of functions that are raised at the caller as what they are: their text is all that they carry.
_ALIKE: dict[str, type[BaseException]] = {
    c.__name__: c
    for c in (
        ArithmeticError,
        AssertionError,
        AttributeError,
        BlockingIOError,
        BrokenPipeError,
        BufferError,
        ChildProcessError,
        ConnectionAbortedError,
        ConnectionError,
        ConnectionRefusedError,
        ConnectionResetError,
        EOFError,
        Exception,
        FileExistsError,
        FileNotFoundError,
        FloatingPointError,
        ImportError,
        IndexError,
        InterruptedError,
        IsADirectoryError,
        KeyError,
        LookupError,
        MemoryError,
        ModuleNotFoundError,
        NameError,
        NotADirectoryError,
        NotImplementedError,
        OSError,
        OverflowError,
        PermissionError,
        ProcessLookupError,
        RecursionError,
        ReferenceError,
        RuntimeError,
        TimeoutError,
        TypeError,
        UnboundLocalError,
        ValueError,
        ZeroDivisionError,
    )
}
_registered: dict[str, type[BaseException]] = {}
_MOST_TEXT = 64 << 10  # of a text of an error: a longer one says no more
_MOST_CAUSES = 16


def register_error(kind: str, cls: type[BaseException]) -> None:
    """Names a class of errors, which are raised as such at callers that have registered it too.

    kind is the name in all languages. Of the error its text is sent, with which the class is called. Raises Conflict
    if the name is another class's, or a builtin's, InvalidArgument if it is empty.

    >>> class OutOfStock(Exception):
    ...     pass
    >>> baton.register_error("shop.OutOfStock", OutOfStock)
    >>> @baton.function("doc/order")
    ... def order(thing: str):
    ...     raise OutOfStock(thing)
    >>> with baton.start_functions(order):
    ...     baton.call("doc/order", "pens")
    Traceback (most recent call last):
    OutOfStock: pens
    """
    if not isinstance(cls, type) or not issubclass(cls, BaseException):
        raise TypeError(f"{cls!r} is no class of exceptions")
    if not kind:
        raise InvalidArgument("the kind of an error is empty (use a name of your own, as shop.OutOfStock)")
    if kind in _ALIKE or kind.startswith("baton.") or _registered.get(kind, cls) is not cls:
        raise Conflict(f"the kind of errors {kind} has another class (choose another name)")
    _registered[kind] = cls
    for register in _also:
        register(kind, cls)


# What else names classes of errors, as other libraries that carry them.
_also: list[Callable[[str, type[BaseException]], None]] = []


def also_register(register: Callable[[str, type[BaseException]], None]) -> None:
    """Names all classes of errors by something else, too: now, and as more are registered."""
    for kind, cls in {**_ALIKE, "KeyboardInterrupt": KeyboardInterrupt, **_registered}.items():
        register(kind, cls)
    for code, error in BY_CODE.items():
        register(f"baton.{code}", error)
    _also.append(register)


def kind_of(e: BaseException) -> str:
    """The name by which callers in any language know what an exception is."""
    if isinstance(e, RemoteError) and e.type:
        return e.type
    for kind, cls in _registered.items():
        if type(e) is cls:
            return kind
    if isinstance(e, Error):
        return f"baton.{e.code or 'Error'}"
    cls = type(e)
    return cls.__qualname__ if cls.__module__ == "builtins" else f"{cls.__module__}.{cls.__qualname__}"


def _text(e: BaseException) -> str:
    if isinstance(e, RemoteError) and e.message:
        return e.message
    if isinstance(e, KeyError) and len(e.args) == 1 and isinstance(e.args[0], str):
        return e.args[0]  # without quotes, which its class adds
    try:
        return str(e)
    except Exception as other:  # noqa: BLE001 - whatever the program's class raises
        return f"a text that raised {type(other).__name__}"


def _printable(text: str) -> str:
    if len(text) > _MOST_TEXT:
        text = text[:_MOST_TEXT] + "…"
    return text.encode(errors="replace").decode()


def _message(e: BaseException) -> str:
    """What an exception says; of a group the reasons too, which its own text leaves out."""
    text = _text(e)
    if isinstance(e, BaseExceptionGroup) and not isinstance(e, Error):
        text += ": " + "; ".join(f"{kind_of(one)}: {_text(one)}" for one in _single(e, _MOST_CAUSES))
    return text


def _single(group: "BaseExceptionGroup[Any]", most: int) -> list[BaseException]:
    """The first exceptions of a group that are none themselves."""
    found: list[BaseException] = []
    left: list[BaseException] = [group]
    while left and len(found) < most:
        e = left.pop()
        if isinstance(e, BaseExceptionGroup):
            left += e.exceptions[most - 1 :: -1]
        else:
            found.append(e)
    return found


def _trace(formatted: Any, chain: bool) -> str:
    """As Python prints it. Of one that is too long both ends are kept, which tell the first cause and the error."""
    text = "".join(formatted.format(chain=chain))
    if len(text) > _MOST_TEXT:
        text = text[: _MOST_TEXT // 2] + "\n…\n" + text[-_MOST_TEXT // 2 :]
    return text.encode(errors="replace").decode()


def _texts(e: BaseException, formatted: Any, most: int) -> dict[str, Any]:
    """What a caller learns. Its trace has its causes, and theirs are their own alone."""
    told: dict[str, Any] = {"kind": _printable(kind_of(e)), "message": _printable(_message(e))}
    told["trace"] = _trace(formatted, most == _MOST_CAUSES) if formatted is not None else ""
    by = "__cause__" if e.__cause__ is not None or e.__suppress_context__ else "__context__"
    cause = getattr(e, by)
    if cause is not None and most > 0:
        told["cause"] = _texts(cause, getattr(formatted, by, None), most - 1)
    return told


def told(e: BaseException) -> tuple[str, str, str, str | None]:
    """What a caller learns about an exception of a function: kind, message, trace, and the JSON of its cause."""
    asyncio = sys.modules.get("asyncio")  # it takes long to import, and without it there are no tasks
    if asyncio is not None and isinstance(e, asyncio.CancelledError):
        return "baton.Cancelled", _printable(_text(e)), "", None
    import json
    import traceback  # with what it imports, slow beside this package

    texts = _texts(e, traceback.TracebackException.from_exception(e), _MOST_CAUSES)
    cause = texts.get("cause")
    return texts["kind"], texts["message"], texts["trace"], json.dumps(cause) if cause else None


def _note(e: RemoteError) -> str:
    """What Python prints behind the error of a function: where it happened, and what led to it."""
    parts = [e.trace.rstrip()] if e.trace else []
    cause, left = e.cause, _MOST_CAUSES
    while cause is not None and left > 0:
        if (cause.message or cause.type) not in e.trace:  # Python's own trace has them
            parts.append(f"Caused by {cause}\n{cause.trace}".rstrip())
        cause, left = cause.cause, left - 1
    return "\n".join([f"In {e.provider}:", *parts]) if parts else ""


def raised_for(e: RemoteError) -> BaseException:
    """What is raised for the error of a function: one of its own type, caused by it, or it itself."""
    note = _note(e)
    cls = _registered.get(e.type) or _ALIKE.get(e.type)
    made: BaseException | None = None
    if cls is not None:
        try:
            made = cls(e.message)
        except Exception:  # noqa: BLE001 - of a class that is made otherwise
            made = None
    if made is None:
        made = e
    else:
        made.__cause__ = e
    if note:
        made.add_note(note)
    return made
