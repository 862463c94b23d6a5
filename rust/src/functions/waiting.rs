//! A call that is under way: it is sent, and its reply is waited for, or what says that none comes.

use std::sync::Arc;
use std::time::{Duration, Instant};

use super::arguments::{Arguments, give_back};
use super::call::{self, Outer};
use super::doors;
use super::endpoint::Endpoint;
use super::fate::is_hopeless;
use super::given::{Scope, over};
use super::known::Known;
use super::received::Received;
use super::record::{Head, Link, REQUEST, TAKES_PARTS};
use super::serving::Serving;
use crate::crash_point;
use crate::deadline::{A_MOMENT, by, for_a_moment, is_past, sooner};
use crate::error::{Code, Error, Result};
use crate::holding::Opening;
use crate::lanes::{Closer, Sent};
use crate::link::{Broker, Options};
use crate::shm::Stands;
use crate::sys;
use crate::value::{Lend, Payload};
use crate::waits::{Enclosing, Look};
use crate::wire::ops::{Fate, FunctionFate};

/// How long a call waits for a broker, before one of whose provider nothing is left is given up.
const BROKER_AWAY: Duration = Duration::from_secs(5);

/// What to do where a provider got no memory for a reply.
fn no_memory(o: &Options) -> String {
    let (status, storages) = (o.typed("status", &[]), o.typed("ls", &["storages"]));
    format!("release tensors, or raise --memory of the broker; {status} and {storages} show what has the memory")
}

/// A call that is under way.
pub(super) struct Waiting<'a> {
    pub(super) inner: &'a Arc<Opening>,
    pub(super) known: &'a Known,
    pub(super) endpoint: &'a mut Endpoint,
    pub(super) until: Option<Instant>,
    /// Until when a provider is waited for, if one is.
    pub(super) wait_until: Option<Instant>,
    /// Since when there has been no broker.
    pub(super) away: Option<Instant>,
    /// How many parts may be ahead; 0 of a call that takes none.
    pub(super) window: u32,
    /// Of a function that came as an argument: its number, and until when it can be called.
    pub(super) object: u64,
    pub(super) scope: Option<&'a Scope>,
    /// What cancels the call from another thread.
    pub(super) closer: Option<&'a Closer>,
    /// The call within which it was made, of one that any thread may wait for.
    pub(super) outer: Option<&'a Arc<Outer>>,
    /// Itself, for what this thread does meanwhile; made with the first look at what it has lent.
    pub(super) serving: Option<Arc<dyn Enclosing>>,
}

