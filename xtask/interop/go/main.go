// Endpoint on Go's crypto/tls. The contract is in ../README.md.
package main

import (
	"bytes"
	"crypto/tls"
	"crypto/x509"
	"fmt"
	"io"
	"net"
	"os"
	"runtime"
	"strconv"
	"strings"
	"time"
)

var (
	role      = os.Args[1]
	isServer  = role == "server"
	arguments = map[string]string{}
)

func fail(format string, values ...any) {
	fmt.Fprintf(os.Stderr, role+": "+format+"\n", values...)
	os.Exit(1)
}

func check(err error, what string) {
	if err != nil {
		fail("%s: %v", what, err)
	}
}

func number(name string, otherwise int) int {
	value, found := arguments[name]
	if !found {
		return otherwise
	}
	result, err := strconv.Atoi(value)
	check(err, name)
	return result
}

func suiteNumber(name string) uint16 {
	for _, suite := range append(tls.CipherSuites(), tls.InsecureCipherSuites()...) {
		if suite.Name == name {
			return suite.ID
		}
	}
	fail("no suite %s", name)
	return 0
}

func makeConfig() *tls.Config {
	version := uint16(tls.VersionTLS13)
	if arguments["version"] == "1.2" {
		version = tls.VersionTLS12
	}
	config := &tls.Config{
		MinVersion: version, MaxVersion: version,
		// Without authentication on purpose: the certificates are the testbed's.
		ServerName: "server.test", InsecureSkipVerify: true,
		ClientSessionCache: tls.NewLRUClientSessionCache(4),
		// Records as large as the writes.
		DynamicRecordSizingDisabled: true,
	}
	// The suites of TLS 1.3 cannot be chosen here.
	if name := arguments["suite"]; name != "" && version == tls.VersionTLS12 {
		config.CipherSuites = []uint16{suiteNumber(name)}
	}
	groups := map[string]tls.CurveID{
		"P-256": tls.CurveP256, "P-384": tls.CurveP384, "X25519MLKEM768": tls.X25519MLKEM768,
	}
	if names := arguments["groups"]; names != "" {
		for _, name := range strings.Split(names, ":") {
			config.CurvePreferences = append(config.CurvePreferences, groups[name])
			if groups[name] == tls.X25519MLKEM768 {
				// Not without its classical half; exchange() checks which one it was.
				config.CurvePreferences = append(config.CurvePreferences, tls.X25519)
			}
		}
	}
	if path := arguments["cert"]; path != "" {
		identity, err := tls.LoadX509KeyPair(path, arguments["key"])
		check(err, "certificate")
		config.Certificates = []tls.Certificate{identity}
	}
	if number("auth", 0) != 0 {
		authority, err := os.ReadFile(arguments["ca"])
		check(err, "CA")
		config.ClientCAs = x509.NewCertPool()
		config.ClientCAs.AppendCertsFromPEM(authority)
		config.ClientAuth = tls.RequireAndVerifyClientCert
	}
	if path := arguments["keylog"]; path != "" {
		file, err := os.OpenFile(path, os.O_CREATE|os.O_APPEND|os.O_WRONLY, 0o600)
		check(err, "key log")
		config.KeyLogWriter = file
	}
	return config
}

// Reads until `length` bytes are there, the end ("eof"), or the end of a request ("http").
func receive(connection *tls.Conn, received *bytes.Buffer, length int) {
	buffer := make([]byte, 1<<16)
	kind := arguments["expect"]
	for kind == "eof" || kind == "http" || received.Len() < length {
		count, err := connection.Read(buffer)
		received.Write(buffer[:count])
		if kind == "http" && bytes.Contains(received.Bytes(), []byte("\r\n\r\n")) {
			return
		}
		if err == io.EOF && kind != "" && kind != "http" && received.Len() >= length {
			return
		}
		if err != nil {
			check(err, fmt.Sprintf("after %d bytes", received.Len()))
		}
	}
}

func send(connection *tls.Conn, part []byte) {
	chunk := number("chunk", 0)
	for len(part) > 0 {
		piece := len(part)
		if chunk > 0 && chunk < piece {
			piece = chunk
		}
		_, err := connection.Write(part[:piece])
		check(err, "write")
		part = part[piece:]
	}
}

func exchange(connection *tls.Conn, index int) {
	payload, err := os.ReadFile(fmt.Sprintf("%s.%d", arguments["send"], index))
	check(err, "payload")
	check(connection.Handshake(), "handshake")
	state := connection.ConnectionState()
	if arguments["resume"] != "" && index > 0 && !state.DidResume {
		fail("not resumed")
	}
	if arguments["groups"] == "X25519MLKEM768" && state.CurveID != tls.X25519MLKEM768 {
		fail("the key exchange is %v", state.CurveID)
	}
	expected := 0
	if kind := arguments["expect"]; kind != "http" && kind != "eof" {
		expected = number("expect", 0)
	}
	rounds := number("rounds", 1)
	var received bytes.Buffer
	for round := 0; round < rounds; round++ {
		part := payload[len(payload)*round/rounds : len(payload)*(round+1)/rounds]
		if isServer {
			receive(connection, &received, expected*(round+1)/rounds)
		}
		send(connection, part)
		if !isServer {
			receive(connection, &received, expected*(round+1)/rounds)
		}
	}
	// The client closes first, and each side reads to the end.
	if !isServer || arguments["expect"] == "http" {
		check(connection.CloseWrite(), "close")
	}
	rest, err := io.ReadAll(connection)
	if arguments["expect"] != "http" {
		check(err, "end")
	}
	if len(rest) > 0 {
		fail("more bytes than expected")
	}
	if isServer && arguments["expect"] != "http" {
		connection.CloseWrite()
	}
	connection.Close()
	path := fmt.Sprintf("%s.%d", arguments["received"], index)
	check(os.WriteFile(path, received.Bytes(), 0o600), "received")
}

// Takes connections until it is ended, all at a time. One that fails is nobody else's concern.
func serveForever(listener net.Listener, config *tls.Config) {
	payload, err := os.ReadFile(arguments["send"] + ".0")
	check(err, "payload")
	for {
		raw, err := listener.Accept()
		check(err, "accept")
		go func() {
			defer raw.Close()
			raw.SetDeadline(time.Now().Add(90 * time.Second))
			connection := tls.Server(raw, config)
			buffer := make([]byte, 4096)
			count, err := connection.Read(buffer)
			if err != nil {
				return
			}
			line, _, _ := strings.Cut(string(buffer[:count]), "\r")
			fmt.Println("request " + line)
			connection.Write(payload)
			connection.CloseWrite()
		}()
	}
}

func main() {
	if role == "version" {
		fmt.Println(runtime.Version())
		return
	}
	for _, argument := range os.Args[2:] {
		name, value, _ := strings.Cut(argument, "=")
		arguments[name] = value
	}
	forever := isServer && number("forever", 0) != 0
	if !forever {
		time.AfterFunc(50*time.Second, func() { fail("out of time") })
	}
	config := makeConfig()
	address := net.JoinHostPort(arguments["host"], arguments["port"])
	connections := number("connections", 1)
	if isServer {
		listener, err := net.Listen("tcp", address)
		check(err, "listen")
		fmt.Println("ready")
		if forever {
			serveForever(listener, config)
		}
		for index := 0; index < connections; index++ {
			raw, err := listener.Accept()
			check(err, "accept")
			exchange(tls.Server(raw, config), index)
		}
		return
	}
	for index := 0; index < connections; index++ {
		raw, err := net.Dial("tcp", address)
		check(err, "connect")
		exchange(tls.Client(raw, config), index)
	}
}
