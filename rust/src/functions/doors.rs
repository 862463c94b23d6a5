//! Callbacks: functions that are passed as arguments of a call.
//!
//! A door is a private function of this session, by which other sessions call the functions that this one has lent. Each
//! lent function has a number at its door as long as the call to which it was lent is under way.
//!
//! A thread that waits for a call serves its own door meanwhile; so do the calls that it makes within a lent function. A
//! call that is waited for later has no such thread: one thread of the session serves those. Doors are used again.
//! Numbers are not, so a call that comes too late finds no function.

use std::cell::{Cell, RefCell};
use std::collections::HashMap;
use std::fmt;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, Weak};
use std::time::Instant;

use super::answers::{Answers, reply_of, request_of};
use super::args::Args;
use super::arguments::Arguments;
use super::call::{self, Call, Outer};
use super::convert::refused;
use super::given::{SessionCalls, over};
use super::received::Received;
use super::serving::Serving;
use super::signature::Signature;
use super::taken::Taken;
use crate::crash_point;
use crate::deadline::{A_MOMENT, unanswered};
use crate::error::{Result, disagree};
use crate::holding::Opening;
use crate::lanes::{Claimed, Closer, FUNCTION, FunctionRecord, Reader, Start, Topics};
use crate::panics::caught;
use crate::sys::{OwnThread, own_thread, started};
use crate::turns::Turnstile;
use crate::value::{FunctionIs, FunctionValue, Lent, Value, token_bytes};
use crate::waits::{Enclosing, Look, enclosed};
use crate::wire::ops::{FunctionRegister, FunctionRegistered, TopicOpen};

/// Calls of lent functions that a door takes at a time.
const CONCURRENCY: u32 = 1024;
/// Calls of lent functions that one thread runs within each other.
const MOST_SERVED: u32 = 128;
/// Doors that stay for the next calls.
const SPARE: usize = 64;

type Handler = dyn Fn(&Args, &Call) -> Result<Arguments> + Send + Sync;

/// A function of this process.
enum Own {
    Values(Box<Handler>),
    /// Of a binding, which replies itself.
    Taken(Box<dyn Fn(Taken) + Send + Sync>),
}

impl FunctionValue {
    /// A function of this process, to be given as an argument. The receiver calls it while its own function runs; then it
    /// runs in the thread that waits for the call, or, of a call that is waited for later, in a thread that the session
    /// keeps for those. A panic is an error of that call.
    pub fn new<R, F>(f: F) -> FunctionValue
    where
        R: Into<Value>,
        F: Fn(&Args, &Call) -> Result<R> + Send + Sync + 'static,
    {
        Own::Values(Box::new(move |args, call| f(args, call).map(reply_of))).into()
    }

    /// As `new`, of a binding, which replies to each call itself.
    #[doc(hidden)]
    pub fn taking(f: impl Fn(Taken) + Send + Sync + 'static) -> FunctionValue {
        Own::Taken(Box::new(f)).into()
    }
}

impl From<Own> for FunctionValue {
    fn from(own: Own) -> FunctionValue {
        FunctionValue { is: FunctionIs::Own, at: Some(Arc::new(own)) }
    }
}

/// A private function by which functions of this process are called.
pub(super) struct Door {
    answers: Arc<Answers>,
    /// Where it goes back to.
    doors: Weak<Doors>,
    token: [u8; 16],
    closer: Closer,
    reader: Mutex<Reader>,
    lent: Mutex<LentHere>,
    /// Whether no call is taken any more.
    broken: AtomicBool,
}

/// A function that was lent, with the call within which it was.
#[derive(Clone)]
struct LentFunction(FunctionValue, Option<Arc<Outer>>);

#[derive(Default)]
struct LentHere {
    last: u64,
    functions: HashMap<u64, LentFunction>,
    /// Calls of them that the thread has taken while it waited for something that was over before they could be answered.
    taken: Vec<(Received, Claimed)>,
}

impl fmt::Debug for Door {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Door").finish_non_exhaustive()
    }
}

fn locked<T>(of: &Mutex<T>) -> MutexGuard<'_, T> {
    of.lock().unwrap_or_else(|p| p.into_inner())
}

