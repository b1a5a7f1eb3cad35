//! What has been decided about a session.

use super::EndReason;

/// What is done with a session's packets.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub(crate) enum Disposition {
    /// They are looked at.
    #[default]
    Follow,
    /// They are forwarded unseen.
    Bypass,
    /// They are dropped, after a RST to both endpoints or silently.
    Kill { reset: bool, reason: EndReason },
}

impl Disposition {
    /// Decides; never back to something milder: what was to be dropped stays dropped, whatever is found
    /// out or asked for later.
    pub(crate) fn decide(&mut self, new: Self) {
        let severity = |it: &Self| match it {
            Self::Follow => 0,
            Self::Bypass => 1,
            Self::Kill { .. } => 2,
        };
        if severity(&new) > severity(self) {
            *self = new;
        }
    }

    pub(crate) fn is_kill(self) -> bool {
        matches!(self, Self::Kill { .. })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn refuses_to_become_milder() {
        let first = Disposition::Kill { reset: true, reason: EndReason::ResetByHandler };
        let second = Disposition::Kill { reset: false, reason: EndReason::Shutdown };
        let mut it = Disposition::default();
        for (new, expected) in [
            (Disposition::Follow, Disposition::Follow),
            (Disposition::Bypass, Disposition::Bypass),
            (Disposition::Follow, Disposition::Bypass),
            (first, first),
            (second, first),
            (Disposition::Bypass, first),
        ] {
            it.decide(new);
            assert_eq!(it, expected);
        }
    }
}
