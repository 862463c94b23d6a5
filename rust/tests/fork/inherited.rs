//! What a child has of its parent's tensors, topics and groups.

use super::*;

#[test]
fn a_child_uses_all_that_it_inherited() {
    let _alone = alone();
    let Some(b) = Broker::start() else { return };
    let s = b.session();
    let topic = s.topic_with("t", &keep_nothing()).unwrap();
    let queue = s.queue("q").unwrap();
    let mut reader = topic.reader(Start::New).unwrap();
    topic.send(made(&s, &[7, 8])).unwrap();
    topic.send(made(&s, &[9, 10])).unwrap();
    let m = reader.recv(PATIENCE).unwrap();
    let t = m.tensor().unwrap();
    let (parent, theirs) = (s.serial(), (s.clone(), topic.clone(), queue.clone(), t.clone()));
    ends_well(child(move || {
        let (s, topic, queue, t) = theirs;
        check!(is(&t, &[7, 8]) && is(&ok!(m.tensor()), &[7, 8]));
        check!(s.serial() != parent && s.serial() != 0 && !s.is_ended());
        // The reader goes on where the parent's was.
        check!(is(&ok!(ok!(reader.recv(PATIENCE)).tensor()), &[9, 10]));
        // What is sent is held by the child's lane, in place.
        ok!(topic.send(&t));
        check!(is(&ok!(ok!(reader.recv(PATIENCE)).tensor()), &[7, 8]));
        ok!(queue.put(&t, PATIENCE));
        ok!(queue.put(ok!(s.from_slice(&[1], &[1u64])).freeze(), PATIENCE));
        check!(is(&ok!(ok!(queue.get(PATIENCE)).tensor()), &[7, 8]));
        ok!(s.set("n", &t));
        let handle = ok!(t.handle(baton::Lease::default()));
        check!(is(&ok!(s.open(&handle)), &[7, 8]));
        check!(t.holders().iter().any(|h| h.pid == std::process::id()));
        ok!(s.release_handle(&handle));
        drop((reader, m, t, topic));
        Ok(())
    }));
    // What the child has dropped is still the parent's.
    assert!(is(&t, &[7, 8]));
    assert_eq!(s.get("n", PATIENCE).unwrap().first().unwrap().to_vec::<u64>().unwrap(), [7, 8]);
    assert!(is(&queue.get(PATIENCE).unwrap().tensor().unwrap(), &[1]));
    s.delete("n").unwrap();
    drop((topic, queue, t));
    s.close();
    b.nothing_is_held();
}

/// A view of numbers at an address, as another library has it.
fn view(at: *const u64, shape: &mut [i64; 1]) -> DLTensor {
    DLTensor {
        data: at.cast_mut().cast(),
        device: DLDevice { device_type: CPU, device_id: 0 },
        ndim: 1,
        dtype: DType::UINT64,
        shape: shape.as_mut_ptr(),
        strides: std::ptr::null_mut(),
        byte_offset: 0,
    }
}

/// Puts what an array of this process is of, which must lie there.
fn put_array(s: &Session, at: *const u64, queue: &Queue) -> Seen {
    // SAFETY: it lies in memory that this process has mapped, and which nothing writes.
    let found = ok!(unsafe { s.share_in_place(&view(at, &mut [2]), 0) });
    let Some(found) = found else { return Err(line!()) };
    check!(ok!(found.as_ptr()) == at.cast());
    check!(found.session().serial() == s.serial());
    ok!(queue.put(&found, PATIENCE));
    Ok(())
}

