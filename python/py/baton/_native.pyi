"""The native classes; see the docstrings of `baton` and `help(baton.Tensor)`."""

import concurrent.futures
import os
from collections.abc import Callable, Coroutine, Iterable, Sequence
from typing import Any, NoReturn, Self, TypeAlias, TypeVar, final, overload

from baton._functions import FunctionInfo, Namespace
from baton._native_tensors import Bundle, Handle, Tensor
from baton._provided import Functions

__all__ = [
    "Bundle", "Call", "Function", "Handle", "Message", "Parts", "Pending", "Provided", "Queue", "Reader", "Sending", "Session", "Tensor", "Topic",
    "Watch", "__version__", "allocate_on_gpus_in", "bundle_of", "check_function", "check_name", "current_call", "default_address",
    "dense", "empty", "end_calls", "end_lease", "finish_devices", "get_function", "hand_over", "lend", "list_functions", "move_storages",
    "of_lent", "open_bundle", "own_buffers", "own_thread", "provide", "put_together", "put_whole", "remove_function_everywhere", "set_default",
    "storage_in_place", "storages_over", "take_apart", "take_whole", "wait_any",
]  # fmt: skip

__version__: str

_Place: TypeAlias = tuple[str, str]
_Counts: TypeAlias = tuple[int, int, float | None, float | None]
_ListedProvider: TypeAlias = tuple[int, str, int, int, int, bool, int, _Counts]
_Waitable = TypeVar("_Waitable", Reader, Queue, Watch)

def finish_devices() -> None: ...
def own_thread() -> None: ...
def end_calls(yes: bool) -> None: ...
def default_address() -> str: ...
def check_function(name: str) -> None: ...
def check_name(name: str) -> None: ...
@overload
def wait_any(objects: Iterable[_Waitable], timeout: float | None = None) -> list[_Waitable]:
    """Waits until at least one of several readers, watches and queues is ready, and gives all that are, in their order:
    a call with a timeout of 0 would give something, or raise that it was closed. An empty list: the time is over.
    timeout: seconds to wait; None: no limit; 0: looks once. Raises InvalidArgument without objects.

    It takes nothing: what is not taken is ready the next time too, and another taker may be faster.
    """

@overload
def wait_any(objects: Iterable[Reader | Queue | Watch], timeout: float | None = None) -> list[Any]:  # type: ignore[overload-cannot-match]  # a list literal of several kinds is one of these
    """Waits until at least one of several readers, watches and queues is ready, and gives all that are, in their order:
    a call with a timeout of 0 would give something, or raise that it was closed. An empty list: the time is over.
    timeout: seconds to wait; None: no limit; 0: looks once. Raises InvalidArgument without objects.

    It takes nothing: what is not taken is ready the next time too, and another taker may be faster.
    """

def allocate_on_gpus_in(session: Session) -> None: ...
def set_default(session: Session) -> None: ...
def bundle_of(tensors: list[Tensor], names: list[str], tree: bytes, meta: bytes) -> Bundle: ...
def dense(x: Tensor) -> tuple[Tensor, bool] | None: ...
def own_buffers(buffers: list[Any]) -> list[Any]: ...
def storage_in_place(storage: Any) -> Tensor | None: ...
def storages_over(tensors: list[Tensor]) -> list[Any]: ...
def move_storages(storages: list[Any], seen: Any, anyway: bool) -> tuple[list[Tensor], list[tuple[Any, Any]]]: ...
def take_apart(value: Any, seen: Any) -> tuple[Any, list[Tensor], bytes, list[tuple[Any, Any]]] | None: ...
def take_whole(value: Any, seen: Any) -> tuple[Tensor, list[tuple[Any, Any]]] | None: ...
def put_whole(tensor: Tensor) -> Any: ...
def put_together(rest: Any, pieces: list[Tensor], records: bytes) -> Any: ...
def hand_over(x: Tensor) -> tuple[Any, tuple[str, _Place]]: ...
def lend(bundle: Bundle) -> list[str]: ...
def end_lease(session: Session, handles: list[str]) -> None: ...
def open_bundle(
    session: Session,
    handles: list[str],
    names: list[str],
    tree: bytes,
    meta: bytes,
    revision: int,
    live: bool,
) -> Bundle: ...
def of_lent(
    data: int, shape: Sequence[int], strides: Sequence[int], dtype: tuple[int, int, int], device: tuple[int, int]
) -> Tensor: ...
def empty(shape: Any, dtype: Any, timeout: float | None, pages: str | None, device: str | None) -> Tensor: ...
def get_function(session: Session, name: str, wait: float | None) -> Function: ...
def current_call() -> Call | None: ...
def list_functions(
    session: Session, pattern: str
) -> list[tuple[str, str, str, bool, bool, int, int, int, _Counts, list[_ListedProvider]]]: ...
def remove_function_everywhere(session: Session, name: str) -> int: ...
def provide(
    session: Session,
    name: str,
    description: str,
    concurrency: int,
    idempotent: bool,
    exclusive: bool,
    replace: bool,
    linger: float,
    another: Callable[[], bool] | None,
) -> Provided: ...

