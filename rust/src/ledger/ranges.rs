//! The free memory of one slab.

/// Runs of free bytes sorted by offset, none touching the next.
#[derive(Debug, Default)]
pub(crate) struct Ranges {
    runs: Vec<(u64, u64)>, // offset, length
}

impl Ranges {
    /// Whether some run has `n` bytes.
    pub(crate) fn has(&self, n: u64) -> bool {
        self.runs.iter().any(|r| r.1 >= n)
    }

    /// Cuts `n` bytes from the first run that has them.
    pub(crate) fn take(&mut self, n: u64) -> Option<u64> {
        let i = self.runs.iter().position(|r| r.1 >= n)?;
        let at = self.runs[i].0;
        if self.runs[i].1 == n {
            self.runs.remove(i);
        } else {
            self.runs[i].0 += n;
            self.runs[i].1 -= n;
        }
        Some(at)
    }

    /// Returns a run and joins it with its neighbours.
    pub(crate) fn give(&mut self, at: u64, n: u64) {
        let i = self.runs.partition_point(|r| r.0 <= at);
        let before = i > 0 && self.runs[i - 1].0 + self.runs[i - 1].1 == at;
        let after = self.runs.get(i).is_some_and(|r| at + n == r.0);
        match (before, after) {
            (true, true) => {
                self.runs[i - 1].1 += n + self.runs[i].1;
                self.runs.remove(i);
            }
            (true, false) => self.runs[i - 1].1 += n,
            (false, true) => self.runs[i] = (at, n + self.runs[i].1),
            (false, false) => self.runs.insert(i, (at, n)),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn runs_join_whatever_the_order_of_their_return() {
        let mut r = Ranges::default();
        r.give(0, 4096);
        let parts: Vec<u64> = (0..4).map(|_| r.take(1024).unwrap()).collect();
        assert!(r.take(1).is_none());
        for i in [2, 0, 3, 1] {
            r.give(parts[i], 1024);
        }
        assert_eq!(r.runs, [(0, 4096)]);
    }
}
