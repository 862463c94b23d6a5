//! Names of the files that sessions keep for a broker.

use crate::wire::ops::KeptItem;

/// A file, as `restore` names it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub(crate) enum FileKey {
    Session(u64),
    Segment(u64),
}

impl FileKey {
    pub(super) fn of(item: &KeptItem) -> Option<FileKey> {
        match item.role.as_str() {
            "session" => Some(FileKey::Session(item.serial)),
            "segment" => Some(FileKey::Segment(item.serial)),
            _ => None,
        }
    }

    pub(crate) fn parts(self) -> (&'static str, u64) {
        match self {
            FileKey::Session(serial) => ("session", serial),
            FileKey::Segment(serial) => ("segment", serial),
        }
    }

    pub(super) fn item(self) -> KeptItem {
        let (role, serial) = self.parts();
        KeptItem { role: role.to_owned(), serial }
    }
}
