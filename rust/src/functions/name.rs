//! What may be the name of a function.

use crate::error::{Code, Error, Result};
use crate::lanes::check_name;

/// Accepts tokens joined by `/`, behind them perhaps `@` and a version: tokens joined by dots; at most 200 bytes.
pub(crate) fn check_function(name: &str) -> Result<()> {
    let (base, version) = name.split_once('@').unwrap_or((name, "0"));
    check_name(base)?;
    if name.len() > 200 {
        let what = format!("the function {name:?} has a name of {} bytes, at most 200 fit", name.len());
        return Err(Error::new(Code::InvalidArgument, "use a shorter one", what));
    }
    let token = |t: &str| !t.is_empty() && t.bytes().all(|c| c.is_ascii_alphanumeric() || c == b'_' || c == b'-');
    if version.split('.').all(token) {
        return Ok(());
    }
    let what = format!("the function {base} has the version {version:?}");
    Err(Error::new(Code::InvalidArgument, "use tokens of A-Z a-z 0-9 _ - joined by dots", what))
}

#[cfg(test)]
mod tests {
    use super::check_function;

    #[test]
    fn a_version_is_of_tokens_and_dots() {
        for good in ["f", "vision/normalize", "f@1", "a/b@1.2-rc_3.x"] {
            assert!(check_function(good).is_ok(), "{good}");
        }
        for bad in ["", "@1", "f@", "f@1..2", "f@a/b", "a b", "f@1@2", &format!("{}@1", "f".repeat(199))] {
            assert!(check_function(bad).is_err(), "{bad}");
        }
    }
}
