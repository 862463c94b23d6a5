//! Handles: what travels instead of a tensor, as JSON (docs/protocol.md, section 6).

use serde::{Deserialize, Serialize};

use crate::error::{Code, Error, Result};
use crate::layout::{GENERATION_MASK, limits};

const MOST: u64 = (1 << 53) - 1;
const MOST_JSON: usize = 16 << 10;

/// Whether JSON holds a number exactly for every reader.
fn within(n: i64) -> bool {
    n.unsigned_abs() <= MOST
}

/// Where a storage is and what the view over it looks like. A tensor without elements has no storage:
/// the numbers are 0 then and there is no lease.
///
/// ```
/// # fn main() -> Result<(), baton::Error> {
/// # let Some(_broker) = baton_testkit::broker() else { return Ok(()) };
/// # let session = baton::Session::connect()?;
/// let x = session.from_slice(&[2], &[1u8, 2])?.freeze();
/// let handle = x.handle(baton::Lease::Once)?;
/// let carried = baton::Handle::from_json(&handle.to_json())?;
/// assert_eq!(carried, handle);
/// assert_eq!(session.open(&carried)?.to_vec::<u8>()?, [1, 2]);
/// assert_eq!(baton::Handle::from_json("{}").unwrap_err().code(), baton::Code::InvalidHandle);
/// # Ok(()) }
/// ```
#[derive(Debug, Clone, PartialEq, Eq, Deserialize)]
#[serde(try_from = "Wire")]
#[non_exhaustive]
pub struct Handle {
    /// Instance of the broker whose memory it is.
    pub host: String,
    /// Serial of the segment.
    pub segment: u64,
    /// Serial of the chunk of indices.
    pub serial: u64,
    /// Index of the storage.
    pub index: u32,
    /// Generation of the storage.
    pub generation: u64,
    /// Where the storage begins in the segment, in bytes.
    pub offset: u64,
    /// Bytes of the storage.
    pub bytes: u64,
    /// Type, as ml_dtypes names it.
    pub dtype: String,
    /// Extents.
    pub shape: Vec<i64>,
    /// Strides in elements; `None`: C-contiguous.
    pub strides: Option<Vec<i64>>,
    /// Where the view begins in the storage.
    pub byte_offset: u64,
    /// `cpu` or `cuda:N`.
    pub device: String,
    /// Whether the tensor must not be written.
    pub readonly: bool,
    /// What protects it on the way.
    pub lease: Option<u64>,
}

/// The JSON: every field stands in it once, null ones too; unknown ones are ignored.
#[derive(Deserialize)]
struct Wire {
    v: u64,
    host: String,
    segment: u64,
    serial: u64,
    index: u64,
    generation: u64,
    offset: u64,
    bytes: u64,
    dtype: String,
    shape: Vec<i64>,
    #[serde(deserialize_with = "present")]
    strides: Option<Vec<i64>>,
    byte_offset: u64,
    device: String,
    readonly: bool,
    #[serde(deserialize_with = "present")]
    lease: Option<u64>,
}

/// An optional field that must stand there: serde would take a missing one for null.
fn present<'de, D: serde::Deserializer<'de>, T: Deserialize<'de>>(d: D) -> std::result::Result<Option<T>, D::Error> {
    Option::deserialize(d)
}

/// The same, of what a handle has: a pickle may have many, none of which is copied to be written.
#[derive(Serialize)]
struct Written<'a> {
    v: u64,
    host: &'a str,
    segment: u64,
    serial: u64,
    index: u32,
    generation: u64,
    offset: u64,
    bytes: u64,
    dtype: &'a str,
    shape: &'a [i64],
    strides: Option<&'a [i64]>,
    byte_offset: u64,
    device: &'a str,
    readonly: bool,
    lease: Option<u64>,
}

impl Serialize for Handle {
    fn serialize<S: serde::Serializer>(&self, to: S) -> std::result::Result<S::Ok, S::Error> {
        let written = Written {
            v: 1,
            host: &self.host,
            segment: self.segment,
            serial: self.serial,
            index: self.index,
            generation: self.generation,
            offset: self.offset,
            bytes: self.bytes,
            dtype: &self.dtype,
            shape: &self.shape,
            strides: self.strides.as_deref(),
            byte_offset: self.byte_offset,
            device: &self.device,
            readonly: self.readonly,
            lease: self.lease,
        };
        written.serialize(to)
    }
}

impl TryFrom<Wire> for Handle {
    type Error = Error;

    fn try_from(w: Wire) -> Result<Handle> {
        if w.v != 1 {
            let what = format!("a handle is of version {}; this client reads 1", w.v);
            return Err(Error::new(Code::InvalidHandle, "use a client of the version that made it", what));
        }
        let h = Handle {
            index: u32::try_from(w.index).map_err(|_| bad(format!("has index {}", w.index)))?,
            host: w.host,
            segment: w.segment,
            serial: w.serial,
            generation: w.generation,
            offset: w.offset,
            bytes: w.bytes,
            dtype: w.dtype,
            shape: w.shape,
            strides: w.strides,
            byte_offset: w.byte_offset,
            device: w.device,
            readonly: w.readonly,
            lease: w.lease,
        };
        h.check()?;
        Ok(h)
    }
}

fn bad(what: impl std::fmt::Display) -> Error {
    let remedy = "take it again from its maker; a handle is passed on unchanged";
    Error::new(Code::InvalidHandle, remedy, format!("a handle {what}"))
}

impl Handle {
    /// Strides as JSON can carry them. One beyond that leads to no element of a storage: it is of a
    /// dimension with one at most, or of a tensor without any, and may be any number.
    pub(crate) fn strides_of(strides: &[i64]) -> Vec<i64> {
        strides.iter().map(|s| if within(*s) { *s } else { 1 }).collect()
    }

