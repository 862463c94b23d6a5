//! One process of a measurement of `baton-bench`, in Rust: it reads its job from the environment,
//! does it, and writes what it reports to its standard output, exactly as the processes in Go do
//! (package bench). The clock's readings go to the page that the processes of a measurement share.

mod calls;
mod fork;
mod handover;
mod iceoryx;
mod local;
mod page;
mod stream;

use std::collections::BTreeMap;
use std::error::Error;

use page::{Line, Page};
use serde::Deserialize;

type Outcome = Result<(), Box<dyn Error>>;

/// The side that sends first.
const LEFT: usize = 0;

/// The side that answers, the first of them where there are several.
const RIGHT: usize = 1;

/// What the process is to do: the job of package bench, as far as it concerns this side.
#[derive(Deserialize)]
struct Job {
    role: String,
    /// LEFT, RIGHT, then further readers.
    side: usize,
    /// Length of a series; 0: no page.
    page: usize,
    /// Rounds.
    n: usize,
    /// Rounds until another pair has its turn; 0: all.
    #[serde(default)]
    slice: usize,
    /// Readers that all have what left sends, and answer; 0: right alone.
    #[serde(default)]
    readers: usize,
    /// Of a tensor.
    #[serde(default)]
    bytes: usize,
    /// Messages under way at most.
    #[serde(default)]
    count: usize,
    /// That live beside what is measured.
    #[serde(default)]
    storages: usize,
    /// Pause before each round, in ns.
    #[serde(default)]
    every: u64,
    #[serde(default)]
    socket: String,
    /// Of the topics or services of this measurement alone.
    #[serde(default)]
    path: String,
}

/// A process at work on its job.
struct Seat {
    job: Job,
    page: Page,
    report: BTreeMap<String, Vec<f64>>,
}

impl Seat {
    /// Waits for the other side, which sends first for all others.
    fn meet(&self) {
        self.page.meet(self.job.side, self.readers());
    }

    fn readers(&self) -> usize {
        self.job.readers.max(1)
    }

    /// From how many it has an answer, or a message.
    fn others(&self) -> usize {
        if self.job.side == LEFT { self.readers() } else { 1 }
    }

    /// Whether round i is the first of a slice.
    fn begins_slice(&self, i: usize) -> bool {
        self.job.slice > 0 && i.is_multiple_of(self.job.slice)
    }

    /// Whether the time of round i is read where a rate is: it is the first of its slice that counts, or the
    /// last (bench/slices.go, `rate`).
    fn is_read(&self, i: usize) -> bool {
        let slice = self.job.slice.max(1);
        i % slice == slice / 10 || i % slice == slice - 1
    }

    /// Ends a slice before round i, where one ends, and waits asleep until it is the pair's turn again
    /// (bench/slices.go).
    fn turn(&self, i: usize) {
        if !self.begins_slice(i) {
            return;
        }
        let k = (i / self.job.slice) as u64 + 1;
        if self.job.side == LEFT {
            self.page.tell(Line::Done, k);
        }
        self.page.await_asleep(Line::Turn, k);
    }
}

fn main() -> Outcome {
    let raw = std::env::var("BATON_BENCH_JOB").map_err(|_| "started by `baton-bench` only")?;
    let job: Job = serde_json::from_str(&raw)?;
    let page = Page::open(job.page)?;
    let mut seat = Seat { job, page, report: BTreeMap::new() };
    match seat.job.role.as_str() {
        "own-trip" => calls::own_trip(&seat),
        "call-int" => calls::int(&seat),
        "call-six" => calls::six(&seat),
        "call-tensor" => calls::tensor(&seat),
        "cycle" => handover::cycle(&seat),
        "unpinned" => handover::unpinned(&mut seat),
        "oneway" => handover::one_way(&seat),
        "wake" => handover::wake(&seat),
        "iceoryx2-cycle" => iceoryx::cycle(&seat),
        "iceoryx2-wake" => iceoryx::wake(&seat),
        "stream topic" => stream::topic(&seat),
        "stream lossless" => stream::lossless(&seat),
        "stream queue" => stream::queue(&seat),
        "iceoryx2-stream" => stream::iceoryx(&seat),
        "fork-bare" => fork::bare(&mut seat),
        "fork" => fork::holding(&mut seat),
        "slot" => local::slot(&mut seat),
        "message" => local::message(&mut seat),
        "alloc" => local::alloc(&mut seat),
        role => Err(format!("no role {role:?} in Rust").into()),
    }?;
    println!("{}", serde_json::to_string(&seat.report)?);
    Ok(())
}
