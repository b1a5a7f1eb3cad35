#!/usr/bin/env python3
"""Checks the test vectors of docs/private-tag.md with an independent implementation.

Usage: check-private-tag.py VECTORS.json

Needs the "cryptography" package (Debian: python3-cryptography). It is written from the
specification and from RFC 10032, whose AEGIS that package does not have, and shares nothing with
the Rust code. Refuses to pass a vector of which any value differs, or a file without vectors.
"""

import functools
import hashlib
import hmac
import json
import operator
import struct
import sys

from cryptography.hazmat.primitives.ciphers.aead import AESCCM, AESGCM, ChaCha20Poly1305

# The constants of AEGIS, and the degree of parallelism of its variant X2 (RFC 10032).
C0 = bytes.fromhex("000101020305080d1522375990e97962")
C1 = bytes.fromhex("db3d18556dc22ff12011314273b528dd")
LANES = 2


def xor(*blocks):
    return bytes(functools.reduce(operator.xor, column) for column in zip(*blocks, strict=True))


def double(byte):
    """Times x in AES's field (FIPS 197, section 4.2)."""
    return (byte << 1) ^ (0x11B if byte & 0x80 else 0)


def sbox():
    """AES's S-box (FIPS 197, section 5.1.1), by walking through the field in both directions."""
    box, p, q = [0x63] * 256, 1, 1
    while True:
        p ^= double(p)
        for shift in (1, 2, 4):
            q ^= q << shift & 0xFF
        q ^= 0x09 if q & 0x80 else 0
        rotated = [(q << n | q >> 8 - n) & 0xFF for n in range(5)]
        box[p] = 0x63 ^ functools.reduce(operator.xor, rotated)
        if p == 1:
            return box


SBOX = sbox()


def aes_round(block, key):
    """One round of AES (FIPS 197, section 5.1)."""
    out = bytearray()
    for column in range(0, 16, 4):
        a = [SBOX[block[(column + 5 * row) % 16]] for row in range(4)]
        for row in range(4):
            b, c, d, e = (a[(row + n) % 4] for n in range(4))
            out.append(double(b) ^ double(c) ^ c ^ d ^ e)
    return xor(out, key)


class Aegis128X2:
    """AEGISMAC-128X2 (RFC 10032), with tags of 128 bits."""

    def __init__(self, key):
        self.key = key

    def tag(self, nonce, data):
        nonce = nonce.ljust(16, b"\0")
        state = self.init(nonce)
        for at in range(0, len(data), 64):
            self.absorb(state, data[at : at + 64].ljust(64, b"\0"))
        self.mix(state, 8 * len(data))
        tags = [xor(*lane[:7]) for lane in state]
        self.absorb(state, tags[0] + bytes(16) + tags[1] + bytes(16))
        self.mix(state[:1], LANES)
        return xor(*state[0][:7])

    def init(self, nonce):
        key, both = self.key, xor(self.key, nonce)
        start = [both, C1, C0, C1, both, xor(key, C0), xor(key, C1), xor(key, C0)]
        state = [list(start) for _ in range(LANES)]
        for number, lane in enumerate(state):
            context = bytes([number, LANES - 1]).ljust(16, b"\0")
            for _ in range(10):
                lane[3], lane[7] = xor(lane[3], context), xor(lane[7], context)
                self.update(lane, nonce, key)
        return state

    @staticmethod
    def update(lane, m0, m1):
        rounds = [aes_round(lane[n - 1], lane[n]) for n in range(8)]
        rounds[0], rounds[4] = xor(rounds[0], m0), xor(rounds[4], m1)
        lane[:] = rounds

    def absorb(self, state, data):
        """64 bytes: first the lanes' m0, then their m1."""
        blocks = [data[at : at + 16] for at in range(0, 64, 16)]
        for number, lane in enumerate(state):
            self.update(lane, blocks[number], blocks[LANES + number])

    def mix(self, state, count):
        """The seven updates of FinalizeMac, with the count and 128, the bits of the tag."""
        block = struct.pack("<QQ", count, 128)
        words = [xor(lane[2], block) for lane in state]
        for _ in range(7):
            for lane, word in zip(state, words):
                self.update(lane, word, word)


