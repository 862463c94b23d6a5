//! Types of elements, as DLPack numbers and ml_dtypes names them, and the sizes of views.

use std::fmt;
use std::hash::{Hash, Hasher};
use std::str::FromStr;

use crate::dims::Dims;
use crate::error::{Code, Error, Result};
use crate::layout::limits;

/// What one element is: DLDataType, kept as integers because others write them.
///
/// ```
/// # fn main() -> Result<(), baton::Error> {
/// use baton::DType;
///
/// let t = DType::parse("bfloat16")?;
/// assert_eq!((t, t.to_string()), (DType::BFLOAT16, "bfloat16".to_owned()));
/// assert_eq!(DType::UINT4.num_bytes(&[3])?, 2); // packed
/// # Ok(()) }
/// ```
#[repr(C)]
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct DType {
    /// DLDataTypeCode.
    pub code: u8,
    /// Bits of one lane; of both parts together for a complex number.
    pub bits: u8,
    /// 1 except for vector elements.
    pub lanes: u16,
}

macro_rules! dtypes {
    ($($konst:ident $name:literal $code:literal $bits:literal;)*) => {
        impl DType {
            $(#[doc = concat!("`", $name, "`.")] pub const $konst: DType = DType { code: $code, bits: $bits, lanes: 1 };)*
        }
        /// The whole list of accepted types.
        const NAMES: &[(DType, &str)] = &[$((DType::$konst, $name),)*];
    };
}

dtypes! {
    BOOL "bool" 6 8;
    INT1 "int1" 0 1; INT2 "int2" 0 2; INT4 "int4" 0 4;
    INT8 "int8" 0 8; INT16 "int16" 0 16; INT32 "int32" 0 32; INT64 "int64" 0 64;
    UINT1 "uint1" 1 1; UINT2 "uint2" 1 2; UINT4 "uint4" 1 4;
    UINT8 "uint8" 1 8; UINT16 "uint16" 1 16; UINT32 "uint32" 1 32; UINT64 "uint64" 1 64;
    FLOAT16 "float16" 2 16; FLOAT32 "float32" 2 32; FLOAT64 "float64" 2 64; BFLOAT16 "bfloat16" 4 16;
    COMPLEX32 "complex32" 5 32; COMPLEX64 "complex64" 5 64; COMPLEX128 "complex128" 5 128;
    FLOAT8_E3M4 "float8_e3m4" 7 8; FLOAT8_E4M3 "float8_e4m3" 8 8; FLOAT8_E4M3B11FNUZ "float8_e4m3b11fnuz" 9 8;
    FLOAT8_E4M3FN "float8_e4m3fn" 10 8; FLOAT8_E4M3FNUZ "float8_e4m3fnuz" 11 8; FLOAT8_E5M2 "float8_e5m2" 12 8;
    FLOAT8_E5M2FNUZ "float8_e5m2fnuz" 13 8; FLOAT8_E8M0FNU "float8_e8m0fnu" 14 8;
    FLOAT6_E2M3FN "float6_e2m3fn" 15 6; FLOAT6_E3M2FN "float6_e3m2fn" 16 6; FLOAT4_E2M1FN "float4_e2m1fn" 17 4;
    HANDLE64 "handle64" 3 64;
}

/// The bits that the accepted types of one lane have, by code: bit n for n bits.
const KNOWN: [[u64; 4]; 32] = {
    let mut known = [[0; 4]; 32];
    let mut i = 0;
    while i < NAMES.len() {
        let DType { code, bits, .. } = NAMES[i].0;
        known[code as usize][bits as usize / 64] |= 1 << (bits % 64);
        i += 1;
    }
    known
};

#[cold]
fn invalid(remedy: &str, what: String) -> Error {
    Error::new(Code::InvalidArgument, remedy, what)
}

/// Numbers that 64 bits cannot hold.
fn too_large(what: String) -> Error {
    invalid("use a shape and strides whose bytes fit in 64 bits", what)
}

impl DType {
    fn base_name(self) -> Option<&'static str> {
        let base = DType { lanes: 1, ..self };
        NAMES.iter().find(|(d, _)| *d == base && self.lanes > 0).map(|(_, n)| *n)
    }

    /// Reads a name as ml_dtypes spells it (`float32`, `bfloat16`), followed by `xN` for N ≥ 2 lanes.
    /// `InvalidArgument` for any other text.
    pub fn parse(name: &str) -> Result<DType> {
        let known = |s: &str| NAMES.iter().find(|(_, n)| *n == s).map(|(d, _)| *d);
        let parsed = known(name).or_else(|| {
            let (base, digits) = name.rsplit_once('x')?;
            let lanes: u16 = digits.parse().ok().filter(|n| *n >= 2 && !digits.starts_with(['0', '+']))?;
            Some(DType { lanes, ..known(base)? })
        });
        parsed.ok_or_else(|| {
            invalid("name a dtype as ml_dtypes does, such as float32", format!("no type is named {name:?}"))
        })
    }

    /// Bits that one element takes, packed.
    pub fn item_bits(self) -> u64 {
        u64::from(self.bits) * u64::from(self.lanes)
    }

    /// What the address of an element must be a multiple of.
    fn alignment(self) -> u64 {
        let bits = if self.code == DType::COMPLEX64.code { self.bits / 2 } else { self.bits };
        u64::from(bits / 8).max(1)
    }

    #[inline]
    fn check(self) -> Result<()> {
        let known = KNOWN
            .get(usize::from(self.code))
            .is_some_and(|bits| bits[usize::from(self.bits / 64)] >> (self.bits % 64) & 1 == 1);
        if known && self.lanes > 0 { Ok(()) } else { Err(self.unknown()) }
    }

    #[cold]
    fn unknown(self) -> Error {
        invalid("use a dtype of DLPack 1.3", format!("unknown type {self}"))
    }

    /// Bytes of a compact tensor; 0 when an extent is. `InvalidArgument` for a type or an extent that cannot
    /// be, and for bytes beyond 64 bits.
    #[inline]
    pub fn num_bytes(self, shape: &[i64]) -> Result<u64> {
        self.num_bytes_of(shape.iter().copied())
    }

    /// As `num_bytes`, of a shape that it has accepted.
    #[inline]
    pub(crate) fn num_bytes_known(self, shape: &[i64]) -> u64 {
        if shape.contains(&0) {
            return 0; // the product of the others may not fit
        }
        let n: u64 = shape.iter().map(|d| *d as u64).product();
        (u128::from(n) * u128::from(self.item_bits())).div_ceil(8) as u64
    }

    /// As `num_bytes`, of extents wherever they stand.
    #[inline]
    pub(crate) fn num_bytes_of(self, shape: impl ExactSizeIterator<Item = i64> + Clone) -> Result<u64> {
        self.check()?;
        let (n, empty) = product(shape)?;
        let bytes = bytes_of(n, self.item_bits())?;
        Ok(if empty { 0 } else { bytes })
    }

    /// Refuses a view that does not lie inside a storage of `storage` bytes when its first element is
    /// at `offset`. Negative strides are refused.
    pub(crate) fn check_view(self, shape: &[i64], strides: Option<&[i64]>, offset: u64, storage: u64) -> Result<()> {
        let mut span = self.num_bytes(shape)?;
        if let Some(strides) = strides {
            if strides.len() != shape.len() {
                let what = format!("{} strides for {} dimensions", strides.len(), shape.len());
                return Err(invalid("give one stride for each dimension", what));
            }
            let last = last_index(shape, strides)?;
            if !shape.contains(&0) {
                span = bytes_of(last + 1, self.item_bits())?;
            }
        }
        self.check_span(span, offset, storage)
    }

    /// Refuses `span` bytes from `offset` on that do not lie inside a storage of `storage` bytes, or begin where
    /// no element may.
    #[inline]
    pub(crate) fn check_span(self, span: u64, offset: u64, storage: u64) -> Result<()> {
        if offset == 0 && span <= storage {
            return Ok(());
        }
        if offset > storage || span > storage - offset {
            let what = format!("{span} bytes at {offset} reach past a storage of {storage} bytes");
            return Err(invalid("keep the view inside its storage", what));
        }
        if offset > 0 && !offset.is_multiple_of(self.alignment()) {
            let what = format!("offset {offset} of {self} is not a multiple of {}", self.alignment());
            return Err(invalid("begin where an element of this dtype may lie", what));
        }
        Ok(())
    }
}

