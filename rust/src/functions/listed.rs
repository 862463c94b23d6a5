//! The functions that there are.

use serde::{Deserialize, Serialize};
use serde_json::Value as Json;

use super::signature::Signature;
use crate::error::Result;
use crate::holding::Opening;

/// A function as the broker lists it.
#[derive(Debug, Clone)]
#[non_exhaustive]
pub struct FunctionInfo {
    /// Its name, with its version.
    pub name: String,
    /// What it takes and gives.
    pub signature: String,
    /// What it does.
    pub doc: String,
    /// Whether another provider runs a call again whose provider has ended before it replied.
    pub idempotent: bool,
    /// Whether one process alone may provide it.
    pub exclusive: bool,
    /// Sessions that have called it.
    pub callers: usize,
    /// Calls that no provider has taken.
    pub waiting: usize,
    /// Calls that providers have.
    pub running: usize,
    /// What all providers say of the calls that they ran, also those that have left.
    pub counted: CallCounts,
    /// The sessions that provide it.
    pub providers: Vec<ProviderInfo>,
}

/// A provider of a function.
#[derive(Debug, Clone, Deserialize)]
#[non_exhaustive]
pub struct ProviderInfo {
    /// The serial of its session.
    pub session: u64,
    /// The name of its session.
    pub name: String,
    /// Its process.
    pub pid: u32,
    /// How many calls it takes at a time.
    pub concurrency: u32,
    /// How many it has.
    pub running: usize,
    /// Whether its process is suspended.
    #[serde(default)]
    pub stopped: bool,
    /// The user of its process.
    #[serde(default)]
    pub uid: u32,
    /// What it says of the calls that it ran.
    #[serde(flatten)]
    pub counted: CallCounts,
}

/// What providers say of the calls that they ran. One that breaks the protocol spoils its own numbers.
#[derive(Debug, Clone, Copy, Default, PartialEq, Deserialize)]
#[serde(default)]
#[non_exhaustive]
pub struct CallCounts {
    /// Calls that ended.
    pub calls: u64,
    /// Those of them that ended by an error.
    pub errors: u64,
    /// Seconds within which half of them ended; `None` where there were none. It is the upper bound of a bucket of times:
    /// at most a quarter more than the time itself.
    #[serde(rename = "p50_seconds")]
    pub p50: Option<f64>,
    /// Seconds within which 99 of 100 ended, as `p50` is.
    #[serde(rename = "p99_seconds")]
    pub p99: Option<f64>,
}

#[derive(Serialize)]
struct Request<'a> {
    what: &'static str,
    pattern: &'a str,
    #[serde(skip_serializing_if = "str::is_empty")]
    cursor: String,
}

#[derive(Deserialize)]
struct Page {
    rows: Vec<Row>,
    #[serde(default)]
    cursor: String,
}

#[derive(Deserialize)]
struct Row {
    name: String,
    idempotent: bool,
    exclusive: bool,
    #[serde(default)]
    description: Json,
    callers: usize,
    waiting: usize,
    running: usize,
    #[serde(flatten)]
    counted: CallCounts,
    providers: Vec<ProviderInfo>,
}

/// Those of the session's namespace whose names match.
pub(crate) fn list(inner: &Opening, pattern: &str) -> Result<Vec<FunctionInfo>> {
    let (mut all, mut cursor) = (Vec::new(), String::new());
    loop {
        let page: Page = inner.call("list", &Request { what: "functions", pattern, cursor })?;
        all.extend(page.rows.into_iter().map(FunctionInfo::from));
        if page.cursor.is_empty() {
            return Ok(all);
        }
        cursor = page.cursor;
    }
}

impl From<Row> for FunctionInfo {
    fn from(row: Row) -> FunctionInfo {
        let Row { name, idempotent, exclusive, description, callers, waiting, running, counted, providers } = row;
        let signature = Signature::parse(description.to_string().as_bytes()).unwrap_or_default();
        let (doc, signature) = (signature.doc.clone(), signature.to_text());
        FunctionInfo { name, signature, doc, idempotent, exclusive, callers, waiting, running, counted, providers }
    }
}
