"""The server behind nginx in `xtask soak`: hashes what is sent to it, and sends WebSocket messages back.

Refuses what is longer than the soak's clients send.
"""

import base64
import hashlib
import struct
import sys
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

LARGEST = 16 << 20


class Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"

    def log_message(self, *_):
        pass

    def do_POST(self):
        length = int(self.headers["Content-Length"])
        if length > LARGEST:
            return self.send_error(413)
        answer = hashlib.sha256(self.rfile.read(length)).hexdigest().encode()
        self.send_response(200)
        self.send_header("Content-Length", str(len(answer)))
        self.end_headers()
        self.wfile.write(answer)

    def do_GET(self):
        key = self.headers["Sec-WebSocket-Key"].encode()
        accept = hashlib.sha1(key + b"258EAFA5-E914-47DA-95CA-C5AB0DC85B11").digest()
        self.send_response(101)
        self.send_header("Upgrade", "websocket")
        self.send_header("Connection", "Upgrade")
        self.send_header("Sec-WebSocket-Accept", base64.b64encode(accept).decode())
        self.end_headers()
        self.close_connection = True
        while self.echo():
            pass

    def echo(self):
        start = self.rfile.read(2)
        if len(start) < 2:
            return False
        opcode, length = start[0] & 0x0F, start[1] & 0x7F
        if length == 126:
            length = struct.unpack(">H", self.rfile.read(2))[0]
        if length > 65535:
            return False
        mask, data = self.rfile.read(4), self.rfile.read(length)
        mask_all = (mask * (length // 4 + 1))[:length]
        data = (int.from_bytes(data, "big") ^ int.from_bytes(mask_all, "big")).to_bytes(length, "big")
        head = struct.pack(">BB", start[0], length) if length < 126 else struct.pack(">BBH", start[0], 126, length)
        self.wfile.write(head + data)
        return opcode != 8


ThreadingHTTPServer.daemon_threads = True
ThreadingHTTPServer.request_queue_size = 128
ThreadingHTTPServer(("127.0.0.1", int(sys.argv[1])), Handler).serve_forever()
