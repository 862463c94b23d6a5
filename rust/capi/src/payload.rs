//! What is sent, put and set.

use std::cell::Cell;
use std::ffi::c_char;

use baton::bindings::Names;
use baton::dlpack::DLManagedTensorVersioned;
use baton::{Build, Bundle, FunctionValue, Payload, Session, Tensor, Value};
use serde_json::value::RawValue;

use crate::error::{Outcome, refused, refused_for};
use crate::gpu::stream;
use crate::grown::{Element, Grows, each, grown, grows};
use crate::tensor::shared;
use crate::{given, maybe_text};

/// A tensor under a name. Its size is the item_size of the payload, which steps by it; what follows the two
/// members in a newer header is zero if it is left out.
#[repr(C)]
#[derive(Clone, Copy)]
pub struct baton_item {
    /// The key in a flat dict, or, with a tree, the path at which the tensor stands there. NULL: with a
    /// tree that path; else the tensor is the value itself and the only one.
    pub name: *const c_char,
    /// Lent for the call. One of another library is copied into shared memory, as by
    /// baton_from_dlpack.
    pub tensor: *const DLManagedTensorVersioned,
}

/// A value to send, put or set. BATON_PAYLOAD_INIT is a value without tensors.
#[repr(C)]
#[derive(Clone, Copy)]
pub struct baton_payload {
    /// Of this structure, set by BATON_PAYLOAD_INIT.
    pub size: usize,
    /// sizeof(baton_item), set by BATON_PAYLOAD_INIT.
    pub item_size: usize,
    /// Its tensors; NULL when there are none.
    pub items: *const baton_item,
    /// How many.
    pub count: usize,
    /// JSON that travels with the message or revision. NULL or "": none.
    pub meta: *const c_char,
    /// JSON of the value tree (docs/protocol.md, section 6), with each tensor's number once, in their
    /// order. NULL or "": the value is the unnamed tensor, or a flat dict of the named ones.
    pub tree: *const c_char,
    /// The stream after whose work its tensors on a GPU are written, whenever that is: receivers'
    /// streams wait for it. 0: the legacy default stream; BATON_NO_STREAM if the program has waited.
    /// Names and handles wait for the GPU themselves.
    pub stream: i64,
}

grows! { baton_payload to stream: i64, BATON_PAYLOAD_INIT; }

// SAFETY: two pointers.
unsafe impl Element for baton_item {
    const FIRST: usize = 16;
}

/// Checks a text for being JSON. An empty one is none, as messages have it.
///
/// # Safety
/// It is null or ends with a zero.
unsafe fn json<'a>(text: *const c_char, what: &str) -> Outcome<Option<&'a RawValue>> {
    // SAFETY: as the caller says.
    match unsafe { maybe_text(text, what) }? {
        None | Some("") => Ok(None),
        Some(s) => match serde_json::from_str(s) {
            Ok(raw) => Ok(Some(raw)),
            Err(e) => refused(format!("{what} is not JSON: {e}")),
        },
    }
}

/// # Safety
/// It is null or has as many bytes as it says; its pointers are to so many items, to live structures and texts.
pub(crate) unsafe fn payload(session: &Session, value: *const baton_payload) -> Outcome<Payload> {
    // SAFETY: as the caller says.
    let value = unsafe { grown(value) }?;
    let value = given(value.as_ref(), "payload")?;
    // SAFETY: as the caller says.
    let (meta, tree) = unsafe { (json(value.meta, "meta")?, json(value.tree, "tree")?) };
    if let Some(e) = meta.and_then(|m| serde_json::from_str::<serde_json::Value>(m.get()).err()) {
        return refused(format!("meta is JSON that its receivers do not read: {e}"));
    }
    let size = (value.item_size, "the item_size of baton_payload", baton_payload::INIT);
    // SAFETY: as above.
    let items = unsafe { each(value.items, value.count, size, "items") }?;
    let mut tensors = Vec::with_capacity(value.count.min(1 << 16));
    for item in items {
        let item = item?;
        // SAFETY: as above.
        let (name, tensor) = unsafe { (maybe_text(item.name, "name")?, shared(session, item.tensor)?) };
        tensors.push((name, tensor));
    }
    let unnamed = tensors.iter().filter(|(n, _)| n.is_none()).count();
    let named = |(n, t): (Option<&str>, baton::Tensor)| (n.unwrap_or_default().to_owned(), t);
    let p = match tree {
        Some(tree) => of_tree(tensors, tree.get())?,
        None if unnamed == 1 && tensors.len() == 1 => Payload::from(tensors.remove(0).1),
        None if unnamed > 0 => return refused_for("an item without a name is not the only one", "name all"),
        None => Payload::named(tensors.into_iter().map(named)),
    };
    let p = p.stream(stream(value.stream)?);
    Ok(match meta {
        Some(meta) => p.meta(&meta)?,
        None => p,
    })
}

/// The payload of a tree and its tensors. What no receiver could read, or each would read otherwise, is
/// refused here, where the mistake is.
fn of_tree(items: Vec<(Option<&str>, Tensor)>, tree: &str) -> Outcome<Payload> {
    let (names, tensors): (Vec<_>, Vec<_>) = items.into_iter().unzip();
    let unnamed = tensors.into_iter().map(|t| (String::new(), t)).collect();
    let given = Bundle::from(Payload::with_tree(unnamed, tree.into()));
    let value = given.value().or_else(|e| refused(format!("tree: {}", e.message())))?;
    if !given.build(&Numbers::default())?.into_iter().eq(0..names.len()) {
        return refused(format!("tree: it has to have each of {} tensors once, in the order of items", names.len()));
    }
    let payload = value.payload()?;
    let sent = Bundle::from(payload.clone());
    for (i, ((at, _), name)) in sent.iter().zip(names).enumerate() {
        let path = if sent.tree().is_empty() { Names::escaped(at) } else { at.into() };
        if let Some(name) = name.filter(|n| *n != path) {
            return refused(format!("item {i} has the name {name:?}, and stands in the tree at {path:?}"));
        }
    }
    Ok(payload)
}

/// Makes of a tree the numbers of its tensors, in the order in which they stand there.
#[derive(Default)]
struct Numbers(Cell<usize>);

impl Build for Numbers {
    type Made = Vec<usize>;
    type Error = baton::Error;

    // Called for each tensor of the table first, in their order.
    fn tensor(&self, _: Tensor) -> Result<Vec<usize>, baton::Error> {
        Ok(vec![self.0.replace(self.0.get() + 1)])
    }

    fn scalar(&self, _: Value) -> Result<Vec<usize>, baton::Error> {
        Ok(Vec::new())
    }

    fn text(&self, _: &str) -> Result<Vec<usize>, baton::Error> {
        Ok(Vec::new())
    }

    fn function(&self, _: FunctionValue) -> Result<Vec<usize>, baton::Error> {
        Ok(Vec::new())
    }

    fn list(&self, all: Vec<Vec<usize>>) -> Result<Vec<usize>, baton::Error> {
        Ok(all.concat())
    }

    fn tuple(&self, all: Vec<Vec<usize>>) -> Result<Vec<usize>, baton::Error> {
        Ok(all.concat())
    }

    fn dict(&self, items: Vec<(Vec<usize>, Vec<usize>)>) -> Result<Vec<usize>, baton::Error> {
        Ok(items.into_iter().flat_map(|(_, v)| v).collect())
    }

    fn named(&self, _: Option<&str>, items: Vec<(&str, Vec<usize>)>) -> Result<Option<Vec<usize>>, baton::Error> {
        Ok(Some(items.into_iter().flat_map(|(_, v)| v).collect()))
    }
}
