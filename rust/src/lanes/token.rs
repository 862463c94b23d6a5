//! What may be a name.

use crate::error::{Code, Error, Result};

fn is_token(text: &str) -> bool {
    !text.is_empty() && text.bytes().all(|c| c.is_ascii_alphanumeric() || c == b'_' || c == b'-')
}

/// Accepts one token of `[A-Za-z0-9_-]`.
pub(crate) fn check_token(what: &str, text: &str, most: usize) -> Result<()> {
    if text.len() <= most && is_token(text) {
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
    let Some(other) = name.split('/').find(|t| !is_token(t)) else { return Ok(()) };
    let mut remedy = "use tokens of A-Z a-z 0-9 _ - joined by /".to_owned();
    let slashed = name.replace('.', "/"); // dots stand between the parts of names elsewhere
    if slashed.split('/').all(is_token) {
        remedy += &format!(": {slashed}");
    }
    Err(Error::new(Code::InvalidArgument, remedy, format!("name {name:?} has the token {other:?}")))
}

#[cfg(test)]
mod tests {
    use super::check_name;

    #[test]
    fn a_name_with_dots_is_told_how_it_is_written() {
        let said = |name| check_name(name).unwrap_err().to_string();
        let joined = "use tokens of A-Z a-z 0-9 _ - joined by /";
        assert_eq!(said("u/v.add"), format!("name \"u/v.add\" has the token \"v.add\" ({joined}: u/v/add)"));
        assert_eq!(said("u..add"), format!("name \"u..add\" has the token \"u..add\" ({joined})"));
        assert!(check_name("u/v/add").is_ok());
    }
}
