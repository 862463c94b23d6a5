//! Tensors over files: mapped, so that processes share them through the page cache. They are not
//! registered: what is sent is a copy.

use std::io::Read;
use std::os::fd::OwnedFd;
use std::path::Path;
use std::sync::Arc;

use super::Session;
use crate::dims::Dims;
use crate::dtype::DType;
use crate::error::{Code, Error, Result};
use crate::holding::{MappedFile, Place, View};
use crate::sys::{self, Mapping};
use crate::tensor::Tensor;

impl Session {
    /// The bytes of a file as a read-only tensor of uint8, mapped and not read. A file that is cut
    /// short while it is mapped ends a reader with SIGBUS: replace files by renaming. The tensor
    /// cannot be sent; copy it into one that can.
    ///
    /// # Errors
    /// `NotFound`, `PermissionDenied`; `InvalidArgument` for what is no regular file, or has no bytes to be mapped, as
    /// files below `/proc`.
    ///
    /// # Example
    /// ```
    /// # fn main() -> Result<(), baton::Error> {
    /// # let Some(_broker) = baton_testkit::broker() else { return Ok(()) };
    /// # let session = baton::Session::connect()?;
    /// let path = std::env::temp_dir().join(format!("baton-example-{}", std::process::id()));
    /// std::fs::write(&path, [1, 2, 3]).unwrap();
    /// let x = session.map_file(&path)?;
    /// std::fs::remove_file(&path).unwrap();
    /// assert_eq!((x.to_vec::<u8>()?, x.is_read_only(), x.is_shared()), (vec![1, 2, 3], true, false));
    /// # Ok(()) }
    /// ```
    pub fn map_file(&self, path: impl AsRef<Path>) -> Result<Tensor> {
        let path = path.as_ref();
        let failed = |e: std::io::Error| {
            let code = match e.kind() {
                std::io::ErrorKind::NotFound => Code::NotFound,
                std::io::ErrorKind::PermissionDenied => Code::PermissionDenied,
                _ => Code::InvalidArgument,
            };
            Error::new(code, "give a file that can be read", format!("open {}: {e}", path.display())).caused_by(e)
        };
        let unfit = |what: &str| {
            let what = format!("{} {what}", path.display());
            Error::new(Code::InvalidArgument, "give a file of bytes on a disk or in memory, or read it", what)
        };
        let mut file = sys::open_at_once(path).map_err(failed)?;
        let about = file.metadata().map_err(failed)?;
        if !about.is_file() {
            return Err(unfit("is no regular file"));
        }
        let bytes = about.len();
        // The kernel's own, as below /proc, say that they are empty.
        if bytes == 0 && file.read(&mut [0]).is_ok_and(|n| n > 0) {
            return Err(unfit("has bytes and no size"));
        }
        let fd = OwnedFd::from(file);
        let place = match usize::try_from(bytes) {
            Ok(0) => Place::Nowhere,
            Ok(n) => {
                let map = Mapping::readable(&fd, n).map_err(|e| match e.code() {
                    Code::OutOfMemory => e,
                    _ => unfit("cannot be mapped").caused_by(e),
                })?;
                Place::File(Arc::new(MappedFile { map, fd }))
            }
            Err(e) => {
                let what = format!("map {bytes} bytes: {e}");
                return Err(Error::new(Code::InvalidArgument, "use a smaller file", what).caused_by(e));
            }
        };
        let held = self.inner()?.nothing(View::none());
        Tensor::checked(held, place, 0, DType::UINT8, Dims::from(&[bytes as i64][..]), None, true)
    }
}
