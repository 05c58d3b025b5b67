//! Typed 32-bit ids and the arenas they index.
//!
//! An id is only meaningful in the arena that issued it. Arenas never remove entries; what is live is
//! decided by the module's `order`, so ids stay stable while passes edit.

use std::fmt;
use std::marker::PhantomData;
use std::ops::{Index, IndexMut};

/// A typed index into an [`Arena`].
pub trait Id: Copy + Eq + Ord + fmt::Debug {
    /// Wraps a raw index.
    fn new(index: usize) -> Self;
    /// The raw index.
    fn index(self) -> usize;
}

macro_rules! ids {
    ($($(#[$doc:meta])* $name:ident),* $(,)?) => {$(
        $(#[$doc])*
        #[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
        pub struct $name(pub u32);
        impl Id for $name {
            fn new(index: usize) -> Self {
                let index = u32::try_from(index);
                Self(index.expect("invariant: arenas hold fewer than 2^32 entries"))
            }
            fn index(self) -> usize { self.0 as usize }
        }
    )*};
}

ids! {
    /// A value: one tensor content.
    ValueId,
    /// An operation.
    OpId,
    /// A slot: a place in device or host memory.
    SlotId,
    /// A constant's payload.
    ConstId,
    /// A per-step input of the module.
    InputId,
    /// A tensor that persists between steps.
    StateId,
    /// A second resident slot of a state or constant.
    HostShadowId,
}

/// A growable map from ids to entries.
#[derive(Clone, Debug, PartialEq)]
pub struct Arena<K, V> {
    items: Vec<V>,
    key: PhantomData<K>,
}

impl<K, V> Default for Arena<K, V> {
    fn default() -> Self {
        Self { items: Vec::new(), key: PhantomData }
    }
}

impl<K: Id, V> Arena<K, V> {
    /// Adds an entry and returns its id.
    pub fn push(&mut self, value: V) -> K {
        self.items.push(value);
        K::new(self.items.len() - 1)
    }
    /// Number of entries.
    pub fn len(&self) -> usize {
        self.items.len()
    }
    /// Whether there are no entries.
    pub fn is_empty(&self) -> bool {
        self.items.is_empty()
    }
    /// The entry, or `None` when the id is out of range.
    pub fn get(&self, id: K) -> Option<&V> {
        self.items.get(id.index())
    }
    /// All ids in ascending order.
    pub fn ids(&self) -> impl DoubleEndedIterator<Item = K> + use<K, V> {
        (0..self.items.len()).map(K::new)
    }
    /// All entries with their ids in ascending order.
    pub fn iter(&self) -> impl DoubleEndedIterator<Item = (K, &V)> {
        self.items.iter().enumerate().map(|(i, v)| (K::new(i), v))
    }
    /// All entries with their ids, mutable.
    pub fn iter_mut(&mut self) -> impl DoubleEndedIterator<Item = (K, &mut V)> {
        self.items.iter_mut().enumerate().map(|(i, v)| (K::new(i), v))
    }
    /// All entries in id order.
    pub fn values(&self) -> std::slice::Iter<'_, V> {
        self.items.iter()
    }
}

impl<K: Id, V> Index<K> for Arena<K, V> {
    type Output = V;
    fn index(&self, id: K) -> &V {
        &self.items[id.index()]
    }
}

impl<K: Id, V> IndexMut<K> for Arena<K, V> {
    fn index_mut(&mut self, id: K) -> &mut V {
        &mut self.items[id.index()]
    }
}
