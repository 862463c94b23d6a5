//! A broker for each test and each example of the documentation, and what is left in it.
#![cfg(not(baton_loom))] // of the crate only what its models run is built then

use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::{Duration, Instant};

use baton::{Code, Handle, Lease, Result, Session, Start, Tensor};
use rustix::process::{Pid, Signal, kill_process};

/// A folder that goes with its value.
pub struct Dir(PathBuf);

impl Dir {
    /// Makes one, of mode 0700; in `/tmp`, since a socket's path has room for 107 bytes.
    pub fn new() -> Dir {
        static NEXT: AtomicU32 = AtomicU32::new(0);
        let mut b = std::fs::DirBuilder::new();
        std::os::unix::fs::DirBuilderExt::mode(&mut b, 0o700);
        loop {
            let n = NEXT.fetch_add(1, Ordering::Relaxed);
            let path = PathBuf::from(format!("/tmp/baton-rust-{}-{n}", std::process::id()));
            match b.create(&path) {
                Ok(()) => return Dir(path),
                // A process of this number was killed before it could remove its own.
                Err(e) if e.kind() == std::io::ErrorKind::AlreadyExists => {}
                Err(e) => panic!("{}: {e}", path.display()),
            }
        }
    }

    /// Where it is.
    pub fn path(&self) -> &Path {
        &self.0
    }
}

impl Drop for Dir {
    fn drop(&mut self) {
        let _ = std::fs::remove_dir_all(&self.0);
    }
}

/// A broker of its own, killed with its value.
pub struct Broker {
    pub child: Child,
    pub binary: PathBuf,
    pub dir: Dir,
}

impl Default for Dir {
    fn default() -> Dir {
        Dir::new()
    }
}

/// A broker of its own for an example of the documentation, which finds it as the user's. `None` when
/// there is no program to start: the example then shows nothing and is no failure.
pub fn broker() -> Option<Broker> {
    let b = Broker::start()?;
    // SAFETY: an example is a process of its own and has no other thread yet.
    unsafe { std::env::set_var("BATON_ADDRESS", b.address()) };
    Some(b)
}

/// The program `baton`.
pub fn binary() -> Option<PathBuf> {
    let built = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../bin/baton");
    let found = std::env::var_os("BATON_BINARY").map(PathBuf::from).or_else(|| built.is_file().then_some(built));
    if found.is_none() {
        let required = std::env::var("BATON_REQUIRE").unwrap_or_default();
        assert!(!required.split(',').any(|n| n == "broker"), "no program baton: run make build or set BATON_BINARY");
        eprintln!("skipped: no program baton: run make build or set BATON_BINARY");
    }
    found
}

fn serve(binary: &Path, dir: &Dir, flags: &[&str]) -> Child {
    Command::new(binary)
        .args(["serve", "--address"])
        .arg(dir.path().join("b.sock"))
        .args(flags)
        .env("XDG_RUNTIME_DIR", dir.path())
        .stdin(Stdio::null())
        .stdout(Stdio::null())
        .stderr(std::fs::File::create(dir.path().join("log")).unwrap())
        .spawn()
        .unwrap()
}

impl Broker {
    /// `None` when there is no program to start.
    pub fn start() -> Option<Broker> {
        Broker::start_with(&[])
    }

    /// As `start`, with more flags of `baton serve`.
    pub fn start_with(flags: &[&str]) -> Option<Broker> {
        let (binary, dir) = (binary()?, Dir::new());
        let child = serve(&binary, &dir, flags);
        Some(Broker { child, binary, dir })
    }

    /// Ends it as the kernel would for want of memory; when this returns it is gone.
    pub fn kill(&mut self) {
        self.child.kill().unwrap();
        self.child.wait().unwrap();
    }

    /// Ends it as an operator does before a restart; when this returns it is gone.
    pub fn terminate(&mut self) {
        self.signal(Signal::TERM);
        self.child.wait().unwrap();
    }

