//! Tensors in huge pages, where the machine has some, and what is said where it has none.

mod kit;

use std::time::Duration;

use baton::{Code, HugePages, TopicOptions};
use kit::{Broker, until};

fn free_pages() -> u64 {
    let read = |file| {
        let path = format!("/sys/kernel/mm/hugepages/hugepages-2048kB/{file}");
        std::fs::read_to_string(path).ok().and_then(|s| s.trim().parse().ok()).unwrap_or(0)
    };
    let (free, promised): (u64, u64) = (read("free_hugepages"), read("resv_hugepages"));
    free - promised.min(free)
}

// One test, since all processes share the machine's huge pages.
#[test]
fn tensors_lie_in_huge_pages_as_far_as_there_are_any() {
    let Some(b) = Broker::start() else { return };
    let s = b.session();
    let free = free_pages();
    let too_many = (free + 1) as i64 * (2 << 20);
    let e = s.allocation(&[too_many]).pages(HugePages::MiB2).of::<u8>().expect_err("there are fewer");
    assert!(matches!(e.code(), Code::OutOfMemory | Code::Unsupported), "{e}");
    assert_eq!(free_pages(), free, "nothing is taken");
    assert_eq!("4K".parse::<HugePages>().expect_err("no such size").code(), Code::InvalidArgument);
    if free < 8 {
        return eprintln!("skipped: the machine has {free} huge pages free (sysctl vm.nr_hugepages)");
    }

    let mut x = s.allocation(&[1000]).pages(HugePages::MiB2).of::<u64>().expect("alloc");
    x.iter_mut().zip(0..).for_each(|(e, i)| *e = i);
    assert!(free_pages() < free, "it lies in huge pages");
    let brief = TopicOptions::default().linger(Duration::from_millis(1));
    let topic = s.topic_with("pages", &brief).expect("topic");
    let mut reader = topic.reader(baton::Start::All).expect("reader");
    topic.send(x.freeze()).expect("send");
    let m = reader.recv(Duration::from_secs(90)).expect("receive");
    let got = m.tensor().expect("a tensor");
    assert_eq!(got.to_vec::<u64>().expect("read"), (0..1000).collect::<Vec<_>>());

    // A view to write into is a copy: others do not see what is written there.
    let private = got.to_dlpack(baton::dlpack::ExportOptions::default().private(true)).expect("export");
    // SAFETY: the structure is whole until its deleter is called, once, below; its memory is private.
    unsafe {
        let t = &(*private.as_ptr()).dl_tensor;
        let first = t.data.cast::<u8>().add(t.byte_offset as usize).cast::<u64>();
        assert_eq!(*first.add(7), 7);
        *first.add(7) = 70;
    }
    drop(private);
    assert_eq!(got.to_vec::<u64>().expect("read")[7], 7);

    drop((got, m, reader, topic));
    until("the machine has its huge pages again", || {
        s.collect();
        free_pages() == free
    });
}
