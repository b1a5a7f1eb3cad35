//! Memory that frames are received into, and that whoever has to remember a frame may keep.
//!
//! Refuses to hand out memory for writing that anybody else still has: such memory is put aside, and used again once
//! it has come back.

use std::collections::VecDeque;
use std::sync::Arc;

/// Buffers put aside that are looked at, for each that is needed, whether they have come back.
const LOOKS: usize = 4;

/// Buffers that may lie idle, 17 MB for each socket: as many as bursts come to need; what one needed beyond them is given up.
const MAX_IDLE: usize = 256;

/// Buffers put aside, at most. One beyond them is left to those who keep it.
const MAX_ASIDE: usize = 1024;

/// Equally large buffers, by number.
pub(super) struct Buffers {
    current: Vec<Arc<[u8]>>,
    /// Those that were kept by somebody when they were looked at, the next one to be looked at first.
    aside: VecDeque<Arc<[u8]>>,
    /// Those that have come back, in that order. The last one is used first: caches may still have it, and the fewer
    /// take turns, the more of them are in there.
    idle: VecDeque<Arc<[u8]>>,
    size: usize,
}

impl Buffers {
    /// So many buffers of so many bytes, zeroed.
    pub(super) fn new(count: usize, size: usize) -> Self {
        let current = (0..count).map(|_| zeroed(size)).collect();
        Self { current, aside: VecDeque::new(), idle: VecDeque::new(), size }
    }

    /// A buffer, to be read and to be kept by cloning.
    pub(super) fn get(&self, index: usize) -> &Arc<[u8]> {
        &self.current[index]
    }

    /// A buffer, to be written. Nobody else has it, or it is another one from now on.
    pub(super) fn writable(&mut self, index: usize) -> &mut [u8] {
        if Arc::get_mut(&mut self.current[index]).is_none() {
            let other = self.returned().unwrap_or_else(|| zeroed(self.size));
            if self.aside.len() == MAX_ASIDE {
                self.aside.pop_front();
            }
            self.aside.push_back(std::mem::replace(&mut self.current[index], other));
        }
        // Copies nothing, since nobody else has it.
        Arc::make_mut(&mut self.current[index])
    }

    /// Notes what has come back, and lets go of what is more than enough: of the oldest that lie idle.
    pub(super) fn trim(&mut self) {
        self.collect();
        if self.idle.len() > MAX_IDLE {
            self.idle.pop_front();
        }
    }

    /// The buffer that has come back last.
    fn returned(&mut self) -> Option<Arc<[u8]>> {
        self.collect();
        self.idle.pop_back()
    }

    /// Looks at some of the buffers put aside. Each gets its turn, since they come back in no order: every connection
    /// has its own pace.
    fn collect(&mut self) {
        for _ in 0..LOOKS.min(self.aside.len()) {
            if let Some(mut buffer) = self.aside.pop_front() {
                let is_free = Arc::get_mut(&mut buffer).is_some();
                let place = if is_free { &mut self.idle } else { &mut self.aside };
                place.push_back(buffer);
            }
        }
    }
}

fn zeroed(size: usize) -> Arc<[u8]> {
    std::iter::repeat_n(0, size).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn refuses_to_write_to_memory_that_is_kept() {
        let mut buffers = Buffers::new(2, 100);
        buffers.writable(0).fill(1);
        let kept = buffers.get(0).clone();
        buffers.writable(0).fill(2);
        assert_eq!((kept[99], buffers.get(0)[99]), (1, 2));
        let (address, second) = (kept.as_ptr(), buffers.get(0).clone());
        drop(kept);
        // The one that has come back, not a third.
        assert_eq!(buffers.writable(0).as_ptr(), address);
        assert_eq!(second[99], 2);
        // What nobody has kept stays.
        assert_eq!(buffers.writable(0).as_ptr(), address);
    }

    fn keep(buffers: &mut Buffers) -> Arc<[u8]> {
        buffers.writable(0);
        buffers.get(0).clone()
    }

    #[test]
    fn accepts_a_burst_and_lets_go_of_it() {
        const BURST: usize = 3 * MAX_IDLE;
        const _: () = assert!(BURST < MAX_ASIDE);
        // Some are kept for ever, wherever they are.
        for stragglers in [0..0, 0..1, 0..LOOKS + 1, 60..70, 300..302] {
            let mut buffers = Buffers::new(1, 10);
            let mut kept: Vec<_> = (0..BURST).map(|_| keep(&mut buffers)).collect();
            for _ in 0..2 * BURST {
                buffers.trim();
            }
            assert_eq!(buffers.aside.len(), BURST - 1, "all of it is kept by others");
            kept = kept.drain(stragglers.clone()).collect();
            for _ in 0..2 * BURST {
                buffers.trim();
            }
            assert_eq!((buffers.aside.len(), buffers.idle.len()), (kept.len(), MAX_IDLE));
        }
    }

    #[test]
    fn accepts_the_buffer_that_came_back_last_first() {
        let mut buffers = Buffers::new(1, 10);
        let mut kept: Vec<_> = (0..LOOKS).map(|_| keep(&mut buffers)).collect();
        let address = |it: &Arc<[u8]>| it.as_ptr().addr();
        // The last one is still in its place.
        let last = kept.pop().map(|it| address(&it));
        let [first, second, third] = [0, 1, 2].map(|at| address(&kept[at]));
        drop(kept.remove(1));
        buffers.trim();
        kept.clear();
        assert_eq!(last, Some(address(buffers.get(0))));
        let again: Vec<_> = (0..LOOKS).map(|_| keep(&mut buffers)).collect();
        assert_eq!(again.iter().skip(1).map(address).collect::<Vec<_>>(), [third, first, second]);
    }

    #[test]
    fn refuses_to_grow_with_those_who_never_give_back() {
        for forever in [10, 1000, 4000] {
            let mut buffers = Buffers::new(1, 10);
            let kept: Vec<_> = (0..forever).map(|_| keep(&mut buffers)).collect();
            let mut passing = VecDeque::new();
            let mut addresses = std::collections::HashSet::new();
            for turn in 0..50_000 {
                passing.push_back(keep(&mut buffers));
                if passing.len() > 100 {
                    passing.pop_front();
                }
                if turn % 32 == 0 {
                    buffers.trim();
                }
                if turn > 25_000 {
                    addresses.insert(buffers.get(0).as_ptr().addr());
                }
                assert!(buffers.aside.len() <= MAX_ASIDE);
            }
            let free = buffers.aside.iter_mut().filter_map(Arc::get_mut).count();
            let idle = free + buffers.idle.len();
            assert!(idle <= 2 * MAX_IDLE, "{idle} of {forever}");
            assert!(addresses.len() < 500, "{} buffers are used", addresses.len());
            drop(kept);
        }
    }
}