#[test]
fn arrays_of_before_the_fork_lie_in_memory_of_a_childs_session() {
    let _alone = alone();
    let Some(b) = Broker::start() else { return };
    let s = b.session();
    let other = b.session();
    let queue = s.queue("q").unwrap();
    let own = made(&s, &[6, 7, 8]);
    // Of another session, mapped for reading.
    let opened = s.open(&made(&other, &[1, 2, 3]).handle(baton::Lease::Once).unwrap()).unwrap();
    let not = [4u64, 5];
    let theirs = (s.clone(), queue.clone(), own.clone(), opened.clone());
    ends_well(child(move || {
        let (s, queue, own, opened) = theirs;
        let at = |t: &Tensor| t.as_ptr().map(|p| p.cast::<u64>().wrapping_add(1));
        let (first, second) = (ok!(at(&own)), ok!(at(&opened)));
        put_array(&s, first, &queue)?;
        put_array(&s, second, &queue)?;
        // SAFETY: they are this function's numbers.
        check!(ok!(unsafe { s.share_in_place(&view(not.as_ptr(), &mut [2]), 0) }).is_none());
        let heir = child(|| put_array(&s, first, &queue));
        check!(end_of(heir) == 0);
        Ok(())
    }));
    for (values, of) in [([7, 8], &own), ([2, 3], &opened), ([7, 8], &own)] {
        let got = queue.get(PATIENCE).unwrap().into_tensor().unwrap();
        assert!(is(&got, &values));
        assert_eq!(got.as_ptr().unwrap(), of.as_ptr().unwrap().wrapping_add(8), "the same memory");
    }
    drop((own, opened, queue));
    other.close();
    s.close();
    b.nothing_is_held();
}

#[test]
fn what_a_child_inherited_outlives_the_parent() {
    let _alone = alone();
    let Some(b) = Broker::start() else { return };
    let s = b.session();
    let queue = s.queue("q").unwrap();
    let (mut here, there) = ends();
    let address = b.address();
    let dies = child(move || {
        let s = ok!(Session::builder().address(address).connect());
        let queue = ok!(s.queue("q"));
        let t = ok!(s.from_slice(&[2], &[3u64, 4])).freeze();
        let heir = child(move || {
            // Until the other end is told that the parent is dead, and says so.
            check!((&there).read(&mut [0]).is_ok_and(|n| n == 1));
            check!(is(&t, &[3, 4]));
            ok!(queue.put(&t, PATIENCE));
            ok!(queue.put(ok!(s.from_slice(&[1], &[5u64])).freeze(), PATIENCE));
            drop(t);
            check!((&there).read(&mut [0]).is_ok_and(|n| n == 1));
            Ok(())
        });
        // SAFETY: the child is this process's; nothing of this process is dropped in order.
        unsafe { if heir > 0 { _exit(0) } else { Err(line!()) } }
    });
    ends_well(dies);
    kit::until("the parent's session is over", || b.listed("sessions").iter().all(|s| s["pid"] != dies));
    assert_eq!(b.listed("storages").len(), 1, "what the heir holds");
    here.write_all(&[1]).unwrap();
    let t = queue.get(PATIENCE).unwrap().into_tensor().unwrap();
    assert!(is(&t, &[3, 4]));
    assert!(is(&queue.get(PATIENCE).unwrap().tensor().unwrap(), &[5]));
    here.write_all(&[1]).unwrap();
    drop((t, queue));
    s.close();
    b.nothing_is_held();
}

