//! What another library's tensor says, copied out of it and checked.

use super::copy::{copy, pack};
use super::stream::{copy_around, copy_bytes};
use super::{DLTensor, device, flag};
use crate::dims::Dims;
use crate::dtype::{DType, compact_strides, is_contiguous, is_dense};
use crate::error::{Code, Error, Result};
use crate::layout::limits;

/// A checked copy of a DLTensor. Its memory is the producer's.
pub(crate) struct View {
    /// The address of the first element; null without elements.
    pub(crate) first: *const u8,
    /// Bytes from the first element to behind the last, where no stride is negative.
    pub(crate) span: u64,
    /// Bytes of a compact copy.
    pub(crate) bytes: u64,
    pub(crate) dtype: DType,
    pub(crate) shape: Dims,
    /// In elements; `None`: C-contiguous.
    pub(crate) strides: Option<Dims>,
    pub(crate) readonly: bool,
    /// Each element of a sub-byte type takes a byte.
    padded: bool,
}

fn impossible(what: String) -> Error {
    Error::new(Code::InvalidArgument, "report it to the library that made the tensor", format!("DLPack: {what}"))
}

impl View {
    /// As `anywhere`; `Unsupported` for memory that the processor does not reach.
    ///
    /// # Safety
    /// Shape and strides, where they are not null, point to `ndim` numbers.
    #[inline(always)]
    pub(crate) unsafe fn of(t: &DLTensor, flags: u64) -> Result<View> {
        if !device::is_host(t.device.device_type) {
            let what =
                format!("DLPack: a tensor on device type {}, number {}", t.device.device_type, t.device.device_id);
            return Err(Error::new(Code::Unsupported, "copy it to the host first", what));
        }
        // SAFETY: as the caller says.
        unsafe { View::anywhere(t, flags) }
    }

    /// Copies and checks a view on any device. Error: `InvalidArgument` for all that cannot be.
    ///
    /// # Safety
    /// As of `of`.
    #[inline(always)]
    pub(crate) unsafe fn anywhere(t: &DLTensor, flags: u64) -> Result<View> {
        let ndim = usize::try_from(t.ndim).ok().filter(|n| *n <= limits::NDIM);
        let Some(ndim) = ndim else {
            return Err(impossible(format!("{} dimensions, 0 to {} can be", t.ndim, limits::NDIM)));
        };
        if ndim > 0 && t.shape.is_null() {
            return Err(impossible(format!("{ndim} dimensions without a shape")));
        }
        // SAFETY: not null, and as the caller says.
        let shape = unsafe { numbers(t.shape, ndim) };
        let bytes = t.dtype.num_bytes(&shape)?;
        let strides = match t.strides.is_null() {
            true => None,
            // SAFETY: as above.
            false => Some(unsafe { numbers(t.strides, ndim) }).filter(|s| !is_contiguous(&shape, Some(s))),
        };
        let padded = flags & flag::SUBBYTE_TYPE_PADDED != 0 && t.dtype.bits < 8;
        if padded && t.dtype.lanes != 1 {
            return Err(impossible(format!("padded elements of {}", t.dtype)));
        }
        let bits = if padded { 8 } else { t.dtype.item_bits() };
        let readonly = flags & flag::READ_ONLY != 0;
        let (mut first, mut span) = (std::ptr::null(), 0);
        if bytes > 0 {
            if t.data.is_null() {
                return Err(impossible(format!("{}{:?} without memory", t.dtype, shape)));
            }
            let (low, high) = match &strides {
                None if !padded => (0, bytes),
                None => reach(&shape, &compact_strides(&shape), bits)?,
                Some(strides) => reach(&shape, strides, bits)?,
            };
            let at = (t.data as usize as u64).checked_add(t.byte_offset);
            let fits = |a: u64| a.checked_sub(low).is_some_and(|a| a > 0) && a.checked_add(high).is_some();
            let Some(at) = at.filter(|a| fits(*a)) else {
                let what = format!("{high} bytes from offset {} of address {:p} on wrap", t.byte_offset, t.data);
                return Err(impossible(what));
            };
            first = t.data.cast::<u8>().cast_const().wrapping_add((at - t.data as usize as u64) as usize);
            span = high;
        }
        // Number by number: what was just written in parts is not moved as a whole without a wait.
        let shape = Dims::from(&*shape);
        Ok(View { first, span, bytes, dtype: t.dtype, shape, strides, readonly, padded })
    }