@final
class Message:
    """A message: its value, and its sender. Its tensors hold the memory on their own."""

    @property
    def value(self) -> Any:
        """What was sent, with the same structure."""
    @property
    def meta(self) -> Any:
        """What was sent along as meta; None when nothing was."""
    @property
    def sender(self) -> str:
        """The session that sent it."""
    @property
    def sequence(self) -> int:
        """Its number among its sender's messages, from 1."""
    @property
    def lost(self) -> int:
        """Messages that this reader missed before this one and that no earlier message reported: of its sender, and
        of senders that have left.
        """
    @property
    def time(self) -> float:
        """When it was sent: seconds of time.monotonic()."""
    def release(self) -> None:
        """Releases this message. Tensors and arrays taken from it keep their memory."""
    def __enter__(self) -> Self: ...
    def __exit__(self, *_exception: object) -> None: ...
    def __reduce__(self) -> NoReturn: ...
    def __getitem__(self, key: Any, /) -> Any: ...
    def __contains__(self, key: object, /) -> bool: ...

@final
class Topic:
    """A channel of messages with many senders and many readers."""

    @property
    def name(self) -> str:
        """Its name; "" of a private one."""
    def send(self, value: Any, meta: Any = None, timeout: float | None = None, *, stream: Any = None) -> None:
        """Hands a value to every reader; no tensor of Baton's is copied, arrays of others are copied once. Do not write
        the tensors afterwards: receivers read the same memory.

        meta: what JSON can hold, which goes along with the message. timeout: seconds to wait for room in a lossless
        topic, whose slowest reader is waited for; None: no limit; 0: does not wait. stream: after whose work tensors on
        a GPU are written (None: the legacy default one); their readers' streams wait for it. Raises Full, Closed,
        TypeError, InvalidArgument, OutOfMemory, QuotaExceeded.
        """
    def send_async(self, value: Any, meta: Any = None, timeout: float | None = None) -> Coroutine[Any, Any, None]:
        """`send` as a coroutine, which waits without a thread. timeout: seconds, as of `send`."""
    def _pack(self, value: Any) -> Bundle: ...
    def _offer(self, value: Bundle, meta: Any = None) -> bool: ...
    def _poll_fd(self) -> int: ...
    def _clear_poll_fd(self) -> None: ...
    def reader(self, start: str = "new", group: str | None = None) -> Reader:
        """Joins as a reader. start: "new" (what is sent from now on), "last" (the newest kept, then what follows) or
        "all" (what is kept). A reader of a lossless topic has what is sent after it, or its group, was made,
        whatever start says. group: of a lossless topic, shares the messages with the readers of that name. Raises
        Closed, InvalidArgument, TooMany.
        """
    def close(self) -> None:
        """Closes the topic for all processes, as the end of a `with` over it does: sends raise Closed, readers
        receive what is there. To leave the topic and keep it open for others, drop the object. What another sends at
        that moment may be received although the send fails, and not the other way round.
        """
    def __enter__(self) -> Self: ...
    def __exit__(self, *_exception: object) -> None:
        """Closes the topic for all processes, as `close` does."""
    def __reduce__(self) -> tuple[Any, tuple[str, str, _Place]]: ...

