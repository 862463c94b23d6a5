//! Numbers as text, without an allocation.

/// Digits that a number may have.
pub(super) const DIGITS: usize = 20;

/// A number in decimal digits, without an allocation.
pub(super) fn decimal(mut n: usize, buffer: &mut [u8; DIGITS]) -> &str {
    let mut from = DIGITS;
    loop {
        from -= 1;
        buffer[from] = b'0' + (n % 10) as u8;
        n /= 10;
        if n == 0 {
            // SAFETY: digits are ASCII.
            return unsafe { std::str::from_utf8_unchecked(&buffer[from..]) };
        }
    }
}
