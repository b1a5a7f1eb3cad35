//! Rules applied to bodies, as they come: each in all its forms, and the files in a form by themselves.
//!
//! Refuses to take what is beyond a window for what is not there: see [`super::window`].

use super::connection::{Connection, settle};
use super::context::{Context, Sink};
use super::matcher::{Matcher, Place, Slot, index};
use super::message::{BodyStream, Message, Subject};
use super::multipart::{Multipart, Part};
use super::prefilter::Position;
use super::transform;
use super::view::View;
use super::window::STEP;
use crate::event::{Body, Form, Side};
use crate::rules::Buffer;
use crate::transaction::Transaction;

/// Where the bytes of a body go.
pub(super) struct Bodies<'a, 'b> {
    pub(super) connection: &'a mut Connection,
    pub(super) cx: &'a mut Context<'b>,
    pub(super) side: Side,
    /// The stream that the body is a part of.
    pub(super) payload: Option<View<'a>>,
    pub(super) transaction: Option<&'a Transaction>,
    pub(super) sink: Sink<'a>,
}

/// How collected rules are applied.
#[derive(Clone, Copy, Default)]
struct Pass {
    /// The body that is about to lose its start.
    filled: Option<usize>,
    /// The message is over.
    has_ended: bool,
    /// Those that wait already are not.
    are_late: bool,
}

impl Bodies<'_, '_> {
    /// The next bytes of a body in one of its forms.
    pub(super) fn data(&mut self, message: &mut Message, body: &Body<'_>) {
        let known = message.bodies.iter().position(|it| it.form == body.form && it.is_message);
        let place = known.unwrap_or_else(|| {
            // Each form is taken apart: servers know a coding or not, or read it in one of several ways.
            let parts = message.boundary.as_deref().map(|it| Box::new(Multipart::new(it)));
            let is_file = parts.is_none() || message.is_coded && body.form == Form::AsSent;
            self.begin(message, BodyStream { is_file, ..self.stream(body.form, parts) })
        });
        self.bytes(message, place, body.bytes);
        // They come back below: rules that files meet need the message.
        let Some(mut parts) = message.bodies.get_mut(place).and_then(|it| it.parts.take()) else {
            return;
        };
        parts.data(body.bytes, &mut |part| self.part(message, place, body.form, part));
        if let Some(body) = message.bodies.get_mut(place) {
            body.parts = Some(parts);
        }
    }

    /// A part of a form. Its file comes behind the `whole`, whose place stays.
    fn part(&mut self, message: &mut Message, whole: usize, form: Form, part: Part<'_>) {
        if let Part::Begin { may_be_coded: true, .. } = part {
            self.connection.unknown_coding(self.side, self.sink);
        }
        let file = message.bodies.iter().position(|it| !it.is_message && it.form == form);
        match (part, file) {
            (Part::Begin { may_be_file: true, .. }, None) => {
                let file = BodyStream { is_message: false, ..self.stream(form, None) };
                self.begin(message, file);
            }
            (Part::Data(bytes), Some(file)) => self.bytes(message, file, bytes),
            (Part::End, Some(file)) => {
                if let Some(body) = message.bodies.get_mut(file) {
                    body.window.end();
                }
                // A form can have very many of them.
                if self.may_apply(message, file) {
                    self.filled(message, file);
                }
                message.bodies.remove(file);
            }
            // Who must not miss a file looks into everything.
            (Part::Fault, _) => self.take_for_file(message, whole),
            _ => {}
        }
    }

    fn stream(&self, form: Form, parts: Option<Box<Multipart>>) -> BodyStream {
        BodyStream::new(form, self.cx.matcher.slots.len(), parts, self.cx.budget)
    }

    fn begin(&mut self, message: &mut Message, body: BodyStream) -> usize {
        message.bodies.push(body);
        // Rules without a pattern wait from the start.
        for (_, slot) in body_slots(self.cx.matcher, self.side) {
            let always = &slot.candidates[index(self.side)].always;
            always.iter().for_each(|&rule| self.cx.scratch.hits.add(rule));
        }
        message.bodies.len() - 1
    }

    /// The body as a whole is a file, too; what came of it was not searched as one.
    fn take_for_file(&mut self, message: &mut Message, place: usize) {
        let Some(body) = message.bodies.get_mut(place) else {
            return;
        };
        body.is_file = true;
        for (number, slot) in body_slots(self.cx.matcher, self.side) {
            if let (Some(prefilter), Some(position), true) = (
                &slot.candidates[index(self.side)].prefilter,
                body.positions.get_mut(number),
                slot.buffer == Buffer::FileData && slot.transforms.is_empty(),
            ) {
                let known = body.window.view().bytes;
                prefilter.search(position, known, &mut self.cx.scratch.hits);
            }
        }
        self.apply(message, Pass::default());
    }

