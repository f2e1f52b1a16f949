// Stop1 shows what stop 1 of docs/tour.md warns of: a service whose handlers write their own errors. It looks
// harmless, it compiles, and it breaks the promise that every response keeps the same form.
package main

import (
	"context"
	"encoding/json"
	"fmt"
	"io"
	"log"
	"net/http"
	"net/http/httptest"
	"os"
	"strconv"
	"strings"
)

// shop keeps the names of its pets; the first one has the id 1.
type shop struct{ pets []string }

func (s *shop) routes() http.Handler {
	mux := http.NewServeMux()
	mux.HandleFunc("POST /v1/pets", s.add)
	mux.HandleFunc("GET /v1/pets/{petId}", s.get)
	return mux
}

func (s *shop) add(w http.ResponseWriter, r *http.Request) {
	var pet struct{ Name string }
	if err := json.NewDecoder(r.Body).Decode(&pet); err != nil || pet.Name == "" {
		http.Error(w, `{"code":"invalid_body"}`, http.StatusBadRequest) // a return is missing here
	}
	s.pets = append(s.pets, pet.Name)
	_, _ = fmt.Fprintf(w, `{"id":%d}`, len(s.pets))
}

func (s *shop) get(w http.ResponseWriter, r *http.Request) {
	id, _ := strconv.Atoi(r.PathValue("petId"))
	_, _ = fmt.Fprintf(w, `{"id":%d,"name":%q}`, id, s.pets[id-1]) // which panics if there is no such pet
}

// show sends four requests and prints what a client sees.
func show(out io.Writer) {
	s := &shop{}
	server := httptest.NewUnstartedServer(s.routes())
	server.Config.ErrorLog = log.New(io.Discard, "", 0) // the stack of the panic
	server.Start()
	defer server.Close()
	for _, request := range []string{"GET /v1/shops", "PUT /v1/pets", "POST /v1/pets {}", "GET /v1/pets/7"} {
		_, _ = fmt.Fprintf(out, "%-17s %s\n", request, send(server.URL, request))
	}
	_, _ = fmt.Fprintf(out, "%d pet was stored, although its request was refused\n", len(s.pets))
}

// send describes the response to a request, such as "POST /v1/pets {}".
func send(server, request string) string {
	words := append(strings.Fields(request), "")
	r, err := http.NewRequestWithContext(context.Background(), words[0], server+words[1], strings.NewReader(words[2]))
	if err != nil {
		return err.Error()
	}
	response, err := http.DefaultClient.Do(r)
	if err != nil {
		return "no response: the connection was closed"
	}
	defer response.Body.Close()
	body, _ := io.ReadAll(response.Body)
	return fmt.Sprintf("%d, %s: %s", response.StatusCode, response.Header.Get("Content-Type"),
		strings.ReplaceAll(strings.TrimSpace(string(body)), "\n", " "))
}

func main() { show(os.Stdout) }
