//! What several connections of the key channel have delivered for the same thing: it is tried which
//! of it is right, and the senders look alike before.
//!
//! Refuses to let one connection displace what another has delivered, and to try more than a fixed number of
//! deliveries for one thing: each costs trials.

/// Most of them. One secret of early data may belong to eight suites, and so many come of one connection.
const MAX_ITEMS: usize = 16;

/// What one connection may deliver for one thing; an endpoint has no reason for more.
const MAX_OF_SOURCE: u8 = 8;

/// Connections that may deliver for one thing.
const MAX_SOURCES: usize = 32;

/// What came, by connection, oldest first. One pointer where nothing has come: every session has several of these.
pub(crate) struct Candidates<T>(Option<Box<Came<T>>>);

struct Came<T> {
    items: Vec<(u64, T)>,
    /// How many came of whom, whether they are here still or not.
    delivered: Vec<(u64, u8)>,
}

impl<T> Default for Candidates<T> {
    fn default() -> Self {
        Self(None)
    }
}

impl<T> Candidates<T> {
    fn items(&self) -> &[(u64, T)] {
        self.0.as_ref().map_or(&[], |came| &came.items)
    }

    fn items_mut(&mut self) -> Option<&mut Vec<(u64, T)>> {
        self.0.as_mut().map(|came| &mut came.items)
    }

    pub(crate) fn len(&self) -> usize {
        self.items().len()
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.items().is_empty()
    }

    /// Whether nothing has come.
    pub(crate) fn is_unused(&self) -> bool {
        self.0.is_none()
    }

    pub(crate) fn get(&self, at: usize) -> Option<&T> {
        self.items().get(at).map(|(_, item)| item)
    }

    pub(crate) fn get_mut(&mut self, at: usize) -> Option<&mut T> {
        self.items_mut()?.get_mut(at).map(|(_, item)| item)
    }

    pub(crate) fn iter(&self) -> impl Iterator<Item = &T> {
        self.items().iter().map(|(_, item)| item)
    }

    /// With the connections that delivered them.
    pub(crate) fn into_items(self) -> Vec<(u64, T)> {
        self.0.map_or_else(Vec::new, |came| came.items)
    }

    /// The connections whose deliveries are here, each once.
    pub(crate) fn sources(&self) -> impl Iterator<Item = u64> {
        let items = self.items();
        let first = |at: usize| items[..at].iter().all(|(of, _)| *of != items[at].0);
        (0..items.len()).filter(move |at| first(*at)).map(|at| items[at].0)
    }

    /// Takes one out; the order of the others does not matter any more.
    pub(crate) fn take(&mut self, at: usize) -> Option<T> {
        let items = self.items_mut()?;
        (at < items.len()).then(|| items.swap_remove(at).1)
    }

    /// This one is the right one.
    pub(crate) fn keep_only(&mut self, at: usize) {
        if let Some(items) = self.items_mut()
            && at < items.len()
        {
            items.swap(0, at);
            items.truncate(1);
        }
    }

    /// Whether one more of this connection would be taken.
    pub(crate) fn takes(&self, source: u64) -> bool {
        self.0.as_ref().is_none_or(|came| came.takes(source))
    }

    /// Adds one at the end and returns the one that had to go for it: of the connection that has
    /// the most of them its oldest.
    ///
    /// # Errors
    /// The new one, where it is one too many.
    pub(crate) fn add(&mut self, source: u64, item: T) -> Result<Option<T>, T> {
        let none =
            || Box::new(Came { items: Vec::with_capacity(1), delivered: Vec::with_capacity(1) });
        self.0.get_or_insert_with(none).add(source, item)
    }
}

impl<T> Came<T> {
    fn takes(&self, source: u64) -> bool {
        match self.delivered.iter().find(|(of, _)| *of == source) {
            Some((_, count)) => *count < MAX_OF_SOURCE,
            None => self.delivered.len() < MAX_SOURCES,
        }
    }

    fn add(&mut self, source: u64, item: T) -> Result<Option<T>, T> {
        if !self.takes(source) {
            return Err(item);
        }
        match self.delivered.iter_mut().find(|(of, _)| *of == source) {
            Some((_, count)) => *count += 1,
            None => self.delivered.push((source, 1)),
        }
        let mut displaced = None;
        if self.items.len() >= MAX_ITEMS {
            // The new one counts: equals do not displace each other in turn.
            let count = |source_of: u64| {
                let here = self.items.iter().filter(|(of, _)| *of == source_of).count();
                here + usize::from(source_of == source)
            };
            let most = self.items.iter().map(|(of, _)| count(*of)).max();
            let oldest = self.items.iter().position(|(of, _)| Some(count(*of)) == most);
            displaced = oldest.map(|at| self.items.remove(at).1);
        }
        self.items.push((source, item));
        Ok(displaced)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn refuses_to_let_one_connection_displace_another() {
        let mut all = Candidates::default();
        for number in 0..8 {
            assert_eq!(all.add(1, number), Ok(None));
        }
        assert_eq!(all.add(1, 8), Err(8));
        for number in 10..18 {
            assert_eq!(all.add(2, number), Ok(None));
        }
        // They have eight each: the third one's come all the same.
        assert_eq!(all.add(3, 20), Ok(Some(0)));
        assert_eq!(all.add(3, 21), Ok(Some(10)));
        // Others displace those that have more.
        for source in 4..10 {
            assert!(all.add(source, 100 + source as i32).is_ok());
        }
        assert!(all.iter().any(|it| *it == 20) && all.iter().any(|it| *it == 21));
        assert_eq!(all.len(), MAX_ITEMS);
    }

    #[test]
    fn refuses_more_than_trials_are_worth() {
        let mut all = Candidates::default();
        let mut taken = 0;
        for source in 0..1000 {
            for _ in 0..100 {
                taken += usize::from(all.add(source, ()).is_ok());
            }
        }
        assert_eq!(taken, 256);
    }
}
