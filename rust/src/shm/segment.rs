//! One mappable piece of memory, mapped at most twice in a process and kept so.

use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::{Arc, Mutex, OnceLock};

use super::words::Region;
use crate::cuda::{Device, Registered, Slab};
use crate::error::{Code, Error, Result, disagree};
use crate::sys::{self, Mapping};

/// A segment. Its mappings live as long as it does, so code that points into them holds it.
#[derive(Debug)]
pub(crate) struct Segment {
    /// In the broker's table.
    pub(crate) index: u32,
    pub(crate) serial: u64,
    pub(crate) bytes: u64,
    files: Mutex<Files>,
    registered: OnceLock<Option<Registered>>, // with a GPU's driver; it goes before the mapping
    readable: OnceLock<Region>,
    writable: OnceLock<Region>,
    chunks: Mutex<Vec<u32>>, // over it, as far as this session is attached to them
    device: Option<Slab>,    // where it is no memory of the machine
}

#[derive(Debug, Default)]
struct Files {
    ro: Option<Arc<OwnedFd>>,
    rw: Option<Arc<OwnedFd>>,
}

impl Segment {
    /// A segment of `bytes`, as the broker says; its file must have as many.
    pub(crate) fn new(index: u32, serial: u64, bytes: u64, fd: OwnedFd, write: bool) -> Result<Segment> {
        let s = Segment::empty(index, serial, bytes, None);
        s.give(fd, write)?;
        Ok(s)
    }

    /// A segment on a GPU; the descriptor is the driver's, of which nothing can be asked.
    pub(crate) fn on_device(index: u32, serial: u64, fd: OwnedFd, slab: Slab) -> Segment {
        let s = Segment::empty(index, serial, slab.bytes, Some(slab));
        s.files().rw = Some(Arc::new(fd));
        s
    }

    /// A segment that a process has from its parent, which had it mapped: over these mappings, which stay as long as
    /// the process. `None` of one that was not mapped. No lock of the parent's is taken.
    pub(crate) fn inherited(of: &Segment, fd: Option<Arc<OwnedFd>>) -> Option<Segment> {
        if of.device.is_some() || of.mapped(false).is_none() {
            return None;
        }
        let mut s = Segment::empty(of.index, of.serial, of.bytes, None);
        (s.readable, s.writable) = (of.readable.clone(), of.writable.clone());
        s.files().ro = fd; // it may be one for writing as well
        Some(s)
    }

    fn empty(index: u32, serial: u64, bytes: u64, device: Option<Slab>) -> Segment {
        Segment {
            index,
            serial,
            bytes,
            files: Mutex::default(),
            registered: OnceLock::new(),
            readable: OnceLock::new(),
            writable: OnceLock::new(),
            chunks: Mutex::default(),
            device,
        }
    }

    /// The memory on a GPU, where that is where it lies.
    #[inline]
    pub(crate) fn device(&self) -> Option<&Slab> {
        self.device.as_ref()
    }

    /// Where it begins on its GPU, mapped for a use.
    pub(crate) fn device_address(&self, write: bool) -> Result<u64> {
        match (&self.device, self.fd()) {
            (Some(slab), Some(fd)) => slab.address(fd.as_fd(), write),
            _ => Err(disagree("a device address of memory of the machine")),
        }
    }

    /// Opens memory that another process lends, once more.
    pub(crate) fn open_borrowed(&self) -> Result<()> {
        match (&self.device, self.fd()) {
            (Some(slab), Some(fd)) => slab.open(fd.as_fd()),
            _ => Err(disagree("memory of the machine is not borrowed")),
        }
    }

    /// Makes its mapping known to a GPU's driver, once: copies then run beside the processor. Whether the driver
    /// knows it.
    pub(crate) fn register(&self, device: &'static Device) -> bool {
        let region = self.writable.get().or_else(|| self.readable.get());
        let made = || Registered::new(device, region?.clone(), self.writable.get().is_some()).ok();
        self.registered.get_or_init(made).is_some()
    }

    /// Refuses to look at memory of a GPU.
    fn on_host(&self) -> Result<()> {
        let Some(slab) = &self.device else { return Ok(()) };
        let what = format!("the tensor lies on cuda:{}, where the processor does not reach it", slab.device.index);
        Err(Error::new(Code::Unsupported, "copy it to the device cpu first, in Python by x.cpu()", what))
    }

    /// Adds a descriptor, writable or not.
    pub(crate) fn give(&self, fd: OwnedFd, write: bool) -> Result<()> {
        self.check(&fd)?;
        let mut files = self.files();
        let place = if write { &mut files.rw } else { &mut files.ro };
        place.get_or_insert_with(|| Arc::new(fd));
        Ok(())
    }

