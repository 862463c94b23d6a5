//! What may be a name.

use crate::error::{Code, Error, Result};

/// Accepts one token of `[A-Za-z0-9_-]`.
pub(crate) fn check_token(what: &str, text: &str, most: usize) -> Result<()> {
    let fits = !text.is_empty() && text.len() <= most;
    if fits && text.bytes().all(|c| c.is_ascii_alphanumeric() || c == b'_' || c == b'-') {
        return Ok(());
    }
    let remedy = format!("use 1 to {most} of A-Z a-z 0-9 _ -");
    Err(Error::new(Code::InvalidArgument, remedy, format!("{what} {text:?} is not one token")))
}

/// Accepts tokens joined by `/`, at most 200 bytes.
pub(crate) fn check_name(name: &str) -> Result<()> {
    if name.len() > 200 {
        let what = format!("name of {} bytes is longer than 200", name.len());
        return Err(Error::new(Code::InvalidArgument, "use a shorter one", what));
    }
    name.split('/').try_for_each(|t| check_token("part of a name", t, 200))
}