impl FromStr for DType {
    type Err = Error;

    /// As [`DType::parse`].
    fn from_str(name: &str) -> Result<DType> {
        DType::parse(name)
    }
}

impl fmt::Display for DType {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.base_name() {
            Some(name) if self.lanes == 1 => f.write_str(name),
            Some(name) => write!(f, "{name}x{}", self.lanes),
            None => write!(f, "dtype(code={},bits={},lanes={})", self.code, self.bits, self.lanes),
        }
    }
}

/// The product of the extents, 0 counted as 1, and whether one is 0.
#[inline]
fn product(shape: impl ExactSizeIterator<Item = i64> + Clone) -> Result<(u64, bool)> {
    let (mut n, mut empty) = (1i64, false);
    if shape.len() > limits::NDIM {
        return Err(refused(shape));
    }
    for d in shape.clone() {
        empty |= d == 0;
        match n.checked_mul(d.max(1)) {
            Some(more) if d >= 0 => n = more,
            _ => return Err(refused(shape)),
        }
    }
    Ok((n as u64, empty))
}

/// What is wrong with a shape.
#[cold]
fn refused(shape: impl Iterator<Item = i64>) -> Error {
    let shape: Vec<i64> = shape.collect();
    if shape.len() > limits::NDIM {
        let what = format!("{} dimensions, at most {} fit", shape.len(), limits::NDIM);
        return invalid("use fewer dimensions", what);
    }
    if shape.iter().any(|d| *d < 0) {
        return invalid("use extents of 0 or more", format!("negative extent in {shape:?}"));
    }
    too_large(format!("shape {shape:?} overflows"))
}

