//! What fork costs a process with a session, by what the session holds.

use baton::Session;
use rustix::process::{Pid, WaitOptions, waitpid};

use crate::page::now;
use crate::{Outcome, Seat};

unsafe extern "C" {
    fn fork() -> i32;
    fn _exit(status: i32) -> !;
}

/// Reports how long each fork kept the parent. The child ends at once, and the next fork begins when it
/// has. A tenth is to warm up.
fn timed(seat: &mut Seat) -> Outcome {
    let mut all = Vec::with_capacity(seat.job.n);
    for i in 0..seat.job.n + seat.job.n / 10 {
        let from = now();
        // SAFETY: the child does nothing but end, so it needs no lock that another thread had.
        let child = unsafe { fork() };
        if child == 0 {
            // SAFETY: it is all that the child does.
            unsafe { _exit(0) }
        }
        let took = now() - from;
        let child = Pid::from_raw(child).filter(|_| child > 0).ok_or_else(std::io::Error::last_os_error)?;
        waitpid(Some(child), WaitOptions::empty())?;
        if i >= seat.job.n / 10 {
            all.push(took as f64);
        }
    }
    seat.report.insert("ns".into(), all);
    Ok(())
}

/// A process that has no session.
pub fn bare(seat: &mut Seat) -> Outcome {
    timed(seat)
}

/// A process whose session holds so many storages.
pub fn holding(seat: &mut Seat) -> Outcome {
    let session = Session::builder().address(&*seat.job.socket).name("bench-fork").connect()?;
    let all: Result<Vec<_>, _> = (0..seat.job.storages).map(|_| session.alloc::<u8>(&[64])).collect();
    let all = all?;
    timed(seat)?;
    drop(all);
    Ok(())
}
