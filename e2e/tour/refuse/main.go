// Exercise refuse of docs/tour-request.md: handlers that write their own errors.
package main

import (
	"encoding/json"
	"fmt"
	"net/http"
	"net/http/httptest"
	"strings"
)

var pets []string // their names; the first one has the id 1

func routes() http.Handler {
	mux := http.NewServeMux()
	mux.HandleFunc("POST /v1/pets", add)
	return mux
}

func add(w http.ResponseWriter, r *http.Request) {
	var pet struct{ Name string }
	if err := json.NewDecoder(r.Body).Decode(&pet); err != nil || pet.Name == "" {
		http.Error(w, `{"code":"invalid_body"}`, http.StatusBadRequest)
	}
	pets = append(pets, pet.Name)
	_, _ = fmt.Fprintf(w, `{"id":%d}`, len(pets))
}

// send describes the response to a request.
func send(method, path, body string) string {
	w := httptest.NewRecorder()
	routes().ServeHTTP(w, httptest.NewRequest(method, path, strings.NewReader(body)))
	return fmt.Sprintf("%d %s %q", w.Code, w.Result().Header.Get("Content-Type"), w.Body)
}

func main() {
	fmt.Println("GET /v1/shops:", send("GET", "/v1/shops", ""))
	fmt.Println("POST /v1/pets:", send("POST", "/v1/pets", "{}"))
	fmt.Println("pets stored:", len(pets))
}
