//! Finding the broker, and starting the user's when none runs (docs/protocol.md, section 1).

use std::ffi::OsString;
use std::io::{self, ErrorKind, Read, Seek, SeekFrom};
use std::os::fd::OwnedFd;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitStatus};
use std::time::{Duration, Instant};

use super::Options;
use super::state_file::{State, owner};
use crate::error::{Code, Error, Result, interrupted};
use crate::sys::{self, Lock};
use crate::wire::NO_DESCRIPTORS;

/// sun_path less its final zero.
const MOST_PATH: usize = 107;
pub(super) const TICK: Duration = Duration::from_millis(10);
const LATEST: Duration = Duration::from_millis(100);
/// How often it is looked again whether a broker may be started.
const ASK_AGAIN: Duration = Duration::from_secs(1);

/// Where this user's broker keeps its socket and small files.
fn runtime_dir(env: &dyn Fn(&str) -> Option<OsString>) -> PathBuf {
    match env("XDG_RUNTIME_DIR").map(PathBuf::from) {
        Some(dir) if dir.is_absolute() => dir.join("baton"),
        _ => PathBuf::from(format!("/tmp/baton-{}", rustix::process::geteuid().as_raw())),
    }
}

/// The socket of this user's broker where nothing names another one.
pub(super) fn usual_socket() -> String {
    runtime_dir(&environment).join("broker.sock").to_string_lossy().into_owned()
}

/// The socket of an address, and whether it was given: then a broker is awaited there and never
/// started.
fn resolve(address: Option<&str>, env: &dyn Fn(&str) -> Option<OsString>) -> Result<(PathBuf, bool)> {
    let named = address
        .map(str::to_owned)
        .or_else(|| env("BATON_ADDRESS").map(|s| s.to_string_lossy().into_owned()))
        .filter(|s| !s.is_empty());
    let socket = match &named {
        None => runtime_dir(env).join("broker.sock"),
        Some(text) => {
            let path = text.strip_prefix("unix:").unwrap_or(text);
            let path = path.strip_prefix("//").unwrap_or(path);
            if !path.starts_with('/') {
                let what = format!("address {text:?} is not an absolute path");
                return Err(Error::new(Code::InvalidArgument, "use unix:/path or /path", what));
            }
            PathBuf::from(path)
        }
    };
    let n = socket.as_os_str().len();
    if n > MOST_PATH {
        return Err(Error::new(
            Code::InvalidArgument,
            "use a shorter directory, or set BATON_ADDRESS",
            format!("socket path of {n} bytes is longer than {MOST_PATH}: {}", socket.display()),
        ));
    }
    Ok((socket, named.is_some()))
}

/// The socket of an address, or of the default one, and whether it was named.
pub(crate) fn address_of(address: Option<&str>) -> Result<(String, bool)> {
    let (socket, named) = resolve(address, &environment)?;
    Ok((socket.to_string_lossy().into_owned(), named))
}

fn environment(name: &str) -> Option<OsString> {
    std::env::var_os(name)
}

/// Connects to the broker's socket, starting the user's broker when there is none and that is
/// allowed, and waiting for one otherwise.
pub(crate) fn dial(o: &Options, until: Option<Instant>) -> Result<OwnedFd> {
    let socket = Path::new(&o.socket);
    let (mut asked, mut pause) = (None::<Instant>, TICK);
    loop {
        let attempt = Instant::now() + LATEST;
        match dial_once(socket, until.map_or(attempt, |u| u.min(attempt)))? {
            Found::Broker(fd) => return Ok(fd),
            Found::Full if is_over(until) => return Err(silent(socket)),
            Found::Full => {
                give_way(o)?; // the attempt has waited
                continue;
            }
            Found::Nothing => {}
        }
        if !o.named && !o.start {
            return Err(no_broker(socket, NOT_LISTENING));
        }
        if !o.named && asked.is_none_or(|at| at.elapsed() >= ASK_AGAIN) {
            asked = match start(o, socket, until)? {
                Start::Listens => continue,
                Start::Awaited => Some(Instant::now()),
                Start::Occupied => None,
            };
        }
        if is_over(until) {
            return Err(if asked.is_some() { not_ours(socket) } else { no_broker(socket, NOT_LISTENING) });
        }
        wait(o, &mut pause)?;
    }
}