#[inline]
fn bytes_of(n: u64, bits: u64) -> Result<u64> {
    let bytes = match n.checked_mul(bits) {
        Some(all) => all.div_ceil(8),
        None => u64::try_from((u128::from(n) * u128::from(bits)).div_ceil(8)).unwrap_or(u64::MAX),
    };
    if bytes > i64::MAX as u64 {
        return Err(too_large(format!("{n} elements of {bits} bits overflow")));
    }
    Ok(bytes)
}

/// The element index that the highest coordinates reach.
pub(crate) fn last_index(shape: &[i64], strides: &[i64]) -> Result<u64> {
    let mut last = 0i64;
    for (d, s) in shape.iter().zip(strides) {
        if *s < 0 {
            return Err(invalid("use strides of 0 or more", format!("negative stride in {strides:?}")));
        }
        let step = (d - 1).max(0).checked_mul(*s).and_then(|n| last.checked_add(n));
        last = step.ok_or_else(|| too_large(format!("strides {strides:?} overflow")))?;
    }
    Ok(last as u64)
}

/// Row-major strides of a shape whose product is known to fit.
pub(crate) fn compact_strides(shape: &[i64]) -> Dims {
    Dims::from_fn(shape.len(), |i| shape[i + 1..].iter().map(|d| (*d).max(1)).product())
}

/// Whether strides are those of a compact row-major tensor. Axes of extent 1 may have any stride.
pub(crate) fn is_contiguous(shape: &[i64], strides: Option<&[i64]>) -> bool {
    let Some(strides) = strides else { return true };
    if shape.contains(&0) {
        return true;
    }
    let mut step = 1i64;
    for (d, s) in shape.iter().zip(strides).rev() {
        if *d == 1 {
            continue;
        }
        if *s != step {
            return false;
        }
        match step.checked_mul(*d) {
            Some(n) => step = n,
            None => return false,
        }
    }
    true
}

/// Whether the bytes from the first element to the last are elements, each once, whatever the order of the dimensions.
pub(crate) fn is_dense(shape: &[i64], strides: &[i64]) -> bool {
    let mut by_step: Vec<_> = shape.iter().zip(strides).filter(|(n, _)| **n != 1).collect();
    by_step.sort_unstable_by_key(|(_, step)| **step);
    let mut next = 1i64;
    by_step.iter().all(|(n, step)| {
        let lies = **step == next;
        next = next.wrapping_mul(**n);
        lies
    })
}

mod sealed {
    pub trait Sealed {}
}

/// A Rust type of which every bit pattern is a value, so that memory that others wrote can be read
/// as it.
///
/// # Safety
/// Implemented by this crate alone: size and alignment are those of [`Element::DTYPE`], there is no
/// padding and no invalid bit pattern.
pub unsafe trait Element: sealed::Sealed + Copy + Default + Send + Sync + 'static {
    /// Its type in DLPack.
    const DTYPE: DType;
}

macro_rules! elements {
    ($($t:ty = $d:ident,)*) => { $(
        impl sealed::Sealed for $t {}
        // SAFETY: a plain number of exactly these bits.
        unsafe impl Element for $t { const DTYPE: DType = DType::$d; }
        const _: () = assert!(size_of::<$t>() * 8 == DType::$d.bits as usize && align_of::<$t>() <= 8);
    )* };
}

