//! A map that keeps what was used recently, bounded in size, without a clock.
//!
//! Two generations: entries come into the young one; when that holds half of the size it becomes the old one, and the
//! former old one goes. An entry that is used while it is old becomes young again. So at least the last `size / 2`
//! entries used are held, and never more than `size`. A large map is made of many small ones, among which keys are
//! spread by chance, so that these numbers hold for each of them; no step then takes long, however many entries there
//! are. Takes any keys and values; knows nothing of what they mean.

use std::borrow::Borrow;
use std::collections::HashMap;
use std::collections::hash_map;
use std::fmt;
use std::hash::{BuildHasher, Hash, RandomState};

/// Entries of a small map. A table that grows hashes all its entries anew, and one that goes is given back as a whole:
/// with 50,000 entries that takes several milliseconds, with these a fraction of one.
const PART: usize = 4096;

/// So many that a map of a size that anyone chooses has small parts, and an empty one is small.
const MOST_PARTS: usize = 64;

/// Entries of the generation that goes which are dropped with every entry that comes. Two for one, so that it is gone
/// long before the next one goes.
const DROPPED_PER_INSERT: usize = 2;

/// A bounded map of what was used recently. Memory is taken as entries come.
///
/// Keys are hashed with a seed drawn by chance, so clients may choose them.
pub struct Recent<K, V> {
    parts: Box<[Generations<K, V>]>,
    hashing: RandomState,
    /// Entries in all parts.
    len: usize,
}

impl<K: Hash + Eq, V> Recent<K, V> {
    /// A map of at most `size` entries, and at least two.
    pub fn new(size: usize) -> Self {
        let hashing = RandomState::new();
        let count = (size / PART).clamp(1, MOST_PARTS);
        Self { parts: (0..count).map(|_| Generations::new(size / count, &hashing)).collect(), hashing, len: 0 }
    }

    pub fn len(&self) -> usize {
        self.len
    }

    pub fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// Finds an entry and counts that as a use of it.
    pub fn get<Q: Hash + Eq + ?Sized>(&mut self, key: &Q) -> Option<&V>
    where
        K: Borrow<Q>,
    {
        self.get_mut(key).map(|value| &*value)
    }

    /// Finds an entry and counts that as a use of it.
    pub fn get_mut<Q: Hash + Eq + ?Sized>(&mut self, key: &Q) -> Option<&mut V>
    where
        K: Borrow<Q>,
    {
        let part = &mut self.parts[self.place(key)];
        let before = part.len();
        part.refresh(key);
        self.len = self.len + part.len() - before;
        part.young.get_mut(key)
    }

    /// Finds an entry without counting that as a use.
    pub fn peek<Q: Hash + Eq + ?Sized>(&self, key: &Q) -> Option<&V>
    where
        K: Borrow<Q>,
    {
        let part = &self.parts[self.place(key)];
        part.young.get(key).or_else(|| part.old.get(key))
    }

    /// Puts a value in, and gives back the one it replaces.
    pub fn insert(&mut self, key: K, value: V) -> Option<V> {
        let part = &mut self.parts[self.place(&key)];
        let before = part.len();
        let replaced = part.insert(key, value);
        self.len = self.len + part.len() - before;
        replaced
    }

    pub fn remove<Q: Hash + Eq + ?Sized>(&mut self, key: &Q) -> Option<V>
    where
        K: Borrow<Q>,
    {
        let part = &mut self.parts[self.place(key)];
        let removed = part.young.remove(key).or_else(|| part.old.remove(key));
        self.len -= usize::from(removed.is_some());
        removed
    }

    /// Drops everything at once, and gives the memory back.
    pub fn clear(&mut self) {
        for part in &mut self.parts {
            *part = Generations::new(part.half * 2, &self.hashing);
        }
        self.len = 0;
    }

    /// The part of a key. Chosen by other bits of its hash than those by which the part's tables choose.
    fn place<Q: Hash + ?Sized>(&self, key: &Q) -> usize {
        match self.parts.len() {
            1 => 0,
            count => (self.hashing.hash_one(key) >> 24) as u32 as usize % count,
        }
    }
}

/// Tells how many and not which: keys may be identities.
impl<K, V> fmt::Debug for Recent<K, V> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let size: usize = self.parts.iter().map(|part| part.half * 2).sum();
        f.debug_struct("Recent").field("len", &self.len).field("size", &size).finish_non_exhaustive()
    }
}

/// A small map.
struct Generations<K, V> {
    young: HashMap<K, V>,
    old: HashMap<K, V>,
    /// What is left of the generation that goes.
    leaving: Option<hash_map::IntoIter<K, V>>,
    /// Entries in a full generation.
    half: usize,
}

impl<K: Hash + Eq, V> Generations<K, V> {
    fn new(size: usize, hashing: &RandomState) -> Self {
        let empty = || HashMap::with_hasher(hashing.clone());
        Self { young: empty(), old: empty(), leaving: None, half: (size / 2).max(1) }
    }