impl Waiting<'_> {
    /// Sends the call and waits for its reply. `goes_on` says why room is waited for no more. `again`: after
    /// `NoProvider` the arguments are there for another call.
    #[inline]
    pub(super) fn call(
        mut self,
        args: &mut Arguments,
        again: bool,
        chain: &[Link],
        lend: &mut Lend<'_>,
        goes_on: &dyn Fn() -> Result<()>,
    ) -> Result<Received> {
        let mut payload = self.payload(args, chain, lend)?;
        let send = || self.known.topic.send_call(&mut payload, self.until, goes_on);
        let sent = call::ending(send);
        let mut kept = None;
        if again {
            kept = Some(payload);
        } else {
            give_back(&mut payload);
            drop(payload);
        }
        crash_point::at("call-sent");
        let ended = match sent {
            Ok(sent) => self.reply(&sent),
            Err(e) => Err(self.known.unsent(e)),
        };
        match kept {
            Some(payload) if matches!(&ended, Err(e) if e.code() == Code::NoProvider) => args.take_back(payload),
            Some(mut payload) => give_back(&mut payload),
            None => {}
        }
        ended
    }

    /// What is sent. `lend` gives functions of this process among the arguments.
    #[inline]
    pub(super) fn payload(&mut self, args: &mut Arguments, chain: &[Link], lend: &mut Lend<'_>) -> Result<Payload> {
        let (info, token) = (&self.endpoint.topic.info, self.endpoint.token);
        let (topic, topic_id) = (info.topic, info.id);
        let number = self.endpoint.begin();
        let (window, object) = (self.window, self.object);
        let flags = if window > 0 { TAKES_PARTS } else { 0 };
        let time = clock_time(self.until);
        let head = Head { kind: REQUEST, flags, call: number, time, topic, topic_id, token, window, object };
        args.payload(&head, chain.iter().copied(), lend)
    }

    /// Waits for the reply, or for what says that none comes.
    pub(super) fn reply(&mut self, sent: &Sent) -> Result<Received> {
        loop {
            let ended = match self.poll() {
                Ok(Some(received)) => return Ok(received),
                Ok(None) if self.wait(sent, self.until)? => self.look(sent),
                Ok(None) => None,
                Err(e) => self.unread(sent, e),
            };
            if let Some(ended) = ended {
                return ended;
            }
        }
    }

    /// Sleeps until there may be something, or a time. Whether more than a reply is to be looked for.
    pub(super) fn wait(&mut self, sent: &Sent, until: Option<Instant>) -> Result<bool> {
        let mut parked = false;
        let serves = doors::are_open();
        if serves && doors::serve(&self.serving()) {
            // What was asked for a call of a lent function may have been interrupted.
            self.inner.check_interrupted().inspect_err(|_| self.give_up(sent))?;
            return Ok(true);
        }
        let (inner, known, away, wait_until) = (self.inner, self.known, &mut self.away, self.wait_until);
        let (closer, outer) = (self.closer, self.outer);
        let waits = wait_until.filter(|u| Instant::now() < *u);
        let (until, scope) = (sooner(until, waits), self.scope);
        let look = |look| {
            if look == Look::Spinning {
                return false;
            }
            parked = true;
            let over = closer.is_some_and(Closer::is_closed) || scope.is_some_and(Scope::is_over);
            over || outer.is_some_and(|o| o.is_cancelled()) || is_news(inner, known, sent, away, wait_until)
        };
        let reader = &mut self.endpoint.reader;
        let found = Self::ending(outer, || match serves {
            false => reader.wait_beside(until, look),
            true => doors::wait(reader, until, look),
        });
        let found = found.inspect_err(|_| self.give_up(sent))?; // a signal's
        Ok(parked || !found)
    }

    /// What this thread does meanwhile ends with it.
    fn serving(&mut self) -> Arc<dyn Enclosing> {
        let Waiting { inner, until, closer, outer, .. } = *self;
        let outer = || outer.cloned().or_else(call::outer);
        let serving = || Arc::new(Serving { inner: inner.clone(), until, closer: closer.cloned(), outer: outer() });
        self.serving.get_or_insert_with(|| serving()).clone()
    }

    /// What it waits for ends with the call within which it is made.
    fn ending<T>(outer: Option<&Arc<Outer>>, part: impl FnOnce() -> Result<T>) -> Result<T> {
        match outer {
            Some(outer) => call::ending_with(outer.clone(), part),
            None => call::ending(part),
        }
    }

    /// The reply, if it has come. A broker that is asked for what it lies in has a moment to answer: then all else that
    /// may end the call is looked at.
    #[inline]
    fn poll(&mut self) -> Result<Option<Received>> {
        Self::ending(self.outer, || for_a_moment(self.until, || self.endpoint.poll()))
    }

    /// How the call has ended whose reply could not be looked at. That no broker has answered ends no call: that has its
    /// own deadline.
    #[cold]
    fn unread(&mut self, sent: &Sent, e: Error) -> Option<Result<Received>> {
        if e.is_away() {
            is_away_long(self.inner, &mut self.away);
            return self.ended(sent, self.is_late());
        }
        self.give_up(sent);
        Some(Err(e))
    }

    /// How the call has ended, if it has.
    pub(super) fn look(&mut self, sent: &Sent) -> Option<Result<Received>> {
        if self.inner.is_foreign() {
            // In the child of a fork it is the parent's, and so is the lane that it lies in.
            return Some(Err(Error::closed_here("the call")));
        }
        match self.poll() {
            Ok(None) => self.ended(sent, self.is_late()),
            Ok(Some(received)) => Some(Ok(received)),
            Err(e) => self.unread(sent, e),
        }
    }

    fn is_late(&self) -> bool {
        is_past(self.until)
    }

    /// The error of the call within which it is made, if that is over.
    pub(super) fn unwanted(&self) -> Option<Error> {
        call::check_current().err().or_else(|| self.outer?.check().err())
    }

    /// How the call has ended without a reply, if it has.
    #[cold]
    fn ended(&mut self, sent: &Sent, late: bool) -> Option<Result<Received>> {
        if let Err(e) = self.inner.check_goes_on() {
            self.give_up(sent);
            return Some(Err(e));
        }
        // Of a task no sleep looks: it does so here, about once a second.
        let away_long = is_away_long(self.inner, &mut self.away);
        let stands = sent.stands();
        if let Stands::Over(member) = stands {
            // SYNC claim: after the look at the claim; a reply was published before it.
            match self.poll() {
                Ok(None) => {}
                Err(e) if e.is_away() => {}
                got => return got.transpose(),
            }
            // The provider may have ended it at the deadline, which has passed here too by now.
            if self.is_late() {
                return Some(Err(self.known.late()));
            }
            if let Some(e) = if member == 0 { Some(self.dropped()) } else { self.fate(sent, member) } {
                // After the broker's answer every lane is known into which a provider may have replied.
                return match self.poll() {
                    Ok(None) => Some(Err(e)),
                    Err(e) if e.is_away() => None, // it is looked for once more
                    got => got.transpose(),
                };
            }
            if let Some(e) = self.unwanted() {
                return Some(Err(e));
            }
            if !away_long {
                std::thread::sleep(A_MOMENT / 100); // where the request failed at once
                return None;
            }
            let what = format!("the call of {} has ended, and no broker says how", self.known.name());
            return Some(Err(Error::new(Code::BrokerLost, "start the broker again", what)));
        }
        if late {
            self.give_up(sent);
            return Some(Err(self.known.late()));
        }
        if let Some(e) = self.unwanted() {
            self.give_up(sent);
            return Some(Err(e));
        }
        if self.closer.is_some_and(Closer::is_closed) {
            self.give_up(sent);
            let what = format!("the call of {} was cancelled here", self.known.name());
            return Some(Err(Error::new(Code::Cancelled, "", what).with("function", self.known.name())));
        }
        if self.scope.is_some_and(Scope::is_over) {
            self.give_up(sent);
            return Some(Err(over()));
        }
        let waits = self.wait_until.is_some_and(|u| Instant::now() < u);
        if let Stands::Open(begun) = stands
            && !self.known.has_provider()
            && !waits
            && sent.withdraw(&self.known.topic)
        {
            // Of an idempotent function: there is none for another time.
            let died = if begun > 0 { self.fate(sent, 0) } else { None };
            return Some(Err(died.unwrap_or_else(|| self.known.no_provider())));
        }
        if self.known.topic.is_closed() && sent.withdraw(&self.known.topic) {
            return Some(Err(self.known.topic.ended()));
        }
        if away_long && is_hopeless(self.inner, self.known, stands) {
            self.give_up(sent);
            let what =
                format!("the process that had the call of {} has ended, and no broker says how", self.known.name());
            return Some(Err(Error::new(Code::BrokerLost, "start the broker again", what)));
        }
        None
    }

    /// Ends the call here: no provider begins it any more, or the one that has it is told.
    #[cold]
    pub(super) fn give_up(&mut self, sent: &Sent) {
        if self.inner.is_foreign() {
            return; // as in `look`
        }
        if sent.withdraw(&self.known.topic) {
            return;
        }
        if !matches!(sent.stands(), Stands::Over(_)) {
            // Another thread may have the lane, and ask a broker that does not answer.
            let _ = for_a_moment(None, || self.known.topic.cancel(sent));
            sent.give_up(&self.known.topic);
        }
        self.endpoint.abandon(sent);
    }

    /// The error of a call that no provider had at its end.
    #[cold]
    fn dropped(&self) -> Error {
        let name = self.known.name();
        let what = format!("the call of {name} was dropped by an operator, or its topic was closed");
        self.inner.refused(Error::new(Code::Cancelled, "call again", what).with("function", name))
    }

    /// The error of a call whose provider has ended without a reply; `None` where no broker answers. The member 0 stands
    /// for the last that had begun a call which waits again.
    #[cold]
    fn fate(&self, sent: &Sent, member: u16) -> Option<Error> {
        let name = self.known.name();
        let (lane, message) = sent.place();
        let ask = FunctionFate { topic: self.known.topic.reference(), member, lane, message };
        let soon = sooner(self.until, Some(Instant::now() + A_MOMENT));
        let asked = || self.inner.call_of::<_, Fate>(Broker::This, "function.fate", &ask, &[]);
        let fate = Self::ending(self.outer, || by(soon, asked));
        let fate = match fate {
            Ok((fate, _)) => fate,
            Err(e) if e.is_uncertain() || self.inner.check_open().is_err() || self.unwanted().is_some() => return None,
            Err(_) => Fate { name: "the provider".into(), ..Fate::default() },
        };
        if fate.lives {
            return Some(no_reply(&self.inner.options, name, fate));
        }
        let who = if fate.name.is_empty() { "its provider" } else { &fate.name };
        let pid = if fate.pid == 0 { String::new() } else { format!(" (pid {})", fate.pid) };
        let why = if fate.reason.is_empty() { String::new() } else { format!(": {}", fate.reason) };
        let ran = fate.seconds.map_or_else(String::new, |s| format!(" (the function had run for {s:.3} s)"));
        let did = match (fate.evicted, fate.signal, fate.status) {
            (true, ..) => "was evicted",
            (false, 0, None) => "left", // its process may live
            _ => "ended",
        };
        let what = format!("{who}{pid} {did} while it had the call of {name}{why}{ran}");
        let mut e = Error::new(Code::ProviderDied, "look at its log; call again if that does no harm", what);
        e = e.with("function", name).with("pid", fate.pid).with("provider", fate.name).with("reason", fate.reason);
        if let Some(seconds) = fate.seconds {
            e = e.with("seconds", seconds);
        }
        Some(match (fate.signal, fate.status) {
            (0, None) => e,
            (0, Some(status)) => e.with("status", status),
            (signal, _) => e.with("signal", signal),
        })
    }
}