@final
class Reader:
    """Receives a topic's messages. Threads that share it take turns, each for as long as its own timeout."""

    def receive(self, timeout: float | None = None) -> Message:
        """The next message. timeout: seconds to wait for one; None: no limit; 0: does not wait. Raises Timeout;
        Closed when the topic was closed and everything was received, or the reader was closed, also by another
        thread meanwhile.
        """
    def receive_async(self, timeout: float | None = None) -> Coroutine[Any, Any, Message]:
        """`receive` as a coroutine, which waits without a thread. timeout: seconds, as of `receive`."""
    def _poll(self) -> Message | None: ...
    def _poll_fd(self) -> int: ...
    def _clear_poll_fd(self) -> None: ...
    def __aiter__(self) -> Self: ...
    def __anext__(self) -> Coroutine[Any, Any, Message]: ...
    def close(self) -> None:
        """Leaves the topic, which stays open for others: threads and tasks that receive by the reader raise Closed."""
    def __iter__(self) -> Self: ...
    def __next__(self) -> Message: ...
    def __reduce__(self) -> NoReturn: ...
    def __enter__(self) -> Self: ...
    def __exit__(self, *_exception: object) -> None: ...

@final
class Queue:
    """Gives each item to one taker; put waits while it is full."""

    @property
    def name(self) -> str:
        """Its name; "" of a private one."""
    @property
    def lost(self) -> int:
        """How many items this object has missed so far: their memory on a GPU had been lent by a process that ended
        before they were taken.
        """
    def put(self, value: Any, timeout: float | None = None, *, stream: Any = None) -> None:
        """Adds an item, whose tensors its taker may write: do not write them afterwards. No tensor of Baton's is
        copied, arrays of others are copied once.

        timeout: seconds to wait for room; None: no limit; 0: does not wait. stream: after whose work tensors on a GPU
        are written (None: the legacy default one). Raises Full, Closed, TypeError, InvalidArgument, OutOfMemory,
        QuotaExceeded.
        """
    def get(self, timeout: float | None = None) -> Any:
        """Takes an item; threads that take by one object take turns. timeout: seconds to wait for one; None: no
        limit; 0: does not wait. Raises Empty; Closed when the queue was closed and is empty.
        """
    def put_async(self, value: Any, timeout: float | None = None) -> Coroutine[Any, Any, None]:
        """`put` as a coroutine, which waits without a thread. timeout: seconds, as of `put`."""
    def get_async(self, timeout: float | None = None) -> Coroutine[Any, Any, Any]:
        """`get` as a coroutine, which waits without a thread. timeout: seconds, as of `get`."""
    def _put_ahead(self, value: Any, most: int, timeout: float | None = None) -> None: ...
    def _take(self) -> tuple[Any] | None: ...
    def _pack(self, value: Any) -> Bundle: ...
    def _offer(self, value: Bundle) -> bool: ...
    def _poll_fd(self) -> int: ...
    def _clear_poll_fd(self) -> None: ...
    def __aiter__(self) -> Self: ...
    def __anext__(self) -> Coroutine[Any, Any, Any]: ...
    def qsize(self) -> int:
        """How many items wait to be taken."""
    def close(self) -> None:
        """Closes the queue for all processes, as the end of a `with` over it does: puts raise Closed, takers get
        what is there. To leave the queue and keep it open for others, drop the object. What another puts at that
        moment may be taken although the put fails, and not the other way round.
        """
    def __iter__(self) -> Self: ...
    def __next__(self) -> Any: ...
    def __enter__(self) -> Self: ...
    def __exit__(self, *_exception: object) -> None:
        """Closes the queue for all processes, as `close` does."""
    def __reduce__(self) -> tuple[Any, tuple[str, str, _Place]]: ...

@final
class Watch:
    """Follows a name: the current revision at once, then always the newest. Threads that share it take turns."""

    def receive(self, timeout: float | None = None) -> Bundle:
        """The newest revision not seen yet. timeout: seconds to wait for one; None: no limit; 0: does not wait.
        Raises Timeout; Closed once the watch was closed, also by another thread meanwhile.
        """
    def receive_async(self, timeout: float | None = None) -> Coroutine[Any, Any, Bundle]:
        """`receive` as a coroutine, which waits without a thread. timeout: seconds, as of `receive`."""
    def _poll(self) -> Bundle | None: ...
    def _poll_fd(self) -> int: ...
    def _clear_poll_fd(self) -> None: ...
    def __aiter__(self) -> Self: ...
    def __anext__(self) -> Coroutine[Any, Any, Bundle]: ...
    def close(self) -> None:
        """Ends the watch: threads and tasks that receive by it raise Closed."""
    def __iter__(self) -> Self: ...
    def __next__(self) -> Bundle: ...
    def __reduce__(self) -> NoReturn: ...
    def __enter__(self) -> Self: ...
    def __exit__(self, *_exception: object) -> None: ...

