#!/usr/bin/env python3
"""Checks the test vectors of docs/private-tag.md with an independent implementation.

Usage: check-private-tag.py VECTORS.json

Needs the "cryptography" package (Debian: python3-cryptography). It is written from the
specification and shares nothing with the Rust code. Refuses to pass a vector of which any value
differs, or a file without vectors.
"""

import hashlib
import hmac
import json
import sys

from cryptography.exceptions import InvalidTag
from cryptography.hazmat.primitives.ciphers.aead import AESCCM, AESGCM, ChaCha20Poly1305

# suite: hash, key length, the AEAD of k1, the MAC's AEAD of k2, length of the first tag
SUITES = {
    "ff31": ("sha256", 16, AESGCM, AESGCM, 16),
    "ff32": ("sha384", 32, AESGCM, AESGCM, 16),
    "ff33": ("sha256", 32, ChaCha20Poly1305, ChaCha20Poly1305, 16),
    "ff34": ("sha256", 16, lambda key: AESCCM(key, tag_length=16), AESGCM, 16),
    "ff35": ("sha256", 16, lambda key: AESCCM(key, tag_length=8), AESGCM, 8),
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
    hash_name, key_len, aead, mac, tag_len = SUITES[vector["suite"]]
    secret = bytes.fromhex(vector["traffic_secret"])
    assert len(secret) == hashlib.new(hash_name).digest_size
    k1 = expand_label(hash_name, secret, b"key", key_len)
    iv = expand_label(hash_name, secret, b"iv", 12)
    k2 = expand_label(hash_name, secret, b"mmtls ptag", key_len)
    sequence = vector["sequence"].to_bytes(12, "big")
    nonce = bytes(a ^ b for a, b in zip(iv, sequence))
    content = bytes.fromhex(vector["content"])
    inner = content + bytes([vector["content_type"]]) + bytes(vector["padding"])
    header = b"\x17\x03\x03" + (len(inner) + tag_len + 16).to_bytes(2, "big")
    text = header + aead(k1).encrypt(nonce, inner, header)
    record = text + mac(k2).encrypt(nonce, b"", text)
    for name, value in {"k1": k1, "iv": iv, "k2": k2, "nonce": nonce, "record": record}.items():
        if value.hex() != vector[name]:
            raise SystemExit(f"{vector['name']}, {name}: {value.hex()}, not {vector[name]}")
    return mac(k2), nonce, record


def main():
    with open(sys.argv[1], encoding="ascii") as file:
        vectors = json.load(file)
    seen, refused = set(), 0
    for vector in vectors:
        mac, nonce, record = seal(vector)
        seen.add(vector["suite"])
        changed = bytearray(record)
        changed[len(record) // 2] ^= 1
        try:
            mac.decrypt(nonce, bytes(changed[-16:]), bytes(changed[:-16]))
        except InvalidTag:
            refused += 1
    if seen != set(SUITES):
        raise SystemExit(f"suites without a vector: {sorted(set(SUITES) - seen)}")
    print(f"{len(vectors)} vectors right, {refused} changed ones refused")


main()
