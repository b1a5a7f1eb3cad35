//! What is done to a buffer before it is looked into.
//!
//! Refuses to transform what is not known well enough: what comes of the known part of a buffer is
//! always the start of what comes of the whole one.

use std::borrow::Cow;

use md5::{Digest, Md5};
use sha1::Sha1;
use sha2::Sha256;

use super::base64;
use super::view::View;
use crate::rules::Transform;
use crate::rules::slices::{Slice, XorKey};

/// A buffer after transformations.
#[derive(Debug)]
pub(crate) struct Transformed<'a> {
    bytes: Cow<'a, [u8]>,
    start: u64,
    is_whole: bool,
    starts_here: bool,
    goes_on: bool,
}

impl Transformed<'_> {
    /// What is known of it.
    pub(crate) fn view(&self) -> View<'_> {
        let Self { start, is_whole, starts_here, goes_on, .. } = *self;
        View { bytes: &self.bytes, start, is_whole, starts_here, goes_on }
    }
}

/// Applies transformations, one after the other. Absent where nothing is known of what comes of it: a
/// digest before the buffer is whole, and a transformation that depends on bytes no longer at hand.
pub(crate) fn apply<'a>(transforms: &[Transform], view: View<'a>) -> Option<Transformed<'a>> {
    let View { bytes, start, is_whole, starts_here, goes_on } = view;
    let known = Transformed { bytes: Cow::Borrowed(bytes), start, is_whole, starts_here, goes_on };
    transforms.iter().try_fold(known, apply_one)
}

fn apply_one<'a>(buffer: Transformed<'a>, transform: &Transform) -> Option<Transformed<'a>> {
    let Transformed { bytes, start, is_whole, starts_here, goes_on } = buffer;
    let keeps_places = matches!(
        transform,
        Transform::ToLowercase
            | Transform::ToUppercase
            | Transform::Xor { offset: 0, key: XorKey::Given(_) }
    );
    // Where nothing counts that was before, places do not either, but for those that count from the start.
    let is_counted = matches!(transform, Transform::DotPrefix) || !starts_here;
    if start > 0 && !keeps_places && is_counted {
        return None;
    }
    // A digest is of all of it.
    let is_all = is_whole && start == 0;
    let digest = |digest: fn(&[u8]) -> Vec<u8>| is_all.then(|| digest(&bytes));
    let bytes = match transform {
        Transform::ToLowercase if !bytes.iter().any(u8::is_ascii_uppercase) => bytes,
        Transform::ToLowercase => bytes.to_ascii_lowercase().into(),
        Transform::ToUppercase if !bytes.iter().any(u8::is_ascii_lowercase) => bytes,
        Transform::ToUppercase => bytes.to_ascii_uppercase().into(),
        Transform::StripWhitespace | Transform::CompressWhitespace
            if !bytes.iter().any(is_space) =>
        {
            bytes
        }
        Transform::StripWhitespace => {
            bytes.iter().copied().filter(|byte| !is_space(byte)).collect()
        }
        Transform::CompressWhitespace => compress(&bytes).into(),
        Transform::UrlDecode => url_decode(&bytes, is_whole).into(),
        Transform::ToMd5 => digest(|bytes| Md5::digest(bytes).to_vec())?.into(),
        Transform::ToSha1 => digest(|bytes| Sha1::digest(bytes).to_vec())?.into(),
        Transform::ToSha256 => digest(|bytes| Sha256::digest(bytes).to_vec())?.into(),
        // Nothing stays nothing, as in Suricata.
        Transform::DotPrefix if bytes.is_empty() => bytes,
        Transform::DotPrefix => [b".", &*bytes].concat().into(),
        Transform::HeaderLowercase => lowercase_names(bytes.into_owned()).into(),
        Transform::StripPseudoHeaders => strip_pseudo_headers(&bytes).into(),
        Transform::Xor { offset: 0, key: XorKey::Given(key) } => {
            xor(bytes.into_owned(), key, start).into()
        }
        // These depend on where the buffer ends.
        _ if !is_all => return None,
        Transform::Xor { offset, key } => xor_from(bytes.into_owned(), *offset, key).into(),
        Transform::Subslice(slice) => subslice(&bytes, slice).to_vec().into(),
        Transform::FromBase64(wanted) => match base64::decode_part(&bytes, wanted) {
            Some(decoded) => decoded.into(),
            None => bytes,
        },
    };
    Some(Transformed { bytes, start, is_whole, starts_here, goes_on })
}