#[test]
fn a_parent_that_drops_at_once_recycles_nothing_that_a_child_holds() {
    let _alone = alone();
    let Some(b) = Broker::start() else { return };
    let s = b.session();
    let (mut here, there) = ends();
    let t = made(&s, &[3; 1000]);
    let u = t.as_strided(&[500], None, 500).unwrap();
    // What is moved here the parent drops as soon as it has forked, and the child has alone.
    let heir = child(move || {
        check!((&there).read(&mut [0]).is_ok_and(|n| n == 1));
        check!(is(&t, &[3; 1000]));
        drop(t);
        check!(is(&u, &[3; 500]));
        ok!((&there).write_all(&[1]));
        check!((&there).read(&mut [0]).is_ok_and(|n| n == 1));
        check!(is(&u, &[3; 500]));
        drop(u);
        ok!((&there).write_all(&[1]));
        check!((&there).read(&mut [0]).is_ok_and(|n| n == 1));
        Ok(())
    });
    let overwrite = || (0..20).for_each(|i| drop(made(&s, &[i; 1000])));
    // Until the child's page is mapped here, it may hold anything.
    let live = |n| {
        kit::until("so much is held", || {
            s.collect();
            s.stats().pool.live == n
        })
    };
    live(1);
    overwrite();
    here.write_all(&[1]).unwrap();
    here.read_exact(&mut [0]).unwrap();
    overwrite();
    live(1); // the child has a view of it yet
    here.write_all(&[1]).unwrap();
    here.read_exact(&mut [0]).unwrap();
    live(0); // the child has dropped it, and lives
    here.write_all(&[1]).unwrap();
    ends_well(heir);
    s.close();
    b.nothing_is_held();
}

#[test]
fn what_lanes_keep_is_the_parents() {
    let _alone = alone();
    let Some(b) = Broker::start() else { return };
    let s = b.session();
    let queue = s.queue("q").unwrap();
    let (mut here, there) = ends();
    let t = made(&s, &[1]);
    queue.put(&t, PATIENCE).unwrap();
    queue.put(made(&s, &[2]), PATIENCE).unwrap();
    let heir = child(move || {
        drop(t);
        ok!((&there).write_all(&[1]));
        check!((&there).read(&mut [0]).is_ok_and(|n| n == 1));
        Ok(())
    });
    here.read_exact(&mut [0]).unwrap();
    (0..2).for_each(|_| drop(queue.get(PATIENCE).unwrap()));
    kit::until("nothing is held by the child, which inherited the tensor alone, and dropped it", || {
        s.collect();
        s.stats().pool.live == 0
    });
    here.write_all(&[1]).unwrap();
    ends_well(heir);
}

#[test]
fn children_of_children_inherit_too() {
    let _alone = alone();
    let Some(b) = Broker::start() else { return };
    let s = b.session();
    let queue = s.queue("q").unwrap();
    let t = made(&s, &[1, 2]);
    let theirs = (s.clone(), queue.clone(), t.clone());
    ends_well(child(move || {
        let (s, queue, t) = theirs;
        let u = ok!(s.from_slice(&[1], &[3u64])).freeze();
        let grandchild = child(move || {
            check!(is(&t, &[1, 2]) && is(&u, &[3]));
            ok!(queue.put(baton::Payload::named([("t", t), ("u", u)]), PATIENCE));
            Ok(())
        });
        check!(end_of(grandchild) == 0);
        Ok(())
    }));
    let got = queue.get(PATIENCE).unwrap().bundle().unwrap();
    assert!(is(got.get("t").unwrap(), &[1, 2]) && is(got.get("u").unwrap(), &[3]));
    drop((got, t, queue));
    s.close();
    b.nothing_is_held();
}

/// The owner has given them to no other session: only its child, or a child of that, has.
#[test]
fn what_a_child_gives_away_of_a_private_tensor_can_be_opened() {
    let _alone = alone();
    let Some(b) = Broker::start() else { return };
    let (s, other) = (b.session(), b.session());
    let queue = s.queue("q").unwrap();
    let (mut here, there) = ends();
    let (mut t, u, v) = (s.alloc::<u64>(&[2]).unwrap(), made(&s, &[3, 4]), made(&s, &[5, 6]));
    t.copy_from_slice(&[1, 2]);
    let theirs = queue.clone();
    let forked = child(move || {
        check!(t[0] == 1 && t[..] == [1, 2]);
        t[1] = 3;
        let (queue, t) = (theirs, t.freeze());
        let grandchild = child(move || {
            ok!(queue.put(&u, PATIENCE));
            ok!(queue.put(baton::Payload::named([("v", &v), ("again", &v)].map(|(n, t)| (n, t.clone()))), PATIENCE));
            let handles = [t, u, v].map(|t| t.handle(baton::Lease::Once).map(|h| h.to_json() + "\n"));
            for handle in handles {
                ok!((&there).write_all(ok!(handle).as_bytes()));
            }
            Ok(())
        });
        check!(end_of(grandchild) == 0);
        Ok(())
    });
    ends_well(forked);
    let mut said = String::new();
    here.read_to_string(&mut said).unwrap();
    let opened: Vec<_> = said.lines().map(|h| other.open(&baton::Handle::from_json(h).unwrap()).unwrap()).collect();
    assert!(is(&opened[0], &[1, 3]) && is(&opened[1], &[3, 4]) && is(&opened[2], &[5, 6]));
    assert!(is(&queue.get(PATIENCE).unwrap().tensor().unwrap(), &[3, 4]));
    drop((queue.get(PATIENCE).unwrap(), opened, queue));
    s.close();
    b.nothing_is_held();
}