    fn bytes(&mut self, message: &mut Message, place: usize, bytes: &[u8]) {
        let at = index(self.side);
        for piece in bytes.chunks(STEP) {
            let window = message.bodies.get(place).map(|body| &body.window);
            if let Some(window) = window.filter(|window| window.is_full(piece.len())) {
                // Once, whatever it costs.
                if !window.has_slid() || self.may_apply(message, place) {
                    self.filled(message, place);
                }
            }
            let Some(body) = message.bodies.get_mut(place) else {
                return;
            };
            if !body.window.push(piece) {
                self.connection.over_cap(self.side, self.sink);
            }
            for (number, slot) in body_slots(self.cx.matcher, self.side) {
                let is_searched = slot.transforms.is_empty() && body.is_for(slot.buffer);
                if let (Some(prefilter), Some(position), true) =
                    (&slot.candidates[at].prefilter, body.positions.get_mut(number), is_searched)
                {
                    prefilter.search(position, piece, &mut self.cx.scratch.hits);
                }
            }
            let may_apply = self.may_apply(message, place);
            if may_apply {
                message.add_waiting(&mut self.cx.scratch.hits);
            }
            self.apply(message, Pass { are_late: !may_apply, ..Pass::default() });
        }
    }

    /// Whether rules that wait may be applied to a body again. What is spent on files is spent on the body that
    /// they are in: a sender makes up as many of them as it likes.
    fn may_apply(&mut self, message: &mut Message, place: usize) -> bool {
        // Where none waits, none is late.
        if message.waiting.is_empty() {
            return true;
        }
        let form = message.bodies.get(place).map(|body| body.form);
        let whole = message.bodies.iter_mut().find(|it| it.is_message && Some(it.form) == form);
        if whole.is_some_and(|body| body.window.may_apply()) {
            return true;
        }
        self.connection.over_cap(self.side, self.sink);
        false
    }

    /// Applies the rules that were collected elsewhere.
    pub(super) fn collected(&mut self, message: &mut Message) {
        self.apply(message, Pass::default());
    }

    /// All that is at hand of a body is all that counts of it.
    fn filled(&mut self, message: &mut Message, place: usize) {
        self.transformed(message, place);
        message.add_waiting(&mut self.cx.scratch.hits);
        self.apply(message, Pass { filled: Some(place), ..Pass::default() });
    }

    /// The message is over.
    pub(super) fn end(&mut self, message: &mut Message) {
        while let Some((whole, form, mut parts)) = message.take_parts() {
            parts.end(&mut |part| self.part(message, whole, form, part));
        }
        for place in 0..message.bodies.len() {
            if let Some(body) = message.bodies.get_mut(place) {
                body.window.end();
            }
            self.transformed(message, place);
        }
        message.add_waiting(&mut self.cx.scratch.hits);
        self.apply(message, Pass { has_ended: true, ..Pass::default() });
    }

    /// Collects the rules that may match in what transformations make of a body, now that it is whole.
    fn transformed(&mut self, message: &mut Message, place: usize) {
        let Some(body) = message.bodies.get_mut(place) else {
            return;
        };
        let (view, mut work) = (body.window.filled(), 0);
        for (_, slot) in body_slots(self.cx.matcher, self.side) {
            if slot.transforms.is_empty() || !body.is_for(slot.buffer) {
                continue;
            }
            if let Some(prefilter) = &slot.candidates[index(self.side)].prefilter
                && let Some(transformed) = transform::apply(&slot.transforms, view)
            {
                let bytes = transformed.view().bytes;
                work += view.bytes.len() as u64;
                prefilter.search(&mut Position::default(), bytes, &mut self.cx.scratch.hits);
            }
        }
        body.window.worked(work);
    }

    /// Applies the rules that were collected.
    fn apply(&mut self, message: &mut Message, pass: Pass) {
        let Pass { filled, has_ended, are_late } = pass;
        let rules = self.cx.scratch.hits.take();
        for &rule in &rules {
            // Their pattern may be in every byte that comes.
            if are_late && message.is_waiting(rule) {
                continue;
            }
            let Some(mut waiting) = message.take(rule) else { continue };
            let subject = Subject {
                head: message.head.as_ref().map(|(head, _)| head),
                bodies: &message.bodies,
                is_coded: message.is_coded,
                payload: self.payload,
                handshake: None,
                frames: Some(&message.frames),
                filled,
                has_ended,
            };
            let outcome = self.connection.apply(self.cx, &mut waiting, self.side, &subject);
            for body in &mut message.bodies {
                body.window.worked(self.cx.scratch.work);
            }
            let (side, transaction) = (self.side, self.transaction);
            settle(
                self.connection,
                self.cx,
                message,
                waiting,
                outcome,
                side,
                transaction,
                self.sink,
            );
        }
        self.cx.scratch.hits.give_back(rules);
    }
}

/// The buffers of bodies that rules look into on a side.
fn body_slots(matcher: &Matcher, side: Side) -> impl Iterator<Item = (usize, &Slot)> {
    matcher.slots.iter().enumerate().filter(move |(_, slot)| {
        slot.place == Place::Body && !slot.candidates[index(side)].is_empty()
    })
}