/// White space of C's `isspace`: that of Rust is without the vertical tab.
fn is_space(byte: &u8) -> bool {
    matches!(byte, b' ' | b'\t'..=b'\r')
}

/// Of white space that stands together, the first byte stays as it is. Suricata's guide says that it
/// becomes one space; Suricata does this.
fn compress(bytes: &[u8]) -> Vec<u8> {
    let mut before = false;
    let keep = |byte: &u8| {
        let is_again = before && is_space(byte);
        before = is_space(byte);
        !is_again
    };
    bytes.iter().copied().filter(keep).collect()
}

fn url_decode(bytes: &[u8], is_whole: bool) -> Vec<u8> {
    let mut decoded = Vec::with_capacity(bytes.len());
    let mut rest = bytes;
    while let Some((first, behind)) = rest.split_first() {
        rest = behind;
        let digit = |at: usize| {
            let digit = behind.get(at).and_then(|byte| char::from(*byte).to_digit(16));
            digit.and_then(|digit| u8::try_from(digit).ok())
        };
        match first {
            b'+' => decoded.push(b' '),
            b'%' => match (digit(0), digit(1)) {
                (Some(high), Some(low)) => {
                    decoded.push(high << 4 | low);
                    rest = behind.get(2..).unwrap_or_default();
                }
                // Digits may follow.
                (None, _) if behind.is_empty() && !is_whole => break,
                (Some(_), None) if behind.len() == 1 && !is_whole => break,
                _ => decoded.push(b'%'),
            },
            other => decoded.push(*other),
        }
    }
    decoded
}

fn lowercase_names(mut bytes: Vec<u8>) -> Vec<u8> {
    for line in bytes.split_inclusive_mut(|byte| *byte == b'\n') {
        let name = line.split_mut(|byte| *byte == b':').next();
        name.unwrap_or_default().make_ascii_lowercase();
    }
    bytes
}

/// Without the lines that start with a colon. Line ends before a line belong to it, as Suricata has it.
fn strip_pseudo_headers(bytes: &[u8]) -> Vec<u8> {
    let (mut is_start, mut is_pseudo) = (true, false);
    let keep = |byte: &u8| {
        if is_start {
            is_pseudo |= *byte == b':';
            is_start = matches!(byte, b'\r' | b'\n');
            return !is_pseudo;
        }
        is_start = *byte == b'\n';
        let keeps = !is_pseudo;
        is_pseudo &= !is_start;
        keeps
    };
    bytes.iter().copied().filter(keep).collect()
}

fn xor(mut bytes: Vec<u8>, key: &[u8], start: u64) -> Vec<u8> {
    let skipped = start.checked_rem(key.len() as u64).unwrap_or(0) as usize;
    for (byte, key) in bytes.iter_mut().zip(key.iter().cycle().skip(skipped)) {
        *byte ^= key;
    }
    bytes
}

/// From a place on; unchanged where there is no such place, or no such key.
fn xor_from(mut bytes: Vec<u8>, offset: u32, key: &XorKey) -> Vec<u8> {
    let key: Box<[u8]> = match key {
        XorKey::Given(key) => key.clone(),
        XorKey::Extracted { offset, len } => {
            let start = usize::from(*offset);
            let found = bytes.get(start..start + usize::from(*len));
            found.unwrap_or_default().into()
        }
    };
    let changed = bytes.get_mut(offset as usize..).unwrap_or_default();
    for (byte, key) in changed.iter_mut().zip(key.iter().cycle()) {
        *byte ^= key;
    }
    bytes
}

/// A part of a buffer; nothing where it would reach beyond.
fn subslice<'a>(bytes: &'a [u8], slice: &Slice) -> &'a [u8] {
    let len = i64::try_from(bytes.len()).unwrap_or(i64::MAX);
    let (offset, truncates) = (i64::from(slice.offset), slice.truncates);
    if offset.abs() > len && !truncates {
        return &[];
    }
    let start = if offset >= 0 { offset.min(len) } else { len + offset.max(-len) };
    let end = match slice.len.map(i64::from) {
        None => len,
        Some(count) if count < 0 => len + count,
        Some(count) => start + count,
    };
    if !(0..=len).contains(&end) && !truncates {
        return &[];
    }
    let end = end.clamp(0, len);
    // Suricata exchanges them where they are in the wrong order.
    let place = |at: i64| usize::try_from(at).unwrap_or(0);
    bytes.get(place(start.min(end))..place(start.max(end))).unwrap_or_default()
}