    /// Writes the JSON.
    pub fn to_json(&self) -> String {
        serde_json::to_string(self).unwrap_or_default() // strings and numbers only
    }

    /// Reads a handle that came from anywhere. Every refusal is `InvalidHandle`.
    pub fn from_json(json: &str) -> Result<Handle> {
        if json.len() > MOST_JSON {
            return Err(bad(format!("of {} bytes is longer than {MOST_JSON}", json.len())));
        }
        let w: Wire = serde_json::from_str(json).map_err(|e| bad(format!("is malformed: {e}")))?;
        Handle::try_from(w)
    }

    /// Whether it is of a tensor without elements, which has no storage to open.
    pub fn is_empty(&self) -> bool {
        self.serial == 0
    }

    /// Refuses numbers and names that no handle has. Whether the view fits in its storage and the storage
    /// exists is seen when it is opened. Error: `InvalidHandle`.
    pub fn check(&self) -> Result<()> {
        let token = |s: &str| !s.is_empty() && s.bytes().all(|c| c.is_ascii_alphanumeric() || c == b'_' || c == b'-');
        if self.host.len() > 64 || !token(&self.host) {
            return Err(bad("is of a host that is no instance"));
        }
        if self.dtype.is_empty()
            || self.dtype.len() > 32
            || !self.dtype.bytes().all(|c| matches!(c, b'a'..=b'z' | b'0'..=b'9' | b'_'))
        {
            return Err(bad("has a dtype that is no name of a type"));
        }
        let cuda = self
            .device
            .strip_prefix("cuda:")
            .and_then(|n| n.parse::<u32>().ok().filter(|k| k.to_string() == n && *k < 1 << 31));
        if self.device != "cpu" && cuda.is_none() {
            return Err(bad("is on a device that is neither \"cpu\" nor \"cuda:N\""));
        }
        if self.index >= limits::STORAGES || self.generation > GENERATION_MASK {
            return Err(bad(format!("has index {} and generation {}", self.index, self.generation)));
        }
        let end = self.offset.checked_add(self.bytes).is_some_and(|n| n <= MOST);
        if self.segment > MOST || self.serial > MOST || !end || self.byte_offset > self.bytes {
            return Err(bad("has numbers beyond its storage or 2^53-1"));
        }
        if self.lease.is_some_and(|l| l == 0 || l > MOST) {
            return Err(bad("has a lease outside 1 to 2^53-1"));
        }
        let strides = self.strides.as_deref().unwrap_or_default();
        if self.shape.len() > limits::NDIM || self.strides.is_some() && strides.len() != self.shape.len() {
            return Err(bad(format!("has {} dimensions and {} strides", self.shape.len(), strides.len())));
        }
        if self.shape.iter().any(|d| *d < 0 || !within(*d)) || strides.iter().any(|s| !within(*s)) {
            return Err(bad("has a dimension or stride that cannot be"));
        }
        self.check_storage()
    }

    fn check_storage(&self) -> Result<()> {
        if !self.is_empty() {
            return if self.segment == 0 { Err(bad("has a serial but no segment")) } else { Ok(()) };
        }
        let numbers = [self.segment, u64::from(self.index), self.generation, self.offset, self.bytes];
        if numbers.iter().any(|n| *n != 0) || self.lease.is_some() {
            return Err(bad("has serial 0 but names a storage"));
        }
        if !self.shape.contains(&0) {
            return Err(bad("has elements but no storage"));
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const JSON: &str = r#"{"v":1,"host":"h1","segment":3,"serial":5,"index":7,"generation":2,"offset":256,"bytes":24,"dtype":"float32","shape":[2,3],"strides":null,"byte_offset":0,"device":"cpu","readonly":true,"lease":9}"#;

    #[test]
    fn a_handle_reads_as_it_was_written() {
        let h = Handle::from_json(JSON).unwrap();
        assert_eq!(h.to_json(), JSON);
        assert_eq!((h.shape.as_slice(), h.lease, h.strides), (&[2, 3][..], Some(9), None));
    }

    #[test]
    fn damaged_handles_are_refused() {
        let parsed: serde_json::Map<String, serde_json::Value> = serde_json::from_str(JSON).unwrap();
        for key in parsed.keys() {
            let mut less = parsed.clone();
            less.remove(key);
            let json = serde_json::to_string(&less).unwrap();
            assert_eq!(Handle::from_json(&json).unwrap_err().code(), Code::InvalidHandle, "without {key}");
        }
        for (from, to) in [
            ("\"v\":1", "\"v\":2"),
            ("\"index\":7", "\"index\":4194304"),
            ("\"index\":7", "\"index\":-1"),
            ("\"generation\":2", "\"generation\":4503599627370496"),
            ("\"offset\":256", "\"offset\":9007199254740991"),
            ("[2,3]", "[-2,3]"),
            ("\"strides\":null", "\"strides\":[1]"),
            ("\"byte_offset\":0", "\"byte_offset\":25"),
            ("\"cpu\"", "\"cuda:01\""),
            ("\"h1\"", "\"h/1\""),
            ("\"lease\":9", "\"lease\":0"),
            ("\"segment\":3", "\"segment\":0"),
            ("\"serial\":5", "\"serial\":0"),
            ("\"float32\"", "\"Float32\""),
        ] {
            let json = JSON.replace(from, to);
            assert_ne!(json, JSON);
            assert_eq!(Handle::from_json(&json).unwrap_err().code(), Code::InvalidHandle, "{to}");
        }
    }
}