/// The error of a call that a living provider has ended without a reply.
fn no_reply(o: &Options, name: &str, fate: Fate) -> Error {
    let (code, remedy, why) = if fate.no_reply {
        (Code::OutOfMemory, no_memory(o), ", which got no memory for one")
    } else {
        let why = ": it could not read the request, or its reply was none";
        (Code::Protocol, "update or restart the provider, or this process".to_owned(), why)
    };
    let what = format!("the call of {name} was ended without a reply by {} (pid {}){why}", fate.name, fate.pid);
    Error::new(code, remedy, what).with("function", name).with("pid", fate.pid).with("provider", fate.name)
}

/// Whether there is something besides a reply that a call that waits has to look at.
fn is_news(
    inner: &Opening,
    known: &Known,
    sent: &Sent,
    away: &mut Option<Instant>,
    wait_until: Option<Instant>,
) -> bool {
    let stands = sent.stands();
    if is_away_long(inner, away) && is_hopeless(inner, known, stands) {
        return true;
    }
    let no_provider = || !known.has_provider() && wait_until.is_none_or(|u| Instant::now() >= u);
    match stands {
        Stands::Over(_) => true,
        Stands::Open(_) if no_provider() || known.topic.is_closed() => true,
        _ => call::check_current().is_err(),
    }
}

/// Whether there has been no broker for so long that a call is given up of whose provider nothing is left.
fn is_away_long(inner: &Opening, away: &mut Option<Instant>) -> bool {
    if !inner.broker_away() {
        *away = None;
        return false;
    }
    away.get_or_insert_with(Instant::now).elapsed() >= BROKER_AWAY
}

/// A time by the clock of all processes; 0 for never.
#[inline]
fn clock_time(until: Option<Instant>) -> u64 {
    until.map_or(0, |u| {
        sys::monotonic().saturating_add(u.saturating_duration_since(Instant::now()).as_nanos() as u64).max(1)
    })
}
