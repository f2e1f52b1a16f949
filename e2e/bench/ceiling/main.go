// Ceiling is the fastest net/http server that could stand in the service's
// place: it sends the same bytes and headers under the same timeouts, and does
// nothing else. No key is checked, no limit charged, no database asked.
//
// It reads from stdin a JSON list of what to answer, listens on one port of
// 127.0.0.1 for each item, and prints the addresses in one line.
package main

import (
	"encoding/json"
	"fmt"
	"io"
	"log"
	"net"
	"net/http"
	"os"
	"strings"
	"time"
)

// canned is what one port answers, captured from the service.
type canned struct {
	Post, List, Get *answer
}

type answer struct {
	Status int
	Header [][2]string // in the service's spelling
	Body   []byte

	fields []field
}

// field is a header in the form in which it costs least to set.
type field struct {
	name  string
	value []string
}

func (c *canned) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	a := c.List
	switch {
	case r.Method == http.MethodPost:
		_, _ = io.Copy(io.Discard, r.Body)
		a = c.Post
	case len(r.URL.Path) > len("/v1/pets"):
		a = c.Get
	}
	h := w.Header()
	for i := range a.fields {
		h[a.fields[i].name] = a.fields[i].value
	}
	w.WriteHeader(a.Status)
	_, _ = w.Write(a.Body)
}

func main() {
	var ports []*canned
	if err := json.NewDecoder(os.Stdin).Decode(&ports); err != nil {
		log.Fatal(err)
	}
	var addresses []string
	for _, c := range ports {
		for _, a := range []*answer{c.Post, c.List, c.Get} {
			if a == nil {
				continue
			}
			for _, h := range a.Header {
				a.fields = append(a.fields, field{h[0], []string{h[1]}})
			}
		}
		l, err := net.Listen("tcp", "127.0.0.1:0") //nolint:noctx // nothing is looked up
		if err != nil {
			log.Fatal(err)
		}
		addresses = append(addresses, l.Addr().String())
		server := &http.Server{ // as newServer in the service's main.go
			Handler:                      c,
			ReadHeaderTimeout:            5 * time.Second,
			ReadTimeout:                  15 * time.Second,
			WriteTimeout:                 30 * time.Second,
			IdleTimeout:                  2 * time.Minute,
			MaxHeaderBytes:               16 << 10,
			DisableGeneralOptionsHandler: true,
		}
		go func() { log.Fatal(server.Serve(l)) }()
	}
	fmt.Println("ready", strings.Join(addresses, ","))
	select {} // until it is killed
}
