//! Arithmetic of the two hashes that are linear: GHASH in GF(2^128), Poly1305 modulo 2^130 - 5.
//!
//! For attacks in tests: simple, not fast, not constant-time. Refuses to be used for anything
//! else by being here.

use core::ops::{Add, Mul, Neg};

/// An element of GHASH's field, as a block read big-endian: bit 0 of the polynomial is the
/// leftmost bit (NIST SP 800-38D, section 6.3).
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Gf128(pub u128);

impl Gf128 {
    const ONE: Self = Self(1 << 127);

    pub fn from_block(block: [u8; 16]) -> Self {
        Self(u128::from_be_bytes(block))
    }

    pub fn to_block(self) -> [u8; 16] {
        self.0.to_be_bytes()
    }

    pub fn power(self, exponent: u128) -> Self {
        power(self, exponent, Self::ONE)
    }

    /// The inverse; of zero it is zero.
    pub fn inverse(self) -> Self {
        self.power(u128::MAX - 1)
    }
}

impl Add for Gf128 {
    type Output = Self;

    #[expect(clippy::suspicious_arithmetic_impl, reason = "addition is exclusive or")]
    fn add(self, other: Self) -> Self {
        Self(self.0 ^ other.0)
    }
}

impl Mul for Gf128 {
    type Output = Self;

    fn mul(self, other: Self) -> Self {
        const R: u128 = 0xe1 << 120;
        let (mut product, mut shifted) = (0, other.0);
        for bit in (0..128).rev() {
            if self.0 >> bit & 1 == 1 {
                product ^= shifted;
            }
            let carry = shifted & 1;
            shifted >>= 1;
            if carry == 1 {
                shifted ^= R;
            }
        }
        Self(product)
    }
}

/// A number modulo 2^130 - 5: `high * 2^128 + low`.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct P1305 {
    high: u8,
    low: u128,
}

impl P1305 {
    const ZERO: Self = Self { high: 0, low: 0 };
    const ONE: Self = Self { high: 0, low: 1 };

    /// `high * 2^128 + low`, which must be below twice the modulus.
    pub fn new(high: u8, low: u128) -> Self {
        // 2^130 - 5 is 3 * 2^128 + (2^128 - 5).
        let (rest, borrow) = low.overflowing_sub(u128::MAX - 4);
        match high.checked_sub(3 + u8::from(borrow)) {
            Some(high) => Self { high, low: rest },
            None => Self { high, low },
        }
    }

    /// A message block as Poly1305 reads it: little-endian, and one above the highest bit.
    pub fn from_block(block: [u8; 16]) -> Self {
        Self::new(1, u128::from_le_bytes(block))
    }

    /// The message block that is read as this number, where there is one.
    pub fn to_block(self) -> Option<[u8; 16]> {
        (self.high == 1).then(|| self.low.to_le_bytes())
    }

    /// The numbers that end in the same 128 bits, which are all that becomes a tag.
    pub fn same_tag(self) -> impl Iterator<Item = Self> {
        (0..4)
            .map(move |high| Self { high, low: self.low })
            .filter(|&n| Self::new(n.high, n.low) == n)
    }

    pub fn power(self, exponent: u128) -> Self {
        power(self, exponent, Self::ONE)
    }

    /// The inverse; of zero it is zero.
    pub fn inverse(self) -> Self {
        // The exponent is p - 2 = 2^130 - 7 = (2^128 - 1) * 4 - 3 = (2^128 - 2) * 4 + 1.
        self.power(u128::MAX - 1).power(4) * self
    }
}

impl Add for P1305 {
    type Output = Self;

    fn add(self, other: Self) -> Self {
        let (low, carry) = self.low.overflowing_add(other.low);
        Self::new(self.high + other.high + u8::from(carry), low)
    }
}

impl Neg for P1305 {
    type Output = Self;

    fn neg(self) -> Self {
        let (low, borrow) = (u128::MAX - 4).overflowing_sub(self.low);
        // Zero stays zero: new() takes the modulus away.
        Self::new(3 - self.high - u8::from(borrow), low)
    }
}

impl Mul for P1305 {
    type Output = Self;

    fn mul(self, other: Self) -> Self {
        let mut product = Self::ZERO;
        let bit = |at: u32| {
            if at < 128 { other.low >> at & 1 } else { u128::from(other.high) >> (at - 128) & 1 }
        };
        for at in (0..130).rev() {
            product = product + product;
            if bit(at) == 1 {
                product = product + self;
            }
        }
        product
    }
}

fn power<F: Copy + Mul<Output = F>>(base: F, exponent: u128, one: F) -> F {
    (0..128 - exponent.leading_zeros()).rev().fold(one, |power, bit| {
        let square = power * power;
        if exponent >> bit & 1 == 1 { square * base } else { square }
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn accepts_inverses() {
        for number in [1, 2, 0x1234_5678_9abc_def0, u128::MAX, u128::MAX - 4] {
            let element = Gf128(number);
            assert_eq!(element * element.inverse(), Gf128::ONE);
            for high in 0..4 {
                let element = P1305::new(high, number);
                if element != P1305::ZERO {
                    assert_eq!(element * element.inverse(), P1305::ONE, "{element:?}");
                }
                assert_eq!(element + -element, P1305::ZERO);
                assert_eq!(-P1305::ZERO, P1305::ZERO);
            }
        }
    }
}
