//! Panics of code that is the program's, which end nothing of this crate's.

use std::panic::{AssertUnwindSafe, catch_unwind};

/// Runs what may panic; the error is what the panic says. The caller sees to it that nothing half done stays behind.
#[doc(hidden)]
pub fn caught<T>(run: impl FnOnce() -> T) -> Result<T, String> {
    catch_unwind(AssertUnwindSafe(run)).map_err(|panic| {
        let panic = match panic.downcast::<&str>() {
            Ok(text) => return (*text).to_owned(),
            Err(other) => other,
        };
        match panic.downcast::<String>() {
            Ok(text) => *text,
            Err(other) => {
                std::mem::forget(other); // its drop is the program's too, and may panic
                "a panic without a message".to_owned()
            }
        }
    })
}

#[cfg(test)]
mod tests {
    use super::caught;

    #[test]
    fn a_panic_is_told_and_its_payload_does_nothing() {
        struct Bad;
        impl Drop for Bad {
            fn drop(&mut self) {
                panic!("from the drop");
            }
        }
        assert_eq!(caught(|| 3), Ok(3));
        assert_eq!(caught::<()>(|| panic!("so")), Err("so".to_owned()));
        assert_eq!(caught::<()>(|| panic!("{} more", 2)), Err("2 more".to_owned()));
        assert!(caught::<()>(|| std::panic::panic_any(Bad)).is_err());
    }
}