    fn files(&self) -> std::sync::MutexGuard<'_, Files> {
        self.files.lock().unwrap_or_else(|p| p.into_inner())
    }

    /// A segment of `bytes`, mapped at once; the descriptor stays the caller's.
    pub(crate) fn mapped_from(index: u32, serial: u64, bytes: u64, fd: &OwnedFd, write: bool) -> Result<Segment> {
        let s = Segment::empty(index, serial, bytes, None);
        s.map_from(fd, write)?;
        Ok(s)
    }

    /// Maps it for a use, if it is not; the descriptor stays the caller's.
    pub(crate) fn map_from(&self, fd: &OwnedFd, write: bool) -> Result<()> {
        self.check(fd)?;
        let _one = self.files(); // so it is mapped once
        let cell = if write { &self.writable } else { &self.readable };
        if cell.get().is_none() {
            let _ = cell.set(Region::new(Arc::new(Mapping::shared(fd, self.bytes as usize, write)?)));
        }
        Ok(())
    }

    /// Refuses a file that is smaller than the broker says.
    fn check(&self, fd: &OwnedFd) -> Result<()> {
        let size = sys::size_of(fd)?;
        if size < self.bytes {
            return Err(disagree(format!(
                "segment {} has {size} bytes where {} were announced",
                self.serial, self.bytes
            )));
        }
        Ok(())
    }

    /// Whether the mapping can be made without a request to the broker.
    pub(crate) fn has(&self, write: bool) -> bool {
        self.mapped(write).is_some() || self.has_file(write)
    }

    /// Whether there is a descriptor for a use.
    pub(crate) fn has_file(&self, write: bool) -> bool {
        let files = self.files();
        files.rw.is_some() || !write && files.ro.is_some()
    }

    /// The mapping for a use, made at the first call. `ReadOnly` when this process was given no
    /// writable descriptor.
    #[inline]
    pub(crate) fn region(&self, write: bool) -> Result<&Region> {
        match self.mapped(write) {
            Some(r) => Ok(r),
            None => self.map(write),
        }
    }

    #[cold]
    fn map(&self, write: bool) -> Result<&Region> {
        self.on_host()?;
        let cell = if write { &self.writable } else { &self.readable };
        let files = self.files();
        let fd = if write { files.rw.clone() } else { files.ro.clone().or_else(|| files.rw.clone()) };
        let Some(fd) = fd else {
            return Err(Error::new(
                Code::ReadOnly,
                "ask for it writable",
                format!("segment {} cannot be mapped for this use", self.serial),
            ));
        };
        // The lock is held, so it is mapped once.
        if cell.get().is_none() {
            let r = Region::new(Arc::new(Mapping::shared(&fd, self.bytes as usize, write)?));
            let _ = cell.set(r);
        }
        cell.get().ok_or_else(|| disagree("unreachable"))
    }

    /// The mapping for a use if there is one, without a look at any lock.
    #[inline]
    pub(crate) fn mapped(&self, write: bool) -> Option<&Region> {
        self.writable.get().or_else(|| self.readable.get().filter(|_| !write))
    }

    /// Where in the segment `n` bytes at an address of this process begin, and whether they lie in the
    /// writable mapping; `None` when they lie in no shared mapping of it.
    pub(crate) fn offset_of(&self, address: *const u8, n: u64) -> Option<(u64, bool)> {
        if let Some(slab) = &self.device {
            return slab.offset_of(address as u64, n);
        }
        [(&self.writable, true), (&self.readable, false)].into_iter().find_map(|(cell, writable)| {
            let r = cell.get()?;
            let at = (address as u64).checked_sub(r.address(0, 0) as u64)?;
            r.has(at, n).then_some((at, writable))
        })
    }

    /// Notes that this session is attached to a chunk over it.
    pub(crate) fn note_chunk(&self, chunk: u32) {
        let mut all = self.chunks.lock().unwrap_or_else(|p| p.into_inner());
        if !all.contains(&chunk) {
            all.push(chunk);
        }
    }

    /// The chunks over it that this session is, or was, attached to.
    pub(crate) fn chunks(&self) -> Vec<u32> {
        self.chunks.lock().unwrap_or_else(|p| p.into_inner()).clone()
    }

    /// A copy-on-write mapping of its own of `bytes` at `at`, and the address of the first. Of what lies
    /// in huge pages, or has no descriptor here, it is a copy.
    pub(crate) fn private(&self, at: u64, bytes: u64) -> Result<(Mapping, *mut u8)> {
        if at > self.bytes || bytes > self.bytes - at {
            return Err(disagree(format!("bytes {at} to {} of segment {}", at.saturating_add(bytes), self.serial)));
        }
        self.on_host()?;
        let Some(fd) = self.fd().filter(|_| !self.in_huge_pages()) else {
            // Of huge pages a private mapping would have to begin at one, and take as many from the machine.
            let map = Mapping::anonymous(bytes.max(1) as usize)?;
            // SAFETY: new memory of that many bytes, which no other owner has.
            self.region(false)?
                .read_bytes(at, unsafe { std::slice::from_raw_parts_mut(map.base().as_ptr(), bytes as usize) });
            let first = map.base().as_ptr();
            return Ok((map, first));
        };
        let within = at % rustix::param::page_size() as u64;
        let map = Mapping::private(&fd, at - within, (bytes + within) as usize)?;
        // SAFETY: `within` is less than the mapping's length.
        let first = unsafe { map.base().as_ptr().add(within as usize) };
        Ok((map, first))
    }

    /// Whether its file lies in huge pages.
    pub(crate) fn in_huge_pages(&self) -> bool {
        self.fd().is_some_and(sys::in_huge_pages)
    }

    /// The strongest descriptor there is, for a new broker.
    pub(crate) fn fd(&self) -> Option<Arc<OwnedFd>> {
        let files = self.files();
        files.rw.clone().or_else(|| files.ro.clone())
    }

    /// Reserves all pages, so that a full memory is an error now and not SIGBUS later.
    pub(crate) fn reserve(&self) -> Result<()> {
        let Some(fd) = self.fd() else { return Err(disagree("a segment without a descriptor")) };
        let fd: BorrowedFd<'_> = fd.as_fd();
        sys::reserve(fd, 0, self.bytes)
    }
}
