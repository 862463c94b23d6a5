//! The tour of the README, run as a newcomer would: no broker runs, and the first connection starts the
//! user's.

mod kit;

use std::path::Path;
use std::process::Command;

#[test]
fn the_tour_runs_and_starts_the_users_broker() {
    let Some(binary) = kit::binary() else { return };
    let dir = kit::Dir::new();
    // As the workspace's tests are built, so that nothing is built twice.
    let features = if cfg!(feature = "ndarray") { "--all-features" } else { "--no-default-features" };
    let built = Command::new(env!("CARGO"))
        .args(["build", "--workspace", "--locked", "--quiet", "--message-format=json", "--example", "tour", features])
        .args(["--manifest-path", concat!(env!("CARGO_MANIFEST_DIR"), "/Cargo.toml")])
        .output()
        .unwrap();
    assert!(built.status.success(), "{}", String::from_utf8_lossy(&built.stderr));
    let parts = serde_json::Deserializer::from_slice(&built.stdout).into_iter::<serde_json::Value>();
    let tour = parts.map(Result::unwrap).filter_map(|part| part["executable"].as_str().map(str::to_owned)).last();
    let out = Command::new(tour.unwrap())
        .current_dir(binary.parent().unwrap())
        .env("XDG_RUNTIME_DIR", dir.path())
        .env("BATON_BINARY", Path::new(".").join(binary.file_name().unwrap()))
        .env_remove("BATON_ADDRESS")
        .output()
        .unwrap();
    let state = std::fs::read(dir.path().join("baton/state.json"));
    if let Ok(state) = &state {
        // The broker that it started ends when told to, and takes its files along.
        let parts = serde_json::Deserializer::from_slice(state).into_iter::<serde_json::Value>();
        let pid = parts.map(Result::unwrap).find_map(|part| part["pid"].as_i64()).unwrap();
        let pid = rustix::process::Pid::from_raw(pid as i32).unwrap();
        rustix::process::kill_process(pid, rustix::process::Signal::TERM).unwrap();
        kit::until("the broker's socket has gone", || !dir.path().join("baton/broker.sock").exists());
    }
    assert!(out.status.success(), "{}", String::from_utf8_lossy(&out.stderr));
    let expected = "published tour/weights, revision 1
batch 1: [2, 3], first 0, last 5
batch 2: [2, 3], first 10, last 15
batch 3: [2, 3], first 20, last 25
got tour/weights, revision 1: [\"w\"]
";
    assert_eq!(String::from_utf8(out.stdout).unwrap(), expected);
    state.unwrap();
}
