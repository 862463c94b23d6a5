//! A call that is to be made: what is looked at before anything is sent, and a call that is waited for.

use std::sync::Arc;
use std::time::{Duration, Instant};

use super::answers::of_parts;
use super::arguments::Arguments;
use super::call;
use super::calls::Calls;
use super::doors::Lending;
use super::endpoint::Endpoint;
use super::fate::{name_of, succeeded};
use super::given::{Scope, over};
use super::known::{Known, Times, await_provider};
use super::received::Received;
use super::record::{Link, MOST_CHAIN};
use super::waiting::Waiting;
use crate::deadline::{deadline, for_a_moment, is_past, sooner, unanswered};
use crate::error::{Code, Error, Result};
use crate::holding::Opening;

/// How long a call may take, how long it waits for a provider, and how many parts may be ahead.
#[derive(Debug, Clone, Copy, Default)]
pub(super) struct Limits {
    pub(super) timeout: Option<Duration>,
    pub(super) wait: Option<Duration>,
    pub(super) ahead: Option<u32>,
    /// Whether the function is called by its name: then another version takes the place of one without a provider.
    pub(super) by_name: bool,
}

impl Limits {
    /// Until when a call may take that begins now, and until when a provider is waited for.
    #[inline]
    pub(super) fn times(self) -> Times {
        let until = sooner(deadline(self.timeout), call::current(|c| c.and_then(|c| c.deadline())));
        (until, self.wait.and_then(deadline))
    }
}

/// How often a name is looked for while what it means has no provider.
const LOOK: Duration = Duration::from_millis(250);

/// Waits for a provider of what a name means. What it means by then, which may have none still.
#[cold]
pub(super) fn await_anew(inner: &Arc<Opening>, calls: &Calls, known: Arc<Known>, times: Times) -> Result<Arc<Known>> {
    let look = known.may_change().then(|| Instant::now() + LOOK);
    match await_provider(inner, &known, (times.0, sooner(times.1, look))) {
        Ok(()) => Ok(known),
        // Without an answer of a broker it means what it did.
        Err(e) if e.code() == Code::NoProvider && known.may_change() && !is_past(times.1) => {
            Ok(for_a_moment(times.0, || calls.anew(inner, &known.asked)).unwrap_or(known))
        }
        Err(e) => Err(e),
    }
}

/// Which of its lender's functions it is, and until when it can be called.
#[derive(Clone)]
pub(super) struct LentTo {
    pub(super) object: u64,
    pub(super) scope: Arc<Scope>,
}

/// What a call is made of.
pub(super) struct Target<'a> {
    pub(super) inner: &'a Arc<Opening>,
    pub(super) calls: &'a Arc<Calls>,
    pub(super) known: &'a Known,
    pub(super) lent: Option<&'a LentTo>,
}

impl<'a> Target<'a> {
    /// Whether a call can be made still.
    #[inline]
    fn check(&self) -> Result<()> {
        self.inner.check_open()?;
        if self.lent.is_some_and(|l| l.scope.is_over()) {
            return Err(over());
        }
        Ok(())
    }

    /// As `check`, of one that is to be sent: whether the call within which it is made wants it still.
    #[cold]
    pub(super) fn goes_on(&self) -> Result<()> {
        self.check()?;
        call::check_current()
    }

    /// Carries out a part of a call before it is sent. A broker that does not answer is waited for until the deadline:
    /// without one no request's own time ends the call.
    #[inline]
    pub(super) fn persist<T>(&self, until: Option<Instant>, part: impl FnMut() -> Result<T>) -> Result<T> {
        let goes_on = || {
            self.inner.check_interrupted()?;
            self.goes_on()
        };
        call::ending(|| unanswered(until, goes_on, part))
    }

    /// Whether there is a provider; `NoProvider` where none is waited for, or none any more, `Timeout` where the call
    /// has no more time for that.
    #[inline]
    pub(super) fn is_provided(&self, limits: Limits, (until, wait_until): Times) -> Result<bool> {
        self.check()?;
        if self.known.has_provider() {
            return Ok(true);
        }
        if limits.wait.is_some() && is_past(until) {
            return Err(self.known.late());
        }
        if limits.wait.is_none() || is_past(wait_until) {
            return Err(self.known.no_provider());
        }
        if self.known.topic.is_closed() {
            return Err(self.known.topic.ended());
        }
        Ok(false)
    }

