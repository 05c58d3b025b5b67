//! Typed 32-bit ids and the arenas they index.
//!
//! An id is only meaningful in the arena that issued it. Arenas never remove entries; what is live is
//! decided by the module's `order`, so ids stay stable while passes edit.

use std::fmt;
use std::marker::PhantomData;
use std::ops::{Index, IndexMut, Range};

/// A typed index into an [`Arena`].
pub trait Id: Copy + Eq + Ord + fmt::Debug {
    /// Wraps a raw index.
    fn new(index: usize) -> Self;
    /// The raw index.
    fn index(self) -> usize;
}

/// Defines ids: newtypes of `u32`, each with its documentation, further attributes and visibility.
#[macro_export]
macro_rules! ids {
    ($($(#[$attr:meta])* $vis:vis $name:ident),* $(,)?) => {$(
        $(#[$attr])*
        #[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
        $vis struct $name($vis u32);
        impl $crate::Id for $name {
            #[inline]
            fn new(index: usize) -> Self {
                Self(u32::try_from(index).expect("invariant: arenas hold fewer than 2^32 entries"))
            }
            #[inline]
            fn index(self) -> usize {
                self.0 as usize
            }
        }
    )*};
}

ids! {
    /// A value: one tensor content.
    pub ValueId,
    /// An operation.
    pub OpId,
    /// A slot: a place in device or host memory.
    pub SlotId,
    /// A constant's payload.
    pub ConstId,
    /// A per-step input of the module.
    pub InputId,
    /// A tensor that persists between steps.
    pub StateId,
    /// A second resident slot of a state or constant.
    pub HostShadowId,
}

/// A growable map from ids to entries.
#[derive(Clone, PartialEq, Eq, Hash)]
pub struct Arena<K, V> {
    items: Vec<V>,
    key: PhantomData<K>,
}

impl<K, V: fmt::Debug> fmt::Debug for Arena<K, V> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_list().entries(&self.items).finish()
    }
}

impl<K, V> Default for Arena<K, V> {
    fn default() -> Self {
        Self { items: Vec::new(), key: PhantomData }
    }
}

impl<K, V> From<Vec<V>> for Arena<K, V> {
    fn from(items: Vec<V>) -> Self {
        Self { items, key: PhantomData }
    }
}

impl<K, V> FromIterator<V> for Arena<K, V> {
    fn from_iter<I: IntoIterator<Item = V>>(items: I) -> Self {
        Vec::from_iter(items).into()
    }
}

