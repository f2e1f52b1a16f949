// Ceiling is the fastest net/http server that could stand in the service's
// place: it sends the same bytes and headers under the same timeouts, and does
// nothing else. No key is checked, no limit charged, no database asked.
//
// It is started with the address to listen on, and a file in JSON of what to
// send for a list, a fetch, and an add, without the date.
package main

import (
	"encoding/json"
	"io"
	"log"
	"net/http"
	"os"
	"time"
)

// canned is a response, captured from the service.
type canned struct {
	Status int
	Header http.Header
	Body   []byte

	fields []field
}

// field is a header in the form in which it costs least to set.
type field struct {
	name   string
	values []string
}

func (c *canned) prepare() {
	for name, values := range c.Header {
		c.fields = append(c.fields, field{name, values})
	}
}

func (c *canned) send(w http.ResponseWriter) {
	h := w.Header()
	for i := range c.fields {
		h[c.fields[i].name] = c.fields[i].values
	}
	w.WriteHeader(c.Status)
	_, _ = w.Write(c.Body)
}

func main() {
	address, file := os.Args[1], os.Args[2]
	text, err := os.ReadFile(file)
	if err != nil {
		log.Fatal(err)
	}
	var all struct{ List, Fetch, Add canned }
	if err := json.Unmarshal(text, &all); err != nil {
		log.Fatal(err)
	}
	all.List.prepare()
	all.Fetch.prepare()
	all.Add.prepare()
	serve := func(w http.ResponseWriter, r *http.Request) {
		switch {
		case r.Method == http.MethodPost:
			_, _ = io.Copy(io.Discard, r.Body)
			all.Add.send(w)
		case len(r.URL.Path) > len("/v1/pets"):
			all.Fetch.send(w)
		default:
			all.List.send(w)
		}
	}
	server := &http.Server{ // as newServer in the service's main.go
		Addr:                         address,
		Handler:                      http.HandlerFunc(serve),
		ReadHeaderTimeout:            5 * time.Second,
		ReadTimeout:                  15 * time.Second,
		WriteTimeout:                 30 * time.Second,
		IdleTimeout:                  2 * time.Minute,
		MaxHeaderBytes:               16 << 10,
		DisableGeneralOptionsHandler: true,
	}
	log.Fatal(server.ListenAndServe())
}
