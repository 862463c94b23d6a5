//! What bounds this process's memory: a memfd itself never says that memory is full.

use std::fs;
use std::path::{Path, PathBuf};

/// Bytes that can be taken before something is killed: what the machine has available, or what the
/// tightest control group above us leaves. `None` when neither can be read.
pub(crate) fn free_memory() -> Option<u64> {
    let info = fs::read_to_string("/proc/meminfo").ok()?;
    let available = keyed(&info, "MemAvailable:")? << 10;
    Some(group_left().map_or(available, |left| left.min(available)))
}

fn keyed(text: &str, key: &str) -> Option<u64> {
    let line = text.lines().find(|l| l.starts_with(key))?;
    line[key.len()..].split_whitespace().next()?.parse().ok()
}

/// What the groups of version 2 (`0::/path`) or of version 1's memory controller leave.
fn group_left() -> Option<u64> {
    let groups = fs::read_to_string("/proc/self/cgroup").ok()?;
    groups
        .lines()
        .filter_map(|line| {
            let mut parts = line.splitn(3, ':').skip(1);
            let (controllers, path) = (parts.next()?, parts.next()?);
            if controllers.is_empty() {
                walk("/sys/fs/cgroup", path, "memory.max", "memory.current")
            } else if controllers.split(',').any(|c| c == "memory") {
                walk("/sys/fs/cgroup/memory", path, "memory.limit_in_bytes", "memory.usage_in_bytes")
            } else {
                None
            }
        })
        .min()
}

/// Looks at every group from ours to the root: any may have a limit.
fn walk(root: &str, path: &str, limit: &str, used: &str) -> Option<u64> {
    let own = PathBuf::from(path.trim_start_matches('/'));
    own.ancestors().filter_map(|p| left(&Path::new(root).join(p), limit, used)).min()
}

fn left(dir: &Path, limit: &str, used: &str) -> Option<u64> {
    let number = |name: &str| fs::read_to_string(dir.join(name)).ok()?.trim().parse::<u64>().ok();
    let limit = number(limit).filter(|n| *n < 1 << 60)?;
    let stat = fs::read_to_string(dir.join("memory.stat")).unwrap_or_default();
    // What the kernel can drop at once does not count.
    let cache = keyed(&stat, "inactive_file ").unwrap_or(0);
    Some(limit.saturating_sub(number(used)?.saturating_sub(cache)))
}