impl<K: Id, V> Arena<K, V> {
    /// An empty arena with space for `capacity` entries.
    pub fn with_capacity(capacity: usize) -> Self {
        Vec::with_capacity(capacity).into()
    }
    /// An arena of `len` equal entries.
    pub fn filled(value: V, len: usize) -> Self
    where
        V: Clone,
    {
        vec![value; len].into()
    }
    /// Adds an entry and returns its id.
    #[inline]
    pub fn push(&mut self, value: V) -> K {
        self.items.push(value);
        K::new(self.items.len() - 1)
    }
    /// Number of entries.
    #[inline]
    pub fn len(&self) -> usize {
        self.items.len()
    }
    /// Whether there are no entries.
    #[inline]
    pub fn is_empty(&self) -> bool {
        self.items.is_empty()
    }
    /// The entry, or `None` when the id is out of range.
    #[inline]
    pub fn get(&self, id: K) -> Option<&V> {
        self.items.get(id.index())
    }
    /// The entry, mutable, or `None` when the id is out of range.
    #[inline]
    pub fn get_mut(&mut self, id: K) -> Option<&mut V> {
        self.items.get_mut(id.index())
    }
    /// The id that the next entry will have.
    #[inline]
    pub fn next_id(&self) -> K {
        K::new(self.items.len())
    }
    /// All ids in ascending order.
    #[inline]
    pub fn ids(&self) -> Ids<K> {
        Ids { range: 0..self.items.len(), key: PhantomData }
    }
    /// All entries with their ids in ascending order.
    #[inline]
    pub fn iter(&self) -> impl DoubleEndedIterator<Item = (K, &V)> + ExactSizeIterator {
        self.items.iter().enumerate().map(|(i, v)| (K::new(i), v))
    }
    /// All entries with their ids, mutable.
    #[inline]
    pub fn iter_mut(&mut self) -> impl DoubleEndedIterator<Item = (K, &mut V)> + ExactSizeIterator {
        self.items.iter_mut().enumerate().map(|(i, v)| (K::new(i), v))
    }
    /// All entries in id order.
    #[inline]
    pub fn values(&self) -> std::slice::Iter<'_, V> {
        self.items.iter()
    }
    /// All entries in id order, mutable.
    #[inline]
    pub fn values_mut(&mut self) -> std::slice::IterMut<'_, V> {
        self.items.iter_mut()
    }
    /// All entries in id order, by value.
    pub fn into_values(self) -> std::vec::IntoIter<V> {
        self.items.into_iter()
    }
    /// The entries from one id to another, half-open.
    #[inline]
    pub fn range(&self, from: K, to: K) -> &[V] {
        &self.items[from.index()..to.index()]
    }
    /// The entries from one id to another, half-open, mutable.
    #[inline]
    pub fn range_mut(&mut self, from: K, to: K) -> &mut [V] {
        &mut self.items[from.index()..to.index()]
    }
    /// The id before which all entries have a property; those that have it come first.
    pub fn partition_point(&self, has: impl FnMut(&V) -> bool) -> K {
        K::new(self.items.partition_point(has))
    }
    /// The last entry.
    pub fn last(&self) -> Option<&V> {
        self.items.last()
    }
    /// Removes all entries, and keeps the memory.
    pub fn clear(&mut self) {
        self.items.clear();
    }
    /// Adds or removes entries at the end.
    pub fn resize(&mut self, len: usize, value: V)
    where
        V: Clone,
    {
        self.items.resize(len, value);
    }
    /// Overwrites all entries.
    pub fn fill(&mut self, value: V)
    where
        V: Clone,
    {
        self.items.fill(value);
    }
    /// Reserves memory for more entries.
    pub fn reserve(&mut self, additional: usize) {
        self.items.reserve(additional);
    }
    /// Removes the last entry.
    pub fn pop(&mut self) -> Option<V> {
        self.items.pop()
    }
}

impl<K: Id, V> Extend<V> for Arena<K, V> {
    fn extend<I: IntoIterator<Item = V>>(&mut self, items: I) {
        self.items.extend(items);
    }
}

impl<K: Id, V> Index<K> for Arena<K, V> {
    type Output = V;
    #[inline]
    fn index(&self, id: K) -> &V {
        &self.items[id.index()]
    }
}

impl<K: Id, V> IndexMut<K> for Arena<K, V> {
    #[inline]
    fn index_mut(&mut self, id: K) -> &mut V {
        &mut self.items[id.index()]
    }
}

/// Consecutive ids, ascending.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Ids<K> {
    range: Range<usize>,
    key: PhantomData<K>,
}

impl<K: Id> Ids<K> {
    /// Ids from one to another, half-open.
    #[inline]
    pub fn between(from: K, to: K) -> Self {
        Self { range: from.index()..to.index(), key: PhantomData }
    }
    /// The first `len` ids.
    #[inline]
    pub fn first(len: usize) -> Self {
        Self { range: 0..len, key: PhantomData }
    }
    /// Whether there are none left.
    #[inline]
    pub fn is_empty(&self) -> bool {
        self.range.is_empty()
    }
}

impl<K: Id> Iterator for Ids<K> {
    type Item = K;
    #[inline]
    fn next(&mut self) -> Option<K> {
        self.range.next().map(K::new)
    }
    #[inline]
    fn size_hint(&self) -> (usize, Option<usize>) {
        self.range.size_hint()
    }
    #[inline]
    fn nth(&mut self, n: usize) -> Option<K> {
        self.range.nth(n).map(K::new)
    }
}

impl<K: Id> DoubleEndedIterator for Ids<K> {
    #[inline]
    fn next_back(&mut self) -> Option<K> {
        self.range.next_back().map(K::new)
    }
}

impl<K: Id> ExactSizeIterator for Ids<K> {}
