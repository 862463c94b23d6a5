//! Status codes: the protocol's, under their names in C.

use std::ffi::c_char;

use baton::Code;

macro_rules! statuses {
    ($($(#[$doc:meta])* $name:ident = $value:literal $code:ident $text:literal,)*) => {
        pub(crate) fn of(code: Code) -> baton_status {
            match code {
                $(Code::$code => baton_status::$name,)*
                _ => baton_status::BATON_INTERNAL,
            }
        }

        fn name(status: i32) -> &'static std::ffi::CStr {
            match status {
                0 => c"OK",
                $($value => $text,)*
                _ => c"unknown",
            }
        }
    };
}

/// What became of a call. The numbers are the protocol's and never change.
#[repr(i32)]
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum baton_status {
    /// It was done.
    BATON_OK = 0,
    /// No broker answers at the address.
    BATON_NO_BROKER = 1,
    /// The broker was there and has gone. Tensors in hand stay valid, the session reconnects.
    BATON_BROKER_LOST = 2,
    /// Broker and client have another protocol or layout.
    BATON_VERSION_MISMATCH = 3,
    /// Another process wrote what is not of this protocol.
    BATON_PROTOCOL = 4,
    /// An unknown op, feature or device.
    BATON_UNSUPPORTED = 5,
    /// The socket, file or memory may not be used.
    BATON_PERMISSION_DENIED = 6,
    /// The machine, the container or the broker's limit is full.
    BATON_OUT_OF_MEMORY = 7,
    /// The quota of the session or of all together is used up.
    BATON_QUOTA_EXCEEDED = 8,
    /// A table is full: sessions, topics, lanes, chunks, references.
    BATON_TOO_MANY = 9,
    /// A null pointer, or a shape, dtype, name or option that cannot be.
    BATON_INVALID_ARGUMENT = 10,
    /// A handle that is malformed, outside its segment, or of another broker that this one does not reach.
    BATON_INVALID_HANDLE = 11,
    /// The storage has been recycled.
    BATON_EXPIRED = 12,
    /// The session, topic or queue is closed.
    BATON_CLOSED = 13,
    /// An option differs from what exists.
    BATON_CONFLICT = 14,
    /// Nothing has that name.
    BATON_NOT_FOUND = 15,
    /// Time ran out.
    BATON_TIMEOUT = 16,
    /// Time ran out and the queue has no item.
    BATON_EMPTY = 17,
    /// Time ran out and there is no room.
    BATON_FULL = 18,
    /// The memory must not be written.
    BATON_READ_ONLY = 19,
    /// It is not possible now; try again.
    BATON_BUSY = 20,
    /// A mistake in Baton.
    BATON_INTERNAL = 21,
    /// The broker said that the session is over: open a new one. Tensors of it can still be read.
    BATON_SESSION_LOST = 22,
    /// No process provides the function.
    BATON_NO_PROVIDER = 23,
    /// The process or the session that ran the function has ended without a reply: "reason" of the detail says which.
    BATON_PROVIDER_DIED = 24,
    /// The caller wanted the call no more.
    BATON_CANCELLED = 25,
    /// The function itself failed.
    BATON_REMOTE = 26,
    /// Nothing is known of another host now: the link to it is down, or it does not answer.
    BATON_UNREACHABLE = 27,
    /// The host that has the bytes is gone.
    BATON_HOST_LOST = 28,
}

statuses! {
    BATON_NO_BROKER = 1 NoBroker c"NoBroker",
    BATON_BROKER_LOST = 2 BrokerLost c"BrokerLost",
    BATON_VERSION_MISMATCH = 3 Version c"Version",
    BATON_PROTOCOL = 4 Protocol c"Protocol",
    BATON_UNSUPPORTED = 5 Unsupported c"Unsupported",
    BATON_PERMISSION_DENIED = 6 PermissionDenied c"PermissionDenied",
    BATON_OUT_OF_MEMORY = 7 OutOfMemory c"OutOfMemory",
    BATON_QUOTA_EXCEEDED = 8 QuotaExceeded c"QuotaExceeded",
    BATON_TOO_MANY = 9 TooMany c"TooMany",
    BATON_INVALID_ARGUMENT = 10 InvalidArgument c"InvalidArgument",
    BATON_INVALID_HANDLE = 11 InvalidHandle c"InvalidHandle",
    BATON_EXPIRED = 12 Expired c"Expired",
    BATON_CLOSED = 13 Closed c"Closed",
    BATON_CONFLICT = 14 Conflict c"Conflict",
    BATON_NOT_FOUND = 15 NotFound c"NotFound",
    BATON_TIMEOUT = 16 Timeout c"Timeout",
    BATON_EMPTY = 17 Empty c"Empty",
    BATON_FULL = 18 Full c"Full",
    BATON_READ_ONLY = 19 ReadOnly c"ReadOnly",
    BATON_BUSY = 20 Busy c"Busy",
    BATON_INTERNAL = 21 Internal c"Internal",
    BATON_SESSION_LOST = 22 SessionLost c"SessionLost",
    BATON_NO_PROVIDER = 23 NoProvider c"NoProvider",
    BATON_PROVIDER_DIED = 24 ProviderDied c"ProviderDied",
    BATON_CANCELLED = 25 Cancelled c"Cancelled",
    BATON_REMOTE = 26 Remote c"Remote",
    BATON_UNREACHABLE = 27 Unreachable c"Unreachable",
    BATON_HOST_LOST = 28 HostLost c"HostLost",
}

/// The name of a status, for texts.
pub(crate) fn name_of(status: i32) -> &'static str {
    name(status).to_str().unwrap_or_default()
}

/// The name of a status in the protocol, such as "Expired"; "unknown" for another number. Never NULL.
#[unsafe(no_mangle)]
pub extern "C" fn baton_status_name(status: i32) -> *const c_char {
    name(status).as_ptr()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_status_is_the_protocols() {
        let file = concat!(env!("CARGO_MANIFEST_DIR"), "/../../protocol/testdata/errors.json");
        let json: serde_json::Value = serde_json::from_str(&std::fs::read_to_string(file).unwrap()).unwrap();
        let errors = json["errors"].as_array().unwrap();
        assert_eq!(errors.len(), Code::ALL.len());
        for e in errors {
            let code = e["code"].as_str().unwrap();
            let status = of(Code::parse(code).unwrap());
            assert_eq!(format!("{status:?}"), e["c"].as_str().unwrap());
            assert_eq!(Some(status as i64), e["c_value"].as_i64(), "{code}");
            assert_eq!(name(status as i32).to_str(), Ok(code));
        }
        assert_eq!(name(-1), c"unknown");
    }
}
