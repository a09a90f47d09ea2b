//! A map that keeps what was used recently, bounded in size, without a clock.
//!
//! Two generations: entries come into the young one; when that holds half of the size it becomes the old one, and the
//! former old one goes. An entry that is used while it is old becomes young again. So at least the last `size / 2`
//! entries used are held, and never more than `size`. Takes any keys and values; knows nothing of what they mean.

use std::borrow::Borrow;
use std::collections::HashMap;
use std::collections::hash_map;
use std::fmt;
use std::hash::Hash;

/// Entries of the generation that goes which are dropped with every entry that comes. Two for one, so that it is gone
/// long before the next one goes. Dropped all at once, 50,000 texts stop a thread for milliseconds.
const DROPPED_PER_INSERT: usize = 2;

/// A bounded map of what was used recently. Memory is taken as entries come.
///
/// Keys are hashed with a seed drawn by chance, so clients may choose them.
pub struct Recent<K, V> {
    young: HashMap<K, V>,
    old: HashMap<K, V>,
    /// What is left of the generation that goes.
    leaving: Option<hash_map::IntoIter<K, V>>,
    /// Entries in a full generation.
    half: usize,
}

impl<K: Hash + Eq, V> Recent<K, V> {
    /// A map of at most `size` entries, and at least two.
    pub fn new(size: usize) -> Self {
        Self { young: HashMap::new(), old: HashMap::new(), leaving: None, half: (size / 2).max(1) }
    }

    pub fn len(&self) -> usize {
        self.young.len() + self.old.len()
    }

    pub fn is_empty(&self) -> bool {
        self.young.is_empty() && self.old.is_empty()
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
        if !self.young.contains_key(key) {
            let (key, value) = self.old.remove_entry(key)?;
            self.come(key, value);
        }
        self.young.get_mut(key)
    }

    /// Finds an entry without counting that as a use.
    pub fn peek<Q: Hash + Eq + ?Sized>(&self, key: &Q) -> Option<&V>
    where
        K: Borrow<Q>,
    {
        self.young.get(key).or_else(|| self.old.get(key))
    }

    /// Puts a value in, and gives back the one it replaces.
    pub fn insert(&mut self, key: K, value: V) -> Option<V> {
        if let Some(there) = self.young.get_mut(&key) {
            return Some(std::mem::replace(there, value));
        }
        let replaced = self.old.remove(&key);
        self.come(key, value);
        replaced
    }

    pub fn remove<Q: Hash + Eq + ?Sized>(&mut self, key: &Q) -> Option<V>
    where
        K: Borrow<Q>,
    {
        self.young.remove(key).or_else(|| self.old.remove(key))
    }

    /// Drops everything at once, and gives the memory back.
    pub fn clear(&mut self) {
        *self = Self::new(self.half * 2);
    }

    /// Takes in an entry that is in neither generation.
    fn come(&mut self, key: K, value: V) {
        if self.young.len() >= self.half {
            // As large as the last one became, so that only the first generation ever grows and is hashed again.
            let next = HashMap::with_capacity(self.young.len());
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

/// Tells how many and not which: keys may be identities.
impl<K, V> fmt::Debug for Recent<K, V> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let len = self.young.len() + self.old.len();
        f.debug_struct("Recent").field("len", &len).field("size", &(self.half * 2)).finish_non_exhaustive()
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
        }
        map.clear();
        assert_eq!(Rc::strong_count(&value), 1);
    }
}