/// The broker gives a child custody of the file of its parent's session, for reading. What a child of the child gives
/// away is marked in that file, by a descriptor for writing that came with the forks.
#[test]
fn a_child_of_a_child_with_custody_of_the_owners_file_gives_away_a_private_tensor() {
    let _alone = alone();
    let Some(b) = Broker::start() else { return };
    let before = session_files(true);
    let s = b.session();
    let own = session_files(true).into_iter().find(|file| !before.contains(file)).expect("the file of the session");
    let queue = s.queue("q").unwrap();
    let shown = made(&s, &[7]);
    // The first three that map the file have custody of it, and the fourth closes it: so custodians are missed later.
    let mut custodians: Vec<_> = (0..4)
        .map(|_| {
            let (handle, address) = (shown.handle(baton::Lease::default()).unwrap(), b.address());
            let (mut here, there) = ends();
            let of = child(move || {
                let s = ok!(Session::builder().address(address).connect());
                let t = ok!(s.open(&handle));
                ok!((&there).write_all(&[1]));
                std::thread::sleep(PATIENCE);
                check!(is(&t, &[7]));
                Ok(())
            });
            here.read_exact(&mut [0]).unwrap();
            of
        })
        .collect();
    let (theirs, t) = (queue.clone(), made(&s, &[1, 2]));
    let (mut here, there) = ends();
    let heir = child(move || {
        check!(is(&t, &[1, 2]));
        ok!((&there).write_all(&[1]));
        while !session_files(false).contains(&own) {
            std::thread::sleep(Duration::from_millis(1));
        }
        let grandchild = child(move || {
            ok!(theirs.put(&t, PATIENCE));
            Ok(())
        });
        check!(end_of(grandchild) == 0);
        Ok(())
    });
    here.read_exact(&mut [0]).unwrap();
    custodians.drain(..2).for_each(ends_by_kill);
    ends_well(heir);
    custodians.into_iter().for_each(ends_by_kill);
    assert!(is(&queue.get(PATIENCE).unwrap().tensor().unwrap(), &[1, 2]));
    drop((queue, shown));
    s.close();
    b.nothing_is_held();
}

/// The inodes of the session files of which this process has descriptors, for writing or for reading alone.
fn session_files(writable: bool) -> Vec<u64> {
    use std::os::unix::fs::MetadataExt;
    const BYTES: u64 = 1 << 30; // as docs/protocol.md has it
    let all = std::fs::read_dir("/proc/self/fd").unwrap().flatten();
    let inode = |fd: &std::fs::DirEntry| {
        let file = std::fs::metadata(fd.path()).ok().filter(|m| m.is_file() && m.len() == BYTES)?;
        let info = std::fs::read_to_string(format!("/proc/self/fdinfo/{}", fd.file_name().to_str()?)).ok()?;
        let flags = info.lines().find_map(|l| l.strip_prefix("flags:"))?;
        let mode = u32::from_str_radix(flags.trim(), 8).ok()? & 3;
        ((mode == 2) == writable).then(|| file.ino())
    };
    all.filter_map(|fd| inode(&fd)).collect()
}