/// Waits before the broker is looked for once more, each time longer.
pub(super) fn wait(o: &Options, pause: &mut Duration) -> Result<()> {
    give_way(o)?;
    std::thread::sleep(*pause);
    *pause = (2 * *pause).min(LATEST);
    Ok(())
}

fn is_over(until: Option<Instant>) -> bool {
    until.is_some_and(|u| Instant::now() >= u)
}

const NOT_LISTENING: &str = "nothing listens";

/// The error of a socket where no broker is reached. Where one lives that cannot be reached there, another
/// one would be refused.
fn no_broker(socket: &Path, why: impl std::fmt::Display) -> Error {
    if let Some(pid) = owner_at(socket) {
        let remedy = format!(
            "let it go on if it is suspended (kill -CONT {pid}): it binds its socket again within seconds; else end it (kill -TERM {pid}): the next broker takes over what clients have mapped, and with --memory-dir everything"
        );
        let what = format!(
            "no broker answers at {}, and the one of that place, process {pid}, lives: it is starting or ending, or its socket was removed",
            socket.display()
        );
        return Error::new(Code::NoBroker, remedy, what).with("pid", pid);
    }
    Error::new(
        Code::NoBroker,
        "start one with `baton serve`, or set BATON_ADDRESS",
        format!("no broker answers at {}: {why}", socket.display()),
    )
}

/// The next broker is an operator's to start.
fn not_ours(socket: &Path) -> Error {
    let at = socket.display();
    let what =
        format!("no broker answers at {at}: an operator started the last one, and programs still have sessions of it");
    Error::new(Code::NoBroker, "start that broker again with its settings: its unit, or `baton serve` as before", what)
}

/// The error of a broker that listens and takes no connection.
fn silent(socket: &Path) -> Error {
    let process = owner_at(socket).map(|pid| format!(" (pid {pid})")).unwrap_or_default();
    let what = format!("the broker at {}{process} does not answer", socket.display());
    Error::new(Code::Timeout, "wait longer, or look whether its process is suspended", what)
}

/// The process of the broker that has a socket's directory.
fn owner_at(socket: &Path) -> Option<i32> {
    owner(socket.parent()?, socket)
}

/// Why a connection could not be made.
pub(crate) fn unreachable_at(socket: &Path, e: &io::Error) -> Error {
    match e.kind() {
        _ if sys::is_no_descriptors(e) => {
            Error::new(Code::TooMany, NO_DESCRIPTORS, format!("connect to the broker: {e}"))
        }
        ErrorKind::WouldBlock => silent(socket),
        ErrorKind::NotFound | ErrorKind::ConnectionRefused => no_broker(socket, NOT_LISTENING),
        ErrorKind::PermissionDenied => Error::new(
            Code::PermissionDenied,
            "run this as the broker's user, or ask its owner for --shared with --allow-uid or --allow-group: a socket that admits its user alone keeps others out whatever else is set",
            format!("the broker's socket {} may not be used: {e}", socket.display()),
        ),
        _ => no_broker(socket, e),
    }
}

/// Ends a wait at a signal, where the program wants that.
fn give_way(o: &Options) -> Result<()> {
    if o.interrupted.is_some_and(|look| look()) { Err(interrupted()) } else { Ok(()) }
}

/// What there is at a broker's socket.
enum Found {
    Broker(OwnedFd),
    /// A process listens and took no connection in the time: the queue is full.
    Full,
    /// Nothing listens (yet).
    Nothing,
}

fn dial_once(socket: &Path, until: Instant) -> Result<Found> {
    match sys::connect(socket, Some(until)) {
        Ok(fd) => Ok(Found::Broker(fd)),
        Err(e) if matches!(e.kind(), ErrorKind::NotFound | ErrorKind::ConnectionRefused) => Ok(Found::Nothing),
        Err(e) if e.kind() == ErrorKind::WouldBlock => Ok(Found::Full),
        Err(e) => Err(unreachable_at(socket, &e)),
    }
}