impl Door {
    fn new(inner: &Arc<Opening>, of: &dyn Lends) -> Result<Arc<Door>> {
        let open = TopicOpen { kind: FUNCTION, create: true, ..TopicOpen::default() };
        let topic = Topics::open(inner, "topic.open", &open)?;
        let token =
            token_bytes(&topic.info.token).ok_or_else(|| disagree("a private function came without a token"))?;
        let mut reader = Reader::new(topic.clone(), Start::All, Some(FUNCTION))?;
        let request = FunctionRegister {
            topic: topic.reference(),
            reader: reader.number(),
            description: "{}",
            concurrency: CONCURRENCY,
            idempotent: false,
            exclusive: false,
            replace: false,
            linger: 0.0,
        };
        let ok: FunctionRegistered = inner.call("function.register", &request)?;
        crash_point::at("door-registered");
        reader.provide(FunctionRecord::of(&topic), ok.registration, None);
        let answers = Arc::new(Answers::new(&topic, of.session_calls(), Signature::default(), None, None));
        let (closer, broken, doors) = (reader.closer(), AtomicBool::new(false), Arc::downgrade(of.doors()?));
        Ok(Arc::new(Door { answers, doors, token, closer, reader: Mutex::new(reader), lent: Mutex::default(), broken }))
    }

    fn inner(&self) -> &Arc<Opening> {
        self.answers.inner()
    }

    fn is_of(&self, inner: &Arc<Opening>) -> bool {
        Arc::ptr_eq(self.inner(), inner) && !self.broken.load(Ordering::Relaxed)
    }

    /// Whether a call can be taken by it.
    fn is_fit(&self) -> bool {
        !self.broken.load(Ordering::Relaxed) && !self.inner().is_closed() && !self.answers.topic.is_closed()
    }

    fn lend(&self, f: &FunctionValue, within: Option<Arc<Outer>>) -> Lent {
        let mut lent = locked(&self.lent);
        lent.last += 1;
        let object = lent.last;
        lent.functions.insert(object, LentFunction(f.clone(), within));
        Lent { token: self.token, object }
    }

    /// Takes a call and runs it; whether there was one. What it asks the broker ends with `within`.
    fn serve(&self, within: &Arc<dyn Enclosing>) -> bool {
        if self.broken.load(Ordering::Relaxed) || self.inner().is_foreign() {
            return false;
        }
        let taken = locked(&self.lent).taken.pop();
        if let Some((received, claimed)) = taken {
            return self.answer(received, claimed, within);
        }
        let mut reader = locked(&self.reader);
        let found = match reader.provides() {
            true => enclosed(Some(within.clone()), || reader.poll_call(Some(Instant::now()))),
            false => Err(self.answers.topic.ended()),
        };
        drop(reader);
        match found {
            Ok(Some((message, claimed))) => match request_of(message) {
                Some(received) => self.answer(received, claimed, within),
                None => true,
            },
            Ok(None) => false,
            Err(e) => {
                if !e.is_uncertain() {
                    self.broken.store(true, Ordering::Relaxed); // its thread's alone
                }
                false
            }
        }
    }

    /// Runs a call in the thread that waits for what is around it; false where that is over first.
    fn answer(&self, received: Received, claimed: Claimed, within: &Arc<dyn Enclosing>) -> bool {
        match self.answers.place(&claimed, &received.head, Some(within)) {
            Ok(place) => {
                if let Some((received, call)) = self.answers.begin_at(received, claimed, place, Some(within.clone())) {
                    self.run(received, call);
                }
            }
            Err(e) if e.may_pass() && within.check().is_err() => {
                locked(&self.lent).taken.push((received, claimed));
                return false;
            }
            Err(e) => self.answers.has_no_place(&claimed, &received.head, &e),
        }
        true
    }

    /// Runs a call of a lent function.
    fn run(&self, received: Received, mut call: Call) {
        let lent = locked(&self.lent).functions.get(&call.head.object).cloned();
        let (lent, within) = lent.map_or((None, None), |LentFunction(f, within)| (Some(f), within));
        let own = lent.as_ref().and_then(|f| f.at.as_deref()?.downcast_ref::<Own>());
        call.lent_in = within;
        match own {
            Some(Own::Values(f)) => {
                let args = Args::new(received, self.answers.clone());
                let outcome = self.answers.run(|| call::within(&call, || f(&args, &call)));
                drop(args);
                crash_point::at("call-ran");
                self.answers.finish(&mut call, outcome);
            }
            Some(Own::Taken(f)) => {
                // After a panic the call is over without a reply, and the thread goes on.
                let _ = caught(|| f(Taken::lent(&self.answers, call, received)));
            }
            None => self.answers.finish(&mut call, Err(over())),
        }
    }
}

thread_local! {
    /// The doors of the calls that this thread waits for.
    static OPEN: RefCell<Vec<Arc<Door>>> = const { RefCell::new(Vec::new()) };
    /// How many there are.
    static DOORS: Cell<u32> = const { Cell::new(0) };
    /// Calls of lent functions that this thread runs, within each other.
    static SERVED: Cell<u32> = const { Cell::new(0) };
}

