package e2e

// Proven here alone: a peer that stops, or exceeds a bound, loses its connection or its stream when
// the table of docs/operating.md says, in each of its cells.

import (
	"bufio"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"golang.org/x/net/http2"
	"golang.org/x/net/http2/hpack"
)

// conduct is what a peer does, and then it only waits.
type conduct struct {
	http1       string                // what it sends; "" is nothing, not even within TLS
	http2       func(f *frames) error // the same; nil is nothing
	noHandshake bool                  // of TLS
	answers     bool                  // to pings
	drips       bool                  // with HTTP/1.1: a byte each half second, for no more time
}

// conducts are those of the table, by its first column.
var conducts = map[string]conduct{
	"does not finish the handshake of TLS": {noHandshake: true},
	"sends nothing":                        {},
	"stops within its first head": {
		drips: true, http1: get[:20], http2: (*frames).halfAHead,
	},
	"stops within a later head": {
		drips: true, http1: get + get[:20], http2: func(f *frames) error {
			return errors.Join(f.ask(1, "/", true), f.halfAHead())
		},
	},
	"stops within the first three bytes of a later head": {
		http1: get + get[:3], http2: func(f *frames) error {
			err := errors.Join(f.ask(1, "/", true), f.buffer.Flush())
			_, writeErr := f.conn.Write([]byte{0, 0, 9})
			return errors.Join(err, writeErr)
		},
	},
	"stops within a body": {
		answers: true, drips: true, http1: add("Content-Length: 99\r\n", "{"),
		http2: func(f *frames) error {
			key := hpack.HeaderField{Name: "authorization", Value: f.server.bearer()}
			return f.ask(1, "/v1/pets", false, key)
		},
	},
	"takes no response": {
		answers: true, http1: strings.Repeat("GET /page.js HTTP/1.1\r\nHost: x\r\n\r\n", 300),
		http2: func(f *frames) error {
			noWindow := http2.Setting{ID: http2.SettingInitialWindowSize, Val: 0}
			return errors.Join(f.WriteSettings(noWindow), f.ask(1, "/page.js", true))
		},
	},
	"reads nothing": {
		http1: strings.Repeat("GET /page.js HTTP/1.1\r\nHost: x\r\n\r\n", 300),
		http2: func(f *frames) error { return f.ask(1, "/page.js", true) },
	},
	"is idle after a request": {answers: true, http1: get, http2: func(f *frames) error {
		return f.ask(1, "/page.js", true)
	}},
	"sends a head of 24 KiB": head(slices.Repeat([]hpack.HeaderField{
		{Name: "x", Value: strings.Repeat("a", 4<<10)}}, 6)...),
	"sends 500 short headers": head(func() (fields []hpack.HeaderField) {
		for i := range 500 {
			fields = append(fields, hpack.HeaderField{Name: fmt.Sprint("x", i)})
		}
		return fields
	}()...),
	"announces 30 trailers": head(hpack.HeaderField{
		Name: "trailer", Value: strings.Join(strings.Split("abcdefghijklmnopqrstuvwxyz0123", ""),
			","),
	}),
}

// head sends a request for a page of pets, with these headers and without a key.
func head(fields ...hpack.HeaderField) conduct {
	lines := ""
	for _, field := range fields {
		lines += field.Name + ": " + field.Value + "\r\n"
	}
	return conduct{
		answers: true,
		http1:   "GET /v1/pets HTTP/1.1\r\nHost: x\r\n" + lines + "\r\n",
		http2:   func(f *frames) error { return f.ask(1, "/v1/pets", true, fields...) },
	}
}

// halfAHead begins a head that continues in another frame.
func (f *frames) halfAHead() error {
	f.header.Reset()
	err := f.hpack.WriteField(hpack.HeaderField{Name: ":method", Value: "GET"})
	return errors.Join(err, f.WriteHeaders(http2.HeadersFrameParam{
		StreamID: 3, BlockFragment: f.header.Bytes(), EndStream: true,
	}))
}