/// Whether a process listens, at once.
fn listens(socket: &Path) -> Result<bool> {
    Ok(!matches!(dial_once(socket, Instant::now())?, Found::Nothing))
}

/// What became of the start of a broker.
enum Start {
    /// One listens.
    Listens,
    /// It is an operator's to start.
    Awaited,
    /// Another one lives and cannot be reached; it may be about to end.
    Occupied,
}

/// Runs `baton serve` for this user, with the settings of the previous broker where its sessions still live.
/// A lock makes one of many processes that come at once do it, and a second look finds what another has
/// started.
fn start(o: &Options, socket: &Path, until: Option<Instant>) -> Result<Start> {
    let dir = socket.parent().unwrap_or(Path::new("/"));
    sys::check_private_dir(dir)?;
    let lock = Lock::open(&dir.join("start.lock"))?;
    while !lock.try_lock()? {
        if is_over(until) {
            return Err(no_broker(socket, "another client is starting one"));
        }
        give_way(o)?;
        std::thread::sleep(TICK);
    }
    if listens(socket)? {
        return Ok(Start::Listens);
    }
    if owner(dir, socket).is_some() {
        return Ok(Start::Occupied);
    }
    if State::read(dir).is_some_and(|s| s.awaits()) {
        return Ok(Start::Awaited);
    }
    let mut binary = find_binary(o, &environment)?;
    if binary.components().count() > 1 {
        // From here, while the broker runs in /.
        binary = std::path::absolute(&binary).unwrap_or(binary);
    }
    let log = dir.join("broker.log");
    let broken = |what: &str, e: io::Error| {
        Error::new(Code::NoBroker, "check the binary and the runtime directory", format!("{what}: {e}")).caused_by(e)
    };
    let out = sys::open_append(&log).map_err(|e| broken("open the broker's log", e))?;
    let Some(out) = out else {
        let what = format!("open the broker's log: {} is no regular file", log.display());
        return Err(Error::new(Code::NoBroker, "move it away", what));
    };
    let again = out.try_clone().map_err(|e| broken("open the broker's log", e))?;
    let before = out.metadata().map_err(|e| broken("open the broker's log", e))?.len();
    let mut command = Command::new(&binary);
    command.args(["serve", "--stand-in", "--address"]).arg(socket);
    command.current_dir("/");
    // There it says why it ends: the log's file system may be full.
    let (said, why) = io::pipe().map_err(|e| broken("make a pipe", e))?;
    command.stdin(why).stdout(out).stderr(again);
    sys::detach(&mut command);
    let mut child = command.spawn().map_err(|e| broken(&format!("start {} serve", binary.display()), e))?;
    drop(command); // with its end of the pipe
    // Keep the lock until it answers, so that no other client starts one.
    loop {
        if listens(socket)? {
            sys::reap_later(child);
            return Ok(Start::Listens);
        }
        if let Ok(Some(status)) = child.try_wait() {
            if listens(socket)? {
                return Ok(Start::Listens);
            }
            return Err(ended_at_once(said, &log, before, &status));
        }
        if is_over(until) {
            return Err(not_begun(child, &log));
        }
        give_way(o)?;
        std::thread::sleep(TICK);
    }
}

/// The error of a broker that was started and does not serve yet. It goes on, for others that wait for it, and ends where
/// it does not come so far.
fn not_begun(child: Child, log: &Path) -> Error {
    let pid = child.id();
    sys::reap_later(child);
    let remedy = format!(
        "wait longer, or read {} and look what process {pid} waits for; it ends by itself unless it serves within a minute",
        log.display()
    );
    let what = format!("the broker that was started here, process {pid}, has not begun to serve");
    Error::new(Code::NoBroker, remedy, what).with("pid", pid as i32)
}

/// How much of what a broker has said, or of its log, is looked at for its reason to end.
const MOST_SAID: u64 = 64 << 10;