    fn len(&self) -> usize {
        self.young.len() + self.old.len()
    }

    /// Makes an entry young, if it is old.
    fn refresh<Q: Hash + Eq + ?Sized>(&mut self, key: &Q)
    where
        K: Borrow<Q>,
    {
        if let Some((key, value)) = self.old.remove_entry(key) {
            self.come(key, value);
        }
    }

    fn insert(&mut self, key: K, value: V) -> Option<V> {
        if let Some(there) = self.young.get_mut(&key) {
            return Some(std::mem::replace(there, value));
        }
        let replaced = self.old.remove(&key);
        self.come(key, value);
        replaced
    }

    /// Takes in an entry that is in neither generation.
    fn come(&mut self, key: K, value: V) {
        if self.young.len() >= self.half {
            // As large as the last one became, so that only the first generation ever grows and is hashed again.
            let next = HashMap::with_capacity_and_hasher(self.young.len(), self.young.hasher().clone());
            let former = std::mem::replace(&mut self.old, std::mem::replace(&mut self.young, next));
            self.leaving = Some(former.into_iter());
        }
        self.young.insert(key, value);
        if let Some(leaving) = &mut self.leaving {
            leaving.by_ref().take(DROPPED_PER_INSERT).for_each(drop);
            if leaving.len() == 0 {
                self.leaving = None;
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::rc::Rc;

    fn filled(size: usize, keys: std::ops::Range<u32>) -> Recent<u32, u32> {
        let mut map = Recent::new(size);
        keys.for_each(|key| assert_eq!(map.insert(key, key * 10), None));
        map
    }

    #[test]
    fn the_last_half_of_the_size_is_held_and_never_more_than_the_size() {
        for count in 0..100 {
            let map = filled(10, 0..count);
            assert!(map.len() <= 10);
            for key in count.saturating_sub(5)..count {
                assert_eq!(map.peek(&key), Some(&(key * 10)), "{key} of {count}");
            }
        }
    }

    #[test]
    fn what_is_used_stays_and_what_is_only_looked_at_goes() {
        let mut map = Recent::new(10);
        map.insert(1000, 0);
        map.insert(2000, 0);
        for key in 0..100 {
            map.insert(key, 0);
            *map.get_mut(&1000).expect("used all the time") += 1;
            map.peek(&2000);
        }
        assert_eq!(map.get(&1000), Some(&100));
        assert_eq!(map.get(&2000), None);
    }

    #[test]
    fn a_value_that_is_replaced_is_given_back_from_either_generation() {
        let mut map = filled(4, 0..3);
        assert_eq!(map.insert(0, 1), Some(0), "old");
        assert_eq!(map.insert(2, 1), Some(20), "young");
        assert_eq!(map.len(), 3);
        assert_eq!((map.peek(&0), map.peek(&1), map.peek(&2)), (Some(&1), Some(&10), Some(&1)));
    }

    #[test]
    fn what_is_removed_is_gone_from_either_generation() {
        let mut map = filled(4, 0..3);
        assert_eq!((map.remove(&0), map.remove(&2), map.remove(&7)), (Some(0), Some(20), None));
        assert_eq!((map.len(), map.peek(&0), map.peek(&2)), (1, None, None));
        map.clear();
        assert!(map.is_empty());
        assert_eq!(map.get(&1), None);
    }

    #[test]
    fn a_size_of_nothing_holds_at_least_the_last_entry() {
        for size in 0..3 {
            let mut map = filled(size, 0..10);
            assert_eq!(map.get(&9), Some(&90));
            assert!(map.len() <= 2);
        }
    }

    #[test]
    fn what_has_left_is_dropped_so_that_never_more_than_the_size_is_in_memory() {
        let value = Rc::new(());
        let mut map = Recent::new(100);
        for key in 0..1000 {
            map.insert(key, value.clone());
            if key % 3 == 0 {
                map.get(&(key / 2));
            }
            let alive = Rc::strong_count(&value) - 1;
            assert!(alive >= map.len() && alive <= 100, "{alive} alive, {} held", map.len());
            assert_eq!(map.len(), (0..=key).filter(|key| map.peek(key).is_some()).count());
        }
        map.clear();
        assert_eq!(Rc::strong_count(&value), 1);
    }

    #[test]
    fn a_large_map_holds_no_more_than_its_size_and_spreads_its_keys() {
        let size = 8 * PART;
        let map = filled(size, 0..3 * size as u32);
        assert!(map.len() <= size && map.len() >= size * 7 / 16, "{}", map.len());
        let recent = (3 * size - size * 7 / 16)..3 * size;
        let held = recent.clone().filter(|key| map.peek(&(*key as u32)).is_some()).count();
        assert!(held >= recent.len() * 99 / 100, "{held} of {}", recent.len());
    }
}
