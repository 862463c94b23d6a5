//! Functions as values: a registered one by its name, and one of the sender's by the private function in which it is
//! called.

use std::any::Any;
use std::fmt;
use std::sync::Arc;

use super::MOST_SAFE;

/// A function as an argument of a call, or in its result: one that processes provide, by its name, or a closure of
/// this process, which the receiver of the call may call until that ends.
///
/// ```
/// # fn main() -> Result<(), baton::Error> {
/// # let Some(_broker) = baton_testkit::broker() else { return Ok(()) };
/// # let session = baton::Session::connect()?;
/// use baton::{Function, FunctionValue};
///
/// let _train = session.function("train", |args, _| {
///     let on_step: Function = args.get("on_step")?;
///     assert!(on_step.is_lent()); // until this call ends
///     (0..3).try_for_each(|step| on_step.call::<()>((step, 0.5)))
/// })?;
/// let on_step = FunctionValue::new(|args, _| {
///     println!("{}: {}", args.get::<i64>(0)?, args.get::<f64>(1)?);
///     Ok(())
/// });
/// session.call::<()>("train", baton::Arguments::new().named("on_step", on_step))?; // it runs in this thread
/// # Ok(()) }
/// ```
#[derive(Clone)]
pub struct FunctionValue {
    pub(crate) is: FunctionIs,
    /// Where it can be called, once it came with a call; of one of this process what runs it.
    pub(crate) at: Option<Arc<dyn Any + Send + Sync>>,
}

/// What a function is, as a tree says it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum FunctionIs {
    /// A registered one.
    Named(Box<str>),
    /// One of the sender's: the token of a private function, and its number there.
    Lent(Lent),
    /// One of this process, which has neither yet.
    Own,
}

/// A function that lives as long as the call that it was given to.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Lent {
    pub(crate) token: [u8; 16],
    pub(crate) object: u64,
}

/// Bytes of a name, with its version.
const MOST_NAME: usize = 200;

/// Lends a function of this process, as its value is written.
pub(crate) type Lend<'a> = dyn FnMut(&FunctionValue) -> crate::error::Result<Lent> + 'a;

impl FunctionValue {
    pub(crate) fn of(is: FunctionIs) -> FunctionValue {
        FunctionValue { is, at: None }
    }

    /// The name of a registered one.
    pub fn name(&self) -> Option<&str> {
        match &self.is {
            FunctionIs::Named(name) => Some(name),
            _ => None,
        }
    }
}

impl fmt::Debug for FunctionValue {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match &self.is {
            FunctionIs::Named(name) => write!(f, "Function({name})"),
            FunctionIs::Lent(lent) => write!(f, "Function(number {})", lent.object),
            FunctionIs::Own => f.write_str("Function(of this process)"),
        }
    }
}

impl Lent {
    /// As the tree has it.
    pub(crate) fn text(self) -> String {
        let token: String = self.token.iter().map(|b| format!("{b:02x}")).collect();
        format!(r#"{{"$":"function","object":{},"token":"{token}"}}"#, self.object)
    }

    /// Of what a tree has: the bytes of a token in lower-case digits, and a number from 1 on.
    pub(crate) fn read(token: &str, object: i64) -> Option<Lent> {
        let object = u64::try_from(object).ok().filter(|n| *n > 0 && object <= MOST_SAFE)?;
        Some(Lent { token: token_bytes(token)?, object })
    }
}

/// Whether it is the name of a function: tokens joined by `/`, perhaps with a version, of tokens joined by dots.
pub(super) fn is_function_name(name: &str) -> bool {
    let token = |t: &str| !t.is_empty() && t.bytes().all(|c| c.is_ascii_alphanumeric() || c == b'_' || c == b'-');
    let (base, version) = name.split_once('@').unwrap_or((name, "0"));
    name.len() <= MOST_NAME && base.split('/').all(token) && version.split('.').all(token)
}

/// The bytes of a token.
pub(crate) fn token_bytes(token: &str) -> Option<[u8; 16]> {
    let lower = |b: u8| b.is_ascii_digit() || (b'a'..=b'f').contains(&b);
    if token.len() != 32 || !token.bytes().all(lower) {
        return None;
    }
    let mut bytes = [0; 16];
    for (i, b) in bytes.iter_mut().enumerate() {
        *b = u8::from_str_radix(&token[2 * i..2 * i + 2], 16).ok()?;
    }
    Some(bytes)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_token_is_of_sixteen_bytes() {
        assert_eq!(token_bytes("000102030405060708090a0b0c0d0eff").map(|b| (b[1], b[15])), Some((1, 255)));
        for odd in ["", "00", "0001020304050607 8090a0b0c0d0eff", "zz0102030405060708090a0b0c0d0eff"] {
            assert_eq!(token_bytes(odd), None, "{odd}");
        }
        assert_eq!(token_bytes("000102030405060708090A0B0C0D0EFF"), None);
    }

    #[test]
    fn a_lent_function_reads_as_it_was_written() {
        let token = "000102030405060708090a0b0c0d0eff";
        let lent = Lent::read(token, MOST_SAFE).unwrap();
        assert_eq!(lent.text(), format!(r#"{{"$":"function","object":{MOST_SAFE},"token":"{token}"}}"#));
        assert!(Lent::read(token, 0).is_none() && Lent::read(token, MOST_SAFE + 1).is_none());
        assert!(Lent::read(token, -1).is_none() && Lent::read("", 1).is_none());
    }
}