    /// Whether its bytes are those of a compact tensor.
    fn is_compact(&self) -> bool {
        !self.padded && self.strides.is_none()
    }

    /// Whether a tensor of Baton's could be this very view.
    pub(crate) fn is_plain(&self) -> bool {
        !self.padded && self.strides.as_ref().is_none_or(|all| all.iter().all(|s| *s >= 0))
    }

    /// Whether its bytes can be copied as they lie: it has elements, each aligned to its size, and none of them lies
    /// below the first.
    pub(super) fn may_lie(&self) -> bool {
        let bits = self.dtype.item_bits();
        let item = bits as usize / 8;
        let aligned = bits.is_multiple_of(8) && item.is_power_of_two() && self.first.addr().is_multiple_of(item);
        self.bytes > 0 && self.is_plain() && aligned
    }

    /// Whether the bytes from its first element to its last are elements of it, each once.
    pub(super) fn is_dense(&self) -> bool {
        self.strides.as_ref().is_none_or(|strides| is_dense(&self.shape, strides))
    }

    /// The strides that a copy keeps: of elements without gaps whose dimensions are in another order.
    pub(crate) fn order(&self) -> Option<&[i64]> {
        self.strides.as_deref().filter(|_| self.may_lie() && self.is_dense())
    }

    /// Copies the elements to a compact tensor in memory that no reader has seen, around the cache where
    /// they are compact, too. `end_around` must follow.
    ///
    /// # Safety
    /// As of `copy_to`.
    pub(super) unsafe fn copy_around_to(&self, to: *mut u8) {
        match self.is_compact() && !self.first.is_null() {
            // SAFETY: as the caller says; new memory does not overlap the view's.
            true => unsafe { copy_around(self.first, to, self.bytes as usize) },
            // SAFETY: as the caller says.
            false => unsafe { self.copy_to(to, None) },
        }
    }

    /// Copies the elements to a compact tensor, or, with strides (in elements), one with these.
    ///
    /// # Safety
    /// The view's memory may be read, the destination's may be written: it has the view's shape and
    /// type. Sub-byte types go to a compact destination alone.
    pub(crate) unsafe fn copy_to(&self, to: *mut u8, strides: Option<&[i64]>) {
        if self.first.is_null() {
            return;
        }
        let as_it_lies = match strides {
            Some(to) if self.strides.is_some() => self.order().is_some_and(|own| own == to),
            _ => self.is_compact() && is_contiguous(&self.shape, strides),
        };
        if as_it_lies {
            // SAFETY: as the caller says; both sides are packed, in the same order.
            return unsafe { copy_bytes(self.first, to, self.bytes as usize) };
        }
        let bits = self.dtype.item_bits();
        let own = self.strides.clone().unwrap_or_else(|| compact_strides(&self.shape));
        if bits.is_multiple_of(8) && !self.padded {
            let item = bits as i64 / 8;
            let bytes = |d: &[i64]| d.iter().map(|s| s.wrapping_mul(item)).collect::<Dims>();
            let compact = compact_strides(&self.shape);
            let (to_strides, from_strides) = (bytes(strides.unwrap_or(&compact)), bytes(&own));
            // SAFETY: as the caller says; `of` has checked that the sums do not wrap.
            return unsafe { copy((to, &to_strides), (self.first, &from_strides), &self.shape, item as usize) };
        }
        let step = if self.padded { 8 } else { bits as i64 };
        let place = |index: &[i64]| index.iter().zip(own.iter()).map(|(i, s)| i * s * step).sum();
        // SAFETY: as the caller says; a destination of a sub-byte type is compact and packed.
        unsafe { pack(to, self.first, &self.shape, bits, place) }
    }
}

/// Bytes below the first element, and from it to behind the last; there are elements.
fn reach(shape: &[i64], strides: &[i64], bits: u64) -> Result<(u64, u64)> {
    let (mut low, mut high) = (0i128, i128::from(bits));
    for (n, s) in shape.iter().zip(strides) {
        // Each product is below 2^126 and is checked before the next sum.
        let steps = i128::from(n - 1) * i128::from(*s);
        let room = i128::from(i64::MAX) / i128::from(bits);
        if steps.abs() > room {
            return Err(impossible(format!("strides {strides:?} of {shape:?} overflow")));
        }
        low += (steps * i128::from(bits)).min(0);
        high += (steps * i128::from(bits)).max(0);
    }
    let bytes = |n: i128| u64::try_from((n + 7) >> 3).ok().filter(|b| *b <= i64::MAX as u64);
    match (bytes(-low), bytes(high)) {
        (Some(low), Some(high)) => Ok((low, high)),
        _ => Err(impossible(format!("strides {strides:?} of {shape:?} overflow"))),
    }
}