#[test]
fn members_of_a_group_are_joined_by_children() {
    let _alone = alone();
    let Some(b) = Broker::start() else { return };
    let s = b.session();
    let topic = s.topic_with("t", &keep_nothing().overwrite(false)).unwrap();
    let mut reader = topic.group_reader("g").unwrap();
    let theirs = (topic.clone(), topic.group_reader("g").unwrap());
    ends_well(child(move || {
        let (topic, mut reader) = theirs;
        check!(ok!(reader.try_recv()).is_none());
        ok!(topic.send(baton::Payload::default()));
        check!(ok!(reader.recv(PATIENCE)).sequence() == 1);
        ok!(topic.send(baton::Payload::default()));
        Ok(())
    }));
    assert_eq!(reader.recv(PATIENCE).unwrap().sequence(), 2);
    assert!(reader.try_recv().unwrap().is_none());
}

#[test]
fn a_child_inherits_a_storage_of_which_there_are_as_many_references_as_there_may_be() {
    let _alone = alone();
    let Some(b) = Broker::start() else { return };
    let s = b.session();
    let t = made(&s, &[1, 2]);
    let all = kit::all_references(&s, &t);
    let (mut here, there) = ends();
    let (theirs, one) = (t.clone(), all[0].clone());
    let forked = child(move || {
        check!((&there).read(&mut [0]).is_ok_and(|n| n == 1)); // the parent holds nothing any more
        check!(is(&theirs, &[1, 2]) && is(&one, &[1, 2]));
        Ok(())
    });
    drop((all, t));
    s.collect();
    here.write_all(&[1]).unwrap();
    ends_well(forked);
    s.close();
    b.nothing_is_held();
}

/// What a child says of the tensors that it has, or was told why not.
fn inherited(all: &[Tensor], said: &mut UnixStream) -> Seen {
    let (mut there, mut full) = (0u8, 0u8);
    for (i, t) in all.iter().enumerate() {
        match t.to_vec::<u64>() {
            Ok(v) => {
                check!(v == [i as u64]);
                there += 1;
            }
            Err(e) => {
                check!(e.code() == Code::OutOfMemory);
                full += 1;
            }
        }
    }
    ok!(said.write_all(&[there, full]));
    Ok(())
}

#[test]
fn a_child_misses_only_what_it_could_not_count() {
    let _alone = alone();
    let Some(full) = kit::FullDir::new(32 << 20) else { return };
    let memory = full.path().join("memory");
    let Some(b) = Broker::start_with(&["--memory-dir", memory.to_str().unwrap(), "--memory", "4MiB"]) else { return };
    let s = b.session();
    // Each lies in a chunk of its own, whose part of the child's refcounts needs a page at times.
    let owners: Vec<_> = (0..16).map(|_| b.session()).collect();
    let all: Vec<_> = owners
        .iter()
        .enumerate()
        .map(|(i, o)| s.open(&made(o, &[i as u64]).handle(baton::Lease::default()).unwrap()).unwrap())
        .collect();
    let sessions = b.listed("sessions").len();
    let mut some = false;
    for pages in 0.. {
        full.leave(4096 * pages);
        let (mut here, mut there) = ends();
        let theirs = all.clone();
        ends_well(child(move || inherited(&theirs, &mut there)));
        let mut said = [0; 2];
        here.read_exact(&mut said).unwrap();
        full.leave(1 << 20);
        kit::until("the child's session is over", || b.listed("sessions").len() == sessions);
        assert_eq!(usize::from(said[0] + said[1]), all.len());
        some |= said[0] > 0 && said[1] > 0;
        if said[1] == 0 {
            break;
        }
    }
    assert!(some, "there was never room for some of them only");
    assert!(all.iter().enumerate().all(|(i, t)| is(t, &[i as u64])), "the parent's are as they were");
}
