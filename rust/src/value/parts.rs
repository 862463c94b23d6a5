//! Payloads and bundles put together and taken apart, for bindings of other languages.

use std::sync::Arc;

use super::{Bundle, Names, Payload, Tensors, named};
use crate::tensor::Tensor;

impl Payload {
    /// Tensors under the names that they have in the protocol (paths with their escapes), and the
    /// JSON of the tree that numbers them; empty: one unnamed tensor is the value, or a flat dict.
    ///
    /// ```
    /// # fn main() -> Result<(), baton::Error> {
    /// # let Some(_broker) = baton_testkit::broker() else { return Ok(()) };
    /// # let session = baton::Session::connect()?;
    /// use baton::bindings::Names;
    /// use baton::{Bundle, Payload, Value};
    ///
    /// let x = session.zeros::<u8>(&[1])?.freeze();
    /// let tree = br#"{"a/b":{"$":"tensor","i":0}}"#;
    /// let path = Names::escaped("a/b"); // a~1b: a key, not two
    /// let value = Payload::with_tree(vec![(path.to_string(), x.clone())], tree.to_vec());
    /// session.set("tree", value)?;
    /// let bundle = session.get("tree", None)?;
    /// assert_eq!((bundle.tree(), bundle.is_empty(), bundle.is_live()), (&tree[..], false, false));
    /// assert!(bundle.value()?.get("a/b").is_some_and(|v| v.tensor().is_some()));
    ///
    /// let mut names = Names::default();
    /// names.push("gone");
    /// names.clear();
    /// names.push("x");
    /// let flat = Payload::of_names(names.paths(), vec![x.clone()], Vec::new());
    /// assert_eq!(flat.into_tensors().count(), 1);
    /// let again = Bundle::of_parts(vec![("x".to_owned(), x)], Vec::new(), b"7".to_vec(), 3, false);
    /// assert_eq!((again.revision(), again.meta()), (3, &b"7"[..]));
    /// # Ok(()) }
    /// ```
    pub fn with_tree(tensors: Vec<(String, Tensor)>, tree: Vec<u8>) -> Payload {
        Payload::of(tensors.into_iter().collect(), tree)
    }

    /// As `with_tree`, of as many names as tensors.
    #[doc(hidden)]
    pub fn of_names(names: Names, tensors: Vec<Tensor>, tree: Vec<u8>) -> Payload {
        Payload::of(Tensors::Named(names, tensors.into()), tree)
    }

    /// The tensors, in their order.
    pub fn into_tensors(self) -> impl Iterator<Item = Tensor> {
        Arc::unwrap_or_clone(self.tensors.into_named().1).into_iter()
    }
}

impl From<Payload> for Bundle {
    /// What a receiver of the payload would see.
    fn from(p: Payload) -> Bundle {
        let (names, tensors) = p.tensors.into_named();
        let names = if p.tree.is_empty() { names.keys() } else { names };
        Bundle { names, tensors, tree: p.tree, ..Bundle::default() }
    }
}

impl Bundle {
    /// A revision of a name that was taken apart, as by pickling: names as the bundle has them.
    #[doc(hidden)]
    pub fn of_parts(tensors: Vec<(String, Tensor)>, tree: Vec<u8>, meta: Vec<u8>, revision: u64, live: bool) -> Bundle {
        let (names, tensors) = named(tensors);
        Bundle { names, tensors: tensors.into(), tree, meta, revision, live, ..Bundle::default() }
    }
}