    /// Looks that the arguments are what the function takes.
    #[inline]
    pub(super) fn fit(&self, args: &mut Arguments, parts: bool) -> Result<()> {
        let about = |e: Error| Error::new(e.code(), e.remedy(), format!("{}: {}", self.known.name(), e.message()));
        if let Some(signature) = self.known.signature()
            && let Some(s) = &*signature
        {
            if s.1.parts != parts {
                return Err(about(of_parts(s.1.parts)));
            }
            args.fit(&s.1).map_err(about)?;
        }
        Ok(())
    }

    /// The chain of a call that is made within another, which must end somewhere.
    #[cold]
    pub(super) fn chain(&self, outer: &call::Outer) -> Result<Vec<Link>> {
        let chain = outer.chain().to_vec();
        let this = self.known.topic.info.id;
        let within = chain.iter().filter(|l| l.topic_id == this).count() as u32;
        let text = || {
            let names = chain.iter().map(|l| name_of(self.inner, l.topic_id));
            names.chain([self.known.name().to_owned()]).collect::<Vec<_>>().join(" > ")
        };
        // Before they are as many as there is room for in a lane: no call waits for room that only those hold within which
        // it is made.
        if chain.len() >= MOST_CHAIN {
            let what = format!("calls within each other are {MOST_CHAIN} deep: {}", text());
            return Err(Error::new(Code::InvalidArgument, "call less deep", what));
        }
        if within > 0 && within >= self.known.record.concurrency() {
            let what = format!("the call would wait for itself: {}", text());
            return Err(Error::new(Code::InvalidArgument, "register the function with a higher concurrency", what));
        }
        Ok(chain)
    }

    #[inline]
    pub(super) fn waiting<'e>(&self, endpoint: &'e mut Endpoint, (until, wait_until): Times) -> Waiting<'e>
    where
        'a: 'e,
    {
        let (object, scope) = self.lent.map_or((0, None), |l| (l.object, Some(&*l.scope)));
        let Target { inner, known, .. } = *self;
        let (away, closer, outer) = (None, None, None);
        let (window, serving) = (0, None);
        Waiting { inner, known, endpoint, until, wait_until, away, window, object, scope, closer, outer, serving }
    }

    #[inline]
    pub(super) fn invoke(&self, mut args: Arguments, limits: Limits, times: Times) -> Result<Received> {
        // By name no provider is waited for at one version: another one may come.
        let (wait, first) = if limits.by_name { (None, (times.0, None)) } else { (limits.wait, times) };
        match self.invoke_until(&mut args, Limits { wait, ..limits }, first) {
            Err(e) if limits.by_name && e.code() == Code::NoProvider => self.invoke_anew(args, limits, times, e),
            ended => ended.map_err(|e| self.known.by_deadline(e, times.0)),
        }
    }

    /// A call by name whose function has no provider, and has not run: at what the name means now, if that has one.
    #[cold]
    fn invoke_anew(&self, mut args: Arguments, limits: Limits, times: Times, mut none: Error) -> Result<Received> {
        let once = Limits { wait: None, ..limits };
        let look = || self.calls.anew(self.inner, &self.known.asked);
        loop {
            let found = match limits.wait {
                None if self.inner.broker_away() => return Err(none), // what is known holds
                None => for_a_moment(times.0, look),
                Some(_) => self.persist(times.0, look),
            };
            let Ok(mut known) = found else {
                call::check_current()?;
                return Err(none);
            };
            while !known.has_provider() {
                if limits.wait.is_none() || is_past(times.1) {
                    return Err(known.no_provider());
                }
                known = await_anew(self.inner, self.calls, known, times)?;
            }
            let target = Target { known: &known, ..*self };
            match target.invoke_until(&mut args, once, (times.0, None)) {
                Err(e) if e.code() == Code::NoProvider => none = e,
                ended => return ended.map_err(|e| known.by_deadline(e, times.0)),
            }
        }
    }

    #[inline]
    fn invoke_until(&self, args: &mut Arguments, limits: Limits, times: Times) -> Result<Received> {
        call::check_current()?; // a function that replies at once would have done so before a wait looks
        if !self.is_provided(limits, times)? {
            await_provider(self.inner, self.known, times)?;
        }
        self.fit(args, false)?;
        let chain = call::current(|outer| outer.map_or(Ok(Vec::new()), |outer| self.chain(outer)))?;
        let mut endpoint = self.persist(times.0, || self.calls.endpoint(self.inner, self.known, false))?;
        let mut lending = Lending::new(self.inner, self.calls, true, None, times.0);
        let waiting = self.waiting(&mut endpoint, times);
        let ended = waiting.call(args, limits.by_name, &chain, &mut |f| lending.lend(f), &|| self.goes_on());
        self.calls.give_back(endpoint);
        drop(lending);
        succeeded(self.known, ended?, times.0)
    }
}