/// Whether this thread can have doors: one that is ending, and runs the destructors of its locals, may have none.
fn can_enter() -> bool {
    OPEN.try_with(|_| ()).is_ok()
}

fn enter(door: &Arc<Door>) {
    if OPEN.try_with(|open| open.borrow_mut().push(door.clone())).is_ok() {
        DOORS.set(DOORS.get() + 1);
    }
}

fn leave(door: &Arc<Door>) {
    let leave = |open: &RefCell<Vec<Arc<Door>>>| {
        let mut open = open.borrow_mut();
        let at = open.iter().rposition(|d| Arc::ptr_eq(d, door))?;
        Some(open.remove(at))
    };
    let left = OPEN.try_with(leave).ok().flatten();
    DOORS.set(DOORS.get() - u32::from(left.is_some()));
}

/// The doors of the calls that this thread waits for.
fn open() -> Vec<Arc<Door>> {
    OPEN.try_with(|open| open.borrow().clone()).unwrap_or_default()
}

/// Whether this thread has lent functions, which a wait serves.
#[inline]
pub(super) fn are_open() -> bool {
    DOORS.get() > 0
}

/// Runs a call of a function that this thread has lent; whether there was one. What it asks the broker ends with
/// `within`.
#[cold]
pub(super) fn serve(within: &Arc<dyn Enclosing>) -> bool {
    struct Level;
    impl Drop for Level {
        fn drop(&mut self) {
            SERVED.set(SERVED.get() - 1);
        }
    }
    if SERVED.get() >= MOST_SERVED {
        return false; // those that run end first
    }
    SERVED.set(SERVED.get() + 1);
    let _level = Level;
    let door = |i| OPEN.try_with(|open| open.borrow().get(i).cloned()).ok().flatten();
    (0..DOORS.get() as usize).rev().any(|i| door(i).is_some_and(|d| d.serve(within)))
}

/// Waits as a reader does, and for calls of functions that this thread has lent.
#[cold]
pub(super) fn wait(reader: &mut Reader, until: Option<Instant>, other: impl FnMut(Look) -> bool) -> Result<bool> {
    if SERVED.get() >= MOST_SERVED {
        return reader.wait_beside(until, other);
    }
    let mut open = open();
    open.retain(|d| !d.broken.load(Ordering::Relaxed) && !d.inner().is_foreign());
    let readers: Vec<_> = open.iter().map(|d| locked(&d.reader)).collect();
    let readers: Vec<&Reader> = readers.iter().map(|r| &**r).collect();
    reader.wait_among(&readers, until, other)
}

/// The session whose functions are lent.
pub(super) trait Lends {
    fn doors(&self) -> Result<&Arc<Doors>>;

    fn session_calls(&self) -> Weak<dyn SessionCalls>;
}

/// What lends the functions among the arguments of a call.
pub(super) struct Lending<'a> {
    inner: &'a Arc<Opening>,
    of: &'a dyn Lends,
    /// Whether this thread waits for the call.
    here: bool,
    /// The call within which it is made; of one that this thread waits for that which it runs.
    within: Option<Arc<Outer>>,
    /// Its deadline, until when a broker is waited for that does not answer.
    until: Option<Instant>,
    loan: Option<Loan>,
}

impl<'a> Lending<'a> {
    #[inline]
    pub(super) fn new(
        inner: &'a Arc<Opening>,
        of: &'a dyn Lends,
        here: bool,
        within: Option<Arc<Outer>>,
        until: Option<Instant>,
    ) -> Lending<'a> {
        Lending { inner, of, here, within, until, loan: None }
    }

    /// Lends a function.
    pub(super) fn lend(&mut self, f: &FunctionValue) -> Result<Lent> {
        if f.is != FunctionIs::Own {
            let what = "a function that came with a call is its receiver's alone: give one of your own that calls it";
            return Err(refused(what.to_owned()));
        }
        let loan = match &mut self.loan {
            Some(loan) => loan,
            none => {
                let goes_on = || {
                    self.inner.check_interrupted()?;
                    call::check_current()
                };
                let loan = || unanswered(self.until, goes_on, || Loan::new(self.inner, self.of, self.here));
                none.insert(call::ending(loan)?)
            }
        };
        let lent = loan.door.lend(f, self.within.clone().or_else(call::outer));
        loan.objects.push(lent.object);
        Ok(lent)
    }

    /// What was lent, to be held until the call is over.
    pub(super) fn loan(self) -> Option<Loan> {
        self.loan
    }
}

/// The functions that a call has lent. Dropped they can be called no more.
pub(super) struct Loan {
    door: Arc<Door>,
    objects: Vec<u64>,
    /// Whether the door was opened for this call.
    entered: bool,
}

