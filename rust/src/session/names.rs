//! Names: published revisions that are not written any more, and live ones that all write.

use std::sync::atomic::Ordering;
use std::time::Duration;

use base64::Engine;
use base64::engine::general_purpose::STANDARD;

use super::Session;
use crate::crash_point;
use crate::deadline::{deadline, within};
use crate::error::{Code, Error, Result};
use crate::holding::storage_ref;
use crate::lanes::{NameOptions, Watch, bundle_of, check_name};
use crate::layout::{DEFAULT_DESCRIPTION, slot_flag};
use crate::link::Broker;
use crate::sys::random;
use crate::tensor::await_written;
use crate::value::{Bundle, Outgoing, Payload};
use crate::wire::ops::{Ignored, NameRef, NameSet, NameSetReply};

impl Session {
    /// Publishes a revision of a name: a whole that is not written any more. Its number. Errors:
    /// `InvalidArgument`, `Expired`, `OutOfMemory`.
    ///
    /// ```
    /// # fn main() -> Result<(), baton::Error> {
    /// # let Some(_broker) = baton_testkit::broker() else { return Ok(()) };
    /// # let session = baton::Session::connect()?;
    /// let weights = baton::Payload::named([("w", session.zeros::<f32>(&[4])?.freeze())]);
    /// assert_eq!(session.set("weights/actor", weights)?, 1);
    /// let bundle = session.get("weights/actor", None)?;
    /// assert!(bundle.get("w").is_some_and(|w| w.is_read_only()));
    /// assert_eq!(session.names("weights/*")?, ["weights/actor"]);
    /// session.delete("weights/actor")?;
    /// # Ok(()) }
    /// ```
    pub fn set(&self, name: &str, value: impl Into<Payload>) -> Result<u64> {
        self.set_with(name, value, &NameOptions::default())
    }

    /// As [`set`](Session::set), with options: a live name is one bundle that all sessions may write in
    /// place, an ephemeral one is deleted at the end of this session. Errors as of [`set`](Session::set).
    ///
    /// ```
    /// # fn main() -> Result<(), baton::Error> {
    /// # let Some(_broker) = baton_testkit::broker() else { return Ok(()) };
    /// # let session = baton::Session::connect()?;
    /// let shared = baton::NameOptions::default().live(true).ephemeral(true);
    /// session.set_with("weights/run", session.zeros::<f32>(&[2])?.freeze(), &shared)?;
    /// let mut w = session.get("weights/run", None)?.first().unwrap().clone();
    /// // In this example nothing else reads or writes it meanwhile.
    /// let all = unsafe { w.as_mut_slice::<f32>()? };
    /// all[0] = 1.0;
    /// assert_eq!(session.get("weights/run", None)?.first().unwrap().to_vec::<f32>()?, [1.0, 0.0]);
    /// # Ok(()) }
    /// ```
    pub fn set_with(&self, name: &str, value: impl Into<Payload>, o: &NameOptions) -> Result<u64> {
        self.set_name(name, &value.into(), o)
    }

    fn set_name(&self, name: &str, value: &Payload, o: &NameOptions) -> Result<u64> {
        check_name(name)?;
        let mut out = Outgoing::default();
        let inner = self.inner()?;
        await_written(value.tensors.iter().map(|(_, t)| t))?;
        out.compose(inner, value, 0)?;
        let body = out.body();
        out.place(inner, DEFAULT_DESCRIPTION as usize)?;
        let spilled = out.head.flags & slot_flag::SPILLED != 0;
        // A spilled message names its spill storage first, then what stands in it.
        let refs = out.spill_ref().into_iter().chain(out.refs.iter().copied()).map(storage_ref).collect();
        let body = if spilled { String::new() } else { STANDARD.encode(body) };
        let (bytes, tensors) = (out.head.bytes, out.head.tensors);
        let setting = (random()? >> 11).max(1); // JSON keeps 53 bits
        let request =
            NameSet { name, setting, live: o.live, ephemeral: o.ephemeral, refs, spilled, bytes, tensors, body };
        crash_point::at("name-asked");
        let ok: NameSetReply = inner.call("name.set", &request)?;
        crash_point::at("name-set");
        inner.handovers.fetch_add(1, Ordering::Relaxed);
        Ok(ok.revision)
    }

    /// The newest revision of a name. `NotFound` when there is none within the timeout; without one it waits for
    /// ever. With zero it does not wait for a revision, and for a broker that is away as calls do that have no
    /// timeout: 30 s at most.
    pub fn get(&self, name: &str, timeout: impl Into<Option<Duration>>) -> Result<Bundle> {
        let timeout = timeout.into();
        let until = deadline(timeout);
        check_name(name)?;
        let found = match timeout {
            Some(Duration::ZERO) => self.got.newest(self.inner()?, name)?,
            _ => match within(until, || self.got.newest(self.inner()?, name))? {
                None => match within(until, || self.watch(name))?.next_until(until) {
                    Err(e) if e.is_timeout() && !e.is_unanswered() => None,
                    found => return found,
                },
                found => found,
            },
        };
        let none = || Error::new(Code::NotFound, "set it first, or wait longer", format!("name {name} is not set"));
        let (found, stale) = found.ok_or_else(none)?;
        bundle_of(&found, stale)
    }

    /// Follows a name. Errors: `InvalidArgument` for what is no name, `TooMany`.
    pub fn watch(&self, name: &str) -> Result<Watch> {
        check_name(name)?;
        Watch::new(self.inner()?, name)
    }

    /// Removes a name. Bundles that were got stay with their holders. `NotFound` when it is not set.
    pub fn delete(&self, name: &str) -> Result<()> {
        check_name(name)?;
        self.got.forget(name);
        let (request, mut before) = (NameRef { name }, false);
        match self.inner()?.call_noting::<_, Ignored>(Broker::Any, "name.delete", &request, &[], &mut before) {
            // The broker that was asked before has deleted it, and could not say so any more.
            Err(e) if before && e.code() == Code::NotFound => Ok(()),
            answer => answer.map(drop),
        }
    }
}
