package e2e

// Proven here, with peers that write their own frames of HTTP/2 and their own records of TLS: of
// those that never leave the service in peace, 200 at once hold up nobody, hold no more memory and
// goroutines than is said, and do not keep the service from stopping in 10 seconds.

import (
	"bytes"
	"crypto/aes"
	"crypto/cipher"
	"crypto/hkdf"
	"crypto/sha256"
	"crypto/tls"
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"net"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"golang.org/x/net/http2"
	"golang.org/x/net/http2/hpack"
)

const (
	holders = 200
	// goroutinesHeld is two for a connection, one for each of its streams, and two that begin.
	goroutinesHeld = 2 + maxStreams + 2
)

// holding is what a peer does again and again, until it fails.
type holding struct {
	what  string
	reads bool // what the service sends
	begin func(s *server) (again func(i uint32) error, conn net.Conn, err error)
}

// framed does something with frames again and again.
func framed(again func(f *frames, i uint32) error, settings ...http2.Setting) func(s *server) (
	func(i uint32) error, net.Conn, error) {
	return func(s *server) (func(i uint32) error, net.Conn, error) {
		f, err := s.openHTTP2(settings...)
		if err != nil {
			return nil, nil, err
		}
		next := func(i uint32) error { return errors.Join(again(f, i), f.buffer.Flush()) }
		return next, f.conn, f.conn.SetDeadline(time.Time{})
	}
}

var holdings = []holding{
	{"windows of 0", true, framed(func(f *frames, i uint32) (err error) {
		for n := 5 * i; n < 5*i+5; n++ {
			err = errors.Join(err, f.list(2*n+1, true))
		}
		return err
	}, http2.Setting{ID: http2.SettingInitialWindowSize, Val: 0})},
	{"resets in a row", true, framed(func(f *frames, i uint32) (err error) {
		for n := 5 * i; n < 5*i+5; n++ {
			err = errors.Join(err, f.list(2*n+1, true),
				f.WriteRSTStream(2*n+1, http2.ErrCodeCancel))
		}
		return err
	})},
	{"headers without end", true, framed(func(f *frames, i uint32) error {
		if i == 0 {
			return f.halfAHead()
		}
		f.header.Reset()
		_ = f.hpack.WriteField(hpack.HeaderField{Name: "x", Value: fmt.Sprint(i)})
		return f.WriteContinuation(3, false, f.header.Bytes())
	})},
	{"pings without end", true, framed(func(f *frames, _ uint32) (err error) {
		for range 20 {
			err = errors.Join(err, f.WritePing(false, [8]byte{}))
		}
		return err
	})},
	{"new keys of TLS without end", false, askForKeys},
}

// TestPeersThatHoldOnHurtNobody, whatever they hold on with.
func TestPeersThatHoldOnHurtNobody(t *testing.T) {
	t.Parallel()
	for _, h := range holdings {
		t.Run(h.what, func(t *testing.T) {
			s := startTLS(t, debugFlags...)
			usual := normal(t, s, 20)
			before := s.atRest()
			s.forgetPeak()
			var holding sync.WaitGroup
			var conns []net.Conn
			for range holders {
				again, conn, err := h.begin(s)
				noError(t, err)
				conns = append(conns, conn)
				if h.reads {
					go func() { _, _ = io.Copy(io.Discard, conn) }()
				}
				holding.Go(func() {
					for i := uint32(0); again(i) == nil; i++ {
						time.Sleep(200 * time.Millisecond)
					}
				})
			}
			time.Sleep(soak(time.Second))
			unnoticed(t, usual, normal(t, s, 10))
			held := s.footprint()
			peak := s.memory("VmHWM") - before.resident
			began := time.Now()
			s.stop()
			took := time.Since(began)
			for _, conn := range conns { // the kernel may take on what nobody reads any more
				conn.Close()
			}
			holding.Wait()
			t.Logf("%d goroutines, %d KiB at the most, and a stop takes %v",
				held.goroutines-before.goroutines, peak, took)
			if peak > holders*2<<10 || held.goroutines > before.goroutines+holders*goroutinesHeld ||
				took > 10*time.Second+delay/4 {
				t.Errorf("%d peers with %s are too much", holders, h.what)
			}
		})
	}
}

// keyAsker writes records of TLS 1.3 (RFC 8446), because crypto/tls asks for no new keys. It reads
// nothing.
type keyAsker struct {
	conn   net.Conn
	secret []byte
	aead   cipher.AEAD
	iv     []byte
	sent   uint64 // records under the secret
}

// askForKeys begins HTTP/2. Then it sends as many requests for keys in a row as crypto/tls takes,
// and a frame of an unknown type, which is to be ignored.
func askForKeys(s *server) (again func(i uint32) error, conn net.Conn, err error) {
	raw, err := s.dial()
	if err != nil {
		return nil, nil, err
	}
	var log bytes.Buffer
	secure := tls.Client(raw, &tls.Config{RootCAs: testIdentity().roots, ServerName: "127.0.0.1",
		NextProtos: []string{"h2"}, MinVersion: tls.VersionTLS13, KeyLogWriter: &log})
	err = errors.Join(raw.SetReadBuffer(4<<10), secure.Handshake(), raw.SetDeadline(time.Time{}))
	_, secret, _ := strings.Cut(log.String(), "CLIENT_TRAFFIC_SECRET_0 ")
	fields := strings.Fields(secret)
	if err != nil || len(fields) < 2 ||
		secure.ConnectionState().CipherSuite != tls.TLS_AES_128_GCM_SHA256 {
		return nil, nil, fmt.Errorf("no keys are known: %w", err)
	}
	k := &keyAsker{conn: raw}
	first, err := hex.DecodeString(fields[1])
	k.use(first)
	emptySettings := []byte{0, 0, 0, 4, 0, 0, 0, 0, 0}
	err = errors.Join(err, k.write(23, append([]byte(http2.ClientPreface), emptySettings...)))
	return func(uint32) error {
		for range 16 {
			if err := k.update(); err != nil {
				return err
			}
		}
		return k.write(23, []byte{0, 0, 0, 0xf0, 0, 0, 0, 0, 0})
	}, raw, err
}

func (k *keyAsker) use(secret []byte) {
	k.secret, k.sent, k.iv = secret, 0, expand(secret, "iv", 12)
	block, _ := aes.NewCipher(expand(secret, "key", 16)) // the size is right
	k.aead, _ = cipher.NewGCM(block)
}

// expand is HKDF-Expand-Label of section 7.1.
func expand(secret []byte, label string, size int) []byte {
	label = "tls13 " + label
	info := append([]byte{0, byte(size), byte(len(label))}, label+"\x00"...)
	expanded, _ := hkdf.Expand(sha256.New, secret, string(info), size)
	return expanded
}

// update asks for a new key, and uses one, as section 4.6.3 says.
func (k *keyAsker) update() error {
	err := k.write(22, []byte{24, 0, 0, 1, 1})
	k.use(expand(k.secret, "traffic upd", sha256.Size))
	return err
}

// write sends a record (section 5.2).
func (k *keyAsker) write(kind byte, content []byte) error {
	content = append(content, kind)
	header := []byte{23, 3, 3, 0, byte(len(content) + k.aead.Overhead())}
	nonce := slices.Clone(k.iv)
	nonce[11] ^= byte(k.sent) // there are never more than a few under a key
	k.sent++
	_, err := k.conn.Write(append(header, k.aead.Seal(nil, nonce, content, header)...))
	return err
}