@final
class Session:
    """A connection to the user's broker. `baton.connect` opens one with the same parameters, and says what they are.
    Any thread may use it. `close`, and the end of a `with`, ends it: what was sent is still received, and tensors
    keep their bytes until they are dropped.
    """

    def __new__(
        cls,
        address: str | None = None,
        namespace: str | None = None,
        start: bool = True,
        timeout: float | None = 30.0,
        name: str | None = None,
    ) -> Self: ...
    @property
    def address(self) -> str:
        """The broker's socket."""
    @property
    def serial(self) -> int:
        """The number by which listings name this session."""
    @property
    def namespace(self) -> str:
        """Where its names live."""
    @property
    def closed(self) -> bool:
        """Whether it was closed, is lost, or came into this process by a fork that the C library did not make."""
    def reopen(self) -> Session:
        """Opens another session with the settings of this one, which stays as it is, for a program that goes on
        after SessionLost. Tensors of the old one can be read and copied. Errors as of `baton.connect`.
        """
    def _say_lost(self) -> None: ...
    def _check_lost(self) -> None: ...
    def empty(
        self,
        shape: Any,
        dtype: Any = None,
        *,
        timeout: float | None = 0.0,
        pages: str | None = None,
        device: str | None = None,
    ) -> Tensor:
        """A tensor to fill, aligned to 256 bytes; its content is whatever was there before. timeout: how many
        seconds to wait for memory if it is full, None for no limit. pages: "2M" or "1G", to lie in huge pages that
        the machine has reserved. Raises OutOfMemory, QuotaExceeded, InvalidArgument. device: "cuda:0" as this
        process counts, or "cuda:GPU-…"; raises Unsupported without a driver, NotFound for a GPU that is not there.
        """
    def zeros(
        self,
        shape: Any,
        dtype: Any = None,
        *,
        timeout: float | None = 0.0,
        pages: str | None = None,
        device: str | None = None,
        stream: Any = None,
    ) -> Tensor:
        """A tensor of zeros. Errors and timeout as of `empty`; on a GPU they are written by a stream, and not waited
        for.
        """
    def full(
        self,
        shape: Any,
        value: Any,
        dtype: Any = None,
        *,
        timeout: float | None = 0.0,
        pages: str | None = None,
        device: str | None = None,
        stream: Any = None,
    ) -> Tensor:
        """A tensor of one value; without a dtype that of the value: bool, int64, float64, complex128. Errors,
        timeout, pages and device as of `zeros`.
        """
    def empty_like(self, a: Any, *, timeout: float | None = 0.0, pages: str | None = None) -> Any:
        """Room for C-contiguous tensors like those of an array (a Tensor) or of a nested structure (a Bundle, in one
        storage), with whatever was there before. timeout, pages and errors as of `empty`.
        """
    def share(self, a: Any, copy: bool | None = None, *, device: str | None = None, stream: Any = None) -> Any:
        """Copies an array (anything with __dlpack__ or a buffer) once into shared memory: a Tensor. Of a nested
        structure all arrays, into one storage: a Bundle. What lies in this session's already is referenced, a tensor
        of another session is copied; copy=True copies all, copy=False refuses what must be copied (InvalidArgument).
        Raises TypeError for what is no array, OutOfMemory. device: copies one array to that device, by a stream. An
        array on a GPU stays on it.
        """
    def bundle(self, value: Any) -> Bundle:
        """A bundle of tensors as they are; arrays in the value are copied into shared memory."""
    def load(self, path: str | os.PathLike[str]) -> Any:
        """The tensor of a .npy, the bundle of a .npz or .safetensors: the file mapped, read-only."""
    def map_file(self, path: str | os.PathLike[str]) -> Tensor:
        """The bytes of a file as a read-only tensor of uint8: mapped and not read. Sending it copies it. A file that
        is cut short meanwhile ends its readers by SIGBUS: replace files by renaming.
        """
    def topic(
        self,
        name: str | None = None,
        *,
        depth: int | None = None,
        overwrite: bool | None = None,
        description: int | None = None,
        linger: float | None = None,
        create: bool = True,
    ) -> Topic:
        """Opens or makes a topic. Each reader sees every message; the last `depth` of each sender are kept.
        overwrite=False: lossless. Options left out take what exists. Options and errors are those of `baton.topic`.
        """
    def queue(
        self,
        name: str | None = None,
        *,
        depth: int | None = None,
        redeliver: bool | None = None,
        description: int | None = None,
        linger: float | None = None,
        create: bool = True,
    ) -> Queue:
        """Opens or makes a queue. At most `depth` items of each sender wait in it. redeliver=True: an item whose
        taker dies before releasing it goes to another. Options and errors are those of `baton.queue`.
        """
    def _private_topic(self, token: str) -> Topic: ...
    def _private_queue(self, token: str) -> Queue: ...
    def set(self, name: str, value: Any, *, live: bool = False, ephemeral: bool = False, meta: Any = None) -> int:
        """Publishes a revision of a name and returns its number. live=True: one bundle that every holder may write
        in place. ephemeral=True: deleted at the end of this session. meta: what JSON can hold, for the bundle's
        readers.
        """
    def get(self, name: str, timeout: float | None = 0.0) -> Bundle:
        """The newest revision of a name. timeout: seconds to wait for one; None: no limit. Raises NotFound,
        InvalidArgument.
        """
    def watch(self, name: str) -> Watch:
        """Follows a name: the current revision at once, then always the newest."""
    def names(self, pattern: str = "") -> list[str]:
        """The names that are set; in a pattern * stands for any run of characters."""
    def delete(self, name: str) -> None:
        """Removes a name; what was got of it stays. Raises NotFound."""
    def open(self, handle: Handle | str, readonly: bool = False, timeout: float | None = 30.0) -> Tensor:
        """The tensor of a handle (or of its JSON), writable if the handle is. timeout: how many seconds the bytes of
        a handle of another host may take to be here; None: no limit. Raises Expired, InvalidHandle; for handles of
        other hosts also Unreachable, HostLost, Unsupported, OutOfMemory.
        """
    def call(self, function_name: str, /, *args: Any, **named: Any) -> Any:
        """Calls a function and waits for what it returns. All keywords are the function's. Errors as of
        `baton.call`.
        """
    def get_function(self, name: str, *, version: str | None = None, wait: float | None = None) -> Function:
        """A function that processes provide, to be called. wait: how many seconds to wait for it, and for a
        provider. Raises NotFound, NoProvider.
        """
    def functions(self, pattern: str = "") -> list[FunctionInfo]:
        """The functions that are registered; in the pattern * stands for any run of characters."""
    def bind(self, prefix: str) -> Namespace:
        """The functions under a name as attributes."""
    def start_functions(self, *functions: Callable[..., Any] | str) -> Functions:
        """Provides functions in this session, in threads, until what it returns is closed. functions: names or
        functions, default all that `baton.function` has named and this session does not provide yet. Raises
        Conflict, PermissionDenied.
        """
    def serve_functions(self, *functions: Callable[..., Any] | str) -> None:
        """As `start_functions`, until the process is interrupted, or none is provided any more. Raises SessionLost."""
    def remove_function(self, name: str, *, version: str | None = None, everywhere: bool = False) -> int:
        """Has this session provide a function no more; everywhere=True: all sessions. How many providers ended.
        Raises NotFound, PermissionDenied.
        """
    def stats(self) -> dict[str, int]:
        """What this session has and did, in numbers: granted, live, warm, recycled, handovers; and, if the broker
        answers within a second, of pickles of all its sessions: pickles_unread, pickles_oldest, pickles_may_go,
        pickles_given_up. `baton.stats` says what each is.
        """
    def collect(self) -> int:
        """Gives empty memory back to the broker; the bytes given back."""
    def __reduce__(self) -> tuple[Any, _Place]: ...
    def close(self) -> None:
        """Ends the session; tensors keep their bytes until they are dropped. Threads that wait in it raise Closed.
        It takes two seconds at most while no broker answers.
        """
    def __enter__(self) -> Self: ...
    def __exit__(self, *_exception: object) -> None: ...