/// The error of a broker that was started and has ended: what it has said, and what it says is to be done.
/// `before` is how long its log was.
fn ended_at_once(pipe: impl Read, log: &Path, before: u64, status: &ExitStatus) -> Error {
    let (mut what, mut remedy) = (status.to_string(), format!("read {}", log.display()));
    let mut said = Vec::new();
    let _ = pipe.take(MOST_SAID).read_to_end(&mut said);
    if said.is_empty()
        && let Ok(mut f) = sys::open_at_once(log)
    {
        let _ = f.seek(SeekFrom::Start(before)).and_then(|_| f.take(MOST_SAID).read_to_end(&mut said));
    }
    for line in String::from_utf8_lossy(&said).lines() {
        if let Some(text) = line.strip_prefix("baton: ") {
            what = text.to_owned();
        } else if let Some(text) = line.strip_prefix("  what to do: ") {
            remedy = text.to_owned();
        }
    }
    Error::new(Code::NoBroker, remedy, format!("the broker that was started here ended at once: {what}"))
}

fn find_binary(o: &Options, env: &dyn Fn(&str) -> Option<OsString>) -> Result<PathBuf> {
    if let Some(b) = o.binary.clone().or_else(|| env("BATON_BINARY").filter(|b| !b.is_empty()).map(PathBuf::from)) {
        return Ok(b);
    }
    let path = env("PATH").unwrap_or_default();
    let beside = std::env::current_exe().ok().and_then(|p| p.parent().map(Path::to_path_buf));
    std::env::split_paths(&path).chain(beside).map(|dir| dir.join("baton")).find(|b| b.is_file()).ok_or_else(|| {
        let what = "no broker runs and the program baton was not found";
        Error::new(Code::NoBroker, "put baton on PATH or set BATON_BINARY", what)
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn with<'a>(set: &'a [(&'a str, &'a str)]) -> impl Fn(&str) -> Option<OsString> + 'a {
        move |name| set.iter().find(|(n, _)| *n == name).map(|(_, v)| OsString::from(v))
    }

    #[test]
    fn a_broker_that_ended_at_once_has_said_why() {
        let log = std::env::temp_dir().join(format!("baton-said-{}", std::process::id()));
        let former = "baton: an earlier one\n";
        std::fs::write(&log, format!("{former}time=… msg=began\nbaton: a file is gone\n  what to do: put it back\n"))
            .unwrap();
        let status = ExitStatus::default();
        let said = ended_at_once(io::empty(), &log, former.len() as u64, &status);
        assert!(said.message().ends_with("ended at once: a file is gone"), "{said}");
        assert_eq!(said.remedy(), "put it back");
        let length = std::fs::metadata(&log).unwrap().len();
        let full = ended_at_once(&b"baton: it is full\n  what to do: make room\n"[..], &log, length, &status);
        assert!(full.message().ends_with("ended at once: it is full") && full.remedy() == "make room", "{full}");
        let silent = ended_at_once(io::empty(), &log, length, &status);
        assert!(silent.remedy().starts_with("read /"), "{silent}");
        std::fs::remove_file(&log).unwrap();
    }

    #[test]
    fn addresses_resolve_as_in_every_language() {
        let uid = rustix::process::geteuid().as_raw();
        let own = format!("/tmp/baton-{uid}/broker.sock");
        for (address, env, want) in [
            (None, vec![], Some((own.as_str(), false))),
            (None, vec![("XDG_RUNTIME_DIR", "/run/u")], Some(("/run/u/baton/broker.sock", false))),
            (None, vec![("XDG_RUNTIME_DIR", "relative")], Some((own.as_str(), false))),
            (None, vec![("BATON_ADDRESS", "unix:/a/b")], Some(("/a/b", true))),
            (None, vec![("BATON_ADDRESS", "")], Some((own.as_str(), false))),
            (Some("/x"), vec![("BATON_ADDRESS", "/a")], Some(("/x", true))),
            (Some("unix:///x"), vec![], Some(("/x", true))),
            (Some("tcp:host"), vec![], None),
        ] {
            let got = resolve(address, &with(&env)).ok();
            assert_eq!(got, want.map(|(p, given)| (PathBuf::from(p), given)), "{address:?} {env:?}");
        }
        let long = format!("/{}", "x".repeat(MOST_PATH));
        assert_eq!(resolve(Some(&long), &with(&[])).unwrap_err().code(), Code::InvalidArgument);
    }
}