    /// Starts the next one at the same socket, with no flags. The one before is gone.
    pub fn restart(&mut self) {
        self.child = serve(&self.binary, &self.dir, &[]);
    }

    /// Its socket.
    pub fn address(&self) -> String {
        format!("unix:{}", self.dir.path().join("b.sock").display())
    }

    /// A session with it.
    pub fn session(&self) -> Session {
        Session::builder().address(self.address()).connect().unwrap_or_else(|e| {
            panic!("{e}\n{}", std::fs::read_to_string(self.dir.path().join("log")).unwrap_or_default())
        })
    }

    /// Stops the broker; when this returns all its threads are suspended.
    pub fn pause(&self) {
        self.signal(Signal::STOP);
        let stands = |task: std::fs::DirEntry| {
            let stat = std::fs::read_to_string(task.path().join("stat")).unwrap_or_default();
            stat.rsplit(')').next().is_some_and(|rest| rest.trim_start().starts_with('T'))
        };
        let tasks = format!("/proc/{}/task", self.child.id());
        until("the broker is suspended", || std::fs::read_dir(&tasks).unwrap().all(|t| stands(t.unwrap())));
    }

    /// Lets a suspended broker go on.
    pub fn go_on(&self) {
        self.signal(Signal::CONT);
    }

    fn signal(&self, signal: Signal) {
        kill_process(Pid::from_child(&self.child), signal).unwrap();
    }

    /// The output of a command of the tool.
    pub fn tool(&self, args: &[&str]) -> String {
        let out = Command::new(&self.binary).args(args).env("BATON_ADDRESS", self.address()).output().unwrap();
        assert!(out.status.success(), "baton {args:?}: {}", String::from_utf8_lossy(&out.stderr));
        String::from_utf8(out.stdout).unwrap()
    }

    /// What the broker has of a kind, such as `storages`, as the tool lists it.
    pub fn listed(&self, kind: &str) -> Vec<serde_json::Value> {
        serde_json::from_str(&self.tool(&["ls", kind, "--all", "--json"])).unwrap()
    }

    /// Its sessions with programs in Rust.
    pub fn rust_sessions(&self) -> Vec<serde_json::Value> {
        self.listed("sessions").into_iter().filter(|s| s["language"] == "rust").collect()
    }

    /// A test of the running program that is ignored otherwise, as a process of its own. It has its session by
    /// [`part_session`].
    pub fn part(&self, test: &str) -> Command {
        let mut command = Command::new(std::env::current_exe().unwrap());
        command.args([test, "--exact", "--ignored"]).env(PART, self.address());
        command.stdin(Stdio::null()).stdout(Stdio::null());
        command
    }

    /// Starts the test `provider` of this program in such a process, and waits until that says in the topic `up` that
    /// it provides its functions.
    pub fn apart(&self, s: &Session, set: impl FnOnce(&mut Command)) -> Result<Apart> {
        let mut up = s.topic("up")?.reader(Start::New)?;
        let mut command = self.part("provider");
        set(&mut command);
        let child = Apart(command.spawn().unwrap());
        up.recv(Duration::from_secs(60))?;
        Ok(child)
    }

    /// Runs such a process to its end.
    pub fn run_part(&self, test: &str) {
        assert!(self.part(test).status().unwrap().success(), "{test}");
    }

    /// Waits until no storage is held.
    pub fn nothing_is_held(&self) {
        let mut held = Vec::new();
        let free = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| {
            until("nothing is held", || {
                held = self.listed("storages");
                held.is_empty()
            });
        }));
        if free.is_err() {
            panic!("held: {held:?}, leases: {:?}, topics: {:?}", self.listed("leases"), self.listed("topics"));
        }
    }
}

