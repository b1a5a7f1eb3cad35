//! How many bytes an expression that is tied to a place can have looked at, however it ended: no interface of PCRE2
//! tells.
//!
//! The expression is a row of atoms, each of which takes bytes of a set, so many at most. The furthest place behind
//! one follows from the furthest place behind the one before: a run of bytes that goes beyond that contains it. What
//! is optional, or one of several alternatives, counts as if it always came.
//!
//! Refuses to know more than that: what is not surely simple extends over everything, and so does what has several runs
//! without bounds: going back from one into the other, it looks at the same bytes again and again.

use super::alphabet::Alphabet;

/// What an expression extends over.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(super) struct Extent {
    atoms: Vec<Atom>,
}

#[derive(Clone, PartialEq, Eq, Debug)]
struct Atom {
    taken: Alphabet,
    /// `None`: any number.
    most: Option<usize>,
}

/// An extent while its expression is read.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub(super) struct Builder {
    atoms: Vec<Atom>,
    /// Where the item begins to which a quantifier belongs.
    last: usize,
    /// Where the groups begin that are open.
    open: Vec<usize>,
    /// It depends on more than on the bytes that it takes.
    is_far: bool,
}

impl Extent {
    /// Nothing is known of it.
    pub(super) fn is_everything(&self) -> bool {
        matches!(*self.atoms, [Atom { taken: Alphabet::EVERYTHING, most: None }])
    }

    /// How many of these bytes were looked at, at most.
    pub(super) fn over(&self, bytes: &[u8]) -> usize {
        let mut end = 0;
        for atom in &self.atoms {
            let rest = bytes.get(end..).unwrap_or_default();
            let run = || rest.iter().take_while(|&&byte| atom.taken.holds(byte)).count();
            end = end.saturating_add(atom.most.unwrap_or_else(run));
            if end >= bytes.len() {
                return bytes.len();
            }
        }
        // The byte behind says that it ends.
        bytes.len().min(end + 1)
    }
}

impl Builder {
    /// One byte of these.
    pub(super) fn one_of(&mut self, taken: Alphabet) {
        self.last = self.atoms.len();
        self.atoms.push(Atom { taken, most: Some(1) });
    }

    /// The bytes of a text, of which a quantifier takes the last character.
    pub(super) fn text(&mut self, text: &str) {
        for char in text.chars() {
            let mut taken = Alphabet::NOTHING;
            taken.add_char(char);
            self.last = self.atoms.len();
            self.atoms.push(Atom { taken, most: Some(char.len_utf8()) });
        }
    }

    /// A condition that takes no byte.
    pub(super) fn condition(&mut self) {
        self.last = self.atoms.len();
    }

    /// Whatever comes of it may look at anything.
    pub(super) fn is_far(&mut self) {
        self.is_far = true;
    }

    pub(super) fn open(&mut self) {
        self.open.push(self.atoms.len());
    }

    pub(super) fn close(&mut self) {
        self.last = self.open.pop().unwrap_or(0);
    }

    /// What was opened is a comment.
    pub(super) fn comment(&mut self) {
        self.open.pop();
    }

    /// How deep in groups what comes next is.
    pub(super) fn depth(&self) -> usize {
        self.open.len()
    }

    /// The last item may come this often, `None` any number of times.
    pub(super) fn repeat(&mut self, most: Option<usize>) {
        let item = self.atoms.get(self.last..).unwrap_or_default();
        match (item, most) {
            ([], _) | (_, Some(0 | 1)) => {}
            ([Atom { most: Some(each), taken }], Some(most)) => {
                let most = each.checked_mul(most);
                self.atoms[self.last] = Atom { taken: *taken, most };
            }
            (item, _) => {
                let mut taken = Alphabet::NOTHING;
                item.iter().for_each(|atom| taken.add(atom.taken));
                self.atoms.truncate(self.last);
                self.atoms.push(Atom { taken, most: None });
            }
        }
    }

    /// The whole expression was read.
    pub(super) fn finish(mut self) -> Extent {
        if self.is_far || self.atoms.iter().filter(|it| it.most.is_none()).count() > 1 {
            self.atoms = vec![Atom { taken: Alphabet::EVERYTHING, most: None }];
        }
        // Of what takes a certain number, only the number counts.
        self.atoms.dedup_by(|next, before| match (&mut before.most, next.most) {
            (Some(most), Some(more)) => {
                *most = most.saturating_add(more);
                true
            }
            _ => false,
        });
        Extent { atoms: self.atoms }
    }
}
