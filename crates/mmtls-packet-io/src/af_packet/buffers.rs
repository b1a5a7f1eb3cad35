//! Memory that frames are received into, and that whoever has to remember a frame may keep.
//!
//! Refuses to hand out memory for writing that anybody else still has: such memory is put aside, and used again once
//! it has come back.

use std::collections::VecDeque;
use std::sync::Arc;

/// Buffers put aside that are looked at for one that has come back.
const LOOKS: usize = 4;

/// Buffers that may lie idle; what a burst needed beyond them goes back to the system.
const MAX_IDLE: usize = 64;

/// Equally large buffers, by number.
pub(super) struct Buffers {
    current: Vec<Arc<[u8]>>,
    /// Those that were kept by somebody, in order of time. They come back in about the same order.
    aside: VecDeque<Arc<[u8]>>,
    size: usize,
}

impl Buffers {
    /// So many buffers of so many octets, zeroed.
    pub(super) fn new(count: usize, size: usize) -> Self {
        Self { current: (0..count).map(|_| zeroed(size)).collect(), aside: VecDeque::new(), size }
    }

    /// A buffer, to be read and to be kept by cloning.
    pub(super) fn get(&self, index: usize) -> &Arc<[u8]> {
        &self.current[index]
    }

    /// A buffer, to be written. Nobody else has it, or it is another one from now on.
    pub(super) fn writable(&mut self, index: usize) -> &mut [u8] {
        if Arc::get_mut(&mut self.current[index]).is_none() {
            let other = self.returned().unwrap_or_else(|| zeroed(self.size));
            self.aside.push_back(std::mem::replace(&mut self.current[index], other));
        }
        // Copies nothing, since nobody else has it.
        Arc::make_mut(&mut self.current[index])
    }

    /// Lets go of one idle buffer when there are many.
    pub(super) fn trim(&mut self) {
        if self.aside.get_mut(MAX_IDLE).is_some_and(|it| Arc::get_mut(it).is_some())
            && self.aside.front_mut().is_some_and(|it| Arc::get_mut(it).is_some())
        {
            self.aside.pop_front();
        }
    }

    /// A buffer that was put aside and has come back.
    fn returned(&mut self) -> Option<Arc<[u8]>> {
        for _ in 0..LOOKS.min(self.aside.len()) {
            let mut buffer = self.aside.pop_front()?;
            if Arc::get_mut(&mut buffer).is_some() {
                return Some(buffer);
            }
            self.aside.push_back(buffer);
        }
        None
    }
}

fn zeroed(size: usize) -> Arc<[u8]> {
    vec![0; size].into()
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

    #[test]
    fn accepts_a_burst_and_lets_go_of_it() {
        let mut buffers = Buffers::new(1, 10);
        let mut kept: VecDeque<_> = (0..10 * MAX_IDLE)
            .map(|_| {
                buffers.writable(0);
                buffers.get(0).clone()
            })
            .collect();
        for _ in 0..20 * MAX_IDLE {
            buffers.trim();
        }
        assert_eq!(buffers.aside.len(), 10 * MAX_IDLE - 1, "all of it is kept by others");
        kept.clear();
        for _ in 0..20 * MAX_IDLE {
            buffers.trim();
        }
        assert_eq!(buffers.aside.len(), MAX_IDLE);
    }
}