@final
class Function:
    """A function that processes provide, or one that came as an argument: call it. The keywords of a call are all
    the function's.
    """

    @property
    def name(self) -> str:
        """Its name, with its version."""
    @property
    def doc(self) -> str:
        """What it does, as its provider says."""
    @property
    def signature(self) -> str:
        """What it takes and gives, as its provider says."""
    @property
    def providers(self) -> int:
        """How many sessions provide it now."""
    def __call__(self, *args: Any, **named: Any) -> Any: ...
    def submit(self, *args: Any, **named: Any) -> concurrent.futures.Future[Any]:
        """Calls it: a `concurrent.futures.Future` of what it returns. Cancelling that cancels the call."""
    def acall(self, *args: Any, **named: Any) -> Coroutine[Any, Any, Any]:
        """Calls it, as a coroutine, which waits without a thread."""
    def stream(self, *args: Any, **named: Any) -> Parts:
        """Calls a function that gives parts, one after the other: an iterator of them. Left before its end the call
        is cancelled; its `result()` is what the function has returned. Raises InvalidArgument for a function without
        parts.
        """
    def astream(self, *args: Any, **named: Any) -> Parts:
        """As `stream`, for `async for`: it waits without a thread. If it has to wait for room or for a provider, it
        is sent as its first part is waited for.
        """
    def options(self, *, timeout: float | None = None, wait: float | None = None, ahead: int | None = None) -> Function:
        """The same function. timeout: how many seconds its calls take at most. wait: how long they wait for a
        provider if there is none. ahead: how many parts a stream may be ahead of what is taken of it, 1 to 63
        (default 16).
        """
    def __reduce__(self) -> NoReturn: ...
    def _sending(
        self, args: tuple[Any, ...], named: dict[str, Any], start: Callable[[Callable[..., Any], Call], None]
    ) -> Sending: ...