/// A boolean of an array: one byte, of which 0 is false and all else true, also when two are compared. Rust's own `bool` has two valid bit
/// patterns, and another process may have written any.
///
/// ```
/// # fn main() -> Result<(), baton::Error> {
/// # let Some(_broker) = baton_testkit::broker() else { return Ok(()) };
/// # let session = baton::Session::connect()?;
/// use baton::Bool;
///
/// let mask = session.from_slice(&[2], &[Bool::from(true), Bool::from(false)])?.freeze();
/// assert_eq!(mask.dtype(), baton::DType::BOOL);
/// assert_eq!(mask.to_vec::<Bool>()?.into_iter().map(bool::from).collect::<Vec<_>>(), [true, false]);
/// # Ok(()) }
/// ```
#[repr(transparent)]
#[derive(Clone, Copy, Default)]
pub struct Bool(u8);

impl PartialEq for Bool {
    fn eq(&self, other: &Bool) -> bool {
        bool::from(*self) == bool::from(*other)
    }
}

impl Eq for Bool {}

impl Hash for Bool {
    fn hash<H: Hasher>(&self, state: &mut H) {
        bool::from(*self).hash(state);
    }
}

impl fmt::Debug for Bool {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        bool::from(*self).fmt(f)
    }
}

impl From<bool> for Bool {
    fn from(b: bool) -> Bool {
        Bool(b.into())
    }
}

impl From<Bool> for bool {
    fn from(b: Bool) -> bool {
        b.0 != 0
    }
}

elements! {
    i8 = INT8, i16 = INT16, i32 = INT32, i64 = INT64, u8 = UINT8, u16 = UINT16, u32 = UINT32, u64 = UINT64,
    f32 = FLOAT32, f64 = FLOAT64, Bool = BOOL,
}

#[cfg(feature = "half")]
elements! { half::f16 = FLOAT16, half::bf16 = BFLOAT16, }

#[cfg(feature = "num-complex")]
elements! { num_complex::Complex<f32> = COMPLEX64, num_complex::Complex<f64> = COMPLEX128, }

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_name_reads_back() {
        for (d, name) in NAMES {
            assert_eq!((DType::parse(name).unwrap(), d.to_string()), (*d, (*name).to_owned()));
        }
        assert_eq!(DType::parse("float32x4").unwrap(), DType { lanes: 4, ..DType::FLOAT32 });
        for bad in ["", "float", "float32x1", "float32x04", "x4", "float32x70000", "Float32"] {
            assert!(DType::parse(bad).is_err(), "{bad}");
        }
    }

    #[test]
    fn views_that_reach_past_their_storage_are_refused() {
        let f = DType::FLOAT32;
        assert!(f.check_view(&[2, 3], None, 0, 24).is_ok());
        assert!(f.check_view(&[2, 3], None, 4, 24).is_err());
        assert!(f.check_view(&[2, 3], Some(&[3, 1]), 0, 24).is_ok());
        assert!(f.check_view(&[2, 3], Some(&[4, 1]), 0, 24).is_err());
        assert!(f.check_view(&[2, 3], Some(&[0, 0]), 20, 24).is_ok());
        assert!(f.check_view(&[2, 3], Some(&[-3, 1]), 12, 24).is_err());
        assert!(f.check_view(&[1], None, 2, 24).is_err(), "misaligned");
        assert!(f.check_view(&[0, 3], None, 24, 24).is_ok());
        assert!(f.check_view(&[i64::MAX, i64::MAX], None, 0, 24).is_err());
        assert!(f.check_view(&[i64::MAX, 2], Some(&[i64::MAX, 1]), 0, 24).is_err());
        assert!(f.check_view(&[2], None, u64::MAX, u64::MAX).is_err());
        assert_eq!(DType::UINT4.num_bytes(&[3]).unwrap(), 2);
        for shape in [&[3][..], &[], &[0, 5], &[7, 2, 3], &[i64::MAX], &[i64::MAX, 0]] {
            assert_eq!(DType::UINT4.num_bytes_known(shape), DType::UINT4.num_bytes(shape).unwrap());
        }
    }

    #[test]
    fn contiguity_ignores_axes_of_one() {
        assert!(is_contiguous(&[2, 1, 3], Some(&[3, 99, 1])));
        assert!(!is_contiguous(&[2, 3], Some(&[1, 2])));
        assert_eq!(*compact_strides(&[2, 0, 3]), [3, 3, 1]);
    }
}
