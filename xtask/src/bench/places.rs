//! Which processors the parties of a live measurement run on: the server on the first, the client
//! on the second, what stands between them on the third, or, where there are only two, on either in
//! turn.
//!
//! Where the scheduler puts three busy processes on two processors, and how often it moves them,
//! costs as much as what is to be measured, and differs from kernel to kernel. Refuses to place
//! anything where there is only one processor, or where floating was asked for.

use mmtls_testkit::Background;
use rustix::io::Errno;
use rustix::thread::{CpuSet, Pid, sched_getaffinity, sched_setaffinity};

/// The processors; this thread may run anywhere again once they are dropped.
pub struct Places {
    before: CpuSet,
    /// Empty: nobody has a place.
    cpus: Vec<usize>,
}

impl Places {
    /// Those that this process may use.
    pub fn choose(floating: bool) -> Result<Self, String> {
        let before = sched_getaffinity(None).map_err(failed)?;
        let mut cpus: Vec<usize> =
            (0..CpuSet::MAX_CPU).filter(|&cpu| before.is_set(cpu)).take(3).collect();
        if floating || cpus.len() < 2 {
            cpus.clear();
        }
        Ok(Self { before, cpus })
    }

    /// Whether everybody has a place.
    pub fn are_fixed(&self) -> bool {
        !self.cpus.is_empty()
    }

    /// What this thread starts from here on runs where the server does.
    pub fn server(&self) -> Result<(), String> {
        self.this_thread(0)
    }

    /// What this thread starts from here on runs where the client does.
    pub fn client(&self) -> Result<(), String> {
        self.this_thread(1)
    }

    /// This thread, and what it starts from here on, runs anywhere.
    pub fn anywhere(&self) -> Result<(), String> {
        sched_setaffinity(None, &self.before).map_err(failed)
    }

    /// Moves what stands in the middle to its place in this round.
    pub fn middle(&self, round: usize, process: &Background) -> Result<(), String> {
        let Some(&cpu) = self.cpus.get(2).or_else(|| self.cpus.get(round % 2)) else {
            return Ok(());
        };
        for thread in process.threads() {
            let Some(thread) = i32::try_from(thread).ok().and_then(Pid::from_raw) else { continue };
            match sched_setaffinity(Some(thread), &only(cpu)) {
                // It has ended meanwhile.
                Ok(()) | Err(Errno::SRCH) => {}
                Err(error) => return Err(failed(error)),
            }
        }
        Ok(())
    }

    fn this_thread(&self, nth: usize) -> Result<(), String> {
        match self.cpus.get(nth) {
            Some(&cpu) => sched_setaffinity(None, &only(cpu)).map_err(failed),
            None => Ok(()),
        }
    }
}

impl Drop for Places {
    fn drop(&mut self) {
        // It was so before.
        let _ = self.anywhere();
    }
}

fn only(cpu: usize) -> CpuSet {
    let mut set = CpuSet::new();
    set.set(cpu);
    set
}

fn failed(error: Errno) -> String {
    format!("placing processes on processors: {error}")
}

#[cfg(test)]
mod tests {
    use super::*;

    fn here() -> Vec<usize> {
        let set = sched_getaffinity(None).unwrap();
        (0..CpuSet::MAX_CPU).filter(|&cpu| set.is_set(cpu)).collect()
    }

    #[test]
    fn accepts_places_and_gives_them_back() {
        let before = here();
        let places = Places::choose(false).unwrap();
        assert_eq!(places.are_fixed(), before.len() > 1);
        if places.are_fixed() {
            places.server().unwrap();
            assert_eq!(here(), before[..1]);
            places.client().unwrap();
            assert_eq!(here(), before[1..2]);
        }
        drop(places);
        assert_eq!(here(), before);
    }

    #[test]
    fn refuses_to_place_what_floats() {
        let before = here();
        let places = Places::choose(true).unwrap();
        places.client().unwrap();
        assert!(!places.are_fixed());
        assert_eq!(here(), before);
    }
}