impl Drop for Broker {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// A file system that can be filled, which goes with its value.
pub struct FullDir(Dir);

impl FullDir {
    /// Mounts one of so many bytes. `None` where that is not allowed.
    pub fn new(bytes: u64) -> Option<FullDir> {
        let dir = Dir::new();
        let of = format!("mode=700,size={bytes}");
        let done = Command::new("mount").args(["-t", "tmpfs", "-o", &of, "tmpfs"]).arg(dir.path()).output();
        if done.is_ok_and(|out| out.status.success()) {
            return Some(FullDir(dir));
        }
        let required = std::env::var("BATON_REQUIRE").unwrap_or_default();
        assert!(!required.split(',').any(|n| n == "mount"), "a file system cannot be mounted here");
        eprintln!("skipped: a file system cannot be mounted here");
        None
    }

    /// Where it is.
    pub fn path(&self) -> &Path {
        self.0.path()
    }

    /// Fills it but for so many bytes.
    pub fn leave(&self, bytes: u64) {
        let mut f = std::fs::File::create(self.path().join("stuffing")).unwrap();
        let mut size = 0;
        let mut block = vec![1; 64 << 10];
        while !block.is_empty() {
            match std::io::Write::write(&mut f, &block) {
                Ok(n) => size += n as u64,
                Err(e) => {
                    assert_eq!(e.kind(), std::io::ErrorKind::StorageFull);
                    block.truncate(block.len() / 2);
                }
            }
        }
        f.set_len(size.saturating_sub(bytes)).unwrap();
    }
}

impl Drop for FullDir {
    fn drop(&mut self) {
        let _ = Command::new("umount").arg("--lazy").arg(self.path()).status();
    }
}

/// Holds a tensor of the session as often as that may be.
pub fn all_references(session: &Session, t: &Tensor) -> Vec<Tensor> {
    let leased = t.handle(Lease::default()).unwrap();
    session.release_handle(&leased).unwrap();
    let mut handle: serde_json::Value = serde_json::from_str(&leased.to_json()).unwrap();
    handle["lease"] = serde_json::Value::Null;
    let handle = Handle::from_json(&handle.to_string()).unwrap();
    let mut all = Vec::new();
    loop {
        match session.open(&handle) {
            Ok(t) => all.push(t),
            Err(e) => {
                assert_eq!(e.code(), Code::TooMany, "{e}");
                return all;
            }
        }
    }
}

/// Where a process of [`Broker::part`] finds its broker.
const PART: &str = "BATON_TEST_ADDRESS";

/// The session of a process that [`Broker::part`] began. `None` where the test is run by itself.
pub fn part_session() -> Option<Session> {
    let address = std::env::var(PART).ok()?;
    Some(Session::builder().address(address).connect().unwrap())
}

/// A process that [`Broker::apart`] has started, which is killed with its value.
pub struct Apart(pub Child);

impl Drop for Apart {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// A tensor of 100 numbers.
pub fn numbers(s: &Session, first: u64) -> Tensor {
    s.from_slice(&[100], &(first..first + 100).collect::<Vec<_>>()).unwrap().freeze()
}

/// Fails unless the tensor is as [`numbers`] made it.
pub fn check(x: &Tensor, first: u64) {
    assert_eq!(x.to_vec::<u64>().unwrap(), (first..first + 100).collect::<Vec<_>>());
}

/// The code of what must have failed.
pub fn code<T>(got: Result<T>) -> Code {
    got.err().expect("it was no error").code()
}

/// The calls of the function `f` that providers have, and those that none has taken.
pub fn calls(s: &Session) -> (usize, usize) {
    let f = &s.functions("f").unwrap()[0];
    (f.running, f.waiting)
}

/// Looks again until it is so; a test that never ends fails by its runner.
pub fn until(what: &str, mut done: impl FnMut() -> bool) {
    let began = Instant::now();
    while !done() {
        assert!(began.elapsed() < Duration::from_secs(60), "not in a minute: {what}");
        std::thread::sleep(Duration::from_millis(10));
    }
}