@final
class Parts:
    """The parts of a call, one after the other, for `for` and for `async for`. Left before its end, or closed, the
    call is cancelled.
    """

    def __iter__(self) -> Self: ...
    def __next__(self) -> Any: ...
    def __aiter__(self) -> Self: ...
    def __anext__(self) -> Coroutine[Any, Any, Any]: ...
    def result(self) -> Any:
        """What the function has returned at its end. Parts that were not taken are let go."""
    def close(self) -> None:
        """Wants no more parts: the call is cancelled, unless it is over."""
    def __enter__(self) -> Self: ...
    def __exit__(self, *_exception: object) -> None: ...
    def __reduce__(self) -> NoReturn: ...
    @property
    def _sending(self) -> Sending | None: ...
    def _poll(self) -> tuple[Any, ...] | None: ...
    def _left(self) -> float | None: ...
    def _poll_fd(self) -> int: ...
    def _clear_poll_fd(self) -> None: ...

@final
class Pending:
    def _poll(self) -> tuple[Any] | None: ...
    def _wait(self) -> tuple[Any]: ...
    def _cancel(self) -> None: ...
    def _left(self) -> float | None: ...
    def _poll_fd(self) -> int: ...
    def _clear_poll_fd(self) -> None: ...

@final
class Sending:
    @property
    def _topic(self) -> int | None: ...
    @property
    def _is_sent(self) -> bool: ...
    def _ready(self) -> bool: ...
    def _try(self) -> bool: ...
    def _wait(self) -> None: ...
    def _pending(self) -> Pending: ...
    def _cancel(self) -> None: ...
    def _left(self) -> float | None: ...
    def _poll_fd(self) -> int: ...
    def _clear_poll_fd(self) -> None: ...

@final
class Provided:
    @property
    def name(self) -> str: ...
    @property
    def current(self) -> bool: ...
    @property
    def running(self) -> int: ...
    def _work(self, code: list[Callable[..., Any]], parts: bool = False) -> None: ...
    def _take(self) -> Call | None: ...
    def _close(self) -> None: ...
    def _poll_fd(self) -> int: ...
    def _clear_poll_fd(self) -> None: ...

@final
class Call:
    """The call that a function runs for."""

    @property
    def cancelled(self) -> bool:
        """Whether the caller wants it no more, or has gone, its deadline has passed, or the session that provides
        the function is over.
        """
    @property
    def deadline(self) -> float | None:
        """Until when the caller waits, by `time.monotonic()`; None: without a limit."""
    @property
    def attempt(self) -> int:
        """How often the call was begun, this time included."""
    @property
    def caller(self) -> str:
        """The name of the session that calls."""
    def __reduce__(self) -> NoReturn: ...
    def _arguments(self) -> tuple[tuple[Any, ...], dict[str, Any] | None]: ...
    def _part(self, value: Any) -> bool: ...
    def _retry(self) -> bool | None: ...
    def _regain(self) -> bool | None: ...
    def _forget(self) -> None: ...
    def _reply(self, value: Any) -> None: ...
    def _fail(self, e: BaseException) -> None: ...