class ChaCha20Poly1305Tag:
    def __init__(self, key):
        self.aead = ChaCha20Poly1305(key)

    def tag(self, nonce, data):
        return self.aead.encrypt(nonce, b"", data)


# suite: hash, length of k1, its AEAD, length of k2, its MAC, length of the first tag
SUITES = {
    "ff31": ("sha256", 16, AESGCM, 16, Aegis128X2, 16),
    "ff32": ("sha384", 32, AESGCM, 16, Aegis128X2, 16),
    "ff33": ("sha256", 32, ChaCha20Poly1305, 32, ChaCha20Poly1305Tag, 16),
    "ff34": ("sha256", 16, lambda key: AESCCM(key, tag_length=16), 16, Aegis128X2, 16),
    "ff35": ("sha256", 16, lambda key: AESCCM(key, tag_length=8), 16, Aegis128X2, 8),
}


def expand_label(hash_name, secret, label, length):
    """HKDF-Expand-Label with an empty context (RFC 8446, section 7.1; RFC 5869, section 2.3)."""
    label = b"tls13 " + label
    info = length.to_bytes(2, "big") + bytes([len(label)]) + label + b"\0"
    out, block, count = b"", b"", 1
    while len(out) < length:
        block = hmac.new(secret, block + info + bytes([count]), hash_name).digest()
        out, count = out + block, count + 1
    return out[:length]


def seal(vector):
    """The record that the specification asks for, and the text and keys of its private tag."""
    hash_name, k1_len, aead, k2_len, mac, tag_len = SUITES[vector["suite"]]
    secret = bytes.fromhex(vector["traffic_secret"])
    assert len(secret) == hashlib.new(hash_name).digest_size
    k1 = expand_label(hash_name, secret, b"key", k1_len)
    iv = expand_label(hash_name, secret, b"iv", 12)
    k2 = expand_label(hash_name, secret, b"mmtls ptag", k2_len)
    sequence = vector["sequence"].to_bytes(12, "big")
    nonce = bytes(a ^ b for a, b in zip(iv, sequence))
    content = bytes.fromhex(vector["content"])
    inner = content + bytes([vector["content_type"]]) + bytes(vector["padding"])
    header = b"\x17\x03\x03" + (len(inner) + tag_len + 16).to_bytes(2, "big")
    text = header + aead(k1).encrypt(nonce, inner, header)
    record = text + mac(k2).tag(nonce, text)
    for name, value in {"k1": k1, "iv": iv, "k2": k2, "nonce": nonce, "record": record}.items():
        if value.hex() != vector[name]:
            raise SystemExit(f"{vector['name']}, {name}: {value.hex()}, not {vector[name]}")
    return mac(k2), nonce, record


def check_aegis():
    """The tag of 128 bits of RFC 10032, appendix A."""
    key, nonce = b"\x10\x01".ljust(16, b"\0"), b"\x10\0\x02".ljust(12, b"\0")
    tag = Aegis128X2(key).tag(nonce, bytes(range(0x23)))
    if tag.hex() != "6873ee34e6b5c59143b6d35c5e4f2c6e":
        raise SystemExit("this AEGIS is not that of RFC 10032")


def main():
    check_aegis()
    with open(sys.argv[1], encoding="ascii") as file:
        vectors = json.load(file)
    seen, refused = set(), 0
    for vector in vectors:
        mac, nonce, record = seal(vector)
        seen.add(vector["suite"])
        changed = bytearray(record)
        changed[len(record) // 2] ^= 1
        if not hmac.compare_digest(mac.tag(nonce, bytes(changed[:-16])), bytes(changed[-16:])):
            refused += 1
    if seen != set(SUITES):
        raise SystemExit(f"suites without a vector: {sorted(set(SUITES) - seen)}")
    print(f"{len(vectors)} vectors right, {refused} changed ones refused")


main()
