//! What a fork costs, and forks of a process that is at work.

use super::*;

#[test]
fn a_child_that_inherits_nothing_connects_when_it_must() {
    let _alone = alone();
    let Some(b) = Broker::start() else { return };
    let s = b.session();
    let queue = s.queue("q").unwrap();
    let live = || b.listed("sessions").len();
    let (mut here, there) = ends();
    let before = live();
    let theirs = (s.clone(), queue.clone());
    let idle = child(move || {
        ok!((&there).write_all(&[1]));
        check!((&there).read(&mut [0]).is_ok_and(|n| n == 1));
        ok!(theirs.1.put(ok!(theirs.0.from_slice(&[1], &[3u64])).freeze(), PATIENCE));
        Ok(())
    });
    here.read_exact(&mut [0]).unwrap();
    assert_eq!(live(), before);
    here.write_all(&[1]).unwrap();
    ends_well(idle);
    assert!(is(&queue.get(PATIENCE).unwrap().tensor().unwrap(), &[3]));
}

#[test]
#[ignore = "a measurement: run it with --release --ignored --nocapture"]
fn what_a_fork_costs() {
    let _alone = alone();
    let median = |what: &str| {
        let mut times: Vec<_> = (0..200)
            .map(|_| {
                let began = Instant::now();
                let child = child(|| Ok(()));
                let took = began.elapsed();
                ends_well(child);
                took
            })
            .collect();
        times.sort();
        println!("{what}: {:?} at the median, {:?} at the 99th percentile", times[100], times[197]);
    };
    median("no session");
    let Some(b) = Broker::start() else { return };
    let s = b.session();
    median("a session, nothing held");
    let one = made(&s, &[1]);
    median("one tensor held");
    let mut many: Vec<_> = (1..1_000).map(|i| made(&s, &[i])).collect();
    median("1,000 tensors held");
    many.extend((1_000..10_000).map(|i| made(&s, &[i])));
    median("10,000 tensors held");
    drop((one, many));
}

#[test]
fn children_of_a_busy_process_do_not_hang() {
    let _alone = alone();
    let Some(b) = Broker::start() else { return };
    let s = b.session();
    let topic = s.topic_with("t", &keep_nothing()).unwrap();
    let queue = s.queue_with("q", &QueueOptions::default().linger(Duration::ZERO)).unwrap();
    let over = AtomicBool::new(false);
    std::thread::scope(|scope| {
        for i in 0..2 {
            let (s, topic, over) = (&s, &topic, &over);
            scope.spawn(move || {
                let (mut reader, name) = (topic.reader(Start::New).unwrap(), format!("n/{i}"));
                while !over.load(Ordering::Relaxed) {
                    topic.send(s.alloc::<u64>(&[100]).unwrap().freeze()).unwrap();
                    drop(reader.try_recv().unwrap());
                    s.set(&name, made(s, &[i])).unwrap();
                    let waits = s.topic_with("", &keep_nothing()).unwrap().reader(Start::New).unwrap();
                    drop((waits, vec![0u8; 100_000]));
                }
                s.delete(&name).unwrap();
            });
        }
        let waits = scope.spawn(|| queue.get(PATIENCE * 10).map(drop));
        let forking: Vec<_> = (0..3)
            .map(|i| {
                let (s, topic) = (&s, &topic);
                scope.spawn(move || {
                    for k in 0..20 {
                        let t = made(s, &[i, k]);
                        let theirs = (t.clone(), s.clone(), topic.clone());
                        ends_well(child(move || {
                            let (t, s, topic) = theirs;
                            check!(is(&t, &[i, k]));
                            let mut reader = ok!(topic.reader(Start::New));
                            ok!(topic.send(&t));
                            ok!(reader.recv(PATIENCE));
                            let mine = ok!(s.topic_with("", &keep_nothing()));
                            let mut reader = ok!(mine.reader(Start::New));
                            ok!(mine.send(&t));
                            check!(is(&ok!(ok!(reader.recv(PATIENCE)).tensor()), &[i, k]));
                            drop((t, s, topic));
                            Ok(())
                        }));
                        assert!(is(&t, &[i, k]));
                    }
                })
            })
            .collect();
        let done: Vec<_> = forking.into_iter().map(|f| f.join()).collect();
        over.store(true, Ordering::Relaxed);
        queue.put(baton::Payload::default(), PATIENCE).unwrap();
        waits.join().unwrap().unwrap();
        done.into_iter().for_each(|d| d.unwrap());
    });
    drop((topic, queue));
    s.close();
    b.nothing_is_held();
}