// TestPeersAreTreatedAsTheTableSays has a peer for each cell of the table do what its row says, all
// at once.
func TestPeersAreTreatedAsTheTableSays(t *testing.T) {
	idle := []string{"-idle-timeout", "12s"}
	plain, secure := start(t, idle...), startTLS(t, idle...)
	columns := []struct {
		s        *server
		protocol string // that TLS settles on
	}{{plain, ""}, {secure, "http/1.1"}, {secure, "h2"}}
	_, table, _ := strings.Cut(readFile(t, "../docs/operating.md"), "\n| a peer that ")
	table, _, _ = strings.Cut(table, "\n\n")
	rows := strings.Split(table, "\n")[2:]
	if len(rows) != len(conducts) {
		t.Errorf("the table has %d rows, want %d", len(rows), len(conducts))
	}
	var waiting sync.WaitGroup
	for _, row := range rows {
		cells := strings.Split(strings.Trim(row, "| "), " | ")
		c, ok := conducts[cells[0]]
		if !ok || len(cells) != 1+len(columns) {
			t.Fatalf("no peer of this test does what %q says", row)
		}
		for i, column := range columns {
			want := strings.ReplaceAll(cells[i+1], "`-idle-timeout`", "12 s")
			if want != "–" {
				waiting.Go(func() {
					if err := c.try(column.s, column.protocol, want); err != nil {
						t.Errorf("a peer that %s, with %q: %v", cells[0], column.protocol, err)
					}
				})
			}
		}
	}
	t.Parallel() // from here on the test only waits
	waiting.Wait()
}

// peer is a connection that does what its conduct says.
type peer struct {
	net.Conn
	frames *frames // with HTTP/2, once it is spoken
}

// try has a peer do it, and compares what comes of it with a cell of the table.
func (c conduct) try(s *server, protocol, want string) error {
	p, err := c.begin(s, protocol)
	if err != nil {
		return err
	}
	defer p.Close()
	due := duration(want)
	if due == 0 {
		return p.expectOutcome(want)
	}
	began, reset := time.Now(), make(chan bool)
	if c.answers && p.frames != nil {
		go func() {
			if p.frames.untilReset(1) == nil {
				close(reset)
			}
		}()
	}
	for held := true; held && time.Since(began) < due+delay; {
		select {
		case <-reset:
			held = false
		case <-time.After(500 * time.Millisecond):
			if c.drips && p.frames == nil {
				_, _ = io.WriteString(p, "a") // the service may have closed it
			}
			held = holds(p)
		}
	}
	if took := time.Since(began); took < due-time.Second || took > due+delay {
		return fmt.Errorf("it is ended after %v, want %v", took, want)
	}
	return nil
}

// duration is how long a cell says, or 0.
func duration(cell string) time.Duration {
	d, _ := time.ParseDuration(strings.NewReplacer(" min", "m", " s", "s").Replace(cell))
	return d
}

func (c conduct) begin(s *server, protocol string) (*peer, error) {
	raw, err := s.dial()
	if err != nil {
		return nil, err
	}
	if err := errors.Join(raw.SetDeadline(time.Time{}), raw.SetReadBuffer(4<<10)); err != nil {
		return nil, err
	}
	p := &peer{Conn: raw}
	if protocol == "" || c.noHandshake {
		_, err = io.WriteString(p, strings.ReplaceAll(c.http1, anyKey, s.key))
		return p, err
	}
	conn, err := tlsOver(raw, protocol)
	if err != nil {
		return nil, err
	}
	p.Conn = conn
	if protocol != "h2" {
		_, err = io.WriteString(p, strings.ReplaceAll(c.http1, anyKey, s.key))
		return p, err
	}
	if c.http2 == nil {
		return p, nil
	}
	if p.frames, err = s.beginHTTP2(conn); err != nil {
		return nil, err
	}
	return p, errors.Join(c.http2(p.frames), p.frames.buffer.Flush())
}

// expectOutcome reads the response, or the reset of the stream in its place.
func (p *peer) expectOutcome(want string) error {
	got := ""
	if p.frames == nil {
		response, err := http.ReadResponse(bufio.NewReader(p), nil)
		if err != nil {
			return err
		}
		got = strconv.Itoa(response.StatusCode)
	} else {
		p.frames.ReadMetaHeaders = hpack.NewDecoder(4<<10, nil)
	}
	for got == "" {
		frame, err := p.frames.read()
		if err != nil {
			return err
		}
		switch frame := frame.(type) {
		case *http2.MetaHeadersFrame:
			got = frame.PseudoValue("status")
		case *http2.RSTStreamFrame:
			got = "reset"
		}
	}
	if got != want {
		return fmt.Errorf("it gets %s, want %s", got, want)
	}
	return nil
}

// holds reports whether the service has a connection open. One that no process holds has the inode
// 0 (proc(5)), even if not all that was sent has been taken. Both ports count, since another
// connection may have had the client's.
func holds(client net.Conn) bool {
	text, err := os.ReadFile("/proc/net/tcp")
	if err != nil {
		return false
	}
	port := func(a net.Addr) string { return fmt.Sprintf(":%04X", a.(*net.TCPAddr).Port) }
	local, remote := port(client.RemoteAddr()), port(client.LocalAddr()) // as the service sees them
	for line := range strings.Lines(string(text)) {
		f := strings.Fields(line)
		if strings.HasSuffix(f[1], local) && strings.HasSuffix(f[2], remote) {
			return f[9] != "0"
		}
	}
	return false
}
