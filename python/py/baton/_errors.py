"""What Baton raises: a class for each code of the protocol, all below `Error`.

The text says what happened, to what, and what to do next. Match by class, or by `code`, which is the
same in every language; `remedy` and `detail` (figures by name) are there for programs.
"""

import queue
from typing import ClassVar


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
    """A handle that is malformed, another machine's, or outside its segment."""


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
    """It is still held."""


class InternalError(Error):
    """A mistake in Baton."""


class SessionLost(Error, ConnectionError):
    """The broker said that the session is over. Tensors of it can still be read and copied."""


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
    "SessionLost": SessionLost,
}
for _code, _class in BY_CODE.items():
    _class.code = _code
    _class.__module__ = "baton"
Error.__module__ = "baton"
