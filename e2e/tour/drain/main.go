// Exercise drain of docs/tour-request.md: a server that is stopped while it works.
package main

import (
	"context"
	"fmt"
	"net"
	"net/http"
	"sync/atomic"
	"time"
)

const patience = time.Second // serve may take so long after the stop

var (
	begun  = make(chan bool, 100) // gets an element when an add begins
	stored atomic.Int64           // pets
)

// add stores a pet.
func add(w http.ResponseWriter, _ *http.Request) {
	begun <- true
	time.Sleep(100 * time.Millisecond) // the disk
	stored.Add(1)
	w.WriteHeader(http.StatusCreated)
}

// serve serves until ctx ends, when somebody stops the program.
func serve(ctx context.Context, l net.Listener) error {
	server := &http.Server{Handler: http.HandlerFunc(add)}
	context.AfterFunc(ctx, func() { _ = server.Close() })
	return server.Serve(l)
}

func main() {
	l, _ := net.Listen("tcp", "127.0.0.1:0")
	ctx, stop := context.WithCancel(context.Background())
	for range 10 { // clients
		go http.Post("http://"+l.Addr().String(), "", nil)
	}
	go func() {
		for range 10 {
			<-begun
		}
		stop()
	}()
	err := serve(ctx, l)
	fmt.Println("The program ends:", err, "- pets stored:", stored.Load(), "of 10")
}