/// # Safety
/// `p` points to `n` numbers; it may be null when there are none.
#[inline(always)]
unsafe fn numbers(p: *const i64, n: usize) -> Dims {
    // SAFETY: as the caller says; the address of a foreign array may be unaligned.
    Dims::from_fn(n, |i| unsafe { p.add(i).read_unaligned() })
}

#[cfg(test)]
mod tests {
    use super::super::DLDevice;
    use super::*;

    fn tensor(shape: &mut [i64], strides: Option<&mut [i64]>, dtype: DType, data: usize) -> DLTensor {
        DLTensor {
            data: data as *mut _,
            device: DLDevice { device_type: device::CPU, device_id: 0 },
            ndim: shape.len() as i32,
            dtype,
            shape: shape.as_mut_ptr(),
            strides: strides.map_or(std::ptr::null_mut(), <[i64]>::as_mut_ptr),
            byte_offset: 0,
        }
    }

    fn refused(t: &DLTensor, flags: u64) -> Code {
        // SAFETY: the arrays are those of the test.
        unsafe { View::of(t, flags) }.err().map(|e| e.code()).expect("refused")
    }

    #[test]
    fn what_cannot_be_is_refused() {
        const BASE: usize = 1 << 32;
        let f = DType::FLOAT32;
        let bad = |shape: &mut [i64], strides: Option<&mut [i64]>, dtype, data| {
            assert_eq!(refused(&tensor(shape, strides, dtype, data), 0), Code::InvalidArgument);
        };
        bad(&mut [2, -1], None, f, BASE);
        bad(&mut [i64::MAX, 2], None, f, BASE);
        bad(&mut [i64::MAX], None, f, BASE);
        bad(&mut [1 << 62, 1 << 62, 0], None, f, BASE);
        bad(&mut [2], None, f, 0);
        bad(&mut [2], None, f, usize::MAX - 3);
        bad(&mut [2], Some(&mut [i64::MAX]), f, BASE);
        bad(&mut [2], Some(&mut [i64::MIN]), f, BASE);
        bad(&mut [3, 3], Some(&mut [i64::MAX / 8, i64::MAX / 8]), f, BASE);
        bad(&mut [2], Some(&mut [-(BASE as i64)]), f, BASE);
        bad(&mut [2; 65], None, DType::INT8, BASE);
        bad(&mut [2], None, DType { code: 99, bits: 8, lanes: 1 }, BASE);
        bad(&mut [2], None, DType { lanes: 0, ..f }, BASE);
        bad(&mut [2], None, DType { code: 15, bits: 8, lanes: 1 }, BASE);
        let mut one = [1];
        let t = tensor(&mut one, None, f, BASE);
        assert_eq!(refused(&DLTensor { ndim: -1, ..t }, 0), Code::InvalidArgument);
        assert_eq!(refused(&DLTensor { ndim: i32::MAX, ..t }, 0), Code::InvalidArgument);
        assert_eq!(refused(&DLTensor { shape: std::ptr::null_mut(), ..t }, 0), Code::InvalidArgument);
        assert_eq!(refused(&DLTensor { byte_offset: u64::MAX, ..t }, 0), Code::InvalidArgument);
        for device_type in [device::CUDA, 0, -5, i32::MAX] {
            let device = DLDevice { device_type, device_id: 0 };
            assert_eq!(refused(&DLTensor { device, ..t }, 0), Code::Unsupported);
        }
        let lanes = DType { lanes: 2, ..DType::FLOAT4_E2M1FN };
        assert_eq!(refused(&DLTensor { dtype: lanes, ..t }, flag::SUBBYTE_TYPE_PADDED), Code::InvalidArgument);
    }

    #[test]
    fn no_elements_need_no_memory() {
        let mut shape = [0, 7];
        // SAFETY: the array is that of the test.
        let v = unsafe { View::of(&tensor(&mut shape, None, DType::FLOAT32, 0), 1 << 40) }.unwrap();
        assert!(v.first.is_null() && v.span == 0 && !v.readonly);
    }
}
