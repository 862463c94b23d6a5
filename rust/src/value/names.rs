//! The names of tensors: paths on the wire, keys for a sender or receiver of a flat dict.

use std::borrow::Cow;
use std::collections::HashSet;

use crate::tensor::Tensor;

/// Names one behind the other: a value may have thousands.
#[derive(Debug, Clone, Default)]
pub struct Names {
    text: String,
    ends: Vec<usize>,
}

impl Names {
    /// Adds one.
    pub fn push(&mut self, name: &str) {
        self.text.push_str(name);
        self.ends.push(self.text.len());
    }

    /// All, in their order.
    pub fn iter(&self) -> impl ExactSizeIterator<Item = &str> + Clone {
        (0..self.ends.len()).map(|i| &self.text[if i > 0 { self.ends[i - 1] } else { 0 }..self.ends[i]])
    }

    /// A key as it stands in paths: that of a flat dict is a path already.
    pub fn escaped(key: &str) -> Cow<'_, str> {
        match needs_escape(key) {
            true => key.replace('~', "~0").replace('/', "~1").into(),
            false => key.into(),
        }
    }

    /// Takes all away.
    pub fn clear(&mut self) {
        (self.text, self.ends) = Default::default();
    }

    /// Why they are not the keys of a flat dict, for its receiver.
    pub(crate) fn fault(&self) -> Option<String> {
        if self.ends.len() < 2 {
            return None;
        }
        let mut seen = HashSet::with_capacity(self.ends.len());
        self.iter().find_map(|n| match n {
            "" => Some("a tensor without a name beside others".to_owned()),
            n => (!seen.insert(n)).then(|| format!("two tensors have the name {n:?}")),
        })
    }

    /// The paths of a flat dict's keys, which most of them are already.
    #[must_use]
    pub fn paths(self) -> Names {
        match needs_escape(&self.text) {
            true => self.iter().map(Names::escaped).collect(),
            false => self,
        }
    }

    /// The keys of a flat dict's paths.
    pub(crate) fn keys(self) -> Names {
        match is_escaped(&self.text) {
            true => self.iter().map(key_of).collect(),
            false => self,
        }
    }
}

impl<S: AsRef<str>> FromIterator<S> for Names {
    fn from_iter<I: IntoIterator<Item = S>>(all: I) -> Names {
        let mut names = Names::default();
        all.into_iter().for_each(|n| names.push(n.as_ref()));
        names
    }
}

/// Names and tensors apart.
pub(crate) fn named<S: AsRef<str>>(all: impl IntoIterator<Item = (S, Tensor)>) -> (Names, Vec<Tensor>) {
    let mut names = Names::default();
    let tensors = all.into_iter().map(|(name, t)| {
        names.push(name.as_ref());
        t
    });
    let tensors = tensors.collect();
    (names, tensors)
}

fn needs_escape(key: &str) -> bool {
    // All of it: many bytes in one step, where `any` takes one by one.
    key.bytes().fold(false, |found, c| found | (c == b'~') | (c == b'/'))
}

fn is_escaped(path: &str) -> bool {
    path.contains('~')
}

/// The key that a path of one part stands for.
pub(crate) fn key_of(path: &str) -> Cow<'_, str> {
    match is_escaped(path) {
        true => path.replace("~1", "/").replace("~0", "~").into(),
        false => path.into(),
    }
}
