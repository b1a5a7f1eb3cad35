//! The lines of Encrypted Client Hello in a key log: shared secrets, and the configurations that many of them are for.
//!
//! Refuses more than [`MAX_CONFIG_BYTES`] of configurations. Secrets are wiped in the end.

use std::collections::HashMap;
use std::sync::Arc;

use mmtls_keyshare::keylog::EchPart;

use crate::store::Store;

/// Different configurations together: some thousands, each of which is in use for hours or days.
const MAX_CONFIG_BYTES: usize = 1 << 20;

#[derive(Default)]
pub(crate) struct EchLines {
    /// By the random on the wire. In the place of a configuration is its number.
    store: Store,
    configs: Vec<Arc<[u8]>>,
    numbers: HashMap<Arc<[u8]>, u32>,
    config_bytes: usize,
}

fn label(part: EchPart) -> u8 {
    match part {
        EchPart::Secret => 0,
        EchPart::Config => 1,
    }
}

impl EchLines {
    /// Keeps what a line has; false when there is no room.
    pub(crate) fn insert(&mut self, random: [u8; 32], part: EchPart, value: &[u8]) -> bool {
        match part {
            EchPart::Secret => self.store.insert(random, label(part), value),
            EchPart::Config => self
                .number(value)
                .is_some_and(|it| self.store.insert(random, label(part), &it.to_ne_bytes())),
        }
    }

    pub(crate) fn get(&self, random: &[u8; 32], part: EchPart) -> Option<&[u8]> {
        let kept = self.store.get(random, label(part))?;
        match part {
            EchPart::Secret => Some(kept),
            EchPart::Config => {
                let number = u32::from_ne_bytes(kept.try_into().ok()?);
                self.configs.get(number as usize).map(AsRef::as_ref)
            }
        }
    }

    pub(crate) fn hellos(&self) -> usize {
        self.store.sessions()
    }

    /// The number of a configuration, which is new if need be.
    fn number(&mut self, config: &[u8]) -> Option<u32> {
        if let Some(number) = self.numbers.get(config) {
            return Some(*number);
        }
        let number = u32::try_from(self.configs.len()).ok()?;
        if self.config_bytes + config.len() > MAX_CONFIG_BYTES {
            return None;
        }
        self.config_bytes += config.len();
        let config = Arc::from(config);
        self.configs.push(Arc::clone(&config));
        self.numbers.insert(config, number);
        Some(number)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn accepts_both_halves_and_repeated_lines() {
        let mut lines = EchLines::default();
        let get =
            |lines: &EchLines, random, part| lines.get(&[random; 32], part).map(<[u8]>::to_vec);
        for random in [1, 2] {
            assert!(lines.insert([random; 32], EchPart::Config, &[5; 300]));
        }
        assert_eq!((lines.configs.len(), lines.hellos()), (1, 2));
        assert_eq!(get(&lines, 1, EchPart::Secret), None);
        for length in [32, 64, 48, 64] {
            assert!(lines.insert([1; 32], EchPart::Secret, &vec![7; length]));
            assert_eq!(get(&lines, 1, EchPart::Secret), Some(vec![7; length]));
        }
        assert!(lines.insert([1; 32], EchPart::Config, &[6]));
        assert_eq!(get(&lines, 1, EchPart::Config), Some(vec![6]));
        assert_eq!(get(&lines, 2, EchPart::Config), Some(vec![5; 300]));
    }

    #[test]
    fn refuses_configurations_without_end() {
        let mut lines = EchLines::default();
        let kept = (0..2000_u32).filter(|number| {
            let mut config = [0; 1024];
            config[..4].copy_from_slice(&number.to_ne_bytes());
            lines.insert([1; 32], EchPart::Config, &config)
        });
        assert_eq!(kept.count(), MAX_CONFIG_BYTES / 1024);
        assert!(lines.insert([2; 32], EchPart::Config, &[0; 1024]), "that one is known");
    }
}