impl Loan {
    fn new(inner: &Arc<Opening>, of: &dyn Lends, here: bool) -> Result<Loan> {
        let objects = Vec::new();
        let here = here && can_enter();
        let known = |open: &RefCell<Vec<Arc<Door>>>| open.borrow().iter().rfind(|d| d.is_of(inner)).cloned();
        if let Some(door) = OPEN.try_with(known).ok().flatten().filter(|_| here) {
            return Ok(Loan { door, objects, entered: false });
        }
        if !here {
            return Ok(Loan { door: of.doors()?.served(inner, of)?, objects, entered: false });
        }
        let door = match of.doors()?.spare() {
            Some(door) => door,
            None => Door::new(inner, of)?,
        };
        enter(&door);
        Ok(Loan { door, objects, entered: true })
    }
}

impl Drop for Loan {
    fn drop(&mut self) {
        let mut lent = locked(&self.door.lent);
        let gone: Vec<_> = self.objects.iter().filter_map(|o| lent.functions.remove(o)).collect();
        drop(lent);
        drop(gone); // unlocked: what a function holds may be anything
        if self.entered {
            leave(&self.door);
            // What has come late is answered before none serves the door, unless a broker has to answer first, and does not.
            let until = Some(Instant::now() + A_MOMENT / 10);
            let late = Serving { inner: self.door.inner().clone(), until, closer: None, outer: None };
            let late: Arc<dyn Enclosing> = Arc::new(late);
            while self.door.serve(&late) {}
            let unanswered = std::mem::take(&mut locked(&self.door.lent).taken);
            drop(unanswered); // unlocked
            if let Some(doors) = self.door.doors.upgrade() {
                doors.give_back(self.door.clone());
            }
        }
    }
}

/// The doors of a session.
#[derive(Debug, Default)]
pub(super) struct Doors {
    spare: Mutex<Vec<Arc<Door>>>,
    thread: Turnstile<Option<DoorThread>>,
}

impl Doors {
    fn spare(&self) -> Option<Arc<Door>> {
        let mut spare = locked(&self.spare);
        std::iter::from_fn(|| spare.pop()).find(|d| d.is_fit())
    }

    fn give_back(&self, door: Arc<Door>) {
        if door.is_fit() {
            let mut spare = locked(&self.spare);
            if spare.len() < SPARE {
                spare.push(door);
            }
        }
    }

    /// The door that a thread serves, which is started with the first.
    fn served(&self, inner: &Arc<Opening>, of: &dyn Lends) -> Result<Arc<Door>> {
        let mut thread = inner.turn(&self.thread)?; // another thread may ask a broker that does not answer
        if let Some(t) = thread.as_ref().filter(|t| t.door.is_fit()) {
            return Ok(t.door.clone());
        }
        let door = Door::new(inner, of)?;
        *thread = Some(DoorThread::start(door.clone())?);
        Ok(door)
    }
}

/// The thread that runs the functions of calls that are waited for later.
#[derive(Debug)]
struct DoorThread {
    door: Arc<Door>,
}

impl DoorThread {
    fn start(door: Arc<Door>) -> Result<DoorThread> {
        let served = door.clone();
        // Its end is not waited for: what drops this may hold a lock that a function of the thread wants, as an
        // interpreter's is.
        started(own_thread("baton-lent", None, move |own| serve_all(&served, own)))?;
        Ok(DoorThread { door })
    }
}

impl Drop for DoorThread {
    fn drop(&mut self) {
        if !self.door.inner().is_foreign() {
            self.door.closer.close(); // else it is the parent's
        }
    }
}

/// Serves a door until its session, or what uses it, has ended.
fn serve_all(door: &Arc<Door>, own: &mut OwnThread) {
    enter(door);
    loop {
        let next = locked(&door.reader).next_call(
            |_| Ok(Some(())),
            || {
                door.answers.replies.sweep();
                door.closer.is_closed()
            },
        );
        match next {
            Ok(Some((message, claimed, ()))) => {
                own.lend(|| {
                    if let Some((received, call)) = door.answers.begin(message, claimed) {
                        door.run(received, call);
                    }
                });
                if door.inner().is_foreign() {
                    return leave(door); // in the child of a fork, whose parent goes on
                }
            }
            Ok(None) => break,
            Err(e) if door.inner().is_closed() || door.closer.is_closed() || e.is_end() => break,
            // What is not available now, such as the memory of a message while no broker runs.
            Err(_) => std::thread::sleep(A_MOMENT / 100),
        }
    }
    door.broken.store(true, Ordering::Relaxed); // a hint: another door serves the next calls
    leave(door);
}
